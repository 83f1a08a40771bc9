//! The registry, and the handles with which the rest of the program counts.

use crate::declare::Families;
use crate::demand::{DemandCounters, DemandTotals, ModelDemand};
use crate::statistics::{ModelTotals, Spans, Statistics};
use crate::triton::{Models, TritonCollector};
use base::{Duration, Reason, Transfers};
use prometheus::{
    Counter, Gauge, Histogram, IntCounter, IntGauge, Registry, TextEncoder,
    proto::{Metric, MetricType},
};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A histogram of spans of time.
#[derive(Clone, Debug)]
pub struct Seconds(Histogram);

impl Seconds {
    /// Counts one span.
    pub fn observe(&self, span: Duration) {
        self.0.observe(span.as_secs_f64());
    }
}

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics {
    registry: Registry,
    families: Arc<Families>,
    /// Requests that have arrived and aren't answered yet.
    pub in_flight: IntGauge,
    /// Open connections over HTTP.
    pub http_connections: IntGauge,
    /// Open connections over gRPC.
    pub grpc_connections: IntGauge,
    /// Bytes of large requests and answers.
    pub held_bytes: IntGauge,
    /// Memory that the process has in use.
    pub memory_used: IntGauge,
    /// The most that it may have.
    pub memory_limit: IntGauge,
    /// What is done for want of memory.
    pub memory_step: IntGauge,
    /// What kept answers take.
    pub cache_bytes: IntGauge,
    /// Answers that are kept.
    pub cache_entries: IntGauge,
    /// Answers that had to make room for others.
    pub cache_evictions: IntCounter,
    /// Versions of models being prepared or profiled.
    pub models_loading: IntGauge,
    /// Versions of models that can be asked.
    pub models_ready: IntGauge,
    /// Versions of models that can't be served.
    pub models_broken: IntGauge,
    /// What the scheduler needed for one event.
    pub scheduler_step: Seconds,
    /// What requests took that were served alone and noted by the online profiler.
    pub measured_served: Seconds,
    /// What requests took that the online profiler ran once more.
    pub measured_again: Seconds,
    unrouted: Arc<[IntCounter]>,
    invariants: Arc<[IntCounter]>,
    demand: Arc<DemandCounters>,
    scaling: ScalingMetrics,
    models: Models,
}

#[derive(Clone)]
struct ScalingMetrics {
    devices: IntGauge,
    wanted: IntGauge,
    bad: Gauge,
    idle: Gauge,
}

/// The numbered invariants of ARCHITECTURE.md.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "ARCHITECTURE.md states them")]
pub enum Invariant {
    P1,
    P2,
    P3,
    P4,
    P5,
    P6,
    P7,
    P8,
    P9,
}

impl Invariant {
    const NAMES: [&'static str; 9] = ["P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "P9"];
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Metrics {
    /// A registry with every metric and no model or device yet.
    pub fn new() -> Self {
        let registry = Registry::new();
        let f = Families::new(&registry);
        let scaling = ScalingMetrics {
            devices: f.devices.with_label_values::<&str>(&[]),
            wanted: f.devices_wanted.with_label_values::<&str>(&[]),
            bad: f.bad_ratio.with_label_values::<&str>(&[]),
            idle: f.idle_ratio.with_label_values::<&str>(&[]),
        };
        let tracked = Models::default();
        let collector = TritonCollector::new(Arc::clone(&tracked));
        registry.register(Box::new(collector)).expect("names in the list of declarations are unique");
        f.build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Self {
            in_flight: f.in_flight.with_label_values::<&str>(&[]),
            http_connections: f.connections.with_label_values(&["http"]),
            grpc_connections: f.connections.with_label_values(&["grpc"]),
            held_bytes: f.held.with_label_values::<&str>(&[]),
            memory_used: f.memory_used.with_label_values::<&str>(&[]),
            memory_limit: f.memory_limit.with_label_values::<&str>(&[]),
            memory_step: f.memory_step.with_label_values::<&str>(&[]),
            cache_bytes: f.cache_bytes.with_label_values::<&str>(&[]),
            cache_entries: f.cache_entries.with_label_values::<&str>(&[]),
            cache_evictions: f.cache_evictions.with_label_values::<&str>(&[]),
            models_loading: f.models.with_label_values(&["loading"]),
            models_ready: f.models.with_label_values(&["ready"]),
            models_broken: f.models.with_label_values(&["broken"]),
            scheduler_step: Seconds(f.step_seconds.with_label_values::<&str>(&[])),
            measured_served: Seconds(f.measurements.with_label_values(&["served"])),
            measured_again: Seconds(f.measurements.with_label_values(&["again"])),
            unrouted: Reason::ALL.map(|reason| f.unrouted.with_label_values(&[reason.label().name()])).into(),
            invariants: Invariant::NAMES.iter().map(|name| f.invariants.with_label_values(&[name])).collect(),
            registry,
            families: Arc::new(f),
            demand: Arc::default(),
            scaling,
            models: tracked,
        }
    }

    /// The metrics of one version of a model, all looked up. Asking twice gives the same series.
    pub fn model(&self, name: &str, version: u64) -> ModelMetrics {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        models.entry((name.to_owned(), version)).or_insert_with(|| self.new_model(name, version)).clone()
    }

    fn new_model(&self, name: &str, version: u64) -> ModelMetrics {
        let version = version.to_string();
        let labels = [name, version.as_str()];
        let f = &*self.families;
        let ended =
            |reason: Reason| f.requests.with_label_values(&[name, &version, reason.outcome(), reason.label().name()]);
        ModelMetrics {
            inner: Arc::new(ModelSeries {
                success: f.requests.with_label_values(&[name, &version, "success", ""]),
                ended: Reason::ALL.map(ended).into(),
                request: Seconds(f.request_seconds.with_label_values(&labels)),
                queue: Seconds(f.queue_seconds.with_label_values(&labels)),
                execution: Seconds(f.execution_seconds.with_label_values(&labels)),
                batch_rows: f.batch_rows.with_label_values(&labels),
                cold_starts: f.cold_starts.with_label_values(&labels),
                loads: f.loads.with_label_values(&labels),
                unloads: f.unloads.with_label_values(&labels),
                without_work: AtomicU64::new(0),
                success_nanos: AtomicU64::new(0),
                fail_nanos: AtomicU64::new(0),
                precision: Mutex::default(),
                joined: OnceLock::new(),
                wasted: OnceLock::new(),
                members: Mutex::default(),
                statistics: Arc::default(),
                demand: Arc::clone(&self.demand),
            }),
        }
    }

    /// A model is computed in that precision, in which its outputs are that far off.
    pub fn computed_in(&self, name: &str, version: u64, precision: &str, error: f64) {
        let (model, version) = (self.model(name, version), version.to_string());
        self.forget_precision(&model, name, &version);
        self.families.precision_error.with_label_values(&[name, &version, precision]).set(error);
        *model.inner.precision.lock().unwrap_or_else(PoisonError::into_inner) = Some(precision.to_owned());
    }

    /// Answers of a model are kept: it has the metrics for that from now on.
    pub fn keeps_answers(&self, name: &str, version: u64) {
        let model = self.model(name, version);
        model.inner.statistics.keeps_answers();
        model.inner.joined.get_or_init(|| self.families.cache_joined.with_label_values(&[name, &version.to_string()]));
    }

    /// A model is an endpoint: it has the metrics for that from now on.
    pub fn asks_others(&self, name: &str, version: u64) {
        let model = self.model(name, version);
        model.inner.wasted.get_or_init(|| self.families.wasted.with_label_values(&[name, &version.to_string()]));
    }

    /// The metrics of an endpoint that selects among these members, all looked up. Asking twice gives the same series.
    pub fn selection(&self, name: &str, version: u64, members: &[&str]) -> SelectionMetrics {
        let f = &*self.families;
        let number = version.to_string();
        let version = number.as_str();
        let model = self.model(name, version.parse().unwrap_or(0));
        let known = &mut *model.inner.members.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(members.iter().map(|&member| member.to_owned()));
        let member = |member: &&str| {
            let labels = [name, version, member];
            let shadow = |outcome| f.shadows.with_label_values(&[name, version, member, outcome]);
            MemberSeries {
                selected: f.selected.with_label_values(&labels),
                missing: f.selection_missing.with_label_values(&labels),
                losses: f.selection_losses.with_label_values(&labels),
                judged: f.selection_judged.with_label_values(&labels),
                weight: f.selection_weight.with_label_values(&labels),
                shadows: SHADOW_OUTCOMES.map(shadow),
            }
        };
        let feedback = |outcome| f.feedback.with_label_values(&[name, version, outcome]);
        SelectionMetrics {
            members: members.iter().map(member).collect(),
            default: f.selected.with_label_values(&[name, version, ""]),
            feedback: FEEDBACK_OUTCOMES.map(feedback),
        }
    }

    fn forget_members(&self, model: &ModelMetrics, name: &str, version: &str) {
        let members = std::mem::take(&mut *model.inner.members.lock().unwrap_or_else(PoisonError::into_inner));
        let f = &*self.families;
        // Removal fails only for series that aren't there, which is what is wanted.
        for member in members.iter().map(String::as_str).chain([""]) {
            let labels = [name, version, member];
            let _ = f.selected.remove_label_values(&labels);
            let _ = f.selection_missing.remove_label_values(&labels);
            let _ = f.selection_losses.remove_label_values(&labels);
            let _ = f.selection_judged.remove_label_values(&labels);
            let _ = f.selection_weight.remove_label_values(&labels);
            for outcome in SHADOW_OUTCOMES {
                let _ = f.shadows.remove_label_values(&[name, version, member, outcome]);
            }
        }
        for outcome in FEEDBACK_OUTCOMES {
            let _ = f.feedback.remove_label_values(&[name, version, outcome]);
        }
    }

    fn forget_precision(&self, model: &ModelMetrics, name: &str, version: &str) {
        if let Some(precision) = model.inner.precision.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // Fails only for a series that isn't there.
            let _ = self.families.precision_error.remove_label_values(&[name, version, &precision]);
        }
    }

    /// Takes the series of a model that is no longer served out of the registry. Handles that are still around go on
    /// counting, unseen.
    pub fn remove_model(&self, name: &str, version: u64) {
        let removed = self.models.lock().unwrap_or_else(PoisonError::into_inner).remove(&(name.to_owned(), version));
        let version = version.to_string();
        if let Some(model) = removed {
            self.forget_precision(&model, name, &version);
            self.forget_members(&model, name, &version);
        }
        let f = &*self.families;
        // Removal fails only for series that aren't there, which is what is wanted.
        let _ = f.requests.remove_label_values(&[name, &version, "success", ""]);
        for reason in Reason::labels() {
            let _ = f.requests.remove_label_values(&[name, &version, reason.outcome(), reason.name()]);
        }
        f.remove_model(&[name, &version]);
    }

    /// The metrics of one device, all looked up. Asking twice gives the same series.
    pub fn device(&self, name: &str) -> DeviceMetrics {
        let f = &*self.families;
        let action = |action: &str, took: Option<Seconds>, demand: Option<Arc<DemandCounters>>| ActionMetrics {
            done: f.actions.with_label_values(&[name, action, "done"]),
            too_late: f.actions.with_label_values(&[name, action, "too_late"]),
            failed: f.actions.with_label_values(&[name, action, "failed"]),
            prediction_error: ErrorMetrics {
                over: Seconds(f.prediction_error.with_label_values(&[name, action, "over"])),
                under: Seconds(f.prediction_error.with_label_values(&[name, action, "under"])),
            },
            busy: f.busy_seconds.with_label_values(&[name, action]),
            took,
            demand,
        };
        let slowness = f.slowness.with_label_values(&[name]);
        // Before it has done anything it is as quick as others.
        slowness.set(1.0);
        DeviceMetrics {
            inner: Arc::new(DeviceSeries {
                name: name.to_owned(),
                execution: action("execution", None, Some(Arc::clone(&self.demand))),
                load: action("load", Some(Seconds(f.load_seconds.with_label_values(&[name]))), None),
                completion_error: ErrorMetrics {
                    over: Seconds(f.completion_error.with_label_values(&[name, "over"])),
                    under: Seconds(f.completion_error.with_label_values(&[name, "under"])),
                },
                hidden: f.transfer_seconds.with_label_values(&[name, "yes"]),
                seen: f.transfer_seconds.with_label_values(&[name, "no"]),
                pages: f.pages.with_label_values(&[name]),
                pages_used: f.pages_used.with_label_values(&[name]),
                slowness,
                losses: f.losses.with_label_values(&[name]),
            }),
        }
    }

    /// Which rule `punctual` has in a cell.
    pub fn rule(&self, cell: usize) -> IntGauge {
        self.families.rule.with_label_values(&[&cell.to_string()])
    }

    /// A model was moved from a cell to another.
    pub fn moved_model(&self, from: usize, to: usize) {
        self.families.moves.with_label_values(&[&from.to_string(), &to.to_string()]).inc();
    }

    /// The part of its GPU that a device is now.
    pub fn device_share(&self, device: &str, share: f64) {
        self.families.share.with_label_values(&[device]).set(share);
    }

    /// GPUs are divided otherwise, or models are to run in other shares.
    pub fn shares_changed(&self, change: ShareChange) {
        self.families.share_changes.with_label_values(&[change.name()]).inc();
    }

    /// How often either has happened so far.
    pub fn share_changes(&self, change: ShareChange) -> u64 {
        self.families.share_changes.with_label_values(&[change.name()]).get()
    }

    /// What says whether there are enough devices.
    pub fn demand(&self) -> DemandTotals {
        self.demand.totals()
    }

    /// Shows the advice on the number of devices.
    pub fn scaling(&self, devices: u32, wanted: u32, bad_ratio: f64, idle_ratio: f64) {
        self.scaling.devices.set(i64::from(devices));
        self.scaling.wanted.set(i64::from(wanted));
        self.scaling.bad.set(bad_ratio);
        self.scaling.idle.set(idle_ratio);
    }

    /// Counts a request that ended before a model was found for it.
    pub fn unrouted(&self, reason: Reason) {
        self.unrouted[reason as usize].inc();
    }

    /// Counts a broken invariant.
    pub fn violated(&self, invariant: Invariant) {
        self.invariants[invariant as usize].inc();
    }

    /// Everything, in Prometheus' text format. A histogram of a model or a device is there from its first observation
    /// on: most of a page with thousands of them would be empty ones.
    pub fn render(&self) -> String {
        let mut families = self.registry.gather();
        for family in families.iter_mut().filter(|family| family.get_field_type() == MetricType::HISTOGRAM) {
            let is_one_of_many =
                |series: &Metric| series.get_label().iter().any(|label| matches!(label.name(), "model" | "device"));
            let is_empty = |series: &Metric| series.get_histogram().get_sample_count() == 0;
            family.mut_metric().retain(|series| !(is_one_of_many(series) && is_empty(series)));
        }
        families.retain(|family| !family.get_metric().is_empty());
        let mut text = String::new();
        TextEncoder::new()
            .encode_utf8(&families, &mut text)
            .expect("writing to a string doesn't fail, and every family was registered with a name");
        text
    }
}

/// What of a plan of shares has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareChange {
    /// How GPUs are divided.
    Division,
    /// Which models may run where.
    Models,
}

impl ShareChange {
    const fn name(self) -> &'static str {
        match self {
            Self::Division => "division",
            Self::Models => "models",
        }
    }
}

/// What becomes of a copy that goes to a shadow.
const SHADOW_OUTCOMES: [&str; 4] = ["same", "different", "failed", "skipped"];
/// What becomes of feedback.
const FEEDBACK_OUTCOMES: [&str; 4] = ["joined", "unknown", "again", "refused"];

/// The metrics of an endpoint that selects among members, looked up once.
#[derive(Debug)]
pub struct SelectionMetrics {
    members: Vec<MemberSeries>,
    default: IntCounter,
    feedback: [IntCounter; 4],
}

#[derive(Debug)]
struct MemberSeries {
    selected: IntCounter,
    missing: IntCounter,
    losses: Counter,
    judged: IntCounter,
    weight: Gauge,
    shadows: [IntCounter; 4],
}

/// What becomes of a copy that goes to a shadow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShadowOutcome {
    /// It said the same.
    Same,
    /// It said something else.
    Different,
    /// It said nothing.
    Failed,
    /// It wasn't asked: too many were in flight.
    Skipped,
}

/// What becomes of feedback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeedbackOutcome {
    /// It found its answer.
    Joined,
    /// There is no such answer.
    Unknown,
    /// The answer had feedback before.
    Again,
    /// It makes no sense.
    Refused,
}

impl SelectionMetrics {
    /// An answer went out that a member gave; `None`: the default.
    pub fn answered(&self, member: Option<usize>) {
        member.and_then(|member| self.members.get(member)).map_or(&self.default, |series| &series.selected).inc();
    }

    /// A member was asked, and its answer wasn't there.
    pub fn missed(&self, member: usize) {
        self.members.get(member).inspect(|series| series.missing.inc());
    }

    /// Feedback says what a member's answer lost.
    pub fn judged(&self, member: usize, loss: f64) {
        if let Some(series) = self.members.get(member) {
            series.judged.inc();
            series.losses.inc_by(loss);
        }
    }

    /// What each member counts now.
    pub fn weigh(&self, weights: &[f64]) {
        self.members.iter().zip(weights).for_each(|(series, &weight)| series.weight.set(weight));
    }

    /// A copy for a shadow is over.
    pub fn shadowed(&self, member: usize, outcome: ShadowOutcome) {
        self.members.get(member).inspect(|series| series.shadows[outcome as usize].inc());
    }

    /// Feedback came.
    pub fn fed_back(&self, outcome: FeedbackOutcome) {
        self.feedback[outcome as usize].inc();
    }
}

/// The metrics of one version of a model, looked up once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    inner: Arc<ModelSeries>,
}

#[derive(Debug)]
struct ModelSeries {
    success: IntCounter,
    /// By position in `Reason::ALL`; reasons that are counted under one label have one counter.
    ended: Box<[IntCounter]>,
    request: Seconds,
    queue: Seconds,
    execution: Seconds,
    batch_rows: Histogram,
    cold_starts: IntCounter,
    loads: IntCounter,
    unloads: IntCounter,
    /// Successes whose outputs were computed for another request.
    without_work: AtomicU64,
    success_nanos: AtomicU64,
    fail_nanos: AtomicU64,
    /// What the model is computed in, where that can be chosen.
    precision: Mutex<Option<String>>,
    /// Requests that got the outputs of another, where answers are kept.
    joined: OnceLock<IntCounter>,
    /// Device time for requests that came to nothing, where others are asked for it.
    wasted: OnceLock<Counter>,
    /// What executors count; each place on a device that has the weights holds it too.
    statistics: Arc<Statistics>,
    demand: Arc<DemandCounters>,
    /// Of an endpoint: the members that have series of their own.
    members: Mutex<BTreeSet<String>>,
}

impl ModelSeries {
    /// How many requests ended for each reason that metrics tell apart.
    fn ended(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::labels().map(|reason| (reason, self.ended[reason as usize].get()))
    }
}

/// Who sent a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// Somebody outside.
    Client,
    /// An endpoint, for a client's request that counts itself: how many requests there are, and what became of them,
    /// is seen there.
    Endpoint,
}

impl ModelMetrics {
    /// A request was answered with outputs, by its deadline.
    pub fn answered(&self, asker: Asker, latency: Duration) {
        self.inner.success.inc();
        if asker == Asker::Client {
            self.inner.demand.answered();
        }
        self.inner.request.observe(latency);
        self.inner.success_nanos.fetch_add(latency.as_nanos(), Ordering::Relaxed);
    }

    /// A request was answered with outputs that weren't computed for it: it asked for no device's time.
    pub fn answered_without_work(&self, latency: Duration) {
        self.inner.success.inc();
        self.inner.without_work.fetch_add(1, Ordering::Relaxed);
        self.inner.request.observe(latency);
        self.inner.success_nanos.fetch_add(latency.as_nanos(), Ordering::Relaxed);
    }

    /// A request got the outputs of an identical one.
    pub fn joined(&self) {
        if let Some(joined) = self.inner.joined.get() {
            joined.inc();
        }
    }

    /// Devices computed for so long for a request that came to nothing.
    pub fn wasted(&self, time: Duration) {
        if let Some(wasted) = self.inner.wasted.get() {
            wasted.inc_by(time.as_secs_f64());
        }
    }

    /// A request got no outputs, that long after its arrival.
    pub fn ended(&self, asker: Asker, reason: Reason, after: Duration) {
        self.inner.ended[reason as usize].inc();
        if asker == Asker::Client {
            self.inner.demand.ended(reason);
        }
        self.inner.fail_nanos.fetch_add(after.as_nanos(), Ordering::Relaxed);
    }

    /// What executors count for this model.
    pub fn statistics(&self) -> &Arc<Statistics> {
        &self.inner.statistics
    }

    /// Everything that was counted so far for Triton's statistics.
    pub fn totals(&self) -> ModelTotals {
        let inner = &*self.inner;
        let spans =
            |count: u64, nanos: &AtomicU64| Spans { count, total: Duration::from_nanos(nanos.load(Ordering::Relaxed)) };
        let failed = inner.ended().map(|(_, count)| count).sum();
        let success = spans(inner.success.get(), &inner.success_nanos);
        inner.statistics.totals(success, spans(failed, &inner.fail_nanos))
    }

    /// What says how much of the devices' time the model asks for.
    pub fn demand(&self) -> ModelDemand {
        let inner = &*self.inner;
        let bad: u64 = inner.ended().filter(|(reason, _)| reason.is_shortage()).map(|(_, count)| count).sum();
        ModelDemand {
            ended: inner.success.get().saturating_sub(inner.without_work.load(Ordering::Relaxed)) + bad,
            bad,
            computed: inner.statistics.requests(),
            busy: Duration::from_secs_f64(inner.execution.0.get_sample_sum()),
        }
    }

    /// Requests that failed for what Triton calls that.
    pub(crate) fn failed_as(&self, word: &str) -> u64 {
        self.inner.ended().filter(|(reason, _)| reason.triton() == word).map(|(_, count)| count).sum()
    }

    /// Requests that wait to be handed to a device.
    pub(crate) fn pending(&self) -> i64 {
        self.inner.statistics.pending()
    }

    /// A request's execution started that long after its arrival.
    pub fn queued(&self, span: Duration) {
        self.inner.queue.observe(span);
    }

    /// A batch of that many rows was executed in that time.
    pub fn executed(&self, rows: u32, span: Duration) {
        self.inner.execution.observe(span);
        self.inner.batch_rows.observe(f64::from(rows));
    }

    /// A request arrived while the weights were on no device.
    pub fn cold_start(&self) {
        self.inner.cold_starts.inc();
    }

    /// The weights are on that device, where they take so many bytes.
    pub fn loaded(&self, device: &str, bytes: u64) {
        self.inner.loads.inc();
        self.inner.statistics.came(device, bytes);
    }

    /// The weights, so many bytes, were dropped from that device.
    pub fn unloaded(&self, device: &str, bytes: u64) {
        self.inner.unloads.inc();
        self.inner.statistics.went(device, bytes);
    }
}

/// The metrics of one device, looked up once. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DeviceMetrics {
    inner: Arc<DeviceSeries>,
}

#[derive(Debug)]
struct DeviceSeries {
    name: String,
    execution: ActionMetrics,
    load: ActionMetrics,
    completion_error: ErrorMetrics,
    /// Transfers before the start of their batch, and others.
    hidden: Counter,
    seen: Counter,
    pages: IntGauge,
    pages_used: IntGauge,
    slowness: Gauge,
    losses: IntCounter,
}

/// How actions of one kind went on a device.
#[derive(Debug)]
pub struct ActionMetrics {
    done: IntCounter,
    too_late: IntCounter,
    failed: IntCounter,
    prediction_error: ErrorMetrics,
    busy: Counter,
    /// Only for loads: what executions take is kept by model.
    took: Option<Seconds>,
    /// Only for executions: a device that only loads is idle.
    demand: Option<Arc<DemandCounters>>,
}

impl ActionMetrics {
    /// Done, in that time; so much had been predicted. It kept the executor from others for `busy`: transfers may have
    /// run beside another action.
    pub fn done(&self, took: Duration, busy: Duration, predicted: Duration) {
        self.done.inc();
        self.busy.inc_by(busy.as_secs_f64());
        if let Some(demand) = &self.demand {
            demand.busy(busy);
        }
        if let Some(histogram) = &self.took {
            histogram.observe(took);
        }
        self.prediction_error.observe(took.as_nanos(), predicted.as_nanos());
    }

    /// Not started: its window had passed.
    pub fn too_late(&self) {
        self.too_late.inc();
    }

    /// Started and failed.
    pub fn failed(&self) {
        self.failed.inc();
    }
}

/// How far predictions were from what happened, too high and too low apart.
#[derive(Debug)]
pub struct ErrorMetrics {
    over: Seconds,
    under: Seconds,
}

impl ErrorMetrics {
    fn observe(&self, measured_nanos: u64, predicted_nanos: u64) {
        if measured_nanos <= predicted_nanos {
            self.over.observe(Duration::from_nanos(predicted_nanos - measured_nanos));
        } else {
            self.under.observe(Duration::from_nanos(measured_nanos - predicted_nanos));
        }
    }
}

impl DeviceMetrics {
    /// The device's name, for instance `cpu:0`.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// Executions on this device.
    pub fn executions(&self) -> &ActionMetrics {
        &self.inner.execution
    }

    /// Loads onto this device.
    pub fn loads(&self) -> &ActionMetrics {
        &self.inner.load
    }

    /// A batch had these transfers.
    pub fn moved(&self, transfers: Transfers) {
        self.inner.hidden.inc_by(transfers.before.as_secs_f64());
        self.inner.seen.inc_by((transfers.overlap - transfers.before).as_secs_f64());
    }

    /// An execution ended then; it had been expected to end then.
    pub fn completed(&self, ended_at: base::Timestamp, expected_done_at: base::Timestamp) {
        self.inner.completion_error.observe(ended_at.as_nanos(), expected_done_at.as_nanos());
    }

    /// The device was lost.
    pub fn lost(&self) {
        self.inner.losses.inc();
    }

    /// The pages for weights, all and used.
    pub fn pages(&self, total: u32, used: u32) {
        self.inner.pages.set(i64::from(total));
        self.inner.pages_used.set(i64::from(used));
    }

    /// How many times as long as on others of its kind batches take.
    pub fn slowness(&self, factor: f64) {
        self.inner.slowness.set(factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Timestamp;

    fn value(text: &str, series: &str) -> Option<f64> {
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok())
    }

    #[test]
    fn a_model_that_was_never_asked_has_counters_on_the_page_but_no_empty_histograms() {
        let metrics = Metrics::new();
        let (asked, idle) = (metrics.model("asked", 1), metrics.model("idle", 1));
        asked.answered(Asker::Client, Duration::from_millis(3));
        let text = metrics.render();
        let buckets = |model: &str| {
            let of_model = format!("model=\"{model}\"");
            text.lines().filter(|line| line.contains("_bucket{") && line.contains(&of_model)).count()
        };
        assert!(buckets("asked") > 0);
        assert_eq!(buckets("idle"), 0);
        assert_eq!(value(&text, "punctual_cold_starts_total{model=\"idle\",version=\"1\"}"), Some(0.0));
        idle.answered(Asker::Client, Duration::from_millis(3));
        assert!(metrics.render().contains("punctual_request_seconds_count{model=\"idle\",version=\"1\"} 1"));
    }

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = Metrics::new();
        let model = metrics.model("resnet", 2);
        model.answered(Asker::Client, Duration::from_millis(3));
        model.ended(Asker::Client, Reason::Overloaded, Duration::from_millis(2));
        model.ended(Asker::Client, Reason::Overloaded, Duration::from_millis(2));
        model.executed(4, Duration::from_micros(700));
        metrics.violated(Invariant::P3);
        metrics.unrouted(Reason::BadInput);
        let text = metrics.render();
        let labels = r#"model="resnet",version="2""#;
        let ended = r#"model="resnet",outcome="refused",reason="overloaded",version="2""#;
        assert_eq!(value(&text, &format!("punctual_requests_total{{{ended}}}")), Some(2.0));
        let answered = r#"model="resnet",outcome="success",reason="",version="2""#;
        assert_eq!(value(&text, &format!("punctual_requests_total{{{answered}}}")), Some(1.0));
        assert_eq!(value(&text, &format!("punctual_request_seconds_bucket{{{labels},le=\"0.002\"}}")), Some(0.0));
        assert_eq!(value(&text, &format!("punctual_request_seconds_bucket{{{labels},le=\"0.005\"}}")), Some(1.0));
        assert_eq!(value(&text, &format!("punctual_batch_rows_sum{{{labels}}}")), Some(4.0));
        assert_eq!(value(&text, r#"punctual_invariant_violations_total{invariant="P3"}"#), Some(1.0));
        assert_eq!(value(&text, r#"punctual_invariant_violations_total{invariant="P4"}"#), Some(0.0));
        assert_eq!(value(&text, r#"punctual_unrouted_requests_total{reason="bad_input"}"#), Some(1.0));
    }

    #[test]
    fn what_endpoints_ask_counts_with_its_model_and_is_no_demand_of_its_own() {
        let metrics = Metrics::new();
        let model = metrics.model("m", 1);
        model.answered(Asker::Client, Duration::ZERO);
        model.answered(Asker::Endpoint, Duration::ZERO);
        model.ended(Asker::Endpoint, Reason::Overloaded, Duration::ZERO);
        assert_eq!((model.demand().ended, model.demand().bad), (3, 1));
        assert_eq!((metrics.demand().ended, metrics.demand().bad), (1, 0));
    }

    #[test]
    fn tritons_names_show_the_same_counters() {
        let metrics = Metrics::new();
        let model = metrics.model("resnet", 2);
        let at = |micros| Timestamp::ZERO + Duration::from_micros(micros);
        let times =
            crate::BatchTimes { started_at: at(100), gathered_at: at(110), computed_at: at(140), ended_at: at(145) };
        model.answered(Asker::Client, Duration::from_micros(90));
        model.answered(Asker::Client, Duration::from_micros(91));
        model.ended(Asker::Client, Reason::QueueFull, Duration::from_micros(5));
        model.ended(Asker::Client, Reason::NoDevice, Duration::from_micros(5));
        model.ended(Asker::Client, Reason::Cancelled, Duration::from_micros(6));
        model.statistics().computed(2, 3, Duration::from_micros(50), &times);
        (0..3).for_each(|_| model.statistics().waits());
        model.statistics().wait_no_longer(2);
        let text = metrics.render();
        let of = |name: &str| value(&text, &format!(r#"nv_inference_{name}{{model="resnet",version="2"}}"#)).unwrap();
        assert_eq!((of("request_success"), of("count"), of("exec_count")), (2.0, 3.0, 1.0));
        assert_eq!((of("request_duration_us"), of("queue_duration_us")), (181.0, 50.0));
        let compute = ["input", "infer", "output"].map(|part| of(&format!("compute_{part}_duration_us")));
        assert_eq!((compute, of("pending_request_count")), ([20.0, 60.0, 10.0], 1.0));
        let failed = |reason: &str| {
            let labels = format!(r#"{{model="resnet",reason="{reason}",version="2"}}"#);
            value(&text, &format!("nv_inference_request_failure{labels}")).unwrap()
        };
        assert_eq!(["REJECTED", "CANCELED", "BACKEND", "OTHER"].map(failed), [2.0, 1.0, 0.0, 0.0]);
        let totals = model.totals();
        assert_eq!(totals.fail, Spans { count: 3, total: Duration::from_micros(16) });
        assert!(Arc::ptr_eq(model.statistics(), metrics.model("resnet", 2).statistics()), "asked again: the same");
    }

    #[test]
    fn a_device_that_has_done_nothing_yet_is_not_shown_as_slow_or_quick() {
        let metrics = Metrics::new();
        let _device = metrics.device("cpu:0");
        assert_eq!(value(&metrics.render(), r#"punctual_device_slowness{device="cpu:0"}"#), Some(1.0));
    }

    #[test]
    fn over_and_under_predictions_are_kept_apart() {
        let metrics = Metrics::new();
        let device = metrics.device("cpu:0");
        device.executions().done(Duration::from_millis(3), Duration::from_millis(3), Duration::from_millis(5));
        device.moved(Transfers { before: Duration::from_millis(1), overlap: Duration::from_millis(3) });
        device.executions().done(Duration::from_millis(9), Duration::from_millis(9), Duration::from_millis(5));
        device.completed(Timestamp::from_nanos(10), Timestamp::from_nanos(4_000_000_010));
        device.loads().done(Duration::from_millis(8), Duration::from_millis(8), Duration::from_millis(8));
        device.pages(100, 7);
        device.slowness(1.25);
        let text = metrics.render();
        let error = |direction: &str| {
            let labels = format!(r#"{{action="execution",device="cpu:0",direction="{direction}"}}"#);
            value(&text, &format!("punctual_prediction_error_seconds_sum{labels}"))
        };
        assert_eq!((error("over"), error("under")), (Some(0.002), Some(0.004)));
        assert_eq!(
            value(&text, r#"punctual_completion_error_seconds_sum{device="cpu:0",direction="over"}"#),
            Some(4.0)
        );
        assert_eq!(value(&text, r#"punctual_load_seconds_sum{device="cpu:0"}"#), Some(0.008));
        let busy = r#"punctual_device_busy_seconds_total{action="execution",device="cpu:0"}"#;
        assert!((value(&text, busy).unwrap() - 0.012).abs() < 1e-9);
        let transfers = |hidden: &str| {
            let series = format!("punctual_device_transfer_seconds_total{{device=\"cpu:0\",hidden=\"{hidden}\"}}");
            value(&text, &series).unwrap()
        };
        assert!((transfers("yes") - 0.001).abs() < 1e-9 && (transfers("no") - 0.002).abs() < 1e-9);
        assert_eq!(value(&text, r#"punctual_device_pages_used{device="cpu:0"}"#), Some(7.0));
        assert_eq!(value(&text, r#"punctual_device_slowness{device="cpu:0"}"#), Some(1.25));
    }

    #[test]
    fn a_removed_model_leaves_nothing_behind_and_may_come_back_at_zero() {
        let metrics = Metrics::new();
        let render =
            || metrics.render().lines().filter(|line| !line.starts_with("nv_cpu")).collect::<Vec<_>>().join("\n");
        let before = render();
        let old = metrics.model("a", 1);
        metrics.model("b", 1).answered(Asker::Client, Duration::ZERO);
        old.answered(Asker::Client, Duration::ZERO);
        old.cold_start();
        metrics.computed_in("a", 1, "fp16", 1e-3);
        metrics.remove_model("a", 1);
        old.answered(Asker::Client, Duration::ZERO);
        let text = metrics.render();
        assert!(!text.contains(r#"model="a""#) && text.contains(r#"model="b""#));
        metrics.remove_model("b", 1);
        assert_eq!(render(), before);
        metrics.model("a", 1);
        assert_eq!(value(&metrics.render(), r#"punctual_cold_starts_total{model="a",version="1"}"#), Some(0.0));
    }

    #[test]
    fn only_models_whose_answers_are_kept_have_series_for_that_and_hits_ask_for_no_device() {
        let metrics = Metrics::new();
        let (kept, plain) = (metrics.model("kept", 1), metrics.model("plain", 1));
        metrics.keeps_answers("kept", 1);
        kept.statistics().hit(Duration::from_micros(3));
        kept.statistics().missed(Duration::from_micros(5));
        kept.joined();
        kept.answered_without_work(Duration::from_micros(9));
        plain.joined();
        let text = metrics.render();
        let of = |name: &str| value(&text, &format!(r#"{name}{{model="kept",version="1"}}"#));
        let shown = ["num_hits", "num_misses", "hit_duration", "miss_duration"]
            .map(|name| of(&format!("nv_cache_{name}_per_model")));
        assert_eq!(shown, [Some(1.0), Some(1.0), Some(3.0), Some(5.0)]);
        assert_eq!((of("punctual_cache_joined_total"), of("nv_inference_request_success")), (Some(1.0), Some(1.0)));
        assert!(!text.lines().any(|line| line.contains("cache") && line.contains("plain")));
        assert_eq!((kept.demand().ended, metrics.demand().ended), (0, 0));
        metrics.remove_model("kept", 1);
        assert!(!metrics.render().contains(r#"model="kept""#));
    }

    #[test]
    fn a_model_is_computed_in_one_precision() {
        let metrics = Metrics::new();
        metrics.computed_in("a", 1, "tf32", 0.25);
        metrics.computed_in("a", 1, "fp16", 0.5);
        let text = metrics.render();
        let series: Vec<&str> =
            text.lines().filter(|line| line.starts_with("punctual_model_precision_error{")).collect();
        assert_eq!(series, [r#"punctual_model_precision_error{model="a",precision="fp16",version="1"} 0.5"#]);
    }

    #[test]
    fn demand_counts_what_devices_could_serve_and_never_goes_back() {
        let metrics = Metrics::new();
        let (model, device) = (metrics.model("a", 1), metrics.device("cpu:0"));
        model.answered(Asker::Client, Duration::ZERO);
        for reason in Reason::ALL {
            model.ended(Asker::Client, reason, Duration::ZERO);
        }
        device.executions().done(Duration::from_millis(3), Duration::from_millis(3), Duration::ZERO);
        device.loads().done(Duration::from_millis(50), Duration::from_millis(50), Duration::ZERO);
        metrics.remove_model("a", 1);
        // Overloaded, missed, queue full, too many connections, no device.
        assert_eq!(metrics.demand(), DemandTotals { ended: 6, bad: 5, busy: Duration::from_millis(3) });
    }

    #[test]
    fn what_a_model_asks_for_counts_the_same_requests_and_its_own_time() {
        let metrics = Metrics::new();
        let (model, other) = (metrics.model("a", 1), metrics.model("b", 1));
        model.answered(Asker::Client, Duration::ZERO);
        for reason in Reason::ALL {
            model.ended(Asker::Client, reason, Duration::ZERO);
        }
        let at = Timestamp::ZERO;
        let times = crate::BatchTimes { started_at: at, gathered_at: at, computed_at: at, ended_at: at };
        model.statistics().computed(3, 8, Duration::ZERO, &times);
        model.executed(8, Duration::from_millis(250));
        other.executed(1, Duration::from_millis(500));
        let expected = ModelDemand { ended: 6, bad: 5, computed: 3, busy: Duration::from_millis(250) };
        assert_eq!(model.demand(), expected);
    }

    #[test]
    fn an_endpoint_that_goes_takes_the_series_of_its_members_along() {
        let metrics = Metrics::new();
        let selection = metrics.selection("m", 1, &["a", "b"]);
        selection.answered(Some(1));
        selection.answered(None);
        selection.answered(Some(9));
        selection.judged(0, 0.5);
        selection.fed_back(FeedbackOutcome::Again);
        let page = metrics.render();
        for line in [
            r#"punctual_selection_answers_total{member="b",model="m",version="1"} 1"#,
            r#"punctual_selection_answers_total{member="",model="m",version="1"} 2"#,
            r#"punctual_selection_loss_total{member="a",model="m",version="1"} 0.5"#,
            r#"punctual_selection_feedback_total{model="m",outcome="again",version="1"} 1"#,
        ] {
            assert!(page.contains(line), "{line}");
        }
        metrics.remove_model("m", 1);
        assert!(!metrics.render().contains("punctual_selection_"), "{}", metrics.render());
    }

    #[test]
    fn every_declared_metric_is_registered() {
        let metrics = Metrics::new();
        metrics.model("m", 1);
        metrics.keeps_answers("m", 1);
        metrics.asks_others("m", 1);
        metrics.selection("m", 1, &["a"]);
        metrics.computed_in("m", 1, "fp32", 0.0);
        metrics.device("cpu:0");
        metrics.rule(0);
        metrics.moved_model(0, 1);
        metrics.device_share("cuda:0", 1.0);
        metrics.shares_changed(crate::ShareChange::Division);
        // Not the page: what wasn't observed yet isn't there.
        let families = metrics.registry.gather();
        let types: Vec<_> = families.iter().map(|family| (family.name(), family.get_field_type())).collect();
        for metric in crate::ALL.iter().chain(crate::TRITON) {
            let kind = match metric.kind {
                crate::MetricKind::Counter => MetricType::COUNTER,
                crate::MetricKind::Gauge => MetricType::GAUGE,
                crate::MetricKind::Histogram => MetricType::HISTOGRAM,
            };
            assert!(types.contains(&(metric.name, kind)), "{}", metric.name);
        }
    }
}
