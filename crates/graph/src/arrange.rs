//! Gives every value its place and strides, and makes the steps.
//!
//! Transposes, slices, expansions and most reshapes are only other strides on the same memory. A concatenation is a
//! buffer of which its parts are slices, written there by whoever makes them. Images lie with their channels closest
//! together.

mod emit;
mod layout;

use crate::array::{Array, is_float};
use crate::error::GraphError;
use crate::ir::{Content, Graph, GraphNode, Op, ValueId};
use crate::memory::{self, Buffer};
use crate::options::{ImageLayout, Options};
use crate::plan::{Copy, Plan, Precision, Step, Tensor, TensorPlace, row_major, strides_in_order};
use crate::weights::{ALIGNMENT, PlanWeights, element_bytes};
use base::DataType;
use std::collections::HashMap;
use std::sync::Arc;

/// Makes the plan of a graph.
pub(crate) fn arrange(graph: &Graph, options: &Options) -> Result<Plan, GraphError> {
    let mut arrangement = Arrangement {
        graph,
        options,
        layouts: layout::layouts(graph, options),
        stored: vec![None; graph.values.len()],
        rearranged: HashMap::new(),
        buffers: Vec::new(),
        next: 0,
        steps: Vec::new(),
        names: Vec::new(),
        name: String::new(),
        weights: PlanWeights::default(),
        constants: Vec::new(),
        placed_constants: Vec::new(),
    };
    for node in &graph.nodes {
        arrangement.name.clone_from(&node.name);
        arrangement.node(node)?;
    }
    arrangement.outputs();
    Ok(arrangement.finish())
}

struct Arrangement<'a> {
    graph: &'a Graph,
    options: &'a Options,
    layouts: layout::Layouts,
    /// Where each value is, as far as it is known.
    stored: Vec<Option<Tensor>>,
    /// Values that were copied into another order for those who need it.
    rearranged: HashMap<(ValueId, Vec<usize>), Tensor>,
    /// Until spans are known, each buffer has addresses of its own: where it begins, and its size.
    buffers: Vec<(usize, usize)>,
    next: usize,
    steps: Vec<Step>,
    names: Vec<String>,
    name: String,
    weights: PlanWeights,
    constants: Vec<u8>,
    placed_constants: Vec<PlacedConstant>,
}

/// Where one of the plan's own constants lies.
struct PlacedConstant {
    array: Arc<Array>,
    dtype: DataType,
    order: Vec<usize>,
    offset: usize,
}

/// What values of a type are kept in.
pub(crate) fn kept_in(dtype: DataType, precision: Precision) -> DataType {
    match precision {
        Precision::F16 if is_float(dtype) => DataType::Fp16,
        Precision::F32 | Precision::Tf32 if is_float(dtype) => DataType::Fp32,
        _ => dtype,
    }
}

impl Arrangement<'_> {
    fn kept(&self, value: ValueId) -> DataType {
        kept_in(self.graph.values[value].dtype, self.options.precision)
    }

    fn push(&mut self, step: Step) {
        if step.writes().iter().all(|tensor| tensor.elements() == 0) {
            return;
        }
        self.steps.push(step);
        self.names.push(self.name.clone());
    }

    /// A new tensor in the workspace.
    fn fresh(&mut self, dtype: DataType, dims: &[usize], order: &[usize]) -> Tensor {
        let bytes = dims.iter().product::<usize>() * element_bytes(dtype);
        let offset = self.next;
        self.buffers.push((offset, bytes));
        self.next = (offset + bytes.max(1)).next_multiple_of(ALIGNMENT);
        Tensor {
            dtype,
            dims: dims.to_vec(),
            strides: strides_in_order(dims, order),
            place: TensorPlace::Workspace,
            offset,
        }
    }

    /// The tensor that a step is to write a value to.
    fn result(&mut self, value: ValueId) -> Tensor {
        if let Some(tensor) = &self.stored[value] {
            return tensor.clone();
        }
        let dims = self.graph.dims(value).to_vec();
        let tensor = if let Some(slot) = self.layouts.slots[value] {
            let whole = self.result(slot.of);
            let offset = slot.start * whole.strides[slot.axis].unsigned_abs() * whole.element_bytes();
            Tensor { dims, offset: whole.offset + offset, ..whole }
        } else if let Some(output) = self.layouts.direct[value] {
            let dtype = self.graph.outputs[output].0.dtype;
            let strides = row_major(&dims);
            Tensor { dtype, dims, strides, place: TensorPlace::Output(output), offset: 0 }
        } else {
            let order = self.layouts.orders[value].clone();
            self.fresh(self.kept(value), &dims, &order)
        };
        self.stored[value] = Some(tensor.clone());
        tensor
    }

    /// Where a value is, in whatever type and order.
    fn tensor(&mut self, value: ValueId) -> Tensor {
        if let Some(tensor) = &self.stored[value] {
            return tensor.clone();
        }
        let graph = self.graph;
        let of = &graph.values[value];
        let tensor = match &of.content {
            Content::Input(position) => {
                let (dims, strides) = (of.dims.clone(), row_major(&of.dims));
                Tensor { dtype: of.dtype, dims, strides, place: TensorPlace::Input(*position), offset: 0 }
            }
            Content::Constant { .. } => {
                let order: Vec<_> = (0..of.dims.len()).collect();
                self.constant(value, &order)
            }
            Content::Computed => unreachable!("nodes are in an order in which they can be computed"),
        };
        self.stored[value] = Some(tensor.clone());
        tensor
    }

    /// A constant with its dimensions in that order.
    fn constant(&mut self, value: ValueId, order: &[usize]) -> Tensor {
        let (dtype, dims) = (self.kept(value), self.graph.dims(value).to_vec());
        let Content::Constant { array, fixed } = &self.graph.values[value].content else { unreachable!("a constant") };
        let strides = strides_in_order(&dims, order);
        if *fixed {
            let offset = self.weights.place(array, dtype, order);
            return Tensor { dtype, dims, strides, place: TensorPlace::Weights, offset };
        }
        let place = TensorPlace::Constants;
        let same = |placed: &&PlacedConstant| {
            Arc::ptr_eq(&placed.array, array) && placed.dtype == dtype && placed.order.as_slice() == order
        };
        if let Some(placed) = self.placed_constants.iter().find(same) {
            return Tensor { dtype, dims, strides, place, offset: placed.offset };
        }
        let offset = self.constants.len();
        let bytes = (array.elements() * element_bytes(dtype)).next_multiple_of(ALIGNMENT);
        self.constants.resize(offset + bytes, 0);
        array.store(dtype, order, &mut self.constants[offset..]);
        self.placed_constants.push(PlacedConstant { array: array.clone(), dtype, order: order.to_vec(), offset });
        Tensor { dtype, dims, strides, place, offset }
    }

    /// Where a value is, in the type that it is kept in: an input of the model is converted.
    fn operand(&mut self, value: ValueId) -> Tensor {
        let tensor = self.tensor(value);
        if tensor.dtype == self.kept(value) {
            return tensor;
        }
        let order = self.layouts.orders[value].clone();
        self.copied(value, &order)
    }

    /// A copy in another order, made once.
    fn copied(&mut self, value: ValueId, order: &[usize]) -> Tensor {
        if let Some(tensor) = self.rearranged.get(&(value, order.to_vec())) {
            return tensor.clone();
        }
        let input = self.tensor(value);
        let output = self.copy_of(input, self.kept(value), order);
        self.rearranged.insert((value, order.to_vec()), output.clone());
        output
    }

    fn copy_of(&mut self, input: Tensor, dtype: DataType, order: &[usize]) -> Tensor {
        let output = self.fresh(dtype, &input.dims, order);
        self.push(Step::Copy(Copy { input, output: output.clone() }));
        output
    }

    /// The weights of a convolution. Where every channel has a kernel of its own, channels are closest together, as
    /// they are in the image.
    fn filter(&mut self, value: ValueId) -> Tensor {
        let constant = self.graph.known(value).is_some() && self.stored[value].is_none();
        if constant && self.options.layout == ImageLayout::ChannelsLast && self.graph.dims(value)[1] == 1 {
            return self.constant(value, &[1, 2, 3, 0]);
        }
        self.image(value)
    }

    /// An image as convolutions and pools take it: the dimension that is to be closest together is.
    fn image(&mut self, value: ValueId) -> Tensor {
        let order = layout::image_order(self.options);
        if self.graph.known(value).is_some() && self.stored[value].is_none() {
            return self.constant(value, &order);
        }
        let mut tensor = self.tensor(value);
        if self.options.convert_in_steps && matches!(tensor.place, TensorPlace::Input(_)) && is_float(tensor.dtype) {
            return tensor;
        }
        let closest = if self.options.layout == ImageLayout::ChannelsLast { 1 } else { 3 };
        normalise_ones(&mut tensor, &order);
        let fits = tensor.strides[closest] == 1 && tensor.strides.iter().all(|&stride| stride > 0);
        if fits && tensor.dtype == self.kept(value) { tensor } else { self.copied(value, &order) }
    }

    /// A tensor whose last dimension is closest together.
    fn rows(&mut self, value: ValueId) -> Tensor {
        let tensor = self.operand(value);
        let last = tensor.dims.len() - 1;
        if tensor.strides[last] == 1 || tensor.dims[last] == 1 {
            return tensor;
        }
        let order: Vec<_> = (0..tensor.dims.len()).collect();
        self.copied(value, &order)
    }

    /// Copies what hasn't been written to its output directly.
    fn outputs(&mut self) {
        for (position, (port, value)) in self.graph.outputs.iter().enumerate() {
            let input = self.tensor(*value);
            if input.place == TensorPlace::Output(position) {
                continue;
            }
            self.name.clone_from(&port.name);
            let (dims, strides) = (port.dims.clone(), row_major(&port.dims));
            let output = Tensor { dtype: port.dtype, dims, strides, place: TensorPlace::Output(position), offset: 0 };
            self.push(Step::Copy(Copy { input, output }));
        }
    }

    /// Puts the buffers where the spans of their use allow it.
    fn finish(mut self) -> Plan {
        let mut spans = vec![None; self.buffers.len()];
        let starts: Vec<_> = self.buffers.iter().map(|&(start, _)| start).collect();
        let buffer_of = |tensor: &Tensor| starts.partition_point(|&start| start <= tensor.offset) - 1;
        for (position, step) in self.steps.iter().enumerate() {
            for tensor in step.reads().into_iter().chain(step.writes()) {
                if tensor.place == TensorPlace::Workspace {
                    let span = spans[buffer_of(tensor)].get_or_insert((position, position));
                    span.1 = position;
                }
            }
        }
        let sized = |(&(_, bytes), span): (&(usize, usize), &Option<(usize, usize)>)| {
            // What no step touches needs no place.
            let (first, last) = span.unwrap_or((0, 0));
            Buffer { bytes: if span.is_some() { bytes } else { 0 }, first, last }
        };
        let buffers: Vec<_> = self.buffers.iter().zip(&spans).map(sized).collect();
        let (offsets, workspace_bytes) = memory::place(&buffers);
        for tensor in self.steps.iter_mut().flat_map(Step::tensors_mut) {
            if tensor.place == TensorPlace::Workspace {
                let buffer = buffer_of(tensor);
                tensor.offset = tensor.offset - starts[buffer] + offsets[buffer];
            }
        }
        Plan {
            precision: self.options.precision,
            exact_products: self.options.exact_products,
            inputs: self.graph.inputs.clone(),
            outputs: self.graph.outputs.iter().map(|(port, _)| port.clone()).collect(),
            steps: self.steps,
            names: self.names,
            weights: self.weights,
            constants: self.constants,
            workspace_bytes,
        }
    }

    /// A node that only changes strides.
    fn view(&mut self, node: &GraphNode) {
        let (input, output) = (node.inputs[0], node.outputs[0]);
        let from = self.tensor(input);
        let dims = self.graph.dims(output).to_vec();
        let tensor = match &node.op {
            Op::Transpose(order) => {
                Tensor { strides: order.iter().map(|&axis| from.strides[axis]).collect(), dims, ..from }
            }
            Op::Slice { starts, steps } => {
                let strides = from.strides.iter().zip(steps).map(|(stride, step)| stride * step).collect();
                let moved: isize =
                    starts.iter().zip(&from.strides).map(|(&start, &stride)| start as isize * stride).sum();
                let offset = from.offset.wrapping_add_signed(moved * from.element_bytes() as isize);
                Tensor { strides, dims, offset, ..from }
            }
            Op::Expand => {
                Tensor { strides: crate::ir::broadcast_strides(&from.dims, &from.strides, &dims), dims, ..from }
            }
            Op::Reshape => match layout::reshaped(&from.dims, &from.strides, &dims) {
                Some(strides) => Tensor { strides, dims, ..from },
                None => {
                    let order: Vec<_> = (0..from.dims.len()).collect();
                    let copy = self.copied(input, &order);
                    Tensor { strides: row_major(&dims), dims, ..copy }
                }
            },
            _ => unreachable!("only what moves elements"),
        };
        self.stored[output] = Some(tensor);
    }
}

/// Gives dimensions of size 1, whose strides mean nothing, those that they would have in a dense tensor of that order.
fn normalise_ones(tensor: &mut Tensor, order: &[usize]) {
    let mut next = 1;
    for &axis in order.iter().rev() {
        if tensor.dims[axis] == 1 {
            tensor.strides[axis] = next;
        }
        next = tensor.strides[axis].max(1) * tensor.dims[axis] as isize;
    }
}
