//! Measured profiles, kept on disk so that a model is measured once on each machine.

use crate::kept;
use base::{BatchLatency, Duration, LatencyProfile};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Raise when the meaning of a stored profile changes: older files are then measured anew.
const FORMAT: u32 = 2;

/// What a profile is valid for: all of it must be the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProfileKey {
    /// Hash of the model's file.
    pub content: String,
    /// The engine and its version, for instance `onnxruntime 1.24.1`.
    pub engine: String,
    /// The kind of device with what changes its speed, for instance `cpu, 1 thread`.
    pub device: String,
    /// The machine; see `machine`.
    pub machine: String,
    /// The batch sizes that were measured, ascending.
    pub batch_sizes: Vec<u32>,
}

/// A measured profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredProfile {
    /// What batches and loads take.
    pub profile: LatencyProfile,
    /// What a batch takes whatever its inputs are, where the model leaves their sizes open.
    pub fixed: Duration,
    /// What the weights take on a device.
    pub weight_bytes: u64,
}

/// Profiles in a folder, one file each.
#[derive(Clone, Debug)]
pub struct ProfileStore {
    folder: PathBuf,
}

/// A stored profile as JSON. Times are whole nanoseconds.
#[derive(Serialize, Deserialize)]
struct Document {
    format: u32,
    key: ProfileKey,
    weight_bytes: u64,
    load_ns: u64,
    #[serde(default)]
    fixed_ns: u64,
    batches: Vec<StoredBatch>,
}

#[derive(Serialize, Deserialize)]
struct StoredBatch {
    batch: u32,
    median_ns: u64,
    p99_ns: u64,
    #[serde(default)]
    #[serde(alias = "beside_ns")]
    overlap_ns: u64,
}

impl ProfileStore {
    /// The profiles under a cache folder. Nothing is created before the first one is kept.
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join("profiles") }
    }

    /// The kept profile, if there is one that can be read. A broken file is warned of: the model is measured anew.
    pub fn load(&self, key: &ProfileKey) -> Option<StoredProfile> {
        let path = self.path(key);
        match read(&path, key) {
            Ok(found) => found,
            Err(reason) => {
                tracing::warn!(file = %path.display(), reason, "a kept profile can't be used: measuring anew");
                None
            }
        }
    }

    /// Keeps a profile. If that fails (a full disk, say), it is warned of and the model is measured again next time.
    pub fn save(&self, key: &ProfileKey, stored: &StoredProfile) {
        if let Err(error) = self.try_save(key, stored) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "the profile can't be kept: the model is measured again at the next start");
        }
    }

    fn try_save(&self, key: &ProfileKey, stored: &StoredProfile) -> io::Result<()> {
        let batch = |b: &BatchLatency| StoredBatch {
            batch: b.batch,
            median_ns: b.median.as_nanos(),
            p99_ns: b.p99.as_nanos(),
            overlap_ns: b.overlap.as_nanos(),
        };
        let document = Document {
            format: FORMAT,
            key: key.clone(),
            weight_bytes: stored.weight_bytes,
            load_ns: stored.profile.load().as_nanos(),
            fixed_ns: stored.fixed.as_nanos(),
            batches: stored.profile.batches().iter().map(batch).collect(),
        };
        kept::write(&self.path(key), &document)
    }

    /// The file in which a profile is kept.
    pub fn path(&self, key: &ProfileKey) -> PathBuf {
        kept::path(&self.folder, key)
    }
}

/// `Ok(None)`: there is none.
fn read(path: &Path, key: &ProfileKey) -> Result<Option<StoredProfile>, String> {
    let Some(document) = kept::read::<Document>(path)? else { return Ok(None) };
    if document.format != FORMAT {
        return Err(format!("it has format {}, expected {FORMAT}", document.format));
    }
    if document.key != *key {
        return Err("it was measured for something else".into());
    }
    let batch = |b: &StoredBatch| BatchLatency {
        batch: b.batch,
        median: Duration::from_nanos(b.median_ns),
        p99: Duration::from_nanos(b.p99_ns),
        overlap: Duration::from_nanos(b.overlap_ns),
    };
    let batches = document.batches.iter().map(batch).collect();
    let profile =
        LatencyProfile::new(batches, Duration::from_nanos(document.load_ns)).map_err(|error| error.to_string())?;
    if !profile.batches().iter().map(|b| b.batch).eq(key.batch_sizes.iter().copied()) {
        return Err("it lacks a batch size".into());
    }
    let fixed = Duration::from_nanos(document.fixed_ns);
    Ok(Some(StoredProfile { profile, fixed, weight_bytes: document.weight_bytes }))
}

/// What this machine is, as far as speed is concerned: its processor and how many cores we may use.
pub fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let name = name.map_or(std::env::consts::ARCH, |(_, name)| name.trim());
    format!("{name}, {cores} cores")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> ProfileKey {
        ProfileKey {
            content: "c0ffee".into(),
            engine: "onnxruntime 1".into(),
            device: "cpu".into(),
            machine: machine(),
            batch_sizes: vec![1, 4],
        }
    }

    fn stored() -> StoredProfile {
        let profile = LatencyProfile::linear(
            Duration::from_micros(100),
            Duration::from_nanos(333_333),
            &[1, 4],
            Duration::from_millis(7),
        );
        StoredProfile { profile: profile.unwrap(), fixed: Duration::from_micros(70), weight_bytes: 10_000_000 }
    }

    #[test]
    fn what_is_kept_comes_back_for_the_same_key_only() {
        let cache = tempfile::tempdir().unwrap();
        let store = ProfileStore::new(cache.path());
        assert_eq!(store.load(&key()), None);
        store.save(&key(), &stored());
        assert_eq!(store.load(&key()), Some(stored()));
        assert_eq!(store.load(&ProfileKey { engine: "onnxruntime 2".into(), ..key() }), None);
        assert_eq!(store.load(&ProfileKey { batch_sizes: vec![1], ..key() }), None);
        assert_eq!(fs::read_dir(&store.folder).unwrap().count(), 1, "no temporary file is left behind");
    }

    #[test]
    fn a_broken_file_is_measured_anew_and_replaced() {
        let cache = tempfile::tempdir().unwrap();
        let store = ProfileStore::new(cache.path());
        store.save(&key(), &stored());
        let whole = fs::read_to_string(store.path(&key())).unwrap();
        let other = whole.replace("c0ffee", "decaf");
        let empty = whole.replace("\"batch\": 4", "\"batch\": 1");
        for broken in
            ["", "{", &whole[..whole.len() / 2], &whole.replace("\"format\": 2", "\"format\": 9"), &other, &empty]
        {
            fs::write(store.path(&key()), broken).unwrap();
            assert_eq!(store.load(&key()), None, "{broken}");
        }
        store.save(&key(), &stored());
        assert_eq!(store.load(&key()), Some(stored()));
    }

    #[test]
    fn a_folder_that_cant_be_written_is_no_reason_to_stop() {
        let cache = tempfile::tempdir().unwrap();
        fs::write(cache.path().join("profiles"), "a file where the folder should be").unwrap();
        let store = ProfileStore::new(cache.path());
        store.save(&key(), &stored());
        assert!(store.try_save(&key(), &stored()).is_err());
        assert_eq!(store.load(&key()), None);
    }
}
