//! The thread that writes the log. Whoever has something to say hands it over and goes on, also while nobody reads it:
//! then lines are left out, and the log says how many.

use crate::logs::Format;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

/// Lines that may wait to be written (P9), and their bytes; more are left out.
const MAX_LINES: usize = 8192;
const MAX_BYTES: usize = 4 << 20;
/// How often whoever wants everything to be written looks whether it can say so.
const FLUSH_PAUSE: Duration = Duration::from_millis(1);

enum Message {
    Line(Vec<u8>),
    /// Says when everything before it is written.
    Flush(SyncSender<()>),
}

/// Where lines are handed over.
#[derive(Clone, Debug)]
pub(crate) struct LogWriter {
    messages: SyncSender<Message>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    waiting_bytes: AtomicUsize,
    /// Lines that were left out, and of which the log doesn't tell yet.
    lost: AtomicU64,
}

impl LogWriter {
    /// Starts the thread, which ends with the last handle.
    pub fn start(format: Format, out: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, messages) = sync_channel(MAX_LINES);
        let counts = Arc::<Counts>::default();
        let writer = Self { messages: sender, counts: Arc::clone(&counts) };
        std::thread::Builder::new().name("log".into()).spawn(move || run(&messages, &counts, format, out))?;
        Ok(writer)
    }

    /// Waits until everything is written that was handed over before, but no longer than that: nobody may read it.
    pub fn flush_within(&self, time: Duration) {
        let give_up_at = Instant::now() + time;
        let (done, flushed) = sync_channel(1);
        while self.messages.try_send(Message::Flush(done.clone())).is_err() {
            if Instant::now() >= give_up_at {
                return;
            }
            std::thread::sleep(FLUSH_PAUSE);
        }
        let _ = flushed.recv_timeout(give_up_at.saturating_duration_since(Instant::now()));
    }

    fn hand_over(&self, line: &[u8]) -> bool {
        let waiting = self.counts.waiting_bytes.fetch_add(line.len(), Ordering::Relaxed);
        let taken = waiting.saturating_add(line.len()) <= MAX_BYTES
            && self.messages.try_send(Message::Line(line.to_vec())).is_ok();
        if !taken {
            self.counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
        }
        taken
    }
}

/// A call is a line: `tracing-subscriber` writes each in one.
impl Write for &LogWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if !self.hand_over(line) {
            self.counts.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

fn run(messages: &Receiver<Message>, counts: &Counts, format: Format, mut out: impl Write) {
    // There is nobody to tell that the log can't be written.
    while let Ok(message) = messages.recv() {
        match message {
            Message::Line(line) => {
                let _ = out.write_all(&line);
                counts.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Message::Flush(done) => {
                let _ = done.try_send(());
            }
        }
        let lost = counts.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            let _ = out.write_all(lost_line(format, lost).as_bytes());
        }
    }
}

/// The line that stands for those that were left out.
fn lost_line(format: Format, lost: u64) -> String {
    let mut at = String::new();
    let _ = SystemTime.format_time(&mut Writer::new(&mut at));
    let message = format!("{lost} lines of the log are left out: they came faster than they were read");
    match format {
        Format::Text => format!("{at}  WARN {message}\n"),
        Format::Json => {
            let line = serde_json::json!({ "timestamp": at, "level": "WARN", "message": message, "lost": lost });
            format!("{line}\n")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    /// How many lines a text has, and of how many it says that they are left out.
    fn counted(text: &str) -> (u64, u64) {
        let lost = |line: &str| line.split_once(" lines of the log")?.0.rsplit(' ').next()?.parse::<u64>().ok();
        let told = text.lines().filter_map(lost).sum();
        (text.lines().filter(|line| line.starts_with("line")).count() as u64, told)
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_says_later_what_is_left_out() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = LogWriter::start(Format::Text, writer).unwrap();
        let line = format!("line {}\n", "x".repeat(1000));
        for _ in 0..20_000 {
            (&log).write_all(line.as_bytes()).unwrap();
        }
        assert!(log.counts.waiting_bytes.load(Ordering::Relaxed) <= MAX_BYTES);
        log.flush_within(Duration::ZERO);
        drop(log);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        let (written, lost) = counted(&text);
        assert!(lost > 0 && written * 1000 > 1_000_000, "{written}, {lost}");
        assert_eq!(written + lost, 20_000);
    }

    #[test]
    fn what_was_handed_over_is_written_once_it_is_flushed() {
        let (mut reader, writer) = io::pipe().unwrap();
        let log = LogWriter::start(Format::Json, writer).unwrap();
        (&log).write_all(b"line of the end\n").unwrap();
        log.flush_within(Duration::from_secs(60));
        let mut there = [0; 16];
        reader.read_exact(&mut there).unwrap();
        assert_eq!(&there, b"line of the end\n");
        assert_eq!(log.counts.waiting_bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_is_left_out_is_json_where_the_log_is() {
        let line: serde_json::Value = serde_json::from_str(&lost_line(Format::Json, 7)).unwrap();
        assert_eq!((line["level"].as_str(), line["lost"].as_u64()), (Some("WARN"), Some(7)));
    }
}
