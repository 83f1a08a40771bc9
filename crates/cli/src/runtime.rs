//! From what the command line says to a runtime. Nothing else in the program knows which there are.

use crate::bytes::ByteSize;
use crate::devices::{DeviceKind, Devices};
use anyhow::{Result, anyhow, ensure};
use base::PrecisionChoice;
use engine::{EmulatedEngine, Engine};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use engine_cuda::fallback::Fallback;
use engine_ort::{OrtEngine, OrtOptions};
use models::PrecisionWishes;
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
}

impl Runtime {
    /// Opens the runtime for these devices.
    pub fn open(devices: &Devices, choices: &Choices) -> Result<Self> {
        let plain = |engine: Arc<dyn Engine>, kind: String| Self { engine, kind, names: Vec::new(), pages: None };
        Ok(match devices.kind {
            DeviceKind::Emulated => plain(Arc::new(EmulatedEngine::default()), "emulated".to_owned()),
            DeviceKind::Cpu => {
                let (engine, threads) = cpu(choices)?;
                let kind = format!("cpu, {threads} threads, {}", engine.build());
                plain(Arc::new(engine), kind)
            }
            DeviceKind::Cuda => cuda(devices, choices)?,
        })
    }
}

fn cpu(choices: &Choices) -> Result<(OrtEngine, u16)> {
    let threads = choices.threads();
    let (library, workspace_bytes) = (choices.onnxruntime.clone(), choices.workspace_bytes);
    Ok((OrtEngine::new(&OrtOptions { library, threads, workspace_bytes })?, threads))
}

/// Who computes what a GPU can't. Without ONNX Runtime the GPU serves what it can.
fn fallback(choices: &Choices) -> Fallback {
    if !choices.cpu_fallback {
        return Fallback::Off;
    }
    match cpu(choices) {
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
    Ok(Runtime { kind: engine.kind(), names, pages: Some(engine.pages()), engine: Arc::new(engine) })
}
