//! A bucket's models as files in the cache folder: what has changed is downloaded, what is gone is removed.
//!
//! ```text
//!  <cache>/sources/<hash of the URL>/models/<model>/<version>/...    what is served, renamed into place
//!                                   /objects.json                    what each file was made from
//!                                   /parts/...                       downloads under way
//! ```
//!
//! A file is downloaded again when the store's tag or size for it has changed, so a restart downloads nothing.

use crate::source::Bucket;
use crate::sources::{SourceError, Transfer, WantedModels};
use crate::store;
use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{GetOptions, ObjectMeta, ObjectStore};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Downloads at the same time.
const PARALLEL: usize = 8;
/// More objects than this are not a model repository.
const MAX_OBJECTS: usize = 200_000;
/// So often an object may change while it is downloaded before that is an error.
const ATTEMPTS: u32 = 4;

/// What is known of an object: when any of it differs, it is another one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Object {
    size: u64,
    tag: Option<String>,
    modified_ms: i64,
}

/// By the path below the prefix.
type Objects = BTreeMap<String, Object>;

/// What is in the bucket at one moment.
struct Listing {
    objects: Objects,
    /// Every folder that something is in, and those that are only marked as folders.
    folders: BTreeSet<String>,
}

/// The copy of a bucket.
pub(crate) struct Mirror {
    bucket: Bucket,
    store: Arc<dyn ObjectStore>,
    runtime: tokio::runtime::Runtime,
    folder: PathBuf,
    /// What the files were made from.
    kept: Objects,
    /// Set when nothing more is to be copied.
    stopped: Arc<AtomicBool>,
}

/// What went wrong in one attempt.
enum SyncFailure {
    /// The bucket changed meanwhile: look again.
    Moved,
    Failed(SourceError),
}

impl Mirror {
    /// The copy below the cache folder, as the last run left it.
    pub(crate) fn open(bucket: &Bucket, cache: &Path, stopped: Arc<AtomicBool>) -> Result<Self, SourceError> {
        let id = blake3::hash(bucket.url.as_bytes()).to_hex();
        let folder = cache.join("sources").join(&id[..16]);
        let local = |error: io::Error| SourceError::local(&folder, &error);
        fs::create_dir_all(folder.join("models")).map_err(local)?;
        // What another run left half done.
        let _ = fs::remove_dir_all(folder.join("parts"));
        let kept = fs::read(folder.join("objects.json")).ok();
        let kept = kept.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(local)?;
        let store = store::open(bucket).map_err(|error| SourceError::remote(bucket, &error))?;
        Ok(Self { bucket: bucket.clone(), store, runtime, folder, kept, stopped })
    }

    /// Where the models are.
    pub(crate) fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// Whether there is something from before.
    pub(crate) fn has_copies(&self) -> bool {
        !self.kept.is_empty()
    }

    /// Brings the files of the wanted models up to date. With a `settling` time, models that change within it are left
    /// as they are: somebody is writing them.
    pub(crate) fn sync(
        &mut self,
        wanted: &WantedModels,
        settling: Duration,
        progress: &dyn Fn(&Transfer),
    ) -> Result<(), SourceError> {
        for attempt in 1.. {
            match self.try_sync(wanted, settling, progress) {
                Ok(()) => return Ok(()),
                Err(SyncFailure::Failed(error)) => return Err(error),
                Err(SyncFailure::Moved) if attempt == ATTEMPTS => break,
                Err(SyncFailure::Moved) => {}
            }
        }
        Err(SourceError::Changing { url: self.bucket.url.clone(), attempts: ATTEMPTS })
    }

    fn try_sync(
        &mut self,
        wanted: &WantedModels,
        settling: Duration,
        progress: &dyn Fn(&Transfer),
    ) -> Result<(), SyncFailure> {
        self.go_on()?;
        let mut seen = self.list()?;
        let mut unsettled = BTreeSet::new();
        if !settling.is_zero() && self.differs(&seen.objects, wanted) {
            std::thread::sleep(settling);
            let again = self.list()?;
            unsettled = changed_models(&seen.objects, &again.objects);
            seen = again;
        }
        let chosen = |path: &str| wanted.includes(model_of(path)) && !unsettled.contains(model_of(path));
        let stale: Vec<(String, Object)> = seen
            .objects
            .iter()
            .filter(|(path, object)| chosen(path) && !self.is_current(path, object))
            .map(|(path, object)| (path.clone(), object.clone()))
            .collect();
        self.download(&stale, progress)?;
        self.put_in_place(&seen, &stale, &unsettled)
            .map_err(|error| SyncFailure::Failed(SourceError::local(&self.folder, &error)))
    }

    fn differs(&self, seen: &Objects, wanted: &WantedModels) -> bool {
        seen.iter().any(|(path, object)| wanted.includes(model_of(path)) && !self.is_current(path, object))
            || self.kept.keys().any(|path| !seen.contains_key(path))
    }

    fn is_current(&self, path: &str, object: &Object) -> bool {
        let there =
            || fs::metadata(self.models().join(path)).is_ok_and(|file| file.is_file() && file.len() == object.size);
        self.kept.get(path) == Some(object) && there()
    }

    /// Everything below the prefix that can be part of a model: nothing hidden, and nothing beside the models' folders.
    fn list(&self) -> Result<Listing, SyncFailure> {
        let prefix = (!self.bucket.prefix.is_empty()).then(|| Key::from(self.bucket.prefix.as_str()));
        let listed: Result<Vec<ObjectMeta>, _> =
            self.runtime.block_on(self.store.list(prefix.as_ref()).take(MAX_OBJECTS + 1).try_collect());
        let listed = listed.map_err(|error| self.failed(&error))?;
        if listed.len() > MAX_OBJECTS {
            return Err(SyncFailure::Failed(SourceError::TooMany { url: self.bucket.url.clone(), most: MAX_OBJECTS }));
        }
        let mut objects = Objects::new();
        for meta in listed {
            let key = meta.location.as_ref();
            let path = key.strip_prefix(self.bucket.prefix.as_str()).unwrap_or(key).trim_start_matches('/');
            if path.contains('/') && path.split('/').all(is_plain_name) {
                let modified_ms = meta.last_modified.timestamp_millis();
                objects.insert(path.to_owned(), Object { size: meta.size, tag: meta.e_tag, modified_ms });
            }
        }
        let mut folders: BTreeSet<String> =
            objects.keys().flat_map(|path| ancestors(path)).map(str::to_owned).collect();
        // Some tools make empty objects that stand for folders, which a store doesn't have.
        let is_version =
            |path: &str| path.rsplit('/').next().is_some_and(|name| name.bytes().all(|b| b.is_ascii_digit()));
        objects.retain(|path, object| {
            let marks_a_folder = object.size == 0 && is_version(path);
            if marks_a_folder {
                folders.insert(path.clone());
            }
            // A file and a folder of one name can't both be there.
            !marks_a_folder && !folders.contains(path)
        });
        Ok(Listing { objects, folders })
    }

    fn go_on(&self) -> Result<(), SyncFailure> {
        if self.stopped.load(Ordering::Relaxed) { Err(SyncFailure::Failed(SourceError::Stopped)) } else { Ok(()) }
    }

    fn failed(&self, error: &object_store::Error) -> SyncFailure {
        match error {
            object_store::Error::Precondition { .. } => SyncFailure::Moved,
            error => SyncFailure::Failed(SourceError::remote(&self.bucket, error)),
        }
    }

    fn part(&self, number: usize) -> PathBuf {
        self.folder.join("parts").join(number.to_string())
    }

    fn download(&self, stale: &[(String, Object)], progress: &dyn Fn(&Transfer)) -> Result<(), SyncFailure> {
        if stale.is_empty() {
            return Ok(());
        }
        let local = |error: io::Error| SyncFailure::Failed(SourceError::local(&self.folder, &error));
        fs::create_dir_all(self.folder.join("parts")).map_err(local)?;
        let total_bytes = stale.iter().map(|(_, object)| object.size).sum();
        let files = stale.len();
        let state = RefCell::new(Transfer { files, done_bytes: 0, total_bytes, current: String::new() });
        let add = |path: &str, bytes: u64| {
            let mut state = state.borrow_mut();
            state.done_bytes += bytes;
            path.clone_into(&mut state.current);
            progress(&state);
        };
        let one = |(number, (path, object)): (usize, &(String, Object))| {
            let part = self.part(number);
            let (path, object, add) = (path.clone(), object.clone(), &add);
            async move { self.fetch(&path, &object, &part, add).await }
        };
        let downloads = stream::iter(stale.iter().enumerate().map(one)).buffer_unordered(PARALLEL);
        self.runtime.block_on(downloads.try_collect::<()>())
    }

    /// Downloads one object, exactly the one that was listed.
    async fn fetch(
        &self,
        path: &str,
        object: &Object,
        part: &Path,
        add: &impl Fn(&str, u64),
    ) -> Result<(), SyncFailure> {
        let key = match self.bucket.prefix.as_str() {
            "" => path.to_owned(),
            prefix => format!("{prefix}/{path}"),
        };
        let key = Key::parse(&key).map_err(|error| self.failed(&error.into()))?;
        let options = GetOptions { if_match: object.tag.clone(), ..GetOptions::default() };
        let result = self.store.get_opts(&key, options).await;
        let result = match result {
            Err(object_store::Error::NotFound { .. }) => return Err(SyncFailure::Moved),
            result => result.map_err(|error| self.failed(&error))?,
        };
        let local = |error: io::Error| SyncFailure::Failed(SourceError::local(part, &error));
        let mut file = fs::File::create(part).map_err(local)?;
        let (mut content, mut length) = (result.into_stream(), 0);
        while let Some(piece) = content.try_next().await.map_err(|error| self.failed(&error))? {
            self.go_on()?;
            file.write_all(&piece).map_err(local)?;
            length += piece.len() as u64;
            add(path, piece.len() as u64);
        }
        if length == object.size { Ok(()) } else { Err(SyncFailure::Moved) }
    }

    /// Renames what was downloaded to where it belongs, and removes what is no longer in the bucket.
    fn put_in_place(
        &mut self,
        seen: &Listing,
        stale: &[(String, Object)],
        unsettled: &BTreeSet<String>,
    ) -> io::Result<()> {
        let models = self.models();
        // Folders of models that aren't wanted are there too, so that they can be named.
        for folder in seen.folders.iter().filter(|path| !unsettled.contains(model_of(path))) {
            make_folder(&models, Path::new(folder))?;
        }
        for (number, (path, object)) in stale.iter().enumerate() {
            let target = models.join(path);
            if target.is_dir() {
                fs::remove_dir_all(&target)?;
            }
            fs::rename(self.part(number), target)?;
            self.kept.insert(path.clone(), object.clone());
        }
        let gone = |path: &&String| !seen.objects.contains_key(*path) && !unsettled.contains(model_of(path));
        for path in self.kept.keys().filter(gone).cloned().collect::<Vec<_>>() {
            match fs::remove_file(models.join(&path)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            self.kept.remove(&path);
        }
        remove_empty(&models, "", &|folder| seen.folders.contains(folder) || unsettled.contains(model_of(folder)));
        let _ = fs::remove_dir_all(self.folder.join("parts"));
        self.keep()
    }

    fn keep(&self) -> io::Result<()> {
        let text = serde_json::to_vec(&self.kept).map_err(io::Error::other)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        file.write_all(&text)?;
        file.persist(self.folder.join("objects.json")).map_err(|error| error.error)?;
        Ok(())
    }
}

/// The folder of a model, which is the first part of every path.
fn model_of(path: &str) -> &str {
    path.split('/').next().unwrap_or_default()
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['\\', '\0'])
}

/// The folders that a path is in, from the nearest.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    path.rmatch_indices('/').map(|(end, _)| &path[..end])
}

/// The models of which the two listings differ.
fn changed_models(before: &Objects, after: &Objects) -> BTreeSet<String> {
    let differs = |path: &&String| before.get(*path) != after.get(*path);
    before.keys().chain(after.keys()).filter(differs).map(|path| model_of(path).to_owned()).collect()
}

/// Makes a folder and those that it is in, also where a file is in the way.
fn make_folder(root: &Path, folder: &Path) -> io::Result<()> {
    let mut path = root.to_owned();
    for part in folder.components() {
        path.push(part);
        if path.is_file() {
            fs::remove_file(&path)?;
        }
        if !path.is_dir() {
            fs::create_dir(&path)?;
        }
    }
    Ok(())
}

/// Removes folders that nothing is in, except those to be kept.
fn remove_empty(root: &Path, below: &str, keep: &dyn Fn(&str) -> bool) {
    for entry in fs::read_dir(root.join(below)).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let path = [below, &*name.to_string_lossy()].join("/");
        let path = path.trim_start_matches('/');
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_empty(root, path, keep);
            if !keep(path) {
                // Fails, as it should, where something is in it.
                let _ = fs::remove_dir(root.join(path));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::StoreKind;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    /// The library's own store in memory; the tests in tests/clients have a real one behind a socket.
    struct Bench {
        store: Arc<InMemory>,
        mirror: Mirror,
        cache: tempfile::TempDir,
    }

    fn bucket() -> Bucket {
        let url = "s3://bucket/models".to_owned();
        let (bucket, prefix) = ("bucket".to_owned(), "models".to_owned());
        Bucket { url, kind: StoreKind::S3, endpoint: None, account: None, bucket, prefix }
    }

    impl Bench {
        fn new() -> Self {
            let (store, cache) = (Arc::new(InMemory::new()), tempfile::tempdir().unwrap());
            let mut mirror = Mirror::open(&bucket(), cache.path(), Arc::default()).unwrap();
            mirror.store = store.clone();
            Self { store, mirror, cache }
        }

        fn put(&self, path: &str, content: &str) {
            let key = Key::parse(path).unwrap();
            self.mirror.runtime.block_on(self.store.put(&key, content.to_owned().into())).unwrap();
        }

        fn delete(&self, path: &str) {
            self.mirror.runtime.block_on(self.store.delete(&Key::parse(path).unwrap())).unwrap();
        }

        /// What was downloaded.
        fn sync(&mut self, wanted: &WantedModels) -> u64 {
            let bytes = RefCell::new(0);
            self.mirror.sync(wanted, Duration::ZERO, &|transfer| *bytes.borrow_mut() = transfer.done_bytes).unwrap();
            bytes.into_inner()
        }

        /// All files and empty folders, with the files' contents.
        fn shown(&self) -> String {
            let mut lines = Vec::new();
            let mut folders = vec![self.mirror.models()];
            while let Some(folder) = folders.pop() {
                for entry in fs::read_dir(folder).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path.strip_prefix(self.mirror.models()).unwrap().display().to_string();
                    match path.is_dir() {
                        true if fs::read_dir(&path).unwrap().next().is_none() => lines.push(format!("{name}/")),
                        true => folders.push(path),
                        false => lines.push(format!("{name}={}", fs::read_to_string(&path).unwrap())),
                    }
                }
            }
            lines.sort();
            lines.join(" ")
        }
    }

    #[test]
    fn what_changes_in_the_bucket_changes_on_the_disk() {
        let mut bench = Bench::new();
        bench.put("models/a/1/model.onnx", "one");
        bench.put("models/a/config.pbtxt", "x");
        bench.put("models/README", "beside the models");
        bench.put("models/.hidden/1/model.onnx", "hidden");
        bench.put("other/b/1/model.onnx", "elsewhere");
        bench.put("models/empty/1", "");
        assert_eq!(bench.sync(&WantedModels::All), 4);
        assert_eq!(bench.shown(), "a/1/model.onnx=one a/config.pbtxt=x empty/1/");
        assert_eq!(bench.sync(&WantedModels::All), 0);
        bench.put("models/a/1/model.onnx", "two!");
        bench.put("models/a/2/model.onnx", "new");
        bench.delete("models/a/config.pbtxt");
        bench.delete("models/empty/1");
        assert_eq!(bench.sync(&WantedModels::All), 7);
        assert_eq!(bench.shown(), "a/1/model.onnx=two! a/2/model.onnx=new");
        bench.delete("models/a/1/model.onnx");
        bench.delete("models/a/2/model.onnx");
        assert_eq!(bench.sync(&WantedModels::All), 0);
        assert_eq!(bench.shown(), "");
    }

    #[test]
    fn a_restart_downloads_only_what_is_missing() {
        let mut bench = Bench::new();
        bench.put("models/a/1/model.onnx", "one");
        bench.put("models/b/1/model.onnx", "four");
        assert_eq!(bench.sync(&WantedModels::All), 7);
        let mut again = Mirror::open(&bucket(), bench.cache.path(), Arc::default()).unwrap();
        assert!(again.has_copies());
        again.store = bench.store.clone();
        bench.mirror = again;
        assert_eq!(bench.sync(&WantedModels::All), 0);
        fs::write(bench.mirror.models().join("b/1/model.onnx"), "cut").unwrap();
        assert_eq!(bench.sync(&WantedModels::All), 4);
        assert_eq!(bench.shown(), "a/1/model.onnx=one b/1/model.onnx=four");
        fs::write(bench.mirror.folder.join("objects.json"), "not JSON").unwrap();
        bench.mirror = Mirror {
            store: bench.store.clone(),
            ..Mirror::open(&bucket(), bench.cache.path(), Arc::default()).unwrap()
        };
        assert_eq!(bench.sync(&WantedModels::All), 7);
    }

    #[test]
    fn a_server_that_goes_down_copies_nothing_more() {
        let mut bench = Bench::new();
        bench.put("models/a/1/model.onnx", "one");
        bench.mirror.stopped.store(true, Ordering::Relaxed);
        let outcome = bench.mirror.sync(&WantedModels::All, Duration::ZERO, &|_| {});
        assert!(matches!(outcome, Err(SourceError::Stopped)), "{outcome:?}");
        assert_eq!(bench.shown(), "");
    }

    #[test]
    fn models_that_nobody_wants_are_named_but_not_downloaded() {
        let mut bench = Bench::new();
        bench.put("models/a/1/model.onnx", "one");
        bench.put("models/b/1/model.onnx", "four");
        assert_eq!(bench.sync(&WantedModels::Only(BTreeSet::from(["a".to_owned()]))), 3);
        assert_eq!(bench.shown(), "a/1/model.onnx=one b/1/");
        assert_eq!(bench.sync(&WantedModels::All), 4);
    }

    #[test]
    fn models_that_are_being_written_are_told_apart() {
        let object = |size| Object { size, tag: None, modified_ms: 0 };
        let listing = |objects: &[(&str, u64)]| -> Objects {
            objects.iter().map(|&(path, size)| (path.to_owned(), object(size))).collect()
        };
        let before = listing(&[("a/1/m", 1), ("b/1/m", 1), ("c/1/m", 1)]);
        let after = listing(&[("a/1/m", 1), ("b/1/m", 2), ("d/1/m", 1)]);
        let changed: Vec<String> = changed_models(&before, &after).into_iter().collect();
        assert_eq!(changed, ["b", "c", "d"]);
    }
}
