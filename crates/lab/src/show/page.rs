//! The page of experiments: for each file its words, its plots, the paper's numbers beside ours, and its table.
//!
//! Every section says of which state it is. A section that wasn't asked for stays as it is on the page. The head lists
//! which sections are of which state, and which were older than the code when the page was written.

use crate::LabError;
use crate::run::campaign::{Campaign, PointOutcome};
use crate::run::experiment::Experiment;
use crate::run::store;
use crate::run::store::Reuse;
use crate::show::{confirm, kept, table};
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Experiments

Every figure on this page comes from the simulator: the scheduler that serves live, driven in virtual time, with the
invariants checked (in searches for the first seed, else always). One command runs what isn't up to date and writes this
page and its plots; the second also runs the sweeps that take hours; the third runs one file and leaves the other sections as they are:

```text
make experiments
make experiments-all
make experiments ARGS=\"--part clockwork-fig7b\"
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
    /// Of a large sweep whose kept results are of other sources, only so many points are run, while these come out the
    /// same.
    pub confirm: Option<usize>,
    /// Only these files, by their names without `.toml`; the sections of the others stay as they are. Empty: all.
    pub parts: Vec<String>,
    /// Run nothing: write the head anew, from the sections as they are.
    pub head: bool,
    /// Take results of other sources too, except those of these policies.
    pub again: Vec<String>,
    /// Which state of the sources this is, as kept results say it.
    pub commit: String,
    /// Show a bar on standard error.
    pub progress: bool,
}

/// Runs the experiments of a folder that were asked for, in the order of their names, and writes the page.
pub(crate) fn build(options: &PageOptions) -> Result<PathBuf, LabError> {
    let files = files(&options.experiments)?;
    if let Some(unknown) = options.parts.iter().find(|part| files.iter().all(|path| name_of(path) != **part)) {
        let folder = options.experiments.display();
        return Err(LabError::value(format!("{folder} has no {unknown}.toml: give the name of a file, without .toml")));
    }
    let path = options.folder.join("README.md");
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    let mut sections = Vec::new();
    for file in files {
        let name = name_of(&file);
        let wanted = !options.head && (options.parts.is_empty() || options.parts.contains(&name));
        let text = if wanted { run(&file, &name, options)? } else { as_it_was(&before, &file)? };
        sections.push((name, text));
    }
    let sources = format!("sources {}", store::SOURCES);
    let older: Vec<&str> =
        sections.iter().filter(|(_, text)| !text.contains(&sources)).map(|(name, _)| name.as_str()).collect();
    let text = sections.iter().map(|(_, text)| text.as_str()).collect::<String>();
    write(&path, &format!("{HEAD}{}{}{text}", age(&older), states(&sections)))?;
    Ok(path)
}

fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// Runs one experiment, draws its plots and writes its section.
fn run(path: &Path, name: &str, options: &PageOptions) -> Result<String, LabError> {
    let campaign = Campaign::read(path)?;
    if options.progress {
        eprintln!("{name}");
    }
    let (outcomes, origin) = results(path, &campaign, options)?;
    for plot in &campaign.experiment.plots {
        let drawn = plot.draw(&outcomes, &campaign.experiment.compares);
        write(&options.folder.join(format!("{}.svg", plot.name)), &drawn)?;
    }
    Ok(section(path, &campaign, &outcomes, &origin))
}

/// Which sections are of other sources than this program.
fn age(older: &[&str]) -> String {
    match older {
        [] => "\nAll sections are of the code with which this page was written.\n".into(),
        _ => format!("\nOlder than the code when this page was written, or not run yet: {}.\n", older.join(", ")),
    }
}

/// Which sections are of which state, in the order of the page.
fn states(sections: &[(String, String)]) -> String {
    let mut states: Vec<(String, Vec<String>)> = Vec::new();
    for (name, text) in sections {
        let state = state_of(text).unwrap_or_else(|| "not run yet".to_owned());
        let linked = format!("`{name}`");
        match states.iter_mut().find(|(known, _)| *known == state) {
            Some((_, names)) => names.push(linked),
            None => states.push((state, vec![linked])),
        }
    }
    let lines = states.iter().map(|(state, names)| format!("| {state} | {} |\n", names.join(", ")));
    format!("\n| results of | sections |\n| --- | --- |\n{}", lines.collect::<String>())
}

/// The state that a section's results are of, as the section says it.
fn state_of(section: &str) -> Option<String> {
    let name = |words: &str| words.split([',', '(', ';']).next().unwrap_or_default().trim_end().to_owned();
    section.lines().find_map(|line| match line.split_once(kept::FOUND_AT) {
        Some((_, words)) => Some(match words.split_once(confirm::RUN_AGAIN) {
            Some((_, again)) => format!("{}, confirmed by a sample at {}", name(words), name(again)),
            None => name(words),
        }),
        // The words of an experiment may begin so, too, but not with a commit or a number for the sources.
        None if line.contains("<!-- sources") || line.starts_with("Of commit ") => {
            Some(line.split(" <!--").next()?.strip_prefix("Of ")?.strip_suffix('.')?.to_owned())
        }
        None => None,
    })
}

/// The section of a file as the page has it.
fn as_it_was(page: &str, path: &Path) -> Result<String, LabError> {
    let own = format!("\n\n`experiments/{}`\n", path.file_name().unwrap_or_default().to_string_lossy());
    let found = page.split("\n## ").skip(1).find(|section| section.contains(&own));
    match found {
        Some(section) => Ok(format!("\n## {}\n", section.trim_end())),
        None => Ok(section(path, &Campaign::read(path)?, &[], &Origin::Nowhere)),
    }
}

/// Where the results of a section come from.
enum Origin {
    /// They were run, or taken from the cache, at this state.
    Run(String),
    /// They are kept beside the page, with these words.
    Kept(String),
    /// There are none.
    Nowhere,
}

/// Of which state results are that are run now. A number for the sources stands where only programs look for it.
fn state(options: &PageOptions) -> String {
    let sources = if options.again.is_empty() { store::SOURCES } else { "partly older" };
    let commit = if options.commit.is_empty() { "an unknown commit" } else { &options.commit };
    format!("Of {commit}. <!-- sources {sources} -->")
}

/// The results of one experiment, run or kept, and where they come from.
fn results(path: &Path, campaign: &Campaign, options: &PageOptions) -> Result<(Vec<PointOutcome>, Origin), LabError> {
    let name = &name_of(path);
    let reuse = Reuse {
        file: options.cache.as_ref().map(|folder| folder.join(format!("{name}.jsonl"))),
        again: options.again.clone(),
    };
    let figures = &campaign.experiment.run.kept;
    if figures.is_empty() {
        return Ok((campaign.run_or_reuse(options.progress, &reuse)?, Origin::Run(state(options))));
    }
    let file = options.folder.join("results").join(format!("{name}.csv"));
    if options.all {
        let confirmed = match options.confirm {
            Some(points) => {
                let sample = || Campaign::read(path)?.drawn(points).run_or_reuse(options.progress, &reuse);
                confirm::confirmed(&file, campaign, points, &options.commit, sample)?
            }
            None => None,
        };
        let text = match confirmed {
            Some(text) => text,
            None => {
                let outcomes = campaign.run_or_reuse(options.progress, &reuse)?;
                let sources = if options.again.is_empty() { store::SOURCES } else { "partly older" };
                kept::to_text(campaign, &outcomes, &options.commit, sources)
            }
        };
        write(&file, &text)?;
    }
    match kept::read(&file, figures)? {
        Some(kept) => {
            let file = format!("[`results/{name}.csv`](results/{name}.csv)");
            let words = format!("{} ({file}; `make experiments-all` runs it again).", kept.origin.join("; "));
            Ok((kept.outcomes, Origin::Kept(words)))
        }
        None => Ok((Vec::new(), Origin::Nowhere)),
    }
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, LabError> {
    let read = |reason| LabError::Read { path: folder.to_owned(), reason };
    let entries = std::fs::read_dir(folder).map_err(read)?.collect::<Result<Vec<_>, _>>().map_err(read)?;
    let mut files: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    if files.is_empty() {
        return Err(LabError::value(format!("{} has no experiment (*.toml)", folder.display())));
    }
    Ok(files)
}

fn section(path: &Path, campaign: &Campaign, outcomes: &[PointOutcome], origin: &Origin) -> String {
    let experiment = &campaign.experiment;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let title = experiment.about.title.clone().unwrap_or_else(|| name.to_string());
    let mut text = format!("\n## {title}\n\n`experiments/{name}`\n");
    if let Some(words) = &experiment.about.text {
        text.push_str(&format!("\n{}\n", words.trim()));
    }
    let unlike = campaign.unlike_the_server();
    if !unlike.is_empty() {
        text.push_str(&format!("\nNot as the server has it by default: {}.\n", unlike.join(", ")));
    }
    match origin {
        Origin::Run(words) | Origin::Kept(words) => text.push_str(&format!("\n{words}\n")),
        Origin::Nowhere => {
            let command = if experiment.run.kept.is_empty() { "experiments" } else { "experiments-all" };
            text.push_str(&format!("\nNot run yet: `make {command}` runs it.\n"));
            return text;
        }
    }
    let claims = claim_cells(experiment, outcomes);
    if claims.len() > 1 {
        text.push_str(&format!("\n{}", table::markdown(&claims)));
    }
    for plot in &experiment.plots {
        text.push_str(&format!("\n![{}]({}.svg)\n", plot.title, plot.name));
    }
    for cells in compare_cells(experiment, outcomes) {
        text.push_str(&format!("\n{}", table::markdown(&cells)));
    }
    if matches!(origin, Origin::Run(_)) {
        text.push_str(&runs(outcomes, &experiment.run.columns));
    }
    text
}

/// All runs as a table, folded away where it is long.
fn runs(outcomes: &[PointOutcome], columns: &[String]) -> String {
    let cells = table::cells(outcomes, columns);
    let rows = table::markdown(&cells);
    if cells.len() > LONG_TABLE {
        format!("\n<details><summary>All {} runs</summary>\n\n{rows}\n</details>\n", cells.len() - 1)
    } else {
        format!("\n{rows}")
    }
}

/// What the paper says beside what we measure, headings first.
pub(crate) fn claim_cells(experiment: &Experiment, outcomes: &[PointOutcome]) -> Vec<Vec<String>> {
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
pub(crate) fn compare_cells(experiment: &Experiment, outcomes: &[PointOutcome]) -> Vec<Vec<Vec<String>>> {
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
pub(crate) fn write(path: &Path, text: &str) -> Result<(), LabError> {
    let failed = |reason| LabError::Write { path: path.to_owned(), reason };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
