//! Where text is: boxes of a detector's map, which says of each pixel how likely it is in a line of text.

use crate::bound::Bound;
use crate::elements::{elements, tensor};
use crate::plane::{Pixel, Spot, Tilted, from_upper_left, grown, hull};
use crate::{StepError, Work, parameters, specs};
use base::{DataType, TensorSpec};
use engine::Tensor;
use serde::Deserialize;
use toml::Table;

/// What differentiable binarization (Liao et al., 2020) has behind its network. Pixels above `threshold` that touch
/// form regions; the smallest rectangle around one is a box if the map's mean within is `score` at least. Networks are
/// trained with lines that were made narrower, so that boxes are made larger by area times `unclip` divided by
/// perimeter. Four corners (upper left, upper right, lower right, lower left) are in pixels of the picture; boxes
/// come from top to bottom, and from left to right within a line. Holes in regions are part of them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct TextBoxes {
    threshold: f32,
    /// Whether regions get a pixel more to the right and below first, so that thin gaps close.
    dilate: bool,
    score: f64,
    unclip: f64,
    /// Shorter boxes are none, in pixels of the map; when they were made larger they have two more.
    least_side: f64,
    /// So many pixels of the picture apart, upper left corners are in one line.
    same_line: f64,
    /// The most regions that are looked at, from the top.
    most: usize,
}

impl Default for TextBoxes {
    fn default() -> Self {
        Self { threshold: 0.3, dilate: false, score: 0.5, unclip: 1.6, least_side: 3.0, same_line: 10.0, most: 1000 }
    }
}

/// The longest side of a map, in pixels.
const LONGEST_SIDE: i64 = 65_535;

/// A map: rows of numbers.
#[derive(Clone, Copy)]
struct ScoreMap<'a> {
    values: &'a [f32],
    width: usize,
    height: usize,
}

/// Pixels of a region that are beside one another in a row.
#[derive(Clone, Copy)]
struct PixelRun {
    row: u32,
    start: u32,
    /// The last one.
    end: u32,
}

/// A box with the map's mean within.
struct TextBox {
    corners: [Spot; 4],
    score: f32,
}

impl TextBoxes {
    pub(crate) fn read(table: &Table) -> Result<Box<dyn Work>, String> {
        let made: Self = parameters::read(table)?;
        for (key, value, most) in [
            ("unclip", made.unclip, 100.0),
            ("least_side", made.least_side, LONGEST_SIDE as f64),
            ("same_line", made.same_line, LONGEST_SIDE as f64),
        ] {
            if !(0.0..=most).contains(&value) {
                return Err(format!("{key} is {value}, and it is 0 to {most}"));
            }
        }
        if made.threshold.is_nan() || made.score.is_nan() {
            return Err("threshold and score are numbers that the map's are compared with".into());
        }
        if made.most == 0 {
            return Err("most is 0, so that there would be no boxes".into());
        }
        Ok(Box::new(made))
    }

    /// Which pixels are text.
    fn mask(&self, map: ScoreMap<'_>, bound: &mut Bound) -> Result<Vec<bool>, StepError> {
        let mut mask = bound.room(map.values.len())?;
        mask.extend(map.values.iter().map(|&value| value > self.threshold));
        if self.dilate {
            for row in (0..map.height).rev() {
                for at in (row * map.width..(row + 1) * map.width).rev() {
                    let (left, above) = (at > row * map.width, at >= map.width);
                    mask[at] = mask[at]
                        || left && mask[at - 1]
                        || above && mask[at - map.width]
                        || left && above && mask[at - map.width - 1];
                }
            }
        }
        Ok(mask)
    }

    /// The box of a region, in pixels of a picture; `None` where it is none.
    fn found(
        &self,
        outline: &[Pixel],
        map: ScoreMap<'_>,
        picture: [f32; 2],
        bound: &mut Bound,
    ) -> Result<Option<TextBox>, StepError> {
        bound.work(outline.len().saturating_mul(outline.len()))?;
        let Some(tight) = Tilted::around(outline).filter(|tight| tight.shorter_side() >= self.least_side) else {
            return Ok(None);
        };
        let score = map.mean(tight.ordered_corners(), bound)?;
        // What is no number is no score, either.
        if !(score >= self.score && score.is_finite()) {
            return Ok(None);
        }
        let [one, other] = tight.sides;
        let perimeter = 2.0 * (one + other);
        let distance = if perimeter > 0.0 { one * other * self.unclip / perimeter } else { 0.0 };
        // Corners that lie on a pixel stay there, whatever was rounded on the way.
        let mut whole = tight.corners.map(|corner| corner.map(|along| (along + 1e-6).trunc() as i64));
        whole.sort_unstable_by_key(|&[x, y]| (y, x));
        let larger = hull(&grown(&hull(&whole), distance));
        bound.work(larger.len().saturating_mul(larger.len()))?;
        let Some(wide) = Tilted::around(&larger).filter(|wide| wide.shorter_side() >= self.least_side + 2.0) else {
            return Ok(None);
        };
        // In the numbers that others compute with, so that halves are rounded as theirs.
        let size = [map.width as f32, map.height as f32];
        let along = |spot: Spot, axis: usize| {
            let scaled = (spot[axis] as f32 / size[axis] * picture[axis]).round_ties_even();
            f64::from(scaled.clamp(0.0, picture[axis] - 1.0))
        };
        let corners = from_upper_left(wide.ordered_corners().map(|spot| [along(spot, 0), along(spot, 1)]));
        let length = |to: usize| (corners[0][0] - corners[to][0]).hypot(corners[0][1] - corners[to][1]).trunc();
        let is_large = length(1) > self.least_side && length(3) > self.least_side;
        Ok(is_large.then_some(TextBox { corners, score: score as f32 }))
    }

    fn all(&self, map: ScoreMap<'_>, picture: [f32; 2], bound: &mut Bound) -> Result<Vec<TextBox>, StepError> {
        let mask = self.mask(map, bound)?;
        let regions = Regions::of(&mask, map.width, bound)?;
        let mut all = bound.room(regions.count().min(self.most))?;
        let mut pixels: Vec<Pixel> = bound.room(regions.longest() * 2)?;
        // An outline has as many corners at most.
        bound.count(Some(pixels.capacity() * size_of::<Pixel>()))?;
        for region in 0..regions.count().min(self.most) {
            pixels.clear();
            for run in regions.runs(region) {
                let row = i64::from(run.row);
                pixels.extend([[i64::from(run.start), row], [i64::from(run.end), row]]);
            }
            all.extend(self.found(&hull(&pixels), map, picture, bound)?);
        }
        self.sort(&mut all, bound)?;
        Ok(all)
    }

    /// From top to bottom; those that are in one line from left to right.
    fn sort(&self, all: &mut [TextBox], bound: &mut Bound) -> Result<(), StepError> {
        let upper_left = |found: &TextBox| found.corners[0];
        all.sort_by(|one, other| {
            let ([x, y], [other_x, other_y]) = (upper_left(one), upper_left(other));
            y.total_cmp(&other_y).then(x.total_cmp(&other_x))
        });
        for end in 1..all.len() {
            for at in (1..=end).rev() {
                bound.work(1)?;
                let ([x, y], [before_x, before_y]) = (upper_left(&all[at]), upper_left(&all[at - 1]));
                if (y - before_y).abs() >= self.same_line || x >= before_x {
                    break;
                }
                all.swap(at, at - 1);
            }
        }
        Ok(())
    }
}

impl ScoreMap<'_> {
    /// The mean within four corners, its edges included.
    fn mean(&self, corners: [Spot; 4], bound: &mut Bound) -> Result<f64, StepError> {
        let most = [self.width as f64 - 1.0, self.height as f64 - 1.0];
        let ends = |axis: usize| {
            let (low, high) = corners.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), corner| {
                (low.min(corner[axis]), high.max(corner[axis]))
            });
            ((low + 1e-6).floor().clamp(0.0, most[axis]), (high - 1e-6).ceil().clamp(0.0, most[axis]))
        };
        let ((left, right), (top, bottom)) = (ends(0), ends(1));
        bound.work(((right - left + 1.0) * (bottom - top + 1.0)) as usize)?;
        // Whole pixels, counted from the upper left.
        let corners = corners.map(|[x, y]| [(x - left + 1e-6).trunc() + left, (y - top + 1e-6).trunc() + top]);
        let (mut sum, mut count) = (0.0, 0usize);
        for row in top as usize..=bottom as usize {
            let Some((from, to)) = across(&corners, row as f64) else { continue };
            let (from, to) = (from.round().max(left) as usize, to.round().min(right) as usize);
            let line = self.values.get(row * self.width + from..=row * self.width + to.max(from)).unwrap_or_default();
            sum += line.iter().map(|&value| f64::from(value)).sum::<f64>();
            count += line.len();
        }
        Ok(if count == 0 { 0.0 } else { sum / count as f64 })
    }
}

/// From where to where a row of pixels, which is one high, lies within corners.
fn across(corners: &[Spot; 4], row: f64) -> Option<(f64, f64)> {
    let mut ends: Option<(f64, f64)> = None;
    for at in 0..4 {
        let (mut from, mut to) = (corners[at], corners[(at + 1) % 4]);
        if from[1] > to[1] {
            (from, to) = (to, from);
        }
        let (top, bottom) = (from[1].max(row - 0.5), to[1].min(row + 0.5));
        if top > bottom {
            continue;
        }
        let slope = if to[1] > from[1] { (to[0] - from[0]) / (to[1] - from[1]) } else { 0.0 };
        let places = match from[1] == to[1] {
            true => [from[0], to[0]],
            false => [top, bottom].map(|y| from[0] + (y - from[1]) * slope),
        };
        for place in places {
            let (low, high) = ends.unwrap_or((place, place));
            ends = Some((low.min(place), high.max(place)));
        }
    }
    ends
}

/// Pixels that touch, also at their corners, as runs.
struct Regions {
    runs: Vec<PixelRun>,
    /// Runs by region, and within one from top to bottom.
    order: Vec<u32>,
    /// Where each region begins in `order`, and where the last one ends.
    starts: Vec<u32>,
}

impl Regions {
    fn of(mask: &[bool], width: usize, bound: &mut Bound) -> Result<Self, StepError> {
        let begins = |line: &[bool], at: usize| line[at] && (at == 0 || !line[at - 1]);
        let lines = || mask.chunks_exact(width.max(1));
        let count: usize = lines().map(|line| (0..line.len()).filter(|&at| begins(line, at)).count()).sum();
        let mut runs: Vec<PixelRun> = bound.room(count)?;
        for (row, line) in lines().enumerate() {
            for start in (0..line.len()).filter(|&at| begins(line, at)) {
                let length = line[start..].iter().take_while(|&&is_text| is_text).count();
                runs.push(PixelRun { row: row as u32, start: start as u32, end: (start + length - 1) as u32 });
            }
        }
        let mut parents: Vec<u32> = bound.room(count)?;
        parents.extend(0..count as u32);
        join(&runs, &mut parents);
        // Regions are numbered by their first runs.
        let mut numbers: Vec<u32> = bound.room(count)?;
        let mut starts: Vec<u32> = bound.room(count + 1)?;
        for run in 0..count {
            let root = root(&mut parents, run as u32) as usize;
            let number = if root == run { starts.len() as u32 } else { numbers[root] };
            numbers.push(number);
            if root == run {
                starts.push(0);
            }
            starts[number as usize] += 1;
        }
        let mut before = 0;
        for start in &mut starts {
            (*start, before) = (before, before + *start);
        }
        let mut order = bound.filled(count, 0u32)?;
        for (run, &number) in numbers.iter().enumerate() {
            let place = &mut starts[number as usize];
            order[*place as usize] = run as u32;
            *place += 1;
        }
        // Each is where the next one begins by now.
        starts.insert(0, 0);
        Ok(Self { runs, order, starts })
    }

    fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Runs of the region that has the most.
    fn longest(&self) -> usize {
        self.starts.windows(2).map(|ends| (ends[1] - ends[0]) as usize).max().unwrap_or(0)
    }

    fn runs(&self, region: usize) -> impl Iterator<Item = &PixelRun> {
        self.order[self.starts[region] as usize..self.starts[region + 1] as usize]
            .iter()
            .map(|&run| &self.runs[run as usize])
    }
}

/// Joins the runs of a row with those of the row above that they touch.
fn join(runs: &[PixelRun], parents: &mut [u32]) {
    let mut above = 0;
    for (at, run) in runs.iter().enumerate() {
        // What ends left of it in the row above ends left of the next ones, too.
        while runs[above].row + 1 < run.row || runs[above].row + 1 == run.row && runs[above].end + 1 < run.start {
            above += 1;
        }
        let touches = |other: &PixelRun| other.row + 1 == run.row && other.start <= run.end + 1;
        for (other, _) in (above..at).zip(&runs[above..]).take_while(|(_, other)| touches(other)) {
            let (one, two) = (root(parents, at as u32), root(parents, other as u32));
            // The earlier one is the root.
            parents[one.max(two) as usize] = one.min(two);
        }
    }
}

/// The first run that a run was joined with; the way there becomes shorter.
fn root(parents: &mut [u32], mut run: u32) -> u32 {
    while parents[run as usize] != run {
        parents[run as usize] = parents[parents[run as usize] as usize];
        run = parents[run as usize];
    }
    run
}

impl Work for TextBoxes {
    fn input_names(&self) -> &'static [&'static str] {
        &["map", "image"]
    }

    fn output_names(&self) -> &'static [&'static str] {
        &["boxes", "scores"]
    }

    fn outputs(&self, inputs: &[TensorSpec]) -> Result<Vec<(DataType, Vec<i64>)>, String> {
        let (map, image) = (&inputs[0], &inputs[1]);
        specs::types(map, &[DataType::Fp32])?;
        let (before, sides) = map.dims.split_at(map.dims.len().saturating_sub(2));
        if sides.len() < 2 || before.len() > 2 || before.iter().any(|dim| !matches!(dim, -1 | 1)) {
            return Err(format!("{} has the shape {:?}, and one map is [1, 1, height, width]", map.name, map.dims));
        }
        if sides.iter().any(|&side| side == 0 || side > LONGEST_SIDE) {
            return Err(format!("{} has the shape {:?}: sides are 1 to {LONGEST_SIDE}", map.name, map.dims));
        }
        let fits = match image.dims[..] {
            [height, width, _] | [-1 | 1, height, width, _] => height != 0 && width != 0,
            _ => false,
        };
        if !fits {
            return Err(format!(
                "{} has the shape {:?}, and one picture is [height, width, channels]",
                image.name, image.dims
            ));
        }
        Ok(vec![(DataType::Fp32, vec![-1, 4, 2]), (DataType::Fp32, vec![-1])])
    }

    fn run(&self, inputs: &[Tensor], bound: &mut Bound) -> Result<Vec<Tensor>, StepError> {
        let values = elements::<f32>(&inputs[0], bound)?;
        let side = |tensor: &Tensor, from_end: usize| tensor.shape[tensor.shape.len() - from_end];
        let (height, width) = (side(&inputs[0], 2) as usize, side(&inputs[0], 1) as usize);
        let map = ScoreMap { values: &values, width, height };
        let picture = [side(&inputs[1], 2) as f32, side(&inputs[1], 3) as f32];
        let all = self.all(map, picture, bound)?;
        let mut corners: Vec<f32> = bound.room(all.len() * 8)?;
        corners.extend(all.iter().flat_map(|found| found.corners.as_flattened()).map(|&along| along as f32));
        let mut scores: Vec<f32> = bound.room(all.len())?;
        scores.extend(all.iter().map(|found| found.score));
        let count = all.len() as i64;
        Ok(vec![tensor(DataType::Fp32, vec![count, 4, 2], corners), tensor(DataType::Fp32, vec![count], scores)])
    }
}
