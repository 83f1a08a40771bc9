//! All places that models come from, as folders on this machine; buckets are copied into the cache and looked at again.

use crate::source::{Bucket, RepositorySource};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[cfg(feature = "cloud")]
use crate::mirror::Mirror;

/// Why models can't be brought here.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The store refuses, isn't there, or has no such bucket.
    #[error("{url} can't be read: {reason}; {advice}")]
    Remote {
        /// Which one.
        url: String,
        /// What the store or the network said.
        reason: String,
        /// What to look at.
        advice: &'static str,
    },
    /// The cache can't be written.
    #[error("{} can't be written: {reason}", path.display())]
    Local {
        /// Which file or folder.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// The bucket is written to all the time.
    #[error("{url} changed {attempts} times while it was copied: it is tried again later")]
    Changing {
        /// Which one.
        url: String,
        /// How often it was tried.
        attempts: u32,
    },
    /// Somebody named a whole bucket where a folder of it was meant.
    #[error("{url} has more than {most} objects: name the folder in it that has the models")]
    TooMany {
        /// Which one.
        url: String,
        /// The bound.
        most: usize,
    },
    /// The server is going down.
    #[error("the copy was stopped")]
    Stopped,
    /// There is nowhere to copy to.
    #[error("{url} needs a folder to copy models to: give --cache-dir")]
    NoCache {
        /// Which one.
        url: String,
    },
    /// Built without them.
    #[error("{url} needs a build with the feature `cloud`: use a folder instead")]
    NotBuilt {
        /// Which one.
        url: String,
    },
}

impl SourceError {
    #[cfg(feature = "cloud")]
    pub(crate) fn remote(bucket: &Bucket, error: &object_store::Error) -> Self {
        let mut reason = error.to_string();
        // The library's sentences name what was tried first and the cause last; some end with a whole answer.
        reason.truncate(reason.char_indices().nth(600).map_or(reason.len(), |(end, _)| end));
        let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
        Self::Remote { url: bucket.url.clone(), reason, advice: crate::store::advice(bucket.kind) }
    }

    #[cfg(feature = "cloud")]
    pub(crate) fn local(path: &Path, error: &std::io::Error) -> Self {
        Self::Local { path: path.to_owned(), reason: error.to_string() }
    }
}

/// Which models of a bucket to download.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WantedModels {
    /// Every one.
    All,
    /// Those of these names; of the others only the folders are made.
    Only(BTreeSet<String>),
}

impl WantedModels {
    /// Whether a model is among them.
    pub fn includes(&self, model: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(model),
        }
    }
}

/// How far a download is.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Files in all.
    pub files: usize,
    /// Bytes that have come.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// The file that the last ones belong to.
    pub current: String,
}

/// All places that models come from.
pub struct Sources {
    roots: Vec<PathBuf>,
    /// Set when nothing more is to be copied.
    stopped: Arc<AtomicBool>,
    #[cfg(feature = "cloud")]
    mirrors: Vec<std::sync::Mutex<Mirror>>,
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("roots", &self.roots).finish_non_exhaustive()
    }
}

impl Sources {
    /// Opens them; nothing is sent or downloaded yet.
    #[cfg(feature = "cloud")]
    pub fn open(sources: &[RepositorySource], cache: Option<&Path>) -> Result<Self, SourceError> {
        let (mut roots, mut mirrors) = (Vec::new(), Vec::new());
        let stopped = Arc::new(AtomicBool::new(false));
        for source in sources {
            match source {
                RepositorySource::Folder(folder) => roots.push(folder.clone()),
                RepositorySource::Bucket(bucket) => {
                    let cache = cache.ok_or_else(|| SourceError::NoCache { url: bucket.url.clone() })?;
                    let mirror = Mirror::open(bucket, cache, Arc::clone(&stopped))?;
                    roots.push(mirror.models());
                    mirrors.push(std::sync::Mutex::new(mirror));
                }
            }
        }
        Ok(Self { roots, mirrors, stopped })
    }

    /// Opens them: folders alone, in this build.
    #[cfg(not(feature = "cloud"))]
    pub fn open(sources: &[RepositorySource], _cache: Option<&Path>) -> Result<Self, SourceError> {
        let root = |source: &RepositorySource| match source {
            RepositorySource::Folder(folder) => Ok(folder.clone()),
            RepositorySource::Bucket(Bucket { url, .. }) => Err(SourceError::NotBuilt { url: url.clone() }),
        };
        Ok(Self { roots: sources.iter().map(root).collect::<Result<_, _>>()?, stopped: Arc::default() })
    }

    /// Ends copies that are under way, and lets none begin.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// The folders in which the models are or will be.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Whether something must be looked at from time to time, because nobody tells when it changes.
    pub fn has_buckets(&self) -> bool {
        #[cfg(feature = "cloud")]
        return !self.mirrors.is_empty();
        #[cfg(not(feature = "cloud"))]
        false
    }

    /// Copies what has changed in the buckets. A bucket that can't be read doesn't keep the others from being copied;
    /// the first error is returned. With a `settling` time, models that are being written are left as they are.
    #[cfg(feature = "cloud")]
    pub fn sync(
        &self,
        wanted: &WantedModels,
        settling: base::Duration,
        progress: &dyn Fn(&Transfer),
    ) -> Result<(), SourceError> {
        let mut first = Ok(());
        for mirror in &self.mirrors {
            let mut mirror = mirror.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let done = mirror.sync(wanted, settling.into(), progress);
            if first.is_ok() {
                first = done;
            }
        }
        first
    }

    /// Nothing to copy in this build.
    #[cfg(not(feature = "cloud"))]
    pub fn sync(
        &self,
        _wanted: &WantedModels,
        _settling: base::Duration,
        _progress: &dyn Fn(&Transfer),
    ) -> Result<(), SourceError> {
        Ok(())
    }

    /// Whether copies of an earlier run are there for every bucket, so that one can do without a store that isn't.
    pub fn has_copies(&self) -> bool {
        #[cfg(feature = "cloud")]
        return self
            .mirrors
            .iter()
            .all(|mirror| mirror.lock().unwrap_or_else(std::sync::PoisonError::into_inner).has_copies());
        #[cfg(not(feature = "cloud"))]
        true
    }
}
