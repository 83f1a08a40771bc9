//! What is done for want of memory, before the system ends the process: a decision, and who makes it now and then.
//!
//! ```text
//!  of what the process may have   80 %                 85 %            90 %              95 %
//!  ──────── everything ───────────┼ answers aren't kept ┼ no large bodies ┼ no connections ──┼ idle ones are closed, too
//! ```

use crate::io::ServerState;
use rustix::process::{Resource, getrlimit};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

/// How often it is looked at. Reading it takes microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// So many hundredths less than where a step begins, it ends: it mustn't come and go with every request.
const SLACK: u64 = 3;

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

impl ServerState {
    /// Looks at the memory that the process has in use until this is dropped, where there is a limit.
    pub(crate) async fn watch_memory(&self) {
        let address_space = getrlimit(Resource::As).current;
        let Some(limit) = self.config.memory_limit.into_iter().chain(address_space).min() else { return };
        self.metrics.memory_limit.set(i64::try_from(limit).unwrap_or(i64::MAX));
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if let Some(used) = resident_bytes() {
                self.look_at_memory(used, limit);
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
    fn the_system_says_what_is_in_use() {
        let status = "VmRSS:\t    9999 kB\nRssAnon:\t    1000 kB\nRssFile:\t    8975 kB\nRssShmem:\t      24 kB\n";
        assert_eq!(resident(status), Some(1 << 20));
        assert_eq!(resident("Name:\tx\n"), None);
        assert!(resident_bytes().is_some_and(|bytes| bytes > 0));
    }
}
