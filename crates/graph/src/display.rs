//! Plans as text, one line for each step: for people, for golden tests, and as what is hashed.

use crate::expression::{Expression, Instruction};
use crate::plan::*;
use std::fmt::{self, Display, Formatter, Write};

impl Plan {
    /// Changes with everything but the values of weights and the names of nodes: the key under which what was built or
    /// measured for a plan is kept.
    pub fn hash(&self) -> blake3::Hash {
        let mut text = String::new();
        write_plan(&mut text, self, false).expect("text takes everything");
        let mut hasher = blake3::Hasher::new();
        hasher.update(text.as_bytes()).update(self.weights.layout_hash().as_bytes()).update(&self.constants);
        hasher.finalize()
    }
}

impl Display for Plan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write_plan(f, self, true)
    }
}

fn write_plan(to: &mut impl Write, plan: &Plan, names: bool) -> fmt::Result {
    writeln!(
        to,
        "plan {:?}: {} steps, {} bytes of weights in {}, {} of constants, {} of workspace",
        plan.precision,
        plan.steps.len(),
        plan.weights.len(),
        plan.weights.count(),
        plan.constants.len(),
        plan.workspace_bytes
    )?;
    for (kind, ports) in [("input", &plan.inputs), ("output", &plan.outputs)] {
        for (position, port) in ports.iter().enumerate() {
            writeln!(to, "{kind}{position} {} {}{:?}", port.name, port.dtype, port.dims)?;
        }
    }
    for (step, name) in plan.steps.iter().zip(&plan.names) {
        write!(to, "{step}")?;
        writeln!(to, "{}", if names { format!("   # {name}") } else { String::new() })?;
    }
    Ok(())
}

impl Display for TensorPlace {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Weights => f.write_str("weights"),
            Self::Constants => f.write_str("constants"),
            Self::Workspace => f.write_str("work"),
            Self::Input(position) => write!(f, "input{position}"),
            Self::Output(position) => write!(f, "output{position}"),
        }
    }
}

impl Display for Tensor {
    /// `FP16[1, 64, 56, 56]nhwc@work+4096`: strides are left out where they are those of row-major tensors.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.dims)?;
        if !self.is_row_major() {
            if self.dims.len() == 4 && self.strides == channels_last(&self.dims) {
                f.write_str("nhwc")?;
            } else {
                write!(f, "by{:?}", self.strides)?;
            }
        }
        write!(f, "@{}+{}", self.place, self.offset)
    }
}

impl Display for Window {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { kernel, strides, dilations, pads_before, pads_after } = self;
        write!(f, "{}x{}", kernel[0], kernel[1])?;
        if *strides != [1, 1] {
            write!(f, " stride {}x{}", strides[0], strides[1])?;
        }
        if *dilations != [1, 1] {
            write!(f, " dilation {}x{}", dilations[0], dilations[1])?;
        }
        if [*pads_before, *pads_after] != [[0; 2]; 2] {
            write!(f, " pad {pads_before:?}{pads_after:?}")?;
        }
        Ok(())
    }
}

impl Display for Expression {
    /// As nested calls.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut texts: Vec<String> = Vec::new();
        for instruction in &self.instructions {
            let at = |register: usize| &texts[register];
            texts.push(match *instruction {
                Instruction::Input(input) => format!("${input}"),
                Instruction::Float(value) => format!("{value:?}"),
                Instruction::Int(value) => format!("{value}"),
                Instruction::Bool(value) => format!("{value}"),
                Instruction::Unary(function, of) => format!("{function:?}({})", at(of)),
                Instruction::Binary(function, a, b) => format!("{function:?}({}, {})", at(a), at(b)),
                Instruction::Select(c, a, b) => format!("Select({}, {}, {})", at(c), at(a), at(b)),
                Instruction::Cast(kind, of) => format!("{kind:?}({})", at(of)),
                Instruction::Wrap { bits, signed, of } => {
                    format!("{}{bits}({})", if signed { "i" } else { "u" }, at(of))
                }
            });
        }
        f.write_str(texts.last().map_or("", |text| text))
    }
}

impl Display for Step {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:<11}", self.kind())?;
        for tensor in self.reads() {
            write!(f, " {tensor}")?;
        }
        f.write_str(" ->")?;
        for tensor in self.writes() {
            write!(f, " {tensor}")?;
        }
        match self {
            Self::Conv(s) => {
                write!(f, " | {}", s.window)?;
                if s.groups != 1 {
                    write!(f, " groups {}", s.groups)?;
                }
                parts(f, s.bias.is_some(), s.residual.is_some(), s.activation)
            }
            Self::Gemm(s) => {
                f.write_str(" |")?;
                if s.alpha != 1.0 {
                    write!(f, " alpha {}", s.alpha)?;
                }
                parts(f, s.bias.is_some(), s.residual.is_some(), s.activation)
            }
            Self::Attention(s) => write!(f, " | scale {}", s.scale),
            Self::Pool(s) => write!(f, " | {:?} {}", s.kind, s.window),
            Self::Reduce(s) => write!(f, " | {:?} over {:?}", s.kind, s.axes),
            Self::Softmax(s) => write!(f, " | {}along {}", if s.log { "log " } else { "" }, s.axis),
            Self::LayerNorm(s) => {
                let kind = if s.root_mean_square { "root mean square " } else { "" };
                write!(f, " | {kind}from {} epsilon {:e}", s.axis, s.epsilon)
            }
            Self::Lrn(s) => write!(f, " | size {} alpha {} beta {} bias {}", s.size, s.alpha, s.beta, s.bias),
            Self::Elementwise(s) => write!(f, " | {}", s.expression),
            Self::Gather(s) => write!(f, " | along {}{}", s.axis, if s.elements { " elements" } else { "" }),
            Self::Copy(_) => Ok(()),
            Self::Fill(s) => write!(f, " | {:?}", s.value),
            Self::Resize(s) => write!(f, " | {:?} {:?} by {:?}", s.kind, s.coordinates, s.scales),
            Self::TopK(s) => write!(f, " | {} along {}", if s.largest { "largest" } else { "smallest" }, s.axis),
            Self::Scatter(s) => write!(f, " | {:?} along {}", s.kind, s.axis),
            Self::IntegerConv(s) => write!(f, " | {} groups {}", s.window, s.groups),
        }
    }
}

/// What comes behind a product.
fn parts(f: &mut Formatter<'_>, bias: bool, residual: bool, activation: Activation) -> fmt::Result {
    if bias {
        f.write_str(" +bias")?;
    }
    if residual {
        f.write_str(" +residual")?;
    }
    if activation != Activation::None {
        write!(f, " {activation:?}")?;
    }
    Ok(())
}
