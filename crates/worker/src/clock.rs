//! The one clock of the process.

use base::{Duration, Timestamp};
use std::time::Instant;

/// Counts from the moment it was made. Copies agree with each other.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts one second after its zero, so that a little before now can still be written down.
    pub fn start() -> Self {
        Self { origin: Instant::now() }
    }

    /// This moment.
    pub fn now(&self) -> Timestamp {
        self.at(Instant::now())
    }

    /// That moment, which isn't before the clock was made.
    pub fn at(&self, instant: Instant) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(1) + Duration::from(instant.saturating_duration_since(self.origin))
    }
}
