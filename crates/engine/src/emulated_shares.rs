//! Emulated GPUs that are divided into shares: what a batch takes in one, and beside what runs in the others.
//!
//! In a share of a part `p` of the device a batch takes what is fixed, and the rest `1 / p` times. On an H200 nine
//! networks took 0.88 to 1 times that in the middle, and 0.5 to 1.5 times at most (experiments/data/h200_shares.csv).
//! Batches slow each other down for as long as both run, as the planner expects it of them.

use crate::Emulation;
use base::{BatchLatency, Duration, LatencyProfile, Timestamp};
use planner::shares::{BatchInShare, Interference, SIZES, ShareTimes, SideBySide, WHOLE};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

impl Emulation {
    /// What batches and loads take in a share of the device, 1 being all of it.
    pub fn profile_in(&self, share: f64) -> LatencyProfile {
        let fixed = fixed(self.profile.batches());
        let longer = |span: Duration| {
            let fixed = fixed.min(span);
            fixed + (span - fixed).mul_f64(1.0 / share)
        };
        let in_share =
            |batch: &BatchLatency| BatchLatency { median: longer(batch.median), p99: longer(batch.p99), ..*batch };
        let batches = self.profile.batches().iter().map(in_share).collect();
        LatencyProfile::new(batches, self.profile.load()).unwrap_or_else(|_| self.profile.clone())
    }
}

/// What of a batch doesn't depend on its size: where the line through the smallest and the largest begins.
fn fixed(batches: &[BatchLatency]) -> Duration {
    let (Some(first), Some(last)) = (batches.first(), batches.last()) else { return Duration::ZERO };
    if last.batch <= first.batch {
        return Duration::ZERO;
    }
    let each = (last.median - first.median) / u64::from(last.batch - first.batch);
    first.median - each * u64::from(first.batch)
}

/// The shares of all emulated GPUs.
#[derive(Debug)]
pub struct EmulatedShares {
    /// In percent, by division; 0 where nobody computes.
    divisions: Vec<Vec<u32>>,
    /// The division that is in force, by device.
    in_force: Vec<AtomicUsize>,
    gpus: Vec<Mutex<EmulatedGpu>>,
    interference: Interference,
    /// Instants are counted from here.
    began: Instant,
}

impl EmulatedShares {
    /// So many devices in a row, of which as many belong to a GPU as each division has shares.
    pub fn new(devices: u32, divisions: &[Vec<f64>], interference: Interference) -> Self {
        let percent = |share: &f64| (share * f64::from(WHOLE)).round() as u32;
        let each = divisions.first().map_or(1, Vec::len).max(1);
        Self {
            divisions: divisions.iter().map(|shares| shares.iter().map(percent).collect()).collect(),
            in_force: (0..devices).map(|_| AtomicUsize::new(0)).collect(),
            gpus: (0..(devices as usize).div_ceil(each)).map(|_| Mutex::default()).collect(),
            interference,
            began: Instant::now(),
        }
    }

    pub(crate) fn divide(&self, device: u32, division: usize) {
        if let Some(in_force) = self.in_force.get(device as usize) {
            in_force.store(division, Ordering::Release);
        }
    }

    /// The share that a device is in a division, in percent; in that which is in force if none is named.
    fn percent(&self, device: u32, division: Option<usize>) -> u32 {
        let in_force = || self.in_force.get(device as usize).map_or(0, |division| division.load(Ordering::Acquire));
        let shares = self.divisions.get(division.unwrap_or_else(in_force));
        let share = shares.and_then(|shares| shares.get(device as usize % shares.len().max(1)));
        share.copied().filter(|percent| *percent > 0).unwrap_or(WHOLE)
    }

    fn gpu_of(&self, device: u32) -> usize {
        device as usize / self.divisions.first().map_or(1, Vec::len).max(1)
    }

    fn at(&self, instant: Instant) -> Timestamp {
        Timestamp::ZERO + instant.saturating_duration_since(self.began).into()
    }

    fn gpu(&self, gpu: usize) -> MutexGuard<'_, EmulatedGpu> {
        // What is behind the lock is whole after every statement.
        self.gpus[gpu].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a model takes in each size of share.
pub(crate) struct ModelInShares {
    shares: Arc<EmulatedShares>,
    times: ShareTimes,
    /// By percent, ascending.
    profiles: Vec<(u32, LatencyProfile)>,
}

impl ModelInShares {
    /// `None` where what the model pretends can't be.
    pub(crate) fn new(shares: &Arc<EmulatedShares>, emulation: &Emulation) -> Option<Self> {
        let sizes = shares.divisions.iter().flatten().copied().filter(|percent| *percent > 0);
        let mut sizes: Vec<u32> = sizes.chain(SIZES).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let in_share = |percent: u32| (percent, emulation.profile_in(f64::from(percent) / f64::from(WHOLE)));
        let profiles: Vec<(u32, LatencyProfile)> = sizes.into_iter().map(in_share).collect();
        let points = profiles.iter().flat_map(|(percent, profile)| {
            let seconds = |batch: &BatchLatency| batch.median.as_secs_f64().max(1e-9);
            profile.batches().iter().map(move |batch| (*percent, batch.batch, seconds(batch)))
        });
        let times = ShareTimes::new(points, emulation.weight_bytes as f64).ok()?;
        Some(Self { shares: Arc::clone(shares), times, profiles })
    }

    /// What its batches take on a device, in that division or in the one in force; and in which share that is.
    pub(crate) fn on(&self, device: u32, division: Option<usize>) -> (u32, &LatencyProfile) {
        let percent = self.shares.percent(device, division);
        let found = self.profiles.iter().find(|(size, _)| *size == percent).unwrap_or(&self.profiles[0]);
        (percent, &found.1)
    }

    /// A batch begins in a share of that size, and would take so long alone.
    pub(crate) fn begin(&self, device: u32, (percent, batch): (u32, u32), takes: Duration) -> BatchInTurn {
        let shares = Arc::clone(&self.shares);
        let (gpu, now) = (shares.gpu_of(device), shares.at(Instant::now()));
        let batch = BatchInShare { times: &self.times, batch, share: percent };
        let began = SideBySide::new(&shares.interference, batch, now, takes);
        let number = shares.gpu(gpu).begin(now, began);
        BatchInTurn { shares, gpu, number }
    }
}

/// A batch that runs, maybe beside others. It is over when it is dropped, too.
pub(crate) struct BatchInTurn {
    shares: Arc<EmulatedShares>,
    gpu: usize,
    number: u64,
}

impl BatchInTurn {
    /// When to look at it again: when it ends, or something beside it does; `None` if it is over.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let now = self.shares.at(Instant::now());
        let at = self.shares.gpu(self.gpu).next_at(now, self.number)?;
        Some(self.shares.began + std::time::Duration::from(at.since(Timestamp::ZERO)))
    }
}

impl Drop for BatchInTurn {
    fn drop(&mut self) {
        let now = self.shares.at(Instant::now());
        self.shares.gpu(self.gpu).end(now, self.number);
    }
}

/// What runs in the shares of one GPU.
#[derive(Debug, Default)]
struct EmulatedGpu {
    running: Vec<(u64, SideBySide)>,
    /// So many have begun.
    begun: u64,
}

impl EmulatedGpu {
    fn begin(&mut self, now: Timestamp, batch: SideBySide) -> u64 {
        self.go_on_until(now);
        self.begun += 1;
        self.running.push((self.begun, batch));
        self.are_beside_each_other(now);
        self.begun
    }

    fn end(&mut self, now: Timestamp, number: u64) {
        self.go_on_until(now);
        self.running.retain(|(other, _)| *other != number);
        self.are_beside_each_other(now);
    }

    /// When the first of them ends, unless this one is over.
    fn next_at(&mut self, now: Timestamp, number: u64) -> Option<Timestamp> {
        self.go_on_until(now);
        let is_running = self.running.iter().any(|(other, _)| *other == number);
        self.running.iter().map(|(_, batch)| batch.ends_at()).min().filter(|_| is_running)
    }

    /// Ends what is over by then, one after another: whoever is left is quicker from there on.
    fn go_on_until(&mut self, now: Timestamp) {
        while let Some(at) = self.running.iter().map(|(_, batch)| batch.ends_at()).min().filter(|at| *at <= now) {
            self.running.retain(|(_, batch)| batch.ends_at() > at);
            self.are_beside_each_other(at);
        }
    }

    fn are_beside_each_other(&mut self, now: Timestamp) {
        for index in 0..self.running.len() {
            let others = self.running.iter().enumerate().filter(|(other, _)| *other != index);
            let pressures: Vec<f64> = others.map(|(_, (_, batch))| batch.pressure()).collect();
            self.running[index].1.beside(now, pressures.into_iter());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulation() -> Emulation {
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(2), millis(1), &[1, 4], millis(5)).unwrap();
        Emulation { profile, weight_bytes: 1_000_000 }
    }

    fn at(millis: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn what_is_fixed_stays_and_the_rest_takes_as_much_longer_as_the_share_is_smaller() {
        let times = |share: f64| {
            let profile = emulation().profile_in(share);
            profile.batches().iter().map(|batch| batch.median.as_millis_f64()).collect::<Vec<_>>()
        };
        assert_eq!((times(1.0), times(0.5), times(0.2)), (vec![3.0, 9.0], vec![5.0, 17.0], vec![11.0, 41.0]));
        assert_eq!(emulation().profile_in(0.2).load(), Duration::from_millis(5));
    }

    #[test]
    fn a_device_is_the_share_of_the_division_in_force_and_a_place_without_one_is_whole() {
        let divisions = [vec![1.0, 0.0], vec![0.2, 0.8]];
        let shares = EmulatedShares::new(4, &divisions, Interference::NONE);
        let sizes = || [0, 1, 2, 3].map(|device| shares.percent(device, None));
        assert_eq!(sizes(), [100, 100, 100, 100]);
        shares.divide(2, 1);
        shares.divide(3, 1);
        assert_eq!(sizes(), [100, 100, 20, 80]);
        assert_eq!(shares.percent(1, Some(1)), 80);
    }

    #[test]
    fn batches_side_by_side_are_slower_until_the_first_has_ended() {
        // Two of them: each takes twice as long beside the other.
        let twice = |now: Timestamp, takes: u64| {
            let times = ShareTimes::new([(100, 1, 1.0)], 0.0).unwrap();
            let batch = BatchInShare { times: &times, batch: 1, share: 100 };
            SideBySide::new(&Interference::constant(2.0_f64.ln()), batch, now, Duration::from_millis(takes))
        };
        let mut gpu = EmulatedGpu::default();
        let long = gpu.begin(at(0), twice(at(0), 10));
        assert_eq!(gpu.next_at(at(0), long), Some(at(10)));
        let short = gpu.begin(at(4), twice(at(4), 2));
        // The short one ends at 8; the long one has done 4 alone and 2 beside it, and has 4 left.
        assert_eq!((gpu.next_at(at(4), long), gpu.next_at(at(4), short)), (Some(at(8)), Some(at(8))));
        assert_eq!((gpu.next_at(at(9), short), gpu.next_at(at(9), long)), (None, Some(at(12))));
        assert_eq!(gpu.next_at(at(12), long), None);
        // One that is broken off slows nobody down any more.
        let (first, second) = (gpu.begin(at(20), twice(at(20), 4)), gpu.begin(at(20), twice(at(20), 4)));
        gpu.end(at(22), second);
        assert_eq!(gpu.next_at(at(22), first), Some(at(25)));
    }
}
