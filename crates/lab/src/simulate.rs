//! `punctual simulate`: reads experiments, runs them, and shows what came out.

use crate::LabError;
use crate::run::campaign::{Campaign, PointOutcome};
use crate::run::store::Reuse;
use crate::run::sweep::Selection;
pub use crate::show::page::PageOptions;
use crate::show::{page, table};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The flags of `punctual simulate`.
#[derive(clap::Args, Clone, Debug)]
pub struct SimulateArgs {
    /// The experiment's file, or a folder of experiments with --page.
    file: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Run nothing: print the rate that no policy can exceed, whatever it knows, at each point of the experiment.
    #[arg(long, conflicts_with_all = ["svg", "page", "results"])]
    bound: bool,
    /// Draw the experiment's plots into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Run all experiments of the folder and write a page with plots and tables into this one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "svg", "results", "only", "sample", "policies"])]
    page: Option<PathBuf>,
    /// Add each result to this file as it comes, and don't run again what is there: an interrupted sweep goes on.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Also take results of older sources from the file of results, except those of these policies.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',')]
    again: Vec<String>,
    /// Only points of the sweep whose key has one of these values; may be given several times.
    #[arg(long, value_name = "KEY=VALUE,...")]
    only: Vec<String>,
    /// Only so many points of the sweep, drawn by chance, always the same ones.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Only these policies.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',')]
    policies: Vec<String>,
    /// Virtual seconds of each run, instead of the file's.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// In a search, runs of more requests than this are cut shorter (to 5 s at least).
    #[arg(long, value_name = "COUNT")]
    max_requests: Option<f64>,
    /// Seeds, instead of the file's.
    #[arg(long, value_name = "SEED,...", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// With --page: results that are still true are taken from this folder, and new ones put there.
    #[arg(long, value_name = "DIR", requires = "page")]
    cache: Option<PathBuf>,
    /// With --page: also run the large sweeps whose results are kept beside the page.
    #[arg(long, requires = "page")]
    all: bool,
    /// With --page --all: run only so many points of a large sweep again, drawn by chance, where its kept results are
    /// of older sources. If they come out the same, the others stand, and the page says so; if not, all are run.
    #[arg(long, value_name = "POINTS", requires = "all", conflicts_with = "again")]
    confirm: Option<usize>,
    /// With --page: run only these files, named without .toml; the page's other sections stay as they are.
    #[arg(long = "part", value_name = "NAME,...", requires = "page", value_delimiter = ',')]
    parts: Vec<String>,
    /// With --page: run nothing, and write the page's head anew: which sections are of which commit.
    #[arg(long, requires = "page", conflicts_with_all = ["all", "parts"])]
    head: bool,
    /// With --page: how results name the state of the sources.
    #[arg(long, value_name = "TEXT", requires = "page", default_value = "an unnamed state of the sources")]
    commit: String,
}

impl SimulateArgs {
    /// Does what they ask for, with a bar on standard error if that is a terminal, and prints the result.
    pub fn run_and_print(self) -> Result<(), LabError> {
        if let Some(folder) = self.page {
            let page = write_page(&PageOptions {
                experiments: self.file,
                folder,
                cache: self.cache,
                all: self.all,
                confirm: self.confirm,
                parts: self.parts,
                head: self.head,
                again: self.again,
                commit: self.commit,
                progress: true,
            })?;
            println!("wrote {}", page.display());
            return Ok(());
        }
        let selection = Selection {
            only: self.only.iter().map(|text| parse_only(text)).collect::<Result<_, _>>()?,
            sample: self.sample,
            policies: self.policies,
            seconds: self.seconds,
            max_requests: self.max_requests,
            seeds: self.seeds,
        };
        let options = SimulateOptions {
            json: self.json,
            svg_dir: self.svg,
            progress: true,
            bound: self.bound,
            selection,
            reuse: Reuse { file: self.results, again: self.again },
        };
        print!("{}", simulate(&self.file, &options)?);
        Ok(())
    }
}

/// How results are shown.
#[derive(Clone, Debug, Default)]
pub struct SimulateOptions {
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
pub fn simulate(path: &Path, options: &SimulateOptions) -> Result<String, LabError> {
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
pub fn write_page(options: &PageOptions) -> Result<PathBuf, LabError> {
    page::build(options)
}

/// A key of the sweep with the values that are wanted, as in `slo_ms=20,25` or `model.latency=strong`.
fn parse_only(text: &str) -> Result<(String, Vec<toml::Value>), LabError> {
    let Some((key, values)) = text.split_once('=') else {
        return Err(LabError::value(format!("{text:?} is not a choice of points: write KEY=VALUE or KEY=VALUE,VALUE")));
    };
    let value = |value: &str| value.parse::<f64>().map_or_else(|_| toml::Value::from(value), toml::Value::from);
    Ok((key.trim().to_owned(), values.split(',').map(|text| value(text.trim())).collect()))
}

fn to_json(outcomes: &[PointOutcome]) -> String {
    let results: Vec<Value> = outcomes.iter().map(PointOutcome::to_json).collect();
    format!("{}\n", json!({ "results": results }))
}

fn to_text(campaign: &Campaign, outcomes: &[PointOutcome]) -> String {
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
