//! ONNX Runtime in a process of its own: it computes what it computes here, and may do little else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../engine-ort/tests/common/mod.rs"]
mod common;
#[path = "../../engine-ort/tests/common/rounds.rs"]
mod rounds;

use base::DataType;
use common::{Case, ENGINE, Tensor, execute, model_file, root, source};
use engine::{Engine, EngineError, Loaded, ModelSource};
use engine_apart::{ApartEngine, ApartOptions, InnerOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn apart(cache: &Path, threads: u16) -> ApartEngine {
    let options = ApartOptions {
        program: env!("CARGO_BIN_EXE_punctual").into(),
        arguments: vec!["engine".into()],
        engine: "onnxruntime",
        runtime: "ONNX Runtime",
        inner: InnerOptions { library: Some(engine_ort::find_library().unwrap()), threads, workspace_bytes: 8 << 30 },
        devices: 1,
        models: vec![root().join("models"), root().join(".cache/test-models")],
        cache: Some(cache.to_owned()),
    };
    ApartEngine::new(options).unwrap()
}

#[test]
fn answers_are_those_without_isolation_bit_by_bit() {
    let [cache, cache_here] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let engine = apart(cache.path(), 1);
    for name in ["mlp", "add", "identity_bytes", "identity_fp32", "silero-vad", "all-minilm-l6-v2"] {
        let prepared = engine.prepare(&source(model_file(name), Some(cache.path()))).unwrap();
        let here = ENGINE.prepare(&source(model_file(name), Some(cache_here.path()))).unwrap();
        assert_eq!(prepared.signature(), here.signature(), "{name}");
        assert_eq!(prepared.weight_bytes(), here.weight_bytes(), "{name}");
        assert_eq!(prepared.takes_any_batch(), here.takes_any_batch(), "{name}");
        assert_eq!(prepared.defaults(), here.defaults(), "{name}");
        let (mut loaded, mut loaded_here) = (prepared.load(0).unwrap(), here.load(0).unwrap());
        for case in Case::of(name) {
            let outputs = execute(&mut *loaded, &case.inputs).unwrap();
            assert!(outputs == execute(&mut *loaded_here, &case.inputs).unwrap(), "{name}, batch {}", case.batch);
        }
    }
}

#[test]
fn several_threads_compute_in_a_process_that_may_do_little() {
    let cache = tempfile::tempdir().unwrap();
    let engine = apart(cache.path(), 2);
    let prepared = engine.prepare(&source(model_file("mlp"), Some(cache.path()))).unwrap();
    let mut loaded = prepared.load(0).unwrap();
    for case in Case::of("mlp") {
        common::assert_close(&execute(&mut *loaded, &case.inputs).unwrap(), &case.outputs, "mlp");
    }
}

#[test]
fn what_is_wrong_with_a_file_or_an_input_is_the_sentence_that_it_is_without_isolation() {
    let folder = tempfile::tempdir().unwrap();
    let engine = apart(folder.path(), 1);
    let file = folder.path().join("model.onnx");
    std::fs::write(&file, "no model").unwrap();
    let missing = folder.path().join("missing/model.onnx");
    for file in [file, missing] {
        let [there, here] = [&engine as &dyn Engine, &*ENGINE]
            .map(|engine| engine.prepare(&source(file.clone(), None)).err().unwrap().to_string());
        assert_eq!(there, here);
    }
    let of_mlp = |engine: &dyn Engine| {
        let mut loaded = engine.prepare(&source(model_file("mlp"), None)).unwrap().load(0).unwrap();
        let wrong = Tensor { datatype: DataType::Int64, shape: vec![1], data: vec![0; 8].into() };
        execute(&mut *loaded, &[wrong]).unwrap_err().to_string()
    };
    assert_eq!(of_mlp(&engine), of_mlp(&*ENGINE));
}

/// The number of the process of the only device, once those that prepared models are gone.
fn device_process() -> u32 {
    let own = std::process::id();
    let parent = |id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<u32>().ok()
    };
    loop {
        let all = std::fs::read_dir("/proc").unwrap().flatten();
        let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        match numbers.filter(|id| parent(id) == Some(own)).collect::<Vec<_>>()[..] {
            [only] => return only,
            _ => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

#[test]
fn the_process_has_given_up_what_it_does_not_need() {
    let cache = tempfile::tempdir().unwrap();
    let _engine = apart(cache.path(), 1);
    let id = device_process();
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap();
    // A filter of system calls, and no new rights; the crate's own test looks what follows from both.
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
    let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap();
    let names: Vec<_> = environment.split(|&byte| byte == 0).filter(|line| !line.is_empty()).collect();
    assert!(names.iter().all(|line| !line.starts_with(b"HOME=") && !line.starts_with(b"PATH=")));
    let open = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
    let open: Vec<_> = open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect();
    let foreign = |path: &&std::path::PathBuf| {
        let name = path.to_string_lossy();
        !["/dev/null", "/memfd:punctual", "socket:", "pipe:"].iter().any(|known| name.starts_with(known))
    };
    // The socket three times: as it came, to read and to write; standard output and error; a region, once it has come.
    assert!(open.iter().find(foreign).is_none() && open.len() <= 6, "{open:?}");
}

fn endless(engine: &ApartEngine, round: rounds::Round) -> Box<dyn Loaded> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    std::fs::write(&file, rounds::model(None, round)).unwrap();
    // Not in the repository: it is handed over.
    let source = ModelSource { name: "rounds".into(), file, ..ModelSource::default() };
    engine.prepare(&source).unwrap().load(0).unwrap()
}

fn run_endless(loaded: &mut dyn Loaded) -> Result<Vec<Tensor>, EngineError> {
    let (breaker, ended) = (loaded.breaker().unwrap(), AtomicBool::new(false));
    let data = rounds::ENDLESS.to_le_bytes().to_vec().into();
    let input = Tensor { datatype: DataType::Int64, shape: vec![1], data };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                breaker.break_off();
            }
        });
        let outcome = execute(loaded, &[input]);
        ended.store(true, Ordering::Relaxed);
        outcome
    })
}

#[test]
fn a_loop_without_an_end_is_broken_off_by_words_where_the_runtime_listens_and_else_by_force() {
    let cache = tempfile::tempdir().unwrap();
    let engine = apart(cache.path(), 1);
    let three = Tensor { datatype: DataType::Int64, shape: vec![1], data: 3i64.to_le_bytes().to_vec().into() };
    let mut tries = 0;
    let (mut listens, process, sum) = loop {
        let mut listens = endless(&engine, rounds::Round::Adds);
        let process = device_process();
        assert!(matches!(run_endless(&mut *listens), Err(EngineError::BrokenOff)));
        match execute(&mut *listens, std::slice::from_ref(&three)) {
            Ok(sum) => break (listens, process, sum),
            // A machine that kept it waiting for a second: then it was ended by force.
            Err(EngineError::Lost { .. }) if tries < 3 => tries += 1,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((&sum[0].data[..], device_process()), (&3f32.to_le_bytes()[..], process), "it goes on");
    let mut stuck = endless(&engine, rounds::Round::Nothing);
    assert!(matches!(run_endless(&mut *stuck), Err(EngineError::BrokenOff)));
    assert!(matches!(listens.stage(&mut &[][..]), Err(EngineError::Lost { .. })), "the process is gone");
}
