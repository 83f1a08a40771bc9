//! LOAD and UNLOAD of weights, by size.

use crate::Attempt;
use crate::figures::{SpanQuantiles, micros, repeat};
use engine_cuda::tools::{
    AddressRange, CudaStream, DeviceMemory, Gpu, LoadedWeights, PAGE_BYTES, Partition, Pinned, Region, Turn,
};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// LOAD and UNLOAD by size and by how a load is cut, compared with one plain copy of the same bytes.
pub(crate) fn run() -> Attempt<Value> {
    let gpu = &Gpu::open(0)?;
    let start = Instant::now();
    let memory = &DeviceMemory::take(gpu, 4096)?;
    println!("4096 pages taken and addresses reserved in {:.0} us", micros(start));
    let mut sizes = Vec::new();
    let whole = Partition::whole(gpu);
    let stream = CudaStream::new(&whole, Turn::Last)?;
    let mut plain = Region::new(memory, 1 << 30)?;
    plain.grow(600_000_000)?;
    let mut blob = Pinned::new(gpu, 600_000_000)?;
    blob.iter_mut().enumerate().for_each(|(index, byte)| *byte = (index % 251) as u8);
    for megabytes in [4, 23, 50, 102, 548] {
        let bytes = megabytes * 1_000_000;
        let copy = repeat(30, || {
            let start = Instant::now();
            // SAFETY: the region has more bytes; the blob outlives the copy, which is waited for.
            unsafe { stream.copy_in(plain.address(), blob.start(), bytes)? };
            stream.wait()?;
            Ok(micros(start))
        })?;
        println!("{megabytes} MB: copy p50 {:.0} us = {:.1} GB/s", copy.at(0.5), bytes as f64 / copy.at(0.5) / 1e3);
        let place = Arc::new(memory.place(bytes)?);
        let mut unloads = Vec::new();
        let mut load = |place: &Arc<AddressRange>| {
            let start = Instant::now();
            let weights = LoadedWeights::load(place, &blob, bytes, &stream)?;
            let span = micros(start);
            let start = Instant::now();
            drop(weights);
            unloads.push(micros(start));
            Ok(span)
        };
        let loads = repeat(100, || load(&place))?;
        // One page more each time: never the size of a slab that is there.
        let mut more = 0;
        let others = repeat(40, || {
            more += 1;
            load(&Arc::new(memory.place(bytes + more * PAGE_BYTES)?))
        })?;
        let (share, unload) =
            (|times: &SpanQuantiles| 100.0 * copy.at(0.5) / times.at(0.5), SpanQuantiles::of(unloads));
        println!(
            "  load p50 {:.0} us, p99 {:.0} = {:.1} % of the copy's bandwidth",
            loads.at(0.5),
            loads.at(0.99),
            share(&loads)
        );
        println!(
            "  with a slab made anew p50 {:.0} us, p99 {:.0} = {:.1} %",
            others.at(0.5),
            others.at(0.99),
            share(&others)
        );
        println!("  unload p50 {:.0} us, p99 {:.0}", unload.at(0.5), unload.at(0.99));
        sizes.push(json!({
            "megabytes": megabytes,
            "copy": copy.json(),
            "load": loads.json(),
            "with_new_slab": others.json(),
            "unload": unload.json(),
        }));
    }
    Ok(json!({ "sizes": sizes }))
}
