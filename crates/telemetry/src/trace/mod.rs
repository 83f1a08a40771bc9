//! Traces of single requests: when each step of a sampled request happened, written to a file in Triton's JSON form.
//!
//! While nothing is traced, a request costs one look at a flag. What is traced is handed to a thread that writes it; if
//! the thread can't keep up, traces are left out and counted, requests don't wait.

mod writer;

use crate::statistics::BatchTimes;
use base::Timestamp;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use writer::{Record, Writer};

/// So many parts of a request for an endpoint are in its trace (P9); more are left out.
const MOST_PARTS: usize = 4096;

/// How requests are sampled and traces written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceSettings {
    /// Whether the instants of a request's steps are traced; nothing else can be.
    pub timestamps: bool,
    /// One request in so many is traced.
    pub rate: u32,
    /// How many traces are still to be made; `None`: there is no end.
    pub count: Option<u64>,
    /// After so many traces another file is begun; 0: all go into one.
    pub log_frequency: u32,
}

impl Default for TraceSettings {
    /// As in Triton.
    fn default() -> Self {
        Self { timestamps: false, rate: 1000, count: None, log_frequency: 0 }
    }
}

/// How a request came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transport {
    /// Over HTTP, whichever version of it.
    Http,
    /// Over gRPC.
    Grpc,
}

impl Transport {
    /// Triton's names for the instants at which receiving a request begins and ends, and sending its answer does.
    fn instants(self) -> [&'static str; 4] {
        match self {
            Self::Http => ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"],
            Self::Grpc => ["GRPC_WAITREAD_START", "GRPC_WAITREAD_END", "GRPC_SEND_START", "GRPC_SEND_END"],
        }
    }
}

/// What becomes of one setting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SettingChange<T> {
    /// It stays.
    #[default]
    Keep,
    /// A model's own value is dropped, so that the server's counts; the server's goes back to that of the start.
    Clear,
    /// It is set.
    Set(T),
}

impl<T> SettingChange<T> {
    fn apply(self, value: &mut Option<T>) {
        match self {
            Self::Keep => {}
            Self::Clear => *value = None,
            Self::Set(new) => *value = Some(new),
        }
    }
}

/// What becomes of the settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TraceChange {
    /// See `TraceSettings`.
    pub timestamps: SettingChange<bool>,
    /// See `TraceSettings`.
    pub rate: SettingChange<u32>,
    /// See `TraceSettings`.
    pub count: SettingChange<Option<u64>>,
    /// See `TraceSettings`.
    pub log_frequency: SettingChange<u32>,
}

/// Why settings can't be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// There is nowhere to write to.
    #[error("trace_level can't be TIMESTAMPS: this server has no file for traces; start it with --trace-file FILE")]
    NoFile,
}

/// Values that were set; what wasn't is inherited.
#[derive(Clone, Copy, Debug, Default)]
struct OwnSettings {
    timestamps: Option<bool>,
    rate: Option<u32>,
    count: Option<Option<u64>>,
    log_frequency: Option<u32>,
}

impl OwnSettings {
    fn change(&mut self, change: TraceChange) {
        change.timestamps.apply(&mut self.timestamps);
        change.rate.apply(&mut self.rate);
        change.count.apply(&mut self.count);
        change.log_frequency.apply(&mut self.log_frequency);
    }

    fn is_empty(&self) -> bool {
        let Self { timestamps, rate, count, log_frequency } = self;
        timestamps.is_none() && rate.is_none() && count.is_none() && log_frequency.is_none()
    }

    fn over(&self, base: TraceSettings) -> TraceSettings {
        TraceSettings {
            timestamps: self.timestamps.unwrap_or(base.timestamps),
            rate: self.rate.unwrap_or(base.rate),
            count: self.count.unwrap_or(base.count),
            log_frequency: self.log_frequency.unwrap_or(base.log_frequency),
        }
    }
}

/// The settings of the server or of one model, and how far its sampling is.
#[derive(Clone, Copy, Debug, Default)]
struct Sampler {
    own: OwnSettings,
    seen: u64,
    made: u64,
}

impl Sampler {
    fn settings(&self, base: TraceSettings) -> TraceSettings {
        let settings = self.own.over(base);
        TraceSettings { count: settings.count.map(|count| count.saturating_sub(self.made)), ..settings }
    }

    /// Counts a request; says whether it is traced, and into how long a file.
    fn sample(&mut self, base: TraceSettings) -> Option<u32> {
        let settings = self.settings(base);
        if !settings.timestamps || settings.count == Some(0) {
            return None;
        }
        self.seen += 1;
        if !self.seen.is_multiple_of(u64::from(settings.rate.max(1))) {
            return None;
        }
        self.made += 1;
        Some(settings.log_frequency)
    }

    fn change(&mut self, change: TraceChange) {
        self.own.change(change);
        // A new count counts from here.
        if change.count != SettingChange::Keep {
            self.made = 0;
        }
        self.seen = 0;
    }
}

#[derive(Debug, Default)]
struct TracerState {
    server: Sampler,
    models: BTreeMap<String, Sampler>,
    writer: Option<Writer>,
}

impl TracerState {
    fn settings(&self, model: Option<&str>) -> TraceSettings {
        let server = self.server.own.over(TraceSettings::default());
        match model.and_then(|model| self.models.get(model)) {
            Some(sampler) => sampler.settings(server),
            None => self.server.settings(TraceSettings::default()),
        }
    }

    fn is_active(&self) -> bool {
        let server = self.server.own.over(TraceSettings::default());
        server.timestamps || self.models.values().any(|sampler| sampler.own.over(server).timestamps)
    }
}

/// Decides which requests are traced, and has the traces written. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    active: AtomicBool,
    next_id: AtomicU64,
    file: Option<PathBuf>,
    state: Mutex<TracerState>,
}

impl Tracer {
    /// A tracer that writes to that file, and traces nothing yet. Without a file it never will.
    pub fn new(file: Option<PathBuf>) -> std::io::Result<Self> {
        let writer = file.as_deref().map(Writer::start).transpose()?;
        let state = Mutex::new(TracerState { writer, ..TracerState::default() });
        Ok(Self { inner: Arc::new(Inner { file, state, ..Inner::default() }) })
    }

    fn state(&self) -> MutexGuard<'_, TracerState> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that traces go to.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// How requests to that model are traced, or those to models without settings of their own.
    pub fn settings(&self, model: Option<&str>) -> TraceSettings {
        self.state().settings(model)
    }

    /// Changes the settings of a model, or those of the server. Traces that wait for more of their file are written.
    pub fn change(&self, model: Option<&str>, change: TraceChange) -> Result<TraceSettings, TraceError> {
        if change.timestamps == SettingChange::Set(true) && self.inner.file.is_none() {
            return Err(TraceError::NoFile);
        }
        let mut state = self.state();
        match model {
            None => state.server.change(change),
            Some(model) => {
                let sampler = state.models.entry(model.to_owned()).or_default();
                sampler.change(change);
                if sampler.own.is_empty() {
                    state.models.remove(model);
                }
            }
        }
        self.inner.active.store(state.is_active(), Ordering::Relaxed);
        if let Some(writer) = &state.writer {
            writer.flush();
        }
        Ok(state.settings(model))
    }

    /// A trace for a request that begins, if it is to be traced.
    pub fn sample(&self, model: &str, version: u64, transport: Transport) -> Option<Arc<Trace>> {
        if !self.inner.active.load(Ordering::Relaxed) {
            return None;
        }
        let frequency = {
            let mut state = self.state();
            let TracerState { server, models, .. } = &mut *state;
            match models.get_mut(model) {
                Some(sampler) => sampler.sample(server.own.over(TraceSettings::default())),
                None => server.sample(TraceSettings::default()),
            }
        }?;
        Some(self.begin(model, version, TraceOrigin::Client { transport, frequency, parts: Mutex::default() }))
    }

    fn begin(&self, model: &str, version: u64, origin: TraceOrigin) -> Arc<Trace> {
        Arc::new(Trace {
            id: self.inner.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            model: model.to_owned(),
            version,
            origin,
            request_id: OnceLock::new(),
            received_nanos: AtomicU64::new(0),
            queued_nanos: AtomicU64::new(0),
            replied_nanos: AtomicU64::new(0),
            times: OnceLock::new(),
            tracer: self.clone(),
        })
    }

    /// Writes what is left. What is traced later is not written.
    pub fn close(&self) {
        self.inner.active.store(false, Ordering::Relaxed);
        let writer = self.state().writer.take();
        drop(writer);
    }
}

/// Whose request is traced.
#[derive(Debug)]
enum TraceOrigin {
    /// A client's. What was traced of its parts is written with it.
    Client { transport: Transport, frequency: u32, parts: Mutex<Vec<String>> },
    /// An endpoint's, for another request: a client's, or once more an endpoint's.
    Endpoint { whole: Arc<Trace> },
}

/// One request that is traced.
#[derive(Debug)]
pub struct Trace {
    id: u64,
    model: String,
    version: u64,
    origin: TraceOrigin,
    request_id: OnceLock<String>,
    received_nanos: AtomicU64,
    queued_nanos: AtomicU64,
    replied_nanos: AtomicU64,
    times: OnceLock<BatchTimes>,
    tracer: Tracer,
}

impl Trace {
    /// A trace for what an endpoint asks another for this request. It is no sample of its own: it belongs to this one.
    pub fn part(self: &Arc<Self>, model: &str, version: u64) -> Arc<Self> {
        self.tracer.begin(model, version, TraceOrigin::Endpoint { whole: Arc::clone(self) })
    }

    /// The client's name for it.
    pub fn named(&self, request_id: &str) {
        if !request_id.is_empty() {
            let _ = self.request_id.set(request_id.to_owned());
        }
    }

    /// All of it was there and was read.
    pub fn received(&self, at: Timestamp) {
        self.received_nanos.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// It is known what came of it; the answer has to be written.
    pub fn replied(&self, at: Timestamp) {
        self.replied_nanos.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// It began to wait for a device.
    pub fn queued(&self, at: Timestamp) {
        self.queued_nanos.store(at.as_nanos(), Ordering::Relaxed);
    }

    /// Its batch was computed.
    pub fn computed(&self, times: &BatchTimes) {
        // A request is computed once; were it twice, the first answer is the one that left.
        let _ = self.times.set(*times);
    }

    /// It is over: writes it down, with its parts.
    pub fn end(&self, arrived_at: Timestamp, ended_at: Timestamp) {
        let json = self.json(arrived_at, ended_at);
        match &self.origin {
            TraceOrigin::Endpoint { whole } => whole.keep_part(json),
            TraceOrigin::Client { frequency, parts, .. } => {
                let parts = std::mem::take(&mut *parts.lock().unwrap_or_else(PoisonError::into_inner));
                let all: Vec<String> = std::iter::once(json).chain(parts).collect();
                if let Some(writer) = &self.tracer.state().writer {
                    writer.write(Record { frequency: *frequency, json: all.join(",\n") });
                }
            }
        }
    }

    /// Keeps what is to be written with the client's request, up to a bound.
    fn keep_part(&self, json: String) {
        match &self.origin {
            TraceOrigin::Endpoint { whole } => whole.keep_part(json),
            TraceOrigin::Client { parts, .. } => {
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                if parts.len() < MOST_PARTS {
                    parts.push(json);
                }
            }
        }
    }

    /// Two objects, as in Triton: which request, and when.
    fn json(&self, arrived_at: Timestamp, ended_at: Timestamp) -> String {
        let request = TracedRequest {
            id: self.id,
            model_name: &self.model,
            model_version: self.version,
            request_id: self.request_id.get().map(String::as_str),
            parent_id: match &self.origin {
                TraceOrigin::Client { .. } => None,
                TraceOrigin::Endpoint { whole } => Some(whole.id),
            },
        };
        let known = self.instants(arrived_at, ended_at).into_iter();
        let known = known.filter_map(|(name, nanos)| Some(TracedInstant { name, ns: nanos? }));
        let times = TracedTimes { id: self.id, timestamps: known.collect() };
        format!("{},\n{}", json(&request), json(&times))
    }

    /// Triton's summary of traces wants the instants of the transport and of the request in all that came from
    /// clients: what a refused request didn't reach is its end.
    fn instants(&self, arrived_at: Timestamp, ended_at: Timestamp) -> Vec<(&'static str, Option<u64>)> {
        let (arrived, ended) = (Some(arrived_at.as_nanos()), Some(ended_at.as_nanos()));
        let TraceOrigin::Client { transport, .. } = &self.origin else {
            let asked = [("REQUEST_START", arrived)].into_iter();
            return asked.chain(self.computing()).chain([("REQUEST_END", ended)]).collect();
        };
        let (received, replied) = (seen(&self.received_nanos).or(ended), seen(&self.replied_nanos).or(ended));
        let [receive_start, receive_end, send_start, send_end] = transport.instants();
        let before = [(receive_start, arrived), (receive_end, received), ("REQUEST_START", received)];
        let after = [("REQUEST_END", replied), (send_start, replied), (send_end, ended)];
        before.into_iter().chain(self.computing()).chain(after).collect()
    }

    fn computing(&self) -> [(&'static str, Option<u64>); 5] {
        let of = |instant: fn(&BatchTimes) -> Timestamp| self.times.get().map(|times| instant(times).as_nanos());
        [
            ("QUEUE_START", seen(&self.queued_nanos)),
            ("COMPUTE_START", of(|times| times.started_at)),
            ("COMPUTE_INPUT_END", of(|times| times.gathered_at)),
            ("COMPUTE_OUTPUT_START", of(|times| times.computed_at)),
            ("COMPUTE_END", of(|times| times.ended_at)),
        ]
    }
}

fn seen(nanos: &AtomicU64) -> Option<u64> {
    Some(nanos.load(Ordering::Relaxed)).filter(|&nanos| nanos > 0)
}

#[derive(Serialize)]
struct TracedRequest<'a> {
    id: u64,
    model_name: &'a str,
    model_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_id: Option<u64>,
}

#[derive(Serialize)]
struct TracedTimes {
    id: u64,
    timestamps: Vec<TracedInstant>,
}

#[derive(Serialize)]
struct TracedInstant {
    name: &'static str,
    ns: u64,
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("structs of numbers and texts can be written")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(rate: u32) -> TraceChange {
        TraceChange { timestamps: SettingChange::Set(true), rate: SettingChange::Set(rate), ..TraceChange::default() }
    }

    fn at(nanos: u64) -> Timestamp {
        Timestamp::from_nanos(nanos)
    }

    #[test]
    fn without_a_file_nothing_can_be_traced() {
        let tracer = Tracer::default();
        assert_eq!(tracer.change(None, on(1)), Err(TraceError::NoFile));
        assert!(tracer.sample("m", 1, Transport::Http).is_none());
        let rate = TraceChange { rate: SettingChange::Set(7), ..TraceChange::default() };
        assert_eq!(tracer.change(None, rate).unwrap().rate, 7);
    }

    #[test]
    fn one_in_so_many_is_traced_until_there_are_enough() {
        let folder = tempfile::tempdir().unwrap();
        let tracer = Tracer::new(Some(folder.path().join("trace.json"))).unwrap();
        assert!(tracer.sample("m", 1, Transport::Http).is_none());
        let change = TraceChange { count: SettingChange::Set(Some(2)), ..on(3) };
        tracer.change(None, change).unwrap();
        let sampled: Vec<bool> = (0..12).map(|_| tracer.sample("m", 1, Transport::Http).is_some()).collect();
        let expected = [false, false, true, false, false, true, false, false, false, false, false, false];
        assert_eq!(sampled, expected);
        assert_eq!(tracer.settings(None).count, Some(0));
    }

    #[test]
    fn a_models_own_settings_count_until_they_are_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let tracer = Tracer::new(Some(folder.path().join("trace.json"))).unwrap();
        tracer.change(Some("a"), on(1)).unwrap();
        assert!(tracer.sample("a", 1, Transport::Http).is_some() && tracer.sample("b", 1, Transport::Http).is_none());
        tracer.change(None, TraceChange { log_frequency: SettingChange::Set(5), ..TraceChange::default() }).unwrap();
        assert_eq!(tracer.settings(Some("a")).log_frequency, 5, "what a model doesn't say is the server's");
        let clear =
            TraceChange { timestamps: SettingChange::Clear, rate: SettingChange::Clear, ..TraceChange::default() };
        let cleared = tracer.change(Some("a"), clear).unwrap();
        assert_eq!((cleared.timestamps, cleared.rate), (false, 1000));
        assert!(tracer.sample("a", 1, Transport::Http).is_none());
    }

    #[test]
    fn the_file_is_tritons_json_with_the_instants_that_its_summary_needs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.json");
        let tracer = Tracer::new(Some(file.clone())).unwrap();
        tracer.change(None, on(1)).unwrap();
        let trace = tracer.sample("say \"hi\"", 3, Transport::Http).unwrap();
        trace.received(at(11));
        trace.queued(at(12));
        trace.computed(&BatchTimes { started_at: at(20), gathered_at: at(21), computed_at: at(30), ended_at: at(31) });
        trace.named("r\n1");
        trace.replied(at(35));
        trace.end(at(10), at(40));
        tracer.sample("m", 1, Transport::Grpc).unwrap().end(at(50), at(60));
        tracer.close();
        expect_test::expect![[r#"
            [
            {"id":1,"model_name":"say \"hi\"","model_version":3,"request_id":"r\n1"},
            {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":10},{"name":"HTTP_RECV_END","ns":11},{"name":"REQUEST_START","ns":11},{"name":"QUEUE_START","ns":12},{"name":"COMPUTE_START","ns":20},{"name":"COMPUTE_INPUT_END","ns":21},{"name":"COMPUTE_OUTPUT_START","ns":30},{"name":"COMPUTE_END","ns":31},{"name":"REQUEST_END","ns":35},{"name":"HTTP_SEND_START","ns":35},{"name":"HTTP_SEND_END","ns":40}]},
            {"id":2,"model_name":"m","model_version":1},
            {"id":2,"timestamps":[{"name":"GRPC_WAITREAD_START","ns":50},{"name":"GRPC_WAITREAD_END","ns":60},{"name":"REQUEST_START","ns":60},{"name":"REQUEST_END","ns":60},{"name":"GRPC_SEND_START","ns":60},{"name":"GRPC_SEND_END","ns":60}]}
            ]
        "#]]
        .assert_eq(&std::fs::read_to_string(file).unwrap());
    }

    #[test]
    fn what_endpoints_ask_is_written_with_the_request_and_is_no_sample_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.json");
        let tracer = Tracer::new(Some(file.clone())).unwrap();
        tracer.change(None, TraceChange { count: SettingChange::Set(Some(2)), ..on(1) }).unwrap();
        let whole = tracer.sample("outer", 1, Transport::Http).unwrap();
        let inner = whole.part("inner", 2);
        let model = inner.part("m", 3);
        model.queued(at(13));
        model.computed(&BatchTimes { started_at: at(20), gathered_at: at(21), computed_at: at(30), ended_at: at(31) });
        model.end(at(12), at(32));
        inner.end(at(11), at(33));
        whole.part("refused", 1).end(at(34), at(35));
        whole.end(at(10), at(40));
        assert_eq!(tracer.settings(None).count, Some(1));
        tracer.close();
        expect_test::expect![[r#"
            [
            {"id":1,"model_name":"outer","model_version":1},
            {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":10},{"name":"HTTP_RECV_END","ns":40},{"name":"REQUEST_START","ns":40},{"name":"REQUEST_END","ns":40},{"name":"HTTP_SEND_START","ns":40},{"name":"HTTP_SEND_END","ns":40}]},
            {"id":3,"model_name":"m","model_version":3,"parent_id":2},
            {"id":3,"timestamps":[{"name":"REQUEST_START","ns":12},{"name":"QUEUE_START","ns":13},{"name":"COMPUTE_START","ns":20},{"name":"COMPUTE_INPUT_END","ns":21},{"name":"COMPUTE_OUTPUT_START","ns":30},{"name":"COMPUTE_END","ns":31},{"name":"REQUEST_END","ns":32}]},
            {"id":2,"model_name":"inner","model_version":2,"parent_id":1},
            {"id":2,"timestamps":[{"name":"REQUEST_START","ns":11},{"name":"REQUEST_END","ns":33}]},
            {"id":4,"model_name":"refused","model_version":1,"parent_id":1},
            {"id":4,"timestamps":[{"name":"REQUEST_START","ns":34},{"name":"REQUEST_END","ns":35}]}
            ]
        "#]]
        .assert_eq(&std::fs::read_to_string(file).unwrap());
    }

    #[test]
    fn a_trace_has_so_many_parts_and_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace.json");
        let tracer = Tracer::new(Some(file.clone())).unwrap();
        tracer.change(None, on(1)).unwrap();
        let whole = tracer.sample("outer", 1, Transport::Http).unwrap();
        (0..=MOST_PARTS).for_each(|_| whole.part("m", 1).end(at(1), at(2)));
        whole.end(at(1), at(3));
        tracer.close();
        assert_eq!(std::fs::read_to_string(file).unwrap().matches("parent_id").count(), MOST_PARTS);
    }

    #[test]
    fn with_a_frequency_there_are_several_files_and_the_rest_is_written_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let tracer = Tracer::new(Some(folder.path().join("t"))).unwrap();
        tracer.change(None, TraceChange { log_frequency: SettingChange::Set(2), ..on(1) }).unwrap();
        for _ in 0..3 {
            tracer.sample("m", 1, Transport::Http).unwrap().end(at(1), at(2));
        }
        tracer.close();
        let ids = |name: &str| {
            let text = std::fs::read_to_string(folder.path().join(name)).unwrap();
            assert!(text.starts_with("[\n") && text.ends_with("\n]\n"), "{text}");
            text.matches("timestamps").count()
        };
        assert_eq!((ids("t.0"), ids("t.1")), (2, 1));
        assert!(!folder.path().join("t").exists());
    }
}
