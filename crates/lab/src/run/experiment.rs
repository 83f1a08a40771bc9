//! An experiment as a user writes it: a TOML file.
//!
//! Keys may be added, not renamed. Times and sizes carry their unit in the key. `docs/experiments` shows files that
//! work.

use crate::show::claim::Claim;
use crate::show::compare::Compare;
use crate::show::plot::PlotConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use workload::Popularity;

/// A whole file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// What it is about, for the page of experiments.
    #[serde(default)]
    pub about: About,
    /// The models.
    #[serde(rename = "model")]
    pub models: Vec<ModelConfig>,
    /// The pipelines. Where there are any, the workload's rate is theirs, and models have only a rate of their own.
    #[serde(default, rename = "pipeline")]
    pub pipelines: Vec<PipelineConfig>,
    /// The devices.
    pub devices: DevicesConfig,
    /// Who asks how often.
    #[serde(default)]
    pub workload: WorkloadConfig,
    /// What messages take.
    #[serde(default)]
    pub network: NetworkConfig,
    /// How executions differ from their profile.
    #[serde(default)]
    pub noise: NoiseConfig,
    /// The scheduler's settings.
    #[serde(default)]
    pub scheduler: SchedulerConfig,
    /// What goes wrong.
    #[serde(default)]
    pub faults: FaultsConfig,
    /// Settings of single policies: any key of `[scheduler]`, for this one alone. With `kind`, the name is a label of
    /// the file's own, so that one policy can be run with several settings.
    #[serde(default)]
    pub policy: BTreeMap<String, toml::Table>,
    /// A cluster that follows the advice of the planner.
    pub elastic: Option<ElasticConfig>,
    /// Devices are GPUs that can be divided.
    pub shares: Option<SharesConfig>,
    /// What is run.
    pub run: RunConfig,
    /// Keys with lists of values; the experiment is run for every combination. A key is
    /// written with its section (`"devices.count"`), or alone where the file has it in one section only.
    #[serde(default)]
    pub sweep: toml::Table,
    /// Several keys that change together, under a name: `{ name, set = { KEY = VALUE } }`.
    #[serde(default, rename = "case")]
    pub cases: Vec<toml::Table>,
    /// What is drawn.
    #[serde(default, rename = "plot")]
    pub plots: Vec<PlotConfig>,
    /// What is worked out from the results of several policies.
    #[serde(default, rename = "compare")]
    pub compares: Vec<Compare>,
    /// What a paper says, to be compared.
    #[serde(default, rename = "claim")]
    pub claims: Vec<Claim>,
    /// The names under which models are counted together, once the tables are read.
    #[serde(skip)]
    pub groups: Vec<String>,
}

/// `[about]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// A heading.
    pub title: Option<String>,
    /// A few sentences in Markdown.
    pub text: Option<String>,
}

/// `[[model]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Its name; with `count` or `table`, the name of the group.
    pub name: String,
    /// What its batches take.
    #[serde(default)]
    pub latency: LatencyConfig,
    /// A file of comma-separated values with the columns `model`, `alpha_ms`, `beta_ms` and `slo_ms`, or `model`,
    /// `b1_ms` and so on: one model for each row, instead of `latency`. `slo_ms`, `slo_of_l4` and `weights_mb` of this
    /// entry go before the file's.
    pub table: Option<PathBuf>,
    /// Of the table, these rows only.
    pub table_rows: Option<Vec<String>>,
    /// Of the table, models with `beta / alpha` above this.
    pub min_beta_over_alpha: Option<f64>,
    /// Of the table, models with `beta / alpha` below this.
    pub max_beta_over_alpha: Option<f64>,
    /// What its requests have; absent for batch work.
    pub slo_ms: Option<f64>,
    /// The objective as a multiple of what a batch of 4 takes, instead of `slo_ms`.
    pub slo_of_l4: Option<f64>,
    /// The objective as a multiple of what a batch of 8 takes, instead of `slo_ms`.
    pub slo_of_l8: Option<f64>,
    /// The objective as a multiple of what 99 of 100 requests take alone at most, instead of `slo_ms`.
    pub slo_of_p99: Option<f64>,
    /// What requests take alone, where that depends on the input. `latency` is then for the average input.
    pub times: Option<TimesConfig>,
    /// That many identical models.
    #[serde(default = "one")]
    pub count: u32,
    /// Its weights, where loading matters.
    pub weights_mb: Option<f64>,
    /// What loading takes, if not `weights_mb` over the devices' `load_gb_per_s`.
    pub load_ms: Option<f64>,
    /// The sizes that it can run; absent: those of the table, or, for a line, what the server would prepare.
    pub batch_sizes: Option<BatchSizes>,
    /// The largest size where `latency` is a line; the server's 16 if absent.
    pub max_batch: Option<u32>,
    /// Rows of each request.
    #[serde(default = "one")]
    pub rows: u32,
    /// How many times the device time of other models each of them may have when devices are short.
    pub fair_weight: Option<f64>,
    /// The part of all device time that each of them gets in any case.
    pub fair_floor: Option<f64>,
    /// A rate of its own, for all `count` together, instead of a share of the workload's.
    pub rate_rps: Option<f64>,
    /// `[second, rate]` pairs: the rate from each second on.
    pub rate_steps: Option<Vec<(f64, f64)>>,
    /// A rate that rises and falls, for all `count` and all rows of a table together.
    pub rate_wave: Option<RateWave>,
    /// Models become active one after the other, and share the rate.
    pub activation: Option<Activation>,
    /// Arrivals of its own.
    pub arrivals: Option<ArrivalsConfig>,
    /// Where it is counted, once the tables are read.
    #[serde(skip)]
    pub group: usize,
    /// Which of the rows of its table it is, and of how many.
    #[serde(skip)]
    pub row: (usize, usize),
    /// Under which name it is in the table of `[shares]`, once that is read.
    #[serde(skip)]
    pub share_row: Option<String>,
}

/// `[[pipeline]]`: several models that answer as one.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PipelineConfig {
    /// Its name.
    pub name: String,
    /// What its requests have from end to end; absent for batch work.
    pub slo_ms: Option<f64>,
    /// The objective as a multiple of the longest way through it with batches of one, instead of `slo_ms`.
    pub slo_of_path: Option<f64>,
    /// Its part of the workload's rate, relative to the other pipelines'.
    #[serde(default = "unit")]
    pub share: f64,
    /// Its stages, each before those that follow it.
    #[serde(rename = "stage")]
    pub stages: Vec<StageConfig>,
}

/// `[[pipeline.stage]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageConfig {
    /// Its name; the model's if absent.
    pub name: Option<String>,
    /// Which model: the name of a `[[model]]` with a `count` of one.
    pub model: String,
    /// The names of the stages that begin when it is done.
    #[serde(default)]
    pub next: Vec<String>,
    /// How many calls it makes: one of these, equally often.
    #[serde(default = "one_call")]
    pub calls: Vec<u32>,
    /// What passes between its end and the beginning of the next ones, or the answer.
    #[serde(default)]
    pub gap_ms: f64,
}

/// Which batch sizes a model can run.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum BatchSizes {
    /// These.
    Listed(Vec<u32>),
    /// Those that a word says.
    Named(NamedSizes),
}

/// Batch sizes by a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NamedSizes {
    /// All from 1 to `max_batch` that fit into the objective; of a table, all that it has.
    All,
}

/// A rate that rises and falls as a sine.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RateWave {
    /// The rate on average.
    pub mean_rps: f64,
    /// How far it goes up and down, as a part of that, 0 to 1.
    pub swing: f64,
    /// From one high to the next.
    pub period_s: f64,
    /// Where the first low is.
    #[serde(default)]
    pub low_s: f64,
    /// The rows of a table come after each other: the last one's low is so much of a period later than the first one's.
    #[serde(default)]
    pub spread: f64,
}

/// How the models of a group become active.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Activation {
    /// When the first does.
    pub first_s: f64,
    /// How long after each the next does.
    pub every_s: f64,
}

/// A line `alpha_ms * b + beta_ms`, a table, or a row of a file of tables.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LatencyConfig {
    /// What it is called in a sweep over latencies; nothing else depends on it.
    pub name: Option<String>,
    /// The line's slope.
    pub alpha_ms: Option<f64>,
    /// The line's start.
    pub beta_ms: Option<f64>,
    /// With `times`, instead of a line: what each row but the first adds, as a part of what one request takes.
    pub row_part: Option<f64>,
    /// With `times`: what a batch takes whatever its inputs are; the rest is in proportion to its longest.
    pub fixed_ms: Option<f64>,
    /// Batch sizes with their times.
    pub batch_ms: Option<BTreeMap<String, f64>>,
    /// The 99th percentiles of these times that the profile has, where they are above the times: what a scheduler plans
    /// with before it has measured anything itself.
    pub batch_p99_ms: Option<BTreeMap<String, f64>>,
    /// A file of comma-separated values with the columns `model` and `b1_ms`, `b2_ms` and so on, and perhaps
    /// `b1_p99_ms` and so on, as `punctual profile` writes it.
    pub file: Option<PathBuf>,
    /// The model's name in that file.
    pub row: Option<String>,
}

impl LatencyConfig {
    /// Whether anything is said about latency.
    pub(crate) fn is_given(&self) -> bool {
        self.alpha_ms.is_some() || self.beta_ms.is_some() || self.batch_ms.is_some() || self.file.is_some()
    }
}

/// How what requests take alone is distributed: modes, a mean with a 99th percentile, or recorded requests.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimesConfig {
    /// One application for each, whose requests are normally distributed around it.
    pub modes_ms: Option<Vec<f64>>,
    /// The deviation of all modes, or of each.
    pub sigma_ms: Option<Vec<f64>>,
    /// How often each mode is asked for, relative to the others; equally if absent.
    pub weights: Option<Vec<f64>>,
    /// The mean of a lognormal distribution,
    pub mean_ms: Option<f64>,
    /// and its 99th percentile.
    pub p99_ms: Option<f64>,
    /// A file of comma-separated values, one line for each request, in the order in which they are sent.
    pub file: Option<PathBuf>,
    /// What each unit of these columns adds to what a request takes,
    pub columns_ms: Option<BTreeMap<String, f64>>,
    /// beside this.
    pub base_ms: Option<f64>,
    /// The column of the file that is the size hint.
    pub hint_column: Option<String>,
    /// Requests have size hints; the deviation of the logarithm of what they promise.
    pub hint_sigma: Option<f64>,
}

/// `[devices]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DevicesConfig {
    /// How many; the first guess of a search for devices.
    #[serde(default = "one")]
    pub count: u32,
    /// So many for each model instead, rounded, at least one in all.
    pub per_model: Option<f64>,
    /// Memory for weights of each; absent: everything fits.
    pub memory_mb: Option<f64>,
    /// How fast weights are copied; absent: at once.
    pub load_gb_per_s: Option<f64>,
    /// The size of a page.
    #[serde(default = "sixteen")]
    pub page_mb: f64,
}

/// `[workload]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkloadConfig {
    /// How the gaps between requests are distributed.
    #[serde(default)]
    pub arrivals: ArrivalsConfig,
    /// How requests spread over the models.
    #[serde(default)]
    pub popularity: Popularity,
    /// All models together; absent where it is searched for, recorded, or a closed loop's.
    pub rate_rps: Option<f64>,
    /// The rate instead, as a multiple of what the devices could answer if every request ran alone.
    pub load: Option<f64>,
}

/// How requests arrive.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "process", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalsConfig {
    /// Equal gaps.
    Uniform {},
    /// Exponential gaps.
    Poisson {},
    /// Gamma gaps.
    Gamma {
        /// 1 is Poisson, below is burstier.
        #[serde(default = "unit")]
        shape: f64,
    },
    /// Clients that wait for their answer before they ask again.
    Closed {
        /// For each model.
        clients: u32,
        /// Between an answer and the next request.
        #[serde(default)]
        think_ms: f64,
        /// At least so long after a refusal; absent: a message's way there and back, or 1 ms.
        backoff_ms: Option<f64>,
    },
    /// Request `i` of each model, counted from 1, comes at `(i - 1) * every_ms`, except those that are left out.
    Regular {
        /// Between one request and the next.
        every_ms: f64,
        /// The numbers of those that don't come.
        #[serde(default)]
        skip: Vec<u64>,
    },
    /// Recorded arrivals: a file with a column `TIMESTAMP`, or one of the Azure Functions trace of 2019.
    Trace {
        /// The file.
        file: PathBuf,
    },
    /// A made-up day with the character of the Azure Functions trace.
    StandIn {
        /// How many functions; function `i` asks for model `i` modulo the number of models.
        functions: u32,
    },
}

impl Default for ArrivalsConfig {
    fn default() -> Self {
        Self::Poisson {}
    }
}

/// `[network]`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Every message, one way.
    pub control_us: f64,
    /// Fetching one request's input.
    pub data_us_per_request: f64,
    /// How much later the server hears of a batch's end, and decides.
    pub gap_us: f64,
}

/// `[noise]`
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NoiseConfig {
    /// Deviation of the logarithm of an execution's time.
    pub exec_sigma: f64,
    /// Deviation of the logarithm of a load's time.
    pub load_sigma: f64,
    /// How often an action takes `spike_ms` longer.
    pub spike_probability: f64,
    /// How much longer.
    pub spike_ms: f64,
}

/// `[scheduler]`; what is absent is as in the server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SchedulerConfig {
    /// How much work each executor is given ahead.
    pub schedule_ahead_ms: Option<f64>,
    /// How many past measurements an estimate looks at.
    pub profile_window: Option<usize>,
    /// Which quantile of them it takes.
    pub profile_quantile: Option<f64>,
    /// How many requests may be queued for one model.
    pub max_queued_per_model: Option<usize>,
    /// Whether a request is refused at once when there will be no time for it.
    pub predict_admission: Option<bool>,
    /// How `deferred` gathers a batch.
    pub gather: Option<GatherConfig>,
    /// How long `timeout` lets a batch grow, as a part of the objective.
    pub timeout_of_slo: Option<f64>,
    /// How long `clipper` lets a batch wait for company, in milliseconds.
    pub batch_delay_ms: Option<f64>,
    /// Whether `punctual` leaves devices idle in good times.
    pub thrift: Option<bool>,
    /// Whether `punctual` learns its rule by rehearsal.
    pub rehearse: Option<bool>,
    /// The rate of the delay that `orloj` anticipates, per millisecond.
    pub anticipated_delay_per_ms: Option<f64>,
    /// Whether `punctual` looks at size hints.
    pub size_hints: Option<bool>,
    /// The part of a device's time that requests without a deadline get at least where they wait.
    pub batch_work_share: Option<f64>,
    /// How what is left of a pipeline's time is split over its stages.
    pub split: Option<SplitConfig>,
}

/// How a pipeline's time is split over its stages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SplitConfig {
    /// The same for each.
    Equal,
    /// In proportion to what calls take alone.
    Profile,
    /// By what larger batches are worth.
    Load,
    /// Not by the scheduler, which hears of no pipeline: each stage is sent with a fixed time, in proportion to what a
    /// call takes alone.
    Timeouts,
}

/// Which requests make a batch when not all are in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatherConfig {
    /// From the first request on, as many as the first one has time for.
    HeadFirst,
    /// First requests are given up where the batch would be smaller than the target.
    KeepTarget,
}

/// `[faults]`; they end with the run's `seconds`, then everything must finish.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultsConfig {
    /// How long a device lives on average; 0 for ever.
    pub device_lifetime_s: f64,
    /// How long a lost device stays away.
    pub device_downtime_s: f64,
    /// How long it takes to notice a loss.
    pub detection_ms: f64,
    /// How often an action never arrives.
    pub lost_action_probability: f64,
    /// How often a report comes late.
    pub late_report_probability: f64,
    /// At most how late.
    pub late_report_ms: f64,
    /// How often an execution takes `misprediction_factor` times as long.
    pub misprediction_probability: f64,
    /// How much longer.
    pub misprediction_factor: f64,
    /// How often a client goes away before its deadline.
    pub cancel_probability: f64,
}

/// `[run]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunConfig {
    /// The policies to compare; the server's if absent.
    #[serde(default = "server_policy")]
    pub policies: Vec<String>,
    /// How long requests are sent.
    pub seconds: f64,
    /// Shorter where more requests than this would be sent in a run, but never shorter than 5 s.
    pub max_requests: Option<f64>,
    /// One run for each; results are their mean.
    #[serde(default = "first_seed")]
    pub seeds: Vec<u64>,
    /// What is searched for, if anything.
    pub search: Option<Search>,
    /// With `search = "goodput"`: run at so many times the rate that the search found.
    pub times_peak: Option<f64>,
    /// The largest part of bad requests that a search accepts.
    #[serde(default = "one_percent")]
    pub max_bad: f64,
    /// Whose part that is.
    #[serde(default)]
    pub max_bad_of: MaxBadOf,
    /// In a search, runs are as long as it takes for so many bad requests of all seeds together where `max_bad` are
    /// bad: 5 s at least, `max_seconds` at most.
    pub bad_events: Option<f64>,
    /// The longest run with `bad_events`; `seconds` if absent.
    pub max_seconds: Option<f64>,
    /// A search also measures the part of bad requests at so many times the highest rate that any policy of the file
    /// has found.
    #[serde(default = "around_the_peak")]
    pub beside_peak: Vec<f64>,
    /// The relative precision of a search.
    #[serde(default = "half_percent")]
    pub tolerance: f64,
    /// Requests that are sent before this aren't counted.
    #[serde(default)]
    pub warmup_seconds: f64,
    /// The step of the time series; absent: none.
    pub series_seconds: Option<f64>,
    /// Only those points of the sweep whose key has one of these values.
    #[serde(default)]
    pub only: BTreeMap<String, Vec<toml::Value>>,
    /// Only so many points of the sweep, drawn by chance, always the same ones.
    pub sample: Option<usize>,
    /// More columns of the table, by the names of their figures.
    #[serde(default)]
    pub columns: Vec<String>,
    /// Too much to be run each time: results are kept in a file beside the page, with these figures.
    #[serde(default)]
    pub kept: Vec<String>,
    /// Also gives the first batches of each run, up to so many.
    #[serde(default)]
    pub trace_batches: usize,
}

/// `[shares]`: devices are GPUs, and policies with a planner (`shares = "ours"`) divide them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharesConfig {
    /// What batches take in shares.
    pub times: NamedFile,
    /// What they take side by side; absent: as long as alone.
    pub pairs: Option<NamedFile>,
    /// How often `pools` look at what came, and divide GPUs otherwise if that is worth it; absent: never.
    pub every_s: Option<f64>,
    /// With `every_s`: GPUs that are used at least. `devices.count` are there.
    #[serde(default = "one")]
    pub least_gpus: u32,
}

/// `{ file = "..." }`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedFile {
    /// Where it is.
    pub file: PathBuf,
}

/// `[elastic]`: devices come and go as the planner advises. `devices.count` of them are there at first.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ElasticConfig {
    /// At least so many.
    #[serde(default = "one")]
    pub min_devices: u32,
    /// At most so many.
    pub max_devices: u32,
    /// How often the advice is asked for.
    pub every_s: f64,
    /// How long after it a device that was asked for is there.
    #[serde(default)]
    pub start_s: f64,
}

/// Whose requests a search looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaxBadOf {
    /// Those of each single model.
    #[default]
    Each,
    /// Those of all models together, as in most papers.
    All,
}

/// What a search looks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Search {
    /// The highest rate with at most `max_bad`.
    Goodput,
    /// The fewest devices that carry `workload.rate_rps` with at most `max_bad`.
    Devices,
}

fn around_the_peak() -> Vec<f64> {
    vec![0.6, 0.8, 0.9, 0.95, 1.05]
}

fn server_policy() -> Vec<String> {
    vec![scheduler::Config::default().policy.name().into()]
}

fn one_call() -> Vec<u32> {
    vec![1]
}

fn one() -> u32 {
    1
}

fn unit() -> f64 {
    1.0
}

fn sixteen() -> f64 {
    16.0
}

fn first_seed() -> Vec<u64> {
    vec![1]
}

fn one_percent() -> f64 {
    0.01
}

fn half_percent() -> f64 {
    0.005
}
