//! Texts of what a recogniser says of each column: greedy CTC decoding.

use crate::bound::Bound;
use crate::elements::{Element, elements, push_string, tensor, with_type};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::path::Path;
use toml::Table;

/// The most likely character of each column, each only once where it stands several times, and without blanks; with the
/// mean of their probabilities, 0 where there is no character.
#[derive(Debug)]
pub(crate) struct CtcDecode {
    /// By index; the blank has none.
    characters: Vec<Option<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CtcParameters {
    /// A file with a character in each line, in the model's order.
    file: Option<String>,
    /// The same, written here.
    characters: Option<Vec<String>>,
    /// Where the blank is; the characters are the others.
    #[serde(default)]
    blank: usize,
    /// Whether a space follows behind the characters.
    #[serde(default)]
    space: bool,
}

impl CtcDecode {
    pub(crate) fn read(table: &Table, folder: &Path) -> Result<Box<dyn Work>, String> {
        let CtcParameters { file, characters, blank, space } = parameters::read(table)?;
        let characters = match (file, characters) {
            (Some(file), None) => {
                let text = String::from_utf8(parameters::file(folder, &file)?)
                    .map_err(|_| format!("file {file:?} isn't UTF-8"))?;
                text.lines().map(str::to_owned).collect()
            }
            (None, Some(characters)) => characters,
            _ => return Err("either file or characters says which characters there are".into()),
        };
        let mut characters: Vec<_> = characters.into_iter().chain(space.then(|| " ".to_owned())).map(Some).collect();
        if blank > characters.len() {
            return Err(format!("blank is {blank}, behind all of the {} characters", characters.len()));
        }
        characters.insert(blank, None);
        Ok(Box::new(Self { characters }))
    }
}

impl Work for CtcDecode {
    fn input_names(&self) -> &'static [&'static str] {
        &["probabilities"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["text", "score"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::types(&inputs[0], &[DataType::Fp32, DataType::Fp16, DataType::Fp64, DataType::Bf16])?;
        let TensorSpec { name, dims, .. } = &inputs[0];
        let known = self.characters.len() as i64;
        match dims[..] {
            [texts, _, characters] if characters < 0 || characters == known => {
                Ok(vec![(DataType::Bytes, vec![texts]), (DataType::Fp32, vec![texts])])
            }
            _ => Err(format!(
                "{name} has the shape {dims:?}, and [texts, columns, {known}] is needed, with one for the blank"
            )),
        }
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let input = &inputs[0];
        let (texts, columns, known) = (input.shape[0] as usize, input.shape[1] as usize, self.characters.len());
        let mut data: Vec<u8> = Vec::new();
        let mut scores: Vec<f32> = bound.room(texts)?;
        bound.count(texts.checked_mul(4))?;
        with_type!(input.datatype, T => {
            let values = elements::<T>(input, bound)?;
            for text in 0..texts {
                let columns = values.get(text * columns * known..(text + 1) * columns * known).unwrap_or_default();
                let (mut last, mut sum, mut count, mut said) = (usize::MAX, 0.0, 0u32, String::new());
                for column in columns.chunks_exact(known) {
                    let value = |at: usize| T::read(column[at]);
                    let best = (1..known).fold(0, |best, next| if value(next).order(value(best)).is_gt() { next } else { best });
                    if best != last && let Some(character) = &self.characters[best] {
                        bound.count(Some(2 * character.len()))?;
                        said.push_str(character);
                        sum += value(best).to_f64();
                        count += 1;
                    }
                    last = best;
                }
                push_string(&mut data, said.as_bytes());
                scores.push(if count == 0 { 0.0 } else { (sum / f64::from(count)) as f32 });
            }
        }, ());
        let shape = vec![texts as i64];
        let text = Tensor { datatype: DataType::Bytes, shape: shape.clone(), data: data.into() };
        Ok(vec![text, tensor(DataType::Fp32, shape, scores)])
    }
}
