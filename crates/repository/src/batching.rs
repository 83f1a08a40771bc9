//! `dynamic_batching`: batch sizes, levels of priority, and what happens to requests that wait.

use crate::config::{ModelConfig, QueuePolicy, Queueing};
use crate::meaning::unused;
use crate::read::{batch_size, sorted};
use crate::text::{Field, Message, Problem};
use crate::values::{Warnings, boolean, count, each, message, problem, shown, word};
use base::Duration;

/// More levels than the scheduler tells apart mean nothing; far more are a slip.
const MAX_LEVELS: u64 = 1 << 16;
/// Waiting longer than a day is waiting for ever.
const MAX_TIMEOUT_US: u64 = 86_400_000_000;

pub fn read(field: &Field, config: &mut ModelConfig, warnings: Warnings<'_>) -> Result<(), Problem> {
    let mut sizes = Vec::new();
    let mut queueing = Queueing::default();
    for inner in &message(field, &field.value)?.fields {
        match inner.name.as_str() {
            "preferred_batch_size" => {
                for value in each(&inner.value) {
                    sizes.push(batch_size(inner, value, 1)?);
                }
            }
            "priority_levels" => queueing.levels = count(inner, MAX_LEVELS)? as u32,
            "default_priority_level" => queueing.default_level = count(inner, MAX_LEVELS)? as u32,
            "default_queue_policy" => queueing.default_policy = policy(message(inner, &inner.value)?, warnings)?,
            "priority_queue_policy" => {
                for entry in each(&inner.value) {
                    let (level, policy) = level_policy(inner, message(inner, entry)?, warnings)?;
                    queueing.policies.insert(level, policy);
                }
            }
            "preserve_ordering" => {
                if boolean(&inner.name, &inner.value)? {
                    unused("dynamic_batching", inner, warnings);
                }
            }
            _ => unused("dynamic_batching", inner, warnings),
        }
    }
    check_levels(field, &queueing)?;
    config.preferred_batch_sizes = sorted(sizes);
    config.queueing = (queueing != Queueing::default()).then_some(queueing);
    Ok(())
}

fn check_levels(field: &Field, queueing: &Queueing) -> Result<(), Problem> {
    let Queueing { levels, default_level, policies, .. } = queueing;
    if *levels > 0 && !(1..=*levels).contains(default_level) {
        return Err(problem(
            field.place,
            format!(
                "default_priority_level is {default_level}: with priority_levels {levels} it must be from 1 to {levels}"
            ),
        ));
    }
    match policies.keys().find(|&&level| !(1..=*levels).contains(&level)) {
        None => Ok(()),
        Some(level) => Err(problem(
            field.place,
            format!("priority_queue_policy has a policy for level {level}, but priority_levels is {levels}"),
        )),
    }
}

fn level_policy(field: &Field, entry: &Message, warnings: Warnings<'_>) -> Result<(u32, QueuePolicy), Problem> {
    let (mut level, mut found) = (0, QueuePolicy::default());
    for part in &entry.fields {
        match part.name.as_str() {
            "key" => level = count(part, MAX_LEVELS)? as u32,
            "value" => found = policy(message(part, &part.value)?, warnings)?,
            _ => unused(&field.name, part, warnings),
        }
    }
    Ok((level, found))
}

fn policy(tree: &Message, warnings: Warnings<'_>) -> Result<QueuePolicy, Problem> {
    let mut policy = QueuePolicy::default();
    for field in &tree.fields {
        match field.name.as_str() {
            "timeout_action" => {
                policy.delays = match word(&field.value) {
                    Some("REJECT" | "0") => false,
                    Some("DELAY" | "1") => true,
                    _ => {
                        let shown = shown(&field.value);
                        return Err(problem(
                            field.value.place,
                            format!("timeout_action must be REJECT or DELAY{shown}"),
                        ));
                    }
                };
            }
            "default_timeout_microseconds" => {
                let micros = count(field, u64::MAX)?.min(MAX_TIMEOUT_US);
                policy.timeout = (micros > 0).then(|| Duration::from_micros(micros));
            }
            "max_queue_size" => policy.max_queue_size = count(field, u64::from(u32::MAX))? as u32,
            _ => unused("queue_policy", field, warnings),
        }
    }
    if policy.delays && policy.timeout.is_some() {
        let field = tree.fields.iter().find(|field| field.name == "timeout_action");
        unused("queue_policy", field.expect("that is how it came to delay"), warnings);
    }
    Ok(policy)
}
