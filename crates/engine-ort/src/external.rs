//! The files next to a model's in which it keeps weights, and what may be read at all.
//!
//! A model's file says where its weights are. It comes from outside, so it may say anything: only plain files in the
//! model's own folder are opened, and no more is read of them than they have when they are looked at.

use crate::{optimise, weights};
use bytes::Bytes;
use engine::EngineError;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

/// The files of a model, and a hash of what they hold.
pub(crate) struct External {
    names: Vec<String>,
    hash: blake3::Hash,
}

impl External {
    /// Looks up the files that the model's bytes name, and reads them.
    pub(crate) fn of(file: &Path, bytes: &Bytes) -> Result<Self, EngineError> {
        let names = weights::external_files(bytes).ok_or_else(|| EngineError::bad_model(file, optimise::NOT_ONNX))?;
        let hash = hash(file, &names)?;
        Ok(Self { names, hash })
    }

    /// Changes with names and content.
    pub(crate) fn hash(&self) -> &blake3::Hash {
        &self.hash
    }

    /// Refuses a model whose weights are others than before: it would be one model's graph with another's weights.
    pub(crate) fn check_unchanged(&self, file: &Path) -> Result<(), EngineError> {
        if hash(file, &self.names)? == self.hash {
            return Ok(());
        }
        let names = self.names.join(", ");
        Err(EngineError::bad_model(
            file,
            format!("its weights in {names} were changed while they were read: try again"),
        ))
    }
}

fn hash(file: &Path, names: &[String]) -> Result<blake3::Hash, EngineError> {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        let path = place(file, name)?;
        let (length, reader) = open(&path).map_err(|error| {
            let there = format!("it keeps weights in {name}, which can't be read ({error})");
            EngineError::bad_model(file, format!("{there}: copy that file to the folder of the model"))
        })?;
        hasher.update(name.as_bytes()).update(&[0]).update(&length.to_le_bytes());
        hasher.update_reader(reader).map_err(|error| EngineError::io(&path, error))?;
    }
    Ok(hasher.finalize())
}

/// Where a file named by a model is: in the model's folder or below.
fn place(file: &Path, name: &str) -> Result<PathBuf, EngineError> {
    let inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if name.is_empty() || name.contains('\0') || !Path::new(name).components().all(inside) {
        let reason = format!(
            "it keeps weights in {:?}, which is not in its folder: export it with its weights next to it",
            name.chars().take(100).collect::<String>()
        );
        return Err(EngineError::bad_model(file, reason));
    }
    Ok(file.with_file_name(name))
}

/// Opens a plain file, with its length, which is also as much as can be read: devices and pipes might never end.
fn open(path: &Path) -> io::Result<(u64, impl Read + use<>)> {
    let metadata = fs::metadata(path)?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    Ok((metadata.len(), File::open(path)?.take(metadata.len())))
}

/// All bytes of a plain file.
pub(crate) fn read(path: &Path) -> io::Result<Bytes> {
    let (length, mut reader) = open(path)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).map_err(io::Error::other)?).map_err(io::Error::other)?;
    reader.read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::OrtModel;
    use crate::runtime::Runtime;
    use crate::{OrtEngine, OrtOptions, cache};
    use engine::{Engine, ModelSource, Tensor};
    use std::os::unix::fs::symlink;

    /// A field of a message, in the format of protocol buffers.
    fn field(number: u8, data: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(data.len()).unwrap()], data].concat()
    }

    fn number(field: u8, value: u8) -> Vec<u8> {
        vec![field << 3, value]
    }

    /// `y = x + w`, each of two floats, with `w` in a file of that name.
    fn sum(location: &str) -> Vec<u8> {
        let entry =
            |key: &str, value: &str| field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat());
        let places = [entry("location", location), entry("length", "8")].concat();
        let weight = [number(1, 2), number(2, 1), field(8, b"w"), places, number(14, 1)].concat();
        let node = [field(1, b"x"), field(1, b"w"), field(2, b"y"), field(4, b"Add")].concat();
        let port = |name: &[u8]| {
            let shape = field(2, &field(1, &number(1, 2)));
            [field(1, name), field(2, &field(1, &[number(1, 1), shape].concat()))].concat()
        };
        let graph =
            [field(1, &node), field(2, b"g"), field(5, &weight), field(11, &port(b"x")), field(12, &port(b"y"))];
        let version = field(8, &[field(1, b""), number(2, 13)].concat());
        [number(1, 8), field(7, &graph.concat()), version].concat()
    }

    fn floats(values: [f32; 2]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    struct Fixture {
        folder: tempfile::TempDir,
        engine: OrtEngine,
    }

    impl Fixture {
        fn new() -> Self {
            let engine = OrtEngine::new(&OrtOptions::default()).unwrap();
            Self { folder: tempfile::tempdir().unwrap(), engine }
        }

        fn runtime(&self) -> &'static Runtime {
            self.engine.runtime
        }

        fn file(&self) -> PathBuf {
            self.folder.path().join("model.onnx")
        }

        fn cache(&self) -> PathBuf {
            self.folder.path().join("cache")
        }

        fn write(&self, location: &str, weights: [f32; 2]) {
            fs::write(self.file(), sum(location)).unwrap();
            fs::write(self.folder.path().join("w.bin"), floats(weights)).unwrap();
        }

        /// What the model makes of zeros: its weights.
        fn weights(&self) -> Result<Vec<u8>, EngineError> {
            let (file, cache) = (self.file(), Some(self.cache()));
            let source = ModelSource { name: "sum".into(), file, cache, ..ModelSource::default() };
            let mut loaded = self.engine.prepare(&source)?.load(0)?;
            let zeros = Tensor { datatype: base::DataType::Fp32, shape: vec![2], data: vec![0; 8].into() };
            let mut found = Vec::new();
            engine::execute(&mut *loaded, &mut &[zeros][..], &mut |_, view| found = view.data.to_vec())?;
            Ok(found)
        }
    }

    #[test]
    fn weights_in_a_file_of_their_own_are_used_and_changes_seen() {
        let fixture = Fixture::new();
        for location in ["w.bin", "./w.bin"] {
            for weights in [[1.0, 2.0], [3.0, 4.0], [1.0, 2.0]] {
                fixture.write(location, weights);
                assert_eq!(fixture.weights().unwrap(), floats(weights));
            }
        }
    }

    #[test]
    fn only_plain_files_of_the_models_folder_are_read() {
        let fixture = Fixture::new();
        fixture.write("w.bin", [1.0, 2.0]);
        let folder = fixture.folder.path();
        fs::create_dir(folder.join("inner")).unwrap();
        // A device that ends at once: one that doesn't is told apart in the same way.
        symlink("/dev/null", folder.join("device")).unwrap();
        let absolute = folder.join("w.bin").display().to_string();
        let outside = ["", "/dev/zero", "/dev/null", "../w.bin", "inner/../w.bin", "..", &absolute];
        for location in outside {
            fs::write(fixture.file(), sum(location)).unwrap();
            let text = fixture.weights().unwrap_err().to_string();
            assert!(text.contains(&format!("weights in {location:?}, which is not in its folder")), "{text}");
        }
        for (location, why) in [("inner", "plain"), ("device", "plain"), ("absent", "No such file")] {
            fs::write(fixture.file(), sum(location)).unwrap();
            let text = fixture.weights().unwrap_err().to_string();
            assert!(
                text.contains(&format!("weights in {location}, which can't be read (")) && text.contains(why),
                "{text}"
            );
        }
        assert!(read(&folder.join("device")).unwrap_err().to_string().contains("not a plain file"));
    }

    /// The file is replaced after it was read, before it is optimised: what was read counts.
    #[test]
    fn a_file_replaced_in_between_does_not_end_up_under_the_others_name() {
        let fixture = Fixture::new();
        fixture.write("w.bin", [1.0, 2.0]);
        let bytes = read(&fixture.file()).unwrap();
        let external = External::of(&fixture.file(), &bytes).unwrap();
        let cached = cache::path(&fixture.cache(), &optimise::key(fixture.runtime(), &bytes, &external));
        fs::write(fixture.file(), "something else").unwrap();
        OrtModel::prepare(fixture.runtime(), &fixture.file(), bytes, &external, Some(&cached)).unwrap();
        assert!(cached.exists());
        fixture.write("w.bin", [1.0, 2.0]);
        assert_eq!(fixture.weights().unwrap(), floats([1.0, 2.0]));
    }

    /// The same with the weights, which the runtime reads from their file: then nothing is kept or served.
    #[test]
    fn weights_replaced_in_between_are_noticed() {
        let fixture = Fixture::new();
        fixture.write("w.bin", [1.0, 2.0]);
        let bytes = read(&fixture.file()).unwrap();
        let external = External::of(&fixture.file(), &bytes).unwrap();
        let cached = cache::path(&fixture.cache(), &optimise::key(fixture.runtime(), &bytes, &external));
        fixture.write("w.bin", [3.0, 4.0]);
        let made = OrtModel::prepare(fixture.runtime(), &fixture.file(), bytes, &external, Some(&cached));
        let text = made.err().unwrap().to_string();
        assert!(text.contains("its weights in w.bin were changed while they were read"), "{text}");
        assert!(!cached.exists());
        assert_eq!(fixture.weights().unwrap(), floats([3.0, 4.0]));
    }
}
