//! `punctual simulate`: reads experiments, runs them, and shows what came out.

use crate::campaign::{Campaign, Outcome};
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
}

/// Runs the experiment in a file; returns what goes to standard output.
pub fn simulate(path: &Path, options: &Options) -> Result<String, Error> {
    let campaign = Campaign::read(path)?;
    let outcomes = campaign.run(options.progress)?;
    if let Some(folder) = &options.svg_dir {
        for plot in &campaign.experiment.plots {
            page::write(&folder.join(format!("{}.svg", plot.name)), &plot.draw(&outcomes))?;
        }
    }
    Ok(if options.json { to_json(&outcomes) } else { to_text(&campaign, &outcomes) })
}

/// Runs all experiments of a folder and writes a page about them: `README.md` and the plots. Returns the page's path.
pub fn write_page(experiments: &Path, folder: &Path, progress: bool) -> Result<PathBuf, Error> {
    page::build(experiments, folder, progress)
}

fn to_json(outcomes: &[Outcome]) -> String {
    let results: Vec<Value> = outcomes.iter().map(Outcome::to_json).collect();
    format!("{}\n", json!({ "results": results }))
}

fn to_text(campaign: &Campaign, outcomes: &[Outcome]) -> String {
    let mut text = table::aligned(&table::cells(outcomes));
    let claims = page::claim_cells(&campaign.experiment.claims, outcomes);
    if claims.len() > 1 {
        text.push('\n');
        text.push_str(&table::aligned(&claims));
    }
    text
}
