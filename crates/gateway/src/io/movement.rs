//! How a body or an answer moves, and whether that is enough. Time is in the sweep's seconds.

use crate::Config;
use std::time::Duration;

/// How often connections are swept.
pub(crate) const TICK: Duration = Duration::from_secs(1);

/// What has moved so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Movement {
    began: u32,
    moved: u32,
    bytes: u64,
}

impl Movement {
    /// Nothing yet.
    pub(crate) fn new(now: u32) -> Self {
        Self::of(now, now, 0)
    }

    /// So many bytes, since it began and until it moved last.
    pub(crate) fn of(began: u32, moved: u32, bytes: u64) -> Self {
        Self { began, moved, bytes }
    }

    /// Some of it moved.
    pub(crate) fn moves(&mut self, now: u32, bytes: usize) {
        self.moved = now;
        self.bytes += bytes as u64;
    }

    /// How long it has stood still.
    pub(crate) fn stood(&self, now: u32) -> Duration {
        span(self.moved, now)
    }

    /// Whether the peer takes longer than it may: it stands still, or is slower than the least rate.
    pub(crate) fn is_overdue(&self, now: u32, config: &Config) -> bool {
        is_over(self.stood(now), config.body_timeout) || is_over(span(self.began, now), allowed(self.bytes, config))
    }
}

/// How long so many bytes may take: the time that a body may stand still, and then what they take at the least rate.
pub(crate) fn allowed(bytes: u64, config: &Config) -> Duration {
    // Without a least rate, only the whole is bounded.
    let at_least_rate = bytes.checked_div(config.least_rate).map_or(Duration::MAX, Duration::from_secs);
    at_least_rate.saturating_add(config.body_timeout).min(config.body_total)
}

/// Whether all of somebody's patience has passed for certain: what began within a second has a part of it only.
pub(crate) fn is_over(span: Duration, patience: Duration) -> bool {
    span >= patience.saturating_add(TICK)
}

/// From one of the sweep's seconds to another; they wrap.
pub(crate) fn span(since: u32, now: u32) -> Duration {
    Duration::from_secs(u64::from(now.wrapping_sub(since)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let seconds = Duration::from_secs;
        Config { body_timeout: seconds(30), body_total: seconds(600), least_rate: 1000, ..Config::default() }
    }

    /// When something is overdue of which so many bytes move every so many seconds.
    fn overdue_after(bytes: usize, every: u32) -> Option<u32> {
        // Near the end of what can be counted.
        let start = u32::MAX - 10;
        let mut movement = Movement::new(start);
        (1..1000).find(|second| {
            let now = start.wrapping_add(*second);
            if second % every == 0 {
                movement.moves(now, bytes);
            }
            movement.is_overdue(now, &config())
        })
    }

    #[test]
    fn one_byte_in_five_seconds_is_too_slow_and_so_is_standing_still() {
        assert_eq!(overdue_after(1, 5), Some(31));
        assert_eq!(overdue_after(1 << 30, 32), Some(31));
        assert_eq!(overdue_after(500, 1), Some(61), "30 s, and as much again as has come at the least rate");
        assert_eq!(overdue_after(2000, 1), Some(601), "fast enough, but the whole is bounded too");
    }

    #[test]
    fn without_a_least_rate_the_whole_is_bounded() {
        let config = Config { least_rate: 0, ..config() };
        assert_eq!(allowed(1, &config), config.body_total);
    }
}
