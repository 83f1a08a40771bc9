//! A cluster that follows the planner's advice: devices are asked for and come after a while, others go once they idle.
//!
//! ```text
//!  meter ── ClusterCounts ──> planner::advice::Advisor ── Advice ──> Cluster ── come, go ──> the world
//! ```

use crate::meter::Meter;
use crate::setup::{Elastic, Setup};
use base::{DeviceId, Timestamp};
use planner::advice::{Advisor, AdvisorConfig, ClusterCounts};
use std::collections::BTreeSet;

#[derive(Debug)]
pub(crate) struct Cluster {
    config: Elastic,
    advisor: Advisor,
    /// Devices that are there.
    present: BTreeSet<DeviceId>,
    /// Of those, the ones that go when they idle.
    leaving: BTreeSet<DeviceId>,
    /// Devices that were asked for and aren't there yet.
    coming: BTreeSet<DeviceId>,
}

/// What the world has to do about a piece of advice.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct ClusterChange {
    /// These were asked for: they come after a while.
    pub(crate) ask_for: Vec<DeviceId>,
    /// How many devices more (or fewer, below 0) were advised.
    pub(crate) advised: f64,
}

impl Cluster {
    pub(crate) fn new(setup: &Setup) -> Option<Self> {
        let config = setup.elastic?;
        let advisor = Advisor::new(AdvisorConfig { min_devices: config.min_devices, ..AdvisorConfig::default() });
        let present = (0..setup.devices).map(DeviceId).collect();
        Some(Self { config, advisor, present, leaving: BTreeSet::new(), coming: BTreeSet::new() })
    }

    pub(crate) fn config(&self) -> Elastic {
        self.config
    }

    /// How many devices are there.
    pub(crate) fn len(&self) -> u32 {
        self.present.len() as u32
    }

    /// Asks for advice and works out which devices should come and go.
    pub(crate) fn advise(&mut self, now: Timestamp, meter: &Meter) -> ClusterChange {
        let devices = self.len();
        let (ended, bad, busy) = meter.totals();
        self.advisor.observe(ClusterCounts { now, ended, bad, busy, devices });
        let advice = self.advisor.advise(now);
        let wanted = advice.wanted().clamp(self.config.min_devices, self.config.max_devices);
        let advised = f64::from(advice.wanted()) - f64::from(devices);
        if wanted >= devices {
            // Whoever was to go stays first, then new ones are asked for.
            self.leaving.clear();
            let absent = (0..self.config.max_devices).map(DeviceId).filter(|device| !self.present.contains(device));
            let missing = (wanted - devices) as usize;
            let ask_for: Vec<DeviceId> = absent.take(missing).filter(|device| !self.coming.contains(device)).collect();
            self.coming.extend(&ask_for);
            return ClusterChange { ask_for, advised };
        }
        // Those with the highest numbers: policies that consolidate use them last.
        self.leaving = self.present.iter().rev().take((devices - wanted) as usize).copied().collect();
        ClusterChange { ask_for: Vec::new(), advised }
    }

    /// Whether a device should go as soon as nothing is under way for it.
    pub(crate) fn is_leaving(&self, device: DeviceId) -> bool {
        self.leaving.contains(&device)
    }

    /// All that should go.
    pub(crate) fn leaving(&self) -> Vec<DeviceId> {
        self.leaving.iter().copied().collect()
    }

    pub(crate) fn went(&mut self, device: DeviceId) {
        self.leaving.remove(&device);
        self.present.remove(&device);
    }

    pub(crate) fn came(&mut self, device: DeviceId) {
        self.coming.remove(&device);
        self.present.insert(device);
    }
}
