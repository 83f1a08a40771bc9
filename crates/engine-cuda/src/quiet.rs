//! When kernels may be measured on a device that serves: only while nobody uses it.
//!
//! ```text
//!  batches    ──▐█▌──▐██▌─────────────────────────▐█▌──────
//!  measured              │◄─ QUIET ─►│ ▪ ▪ ▪ ▪ ▪ ▪!         ! spoilt by the batch, and measured again
//! ```
//!
//! One measurement takes a millisecond or two ([`AT_MOST`]), on a stream that lets others go first.

use crate::toolkit::CudaError;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// What one measurement takes on the device at most, unless a single launch takes longer.
pub(crate) const AT_MOST: Duration = Duration::from_millis(2);
/// If nobody has come for so long, nobody will in the next [`AT_MOST`].
pub(crate) const QUIET: Duration = Duration::from_millis(20);

/// Who else uses a device.
pub(crate) trait Others {
    /// Waits until nobody does. Fails if the measurement isn't wanted any more.
    fn wait_until_quiet(&self) -> Result<(), CudaError>;

    /// How many batches have come so far.
    fn came(&self) -> u32;

    /// Set when the measurement isn't wanted any more.
    fn given_up(&self) -> &AtomicBool;
}

/// Nothing is given up.
pub(crate) static NEVER: AtomicBool = AtomicBool::new(false);

/// Nobody.
pub(crate) struct Nobody;

impl Others for Nobody {
    fn wait_until_quiet(&self) -> Result<(), CudaError> {
        Ok(())
    }

    fn came(&self) -> u32 {
        0
    }

    fn given_up(&self) -> &AtomicBool {
        &NEVER
    }
}

/// Measures until nobody came meanwhile.
pub(crate) fn undisturbed<T>(
    others: &dyn Others,
    mut measure: impl FnMut() -> Result<T, CudaError>,
) -> Result<T, CudaError> {
    loop {
        others.wait_until_quiet()?;
        let before = others.came();
        let measured = measure()?;
        if others.came() == before {
            return Ok(measured);
        }
    }
}

/// How many launches are timed at once of a kernel that takes so long, of so many at most.
pub(crate) fn launches_at_once(one: Duration, most: usize) -> usize {
    let fit = AT_MOST.as_nanos() / one.as_nanos().max(1);
    usize::try_from(fit).unwrap_or(most).clamp(1, most)
}

/// What was seen of a device's batches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeenBatches {
    came: u32,
    /// Of the last time that one was there.
    at: Option<Instant>,
}

impl SeenBatches {
    /// So many batches have come so far, and some may be under way. Whether it is quiet.
    pub(crate) fn look(&mut self, came: u32, some_under_way: bool, now: Instant) -> bool {
        if came != self.came || some_under_way {
            (self.came, self.at) = (came, Some(now));
        }
        self.at.is_none_or(|at| now.saturating_duration_since(at) >= QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn a_device_that_nobody_has_used_is_quiet_and_one_that_serves_is_after_a_while() {
        let (start, mut seen) = (Instant::now(), SeenBatches::default());
        let at = |millis: u64| start + Duration::from_millis(millis);
        assert!(seen.look(0, false, at(0)));
        assert!(!seen.look(1, true, at(1)));
        assert!(!seen.look(1, true, at(50)), "it is still under way");
        assert!(!seen.look(1, false, at(69)));
        assert!(seen.look(1, false, at(70)));
        assert!(!seen.look(2, false, at(71)), "one has come and gone");
        assert!(seen.look(2, false, at(91)));
    }

    #[test]
    fn a_measurement_is_short_whatever_it_measures() {
        let of = |micros: u64| launches_at_once(Duration::from_micros(micros), 8);
        assert_eq!([0, 5, 250, 251, 1000, 2000, 40_000].map(of), [8, 8, 8, 7, 2, 1, 1]);
    }

    /// A device to which so many batches come, one during each measurement.
    struct Busy {
        left: Cell<u32>,
        came: Cell<u32>,
        wanted: bool,
    }

    impl Others for Busy {
        fn wait_until_quiet(&self) -> Result<(), CudaError> {
            if self.wanted { Ok(()) } else { Err(CudaError::GivenUp) }
        }

        fn came(&self) -> u32 {
            self.came.get()
        }

        fn given_up(&self) -> &AtomicBool {
            &NEVER
        }
    }

    #[test]
    fn what_a_batch_spoilt_is_measured_again_and_what_nobody_wants_is_not() {
        let busy = Busy { left: Cell::new(2), came: Cell::new(7), wanted: true };
        let measured = Cell::new(0);
        let measure = || {
            measured.set(measured.get() + 1);
            if busy.left.get() > 0 {
                busy.left.set(busy.left.get() - 1);
                busy.came.set(busy.came.get() + 1);
            }
            Ok(measured.get())
        };
        assert_eq!(undisturbed(&busy, measure).unwrap(), 3);
        let unwanted = Busy { wanted: false, ..busy };
        assert!(matches!(undisturbed(&unwanted, || Ok(())), Err(CudaError::GivenUp)));
        assert!(undisturbed(&Nobody, || Ok(())).is_ok());
    }
}
