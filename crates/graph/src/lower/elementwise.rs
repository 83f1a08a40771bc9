//! Operators that look at one element at a time.

use super::{Lowering, NodeInputs, kind};
use crate::error::GraphError;
use crate::expression::{Binary, Expression, Instruction, Register, Unary, ValueKind};
use crate::ir::ValueId;
use crate::model::{OnnxNode, element};
use base::DataType;

/// Writes expressions of floats shortly.
pub(super) struct Floats<'a>(pub(super) &'a mut Expression);

/// Writes a function of one register.
type Build = Box<dyn FnOnce(&mut Floats<'_>, Register) -> Register>;

impl Floats<'_> {
    pub(super) fn number(&mut self, value: f32) -> Register {
        self.0.push(Instruction::Float(value), ValueKind::Float)
    }

    pub(super) fn unary(&mut self, function: Unary, of: Register) -> Register {
        self.0.push(Instruction::Unary(function, of), ValueKind::Float)
    }

    pub(super) fn binary(&mut self, function: Binary, a: Register, b: Register) -> Register {
        self.0.push(Instruction::Binary(function, a, b), ValueKind::Float)
    }

    pub(super) fn with(&mut self, function: Binary, a: Register, value: f32) -> Register {
        let value = self.number(value);
        self.binary(function, a, value)
    }

    /// `a` where positive, else `b`.
    pub(super) fn by_sign(&mut self, x: Register, a: Register, b: Register) -> Register {
        let zero = self.number(0.0);
        let positive = self.0.push(Instruction::Binary(Binary::GreaterOrEqual, x, zero), ValueKind::Bool);
        self.0.push(Instruction::Select(positive, a, b), ValueKind::Float)
    }

    /// `x` where it is above a threshold, else 0.
    pub(super) fn above(&mut self, x: Register, threshold: f32) -> Register {
        let (bound, zero) = (self.number(threshold), self.number(0.0));
        let above = self.0.push(Instruction::Binary(Binary::Greater, x, bound), ValueKind::Bool);
        self.0.push(Instruction::Select(above, x, zero), ValueKind::Float)
    }

    pub(super) fn clip(&mut self, x: Register, low: f32, high: f32) -> Register {
        let x = self.with(Binary::Maximum, x, low);
        self.with(Binary::Minimum, x, high)
    }

    /// `a * b - c * d`
    pub(super) fn crossed(&mut self, a: Register, b: Register, c: Register, d: Register) -> Register {
        let (one, other) = (self.binary(Binary::Multiply, a, b), self.binary(Binary::Multiply, c, d));
        self.binary(Binary::Subtract, one, other)
    }

    /// `ln(1 + exp(x))`, without overflow.
    pub(super) fn softplus(&mut self, x: Register) -> Register {
        let absolute = self.unary(Unary::Absolute, x);
        let negative = self.unary(Unary::Negate, absolute);
        let exp = self.unary(Unary::Exp, negative);
        let sum = self.with(Binary::Add, exp, 1.0);
        let log = self.unary(Unary::Log, sum);
        let positive = self.with(Binary::Maximum, x, 0.0);
        self.binary(Binary::Add, log, positive)
    }

    /// `x * sigmoid(alpha * x)`
    pub(super) fn swish(&mut self, x: Register, alpha: f32) -> Register {
        let scaled = self.with(Binary::Multiply, x, alpha);
        let gate = self.unary(Unary::Sigmoid, scaled);
        self.binary(Binary::Multiply, x, gate)
    }

    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`
    pub(super) fn gelu_tanh(&mut self, x: Register) -> Register {
        let square = self.binary(Binary::Multiply, x, x);
        let cube = self.binary(Binary::Multiply, square, x);
        let cube = self.with(Binary::Multiply, cube, 0.044_715);
        let inner = self.binary(Binary::Add, x, cube);
        let inner = self.with(Binary::Multiply, inner, (2.0 / std::f32::consts::PI).sqrt());
        let gate = self.unary(Unary::Tanh, inner);
        half_gated(self, x, gate)
    }

    /// `scale * (exp(x / alpha) - 1)`
    pub(super) fn exponential(&mut self, x: Register, alpha: f32, scale: f32) -> Register {
        let x = self.with(Binary::Divide, x, alpha);
        let exp = self.unary(Unary::Exp, x);
        let less = self.with(Binary::Subtract, exp, 1.0);
        self.with(Binary::Multiply, less, scale)
    }
}

impl Lowering {
    pub(super) fn elementwise_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
    ) -> Result<Option<Vec<ValueId>>, GraphError> {
        if let Some(function) = unary(&node.operator) {
            let x = self.input(inputs, 0)?;
            self.check_kind(function, x)?;
            let dtype = match function {
                Unary::IsNan | Unary::IsInfinite => DataType::Bool,
                _ => self.dtype(x),
            };
            if function == Unary::IsInfinite && node.int("detect_negative", 1) * node.int("detect_positive", 1) == 0 {
                return self.is_infinite(node, x).map(|value| Some(vec![value]));
            }
            let result = kind(dtype);
            let value =
                self.apply(&[x], dtype, |expression, x| expression.push(Instruction::Unary(function, x[0]), result))?;
            return Ok(Some(vec![value]));
        }
        if let Some(function) = binary(&node.operator) {
            return self.binary_node(node, inputs, function).map(|value| Some(vec![value]));
        }
        let value = match node.operator.as_str() {
            "Dropout"
                if self.optional(inputs, 2).is_some_and(|mode| {
                    self.graph.known(mode).is_none_or(|mode| mode.to_ints().first() != Some(&0))
                }) =>
            {
                return Err(self.unsupported(" in training mode"));
            }
            "Dropout" if node.outputs.iter().skip(1).any(|name| !name.is_empty()) => {
                let x = self.input(inputs, 0)?;
                let dims = self.dims(x);
                let kept = self.with_fixed(false, |this| this.filled(DataType::Bool, &dims, 1.0));
                return Ok(Some(vec![x, kept]));
            }
            "Identity" | "Dropout" => self.input(inputs, 0)?,
            "Cast" => {
                let to = element(node.int("to", 1) as i32)?;
                self.cast(self.input(inputs, 0)?, to)?
            }
            "CastLike" => {
                let to = self.dtype(self.input(inputs, 1)?);
                self.cast(self.input(inputs, 0)?, to)?
            }
            "BitwiseAnd" => self.bits(inputs, Binary::And)?,
            "BitwiseOr" => self.bits(inputs, Binary::Or)?,
            "BitwiseXor" => self.bits(inputs, Binary::Xor)?,
            "BitwiseNot" => {
                let x = self.input(inputs, 0)?;
                let ones = self.scalar(self.dtype(x), -1.0);
                self.bits(&[Some(x), Some(ones)], Binary::Xor)?
            }
            "BitShift" => {
                let function = match node.text("direction", "") {
                    "LEFT" => Binary::ShiftLeft,
                    "RIGHT" => Binary::ShiftRight,
                    other => return Err(self.bad(format!("direction is {other:?}"))),
                };
                self.bits(inputs, function)?
            }
            "Where" => self.select(inputs)?,
            "Clip" => self.clip(node, inputs)?,
            "PRelu" => self.prelu(inputs)?,
            "Max" => self.variadic(inputs, Binary::Maximum)?,
            "Min" => self.variadic(inputs, Binary::Minimum)?,
            "Sum" => self.variadic(inputs, Binary::Add)?,
            "Mean" => {
                let sum = self.variadic(inputs, Binary::Add)?;
                let count = self.scalar(self.dtype(sum), inputs.len() as f64);
                self.binary(Binary::Divide, sum, count)?
            }
            _ => return self.activation(node, inputs),
        };
        Ok(Some(vec![value]))
    }

    fn binary_node(
        &mut self,
        node: &OnnxNode,
        inputs: NodeInputs<'_>,
        function: Binary,
    ) -> Result<ValueId, GraphError> {
        let (a, mut b) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let function =
            if function == Binary::Modulo && node.int("fmod", 0) == 1 { Binary::Remainder } else { function };
        let compares = matches!(
            function,
            Binary::Equal | Binary::Less | Binary::LessOrEqual | Binary::Greater | Binary::GreaterOrEqual
        );
        if self.dtype(a) != self.dtype(b) {
            if function != Binary::Power {
                return Err(self.bad(format!("its inputs are {} and {}", self.dtype(a), self.dtype(b))));
            }
            b = self.cast(b, self.dtype(a))?;
        }
        let logical = matches!(function, Binary::And | Binary::Or | Binary::Xor);
        if logical && self.dtype(a) != DataType::Bool {
            return Err(self.bad(format!("its inputs are {}", self.dtype(a))));
        }
        let dtype = if compares { DataType::Bool } else { self.dtype(a) };
        if self.opset < 7 && node.int("broadcast", 0) == 1 && node.has("axis") {
            // The old way to broadcast: the second's dimensions begin at an axis of the first.
            let rank = self.graph.dims(a).len();
            let axis = self.axis(node.int("axis", 0), rank)?;
            let mut dims = self.dims(b);
            dims.resize(rank - axis, 1);
            b = self.reshape(b, &dims);
        }
        let kind = kind(dtype);
        self.apply(&[a, b], dtype, |expression, of| expression.push(Instruction::Binary(function, of[0], of[1]), kind))
    }

    pub(super) fn cast(&mut self, value: ValueId, to: DataType) -> Result<ValueId, GraphError> {
        let from = self.dtype(value);
        if from == to {
            return Ok(value);
        }
        self.apply(&[value], to, |expression, x| {
            let (from, to) = (kind(from), kind(to));
            if from == to && to != ValueKind::Int { x[0] } else { expression.push(Instruction::Cast(to, x[0]), to) }
        })
    }

    /// Infinity of one sign, or of none.
    fn is_infinite(&mut self, node: &OnnxNode, x: ValueId) -> Result<ValueId, GraphError> {
        let infinite = match (node.int("detect_negative", 1) != 0, node.int("detect_positive", 1) != 0) {
            (true, _) => f32::NEG_INFINITY,
            (false, true) => f32::INFINITY,
            // Nothing is equal to this.
            (false, false) => f32::NAN,
        };
        self.apply(&[x], DataType::Bool, |expression, x| {
            let infinite = expression.push(Instruction::Float(infinite), ValueKind::Float);
            expression.push(Instruction::Binary(Binary::Equal, x[0], infinite), ValueKind::Bool)
        })
    }

    /// A function of the bits of integers.
    fn bits(&mut self, inputs: NodeInputs<'_>, function: Binary) -> Result<ValueId, GraphError> {
        let (a, b) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        if kind(self.dtype(a)) != ValueKind::Int {
            return Err(self.bad(format!("its inputs are {}", self.dtype(a))));
        }
        self.binary(function, a, b)
    }

    fn select(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let [condition, a, b] = [self.input(inputs, 0)?, self.input(inputs, 1)?, self.input(inputs, 2)?];
        let dtype = self.dtype(a);
        if self.dtype(b) != dtype || self.dtype(condition) != DataType::Bool {
            return Err(self.bad(format!("it chooses between {dtype} and {}", self.dtype(b))));
        }
        let kind = kind(dtype);
        self.apply(&[condition, a, b], dtype, |expression, of| {
            expression.push(Instruction::Select(of[0], of[1], of[2]), kind)
        })
    }

    fn clip(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let mut x = self.input(inputs, 0)?;
        let dtype = self.dtype(x);
        for (position, name, function) in [(1, "min", Binary::Maximum), (2, "max", Binary::Minimum)] {
            let bound = match self.optional(inputs, position) {
                Some(bound) => bound,
                None if node.has(name) => self.scalar(dtype, f64::from(node.float(name, 0.0))),
                None => continue,
            };
            x = self.binary(function, x, bound)?;
        }
        Ok(x)
    }

    fn prelu(&mut self, inputs: NodeInputs<'_>) -> Result<ValueId, GraphError> {
        let (x, slope) = (self.input(inputs, 0)?, self.input(inputs, 1)?);
        let dtype = self.dtype(x);
        if kind(dtype) != ValueKind::Float {
            return Err(self.unsupported(" for integers"));
        }
        self.apply(&[x, slope], dtype, |expression, of| {
            let mut floats = Floats(expression);
            let scaled = floats.binary(Binary::Multiply, of[0], of[1]);
            floats.by_sign(of[0], of[0], scaled)
        })
    }

    fn variadic(&mut self, inputs: NodeInputs<'_>, function: Binary) -> Result<ValueId, GraphError> {
        let mut result = self.input(inputs, 0)?;
        for position in 1..inputs.len() {
            let next = self.input(inputs, position)?;
            result = self.binary(function, result, next)?;
        }
        Ok(result)
    }

    /// Functions of one float with parameters.
    fn activation(&mut self, node: &OnnxNode, inputs: NodeInputs<'_>) -> Result<Option<Vec<ValueId>>, GraphError> {
        let operator = node.operator.as_str();
        let alpha = |otherwise| node.float("alpha", otherwise);
        let build: Build = match operator {
            "Relu" => {
                let (x, zero) = (self.input(inputs, 0)?, self.scalar(self.dtype(self.input(inputs, 0)?), 0.0));
                return self.binary(Binary::Maximum, x, zero).map(|value| Some(vec![value]));
            }
            "LeakyRelu" => {
                let slope = alpha(0.01);
                Box::new(move |floats, x| {
                    let scaled = floats.with(Binary::Multiply, x, slope);
                    floats.by_sign(x, x, scaled)
                })
            }
            "ThresholdedRelu" => {
                let threshold = alpha(1.0);
                Box::new(move |floats, x| floats.above(x, threshold))
            }
            "Elu" => {
                let scale = alpha(1.0);
                Box::new(move |floats, x| {
                    let below = floats.exponential(x, 1.0, scale);
                    floats.by_sign(x, x, below)
                })
            }
            "Celu" => {
                let alpha = alpha(1.0);
                Box::new(move |floats, x| {
                    let below = floats.exponential(x, alpha, alpha);
                    floats.by_sign(x, x, below)
                })
            }
            "Selu" => {
                // The defaults are those of the operator's definition.
                let (alpha, gamma) = (alpha(1.673_263_2), node.float("gamma", 1.050_701));
                Box::new(move |floats, x| {
                    let below = floats.exponential(x, 1.0, alpha);
                    let both = floats.by_sign(x, x, below);
                    floats.with(Binary::Multiply, both, gamma)
                })
            }
            #[allow(clippy::redundant_closure_for_method_calls, reason = "the method's lifetime isn't general enough")]
            "Softplus" => Box::new(|floats, x| floats.softplus(x)),
            "Softsign" => Box::new(|floats, x| {
                let absolute = floats.unary(Unary::Absolute, x);
                let below = floats.with(Binary::Add, absolute, 1.0);
                floats.binary(Binary::Divide, x, below)
            }),
            "HardSigmoid" => {
                let (alpha, beta) = (alpha(0.2), node.float("beta", 0.5));
                Box::new(move |floats, x| {
                    let line = floats.with(Binary::Multiply, x, alpha);
                    let line = floats.with(Binary::Add, line, beta);
                    floats.clip(line, 0.0, 1.0)
                })
            }
            "HardSwish" => Box::new(|floats, x| {
                let line = floats.with(Binary::Divide, x, 6.0);
                let line = floats.with(Binary::Add, line, 0.5);
                let gate = floats.clip(line, 0.0, 1.0);
                floats.binary(Binary::Multiply, x, gate)
            }),
            "Swish" => {
                let alpha = alpha(1.0);
                Box::new(move |floats, x| floats.swish(x, alpha))
            }
            "Mish" => Box::new(|floats, x| {
                let soft = floats.softplus(x);
                let gate = floats.unary(Unary::Tanh, soft);
                floats.binary(Binary::Multiply, x, gate)
            }),
            #[allow(clippy::redundant_closure_for_method_calls, reason = "the method's lifetime isn't general enough")]
            "Gelu" if node.text("approximate", "none") == "tanh" => Box::new(|floats, x| floats.gelu_tanh(x)),
            "Gelu" => Box::new(|floats, x| {
                let inner = floats.with(Binary::Multiply, x, std::f32::consts::FRAC_1_SQRT_2);
                let gate = floats.unary(Unary::Erf, inner);
                half_gated(floats, x, gate)
            }),
            "Shrink" => {
                let (lambda, bias) = (node.float("lambd", 0.5), node.float("bias", 0.0));
                Box::new(move |floats, x| {
                    let [low, high, zero] = [-lambda, lambda, 0.0].map(|value| floats.number(value));
                    let below = floats.0.push(Instruction::Binary(Binary::Less, x, low), ValueKind::Bool);
                    let above = floats.0.push(Instruction::Binary(Binary::Greater, x, high), ValueKind::Bool);
                    let up = floats.with(Binary::Add, x, bias);
                    let down = floats.with(Binary::Subtract, x, bias);
                    let rest = floats.0.push(Instruction::Select(above, down, zero), ValueKind::Float);
                    floats.0.push(Instruction::Select(below, up, rest), ValueKind::Float)
                })
            }
            _ => return Ok(None),
        };
        let x = self.input(inputs, 0)?;
        let dtype = self.dtype(x);
        if kind(dtype) != ValueKind::Float {
            return Err(self.unsupported(&format!(" for {dtype}")));
        }
        self.apply(&[x], dtype, |expression, x| build(&mut Floats(expression), x[0])).map(|value| Some(vec![value]))
    }
}

/// `x / 2 * (1 + gate)`
fn half_gated(floats: &mut Floats<'_>, x: Register, gate: Register) -> Register {
    let gate = floats.with(Binary::Add, gate, 1.0);
    let gated = floats.binary(Binary::Multiply, x, gate);
    floats.with(Binary::Multiply, gated, 0.5)
}

fn unary(operator: &str) -> Option<Unary> {
    Some(match operator {
        "Neg" => Unary::Negate,
        "Abs" => Unary::Absolute,
        "Sign" => Unary::Sign,
        "Reciprocal" => Unary::Reciprocal,
        "Sqrt" => Unary::SquareRoot,
        "Exp" => Unary::Exp,
        "Log" => Unary::Log,
        "Sin" => Unary::Sin,
        "Cos" => Unary::Cos,
        "Tan" => Unary::Tan,
        "Asin" => Unary::Asin,
        "Acos" => Unary::Acos,
        "Atan" => Unary::Atan,
        "Sinh" => Unary::Sinh,
        "Cosh" => Unary::Cosh,
        "Asinh" => Unary::Asinh,
        "Acosh" => Unary::Acosh,
        "Atanh" => Unary::Atanh,
        "Tanh" => Unary::Tanh,
        "Erf" => Unary::Erf,
        "Sigmoid" => Unary::Sigmoid,
        "Floor" => Unary::Floor,
        "Ceil" => Unary::Ceil,
        "Round" => Unary::Round,
        "IsNaN" => Unary::IsNan,
        "IsInf" => Unary::IsInfinite,
        "Not" => Unary::Not,
        _ => return None,
    })
}

fn binary(operator: &str) -> Option<Binary> {
    Some(match operator {
        "Add" => Binary::Add,
        "Sub" => Binary::Subtract,
        "Mul" => Binary::Multiply,
        "Div" => Binary::Divide,
        "Mod" => Binary::Modulo,
        "Pow" => Binary::Power,
        "Equal" => Binary::Equal,
        "Less" => Binary::Less,
        "LessOrEqual" => Binary::LessOrEqual,
        "Greater" => Binary::Greater,
        "GreaterOrEqual" => Binary::GreaterOrEqual,
        "And" => Binary::And,
        "Or" => Binary::Or,
        "Xor" => Binary::Xor,
        _ => return None,
    })
}
