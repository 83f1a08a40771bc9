//! What planning works on: values with known shapes, and nodes of a few general kinds between them.
//!
//! Lowering makes it from the model, fusion makes it smaller, arranging gives its values their places.

use crate::array::Array;
use crate::expression::Expression;
use crate::plan::{Activation, Coordinates, PoolKind, Port, ReduceKind, ResizeKind, ScatterKind, Window};
use base::DataType;
use std::sync::Arc;

pub(crate) type ValueId = usize;

#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub(crate) dtype: DataType,
    pub(crate) dims: Vec<usize>,
    pub(crate) content: Content,
}

#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// The model's input of that position.
    Input(usize),
    Constant {
        array: Arc<Array>,
        /// Whether it is the same for all sizes, so that it may be among the weights.
        fixed: bool,
    },
    Computed,
}

/// What a node does. Optional inputs come in the order of the flags, behind the others.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Op {
    Conv {
        window: Window,
        groups: usize,
        bias: bool,
        residual: bool,
        activation: Activation,
    },
    Gemm {
        alpha: f32,
        bias: bool,
        residual: bool,
        activation: Activation,
    },
    Attention {
        scale: f32,
        mask: bool,
    },
    Pool {
        kind: PoolKind,
        window: Window,
    },
    Reduce {
        kind: ReduceKind,
        axes: Vec<usize>,
    },
    Softmax {
        axis: usize,
        log: bool,
    },
    LayerNorm {
        axis: usize,
        epsilon: f32,
        root_mean_square: bool,
        scale: bool,
        shift: bool,
    },
    Lrn {
        size: usize,
        alpha: f32,
        beta: f32,
        bias: f32,
    },
    Elementwise(Expression),
    Gather {
        axis: usize,
        elements: bool,
    },
    Resize {
        kind: ResizeKind,
        coordinates: Coordinates,
        scales: [f32; 2],
    },
    TopK {
        axis: usize,
        largest: bool,
    },
    /// What is written over, positions along the axis, what is written there.
    Scatter {
        axis: usize,
        kind: ScatterKind,
    },
    /// Image, filters, and the number of the image that stands for 0, if there is one.
    IntegerConv {
        window: Window,
        groups: usize,
        zero: bool,
    },
    // From here on elements are only moved; often that is a matter of strides.
    Transpose(Vec<usize>),
    Reshape,
    Slice {
        starts: Vec<usize>,
        steps: Vec<isize>,
    },
    Expand,
    Concat {
        axis: usize,
    },
    Pad {
        before: Vec<usize>,
        value: f32,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct GraphNode {
    pub(crate) name: String,
    pub(crate) op: Op,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub(crate) values: Vec<Value>,
    /// In an order in which they can be computed.
    pub(crate) nodes: Vec<GraphNode>,
    pub(crate) inputs: Vec<Port>,
    pub(crate) outputs: Vec<(Port, ValueId)>,
}

/// Who uses each value, by its id: lists behind one another, because fusion makes them anew again and again.
pub(crate) struct Uses {
    /// Where each list ends and the next begins.
    ends: Vec<usize>,
    nodes: Vec<usize>,
}

impl std::ops::Index<ValueId> for Uses {
    type Output = [usize];

    fn index(&self, value: ValueId) -> &[usize] {
        &self.nodes[self.ends[value]..self.ends[value + 1]]
    }
}

impl Graph {
    pub(crate) fn add(&mut self, dtype: DataType, dims: &[usize], content: Content) -> ValueId {
        self.values.push(Value { dtype, dims: dims.to_vec(), content });
        self.values.len() - 1
    }

    pub(crate) fn constant(&mut self, array: Array, fixed: bool) -> ValueId {
        self.shared_constant(&Arc::new(array), fixed)
    }

    pub(crate) fn shared_constant(&mut self, array: &Arc<Array>, fixed: bool) -> ValueId {
        self.add(array.dtype, &array.dims, Content::Constant { array: array.clone(), fixed })
    }

    pub(crate) fn dims(&self, value: ValueId) -> &[usize] {
        &self.values[value].dims
    }

    /// Its value, where it is a constant.
    pub(crate) fn known(&self, value: ValueId) -> Option<&Arc<Array>> {
        match &self.values[value].content {
            Content::Constant { array, .. } => Some(array),
            Content::Input(_) | Content::Computed => None,
        }
    }

    pub(crate) fn is_fixed(&self, value: ValueId) -> bool {
        matches!(self.values[value].content, Content::Constant { fixed: true, .. })
    }

    /// The positions of the nodes that use each value; the outputs of the model count as node `usize::MAX`.
    pub(crate) fn uses(&self) -> Uses {
        let used = || {
            let by_nodes = self.nodes.iter().enumerate();
            let by_nodes = by_nodes.flat_map(|(at, node)| node.inputs.iter().map(move |&value| (value, at)));
            by_nodes.chain(self.outputs.iter().map(|&(_, value)| (value, usize::MAX)))
        };
        let mut ends = vec![0; self.values.len() + 1];
        used().for_each(|(value, _)| ends[value + 1] += 1);
        (0..self.values.len()).for_each(|value| ends[value + 1] += ends[value]);
        let mut nodes = vec![0; ends[self.values.len()]];
        let mut next = ends.clone();
        for (value, at) in used() {
            nodes[next[value]] = at;
            next[value] += 1;
        }
        Uses { ends, nodes }
    }

    /// The position of the node that makes each value.
    pub(crate) fn makers(&self) -> Vec<Option<usize>> {
        let mut makers = vec![None; self.values.len()];
        for (position, node) in self.nodes.iter().enumerate() {
            for &output in &node.outputs {
                makers[output] = Some(position);
            }
        }
        makers
    }

    /// Removes the nodes whose results nobody uses.
    pub(crate) fn remove_unused(&mut self) {
        let mut needed = vec![false; self.values.len()];
        self.outputs.iter().for_each(|&(_, value)| needed[value] = true);
        let mut keep = vec![false; self.nodes.len()];
        for (position, node) in self.nodes.iter().enumerate().rev() {
            if node.outputs.iter().any(|&output| needed[output]) {
                keep[position] = true;
                node.inputs.iter().for_each(|&input| needed[input] = true);
            }
        }
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().expect("one for each node"));
    }
}

/// The shape that both can be broadcast to.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |dims: &[usize], axis: usize| if axis + dims.len() < rank { 1 } else { dims[axis + dims.len() - rank] };
    let both = (0..rank).map(|axis| (at(a, axis), at(b, axis)));
    both.map(|(a, b)| {
        if a == b || b == 1 {
            Some(a)
        } else if a == 1 {
            Some(b)
        } else {
            None
        }
    })
    .collect()
}

/// Strides that let a tensor be read with other dimensions, to which it can be broadcast.
pub(crate) fn broadcast_strides(dims: &[usize], strides: &[isize], to: &[usize]) -> Vec<isize> {
    let missing = to.len() - dims.len();
    let own = dims.iter().zip(strides).zip(&to[missing..]);
    let own = own.map(|((&dim, &stride), &to)| if dim == 1 && to != 1 { 0 } else { stride });
    std::iter::repeat_n(0, missing).chain(own).collect()
}
