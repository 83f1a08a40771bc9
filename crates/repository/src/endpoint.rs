//! What is served by several models: an `endpoint.toml`, or Triton's `ensemble_scheduling`, in our own terms.
//!
//! What is checked here is what the file alone says. Whether its parts fit the models that it names is seen where those
//! are known.

use crate::config::{ModelConfig, TensorConfig};
use crate::positions::Positions;
use crate::text::{TextPosition, TextProblem};
use crate::values::problem;
use base::{DataType, Duration};
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
            Self::Pipeline(pipeline) => {
                pipeline.stages.iter().filter_map(|stage| stage.work.member().cloned()).collect()
            }
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

/// Who computes a stage.
#[derive(Clone, PartialEq, Debug)]
pub enum StageWork {
    /// A model, or another endpoint.
    Member(MemberName),
    /// A step that is built in.
    Step(StepConfig),
}

impl StageWork {
    /// The model, if it is one.
    pub fn member(&self) -> Option<&MemberName> {
        match self {
            Self::Member(name) => Some(name),
            Self::Step(_) => None,
        }
    }
}

impl std::fmt::Display for StageWork {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Member(name) => name.fmt(f),
            Self::Step(step) => write!(f, "the step {:?}", step.name),
        }
    }
}

/// A step that is built in.
#[derive(Clone, PartialEq, Debug)]
pub struct StepConfig {
    /// What it is called.
    pub name: String,
    /// What else the file says of it.
    pub parameters: toml::Table,
}

/// One model or step of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct StageConfig {
    /// For people.
    pub name: String,
    /// Who computes it.
    pub work: StageWork,
    /// The tensor for each of the model's inputs, by the model's own name for it; those of a step may have numbers.
    pub inputs: BTreeMap<String, String>,
    /// The tensor for each of the model's outputs that somebody needs, by the model's own name for it.
    pub outputs: BTreeMap<String, String>,
    /// The tensors of whose rows each is a call of its own; none: there is one call.
    pub for_each: Vec<String>,
    /// For some of these another tensor that says how long each row is: a call gets no more of it.
    pub lengths: BTreeMap<String, String>,
    /// Whether outputs of calls that aren't as large as others are filled up.
    pub fill_up: bool,
    /// How many calls there are on average, until that is known.
    pub calls: f64,
    /// How many there may be.
    pub max_calls: u32,
}

impl StageConfig {
    /// The tensors that it waits for.
    pub fn takes(&self) -> impl Iterator<Item = &String> {
        self.inputs.values().chain(self.lengths.values())
    }
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
    #[serde(default)]
    response_cache: bool,
    inputs: Vec<InputOfFile>,
    outputs: Vec<String>,
    #[serde(default)]
    stage: Vec<StageOfFile>,
}

/// What a client sends: a name, and its form where no model says it.
#[derive(Deserialize)]
#[serde(untagged, expecting = "an input is a name, or a table with name, data_type and dims")]
enum InputOfFile {
    Name(String),
    Typed { name: String, data_type: String, dims: Vec<i64> },
}

#[derive(Deserialize)]
struct StageOfFile {
    name: Option<String>,
    model: Option<String>,
    step: Option<String>,
    version: Option<u64>,
    inputs: InputsOfFile,
    outputs: BTreeMap<String, String>,
    #[serde(default)]
    for_each: Vec<String>,
    #[serde(default)]
    lengths: BTreeMap<String, String>,
    #[serde(default)]
    fill_up: bool,
    calls: Option<f64>,
    max_calls: Option<u32>,
    /// What belongs to a step.
    #[serde(flatten)]
    parameters: toml::Table,
}

/// Tensors by the name of the input, or in the order of a step's inputs.
#[derive(Deserialize)]
#[serde(untagged, expecting = "inputs are a table from the model's names to tensors, or, of a step, a list of tensors")]
enum InputsOfFile {
    Named(BTreeMap<String, String>),
    InOrder(Vec<String>),
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
    let PipelineFile { latency_objective_ms, max_batch_size, response_cache, inputs, outputs, stage, .. } = file;
    let wrong = |reason: String| problem(TextPosition::NOWHERE, reason);
    let latency_objective = latency_objective_ms.map(objective).transpose().map_err(wrong)?;
    let stages: Result<Vec<StageConfig>, String> = stage.into_iter().map(stage_of_file).collect();
    let declared = inputs.iter().filter_map(declared).collect::<Result<_, _>>().map_err(wrong)?;
    let name = |input: InputOfFile| match input {
        InputOfFile::Name(name) | InputOfFile::Typed { name, .. } => name,
    };
    let inputs = inputs.into_iter().map(name).collect();
    let pipeline = PipelineConfig { inputs, outputs, stages: stages.map_err(wrong)? };
    check(&pipeline).map_err(wrong)?;
    let mut written = written(&pipeline, max_batch_size);
    written.response_cache = response_cache.then_some(proto::ModelResponseCache { enable: true });
    let endpoint = Some(Arc::new(EndpointKind::Pipeline(pipeline)));
    let (max_batch, inputs) = (max_batch_size, declared);
    let config = ModelConfig { endpoint, max_batch, inputs, latency_objective, written, ..ModelConfig::default() };
    Ok(ModelConfig { response_cache, ..config })
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

/// The form of an input, where the file has it.
fn declared(input: &InputOfFile) -> Option<Result<TensorConfig, String>> {
    let InputOfFile::Typed { name, data_type, dims } = input else { return None };
    let known = || DataType::ALL.iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
    let datatype = DataType::from_name(data_type)
        .ok_or_else(|| format!("input {name:?} has the data_type {data_type:?}: use one of {}", known()));
    let wrong = dims.iter().find(|&&dim| dim < -1 || dim == 0);
    Some(datatype.and_then(|datatype| match wrong {
        Some(dim) => Err(format!("input {name:?} has a dimension {dim}: write a size from 1 up, or -1 for any size")),
        None => Ok(TensorConfig { name: name.clone(), datatype, dims: dims.clone(), reshape: None, labels: None }),
    }))
}

fn stage_of_file(file: StageOfFile) -> Result<StageConfig, String> {
    let StageOfFile { name, model, step, version, inputs, outputs, calls, max_calls, parameters, .. } = file;
    let (for_each, lengths, fill_up) = (file.for_each, file.lengths, file.fill_up);
    let named = name.clone().or_else(|| model.clone()).or_else(|| step.clone()).unwrap_or_default();
    let work = match (model, step) {
        (Some(model), None) => {
            if let Some(unknown) = parameters.keys().next() {
                return Err(format!("stage {named:?} has a field {unknown:?}, which a model hasn't"));
            }
            StageWork::Member(MemberName { model, version })
        }
        (None, Some(name)) => {
            let has_calls = calls.is_some() || max_calls.is_some() || !for_each.is_empty();
            if version.is_some() || has_calls || fill_up || !lengths.is_empty() {
                return Err(format!(
                    "stage {named:?} is a step, which has no version, for_each, lengths, fill_up, calls and max_calls: it takes all rows"
                ));
            }
            StageWork::Step(StepConfig { name, parameters })
        }
        (Some(_), Some(_)) | (None, None) => {
            return Err(format!("stage {named:?} has to have either a `model` or a `step`"));
        }
    };
    let inputs = match inputs {
        InputsOfFile::Named(inputs) => inputs,
        InputsOfFile::InOrder(tensors) if work.member().is_none() => {
            // In an order that a map keeps.
            tensors.into_iter().enumerate().map(|(number, tensor)| (format!("{number:04}"), tensor)).collect()
        }
        InputsOfFile::InOrder(_) => {
            return Err(format!("stage {named:?} has a list of inputs: say which of the model's inputs each is"));
        }
    };
    Ok(StageConfig {
        name: named,
        work,
        inputs,
        outputs,
        calls: calls.unwrap_or(1.0),
        max_calls: max_calls.unwrap_or(MAX_CALLS),
        for_each,
        lengths,
        fill_up,
    })
}

/// Triton's form of a pipeline, for those who ask for its configuration.
fn written(pipeline: &PipelineConfig, max_batch: Option<u32>) -> proto::ModelConfig {
    let step = |stage: &StageConfig| {
        let (model_name, version) = match &stage.work {
            StageWork::Member(member) => (member.model.clone(), member.version),
            // Triton has nothing like it.
            StageWork::Step(step) => (format!("step:{}", step.name), None),
        };
        Step {
            model_name,
            model_version: version.map_or(-1, |version| i64::try_from(version).unwrap_or(i64::MAX)),
            input_map: stage.inputs.clone(),
            output_map: stage.outputs.clone(),
            ..Step::default()
        }
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
        let same = stages.iter().filter(|other| other.work.member().is_some_and(|m| m.model == model.model)).count();
        stages.push(StageConfig {
            name: if same == 0 { model.model.clone() } else { format!("{}-{}", model.model, same + 1) },
            work: StageWork::Member(model),
            inputs: step.input_map.clone(),
            outputs: step.output_map.clone(),
            for_each: Vec::new(),
            lengths: BTreeMap::new(),
            fill_up: false,
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
        if let Some(other) = stage.lengths.keys().find(|tensor| !stage.for_each.contains(tensor)) {
            return Err(format!(
                "stage {:?} has lengths for the rows of {other:?}, for which it isn't called: add it to for_each",
                stage.name
            ));
        }
        if stage.fill_up && stage.for_each.is_empty() {
            return Err(format!("stage {:?} has fill_up, and is called once: it goes with for_each", stage.name));
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
        if let Some(tensor) = stage.takes().find(|tensor| !makers.contains_key(tensor.as_str())) {
            let name = &stage.name;
            return Err(format!("stage {name:?} takes {tensor:?}, which is no input and which no stage makes"));
        }
    }
    let used = |tensor: &String| listed.contains(tensor) || stages.iter().any(|s| s.takes().any(|t| t == tensor));
    match inputs.iter().find(|input| !used(input)) {
        Some(input) => Err(format!("nobody uses the input {input:?}: let a stage take it, or leave it out")),
        None => check_order(stages),
    }
}

/// No stage waits for itself, whatever is between.
fn check_order(stages: &[StageConfig]) -> Result<(), String> {
    let follows = |stage: &StageConfig, before: &StageConfig| {
        before.outputs.values().any(|made| stage.takes().any(|taken| taken == made))
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

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};
    use std::path::Path;

    const GOOD: &str = "kind = \"pipeline\"\ninputs = [\"x\"]\noutputs = [\"y\"]\nlatency_objective_ms = 50\n\
        [[stage]]\nname = \"first\"\nmodel = \"a\"\ninputs.i = \"x\"\noutputs.o = \"t\"\n\
        [[stage]]\nmodel = \"b\"\nversion = 3\ninputs.i = \"t\"\noutputs.o = \"y\"\nfor_each = [\"t\"]\n";

    /// What is said of the good one with some text replaced.
    fn check(from: &str, to: &str, expect: Expect) {
        assert!(GOOD.contains(from), "{from}");
        let wrong = ModelConfig::parse_endpoint(&GOOD.replacen(from, to, 1), Path::new("e/endpoint.toml"));
        expect.assert_eq(&wrong.unwrap_err().to_string());
    }

    #[test]
    fn a_pipeline_is_read() {
        let config = ModelConfig::parse_endpoint(GOOD, Path::new("e/endpoint.toml")).unwrap();
        assert_eq!(config.latency_objective, Some(Duration::from_millis(50)));
        let kind = config.endpoint.unwrap();
        let members: Vec<String> = kind.members().iter().map(ToString::to_string).collect();
        assert_eq!(members, ["\"a\"", "version 3 of \"b\""]);
        let EndpointKind::Pipeline(pipeline) = &*kind else { panic!("{kind:?}") };
        assert_eq!((&*pipeline.stages[1].name, &pipeline.stages[1].for_each[..]), ("b", &["t".to_owned()][..]));
        let Some(model_config::SchedulingChoice::EnsembleScheduling(shown)) = config.written.scheduling_choice else {
            panic!("it is shown as Triton's ensemble")
        };
        assert_eq!((&*shown.step[1].model_name, shown.step[1].model_version), ("b", 3));
    }

    #[test]
    fn each_mistake_is_a_sentence() {
        check(
            "pipeline",
            "pipline",
            expect![[
                r#"e/endpoint.toml: there is no kind "pipline" of endpoint: use "pipeline", "fixed", "split", "shadow", "exp3", "exp4", "ensemble", "cascade", "variants""#
            ]],
        );
        check(
            "model = \"a\"",
            "modle = \"a\"",
            expect![[r#"e/endpoint.toml: stage "first" has to have either a `model` or a `step`"#]],
        );
        check(
            "model = \"a\"",
            "model = \"a\"\nsize = 3",
            expect![[r#"e/endpoint.toml: stage "first" has a field "size", which a model hasn't"#]],
        );
        check(
            "inputs = [\"x\"]",
            "inputs = [\"x\", \"z\"]",
            expect![[r#"e/endpoint.toml: nobody uses the input "z": let a stage take it, or leave it out"#]],
        );
        check(
            "inputs = [\"x\"]",
            "inputs = [\"x\", \"x\"]",
            expect![[r#"e/endpoint.toml: input "x" is listed twice"#]],
        );
        check(
            "outputs = [\"y\"]",
            "outputs = [\"y\", \"z\"]",
            expect![[r#"e/endpoint.toml: nobody makes the output "z": let a stage have it among its outputs"#]],
        );
        check(
            "outputs = [\"y\"]",
            "outputs = []",
            expect!["e/endpoint.toml: there is no output: list what clients get"],
        );
        check(
            "inputs.i = \"t\"",
            "inputs.i = \"u\"",
            expect![[r#"e/endpoint.toml: stage "b" is to be called for each row of "t", which is none of its inputs"#]],
        );
        check(
            "inputs.i = \"x\"",
            "inputs.i = \"u\"",
            expect![[r#"e/endpoint.toml: stage "first" takes "u", which is no input and which no stage makes"#]],
        );
        check(
            "inputs.i = \"x\"",
            "inputs = { i = \"x\", j = \"y\" }",
            expect![[r#"e/endpoint.toml: stages wait for one another in a circle: "first", "b""#]],
        );
        check(
            "inputs.i = \"x\"",
            "inputs = { i = \"x\", j = \"t\" }",
            expect![[r#"e/endpoint.toml: stages wait for one another in a circle: "first", "b""#]],
        );
        check(
            "outputs.o = \"t\"",
            "outputs.o = \"x\"",
            expect![[r#"e/endpoint.toml: stage "first" makes "x", which is an input"#]],
        );
        check(
            "outputs.o = \"t\"",
            "outputs = { o = \"t\", p = \"y\" }",
            expect![[r#"e/endpoint.toml: stages "first" and "b" both make "y""#]],
        );
        check(
            "name = \"first\"",
            "name = \"b\"",
            expect![[r#"e/endpoint.toml: two stages are called "b": give each a `name` of its own"#]],
        );
        check(
            "for_each = [\"t\"]",
            "for_each = [\"t\"]\nmax_calls = 0",
            expect![[r#"e/endpoint.toml: stage "b" has max_calls 0: give a number from 1 to 65536"#]],
        );
        check(
            "for_each = [\"t\"]",
            "lengths.t = \"x\"",
            expect![[
                r#"e/endpoint.toml: stage "b" has lengths for the rows of "t", for which it isn't called: add it to for_each"#
            ]],
        );
        check(
            "for_each = [\"t\"]",
            "fill_up = true",
            expect![[r#"e/endpoint.toml: stage "b" has fill_up, and is called once: it goes with for_each"#]],
        );
        check(
            "for_each = [\"t\"]",
            "for_each = [\"t\"]\nlengths.t = \"u\"",
            expect![[r#"e/endpoint.toml: stage "b" takes "u", which is no input and which no stage makes"#]],
        );
        check(
            "for_each = [\"t\"]",
            "for_each = [\"t\"]\nlengths.t = \"y\"",
            expect![[r#"e/endpoint.toml: stages wait for one another in a circle: "b""#]],
        );
        check(
            "for_each = [\"t\"]",
            "calls = -1.0",
            expect![[r#"e/endpoint.toml: stage "b" makes -1 calls: give their number on average, above 0"#]],
        );
        check(
            "= 50",
            "= -50",
            expect![
                "e/endpoint.toml: latency_objective_ms is -50: give a number of milliseconds above 0, or leave it out"
            ],
        );
        check(
            "inputs.i = \"t\"",
            "inputs.i = 7",
            expect![
                "e/endpoint.toml:13:1: inputs are a table from the model's names to tensors, or, of a step, a list of tensors"
            ],
        );
    }

    #[test]
    fn an_ensemble_of_tritons_is_read_as_a_pipeline() {
        let text = r#"
            platform: "ensemble"
            max_batch_size: 4
            input { name: "RAW" data_type: TYPE_FP32 dims: 10 }
            output { name: "SCORES" data_type: TYPE_FP32 dims: 10 }
            ensemble_scheduling { step [
              { model_name: "pre" model_version: -1 input_map { key: "i" value: "RAW" } output_map { key: "o" value: "mid" } },
              { model_name: "net" model_version: 2 input_map { key: "i" value: "mid" } output_map { key: "o" value: "SCORES" } }
            ] }"#;
        let parse = |text: &str| ModelConfig::parse(text, Path::new("e/config.pbtxt"), "e").map_err(|e| e.to_string());
        let config = parse(text).unwrap();
        assert_eq!(config.max_batch, Some(4));
        let kind = config.endpoint.unwrap();
        let EndpointKind::Pipeline(pipeline) = &*kind else { panic!("{kind:?}") };
        assert_eq!(
            (&pipeline.inputs[..], &pipeline.outputs[..]),
            (&["RAW".to_owned()][..], &["SCORES".to_owned()][..])
        );
        assert_eq!(pipeline.stages[1].work.member(), Some(&MemberName { model: "net".into(), version: Some(2) }));
        let wrong = parse(&text.replace("value: \"mid\" } },", "value: \"mud\" } },")).unwrap_err();
        expect![[r#"e/config.pbtxt:6:13: stage "net" takes "mid", which is no input and which no stage makes"#]]
            .assert_eq(&wrong);
        let wrong = parse(&text.replace("model_version: 2", "model_version: -2")).unwrap_err();
        expect!["e/config.pbtxt:8:50: model_version is -2: use -1 for the latest, or a version"].assert_eq(&wrong);
    }
}
