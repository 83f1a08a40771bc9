//! The thread that watches those for which everybody waits. It breaks off executions that take too long, gives up
//! devices of which a thread hangs, and knows what stands still.
//!
//! ```text
//!  begins ──────────── its limit ──────────── as long again ──────>
//!                          │                        │
//!                          └─ broken off            └─ still there, or nothing can break it off: the device is given
//!                             where it can be          up, its thread left behind, and another one started
//! ```

use crate::Inner;
use crate::messages::CellMessage;
use base::{DeviceId, Duration, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;
use worker::{Overdue, Pulse, Watched};

/// How often it looks.
const TICK: Duration = Duration::from_millis(100);
/// How long a thread that answers, plans or wakes may be at one thing.
pub const STANDS_STILL: Duration = Duration::from_secs(10);

/// For how long a batch may be computed.
#[derive(Clone, Debug)]
pub struct ExecutionLimits {
    /// No batch may take longer, whatever its model; nor may a single run that measures a model or warms it up.
    pub most: Duration,
    /// Whether a device of which a thread hangs can be started anew beside it. A GPU's context can't be had back.
    pub comes_back: bool,
}

impl ExecutionLimits {
    /// What holds if nobody says otherwise.
    pub const MOST: Duration = Duration::from_secs(30);
    /// So many times what is expected of a batch is more than bad luck ...
    const TIMES_EXPECTED: u64 = 100;
    /// ... if it is also longer than a machine that is short of everything keeps a thread waiting.
    const LEAST: Duration = Duration::from_secs(5);

    /// Of a batch of which so much is expected. Where requests differ in size nothing follows from that.
    pub(crate) fn of_batch(&self, expected: Duration, uneven: bool) -> Duration {
        if uneven { self.most } else { self.most.min((expected * Self::TIMES_EXPECTED).max(Self::LEAST)) }
    }

    /// Of a load of which so much is expected: disks may be slow.
    pub(crate) fn of_load(&self, expected: Duration) -> Duration {
        self.most.max(expected * Self::TIMES_EXPECTED)
    }
}

impl Default for ExecutionLimits {
    fn default() -> Self {
        Self { most: Self::MOST, comes_back: true }
    }
}

/// Whom it watches, and what it has found.
#[derive(Debug, Default)]
pub(crate) struct Watchdog {
    watched: Mutex<Vec<(Subject, Watched)>>,
    /// What stands still, if something does.
    stuck: Mutex<Option<String>>,
    /// What will stand still for as long as the process lives.
    for_good: Mutex<Option<String>>,
    /// When it looked last, in nanoseconds.
    looked_at: AtomicU64,
}

/// Whose pulse it is.
#[derive(Clone, Debug)]
enum Subject {
    Device { cell: usize, device: DeviceId, name: String, what: &'static str },
    Thread(String),
}

impl Watchdog {
    /// Starts the thread, which ends with the controller.
    pub fn start(of: Weak<Inner>) -> std::io::Result<()> {
        let mut late = Vec::new();
        std::thread::Builder::new().name("watchdog".into()).spawn(move || {
            let mut last = Instant::now();
            while let Some(inner) = of.upgrade() {
                // More has passed where this thread was stopped, and then probably the others, too.
                let passed = Duration::from(last.elapsed()).min(TICK * 2);
                last = Instant::now();
                inner.watchdog.look(&inner, passed, &mut late);
                drop(inner);
                std::thread::sleep(TICK.into());
            }
        })?;
        Ok(())
    }

    /// Watches the threads of a device.
    pub fn add_device(&self, cell: usize, device: DeviceId, name: &str, pulses: &[Arc<Pulse>; 2]) {
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        for (pulse, what) in pulses.iter().zip(["an execution", "a load or an unload"]) {
            let subject = Subject::Device { cell, device, name: name.to_owned(), what };
            watched.push((subject, Watched::new(Arc::clone(pulse))));
        }
    }

    /// Watches a thread, for as long as it has this.
    pub fn add_thread(&self, name: String) -> Arc<Pulse> {
        let pulse = Arc::<Pulse>::default();
        self.add_pulse(name, &pulse);
        pulse
    }

    /// Watches whoever has this pulse.
    pub fn add_pulse(&self, name: String, pulse: &Arc<Pulse>) {
        let watched = (Subject::Thread(name), Watched::new(Arc::clone(pulse)));
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(watched);
    }

    /// Something stands still for as long as the process lives: a sentence.
    pub fn stays_stuck(&self, sentence: String) {
        self.for_good.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(sentence);
    }

    /// What stands still, if something does.
    pub fn stuck(&self, now: Timestamp) -> Option<String> {
        let looked_at = Timestamp::from_nanos(self.looked_at.load(Ordering::Relaxed));
        if now.since(looked_at) > STANDS_STILL {
            return Some(sentence("watchdog", now.since(looked_at)));
        }
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What is under way, in words, for whoever can't wait for it.
    pub fn under_way(&self) -> Vec<String> {
        let watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let busy = watched.iter().filter(|(_, watched)| watched.pulse.is_at_something());
        let words = |(subject, _): &(Subject, Watched)| match subject {
            Subject::Device { name, what, .. } => format!("{what} on {name}"),
            Subject::Thread(name) => format!("thread {name}"),
        };
        busy.map(words).collect()
    }

    fn look(&self, inner: &Inner, passed: Duration, late: &mut Vec<Duration>) {
        let mut hanging = Vec::new();
        let mut stuck = self.look_at_threads(passed, &mut hanging);
        // Without the lock: whoever drives may start devices.
        for message in hanging {
            let (cell, message) = message;
            inner.inbox_of(cell).tell(message);
        }
        late.resize(inner.cells.len(), Duration::ZERO);
        for (cell, late) in inner.cells.iter().zip(late) {
            *late = if cell.timer.is_late(inner.clock.now()) { *late + passed } else { Duration::ZERO };
            if *late > STANDS_STILL {
                stuck.get_or_insert(sentence("timer", *late));
            }
        }
        let for_good = self.for_good.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let stuck = stuck.or(for_good);
        let mut known = self.stuck.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sentence) = stuck.as_ref().filter(|_| known.is_none()) {
            tracing::error!("the server isn't live: {sentence}");
        }
        *known = stuck;
        self.looked_at.store(inner.clock.now().as_nanos(), Ordering::Relaxed);
    }

    /// The first thread that stands still; and what is to be said to cells of their devices that do.
    fn look_at_threads(&self, passed: Duration, hanging: &mut Vec<(usize, CellMessage)>) -> Option<String> {
        let mut stuck = None;
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        watched.retain_mut(|(subject, watched)| {
            let overdue = watched.look(passed);
            match (&*subject, overdue) {
                (_, None) => {}
                (Subject::Device { name, what, .. }, Some(Overdue::BrokenOff)) => {
                    tracing::error!(device = name, "{what} takes longer than it may and is broken off");
                }
                (Subject::Device { cell, device, name, what }, Some(Overdue::Stuck(stood))) => {
                    let why = format!("{what} hangs on {name}: it has taken {stood}, and nothing breaks it off");
                    let pulse = Arc::clone(&watched.pulse);
                    hanging.push((*cell, CellMessage::Hangs { device: *device, pulse, why }));
                    return false;
                }
                (Subject::Thread(name), Some(Overdue::Stuck(stood))) => {
                    stuck.get_or_insert_with(|| sentence(name, stood));
                }
                (Subject::Thread(name), Some(Overdue::BrokenOff)) => {
                    tracing::error!("{name} takes longer than it may and is broken off");
                }
            }
            // Nobody has it any more.
            Arc::strong_count(&watched.pulse) > 1
        });
        stuck
    }
}

fn sentence(thread: &str, stood: Duration) -> String {
    format!("thread {thread} has stood still for {:.0} s", stood.as_secs_f64())
}
