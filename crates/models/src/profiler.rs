//! Measures what a model's batches and loads take, alone on the device.

use base::{BatchLatency, DataType, DeviceId, Duration, LatencyProfile, ModelSignature, TensorSpec, element_count};
use bytes::Bytes;
use controller::Controller;
use engine::{HostMemory, Loaded, Prepared, Tensor};
use repository::ProfileInput;
use std::collections::BTreeMap;
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

/// What inputs are made of.
#[derive(Clone, Copy, Debug)]
pub struct Samples<'a> {
    /// What models don't say themselves, by input.
    pub given: &'a BTreeMap<String, ProfileInput>,
    /// Where requests are received: measurements are for inputs that lie there, too.
    pub memory: Option<&'a dyn HostMemory>,
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
/// Larger inputs than this aren't made up.
const MAX_INPUT_BYTES: usize = 256 << 20;
/// What dimensions of any size are tried with, in this order, until the model accepts one.
const TRIED_SIZES: [i64; 7] = [64, 16, 128, 1, 32, 512, 224];

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
    let mut open_size = None;
    for &batch in sizes {
        let inputs = match open_size {
            Some(size) => make_inputs(signature, batch, size, samples)?,
            None => {
                let (size, inputs) = runner.find_inputs(signature, batch, samples)?;
                open_size = Some(size);
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
    let mut refused = String::new();
    let mut accepts = |size: i64| {
        let inputs = make_inputs(signature, sizes.first().copied().unwrap_or(1), size, samples)?;
        engine::execute(&mut *loaded, &mut &*inputs, &mut |_, _| {}).map_err(|error| error.to_string())
    };
    let open_size = TRIED_SIZES.into_iter().find(|size| accepts(*size).map_err(|reason| refused = reason).is_ok());
    let open_size = open_size.ok_or(refused)?;
    let mut all = Vec::new();
    for &batch in sizes {
        let inputs = make_inputs(signature, batch, open_size, samples)?;
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
    ) -> Result<(i64, Arc<[Tensor]>), String> {
        let mut reason = String::new();
        for size in TRIED_SIZES {
            let inputs = make_inputs(signature, batch, size, samples)?;
            match self.once(&inputs) {
                Ok(_) => return Ok((size, inputs)),
                Err(error) => reason = error,
            }
        }
        Err(format!(
            "no input was found that the model accepts; give the open dimensions with the parameter profile_inputs, for instance \"input=1x576,rate=@16000\". The last try said: {reason}"
        ))
    }

    /// One run, on the device's EXEC thread, between whatever it has to do besides.
    pub(crate) fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<Duration, String> {
        let mut loaded = self.loaded.take().ok_or("the executor is gone")?;
        let inputs = Arc::clone(inputs);
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let start = Instant::now();
            let outcome = engine::execute(&mut *loaded, &mut &*inputs, &mut |_, _| {});
            let span = Duration::from(start.elapsed());
            let _ = sender.send((loaded, outcome.map(|times| (span, times.inputs + times.outputs))));
        };
        let started = Instant::now();
        self.controller.borrow_device(self.device, self.expected, Box::new(work));
        let gone = "the model could not be measured: the engine panicked, or the server is going down";
        let (loaded, outcome) = receiver.recv().map_err(|_| gone)?;
        self.loaded = Some(loaded);
        let (span, overlap) = outcome.map_err(|error| error.to_string())?;
        (self.expected, self.overlap) = (span, overlap);
        // Others have the device for at least as long as this took.
        if self.controller.in_hand() > 0 {
            std::thread::sleep(started.elapsed());
        }
        Ok(span)
    }
}

fn make_inputs(
    signature: &ModelSignature,
    batch: u32,
    open_size: i64,
    samples: Samples<'_>,
) -> Result<Arc<[Tensor]>, String> {
    let make = |spec: &TensorSpec| {
        let mut input = make_input(spec, signature.max_batch, batch, open_size, samples.given)?;
        if let Some(mut buffer) = samples.memory.and_then(|memory| memory.take(input.data.len()))
            && buffer.append(&input.data)
        {
            input.data = Bytes::from_owner(buffer);
        }
        Ok(input)
    };
    signature.inputs.iter().map(make).collect()
}

fn make_input(
    spec: &TensorSpec,
    max_batch: u32,
    batch: u32,
    open_size: i64,
    given: &BTreeMap<String, ProfileInput>,
) -> Result<Tensor, String> {
    let mut shape: Vec<i64> = spec.dims.iter().map(|&dim| if dim < 0 { open_size } else { dim }).collect();
    let given = given.get(&spec.name);
    if let Some(dims) = given.and_then(|given| given.dims.as_ref()) {
        let from = usize::from(max_batch > 0);
        if dims.len() + from != shape.len() {
            let (name, wanted) = (&spec.name, shape.len() - from);
            return Err(format!("profile_inputs gives {name} {} dimensions, but it has {wanted}", dims.len()));
        }
        shape[from..].copy_from_slice(dims);
    }
    if max_batch > 0
        && let Some(first) = shape.first_mut()
    {
        *first = i64::from(batch);
    }
    let element = element(spec.datatype, given.and_then(|given| given.value));
    let bytes = element_count(&shape).and_then(|count| count.checked_mul(element.len()));
    let Some(bytes) = bytes.filter(|&bytes| bytes <= MAX_INPUT_BYTES) else {
        let name = &spec.name;
        return Err(format!(
            "input {name} would have the shape {shape:?}, which is too large to measure the model with: give a smaller one \
             with the parameter profile_inputs"
        ));
    };
    let data = element.repeat(bytes / element.len()).into();
    Ok(Tensor { datatype: spec.datatype, shape, data })
}

/// What measurements depend on besides the model: nothing, or the inputs that were given for it.
pub(crate) fn describe(given: &BTreeMap<String, ProfileInput>) -> String {
    let each = given.iter().map(|(name, input)| format!(", {name} {:?} {:?}", input.dims, input.value));
    each.collect()
}

/// One element. Where no value is given: ones are valid tokens, flags and lengths; zeros as lengths often aren't.
fn element(datatype: DataType, value: Option<f64>) -> Vec<u8> {
    let real = value.unwrap_or(0.5);
    let whole = value.unwrap_or(1.0) as i64;
    match datatype {
        DataType::Fp32 => (real as f32).to_le_bytes().to_vec(),
        DataType::Fp64 => real.to_le_bytes().to_vec(),
        DataType::Fp16 | DataType::Bf16 => vec![0; 2],
        DataType::Bool => vec![u8::from(whole != 0)],
        DataType::Bytes => vec![1, 0, 0, 0, b'a'],
        DataType::Int8 | DataType::Uint8 => whole.to_le_bytes()[..1].to_vec(),
        DataType::Int16 | DataType::Uint16 => whole.to_le_bytes()[..2].to_vec(),
        DataType::Int32 | DataType::Uint32 => whole.to_le_bytes()[..4].to_vec(),
        DataType::Int64 | DataType::Uint64 => whole.to_le_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_that_no_memory_holds_are_refused() {
        for dims in [vec![-1, i64::MAX, i64::MAX], vec![-1, 1 << 40], vec![-1, 1 << 28]] {
            let spec = TensorSpec { name: "input".into(), datatype: DataType::Fp32, dims };
            let refused = make_input(&spec, 8, 4, 16, &BTreeMap::new()).err().unwrap();
            assert!(refused.contains("too large"), "{refused}");
        }
    }

    #[test]
    fn inputs_follow_the_batch_and_the_given_shapes() {
        let spec = TensorSpec { name: "input".into(), datatype: DataType::Fp32, dims: vec![-1, 3, -1] };
        let input = make_input(&spec, 8, 4, 16, &BTreeMap::new()).unwrap();
        assert_eq!((input.shape, input.data.len()), (vec![4, 3, 16], 4 * 3 * 16 * 4));
        let given = |dims: &[i64]| {
            let input = ProfileInput { dims: Some(dims.to_vec()), value: Some(2.0) };
            BTreeMap::from([("input".to_owned(), input)])
        };
        let input = make_input(&spec, 8, 2, 16, &given(&[3, 5])).unwrap();
        assert_eq!((input.shape, &input.data[..4]), (vec![2, 3, 5], &2f32.to_le_bytes()[..]));
        assert!(make_input(&spec, 8, 2, 16, &given(&[3])).is_err());
    }
}
