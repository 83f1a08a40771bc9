//! What a batch takes when another runs in the other share of its GPU: both read weights and activations through the
//! same caches and the same memory.
//!
//! Gpulet fits a line through the utilisations of cache and memory, which a profiler of the GPU measures. Here
//! everything comes from what is known anyway, the times of batches in shares and the size of the weights:
//!
//! ```text
//!  ln slow-down = sensitivity(batch) + pressure(other batch)
//!
//!  each is linear in   ln l(b, p)             how long it runs
//!                      ln (weights / l)       how fast it must read its weights
//!                      ln b
//!                      ln (l(b, p) / l(b))    how much it lacks the rest of the GPU
//!                      p
//! ```
//!
//! That the two are added makes the search cheap: what a set of models tolerates, and what it does to others, are one
//! number each.

use super::{ShareTimes, WHOLE};

const FEATURES: usize = 5;
/// Both sides and the constant.
const UNKNOWNS: usize = 2 * FEATURES + 1;
/// Added to the squares: features that say the same must not make each other's weights large.
const RIDGE: f64 = 1e-6;

/// A batch in a share.
#[derive(Clone, Copy, Debug)]
pub struct BatchInShare<'a> {
    /// What its model takes.
    pub times: &'a ShareTimes,
    /// Its size.
    pub batch: u32,
    /// In percent.
    pub share: u32,
}

impl BatchInShare<'_> {
    fn features(&self) -> [f64; FEATURES] {
        let takes = self.times.of(self.share, self.batch);
        let alone = self.times.of(WHOLE, self.batch);
        [
            takes.ln(),
            (self.times.weight_bytes().max(1.0) / takes).ln(),
            f64::from(self.batch).ln(),
            (takes / alone).ln(),
            f64::from(self.share) / f64::from(WHOLE),
        ]
    }
}

/// How much longer a batch was measured to take beside another.
#[derive(Clone, Copy, Debug)]
pub struct MeasuredPair<'a> {
    /// The batch that was measured.
    pub batch: BatchInShare<'a>,
    /// The batch beside it.
    pub beside: BatchInShare<'a>,
    /// Its time over that alone.
    pub slowdown: f64,
}

/// How batches slow each other down.
#[derive(Clone, PartialEq, Debug)]
pub struct Interference {
    sensitivity: [f64; FEATURES],
    pressure: [f64; FEATURES],
    constant: f64,
}

impl Interference {
    /// Nobody slows anybody down.
    pub const NONE: Self = Self { sensitivity: [0.0; FEATURES], pressure: [0.0; FEATURES], constant: 0.0 };

    /// As 570 pairs of batches on an H200 say it (experiments/data/h200_pairs.csv).
    pub const H200: Self = Self {
        sensitivity: [0.022_164, -0.030_152, -0.053_178, -0.104_041, 0.132_570],
        pressure: [-0.011_230, 0.025_836, 0.053_752, -0.065_933, 0.131_476],
        constant: 0.264_046,
    };

    /// The same for all batches: each takes so much longer, as a logarithm, beside any other.
    pub const fn constant(constant: f64) -> Self {
        Self { constant, ..Self::NONE }
    }

    /// The least squares of the logarithms. `None` where there are too few pairs to tell.
    pub fn fit<'a>(pairs: impl IntoIterator<Item = MeasuredPair<'a>>) -> Option<Self> {
        let mut sums = [[0.0; UNKNOWNS + 1]; UNKNOWNS];
        let mut count = 0;
        for pair in pairs {
            let mut row = [1.0; UNKNOWNS + 1];
            row[..FEATURES].copy_from_slice(&pair.batch.features());
            row[FEATURES..2 * FEATURES].copy_from_slice(&pair.beside.features());
            row[UNKNOWNS] = pair.slowdown.ln();
            if row.iter().any(|value| !value.is_finite()) {
                continue;
            }
            for (sum, left) in sums.iter_mut().zip(row) {
                sum.iter_mut().zip(row).for_each(|(sum, right)| *sum += left * right);
            }
            count += 1;
        }
        if count <= UNKNOWNS {
            return None;
        }
        sums.iter_mut().enumerate().for_each(|(index, sum)| sum[index] += RIDGE * count as f64);
        let found = solve(sums)?;
        let part = |from: usize| std::array::from_fn(|index| found[from + index]);
        Some(Self { sensitivity: part(0), pressure: part(FEATURES), constant: found[2 * FEATURES] })
    }

    /// What a batch suffers from any other, as a logarithm, without what the other does.
    pub fn sensitivity(&self, batch: BatchInShare<'_>) -> f64 {
        dot(&self.sensitivity, &batch.features()) + self.constant
    }

    /// What a batch does to any other, as a logarithm.
    pub fn pressure(&self, batch: BatchInShare<'_>) -> f64 {
        dot(&self.pressure, &batch.features())
    }

    /// How many times as long as alone a batch takes beside another; 1 at least.
    pub fn slowdown(&self, batch: BatchInShare<'_>, beside: BatchInShare<'_>) -> f64 {
        (self.sensitivity(batch) + self.pressure(beside)).exp().max(1.0)
    }
}

fn dot(one: &[f64; FEATURES], other: &[f64; FEATURES]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

/// Gauss' elimination with pivots, of equations whose right side is the last column.
fn solve(mut rows: [[f64; UNKNOWNS + 1]; UNKNOWNS]) -> Option<[f64; UNKNOWNS]> {
    for column in 0..UNKNOWNS {
        let size = |row: usize| rows[row][column].abs();
        let pivot = (column..UNKNOWNS).max_by(|&one, &other| size(one).total_cmp(&size(other)))?;
        if size(pivot) < 1e-12 {
            return None;
        }
        rows.swap(column, pivot);
        let leading = rows[column];
        for row in rows.iter_mut().skip(column + 1) {
            let factor = row[column] / leading[column];
            row.iter_mut().zip(leading).for_each(|(value, lead)| *value -= factor * lead);
        }
    }
    let mut found = [0.0; UNKNOWNS];
    for column in (0..UNKNOWNS).rev() {
        let known: f64 = (column + 1..UNKNOWNS).map(|other| rows[column][other] * found[other]).sum();
        found[column] = (rows[column][UNKNOWNS] - known) / rows[column][column];
    }
    Some(found)
}
