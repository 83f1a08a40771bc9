//! Measures what a model's batches and loads take, alone on the device.

use crate::runner::{DeviceRunner, Run, RunError, RunTimes, expect};
use crate::samples::{Sample, Samples};
use base::{BatchLatency, DeviceId, Duration, LatencyProfile, ModelSignature, TensorSpec, element_count};
use controller::Controller;
use engine::{Prepared, Tensor};
use std::sync::Arc;
use std::time::Instant;

/// How much measuring is enough.
#[derive(Clone, Copy, Debug)]
pub struct ProfilingEffort {
    /// Runs of each batch size; a hundred are what a 99th percentile needs.
    pub runs: u32,
    /// What measuring a model may take: loads and all batch sizes together. What runs take is learnt from requests
    /// later on; a few runs are enough to begin with. Of fewer than a hundred, the slowest stands for the 99th
    /// percentile.
    pub budget: Duration,
}

impl Default for ProfilingEffort {
    fn default() -> Self {
        Self { runs: 100, budget: Duration::from_millis(300) }
    }
}

/// All cores together have this part of the time in which a model is measured: a model isn't ready later because they
/// are measured, too. What a few rows take there is enough to know whether it pays, and requests show the rest.
const WIDE_PARTS: u64 = 5;

impl ProfilingEffort {
    /// What there is for each core alone, and for all of them together.
    pub(crate) fn for_cores(self) -> (Self, Self) {
        let wide = self.budget / WIDE_PARTS;
        (Self { budget: self.budget - wide, ..self }, Self { budget: wide, ..self })
    }
}

/// What was measured of a model on a device.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Measured {
    pub(crate) profile: LatencyProfile,
    /// What a batch takes whatever its inputs are.
    pub(crate) fixed: Duration,
    /// Why nothing could be measured and the rest is a guess.
    pub(crate) unmeasured: Option<String>,
}

/// What is left to spend on measuring.
struct Budget(Duration);

impl Budget {
    fn has(&self, span: Duration) -> bool {
        span <= self.0
    }

    fn spend(&mut self, span: Duration) {
        self.0 -= span;
    }

    /// A part of it, to be spent on one thing.
    fn part(&self, parts: u64) -> Self {
        Self(self.0 / parts)
    }
}

/// So many runs of a single row there are, whatever they take.
const FEWEST_RUNS: u32 = 3;
/// Of fewer runs than these, one that took more than twice as long as the others doesn't say that the model's times
/// vary: the machine may have had something else to do.
const FEW_RUNS: usize = 20;
/// Loads that count, at most.
const LOAD_RUNS: u32 = 3;
/// Runs of each of two sizes, to tell what doesn't depend on the size, at most.
const FIXED_RUNS: u32 = 15;
/// The smaller one is so many times smaller, in each open dimension.
const SHRINKS: i64 = 4;
/// Loads may take this part of the budget, and so may telling what doesn't depend on the size.
const PARTS: u64 = 3;
/// What each further row is taken to cost of what the first costs where that alone was measured: a little less, so that
/// larger batches seem to pay and are tried.
const NEXT_ROW: f64 = 0.95;
/// What a row of a model is planned with that accepts no input that could be made up.
const GUESS: Duration = Duration::from_millis(10);

/// Measures a model on a device in a division: the second sizes, of which the profile for the first is made.
pub(crate) fn measure(
    controller: &Controller,
    (division, device): (usize, DeviceId),
    prepared: &dyn Prepared,
    (sizes, measured): (&[u32], &[u32]),
    samples: Samples<'_>,
    effort: ProfilingEffort,
) -> Result<Measured, String> {
    let mut budget = Budget(effort.budget);
    let load_once = || {
        let start = Instant::now();
        let loaded = prepared.load_in(division, device.0).map_err(|error| error.to_string())?;
        Ok((Duration::from(start.elapsed()), loaded))
    };
    let (load, loaded) = measure_load(load_once, &mut budget)?;
    let mut runner = DeviceRunner::new(controller, device, Some(prepared), loaded);
    let signature = prepared.signature();
    samples.check(signature)?;
    let (sample, one) = match find_inputs(&mut runner, signature, samples, &mut budget)? {
        Ok(found) => found,
        Err(reason) => {
            let profile =
                LatencyProfile::linear(GUESS, Duration::ZERO, sizes, load).map_err(|error| error.to_string())?;
            return Ok(Measured { profile, fixed: Duration::ZERO, unmeasured: Some(reason) });
        }
    };
    let inputs = |batch: u32| samples.inputs(signature, batch, sample);
    let fixed = measure_fixed(&mut runner, signature, &one, &mut budget)?;
    let known = measure_sizes(&mut runner, one, measured, &inputs, effort.runs, &mut budget)?;
    let batches = sizes.iter().map(|&batch| on_line(&known, batch)).collect();
    let profile = LatencyProfile::new(batches, load).map_err(|error| error.to_string())?;
    Ok(Measured { profile, fixed, unmeasured: None })
}

/// The slowest of a few loads, and the last one's result: as many as fit. The first isn't counted if there are others:
/// it pays for memory that the later ones find.
fn measure_load<L>(
    mut load_once: impl FnMut() -> Result<(Duration, L), String>,
    budget: &mut Budget,
) -> Result<(Duration, L), String> {
    let mut part = budget.part(PARTS);
    let (first, mut loaded) = load_once()?;
    budget.spend(first);
    part.spend(first);
    let (mut slowest, mut last) = (None, first);
    for _ in 0..LOAD_RUNS {
        if !part.has(last) {
            break;
        }
        // What the last one left is given back first, as when a model is unloaded.
        drop(loaded);
        (last, loaded) = load_once()?;
        budget.spend(last);
        part.spend(last);
        slowest = slowest.max(Some(last));
    }
    Ok((slowest.unwrap_or(first), loaded))
}

/// Tries samples until the model accepts one, and runs a row of it often enough. The inner error says why no sample is
/// accepted.
fn find_inputs(
    runner: &mut dyn Run,
    signature: &ModelSignature,
    samples: Samples<'_>,
    budget: &mut Budget,
) -> Result<Result<(Sample, SizeMeasurement), String>, String> {
    let mut refused = String::new();
    for sample in samples.all(signature) {
        let tried = samples.inputs(signature, 1, sample).map_err(RunError::Refused).and_then(|inputs| {
            let mut one = SizeMeasurement::new(1, inputs);
            one.run(runner, budget)?;
            Ok(one)
        });
        match tried {
            Ok(mut one) => {
                // The first run pays for memory that is touched for the first time.
                if budget.has(one.last()) {
                    one.times.clear();
                }
                while (one.times.len() as u32) < FEWEST_RUNS {
                    one.run(runner, budget)?;
                }
                return Ok(Ok((sample, one)));
            }
            Err(RunError::Refused(reason)) => refused = reason,
            Err(RunError::Gone(reason)) => return Err(reason),
        }
    }
    Ok(Err(format!(
        "no input was found that the model accepts; give one with model_warmup, or the open dimensions with the parameter profile_inputs, for instance \"input=1x576,rate=@16000\". The last try said: {refused}"
    )))
}

/// What those of these sizes take that fit, from the smallest on.
fn measure_sizes(
    runner: &mut dyn Run,
    one: SizeMeasurement,
    sizes: &[u32],
    inputs: &dyn Fn(u32) -> Result<Arc<[Tensor]>, String>,
    runs: u32,
    budget: &mut Budget,
) -> Result<Vec<BatchLatency>, String> {
    let mut measured = vec![one];
    for &batch in sizes.iter().filter(|&&batch| batch > 1) {
        let known: Vec<BatchLatency> = measured.iter().map(SizeMeasurement::latency).collect();
        // The first run pays for memory that is touched for the first time: the line is better than that one alone.
        if !budget.has(on_line(&known, batch).median * 2) {
            break;
        }
        let mut size = SizeMeasurement::new(batch, inputs(batch)?);
        size.run(runner, budget)?;
        size.times.clear();
        size.run(runner, budget)?;
        measured.push(size);
    }
    // In rounds: a machine that is slow for a while is so for all sizes alike, and which size pays stays true.
    let mut ran = true;
    while std::mem::take(&mut ran) {
        for size in &mut measured {
            if (size.times.len() as u32) < runs && budget.has(size.last()) {
                size.run(runner, budget)?;
                ran = true;
            }
        }
    }
    Ok(measured.iter().map(SizeMeasurement::latency).collect())
}

/// What a batch size takes by what others take, which ascend: what was measured, between two of them a part of the way,
/// beyond them the line through the first and the last, and with one alone nearly so many times its time.
fn on_line(known: &[BatchLatency], batch: u32) -> BatchLatency {
    let above = known.partition_point(|other| other.batch < batch);
    let (low, high) = match (known.get(above), above.checked_sub(1).map(|below| &known[below])) {
        (Some(exact), _) if exact.batch == batch => return *exact,
        (Some(high), Some(low)) => (low, high),
        (_, _) => (&known[0], &known[known.len() - 1]),
    };
    let span = |of: fn(&BatchLatency) -> Duration| {
        let (from, to) = (of(low).as_secs_f64(), of(high).max(of(low)).as_secs_f64());
        let each = match high.batch - low.batch {
            0 => from * NEXT_ROW,
            rows => (to - from) / f64::from(rows),
        };
        // However slow the runs of the last were: beyond it, a row costs no more than one in it.
        let each = if batch > high.batch { each.min(to / f64::from(high.batch)) } else { each };
        Duration::from_secs_f64(to + each * (f64::from(batch) - f64::from(high.batch)))
    };
    BatchLatency { batch, median: span(|of| of.median), p99: span(|of| of.p99), overlap: span(|of| of.overlap) }
}

/// What a batch takes whatever its inputs are: where the line through the times of two sizes comes to no size at all.
/// Nothing where the model leaves no size open, takes no smaller ones, or takes too long to look.
fn measure_fixed(
    runner: &mut dyn Run,
    signature: &ModelSignature,
    one: &SizeMeasurement,
    budget: &mut Budget,
) -> Result<Duration, String> {
    let large = &one.inputs;
    let small: Arc<[Tensor]> = large
        .iter()
        .zip(&signature.inputs)
        .map(|(input, spec)| shrunk(input, spec, usize::from(signature.max_batch > 0)))
        .collect();
    let elements = |inputs: &[Tensor]| inputs.iter().map(|input| input.data.len()).sum::<usize>() as f64;
    let (more, less) = (elements(large), elements(&small));
    if less >= more {
        return Ok(Duration::ZERO);
    }
    let (mut slow, mut quick) = (SizeMeasurement::new(1, Arc::clone(large)), SizeMeasurement::new(1, small));
    let (part, before, both) = (budget.part(PARTS), budget.0, one.last() * 2);
    while slow.times.len() < FIXED_RUNS as usize && part.has(before - budget.0 + both) {
        for size in [&mut slow, &mut quick] {
            match size.run(runner, budget) {
                Ok(()) => {}
                Err(RunError::Refused(_)) => return Ok(Duration::ZERO),
                Err(RunError::Gone(reason)) => return Err(reason),
            }
        }
    }
    if slow.times.is_empty() {
        return Ok(Duration::ZERO);
    }
    let median = |size: &SizeMeasurement| size.latency().median.as_secs_f64();
    let (slow, quick) = (median(&slow), median(&quick));
    let fixed = quick - (slow - quick).max(0.0) * less / (more - less);
    Ok(Duration::from_secs_f64(fixed.clamp(0.0, slow)))
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
    let mut accepts = |sample: &Sample| {
        let inputs = samples.inputs(signature, sizes.first().copied().unwrap_or(1), *sample)?;
        expect(prepared, &inputs);
        engine::execute(&mut *loaded, &mut &*inputs, &mut |_, _| {}).map_err(|error| error.to_string())
    };
    let possible = samples.all(signature);
    let sample = possible.into_iter().find(|sample| accepts(sample).map_err(|reason| refused = reason).is_ok());
    let sample = sample.ok_or(refused)?;
    let mut all = Vec::new();
    for &batch in sizes {
        let inputs = samples.inputs(signature, batch, sample)?;
        expect(prepared, &inputs);
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
    times: Vec<RunTimes>,
}

impl SizeMeasurement {
    fn new(batch: u32, inputs: Arc<[Tensor]>) -> Self {
        Self { batch, inputs, times: Vec::new() }
    }

    fn run(&mut self, runner: &mut dyn Run, budget: &mut Budget) -> Result<(), RunError> {
        let times = runner.once(&self.inputs)?;
        budget.spend(times.span);
        self.times.push(times);
        Ok(())
    }

    /// What its last run took.
    fn last(&self) -> Duration {
        self.times.last().map_or(Duration::ZERO, |times| times.span)
    }

    fn latency(&self) -> BatchLatency {
        let at = |of: fn(&RunTimes) -> Duration, quantile: f64| {
            let mut spans: Vec<Duration> = self.times.iter().map(of).collect();
            spans.sort_unstable();
            let rank = (spans.len() as f64 * quantile).ceil() as usize;
            spans.get(rank.clamp(1, spans.len().max(1)) - 1).copied().unwrap_or(Duration::ZERO)
        };
        let (median, mut p99) = (at(|times| times.span, 0.5), at(|times| times.span, 0.99));
        if self.times.len() < FEW_RUNS {
            p99 = p99.min(median * 2);
        }
        BatchLatency { batch: self.batch, median, p99, overlap: at(|times| times.overlap, 0.5) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;

    const SIZES: [u32; 5] = [1, 2, 4, 8, 16];

    /// A model whose batches take so much for each row, by a clock of its own.
    struct Virtual {
        row: Duration,
        accepts: bool,
        spent: Duration,
    }

    impl Run for Virtual {
        fn once(&mut self, inputs: &Arc<[Tensor]>) -> Result<RunTimes, RunError> {
            if !self.accepts {
                return Err(RunError::Refused("no".into()));
            }
            let span = self.row * inputs[0].shape[0] as u64;
            self.spent += span;
            Ok(RunTimes { span, overlap: Duration::ZERO, computing: None })
        }
    }

    fn signature() -> ModelSignature {
        let spec = TensorSpec { name: "x".into(), datatype: DataType::Fp32, dims: vec![-1, 2] };
        ModelSignature { inputs: vec![spec.clone()], outputs: vec![spec], max_batch: 16 }
    }

    /// What sizes take of a model that takes so many microseconds for each row, and what measuring took.
    fn measured(micros: u64) -> (Vec<(u32, u64)>, Duration) {
        let mut model = Virtual { row: Duration::from_micros(micros), accepts: true, spent: Duration::ZERO };
        let (samples, signature) = (Samples::none(), signature());
        let mut budget = Budget(ProfilingEffort::default().budget);
        let (sample, one) = find_inputs(&mut model, &signature, samples, &mut budget).unwrap().unwrap();
        let inputs = |batch| samples.inputs(&signature, batch, sample);
        let known = measure_sizes(&mut model, one, &SIZES, &inputs, 100, &mut budget).unwrap();
        (SIZES.map(|size| (size, on_line(&known, size).median.as_micros())).to_vec(), model.spent)
    }

    #[test]
    fn measuring_cores_alone_and_together_takes_no_longer_than_measuring_them_alone() {
        let effort = ProfilingEffort::default();
        let (alone, together) = effort.for_cores();
        assert_eq!(alone.budget + together.budget, effort.budget);
        assert!(together.budget > Duration::ZERO && together.budget * 3 < alone.budget);
    }

    #[test]
    fn measuring_takes_what_the_budget_allows_however_slow_the_model_is() {
        for micros in [10, 1_000, 25_000, 70_000, 1_300_000] {
            let (batches, spent) = measured(micros);
            for (size, median) in batches {
                let part = median as f64 / (micros * u64::from(size)) as f64;
                assert!((0.95..=1.0).contains(&part), "what wasn't measured lies on the line: {size} {median}");
            }
            let fewest = Duration::from_micros(micros) * u64::from(FEWEST_RUNS);
            assert!(spent <= ProfilingEffort::default().budget.max(fewest), "{micros}: {spent}");
        }
    }

    #[test]
    fn one_slow_run_of_a_few_is_not_a_model_whose_times_vary() {
        let p99 = |runs: usize| {
            let slow_at = |at: usize| if at == 1 { 900 } else { 100 };
            let times = (0..runs).map(|at| RunTimes {
                span: Duration::from_micros(slow_at(at)),
                overlap: Duration::ZERO,
                computing: None,
            });
            SizeMeasurement { batch: 1, inputs: Arc::new([]), times: times.collect() }.latency().p99.as_micros()
        };
        assert_eq!([3, 19, 20, 99, 100].map(p99), [200, 200, 900, 900, 100]);
    }

    #[test]
    fn a_model_that_accepts_nothing_is_no_error() {
        let mut model = Virtual { row: Duration::ZERO, accepts: false, spent: Duration::ZERO };
        let tried = find_inputs(&mut model, &signature(), Samples::none(), &mut Budget(Duration::ZERO));
        let why = tried.unwrap().err().unwrap();
        assert!(why.starts_with("no input was found that the model accepts") && why.ends_with("said: no"), "{why}");
    }

    #[test]
    fn loads_are_measured_as_often_as_they_fit() {
        let loads = |millis: &[u64]| {
            let mut spans = millis.iter().map(|millis| Duration::from_millis(*millis));
            let mut loads = 0;
            let once = || {
                loads += 1;
                Ok((spans.next().unwrap(), ()))
            };
            let (load, ()) = measure_load(once, &mut Budget(Duration::from_millis(300))).unwrap();
            (load.as_micros() / 1000, loads)
        };
        assert_eq!(loads(&[9, 3, 5, 4, 7]), (5, 4), "the first isn't counted");
        assert_eq!(loads(&[45, 40, 41]), (40, 2));
        assert_eq!(loads(&[600, 1]), (600, 1));
    }

    #[test]
    fn what_was_not_measured_lies_on_a_line() {
        let entry = |batch: u32, micros: u64| {
            let [median, p99] = [micros, 2 * micros].map(Duration::from_micros);
            BatchLatency { batch, median, p99, overlap: Duration::ZERO }
        };
        let at = |known: &[BatchLatency], batch: u32| {
            let BatchLatency { median, p99, .. } = on_line(known, batch);
            (median.as_micros(), p99.as_micros())
        };
        let known = [entry(1, 100), entry(4, 160), entry(8, 200)];
        assert_eq!([1, 2, 4, 6].map(|batch| at(&known, batch)), [(100, 200), (120, 240), (160, 320), (180, 360)]);
        assert_eq!(at(&[entry(1, 100), entry(2, 110)], 8), (170, 340), "beyond what was measured");
        assert_eq!(at(&[entry(1, 100), entry(2, 300)], 4), (600, 1200), "no dearer than in the last");
        assert_eq!(at(&[entry(1, 100), entry(5, 900)], 2), (300, 600), "between, it may be");
        assert_eq!(at(&[entry(1, 100)], 8), (765, 1530), "one alone");
        assert_eq!(at(&[entry(1, 100), entry(2, 90)], 4), (100, 200), "never less than before");
    }
}
