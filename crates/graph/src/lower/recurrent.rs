//! Recurrent layers: RNN, GRU and LSTM, step by step.
//!
//! ```text
//!  x ──one product for all steps──> x W^T + b ──slices──┐
//!  h0 ───────────────> h R^T + slice ──> gates ──> h1 ──┴──> ... ──> y
//! ```
//!
//! What all steps have in common, the product with the input, is one large product. Each step is then one small
//! product (two in a GRU that resets before it multiplies) and one or two element-wise steps. One kernel for all steps
//! would save their launches, about 2 us each in a graph, but has to synchronise the whole device between steps.

use super::elementwise::Floats;
use super::{Lowering, NodeInputs};
use crate::array::Array;
use crate::error::GraphError;
use crate::expression::{Binary, Instruction, Register, Unary, ValueKind};
use crate::ir::{Op, ValueId};
use crate::model::OnnxNode;
use crate::plan::{Activation, ReduceKind};
use base::DataType;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Gru {
        /// The product is computed first, and then reset.
        linear: bool,
    },
    Lstm {
        /// What is forgotten is what isn't let in.
        coupled: bool,
    },
}

impl Kind {
    fn gates(self) -> usize {
        match self {
            Self::Plain => 1,
            Self::Gru { .. } => 3,
            Self::Lstm { .. } => 4,
        }
    }

    fn activations(self) -> &'static [&'static str] {
        match self {
            Self::Plain => &["tanh"],
            Self::Gru { .. } => &["sigmoid", "tanh"],
            Self::Lstm { .. } => &["sigmoid", "tanh", "tanh"],
        }
    }
}

/// A function of a gate, with its parameters.
#[derive(Clone, Copy)]
pub(super) enum GateFunction {
    Relu,
    Tanh,
    Sigmoid,
    Affine(f32, f32),
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    ScaledTanh(f32, f32),
    HardSigmoid(f32, f32),
    Elu(f32),
    Softsign,
    Softplus,
    Clip(f32, f32),
}

impl GateFunction {
    /// What a product does by itself, if it is that.
    fn activation(self) -> Option<Activation> {
        match self {
            Self::Relu => Some(Activation::Relu),
            Self::Tanh => Some(Activation::Tanh),
            Self::Sigmoid => Some(Activation::Sigmoid),
            _ => None,
        }
    }

    pub(super) fn write(self, floats: &mut Floats<'_>, x: Register) -> Register {
        match self {
            Self::Relu => floats.with(Binary::Maximum, x, 0.0),
            Self::Tanh => floats.unary(Unary::Tanh, x),
            Self::Sigmoid => floats.unary(Unary::Sigmoid, x),
            Self::Affine(alpha, beta) => {
                let scaled = floats.with(Binary::Multiply, x, alpha);
                floats.with(Binary::Add, scaled, beta)
            }
            Self::LeakyRelu(slope) => {
                let scaled = floats.with(Binary::Multiply, x, slope);
                floats.by_sign(x, x, scaled)
            }
            Self::ThresholdedRelu(threshold) => floats.above(x, threshold),
            Self::ScaledTanh(alpha, beta) => {
                let scaled = floats.with(Binary::Multiply, x, beta);
                let tanh = floats.unary(Unary::Tanh, scaled);
                floats.with(Binary::Multiply, tanh, alpha)
            }
            Self::HardSigmoid(alpha, beta) => {
                let scaled = floats.with(Binary::Multiply, x, alpha);
                let line = floats.with(Binary::Add, scaled, beta);
                floats.clip(line, 0.0, 1.0)
            }
            Self::Elu(alpha) => {
                let below = floats.exponential(x, 1.0, alpha);
                floats.by_sign(x, x, below)
            }
            Self::Softsign => {
                let absolute = floats.unary(Unary::Absolute, x);
                let below = floats.with(Binary::Add, absolute, 1.0);
                floats.binary(Binary::Divide, x, below)
            }
            Self::Softplus => floats.softplus(x),
            Self::Clip(low, high) => floats.clip(x, low, high),
        }
    }
}

/// What all steps and directions of a layer have in common.
struct Layer {
    kind: Kind,
    length: usize,
    batch: usize,
    hidden: usize,
    /// The dimension of the input that is time: 0, or 1 where the batch comes first.
    time: usize,
    clip: Option<f32>,
    /// Whether a step counts, `[length, batch, 1]`; `None` if all do.
    counts: Option<ValueId>,
    /// Whether the state is rounded to what a byte can hold before it is multiplied.
    quantised: bool,
}

impl Layer {
    /// What a gate's function is applied to.
    fn gate(&self, floats: &mut Floats<'_>, function: GateFunction, x: Register) -> Register {
        let x = match self.clip {
            Some(bound) => floats.clip(x, -bound, bound),
            None => x,
        };
        function.write(floats, x)
    }
}

/// The weights of one direction, ready to be multiplied with.
struct Direction {
    reverse: bool,
    functions: Vec<GateFunction>,
    /// Of all steps: the input's product with its weights, and what is added to it.
    input: ValueId,
    /// `[hidden, gates * hidden]`; of a GRU that isn't linear, the candidate's part is apart.
    recurrent: Vec<ValueId>,
    recurrent_bias: Option<ValueId>,
    /// Of the gates that look at the cell: input, output, forget.
    peepholes: Option<[ValueId; 3]>,
}

/// The state before or after a step: what is seen of the cell, and in an LSTM the cell itself.
#[derive(Clone, Copy)]
struct State {
    seen: ValueId,
    cell: ValueId,
}

impl Lowering {
    pub(super) fn recurrent_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        let kind = match node.operator.as_str() {
            "RNN" => Kind::Plain,
            "GRU" => Kind::Gru { linear: node.int("linear_before_reset", 0) != 0 },
            "LSTM" | "com.microsoft.DynamicQuantizeLSTM" => Kind::Lstm { coupled: node.int("input_forget", 0) != 0 },
            _ => return Ok(None),
        };
        let quantised = node.operator != "LSTM" && matches!(kind, Kind::Lstm { .. });
        let floats = if quantised { self.from_bytes(inputs)? } else { inputs.to_vec() };
        let inputs = &floats[..];
        let layer = Layer { quantised, ..self.layer(node, inputs, kind)? };
        let directions: &[bool] = match node.text("direction", "forward") {
            "forward" => &[false],
            "reverse" => &[true],
            "bidirectional" => &[false, true],
            other => return Err(self.bad(format!("direction is {other:?}"))),
        };
        self.check_weights(&layer, inputs, directions.len())?;
        self.unroll(layer.length * directions.len())?;
        let functions = self.gate_functions(node, kind, directions.len())?;
        let (mut rows, mut states) = (Vec::new(), Vec::new());
        for (number, (&reverse, functions)) in directions.iter().zip(functions).enumerate() {
            let direction = self.direction(&layer, inputs, number, reverse, functions)?;
            let state = self.first_state(&layer, inputs, number)?;
            let (steps, last) = self.steps(&layer, &direction, state)?;
            rows.push(steps);
            states.push(last);
        }
        let all = self.shown(&layer, &rows)?;
        let axis = layer.time;
        let mut dims = vec![layer.batch, layer.hidden];
        dims.insert(axis, 1);
        let last = |this: &mut Self, of: fn(&State) -> ValueId| {
            let parts: Vec<_> = states.iter().map(|state| this.reshape(of(state), &dims)).collect();
            this.join(&parts, axis)
        };
        Ok(Some(vec![all, last(self, |state| state.seen)?, last(self, |state| state.cell)?]))
    }

    /// What each step of each direction shows as one tensor, into which steps write in place.
    fn shown(&mut self, layer: &Layer, directions: &[Vec<ValueId>]) -> Result<ValueId, GraphError> {
        let rows: Vec<_> = (0..layer.length).flat_map(|at| directions.iter().map(move |rows| rows[at])).collect();
        let all = self.join(&rows, layer.time)?;
        let (steps, directions) = (layer.length, directions.len());
        let dims = match layer.time {
            0 => [steps, directions, layer.batch, layer.hidden],
            _ => [layer.batch, steps, directions, layer.hidden],
        };
        Ok(self.reshape(all, &dims))
    }

    fn layer(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>, kind: Kind) -> Result<Layer, GraphError> {
        let input = self.input(inputs, 0)?;
        self.check_float(input)?;
        let time = usize::from(node.int("layout", 0) != 0);
        let dims = self.dims(input);
        let weights = self.dims(self.input(inputs, 2)?);
        let (&[_, _, _], &[_, _, hidden]) = (&dims[..], &weights[..]) else {
            return Err(self.bad(format!("its input is {dims:?} and its weights are {weights:?}")));
        };
        let (length, batch) = (dims[time], dims[1 - time]);
        if length == 0 || batch == 0 || hidden == 0 {
            return Err(self.bad("there are no steps, or nothing in them"));
        }
        let lengths = self.optional(inputs, 4).filter(|&lengths| {
            let known = self.graph.known(lengths);
            !known.is_some_and(|lengths| lengths.to_ints().iter().all(|&own| own == length as i64))
        });
        let counts = match lengths {
            Some(lengths) if self.graph.dims(lengths) == [batch] => Some(self.counting(lengths, length, batch)?),
            Some(lengths) => {
                return Err(self.bad(format!("it has lengths for {:?}, not for {batch}", self.dims(lengths))));
            }
            None => None,
        };
        let clip = node.has("clip").then(|| node.float("clip", 0.0)).filter(|&clip| clip > 0.0);
        Ok(Layer { kind, length, batch, hidden, time, clip, counts, quantised: false })
    }

    /// Which steps are within the length of each sequence. One tensor for all steps: with the step's number in it, each
    /// would need a kernel of its own.
    fn counting(&mut self, lengths: ValueId, length: usize, batch: usize) -> Result<ValueId, GraphError> {
        let lengths = self.cast(lengths, DataType::Int64)?;
        let lengths = self.reshape(lengths, &[1, batch, 1]);
        let steps = self.graph.constant(Array::ints(&[length, 1, 1], (0..length as i64).collect()), false);
        self.compare(Binary::Less, steps, lengths)
    }

    /// The inputs of a layer whose weights are bytes, as those of one with floats: products of bytes are what they would
    /// be if the floats that these stand for were multiplied.
    fn from_bytes(&mut self, inputs: NodeInputs<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let input = self.input(inputs, 0)?;
        if self.graph.dims(input).get(1) != Some(&1) {
            // How ONNX Runtime divides a batch among its threads decides what is rounded together.
            return Err(self.unsupported(" with a batch of other than 1"));
        }
        if self.optional(inputs, 4).is_some() {
            return Err(self.unsupported(" with lengths"));
        }
        let mut floats: Vec<_> = (0..8).map(|position| self.optional(inputs, position)).collect();
        floats[0] = Some(self.rounded_to_bytes(input)?);
        for (position, scale) in [(1, 8), (2, 10)] {
            let value = self.with_fixed(true, |this| {
                let parts = [position, scale, scale + 1].map(|at| this.input(inputs, at));
                let [bytes, scale, zero] = parts;
                this.dequantised(bytes?, scale?, zero?)
            })?;
            floats[position] = Some(value);
        }
        Ok(floats)
    }

    /// `[directions, rows, columns]` of bytes as floats, with rows and columns the other way round.
    fn dequantised(&mut self, bytes: ValueId, scale: ValueId, zero: ValueId) -> Result<ValueId, GraphError> {
        let dims = self.dims(bytes);
        let &[directions, _, columns] = &dims[..] else { return Err(self.bad(format!("its weights are {dims:?}"))) };
        let mut wide = |value: ValueId| match *self.dims(value) {
            [own] if own == directions => Ok(self.reshape(value, &[directions, 1, 1])),
            [own, each] if [own, each] == [directions, columns] => Ok(self.reshape(value, &[directions, 1, columns])),
            _ => Err(self.bad(format!("its scales and zero points are not for {dims:?}"))),
        };
        let (scale, zero) = (wide(scale)?, wide(zero)?);
        let (bytes, zero) = (self.cast(bytes, DataType::Fp32)?, self.cast(zero, DataType::Fp32)?);
        let moved = self.binary(Binary::Subtract, bytes, zero)?;
        let value = self.binary(Binary::Multiply, moved, scale)?;
        Ok(self.transpose(value, &[0, 2, 1]))
    }

    /// Every number as the nearest of the 256 between the smallest and the largest, 0 among them.
    fn rounded_to_bytes(&mut self, value: ValueId) -> Result<ValueId, GraphError> {
        self.check_float(value)?;
        let (dtype, axes) = (self.dtype(value), (0..self.dims(value).len()).collect::<Vec<_>>());
        let low = self.reduction(ReduceKind::Min, value, &axes);
        let high = self.reduction(ReduceKind::Max, value, &axes);
        self.apply(&[value, low, high], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let (low, high) = (floats.with(Binary::Minimum, of[1], 0.0), floats.with(Binary::Maximum, of[2], 0.0));
            let range = floats.binary(Binary::Subtract, high, low);
            let step = floats.with(Binary::Divide, range, 255.0);
            let (none, one) = (floats.number(0.0), floats.number(1.0));
            let flat = floats.0.push(Instruction::Binary(Binary::Equal, range, none), ValueKind::Bool);
            let step = floats.0.push(Instruction::Select(flat, one, step), ValueKind::Float);
            let below = floats.binary(Binary::Divide, low, step);
            let zero = floats.unary(Unary::Negate, below);
            let zero = floats.clip(zero, 0.0, 255.0);
            let zero = floats.unary(Unary::Round, zero);
            let counted = floats.binary(Binary::Divide, of[0], step);
            let counted = floats.unary(Unary::Round, counted);
            let byte = floats.binary(Binary::Add, counted, zero);
            let byte = floats.clip(byte, 0.0, 255.0);
            let moved = floats.binary(Binary::Subtract, byte, zero);
            floats.binary(Binary::Multiply, moved, step)
        })
    }

    /// Refuses weights and states of other shapes than the operator's definition has.
    fn check_weights(&self, layer: &Layer, inputs: NodeInputs<'_>, directions: usize) -> Result<(), GraphError> {
        let width = self.dims(self.input(inputs, 0)?)[2];
        let (hidden, rows) = (layer.hidden, layer.kind.gates() * layer.hidden);
        let state = if layer.time == 0 { [directions, layer.batch, hidden] } else { [layer.batch, directions, hidden] };
        let wanted = [
            (1, vec![directions, rows, width]),
            (2, vec![directions, rows, hidden]),
            (3, vec![directions, 2 * rows]),
            (5, state.to_vec()),
            (6, state.to_vec()),
            (7, vec![directions, 3 * hidden]),
        ];
        self.input(inputs, 1)?;
        for (position, wanted) in wanted {
            if let Some(value) = self.optional(inputs, position)
                && *self.graph.dims(value) != wanted
            {
                return Err(self.bad(format!("input {position} is {:?}, not {wanted:?}", self.dims(value))));
            }
        }
        Ok(())
    }

    /// The functions of the gates, for each direction.
    fn gate_functions(
        &self,
        node: &OnnxNode,
        kind: Kind,
        directions: usize,
    ) -> Result<Vec<Vec<GateFunction>>, GraphError> {
        let usual = kind.activations();
        let names: Vec<String> = match node.texts("activations") {
            Some(names) => names.iter().map(|name| name.to_lowercase()).collect(),
            None => usual.iter().cycle().take(usual.len() * directions).map(|&name| name.to_owned()).collect(),
        };
        if names.len() != usual.len() * directions {
            return Err(self.bad(format!("{} activations are not {} for each direction", names.len(), usual.len())));
        }
        // Those that take a parameter take the next one.
        let list = |name: &str| node.floats(name).unwrap_or(&[]).to_vec().into_iter();
        let (mut alphas, mut betas) = (list("activation_alpha"), list("activation_beta"));
        let mut functions = Vec::new();
        for name in &names {
            let missing = || self.unsupported(&format!(" with the activation {name} and no numbers for it"));
            functions.push(match name.as_str() {
                "relu" => GateFunction::Relu,
                "tanh" => GateFunction::Tanh,
                "sigmoid" => GateFunction::Sigmoid,
                "softsign" => GateFunction::Softsign,
                "softplus" => GateFunction::Softplus,
                "leakyrelu" => GateFunction::LeakyRelu(alphas.next().unwrap_or(0.01)),
                "thresholdedrelu" => GateFunction::ThresholdedRelu(alphas.next().unwrap_or(1.0)),
                "elu" => GateFunction::Elu(alphas.next().unwrap_or(1.0)),
                "hardsigmoid" => GateFunction::HardSigmoid(alphas.next().unwrap_or(0.2), betas.next().unwrap_or(0.5)),
                "affine" => GateFunction::Affine(alphas.next().ok_or_else(missing)?, betas.next().ok_or_else(missing)?),
                "scaledtanh" => {
                    GateFunction::ScaledTanh(alphas.next().ok_or_else(missing)?, betas.next().ok_or_else(missing)?)
                }
                other => return Err(self.unsupported(&format!(" with the activation {other}"))),
            });
        }
        if alphas.next().is_some() || betas.next().is_some() {
            return Err(self.unsupported(" with numbers that none of its activations takes"));
        }
        Ok(functions.chunks(usual.len()).map(<[_]>::to_vec).collect())
    }

    fn direction(
        &mut self,
        layer: &Layer,
        inputs: NodeInputs<'_>,
        number: usize,
        reverse: bool,
        functions: Vec<GateFunction>,
    ) -> Result<Direction, GraphError> {
        // Parts of weights are the same for all sizes, even if a state that the layer begins with isn't.
        self.with_fixed(true, |this| this.weights(layer, inputs, number, reverse, functions))
    }

    fn weights(
        &mut self,
        layer: &Layer,
        inputs: NodeInputs<'_>,
        number: usize,
        reverse: bool,
        functions: Vec<GateFunction>,
    ) -> Result<Direction, GraphError> {
        let (hidden, rows) = (layer.hidden, layer.kind.gates() * layer.hidden);
        let own = |this: &mut Self, position: usize, dims: &[usize]| -> Result<ValueId, GraphError> {
            let value = this.input(inputs, position)?;
            let part = this.part(value, 0, number, 1);
            Ok(this.reshape(part, dims))
        };
        let input = self.input(inputs, 0)?;
        let width = self.dims(input)[2];
        let factor = own(self, 1, &[rows, width])?;
        let recurrent = own(self, 2, &[rows, hidden])?;
        let (mut bias, mut recurrent_bias) = (None, None);
        if self.optional(inputs, 3).is_some() {
            let both = own(self, 3, &[2 * rows])?;
            let (first, second) = (self.part(both, 0, 0, rows), self.part(both, 0, rows, rows));
            if layer.kind == (Kind::Gru { linear: true }) {
                // Its candidate's bias is reset with the product.
                (bias, recurrent_bias) = (Some(first), Some(second));
            } else {
                bias = Some(self.binary(Binary::Add, first, second)?);
            }
        }
        let recurrent = if layer.kind == (Kind::Gru { linear: false }) {
            let (gates, candidate) =
                (self.part(recurrent, 0, 0, 2 * hidden), self.part(recurrent, 0, 2 * hidden, hidden));
            vec![self.turn(gates), self.turn(candidate)]
        } else {
            vec![self.turn(recurrent)]
        };
        let peepholes = match self.optional(inputs, 7) {
            Some(_) => {
                let all = own(self, 7, &[3 * hidden])?;
                Some([0, 1, 2].map(|gate| self.part(all, 0, gate * hidden, hidden)))
            }
            None => None,
        };
        let (factor, dtype, dims) = (self.turn(factor), self.dtype(input), self.dims(input));
        // All rows of all steps are the rows of one product, whatever lies how.
        let flat = self.reshape(input, &[dims[0] * dims[1], width]);
        let op = Op::Gemm { alpha: 1.0, bias: bias.is_some(), residual: false, activation: Activation::None };
        let all: Vec<_> = [flat, factor].into_iter().chain(bias).collect();
        let product = self.emit(op, &all, dtype, &[dims[0] * dims[1], rows]);
        let input = self.reshape(product, &[dims[0], dims[1], rows]);
        Ok(Direction { reverse, functions, input, recurrent, recurrent_bias, peepholes })
    }

    fn first_state(&mut self, layer: &Layer, inputs: NodeInputs<'_>, number: usize) -> Result<State, GraphError> {
        let dtype = self.dtype(self.input(inputs, 0)?);
        let dims = [layer.batch, layer.hidden];
        let mut at = |position: usize| match self.optional(inputs, position) {
            Some(value) => {
                let part = self.part(value, layer.time, number, 1);
                self.reshape(part, &dims)
            }
            None => self.with_fixed(false, |this| this.filled(dtype, &dims, 0.0)),
        };
        Ok(State { seen: at(5), cell: at(6) })
    }

    /// All steps of a direction: what each shows, in the order of time, and the last state.
    fn steps(
        &mut self,
        layer: &Layer,
        direction: &Direction,
        mut state: State,
    ) -> Result<(Vec<ValueId>, State), GraphError> {
        let (batch, rows) = (layer.batch, layer.kind.gates() * layer.hidden);
        let mut shown = Vec::new();
        for step in 0..layer.length {
            let at = if direction.reverse { layer.length - 1 - step } else { step };
            let input = self.part(direction.input, layer.time, at, 1);
            let input = self.reshape(input, &[batch, rows]);
            let next = self.step(layer, direction, input, state)?;
            let (next, row) = self.within_length(layer, at, state, next)?;
            state = next;
            shown.push(row);
        }
        if direction.reverse {
            shown.reverse();
        }
        Ok((shown, state))
    }

    /// Where a sequence has ended, the state stays as it is and what is shown is 0.
    fn within_length(
        &mut self,
        layer: &Layer,
        at: usize,
        before: State,
        after: State,
    ) -> Result<(State, ValueId), GraphError> {
        let Some(counts) = layer.counts else { return Ok((after, after.seen)) };
        let inside = self.part(counts, 0, at, 1);
        let inside = self.reshape(inside, &[layer.batch, 1]);
        let zero = self.scalar(self.dtype(after.seen), 0.0);
        let choose = |this: &mut Self, new: ValueId, old: ValueId| {
            let dtype = this.dtype(new);
            this.apply(&[inside, new, old], dtype, |expression, of| {
                expression.push(Instruction::Select(of[0], of[1], of[2]), ValueKind::Float)
            })
        };
        let cell = match layer.kind {
            Kind::Lstm { .. } => choose(self, after.cell, before.cell)?,
            Kind::Plain | Kind::Gru { .. } => after.cell,
        };
        Ok((State { seen: choose(self, after.seen, before.seen)?, cell }, choose(self, after.seen, zero)?))
    }

    fn step(
        &mut self,
        layer: &Layer,
        direction: &Direction,
        input: ValueId,
        state: State,
    ) -> Result<State, GraphError> {
        match layer.kind {
            Kind::Plain => {
                let factor = direction.recurrent[0];
                if let Some(activation) = direction.functions[0].activation().filter(|_| layer.clip.is_none()) {
                    let seen = self.recurred(state.seen, factor, None, Some(input), activation);
                    return Ok(State { seen, ..state });
                }
                let sum = self.recurred(state.seen, factor, None, Some(input), Activation::None);
                let dtype = self.dtype(sum);
                let seen = self.apply(&[sum], dtype, |expression, of| {
                    layer.gate(&mut Floats(expression), direction.functions[0], of[0])
                })?;
                Ok(State { seen, ..state })
            }
            Kind::Gru { linear: true } => self.gru_linear(layer, direction, input, state),
            Kind::Gru { linear: false } => self.gru(layer, direction, input, state),
            Kind::Lstm { coupled } => self.lstm(layer, direction, input, state, coupled),
        }
    }

    /// A product with the state, what is added to it, and a function of that.
    fn recurred(
        &mut self,
        state: ValueId,
        factor: ValueId,
        bias: Option<ValueId>,
        residual: Option<ValueId>,
        activation: Activation,
    ) -> ValueId {
        let op = Op::Gemm { alpha: 1.0, bias: bias.is_some(), residual: residual.is_some(), activation };
        let dims = [self.dims(state)[0], self.dims(factor)[1]];
        let inputs: Vec<_> = [state, factor].into_iter().chain(bias).chain(residual).collect();
        let dtype = self.dtype(state);
        self.emit(op, &inputs, dtype, &dims)
    }

    /// One gate's part of a row of gates.
    fn gate_of(&mut self, layer: &Layer, gates: ValueId, gate: usize) -> ValueId {
        self.part(gates, 1, gate * layer.hidden, layer.hidden)
    }

    fn gru(&mut self, layer: &Layer, direction: &Direction, input: ValueId, state: State) -> Result<State, GraphError> {
        let (hidden, before, dtype) = (layer.hidden, state.seen, self.dtype(input));
        let (first, last) = (self.part(input, 1, 0, 2 * hidden), self.part(input, 1, 2 * hidden, hidden));
        let gates = self.recurred(before, direction.recurrent[0], None, Some(first), Activation::None);
        let (update, reset) = (self.gate_of(layer, gates, 0), self.gate_of(layer, gates, 1));
        let (sigmoid, tanh) = (direction.functions[0], direction.functions[1]);
        let kept = self.apply(&[reset, before], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let reset = layer.gate(&mut floats, sigmoid, of[0]);
            floats.binary(Binary::Multiply, reset, of[1])
        })?;
        let candidate = self.recurred(kept, direction.recurrent[1], None, Some(last), Activation::None);
        let seen = self.apply(&[update, candidate, before], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let update = layer.gate(&mut floats, sigmoid, of[0]);
            let candidate = layer.gate(&mut floats, tanh, of[1]);
            updated(&mut floats, update, candidate, of[2])
        })?;
        Ok(State { seen, ..state })
    }

    fn gru_linear(
        &mut self,
        layer: &Layer,
        direction: &Direction,
        input: ValueId,
        state: State,
    ) -> Result<State, GraphError> {
        let (before, dtype) = (state.seen, self.dtype(input));
        let product = self.recurred(before, direction.recurrent[0], direction.recurrent_bias, None, Activation::None);
        let mut all: Vec<_> = (0..3).map(|gate| self.gate_of(layer, input, gate)).collect();
        all.extend((0..3).map(|gate| self.gate_of(layer, product, gate)).collect::<Vec<_>>());
        all.push(before);
        let seen = self.apply(&all, dtype, |expression, of| {
            let mut floats = Floats(expression);
            let mut sigmoid = |gate: usize| {
                let sum = floats.binary(Binary::Add, of[gate], of[gate + 3]);
                layer.gate(&mut floats, direction.functions[0], sum)
            };
            let (update, reset) = (sigmoid(0), sigmoid(1));
            let kept = floats.binary(Binary::Multiply, reset, of[5]);
            let sum = floats.binary(Binary::Add, of[2], kept);
            let candidate = layer.gate(&mut floats, direction.functions[1], sum);
            updated(&mut floats, update, candidate, of[6])
        })?;
        Ok(State { seen, ..state })
    }

    fn lstm(
        &mut self,
        layer: &Layer,
        direction: &Direction,
        input: ValueId,
        state: State,
        coupled: bool,
    ) -> Result<State, GraphError> {
        let dtype = self.dtype(input);
        let seen = if layer.quantised { self.rounded_to_bytes(state.seen)? } else { state.seen };
        let gates = self.recurred(seen, direction.recurrent[0], None, Some(input), Activation::None);
        let [enter, leave, forget, candidate] = [0, 1, 2, 3].map(|gate| self.gate_of(layer, gates, gate));
        let [f, g, h] = direction.functions[..] else { unreachable!("three for each direction") };
        // A gate that looks at the cell: its own part, and what it sees.
        let looking = |floats: &mut Floats<'_>, gate: Register, peephole: Option<Register>, cell: Register| {
            let sum = peephole.map_or(gate, |peephole| {
                let seen = floats.binary(Binary::Multiply, peephole, cell);
                floats.binary(Binary::Add, gate, seen)
            });
            layer.gate(floats, f, sum)
        };
        let mut all = vec![enter, forget, candidate, state.cell];
        all.extend(direction.peepholes.iter().flat_map(|peepholes| [peepholes[0], peepholes[2]]));
        let cell = self.apply(&all, dtype, |expression, of| {
            let mut floats = Floats(expression);
            let enter = looking(&mut floats, of[0], of.get(4).copied(), of[3]);
            let forget = if coupled {
                let one = floats.number(1.0);
                floats.binary(Binary::Subtract, one, enter)
            } else {
                looking(&mut floats, of[1], of.get(5).copied(), of[3])
            };
            let candidate = layer.gate(&mut floats, g, of[2]);
            let kept = floats.binary(Binary::Multiply, forget, of[3]);
            let new = floats.binary(Binary::Multiply, enter, candidate);
            floats.binary(Binary::Add, kept, new)
        })?;
        let mut all = vec![leave, cell];
        all.extend(direction.peepholes.map(|peepholes| peepholes[1]));
        let seen = self.apply(&all, dtype, |expression, of| {
            let mut floats = Floats(expression);
            let leave = looking(&mut floats, of[0], of.get(2).copied(), of[1]);
            // The cell itself isn't clipped, as in ONNX Runtime.
            let shown = h.write(&mut floats, of[1]);
            floats.binary(Binary::Multiply, leave, shown)
        })?;
        Ok(State { seen, cell })
    }
}

/// `(1 - update) * candidate + update * before`
fn updated(floats: &mut Floats<'_>, update: Register, candidate: Register, before: Register) -> Register {
    let one = floats.number(1.0);
    let rest = floats.binary(Binary::Subtract, one, update);
    let new = floats.binary(Binary::Multiply, rest, candidate);
    let old = floats.binary(Binary::Multiply, update, before);
    floats.binary(Binary::Add, new, old)
}
