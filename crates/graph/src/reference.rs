//! Executes plans on the CPU, in plain loops: the ground truth of every other way to execute them.

use crate::array::Array;
use crate::evaluate::evaluate;
use crate::ir::Op;
use crate::plan::{Plan, Step, Tensor, TensorPlace};
use std::sync::Arc;

/// What a plan computes on, as it lies in memory. A copy has its own of what steps write.
#[derive(Clone)]
pub struct ReferenceMemory {
    /// The weights.
    pub weights: Arc<[u8]>,
    /// The inputs, row-major in the model's types.
    pub inputs: Vec<Arc<[u8]>>,
    /// The workspace.
    pub workspace: Vec<u8>,
    /// The outputs, likewise.
    pub outputs: Vec<Vec<u8>>,
}

impl ReferenceMemory {
    /// The elements of a tensor.
    pub fn load(&self, plan: &Plan, tensor: &Tensor) -> Array {
        let memory: &[u8] = match tensor.place {
            TensorPlace::Weights => &self.weights,
            TensorPlace::Constants => &plan.constants,
            TensorPlace::Workspace => &self.workspace,
            TensorPlace::Input(position) => &self.inputs[position],
            TensorPlace::Output(position) => &self.outputs[position],
        };
        Array::load(tensor.dtype, &tensor.dims, &tensor.strides, tensor.offset, memory)
    }

    /// Puts elements where a tensor is that steps may write.
    pub fn store(&mut self, tensor: &Tensor, array: &Array) {
        let memory = match tensor.place {
            TensorPlace::Workspace => &mut self.workspace,
            TensorPlace::Output(position) => &mut self.outputs[position],
            place => panic!("a step writes to {place:?}"),
        };
        array.store_strided(tensor.dtype, &tensor.strides, tensor.offset, memory);
    }
}

/// Executes a plan. What weighs much is made once and used for many executions.
pub struct Reference<'a> {
    plan: &'a Plan,
    memory: ReferenceMemory,
}

impl<'a> Reference<'a> {
    /// Makes the weights and a workspace, filled with what no plan may rely on.
    pub fn new(plan: &'a Plan) -> Self {
        let (weights, workspace) = (plan.weights.to_bytes().into(), vec![0xff; plan.workspace_bytes]);
        Self { plan, memory: ReferenceMemory { weights, workspace, inputs: Vec::new(), outputs: Vec::new() } }
    }

    /// Executes the plan: row-major inputs in the model's types, and such outputs.
    pub fn run(&mut self, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        self.begin(inputs);
        (0..self.plan.steps.len()).for_each(|at| self.step(at));
        std::mem::take(&mut self.memory.outputs)
    }

    /// Takes the inputs of an execution whose steps are called for one by one.
    pub fn begin(&mut self, inputs: &[&[u8]]) {
        let bytes =
            |port: &crate::plan::Port| port.dims.iter().product::<usize>() * crate::weights::element_bytes(port.dtype);
        for (input, port) in inputs.iter().zip(&self.plan.inputs) {
            assert_eq!(input.len(), bytes(port), "input {:?} has the bytes of {:?}", port.name, port.dims);
        }
        assert_eq!(inputs.len(), self.plan.inputs.len(), "one for each input");
        self.memory.inputs = inputs.iter().map(|&input| input.into()).collect();
        self.memory.outputs = self.plan.outputs.iter().map(|port| vec![0xff; bytes(port)]).collect();
    }

    /// Executes one step. Those before it have been.
    pub fn step(&mut self, at: usize) {
        let step = &self.plan.steps[at];
        let read: Vec<Array> = step.reads().into_iter().map(|tensor| self.memory.load(self.plan, tensor)).collect();
        let writes = step.writes();
        let results: Vec<_> = writes.iter().map(|tensor| (tensor.dtype, &tensor.dims[..])).collect();
        let arrays = compute(step, &read.iter().collect::<Vec<_>>(), &results);
        arrays.iter().zip(writes).for_each(|(array, tensor)| self.memory.store(tensor, array));
    }

    /// All memory, as the steps so far left it.
    pub fn memory(&self) -> &ReferenceMemory {
        &self.memory
    }
}

fn compute(step: &Step, inputs: &[&Array], results: &[(base::DataType, &[usize])]) -> Vec<Array> {
    let op = match step {
        Step::Conv(s) => Op::Conv {
            window: s.window,
            groups: s.groups,
            bias: s.bias.is_some(),
            residual: s.residual.is_some(),
            activation: s.activation,
        },
        Step::Gemm(s) => Op::Gemm {
            alpha: s.alpha,
            bias: s.bias.is_some(),
            residual: s.residual.is_some(),
            activation: s.activation,
        },
        Step::Attention(s) => Op::Attention { scale: s.scale, mask: s.mask.is_some() },
        Step::Pool(s) => Op::Pool { kind: s.kind, window: s.window },
        Step::Reduce(s) => Op::Reduce { kind: s.kind, axes: s.axes.clone() },
        Step::Softmax(s) => Op::Softmax { axis: s.axis, log: s.log },
        Step::LayerNorm(s) => Op::LayerNorm {
            axis: s.axis,
            epsilon: s.epsilon,
            root_mean_square: s.root_mean_square,
            scale: s.scale.is_some(),
            shift: s.shift.is_some(),
        },
        Step::Lrn(s) => Op::Lrn { size: s.size, alpha: s.alpha, beta: s.beta, bias: s.bias },
        Step::Elementwise(s) => Op::Elementwise(s.expression.clone()),
        Step::Gather(s) => Op::Gather { axis: s.axis, elements: s.elements },
        // Stored as another type, it is converted.
        Step::Copy(_) => return vec![inputs[0].clone()],
        Step::Fill(s) => return vec![Array::filled(results[0].0, &s.output.dims, f64::from(s.value))],
        Step::Resize(s) => Op::Resize { kind: s.kind, coordinates: s.coordinates, scales: s.scales },
        Step::TopK(s) => Op::TopK { axis: s.axis, largest: s.largest },
        Step::Scatter(s) => Op::Scatter { axis: s.axis, kind: s.kind },
        Step::IntegerConv(s) => Op::IntegerConv { window: s.window, groups: s.groups, zero: s.zero.is_some() },
    };
    evaluate(&op, inputs, results)
}
