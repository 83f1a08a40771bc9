//! Models come and go many times, on more than one device, from more than one thread, and equal ones share their
//! weights.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{Case, assert_close, execute, model_file, prepare, source};
use engine::Engine;
use engine_ort::{OrtEngine, OrtOptions};
use std::thread;

/// Resident memory of this process in bytes.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn models_are_loaded_and_unloaded_many_times() {
    // What 40 sessions or their packed weights would take is well above the bound, what the allocator keeps well below.
    for (model, bound) in [("mlp", 1 << 20), ("mobilenetv2", 8 << 20), ("all-minilm-l6-v2", 80 << 20)] {
        let case = Case::of(model).remove(0);
        let prepared = prepare(model, None).unwrap();
        let mut after_warm_up = 0;
        for cycle in 0..30 {
            // More at once than are parked afterwards: some are made anew each time.
            let mut loaded: Vec<_> = (0..10).map(|device| prepared.load(device).unwrap()).collect();
            let one = &mut loaded[cycle % 10];
            assert_close(&execute(&mut **one, &case.inputs).unwrap(), &case.outputs, model);
            if cycle == 10 {
                after_warm_up = resident();
            }
        }
        let grown = resident().saturating_sub(after_warm_up);
        assert!(grown < bound, "{model}: 200 loads left {grown} bytes behind");
    }
}

/// As the worker does it: loads on one thread, executions on another.
#[test]
fn a_model_may_be_loaded_here_and_executed_there() {
    let case = Case::of("resnet18").remove(0);
    let prepared = prepare("resnet18", None).unwrap();
    let (to_executor, loads) = std::sync::mpsc::channel();
    let executor = thread::spawn(move || {
        for loaded in loads {
            let mut loaded: Box<dyn engine::Loaded> = loaded;
            assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "resnet18");
        }
    });
    for device in 0..10 {
        to_executor.send(prepared.load(device).unwrap()).unwrap();
    }
    drop(to_executor);
    executor.join().unwrap();
}

#[test]
fn equal_models_share_their_weights() {
    let copies = tempfile::tempdir().unwrap();
    let cache = tempfile::tempdir().unwrap();
    let case = Case::of("resnet18").remove(0);
    let first = prepare("resnet18", Some(cache.path())).unwrap();
    let mut loaded = first.load(0).unwrap();
    execute(&mut *loaded, &case.inputs).unwrap();
    let before = resident();
    let held: Vec<_> = (0..20)
        .map(|number| {
            let file = copies.path().join(format!("{number}.onnx"));
            std::fs::copy(model_file("resnet18"), &file).unwrap();
            let prepared = common::ENGINE.prepare(&source(file, Some(cache.path()))).unwrap();
            let mut loaded = prepared.load(0).unwrap();
            assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "a copy");
            (prepared, loaded)
        })
        .collect();
    let grown = resident().saturating_sub(before);
    // 20 copies of the weights would be 900 MB.
    assert!(grown < 200 << 20, "{} copies took {grown} bytes", held.len());
    assert_eq!(cache.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_loaded_model_outlives_what_it_was_prepared_from() {
    let case = Case::of("mobilenetv2").remove(0);
    let prepared = prepare("mobilenetv2", None).unwrap();
    let mut loaded = prepared.load(0).unwrap();
    drop(prepared);
    assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "mobilenetv2");
}

#[test]
fn executions_on_several_threads_give_the_same() {
    let case = Case::of("mobilenetv2").remove(0);
    let engine = OrtEngine::new(&OrtOptions { threads: 2, ..OrtOptions::default() }).unwrap();
    let prepared = engine.prepare(&source(model_file("mobilenetv2"), None)).unwrap();
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let before = threads();
    let mut loaded: Vec<_> = (0..5).map(|device| prepared.load(device).unwrap()).collect();
    assert_eq!(threads(), before, "sessions share their threads");
    assert_close(&execute(&mut *loaded[4], &case.inputs).unwrap(), &case.outputs, "mobilenetv2 on two threads");
}
