//! What `punctual serve` may be told, and what it means: flags, environment and file become the settings of each part.

use crate::bytes::ByteSize;
use crate::cache::cache_bytes;
use crate::defaults;
use crate::devices::{CpuDivision, DeviceChoice, DeviceKind, Devices, ShareChoice};
use crate::memory;
use crate::runtime::{self, Choices, Runtime};
use anyhow::{Context, Result, anyhow, bail, ensure};
use base::Duration;
use clap::Args;
use controller::{ControllerConfig, DeviceConfig, ExecutionLimits, deal};
use gateway::{Origins, Restrictions, TlsFiles};
use models::{ControlMode, ManagerConfig, ProfilingEffort};
use recording::{Header, Limits, Recorder};
use repository::{Manifest, RepositorySource};
use scheduler::{PolicyKind, Split};
use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use telemetry::logs;

/// Weights are counted in pages of this size.
const PAGE_BYTES: u64 = 2 << 20;
/// The least limit of an execution in a process of its own, in milliseconds.
const ISOLATED_MS: u64 = 3_000;
/// Looking less often than once a day is not looking.
const MAX_POLL_SECONDS: u64 = 86_400;

/// What `serve` may be told. Each can be given as a flag, as an environment variable, or in the file of `--config`;
/// they count in this order. [`defaults`] adds the default to the help of those that have one.
#[derive(Args, Deserialize, Default, Debug)]
#[command(mut_args = defaults::say)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct ServeOptions {
    /// The models, in Triton's layout: a folder, `s3://bucket/folder`, `s3://host:port/bucket/folder`,
    /// `gs://bucket/folder` or `az://container/folder`. May be given several times (in a file: as a list).
    #[arg(long, value_name = "DIR_OR_URL", env = "PUNCTUAL_MODEL_REPOSITORY", alias = "model-store")]
    #[serde(default, deserialize_with = "one_or_many")]
    pub model_repository: Option<Vec<String>>,

    /// Who says which models are served. `both`: the repository, whose changes are noticed, and clients, who may load
    /// and unload. `auto`: the same where only this machine's own users reach the server, or `--api-keys` says
    /// who may, otherwise `poll`. `none`: the
    /// repository as it is at the start. `poll`: the repository, whose changes are noticed. `explicit`: clients, and
    /// `--load-model` at the start.
    #[arg(long, value_name = "MODE", env = "PUNCTUAL_MODEL_CONTROL_MODE")]
    pub model_control_mode: Option<String>,

    /// A model to load at the start with `--model-control-mode explicit`; `*` is all of them. May be given several
    /// times.
    #[arg(long, value_name = "NAME", env = "PUNCTUAL_LOAD_MODEL")]
    #[serde(default, deserialize_with = "one_or_many")]
    pub load_model: Option<Vec<String>>,

    /// How often buckets are looked at, in seconds. Folders tell when they change.
    #[arg(long, value_name = "SECONDS", env = "PUNCTUAL_REPOSITORY_POLL_SECS")]
    pub repository_poll_secs: Option<u64>,

    /// Serve only models whose files are in this list, as `sha256sum` writes it, with names from the model's on
    /// (`resnet/1/model.onnx`). It is read again for every model that is published.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_MODEL_MANIFEST")]
    pub model_manifest: Option<PathBuf>,

    /// With `--model-manifest`, the public key of minisign that must have signed it; the signature is next to it, in
    /// `FILE.minisig`.
    #[arg(long, value_name = "KEY", env = "PUNCTUAL_MANIFEST_KEY")]
    pub manifest_key: Option<String>,

    /// The address to listen on. 0.0.0.0 lets other machines in.
    #[arg(long, value_name = "ADDRESS", env = "PUNCTUAL_HOST")]
    pub host: Option<IpAddr>,

    /// Others than this machine's own users reach the server though `--host` is a loopback address: through a proxy on
    /// this machine, a tunnel or a forwarded port.
    #[arg(long, num_args = 0, default_missing_value = "true", env = "PUNCTUAL_EXPOSED")]
    pub exposed: Option<bool>,

    /// A page whose scripts may ask the server and see its answers, as `https://example.org`; `*` is every page, which
    /// may then ask, but change nothing. May be given several times.
    #[arg(long, value_name = "ORIGIN", env = "PUNCTUAL_CORS_ORIGIN")]
    #[serde(default, deserialize_with = "one_or_many")]
    pub cors_origin: Option<Vec<String>>,

    /// Calls over HTTP that ask for a header, as in Triton: `API,API:HEADER=VALUE`. The APIs are health, metadata,
    /// inference, shared-memory, model-config, model-repository, statistics, trace and logging. May be given several
    /// times.
    #[arg(long, value_name = "APIS:HEADER=VALUE", env = "PUNCTUAL_HTTP_RESTRICTED_API", hide_env_values = true)]
    #[serde(default, deserialize_with = "one_or_many")]
    pub http_restricted_api: Option<Vec<String>>,

    /// The same for gRPC, where Triton calls them protocols; the header there is `triton-grpc-protocol-HEADER`.
    #[arg(
        long,
        value_name = "PROTOCOLS:HEADER=VALUE",
        env = "PUNCTUAL_GRPC_RESTRICTED_PROTOCOL",
        hide_env_values = true
    )]
    #[serde(default, deserialize_with = "one_or_many")]
    pub grpc_restricted_protocol: Option<Vec<String>>,

    /// The keys that clients need, and what each is good for: a line for each, as `punctual key` writes it. The file is
    /// read again when it changes. Health needs no key.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_API_KEYS")]
    pub api_keys: Option<PathBuf>,

    /// The server's certificate, as PEM, with those behind it that lead to one that clients know: all ports speak TLS
    /// then. The files are read again when they change.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_TLS_CERTIFICATE")]
    pub tls_certificate: Option<PathBuf>,

    /// The private key of `--tls-certificate`, as PEM.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_TLS_KEY")]
    pub tls_key: Option<PathBuf>,

    /// Those who sign clients' certificates, as PEM: clients need one then, on every port, probes too.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_TLS_CLIENT_CA")]
    pub tls_client_ca: Option<PathBuf>,

    /// The port for HTTP; 0 takes a free one.
    #[arg(long, value_name = "PORT", env = "PUNCTUAL_HTTP_PORT")]
    pub http_port: Option<u16>,

    /// The port for gRPC; 0 takes a free one.
    #[arg(long, value_name = "PORT", env = "PUNCTUAL_GRPC_PORT")]
    pub grpc_port: Option<u16>,

    /// The port for Prometheus metrics; 0 takes a free one.
    #[arg(long, value_name = "PORT", env = "PUNCTUAL_METRICS_PORT")]
    pub metrics_port: Option<u16>,

    /// What to run on: `auto` for every NVIDIA GPU that is found, otherwise for an executor on each core that this
    /// process may use but one, which reads and answers; `cpu:N` for N executors on CPU cores, `cuda:0` for an NVIDIA
    /// GPU (`cuda:0,1` for two, `cuda:0:shares=0.5,0.5` for one in two parts, `cuda:0:shares=0.5,0.5|0.25,0.75` for
    /// parts that may be changed while it runs), `emulated:N` for N devices that only pretend.
    #[arg(long, value_name = "KIND:N", env = "PUNCTUAL_DEVICES")]
    pub devices: Option<DeviceChoice>,

    /// Who says how GPUs are divided into shares: `fixed`, what --devices says; `auto`, the server, by what is asked
    /// for: whole GPUs where shares don't pay, looked at every two seconds. For GPUs and emulated devices.
    #[arg(long, value_name = "WHO", env = "PUNCTUAL_SHARES")]
    pub shares: Option<ShareChoice>,

    /// Memory for weights on each device. More models than fit are served by loading and unloading.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_DEVICE_MEMORY")]
    pub device_memory: Option<ByteSize>,

    /// On a GPU, pinned host memory into which requests are received, so that the GPU reads binary tensors from there
    /// by itself. What doesn't fit is copied by the device's thread first; 0 has all of them copied.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_PINNED_MEMORY")]
    pub pinned_memory: Option<ByteSize>,

    /// On a GPU, what models whose configuration says nothing are computed in: `fp32`, `tf32` or `fp16`; or `auto`, for
    /// each the fastest of them whose outputs are near enough to its own in fp32.
    #[arg(long, value_name = "NAME", env = "PUNCTUAL_PRECISION")]
    pub precision: Option<String>,

    /// With `--precision auto`, how far outputs may be off, as a part of an output's range. A precision that was named
    /// is obeyed, with a warning if it is further off.
    #[arg(long, value_name = "PART", env = "PUNCTUAL_PRECISION_ERROR")]
    pub precision_error: Option<f64>,

    /// On a GPU, compute what can't run there with ONNX Runtime on the CPU instead of refusing it. `false` may follow.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", env = "PUNCTUAL_CPU_FALLBACK")]
    #[arg(value_parser = clap::builder::BoolishValueParser::new())]
    pub cpu_fallback: Option<bool>,

    /// On a GPU, let models be ready within a moment, in fp32 and with kernels that are chosen by rule where none was
    /// measured, and have each compared, measured and replaced by a faster one while the device idles. `false` may
    /// follow: then all of that is done before a model is ready.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", env = "PUNCTUAL_READY_SOON")]
    #[arg(value_parser = clap::builder::BoolishValueParser::new())]
    pub ready_soon: Option<bool>,

    /// Give each CPU device's engine a process of its own, and each model another one while it is prepared, which may
    /// read models and nothing else: a fault in the runtime, an execution that nothing breaks off or a hostile model
    /// costs that process, which is started anew. Not available with GPUs yet.
    #[arg(long, num_args = 0, default_missing_value = "true", env = "PUNCTUAL_ISOLATE")]
    pub isolate: Option<bool>,

    /// Cores for one execution on a CPU device.
    #[arg(long, value_name = "N", env = "PUNCTUAL_THREADS_PER_DEVICE")]
    pub threads_per_device: Option<u16>,

    /// Which of the CPU's cores compute a batch together: `narrow`, each executor has one, so that as many batches run
    /// at a time; `wide`, one executor has them all; `auto`, the server says so by what is asked for: together while
    /// requests are mostly alone and that is measured to be quicker, apart as soon as they meet each other, looked at
    /// four times a second.
    #[arg(long, value_name = "HOW", env = "PUNCTUAL_CPU_DIVISION")]
    pub cpu_division: Option<CpuDivision>,

    /// The batching policy: punctual, clockwork, deferred, eager, timeout, nexus, shepherd, clipper or orloj.
    #[arg(long, value_name = "NAME", env = "PUNCTUAL_POLICY")]
    pub policy: Option<String>,

    /// How what is left of a pipeline's time is split over its stages: load (by how busy devices are), profile (by what
    /// each takes alone) or equal.
    #[arg(long, value_name = "NAME", env = "PUNCTUAL_PIPELINE_SPLIT")]
    pub pipeline_split: Option<String>,

    /// Let batches grow in good times, too, so that devices stay idle that aren't needed, and the advice on scaling can
    /// say how many: answers come later, but in time.
    #[arg(long, num_args = 0, default_missing_value = "true", env = "PUNCTUAL_THRIFT")]
    pub thrift: Option<bool>,

    /// The part of a device's time, 0 to 0.5, that requests without a deadline get at least, once they have waited for
    /// a second: with 0 they run only when nobody else needs the device.
    #[arg(long, value_name = "PART", env = "PUNCTUAL_BATCH_WORK_SHARE")]
    pub batch_work_share: Option<f64>,

    /// Divide the devices into so many cells, each with a scheduler and with some of the models: for more requests than
    /// one core can plan. A model runs on the devices of its cell alone, and moves to another cell if its own is short
    /// for long. `--shards` is an older name for it.
    #[arg(long, value_name = "N", env = "PUNCTUAL_CELLS", alias = "shards")]
    #[serde(alias = "shards")]
    pub cells: Option<u32>,

    /// The deadline of requests that name none, for models whose configuration names none. Without it such requests are
    /// batch work: they run in time that nobody else needs.
    #[arg(long, value_name = "MS", env = "PUNCTUAL_DEFAULT_OBJECTIVE_MS")]
    pub default_objective_ms: Option<f64>,

    /// How many past executions an estimate looks at.
    #[arg(long, value_name = "N", env = "PUNCTUAL_PROFILE_WINDOW")]
    pub profile_window: Option<usize>,

    /// Which quantile of them it takes.
    #[arg(long, value_name = "Q", env = "PUNCTUAL_PROFILE_QUANTILE")]
    pub profile_quantile: Option<f64>,

    /// How long to measure a new model, all batch sizes together; what larger ones take is then read off a line.
    #[arg(long, value_name = "MS", env = "PUNCTUAL_PROFILE_BUDGET_MS")]
    pub profile_budget_ms: Option<u64>,

    /// The share of a device's time in which requests are run once more, alone, to learn what inputs of different sizes
    /// take and, on a GPU, whether what a model is computed in is near enough for them: only when nothing waits and no
    /// deadline is near. 0 turns it off.
    #[arg(long, value_name = "SHARE", env = "PUNCTUAL_ONLINE_PROFILE_SHARE")]
    pub online_profile_share: Option<f64>,

    /// For how long a batch may be computed, and a run that measures a model or warms it up. What takes longer is
    /// broken off: its requests fail with `broken_off`, and its model rests for as long. Where nothing breaks it off,
    /// the device is given up. Batches of models whose requests don't differ in size have less: 100 times what is
    /// expected of them, but at least 5 s.
    #[arg(long, value_name = "MS", env = "PUNCTUAL_MAX_EXECUTION_MS")]
    pub max_execution_ms: Option<u64>,

    /// For how long a model may be prepared, measured and warmed up. One that takes longer is left behind, or ended
    /// with `--isolate`: it isn't served, and others have their turn.
    #[arg(long, value_name = "SECONDS", env = "PUNCTUAL_MAX_PREPARING_S")]
    pub max_preparing_s: Option<u64>,

    /// How long a stop waits for what is in flight before it cuts it off. 5 s later the process ends, whatever hangs.
    /// Triton's name for it.
    #[arg(long, value_name = "SECONDS", env = "PUNCTUAL_EXIT_TIMEOUT_SECS")]
    pub exit_timeout_secs: Option<u64>,

    /// Requests that may be in the server at once; more are refused.
    #[arg(long, value_name = "N", env = "PUNCTUAL_MAX_REQUESTS")]
    pub max_requests: Option<u32>,

    /// The largest request, over HTTP and gRPC; larger ones are refused without being kept. `--http-max-input-size` is
    /// Triton's name for it.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_MAX_BODY", alias = "http-max-input-size")]
    #[serde(alias = "http-max-input-size")]
    pub max_body: Option<ByteSize>,

    /// Memory for large requests and answers that are in the server at once; more are refused.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_MAX_HELD")]
    pub max_held: Option<ByteSize>,

    /// Connections of clients at once over each protocol; one more takes the place of one that idles, or is refused.
    #[arg(long, value_name = "N", env = "PUNCTUAL_MAX_CONNECTIONS")]
    pub max_connections: Option<usize>,

    /// Connections of one client (an IPv4 address, or an IPv6 network of 64 bits) at once; more are refused.
    #[arg(long, value_name = "N", env = "PUNCTUAL_MAX_CLIENT_CONNECTIONS")]
    pub max_client_connections: Option<usize>,

    /// Requests of one client in flight; more are refused (429). [default: as many as there may be]
    #[arg(long, value_name = "N", env = "PUNCTUAL_MAX_CLIENT_REQUESTS")]
    pub max_client_requests: Option<usize>,

    /// Requests of one client in a second, and at once after a second without; more are refused (429). [default: any
    /// number]
    #[arg(long, value_name = "RPS", env = "PUNCTUAL_MAX_CLIENT_RATE")]
    pub max_client_rate: Option<f64>,

    /// Memory for the bodies of one client's large requests and answers; more are refused (429). [default: what
    /// --max-held allows all]
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_MAX_CLIENT_HELD")]
    pub max_client_held: Option<ByteSize>,

    /// Part of all devices' time that one client's requests may be computed in, as 0.25, on average and for a second of
    /// it at once; more are refused (429). [default: all of it]
    #[arg(long, value_name = "SHARE", env = "PUNCTUAL_MAX_CLIENT_DEVICE_SHARE")]
    pub max_client_device_share: Option<f64>,

    /// How much of a body or an answer must move in a second, on average, once it took 30 s; 0 for anything.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_LEAST_RATE")]
    pub least_rate: Option<ByteSize>,

    /// How long a body or an answer may take in all.
    #[arg(long, value_name = "S", env = "PUNCTUAL_MAX_BODY_S")]
    pub max_body_s: Option<u64>,

    /// Memory that the process may have. From 80 % of it on answers aren't kept, from 85 % large bodies are refused,
    /// from 90 % new connections but for probes, from 95 % connections that idle are closed. [default: the machine's,
    /// or what its control group allows]
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_MEMORY_LIMIT")]
    pub memory_limit: Option<ByteSize>,

    /// Keep answers of models whose configuration has `response_cache { enable: true }`, and compute identical requests
    /// once, as in Triton: `local,size=BYTES` is the most that they take. [default: none are kept]
    #[arg(long, value_name = "local,size=SIZE", env = "PUNCTUAL_CACHE_CONFIG")]
    #[serde(default, deserialize_with = "one_or_many")]
    pub cache_config: Option<Vec<String>>,

    /// The same, by Triton's older name: the size alone. [default: none are kept]
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_RESPONSE_CACHE_BYTE_SIZE")]
    pub response_cache_byte_size: Option<ByteSize>,

    /// Let clients have tensors read from and written to system shared memory. They name the objects, so this opens
    /// everything in /dev/shm that the server may open: only for clients that are trusted. `--allow-client-shm` is
    /// Triton's name for it; `true` or `false` may follow.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", env = "PUNCTUAL_ALLOW_SHARED_MEMORY")]
    #[arg(alias = "allow-client-shm", value_parser = clap::builder::BoolishValueParser::new())]
    #[serde(alias = "allow-client-shm")]
    pub allow_shared_memory: Option<bool>,

    /// Threads that read and write connections. [default: one for each two cores]
    #[arg(long, value_name = "N", env = "PUNCTUAL_IO_THREADS")]
    pub io_threads: Option<usize>,

    /// The share of requests that may be lost for want of devices before more devices are advised.
    #[arg(long, value_name = "SHARE", env = "PUNCTUAL_SCALING_MAX_BAD")]
    pub scaling_max_bad: Option<f64>,

    /// Fewer lost requests than this are bad luck, whatever their share: no reason to advise more devices.
    #[arg(long, value_name = "N", env = "PUNCTUAL_SCALING_MIN_BAD")]
    pub scaling_min_bad: Option<u64>,

    /// The share of time that devices should idle, for what the next minute brings; 0 to 0.4. Fewer devices are advised
    /// when they idle more than twice that, and then so many fewer that this share stays.
    #[arg(long, value_name = "SHARE", env = "PUNCTUAL_SCALING_RESERVE")]
    pub scaling_reserve: Option<f64>,

    /// So many devices are kept, however much they idle.
    #[arg(long, value_name = "N", env = "PUNCTUAL_SCALING_MIN_DEVICES")]
    pub scaling_min_devices: Option<u32>,

    /// How far back the advice on scaling looks for lost requests, and how long it says nothing after the number of
    /// devices has changed. Shorter adds devices sooner, also for bursts that would have passed.
    #[arg(long, value_name = "S", env = "PUNCTUAL_SCALING_SETTLE_S")]
    pub scaling_settle_s: Option<f64>,

    /// How far back it looks for idle time, and how long devices are kept at least before fewer are advised; not less
    /// than --scaling-settle-s. Longer than the ups and downs of the load, and devices don't come and go with them.
    #[arg(long, value_name = "S", env = "PUNCTUAL_SCALING_WINDOW_S")]
    pub scaling_window_s: Option<f64>,

    /// Idle time at which requests were lost isn't spare and is kept, too. After so long half of it is forgotten.
    #[arg(long, value_name = "S", env = "PUNCTUAL_SCALING_HALF_LIFE_S")]
    pub scaling_half_life_s: Option<f64>,

    /// Where prepared models and measurements are kept.
    #[arg(long, value_name = "DIR", env = "PUNCTUAL_CACHE_DIR")]
    pub cache_dir: Option<PathBuf>,

    /// The ONNX Runtime library. [default: looked for; the message says where, if it isn't found]
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_ONNXRUNTIME")]
    pub onnxruntime: Option<PathBuf>,

    /// How logs look: `text` or `json`.
    #[arg(long, value_name = "FORMAT", env = "PUNCTUAL_LOG_FORMAT")]
    pub log_format: Option<String>,

    /// What is logged: error, warn, info, debug, or a filter like `controller=debug,info`.
    #[arg(long, value_name = "FILTER", env = "PUNCTUAL_LOG")]
    pub log: Option<String>,

    /// Where traces of single requests go once a client turns them on (`v2/trace/setting`). Without it they can't be
    /// turned on.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_TRACE_FILE")]
    pub trace_file: Option<PathBuf>,

    /// Record every event that the scheduler is told, so that an incident can be run again with `punctual replay FILE`.
    /// A file that is there is kept as FILE.1. With several cells there is one for each: FILE.cell0, FILE.cell1 and so
    /// on.
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_RECORD")]
    pub record: Option<PathBuf>,

    /// The largest recording, of each cell; at this size it ends, and says so. About 50 bytes for a request.
    #[arg(long, value_name = "SIZE", env = "PUNCTUAL_RECORD_LIMIT")]
    pub record_limit: Option<ByteSize>,

    /// A TOML file with the same settings, by the same names (`http-port = 8000`).
    #[arg(long, value_name = "FILE", env = "PUNCTUAL_CONFIG")]
    #[serde(skip)]
    pub config: Option<PathBuf>,
}

/// One text, or a list of them.
fn one_or_many<'de, D: serde::Deserializer<'de>>(reader: D) -> std::result::Result<Option<Vec<String>>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Texts {
        One(String),
        Many(Vec<String>),
    }
    Ok(Some(match Texts::deserialize(reader)? {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    }))
}

macro_rules! fill_from {
    ($into:expr, $from:expr; $($field:ident),* $(,)?) => { $($into.$field = $into.$field.take().or($from.$field);)* };
}

impl ServeOptions {
    /// Fills what flags and environment leave open from the file.
    pub(crate) fn with_file(mut self) -> Result<Self> {
        let Some(path) = &self.config else { return Ok(self) };
        let text = std::fs::read_to_string(path).with_context(|| format!("--config {}", path.display()))?;
        let file: Self = toml::from_str(&text).with_context(|| format!("--config {}", path.display()))?;
        fill_from!(self, file;
            model_repository, model_control_mode, load_model, repository_poll_secs, model_manifest,
            manifest_key, host, exposed, cors_origin, http_restricted_api, grpc_restricted_protocol,
            api_keys, tls_certificate, tls_key, tls_client_ca, http_port, grpc_port, metrics_port,
            devices, shares, device_memory, pinned_memory, precision, precision_error, cpu_fallback, ready_soon,
            isolate, threads_per_device, cpu_division, policy, pipeline_split, thrift, batch_work_share, cells, default_objective_ms,
            profile_window, profile_quantile, profile_budget_ms, online_profile_share, max_execution_ms,
            max_preparing_s, exit_timeout_secs, max_requests, max_body, max_held, max_connections,
            max_client_connections, max_client_requests, max_client_rate, max_client_held,
            max_client_device_share, least_rate, max_body_s, memory_limit, cache_config,
            response_cache_byte_size, allow_shared_memory, io_threads, scaling_max_bad, scaling_min_bad,
            scaling_reserve, scaling_min_devices, scaling_settle_s, scaling_window_s,
            scaling_half_life_s, cache_dir, onnxruntime, log_format, log, trace_file, record,
            record_limit);
        Ok(self)
    }

    fn address(&self, port: Option<u16>, default: u16) -> SocketAddr {
        SocketAddr::new(self.host.unwrap_or(defaults::HOST), port.unwrap_or(default))
    }

    /// Whether only this machine's own users reach the server.
    fn is_local(&self) -> bool {
        !self.exposed.unwrap_or(false) && self.host.unwrap_or(defaults::HOST).to_canonical().is_loopback()
    }

    pub(crate) fn device_choice(&self) -> DeviceChoice {
        self.devices.clone().unwrap_or(defaults::DEVICES)
    }

    /// The devices with their runtime: those that were named, or what is found.
    pub(crate) fn open(&self, cache: Option<PathBuf>) -> Result<(Devices, Runtime)> {
        let mut choices = self.choices(cache);
        let devices = match self.device_choice() {
            DeviceChoice::Named(devices) => {
                let devices = self.divided(devices, &mut choices)?;
                return Runtime::open(&devices, &choices).map(|runtime| (devices, runtime));
            }
            DeviceChoice::Auto => runtime::found(&choices),
        };
        tracing::info!("--devices auto is {devices} here");
        let devices = self.divided(devices, &mut choices)?;
        if choices.isolate {
            runtime::can_isolate(&devices)?;
        }
        match Runtime::open(&devices, &choices) {
            Err(error) if devices.kind == DeviceKind::Cuda && !self.divides_by_itself() => {
                let cores = self.divided(runtime::cores(&choices), &mut choices)?;
                tracing::warn!("a GPU was found, but it can't be used: {error:#}; --devices auto is {cores} instead");
                Runtime::open(&cores, &choices).map(|runtime| (cores, runtime))
            }
            opened => opened.map(|runtime| (devices, runtime)),
        }
    }

    /// Whether the server says how GPUs are divided.
    pub(crate) fn divides_by_itself(&self) -> bool {
        self.shares.unwrap_or(defaults::SHARES) == ShareChoice::Auto
    }

    /// The devices as they are divided, and what that means for the runtime.
    fn divided(&self, devices: Devices, choices: &mut Choices) -> Result<Devices> {
        let devices = self.with_shares(devices)?;
        match self.cpu_division(&devices)? {
            CpuDivision::Narrow => Ok(devices),
            CpuDivision::Auto => Ok(devices.with_divided_cores()),
            CpuDivision::Wide => {
                choices.threads = Some(u16::try_from(devices.count).unwrap_or(u16::MAX));
                Ok(Devices::counted(DeviceKind::Cpu, 1))
            }
        }
    }

    /// How cores are divided: as is said, or by the server where it chose the executors and nothing else was said of
    /// them.
    pub(crate) fn cpu_division(&self, devices: &Devices) -> Result<CpuDivision> {
        let Some(said) = self.cpu_division else {
            let is_free = self.device_choice() == DeviceChoice::Auto && self.threads_per_device.is_none();
            let is_one = !self.isolate.unwrap_or(defaults::ISOLATE) && self.cells.unwrap_or(defaults::CELLS) == 1;
            let is_divisible = devices.kind == DeviceKind::Cpu && devices.count > 1;
            return Ok(if is_free && is_one && is_divisible { defaults::CPU_DIVISION } else { CpuDivision::Narrow });
        };
        if said == CpuDivision::Narrow {
            return Ok(said);
        }
        let refuse = |why: &str| Err(anyhow!("--cpu-division {said}: {why}"));
        if let Some(threads) = self.threads_per_device {
            return refuse(&format!(
                "--threads-per-device {threads} says how many cores an executor has: say one of the two"
            ));
        }
        // On GPUs there is nothing to divide.
        if devices.kind != DeviceKind::Cpu || devices.count == 1 {
            return Ok(CpuDivision::Narrow);
        }
        match (said, self.isolate, self.cells) {
            (CpuDivision::Auto, Some(true), _) => {
                refuse("with --isolate each executor has a process and a core of its own: say narrow or wide")
            }
            (_, _, Some(cells @ 2..)) => {
                refuse(&format!("executors of different cells (--cells {cells}) have no cores together: say narrow"))
            }
            _ => Ok(said),
        }
    }

    fn with_shares(&self, devices: Devices) -> Result<Devices> {
        if !self.divides_by_itself() {
            return Ok(devices);
        }
        devices.with_planned_shares().map_err(|reason| anyhow!("--shares auto: {reason}"))
    }

    fn scheduler(&self) -> Result<scheduler::Config> {
        let default = scheduler::Config::default();
        let name = self.policy.as_deref().unwrap_or(default.policy.name());
        let known: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
        let policy = PolicyKind::from_name(name)
            .ok_or_else(|| anyhow!("--policy {name}: there is no such policy; known are {}", known.join(", ")))?;
        let name = self.pipeline_split.as_deref().unwrap_or(default.split.name());
        let known: Vec<&str> = Split::ALL.iter().map(|split| split.name()).collect();
        let split = Split::ALL.iter().find(|split| split.name() == name).ok_or_else(|| {
            anyhow!("--pipeline-split {name}: there is no such split; known are {}", known.join(", "))
        })?;
        let quantile = self.profile_quantile.unwrap_or(default.profile_quantile);
        if !(0.0..=1.0).contains(&quantile) {
            bail!("--profile-quantile {quantile}: a quantile is between 0 and 1");
        }
        let window = self.profile_window.unwrap_or(default.profile_window);
        if !(1..=10_000).contains(&window) {
            bail!("--profile-window {window}: between 1 and 10000 past executions can be looked at");
        }
        let batch_work_share = self.batch_work_share.unwrap_or(default.batch_work_share);
        if !(0.0..=0.5).contains(&batch_work_share) {
            bail!("--batch-work-share {batch_work_share}: a part of a device's time between 0 and 0.5 is expected");
        }
        Ok(scheduler::Config {
            policy,
            split: *split,
            batch_work_share,
            profile_window: window,
            profile_quantile: quantile,
            thrift: self.thrift.unwrap_or(default.thrift),
            late_wakeup: base::margins::LATE_WAKEUP,
            max_queued_per_model: scheduler::Config::queue_of(self.max_requests()),
            ..default
        })
    }

    pub(crate) fn controller(&self, devices: &Devices, runtime: &Runtime) -> Result<ControllerConfig> {
        let memory = self.device_memory.unwrap_or(defaults::DEVICE_MEMORY).0;
        if memory < PAGE_BYTES {
            bail!("--device-memory {}: at least one page of {} is needed", ByteSize(memory), ByteSize(PAGE_BYTES));
        }
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = runtime.threads;
        // One core at least stays for everything else.
        let computes = devices.kind == DeviceKind::Cpu && threads == 1 || devices.kind == DeviceKind::Cuda;
        let enough = computes && devices.count as usize + 1 < cores;
        // Whoever leaves it to us leaves cores for everything else to us, too.
        let named = self.device_choice() != DeviceChoice::Auto;
        if devices.kind == DeviceKind::Cpu && !enough && named {
            tracing::warn!(
                "{cores} cores for {} executors of {threads} threads: executors are not pinned, their times will vary more",
                devices.count
            );
        }
        let pages = runtime.pages.unwrap_or(u32::try_from(memory / PAGE_BYTES).unwrap_or(u32::MAX));
        let online_profile_share = self.online_profile_share.unwrap_or(defaults::ONLINE_PROFILE_SHARE);
        if !(0.0..=1.0).contains(&online_profile_share) {
            bail!("--online-profile-share {online_profile_share}: a share is between 0 and 1");
        }
        ensure!(self.max_execution_ms != Some(0), "--max-execution-ms 0: no batch is computed in no time");
        // A process has a second to end a batch by itself; in twice the limit its device would be given up.
        if let (Some(true), Some(limit @ ..ISOLATED_MS)) = (self.isolate, self.max_execution_ms) {
            bail!("--max-execution-ms {limit}: with --isolate at least {ISOLATED_MS} are needed");
        }
        let kinds = devices.kinds(0);
        let cells = self.cells.unwrap_or(defaults::CELLS);
        let device = |index: u32| DeviceConfig {
            name: runtime.names.get(index as usize).cloned().unwrap_or_else(|| devices.name(index)),
            index,
            pages,
            pin: enough.then_some(index as usize),
            kind: kinds[index as usize],
            only_waits: devices.kind == DeviceKind::Emulated,
        };
        Ok(ControllerConfig {
            scheduler: self.scheduler()?,
            max_requests: self.max_requests(),
            page_bytes: PAGE_BYTES,
            cells: deal((0..devices.count).map(device).collect(), devices.shares(), cells)
                .map_err(|reason| anyhow!("--cells {cells}: {reason}"))?,
            online_profile_share,
            limits: ExecutionLimits {
                most: self.max_execution_ms.map_or(ExecutionLimits::MOST, Duration::from_millis),
                comes_back: devices.kind != DeviceKind::Cuda,
            },
        })
    }

    /// Where the schedulers' events go, if anywhere: a file for each cell.
    pub(crate) fn recorders(&self, config: &ControllerConfig) -> Result<Vec<Recorder>> {
        let Some(path) = self.record.as_ref() else {
            if self.record_limit.is_some() {
                bail!("--record-limit without --record: name the file to record into");
            }
            return Ok(Vec::new());
        };
        let limits = self.recording_limits();
        let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let header = Header {
            version: env!("CARGO_PKG_VERSION").into(),
            recorded_at: since_1970.map_or(0, |span| span.as_secs()),
            max_requests: config.max_requests,
            config: config.scheduler.clone(),
        };
        let create = |path: PathBuf| {
            Recorder::create(&path, &header, limits).with_context(|| format!("--record {}", path.display()))
        };
        match config.cells.len() {
            1 => Ok(vec![create(path.clone())?]),
            cells => (0..cells).map(|cell| create(path.with_added_extension(format!("cell{cell}")))).collect(),
        }
    }

    /// How much of the schedulers' events is kept.
    pub(crate) fn recording_limits(&self) -> Limits {
        self.record_limit.map_or_else(Limits::default, |size| Limits { bytes: size.0 })
    }

    fn max_requests(&self) -> u32 {
        self.max_requests.unwrap_or(scheduler::Config::DEFAULT_MAX_REQUESTS).max(1)
    }

    pub(crate) fn manifest(&self) -> Result<Option<Manifest>> {
        let Some(file) = &self.model_manifest else {
            ensure!(self.manifest_key.is_none(), "--manifest-key: there is no --model-manifest that it could be for");
            return Ok(None);
        };
        let manifest = Manifest::new(file.clone(), self.manifest_key.as_deref());
        manifest.map(Some).map_err(|reason| anyhow!("--model-manifest: {reason}"))
    }

    pub(crate) fn default_objective(&self) -> Result<Option<Duration>> {
        match self.default_objective_ms {
            Some(millis) if !(millis.is_finite() && millis > 0.0) => {
                bail!("--default-objective-ms {millis}: a deadline is a number of milliseconds above 0")
            }
            millis => Ok(millis.map(Duration::from_millis_f64)),
        }
    }

    pub(crate) fn gateway(&self) -> Result<gateway::Config> {
        let defaults = gateway::Config::default();
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(gateway::Config {
            http: Some(self.address(self.http_port, gateway::Config::HTTP_PORT)),
            grpc: Some(self.address(self.grpc_port, gateway::Config::GRPC_PORT)),
            metrics: Some(self.address(self.metrics_port, gateway::Config::METRICS_PORT)),
            exposed: self.exposed.unwrap_or(defaults.exposed),
            cors_origins: Origins::read(self.cors_origin.as_deref().unwrap_or_default())
                .map_err(|reason| anyhow!("--cors-origin: {reason}"))?,
            restricted_http: Restrictions::of_http(self.http_restricted_api.as_deref().unwrap_or_default())
                .map_err(|reason| anyhow!("--http-restricted-api: {reason}"))?,
            restricted_grpc: Restrictions::of_grpc(self.grpc_restricted_protocol.as_deref().unwrap_or_default())
                .map_err(|reason| anyhow!("--grpc-restricted-protocol: {reason}"))?,
            api_keys: self.api_keys.clone(),
            tls: self.tls()?,
            io_threads: self.io_threads.unwrap_or(cores / 2).max(1),
            max_body_bytes: self.max_body.map_or(defaults.max_body_bytes, |size| size.0 as usize),
            max_held_bytes: self.max_held.map_or(defaults.max_held_bytes, |size| size.0 as usize),
            max_connections: self.max_connections.unwrap_or(defaults.max_connections).max(1),
            max_client_connections: self.max_client_connections.unwrap_or(defaults.max_client_connections).max(1),
            client_limits: self.client_limits()?,
            least_rate: self.least_rate.map_or(defaults.least_rate, |size| size.0),
            body_total: self.max_body_s.map_or(defaults.body_total, std::time::Duration::from_secs),
            memory_limit: Some(self.memory_limit.map_or(u64::MAX, |size| size.0).min(memory::limit())),
            cache_bytes: cache_bytes(self.cache_config.as_deref().unwrap_or_default(), self.response_cache_byte_size)?,
            scaling: self.scaling()?,
            trace_file: self.trace_file.clone(),
            shared_memory: self.allow_shared_memory.unwrap_or(defaults.shared_memory),
            shutdown_grace: self.exit_timeout_secs.map_or(defaults.shutdown_grace, std::time::Duration::from_secs),
            ..defaults
        })
    }

    /// What connections are encrypted with.
    pub(crate) fn tls(&self) -> Result<Option<TlsFiles>> {
        match (&self.tls_certificate, &self.tls_key, &self.tls_client_ca) {
            (Some(certificate), Some(key), client_ca) => {
                Ok(Some(TlsFiles { certificate: certificate.clone(), key: key.clone(), client_ca: client_ca.clone() }))
            }
            (None, None, None) => Ok(None),
            (Some(_), None, _) => bail!("--tls-certificate without --tls-key: name the file with its private key"),
            (None, ..) => {
                bail!("--tls-key or --tls-client-ca without --tls-certificate: name the server's certificate")
            }
        }
    }

    /// What one client may have, if that was said.
    fn client_limits(&self) -> Result<Option<gateway::ClientLimits>> {
        if let Some(rate) = self.max_client_rate
            && !(rate.is_finite() && rate > 0.0)
        {
            bail!("--max-client-rate {rate}: a rate is a number of requests a second above 0");
        }
        if let Some(share) = self.max_client_device_share
            && !(share > 0.0 && share <= 1.0)
        {
            bail!("--max-client-device-share {share}: a share is a number above 0 and at most 1, as 0.25");
        }
        let limits = gateway::ClientLimits {
            requests: self.max_client_requests,
            rate: self.max_client_rate,
            held_bytes: self.max_client_held.map(|size| size.0 as usize),
            device_share: self.max_client_device_share,
        };
        Ok((limits != gateway::ClientLimits::default()).then_some(limits))
    }

    /// Where models come from.
    pub(crate) fn sources(&self) -> Result<Vec<RepositorySource>> {
        let Some(texts) = self.model_repository.as_ref().filter(|texts| !texts.is_empty()) else {
            bail!("no --model-repository: name the folder with the models (DIR/NAME/1/model.onnx)");
        };
        let parse = |text: &String| text.parse().map_err(|reason| anyhow!("--model-repository {text}: {reason}"));
        texts.iter().map(parse).collect()
    }

    /// Who says which models are served.
    pub(crate) fn control(&self) -> Result<ControlMode> {
        let mode = match self.model_control_mode.as_deref() {
            None => ControlMode::default(),
            Some(text) => text.parse().map_err(|reason| anyhow!("--model-control-mode: {reason}"))?,
        };
        if self.load_model.is_some() && mode != ControlMode::Explicit {
            bail!(
                "--load-model is for --model-control-mode explicit: with {} all models are loaded at the start",
                mode.name()
            );
        }
        Ok(mode.among(self.is_local() || self.api_keys.is_some()))
    }

    /// Where results and downloads are kept: beside the models, or where a user's caches are.
    pub(crate) fn cache(&self, sources: &[RepositorySource]) -> Option<PathBuf> {
        let folder = sources.iter().find_map(|source| match source {
            RepositorySource::Folder(folder) => Some(folder.join(defaults::CACHE_FOLDER)),
            RepositorySource::Bucket(_) => None,
        });
        let home = || {
            let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let caches = variable("XDG_CACHE_HOME").or_else(|| variable("HOME").map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("punctual"))
        };
        self.cache_dir.clone().or(folder).or_else(home)
    }

    /// How often buckets are looked at.
    pub(crate) fn poll(&self) -> Duration {
        Duration::from_secs(self.repository_poll_secs.unwrap_or(defaults::POLL_SECONDS).clamp(1, MAX_POLL_SECONDS))
    }

    /// How much new models are measured.
    pub(crate) fn effort(&self) -> ProfilingEffort {
        let default = ProfilingEffort::default();
        ProfilingEffort { budget: self.profile_budget_ms.map_or(default.budget, Duration::from_millis), ..default }
    }

    /// For how long a model may be prepared.
    pub(crate) fn max_preparing(&self) -> Result<Duration> {
        ensure!(self.max_preparing_s != Some(0), "--max-preparing-s 0: no model is prepared in no time");
        Ok(self.max_preparing_s.map_or(ManagerConfig::MAX_PREPARING, Duration::from_secs))
    }

    /// Whether models are ready before they are as fast as they can be.
    pub(crate) fn is_ready_soon(&self) -> bool {
        self.ready_soon.unwrap_or(models::READY_SOON)
    }

    /// How logs look, and what is logged.
    pub(crate) fn logs(&self) -> Result<(logs::Format, String)> {
        let format = match self.log_format.as_deref().unwrap_or(defaults::LOG_FORMAT) {
            "text" => logs::Format::Text,
            "json" => logs::Format::Json,
            other => bail!("--log-format {other}: use text or json"),
        };
        // Of what the watcher of folders says, warnings alone are of interest.
        Ok((format, self.log.clone().unwrap_or_else(|| format!("{},notify=warn", defaults::LOG))))
    }

    /// What was said of the runtime.
    pub(crate) fn choices(&self, cache: Option<PathBuf>) -> Choices {
        Choices {
            threads: self.threads_per_device,
            onnxruntime: self.onnxruntime.clone(),
            precision: self.precision.clone(),
            precision_error: self.precision_error,
            memory: self.device_memory,
            pinned_memory: self.pinned_memory,
            cpu_fallback: self.cpu_fallback.unwrap_or(defaults::CPU_FALLBACK),
            workspace_bytes: defaults::workspace_bytes(),
            cache,
            isolate: self.isolate.unwrap_or(defaults::ISOLATE),
            models: self.folders(),
        }
    }

    /// The folders that models are in.
    fn folders(&self) -> Vec<PathBuf> {
        let folder = |text: &String| match text.parse() {
            Ok(RepositorySource::Folder(folder)) => Some(folder),
            Ok(RepositorySource::Bucket(_)) | Err(_) => None,
        };
        self.model_repository.iter().flatten().filter_map(folder).collect()
    }
}
