//! What the models did so far, for those that ask.

use crate::io::IoContext;
use crate::models::serving;
use base::Timestamp;
use models::CatalogueEntry;
use std::sync::Arc;
use std::time::SystemTime;
use telemetry::{BatchTotals, ModelTotals, Spans};
use wire::Fault;
use wire::proto::{
    InferBatchStatistics, InferStatistics, MemoryUsage, ModelStatistics, ModelStatisticsRequest,
    ModelStatisticsResponse, StatisticDuration,
};

/// `ModelStatistics`, `GET v2/models/stats`, `GET v2/models/NAME[/versions/V]/stats`. An empty name means all models,
/// an empty version all versions that can be asked.
pub(crate) fn statistics(
    context: &IoContext,
    request: &ModelStatisticsRequest,
) -> Result<ModelStatisticsResponse, Fault> {
    let (name, version) = (request.name.as_str(), request.version.as_str());
    let entries = match (name, version) {
        ("", _) => context.models.all_ready(),
        (name, "") => {
            // Says why, if there is no such model or none of its versions can be asked.
            serving(&*context.models.find(name, "")?)?;
            context.models.all_ready().into_iter().filter(|entry| entry.name == name).collect()
        }
        (name, version) => vec![context.models.find(name, version)?],
    };
    let clocks = Clocks { now: context.controller.now(), wall: SystemTime::now() };
    let model_stats = entries.iter().map(|entry| of_model(entry, clocks)).collect::<Result<_, _>>()?;
    Ok(ModelStatisticsResponse { model_stats })
}

/// One moment on the server's clock and on the wall's.
#[derive(Clone, Copy)]
struct Clocks {
    now: Timestamp,
    wall: SystemTime,
}

impl Clocks {
    /// Milliseconds since 1970 at an instant of the server's clock.
    fn millis(self, at: Timestamp) -> u64 {
        let then = self.wall.checked_sub(self.now.since(at).into()).unwrap_or(SystemTime::UNIX_EPOCH);
        then.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }
}

fn of_model(entry: &Arc<CatalogueEntry>, clocks: Clocks) -> Result<ModelStatistics, Fault> {
    let totals = serving(entry)?.metrics.totals();
    let ModelTotals { last_inference_at, inferences, executions, success, fail, queue, .. } = totals;
    let inference_stats = InferStatistics {
        success: Some(duration(success)),
        fail: Some(duration(fail)),
        queue: Some(duration(queue)),
        compute_input: Some(duration(totals.input)),
        compute_infer: Some(duration(totals.infer)),
        compute_output: Some(duration(totals.output)),
        cache_hit: Some(duration(totals.cache_hit)),
        cache_miss: Some(duration(totals.cache_miss)),
    };
    Ok(ModelStatistics {
        name: entry.name.clone(),
        version: entry.version.to_string(),
        last_inference: last_inference_at.map_or(0, |at| clocks.millis(at)),
        inference_count: inferences,
        execution_count: executions,
        inference_stats: Some(inference_stats),
        batch_stats: totals.batches.iter().map(of_batch).collect(),
        memory_usage: totals.resident.iter().map(|(device, bytes)| of_memory(device, *bytes)).collect(),
        // Only models that answer several times to one request have these.
        response_stats: std::collections::BTreeMap::new(),
    })
}

fn of_batch(batch: &BatchTotals) -> InferBatchStatistics {
    InferBatchStatistics {
        batch_size: batch.rows.into(),
        compute_input: Some(duration(batch.input)),
        compute_infer: Some(duration(batch.infer)),
        compute_output: Some(duration(batch.output)),
    }
}

/// Triton's words for a device such as `cpu:0`.
fn of_memory(device: &str, byte_size: u64) -> MemoryUsage {
    let (kind, number) = device.split_once(':').unwrap_or((device, "0"));
    let r#type = if kind == "cuda" { "GPU".to_owned() } else { kind.to_uppercase() };
    MemoryUsage { r#type, id: number.parse().unwrap_or(0), byte_size }
}

fn duration(spans: Spans) -> StatisticDuration {
    StatisticDuration { count: spans.count, ns: spans.total.as_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Duration;

    #[test]
    fn devices_have_tritons_names() {
        let of = |device| {
            let MemoryUsage { r#type, id, byte_size } = of_memory(device, 7);
            (r#type, id, byte_size)
        };
        assert_eq!(of("cpu:2"), ("CPU".into(), 2, 7));
        assert_eq!(of("cuda:0"), ("GPU".into(), 0, 7));
        assert_eq!(of("emulated:11"), ("EMULATED".into(), 11, 7));
    }

    #[test]
    fn an_instant_is_as_long_ago_on_the_wall() {
        let clocks = Clocks {
            now: Timestamp::ZERO + Duration::from_secs(10),
            wall: SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000),
        };
        assert_eq!(clocks.millis(Timestamp::ZERO + Duration::from_millis(9_500)), 999_500);
    }
}
