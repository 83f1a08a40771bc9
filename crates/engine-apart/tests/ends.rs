//! Processes that end, hang or are killed, with an engine that does so when it is told: the server goes on.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use base::{DataType, ModelSignature, TensorSpec};
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Sink, Tensor, TensorView, at_once};
use engine_apart::{ApartEngine, ApartOptions, InnerOptions, OpenedEngine};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What models do, by what is in their file: the bytes that it computes are its input's, twice.
struct Scripted;

#[derive(Clone, Copy)]
struct ScriptedModel {
    hangs_at_load: bool,
}

impl Engine for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let text = std::fs::read_to_string(&source.file).map_err(|error| EngineError::io(&source.file, error))?;
        match &*text {
            "crashes" => std::process::abort(),
            "hangs" => loop {
                std::thread::park();
            },
            "is bad" => Err(EngineError::bad_model(&source.file, "it is bad")),
            "exits" => std::process::exit(3),
            text => Ok(Arc::new(ScriptedModel { hangs_at_load: text == "hangs at load" })),
        }
    }
}

static SIGNATURE: std::sync::LazyLock<ModelSignature> = std::sync::LazyLock::new(|| {
    let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Uint8, dims: vec![-1] };
    ModelSignature { inputs: vec![spec("in")], outputs: vec![spec("out")], max_batch: 0 }
});

impl Prepared for ScriptedModel {
    fn signature(&self) -> &ModelSignature {
        &SIGNATURE
    }

    fn weight_bytes(&self) -> u64 {
        7
    }

    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        if self.hangs_at_load {
            loop {
                std::thread::park();
            }
        }
        Ok(at_once(ScriptedRun(Vec::new())))
    }
}

struct ScriptedRun(Vec<u8>);

impl AtOnce for ScriptedRun {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        match inputs[0].data {
            b"crash" => std::process::abort(),
            b"hang" => loop {
                std::thread::park();
            },
            b"refuse" => Err(EngineError::Unfit("not that".into())),
            data => {
                self.0 = data.repeat(2);
                Ok(())
            }
        }
    }

    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let shape = [self.0.len() as i64];
        sink(0, TensorView { datatype: DataType::Uint8, shape: &shape, data: &self.0 });
        Ok(())
    }
}

/// This program as the tests start it: the process of an engine. By itself it is no test.
#[test]
#[ignore = "the tests start it"]
fn process_of_an_engine() {
    let opened = |_: &InnerOptions| Ok(OpenedEngine { engine: Arc::new(Scripted), about: "scripted 1".into() });
    engine_apart::serve(|_| Ok(()), opened)
}

struct Bench {
    models: tempfile::TempDir,
    engine: ApartEngine,
}

impl Bench {
    fn new() -> Self {
        let models = tempfile::tempdir().unwrap();
        let engine = ApartEngine::new(options(models.path(), "process_of_an_engine")).unwrap();
        assert_eq!(engine.about(), "scripted 1");
        Self { models, engine }
    }

    fn source(&self, text: &str) -> ModelSource {
        let file = self.models.path().join(text.replace(' ', "_"));
        std::fs::write(&file, text).unwrap();
        ModelSource { name: text.into(), file, ..ModelSource::default() }
    }

    fn prepare(&self, text: &str) -> Result<Arc<dyn Prepared>, EngineError> {
        self.engine.prepare(&self.source(text))
    }

    fn error(&self, text: &str) -> String {
        self.prepare(text).err().unwrap().to_string()
    }
}

fn options(models: &Path, test: &str) -> ApartOptions {
    ApartOptions {
        program: std::env::current_exe().unwrap(),
        arguments: [test, "--exact", "--ignored", "--nocapture", "--test-threads=1"].map(str::to_owned).to_vec(),
        engine: "scripted",
        runtime: "Scripted",
        inner: InnerOptions { library: None, threads: 1, workspace_bytes: 1 << 30 },
        devices: 2,
        models: vec![models.to_owned()],
        cache: None,
    }
}

fn run(loaded: &mut dyn Loaded, data: &[u8]) -> Result<Vec<u8>, EngineError> {
    let input = Tensor { datatype: DataType::Uint8, shape: vec![data.len() as i64], data: data.to_vec().into() };
    let mut out = Vec::new();
    engine::execute(loaded, &mut &[input][..], &mut |_, view| out.extend_from_slice(view.data))?;
    Ok(out)
}

#[test]
fn a_model_that_ends_its_process_while_it_is_prepared_is_a_bad_model_and_others_are_prepared() {
    let bench = Bench::new();
    let crashed = bench.error("crashes");
    assert!(crashed.contains("was ended by signal 6 SIGABRT, while the model was prepared"), "{crashed}");
    assert!(bench.error("exits").contains("ended with the code 3"));
    assert!(bench.error("is bad").ends_with("is_bad: it is bad"));
    let prepared = bench.prepare("good").unwrap();
    assert_eq!((prepared.signature(), prepared.weight_bytes()), (&*SIGNATURE, 7));
}

#[test]
fn a_preparation_that_hangs_is_ended_when_nobody_wants_it_any_more() {
    let bench = Bench::new();
    let source = ModelSource { given_up: Arc::new(AtomicBool::new(true)), ..bench.source("hangs") };
    let error = bench.engine.prepare(&source).err().unwrap().to_string();
    assert!(error.contains("nobody waits for it any more"), "{error}");
}

#[test]
fn a_batch_that_ends_its_process_loses_the_device_which_is_there_again_with_the_next_load() {
    let bench = Bench::new();
    let prepared = bench.prepare("good").unwrap();
    let mut loaded = prepared.load(0).unwrap();
    assert_eq!(run(&mut *loaded, b"ab").unwrap(), b"abab");
    assert!(matches!(run(&mut *loaded, b"refuse"), Err(EngineError::Unfit(why)) if why == "not that"));
    let mut other = prepared.load(1).unwrap();
    let lost = run(&mut *loaded, b"crash").unwrap_err();
    assert!(
        matches!(&lost, EngineError::Lost { reason: why, blameless: false } if why.contains("SIGABRT")),
        "{lost:?}"
    );
    assert!(matches!(loaded.stage(&mut &[][..]), Err(EngineError::Lost { .. })), "nothing is begun on it any more");
    assert_eq!(run(&mut *other, b"cd").unwrap(), b"cdcd", "the other device goes on");
    let mut again = prepared.load(0).unwrap();
    assert_eq!(run(&mut *again, b"ef").unwrap(), b"efef");
    drop(loaded);
    assert_eq!(run(&mut *again, b"ef").unwrap(), b"efef", "what was lost has nothing to do with what is there");
}

#[test]
fn a_batch_that_nothing_breaks_off_is_ended_with_its_process() {
    let bench = Bench::new();
    let prepared = bench.prepare("good").unwrap();
    let mut loaded = prepared.load(0).unwrap();
    let (breaker, ended) = (loaded.breaker().unwrap(), AtomicBool::new(false));
    let broken_off = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                breaker.break_off();
            }
        });
        let outcome = run(&mut *loaded, b"hang");
        ended.store(true, Ordering::Relaxed);
        outcome
    });
    assert!(matches!(broken_off, Err(EngineError::BrokenOff)), "{broken_off:?}");
    assert!(matches!(run(&mut *loaded, b"x"), Err(EngineError::Lost { .. })));
    assert_eq!(run(&mut *prepared.load(0).unwrap(), b"x").unwrap(), b"xx");
}

#[test]
fn a_load_that_hangs_is_ended_with_its_process() {
    let bench = Bench::new();
    let prepared = bench.prepare("hangs at load").unwrap();
    let (breaker, ended) = (prepared.load_breaker(1).unwrap(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(10));
                breaker.break_off();
            }
        });
        let lost = prepared.load(1).err();
        ended.store(true, Ordering::Relaxed);
        assert!(
            matches!(&lost, Some(EngineError::Lost { reason: why, .. }) if why.contains("a load took longer")),
            "{lost:?}"
        );
    });
}

#[test]
fn batches_of_any_size_come_back_whole() {
    let bench = Bench::new();
    let prepared = bench.prepare("good").unwrap();
    let mut loaded = prepared.load(0).unwrap();
    // Smaller than a region, larger, with outputs that are larger than what is left of it, and small again.
    for bytes in [0, 1, 100_000, 900_000, 1_000_000, 3_000_000, 40_000_000, 10, 5_000_000] {
        let data: Vec<u8> = (0..bytes).map(|number: usize| (number % 251) as u8).collect();
        let out = run(&mut *loaded, &data).unwrap();
        assert!(out == data.repeat(2), "{bytes} bytes");
    }
}

/// A process that has nothing of an engine.
#[test]
#[ignore = "the tests start it"]
fn process_that_says_nonsense() {
    use std::io::Write as _;
    let mut socket =
        std::os::unix::net::UnixStream::from(std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().unwrap());
    loop {
        if socket.write_all(&[9; 64]).is_err() {
            return;
        }
    }
}

#[test]
fn a_process_that_says_nonsense_or_nothing_is_a_sentence() {
    let models = tempfile::tempdir().unwrap();
    for test in ["process_that_says_nonsense", "no_such_test"] {
        let error = ApartEngine::new(options(models.path(), test)).err().unwrap().to_string();
        assert!(error.starts_with("Scripted is not available: the engine's process"), "{error}");
    }
    let nowhere = ApartOptions { program: "/nowhere".into(), ..options(models.path(), "") };
    let error = ApartEngine::new(nowhere).err().unwrap().to_string();
    assert!(error.contains("could not be started"), "{error}");
}
