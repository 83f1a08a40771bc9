//! One device with all cores: the same answers from several threads, of one copy of the weights, beside what runs on
//! one thread.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Case, assert_close, execute, model_file, source};
use engine::{Engine, Prepared};
use engine_ort::{OrtEngine, OrtOptions};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

const MODELS: [&str; 4] = ["mlp", "resnet18", "mobilenetv2", "all-minilm-l6-v2"];

/// The process's first engine decides what threads there are: no other is made in this file.
static ENGINE: LazyLock<OrtEngine> =
    LazyLock::new(|| OrtEngine::new(&OrtOptions { wide_threads: 3, ..OrtOptions::default() }).unwrap());

fn prepare(model: &str) -> Arc<dyn Prepared> {
    ENGINE.prepare(&source(model_file(model), None)).unwrap()
}

/// Asks until the engine is ready.
fn get_ready() {
    let patience = Instant::now() + Duration::from_secs(120);
    while !ENGINE.is_ready_for(0, 1) {
        assert!(Instant::now() < patience, "it never is ready");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn answers_are_the_same_in_either_division_and_while_it_changes() {
    for model in MODELS {
        let (case, prepared) = (Case::of(model).remove(0), prepare(model));
        let mut loaded: Vec<_> = (0..3).map(|device| prepared.load(device).unwrap()).collect();
        let mut check = || {
            for loaded in &mut loaded {
                assert_close(&execute(&mut **loaded, &case.inputs).unwrap(), &case.outputs, model);
            }
        };
        check();
        // Also before it is ready: then the other session computes.
        ENGINE.divide(0, 1);
        check();
        get_ready();
        check();
        ENGINE.divide(0, 0);
        check();
        // What is loaded meanwhile is ready at once.
        ENGINE.divide(0, 1);
        let mut late = prepared.load(0).unwrap();
        assert!(ENGINE.is_ready_for(0, 1));
        assert_close(&execute(&mut *late, &case.inputs).unwrap(), &case.outputs, model);
        ENGINE.divide(0, 0);
    }
}

#[test]
fn measurements_are_of_the_division_that_they_name() {
    for model in MODELS {
        let (case, prepared) = (Case::of(model).remove(0), prepare(model));
        for division in [0, 1, 0] {
            let mut loaded = prepared.load_in(division, 0).unwrap();
            assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, model);
        }
    }
}

#[test]
fn a_model_that_is_not_split_says_that_it_computes_alike_in_either_division() {
    assert!(MODELS.iter().all(|model| prepare(model).is_divisible()));
    // ONNX Runtime can't read it in the form in which it writes it.
    assert!(!prepare("silero-vad").is_divisible());
}

#[test]
fn both_sessions_share_their_weights() {
    let prepared = prepare("all-minilm-l6-v2");
    let case = Case::of("all-minilm-l6-v2").remove(0);
    let mut loaded = prepared.load(0).unwrap();
    execute(&mut *loaded, &case.inputs).unwrap();
    let before = resident();
    ENGINE.is_ready_for(0, 1);
    get_ready();
    ENGINE.divide(0, 1);
    execute(&mut *loaded, &case.inputs).unwrap();
    ENGINE.divide(0, 0);
    let grown = resident().saturating_sub(before);
    // Its packed weights are more than 40 MB.
    assert!(grown < 30 << 20, "the second session took {grown} bytes");
}

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}
