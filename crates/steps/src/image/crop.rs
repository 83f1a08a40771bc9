//! A part of each picture, always the same.

use super::resize::check_side;
use super::{Extent, count, pictures, with_sides};
use crate::bound::Bound;
use crate::{StepError, Work, parameters};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Cuts a part out of each picture: `size`, around the middle unless `top` and `left` say where.
#[derive(Debug)]
pub(crate) struct CropImage {
    height: i64,
    width: i64,
    corner: Option<(i64, i64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CropParameters {
    size: [i64; 2],
    top: Option<i64>,
    left: Option<i64>,
}

impl CropImage {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let CropParameters { size: [height, width], top, left } = parameters::read(table)?;
        let corner = match (top, left) {
            (None, None) => None,
            (Some(top @ 0..), Some(left @ 0..)) => Some((top, left)),
            (Some(_), Some(_)) => return Err("top and left are counted from the upper left corner, from 0 on".into()),
            _ => return Err("top and left go together; without both, the middle is cut out".into()),
        };
        Ok(Box::new(Self { height: check_side("size", height)?, width: check_side("size", width)?, corner }))
    }

    /// Where the part begins in a picture of that size; `None` where it isn't within.
    fn corner(&self, height: i64, width: i64) -> Option<(i64, i64)> {
        let (top, left) = self.corner.unwrap_or(((height - self.height) / 2, (width - self.width) / 2));
        let fits = top >= 0 && left >= 0 && top <= height - self.height && left <= width - self.width;
        fits.then_some((top, left))
    }
}

impl Work for CropImage {
    fn input_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        pictures(&inputs[0])?;
        let TensorSpec { name, datatype, dims } = &inputs[0];
        let (height, width) = (dims[dims.len() - 3], dims[dims.len() - 2]);
        // An open side may be as long as it must.
        let long = |side: i64, wanted: i64| if side < 0 { i64::MAX - wanted } else { side };
        if self.corner(long(height, self.height), long(width, self.width)).is_none() {
            return Err(format!("{name} has the shape {dims:?}, and {self} isn't within"));
        }
        Ok(vec![(*datatype, with_sides(dims, self.height, self.width))])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let Tensor { datatype, shape, data } = &inputs[0];
        let Extent { height, width, channels } = Extent::of(&inputs[0]);
        let Some((top, left)) = self.corner(height as i64, width as i64) else {
            return Err(StepError::Inputs(format!("{self} isn't within {shape:?}")));
        };
        let pixel = channels * datatype.size().unwrap_or(1);
        let (line, start) = (self.width as usize * pixel, left as usize * pixel);
        let (top, rows, pictures) = (top as usize, self.height as usize, count(&inputs[0]));
        let mut out = bound.room((line * rows).saturating_mul(pictures))?;
        for picture in data.chunks_exact(height * width * pixel).take(pictures) {
            for row in picture.chunks_exact(width * pixel).skip(top).take(rows) {
                out.extend_from_slice(&row[start..start + line]);
            }
        }
        let shape = with_sides(shape, self.height, self.width);
        Ok(vec![Tensor { datatype: *datatype, shape, data: out.into() }])
    }
}

impl std::fmt::Display for CropImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a part of {} x {} pixels", self.width, self.height)?;
        self.corner.map_or(Ok(()), |(top, left)| write!(f, " at top {top}, left {left}"))
    }
}
