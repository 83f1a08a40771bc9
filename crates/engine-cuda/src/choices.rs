//! Which kernel was the fastest for which step: measured once for each device and set of libraries, then read from a
//! file.
//!
//! ```text
//!  candidates 4, NVIDIA H200 132x driver 13000, nvrtc 13.0, cublaslt 130100, cudnn 91400
//!  conv f16 1x64x56x56 ...<tab>tile 64x64 2 stages 3<tab>4.21
//! ```

use std::collections::BTreeMap;
use std::path::Path;

/// Goes up when steps get or lose candidates: what was the fastest before may not be any more, so it is measured again.
const CANDIDATES: u32 = 4;

/// The results so far.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Choices {
    /// The device and the libraries: others' results don't count.
    key: String,
    fastest: BTreeMap<String, Choice>,
}

/// One result.
#[derive(Clone, PartialEq, Debug)]
pub struct Choice {
    /// The candidate's name: names don't change their meaning, a candidate that changes gets another.
    pub candidate: String,
    /// What it took, in microseconds.
    pub microseconds: f32,
}

impl Choices {
    /// None yet.
    pub fn new(key: &str) -> Self {
        Self { key: key.to_owned(), fastest: BTreeMap::new() }
    }

    /// Those in a file; none where it isn't there, is of another device or can't be understood: they are measured again
    /// then.
    pub fn read(path: &Path, key: &str) -> Self {
        std::fs::read_to_string(path).ok().and_then(|text| Self::parse(&text, key)).unwrap_or_else(|| Self::new(key))
    }

    fn parse(text: &str, key: &str) -> Option<Self> {
        let mut lines = text.lines();
        let mut choices = Self::new(key);
        if lines.next() != Some(choices.head().as_str()) {
            return None;
        }
        for line in lines {
            let mut parts = line.split('\t');
            let (signature, candidate, microseconds) = (parts.next()?, parts.next()?, parts.next()?.parse().ok()?);
            choices.set(signature, candidate, microseconds);
        }
        Some(choices)
    }

    /// The first line of a file whose results count.
    fn head(&self) -> String {
        format!("candidates {CANDIDATES}, {}", self.key)
    }

    /// Writes them, whole or not at all.
    pub fn write(&self, path: &Path) -> std::io::Result<()> {
        let unfinished = path.with_extension(std::process::id().to_string());
        std::fs::write(&unfinished, self.to_string())?;
        std::fs::rename(&unfinished, path)
    }

    /// What was the fastest for a step.
    pub fn get(&self, signature: &str) -> Option<&Choice> {
        self.fastest.get(signature)
    }

    /// Keeps a result.
    pub fn set(&mut self, signature: &str, candidate: &str, microseconds: f32) {
        let choice = Choice { candidate: candidate.to_owned(), microseconds };
        self.fastest.insert(signature.to_owned(), choice);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.fastest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.fastest.is_empty()
    }
}

impl std::fmt::Display for Choices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{}", self.head())?;
        for (signature, choice) in &self.fastest {
            writeln!(f, "{signature}\t{}\t{}", choice.candidate, choice.microseconds)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices");
        let mut choices = Choices::new("device a");
        choices.set("conv 1", "tile 64x64", 4.25);
        choices.set("conv 1", "tile 32x32", 3.5);
        choices.write(&path).unwrap();
        assert_eq!(Choices::read(&path, "device a"), choices);
        assert_eq!(choices.get("conv 1").unwrap().candidate, "tile 32x32");
    }

    #[test]
    fn results_of_another_device_or_a_torn_file_do_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("choices");
        let mut choices = Choices::new("device a");
        choices.set("conv 1", "tile 64x64", 4.25);
        choices.write(&path).unwrap();
        assert!(Choices::read(&path, "device b").is_empty());
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.trim_end_matches("\t4.25\n")).unwrap();
        assert!(Choices::read(&path, "device a").is_empty());
        assert!(Choices::read(&folder.path().join("none"), "device a").is_empty());
    }

    #[test]
    fn results_from_before_there_were_more_candidates_do_not_count() {
        let mut choices = Choices::new("device a");
        choices.set("conv 1", "tile 64x64", 4.25);
        let now = choices.to_string();
        assert_eq!(Choices::parse(&now, "device a"), Some(choices));
        let (head, rest) = now.split_once('\n').unwrap();
        let before = format!("candidates {}, device a", CANDIDATES - 1);
        assert_ne!(head, before);
        assert_eq!(Choices::parse(&format!("{before}\n{rest}"), "device a"), None);
        assert_eq!(Choices::parse(&format!("device a\n{rest}"), "device a"), None);
    }
}
