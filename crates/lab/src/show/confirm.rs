//! Whether the kept results of a large sweep still hold: some of its points are run again with today's sources, drawn
//! by chance. A change that doesn't touch what an experiment is about then costs minutes and not hours.

use crate::LabError;
use crate::run::campaign::{Campaign, PointOutcome};
use crate::run::store;
use crate::show::kept;
use std::collections::HashMap;
use std::path::Path;

/// Behind these words stands the state that a sample was run at.
pub(crate) const RUN_AGAIN: &str = " were run again at ";

/// If more than this part of a sample comes out otherwise, the older results say nothing any more.
const MOST_CHANGED: f64 = 0.05;

/// The text of the file with what came out otherwise put in its place, and what was looked at in its head; `None` if
/// all has to be run. `run` gives the outcomes of the sample.
pub(crate) fn confirmed(
    file: &Path,
    campaign: &Campaign,
    points: usize,
    commit: &str,
    run: impl FnOnce() -> Result<Vec<PointOutcome>, LabError>,
) -> Result<Option<String>, LabError> {
    let Ok(before) = std::fs::read_to_string(file) else { return Ok(None) };
    if before.lines().any(|line| line.starts_with('#') && line.contains(store::SOURCES)) {
        return Ok(Some(before));
    }
    if campaign.points() <= points {
        return Ok(None);
    }
    let outcomes = run()?;
    let now = kept::to_text(campaign, &outcomes, commit, store::SOURCES);
    let sweep = Sweep { results: campaign.len(), figures: campaign.experiment.run.kept.len() };
    let Some((text, said)) = merged(&before, &now, &sweep) else { return Ok(None) };
    let (head, rest) = text.split_once('\n').unwrap_or((&text, ""));
    let (sources, looked_at) = (store::SOURCES, outcomes.len());
    Ok(Some(format!(
        "{head}\n# {looked_at} of these results, at {points} points drawn by chance,{RUN_AGAIN}{commit}, sources {sources}: {said}\n{rest}"
    )))
}

/// The size of a file of results.
struct Sweep {
    /// Lines below the head.
    results: usize,
    /// Columns at the end of each, behind those that say which result it is.
    figures: usize,
}

/// `before` with the lines of `now` in their places, and what became of these; `None` if the files aren't of the same
/// sweep, or too much differs.
fn merged(before: &str, now: &str, sweep: &Sweep) -> Option<(String, String)> {
    let (origin, old) = parts(before)?;
    let (_, new) = parts(now)?;
    let (head, old) = old.split_first()?;
    let (new_head, new) = new.split_first()?;
    if head != new_head || old.len() != sweep.results {
        return None;
    }
    let which = |line: &str| line.rsplitn(sweep.figures + 1, ',').last().unwrap_or_default().to_owned();
    let mut found: HashMap<String, &str> = new.iter().map(|line| (which(line), *line)).collect();
    let (looked_at, mut changed) = (found.len(), 0);
    let mut text = format!("{origin}\n{head}\n");
    for line in old {
        let now = found.remove(&which(line)).unwrap_or(line);
        changed += usize::from(now != *line);
        text.push_str(&format!("{now}\n"));
    }
    if !found.is_empty() || looked_at == 0 || changed as f64 > MOST_CHANGED * looked_at as f64 {
        return None;
    }
    let said = match changed {
        0 => "all came out the same to five digits".to_owned(),
        changed => format!("{} came out the same to five digits, {changed} didn't and are new", looked_at - changed),
    };
    Some((text, said))
}

/// The line about where results come from, and the lines that aren't about that.
fn parts(text: &str) -> Option<(&str, Vec<&str>)> {
    let origin = text.lines().find(|line| line.starts_with("# "))?;
    Some((origin, text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "# found\n# 1 of these were run again at commit 1\npolicy,slo,good\na,1,5\na,2,6\nb,1,7\nb,2,8\n";
    const SWEEP: Sweep = Sweep { results: 4, figures: 1 };

    #[test]
    fn older_results_stand_while_a_sample_comes_out_the_same() {
        let now = "# new\npolicy,slo,good\na,2,6\nb,2,8\n";
        let (text, said) = merged(OLD, now, &SWEEP).unwrap();
        assert_eq!(text, "# found\npolicy,slo,good\na,1,5\na,2,6\nb,1,7\nb,2,8\n");
        assert_eq!(said, "all came out the same to five digits");
    }

    #[test]
    fn older_results_fall_when_a_sample_comes_out_otherwise() {
        assert!(merged(OLD, "# new\npolicy,slo,good\na,2,6\nb,2,9\n", &SWEEP).is_none(), "a half of it differs");
        assert!(merged(OLD, "# new\npolicy,slo,good\na,3,6\n", &SWEEP).is_none(), "a point that wasn't there");
        assert!(merged(OLD, "# new\npolicy,slo,bad\na,2,6\n", &SWEEP).is_none(), "another figure");
        assert!(
            merged(OLD, "# new\npolicy,slo,good\na,2,6\n", &Sweep { results: 6, ..SWEEP }).is_none(),
            "a larger sweep"
        );
        assert!(merged(OLD, "# new\npolicy,slo,good\n", &SWEEP).is_none(), "an empty sample shows nothing");
    }

    #[test]
    fn the_few_that_differ_are_put_in_their_places() {
        let line = |slo: usize, good: usize| format!("a,{slo},{good}\n");
        let before: String = (0..100).map(|slo| line(slo, 1)).collect();
        let now: String = (0..40).map(|slo| line(slo, if slo == 7 { 2 } else { 1 })).collect();
        let head = "# found\npolicy,slo,good\n";
        let sweep = Sweep { results: 100, figures: 1 };
        let (text, said) = merged(&format!("{head}{before}"), &format!("{head}{now}"), &sweep).unwrap();
        assert_eq!(said, "39 came out the same to five digits, 1 didn't and are new");
        assert_eq!(text, format!("{head}{before}").replace("a,7,1\n", "a,7,2\n"));
    }
}
