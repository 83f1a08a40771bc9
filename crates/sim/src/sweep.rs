//! One file, many experiments: `[sweep]` names keys with lists of values, and every combination is run.
//!
//! A key is written with its section (`"devices.count"`, `"model.slo_ms"` for every model, `"workload.arrivals.shape"`), or
//! alone where the file has it in one section only (`slo_ms`).

use crate::Error;
use toml::{Table, Value};

const SECTIONS: [&str; 8] = ["model", "devices", "workload", "network", "noise", "scheduler", "faults", "run"];
/// More points than this are a mistake in the file.
const MAX_POINTS: usize = 10_000;

/// One combination: the file with the values in place, and which they are.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) file: Table,
    pub(crate) values: Vec<(String, Value)>,
}

/// All combinations of a file; the last key varies fastest. A file without `[sweep]` is one.
pub(crate) fn points(mut file: Table) -> Result<Vec<Point>, Error> {
    let Some(sweep) = file.remove("sweep") else { return Ok(vec![Point { file, values: Vec::new() }]) };
    let Value::Table(sweep) = sweep else {
        return Err(Error::value("sweep must be a table of keys with lists of values"));
    };
    let mut points = vec![Point { file, values: Vec::new() }];
    for (key, values) in sweep {
        let Value::Array(values) = values else {
            return Err(Error::value(format!("sweep.{key} must be a list of values")));
        };
        if values.is_empty() || points.len() * values.len() > MAX_POINTS {
            return Err(Error::value(format!(
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

fn set(file: &mut Table, key: &str, value: &Value) -> Result<(), Error> {
    let path: Vec<&str> = if key.contains('.') { key.split('.').collect() } else { vec![section_of(file, key)?, key] };
    if !SECTIONS.contains(&path[0]) {
        let message =
            format!("sweep.{key:?}: there is no section {:?}, expected one of {}", path[0], SECTIONS.join(", "));
        return Err(Error::Value(message));
    }
    let section = file.entry(path[0]).or_insert_with(|| Value::Table(Table::new()));
    let done = match section {
        Value::Array(entries) => entries.iter_mut().all(|entry| put(entry, &path[1..], value)),
        single => put(single, &path[1..], value),
    };
    if done { Ok(()) } else { Err(Error::value(format!("sweep.{key:?} leads through something that isn't a table"))) }
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
fn section_of(file: &Table, key: &str) -> Result<&'static str, Error> {
    let has = |section: &&str| match file.get(*section) {
        Some(Value::Table(table)) => table.contains_key(key),
        Some(Value::Array(entries)) => entries.iter().any(|entry| entry.get(key).is_some()),
        _ => false,
    };
    let found: Vec<&'static str> = SECTIONS.into_iter().filter(has).collect();
    match found[..] {
        [section] => Ok(section),
        [] => Err(Error::value(format!(
            "sweep.{key}: no section of the file has this key, so write it with its section, as in \"devices.count\""
        ))),
        _ => Err(Error::value(format!(
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
