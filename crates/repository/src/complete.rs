//! A configuration with everything filled in that was left out, as Triton shows it once a model is loaded.

use crate::config::{ModelConfig, VersionPolicy};
use crate::parameters::{BATCH_DIMENSION, COMPUTED_IN, END_ON_HOST};
use base::{DataType, ModelSignature, TensorSpec};
use wire::proto::{
    self, ModelDynamicBatching, ModelInput, ModelInstanceGroup, ModelOutput, ModelParameter, ModelVersionPolicy,
    model_config, model_instance_group, model_version_policy,
};

/// What is known of a model besides its configuration.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Its name.
    pub name: &'a str,
    /// The engine's name: `onnxruntime`.
    pub engine: &'a str,
    /// What it takes and gives, as clients see it.
    pub signature: &'a ModelSignature,
    /// How many devices serve it.
    pub devices: u32,
    /// The name of its file.
    pub file_name: &'a str,
    /// Why its first dimension is a batch or isn't, where that was found out.
    pub batching: Option<&'a str>,
    /// What it is computed in and how far it is off, where there was a choice.
    pub computed_in: Option<&'a str>,
    /// What of it the host's cores compute behind a device.
    pub end_on_host: Option<&'a str>,
}

/// The whole configuration.
pub fn complete(config: &ModelConfig, known: &Known<'_>) -> proto::ModelConfig {
    let mut all = config.written.clone();
    known.name.clone_into(&mut all.name);
    if all.backend.is_empty() {
        known.engine.clone_into(&mut all.backend);
    }
    if all.platform.is_empty() {
        all.platform = platform(known.engine);
    }
    if all.default_model_filename.is_empty() {
        known.file_name.clone_into(&mut all.default_model_filename);
    }
    add_signature(&mut all, config, known.signature);
    if all.scheduling_choice.is_none() && known.signature.max_batch > 0 {
        let batching = ModelDynamicBatching::default();
        all.scheduling_choice = Some(model_config::SchedulingChoice::DynamicBatching(batching));
    }
    known.batching.into_iter().for_each(|sentence| note(&mut all, BATCH_DIMENSION, sentence));
    known.computed_in.into_iter().for_each(|sentence| note_precision(&mut all, sentence));
    known.end_on_host.into_iter().for_each(|sentence| note(&mut all, END_ON_HOST, sentence));
    if all.instance_group.is_empty() {
        all.instance_group.push(ModelInstanceGroup {
            name: format!("{}_0", known.name),
            kind: model_instance_group::Kind::Cpu.into(),
            count: known.devices as i32,
            ..ModelInstanceGroup::default()
        });
    }
    all
}

/// The whole configuration of an endpoint, which has neither an engine nor a file.
pub fn complete_endpoint(config: &ModelConfig, name: &str, signature: &ModelSignature) -> proto::ModelConfig {
    let mut all = config.written.clone();
    name.clone_into(&mut all.name);
    add_signature(&mut all, config, signature);
    all
}

/// Says in a configuration what its model is computed in.
pub fn note_precision(config: &mut proto::ModelConfig, sentence: &str) {
    note(config, COMPUTED_IN, sentence);
}

fn note(config: &mut proto::ModelConfig, name: &str, sentence: &str) {
    config.parameters.insert(name.to_owned(), ModelParameter { string_value: sentence.to_owned() });
}

/// What is known of anything that can be asked.
fn add_signature(all: &mut proto::ModelConfig, config: &ModelConfig, signature: &ModelSignature) {
    all.version_policy = Some(ModelVersionPolicy { policy_choice: Some(version_policy(&config.version_policy)) });
    all.max_batch_size = signature.max_batch as i32;
    let batched = signature.max_batch > 0;
    // What the server gives to the model and takes from it for sequences isn't what clients give and take.
    let sequences = config.sequences.as_ref();
    let is_clients = |spec: &&TensorSpec| !sequences.is_some_and(|sequences| sequences.gives_input(&spec.name));
    let inputs = signature.inputs.iter().filter(is_clients).map(|spec| input(spec, batched));
    all.input = merge(inputs, std::mem::take(&mut all.input), |input| &input.name);
    let is_shown = |spec: &&TensorSpec| !sequences.is_some_and(|sequences| sequences.hides_output(&spec.name));
    let outputs = signature.outputs.iter().filter(is_shown).map(|spec| output(spec, batched));
    all.output = merge(outputs, std::mem::take(&mut all.output), |output| &output.name);
}

/// Triton's name for the kind of model that an engine runs.
pub fn platform(engine: &str) -> String {
    if engine == "emulated" { engine.to_owned() } else { format!("{engine}_onnx") }
}

/// Those of the model, in its order; as they are configured where they are.
fn merge<T>(found: impl Iterator<Item = T>, configured: Vec<T>, name: impl Fn(&T) -> &str) -> Vec<T> {
    let mut configured: Vec<Option<T>> = configured.into_iter().map(Some).collect();
    found
        .map(|found| {
            let same = |slot: &&mut Option<T>| slot.as_ref().is_some_and(|other| name(other) == name(&found));
            configured.iter_mut().find(same).and_then(Option::take).unwrap_or(found)
        })
        .collect()
}

fn version_policy(policy: &VersionPolicy) -> model_version_policy::PolicyChoice {
    use model_version_policy::{All, Latest, PolicyChoice, Specific};
    match policy {
        VersionPolicy::All => PolicyChoice::All(All {}),
        VersionPolicy::Latest(count) => PolicyChoice::Latest(Latest { num_versions: *count }),
        VersionPolicy::Specific(versions) => PolicyChoice::Specific(Specific {
            versions: versions.iter().map(|&version| i64::try_from(version).unwrap_or(i64::MAX)).collect(),
        }),
    }
}

fn dims(spec: &TensorSpec, batched: bool) -> Vec<i64> {
    spec.dims.iter().skip(usize::from(batched)).copied().collect()
}

fn input(spec: &TensorSpec, batched: bool) -> ModelInput {
    let data_type = data_type(spec.datatype).into();
    ModelInput { name: spec.name.clone(), data_type, dims: dims(spec, batched), ..ModelInput::default() }
}

fn output(spec: &TensorSpec, batched: bool) -> ModelOutput {
    let data_type = data_type(spec.datatype).into();
    ModelOutput { name: spec.name.clone(), data_type, dims: dims(spec, batched), ..ModelOutput::default() }
}

/// What Triton calls a type.
pub fn data_type(datatype: DataType) -> proto::DataType {
    match datatype {
        DataType::Bool => proto::DataType::TypeBool,
        DataType::Uint8 => proto::DataType::TypeUint8,
        DataType::Uint16 => proto::DataType::TypeUint16,
        DataType::Uint32 => proto::DataType::TypeUint32,
        DataType::Uint64 => proto::DataType::TypeUint64,
        DataType::Int8 => proto::DataType::TypeInt8,
        DataType::Int16 => proto::DataType::TypeInt16,
        DataType::Int32 => proto::DataType::TypeInt32,
        DataType::Int64 => proto::DataType::TypeInt64,
        DataType::Fp16 => proto::DataType::TypeFp16,
        DataType::Fp32 => proto::DataType::TypeFp32,
        DataType::Fp64 => proto::DataType::TypeFp64,
        DataType::Bf16 => proto::DataType::TypeBf16,
        DataType::Bytes => proto::DataType::TypeString,
    }
}
