//! GPUs that are divided into shares: which share is which device, who may use it, and how much longer batches take
//! that run side by side.

use base::{DeviceId, Duration, ModelId, Timestamp};
use planner::shares::follow::Follower;
use planner::shares::{Arrangement, BatchInShare, Interference, SIZES, SLOTS, ShareTimes, SideBySide, Slot};
use scheduler::Allotment;

/// GPUs whose shares are devices: the places of GPU `g` are `SLOTS * g` and those behind it.
#[derive(Clone, Debug)]
pub struct SharedGpus {
    /// What each model takes.
    pub times: Vec<ShareTimes>,
    /// What batches do to each other.
    pub interference: Interference,
    /// How the GPUs are divided, and who may run where, at first.
    pub arrangement: Arrangement,
    /// Who divides them otherwise when rates change, and how often that is looked at.
    pub follow: Option<(Follower, Duration)>,
}

/// What a device does nothing for when its GPU is divided otherwise: as measured on an H200 (note 014).
pub(crate) const CHANGE: Duration = Duration::from_micros(800);

impl SharedGpus {
    /// The kind of a share of that size: `SIZES` ascend, as kinds do from the slowest. A place that nobody may use is
    /// of the slowest.
    pub fn kind(percent: u32) -> u32 {
        SIZES.iter().position(|&size| size >= percent.max(1)).unwrap_or(SIZES.len() - 1) as u32
    }

    /// A batch that starts alone in a share of that kind.
    pub(crate) fn begin(&self, now: Timestamp, model: ModelId, batch: u32, kind: u32, takes: Duration) -> SideBySide {
        let batch = BatchInShare { times: &self.times[model.index()], batch, share: SIZES[kind as usize] };
        SideBySide::new(&self.interference, batch, now, takes)
    }
}

/// The kind of each device.
pub(crate) fn kinds(arrangement: &Arrangement) -> impl Iterator<Item = u32> {
    arrangement.slots().map(|slot| SharedGpus::kind(slot.percent))
}

/// Who may run where.
pub(crate) fn allotments(arrangement: &Arrangement) -> Vec<Allotment> {
    let models = |models: &[usize]| models.iter().map(|&model| ModelId(model as u32)).collect();
    let allotment =
        |(device, slot): (u32, &Slot)| Allotment { device: DeviceId(device), models: Some(models(&slot.models)) };
    (0..).zip(arrangement.slots()).map(allotment).collect()
}

/// The other devices on a device's GPU.
pub(crate) fn neighbours(device: DeviceId) -> impl Iterator<Item = DeviceId> {
    let first = device.0 - device.0 % SLOTS as u32;
    (first..first + SLOTS as u32).map(DeviceId).filter(move |&other| other != device)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_gpu_are_neighbours() {
        let of = |device: u32| neighbours(DeviceId(device)).map(|it| it.0).collect::<Vec<_>>();
        assert_eq!([of(0), of(1), of(6)], [vec![1], vec![0], vec![7]]);
        assert_eq!([0, 20, 50, 100].map(SharedGpus::kind), [0, 0, 2, 5]);
    }
}
