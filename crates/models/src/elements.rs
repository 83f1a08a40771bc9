//! How many elements an input may have whose size a model leaves open.

use base::{DataType, ModelSignature, TensorSpec};

/// What an execution takes for each value of a picture or a sound, at most: a text detector takes 55 bytes for each of a
/// picture's.
const BYTES_OF_VALUE: u64 = 128;
/// What it takes for each number that is looked up in a table, as words are: it becomes a row there, several times over.
/// MiniLM, whose rows have 384 values, takes 4.8 kB for a token before it has computed anything with it.
const BYTES_OF_TOKEN: u64 = 16 << 10;

/// The bound for a model: what its configuration says, otherwise what memory for one execution allows. No bound where
/// all sizes are fixed.
pub(crate) fn most(signature: &ModelSignature, configured: Option<u64>, execution_bytes: u64) -> u64 {
    let open = signature.inputs.iter().filter(|spec| spec.is_open(signature.max_batch));
    let Some(bytes) = open.map(bytes_of_element).max() else { return u64::MAX };
    configured.unwrap_or((execution_bytes / bytes).max(1))
}

fn bytes_of_element(spec: &TensorSpec) -> u64 {
    match spec.datatype {
        DataType::Int32 | DataType::Int64 | DataType::Bytes => BYTES_OF_TOKEN,
        _ => BYTES_OF_VALUE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(max_batch: u32, inputs: &[(DataType, &[i64])], configured: Option<u64>) -> u64 {
        let spec =
            |&(datatype, dims): &(DataType, &[i64])| TensorSpec { name: "x".into(), datatype, dims: dims.into() };
        let (inputs, outputs) = (inputs.iter().map(spec).collect(), Vec::new());
        most(&ModelSignature { inputs, outputs, max_batch }, configured, 1 << 30)
    }

    #[test]
    fn memory_bounds_what_a_model_leaves_open_unless_its_configuration_does() {
        let (picture, tokens) = ((DataType::Fp32, &[-1, 3, -1, -1][..]), (DataType::Int64, &[-1, -1][..]));
        let fixed = (DataType::Fp32, &[-1, 3, 224, 224][..]);
        assert_eq!(bound(8, &[picture, (DataType::Int64, &[-1, 2])], None), 8 << 20);
        assert_eq!(bound(8, &[fixed, tokens], None), 64 << 10);
        assert_eq!(bound(8, &[tokens], Some(7)), 7);
        assert_eq!((bound(8, &[fixed], None), bound(8, &[fixed], Some(7))), (u64::MAX, u64::MAX));
        assert_eq!(bound(0, &[fixed], None), 8 << 20, "without a batch dimension the first one is open");
    }
}
