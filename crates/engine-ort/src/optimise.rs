//! Has the runtime optimise a model's graph, and takes the result apart into skeleton and weights.

use crate::block::{self, Block};
use crate::cache::{self, Optimised};
use crate::external::External;
use crate::runtime::{Runtime, RuntimeError};
use crate::session::{Session, SessionOptions};
use crate::weights;
use engine::EngineError;
use std::fs;
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// Of a file that can't be read as a model.
pub(crate) const NOT_ONNX: &str = "it is not an ONNX model, or only a part of one: export or copy it again";

/// Optimises a file's bytes. `None`: it is a good model, but its optimised form can't be written anywhere or can't be
/// taken apart.
pub(crate) fn optimise(
    runtime: &'static Runtime,
    file: &Path,
    bytes: &[u8],
    cached: Option<&Path>,
) -> Result<Option<Optimised>, EngineError> {
    let mut why = String::new();
    for folder in work_folders(cached) {
        let written = folder.and_then(|folder| {
            write(runtime, file, bytes, Some(folder.path())).map_err(|refused| io::Error::other(refused.0))?;
            take_apart(folder.path())
        });
        match written {
            Ok(optimised) => return Ok(optimised),
            Err(error) => why = error.to_string(),
        }
    }
    // Either the model is bad, or there is no room to write: without writing, only the model is left to blame.
    write(runtime, file, bytes, None).map_err(|refused| bad_model(file, &refused))?;
    tracing::warn!("{}: its optimised form can't be written, the next start takes longer: {why}", file.display());
    Ok(None)
}

/// Folders for the runtime to write to: next to the cache, since that is where room is meant to be, else the system's.
fn work_folders(cached: Option<&Path>) -> impl Iterator<Item = io::Result<TempDir>> {
    let near_cache = cached.and_then(Path::parent).map(|folder| {
        fs::create_dir_all(folder)?;
        tempfile::Builder::new().prefix(cache::WORK).tempdir_in(folder)
    });
    near_cache.into_iter().chain(std::iter::once_with(tempfile::tempdir))
}

/// From the bytes, not from the file: that may be another one by now.
fn write(runtime: &'static Runtime, file: &Path, bytes: &[u8], folder: Option<&Path>) -> Result<(), RuntimeError> {
    let options = SessionOptions::new(runtime)?;
    options.optimise(true)?;
    options.weights_next_to(file)?;
    if let Some(folder) = folder {
        options.write_optimised(&folder.join("model.onnx"), c"weights.bin")?;
    }
    Session::from_bytes(runtime, bytes, &options, None).map(drop)
}

fn take_apart(folder: &Path) -> io::Result<Option<Optimised>> {
    let skeleton = fs::read(folder.join("model.onnx"))?;
    let Some(weights) = weights::external_weights(&skeleton) else { return Ok(None) };
    let file = match fs::read(folder.join("weights.bin")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && weights.list.is_empty() => Vec::new(),
        read => read?,
    };
    let (places, block_bytes) = block::places(weights.list.iter().map(|weight| weight.length));
    let mut memory = Block::memory(block_bytes)?;
    for (weight, place) in weights.list.iter().zip(places) {
        let end = weight.offset.saturating_add(weight.length);
        let data = file.get(weight.offset..end).ok_or_else(|| {
            io::Error::other(format!("the runtime wrote {} bytes of weights, expected {end}", file.len()))
        })?;
        memory[place..place + weight.length].copy_from_slice(data);
    }
    Ok(Some(Optimised { skeleton, block: Block::Owned(memory), block_bytes }))
}

/// What a model's optimised form depends on.
pub(crate) fn key(runtime: &Runtime, bytes: &[u8], external: &External) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in [runtime.build, std::env::consts::ARCH, &processor(), "optimised: all, weights of 1024 bytes and more"]
    {
        hasher.update(part.as_bytes()).update(&[0]);
    }
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes).update(external.hash().as_bytes());
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

/// A refusal of the runtime to take a model, as a sentence about its file.
pub(crate) fn bad_model(file: &Path, refused: &RuntimeError) -> EngineError {
    EngineError::bad_model(file, explain(&refused.0))
}

fn explain(message: &str) -> String {
    let message = message.strip_prefix("Fatal error: ").unwrap_or(message);
    if message.contains("protobuf parsing failed") {
        return NOT_ONNX.into();
    }
    if let Some((operator, _)) = message.split_once("is not a registered function/op") {
        let operator = operator.trim().rsplit_once('(').map_or(operator, |(name, _)| name);
        return format!("it needs the operator {operator}, which this runtime doesn't have: export it without");
    }
    format!("the runtime can't use it: {message}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_sentences() {
        assert_eq!(
            explain("Failed to load model because protobuf parsing failed."),
            "it is not an ONNX model, or only a part of one: export or copy it again"
        );
        assert_eq!(
            explain("Fatal error: a.b:Op(-1) is not a registered function/op"),
            "it needs the operator a.b:Op, which this runtime doesn't have: export it without"
        );
        assert_eq!(explain("anything else"), "the runtime can't use it: anything else");
    }
}
