//! How busy the machine is: its processors and its memory, as the system counts them.

use std::fs;
use std::sync::{Mutex, PoisonError};

/// Reads how busy the machine is; the processors since the reading before.
#[derive(Debug, Default)]
pub(crate) struct UsageReader {
    before: Mutex<Ticks>,
}

/// What was read; nothing where the system doesn't say.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct MachineUsage {
    /// Share of the processors' time in which they had work, since the reading before.
    pub cpu_utilization: Option<f64>,
    pub memory_total_bytes: Option<f64>,
    pub memory_used_bytes: Option<f64>,
}

/// The processors' time since the system started, in the system's ticks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Ticks {
    all: u64,
    idle: u64,
}

impl UsageReader {
    pub fn read(&self) -> MachineUsage {
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let total = kibibytes(&memory, "MemTotal:");
        let available = kibibytes(&memory, "MemAvailable:");
        MachineUsage {
            cpu_utilization: fs::read_to_string("/proc/stat")
                .ok()
                .as_deref()
                .and_then(ticks)
                .map(|now| self.since(now)),
            memory_total_bytes: total,
            memory_used_bytes: total.zip(available).map(|(total, available)| total - available),
        }
    }

    fn since(&self, now: Ticks) -> f64 {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        let all = now.all.saturating_sub(before.all);
        let idle = now.idle.saturating_sub(before.idle);
        *before = now;
        if all == 0 { 0.0 } else { 1.0 - (idle as f64 / all as f64).min(1.0) }
    }
}

/// The sum line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Guests' time is in user's
/// already.
fn ticks(stat: &str) -> Option<Ticks> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let numbers: Vec<u64> = line.split_whitespace().take(8).map_while(|number| number.parse().ok()).collect();
    let idle = numbers.get(3)? + numbers.get(4).copied().unwrap_or(0);
    Some(Ticks { all: numbers.iter().sum(), idle })
}

/// A line of `/proc/meminfo`, in bytes.
fn kibibytes(memory: &str, name: &str) -> Option<f64> {
    let line = memory.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((number * 1024) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utilization_is_the_share_since_the_reading_before() {
        let machine = UsageReader::default();
        let stat =
            |user: u64, idle: u64| ticks(&format!("cpu  {user} 0 0 {idle} 0 0 0 0 9 9\ncpu0 1 1 1 1\n")).unwrap();
        assert_eq!(machine.since(stat(10, 30)), 0.25);
        assert_eq!(machine.since(stat(40, 40)), 0.75);
        assert_eq!(machine.since(stat(40, 40)), 0.0, "no time has passed");
        assert_eq!(ticks("intr 1 2 3"), None);
    }

    #[test]
    fn memory_is_in_bytes() {
        let text = "MemTotal:       16 kB\nMemFree:   1 kB\nMemAvailable:    4 kB\n";
        assert_eq!((kibibytes(text, "MemTotal:"), kibibytes(text, "MemAvailable:")), (Some(16384.0), Some(4096.0)));
        assert_eq!(kibibytes(text, "SwapTotal:"), None);
    }
}
