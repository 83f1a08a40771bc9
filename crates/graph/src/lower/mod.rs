//! From the model's nodes to those of planning: shapes are worked out, operators become general kinds, and what has
//! only constant inputs is computed at once.
//!
//! All sizes are known, so one pass in the order of the nodes is enough.

mod attention;
mod einsum;
mod elementwise;
mod flow;
mod image;
mod linear;
mod loss;
mod microsoft;
mod quantised;
mod recurrent;
mod reduce;
mod resize;
mod sampling;
mod scatter;
mod shape;
mod signal;
mod sweep;

pub(crate) use image::MOST_WINDOW;

use crate::array::{Array, is_float};
use crate::cut::{PlannedPart, PlannedTensor};
use crate::error::GraphError;
use crate::evaluate::evaluate;
use crate::expression::{Binary, Expression, Instruction, Register, Unary, ValueKind};
use crate::ir::{Content, Graph, Op, ValueId, broadcast};
use crate::model::{Dimension, ModelInput, OnnxModel, OnnxNode, Scope};
use crate::options::Options;
use crate::plan::Port;
use base::DataType;
use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Constants that depend on the sizes are computed ahead up to this many elements; larger ones are computed each time,
/// because each plan has its own.
const FOLD_ELEMENTS: usize = 1 << 16;

/// No constants that operators make may have more elements, all of a model's together: half a gigabyte of floats. The
/// matrix of a Fourier transform of 8,192 samples has half as many.
const MOST_CONSTANT_ELEMENTS: usize = 1 << 27;

/// What is computed ahead of constants may have so many elements, all of a model's together, or four times those of its
/// file: casts and transposes of weights do. A few nodes could else make gigabytes out of one number, one of the other.
const MOST_FOLDED_ELEMENTS: usize = 1 << 25;

/// No tensor may have more elements: far above what a device holds, far below where sizes overflow.
const MOST_ELEMENTS: usize = 1 << 36;

/// Steps of recurrent layers and rounds of loops in a model, at most. Each becomes a few kernels of a graph, and a plan
/// is made for every batch size: with so many steps it takes half a second.
const MOST_UNROLLED: usize = 4_096;

/// Works out the graph of a model for fixed sizes.
pub(crate) fn lower(model: &OnnxModel, options: &Options) -> Result<Graph, GraphError> {
    let mut lowering = Lowering::begin(model, options)?;
    lowering.scope(&model.graph)?;
    for (position, name) in model.outputs().iter().enumerate() {
        let value = lowering.named(name)?;
        let dims = lowering.graph.dims(value).to_vec();
        let port = Port { name: name.clone(), dtype: model.output_type(position), dims };
        lowering.graph.outputs.push((port, value));
    }
    Ok(lowering.graph)
}

/// What of a model can be worked out for fixed sizes, where not everything can: nodes that aren't there are left out,
/// and so are those that depend on them. What contradicts itself is an error all the same.
pub(crate) fn lower_part(model: &OnnxModel, options: &Options) -> Result<PlannedPart, GraphError> {
    let mut lowering = Lowering::begin(model, options)?;
    lowering.constants(&model.graph);
    let (mut refused, mut missing) = (None, HashSet::<&str>::new());
    for node in &model.graph.nodes {
        let reads_missing = node.names().any(|name| missing.contains(name));
        let outcome = if reads_missing { Ok(false) } else { lowering.scope_node(node).map(|()| true) };
        match outcome {
            Ok(true) => continue,
            Ok(false) => {}
            Err(error @ GraphError::Unsupported { .. }) => {
                refused.get_or_insert(error);
                lowering.too_large = false;
            }
            Err(error) => return Err(error),
        }
        missing.extend(node.outputs.iter().map(String::as_str));
    }
    let tensor = |(name, value): (&String, &ValueId)| {
        let (dtype, dims) = (lowering.dtype(*value), lowering.dims(*value));
        (name.clone(), PlannedTensor { dtype, dims })
    };
    let given = |name: &&String| !missing.contains(name.as_str());
    let of_nodes = model.graph.nodes.iter().flat_map(|node| &node.outputs).filter(given);
    let tensors = of_nodes.filter_map(|name| lowering.names.get_key_value(name)).map(tensor).collect();
    Ok(PlannedPart { tensors, refused })
}

fn size(options: &Options, input: &str, axis: usize, dim: &Dimension) -> Result<usize, GraphError> {
    match dim {
        Dimension::Fixed(fixed) => Ok(*fixed),
        Dimension::Open(name) => {
            let given = options.sizes.get(&format!("{input}:{axis}")).or_else(|| options.sizes.get(name));
            let given = given.copied().or((axis == 0).then_some(options.batch));
            given.ok_or_else(|| GraphError::OpenDimension {
                input: input.to_owned(),
                position: axis,
                name: name.clone(),
            })
        }
    }
}

pub(crate) struct Lowering {
    pub(crate) graph: Graph,
    names: HashMap<String, ValueId>,
    opset: i64,
    /// The node at hand, for messages.
    operator: String,
    node: String,
    /// Whether all constants among the node's inputs are the same for all sizes.
    fixed: bool,
    /// Whether the node makes something that is larger than any device.
    too_large: bool,
    /// Steps of recurrent layers and rounds of loops so far.
    unrolled: usize,
    /// Elements of constants that operators have made so far.
    made: Cell<usize>,
    /// Elements of constants that were computed ahead of constants so far, and how many there may be. Only those that
    /// are the same for all sizes count, so that what is among the weights is the same for all.
    folded: usize,
    most_folded: usize,
}

/// Whether a tensor of those dimensions could be.
fn is_possible(dims: &[usize]) -> bool {
    let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim.max(1)));
    count.is_some_and(|count| count <= MOST_ELEMENTS)
}

/// How many there are in all results. Each is possible.
fn elements(results: &[(DataType, &[usize])]) -> usize {
    results.iter().map(|(_, dims)| dims.iter().product::<usize>()).sum()
}

/// The inputs of a node: `None` where one is left out.
type NodeInputs<'a> = &'a [Option<ValueId>];

impl Lowering {
    /// Knows the inputs.
    fn begin(model: &OnnxModel, options: &Options) -> Result<Self, GraphError> {
        let mut lowering = Self {
            graph: Graph::default(),
            names: HashMap::new(),
            opset: model.opset,
            operator: String::new(),
            node: String::new(),
            fixed: true,
            too_large: false,
            unrolled: 0,
            made: Cell::new(0),
            folded: 0,
            most_folded: MOST_FOLDED_ELEMENTS
                .max(model.graph.constants.iter().map(|(_, array)| 4 * array.elements()).sum()),
        };
        let open = |input: &ModelInput| matches!(input.dims.first(), Some(Dimension::Open(_)));
        if let Some(input) = model.inputs().first().filter(|_| options.batch != 1 && !model.inputs().iter().any(open)) {
            let fixed = match input.dims.first() {
                Some(&Dimension::Fixed(size)) => size,
                _ => 1,
            };
            return Err(GraphError::FixedBatch { input: input.name.clone(), fixed, asked: options.batch });
        }
        for (position, input) in model.inputs().iter().enumerate() {
            let dims = input.dims.iter().enumerate().map(|(axis, dim)| size(options, &input.name, axis, dim));
            let dims = dims.collect::<Result<Vec<_>, _>>()?;
            if !is_possible(&dims) {
                return Err(GraphError::NotOnnx(format!(
                    "input {:?} of {dims:?} is larger than any device",
                    input.name
                )));
            }
            let value = lowering.graph.add(input.dtype, &dims, Content::Input(position));
            lowering.names.insert(input.name.clone(), value);
            lowering.graph.inputs.push(Port { name: input.name.clone(), dtype: input.dtype, dims });
        }
        Ok(lowering)
    }

    fn constants(&mut self, scope: &Scope) {
        for (name, array) in &scope.constants {
            let value = self.graph.shared_constant(array, true);
            self.names.insert(name.clone(), value);
        }
    }

    fn scope(&mut self, scope: &Scope) -> Result<(), GraphError> {
        self.constants(scope);
        scope.nodes.iter().try_for_each(|node| self.scope_node(node))
    }

    /// A node, whose results are known by their names from then on.
    fn scope_node(&mut self, node: &OnnxNode) -> Result<(), GraphError> {
        self.operator.clone_from(&node.operator);
        self.node.clone_from(&node.name);
        let named = |name: &String| if name.is_empty() { Ok(None) } else { self.named(name).map(Some) };
        let inputs = node.inputs.iter().map(named).collect::<Result<Vec<_>, _>>()?;
        let known = inputs.iter().flatten().filter(|&&input| self.graph.known(input).is_some());
        self.fixed = known.clone().all(|&input| self.graph.is_fixed(input));
        let outputs = self.node(node, &inputs)?;
        if self.too_large {
            return Err(self.bad("its result would be larger than any device"));
        }
        for (name, value) in node.outputs.iter().zip(outputs) {
            self.names.insert(name.clone(), value);
        }
        Ok(())
    }

    fn named(&self, name: &str) -> Result<ValueId, GraphError> {
        self.names.get(name).copied().ok_or_else(|| GraphError::NotOnnx(format!("nothing gives {name:?} a value")))
    }

    fn node(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Vec<ValueId>, GraphError> {
        let groups = [
            Self::elementwise_node,
            Self::shape_node,
            // Volumes, before images would refuse them.
            Self::sweep_node,
            Self::image_node,
            Self::linear_node,
            Self::reduce_node,
            Self::quantised_node,
            Self::scatter_node,
            Self::signal_node,
            Self::sampling_node,
            Self::attention_node,
            Self::loss_node,
            Self::recurrent_node,
            Self::einsum_node,
            Self::flow_node,
            Self::microsoft_node,
        ];
        for group in groups {
            if let Some(outputs) = group(self, node, inputs)? {
                return Ok(outputs);
            }
        }
        Err(self.unsupported(match node.operator.as_str() {
            "NonMaxSuppression" | "Unique" => ", because the size of its result depends on its input",
            _ => "",
        }))
    }

    /// Does something whose constants are the same for all sizes, or aren't, whatever the node's own are.
    fn with_fixed<T>(&mut self, fixed: bool, f: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.fixed, fixed);
        let result = f(self);
        self.fixed = before;
        result
    }

    /// Counts steps that are made one by one, and refuses too many.
    fn unroll(&mut self, steps: usize) -> Result<(), GraphError> {
        self.unrolled = self.unrolled.saturating_add(steps);
        if self.unrolled <= MOST_UNROLLED {
            return Ok(());
        }
        let why = format!(" with {steps} steps: a model may have {MOST_UNROLLED} of recurrent layers and loops in all");
        Err(self.unsupported(&why))
    }

    /// An operator that isn't there, or not in this form: `why` begins with a blank.
    fn unsupported(&self, why: &str) -> GraphError {
        GraphError::Unsupported { operator: self.operator.clone(), node: self.node.clone(), why: why.to_owned() }
    }

    fn bad(&self, reason: impl Into<String>) -> GraphError {
        GraphError::BadNode { operator: self.operator.clone(), node: self.node.clone(), reason: reason.into() }
    }

    fn input(&self, inputs: NodeInputs<'_>, position: usize) -> Result<ValueId, GraphError> {
        inputs.get(position).copied().flatten().ok_or_else(|| self.bad(format!("input {position} is missing")))
    }

    fn optional(&self, inputs: NodeInputs<'_>, position: usize) -> Option<ValueId> {
        inputs.get(position).copied().flatten()
    }

    /// An input that must be known, because shapes depend on it.
    fn constant(&self, inputs: NodeInputs<'_>, position: usize, what: &str) -> Result<Arc<Array>, GraphError> {
        let value = self.input(inputs, position)?;
        let known = self.graph.known(value).cloned();
        known.ok_or_else(|| self.unsupported(&format!(" with a computed {what}")))
    }

    /// The integers of an input that must be known, if it is there.
    fn integers(&self, inputs: NodeInputs<'_>, position: usize, what: &str) -> Result<Option<Vec<i64>>, GraphError> {
        match self.optional(inputs, position) {
            Some(_) => Ok(Some(self.constant(inputs, position, what)?.to_ints().into_owned())),
            None => Ok(None),
        }
    }

    fn dims(&self, value: ValueId) -> Vec<usize> {
        self.graph.dims(value).to_vec()
    }

    fn dtype(&self, value: ValueId) -> DataType {
        self.graph.values[value].dtype
    }

    /// A dimension by its number, which counts from the end where it is negative.
    fn axis(&self, axis: i64, rank: usize) -> Result<usize, GraphError> {
        let counted = if axis < 0 { axis + rank as i64 } else { axis };
        let inside = usize::try_from(counted).ok().filter(|&axis| axis < rank);
        inside.ok_or_else(|| self.bad(format!("dimension {axis} is not one of {rank}")))
    }

    /// Counts a constant that is about to be made; refuses more elements than any model needs.
    fn check_constant(&self, dims: &[usize]) -> Result<(), GraphError> {
        let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
        let made = count.and_then(|count| count.checked_add(self.made.get()));
        match made.filter(|&made| made <= MOST_CONSTANT_ELEMENTS) {
            Some(made) => {
                self.made.set(made);
                Ok(())
            }
            None => Err(self.bad(format!("with a constant of {dims:?} it has more of them than models have"))),
        }
    }

    /// A constant of the node at hand.
    fn add_constant(&mut self, array: Array) -> ValueId {
        let fixed = self.fixed;
        self.graph.constant(array, fixed)
    }

    /// Adds a node with one result, or its value where everything is known.
    fn emit(&mut self, op: Op, inputs: &[ValueId], dtype: DataType, dims: &[usize]) -> ValueId {
        self.emit_all(op, inputs, &[(dtype, dims)])[0]
    }

    fn emit_all(&mut self, op: Op, inputs: &[ValueId], results: &[(DataType, &[usize])]) -> Vec<ValueId> {
        if !results.iter().all(|(_, dims)| is_possible(dims)) {
            // Refused when the node is done; until then nothing is computed with it.
            self.too_large = true;
            return self.ones(results);
        }
        let known: Option<Vec<_>> = inputs.iter().map(|&input| self.graph.known(input).map(|array| &**array)).collect();
        let fixed = self.fixed && inputs.iter().all(|&input| self.graph.is_fixed(input));
        if let Some(known) = known
            && self.folds(inputs, results, fixed)
        {
            let count = elements(results);
            if fixed {
                self.folded += count;
            } else if count > FOLD_ELEMENTS && self.check_constant(&[count]).is_err() {
                self.too_large = true;
                return self.ones(results);
            }
            let arrays = evaluate(&op, &known, results);
            return arrays.into_iter().map(|array| self.graph.constant(array, fixed)).collect();
        }
        self.emit_node(op, inputs, results)
    }

    /// Values in the place of those that are too large.
    fn ones(&mut self, results: &[(DataType, &[usize])]) -> Vec<ValueId> {
        let one =
            |(dtype, dims): &(DataType, &[usize])| self.graph.add(*dtype, &vec![1; dims.len()], Content::Computed);
        results.iter().map(one).collect()
    }

    /// Whether a node with known inputs is computed ahead. Where its result depends on the sizes, that must not be
    /// decided by them: what is among the weights has to be the same for all.
    fn folds(&self, inputs: &[ValueId], results: &[(DataType, &[usize])], fixed: bool) -> bool {
        let count = elements(results);
        if fixed {
            // However large, unless it only repeats itself.
            let from: usize = inputs.iter().map(|&input| self.graph.dims(input).iter().product::<usize>()).sum();
            let is_small = count <= FOLD_ELEMENTS;
            return count <= 4 * from.max(FOLD_ELEMENTS) && (is_small || self.folded + count <= self.most_folded);
        }
        let weights =
            |float: bool| inputs.iter().any(|&input| self.is_weight(input) && is_float(self.dtype(input)) == float);
        // Parts of weights (positions up to the length) stay where they are; parts of masks and tables of positions are
        // constants of their own.
        !weights(true) && count <= if weights(false) { MOST_CONSTANT_ELEMENTS } else { FOLD_ELEMENTS }
    }

    /// A constant that would be among the weights.
    fn is_weight(&self, value: ValueId) -> bool {
        self.graph.is_fixed(value) && self.graph.dims(value).iter().product::<usize>() > 1
    }

    /// The result of an operator that changes nothing for these sizes, but might for others.
    fn same(&mut self, value: ValueId) -> ValueId {
        match self.graph.known(value).cloned() {
            // As parts of it wouldn't be for other sizes, it isn't known from here on: else what is computed of all of
            // it would be among the weights.
            Some(array) if !self.fixed && self.is_weight(value) && is_float(array.dtype) => {
                let dims = self.dims(value);
                self.emit_node(Op::Reshape, &[value], &[(self.dtype(value), &dims)])[0]
            }
            Some(array) if !self.fixed && self.is_weight(value) => self.graph.shared_constant(&array, false),
            _ => value,
        }
    }

    /// Adds a node even if everything is known.
    fn emit_node(&mut self, op: Op, inputs: &[ValueId], results: &[(DataType, &[usize])]) -> Vec<ValueId> {
        let outputs: Vec<_> =
            results.iter().map(|(dtype, dims)| self.graph.add(*dtype, dims, Content::Computed)).collect();
        let name = self.node.clone();
        self.graph.nodes.push(crate::ir::GraphNode { name, op, inputs: inputs.to_vec(), outputs: outputs.clone() });
        outputs
    }

    /// One expression over broadcast inputs. Single constants become part of it.
    fn apply(
        &mut self,
        inputs: &[ValueId],
        dtype: DataType,
        build: impl FnOnce(&mut Expression, &[Register]) -> Register,
    ) -> Result<ValueId, GraphError> {
        let mut dims = Vec::new();
        for &input in inputs {
            let own = self.graph.dims(input);
            dims = broadcast(&dims, own).ok_or_else(|| self.bad(format!("{dims:?} and {own:?} don't go together")))?;
        }
        let (mut expression, mut used, mut registers) = (Expression::default(), Vec::new(), Vec::new());
        for &input in inputs {
            let kind = kind(self.dtype(input));
            let scalar =
                self.graph.known(input).and_then(|array| array.scalar().map(|value| (value, array.to_ints()[0])));
            let instruction = match scalar {
                Some((value, int)) => immediate(kind, value, int),
                None => {
                    let known = used.iter().position(|&other| other == input);
                    Instruction::Input(known.unwrap_or_else(|| {
                        used.push(input);
                        used.len() - 1
                    }))
                }
            };
            registers.push(expression.push(instruction, kind));
        }
        let result = build(&mut expression, &registers);
        if !expression.is_of_one_kind() {
            let types: Vec<_> = inputs.iter().map(|&input| self.dtype(input).to_string()).collect();
            return Err(self.bad(format!("its inputs of types {} don't go together", types.join(", "))));
        }
        let result = wrapped(&mut expression, result, dtype);
        if result + 1 != expression.instructions.len() {
            // The result must be the last; a selection of equals is the identity.
            let kind = expression.kinds[result];
            expression.push(Instruction::Cast(kind, result), kind);
        }
        if used.is_empty() && !inputs.is_empty() {
            // Everything is known: fold, whatever the size of what it is broadcast to.
            let fixed = self.fixed && inputs.iter().all(|&input| self.graph.is_fixed(input));
            let array = evaluate(&Op::Elementwise(expression), &[], &[(dtype, &dims)]).remove(0);
            return Ok(self.graph.constant(array, fixed));
        }
        Ok(self.emit(Op::Elementwise(expression), &used, dtype, &dims))
    }

    /// Refuses functions of what they aren't functions of.
    fn check_kind(&self, function: Unary, of: ValueId) -> Result<(), GraphError> {
        let of_kind = kind(self.dtype(of));
        let fits = match function {
            Unary::Not => of_kind == ValueKind::Bool,
            Unary::Negate | Unary::Absolute | Unary::Sign => of_kind != ValueKind::Bool,
            _ => of_kind == ValueKind::Float,
        };
        if fits { Ok(()) } else { Err(self.unsupported(&format!(" for {}", self.dtype(of)))) }
    }

    /// Refuses operators that are only there for floats.
    fn check_float(&self, value: ValueId) -> Result<(), GraphError> {
        if is_float(self.dtype(value)) { Ok(()) } else { Err(self.unsupported(&format!(" for {}", self.dtype(value)))) }
    }

    fn unary(&mut self, function: Unary, of: ValueId) -> Result<ValueId, GraphError> {
        self.check_kind(function, of)?;
        let dtype = self.dtype(of);
        let kind = kind(dtype);
        self.apply(&[of], dtype, |expression, of| expression.push(Instruction::Unary(function, of[0]), kind))
    }

    fn binary(&mut self, function: Binary, a: ValueId, b: ValueId) -> Result<ValueId, GraphError> {
        let dtype = self.dtype(a);
        if self.dtype(b) != dtype {
            return Err(self.bad(format!("its inputs are {dtype} and {}", self.dtype(b))));
        }
        let kind = kind(dtype);
        self.apply(&[a, b], dtype, |expression, of| expression.push(Instruction::Binary(function, of[0], of[1]), kind))
    }

    fn reshape(&mut self, value: ValueId, dims: &[usize]) -> ValueId {
        if self.graph.dims(value) == dims {
            return self.same(value);
        }
        let dtype = self.dtype(value);
        self.emit(Op::Reshape, &[value], dtype, dims)
    }

    fn transpose(&mut self, value: ValueId, order: &[usize]) -> ValueId {
        if order.iter().enumerate().all(|(position, &axis)| position == axis) {
            return value;
        }
        let from = self.graph.dims(value);
        let dims: Vec<_> = order.iter().map(|&axis| from[axis]).collect();
        let dtype = self.dtype(value);
        self.emit(Op::Transpose(order.to_vec()), &[value], dtype, &dims)
    }

    fn slice(&mut self, value: ValueId, starts: &[usize], steps: &[isize], dims: &[usize]) -> ValueId {
        if self.graph.dims(value) == dims && steps.iter().all(|&step| step == 1) {
            return self.same(value);
        }
        let dtype = self.dtype(value);
        self.emit(Op::Slice { starts: starts.to_vec(), steps: steps.to_vec() }, &[value], dtype, dims)
    }

    /// A part of one dimension.
    fn part(&mut self, value: ValueId, axis: usize, start: usize, length: usize) -> ValueId {
        let mut dims = self.dims(value);
        let mut starts = vec![0; dims.len()];
        (starts[axis], dims[axis]) = (start, length);
        self.slice(value, &starts, &vec![1; dims.len()], &dims)
    }

    fn expand(&mut self, value: ValueId, dims: &[usize]) -> ValueId {
        if self.graph.dims(value) == dims {
            return self.same(value);
        }
        let dtype = self.dtype(value);
        self.emit(Op::Expand, &[value], dtype, dims)
    }

    fn scalar(&mut self, dtype: DataType, value: f64) -> ValueId {
        self.graph.constant(Array::filled(dtype, &[], value), true)
    }
}

/// What registers hold of values of that type.
pub(crate) fn kind(dtype: DataType) -> ValueKind {
    match dtype {
        DataType::Bool => ValueKind::Bool,
        dtype if is_float(dtype) => ValueKind::Float,
        _ => ValueKind::Int,
    }
}

fn immediate(kind: ValueKind, value: f64, int: i64) -> Instruction {
    match kind {
        ValueKind::Float => Instruction::Float(value as f32),
        ValueKind::Int => Instruction::Int(int),
        ValueKind::Bool => Instruction::Bool(int != 0),
    }
}

/// Integers of few bits overflow as they would in memory.
fn wrapped(expression: &mut Expression, result: Register, dtype: DataType) -> Register {
    let (bits, signed) = match dtype {
        DataType::Int8 => (8, true),
        DataType::Int16 => (16, true),
        DataType::Int32 => (32, true),
        DataType::Uint8 => (8, false),
        DataType::Uint16 => (16, false),
        DataType::Uint32 => (32, false),
        _ => return result,
    };
    match expression.instructions[result] {
        // What can't have left the range.
        Instruction::Select(..) | Instruction::Input(_) | Instruction::Int(_) => result,
        Instruction::Binary(Binary::Minimum | Binary::Maximum | Binary::Modulo | Binary::Remainder, ..) => result,
        _ => expression.push(Instruction::Wrap { bits, signed, of: result }, ValueKind::Int),
    }
}
