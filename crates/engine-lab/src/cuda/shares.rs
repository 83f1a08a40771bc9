//! Shares of a GPU: which multiprocessors they have, what making them takes, and what a change costs those that stay.

use super::probe::{NODES, Probe, replay, spinning};
use crate::Attempt;
use crate::figures::{SpanQuantiles, micros};
use cudarc::driver::sys;
use engine_cuda::tools::{
    CudaGraph, CudaStream, DeviceMemory, DriverError, Gpu, PAGE_BYTES, Partition, Pinned, Region, Turn, check,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// How many multiprocessors a graph ran on.
fn used(stream: &CudaStream, graph: &CudaGraph, seen: &Region, gpu: &Arc<Gpu>) -> Attempt<u32> {
    let host = Pinned::new(gpu, 4 * 256)?;
    stream.partition().enter()?;
    // SAFETY: the region is larger; everything is waited for.
    unsafe {
        check("cuMemsetD8Async", sys::cuMemsetD8Async(seen.address(), 0, 4 * 256, stream.raw()))?;
        graph.launch(stream)?;
        stream.copy_out(&host, 0, seen.address(), 4 * 256)?;
    }
    stream.wait()?;
    Ok(host.chunks_exact(4).filter(|count| **count != [0; 4]).count() as u32)
}

/// Divides the device in some ways: what that takes, and how many multiprocessors kernels are seen on.
pub(crate) fn run() -> Attempt<Value> {
    let gpu = &Gpu::open(0)?;
    let memory = &DeviceMemory::take(gpu, 4096)?;
    let probe = &Probe::compile()?;
    let mut divisions = Vec::new();
    let mut seen = Region::new(memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let primary = CudaStream::new(&Partition::whole(gpu), Turn::Second)?;
    let on_primary = spinning(probe, &primary, 528, seen.address())?;
    println!("whole device: a graph ran on {} multiprocessors", used(&primary, &on_primary, &seen, gpu)?);
    for shares in [&[0.5, 0.5][..], &[0.25, 0.75], &[0.2, 0.3, 0.5], &[0.1]] {
        let start = Instant::now();
        let partitions = Partition::divide(gpu, shares)?;
        let divided = micros(start);
        let streams = partitions
            .iter()
            .map(|partition| CudaStream::new(partition, Turn::Second))
            .collect::<Result<Vec<_>, _>>()?;
        let with_streams = micros(start);
        let graphs =
            streams.iter().map(|stream| spinning(probe, stream, 528, seen.address())).collect::<Result<Vec<_>, _>>()?;
        let with_graphs = micros(start);
        let (mut lines, mut multiprocessors, mut seen_on) = (Vec::new(), Vec::new(), Vec::new());
        for (stream, graph) in streams.iter().zip(&graphs) {
            let own = used(stream, graph, &seen, gpu)?;
            let foreign = used(stream, &on_primary, &seen, gpu)?;
            let elsewhere = used(&primary, graph, &seen, gpu)?;
            multiprocessors.push(stream.partition().multiprocessors());
            seen_on.push(own);
            lines.push(format!(
                "{} of {own} used (primary's graph here: {foreign}; this graph in the primary: {elsewhere})",
                stream.partition().multiprocessors()
            ));
        }
        println!("shares {shares:?}: {}", lines.join("; "));
        println!(
            "  contexts {divided:.0} us, with streams {with_streams:.0}, with a graph of {NODES} nodes each {with_graphs:.0}"
        );
        let start = Instant::now();
        drop((graphs, streams, partitions));
        let gone = micros(start);
        println!("  gone in {gone:.0} us");
        divisions.push(json!({
            "shares": shares,
            "multiprocessors": multiprocessors,
            "seen_on": seen_on,
            "contexts_us": divided,
            "with_streams_us": with_streams,
            "with_graphs_us": with_graphs,
            "gone_us": gone,
        }));
    }
    let change = change_under_load(gpu, probe, &seen)?;
    Ok(json!({ "divisions": divisions, "change": change }))
}

/// One share runs on while the other is made anew in another size.
fn change_under_load(gpu: &Arc<Gpu>, probe: &Probe, seen: &Region) -> Attempt<Value> {
    let mut partitions = Partition::divide(gpu, &[0.5, 0.25])?;
    let stays = CudaStream::new(&partitions.remove(0), Turn::Second)?;
    let graph = spinning(probe, &stays, 528, seen.address())?;
    replay(&graph, &stays, 500)?;
    let alone = replay(&graph, &stays, 4000)?.device;
    let stop = AtomicBool::new(false);
    let (during, changes) = std::thread::scope(|scope| -> Attempt<(SpanQuantiles, SpanQuantiles)> {
        let changer = scope.spawn(|| -> Result<Vec<f64>, String> {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let mut parts = Partition::divide(gpu, &[0.5, if times.len() % 2 == 0 { 0.25 } else { 0.5 }])?;
                let changed = (|| {
                    let stream = CudaStream::new(&parts.remove(1), Turn::Second)?;
                    let graph = spinning(probe, &stream, 528, seen.address())?;
                    // SAFETY: what the graph names outlives this function.
                    unsafe { graph.launch(&stream)? };
                    stream.wait()
                })();
                changed.map_err(|refused: DriverError| refused.to_string())?;
                times.push(micros(start));
            }
            Ok(times)
        });
        let during = replay(&graph, &stays, 4000);
        stop.store(true, Ordering::Relaxed);
        let changes = changer.join().expect("the changer doesn't panic")?;
        Ok((during?.device, SpanQuantiles::of(changes)))
    })?;
    println!("a share that stays, alone:            {alone}");
    println!("a share that stays, others change:    {during}");
    println!(
        "a change with graph and first run: p50 {:.0} us, p99 {:.0} ({} changes)",
        changes.at(0.5),
        changes.at(0.99),
        changes.count()
    );
    Ok(json!({ "alone": alone.json(), "during": during.json(), "changes": changes.json() }))
}
