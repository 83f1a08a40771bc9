//! Files that are read again when they change, while the server runs.

use crate::server::block_on;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// How often they are looked at. A look is a system call for each file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What tells one state of a file from another: which it is, its length, when it was written. `None`: it isn't there.
type FileStamp = Option<(u64, u64, i64, i64)>;

/// Files that belong together, and what to do when one of them has changed.
pub(crate) struct WatchedFiles {
    /// What they are, for the log.
    what: &'static str,
    paths: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<(), String> + Send>,
    /// As they were when they were read; `None` before that.
    seen: Option<Vec<FileStamp>>,
}

impl WatchedFiles {
    pub(crate) fn new(
        what: &'static str,
        paths: Vec<PathBuf>,
        read: impl Fn() -> Result<(), String> + Send + 'static,
    ) -> Self {
        Self { what, paths, read: Box::new(read), seen: None }
    }

    /// Reads them if they have changed. The first look reads them in any case: they may have changed since the start.
    fn look(&mut self) {
        let now: Vec<FileStamp> = self.paths.iter().map(stamp).collect();
        if self.seen.as_ref() == Some(&now) {
            return;
        }
        let first = self.seen.replace(now).is_none();
        match (self.read)() {
            Ok(()) if first => {}
            Ok(()) => tracing::info!("{} were read again", self.what),
            Err(reason) => tracing::error!("{} have changed, but stay as they were: {reason}", self.what),
        }
    }
}

fn stamp(path: &PathBuf) -> FileStamp {
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
}

/// Looks at files until the server goes down.
pub(crate) fn watch_files(mut files: Vec<WatchedFiles>, mut closing: watch::Receiver<bool>) {
    block_on(async move {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                _ = looks.tick() => files.iter_mut().for_each(WatchedFiles::look),
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn a_change_is_read_once_also_if_it_is_another_file_of_that_name() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&path, "one").unwrap();
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let mut files = WatchedFiles::new("files", vec![path.clone()], move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Err("it is broken".to_owned())
        });
        let mut looked = || {
            files.look();
            files.look();
            reads.load(Ordering::Relaxed)
        };
        assert_eq!(looked(), 1);
        std::fs::write(&path, "longer").unwrap();
        assert_eq!(looked(), 2, "what can't be read isn't tried again until it changes");
        std::fs::write(&other, "LONGER").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(looked(), 3);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(looked(), 4);
    }
}
