//! `punctual profile`: what a model's batches and loads take on a device, in files that the simulator reads.

use crate::bytes::ByteSize;
use crate::defaults;
use crate::devices::Devices;
use crate::runtime::{Choices, Runtime};
use anyhow::{Context, Result, anyhow, bail};
use base::Duration;
use clap::Args;
use models::{PrecisionWishes, Runs, Samples, measure_alone, model_source, with_precision_alone};
use repository::{Repository, ScanEntry};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// What `profile` may be told. [`defaults`] adds the default to the help of what `serve` may be told, too.
#[derive(Args, Debug)]
#[command(mut_args = defaults::say)]
pub struct ProfileOptions {
    /// The models, in Triton's layout.
    #[arg(value_name = "DIR")]
    model_repository: PathBuf,
    /// Only these models. May be given several times. [default: all]
    #[arg(long, value_name = "NAME")]
    model: Vec<String>,
    /// What to measure on: `cpu:1`, `cuda:0`, or `cuda:0:shares=0.25,0.75`, which measures each share.
    #[arg(long, value_name = "KIND:N", default_value_t = defaults::profiled_device())]
    device: Devices,
    /// Runs of each batch size.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    runs: u32,
    /// Loads of each model.
    #[arg(long, value_name = "N", default_value_t = 20)]
    loads: u32,
    /// A file NAME.csv for each model is written into this folder. [default: everything is printed]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// On a GPU: `auto`, `fp32`, `tf32` or `fp16`.
    #[arg(long, value_name = "NAME")]
    precision: Option<String>,
    /// With `auto`: how far outputs may be off, as a part of their range.
    #[arg(long, value_name = "PART")]
    precision_error: Option<f64>,
    /// Memory for weights on each device.
    #[arg(long, value_name = "SIZE")]
    device_memory: Option<ByteSize>,
    /// Cores for one execution on a CPU device.
    #[arg(long, value_name = "N")]
    threads_per_device: Option<u16>,
    /// Where prepared models are kept.
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// The ONNX Runtime library. [default: looked for]
    #[arg(long, value_name = "FILE")]
    onnxruntime: Option<PathBuf>,
}

/// Measures and writes.
pub fn run(options: &ProfileOptions) -> Result<()> {
    let cache = options.cache_dir.clone().unwrap_or_else(|| options.model_repository.join(defaults::CACHE_FOLDER));
    let choices = Choices {
        threads: options.threads_per_device,
        onnxruntime: options.onnxruntime.clone(),
        precision: options.precision.clone(),
        precision_error: options.precision_error,
        memory: options.device_memory,
        // As the server's: what is measured is for requests that it receives.
        pinned_memory: None,
        cpu_fallback: false,
        workspace_bytes: defaults::workspace_bytes(),
        cache: Some(cache.clone()),
        isolate: false,
        models: Vec::new(),
    };
    let wishes = choices.precision()?;
    let runtime = Runtime::open(&options.device, &choices)?;
    let mut repository = Repository::open([&options.model_repository])?;
    let mut measured = 0;
    for entry in repository.scan()? {
        if !options.model.is_empty() && options.model.iter().all(|name| name != entry.name()) {
            continue;
        }
        match entry {
            ScanEntry::Broken(broken) => eprintln!("{}: not measured: {}", broken.name, broken.reason),
            // What it takes is what its models take.
            ScanEntry::Found(found) if found.config.endpoint.is_some() => {}
            ScanEntry::Found(found) => {
                let text = model(options, &runtime, wishes, &found, &cache).with_context(|| found.name.clone())?;
                measured += 1;
                match &options.output {
                    None => print!("{text}"),
                    Some(folder) => {
                        let file = folder.join(format!("{}.csv", found.name));
                        let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&file, text));
                        written.with_context(|| format!("--output {}", file.display()))?;
                        println!("wrote {}", file.display());
                    }
                }
            }
        }
    }
    if measured == 0 {
        bail!("no model was measured: there is none in {}, or none of that name", options.model_repository.display());
    }
    Ok(())
}

/// The measurements of one model, one line for each device.
fn model(
    options: &ProfileOptions,
    runtime: &Runtime,
    wishes: PrecisionWishes,
    found: &repository::FoundModel,
    cache: &Path,
) -> Result<String> {
    let source = model_source(found, Some(cache.to_owned())).map_err(|reason| anyhow!(reason))?;
    let (source, _) = with_precision_alone(&*runtime.engine, found, source, wishes);
    let prepared = runtime.engine.prepare(&source)?;
    let sizes = found.config.batch_sizes(prepared.signature().max_batch);
    let precision = prepared.precision().map_or_else(String::new, |precision| format!(", {precision}"));
    let effort = format!("{} runs, {} loads", options.runs, options.loads);
    let mut text = format!("# {}{precision}; {effort}\n{}", runtime.kind, header(&sizes));
    let memory = runtime.engine.host_memory();
    for (division, device, share) in places(&options.device) {
        let effort = (options.loads, options.runs);
        let samples = Samples::of(found, memory.as_deref());
        let (loads, runs) =
            measure_alone(&*prepared, (division, device), &sizes, samples, effort).map_err(|reason| anyhow!(reason))?;
        text += &line(&found.name, share, prepared.weight_bytes(), &loads, &runs);
    }
    Ok(text)
}

/// Where to measure: the first device, or a share of each size, with the division in which it is there.
fn places(devices: &Devices) -> Vec<(usize, u32, f64)> {
    let find = |size: f64| {
        devices.divisions.iter().enumerate().find_map(|(division, shares)| {
            let device = shares.iter().position(|share| *share == size)?;
            Some((division, device as u32, size))
        })
    };
    let places: Vec<_> = devices.share_sizes().into_iter().filter_map(find).collect();
    if places.is_empty() { vec![(0, 0, 1.0)] } else { places }
}

fn header(sizes: &[u32]) -> String {
    let mut text = "model,share,weights_mb,load_ms,load_p99_ms".to_owned();
    for size in sizes {
        let _ = write!(text, ",b{size}_ms,b{size}_device_ms,b{size}_beside_ms,b{size}_p99_ms,b{size}_p9999_ms");
    }
    text + "\n"
}

/// The name of the row says the share, so that each has one: `resnet50`, or `resnet50@0.25`.
fn line(name: &str, share: f64, weight_bytes: u64, loads: &[Duration], runs: &[Runs]) -> String {
    let row = if share < 1.0 { format!("{name}@{share}") } else { name.to_owned() };
    let mut text = format!("{row},{share},{:.3},{},{}", weight_bytes as f64 / 1e6, at(loads, 0.5), at(loads, 0.99));
    for Runs { wall, device, overlap, .. } in runs {
        let (device, p99, p9999) = (at(device, 0.5), at(wall, 0.99), at(wall, 0.9999));
        let overlap = if overlap.is_empty() { "0".to_owned() } else { at(overlap, 0.5) };
        let _ = write!(text, ",{},{device},{overlap},{p99},{p9999}", at(wall, 0.5));
    }
    text + "\n"
}

/// A quantile in milliseconds; empty where nothing was measured.
fn at(spans: &[Duration], quantile: f64) -> String {
    let rank = (spans.len() as f64 * quantile).ceil() as usize;
    let span = spans.get(rank.clamp(1, spans.len().max(1)) - 1);
    span.map_or_else(String::new, |span| format!("{:.4}", span.as_millis_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_a_table_that_the_simulator_reads() {
        let span = |micros: &[u64]| micros.iter().map(|micros| Duration::from_micros(*micros)).collect::<Vec<_>>();
        let runs = [
            Runs { batch: 1, wall: span(&[500, 510, 900]), device: span(&[450, 460, 470]), overlap: span(&[30, 35]) },
            Runs { batch: 4, wall: span(&[1000, 1010, 1020]), device: Vec::new(), overlap: Vec::new() },
        ];
        let table = header(&[1, 4])
            + &line("net", 1.0, 23_400_000, &span(&[400, 500]), &runs)
            + &line("net", 0.25, 23_400_000, &span(&[400, 500]), &runs);
        expect_test::expect![[r#"
            model,share,weights_mb,load_ms,load_p99_ms,b1_ms,b1_device_ms,b1_beside_ms,b1_p99_ms,b1_p9999_ms,b4_ms,b4_device_ms,b4_beside_ms,b4_p99_ms,b4_p9999_ms
            net,1,23.400,0.4000,0.5000,0.5100,0.4600,0.0300,0.9000,0.9000,1.0100,,0,1.0200,1.0200
            net@0.25,0.25,23.400,0.4000,0.5000,0.5100,0.4600,0.0300,0.9000,0.9000,1.0100,,0,1.0200,1.0200
        "#]]
        .assert_eq(&table);
    }
}
