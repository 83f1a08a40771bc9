//! The parameters of requests and tensors, as far as both protocols treat them alike.

use crate::json::Text;
use crate::{Fault, Region, SequenceId};
use serde::Deserialize;
use serde::de::{Deserializer, Error, MapAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Names that begin so are the protocol's own.
const RESERVED: &str = "triton_";
/// The one of them that clients may use: every answer here is the only and last one, and says so.
const EMPTY_FINAL: &str = "triton_enable_empty_final_response";

/// Refuses the name of a parameter that is the protocol's own.
pub(crate) fn check_name(name: &str) -> Result<(), Fault> {
    if !name.starts_with(RESERVED) || name == EMPTY_FINAL {
        return Ok(());
    }
    Err(Fault::bad(reserved(name)))
}

fn reserved(name: &str) -> String {
    format!("the parameter {name:?} begins with {RESERVED:?}, which is reserved: choose another name")
}

/// What a tensor's parameters say about shared memory.
pub(crate) struct RegionParameters<'a> {
    pub(crate) region: Cow<'a, str>,
    pub(crate) offset: Option<u64>,
    pub(crate) byte_size: Option<u64>,
}

impl RegionParameters<'_> {
    /// The part of the region that is meant. `what` is an input or an output.
    pub(crate) fn check(self, what: &str, name: &str) -> Result<Box<Region>, Fault> {
        let Some(byte_size) = self.byte_size else {
            return Err(Fault::bad(format!(
                "{what} {name:?} is in shared memory: say how long it is with shared_memory_byte_size"
            )));
        };
        Ok(Box::new(Region { name: self.region.into_owned(), offset: self.offset.unwrap_or(0), byte_size }))
    }
}

/// The parameters of a request over HTTP.
#[derive(Default)]
pub(crate) struct JsonParameters<'a> {
    pub(crate) application: Option<Text<'a>>,
    pub(crate) timeout: Option<u64>,
    pub(crate) priority: Option<u64>,
    pub(crate) binary_data_output: Option<bool>,
    pub(crate) sequence_id: Option<WrittenId<'a>>,
    pub(crate) sequence_start: Option<bool>,
    pub(crate) sequence_end: Option<bool>,
}

/// A sequence's name in JSON.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum WrittenId<'a> {
    Number(u64),
    #[serde(borrow)]
    Text(Text<'a>),
}

impl WrittenId<'_> {
    pub(crate) fn name(&self) -> Result<Option<SequenceId>, Fault> {
        match self {
            Self::Number(number) => Ok(SequenceId::number(*number)),
            Self::Text(Text(text)) => SequenceId::text(text),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for JsonParameters<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ParametersVisitor)
    }
}

struct ParametersVisitor;

impl<'de> Visitor<'de> for ParametersVisitor {
    type Value = JsonParameters<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of parameters")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonParameters<'de>, A::Error> {
        let mut parameters = JsonParameters::default();
        while let Some(Text(name)) = map.next_key()? {
            match &*name {
                "application" => parameters.application = map.next_value()?,
                "timeout" => parameters.timeout = map.next_value()?,
                "priority" => parameters.priority = map.next_value()?,
                "binary_data_output" => parameters.binary_data_output = map.next_value()?,
                "sequence_id" => {
                    parameters.sequence_id = map.next_value().map_err(|_| {
                        A::Error::custom("the parameter sequence_id is a number that isn't negative, or a text")
                    })?;
                }
                "sequence_start" => parameters.sequence_start = map.next_value()?,
                "sequence_end" => parameters.sequence_end = map.next_value()?,
                name if name.starts_with(RESERVED) && name != EMPTY_FINAL => {
                    return Err(A::Error::custom(reserved(name)));
                }
                // The client's own.
                _ => {
                    let _: Scalar = map.next_value()?;
                }
            }
        }
        Ok(parameters)
    }
}

/// The value of a parameter that has no meaning here.
struct Scalar;

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true or false")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Scalar, E> {
        Ok(Scalar)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Scalar, E> {
        Ok(Scalar)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Scalar, E> {
        Ok(Scalar)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Scalar, E> {
        Ok(Scalar)
    }

    fn visit_str<E>(self, _: &str) -> Result<Scalar, E> {
        Ok(Scalar)
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar)
    }
}
