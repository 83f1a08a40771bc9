//! Results as an aligned table, for people.

use crate::run::campaign::PointOutcome;
use serde_json::Value;

/// A column: its heading, where the number stands, how it is shown.
type Column = (&'static str, &'static str, fn(f64) -> String);

const COLUMNS: [Column; 13] = [
    ("rate/s", "rate_rps", |value| format!("{value:.1}")),
    ("goodput/s", "goodput_rps", |value| format!("{value:.1}")),
    ("bad %", "bad", percent),
    ("late", "late", |value| format!("{value:.0}")),
    ("batch", "mean_batch", |value| format!("{value:.2}")),
    ("busy %", "utilization", |value| format!("{:.1}", value * 100.0)),
    ("loading %", "load_utilization", |value| format!("{:.1}", value * 100.0)),
    ("cold %", "cold", |value| format!("{:.2}", value * 100.0)),
    ("p50 ms", "p50_ms", |value| format!("{value:.2}")),
    ("p99 ms", "p99_ms", |value| format!("{value:.2}")),
    ("p99.9 ms", "p999_ms", |value| format!("{value:.2}")),
    ("p99.99 ms", "p9999_ms", |value| format!("{value:.2}")),
    ("max ms", "max_ms", |value| format!("{value:.2}")),
];

/// Columns that are there where a result has the figure.
const SOMETIMES: [Column; 4] = [
    ("worst %", "worst_bad", percent),
    ("bound/s", "bound_rps", |value| format!("{value:.1}")),
    ("of bound %", "of_bound", |value| format!("{:.1}", value * 100.0)),
    ("collapses at/s", "collapses_at", |value| format!("{value:.1}")),
];

fn percent(value: f64) -> String {
    format!("{:.3}", value * 100.0)
}

/// A column of one table: its heading, where the number stands, how it is shown.
type Shown = (String, String, fn(f64) -> String);

/// The columns of these results: those that there always are, those that some result has, the part of bad requests
/// beside the peak, and those that the file asks for.
fn columns(outcomes: &[PointOutcome], asked: &[String]) -> Vec<Shown> {
    let owned = |&(heading, path, show): &Column| (heading.to_owned(), path.to_owned(), show);
    let has = |column: &&Column| outcomes.iter().any(|outcome| outcome.figure(column.1).is_some());
    let mut columns: Vec<Shown> = COLUMNS.iter().map(owned).collect();
    columns.extend(SOMETIMES.iter().filter(has).map(owned));
    let beside = outcomes.iter().find_map(|outcome| outcome.figures.get("bad_at")?.as_object());
    for part in beside.into_iter().flat_map(|parts| parts.keys()) {
        let times = part.parse::<f64>().unwrap_or(0.0) * 100.0;
        columns.push((format!("bad % at {times:.0} %"), format!("bad_at.{part}"), percent));
    }
    let number: fn(f64) -> String = |value| format!("{value:.4}");
    columns.extend(asked.iter().map(|name| (name.clone(), name.clone(), number)));
    columns
}

/// What no policy can exceed, headings first: one line for each point of the sweep.
pub(crate) fn bounds(outcomes: &[PointOutcome]) -> Vec<Vec<String>> {
    let keys: Vec<&String> = outcomes.first().map(|first| first.point.keys().collect()).unwrap_or_default();
    let names = ["bound_rps", "bound_devices"];
    let names: Vec<&str> =
        names.into_iter().filter(|name| outcomes.iter().any(|outcome| outcome.figure(name).is_some())).collect();
    let mut table = vec![keys.iter().map(|key| (*key).clone()).chain(names.iter().map(|&name| name.into())).collect()];
    for outcome in outcomes {
        let point = keys.iter().map(|key| outcome.point.get(*key).map(shown).unwrap_or_default());
        let figures =
            names.iter().map(|name| outcome.figure(name).map_or("none".to_owned(), |value| format!("{value:.1}")));
        table.push(point.chain(figures).collect());
    }
    table
}

/// The cells of a table, headings first: one line for each result, and one for each of its models where there are
/// several.
pub(crate) fn cells(outcomes: &[PointOutcome], asked: &[String]) -> Vec<Vec<String>> {
    let columns = columns(outcomes, asked);
    let keys: Vec<&String> = outcomes.first().map(|first| first.point.keys().collect()).unwrap_or_default();
    let by_model = outcomes.iter().any(|outcome| outcome.figures.get("models").is_some());
    let mut head = vec!["policy".to_owned()];
    head.extend(keys.iter().map(|key| (*key).clone()));
    if by_model {
        head.push("model".into());
    }
    head.extend(columns.iter().map(|(heading, ..)| heading.clone()));
    let mut table = vec![head];
    for outcome in outcomes {
        let mut lead = vec![outcome.policy.clone()];
        lead.extend(keys.iter().map(|key| outcome.point.get(*key).map(shown).unwrap_or_default()));
        let figures = |path: &str| -> Vec<String> {
            columns
                .iter()
                .map(|(_, column, show)| outcome.figure(&format!("{path}{column}")).map_or("".into(), show))
                .collect()
        };
        if by_model {
            for name in
                outcome.figures.get("models").and_then(Value::as_object).into_iter().flat_map(|models| models.keys())
            {
                let row = [lead.clone(), vec![name.clone()], figures(&format!("models.{name}."))].concat();
                table.push(row);
            }
            lead.push("all".into());
        }
        table.push([lead, figures("")].concat());
    }
    table
}

pub(crate) fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// The table with columns aligned to the right, except the first.
pub(crate) fn aligned(cells: &[Vec<String>]) -> String {
    let widths = widths(cells);
    let mut text = String::new();
    for row in cells {
        let padded = row.iter().zip(&widths).enumerate().map(|(index, (cell, &width))| {
            if index == 0 { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        text.push_str(padded.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// The table as Markdown.
pub(crate) fn markdown(cells: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, row) in cells.iter().enumerate() {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
        if index == 0 {
            let rule: Vec<&str> = (0..row.len()).map(|column| if column == 0 { "---" } else { "---:" }).collect();
            text.push_str(&format!("| {} |\n", rule.join(" | ")));
        }
    }
    text
}

fn widths(cells: &[Vec<String>]) -> Vec<usize> {
    let columns = cells.first().map_or(0, Vec::len);
    let width = |column: usize| cells.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    (0..columns).map(|column| width(column).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let cells = [vec!["policy", "rate/s"], vec!["clockwork", "5.0"]]
            .map(|row| row.into_iter().map(str::to_owned).collect());
        expect_test::expect![[r#"
            policy     rate/s
            clockwork     5.0
        "#]]
        .assert_eq(&aligned(&cells));
        expect_test::expect![[r#"
            | policy | rate/s |
            | --- | ---: |
            | clockwork | 5.0 |
        "#]]
        .assert_eq(&markdown(&cells));
    }
}
