//! What a paper says, what we take that to ask for, and what we measure. The three are kept apart: a paper's "nearly
//! all" has no number, and the one that we choose is ours.

use crate::run::campaign::PointOutcome;
use crate::show::compare::Compare;
use crate::show::plot::series;
use serde::Deserialize;
use std::collections::BTreeMap;

/// `[[claim]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What the paper says, in a few words, with its number where it has one.
    pub says: String,
    /// The figure: `goodput_rps`, `models.minor.p99_ms`; with `over_s`, one of a series: `minor.mean_ms`; of a
    /// comparison: `compare.ID.mean`, `min`, `max`, or `compare.ID.at_least 0.95`.
    pub value: String,
    /// Which policy; absent: the first.
    pub policy: Option<String>,
    /// The figure is divided by this policy's at the same point.
    pub relative_to: Option<String>,
    /// Which point of the sweep; a latency by its name.
    #[serde(default)]
    pub at: BTreeMap<String, toml::Value>,
    /// The figure is divided by the one at this other point of the sweep.
    pub relative_at: Option<BTreeMap<String, toml::Value>>,
    /// From which second to which; the mean of the series, unless `pick` says otherwise.
    pub over_s: Option<(f64, f64)>,
    /// How a series becomes a number.
    #[serde(default)]
    pub pick: Pick,
    /// The figure is multiplied by this (100 for per cent).
    #[serde(default = "one")]
    pub times: f64,
    /// The number that we take this to ask for.
    pub want: f64,
    /// How ours should compare with it.
    pub holds: Holds,
    /// The unit of both.
    #[serde(default)]
    pub unit: String,
    /// Why they differ, where they do.
    #[serde(default)]
    pub note: String,
}

/// How a series becomes a number.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pick {
    /// Its mean.
    #[default]
    Mean,
    /// Its largest value.
    Max,
    /// Its smallest value.
    Min,
    /// Its largest value over its smallest.
    MaxOverMin,
}

/// How our number should compare with the wanted one.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// Not more.
    AtMost,
    /// Not less.
    AtLeast,
    /// Within that part of it.
    Within(f64),
}

fn one() -> f64 {
    1.0
}

impl Claim {
    /// Our number, if the results have it.
    pub fn ours(&self, outcomes: &[PointOutcome], compares: &[Compare]) -> Option<f64> {
        if let Some(path) = self.value.strip_prefix("compare.") {
            let (id, name) = path.split_once('.')?;
            let compare = compares.iter().find(|compare| compare.id == id)?;
            return compare.figure(name, outcomes).map(|value| value * self.times);
        }
        let value = self.figure(outcomes, self.policy.as_deref(), &self.at)?;
        let mut whole = 1.0;
        if self.relative_to.is_some() || self.relative_at.is_some() {
            let policy = self.relative_to.as_deref().or(self.policy.as_deref());
            whole = self.figure(outcomes, policy, self.relative_at.as_ref().unwrap_or(&self.at))?;
        }
        (whole != 0.0).then_some(value / whole * self.times)
    }

    fn figure(
        &self,
        outcomes: &[PointOutcome],
        policy: Option<&str>,
        at: &BTreeMap<String, toml::Value>,
    ) -> Option<f64> {
        let there =
            |outcome: &&PointOutcome| policy.is_none_or(|policy| outcome.policy == policy) && matches(outcome, at);
        let outcome = outcomes.iter().find(there)?;
        let Some((from, to)) = self.over_s else { return outcome.figure(&self.value) };
        let values =
            series(outcome, &self.value).into_iter().filter(|(at, _)| (from..to).contains(at)).map(|(_, value)| value);
        let (count, sum, low, high) = values
            .fold((0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY), |(count, sum, low, high), value| {
                (count + 1.0, sum + value, f64::min(low, value), f64::max(high, value))
            });
        let picked = match self.pick {
            Pick::Mean => sum / count,
            Pick::Max => high,
            Pick::Min => low,
            Pick::MaxOverMin => high / low,
        };
        (count > 0.0 && picked.is_finite()).then_some(picked)
    }

    /// Whether that number is as wanted.
    pub fn agrees(&self, ours: f64) -> bool {
        match self.holds {
            Holds::AtMost => ours <= self.want,
            Holds::AtLeast => ours >= self.want,
            Holds::Within(part) => (ours - self.want).abs() <= part * self.want.abs(),
        }
    }

    /// The wanted number in words.
    pub fn wanted(&self) -> String {
        let number = shortened(self.want);
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        match self.holds {
            Holds::AtMost => format!("at most {number}{unit}"),
            Holds::AtLeast => format!("at least {number}{unit}"),
            Holds::Within(_) => format!("about {number}{unit}"),
        }
    }

    /// Our number in words.
    pub fn found(&self, ours: f64) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        format!("{}{unit}", shortened(ours))
    }
}

/// Whether an outcome is at a point of the sweep: numbers however they are written, everything else as it is shown.
pub(crate) fn matches(outcome: &PointOutcome, at: &BTreeMap<String, toml::Value>) -> bool {
    at.iter().all(|(key, wanted)| {
        let number = wanted.as_float().or(wanted.as_integer().map(|integer| integer as f64));
        match (number, outcome.figure(key)) {
            (Some(wanted), Some(found)) => (found - wanted).abs() < 1e-9,
            (Some(_), None) => false,
            (None, _) => outcome.point.get(key).is_some_and(|found| *found == serde_json::json!(wanted)),
        }
    })
}

/// At most two decimals, none for large numbers.
fn shortened(value: f64) -> String {
    if value.abs() >= 1000.0 {
        return format!("{value:.0}");
    }
    let text = format!("{value:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim(text: &str) -> Claim {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn numbers_are_found_at_points_and_over_time() {
        let outcome = |slo: f64, goodput: f64| PointOutcome {
            policy: "clockwork".into(),
            took_s: 0.0,
            point: json!({"slo_ms": slo, "kind": "weak"}).as_object().unwrap().clone(),
            figures: json!({"goodput_rps": goodput, "series": {"minor": [{"at_s": 0.0, "mean_ms": 4.0}, {"at_s": 60.0, "mean_ms": 8.0}]}}),
        };
        let outcomes = [outcome(10.0, 500.0), outcome(500.0, 830.0)];
        let at = claim(
            "says = 's'\nvalue = 'goodput_rps'\nat = { slo_ms = 500, kind = 'weak' }\nwant = 800\nholds = { within = 0.05 }\nunit = 'r/s'",
        );
        assert_eq!(at.ours(&outcomes, &[]), Some(830.0));
        assert!(at.agrees(830.0) && !at.agrees(845.0));
        assert_eq!((at.wanted(), at.found(830.04)), ("about 800 r/s".into(), "830.04 r/s".into()));
        let over = claim("says = 's'\nvalue = 'minor.mean_ms'\nover_s = [0, 61]\nwant = 5\nholds = 'at_most'");
        assert_eq!(over.ours(&outcomes, &[]), Some(6.0));
        assert!(!over.agrees(6.0));
        let nothing = claim("says = 's'\nvalue = 'minor.mean_ms'\nover_s = [100, 200]\nwant = 5\nholds = 'at_most'");
        assert_eq!(nothing.ours(&outcomes, &[]), None);
        let policy = claim("says = 's'\nvalue = 'goodput_rps'\npolicy = 'nobody'\nwant = 5\nholds = 'at_most'");
        assert_eq!(policy.ours(&outcomes, &[]), None);
        let part = "says = 's'\nvalue = 'goodput_rps'\nat = { slo_ms = 10 }\nrelative_at = { slo_ms = 500 }\ntimes = 83\nwant = 5\nholds = 'at_most'";
        let ours = claim(part).ours(&outcomes, &[]).unwrap();
        assert!((ours - 50.0).abs() < 1e-9, "{ours}");
    }
}
