//! Pictures from files.

use super::resize::ResizeImage;
use super::{Extent, jpeg, png};
use crate::bound::Bound;
use crate::elements::strings;
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::fmt;
use toml::Table;

/// Pictures of JPEG or PNG files: their first bytes say which. Several files must have pictures of one size, unless
/// each is `resize`d at once.
#[derive(Debug)]
pub(crate) struct DecodeImage {
    colours: Colours,
    resize: Option<ResizeImage>,
}

/// Which colours a pixel has, in their order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Colours {
    #[default]
    Rgb,
    Bgr,
    Gray,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DecodeParameters {
    #[serde(default)]
    colours: Colours,
    resize: Option<Table>,
}

impl DecodeImage {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let DecodeParameters { colours, resize } = parameters::read(table)?;
        let resize = resize.as_ref().map(ResizeImage::new).transpose();
        Ok(Box::new(Self { colours, resize: resize.map_err(|sentence| format!("resize: {sentence}"))? }))
    }

    fn decode(&self, file: &[u8], bound: &mut Bound) -> Result<(Extent, Vec<u8>), StepError> {
        match file {
            [0xff, 0xd8, ..] => jpeg::decode(file, self.colours, bound),
            [0x89, b'P', b'N', b'G', ..] => png::decode(file, self.colours, bound),
            _ => {
                let first = file[..file.len().min(4)].escape_ascii();
                Err(StepError::Inputs(format!("the file begins with \"{first}\" and is neither JPEG nor PNG")))
            }
        }
    }
}

/// What is wrong with a file.
pub(super) fn unreadable(format: &str, error: &impl fmt::Debug) -> StepError {
    StepError::Inputs(format!("the {format} file can't be read: {error:?}"))
}

impl Work for DecodeImage {
    fn input_names(&self) -> &'static [&'static str] {
        &["file"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        specs::types(&inputs[0], &[DataType::Bytes])?;
        let TensorSpec { name, dims, .. } = &inputs[0];
        let channels = if self.colours == Colours::Gray { 1 } else { 3 };
        let picture = match &self.resize {
            None => vec![-1, -1, channels],
            Some(resize) => resize.shape(&[-1, -1, channels])?,
        };
        let count = match dims[..] {
            [] => None,
            [count] | [count, -1 | 1] => Some(count),
            _ => return Err(format!("{name} has the shape {dims:?}, and files come as [], [files] or [files, 1]")),
        };
        if count == Some(0) {
            return Err(format!("{name} has no file in it"));
        }
        Ok(vec![(DataType::Uint8, count.into_iter().chain(picture).collect())])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let files = strings(&inputs[0], "file")?;
        let mut all: Option<(Extent, Vec<u8>)> = None;
        for file in &files {
            let decoded = self.decode(file, bound)?;
            let (extent, pixels) = match &self.resize {
                None => decoded,
                Some(resize) => resize.picture(decoded, bound)?,
            };
            match &mut all {
                // What one of them takes, all of them take.
                None if files.len() > 1 => {
                    let mut joined = bound.room(pixels.len().saturating_mul(files.len()))?;
                    joined.extend_from_slice(&pixels);
                    all = Some((extent, joined));
                }
                None => all = Some((extent, pixels)),
                Some((first, joined)) if *first == extent => joined.extend_from_slice(&pixels),
                Some((first, _)) => {
                    return Err(StepError::Inputs(format!(
                        "one file is {} x {} pixels and another {} x {}: say how to resize them, or send one at a time",
                        first.width, first.height, extent.width, extent.height
                    )));
                }
            }
        }
        let Some((Extent { height, width, channels }, data)) = all else {
            return Err(StepError::Inputs("there is no file".into()));
        };
        let files = (!inputs[0].shape.is_empty()).then_some(files.len());
        let shape = files.into_iter().chain([height, width, channels]).map(|dim| dim as i64).collect();
        Ok(vec![Tensor { datatype: DataType::Uint8, shape, data: data.into() }])
    }
}
