//! GPUs that are divided into other shares while the server runs.
//!
//! Each division has as many shares, and each device of the scheduler is one of them in every division. So weights stay
//! where they are, requests stay in their queues, and a change is one number for the engine and one event for each
//! device: what begins after it is computed in the new shares and planned with their times.

use crate::Controller;
use crate::messages::CellMessage;
use base::DeviceId;
use engine::Engine;
use std::sync::{Arc, Mutex, PoisonError};

/// The ways in which GPUs may be divided.
pub struct Divisions {
    engine: Arc<dyn Engine>,
    /// The shares of a GPU, by division.
    shares: Vec<Vec<f64>>,
    /// The kind of each device, by division.
    kinds: Vec<Vec<u32>>,
    current: Mutex<usize>,
}

impl std::fmt::Debug for Divisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Divisions").field("shares", &self.shares).finish_non_exhaustive()
    }
}

impl Divisions {
    /// All the ways that the engine was opened with, in that order, and of which kind each device is in each of them.
    pub fn new(engine: Arc<dyn Engine>, shares: Vec<Vec<f64>>, kinds: Vec<Vec<u32>>) -> Self {
        Self { engine, shares, kinds, current: Mutex::new(0) }
    }
}

/// How GPUs are divided, and how they may be.
#[derive(Clone, PartialEq, Debug)]
pub struct Division {
    /// The shares of each GPU.
    pub shares: Vec<f64>,
    /// What they may be changed to, themselves included.
    pub possible: Vec<Vec<f64>>,
}

impl Controller {
    /// Lets the devices be divided otherwise. To be said once, before there are models.
    pub fn set_divisions(&self, divisions: Divisions) {
        let _ = self.inner.divisions.set(divisions);
    }

    /// How GPUs are divided; `None` where nothing can be changed.
    pub fn division(&self) -> Option<Division> {
        let divisions = self.inner.divisions.get()?;
        let current = *divisions.current.lock().unwrap_or_else(PoisonError::into_inner);
        Some(Division { shares: divisions.shares[current].clone(), possible: divisions.shares.clone() })
    }

    /// Divides the GPUs into other shares. A sentence if they can't be.
    pub fn divide(&self, shares: &[f64]) -> Result<(), String> {
        let Some(divisions) = self.inner.divisions.get() else {
            return Err("the devices of this server can't be divided otherwise: say at the start which shares there may be, as in --devices \"cuda:0:shares=0.5,0.5|0.25,0.75\"".into());
        };
        let same = |known: &[f64]| {
            known.len() == shares.len() && known.iter().zip(shares).all(|(known, share)| (known - share).abs() < 1e-9)
        };
        let Some(division) = divisions.shares.iter().position(|known| same(known)) else {
            let known: Vec<String> = divisions.shares.iter().map(|shares| text(shares)).collect();
            return Err(format!("shares {} were not prepared: there are {}", text(shares), known.join(" and ")));
        };
        // Held to the end, so that the engine and the scheduler hear of changes in the same order.
        let mut current = divisions.current.lock().unwrap_or_else(PoisonError::into_inner);
        divisions.engine.divide(division);
        *current = division;
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
        let current = divisions.map(|all| *all.current.lock().unwrap_or_else(PoisonError::into_inner));
        current.is_none_or(|current| current == division) || self.in_hand() == 0
    }

    /// A device of each kind, the slowest first, with the division in which it is of that kind.
    pub fn one_of_each_kind(&self) -> Vec<(usize, DeviceId)> {
        let kinds = self.inner.divisions.get().map_or(std::slice::from_ref(&self.inner.kinds), |all| &all.kinds);
        let find = |kind: u32| {
            kinds.iter().enumerate().find_map(|(division, kinds)| {
                let device = kinds.iter().position(|&other| other == kind)?;
                Some((division, DeviceId(device as u32)))
            })
        };
        (0..).map_while(find).collect()
    }
}

/// Shares as they are given: `0.25,0.75`.
fn text(shares: &[f64]) -> String {
    shares.iter().map(f64::to_string).collect::<Vec<_>>().join(",")
}
