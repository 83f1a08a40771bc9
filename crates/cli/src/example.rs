//! A `curl` line that works when pasted.

use base::{DataType, TensorSpec, element_count};
use models::Catalogue;

/// More elements than this don't belong on a command line.
const MAX_ELEMENTS: usize = 100;

/// A request for the ready model with the smallest input, with `HOST` where the address goes.
pub fn curl(catalogue: &Catalogue) -> Option<String> {
    let ready = catalogue.models.iter().filter_map(|(name, model)| {
        let served = model.default_version()?.serving()?;
        let shapes: Vec<Vec<i64>> = served.signature.inputs.iter().map(smallest_shape).collect();
        let elements: usize = shapes.iter().map(|shape| element_count(shape)).sum::<Option<usize>>()?;
        let writable = served.signature.inputs.iter().all(|input| value(input.datatype).is_some());
        (elements <= MAX_ELEMENTS && writable).then_some((elements, name, served, shapes))
    });
    let (_, name, served, shapes) = ready.min_by_key(|&(elements, name, ..)| (elements, name))?;
    let inputs: Vec<String> = served
        .signature
        .inputs
        .iter()
        .zip(&shapes)
        .map(|(input, shape)| {
            let data = vec![value(input.datatype).unwrap_or_default(); element_count(shape).unwrap_or(0)].join(",");
            let (name, datatype) = (&input.name, input.datatype);
            format!(r#"{{"name":"{name}","shape":{shape:?},"datatype":"{datatype}","data":[{data}]}}"#)
        })
        .collect();
    Some(format!("curl http://HOST/v2/models/{name}/infer -d '{{\"inputs\":[{}]}}'", inputs.join(",")))
}

fn smallest_shape(input: &TensorSpec) -> Vec<i64> {
    input.dims.iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect()
}

/// An element as JSON; `None` for types that have no form there.
fn value(datatype: DataType) -> Option<&'static str> {
    match datatype {
        DataType::Fp32 | DataType::Fp64 => Some("0.5"),
        DataType::Bool => Some("true"),
        DataType::Bytes => Some("\"text\""),
        DataType::Fp16 | DataType::Bf16 => None,
        _ => Some("1"),
    }
}
