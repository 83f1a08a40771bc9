//! A plan on the GPUs that there are: which GPU is divided how, and which models may use which of its shares.
//!
//! Every GPU has as many places for shares, whether a plan uses them or not: a whole GPU is one share and a place that
//! nobody may use. So places can be devices that stay while shares change.

use super::{PlannedGpu, SLOTS, SharePlan};

/// A place for a share.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Slot {
    /// Of the GPU; 0: nobody computes there.
    pub percent: u32,
    /// Who may compute there, ascending.
    pub models: Vec<usize>,
}

/// The GPUs, divided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Arrangement {
    /// One entry for each GPU, used or not.
    pub gpus: Vec<[Slot; SLOTS]>,
}

/// Whether two GPUs are alike, by some measure.
type AreAlike = fn(&[Slot; SLOTS], &[Slot; SLOTS]) -> bool;

impl Arrangement {
    /// A plan on so many GPUs. Models that it doesn't know, because nobody asked for them, may run in every share. GPUs
    /// are as they were before as far as the plan has such.
    pub fn of(plan: &SharePlan, gpus: usize, models: usize, before: Option<&Self>) -> Self {
        let unknown: Vec<usize> = (0..models).filter(|&model| plan.rate_of(model) == 0.0).collect();
        let mut wanted: Vec<[Slot; SLOTS]> = plan.gpus.iter().map(|gpu| slots(gpu, &unknown)).collect();
        wanted.resize_with(gpus.max(wanted.len()), Default::default);
        let Some(before) = before.filter(|before| before.gpus.len() == wanted.len()) else {
            return Self { gpus: wanted };
        };
        let mut left: Vec<Option<[Slot; SLOTS]>> = wanted.into_iter().map(Some).collect();
        let mut placed: Vec<Option<[Slot; SLOTS]>> = vec![None; before.gpus.len()];
        // First those that stay as they are, then those that are divided as before, then whoever is left.
        let same: [AreAlike; 3] = [|one, other| one == other, divided_alike, |_, _| true];
        for same in same {
            for (place, was) in placed.iter_mut().zip(&before.gpus).filter(|(place, _)| place.is_none()) {
                let found = left.iter_mut().find(|gpu| gpu.as_ref().is_some_and(|gpu| same(gpu, was)));
                *place = found.and_then(Option::take);
            }
        }
        Self { gpus: placed.into_iter().map(Option::unwrap_or_default).collect() }
    }

    /// How many GPUs are used.
    pub fn used(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.iter().any(|slot| slot.percent > 0)).count()
    }

    /// All places, GPU by GPU.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.gpus.iter().flatten()
    }

    /// The GPUs that are divided otherwise than before.
    pub fn divided_otherwise<'a>(&'a self, before: &'a Self) -> impl Iterator<Item = usize> + 'a {
        let pairs = self.gpus.iter().zip(&before.gpus).enumerate();
        pairs.filter(|(_, (now, was))| !divided_alike(now, was)).map(|(gpu, _)| gpu)
    }
}

fn divided_alike(one: &[Slot; SLOTS], other: &[Slot; SLOTS]) -> bool {
    one.iter().map(|slot| slot.percent).eq(other.iter().map(|slot| slot.percent))
}

/// A GPU's shares in their places: the larger one second, so that equal divisions look equal.
fn slots(gpu: &PlannedGpu, unknown: &[usize]) -> [Slot; SLOTS] {
    let mut shares: Vec<_> = gpu.shares.iter().collect();
    shares.sort_by_key(|share| share.percent);
    std::array::from_fn(|index| {
        let Some(share) = shares.get(index) else { return Slot::default() };
        let mut models: Vec<usize> = share.turns.iter().map(|turn| turn.model).chain(unknown.iter().copied()).collect();
        models.sort_unstable();
        Slot { percent: share.percent, models }
    })
}

#[cfg(test)]
mod tests {
    use super::super::{PlannedShare, PlannedTurn};
    use super::*;

    fn plan(gpus: &[&[(u32, &[usize])]]) -> SharePlan {
        let share = |&(percent, models): &(u32, &[usize])| {
            let turn = |&model: &usize| PlannedTurn { model, rate: 1.0, batch: 1, takes: 0.1 };
            PlannedShare { percent, cycle: 1.0, turns: models.iter().map(turn).collect() }
        };
        let gpus = gpus.iter().map(|shares| PlannedGpu { shares: shares.iter().map(share).collect() });
        SharePlan { gpus: gpus.collect() }
    }

    fn shown(arrangement: &Arrangement) -> String {
        let slot = |slot: &Slot| format!("{}:{:?}", slot.percent, slot.models);
        let gpu = |gpu: &[Slot; SLOTS]| gpu.iter().map(slot).collect::<Vec<_>>().join("+");
        arrangement.gpus.iter().map(gpu).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn whoever_nobody_asked_for_may_run_everywhere_and_a_whole_gpu_has_an_empty_place() {
        let plan = plan(&[&[(60, &[1]), (40, &[0])], &[(100, &[2])]]);
        let arranged = Arrangement::of(&plan, 3, 4, None);
        assert_eq!(shown(&arranged), "40:[0, 3]+60:[1, 3] 100:[2, 3]+0:[] 0:[]+0:[]");
        assert_eq!(arranged.used(), 2);
    }

    #[test]
    fn gpus_stay_as_they_are_where_the_plan_has_such() {
        let before = Arrangement::of(&plan(&[&[(40, &[0]), (60, &[1])], &[(100, &[2])]]), 3, 3, None);
        let after = plan(&[&[(100, &[2])], &[(20, &[0]), (80, &[1])]]);
        let arranged = Arrangement::of(&after, 3, 3, Some(&before));
        assert_eq!(shown(&arranged), "20:[0]+80:[1] 100:[2]+0:[] 0:[]+0:[]");
        assert_eq!(arranged.divided_otherwise(&before).collect::<Vec<_>>(), [0]);
        // Divided alike is better than otherwise, even for other models.
        let swapped = plan(&[&[(100, &[0])], &[(40, &[2]), (60, &[1])]]);
        let arranged = Arrangement::of(&swapped, 3, 3, Some(&before));
        assert_eq!(shown(&arranged), "40:[2]+60:[1] 100:[0]+0:[] 0:[]+0:[]");
        assert_eq!(arranged.divided_otherwise(&before).count(), 0);
    }
}
