//! The page of experiments: for each file its words, its plots, the paper's numbers beside ours, and its table.

use crate::campaign::{Campaign, Outcome};
use crate::claim::Claim;
use crate::{Error, table};
use std::path::{Path, PathBuf};

const HEAD: &str = "\
# Experiments

Every figure on this page comes from the simulator: the scheduler that serves live, driven in virtual time, with every
invariant checked all along. One command runs all of it again and writes this page and its plots:

```text
make experiments
```

`punctual simulate experiments/NAME.toml` runs one of them and prints its table, `--json` everything that was measured.
";

/// A table of more lines than this is folded away.
const LONG_TABLE: usize = 10;

/// Runs every experiment of a folder, in the order of their names, and writes the page.
pub(crate) fn build(experiments: &Path, folder: &Path, progress: bool) -> Result<PathBuf, Error> {
    let mut page = HEAD.to_owned();
    for path in files(experiments)? {
        let campaign = Campaign::read(&path)?;
        let outcomes = campaign.run(progress)?;
        page.push_str(&section(&path, &campaign, &outcomes));
        for plot in &campaign.experiment.plots {
            write(&folder.join(format!("{}.svg", plot.name)), &plot.draw(&outcomes))?;
        }
    }
    let path = folder.join("README.md");
    write(&path, &page)?;
    Ok(path)
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

fn section(path: &Path, campaign: &Campaign, outcomes: &[Outcome]) -> String {
    let about = &campaign.experiment.about;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let title = about.title.clone().unwrap_or_else(|| name.to_string());
    let mut text = format!("\n## {title}\n\n`experiments/{name}`\n");
    if let Some(words) = &about.text {
        text.push_str(&format!("\n{}\n", words.trim()));
    }
    let claims = claim_cells(&campaign.experiment.claims, outcomes);
    if claims.len() > 1 {
        text.push_str(&format!("\n{}", table::markdown(&claims)));
    }
    for plot in &campaign.experiment.plots {
        text.push_str(&format!("\n![{}]({}.svg)\n", plot.title, plot.name));
    }
    let cells = table::cells(outcomes);
    let rows = table::markdown(&cells);
    if cells.len() > LONG_TABLE {
        text.push_str(&format!("\n<details><summary>All {} runs</summary>\n\n{rows}\n</details>\n", cells.len() - 1));
    } else {
        text.push_str(&format!("\n{rows}"));
    }
    text
}

/// What the paper says beside what we measure, headings first.
pub(crate) fn claim_cells(claims: &[Claim], outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let mut cells = vec![["the paper says", "so we ask for", "here", "agrees", "note"].map(str::to_owned).to_vec()];
    for claim in claims {
        let ours = claim.ours(outcomes);
        let found = ours.map_or_else(|| "not measured".to_owned(), |ours| claim.found(ours));
        let agrees = if ours.is_some_and(|ours| claim.agrees(ours)) { "yes" } else { "no" };
        cells.push(vec![claim.says.clone(), claim.wanted(), found, agrees.to_owned(), claim.note.clone()]);
    }
    if claims.iter().all(|claim| claim.note.is_empty()) {
        cells.iter_mut().for_each(|row| row.truncate(4));
    }
    cells
}

/// Writes a file, making its folder if need be.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
