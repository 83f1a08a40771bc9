//! Of boxes that overlap, the one with the highest score: non-maximum suppression.

use crate::bound::Bound;
use crate::elements::{Element, elements, tensor};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use std::cmp::Ordering;
use toml::Table;

/// ONNX's `NonMaxSuppression`, class by class: of boxes that overlap by more than `iou` only the one with the highest
/// score stays, the first of equal ones. Boxes with a score or a corner that is no finite number are none. What is kept
/// comes by picture, class and falling score, as indices `[picture, class, box]`, and as boxes, scores and classes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Suppress {
    /// The most that are kept of a class in a picture.
    most_per_class: usize,
    /// Overlap, of what both cover together.
    iou: f32,
    /// Only boxes with a higher score.
    score: Option<f32>,
    /// Whether boxes are `[x, y, width, height]` around their middles, instead of two corners that are diagonal.
    #[serde(default)]
    centred: bool,
}

/// A box: lower and upper ends along both axes.
#[derive(Clone, Copy)]
struct Rectangle {
    low: [f32; 2],
    high: [f32; 2],
}

impl Suppress {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let made: Self = parameters::read(table)?;
        if !(0.0..=1.0).contains(&made.iou) {
            return Err(format!("iou is {}, and it is a part, 0 to 1", made.iou));
        }
        if made.most_per_class == 0 {
            return Err("most_per_class is 0, so that nothing would be kept".into());
        }
        Ok(Box::new(made))
    }

    fn rectangle(&self, corners: &[f32]) -> Option<Rectangle> {
        let [a, b, c, d] = [corners[0], corners[1], corners[2], corners[3]];
        let (low, high) = match self.centred {
            true => ([a - c / 2.0, b - d / 2.0], [a + c / 2.0, b + d / 2.0]),
            false => ([a.min(c), b.min(d)], [a.max(c), b.max(d)]),
        };
        let is_finite = corners[..4].iter().all(|corner| corner.is_finite());
        is_finite.then_some(Rectangle { low, high })
    }

    /// Indices of the boxes of a class that are kept.
    fn keep(
        &self,
        rectangles: &[Option<Rectangle>],
        scores: &[f32],
        bound: &mut Bound,
    ) -> Result<Vec<usize>, StepError> {
        let least = self.score.unwrap_or(f32::NEG_INFINITY);
        let mut candidates: Vec<usize> = bound.room(scores.len())?;
        // Without a least score, one of minus infinity is a score.
        let is_candidate = |&at: &usize| {
            rectangles[at].is_some() && (scores[at] > least || self.score.is_none() && !scores[at].is_nan())
        };
        candidates.extend((0..scores.len()).filter(is_candidate));
        candidates.sort_unstable_by(|&one, &other| scores[other].order(scores[one]).then(one.cmp(&other)));
        let mut kept: Vec<(usize, Rectangle)> = bound.room(candidates.len().min(self.most_per_class))?;
        for at in candidates {
            if kept.len() == self.most_per_class {
                break;
            }
            bound.work(kept.len())?;
            let Some(rectangle) = rectangles[at] else { continue };
            if !kept.iter().any(|(_, better)| better.overlap(&rectangle) > self.iou) {
                kept.push((at, rectangle));
            }
        }
        Ok(kept.into_iter().map(|(at, _)| at).collect())
    }
}

impl Rectangle {
    fn area(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// What both cover of what either covers; 0 where one of them covers nothing.
    fn overlap(&self, other: &Self) -> f32 {
        let along = |axis: usize| self.high[axis].min(other.high[axis]) - self.low[axis].max(other.low[axis]);
        let both = along(0).max(0.0) * along(1).max(0.0);
        let (one, two) = (self.area(), other.area());
        let either = one + two - both;
        let are_some = [both, one, two, either].iter().all(|area| area.partial_cmp(&0.0) == Some(Ordering::Greater));
        if are_some { both / either } else { 0.0 }
    }
}

impl Work for Suppress {
    fn input_names(&self) -> &'static [&'static str] {
        &["boxes", "scores"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["indices", "boxes", "scores", "classes"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        inputs.iter().try_for_each(|spec| specs::types(spec, &[DataType::Fp32]))?;
        let fits = match (&inputs[0].dims[..], &inputs[1].dims[..]) {
            (&[pictures, boxes, -1 | 4], &[others, _, scores]) => {
                specs::same(pictures, others).is_some() && specs::same(boxes, scores).is_some()
            }
            _ => false,
        };
        if !fits {
            return Err(format!(
                "{} has the shape {:?} and {} {:?}, and [pictures, boxes, 4] and [pictures, classes, boxes] are needed",
                inputs[0].name, inputs[0].dims, inputs[1].name, inputs[1].dims
            ));
        }
        let (floats, numbers) = (DataType::Fp32, DataType::Int64);
        Ok(vec![(numbers, vec![-1, 3]), (floats, vec![-1, 4]), (floats, vec![-1]), (numbers, vec![-1])])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let boxes = elements::<f32>(&inputs[0], bound)?;
        let scores = elements::<f32>(&inputs[1], bound)?;
        let (count, classes) = (inputs[0].shape[1] as usize, inputs[1].shape[1] as usize);
        let mut all = KeptBoxes::default();
        // Nothing where there is nothing, however many pictures or classes there are of it.
        let pictures = boxes.chunks_exact(count.saturating_mul(4).max(1));
        let scores = scores.chunks_exact(count.saturating_mul(classes).max(1));
        for (picture, (boxes, scores)) in pictures.zip(scores).enumerate() {
            let rectangles: Vec<_> = boxes.chunks_exact(4).map(|corners| self.rectangle(corners)).collect();
            for (class, scores) in scores.chunks_exact(count).enumerate() {
                let mut rest = bound.rest();
                let kept = self.keep(&rectangles, scores, &mut rest)?;
                bound.worked(&rest);
                bound.count(kept.len().checked_mul(KeptBoxes::BYTES))?;
                for at in kept {
                    all.indices.extend([picture as i64, class as i64, at as i64]);
                    all.boxes.extend_from_slice(&boxes[at * 4..at * 4 + 4]);
                    all.scores.push(scores[at]);
                    all.classes.push(class as i64);
                }
            }
        }
        let count = all.scores.len() as i64;
        Ok(vec![
            tensor(DataType::Int64, vec![count, 3], all.indices),
            tensor(DataType::Fp32, vec![count, 4], all.boxes),
            tensor(DataType::Fp32, vec![count], all.scores),
            tensor(DataType::Int64, vec![count], all.classes),
        ])
    }
}

/// What is kept of all pictures and classes.
#[derive(Default)]
struct KeptBoxes {
    indices: Vec<i64>,
    boxes: Vec<f32>,
    scores: Vec<f32>,
    classes: Vec<i64>,
}

impl KeptBoxes {
    /// What a box takes, in vectors that are at most half empty.
    const BYTES: usize = 2 * (3 * 8 + 4 * 4 + 4 + 8);
}
