//! The thread that writes traces to files.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Traces that may wait to be written (P9); more are left out.
const MAX_WAITING: usize = 4096;

/// What stands at the end of a file, and is written over when more comes.
const END: &str = "\n]\n";

/// One trace.
pub(super) struct Record {
    /// How many traces go into one file; 0: all.
    pub frequency: u32,
    /// Objects, separated by commas.
    pub json: String,
}

enum WriterMessage {
    Record(Record),
    Flush,
}

/// The thread, which ends when this is dropped, after it has written everything.
#[derive(Debug)]
pub(super) struct Writer {
    sender: Option<SyncSender<WriterMessage>>,
    thread: Option<JoinHandle<()>>,
    full: AtomicBool,
}

impl Writer {
    pub fn start(file: &Path) -> io::Result<Self> {
        let (sender, messages) = sync_channel(MAX_WAITING);
        let files = Files { base: file.to_owned(), open: None, gathered: Vec::new(), next: 0 };
        let thread = std::thread::Builder::new().name("traces".into()).spawn(move || files.run(&messages))?;
        Ok(Self { sender: Some(sender), thread: Some(thread), full: AtomicBool::new(false) })
    }

    pub fn write(&self, record: Record) {
        self.send(WriterMessage::Record(record));
    }

    /// Writes what waits for more of its file.
    pub fn flush(&self) {
        self.send(WriterMessage::Flush);
    }

    fn send(&self, message: WriterMessage) {
        let sent = self.sender.as_ref().is_some_and(|sender| sender.try_send(message).is_ok());
        if !sent && !self.full.swap(true, Ordering::Relaxed) {
            tracing::warn!("traces come faster than they can be written: some are left out; set a higher trace_rate");
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.sender = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The files, as the thread sees them.
struct Files {
    base: PathBuf,
    /// The one that everything goes to without a frequency, and where its end stands.
    open: Option<(File, u64)>,
    /// Traces for the next numbered file.
    gathered: Vec<String>,
    next: u32,
}

impl Files {
    fn run(mut self, messages: &Receiver<WriterMessage>) {
        while let Ok(message) = messages.recv() {
            let done = match message {
                WriterMessage::Record(Record { frequency: 0, json }) => self.append(&json),
                WriterMessage::Record(Record { frequency, json }) => {
                    self.gathered.push(json);
                    if self.gathered.len() >= frequency as usize { self.flush() } else { Ok(()) }
                }
                WriterMessage::Flush => self.flush(),
            };
            self.complain(done);
        }
        let done = self.flush();
        self.complain(done);
    }

    fn complain(&self, done: io::Result<()>) {
        if let Err(error) = done {
            tracing::error!("traces could not be written to {}: {error}", self.base.display());
        }
    }

    /// The file is whole JSON after every trace: whoever looks can read it.
    fn append(&mut self, json: &str) -> io::Result<()> {
        if self.open.is_none() {
            self.open = Some((File::create(&self.base)?, 0));
        }
        let Some((file, end)) = &mut self.open else { return Ok(()) };
        let text = format!("{}{json}", if *end == 0 { "[\n" } else { ",\n" });
        file.seek(SeekFrom::Start(*end))?;
        file.write_all(format!("{text}{END}").as_bytes())?;
        *end += text.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let mut name = self.base.clone().into_os_string();
        name.push(format!(".{}", self.next));
        self.next += 1;
        let text = format!("[\n{}{END}", std::mem::take(&mut self.gathered).join(",\n"));
        std::fs::write(name, text)
    }
}
