//! The engine: models as graphs, on all shares of all GPUs that it was given.

use crate::batch::CudaBatch;
use crate::blobs::Blobs;
use crate::driver::{Gpu, Pinned};
use crate::executor::CudaExecutor;
use crate::fallback::Fallback;
use crate::memory::{AddressRange, DeviceMemory, LoadedWeights, PAGE_BYTES};
use crate::model::{CudaModel, Hashes, Programs};
use crate::open::{Found, MOST_SHAPES, OpenModel, ShapePreparer};
use crate::parts::BatchInParts;
use crate::pool::Pool;
use crate::shares::Partition;
use crate::sizes::{Form, Size};
use crate::standby::Standby;
use crate::streams::CudaGraph;
use crate::tail::{EitherBreaker, LoadedTail, Tail};
use base::{ModelSignature, Precision};
use engine::{Breaker, Engine, EngineError, HostMemory, Input, Inputs, Loaded, ModelSource, Prepared, Purpose, Staged};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

const NAME: &str = "cuda";
/// Pinned memory for requests where nobody says it: 400 images of 224 by 224 in 32 bits.
const PINNED_BYTES: usize = 256 << 20;
/// How much of a GPU's free memory is for weights where nobody says it: the rest is for workspaces, buffers, and
/// measuring kernels.
const WEIGHTS_OF_FREE: f64 = 0.8;

/// What models can be computed in, the fastest first.
const PRECISIONS: [Precision; 4] = [Precision::Fp16, Precision::Tf32, Precision::Tf32Behind(64), Precision::Fp32];

/// What may be chosen about the engine.
#[derive(Clone)]
pub struct CudaOptions {
    /// The GPUs, by number.
    pub gpus: Vec<u32>,
    /// How each is shared, in one way or in several of equally many shares. Each share is a device for the scheduler,
    /// with a number of its own: those of the first GPU come first.
    pub divisions: Vec<Vec<f64>>,
    /// Memory for weights on each device; `None`: what is there, divided by the shares.
    pub memory_bytes: Option<u64>,
    /// Pinned host memory into which requests may be received; 0: none.
    pub pinned_bytes: usize,
    /// Where compiled kernels and measurements are kept; `None`: in a temporary folder.
    pub cache: Option<PathBuf>,
    /// Who takes models that can't run on a GPU.
    pub fallback: Fallback,
}

impl Default for CudaOptions {
    /// The first GPU, whole.
    fn default() -> Self {
        let (gpus, divisions) = (vec![0], vec![vec![1.0]]);
        let (memory_bytes, pinned_bytes) = (None, PINNED_BYTES);
        Self { gpus, divisions, memory_bytes, pinned_bytes, cache: None, fallback: Fallback::Off }
    }
}

/// All executors, division by division. A device that is nothing in a division stays there what it is in another, for
/// what it still has to do.
fn in_every_division<T: Clone>(executors: &[Vec<Option<T>>]) -> Result<Vec<T>, String> {
    let devices = executors.first().map_or(0, Vec::len);
    let elsewhere = |device: usize| executors.iter().find_map(|division| division[device].clone());
    let of = |division: &Vec<Option<T>>, device: usize| {
        let executor = division[device].clone().or_else(|| elsewhere(device));
        executor.ok_or_else(|| format!("device {device} has no share in any division"))
    };
    executors.iter().flat_map(|division| (0..devices).map(move |device| of(division, device))).collect()
}

/// How many GPUs this machine has; none without a driver.
pub fn gpu_count() -> u32 {
    Gpu::count()
}

/// The engine.
pub struct CudaEngine {
    /// By the scheduler's number of the device; those of the first division, then those of the next.
    executors: Vec<Arc<CudaExecutor>>,
    /// In each division.
    devices: usize,
    /// Which division is in force, by device.
    division: Arc<[AtomicUsize]>,
    pages: u32,
    /// For all GPUs.
    pool: Option<Pool<Pinned>>,
    fallback: Fallback,
    blobs: Blobs<Pinned>,
    models: Blobs<CudaModel>,
    hashes: Hashes,
    /// The last model of each name that leaves sizes open.
    open: Mutex<HashMap<String, Weak<OpenModel>>>,
    preparer: ShapePreparer,
    gpu: Arc<Gpu>,
    #[allow(dead_code, reason = "held so that it is removed at the end")]
    temporary: Option<tempfile::TempDir>,
}

impl CudaEngine {
    /// Opens the GPUs, shares them, and takes their memory. One sentence if a GPU or a library is missing.
    pub fn new(options: &CudaOptions) -> Result<Self, EngineError> {
        Self::open(options).map_err(|reason| EngineError::Unavailable { runtime: "CUDA", reason })
    }

    fn open(options: &CudaOptions) -> Result<Self, String> {
        if let Some(missing) = crate::toolkit::missing() {
            return Err(missing.to_string());
        }
        // While the driver is opened, on another core. What is compiled already doesn't need it.
        drop(std::thread::Builder::new().name("compiler".into()).spawn(crate::toolkit::warm_compiler));
        let first = *options.gpus.first().ok_or("no GPU was named: use cuda:0")?;
        let shares = options.divisions.first().map_or(0, Vec::len);
        if shares == 0 || options.divisions.iter().any(|division| division.len() != shares) {
            return Err("a GPU has the same number of shares in every division, at least one".into());
        }
        let temporary = options.cache.is_none().then(tempfile::tempdir).transpose();
        let temporary = temporary.map_err(|error| format!("no temporary folder could be made: {error}"))?;
        let folder = options.cache.as_deref().or(temporary.as_ref().map(tempfile::TempDir::path));
        let folder = folder.expect("one of them is there").join("cuda");
        let pool = match options.pinned_bytes {
            0 => None,
            bytes => Some(Pool::new(Pinned::new(&Gpu::open(first)?, bytes).map_err(|refused| {
                format!("no {bytes} bytes of pinned host memory for requests: {refused}; take less with --pinned-memory, or 0")
            })?)),
        };
        let (mut executors, mut pages) = (vec![Vec::new(); options.divisions.len()], u32::MAX);
        for &number in &options.gpus {
            let gpu = Gpu::open(number)?;
            let free = gpu.free_bytes().map_err(|refused| refused.to_string())?;
            let each = options.memory_bytes.unwrap_or((free as f64 * WEIGHTS_OF_FREE) as u64 / shares as u64);
            let own = u32::try_from(each / PAGE_BYTES as u64).unwrap_or(u32::MAX);
            let memory = DeviceMemory::take(&gpu, own.saturating_mul(shares as u32))?;
            for (division, executors) in options.divisions.iter().zip(&mut executors) {
                let used: Vec<f64> = division.iter().copied().filter(|share| *share > 0.0).collect();
                let mut partitions = Partition::divide(&gpu, &used)?.into_iter();
                for share in division {
                    let Some(partition) = (*share > 0.0).then(|| partitions.next()).flatten() else {
                        executors.push(None);
                        continue;
                    };
                    // Which kernel is fastest depends on the number of multiprocessors.
                    let cache = folder.join(format!("{}-multiprocessors", partition.multiprocessors()));
                    executors.push(Some(CudaExecutor::new(&partition, &memory, pool.as_ref(), &cache)?));
                }
            }
            pages = pages.min(own);
        }
        let (devices, executors) = (executors[0].len(), in_every_division(&executors)?);
        let gpu = Gpu::open(first)?;
        let fallback = options.fallback.clone();
        let (blobs, models, hashes, open) = Default::default();
        let division = (0..devices).map(|_| AtomicUsize::new(0)).collect();
        let preparer = ShapePreparer::start()?;
        Ok(Self {
            executors,
            devices,
            division,
            pages,
            pool,
            fallback,
            blobs,
            models,
            hashes,
            open,
            preparer,
            gpu,
            temporary,
        })
    }

    /// How many devices the scheduler has: one for each share of each GPU.
    pub fn devices(&self) -> u32 {
        self.devices as u32
    }

    /// Pages for weights on each device.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// What a device is called, for instance `cuda:0`, or `cuda:0 (64 of 132)` for a share. Where shares change, they
    /// have numbers: `cuda:0 share 1`.
    pub fn device_name(&self, device: u32) -> String {
        let executor = &self.executors[device as usize];
        let (partition, gpu) = (executor.partition(), executor.partition().gpu());
        if self.executors.len() > self.devices {
            let before = self.executors[..device as usize].iter();
            let share = before.filter(|other| other.partition().gpu().ordinal() == gpu.ordinal()).count();
            return format!("cuda:{} share {share}", gpu.ordinal());
        }
        if partition.multiprocessors() == gpu.multiprocessors {
            return format!("cuda:{}", gpu.ordinal());
        }
        format!("cuda:{} ({} of {})", gpu.ordinal(), partition.multiprocessors(), gpu.multiprocessors)
    }

    /// What measurements are valid for: the device, driver and libraries, the share.
    pub fn kind(&self) -> String {
        let facts: Vec<String> = self.executors.iter().map(|executor| executor.facts()).collect();
        format!("cuda, {}", facts.join("; "))
    }

    fn instance(&self, source: &ModelSource) -> Result<Instance, String> {
        let precision = source.precision.unwrap_or(Precision::Fp32);
        let key = self.hashes.key(source, precision)?;
        let wanted = (precision, self.fallback.engine().is_some());
        let prepare = || CudaModel::prepare(&self.gpu, &self.executors, &self.blobs, source, wanted);
        let model = self.models.keep(&key, prepare)?;
        let tail = self.tail(source, &model)?;
        let mut sites: Vec<(Arc<DeviceMemory>, Arc<Site>)> = Vec::new();
        let mut devices = Vec::new();
        // What is compared is prepared for the first device alone.
        for (position, executor) in self.executors.iter().enumerate().take(model.programs.len()) {
            // One graph for each executor, in however many divisions it is.
            let same = self.executors[..position].iter().position(|other| Arc::ptr_eq(other, executor));
            if let Some(same) = same {
                devices.push(Arc::clone(&devices[same]));
                continue;
            }
            let known = sites.iter().find(|(memory, _)| Arc::ptr_eq(memory, executor.memory()));
            let site = match known {
                Some((_, site)) => Arc::clone(site),
                None => {
                    let site = Arc::new(Site::new(executor.memory(), model.weight_bytes)?);
                    sites.push((Arc::clone(executor.memory()), Arc::clone(&site)));
                    site
                }
            };
            devices.push(Arc::new(OnDevice::new(executor, site, &model, position)?));
        }
        let signature = tail.as_ref().map_or_else(|| model.sizes.signature(), |tail| tail.signature.clone());
        let (count, division) = (self.devices, Arc::clone(&self.division));
        let open = (model.sizes.open > 0).then(|| {
            let most = source.shapes_at_most.map_or(MOST_SHAPES, |most| most as usize);
            let standby = |engine| Standby::new(engine, source, &signature, count);
            // What is compared is what the device computes.
            let fallback = self.fallback.engine().filter(|_| source.purpose == Purpose::Service);
            let standby = fallback.map(standby);
            if source.purpose == Purpose::Service {
                let meanwhile = if standby.is_some() { "computed on the CPU" } else { "refused" };
                tracing::info!(
                    model = source.name,
                    "it leaves sizes open: up to {most} shapes are prepared as requests bring them, and {meanwhile} meanwhile"
                );
            }
            OpenModel::new(&source.name, most, standby, (&model, &devices), self.preparer.jobs())
        });
        if let Some(open) = open.as_ref().filter(|_| source.purpose == Purpose::Service) {
            let mut known = self.open.lock().unwrap_or_else(PoisonError::into_inner);
            known.retain(|_, open| open.strong_count() > 0);
            let before = known.insert(source.name.clone(), Arc::downgrade(open));
            drop(known);
            before.and_then(|before| before.upgrade()).iter().for_each(|before| open.take_over(before));
        }
        Ok(Instance { signature, devices, count, division, open, tail, model })
    }

    /// What the host computes of a model behind the device. Not of one that is compared: in the tail of a detector a
    /// rounding may change how many boxes there are, which says nothing of how far they are off.
    fn tail(&self, source: &ModelSource, model: &CudaModel) -> Result<Option<Arc<Tail>>, String> {
        let engine = self.fallback.engine().filter(|_| source.purpose == Purpose::Service);
        let Some((cut, engine)) = model.cut.as_ref().zip(engine) else { return Ok(None) };
        let tail = Tail::prepare(&**engine, source, (cut, &model.bytes()?), &model.sizes.signature())?;
        Ok(Some(Arc::new(tail)))
    }
}

impl Engine for CudaEngine {
    fn name(&self) -> &'static str {
        NAME
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        match self.instance(source) {
            Ok(instance) => Ok(Arc::new(instance)),
            Err(reason) if source.purpose == Purpose::Service => self.fallback.prepare(source, reason),
            Err(reason) => Err(EngineError::bad_model(&source.file, reason)),
        }
    }

    fn precisions(&self) -> &[Precision] {
        &PRECISIONS
    }

    fn prepares_soon(&self) -> bool {
        true
    }

    fn reference(&self) -> Option<Arc<dyn Engine>> {
        self.fallback.engine().cloned()
    }

    fn divide(&self, device: u32, division: usize) {
        if let Some(in_force) = self.division.get(device as usize) {
            in_force.store(division, Ordering::Release);
        }
    }

    fn host_memory(&self) -> Option<Arc<dyn HostMemory>> {
        self.pool.clone().map(|pool| Arc::new(pool) as Arc<dyn HostMemory>)
    }
}

/// A model's addresses on one GPU, and its weights while they are there. Shares of a GPU have them in common.
struct Site {
    place: Arc<AddressRange>,
    resident: Mutex<Weak<LoadedWeights>>,
}

impl Site {
    fn new(memory: &Arc<DeviceMemory>, weight_bytes: usize) -> Result<Self, String> {
        let place = Arc::new(memory.place(weight_bytes)?);
        memory.spare(place.pages() as u32);
        Ok(Self { place, resident: Mutex::default() })
    }
}

/// A model on one device.
pub(crate) struct OnDevice {
    /// By size, those of the start.
    graphs: Vec<Arc<SizedGraph>>,
    site: Arc<Site>,
    pub(crate) executor: Arc<CudaExecutor>,
    /// Among the engine's executors.
    position: usize,
}

impl OnDevice {
    fn new(
        executor: &Arc<CudaExecutor>,
        site: Arc<Site>,
        model: &Arc<CudaModel>,
        position: usize,
    ) -> Result<Self, String> {
        let mut on = Self { graphs: Vec::new(), site, executor: Arc::clone(executor), position };
        for (program, form) in model.programs[position].list.iter().zip(&model.sizes.prepared) {
            let graph = executor.record(program, &form.layout, on.site.place.address())?;
            let (form, site, programs) =
                (Arc::clone(form), Arc::clone(&on.site), GraphPrograms::OfModel(Arc::clone(model)));
            on.graphs.push(Arc::new(SizedGraph { graph, form, programs, site }));
        }
        Ok(on)
    }

    /// A graph of one more size, which has its program to itself.
    pub(crate) fn record_own(&self, form: &Arc<Form>, programs: Programs) -> Result<Arc<SizedGraph>, String> {
        let program = programs.list.first().ok_or("there is no program for this size")?;
        let graph = self.executor.record(program, &form.layout, self.site.place.address())?;
        let (form, site, programs) = (Arc::clone(form), Arc::clone(&self.site), GraphPrograms::Own(programs));
        Ok(Arc::new(SizedGraph { graph, form, programs, site }))
    }
}

/// A model on one device in one size.
pub(crate) struct SizedGraph {
    // The order is that of dropping: the graph before what it is made of and the addresses that it names.
    pub(crate) graph: CudaGraph,
    pub(crate) form: Arc<Form>,
    #[allow(dead_code, reason = "held while there is the graph")]
    programs: GraphPrograms,
    #[allow(dead_code, reason = "held while there is the graph")]
    site: Arc<Site>,
}

/// Whose program a graph is made of.
#[allow(dead_code, reason = "held while there is the graph")]
enum GraphPrograms {
    OfModel(Arc<CudaModel>),
    Own(Programs),
}

/// A model of that name and content: its own addresses and graphs, everything else shared with its likes.
struct Instance {
    signature: ModelSignature,
    /// As the engine's executors.
    devices: Vec<Arc<OnDevice>>,
    /// In each division.
    count: usize,
    division: Arc<[AtomicUsize]>,
    /// Where inputs leave dimensions open.
    open: Option<Arc<OpenModel>>,
    /// What the host computes behind the device.
    tail: Option<Arc<Tail>>,
    model: Arc<CudaModel>,
}

impl Prepared for Instance {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn weight_bytes(&self) -> u64 {
        self.model.weight_bytes as u64
    }

    fn precision(&self) -> Option<Precision> {
        Some(self.model.precision)
    }

    fn is_provisional(&self) -> bool {
        self.model.provisional
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.load_onto(device, self.devices.iter().skip(device as usize).step_by(self.count))
    }

    fn load_in(&self, division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.load_onto(device, self.devices.get(division * self.count + device as usize).into_iter())
    }

    fn guesses_shapes(&self) -> bool {
        self.model.guessed
    }

    fn end_on_host(&self) -> Option<&str> {
        self.tail.as_ref().map(|tail| tail.said.as_str())
    }

    fn expect(&self, shapes: &[&[i64]]) {
        let sizes = &self.model.sizes;
        if let (Some(open), Ok(own)) = (&self.open, sizes.of(shapes))
            && sizes.find(own).is_none()
        {
            open.expect(own);
        }
    }
}

impl Instance {
    /// Loads the weights for shares that stand for a device, one in each division.
    fn load_onto<'a>(
        &self,
        device: u32,
        shares: impl Iterator<Item = &'a Arc<OnDevice>>,
    ) -> Result<Box<dyn Loaded>, EngineError> {
        let shares: Vec<Arc<OnDevice>> = shares.cloned().collect();
        let count = self.count;
        let on = shares.first().filter(|_| (device as usize) < count);
        let on = on.ok_or_else(|| EngineError::Load(format!("there is no device {device}, only {count}")))?;
        let tail = self.tail.as_ref().map(|tail| tail.load(device)).transpose()?;
        // The shares of a GPU have weights in common, whatever it is divided into.
        let mut resident = on.site.resident.lock().unwrap_or_else(PoisonError::into_inner);
        let weights = match resident.upgrade() {
            Some(weights) => weights,
            None => {
                let (blob, bytes) = (&self.model.blob, self.model.weight_bytes);
                let loaded =
                    LoadedWeights::load(&on.site.place, blob, bytes, &on.executor.load).map_err(EngineError::Load)?;
                Arc::new(loaded)
            }
        };
        *resident = Arc::downgrade(&weights);
        drop(resident);
        let (division, model, open) = (Arc::clone(&self.division), Arc::clone(&self.model), self.open.clone());
        let device = device as usize;
        Ok(Box::new(CudaLoaded { weights: Some(weights), shares, division, device, count, open, tail, model }))
    }
}

struct CudaLoaded {
    /// There until it is dropped.
    weights: Option<Arc<LoadedWeights>>,
    /// Where its batches are computed: by division, or one.
    shares: Vec<Arc<OnDevice>>,
    division: Arc<[AtomicUsize]>,
    device: usize,
    /// Of devices.
    count: usize,
    open: Option<Arc<OpenModel>>,
    tail: Option<LoadedTail>,
    model: Arc<CudaModel>,
}

impl CudaLoaded {
    /// Where batches run in the division that is in force.
    fn on(&self) -> &OnDevice {
        self.shares.get(self.division[self.device].load(Ordering::Acquire)).unwrap_or(&self.shares[0])
    }

    /// Stages a batch in a graph that it fits into.
    fn stage_in(
        &self,
        on: &OnDevice,
        graph: &Arc<SizedGraph>,
        own: Size,
        inputs: Vec<Input>,
    ) -> Result<Box<dyn Staged>, EngineError> {
        let (executor, weights, sized) = (Arc::clone(&on.executor), self.weights(), (Arc::clone(graph), own));
        self.with_tail(inputs, move |inputs| {
            let batch = set_out(&executor, weights, sized, inputs).map_err(EngineError::Execute)?;
            Ok(Box::new(batch))
        })
    }

    /// Stages a batch and what the host computes behind it.
    fn with_tail(
        &self,
        inputs: Vec<Input>,
        stage: impl FnOnce(Vec<Input>) -> Result<Box<dyn Staged>, EngineError> + Send + 'static,
    ) -> Result<Box<dyn Staged>, EngineError> {
        match &self.tail {
            Some(tail) => Ok(tail.clone().behind(inputs, stage)),
            None => stage(inputs),
        }
    }

    fn weights(&self) -> Arc<LoadedWeights> {
        Arc::clone(self.weights.as_ref().expect("P6: weights are there until they are dropped"))
    }
}

/// Lets a batch set out that was checked, in a graph that was found for it.
pub(crate) fn set_out(
    executor: &Arc<CudaExecutor>,
    weights: Arc<LoadedWeights>,
    sized: (Arc<SizedGraph>, Size),
    inputs: Vec<Input>,
) -> Result<CudaBatch, String> {
    let pieces: Vec<Vec<&[u8]>> =
        inputs.iter().map(|input| input.pieces.iter().map(|piece| &piece[..]).collect()).collect();
    // SAFETY: the batch holds the inputs, and bytes never move; they were checked, and the graph was found for them.
    let mut batch = unsafe { CudaBatch::stage(executor, weights, sized, &pieces)? };
    batch.hold(inputs);
    Ok(batch)
}

impl Loaded for CudaLoaded {
    fn there_at(&self) -> Option<Instant> {
        None
    }

    /// Of what the host computes: a kernel can't be broken off.
    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        let of_open = self.open.as_ref().and_then(|open| open.breaker(self.on().position % self.count));
        match (of_open, self.tail.as_ref().and_then(LoadedTail::breaker)) {
            (Some(one), Some(other)) => Some(Arc::new(EitherBreaker(one, other))),
            (one, other) => one.or(other),
        }
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        let (on, pieces) = (self.on(), inputs.in_pieces()?);
        let sizes = &self.model.sizes;
        let own = sizes.check(&pieces).map_err(EngineError::Unfit)?;
        if let Some(which) = sizes.find(own) {
            return self.stage_in(on, &on.graphs[which], own, pieces);
        }
        let Some(open) = &self.open else { return Err(EngineError::Unfit(sizes.refusal(own))) };
        let (found, reason) = open.find(own, on.position);
        let fewer = match found {
            Found::Ready(graph) => return self.stage_in(on, &graph, own, pieces),
            Found::Fewer(graph) => Some(graph),
            Found::Nothing => sizes.find_fewer(own).map(|which| Arc::clone(&on.graphs[which])),
        };
        let whole = self.tail.as_ref().map_or_else(Vec::new, |_| pieces.clone());
        match fewer.and_then(|graph| BatchInParts::new(&on.executor, self.weights(), (graph, own), pieces)) {
            Some(batch) => self.with_tail(whole, |_| Ok(Box::new(batch))),
            // The whole model, its end included.
            None => open.stand_in(on.position % self.count, inputs, reason),
        }
    }
}

impl Drop for CudaLoaded {
    fn drop(&mut self) {
        // Under the lock: a load on another share must not map what is just being unmapped.
        let _resident = self.shares[0].site.resident.lock().unwrap_or_else(PoisonError::into_inner);
        self.weights = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_which_nobody_computes_stays_what_it_is_in_another_division() {
        let divisions = [vec![Some("whole"), None], vec![Some("small"), Some("large")]];
        assert_eq!(in_every_division(&divisions).unwrap(), ["whole", "large", "small", "large"]);
        let refused = in_every_division(&[vec![Some("whole"), None]]).unwrap_err();
        assert_eq!(refused, "device 1 has no share in any division");
    }

    #[test]
    fn without_a_gpu_it_says_what_is_missing() {
        // Where everything is there, there is nothing to say.
        if crate::toolkit::missing().is_some() {
            let said = CudaEngine::new(&CudaOptions::default()).err().unwrap().to_string();
            assert!(said.starts_with("CUDA is not available: ") && said.contains("missing"), "{said}");
        }
    }
}
