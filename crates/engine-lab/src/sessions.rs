//! Loads and executions of ONNX Runtime: what they take, against a session made the plain way. Executions of both are
//! measured in turns within one process, so that noise hits both.
#![allow(clippy::unwrap_used, reason = "a measurement that can't be made ends")]

use crate::Attempt;
use base::{DataType, ModelSignature, TensorSpec};
use engine::{Engine, Loaded, ModelSource, Prepared, Tensor};
use engine_ort::{OrtEngine, OrtOptions};
use ort::AsPointer;
use ort::session::Session;
use ort::sys;
use std::ffi::CString;
use std::path::PathBuf;
use std::ptr;
use std::time::Instant;

/// Which model, and how it is run.
#[derive(clap::Args)]
pub(crate) struct SessionsArgs {
    /// The ONNX file.
    file: PathBuf,
    /// Rows.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    batch: i64,
    /// Executions.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// The size of dimensions that the model leaves open, but the batch.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(i64).range(1..))]
    open: i64,
}

pub(crate) fn run(args: &SessionsArgs) -> Attempt<()> {
    let engine = OrtEngine::new(&OrtOptions::default())?;
    let cache = tempfile::tempdir()?;
    let source = ModelSource {
        name: "bench".into(),
        file: args.file.clone(),
        cache: Some(cache.path().to_owned()),
        ..ModelSource::default()
    };
    print_machine(&engine);
    let (first_prepare, prepared) = timed(|| engine.prepare(&source));
    drop(prepared?);
    let (next_prepare, prepared) = timed(|| engine.prepare(&source));
    let prepared = prepared?;
    let megabytes = prepared.weight_bytes() as f64 / 1e6;
    println!("{}, {megabytes:.1} MB of weights, batch {}", args.file.display(), args.batch);
    println!("  prepare                  {first_prepare:9.2} ms, from the cache {next_prepare:.2} ms");
    loads(&engine, args, &*prepared);
    executions(&engine, args, &*prepared);
    Ok(())
}

fn plain_session(engine: &OrtEngine, args: &SessionsArgs) -> Session {
    let builder = Session::builder(engine.environment()).unwrap();
    let builder = builder.with_intra_threads(1).unwrap().with_inter_threads(1).unwrap();
    builder.with_intra_op_spinning(false).unwrap().commit_from_file(&args.file).unwrap()
}

fn loads(engine: &OrtEngine, args: &SessionsArgs, prepared: &dyn Prepared) {
    let plain: Vec<f64> = (0..5).map(|_| timed(|| plain_session(engine, args)).0).collect();
    // While one is held, the next can't be a parked one.
    let held: Vec<(f64, Box<dyn Loaded>)> = (0..4).map(|_| timed(|| prepared.load(0).unwrap())).collect();
    let new: Vec<f64> = held.iter().skip(1).map(|(time, _)| *time).collect();
    drop(held);
    let again: Vec<f64> = (0..50).map(|_| timed(|| prepared.load(0).unwrap()).0).collect();
    println!("  load, plain session      {}", summary(&plain));
    println!("  load, new session        {}", summary(&new));
    println!("  load, after an unload    {}", summary(&again));
}

fn executions(engine: &OrtEngine, args: &SessionsArgs, prepared: &dyn Prepared) {
    let signature = prepared.signature();
    let inputs = PlainInputs::new(signature, args);
    let mut plain = PlainSession::new(plain_session(engine, args), signature, &inputs);
    let mut loaded = prepared.load(0).unwrap();
    let tensors = inputs.tensors();
    let mut count = 0;
    let mut ours = || {
        engine::execute(&mut *loaded, &mut &*tensors, &mut |_, output| count += output.data.len()).unwrap();
    };
    for _ in 0..3.max(args.runs / 10) {
        ours();
        plain.run();
    }
    let (mut plain_times, mut our_times) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        plain_times.push(timed(|| plain.run()).0);
        our_times.push(timed(&mut ours).0);
    }
    assert!(count > 0 || signature.outputs.is_empty());
    drop(loaded);
    let mut loaded = prepared.load(0).unwrap();
    let first = timed(|| engine::execute(&mut *loaded, &mut &*tensors, &mut |_, _| ()).unwrap()).0;
    println!("  execution, plain session {}", summary(&plain_times));
    println!("  execution, ours          {}  first after a load {first:.4} ms", summary(&our_times));
    let (plain, ours) = (median(&plain_times), median(&our_times));
    println!("  ratio of the medians     {:9.3}, difference {:.2} us", ours / plain, (ours - plain) * 1e3);
}

/// A plain session with everything around it made ahead: what the runtime itself takes.
struct PlainSession {
    session: Session,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    values: Vec<*mut sys::OrtValue>,
}

impl PlainSession {
    fn new(session: Session, signature: &ModelSignature, inputs: &PlainInputs) -> Self {
        let names = |specs: &[TensorSpec]| specs.iter().map(|spec| CString::new(&*spec.name).unwrap()).collect();
        let values = inputs.list.iter().map(PlainInput::value).collect();
        Self { session, input_names: names(&signature.inputs), output_names: names(&signature.outputs), values }
    }

    fn run(&mut self) {
        let input_names: Vec<_> = self.input_names.iter().map(|name| name.as_ptr()).collect();
        let output_names: Vec<_> = self.output_names.iter().map(|name| name.as_ptr()).collect();
        let mut outputs = vec![ptr::null_mut(); output_names.len()];
        // SAFETY: names and values are live and as many as is said; the outputs are freed below.
        unsafe {
            let status = (ort::api().Run)(
                self.session.ptr_mut(),
                ptr::null(),
                input_names.as_ptr(),
                self.values.as_ptr().cast(),
                self.values.len(),
                output_names.as_ptr(),
                output_names.len(),
                outputs.as_mut_ptr(),
            );
            ort::Error::result_from_status(status).unwrap();
            for output in outputs {
                (ort::api().ReleaseValue)(output);
            }
        }
    }
}

struct PlainInput {
    datatype: DataType,
    shape: Vec<i64>,
    data: Vec<u64>,
    bytes: usize,
}

struct PlainInputs {
    list: Vec<PlainInput>,
}

impl PlainInputs {
    fn new(signature: &ModelSignature, args: &SessionsArgs) -> Self {
        let input = |spec: &TensorSpec| {
            let size = |(place, &dim): (usize, &i64)| match dim {
                -1 if place == 0 => args.batch,
                -1 => args.open,
                dim => dim,
            };
            let shape: Vec<i64> = spec.dims.iter().enumerate().map(size).collect();
            let count = base::element_count(&shape).unwrap();
            let bytes = count * spec.datatype.size().expect("strings aren't measured");
            let word = match spec.datatype {
                DataType::Fp32 => 0x3f00_0000_3f00_0000,
                DataType::Int64 => 1,
                DataType::Int32 => 0x1_0000_0001,
                _ => 0,
            };
            PlainInput { datatype: spec.datatype, shape, data: vec![word; bytes.div_ceil(8)], bytes }
        };
        Self { list: signature.inputs.iter().map(input).collect() }
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.list.iter().map(PlainInput::tensor).collect()
    }
}

impl PlainInput {
    fn tensor(&self) -> Tensor {
        let data: Vec<u8> = self.data.iter().flat_map(|word| word.to_ne_bytes()).take(self.bytes).collect();
        Tensor { datatype: self.datatype, shape: self.shape.clone(), data: data.into() }
    }

    fn value(&self) -> *mut sys::OrtValue {
        let element = match self.datatype {
            DataType::Fp32 => sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
            DataType::Int64 => sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
            DataType::Int32 => sys::ONNXTensorElementDataType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
            other => panic!("inputs of type {other} aren't measured"),
        };
        let (mut info, mut value) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: out-pointers are valid; the data lives as long as the program measures.
        unsafe {
            let kind = sys::OrtAllocatorType::OrtDeviceAllocator;
            let made = (ort::api().CreateCpuMemoryInfo)(kind, sys::OrtMemType::OrtMemTypeDefault, &mut info);
            ort::Error::result_from_status(made).unwrap();
            let (data, rank) = (self.data.as_ptr().cast_mut().cast(), self.shape.len());
            let create = ort::api().CreateTensorWithDataAsOrtValue;
            let made = create(info, data, self.bytes, self.shape.as_ptr(), rank, element, &mut value);
            ort::Error::result_from_status(made).unwrap();
        }
        value
    }
}

/// Milliseconds, and what came out.
fn timed<T>(work: impl FnOnce() -> T) -> (f64, T) {
    let started = Instant::now();
    let result = work();
    (started.elapsed().as_secs_f64() * 1e3, result)
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn summary(times: &[f64]) -> String {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |quantile: f64| sorted[((sorted.len() - 1) as f64 * quantile).round() as usize];
    format!("{:9.4} ms  (fastest {:.4}, p99 {:.4}, of {})", median(times), sorted[0], at(0.99), times.len())
}

fn print_machine(engine: &OrtEngine) {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map(|it| it.1);
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    println!("{} x {}; {}", cores, model.unwrap_or("unknown processor"), engine.build());
}
