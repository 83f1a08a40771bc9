//! What clients send with a load: in a folder of its own, together with what is kept of preparing it, for as long as it
//! is served.

use repository::FoundModel;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Begins the names of such folders among the system's temporary ones.
const PREFIX: &str = "punctual-upload-";
/// Locked as long as the process lives that made the folder. No model has a name that begins like this.
const LOCK: &str = ".lock";
/// Where what is prepared and measured is kept.
const CACHE: &str = ".cache";

/// See the module. The folder goes when this is dropped.
pub(crate) struct Upload {
    folder: TempDir,
    #[allow(dead_code, reason = "the lock is given back when this is dropped")]
    lock: File,
}

impl Upload {
    pub(crate) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(folder: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(folder)?;
        let lock = File::create(folder.path().join(LOCK))?;
        // Where files can't be locked, no start finds one that it may remove.
        if let Err(error) = lock.lock() {
            tracing::debug!(
                "{}: it can't be locked and stays if the server is killed: {error}",
                folder.path().display()
            );
        }
        Ok(Self { folder, lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Where results of preparing a model are kept: of an upload in its folder, of others in the server's cache.
pub(crate) fn cache_of(found: &FoundModel, cache: Option<&Path>) -> Option<PathBuf> {
    let upload = found.folder.parent().filter(|folder| is_upload(folder) && folder.join(LOCK).is_file());
    Some(upload.map_or(cache?.to_owned(), |folder| folder.join(CACHE)))
}

fn is_upload(folder: &Path) -> bool {
    folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
}

/// Removes what processes of this user left that were killed.
pub(crate) fn remove_left_over() {
    remove_left_over_in(&std::env::temp_dir());
}

fn remove_left_over_in(folder: &Path) {
    let user = fs::metadata("/proc/self").map(|own| own.uid()).ok();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // Another user's could hold anything.
        let own = entry.metadata().is_ok_and(|data| data.is_dir() && Some(data.uid()) == user);
        if !own || !is_upload(&path) {
            continue;
        }
        let Ok(lock) = File::open(path.join(LOCK)) else { continue };
        if lock.try_lock().is_err() {
            continue;
        }
        match fs::remove_dir_all(&path) {
            Ok(()) => tracing::info!("{}: removed, left by a server that was killed", path.display()),
            Err(error) => {
                tracing::warn!("{}: left by a server that was killed, can't be removed: {error}", path.display());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(folder: PathBuf) -> FoundModel {
        let (name, version, file) = ("m".to_owned(), 1, folder.join("1/model.onnx"));
        FoundModel { name, version, folder, file, config: Default::default(), fingerprint: Default::default() }
    }

    #[test]
    fn what_is_kept_of_an_upload_goes_with_it() {
        let (temporary, cache) = (tempfile::tempdir().unwrap(), Path::new("/cache"));
        let upload = Upload::new_in(temporary.path()).unwrap();
        let model = found(upload.path().join("m"));
        let kept = cache_of(&model, Some(cache)).unwrap();
        assert!(kept.starts_with(upload.path()));
        assert_eq!(cache_of(&model, None), None, "where nothing is kept, nothing of uploads is");
        assert_eq!(cache_of(&found("/models/m".into()), Some(cache)).unwrap(), cache);
        fs::create_dir(&kept).unwrap();
        drop(upload);
        assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0);
    }

    #[test]
    fn uploads_of_killed_processes_are_removed_and_those_of_others_stay() {
        let temporary = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let folder = temporary.path().join(name);
            fs::create_dir_all(folder.join("m/1")).unwrap();
            fs::write(folder.join(LOCK), "").unwrap();
            folder
        };
        let left = make("punctual-upload-left");
        let foreign = make("something-else");
        let held = Upload::new_in(temporary.path()).unwrap();
        remove_left_over_in(temporary.path());
        assert!(!left.exists() && foreign.exists() && held.path().exists());
    }
}
