//! One file, many experiments: `[sweep]` names keys with lists of values, and every combination is run.
//!
//! A key is written with its section (`"devices.count"`, `"model.slo_ms"` for every model, `"model.NAME.slo_ms"` for
//! one, `"workload.arrivals.shape"`), or alone where the file has it in one section only (`slo_ms`). Where several keys
//! change together, `[[case]]` gives each combination a name.

use crate::LabError;
use crate::run::experiment::RunConfig;
use std::collections::BTreeMap;
use toml::{Table, Value};
use workload::Random;

const SECTIONS: [&str; 11] =
    ["model", "pipeline", "devices", "workload", "network", "noise", "scheduler", "policy", "elastic", "faults", "run"];
/// More points than this are a mistake in the file.
const MAX_POINTS: usize = 10_000;

/// One combination: the file with the values in place, and which they are.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) file: Table,
    pub(crate) values: Vec<(String, Value)>,
}

/// The part of an experiment that is run. What is absent is as the file says.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only points whose key has one of these values.
    pub only: BTreeMap<String, Vec<Value>>,
    /// Only so many of them, drawn by chance, always the same ones.
    pub sample: Option<usize>,
    /// Only these policies; empty: all.
    pub policies: Vec<String>,
    /// How long requests are sent.
    pub seconds: Option<f64>,
    /// At most about so many requests in each run of a search.
    pub max_requests: Option<f64>,
    /// The seeds; empty: as the file says.
    pub seeds: Vec<u64>,
}

impl Selection {
    /// Takes from the file what wasn't asked for otherwise.
    pub(crate) fn complete(&mut self, run: &RunConfig) {
        for (key, values) in &run.only {
            self.only.entry(key.clone()).or_insert_with(|| values.clone());
        }
        self.sample = self.sample.or(run.sample);
    }

    /// The points that were asked for, changed as was asked for.
    pub(crate) fn of(&self, mut points: Vec<Point>) -> Result<Vec<Point>, LabError> {
        for key in self.only.keys() {
            if !points.iter().any(|point| point.values.iter().any(|(name, _)| name == key)) {
                return Err(LabError::value(format!("only {key}: the sweep has no such key, write it as in [sweep]")));
            }
        }
        let wanted = |(key, value): &(String, Value)| {
            self.only.get(key).is_none_or(|values| values.iter().any(|wanted| same(value, wanted)))
        };
        points.retain(|point| point.values.iter().all(wanted));
        if points.is_empty() {
            return Err(LabError::value("no point of the sweep has the values that were asked for"));
        }
        if let Some(sample) = self.sample {
            draw(&mut points, sample);
        }
        for point in &mut points {
            self.change(&mut point.file)?;
        }
        Ok(points)
    }

    fn change(&self, file: &mut Table) -> Result<(), LabError> {
        let Some(Value::Table(run)) = file.get_mut("run") else { return Ok(()) };
        if !self.policies.is_empty() {
            run.insert("policies".into(), Value::from(self.policies.clone()));
        }
        if let Some(seconds) = self.seconds {
            run.insert("seconds".into(), Value::from(seconds));
        }
        if let Some(most) = self.max_requests {
            run.insert("max_requests".into(), Value::from(most));
        }
        if !self.seeds.is_empty() {
            let seeds = self.seeds.iter().map(|&seed| i64::try_from(seed).map(Value::from));
            let seeds = seeds.collect::<Result<Vec<_>, _>>();
            run.insert("seeds".into(), Value::Array(seeds.map_err(|_| LabError::value("a seed is too large"))?));
        }
        Ok(())
    }
}

/// Whether a value of the sweep is the one that was asked for: a number however it is written, a table by its name.
fn same(value: &Value, wanted: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|integer| integer as f64));
    match (number(value), number(wanted)) {
        (Some(value), Some(wanted)) => (value - wanted).abs() < 1e-9,
        _ => value == wanted || value.get("name").is_some_and(|name| name == wanted),
    }
}

/// Leaves so many of them, drawn by chance, in their order.
pub(crate) fn draw<T>(points: &mut Vec<T>, count: usize) {
    let mut random = Random::new(1, 3 << 40);
    let mut left = points.len();
    let mut wanted = count.min(left);
    points.retain(|_| {
        let taken = random.unit() * (left as f64) < wanted as f64;
        left -= 1;
        wanted -= usize::from(taken);
        taken
    });
}

/// All combinations of a file; the last key varies fastest. A file without `[sweep]` is one.
pub(crate) fn points(mut file: Table) -> Result<Vec<Point>, LabError> {
    // What is only shown isn't carried through every point.
    for shown in ["about", "plot", "claim", "compare"] {
        file.remove(shown);
    }
    let sweep = file.remove("sweep");
    let mut points = cases(file)?;
    let Some(sweep) = sweep else { return Ok(points) };
    let Value::Table(sweep) = sweep else {
        return Err(LabError::value("sweep must be a table of keys with lists of values"));
    };
    for (key, values) in sweep {
        let Value::Array(values) = values else {
            return Err(LabError::value(format!("sweep.{key} must be a list of values")));
        };
        if values.is_empty() || points.len() * values.len() > MAX_POINTS {
            return Err(LabError::value(format!(
                "sweep.{key} has {} values: give 1 or more, at most {MAX_POINTS} combinations",
                values.len()
            )));
        }
        let mut next = Vec::with_capacity(points.len() * values.len());
        for point in &points {
            for value in &values {
                let mut point = point.clone();
                set(&mut point.file, &key, value)?;
                point.values.push((key.clone(), value.clone()));
                next.push(point);
            }
        }
        points = next;
    }
    Ok(points)
}

/// One point for each `[[case]]`, or one in all.
fn cases(mut file: Table) -> Result<Vec<Point>, LabError> {
    let Some(cases) = file.remove("case") else { return Ok(vec![Point { file, values: Vec::new() }]) };
    let wrong = || LabError::value("every [[case]] needs a name and set = { KEY = VALUE, ... }, keys as in [sweep]");
    let mut points = Vec::new();
    for case in cases.as_array().ok_or_else(wrong)? {
        let (Some(name), Some(set_to)) = (case.get("name"), case.get("set").and_then(Value::as_table)) else {
            return Err(wrong());
        };
        let mut file = file.clone();
        for (key, value) in set_to {
            set(&mut file, key, value)?;
        }
        points.push(Point { file, values: vec![("case".to_owned(), name.clone())] });
    }
    Ok(points)
}

fn set(file: &mut Table, key: &str, value: &Value) -> Result<(), LabError> {
    // A whole section at once.
    if SECTIONS.contains(&key) {
        file.insert(key.to_owned(), value.clone());
        return Ok(());
    }
    let path: Vec<&str> = if key.contains('.') { key.split('.').collect() } else { vec![section_of(file, key)?, key] };
    if !SECTIONS.contains(&path[0]) {
        let message =
            format!("sweep.{key:?}: there is no section {:?}, expected one of {}", path[0], SECTIONS.join(", "));
        return Err(LabError::Value(message));
    }
    let section = file.entry(path[0]).or_insert_with(|| Value::Table(Table::new()));
    let done = match section {
        Value::Array(entries) => put_in_entries(entries, &path[1..], value),
        single => put(single, &path[1..], value),
    };
    if done {
        Ok(())
    } else {
        Err(LabError::value(format!("sweep.{key:?} leads through something that isn't a table")))
    }
}

/// Puts a value into every entry, or, where the path begins with the name of one, into that one.
fn put_in_entries(entries: &mut [Value], path: &[&str], value: &Value) -> bool {
    let named = |entry: &&mut Value| entry.get("name").and_then(Value::as_str) == path.first().copied();
    match (path, entries.iter_mut().find(named)) {
        ([_, rest @ ..], Some(entry)) if !rest.is_empty() => put(entry, rest, value),
        _ => entries.iter_mut().all(|entry| put(entry, path, value)),
    }
}

/// Puts a value at a path, making tables on the way; false where something else is in the way.
fn put(at: &mut Value, path: &[&str], value: &Value) -> bool {
    let Value::Table(table) = at else { return false };
    match path {
        [] => false,
        [last] => {
            table.insert((*last).to_owned(), value.clone());
            true
        }
        [first, rest @ ..] => put(table.entry(*first).or_insert_with(|| Value::Table(Table::new())), rest, value),
    }
}

/// The only section that has this key.
fn section_of(file: &Table, key: &str) -> Result<&'static str, LabError> {
    let has = |section: &&str| match file.get(*section) {
        Some(Value::Table(table)) => table.contains_key(key),
        Some(Value::Array(entries)) => entries.iter().any(|entry| entry.get(key).is_some()),
        _ => false,
    };
    let found: Vec<&'static str> = SECTIONS.into_iter().filter(has).collect();
    match found[..] {
        [section] => Ok(section),
        [] => Err(LabError::value(format!(
            "sweep.{key}: no section of the file has this key, so write it with its section, as in \"devices.count\""
        ))),
        _ => Err(LabError::value(format!(
            "sweep.{key}: {} have this key, so write it with its section",
            found.join(" and ")
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points_of(text: &str) -> Result<Vec<Point>, String> {
        points(text.parse().unwrap()).map_err(|error| error.to_string())
    }

    const FILE: &str = "[[model]]\nslo_ms = 1\n[[model]]\nslo_ms = 2\n[devices]\ncount = 1\n";

    #[test]
    fn every_combination_is_made() {
        let points = points_of(&format!("{FILE}[sweep]\nslo_ms = [10, 20]\n\"devices.count\" = [1, 2, 3]\n")).unwrap();
        assert_eq!(points.len(), 6);
        // Keys of a table are sorted: devices.count first, slo_ms varies fastest.
        assert_eq!(points[1].file["devices"]["count"].as_integer(), Some(1));
        assert_eq!(points[1].file["model"][0]["slo_ms"].as_integer(), Some(20));
        assert_eq!(points[1].file["model"][1]["slo_ms"].as_integer(), Some(20));
    }

    #[test]
    fn a_part_can_be_chosen() {
        let text = format!("{FILE}[run]\nseconds = 60\n[sweep]\nslo_ms = [10, 20, 30]\n\"devices.count\" = [1, 2]\n");
        let chosen = |selection: Selection| selection.of(points_of(&text).unwrap()).map_err(|error| error.to_string());
        let only = |key: &str, value: Value| BTreeMap::from([(key.to_owned(), vec![value])]);
        let twenty = chosen(Selection { only: only("slo_ms", 20.0.into()), ..Selection::default() }).unwrap();
        assert_eq!(twenty.len(), 2);
        let some = chosen(Selection { sample: Some(4), seconds: Some(5.0), ..Selection::default() }).unwrap();
        assert_eq!(some.len(), 4);
        assert_eq!(some[0].file["run"]["seconds"].as_float(), Some(5.0));
        assert_eq!(chosen(Selection { sample: Some(99), ..Selection::default() }).unwrap().len(), 6);
        let wrong = chosen(Selection { only: only("slo", 20.into()), ..Selection::default() }).unwrap_err();
        assert!(wrong.starts_with("only slo: the sweep has no such key"), "{wrong}");
        let none = chosen(Selection { only: only("slo_ms", 7.into()), ..Selection::default() }).unwrap_err();
        assert!(none.starts_with("no point of the sweep"), "{none}");
    }

    #[test]
    fn tables_are_chosen_by_their_name() {
        let text = format!(
            "{FILE}[sweep]\n\"model.latency\" = [{{ name = \"weak\", alpha_ms = 1 }}, {{ name = \"strong\", alpha_ms = 2 }}]\n"
        );
        let only = BTreeMap::from([("model.latency".to_owned(), vec![Value::from("strong")])]);
        let points = Selection { only, ..Selection::default() }.of(points_of(&text).unwrap()).unwrap();
        assert_eq!(points.len(), 1);
        assert_eq!(points[0].file["model"][1]["latency"]["alpha_ms"].as_integer(), Some(2));
    }

    #[test]
    fn cases_change_several_keys_at_once() {
        let case = |name: &str, set: &str| format!("[[case]]\nname = \"{name}\"\nset = {{ {set} }}\n");
        let one = case("one", "slo_ms = 5, \"devices.count\" = 9");
        let two = case("two", "model = [{ slo_ms = 7 }]");
        let points = points_of(&format!("{FILE}{one}{two}[sweep]\n\"devices.page_mb\" = [1, 2]\n")).unwrap();
        assert_eq!(points.len(), 4);
        assert_eq!(points[1].values[0], ("case".to_owned(), Value::from("one")));
        assert_eq!(points[1].file["model"][1]["slo_ms"].as_integer(), Some(5));
        assert_eq!(points[1].file["devices"]["page_mb"].as_integer(), Some(2));
        assert_eq!(points[2].file["model"].as_array().map(Vec::len), Some(1));
        assert!(points_of(&format!("{FILE}[[case]]\nname = \"x\"\n")).unwrap_err().starts_with("every [[case]]"));
    }

    #[test]
    fn a_key_of_one_model_leaves_the_others() {
        let file = "[[model]]\nname = \"quick\"\nslo_ms = 1\n[[model]]\nname = \"batch\"\n[devices]\n";
        let points =
            points_of(&format!("{file}[sweep]\n\"model.quick.slo_ms\" = [10]\n\"model.rows\" = [2]\n")).unwrap();
        let models = &points[0].file["model"];
        assert_eq!(models[0]["slo_ms"].as_integer(), Some(10));
        assert!(models[1].get("slo_ms").is_none() && models[1].get("quick").is_none(), "{models}");
        assert_eq!((models[0]["rows"].as_integer(), models[1]["rows"].as_integer()), (Some(2), Some(2)));
    }

    #[test]
    fn nested_keys_are_made_on_the_way() {
        let points = points_of(&format!("{FILE}[sweep]\n\"workload.arrivals.shape\" = [0.1]\n")).unwrap();
        assert_eq!(points[0].file["workload"]["arrivals"]["shape"].as_float(), Some(0.1));
    }

    #[test]
    fn keys_that_lead_nowhere_are_named() {
        let message = |sweep: &str| points_of(&format!("{FILE}[sweep]\n{sweep}\n")).unwrap_err();
        assert!(message("shape = [1]").starts_with("sweep.shape: no section of the file has this key"));
        assert!(message("slo_ms = 3").starts_with("sweep.slo_ms must be a list"));
        assert!(message("slo_ms = []").starts_with("sweep.slo_ms has 0 values"));
        assert!(message("\"device.count\" = [1]").contains("there is no section \"device\""));
        assert!(message("\"devices.count.x\" = [1]").contains("isn't a table"));
    }
}
