//! What holds for the sequences of a model: which of its inputs the server gives, and what it keeps between requests.

use crate::warmup;
use base::{DataType, Duration, ModelSignature, TensorSpec};
use engine::Tensor;
use repository::{
    FoundModel, INITIAL_STATE_FOLDER, InitialState, SequenceConfig, SequenceControl, SequenceSignal, SequenceState,
    WarmupData, WarmupInput,
};

/// What holds for the sequences of a model. Where two models have the same, a sequence of one goes on with the other:
/// they were made of the same file.
#[derive(Debug, Default, PartialEq)]
pub struct SequenceRules {
    /// Hash of the model's file.
    pub content: String,
    /// How many there may be at a time.
    pub most: u32,
    /// A sequence that has no request for so long is over.
    pub idle: Duration,
    /// Inputs that say where in its sequence a request is.
    pub controls: Vec<ControlRule>,
    /// What is kept of each sequence.
    pub states: Vec<StateRule>,
    /// Outputs that clients get where they name none; `None`: all of them.
    pub shown: Option<Vec<String>>,
}

/// An input that says where in its sequence a request is.
#[derive(Debug, PartialEq)]
pub struct ControlRule {
    /// The input's name.
    pub input: String,
    /// What it says.
    pub signal: SequenceSignal,
    /// What it is for no and for yes; the second one's shape and type are also those of a sequence's name.
    pub no_yes: [Tensor; 2],
}

/// What is kept of a sequence.
#[derive(Debug, PartialEq)]
pub struct StateRule {
    /// The input's name.
    pub input: String,
    /// The position of the output that becomes it.
    pub output: usize,
    /// What a sequence begins with.
    pub initial: Tensor,
}

impl SequenceRules {
    /// Those that a configuration asks for, of a model with that signature and content; or what contradicts what.
    pub(crate) fn new(
        found: &FoundModel,
        config: &SequenceConfig,
        signature: &ModelSignature,
        content: String,
    ) -> Result<Self, String> {
        let controls = config.controls.iter().map(|control| control_rule(control, signature));
        let states = config.states.iter().map(|state| state_rule(state, signature, found));
        let is_hidden = |spec: &TensorSpec| config.hides_output(&spec.name);
        let shown = signature.outputs.iter().filter(|spec| !is_hidden(spec)).map(|spec| spec.name.clone());
        Ok(Self {
            content,
            most: config.most,
            idle: config.idle,
            controls: controls.collect::<Result<_, _>>()?,
            states: states.collect::<Result<_, _>>()?,
            shown: signature.outputs.iter().any(is_hidden).then(|| shown.collect()),
        })
    }

    /// Whether the server gives an input, and not the client.
    pub fn gives_input(&self, name: &str) -> bool {
        self.controls.iter().any(|rule| rule.input == name) || self.states.iter().any(|rule| rule.input == name)
    }
}

fn find<'a>(specs: &'a [TensorSpec], role: &str, name: &str) -> Result<(usize, &'a TensorSpec), String> {
    let found = specs.iter().enumerate().find(|(_, spec)| spec.name == name);
    found.ok_or_else(|| {
        let names: Vec<String> = specs.iter().map(|spec| format!("{:?}", spec.name)).collect();
        format!("sequence_batching names the {role} {name:?}, and the model has {}", names.join(", "))
    })
}

fn control_rule(control: &SequenceControl, signature: &ModelSignature) -> Result<ControlRule, String> {
    let SequenceControl { input, signal, datatype, no_yes } = control;
    let (_, spec) = find(&signature.inputs, "input", input)?;
    let shape: Vec<i64> = spec.dims.iter().map(|&dim| if dim < 0 { 1 } else { dim }).collect();
    if spec.datatype != *datatype || shape.iter().any(|&dim| dim != 1) {
        return Err(format!(
            "control_input {input:?} is one {datatype} in the configuration, and {} {:?} in the model",
            spec.datatype, spec.dims
        ));
    }
    let tensor = |value: f64| {
        let data = if *datatype == DataType::Bytes { Some(vec![0; 4]) } else { datatype.element(value) };
        let wrong = || format!("control_input {input:?} says {value}, which is no value of {datatype}");
        Ok::<_, String>(Tensor { datatype: *datatype, shape: shape.clone(), data: data.ok_or_else(wrong)?.into() })
    };
    Ok(ControlRule { input: input.clone(), signal: *signal, no_yes: [tensor(no_yes[0])?, tensor(no_yes[1])?] })
}

fn state_rule(state: &SequenceState, signature: &ModelSignature, found: &FoundModel) -> Result<StateRule, String> {
    let SequenceState { input, output, datatype, dims, initial } = state;
    let (_, taken) = find(&signature.inputs, "input", input)?;
    let (position, given) = find(&signature.outputs, "output", output)?;
    let batch = (signature.max_batch > 0).then_some(-1);
    let whole: Vec<i64> = batch.into_iter().chain(dims.iter().copied()).collect();
    for (role, spec) in [("input", taken), ("output", given)] {
        let alike = |(&one, &other): (&i64, &i64)| one < 0 || other < 0 || one == other;
        if spec.datatype != *datatype || spec.dims.len() != whole.len() || !spec.dims.iter().zip(&whole).all(alike) {
            return Err(format!(
                "a state of sequence_batching is {datatype} {whole:?}, and {role} {:?} of the model is {} {:?}",
                spec.name, spec.datatype, spec.dims
            ));
        }
    }
    let (dims, data) = match initial {
        InitialState::Zero(dims) => (dims.clone(), WarmupData::Zero),
        InitialState::File(dims, file) => (dims.clone(), WarmupData::File(file.clone())),
    };
    let shape: Vec<i64> = batch.map(|_| 1).into_iter().chain(dims.iter().copied()).collect();
    let folder = found.folder.join(INITIAL_STATE_FOLDER);
    let data = warmup::data(input, &WarmupInput { datatype: *datatype, dims, data }, &shape, &folder)?;
    let initial = Tensor { datatype: *datatype, shape, data: data.into() };
    Ok(StateRule { input: input.clone(), output: position, initial })
}
