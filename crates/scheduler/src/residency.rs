//! Which weights are loaded where: load by unmet demand, unload by least recent use (Clockwork, appendix B).
//!
//! Each model's demand is the time that its queued requests take. Where it is loaded, its demand is allocated to the
//! devices in inverse proportion to their load; what the devices can't be expected to serve is its load priority. As in
//! the paper nothing is solved to the end: a model's numbers are brought up to date when something happens to it.

use crate::executor::Lead;
use crate::ledger::{Action, Ledger, Residency};
use crate::queues::Queues;
use crate::slack::DESPERATE;
use crate::table::grown;
use crate::{Command, Load, Unload};
use base::{DeviceId, Duration, ModelId, Timestamp, Window};
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The horizon in which demand should be served where a model has no objective (Clockwork's evaluation: 100 ms).
const DEFAULT_HORIZON: Duration = Duration::from_millis(100);
/// How far a device's list of least recently used models is searched for victims, and the list of wanting models for
/// one that can be placed: keeps the cost of an event bounded however many models there are.
const SEARCH_LIMIT: usize = 32;
/// The load priority of a model that may only go where nothing has to go for it.
const OPPORTUNE: u64 = 1;
/// A model on no more devices than this is planned for exactly.
const FEW: usize = 4;
/// Free memory is used for models that may need it later up to so many places of models on devices, all of them
/// together: with 10,000 models on 1,000 devices each is on 20, unless its requests want more.
const PLACES: usize = 200_000;
/// With more devices than this not all are looked at for a load, but the next few that load nothing.
const LOOKED_AT: usize = 64;
const NEXT: usize = 8;
/// When nothing that wants to be loaded fits, the next look is taken after this time.
const NO_ROOM_RETRY: Duration = Duration::from_millis(1);
/// Batch work doesn't push out a model that had a request with a deadline more recently than this.
const URGENT_PROTECTION: Duration = Duration::from_secs(2);
/// Unless it has waited for long and none did so for this time: where all models in memory have deadlines all the time,
/// others' batch work would wait for ever.
const FORCED_EVERY: Duration = DESPERATE;

#[derive(Clone, Debug, Default)]
pub(crate) struct Planner {
    /// Models with unmet demand that aren't on every device, the most wanting first.
    wanting: BTreeSet<(Reverse<u64>, ModelId)>,
    /// Models with batch work that are on no device, the oldest work first.
    background: BTreeSet<(u64, ModelId)>,
    background_keys: Vec<Option<u64>>,
    /// What it would take to load all models in `wanting` that are nowhere.
    cold: Duration,
    cold_shares: Vec<Duration>,
    /// Before this there is nothing to decide: the load executors have enough to do, or nothing that wants to be loaded
    /// fits. Reports of loads and changes of devices set it back.
    quiet_until: Timestamp,
    /// Where many devices are searched next for one that can load.
    next: u32,
    /// From when on batch work that has waited for long may push out models that somebody asks for with a deadline.
    forced_from: Timestamp,
    /// The last model for which that was done: it stays until its batch work starts, but no longer than until then.
    forced: Option<(ModelId, Timestamp)>,
}

/// For whose sake a model wants to be loaded.
#[derive(Clone, Copy)]
enum Claim {
    /// Requests with deadlines. This model stays.
    Demand { kept: Option<ModelId> },
    /// Batch work.
    BatchWork,
    /// Batch work that has waited for long: whoever isn't used this very moment goes.
    OldBatchWork,
}

impl Planner {
    /// Whether batch work that has waited for long may push out others.
    pub fn new(forces: bool) -> Self {
        Self { forced_from: if forces { Timestamp::ZERO } else { Timestamp::NEVER }, ..Self::default() }
    }

    /// A model has come. Of one that had its number there is nothing in the lists: one that is removed wants nothing.
    pub fn add_model(&mut self, model: ModelId) {
        grown(&mut self.background_keys, model.index());
        grown(&mut self.cold_shares, model.index());
        self.forced.take_if(|(forced, _)| *forced == model);
    }

    /// Brings a model's allocations and load priority up to date.
    pub fn update(&mut self, now: Timestamp, ledger: &mut Ledger, queues: &Queues, model: ModelId) {
        let devices = ledger.device_count;
        let (all_fit, model_count) = (ledger.everything_fits(), ledger.model_count);
        let (models, all_devices) = (&mut ledger.models, &mut ledger.devices);
        let entry = models[model.index()].as_mut().expect("only models that are there are updated");
        let everywhere = entry.residency.len() + entry.barred >= devices;
        let horizon = entry.objective.unwrap_or(DEFAULT_HORIZON);
        if now.since(entry.missed_since) > horizon {
            (entry.missed, entry.missed_since) = (Duration::ZERO, now);
        }
        let demand = entry.demand + entry.missed;
        let priority = if entry.removed || everywhere {
            if entry.planned_demand != Duration::ZERO {
                entry.planned_demand = Duration::ZERO;
                for residency in &mut entry.residency {
                    let device =
                        all_devices[residency.device.index()].as_mut().expect("models are resident on devices");
                    device.allocated -= std::mem::take(&mut residency.allocation);
                }
            }
            0
        } else if entry.residency.len() > FEW && is_near(demand, entry.planned_demand) {
            // On many devices the numbers take time in proportion; small changes don't turn the plan.
            if entry.load_priority > OPPORTUNE { entry.load_priority } else { 0 }
        } else if entry.residency.len() > FEW && (all_fit || entry.residency.len() > LOOKED_AT) {
            // Where nothing has to go for it, which of its devices does how much is nobody's question.
            (demand - horizon * entry.residency.len() as u64).as_nanos()
        } else {
            entry.planned_demand = demand;
            let horizon = horizon.as_secs_f64();
            let demand = demand.as_secs_f64();
            let mut weight_sum = 0.0;
            for residency in &entry.residency {
                let device = all_devices[residency.device.index()].as_mut().expect("models are resident on devices");
                device.allocated -= residency.allocation;
                weight_sum += 1.0 / (device.allocated.as_secs_f64() + 1e-3);
            }
            let mut served = 0.0;
            for residency in &mut entry.residency {
                let device = all_devices[residency.device.index()].as_mut().expect("models are resident on devices");
                let share = demand / (device.allocated.as_secs_f64() + 1e-3) / weight_sum;
                residency.allocation = Duration::from_secs_f64(share);
                device.allocated += residency.allocation;
                served += share * (horizon / device.allocated.as_secs_f64().max(1e-9));
            }
            Duration::from_secs_f64(demand - served).as_nanos()
        };
        // Free memory is there to be used: one request that was refused, or that waits behind others, is reason enough.
        // Weights that take neither room nor time may as well be everywhere, and so may those of a model that was asked
        // for where there is room for all models.
        let for_nothing = entry.pages == 0 && entry.estimates.load() == Duration::ZERO;
        let for_little = all_fit && entry.last_urgent_at.is_some();
        let asked = entry.missed > Duration::ZERO || queues.of(model).background_len() > 1;
        let scarce = entry.residency.len() >= (PLACES / model_count.max(1)).max(FEW);
        let waits = asked || ((for_nothing || for_little) && !scarce);
        let priority = if waits && !entry.removed && !everywhere { priority.max(OPPORTUNE) } else { priority };
        let before = std::mem::replace(&mut entry.load_priority, priority);
        if before != priority {
            self.wanting.remove(&(Reverse(before), model));
            if priority > 0 {
                self.wanting.insert((Reverse(priority), model));
            }
        }
        let nowhere = entry.residency.is_empty();
        let cold = if nowhere && priority > 0 { entry.estimates.load() } else { Duration::ZERO };
        let share = &mut self.cold_shares[model.index()];
        self.cold = self.cold - *share + cold;
        *share = cold;
        let key = if nowhere && !entry.removed { queues.of(model).first_background() } else { None };
        let before = std::mem::replace(&mut self.background_keys[model.index()], key);
        if before != key {
            if let Some(before) = before {
                self.background.remove(&(before, model));
            }
            if let Some(key) = key {
                self.background.insert((key, model));
            }
        }
    }

    /// The time until a model that is nowhere could be loaded, the others that want to be loaded first.
    pub fn load_wait(&self, ledger: &Ledger, model: ModelId, now: Timestamp) -> Duration {
        let others = self.cold - self.cold_shares[model.index()];
        let free_at = || ledger.device_ids().map(|device| ledger.device(device).load.start_at(now)).min();
        let free = if ledger.load_idle.is_empty() { free_at().map(|at| at.since(now)) } else { None };
        free.unwrap_or(Duration::ZERO) + others / (ledger.device_count.max(1) as u64)
    }

    /// When to decide again, if something wants to be loaded.
    pub fn next_wakeup(&self) -> Option<Timestamp> {
        (self.wants() && self.quiet_until != Timestamp::NEVER).then_some(self.quiet_until)
    }

    /// Whether something wants to be loaded.
    fn wants(&self) -> bool {
        !self.wanting.is_empty() || !self.background.is_empty()
    }

    /// Whether there may be something to decide.
    pub fn is_due(&self, now: Timestamp) -> bool {
        now >= self.quiet_until && self.wants()
    }

    /// Something has changed that may let a model be loaded.
    pub fn reconsider(&mut self) {
        self.quiet_until = Timestamp::ZERO;
    }

    /// Gives the load executors work until each has enough to do or nothing wants to be loaded. The caller tells the
    /// policy what was unloaded.
    pub fn decide(
        &mut self,
        now: Timestamp,
        lead: Lead,
        ledger: &mut Ledger,
        queues: &mut Queues,
        out: &mut Vec<Command>,
    ) {
        self.quiet_until = now + NO_ROOM_RETRY;
        while let Some((model, device, victims)) = self.next_load(now, lead, ledger, queues) {
            self.load(now, lead, ledger, queues, model, device, &victims, out);
        }
        if !self.wants() {
            return self.reconsider();
        }
        // Something can't be placed: if that is for want of time, look again when an executor has some.
        if ledger.device_count > LOOKED_AT {
            if ledger.load_idle.is_empty() {
                self.quiet_until = Timestamp::NEVER;
            }
            return;
        }
        let hungry = |id: DeviceId| ledger.device(id).load.is_hungry(now, lead);
        if !ledger.device_ids().any(hungry) {
            let hungry_at = ledger.device_ids().map(|id| ledger.device(id).load.hungry_at(now, lead)).min();
            self.quiet_until = hungry_at.unwrap_or(Timestamp::NEVER);
        }
    }

    /// The next model to load, where, and what must go for it.
    fn next_load(
        &mut self,
        now: Timestamp,
        lead: Lead,
        ledger: &Ledger,
        queues: &Queues,
    ) -> Option<(ModelId, DeviceId, Vec<ModelId>)> {
        let kept = self.forced.filter(|&(_, until)| now < until).map(|(model, _)| model);
        for &(_, model) in self.wanting.iter().take(SEARCH_LIMIT) {
            match place(now, (lead, &mut self.next), ledger, queues, model, Claim::Demand { kept }) {
                Placing::On(device, victims) => return Some((model, device, victims)),
                Placing::NoRoom => {}
                Placing::Busy => return None,
            }
        }
        let &(_, model) = self.background.first()?;
        let lead = Lead { ahead: Duration::ZERO, ..lead };
        match place(now, (lead, &mut self.next), ledger, queues, model, Claim::BatchWork) {
            Placing::On(device, victims) => return Some((model, device, victims)),
            Placing::NoRoom if self.is_forced(now, queues, model) => {}
            Placing::NoRoom | Placing::Busy => return None,
        }
        match place(now, (lead, &mut self.next), ledger, queues, model, Claim::OldBatchWork) {
            Placing::On(device, victims) => {
                let there_at = now + ledger.model(model).estimates.load();
                // Until the device may do batch work, but no longer than until the next one's time.
                let may_run_at = there_at.max(ledger.device(device).batch_work_at);
                self.forced = Some((model, (may_run_at + URGENT_PROTECTION).min(there_at + FORCED_EVERY)));
                self.forced_from = now + FORCED_EVERY;
                Some((model, device, victims))
            }
            Placing::NoRoom | Placing::Busy => None,
        }
    }

    /// A model for which others had to go has what it was loaded for.
    pub fn batch_work_started(&mut self, model: ModelId) {
        self.forced = self.forced.filter(|&(forced, _)| forced != model);
    }

    /// Whether a model's batch work has waited for so long that others may have to go for it.
    fn is_forced(&self, now: Timestamp, queues: &Queues, model: ModelId) -> bool {
        let since = queues.of(model).background_since();
        now >= self.forced_from && since.is_some_and(|since| now.since(since) >= DESPERATE)
    }

    #[allow(clippy::too_many_arguments)] // One call site; a struct for it would only rename the arguments.
    fn load(
        &mut self,
        now: Timestamp,
        lead: Lead,
        ledger: &mut Ledger,
        queues: &mut Queues,
        model: ModelId,
        device: DeviceId,
        victims: &[ModelId],
        out: &mut Vec<Command>,
    ) {
        for &victim in victims {
            self.unload(now, ledger, queues, victim, device, out);
        }
        let action = ledger.next_action();
        let entry = ledger.model(model);
        let expected = entry.estimates.load();
        // A load that starts when no queued request could still gain from it is pointless. One that is too late for all
        // of them already when it is ordered is for those that come next: with a window that its order can't reach it
        // would be refused there, and ordered again, for ever.
        let gains_until = queues
            .of(model)
            .last_deadline()
            .filter(|_| queues.of(model).first_background().is_none() && entry.missed == Duration::ZERO)
            .map(|deadline_at| deadline_at - ledger.smallest(entry) - expected);
        let latest = gains_until.filter(|&at| at > now + lead.way * 2).unwrap_or(Timestamp::NEVER);
        let pages = entry.pages;
        let there = ledger.device_mut(device);
        assert!(there.free_pages >= pages, "P5: {model} is loaded on {device} without free pages");
        there.free_pages -= pages;
        there.loading.insert(model);
        let done_at = there.load.push(now + lead.way, action, expected, Duration::ZERO);
        ledger.load_idle.remove(device);
        let residency = Residency {
            device,
            loading_until: Some(done_at),
            last_used_at: now,
            in_use: 0,
            allocation: Duration::ZERO,
        };
        let entry = ledger.model_mut(model);
        entry.missed = Duration::ZERO;
        entry.insert_residency(residency);
        ledger.note_held(model, device);
        ledger.actions.insert(action, Action::Load { device, model });
        out.push(Command::Load(Load { action, device, model, window: Window { earliest: now, latest }, expected }));
        self.update(now, ledger, queues, model);
    }

    /// Takes a model off a device, at once. The caller tells the policy.
    pub fn unload(
        &mut self,
        now: Timestamp,
        ledger: &mut Ledger,
        queues: &mut Queues,
        model: ModelId,
        device: DeviceId,
        out: &mut Vec<Command>,
    ) {
        ledger.evict(model, device);
        queues.unloaded(ledger, model, device);
        out.push(Command::Unload(Unload { device, model }));
        self.update(now, ledger, queues, model);
    }
}

/// Within a sixteenth of each other.
fn is_near(a: Duration, b: Duration) -> bool {
    a.max(b) - a.min(b) <= a / 16
}

/// Whether a model may be unloaded so that another one's batch work can be done: not while somebody asks for it with a
/// deadline, and not while its own batch work is older.
fn may_give_way(
    now: Timestamp,
    queues: &Queues,
    last_urgent_at: Option<Timestamp>,
    victim: ModelId,
    newcomer: ModelId,
) -> bool {
    let quiet = last_urgent_at.is_none_or(|at| now.since(at) >= URGENT_PROTECTION);
    let older = queues
        .of(victim)
        .first_background()
        .is_some_and(|oldest| Some(oldest) < queues.of(newcomer).first_background());
    quiet && !older
}

/// What can be done for a model that wants to be loaded.
enum Placing {
    /// It can go there, if these go.
    On(DeviceId, Vec<ModelId>),
    /// There are devices with time for a load, but none with room.
    NoRoom,
    /// Every device has enough to load.
    Busy,
}

/// Finds the device for a model: the one whose load executor is free first, then the one whose batches are.
fn place(
    now: Timestamp,
    (lead, next): (Lead, &mut u32),
    ledger: &Ledger,
    queues: &Queues,
    model: ModelId,
    claim: Claim,
) -> Placing {
    let entry = ledger.model(model);
    let mut devices = if ledger.device_count > LOOKED_AT {
        let idle = ledger.load_idle.without(queues.devices_of(model), *next);
        idle.filter(|&id| ledger.device(id).takes(model)).take(NEXT).collect()
    } else {
        ledger.device_ids().filter(|&id| ledger.device(id).load.is_hungry(now, lead)).collect::<Vec<_>>()
    };
    if ledger.load_idle.is_empty() && devices.is_empty() {
        return Placing::Busy;
    }
    devices.retain(|&id| entry.residency_on(id).is_none() && ledger.device(id).takes(model));
    *next = devices.first().map_or(*next, |first| first.0 + 1);
    devices.sort_by_key(|&id| {
        let device = ledger.device(id);
        (device.load.start_at(now), device.exec.start_at(now))
    });
    for id in devices {
        let device = ledger.device(id);
        if entry.pages <= device.free_pages {
            return Placing::On(id, Vec::new());
        }
        if matches!(claim, Claim::Demand { .. }) && entry.load_priority <= OPPORTUNE {
            continue;
        }
        let mut free = device.free_pages;
        let mut victims = Vec::new();
        for &(_, victim) in device.by_last_use.iter().take(SEARCH_LIMIT) {
            let other = ledger.model(victim);
            // A removed model goes by itself, once what is queued for it is done.
            let busy = other.weights().find(|there| there.device == id).is_none_or(|there| there.in_use > 0);
            // One that requests wait for gives way only to more unmet work than its own: else whoever is loaded and
            // never has an empty queue would keep all others out for ever.
            let runs = device.takes(victim);
            let wanted = || runs && queues.of(victim).has_urgent() && other.demand.as_nanos() >= entry.load_priority;
            let stays = match claim {
                Claim::Demand { kept } => kept == Some(victim) || wanted(),
                Claim::BatchWork => wanted() || !may_give_way(now, queues, other.last_urgent_at, victim, model),
                Claim::OldBatchWork => false,
            };
            if busy || other.removed || stays {
                continue;
            }
            victims.push(victim);
            free += other.pages;
            if free >= entry.pages {
                return Placing::On(id, victims);
            }
        }
    }
    Placing::NoRoom
}
