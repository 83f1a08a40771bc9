//! EXEC by our clock: the graph of batch 1 from its launch to its end, and an empty graph that takes as long.

use super::probe::{Probe, replay};
use super::served::{ModelArgs, Served, executions, in_the_pool};
use crate::Attempt;
use crate::figures::{Clocks, SpanQuantiles, micros, repeat};
use engine::{HostMemory, Loaded, Tensor};
use engine_cuda::tools::{CudaGraph, CudaStream, DeviceMemory, DriverError, Gpu, PAGE_BYTES, Partition, Region, Turn};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Replays of each.
const COUNT: usize = 100_000;

pub(crate) fn run(args: &ModelArgs) -> Attempt<Value> {
    let gpu = Gpu::open(0)?;
    let served = Served::prepare(args)?;
    let mut loaded = served.prepared.load(0)?;
    let inputs = served.inputs(1);
    let device = executions(loaded.as_mut(), &mut &*inputs, 1000)?.device;
    let wall = from_launch_to_end(loaded.as_mut(), &*served.memory, &inputs, COUNT)?;
    println!("batch 1, its graph alone, wall: {wall}");
    let empty = empty(&gpu, &Probe::compile()?, device.at(0.5), COUNT)?;
    Ok(json!({ "device": device.json(), "wall": wall.json(), "empty": empty.json() }))
}

/// Replays of a graph of one kernel that only waits.
pub(crate) fn empty(gpu: &Arc<Gpu>, probe: &Probe, micros: f64, count: usize) -> Attempt<Clocks> {
    let stream = CudaStream::new(&Partition::whole(gpu), Turn::Second)?;
    let memory = DeviceMemory::take(gpu, 0)?;
    let mut seen = Region::new(&memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let cycles = (micros * 1980.0) as u64;
    let graph = CudaGraph::record::<DriverError>(&stream, |stream| probe.spin(stream, 132, cycles, seen.address()))?;
    let times = replay(&graph, &stream, count)?;
    times.print("an empty graph of that length");
    Ok(times)
}

/// What EXEC alone takes by our clock: inputs are there before it, and outputs aren't waited for.
pub(crate) fn from_launch_to_end(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    count: usize,
) -> Attempt<SpanQuantiles> {
    let mut inputs = in_the_pool(memory, inputs, 1)?;
    repeat(count, || {
        let mut batch = loaded.stage(&mut inputs)?;
        let staged = Instant::now();
        // More than one image takes.
        while micros(staged) < 60.0 {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        batch.start(&mut inputs)?;
        while !batch.is_computed()? {
            std::hint::spin_loop();
        }
        let span = micros(start);
        batch.finish(&mut |_, _| {})?;
        Ok(span)
    })
}
