//! Batches that are staged while others are computed: whether each has its own outputs, and what one takes.

use super::probe::Probe;
use super::served::{ModelArgs, Served, executions, in_the_pool, outputs};
use crate::Attempt;
use crate::figures::micros;
use engine::{DeviceTimes, HostMemory, Loaded, Staged, Tensor};
use engine_cuda::tools::{CudaStream, DeviceMemory, DriverError, Gpu, PAGE_BYTES, Partition, Region, Turn};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// All sizes, first with the device to themselves, then while kernels of somebody else hold some of the
/// multiprocessors, which makes all kernels end at other times than usual.
pub(crate) fn run(args: &ModelArgs) -> Attempt<Value> {
    let gpu = Gpu::open(0)?;
    let served = Served::prepare(args)?;
    let mut loaded = served.prepared.load(0)?;
    let probe = Probe::compile()?;
    let other = DeviceMemory::take(&gpu, 0)?;
    let mut seen = Region::new(&other, PAGE_BYTES)?;
    seen.grow(PAGE_BYTES)?;
    let mut sizes = Vec::new();
    for &batch in &args.batches {
        let inputs = served.inputs(batch);
        let device = executions(loaded.as_mut(), &mut &*inputs, 300)?.device;
        println!("batch {batch}, device: {device}");
        let alone = one_behind_another(loaded.as_mut(), &*served.memory, &inputs, batch, 4000)?;
        let stop = AtomicBool::new(false);
        let disturbed = std::thread::scope(|scope| {
            let disturber = scope.spawn(|| -> Result<(), DriverError> {
                let stream = CudaStream::new(&Partition::whole(&gpu), Turn::First)?;
                for turn in 0u32.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    probe.spin(
                        &stream,
                        1 + turn * 7 % 24,
                        20_000 + u64::from(turn * 1_117 % 40_000),
                        seen.address(),
                    )?;
                    stream.wait()?;
                }
                Ok(())
            });
            let outcome = one_behind_another(loaded.as_mut(), &*served.memory, &inputs, batch, 4000);
            stop.store(true, Ordering::Relaxed);
            disturber.join().expect("it doesn't panic")?;
            outcome
        });
        let disturbed = disturbed.map_err(|wrong| format!("while other kernels run: {wrong}"))?;
        sizes
            .push(json!({ "batch": batch, "device": device.json(), "each_us": alone, "disturbed_each_us": disturbed }));
    }
    Ok(json!({ "precision": args.precision, "batches": sizes }))
}

/// Two batches in turn, each staged while the other is computed, as the worker does where orders come ahead. Each must
/// have its own outputs.
pub(crate) fn one_behind_another(
    loaded: &mut dyn Loaded,
    memory: &dyn HostMemory,
    inputs: &[Tensor],
    batch: u32,
    count: usize,
) -> Attempt<Option<f64>> {
    let turned = |Tensor { datatype, shape, data }: &Tensor| {
        let turned = |row: &[u8]| [&row[row.len() / 2..], &row[..row.len() / 2]].concat();
        let data: Vec<u8> = data.chunks(data.len() / batch as usize).flat_map(turned).collect();
        Tensor { datatype: *datatype, shape: shape.clone(), data: data.into() }
    };
    let other: Vec<Tensor> = inputs.iter().map(turned).collect();
    let mut sets = Vec::new();
    for inputs in [inputs, &other] {
        let Ok(apart) = in_the_pool(memory, inputs, batch) else { return Ok(None) };
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
    let each = micros(start) / count as f64;
    println!(
        "batch {batch}, one behind another: {each:.1} us each; the last one's inputs took {}, its outputs {}",
        times.inputs, times.outputs
    );
    if wrong > 0 {
        return Err(format!("batch {batch}: {wrong} of {count} had wrong outputs").into());
    }
    Ok(Some(each))
}
