//! Built-in tensor steps of pipelines: what is done to pictures, texts and scores before and after models.
//!
//! A step is a pure function of tensors: it reads no clock, starts no thread and keeps nothing from one run to the
//! next, so that one value serves all requests, on whatever thread has time. Only making it does IO: a tokenizer's file
//! or a list of characters is read then.
//!
//! ```text
//!  [step]                    TensorStep::new("resize", parameters, folder)     a sentence for each mistake
//!  step = "resize"      ──>  .outputs(&[types and shapes, -1 for open ones])   types and shapes, or why they don't fit
//!  size = [224, 224]         .run(&[tensors], most_bytes)                      tensors, or why there are none
//! ```
//!
//! How a pipeline uses one:
//!
//! 1. [`TensorStep::new`] takes the step's name (of [`NAMES`]), its parameters as a TOML table without whatever else
//!    the pipeline keeps there (where its inputs come from), and the folder in which files are found that parameters
//!    name.
//! 2. [`TensorStep::input_names`] and [`TensorStep::output_names`] say what it takes and gives, in order: a pipeline
//!    that joins tensors by name finds positions there.
//! 3. [`TensorStep::outputs`] is asked once for each step, in the graph's order, with what is before it: the signature
//!    of a whole pipeline follows.
//! 4. [`TensorStep::run`] is called for each request, with all inputs in that order. `most_bytes` bounds what it
//!    allocates, outputs and what it needs to get there together, whatever the inputs say.
//!
//! What comes from clients is hostile: pictures that say they are enormous, truncated files, scores that are no
//! numbers, boxes outside of the picture. Each ends with [`StepError`], never with a panic, and before memory is taken
//! for it.

mod bound;
mod cast;
mod choose;
mod concat;
mod ctc;
mod elements;
mod image;
mod layout;
mod parameters;
mod plane;
mod select;
mod softmax;
mod specs;
mod suppress;
mod text_boxes;
mod threshold;
#[cfg(feature = "tokenizers")]
mod tokenize;

use base::{DataType, TensorSpec, element_count};
use bound::Bound;
use engine::Tensor;
use std::fmt;
use std::path::Path;
use toml::Table;

/// Why there is no step, or no outputs. Each is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StepError {
    /// What is written of it has no meaning, or a file that it names can't be read.
    #[error("{0}")]
    Parameters(String),
    /// The inputs don't fit: their types, their shapes, or what is in them.
    #[error("{0}")]
    Inputs(String),
    /// It would take more memory than it may, or than there is.
    #[error("{0}")]
    TooLarge(String),
}

impl StepError {
    /// The same with the step's name before it.
    fn of(self, step: &str) -> Self {
        let named = |sentence: String| format!("step {step}: {sentence}");
        match self {
            Self::Parameters(sentence) => Self::Parameters(named(sentence)),
            Self::Inputs(sentence) => Self::Inputs(named(sentence)),
            Self::TooLarge(sentence) => Self::TooLarge(named(sentence)),
        }
    }
}

/// What the steps are called.
pub const NAMES: &[&str] = &[
    "argmax",
    "cast",
    "concat",
    "crop",
    "crop_boxes",
    "ctc_decode",
    "decode_image",
    "layout",
    "non_max_suppression",
    "normalise",
    "resize",
    "select",
    "softmax",
    "text_boxes",
    "threshold",
    "tokenize",
    "top_k",
];

/// A step with its parameters.
pub struct TensorStep {
    name: &'static str,
    work: Box<dyn Work>,
}

/// What each kind of step does.
trait Work: fmt::Debug + Send + Sync {
    /// Its inputs; the last may come several times where it `takes_more`.
    fn input_names(&self) -> &'static [&'static str];

    /// Whether its last input may come several times.
    fn takes_more(&self) -> bool {
        false
    }

    /// Its outputs.
    fn output_names(&self) -> &'static [&'static str];

    /// Types and shapes of its outputs, in their order; as many inputs as it takes. What it knows of a shape is also
    /// true of every shape that is this one with its open dimensions known.
    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String>;

    /// Its outputs; inputs that `outputs` let pass, with as many bytes as their shapes say.
    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError>;
}

impl TensorStep {
    /// The step of that name with those parameters. Files that they name are looked for in `folder`.
    pub fn new(name: &str, parameters: &Table, folder: &Path) -> Result<Self, StepError> {
        let Some(&name) = NAMES.iter().find(|&&known| known == name) else {
            let known = NAMES.join(", ");
            return Err(StepError::Parameters(format!("there is no step {name:?}: there are {known}")));
        };
        let work: Result<Box<dyn Work>, String> = match name {
            "argmax" => choose::Argmax::read(parameters),
            "cast" => cast::CastTo::read(parameters),
            "concat" => concat::Concat::read(parameters),
            "crop" => image::crop::CropImage::read(parameters),
            "crop_boxes" => image::boxes::CropBoxes::read(parameters),
            "ctc_decode" => ctc::CtcDecode::read(parameters, folder),
            "decode_image" => image::decode::DecodeImage::read(parameters),
            "layout" => layout::Relayout::read(parameters),
            "non_max_suppression" => suppress::Suppress::read(parameters),
            "normalise" => image::normalise::Normalise::read(parameters),
            "resize" => image::resize::ResizeImage::read(parameters),
            "select" => select::SelectRows::read(parameters),
            "softmax" => softmax::SoftmaxOver::read(parameters),
            "text_boxes" => text_boxes::TextBoxes::read(parameters),
            "threshold" => threshold::Threshold::read(parameters),
            #[cfg(feature = "tokenizers")]
            "tokenize" => tokenize::Tokenize::read(parameters, folder),
            #[cfg(not(feature = "tokenizers"))]
            "tokenize" => Err("this binary was built without the feature tokenizers".into()),
            _ => choose::TopChoices::read(parameters),
        };
        let work = work.map_err(|sentence| StepError::Parameters(sentence).of(name))?;
        Ok(Self { name, work })
    }

    /// What it is called.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What its inputs are called, in their order. Where it [takes more](Self::takes_more), the last may come several
    /// times.
    pub fn input_names(&self) -> &'static [&'static str] {
        self.work.input_names()
    }

    /// Whether its last input may come several times.
    pub fn takes_more(&self) -> bool {
        self.work.takes_more()
    }

    /// What its outputs are called, in their order.
    pub fn output_names(&self) -> &'static [&'static str] {
        self.work.output_names()
    }

    /// Types and shapes of its outputs, with the names of [`Self::output_names`]; or why inputs of these types and
    /// shapes don't fit. Sentences name inputs as they are named here. -1 is a dimension that requests decide.
    pub fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<TensorSpec>, StepError> {
        let named = |sentence| StepError::Inputs(sentence).of(self.name);
        self.check_count(inputs.len()).map_err(named)?;
        let outputs = self.work.outputs(inputs).map_err(named)?;
        let spec = |(&name, (datatype, dims)): (&&str, _)| TensorSpec { name: name.to_owned(), datatype, dims };
        Ok(self.output_names().iter().zip(outputs).map(spec).collect())
    }

    /// Its outputs, in the order of [`Self::output_names`]. It takes `most_bytes` of memory at most, inputs not
    /// counted.
    pub fn run(&self, inputs: &[Tensor], most_bytes: usize) -> Result<Vec<Tensor>, StepError> {
        let named = |error: StepError| error.of(self.name);
        let specs = self.specs(inputs).map_err(|sentence| named(StepError::Inputs(sentence)))?;
        self.outputs(&specs)?;
        self.work.run(inputs, &mut Bound::new(most_bytes)).map_err(named)
    }

    fn check_count(&self, given: usize) -> Result<(), String> {
        let names = self.input_names();
        let fits = if self.takes_more() { given >= names.len() } else { given == names.len() };
        let more = if self.takes_more() { " or more" } else { "" };
        fits.then_some(()).ok_or_else(|| {
            format!("it takes {}{more} inputs ({}), and {given} are given", names.len(), names.join(", "))
        })
    }

    /// What tensors are, if each has the bytes that its shape says.
    fn specs(&self, inputs: &[Tensor]) -> Result<Vec<TensorSpec>, String> {
        let names = self.input_names();
        let spec = |(position, tensor): (usize, &Tensor)| {
            let name = names.get(position).or(names.last()).copied().unwrap_or_default();
            let Tensor { datatype, shape, data } = tensor;
            let count = element_count(shape);
            let bytes = datatype.size().map_or(Some(data.len()), |size| count?.checked_mul(size));
            if count.is_none() || bytes != Some(data.len()) {
                let length = data.len();
                return Err(format!("input {name} has {length} bytes, which the shape {shape:?} of {datatype} hasn't"));
            }
            Ok(TensorSpec { name: name.to_owned(), datatype: *datatype, dims: shape.clone() })
        };
        inputs.iter().enumerate().map(spec).collect()
    }
}

impl fmt::Debug for TensorStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.work.fmt(f)
    }
}

#[cfg(test)]
mod tests;
