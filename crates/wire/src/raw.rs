//! A request without a head: the body is the one input's data, and what it is follows from the model.

use crate::elements::{check_elements, push_string};
use crate::room::room;
use crate::{Fault, InferInput, InferRequest, Parameters};
use base::{DataType, ModelSignature, TensorSpec};
use bytes::Bytes;
use std::borrow::Cow;

/// The request that a body without a head means (`Inference-Header-Content-Length: 0`). The model must have one input,
/// and at most one of its dimensions may be open; the number of bytes then says what that is. Outputs are wanted as
/// bytes.
pub fn raw_request(signature: &ModelSignature, body: Bytes) -> Result<InferRequest<'static>, Fault> {
    let [spec] = &signature.inputs[..] else {
        return Err(Fault::bad(format!(
            "the body has no head, which says that it is the model's one input, but the model has {}: send the request as JSON, or with a head",
            signature.inputs.len()
        )));
    };
    let (shape, data) = match spec.datatype.size() {
        Some(size) => (fixed_shape(spec, signature.max_batch, size, body.len())?, body),
        None => one_string(spec, signature.max_batch, &body)?,
    };
    check_elements(&spec.name, spec.datatype, &shape, &data)?;
    let name = Cow::Owned(spec.name.clone());
    Ok(InferRequest {
        id: Cow::Borrowed(""),
        application: Cow::Borrowed(""),
        parameters: Parameters { binary_outputs: true, ..Parameters::default() },
        sequence: None,
        own: Vec::new(),
        inputs: vec![InferInput { name, datatype: spec.datatype, shape, data, region: None }],
        outputs: Vec::new(),
    })
}

/// The shape of elements of a fixed size. The batch has one row if another dimension is open.
fn fixed_shape(spec: &TensorSpec, max_batch: u32, size: usize, bytes: usize) -> Result<Vec<i64>, Fault> {
    let mut shape = spec.dims.clone();
    let row_open = shape.iter().skip(usize::from(max_batch > 0)).filter(|&&dim| dim < 0).count();
    if row_open > 1 {
        return Err(Fault::bad(format!(
            "input {:?} has the shape {:?}, which doesn't follow from the number of bytes: send the request as JSON, or with a head",
            spec.name, spec.dims
        )));
    }
    if let Some(batch) = shape.first_mut().filter(|_| max_batch > 0) {
        *batch = if row_open == 0 { -1 } else { 1 };
    }
    let known = shape
        .iter()
        .filter(|&&dim| dim >= 0)
        .try_fold(size, |product, &dim| product.checked_mul(usize::try_from(dim).ok()?));
    if let (Some(open), Some(known)) = (shape.iter_mut().find(|dim| **dim < 0), known)
        && known > 0
    {
        if !bytes.is_multiple_of(known) {
            return Err(Fault::bad(format!(
                "the body has {bytes} bytes, but input {:?} of {} takes a multiple of {known}",
                spec.name, spec.datatype
            )));
        }
        *open = i64::try_from(bytes / known).unwrap_or(i64::MAX);
    }
    Ok(shape)
}

/// The whole body as one element of `BYTES`.
fn one_string(spec: &TensorSpec, max_batch: u32, body: &[u8]) -> Result<(Vec<i64>, Bytes), Fault> {
    if spec.dims.iter().skip(usize::from(max_batch > 0)).any(|&dim| dim > 1) {
        return Err(Fault::bad(format!(
            "input {:?} has the shape {:?} of {}, but a body without a head is one element: send the request as JSON, or with a head",
            spec.name,
            spec.dims,
            DataType::Bytes
        )));
    }
    let mut data = room(body.len() + 4)?;
    push_string(&mut data, body)
        .map_err(|_| Fault::bad(format!("input {:?} has an element of more than 4 GiB", spec.name)))?;
    Ok((vec![1; spec.dims.len()], Bytes::from(data)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn shape(datatype: DataType, dims: &[i64], max_batch: u32, bytes: usize) -> Result<Vec<i64>, String> {
        let spec = TensorSpec { name: "x".into(), datatype, dims: dims.into() };
        let signature = ModelSignature { inputs: vec![spec], outputs: vec![], max_batch };
        let request = raw_request(&signature, Bytes::from(vec![0; bytes])).map_err(|fault| fault.to_string())?;
        assert!(request.parameters.binary_outputs);
        Ok(request.inputs[0].shape.clone())
    }

    #[test]
    fn shapes_follow_from_the_number_of_bytes() {
        assert_eq!(shape(DataType::Fp32, &[2, 3], 0, 24), Ok(vec![2, 3]));
        assert_eq!(shape(DataType::Fp32, &[-1, 3], 0, 36), Ok(vec![3, 3]));
        assert_eq!(shape(DataType::Fp32, &[-1, 3], 8, 36), Ok(vec![3, 3]), "three rows");
        assert_eq!(shape(DataType::Int8, &[-1, -1, 3], 8, 12), Ok(vec![1, 4, 3]), "one row of four times three");
        assert_eq!(shape(DataType::Bytes, &[-1, 1], 8, 5), Ok(vec![1, 1]));
        assert_eq!(shape(DataType::Bytes, &[-1], 0, 0), Ok(vec![1]));
    }

    #[test]
    fn what_does_not_follow_is_a_sentence() {
        let sentence = |datatype, dims: &[i64], max_batch, bytes| shape(datatype, dims, max_batch, bytes).unwrap_err();
        expect![[r#"input "x" has 25 bytes, but its shape [2, 3] of FP32 takes 24 bytes"#]].assert_eq(&sentence(
            DataType::Fp32,
            &[2, 3],
            0,
            25,
        ));
        expect![[r#"the body has 13 bytes, but input "x" of FP32 takes a multiple of 12"#]].assert_eq(&sentence(
            DataType::Fp32,
            &[-1, 3],
            8,
            13,
        ));
        expect![[r#"input "x" has the shape [-1, -1], which doesn't follow from the number of bytes: send the request as JSON, or with a head"#]].assert_eq(&sentence(DataType::Fp32, &[-1, -1], 0, 12));
        expect![[r#"input "x" has the shape [-1, 2] of BYTES, but a body without a head is one element: send the request as JSON, or with a head"#]].assert_eq(&sentence(DataType::Bytes, &[-1, 2], 8, 12));
        let two = ModelSignature { inputs: vec![], outputs: vec![], max_batch: 0 };
        expect!["the body has no head, which says that it is the model's one input, but the model has 0: send the request as JSON, or with a head"].assert_eq(&raw_request(&two, Bytes::new()).unwrap_err().to_string());
    }
}
