//! What endpoints have learnt, in a file, across restarts: written beside the requests, once a second at most.

use super::selection::SelectionState;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use selection::{ContextChange, Learner, PolicyTable};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// The file; a format that can't be read by those before it has another name.
const FILE: &str = "selection-1.redb";
/// Each endpoint's kind and members, in lines.
const HEADS: TableDefinition<'_, &str, &str> = TableDefinition::new("heads");
/// What all feedback for an endpoint made.
const SHARED: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("shared");
/// What feedback of one context made.
const CONTEXTS: TableDefinition<'_, (&str, u128), &[u8]> = TableDefinition::new("contexts");
/// How often changes are written.
const WRITE_EVERY: Duration = Duration::from_secs(1);
/// Changes of one endpoint that are written at a time: a flood of users takes longer, not more memory.
const MOST_CHANGES: usize = 4_096;

/// The file, and the thread that writes it. Dropped, what is left is written.
#[derive(Debug)]
pub(super) struct SelectionStore {
    database: Arc<Database>,
    watched: Option<Sender<Watched>>,
    thread: Option<JoinHandle<()>>,
}

/// An endpoint whose changes are written.
struct Watched {
    name: String,
    kind: &'static str,
    state: Weak<SelectionState>,
}

impl SelectionStore {
    /// Opens the file in a folder. Where that fails, nothing outlives the server, and the log says so.
    pub(super) fn open(folder: &Path) -> Option<Self> {
        let file = folder.join(FILE);
        let opened = std::fs::create_dir_all(folder)
            .map_err(|error| error.to_string())
            .and_then(|()| Database::create(&file).map_err(|error| error.to_string()));
        let database = opened
            .inspect_err(|error| {
                tracing::warn!(
                    "what endpoints learn won't outlive this server: {} can't be opened: {error}",
                    file.display()
                );
            })
            .ok()?;
        let database = Arc::new(database);
        let (watched, news) = mpsc::channel::<Watched>();
        let written = Arc::clone(&database);
        let thread = std::thread::Builder::new().name("selection".into()).spawn(move || {
            let mut endpoints: Vec<Watched> = Vec::new();
            loop {
                let news = news.recv_timeout(WRITE_EVERY);
                let ends = matches!(news, Err(RecvTimeoutError::Disconnected));
                if let Ok(watched) = news {
                    endpoints.retain(|other: &Watched| other.name != watched.name && other.state.strong_count() > 0);
                    endpoints.push(watched);
                    continue;
                }
                endpoints.iter().for_each(|endpoint| endpoint.write(&written));
                if ends {
                    return;
                }
            }
        });
        Some(Self { database, watched: Some(watched), thread: thread.ok() })
    }

    /// Writes the changes of an endpoint from now on.
    pub(super) fn watch(&self, name: &str, kind: &'static str, state: &Arc<SelectionState>) {
        if let Some(watched) = &self.watched {
            // Fails only if the thread couldn't be started.
            let _ = watched.send(Watched { name: name.to_owned(), kind, state: Arc::downgrade(state) });
        }
    }

    /// What was learnt of an endpoint of that kind, and its members at that time.
    pub(super) fn read(&self, name: &str, table: &PolicyTable) -> Option<(Vec<String>, Learner)> {
        let read = self.try_read(name, table);
        let failed = |error: &redb::Error| tracing::warn!(endpoint = name, "what it has learnt can't be read: {error}");
        read.inspect_err(failed).ok().flatten()
    }

    fn try_read(&self, name: &str, table: &PolicyTable) -> Result<Option<(Vec<String>, Learner)>, redb::Error> {
        let reading = self.database.begin_read()?;
        let heads = match reading.open_table(HEADS) {
            Ok(heads) => heads,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(head) = heads.get(name)? else { return Ok(None) };
        let mut lines = head.value().lines().map(str::to_owned);
        if lines.next().as_deref() != Some(table.kind()) {
            return Ok(None);
        }
        let members: Vec<String> = lines.collect();
        let Some(mut learner) = Learner::of_members(table, members.len()) else { return Ok(None) };
        let mut unread = 0;
        let mut restore = |change| {
            if learner.contexts().restore(&change).is_err() {
                unread += 1;
            }
        };
        if let Some(shared) = reading.open_table(SHARED)?.get(name)? {
            restore(ContextChange::Shared(shared.value().to_vec()));
        }
        for context in reading.open_table(CONTEXTS)?.range((name, 0)..=(name, u128::MAX))? {
            let (key, saved) = context?;
            restore(ContextChange::Own(key.value().1, saved.value().to_vec()));
        }
        if unread > 0 {
            tracing::warn!(
                endpoint = name,
                "{unread} of the weights that it has learnt are of another version, and are learnt anew"
            );
        }
        Ok(Some((members, learner)))
    }
}

impl Drop for SelectionStore {
    fn drop(&mut self) {
        self.watched = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watched {
    fn write(&self, database: &Database) {
        let Some(state) = self.state.upgrade() else { return };
        let changes = state.take_changes(MOST_CHANGES);
        if changes.is_empty() {
            return;
        }
        if let Err(error) = self.try_write(database, &state, &changes) {
            tracing::warn!(endpoint = self.name, "what it has learnt can't be written, and is tried again: {error}");
            state.put_back(changes);
        }
    }

    fn try_write(
        &self,
        database: &Database,
        state: &SelectionState,
        changes: &[ContextChange],
    ) -> Result<(), redb::Error> {
        let writing = database.begin_write()?;
        {
            let name = self.name.as_str();
            let head = [&[self.kind.to_owned()], state.members()].concat().join("\n");
            let mut heads = writing.open_table(HEADS)?;
            let is_same = heads.get(name)?.is_some_and(|known| known.value() == head);
            let (mut shared, mut contexts) = (writing.open_table(SHARED)?, writing.open_table(CONTEXTS)?);
            if !is_same {
                // Weights of other members: all that is to stay comes as changes.
                contexts.retain_in((name, 0)..=(name, u128::MAX), |_, _| false)?;
                heads.insert(name, head.as_str())?;
            }
            for change in changes {
                match change {
                    ContextChange::Shared(saved) => drop(shared.insert(name, saved.as_slice())?),
                    ContextChange::Own(key, saved) => drop(contexts.insert((name, *key), saved.as_slice())?),
                    ContextChange::Gone(key) => drop(contexts.remove((name, *key))?),
                }
            }
        }
        writing.commit()?;
        Ok(())
    }
}
