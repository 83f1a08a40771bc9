//! What single fields of a configuration may be, and which of them mean nothing here, each with the reason.

/// Whole numbers that have bounds of their own: the message, the field, from, to.
const LIMITS: &[(&str, &str, u32, u32)] = &[
    ("ModelConfig", "max_batch_size", 0, MAX_BATCH),
    ("ModelDynamicBatching", "preferred_batch_size", 1, MAX_BATCH),
    ("ModelWarmup", "batch_size", 0, MAX_BATCH),
    // Each run takes time before the model is ready.
    ("ModelWarmup", "count", 0, 10_000),
];

/// The largest batch size that a configuration may name: Triton's field holds no larger one.
pub const MAX_BATCH: u32 = i32::MAX as u32;

/// From what to what a field of a message may be, if it has bounds of its own.
pub fn limits(message: &str, field: &str) -> Option<(i128, i128)> {
    let found = LIMITS.iter().find(|(of, name, ..)| *of == message && *name == field);
    found.map(|&(_, _, least, most)| (least.into(), most.into()))
}

/// By the message that the field is in and the field's name.
const WITHOUT_MEANING: &[(&str, &str, &str)] = &[
    ("ModelConfig", "instance_group", "`--devices` says where models run, and every device serves all of them"),
    (
        "ModelConfig",
        "optimization",
        "graphs are always optimised, and the runtime is set up by the server's own options",
    ),
    ("ModelConfig", "model_transaction_policy", "a model here gives one answer to each request"),
    ("ModelConfig", "sequence_batching", "each request stands for itself, and goes to whichever device is free"),
    ("ModelConfig", "model_operations", "operators come with the runtime's library"),
    ("ModelConfig", "model_repository_agents", "files are served as they are"),
    ("ModelConfig", "model_metrics", "metrics are the same for all models"),
    ("ModelConfig", "metric_tags", "series carry the model's name and version"),
    ("ModelConfig", "cc_model_filenames", "there is one file for all devices"),
    ("ModelConfig", "runtime", "the server brings its runtime"),
    ("ModelEnsembling", "max_inflight_requests", "stages are planned from the deadline of the whole"),
    ("Step", "model_namespace", "a name stands for one model"),
    ("ModelInput", "format", "tensors are taken as the client sends them"),
    ("ModelInput", "is_shape_tensor", "only TensorRT has shape tensors"),
    ("ModelInput", "allow_ragged_batch", "requests of different shapes are executed one after another"),
    ("ModelInput", "is_non_linear_format_io", "only TensorRT has such formats"),
    ("ModelOutput", "is_shape_tensor", "only TensorRT has shape tensors"),
    ("ModelOutput", "is_non_linear_format_io", "only TensorRT has such formats"),
    ("ModelDynamicBatching", "max_queue_delay_microseconds", "not needed, batches are planned from deadlines"),
    (
        "ModelDynamicBatching",
        "preserve_ordering",
        "answers leave when they are there; a client tells them apart by their ids",
    ),
    ("ModelQueuePolicy", "allow_timeout_override", "a request's own timeout always counts if it is the shorter one"),
];

/// Why a field of a message is ignored, if it is.
pub fn unused(message: &str, field: &str) -> Option<&'static str> {
    let found = WITHOUT_MEANING.iter().find(|(of, name, _)| *of == message && *name == field);
    found.map(|&(_, _, reason)| reason)
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
    fn the_tables_name_fields_that_there_are() {
        let fields = schema::all_fields();
        let without_meaning = WITHOUT_MEANING.iter().map(|&(message, field, _)| (message, field));
        let limited = LIMITS.iter().map(|&(message, field, ..)| (message, field));
        for (message, field) in without_meaning.chain(limited) {
            let known = fields.iter().any(|(of, name)| of == message && name == field);
            assert!(known, "{message}.{field}");
        }
    }
}
