//! Where the runtime's shared library is.

use engine::EngineError;
use std::env;
use std::ffi::{CStr, CString};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The environment variables that name the library, the first one that is set counts.
const VARIABLES: [&str; 2] = ["PUNCTUAL_ONNXRUNTIME", "ORT_DYLIB_PATH"];

/// What the system's loader is asked for: it looks where the system keeps libraries, and in `LD_LIBRARY_PATH`.
const SYSTEM: &str = "libonnxruntime.so";

/// The library that the environment names; or else one that lies beside the program, or that `scripts/setup runtime`
/// put into `.cache` of the checkout that the program was built in; or else the name that the system's loader knows it
/// by. Never one of the current folder or above it: whoever may write there could have the server run any code.
pub fn find() -> Result<PathBuf, EngineError> {
    for variable in VARIABLES {
        if let Some(path) = env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
            return if path.is_file() {
                in_full(&path)
            } else {
                Err(unavailable(format!(
                    "{variable} names {}, which is not a file: set it to libonnxruntime.so or unset it",
                    path.display()
                )))
            };
        }
    }
    let program = env::current_exe().ok();
    Ok(program.as_deref().and_then(of_program).unwrap_or_else(|| SYSTEM.into()))
}

/// Brings the library of that path, or the one that is found, into memory and does nothing with it: whoever may not
/// open it later finds it there.
pub fn load_ahead(path: Option<&Path>) -> Result<(), EngineError> {
    let path = match path {
        Some(path) => in_full(path)?,
        None => find()?,
    };
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| not_loaded(&path, &error))?;
    // SAFETY: the name is a C string; what a library does when it is loaded is what it does for the binding, too.
    let loaded = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if loaded.is_null() {
        // SAFETY: what the loader says is a C string until its next call on this thread, or null.
        let said = unsafe { libc::dlerror() };
        let said = if said.is_null() { c"no reason" } else { unsafe { CStr::from_ptr(said) } };
        return Err(not_loaded(&path, &said.to_string_lossy()));
    }
    Ok(())
}

/// A path that doesn't depend on who reads it: the binding takes relative ones for files beside the program.
pub(crate) fn in_full(path: &Path) -> Result<PathBuf, EngineError> {
    std::path::absolute(path).map_err(|error| unavailable(format!("{}: {error}", path.display())))
}

/// What is said of a library that can't be loaded.
pub(crate) fn not_loaded(path: &Path, error: &dyn Display) -> EngineError {
    if path.is_absolute() {
        return unavailable(format!("{}: {error}", path.display()));
    }
    unavailable(format!(
        "libonnxruntime.so was found neither through {}, nor beside the program, nor in .cache/onnxruntime of the \
         checkout that the program was built in, nor by the system's loader ({error}): run scripts/setup runtime or set {}",
        VARIABLES.join(" or "),
        VARIABLES[0]
    ))
}

/// The library beside a program, or that of its checkout: Cargo puts programs into the checkout's folder `target`.
fn of_program(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    let checkout = || folder.ancestors().find(|folder| folder.ends_with("target"))?.parent();
    newest(libraries_in(folder)).or_else(|| in_cache_of(checkout()?))
}

/// The newest library in `.cache/onnxruntime/<version>/` of a folder.
fn in_cache_of(folder: &Path) -> Option<PathBuf> {
    let versions = folder.join(".cache/onnxruntime").read_dir().ok()?;
    newest(versions.flatten().flat_map(|version| libraries_in(&version.path())))
}

fn newest(libraries: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    libraries.into_iter().max_by_key(|path| version_of(path))
}

fn libraries_in(folder: &Path) -> Vec<PathBuf> {
    let files = folder.read_dir().into_iter().flatten().flatten().map(|file| file.path());
    let is_library = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("libonnxruntime.so")) && path.is_file()
    };
    files.filter(is_library).collect()
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

    #[test]
    fn a_program_finds_the_library_beside_it_or_of_its_checkout_and_no_other_above_it() {
        let root = tempfile::tempdir().unwrap();
        let put = |folder: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("libonnxruntime.so.1.24.4"), "").unwrap();
        };
        let found = |program: &str| of_program(&root.path().join(program));
        put(".cache/onnxruntime/1.24.4");
        let of_checkout = root.path().join(".cache/onnxruntime/1.24.4/libonnxruntime.so.1.24.4");
        for program in ["target/debug/punctual", "target/release/punctual", "target/debug/deps/faults-0123"] {
            assert_eq!(found(program).as_ref(), Some(&of_checkout), "{program}");
        }
        for program in ["punctual", "bin/punctual", "home/somebody/punctual", "home/target/release/punctual"] {
            assert_eq!(found(program), None, "{program}");
        }
        put("bin");
        assert_eq!(found("bin/punctual"), Some(root.path().join("bin/libonnxruntime.so.1.24.4")));
    }
}
