//! Results of large sweeps as they are kept beside the page: comma-separated values, one line for each policy at each
//! point, below a few lines about where they come from.

use crate::LabError;
use crate::run::campaign::{Campaign, PointOutcome};
use crate::show::table::shown;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Behind these words stands the state of the sources that results are of.
pub(crate) const FOUND_AT: &str = " hours of one core, at ";

/// What was kept.
#[derive(Clone, Debug)]
pub(crate) struct KeptResults {
    /// The lines at the top, without their `# `.
    pub(crate) origin: Vec<String>,
    pub(crate) outcomes: Vec<PointOutcome>,
}

/// The text of the file.
pub(crate) fn to_text(campaign: &Campaign, outcomes: &[PointOutcome], commit: &str, sources: &str) -> String {
    let run = &campaign.experiment.run;
    let hours = outcomes.iter().map(|outcome| outcome.took_s).sum::<f64>() / 3600.0;
    let points = campaign.points();
    let of = if points == campaign.all_points() { String::new() } else { format!(" of {}", campaign.all_points()) };
    let length = match run.bad_events {
        Some(events) => format!("as long as it takes for {events} bad requests"),
        None => {
            let most = campaign.max_requests().map(|most| format!(" (at most {most} requests)"));
            format!("{} s{}", campaign.seconds(), most.unwrap_or_default())
        }
    };
    let mut text = format!(
        "# {points}{of} points, {} policies, {length} and {} seeds each; found in {hours:.2}{FOUND_AT}{commit}, sources {sources}\n",
        outcomes.len() / points.max(1),
        campaign.seeds(),
    );
    let keys: Vec<&String> = outcomes.first().map(|first| first.point.keys().collect()).unwrap_or_default();
    let mut head = vec!["policy".to_owned()];
    head.extend(keys.iter().map(|key| (*key).clone()));
    head.extend(run.kept.iter().cloned());
    text.push_str(&format!("{}\n", head.join(",")));
    for outcome in outcomes {
        let mut line = vec![outcome.policy.clone()];
        line.extend(keys.iter().map(|key| outcome.point.get(*key).map(shown).unwrap_or_default()));
        line.extend(run.kept.iter().map(|figure| outcome.figure(figure).map(short).unwrap_or_default()));
        text.push_str(&format!("{}\n", line.join(",")));
    }
    text
}

/// A number to five digits.
fn short(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return "0".into();
    }
    let digits = (4 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Reads such a file; `None` where there is none.
pub(crate) fn read(path: &Path, figures: &[String]) -> Result<Option<KeptResults>, LabError> {
    match std::fs::read_to_string(path) {
        Ok(text) => {
            parse(&text, figures).map(Some).map_err(|message| LabError::value(format!("{}: {message}", path.display())))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(reason) => Err(LabError::Read { path: path.to_owned(), reason }),
    }
}

fn parse(text: &str, figures: &[String]) -> Result<KeptResults, String> {
    let origin = text.lines().filter_map(|line| line.strip_prefix("# ")).map(str::to_owned).collect();
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let head: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    if head.first() != Some(&"policy") {
        return Err("the first line must name the columns, `policy` first".into());
    }
    let outcome = |line: &str| {
        let fields: Vec<&str> = line.split(',').collect();
        if fields.len() != head.len() {
            return Err(format!("{line:?} has {} fields, not {}", fields.len(), head.len()));
        }
        let (mut point, mut found) = (Map::new(), Map::new());
        for (column, field) in head.iter().zip(&fields).skip(1) {
            let value = field.parse::<f64>().map_or_else(|_| json!(field), |number| json!(number));
            if figures.iter().any(|figure| figure == column) {
                found.insert((*column).to_owned(), if field.is_empty() { Value::Null } else { value });
            } else {
                point.insert((*column).to_owned(), value);
            }
        }
        Ok(PointOutcome { policy: fields[0].to_owned(), point, figures: Value::Object(found), took_s: 0.0 })
    };
    Ok(KeptResults { origin, outcomes: lines.map(outcome).collect::<Result<_, _>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[model]]
        name = "a"
        latency = { alpha_ms = 1, beta_ms = 1 }
        slo_ms = 10
        [devices]
        [workload]
        rate_rps = 10
        [run]
        policies = ["clockwork"]
        seconds = 1
        kept = ["goodput_rps", "bad", "missing"]
        [sweep]
        slo_ms = [10, 12.5]
        "model.latency" = [{ name = "weak", alpha_ms = 1, beta_ms = 1 }]
    "#;

    #[test]
    fn what_is_kept_is_read_back() {
        let campaign = Campaign::parse(FILE, Path::new("e.toml")).unwrap();
        let outcomes = campaign.run(false).unwrap();
        let text = to_text(&campaign, &outcomes, "abc", "0123");
        assert!(text.starts_with("# 2 points, 1 policies, 1 s and 1 seeds each; found in"), "{text}");
        let kept = parse(&text, &campaign.experiment.run.kept).unwrap();
        assert_eq!(kept.origin.len(), 1);
        assert_eq!(kept.outcomes.len(), 2);
        for (kept, outcome) in kept.outcomes.iter().zip(&outcomes) {
            assert_eq!(kept.figure("slo_ms"), outcome.figure("slo_ms"));
            assert_eq!(kept.point["model.latency"], "weak");
            let (kept, found) = (kept.figure("goodput_rps").unwrap(), outcome.figure("goodput_rps").unwrap());
            assert!((kept / found - 1.0).abs() < 1e-4);
        }
    }

    #[test]
    fn numbers_keep_five_digits() {
        assert_eq!(
            [5301.23456, 0.0098765432, 12.0, 0.0, 1234567.8].map(short),
            ["5301.2", "0.0098765", "12", "0", "1234568"]
        );
        assert!(parse("a,b\n", &[]).unwrap_err().starts_with("the first line must name"));
        assert!(parse("policy,b\nx\n", &[]).unwrap_err().contains("has 1 fields, not 2"));
    }
}
