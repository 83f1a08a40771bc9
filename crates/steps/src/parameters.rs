//! What is written of a step, read with a sentence for each mistake.

use base::DataType;
use serde::de::DeserializeOwned;
use std::path::{Component, Path};
use toml::Table;

/// A step's parameters; those that it doesn't know are a mistake.
pub(crate) fn read<T: DeserializeOwned>(parameters: &Table) -> Result<T, String> {
    T::deserialize(toml::Value::Table(parameters.clone())).map_err(|error| error.message().to_owned())
}

/// A type of numbers, as the protocol or Triton's configuration writes it.
pub(crate) fn datatype(name: &str) -> Result<DataType, String> {
    let plain = name.strip_prefix("TYPE_").unwrap_or(name);
    let found = DataType::from_name(plain).filter(|&found| found != DataType::Bytes);
    found.ok_or_else(|| format!("{name:?} is no type of numbers: FP32, FP16, UINT8, INT64, BOOL and so on are"))
}

/// The last axis.
pub(crate) fn last() -> i64 {
    -1
}

/// Unless something else is said.
pub(crate) fn yes() -> bool {
    true
}

/// The largest file that a parameter may name: tokenizers of large models have 30 MB.
const LARGEST_FILE: u64 = 256 << 20;

/// A file that a parameter names, in the step's folder.
pub(crate) fn file(folder: &Path, name: &str) -> Result<Vec<u8>, String> {
    let is_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_inside {
        return Err(format!("file {name:?} isn't in the folder of what names it: it is a plain path below"));
    }
    let path = folder.join(name);
    let unread = |error| format!("file {} can't be read: {error}", path.display());
    let bytes = std::fs::metadata(&path).map_err(unread)?.len();
    if bytes > LARGEST_FILE {
        return Err(format!("file {} has {bytes} bytes, and {LARGEST_FILE} is the most", path.display()));
    }
    std::fs::read(&path).map_err(unread)
}
