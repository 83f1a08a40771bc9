//! Must batches be large for devices to keep up? How busy devices would be with what comes if all batches had their
//! best size.
//!
//! A device second has a price only where devices run short. If they would be busy for half of the time with batches of
//! the best size, batches of half that efficiency keep up too, and giving a request up for a larger batch buys nothing.
//! If they would be busy all the time, smaller batches fall behind, the next ones are late and small too, and whoever
//! keeps every first request loses half of all.

use base::Timestamp;

/// What is so many requests old counts for a third. Requests, not seconds: with few of them a second says little, with
/// many a burst must be noticed before it has made all batches small.
const MEMORY: f64 = 1_000.0;
/// Before so many have come nothing is known.
const KNOWN: u32 = 64;

/// What was asked of the devices lately.
#[derive(Clone, Debug, Default)]
pub(crate) struct Demand {
    /// Seconds of all devices, in batches of the best size.
    work: f64,
    /// Seconds in which that came.
    time: f64,
    last_at: Timestamp,
    came: u32,
}

impl Demand {
    /// A request came that takes so many seconds of each device that could run it.
    pub fn came(&mut self, at: Timestamp, work: f64) {
        let kept = 1.0 - 1.0 / MEMORY;
        self.work = self.work * kept + work;
        self.time = self.time * kept + at.since(self.last_at).as_secs_f64();
        self.last_at = self.last_at.max(at);
        self.came = self.came.saturating_add(1);
    }

    /// The part of the time for which all devices would be busy; above 1 where they can't keep up. `None` while nothing
    /// is known.
    pub fn load(&self) -> Option<f64> {
        (self.came >= KNOWN).then(|| self.work / self.time.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;

    fn after(demand: &mut Demand, requests: u64, gap_us: u64, work: f64) -> f64 {
        let from = demand.last_at;
        (1..=requests).for_each(|n| demand.came(from + Duration::from_micros(gap_us) * n, work));
        demand.load().unwrap_or(f64::NAN)
    }

    #[test]
    fn the_load_is_the_work_that_comes_in_a_second() {
        let mut demand = Demand::default();
        assert!(after(&mut demand, 63, 1_000, 5e-4).is_nan(), "nothing is known");
        assert!((after(&mut demand, 1, 1_000, 5e-4) - 0.5).abs() < 1e-9);
        assert!((after(&mut demand, 10_000, 1_000, 5e-4) - 0.5).abs() < 1e-9);
        // Twice as many in a second.
        assert!((after(&mut demand, 5_000, 500, 5e-4) - 1.0).abs() < 0.01);
        // Silence counts.
        let busy = demand.load().unwrap();
        assert!(after(&mut demand, 1, 1_000_000, 5e-4) < busy / 2.0);
    }
}
