//! The highest rate with few enough bad requests, in as few and as short runs as will do.
//!
//! The part of bad requests rises steeply with the rate, and nearly as a power of it. So the search climbs a ladder:
//! short runs find where about the boundary lies, longer ones find it more closely, and only around that point are runs
//! of full length made. Each next rate is where the line through the last two results, both axes logarithmic, meets the
//! wanted part of bad requests, kept inside the bracket that is known so far.
//!
//! ```text
//!  bad │                 ╱×       a rate counts as found when
//!      │               ╱×           - it passes, and one at most `tolerance` above it fails, or
//!  1 % ├─────────────╳─             - it passes, and the line says that the boundary is at most half of that above it
//!      │           ╱×
//!      └──────────────────> rate
//! ```

use crate::LabError;

/// How much a run costs and says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RunEffort {
    /// A few seconds of one seed.
    Glance,
    /// A part of one seed.
    Look,
    /// All seeds for as long as the file says: what is reported.
    Full,
}

impl RunEffort {
    /// How closely the boundary is found on this rung, given the tolerance of the whole search.
    fn precision(self, tolerance: f64) -> f64 {
        match self {
            Self::Glance => tolerance.max(0.05),
            // Closely, because a run of full length costs a dozen of these.
            Self::Look => tolerance * 1.5,
            Self::Full => tolerance,
        }
    }
}

/// What is looked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    /// The largest part of bad requests.
    pub(crate) max_bad: f64,
    /// The relative precision.
    pub(crate) tolerance: f64,
    /// No rate above can pass.
    pub(crate) ceiling: f64,
}

/// What a run at one rate showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateResult {
    /// The part of bad requests; of those up to then, where the run was given up.
    pub(crate) bad: f64,
    /// Whether few enough were bad.
    pub(crate) passes: bool,
}

/// The part of the ceiling at which a search begins.
const FIRST_GUESS: f64 = 0.8;
/// How steep bad requests are taken to rise before two runs have shown it: the exponent of the rate.
const USUAL_SLOPE: f64 = 15.0;
/// Slopes outside are the accidents of short runs.
const SLOPES: (f64, f64) = (2.0, 300.0);
/// Rates below count as nothing.
const NOTHING: f64 = 1e-3;
/// So far above a rate that was found the first rung looks once more.
const BEYOND: [f64; 3] = [1.15, 1.4, 1.8];
/// A rung ends after so many tries, wherever it is; far more than any curve has needed.
const MAX_TRIES: u32 = 60;

/// A policy that loses so many times `max_bad` at a rate below the one that was found doesn't carry what is above
/// either.
const COLLAPSED: f64 = 1.1;
/// Below means at most this part: nearer to the edge of a cliff chance decides between all and nothing.
const BELOW: f64 = 0.98;

/// The highest rate that passes at full effort, or `None` where not even a trickle does.
pub(crate) fn highest_rate(
    goal: Goal,
    ladder: &[RunEffort],
    mut run: impl FnMut(RunEffort, f64) -> Result<RateResult, LabError>,
) -> Result<Option<f64>, LabError> {
    let mut start = goal.ceiling * FIRST_GUESS;
    let mut slope = None;
    let mut found = None;
    for (index, &effort) in ladder.iter().enumerate() {
        let mut rung =
            Rung { goal, precision: effort.precision(goal.tolerance), low: None, high: None, slope, tries: 0 };
        rung.climb(start, effort, &mut run)?;
        // Not every curve rises all the way: where loading weights or timeouts matter, more load can mean fewer bad
        // ones.
        let beyond = |low: f64| BEYOND.map(|factor| low * factor).into_iter().filter(|&rate| rate < goal.ceiling);
        while let Some((low, _)) = rung.low.filter(|_| index == 0) {
            let mut higher = None;
            for rate in beyond(low) {
                if run(effort, rate)?.passes {
                    higher = Some(rate);
                    break;
                }
            }
            let Some(higher) = higher else { break };
            rung = Rung { low: None, high: None, tries: 0, ..rung };
            rung.climb(higher, effort, &mut run)?;
        }
        slope = rung.slope;
        found = rung.low.map(|(rate, _)| rate);
        start = rung.boundary(goal.tolerance);
    }
    Ok(found)
}

/// A rate below the one that was found is too much.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Collapse {
    /// The lowest such rate.
    pub(crate) collapses_at: f64,
    /// Which of the rates that were looked at is the highest below.
    pub(crate) holds: Option<usize>,
}

/// Whether what was found still holds once other rates, ascending, were looked at, each with its part of bad requests.
pub(crate) fn collapse(found: f64, max_bad: f64, points: &[(f64, f64)]) -> Option<Collapse> {
    let below = points.iter().take_while(|(rate, _)| *rate <= found * BELOW);
    let index = below.into_iter().position(|(_, bad)| is_too_much(*bad, max_bad))?;
    Some(Collapse { collapses_at: points[index].0, holds: index.checked_sub(1) })
}

/// Whether that part of bad requests, below a rate that was found, is more than chance.
pub(crate) fn is_too_much(bad: f64, max_bad: f64) -> bool {
    bad > max_bad * COLLAPSED
}

/// The smallest number of devices that passes at full effort; `None` where `most` are too few.
pub(crate) fn fewest_devices(
    first: u32,
    most: u32,
    mut run: impl FnMut(RunEffort, u32) -> Result<RateResult, LabError>,
) -> Result<Option<u32>, LabError> {
    let about = fewest(first.clamp(1, most), most, 8, |count| run(RunEffort::Look, count))?.unwrap_or(most);
    fewest(about, most, 1, |count| run(RunEffort::Full, count))
}

/// The smallest count that passes, near `first`: in steps of a `part` of it (of one where that is 1), then by halves.
fn fewest(
    first: u32,
    most: u32,
    part: u32,
    mut run: impl FnMut(u32) -> Result<RateResult, LabError>,
) -> Result<Option<u32>, LabError> {
    let step = |count: u32| if part == 1 { 1 } else { (count / part).max(1) };
    let (mut fails, mut passes) = (0, None);
    let mut count = first;
    loop {
        if run(count)?.passes {
            passes = Some(count);
        } else {
            fails = fails.max(count);
        }
        count = match passes {
            None if count >= most => return Ok(None),
            None => (count + step(count)).min(most),
            Some(passing) if passing - fails <= 1 => return Ok(Some(passing)),
            Some(passing) if fails == 0 => passing - step(passing).min(passing - 1),
            Some(passing) => fails + (passing - fails) / 2,
        };
    }
}

/// One rung of the ladder: what is known so far from runs of equal effort.
struct Rung {
    goal: Goal,
    precision: f64,
    /// The highest rate that passed and the lowest that failed, each with its part of bad requests.
    low: Option<(f64, f64)>,
    high: Option<(f64, f64)>,
    /// How steep bad requests rise, if two runs have shown it.
    slope: Option<f64>,
    tries: u32,
}

impl Rung {
    /// Tries rates from `start` on until the boundary is known.
    fn climb(
        &mut self,
        start: f64,
        effort: RunEffort,
        run: &mut impl FnMut(RunEffort, f64) -> Result<RateResult, LabError>,
    ) -> Result<(), LabError> {
        let mut rate = Some(start);
        while let Some(at) = rate {
            let seen = run(effort, at)?;
            rate = self.next(at, seen);
        }
        Ok(())
    }

    /// Takes in a result; the rate to try next, unless this rung is done.
    fn next(&mut self, rate: f64, seen: RateResult) -> Option<f64> {
        self.learn_slope(rate, seen.bad);
        if seen.passes {
            if self.low.is_none_or(|(low, _)| rate > low) {
                self.low = Some((rate, seen.bad));
            }
        } else if self.high.is_none_or(|(high, _)| rate < high) {
            self.high = Some((rate, seen.bad));
        }
        // A higher rate may pass where a lower one failed: what is above the highest that passes counts.
        if let (Some((low, _)), Some((high, _))) = (self.low, self.high)
            && high <= low
        {
            self.high = None;
        }
        self.tries += 1;
        if self.is_done() { None } else { Some(self.guess()) }
    }

    fn learn_slope(&mut self, rate: f64, bad: f64) {
        let pairs = [self.low, self.high].into_iter().flatten();
        let near = pairs.filter(|&(at, had)| at != rate && had > 0.0 && had < 0.5 && (at / rate - 1.0).abs() < 0.2);
        let nearest = near.min_by(|a, b| (a.0 - rate).abs().total_cmp(&(b.0 - rate).abs()));
        if let Some((at, had)) = nearest
            && bad > 0.0
            && bad < 0.5
        {
            let slope = (bad / had).ln() / (rate / at).ln();
            // Two runs at nearly one rate say little about the slope.
            if (at / rate - 1.0).abs() > 0.002 || self.slope.is_none() {
                self.slope = Some(slope.clamp(SLOPES.0, SLOPES.1));
            }
        }
    }

    fn is_done(&self) -> bool {
        if self.tries >= MAX_TRIES {
            return true;
        }
        match (self.low, self.high) {
            (Some((low, _)), _) if low >= self.goal.ceiling => true,
            (Some((low, _)), Some((high, _))) if high <= low * (1.0 + self.precision) => true,
            (None, Some((high, _))) => high < NOTHING,
            // The line may be wrong by a factor of two, and the result is still precise enough.
            (Some((_, bad)), _) => {
                self.slope.is_some_and(|slope| (self.goal.max_bad / bad).ln() / slope <= self.precision / 2.0)
            }
            (None, None) => false,
        }
    }

    /// A rate that should just pass with that precision.
    fn boundary(&self, precision: f64) -> f64 {
        let slope = self.slope.unwrap_or(USUAL_SLOPE);
        let target = self.goal.max_bad * (-slope * precision / 4.0).exp();
        match (self.low, self.high) {
            (Some((low, bad)), high) if bad > 0.0 => {
                let most = high.map_or(self.goal.ceiling, |(high, _)| high);
                (low * (target / bad).powf(1.0 / slope)).clamp(low * (1.0 - precision), most)
            }
            (Some((low, _)), Some((high, _))) => (low * high).sqrt(),
            (Some((rate, _)), None) | (None, Some((rate, _))) => rate,
            (None, None) => self.goal.ceiling,
        }
    }

    fn guess(&self) -> f64 {
        let slope = self.slope.unwrap_or(USUAL_SLOPE);
        // A little below the boundary, so that the run passes and is near enough to be the last.
        let target = self.goal.max_bad * (-slope * self.precision / 4.0).exp();
        let meets = |(rate, bad): (f64, f64)| rate * (target / bad.max(1e-9)).powf(1.0 / slope);
        match (self.low, self.high) {
            (Some(low), Some(high)) => {
                let width = high.0 / low.0;
                let inside = (low.0 * width.powf(0.15), low.0 * width.powf(0.85));
                let middle = (low.0 * high.0).sqrt();
                // Every third time the middle, lest a curve that isn't a line keeps one end where it is.
                if low.1 <= 0.0 || self.tries.is_multiple_of(3) { middle } else { meets(low).clamp(inside.0, inside.1) }
            }
            (Some(low), None) => {
                let up = if low.1 > 0.0 { meets(low) / low.0 } else { 1.5 };
                (low.0 * up.clamp(1.0 + self.precision, 1.5)).min(self.goal.ceiling)
            }
            (None, Some(high)) if high.1 > 0.05 => {
                // Where much more is asked than can be done, what was done is near the boundary.
                high.0 * (1.0 - high.1).clamp(0.3, 0.97)
            }
            (None, Some(high)) => high.0 * (meets(high) / high.0).clamp(0.5, 1.0 - self.precision / 2.0),
            (None, None) => self.goal.ceiling,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LADDER: [RunEffort; 3] = [RunEffort::Glance, RunEffort::Look, RunEffort::Full];

    /// Searches a made-up curve; the rate found and how many runs of full effort it took.
    fn search(curve: impl Fn(RunEffort, f64) -> f64) -> (Option<f64>, u32) {
        let mut full = 0;
        let goal = Goal { max_bad: 0.01, tolerance: 0.005, ceiling: 1000.0 };
        let found = highest_rate(goal, &LADDER, |effort, rate| {
            full += u32::from(effort == RunEffort::Full);
            let bad = curve(effort, rate);
            Ok(RateResult { bad, passes: bad <= goal.max_bad })
        });
        (found.unwrap(), full)
    }

    #[test]
    fn powers_of_the_rate_are_found_in_a_few_runs() {
        for slope in [3.0, 10.0, 40.0, 150.0] {
            for boundary in [3.0, 120.0, 555.0, 940.0] {
                let (found, full) = search(|_, rate| (0.01 * (rate / boundary).powf(slope)).min(1.0));
                let found = found.unwrap();
                assert!(found <= boundary && found >= boundary * 0.995, "{found} for {boundary}, slope {slope}");
                assert!(full <= 4, "{full} full runs for {boundary}, slope {slope}");
            }
        }
    }

    #[test]
    fn short_runs_may_be_wrong() {
        for error in [0.7, 0.95, 1.1, 1.6] {
            let boundary = |effort| if effort == RunEffort::Full { 400.0 } else { 400.0 * error };
            let (found, full) = search(|effort, rate| (0.01 * (rate / boundary(effort)).powf(25.0)).min(1.0));
            let found = found.unwrap();
            assert!((398.0..=400.0).contains(&found), "{found} after an error of {error}");
            assert!(full <= 9, "{full} full runs");
        }
    }

    #[test]
    fn cliffs_and_flat_tops_are_found_too() {
        let (cliff, full) = search(|_, rate| if rate > 321.0 { 0.9 } else { 0.0 });
        assert!((321.0 * 0.995..=321.0).contains(&cliff.unwrap()) && full <= 10, "{cliff:?} in {full}");
        // What is asked beyond capacity is refused, nothing else.
        let (top, _) = search(|_, rate| (1.0 - 500.0 / rate).max(0.0));
        let top = top.unwrap();
        assert!((500.0 / 0.99 * 0.995..=500.0 / 0.99 + 1e-9).contains(&top), "{top}");
    }

    #[test]
    fn a_dip_in_the_curve_is_looked_over() {
        // From 300 to 330 too many are bad, from 330 to 600 few enough.
        let saw = |_, rate: f64| if rate > 600.0 || (300.0..330.0).contains(&rate) { 0.03 } else { 0.004 };
        let found = search(saw).0.unwrap();
        assert!((600.0 * 0.995..=600.0).contains(&found), "{found}");
    }

    #[test]
    fn nothing_and_everything_end_the_search() {
        assert_eq!(search(|_, _| 1.0).0, None);
        assert_eq!(search(|_, _| 0.0).0, Some(1000.0));
    }

    #[test]
    fn a_collapse_below_the_peak_is_seen() {
        let collapse =
            |bad: [f64; 4]| collapse(100.0, 0.01, &[(60.0, bad[0]), (90.0, bad[1]), (99.0, bad[2]), (105.0, bad[3])]);
        assert_eq!(collapse([0.0, 0.004, 0.009, 0.5]), None);
        assert_eq!(collapse([0.0, 0.0105, 0.5, 0.5]), None, "chance, and the edge");
        assert_eq!(collapse([0.0, 0.3, 0.0, 0.5]), Some(Collapse { collapses_at: 90.0, holds: Some(0) }));
        assert_eq!(collapse([0.2, 0.3, 0.0, 0.5]), Some(Collapse { collapses_at: 60.0, holds: None }));
    }

    #[test]
    fn devices_are_counted_exactly() {
        for (first, needed, short) in [(1, 1, 1), (10, 25, 24), (40, 7, 9), (25, 25, 25), (3, 100, 100), (20, 6, 2)] {
            let mut full = 0;
            let found = fewest_devices(first, 200, |effort, count| {
                full += u32::from(effort == RunEffort::Full);
                let passes = count >= if effort == RunEffort::Full { needed } else { short };
                Ok(RateResult { bad: if passes { 0.0 } else { 0.1 }, passes })
            });
            assert_eq!(found.unwrap(), Some(needed), "from {first}");
            assert!(full <= 2 + needed.abs_diff(short), "{full} full runs");
        }
        let never = fewest_devices(5, 50, |_, _| Ok(RateResult { bad: 1.0, passes: false }));
        assert_eq!(never.unwrap(), None);
    }
}
