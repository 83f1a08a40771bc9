//! What a model is computed in, by evidence: the fastest precision whose outputs are near enough to those in 32 bits.
//!
//! ```text
//!  fp16 ──> tf32 ──> tf32 behind some products in fp32 ──> fp32     the first within the bound
//!    └─ within the bound: tf32 is tried too, and the faster of the two is taken
//! ```
//!
//! The order is that of the speed that is expected, so that as little as possible is prepared: what follows one that is
//! near enough isn't tried. But in small and in recurrent networks fp16 is often slower than TF32, so that these two
//! are measured. 32 bits are always near enough. Errors mostly arise where a network begins, and all that is behind
//! passes them on; how many of the first products have to be in 32 bits is searched for with drafts.

use crate::{Purpose, Tensor, distance, is_real, numbers};
use base::{Duration, Precision, PrecisionChoice};

/// How far outputs may be off where nobody says it: a hundredth of an output's range.
pub const DEFAULT_BOUND: f64 = 1e-2;

/// The first number of products that are in 32 bits in a draft; the next has twice as many.
const FIRST_EXACT: u32 = 4;
/// How often the number is narrowed down.
const NARROWED: usize = 2;
/// TF32 is faster than fp16 if it saves more than this part of the time. Two trials of one program differ by a few
/// percent: by the device's frequency at the time, by the steps of its clock, and without one by all that a host does.
const SAVED: f64 = 0.05;

/// The outputs for several inputs: by input, in the model's order.
pub type Outputs = Vec<Vec<Tensor>>;

/// What a model computes in a precision.
#[derive(Clone, Debug)]
pub struct Computed {
    /// What it is really computed in: one with fewer products than should be in 32 bits has all of them in 32 bits.
    pub precision: Precision,
    /// The outputs.
    pub outputs: Outputs,
    /// What an execution takes; `None` for a draft, which is computed slowly.
    pub time: Option<Duration>,
}

/// A precision that was tried, and how far it is off.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Tried {
    /// The precision.
    pub precision: Precision,
    /// As [`error`] has it; infinite also where it can't be computed.
    pub error: f64,
}

/// What a model is computed in.
#[derive(Clone, PartialEq, Debug)]
pub struct Verdict {
    /// The precision, and how far it is off.
    pub chosen: Tried,
    /// Those that were too far off, in the order in which they were tried.
    pub others: Vec<Tried>,
    /// One that is near enough as well, and wasn't taken because it isn't faster.
    pub no_faster: Option<Tried>,
}

impl Verdict {
    /// That one, and no other was tried.
    pub fn alone(chosen: Tried) -> Self {
        Self { chosen, others: Vec::new(), no_faster: None }
    }
}

/// A precision that was tried, and what an execution takes in it.
type Timed = (Tried, Option<Duration>);

/// Decides. `candidates` are those of the engine, first what is expected to be the fastest; `compute` prepares the
/// model in a precision for a purpose, and computes always the same inputs with it. It fails if there is nothing to
/// compare with, or if a precision that was named can't be computed.
pub fn decide(
    choice: PrecisionChoice,
    candidates: &[Precision],
    bound: f64,
    mut compute: impl FnMut(Precision, Purpose) -> Result<Computed, String>,
) -> Result<Verdict, String> {
    let exact = || Verdict::alone(Tried { precision: Precision::Fp32, error: 0.0 });
    if choice == PrecisionChoice::Named(Precision::Fp32) {
        return Ok(exact());
    }
    let right = compute(Precision::Fp32, Purpose::Draft)?.outputs;
    let mut attempt = |precision: Precision, purpose: Purpose| {
        let Computed { precision, outputs, time } = compute(precision, purpose)?;
        Ok::<Timed, String>((Tried { precision, error: error(&right, &outputs) }, time))
    };
    if let PrecisionChoice::Named(named) = choice {
        return Ok(Verdict::alone(attempt(named, Purpose::Trial)?.0));
    }
    let mut attempt =
        |precision, purpose| attempt(precision, purpose).unwrap_or((Tried { precision, error: f64::INFINITY }, None));
    let mut others = Vec::new();
    for &candidate in candidates {
        let candidate = match candidate {
            Precision::Fp32 => break,
            Precision::Tf32Behind(most) => {
                let draft = |count| attempt(Precision::Tf32Behind(count), Purpose::Draft).0;
                match fewest_exact(most, bound, draft, &mut others) {
                    Some(count) => Precision::Tf32Behind(count),
                    None => continue,
                }
            }
            Precision::Fp16 | Precision::Tf32 => candidate,
        };
        let timed @ (tried, _) = attempt(candidate, Purpose::Trial);
        if tried.precision == Precision::Fp32 {
            break;
        }
        if tried.error <= bound && candidate == Precision::Fp16 && candidates.contains(&Precision::Tf32) {
            return Ok(fastest(timed, attempt(Precision::Tf32, Purpose::Trial), bound));
        }
        if tried.error <= bound {
            return Ok(Verdict { others, ..Verdict::alone(tried) });
        }
        others.push(tried);
    }
    Ok(Verdict { others, ..exact() })
}

/// One that is near enough, unless the next is near enough too and clearly faster.
fn fastest((first, first_time): Timed, (next, next_time): Timed, bound: f64) -> Verdict {
    if next.error <= bound {
        let times = first_time.zip(next_time);
        let is_faster = times.is_some_and(|(first, next)| next < first.mul_f64(1.0 - SAVED));
        let (chosen, other) = if is_faster { (next, first) } else { (first, next) };
        return Verdict { no_faster: Some(other), ..Verdict::alone(chosen) };
    }
    Verdict { others: vec![next], ..Verdict::alone(first) }
}

/// How many of the first products have to be in 32 bits, about; `None` if so many aren't enough, or all of them have to
/// be. Those that were too few are added to `others`.
fn fewest_exact(most: u32, bound: f64, mut draft: impl FnMut(u32) -> Tried, others: &mut Vec<Tried>) -> Option<u32> {
    let mut is_enough = |count: u32| {
        let tried = draft(count);
        let (all, near) = (tried.precision == Precision::Fp32, tried.error <= bound);
        if !all && !near {
            others.push(tried);
        }
        (all || near, near && !all)
    };
    let (mut too_few, mut enough, mut found) = (0, FIRST_EXACT.min(most), None);
    loop {
        let (ends, near) = is_enough(enough);
        found = near.then_some(enough).or(found);
        if ends {
            break;
        }
        if enough == most {
            return None;
        }
        (too_few, enough) = (enough, (2 * enough).min(most));
    }
    for _ in 0..NARROWED {
        let between = too_few + (enough - too_few) / 2;
        if between == too_few {
            break;
        }
        let (ends, near) = is_enough(between);
        found = near.then_some(between).or(found);
        if ends { enough = between } else { too_few = between }
    }
    found
}

/// How far outputs are off, at most. Of numbers with fractions: the largest difference, as a part of the range of the
/// right output over all inputs. Of others, which are positions, classes and flags: the part of them that differs.
pub fn error(right: &Outputs, found: &Outputs) -> f64 {
    let positions = right.iter().chain(found).map(Vec::len).max().unwrap_or(0);
    let all = |outputs: &'_ Outputs, position: usize| -> Option<Vec<Tensor>> {
        outputs.iter().map(|outputs| outputs.get(position).cloned()).collect()
    };
    let of = |position: usize| match (all(right, position), all(found, position)) {
        (Some(right), Some(found)) if right.len() == found.len() => output_error(&right, &found),
        _ => f64::INFINITY,
    };
    (0..positions).map(of).fold(0.0, f64::max)
}

/// How far the outputs for one input are off, as a part of an output's range over that input and others, whose right
/// outputs these are. Where 32 bits give no number there is nothing to compare with; `None` if they give none at all.
pub fn error_beside(others: &Outputs, right: &[Tensor], found: &[Tensor]) -> Option<f64> {
    let has_number = |tensor: &Tensor| {
        let values = numbers(tensor.datatype, &tensor.data).filter(|_| is_real(tensor.datatype));
        values.is_none_or(|values| values.iter().any(|value| value.is_finite()))
    };
    let compared = right.iter().zip(found).map(|(right, found)| with_odd_ones_of(right, found));
    let rest = found.iter().skip(right.len()).cloned();
    let with = |outputs: Vec<Tensor>| others.iter().cloned().chain([outputs]).collect::<Outputs>();
    right.iter().any(has_number).then(|| error(&with(right.to_vec()), &with(compared.chain(rest).collect())))
}

/// An output with the elements of the right one where these are no numbers.
fn with_odd_ones_of(right: &Tensor, found: &Tensor) -> Tensor {
    let alike = (right.datatype, right.data.len()) == (found.datatype, found.data.len());
    let values = numbers(right.datatype, &right.data).filter(|_| alike && is_real(right.datatype));
    let (Some(values), Some(bytes)) = (values, right.datatype.size()) else { return found.clone() };
    let mut data = found.data.to_vec();
    let places = data.chunks_exact_mut(bytes).zip(right.data.chunks_exact(bytes)).zip(values);
    for ((place, odd), _) in places.filter(|(_, value)| !value.is_finite()) {
        place.copy_from_slice(odd);
    }
    Tensor { data: data.into(), ..found.clone() }
}

/// The same for one output.
fn output_error(right: &[Tensor], found: &[Tensor]) -> f64 {
    let alike = |(right, found): (&Tensor, &Tensor)| (right.datatype, &right.shape) == (found.datatype, &found.shape);
    let Some(datatype) = right.first().map(|tensor| tensor.datatype) else { return 0.0 };
    if !right.iter().zip(found).all(alike) {
        return f64::INFINITY;
    }
    let [right, found] = [right, found]
        .map(|tensors| tensors.iter().flat_map(|tensor| tensor.data.iter().copied()).collect::<Vec<u8>>());
    match (numbers(datatype, &right), numbers(datatype, &found)) {
        (Some(right), Some(found)) if is_real(datatype) => real_error(&right, &found),
        _ => part_that_differs(&right, &found, datatype.size().unwrap_or(right.len().max(1))),
    }
}

/// The same for numbers with fractions. If none of the right ones is a number, they show nothing.
fn real_error(right: &[f64], found: &[f64]) -> f64 {
    if !right.is_empty() && right.iter().all(|number| !number.is_finite()) {
        return f64::INFINITY;
    }
    match distance(right, found) {
        0.0 => 0.0,
        distance => distance / range(right),
    }
}

/// From the smallest to the largest; of a number that is always the same, its size.
fn range(numbers: &[f64]) -> f64 {
    let finite = || numbers.iter().copied().filter(|number| number.is_finite());
    let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    if most > least { most - least } else { finite().fold(0.0, |size, number| number.abs().max(size)) }
}

fn part_that_differs(right: &[u8], found: &[u8], element_bytes: usize) -> f64 {
    let (right, found) = (right.chunks(element_bytes), found.chunks(element_bytes));
    let count = right.len().max(found.len()).max(1);
    let same = right.zip(found).filter(|(right, found)| right == found).count();
    (count - same) as f64 / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;

    const ALL: [Precision; 4] = [Precision::Fp16, Precision::Tf32, Precision::Tf32Behind(64), Precision::Fp32];

    fn reals(values: &[f32]) -> Tensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { datatype: DataType::Fp32, shape: vec![1, values.len() as i64], data: data.into() }
    }

    fn wholes(values: &[i64]) -> Tensor {
        let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Tensor { datatype: DataType::Int64, shape: vec![1, values.len() as i64], data: data.into() }
    }

    /// How far one output is off.
    fn off(right: Tensor, found: Tensor) -> f64 {
        error(&vec![vec![right]], &vec![vec![found]])
    }

    /// A model whose outputs are from 0 to 1, of which one is off by so much in fp16 and in TF32, and not at all if so
    /// many of its products are in 32 bits; it has so many in all. In fp16 an execution takes a millisecond.
    #[derive(Default)]
    struct Net {
        fp16: Option<f32>,
        tf32: f32,
        sensitive: u32,
        products: u32,
        /// What an execution takes in all else.
        micros: u64,
    }

    impl Net {
        /// What is decided, and what was computed for that.
        fn decided(&self, choice: PrecisionChoice) -> (Verdict, Vec<(Precision, Purpose)>) {
            let mut asked = Vec::new();
            let verdict = decide(choice, &ALL, 0.01, |precision, purpose| {
                asked.push((precision, purpose));
                let (really, off) = match precision {
                    Precision::Fp32 => (precision, 0.0),
                    Precision::Fp16 => (precision, self.fp16.ok_or("no kernel has it")?),
                    Precision::Tf32Behind(count) if count >= self.products => (Precision::Fp32, 0.0),
                    Precision::Tf32Behind(count) if count >= self.sensitive => (precision, 0.001),
                    Precision::Tf32 | Precision::Tf32Behind(_) => (precision, self.tf32),
                };
                let outputs = vec![vec![reals(&[0.0, 0.5 + off, 1.0])], vec![reals(&[0.0, 0.5, 1.0])]];
                let micros = if precision == Precision::Fp16 { 1000 } else { self.micros };
                let time = (purpose == Purpose::Trial).then(|| Duration::from_micros(micros));
                Ok(Computed { precision: really, outputs, time })
            });
            (verdict.unwrap(), asked)
        }
    }

    const AUTO: PrecisionChoice = PrecisionChoice::Auto;

    /// How many products were in 32 bits, in the order of the trials.
    fn counts(asked: &[(Precision, Purpose)], wanted: Purpose) -> Vec<u32> {
        let count = |&(precision, purpose): &(Precision, Purpose)| match precision {
            Precision::Tf32Behind(count) if purpose == wanted => Some(count),
            _ => None,
        };
        asked.iter().filter_map(count).collect()
    }

    /// What is computed where fp16 is near enough, and no more.
    const BOTH: [(Precision, Purpose); 3] =
        [(Precision::Fp32, Purpose::Draft), (Precision::Fp16, Purpose::Trial), (Precision::Tf32, Purpose::Trial)];

    /// What is decided where fp16 is near enough: the precision that is taken, and the one that is no faster.
    fn of_both(tf32: f32, micros: u64) -> (Precision, Option<Precision>) {
        let (verdict, asked) = Net { fp16: Some(0.004), tf32, micros, products: 10, ..Net::default() }.decided(AUTO);
        assert_eq!(asked, BOTH);
        let too_far_off: Vec<_> = verdict.others.iter().map(|tried| tried.precision).collect();
        assert_eq!(too_far_off, if tf32 <= 0.01 { vec![] } else { vec![Precision::Tf32] });
        let off = if verdict.chosen.precision == Precision::Fp16 { 0.004 } else { f64::from(tf32) };
        assert!((verdict.chosen.error - off).abs() < 1e-6, "{verdict:?}");
        (verdict.chosen.precision, verdict.no_faster.map(|tried| tried.precision))
    }

    #[test]
    fn tf32_is_taken_where_it_is_faster_and_near_enough() {
        assert_eq!(of_both(0.001, 949), (Precision::Tf32, Some(Precision::Fp16)));
        assert_eq!(of_both(0.009, 500), (Precision::Tf32, Some(Precision::Fp16)));
    }

    #[test]
    fn fp16_is_taken_where_both_take_the_same_or_tf32_takes_longer() {
        for micros in [951, 1000, 2000] {
            assert_eq!(of_both(0.001, micros), (Precision::Fp16, Some(Precision::Tf32)));
        }
    }

    #[test]
    fn fp16_is_taken_where_tf32_is_too_far_off_however_fast_it_is() {
        assert_eq!(of_both(0.02, 1), (Precision::Fp16, None));
        assert_eq!(of_both(f32::NAN, 1), (Precision::Fp16, None));
    }

    #[test]
    fn without_times_or_tf32_the_first_that_is_near_enough_is_taken() {
        let right = vec![vec![reals(&[0.0, 1.0])]];
        let untimed = |precision, _| Ok(Computed { precision, outputs: right.clone(), time: None });
        let of = |candidates: &[Precision]| decide(AUTO, candidates, 0.01, untimed).unwrap();
        let tried = |precision| Tried { precision, error: 0.0 };
        let fp16 = Verdict::alone(tried(Precision::Fp16));
        assert_eq!(of(&ALL), Verdict { no_faster: Some(tried(Precision::Tf32)), ..fp16.clone() });
        assert_eq!(of(&[Precision::Fp16, Precision::Fp32]), fp16);
        assert_eq!(of(&[Precision::Tf32, Precision::Fp32]), Verdict::alone(tried(Precision::Tf32)));
    }

    #[test]
    fn what_is_too_far_off_or_no_number_or_not_there_makes_way_for_the_next() {
        for fp16 in [Some(f32::INFINITY), Some(f32::NAN), None] {
            let (verdict, asked) = Net { fp16, tf32: 0.001, products: 10, ..Net::default() }.decided(AUTO);
            assert_eq!((verdict.chosen.precision, verdict.no_faster), (Precision::Tf32, None));
            assert_eq!(verdict.others, [Tried { precision: Precision::Fp16, error: f64::INFINITY }]);
            assert_eq!(asked.len(), 3);
        }
    }

    #[test]
    fn as_few_products_as_needed_are_exact() {
        let decided = |sensitive, products| {
            let net = Net { fp16: Some(0.15), tf32: 0.16, sensitive, products, ..Net::default() };
            let (verdict, asked) = net.decided(AUTO);
            let drafts = counts(&asked, Purpose::Draft);
            (verdict.chosen.precision, drafts, counts(&asked, Purpose::Trial))
        };
        assert_eq!(decided(1, 54), (Precision::Tf32Behind(1), vec![4, 2, 1], vec![1]));
        assert_eq!(decided(12, 85), (Precision::Tf32Behind(12), vec![4, 8, 16, 12, 10], vec![12]));
        // A spectrum of 26 products, and six behind it.
        assert_eq!(decided(26, 32), (Precision::Tf32Behind(28), vec![4, 8, 16, 32, 24, 28], vec![28]));
        assert_eq!(decided(64, 200), (Precision::Tf32Behind(64), vec![4, 8, 16, 32, 64, 48, 56], vec![64]));
        assert_eq!(decided(65, 200), (Precision::Fp32, vec![4, 8, 16, 32, 64], vec![]), "too many");
        assert_eq!(decided(30, 31), (Precision::Fp32, vec![4, 8, 16, 32, 24, 28], vec![]), "almost all");
        assert_eq!(decided(3, 3), (Precision::Fp32, vec![4, 2, 3], vec![]), "all");
    }

    #[test]
    fn where_nothing_else_is_near_enough_it_is_32_bits() {
        let net = Net { fp16: Some(0.5), tf32: 0.5, sensitive: 100, products: 100, ..Net::default() };
        let (verdict, asked) = net.decided(AUTO);
        assert_eq!(verdict.chosen, Tried { precision: Precision::Fp32, error: 0.0 });
        assert_eq!(verdict.others.len(), 2 + 5);
        assert!(!asked.contains(&(Precision::Fp32, Purpose::Trial)), "32 bits aren't tried");
    }

    #[test]
    fn what_was_named_is_obeyed_and_its_error_is_known() {
        let net = Net { tf32: 0.25, sensitive: 9, products: 10, ..Net::default() };
        let named = PrecisionChoice::Named;
        let (verdict, asked) = net.decided(named(Precision::Tf32));
        assert_eq!(verdict.chosen, Tried { precision: Precision::Tf32, error: 0.25 });
        assert_eq!(asked, [(Precision::Fp32, Purpose::Draft), (Precision::Tf32, Purpose::Trial)]);
        let near = Net { fp16: Some(0.001), tf32: 0.001, products: 10, ..Net::default() };
        assert_eq!(near.decided(named(Precision::Fp16)).1, BOTH[..2], "what is faster isn't asked");
        let (verdict, asked) = net.decided(named(Precision::Fp32));
        assert_eq!((verdict.chosen.error, asked.len()), (0.0, 0), "there is nothing to compare");
        let failed = decide(named(Precision::Tf32), &ALL, 0.01, |_, _| Err("no input was found".into()));
        assert_eq!(failed, Err("no input was found".into()));
    }

    #[test]
    fn an_error_is_a_part_of_the_range_over_all_inputs() {
        assert_eq!(off(reals(&[-1.0, 3.0]), reals(&[-1.0, 2.0])), 0.25);
        assert_eq!(off(reals(&[5.0, 5.0]), reals(&[5.0, 4.0])), 0.2, "of what has no range, a part of its size");
        let right = vec![vec![reals(&[1.0])], vec![reals(&[11.0])]];
        assert_eq!(error(&right, &vec![vec![reals(&[2.0])], vec![reals(&[11.0])]]), 0.1);
        // The worst output counts.
        let right = vec![vec![reals(&[0.0, 1.0]), reals(&[0.0, 100.0])]];
        assert_eq!(error(&right, &vec![vec![reals(&[0.5, 1.0]), reals(&[0.0, 100.0])]]), 0.5);
    }

    #[test]
    fn what_is_no_number_must_be_none_in_both() {
        for odd in [f32::NAN, f32::INFINITY] {
            assert_eq!(off(reals(&[0.0, 1.0]), reals(&[0.0, odd])), f64::INFINITY);
            assert_eq!(off(reals(&[0.0, odd, 1.0]), reals(&[0.0, odd, 1.0])), 0.0);
            assert_eq!(off(reals(&[0.0, odd, 1.0]), reals(&[0.5, odd, 1.0])), 0.5, "the range is that of the others");
        }
        assert_eq!(off(reals(&[0.0]), reals(&[1.0])), f64::INFINITY, "nothing has no range");
        let none = [f32::NAN, f32::NEG_INFINITY];
        assert_eq!(off(reals(&none), reals(&none)), f64::INFINITY, "without any number nothing is shown");
        assert_eq!((off(reals(&[0.0]), reals(&[0.0])), off(reals(&[]), reals(&[]))), (0.0, 0.0));
    }

    /// How far one output is off for one input, beside another with outputs from 0 to 4.
    fn off_beside(right: Tensor, found: Tensor) -> Option<f64> {
        error_beside(&vec![vec![reals(&[0.0, 4.0])]], &[right], &[found])
    }

    #[test]
    fn one_input_is_judged_by_the_range_of_all_and_only_where_there_is_a_number() {
        assert_eq!(off_beside(reals(&[1.0, 2.0]), reals(&[1.0, 1.0])), Some(0.25));
        assert_eq!(off_beside(reals(&[1.0, 10.0]), reals(&[1.0, 15.0])), Some(0.5), "its own range, if that is larger");
        for odd in [f32::NAN, f32::INFINITY] {
            assert_eq!(off_beside(reals(&[1.0, odd]), reals(&[1.0, 3.0])), Some(0.0), "32 bits give no number");
            assert_eq!(off_beside(reals(&[odd, odd]), reals(&[1.0, odd])), None, "nor any at all");
            assert_eq!(off_beside(reals(&[1.0, 3.0]), reals(&[1.0, odd])), Some(f64::INFINITY));
            assert_eq!(off_beside(reals(&[odd, 3.0]), reals(&[0.0, odd])), Some(f64::INFINITY));
        }
        assert_eq!(off_beside(reals(&[1.0]), wholes(&[1])), Some(f64::INFINITY));
        assert_eq!(error_beside(&Vec::new(), &[wholes(&[1, 2])], &[wholes(&[1, 3])]), Some(0.5));
        assert_eq!(error_beside(&Vec::new(), &[reals(&[1.0])], &[]), Some(f64::INFINITY));
    }

    #[test]
    fn of_whole_numbers_the_part_counts_that_differs() {
        assert_eq!(off(wholes(&[3, 900, 5, 7]), wholes(&[3, 1, 5, 7])), 0.25);
        assert_eq!(off(wholes(&[3]), wholes(&[3])), 0.0);
    }

    #[test]
    fn other_shapes_are_as_far_off_as_can_be() {
        assert_eq!(off(reals(&[0.0, 1.0]), reals(&[0.0])), f64::INFINITY);
        assert_eq!(off(reals(&[0.0, 1.0]), wholes(&[0])), f64::INFINITY);
        assert_eq!(error(&vec![vec![reals(&[0.0])]], &vec![Vec::new()]), f64::INFINITY);
        assert_eq!(error(&vec![vec![reals(&[0.0])]], &Vec::new()), f64::INFINITY);
    }
}
