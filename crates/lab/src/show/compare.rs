//! What is worked out from the results of several policies: how one does against another, or against the best of the
//! others, at each point of a sweep, and what that comes to over all of them.

use crate::run::campaign::PointOutcome;
use crate::show::claim::matches;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A ratio to nothing counts as this: it would else decide every mean.
const MOST: f64 = 10.0;

/// `[[compare]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Compare {
    /// How claims and plots name it.
    pub id: String,
    /// What it says, as the heading of a line of the table.
    pub title: String,
    /// The policy that is looked at.
    pub of: String,
    /// The policy that it is set against; absent: the best of all others at each point.
    pub to: Option<String>,
    /// The policies that the best is taken of; empty: all others.
    #[serde(default)]
    pub among: Vec<String>,
    /// Which figure.
    #[serde(default = "goodput")]
    pub value: String,
    /// Less is better: the ratio is turned over.
    #[serde(default)]
    pub less_is_better: bool,
    /// The figure is a part of all requests: those that are left are compared.
    #[serde(default)]
    pub complement: bool,
    /// Only at these points of the sweep.
    #[serde(default)]
    pub at: BTreeMap<String, toml::Value>,
    /// Also apart for each value of these keys of the sweep.
    #[serde(default)]
    pub by: Vec<String>,
    /// Thresholds: which part of the points reaches each.
    #[serde(default)]
    pub at_least: Vec<f64>,
}

fn goodput() -> String {
    "goodput_rps".into()
}

/// One point of the sweep.
#[derive(Clone, Debug)]
pub struct Ratio<'a> {
    /// Where.
    pub point: &'a Map<String, Value>,
    /// Against whom.
    pub to: &'a str,
    /// What it comes to; above 1 the policy that is looked at is better.
    pub ratio: f64,
}

/// What ratios come to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatioSummary {
    /// At how many points.
    pub points: usize,
    /// The geometric mean.
    pub mean: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Compare {
    /// The ratio at each point where both sides are known and one of them is not nothing, in the order of the results.
    pub fn ratios<'a>(&self, outcomes: &'a [PointOutcome]) -> Vec<Ratio<'a>> {
        let mut by_point: BTreeMap<String, Vec<&'a PointOutcome>> = BTreeMap::new();
        for outcome in outcomes {
            by_point.entry(place(&outcome.point)).or_default().push(outcome);
        }
        let own = outcomes.iter().filter(|outcome| outcome.policy == self.of && matches(outcome, &self.at));
        own.filter_map(|own| self.ratio(own, &by_point[&place(&own.point)])).collect()
    }

    fn ratio<'a>(&self, own: &'a PointOutcome, there: &[&'a PointOutcome]) -> Option<Ratio<'a>> {
        let rival = |outcome: &&&'a PointOutcome| match &self.to {
            Some(to) => outcome.policy == *to,
            None if self.among.is_empty() => outcome.policy != self.of,
            None => outcome.policy != self.of && self.among.contains(&outcome.policy),
        };
        let known = there.iter().filter(rival).filter_map(|outcome| Some((*outcome, self.worth(outcome)?)));
        let (best, worth) = known.max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        let ours = self.worth(own)?;
        if ours <= 0.0 && worth <= 0.0 {
            return None;
        }
        let ratio = if worth > 0.0 { (ours / worth).min(MOST) } else { MOST };
        Some(Ratio { point: &own.point, to: &best.policy, ratio })
    }

    /// The figure, turned so that more is better.
    fn worth(&self, outcome: &PointOutcome) -> Option<f64> {
        let figure = outcome.figure(&self.value);
        match figure {
            Some(figure) if self.complement => Some(1.0 - figure),
            Some(figure) if self.less_is_better => Some(if figure > 0.0 { 1.0 / figure } else { 0.0 }),
            // What was searched for and not found is nothing.
            None if self.less_is_better => Some(0.0),
            figure => figure,
        }
    }

    /// The number of this name: `mean`, `min`, `max`, `points`, or `at_least 0.95`, which is a part of the points.
    pub fn figure(&self, name: &str, outcomes: &[PointOutcome]) -> Option<f64> {
        let ratios: Vec<f64> = self.ratios(outcomes).iter().map(|ratio| ratio.ratio).collect();
        let summary = RatioSummary::of(&ratios)?;
        match name {
            "mean" => Some(summary.mean),
            "min" => Some(summary.min),
            "max" => Some(summary.max),
            "points" => Some(summary.points as f64),
            other => Some(reach(&ratios, other.strip_prefix("at_least ")?.parse().ok()?)),
        }
    }

    /// The lines of a table about it: one for all points, one for each value of each key of `by`.
    pub(crate) fn cells(&self, outcomes: &[PointOutcome]) -> Vec<Vec<String>> {
        let ratios = self.ratios(outcomes);
        let mut lines = vec![self.line(self.title.clone(), &ratios.iter().collect::<Vec<_>>())];
        for key in &self.by {
            let short = key.rsplit('.').next().unwrap_or(key);
            let mut values: Vec<&Value> = Vec::new();
            for value in ratios.iter().filter_map(|ratio| ratio.point.get(key)) {
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            for value in values {
                let there: Vec<&Ratio<'_>> =
                    ratios.iter().filter(|ratio| ratio.point.get(key) == Some(value)).collect();
                lines.push(self.line(format!("... {short} {}", crate::show::table::shown(value)), &there));
            }
        }
        lines
    }

    fn line(&self, title: String, ratios: &[&Ratio<'_>]) -> Vec<String> {
        let numbers: Vec<f64> = ratios.iter().map(|ratio| ratio.ratio).collect();
        let Some(summary) = RatioSummary::of(&numbers) else { return vec![title, "0".into()] };
        let worst = ratios.iter().min_by(|a, b| a.ratio.total_cmp(&b.ratio)).map_or("", |ratio| ratio.to);
        let mut line = vec![title, summary.points.to_string(), format!("{:.3}", summary.mean)];
        let against = if self.to.is_some() { String::new() } else { format!(" ({worst})") };
        line.push(format!("{:.3}{against}", summary.min));
        line.push(format!("{:.3}", summary.max));
        line.extend(self.at_least.iter().map(|&least| format!("{:.1} %", 100.0 * reach(&numbers, least))));
        line
    }

    /// The headings of that table.
    pub(crate) fn headings(&self) -> Vec<String> {
        let mut headings = ["", "points", "geometric mean", "smallest", "largest"].map(str::to_owned).to_vec();
        headings.extend(self.at_least.iter().map(|least| format!("at least {least}")));
        headings
    }
}

/// A point as text, to find it again.
fn place(point: &Map<String, Value>) -> String {
    Value::Object(point.clone()).to_string()
}

/// The part of them that is at least this.
fn reach(ratios: &[f64], least: f64) -> f64 {
    ratios.iter().filter(|&&ratio| ratio >= least).count() as f64 / ratios.len().max(1) as f64
}

impl RatioSummary {
    fn of(ratios: &[f64]) -> Option<Self> {
        if ratios.is_empty() {
            return None;
        }
        // A ratio of 0 would make the mean 0 whatever the others are, and so it should.
        let logs: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
        Some(Self {
            points: ratios.len(),
            mean: (logs / ratios.len() as f64).exp(),
            min: ratios.iter().copied().fold(f64::INFINITY, f64::min),
            max: ratios.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcomes() -> Vec<PointOutcome> {
        let entry = |policy: &str, slo: f64, goodput: f64| PointOutcome {
            policy: policy.into(),
            point: json!({"slo_ms": slo}).as_object().unwrap().clone(),
            figures: json!({"goodput_rps": goodput}),
            took_s: 0.0,
        };
        vec![
            entry("ours", 10.0, 200.0),
            entry("ours", 20.0, 100.0),
            entry("ours", 30.0, 0.0),
            entry("a", 10.0, 100.0),
            entry("a", 20.0, 50.0),
            entry("a", 30.0, 0.0),
            entry("b", 10.0, 50.0),
            entry("b", 20.0, 200.0),
            entry("b", 30.0, 0.0),
        ]
    }

    fn compare(more: &str) -> Compare {
        toml::from_str(&format!("id = 'x'\ntitle = 'ours'\nof = 'ours'\nat_least = [0.6, 2]\n{more}")).unwrap()
    }

    #[test]
    fn the_best_of_the_others_is_another_at_each_point() {
        let outcomes = outcomes();
        let best = compare("");
        let ratios: Vec<(f64, &str)> = best.ratios(&outcomes).iter().map(|ratio| (ratio.ratio, ratio.to)).collect();
        assert_eq!(ratios, [(2.0, "a"), (0.5, "b")], "where nobody carries anything there is nothing to compare");
        assert_eq!(best.figure("mean", &outcomes), Some(1.0));
        assert_eq!(best.figure("min", &outcomes), Some(0.5));
        assert_eq!(best.figure("at_least 0.6", &outcomes), Some(0.5));
        assert_eq!(best.figure("at_most 3", &outcomes), None);
    }

    #[test]
    fn one_can_be_named_and_less_can_be_better() {
        let outcomes = outcomes();
        assert_eq!(compare("to = 'a'").figure("min", &outcomes), Some(2.0));
        assert_eq!(compare("among = ['b']").figure("max", &outcomes), Some(4.0));
        let fewer = compare("to = 'a'\nless_is_better = true");
        assert_eq!(fewer.figure("max", &outcomes), Some(0.5));
        assert_eq!(compare("at = { slo_ms = 20 }").figure("points", &outcomes), Some(1.0));
        let bad = |policy: &str, bad: f64| PointOutcome {
            policy: policy.into(),
            point: Map::new(),
            figures: json!({"bad_at": {"0.9": bad}}),
            took_s: 0.0,
        };
        let outcomes = [bad("ours", 0.01), bad("a", 0.0), bad("b", 0.02)];
        let answered = compare("value = 'bad_at.0.9'\ncomplement = true");
        assert_eq!(answered.figure("min", &outcomes), Some(0.99), "against the one that loses nothing");
    }

    #[test]
    fn lines_are_told_apart_by_key() {
        let lines = compare("by = ['slo_ms']").cells(&outcomes());
        let first: Vec<&str> = lines.iter().map(|line| line[0].as_str()).collect();
        assert_eq!(first, ["ours", "... slo_ms 10.0", "... slo_ms 20.0"]);
        assert_eq!(lines[0][1..], ["2", "1.000", "0.500 (b)", "2.000", "50.0 %", "50.0 %"]);
    }
}
