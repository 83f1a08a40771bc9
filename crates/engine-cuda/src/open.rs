//! Shapes that requests bring to a model with open dimensions: prepared in the background, one after another, and there
//! for all batches that begin after that.
//!
//! ```text
//!  batch ──find──> ready: its graph
//!                  only other numbers of rows are ready: in one of these, whole or in parts
//!                  wanted: the CPU computes it ──> background thread: plan, kernels by rule, graphs ──> ready
//! ```
//!
//! Nobody waits for a preparation. What is behind the lock is looked up and swapped, and nothing is made there.

use crate::engine::{OnDevice, SizedGraph};
use crate::model::CudaModel;
use crate::shapes::{ShapeState, Shapes};
use crate::sizes::Size;
use crate::standby::Standby;
use engine::{Breaker, EngineError, Inputs, Staged};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

/// So many shapes of a model are ready at a time where its configuration says nothing. Each takes a graph, kernels that
/// may be its own, and a second or so to prepare; a model with five numbers of rows has six other shapes in it.
pub(crate) const MOST_SHAPES: usize = 32;
/// How much the thread that prepares gives way to others.
const NICENESS: i32 = 10;

/// What there is for a batch of some shape.
pub(crate) enum Found<G> {
    /// What it runs with.
    Ready(Arc<G>),
    /// What some of its rows run with.
    Fewer(Arc<G>),
    /// Nothing.
    Nothing,
}

/// What came of a preparation.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct ShapeOutcome {
    pub(crate) size: Size,
    /// Which shape went for it.
    pub(crate) gone: Option<Size>,
    pub(crate) refused: Option<String>,
}

/// What batches run with, by shape and device.
pub(crate) struct ShapeStore<G> {
    state: Mutex<StoreState<G>>,
}

struct StoreState<G> {
    shapes: Shapes<Size>,
    /// Exactly those that are ready. Of each, one for each device.
    ready: BTreeMap<Size, Vec<Arc<G>>>,
}

/// Whether a batch runs with it. Batches take theirs under the lock.
fn in_use<G>(ready: &BTreeMap<Size, Vec<Arc<G>>>, size: Size) -> bool {
    ready.get(&size).is_some_and(|all| all.iter().any(|one| Arc::strong_count(one) > 1))
}

impl<G> ShapeStore<G> {
    pub(crate) fn new(most: usize) -> Self {
        Self { state: Mutex::new(StoreState { shapes: Shapes::new(most), ready: BTreeMap::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, StoreState<G>> {
        // What is behind the lock is whole after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a batch of that shape, and finds what it runs with on a device: until its own is ready, the same with
    /// more rows, else with fewer. Besides, what becomes of the shape.
    pub(crate) fn find(&self, size: Size, device: usize) -> (Found<G>, ShapeState) {
        let StoreState { shapes, ready } = &mut *self.state();
        let state = shapes.ask(size).clone();
        let alike = |other: &Size| other.open == size.open;
        let on = |(_, all): (&Size, &Vec<Arc<G>>)| all.get(device).cloned();
        // In their order the rows come last.
        let more = ready.range(size..).next().filter(|(other, _)| alike(other)).and_then(on);
        let fewer = || ready.range(..size).next_back().filter(|(other, _)| alike(other)).and_then(on);
        let found = more.map(Found::Ready).or_else(|| fewer().map(Found::Fewer));
        (found.unwrap_or(Found::Nothing), state)
    }

    /// Prepares the shape that is wanted most, if one should be.
    pub(crate) fn prepare_next(&self, make: impl FnOnce(Size) -> Result<Vec<Arc<G>>, String>) -> Option<ShapeOutcome> {
        let size = {
            let StoreState { shapes, ready } = &mut *self.state();
            shapes.next(|size| in_use(ready, size))?
        };
        Some(self.prepare(size, make))
    }

    /// What is ready.
    fn sizes(&self) -> Vec<Size> {
        self.state().ready.keys().copied().collect()
    }

    /// Whether nothing more will be prepared.
    fn is_spent(&self) -> bool {
        self.state().shapes.is_spent()
    }

    /// Prepares that shape now, on this thread, unless that was begun or has failed before.
    pub(crate) fn expect(
        &self,
        size: Size,
        make: impl FnOnce(Size) -> Result<Vec<Arc<G>>, String>,
    ) -> Option<ShapeOutcome> {
        {
            let mut state = self.state();
            if *state.shapes.ask(size) != ShapeState::Wanted {
                return None;
            }
            state.shapes.begin(size);
        }
        Some(self.prepare(size, make))
    }

    fn prepare(&self, size: Size, make: impl FnOnce(Size) -> Result<Vec<Arc<G>>, String>) -> ShapeOutcome {
        // Shapes come from outside, and one that breaks the planner must not end the thread.
        let made = catch_unwind(AssertUnwindSafe(|| make(size)));
        let made = made.unwrap_or_else(|_| Err("the engine panicked while it prepared this shape".into()));
        let mut state = self.state();
        let StoreState { shapes, ready } = &mut *state;
        let (gone, refused, dropped) = match made {
            Ok(all) => {
                let gone = shapes.made(size, |size| in_use(ready, size));
                ready.insert(size, all);
                (gone, None, gone.and_then(|gone| ready.remove(&gone)))
            }
            Err(reason) => {
                shapes.failed(size, reason.clone());
                (None, Some(reason), None)
            }
        };
        drop(state);
        // Not under the lock: the driver takes its time.
        drop(dropped);
        ShapeOutcome { size, gone, refused }
    }
}

/// A model whose inputs leave dimensions open: what runs with it besides the sizes that were prepared at the start.
pub(crate) struct OpenModel {
    name: String,
    store: ShapeStore<SizedGraph>,
    standby: Option<Standby>,
    devices: Vec<Arc<OnDevice>>,
    model: Arc<CudaModel>,
    jobs: Sender<Job>,
    /// It is among the jobs.
    queued: AtomicBool,
    myself: Weak<Self>,
}

impl OpenModel {
    /// A model on these devices, at most so many shapes of it at a time.
    pub(crate) fn new(
        name: &str,
        most: usize,
        standby: Option<Standby>,
        (model, devices): (&Arc<CudaModel>, &[Arc<OnDevice>]),
        jobs: Sender<Job>,
    ) -> Arc<Self> {
        if (model.guessed || model.cut.is_some())
            && let Some(Err(reason)) = standby.as_ref().map(Standby::prepare)
        {
            tracing::warn!(model = name, "the CPU can't stand in for shapes that aren't prepared: {reason}");
        }
        Arc::new_cyclic(|myself| Self {
            name: name.to_owned(),
            store: ShapeStore::new(most),
            standby,
            devices: devices.to_vec(),
            model: Arc::clone(model),
            jobs,
            queued: AtomicBool::new(false),
            myself: Weak::clone(myself),
        })
    }

    /// The graph in which a batch of that size, or some of its rows, runs on a device; and why there is none where
    /// there is none.
    pub(crate) fn find(&self, own: Size, device: usize) -> (Found<SizedGraph>, EngineError) {
        let (found, state) = self.store.find(self.model.sizes.size_for(own), device);
        if state == ShapeState::Wanted && !self.queued.swap(true, Ordering::AcqRel) {
            // The thread is gone only when the server goes down.
            let _ = self.jobs.send(Job::Prepare(Weak::clone(&self.myself)));
        }
        let reason = match state {
            ShapeState::Impossible(reason) => {
                EngineError::Execute(format!("this shape can't be computed on the device: {reason}"))
            }
            ShapeState::Wanted | ShapeState::InTheMaking | ShapeState::Ready => {
                EngineError::NotYet("this shape is being prepared for the device: try again in a moment".into())
            }
        };
        (found, reason)
    }

    /// Lets the CPU compute a batch for which there is no graph.
    pub(crate) fn stand_in(
        &self,
        device: usize,
        inputs: &mut dyn Inputs,
        reason: EngineError,
    ) -> Result<Box<dyn Staged>, EngineError> {
        let staged = self.standby.as_ref().and_then(|standby| standby.stage(device, inputs));
        staged.unwrap_or(Err(reason))
    }

    /// What breaks off the batches that the host computes for a device, if something can.
    pub(crate) fn breaker(&self, device: usize) -> Option<Arc<dyn Breaker>> {
        self.standby.as_ref()?.breaker(device)
    }

    /// Prepares the shapes that are ready in another one of the same file: its clients will bring them to this one.
    pub(crate) fn take_over(&self, other: &Self) {
        if self.model.content() == other.model.content() {
            other.store.sizes().into_iter().for_each(|size| self.expect(size));
        }
    }

    /// Prepares a shape now, as it will be when requests bring it.
    pub(crate) fn expect(&self, own: Size) {
        let outcome = self.store.expect(self.model.sizes.size_for(own), |size| self.make(size));
        outcome.iter().for_each(|outcome| self.say(outcome));
    }

    /// Prepares what is wanted.
    fn work(&self) {
        // What comes from here on is for the next time.
        self.queued.store(false, Ordering::Release);
        if let Some(Err(reason)) = self.standby.as_ref().map(Standby::prepare) {
            tracing::debug!(model = self.name, "the CPU can't stand in: {reason}");
        }
        while let Some(outcome) = self.store.prepare_next(|size| self.make(size)) {
            self.say(&outcome);
            if self.store.is_spent() {
                let model = &self.name;
                tracing::warn!(model, "further shapes stay on the CPU: too many were prepared, raise max_shapes");
            }
        }
    }

    fn make(&self, size: Size) -> Result<Vec<Arc<SizedGraph>>, String> {
        if size.open[..self.model.sizes.open].contains(&0) {
            return Err("a dimension is 0, so that there is nothing to compute".into());
        }
        let executors: Vec<_> = self.devices.iter().map(|on| Arc::clone(&on.executor)).collect();
        let (form, programs) = self.model.prepare_size(&executors, size)?;
        self.devices.iter().zip(programs).map(|(on, programs)| on.record_own(&form, programs)).collect()
    }

    fn say(&self, ShapeOutcome { size, gone, refused }: &ShapeOutcome) {
        let (model, shape) = (&self.name, self.model.sizes.shapes(*size));
        match (gone, refused) {
            (_, Some(reason)) => tracing::warn!(model, shape, "this shape stays on the CPU: {reason}"),
            (Some(gone), None) => {
                tracing::info!(model, shape, instead_of = self.model.sizes.shapes(*gone), "on the device from now on");
            }
            (None, None) => tracing::info!(model, shape, "on the device from now on"),
        }
    }
}

/// What the background thread is told.
pub(crate) enum Job {
    /// To prepare what a model wants.
    Prepare(Weak<OpenModel>),
    /// To end.
    Stop,
}

/// The thread that prepares shapes, of all models: one at a time, behind whoever else needs cores.
pub(crate) struct ShapePreparer {
    jobs: Sender<Job>,
    thread: Option<JoinHandle<()>>,
}

impl ShapePreparer {
    pub(crate) fn start() -> Result<Self, String> {
        let (jobs, received) = channel();
        let thread = std::thread::Builder::new().name("shapes".into()).spawn(move || run(&received));
        let thread = thread.map_err(|error| format!("no thread that prepares shapes could be started: {error}"))?;
        Ok(Self { jobs, thread: Some(thread) })
    }

    pub(crate) fn jobs(&self) -> Sender<Job> {
        self.jobs.clone()
    }
}

fn run(jobs: &Receiver<Job>) {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!("the thread that prepares shapes doesn't give way to others: {error}");
    }
    while let Ok(Job::Prepare(model)) = jobs.recv() {
        if let Some(model) = model.upgrade() {
            model.work();
        }
    }
}

impl Drop for ShapePreparer {
    fn drop(&mut self) {
        // Fails only if the thread has ended.
        let _ = self.jobs.send(Job::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn size(value: usize) -> Size {
        Size::alike(1, 1, value)
    }

    fn graphs(size: Size) -> Result<Vec<Arc<usize>>, String> {
        match size.open[0] {
            13 => Err("unlucky".into()),
            value => Ok(vec![Arc::new(value), Arc::new(100 + value)]),
        }
    }

    fn found(store: &ShapeStore<usize>, value: usize, device: usize) -> Option<usize> {
        match store.find(size(value), device).0 {
            Found::Ready(graph) => Some(*graph),
            Found::Fewer(_) | Found::Nothing => None,
        }
    }

    #[test]
    fn a_shape_is_there_for_all_devices_after_it_was_prepared() {
        let store = ShapeStore::new(2);
        assert_eq!(store.prepare_next(graphs), None);
        assert_eq!(found(&store, 7, 0), None);
        let outcome = store.prepare_next(graphs);
        assert_eq!(outcome, Some(ShapeOutcome { size: size(7), gone: None, refused: None }));
        assert_eq!((found(&store, 7, 0), found(&store, 7, 1)), (Some(7), Some(107)));
        assert_eq!(store.sizes(), [size(7)]);
        assert_eq!(store.expect(size(7), |_| panic!("it is there")), None);
    }

    #[test]
    fn what_cant_be_prepared_says_why() {
        let store = ShapeStore::new(2);
        let refused = store.expect(size(13), graphs).and_then(|outcome| outcome.refused);
        assert_eq!(refused.as_deref(), Some("unlucky"));
        assert_eq!(store.find(size(13), 0).1, ShapeState::Impossible("unlucky".into()));
        let panicked = store.expect(size(14), |_| panic!("odd")).and_then(|outcome| outcome.refused);
        assert!(panicked.is_some_and(|reason| reason.contains("panicked")));
    }

    #[test]
    fn until_its_own_is_ready_a_batch_runs_in_more_rows_or_in_parts() {
        let store = ShapeStore::new(8);
        let size = |batch, value| Size::alike(batch, 1, value);
        let rows = |batch, value| match store.find(size(batch, value), 0).0 {
            Found::Ready(graph) => (1, *graph),
            Found::Fewer(graph) => (-1, *graph),
            Found::Nothing => (0, 0),
        };
        for (batch, value) in [(2, 7), (8, 7), (1, 9)] {
            store.expect(size(batch, value), |size| Ok(vec![Arc::new(size.batch)]));
        }
        assert_eq!([rows(1, 7), rows(2, 7), rows(4, 7), rows(8, 7)], [(1, 2), (1, 2), (1, 8), (1, 8)]);
        assert_eq!([rows(16, 7), rows(4, 9), rows(1, 8)], [(-1, 8), (-1, 1), (0, 0)]);
        assert_eq!(store.find(size(4, 7), 0).1, ShapeState::Wanted, "its own is prepared all the same");
    }

    #[test]
    fn what_a_batch_holds_stays_and_is_dropped_when_it_may_go() {
        let store = ShapeStore::new(1);
        store.expect(size(1), graphs);
        let Found::Ready(held) = store.find(size(1), 1).0 else { panic!("it was prepared") };
        (0..5).for_each(|_| _ = found(&store, 2, 0));
        assert_eq!(store.prepare_next(graphs), None, "nothing may go");
        let weak = Arc::downgrade(&held);
        drop(held);
        let outcome = store.prepare_next(graphs);
        assert_eq!(outcome, Some(ShapeOutcome { size: size(2), gone: Some(size(1)), refused: None }));
        assert!(weak.upgrade().is_none(), "it is freed");
        assert_eq!((found(&store, 2, 0), found(&store, 1, 0)), (Some(2), None));
    }

    /// Batches of random shapes on two threads while a third prepares.
    #[test]
    fn batches_and_preparations_dont_wait_for_one_another() {
        let (store, ran, most) = (ShapeStore::new(3), AtomicUsize::new(0), 3);
        let stop = AtomicBool::new(false);
        store.state().shapes.left = usize::MAX;
        std::thread::scope(|scope| {
            let batches: Vec<_> = (0..2u64)
                .map(|seed| {
                    let (store, ran) = (&store, &ran);
                    scope.spawn(move || {
                        let mut random = workload::Random::new(seed, 0);
                        for _ in 0..20_000 {
                            let value = (random.unit() * random.unit() * 16.0) as usize;
                            if let Found::Ready(graph) = store.find(size(value), 0).0 {
                                assert_eq!(*graph, value);
                                ran.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    store.prepare_next(graphs);
                    assert!(store.state().ready.len() <= most);
                }
            });
            batches.into_iter().for_each(|batch| batch.join().unwrap());
            // A popular shape is there in the end, whatever the threads' turns were.
            while found(&store, 0, 0).is_none() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}
