//! From an experiment as written to a world that can run: defaults filled in, values checked, files read.

use crate::LabError;
use crate::run::experiment::{BatchSizes, Experiment, FaultsConfig, LatencyConfig, ModelConfig, NamedSizes};
use crate::run::variant::Variant;
use crate::run::{latency_files, pipelines, times};
use base::{BatchLatency, Duration, LatencyProfile, ModelId};
use scheduler::{Fairness, ModelSpec};
use sim::{Elastic, Faults, ModelSetup, Network, Noise, Setup, Variety};
use std::collections::BTreeMap;
use std::path::Path;

/// More models than this are a mistake in the file.
const MAX_MODELS: u64 = 1_000_000;

/// The world of an experiment; `folder` is where its relative paths start.
pub(crate) fn setup(experiment: &Experiment, folder: &Path, variant: &Variant, seed: u64) -> Result<Setup, LabError> {
    check_run(experiment)?;
    let devices = &experiment.devices;
    positive("devices.count", f64::from(devices.count))?;
    positive("devices.page_mb", devices.page_mb)?;
    let models = models(experiment, folder)?;
    let pipelines = pipelines::setups(experiment, &models, variant.has_timeouts())?;
    let everything: u64 = models.iter().map(|model| u64::from(model.spec.pages)).sum();
    let pages = match devices.memory_mb {
        Some(memory) => (positive("devices.memory_mb", memory)? / devices.page_mb) as u32,
        None => u32::try_from(everything).unwrap_or(u32::MAX),
    };
    if let Some(large) = models.iter().find(|model| model.spec.pages > pages) {
        let (name, needs) = (&experiment.groups[large.group], large.spec.pages);
        let message = format!("model {name:?} needs {needs} pages, a device has {pages}: raise devices.memory_mb");
        return Err(LabError::Value(message));
    }
    Ok(Setup {
        scheduler: variant.scheduler_config(experiment)?,
        models,
        pipelines,
        groups: experiment.groups.clone(),
        devices: devices.count,
        pages,
        network: network(experiment)?,
        noise: noise(experiment)?,
        faults: faults(&experiment.faults)?,
        variety: Variety::default(),
        warmup: seconds("run.warmup_seconds", experiment.run.warmup_seconds)?,
        horizon: seconds("run.seconds", experiment.run.seconds)?,
        series_step: experiment.run.series_seconds.map(|step| seconds("run.series_seconds", step)).transpose()?,
        max_requests: scheduler::Config::DEFAULT_MAX_REQUESTS,
        give_up_after_bad: None,
        checked: true,
        strict: false,
        trace_batches: experiment.run.trace_batches,
        elastic: elastic(experiment)?,
        shared: None,
        seed,
    })
}

pub(crate) fn network(experiment: &Experiment) -> Result<Network, LabError> {
    Ok(Network {
        control: micros("network.control_us", experiment.network.control_us)?,
        data_per_request: micros("network.data_us_per_request", experiment.network.data_us_per_request)?,
        gap: micros("network.gap_us", experiment.network.gap_us)?,
        ..Network::default()
    })
}

fn elastic(experiment: &Experiment) -> Result<Option<Elastic>, LabError> {
    let Some(config) = experiment.elastic else { return Ok(None) };
    let first = experiment.devices.count;
    if config.min_devices == 0 || config.min_devices > first || first > config.max_devices {
        return Err(LabError::value(format!(
            "elastic.min_devices is {}, devices.count {first}, elastic.max_devices {}: give at least 1, in this order",
            config.min_devices, config.max_devices
        )));
    }
    if faults(&experiment.faults)?.any() {
        return Err(LabError::value("devices that come and go can't also die: leave out [elastic] or [faults]"));
    }
    Ok(Some(Elastic {
        min_devices: config.min_devices,
        max_devices: config.max_devices,
        every: seconds("elastic.every_s", positive("elastic.every_s", config.every_s)?)?,
        start: seconds("elastic.start_s", config.start_s)?,
    }))
}

fn check_run(experiment: &Experiment) -> Result<(), LabError> {
    let run = &experiment.run;
    positive("run.seconds", run.seconds)?;
    positive("run.tolerance", run.tolerance)?;
    run.max_requests.map(|most| positive("run.max_requests", most)).transpose()?;
    probability("run.max_bad", run.max_bad)?;
    run.bad_events.map(|events| positive("run.bad_events", events)).transpose()?;
    if run.max_seconds.is_some_and(|most| most <= run.warmup_seconds || run.bad_events.is_none()) {
        return Err(LabError::value("run.max_seconds needs run.bad_events, and must be more than run.warmup_seconds"));
    }
    run.beside_peak.iter().try_for_each(|&part| positive("run.beside_peak", part).map(drop))?;
    if run.warmup_seconds >= run.seconds {
        return Err(LabError::value("run.warmup_seconds leaves nothing to measure: make it less than run.seconds"));
    }
    if let Some(step) = run.series_seconds {
        positive("run.series_seconds", step)?;
        if run.seconds / step > 1e6 {
            return Err(LabError::value("run.series_seconds gives more than a million points: make it longer"));
        }
    }
    if run.seeds.is_empty() || run.policies.is_empty() || experiment.models.is_empty() {
        return Err(LabError::value("run.seeds, run.policies and [[model]] each need at least one entry"));
    }
    let mut names: Vec<&str> = experiment.groups.iter().map(String::as_str).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            Err(LabError::value(format!("two [[model]] entries are named {:?}: use `count`, or another name", pair[0])))
        }
        None => Ok(()),
    }
}

fn models(experiment: &Experiment, folder: &Path) -> Result<Vec<ModelSetup>, LabError> {
    let count: u64 = experiment.models.iter().map(|model| u64::from(model.count)).sum();
    if count > MAX_MODELS {
        return Err(LabError::value(format!("{count} models are more than {MAX_MODELS}: lower `count`")));
    }
    let mut models = Vec::with_capacity(count as usize);
    for config in &experiment.models {
        let name = &config.name;
        let slo = config.slo_ms.map(|slo| millis(&format!("slo_ms of model {name:?}"), slo)).transpose()?;
        if slo == Some(Duration::ZERO) {
            return Err(LabError::value(format!("slo_ms of model {name:?} is 0: leave it out for batch work")));
        }
        let profile = profile(config, experiment, folder)?;
        let inputs = config.times.as_ref().map(|times| times::inputs(times, name, folder)).transpose()?;
        if config.rows == 0 || config.rows > profile.max_batch() {
            let (rows, largest) = (config.rows, profile.max_batch());
            return Err(LabError::value(format!(
                "rows of model {name:?} is {rows}: give 1 to {largest}, its largest batch"
            )));
        }
        let pages = match config.weights_mb {
            Some(weights) => (not_negative(&format!("weights_mb of model {name:?}"), weights)?
                / experiment.devices.page_mb)
                .ceil() as u32,
            None => 0,
        };
        let fixed = millis(&format!("latency.fixed_ms of model {name:?}"), config.latency.fixed_ms.unwrap_or(0.0))?;
        let fairness = fairness(name, config)?;
        for _ in 0..config.count {
            let model = ModelId(models.len() as u32);
            let (profile, elsewhere) = (profile.clone(), Vec::new());
            let spec = ModelSpec { model, pages, profile, elsewhere, objective: slo, fixed, fairness };
            models.push(ModelSetup { spec, slo, rows: config.rows, group: config.group, inputs: inputs.clone() });
        }
    }
    Ok(models)
}

fn profile(config: &ModelConfig, experiment: &Experiment, folder: &Path) -> Result<LatencyProfile, LabError> {
    let name = &config.name;
    let load = match (config.load_ms, config.weights_mb, experiment.devices.load_gb_per_s) {
        (Some(load), ..) => millis(&format!("load_ms of model {name:?}"), load)?,
        // Megabytes over gigabytes per second are milliseconds.
        (None, Some(weights), Some(speed)) => {
            Duration::from_millis_f64(weights / positive("devices.load_gb_per_s", speed)?)
        }
        (None, ..) => Duration::ZERO,
    };
    let mut table = latency_table(config, folder)?;
    if let Some(BatchSizes::Listed(sizes)) = &config.batch_sizes {
        table.retain(|(size, _)| sizes.contains(size));
    }
    let quantiles = quantile_table(config, folder)?;
    let transfers = transfer_table(config, folder)?;
    for &(size, time) in table.iter().chain(&quantiles) {
        positive(&format!("the latency of model {name:?} at batch size {size}"), time)?;
    }
    let entry = |&(batch, time): &(u32, f64)| {
        let of = |table: &[(u32, f64)]| table.iter().find(|&&(size, _)| size == batch).map(|&(_, time)| time);
        let [median, p99, overlap] = [time, of(&quantiles).unwrap_or(time), of(&transfers).unwrap_or(0.0)];
        let [median, p99, overlap] = [median, p99, overlap].map(Duration::from_millis_f64);
        BatchLatency { batch, median, p99, overlap }
    };
    LatencyProfile::new(table.iter().map(entry).collect(), load)
        .map_err(|error| LabError::value(format!("the latency of model {name:?}: {error}")))
}

/// The batch sizes of a model with their times in milliseconds.
pub(crate) fn latency_table(config: &ModelConfig, folder: &Path) -> Result<Vec<(u32, f64)>, LabError> {
    let name = &config.name;
    match &config.latency {
        LatencyConfig { alpha_ms: Some(alpha), beta_ms: Some(beta), batch_ms: None, file: None, row: None, .. } => {
            line(config, *alpha, *beta)
        }
        LatencyConfig { alpha_ms: None, beta_ms: None, batch_ms: Some(table), file: None, row: None, .. } => {
            by_size(table, "batch_ms", name)
        }
        LatencyConfig { alpha_ms: None, beta_ms: None, batch_ms: None, file: Some(file), row, .. } => {
            latency_files::batch_times(&folder.join(file), row.as_deref().unwrap_or(name), "_ms")
        }
        _ => Err(LabError::value(format!(
            "the latency of model {name:?} must be a line {{ alpha_ms, beta_ms }}, a table {{ batch_ms }}, or {{ file, row }}"
        ))),
    }
}

/// The 99th percentiles that are given, by batch size.
fn quantile_table(config: &ModelConfig, folder: &Path) -> Result<Vec<(u32, f64)>, LabError> {
    let name = &config.name;
    match &config.latency {
        LatencyConfig { batch_p99_ms: Some(table), .. } => by_size(table, "batch_p99_ms", name),
        LatencyConfig { file: Some(file), row, .. } => {
            latency_files::batch_times(&folder.join(file), row.as_deref().unwrap_or(name), "_p99_ms")
        }
        _ => Ok(Vec::new()),
    }
}

/// What of batches may run beside others, by batch size, where a file says so.
fn transfer_table(config: &ModelConfig, folder: &Path) -> Result<Vec<(u32, f64)>, LabError> {
    let LatencyConfig { file: Some(file), row, .. } = &config.latency else { return Ok(Vec::new()) };
    latency_files::batch_times(&folder.join(file), row.as_deref().unwrap_or(&config.name), "_beside_ms")
}

fn by_size(table: &BTreeMap<String, f64>, key: &str, name: &str) -> Result<Vec<(u32, f64)>, LabError> {
    let entry = |(size, &time): (&String, &f64)| match size.parse::<u32>() {
        Ok(size) => Ok((size, time)),
        Err(_) => Err(LabError::value(format!("{size:?} in {key} of model {name:?} is not a batch size"))),
    };
    table.iter().map(entry).collect()
}

/// A line at the sizes asked for, at all that can make the objective, or at those that the server would prepare.
fn line(config: &ModelConfig, alpha: f64, beta: f64) -> Result<Vec<(u32, f64)>, LabError> {
    let at = |size: u32| (size, alpha * f64::from(size) + beta);
    let largest = config.max_batch.unwrap_or(base::USUAL_MAX_BATCH);
    let sizes = match &config.batch_sizes {
        Some(BatchSizes::Listed(sizes)) => sizes.clone(),
        Some(BatchSizes::Named(NamedSizes::All)) => {
            let useful = |entry: &(u32, f64)| config.slo_ms.is_none_or(|slo| entry.1 <= slo);
            // A model that can't make its objective at all keeps its smallest batch, and every request is refused.
            let fits = (1..=largest).map(at).take_while(useful).count().max(1) as u32;
            (1..=fits.max(config.rows)).collect()
        }
        None => base::dense_batch_sizes(largest.max(1)),
    };
    Ok(sizes.into_iter().map(at).collect())
}

fn noise(experiment: &Experiment) -> Result<Noise, LabError> {
    let noise = &experiment.noise;
    Ok(Noise {
        exec_sigma: not_negative("noise.exec_sigma", noise.exec_sigma)?,
        load_sigma: not_negative("noise.load_sigma", noise.load_sigma)?,
        spike_probability: probability("noise.spike_probability", noise.spike_probability)?,
        spike: millis("noise.spike_ms", noise.spike_ms)?,
    })
}

fn faults(config: &FaultsConfig) -> Result<Faults, LabError> {
    Ok(Faults {
        device_lifetime: seconds("faults.device_lifetime_s", config.device_lifetime_s)?,
        device_downtime: seconds("faults.device_downtime_s", config.device_downtime_s)?,
        detection: millis("faults.detection_ms", config.detection_ms)?,
        lost_action_probability: probability("faults.lost_action_probability", config.lost_action_probability)?,
        late_report_probability: probability("faults.late_report_probability", config.late_report_probability)?,
        late_report: millis("faults.late_report_ms", config.late_report_ms)?,
        misprediction_probability: probability("faults.misprediction_probability", config.misprediction_probability)?,
        misprediction_factor: not_negative("faults.misprediction_factor", config.misprediction_factor)?,
        cancel_probability: probability("faults.cancel_probability", config.cancel_probability)?,
        ..Faults::default()
    })
}

pub(crate) fn positive(key: &str, value: f64) -> Result<f64, LabError> {
    if value > 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(LabError::value(format!("{key} is {value}: give a number above 0")))
    }
}

pub(crate) fn not_negative(key: &str, value: f64) -> Result<f64, LabError> {
    if value >= 0.0 && value.is_finite() {
        Ok(value)
    } else {
        Err(LabError::value(format!("{key} is {value}: give 0 or more")))
    }
}

fn fairness(name: &str, config: &ModelConfig) -> Result<Fairness, LabError> {
    let usual = Fairness::default();
    let weight = config.fair_weight.unwrap_or(usual.weight);
    if !(weight > 0.0 && weight.is_finite()) {
        return Err(LabError::value(format!("fair_weight of model {name:?} is {weight}: give a number above 0")));
    }
    let floor = probability(&format!("fair_floor of model {name:?}"), config.fair_floor.unwrap_or(usual.floor))?;
    Ok(Fairness { weight, floor })
}

fn probability(key: &str, value: f64) -> Result<f64, LabError> {
    if (0.0..=1.0).contains(&value) {
        Ok(value)
    } else {
        Err(LabError::value(format!("{key} is {value}: give 0 to 1")))
    }
}

fn micros(key: &str, value: f64) -> Result<Duration, LabError> {
    Ok(Duration::from_millis_f64(not_negative(key, value)? / 1e3))
}

pub(crate) fn millis(key: &str, value: f64) -> Result<Duration, LabError> {
    Ok(Duration::from_millis_f64(not_negative(key, value)?))
}

pub(crate) fn seconds(key: &str, value: f64) -> Result<Duration, LabError> {
    Ok(Duration::from_secs_f64(not_negative(key, value)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(keys: &str) -> Vec<u32> {
        let text = format!("name = \"a\"\nlatency = {{ alpha_ms = 1, beta_ms = 5 }}\nslo_ms = 12\n{keys}");
        let config: ModelConfig = toml::from_str(&text).unwrap();
        latency_table(&config, Path::new("")).unwrap().into_iter().map(|(size, _)| size).collect()
    }

    #[test]
    fn a_line_has_the_sizes_that_the_server_would_have() {
        assert_eq!(sizes(""), (1..=16).collect::<Vec<_>>());
        assert_eq!(sizes("max_batch = 19"), (1..=16).chain([18, 19]).collect::<Vec<_>>());
        assert_eq!(sizes("batch_sizes = \"all\""), [1, 2, 3, 4, 5, 6, 7], "12 ms are enough for 7");
        assert_eq!(sizes("batch_sizes = [3, 5]"), [3, 5]);
    }
}
