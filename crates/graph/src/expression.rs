//! What an element-wise step computes for each element: a short list of instructions, each with one result.
//!
//! `gelu(x + b)` is, for instance:
//!
//! ```text
//!  %0 = input 0        f32
//!  %1 = input 1        f32
//!  %2 = add %0 %1      f32
//!  ...
//! ```
//!
//! The result is that of the last instruction. Floats are computed in 32 bits whatever they are kept in.

/// What a register holds while an expression is computed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ValueKind {
    /// A 32-bit float; inputs of 16 bits (and of 64) are converted when they are loaded.
    Float,
    /// A 64-bit integer; other integers are converted when they are loaded.
    Int,
    /// True or false.
    Bool,
}

/// The position of the instruction whose result is meant: always an earlier one.
pub type Register = usize;

/// One operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Instruction {
    /// The element of that input of the step.
    Input(usize),
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// True or false.
    Bool(bool),
    /// A function of one.
    Unary(Unary, Register),
    /// A function of two of the same kind.
    Binary(Binary, Register, Register),
    /// The second where the first (a bool) is true, else the third.
    Select(Register, Register, Register),
    /// Another kind: towards zero from float to integer, `!= 0` to bool, 0 or 1 from bool.
    Cast(ValueKind, Register),
    /// An integer reduced to what that many bits hold, signed or not: what storing and loading it would do.
    Wrap {
        /// 8, 16 or 32.
        bits: u8,
        /// Whether it has a sign.
        signed: bool,
        /// What.
        of: Register,
    },
}

/// Functions of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "they are called as in mathematics")]
pub enum Unary {
    Negate,
    Absolute,
    Sign,
    Reciprocal,
    SquareRoot,
    Exp,
    Log,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    Tanh,
    Erf,
    Sigmoid,
    Floor,
    Ceil,
    /// To the nearest, halves to even.
    Round,
    /// Of a float, gives a bool.
    IsNan,
    /// Of a float, gives a bool: either sign.
    IsInfinite,
    /// Of a bool.
    Not,
}

/// Functions of two. Comparisons give bools.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "they are called as in mathematics")]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    /// Of integers: towards zero. By zero: 0.
    Divide,
    /// The sign of the divisor, as Python has it (`Mod` of integers).
    Modulo,
    /// The sign of the dividend, as C has it (`fmod`).
    Remainder,
    Power,
    /// NaN where one is NaN.
    Minimum,
    /// NaN where one is NaN.
    Maximum,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    /// Of bools, or of the bits of integers.
    And,
    /// Of bools, or of the bits of integers.
    Or,
    /// Of bools, or of the bits of integers.
    Xor,
    /// Of the bits of integers; by as many as they have or more: 0.
    ShiftLeft,
    /// Of the bits of integers without a sign, the same.
    ShiftRight,
}

impl Binary {
    fn is_of_bits(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor | Self::ShiftLeft | Self::ShiftRight)
    }
}

/// Instructions, and the kind of each one's result.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expression {
    /// In order; the last one's result is stored.
    pub instructions: Vec<Instruction>,
    /// Of each instruction's result.
    pub kinds: Vec<ValueKind>,
}

impl Expression {
    /// Appends an instruction and says where its result is.
    pub fn push(&mut self, instruction: Instruction, kind: ValueKind) -> Register {
        self.instructions.push(instruction);
        self.kinds.push(kind);
        self.instructions.len() - 1
    }

    /// The kind of the result.
    pub fn kind(&self) -> ValueKind {
        *self.kinds.last().expect("an expression has a result")
    }

    /// Whether no instruction takes a float together with something else, or one that it isn't a function of.
    pub(crate) fn is_of_one_kind(&self) -> bool {
        let is_float = |register: Register| self.kinds[register] == ValueKind::Float;
        self.instructions.iter().all(|instruction| match *instruction {
            Instruction::Unary(Unary::Negate | Unary::Absolute | Unary::Sign, _) => true,
            Instruction::Unary(function, of) => is_float(of) != (function == Unary::Not),
            Instruction::Binary(function, a, b) => {
                is_float(a) == is_float(b) && !(is_float(a) && function.is_of_bits())
            }
            Instruction::Select(_, a, b) => is_float(a) == is_float(b),
            Instruction::Wrap { of, .. } => !is_float(of),
            _ => true,
        })
    }
}
