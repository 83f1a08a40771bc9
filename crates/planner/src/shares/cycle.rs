//! Whether models can take turns in a share, and in which cycle (Nexus' squishy batches: a shorter cycle means smaller
//! batches for all).

use super::interference::{BatchInShare, Interference};
use super::{PlannedGpu, PlannedShare, PlannedTurn, SharePlan, SharedModel, WHOLE};

/// How often the shares of a GPU are planned anew with each other's batches until nothing changes.
const ROUNDS: usize = 4;

/// Who plans with what.
#[derive(Clone, Copy, Debug)]
pub struct Sharing<'a> {
    /// What is to be served.
    pub models: &'a [SharedModel],
    /// How many GPUs there are.
    pub gpus: usize,
    /// How shares slow each other down.
    pub interference: &'a Interference,
    /// Seconds in which a device computes nothing after each batch: until the server has heard of it, has decided on
    /// the next one, and its order is there. It is as long in a share as on a whole GPU, and the other shares compute
    /// meanwhile.
    pub gap: f64,
}

impl<'a> Sharing<'a> {
    /// A batch of a model in a share.
    pub(super) fn batch(&self, model: usize, batch: u32, share: u32) -> BatchInShare<'a> {
        BatchInShare { times: &self.models[model].times, batch, share }
    }

    /// The cycle in which a share is busy for the least part of its time, if there is one in which every model is in
    /// time, beside what runs in the other share.
    pub(super) fn cycle(
        &self,
        percent: u32,
        members: &[(usize, f64)],
        beside: Option<&PlannedShare>,
    ) -> Option<PlannedShare> {
        let shortest = members.iter().map(|&(model, _)| self.models[model].objective).fold(f64::INFINITY, f64::min);
        let cycles = members.iter().flat_map(|&(model, rate)| {
            let SharedModel { objective, times, .. } = &self.models[model];
            (1..=times.largest_batch())
                .flat_map(move |batch| [f64::from(batch) / rate, objective - times.of(percent, batch) - self.gap])
        });
        let planned = cycles.filter(|&cycle| cycle > 0.0 && cycle < shortest);
        let planned = planned.filter_map(|cycle| self.turns(percent, cycle, members, beside));
        planned.min_by(|one, other| one.busy().total_cmp(&other.busy()))
    }

    /// The turns of models in a cycle of that length, if all are in time.
    pub(super) fn turns(
        &self,
        percent: u32,
        cycle: f64,
        members: &[(usize, f64)],
        beside: Option<&PlannedShare>,
    ) -> Option<PlannedShare> {
        let mut left = cycle;
        let mut turns = Vec::with_capacity(members.len());
        for &(model, rate) in members {
            let SharedModel { objective, times, .. } = &self.models[model];
            let batch = batch_in(cycle, rate);
            if batch > times.largest_batch() {
                return None;
            }
            let takes = times.of(percent, batch) * self.slowdown(model, batch, percent, beside) + self.gap;
            left -= takes;
            if left < 0.0 || cycle + takes > *objective {
                return None;
            }
            turns.push(PlannedTurn { model, rate, batch, takes });
        }
        Some(PlannedShare { percent, cycle, turns })
    }

    /// How much longer a batch takes beside whichever batch of the other share slows it down most.
    fn slowdown(&self, model: usize, batch: u32, share: u32, beside: Option<&PlannedShare>) -> f64 {
        let Some(beside) = beside else { return 1.0 };
        let batch = self.batch(model, batch, share);
        let others = beside.turns.iter().map(|turn| self.batch(turn.model, turn.batch, beside.percent));
        others.map(|other| self.interference.slowdown(batch, other)).fold(1.0, f64::max)
    }

    /// The same GPU with what its shares do to each other, if all of them are still in time: in their cycles, or in
    /// others.
    pub(super) fn together(&self, gpu: &PlannedGpu) -> Option<PlannedGpu> {
        let mut shares = gpu.shares.clone();
        // Another cycle of one share means other batches beside the other.
        for _ in 0..ROUNDS {
            let mut same = true;
            for index in 0..shares.len() {
                let share = &shares[index];
                let beside = (0..shares.len()).find(|other| *other != index).map(|other| &shares[other]);
                let members: Vec<_> = share.turns.iter().map(|turn| (turn.model, turn.rate)).collect();
                if members.is_empty() {
                    continue;
                }
                let planned = self.turns(share.percent, share.cycle, &members, beside);
                let planned = planned.or_else(|| self.cycle(share.percent, &members, beside))?;
                same &= planned == *share;
                shares[index] = planned;
            }
            if same {
                return Some(PlannedGpu { shares });
            }
        }
        None
    }

    /// Whether everybody is in time in a plan as it is, with what shares do to each other.
    pub fn holds(&self, plan: &SharePlan) -> bool {
        let is_in_time = |gpu: &PlannedGpu, index: usize| {
            let share = &gpu.shares[index];
            let beside = (0..gpu.shares.len()).find(|other| *other != index).map(|other| &gpu.shares[other]);
            let members: Vec<_> = share.turns.iter().map(|turn| (turn.model, turn.rate)).collect();
            members.is_empty() || self.turns(share.percent, share.cycle, &members, beside).is_some()
        };
        let fits = |gpu: &PlannedGpu| gpu.shares.iter().map(|share| share.percent).sum::<u32>() <= WHOLE;
        plan.gpus.iter().all(|gpu| fits(gpu) && (0..gpu.shares.len()).all(|index| is_in_time(gpu, index)))
    }

    /// The highest rate that a model alone has in a share, with the batches for it: while one runs, the next one
    /// gathers.
    pub(super) fn affordable(&self, model: usize, percent: u32) -> f64 {
        let SharedModel { objective, times, .. } = &self.models[model];
        let sizes = (1..=times.largest_batch()).map(|batch| (batch, times.of(percent, batch) + self.gap));
        let in_time = sizes.filter(|(_, takes)| 2.0 * takes <= *objective);
        in_time.map(|(batch, takes)| f64::from(batch) / takes).fold(0.0, f64::max)
    }
}

/// The requests that come in a cycle.
pub(super) fn batch_in(cycle: f64, rate: f64) -> u32 {
    // A product that is a whole number but for its last digits is one.
    ((cycle * rate - 1e-9).ceil() as u32).max(1)
}
