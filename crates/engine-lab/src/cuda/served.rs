//! A model as the worker has it: prepared by the engine, with inputs in plain memory or in the pool.

use crate::Attempt;
use crate::figures::{Clocks, SpanQuantiles, micros};
use base::{Precision, TensorSpec, element_count};
use bytes::Bytes;
use engine::{
    Compute, Engine, EngineError, HostBuffer, HostMemory, Input, Inputs, Loaded, ModelSource, Prepared, Tensor, execute,
};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Which model is measured, and how.
#[derive(clap::Args)]
pub(crate) struct ModelArgs {
    /// Its ONNX file.
    pub(crate) model: PathBuf,
    /// fp32, tf32 or fp16.
    #[arg(long, default_value = "tf32")]
    pub(crate) precision: String,
    /// The batch sizes that it is prepared for.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16")]
    pub(crate) batches: Vec<u32>,
    /// Where compiled kernels are kept.
    #[arg(long, env = "PUNCTUAL_CACHE_DIR")]
    pub(crate) cache: Option<PathBuf>,
}

/// A model that is ready to be loaded.
pub(crate) struct Served {
    pub(crate) engine: CudaEngine,
    pub(crate) source: ModelSource,
    pub(crate) prepared: Arc<dyn Prepared>,
    pub(crate) memory: Arc<dyn HostMemory>,
}

impl Served {
    pub(crate) fn prepare(args: &ModelArgs) -> Attempt<Self> {
        let precision = Precision::from_name(&args.precision).ok_or("precision: fp32, tf32 or fp16")?;
        let start = Instant::now();
        let options = CudaOptions { memory_bytes: Some(8 << 30), cache: args.cache.clone(), ..CudaOptions::default() };
        let engine = CudaEngine::new(&options)?;
        println!("{}: opened in {:.0} ms", engine.kind(), micros(start) / 1e3);
        let source = ModelSource {
            name: "model".into(),
            file: args.model.clone(),
            batch_sizes: args.batches.clone(),
            max_batch: args.batches.last().copied(),
            precision: Some(precision),
            ..ModelSource::default()
        };
        let start = Instant::now();
        let prepared = engine.prepare(&source)?;
        println!(
            "prepared in {:.0} ms: {:?}, {} bytes of weights",
            micros(start) / 1e3,
            prepared.signature(),
            prepared.weight_bytes()
        );
        let memory = engine.host_memory().ok_or("the engine has no pool")?;
        Ok(Self { engine, source, prepared, memory })
    }

    /// Something that looks like images, as floats.
    pub(crate) fn inputs(&self, batch: u32) -> Vec<Tensor> {
        inputs(&*self.prepared, batch)
    }
}

/// A buffer of the pool with these bytes, behind so many others.
pub(crate) fn pooled(pool: &dyn HostMemory, skipped: usize, bytes: &[u8]) -> Attempt<HostBuffer> {
    let mut buffer = pool.take(skipped + bytes.len()).ok_or("the pool has no room")?;
    let fits = buffer.append(&vec![0xee; skipped]) && buffer.append(bytes);
    fits.then_some(buffer).ok_or_else(|| "the buffer is too small".into())
}

fn inputs(prepared: &dyn Prepared, batch: u32) -> Vec<Tensor> {
    let shape = |spec: &TensorSpec| {
        spec.dims.iter().map(|&dim| if dim < 0 { i64::from(batch) } else { dim }).collect::<Vec<i64>>()
    };
    let input = |spec: &TensorSpec| {
        let shape = shape(spec);
        let bytes = element_count(&shape).unwrap_or(0) * spec.datatype.size().unwrap_or(0);
        let byte = |index: usize| if index % 4 == 3 { 62 } else { (index * 37 % 251) as u8 };
        Tensor { datatype: spec.datatype, shape, data: (0..bytes).map(byte).collect() }
    };
    prepared.signature().inputs.iter().map(input).collect()
}

/// Inputs whose rows are apart.
pub(crate) struct RowsApart(Vec<Input>);

impl Inputs for RowsApart {
    fn in_one_piece(&mut self, _compute: &mut Compute<'_>) -> Result<(), EngineError> {
        unreachable!("the engine takes them as they are")
    }

    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError> {
        Ok(self.0.clone())
    }
}

/// The outputs of a batch.
pub(crate) fn outputs(loaded: &mut dyn Loaded, inputs: &mut dyn Inputs) -> Attempt<Vec<Vec<u8>>> {
    let mut outputs = Vec::new();
    execute(loaded, inputs, &mut |_, view| outputs.push(view.data.to_vec()))?;
    Ok(outputs)
}

/// What executions take by the device's clock and by ours.
pub(crate) fn executions(loaded: &mut dyn Loaded, inputs: &mut dyn Inputs, count: usize) -> Attempt<Clocks> {
    let (mut device, mut wall) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for run in 0..count + 50 {
        let start = Instant::now();
        let times = execute(loaded, inputs, &mut |_, _| {})?;
        if run >= 50 {
            wall.push(micros(start));
            device.push(times.computing.map_or(0.0, |span| span.as_nanos() as f64 / 1e3));
        }
    }
    Ok(Clocks { device: SpanQuantiles::of(device), wall: SpanQuantiles::of(wall) })
}

/// The same batch with each of its rows in a buffer of the pool, somewhere behind the buffer's beginning, as requests
/// come. The outputs must be the same.
pub(crate) fn from_the_pool(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    batch: u32,
    count: usize,
) -> Attempt<Option<Clocks>> {
    let expected = outputs(loaded, &mut &*inputs)?;
    let Ok(mut apart) = in_the_pool(memory, inputs, batch) else {
        println!("batch {batch}: its rows are too small for the pool, or too many");
        return Ok(None);
    };
    if outputs(loaded, &mut apart)? != expected {
        return Err(format!("batch {batch}: the outputs from the pool are others").into());
    }
    let times = executions(loaded, &mut apart, count)?;
    times.print(&format!("batch {batch} from the pool"));
    Ok(Some(times))
}

/// Each row of a batch in a buffer of the pool.
pub(crate) fn in_the_pool(memory: &dyn HostMemory, inputs: &[Tensor], batch: u32) -> Attempt<RowsApart> {
    let mut skipped = 101;
    let mut piece = |row: &[u8]| {
        skipped += 1;
        Ok(Bytes::from_owner(pooled(memory, skipped, row)?).slice(skipped..))
    };
    let input = |Tensor { datatype, shape, data }: &Tensor| {
        let pieces = data.chunks(data.len() / batch as usize).map(&mut piece).collect::<Attempt<_>>()?;
        Ok(Input { datatype: *datatype, shape: shape.clone(), pieces })
    };
    Ok(RowsApart(inputs.iter().map(input).collect::<Attempt<_>>()?))
}
