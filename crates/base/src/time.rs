//! Instants and spans as whole nanoseconds in 8 bytes.
//!
//! `std`'s types are not used inside: its instants can't be made up (the simulator must), and its spans are 12 bytes
//! with checked 128-bit arithmetic, which shows in a scheduler that compares millions of them a second.

use core::fmt;
use core::ops::{Add, AddAssign, Div, Mul, Sub, SubAssign};

/// An instant, as nanoseconds since an origin that the driver chose. Opaque: only differences mean anything.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timestamp(u64);

/// A span of time in nanoseconds; never negative, and subtraction stops at zero.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Duration(u64);

impl Timestamp {
    /// The driver's origin.
    pub const ZERO: Self = Self(0);
    /// Later than everything: "no deadline", "never".
    pub const NEVER: Self = Self(u64::MAX);

    /// The instant that many nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The span from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than everything.
    pub const MAX: Self = Self(u64::MAX);

    /// That many nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// That many microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// That many milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// That many seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// A fractional number of milliseconds; negative and not-a-number become zero.
    pub fn from_millis_f64(millis: f64) -> Self {
        Self((millis * 1e6).round() as u64)
    }

    /// A fractional number of seconds; negative and not-a-number become zero.
    pub fn from_secs_f64(secs: f64) -> Self {
        Self((secs * 1e9).round() as u64)
    }

    /// Whole nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Milliseconds with their fraction.
    pub fn as_millis_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Seconds with their fraction.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// This span times a factor that is not negative.
    pub fn mul_f64(self, factor: f64) -> Self {
        Self((self.0 as f64 * factor).round() as u64)
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, span: Duration) -> Self {
        // NEVER stays NEVER: an instant that doesn't come doesn't come a little earlier either.
        if self == Self::NEVER { self } else { Self(self.0.saturating_sub(span.0)) }
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Duration {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Duration {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl Mul<u64> for Duration {
    type Output = Self;
    fn mul(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
}

impl Div<u64> for Duration {
    type Output = Self;
    fn div(self, divisor: u64) -> Self {
        Self(self.0 / divisor)
    }
}

impl core::iter::Sum for Duration {
    fn sum<I: Iterator<Item = Self>>(spans: I) -> Self {
        spans.fold(Self::ZERO, Add::add)
    }
}

impl From<core::time::Duration> for Duration {
    fn from(span: core::time::Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for core::time::Duration {
    fn from(span: Duration) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { f.write_str("never") } else { write!(f, "@{}", Duration(self.0)) }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            n if n < 10_000 => write!(f, "{n}ns"),
            n if n < 10_000_000 => write!(f, "{}us", n as f64 / 1e3),
            n if n < 10_000_000_000 => write!(f, "{}ms", n as f64 / 1e6),
            n => write!(f, "{}s", n as f64 / 1e9),
        }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// When an action may start: not before `earliest`, not after `latest` (P3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Window {
    /// The first instant at which the action may start.
    pub earliest: Timestamp,
    /// The last instant at which it may start; past it the worker cancels.
    pub latest: Timestamp,
}

impl Window {
    /// Whether an action may start at that instant.
    pub fn contains(&self, at: Timestamp) -> bool {
        self.earliest <= at && at <= self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtraction_stops_at_the_origin_and_never_stays_never() {
        assert_eq!(Timestamp::from_nanos(5) - Duration::from_nanos(9), Timestamp::ZERO);
        assert_eq!(Timestamp::NEVER - Duration::from_secs(1), Timestamp::NEVER);
        assert_eq!(Timestamp::from_nanos(3).since(Timestamp::from_nanos(7)), Duration::ZERO);
    }

    #[test]
    fn spans_print_in_a_unit_that_can_be_read() {
        let shown: Vec<String> =
            [9_999, 12_500, 25_000_000, 90_000_000_000].map(|n| Duration::from_nanos(n).to_string()).to_vec();
        assert_eq!(shown, ["9999ns", "12.5us", "25ms", "90s"]);
    }

    #[test]
    fn fractions_round_to_the_nearest_nanosecond() {
        assert_eq!(Duration::from_millis_f64(2.61), Duration::from_nanos(2_610_000));
        assert_eq!(Duration::from_millis_f64(-1.0), Duration::ZERO);
        assert_eq!(Duration::from_millis_f64(f64::NAN), Duration::ZERO);
    }
}
