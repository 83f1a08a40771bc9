//! From what the command line says to a runtime. Nothing else in the program knows which there are.

use crate::bytes::ByteSize;
use crate::devices::{DeviceKind, Devices};
use anyhow::{Result, anyhow, bail, ensure};
use base::PrecisionChoice;
use engine::{EmulatedEngine, EmulatedShares, Engine};
use engine_apart::{ApartEngine, ApartOptions, InnerOptions, OpenedEngine};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use engine_cuda::fallback::Fallback;
use engine_ort::{OrtEngine, OrtOptions};
use models::PrecisionWishes;
use planner::shares::Interference;
use std::path::PathBuf;
use std::sync::Arc;

/// What may be said of a runtime.
#[derive(Debug)]
pub struct Choices {
    /// Cores for one execution on a CPU device.
    pub threads: Option<u16>,
    /// The ONNX Runtime library.
    pub onnxruntime: Option<PathBuf>,
    /// What models are computed in on a GPU.
    pub precision: Option<String>,
    /// How far outputs may be off where evidence decides what they are computed in.
    pub precision_error: Option<f64>,
    /// Memory for weights on each device.
    pub memory: Option<ByteSize>,
    /// Pinned memory for requests to a GPU.
    pub pinned_memory: Option<ByteSize>,
    /// Whether models that can't run on a GPU are computed on the CPU.
    pub cpu_fallback: bool,
    /// Memory that executions on CPU cores and their packed weights may take together.
    pub workspace_bytes: u64,
    /// Where results of preparation are kept.
    pub cache: Option<PathBuf>,
    /// Whether engines have processes of their own.
    pub isolate: bool,
    /// The folders that models are in: what such a process may read.
    pub models: Vec<PathBuf>,
}

impl Choices {
    /// Cores for one execution on a CPU device.
    pub fn threads(&self) -> u16 {
        self.threads.unwrap_or(OrtOptions::default().threads).max(1)
    }

    /// What models are computed in on a GPU.
    pub fn precision(&self) -> Result<PrecisionWishes> {
        let default = PrecisionWishes::default();
        let choice = self.precision.as_deref().map(|name| {
            let known = PrecisionChoice::from_name(name);
            known.ok_or_else(|| anyhow!("--precision {name}: use {}", PrecisionChoice::NAMES))
        });
        let bound = self.precision_error.unwrap_or(default.bound);
        ensure!((0.0..=1.0).contains(&bound), "--precision-error {bound}: use a part of the range, from 0 to 1");
        Ok(PrecisionWishes { choice: choice.transpose()?.unwrap_or(default.choice), bound })
    }

    /// Bytes of pinned memory for requests to a GPU.
    pub fn pinned_bytes(&self) -> usize {
        self.pinned_memory.map_or(CudaOptions::default().pinned_bytes, |memory| memory.0 as usize)
    }
}

/// The devices that are found: every GPU, otherwise CPU cores.
pub fn found(choices: &Choices) -> Devices {
    match engine_cuda::engine::gpu_count() {
        0 => cores(choices),
        gpus => Devices::whole_gpus(gpus),
    }
}

/// The executors that this process's cores carry: those that it may run on, as far as its control group gives it their
/// time.
pub fn cores(choices: &Choices) -> Devices {
    Devices::on_cores(std::thread::available_parallelism().map_or(1, usize::from), choices.threads())
}

/// A runtime with its devices.
pub struct Runtime {
    /// It.
    pub engine: Arc<dyn Engine>,
    /// What measurements of it are valid for.
    pub kind: String,
    /// What its devices are called, where that is not just a number.
    pub names: Vec<String>,
    /// Pages for weights on each device, where the runtime has taken them.
    pub pages: Option<u32>,
    /// Cores for one execution on a CPU device.
    pub threads: u16,
}

impl Runtime {
    /// Opens the runtime for these devices.
    pub fn open(devices: &Devices, choices: &Choices) -> Result<Self> {
        let threads = choices.threads();
        let plain =
            |engine: Arc<dyn Engine>, kind: String| Self { engine, kind, names: Vec::new(), pages: None, threads };
        if choices.isolate {
            can_isolate(devices)?;
            let (engine, threads) = apart(devices, choices)?;
            // What batches take there is something else.
            let kind = format!("cpu, {threads} threads, {}, in a process of its own", engine.about());
            return Ok(plain(Arc::new(engine), kind));
        }
        Ok(match devices.kind {
            DeviceKind::Emulated => plain(Arc::new(emulated(devices)), "emulated".to_owned()),
            DeviceKind::Cpu => {
                let (engine, threads) = cpu(choices, devices.wide_threads())?;
                let wide = match devices.wide_threads() {
                    1 => String::new(),
                    wide => format!(" or {wide}"),
                };
                let kind = format!("cpu, {threads}{wide} threads, {}", engine.build());
                plain(Arc::new(engine), kind)
            }
            DeviceKind::Cuda => cuda(devices, choices)?,
        })
    }
}

fn emulated(devices: &Devices) -> EmulatedEngine {
    let engine = EmulatedEngine::default();
    if devices.divisions.is_empty() {
        return engine;
    }
    engine.with_shares(EmulatedShares::new(devices.count, &devices.divisions, Interference::H200))
}

fn cpu(choices: &Choices, wide_threads: u16) -> Result<(OrtEngine, u16)> {
    let threads = choices.threads();
    let (library, workspace_bytes) = (choices.onnxruntime.clone(), choices.workspace_bytes);
    Ok((OrtEngine::new(&OrtOptions { library, threads, wide_threads, workspace_bytes })?, threads))
}

/// Refuses devices whose engine can't have a process of its own.
pub fn can_isolate(devices: &Devices) -> Result<()> {
    match devices.kind {
        DeviceKind::Cpu => Ok(()),
        DeviceKind::Cuda => bail!(
            "--isolate isn't available with GPUs yet, and this server would use {devices}: name CPU cores (--devices cpu:1), or leave it out"
        ),
        DeviceKind::Emulated => {
            bail!("--isolate with {devices}: emulated devices compute nothing that could be isolated")
        }
    }
}

/// ONNX Runtime in a process for each device.
fn apart(devices: &Devices, choices: &Choices) -> Result<(ApartEngine, u16)> {
    let threads = choices.threads();
    // A process can't look for it once it has given up all other folders; one that the system's loader finds is in its
    // memory by then.
    let library = match &choices.onnxruntime {
        Some(library) => library.clone(),
        None => engine_ort::find_library()?,
    };
    let library = (library.is_absolute() || choices.onnxruntime.is_some()).then_some(library);
    // Each process has its own.
    let workspace_bytes = choices.workspace_bytes / u64::from(devices.count.max(1));
    let engine = ApartEngine::new(ApartOptions {
        program: "/proc/self/exe".into(),
        arguments: vec!["engine".into()],
        engine: "onnxruntime",
        runtime: "ONNX Runtime",
        inner: InnerOptions { library, threads, workspace_bytes },
        devices: devices.count,
        models: choices.models.clone(),
        cache: choices.cache.clone(),
    })?;
    Ok((engine, threads))
}

/// `punctual engine`: the process of an engine, which `serve --isolate` starts.
pub fn serve_apart() -> ! {
    engine_apart::serve(
        |options| engine_ort::load_ahead(options.library.as_deref()),
        |InnerOptions { library, threads, workspace_bytes }| {
            let (library, threads, workspace_bytes) = (library.clone(), *threads, *workspace_bytes);
            let engine = OrtEngine::new(&OrtOptions { library, threads, wide_threads: 1, workspace_bytes })?;
            Ok(OpenedEngine { about: engine.build().to_owned(), engine: Arc::new(engine) })
        },
    )
}

/// Who computes what a GPU can't. Without ONNX Runtime the GPU serves what it can.
fn fallback(choices: &Choices) -> Fallback {
    if !choices.cpu_fallback {
        return Fallback::Off;
    }
    match cpu(choices, 1) {
        Ok((engine, _)) => Fallback::Engine(Arc::new(engine)),
        Err(error) => {
            tracing::warn!("what a GPU can't compute is refused, since the CPU can't stand in: {error:#}");
            Fallback::Missing(format!("{error:#}"))
        }
    }
}

fn cuda(devices: &Devices, choices: &Choices) -> Result<Runtime> {
    let fallback = fallback(choices);
    let engine = CudaEngine::new(&CudaOptions {
        gpus: devices.gpus.clone(),
        divisions: devices.divisions.clone(),
        memory_bytes: choices.memory.map(|memory| memory.0),
        pinned_bytes: choices.pinned_bytes(),
        cache: choices.cache.clone(),
        fallback,
    })?;
    let names = (0..engine.devices()).map(|device| engine.device_name(device)).collect();
    let (kind, pages, threads) = (engine.kind(), Some(engine.pages()), choices.threads());
    Ok(Runtime { kind, names, pages, threads, engine: Arc::new(engine) })
}
