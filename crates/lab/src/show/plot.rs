//! What an experiment draws: a figure against a key of its sweep or against time, as lines or bars; how often a ratio
//! is reached; batches on devices.

use crate::run::campaign::PointOutcome;
use crate::show::bars::{self, Bars};
use crate::show::claim::matches;
use crate::show::compare::Compare;
use crate::show::gantt::Gantt;
use crate::show::svg::{Axis, Chart, Line};
use crate::show::table::shown;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// `[[plot]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotConfig {
    /// The file's name, without `.svg`.
    pub name: String,
    /// The heading.
    pub title: String,
    /// How it is drawn.
    #[serde(default)]
    pub kind: PlotKind,
    /// A key of the sweep, or `time`; bars also `policy`.
    #[serde(default)]
    pub x: String,
    /// Under the x axis, with its unit.
    pub x_label: String,
    /// A logarithmic x axis.
    #[serde(default)]
    pub x_log: bool,
    /// Times are divided by this (60 for minutes).
    #[serde(default = "one")]
    pub x_divide: f64,
    /// This is taken off times first.
    #[serde(default)]
    pub x_minus: f64,
    /// Where the x axis ends; of batches, how many milliseconds are shown.
    pub x_to: Option<f64>,
    /// The figures: `goodput_rps`, `models.minor.p99_ms`; against time `minor.p99_ms` or `devices.utilization`.
    #[serde(default)]
    pub y: Vec<String>,
    /// What they are called; absent: as they are.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Beside the y axis, with its unit.
    #[serde(default)]
    pub y_label: String,
    /// A logarithmic y axis.
    #[serde(default)]
    pub y_log: bool,
    /// Where the y axis begins.
    pub y_from: Option<f64>,
    /// Where the y axis ends.
    pub y_to: Option<f64>,
    /// Figures are multiplied by this (100 for per cent).
    #[serde(default = "one")]
    pub y_times: f64,
    /// Figures are divided by this policy's at the same point.
    pub relative_to: Option<String>,
    /// Only these policies; empty: all.
    #[serde(default)]
    pub policies: Vec<String>,
    /// Only at these points of the sweep.
    #[serde(default)]
    pub at: BTreeMap<String, toml::Value>,
    /// Comparisons whose ratios are drawn, by their ids.
    #[serde(default)]
    pub compare: Vec<String>,
    /// What a paper says in numbers.
    #[serde(default)]
    pub paper: Vec<PaperPoints>,
}

/// How a plot is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlotKind {
    /// Lines.
    #[default]
    Lines,
    /// Bars side by side, one cluster for each value of `x`. A paper's points count the clusters from 0.
    Bars,
    /// Which part of the points of the sweep has at most that ratio, for each comparison.
    Ratios,
    /// Spreads, as `exec_error.under`: what one in so many is above, for each policy. The x axis is how many.
    Quantiles,
    /// The batches of each policy on their devices over time; needs `run.trace_batches`.
    Batches,
}

/// Points to draw beside the figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperPoints {
    /// In the legend.
    pub label: String,
    /// `[x, y]` pairs, in the units of the axes.
    pub points: Vec<(f64, f64)>,
}

fn one() -> f64 {
    1.0
}

impl PlotConfig {
    /// The chart as SVG.
    pub(crate) fn draw(&self, outcomes: &[PointOutcome], compares: &[Compare]) -> String {
        let wanted = |outcome: &&PointOutcome| {
            (self.policies.is_empty() || self.policies.contains(&outcome.policy)) && matches(outcome, &self.at)
        };
        let shown: Vec<&PointOutcome> = outcomes.iter().filter(wanted).collect();
        match self.kind {
            PlotKind::Lines => self.draw_lines(&shown, outcomes),
            PlotKind::Bars => self.draw_bars(&shown, outcomes),
            PlotKind::Ratios => self.draw_ratios(outcomes, compares),
            PlotKind::Quantiles => self.draw_quantiles(&shown),
            PlotKind::Batches => self.draw_batches(&shown),
        }
    }

    fn axes(&self) -> (Axis, Axis) {
        let axis = |label: &str, logarithmic| Axis { label: label.to_owned(), logarithmic, from: None, to: None };
        let x = Axis { to: self.x_to, ..axis(&self.x_label, self.x_log) };
        (x, Axis { from: self.y_from, to: self.y_to, ..axis(&self.y_label, self.y_log) })
    }

    fn draw_lines(&self, shown: &[&PointOutcome], all: &[PointOutcome]) -> String {
        let (x, y) = self.axes();
        let mut lines = if self.x == "time" { self.over_time(shown) } else { self.over_sweep(shown, all) };
        lines.extend(self.paper.iter().map(|paper| Line {
            label: paper.label.clone(),
            points: paper.points.clone(),
            dots: true,
        }));
        Chart { title: self.title.clone(), x, y, lines }.to_svg()
    }

    /// One cluster for each value of `x`, one bar in it for each policy and figure.
    fn draw_bars(&self, shown_outcomes: &[&PointOutcome], all: &[PointOutcome]) -> String {
        let category = |outcome: &PointOutcome| match self.x.as_str() {
            "policy" => outcome.policy.clone(),
            key => outcome.point.get(key).map(shown).unwrap_or_default(),
        };
        let mut categories: Vec<String> = Vec::new();
        for outcome in shown_outcomes {
            let name = category(outcome);
            if !categories.contains(&name) {
                categories.push(name);
            }
        }
        let mut series: Vec<bars::Series> = Vec::new();
        for (index, path) in self.y.iter().enumerate() {
            for outcome in shown_outcomes {
                let many = self.x != "policy";
                let label = self.line_label(index, path, outcome, many);
                let place = categories.iter().position(|name| *name == category(outcome)).unwrap_or(0);
                let value = self.value(outcome, path, all).map(|value| value * self.y_times);
                match series.iter_mut().find(|series| series.label == label) {
                    Some(series) => series.values[place] = value,
                    None => {
                        let mut values = vec![None; categories.len()];
                        values[place] = value;
                        series.push(bars::Series { label, values, outline: false });
                    }
                }
            }
        }
        for paper in &self.paper {
            let mut values = vec![None; categories.len()];
            for &(place, value) in &paper.points {
                if let Some(slot) = values.get_mut(place as usize) {
                    *slot = Some(value);
                }
            }
            series.push(bars::Series { label: paper.label.clone(), values, outline: true });
        }
        let (_, y) = self.axes();
        Bars { title: self.title.clone(), x_label: self.x_label.clone(), y, categories, series }.to_svg()
    }

    /// For each comparison, the part of the points with at most that ratio.
    fn draw_ratios(&self, outcomes: &[PointOutcome], compares: &[Compare]) -> String {
        let (x, y) = self.axes();
        let y = Axis { from: y.from.or(Some(0.0)), to: y.to.or(Some(100.0)), ..y };
        let mut lines = Vec::new();
        for compare in compares.iter().filter(|compare| self.compare.contains(&compare.id)) {
            let mut ratios: Vec<f64> = compare.ratios(outcomes).iter().map(|ratio| ratio.ratio).collect();
            ratios.sort_by(f64::total_cmp);
            let count = ratios.len() as f64;
            let point = |(index, &ratio): (usize, &f64)| (ratio, (index + 1) as f64 / count * 100.0);
            let points = ratios.iter().enumerate().map(point).collect();
            lines.push(Line { label: compare.title.clone(), points, dots: false });
        }
        let paper = |paper: &PaperPoints| Line { label: paper.label.clone(), points: paper.points.clone(), dots: true };
        lines.extend(self.paper.iter().map(paper));
        Chart { title: self.title.clone(), x, y, lines }.to_svg()
    }

    fn draw_quantiles(&self, shown: &[&PointOutcome]) -> String {
        let (x, y) = self.axes();
        let many = shown.iter().any(|outcome| outcome.policy != shown[0].policy);
        let mut lines = Vec::new();
        for (index, path) in self.y.iter().enumerate() {
            for outcome in shown {
                let label = self.line_label(index, path, outcome, many);
                lines.push(Line { label, points: self.quantiles(outcome, path), dots: false });
            }
        }
        Chart { title: self.title.clone(), x: Axis { logarithmic: true, ..x }, y, lines }.to_svg()
    }

    /// The quantiles that there are enough values for. A logarithmic axis has no place for zeros.
    fn quantiles(&self, outcome: &PointOutcome, path: &str) -> Vec<(f64, f64)> {
        let count = outcome.figure(&format!("{path}.count")).unwrap_or(0.0);
        let point = |&(one_in, name): &(f64, &str)| {
            let value = outcome.figure(&format!("{path}.{name}"))? * self.y_times;
            (one_in <= count && (value > 0.0 || !self.y_log)).then_some((one_in, value))
        };
        sim::ONE_IN.iter().filter_map(point).collect()
    }

    fn draw_batches(&self, outcomes: &[&PointOutcome]) -> String {
        let runs = outcomes.iter().filter_map(|outcome| Some((heading(outcome), outcome.figures.get("trace")?)));
        Gantt {
            title: self.title.clone(),
            x_label: self.x_label.clone(),
            until_ms: self.x_to.unwrap_or(100.0),
            runs: runs.collect(),
        }
        .to_svg()
    }

    fn label(&self, index: usize, path: &str) -> String {
        self.labels.get(index).map_or(path, String::as_str).to_owned()
    }

    /// What a line or bar is called: its policy, its figure where there are several, and the sweep's other values.
    fn line_label(&self, index: usize, path: &str, outcome: &PointOutcome, many: bool) -> String {
        let mut parts = Vec::new();
        if many {
            parts.push(outcome.policy.clone());
        }
        if !many || self.y.len() > 1 || !self.labels.is_empty() {
            parts.push(self.label(index, path));
        }
        let others = outcome.point.iter().filter(|(key, _)| **key != self.x && !self.at.contains_key(*key));
        for (key, value) in others {
            let short = key.rsplit('.').next().unwrap_or(key);
            parts.push(if value.is_string() { shown(value) } else { format!("{short} {value}") });
        }
        parts.join(", ")
    }

    /// A figure of an outcome, or its ratio to another policy's at the same point.
    fn value(&self, outcome: &PointOutcome, path: &str, all: &[PointOutcome]) -> Option<f64> {
        let value = outcome.figure(path)?;
        let Some(whole) = &self.relative_to else { return Some(value) };
        let other = all.iter().find(|other| other.policy == *whole && other.point == outcome.point)?;
        other.figure(path).filter(|&whole| whole > 0.0).map(|whole| value / whole)
    }

    /// One line for each figure, each policy, and each combination of the sweep's other keys.
    fn over_sweep(&self, outcomes: &[&PointOutcome], all: &[PointOutcome]) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let many = outcomes.iter().any(|outcome| outcome.policy != outcomes[0].policy);
        for (index, path) in self.y.iter().enumerate() {
            for outcome in outcomes {
                let (Some(x), Some(y)) = (outcome.figure(&self.x), self.value(outcome, path, all)) else { continue };
                let label = self.line_label(index, path, outcome, many);
                let point = (self.time(x), y * self.y_times);
                match lines.iter_mut().find(|line| line.label == label) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line { label, points: vec![point], dots: false }),
                }
            }
        }
        lines
    }

    fn time(&self, x: f64) -> f64 {
        (x - self.x_minus) / self.x_divide
    }

    fn over_time(&self, outcomes: &[&PointOutcome]) -> Vec<Line> {
        let many = outcomes.len() > 1;
        let mut lines = Vec::new();
        for (index, path) in self.y.iter().enumerate() {
            for outcome in outcomes {
                let label = self.label(index, path);
                let label = if many { format!("{}, {label}", outcome.policy) } else { label };
                let points =
                    series(outcome, path).into_iter().map(|(at, y)| (self.time(at), y * self.y_times)).collect();
                lines.push(Line { label, points, dots: false });
            }
        }
        lines
    }
}

/// A run in words.
fn heading(outcome: &PointOutcome) -> String {
    let mut text = outcome.policy.clone();
    for (key, value) in &outcome.point {
        text.push_str(&format!(", {} {}", key.rsplit('.').next().unwrap_or(key), shown(value)));
    }
    text
}

/// A figure over time, as `(second, value)`: `minor.p99_ms` is the figure `p99_ms` of the series `minor`.
pub(crate) fn series(outcome: &PointOutcome, path: &str) -> Vec<(f64, f64)> {
    let Some((name, key)) = path.rsplit_once('.') else { return Vec::new() };
    let points = outcome.figures.get("series").and_then(|series| series.get(name)).and_then(Value::as_array);
    let point = |point: &Value| Some((point.get("at_s")?.as_f64()?, point.get(key)?.as_f64()?));
    points.into_iter().flatten().filter_map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn outcome(policy: &str, slo: f64, goodput: f64) -> PointOutcome {
        PointOutcome {
            policy: policy.into(),
            point: json!({"slo_ms": slo, "zoo": "weak"}).as_object().unwrap().clone(),
            figures: json!({"goodput_rps": goodput}),
            took_s: 0.0,
        }
    }

    fn plot(text: &str) -> PlotConfig {
        toml::from_str(&format!("name = 'p'\ntitle = 'T'\nx_label = 'x'\n{text}")).unwrap()
    }

    #[test]
    fn lines_can_be_parts_of_another_policys() {
        let all = [outcome("a", 10.0, 50.0), outcome("a", 20.0, 80.0), outcome("b", 10.0, 100.0)];
        let shown: Vec<&PointOutcome> = all.iter().collect();
        let plot = plot("x = 'slo_ms'\ny = ['goodput_rps']\nrelative_to = 'b'\nat = { zoo = 'weak' }");
        let lines = plot.over_sweep(&shown, &all);
        let lines: Vec<_> = lines.iter().map(|line| (line.label.as_str(), line.points.clone())).collect();
        assert_eq!(lines, [("a", vec![(10.0, 0.5)]), ("b", vec![(10.0, 1.0)])]);
    }

    #[test]
    fn quantiles_are_drawn_where_there_are_enough_values() {
        let figures = json!({"error": {"count": 150, "p50_ms": 0.0, "p90_ms": 0.5, "p99_ms": 2.0, "p999_ms": 2.5}});
        let outcome = PointOutcome { figures, ..outcome("a", 10.0, 50.0) };
        let logarithmic = plot("kind = 'quantiles'\ny = ['error']\ny_log = true\ny_times = 1000");
        assert_eq!(logarithmic.quantiles(&outcome, "error"), [(10.0, 500.0), (100.0, 2000.0)]);
        assert_eq!(plot("kind = 'quantiles'\ny = ['error']").quantiles(&outcome, "error").len(), 3);
        assert_eq!(logarithmic.draw(&[outcome], &[]).matches("<polyline").count(), 1);
    }

    #[test]
    fn every_kind_is_drawn() {
        let all = [outcome("a", 10.0, 50.0), outcome("b", 10.0, 100.0), outcome("b", 20.0, 9.0)];
        let compare: Compare = toml::from_str("id = 'c'\ntitle = 'a to b'\nof = 'a'").unwrap();
        let bars = plot("kind = 'bars'\nx = 'slo_ms'\ny = ['goodput_rps']").draw(&all, &[]);
        assert_eq!(bars.matches("<rect").count(), 4, "{bars}");
        let ratios = plot("kind = 'ratios'\ncompare = ['c']").draw(&all, &[compare]);
        assert_eq!(ratios.matches("<polyline").count(), 1, "{ratios}");
        let batches = plot("kind = 'batches'").draw(&all, &[]);
        assert!(batches.ends_with("</svg>\n"));
    }
}
