//! What is where and until when: devices with their executors and pages, models with their estimates and residency,
//! actions that are under way. One place; every policy reads it.

use crate::backlog::Backlog;
use crate::batch_times::BatchTimes;
use crate::bits::DeviceSet;
use crate::estimates::Estimates;
use crate::executor::Executor;
use crate::heap::Heap;
use crate::slowness::{Ran, Slowness};
use crate::trials::Trials;
use base::{ActionId, DeviceId, Duration, ModelId, RequestId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How often it is noted that a model was used, where nothing ever has to go: with a million places each is used every
/// ten seconds or so, and noting it costs more than a request.
const RARELY: Duration = Duration::from_secs(10);
/// How fast the use of devices is followed.
const LATELY: Duration = Duration::from_millis(50);

/// Whose estimates hold for a device: those of its kind, or of those that are so many steps slower.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Speed {
    pub kind: u32,
    pub step: u32,
}

#[derive(Clone, Debug)]
pub(crate) struct Device {
    /// Differs from that of a device that had the same number before.
    pub generation: u32,
    /// Devices of one kind have their estimates in common.
    pub kind: u32,
    /// How slow it is beside its kind.
    pub slowness: Slowness,
    pub pages: u32,
    pub free_pages: u32,
    /// Runs batches.
    pub exec: Executor,
    /// Copies weights.
    pub load: Executor,
    /// Loaded models by their last use, the least recent first.
    pub by_last_use: BTreeSet<(Timestamp, ModelId)>,
    /// Models whose weights are on their way.
    pub loading: BTreeSet<ModelId>,
    /// Queued work that is expected to be done here.
    pub backlog: Backlog,
    /// The sum of the models' demand allocations (Clockwork, appendix B: l_g).
    pub allocated: Duration,
    /// When a wakeup is set for its hunger.
    pub hungry_at: Option<Timestamp>,
    /// Until when nothing is started here, because calls are about to come that follow those that it has done.
    pub kept_until: Timestamp,
    /// Since when it is known to be idle; never while it isn't.
    pub idle_since: Timestamp,
    /// From when on batch work that has waited goes before what has deadlines.
    pub batch_work_at: Timestamp,
    /// The last batch that it was given, while it runs something.
    busy_with: Option<ActionId>,
    /// Only these models run here; `None`: all.
    pub allotted: Option<BTreeSet<ModelId>>,
}

impl Device {
    pub fn new(pages: u32, kind: u32, generation: u32) -> Self {
        Self {
            generation,
            kind,
            slowness: Slowness::default(),
            pages,
            free_pages: pages,
            exec: Executor::default(),
            load: Executor::default(),
            by_last_use: BTreeSet::new(),
            loading: BTreeSet::new(),
            backlog: Backlog::new(),
            allocated: Duration::ZERO,
            hungry_at: None,
            kept_until: Timestamp::ZERO,
            idle_since: Timestamp::ZERO,
            batch_work_at: Timestamp::ZERO,
            busy_with: None,
            allotted: None,
        }
    }

    /// An execution is over, perhaps the last one that it had been given.
    pub fn note_idle(&mut self, now: Timestamp) {
        if self.exec.is_idle() {
            self.idle_since = now;
        }
    }

    /// Whether nobody may run here: the place of a share that there isn't now.
    pub fn is_closed(&self) -> bool {
        self.allotted.as_ref().is_some_and(BTreeSet::is_empty)
    }

    /// Whether a model may run here.
    pub fn takes(&self, model: ModelId) -> bool {
        self.allotted.as_ref().is_none_or(|models| models.contains(&model))
    }

    /// The number of a model that was here is another's from now on.
    pub fn forget(&mut self, model: ModelId) {
        self.slowness.forget(model);
        self.allotted.iter_mut().for_each(|models| _ = models.remove(&model));
    }

    pub fn speed(&self) -> Speed {
        Speed { kind: self.kind, step: self.slowness.step() }
    }
}

/// A model on a device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Residency {
    pub device: DeviceId,
    /// When its load is expected to be done; `None` once it is.
    pub loading_until: Option<Timestamp>,
    pub last_used_at: Timestamp,
    /// Batches under way: weights in use are never unloaded (P6).
    pub in_use: u32,
    /// How much of the model's demand is expected to be met here (Clockwork, appendix B: a_mg).
    pub allocation: Duration,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub pages: u32,
    pub estimates: Estimates,
    /// The speeds of the devices where it is or will soon be, if devices differ.
    pub held: Vec<Speed>,
    pub objective: Option<Duration>,
    /// Where it may run and is, or will soon be, by device.
    pub residency: Vec<Residency>,
    /// Where it is, or will soon be, but may not run (`allotment.rs`).
    pub parked: Vec<Residency>,
    /// How many devices it may not run on, and of which kinds the others are, where any has models of its own.
    pub barred: usize,
    pub kinds: Vec<u32>,
    /// The time that its queued requests take (Clockwork, appendix B: d_m).
    pub demand: Duration,
    /// The time that requests would have taken that were refused for want of its weights or of devices that have them,
    /// since `missed_since`: they are gone, but the next ones like them would be served.
    pub missed: Duration,
    pub missed_since: Timestamp,
    /// What the demand was when the allocations were last computed.
    pub planned_demand: Duration,
    /// Its place among the models that want to be loaded; 0 when it doesn't.
    pub load_priority: u64,
    /// When its last request with a deadline came: batch work may not push it out of memory soon after.
    pub last_urgent_at: Option<Timestamp>,
    /// Requests that seem impossible, and are tried.
    pub trials: Trials,
    pub removed: bool,
}

impl Model {
    /// Where a device stands, or would. A model that is on all devices has each at its own index.
    fn position_of(&self, device: DeviceId) -> Result<usize, usize> {
        match self.residency.get(device.index()) {
            Some(there) if there.device == device => Ok(device.index()),
            _ => self.residency.binary_search_by_key(&device, |residency| residency.device),
        }
    }

    pub fn residency_on(&self, device: DeviceId) -> Option<&Residency> {
        self.position_of(device).ok().map(|index| &self.residency[index])
    }

    pub fn residency_on_mut(&mut self, device: DeviceId) -> Option<&mut Residency> {
        self.position_of(device).ok().map(|index| &mut self.residency[index])
    }

    /// The same, whether it may run there or not.
    pub fn weights_on_mut(&mut self, device: DeviceId) -> Option<&mut Residency> {
        match self.position_of(device) {
            Ok(index) => Some(&mut self.residency[index]),
            Err(_) => self.parked.iter_mut().find(|there| there.device == device),
        }
    }

    /// Everywhere that its weights are or will soon be.
    pub fn weights(&self) -> impl Iterator<Item = &Residency> {
        self.residency.iter().chain(&self.parked)
    }

    /// Whether no device has its weights or will soon have them, to run it or not.
    pub fn is_nowhere(&self) -> bool {
        self.weights().next().is_none()
    }

    /// Puts it among the places where it may run.
    pub fn insert_residency(&mut self, residency: Residency) {
        let index = self.residency.partition_point(|there| there.device < residency.device);
        self.residency.insert(index, residency);
    }

    /// Takes it out of the places where it may run, or may not.
    pub fn take_residency(&mut self, device: DeviceId) -> Option<Residency> {
        match self.position_of(device) {
            Ok(index) => Some(self.residency.remove(index)),
            Err(_) => {
                let index = self.parked.iter().position(|there| there.device == device)?;
                Some(self.parked.swap_remove(index))
            }
        }
    }

    pub fn is_loaded_on(&self, device: DeviceId) -> bool {
        self.residency_on(device).is_some_and(|residency| residency.loading_until.is_none())
    }

    pub fn loaded_devices(&self) -> impl Iterator<Item = DeviceId> {
        self.residency.iter().filter(|residency| residency.loading_until.is_none()).map(|residency| residency.device)
    }
}

/// An action that was ordered and not yet reported.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// With the speed that the device had.
    Execute {
        device: DeviceId,
        speed: Speed,
        model: ModelId,
        batch: u32,
        requests: Vec<RequestId>,
    },
    Load {
        device: DeviceId,
        model: ModelId,
    },
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    /// By `DeviceId`; `None` where a device was lost.
    pub devices: Vec<Option<Device>>,
    /// By `ModelId`.
    pub models: Vec<Option<Model>>,
    pub actions: BTreeMap<ActionId, Action>,
    pub device_count: usize,
    /// Devices that load nothing.
    pub load_idle: DeviceSet,
    /// How many models there are.
    pub model_count: usize,
    /// Pages of all models together, and of the smallest device.
    pub all_pages: u64,
    smallest_pages: u64,
    /// The kinds of devices that are there.
    kinds: Vec<u32>,
    /// The slowest kind of device that is there; that of the last ones where there is none.
    pub slowest: u32,
    /// How many devices have models of their own, and how many of these have none at all.
    pub allotted: usize,
    closed: usize,
    /// The speeds of the devices that are there.
    speeds: Vec<Speed>,
    /// Devices that are slower than their kind.
    pub slow: DeviceSet,
    /// When one of them should be tried again, if it does nothing until then.
    pub next_trial_at: Timestamp,
    next_action: u64,
    pub next_epoch: u32,
    /// Devices that run batches and aren't slower than their kind, by when they will be free.
    pub busy: Heap,
    /// The part of them that was busy lately.
    pub in_use: f64,
    in_use_at: Timestamp,
}

impl Ledger {
    /// Whether every device has room for all models together: then nothing ever has to go.
    pub fn everything_fits(&self) -> bool {
        self.all_pages <= self.smallest_pages
    }

    /// Notes for `everything_fits` that devices have come or gone.
    pub fn note_devices(&mut self) {
        let devices = self.devices.iter().flatten().map(|device| u64::from(device.pages));
        self.smallest_pages = devices.min().unwrap_or(0);
    }

    /// Plans with another kind of device where it isn't decided which it will be, if another is the slowest. Whether
    /// that is so.
    pub fn note_kinds(&mut self) -> bool {
        self.kinds.clear();
        self.kinds.extend(self.devices.iter().flatten().map(|device| device.kind));
        self.kinds.sort_unstable();
        self.kinds.dedup();
        self.note_speeds();
        let slowest = self.kinds.first().copied().unwrap_or(self.slowest);
        if self.allotted > 0 {
            self.slowest = slowest;
            return self.note_allotted();
        }
        if slowest == self.slowest {
            return false;
        }
        self.slowest = slowest;
        self.models.iter_mut().flatten().for_each(|model| model.estimates.plan_with(slowest));
        true
    }

    /// Where devices have models of their own: notes for each model which devices are there for it, and plans with the
    /// slowest kind of these. Whether that is another one for any.
    pub fn note_allotted(&mut self) -> bool {
        self.closed = self.devices.iter().flatten().filter(|device| device.is_closed()).count();
        let Self { models, devices, slowest, .. } = self;
        let mut changed = false;
        for (index, model) in models.iter_mut().enumerate() {
            let Some(model) = model else { continue };
            let there = devices.iter().flatten();
            let able = there.clone().filter(|device| device.takes(ModelId(index as u32)));
            model.kinds.clear();
            model.kinds.extend(able.map(|device| device.kind));
            model.barred = there.count() - model.kinds.len();
            model.kinds.sort_unstable();
            model.kinds.dedup();
            let planned = model.kinds.first().copied().unwrap_or(*slowest);
            changed |= model.estimates.planned_kind() != planned;
            model.estimates.plan_with(planned);
        }
        changed
    }

    /// Notes which speeds there are, and forgets what was known of others.
    fn note_speeds(&mut self) {
        self.speeds.clear();
        self.speeds.extend(self.devices.iter().flatten().map(Device::speed));
        self.speeds.sort_unstable();
        self.speeds.dedup();
        self.note_trials();
        let Self { models, speeds, devices, .. } = self;
        for model in models.iter_mut().flatten() {
            model.estimates.keep_only(speeds);
            model.held.clear();
            if speeds.len() > 1 {
                let speed = |there: &Residency| devices[there.device.index()].as_ref().map(Device::speed);
                model.held.extend(model.residency.iter().filter_map(speed));
                model.held.sort_unstable();
                model.held.dedup();
                (0..model.held.len()).for_each(|index| model.estimates.begin_at(model.held[index]));
            }
        }
    }

    /// Notes when a slow device should be tried again.
    pub fn note_trials(&mut self) {
        let trials = self.slow.iter().map(|device| self.device(device).slowness.trial_at());
        self.next_trial_at = trials.min().unwrap_or(Timestamp::NEVER);
    }

    /// Whether no other device of its kind is there that isn't slow.
    pub fn is_alone(&self, device: DeviceId) -> bool {
        let kind = self.device(device).kind;
        self.device_ids().all(|other| other == device || self.device(other).kind != kind || self.slow.contains(other))
    }

    /// A device is so many steps slower than its kind from now on. What it did before goes out of its kind's estimates:
    /// that was not the kind.
    pub fn set_step(&mut self, now: Timestamp, device: DeviceId, step: u32) {
        let Some(there) = &mut self.devices[device.index()] else { return };
        let (kind, before) = (there.kind, there.slowness.step());
        for run in there.slowness.long_runs().filter(|_| before == 0 && step > 0) {
            if let Some(Some(model)) = self.models.get_mut(run.model.index()) {
                model.estimates.on_mut(kind).forget(run.batch, run.took);
            }
        }
        there.slowness.set(now, step);
        if step > 0 {
            self.slow.insert(device);
            self.busy.remove(device.index());
        } else {
            self.slow.remove(device);
        }
        self.note_speeds();
    }

    /// Takes in what a batch took on a device, and says how many steps slower than its kind that is, if that is
    /// something else than was known.
    pub fn learn(
        &mut self,
        now: Timestamp,
        device: DeviceId,
        model: ModelId,
        run: (u32, Duration, Duration),
    ) -> Option<u32> {
        let (batch, took, overlap) = run;
        let speed = self.device(device).speed();
        let entry = self.model_mut(model);
        let usual = entry.estimates.on(speed.kind).class_for(batch).median();
        entry.estimates.at_mut(speed).observe(now, batch, took, overlap);
        // Where times depend on the input, a long one says nothing of the device.
        if entry.estimates.planned().is_distributed() {
            return None;
        }
        let there = self.device_mut(device);
        if !there.slowness.note(now, Ran { model, batch, took, usual }) {
            return None;
        }
        // The others are many: they are looked at only where that makes a difference.
        let others = if there.slowness.is_suspect() { self.others(device) } else { 1.0 };
        let step = self.device_mut(device).slowness.judge(others);
        // Nobody is slow alone: the last one that isn't is its kind.
        let step = if step > 0 && self.is_alone(device) { 0 } else { step };
        (step != speed.step).then_some(step)
    }

    /// How many times as long as usual other devices of a device's kind take, the middle one of them.
    fn others(&self, device: DeviceId) -> f64 {
        let kind = self.device(device).kind;
        let others = self.device_ids().filter(|&other| other != device && self.device(other).kind == kind);
        let mut middles: Vec<f64> = others.filter_map(|other| self.device(other).slowness.middle()).collect();
        middles.sort_unstable_by(f64::total_cmp);
        // Of two, the quicker one: the slower may be slower than its kind itself.
        middles.get(middles.len().saturating_sub(1) / 2).copied().unwrap_or(1.0)
    }

    /// How many devices are there for somebody and aren't slower than their kind.
    pub fn quick_count(&self) -> usize {
        self.device_count - self.closed - self.slow.len()
    }

    /// Whether all devices have their estimates in common.
    pub fn is_uniform(&self) -> bool {
        self.speeds.len() <= 1 && self.slow.is_empty()
    }

    /// Whether there are devices of several kinds.
    pub fn has_kinds(&self) -> bool {
        self.kinds.len() > 1
    }

    /// The speeds of the devices where a model is or will soon be; of all devices where it is nowhere.
    pub fn speeds_of<'a>(&'a self, model: &'a Model) -> &'a [Speed] {
        if model.held.is_empty() { &self.speeds } else { &model.held }
    }

    /// What the quickest device takes for so many rows, of those where a model is or will soon be: with less time
    /// nobody can be served.
    pub fn quickest(&self, model: &Model, rows: u32) -> Duration {
        let takes = |times: &BatchTimes| times.class_for(rows).least_quantile();
        self.least(model, takes)
    }

    /// The same for the quickest batch.
    pub fn smallest(&self, model: &Model) -> Duration {
        self.least(model, BatchTimes::smallest)
    }

    fn least(&self, model: &Model, takes: impl Fn(&BatchTimes) -> Duration) -> Duration {
        if self.is_uniform() {
            return takes(model.estimates.planned());
        }
        let speeds = self.speeds_of(model).iter();
        speeds.map(|&speed| takes(model.estimates.at(speed))).min().unwrap_or_else(|| takes(model.estimates.planned()))
    }

    /// A model is on its way to a device, or on it.
    pub fn note_held(&mut self, model: ModelId, device: DeviceId) {
        if self.is_uniform() {
            return;
        }
        let speed = self.device(device).speed();
        let entry = self.model_mut(model);
        entry.estimates.begin_at(speed);
        if !entry.held.contains(&speed) {
            entry.held.push(speed);
        }
    }

    /// On how many devices models are, all of them together.
    pub fn places(&self) -> usize {
        self.models.iter().flatten().map(|model| model.weights().count()).sum()
    }

    /// A device that is known to be there.
    pub fn device(&self, device: DeviceId) -> &Device {
        self.devices[device.index()].as_ref().expect("only devices that are there are asked for")
    }

    pub fn device_mut(&mut self, device: DeviceId) -> &mut Device {
        self.devices[device.index()].as_mut().expect("only devices that are there are asked for")
    }

    /// What batches of a model take on a device; both are there.
    pub fn times(&self, model: ModelId, device: DeviceId) -> &BatchTimes {
        self.model(model).estimates.at(self.device(device).speed())
    }

    /// The longest that a batch takes in its own size, whichever device it will be, if its first request, of so many
    /// rows, has so much time.
    pub fn longest(&self, model: &Model, rows: u32, first: (u32, Duration)) -> Duration {
        let kinds = if self.allotted == 0 { &self.kinds } else { &model.kinds };
        model.estimates.longest(kinds, rows, first)
    }

    /// A model that is known to be there.
    pub fn model(&self, model: ModelId) -> &Model {
        self.models[model.index()].as_ref().expect("only models that are there are asked for")
    }

    pub fn model_mut(&mut self, model: ModelId) -> &mut Model {
        self.models[model.index()].as_mut().expect("only models that are there are asked for")
    }

    /// What batches of a model take, if it is there.
    pub fn planned(&self, model: ModelId) -> Option<&BatchTimes> {
        Some(self.models.get(model.index())?.as_ref().filter(|model| !model.removed)?.estimates.planned())
    }

    pub fn device_ids(&self) -> impl Iterator<Item = DeviceId> {
        let there = self.devices.iter().enumerate().filter(|(_, device)| device.is_some());
        there.map(|(index, _)| DeviceId(index as u32))
    }

    pub fn next_action(&mut self) -> ActionId {
        self.next_action += 1;
        ActionId(self.next_action)
    }

    /// A batch was ordered.
    pub fn batch_started(&mut self, device: DeviceId, action: ActionId, done_at: Timestamp) {
        self.device_mut(device).busy_with = Some(action);
        if !self.slow.contains(device) {
            self.busy.set(device.index(), done_at);
        }
    }

    /// A batch is over. One that was ordered ahead may still be behind it.
    pub fn batch_ended(&mut self, device: DeviceId, action: ActionId) {
        if self.device_mut(device).busy_with.take_if(|last| *last == action).is_some() {
            self.busy.remove(device.index());
        }
    }

    /// Follows how many devices are busy.
    pub fn note_use(&mut self, now: Timestamp) {
        let part = now.since(self.in_use_at).as_nanos() as f64 / LATELY.as_nanos() as f64;
        self.in_use += part.min(1.0) * (self.busy.len() as f64 / self.quick_count().max(1) as f64 - self.in_use);
        self.in_use_at = now;
    }

    /// Notes a use of a model on a device, which protects it from being unloaded soon. Where nothing ever has to go,
    /// now and then is enough.
    pub fn touch(&mut self, now: Timestamp, model: ModelId, device: DeviceId) {
        let each = if self.everything_fits() { RARELY } else { Duration::ZERO };
        let residency = self.model_mut(model).residency_on_mut(device).expect("only loaded models are used (P6)");
        let before = residency.last_used_at;
        if now.since(before) > each {
            residency.last_used_at = now;
            let by_last_use = &mut self.device_mut(device).by_last_use;
            by_last_use.remove(&(before, model));
            by_last_use.insert((now, model));
        }
    }

    /// Forgets that a model is on a device and gives its pages back.
    pub fn evict(&mut self, model: ModelId, device: DeviceId) {
        let entry = self.model_mut(model);
        let residency = entry.take_residency(device).expect("only resident models are evicted");
        let pages = entry.pages;
        self.forget_held(model);
        assert_eq!(residency.in_use, 0, "P6: {model} was unloaded from {device} while in use");
        let there = self.device_mut(device);
        there.by_last_use.remove(&(residency.last_used_at, model));
        there.loading.remove(&model);
        there.allocated -= residency.allocation;
        there.free_pages += pages;
        assert!(there.free_pages <= there.pages, "P5: more free pages on {device} than there are");
    }

    /// Forgets speeds of devices where a model no longer is.
    pub fn forget_held(&mut self, model: ModelId) {
        let mut held = std::mem::take(&mut self.model_mut(model).held);
        held.retain(|&speed| self.model(model).residency.iter().any(|it| self.device(it.device).speed() == speed));
        self.model_mut(model).held = held;
    }
}
