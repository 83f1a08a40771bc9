//! Which ONNX Runtime the program loads, and what that finds in the environment.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A library that is no ONNX Runtime, and that writes what it finds in the environment when it is loaded.
struct Planted {
    folder: tempfile::TempDir,
}

impl Planted {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("planted.c");
        let text = r#"
            #include <stdio.h>
            #include <stdlib.h>
            __attribute__((constructor)) static void loaded(void) {
                FILE *seen = fopen(getenv("SEEN"), "w");
                const char *told = getenv("ORT_DISABLE_TELEMETRY");
                fputs(told ? told : "nothing", seen);
                fclose(seen);
            }
        "#;
        fs::write(&source, text).unwrap();
        let library = folder.path().join(".cache/onnxruntime/99.0.0/libonnxruntime.so.99.0.0");
        fs::create_dir_all(library.parent().unwrap()).unwrap();
        let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
        assert!(built.success());
        fs::create_dir(folder.path().join("models")).unwrap();
        Self { folder }
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join(".cache/onnxruntime/99.0.0/libonnxruntime.so.99.0.0")
    }

    /// Measures the models of an empty repository below the folder, and gives what the library wrote if it was loaded.
    fn run(&self, program: &Path, options: &[&Path]) -> (Option<String>, Output) {
        let seen = self.folder.path().join("seen");
        let mut command = Command::new(program);
        command.args(["profile", "."]).args(options).current_dir(self.folder.path().join("models"));
        command.env("SEEN", &seen).env_remove("PUNCTUAL_ONNXRUNTIME").env_remove("ORT_DYLIB_PATH");
        let output = command.env_remove("ORT_DISABLE_TELEMETRY").output().unwrap();
        (fs::read_to_string(seen).ok(), output)
    }
}

#[test]
fn no_library_is_loaded_from_above_the_current_folder() {
    let (planted, elsewhere) = (Planted::new(), tempfile::tempdir().unwrap());
    // In its checkout the program would find that one's library first.
    let program = elsewhere.path().join("punctual");
    fs::copy(env!("CARGO_BIN_EXE_punctual"), &program).unwrap();
    let (seen, output) = planted.run(&program, &[]);
    assert_eq!(seen, None, "{output:?}");
    assert!(!output.status.success());
}

#[test]
fn the_library_is_told_not_to_report_before_it_is_loaded() {
    let planted = Planted::new();
    let program = Path::new(env!("CARGO_BIN_EXE_punctual"));
    let (seen, output) = planted.run(program, &[Path::new("--onnxruntime"), &planted.library()]);
    assert_eq!(seen.as_deref(), Some("1"), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("libonnxruntime.so.99.0.0") && !said.contains("panicked"), "{said}");
}
