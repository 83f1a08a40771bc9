//! A model in host memory: what sessions are made from, and the sessions that are parked until the next load.

use crate::cache::Optimised;
use crate::onnx::{self, Weights};
use crate::runtime::{Refused, Runtime};
use crate::session::{Options, Packed, Session, Value};
use crate::signature::Ports;
use crate::{block, cache};
use engine::EngineError;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How many sessions of one model are kept for later loads.
const MAX_PARKED: usize = 4;

/// See the module. Models of equal content share one.
pub(crate) struct Model {
    // The order is that of dropping: sessions before what they use.
    parked: Mutex<Vec<Session>>,
    options: Options,
    packed: Option<Packed>,
    #[allow(dead_code, reason = "the options point to them")]
    values: Vec<Value>,
    source: Source,
    parks: bool,
    pub(crate) ports: Ports,
    pub(crate) weight_bytes: u64,
}

/// What a session is made from.
enum Source {
    /// The optimised graph without its weights, which are supplied from the block.
    Split(Optimised),
    /// The original file, for models that can't be split: every session optimises it anew.
    Whole(Vec<u8>),
}

impl Model {
    /// Makes the model of a file's bytes, or finds it in the cache.
    pub(crate) fn prepare(
        runtime: &'static Runtime,
        threads: u16,
        file: &Path,
        bytes: Vec<u8>,
        cached: Option<&Path>,
    ) -> Result<Self, EngineError> {
        let bad = |refused: Refused| EngineError::bad_model(file, refused.0);
        if let Some(optimised) = cached.and_then(cache::read) {
            match Self::split(runtime, threads, optimised) {
                Ok(model) => return Ok(model),
                Err(refused) => tracing::warn!("{}: the cached model is not usable: {}", file.display(), refused.0),
            }
        }
        match optimise(runtime, threads, file, cached)? {
            Some(optimised) => {
                if let Some(path) = cached
                    && let Err(error) = cache::write(path, &optimised)
                {
                    tracing::warn!(
                        "{}: the optimised model can't be kept, the next start takes longer: {error}",
                        path.display()
                    );
                }
                Self::split(runtime, threads, optimised).or_else(|refused| {
                    tracing::warn!("{}: loads will be slow, its weights stay inside: {}", file.display(), refused.0);
                    Self::whole(runtime, threads, file, bytes).map_err(bad)
                })
            }
            None => Self::whole(runtime, threads, file, bytes).map_err(bad),
        }
    }

    fn split(runtime: &'static Runtime, threads: u16, optimised: Optimised) -> Result<Self, Refused> {
        let weights = onnx::external_weights(&optimised.skeleton)
            .ok_or_else(|| Refused("its weights can't be told apart by name".into()))?;
        // Convolutions compute with weights as they are; matrix products want them packed, which takes as long as copying
        // them several times. Where packing pays, sessions are parked instead of being made for each load.
        let packs = 2 * weights.convolution_bytes < optimised.block_bytes || weights.list.is_empty();
        let optimised = if packs {
            optimised
        } else {
            optimised.pinned().map_err(|error| Refused(format!("no memory for its weights: {error}")))?
        };
        let options = Options::new(runtime, threads)?;
        options.optimise(false)?;
        options.set(c"session.disable_prepacking", if packs { c"0" } else { c"1" })?;
        let values = supply(runtime, &options, &weights, &optimised)?;
        let packed = if packs { Some(Packed::new(runtime)?) } else { None };
        let make = |packed: Option<&Packed>| Session::from_bytes(runtime, &optimised.skeleton, &options, packed);
        let (session, packed) = match make(packed.as_ref()) {
            Ok(session) => (session, packed),
            // Some operators can pack their weights, but not share them.
            Err(_) if packed.is_some() => (make(None)?, None),
            Err(refused) => return Err(refused),
        };
        let ports = Ports::of(&session)?;
        let weight_bytes = (optimised.skeleton.len() + optimised.block_bytes) as u64;
        let parked = Mutex::new(if packs { vec![session] } else { Vec::new() });
        let source = Source::Split(optimised);
        Ok(Self { parked, options, packed, values, source, parks: packs, ports, weight_bytes })
    }

    fn whole(runtime: &'static Runtime, threads: u16, file: &Path, bytes: Vec<u8>) -> Result<Self, Refused> {
        let options = Options::new(runtime, threads)?;
        options.optimise(true)?;
        if let Some(folder) = file.parent() {
            let folder = crate::session::c_path(folder)?;
            options.set(c"session.model_external_initializers_file_folder_path", &folder)?;
        }
        let session = Session::from_bytes(runtime, &bytes, &options, None)?;
        let ports = Ports::of(&session)?;
        let weight_bytes = bytes.len() as u64;
        let parked = Mutex::new(vec![session]);
        let (packed, values, source) = (None, Vec::new(), Source::Whole(bytes));
        Ok(Self { parked, options, packed, values, source, parks: true, ports, weight_bytes })
    }

    /// A session: a parked one, or a new one.
    pub(crate) fn session(&self, runtime: &'static Runtime) -> Result<Session, Refused> {
        let parked = self.parked().pop();
        parked.map_or_else(
            || {
                let bytes = match &self.source {
                    Source::Split(optimised) => &optimised.skeleton,
                    Source::Whole(bytes) => bytes,
                };
                Session::from_bytes(runtime, bytes, &self.options, self.packed.as_ref())
            },
            Ok,
        )
    }

    /// Takes a session back.
    pub(crate) fn park(&self, session: Session) {
        let mut parked = self.parked();
        if self.parks && parked.len() < MAX_PARKED {
            parked.push(session);
        }
    }

    fn parked(&self) -> MutexGuard<'_, Vec<Session>> {
        // A panic in between leaves the list as it was.
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Values over the weights in the block, and the options told of them.
fn supply(
    runtime: &'static Runtime,
    options: &Options,
    weights: &Weights,
    optimised: &Optimised,
) -> Result<Vec<Value>, Refused> {
    let (places, end) = block::places(weights.list.iter().map(|weight| weight.length));
    if end != optimised.block_bytes {
        return Err(Refused(format!("its weights take {end} bytes, but {} are there", optimised.block_bytes)));
    }
    let mut values = Vec::with_capacity(places.len());
    for (weight, place) in weights.list.iter().zip(places) {
        let data = &optimised.block[place..place + weight.length];
        // SAFETY: the block is never written to again and lives in the same `Model` as values, options and sessions, and
        // is dropped after them (sessions in use hold the model).
        unsafe {
            let value = Value::over(runtime, data.as_ptr(), data.len(), &weight.dims, weight.element)?;
            options.supply(&weight.name, &value)?;
            values.push(value);
        }
    }
    Ok(values)
}

/// Has the runtime optimise a file and takes the result apart. `None`: it can't be taken apart.
fn optimise(
    runtime: &'static Runtime,
    threads: u16,
    file: &Path,
    cached: Option<&Path>,
) -> Result<Option<Optimised>, EngineError> {
    let bad = |refused: Refused| EngineError::bad_model(file, refused.0);
    let options = |folder: Option<&Path>| {
        let options = Options::new(runtime, threads)?;
        options.optimise(true)?;
        if let Some(folder) = folder {
            options.write_optimised(&folder.join("model.onnx"), c"weights.bin")?;
        }
        Ok(options)
    };
    let written = work_folder(cached).and_then(|folder| {
        let made = options(Some(folder.path())).and_then(|options| Session::from_file(runtime, file, &options));
        made.map_err(|refused| std::io::Error::other(refused.0)).and_then(|_| take_apart(folder.path()))
    });
    match written {
        Ok(optimised) => Ok(optimised),
        Err(error) => {
            // Either the model is bad, or there is no room to write: without writing, only the model is left to blame.
            options(None).and_then(|options| Session::from_file(runtime, file, &options)).map_err(bad)?;
            tracing::warn!("{}: loads will be slow, the optimised model can't be written: {error}", file.display());
            Ok(None)
        }
    }
}

/// A folder for the runtime to write to: beside the cache, where there is one, since that is where room is meant to be.
fn work_folder(cached: Option<&Path>) -> std::io::Result<tempfile::TempDir> {
    if let Some(folder) = cached.and_then(Path::parent) {
        let made = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempdir_in(folder));
        if let Ok(folder) = made {
            return Ok(folder);
        }
    }
    tempfile::tempdir()
}

fn take_apart(folder: &Path) -> std::io::Result<Option<Optimised>> {
    let skeleton = std::fs::read(folder.join("model.onnx"))?;
    let Some(weights) = onnx::external_weights(&skeleton) else { return Ok(None) };
    let file: Vec<u8> = match std::fs::read(folder.join("weights.bin")) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && weights.list.is_empty() => Vec::new(),
        read => read?,
    };
    let (places, block_bytes) = block::places(weights.list.iter().map(|weight| weight.length));
    let mut memory = block::Block::memory(block_bytes)?;
    for (weight, place) in weights.list.iter().zip(places) {
        let end = weight.offset.saturating_add(weight.length);
        let data = file.get(weight.offset..end).ok_or_else(|| {
            std::io::Error::other(format!("the runtime wrote {} bytes of weights, expected {end}", file.len()))
        })?;
        memory[place..place + weight.length].copy_from_slice(data);
    }
    Ok(Some(Optimised { skeleton, block: block::Block::Owned(memory), block_bytes }))
}

/// What a model's preparation depends on.
pub(crate) fn key(runtime: &Runtime, file: &Path, bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in [runtime.build, std::env::consts::ARCH, &processor(), "optimised: all, weights of 1024 bytes and more"]
    {
        hasher.update(part.as_bytes()).update(&[0]);
    }
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    for name in onnx::external_files(bytes) {
        let path: PathBuf = file.with_file_name(&name);
        // One that can't be read is the runtime's to complain about.
        hasher.update(name.as_bytes()).update(&[0]);
        if let Err(error) = std::fs::File::open(&path).and_then(|file| hasher.update_reader(file).map(|_| ())) {
            tracing::debug!("{}: {error}", path.display());
        }
    }
    hasher.finalize()
}

/// The processor's features on which the optimised graph depends (the width of blocked convolutions, for instance).
fn processor() -> String {
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("avx", std::is_x86_feature_detected!("avx")),
            ("avx2", std::is_x86_feature_detected!("avx2")),
            ("fma", std::is_x86_feature_detected!("fma")),
            ("avx512f", std::is_x86_feature_detected!("avx512f")),
            ("avx512bw", std::is_x86_feature_detected!("avx512bw")),
            ("avx512vnni", std::is_x86_feature_detected!("avx512vnni")),
            ("avx512bf16", std::is_x86_feature_detected!("avx512bf16")),
        ];
        features.iter().filter(|feature| feature.1).map(|feature| feature.0).collect::<Vec<_>>().join(" ")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        String::new()
    }
}

/// The names of ports as the runtime takes them.
pub(crate) fn names(ports: &[crate::signature::Port]) -> Vec<*const core::ffi::c_char> {
    ports.iter().map(|port| port.name.as_ptr()).collect()
}
