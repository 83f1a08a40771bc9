//! Which files models may be made of: their SHA-256, in the format of `sha256sum`, perhaps signed.
//!
//! ```text
//!  5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef  resnet/1/model.onnx
//!  0dd27f9ee5ac5b6cd2bc35d2aa0d01bba7e9e6c2d2f5b5c7d0a1b1f1ce0f3a55  resnet/config.pbtxt
//! ```
//!
//! A model that has a file that isn't listed, or isn't as listed, is not served. Files are compared when a model is
//! published: whoever can write into the folder at that moment can still exchange one after it was read.

use minisign_verify::{PublicKey, Signature};
use ring::digest;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The list, and who must have signed it.
#[derive(Debug)]
pub struct Manifest {
    file: PathBuf,
    key: Option<PublicKey>,
}

impl Manifest {
    /// The list in that file. With a key, `FILE.minisig` must be a signature by it. It is read for every model anew, so
    /// that a new list holds for models that come after it; what is wrong with it at the start is said at once.
    pub fn new(file: PathBuf, key: Option<&str>) -> Result<Self, String> {
        let key = key.map(PublicKey::from_base64).transpose();
        let key = key.map_err(|error| format!("the key is not a public key of minisign: {error}"))?;
        let manifest = Self { file, key };
        manifest.read()?;
        Ok(manifest)
    }

    /// Whether all files of a version of a model are as listed; what isn't, as a sentence. Folders of other versions
    /// don't count.
    pub fn check(&self, folder: &Path, model: &str, version: u64) -> Result<(), String> {
        let listed = self.read()?;
        let files = files_of(folder, version).map_err(|error| format!("{}: {error}", folder.display()))?;
        for file in files {
            let shown = file.strip_prefix(folder).unwrap_or(&file);
            let name = format!("{model}/{}", shown.display());
            let list = self.file.display();
            let expected = listed.get(&name).ok_or_else(|| format!("{name} is not in the manifest {list}"))?;
            let actual = sha256(&file).map_err(|error| format!("{}: {error}", file.display()))?;
            if actual != *expected {
                return Err(format!("{name} is not the file of the manifest {list}: its SHA-256 differs"));
            }
        }
        Ok(())
    }

    fn read(&self) -> Result<HashMap<String, [u8; 32]>, String> {
        let shown = self.file.display();
        let text = fs::read(&self.file).map_err(|error| format!("the manifest {shown} can't be read: {error}"))?;
        self.check_signature(&text)?;
        let text = String::from_utf8(text).map_err(|_| format!("the manifest {shown} is not text"))?;
        parse(&text).map_err(|reason| format!("the manifest {shown}, {reason}"))
    }

    fn check_signature(&self, text: &[u8]) -> Result<(), String> {
        let Some(key) = &self.key else { return Ok(()) };
        let mut path = self.file.clone().into_os_string();
        path.push(".minisig");
        let wrong = |reason: String| format!("the signature {}: {reason}", Path::new(&path).display());
        let signature = fs::read_to_string(&path).map_err(|error| wrong(error.to_string()))?;
        let signature = Signature::decode(&signature).map_err(|error| wrong(error.to_string()))?;
        key.verify(text, &signature, false).map_err(|error| wrong(error.to_string()))
    }
}

/// The digests by name.
pub(crate) fn parse(text: &str) -> Result<HashMap<String, [u8; 32]>, String> {
    let mut listed = HashMap::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let (digest, name) = entry(line).ok_or_else(|| {
            format!("line {}: expected 64 hexadecimal digits, two spaces and a file, as sha256sum writes", index + 1)
        })?;
        if listed.insert(name.to_owned(), digest).is_some_and(|before| before != digest) {
            return Err(format!("line {}: {name} is there twice, with different digests", index + 1));
        }
    }
    Ok(listed)
}

fn entry(line: &str) -> Option<([u8; 32], &str)> {
    let (digits, rest) = line.split_at_checked(64)?;
    let name = rest.strip_prefix("  ").or_else(|| rest.strip_prefix(" *"))?;
    let mut digest = [0; 32];
    for (byte, pair) in digest.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? * 16 + value(pair[1])?) as u8;
    }
    let name = name.strip_prefix("./").unwrap_or(name);
    (!name.is_empty()).then_some((digest, name))
}

/// All that lies in a model's folder and isn't another version.
fn files_of(folder: &Path, version: u64) -> io::Result<Vec<PathBuf>> {
    let other_version = |name: &str| name.parse::<u64>().is_ok_and(|number| number != version);
    let (mut files, mut waiting) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if !entry.path().is_dir() {
            files.push(entry.path());
        } else if !entry.file_name().to_str().is_some_and(other_version) {
            waiting.push(entry.path());
        }
    }
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() { waiting.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    Ok(files)
}

/// Of a plain file: a pipe may never end.
fn sha256(file: &Path) -> io::Result<[u8; 32]> {
    if !fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a plain file"));
    }
    let (mut source, mut context) = (File::open(file)?, digest::Context::new(&digest::SHA256));
    let mut buffer = vec![0; 1 << 16];
    loop {
        match source.read(&mut buffer)? {
            0 => break,
            read => context.update(&buffer[..read]),
        }
    }
    Ok(context.finish().as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Of `content` and of `hello`.
    const CONTENT: &str = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73";
    const HELLO: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    fn folder() -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("m/1/parts")).unwrap();
        fs::create_dir_all(folder.path().join("m/2")).unwrap();
        fs::write(folder.path().join("m/1/model.onnx"), "content").unwrap();
        fs::write(folder.path().join("m/1/parts/weights"), "hello").unwrap();
        fs::write(folder.path().join("m/2/model.onnx"), "unknown").unwrap();
        fs::write(folder.path().join("m/config.pbtxt"), "hello").unwrap();
        folder
    }

    fn listed(folder: &TempDir, text: &str) -> Result<(), String> {
        let file = folder.path().join("manifest");
        fs::write(&file, text).unwrap();
        Manifest::new(file, None)?.check(&folder.path().join("m"), "m", 1)
    }

    fn all() -> String {
        format!("# models\n{CONTENT}  ./m/1/model.onnx\n{HELLO} *m/1/parts/weights\n\n{HELLO}  m/config.pbtxt\n")
    }

    #[test]
    fn a_model_whose_files_are_listed_passes_whatever_its_other_versions_are() {
        assert_eq!(listed(&folder(), &all()), Ok(()));
    }

    #[test]
    fn a_model_with_a_file_that_was_changed_is_refused() {
        let folder = folder();
        fs::write(folder.path().join("m/1/model.onnx"), "changed").unwrap();
        assert!(listed(&folder, &all()).unwrap_err().contains("m/1/model.onnx is not the file"));
    }

    #[test]
    fn a_model_with_a_file_that_was_added_is_refused() {
        let folder = folder();
        fs::write(folder.path().join("m/1/parts/more"), "more").unwrap();
        assert!(listed(&folder, &all()).unwrap_err().contains("m/1/parts/more is not in the manifest"));
    }

    #[test]
    fn what_is_wrong_with_a_list_is_said_with_its_line() {
        for (text, sentence) in [
            ("abc  m", "line 1: expected 64"),
            (&format!("{CONTENT} m"), "line 1: expected 64"),
            (&format!("\n{CONTENT}  "), "line 2: expected 64"),
            (&format!("{CONTENT}  m\n{HELLO}  ./m"), "line 2: m is there twice"),
        ] {
            assert!(parse(text).unwrap_err().contains(sentence), "{text}");
        }
    }

    /// A key that is used nowhere else, and what minisign 0.11 signed with it.
    const KEY: &str = "RWTb5C4kF0Of9q+rw0izt3HI06C/z+XQ1PmHTHxhxhwn4h6wRXPe1lAM";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key\nRUTb5C4kF0Of9pKyjk5ejk6lEKiFQlkPQAKw1Uj8YAd/60BUbHnX+2u7d/5kOXoakBFC3o8HrHHDZCdxHkgf9n/jiIyHgwnQawM=\ntrusted comment: a list for a test\nPIHOJUm+iP1s0qBgHwjEcIt/UN0bhkto2U7FUg3haSlsgangy9iLDH+B98S8FQuiKctPR2kqpyMYdC3+GIL3BQ==\n";

    #[test]
    fn a_list_that_the_key_did_not_sign_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("list");
        let signed = format!("{CONTENT}  m/1/model.onnx\n");
        fs::write(&file, &signed).unwrap();
        let unsigned = Manifest::new(file.clone(), Some(KEY)).unwrap_err();
        assert!(unsigned.contains("list.minisig"), "{unsigned}");
        fs::write(folder.path().join("list.minisig"), SIGNATURE).unwrap();
        let manifest = Manifest::new(file.clone(), Some(KEY)).unwrap();
        fs::write(&file, signed + &format!("{HELLO}  m/config.pbtxt\n")).unwrap();
        let changed = manifest.check(folder.path(), "m", 1).unwrap_err();
        assert!(changed.contains("the signature"), "{changed}");
    }

    #[test]
    fn what_is_no_key_is_said() {
        assert!(Manifest::new("list".into(), Some("secret")).unwrap_err().contains("minisign"));
    }
}
