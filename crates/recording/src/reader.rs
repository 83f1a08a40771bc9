//! Reads a recording. Whatever is wrong with a file is said in a sentence.

use crate::format::{self, BLOCK_HEAD, BlockKind, End, FORMAT, Header, MAGIC, MAX_BLOCK};
use base::Timestamp;
use scheduler::Event;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

/// Why a file can't be read as a recording.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// It can't be read at all.
    #[error("it can't be read: {0}")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("it is not a recording: `punctual serve --record FILE` writes one")]
    NotARecording,
    /// It is of another format.
    #[error(
        "its format is {found}, this binary reads {FORMAT}: replay it with a binary of the version that recorded it"
    )]
    Format {
        /// The number that it has.
        found: u16,
    },
    /// A block isn't what was written.
    #[error("it is damaged at byte {at}: {what}")]
    Damaged {
        /// Where.
        at: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// A block was written so, but makes no sense.
    #[error("it makes no sense behind event {step}, in the block at byte {at}: {reason}")]
    Malformed {
        /// How many events were read.
        step: u64,
        /// Where the block begins.
        at: u64,
        /// What is wrong.
        reason: String,
    },
}

/// One step of the scheduler.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// When.
    pub now: Timestamp,
    /// What it was told.
    pub event: Event,
    /// A part of the fingerprint of all commands, with this step's; `None` if the scheduler didn't come back.
    pub check: Option<u16>,
}

/// A file of events, read one after another. Every error ends it.
#[derive(Debug)]
pub struct Recording<R> {
    source: R,
    header: Header,
    /// Where the next block begins.
    at: u64,
    /// Where the present one began.
    block_at: u64,
    block: Vec<u8>,
    /// How much of the block was read.
    used: usize,
    last: Timestamp,
    steps: u64,
    end: Option<End>,
    over: bool,
}

impl Recording<BufReader<File>> {
    /// Opens a file.
    pub fn open(path: &Path) -> Result<Self, RecordingError> {
        Self::read(BufReader::with_capacity(1 << 18, File::open(path)?))
    }
}

impl<R: Read> Recording<R> {
    /// Reads the beginning of a recording.
    pub fn read(mut source: R) -> Result<Self, RecordingError> {
        let mut start = [0; MAGIC.len() + 2];
        if fill(&mut source, &mut start)? < start.len() || start[..MAGIC.len()] != MAGIC {
            return Err(RecordingError::NotARecording);
        }
        let found = u16::from_le_bytes([start[MAGIC.len()], start[MAGIC.len() + 1]]);
        if found != FORMAT {
            return Err(RecordingError::Format { found });
        }
        let at = start.len() as u64;
        let Some((BlockKind::Header, payload)) = block(&mut source, at)? else {
            return Err(RecordingError::Damaged { at, what: "the settings that should be here are missing" });
        };
        let header = postcard::from_bytes(&payload).map_err(|error| malformed(0, at, &error))?;
        let next = at + (BLOCK_HEAD + payload.len()) as u64;
        Ok(Self {
            source,
            header,
            at: next,
            block_at: next,
            block: Vec::new(),
            used: 0,
            last: Timestamp::ZERO,
            steps: 0,
            end: None,
            over: false,
        })
    }

    /// What was recorded.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How the recording ended, once all steps were read; `None` if the file doesn't say: its server was killed, or
    /// still runs, or the file was cut.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// How many bytes were read.
    pub fn bytes_read(&self) -> u64 {
        self.at
    }

    fn step(&mut self) -> Result<Option<Step>, RecordingError> {
        while self.used == self.block.len() {
            let Some((kind, payload)) = block(&mut self.source, self.at)? else { return Ok(None) };
            self.block_at = self.at;
            self.at += (BLOCK_HEAD + payload.len()) as u64;
            match kind {
                BlockKind::Steps => (self.block, self.used) = (payload, 0),
                BlockKind::End => {
                    self.end = Some(postcard::from_bytes(&payload).map_err(|error| self.malformed(&error))?);
                    return Ok(None);
                }
                BlockKind::Header => return Err(self.malformed(&"settings stand in its middle")),
            }
        }
        let rest = &self.block[self.used..];
        let ((nanos, event), rest) =
            postcard::take_from_bytes::<(u64, Event)>(rest).map_err(|error| self.malformed(&error))?;
        let (check, left) = match rest {
            [] => (None, 0),
            [low, high, rest @ ..] => (Some(u16::from_le_bytes([*low, *high])), rest.len()),
            [_] => return Err(self.malformed(&"a block ends inside a step")),
        };
        self.used = self.block.len() - left;
        self.last = format::after(self.last, nanos);
        self.sense(&event)?;
        self.steps += 1;
        Ok(Some(Step { now: self.last, event, check }))
    }

    /// Numbers index tables: one that no driver gives out must not make them large.
    fn sense(&self, event: &Event) -> Result<(), RecordingError> {
        let most = self.header.max_requests;
        match event {
            event if let Some(request) = event.submitted().filter(|request| request.id.slot >= most) => {
                Err(self.malformed(&format!("{} is a request of a server that has {most} at most", request.id)))
            }
            event if let Some(request) = event.submitted().filter(|request| request.rows == 0) => {
                Err(self.malformed(&format!("{} has no rows", request.id)))
            }
            Event::PipelineAdded(spec) if spec.pipeline.0 > MAX_DENSE => {
                Err(self.malformed(&"there is no such pipeline"))
            }
            Event::PipelineAdded(spec) if !spec.is_sound() => Err(self.malformed(&"a pipeline's stages make no graph")),
            Event::Cancelled(request) if request.slot >= most => {
                Err(self.malformed(&format!("{request} is a request of a server that has {most} at most")))
            }
            Event::DeviceAdded(spec) if spec.device.0 > MAX_DENSE => Err(self.malformed(&"there is no such device")),
            Event::ModelAdded(spec) if spec.model.0 > MAX_DENSE => Err(self.malformed(&"there is no such model")),
            _ => Ok(()),
        }
    }

    fn malformed(&self, reason: &dyn std::fmt::Display) -> RecordingError {
        malformed(self.steps, self.block_at, reason)
    }
}

/// More models and devices than this nobody has.
const MAX_DENSE: u32 = 1 << 24;

impl<R: Read> Iterator for Recording<R> {
    type Item = Result<Step, RecordingError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let step = self.step().transpose();
        self.over = !matches!(step, Some(Ok(_)));
        step
    }
}

fn malformed(step: u64, at: u64, reason: &dyn std::fmt::Display) -> RecordingError {
    RecordingError::Malformed { step, at, reason: reason.to_string() }
}

/// The next block; `None` where the file ends, be it inside of a block: whoever wrote it was ended there.
fn block(source: &mut impl Read, at: u64) -> Result<Option<(BlockKind, Vec<u8>)>, RecordingError> {
    let damaged = |what| Err(RecordingError::Damaged { at, what });
    let mut head = [0; BLOCK_HEAD];
    if fill(source, &mut head)? < BLOCK_HEAD {
        return Ok(None);
    }
    let number = |from: usize| u32::from_le_bytes([head[from], head[from + 1], head[from + 2], head[from + 3]]);
    if crc32fast::hash(&head[..9]) != number(9) {
        return damaged("the head of a block doesn't match its checksum");
    }
    let Some(kind) = BlockKind::of(head[0]) else { return damaged("there is no such kind of block") };
    let length = number(1) as usize;
    if length > MAX_BLOCK {
        return damaged("no block is so large");
    }
    let mut payload = vec![0; length];
    if fill(source, &mut payload)? < length {
        return Ok(None);
    }
    if crc32fast::hash(&payload) != number(5) {
        return damaged("a block doesn't match its checksum");
    }
    Ok(Some((kind, payload)))
}

/// Reads until a buffer is full or the source ends; how much came.
fn fill(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match source.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
