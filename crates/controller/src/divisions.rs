//! GPUs that are divided into other shares while the server runs.
//!
//! Each division has as many shares, and each device of the scheduler is one of them in every division. So weights stay
//! where they are, requests stay in their queues, and a change is one number for the engine and one event for each
//! device: what begins after it is computed in the new shares and planned with their times. A share of 0 is a place in
//! which nobody computes: a whole GPU is one share of 1 and such places.

use crate::Controller;
use crate::following::AutoShares;
use crate::messages::CellMessage;
use base::DeviceId;
use engine::Engine;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The ways in which GPUs may be divided.
pub struct Divisions {
    engine: Arc<dyn Engine>,
    /// The shares of a GPU, by division.
    shares: Vec<Vec<f64>>,
    /// The kind of each device, by division.
    kinds: Vec<Vec<u32>>,
    /// The division of each GPU.
    current: Mutex<Vec<usize>>,
    /// Where the server itself says which it is.
    pub(crate) auto: OnceLock<Mutex<AutoShares>>,
}

impl std::fmt::Debug for Divisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Divisions").field("shares", &self.shares).finish_non_exhaustive()
    }
}

impl Divisions {
    /// All the ways that the engine was opened with, in that order, and of which kind each device is in each of them.
    pub fn new(engine: Arc<dyn Engine>, shares: Vec<Vec<f64>>, kinds: Vec<Vec<u32>>) -> Self {
        let (devices, places) = (kinds.first().map_or(0, Vec::len), shares.first().map_or(1, Vec::len).max(1));
        let current = Mutex::new(vec![0; devices.div_ceil(places)]);
        Self { engine, shares, kinds, current, auto: OnceLock::new() }
    }

    /// How many places for shares a GPU has.
    pub(crate) fn places(&self) -> usize {
        self.shares.first().map_or(1, Vec::len).max(1)
    }

    /// How many divisions there are.
    pub(crate) fn count(&self) -> usize {
        self.shares.len()
    }

    /// The shares of a GPU in a division.
    pub(crate) fn shares_of(&self, division: usize) -> &[f64] {
        &self.shares[division]
    }

    /// The division with these shares.
    pub(crate) fn find(&self, shares: &[f64]) -> Option<usize> {
        let same = |known: &[f64]| {
            known.len() == shares.len() && known.iter().zip(shares).all(|(known, share)| (known - share).abs() < 1e-9)
        };
        self.shares.iter().position(|known| same(known))
    }

    /// The kind of a device in a division; `None` where nobody computes there.
    pub(crate) fn kind(&self, division: usize, device: DeviceId) -> Option<u32> {
        let share = self.shares[division][device.index() % self.places()];
        (share > 0.0).then_some(self.kinds[division][device.index()])
    }

    /// All sizes of shares, ascending, as their kinds are.
    pub(crate) fn sizes(&self) -> Vec<f64> {
        let mut sizes: Vec<f64> = self.shares.iter().flatten().copied().filter(|share| *share > 0.0).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        sizes
    }

    /// The divisions, without places in which nobody computes.
    fn possible(&self) -> Vec<Vec<f64>> {
        let used = |shares: &Vec<f64>| shares.iter().copied().filter(|share| *share > 0.0).collect();
        self.shares.iter().map(used).collect()
    }

    /// The division of each GPU. Whoever changes it holds this to the end, so that the engine and the schedulers hear
    /// of changes in the same order.
    pub(crate) fn current(&self) -> MutexGuard<'_, Vec<usize>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether what is loaded can be computed in another division of a GPU; it gets ready for that beside what runs.
    pub(crate) fn are_ready(&self, gpu: usize, division: usize) -> bool {
        self.devices_in(gpu, division).all(|device| self.engine.is_ready_for(device.0, division))
    }

    /// The devices of a GPU on which somebody computes in a division.
    fn devices_in(&self, gpu: usize, division: usize) -> impl Iterator<Item = DeviceId> {
        let first = gpu * self.places();
        let devices = (first..first + self.places()).map(|device| DeviceId(device as u32));
        devices.filter(move |device| self.kind(division, *device).is_some())
    }

    /// The engine computes in another division of a GPU from now on. A device that is nothing there stays the share
    /// that it was, for what it still has to do.
    pub(crate) fn divide(&self, current: &mut [usize], gpu: usize, division: usize) {
        current[gpu] = division;
        for device in self.devices_in(gpu, division) {
            self.engine.divide(device.0, division);
        }
    }
}

/// How GPUs are divided, and how they may be.
#[derive(Clone, PartialEq, Debug)]
pub struct Division {
    /// The shares of each GPU; `None` where the server divides each as it wants.
    pub shares: Option<Vec<f64>>,
    /// What they may be changed to, themselves included.
    pub possible: Vec<Vec<f64>>,
    /// How each is divided, where the server does that.
    pub auto: Option<AutoShares>,
}

impl Controller {
    /// Lets the devices be divided otherwise. To be said once, before there are models.
    pub fn set_divisions(&self, divisions: Divisions) {
        let _ = self.inner.divisions.set(divisions);
    }

    /// How GPUs are divided; `None` where nothing can be changed.
    pub fn division(&self) -> Option<Division> {
        let divisions = self.inner.divisions.get()?;
        let auto = divisions.auto.get().map(|auto| auto.lock().unwrap_or_else(PoisonError::into_inner).clone());
        let first = divisions.current().first().copied().unwrap_or(0);
        let shares = auto.is_none().then(|| divisions.shares[first].clone());
        Some(Division { shares, possible: divisions.possible(), auto })
    }

    /// Divides the GPUs into other shares. A sentence if they can't be.
    pub fn divide(&self, shares: &[f64]) -> Result<(), String> {
        let Some(divisions) = self.inner.divisions.get() else {
            return Err("the devices of this server can't be divided otherwise: say at the start which shares there may be, as in --devices \"cuda:0:shares=0.5,0.5|0.25,0.75\"".into());
        };
        if divisions.auto.get().is_some() {
            return Err("this server divides its devices by itself: start it without --shares auto to say it yourself, or with --cpu-division narrow or wide".into());
        }
        let Some(division) = divisions.find(shares) else {
            let known: Vec<String> = divisions.shares.iter().map(|shares| text(shares)).collect();
            return Err(format!("shares {} were not prepared: there are {}", text(shares), known.join(" and ")));
        };
        let mut current = divisions.current();
        for gpu in 0..current.len() {
            divisions.divide(&mut current, gpu, division);
        }
        for (device, &kind) in divisions.kinds[division].iter().enumerate() {
            let (cell, device) = self.inner.cell_of(DeviceId(device as u32));
            self.inner.put(cell, CellMessage::ChangeDevice { device, kind });
        }
        drop(current);
        self.drive();
        tracing::info!(shares = text(shares), "divided");
        Ok(())
    }

    /// Devices are numbered up to here, those included that are lost at the moment.
    pub fn device_numbers(&self) -> u32 {
        self.inner.kinds.len() as u32
    }

    /// Whether what is measured in a division is as it will be: another one's shares have multiprocessors in common
    /// with those that serve.
    pub fn is_quiet_for(&self, division: usize) -> bool {
        let divisions = self.inner.divisions.get();
        divisions.is_none_or(|all| all.current().iter().all(|current| *current == division)) || self.in_hand() == 0
    }

    /// A device of each kind, the slowest first, with the division in which it is of that kind.
    pub fn one_of_each_kind(&self) -> Vec<(usize, DeviceId)> {
        let Some(divisions) = self.inner.divisions.get() else {
            let find = |kind| self.inner.kinds.iter().position(|&other| other == kind);
            return (0..).map_while(find).map(|device| (0, DeviceId(device as u32))).collect();
        };
        let find = |kind: u32| {
            (0..divisions.shares.len()).find_map(|division| {
                let mut devices = (0..divisions.kinds[division].len() as u32).map(DeviceId);
                Some((division, devices.find(|device| divisions.kind(division, *device) == Some(kind))?))
            })
        };
        (0..).map_while(find).collect()
    }

    /// All sizes of shares, the smallest first, as kinds of devices are; that of whole devices where there are none.
    pub fn share_sizes(&self) -> Vec<f64> {
        self.inner.divisions.get().map_or_else(|| vec![1.0], Divisions::sizes)
    }
}

/// Shares as they are given: `0.25,0.75`.
fn text(shares: &[f64]) -> String {
    shares.iter().map(f64::to_string).collect::<Vec<_>>().join(",")
}
