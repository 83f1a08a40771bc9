//! A model through the engine, as the worker uses it: loads, batches from plain memory and from the pool, and what
//! loads of others cost it.

use super::flow::one_behind_another;
use super::launches::{empty, from_launch_to_end};
use super::probe::Probe;
use super::served::{ModelArgs, Served, executions, from_the_pool, outputs};
use crate::Attempt;
use crate::figures::{Clocks, SpanQuantiles, micros, repeat};
use engine::{Engine, EngineError, Loaded, Prepared, Tensor};
use engine_cuda::tools::Gpu;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

/// What of a model is measured.
#[derive(clap::Args)]
pub(crate) struct ServedModelArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Executions of batch 1.
    #[arg(long, default_value_t = 20_000)]
    replays: usize,
    /// Where inputs and outputs are written, for a comparison with another runtime.
    #[arg(long)]
    outputs: Option<PathBuf>,
}

pub(crate) fn run(args: &ServedModelArgs) -> Attempt<Value> {
    let gpu = Gpu::open(0)?;
    let served = Served::prepare(&args.model)?;
    let start = Instant::now();
    let others = (0..100).map(|_| served.engine.prepare(&served.source)).collect::<Result<Vec<_>, _>>()?;
    let hundred_more_ms = micros(start) / 1e3;
    println!("100 more of the same content in {hundred_more_ms:.0} ms");
    let (loads, unloads) = loads(&*served.prepared)?;
    println!("load:   {loads}\nunload: {unloads}");
    let mut loaded = served.prepared.load(0)?;
    let mut batches = Vec::new();
    let mut alone = None;
    for &batch in &args.model.batches {
        let measured = Measurements::of(&served, loaded.as_mut(), batch, args.replays)?;
        batches.push(measured.json(batch));
        if batch == 1 {
            alone = Some(measured.pooled.unwrap_or(measured.plain).device);
        }
    }
    let alone = alone.ok_or("batch 1 is needed")?;
    if let Some(folder) = &args.outputs {
        args.model
            .batches
            .iter()
            .try_for_each(|&batch| write_outputs(loaded.as_mut(), &served.inputs(batch), batch, folder))?;
    }
    let empty = empty(&gpu, &Probe::compile()?, alone.at(0.5), args.replays)?;
    let (while_loading, gb_per_s) = while_others_load(&served, loaded.as_mut(), &others, args.replays.div_ceil(4))?;
    let grown = while_loading.device.at(0.99) / alone.at(0.99);
    println!("while others are loaded at {gb_per_s:.1} GB/s: p99 {grown:.3} of alone");
    while_loading.print("batch 1 while others are loaded");
    Ok(json!({
        "precision": args.model.precision,
        "hundred_more_ms": hundred_more_ms,
        "load": loads.json(),
        "unload": unloads.json(),
        "batches": batches,
        "empty": empty.json(),
        "while_loading": while_loading.json(),
        "load_gb_per_s": gb_per_s,
    }))
}

/// What LOAD and UNLOAD take.
fn loads(prepared: &dyn Prepared) -> Attempt<(SpanQuantiles, SpanQuantiles)> {
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
    Ok((loads, SpanQuantiles::of(unloads)))
}

/// What batches of one size take.
struct Measurements {
    plain: Clocks,
    pooled: Option<Clocks>,
    /// Of batch 1: its graph alone, by our clock.
    graph_wall: Option<SpanQuantiles>,
    /// One behind another, in microseconds.
    each_us: Option<f64>,
}

impl Measurements {
    fn of(served: &Served, loaded: &mut dyn Loaded, batch: u32, replays: usize) -> Attempt<Self> {
        let inputs = served.inputs(batch);
        let plain = executions(loaded, &mut &*inputs, replays.min(2000))?;
        plain.print(&format!("batch {batch}"));
        let pooled = from_the_pool(loaded, &*served.memory, &inputs, batch, if batch == 1 { replays } else { 500 })?;
        let mut graph_wall = None;
        if batch == 1 {
            let wall = from_launch_to_end(loaded, &*served.memory, &inputs, replays)?;
            println!("batch 1, its graph alone, wall: {wall}");
            graph_wall = Some(wall);
        }
        let each_us = one_behind_another(loaded, &*served.memory, &inputs, batch, 2000)?;
        Ok(Self { plain, pooled, graph_wall, each_us })
    }

    fn json(&self, batch: u32) -> Value {
        json!({
            "batch": batch,
            "plain": self.plain.json(),
            "pooled": self.pooled.as_ref().map(Clocks::json),
            "graph_wall": self.graph_wall.as_ref().map(SpanQuantiles::json),
            "each_us": self.each_us,
        })
    }
}

/// Batch 1 while another thread loads and unloads other models without pause, and how many GB/s that are.
fn while_others_load(
    served: &Served,
    loaded: &mut dyn Loaded,
    others: &[Arc<dyn Prepared>],
    count: usize,
) -> Attempt<(Clocks, f64)> {
    let (stop, loads, start) = (AtomicBool::new(false), AtomicU32::new(0), Instant::now());
    let inputs = served.inputs(1);
    let measured = std::thread::scope(|scope| -> Attempt<Clocks> {
        let loader = scope.spawn(|| -> Result<(), EngineError> {
            while !stop.load(Ordering::Relaxed) {
                for other in others {
                    drop(other.load(0)?);
                    loads.fetch_add(1, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        let pooled = from_the_pool(loaded, &*served.memory, &inputs, 1, count);
        let measured = pooled.and_then(|pooled| pooled.map_or_else(|| executions(loaded, &mut &*inputs, count), Ok));
        stop.store(true, Ordering::Relaxed);
        loader.join().expect("the loader doesn't panic")?;
        measured
    })?;
    let bytes = served.prepared.weight_bytes() as f64 * f64::from(loads.load(Ordering::Relaxed));
    Ok((measured, bytes / micros(start) / 1e3))
}

/// Writes inputs and outputs next to each other, for a comparison with another runtime.
fn write_outputs(loaded: &mut dyn Loaded, inputs: &[Tensor], batch: u32, folder: &Path) -> Attempt<()> {
    for (index, Tensor { data, .. }) in inputs.iter().enumerate() {
        std::fs::write(folder.join(format!("{batch}.input{index}")), data)?;
    }
    for (index, data) in outputs(loaded, &mut &*inputs)?.into_iter().enumerate() {
        std::fs::write(folder.join(format!("{batch}.output{index}")), data)?;
    }
    Ok(())
}
