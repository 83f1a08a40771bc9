//! Measures the runtime under the kernels on a GPU: how inputs are fetched, loads and unloads, the jitter of graph replays with and without loads
//! beside them, shares and what changing them takes. Prints what `docs/benchmarks-gpu.md` quotes.
//!
//! `cargo run --release -p engine-cuda --example runtime [REPLAYS [MODEL.onnx [PRECISION [BATCH,...]]]]`: with a model, also what its
//! batches and loads take through the engine, with inputs in plain memory and in the pool, and its jitter beside that of a graph of one kernel that takes
//! as long. In place of the number, `fetches`: only how inputs are fetched; `flow`: only batches one behind another, alone and beside kernels of somebody else,
//! each with its own outputs; `exec`: only 100,000 graphs of batch 1 by our clock, and as many empty ones.
#![allow(unsafe_code, reason = "kernels are launched by hand; each block says why it is sound")]

use base::{Precision, TensorSpec, element_count};
use bytes::Bytes;
use cudarc::driver::sys;
use engine::{
    Compute, DeviceTimes, Engine, EngineError, HostBuffer, HostMemory, Input, Inputs, Loaded, ModelSource, Prepared,
    Staged, Tensor, execute,
};
use engine_cuda::driver::{Address, Gpu, Pinned, Refused, check};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use engine_cuda::fetch::{Fetcher, MOST_PIECES, Piece, Waiting};
use engine_cuda::memory::{Memory, PAGE_BYTES, Place, Region, Weights};
use engine_cuda::pool::Pool;
use engine_cuda::shares::Partition;
use engine_cuda::streams::{Event, Graph, Stream, Turn};
use engine_cuda::toolkit::Toolkit;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const KERNELS: &str = r#"
extern "C" __global__ void spin(unsigned long long cycles, unsigned int* seen) {
    long long start = clock64();
    unsigned int sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) seen[sm] = 1u;
    while (clock64() - start < (long long)cycles) {}
}
extern "C" __global__ void scale(const float* weights, const float* in, float* out, unsigned int count) {
    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        out[i] = in[i] * weights[i];
}
"#;

/// Kernels that run in whichever context the stream has.
struct Kernels {
    spin: sys::CUkernel,
    scale: sys::CUkernel,
}

// SAFETY: the handles are names; the driver's calls with them may come from any thread.
unsafe impl Sync for Kernels {}

impl Kernels {
    fn compile() -> Outcome<Self> {
        let options = cudarc::nvrtc::CompileOptions { arch: Some("compute_90"), ..Default::default() };
        let ptx = CString::new(cudarc::nvrtc::compile_ptx_with_opts(KERNELS, options)?.to_src())?;
        let mut library = null_mut();
        // SAFETY: the text ends with a zero; no options; the library is never unloaded.
        unsafe {
            let loaded = sys::cuLibraryLoadData(
                &raw mut library,
                ptx.as_ptr().cast(),
                null_mut(),
                null_mut(),
                0,
                null_mut(),
                null_mut(),
                0,
            );
            check("cuLibraryLoadData", loaded)?;
            let kernel = |name: &std::ffi::CStr| {
                let mut kernel = null_mut();
                check("cuLibraryGetKernel", sys::cuLibraryGetKernel(&raw mut kernel, library, name.as_ptr()))
                    .map(|()| kernel)
            };
            Ok(Self { spin: kernel(c"spin")?, scale: kernel(c"scale")? })
        }
    }

    fn spin(&self, stream: &Stream, blocks: u32, cycles: u64, seen: Address) -> Result<(), Refused> {
        launch(
            self.spin,
            stream,
            blocks,
            &mut [(&raw const cycles).cast_mut().cast(), (&raw const seen).cast_mut().cast()],
        )
    }

    fn scale(
        &self,
        stream: &Stream,
        weights: Address,
        input: Address,
        output: Address,
        count: u32,
    ) -> Result<(), Refused> {
        let [a, b, c] = [&raw const weights, &raw const input, &raw const output].map(|value| value.cast_mut().cast());
        launch(self.scale, stream, 132, &mut [a, b, c, (&raw const count).cast_mut().cast()])
    }
}

fn launch(kernel: sys::CUkernel, stream: &Stream, blocks: u32, parameters: &mut [*mut c_void]) -> Result<(), Refused> {
    // SAFETY: the parameters are those of the kernel, which the callers above know; the driver copies them.
    unsafe {
        let started = sys::cuLaunchKernel(
            kernel.cast(),
            blocks,
            1,
            1,
            128,
            1,
            1,
            0,
            stream.raw(),
            parameters.as_mut_ptr(),
            null_mut(),
        );
        check("cuLaunchKernel", started)
    }
}

/// Quantiles of what was measured, in microseconds.
struct Times(Vec<f64>);

impl Times {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        Self(times)
    }

    fn at(&self, quantile: f64) -> f64 {
        self.0[((self.0.len() as f64 * quantile) as usize).min(self.0.len() - 1)]
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ratio = |quantile| self.at(quantile) / self.at(0.5);
        write!(
            f,
            "p50 {:9.1} us, p99 {:9.1}, p99.9/p50 {:.3}, p99.99/p50 {:.3}, max/p50 {:.2}",
            self.at(0.5),
            self.at(0.99),
            ratio(0.999),
            ratio(0.9999),
            ratio(1.0)
        )
    }
}

fn micros(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e6
}

fn repeat(count: usize, mut work: impl FnMut() -> Outcome<f64>) -> Outcome<Times> {
    (0..count).map(|_| work()).collect::<Outcome<Vec<f64>>>().map(Times::of)
}

fn main() -> Outcome<()> {
    let first = std::env::args().nth(1);
    let part = first.clone().filter(|part| ["fetches", "flow", "exec"].contains(&part.as_str()));
    let only_fetches = part.as_deref() == Some("fetches");
    let replays = first.filter(|_| part.is_none()).map_or(Ok(20_000), |text| text.parse())?;
    let gpu = Gpu::open(0)?;
    if part.is_some() && !only_fetches {
        let file =
            std::env::args().nth(2).ok_or("which model? `flow` and `exec` measure one: runtime exec MODEL.onnx")?;
        let measure = if part.as_deref() == Some("flow") { flow } else { exec };
        return measure(&gpu, file.into());
    }
    println!(
        "{}, driver {}, {} multiprocessors, {} bytes",
        gpu.name, gpu.driver, gpu.multiprocessors, gpu.memory_bytes
    );
    let start = Instant::now();
    let memory = Memory::take(&gpu, 4096)?;
    println!("4096 pages taken and addresses reserved in {:.0} us", micros(start));
    fetches(&gpu, &memory)?;
    if only_fetches {
        return Ok(());
    }
    let kernels = Kernels::compile()?;
    loads(&gpu, &memory)?;
    graphs_survive(&gpu, &memory, &kernels)?;
    jitter(&gpu, &memory, &kernels, replays.min(5000))?;
    shares(&gpu, &memory, &kernels)?;
    let Some(file) = std::env::args().nth(2) else { return Ok(()) };
    drop(memory);
    model(&gpu, &kernels, file.into(), replays)
}

/// Numbers that look random, the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// A buffer of the pool with these bytes, behind so many others.
fn pooled(pool: &dyn HostMemory, skipped: usize, bytes: &[u8]) -> Outcome<HostBuffer> {
    let mut buffer = pool.take(skipped + bytes.len()).ok_or("the pool has no room")?;
    let fits = buffer.append(&vec![0xee; skipped]) && buffer.append(bytes);
    fits.then_some(buffer).ok_or_else(|| "the buffer is too small".into())
}

/// Whether what is fetched from the pool arrives, from and to all misalignments, beside neighbours that must stay as they are; and how fast.
fn fetches(gpu: &Arc<Gpu>, memory: &Arc<Memory>) -> Outcome<()> {
    const ROOM: usize = 16 << 20;
    const IMAGE: usize = 602_112;
    let stream = Stream::new(&Partition::whole(gpu), Turn::Second)?;
    let folder = tempfile::tempdir()?;
    let fetcher = Fetcher::new(&Toolkit::open(folder.path())?)?;
    let pool = Pool::new(Pinned::new(gpu, 64 << 20)?);
    let mut region = Region::new(memory, ROOM)?;
    region.grow(ROOM)?;
    let arrived = Pinned::new(gpu, ROOM)?;
    let mut numbers = Numbers(1);
    let content: Vec<u8> = (0..1 << 20).map(|_| numbers.below(256) as u8).collect();
    let mut pieces = 0;
    for round in 0..256 {
        let mut expected = vec![0xa5; ROOM];
        let (mut waiting, mut held, mut to) = (Waiting::default(), Vec::new(), round / 16);
        for number in 0..1 + round % MOST_PIECES {
            // The first of each round has the alignments that are due, short and long ones come behind it.
            let skipped = if number == 0 { round % 16 } else { numbers.below(16) };
            let bytes = match number % 3 {
                0 => numbers.below(IMAGE),
                1 => numbers.below(64),
                _ => numbers.below(40_000),
            };
            let data = &content[numbers.below(content.len() - bytes)..][..bytes];
            // What is too short for the pool lies in the middle of something longer.
            let longer = [data, &vec![0xdd; (16usize << 10).saturating_sub(bytes)]].concat();
            let buffer = pooled(&pool, skipped, &longer)?;
            waiting.push(Piece::new(buffer.as_ref()[skipped..].as_ptr(), region.address() + to as u64, bytes));
            expected[to..to + bytes].copy_from_slice(data);
            held.push(buffer);
            to += bytes + numbers.below(3) * numbers.below(40);
            pieces += 1;
        }
        // SAFETY: all buffers are in the pool and held, and the region is larger than where the last piece ends; everything is waited for.
        unsafe {
            check("cuMemsetD8Async", sys::cuMemsetD8Async(region.address(), 0xa5, ROOM, stream.raw()))?;
            fetcher.launch(&stream, &mut waiting)?;
            stream.copy_out(&arrived, 0, region.address(), ROOM)?;
        }
        stream.wait()?;
        if let Some(position) = (0..ROOM).find(|&position| arrived[position] != expected[position]) {
            return Err(format!("fetches, round {round}: byte {position} is wrong").into());
        }
    }
    println!("fetches: {pieces} pieces at all misalignments arrived, and nothing beside them was touched");
    for (count, skipped) in [(1, 0), (1, 5), (1, 148), (16, 0), (16, 5)] {
        let buffers =
            (0..count).map(|_| pooled(&pool, skipped, &content[..IMAGE])).collect::<Outcome<Vec<HostBuffer>>>()?;
        let mut waiting = Waiting::default();
        let times = repeat(1000, || {
            let start = Instant::now();
            for (number, buffer) in buffers.iter().enumerate() {
                let to = region.address() + (number * IMAGE) as u64;
                waiting.push(Piece::new(buffer.as_ref()[skipped..].as_ptr(), to, IMAGE));
            }
            // SAFETY: as above.
            unsafe { fetcher.launch(&stream, &mut waiting)? };
            stream.wait()?;
            Ok(micros(start))
        })?;
        let rate = (count * IMAGE) as f64 / times.at(0.5) / 1e3;
        println!("fetching {count} x {IMAGE} bytes, {skipped} bytes into their buffers: {times} = {rate:.1} GB/s");
    }
    Ok(())
}

/// LOAD and UNLOAD by size and by how a load is cut, beside one plain copy of the same bytes.
fn loads(gpu: &Arc<Gpu>, memory: &Arc<Memory>) -> Outcome<()> {
    let whole = Partition::whole(gpu);
    let stream = Stream::new(&whole, Turn::Last)?;
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
        let mut load = |place: &Arc<Place>| {
            let start = Instant::now();
            let weights = Weights::load(place, &blob, bytes, &stream)?;
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
        let (share, unload) = (|times: &Times| 100.0 * copy.at(0.5) / times.at(0.5), Times::of(unloads));
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
    }
    Ok(())
}

/// A graph computes the same after its weights went and came back on other pages.
fn graphs_survive(gpu: &Arc<Gpu>, memory: &Arc<Memory>, kernels: &Kernels) -> Outcome<()> {
    const COUNT: usize = 3_000_000;
    let stream = Stream::new(&Partition::whole(gpu), Turn::Second)?;
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
    let graph = Graph::record::<Refused>(&stream, |stream| {
        kernels.scale(stream, place.address(), inputs, outputs, COUNT as u32)
    })?;
    let mut output = Pinned::new(gpu, 4 * COUNT)?;
    let other = Arc::new(memory.place(PAGE_BYTES)?);
    let mut held = Vec::new();
    for round in 0..3 {
        let weights = Weights::load(&place, &blob, 4 * COUNT, &stream)?;
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
            held.push(Weights::load(&other, &blob, PAGE_BYTES, &stream)?);
        }
    }
    println!("a graph's outputs are right after UNLOAD and LOAD on other pages");
    Ok(())
}

const NODES: u32 = 50;

/// A graph of 50 short kernels, about half a millisecond in all.
fn spinning(kernels: &Kernels, stream: &Stream, blocks: u32, seen: Address) -> Result<Graph, Refused> {
    Graph::record(stream, |stream| (0..NODES).try_for_each(|_| kernels.spin(stream, blocks, 16_000, seen)))
}

/// Replays a graph: what each took by the device's clock and by ours.
fn replay(graph: &Graph, stream: &Stream, count: usize) -> Outcome<(Times, Times)> {
    let events = [Event::new(stream.partition())?, Event::new(stream.partition())?];
    let (mut device, mut wall) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        let start = Instant::now();
        events[0].record(stream)?;
        // SAFETY: what the graph names lives longer than this function.
        unsafe { graph.launch(stream)? };
        events[1].record(stream)?;
        events[1].wait()?;
        wall.push(micros(start));
        device.push(events[1].micros_since(&events[0])?);
    }
    Ok((Times::of(device), Times::of(wall)))
}

fn jitter(gpu: &Arc<Gpu>, memory: &Arc<Memory>, kernels: &Kernels, replays: usize) -> Outcome<()> {
    let whole = Partition::whole(gpu);
    let stream = Stream::new(&whole, Turn::Second)?;
    let mut seen = Region::new(memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let graph = spinning(kernels, &stream, 132, seen.address())?;
    replay(&graph, &stream, 1000)?;
    let (device, wall) = replay(&graph, &stream, replays)?;
    println!("{replays} replays alone, device: {device}\n{replays} replays alone, wall:   {wall}");
    let (stop, loaded) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut blob = Pinned::new(gpu, 102_000_000)?;
    blob.fill(1);
    let place = Arc::new(memory.place(102_000_000)?);
    let copying = Stream::new(&whole, Turn::Second)?;
    let mut small = Region::new(memory, PAGE_BYTES)?;
    small.grow(PAGE_BYTES)?;
    let copy = || {
        let start = Instant::now();
        // SAFETY: both are larger; the copy is waited for.
        unsafe { copying.copy_in(small.address(), blob.start(), 602_112)? };
        copying.wait()?;
        Ok(micros(start))
    };
    println!("a copy of 602112 bytes alone: {}", repeat(2000, copy)?);
    let beside = std::thread::scope(|scope| -> Outcome<(Times, Times)> {
        let loader = scope.spawn(|| -> Result<f64, String> {
            let stream = Stream::new(&Partition::whole(gpu), Turn::Last).map_err(|refused| refused.to_string())?;
            let start = Instant::now();
            while !stop.load(Ordering::Relaxed) {
                drop(Weights::load(&place, &blob, 102_000_000, &stream)?);
                loaded.fetch_add(1, Ordering::Relaxed);
            }
            Ok(micros(start))
        });
        let measured = replay(&graph, &stream, replays);
        let copies = repeat(2000, copy);
        stop.store(true, Ordering::Relaxed);
        let span = loader.join().expect("the loader doesn't panic")?;
        println!("a copy of 602112 bytes beside loads: {}", copies?);
        let each = span / f64::from(loaded.load(Ordering::Relaxed));
        println!(
            "beside: {} loads of 102 MB, one each {each:.0} us = {:.1} GB/s",
            loaded.load(Ordering::Relaxed),
            102e3 / each
        );
        measured
    })?;
    println!(
        "{replays} replays beside loads, device: {}\n{replays} replays beside loads, wall:   {}",
        beside.0, beside.1
    );
    Ok(())
}

/// How many multiprocessors a graph ran on.
fn used(stream: &Stream, graph: &Graph, seen: &Region, gpu: &Arc<Gpu>) -> Outcome<u32> {
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

fn shares(gpu: &Arc<Gpu>, memory: &Arc<Memory>, kernels: &Kernels) -> Outcome<()> {
    let mut seen = Region::new(memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let primary = Stream::new(&Partition::whole(gpu), Turn::Second)?;
    let on_primary = spinning(kernels, &primary, 528, seen.address())?;
    println!("whole device: a graph ran on {} multiprocessors", used(&primary, &on_primary, &seen, gpu)?);
    for shares in [&[0.5, 0.5][..], &[0.25, 0.75], &[0.2, 0.3, 0.5], &[0.1]] {
        let start = Instant::now();
        let partitions = Partition::divide(gpu, shares)?;
        let divided = micros(start);
        let streams =
            partitions.iter().map(|partition| Stream::new(partition, Turn::Second)).collect::<Result<Vec<_>, _>>()?;
        let with_streams = micros(start);
        let graphs = streams
            .iter()
            .map(|stream| spinning(kernels, stream, 528, seen.address()))
            .collect::<Result<Vec<_>, _>>()?;
        let with_graphs = micros(start);
        let mut lines = Vec::new();
        for (stream, graph) in streams.iter().zip(&graphs) {
            let own = used(stream, graph, &seen, gpu)?;
            let foreign = used(stream, &on_primary, &seen, gpu)?;
            let elsewhere = used(&primary, graph, &seen, gpu)?;
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
        println!("  gone in {:.0} us", micros(start));
    }
    change_under_load(gpu, kernels, &seen)
}

/// One share runs on while the other is made anew in another size.
fn change_under_load(gpu: &Arc<Gpu>, kernels: &Kernels, seen: &Region) -> Outcome<()> {
    let mut partitions = Partition::divide(gpu, &[0.5, 0.25])?;
    let stays = Stream::new(&partitions.remove(0), Turn::Second)?;
    let graph = spinning(kernels, &stays, 528, seen.address())?;
    replay(&graph, &stays, 500)?;
    let (alone, _) = replay(&graph, &stays, 4000)?;
    let stop = AtomicBool::new(false);
    let (during, changes) = std::thread::scope(|scope| -> Outcome<(Times, Times)> {
        let changer = scope.spawn(|| -> Result<Vec<f64>, String> {
            let mut times = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let start = Instant::now();
                let mut parts = Partition::divide(gpu, &[0.5, if times.len() % 2 == 0 { 0.25 } else { 0.5 }])?;
                let changed = (|| {
                    let stream = Stream::new(&parts.remove(1), Turn::Second)?;
                    let graph = spinning(kernels, &stream, 528, seen.address())?;
                    // SAFETY: what the graph names outlives this function.
                    unsafe { graph.launch(&stream)? };
                    stream.wait()
                })();
                changed.map_err(|refused: Refused| refused.to_string())?;
                times.push(micros(start));
            }
            Ok(times)
        });
        let during = replay(&graph, &stays, 4000);
        stop.store(true, Ordering::Relaxed);
        let changes = changer.join().expect("the changer doesn't panic")?;
        Ok((during?.0, Times::of(changes)))
    })?;
    println!("a share that stays, alone:            {alone}");
    println!("a share that stays, others changing:  {during}");
    println!(
        "a change with graph and first run: p50 {:.0} us, p99 {:.0} ({} changes)",
        changes.at(0.5),
        changes.at(0.99),
        changes.0.len()
    );
    Ok(())
}

/// Only batches that are staged while others are computed: whether each has its own outputs, and what one takes; the same while kernels of somebody else hold some of the
/// multiprocessors, which makes all kernels end at other times than usual.
fn flow(gpu: &Arc<Gpu>, file: PathBuf) -> Outcome<()> {
    let (engine, _, prepared, sizes) = prepare(file)?;
    let mut loaded = prepared.load(0)?;
    let memory = engine.host_memory().ok_or("the engine has no pool")?;
    let kernels = Kernels::compile()?;
    let other = Memory::take(gpu, 0)?;
    let mut seen = Region::new(&other, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    for batch in sizes {
        let inputs = inputs(&*prepared, batch);
        let (device, _) = executions(loaded.as_mut(), &mut &*inputs, 300)?;
        println!("batch {batch}, device: {device}");
        one_behind_another(loaded.as_mut(), &*memory, &inputs, batch, 4000)?;
        let stop = AtomicBool::new(false);
        let disturbed = std::thread::scope(|scope| {
            let disturber = scope.spawn(|| -> Result<(), Refused> {
                let stream = Stream::new(&Partition::whole(gpu), Turn::First)?;
                for turn in 0u32.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    kernels.spin(
                        &stream,
                        1 + turn * 7 % 24,
                        20_000 + u64::from(turn * 1_117 % 40_000),
                        seen.address(),
                    )?;
                    stream.wait()?;
                }
                Ok(())
            });
            let outcome = one_behind_another(loaded.as_mut(), &*memory, &inputs, batch, 4000);
            stop.store(true, Ordering::Relaxed);
            disturber.join().expect("it doesn't panic")?;
            outcome
        });
        disturbed.map_err(|wrong| format!("beside other kernels: {wrong}"))?;
    }
    Ok(())
}

/// Only EXEC by our clock: the graph of batch 1 from its launch to its end, and an empty one that takes as long.
fn exec(gpu: &Arc<Gpu>, file: PathBuf) -> Outcome<()> {
    const COUNT: usize = 100_000;
    let (engine, _, prepared, _) = prepare(file)?;
    let mut loaded = prepared.load(0)?;
    let memory = engine.host_memory().ok_or("the engine has no pool")?;
    let inputs = inputs(&*prepared, 1);
    let (device, _) = executions(loaded.as_mut(), &mut &*inputs, 1000)?;
    let wall = from_launch_to_end(loaded.as_mut(), &*memory, &inputs, COUNT)?;
    println!("batch 1, its graph alone, wall: {wall}");
    empty(gpu, &Kernels::compile()?, device.at(0.5), COUNT)
}

/// Replays of a graph of one kernel that only waits.
fn empty(gpu: &Arc<Gpu>, kernels: &Kernels, micros: f64, count: usize) -> Outcome<()> {
    let stream = Stream::new(&Partition::whole(gpu), Turn::Second)?;
    let memory = Memory::take(gpu, 0)?;
    let mut seen = Region::new(&memory, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let cycles = (micros * 1980.0) as u64;
    let graph = Graph::record::<Refused>(&stream, |stream| kernels.spin(stream, 132, cycles, seen.address()))?;
    let (device, wall) = replay(&graph, &stream, count)?;
    println!("an empty graph of that length, device: {device}\nan empty graph of that length, wall:   {wall}");
    Ok(())
}

type Ready = (CudaEngine, ModelSource, Arc<dyn Prepared>, Vec<u32>);

/// The model that was asked for, ready to be loaded, with its batch sizes.
fn prepare(file: PathBuf) -> Outcome<Ready> {
    let argument = |position, default: &str| std::env::args().nth(position).unwrap_or_else(|| default.to_owned());
    let precision = Precision::from_name(&argument(3, "tf32")).ok_or("fp32, tf32 or fp16")?;
    let sizes = argument(4, "1,2,4,8,16").split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
    let cache = std::env::var_os("PUNCTUAL_CACHE_DIR").map(PathBuf::from);
    let start = Instant::now();
    let engine =
        CudaEngine::new(&CudaOptions { precision, memory_bytes: Some(8 << 30), cache, ..CudaOptions::default() })?;
    println!("{}: opened in {:.0} ms", engine.kind(), micros(start) / 1e3);
    let source = ModelSource {
        name: "model".into(),
        file,
        batch_sizes: sizes.clone(),
        max_batch: sizes.last().copied(),
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
    Ok((engine, source, prepared, sizes))
}

/// Something that looks like images, as floats.
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

/// A model through the engine, as the worker uses it.
fn model(gpu: &Arc<Gpu>, kernels: &Kernels, file: PathBuf, replays: usize) -> Outcome<()> {
    let (engine, source, prepared, sizes) = prepare(file)?;
    let start = Instant::now();
    let others = (0..100).map(|_| engine.prepare(&source)).collect::<Result<Vec<_>, _>>()?;
    println!("100 more of the same content in {:.0} ms", micros(start) / 1e3);
    let mut unloads = Vec::new();
    let loads = repeat(200, || {
        let start = Instant::now();
        let loaded = prepared.load(0)?;
        let span = micros(start);
        let start = Instant::now();
        drop(loaded);
        unloads.push(micros(start));
        Ok(span)
    })?;
    println!("load:   {loads}\nunload: {}", Times::of(unloads));
    let mut loaded = prepared.load(0)?;
    let inputs = |batch: u32| inputs(&*prepared, batch);
    let mut alone = None;
    for &batch in &sizes {
        let memory = engine.host_memory().ok_or("the engine has no pool")?;
        let inputs = inputs(batch);
        let (device, wall) = executions(loaded.as_mut(), &mut &*inputs, replays.min(2000))?;
        println!("batch {batch}, device: {device}\nbatch {batch}, wall:   {wall}");
        if batch == 1 {
            alone = Some((device.at(0.5), device.at(0.99)));
        }
        let pooled = from_the_pool(loaded.as_mut(), &*memory, &inputs, batch, if batch == 1 { replays } else { 500 })?;
        if let (1, Some((device, _))) = (batch, &pooled) {
            alone = Some((device.at(0.5), device.at(0.99)));
        }
        if batch == 1 {
            let wall = from_launch_to_end(loaded.as_mut(), &*memory, &inputs, replays)?;
            println!("batch 1, its graph alone, wall: {wall}");
        }
        one_behind_another(loaded.as_mut(), &*memory, &inputs, batch, 2000)?;
    }
    let (alone, alone_p99) = alone.ok_or("batch 1 is needed")?;
    for &batch in &sizes {
        write_outputs(loaded.as_mut(), &inputs(batch), batch)?;
    }
    empty(gpu, kernels, alone, replays)?;
    let (stop, count, start) = (AtomicBool::new(false), AtomicU32::new(0), Instant::now());
    let beside = std::thread::scope(|scope| -> Outcome<(Times, Times)> {
        let loader = scope.spawn(|| -> Result<(), EngineError> {
            while !stop.load(Ordering::Relaxed) {
                for other in &others {
                    drop(other.load(0)?);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        let memory = engine.host_memory().ok_or("the engine has no pool")?;
        let pooled = from_the_pool(loaded.as_mut(), &*memory, &inputs(1), 1, replays.div_ceil(4));
        let measured = pooled.and_then(|pooled| {
            pooled.map_or_else(|| executions(loaded.as_mut(), &mut &*inputs(1), replays.div_ceil(4)), Ok)
        });
        stop.store(true, Ordering::Relaxed);
        loader.join().expect("the loader doesn't panic")?;
        measured
    })?;
    let bytes = prepared.weight_bytes() as f64 * f64::from(count.load(Ordering::Relaxed));
    println!(
        "beside loads at {:.1} GB/s: p99 {:.3} of alone",
        bytes / micros(start) / 1e3,
        beside.0.at(0.99) / alone_p99
    );
    println!("batch 1 beside loads, device: {}\nbatch 1 beside loads, wall:   {}", beside.0, beside.1);
    Ok(())
}

/// Inputs whose rows are apart.
struct Apart(Vec<Input>);

impl Inputs for Apart {
    fn in_one_piece(&mut self, _compute: &mut Compute<'_>) -> Result<(), EngineError> {
        unreachable!("the engine takes them as they are")
    }

    fn in_pieces(&mut self) -> Vec<Input> {
        self.0.clone()
    }
}

/// The outputs of a batch.
fn outputs(loaded: &mut dyn Loaded, inputs: &mut dyn Inputs) -> Outcome<Vec<Vec<u8>>> {
    let mut outputs = Vec::new();
    execute(loaded, inputs, &mut |_, view| outputs.push(view.data.to_vec()))?;
    Ok(outputs)
}

/// What executions take by the device's clock and by ours.
fn executions(loaded: &mut dyn Loaded, inputs: &mut dyn Inputs, count: usize) -> Outcome<(Times, Times)> {
    let (mut device, mut wall) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for run in 0..count + 50 {
        let start = Instant::now();
        let times = execute(loaded, inputs, &mut |_, _| {})?;
        if run >= 50 {
            wall.push(micros(start));
            device.push(times.computing.map_or(0.0, |span| span.as_nanos() as f64 / 1e3));
        }
    }
    Ok((Times::of(device), Times::of(wall)))
}

/// The same batch with each of its rows in a buffer of the pool, somewhere behind the buffer's beginning, as requests come. The outputs must be the same.
fn from_the_pool(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    batch: u32,
    count: usize,
) -> Outcome<Option<(Times, Times)>> {
    let expected = outputs(loaded, &mut &*inputs)?;
    let Ok(mut apart) = in_the_pool(memory, inputs, batch) else {
        println!("batch {batch}: its rows are too small for the pool, or too many");
        return Ok(None);
    };
    if outputs(loaded, &mut apart)? != expected {
        return Err(format!("batch {batch}: the outputs from the pool are others").into());
    }
    let (device, wall) = executions(loaded, &mut apart, count)?;
    println!("batch {batch} from the pool, device: {device}\nbatch {batch} from the pool, wall:   {wall}");
    Ok(Some((device, wall)))
}

/// Each row of a batch in a buffer of the pool.
fn in_the_pool(memory: &dyn HostMemory, inputs: &[Tensor], batch: u32) -> Outcome<Apart> {
    let mut skipped = 101;
    let mut piece = |row: &[u8]| {
        skipped += 1;
        Ok(Bytes::from_owner(pooled(memory, skipped, row)?).slice(skipped..))
    };
    let input = |Tensor { datatype, shape, data }: &Tensor| {
        let pieces = data.chunks(data.len() / batch as usize).map(&mut piece).collect::<Outcome<_>>()?;
        Ok(Input { datatype: *datatype, shape: shape.clone(), pieces })
    };
    Ok(Apart(inputs.iter().map(input).collect::<Outcome<_>>()?))
}

/// What EXEC alone takes by our clock: inputs are there before it, and outputs aren't waited for.
fn from_launch_to_end(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    count: usize,
) -> Outcome<Times> {
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

/// Two batches in turn, each staged while the other is computed, as the worker does where orders come ahead. Each must have its own outputs.
fn one_behind_another(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    batch: u32,
    count: usize,
) -> Outcome<()> {
    let turned = |Tensor { datatype, shape, data }: &Tensor| {
        let turned = |row: &[u8]| [&row[row.len() / 2..], &row[..row.len() / 2]].concat();
        let data: Vec<u8> = data.chunks(data.len() / batch as usize).flat_map(turned).collect();
        Tensor { datatype: *datatype, shape: shape.clone(), data: data.into() }
    };
    let other: Vec<Tensor> = inputs.iter().map(turned).collect();
    let mut sets = Vec::new();
    for inputs in [inputs, &other] {
        let Ok(apart) = in_the_pool(memory, inputs, batch) else { return Ok(()) };
        sets.push((apart, outputs(loaded, &mut &*inputs)?));
    }
    if sets[0].1 == sets[1].1 {
        println!("batch {batch}: both inputs have the same outputs, which shows nothing");
    }
    let mut wrong = 0;
    let mut running: Option<(usize, Box<dyn Staged>)> = None;
    let (mut times, mut start) = (DeviceTimes::default(), Instant::now());
    for run in 0..count + 50 {
        if run == 50 {
            start = Instant::now();
        }
        let mut next = loaded.stage(&mut sets[run % 2].0)?;
        if let Some((before, mut done)) = running.take() {
            while !done.is_computed()? {
                std::hint::spin_loop();
            }
            next.start(&mut sets[run % 2].0)?;
            let mut outputs = Vec::new();
            times = done.finish(&mut |_, view| outputs.push(view.data.to_vec()))?;
            if outputs != sets[before].1 {
                let floats = |outputs: &[Vec<u8>]| {
                    let bytes = outputs[0].chunks_exact(4);
                    bytes.map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect::<Vec<f32>>()
                };
                let (got, right) = (floats(&outputs), floats(&sets[before].1));
                let row = got.len() / batch as usize;
                let rows = got.chunks(row).zip(right.chunks(row)).filter(|(got, right)| got != right).count();
                let most = got.iter().zip(&right).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                let size = right.iter().map(|x| x.abs()).fold(0.0, f32::max);
                if wrong < 3 {
                    println!(
                        "batch {batch}, run {run}: outputs are wrong in {rows} rows, by {most} of {size}; the other batch's: {}",
                        outputs == sets[1 - before].1
                    );
                }
                wrong += 1;
            }
        } else {
            next.start(&mut sets[run % 2].0)?;
        }
        running = Some((run % 2, next));
    }
    println!(
        "batch {batch}, one behind another: {:.1} us each; the last one's inputs took {}, its outputs {}",
        micros(start) / count as f64,
        times.inputs,
        times.outputs
    );
    if wrong > 0 {
        return Err(format!("batch {batch}: {wrong} of {count} had wrong outputs").into());
    }
    Ok(())
}

/// Writes inputs and outputs beside each other where `OUTPUTS` says, for a comparison with another runtime.
fn write_outputs(loaded: &mut dyn Loaded, inputs: &[Tensor], batch: u32) -> Outcome<()> {
    let Some(folder) = std::env::var_os("OUTPUTS").map(PathBuf::from) else { return Ok(()) };
    for (index, Tensor { data, .. }) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("{batch}.input{index}")), data)?;
    }
    for (index, data) in outputs(loaded, &mut &*inputs)?.into_iter().enumerate() {
        std::fs::write(folder.join(format!("{batch}.output{index}")), data)?;
    }
    Ok(())
}
