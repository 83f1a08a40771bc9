//! What a thread that others wait for shows of itself: whether it is at something, and at which step. Whoever watches
//! it sees whether it moves, breaks off what takes too long, and says what stands still.

use base::Duration;
use engine::Breaker;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One thread's. Only that thread changes it; a step costs two stores.
#[derive(Default)]
pub struct Pulse {
    /// Odd while the thread is at something; another number with each step.
    step: AtomicU64,
    /// How long the step may take, in nanoseconds.
    limit: AtomicU64,
    /// What the step is about: the number of an action, where it is one.
    subject: AtomicU64,
    /// Nobody waits for it but the thread of an execution that is being broken off.
    breaker: Mutex<Option<Arc<dyn Breaker>>>,
}

impl std::fmt::Debug for Pulse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pulse({})", self.step.load(Ordering::Relaxed))
    }
}

impl Pulse {
    /// The thread begins something that may take so long until its next step.
    pub fn begin(&self, limit: Duration, subject: u64, breaker: Option<Arc<dyn Breaker>>) {
        // Behind whoever breaks off the step before: what begins now isn't meant.
        *self.breaker.lock().unwrap_or_else(PoisonError::into_inner) = breaker;
        self.step(limit, subject);
    }

    /// The same for what can't be broken off, or can as the step before could.
    pub fn step(&self, limit: Duration, subject: u64) {
        self.limit.store(limit.as_nanos(), Ordering::Relaxed);
        self.subject.store(subject, Ordering::Relaxed);
        self.step.store((self.step.load(Ordering::Relaxed) | 1) + 2, Ordering::Release);
    }

    /// The thread waits for something to do.
    pub fn end(&self) {
        let step = self.step.load(Ordering::Relaxed);
        if step % 2 == 1 {
            self.step.store(step + 1, Ordering::Release);
        }
    }

    /// Whether the thread is at something.
    pub fn is_at_something(&self) -> bool {
        self.step.load(Ordering::Relaxed) % 2 == 1
    }

    /// What the step is about.
    pub fn subject(&self) -> u64 {
        self.subject.load(Ordering::Relaxed)
    }

    /// Breaks that step off, if it can be and isn't over.
    fn break_off(&self, step: u64) -> bool {
        let breaker = self.breaker.lock().unwrap_or_else(PoisonError::into_inner);
        let breaker = breaker.as_ref().filter(|_| self.step.load(Ordering::Acquire) == step);
        breaker.inspect(|breaker| breaker.break_off()).is_some()
    }
}

/// What whoever watches a pulse knows of it.
#[derive(Debug)]
pub struct Watched {
    /// What is watched.
    pub pulse: Arc<Pulse>,
    step: u64,
    /// For how long it was seen at that step.
    stood: Duration,
    broken_off: bool,
}

/// What is to be said of a step that takes too long.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overdue {
    /// It is broken off, and may take as long once more to end.
    BrokenOff,
    /// It goes on, and nothing can be done about it. It was seen for so long.
    Stuck(Duration),
}

impl Watched {
    /// Watches a pulse from now on.
    pub fn new(pulse: Arc<Pulse>) -> Self {
        Self { pulse, step: 0, stood: Duration::ZERO, broken_off: false }
    }

    /// Looks once more, after so much time in which whoever watches was awake: a process that was stopped as a whole
    /// has nothing to reproach its threads with.
    pub fn look(&mut self, passed: Duration) -> Option<Overdue> {
        let step = self.pulse.step.load(Ordering::Acquire);
        if step != self.step {
            (self.step, self.stood, self.broken_off) = (step, Duration::ZERO, false);
            return None;
        }
        if step.is_multiple_of(2) {
            return None;
        }
        self.stood += passed;
        let limit = Duration::from_nanos(self.pulse.limit.load(Ordering::Relaxed));
        if self.stood <= limit {
            return None;
        }
        if !self.broken_off && self.pulse.break_off(step) {
            self.broken_off = true;
            return Some(Overdue::BrokenOff);
        }
        let patient = self.broken_off && self.stood <= limit + limit;
        (!patient).then_some(Overdue::Stuck(self.stood))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    const TICK: Duration = Duration::from_millis(100);

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Breaker for Counted {
        fn break_off(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The looks at which something was said, and what.
    fn said(watched: &mut Watched, looks: u32) -> Vec<(u32, Overdue)> {
        (0..looks).filter_map(|look| Some((look, watched.look(TICK)?))).collect()
    }

    #[test]
    fn a_thread_that_moves_or_waits_is_left_alone() {
        let pulse = Arc::new(Pulse::default());
        let mut watched = Watched::new(Arc::clone(&pulse));
        assert_eq!(said(&mut watched, 100), []);
        for _ in 0..10 {
            pulse.step(TICK * 3, 7);
            assert_eq!(said(&mut watched, 4), []);
        }
        pulse.end();
        pulse.end();
        assert_eq!(said(&mut watched, 100), []);
    }

    #[test]
    fn what_cant_be_broken_off_is_stuck_after_its_limit() {
        let pulse = Arc::new(Pulse::default());
        let mut watched = Watched::new(Arc::clone(&pulse));
        pulse.begin(TICK * 3, 7, None);
        assert_eq!(said(&mut watched, 6), [(4, Overdue::Stuck(TICK * 4)), (5, Overdue::Stuck(TICK * 5))]);
        assert_eq!(pulse.subject(), 7);
    }

    #[test]
    fn what_is_broken_off_once_has_as_long_again_to_end() {
        let (pulse, breaker) = (Arc::new(Pulse::default()), Arc::new(Counted::default()));
        let mut watched = Watched::new(Arc::clone(&pulse));
        pulse.begin(TICK * 2, 7, Some(Arc::clone(&breaker) as Arc<dyn Breaker>));
        assert_eq!(said(&mut watched, 6), [(3, Overdue::BrokenOff), (5, Overdue::Stuck(TICK * 5))]);
        pulse.end();
        assert_eq!(said(&mut watched, 100), []);
        pulse.step(TICK * 2, 8);
        assert_eq!(said(&mut watched, 4), [(3, Overdue::BrokenOff)]);
        assert_eq!(breaker.0.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn what_begins_while_the_step_before_is_broken_off_goes_on() {
        let (pulse, breaker) = (Arc::new(Pulse::default()), Arc::new(Counted::default()));
        pulse.begin(TICK, 7, Some(Arc::clone(&breaker) as Arc<dyn Breaker>));
        let overdue = pulse.step.load(Ordering::Relaxed);
        pulse.end();
        pulse.begin(TICK, 8, Some(Arc::clone(&breaker) as Arc<dyn Breaker>));
        assert!(!pulse.break_off(overdue));
        assert_eq!(breaker.0.load(Ordering::Relaxed), 0);
    }
}
