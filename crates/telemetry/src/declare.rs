//! The one list of metrics: name, kind, labels, buckets, meaning. The registry, the families of series and the
//! reference page are made from it.

use prometheus::{
    CounterVec, GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, IntGaugeVec, Opts, Registry, core::Collector,
};

/// What kind of number a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetricKind {
    /// Only ever grows, except for a restart.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts of values by upper bound, with their sum.
    Histogram,
}

impl MetricKind {
    /// Prometheus' name for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// One metric.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Declaration {
    /// Its full name, unit last.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Upper bounds of a histogram's buckets, ascending; empty for the other kinds.
    pub buckets: &'static [f64],
    /// What it says, for people.
    pub help: &'static str,
}

/// For spans that a user waits: 10 us to 60 s.
const WAITS: &[f64] = &[
    10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 100e-3, 200e-3, 500e-3, 1.0,
    2.0, 5.0, 10.0, 30.0, 60.0,
];

/// For steps of the scheduler: 200 ns to 10 ms.
const STEPS: &[f64] =
    &[200e-9, 500e-9, 1e-6, 2e-6, 5e-6, 10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3];

/// For rows of a batch.
const ROWS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

const MODEL: &[&str] = &["model", "version"];
const MEMBER: &[&str] = &["model", "version", "member"];
const DEVICE: &[&str] = &["device"];
const DEVICE_ACTION: &[&str] = &["device", "action"];

/// A family of series: one metric with all values of its labels.
pub(crate) trait Family: Collector + Clone + 'static {
    const KIND: MetricKind;

    fn new(metric: &Declaration) -> prometheus::Result<Self>;
}

macro_rules! families {
    ($($family:ty: $kind:ident, $options:ident;)*) => {
        $(
            impl Family for $family {
                const KIND: MetricKind = MetricKind::$kind;

                fn new(metric: &Declaration) -> prometheus::Result<Self> {
                    Self::new(metric.$options(), metric.labels)
                }
            }
        )*
    };
}

families! {
    IntCounterVec: Counter, options;
    CounterVec: Counter, options;
    IntGaugeVec: Gauge, options;
    GaugeVec: Gauge, options;
    HistogramVec: Histogram, histogram_options;
}

impl Declaration {
    fn options(&self) -> Opts {
        Opts::new(self.name, self.help)
    }

    fn histogram_options(&self) -> HistogramOpts {
        HistogramOpts { common_opts: self.options(), buckets: self.buckets.to_vec() }
    }

    fn register<F: Family>(&self, registry: &Registry) -> F {
        let family = F::new(self).expect("names and labels in the list of declarations are valid");
        registry.register(Box::new(family.clone())).expect("names in the list of declarations are unique");
        family
    }
}

macro_rules! declare {
    ($($field:ident: $family:ty = $name:literal $labels:expr, $buckets:expr, $help:literal;)*) => {
        /// Every metric there is, in the order of the reference page.
        pub const ALL: &[Declaration] = &[
            $(Declaration {
                name: concat!("punctual_", $name),
                kind: <$family as Family>::KIND,
                labels: $labels,
                buckets: $buckets,
                help: $help,
            },)*
        ];

        /// The family of every metric.
        pub(crate) struct Families {
            $(pub $field: $family,)*
        }

        impl Families {
            /// Registers all of them.
            pub fn new(registry: &Registry) -> Self {
                let mut declared = ALL.iter();
                $(let $field = declared.next().expect("the list has each of them").register(registry);)*
                Self { $($field,)* }
            }

            /// Takes the series with these labels out of every family that has exactly the labels of a model.
            pub fn remove_model(&self, labels: &[&str]) {
                let mut declared = ALL.iter();
                $(
                    if declared.next().is_some_and(|metric| metric.labels == MODEL) {
                        // This fails only for a series that isn't there.
                        let _ = self.$field.remove_label_values(labels);
                    }
                )*
            }
        }
    };
}

declare! {
    // Requests, by model.
    requests: IntCounterVec = "requests_total" &["model", "version", "outcome", "reason"], &[],
        "Requests that are over, by outcome (success, refused, failed, cancelled) and, unless it is a success, reason. A success is outputs by the deadline, if there is one: this is the goodput.";
    request_seconds: HistogramVec = "request_seconds" MODEL, WAITS,
        "From the arrival of a request to its answer, successes only.";
    queue_seconds: HistogramVec = "queue_seconds" MODEL, WAITS,
        "From the arrival of a request to the start of its execution.";
    execution_seconds: HistogramVec = "execution_seconds" MODEL, WAITS,
        "What executing a batch took on the device.";
    batch_rows: HistogramVec = "batch_rows" MODEL, ROWS,
        "Rows in an executed batch.";
    cold_starts: IntCounterVec = "cold_starts_total" MODEL, &[],
        "Requests that arrived while the weights were on no device.";
    loads: IntCounterVec = "loads_total" MODEL, &[],
        "Times that the weights were brought onto a device.";
    unloads: IntCounterVec = "unloads_total" MODEL, &[],
        "Times that the weights were dropped from a device.";
    precision_error: GaugeVec = "model_precision_error" &["model", "version", "precision"], &[],
        "How far the model's outputs in the precision that it is computed in are from those in fp32, at most, as a part of an output's range, for the inputs that were compared: before it was served, and some of live requests since; 0 in fp32. For engines that have a choice (docs/gpu.md).";
    cache_joined: IntCounterVec = "cache_joined_total" MODEL, &[],
        "Requests that got the outputs of an identical one that was in flight when they came: misses that weren't computed. For models with response_cache (docs/cache.md).";
    wasted: CounterVec = "wasted_device_seconds_total" MODEL, &[],
        "Device time that was spent on calls of an endpoint's requests which weren't answered after all: refused or lost at a later stage, late, or given up by the client (docs/endpoints.md).";
    selected: IntCounterVec = "selection_answers_total" MEMBER, &[],
        "Answers of an endpoint, by the member that gave them, or whose other outputs they have where several made one; the member is empty for the endpoint's default output (docs/selection.md).";
    selection_missing: IntCounterVec = "selection_missing_total" MEMBER, &[],
        "Times that an endpoint asked a member and went on without its answer: it failed, or wasn't there in time.";
    selection_losses: CounterVec = "selection_loss_total" MEMBER, &[],
        "The sum of what feedback says that the member's answers lost, each from 0 to 1.";
    selection_judged: IntCounterVec = "selection_judged_total" MEMBER, &[],
        "Answers of the member of which feedback said how good they were.";
    selection_weight: GaugeVec = "selection_weight" MEMBER, &[],
        "What the member counts now, as a part of 1, for users that have no weights of their own; for exp3 and exp4.";
    feedback: IntCounterVec = "selection_feedback_total" &["model", "version", "outcome"], &[],
        "Feedback for an endpoint's answers, by outcome: joined (it found its answer), unknown (there is no such answer, or it was too long ago), again (it had feedback before), refused (it makes no sense for this endpoint).";
    shadows: IntCounterVec = "selection_shadows_total" &["model", "version", "member", "outcome"], &[],
        "Copies of requests that went to a shadow, by outcome: same (it said the same), different, failed, skipped (too many were in flight).";
    unrouted: IntCounterVec = "unrouted_requests_total" &["reason"], &[],
        "Requests that ended before a model was found for them, by reason.";
    in_flight: IntGaugeVec = "requests_in_flight" &[], &[],
        "Requests that have arrived and aren't answered yet.";

    // Devices.
    load_seconds: HistogramVec = "load_seconds" DEVICE, WAITS,
        "What bringing a model's weights onto the device took.";
    prediction_error: HistogramVec = "prediction_error_seconds" &["device", "action", "direction"], WAITS,
        "How far the predicted duration of an action was from the measured one: over when less time was needed than predicted, under when more.";
    completion_error: HistogramVec = "completion_error_seconds" &["device", "direction"], WAITS,
        "How far the predicted end of an execution was from the measured one: over when it ended before, under when after.";
    actions: IntCounterVec = "actions_total" &["device", "action", "result"], &[],
        "Actions that the device was ordered to do, by result: done, too_late (its window had passed, so it was not started), failed.";
    busy_seconds: CounterVec = "device_busy_seconds_total" DEVICE_ACTION, &[],
        "Time that the device spent on executions and on loads. Over one second of wall time this is the utilization.";
    transfer_seconds: CounterVec = "device_transfer_seconds_total" &["device", "hidden"], &[],
        "Time that the inputs and outputs of batches took to the device and from it, where they can run beside other batches: hidden (yes) as far as inputs came before their batch started.";
    pages: IntGaugeVec = "device_pages" DEVICE, &[],
        "Pages that the device has for weights.";
    pages_used: IntGaugeVec = "device_pages_used" DEVICE, &[],
        "Pages that hold weights now.";
    slowness: GaugeVec = "device_slowness" DEVICE, &[],
        "How many times as long as on others of its kind batches are expected to take on the device, at most; 1 where it is as quick as they are (docs/notes/006-slow-devices.md).";
    losses: IntCounterVec = "device_losses_total" DEVICE, &[],
        "Times that the device was given up because its engine panicked, and was started anew, empty.";
    share: GaugeVec = "device_share" DEVICE, &[],
        "The part of its GPU that the device is now, where GPUs are divided (docs/gpu.md), or of the cores that compute, where those are (docs/guide.md); 0 where nobody computes there.";
    share_changes: IntCounterVec = "share_changes_total" &["what"], &[],
        "Times that GPUs, with --shares auto, or cores, with --cpu-division auto, were divided otherwise (division), or that models were to run in other shares of GPUs that are divided as before (models).";

    // The schedulers.
    rule: IntGaugeVec = "scheduler_rule" &["cell"], &[],
        "Which of its rules the policy punctual has now (docs/notes/003-when-a-batch-starts.md), in each cell; 0 is the usual one.";
    moves: IntCounterVec = "cell_moves_total" &["from", "to"], &[],
        "Models that were moved from a cell that was short to one that had room (docs/notes/009-cells.md), by the cells' numbers.";

    // Advice on scaling.
    devices: IntGaugeVec = "devices" &[], &[],
        "Devices that there are.";
    devices_wanted: IntGaugeVec = "scaling_devices_wanted" &[], &[],
        "Devices that there should be; see docs/scaling.md.";
    bad_ratio: GaugeVec = "scaling_bad_ratio" &[], &[],
        "Share of requests that were lost for want of devices, in the advice's window.";
    idle_ratio: GaugeVec = "scaling_idle_ratio" &[], &[],
        "Share of the devices' time without executions, in the advice's window.";

    // The server.
    models: IntGaugeVec = "models" &["state"], &[],
        "Versions of models, by state: loading (being prepared or profiled), ready, broken.";
    connections: IntGaugeVec = "io_connections" &["protocol"], &[],
        "Open connections of clients, by protocol.";
    held: IntGaugeVec = "io_held_bytes" &[], &[],
        "Bytes of large requests and answers that are in the server, of which --max-held is the most.";
    memory_used: IntGaugeVec = "memory_used_bytes" &[], &[],
        "Memory that the process has in use (its resident set, but for what can be read again from files).";
    memory_limit: IntGaugeVec = "memory_limit_bytes" &[], &[],
        "The most that it may have: of --memory-limit, the limits of its cgroups and of its address space the least; 0 where there is none.";
    memory_step: IntGaugeVec = "memory_step" &[], &[],
        "What is done for want of memory: 0 nothing, 1 answers aren't kept (docs/cache.md), 2 large bodies are refused too, 3 new connections too, 4 connections that idle are closed too.";
    cache_bytes: IntGaugeVec = "cache_bytes" &[], &[],
        "What kept answers take, with all that belongs to them, of which the size in --cache-config is the most; looked at four times a second, as the two below.";
    cache_entries: IntGaugeVec = "cache_entries" &[], &[],
        "Answers that are kept.";
    cache_evictions: IntCounterVec = "cache_evictions_total" &[], &[],
        "Answers that had to make room for others.";
    step_seconds: HistogramVec = "scheduler_step_seconds" &[], STEPS,
        "What the scheduler needed for one event.";
    measurements: HistogramVec = "online_measurement_seconds" &["run"], WAITS,
        "What requests took alone, for the online profiler: served (they were alone anyway), again (run once more when a device had nothing to do).";
    invariants: IntCounterVec = "invariant_violations_total" &["invariant"], &[],
        "Times that an invariant of ARCHITECTURE.md was found broken. P7 can't be seen here and stays 0: punctual replay looks at it. Anything but 0 is a bug.";
    build: IntGaugeVec = "build_info" &["version"], &[],
        "Always 1; the label says which version is running.";
}

macro_rules! declare_tritons {
    ($($const:ident = $kind:ident $name:literal $labels:expr, $help:literal;)*) => {
        /// The metrics that have Triton's names, so that dashboards made for it draw.
        pub(crate) mod triton {
            use super::{Declaration, MetricKind, MODEL};
            $(
                pub(crate) const $const: Declaration =
                    Declaration { name: $name, kind: MetricKind::$kind, labels: $labels, buckets: &[], help: $help };
            )*
        }

        /// Every metric under Triton's names, in the order of the reference page.
        pub const TRITON: &[Declaration] = &[$(triton::$const,)*];
    };
}

declare_tritons! {
    SUCCESS = Counter "nv_inference_request_success" MODEL,
        "Requests that were answered with outputs.";
    FAILURE = Counter "nv_inference_request_failure" &["model", "reason", "version"],
        "Requests that were not, by reason: REJECTED (refused because its deadline can't be met or there is no room), CANCELED (the client went away), BACKEND (the engine could not compute it), OTHER.";
    INFERENCES = Counter "nv_inference_count" MODEL,
        "Rows that were computed; a request with a batch of 4 counts 4.";
    EXECUTIONS = Counter "nv_inference_exec_count" MODEL,
        "Batches that were computed.";
    REQUEST_US = Counter "nv_inference_request_duration_us" MODEL,
        "Microseconds from arrival to answer, of all answered requests together.";
    QUEUE_US = Counter "nv_inference_queue_duration_us" MODEL,
        "Microseconds until a device turned to them, of all computed requests together.";
    INPUT_US = Counter "nv_inference_compute_input_duration_us" MODEL,
        "Microseconds in which the inputs of their batches were gathered, of all computed requests together; a batch of one needs none.";
    INFER_US = Counter "nv_inference_compute_infer_duration_us" MODEL,
        "Microseconds in which the engine computed, of all computed requests together.";
    OUTPUT_US = Counter "nv_inference_compute_output_duration_us" MODEL,
        "Microseconds in which the outputs of their batches were copied and split, of all computed requests together.";
    PENDING = Gauge "nv_inference_pending_request_count" MODEL,
        "Requests that wait to be handed to a device.";
    CACHE_HITS = Counter "nv_cache_num_hits_per_model" MODEL,
        "Requests for which an answer was kept; for models with response_cache, as the three below.";
    CACHE_MISSES = Counter "nv_cache_num_misses_per_model" MODEL,
        "Requests for which none was kept.";
    CACHE_HIT_US = Counter "nv_cache_hit_duration_per_model" MODEL,
        "Microseconds in which kept answers were found.";
    CACHE_MISS_US = Counter "nv_cache_miss_duration_per_model" MODEL,
        "Microseconds in which none was found, and in which new answers were put there.";
    CPU = Gauge "nv_cpu_utilization" &[],
        "Share of the machine's processor time with work since the last look at the metrics, 0 to 1.";
    MEMORY_TOTAL = Gauge "nv_cpu_memory_total_bytes" &[],
        "Memory of the machine.";
    MEMORY_USED = Gauge "nv_cpu_memory_used_bytes" &[],
        "Memory of the machine that isn't available.";
}

/// The reference page `docs/metrics.md`.
pub fn reference() -> String {
    use std::fmt::Write as _;
    let mut page = String::from(
        "# Metrics\n\n\
         Served in Prometheus' text format at `/metrics` on the metrics port (8002). Times are in seconds.\n\
         A histogram of a model or a device is there from its first observation on, everything else from the start.\n\
         This page is generated from `crates/telemetry/src/declare.rs`; a test compares the two, and\n\
         `UPDATE_EXPECT=1 cargo test -p telemetry` writes it anew.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    let rows = |metrics: &[Declaration]| -> String {
        let row = |metric: &Declaration| {
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{}` | {} | {} | {} |\n", metric.name, metric.kind.name(), labels.join(", "), metric.help)
        };
        metrics.iter().map(row).collect()
    };
    page.push_str(&rows(ALL));
    page.push_str(
        "\n## Under Triton's names\n\n\
         Dashboards and alerts that were made for Triton draw these. They come from the counters that the statistics\n\
         calls (`v2/models/stats`, `ModelStatistics`) show. What Triton has beyond them has no meaning here: there is no\n\
         decoupled model, and nobody reads the power of a GPU.\n\n\
         | metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    page.push_str(&rows(TRITON));
    page.push_str("\n## Reasons\n\nThe label `reason` is one of these, or empty for a success. ");
    page.push_str("The same words are in the `reason` field of an error's body.\n\n");
    page.push_str("| reason | outcome | meaning |\n|---|---|---|\n");
    for reason in base::Reason::labels() {
        writeln!(page, "| `{}` | {} | {} |", reason.name(), reason.outcome(), reason.help())
            .expect("writing to a string doesn't fail");
    }
    page.push_str("\n## Buckets\n\n| metric | upper bounds |\n|---|---|\n");
    for metric in ALL.iter().filter(|metric| metric.kind == MetricKind::Histogram) {
        let bounds: Vec<String> = metric.buckets.iter().map(ToString::to_string).collect();
        writeln!(page, "| `{}` | {} |", metric.name, bounds.join(", ")).expect("writing to a string doesn't fail");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_reference_page_is_up_to_date() {
        expect_test::expect_file!["../../../docs/metrics.md"].assert_eq(&reference());
    }

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let names: BTreeSet<_> = ALL.iter().chain(TRITON).map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len() + TRITON.len());
        for metric in ALL {
            assert_eq!(metric.kind == MetricKind::Counter, metric.name.ends_with("_total"), "{}", metric.name);
            assert_eq!(metric.kind == MetricKind::Histogram, !metric.buckets.is_empty(), "{}", metric.name);
            assert!(metric.buckets.is_sorted(), "{}", metric.name);
        }
    }
}
