//! What the process of an engine says, held against what the server knows: it may say anything.

use crate::messages::{OwnedTensor, PlacedTensor, PreparedModel, SaidPort, datatype_of};
use crate::region::SharedRegion;
use base::{DataType, ModelSignature, TensorSpec, element_count};
use engine::Tensor;

/// More dimensions than any runtime has.
const MAX_RANK: usize = 64;
/// More bytes of weights than any machine has; far from where sums of them overflow.
const MAX_WEIGHT_BYTES: u64 = 1 << 48;

/// A model as the process describes it, believed.
#[derive(Debug)]
pub(crate) struct BelievedModel {
    pub(crate) signature: ModelSignature,
    pub(crate) weight_bytes: u64,
    pub(crate) takes_any_batch: bool,
    pub(crate) defaults: Vec<Option<Tensor>>,
}

/// Looks at a model's description.
pub(crate) fn model(said: PreparedModel) -> Result<BelievedModel, String> {
    let PreparedModel { inputs, outputs, max_batch, weight_bytes, takes_any_batch, defaults } = said;
    let signature = ModelSignature { inputs: specs(inputs)?, outputs: specs(outputs)?, max_batch };
    if max_batch > 0
        && let Some(why) = signature.without_batch()
    {
        return Err(format!("it has a batch of {max_batch}, but {why}"));
    }
    if weight_bytes > MAX_WEIGHT_BYTES {
        return Err(format!("its weights have {weight_bytes} bytes"));
    }
    if !defaults.is_empty() && defaults.len() != signature.inputs.len() {
        return Err(format!("{} inputs have values of their own, of {}", defaults.len(), signature.inputs.len()));
    }
    let default = |(spec, default): (&TensorSpec, Option<OwnedTensor>)| default.map(|of| tensor(spec, of)).transpose();
    let defaults = signature.inputs.iter().zip(defaults).map(default).collect::<Result<_, _>>()?;
    Ok(BelievedModel { signature, weight_bytes, takes_any_batch, defaults })
}

fn specs(ports: Vec<SaidPort>) -> Result<Vec<TensorSpec>, String> {
    let spec = |SaidPort { name, datatype, dims }: SaidPort| {
        let datatype = datatype_of(datatype).ok_or("a type is unknown")?;
        if dims.len() > MAX_RANK || dims.iter().any(|&dim| dim < -1) {
            return Err(format!("{name:?} has the dimensions {dims:?}"));
        }
        Ok(TensorSpec { name, datatype, dims })
    };
    ports.into_iter().map(spec).collect()
}

fn tensor(spec: &TensorSpec, OwnedTensor { datatype, shape, data }: OwnedTensor) -> Result<Tensor, String> {
    let datatype = known_type(spec, datatype)?;
    holds(spec, &shape, &data)?;
    Ok(Tensor { datatype, shape, data: data.into() })
}

/// The outputs of a batch, copied out of the region behind one another, and where each begins and ends.
#[derive(Debug, Default)]
pub(crate) struct TakenOutputs {
    pub(crate) data: Vec<u8>,
    pub(crate) tensors: Vec<(DataType, Vec<i64>, std::ops::Range<usize>)>,
}

impl TakenOutputs {
    /// Takes them, and looks at the copy: who may write to the region can't change what was looked at.
    pub(crate) fn take(
        &mut self,
        region: &SharedRegion,
        said: Vec<PlacedTensor>,
        outputs: &[TensorSpec],
    ) -> Result<(), String> {
        self.data.clear();
        self.tensors.clear();
        if said.len() != outputs.len() {
            return Err(format!("it gives {} outputs, the model has {}", said.len(), outputs.len()));
        }
        for (PlacedTensor { datatype, shape, at, bytes }, spec) in said.into_iter().zip(outputs) {
            let (datatype, start) = (known_type(spec, datatype)?, self.data.len());
            let place = usize::try_from(at).ok().zip(usize::try_from(bytes).ok());
            if !place.is_some_and(|(at, length)| region.read(at, length, &mut self.data)) {
                return Err(format!("output {} is {bytes} bytes at {at}, of {}", spec.name, region.bytes()));
            }
            holds(spec, &shape, &self.data[start..])?;
            self.tensors.push((datatype, shape, start..self.data.len()));
        }
        Ok(())
    }
}

fn known_type(spec: &TensorSpec, number: u8) -> Result<DataType, String> {
    match datatype_of(number) {
        Some(datatype) if datatype == spec.datatype => Ok(datatype),
        _ => Err(format!("{} has the type of number {number}, expected {}", spec.name, spec.datatype)),
    }
}

/// Whether data is exactly what a tensor of that shape has.
fn holds(spec: &TensorSpec, shape: &[i64], data: &[u8]) -> Result<(), String> {
    let wrong = || format!("{} has {} bytes, which is not what the shape {shape:?} takes", spec.name, data.len());
    let count = element_count(shape).filter(|_| shape.len() <= MAX_RANK).ok_or_else(wrong)?;
    let fits = match spec.datatype.size() {
        Some(size) => count.checked_mul(size) == Some(data.len()),
        None => strings(data) == Some(count),
    };
    if fits { Ok(()) } else { Err(wrong()) }
}

/// How many strings these bytes are, if they are some.
fn strings(mut data: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !data.is_empty() {
        let (length, behind) = data.split_first_chunk::<4>()?;
        data = behind.get(u32::from_le_bytes(*length) as usize..)?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::number_of;
    use crate::region::DATA_AT;

    const FLOAT: u8 = 10;

    fn spec(datatype: DataType) -> Vec<TensorSpec> {
        vec![TensorSpec { name: "out".into(), datatype, dims: vec![-1, 2] }]
    }

    fn placed(datatype: u8, shape: &[i64], at: usize, bytes: u64) -> Vec<PlacedTensor> {
        vec![PlacedTensor { datatype, shape: shape.to_vec(), at: at as u64, bytes }]
    }

    #[test]
    fn a_process_that_lies_about_its_outputs_is_found_out() {
        assert_eq!(number_of(DataType::Fp32), FLOAT);
        let region = SharedRegion::new(DATA_AT + 64).unwrap();
        let take = |said, outputs: &[TensorSpec]| TakenOutputs::default().take(&region, said, outputs);
        let floats = spec(DataType::Fp32);
        assert_eq!(take(placed(FLOAT, &[1, 2], DATA_AT, 8), &floats), Ok(()));
        for lie in [
            Vec::new(),
            placed(FLOAT + 1, &[1, 2], DATA_AT, 8),
            placed(200, &[1, 2], DATA_AT, 8),
            placed(FLOAT, &[1, 3], DATA_AT, 8),
            placed(FLOAT, &[-1, -2], DATA_AT, 8),
            placed(FLOAT, &[i64::MAX, 4], DATA_AT, 0),
            placed(FLOAT, &[1 << 61, 2], DATA_AT, 0),
            placed(FLOAT, &[1; 65], DATA_AT, 4),
            placed(FLOAT, &[1, 2], DATA_AT + 60, 8),
            placed(FLOAT, &[1, 2], usize::MAX, 8),
            placed(FLOAT, &[1, 2], DATA_AT, u64::MAX),
            [placed(FLOAT, &[1, 2], DATA_AT, 8), placed(FLOAT, &[1, 2], DATA_AT, 8)].concat(),
        ] {
            assert!(take(lie.clone(), &floats).is_err(), "{lie:?}");
        }
    }

    #[test]
    fn strings_that_end_behind_their_tensor_are_found_out() {
        let region = SharedRegion::new(DATA_AT + 64).unwrap();
        let bytes = number_of(DataType::Bytes);
        assert!(region.write(DATA_AT, &[1, 0, 0, 0, b'a', 0, 0, 0, 0, 255, 255, 255, 255]));
        let take = |count, length| {
            let said = placed(bytes, &[count], DATA_AT, length);
            TakenOutputs::default().take(&region, said, &spec(DataType::Bytes))
        };
        assert_eq!(take(2, 9), Ok(()));
        assert!(take(1, 9).is_err() && take(3, 13).is_err() && take(2, 8).is_err());
    }

    #[test]
    fn a_process_that_lies_about_a_model_is_found_out() {
        let port = |dims: &[i64]| SaidPort { name: "x".into(), datatype: FLOAT, dims: dims.to_vec() };
        let said = |inputs, max_batch, weight_bytes, defaults| {
            let outputs = vec![port(&[-1])];
            model(PreparedModel { inputs, outputs, max_batch, weight_bytes, takes_any_batch: true, defaults })
        };
        let value = |data: &[u8]| Some(OwnedTensor { datatype: FLOAT, shape: vec![1], data: data.to_vec() });
        assert!(said(vec![port(&[-1, 2])], 4, 10, Vec::new()).is_ok());
        assert!(said(vec![port(&[1])], 0, 10, vec![value(&[0; 4])]).is_ok());
        assert!(said(vec![port(&[-2])], 0, 10, Vec::new()).is_err());
        assert!(said(vec![port(&[3])], 4, 10, Vec::new()).is_err());
        assert!(said(vec![port(&[-1])], 4, u64::MAX, Vec::new()).is_err());
        assert!(said(vec![port(&[1])], 0, 10, vec![value(&[0; 5])]).is_err());
        assert!(said(Vec::new(), 0, 10, vec![value(&[0; 4])]).is_err());
        let unknown = SaidPort { name: "x".into(), datatype: 99, dims: Vec::new() };
        assert!(said(vec![unknown], 0, 10, Vec::new()).is_err());
    }
}
