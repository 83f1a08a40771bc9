//! What a model is computed in follows from how far its outputs are off, unless its configuration says it.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DataType, Duration, ModelSignature, Precision, TensorSpec};
use common::{bring_up_with, clocked, folders};
use controller::Tensor;
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Purpose, Sink, TensorView, at_once};
use models::{ProfilingEffort, ServedModel};
use std::path::Path;
use std::sync::{Arc, Mutex};

const ALL: [Precision; 4] = [Precision::Fp16, Precision::Tf32, Precision::Tf32Behind(1), Precision::Fp32];

/// A model over three numbers on a device that has several precisions.
#[derive(Clone)]
struct Rounded {
    /// How far it is off in a precision; nothing in others.
    errors: Vec<(Precision, f32)>,
    /// What it takes in TF32, by the device's clock; a millisecond in all else.
    tf32: Duration,
    /// Halves hold numbers up to this.
    most: f32,
    /// Whether the device computes the model at all; else another engine does.
    computes: bool,
    /// Whether it accepts any input.
    accepts: bool,
    precision: Precision,
    prepared: Arc<Mutex<Vec<(Precision, Purpose)>>>,
}

impl Rounded {
    fn new(errors: &[(Precision, f32)]) -> Self {
        Self {
            errors: errors.to_vec(),
            tf32: Duration::from_millis(1),
            most: f32::INFINITY,
            computes: true,
            accepts: true,
            precision: Precision::Fp32,
            prepared: Arc::default(),
        }
    }

    /// What it was prepared for since this was asked last.
    fn prepared(&self) -> Vec<(Precision, Purpose)> {
        std::mem::take(&mut *self.prepared.lock().unwrap())
    }

    /// The model as it is served, with the metrics.
    fn bring_up(&self, repository: &Path, cache: &Path) -> (ServedModel, String) {
        let effort = ProfilingEffort { runs: 3, budget: Duration::ZERO };
        bring_up_with(effort, Arc::new(self.clone()), repository, cache)
    }

    /// What clients are told of the precision of a model with that configuration, and what was prepared.
    fn served(&self, config: &str) -> (String, Vec<(Precision, Purpose)>) {
        let [repository, cache] = folders(config);
        let (served, _) = self.bring_up(repository.path(), cache.path());
        (computed_in(&served), self.prepared())
    }
}

fn computed_in(served: &ServedModel) -> String {
    served.config.parameters.get("computed_in").map_or(String::new(), |parameter| parameter.string_value.clone())
}

fn parameter(name: &str, value: &str) -> String {
    format!("parameters {{ key: \"{name}\" value {{ string_value: \"{value}\" }} }}\n")
}

impl Engine for Rounded {
    fn name(&self) -> &'static str {
        "rounded"
    }
    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let precision = source.precision.unwrap_or(Precision::Fp32);
        self.prepared.lock().unwrap().push((precision, source.purpose));
        if !self.computes && source.purpose != Purpose::Service {
            return Err(EngineError::bad_model(&source.file, "an operator isn't known"));
        }
        Ok(Arc::new(Self { precision, ..self.clone() }))
    }
    fn precisions(&self) -> &[Precision] {
        &ALL
    }
}

impl Prepared for Rounded {
    fn signature(&self) -> &ModelSignature {
        static SIGNATURE: std::sync::OnceLock<ModelSignature> = std::sync::OnceLock::new();
        SIGNATURE.get_or_init(|| {
            let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 3] };
            ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y")], max_batch: 4 }
        })
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn precision(&self) -> Option<Precision> {
        self.computes.then_some(self.precision)
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        let takes = if self.precision == Precision::Tf32 { self.tf32 } else { Duration::from_millis(1) };
        Ok(clocked(at_once(OnDevice { net: self.clone(), output: None }), takes))
    }
}

struct OnDevice {
    net: Rounded,
    output: Option<Tensor>,
}

impl AtOnce for OnDevice {
    /// Each row becomes a 0 that is off, a 1, and its first number over what halves can hold.
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        if !self.net.accepts {
            return Err(EngineError::Execute("not these".into()));
        }
        let off = self.net.errors.iter().find(|(precision, _)| *precision == self.net.precision);
        let row = |row: &[u8]| {
            let first = f32::from_le_bytes(row[..4].try_into().unwrap());
            let overflows = self.net.precision == Precision::Fp16 && first > self.net.most;
            [off.map_or(0.0, |(_, off)| *off), 1.0, if overflows { f32::INFINITY } else { 0.5 }]
        };
        let data: Vec<u8> = data.chunks(12).flat_map(row).flat_map(f32::to_le_bytes).collect();
        self.output = Some(Tensor { datatype, shape: shape.to_vec(), data: data.into() });
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.output.iter().for_each(|output| sink(0, output.view()));
        Ok(())
    }
}

#[test]
fn a_model_gets_the_first_precision_that_is_near_enough_and_is_compared_once() {
    let [repository, cache] = folders("");
    let net = Rounded::new(&[(Precision::Fp16, 0.15), (Precision::Tf32, 0.002)]);
    let (served, metrics) = net.bring_up(repository.path(), cache.path());
    let said = "tf32, whose outputs are off by 2.0e-3 of their range; too far off are fp16 1.5e-1";
    assert_eq!(computed_in(&served), said);
    let series = r#"punctual_model_precision_error{model="net",precision="tf32",version="1"} 0.002"#;
    assert!(metrics.contains(series), "{metrics}");
    let compared = [
        (Precision::Fp32, Purpose::Draft),
        (Precision::Fp16, Purpose::Trial),
        (Precision::Tf32, Purpose::Trial),
        (Precision::Tf32, Purpose::Service),
    ];
    assert_eq!(net.prepared(), compared);
    let (again, metrics) = net.bring_up(repository.path(), cache.path());
    assert_eq!((computed_in(&again), net.prepared()), (said.to_owned(), vec![compared[3]]));
    assert!(metrics.contains(series), "{metrics}");
}

#[test]
fn of_two_that_are_near_enough_the_faster_by_the_devices_clock_is_served() {
    let near = Rounded::new(&[(Precision::Fp16, 0.004), (Precision::Tf32, 0.002)]);
    let compared =
        [(Precision::Fp32, Purpose::Draft), (Precision::Fp16, Purpose::Trial), (Precision::Tf32, Purpose::Trial)];
    for (micros, chosen, error, other) in [
        (700, Precision::Tf32, "2.0e-3", "fp16 4.0e-3"),
        (990, Precision::Fp16, "4.0e-3", "tf32 2.0e-3"),
        (1400, Precision::Fp16, "4.0e-3", "tf32 2.0e-3"),
    ] {
        let net = Rounded { tf32: Duration::from_micros(micros), ..near.clone() };
        let [repository, cache] = folders("");
        let said =
            format!("{chosen}, whose outputs are off by {error} of their range; near enough and no faster is {other}");
        assert_eq!(computed_in(&net.bring_up(repository.path(), cache.path()).0), said);
        let service = (chosen, Purpose::Service);
        assert_eq!(net.prepared(), [&compared[..], &[service]].concat());
        assert_eq!(computed_in(&net.bring_up(repository.path(), cache.path()).0), said, "it is kept");
        assert_eq!(net.prepared(), [service]);
    }
}

#[test]
fn a_wider_or_a_narrower_bound_is_another_question() {
    let [repository, cache] = folders("");
    let net = Rounded::new(&[(Precision::Fp16, 0.15), (Precision::Tf32, 0.002)]);
    for (bound, expected) in [("0.2", "fp16"), ("0.01", "tf32"), ("0.001", "tf32+1")] {
        std::fs::write(repository.path().join("net/config.pbtxt"), parameter("precision_error", bound)).unwrap();
        let (served, _) = net.bring_up(repository.path(), cache.path());
        assert_eq!(computed_in(&served).split([',', ';']).next(), Some(expected));
    }
}

#[test]
fn what_the_configuration_names_is_obeyed() {
    let net = Rounded::new(&[(Precision::Fp16, 0.15)]);
    let (said, prepared) = net.served(&parameter("precision", "fp16"));
    assert_eq!(said, "fp16, whose outputs are off by 1.5e-1 of their range");
    assert_eq!(prepared.last(), Some(&(Precision::Fp16, Purpose::Service)));
    let (said, prepared) = net.served(&parameter("precision", "fp32"));
    assert_eq!((said.as_str(), prepared), ("fp32", vec![(Precision::Fp32, Purpose::Service)]), "nothing is compared");
}

#[test]
fn what_was_measured_in_one_precision_says_nothing_of_another() {
    let [repository, cache] = folders("");
    let net = Rounded::new(&[(Precision::Fp16, 0.15)]);
    let profiles = |precision: &str| {
        std::fs::write(repository.path().join("net/config.pbtxt"), parameter("precision", precision)).unwrap();
        net.bring_up(repository.path(), cache.path());
        std::fs::read_dir(cache.path().join("profiles")).unwrap().count()
    };
    assert_eq!(["fp16", "fp32", "fp16", "auto", "tf32"].map(profiles), [1, 2, 2, 3, 3]);
}

#[test]
fn what_a_model_is_warmed_up_with_counts() {
    let net = Rounded { most: 1000.0, ..Rounded::new(&[]) };
    assert!(net.served("").0.starts_with("fp16"));
    let [repository, cache] = folders(
        r#"model_warmup { name: "loud" batch_size: 1 inputs { key: "x" value { data_type: TYPE_FP32 dims: 3 input_data_file: "loud" } } }"#,
    );
    std::fs::create_dir(repository.path().join("net/warmup")).unwrap();
    let loud: Vec<u8> = [2000.0f32, 0.0, 0.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    std::fs::write(repository.path().join("net/warmup/loud"), loud).unwrap();
    let (served, _) = net.bring_up(repository.path(), cache.path());
    let said = computed_in(&served);
    assert_eq!(said, "tf32, whose outputs are off by 0.0e0 of their range; too far off are fp16 infinitely much");
}

#[test]
fn a_model_that_another_engine_computes_has_no_precision() {
    let net = Rounded { computes: false, ..Rounded::new(&[]) };
    let (said, prepared) = net.served("");
    assert_eq!(said, "");
    let tried = [(Precision::Fp32, Purpose::Draft), (Precision::Fp32, Purpose::Service)];
    assert_eq!(prepared, tried, "what can't be prepared isn't tried again in other precisions");
}

#[test]
fn without_evidence_it_is_computed_in_32_bits() {
    let net = Rounded { accepts: false, ..Rounded::new(&[]) };
    let (said, prepared) = net.served("");
    assert_eq!((said.as_str(), prepared.last()), ("", Some(&(Precision::Fp32, Purpose::Service))));
}
