//! Where the runtime's shared library is.

use engine::EngineError;
use std::env;
use std::path::{Path, PathBuf};

/// The environment variables that name the library, the first one that is set counts.
const VARIABLES: [&str; 2] = ["PUNCTUAL_ONNXRUNTIME", "ORT_DYLIB_PATH"];

/// The library that the environment names, or else the one that `scripts/setup runtime` put into `.cache` above the
/// program or the current folder.
pub fn find() -> Result<PathBuf, EngineError> {
    for variable in VARIABLES {
        if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
            return if path.is_file() {
                Ok(path)
            } else {
                Err(unavailable(format!(
                    "{variable} names {}, which is not a file: set it to libonnxruntime.so or unset it",
                    path.display()
                )))
            };
        }
    }
    let program = env::current_exe().ok();
    let folder = env::current_dir().ok();
    let starts = program.iter().filter_map(|path| path.parent()).chain(folder.as_deref());
    starts.flat_map(Path::ancestors).find_map(in_cache_of).ok_or_else(|| {
        unavailable(format!(
            "libonnxruntime.so was found neither through {} nor in .cache/onnxruntime above the program or the current \
             folder: run scripts/setup runtime or set {}",
            VARIABLES.join(" or "),
            VARIABLES[0]
        ))
    })
}

/// The newest library in `.cache/onnxruntime/<version>/` of a folder.
fn in_cache_of(folder: &Path) -> Option<PathBuf> {
    let versions = folder.join(".cache/onnxruntime").read_dir().ok()?;
    let mut found: Vec<PathBuf> = versions
        .filter_map(|version| version.ok()?.path().read_dir().ok())
        .flatten()
        .filter_map(|file| Some(file.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so")))
        .collect();
    found.sort_by_key(|path| version_of(path));
    found.pop()
}

/// The numbers after `libonnxruntime.so.`, to compare by.
fn version_of(path: &Path) -> Vec<u32> {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// The error of a library that can't be used.
pub(crate) fn unavailable(reason: String) -> EngineError {
    EngineError::Unavailable { runtime: "ONNX Runtime", reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn the_newest_library_of_a_cache_folder_is_taken() {
        let root = tempfile::tempdir().unwrap();
        for version in ["1.9.4", "1.24.4"] {
            let folder = root.path().join(".cache/onnxruntime").join(version);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(format!("libonnxruntime.so.{version}")), "").unwrap();
            fs::write(folder.join("readme"), "").unwrap();
        }
        let found = in_cache_of(root.path()).unwrap();
        assert!(found.ends_with("1.24.4/libonnxruntime.so.1.24.4"), "{found:?}");
        assert_eq!(in_cache_of(&root.path().join(".cache")), None);
    }
}
