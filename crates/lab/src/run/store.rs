//! Results that outlive the process: one JSON object on a line for each policy at each point, written as they come.
//!
//! An entry is found again by what it depends on: the point of the sweep as a file, the policy with its settings, the
//! contents of tables and traces. With it stands a number for the sources of scheduler, world and laboratory
//! (`build.rs`); results of other sources are run again unless the caller says otherwise.

use crate::LabError;
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Mutex;

/// The sources that this program was built from.
pub(crate) const SOURCES: &str = env!("LAB_SOURCES");

/// Which of the results in a file are taken over.
#[derive(Clone, Debug, Default)]
pub struct Reuse {
    /// Results go to this file as they come, and what is there already isn't run again.
    pub file: Option<PathBuf>,
    /// Also take results of other sources, except those of these policies (empty: results of other sources are run
    /// again).
    pub again: Vec<String>,
}

/// What one entry came to.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) figures: Value,
    /// How long that took, in seconds of one core.
    pub(crate) took_s: f64,
}

#[derive(Debug)]
pub(crate) struct Store {
    known: HashMap<String, Kept>,
    out: Option<(PathBuf, Mutex<File>)>,
}

impl Store {
    pub(crate) fn open(reuse: &Reuse) -> Result<Self, LabError> {
        let Some(path) = &reuse.file else { return Ok(Self { known: HashMap::new(), out: None }) };
        let write = |reason| LabError::Write { path: path.clone(), reason };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(write)?;
        }
        let (known, cut) = match std::fs::read_to_string(path) {
            Ok(text) => (read(&text, &reuse.again), !text.is_empty() && !text.ends_with('\n')),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (HashMap::new(), false),
            Err(reason) => return Err(LabError::Read { path: path.clone(), reason }),
        };
        let mut file = File::options().create(true).append(true).open(path).map_err(write)?;
        if cut {
            file.write_all(b"\n").map_err(write)?;
        }
        Ok(Self { known, out: Some((path.clone(), Mutex::new(file))) })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Kept> {
        self.known.get(key)
    }

    /// Writes one entry down, so that it is there even if the process ends now.
    pub(crate) fn put(&self, key: &str, policy: &str, point: &Map<String, Value>, kept: &Kept) -> Result<(), LabError> {
        let Some((path, file)) = &self.out else { return Ok(()) };
        let line = json!({
            "key": key, "sources": SOURCES, "policy": policy, "point": point,
            "took_s": (kept.took_s * 1e3).round() / 1e3, "figures": kept.figures,
        });
        let mut file = file.lock().expect("nobody panics while holding it");
        // One write for the line and its end: a process that is killed leaves whole lines, or one that isn't JSON.
        file.write_all(format!("{line}\n").as_bytes()).map_err(|reason| LabError::Write { path: path.clone(), reason })
    }
}

/// The key of an entry.
pub(crate) fn key(world: &str, policy: &str) -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(world.as_bytes());
    hasher.update(&[0]);
    hasher.update(policy.as_bytes());
    hasher.finalize().to_hex()[..24].to_owned()
}

/// The usable lines. One that isn't JSON was cut by the end of a process, and is run again.
fn read(text: &str, again: &[String]) -> HashMap<String, Kept> {
    let mut known = HashMap::new();
    for entry in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        let (policy, sources) = (text("policy"), text("sources"));
        let usable = sources == SOURCES || (!again.is_empty() && !again.iter().any(|name| name == policy));
        if usable && let Some(figures) = entry.get("figures") {
            let took_s = entry.get("took_s").and_then(Value::as_f64).unwrap_or(0.0);
            known.insert(text("key").to_owned(), Kept { figures: figures.clone(), took_s });
        }
    }
    known
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_depend_on_every_crate_that_makes_them() {
        let crates: Vec<&str> = env!("LAB_CRATES").split(' ').collect();
        assert_eq!(crates, ["base", "planner", "recording", "scheduler", "sim", "workload"]);
    }

    #[test]
    fn results_are_found_again_unless_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let reuse = Reuse { file: Some(folder.path().join("deep/results.jsonl")), again: Vec::new() };
        let (world, point) = (key("world", "clockwork"), Map::new());
        let store = Store::open(&reuse).unwrap();
        assert!(store.get(&world).is_none());
        store.put(&world, "clockwork", &point, &Kept { figures: json!({"bad": 0.5}), took_s: 2.0 }).unwrap();
        drop(store);
        let path = reuse.file.clone().unwrap();
        let mut text = std::fs::read_to_string(&path).unwrap();
        text.push_str("{\"key\": \"cut");
        std::fs::write(&path, &text).unwrap();
        let store = Store::open(&reuse).unwrap();
        assert_eq!(store.get(&world).unwrap().figures["bad"], 0.5);
        let other = Kept { figures: json!({"bad": 0.25}), took_s: 1.0 };
        store.put(&key("world", "eager"), "eager", &point, &other).unwrap();
        let store = Store::open(&reuse).unwrap();
        assert_eq!(store.get(&key("world", "eager")).unwrap().figures["bad"], 0.25, "on a line of its own");
        assert!(store.get(&key("world", "other")).is_none());
        let old = text.replace(SOURCES, "0000000000000000");
        std::fs::write(&path, &old).unwrap();
        assert!(Store::open(&reuse).unwrap().get(&world).is_none(), "of other sources");
        let trusting = |again: &str| Reuse { again: vec![again.to_owned()], ..reuse.clone() };
        assert!(Store::open(&trusting("punctual")).unwrap().get(&world).is_some());
        assert!(Store::open(&trusting("clockwork")).unwrap().get(&world).is_none());
    }
}
