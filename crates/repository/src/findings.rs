//! What was found out about models by running them, kept on disk so that they are run for it once.

use crate::kept;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

/// What a finding is valid for: all of it must be the same.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FindingKey {
    /// Hash of the model's file.
    pub content: String,
    /// The engine and its version.
    pub engine: String,
    /// What the configuration says of the model's inputs, and of what is to be found out.
    pub inputs: String,
}

/// Something that can be found out about a model.
pub trait Finding: Serialize + DeserializeOwned + Clone {
    /// The folder of such findings in the cache.
    const FOLDER: &str;
}

/// Whether a model's first dimension is a batch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchFinding {
    /// Whether it is.
    pub batches: bool,
    /// What showed it, as a sentence.
    pub why: String,
}

impl Finding for BatchFinding {
    const FOLDER: &str = "findings";
}

/// What a model is computed in.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PrecisionFinding {
    /// The precision, and how far it is off.
    pub chosen: TriedPrecision,
    /// Those that were too far off.
    pub others: Vec<TriedPrecision>,
    /// One that is near enough as well, and isn't faster.
    pub no_faster: Option<TriedPrecision>,
}

/// A precision that was tried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TriedPrecision {
    /// Its name.
    pub precision: String,
    /// How far outputs are off, as a part of an output's range; `None`: infinitely.
    pub error: Option<f64>,
}

impl Finding for PrecisionFinding {
    const FOLDER: &str = "precisions";
}

/// Batch sizes that a model is prepared for besides the usual ones, because traffic showed that they pay.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SizesFinding {
    /// Rows, ascending.
    pub added: Vec<u32>,
}

impl Finding for SizesFinding {
    const FOLDER: &str = "sizes";
}

/// A finding as JSON.
#[derive(Serialize, Deserialize)]
struct Document<F> {
    key: FindingKey,
    finding: F,
}

/// Findings of one kind in a folder, one file each.
#[derive(Clone, Debug)]
pub struct FindingStore<F> {
    folder: PathBuf,
    kind: PhantomData<F>,
}

impl<F: Finding> FindingStore<F> {
    /// The findings under a cache folder. Nothing is created before the first one is kept.
    pub fn new(cache: &Path) -> Self {
        Self { folder: cache.join(F::FOLDER), kind: PhantomData }
    }

    /// The kept finding, if there is one that can be read. A broken file is warned of: the model is looked at anew.
    pub fn load(&self, key: &FindingKey) -> Option<F> {
        let path = kept::path(&self.folder, key);
        match kept::read::<Document<F>>(&path) {
            Ok(found) => found.filter(|document| document.key == *key).map(|document| document.finding),
            Err(reason) => {
                tracing::warn!(file = %path.display(), reason, "a kept finding can't be used: looking anew");
                None
            }
        }
    }

    /// Keeps a finding. If that fails (a full disk, say), it is warned of and the model is looked at again next time.
    pub fn save(&self, key: &FindingKey, finding: &F) {
        let document = Document { key: key.clone(), finding: finding.clone() };
        if let Err(error) = kept::write(&kept::path(&self.folder, key), &document) {
            let folder = self.folder.display();
            tracing::warn!(%folder, %error, "what was found can't be kept: the model is looked at again at the next start");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_found_once() {
        let cache = tempfile::tempdir().unwrap();
        let store = FindingStore::new(cache.path());
        let key = FindingKey { content: "c0ffee".into(), engine: "onnxruntime 1".into(), inputs: String::new() };
        let finding = BatchFinding { batches: true, why: "rows are computed alone".into() };
        assert_eq!(store.load(&key), None);
        store.save(&key, &finding);
        assert_eq!(store.load(&key), Some(finding));
        assert_eq!(store.load(&FindingKey { engine: "onnxruntime 2".into(), ..key.clone() }), None);
        std::fs::write(kept::path(&store.folder, &key), "{").unwrap();
        assert_eq!(store.load(&key), None);
    }

    #[test]
    fn findings_of_different_kinds_do_not_meet_and_infinite_errors_come_back() {
        let cache = tempfile::tempdir().unwrap();
        let key = FindingKey { content: "c0ffee".into(), engine: "cuda".into(), inputs: String::new() };
        let batch = BatchFinding { batches: true, why: String::new() };
        FindingStore::new(cache.path()).save(&key, &batch);
        let store = FindingStore::<PrecisionFinding>::new(cache.path());
        assert_eq!(store.load(&key), None);
        let tried = |precision: &str, error| TriedPrecision { precision: precision.into(), error };
        let [chosen, others] = [tried("tf32", Some(1e-3)), tried("tf32+4", None)];
        let no_faster = Some(tried("fp16", Some(1e-2)));
        let finding = PrecisionFinding { chosen, others: vec![others], no_faster };
        store.save(&key, &finding);
        assert_eq!(store.load(&key), Some(finding.clone()));
        assert_eq!(FindingStore::new(cache.path()).load(&key), Some(batch));
        // Without the field it is read as well.
        let path = kept::path(&store.folder, &key);
        let mut document: serde_json::Value = kept::read(&path).unwrap().unwrap();
        assert!(document["finding"].as_object_mut().unwrap().remove("no_faster").is_some());
        kept::write(&path, &document).unwrap();
        assert_eq!(store.load(&key), Some(PrecisionFinding { no_faster: None, ..finding }));
    }
}
