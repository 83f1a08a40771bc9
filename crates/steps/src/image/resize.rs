//! Pictures of another size.

use super::sample::{Depth, Filter, ImagePart, Sampling};
use super::{Extent, LONGEST_SIDE, count, pictures, with_sides};
use crate::bound::Bound;
use crate::elements::{elements, tensor};
use crate::{StepError, Work, parameters};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// Makes pictures smaller or larger.
#[derive(Debug)]
pub(crate) struct ResizeImage {
    to: Sides,
    sampling: Sampling,
}

/// What sides pictures get.
#[derive(Clone, Copy, Debug)]
enum Sides {
    /// Height and width.
    Fixed(i64, i64),
    /// In proportion, then each to the nearest multiple.
    Scaled { rule: Rule, multiple: i64 },
}

/// What side decides how much larger or smaller a picture gets.
#[derive(Clone, Copy, Debug)]
enum Rule {
    /// The shorter side gets that length.
    Shortest(i64),
    /// The longer side gets that length.
    Longest(i64),
    /// The shorter side gets that length, if it is shorter.
    ShortestAtLeast(i64),
    /// The longer side gets that length, if it is longer.
    LongestAtMost(i64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ResizeParameters {
    size: Option<[i64; 2]>,
    shortest: Option<i64>,
    longest: Option<i64>,
    shortest_at_least: Option<i64>,
    longest_at_most: Option<i64>,
    multiple: Option<i64>,
    #[serde(default)]
    filter: Filter,
    #[serde(default = "parameters::yes")]
    antialias: bool,
}

/// That a side is one that pictures can have.
pub(super) fn check_side(key: &str, side: i64) -> Result<i64, String> {
    match side {
        1..=LONGEST_SIDE => Ok(side),
        _ => Err(format!("{key} is {side}, and a side of a picture is 1 to {LONGEST_SIDE} pixels")),
    }
}

impl ResizeImage {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        Ok(Box::new(Self::new(table)?))
    }

    pub(super) fn new(table: &Table) -> Result<Self, String> {
        let written: ResizeParameters = parameters::read(table)?;
        let sampling = Sampling { filter: written.filter, antialias: written.antialias };
        let rules = [
            ("shortest", written.shortest.map(Rule::Shortest), written.shortest),
            ("longest", written.longest.map(Rule::Longest), written.longest),
            ("shortest_at_least", written.shortest_at_least.map(Rule::ShortestAtLeast), written.shortest_at_least),
            ("longest_at_most", written.longest_at_most.map(Rule::LongestAtMost), written.longest_at_most),
        ];
        for (key, _, side) in &rules {
            side.map(|side| check_side(key, side)).transpose()?;
        }
        let rules: Vec<Rule> = rules.into_iter().filter_map(|(_, rule, _)| rule).collect();
        let to = match (written.size, &rules[..]) {
            (Some(_), []) if written.multiple.is_some() => {
                return Err("size says all: multiple goes with the other ways to say a size".into());
            }
            (Some([height, width]), []) => Sides::Fixed(check_side("size", height)?, check_side("size", width)?),
            (None, &[rule]) => {
                let multiple = check_side("multiple", written.multiple.unwrap_or(1))?;
                Sides::Scaled { rule, multiple }
            }
            _ => {
                return Err("one of size = [height, width], shortest, longest, shortest_at_least and longest_at_most is needed, and no second".into());
            }
        };
        Ok(Self { to, sampling })
    }

    /// The shape that pictures of a shape get.
    pub(super) fn shape(&self, dims: &[i64]) -> Result<Vec<i64>, String> {
        let rank = dims.len();
        let (height, width) = (dims[rank - 3], dims[rank - 2]);
        let (height, width) = match self.to {
            Sides::Fixed(height, width) => (height, width),
            Sides::Scaled { .. } if height < 0 || width < 0 => (-1, -1),
            Sides::Scaled { rule, multiple } => scaled(rule, multiple, height, width)?,
        };
        Ok(with_sides(dims, height, width))
    }

    /// All pictures of a tensor. What one of them takes on the way, the next one uses again.
    fn all(
        &self,
        pixels: &[u8],
        out: &mut [u8],
        (from, to): (&Extent, &Extent),
        depth: Depth,
        bound: &Bound,
    ) -> Result<(), StepError> {
        let bytes = |extent: &Extent| extent.height * extent.width * extent.channels * depth.bytes();
        let pictures = pixels.chunks_exact(bytes(from)).zip(out.chunks_exact_mut(bytes(to)));
        for (pixels, out) in pictures {
            let mut bound = Bound::new(bound.left());
            self.sampling.sample((from, pixels), ImagePart::whole(from), (to, out), depth, &mut bound)?;
        }
        Ok(())
    }

    /// One picture of bytes.
    pub(super) fn picture(
        &self,
        (extent, pixels): (Extent, Vec<u8>),
        bound: &mut Bound,
    ) -> Result<(Extent, Vec<u8>), StepError> {
        let dims = [extent.height as i64, extent.width as i64, extent.channels as i64];
        let to = self.shape(&dims).map_err(StepError::Inputs)?;
        let to = Extent { height: to[0] as usize, width: to[1] as usize, ..extent };
        let mut out = bound.filled(to.elements().unwrap_or(usize::MAX), 0u8)?;
        self.sampling.sample((&extent, &pixels), ImagePart::whole(&extent), (&to, &mut out), Depth::Byte, bound)?;
        Ok((to, out))
    }
}

/// Height and width by a rule.
fn scaled(rule: Rule, multiple: i64, height: i64, width: i64) -> Result<(i64, i64), String> {
    let (shorter, longer) = (height.min(width), height.max(width));
    let (wanted, side) = match rule {
        Rule::Shortest(wanted) => (wanted, shorter),
        Rule::Longest(wanted) => (wanted, longer),
        Rule::ShortestAtLeast(least) => (least.max(shorter), shorter),
        Rule::LongestAtMost(most) => (most.min(longer), longer),
    };
    // In whole numbers: a side that decides gets just what is wanted of it. Halves go to the even multiple.
    let length = |length: i64| {
        let nearest = (length * wanted / side) as f64 / multiple as f64;
        (nearest.round_ties_even() as i64 * multiple).max(multiple)
    };
    let sides = (length(height), length(width));
    match sides.0.max(sides.1) {
        ..=LONGEST_SIDE => Ok(sides),
        _ => Err(format!(
            "a picture of {width} x {height} pixels would get {} x {}, and sides have {LONGEST_SIDE} pixels at most",
            sides.1, sides.0
        )),
    }
}

impl Work for ResizeImage {
    fn input_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["image"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        pictures(&inputs[0])?;
        Ok(vec![(inputs[0].datatype, self.shape(&inputs[0].dims)?)])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let input = &inputs[0];
        let shape = self.shape(&input.shape).map_err(StepError::Inputs)?;
        let (from, depth) = (Extent::of(input), Depth::of(input.datatype));
        let rank = shape.len();
        let to = Extent { height: shape[rank - 3] as usize, width: shape[rank - 2] as usize, ..from };
        if from == to {
            return Ok(vec![input.clone()]);
        }
        let total = to.elements().and_then(|elements| elements.checked_mul(count(input))).unwrap_or(usize::MAX);
        match depth {
            Depth::Byte => {
                let mut out = bound.filled(total, 0u8)?;
                self.all(&input.data, &mut out, (&from, &to), depth, bound)?;
                Ok(vec![tensor(input.datatype, shape, out)])
            }
            Depth::Float => {
                let floats = elements::<f32>(input, bound)?;
                let mut out = bound.filled(total, 0f32)?;
                let bytes = bytemuck::cast_slice_mut(&mut out);
                self.all(bytemuck::cast_slice(&floats), bytes, (&from, &to), depth, bound)?;
                Ok(vec![tensor(input.datatype, shape, out)])
            }
        }
    }
}
