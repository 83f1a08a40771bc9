//! The bytes of a recording.
//!
//! ```text
//!  magic, format │ block: header │ block: steps │ block: steps │ ... │ block: end
//!
//!  block:   kind (1)  length (4)  checksum of the payload (4)  checksum of the nine bytes before (4)  payload
//!  step:    nanoseconds since the step before (varint)  event (postcard)  check (2)
//! ```
//!
//! Numbers are little-endian; varints and structures are [postcard's](https://postcard.jamesmunns.com). A step's check
//! is a part of the fingerprint of all commands so far, so that a replay sees at which step it departs; the last step
//! has none if the scheduler didn't come back from it.

use base::{Duration, Timestamp};
use scheduler::{Config, Fingerprint};
use serde::{Deserialize, Serialize};

/// What a recording begins with.
pub const MAGIC: [u8; 8] = *b"PUNCTREC";
/// The number behind it: another one for each change of what follows, events included.
pub const FORMAT: u16 = 6;
/// Bytes of a block before its payload.
pub const BLOCK_HEAD: usize = 13;
/// No block is larger: a length above it is damage.
pub const MAX_BLOCK: usize = 16 << 20;

/// What a block holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// A [`Header`]; the first block.
    Header,
    /// Steps.
    Steps,
    /// An [`End`]; the last block.
    End,
}

impl BlockKind {
    /// The byte that says so.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Header => b'H',
            Self::Steps => b'S',
            Self::End => b'E',
        }
    }

    /// What a byte says.
    pub const fn of(byte: u8) -> Option<Self> {
        match byte {
            b'H' => Some(Self::Header),
            b'S' => Some(Self::Steps),
            b'E' => Some(Self::End),
            _ => None,
        }
    }
}

/// What was recorded.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Header {
    /// The version of the binary that recorded.
    pub version: String,
    /// When, in seconds since 1970.
    pub recorded_at: u64,
    /// How many requests the driver has in hand at most: slots are below it.
    pub max_requests: u32,
    /// The scheduler's settings.
    pub config: Config,
}

/// How a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub struct End {
    /// Why.
    pub ending: Ending,
    /// How many steps are in the file.
    pub steps: u64,
    /// The fingerprint of their commands.
    pub fingerprint: u64,
}

/// Why a recording ended.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Debug)]
pub enum Ending {
    /// The server was stopped.
    Stopped,
    /// The file has reached its limit.
    LimitReached,
    /// Events came faster than the disk took them.
    TooSlow,
    /// The driver found an invariant broken, and ended the process.
    Broken,
}

impl Ending {
    /// Whether the server went on after the last step of the file.
    pub fn is_cut(self) -> bool {
        matches!(self, Self::LimitReached | Self::TooSlow)
    }
}

impl std::fmt::Display for Ending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Stopped => "the server was stopped",
            Self::LimitReached => "cut: the file had reached its limit",
            Self::TooSlow => "cut: the disk was slower than the events",
            Self::Broken => "the server ended because an invariant was broken",
        })
    }
}

/// The bytes of a block, without its payload.
pub(crate) fn block_head(kind: BlockKind, payload: &[u8]) -> [u8; BLOCK_HEAD] {
    let mut head = [0; BLOCK_HEAD];
    head[0] = kind.byte();
    head[1..5].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[5..9].copy_from_slice(&crc32fast::hash(payload).to_le_bytes());
    let sum = crc32fast::hash(&head[..9]);
    head[9..].copy_from_slice(&sum.to_le_bytes());
    head
}

/// What of a fingerprint stands behind each step. The fingerprint runs on: a difference that these two bytes don't show
/// at one step, they show at the next.
pub fn check(fingerprint: Fingerprint) -> u16 {
    let value = fingerprint.value();
    (value ^ value >> 16 ^ value >> 32 ^ value >> 48) as u16
}

/// How much later a step is than the one before. Wraps: whatever a driver says is kept exactly.
pub(crate) fn since(last: Timestamp, now: Timestamp) -> u64 {
    now.as_nanos().wrapping_sub(last.as_nanos())
}

/// The opposite.
pub(crate) fn after(last: Timestamp, nanos: u64) -> Timestamp {
    Timestamp::from_nanos(last.as_nanos().wrapping_add(nanos))
}

/// How long a chunk waits to be full.
pub(crate) const CHUNK_AGE: Duration = Duration::from_secs(1);
