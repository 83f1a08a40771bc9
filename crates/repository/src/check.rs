//! Whether what is configured agrees with what the engine found in the model's file.

use crate::config::{ModelConfig, TensorConfig};
use base::{ModelSignature, TensorSpec};

/// Every point in which a configuration contradicts the model, as sentences; empty if there is none. A configuration
/// may be narrower than the model (a size where the model takes any), not wider.
pub fn disagreements(config: &ModelConfig, signature: &ModelSignature) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(max_batch) = config.max_batch {
        let (configured, possible) = (max_batch, signature.max_batch);
        if configured > 0 && possible == 0 {
            found.push(format!(
                "max_batch_size is {configured}, but the model has no batch dimension: set max_batch_size to 0"
            ));
        } else if configured > possible && possible > 0 {
            found.push(format!(
                "max_batch_size is {configured}, but the model takes batches of at most {possible}: lower it"
            ));
        }
    }
    let batched = signature.max_batch > 0;
    found.extend(compare("input", &config.inputs, &signature.inputs, batched));
    found.extend(compare("output", &config.outputs, &signature.outputs, batched));
    if !config.inputs.is_empty() {
        let sequences = config.sequences.as_ref();
        let is_given = |name: &str| sequences.is_some_and(|sequences| sequences.gives_input(name));
        let missing = signature.inputs.iter().filter(|spec| config.inputs.iter().all(|c| c.name != spec.name));
        let missing = missing.filter(|spec| !is_given(&spec.name));
        found.extend(missing.map(|spec| format!("input {:?} of the model is missing in the configuration", spec.name)));
    }
    found
}

fn compare(role: &str, configured: &[TensorConfig], specs: &[TensorSpec], batched: bool) -> Vec<String> {
    let mut found = Vec::new();
    for tensor in configured {
        let name = &tensor.name;
        let Some(spec) = specs.iter().find(|spec| spec.name == *name) else {
            let names: Vec<String> = specs.iter().map(|spec| format!("{:?}", spec.name)).collect();
            found.push(format!("{role} {name:?} isn't in the model: it has {}", names.join(", ")));
            continue;
        };
        if tensor.datatype != spec.datatype {
            let (configured, actual) = (tensor.datatype, spec.datatype);
            found.push(format!("{role} {name:?} is configured as {configured}, but is {actual} in the model"));
        }
        let actual = if batched && !spec.dims.is_empty() { &spec.dims[1..] } else { &spec.dims[..] };
        if !fits(tensor.own_dims(actual, batched), actual) {
            let without = if batched { " without the batch dimension" } else { "" };
            let (what, dims) = tensor.reshape.as_ref().map_or(("dims", &tensor.dims), |dims| ("reshape", dims));
            found.push(format!(
                "{role} {name:?} is configured with {what} {dims:?}, but has {actual:?} in the model{without}"
            ));
        }
    }
    found
}

fn fits(configured: &[i64], actual: &[i64]) -> bool {
    configured.len() == actual.len()
        && configured.iter().zip(actual).all(|(&configured, &actual)| actual < 0 || configured == actual)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use std::path::Path;

    fn signature(max_batch: u32) -> ModelSignature {
        let spec =
            |name: &str, dims: &[i64]| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: dims.to_vec() };
        ModelSignature {
            inputs: vec![spec("x", &[-1, 3, -1])],
            outputs: vec![spec("y", &[-1, 10]), spec("z", &[-1])],
            max_batch,
        }
    }

    fn check(text: &str, max_batch: u32) -> Vec<String> {
        let config = ModelConfig::parse(text, Path::new("config.pbtxt"), "m").unwrap();
        disagreements(&config, &signature(max_batch))
    }

    #[test]
    fn narrower_is_fine_and_outputs_may_be_left_out() {
        let text = "max_batch_size: 4 input { name: \"x\" data_type: TYPE_FP32 dims: [3, 224] }
                    output { name: \"y\" data_type: TYPE_FP32 dims: 10 }";
        assert_eq!(check(text, 8), Vec::<String>::new());
        assert_eq!(check("", 8), Vec::<String>::new());
        let whole = "max_batch_size: 0 input { name: \"x\" data_type: TYPE_FP32 dims: [-1, 3, 7] }";
        assert_eq!(check(whole, 0), Vec::<String>::new());
    }

    #[test]
    fn a_tensor_without_dimensions_is_written_with_ones() {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: Vec::new() };
        let signature = ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 0 };
        let said = |x: &str, y: &str| {
            let text = format!(
                "max_batch_size: 0 input {{ name: \"x\" data_type: TYPE_FP32 {x} }}
                 output {{ name: \"y\" data_type: TYPE_FP32 {y} }}"
            );
            disagreements(&ModelConfig::parse(&text, Path::new("config.pbtxt"), "m").unwrap(), &signature)
        };
        assert_eq!(said("dims: 1", "dims: [1, 1]"), Vec::<String>::new());
        assert_eq!(said("dims: 1 reshape { shape: [ ] }", "dims: [ ]"), Vec::<String>::new());
        assert_eq!(
            said("dims: 2", "dims: -1"),
            [
                "input \"x\" is configured with dims [2], but has [] in the model",
                "output \"y\" is configured with dims [-1], but has [] in the model",
            ]
        );
    }

    #[test]
    fn each_contradiction_is_a_sentence() {
        let text = "max_batch_size: 16 input { name: \"w\" data_type: TYPE_FP32 dims: 1 }
                    output { name: \"y\" data_type: TYPE_INT64 dims: [11] } output { name: \"z\" data_type: TYPE_FP32 dims: 1 }";
        assert_eq!(
            check(text, 8),
            [
                "max_batch_size is 16, but the model takes batches of at most 8: lower it",
                "input \"w\" isn't in the model: it has \"x\"",
                "output \"y\" is configured as INT64, but is FP32 in the model",
                "output \"y\" is configured with dims [11], but has [10] in the model without the batch dimension",
                "output \"z\" is configured with dims [1], but has [] in the model without the batch dimension",
                "input \"x\" of the model is missing in the configuration",
            ]
        );
        assert!(check("max_batch_size: 2", 0)[0].contains("no batch dimension"));
    }
}
