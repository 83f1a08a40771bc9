//! A thread that looks at the repository when its files change, and from time to time in any case.

use crate::changes::{Change, Changes};
use crate::scan::{Repository, ScanEntry};
use base::{Duration, Timestamp};
use notify::{EventKind, RecursiveMode, Watcher as _};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

/// Looking from time to time takes one part in so many of a core at most: a look at 10,000 models takes a third of a
/// second.
const LOOKING_SHARE: u64 = 100;

/// How closely to watch.
#[derive(Clone, Copy, Debug)]
pub struct WatchOptions {
    /// How long files must have stayed the same before they count.
    pub settling: Duration,
    /// How often to look when nothing was noticed: network file systems and links don't always tell. Less often where a
    /// look takes long.
    pub rescan: Duration,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { settling: Duration::from_millis(200), rescan: Duration::from_secs(5) }
    }
}

/// Watches a repository until it is dropped.
#[derive(Debug)]
pub struct Watcher {
    stop: Sender<WatchMessage>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum WatchMessage {
    /// The file system says that something has changed.
    Touched,
    Stop,
}

impl Watcher {
    /// Calls `on_change` with what has changed since `start` (the result of a scan), on a thread of its own.
    pub fn start(
        repository: Repository,
        start: Vec<ScanEntry>,
        options: WatchOptions,
        on_change: impl FnMut(Vec<Change>) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, receiver) = mpsc::channel();
        let stop = sender.clone();
        let thread = std::thread::Builder::new().name("repository".into()).spawn(move || {
            let _notices = notices(&repository, sender);
            watch(repository, start, options, &receiver, on_change);
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // Both fail only if the thread is gone already.
        let _ = self.stop.send(WatchMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asks the system for notices. Without them the periodic look is enough, only slower.
fn notices(repository: &Repository, sender: Sender<WatchMessage>) -> Option<notify::RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        // Reading isn't changing; errors (an overflow, say) are a reason to look.
        let is_read = matches!(&event, Ok(event) if matches!(event.kind, EventKind::Access(_)));
        if !is_read {
            let _ = sender.send(WatchMessage::Touched);
        }
    };
    let watcher = notify::recommended_watcher(on_event).and_then(|mut watcher| {
        repository.roots().iter().try_for_each(|root| watcher.watch(root, RecursiveMode::Recursive))?;
        Ok(watcher)
    });
    watcher
        .inspect_err(|error| {
            tracing::warn!(%error, "the system gives no notice of changed files: looking from time to time instead");
        })
        .ok()
}

fn watch(
    mut repository: Repository,
    start: Vec<ScanEntry>,
    options: WatchOptions,
    messages: &Receiver<WatchMessage>,
    mut on_change: impl FnMut(Vec<Change>),
) {
    let origin = Instant::now();
    let mut changes = Changes::new(options.settling, start);
    let mut unreadable = false;
    // The first look is at once: nobody was told of what happened between the scan and the start of the notices.
    let mut wait = Duration::ZERO;
    while wait_quiet(messages, wait, options.settling) {
        let began = Instant::now();
        let scan = repository.scan();
        let took = Duration::from(began.elapsed());
        match scan {
            Ok(scan) => {
                unreadable = false;
                let now = Timestamp::ZERO + Duration::from(origin.elapsed());
                let settled = changes.look(now, scan);
                if !settled.is_empty() {
                    on_change(settled);
                }
            }
            // What is served goes on being served; said once, not with every look.
            Err(error) if !unreadable => {
                unreadable = true;
                tracing::warn!(%error, "the models that were found before stay");
            }
            Err(_) => {}
        }
        wait = if changes.is_settling() { options.settling } else { pause(options, took) };
    }
}

/// How long to wait for a notice after a look that took so long.
fn pause(options: WatchOptions, took: Duration) -> Duration {
    options.rescan.max(took * LOOKING_SHARE)
}

/// Waits up to `wait` for a touch, then for the rest of the settling time so that a storm of touches is one look.
/// False: stop.
fn wait_quiet(messages: &Receiver<WatchMessage>, wait: Duration, settling: Duration) -> bool {
    match messages.recv_timeout(wait.into()) {
        Ok(WatchMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
        Err(RecvTimeoutError::Timeout) => return true,
        Ok(WatchMessage::Touched) => {}
    }
    let until = Instant::now() + std::time::Duration::from(settling);
    loop {
        match messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(WatchMessage::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            Err(RecvTimeoutError::Timeout) => return true,
            Ok(WatchMessage::Touched) if Instant::now() >= until => return true,
            Ok(WatchMessage::Touched) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// Far longer than anything here takes: reached only when a notice never comes.
    const FOREVER: std::time::Duration = std::time::Duration::from_secs(60);

    fn start(root: &Path, options: WatchOptions) -> (Watcher, Receiver<Vec<Change>>) {
        let mut repository = Repository::open([root]).unwrap();
        let first = repository.scan().unwrap();
        let (sender, receiver) = mpsc::channel();
        let on_change = move |changes| sender.send(changes).unwrap();
        (Watcher::start(repository, first, options, on_change).unwrap(), receiver)
    }

    /// In one step, as seen from outside: a slow machine must not see half of it settle.
    fn put_model(root: &Path, name: &str) {
        let hidden = root.join(".being-written");
        fs::create_dir_all(hidden.join("1")).unwrap();
        fs::write(hidden.join("1/model.onnx"), "abc").unwrap();
        fs::rename(hidden, root.join(name)).unwrap();
    }

    fn adds_and_removes(options: WatchOptions) {
        let folder = tempfile::tempdir().unwrap();
        put_model(folder.path(), "old");
        let (watcher, changes) = start(folder.path(), options);
        put_model(folder.path(), "new");
        let added = changes.recv_timeout(FOREVER).unwrap();
        let [Change::Added(ScanEntry::Found(found))] = &added[..] else { panic!("{added:?}") };
        assert_eq!((found.name.as_str(), found.version), ("new", 1));
        fs::rename(folder.path().join("old"), folder.path().join(".gone")).unwrap();
        let removed = changes.recv_timeout(FOREVER).unwrap();
        assert_eq!(removed, [Change::Removed { name: "old".into(), version: Some(1) }]);
        drop(watcher);
        assert!(changes.recv().is_err(), "the thread has ended and with it the callback");
    }

    #[test]
    fn many_models_are_looked_at_less_often_so_that_looking_stays_a_hundredth_of_a_core() {
        let options = WatchOptions::default();
        assert_eq!(pause(options, Duration::from_millis(3)), options.rescan);
        assert_eq!(pause(options, Duration::from_millis(350)), Duration::from_secs(35));
    }

    #[test]
    fn notices_are_enough() {
        adds_and_removes(WatchOptions { settling: Duration::from_millis(50), rescan: Duration::from_secs(3600) });
    }

    #[test]
    fn looking_from_time_to_time_is_enough() {
        // A link into another folder: the system's notices don't follow it.
        let (folder, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        put_model(elsewhere.path(), "m");
        std::os::unix::fs::symlink(elsewhere.path().join("m"), folder.path().join("m")).unwrap();
        let options = WatchOptions { settling: Duration::from_millis(20), rescan: Duration::from_millis(20) };
        let (_watcher, changes) = start(folder.path(), options);
        fs::write(elsewhere.path().join("m/1/model.onnx"), "longer than before").unwrap();
        let changed = changes.recv_timeout(FOREVER).unwrap();
        assert!(matches!(&changed[..], [Change::Changed(ScanEntry::Found(found))] if found.name == "m"), "{changed:?}");
    }
}
