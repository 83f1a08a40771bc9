//! The driver's side: packs what it is given, and leaves the disk to a thread of its own.

use crate::format::{self, BLOCK_HEAD, BlockKind, CHUNK_AGE, End, Ending, FORMAT, Header, MAGIC};
use base::Timestamp;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use scheduler::{Command, Event, Fingerprint};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A chunk is handed over when it has so many bytes.
const CHUNK_BYTES: usize = 64 << 10;
/// So many chunks may wait for the disk.
const CHUNKS: usize = 64;
/// How long the end of a server waits for a disk that stands still.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// What the block at the end takes at most.
const END_ROOM: u64 = 64;

/// How much is recorded.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The file has at most so many bytes.
    pub bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: 1 << 30 }
    }
}

/// Records what a scheduler is told. Dropping it ends the recording and waits for the file.
#[derive(Debug)]
pub struct Recorder {
    chunk: Vec<u8>,
    /// When the first step of the chunk was.
    chunk_at: Timestamp,
    last: Timestamp,
    steps: u64,
    fingerprint: Fingerprint,
    /// Bytes of the file, with all that was handed over.
    bytes: u64,
    limits: Limits,
    /// `None` when the recording is over.
    writer: Option<Writer>,
}

/// A part of the file, and how far it goes.
struct Chunk {
    bytes: Vec<u8>,
    steps: u64,
    fingerprint: u64,
}

#[derive(Debug)]
struct Writer {
    chunks: Sender<Chunk>,
    /// Buffers that were written and may be used again.
    spare: Receiver<Vec<u8>>,
    ending: Arc<AtomicU8>,
    thread: JoinHandle<()>,
}

impl Recorder {
    /// Records into a file. One that is there is kept beside it, as `FILE.1`: a server that is started anew after an
    /// incident must not write over what led to it.
    pub fn create(path: &Path, header: &Header, limits: Limits) -> io::Result<Self> {
        if path.exists() {
            std::fs::rename(path, kept(path))?;
        }
        let file = std::fs::OpenOptions::new().write(true).create_new(true).open(path)?;
        Self::start(Box::new(file), path.display().to_string(), header, limits)
    }

    /// Records into anything. The name is for the log.
    pub fn start(mut sink: Box<dyn Write + Send>, name: String, header: &Header, limits: Limits) -> io::Result<Self> {
        let mut first = MAGIC.to_vec();
        first.extend(FORMAT.to_le_bytes());
        let header = postcard::to_stdvec(header).map_err(io::Error::other)?;
        first.extend(format::block_head(BlockKind::Header, &header));
        first.extend(header);
        sink.write_all(&first)?;
        let (chunks, received) = bounded(CHUNKS);
        let (written, spare) = bounded(CHUNKS);
        let ending = Arc::new(AtomicU8::new(code(Ending::Stopped)));
        let thread = {
            let ending = Arc::clone(&ending);
            let work = move || write(&mut *sink, &name, &received, &written, &ending);
            std::thread::Builder::new().name("recorder".into()).spawn(work)?
        };
        Ok(Self {
            chunk: Vec::with_capacity(CHUNK_BYTES * 2),
            chunk_at: Timestamp::ZERO,
            last: Timestamp::ZERO,
            steps: 0,
            fingerprint: Fingerprint::default(),
            bytes: first.len() as u64,
            limits,
            writer: Some(Writer { chunks, spare, ending, thread }),
        })
    }

    /// The scheduler is about to be told this. Before it is: if it doesn't come back, that is what is wanted.
    pub fn told(&mut self, now: Timestamp, event: &Event) {
        if self.writer.is_none() {
            return;
        }
        if self.chunk.is_empty() {
            self.chunk_at = now;
        }
        let step = (format::since(self.last, now), event);
        let chunk = std::mem::take(&mut self.chunk);
        // Only a sequence whose length isn't known can't be written, and there is none.
        self.chunk = postcard::to_extend(&step, chunk).expect("events can be written to memory");
        self.last = now;
    }

    /// The scheduler ordered this.
    pub fn ordered(&mut self, now: Timestamp, commands: &[Command]) {
        if self.writer.is_none() {
            return;
        }
        commands.iter().for_each(|command| self.fingerprint.add(now, command));
        self.chunk.extend(format::check(self.fingerprint).to_le_bytes());
        self.steps += 1;
        if self.chunk.len() >= CHUNK_BYTES || now.since(self.chunk_at) >= CHUNK_AGE {
            self.hand_over();
        }
    }

    /// Ends the recording and waits for the file, within reason. What the scheduler was told last is in it, whether it
    /// came back or not.
    pub fn end(&mut self, ending: Ending) {
        let patience = Instant::now() + PATIENCE;
        while self.writer.as_ref().is_some_and(|writer| writer.chunks.is_full()) && Instant::now() < patience {
            std::thread::sleep(PAUSE);
        }
        if !self.chunk.is_empty() {
            self.hand_over();
        }
        let Some(writer) = self.writer.take() else { return };
        let thread = writer.close(ending);
        while !thread.is_finished() && Instant::now() < patience {
            std::thread::sleep(PAUSE);
        }
    }

    /// Whether the recording has ended, for whatever reason.
    pub fn is_over(&self) -> bool {
        self.writer.is_none()
    }

    fn hand_over(&mut self) {
        let Some(writer) = &self.writer else { return };
        let bytes = self.bytes + (BLOCK_HEAD + self.chunk.len()) as u64;
        if bytes + END_ROOM > self.limits.bytes {
            return self.give_up(Ending::LimitReached);
        }
        let spare = writer.spare.try_recv().unwrap_or_default();
        let chunk = Chunk {
            bytes: std::mem::replace(&mut self.chunk, spare),
            steps: self.steps,
            fingerprint: self.fingerprint.value(),
        };
        match writer.chunks.try_send(chunk) {
            Ok(()) => self.bytes = bytes,
            Err(TrySendError::Full(_)) => self.give_up(Ending::TooSlow),
            // It has said why.
            Err(TrySendError::Disconnected(_)) => self.writer = None,
        }
    }

    /// Stops without waiting. What wasn't handed over isn't in the file: a recording has no hole.
    fn give_up(&mut self, ending: Ending) {
        if let Some(writer) = self.writer.take() {
            drop(writer.close(ending));
        }
        self.chunk = Vec::new();
    }
}

impl Writer {
    /// Lets the thread write what it has, and the end.
    fn close(self, ending: Ending) -> JoinHandle<()> {
        self.ending.store(code(ending), Ordering::Release);
        self.thread
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end(Ending::Stopped);
    }
}

/// Where a recording goes that another one takes the place of.
fn kept(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".1");
    name.into()
}

const ENDINGS: [Ending; 4] = [Ending::Stopped, Ending::LimitReached, Ending::TooSlow, Ending::Broken];

fn code(ending: Ending) -> u8 {
    ending as u8
}

/// The thread: writes chunks until there are no more, then how it ended.
fn write(sink: &mut dyn Write, name: &str, chunks: &Receiver<Chunk>, spare: &Sender<Vec<u8>>, ending: &AtomicU8) {
    let mut end = End { ending: Ending::Stopped, steps: 0, fingerprint: Fingerprint::default().value() };
    let outcome = (|| {
        while let Ok(mut chunk) = chunks.recv() {
            block(sink, BlockKind::Steps, &chunk.bytes)?;
            end = End { steps: chunk.steps, fingerprint: chunk.fingerprint, ..end };
            chunk.bytes.clear();
            let _ = spare.try_send(chunk.bytes);
        }
        end.ending = ENDINGS[ending.load(Ordering::Acquire) as usize];
        block(sink, BlockKind::End, &postcard::to_stdvec(&end).map_err(io::Error::other)?)?;
        sink.flush()
    })();
    let steps = end.steps;
    match (outcome, end.ending) {
        (Err(error), _) => tracing::error!("recording into {name} stopped after {steps} events: {error}"),
        (Ok(()), Ending::LimitReached) => tracing::warn!(
            "recording into {name} stopped after {steps} events: the file has reached its limit (--record-limit)"
        ),
        (Ok(()), Ending::TooSlow) => {
            tracing::warn!("recording into {name} stopped after {steps} events: the disk is too slow for them");
        }
        (Ok(()), Ending::Stopped | Ending::Broken) => tracing::info!("{steps} events are recorded in {name}"),
    }
}

fn block(sink: &mut dyn Write, kind: BlockKind, payload: &[u8]) -> io::Result<()> {
    sink.write_all(&format::block_head(kind, payload))?;
    sink.write_all(payload)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Recording, Step};
    use base::DeviceId;
    use scheduler::DeviceSpec;
    use std::sync::Mutex;
    use std::sync::mpsc;

    fn header() -> Header {
        let config = scheduler::Config { timeout: 0.3, ..scheduler::Config::default() };
        Header { version: "0.0.7".into(), recorded_at: 5, max_requests: 9, config }
    }

    /// Memory that can be looked at.
    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Shared {
        fn read(&self) -> Recording<io::Cursor<Vec<u8>>> {
            Recording::read(io::Cursor::new(self.0.lock().unwrap().clone())).unwrap()
        }
    }

    fn record(shared: &Shared, limits: Limits) -> Recorder {
        Recorder::start(Box::new(shared.clone()), "memory".into(), &header(), limits).unwrap()
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_nanos(micros * 1_000)
    }

    #[test]
    fn what_is_recorded_is_read() {
        let shared = Shared::default();
        let mut recorder = record(&shared, Limits::default());
        let gap = base::Duration::from_micros(3);
        let stage = scheduler::StageSpec { model: base::ModelId(0), next: Vec::new(), calls: 1.5, varies: true, gap };
        let request = scheduler::Request {
            id: base::RequestId { slot: 1, generation: 2 },
            model: base::ModelId(0),
            deadline_at: at(9),
            priority: 0,
            rows: 1,
            application: base::ApplicationId::DEFAULT,
            size: None,
        };
        let events = [
            Event::DeviceAdded(DeviceSpec { device: DeviceId(0), pages: 7, kind: 1 }),
            Event::WokeUp,
            Event::DeviceLost(DeviceId(0)),
            Event::PipelineAdded(scheduler::PipelineSpec { pipeline: base::PipelineId(0), stages: vec![stage] }),
            Event::StageSubmitted(request, scheduler::PipelineStage { pipeline: base::PipelineId(0), stage: 0 }),
            Event::PipelineRemoved(base::PipelineId(0)),
            Event::Allotted(vec![scheduler::Allotment { device: DeviceId(0), models: Some(vec![base::ModelId(3)]) }]),
        ];
        let unload = Command::Unload(scheduler::Unload { device: DeviceId(0), model: base::ModelId(3) });
        for (index, event) in events.iter().enumerate() {
            let now = at(1_000 * index as u64 + 5);
            recorder.told(now, event);
            recorder.ordered(now, &vec![unload.clone(); index]);
        }
        let fingerprint = recorder.fingerprint.value();
        recorder.end(Ending::Stopped);
        let mut recording = shared.read();
        assert_eq!(recording.header().version, "0.0.7");
        assert_eq!(recording.header().config.timeout, 0.3);
        let steps: Vec<Step> = recording.by_ref().collect::<Result<_, _>>().unwrap();
        let read: Vec<_> = steps.iter().map(|step| (step.now, step.event.clone())).collect();
        let told: Vec<_> =
            events.into_iter().enumerate().map(|(index, event)| (at(1_000 * index as u64 + 5), event)).collect();
        assert_eq!(read, told);
        assert!(steps.iter().all(|step| step.check.is_some()));
        assert_eq!(recording.end(), Some(End { ending: Ending::Stopped, steps: 7, fingerprint }));
    }

    #[test]
    fn at_the_limit_the_recording_ends_and_says_so() {
        let shared = Shared::default();
        let limit = 300_000;
        let mut recorder = record(&shared, Limits { bytes: limit });
        let mut told = 0;
        while !recorder.is_over() {
            recorder.told(at(told), &Event::WokeUp);
            recorder.ordered(at(told), &[]);
            told += 1;
        }
        // Later ones cost nothing and change nothing.
        recorder.told(at(told), &Event::WokeUp);
        recorder.ordered(at(told), &[]);
        while shared.0.lock().unwrap().last_chunk::<BLOCK_HEAD>().is_none() || end_of(&shared).is_none() {
            std::thread::yield_now();
        }
        let end = end_of(&shared).unwrap();
        assert_eq!(end.ending, Ending::LimitReached);
        assert!(end.steps > 0 && end.steps < told, "{} of {told}", end.steps);
        let bytes = shared.0.lock().unwrap().len() as u64;
        assert!(bytes <= limit && bytes > limit / 2, "{bytes} bytes");
    }

    fn end_of(shared: &Shared) -> Option<End> {
        let mut recording = shared.read();
        let steps = recording.by_ref().filter(Result::is_ok).count() as u64;
        let end = recording.end();
        assert!(end.is_none_or(|end| end.steps == steps));
        end
    }

    /// A disk that takes nothing until it is told to.
    struct Stuck(Shared, mpsc::Receiver<()>, bool);

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if std::mem::replace(&mut self.2, true) {
                let _ = self.1.recv();
            }
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_slow_disk_ends_the_recording_without_a_hole_and_nobody_waits() {
        let shared = Shared::default();
        let (go_on, waits) = mpsc::channel();
        let sink = Box::new(Stuck(shared.clone(), waits, false));
        let mut recorder = Recorder::start(sink, "stuck".into(), &header(), Limits::default()).unwrap();
        let mut told = 0;
        // The disk stands still: if the recorder waited for it, this would never end.
        while !recorder.is_over() {
            recorder.told(at(told), &Event::WokeUp);
            recorder.ordered(at(told), &[]);
            told += 1;
        }
        drop(go_on);
        while end_of(&shared).is_none() {
            std::thread::yield_now();
        }
        let end = end_of(&shared).unwrap();
        assert_eq!(end.ending, Ending::TooSlow);
        assert!(end.steps > 0 && end.steps < told);
        for (index, step) in shared.read().enumerate() {
            assert_eq!(step.unwrap().now, at(index as u64), "there is no hole");
        }
    }

    #[test]
    fn a_step_that_never_came_back_is_in_the_file() {
        let shared = Shared::default();
        let mut recorder = record(&shared, Limits::default());
        recorder.told(at(1), &Event::WokeUp);
        recorder.ordered(at(1), &[]);
        recorder.told(at(2), &Event::DeviceLost(DeviceId(4)));
        recorder.end(Ending::Broken);
        let mut recording = shared.read();
        let steps: Vec<Step> = recording.by_ref().collect::<Result<_, _>>().unwrap();
        assert_eq!(steps.len(), 2);
        assert_eq!((&steps[1].event, steps[1].check), (&Event::DeviceLost(DeviceId(4)), None));
        assert_eq!(recording.end().unwrap().ending, Ending::Broken);
    }

    #[test]
    fn a_recording_that_is_there_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events");
        for version in ["old", "new"] {
            drop(Recorder::create(&path, &Header { version: version.into(), ..header() }, Limits::default()).unwrap());
        }
        let version = |path: &Path| Recording::open(path).unwrap().header().version.clone();
        assert_eq!((version(&path), version(&kept(&path))), ("new".into(), "old".into()));
    }
}
