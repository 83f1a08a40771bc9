//! Which number of rows a model should be prepared for besides: pure code.
//!
//! An engine that prepares sizes computes a batch in the next one. Two things cost device time that a size between two
//! of them saves:
//!
//! ```text
//!  rounded up   ▓▓▓▓▓▓▓▓▓░░░░░░░      9 rows take what 16 take
//!  cut down     ▓▓▓▓▓▓▓▓ │  ▓▓▓▓      12 wait, and 16 take longer than the first of them has: 8 are computed, each of
//!                                     which takes longer than in 12
//! ```

use base::{Duration, LatencyProfile};
use std::collections::{BTreeMap, BTreeSet};

/// A size is added from this part of the model's device time on. What it costs is one start of a model: some seconds
/// of a host's core and a third of a second of a device that would have been idle. A device that is busy for a tenth of
/// its time has that back within minutes. Above it is what differs between two measurements of the same kernel, a
/// hundredth or so.
pub(crate) const WORTH_ADDING: f64 = 0.02;
/// A size that was added goes, when the model is brought up the next time, if it saves less than this.
const WORTH_KEEPING: f64 = WORTH_ADDING / 4.0;
/// So many executions are enough to know how many rows they have.
const ENOUGH_EXECUTIONS: f64 = 100.0;
/// Larger batches answer more only while requests are lost for want of time: from this part of them on, a tenth of what
/// is taken for a model's capacity elsewhere (`max_bad`).
const SHORT: f64 = 0.001;

/// What came lately: numbers that count less and less, the older they are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lately {
    /// How many executions had how many rows.
    pub(crate) executions: BTreeMap<u32, f64>,
    /// Requests that ended.
    pub(crate) ended: f64,
    /// Those of them that devices had no time for.
    pub(crate) lost: f64,
    /// How many devices the model uses when all are busy.
    pub(crate) devices: f64,
}

impl Lately {
    /// Executions that were cut down to a size run in a larger one from now on, which was added.
    pub(crate) fn added(&mut self, below: u32, size: u32) {
        if self.is_short()
            && let Some(cut) = self.executions.remove(&below)
        {
            *self.executions.entry(size).or_default() += cut * f64::from(below) / f64::from(size);
        }
    }

    fn is_short(&self) -> bool {
        self.lost > SHORT * self.ended
    }
}

/// A size that a model should be prepared for, too.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct WorthwhileSize {
    pub(crate) rows: u32,
    /// The part of the model's device time that it saves.
    pub(crate) saves: f64,
}

/// The size that saves most, if it saves enough: not one of those that were in vain.
pub(crate) fn most_worth(
    profile: &LatencyProfile,
    lately: &Lately,
    objective: Option<Duration>,
    in_vain: &BTreeSet<u32>,
) -> Option<WorthwhileSize> {
    if lately.executions.values().sum::<f64>() < ENOUGH_EXECUTIONS {
        return None;
    }
    let gaps = profile.batches().windows(2).flat_map(|pair| pair[0].batch + 1..pair[1].batch);
    let sizes = gaps.filter(|rows| !in_vain.contains(rows));
    let all = sizes.map(|rows| WorthwhileSize { rows, saves: saved(profile, lately, objective, rows) });
    // Of equals the first.
    let best = all.reduce(|best, other| if other.saves > best.saves { other } else { best });
    best.filter(|best| best.saves >= WORTH_ADDING)
}

/// Those of the sizes that were added which still save something.
pub(crate) fn still_worth(
    profile: &LatencyProfile,
    lately: &Lately,
    objective: Option<Duration>,
    added: &[u32],
) -> Vec<u32> {
    let known = lately.executions.values().sum::<f64>() >= ENOUGH_EXECUTIONS;
    let keeps = |&rows: &u32| !known || saved(profile, lately, objective, rows) >= WORTH_KEEPING;
    added.iter().copied().filter(keeps).collect()
}

/// The part of the device time that a size saves beside those of the profile, or saves as one of them.
pub(crate) fn saved(profile: &LatencyProfile, lately: &Lately, objective: Option<Duration>, rows: u32) -> f64 {
    let others = || profile.batches().iter().map(|entry| entry.batch).filter(|&batch| batch != rows);
    let (Some(below), Some(above)) = (others().rfind(|&size| size < rows), others().find(|&size| size > rows)) else {
        return 0.0;
    };
    let busy = |rows: u32| span(profile, rows, |entry| entry.median - entry.overlap);
    let size_of = |rows: u32| others().find(|&size| size >= rows).unwrap_or(profile.max_batch());
    let all: f64 = lately.executions.iter().map(|(&rows, count)| count * busy(size_of(rows))).sum();
    let rounded: f64 = lately.executions.range(below + 1..=rows).map(|(_, count)| count).sum();
    let less = rounded * (busy(above) - busy(rows));
    // Batches follow each other evenly on so many devices if one takes no longer than this (Symphony, section 3.3,
    // equation 1).
    let fits = objective.is_some_and(|objective| {
        let longest = objective.mul_f64(lately.devices / (lately.devices + 1.0)).as_secs_f64();
        span(profile, rows, |entry| entry.p99) <= longest
    });
    let cut = lately.executions.get(&below).filter(|_| fits && lately.is_short()).copied().unwrap_or(0.0);
    let quicker = cut * (busy(below) - busy(rows) * f64::from(below) / f64::from(rows)).max(0.0);
    if all > 0.0 { (less + quicker) / all } else { 0.0 }
}

/// What so many rows take, in seconds: of sizes that aren't prepared, what lies on the line between their neighbours.
fn span(profile: &LatencyProfile, rows: u32, of: fn(&base::BatchLatency) -> Duration) -> f64 {
    let batches = profile.batches();
    let at = batches.partition_point(|entry| entry.batch < rows).min(batches.len() - 1);
    let high = &batches[at];
    let Some(low) = at.checked_sub(1).map(|below| &batches[below]).filter(|_| rows < high.batch) else {
        return of(high).as_secs_f64();
    };
    let (from, to) = (of(low).as_secs_f64(), of(high).as_secs_f64());
    from + (to - from) * f64::from(rows - low.batch) / f64::from(high.batch - low.batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ResNet-50 on a GTX 1080Ti (Symphony, table 2), at these sizes.
    fn profile(sizes: &[u32]) -> LatencyProfile {
        let [alpha, beta] = [1_053, 5_072].map(Duration::from_micros);
        LatencyProfile::linear(alpha, beta, sizes, Duration::ZERO).unwrap()
    }

    fn lately(executions: &[(u32, u32)], lost: f64, devices: f64) -> Lately {
        let executions = executions.iter().map(|&(rows, count)| (rows, f64::from(count))).collect();
        Lately { executions, ended: 1_000.0, lost, devices }
    }

    const POWERS: [u32; 5] = [1, 2, 4, 8, 16];

    fn best(executions: &[(u32, u32)], lost: f64, devices: f64) -> Option<(u32, f64)> {
        let (objective, none) = (Some(Duration::from_millis(25)), BTreeSet::new());
        let best = most_worth(&profile(&POWERS), &lately(executions, lost, devices), objective, &none)?;
        Some((best.rows, (best.saves * 1000.0).round() / 1000.0))
    }

    #[test]
    fn the_size_that_saves_most_is_added() {
        assert_eq!(best(&[(9, 200)], 0.0, 8.0), Some((9, 0.336)), "9 rows take 14.5 ms, and 16 take 21.9");
        assert_eq!(best(&[(9, 50), (10, 50), (11, 50), (12, 50)], 0.0, 8.0), Some((12, 0.192)));
        assert_eq!(best(&[(9, 500), (12, 50)], 0.0, 8.0), Some((9, 0.306)), "nearly all have 9");
        assert_eq!(best(&[(3, 200), (16, 200)], 0.0, 8.0), Some((3, 0.034)), "of all that the model takes");
    }

    #[test]
    fn what_saves_little_or_is_not_known_is_not_added() {
        for executions in [&[(8, 200)][..], &[(16, 200), (1, 10)], &[(15, 20), (16, 200)], &[(9, 99)], &[]] {
            assert_eq!(best(executions, 0.0, 8.0), None, "{executions:?}");
        }
    }

    #[test]
    fn batches_that_are_cut_down_while_requests_are_lost_become_larger() {
        // With two devices a batch may take 16.7 ms: 16 rows take 21.9, and 11 take 16.66.
        assert_eq!(best(&[(8, 200)], 10.0, 2.0), Some((11, 0.102)));
        assert_eq!(best(&[(4, 200)], 10.0, 1.0), Some((7, 0.234)), "12.5 ms with one");
        assert_eq!(best(&[(8, 200)], 1.0, 2.0), None, "where nobody is lost, larger batches answer nobody");
    }

    #[test]
    fn without_an_objective_nothing_says_how_large_batches_should_be() {
        let lately = lately(&[(8, 200)], 10.0, 2.0);
        assert_eq!(most_worth(&profile(&POWERS), &lately, None, &BTreeSet::new()), None);
    }

    #[test]
    fn what_was_in_vain_is_not_added_again() {
        let (lately, objective) = (lately(&[(9, 200)], 0.0, 8.0), Some(Duration::from_millis(25)));
        let best = most_worth(&profile(&POWERS), &lately, objective, &BTreeSet::from([9]));
        assert_eq!(best.map(|best| best.rows), Some(10));
    }

    #[test]
    fn a_model_that_has_one_size_or_all_of_them_gets_no_other() {
        let lately = lately(&[(1, 200), (3, 100)], 10.0, 8.0);
        for sizes in [&[1][..], &[1, 2, 3, 4]] {
            let best = most_worth(&profile(sizes), &lately, Some(Duration::from_millis(25)), &BTreeSet::new());
            assert_eq!(best, None, "{sizes:?}");
        }
    }

    #[test]
    fn what_was_measured_counts_and_not_what_lies_between_its_neighbours() {
        let mut batches = profile(&[8, 12, 16]).batches().to_vec();
        // The kernels for 12 rows turned out to be as slow as those for 16.
        batches[1] = base::BatchLatency { batch: 12, ..batches[2] };
        let measured = LatencyProfile::new(batches, Duration::ZERO).unwrap();
        let of = |profile: &LatencyProfile| saved(profile, &lately(&[(12, 200)], 0.0, 8.0), None, 12);
        assert!((of(&profile(&[8, 12, 16])) - 0.192).abs() < 1e-3);
        assert!(of(&measured).abs() < 1e-9);
    }

    #[test]
    fn sizes_that_nobody_uses_go_unless_nothing_is_known() {
        let all = profile(&[1, 2, 4, 8, 10, 12, 16]);
        let kept = |executions: &[(u32, u32)]| still_worth(&all, &lately(executions, 0.0, 8.0), None, &[10, 12]);
        assert_eq!(kept(&[(10, 100), (16, 100)]), [10]);
        assert_eq!(kept(&[(16, 100), (9, 100), (11, 100)]), [10, 12]);
        assert_eq!(kept(&[(16, 50)]), [10, 12]);
    }

    #[test]
    fn what_was_cut_down_is_not_counted_again_once_there_is_a_size_for_it() {
        let objective = Some(Duration::from_millis(25));
        let mut lately = lately(&[(8, 200)], 10.0, 2.0);
        lately.added(8, 11);
        let best = most_worth(&profile(&[1, 2, 4, 8, 11, 16]), &lately, objective, &BTreeSet::new());
        assert_eq!(best, None);
    }
}
