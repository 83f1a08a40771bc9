//! In which order the dimensions of each value lie, and which values are slices of a concatenation.

use crate::ir::{Graph, Op, Uses, ValueId};
use crate::options::{ImageLayout, Options};
use crate::plan::strides_in_order;

/// A part of a concatenated value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ConcatPart {
    pub(super) of: ValueId,
    pub(super) axis: usize,
    pub(super) start: usize,
}

/// What is decided before there are any steps.
pub(super) struct Layouts {
    /// For each value its dimensions, the last closest together.
    pub(super) orders: Vec<Vec<usize>>,
    /// Values that are written into a part of another.
    pub(super) slots: Vec<Option<ConcatPart>>,
    /// Values that are written to that output of the model.
    pub(super) direct: Vec<Option<usize>>,
}

/// The order of images.
pub(super) fn image_order(options: &Options) -> Vec<usize> {
    match options.layout {
        ImageLayout::ChannelsLast => vec![0, 2, 3, 1],
        ImageLayout::ChannelsFirst => vec![0, 1, 2, 3],
    }
}

pub(super) fn layouts(graph: &Graph, options: &Options) -> Layouts {
    let mut layouts = Layouts {
        orders: orders(graph, options),
        slots: vec![None; graph.values.len()],
        direct: vec![None; graph.values.len()],
    };
    write_outputs_directly(graph, options, &mut layouts);
    if options.concat_in_place {
        fill_slots(graph, &mut layouts);
    }
    layouts
}

/// Whether a node makes no memory of its own.
pub(super) fn is_view(op: &Op) -> bool {
    matches!(op, Op::Transpose(_) | Op::Reshape | Op::Slice { .. } | Op::Expand)
}

/// Images that a convolution will read, through element-wise steps and concatenations.
fn wanted_as_image(graph: &Graph) -> Vec<bool> {
    let mut wanted = vec![false; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        let image = |value: ValueId| graph.dims(value).len() == 4;
        match &node.op {
            Op::Conv { .. } | Op::IntegerConv { .. } => {
                node.inputs.iter().filter(|&&input| image(input)).for_each(|&input| wanted[input] = true);
            }
            Op::Pool { .. } | Op::Resize { .. } => wanted[node.inputs[0]] = true,
            Op::Elementwise(_) | Op::Concat { .. } | Op::Pad { .. } | Op::Lrn { .. } | Op::Slice { .. }
                if wanted[node.outputs[0]] =>
            {
                node.inputs.iter().filter(|&&input| image(input)).for_each(|&input| wanted[input] = true);
            }
            _ => {}
        }
    }
    wanted
}

fn orders(graph: &Graph, options: &Options) -> Vec<Vec<usize>> {
    let mut orders: Vec<Vec<usize>> = graph.values.iter().map(|value| (0..value.dims.len()).collect()).collect();
    let wanted = wanted_as_image(graph);
    let uses = graph.uses();
    // An input of the model that is converted anyway is converted to what is wanted of it.
    for (value, order) in orders.iter_mut().enumerate() {
        if wanted[value] && matches!(graph.values[value].content, crate::ir::Content::Input(_)) {
            *order = image_order(options);
        }
    }
    for node in &graph.nodes {
        let output = node.outputs[0];
        let dims = graph.dims(output);
        let first = node.inputs.first().copied();
        let inherited = |orders: &[Vec<usize>]| {
            let like = |input: &&ValueId| {
                let own = graph.dims(**input);
                own.len() == dims.len()
                    && graph.known(**input).is_none()
                    && (own == dims || !matches!(node.op, Op::Elementwise(_)))
            };
            node.inputs.iter().find(like).map(|&input| orders[input].clone())
        };
        let order = match &node.op {
            Op::Conv { .. } | Op::IntegerConv { .. } | Op::Pool { .. } | Op::Resize { .. } => {
                Some(image_order(options))
            }
            Op::Gemm { .. } | Op::Attention { .. } => transposed_by_its_user(graph, &uses, output),
            Op::Elementwise(_) | Op::Concat { .. } | Op::Pad { .. } | Op::Lrn { .. } if wanted[output] => {
                Some(image_order(options))
            }
            Op::Elementwise(_)
            | Op::Concat { .. }
            | Op::Pad { .. }
            | Op::Lrn { .. }
            | Op::Softmax { .. }
            | Op::LayerNorm { .. }
            | Op::Reduce { .. }
            | Op::TopK { .. } => inherited(&orders),
            Op::Gather { .. } | Op::Scatter { .. } => None,
            Op::Transpose(_) | Op::Reshape | Op::Slice { .. } | Op::Expand => {
                first.and_then(|input| viewed(graph, &node.op, &orders[input], input, output))
            }
        };
        if let Some(order) = order {
            for &output in &node.outputs {
                orders[output].clone_from(&order);
            }
        }
    }
    orders
}

/// The order in which the only user of a product will read it, if rows stay rows.
fn transposed_by_its_user(graph: &Graph, uses: &Uses, value: ValueId) -> Option<Vec<usize>> {
    let [user] = uses[value] else { return None };
    match &graph.nodes.get(user)?.op {
        Op::Transpose(order) if order.last() == Some(&(order.len() - 1)) => Some(order.clone()),
        _ => None,
    }
}

/// The order of a view.
fn viewed(graph: &Graph, op: &Op, order: &[usize], input: ValueId, output: ValueId) -> Option<Vec<usize>> {
    let (from, to) = (graph.dims(input), graph.dims(output));
    match op {
        Op::Transpose(by) => {
            Some(order.iter().map(|axis| by.iter().position(|other| other == axis).expect("an order")).collect())
        }
        Op::Slice { .. } => Some(order.to_vec()),
        Op::Expand => (from.len() == to.len()).then(|| order.to_vec()),
        Op::Reshape => {
            let strides = reshaped(from, &strides_in_order(from, order), to)?;
            let mut axes: Vec<_> = (0..to.len()).collect();
            axes.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
            Some(axes)
        }
        _ => None,
    }
}

/// Strides with which the same elements are read with other dimensions, if there are any.
pub(super) fn reshaped(from: &[usize], strides: &[isize], to: &[usize]) -> Option<Vec<isize>> {
    if from.contains(&0) {
        return Some(crate::plan::row_major(to));
    }
    // Runs of dimensions that are one walk through memory: their size, and the stride of the last.
    let mut runs: Vec<(usize, isize)> = Vec::new();
    for (&dim, &stride) in from.iter().zip(strides) {
        if dim == 1 {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.1 == stride * dim as isize => *run = (run.0 * dim, stride),
            _ => runs.push((dim, stride)),
        }
    }
    let mut result = vec![0; to.len()];
    let mut runs = runs.into_iter().rev();
    let (mut left, mut stride) = (1, 1);
    for axis in (0..to.len()).rev() {
        if to[axis] == 1 {
            result[axis] = stride;
            continue;
        }
        if left == 1 {
            (left, stride) = runs.next()?;
        }
        if !left.is_multiple_of(to[axis]) {
            return None;
        }
        result[axis] = stride;
        left /= to[axis];
        stride *= to[axis] as isize;
    }
    Some(result)
}

/// Results that can be computed in the memory of an output.
fn write_outputs_directly(graph: &Graph, options: &Options, layouts: &mut Layouts) {
    let (uses, makers) = (graph.uses(), graph.makers());
    for (position, (port, value)) in graph.outputs.iter().enumerate() {
        let mut root = *value;
        while let Some(node) = makers[root].map(|maker| &graph.nodes[maker])
            && node.op == Op::Reshape
            && uses[node.inputs[0]].len() == 1
        {
            root = node.inputs[0];
        }
        let Some(maker) = makers[root].map(|maker| &graph.nodes[maker]) else { continue };
        let dense = strides_in_order(graph.dims(root), &layouts.orders[root]);
        let row_major = reshaped(graph.dims(root), &dense, &[graph.dims(root).iter().product()]).is_some();
        let kept = super::kept_in(graph.values[root].dtype, options.precision);
        // These convert when they store.
        let converts = match maker.op {
            Op::Elementwise(_) | Op::Softmax { .. } | Op::LayerNorm { .. } | Op::Reduce { .. } => true,
            Op::Gemm { residual: false, .. } | Op::Conv { residual: false, .. } => options.convert_in_steps,
            _ => false,
        };
        let typed = kept == port.dtype || (converts && uses[root].len() == 1);
        if !is_view(&maker.op) && row_major && typed && layouts.direct[root].is_none() {
            layouts.direct[root] = Some(position);
        }
    }
}

/// Lets the parts of concatenations be written where they belong.
///
/// From the last concatenation to the first, because in DenseNet each is the beginning of the next: when the last has
/// its parts, the others are found to lie in it already.
fn fill_slots(graph: &Graph, layouts: &mut Layouts) {
    let makers = graph.makers();
    for node in graph.nodes.iter().rev() {
        let Op::Concat { axis } = node.op else { continue };
        let output = node.outputs[0];
        if layouts.slots[output].is_none()
            && layouts.direct[output].is_none()
            && let Some(slot) = already_together(graph, &node.inputs, axis, layouts)
            && layouts.orders[slot.of] == layouts.orders[output]
        {
            layouts.slots[output] = Some(slot);
            continue;
        }
        let (mut start, mut rest) = (0, &node.inputs[..]);
        while !rest.is_empty() {
            let (part, count) = next_part(graph, &makers, rest, axis);
            let own = makers[part].is_some_and(|maker| !is_view(&graph.nodes[maker].op));
            let free = layouts.slots[part].is_none() && layouts.direct[part].is_none() && part != output;
            if own && free && layouts.orders[part] == layouts.orders[output] {
                layouts.slots[part] = Some(ConcatPart { of: output, axis, start });
            }
            start += graph.dims(part)[axis];
            rest = &rest[count..];
        }
    }
}

/// The first part, and how many of the values it is: slices of one value that are all of it, one behind another (YOLO
/// splits one in two, and keeps both), are that value.
fn next_part(graph: &Graph, makers: &[Option<usize>], values: &[ValueId], axis: usize) -> (ValueId, usize) {
    let sliced = |value: ValueId| {
        let node = &graph.nodes[makers[value]?];
        let Op::Slice { starts, steps } = &node.op else { return None };
        let of = node.inputs[0];
        let others = (0..starts.len()).filter(|&other| other != axis);
        let mut whole = others.map(|other| starts[other] == 0 && graph.dims(value)[other] == graph.dims(of)[other]);
        (whole.all(|whole| whole) && steps.iter().all(|&step| step == 1)).then(|| (of, starts[axis]))
    };
    let Some((of, _)) = sliced(values[0]) else { return (values[0], 1) };
    let mut end = 0;
    for (position, &value) in values.iter().enumerate() {
        if sliced(value) != Some((of, end)) {
            break;
        }
        end += graph.dims(value)[axis];
        if end == graph.dims(of)[axis] {
            return (of, position + 1);
        }
    }
    (values[0], 1)
}

/// The place where all parts lie side by side, if they do.
fn already_together(graph: &Graph, parts: &[ValueId], axis: usize, layouts: &Layouts) -> Option<ConcatPart> {
    let first = layouts.slots[parts[0]]?;
    let mut start = first.start;
    for &part in parts {
        if layouts.slots[part]? != (ConcatPart { of: first.of, axis, start }) {
            return None;
        }
        start += graph.dims(part)[axis];
    }
    Some(first)
}
