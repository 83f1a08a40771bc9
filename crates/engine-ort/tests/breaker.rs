//! Executions that never end are broken off from another thread, and the model goes on computing what does end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
#[path = "common/rounds.rs"]
mod rounds;

use base::DataType;
use common::{ENGINE, Tensor, execute, source};
use engine::{Engine, EngineError, Loaded};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn loaded() -> Box<dyn Loaded> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    std::fs::write(&file, rounds::model(None, rounds::Round::Adds)).unwrap();
    ENGINE.prepare(&source(file, None)).unwrap().load(0).unwrap()
}

fn run(loaded: &mut dyn Loaded, rounds: i64) -> Result<f32, EngineError> {
    let data = rounds.to_le_bytes().to_vec().into();
    let outputs = execute(loaded, &[Tensor { datatype: DataType::Int64, shape: vec![1], data }])?;
    Ok(f32::from_le_bytes(outputs[0].data[..].try_into().unwrap()))
}

/// Runs the loop without an end, and breaks it off again and again: nobody knows whether it has begun.
fn run_endless(loaded: &mut dyn Loaded) -> Result<f32, EngineError> {
    let (breaker, ended) = (loaded.breaker().unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                breaker.break_off();
            }
        });
        let outcome = run(loaded, rounds::ENDLESS);
        ended.store(true, Ordering::Relaxed);
        outcome
    })
}

#[test]
fn a_loop_without_an_end_is_broken_off_and_the_next_execution_is_not() {
    let mut loaded = loaded();
    assert_eq!(run(&mut *loaded, 3).unwrap(), 3.0);
    for _ in 0..3 {
        let broken_off = run_endless(&mut *loaded);
        assert!(matches!(broken_off, Err(EngineError::BrokenOff)), "{broken_off:?}");
        assert_eq!(run(&mut *loaded, 4).unwrap(), 4.0);
    }
}

#[test]
fn what_breaks_off_outlives_the_model() {
    let loaded = loaded();
    let breaker = loaded.breaker().unwrap();
    drop(loaded);
    breaker.break_off();
}
