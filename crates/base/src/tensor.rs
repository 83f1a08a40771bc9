//! What a model takes and gives: types, names, shapes. The bytes themselves travel elsewhere.

use core::fmt;

macro_rules! data_types {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $size:expr;)*) => {
        /// The element types of the Open Inference Protocol.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum DataType {
            $($(#[$doc])* $variant,)*
        }

        impl DataType {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The protocol's name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The type of that name, as the protocol writes it.
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }

            /// Bytes of one element; `None` for `Bytes`, whose elements are a 4-byte little-endian length and the
            /// bytes.
            pub const fn size(self) -> Option<usize> {
                match self { $(Self::$variant => $size,)* }
            }
        }
    };
}

data_types! {
    /// One byte, 0 or 1.
    Bool = "BOOL", Some(1);
    /// Unsigned, 8 bits.
    Uint8 = "UINT8", Some(1);
    /// Unsigned, 16 bits.
    Uint16 = "UINT16", Some(2);
    /// Unsigned, 32 bits.
    Uint32 = "UINT32", Some(4);
    /// Unsigned, 64 bits.
    Uint64 = "UINT64", Some(8);
    /// Signed, 8 bits.
    Int8 = "INT8", Some(1);
    /// Signed, 16 bits.
    Int16 = "INT16", Some(2);
    /// Signed, 32 bits.
    Int32 = "INT32", Some(4);
    /// Signed, 64 bits.
    Int64 = "INT64", Some(8);
    /// IEEE half precision.
    Fp16 = "FP16", Some(2);
    /// IEEE single precision.
    Fp32 = "FP32", Some(4);
    /// IEEE double precision.
    Fp64 = "FP64", Some(8);
    /// The upper half of a single.
    Bf16 = "BF16", Some(2);
    /// Strings of bytes.
    Bytes = "BYTES", None;
}

impl DataType {
    /// A number as one element, in the protocol's binary form; `None` where the type has no such element, and for
    /// halves other than 0.
    pub fn element(self, value: f64) -> Option<Vec<u8>> {
        let whole = |least: i128, most: i128| {
            let number = value as i128;
            // Two's complement: the lowest bytes of the widest form are the narrow one's.
            let fits = number as f64 == value && (least..=most).contains(&number);
            fits.then(|| number.to_le_bytes()[..self.size().unwrap_or(0)].to_vec())
        };
        match self {
            Self::Fp32 => Some((value as f32).to_le_bytes().to_vec()),
            Self::Fp64 => Some(value.to_le_bytes().to_vec()),
            Self::Bf16 => Some((value as f32).to_le_bytes()[2..].to_vec()),
            Self::Fp16 => (value == 0.0).then(|| vec![0; 2]),
            Self::Bytes => None,
            Self::Bool => whole(0, 1),
            Self::Uint8 => whole(0, u8::MAX.into()),
            Self::Uint16 => whole(0, u16::MAX.into()),
            Self::Uint32 => whole(0, u32::MAX.into()),
            Self::Uint64 => whole(0, u64::MAX.into()),
            Self::Int8 => whole(i8::MIN.into(), i8::MAX.into()),
            Self::Int16 => whole(i16::MIN.into(), i16::MAX.into()),
            Self::Int32 => whole(i32::MIN.into(), i32::MAX.into()),
            Self::Int64 => whole(i64::MIN.into(), i64::MAX.into()),
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What floats are computed in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Precision {
    /// 32 bits.
    Fp32,
    /// Kept in 32 bits; factors of convolutions and matrix products are rounded to 10 bits of mantissa.
    Tf32,
    /// The same behind so many convolutions and products, which are computed in 32 bits: what they pass on is what
    /// everything behind them has.
    Tf32Behind(u32),
    /// Kept in 16 bits, accumulated in 32 bits.
    Fp16,
}

impl Precision {
    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        match name.strip_prefix("tf32+") {
            Some(count) => count.parse().ok().filter(|&count| count > 0).map(Self::Tf32Behind),
            None => [Self::Fp32, Self::Tf32, Self::Fp16].into_iter().find(|known| known.to_string() == name),
        }
    }
}

/// Its name in configurations.
impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fp32 => f.write_str("fp32"),
            Self::Tf32 => f.write_str("tf32"),
            Self::Tf32Behind(count) => write!(f, "tf32+{count}"),
            Self::Fp16 => f.write_str("fp16"),
        }
    }
}

/// What somebody wants floats to be computed in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum PrecisionChoice {
    /// In the fastest precision whose outputs are near enough to those in 32 bits.
    #[default]
    Auto,
    /// In that one.
    Named(Precision),
}

impl PrecisionChoice {
    /// What may be written.
    pub const NAMES: &str = "auto, fp32, tf32, tf32+4 (with the first four products in fp32) or fp16";

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        if name == "auto" { Some(Self::Auto) } else { Precision::from_name(name).map(Self::Named) }
    }
}

/// Its name in configurations.
impl fmt::Display for PrecisionChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Named(precision) => precision.fmt(f),
        }
    }
}

/// One input or output of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorSpec {
    /// Its name in the model.
    pub name: String,
    /// Its element type.
    pub datatype: DataType,
    /// Its dimensions, the batch dimension included where the model has one; -1 where any size goes.
    pub dims: Vec<i64>,
}

impl TensorSpec {
    /// Whether requests say how large it is, besides the rows of a batch, of which `max_batch` is the most (0: it has
    /// no batch dimension).
    pub fn is_open(&self, max_batch: u32) -> bool {
        self.dims.iter().skip(usize::from(max_batch > 0)).any(|&dim| dim < 0)
    }
}

/// What a model takes, gives and weighs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelSignature {
    /// Its inputs, in the model's order.
    pub inputs: Vec<TensorSpec>,
    /// Its outputs, in the model's order.
    pub outputs: Vec<TensorSpec>,
    /// The largest batch; 0 when the first dimension isn't a batch dimension (as in Triton): then requests are executed
    /// one at a time, with exactly the shapes that they give.
    pub max_batch: u32,
}

impl ModelSignature {
    /// Why its first dimension can't be a batch, as a sentence about the first input or output of which that is so;
    /// `None` where it is open in all of them.
    pub fn without_batch(&self) -> Option<String> {
        let inputs = self.inputs.iter().map(|spec| ("input", spec));
        let outputs = self.outputs.iter().map(|spec| ("output", spec));
        inputs.chain(outputs).find_map(|(kind, spec)| match spec.dims.first() {
            Some(-1) => None,
            Some(size) => Some(format!("the first dimension of {kind} {} is fixed at {size}", spec.name)),
            None => Some(format!("{kind} {} is a scalar", spec.name)),
        })
    }
}

/// The number of elements of a shape; `None` when a dimension is negative or the product doesn't fit.
pub fn element_count(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_both_ways() {
        for &datatype in DataType::ALL {
            assert_eq!(DataType::from_name(datatype.name()), Some(datatype));
        }
        assert_eq!(DataType::from_name("FLOAT"), None);
    }

    #[test]
    fn the_batch_leaves_nothing_open() {
        let open = |dims: &[i64], max_batch| {
            TensorSpec { name: "x".into(), datatype: DataType::Fp32, dims: dims.into() }.is_open(max_batch)
        };
        assert_eq!((open(&[-1, 3], 8), open(&[-1, -1], 8), open(&[-1, 3], 0)), (false, true, true));
    }

    #[test]
    fn precisions_have_names() {
        for precision in [Precision::Fp32, Precision::Tf32, Precision::Tf32Behind(4), Precision::Fp16] {
            assert_eq!(Precision::from_name(&precision.to_string()), Some(precision));
            let named = PrecisionChoice::Named(precision);
            assert_eq!(PrecisionChoice::from_name(&named.to_string()), Some(named));
        }
        assert_eq!(PrecisionChoice::from_name("auto"), Some(PrecisionChoice::default()));
        for unknown in ["FP16", "tf32+0", "tf32+", "tf32+x", "bf16", ""] {
            assert_eq!(PrecisionChoice::from_name(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn numbers_become_elements_of_their_type_or_none() {
        assert_eq!(DataType::Int16.element(-2.0), Some(vec![0xfe, 0xff]));
        assert_eq!(DataType::Int64.element(-1.0), Some(vec![0xff; 8]));
        assert_eq!(DataType::Uint32.element(7.0), Some(vec![7, 0, 0, 0]));
        assert_eq!(DataType::Bf16.element(1.0), Some(vec![0x80, 0x3f]));
        assert_eq!(DataType::Fp32.element(f64::NEG_INFINITY), Some(f32::NEG_INFINITY.to_le_bytes().to_vec()));
        for (datatype, value) in [
            (DataType::Uint8, -1.0),
            (DataType::Uint8, 256.0),
            (DataType::Int32, 0.5),
            (DataType::Int64, f64::NAN),
            (DataType::Bool, 2.0),
            (DataType::Fp16, 1.0),
            (DataType::Bytes, 0.0),
        ] {
            assert_eq!(datatype.element(value), None, "{datatype} {value}");
        }
        for &datatype in DataType::ALL {
            assert_eq!(datatype.element(0.0).map(|element| element.len()), datatype.size(), "{datatype}");
        }
    }

    #[test]
    fn counts_refuse_negative_and_overflowing_shapes() {
        assert_eq!(element_count(&[2, 3]), Some(6));
        assert_eq!(element_count(&[]), Some(1));
        assert_eq!(element_count(&[0, i64::MAX]), Some(0));
        assert_eq!(element_count(&[2, -1]), None);
        assert_eq!(element_count(&[i64::MAX, 4]), None);
    }
}
