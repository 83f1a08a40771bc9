//! Whether a library computes what our kernels do. It is asked before its kernel is chosen: speed is all that is
//! measured otherwise.

use graph::plan::{Precision, Tensor};

/// By what part all results may be too small in TF32. Factors that are rounded make no difference on average; if they
/// are cut off, products are smaller by 3.1e-4 (if one factor is) to 6.3e-4, in every layer, and deep networks add that
/// up. A bias, a residual or an activation that isn't proportional makes it less, and matter less.
const SHRUNK: f64 = 1.5e-4;

/// What two kernels made of the same numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Agreement {
    /// The same, but for rounding.
    Agree,
    /// Something else.
    Differ(f64),
    /// The same, but cut off instead of rounded.
    CutOff(f64),
}

/// How far two kernels may be apart. The first bound is for the largest difference, relative to the largest number. The
/// second is for the root of all squared differences, relative to that of the squared numbers: there a few large
/// numbers don't hide the others. Both are several times what rounding does, and far below what a mistaken layout or a
/// missing bias does.
fn bounds(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::F32 => (1e-4, 1e-4),
        Precision::Tf32 | Precision::F16 => (2e-2, 1e-2),
    }
}

/// Compares a library's results with ours.
pub(super) fn agree(precision: Precision, ours: &[f32], theirs: &[f32]) -> Agreement {
    let (most, all) = (apart(ours, theirs), apart_in_all(ours, theirs));
    // Of few numbers, all may be small by chance.
    let few = 1.0 + 16.0 / ours.len().max(1) as f64;
    let (most_allowed, all_allowed) = bounds(precision);
    if most > most_allowed * few || all > all_allowed * few {
        return Agreement::Differ(most.max(all));
    }
    // What rounding leaves of an average over so many; of fewer it says nothing.
    let chance = 1e-3 / (ours.len().max(1) as f64).sqrt();
    let shrunk = shrunk(ours, theirs);
    let cut_off = precision == Precision::Tf32 && ours.len() >= 64 && shrunk > SHRUNK + chance;
    if cut_off { Agreement::CutOff(shrunk) } else { Agreement::Agree }
}

/// Which elements of the memory between a tensor's first and last are its own: so many of every so many. The rest is of
/// its neighbours in a concatenation.
pub(super) fn own_elements(tensor: &Tensor) -> (usize, usize) {
    let mut axes: Vec<(usize, usize)> =
        tensor.strides.iter().map(|stride| stride.unsigned_abs()).zip(tensor.dims.iter().copied()).collect();
    axes.retain(|&(_, dim)| dim > 1);
    axes.sort_unstable();
    let mut own = 1;
    for (stride, dim) in axes {
        if stride != own {
            return (own, stride.max(own));
        }
        own *= dim;
    }
    (own, own)
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

/// The root of the squared differences, over that of the squares.
fn apart_in_all(right: &[f32], found: &[f32]) -> f64 {
    let both = right.iter().zip(found).filter(|(right, found)| right.is_finite() && found.is_finite());
    let (squares, differences) = both.fold((0.0, 0.0), |(squares, differences), (&right, &found)| {
        let (right, found) = (f64::from(right), f64::from(found));
        (squares + right * right, differences + (right - found).powi(2))
    });
    if differences > 0.0 { (differences / squares).sqrt() } else { 0.0 }
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
    use super::super::uniform;
    use super::*;
    use graph::plan::{DataType, TensorPlace, channels_last};

    /// Products of rows of numbers that were rounded in a given way.
    fn products(keep: impl Fn(f32) -> f32) -> Vec<f32> {
        let mut random = uniform(7);
        let mut next = || keep(random());
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
        assert_eq!(agree(Precision::Tf32, &ours, &products(|x| x)), Agreement::Agree);
        let Agreement::CutOff(shrunk) = agree(Precision::Tf32, &ours, &products(cut_off)) else { panic!("cut off") };
        assert!((5e-4..1e-3).contains(&shrunk), "{shrunk}");
        // Halves are rounded by whoever stores them.
        assert_eq!(agree(Precision::F16, &ours, &products(cut_off)), Agreement::Agree);
    }

    #[test]
    fn a_missing_bias_differs_and_few_numbers_may_be_small() {
        let ours: Vec<f32> = products(nearest).iter().map(|x| x * 10.0).collect();
        let mut random = uniform(3);
        let biased: Vec<f32> = ours.iter().map(|x| x + 0.5 * random()).collect();
        assert!(matches!(agree(Precision::F16, &ours, &biased), Agreement::Differ(_)));
        assert_eq!(agree(Precision::Tf32, &[0.01], &[0.0095]), Agreement::Agree);
        assert!(matches!(agree(Precision::Tf32, &[0.01], &[0.02]), Agreement::Differ(_)));
        // TF32 isn't F32.
        assert!(matches!(agree(Precision::F32, &products(|x| x), &products(nearest)), Agreement::Differ(_)));
    }

    #[test]
    fn neighbours_in_a_concatenation_are_not_its_own() {
        let dims = [2, 24, 5, 7];
        let mut tensor = Tensor {
            dtype: DataType::Fp16,
            dims: dims.to_vec(),
            strides: channels_last(&dims),
            place: TensorPlace::Workspace,
            offset: 0,
        };
        assert_eq!(own_elements(&tensor), (2 * 24 * 5 * 7, 2 * 24 * 5 * 7));
        tensor.strides = vec![5 * 7 * 64, 1, 7 * 64, 64];
        assert_eq!(own_elements(&tensor), (24, 64));
        tensor.dims[1] = 1;
        assert_eq!(own_elements(&tensor), (1, 64));
    }

    #[test]
    fn what_lies_elsewhere_or_is_missing_differs() {
        let ours = products(nearest);
        let mut turned = ours.clone();
        turned.rotate_left(1);
        assert!(matches!(agree(Precision::F16, &ours, &turned), Agreement::Differ(_)));
        let mut hole = ours.clone();
        hole[17] = f32::NAN;
        assert_eq!(agree(Precision::F16, &ours, &hole), Agreement::Differ(f64::INFINITY));
        assert_eq!(agree(Precision::F16, &hole, &hole), Agreement::Agree);
        // One number that is far larger than the others hides nothing.
        let (mut peak, mut turned) = (ours.clone(), ours.clone());
        turned.rotate_left(1);
        (peak[0], turned[0]) = (500.0, 500.0);
        assert!(matches!(agree(Precision::F16, &peak, &turned), Agreement::Differ(_)));
        hole[17] = f32::INFINITY;
        assert_eq!(agree(Precision::F16, &hole, &hole), Agreement::Agree);
        assert_eq!(agree(Precision::F16, &hole, &ours), Agreement::Differ(f64::INFINITY));
    }
}
