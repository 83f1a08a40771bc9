//! Whether a pipeline fits its models, and how its tensors go from stage to stage.

use super::gaps::StageMeter;
use base::{DataType, ModelSignature, TensorSpec};
use repository::{MemberName, ModelConfig, PipelineConfig, StageConfig, StageWork, StepConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use steps::TensorStep;

/// A pipeline that fits its models. Tensors are numbered; each is made once.
#[derive(Debug)]
pub struct PipelinePlan {
    /// What its tensors are called.
    pub tensors: Vec<String>,
    /// The tensor of each input, in the signature's order.
    pub inputs: Vec<usize>,
    /// The tensor of each output, in the signature's order.
    pub outputs: Vec<usize>,
    /// Each before those that follow it.
    pub stages: Vec<StagePlan>,
}

/// One stage of it.
#[derive(Debug)]
pub struct StagePlan {
    /// For people.
    pub name: String,
    /// Who computes it.
    pub work: PlannedWork,
    /// What the member is given.
    pub inputs: Vec<StageInput>,
    /// What is used of what it gives: the position of the output, and the tensor.
    pub outputs: Vec<(usize, usize)>,
    /// How it is called once for each row of something, if it is.
    pub fan_out: Option<FanOut>,
    /// The numbers of the stages that follow.
    pub next: Vec<usize>,
    /// What it was seen to take.
    pub meter: StageMeter,
}

/// Who computes a stage.
#[derive(Clone, Debug)]
pub enum PlannedWork {
    /// One of the endpoint's members, by its position.
    Member(usize),
    /// A step that is built in.
    Step(Arc<TensorStep>),
}

/// An input of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StageInput {
    /// Its position among the member's inputs.
    pub position: usize,
    /// The tensor.
    pub tensor: usize,
    /// What of the tensor a call gets.
    pub part: InputPart,
}

/// What of a tensor a call gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputPart {
    /// All of it.
    Whole,
    /// One row, as a batch of one.
    Row,
    /// One row, without the dimension that counts rows.
    Element,
    /// Nothing: one number of it says how much of the last dimension of that input the call gets.
    Length,
}

/// How a stage is called once for each row of something.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FanOut {
    /// How many calls there may be.
    pub max_calls: u32,
    /// How many there are on average, until that is known.
    pub calls: f64,
    /// Whether the outputs of calls get a dimension that counts them; otherwise their first one does.
    pub stacks: bool,
    /// Whether outputs that aren't as large as others are filled up.
    pub fills: bool,
}

/// What is known of a model or endpoint that is asked.
#[derive(Clone, Debug)]
pub(crate) struct MemberFacts {
    pub(crate) signature: Arc<ModelSignature>,
    /// Inputs that may be left out, by position.
    pub(crate) optional: Vec<bool>,
}

/// An input of a stage: its position, the tensor, and what of it.
type GivenInput<'a> = (usize, &'a String, InputPart);

/// A type and dimensions.
type Form = (DataType, Vec<i64>);

/// Plans a pipeline whose members are known. What is wrong with it is a sentence for each mistake.
pub(crate) fn plan(
    config: &ModelConfig,
    folder: &Path,
    pipeline: &PipelineConfig,
    members: &BTreeMap<MemberName, MemberFacts>,
) -> Result<(PipelinePlan, ModelSignature), String> {
    let mut planner = Planner { config, folder, pipeline, members, forms: BTreeMap::new(), mistakes: Vec::new() };
    planner.declare_inputs();
    let order = in_order(&pipeline.stages);
    let numbers: BTreeMap<&MemberName, usize> = members.keys().zip(0..).collect();
    let tensors: BTreeSet<&String> =
        pipeline.inputs.iter().chain(pipeline.stages.iter().flat_map(|stage| stage.outputs.values())).collect();
    let tensors: Vec<String> = tensors.into_iter().cloned().collect();
    // Every tensor that a stage takes is made: the configuration was checked for that.
    let tensor = |name: &String| tensors.binary_search(name).unwrap_or(0);
    let mut stages = Vec::new();
    for &stage in &order {
        let (work, inputs) = match &stage.work {
            StageWork::Step(step) => {
                let Some((made, inputs)) = planner.step_inputs(stage, step) else { continue };
                (PlannedWork::Step(made), inputs)
            }
            StageWork::Member(name) => {
                let Some(member) = members.get(name) else { continue };
                (PlannedWork::Member(numbers[name]), planner.stage_inputs(stage, member))
            }
        };
        let fan_out = (!stage.for_each.is_empty()).then(|| FanOut {
            max_calls: stage.max_calls,
            calls: stage.calls,
            stacks: inputs.iter().any(|(_, _, part)| *part == InputPart::Element),
            fills: stage.fill_up,
        });
        let outputs = planner.stage_outputs(stage, &work, fan_out);
        let follows = |other: &&StageConfig| stage.outputs.values().any(|made| other.takes().any(|t| t == made));
        let next = order.iter().enumerate().filter(|(_, other)| follows(other)).map(|(number, _)| number).collect();
        stages.push(StagePlan {
            name: stage.name.clone(),
            work,
            inputs: inputs
                .into_iter()
                .map(|(position, name, part)| StageInput { position, tensor: tensor(name), part })
                .collect(),
            outputs: outputs.into_iter().map(|(position, name)| (position, tensor(name))).collect(),
            meter: StageMeter::new(fan_out.map_or(1.0, |fan_out| fan_out.calls)),
            fan_out,
            next,
        });
    }
    let mut signature = planner.signature();
    planner.declare_outputs(&mut signature);
    if !planner.mistakes.is_empty() {
        return Err(planner.mistakes.join("; "));
    }
    let inputs = pipeline.inputs.iter().map(tensor).collect();
    let outputs = pipeline.outputs.iter().map(tensor).collect();
    Ok((PipelinePlan { tensors, inputs, outputs, stages }, signature))
}

/// Stages, each before those that follow it. There is no circle: the configuration was checked for that.
fn in_order(stages: &[StageConfig]) -> Vec<&StageConfig> {
    let mut left: Vec<&StageConfig> = stages.iter().collect();
    let mut order = Vec::with_capacity(stages.len());
    while !left.is_empty() {
        let made: BTreeSet<&String> = left.iter().flat_map(|stage| stage.outputs.values()).collect();
        let (ready, rest): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|stage| !stage.takes().any(|tensor| made.contains(tensor)));
        if ready.is_empty() {
            break;
        }
        order.extend(ready);
        left = rest;
    }
    order
}

struct Planner<'a> {
    config: &'a ModelConfig,
    /// Where files of steps are.
    folder: &'a Path,
    pipeline: &'a PipelineConfig,
    members: &'a BTreeMap<MemberName, MemberFacts>,
    /// What is known of tensors, by name.
    forms: BTreeMap<&'a str, Form>,
    mistakes: Vec<String>,
}

impl<'a> Planner<'a> {
    /// The largest batch of the whole: what is configured, else what all models take that get the client's rows.
    fn max_batch(&self) -> u32 {
        let stages = &self.pipeline.stages;
        let member = |stage: &StageConfig| self.members.get(stage.work.member()?);
        let of = |stage: &StageConfig| member(stage).map_or(0, |member| member.signature.max_batch);
        let follows_rows = stages.iter().all(|stage| stage.for_each.is_empty());
        let least = stages.iter().map(of).min().unwrap_or(0);
        self.config.max_batch.unwrap_or(if follows_rows { least } else { 0 })
    }

    /// Inputs whose types and shapes the configuration has, with the batch dimension.
    fn declare_inputs(&mut self) {
        let batched = self.max_batch() > 0;
        for input in &self.config.inputs {
            let batch = batched.then_some(-1);
            let dims = batch.into_iter().chain(input.dims.iter().copied()).collect();
            if let Some(name) = self.pipeline.inputs.iter().find(|name| **name == input.name) {
                self.forms.insert(name, (input.datatype, dims));
            }
        }
    }

    /// What a stage's member is given: position, tensor, part.
    fn stage_inputs(&mut self, stage: &'a StageConfig, member: &MemberFacts) -> Vec<GivenInput<'a>> {
        let signature = &member.signature;
        let mut inputs = Vec::new();
        for (name, tensor) in &stage.inputs {
            let Some(position) = signature.inputs.iter().position(|spec| spec.name == *name) else {
                self.mistakes.push(format!(
                    "stage {:?} gives {} an input {name:?}, which it hasn't: it takes {}",
                    stage.name,
                    stage.work,
                    names(&signature.inputs)
                ));
                continue;
            };
            let spec = &signature.inputs[position];
            let part = self.part(stage, signature.max_batch, spec, tensor);
            self.meet(stage, spec, tensor, part);
            inputs.push((position, tensor, part));
            if let Some(lengths) = stage.lengths.get(tensor) {
                self.meet_lengths(stage, spec, lengths, part);
                inputs.push((position, lengths, InputPart::Length));
            }
        }
        for (spec, _) in signature.inputs.iter().zip(&member.optional).filter(|(_, optional)| !**optional) {
            if !stage.inputs.contains_key(&spec.name) {
                self.mistakes.push(format!("stage {:?} gives {} no {:?}", stage.name, stage.work, spec.name));
            }
        }
        let rows = |stage: &StageConfig| stage.for_each.is_empty() && signature.max_batch < self.max_batch();
        if rows(stage) {
            let (whole, most) = (self.max_batch(), signature.max_batch);
            self.mistakes.push(format!(
                "max_batch_size is {whole}, but {} of stage {:?} takes {}",
                stage.work,
                stage.name,
                if most == 0 { "no batches".to_owned() } else { format!("batches of at most {most}") }
            ));
        }
        inputs
    }

    /// What of a tensor a call gets.
    fn part(&self, stage: &StageConfig, max_batch: u32, spec: &TensorSpec, tensor: &str) -> InputPart {
        if !stage.for_each.iter().any(|each| each == tensor) {
            return InputPart::Whole;
        }
        let same = self.forms.get(tensor).is_some_and(|(_, dims)| dims.len() == spec.dims.len());
        if max_batch > 0 || same { InputPart::Row } else { InputPart::Element }
    }

    /// A tensor is given to a model as that input of it: both must agree; what wasn't known of an input is known then.
    fn meet(&mut self, stage: &StageConfig, spec: &TensorSpec, tensor: &'a str, part: InputPart) {
        let dims: Vec<i64> = match part {
            InputPart::Whole => spec.dims.clone(),
            InputPart::Row => std::iter::once(-1).chain(spec.dims.iter().skip(1).copied()).collect(),
            InputPart::Element => std::iter::once(-1).chain(spec.dims.iter().copied()).collect(),
            // It is no input of the model's.
            InputPart::Length => return,
        };
        let Some((datatype, known)) = self.forms.get_mut(tensor) else {
            self.forms.insert(tensor, (spec.datatype, dims));
            return;
        };
        let (stage, model, input) = (&stage.name, &stage.work, &spec.name);
        if *datatype != spec.datatype {
            let wanted = spec.datatype;
            let reason = format!(
                "stage {stage:?} gives {tensor:?}, which is {datatype}, to {model} as {input:?}, which is {wanted}"
            );
            return self.mistakes.push(reason);
        }
        // Triton has no tensors without dimensions: one element stands for them.
        let is_scalar = part == InputPart::Whole && dims.is_empty() && known.iter().all(|&dim| dim == 1 || dim < 0);
        let fits = |(&known, &wanted): (&i64, &i64)| known == wanted || known < 0 || wanted < 0;
        if !is_scalar && (known.len() != dims.len() || !known.iter().zip(&dims).all(fits)) {
            let reason = format!(
                "stage {stage:?} gives {tensor:?}, which has the shape {known:?}, to {model} as {input:?}, which has {dims:?}"
            );
            return self.mistakes.push(reason);
        }
        // An input of the whole is as narrow as the narrowest that takes it.
        if self.pipeline.inputs.iter().any(|input| input == tensor) && !is_scalar {
            known.iter_mut().zip(&dims).for_each(|(known, &wanted)| *known = if *known < 0 { wanted } else { *known });
        }
    }

    /// A tensor says how long the rows of another are, which a model is given as that input of it.
    fn meet_lengths(&mut self, stage: &StageConfig, spec: &TensorSpec, lengths: &'a str, part: InputPart) {
        let (stage, model, input) = (&stage.name, &stage.work, &spec.name);
        let of_row = spec.dims.get(usize::from(part == InputPart::Row)..).unwrap_or_default();
        if spec.datatype == DataType::Bytes || of_row.last().is_none_or(|&last| last >= 0) {
            let (datatype, dims) = (spec.datatype, &spec.dims);
            return self.mistakes.push(format!(
                "stage {stage:?} has lengths for {input:?} of {model}, which is {datatype} of the shape {dims:?}: numbers are needed, and rows whose last dimension is open"
            ));
        }
        let known = self.forms.entry(lengths).or_insert((DataType::Int64, vec![-1]));
        if known.0 != DataType::Int64 || known.1.len() != 1 {
            let (datatype, dims) = known;
            self.mistakes.push(format!(
                "stage {stage:?} has {lengths:?} for lengths, which is {datatype} of the shape {dims:?}: INT64 of the shape [-1] is needed"
            ));
        }
    }

    /// A step, and what it is given: position, tensor, all of it.
    fn step_inputs(
        &mut self,
        stage: &'a StageConfig,
        step: &StepConfig,
    ) -> Option<(Arc<TensorStep>, Vec<GivenInput<'a>>)> {
        let wrong = |error: steps::StepError| format!("stage {:?}: {error}", stage.name);
        let made = match TensorStep::new(&step.name, &step.parameters, self.folder) {
            Ok(made) => made,
            Err(error) => {
                self.mistakes.push(wrong(error));
                return None;
            }
        };
        let mut inputs = Vec::new();
        for (name, tensor) in &stage.inputs {
            let named = made.input_names().iter().position(|known| known == name);
            let Some(position) = named.or_else(|| name.parse().ok()) else {
                let known = made.input_names().join(", ");
                let (stage, work) = (&stage.name, &stage.work);
                self.mistakes
                    .push(format!("stage {stage:?} gives {work} an input {name:?}, which it hasn't: it takes {known}"));
                continue;
            };
            if !self.forms.contains_key(tensor.as_str()) && self.pipeline.inputs.contains(tensor) {
                self.mistakes.push(format!(
                    "input {tensor:?} goes to a step, which takes many forms: write {{ name = {tensor:?}, data_type = ..., dims = [...] }}"
                ));
                continue;
            }
            inputs.push((position, tensor, InputPart::Whole));
        }
        inputs.sort_by_key(|(position, ..)| *position);
        Some((Arc::new(made), inputs))
    }

    /// What a step makes of what it is given.
    fn step_specs(&mut self, stage: &StageConfig, step: &TensorStep) -> Vec<TensorSpec> {
        let mut given: Vec<(usize, TensorSpec)> = Vec::new();
        for (name, tensor) in &stage.inputs {
            let position = step.input_names().iter().position(|known| known == name).or_else(|| name.parse().ok());
            if let (Some(position), Some((datatype, dims))) = (position, self.forms.get(tensor.as_str()).cloned()) {
                given.push((position, TensorSpec { name: name.clone(), datatype, dims }));
            }
        }
        given.sort_by_key(|(position, _)| *position);
        let specs: Vec<TensorSpec> = given.into_iter().map(|(_, spec)| spec).collect();
        step.outputs(&specs).unwrap_or_else(|error| {
            self.mistakes.push(format!("stage {:?}: {error}", stage.name));
            Vec::new()
        })
    }

    /// What a stage makes: position and tensor.
    fn stage_outputs(
        &mut self,
        stage: &'a StageConfig,
        work: &PlannedWork,
        fan_out: Option<FanOut>,
    ) -> Vec<(usize, &'a String)> {
        let before = self.mistakes.len();
        let specs = match work {
            PlannedWork::Step(step) => self.step_specs(stage, step),
            PlannedWork::Member(_) => {
                let member = stage.work.member().and_then(|name| self.members.get(name));
                member.map(|member| member.signature.outputs.clone()).unwrap_or_default()
            }
        };
        if self.mistakes.len() > before {
            return Vec::new();
        }
        let specs = &specs;
        let mut outputs = Vec::new();
        for (name, tensor) in &stage.outputs {
            let Some(position) = specs.iter().position(|spec| spec.name == *name) else {
                self.mistakes.push(format!(
                    "stage {:?} takes an output {name:?} from {}, which it hasn't: it gives {}",
                    stage.name,
                    stage.work,
                    names(specs)
                ));
                continue;
            };
            let spec = &specs[position];
            let dims = match fan_out {
                None => spec.dims.clone(),
                Some(FanOut { stacks: true, .. }) => std::iter::once(-1).chain(spec.dims.iter().copied()).collect(),
                Some(_) => std::iter::once(-1).chain(spec.dims.iter().skip(1).copied()).collect(),
            };
            self.forms.insert(tensor, (spec.datatype, dims));
            outputs.push((position, tensor));
        }
        outputs
    }

    /// What the whole takes and gives, as its stages say.
    fn signature(&self) -> ModelSignature {
        let max_batch = self.max_batch();
        let specs = |names: &[String]| {
            let spec = |name: &String| {
                let (datatype, mut dims) = self.forms.get(name.as_str()).cloned()?;
                if max_batch > 0 && !dims.is_empty() {
                    dims[0] = -1;
                }
                Some(TensorSpec { name: name.clone(), datatype, dims })
            };
            names.iter().filter_map(spec).collect()
        };
        ModelSignature { inputs: specs(&self.pipeline.inputs), outputs: specs(&self.pipeline.outputs), max_batch }
    }

    /// Outputs as the configuration has them, where it says something of them. A size that either leaves open is the
    /// other's.
    fn declare_outputs(&mut self, signature: &mut ModelSignature) {
        let batched = usize::from(signature.max_batch > 0);
        for declared in &self.config.outputs {
            let Some(spec) = signature.outputs.iter_mut().find(|spec| spec.name == declared.name) else { continue };
            let name = &spec.name;
            if declared.datatype != spec.datatype {
                let (said, made) = (declared.datatype, spec.datatype);
                self.mistakes.push(format!("output {name:?} is configured as {said}, but its stage makes {made}"));
            }
            let fits = |(made, said): (&i64, &i64)| made == said || *made < 0 || *said < 0;
            let (said, made) = (&declared.dims, spec.dims.get(batched..).unwrap_or_default());
            if made.len() != said.len() || !made.iter().zip(said).all(fits) {
                self.mistakes.push(format!(
                    "output {name:?} is configured with dims {said:?}, but its stage makes {made:?}{}",
                    if batched > 0 { " in each row" } else { "" }
                ));
                continue;
            }
            for (made, &said) in spec.dims[batched..].iter_mut().zip(&declared.dims).filter(|(made, _)| **made < 0) {
                *made = said;
            }
        }
        let reshaped = self.config.inputs.iter().chain(&self.config.outputs).find(|tensor| tensor.reshape.is_some());
        if let Some(tensor) = reshaped {
            self.mistakes.push(format!("{:?} has a reshape: only models have, not what is made of them", tensor.name));
        }
    }
}

fn names(specs: &[TensorSpec]) -> String {
    let names: Vec<String> = specs.iter().map(|spec| format!("{:?}", spec.name)).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PIPELINE: &str = "kind = \"pipeline\"\ninputs = [\"x\"]\noutputs = [\"y\"]\n\
        [[stage]]\nname = \"last\"\nmodel = \"b\"\ninputs.i = \"t\"\noutputs.o = \"y\"\n\
        [[stage]]\nname = \"first\"\nmodel = \"a\"\ninputs.i = \"x\"\noutputs.o = \"t\"\n";

    fn facts(max_batch: u32, takes: (DataType, &[i64]), gives: (DataType, &[i64])) -> MemberFacts {
        let spec = |name: &str, (datatype, dims): (DataType, &[i64])| TensorSpec {
            name: name.into(),
            datatype,
            dims: dims.to_vec(),
        };
        let (inputs, outputs) = (vec![spec("i", takes)], vec![spec("o", gives)]);
        MemberFacts { signature: Arc::new(ModelSignature { inputs, outputs, max_batch }), optional: vec![false] }
    }

    fn planned(text: &str, a: MemberFacts, b: MemberFacts) -> Result<(PipelinePlan, ModelSignature), String> {
        let config = ModelConfig::parse_endpoint(text, Path::new("endpoint.toml")).unwrap();
        let kind = config.endpoint.clone().unwrap();
        let repository::EndpointKind::Pipeline(pipeline) = &*kind else { panic!("{kind:?}") };
        let name = |model: &str| MemberName { model: model.into(), version: None };
        plan(&config, Path::new("."), pipeline, &BTreeMap::from([(name("a"), a), (name("b"), b)]))
    }

    const FLOATS: (DataType, &[i64]) = (DataType::Fp32, &[-1, 4]);

    #[test]
    fn stages_are_in_order_and_the_whole_is_as_wide_as_its_narrowest() {
        let (plan, signature) =
            planned(PIPELINE, facts(8, FLOATS, FLOATS), facts(2, FLOATS, (DataType::Int64, &[-1]))).unwrap();
        assert_eq!(plan.stages.iter().map(|stage| &*stage.name).collect::<Vec<_>>(), ["first", "last"]);
        assert_eq!((&plan.stages[0].next[..], &plan.stages[1].next[..]), (&[1][..], &[][..]));
        assert_eq!(signature.max_batch, 2);
        assert_eq!((&signature.inputs[0].name[..], &signature.inputs[0].dims[..]), ("x", &[-1, 4][..]));
        assert_eq!((signature.outputs[0].datatype, &signature.outputs[0].dims[..]), (DataType::Int64, &[-1][..]));
    }

    #[test]
    fn what_does_not_fit_is_a_sentence() {
        let wrong = |text: &str, a, b| planned(text, a, b).unwrap_err();
        let good = || facts(8, FLOATS, FLOATS);
        assert_eq!(
            wrong(PIPELINE, good(), facts(8, (DataType::Fp64, &[-1, 4]), FLOATS)),
            r#"stage "last" gives "t", which is FP32, to "b" as "i", which is FP64"#
        );
        assert_eq!(
            wrong(PIPELINE, good(), facts(8, (DataType::Fp32, &[-1, 5]), FLOATS)),
            r#"stage "last" gives "t", which has the shape [-1, 4], to "b" as "i", which has [-1, 5]"#
        );
        assert_eq!(
            wrong(&PIPELINE.replace("inputs.i = \"t\"", "inputs.j = \"t\""), good(), good()),
            r#"stage "last" gives "b" an input "j", which it hasn't: it takes "i"; stage "last" gives "b" no "i""#
        );
        assert_eq!(
            wrong(&PIPELINE.replace("outputs.o = \"t\"", "outputs.p = \"t\""), good(), good()),
            r#"stage "first" takes an output "p" from "a", which it hasn't: it gives "o""#
        );
        assert_eq!(
            wrong(&PIPELINE.replace("inputs = [", "max_batch_size = 4\ninputs = ["), good(), facts(2, FLOATS, FLOATS)),
            r#"max_batch_size is 4, but "b" of stage "last" takes batches of at most 2"#
        );
    }

    #[test]
    fn calls_for_each_row_get_batches_of_one_or_elements() {
        let text = PIPELINE.replace("outputs.o = \"y\"\n", "outputs.o = \"y\"\nfor_each = [\"t\"]\n");
        let parts = |b| {
            let (plan, signature) = planned(&text, facts(8, FLOATS, FLOATS), b).unwrap();
            (plan.stages[1].inputs[0].part, signature.outputs[0].dims.clone(), signature.max_batch)
        };
        assert_eq!(parts(facts(8, FLOATS, (DataType::Fp32, &[-1, 7]))), (InputPart::Row, vec![-1, 7], 0));
        assert_eq!(
            parts(facts(0, (DataType::Fp32, &[4]), (DataType::Fp32, &[7]))),
            (InputPart::Element, vec![-1, 7], 0)
        );
        assert_eq!(
            parts(facts(0, (DataType::Fp32, &[1, 4]), (DataType::Fp32, &[1, 7]))),
            (InputPart::Row, vec![-1, 7], 0)
        );
    }
}
