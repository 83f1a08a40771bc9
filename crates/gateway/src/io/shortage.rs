//! What is done for want of memory, before the system ends the process: a decision, and who makes it now and then.
//!
//! ```text
//!  of what the process may have   80 %                 85 %            90 %              95 %
//!  ──────── everything ───────────┼ answers aren't kept ┼ no large bodies ┼ no connections ──┼ idle ones are closed, too
//! ```

use crate::io::ServerState;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// How often it is looked at. Reading it takes microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// So many hundredths less than where a step begins, it ends: it mustn't come and go with every request.
const SLACK: u64 = 3;

/// Freed memory is given back when the process has so much more than after the last time: at least this,
const WORTH_GIVING_BACK: u64 = 8 << 20;
/// and at least one part in so many of what it had.
const PART_WORTH_GIVING_BACK: u64 = 32;
/// Giving it back stops allocations for milliseconds: no more often than this,
const GIVE_BACK_EVERY: Duration = Duration::from_secs(10);
/// but sooner while memory is short.
const GIVE_BACK_SOON: Duration = Duration::from_secs(1);

/// What is done, each with all that is before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum MemoryStep {
    /// Nothing.
    Calm,
    /// Answers that were kept are dropped, and no more are kept.
    NoCache,
    /// Large bodies are refused.
    NoBodies,
    /// New connections may only ask for the server's health.
    NoConnections,
    /// Connections that idle are closed.
    NoIdlers,
}

impl MemoryStep {
    /// By number.
    const ALL: [Self; 5] = [Self::Calm, Self::NoCache, Self::NoBodies, Self::NoConnections, Self::NoIdlers];

    /// From how many hundredths of what the process may have it is taken.
    const fn begins_at(self) -> u64 {
        match self {
            Self::Calm => 0,
            Self::NoCache => 80,
            Self::NoBodies => 85,
            Self::NoConnections => 90,
            Self::NoIdlers => 95,
        }
    }

    /// The step after this one, with so much of the limit in use.
    fn next(self, used: u64, limit: u64) -> Self {
        let hundredths = u128::from(used) * 100 / u128::from(limit.max(1));
        let holds = |step: &Self| {
            let slack = if *step <= self { SLACK } else { 0 };
            hundredths >= u128::from(step.begins_at().saturating_sub(slack))
        };
        Self::ALL.into_iter().rev().find(holds).unwrap_or(Self::Calm)
    }
}

/// The step that is taken now.
#[derive(Debug, Default)]
pub(crate) struct MemoryWatch {
    step: AtomicU8,
}

impl MemoryWatch {
    /// What is done now.
    pub(crate) fn step(&self) -> MemoryStep {
        MemoryStep::ALL[usize::from(self.step.load(Ordering::Relaxed))]
    }

    pub(crate) fn take(&self, step: MemoryStep) {
        self.step.store(step as u8, Ordering::Relaxed);
    }
}

/// When freed memory is given back to the system. The C library keeps it for the next allocation, so that a flood of
/// bodies that is over would count for ever, and what is done for want of memory would never end.
#[derive(Clone, Copy, Debug)]
struct FreedMemory {
    /// What the process had after the last time.
    had: u64,
    /// When that was.
    at: Instant,
}

impl FreedMemory {
    /// Whether it is worth looking for some, with so much in use.
    fn is_due(&self, used: u64, step: MemoryStep, now: Instant) -> bool {
        let every = if step == MemoryStep::Calm { GIVE_BACK_EVERY } else { GIVE_BACK_SOON };
        let more = used.saturating_sub(self.had);
        more >= WORTH_GIVING_BACK.max(self.had / PART_WORTH_GIVING_BACK) && now.duration_since(self.at) >= every
    }

    /// Gives it back, on a thread where nobody waits. What was less before is less from now on.
    async fn give_back(&mut self) {
        // A thread that can't be had is tried for again: nothing depends on it.
        let _ = tokio::task::spawn_blocking(engine::heap::give_back).await;
        self.had = resident_bytes().unwrap_or(self.had);
        self.at = Instant::now();
    }
}

impl ServerState {
    /// Looks at the memory that the process has in use until this is dropped.
    pub(crate) async fn watch_memory(&self) {
        let address_space = getrlimit(Resource::As).current;
        let limit = self.config.memory_limit.into_iter().chain(address_space).min();
        self.metrics.memory_limit.set(limit.and_then(|limit| i64::try_from(limit).ok()).unwrap_or(i64::MAX));
        let mut freed = FreedMemory { had: resident_bytes().unwrap_or(0), at: Instant::now() };
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            let Some(used) = resident_bytes() else { continue };
            self.look_at_memory(used, limit.unwrap_or(u64::MAX));
            freed.had = freed.had.min(used);
            if freed.is_due(used, self.memory.step(), Instant::now()) {
                freed.give_back().await;
            }
        }
    }

    fn look_at_memory(&self, used: u64, limit: u64) {
        let (step, next) = (self.memory.step(), self.memory.step().next(used, limit));
        self.metrics.memory_used.set(i64::try_from(used).unwrap_or(i64::MAX));
        if step != next {
            self.memory.take(next);
            self.metrics.memory_step.set(next as i64);
            match next {
                MemoryStep::Calm => tracing::info!(used, limit, "there is enough memory again"),
                _ => tracing::warn!(used, limit, step = ?next, "memory is short"),
            }
        }
    }
}

/// The memory that the process has in use, where the system says it.
fn resident_bytes() -> Option<u64> {
    resident(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// From the text of `/proc/self/status`: what the system can't read again from files.
fn resident(status: &str) -> Option<u64> {
    let kibibytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    Some((kibibytes("RssAnon:")? + kibibytes("RssShmem:")?) * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemoryStep::{Calm, NoBodies, NoCache, NoConnections, NoIdlers};

    #[test]
    fn each_step_begins_where_it_should_and_ends_a_little_below() {
        let steps = |from: MemoryStep, used: &[u64]| -> Vec<MemoryStep> {
            let next = |step: &mut MemoryStep, &used: &u64| {
                *step = step.next(used, 1000);
                Some(*step)
            };
            used.iter().scan(from, next).collect()
        };
        assert_eq!(
            steps(Calm, &[0, 799, 800, 849, 850, 899, 900, 950, 2000]),
            [Calm, Calm, NoCache, NoCache, NoBodies, NoBodies, NoConnections, NoIdlers, NoIdlers]
        );
        assert_eq!(
            steps(NoIdlers, &[920, 919, 870, 869, 820, 819, 770, 769]),
            [NoIdlers, NoConnections, NoConnections, NoBodies, NoBodies, NoCache, NoCache, Calm]
        );
        assert_eq!(Calm.next(960, 1000), NoIdlers, "one step may follow several");
        assert_eq!(NoIdlers.next(0, 1000), Calm);
        assert_eq!(Calm.next(u64::MAX, u64::MAX), NoIdlers);
        assert_eq!(Calm.next(1, 0), NoIdlers);
    }

    #[test]
    fn freed_memory_is_looked_for_when_there_may_be_some() {
        let at = Instant::now();
        let (soon, later) = (at + GIVE_BACK_SOON, at + GIVE_BACK_EVERY);
        let freed = FreedMemory { had: 1 << 30, at };
        let more = |part: u64| (1 << 30) + part;
        assert!(freed.is_due(more(1 << 26), Calm, later));
        assert!(!freed.is_due(more(1 << 26), Calm, soon), "not every moment");
        assert!(freed.is_due(more(1 << 26), NoBodies, soon), "unless it is short");
        assert!(!freed.is_due(more(1 << 24), Calm, later), "it would find little");
        assert!(!freed.is_due(1 << 20, Calm, later), "there is less than before");
        assert!(!FreedMemory { had: 1 << 20, at }.is_due(2 << 20, Calm, later));
    }

    /// Without it, what a flood of bodies took counts for ever: the server refuses for want of memory that it has.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[tokio::test]
    async fn memory_that_a_flood_took_is_given_back_when_it_is_over() {
        const BLOCK: usize = 96 << 10;
        let mut freed = FreedMemory { had: resident_bytes().unwrap(), at: Instant::now() };
        // Small ones between them stay: they keep the C library from returning the large ones by itself.
        let (bodies, stays): (Vec<Vec<u8>>, Vec<Box<u64>>) =
            (0..1000).map(|number| (vec![1; BLOCK], Box::new(number))).unzip();
        drop(bodies);
        let before = resident_bytes().unwrap();
        assert!(freed.is_due(before, Calm, Instant::now() + GIVE_BACK_EVERY), "it is still the process's");
        freed.give_back().await;
        let after = resident_bytes().unwrap();
        assert!(after + (64 << 20) < before, "{before} bytes before, {after} after");
        assert_eq!(stays.len(), 1000);
    }

    #[test]
    fn the_system_says_what_is_in_use() {
        let status = "VmRSS:\t    9999 kB\nRssAnon:\t    1000 kB\nRssFile:\t    8975 kB\nRssShmem:\t      24 kB\n";
        assert_eq!(resident(status), Some(1 << 20));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
