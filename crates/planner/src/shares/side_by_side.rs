//! How far a batch is while others run in the other shares of its GPU: for whoever pretends to be one.
//!
//! ```text
//!  share 0 ▕▓▓▓▓▓▓ a ▓▓▓▓▓▓▓▓▓▏            alone again: as quick as it is
//!  share 1       ▕▒▒ b ▒▒▒▏                both are slower for as long as both run
//! ```

use super::{BatchInShare, Interference};
use base::{Duration, Timestamp};

/// How far a batch is that may have others beside it.
#[derive(Clone, Copy, Debug)]
pub struct SideBySide {
    sensitivity: f64,
    pressure: f64,
    /// What is left of it, if it were alone.
    left: Duration,
    since: Timestamp,
    slowdown: f64,
}

impl SideBySide {
    /// A batch that starts alone, and takes so long if it stays so.
    pub fn new(interference: &Interference, batch: BatchInShare<'_>, now: Timestamp, takes: Duration) -> Self {
        Self {
            sensitivity: interference.sensitivity(batch),
            pressure: interference.pressure(batch),
            left: takes,
            since: now,
            slowdown: 1.0,
        }
    }

    /// What it does to others.
    pub fn pressure(&self) -> f64 {
        self.pressure
    }

    /// From now on these pressures are beside it.
    pub fn beside(&mut self, now: Timestamp, pressures: impl Iterator<Item = f64>) {
        self.left -= now.since(self.since).mul_f64(1.0 / self.slowdown);
        self.since = now;
        let slowdowns = pressures.map(|pressure| (self.sensitivity + pressure).exp());
        self.slowdown = slowdowns.fold(1.0, f64::max);
    }

    /// When it ends if nothing changes.
    pub fn ends_at(&self) -> Timestamp {
        self.since + self.left.mul_f64(self.slowdown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    #[test]
    fn a_batch_is_slower_for_as_long_as_another_runs_beside_it() {
        let left = Duration::from_micros(1_000);
        let mut batch = SideBySide { sensitivity: 0.5_f64.ln(), pressure: 0.0, left, since: at(0), slowdown: 1.0 };
        assert_eq!(batch.ends_at(), at(1_000));
        batch.beside(at(400), [4.0_f64.ln()].into_iter());
        assert_eq!(batch.ends_at(), at(1_600), "what is left takes twice as long");
        batch.beside(at(800), std::iter::empty());
        assert_eq!(batch.ends_at(), at(1_200), "400 alone, 200 beside the other, 400 alone");
        batch.beside(at(800), [1.0_f64.ln()].into_iter());
        assert_eq!(batch.ends_at(), at(1_200), "nobody makes others quicker");
    }
}
