//! `punctual simulate`: reads experiments, runs them, and shows what came out.

use crate::campaign::{Campaign, Outcome};
pub use crate::page::PageOptions;
use crate::store::Reuse;
use crate::sweep::Selection;
use crate::{Error, page, table};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// How results are shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// One JSON object instead of a table.
    pub json: bool,
    /// Draw the experiment's plots into this folder.
    pub svg_dir: Option<PathBuf>,
    /// Show a bar on standard error while running, if that is a terminal.
    pub progress: bool,
    /// Run nothing: only say what no policy can exceed.
    pub bound: bool,
    /// Run a part of it only.
    pub selection: Selection,
    /// Take over results that are there already, and keep those that come.
    pub reuse: Reuse,
}

/// Runs the experiment in a file; returns what goes to standard output.
pub fn simulate(path: &Path, options: &Options) -> Result<String, Error> {
    let campaign = Campaign::select(path, &options.selection)?;
    if options.bound {
        let bounds = campaign.bounds()?;
        return Ok(if options.json { to_json(&bounds) } else { table::aligned(&table::bounds(&bounds)) });
    }
    let outcomes = campaign.run_or_reuse(options.progress, &options.reuse)?;
    if let Some(folder) = &options.svg_dir {
        for plot in &campaign.experiment.plots {
            page::write(
                &folder.join(format!("{}.svg", plot.name)),
                &plot.draw(&outcomes, &campaign.experiment.compares),
            )?;
        }
    }
    Ok(if options.json { to_json(&outcomes) } else { to_text(&campaign, &outcomes) })
}

/// Runs all experiments of a folder and writes a page about them: `README.md` and the plots. Returns the page's path.
pub fn write_page(options: &PageOptions) -> Result<PathBuf, Error> {
    page::build(options)
}

/// A key of the sweep with the values that are wanted, as in `slo_ms=20,25` or `model.latency=strong`.
pub fn parse_only(text: &str) -> Result<(String, Vec<toml::Value>), Error> {
    let Some((key, values)) = text.split_once('=') else {
        return Err(Error::value(format!("{text:?} is not a choice of points: write KEY=VALUE or KEY=VALUE,VALUE")));
    };
    let value = |value: &str| value.parse::<f64>().map_or_else(|_| toml::Value::from(value), toml::Value::from);
    Ok((key.trim().to_owned(), values.split(',').map(|text| value(text.trim())).collect()))
}

fn to_json(outcomes: &[Outcome]) -> String {
    let results: Vec<Value> = outcomes.iter().map(Outcome::to_json).collect();
    format!("{}\n", json!({ "results": results }))
}

fn to_text(campaign: &Campaign, outcomes: &[Outcome]) -> String {
    let mut text = table::aligned(&table::cells(outcomes, &campaign.experiment.run.columns));
    for cells in page::compare_cells(&campaign.experiment, outcomes) {
        text.push('\n');
        text.push_str(&table::aligned(&cells));
    }
    let claims = page::claim_cells(&campaign.experiment, outcomes);
    if claims.len() > 1 {
        text.push('\n');
        text.push_str(&table::aligned(&claims));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_numbers_or_names() {
        let (key, values) = parse_only("slo_ms=20, 25.5").unwrap();
        assert_eq!((key.as_str(), values), ("slo_ms", vec![20.0.into(), 25.5.into()]));
        assert_eq!(parse_only("model.latency=strong").unwrap().1, ["strong".into()]);
        assert!(parse_only("slo_ms").unwrap_err().to_string().contains("KEY=VALUE"));
    }
}
