//! Runs of a model that nobody asked for, on a device that others may be using.

use base::{DeviceId, Duration, Timestamp};
use controller::{Borrowing, Controller, NotYet};
use engine::{DeviceTimes, EngineError, Loaded, Prepared, Tensor, TensorView};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// What the first run is expected to take, for the sake of others who plan with the device.
const FIRST_GUESS: Duration = Duration::from_millis(50);

/// How often it is looked whether a device that runs something hangs.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

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
    /// Computing alone, by the device's own clock, where it has one.
    pub(crate) computing: Option<Duration>,
}

/// Something that runs a model: a device, or what stands for one in tests.
pub(crate) trait Run {
    /// One run.
    fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<RunTimes, RunError>;
}

/// Something that computes outputs for their own sake.
pub(crate) trait Compute {
    /// One run, and what it took: computing alone, by the device's own clock, where it has one, otherwise all of it.
    fn timed(&mut self, inputs: &Arc<[Tensor]>) -> Result<(Duration, Vec<Tensor>), RunError>;

    /// One run.
    fn compute(&mut self, inputs: &Arc<[Tensor]>) -> Result<Vec<Tensor>, RunError> {
        self.timed(inputs).map(|(_, outputs)| outputs)
    }
}

impl Compute for DeviceRunner<'_> {
    fn timed(&mut self, inputs: &Arc<[Tensor]>) -> Result<(Duration, Vec<Tensor>), RunError> {
        self.run(inputs, true).map(|(times, outputs)| (times.computing.unwrap_or(times.span), outputs))
    }
}

/// A model that is run on the thread that asks, with nobody beside it.
pub(crate) struct HostRunner(pub(crate) Box<dyn Loaded>);

impl Compute for HostRunner {
    fn timed(&mut self, inputs: &Arc<[Tensor]>) -> Result<(Duration, Vec<Tensor>), RunError> {
        let (mut outputs, start) = (Vec::new(), Instant::now());
        let outcome = engine::execute(&mut *self.0, &mut &**inputs, &mut |_, view| outputs.push(view.to_tensor()));
        let times = outcome.map_err(|error| RunError::Refused(error.to_string()))?;
        Ok((times.computing.unwrap_or_else(|| start.elapsed().into()), outputs))
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

/// When a model may be run that nobody waits for.
#[derive(Clone)]
pub(crate) struct IdleTime {
    /// Then it isn't wanted any more.
    pub(crate) until: Timestamp,
    /// So long a run waits for a device that others use.
    pub(crate) patience: Duration,
    /// Set when it isn't wanted any more.
    pub(crate) given_up: Arc<AtomicBool>,
}

impl IdleTime {
    /// Waits until there is some.
    pub(crate) fn begin(&self, controller: &Controller, device: DeviceId) -> Result<(), RunError> {
        self.borrow(controller, controller.borrowing(device, FIRST_GUESS, None, Box::new(|| {})))
    }

    /// Lends the device for a run as soon as nobody notices. Without the device nothing runs.
    fn borrow(&self, controller: &Controller, mut borrowing: Borrowing) -> Result<(), RunError> {
        let mut waited = Duration::ZERO;
        while let Err((refused, not_yet)) = controller.borrow_if_idle(borrowing) {
            let gone = |reason: &str| Err(RunError::Gone(reason.into()));
            let now = controller.now();
            let at = match not_yet {
                NotYet::Never => return gone("no share of a device's time is for what nobody waits for"),
                NotYet::Spent(at) => at,
                NotYet::Busy(at) => {
                    waited += at.since(now);
                    at
                }
            };
            if waited > self.patience {
                return gone("the device is never idle");
            }
            if at > self.until {
                return gone("the device's idle time is used up");
            }
            while controller.now() < at {
                if self.given_up.load(Ordering::Relaxed) {
                    return gone("it was given up");
                }
                std::thread::sleep(LOOK_EVERY.min(at.since(controller.now()).into()));
            }
            borrowing = refused;
        }
        Ok(())
    }
}

/// Runs one model on a device, between whatever it has to do besides.
pub(crate) struct DeviceRunner<'a> {
    controller: &'a Controller,
    device: DeviceId,
    /// Who is told what will be run.
    prepared: Option<&'a dyn Prepared>,
    /// Whether it only runs where nobody notices; else between whatever the device has to do besides.
    idle: Option<IdleTime>,
    /// With the executor while a run is under way.
    loaded: Option<Box<dyn Loaded>>,
    /// What the next run is expected to take: what the last one took.
    expected: Duration,
    /// How often the device was lost in its runs.
    losses: u32,
}

impl<'a> DeviceRunner<'a> {
    pub(crate) fn new(
        controller: &'a Controller,
        device: DeviceId,
        prepared: Option<&'a dyn Prepared>,
        loaded: Box<dyn Loaded>,
    ) -> Self {
        Self { controller, device, prepared, idle: None, loaded: Some(loaded), expected: FIRST_GUESS, losses: 0 }
    }

    /// The same, only in idle time.
    pub(crate) fn in_idle_time(self, idle: IdleTime) -> Self {
        Self { idle: Some(idle), ..self }
    }

    /// What is said of a run that takes too long.
    fn overdue(&self, what: &str) -> String {
        format!(
            "a run takes longer than {}, the limit of --max-execution-ms, and {what}",
            self.controller.limits().most
        )
    }

    /// A run, and one more if the device is lost in it: that may be due to whoever had it before.
    fn run(&mut self, inputs: &Arc<[Tensor]>, keeps: bool) -> Result<(RunTimes, Vec<Tensor>), RunError> {
        let losses = self.losses;
        let outcome = self.try_run(inputs, keeps);
        let lost_first = losses == 0 && self.losses == 1;
        let Some(prepared) = self.prepared.filter(|_| lost_first) else { return outcome };
        let loaded = prepared.load(self.device.0).map_err(|error| RunError::Gone(error.to_string()))?;
        self.loaded = Some(loaded);
        self.try_run(inputs, keeps)
    }

    /// On the device's EXEC thread, between whatever it has to do besides.
    fn try_run(&mut self, inputs: &Arc<[Tensor]>, keeps: bool) -> Result<(RunTimes, Vec<Tensor>), RunError> {
        let gone = || {
            let reason = "the model could not be run: the engine panicked, or the server is going down";
            RunError::Gone(reason.into())
        };
        // Before the device is borrowed: others have it meanwhile.
        if let Some(prepared) = self.prepared {
            expect(prepared, inputs);
        }
        let mut loaded = self.loaded.take().ok_or_else(gone)?;
        let breaker = loaded.breaker();
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
            let times = |DeviceTimes { computing, inputs, outputs, .. }| {
                let overlap = inputs + outputs;
                RunTimes { span, overlap, computing }
            };
            let _ = sender.send((loaded, outcome.map(|found| (times(found), outputs))));
        };
        let (started, given_up) = (Instant::now(), self.controller.times_given_up(self.device));
        match &self.idle {
            None => self.controller.borrow_device(self.device, self.expected, breaker, Box::new(work)),
            Some(idle) => {
                let borrowing = self.controller.borrowing(self.device, self.expected, breaker, Box::new(work));
                idle.borrow(self.controller, borrowing)?;
            }
        }
        let (loaded, outcome) = loop {
            match receiver.recv_timeout(LOOK_EVERY) {
                Ok(ended) => break ended,
                Err(RecvTimeoutError::Timeout) if self.controller.times_given_up(self.device) == given_up => {}
                Err(RecvTimeoutError::Timeout) => return Err(RunError::Gone(self.overdue("can't be broken off"))),
                Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            }
        };
        self.loaded = Some(loaded);
        let (times, outputs) = outcome.map_err(|error| match error {
            EngineError::BrokenOff => RunError::Gone(self.overdue("was broken off")),
            error @ EngineError::Lost { .. } => {
                self.losses += 1;
                RunError::Gone(error.to_string())
            }
            error => RunError::Refused(error.to_string()),
        })?;
        self.expected = times.span;
        // Others have the device for at least as long as this took.
        if self.controller.in_hand() > 0 {
            std::thread::sleep(started.elapsed());
        }
        Ok((times, outputs))
    }
}
