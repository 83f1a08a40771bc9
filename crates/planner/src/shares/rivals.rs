//! Gpulet's elastic partitioning (algorithm 1), and what it was compared with: squishy bin packing on whole GPUs and on
//! even halves, and the greedy best fit.

use super::cycle::Sharing;
use super::{PlannedGpu, PlannedShare, SIZES, SharePlan, SharedModel, WHOLE};

/// Shares that others may run beside have so many times the time that they need. The paper has no such room, and checks
/// only whether the newcomer's batch is in time; then whoever came first no longer is. So several are tried, and the
/// first plan that holds is the rival's.
const ROOMS: [f64; 7] = [1.2, 1.0, 1.1, 1.35, 1.5, 1.75, 2.0];

/// Nexus' squishy bin packing on shares of one size: what saturates a share has shares of its own, what is left is
/// merged, most busy first, into the fullest share that takes it with a shorter cycle.
pub fn squishy(sharing: &Sharing<'_>, percent: u32) -> Option<SharePlan> {
    let on_gpu = (WHOLE / percent) as usize;
    let mut full = Vec::new();
    let mut rest = Vec::new();
    for (model, SharedModel { mut rate, .. }) in sharing.models.iter().cloned().enumerate() {
        let most = sharing.affordable(model, percent);
        while rate > most {
            full.push(sharing.cycle(percent, &[(model, most)], None)?);
            rate -= most;
            if full.len() > sharing.gpus.saturating_mul(on_gpu) {
                return None;
            }
        }
        if rate > 0.0 {
            rest.push(sharing.cycle(percent, &[(model, rate)], None)?);
        }
    }
    rest.sort_by(|one, other| other.busy().total_cmp(&one.busy()));
    let mut shared: Vec<PlannedShare> = Vec::new();
    for next in rest {
        let merged = shared.iter().enumerate().filter_map(|(index, share)| {
            let members: Vec<_> = share.turns.iter().chain(&next.turns).map(|turn| (turn.model, turn.rate)).collect();
            Some((index, sharing.cycle(percent, &members, None)?))
        });
        match merged.max_by(|one, other| one.1.busy().total_cmp(&other.1.busy())) {
            Some((index, merged)) => shared[index] = merged,
            None => shared.push(next),
        }
    }
    full.extend(shared);
    let gpus: Vec<PlannedGpu> = full.chunks(on_gpu).map(|shares| PlannedGpu { shares: shares.to_vec() }).collect();
    let plan = SharePlan { gpus };
    (plan.gpus.len() <= sharing.gpus).then_some(plan)
}

/// The smallest share that carries a model, in the smallest place that holds it; no two models in one share.
pub fn greedy(sharing: &Sharing<'_>) -> Option<SharePlan> {
    allot(sharing, Allotment::Required)
}

/// Gpulet's own: the smaller of the share at the knee of what a model gets for its size and the share that it needs, in
/// the smallest place that holds it; models take turns where they can.
pub fn elastic(sharing: &Sharing<'_>) -> Option<SharePlan> {
    allot(sharing, Allotment::Efficient)
}

#[derive(Clone, Copy, PartialEq)]
enum Allotment {
    Required,
    Efficient,
}

fn allot(sharing: &Sharing<'_>, allotment: Allotment) -> Option<SharePlan> {
    ROOMS.into_iter().find_map(|room| allot_with(sharing, allotment, room))
}

fn allot_with(sharing: &Sharing<'_>, allotment: Allotment, room: f64) -> Option<SharePlan> {
    let mut places = Places { sharing, gpus: Vec::new() };
    let mut order: Vec<usize> = (0..sharing.models.len()).filter(|&model| sharing.models[model].rate > 0.0).collect();
    let product = |model: usize| sharing.models[model].rate * sharing.models[model].objective;
    order.sort_by(|&one, &other| product(one).total_cmp(&product(other)));
    for model in order {
        let mut left = sharing.models[model].rate;
        while left > 1e-9 {
            // With room for a neighbour: a share that is just large enough alone would never have one.
            let required = required(sharing, model, left * room).or_else(|| required(sharing, model, left));
            let size = match allotment {
                Allotment::Required => required.unwrap_or(WHOLE),
                Allotment::Efficient => required.unwrap_or(WHOLE).min(knee(sharing, model)),
            };
            // Beside others it may need more than alone.
            let sizes = SIZES.into_iter().filter(|&larger| larger >= size);
            left -= sizes.into_iter().find_map(|size| places.give(model, left, size, allotment))?;
        }
    }
    Some(SharePlan { gpus: places.gpus })
}

/// The smallest share that carries so many requests a second.
fn required(sharing: &Sharing<'_>, model: usize, rate: f64) -> Option<u32> {
    SIZES.into_iter().find(|&size| sharing.cycle(size, &[(model, rate)], None).is_some())
}

/// The size from which on a larger share gives less than its part: farthest above the line from nothing to all.
fn knee(sharing: &Sharing<'_>, model: usize) -> u32 {
    let most = sharing.affordable(model, WHOLE).max(f64::MIN_POSITIVE);
    let gain = |size: u32| sharing.affordable(model, size) / most - f64::from(size) / f64::from(WHOLE);
    let best = SIZES.into_iter().max_by(|&one, &other| gain(one).total_cmp(&gain(other)));
    best.unwrap_or(WHOLE)
}

struct Places<'a> {
    sharing: &'a Sharing<'a>,
    gpus: Vec<PlannedGpu>,
}

impl Places<'_> {
    /// Finds a place for a model's requests, and says how many of them it takes; `None` where there is none.
    fn give(&mut self, model: usize, rate: f64, size: u32, allotment: Allotment) -> Option<f64> {
        // Those that nobody has: halves of divided GPUs, then whole ones.
        let mut free: Vec<(u32, usize, Option<usize>)> = Vec::new();
        for (gpu, planned) in self.gpus.iter().enumerate() {
            let empty = planned.shares.iter().enumerate().filter(|(_, share)| share.turns.is_empty());
            free.extend(empty.map(|(index, share)| (share.percent, gpu, Some(index))));
        }
        if self.gpus.len() < self.sharing.gpus {
            free.push((WHOLE, self.gpus.len(), None));
        }
        free.sort_unstable_by_key(|&(percent, gpu, _)| (percent, gpu));
        let fitting = free.into_iter().filter(|&(percent, ..)| percent >= size);
        let found = fitting.filter_map(|(percent, gpu, index)| {
            let percent = if index.is_none() { size } else { percent };
            let part = rate.min(self.sharing.affordable(model, percent));
            let share = self.sharing.cycle(percent, &[(model, part)], self.beside(gpu, index))?;
            self.with(gpu, index, share).map(|planned| (gpu, planned, part))
        });
        let found = found.into_iter().next();
        let part = found.as_ref().map_or(rate, |(.., part)| *part);
        if allotment == Allotment::Efficient
            && let Some((gpu, planned)) = self.merged(model, part)
        {
            self.gpus[gpu] = planned;
            return Some(part);
        }
        let (gpu, planned, part) = found?;
        if gpu == self.gpus.len() {
            self.gpus.push(planned);
        } else {
            self.gpus[gpu] = planned;
        }
        Some(part)
    }

    fn beside(&self, gpu: usize, index: Option<usize>) -> Option<&PlannedShare> {
        let shares = &self.gpus.get(gpu)?.shares;
        shares
            .iter()
            .enumerate()
            .find(|(other, share)| Some(*other) != index && !share.turns.is_empty())
            .map(|(_, share)| share)
    }

    /// A GPU with this share in it, if what runs beside it is still in time.
    fn with(&self, gpu: usize, index: Option<usize>, share: PlannedShare) -> Option<PlannedGpu> {
        let planned = match index {
            Some(index) => {
                let mut planned = self.gpus[gpu].clone();
                planned.shares[index] = share;
                planned
            }
            None => {
                let rest = WHOLE - share.percent;
                let rest = (rest > 0).then(|| PlannedShare { percent: rest, ..PlannedShare::default() });
                PlannedGpu { shares: std::iter::once(share).chain(rest).collect() }
            }
        };
        self.sharing.together(&planned)
    }

    /// A share that somebody has in which this model can take turns, too.
    fn merged(&self, model: usize, rate: f64) -> Option<(usize, PlannedGpu)> {
        self.gpus.iter().enumerate().find_map(|(gpu, planned)| {
            planned.shares.iter().enumerate().filter(|(_, share)| !share.turns.is_empty()).find_map(|(index, share)| {
                let own = share.turns.iter().map(|turn| (turn.model, turn.rate));
                let members: Vec<_> = own.chain([(model, rate)]).collect();
                let merged = self.sharing.cycle(share.percent, &members, self.beside(gpu, Some(index)))?;
                Some((gpu, self.with(gpu, Some(index), merged)?))
            })
        })
    }
}
