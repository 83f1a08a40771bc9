//! Runs a model's warmup samples on every device before it is ready.

use crate::runner::{DeviceRunner, Run as _};
use crate::samples::MAX_INPUT_BYTES;
use base::{DataType, DeviceId, ModelSignature, element_count};
use controller::Controller;
use engine::{Prepared, Tensor, by_chance};
use repository::{FoundModel, WARMUP_FOLDER, WarmupData, WarmupInput, WarmupSample};
use std::path::Path;
use std::sync::Arc;

/// Runs all samples of a model; a sample that fails says why.
pub(crate) fn run(controller: &Controller, prepared: &dyn Prepared, found: &FoundModel) -> Result<(), String> {
    let samples = &found.config.warmup;
    if samples.is_empty() {
        return Ok(());
    }
    let mut runs = 0;
    for device in 0..controller.device_numbers() {
        let loaded = prepared.load(device).map_err(|error| error.to_string())?;
        let mut runner = DeviceRunner::new(controller, DeviceId(device), Some(prepared), loaded);
        for sample in samples {
            let failed = |reason: String| format!("model_warmup {:?}: {reason}", sample.name);
            let inputs = inputs(sample, prepared.signature(), &found.folder).map_err(failed)?;
            for _ in 0..sample.count {
                runner.once(&inputs).map_err(|error| failed(error.into()))?;
                runs += 1;
            }
        }
    }
    tracing::debug!(model = found.name, version = found.version, samples = samples.len(), runs, "warmed up");
    Ok(())
}

/// A sample's inputs, in the order of the model's.
pub(crate) fn inputs(
    sample: &WarmupSample,
    signature: &ModelSignature,
    folder: &Path,
) -> Result<Arc<[Tensor]>, String> {
    if let Some(name) = sample.inputs.keys().find(|name| signature.inputs.iter().all(|spec| spec.name != **name)) {
        return Err(format!("the model has no input {name:?}"));
    }
    if signature.max_batch > 0 && sample.batch > signature.max_batch {
        return Err(format!("batch_size is {}, but the model takes at most {}", sample.batch, signature.max_batch));
    }
    let one = |spec: &base::TensorSpec| {
        let input = sample.inputs.get(&spec.name).ok_or_else(|| format!("input {:?} is missing", spec.name))?;
        if input.datatype != spec.datatype {
            let (given, taken) = (input.datatype, spec.datatype);
            return Err(format!("input {:?} is {given}, but the model takes {taken}", spec.name));
        }
        let batch = (signature.max_batch > 0).then_some(i64::from(sample.batch));
        let shape: Vec<i64> = batch.into_iter().chain(input.dims.iter().copied()).collect();
        let fits = |(&given, &taken): (&i64, &i64)| taken < 0 || given == taken;
        let from = usize::from(batch.is_some());
        if shape.len() != spec.dims.len() || !shape.iter().zip(&spec.dims).skip(from).all(fits) {
            return Err(format!("input {:?} has the shape {shape:?}, but the model takes {:?}", spec.name, spec.dims));
        }
        let data = data(&spec.name, input, &shape, &folder.join(WARMUP_FOLDER))?;
        Ok(Tensor { datatype: spec.datatype, shape, data: data.into() })
    };
    signature.inputs.iter().map(one).collect()
}

/// The elements of an input. Files are in that folder.
pub(crate) fn data(name: &str, input: &WarmupInput, shape: &[i64], folder: &Path) -> Result<Vec<u8>, String> {
    let large = || format!("input {name:?} of shape {shape:?} is too large");
    let count = element_count(shape).ok_or_else(large)?;
    // An empty string is its length.
    let size = input.datatype.size().unwrap_or(4);
    let bytes = count.checked_mul(size).filter(|&bytes| bytes <= MAX_INPUT_BYTES).ok_or_else(large)?;
    match &input.data {
        WarmupData::Zero => Ok(vec![0; bytes]),
        WarmupData::Random => Ok(by_chance(input.datatype, count, 0, &(0..=99))),
        WarmupData::File(file) => {
            let path = folder.join(file);
            let length =
                std::fs::metadata(&path).map_err(|error| format!("{} can't be read: {error}", path.display()))?;
            if !length.is_file() || length.len() > MAX_INPUT_BYTES as u64 {
                return Err(format!("{} is no file of at most {MAX_INPUT_BYTES} bytes", path.display()));
            }
            let data = std::fs::read(&path).map_err(|error| format!("{} can't be read: {error}", path.display()))?;
            check(input.datatype, count, bytes, &data).map_err(|reason| format!("{} {reason}", path.display()))?;
            Ok(data)
        }
    }
}

/// Whether a file has exactly the elements of the tensor, in the protocol's binary form.
fn check(datatype: DataType, count: usize, bytes: usize, data: &[u8]) -> Result<(), String> {
    if datatype.size().is_some() {
        return match data.len() == bytes {
            true => Ok(()),
            false => Err(format!("has {} bytes, but the tensor takes {bytes}", data.len())),
        };
    }
    let (mut rest, mut found) = (data, 0);
    while let Some((length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*length) as usize;
        rest = behind.get(length..).ok_or("ends in the middle of a string")?;
        found += 1;
    }
    match (rest.is_empty(), found == count) {
        (true, true) => Ok(()),
        _ => Err(format!("has {found} strings, but the tensor takes {count}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_in_a_file_are_counted() {
        let two = [1, 0, 0, 0, b'a', 0, 0, 0, 0];
        assert_eq!(check(DataType::Bytes, 2, 8, &two), Ok(()));
        assert!(check(DataType::Bytes, 1, 4, &two).unwrap_err().contains("has 2 strings"));
        assert!(check(DataType::Bytes, 1, 4, &[9, 0, 0, 0, b'a']).is_err());
        assert!(check(DataType::Fp32, 2, 8, &two).unwrap_err().contains("has 9 bytes"));
    }
}
