//! Whether a library computes what our kernels do. It is asked before its kernel is chosen: speed is all that is measured otherwise.

use graph::plan::Precision;

/// How far two kernels may be apart, over the largest number: several times what rounding does, far below what a mistaken layout does.
const APART: f64 = 2e-2;
/// By what part all results may be too small in TF32. Factors that are rounded make no difference on average; if they are cut off, results are smaller by 3.6e-4 (if one
/// factor is) to 7.2e-4, in every layer, and deep networks add that up.
const SHRUNK: f64 = 1.5e-4;

/// What two kernels made of the same numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Verdict {
    /// The same, but for rounding.
    Agree,
    /// Something else.
    Differ(f64),
    /// The same, but cut off instead of rounded.
    CutOff(f64),
}

/// Compares a library's results with ours.
pub(super) fn agree(precision: Precision, ours: &[f32], theirs: &[f32]) -> Verdict {
    let apart = apart(ours, theirs);
    if apart > APART {
        return Verdict::Differ(apart);
    }
    // What rounding leaves of an average over so many.
    let chance = 1e-3 / (ours.len().max(1) as f64).sqrt();
    let shrunk = shrunk(ours, theirs);
    if precision == Precision::Tf32 && shrunk > SHRUNK + chance { Verdict::CutOff(shrunk) } else { Verdict::Agree }
}

/// The largest difference, over the largest number.
pub(super) fn apart(right: &[f32], found: &[f32]) -> f64 {
    let largest = right.iter().filter(|x| x.is_finite()).fold(1e-6f64, |most, x| most.max(f64::from(x.abs())));
    let difference = |(&right, &found): (&f32, &f32)| {
        if right == found || right.is_nan() && found.is_nan() {
            return 0.0;
        }
        let difference = f64::from(right) - f64::from(found);
        if difference.is_nan() { f64::INFINITY } else { difference.abs() }
    };
    right.iter().zip(found).map(difference).fold(0.0, f64::max) / largest
}

/// By what part all numbers are too small, on average.
pub(super) fn shrunk(right: &[f32], found: &[f32]) -> f64 {
    let both = right.iter().zip(found).filter(|(right, found)| right.is_finite() && found.is_finite());
    let (squares, products) = both.fold((0.0, 0.0), |(squares, products), (&right, &found)| {
        let (right, found) = (f64::from(right), f64::from(found));
        (squares + right * right, products + right * found)
    });
    if squares > 0.0 { 1.0 - products / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Products of rows of numbers that were rounded in a given way.
    fn products(keep: impl Fn(f32) -> f32) -> Vec<f32> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            keep((state >> 40) as f32 / (1 << 24) as f32 - 0.5)
        };
        (0..2000).map(|_| (0..64).map(|_| next() * next()).sum()).collect()
    }

    fn nearest(x: f32) -> f32 {
        f32::from_bits((x.to_bits() + 0x1000) & !0x1fff)
    }

    fn cut_off(x: f32) -> f32 {
        f32::from_bits(x.to_bits() & !0x1fff)
    }

    #[test]
    fn rounding_is_agreement_and_cutting_off_is_not() {
        let ours = products(nearest);
        assert_eq!(agree(Precision::Tf32, &ours, &products(|x| x)), Verdict::Agree);
        let Verdict::CutOff(shrunk) = agree(Precision::Tf32, &ours, &products(cut_off)) else { panic!("cut off") };
        assert!((5e-4..1e-3).contains(&shrunk), "{shrunk}");
        // Halves are rounded by whoever stores them.
        assert_eq!(agree(Precision::F16, &ours, &products(cut_off)), Verdict::Agree);
    }

    #[test]
    fn what_lies_elsewhere_or_is_missing_differs() {
        let ours = products(nearest);
        let mut turned = ours.clone();
        turned.rotate_left(1);
        assert!(matches!(agree(Precision::F16, &ours, &turned), Verdict::Differ(_)));
        let mut hole = ours.clone();
        hole[17] = f32::NAN;
        assert_eq!(agree(Precision::F16, &ours, &hole), Verdict::Differ(f64::INFINITY));
        assert_eq!(agree(Precision::F16, &hole, &hole), Verdict::Agree);
        hole[17] = f32::INFINITY;
        assert_eq!(agree(Precision::F16, &hole, &hole), Verdict::Agree);
        assert_eq!(agree(Precision::F16, &hole, &ours), Verdict::Differ(f64::INFINITY));
    }
}
