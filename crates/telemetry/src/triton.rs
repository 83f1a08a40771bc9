//! The metrics under Triton's names, made from the same counters when they are asked for.

use crate::declare::{Declaration, MetricKind, TRITON, triton as t};
use crate::machine::UsageReader;
use crate::metrics::ModelMetrics;
use crate::statistics::ModelTotals;
use base::Duration;
use prometheus::core::{Collector, Desc};
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The models that are counted, by name and version.
pub(crate) type Models = Arc<Mutex<BTreeMap<(String, u64), ModelMetrics>>>;

/// Triton's words for why requests fail.
const FAILURES: [&str; 4] = ["REJECTED", "CANCELED", "BACKEND", "OTHER"];

/// Makes the series when the registry is read.
pub(crate) struct TritonCollector {
    descriptions: Vec<Desc>,
    models: Models,
    machine: UsageReader,
}

impl TritonCollector {
    pub fn new(models: Models) -> Self {
        let describe = |metric: &Declaration| {
            let labels = metric.labels.iter().map(|&label| label.to_owned()).collect();
            Desc::new(metric.name.to_owned(), metric.help.to_owned(), labels, std::collections::HashMap::new())
                .expect("names and labels in the list of declarations are valid")
        };
        Self { descriptions: TRITON.iter().map(describe).collect(), models, machine: UsageReader::default() }
    }
}

/// A family in the making.
struct Family(MetricFamily);

impl Family {
    fn new(metric: &Declaration) -> Self {
        let mut family = MetricFamily::default();
        family.set_name(metric.name.to_owned());
        family.set_help(metric.help.to_owned());
        family.set_field_type(if metric.kind == MetricKind::Counter { MetricType::COUNTER } else { MetricType::GAUGE });
        Self(family)
    }

    fn push(&mut self, labels: &[(&str, &str)], value: f64) {
        let pair = |&(name, value): &(&str, &str)| {
            let mut pair = LabelPair::default();
            pair.set_name(name.to_owned());
            pair.set_value(value.to_owned());
            pair
        };
        let mut metric = Metric::from_label(labels.iter().map(pair).collect());
        if self.0.get_field_type() == MetricType::COUNTER {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.0.mut_metric().push(metric);
    }
}

fn micros(span: Duration) -> f64 {
    span.as_micros() as f64
}

/// A metric's value, from what was counted of a model.
type ReadTotal = fn(&ModelTotals) -> f64;

/// The metrics that have the labels `model` and `version` alone, and what each is of what was counted.
const BY_MODEL: [(&Declaration, ReadTotal); 8] = [
    (&t::SUCCESS, |totals| totals.success.count as f64),
    (&t::INFERENCES, |totals| totals.inferences as f64),
    (&t::EXECUTIONS, |totals| totals.executions as f64),
    (&t::REQUEST_US, |totals| micros(totals.success.total)),
    (&t::QUEUE_US, |totals| micros(totals.queue.total)),
    (&t::INPUT_US, |totals| micros(totals.input.total)),
    (&t::INFER_US, |totals| micros(totals.infer.total)),
    (&t::OUTPUT_US, |totals| micros(totals.output.total)),
];

/// The same for models whose answers are kept.
const BY_CACHED_MODEL: [(&Declaration, ReadTotal); 4] = [
    (&t::CACHE_HITS, |totals| totals.cache_hit.count as f64),
    (&t::CACHE_MISSES, |totals| totals.cache_miss.count as f64),
    (&t::CACHE_HIT_US, |totals| micros(totals.cache_hit.total)),
    (&t::CACHE_MISS_US, |totals| micros(totals.cache_miss.total)),
];

impl Collector for TritonCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.descriptions.iter().collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut by_model = BY_MODEL.map(|(metric, value)| (Family::new(metric), value));
        let mut by_cached_model = BY_CACHED_MODEL.map(|(metric, value)| (Family::new(metric), value));
        let (mut failed, mut pending) = (Family::new(&t::FAILURE), Family::new(&t::PENDING));
        for ((name, version), model) in &*self.models.lock().unwrap_or_else(PoisonError::into_inner) {
            let version = version.to_string();
            let labels = [("model", name.as_str()), ("version", version.as_str())];
            let totals = model.totals();
            by_model.iter_mut().for_each(|(family, value)| family.push(&labels, value(&totals)));
            if model.statistics().are_answers_kept() {
                by_cached_model.iter_mut().for_each(|(family, value)| family.push(&labels, value(&totals)));
            }
            for word in FAILURES {
                failed.push(&[labels[0], ("reason", word), labels[1]], model.failed_as(word) as f64);
            }
            pending.push(&labels, model.pending() as f64);
        }
        let mut families: Vec<MetricFamily> =
            by_model.into_iter().chain(by_cached_model).map(|(family, _)| family.0).collect();
        families.extend([failed.0, pending.0]);
        let reading = self.machine.read();
        let readings = [
            (&t::CPU, reading.cpu_utilization),
            (&t::MEMORY_TOTAL, reading.memory_total_bytes),
            (&t::MEMORY_USED, reading.memory_used_bytes),
        ];
        for (metric, value) in readings {
            let mut family = Family::new(metric);
            value.into_iter().for_each(|value| family.push(&[], value));
            families.push(family.0);
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_one_of_tritons_words() {
        for reason in base::Reason::ALL {
            assert!(FAILURES.contains(&reason.triton()), "{reason}");
        }
    }
}
