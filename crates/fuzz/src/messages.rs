//! What clients send, once it is a message.

use base::{DataType, ModelSignature, TensorSpec};
use bytes::Bytes;
use wire::proto::{self, ModelInferRequest};
use wire::{InferRequest, admit, check_elements, grpc, json};

/// The first two bytes are the length of the JSON, as the header of a request with tensors behind it has it; zero is
/// no header.
pub(crate) fn json_infer(data: &[u8]) {
    let Some((length, body)) = data.split_first_chunk() else { return };
    let length = usize::from(u16::from_le_bytes(*length));
    let body = Bytes::copy_from_slice(body);
    if let Ok(request) = json::decode(&body, (length > 0).then_some(length)) {
        is_consistent(&request);
        is_consistent(&request.into_owned());
    }
}

pub(crate) fn protobuf_infer(data: &[u8]) {
    let Ok(message) = admit::read::<ModelInferRequest>(Bytes::copy_from_slice(data)) else { return };
    if let Ok(request) = grpc::decode(&message) {
        is_consistent(&request);
    }
}

/// A decoded request promises that each tensor's bytes are what its shape says.
fn is_consistent(request: &InferRequest<'_>) {
    for input in request.inputs.iter().filter(|input| input.region.is_none()) {
        let checked = check_elements(&input.name, input.datatype, &input.shape, &input.data);
        assert!(checked.is_ok(), "a tensor passed that its own check refuses: {checked:?}");
    }
}

/// The first byte chooses the model's input.
pub(crate) fn raw_infer(data: &[u8]) {
    let Some((&chosen, body)) = data.split_first() else { return };
    let dims = [vec![-1, 3], vec![3, 2], vec![-1, -1], vec![-1], vec![]][usize::from(chosen % 5)].clone();
    let datatype = [DataType::Fp32, DataType::Bytes, DataType::Int64, DataType::Uint8][usize::from(chosen / 5 % 4)];
    let max_batch = u32::from(chosen / 20 % 3) * 4;
    let input = TensorSpec { name: "input".into(), datatype, dims };
    let signature = ModelSignature { inputs: vec![input], outputs: Vec::new(), max_batch };
    if let Ok(request) = wire::raw_request(&signature, Bytes::copy_from_slice(body)) {
        is_consistent(&request);
    }
}

/// Whatever a call reads of its body; a client chooses which.
pub(crate) fn json_control(data: &[u8]) {
    let _ = json::read_index_request("", data);
    let _ = json::read_load_request("", "model", data);
    let _ = json::read_unload_request("", "model", data);
    let _ = json::read_trace_request("model", data);
    let _ = json::read_shares_request(data);
    let _ = json::read_log_request(data);
    let _ = json::read_system_register("region", data);
    let _ = json::read_cuda_register("region", data);
    let _ = std::str::from_utf8(data).map(grpc::timeout);
}

pub(crate) fn protobuf_control(data: &[u8]) {
    let message = Bytes::copy_from_slice(data);
    let _ = admit::read::<proto::RepositoryModelLoadRequest>(message.clone());
    let _ = admit::read::<proto::RepositoryIndexRequest>(message.clone());
    let _ = admit::read::<proto::TraceSettingRequest>(message.clone());
    let _ = admit::read::<proto::LogSettingsRequest>(message.clone());
    let _ = admit::read::<proto::CudaSharedMemoryRegisterRequest>(message);
}
