//! What is served by several models: an `endpoint.toml`, or Triton's `ensemble_scheduling`, in our own terms.
//!
//! What is checked here is what the file alone says. Whether its parts fit the models that it names is seen where those
//! are known.

use crate::config::ModelConfig;
use crate::positions::Positions;
use crate::text::{TextPosition, TextProblem};
use crate::values::problem;
use base::Duration;
use selection::{DefaultElement, PolicyTable};
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use wire::proto::model_ensembling::Step;
use wire::proto::{self, ModelEnsembling, model_config};

/// The file that makes a folder an endpoint.
pub const ENDPOINT_FILE: &str = "endpoint.toml";
/// Triton's name for what calls other models.
pub(crate) const ENSEMBLE: &str = "ensemble";
/// More stages than this are something else.
const MAX_STAGES: usize = 64;
/// So many calls a stage makes for one request at most, where the file doesn't say.
const MAX_CALLS: u32 = 1024;
/// And no more than this, whatever it says.
const MOST_CALLS: u32 = 65_536;

/// How an endpoint makes its answers.
#[derive(Clone, PartialEq, Debug)]
pub enum EndpointKind {
    /// By a graph of models.
    Pipeline(PipelineConfig),
    /// By selecting among models.
    Selection(SelectionConfig),
}

/// How an endpoint selects among models.
#[derive(Clone, PartialEq, Debug)]
pub struct SelectionConfig {
    /// Who is asked, and what becomes of the answers.
    pub table: PolicyTable,
    /// One row of each output, for when no member answers in time; empty: there is none.
    pub default: BTreeMap<String, Vec<DefaultElement>>,
}

impl EndpointKind {
    /// The models and endpoints that it asks, each once.
    pub fn members(&self) -> BTreeSet<MemberName> {
        match self {
            Self::Pipeline(pipeline) => pipeline.stages.iter().map(|stage| stage.model.clone()).collect(),
            Self::Selection(selection) => {
                let member = |model: &str| MemberName { model: model.to_owned(), version: None };
                selection.table.members().into_iter().map(member).collect()
            }
        }
    }
}

/// A model, or another endpoint, that an endpoint asks.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct MemberName {
    /// Its name.
    pub model: String,
    /// The version; `None` for the one that a request without a version gets.
    pub version: Option<u64>,
}

impl std::fmt::Display for MemberName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.version {
            None => write!(f, "{:?}", self.model),
            Some(version) => write!(f, "version {version} of {:?}", self.model),
        }
    }
}

/// A graph of models. Tensors have names of their own: a stage takes those that the client or other stages give.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PipelineConfig {
    /// The tensors that the client sends.
    pub inputs: Vec<String>,
    /// The tensors that it gets.
    pub outputs: Vec<String>,
    /// In any order: who takes what says which follows which.
    pub stages: Vec<StageConfig>,
}

/// One model of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct StageConfig {
    /// For people.
    pub name: String,
    /// Who computes it.
    pub model: MemberName,
    /// The tensor for each of the model's inputs, by the model's own name for it.
    pub inputs: BTreeMap<String, String>,
    /// The tensor for each of the model's outputs that somebody needs, by the model's own name for it.
    pub outputs: BTreeMap<String, String>,
    /// The tensors of whose rows each is a call of its own; none: there is one call.
    pub for_each: Vec<String>,
    /// How many calls there are on average, until that is known.
    pub calls: f64,
    /// How many there may be.
    pub max_calls: u32,
}

/// What every `endpoint.toml` says.
#[derive(Deserialize)]
struct KindOfFile {
    kind: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectionOfFile {
    latency_objective_ms: Option<f64>,
    #[serde(default)]
    default: BTreeMap<String, Vec<DefaultElement>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PipelineFile {
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    latency_objective_ms: Option<f64>,
    max_batch_size: Option<u32>,
    inputs: Vec<String>,
    outputs: Vec<String>,
    #[serde(default)]
    stage: Vec<StageOfFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StageOfFile {
    name: Option<String>,
    model: String,
    version: Option<u64>,
    inputs: BTreeMap<String, String>,
    outputs: BTreeMap<String, String>,
    #[serde(default)]
    for_each: Vec<String>,
    calls: Option<f64>,
    max_calls: Option<u32>,
}

/// Reads an `endpoint.toml`.
pub fn parse(source: &str) -> Result<ModelConfig, TextProblem> {
    let failed = |error: toml::de::Error| {
        let position = error.span().map_or(TextPosition::NOWHERE, |span| position(source, span.start));
        problem(position, error.message().trim_end())
    };
    let KindOfFile { kind } = toml::from_str(source).map_err(failed)?;
    match kind.as_str() {
        "pipeline" => pipeline(toml::from_str(source).map_err(failed)?),
        _ => selection(&kind, toml::from_str(source).map_err(failed)?),
    }
}

/// Where a byte of a text stands.
fn position(source: &str, at: usize) -> TextPosition {
    let before = &source[..source.floor_char_boundary(at)];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    TextPosition { line, column }
}

fn pipeline(file: PipelineFile) -> Result<ModelConfig, TextProblem> {
    let PipelineFile { latency_objective_ms, max_batch_size, inputs, outputs, stage, .. } = file;
    let wrong = |reason: String| problem(TextPosition::NOWHERE, reason);
    let latency_objective = latency_objective_ms.map(objective).transpose().map_err(wrong)?;
    let stages: Vec<StageConfig> = stage.into_iter().map(stage_of_file).collect();
    let pipeline = PipelineConfig { inputs, outputs, stages };
    check(&pipeline).map_err(wrong)?;
    let written = written(&pipeline, max_batch_size);
    let endpoint = Some(Arc::new(EndpointKind::Pipeline(pipeline)));
    Ok(ModelConfig { endpoint, max_batch: max_batch_size, latency_objective, written, ..ModelConfig::default() })
}

/// Reads an endpoint that selects among models: what all have in common, and what its kind says.
fn selection(kind: &str, mut file: toml::Table) -> Result<ModelConfig, TextProblem> {
    let wrong = |reason: String| problem(TextPosition::NOWHERE, reason);
    file.remove("kind");
    let mut common = toml::Table::new();
    for key in ["latency_objective_ms", "default"] {
        common.extend(file.remove(key).map(|value| (key.to_owned(), value)));
    }
    let said = |error: toml::de::Error| wrong(error.message().trim_end().to_owned());
    let SelectionOfFile { latency_objective_ms, default } = SelectionOfFile::deserialize(common).map_err(said)?;
    let Some(table) = PolicyTable::read(kind, file).map_err(said)? else {
        let kinds = PolicyTable::KINDS.map(|kind| format!("{kind:?}")).join(", ");
        return Err(wrong(format!("there is no kind {kind:?} of endpoint: use \"pipeline\", {kinds}")));
    };
    let mistakes = table.mistakes();
    if !mistakes.is_empty() {
        return Err(wrong(mistakes.join("; ")));
    }
    let latency_objective = latency_objective_ms.map(objective).transpose().map_err(wrong)?;
    let written = proto::ModelConfig { platform: ENSEMBLE.to_owned(), ..proto::ModelConfig::default() };
    let endpoint = Some(Arc::new(EndpointKind::Selection(SelectionConfig { table, default })));
    Ok(ModelConfig { endpoint, latency_objective, written, ..ModelConfig::default() })
}

fn objective(millis: f64) -> Result<Duration, String> {
    if millis > 0.0 && millis <= 3.6e9 {
        return Ok(Duration::from_secs_f64(millis / 1e3));
    }
    Err(format!("latency_objective_ms is {millis}: give a number of milliseconds above 0, or leave it out"))
}

fn stage_of_file(file: StageOfFile) -> StageConfig {
    let StageOfFile { name, model, version, inputs, outputs, for_each, calls, max_calls } = file;
    StageConfig {
        name: name.unwrap_or_else(|| model.clone()),
        model: MemberName { model, version },
        inputs,
        outputs,
        calls: calls.unwrap_or(1.0),
        max_calls: max_calls.unwrap_or(MAX_CALLS),
        for_each,
    }
}

/// Triton's form of a pipeline, for those who ask for its configuration.
fn written(pipeline: &PipelineConfig, max_batch: Option<u32>) -> proto::ModelConfig {
    let step = |stage: &StageConfig| Step {
        model_name: stage.model.model.clone(),
        model_version: stage.model.version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX)),
        input_map: stage.inputs.clone(),
        output_map: stage.outputs.clone(),
        ..Step::default()
    };
    let ensembling = ModelEnsembling { step: pipeline.stages.iter().map(step).collect(), ..ModelEnsembling::default() };
    proto::ModelConfig {
        platform: ENSEMBLE.to_owned(),
        max_batch_size: max_batch.and_then(|most| i32::try_from(most).ok()).unwrap_or(0),
        scheduling_choice: Some(model_config::SchedulingChoice::EnsembleScheduling(ensembling)),
        ..proto::ModelConfig::default()
    }
}

/// Reads Triton's `ensemble_scheduling`; `None` where the configuration is that of a model.
pub fn ensemble(written: &proto::ModelConfig, positions: &Positions) -> Result<Option<Arc<EndpointKind>>, TextProblem> {
    let Some(model_config::SchedulingChoice::EnsembleScheduling(ensembling)) = &written.scheduling_choice else {
        if written.platform == ENSEMBLE {
            let reason = "an ensemble has its steps in ensemble_scheduling, which is missing";
            return Err(positions.wrong_value("platform", reason));
        }
        return Ok(None);
    };
    let mut stages: Vec<StageConfig> = Vec::new();
    for (index, step) in ensembling.step.iter().enumerate() {
        let wrong =
            |field: &str, reason| positions.wrong_value(&format!("ensemble_scheduling.step[{index}]{field}"), reason);
        if step.model_name.is_empty() {
            return Err(wrong("", format!("step {} has no model_name: name the model that it asks", index + 1)));
        }
        let version = match step.model_version {
            // Left out, it is 0.
            -1 | 0 => None,
            version => Some(u64::try_from(version).map_err(|_| {
                wrong(".model_version", format!("model_version is {version}: use -1 for the latest, or a version"))
            })?),
        };
        let model = MemberName { model: step.model_name.clone(), version };
        let same = stages.iter().filter(|other| other.model.model == model.model).count();
        stages.push(StageConfig {
            name: if same == 0 { model.model.clone() } else { format!("{}-{}", model.model, same + 1) },
            model,
            inputs: step.input_map.clone(),
            outputs: step.output_map.clone(),
            for_each: Vec::new(),
            calls: 1.0,
            max_calls: 1,
        });
    }
    let inputs = written.input.iter().map(|input| input.name.clone()).collect();
    let outputs = written.output.iter().map(|output| output.name.clone()).collect();
    let pipeline = PipelineConfig { inputs, outputs, stages };
    check(&pipeline).map_err(|reason| positions.wrong_field("ensemble_scheduling", reason))?;
    Ok(Some(Arc::new(EndpointKind::Pipeline(pipeline))))
}

/// What can be said against a graph whatever its models are.
fn check(pipeline: &PipelineConfig) -> Result<(), String> {
    let PipelineConfig { inputs, outputs, stages } = pipeline;
    if stages.is_empty() || stages.len() > MAX_STAGES {
        return Err(format!("a pipeline has 1 to {MAX_STAGES} stages, not {}", stages.len()));
    }
    let mut names = BTreeSet::new();
    for stage in stages {
        if stage.name.is_empty() || !names.insert(&stage.name) {
            return Err(format!("two stages are called {:?}: give each a `name` of its own", stage.name));
        }
        if !(stage.calls > 0.0 && stage.calls <= f64::from(MOST_CALLS)) {
            let (name, calls) = (&stage.name, stage.calls);
            return Err(format!("stage {name:?} makes {calls} calls: give their number on average, above 0"));
        }
        if !(1..=MOST_CALLS).contains(&stage.max_calls) {
            let (name, most) = (&stage.name, stage.max_calls);
            return Err(format!("stage {name:?} has max_calls {most}: give a number from 1 to {MOST_CALLS}"));
        }
        if let Some(other) = stage.for_each.iter().find(|each| !stage.inputs.values().any(|tensor| tensor == *each)) {
            return Err(format!(
                "stage {:?} is to be called for each row of {other:?}, which is none of its inputs",
                stage.name
            ));
        }
    }
    check_tensors(inputs, outputs, stages)
}

/// Every tensor is made once and is of use to somebody.
fn check_tensors(inputs: &[String], outputs: &[String], stages: &[StageConfig]) -> Result<(), String> {
    let mut makers: BTreeMap<&str, &str> = BTreeMap::new();
    for input in inputs {
        if makers.insert(input, "").is_some() {
            return Err(format!("input {input:?} is listed twice"));
        }
    }
    for stage in stages {
        for tensor in stage.outputs.values() {
            match makers.insert(tensor, &stage.name) {
                None => {}
                Some("") => return Err(format!("stage {:?} makes {tensor:?}, which is an input", stage.name)),
                Some(other) => return Err(format!("stages {other:?} and {:?} both make {tensor:?}", stage.name)),
            }
        }
    }
    let mut listed = BTreeSet::new();
    for output in outputs {
        if !listed.insert(output) {
            return Err(format!("output {output:?} is listed twice"));
        }
        if !makers.contains_key(output.as_str()) {
            return Err(format!("nobody makes the output {output:?}: let a stage have it among its outputs"));
        }
    }
    if outputs.is_empty() {
        return Err("there is no output: list what clients get".into());
    }
    for stage in stages {
        if let Some(tensor) = stage.inputs.values().find(|tensor| !makers.contains_key(tensor.as_str())) {
            let name = &stage.name;
            return Err(format!("stage {name:?} takes {tensor:?}, which is no input and which no stage makes"));
        }
    }
    let used =
        |tensor: &String| listed.contains(tensor) || stages.iter().any(|s| s.inputs.values().any(|t| t == tensor));
    match inputs.iter().find(|input| !used(input)) {
        Some(input) => Err(format!("nobody uses the input {input:?}: let a stage take it, or leave it out")),
        None => check_order(stages),
    }
}

/// No stage waits for itself, whatever is between.
fn check_order(stages: &[StageConfig]) -> Result<(), String> {
    let follows = |stage: &StageConfig, before: &StageConfig| {
        before.outputs.values().any(|made| stage.inputs.values().any(|taken| taken == made))
    };
    let mut left: Vec<&StageConfig> = stages.iter().collect();
    loop {
        let waits = |stage: &StageConfig| left.iter().any(|before| follows(stage, before));
        let still: Vec<&StageConfig> = left.iter().copied().filter(|stage| waits(stage)).collect();
        if still.is_empty() {
            return Ok(());
        }
        if still.len() == left.len() {
            let names: Vec<String> = still.iter().map(|stage| format!("{:?}", stage.name)).collect();
            return Err(format!("stages wait for one another in a circle: {}", names.join(", ")));
        }
        left = still;
    }
}
