//! `dynamic_batching`: batch sizes, levels of priority, and what happens to requests that wait.

use crate::config::{ModelConfig, QueuePolicy, Queueing};
use crate::positions::Positions;
use crate::read::sorted;
use crate::text::TextProblem;
use crate::values::Warnings;
use base::Duration;
use wire::proto::model_queue_policy::TimeoutAction;
use wire::proto::{ModelDynamicBatching, ModelQueuePolicy};

/// Waiting longer than a day is waiting for ever.
const MAX_TIMEOUT_US: u64 = 86_400_000_000;
const PATH: &str = "dynamic_batching";

pub fn read(
    written: &ModelDynamicBatching,
    positions: &Positions,
    config: &mut ModelConfig,
    warnings: Warnings<'_>,
) -> Result<(), TextProblem> {
    let mut queueing = Queueing {
        levels: level(written.priority_levels),
        default_level: level(written.default_priority_level),
        ..Queueing::default()
    };
    if let Some(given) = &written.default_queue_policy {
        queueing.default_policy = policy(given, &format!("{PATH}.default_queue_policy"), positions, warnings);
    }
    for (&key, given) in &written.priority_queue_policy {
        let path = format!("{PATH}.priority_queue_policy[{key}]");
        queueing.policies.insert(level(key), policy(given, &path, positions, warnings));
    }
    check_levels(&queueing).map_err(|reason| positions.wrong_field(PATH, reason))?;
    let sizes = written.preferred_batch_size.iter().filter_map(|&size| u32::try_from(size).ok());
    config.preferred_batch_sizes = sorted(sizes.collect());
    config.queueing = (queueing != Queueing::default()).then_some(queueing);
    Ok(())
}

/// A level that is far too high is none of those that there are.
fn level(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn check_levels(queueing: &Queueing) -> Result<(), String> {
    let Queueing { levels, default_level, policies, .. } = queueing;
    if *levels > 0 && !(1..=*levels).contains(default_level) {
        return Err(format!(
            "default_priority_level is {default_level}: with priority_levels {levels} it must be from 1 to {levels}"
        ));
    }
    match policies.keys().find(|&&level| !(1..=*levels).contains(&level)) {
        None => Ok(()),
        Some(level) => {
            Err(format!("priority_queue_policy has a policy for level {level}, but priority_levels is {levels}"))
        }
    }
}

fn policy(written: &ModelQueuePolicy, path: &str, positions: &Positions, warnings: Warnings<'_>) -> QueuePolicy {
    let micros = written.default_timeout_microseconds.min(MAX_TIMEOUT_US);
    let timeout = (micros > 0).then(|| Duration::from_micros(micros));
    let delays = written.timeout_action() == TimeoutAction::Delay;
    if delays && timeout.is_some() {
        warnings.push(positions.wrong_field(
            &format!("{path}.timeout_action"),
            "timeout_action is ignored: what waited too long is never put behind others: with DELAY there is no bound",
        ));
    }
    QueuePolicy { timeout, delays, max_queue_size: written.max_queue_size }
}
