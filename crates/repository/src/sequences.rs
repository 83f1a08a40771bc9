//! `sequence_batching`: what is kept between the requests of a sequence, and what a model is told of them.

use crate::positions::Positions;
use crate::read::{check_dims, read_data_type};
use crate::text::TextProblem;
use crate::values::relative_file;
use base::{DataType, Duration};
use wire::proto::model_sequence_batching::control::Kind;
use wire::proto::model_sequence_batching::initial_state::StateData;
use wire::proto::model_sequence_batching::{Control, ControlInput, State, StrategyChoice};
use wire::proto::{self, ModelSequenceBatching};

/// The folder of a model that has what its sequences begin with.
pub const INITIAL_STATE_FOLDER: &str = "initial_state";

const PATH: &str = "sequence_batching";
/// How long a sequence may have no request, where nothing is said of it: as in Triton.
const USUAL_IDLE_US: u64 = 1_000_000;
/// Waiting longer than a day is waiting for ever.
const MAX_IDLE_US: u64 = 86_400_000_000;
/// Sequences at a time, where *oldest* names no number.
const USUAL_SEQUENCES: u32 = 1024;

/// What is kept of sequences, and what a model is told of them.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SequenceConfig {
    /// How many there may be at a time; others wait until one ends.
    pub most: u32,
    /// A sequence that has no request for so long is over.
    pub idle: Duration,
    /// Inputs that say where in its sequence a request is.
    pub controls: Vec<SequenceControl>,
    /// Outputs of a request that are inputs of the next one.
    pub states: Vec<SequenceState>,
    /// Outputs that are listed as such: states among them are given to clients, too.
    shown: Vec<String>,
}

/// An input that says where in its sequence a request is.
#[derive(Clone, PartialEq, Debug)]
pub struct SequenceControl {
    /// The input's name.
    pub input: String,
    /// What it says.
    pub signal: SequenceSignal,
    /// The element type.
    pub datatype: DataType,
    /// The value for no and the one for yes; without meaning for the sequence's name.
    pub no_yes: [f64; 2],
}

/// What a control input says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SequenceSignal {
    /// Whether the request is the first.
    Start,
    /// Whether it is the last.
    End,
    /// Whether there is a request: always.
    Ready,
    /// The sequence's name.
    Id,
}

/// What is kept of a sequence between two requests.
#[derive(Clone, PartialEq, Debug)]
pub struct SequenceState {
    /// The input that it is.
    pub input: String,
    /// The output that becomes it.
    pub output: String,
    /// The element type.
    pub datatype: DataType,
    /// Dimensions, without the batch dimension where there is one.
    pub dims: Vec<i64>,
    /// What a sequence begins with.
    pub initial: InitialState,
}

/// What a sequence begins with.
#[derive(Clone, PartialEq, Debug)]
pub enum InitialState {
    /// Zeros, of these dimensions.
    Zero(Vec<i64>),
    /// The bytes of a file in the model's folder `initial_state`, of these dimensions.
    File(Vec<i64>, String),
}

impl SequenceConfig {
    /// Whether the server gives an input to the model, and not the client.
    pub fn gives_input(&self, name: &str) -> bool {
        self.controls.iter().any(|control| control.input == name) || self.states.iter().any(|state| state.input == name)
    }

    /// Whether an output is only the server's.
    pub fn hides_output(&self, name: &str) -> bool {
        self.states.iter().any(|state| state.output == name) && !self.shown.iter().any(|shown| shown == name)
    }
}

pub fn read(
    written: &ModelSequenceBatching,
    model: &proto::ModelConfig,
    positions: &Positions,
) -> Result<SequenceConfig, TextProblem> {
    let controls = written.control_input.iter().enumerate().map(|(index, input)| control(index, input, positions));
    let states = written.state.iter().enumerate().map(|(index, given)| state(index, given, positions));
    let idle = match written.max_sequence_idle_microseconds {
        0 => USUAL_IDLE_US,
        micros => micros.min(MAX_IDLE_US),
    };
    let config = SequenceConfig {
        most: most(written, model),
        idle: Duration::from_micros(idle),
        controls: controls.collect::<Result<_, _>>()?,
        states: states.collect::<Result<_, _>>()?,
        shown: model.output.iter().map(|output| output.name.clone()).collect(),
    };
    let names = config.controls.iter().map(|control| &control.input).chain(config.states.iter().map(|s| &s.input));
    let mut names: Vec<&String> = names.chain(model.input.iter().map(|input| &input.name)).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(config),
        Some(pair) => {
            let reason = format!("input {:?} is given twice, by the client, as a state or as a control input", pair[0]);
            Err(positions.wrong_field(PATH, reason))
        }
    }
}

/// As many as Triton has places for: of each instance one in every row of a batch, or as many candidates as are named.
fn most(written: &ModelSequenceBatching, model: &proto::ModelConfig) -> u32 {
    let positive = |number: i32| u32::try_from(number).unwrap_or(0);
    let instances = model.instance_group.iter().map(|group| positive(group.count).max(1));
    let instances = instances.fold(0u32, u32::saturating_add).max(1);
    let each = match &written.strategy_choice {
        Some(StrategyChoice::Oldest(oldest)) => match positive(oldest.max_candidate_sequences) {
            0 => USUAL_SEQUENCES,
            most => most,
        },
        Some(StrategyChoice::Direct(_)) | None => positive(model.max_batch_size).max(1),
    };
    each.saturating_mul(instances)
}

/// Triton's message has room for several signals in one input; models have one.
fn control(index: usize, written: &ControlInput, positions: &Positions) -> Result<SequenceControl, TextProblem> {
    let path = format!("{PATH}.control_input[{index}]");
    let wrong = |reason: String| positions.wrong_value(&path, reason);
    if written.name.is_empty() {
        return Err(wrong("this control_input has no name: give it the name that it has in the model".into()));
    }
    match &written.control[..] {
        [one] => signal(&written.name, one).map_err(wrong),
        several => {
            let (name, count) = (&written.name, several.len());
            Err(wrong(format!("control_input {name:?} has {count} controls, and an input says one thing")))
        }
    }
}

fn signal(name: &str, written: &Control) -> Result<SequenceControl, String> {
    let input = name.to_owned();
    let signal = match written.kind() {
        Kind::ControlSequenceStart => SequenceSignal::Start,
        Kind::ControlSequenceEnd => SequenceSignal::End,
        Kind::ControlSequenceReady => SequenceSignal::Ready,
        Kind::ControlSequenceCorrid => {
            let known = [DataType::Uint64, DataType::Int64, DataType::Uint32, DataType::Int32, DataType::Bytes];
            let datatype = read_data_type(written.data_type).filter(|datatype| known.contains(datatype));
            let datatype = datatype.ok_or_else(|| {
                format!(
                    "control_input {name:?} is the sequence's name: its data_type is TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING"
                )
            })?;
            return Ok(SequenceControl { input, signal: SequenceSignal::Id, datatype, no_yes: [0.0, 1.0] });
        }
    };
    let whole: Vec<f64> = written.int32_false_true.iter().map(|&value| value.into()).collect();
    let real: Vec<f64> = written.fp32_false_true.iter().map(|&value| value.into()).collect();
    let truth: Vec<f64> = written.bool_false_true.iter().map(|&value| f64::from(u8::from(value))).collect();
    let given = [(DataType::Int32, whole), (DataType::Fp32, real), (DataType::Bool, truth)];
    let mut given = given.into_iter().filter(|(_, values)| !values.is_empty());
    match (given.next(), given.next()) {
        (Some((datatype, values)), None) if values.len() == 2 => {
            Ok(SequenceControl { input, signal, datatype, no_yes: [values[0], values[1]] })
        }
        _ => Err(format!(
            "control_input {name:?} needs two values, for no and for yes, in one of int32_false_true, fp32_false_true and bool_false_true"
        )),
    }
}

fn state(index: usize, written: &State, positions: &Positions) -> Result<SequenceState, TextProblem> {
    let path = format!("{PATH}.state[{index}]");
    let wrong = |reason: String| positions.wrong_value(&path, reason);
    let State { input_name: input, output_name: output, dims, .. } = written.clone();
    if input.is_empty() || output.is_empty() {
        return Err(wrong("a state has an input_name and an output_name: those that it has in the model".into()));
    }
    check_dims(&format!("{path}.dims"), &dims, positions)?;
    let Some(datatype) = read_data_type(written.data_type) else {
        return Err(wrong(format!("state {input:?} has no data_type: give one, for instance TYPE_FP32")));
    };
    let initial = match &written.initial_state[..] {
        [] => None,
        [initial] => Some(initial),
        several => return Err(wrong(format!("state {input:?} has {} initial states: give one", several.len()))),
    };
    let known = initial.map(|initial| &initial.dims).filter(|dims| !dims.is_empty()).unwrap_or(&dims).clone();
    let is_known = known.iter().all(|&dim| dim > 0);
    let fits = known.len() == dims.len() && known.iter().zip(&dims).all(|(&known, &dim)| dim < 0 || known == dim);
    if !is_known || !fits {
        return Err(wrong(format!(
            "state {input:?} has dims {dims:?} and begins with {known:?}: give initial_state with dims that fit, all of them known"
        )));
    }
    if initial.and_then(|initial| read_data_type(initial.data_type)).is_some_and(|given| given != datatype) {
        return Err(wrong(format!("state {input:?} is {datatype}, and its initial_state is of another data_type")));
    }
    let initial = match initial.and_then(|initial| initial.state_data.as_ref()) {
        None | Some(StateData::ZeroData(_)) => InitialState::Zero(known),
        Some(StateData::DataFile(file)) => {
            let file = relative_file(&format!("{path}.initial_state[0].data_file"), file, positions)?;
            InitialState::File(
                known,
                file.ok_or_else(|| wrong(format!("state {input:?} has a data_file without a name")))?,
            )
        }
    };
    Ok(SequenceState { input, output, datatype, dims, initial })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ModelConfig;
    use expect_test::expect;
    use std::path::Path;

    fn parse(text: &str) -> Result<SequenceConfig, String> {
        let config = ModelConfig::parse(text, Path::new("config.pbtxt"), "m").map_err(|error| error.to_string())?;
        Ok(config.sequences.unwrap())
    }

    #[test]
    fn what_triton_writes_is_read() {
        let read = parse(
            r#"max_batch_size: 8
            input { name: "INPUT" data_type: TYPE_INT32 dims: 1 }
            output { name: "OUTPUT" data_type: TYPE_INT32 dims: 1 }
            sequence_batching {
              max_sequence_idle_microseconds: 5000000
              control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [0, 1] } }
              control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
              state {
                input_name: "S" output_name: "S_OUT" data_type: TYPE_FP32 dims: -1
                initial_state { data_type: TYPE_FP32 dims: 4 zero_data: true name: "zero" }
              }
              oldest { max_candidate_sequences: 1024 }
            }"#,
        )
        .unwrap();
        assert_eq!((read.most, read.idle), (1024, Duration::from_secs(5)));
        let signals: Vec<_> = read.controls.iter().map(|control| (control.signal, control.datatype)).collect();
        assert_eq!(signals, [(SequenceSignal::Start, DataType::Fp32), (SequenceSignal::Id, DataType::Uint64)]);
        assert_eq!(read.states[0].initial, InitialState::Zero(vec![4]));
        assert!(read.gives_input("S") && read.gives_input("START") && !read.gives_input("INPUT"));
        assert!(read.hides_output("S_OUT") && !read.hides_output("OUTPUT"));
    }

    #[test]
    fn places_are_rows_of_instances() {
        let most = |text: &str| parse(text).unwrap().most;
        assert_eq!(most("max_batch_size: 8 sequence_batching { }"), 8);
        assert_eq!(most("max_batch_size: 0 sequence_batching { direct { } }"), 1);
        assert_eq!(most("max_batch_size: 8 instance_group { count: 3 } sequence_batching { direct { } }"), 24);
        assert_eq!(most("max_batch_size: 8 sequence_batching { oldest { } }"), 1024);
        assert_eq!(parse("sequence_batching { }").unwrap().idle, Duration::from_secs(1));
    }

    #[test]
    fn mistakes_are_sentences() {
        let all = [
            "sequence_batching { control_input { } }",
            "sequence_batching { control_input { name: \"a\" } }",
            "sequence_batching { control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_START } } }",
            "sequence_batching { control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_END int32_false_true: [1] } } }",
            "sequence_batching { control_input { name: \"a\" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 } } }",
            "sequence_batching { state { } }",
            "sequence_batching { state { input_name: \"a\" output_name: \"b\" } }",
            "sequence_batching { state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: -1 } }",
            "sequence_batching { state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: 3 initial_state { dims: 4 } } }",
            "sequence_batching { state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: 3 initial_state { data_file: \"../x\" } } }",
            "sequence_batching { state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: 3 } state { input_name: \"a\" output_name: \"b\" data_type: TYPE_FP32 dims: 3 } }",
        ];
        let said: Vec<String> = all.iter().map(|text| parse(text).unwrap_err()).collect();
        expect![[r#"
            config.pbtxt:1:35: this control_input has no name: give it the name that it has in the model
            config.pbtxt:1:35: control_input "a" has 0 controls, and an input says one thing
            config.pbtxt:1:35: control_input "a" needs two values, for no and for yes, in one of int32_false_true, fp32_false_true and bool_false_true
            config.pbtxt:1:35: control_input "a" needs two values, for no and for yes, in one of int32_false_true, fp32_false_true and bool_false_true
            config.pbtxt:1:35: control_input "a" is the sequence's name: its data_type is TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 or TYPE_STRING
            config.pbtxt:1:27: a state has an input_name and an output_name: those that it has in the model
            config.pbtxt:1:27: state "a" has no data_type: give one, for instance TYPE_FP32
            config.pbtxt:1:27: state "a" has dims [-1] and begins with [-1]: give initial_state with dims that fit, all of them known
            config.pbtxt:1:27: state "a" has dims [3] and begins with [4]: give initial_state with dims that fit, all of them known
            config.pbtxt:1:118: data_file is "../x": it must be a file in the model's folder
            config.pbtxt:1:1: input "a" is given twice, by the client, as a state or as a control input"#]].assert_eq(&said.join("\n"));
    }
}
