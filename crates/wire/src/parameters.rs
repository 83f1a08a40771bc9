//! The parameters of requests and tensors, as far as both protocols treat them alike.

use crate::infer::MOST_OWN;
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

/// The request's parameters that mean something to the protocol; all others are the client's own.
pub(crate) const KNOWN: [&str; 7] =
    ["application", "timeout", "priority", "sequence_id", "sequence_start", "sequence_end", EMPTY_FINAL];

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
    /// The client's own.
    pub(crate) own: Vec<(Cow<'a, str>, Cow<'a, str>)>,
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
                    let Scalar(value) = map.next_value()?;
                    if let Some(value) = value
                        && parameters.own.len() < MOST_OWN
                    {
                        parameters.own.push((name, value));
                    }
                }
            }
        }
        Ok(parameters)
    }
}

/// The value of a parameter that has no meaning to the protocol, as a text; `None` for null.
struct Scalar<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Scalar<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, true or false")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Borrowed(if flag { "true" } else { "false" }))))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Owned(number.to_string()))))
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Borrowed(text))))
    }

    fn visit_str<E>(self, text: &str) -> Result<Scalar<'de>, E> {
        Ok(Scalar(Some(Cow::Owned(text.to_owned()))))
    }

    fn visit_unit<E>(self) -> Result<Scalar<'de>, E> {
        Ok(Scalar(None))
    }
}
