//! What lies in a model repository at one moment.

use crate::config::{ModelConfig, VersionPolicy};
use crate::endpoint::ENDPOINT_FILE;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// The file of a model whose configuration names none.
const DEFAULT_FILE: &str = "model.onnx";
/// The configuration of a model.
const CONFIG_FILE: &str = "config.pbtxt";
/// A configuration larger than this is something else.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Why the repository itself can't be used.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// There is no such folder, or it can't be read.
    #[error("model repository {} can't be read ({error}): give a folder with one folder for each model", path.display())]
    Unreadable {
        /// Which folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

/// One version of a model, or the model as a whole where no version could be found.
#[derive(Clone, PartialEq, Debug)]
pub enum ScanEntry {
    /// Can be given to an engine.
    Found(FoundModel),
    /// Can't be served.
    Broken(Broken),
}

/// A version of a model that can be given to an engine.
#[derive(Clone, PartialEq, Debug)]
pub struct FoundModel {
    /// The model's name: that of its folder.
    pub name: String,
    /// The version: the name of its folder.
    pub version: u64,
    /// The model's folder.
    pub folder: PathBuf,
    /// The model's file. May be missing if the configuration says what an emulated device should pretend, and is
    /// for an endpoint.
    pub file: PathBuf,
    /// What is configured; the same for all versions.
    pub config: Arc<ModelConfig>,
    /// Differs when a file was changed.
    pub fingerprint: Fingerprint,
}

/// A model, or a version of one, that can't be served.
#[derive(Clone, PartialEq, Debug)]
pub struct Broken {
    /// The model's name: that of its folder.
    pub name: String,
    /// The version, where it is one version that is broken.
    pub version: Option<u64>,
    /// Why, as a sentence.
    pub reason: String,
    /// Whether it has no folder at all, and only the version policy names it: the others are served without it.
    pub absent: bool,
    /// Differs when a file was changed.
    pub fingerprint: Fingerprint,
}

impl ScanEntry {
    /// The model's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Found(found) => &found.name,
            Self::Broken(broken) => &broken.name,
        }
    }

    /// The version; `None` where the whole model is broken.
    pub fn version(&self) -> Option<u64> {
        match self {
            Self::Found(found) => Some(found.version),
            Self::Broken(broken) => broken.version,
        }
    }
}

/// Length and time of change of every file that makes up a version: its folder's files and the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fingerprint {
    files: Vec<(String, u64, u128)>,
}

impl Fingerprint {
    fn add(&mut self, name: &str, metadata: &Metadata) {
        self.files.push((name.to_owned(), metadata.len(), modified(metadata)));
    }

    /// Adds a file that may be missing.
    fn add_file(&mut self, folder: &Path, name: &str) {
        if let Ok(metadata) = fs::metadata(folder.join(name)) {
            self.add(name, &metadata);
        }
    }
}

fn modified(metadata: &Metadata) -> u128 {
    let at = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}

/// A model repository: one folder, or several that are served together. Remembers parsed configurations, so that
/// looking again costs little.
#[derive(Debug)]
pub struct Repository {
    roots: Vec<PathBuf>,
    configs: HashMap<PathBuf, CachedConfig>,
}

#[derive(Debug)]
struct CachedConfig {
    length: u64,
    modified: u128,
    parsed: Result<Arc<ModelConfig>, String>,
}

impl Repository {
    /// The repository in these folders.
    pub fn open(roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Result<Self, RepositoryError> {
        let roots: Vec<PathBuf> = roots.into_iter().map(Into::into).collect();
        for root in &roots {
            fs::read_dir(root).map_err(|error| unreadable(root, error))?;
        }
        Ok(Self { roots, configs: HashMap::new() })
    }

    /// The folders.
    pub fn roots(&self) -> &[PathBuf] {
        &self.roots
    }

    /// Everything that is there now, by name, then version. Hidden folders and plain files don't count.
    pub fn scan(&mut self) -> Result<Vec<ScanEntry>, RepositoryError> {
        let mut names: BTreeMap<OsString, Vec<PathBuf>> = BTreeMap::new();
        for root in &self.roots {
            let listing = fs::read_dir(root).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let listing = listing.map_err(|error| unreadable(root, error))?;
            for entry in listing.iter().filter(|entry| entry.path().is_dir()) {
                names.entry(entry.file_name()).or_default().push(entry.path());
            }
        }
        let mut entries = Vec::new();
        for (name, folders) in &names {
            match name.to_str() {
                Some(name) if name.starts_with('.') => {}
                Some(name) if name.contains(char::is_control) => entries.push(ScanEntry::Broken(Broken {
                    name: name.escape_debug().to_string(),
                    version: None,
                    reason: format!("the folder's name {name:?} has control characters: rename it"),
                    absent: false,
                    fingerprint: Fingerprint::default(),
                })),
                Some(name) => self.scan_folders(name, folders, None, &mut entries),
                None => entries.push(ScanEntry::Broken(Broken {
                    name: name.to_string_lossy().into_owned(),
                    version: None,
                    reason: format!("the folder's name {name:?} isn't UTF-8: rename it"),
                    absent: false,
                    fingerprint: Fingerprint::default(),
                })),
            }
        }
        let is_there =
            |file: &Path| file.parent().and_then(Path::file_name).is_some_and(|name| names.contains_key(name));
        self.configs.retain(|file, _| is_there(file));
        Ok(entries)
    }

    /// What is there now of one model, with a configuration that counts instead of its file, if one is given. Nothing
    /// if there is no folder of that name.
    pub fn scan_one(&mut self, name: &str, config: Option<&Arc<ModelConfig>>) -> Vec<ScanEntry> {
        let mut entries = Vec::new();
        if is_model_name(name) {
            let folders: Vec<_> = self.roots.iter().map(|root| root.join(name)).filter(|path| path.is_dir()).collect();
            if !folders.is_empty() {
                self.scan_folders(name, &folders, config, &mut entries);
            }
        }
        entries
    }

    fn scan_folders(
        &mut self,
        name: &str,
        folders: &[PathBuf],
        config: Option<&Arc<ModelConfig>>,
        entries: &mut Vec<ScanEntry>,
    ) {
        match folders {
            [folder] => self.scan_model(name, folder, config, entries),
            _ => {
                let places: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
                entries.push(ScanEntry::Broken(Broken {
                    name: name.to_owned(),
                    version: None,
                    reason: format!("there are several models of this name, {}: keep one", places.join(" and ")),
                    absent: false,
                    fingerprint: Fingerprint::default(),
                }));
            }
        }
    }

    fn scan_model(
        &mut self,
        name: &str,
        folder: &Path,
        given: Option<&Arc<ModelConfig>>,
        entries: &mut Vec<ScanEntry>,
    ) {
        let mut fingerprint = Fingerprint::default();
        let broken = |version, reason, fingerprint: &Fingerprint| {
            let (name, fingerprint) = (name.to_owned(), fingerprint.clone());
            ScanEntry::Broken(Broken { name, version, reason, absent: false, fingerprint })
        };
        let config = match given.map_or_else(|| self.config(name, folder, &mut fingerprint), |given| Ok(given.clone()))
        {
            Ok(config) => config,
            Err(reason) => return entries.push(broken(None, reason, &fingerprint)),
        };
        config.companions().for_each(|file| fingerprint.add_file(folder, &file));
        if given.is_none() && folder.join(ENDPOINT_FILE).exists() {
            // Whatever lies there may belong to one of its parts.
            add_files(&mut fingerprint, folder);
        }
        let there = match version_folders(folder) {
            Ok(versions) => versions,
            Err(error) => {
                return entries.push(broken(
                    None,
                    format!("{} can't be read: {error}", folder.display()),
                    &fingerprint,
                ));
            }
        };
        if config.endpoint.is_some() {
            // Triton wants a folder of a version, with nothing in it.
            let version = there.last().copied().unwrap_or(1);
            let (name, folder, file) = (name.to_owned(), folder.to_owned(), folder.join(ENDPOINT_FILE));
            return entries.push(ScanEntry::Found(FoundModel { name, version, folder, file, config, fingerprint }));
        }
        if there.is_empty() {
            let example = folder.join("1").join(DEFAULT_FILE);
            let reason = format!("{} has no version: put the model into {}", folder.display(), example.display());
            return entries.push(broken(None, reason, &fingerprint));
        }
        let file_name = config.file_name.as_deref().unwrap_or(DEFAULT_FILE);
        let file = |version: u64| folder.join(version.to_string()).join(file_name);
        let usable = |version: &u64| config.emulation.is_some() || file(*version).is_file();
        for version in chosen(&there, &config.version_policy, usable) {
            let file = file(version);
            let mut fingerprint = fingerprint.clone();
            if !there.contains(&version) {
                entries.push(ScanEntry::Broken(absent(name, version, &file, fingerprint)));
                continue;
            }
            add_files(&mut fingerprint, &folder.join(version.to_string()));
            entries.push(if usable(&version) {
                ScanEntry::Found(FoundModel {
                    name: name.to_owned(),
                    version,
                    folder: folder.to_owned(),
                    file,
                    config: config.clone(),
                    fingerprint,
                })
            } else {
                let what = if file.exists() { "not a plain file" } else { "missing" };
                broken(Some(version), format!("{} is {what}: copy the model there", file.display()), &fingerprint)
            });
        }
    }

    /// The model's configuration, from memory if the file hasn't changed.
    fn config(&mut self, name: &str, folder: &Path, fingerprint: &mut Fingerprint) -> Result<Arc<ModelConfig>, String> {
        let found = |file: PathBuf| match fs::metadata(&file) {
            Ok(metadata) => Ok(Some((file, metadata))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("{} can't be read: {error}", file.display())),
        };
        let (of_endpoint, of_model) = (found(folder.join(ENDPOINT_FILE))?, found(folder.join(CONFIG_FILE))?);
        let is_endpoint = of_endpoint.is_some();
        let (file, metadata) = match (of_endpoint, of_model) {
            (None, None) => return Ok(Arc::default()),
            (Some(_), Some(_)) => {
                let folder = folder.display();
                return Err(format!("{folder} has both an {ENDPOINT_FILE} and a {CONFIG_FILE}: remove one of them"));
            }
            (Some(found), None) | (None, Some(found)) => found,
        };
        if !metadata.is_file() {
            // Reading it might never end.
            return Err(format!("{} is not a plain file: replace it by a file, or remove it", file.display()));
        }
        fingerprint.add(if is_endpoint { ENDPOINT_FILE } else { CONFIG_FILE }, &metadata);
        let (length, modified) = (metadata.len(), modified(&metadata));
        if let Some(cached) = self.configs.get(&file).filter(|c| (c.length, c.modified) == (length, modified)) {
            return cached.parsed.clone();
        }
        let parsed = read_config(&file, length).and_then(|text| {
            let parse = || match is_endpoint {
                true => ModelConfig::parse_endpoint(&text, &file),
                false => ModelConfig::parse(&text, &file, name),
            };
            Ok(Arc::new(parse().map_err(|error| error.to_string())?))
        });
        self.configs.insert(file, CachedConfig { length, modified, parsed: parsed.clone() });
        parsed
    }
}

/// Whether a model may be called so: a name of a folder, and not of a hidden one, on one line.
pub fn is_model_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\\']) && !name.contains(char::is_control)
}

fn unreadable(root: &Path, error: io::Error) -> RepositoryError {
    RepositoryError::Unreadable { path: root.to_owned(), error }
}

fn read_config(file: &Path, length: u64) -> Result<String, String> {
    if length > MAX_CONFIG_BYTES {
        return Err(format!("{} has {length} bytes: a configuration has at most {MAX_CONFIG_BYTES}", file.display()));
    }
    let mut text = String::new();
    // No more than was there when it was looked at: it may be growing, and the next look sees the rest.
    let read = fs::File::open(file).and_then(|file| file.take(length).read_to_string(&mut text));
    read.map_err(|error| format!("{} can't be read: {error}", file.display()))?;
    Ok(text)
}

/// The folders whose names are numbers from 1 up, without leading zeros, ascending.
fn version_folders(folder: &Path) -> io::Result<Vec<u64>> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| {
            let number: u64 = name.parse().ok()?;
            (number > 0 && number.to_string() == name).then_some(number)
        });
        if let Some(number) = number.filter(|_| entry.path().is_dir()) {
            versions.push(number);
        }
    }
    versions.sort_unstable();
    Ok(versions)
}

/// The versions to report, ascending: those that the policy wants among the usable ones, and the unusable ones that it
/// would otherwise have wanted. A newer version that is still being copied doesn't push out an older one that works.
fn chosen(there: &[u64], policy: &VersionPolicy, usable: impl Fn(&u64) -> bool) -> Vec<u64> {
    match policy {
        VersionPolicy::All => there.to_vec(),
        VersionPolicy::Specific(versions) => versions.clone(),
        VersionPolicy::Latest(count) => {
            let count = usize::try_from(*count).unwrap_or(usize::MAX);
            let lowest = there.iter().rev().filter(|version| usable(version)).take(count).last();
            match lowest {
                Some(lowest) => there.iter().copied().filter(|version| version >= lowest).collect(),
                None => there.last().copied().into_iter().collect(),
            }
        }
    }
}

/// A version that the policy names and that isn't there.
fn absent(name: &str, version: u64, file: &Path, fingerprint: Fingerprint) -> Broken {
    let reason = format!(
        "version_policy names version {version}, but there is no {}: copy the model there, or name other versions",
        file.display()
    );
    Broken { name: name.to_owned(), version: Some(version), reason, absent: true, fingerprint }
}

/// Adds the plain files of a folder. What can't be looked at isn't added: it will show when the engine reads it.
fn add_files(fingerprint: &mut Fingerprint, folder: &Path) {
    let Ok(listing) = fs::read_dir(folder) else { return };
    let mut files: Vec<_> = listing
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let metadata = fs::metadata(entry.path()).ok().filter(Metadata::is_file)?;
            Some((entry.file_name().to_string_lossy().into_owned(), metadata))
        })
        .collect();
    files.sort_unstable_by(|a, b| a.0.cmp(&b.0));
    for (name, metadata) in &files {
        fingerprint.add(name, metadata);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    /// Files of a repository, each with its content; a name that ends in `/` is a folder.
    fn check(files: &[(&str, &str)], expect: Expect) {
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in files {
            let path = folder.path().join(name);
            if name.ends_with('/') {
                fs::create_dir_all(path).unwrap();
            } else {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
        }
        let mut repository = Repository::open([folder.path()]).unwrap();
        let first = repository.scan().unwrap();
        assert_eq!(first, repository.scan().unwrap());
        let line = |entry: &ScanEntry| match entry {
            ScanEntry::Found(found) => {
                let file = found.file.strip_prefix(folder.path()).unwrap();
                format!("{} {} {}\n", found.name, found.version, file.display())
            }
            ScanEntry::Broken(broken) => {
                let root = format!("{}/", folder.path().display());
                format!("{} {:?} broken: {}\n", broken.name, broken.version, broken.reason.replace(&root, ""))
            }
        };
        expect.assert_eq(&first.iter().map(line).collect::<String>());
    }

    #[test]
    fn a_name_with_a_newline_is_refused_on_one_line() {
        check(
            &[("a\nb/1/model.onnx", "")],
            expect![[r#"
            a\nb None broken: the folder's name "a\nb" has control characters: rename it
        "#]],
        );
        assert!(is_model_name("größe 2") && !is_model_name("a\nb") && !is_model_name("a\u{85}b"));
        let mut repository = Repository::open([tempfile::tempdir().unwrap().path()]).unwrap();
        assert!(repository.scan_one("a\nb", None).is_empty());
    }

    #[test]
    fn the_highest_version_is_served_unless_the_policy_says_otherwise() {
        check(
            &[
                ("a/1/model.onnx", ""),
                ("a/10/model.onnx", ""),
                ("a/9/model.onnx", ""),
                ("b/1/model.onnx", ""),
                ("b/2/model.onnx", ""),
                ("b/3/model.onnx", ""),
                ("b/config.pbtxt", "version_policy { latest { num_versions: 2 } }"),
                ("c/1/model.onnx", ""),
                ("c/2/model.onnx", ""),
                ("c/config.pbtxt", "version_policy { all { } }"),
                ("d/1/net.onnx", ""),
                (
                    "d/config.pbtxt",
                    "version_policy { specific { versions: [1, 4] } } default_model_filename: \"net.onnx\"",
                ),
            ],
            expect![[r#"
                a 10 a/10/model.onnx
                b 2 b/2/model.onnx
                b 3 b/3/model.onnx
                c 1 c/1/model.onnx
                c 2 c/2/model.onnx
                d 1 d/1/net.onnx
                d Some(4) broken: version_policy names version 4, but there is no d/4/net.onnx: copy the model there, or name other versions
            "#]],
        );
    }

    #[test]
    fn what_is_broken_says_why_and_leaves_the_others_alone() {
        check(
            &[
                ("README", "not a model"),
                (".git/1/model.onnx", ""),
                ("empty/", ""),
                ("half/1/model.onnx", ""),
                ("half/2/model.onnx.part", ""),
                ("nofile/1/", ""),
                ("odd/latest/model.onnx", ""),
                ("odd/01/model.onnx", ""),
                ("ok/1/model.onnx", ""),
                ("syntax/1/model.onnx", ""),
                ("syntax/config.pbtxt", "input [\n  { name: }\n]"),
                ("value/1/model.onnx", ""),
                ("value/config.pbtxt", "max_batch_size: -2"),
                ("virtual/1/", ""),
                (
                    "virtual/config.pbtxt",
                    "parameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=1,beta_ms=5\" } }",
                ),
            ],
            expect![[r#"
                empty None broken: empty has no version: put the model into empty/1/model.onnx
                half 1 half/1/model.onnx
                half Some(2) broken: half/2/model.onnx is missing: copy the model there
                nofile Some(1) broken: nofile/1/model.onnx is missing: copy the model there
                odd None broken: odd has no version: put the model into odd/1/model.onnx
                ok 1 ok/1/model.onnx
                syntax None broken: syntax/config.pbtxt:2:11: expected a value, but found '}'
                value None broken: value/config.pbtxt:1:17: max_batch_size is -2: it must be from 0 to 2147483647
                virtual 1 virtual/1/model.onnx
            "#]],
        );
    }

    /// Devices and sockets, which can be tried without waiting for anybody; pipes are kept out by the same check.
    #[test]
    fn what_is_no_plain_file_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        for model in ["config", "model"] {
            fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
        }
        fs::write(folder.path().join("config/1/model.onnx"), "").unwrap();
        std::os::unix::fs::symlink("/dev/null", folder.path().join("config/config.pbtxt")).unwrap();
        let socket = folder.path().join("model/1/model.onnx");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let entries = Repository::open([folder.path()]).unwrap().scan().unwrap();
        let reasons: Vec<_> = entries
            .iter()
            .map(|entry| match entry {
                ScanEntry::Broken(broken) => broken.reason.split_once(": ").unwrap().0,
                ScanEntry::Found(found) => panic!("{found:?}"),
            })
            .collect();
        let root = folder.path().display();
        assert_eq!(
            reasons,
            [
                format!("{root}/config/config.pbtxt is not a plain file"),
                format!("{root}/model/1/model.onnx is not a plain file")
            ]
        );
    }

    #[test]
    fn a_changed_file_changes_the_fingerprint_and_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join("m").join("1");
        fs::create_dir_all(&version).unwrap();
        fs::write(version.join("model.onnx"), "abc").unwrap();
        let mut repository = Repository::open([folder.path()]).unwrap();
        let first = repository.scan().unwrap();
        fs::write(version.join("model.onnx.data"), "weights").unwrap();
        let second = repository.scan().unwrap();
        assert_ne!(first, second);
        fs::write(folder.path().join("m/config.pbtxt"), "max_batch_size: 3").unwrap();
        let third = repository.scan().unwrap();
        let ScanEntry::Found(found) = &third[0] else { panic!("{third:?}") };
        assert_eq!(found.config.max_batch, Some(3));
        fs::write(folder.path().join("m/config.pbtxt"), "max_batch_size: 12").unwrap();
        let ScanEntry::Found(found) = &repository.scan().unwrap()[0] else { panic!() };
        assert_eq!(found.config.max_batch, Some(12));
    }

    #[test]
    fn several_folders_are_served_together_and_share_their_names() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (folder, model) in [(&first, "a"), (&first, "both"), (&second, "b"), (&second, "both")] {
            fs::create_dir_all(folder.path().join(model).join("1")).unwrap();
            fs::write(folder.path().join(model).join("1/model.onnx"), "").unwrap();
        }
        let mut repository = Repository::open([first.path(), second.path()]).unwrap();
        let entries = repository.scan().unwrap();
        let [ScanEntry::Found(a), ScanEntry::Found(b), ScanEntry::Broken(both)] = &entries[..] else {
            panic!("{entries:?}")
        };
        assert_eq!((a.folder.as_path(), b.folder.as_path()), (&*first.path().join("a"), &*second.path().join("b")));
        assert!(both.reason.starts_with("there are several models of this name"), "{}", both.reason);
        assert_eq!(repository.scan_one("b", None), entries[1..2]);
        let other = Arc::new(ModelConfig { max_batch: Some(7), ..ModelConfig::default() });
        let [ScanEntry::Found(found)] = &repository.scan_one("a", Some(&other))[..] else { panic!() };
        assert_eq!(found.config.max_batch, Some(7));
        for outside in ["", ".", "..", "../a", "a/../b", "/etc", "none"] {
            assert_eq!(repository.scan_one(outside, None), [], "{outside}");
        }
    }

    #[test]
    fn a_missing_repository_is_a_sentence() {
        let error = Repository::open(["/no/such/folder"]).unwrap_err().to_string();
        assert!(error.starts_with("model repository /no/such/folder can't be read"), "{error}");
    }
}
