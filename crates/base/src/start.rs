//! When an executor of a device starts an order, and what of the order's transfers is done by then.
//!
//! ```text
//!                inputs are here     executor is free
//!  ──the way───────────┬─────── waited ──────┬──────── takes - hidden ────────┤
//!                  ready_at                  at                            ends_at
//! ```
//!
//! The simulator's devices and those that a rehearsal imagines follow this one rule: one order at a time (P4), each in
//! its window (P3).

use crate::{Duration, Timestamp, Transfers, Window};

/// What becomes of an order on an executor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrderStart {
    /// When the executor turns to it.
    pub at: Timestamp,
    /// Whether its window is still open then. An order that is too late doesn't run.
    pub in_time: bool,
    /// How long it has been there by then, with its inputs.
    pub waited: Duration,
}

impl OrderStart {
    /// For an order that is there, with its inputs, at `ready_at`, on an executor that is free from `free_at` on.
    pub fn new(window: Window, ready_at: Timestamp, free_at: Timestamp) -> Self {
        let at = window.earliest.max(ready_at).max(free_at);
        Self { at, in_time: at <= window.latest, waited: at.since(ready_at) }
    }

    /// The transfers of a batch of which so much may run beside other batches: while it waits, it is brought over.
    pub fn transfers(self, overlap: Duration) -> Transfers {
        Transfers { before: overlap.min(self.waited), overlap }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    fn window(earliest: u64, latest: u64) -> Window {
        Window { earliest: at(earliest), latest: at(latest) }
    }

    #[test]
    fn an_order_starts_when_its_window_is_open_its_inputs_are_there_and_the_executor_is_free() {
        for (earliest, ready, free) in [(9, 5, 7), (5, 9, 7), (5, 7, 9)] {
            let start = OrderStart::new(window(earliest, 9), at(ready), at(free));
            assert_eq!((start.at, start.in_time), (at(9), true));
            assert!(!OrderStart::new(window(0, 8), at(ready.max(free).max(earliest)), at(free)).in_time, "too late");
        }
    }

    #[test]
    fn transfers_are_hidden_while_a_batch_waits() {
        let overlap = Duration::from_micros(3);
        let hidden = |free| OrderStart::new(window(0, 100), at(10), at(free)).transfers(overlap).before;
        assert_eq!([hidden(5), hidden(12), hidden(40)].map(Duration::as_micros), [0, 2, 3]);
    }
}
