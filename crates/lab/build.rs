//! Works out a number for everything that figures depend on: what this crate makes of a file (`src/run`, with the
//! defaults) and all sources of every crate of ours below it, without their comments. Results that were kept under
//! another number aren't taken for today's. Measurements name the profile of the build.

#![allow(clippy::expect_used, reason = "a build that can't read its own sources should stop")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn main() {
    let mut crates = BTreeSet::new();
    depends_on(Path::new("."), &mut crates);
    let mut folders: Vec<PathBuf> = crates.iter().map(|name| Path::new("..").join(name).join("src")).collect();
    folders.push("src/run".into());
    let mut files = Vec::new();
    for folder in folders {
        println!("cargo:rerun-if-changed={}", folder.display());
        collect(&folder, &mut files);
    }
    files.sort();
    // FNV-1a: nobody attacks this.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file that was listed can be read");
        // What comments say changes no figure.
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for byte in code.flat_map(|line| line.bytes().chain([b'\n'])) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=LAB_SOURCES={hash:016x}");
    println!("cargo:rustc-env=LAB_CRATES={}", crates.into_iter().collect::<Vec<_>>().join(" "));
    println!("cargo:rustc-env=LAB_PROFILE={}", profile());
}

/// The name of the profile that this is built with: `PROFILE` says no more than whether it is like `release`, but what
/// is built lies in `target/NAME/build/...`.
fn profile() -> String {
    let out = std::env::var("OUT_DIR").expect("cargo says where to put what is built");
    let folders: Vec<_> = Path::new(&out).iter().map(|folder| folder.to_string_lossy().into_owned()).collect();
    let named = folders.iter().rposition(|folder| folder == "build").and_then(|build| build.checked_sub(1));
    named.map_or_else(|| "unknown".to_owned(), |index| folders[index].clone())
}

/// Adds the crates of this workspace that the one in the folder depends on, and those that they depend on.
fn depends_on(folder: &Path, crates: &mut BTreeSet<String>) {
    let manifest = folder.join("Cargo.toml");
    println!("cargo:rerun-if-changed={}", manifest.display());
    let text = std::fs::read_to_string(manifest).expect("every crate has a manifest");
    let lines = text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    for line in lines.take_while(|line| !line.starts_with('[')) {
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        let folder = Path::new("..").join(name);
        if !name.is_empty() && folder.join("src").is_dir() && crates.insert(name.to_owned()) {
            depends_on(&folder, crates);
        }
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the workspace has this crate") {
        let path = entry.expect("a folder of sources can be listed").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
