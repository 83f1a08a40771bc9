//! Replays of graphs: whether they survive UNLOAD and LOAD, and how even their times are.

use super::probe::{Probe, replay, spinning};
use crate::Attempt;
use crate::figures::{Clocks, SpanQuantiles, micros, repeat};
use engine_cuda::tools::{
    CudaGraph, CudaStream, DeviceMemory, DriverError, Gpu, LoadedWeights, PAGE_BYTES, Partition, Pinned, Region, Turn,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// Both.
pub(crate) fn run(replays: usize) -> Attempt<Value> {
    let gpu = Gpu::open(0)?;
    let memory = DeviceMemory::take(&gpu, 4096)?;
    let probe = Probe::compile()?;
    graphs_survive(&gpu, &memory, &probe)?;
    jitter(&gpu, &memory, &probe, replays)
}

/// A graph computes the same after its weights went and came back on other pages.
fn graphs_survive(gpu: &Arc<Gpu>, memory: &Arc<DeviceMemory>, probe: &Probe) -> Attempt<()> {
    const COUNT: usize = 3_000_000;
    let stream = CudaStream::new(&Partition::whole(gpu), Turn::Second)?;
    let mut blob = Pinned::new(gpu, 4 * COUNT)?;
    let mut input = Pinned::new(gpu, 4 * COUNT)?;
    for index in 0..COUNT {
        blob[4 * index..4 * index + 4].copy_from_slice(&(index as f32).to_le_bytes());
        input[4 * index..4 * index + 4].copy_from_slice(&((index % 7) as f32).to_le_bytes());
    }
    let mut buffers = Region::new(memory, 1 << 30)?;
    buffers.grow(8 * COUNT)?;
    let (inputs, outputs) = (buffers.address(), buffers.address() + 4 * COUNT as u64);
    let place = Arc::new(memory.place(4 * COUNT)?);
    let graph = CudaGraph::record::<DriverError>(&stream, |stream| {
        probe.scale(stream, place.address(), inputs, outputs, COUNT as u32)
    })?;
    let mut output = Pinned::new(gpu, 4 * COUNT)?;
    let other = Arc::new(memory.place(PAGE_BYTES)?);
    let mut held = Vec::new();
    for round in 0..3 {
        let weights = LoadedWeights::load(&place, &blob, 4 * COUNT, &stream)?;
        output.fill(0);
        // SAFETY: everything that the graph names is there until the stream is waited for.
        unsafe {
            stream.copy_in(inputs, input.start(), 4 * COUNT)?;
            graph.launch(&stream)?;
            stream.copy_out(&output, 0, outputs, 4 * COUNT)?;
        }
        stream.wait()?;
        let wrong = output
            .chunks_exact(4)
            .enumerate()
            .find(|(index, bytes)| **bytes != ((index % 7) as f32 * *index as f32).to_le_bytes());
        if let Some((index, _)) = wrong {
            return Err(format!("round {round}: element {index} is wrong").into());
        }
        drop(weights);
        // Somebody else takes a page in between, so that the next round gets others.
        if round == 0 {
            held.push(LoadedWeights::load(&other, &blob, PAGE_BYTES, &stream)?);
        }
    }
    println!("a graph's outputs are right after UNLOAD and LOAD on other pages");
    Ok(())
}

/// How even a graph's replays are, by themselves and while weights are loaded.
fn jitter(gpu: &Arc<Gpu>, memory: &Arc<DeviceMemory>, probe: &Probe, replays: usize) -> Attempt<Value> {
    let whole = Partition::whole(gpu);
    let stream = CudaStream::new(&whole, Turn::Second)?;
    let mut seen = Region::new(memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let graph = spinning(probe, &stream, 132, seen.address())?;
    replay(&graph, &stream, 1000)?;
    let alone = replay(&graph, &stream, replays)?;
    alone.print(&format!("{replays} replays alone"));
    let (stop, loaded) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut blob = Pinned::new(gpu, 102_000_000)?;
    blob.fill(1);
    let place = Arc::new(memory.place(102_000_000)?);
    let copying = CudaStream::new(&whole, Turn::Second)?;
    let mut small = Region::new(memory, PAGE_BYTES)?;
    small.grow(PAGE_BYTES)?;
    let copy = || {
        let start = Instant::now();
        // SAFETY: both are larger; the copy is waited for.
        unsafe { copying.copy_in(small.address(), blob.start(), 602_112)? };
        copying.wait()?;
        Ok(micros(start))
    };
    let copy_alone = repeat(2000, copy)?;
    println!("a copy of 602112 bytes alone: {copy_alone}");
    let (with_loads, copy_with_loads, load_us) =
        std::thread::scope(|scope| -> Attempt<(Clocks, SpanQuantiles, f64)> {
            let loader = scope.spawn(|| -> Result<f64, String> {
                let stream =
                    CudaStream::new(&Partition::whole(gpu), Turn::Last).map_err(|refused| refused.to_string())?;
                let start = Instant::now();
                while !stop.load(Ordering::Relaxed) {
                    drop(LoadedWeights::load(&place, &blob, 102_000_000, &stream)?);
                    loaded.fetch_add(1, Ordering::Relaxed);
                }
                Ok(micros(start))
            });
            let measured = replay(&graph, &stream, replays);
            let copies = repeat(2000, copy);
            stop.store(true, Ordering::Relaxed);
            let span = loader.join().expect("the loader doesn't panic")?;
            Ok((measured?, copies?, span / f64::from(loaded.load(Ordering::Relaxed))))
        })?;
    println!("a copy of 602112 bytes while weights are loaded: {copy_with_loads}");
    println!(
        "meanwhile {} loads of 102 MB, one each {load_us:.0} us = {:.1} GB/s",
        loaded.load(Ordering::Relaxed),
        102e3 / load_us
    );
    with_loads.print(&format!("{replays} replays while weights are loaded"));
    Ok(json!({
        "alone": alone.json(),
        "while_loading": with_loads.json(),
        "copy_alone": copy_alone.json(),
        "copy_while_loading": copy_with_loads.json(),
        "load_gb_per_s": 102e3 / load_us,
    }))
}
