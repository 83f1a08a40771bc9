//! ONNX Runtime in a process of its own, against the same in this one: what an execution, a preparation and a start
//! take. Executions of both are measured in turns, so that noise hits both.

use crate::Attempt;
use crate::figures::{SpanQuantiles, micros};
use base::TensorSpec;
use engine::{Engine, Loaded, ModelSource, Tensor};
use engine_apart::{ApartEngine, ApartOptions, InnerOptions};
use engine_ort::{OrtEngine, OrtOptions};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// More than any model here computes in.
const WORKSPACE_BYTES: u64 = 8 << 30;

/// Which model, and how often.
#[derive(clap::Args)]
pub(crate) struct ApartArgs {
    /// The program whose processes are measured, of the profile that is meant: target/release/punctual.
    program: PathBuf,
    /// The ONNX files, whose dimensions may be open in the first place alone: it is 1.
    files: Vec<PathBuf>,
    /// Rounds, of which the median is told.
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Executions of each kind in a round.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Wait so many microseconds between two executions: both sides sleep then.
    #[arg(long, default_value_t = 0)]
    pause_us: u64,
}

pub(crate) fn run(args: &ApartArgs) -> Attempt<Value> {
    let cache = tempfile::tempdir()?;
    let here = OrtEngine::new(&OrtOptions::default())?;
    let library = Some(engine_ort::find_library()?);
    let began = Instant::now();
    let apart = ApartEngine::new(ApartOptions {
        program: args.program.clone(),
        arguments: vec!["engine".into()],
        engine: "onnxruntime",
        runtime: "ONNX Runtime",
        inner: InnerOptions { library, threads: 1, workspace_bytes: WORKSPACE_BYTES },
        devices: 1,
        models: args.files.iter().filter_map(|file| Some(file.parent()?.to_owned())).collect(),
        cache: Some(cache.path().to_owned()),
    })?;
    println!("{}\na process is there after {:.1} ms", apart.about(), micros(began) / 1e3);
    let mut figures = Vec::new();
    for file in &args.files {
        let cache = Some(cache.path().join("here")).filter(|cache| std::fs::create_dir_all(cache).is_ok());
        let source = ModelSource { name: "model".into(), file: file.clone(), cache, ..ModelSource::default() };
        let mut sides = [&here as &dyn Engine, &apart].into_iter().map(|engine| MeasuredSide::new(engine, &source));
        let (Some(here), Some(apart)) = (sides.next(), sides.next()) else { continue };
        figures.push(compare(args, file, here?, apart?)?);
    }
    Ok(Value::Array(figures))
}

/// A model in one of both.
struct MeasuredSide {
    loaded: Box<dyn Loaded>,
    inputs: Vec<Tensor>,
    prepare_ms: f64,
    load_ms: f64,
}

impl MeasuredSide {
    fn new(engine: &dyn Engine, source: &ModelSource) -> Attempt<Self> {
        let began = Instant::now();
        let prepared = engine.prepare(source)?;
        let prepare_ms = micros(began) / 1e3;
        let began = Instant::now();
        let loaded = prepared.load(0)?;
        let inputs = prepared.signature().inputs.iter().map(zeros).collect::<Attempt<_>>()?;
        Ok(Self { loaded, inputs, prepare_ms, load_ms: micros(began) / 1e3 })
    }

    /// What one execution takes, in microseconds.
    fn execute(&mut self, pause_us: u64) -> Attempt<f64> {
        std::thread::sleep(std::time::Duration::from_micros(pause_us));
        let (began, mut bytes) = (Instant::now(), 0);
        engine::execute(&mut *self.loaded, &mut &*self.inputs, &mut |_, view| bytes += view.data.len())?;
        Ok(micros(began))
    }
}

/// An input of one row.
fn zeros(spec: &TensorSpec) -> Attempt<Tensor> {
    let shape: Vec<i64> = spec.dims.iter().map(|&dim| dim.max(1)).collect();
    let bytes = base::element_count(&shape).zip(spec.datatype.size()).map(|(count, size)| count * size);
    let bytes = bytes.ok_or_else(|| format!("input {} has no size", spec.name))?;
    Ok(Tensor { datatype: spec.datatype, shape, data: vec![0; bytes].into() })
}

fn compare(
    args: &ApartArgs,
    file: &std::path::Path,
    mut here: MeasuredSide,
    mut apart: MeasuredSide,
) -> Attempt<Value> {
    let (mut medians_here, mut medians_apart, mut added) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=args.rounds {
        let (mut spans_here, mut spans_apart) = (Vec::new(), Vec::new());
        for _ in 0..args.runs {
            spans_here.push(here.execute(args.pause_us)?);
        }
        for _ in 0..args.runs {
            spans_apart.push(apart.execute(args.pause_us)?);
        }
        let [of_here, of_apart] = [spans_here, spans_apart].map(|spans| SpanQuantiles::of(spans).at(0.5));
        // The first one pays for memory that is touched for the first time.
        if round > 0 {
            medians_here.push(of_here);
            medians_apart.push(of_apart);
            added.push(of_apart - of_here);
        }
    }
    let input_bytes: usize = here.inputs.iter().map(|input| input.data.len()).sum();
    let [of_here, of_apart, added] = [medians_here, medians_apart, added].map(SpanQuantiles::of);
    println!("{}, {input_bytes} bytes of input", file.display());
    println!("  prepare  here {:8.1} ms, apart {:8.1} ms", here.prepare_ms, apart.prepare_ms);
    println!("  load     here {:8.1} ms, apart {:8.1} ms", here.load_ms, apart.load_ms);
    let (low, high) = (added.at(0.0), added.at(1.0));
    println!("  execute  here {:8.1} us, apart {:8.1} us", of_here.at(0.5), of_apart.at(0.5));
    println!("  added {:.1} us; {low:.1} to {high:.1} in {} rounds of {}", added.at(0.5), added.count(), args.runs);
    Ok(json!({
        "file": file,
        "input_bytes": input_bytes,
        "pause_us": args.pause_us,
        "here_us": of_here.at(0.5),
        "apart_us": of_apart.at(0.5),
        "added_us": { "median": added.at(0.5), "least": low, "most": high, "rounds": added.count() },
        "prepare_ms": { "here": here.prepare_ms, "apart": apart.prepare_ms },
        "load_ms": { "here": here.load_ms, "apart": apart.load_ms },
    }))
}
