//! A runtime that computes nothing and takes as long as a profile says. For devices that nobody has.
//!
//! It says when a batch or a load will be done, and doesn't wait itself: one thread is enough for all of its devices.

use crate::emulated_shares::{BatchInTurn, ModelInShares};
use crate::{
    DeviceTimes, EmulatedShares, Emulation, Engine, EngineError, Input, Inputs, Loaded, ModelSource, Prepared, Sink,
    Staged, TensorView,
};
use base::{BatchLatency, DataType, Duration, LatencyProfile, ModelSignature, TensorSpec, element_count};
use std::sync::Arc;
use std::time::Instant;

/// How long before its end a sleep becomes a wait that keeps the core: what a system may be late in waking a thread.
const SPIN: std::time::Duration = std::time::Duration::from_micros(100);

/// See the module. A model takes one FP32 input `input` of shape `[-1, width]` and gives one output `output` of the
/// same shape, all zeros. A batch takes the profile's median for the next supported batch size; where the profile has
/// transfers, they overlap with other batches.
#[derive(Clone, Debug)]
pub struct EmulatedEngine {
    width: u32,
    /// Where its devices are shares of GPUs.
    shares: Option<Arc<EmulatedShares>>,
}

impl EmulatedEngine {
    /// Models with rows of that many elements.
    pub fn new(width: u32) -> Self {
        Self { width, shares: None }
    }

    /// The same on devices that are shares of GPUs.
    pub fn with_shares(self, shares: EmulatedShares) -> Self {
        Self { shares: Some(Arc::new(shares)), ..self }
    }
}

impl Default for EmulatedEngine {
    fn default() -> Self {
        Self::new(10)
    }
}

impl Engine for EmulatedEngine {
    fn name(&self) -> &'static str {
        "emulated"
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let emulation = source.emulated.clone().ok_or_else(|| {
            let reason = "the emulated engine needs the latencies that it should pretend: give them in config.pbtxt";
            EngineError::bad_model(&source.file, reason)
        })?;
        let spec = |name: &str| TensorSpec {
            name: name.to_owned(),
            datatype: DataType::Fp32,
            dims: vec![-1, i64::from(self.width)],
        };
        let allowed = source.max_batch.unwrap_or(u32::MAX).max(1);
        let max_batch = emulation.profile.max_batch().min(allowed);
        let signature = ModelSignature { inputs: vec![spec("input")], outputs: vec![spec("output")], max_batch };
        let in_shares = self.shares.as_ref().and_then(|shares| ModelInShares::new(shares, &emulation));
        let pretence = Pretence { emulation, signature, row_bytes: 4 * self.width as usize, in_shares };
        Ok(Arc::new(Emulated(Arc::new(pretence))))
    }

    fn divide(&self, device: u32, division: usize) {
        self.shares.iter().for_each(|shares| shares.divide(device, division));
    }
}

/// A model in host memory.
struct Emulated(Arc<Pretence>);

/// What all places of a model share: with many devices there are many of them.
struct Pretence {
    emulation: Emulation,
    signature: ModelSignature,
    row_bytes: usize,
    in_shares: Option<ModelInShares>,
}

impl Prepared for Emulated {
    fn signature(&self) -> &ModelSignature {
        &self.0.signature
    }

    fn weight_bytes(&self) -> u64 {
        self.0.emulation.weight_bytes
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(self.load_for(device, None))
    }

    fn load_in(&self, division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(self.load_for(device, Some(division)))
    }
}

impl Emulated {
    fn load_for(&self, device: u32, division: Option<usize>) -> Box<dyn Loaded> {
        let there_at = Instant::now().checked_add(self.0.emulation.profile.load().into());
        Box::new(EmulatedModel { of: Arc::clone(&self.0), there_at, device, division })
    }
}

struct EmulatedModel {
    of: Arc<Pretence>,
    there_at: Option<Instant>,
    device: u32,
    /// For measurements: the division in which its batches are computed, whichever is in force.
    division: Option<usize>,
}

impl Pretence {
    /// What that many rows take on a device, and in which share, where it is one.
    fn latency(&self, rows: u32, device: u32, division: Option<usize>) -> (BatchLatency, Option<u32>) {
        match self.in_shares.as_ref().map(|shares| shares.on(device, division)) {
            None => (latency(&self.emulation.profile, rows), None),
            Some((percent, profile)) => (latency(profile, rows), Some(percent)),
        }
    }

    fn zeros(&self, rows: u32) -> Vec<u8> {
        vec![0; self.row_bytes * rows as usize]
    }

    /// The rows of a batch, if it is one that the model takes.
    fn rows(&self, inputs: &[Input]) -> Result<u32, String> {
        let [input @ Input { datatype, shape, .. }] = inputs else {
            return Err(format!("{} inputs were given, the model has 1", inputs.len()));
        };
        let width = (self.row_bytes / 4) as i64;
        match shape[..] {
            [rows, columns] if *datatype == DataType::Fp32 && columns == width => {
                let (bytes, found) = (element_count(shape).and_then(|count| count.checked_mul(4)), input.bytes());
                if bytes != Some(found) {
                    return Err(format!("input has {found} bytes, which is not what the shape {shape:?} takes"));
                }
                let max_batch = self.signature.max_batch;
                let fits = u32::try_from(rows).ok().filter(|rows| (1..=max_batch).contains(rows));
                fits.ok_or_else(|| format!("a batch of {rows} rows, expected 1 to {max_batch}"))
            }
            _ => Err(format!("input is {datatype} {shape:?}, expected FP32 [-1, {width}]")),
        }
    }
}

impl Loaded for EmulatedModel {
    fn there_at(&self) -> Option<Instant> {
        self.there_at
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        let staged_at = Instant::now();
        let mut inputs = inputs.in_pieces()?;
        let rows = self.of.rows(&inputs).map_err(EngineError::Execute)?;
        let (zeros, (latency, share)) = (self.of.zeros(rows), self.of.latency(rows, self.device, self.division));
        let shape = inputs.swap_remove(0).shape;
        let beside =
            share.map(|share| Neighbourhood { of: Arc::clone(&self.of), device: self.device, share, turn: None });
        let (early, computed_at) = (Duration::ZERO, staged_at);
        Ok(Box::new(EmulatedBatch { latency, shape, zeros, staged_at, early, computed_at, beside }))
    }
}

/// A batch whose inputs come for as long as the profile says, and which is computed for the rest of its time.
struct EmulatedBatch {
    latency: BatchLatency,
    shape: Vec<i64>,
    zeros: Vec<u8>,
    staged_at: Instant,
    /// What of the inputs' time was over when it started.
    early: Duration,
    /// When it is computed, if it is alone.
    computed_at: Instant,
    /// Where its device is a share.
    beside: Option<Neighbourhood>,
}

/// A batch beside others on its GPU.
struct Neighbourhood {
    of: Arc<Pretence>,
    device: u32,
    /// In percent.
    share: u32,
    /// From its start on.
    turn: Option<BatchInTurn>,
}

impl EmulatedBatch {
    fn turn(&self) -> Option<&BatchInTurn> {
        self.beside.as_ref()?.turn.as_ref()
    }
}

impl Staged for EmulatedBatch {
    fn blocks(&self) -> bool {
        false
    }

    fn start(&mut self, _inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let BatchLatency { median, overlap, .. } = self.latency;
        let now = Instant::now();
        self.early = Duration::from(now - self.staged_at).min(overlap);
        self.computed_at = now + std::time::Duration::from(median - self.early);
        if let Some(Neighbourhood { of, device, share, turn }) = &mut self.beside {
            let batch = (*share, self.latency.batch);
            *turn = of.in_shares.as_ref().map(|shares| shares.begin(*device, batch, median - self.early));
        }
        Ok(())
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        match self.turn() {
            Some(turn) => Ok(turn.next_at().is_none()),
            None => Ok(Instant::now() >= self.computed_at),
        }
    }

    fn due_at(&self) -> Option<Instant> {
        Some(self.turn().and_then(BatchInTurn::next_at).unwrap_or(self.computed_at))
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        self.is_computed()
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        wait_until(self.computed_at);
        while let Some(at) = self.turn().and_then(BatchInTurn::next_at) {
            wait_until(at);
        }
        sink(0, TensorView { datatype: DataType::Fp32, shape: &self.shape, data: &self.zeros });
        Ok(DeviceTimes { inputs: self.latency.overlap, early: self.early, ..DeviceTimes::default() })
    }
}

/// What that many rows take: as long as the next supported batch size.
fn latency(profile: &LatencyProfile, rows: u32) -> BatchLatency {
    let sizes = profile.batches();
    let next = sizes.partition_point(|entry| entry.batch < rows);
    sizes[next.min(sizes.len() - 1)]
}

/// Returns at that instant, within a microsecond where a core is free.
fn wait_until(end: Instant) {
    loop {
        match end.saturating_duration_since(Instant::now()) {
            std::time::Duration::ZERO => return,
            left if left > SPIN => std::thread::sleep(left - SPIN),
            _ => std::hint::spin_loop(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Tensor, execute};
    use std::path::PathBuf;

    fn source(emulated: Option<Emulation>) -> ModelSource {
        ModelSource { name: "m".into(), file: PathBuf::from("m.onnx"), emulated, ..ModelSource::default() }
    }

    fn emulation() -> Emulation {
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(1), millis(1), &[1, 2, 4], millis(2)).unwrap();
        Emulation { profile, weight_bytes: 1000 }
    }

    fn tensor(datatype: DataType, shape: &[i64], bytes: usize) -> Tensor {
        Tensor { datatype, shape: shape.to_vec(), data: vec![1; bytes].into() }
    }

    #[test]
    fn rows_are_rounded_up_to_a_supported_size() {
        let taken: Vec<_> = (1..=5).map(|rows| latency(&emulation().profile, rows).median.as_millis_f64()).collect();
        assert_eq!(taken, [2.0, 3.0, 5.0, 5.0, 5.0]);
    }

    #[test]
    fn a_batch_takes_at_least_its_time_and_gives_zeros() {
        let prepared = EmulatedEngine::new(3).prepare(&source(Some(emulation()))).unwrap();
        assert_eq!(prepared.signature().max_batch, 4);
        assert_eq!(prepared.weight_bytes(), 1000);
        let started = Instant::now();
        let mut loaded = prepared.load(0).unwrap();
        assert!((loaded.there_at().unwrap() - started).as_millis() >= 2, "it says so, and doesn't wait");
        let input = tensor(DataType::Fp32, &[3, 3], 36);
        let started = Instant::now();
        let mut outputs = 0;
        let mut check = |index, output: TensorView<'_>| {
            outputs += 1;
            assert_eq!((index, output.shape, output.data), (0, [3, 3].as_slice(), [0; 36].as_slice()));
        };
        execute(&mut *loaded, &mut &[input][..], &mut check).unwrap();
        assert_eq!(outputs, 1);
        assert!(started.elapsed().as_millis() >= 5);
    }

    #[test]
    fn batches_that_do_not_fit_are_sentences() {
        let mut loaded = EmulatedEngine::new(3).prepare(&source(Some(emulation()))).unwrap().load(0).unwrap();
        let mut refused = |datatype, shape: &[i64], bytes: usize| {
            let input = tensor(datatype, shape, bytes);
            let result = execute(&mut *loaded, &mut &[input][..], &mut |_, _| panic!("no output"));
            result.unwrap_err().to_string()
        };
        assert_eq!(refused(DataType::Fp32, &[5, 3], 60), "execution failed: a batch of 5 rows, expected 1 to 4");
        assert_eq!(refused(DataType::Fp32, &[0, 3], 0), "execution failed: a batch of 0 rows, expected 1 to 4");
        assert!(refused(DataType::Fp32, &[1, 2], 8).contains("expected FP32 [-1, 3]"));
        assert!(refused(DataType::Int32, &[1, 3], 12).contains("input is INT32"));
        assert!(refused(DataType::Fp32, &[1, 3], 11).contains("input has 11 bytes"));
        let error = EmulatedEngine::default().prepare(&source(None)).err().unwrap().to_string();
        assert!(error.contains("needs the latencies"), "{error}");
    }

    #[test]
    fn the_configuration_bounds_the_batch() {
        let mut source = source(Some(emulation()));
        source.max_batch = Some(2);
        assert_eq!(EmulatedEngine::default().prepare(&source).unwrap().signature().max_batch, 2);
    }
}
