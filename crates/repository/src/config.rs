//! What a config.pbtxt says of a model, checked and in our own terms.

use crate::text::{self, Message, Place, Problem};
use crate::{json, read, schema};
use base::{DataType, Duration, LatencyProfile, Precision, ProfileError, USUAL_MAX_BATCH, usual_batch_sizes};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
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
    /// How many times the device time of other models it may have when devices are short, from the parameter `fair_weight`.
    pub fair_weight: Option<f64>,
    /// The part of all device time that it gets in any case, from the parameter `fair_floor`.
    pub fair_floor: Option<f64>,
    /// What an emulated device pretends.
    pub emulation: Option<Emulation>,
    /// What to measure the model with where its file leaves it open, by input, from the parameter `profile_inputs`.
    pub profile_inputs: BTreeMap<String, ProfileInput>,
    /// What open dimensions besides the batch will be, ascending, from the parameter `sequence_lengths`: for engines that prepare
    /// each shape, and for `padding`.
    pub lengths: Vec<u32>,
    /// For engines that have a choice: what floats are computed in, from the parameter `precision`.
    pub precision: Option<Precision>,
    /// What inputs are filled up with so that requests of different lengths can share a batch, by input; none: they can't.
    pub padding: BTreeMap<String, f64>,
    /// The name of the model's file in the version's folder, if it isn't `model.onnx`.
    pub file_name: Option<String>,
    /// Everything as it was written, in Triton's message.
    pub written: proto::ModelConfig,
    /// Every parameter, as written.
    pub parameters: BTreeMap<String, String>,
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
#[error("{}: {reason}", place.in_file(file))]
pub struct ConfigError {
    /// Which file.
    pub file: PathBuf,
    /// Where in it.
    pub place: Place,
    /// What is wrong there and what was expected.
    pub reason: String,
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

    fn read(tree: Result<Message, Problem>, file: &Path, model: &str) -> Result<Self, ConfigError> {
        let mut warnings = Vec::new();
        let parsed = tree.and_then(|tree| {
            let config = read::config(&tree, model, &mut warnings)?;
            Ok(Self { written: schema::read(&tree, &mut warnings)?, ..config })
        });
        let mut config =
            parsed.map_err(|Problem { place, reason }| ConfigError { file: file.to_owned(), place, reason })?;
        warnings.sort_by_key(|problem| (problem.place.line, problem.place.column));
        config.warnings =
            warnings.iter().map(|Problem { place, reason }| format!("{}: {reason}", place.in_file(file))).collect();
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

    /// The batch sizes to execute and profile, ascending, for a model of which the engine knows that its largest batch
    /// is `max_batch` (0: no batch dimension). Those that are configured come first, then 1 with Triton's preferred
    /// ones, then powers of two; never more than `max_batch`, and 1 is always there.
    pub fn batch_sizes(&self, max_batch: u32) -> Vec<u32> {
        let max = max_batch.max(1);
        let mut sizes = match &self.batch_sizes {
            Some(sizes) => sizes.clone(),
            None if !self.preferred_batch_sizes.is_empty() => self.preferred_batch_sizes.clone(),
            None => {
                // Said outright, the largest batch is wanted; found in the model, it is only what is possible.
                usual_batch_sizes(if self.max_batch.is_some() { max } else { max.min(USUAL_MAX_BATCH) })
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
        assert_eq!((&config.lengths[..], config.precision), (&[32, 128][..], Some(Precision::Fp16)));
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

    #[test]
    fn what_would_compute_something_else_is_refused() {
        for (text, part) in [
            ("ensemble_scheduling { }", "ensemble_scheduling isn't supported"),
            ("batch_input { }", "batch_input isn't supported"),
            (
                "sequence_batching { control_input { name: \"START\" } }",
                "sequence_batching.control_input isn't supported",
            ),
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
        let plain = parse("sequence_batching { max_sequence_idle_microseconds: 5 }").unwrap();
        assert!(plain.warnings[0].contains("each request stands for itself"), "{:?}", plain.warnings);
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
            (parse("max_batch_size: -1").unwrap_err(), "max_batch_size is -1: it must be from 0 to 4096"),
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
            (parameter("precision", "half"), "is \"half\": write fp32, tf32 or fp16"),
            (parameter("emulated_latency", "alpha_ms=1"), "needs both alpha_ms and beta_ms"),
            (parameter("emulated_latency", "gamma=1"), "has \"gamma\""),
        ] {
            assert!(error.starts_with("m/config.pbtxt:1:") && error.contains(part), "{error}");
        }
    }

    #[test]
    fn batch_sizes_come_from_the_most_explicit_source() {
        let mut config = ModelConfig::default();
        assert_eq!(config.batch_sizes(0), [1]);
        assert_eq!(config.batch_sizes(6), [1, 2, 4, 6]);
        assert_eq!(config.batch_sizes(1024), [1, 2, 4, 8, 16]);
        config.max_batch = Some(40);
        assert_eq!(config.batch_sizes(40), [1, 2, 4, 8, 16, 32, 40]);
        config.preferred_batch_sizes = vec![8, 64];
        assert_eq!(config.batch_sizes(40), [1, 8]);
        config.batch_sizes = Some(vec![3, 5]);
        assert_eq!(config.batch_sizes(4), [1, 3]);
    }
}
