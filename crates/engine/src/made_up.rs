//! Elements of tensors that nobody sent.

use base::DataType;
use std::ops::RangeInclusive;

/// Fractions below 1, whole numbers from a range and digits in strings: what most models can compute with. Always the
/// same ones for a seed.
pub fn by_chance(datatype: DataType, count: usize, seed: u64, whole: &RangeInclusive<u64>) -> Vec<u8> {
    // A linear congruential generator; its upper bits are good enough to fill a tensor with.
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as u32
    };
    let mut data = Vec::new();
    for _ in 0..count {
        let number = next();
        let fraction = f64::from(number) / f64::from(1 << 24);
        let whole = whole.start() + u64::from(number) % (whole.end() - whole.start() + 1);
        match datatype {
            DataType::Fp32 => data.extend((fraction as f32).to_le_bytes()),
            DataType::Fp64 => data.extend(fraction.to_le_bytes()),
            // The upper half of a single.
            DataType::Bf16 => data.extend(&(fraction as f32).to_le_bytes()[2..]),
            // A half between 0.5 and 1: its exponent is fixed, its ten bits of fraction aren't.
            DataType::Fp16 => data.extend((0x3800 | (number % 1024) as u16).to_le_bytes()),
            DataType::Bool => data.push((number % 2) as u8),
            DataType::Bytes => data.extend([1, 0, 0, 0, b'0' + (number % 10) as u8]),
            whole_type => data.extend(&whole.to_le_bytes()[..whole_type.size().unwrap_or(1)]),
        }
    }
    data
}
