//! How fast a body must come, where calls share a connection and so nobody else can tell which of them stands still.

use crate::Config;
use crate::io::movement::allowed;
use tokio::time::Instant;
use wire::Fault;

/// How fast a body has come so far.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    began_at: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// Waits for the next piece as long as it may take. `what` it is that comes: a body or a message.
    pub(crate) async fn next<T>(
        &mut self,
        config: &Config,
        what: &str,
        piece: impl Future<Output = T>,
    ) -> Result<T, Fault> {
        let now = Instant::now();
        let (still_at, slow_at) = self.due(now, config);
        tokio::time::timeout_at(still_at.min(slow_at), piece).await.map_err(|_| {
            let patience = config.body_timeout;
            // What hardly came at all isn't slow.
            if slow_at > now + patience / 2 {
                return Fault::bad(format!("the {what} stood still for {patience:?}: send it without pauses"));
            }
            let (rate, total) = (config.least_rate, config.body_total);
            Fault::bad(format!(
                "the {what} comes too slowly: send at least {rate} bytes a second, and all of it in {total:?}"
            ))
        })
    }

    /// When the body will have stood still for too long, and when it will have been too slow, if nothing comes.
    fn due(&mut self, now: Instant, config: &Config) -> (Instant, Instant) {
        let began_at = *self.began_at.get_or_insert(now);
        let still_at = now + config.body_timeout;
        (still_at, began_at.checked_add(allowed(self.bytes, config)).unwrap_or(still_at))
    }

    /// So much of it came.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// After how many seconds a body is given up of which so many bytes come every so many seconds.
    fn given_up_after(bytes: usize, every: u64) -> Option<u64> {
        let seconds = Duration::from_secs;
        let config =
            Config { body_timeout: seconds(30), least_rate: 1000, body_total: seconds(600), ..Config::default() };
        let (mut pace, began_at) = (Pace::default(), Instant::now());
        (0..1000).step_by(every as usize).find_map(|second| {
            let (still_at, slow_at) = pace.due(began_at + seconds(second), &config);
            let given_up_at = still_at.min(slow_at);
            pace.came(bytes);
            let comes_at = began_at + seconds(second + every);
            (comes_at > given_up_at).then(|| (given_up_at - began_at).as_secs())
        })
    }

    #[test]
    fn one_byte_in_five_seconds_is_given_up() {
        assert_eq!(given_up_after(1, 5), Some(30));
        assert_eq!(given_up_after(1 << 20, 31), Some(30));
        assert_eq!(given_up_after(500, 1), Some(59));
        assert_eq!(given_up_after(20_000, 20), Some(600), "fast enough, but the whole is bounded too");
    }
}
