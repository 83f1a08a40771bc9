//! What a config.pbtxt says of a model, checked and in our own terms.

use crate::endpoint::EndpointKind;
use crate::sequences::SequenceConfig;
use crate::text::{self, TextMessage, TextPosition, TextProblem};
use crate::{endpoint, json, read, schema};
use base::{
    DataType, Duration, LatencyProfile, PrecisionChoice, ProfileError, USUAL_MAX_BATCH, dense_batch_sizes,
    usual_batch_sizes,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use wire::proto;

/// The folder of a model that has the data for warming up.
pub const WARMUP_FOLDER: &str = "warmup";

/// What is configured for a model. `Default` is what holds where there is no config.pbtxt.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ModelConfig {
    /// Triton's name for the kind of model, if said: `onnxruntime_onnx`.
    pub platform: Option<String>,
    /// The largest batch; 0 forbids batching; `None` leaves it to the engine.
    pub max_batch: Option<u32>,
    /// The inputs, if listed.
    pub inputs: Vec<TensorConfig>,
    /// The outputs, if listed.
    pub outputs: Vec<TensorConfig>,
    /// Which versions are served.
    pub version_policy: VersionPolicy,
    /// What happens to requests that wait, if anything is said of it.
    pub queueing: Option<Queueing>,
    /// Requests to run before the model is ready.
    pub warmup: Vec<WarmupSample>,
    /// Triton's preferred batch sizes, ascending.
    pub preferred_batch_sizes: Vec<u32>,
    /// The batch sizes to execute, ascending, from the parameter `batch_sizes`.
    pub batch_sizes: Option<Vec<u32>>,
    /// The deadline of a request that brings none, counted from its arrival.
    pub latency_objective: Option<Duration>,
    /// How many times the device time of other models it may have when devices are short, from the parameter
    /// `fair_weight`.
    pub fair_weight: Option<f64>,
    /// The part of all device time that it gets in any case, from the parameter `fair_floor`.
    pub fair_floor: Option<f64>,
    /// What an emulated device pretends.
    pub emulation: Option<Emulation>,
    /// What to measure the model with where its file leaves it open, by input, from the parameter `profile_inputs`.
    pub profile_inputs: BTreeMap<String, ProfileInput>,
    /// What open dimensions besides the batch will be, ascending, from the parameter `sequence_lengths`: for engines
    /// that prepare each shape, and for `padding`.
    pub lengths: Vec<u32>,
    /// For engines that have a choice: what floats are computed in, from the parameter `precision`.
    pub precision: Option<PrecisionChoice>,
    /// How far its outputs may be off where the precision is chosen by evidence, as a part of an output's range, from
    /// the parameter `precision_error`.
    pub precision_error: Option<f64>,
    /// What inputs are filled up with so that requests of different lengths can share a batch, by input; none: they
    /// can't.
    pub padding: BTreeMap<String, f64>,
    /// How many elements an input whose size is left open may have, from the parameter `max_elements`.
    pub max_elements: Option<u64>,
    /// How many shapes of a model that leaves sizes open are kept prepared, from the parameter `max_shapes`: for
    /// engines that prepare each shape.
    pub max_shapes: Option<u32>,
    /// What is kept of sequences of requests, and what the model is told of them, if it is asked in sequences.
    pub sequences: Option<SequenceConfig>,
    /// Whether its answers are kept, on a server that keeps any.
    pub response_cache: bool,
    /// The name of the model's file in the version's folder, if it isn't `model.onnx`.
    pub file_name: Option<String>,
    /// How its answers are made by other models, where they are: there is no file of a model then.
    pub endpoint: Option<Arc<EndpointKind>>,
    /// Everything as it was written, in Triton's message.
    pub written: proto::ModelConfig,
    /// What was ignored, as sentences that name the file.
    pub warnings: Vec<String>,
}

/// What to measure a model with.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ProfileInput {
    /// The dimensions, without the batch dimension where the model has one.
    pub dims: Option<Vec<i64>>,
    /// The value of every element.
    pub value: Option<f64>,
}

/// One input or output as configured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorConfig {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions, without the batch dimension where `max_batch_size` is above 0; -1 where any size goes.
    pub dims: Vec<i64>,
    /// The dimensions that the model itself has, where the client's are others.
    pub reshape: Option<Vec<i64>>,
    /// The file in the model's folder with the names of an output's classes, one on each line.
    pub labels: Option<String>,
}

impl TensorConfig {
    /// What the configuration says of the model's own dimensions, of which there are `actual` behind the batch
    /// dimension. Triton has no tensors without dimensions: those of a model without a batch are written with ones.
    pub fn own_dims(&self, actual: &[i64], batched: bool) -> &[i64] {
        let said = self.reshape.as_deref().unwrap_or(&self.dims);
        let is_scalar = actual.is_empty() && !batched && said.iter().all(|&dim| dim == 1);
        if is_scalar { &[] } else { said }
    }
}

/// What `dynamic_batching` says of requests that wait.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Queueing {
    /// Levels of priority, from 1, the most urgent; 0: requests may name any.
    pub levels: u32,
    /// The level of a request that names none, or one that isn't there.
    pub default_level: u32,
    /// What holds for levels that have no policy of their own.
    pub default_policy: QueuePolicy,
    /// What holds for some levels.
    pub policies: BTreeMap<u32, QueuePolicy>,
}

/// How long and how many requests may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QueuePolicy {
    /// How long a request may wait to be started, if that is bounded.
    pub timeout: Option<Duration>,
    /// Whether a request that waited too long is executed all the same.
    pub delays: bool,
    /// How many may wait; 0: no bound of the model's own.
    pub max_queue_size: u32,
}

/// A request that is run before a model is ready.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WarmupSample {
    /// For messages.
    pub name: String,
    /// Rows of the batch dimension.
    pub batch: u32,
    /// How often it is run.
    pub count: u32,
    /// By the input's name.
    pub inputs: BTreeMap<String, WarmupInput>,
}

/// An input of such a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WarmupInput {
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions, without the batch dimension.
    pub dims: Vec<i64>,
    /// What is in it.
    pub data: WarmupData,
}

/// What is in an input of such a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WarmupData {
    /// Zeros, or empty strings.
    Zero,
    /// Values by chance, the same ones every time.
    Random,
    /// The content of a file in the folder `warmup` of the model.
    File(String),
}

/// Which versions of a model are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VersionPolicy {
    /// The highest ones, that many.
    Latest(u32),
    /// All of them.
    All,
    /// Exactly these, ascending.
    Specific(Vec<u64>),
}

impl Default for VersionPolicy {
    fn default() -> Self {
        Self::Latest(1)
    }
}

/// What an emulated device pretends about a model: a batch of `b` takes `alpha * b + beta`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Emulation {
    /// For each row.
    pub alpha: Duration,
    /// For each batch.
    pub beta: Duration,
    /// For a load.
    pub load: Duration,
    /// What of a batch is transfers that run beside other batches, for each row.
    pub transfer: Duration,
    /// What the weights take.
    pub weight_bytes: u64,
}

/// Why a config.pbtxt can't be used.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("{}: {reason}", position.in_file(file))]
pub struct ConfigError {
    /// Which file.
    pub file: PathBuf,
    /// Where in it.
    pub position: TextPosition,
    /// What is wrong there and what was expected.
    pub reason: String,
}

impl ConfigError {
    fn new(file: &Path, TextProblem { position, reason }: TextProblem) -> Self {
        Self { file: file.to_owned(), position, reason }
    }
}

impl ModelConfig {
    /// Reads a configuration. `file` is named in messages; `model` is the name of the model's folder.
    pub fn parse(source: &str, file: &Path, model: &str) -> Result<Self, ConfigError> {
        Self::read(text::parse(source), file, model)
    }

    /// Reads a configuration that is JSON, in Triton's form; `origin` is named in messages.
    pub fn parse_json(source: &str, origin: &Path, model: &str) -> Result<Self, ConfigError> {
        Self::read(json::parse(source), origin, model)
    }

    /// Reads an `endpoint.toml`. `file` is named in messages.
    pub fn parse_endpoint(source: &str, file: &Path) -> Result<Self, ConfigError> {
        endpoint::parse(source).map_err(|problem| ConfigError::new(file, problem))
    }

    fn read(tree: Result<TextMessage, TextProblem>, file: &Path, model: &str) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let parsed = tree.and_then(|tree| {
            let (written, positions) = schema::read(&tree, &mut warnings)?;
            read::config(written, &positions, model, &mut warnings)
        });
        let mut config = parsed.map_err(|problem| ConfigError::new(file, problem))?;
        warnings.sort_by_key(|problem| (problem.position.line, problem.position.column));
        let sentence = |TextProblem { position, reason }: &TextProblem| format!("{}: {reason}", position.in_file(file));
        config.warnings = warnings.iter().map(sentence).collect();
        Ok(config)
    }

    /// The files in the model's folder, besides its versions, that a change of makes it another model.
    pub fn companions(&self) -> impl Iterator<Item = String> {
        let labels = self.outputs.iter().filter_map(|output| output.labels.clone());
        let warmup = self.warmup.iter().flat_map(|sample| sample.inputs.values());
        let warmup = warmup.filter_map(|input| match &input.data {
            WarmupData::File(file) => Some(format!("{WARMUP_FOLDER}/{file}")),
            WarmupData::Zero | WarmupData::Random => None,
        });
        labels.chain(warmup)
    }

    /// The batch sizes to prepare and measure, ascending, for a model of which the engine knows that its largest batch
    /// is `max_batch` (0: no batch dimension). Those that are configured, else powers of two up to the largest, with
    /// Triton's preferred ones between them; never more than `max_batch`, and 1 is always there.
    pub fn batch_sizes(&self, max_batch: u32) -> Vec<u32> {
        self.sizes_or(max_batch, usual_batch_sizes)
    }

    /// The same for models that compute batches of any size: what isn't configured lies so close together that little
    /// is lost. All of `batch_sizes` are among them, and what the others take follows from what these take.
    pub fn any_batch_sizes(&self, max_batch: u32) -> Vec<u32> {
        self.sizes_or(max_batch, dense_batch_sizes)
    }

    fn sizes_or(&self, max_batch: u32, default: fn(u32) -> Vec<u32>) -> Vec<u32> {
        let max = max_batch.max(1);
        let mut sizes = match &self.batch_sizes {
            Some(sizes) => sizes.clone(),
            None => {
                // Said outright, the largest batch is wanted; found in the model, it is only what is possible.
                let largest = if self.max_batch.is_some() { max } else { max.min(USUAL_MAX_BATCH) };
                // A preference is a hint: requests with more rows are taken up to the largest batch, as in Triton.
                [default(largest), self.preferred_batch_sizes.clone()].concat()
            }
        };
        sizes.retain(|&size| size <= max);
        sizes.push(1);
        sizes.sort_unstable();
        sizes.dedup();
        sizes
    }

    /// What an emulated device pretends for these batch sizes, if anything is configured.
    pub fn emulated_profile(&self, sizes: &[u32]) -> Option<Result<LatencyProfile, ProfileError>> {
        let emulation = self.emulation?;
        let profile = LatencyProfile::linear(emulation.alpha, emulation.beta, sizes, emulation.load);
        Some(profile.map(|profile| profile.with_transfers(emulation.transfer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ModelConfig, String> {
        ModelConfig::parse(text, Path::new("m/config.pbtxt"), "m").map_err(|error| error.to_string())
    }

    #[test]
    fn a_configuration_written_for_triton_is_understood() {
        let config = parse(
            r#"
            name: "m"
            platform: "onnxruntime_onnx"
            max_batch_size: 8
            input [ { name: "image" data_type: TYPE_FP32 dims: [ 3, 224, -1 ] } ]
            output { name: "label" data_type: TYPE_STRING dims: 5 }
            version_policy: { specific: { versions: [ 3, 1 ] } }
            dynamic_batching { preferred_batch_size: [ 8, 4 ] }
            instance_group [ { count: 2 kind: KIND_CPU } ]
            default_model_filename: "net.onnx"
            parameters { key: "latency_objective_ms" value: { string_value: "12.5" } }
            parameters { key: "fair_weight" value: { string_value: "2" } }
            parameters { key: "fair_floor" value: { string_value: "0.1" } }
            parameters { key: "batch_sizes" value: { string_value: "4, 1,2" } }
            parameters { key: "emulated_latency" value: { string_value: "alpha_ms=1.0,beta_ms=5.0" } }
            parameters { key: "weights_mb" value: { string_value: "102.3" } }
            parameters { key: "sequence_lengths" value: { string_value: "128,32" } }
            parameters { key: "precision" value: { string_value: "fp16" } }
            parameters { key: "precision_error" value: { string_value: "0.002" } }
            parameters { key: "computed_in" value: { string_value: "tf32" } }
            "#,
        )
        .unwrap();
        let image = TensorConfig {
            name: "image".into(),
            datatype: DataType::Fp32,
            dims: vec![3, 224, -1],
            reshape: None,
            labels: None,
        };
        assert_eq!(config.inputs, [image]);
        assert_eq!((config.outputs[0].datatype, &config.outputs[0].dims[..]), (DataType::Bytes, &[5][..]));
        assert_eq!(config.max_batch, Some(8));
        assert_eq!(config.version_policy, VersionPolicy::Specific(vec![1, 3]));
        assert_eq!(config.preferred_batch_sizes, [4, 8]);
        assert_eq!(config.batch_sizes, Some(vec![1, 2, 4]));
        assert_eq!(config.latency_objective, Some(Duration::from_micros(12_500)));
        assert_eq!((config.fair_weight, config.fair_floor), (Some(2.0), Some(0.1)));
        assert_eq!(config.file_name.as_deref(), Some("net.onnx"));
        assert_eq!(config.emulation.unwrap().weight_bytes, 102_300_000);
        assert_eq!((&config.lengths[..], config.precision_error), (&[32, 128][..], Some(0.002)));
        assert_eq!(config.precision, Some(PrecisionChoice::Named(base::Precision::Fp16)));
        let profile = config.emulated_profile(&[1, 4]).unwrap().unwrap();
        assert_eq!(profile.batches()[1].median, Duration::from_millis(9));
        assert_eq!(config.warnings.len(), 1, "{:?}", config.warnings);
    }

    #[test]
    fn inputs_to_measure_with_are_read_or_explained() {
        let of = |text: &str| {
            parse(&format!("parameters {{ key: \"profile_inputs\" value: {{ string_value: \"{text}\" }} }}"))
        };
        let inputs = of("input=1x576, rate=@16000,both=2@0.5").unwrap().profile_inputs;
        assert_eq!(inputs["input"], ProfileInput { dims: Some(vec![1, 576]), value: None });
        assert_eq!(inputs["rate"], ProfileInput { dims: None, value: Some(16000.0) });
        assert_eq!(inputs["both"], ProfileInput { dims: Some(vec![2]), value: Some(0.5) });
        for wrong in ["input", "input=", "input=0x3", "rate=@many", "a=1,"] {
            assert!(of(wrong).unwrap_err().contains("profile_inputs"), "{wrong}");
        }
    }

    #[test]
    fn the_most_shapes_are_read_or_explained() {
        let of =
            |text: &str| parse(&format!("parameters {{ key: \"max_shapes\" value: {{ string_value: \"{text}\" }} }}"));
        assert_eq!(of("8").unwrap().max_shapes, Some(8));
        assert!(of("0").unwrap_err().contains("max_shapes"));
    }

    #[test]
    fn the_most_elements_of_an_input_are_read_or_explained() {
        let of = |text: &str| {
            parse(&format!("parameters {{ key: \"max_elements\" value: {{ string_value: \"{text}\" }} }}"))
        };
        assert_eq!(of(" 65536").unwrap().max_elements, Some(65536));
        assert_eq!(parse("").unwrap().max_elements, None);
        for wrong in ["0", "-1", "1e6", "many", ""] {
            assert!(of(wrong).unwrap_err().contains("max_elements"), "{wrong}");
        }
    }

    #[test]
    fn what_inputs_are_filled_up_with_is_read_or_explained() {
        let of =
            |text: &str| parse(&format!("parameters {{ key: \"padding\" value: {{ string_value: \"{text}\" }} }}"));
        let config = of("input_ids=0, mask=-inf").unwrap();
        assert_eq!(config.padding["input_ids"], 0.0);
        assert_eq!(config.padding["mask"], f64::NEG_INFINITY);
        assert!(config.warnings.is_empty());
        for wrong in ["input_ids", "input_ids=nan", "a=0,", ""] {
            assert!(of(wrong).unwrap_err().contains("parameter `padding` has"), "{wrong}");
        }
    }

    #[test]
    fn what_is_ignored_is_named_with_its_place() {
        let config = parse("optimization { }\nparameters { key: \"latncy\" value: { string_value: \"1\" } }").unwrap();
        assert_eq!(
            config.warnings,
            [
                "m/config.pbtxt:1:1: optimization is ignored: graphs are always optimised, and the runtime is set up by the server's own options",
                "m/config.pbtxt:2:51: parameter `latncy` isn't known and is ignored",
            ]
        );
    }

    #[test]
    fn json_gives_the_same_as_text() {
        let text = r#"max_batch_size: 0 input { name: "x" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3, -1 ] } }
            output { name: "y" data_type: TYPE_INT64 dims: 4 label_filename: "labels.txt" }
            dynamic_batching { preferred_batch_size: 4 priority_levels: 2 default_priority_level: 1
              priority_queue_policy { key: 2 value { timeout_action: DELAY max_queue_size: 3 } } }
            parameters { key: "batch_sizes" value { string_value: "1,2" } }
            model_warmup { name: "w" inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 3 ] random_data: true } } }"#;
        let json = r#"{"max_batch_size": 0, "input": [{"name": "x", "dataType": "TYPE_FP32", "dims": ["-1", 3], "reshape": {"shape": [3, -1]}}],
            "output": [{"name": "y", "data_type": 9, "dims": [4], "label_filename": "labels.txt"}],
            "dynamic_batching": {"preferred_batch_size": [4], "priority_levels": "2", "default_priority_level": 1,
              "priority_queue_policy": {"2": {"timeout_action": "DELAY", "max_queue_size": 3}}},
            "parameters": {"batch_sizes": {"string_value": "1,2"}}, "backend": null,
            "model_warmup": [{"name": "w", "inputs": {"x": {"data_type": "TYPE_FP32", "dims": [2, 3], "random_data": true}}}]}"#;
        let mut from_text = parse(text).unwrap();
        let mut from_json = ModelConfig::parse_json(json, Path::new("config"), "m").unwrap();
        assert_eq!(from_json.max_batch, Some(0), "a 0 that is written counts");
        assert_eq!(from_text.companions().collect::<Vec<_>>(), ["labels.txt"]);
        from_text.warnings.clear();
        from_json.warnings.clear();
        assert_eq!(from_text, from_json);
        let error = |json| ModelConfig::parse_json(json, Path::new("config"), "m").unwrap_err().to_string();
        assert!(error("{").starts_with("config: the configuration isn't JSON"), "{}", error("{"));
        assert_eq!(error(r#"{"max_batch_size": "many"}"#), "config: `max_batch_size` must be a whole number, not many");
        assert_eq!(error(r#"{"input": 3}"#), "config: `input` must be a message: { ... }");
    }

    /// Clients take the configuration that a server shows, change something and load the model with it.
    #[test]
    fn what_is_shown_can_be_loaded_again() {
        let config = parse("max_batch_size: 4 version_policy { all { } } sequence_batching { }").unwrap();
        let shown = String::from_utf8(wire::reflect::to_json("ModelConfig", &config.written)).unwrap();
        let mut again = ModelConfig::parse_json(&shown, Path::new("config"), "m").unwrap();
        assert_eq!(again.warnings, Vec::<String>::new());
        again.warnings.clone_from(&config.warnings);
        assert_eq!(again, config);
    }

    #[test]
    fn what_would_compute_something_else_is_refused() {
        for (text, part) in [
            ("ensemble_scheduling { }", "a pipeline has 1 to 64 stages, not 0"),
            ("platform: \"ensemble\"", "an ensemble has its steps in ensemble_scheduling"),
            ("batch_input { }", "batch_input isn't supported"),
            ("input { name: \"x\" data_type: TYPE_FP32 dims: [ 2, 3 ] reshape { shape: [ 5 ] } }", "can't be reshaped"),
            (
                "input { name: \"x\" data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ 3 ] } }",
                "can't be reshaped",
            ),
            ("output { name: \"x\" data_type: TYPE_FP32 dims: 1 label_filename: \"../x\" }", "in the model's folder"),
            ("dynamic_batching { priority_levels: 2 }", "default_priority_level is 0"),
            ("dynamic_batching { priority_queue_policy { key: 1 value { } } }", "policy for level 1"),
            ("model_warmup { inputs { key: \"x\" value { data_type: TYPE_FP32 dims: 1 } } }", "has no data"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("m/config.pbtxt:1:") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn bad_values_are_sentences() {
        let parameter = |key: &str, value: &str| {
            parse(&format!("parameters {{ key: {key:?} value: {{ string_value: {value:?} }} }}")).unwrap_err()
        };
        assert_eq!(
            parse("max_batch_size: x").unwrap_err(),
            "m/config.pbtxt:1:17: `max_batch_size` must be a whole number, not x"
        );
        for (error, part) in [
            (parse("name: \"other\"").unwrap_err(), "name is \"other\", but the folder is called \"m\""),
            (parse("platform: \"tensorrt_plan\"").unwrap_err(), "platform \"tensorrt_plan\" isn't supported"),
            (parse("backend: \"python\"").unwrap_err(), "backend \"python\" isn't supported"),
            (parse("max_batch_size: -1").unwrap_err(), "max_batch_size is -1: it must be from 0 to 2147483647"),
            (parse("input { name: \"x\" }").unwrap_err(), "input \"x\" has no data_type"),
            (parse("input { data_type: TYPE_FP32 }").unwrap_err(), "this input has no name"),
            (parse("input { name: \"x\" data_type: TYPE_FLOAT }").unwrap_err(), "data_type \"TYPE_FLOAT\" isn't known"),
            (parse("default_model_filename: \"../x\"").unwrap_err(), "not a path"),
            (parse("version_policy { specific { } }").unwrap_err(), "names no version"),
            (parse("version_policy { specific { versions: -3 } }").unwrap_err(), "names version -3"),
            (parameter("batch_sizes", "1,many"), "has \"many\""),
            (parameter("batch_sizes", "0"), "is 0: it must be from 1"),
            (parameter("latency_objective_ms", "-4"), "is \"-4\": write a number from 0.001 up"),
            (parameter("latency_objective_ms", "NaN"), "is \"NaN\""),
            (parameter("fair_weight", "0"), "is \"0\": write a number from 0.001 up"),
            (parameter("fair_floor", "1.5"), "is \"1.5\": write a number from 0 to 1"),
            (parameter("sequence_lengths", "16,0"), "is 0: it must be from 1"),
            (parameter("precision", "half"), "is \"half\": write auto, fp32, tf32, tf32+4 (with"),
            (parameter("precision_error", "2"), "is \"2\": write a number from 0 to 1"),
            (parameter("emulated_latency", "alpha_ms=1"), "needs both alpha_ms and beta_ms"),
            (parameter("emulated_latency", "gamma=1"), "has \"gamma\""),
        ] {
            assert!(error.starts_with("m/config.pbtxt:1:") && error.contains(part), "{error}");
        }
    }

    /// One configuration in each line: what is said of it, with its place.
    #[test]
    fn every_mistake_has_its_sentence_and_its_place() {
        let texts = r#"
            platform: onnxruntime_onnx
            platform: "tensorrt_plan"
            max_batch_size: 99999999999
            max_batch_size: [ 1, 2 ]
            max_batch_size: 1 max_batch_size: 2
            input { name: "x" data_type: TYPE_FLOAT }
            input [ { name: "x" data_type: TYPE_FP32 }, { name: "y" data_type: TYPE_INVALID } ]
            input { name: "x" data_type: TYPE_FP32 dims: [ 3, 0 ] }
            input { name: "x" data_type: TYPE_FP32 dims: 3 } input { name: "y" data_type: TYPE_FP32 dims: [ 1, -2 ] }
            input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, -3 ] } }
            input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 2, 3 ] } }
            output { name: "x" data_type: TYPE_FP32 dims: 1 label_filename: "/x" }
            dynamic_batching { preferred_batch_size: [ 4, 0 ] }
            dynamic_batching { preferred_batch_size: 4 preferred_batch_size: 5000000000 }
            dynamic_batching { priority_levels: -1 }
            dynamic_batching { priority_levels: 2 default_priority_level: 3 }
            dynamic_batching { priority_queue_policy { key: 3 value { } } }
            dynamic_batching { default_queue_policy { timeout_action: WAIT } }
            dynamic_batching { default_queue_policy { max_queue_size: 4294967296 } }
            dynamic_batching { } sequence_batching { }
            version_policy { specific { versions: [ 2, 0 ] } }
            version_policy { specific { } }
            default_model_filename: ".."
            parameters { value { string_value: "1" } }
            parameters { key: "batch_sizes" }
            parameters { key: "weights_mb" value { string_value: "x" } }
            parameters { key: "padding" value { string_value: "x" } } max_batch_size: -1
            model_warmup { name: "w" count: 20000 }
            model_warmup { name: "w" batch_size: 5000000000 }
            model_warmup { inputs { value { } } }
            model_warmup { inputs { key: "x" value { zero_data: true } } }
            model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 } } }
            model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: -1 zero_data: true } } }
            model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 dims: 0 zero_data: true } } }
            model_warmup { inputs { key: "x" value { data_type: TYPE_FP32 input_data_file: "a/../b" } } }
            sequence_batching { max_sequence_idle_microseconds: 5 iterative_sequence: true }
            ensemble_scheduling { step { } }
            batch_output { }
            batch_input [ { kind: BATCH_ITEM_SHAPE } ]
            response_cache { enable: maybe }
            optimization { cuda { graph_spec { batch_size: x } } }
        "#;
        let texts = texts.lines().map(str::trim).filter(|text| !text.is_empty());
        let said: String = texts.map(|text| parse(text).unwrap_err()[15..].to_owned() + "\n").collect();
        expect_test::expect![[r#"
            1:11: `platform` must be a string: put it into quotes
            1:11: platform "tensorrt_plan" isn't supported: use "onnxruntime_onnx" with an ONNX file
            1:17: max_batch_size is 99999999999: it must be from 0 to 2147483647
            1:17: `max_batch_size` has one value, not a list
            1:19: `max_batch_size` is given twice
            1:30: data_type "TYPE_FLOAT" isn't known: use one of TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16
            1:68: data_type "TYPE_INVALID" isn't known: use one of TYPE_BOOL, TYPE_UINT8, TYPE_UINT16, TYPE_UINT32, TYPE_UINT64, TYPE_INT8, TYPE_INT16, TYPE_INT32, TYPE_INT64, TYPE_FP16, TYPE_FP32, TYPE_FP64, TYPE_STRING, TYPE_BF16
            1:51: a dimension is 0: write a size from 1 up, or -1 for any size
            1:100: a dimension is -2: write a size from 1 up, or -1 for any size
            1:74: a dimension is -3: write a size from 1 up, or -1 for any size
            1:7: input "x" has dims [4], which can't be reshaped to [2, 3]: both must have the same number of elements
            1:65: label_filename is "/x": it must be a file in the model's folder
            1:47: preferred_batch_size is 0: it must be from 1 to 2147483647
            1:66: preferred_batch_size is 5000000000: it must be from 1 to 2147483647
            1:37: priority_levels is -1: it must be from 0 to 18446744073709551615
            1:1: default_priority_level is 3: with priority_levels 2 it must be from 1 to 2
            1:1: priority_queue_policy has a policy for level 3, but priority_levels is 0
            1:59: timeout_action "WAIT" isn't known: use one of REJECT, DELAY
            1:59: max_queue_size is 4294967296: it must be from 0 to 4294967295
            1:22: `dynamic_batching` and `sequence_batching` exclude one another
            1:44: version_policy names version 0: versions are numbers from 1 up
            1:18: version_policy.specific names no version: list at least one
            1:25: default_model_filename is "..", which is no file
            1:12: this parameter has no key: write parameters { key: "NAME" value { string_value: "VALUE" } }
            1:12: parameter `batch_sizes` has "": write sizes with commas between, as in "1,2,4,8,16"
            1:54: parameter `weights_mb` is "x": write a number from 0 up, as in "25"
            1:75: max_batch_size is -1: it must be from 0 to 2147483647
            1:33: count is 20000: it must be from 0 to 10000
            1:38: batch_size is 5000000000: it must be from 0 to 2147483647
            1:23: an input of model_warmup has no key: write the input's name there
            1:23: input "x" of model_warmup has no data_type
            1:23: input "x" of model_warmup has no data: give zero_data, random_data or input_data_file
            1:23: input "x" of model_warmup has a dimension of -1: a request has sizes
            1:69: a dimension is 0: write a size from 1 up, or -1 for any size
            1:80: input_data_file is "a/../b": it must be a file in the model's folder
            1:55: sequence_batching.iterative_sequence isn't supported: a request here is computed once, and its client asks again
            1:28: step 1 has no model_name: name the model that it asks
            1:1: batch_output isn't supported: inputs and outputs that describe the whole batch aren't made here: remove it if the model has none
            1:1: batch_input isn't supported: inputs and outputs that describe the whole batch aren't made here: remove it if the model has none
            1:26: `enable` must be true or false, not maybe
            1:48: `batch_size` must be a whole number, not x
        "#]].assert_eq(&said);
    }

    #[test]
    fn everything_that_is_ignored_has_its_sentence_and_its_place() {
        let text = r#"
            instance_group [ { count: 2 kind: KIND_CPU } ] instance_group { count: 1 }
            optimization { } response_cache { enable: true } model_transaction_policy { } sequence_batching { }
            model_operations { } model_repository_agents { } model_metrics { } metric_tags { key: "k" value: "v" }
            cc_model_filenames { key: "k" value: "v" } runtime: "r" unheard_of: 3
            input { name: "x" data_type: TYPE_FP32 format: FORMAT_NONE is_shape_tensor: true allow_ragged_batch: true
              optional: true is_non_linear_format_io: true colour: 3 }
            input { name: "y" data_type: TYPE_FP32 is_shape_tensor: false optional: false }
            output { name: "z" data_type: TYPE_FP32 is_shape_tensor: true is_non_linear_format_io: true }
            parameters { key: "weights_mb" value { string_value: "5" text: "5" } } parameters { key: "k" }
        "#;
        let batching = r#"
            dynamic_batching { max_queue_delay_microseconds: 100 preserve_ordering: true
              default_queue_policy { allow_timeout_override: false timeout_action: DELAY default_timeout_microseconds: 7 }
              priority_levels: 2 default_priority_level: 2
              priority_queue_policy { key: 1 value { allow_timeout_override: true timeout_action: DELAY } }
              priority_queue_policy { key: 2 value { timeout_action: DELAY default_timeout_microseconds: 7 } }
            }
        "#;
        let said = [text, batching].map(|text| {
            let warnings = parse(text).unwrap().warnings;
            warnings.iter().map(|warning| warning[15..].to_owned() + "\n").collect::<String>()
        });
        expect_test::expect![[r#"
            2:13: instance_group is ignored: `--devices` says where models run, and every device serves all of them
            2:60: instance_group is ignored: `--devices` says where models run, and every device serves all of them
            3:13: optimization is ignored: graphs are always optimised, and the runtime is set up by the server's own options
            3:30: response_cache is ignored: a model with sequence_batching has every request computed
            3:62: model_transaction_policy is ignored: a model here gives one answer to each request
            4:13: model_operations is ignored: operators come with the runtime's library
            4:34: model_repository_agents is ignored: files are served as they are
            4:62: model_metrics is ignored: metrics are the same for all models
            4:80: metric_tags is ignored: series carry the model's name and version
            5:13: cc_model_filenames is ignored: there is one file for all devices
            5:56: runtime is ignored: the server brings its runtime
            5:69: field `unheard_of` isn't known and is ignored
            6:72: is_shape_tensor is ignored: only TensorRT has shape tensors
            6:94: allow_ragged_batch is ignored: requests of different shapes are executed one after another
            7:30: is_non_linear_format_io is ignored: only TensorRT has such formats
            7:60: field `colour` isn't known and is ignored
            9:53: is_shape_tensor is ignored: only TensorRT has shape tensors
            9:75: is_non_linear_format_io is ignored: only TensorRT has such formats
            10:66: parameter `weights_mb` is ignored without `emulated_latency`
            10:70: field `text` isn't known and is ignored
            10:95: parameter `k` isn't known and is ignored
            2:32: max_queue_delay_microseconds is ignored: not needed, batches are planned from deadlines
            2:66: preserve_ordering is ignored: answers leave when they are there; a client tells them apart by their ids
            3:38: allow_timeout_override is ignored: a request's own timeout always counts if it is the shorter one
            3:68: timeout_action is ignored: what waited too long is never put behind others: with DELAY there is no bound
            5:54: allow_timeout_override is ignored: a request's own timeout always counts if it is the shorter one
            6:54: timeout_action is ignored: what waited too long is never put behind others: with DELAY there is no bound
        "#]].assert_eq(&said.concat());
    }

    #[test]
    fn batch_sizes_come_from_the_most_explicit_source() {
        let mut config = ModelConfig::default();
        assert_eq!(config.batch_sizes(0), [1]);
        assert_eq!(config.batch_sizes(6), [1, 2, 4, 6]);
        assert_eq!(config.batch_sizes(1024), [1, 2, 4, 8, 16]);
        assert_eq!(config.any_batch_sizes(1024), (1..=16).collect::<Vec<_>>());
        config.max_batch = Some(40);
        assert_eq!(config.batch_sizes(40), [1, 2, 4, 8, 16, 32, 40]);
        assert_eq!(config.any_batch_sizes(40)[15..], [16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]);
        config.batch_sizes = Some(vec![3, 5]);
        assert_eq!((config.batch_sizes(4), config.any_batch_sizes(4)), (vec![1, 3], vec![1, 3]));
    }

    #[test]
    fn sizes_and_levels_are_as_large_as_in_triton() {
        let config = parse("max_batch_size: 65536 dynamic_batching { preferred_batch_size: 5000 }").unwrap();
        assert_eq!(config.batch_sizes(65536).last(), Some(&65536));
        for (levels, default, is) in [("70000", "70000", 70_000), ("18446744073709551615", "3", u32::MAX)] {
            let text = format!("priority_levels: {levels} default_priority_level: {default}");
            let queueing = parse(&format!("dynamic_batching {{ {text} }}")).unwrap().queueing.unwrap();
            assert_eq!(queueing.levels, is, "{text}");
        }
    }

    #[test]
    fn zero_data_of_a_warmup_counts_whatever_is_written_there() {
        for (field, data) in [("zero_data", WarmupData::Zero), ("random_data", WarmupData::Random)] {
            for value in ["true", "false"] {
                let input = format!("data_type: TYPE_FP32 dims: 2 {field}: {value}");
                let text = format!("model_warmup {{ inputs {{ key: \"x\" value {{ {input} }} }} }}");
                assert_eq!(parse(&text).unwrap().warmup[0].inputs["x"].data, data, "{input}");
            }
        }
    }

    #[test]
    fn a_preferred_batch_size_does_not_lower_the_largest() {
        let mut config = parse("max_batch_size: 40 dynamic_batching { preferred_batch_size: [ 5, 64 ] }").unwrap();
        assert_eq!(config.batch_sizes(40), [1, 2, 4, 5, 8, 16, 32, 40], "what is above the largest is left out");
        config.max_batch = None;
        assert_eq!(config.batch_sizes(16), [1, 2, 4, 5, 8, 16]);
    }
}
