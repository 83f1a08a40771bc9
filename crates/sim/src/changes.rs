//! What changes while a world runs, besides faults: models are replaced, devices change their kind, the driver borrows
//! some.

use crate::agenda::{Agenda, Due};
use crate::{Setup, Variety};
use base::{ActionId, Duration, ModelId, Timestamp};
use workload::Random;

/// At most so many models are replaced in one run.
const MAX_SWAPS: usize = 200;
/// How long a model's successor lets wait for itself, at most.
const GAP: Duration = Duration::from_millis(20);
/// The number of the stream of random numbers.
const CHANGES: u64 = 4 << 40;

/// One model takes the place of another.
#[derive(Clone, Copy, Debug)]
struct Swap {
    at: Timestamp,
    /// Whose requests: a model of the setup.
    stream: u32,
    /// How long after the old one went the new one is there.
    gap: Duration,
    /// Whether requests name the new one before it is there.
    eager: bool,
}

#[derive(Debug)]
pub(crate) struct WorldChanges {
    variety: Variety,
    swaps: Vec<Swap>,
    /// For each model of the setup, the number under which it is served now.
    current: Vec<u32>,
    borrowed: u64,
    random: Random,
    horizon_at: Timestamp,
}

impl WorldChanges {
    /// The changes of a world, and the world with the models that come later.
    pub(crate) fn new(setup: &Setup) -> (Self, Setup) {
        let mut changes = Self {
            variety: setup.variety,
            swaps: Vec::new(),
            current: (0..setup.models.len() as u32).collect(),
            borrowed: 0,
            random: Random::new(setup.seed, CHANGES),
            horizon_at: Timestamp::ZERO + setup.horizon,
        };
        let mut larger = setup.clone();
        let mut at = Timestamp::ZERO;
        while let Some(next) = changes.after(at, setup.variety.model_changes_every) {
            if changes.swaps.len() == MAX_SWAPS || next + GAP >= changes.horizon_at {
                break;
            }
            at = next;
            let stream = changes.random.below(setup.models.len() as u32);
            let gap = GAP.mul_f64(changes.random.unit());
            let eager = changes.random.chance(0.5);
            changes.swaps.push(Swap { at, stream, gap, eager });
            let mut model = setup.models[stream as usize].clone();
            model.spec.model = ModelId(larger.models.len() as u32);
            larger.models.push(model);
        }
        (changes, larger)
    }

    /// The next time of something that happens so often on average, before the horizon.
    fn after(&mut self, now: Timestamp, every: Duration) -> Option<Timestamp> {
        let at = (every > Duration::ZERO).then(|| now + every.mul_f64(self.random.exponential()))?;
        (at < self.horizon_at).then_some(at)
    }

    pub(crate) fn begin(&mut self, agenda: &mut Agenda) {
        for (index, swap) in self.swaps.iter().enumerate() {
            agenda.add(swap.at, Due::RemoveModel(index));
        }
        self.plan_kind(Timestamp::ZERO, agenda);
        self.plan_borrow(Timestamp::ZERO, agenda);
    }

    pub(crate) fn plan_kind(&mut self, now: Timestamp, agenda: &mut Agenda) {
        if let Some(at) = self.after(now, self.variety.device_kind_changes_every) {
            agenda.add(at, Due::ChangeKind);
        }
    }

    pub(crate) fn plan_borrow(&mut self, now: Timestamp, agenda: &mut Agenda) {
        if let Some(at) = self.after(now, self.variety.borrows_every) {
            agenda.add(at, Due::Borrow);
        }
    }

    /// The number under which a model of the setup is asked for now.
    pub(crate) fn current(&self, stream: u32) -> u32 {
        self.current[stream as usize]
    }

    /// How many models the setup has.
    pub(crate) fn streams(&self) -> usize {
        self.current.len()
    }

    /// A model goes: its number; its successor is on its way.
    pub(crate) fn remove(&mut self, swap: usize, agenda: &mut Agenda) -> ModelId {
        let Swap { at, stream, gap, eager } = self.swaps[swap];
        let before = self.current[stream as usize];
        agenda.add(at + gap, Due::AddModel(swap));
        if eager {
            self.current[stream as usize] = self.number(swap);
        }
        // It may be asked to go before it has come: then it was never there, which is harmless too.
        ModelId(before)
    }

    /// Its successor is there: its number.
    pub(crate) fn add(&mut self, swap: usize) -> u32 {
        let number = self.number(swap);
        let current = &mut self.current[self.swaps[swap].stream as usize];
        *current = (*current).max(number);
        number
    }

    fn number(&self, swap: usize) -> u32 {
        (self.current.len() + swap) as u32
    }

    /// A random one of so many.
    pub(crate) fn pick(&mut self, count: usize) -> usize {
        self.random.below(count as u32) as usize
    }

    /// The next thing of the driver's own: its number, what it is expected to take, and what it takes.
    pub(crate) fn borrow(&mut self) -> (ActionId, Duration, Duration) {
        let action = self.next_action();
        let expected = self.variety.borrowed.mul_f64(self.random.unit());
        let takes = expected.mul_f64(self.random.lognormal(0.2));
        (action, expected, takes)
    }

    /// The number of the next thing of the driver's own.
    pub(crate) fn next_action(&mut self) -> ActionId {
        self.borrowed += 1;
        ActionId(ActionId::DRIVERS.0 + self.borrowed)
    }
}
