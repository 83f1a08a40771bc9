//! A distribution of spans, as a histogram: what fraction takes at most this long.
//!
//! Bins are like those of an HDR histogram: 32 equal parts of each power of two, so that a bin is between 1.6 and 3.1 %
//! wide wherever it lies, and which bin a span belongs to is found without rounding. Within a bin everything is taken
//! to lie evenly.
//!
//! The maximum of independent draws has the product of their distribution functions. For draws of one distribution that
//! is a power (Orloj, equation 6); for different ones the paper sums over all subsets (equation 8), which is the same
//! product written out.

/// Bins of each power of two.
const PARTS: usize = 32;
/// Past the last bin: the number for `u64::MAX`.
pub(crate) const BINS: usize = 60 * PARTS;

/// Which bin a span in nanoseconds belongs to.
pub(crate) fn bin_of(nanos: u64) -> u16 {
    if nanos < PARTS as u64 {
        return nanos as u16;
    }
    let octave = 63 - nanos.leading_zeros();
    let part = (nanos >> (octave - 5)) as usize & (PARTS - 1);
    ((octave as usize - 4) * PARTS + part) as u16
}

/// Where a bin begins, in nanoseconds.
pub(crate) fn edge(bin: usize) -> f64 {
    if bin < PARTS {
        return bin as f64;
    }
    let (octave, part) = (bin / PARTS + 4, bin % PARTS);
    ((PARTS + part) as u128 * (1_u128 << (octave - 5))) as f64
}

/// A part of a distribution: this probability lies evenly between two spans, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Piece {
    pub from: f64,
    pub to: f64,
    pub part: f64,
}

/// A distribution of spans in nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Distribution {
    /// The first bin that anything lies in.
    first: usize,
    /// For each bin from there on, the probability of everything up to its end. The last one is 1.
    up_to: Vec<f64>,
}

impl Distribution {
    /// All in one bin.
    pub fn point(nanos: u64) -> Self {
        Self { first: usize::from(bin_of(nanos)), up_to: vec![1.0] }
    }

    /// From how often each bin was seen; `None` where nothing was.
    pub fn of_counts(counts: &[u32; BINS]) -> Option<Self> {
        let first = counts.iter().position(|&count| count > 0)?;
        let last = counts.iter().rposition(|&count| count > 0)?;
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let mut sum = 0;
        let up_to = counts[first..=last].iter().map(|&count| {
            sum += u64::from(count);
            sum as f64 / total as f64
        });
        Some(Self { first, up_to: up_to.collect() })
    }

    fn end(&self) -> usize {
        self.first + self.up_to.len()
    }

    /// The probability of everything up to the end of a bin.
    fn up_to(&self, bin: usize) -> f64 {
        if bin < self.first { 0.0 } else { self.up_to.get(bin - self.first).copied().unwrap_or(1.0) }
    }

    /// The probability of at most that many nanoseconds.
    pub fn within(&self, nanos: f64) -> f64 {
        if nanos < 0.0 {
            return 0.0;
        }
        let bin = usize::from(bin_of(nanos as u64));
        let before = if bin == 0 { 0.0 } else { self.up_to(bin - 1) };
        let (from, to) = (edge(bin), edge(bin + 1));
        before + (self.up_to(bin) - before) * ((nanos - from) / (to - from)).min(1.0)
    }

    /// The span that this part of all don't exceed.
    pub fn quantile(&self, part: f64) -> f64 {
        let index = self.up_to.partition_point(|&up_to| up_to < part).min(self.up_to.len() - 1);
        let before = if index == 0 { 0.0 } else { self.up_to[index - 1] };
        let inside = ((part - before) / (self.up_to[index] - before).max(1e-12)).clamp(0.0, 1.0);
        let (from, to) = (edge(self.first + index), edge(self.first + index + 1));
        from + (to - from) * inside
    }

    /// The expected span.
    pub fn mean(&self) -> f64 {
        let mut before = 0.0;
        let mut mean = 0.0;
        for (index, &up_to) in self.up_to.iter().enumerate() {
            let bin = self.first + index;
            mean += (up_to - before) * (edge(bin) + edge(bin + 1)) / 2.0;
            before = up_to;
        }
        mean
    }

    /// The largest of so many draws of each of these.
    pub fn maximum(of: &[(&Self, u32)]) -> Self {
        let first = of.iter().filter(|(_, count)| *count > 0).map(|(each, _)| each.first).max().unwrap_or(0);
        let end = of.iter().filter(|(_, count)| *count > 0).map(|(each, _)| each.end()).max().unwrap_or(1);
        let product = |bin: usize| of.iter().map(|(each, count)| power(each.up_to(bin), *count)).product();
        Self { first, up_to: (first..end).map(product).collect() }.trimmed()
    }

    /// One of these, each as often as its weight says; `None` without any weight.
    pub fn mixture(of: &[(&Self, f64)]) -> Option<Self> {
        let total: f64 = of.iter().map(|(_, weight)| weight).sum();
        let first = of.iter().filter(|(_, weight)| *weight > 0.0).map(|(each, _)| each.first).min()?;
        let end = of.iter().filter(|(_, weight)| *weight > 0.0).map(|(each, _)| each.end()).max()?;
        let sum = |bin: usize| of.iter().map(|(each, weight)| weight / total * each.up_to(bin)).sum();
        let mut mixture = Self { first, up_to: (first..end).map(sum).collect() };
        *mixture.up_to.last_mut()? = 1.0;
        Some(mixture)
    }

    /// Without bins at the front that nothing lies in.
    fn trimmed(mut self) -> Self {
        let empty = self.up_to.iter().take_while(|&&up_to| up_to < 1e-9).count().min(self.up_to.len() - 1);
        self.up_to.drain(..empty);
        self.first += empty;
        self
    }

    /// The same in at most so many pieces, of about equal probability.
    pub fn pieces(&self, most: usize) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::with_capacity(most);
        let (mut before, mut from) = (0.0, self.first);
        for (index, &up_to) in self.up_to.iter().enumerate() {
            let bin = self.first + index;
            let enough = up_to - before >= 1.0 / most as f64 || index + 1 == self.up_to.len();
            if enough && up_to > before {
                pieces.push(Piece { from: edge(from), to: edge(bin + 1), part: up_to - before });
                (before, from) = (up_to, bin + 1);
            }
        }
        pieces
    }
}

/// Exact in the same way everywhere, which the standard library's isn't.
pub(crate) fn power(base: f64, exponent: u32) -> f64 {
    let (mut result, mut factor, mut rest) = (1.0, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result *= factor;
        }
        factor *= factor;
        rest >>= 1;
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(spans: &[u64]) -> Distribution {
        let mut counts = [0; BINS];
        spans.iter().for_each(|&span| counts[usize::from(bin_of(span))] += 1);
        Distribution::of_counts(&counts).unwrap()
    }

    #[track_caller]
    fn close(got: f64, wanted: f64, part: f64) {
        assert!((got - wanted).abs() <= part * wanted, "{got} for {wanted}");
    }

    #[test]
    fn bins_meet_and_hold_what_is_theirs() {
        for nanos in [0, 1, 31, 32, 33, 63, 64, 65, 1_000, 123_456_789, u64::MAX] {
            let bin = usize::from(bin_of(nanos));
            assert!(bin < BINS && edge(bin) <= nanos as f64 && nanos as f64 <= edge(bin + 1), "{nanos} in {bin}");
        }
        assert!((32..BINS).all(|bin| (1.015..1.032).contains(&(edge(bin + 1) / edge(bin)))));
    }

    #[test]
    fn the_largest_of_some_evenly_spread_is_where_the_text_book_has_it() {
        let even = of(&(1..=100_000_u64).map(|n| n * 1_000).collect::<Vec<_>>());
        close(even.mean(), 50e6, 0.01);
        for count in [1, 2, 5, 20] {
            // E max = n / (n + 1); the median is the nth root of a half.
            let largest = Distribution::maximum(&[(&even, count)]);
            close(largest.mean(), 100e6 * f64::from(count) / f64::from(count + 1), 0.02);
            close(largest.quantile(0.5), 100e6 * 0.5_f64.powf(1.0 / f64::from(count)), 0.02);
            close(largest.within(80e6), 0.8_f64.powi(count as i32), 0.03);
        }
    }

    #[test]
    fn the_largest_of_different_ones_is_mostly_the_longer() {
        let (short, long) = (of(&[10_000; 10]), of(&[20_000, 20_000, 20_000, 90_000]));
        let both = Distribution::maximum(&[(&short, 3), (&long, 2)]);
        close(both.mean(), 20_000.0 * 9.0 / 16.0 + 90_000.0 * 7.0 / 16.0, 0.03);
        assert_eq!(Distribution::maximum(&[(&short, 1), (&long, 0)]), short);
        let mixed = Distribution::mixture(&[(&short, 1.0), (&long, 3.0)]).unwrap();
        close(mixed.mean(), 0.25 * 10_000.0 + 0.75 * 37_500.0, 0.03);
    }

    #[test]
    fn pieces_are_few_and_all_of_it() {
        let spans: Vec<u64> = (1..=1_000_u64).map(|n| n * n * 1_000).collect();
        let pieces = of(&spans).pieces(8);
        assert!(pieces.len() <= 8, "{pieces:?}");
        close(pieces.iter().map(|piece| piece.part).sum(), 1.0, 1e-9);
        assert!(pieces.windows(2).all(|pair| pair[0].to <= pair[1].from));
    }

    proptest! {
        /// Quantiles and probabilities are each other's inverse, and the largest of two takes no less than either.
        #[test]
        fn it_is_a_distribution(spans in proptest::collection::vec(1u64..10_000_000_000, 1..200), part in 0.01f64..0.99) {
            let all = of(&spans);
            let quantile = all.quantile(part);
            prop_assert!((all.within(quantile) - part).abs() < 1e-6 || all.within(quantile * 0.999) < part);
            let mean = spans.iter().sum::<u64>() as f64 / spans.len() as f64;
            prop_assert!((all.mean() - mean).abs() <= 0.02 * mean + 1.0, "{} for {mean}", all.mean());
            prop_assert!(Distribution::maximum(&[(&all, 2)]).mean() >= all.mean() * 0.999_999);
        }
    }
}
