//! Has the runtime optimise a model's graph, and takes the result apart into skeleton and weights.

use crate::block::{self, Block};
use crate::cache::Optimised;
use crate::onnx;
use crate::runtime::{Refused, Runtime};
use crate::session::{Options, Session};
use engine::EngineError;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use tempfile::TempDir;

/// Optimises a file. `None`: it is a good model, but its optimised form can't be written anywhere or can't be taken apart.
pub(crate) fn optimise(
    runtime: &'static Runtime,
    file: &Path,
    cached: Option<&Path>,
) -> Result<Option<Optimised>, EngineError> {
    let mut why = String::new();
    for folder in work_folders(cached) {
        let written = folder.and_then(|folder| {
            write(runtime, file, Some(folder.path())).map_err(|refused| io::Error::other(refused.0))?;
            take_apart(folder.path())
        });
        match written {
            Ok(optimised) => return Ok(optimised),
            Err(error) => why = error.to_string(),
        }
    }
    // Either the model is bad, or there is no room to write: without writing, only the model is left to blame.
    write(runtime, file, None).map_err(|refused| bad_model(file, &refused))?;
    tracing::warn!("{}: its optimised form can't be written, the next start takes longer: {why}", file.display());
    Ok(None)
}

/// Folders for the runtime to write to: beside the cache, since that is where room is meant to be, else the system's.
fn work_folders(cached: Option<&Path>) -> impl Iterator<Item = io::Result<TempDir>> {
    let beside = cached.and_then(Path::parent).map(|folder| {
        fs::create_dir_all(folder)?;
        tempfile::Builder::new().prefix(".work-").tempdir_in(folder)
    });
    beside.into_iter().chain(std::iter::once_with(tempfile::tempdir))
}

fn write(runtime: &'static Runtime, file: &Path, folder: Option<&Path>) -> Result<(), Refused> {
    let options = Options::new(runtime)?;
    options.optimise(true)?;
    if let Some(folder) = folder {
        options.write_optimised(&folder.join("model.onnx"), c"weights.bin")?;
    }
    Session::from_file(runtime, file, &options).map(drop)
}

fn take_apart(folder: &Path) -> io::Result<Option<Optimised>> {
    let skeleton = fs::read(folder.join("model.onnx"))?;
    let Some(weights) = onnx::external_weights(&skeleton) else { return Ok(None) };
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
pub(crate) fn key(runtime: &Runtime, file: &Path, bytes: &[u8]) -> blake3::Hash {
    let mut hasher = blake3::Hasher::new();
    for part in [runtime.build, std::env::consts::ARCH, &processor(), "optimised: all, weights of 1024 bytes and more"]
    {
        hasher.update(part.as_bytes()).update(&[0]);
    }
    hasher.update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    for name in onnx::external_files(bytes) {
        let path = file.with_file_name(&name);
        hasher.update(name.as_bytes()).update(&[0]);
        // One that can't be read is the runtime's to complain about.
        if let Err(error) = File::open(&path).and_then(|file| hasher.update_reader(file).map(|_| ())) {
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

/// A refusal of the runtime to take a model, as a sentence about its file.
pub(crate) fn bad_model(file: &Path, refused: &Refused) -> EngineError {
    EngineError::bad_model(file, explain(&refused.0, file))
}

fn explain(message: &str, file: &Path) -> String {
    let opening = format!("Load model from {} failed:", file.display());
    let message = message.strip_prefix(&opening).unwrap_or(message).trim();
    let message = message.strip_prefix("Fatal error: ").unwrap_or(message);
    if message.starts_with("Protobuf parsing failed") {
        return "it is not an ONNX model, or only a part of one: export or copy it again".into();
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
        let explained = |message: &str| explain(message, Path::new("m.onnx"));
        assert_eq!(
            explained("Load model from m.onnx failed:Protobuf parsing failed."),
            "it is not an ONNX model, or only a part of one: export or copy it again"
        );
        assert_eq!(
            explained("Load model from m.onnx failed:Fatal error: a.b:Op(-1) is not a registered function/op"),
            "it needs the operator a.b:Op, which this runtime doesn't have: export it without"
        );
        assert_eq!(explained("anything else"), "the runtime can't use it: anything else");
    }
}
