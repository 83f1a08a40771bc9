//! Small documents in the cache folder: read if they are there, written whole or not at all.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The file of a key in a folder.
pub fn path(folder: &Path, key: &impl Serialize) -> PathBuf {
    let key = serde_json::to_vec(key).expect("a key is strings and numbers");
    folder.join(format!("{}.json", &blake3::hash(&key).to_hex()[..32]))
}

/// What a file says. `Ok(None)`: there is none.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, String> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Writes a file beside its place, and then moves it there.
pub fn write(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    serde_json::to_writer_pretty(&mut file, document)?;
    file.write_all(b"\n")?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}
