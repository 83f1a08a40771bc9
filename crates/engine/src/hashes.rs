//! The hashes of files.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The hashes of files that were read before. Thousands of models may be one file under many names.
#[derive(Debug, Default)]
pub struct FileHashes(Mutex<HashMap<FileState, blake3::Hash>>);

/// A file as the system knows it: while all of this stays the same, so does its content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct FileState {
    device: u64,
    number: u64,
    bytes: u64,
    changed: (i64, i64),
}

impl FileHashes {
    /// Hash of a plain file's content: of as much as there is when it begins, since a file may grow, and devices and
    /// pipes may never end.
    pub fn of(&self, file: &Path) -> io::Result<blake3::Hash> {
        let about = fs::metadata(file)?;
        if !about.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
        }
        let changed = (about.ctime(), about.ctime_nsec());
        let state = FileState { device: about.dev(), number: about.ino(), bytes: about.len(), changed };
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&hash) = known().get(&state) {
            return Ok(hash);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(fs::File::open(file)?.take(about.len()))?;
        let hash = hasher.finalize();
        known().insert(state, hash);
        Ok(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_follow_the_content() {
        let (folder, hashes) = (tempfile::tempdir().unwrap(), FileHashes::default());
        let (a, b, link) = (folder.path().join("a"), folder.path().join("b"), folder.path().join("link"));
        fs::write(&a, "one").unwrap();
        fs::write(&b, "another").unwrap();
        fs::hard_link(&a, &link).unwrap();
        assert_ne!(hashes.of(&a).unwrap(), hashes.of(&b).unwrap());
        assert_eq!(hashes.of(&a).unwrap(), hashes.of(&link).unwrap());
        assert_eq!(hashes.0.lock().unwrap().len(), 2, "a link is the file that it names");
        fs::write(&b, "one").unwrap();
        assert_eq!(hashes.of(&a).unwrap(), hashes.of(&b).unwrap());
        assert!(hashes.of(&folder.path().join("none")).is_err());
    }

    #[test]
    fn what_is_not_a_plain_file_is_not_read() {
        let (folder, hashes) = (tempfile::tempdir().unwrap(), FileHashes::default());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&socket, Path::new("/dev/null")] {
            assert!(hashes.of(path).unwrap_err().to_string().contains("not a plain file"));
        }
    }
}
