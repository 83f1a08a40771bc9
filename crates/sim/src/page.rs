//! The page of experiments: for each file its words, its plots, the paper's numbers beside ours, and its table.

use crate::campaign::{Campaign, Outcome};
use crate::experiment::Experiment;
use crate::store::Reuse;
use crate::{Error, kept, table};
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Experiments

Every figure on this page comes from the simulator: the scheduler that serves live, driven in virtual time, with the
invariants checked (in searches for the first seed, else always). One command runs what isn't up to date and writes this
page and its plots; the second also runs the sweeps that take hours:

```text
make experiments
make experiments-all
```

`punctual simulate experiments/NAME.toml` runs one of them and prints its table, `--json` everything that was measured.
[How files are written](format.md), how a search goes, and what can be chosen on the command line. An experiment runs as the
server does unless its section says otherwise. In the experiments after Symphony the scheduler knows exactly what a batch
takes, messages take no time unless a file says so, weights are everywhere from the start, and a request is refused only when
its time has run out; these count bad requests of all models together, as the papers do, the others of each model.
";

/// A table of more lines than this is folded away.
const LONG_TABLE: usize = 10;

/// How the page is made.
#[derive(Clone, Debug, Default)]
pub struct PageOptions {
    /// Where the experiments are.
    pub experiments: PathBuf,
    /// Where the page goes.
    pub folder: PathBuf,
    /// Results that are still true are taken from here, and new ones put here.
    pub cache: Option<PathBuf>,
    /// Also run the large sweeps whose results are kept beside the page.
    pub all: bool,
    /// Take results of other sources too, except those of these policies.
    pub again: Vec<String>,
    /// Which state of the sources this is, as kept results say it.
    pub commit: String,
    /// Show a bar on standard error.
    pub progress: bool,
}

/// Runs every experiment of a folder, in the order of their names, and writes the page.
pub(crate) fn build(options: &PageOptions) -> Result<PathBuf, Error> {
    let mut page = HEAD.to_owned();
    for path in files(&options.experiments)? {
        let campaign = Campaign::read(&path)?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        if options.progress {
            eprintln!("{name}");
        }
        let (outcomes, origin) = results(&name, &campaign, options)?;
        page.push_str(&section(&path, &campaign, &outcomes, &origin));
        for plot in &campaign.experiment.plots {
            let drawn = plot.draw(&outcomes, &campaign.experiment.compares);
            write(&options.folder.join(format!("{}.svg", plot.name)), &drawn)?;
        }
    }
    let path = options.folder.join("README.md");
    write(&path, &page)?;
    Ok(path)
}

/// The results of one experiment, run or kept, and where kept ones come from.
fn results(name: &str, campaign: &Campaign, options: &PageOptions) -> Result<(Vec<Outcome>, String), Error> {
    let reuse = Reuse {
        file: options.cache.as_ref().map(|folder| folder.join(format!("{name}.jsonl"))),
        again: options.again.clone(),
    };
    let figures = &campaign.experiment.run.kept;
    if figures.is_empty() {
        return Ok((campaign.run_or_reuse(options.progress, &reuse)?, String::new()));
    }
    let path = options.folder.join("results").join(format!("{name}.csv"));
    if options.all {
        let outcomes = campaign.run_or_reuse(options.progress, &reuse)?;
        write(&path, &kept::to_text(campaign, &outcomes, &options.commit))?;
    }
    match kept::read(&path, figures)? {
        Some(kept) => {
            let file = format!("[`results/{name}.csv`](results/{name}.csv)");
            Ok((kept.outcomes, format!("{} ({file}; `make experiments-all` runs it again).", kept.origin.join("; "))))
        }
        None => Ok((Vec::new(), "Not run yet: `make experiments-all` runs it.".into())),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = |source| Error::Read { path: folder.to_owned(), source };
    let entries = std::fs::read_dir(folder).map_err(read)?.collect::<Result<Vec<_>, _>>().map_err(read)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    if files.is_empty() {
        return Err(Error::value(format!("{} has no experiment (*.toml)", folder.display())));
    }
    Ok(files)
}

fn section(path: &Path, campaign: &Campaign, outcomes: &[Outcome], origin: &str) -> String {
    let about = &campaign.experiment.about;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let title = about.title.clone().unwrap_or_else(|| name.to_string());
    let mut text = format!("\n## {title}\n\n`experiments/{name}`\n");
    if let Some(words) = &about.text {
        text.push_str(&format!("\n{}\n", words.trim()));
    }
    let unlike = campaign.unlike_the_server();
    if !unlike.is_empty() {
        text.push_str(&format!("\nNot as the server has it by default: {}.\n", unlike.join(", ")));
    }
    if !origin.is_empty() {
        text.push_str(&format!("\n{origin}\n"));
    }
    let claims = claim_cells(&campaign.experiment, outcomes);
    if claims.len() > 1 {
        text.push_str(&format!("\n{}", table::markdown(&claims)));
    }
    for plot in &campaign.experiment.plots {
        text.push_str(&format!("\n![{}]({}.svg)\n", plot.title, plot.name));
    }
    for cells in compare_cells(&campaign.experiment, outcomes) {
        text.push_str(&format!("\n{}", table::markdown(&cells)));
    }
    if !origin.is_empty() {
        return text;
    }
    let cells = table::cells(outcomes, &campaign.experiment.run.columns);
    let rows = table::markdown(&cells);
    if cells.len() > LONG_TABLE {
        text.push_str(&format!("\n<details><summary>All {} runs</summary>\n\n{rows}\n</details>\n", cells.len() - 1));
    } else {
        text.push_str(&format!("\n{rows}"));
    }
    text
}

/// What the paper says beside what we measure, headings first.
pub(crate) fn claim_cells(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let claims = &experiment.claims;
    let mut cells = vec![["the paper says", "so we ask for", "here", "agrees", "note"].map(str::to_owned).to_vec()];
    for claim in claims {
        let ours = claim.ours(outcomes, &experiment.compares);
        let found = ours.map_or_else(|| "not measured".to_owned(), |ours| claim.found(ours));
        let agrees = if ours.is_some_and(|ours| claim.agrees(ours)) { "yes" } else { "no" };
        cells.push(vec![claim.says.clone(), claim.wanted(), found, agrees.to_owned(), claim.note.clone()]);
    }
    if claims.iter().all(|claim| claim.note.is_empty()) {
        cells.iter_mut().for_each(|row| row.truncate(4));
    }
    cells
}

/// Tables of comparisons, headings first; those with the same headings are one table.
pub(crate) fn compare_cells(experiment: &Experiment, outcomes: &[Outcome]) -> Vec<Vec<Vec<String>>> {
    let mut tables: Vec<Vec<Vec<String>>> = Vec::new();
    for compare in &experiment.compares {
        let headings = compare.headings();
        let lines = compare.cells(outcomes);
        match tables.iter_mut().find(|table| table[0] == headings) {
            Some(table) => table.extend(lines),
            None => tables.push([vec![headings], lines].concat()),
        }
    }
    tables
}

/// Writes a file, making its folder if need be.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
