//! What is found out about models by running them before they are ready. A first dimension is a batch if rows computed
//! together equal rows computed alone, whatever exporters call it.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DataType, Duration, ModelSignature, TensorSpec};
use common::folders;
use controller::Tensor;
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Sink, TensorView, at_once};
use engine_ort::{OrtEngine, OrtOptions};
use models::{ProfilingEffort, ServedModel};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// What a model does with rows.
#[derive(Clone, Copy, PartialEq)]
enum Rows {
    /// Each by itself.
    Alone,
    /// Each with the sum of those before it, as a recurrent network does.
    Recurrent,
    /// One at a time.
    Single,
    /// Whatever comes to its mind.
    Random,
    /// Not at all, because of what is in them.
    Picky,
}

/// A model over `-1 x 3` numbers that notes how many rows were computed at a time.
#[derive(Clone)]
struct Net {
    rows: Rows,
    /// Whether the engine takes the first dimension for a batch where nothing is said.
    guess: bool,
    signature: ModelSignature,
    runs: Arc<Mutex<Vec<i64>>>,
    /// The rows that it was told of; nothing where it needn't be.
    expected: Option<Arc<Mutex<BTreeSet<i64>>>>,
    /// Who knows better, where each size is prepared.
    reference: Option<Arc<Net>>,
}

impl Net {
    fn new(rows: Rows, guess: bool) -> Self {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 3] };
        let signature = ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 0 };
        let (runs, expected) = (Arc::default(), Some(Arc::default()));
        Self { rows, guess, signature, runs, expected, reference: None }
    }

    /// A model of which each size is prepared, and the same on the host.
    fn with_reference(rows: Rows, guess: bool) -> Self {
        let reference = Self { expected: None, ..Self::new(rows, guess) };
        Self { reference: Some(Arc::new(reference)), ..Self::new(rows, guess) }
    }

    /// The rows of all runs since this was asked last.
    fn runs(&self) -> Vec<i64> {
        std::mem::take(&mut *self.runs.lock().unwrap())
    }
}

impl Engine for Net {
    fn name(&self) -> &'static str {
        "net"
    }
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let mut net = self.clone();
        net.signature.max_batch = source.max_batch.unwrap_or(if self.guess { 16 } else { 0 });
        Ok(Arc::new(net))
    }
    fn reference(&self) -> Option<Arc<dyn Engine>> {
        self.reference.clone().map(|reference| reference as Arc<dyn Engine>)
    }
}

impl Prepared for Net {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn takes_any_batch(&self) -> bool {
        self.reference.is_none()
    }
    fn end_on_host(&self) -> Option<&str> {
        self.reference.as_ref().map(|_| "the last node")
    }
    fn expect(&self, shapes: &[&[i64]]) {
        self.expected.iter().for_each(|expected| _ = expected.lock().unwrap().insert(shapes[0][0]));
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(OnDevice { net: self.clone(), output: None }))
    }
}

struct OnDevice {
    net: Net,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        let mut runs = self.net.runs.lock().unwrap();
        runs.push(shape[0]);
        if let Some(expected) = &self.net.expected {
            assert!(expected.lock().unwrap().contains(&shape[0]), "an engine that prepares shapes is told first");
        }
        match self.net.rows {
            Rows::Single if shape[0] != 1 => return Err(EngineError::Execute("only one row".into())),
            Rows::Picky => return Err(EngineError::Execute("not these".into())),
            Rows::Single | Rows::Alone | Rows::Recurrent | Rows::Random => {}
        }
        let mut numbers: Vec<f32> = data.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        for at in 0..numbers.len() {
            match self.net.rows {
                Rows::Alone | Rows::Single | Rows::Picky => numbers[at] = -numbers[at],
                Rows::Recurrent => numbers[at] += if at < 3 { 0.0 } else { numbers[at - 3] },
                Rows::Random => numbers[at] = (runs.len() * 100 + at) as f32,
            }
        }
        let data: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.output = Some(Tensor { datatype, shape: shape.to_vec(), data: data.into() });
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.output.iter().for_each(|output| sink(0, output.view()));
        Ok(())
    }
}

/// The model `net` of a repository, brought up.
fn bring_up(engine: Arc<dyn Engine>, repository: &Path, cache: &Path) -> ServedModel {
    common::bring_up_with(ProfilingEffort { runs: 3, budget: Duration::ZERO }, engine, repository, cache).0
}

/// Its largest batch, and why.
fn found(served: &ServedModel) -> (u32, &str) {
    let why = served.config.parameters.get("batch_dimension").map_or("", |parameter| &parameter.string_value);
    (served.signature.max_batch, why)
}

#[test]
fn a_model_whose_batch_dimension_exporters_name_differently_batches() {
    let [repository, cache] = folders("");
    let net = Net::new(Rows::Alone, false);
    let served = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
    assert_eq!(found(&served), (16, "rows computed together equal rows computed alone"));
    assert_eq!(net.runs()[..4], [1, 1, 2, 3]);
    // It is found once.
    let again = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
    assert_eq!((found(&again), net.runs()), (found(&served), vec![]));
}

#[test]
fn a_model_of_which_each_size_is_prepared_batches_by_the_evidence_of_its_reference() {
    for (rows, max_batch) in [(Rows::Alone, 16), (Rows::Recurrent, 0)] {
        for guess in [false, true] {
            let [repository, cache] = folders("");
            let net = Net::with_reference(rows, guess);
            let served = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
            assert_eq!(served.signature.max_batch, max_batch, "guessed {guess}");
            let shown = if max_batch > 0 { "equal" } else { "differ from" };
            assert!(found(&served).1.starts_with(&format!("rows computed together {shown} rows")), "{guess}");
            let reference = net.reference.as_ref().unwrap();
            assert_eq!(reference.runs()[..2], [1, 1]);
            assert!(!net.runs().contains(&3), "the device isn't used for it");
            // It is found once.
            let again = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
            assert_eq!((found(&again), reference.runs()), (found(&served), vec![]));
        }
    }
}

#[test]
fn what_the_host_computes_behind_a_device_is_shown() {
    let reshaped = r#"max_batch_size: 4 input { name: "x" data_type: TYPE_FP32 dims: [ 3, 1 ] reshape { shape: [ 3 ] } }
        output { name: "y" data_type: TYPE_FP32 dims: [ 3 ] }"#;
    for config in ["", reshaped] {
        let [repository, cache] = folders(config);
        let shown = |net: Net| {
            let served = bring_up(Arc::new(net), repository.path(), cache.path());
            served.config.parameters.get("end_on_host").map(|parameter| parameter.string_value.clone())
        };
        assert_eq!(shown(Net::with_reference(Rows::Alone, true)).as_deref(), Some("the last node"));
        assert_eq!(shown(Net::new(Rows::Alone, true)), None);
    }
}

#[test]
fn where_the_reference_shows_nothing_names_decide() {
    for (guess, max_batch) in [(false, 0), (true, 16)] {
        let [repository, cache] = folders("");
        let net = Net::with_reference(Rows::Random, guess);
        let served = bring_up(Arc::new(net), repository.path(), cache.path());
        assert_eq!(found(&served), (max_batch, "the model's outputs differ from run to run"));
    }
}

#[test]
fn a_file_whose_batch_dimension_has_two_names_batches() {
    let [repository, cache] = folders("");
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let file = root.join(".cache/test-models/mixed_names/1/model.onnx");
    std::fs::copy(file, repository.path().join("net/1/model.onnx")).expect("run scripts/setup tests");
    let engine = Arc::new(OrtEngine::new(&OrtOptions::default()).unwrap());
    let served = bring_up(engine, repository.path(), cache.path());
    assert_eq!(found(&served), (16, "rows computed together equal rows computed alone"));
}

#[test]
fn a_model_whose_rows_depend_on_one_another_does_not_batch_whatever_its_dimensions_are_called() {
    for guess in [false, true] {
        let [repository, cache] = folders("");
        let net = Net::new(Rows::Recurrent, guess);
        let served = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
        let (max_batch, why) = found(&served);
        assert_eq!(max_batch, 0);
        assert!(why.starts_with("rows computed together differ from rows computed alone: output y by "), "{why}");
        let runs = net.runs();
        assert!(runs.iter().all(|&rows| rows <= 3), "it is measured with one row: {runs:?}");
    }
}

#[test]
fn a_model_that_refuses_several_rows_does_not_batch() {
    let [repository, cache] = folders("");
    let served = bring_up(Arc::new(Net::new(Rows::Single, true)), repository.path(), cache.path());
    assert_eq!(found(&served), (0, "the model refuses 2 rows: execution failed: only one row"));
}

#[test]
fn where_results_are_left_to_chance_names_decide() {
    for (guess, max_batch) in [(false, 0), (true, 16)] {
        let [repository, cache] = folders("");
        let served = bring_up(Arc::new(Net::new(Rows::Random, guess)), repository.path(), cache.path());
        assert_eq!(found(&served), (max_batch, "the model's outputs differ from run to run"));
    }
}

#[test]
fn the_configuration_decides_without_a_test() {
    for (config, rows, max_batch) in [
        ("max_batch_size: 4", Rows::Recurrent, 4),
        ("max_batch_size: 0", Rows::Alone, 0),
        ("input { name: \"x\" data_type: TYPE_FP32 dims: [ -1, 3 ] }", Rows::Alone, 0),
        ("parameters { key: \"profile_inputs\" value { string_value: \"x=1x3\" } }", Rows::Alone, 0),
    ] {
        let [repository, cache] = folders(config);
        let net = Net::new(rows, false);
        let served = bring_up(Arc::new(net.clone()), repository.path(), cache.path());
        assert_eq!(found(&served), (max_batch, ""), "{config}");
        assert!(!net.runs().contains(&3), "{config}");
    }
}

#[test]
fn a_model_that_accepts_no_made_up_input_is_served_unmeasured() {
    for (guess, max_batch) in [(false, 0), (true, 16)] {
        let [repository, cache] = folders("");
        let served = bring_up(Arc::new(Net::new(Rows::Picky, guess)), repository.path(), cache.path());
        assert_eq!(found(&served), (max_batch, "no input was found that the model accepts"));
        assert_eq!(served.model().unwrap().record.profile.batches()[0].median, Duration::from_millis(10));
        // What wasn't measured isn't kept.
        assert!(!cache.path().join("profiles").exists());
    }
}

#[test]
fn a_model_that_takes_any_batch_has_sizes_between_powers_of_two_which_are_not_run() {
    let [repository, cache] = folders("max_batch_size: 20");
    let net = Net::new(Rows::Alone, false);
    let effort = ProfilingEffort { runs: 3, budget: Duration::from_secs(60) };
    let served = common::bring_up_with(effort, Arc::new(net.clone()), repository.path(), cache.path()).0;
    let sizes = |served: &ServedModel| {
        served.model().unwrap().record.profile.batches().iter().map(|entry| entry.batch).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&served), (1..=16).chain([18, 20]).collect::<Vec<_>>());
    assert_eq!(BTreeSet::from_iter(net.runs()), BTreeSet::from([1, 2, 4, 8, 16, 20]));
    // What is configured is what is run.
    std::fs::write(
        repository.path().join("net/config.pbtxt"),
        "max_batch_size: 20 parameters { key: \"batch_sizes\" value { string_value: \"1,3,5\" } }",
    )
    .unwrap();
    let served = common::bring_up_with(effort, Arc::new(net.clone()), repository.path(), cache.path()).0;
    assert_eq!((sizes(&served), BTreeSet::from_iter(net.runs())), (vec![1, 3, 5], BTreeSet::from([1, 3, 5])));
}

#[test]
fn an_emulated_model_has_sizes_between_powers_of_two_as_on_a_cpu() {
    let emulated = "max_batch_size: 20 \
         parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=1,load_ms=1\" } }";
    let [repository, cache] = folders(emulated);
    let served = bring_up(Arc::new(engine::EmulatedEngine::default()), repository.path(), cache.path());
    let sizes: Vec<u32> = served.model().unwrap().record.profile.batches().iter().map(|entry| entry.batch).collect();
    assert_eq!(sizes, (1..=16).chain([18, 20]).collect::<Vec<_>>());
}
