//! The fields of a configuration that mean nothing here, each with the reason, so that the log can say it once.

use crate::text::Field;
use crate::values::{Warnings, problem};

/// By the message that the field is in (empty at the top) and the field's name.
pub const WITHOUT_MEANING: &[(&str, &str, &str)] = &[
    ("", "instance_group", "`--devices` says where models run, and every device serves all of them"),
    ("", "optimization", "graphs are always optimised, and the runtime is set up by the server's own options"),
    ("", "response_cache", "answers aren't kept: every request is computed"),
    ("", "model_transaction_policy", "a model here gives one answer to each request"),
    ("", "sequence_batching", "each request stands for itself, and goes to whichever device is free"),
    ("", "model_operations", "operators come with the runtime's library"),
    ("", "model_repository_agents", "files are served as they are"),
    ("", "model_metrics", "metrics are the same for all models"),
    ("", "metric_tags", "series carry the model's name and version"),
    ("", "cc_model_filenames", "there is one file for all devices"),
    ("", "runtime", "the server brings its runtime"),
    ("input", "format", "tensors are taken as the client sends them"),
    ("input", "is_shape_tensor", "only TensorRT has shape tensors"),
    ("input", "allow_ragged_batch", "requests of different shapes are executed one after another"),
    ("input", "optional", "an ONNX model needs all of its inputs"),
    ("input", "is_non_linear_format_io", "only TensorRT has such formats"),
    ("output", "is_shape_tensor", "only TensorRT has shape tensors"),
    ("output", "is_non_linear_format_io", "only TensorRT has such formats"),
    ("dynamic_batching", "max_queue_delay_microseconds", "not needed, batches are planned from deadlines"),
    (
        "dynamic_batching",
        "preserve_ordering",
        "answers leave when they are there; a client tells them apart by their ids",
    ),
    ("queue_policy", "allow_timeout_override", "a request's own timeout always counts if it is the shorter one"),
    ("queue_policy", "timeout_action", "what waited too long is never put behind others: with DELAY there is no bound"),
];

/// Says that a field is ignored, and why. What isn't known at all is named when the whole configuration is read by its
/// description.
pub fn unused(within: &str, field: &Field, warnings: Warnings<'_>) {
    let name = &field.name;
    let known = WITHOUT_MEANING.iter().find(|(message, field, _)| *message == within && field == name);
    if let Some((_, _, reason)) = known {
        warnings.push(problem(field.place, format!("{name} is ignored: {reason}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema;

    /// Messages whose fields mean something one by one; of the others the field that has them stands for all.
    const READ: [&str; 5] = ["ModelConfig", "ModelInput", "ModelOutput", "ModelDynamicBatching", "ModelQueuePolicy"];

    #[test]
    fn the_reference_says_what_every_field_means() {
        let page = include_str!("../../../docs/model-repository.md");
        let table: String = page.lines().filter(|line| line.starts_with('|')).collect();
        let fields = schema::all_fields();
        assert!(fields.len() > 100, "{}", fields.len());
        for (message, field) in fields.iter().filter(|(message, _)| READ.contains(&message.as_str())) {
            assert!(table.contains(field.as_str()), "{message}.{field} is missing");
        }
    }

    #[test]
    fn fields_without_meaning_are_fields() {
        let fields = schema::all_fields();
        for (_, name, reason) in WITHOUT_MEANING {
            assert!(fields.iter().any(|(_, field)| field == name) && !reason.is_empty(), "{name}");
        }
    }
}
