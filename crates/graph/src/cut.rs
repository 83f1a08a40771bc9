//! A model in two: the head, which can be planned, and the tail, which begins at what can't be: where the shape of a
//! result depends on its input, or an operator isn't there.
//!
//! ```text
//!  inputs ──> convolutions ... boxes, scores ──┬──> outputs
//!              └────────── head ──────────┘    └──> NonMaxSuppression, Gather ... ──> outputs
//!                                                    └──────────── tail ────────┘
//! ```
//!
//! What can be planned is what the planner itself plans: there is no second list of operators. A node is in the head if
//! it was planned and so was all that it depends on. What depends on no input is on whichever side names it, or on
//! both.

use crate::error::GraphError;
use crate::lower;
use crate::model::{OnnxModel, element_number};
use crate::options::Options;
use base::DataType;
use bytes::Bytes;
use onnx::{
    DimensionProto, FunctionProto, Message, ModelPart, ModelProto, NodeProto, ShapeProto, TensorTypeProto, TypeProto,
    ValueInfoProto,
};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Operators whose work is worth a device.
const HEAVY: [&str; 8] = ["Conv", "MatMul", "Gemm", "LSTM", "GRU", "RNN", "Attention", "Einsum"];
/// Operators that do nothing, or next to nothing, to what they are given: on the host where that is smaller, or there
/// anyway.
const LIGHT: [&str; 8] = ["Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Cast", "Expand", "Tile"];

/// Where a tensor comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorOrigin {
    /// The model's input of that position.
    Input(usize),
    /// The head's output of that position.
    Head(usize),
    /// The tail's.
    Tail(usize),
}

/// How a model's file is cut. It is as small as the names in it; the files of both sides are made of the model's.
#[derive(Clone, PartialEq, Debug)]
pub struct Cut {
    head: CutSide,
    tail: CutSide,
    /// Where each input of the tail comes from: the model's inputs or the head.
    pub taken: Vec<TensorOrigin>,
    /// Where each output of the model comes from: the head or the tail.
    pub outputs: Vec<TensorOrigin>,
    /// The first node that can't be planned, and why.
    pub why: String,
    /// How many nodes the model has, and how many of them are in the tail.
    pub nodes: (usize, usize),
}

#[derive(Clone, PartialEq, Debug)]
struct CutSide {
    nodes: Vec<bool>,
    inputs: Vec<ValueInfoProto>,
    outputs: Vec<ValueInfoProto>,
}

impl CutSide {
    fn of(&self, file: &Bytes) -> Result<Bytes, GraphError> {
        let part = ModelPart { nodes: &self.nodes, inputs: &self.inputs, outputs: &self.outputs };
        onnx::part(file, part).map_err(|error| GraphError::NotOnnx(error.to_string()))
    }
}

impl Cut {
    /// The head's file. It takes the model's inputs, all of them.
    pub fn head(&self, file: &Bytes) -> Result<Bytes, GraphError> {
        self.head.of(file)
    }

    /// The tail's file.
    pub fn tail(&self, file: &Bytes) -> Result<Bytes, GraphError> {
        self.tail.of(file)
    }

    /// The names of what the tail takes.
    pub fn tail_inputs(&self) -> impl Iterator<Item = &str> {
        self.tail.inputs.iter().map(|input| input.name.as_str())
    }

    /// The names of the tensors that the head gives.
    pub fn crossing(&self) -> impl Iterator<Item = &str> {
        self.head.outputs.iter().map(|output| output.name.as_str())
    }
}

/// A tensor that was planned.
pub(crate) struct PlannedTensor {
    pub(crate) dtype: DataType,
    pub(crate) dims: Vec<usize>,
}

impl PlannedTensor {
    fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.dtype.size().unwrap_or(1)
    }
}

/// What of a model can be planned.
pub(crate) struct PlannedPart {
    /// By name, what nodes gave at the outermost level.
    pub(crate) tensors: HashMap<String, PlannedTensor>,
    /// Why the first node that can't be isn't.
    pub(crate) refused: Option<GraphError>,
}

/// Cuts a model in two, by what of it can be planned for these sizes. `None` where there is nothing to cut, or where
/// the head isn't worth a device: it has no convolutions, products and recurrent layers, or fewer than the tail.
pub fn cut(file: &Bytes, model: &OnnxModel, options: &Options) -> Result<Option<Cut>, GraphError> {
    let planned = lower::lower_part(model, options)?;
    let Some(refused) = &planned.refused else { return Ok(None) };
    let decoded = ModelProto::decode(file.clone()).map_err(|error| GraphError::NotOnnx(error.to_string()))?;
    let mut cutter = Cutter::new(&decoded, &planned);
    cutter.take_over_light_ones();
    Ok(cutter.finish(model, refused.missing()))
}

/// A cut in the making.
struct Cutter<'a> {
    model: &'a ModelProto,
    nodes: &'a [NodeProto],
    planned: &'a PlannedPart,
    /// What each node reads, by position.
    names: Vec<Vec<&'a str>>,
    /// By name, the node that gives it.
    makers: HashMap<&'a str, usize>,
    /// Names of the model's outputs, in their order.
    outputs: Vec<&'a str>,
    /// Whether each node may be in the head.
    plannable: Vec<bool>,
    /// Whether each node depends on no input.
    is_free: Vec<bool>,
}

/// What is needed on each side.
struct NeededNodes<'a> {
    head: Vec<bool>,
    tail: Vec<bool>,
    /// What the tail takes, in an order that is always the same.
    taken: BTreeSet<&'a str>,
}

impl<'a> Cutter<'a> {
    fn new(model: &'a ModelProto, planned: &'a PlannedPart) -> Self {
        let graph = model.graph.as_ref();
        let nodes: &[NodeProto] = graph.map_or(&[], |graph| &graph.nodes);
        let outputs = graph.map_or_else(Vec::new, |graph| graph.outputs.iter().map(|out| out.name.as_str()).collect());
        let names: Vec<Vec<&str>> = nodes.iter().map(NodeProto::names).collect();
        let by_name = |(at, node): (usize, &'a NodeProto)| given(node).map(move |name| (name, at));
        let makers: HashMap<&str, usize> = nodes.iter().enumerate().flat_map(by_name).collect();
        let mut cutter = Self {
            model,
            nodes,
            planned,
            names,
            makers,
            outputs,
            plannable: vec![false; nodes.len()],
            is_free: vec![false; nodes.len()],
        };
        let initializers: HashSet<&str> =
            graph.iter().flat_map(|graph| &graph.initializers).map(|tensor| tensor.name.as_str()).collect();
        let inputs: HashSet<&str> = graph
            .iter()
            .flat_map(|graph| &graph.inputs)
            .map(|input| input.name.as_str())
            .filter(|name| !initializers.contains(name))
            .collect();
        for (at, node) in nodes.iter().enumerate() {
            // In a file, nodes come behind what they read.
            let made_by = |name: &&&str| cutter.makers.get(**name).copied().filter(|&maker| maker < at);
            let reads = || cutter.names[at].iter().filter_map(|name| made_by(&name));
            let can_be = given(node).all(|name| planned.tensors.contains_key(name));
            let plannable = can_be && reads().all(|maker| cutter.plannable[maker]);
            let is_free = reads().all(|maker| cutter.is_free[maker])
                && !cutter.names[at].iter().any(|name| inputs.contains(name));
            (cutter.plannable[at], cutter.is_free[at]) = (plannable, is_free);
        }
        cutter
    }

    /// What each side needs for the outputs, if nodes that may be in the head are there.
    fn sides(&self) -> NeededNodes<'a> {
        let mut sides = NeededNodes {
            head: vec![false; self.nodes.len()],
            tail: vec![false; self.nodes.len()],
            taken: BTreeSet::new(),
        };
        let (mut tail, mut head): (Vec<&str>, Vec<&str>) =
            self.outputs.iter().partition(|name| self.makers.get(*name).is_some_and(|&maker| !self.plannable[maker]));
        while let Some(name) = tail.pop() {
            match self.makers.get(name) {
                Some(&maker) if !self.plannable[maker] || self.is_free[maker] => {
                    if !std::mem::replace(&mut sides.tail[maker], true) {
                        tail.extend(&self.names[maker]);
                    }
                }
                made => {
                    if sides.taken.insert(name) && made.is_some() {
                        head.push(name);
                    }
                }
            }
        }
        while let Some(name) = head.pop() {
            if let Some(&maker) = self.makers.get(name)
                && !std::mem::replace(&mut sides.head[maker], true)
            {
                head.extend(&self.names[maker]);
            }
        }
        sides
    }

    /// Moves nodes to the tail that do little and are only needed there, where less crosses then.
    fn take_over_light_ones(&mut self) {
        loop {
            let sides = self.sides();
            let read_in_head: HashSet<&str> = (0..self.nodes.len())
                .filter(|&at| sides.head[at])
                .flat_map(|at| self.names[at].iter().copied())
                .collect();
            let crosses = |name: &str| sides.taken.contains(name) && self.makers.contains_key(name);
            let bytes = |name: &str| self.planned.tensors.get(name).map_or(0, PlannedTensor::bytes);
            let better = (0..self.nodes.len()).rev().find(|&at| {
                let node = &self.nodes[at];
                let only_there = given(node)
                    .all(|name| crosses(name) && !read_in_head.contains(name) && !self.outputs.contains(&name));
                let light = node.domain.is_empty() && LIGHT.contains(&node.operator.as_str());
                let now: usize = given(node).map(bytes).sum();
                let made = |name: &&&str| self.makers.get(**name).is_some_and(|&maker| !self.is_free[maker]);
                let then = self.names[at].iter().filter(made).filter(|name| !crosses(name)).map(|name| bytes(name));
                sides.head[at] && !self.is_free[at] && only_there && light && then.sum::<usize>() < now
            });
            match better {
                Some(at) => self.plannable[at] = false,
                None => return,
            }
        }
    }

    fn finish(self, model: &OnnxModel, why: String) -> Option<Cut> {
        let NeededNodes { head, tail, taken } = self.sides();
        let weigh = |nodes: &[bool]| -> usize {
            let of_side = self.nodes.iter().zip(nodes).filter(|(_, is_in)| **is_in);
            of_side.map(|(node, _)| heavy(node, &self.model.functions, 0)).sum()
        };
        let worth = weigh(&head);
        if !tail.contains(&true) || worth == 0 || worth < weigh(&tail) {
            return None;
        }
        let is_input = |name: &str| model.inputs().iter().position(|input| input.name == name);
        let mut given = Vec::new();
        let mut outputs = Vec::new();
        let mut of_tail = Vec::new();
        for name in &self.outputs {
            if self.makers.get(name).is_some_and(|&maker| !self.plannable[maker]) {
                outputs.push(TensorOrigin::Tail(of_tail.len()));
                of_tail.push(named(name));
            } else {
                outputs.push(TensorOrigin::Head(position(&mut given, name)));
            }
        }
        let (mut origins, mut inputs) = (Vec::new(), Vec::new());
        // Others are constants, or what a graph within a node has itself.
        for name in taken {
            if let Some(input) = is_input(name) {
                origins.push(TensorOrigin::Input(input));
                inputs.push(named(name));
            } else if self.makers.contains_key(name) {
                origins.push(TensorOrigin::Head(position(&mut given, name)));
                inputs.push(self.declared(name)?);
            }
        }
        // Those that are no outputs of the model are declared anew.
        let given = given.iter().map(|name| self.declared(name)).collect::<Option<Vec<_>>>()?;
        let all = model.inputs().iter().map(|input| named(&input.name)).collect();
        let nodes = (self.nodes.len(), tail.iter().filter(|is_in| **is_in).count());
        let head = CutSide { nodes: head, inputs: all, outputs: given };
        Some(Cut { head, tail: CutSide { nodes: tail, inputs, outputs: of_tail }, taken: origins, outputs, why, nodes })
    }

    /// A tensor that crosses, with its type and number of dimensions. What they are depends on the sizes.
    fn declared(&self, name: &str) -> Option<ValueInfoProto> {
        let Some(tensor) = self.planned.tensors.get(name) else { return Some(named(name)) };
        let dims = tensor.dims.iter().map(|_| DimensionProto::default()).collect();
        let kind = TensorTypeProto { element: element_number(tensor.dtype)?, shape: Some(ShapeProto { dims }) };
        Some(ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor: Some(kind) }) })
    }
}

/// What a node gives.
fn given(node: &NodeProto) -> impl Iterator<Item = &str> {
    node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty())
}

fn named(name: &str) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), kind: None }
}

/// Where a name is in a list; it is added if it isn't there.
fn position<'a>(list: &mut Vec<&'a str>, name: &'a str) -> usize {
    list.iter().position(|known| *known == name).unwrap_or_else(|| {
        list.push(name);
        list.len() - 1
    })
}

/// How many operators a node is that are worth a device, also in graphs within it and in the functions that it calls.
fn heavy(node: &NodeProto, functions: &[FunctionProto], depth: usize) -> usize {
    /// Functions call functions; a file may let them call themselves.
    const MOST_CALLS: usize = 8;
    let called = |function: &&FunctionProto| function.name == node.operator && function.domain == node.domain;
    let all = |nodes: &[NodeProto]| nodes.iter().map(|node| heavy(node, functions, depth + 1)).sum::<usize>();
    if depth > MOST_CALLS {
        return 0;
    }
    let within: usize = node.graphs().map(|graph| all(&graph.nodes)).sum();
    match functions.iter().find(called) {
        Some(function) => within + all(&function.nodes),
        None => within + usize::from(HEAVY.iter().any(|name| node.operator.contains(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::detectors::{detector, detectors};
    use crate::plan::Precision;
    use crate::{compile, sample};
    use expect_test::expect;
    use std::fmt::Write as _;

    fn cut_file(file: &Bytes) -> Option<Cut> {
        let model = OnnxModel::decode(file, None).unwrap();
        cut(file, &model, &Options::new(1, Precision::F32)).unwrap()
    }

    fn head_of(cut: &Cut, file: &Bytes) -> OnnxModel {
        OnnxModel::decode(&cut.head(file).unwrap(), None).unwrap()
    }

    #[test]
    fn the_head_is_what_can_be_planned_and_little_crosses() {
        let mut text = String::new();
        for (name, file) in detectors() {
            let cut = cut_file(&file).unwrap();
            let plan = compile(&head_of(&cut, &file), &Options::new(1, Precision::F32)).unwrap();
            let given: Vec<_> = plan.outputs.iter().map(|port| port.name.as_str()).collect();
            assert_eq!(given, cut.crossing().collect::<Vec<_>>());
            let tail = ModelProto::decode(cut.tail(&file).unwrap()).unwrap().graph.unwrap();
            let names =
                |ports: &[ValueInfoProto]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>().join(" ");
            let constants: Vec<_> = tail.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
            let _ = writeln!(
                text,
                "{name}: {} | tail {:?} of {} -> {} with {} | {:?} {:?} | {}",
                given.join(" "),
                cut.nodes,
                names(&tail.inputs),
                names(&tail.outputs),
                constants.join(" "),
                cut.taken,
                cut.outputs,
                cut.why
            );
        }
        expect![[r#"
            usual: scores mean boxes | tail (15, 5) of boxes scores -> chosen picked with size most overlap above picked.which picked.all | [Head(2), Head(0)] [Tail(0), Head(0), Tail(1), Head(1)] | NonMaxSuppression "chosen.node", because the size of its result depends on its input
            nothing found: scores mean boxes | tail (15, 5) of boxes scores -> chosen picked with size most overlap above picked.which picked.all | [Head(2), Head(0)] [Tail(0), Head(0), Tail(1), Head(1)] | NonMaxSuppression "chosen.node", because the size of its result depends on its input
            two suppressions: boxes scores | tail (20, 10) of boxes scores -> chosen picked again with size most overlap above picked.which picked.all turn first | [Head(0), Head(1)] [Tail(0), Tail(1), Tail(2)] | NonMaxSuppression "chosen.node", because the size of its result depends on its input
            where it isn't zero: count is.large scores | tail (18, 5) of count is.large scores -> listed large others with  | [Head(0), Head(1), Head(2)] [Tail(0), Tail(1), Tail(2)] | NonZero "places.found.node" with a computed input
            suppression in a branch: boxes any scores | tail (17, 5) of any boxes scores -> chosen picked with size most overlap above picked.which picked.all | [Head(1), Head(0), Head(2)] [Tail(0), Tail(1), Head(0)] | NonMaxSuppression "then.chosen.node", because the size of its result depends on its input
            limits as inputs: shape boxes scores | tail (13, 2) of above boxes scores -> chosen none with most overlap | [Input(0), Head(1), Head(2)] [Tail(0), Tail(1), Head(0)] | NonMaxSuppression "chosen.node", because the size of its result depends on its input
            light nodes between: boxes scores | tail (16, 6) of boxes scores -> chosen picked with most overlap above twice line which | [Head(0), Head(1)] [Tail(0), Tail(1)] | NonMaxSuppression "chosen.node", because the size of its result depends on its input
        "#]].assert_eq(&text);
    }

    #[test]
    fn what_can_be_planned_as_a_whole_isnt_cut() {
        for file in [sample::residual(), sample::dense()] {
            assert_eq!(cut_file(&file.into()), None);
        }
    }

    /// Suppression before everything that is worth a device, behind nothing, or with most products behind it.
    #[test]
    fn a_head_that_isnt_worth_a_device_isnt_cut_off() {
        let mut bare = sample::SampleModel::new("boxes", 1, &[1, 9, 4]);
        bare.input("scores", 1, &[1, 1, 9]);
        bare.node("Sigmoid", &["scores"], "inside", &[]);
        bare.node("NonMaxSuppression", &["boxes", "inside"], "chosen", &[]);
        assert_eq!(cut_file(&bare.bytes(&["chosen"]).into()), None);
        let products = |before: usize, behind: usize| {
            let mut net = sample::SampleModel::new("x", 1, &[4, 4]);
            net.weight("w", &[4, 4], 0.0);
            let product = |net: &mut sample::SampleModel, at: usize, from: &str| {
                let made = format!("p{at}");
                net.node("MatMul", &[from, "w"], &made, &[]);
                made
            };
            let last = (0..before).fold("x".to_owned(), |last, at| product(&mut net, at, &last));
            net.node("NonZero", &[&last], "where", &[]);
            net.node("Cast", &["where"], "floats", &[("to", &[1])]);
            net.node("Transpose", &["floats"], "turned", &[("perm", &[1, 0])]);
            net.weight("v", &[2, 4], 0.0);
            net.node("MatMul", &["turned", "v"], "wide", &[]);
            let last = (1..behind).fold("wide".to_owned(), |last, at| product(&mut net, before + at, &last));
            cut_file(&net.bytes(&[&last]).into()).is_some()
        };
        assert_eq!([products(3, 1), products(2, 2), products(2, 3)], [true, true, false]);
    }

    /// A constant of an operator that isn't there, and nodes that nothing leads to.
    #[test]
    fn what_depends_on_no_input_or_leads_to_nothing_is_on_the_side_that_needs_it() {
        let mut net = sample::SampleModel::new("x", 1, &[4, 4]);
        net.weight("w", &[4, 4], 0.0);
        net.node("NonZero", &["w"], "places", &[]);
        net.node("MatMul", &["x", "w"], "y", &[]);
        net.node("Unique", &["y"], "dead", &[]);
        net.node("NonZero", &["y"], "where", &[]);
        net.node("Concat", &["where", "places"], "all", &[("axis", &[1])]);
        let file = net.bytes(&["all", "y"]).into();
        let cut = cut_file(&file).unwrap();
        assert_eq!((cut.crossing().collect::<Vec<_>>(), cut.nodes.1), (vec!["y"], 3), "the unused node is in none");
        assert_eq!(
            (&cut.taken[..], &cut.outputs[..]),
            (&[TensorOrigin::Head(0)][..], &[TensorOrigin::Tail(0), TensorOrigin::Head(0)][..])
        );
    }

    /// What doesn't go together is no tail: the file is refused, as it is where it isn't cut.
    #[test]
    fn a_contradiction_isnt_cut_off() {
        let mut net = sample::SampleModel::new("x", 1, &[4, 4]);
        net.weight("w", &[5, 4], 0.0);
        net.node("MatMul", &["x", "w"], "y", &[]);
        net.node("NonZero", &["y"], "where", &[]);
        let file: Bytes = net.bytes(&["where"]).into();
        let model = OnnxModel::decode(&file, None).unwrap();
        assert!(matches!(cut(&file, &model, &Options::new(1, Precision::F32)), Err(GraphError::BadNode { .. })));
    }

    /// Files come from outside: whatever is in them, the worst is a refusal.
    #[test]
    fn damaged_files_are_refused_or_cut() {
        let mut random = workload::Random::new(1, 0);
        let mut below = |bound: usize| random.below(bound as u32) as usize;
        let whole = detector(["1", "3", "16", "16"], 0.5);
        for _ in 0..1_000 {
            let mut damaged = whole.to_vec();
            for _ in 0..1 + below(3) {
                let at = below(damaged.len());
                damaged[at] = [0, 0x7f, damaged[at] ^ (1 << below(8)), below(256) as u8][below(4)];
            }
            let file = Bytes::from(damaged);
            if let Ok(model) = OnnxModel::decode(&file, None)
                && let Ok(Some(cut)) = cut(&file, &model, &Options::new(1, Precision::F32))
            {
                let _ = cut.tail(&file);
                let head = cut.head(&file).ok().and_then(|head| OnnxModel::decode(&head, None).ok());
                let _ = head.map(|head| compile(&head, &Options::new(1, Precision::F32)));
            }
        }
    }
}
