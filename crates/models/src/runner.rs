//! Runs of a model that nobody asked for, on a device that others may be using.

use base::{DeviceId, Duration};
use controller::Controller;
use engine::{Loaded, Prepared, Tensor, TensorView};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// What the first run is expected to take, for the sake of others who plan with the device.
const FIRST_GUESS: Duration = Duration::from_millis(50);

/// Why a run gave nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// The model doesn't accept such inputs.
    #[error("{0}")]
    Refused(String),
    /// Nothing can be run any more.
    #[error("{0}")]
    Gone(String),
}

impl From<RunError> for String {
    fn from(error: RunError) -> Self {
        error.to_string()
    }
}

/// What a run took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunTimes {
    /// All of it.
    pub(crate) span: Duration,
    /// What of it may run beside other batches.
    pub(crate) overlap: Duration,
}

/// Something that runs a model: a device, or what stands for one in tests.
pub(crate) trait Run {
    /// One run.
    fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<RunTimes, RunError>;
}

/// Something that computes outputs for their own sake.
pub(crate) trait Compute {
    /// One run.
    fn compute(&mut self, inputs: &Arc<[Tensor]>) -> Result<Vec<Tensor>, RunError>;
}

impl Compute for DeviceRunner<'_> {
    fn compute(&mut self, inputs: &Arc<[Tensor]>) -> Result<Vec<Tensor>, RunError> {
        self.run(inputs, true).map(|(_, outputs)| outputs)
    }
}

/// A model that is run on the thread that asks, with nobody beside it.
pub(crate) struct HostRunner(pub(crate) Box<dyn Loaded>);

impl Compute for HostRunner {
    fn compute(&mut self, inputs: &Arc<[Tensor]>) -> Result<Vec<Tensor>, RunError> {
        let mut outputs = Vec::new();
        let outcome = engine::execute(&mut *self.0, &mut &**inputs, &mut |_, view| outputs.push(view.to_tensor()));
        outcome.map(|_| outputs).map_err(|error| RunError::Refused(error.to_string()))
    }
}

impl Run for DeviceRunner<'_> {
    fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<RunTimes, RunError> {
        self.run(inputs, false).map(|(times, _)| times)
    }
}

/// Tells a model which inputs it will be run with.
pub(crate) fn expect(prepared: &dyn Prepared, inputs: &[Tensor]) {
    prepared.expect(&inputs.iter().map(|input| &input.shape[..]).collect::<Vec<_>>());
}

/// Runs one model on a device, between whatever it has to do besides.
pub(crate) struct DeviceRunner<'a> {
    controller: &'a Controller,
    device: DeviceId,
    /// Who is told what will be run.
    prepared: Option<&'a dyn Prepared>,
    /// With the executor while a run is under way.
    loaded: Option<Box<dyn Loaded>>,
    /// What the next run is expected to take: what the last one took.
    expected: Duration,
}

impl<'a> DeviceRunner<'a> {
    pub(crate) fn new(
        controller: &'a Controller,
        device: DeviceId,
        prepared: Option<&'a dyn Prepared>,
        loaded: Box<dyn Loaded>,
    ) -> Self {
        Self { controller, device, prepared, loaded: Some(loaded), expected: FIRST_GUESS }
    }

    /// On the device's EXEC thread, between whatever it has to do besides.
    fn run(&mut self, inputs: &Arc<[Tensor]>, keeps: bool) -> Result<(RunTimes, Vec<Tensor>), RunError> {
        let gone = || {
            let reason = "the model could not be run: the engine panicked, or the server is going down";
            RunError::Gone(reason.into())
        };
        // Before the device is borrowed: others have it meanwhile.
        if let Some(prepared) = self.prepared {
            expect(prepared, inputs);
        }
        let mut loaded = self.loaded.take().ok_or_else(gone)?;
        let inputs = Arc::clone(inputs);
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let mut outputs = Vec::new();
            let mut keep = |_: usize, view: TensorView<'_>| {
                if keeps {
                    outputs.push(view.to_tensor());
                }
            };
            let start = Instant::now();
            let outcome = engine::execute(&mut *loaded, &mut &*inputs, &mut keep);
            let span = Duration::from(start.elapsed());
            let _ = sender.send((loaded, outcome.map(|times| (span, times.inputs + times.outputs, outputs))));
        };
        let started = Instant::now();
        self.controller.borrow_device(self.device, self.expected, Box::new(work));
        let (loaded, outcome) = receiver.recv().map_err(|_| gone())?;
        self.loaded = Some(loaded);
        let (span, overlap, outputs) = outcome.map_err(|error| RunError::Refused(error.to_string()))?;
        self.expected = span;
        // Others have the device for at least as long as this took.
        if self.controller.in_hand() > 0 {
            std::thread::sleep(started.elapsed());
        }
        Ok((RunTimes { span, overlap }, outputs))
    }
}
