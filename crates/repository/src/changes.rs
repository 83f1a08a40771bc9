//! What has changed between two looks at a repository, and when a change has settled.

use crate::scan::ScanEntry;
use base::{Duration, Timestamp};
use std::collections::BTreeMap;

/// Something that is different from before.
#[derive(Clone, PartialEq, Debug)]
pub enum Change {
    /// Was not there.
    Added(ScanEntry),
    /// Has other files, another configuration, or is broken in another way.
    Changed(ScanEntry),
    /// Is no longer there.
    Removed {
        /// The model's name.
        name: String,
        /// The version; `None` where the whole model was broken.
        version: Option<u64>,
    },
}

type VersionKey = (String, Option<u64>);

/// The accepted state of a repository, and what differs from it but hasn't settled yet.
///
/// A difference counts once it has looked the same for the settling time: a model that is being copied changes with
/// every look and is left alone until the copy is done.
#[derive(Debug)]
pub struct Changes {
    settling: Duration,
    accepted: BTreeMap<VersionKey, ScanEntry>,
    /// What it may become (`None`: gone), and since when it looks like that.
    pending: BTreeMap<VersionKey, (Option<ScanEntry>, Timestamp)>,
}

impl Changes {
    /// Starts from a state that counts as it is.
    pub fn new(settling: Duration, start: Vec<ScanEntry>) -> Self {
        Self { settling, accepted: by_key(start), pending: BTreeMap::new() }
    }

    /// Whether something differs and hasn't settled: look again after the settling time.
    pub fn is_settling(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Takes in what is there at `now` and gives what has settled: first what to add, then what changed, then what to
    /// remove, so that a new version can be ready before the old one goes.
    pub fn look(&mut self, now: Timestamp, scan: Vec<ScanEntry>) -> Vec<Change> {
        let seen = by_key(scan);
        let mut pending = std::mem::take(&mut self.pending);
        let keys: Vec<VersionKey> = self.accepted.keys().chain(seen.keys()).cloned().collect();
        let mut settled = Vec::new();
        for key in keys {
            let entry = seen.get(&key);
            if self.accepted.get(&key) == entry {
                continue;
            }
            // The key may come twice, once from each map; the second time it is pending or accepted already.
            if self.pending.contains_key(&key) {
                continue;
            }
            let since = match pending.remove(&key) {
                Some((before, since)) if before.as_ref() == entry => since,
                _ => now,
            };
            if now.since(since) >= self.settling {
                settled.push(self.accept(key, entry.cloned()));
            } else {
                self.pending.insert(key, (entry.cloned(), since));
            }
        }
        settled.sort_by_key(|change| match change {
            Change::Added(_) => 0,
            Change::Changed(_) => 1,
            Change::Removed { .. } => 2,
        });
        settled
    }

    fn accept(&mut self, key: VersionKey, entry: Option<ScanEntry>) -> Change {
        match entry {
            Some(entry) => match self.accepted.insert(key, entry.clone()) {
                None => Change::Added(entry),
                Some(_) => Change::Changed(entry),
            },
            None => {
                self.accepted.remove(&key);
                Change::Removed { name: key.0, version: key.1 }
            }
        }
    }
}

fn by_key(entries: Vec<ScanEntry>) -> BTreeMap<VersionKey, ScanEntry> {
    entries.into_iter().map(|entry| ((entry.name().to_owned(), entry.version()), entry)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scan::{Broken, Fingerprint};

    /// A made-up state: `a1=x b2=y` is version 1 of `a` in state x, and so on.
    fn entries(text: &str) -> Vec<ScanEntry> {
        let entry = |part: &str| {
            let (name, state) = part.split_once('=').unwrap();
            ScanEntry::Broken(Broken {
                name: name[..1].to_owned(),
                version: name[1..].parse().ok(),
                reason: state.to_owned(),
                absent: false,
                fingerprint: Fingerprint::default(),
            })
        };
        text.split_whitespace().map(entry).collect()
    }

    fn show(changes: Vec<Change>) -> String {
        let line = |change: &Change| match change {
            Change::Added(e) => format!("+{}{}", e.name(), e.version().unwrap()),
            Change::Changed(e) => format!("~{}{}", e.name(), e.version().unwrap()),
            Change::Removed { name, version } => format!("-{name}{}", version.unwrap()),
        };
        changes.iter().map(line).collect::<Vec<_>>().join(" ")
    }

    /// Looks at the given milliseconds, with what is seen then and what must have settled.
    fn check(start: &str, looks: &[(u64, &str, &str)]) {
        let mut changes = Changes::new(Duration::from_millis(200), entries(start));
        for &(millis, seen, wanted) in looks {
            let now = Timestamp::ZERO + Duration::from_millis(millis);
            assert_eq!(show(changes.look(now, entries(seen))), wanted, "at {millis} ms");
        }
    }

    #[test]
    fn a_model_that_is_being_copied_counts_once_it_stays_the_same() {
        check(
            "a1=x",
            &[
                (0, "a1=x b1=1KB", ""),
                (100, "a1=x b1=2KB", ""),
                (250, "a1=x b1=2KB", ""),
                (299, "a1=x b1=2KB", ""),
                (300, "a1=x b1=2KB", "+b1"),
                (900, "a1=x b1=2KB", ""),
            ],
        );
    }

    #[test]
    fn a_change_that_is_undone_is_none() {
        check("a1=x", &[(0, "", ""), (100, "a1=x", ""), (400, "", ""), (599, "", ""), (600, "", "-a1"), (900, "", "")]);
        check("a1=x", &[(0, "a1=y", ""), (150, "a1=x", ""), (250, "a1=y", ""), (450, "a1=y", "~a1")]);
    }

    #[test]
    fn a_new_version_comes_before_the_old_one_goes() {
        check("a1=x c1=x", &[(0, "a2=x c1=y", ""), (200, "a2=x c1=y", "+a2 ~c1 -a1")]);
    }

    #[test]
    fn settling_says_whether_to_look_again() {
        let mut changes = Changes::new(Duration::from_millis(200), entries("a1=x"));
        assert!(!changes.is_settling());
        changes.look(Timestamp::ZERO, entries("a1=y"));
        assert!(changes.is_settling());
        changes.look(Timestamp::ZERO + Duration::from_secs(1), entries("a1=y"));
        assert!(!changes.is_settling());
    }
}
