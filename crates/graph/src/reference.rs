//! Executes plans on the CPU, in plain loops: the ground truth of every other way to execute them.

use crate::array::Array;
use crate::evaluate::evaluate;
use crate::ir::Op;
use crate::plan::{Place, Plan, Step, Tensor};

/// The memory of a plan. What weighs much is made once and used for many executions.
pub struct Reference<'a> {
    plan: &'a Plan,
    weights: Vec<u8>,
    workspace: Vec<u8>,
}

impl<'a> Reference<'a> {
    /// Makes the weights and a workspace, filled with what no plan may rely on.
    pub fn new(plan: &'a Plan) -> Self {
        Self { plan, weights: plan.weights.to_bytes(), workspace: vec![0xff; plan.workspace_bytes] }
    }

    /// Executes the plan: row-major inputs in the model's types, and such outputs.
    pub fn run(&mut self, inputs: &[&[u8]]) -> Vec<Vec<u8>> {
        let bytes =
            |port: &crate::plan::Port| port.dims.iter().product::<usize>() * crate::weights::element_bytes(port.dtype);
        for (input, port) in inputs.iter().zip(&self.plan.inputs) {
            assert_eq!(input.len(), bytes(port), "input {:?} has the bytes of {:?}", port.name, port.dims);
        }
        assert_eq!(inputs.len(), self.plan.inputs.len(), "one for each input");
        let mut outputs: Vec<_> = self.plan.outputs.iter().map(|port| vec![0xff; bytes(port)]).collect();
        for step in &self.plan.steps {
            let read = step.reads().into_iter().map(|tensor| self.load(tensor, inputs, &outputs)).collect::<Vec<_>>();
            let writes = step.writes();
            let results: Vec<_> = writes.iter().map(|tensor| (tensor.dtype, &tensor.dims[..])).collect();
            let arrays = compute(step, &read.iter().collect::<Vec<_>>(), &results);
            for (array, tensor) in arrays.iter().zip(writes) {
                let memory = match tensor.place {
                    Place::Workspace => &mut self.workspace,
                    Place::Output(position) => &mut outputs[position],
                    place => panic!("a step writes to {place:?}"),
                };
                array.store_strided(tensor.dtype, &tensor.strides, tensor.offset, memory);
            }
        }
        outputs
    }

    fn load(&self, tensor: &Tensor, inputs: &[&[u8]], outputs: &[Vec<u8>]) -> Array {
        let memory = match tensor.place {
            Place::Weights => &self.weights,
            Place::Constants => &self.plan.constants,
            Place::Workspace => &self.workspace,
            Place::Input(position) => inputs[position],
            Place::Output(position) => &outputs[position],
        };
        Array::load(tensor.dtype, &tensor.dims, &tensor.strides, tensor.offset, memory)
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
    };
    evaluate(&op, inputs, results)
}
