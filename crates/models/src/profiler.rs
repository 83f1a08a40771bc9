//! Measures what a model's batches and loads take, alone on the device.

use crate::samples::{OpenSizes, Samples};
use base::{BatchLatency, DeviceId, Duration, LatencyProfile, ModelSignature, TensorSpec, element_count};
use controller::Controller;
use engine::{Loaded, Prepared, Tensor, TensorView};
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// How much measuring is enough.
#[derive(Clone, Copy, Debug)]
pub struct ProfilingEffort {
    /// Runs of each batch size; a hundred are what a 99th percentile needs.
    pub runs: u32,
    /// No more runs of a batch size once they have taken this long. Slow batches get fewer, and their slowest run
    /// stands for the 99th percentile.
    pub budget: Duration,
}

impl Default for ProfilingEffort {
    fn default() -> Self {
        Self { runs: 100, budget: Duration::from_millis(1500) }
    }
}

/// Fewer runs than this are never enough.
const FEWEST_RUNS: u32 = 3;
const LOAD_RUNS: u32 = 3;
/// Runs of each of two sizes, to tell what doesn't depend on the size.
const FIXED_RUNS: u32 = 15;
/// The smaller one is so many times smaller, in each open dimension.
const SHRINKS: i64 = 4;
/// What the first run is expected to take, for the sake of others who plan with the device.
const FIRST_GUESS: Duration = Duration::from_millis(50);

/// Measures a model on a device in a division. The second is what a batch takes whatever its inputs are.
pub(crate) fn measure(
    controller: &Controller,
    place: (usize, DeviceId),
    prepared: &dyn Prepared,
    sizes: &[u32],
    samples: Samples<'_>,
    effort: ProfilingEffort,
) -> Result<(LatencyProfile, Duration), String> {
    let (load, loaded) = measure_load(prepared, place)?;
    let mut runner = DeviceRunner::new(controller, place.1, loaded);
    let signature = prepared.signature();
    let mut measured = Vec::new();
    let mut open_sizes = None;
    for &batch in sizes {
        let inputs = match open_sizes {
            Some(open) => samples.inputs(signature, batch, open)?,
            None => {
                let (open, inputs) = runner.find_inputs(signature, batch, samples)?;
                open_sizes = Some(open);
                inputs
            }
        };
        // The first run pays for memory that is touched for the first time.
        runner.once(&inputs)?;
        measured.push(SizeMeasurement { batch, inputs, spans: Vec::new(), overlap: Vec::new(), spent: Duration::ZERO });
    }
    // In rounds: a machine that is slow for a while is so for all sizes alike, and which size pays stays true.
    while measured.iter().any(|size| size.wants_more(effort)) {
        for size in measured.iter_mut().filter(|size| size.wants_more(effort)) {
            let span = runner.once(&size.inputs)?;
            size.spent += span;
            size.spans.push(span);
            size.overlap.push(runner.overlap);
        }
    }
    let fixed = measured.first().map_or(Duration::ZERO, |one| measure_fixed(&mut runner, signature, &one.inputs));
    let batches = measured.into_iter().map(SizeMeasurement::latency).collect();
    let profile = LatencyProfile::new(batches, load).map_err(|error| error.to_string())?;
    Ok((profile, fixed))
}

/// What a batch takes whatever its inputs are: where the line through the times of two sizes comes to no size at all.
/// Nothing where the model leaves no size open, or takes no smaller ones.
fn measure_fixed(runner: &mut DeviceRunner<'_>, signature: &ModelSignature, large: &Arc<[Tensor]>) -> Duration {
    let small: Arc<[Tensor]> = large
        .iter()
        .zip(&signature.inputs)
        .map(|(input, spec)| shrunk(input, spec, usize::from(signature.max_batch > 0)))
        .collect();
    let elements = |inputs: &[Tensor]| inputs.iter().map(|input| input.data.len()).sum::<usize>() as f64;
    let (more, less) = (elements(large), elements(&small));
    if less >= more {
        return Duration::ZERO;
    }
    let (mut slow, mut quick) = (Vec::new(), Vec::new());
    for _ in 0..FIXED_RUNS {
        let (Ok(first), Ok(second)) = (runner.once(large), runner.once(&small)) else { return Duration::ZERO };
        slow.push(first);
        quick.push(second);
    }
    let median = |mut spans: Vec<Duration>| {
        spans.sort_unstable();
        spans[spans.len() / 2].as_secs_f64()
    };
    let (slow, quick) = (median(slow), median(quick));
    let fixed = quick - (slow - quick).max(0.0) * less / (more - less);
    Duration::from_secs_f64(fixed.clamp(0.0, slow))
}

/// What one batch size took, run by run, alone on the device.
#[derive(Clone, Debug)]
pub struct Runs {
    /// Rows.
    pub batch: u32,
    /// From inputs to outputs by our clock, ascending.
    pub wall: Vec<Duration>,
    /// By the device's own clock, ascending; empty if it has none.
    pub device: Vec<Duration>,
    /// Its transfers, where they may run beside other batches, ascending.
    pub overlap: Vec<Duration>,
}

/// Loads a model so often, then runs each batch size so often, on this thread and with nothing beside it, on a device
/// in a division. What loads took, ascending, and what batches took.
pub fn measure_alone(
    prepared: &dyn Prepared,
    (division, device): (usize, u32),
    sizes: &[u32],
    samples: Samples<'_>,
    (loads, runs): (u32, u32),
) -> Result<(Vec<Duration>, Vec<Runs>), String> {
    let (mut spans, mut loaded) = (Vec::new(), None);
    for _ in 0..loads.max(1) {
        drop(loaded.take());
        let start = Instant::now();
        loaded = Some(prepared.load_in(division, device).map_err(|error| error.to_string())?);
        spans.push(Duration::from(start.elapsed()));
    }
    spans.sort_unstable();
    let mut loaded = loaded.expect("it was loaded at least once");
    let signature = prepared.signature();
    samples.check(signature)?;
    let mut refused = String::new();
    let mut accepts = |open: &OpenSizes| {
        let inputs = samples.inputs(signature, sizes.first().copied().unwrap_or(1), *open)?;
        engine::execute(&mut *loaded, &mut &*inputs, &mut |_, _| {}).map_err(|error| error.to_string())
    };
    let all_open = samples.open_sizes(signature);
    let open = all_open.into_iter().find(|open| accepts(open).map_err(|reason| refused = reason).is_ok());
    let open = open.ok_or(refused)?;
    let mut all = Vec::new();
    for &batch in sizes {
        let inputs = samples.inputs(signature, batch, open)?;
        let (mut wall, mut device, mut overlap) = (Vec::new(), Vec::new(), Vec::new());
        // The first run pays for what is touched for the first time.
        for run in 0..=runs {
            let start = Instant::now();
            let times = engine::execute(&mut *loaded, &mut &*inputs, &mut |_, _| {});
            let times = times.map_err(|error| error.to_string())?;
            if run > 0 {
                wall.push(Duration::from(start.elapsed()));
                device.extend(times.computing);
                overlap.extend(Some(times.inputs + times.outputs).filter(|span| *span > Duration::ZERO));
            }
        }
        [&mut wall, &mut device, &mut overlap].into_iter().for_each(|spans| spans.sort_unstable());
        all.push(Runs { batch, wall, device, overlap });
    }
    Ok((spans, all))
}

/// What was measured of one batch size so far.
struct SizeMeasurement {
    batch: u32,
    inputs: Arc<[Tensor]>,
    spans: Vec<Duration>,
    /// What of each may run beside other batches.
    overlap: Vec<Duration>,
    spent: Duration,
}

impl SizeMeasurement {
    fn wants_more(&self, effort: ProfilingEffort) -> bool {
        let runs = self.spans.len() as u32;
        runs < FEWEST_RUNS || (runs < effort.runs && self.spent < effort.budget)
    }

    fn latency(mut self) -> BatchLatency {
        self.spans.sort_unstable();
        self.overlap.sort_unstable();
        let at = |spans: &[Duration], quantile: f64| {
            spans[((spans.len() as f64 * quantile).ceil() as usize).clamp(1, spans.len()) - 1]
        };
        let (median, p99) = (at(&self.spans, 0.5), at(&self.spans, 0.99));
        BatchLatency { batch: self.batch, median, p99, overlap: at(&self.overlap, 0.5) }
    }
}

/// The slowest of a few loads, and the last one's result. The first isn't counted: it pays for memory that the later
/// ones find.
fn measure_load(
    prepared: &dyn Prepared,
    (division, device): (usize, DeviceId),
) -> Result<(Duration, Box<dyn Loaded>), String> {
    drop(prepared.load_in(division, device.0).map_err(|error| error.to_string())?);
    let mut spans = Vec::new();
    loop {
        let start = Instant::now();
        let loaded = prepared.load_in(division, device.0).map_err(|error| error.to_string())?;
        spans.push(Duration::from(start.elapsed()));
        if spans.len() as u32 == LOAD_RUNS {
            spans.sort_unstable();
            return Ok((spans[spans.len() - 1], loaded));
        }
    }
}

/// The same with smaller sizes where the model leaves them open. All elements are alike.
fn shrunk(tensor: &Tensor, spec: &TensorSpec, from: usize) -> Tensor {
    let mut shape = tensor.shape.clone();
    for (size, _) in shape.iter_mut().zip(&spec.dims).skip(from).filter(|&(_, &dim)| dim < 0) {
        *size = (*size / SHRINKS).max(1);
    }
    let count = |shape: &[i64]| element_count(shape).unwrap_or(0);
    let element = tensor.data.len() / count(&tensor.shape).max(1);
    let data = tensor.data.slice(..element * count(&shape));
    Tensor { datatype: tensor.datatype, shape, data }
}

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

/// Runs one model on a device, between whatever it has to do besides.
pub(crate) struct DeviceRunner<'a> {
    controller: &'a Controller,
    device: DeviceId,
    /// With the executor while a run is under way.
    loaded: Option<Box<dyn Loaded>>,
    /// What the next run is expected to take: what the last one took.
    expected: Duration,
    /// What of the last one may run beside other batches.
    overlap: Duration,
}

impl<'a> DeviceRunner<'a> {
    pub(crate) fn new(controller: &'a Controller, device: DeviceId, loaded: Box<dyn Loaded>) -> Self {
        Self { controller, device, loaded: Some(loaded), expected: FIRST_GUESS, overlap: Duration::ZERO }
    }

    /// Tries sizes for open dimensions until the model accepts one.
    fn find_inputs(
        &mut self,
        signature: &ModelSignature,
        batch: u32,
        samples: Samples<'_>,
    ) -> Result<(OpenSizes, Arc<[Tensor]>), String> {
        samples.check(signature)?;
        let mut reason = String::new();
        for open in samples.open_sizes(signature) {
            let inputs = samples.inputs(signature, batch, open)?;
            match self.once(&inputs) {
                Ok(_) => return Ok((open, inputs)),
                Err(RunError::Refused(refused)) => reason = refused,
                Err(RunError::Gone(gone)) => return Err(gone),
            }
        }
        Err(format!(
            "no input was found that the model accepts; give the open dimensions with the parameter profile_inputs, for instance \"input=1x576,rate=@16000\". The last try said: {reason}"
        ))
    }

    /// One run, on the device's EXEC thread, between whatever it has to do besides.
    pub(crate) fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<Duration, RunError> {
        self.run(inputs, false).map(|(span, _)| span)
    }

    /// The same for the sake of the outputs.
    pub(crate) fn compute(&mut self, inputs: &Arc<[Tensor]>) -> Result<Vec<Tensor>, RunError> {
        self.run(inputs, true).map(|(_, outputs)| outputs)
    }

    fn run(&mut self, inputs: &Arc<[Tensor]>, keeps: bool) -> Result<(Duration, Vec<Tensor>), RunError> {
        let gone = || {
            let reason = "the model could not be run: the engine panicked, or the server is going down";
            RunError::Gone(reason.into())
        };
        let mut loaded = self.loaded.take().ok_or_else(gone)?;
        let inputs = Arc::clone(inputs);
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let mut outputs = Vec::new();
            let mut keep = |_: usize, view: TensorView<'_>| {
                if keeps {
                    let TensorView { datatype, shape, data } = view;
                    outputs.push(Tensor { datatype, shape: shape.to_vec(), data: data.to_vec().into() });
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
        (self.expected, self.overlap) = (span, overlap);
        // Others have the device for at least as long as this took.
        if self.controller.in_hand() > 0 {
            std::thread::sleep(started.elapsed());
        }
        Ok((span, outputs))
    }
}
