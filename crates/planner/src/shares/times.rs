//! What a model's batches take in shares of a GPU, measured at some points and interpolated between them.

use std::collections::BTreeMap;

/// What a model's batches take in shares of a GPU.
#[derive(Clone, PartialEq, Debug)]
pub struct ShareTimes {
    /// For each share in percent, what batches take, in seconds, by size.
    rows: BTreeMap<u32, Vec<(u32, f64)>>,
    weight_bytes: f64,
    largest: u32,
}

impl ShareTimes {
    /// From `(share in percent, batch, seconds)`, in any order. A sentence if that can't be.
    pub fn new(points: impl IntoIterator<Item = (u32, u32, f64)>, weight_bytes: f64) -> Result<Self, String> {
        let mut rows: BTreeMap<u32, Vec<(u32, f64)>> = BTreeMap::new();
        for (share, batch, seconds) in points {
            if !(1..=super::WHOLE).contains(&share) {
                return Err(format!("a share of {share} %: give 1 to 100"));
            }
            if batch == 0 || !seconds.is_finite() || seconds <= 0.0 {
                return Err(format!("a batch of {batch} that takes {seconds} s: give a size from 1 on and its time"));
            }
            rows.entry(share).or_default().push((batch, seconds));
        }
        rows.values_mut().for_each(|row| row.sort_by_key(|(batch, _)| *batch));
        if let Some((share, row)) = rows.iter().find(|(_, row)| row.windows(2).any(|pair| pair[0].0 == pair[1].0)) {
            return Err(format!("a batch size is there twice in the share of {share} %: {row:?}"));
        }
        let Some(largest) = rows.values().filter_map(|row| row.last()).map(|(batch, _)| *batch).max() else {
            return Err("nothing was measured".to_owned());
        };
        Ok(Self { rows, weight_bytes, largest })
    }

    /// The largest batch that was measured; larger ones aren't planned with.
    pub fn largest_batch(&self) -> u32 {
        self.largest
    }

    /// What its weights take.
    pub fn weight_bytes(&self) -> f64 {
        self.weight_bytes
    }

    /// Seconds that a batch takes in a share: on a line between the nearest measured shares, and in each of them
    /// between the nearest measured sizes. Smaller shares than the smallest take as long as their part is smaller.
    pub fn of(&self, share: u32, batch: u32) -> f64 {
        let below = self.rows.range(..=share).next_back();
        let above = self.rows.range(share..).next();
        match (below, above) {
            (Some((&low, row)), Some((&high, other))) if low != high => {
                let part = f64::from(share - low) / f64::from(high - low);
                let (slow, quick) = (in_row(row, batch), in_row(other, batch));
                slow + (quick - slow) * part
            }
            (Some((_, row)), _) => in_row(row, batch),
            (None, Some((&high, row))) => in_row(row, batch) * f64::from(high) / f64::from(share.max(1)),
            (None, None) => f64::INFINITY,
        }
    }
}

/// Between two measured sizes on a line, beyond the last as the last two have it, before the first as the first.
fn in_row(row: &[(u32, f64)], batch: u32) -> f64 {
    let after = row.partition_point(|(size, _)| *size < batch);
    let (low, high) = match (after, row.len()) {
        (0, _) => return row[0].1,
        (_, 1) => return row[0].1 * f64::from(batch) / f64::from(row[0].0),
        (after, length) if after >= length => (row[length - 2], row[length - 1]),
        (after, _) => (row[after - 1], row[after]),
    };
    let part = (f64::from(batch) - f64::from(low.0)) / f64::from(high.0 - low.0);
    low.1 + (high.1 - low.1) * part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_lies_between_what_was() {
        let times = ShareTimes::new([(50, 1, 2.0), (50, 4, 5.0), (100, 1, 1.0), (100, 4, 4.0)], 0.0).unwrap();
        assert_eq!((times.of(50, 1), times.of(50, 2), times.of(50, 4)), (2.0, 3.0, 5.0));
        assert_eq!((times.of(75, 2), times.of(100, 8)), (2.5, 8.0));
        assert_eq!(times.of(25, 1), 4.0, "half of the smallest share");
    }

    #[test]
    fn what_cannot_be_is_a_sentence() {
        let said = |points: &[(u32, u32, f64)]| ShareTimes::new(points.iter().copied(), 0.0).unwrap_err();
        assert_eq!(said(&[]), "nothing was measured");
        assert!(said(&[(120, 1, 1.0)]).starts_with("a share of 120 %"));
        assert!(said(&[(50, 0, 1.0)]).starts_with("a batch of 0"));
        assert!(said(&[(50, 1, f64::NAN)]).contains("takes NaN s"));
        assert!(said(&[(50, 1, 1.0), (50, 1, 2.0)]).starts_with("a batch size is there twice"));
    }
}
