//! Works out a number for everything that results depend on: the sources of the scheduler, of the arrivals and of the
//! simulated world. Results that were kept under another number aren't taken for today's.

#![allow(clippy::expect_used, reason = "a build that can't read its own sources should stop")]

use std::path::{Path, PathBuf};

/// What a run depends on; how results are shown isn't here.
const WORLD: [&str; 21] = [
    "agenda",
    "bound",
    "clients",
    "device",
    "elastic",
    "entry",
    "inputs",
    "meter",
    "models",
    "plant",
    "quantiles",
    "resolve",
    "search",
    "series",
    "setup",
    "summary",
    "tables",
    "traffic",
    "variant",
    "verdict",
    "world",
];

fn main() {
    let mut files = Vec::new();
    for folder in ["../base/src", "../scheduler/src", "../workload/src"] {
        println!("cargo:rerun-if-changed={folder}");
        collect(Path::new(folder), &mut files);
    }
    for name in WORLD {
        let path = format!("src/{name}.rs");
        println!("cargo:rerun-if-changed={path}");
        files.push(path.into());
    }
    files.sort();
    // FNV-1a: nobody attacks this.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        for byte in std::fs::read(&file).unwrap_or_default() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo:rustc-env=SIM_SOURCES={hash:016x}");
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
