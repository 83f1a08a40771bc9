//! The figures of a run, and their mean over seeds.

use base::Duration;
use serde_json::{Map, Value, json};
use sim::{Meter, RunResult, Setup, Tally, by_reason, ratio};

/// The figures of one run as a JSON object.
pub(crate) fn of_run(run: &RunResult, setup: &Setup) -> Value {
    let (meter, groups) = (&run.meter, &setup.groups);
    let mut figures = tally(&meter.total(), meter.span().as_secs_f64());
    let own = json!({
        "mean_batch": meter.mean_batch(),
        "utilization": meter.utilization(),
        "load_utilization": meter.load_utilization(),
        "mean_devices": meter.mean_devices(),
        "broken_off": meter.broken_off,
        "loads": meter.loads,
        "events": run.events,
        "exec_error": meter.exec_error.summary(),
        "load_error": meter.load_error.summary(),
        "completion_error": meter.completion_error.summary(),
    });
    extend(&mut figures, own);
    // Where pipelines are asked for, models mostly aren't.
    let asked = |(_, group): &(&String, &Tally)| setup.pipelines.is_empty() || group.sent > 0;
    let each: Vec<(&String, &Tally)> = groups.iter().zip(&meter.groups).filter(asked).collect();
    if each.len() > 1 {
        let figures_of = |group: &Tally| Value::Object(tally(group, meter.span().as_secs_f64()));
        let each: Map<String, Value> = each.iter().map(|(name, group)| ((*name).clone(), figures_of(group))).collect();
        figures.insert("models".into(), Value::Object(each));
    }
    if let Some(series) = series(meter, groups) {
        figures.insert("series".into(), series);
    }
    Value::Object(figures)
}

/// The first batches of a run, where they were asked for.
pub(crate) fn trace(run: &RunResult) -> Option<Value> {
    let trace = &run.meter.trace;
    (!trace.batches.is_empty()).then(|| json!(trace))
}

fn extend(figures: &mut Map<String, Value>, more: Value) {
    if let Value::Object(more) = more {
        figures.extend(more);
    }
}

fn tally(tally: &Tally, seconds: f64) -> Map<String, Value> {
    let mut figures = Map::new();
    let rejected: Map<String, Value> =
        by_reason(tally.refused).map(|(reason, count)| (reason.to_owned(), count.into())).collect();
    let own = json!({
        "goodput_rps": tally.good as f64 / seconds,
        "rate_rps": tally.sent as f64 / seconds,
        "bad": tally.bad_fraction(),
        "satisfied": ratio(tally.good as f64, (tally.good + tally.bad()) as f64),
        "sent": tally.sent,
        "good": tally.good,
        "late": tally.late,
        "max_executed_ms": tally.slowest.as_millis_f64(),
        "failed": tally.failed,
        "cancelled": tally.cancelled,
        "rejected": rejected,
        "rejected_early": ratio(tally.refused_early as f64, tally.refusals() as f64),
        "refused_at_once": ratio(tally.refused_at_once as f64, tally.refusals() as f64),
        "cold": ratio(tally.cold as f64, tally.sent as f64),
        "cold_of_good": ratio(tally.cold_good as f64, tally.good as f64),
    });
    extend(&mut figures, own);
    if tally.work > Duration::ZERO {
        figures.insert("wasted".into(), ratio(tally.wasted.as_secs_f64(), tally.work.as_secs_f64()).into());
    }
    if let Ok(mut latency) = serde_json::to_value(tally.latency.summary()) {
        latency.as_object_mut().map(|latency| latency.remove("count"));
        extend(&mut figures, latency);
    }
    figures
}

fn series(meter: &Meter, groups: &[String]) -> Option<Value> {
    let series = meter.series.as_ref()?;
    let mut all = Map::new();
    all.insert("devices".into(), json!(series.devices()));
    if groups.len() > 1 && !groups.iter().any(|name| name == "all") {
        all.insert("all".into(), json!(series.all()));
    }
    for (index, name) in groups.iter().enumerate() {
        all.insert(name.clone(), json!(series.group(index)));
    }
    Some(Value::Object(all))
}

/// The mean of equal shapes: numbers are averaged, except that keys that begin with `max` keep the largest; a number
/// that only some have counts as 0 for the others, and a null counts for nothing.
pub(crate) fn mean(values: &[Value]) -> Value {
    merge(values.iter().collect(), "")
}

fn merge(mut values: Vec<&Value>, key: &str) -> Value {
    values.retain(|value| !value.is_null());
    let count = values.len().max(1) as f64;
    match values.first() {
        None => Value::Null,
        Some(Value::Number(_)) => {
            let numbers = values.iter().filter_map(|value| value.as_f64());
            if key.starts_with("max") {
                json!(numbers.fold(f64::MIN, f64::max))
            } else {
                json!(numbers.sum::<f64>() / count)
            }
        }
        Some(Value::Object(_)) => {
            let objects: Vec<&Map<String, Value>> = values.iter().filter_map(|value| value.as_object()).collect();
            let mut keys: Vec<&String> = objects.iter().flat_map(|object| object.keys()).collect();
            keys.sort_unstable();
            keys.dedup();
            let zero = json!(0.0);
            let entry = |key: &String| {
                let values = objects.iter().map(|object| object.get(key).unwrap_or(&zero)).collect();
                (key.clone(), merge(values, key))
            };
            Value::Object(keys.into_iter().map(entry).collect())
        }
        Some(Value::Array(first)) => {
            let element = |index: usize| merge(values.iter().filter_map(|value| value.get(index)).collect(), key);
            Value::Array((0..first.len()).map(element).collect())
        }
        Some(other) => (*other).clone(),
    }
}

/// The number at a path of keys joined by dots, as in `models.minor.p99_ms`, `trace.batches.0.rows` or `bad_at.0.6`,
/// whose last key is `0.6`.
pub(crate) fn figure(figures: &Value, path: &str) -> Option<f64> {
    if let Some(number) = figures.get(path).and_then(Value::as_f64) {
        return Some(number);
    }
    let (key, rest) = path.split_once('.').unwrap_or((path, ""));
    let at = match figures {
        Value::Array(values) => values.get(key.parse::<usize>().ok()?)?,
        other => other.get(key)?,
    };
    if rest.is_empty() { at.as_f64() } else { figure(at, rest) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_taken_at_every_depth() {
        let runs = [
            json!({"a": 1, "n": null, "max_ms": 3.0, "in": {"b": [1.0, 2.0]}, "rejected": {"overloaded": 4}}),
            json!({"a": 2, "n": 7.0, "max_ms": 5.0, "in": {"b": [3.0, 4.0]}, "rejected": {}}),
        ];
        let expected =
            json!({"a": 1.5, "n": 7.0, "max_ms": 5.0, "in": {"b": [2.0, 3.0]}, "rejected": {"overloaded": 2.0}});
        assert_eq!(mean(&runs), expected);
        assert_eq!(figure(&expected, "rejected.overloaded"), Some(2.0));
        assert_eq!(figure(&expected, "rejected.else"), None);
        assert_eq!(figure(&expected, "in.b.1"), Some(3.0));
        assert_eq!(figure(&json!({"bad_at": {"0.6": 0.5}}), "bad_at.0.6"), Some(0.5));
    }
}
