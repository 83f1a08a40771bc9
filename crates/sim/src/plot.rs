//! What an experiment draws: a figure against a key of its sweep, or against time.

use crate::campaign::Outcome;
use crate::svg::{Axis, Chart, Line};
use serde::Deserialize;
use serde_json::Value;

/// `[[plot]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlotConfig {
    /// The file's name, without `.svg`.
    pub name: String,
    /// The heading.
    pub title: String,
    /// A key of the sweep, or `time`.
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
    /// The figures: `goodput_rps`, `models.minor.p99_ms`; against time `minor.p99_ms` or `devices.utilization`.
    pub y: Vec<String>,
    /// What they are called; absent: as they are.
    #[serde(default)]
    pub labels: Vec<String>,
    /// Beside the y axis, with its unit.
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
    /// What a paper says in numbers.
    #[serde(default)]
    pub paper: Vec<PaperPoints>,
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
    pub(crate) fn draw(&self, outcomes: &[Outcome]) -> String {
        let axis = |label: &str, logarithmic| Axis { label: label.to_owned(), logarithmic, from: None, to: None };
        let y = Axis { from: self.y_from, to: self.y_to, ..axis(&self.y_label, self.y_log) };
        let mut lines = if self.x == "time" { self.over_time(outcomes) } else { self.over_sweep(outcomes) };
        lines.extend(self.paper.iter().map(|paper| Line {
            label: paper.label.clone(),
            points: paper.points.clone(),
            dots: true,
        }));
        Chart { title: self.title.clone(), x: axis(&self.x_label, self.x_log), y, lines }.to_svg()
    }

    fn label(&self, index: usize, path: &str) -> String {
        self.labels.get(index).map_or(path, String::as_str).to_owned()
    }

    /// One line for each figure, each policy, and each combination of the sweep's other keys.
    fn over_sweep(&self, outcomes: &[Outcome]) -> Vec<Line> {
        let mut lines: Vec<Line> = Vec::new();
        let many = outcomes.iter().any(|outcome| outcome.policy != outcomes[0].policy);
        for (index, path) in self.y.iter().enumerate() {
            for outcome in outcomes {
                let (Some(x), Some(y)) = (outcome.figure(&self.x), outcome.figure(path)) else { continue };
                let mut label = self.label(index, path);
                if many {
                    label = format!("{}, {label}", outcome.policy);
                }
                for (key, value) in outcome.point.iter().filter(|(key, _)| **key != self.x) {
                    let short = key.rsplit('.').next().unwrap_or(key);
                    label = format!("{label}, {short} {value}");
                }
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

    fn over_time(&self, outcomes: &[Outcome]) -> Vec<Line> {
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

/// A figure over time, as `(second, value)`: `minor.p99_ms` is the figure `p99_ms` of the series `minor`.
pub(crate) fn series(outcome: &Outcome, path: &str) -> Vec<(f64, f64)> {
    let Some((name, key)) = path.rsplit_once('.') else { return Vec::new() };
    let points = outcome.figures.get("series").and_then(|series| series.get(name)).and_then(Value::as_array);
    let point = |point: &Value| Some((point.get("at_s")?.as_f64()?, point.get(key)?.as_f64()?));
    points.into_iter().flatten().filter_map(point).collect()
}
