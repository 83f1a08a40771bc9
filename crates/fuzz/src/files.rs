//! What operators leave in folders.

use bytes::Bytes;
use graph::model::Dimension;
use graph::{OnnxModel, Options, Precision};
use recording::Recording;
use recording::format::{BLOCK_HEAD, MAGIC};
use repository::{ModelConfig, ProfileKey, ProfileStore};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tempfile::TempDir;
use workload::{FunctionTrace, RequestTrace};

pub(crate) fn config_pbtxt(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = ModelConfig::parse(text, Path::new("config.pbtxt"), "model") {
        ask_for_sizes(&config);
    }
}

pub(crate) fn endpoint(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = ModelConfig::parse_endpoint(text, Path::new("endpoint.toml")) {
        let members = config.endpoint.map_or(0, |kind| kind.members().len());
        assert!(members <= 64, "a stage has one member at most");
    }
}

pub(crate) fn config_json(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(config) = ModelConfig::parse_json(text, Path::new("config"), "model") {
        ask_for_sizes(&config);
    }
}

/// What a model that was just read is asked for first.
fn ask_for_sizes(config: &ModelConfig) {
    let sizes = config.batch_sizes(64);
    assert!(sizes.is_sorted(), "batch sizes ascend: {sizes:?}");
    let _ = config.emulated_profile(&sizes);
    let _ = config.any_batch_sizes(64);
    let _ = config.companions().count();
}

/// Reads a model, and plans it for two rows; open dimensions are five long.
pub(crate) fn onnx_graph(data: &[u8]) {
    let changed = onnx::with_defaults(data, &|name| name.len() % 2 == 0);
    let Ok(model) = OnnxModel::decode(data, None) else { return };
    let changed = changed.expect("a model that is read is one that can be changed");
    OnnxModel::decode(&changed, None).expect("a changed model is a model");
    let mut options = Options::new(2, Precision::F32);
    for input in model.inputs() {
        for (position, dimension) in input.dims.iter().enumerate() {
            if let Dimension::Open(name) = dimension {
                options.sizes.insert(name.clone(), 5);
                options.sizes.insert(format!("{}:{position}", input.name), 5);
            }
        }
    }
    let _ = graph::compile(&model, &options);
    let file = Bytes::copy_from_slice(data);
    if let Ok(Some(cut)) = graph::cut(&file, &model, &options) {
        cut.tail(&file).expect("a model that is cut has a tail");
        let head = cut.head(&file).expect("a model that is cut has a head");
        let _ = OnnxModel::decode(&head, None).map(|head| graph::compile(&head, &options));
    }
}

pub(crate) fn ort_cache(data: &[u8]) {
    engine_ort::cached_parts(data).ok();
}

/// A folder in which a profile is kept, where that is, and the key that it has.
struct Kept {
    store: ProfileStore,
    key: ProfileKey,
    file: PathBuf,
    _folder: TempDir,
}

impl Kept {
    fn new() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let store = ProfileStore::new(folder.path());
        let key = ProfileKey {
            content: "content".into(),
            engine: "engine".into(),
            device: "device".into(),
            machine: "machine".into(),
            batch_sizes: vec![1, 2],
        };
        let file = store.path(&key);
        std::fs::create_dir_all(file.parent().expect("it is in a folder")).expect("a folder can be made");
        Self { store, key, file, _folder: folder }
    }
}

pub(crate) fn profile(data: &[u8]) {
    static KEPT: OnceLock<Kept> = OnceLock::new();
    let kept = KEPT.get_or_init(Kept::new);
    std::fs::write(&kept.file, data).expect("a temporary file can be written");
    if let Some(found) = kept.store.load(&kept.key) {
        assert!(found.profile.batches().iter().map(|batch| batch.batch).eq([1, 2]), "every size of the key is there");
    }
}

/// Checksums are made right first: what is behind them is of interest.
pub(crate) fn recording(data: &[u8]) {
    let data = with_checksums(data);
    let Ok(recording) = Recording::read(&data[..]) else { return };
    let steps = recording.take_while(Result::is_ok).count();
    assert!(steps <= data.len(), "a step is at least a byte");
}

fn with_checksums(data: &[u8]) -> Vec<u8> {
    let mut data = data.to_vec();
    let mut at = MAGIC.len() + 2;
    while let Some(head) = data.get(at..at + BLOCK_HEAD) {
        let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let start = at + BLOCK_HEAD;
        let Some(payload) = start.checked_add(length).and_then(|end| data.get(start..end)) else { break };
        let payload_sum = crc32fast::hash(payload);
        data[at + 5..at + 9].copy_from_slice(&payload_sum.to_le_bytes());
        let head_sum = crc32fast::hash(&data[at..at + 9]);
        data[at + 9..at + 13].copy_from_slice(&head_sum.to_le_bytes());
        at = start + length;
    }
    data
}

pub(crate) fn experiment(data: &[u8]) {
    let _ = RequestTrace::read(data);
    let _ = FunctionTrace::read(data);
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = lab::Campaign::parse(text, Path::new("experiment.toml"));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A seed that its parser refuses at the first byte leads nowhere: whoever changes a format makes it anew.
    #[test]
    fn seeds_of_formats_with_a_number_are_of_the_present_one() {
        let seed = |target: &str, name: &str| {
            let folder = crate::corpus(&crate::find(target).expect("there is such a target"));
            std::fs::read(folder.join(name)).expect("there is such a seed")
        };
        let served = seed("recording", "served");
        let recording = Recording::read(&served[..]).expect("it is a recording");
        assert!(recording.filter(Result::is_ok).count() > 10);
        let kept = Kept::new();
        std::fs::write(&kept.file, seed("profile", "kept")).expect("a temporary file can be written");
        assert!(kept.store.load(&kept.key).is_some());
        let reason = engine_ort::cached_parts(&seed("ort-cache", "whole-lengths")).expect_err("its checksum is none");
        assert!(reason.contains("checksum"), "{reason}");
    }
}
