//! A modelled worker with one device: it follows windows strictly and never does best-effort work.
//!
//! The executor for batches takes actions by `earliest` and waits; the one for loads obeys LOAD and UNLOAD in the order
//! in which they came. Neither looks at a clock: both say when they want to be looked at again.

use base::{ActionId, DeviceId, Duration, ModelId, OrderStart, Timestamp, Transfers};
use scheduler::{Execution, Load};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::observe::Refusal;

/// Where the weights of one model are on their way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WeightsState {
    Absent,
    Loading,
    Loaded,
}

/// One device.
#[derive(Debug)]
pub(crate) struct SimulatedDevice {
    pub(crate) id: DeviceId,
    pages: u32,
    pages_used: u32,
    weights: Vec<WeightsState>,
    pages_of: Vec<u32>,
    queue: BinaryHeap<Reverse<Queued>>,
    loads: VecDeque<WeightsOrder>,
    executing: Option<Executing>,
    loading: Option<(Load, Timestamp)>,
}

/// A batch that runs.
#[derive(Debug)]
pub(crate) struct Executing {
    pub(crate) execution: Execution,
    pub(crate) start: OrderStart,
}

#[derive(Debug)]
struct Queued {
    earliest: Timestamp,
    ready_at: Timestamp,
    execution: Execution,
}

impl Queued {
    fn key(&self) -> (Timestamp, ActionId) {
        (self.earliest, self.execution.action)
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

#[derive(Debug)]
enum WeightsOrder {
    Load(Load),
    Unload(ModelId),
}

/// What an executor did when it was looked at.
#[derive(Debug)]
pub(crate) enum ExecuteStep<'a> {
    /// Started this.
    Started(&'a Executing),
    /// Did not start this.
    Refused(Execution, Refusal),
    /// Nothing to do before that instant, or before something new comes.
    Wait(Option<Timestamp>),
}

/// What the executor for loads did when it was looked at.
#[derive(Debug)]
pub(crate) enum LoadStep {
    Started(Load, u32),
    Refused(Load, Refusal),
    Unloaded { model: ModelId, pages_used: u32, was_loaded: bool },
    Wait(Option<Timestamp>),
}

impl SimulatedDevice {
    pub(crate) fn new(id: DeviceId, pages: u32, pages_of: Vec<u32>) -> Self {
        Self {
            id,
            pages,
            pages_used: 0,
            weights: vec![WeightsState::Absent; pages_of.len()],
            pages_of,
            queue: BinaryHeap::new(),
            loads: VecDeque::new(),
            executing: None,
            loading: None,
        }
    }

    /// Forgets everything, as a worker that starts again does.
    pub(crate) fn reset(&mut self) {
        let pages_of = std::mem::take(&mut self.pages_of);
        *self = Self::new(self.id, self.pages, pages_of);
    }

    pub(crate) fn pages_used(&self) -> u32 {
        self.pages_used
    }

    pub(crate) fn loaded(&self, model: ModelId) -> bool {
        self.weights[model.index()] == WeightsState::Loaded
    }

    /// Takes in a batch whose inputs are there at `ready_at`.
    pub(crate) fn accept_execution(&mut self, execution: Execution, ready_at: Timestamp) {
        self.queue.push(Reverse(Queued { earliest: execution.window.earliest, ready_at, execution }));
    }

    pub(crate) fn accept_load(&mut self, load: Load) {
        self.loads.push_back(WeightsOrder::Load(load));
    }

    pub(crate) fn accept_unload(&mut self, model: ModelId) {
        self.loads.push_back(WeightsOrder::Unload(model));
    }

    /// Looks at the executor for batches.
    pub(crate) fn step_execute(&mut self, now: Timestamp) -> ExecuteStep<'_> {
        if self.executing.is_some() {
            return ExecuteStep::Wait(None);
        }
        let Some(Reverse(front)) = self.queue.peek() else { return ExecuteStep::Wait(None) };
        let start = OrderStart::new(front.execution.window, front.ready_at, now);
        if start.at > now && start.in_time {
            return ExecuteStep::Wait(Some(start.at));
        }
        let Some(Reverse(Queued { execution, .. })) = self.queue.pop() else {
            return ExecuteStep::Wait(None);
        };
        if !start.in_time {
            return ExecuteStep::Refused(execution, Refusal::TooLate);
        }
        if !is_drivers(&execution) && self.weights[execution.model.index()] != WeightsState::Loaded {
            return ExecuteStep::Refused(execution, Refusal::NoWeights);
        }
        ExecuteStep::Started(self.executing.insert(Executing { execution, start }))
    }

    /// Looks at the executor for loads.
    pub(crate) fn step_load(&mut self, now: Timestamp) -> LoadStep {
        if self.loading.is_some() {
            return LoadStep::Wait(None);
        }
        match self.loads.front() {
            None => return LoadStep::Wait(None),
            Some(WeightsOrder::Load(load)) => {
                let start = OrderStart::new(load.window, now, now);
                if start.at > now {
                    return LoadStep::Wait(Some(start.at));
                }
            }
            Some(WeightsOrder::Unload(_)) => {}
        }
        match self.loads.pop_front() {
            None => LoadStep::Wait(None),
            Some(WeightsOrder::Unload(model)) => {
                let before = std::mem::replace(&mut self.weights[model.index()], WeightsState::Absent);
                let was_loaded = before == WeightsState::Loaded;
                if was_loaded {
                    self.pages_used -= self.pages_of[model.index()];
                }
                LoadStep::Unloaded { model, pages_used: self.pages_used, was_loaded }
            }
            Some(WeightsOrder::Load(load)) => self.start_load(load, now),
        }
    }

    fn start_load(&mut self, load: Load, now: Timestamp) -> LoadStep {
        if !OrderStart::new(load.window, now, now).in_time {
            return LoadStep::Refused(load, Refusal::TooLate);
        }
        let weights = &mut self.weights[load.model.index()];
        if *weights != WeightsState::Absent {
            return LoadStep::Refused(load, Refusal::AlreadyLoaded);
        }
        let wanted = self.pages_of[load.model.index()];
        if self.pages - self.pages_used < wanted {
            return LoadStep::Refused(load, Refusal::NoPages);
        }
        *weights = WeightsState::Loading;
        self.pages_used += wanted;
        self.loading = Some((load, now));
        LoadStep::Started(load, self.pages_used)
    }

    /// The batch that is running, if one is.
    pub(crate) fn executing(&self) -> Option<ActionId> {
        self.executing.as_ref().map(|executing| executing.execution.action)
    }

    /// Breaks an execution off that is running or waits, and since when it ran; `None` where it is over.
    pub(crate) fn break_off(&mut self, action: ActionId) -> Option<(Execution, Option<Timestamp>)> {
        if self.executing() == Some(action) {
            return self.executing.take().map(|executing| (executing.execution, Some(executing.start.at)));
        }
        let mut broken_off = None;
        let waiting = std::mem::take(&mut self.queue).into_vec();
        for Reverse(queued) in waiting {
            if queued.execution.action == action {
                broken_off = Some((queued.execution, None));
            } else {
                self.queue.push(Reverse(queued));
            }
        }
        broken_off
    }

    /// The batch that was running has ended.
    pub(crate) fn end_execution(&mut self) -> Executing {
        self.executing.take().expect("an execution ends only while one is running")
    }

    /// The load that was running has ended.
    pub(crate) fn end_load(&mut self) -> (Load, Timestamp) {
        let (load, started_at) = self.loading.take().expect("a load ends only while one is running");
        self.weights[load.model.index()] = WeightsState::Loaded;
        (load, started_at)
    }

    /// The load that was running has come to nothing.
    pub(crate) fn fail_load(&mut self) -> Load {
        let (load, _) = self.loading.take().expect("a load fails only while one is running");
        self.weights[load.model.index()] = WeightsState::Absent;
        self.pages_used -= self.pages_of[load.model.index()];
        load
    }
}

/// What the driver borrows a device for waits among the batches; it has no requests and needs no weights.
pub(crate) fn is_drivers(execution: &Execution) -> bool {
    execution.action >= ActionId::DRIVERS
}

/// How long actions really take on devices of one kind.
#[derive(Clone, Debug)]
pub(crate) struct Durations {
    /// For each model, its batch sizes with their medians, and what of these may run beside others.
    medians: Vec<Vec<(u32, Duration, Duration)>>,
    loads: Vec<Duration>,
    /// What their batches take whatever the inputs are.
    fixed: Vec<Duration>,
}

impl Durations {
    pub(crate) fn new(models: &[scheduler::ModelSpec], kind: usize) -> Self {
        let profile = |spec: &scheduler::ModelSpec| match kind.checked_sub(1) {
            None => spec.profile.clone(),
            Some(other) => spec.elsewhere.get(other).unwrap_or(&spec.profile).clone(),
        };
        let table = |spec: &scheduler::ModelSpec| {
            profile(spec).batches().iter().map(|entry| (entry.batch, entry.median, entry.overlap)).collect()
        };
        Self {
            medians: models.iter().map(table).collect(),
            loads: models.iter().map(|spec| profile(spec).load()).collect(),
            fixed: models.iter().map(|spec| spec.fixed).collect(),
        }
    }

    /// What a batch takes whose longest request takes that long alone: the fixed part, and as many times its work as
    /// the average request's takes in that size (Orloj, equations 3 and 4).
    pub(crate) fn padded(&self, model: ModelId, batch: u32, longest: Duration) -> Duration {
        let (fixed, (first, one, _)) = (self.fixed[model.index()], self.medians[model.index()][0]);
        let work = (longest - fixed).max(Duration::from_nanos(1));
        let times = (self.execution(model, batch) - fixed).as_nanos() as f64 / (one - fixed).as_nanos().max(1) as f64;
        fixed + work.mul_f64(times * f64::from(first))
    }

    /// The median of the smallest supported size that holds `batch` rows.
    pub(crate) fn execution(&self, model: ModelId, batch: u32) -> Duration {
        self.entry(model, batch).1
    }

    /// The transfers of a batch that starts so.
    pub(crate) fn transfers(&self, model: ModelId, batch: u32, start: OrderStart) -> Transfers {
        start.transfers(self.entry(model, batch).2)
    }

    fn entry(&self, model: ModelId, batch: u32) -> (u32, Duration, Duration) {
        let table = &self.medians[model.index()];
        let index = table.partition_point(|&(size, ..)| size < batch).min(table.len() - 1);
        table[index]
    }

    pub(crate) fn load(&self, model: ModelId) -> Duration {
        self.loads[model.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{RequestId, Window};

    fn at(micros: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_micros(micros)
    }

    fn load(action: u64, model: u32, earliest: u64, latest: u64) -> Load {
        let window = Window { earliest: at(earliest), latest: at(latest) };
        Load { action: ActionId(action), device: DeviceId(0), model: ModelId(model), window, expected: Duration::ZERO }
    }

    fn execution(action: u64, model: u32, earliest: u64, latest: u64) -> Execution {
        Execution {
            action: ActionId(action),
            device: DeviceId(0),
            model: ModelId(model),
            batch: 1,
            requests: vec![RequestId { slot: 0, generation: 0 }],
            window: Window { earliest: at(earliest), latest: at(latest) },
            expected: Duration::ZERO,
            expected_done_at: at(latest),
        }
    }

    fn loaded(models: &[u32]) -> SimulatedDevice {
        let mut device = SimulatedDevice::new(DeviceId(0), 10, vec![4, 4, 4]);
        for (index, &model) in models.iter().enumerate() {
            device.accept_load(load(index as u64, model, 0, 0));
            assert!(matches!(device.step_load(at(0)), LoadStep::Started(..)));
            device.end_load();
        }
        device
    }

    #[test]
    fn batches_are_taken_by_earliest_and_wait_for_it() {
        let mut device = loaded(&[0]);
        device.accept_execution(execution(10, 0, 300, 900), at(0));
        device.accept_execution(execution(11, 0, 200, 900), at(0));
        assert!(matches!(device.step_execute(at(100)), ExecuteStep::Wait(Some(when)) if when == at(200)));
        assert!(matches!(device.step_execute(at(200)), ExecuteStep::Started(e) if e.execution.action == ActionId(11)));
        assert!(matches!(device.step_execute(at(300)), ExecuteStep::Wait(None)));
        assert_eq!(device.end_execution().start.at, at(200));
        assert!(matches!(device.step_execute(at(400)), ExecuteStep::Started(e) if e.execution.action == ActionId(10)));
    }

    #[test]
    fn what_is_past_its_window_is_refused() {
        let mut device = loaded(&[0]);
        device.accept_execution(execution(10, 0, 100, 200), at(0));
        assert!(matches!(device.step_execute(at(201)), ExecuteStep::Refused(_, Refusal::TooLate)));
        device.accept_execution(execution(11, 0, 100, 200), at(250));
        assert!(
            matches!(device.step_execute(at(150)), ExecuteStep::Refused(_, Refusal::TooLate)),
            "inputs come too late"
        );
        device.accept_load(load(12, 1, 100, 200));
        assert!(matches!(device.step_load(at(201)), LoadStep::Refused(_, Refusal::TooLate)));
        assert_eq!(device.pages_used(), 4);
    }

    #[test]
    fn what_runs_or_waits_can_be_broken_off() {
        let mut device = loaded(&[0]);
        device.accept_execution(execution(10, 0, 100, 900), at(0));
        device.accept_execution(execution(11, 0, 200, 900), at(0));
        assert!(matches!(device.step_execute(at(100)), ExecuteStep::Started(_)));
        assert!(matches!(device.break_off(ActionId(11)), Some((_, None))));
        assert!(matches!(device.break_off(ActionId(10)), Some((_, Some(since))) if since == at(100)));
        assert!(device.break_off(ActionId(10)).is_none());
        assert!(matches!(device.step_execute(at(300)), ExecuteStep::Wait(None)));
    }

    #[test]
    fn nothing_runs_without_its_weights_and_nothing_is_loaded_twice_or_over() {
        let mut device = loaded(&[0, 1]);
        device.accept_execution(execution(10, 2, 0, 900), at(0));
        assert!(matches!(device.step_execute(at(0)), ExecuteStep::Refused(_, Refusal::NoWeights)));
        device.accept_load(load(11, 0, 0, 900));
        assert!(matches!(device.step_load(at(0)), LoadStep::Refused(_, Refusal::AlreadyLoaded)));
        device.accept_load(load(12, 2, 0, 900));
        assert!(matches!(device.step_load(at(0)), LoadStep::Refused(_, Refusal::NoPages)));
    }

    #[test]
    fn unloads_wait_for_the_loads_before_them() {
        let mut device = loaded(&[0]);
        device.accept_load(load(10, 1, 0, 900));
        device.accept_unload(ModelId(0));
        device.accept_load(load(11, 2, 0, 900));
        assert!(matches!(device.step_load(at(0)), LoadStep::Started(_, 8)));
        assert!(matches!(device.step_load(at(1)), LoadStep::Wait(None)));
        device.end_load();
        assert!(matches!(
            device.step_load(at(2)),
            LoadStep::Unloaded { model: ModelId(0), pages_used: 4, was_loaded: true }
        ));
        assert!(matches!(device.step_load(at(2)), LoadStep::Started(_, 8)));
    }
}
