//! Texts as the numbers of their tokens, by a `tokenizer.json`.

use crate::bound::Bound;
use crate::elements::{strings, tensor};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::path::Path;
use tokenizers::{Tokenizer, TruncationParams};
use toml::Table;

/// Memory that a byte of a text takes while it becomes tokens: offsets, words and pieces of each.
const MEMORY_FOR_A_BYTE: usize = 256;

/// Tokens of texts, of which the longest decides how many numbers each text has: others are filled up.
pub(crate) struct Tokenize {
    tokenizer: Tokenizer,
    special: bool,
    length: Option<usize>,
    pad_to: Option<usize>,
    pad_id: u32,
    most_bytes: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenizeParameters {
    #[serde(default = "usual_file")]
    file: String,
    /// The most tokens of a text, those that mark its ends included; the file's own if it isn't said.
    most_tokens: Option<usize>,
    /// So many tokens are there always.
    pad_to: Option<usize>,
    /// The token that texts are filled up with; the file's own, or 0.
    pad_id: Option<u32>,
    /// Whether tokens are added that mark its ends.
    #[serde(default = "parameters::yes")]
    special: bool,
    /// The most bytes of a text.
    #[serde(default = "usual_bytes")]
    most_bytes: usize,
}

fn usual_file() -> String {
    "tokenizer.json".into()
}

/// Some hundred pages.
fn usual_bytes() -> usize {
    1 << 20
}

impl Tokenize {
    pub(crate) fn read(table: &Table, folder: &Path) -> Result<Box<dyn Work>, String> {
        let TokenizeParameters { file, most_tokens, pad_to, pad_id, special, most_bytes } = parameters::read(table)?;
        let bytes = parameters::file(folder, &file)?;
        Ok(Box::new(
            Self::new(&bytes, most_tokens, pad_to, pad_id, (special, most_bytes))
                .map_err(|error| format!("file {file:?} {error}"))?,
        ))
    }

    fn new(
        file: &[u8],
        most_tokens: Option<usize>,
        pad_to: Option<usize>,
        pad_id: Option<u32>,
        (special, most_bytes): (bool, usize),
    ) -> Result<Self, String> {
        let mut tokenizer = Tokenizer::from_bytes(file).map_err(|error| format!("is no tokenizer: {error}"))?;
        let pad_id = pad_id.or(tokenizer.get_padding().map(|padding| padding.pad_id)).unwrap_or(0);
        tokenizer.with_padding(None);
        let length = most_tokens.or(tokenizer.get_truncation().map(|truncation| truncation.max_length));
        if let Some(max_length) = length {
            let truncation = tokenizer.get_truncation().cloned().unwrap_or_default();
            let truncation = TruncationParams { max_length, stride: 0, ..truncation };
            tokenizer
                .with_truncation(Some(truncation))
                .map_err(|error| format!("doesn't go with {max_length} tokens: {error}"))?;
        }
        if pad_to > length && pad_to.is_some() && length.is_some() {
            return Err(format!("gives {} tokens at most, and pad_to wants more", length.unwrap_or_default()));
        }
        Ok(Self { tokenizer, special, length, pad_to, pad_id, most_bytes })
    }
}

impl std::fmt::Debug for Tokenize {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenize").field("most_tokens", &self.length).finish_non_exhaustive()
    }
}

impl Work for Tokenize {
    fn input_names(&self) -> &'static [&'static str] {
        &["text"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["input_ids", "attention_mask", "token_type_ids"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::types(&inputs[0], &[DataType::Bytes])?;
        let TensorSpec { name, dims, .. } = &inputs[0];
        let count = match dims[..] {
            [] => 1,
            [count] | [count, -1 | 1] => count,
            _ => return Err(format!("{name} has the shape {dims:?}, and texts come as [], [texts] or [texts, 1]")),
        };
        // Only where all have it: what isn't cut may be longer.
        let tokens = self.pad_to.filter(|&tokens| self.length == Some(tokens)).map_or(-1, |tokens| tokens as i64);
        Ok(vec![(DataType::Int64, vec![count, tokens]); 3])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let texts = strings(&inputs[0], "text")?;
        let mut encodings = bound.room(texts.len())?;
        for text in &texts {
            let bytes = text.len();
            if bytes > self.most_bytes {
                let most = self.most_bytes;
                return Err(StepError::TooLarge(format!(
                    "a text has {bytes} bytes, and {most} is the most: send less"
                )));
            }
            bound.rest().count(bytes.checked_mul(MEMORY_FOR_A_BYTE))?;
            let text = std::str::from_utf8(text).map_err(|error| {
                StepError::Inputs(format!("a text isn't UTF-8 behind byte {}", error.valid_up_to()))
            })?;
            let encoding = self.tokenizer.encode_fast(text, self.special);
            let encoding = encoding.map_err(|error| StepError::Inputs(format!("a text has no tokens: {error}")))?;
            bound.count(encoding.len().checked_mul(64))?;
            encodings.push(encoding);
        }
        let longest = encodings.iter().map(tokenizers::Encoding::len).max().unwrap_or(0).max(self.pad_to.unwrap_or(0));
        let mut filled = |value: &dyn Fn(&tokenizers::Encoding, usize) -> u32, rest: u32| {
            let mut out: Vec<i64> = bound.room(longest.saturating_mul(texts.len()))?;
            for encoding in &encodings {
                let length = encoding.len();
                out.extend((0..length).map(|at| i64::from(value(encoding, at))));
                out.extend((length..longest).map(|_| i64::from(rest)));
            }
            let shape = vec![texts.len() as i64, longest as i64];
            Ok::<_, StepError>(tensor(DataType::Int64, shape, out))
        };
        Ok(vec![
            filled(&|encoding, at| encoding.get_ids()[at], self.pad_id)?,
            filled(&|encoding, at| encoding.get_attention_mask()[at], 0)?,
            filled(&|encoding, at| encoding.get_type_ids()[at], 0)?,
        ])
    }
}
