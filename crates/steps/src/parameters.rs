//! What is written of a step, read with a sentence for each mistake.

use base::DataType;
use serde::de::DeserializeOwned;
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
