//! Where a process finds a model's files. What a process may open is settled when it starts, but models come later and
//! from anywhere: uploads, and folders that links lead to. Those are handed over, by links that are no symbolic ones,
//! or else by copies, in a folder that every process may read.

use crate::messages::ModelFiles;
use engine::{EngineError, FileHashes, ModelSource};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

/// The folder of the cache for what processes write, with a folder for each content of a model's file.
const KEPT: &str = "apart";
/// Begins the names of folders for what is handed over.
const HANDED: &str = "apart-";
/// Locked as long as the process lives that made such a folder.
const LOCK: &str = ".lock";
/// Where what is made of a model is kept that was handed over.
const CACHE: &str = ".cache";
/// For how long is kept what nobody uses: as long as what engines keep.
const UNUSED: Duration = Duration::from_secs(30 * 86_400);
/// More files than a model has, and deeper than they are.
const MAX_FILES: usize = 10_000;
const MAX_DEPTH: u32 = 8;

/// See the module.
pub(crate) struct ModelFolders {
    /// What every process may read.
    roots: Vec<PathBuf>,
    handed: TempDir,
    #[allow(dead_code, reason = "the lock is given back when this is dropped")]
    lock: File,
    next: AtomicU64,
    hashes: FileHashes,
}

/// A model's files, where a process finds them.
pub(crate) struct FoundFiles {
    pub(crate) files: ModelFiles,
    /// What was handed over, for as long as the model is there.
    handed: Option<PathBuf>,
}

impl Drop for FoundFiles {
    fn drop(&mut self) {
        if let Some(folder) = &self.handed
            && let Err(error) = fs::remove_dir_all(folder)
        {
            tracing::debug!("{}: it can't be removed: {error}", folder.display());
        }
    }
}

impl ModelFolders {
    /// With the folders that models are in, and one where something may be put.
    pub(crate) fn new(models: &[PathBuf], cache: Option<&Path>) -> io::Result<Self> {
        let place = cache.map_or_else(std::env::temp_dir, Path::to_owned);
        fs::create_dir_all(&place)?;
        remove_left_over(&place);
        let handed = tempfile::Builder::new().prefix(HANDED).tempdir_in(&place)?;
        let lock = File::create(handed.path().join(LOCK))?;
        // Where files can't be locked, no start finds one that it may remove.
        if let Err(error) = lock.lock() {
            tracing::debug!("{}: it can't be locked: {error}", handed.path().display());
        }
        let handed_path = handed.path().to_owned();
        let all = models.iter().map(PathBuf::as_path).chain(cache).chain([&*handed_path]);
        let roots = all.filter_map(|path| path.canonicalize().ok()).collect();
        Ok(Self { roots, handed, lock, next: AtomicU64::new(0), hashes: FileHashes::default() })
    }

    /// What every process may read.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        self.roots.clone()
    }

    /// Removes what was handed over, which nobody needs any more.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(self.handed.path()) {
            tracing::debug!("{}: it can't be removed: {error}", self.handed.path().display());
        }
    }

    /// Whether every process may read it.
    fn is_below(&self, path: &Path) -> bool {
        path.canonicalize().is_ok_and(|path| self.roots.iter().any(|root| path.starts_with(root)))
    }

    /// A model's files where a process may read them, and where what it makes of them is kept.
    pub(crate) fn find(&self, source: &ModelSource) -> Result<FoundFiles, EngineError> {
        let failed = |error: io::Error| EngineError::io(&source.file, error);
        if source.part.is_some() {
            // Only the tail of a model on a GPU is one, and a GPU's engine has no process of its own.
            return Err(EngineError::bad_model(&source.file, "a part of a model can't be computed in another process"));
        }
        let file = source.file.canonicalize().map_err(failed)?;
        // Beside the file as it is named, not as links have it: a model names its weights so.
        let folder = source.file.parent().unwrap_or(Path::new("."));
        let mut all = Vec::new();
        list(folder, Path::new(""), MAX_DEPTH, &mut all).map_err(failed)?;
        let at_home = all.iter().all(|name| self.is_below(&folder.join(name)));
        let mut files = ModelFiles {
            name: source.name.clone(),
            file: source.file.clone(),
            cache: None,
            max_batch: source.max_batch,
            shapes: source.shapes.clone(),
        };
        let mut handed = None;
        if !at_home {
            let there = self.handed.path().join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
            let found = handed.insert(there.clone());
            for name in &all {
                hand_over(&folder.join(name), &found.join(name)).map_err(failed)?;
            }
            files.file = there.join(source.file.file_name().unwrap_or_default());
        }
        let mut found = FoundFiles { files, handed };
        found.files.cache = self.cache(source, &file, &mut found.handed)?;
        Ok(found)
    }

    /// Where what is made of a model is kept, and nobody else's: who can write there can only deceive itself.
    fn cache(
        &self,
        source: &ModelSource,
        file: &Path,
        handed: &mut Option<PathBuf>,
    ) -> Result<Option<PathBuf>, EngineError> {
        let Some(cache) = &source.cache else { return Ok(None) };
        let hash = self.hashes.of(file).map_err(|error| EngineError::io(&source.file, error))?;
        let own = match self.is_below(cache) {
            true => cache.join(KEPT).join(hash.to_hex().as_str()),
            // Of an upload, whose own folder no process may read.
            false => {
                let next = || self.handed.path().join(self.next.fetch_add(1, Ordering::Relaxed).to_string());
                handed.get_or_insert_with(next).join(CACHE)
            }
        };
        if !own.exists() {
            // Without one, each load takes as long as the first.
            if let Err(error) = fs::create_dir_all(&own) {
                tracing::warn!("{}: it can't be made, and nothing is kept: {error}", own.display());
                return Ok(None);
            }
            own.parent().into_iter().for_each(|kept| prune(kept, &own, SystemTime::now()));
        }
        Ok(own.canonicalize().ok())
    }
}

/// The plain files of a folder and those below, also where links lead to them.
fn list(folder: &Path, below: &Path, depth: u32, into: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder.join(below))? {
        let name = below.join(entry?.file_name());
        let Ok(about) = fs::metadata(folder.join(&name)) else { continue };
        if about.is_dir() && depth > 0 {
            list(folder, &name, depth - 1, into)?;
        } else if about.is_file() {
            into.push(name);
        }
        if into.len() > MAX_FILES {
            return Err(io::Error::other(format!("there are more than {MAX_FILES} files in its folder")));
        }
    }
    Ok(())
}

fn hand_over(from: &Path, to: &Path) -> io::Result<()> {
    to.parent().map_or(Ok(()), fs::create_dir_all)?;
    let from = from.canonicalize()?;
    // Another file system, or a file of somebody else: then a copy.
    fs::hard_link(&from, to).or_else(|_| fs::copy(&from, to).map(drop))
}

/// Removes what processes left that were killed.
fn remove_left_over(place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(HANDED) {
            continue;
        }
        let free = File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if free && let Err(error) = fs::remove_dir_all(entry.path()) {
            tracing::debug!("{}: it can't be removed: {error}", entry.path().display());
        }
    }
}

/// Removes what is kept of models that nobody used for long.
fn prune(kept: &Path, new: &Path, now: SystemTime) {
    for entry in fs::read_dir(kept).into_iter().flatten().flatten() {
        let path = entry.path();
        let used = |path: &Path| fs::metadata(path).and_then(|about| about.modified()).unwrap_or(now);
        let files = fs::read_dir(&path).into_iter().flatten().flatten().map(|file| used(&file.path()));
        let last = files.fold(used(&path), SystemTime::max);
        let unused = now.duration_since(last).is_ok_and(|age| age > UNUSED);
        if path != new
            && unused
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::debug!("{}: it can't be removed: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(folder: &Path, cache: Option<&Path>) -> ModelSource {
        fs::create_dir_all(folder.join("data")).unwrap();
        fs::write(folder.join("model.onnx"), folder.to_string_lossy().as_bytes()).unwrap();
        fs::write(folder.join("data/weights"), "weights").unwrap();
        let cache = cache.map(Path::to_owned);
        ModelSource { name: "m".into(), file: folder.join("model.onnx"), cache, ..ModelSource::default() }
    }

    #[test]
    fn what_is_in_the_repository_stays_there_and_the_rest_is_handed_over_for_as_long_as_it_is_needed() {
        let [models, elsewhere, cache] = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let folders = ModelFolders::new(&[models.path().into()], Some(cache.path())).unwrap();
        let home = model(&models.path().join("a/1"), Some(cache.path()));
        let found = folders.find(&home).unwrap();
        assert_eq!((&found.files.file, &found.handed), (&home.file, &None));
        let upload = model(&elsewhere.path().join("b/1"), Some(&elsewhere.path().join("cache")));
        let linked = models.path().join("b");
        std::os::unix::fs::symlink(elsewhere.path().join("b"), &linked).unwrap();
        let by_link = ModelSource { file: linked.join("1/model.onnx"), ..upload.clone() };
        for source in [&upload, &by_link] {
            let found = folders.find(source).unwrap();
            let files = &found.files;
            assert!(folders.is_below(&files.file) && folders.is_below(files.cache.as_ref().unwrap()));
            assert_eq!(fs::read(&files.file).unwrap(), fs::read(&source.file).unwrap());
            assert_eq!(fs::read(files.file.with_file_name("data").join("weights")).unwrap(), b"weights");
            let there = files.file.clone();
            drop(found);
            assert!(!there.exists());
        }
        let part = ModelSource { part: Some(Default::default()), ..home.clone() };
        let missing = ModelSource { file: models.path().join("c/1/model.onnx"), ..home };
        assert!([part, missing].iter().all(|source| folders.find(source).is_err()));
    }

    #[test]
    fn models_of_different_content_have_different_places_for_what_is_made_of_them() {
        let [models, cache] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let folders = ModelFolders::new(&[models.path().into()], Some(cache.path())).unwrap();
        let [a, b] = ["a/1", "b/1"].map(|name| {
            let found = folders.find(&model(&models.path().join(name), Some(cache.path()))).unwrap();
            found.files.cache.clone().unwrap()
        });
        assert_ne!(a, b);
        let month_later = SystemTime::now() + UNUSED + UNUSED;
        fs::write(b.join("file"), "").unwrap();
        prune(a.parent().unwrap(), &a, month_later);
        assert!(a.exists() && !b.exists());
    }

    #[test]
    fn what_a_killed_server_left_is_removed_and_what_another_uses_is_not() {
        let cache = tempfile::tempdir().unwrap();
        let other = ModelFolders::new(&[], Some(cache.path())).unwrap();
        let left = cache.path().join("apart-left");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(LOCK), "").unwrap();
        let _folders = ModelFolders::new(&[], Some(cache.path())).unwrap();
        assert!(!left.exists() && other.handed.path().exists());
    }
}
