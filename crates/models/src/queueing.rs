//! What a model's configuration says of requests that wait: levels of priority, and bounds on how long and how many.

use base::{Duration, margins};
use repository::QueuePolicy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The rules of one model, and how many of its requests are in hand.
#[derive(Debug)]
pub struct QueueLimits {
    levels: u32,
    default_level: u32,
    /// The default policy first, then those of single levels.
    policies: Vec<Level>,
    /// Where in `policies` the policy of a level is.
    by_level: BTreeMap<u32, usize>,
}

#[derive(Debug)]
struct Level {
    /// The deadline that the bound on waiting gives.
    limit: Option<Duration>,
    max_queue_size: u32,
    /// So many may be in hand: those that wait and those that are executed meanwhile. 0: no bound.
    most: u32,
    in_hand: AtomicU32,
}

/// What holds for a request.
#[derive(Debug)]
pub struct Admitted {
    /// Its priority.
    pub priority: u32,
    /// The deadline that the configuration gives it, from its arrival.
    pub limit: Option<Duration>,
    /// Its place among the model's requests, given back when this is dropped.
    pub place: QueuePlace,
}

/// A place among a model's requests.
#[derive(Debug)]
pub struct QueuePlace {
    limits: Arc<QueueLimits>,
    policy: usize,
}

impl QueueLimits {
    /// The rules of a model whose largest batch takes `longest`; so many rows can be executed at once.
    pub fn new(config: &repository::Queueing, longest: Duration, rows_at_once: u32) -> Self {
        let level = |policy: &QueuePolicy| Level {
            // A request that waited as long as it may is still executed and answered: its deadline is that much later.
            limit: policy.timeout.filter(|_| !policy.delays).map(|timeout| timeout + longest + margins::ROUND_TRIP),
            max_queue_size: policy.max_queue_size,
            most: match policy.max_queue_size {
                0 => 0,
                size => size.saturating_add(rows_at_once),
            },
            in_hand: AtomicU32::new(0),
        };
        let policies = std::iter::once(&config.default_policy).chain(config.policies.values()).map(level).collect();
        let by_level = config.policies.keys().copied().zip(1..).collect();
        Self { levels: config.levels, default_level: config.default_level, policies, by_level }
    }

    /// Takes a request in; the bound on waiting requests if that is reached.
    pub fn admit(self: &Arc<Self>, priority: u32) -> Result<Admitted, u32> {
        let priority = match priority {
            priority if self.levels == 0 || (1..=self.levels).contains(&priority) => priority,
            _ => self.default_level,
        };
        let policy = self.by_level.get(&priority).copied().unwrap_or(0);
        let level = &self.policies[policy];
        let before = level.in_hand.fetch_add(1, Ordering::Relaxed);
        let place = QueuePlace { limits: Arc::clone(self), policy };
        if level.most > 0 && before >= level.most {
            return Err(level.max_queue_size);
        }
        Ok(Admitted { priority, limit: level.limit, place })
    }
}

impl Drop for QueuePlace {
    fn drop(&mut self) {
        self.limits.policies[self.policy].in_hand.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(text: &str) -> Arc<QueueLimits> {
        let text = format!("dynamic_batching {{ {text} }}");
        let config = repository::ModelConfig::parse(&text, "config.pbtxt".as_ref(), "m").unwrap();
        Arc::new(QueueLimits::new(&config.queueing.unwrap(), Duration::from_millis(30), 4))
    }

    #[test]
    fn levels_that_are_not_there_are_the_default_one() {
        let limits = limits(
            "priority_levels: 3 default_priority_level: 2 default_queue_policy { default_timeout_microseconds: 20000 }
             priority_queue_policy { key: 1 value { default_timeout_microseconds: 1000 timeout_action: DELAY } }
             priority_queue_policy { key: 3 value { default_timeout_microseconds: 5000 } }",
        );
        let admitted = |priority| {
            let admitted = limits.admit(priority).unwrap();
            (admitted.priority, admitted.limit.map(Duration::as_millis_f64))
        };
        assert_eq!(admitted(0), (2, Some(60.0)));
        assert_eq!(admitted(1), (1, None), "nothing is refused where it would be delayed");
        assert_eq!(admitted(2), (2, Some(60.0)));
        assert_eq!(admitted(3), (3, Some(45.0)));
        assert_eq!(admitted(4), (2, Some(60.0)));
    }

    #[test]
    fn a_full_queue_refuses_until_somebody_leaves() {
        let limits = limits("default_queue_policy { max_queue_size: 2 }");
        let mut inside: Vec<Admitted> = (0..6).map(|_| limits.admit(9).unwrap()).collect();
        assert_eq!(inside[0].priority, 9, "without levels a request may name any");
        assert_eq!(limits.admit(0).unwrap_err(), 2);
        inside.pop();
        assert!(limits.admit(0).is_ok());
    }
}
