//! Colours as the numbers that a model was trained with.

use super::Extent;
use crate::bound::Bound;
use crate::elements::{Element, elements, tensor};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use half::f16;
use serde::Deserialize;
use toml::Table;

/// `(value * scale - mean) / deviation` for each channel, the last axis. With `layout = "CHW"` channels come before
/// rows in the output, and with `reverse` their order is turned round: what else would be a second walk over the
/// picture.
#[derive(Debug)]
pub(crate) struct Normalise {
    scale: f32,
    mean: Vec<f32>,
    deviation: Vec<f32>,
    channels_first: bool,
    reverse: bool,
    to: DataType,
}

#[derive(Clone, Copy, Default, Deserialize)]
enum ChannelOrder {
    #[default]
    #[serde(rename = "HWC")]
    Last,
    #[serde(rename = "CHW")]
    First,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NormaliseParameters {
    #[serde(default = "one")]
    scale: f32,
    #[serde(default)]
    mean: Vec<f32>,
    #[serde(default)]
    deviation: Vec<f32>,
    #[serde(default)]
    layout: ChannelOrder,
    #[serde(default)]
    reverse: bool,
    datatype: Option<String>,
}

fn one() -> f32 {
    1.0
}

impl Normalise {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(Self::new(table)?))
    }

    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let NormaliseParameters { scale, mut mean, mut deviation, layout, reverse, datatype } =
            parameters::read(table)?;
        let to = datatype.map_or(Ok(DataType::Fp32), |name| parameters::datatype(&name))?;
        if !matches!(to, DataType::Fp32 | DataType::Fp16) {
            return Err(format!("datatype is {to}, and it is FP32 or FP16"));
        }
        if deviation.contains(&0.0) {
            return Err("a deviation is 0, and values are divided by it".into());
        }
        let length = mean.len().max(deviation.len()).max(1);
        for (key, values, default) in [("mean", &mut mean, 0.0), ("deviation", &mut deviation, 1.0)] {
            let all = values.first().copied().unwrap_or(default);
            match values.len() {
                0 | 1 => values.resize(length, all),
                given if given == length && given <= 4 => {}
                given => {
                    return Err(format!("{key} has {given} values: it has one, or one for each channel, 4 at most"));
                }
            }
        }
        let channels_first = matches!(layout, ChannelOrder::First);
        Ok(Self { scale, mean, deviation, channels_first, reverse, to })
    }

    /// A value of a channel. What channels are, `mean` and `deviation` have in the order of the output.
    fn value(&self, value: f32, channel: usize) -> f32 {
        let of = |values: &[f32]| values[channel.min(values.len() - 1)];
        (value * self.scale - of(&self.mean)) / of(&self.deviation)
    }

    /// That there is a value for each channel.
    pub(super) fn check_channels(&self, image: &TensorSpec) -> Result<(), String> {
        let TensorSpec { name, dims, .. } = image;
        let (channels, known) = (dims[dims.len() - 1], self.mean.len() as i64);
        match channels >= 0 && known > 1 && known != channels {
            true => {
                Err(format!("{name} has the shape {dims:?}, and there are values for {known} channels, the last axis"))
            }
            false => Ok(()),
        }
    }

    /// What type it gives.
    pub(super) fn datatype(&self) -> DataType {
        self.to
    }

    /// Puts a picture into the upper left of a larger one, in the order of the output.
    pub(super) fn put<F: Copy>(
        &self,
        (from, pixels): (&Extent, &[F]),
        (to, out): (&Extent, &mut [f32]),
        read: impl Fn(F) -> f32,
    ) {
        let Extent { width, channels, .. } = *from;
        let plane = to.height * to.width;
        for (row, line) in pixels.chunks_exact(width * channels).enumerate() {
            for channel in 0..channels {
                let source = if self.reverse { channels - 1 - channel } else { channel };
                let values = line.chunks_exact(channels).map(|pixel| self.value(read(pixel[source]), channel));
                let start = row * to.width;
                if self.channels_first {
                    let start = channel * plane + start;
                    out[start..start + width].iter_mut().zip(values).for_each(|(out, value)| *out = value);
                } else {
                    let line = &mut out[start * channels..(start + width) * channels];
                    line.chunks_exact_mut(channels).zip(values).for_each(|(out, value)| out[channel] = value);
                }
            }
        }
    }

    pub(super) fn shape(&self, dims: &[i64]) -> Vec<i64> {
        let mut dims = dims.to_vec();
        if self.channels_first {
            let rank = dims.len();
            dims[rank - 3..].rotate_right(1);
        }
        dims
    }

    /// Elements in the order of the output, of pictures of so many pixels with so many channels.
    fn walk<F: Copy, T>(
        &self,
        (from, pixels, channels): (&[F], usize, usize),
        bound: &mut Bound,
        value: impl Fn(F, usize) -> T,
    ) -> Result<Vec<T>, StepError> {
        let mut out = bound.room(from.len())?;
        let source = |channel: usize| if self.reverse { channels - 1 - channel } else { channel };
        for picture in from.chunks_exact((pixels * channels).max(1)) {
            if self.channels_first {
                for channel in 0..channels {
                    let at = source(channel);
                    out.extend(picture.chunks_exact(channels).map(|pixel| value(pixel[at], channel)));
                }
            } else {
                for pixel in picture.chunks_exact(channels) {
                    out.extend((0..channels).map(|channel| value(pixel[source(channel)], channel)));
                }
            }
        }
        Ok(out)
    }

    fn all<T: Copy>(&self, input: &Tensor, bound: &mut Bound, to: impl Fn(f32) -> T) -> Result<Vec<T>, StepError> {
        let (_, channels, _) = specs::around(&input.shape, input.shape.len() - 1);
        let rank = input.shape.len();
        let pixels = (input.shape[rank - 3] as usize).saturating_mul(input.shape[rank - 2] as usize);
        if input.datatype == DataType::Uint8 {
            // A byte has few values: each is computed once.
            let table: Vec<[T; 256]> =
                (0..channels).map(|channel| std::array::from_fn(|byte| to(self.value(byte as f32, channel)))).collect();
            return self
                .walk((&input.data, pixels, channels), bound, |byte, channel| table[channel][usize::from(byte)]);
        }
        let floats = elements::<f32>(input, bound)?;
        self.walk((&floats, pixels, channels), bound, |value, channel| to(self.value(value, channel)))
    }
}

impl Work for Normalise {
    fn input_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        super::pictures(&inputs[0])?;
        self.check_channels(&inputs[0])?;
        Ok(vec![(self.to, self.shape(&inputs[0].dims))])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let (input, shape) = (&inputs[0], self.shape(&inputs[0].shape));
        Ok(vec![match self.to {
            DataType::Fp16 => tensor(self.to, shape, self.all(input, bound, |value| f16::from_f32(value).raw())?),
            _ => tensor(self.to, shape, self.all(input, bound, |value| value)?),
        }])
    }
}
