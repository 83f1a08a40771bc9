//! What a protobuf message would take once it is read, found out before it is read.
//!
//! Two bytes of a message can become an input of hundreds of bytes in memory, so its length bounds nothing. This walks
//! the tags and lengths of a request, which allocates nothing, and refuses one with too many parts.

use crate::Fault;

/// Inputs, outputs, raw entries and parameters that a request may have, all together: each takes up to 300 bytes.
pub(crate) const MAX_PARTS: usize = 4096;
/// The bytes by which a request may grow when it is read: numbers are packed in one byte and up and take up to 8, and
/// an element of `bytes_contents` takes 32 beside its bytes.
const MAX_GROWTH: usize = 64 << 20;
/// What an element of `bytes_contents` takes beside its bytes.
const HANDLE_BYTES: usize = 32;
/// What a number takes at most.
const NUMBER_BYTES: usize = 8;

/// A field of a message.
enum FieldValue<'a> {
    Number,
    Fixed,
    Bytes(&'a [u8]),
}

/// The fields of a message; ends with an error where it is malformed.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn skip(&mut self, length: usize) -> Option<&'a [u8]> {
        let (skipped, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(skipped)
    }

    fn field(&mut self) -> Option<(u64, FieldValue<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => {
                self.varint()?;
                FieldValue::Number
            }
            1 => {
                self.skip(8)?;
                FieldValue::Fixed
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                FieldValue::Bytes(self.skip(length)?)
            }
            5 => {
                self.skip(4)?;
                FieldValue::Fixed
            }
            // Groups, which the protocol doesn't have.
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, FieldValue<'a>), Fault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        Some(field.ok_or_else(|| Fault::bad("the message is malformed: its fields can't be told from one another")))
    }
}

/// What was found so far.
#[derive(Default)]
struct MemoryEstimate {
    parts: usize,
    growth: usize,
}

/// Refuses a `ModelInferRequest` that would take far more memory than its bytes.
pub(crate) fn check_infer_request(message: &[u8]) -> Result<(), Fault> {
    let mut estimate = MemoryEstimate::default();
    for field in Fields(message) {
        match field? {
            (5, FieldValue::Bytes(input)) => {
                estimate.part()?;
                estimate.input(input)?;
            }
            (6, FieldValue::Bytes(output)) => {
                estimate.part()?;
                estimate.parameters(output, 2)?;
            }
            (4 | 7, _) => estimate.part()?,
            _ => {}
        }
    }
    Ok(())
}

/// Refuses a `RepositoryModelLoadRequest` with more parameters than a model has files.
pub(crate) fn check_load_request(message: &[u8]) -> Result<(), Fault> {
    let mut parameters = 0;
    for field in Fields(message) {
        parameters += usize::from(field?.0 == 3);
        if parameters > MAX_PARTS {
            return Err(too_many_parameters());
        }
    }
    Ok(())
}

/// The refusal of more parameters than a model has files.
pub(crate) fn too_many_parameters() -> Fault {
    Fault::bad(format!(
        "the request has more than {MAX_PARTS} parameters: a model with so many files needs a repository"
    ))
}

impl MemoryEstimate {
    fn part(&mut self) -> Result<(), Fault> {
        self.parts += 1;
        if self.parts <= MAX_PARTS {
            return Ok(());
        }
        Err(Fault::bad(format!(
            "the request has more than {MAX_PARTS} inputs, outputs, raw_input_contents and parameters: send fewer in one request"
        )))
    }

    fn grow(&mut self, bytes: usize) -> Result<(), Fault> {
        self.growth = self.growth.saturating_add(bytes);
        if self.growth <= MAX_GROWTH {
            return Ok(());
        }
        Err(Fault::bad("the request has too many elements in its contents: send them in raw_input_contents"))
    }

    /// The parameters of an input or output, in the field of that number.
    fn parameters(&mut self, tensor: &[u8], number: u64) -> Result<(), Fault> {
        for field in Fields(tensor) {
            if field?.0 == number {
                self.part()?;
            }
        }
        Ok(())
    }

    fn input(&mut self, input: &[u8]) -> Result<(), Fault> {
        for field in Fields(input) {
            match field? {
                (3, field) => self.numbers(&field)?,
                (4, _) => self.part()?,
                (5, FieldValue::Bytes(contents)) => self.contents(contents)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn contents(&mut self, contents: &[u8]) -> Result<(), Fault> {
        for field in Fields(contents) {
            match field? {
                (2..=5, field) => self.numbers(&field)?,
                (8, _) => self.grow(HANDLE_BYTES)?,
                // Booleans and floats take what they have on the wire, or less.
                _ => {}
            }
        }
        Ok(())
    }

    /// Numbers of variable length: one, or many packed together, each of which ends with a byte below 128.
    fn numbers(&mut self, field: &FieldValue<'_>) -> Result<(), Fault> {
        match field {
            FieldValue::Number | FieldValue::Fixed => self.grow(NUMBER_BYTES),
            FieldValue::Bytes(packed) => {
                let count = packed.iter().filter(|&&byte| byte < 0x80).count();
                self.grow(count.saturating_mul(NUMBER_BYTES).saturating_sub(packed.len()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::infer_parameter::ParameterChoice;
    use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
    use crate::proto::{InferParameter, InferTensorContents, ModelInferRequest};
    use expect_test::expect;
    use proptest::prelude::*;
    use prost::Message;
    use std::collections::BTreeMap;

    fn sentence(message: &[u8]) -> String {
        check_infer_request(message).unwrap_err().to_string()
    }

    /// A field of bytes.
    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    }

    #[test]
    fn a_megabyte_of_empty_parts_is_refused_wherever_they_are() {
        expect!["the request has more than 4096 inputs, outputs, raw_input_contents and parameters: send fewer in one request"]
            .assert_eq(&sentence(&[0x2a, 0].repeat(500_000)));
        let said = sentence(&[0x2a, 0].repeat(MAX_PARTS + 1));
        assert_eq!(check_infer_request(&[0x2a, 0].repeat(MAX_PARTS)), Ok(()));
        for tag in [0x22, 0x32, 0x3a] {
            assert_eq!(sentence(&[tag, 0].repeat(500_000)), said, "{tag:x}");
        }
        assert_eq!(sentence(&field(5, &[0x22, 0].repeat(MAX_PARTS))), said, "parameters of an input");
        assert_eq!(sentence(&field(6, &[0x12, 0].repeat(MAX_PARTS))), said, "parameters of an output");
    }

    #[test]
    fn elements_that_grow_are_refused() {
        expect!["the request has too many elements in its contents: send them in raw_input_contents"]
            .assert_eq(&sentence(&field(5, &field(5, &[0x42, 0].repeat(MAX_GROWTH / HANDLE_BYTES + 1)))));
        let said = sentence(&field(5, &field(5, &[0x42, 0].repeat(MAX_GROWTH / HANDLE_BYTES + 1))));
        assert_eq!(sentence(&field(5, &field(3, &vec![1; MAX_GROWTH / 7 + 8]))), said, "packed dimensions");
        assert_eq!(sentence(&field(5, &field(5, &field(3, &vec![1; MAX_GROWTH / 7 + 8])))), said, "packed INT64");
        assert_eq!(sentence(&field(5, &field(5, &[0x18, 1].repeat(MAX_GROWTH / 8 + 1)))), said, "single INT64");
        let floats = InferTensorContents { fp32_contents: vec![0.5; 30_000_000], ..Default::default() };
        let input = InferInputTensor { contents: Some(floats), ..Default::default() };
        let large = ModelInferRequest { inputs: vec![input], ..Default::default() };
        assert_eq!(
            check_infer_request(&large.encode_to_vec()),
            Ok(()),
            "what doesn't grow is the message limit's affair"
        );
    }

    #[test]
    fn malformed_messages_are_a_sentence() {
        for message in [&[0x2a][..], &[0x2a, 5, 0], &[0x2b, 0x2c], &[0xff; 12], &[0x2a, 1, 0x22], &[9, 1, 2]] {
            expect!["the message is malformed: its fields can't be told from one another"]
                .assert_eq(&sentence(message));
        }
    }

    fn few<T: std::fmt::Debug>(of: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        proptest::collection::vec(of, 0..4)
    }

    fn parameters() -> impl Strategy<Value = BTreeMap<String, InferParameter>> {
        let choice = prop_oneof![
            any::<bool>().prop_map(ParameterChoice::BoolParam),
            any::<i64>().prop_map(ParameterChoice::Int64Param),
            "[a-z]*".prop_map(ParameterChoice::StringParam),
        ];
        let parameter = choice.prop_map(|choice| InferParameter { parameter_choice: Some(choice) });
        proptest::collection::btree_map("[a-z]*", parameter, 0..4)
    }

    fn contents() -> impl Strategy<Value = InferTensorContents> {
        let integers = (few(any::<i32>()), few(any::<i64>()), few(any::<u32>()), few(any::<u64>()));
        let others = (few(any::<bool>()), few(any::<f32>()), few(any::<f64>()), few(few(any::<u8>())));
        (integers, others).prop_map(|(integers, others)| InferTensorContents {
            bool_contents: others.0,
            int_contents: integers.0,
            int64_contents: integers.1,
            uint_contents: integers.2,
            uint64_contents: integers.3,
            fp32_contents: others.1,
            fp64_contents: others.2,
            bytes_contents: others.3.into_iter().map(Into::into).collect(),
        })
    }

    fn request() -> impl Strategy<Value = ModelInferRequest> {
        let input = ("[a-z]*", few(any::<i64>()), parameters(), proptest::option::of(contents()));
        let input = input.prop_map(|(name, shape, parameters, contents)| InferInputTensor {
            datatype: name.clone(),
            name,
            shape,
            parameters,
            contents,
        });
        let output = ("[a-z]*", parameters());
        let output = output.prop_map(|(name, parameters)| InferRequestedOutputTensor { name, parameters });
        let whole = ("[a-z]*", parameters(), few(input), few(output), few(few(any::<u8>())));
        whole.prop_map(|(name, parameters, inputs, outputs, raw)| ModelInferRequest {
            model_name: name.clone(),
            model_version: name.clone(),
            id: name,
            parameters,
            inputs,
            outputs,
            raw_input_contents: raw.into_iter().map(Into::into).collect(),
        })
    }

    /// A field of a number that nobody knows yet, of each kind that the protocol has.
    fn unknown_field() -> impl Strategy<Value = Vec<u8>> {
        let tagged = |kind: u8, content: Vec<u8>| [vec![15 << 3 | kind], content].concat();
        prop_oneof![
            any::<u64>().prop_map(move |number| {
                let mut content = Vec::new();
                prost::encoding::encode_varint(number, &mut content);
                tagged(0, content)
            }),
            any::<[u8; 8]>().prop_map(move |content| tagged(1, content.to_vec())),
            few(any::<u8>()).prop_map(|content| field(15, &content)),
            any::<[u8; 4]>().prop_map(move |content| tagged(5, content.to_vec())),
        ]
    }

    proptest! {
        /// Nothing valid is turned away, and what is refused as malformed can't be read either.
        #[test]
        fn what_can_be_read_is_let_through(request in request(), unknown in few(unknown_field()), cut in any::<proptest::sample::Index>()) {
            let message = [unknown.concat(), request.encode_to_vec(), unknown.concat()].concat();
            prop_assert!(ModelInferRequest::decode(&message[..]).is_ok());
            prop_assert_eq!(check_infer_request(&message), Ok(()));
            let torn = &message[..cut.index(message.len() + 1)];
            prop_assert!(check_infer_request(torn).is_ok() || ModelInferRequest::decode(torn).is_err());
        }
    }
}
