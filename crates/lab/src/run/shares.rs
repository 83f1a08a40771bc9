//! Worlds whose devices are GPUs that a planner divides into shares.

use crate::LabError;
use crate::run::experiment::{Experiment, ModelConfig};
use crate::run::{pipelines, resolve};
use base::{BatchLatency, Duration, LatencyProfile, ModelId, dense_batch_sizes};
use planner::shares::follow::{FollowConfig, Follower};
use planner::shares::pools::pools;
use planner::shares::{
    Arrangement, DIVISIONS, Interference, Measurements, SIZES, SLOTS, ShareTimes, SharedModel, Sharing, Slot, WHOLE,
    Way,
};
use sim::{ModelSetup, Setup, SharedGpus, Traffic};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use workload::{OpenLoop, Process, RateCurve, Stream};

/// What was measured of shares, for an experiment.
#[derive(Clone, Debug)]
pub(crate) struct SharedWorld {
    measured: Measurements,
    interference: Interference,
    /// What was planned for which mix of rates: a search asks for the same at every rate.
    planned: Arc<Mutex<HashMap<String, Arrangement>>>,
}

impl SharedWorld {
    /// What `[shares]` names; `None` where there is none.
    pub(crate) fn read(experiment: &Experiment, folder: &Path) -> Result<Option<Self>, LabError> {
        let Some(config) = &experiment.shares else { return Ok(None) };
        let read = |path: &Path| {
            let path = folder.join(path);
            std::fs::read_to_string(&path).map_err(|reason| LabError::Read { path, reason })
        };
        let pairs = config.pairs.as_ref().map(|pairs| read(&pairs.file)).transpose()?.unwrap_or_default();
        let times = read(&config.times.file)?;
        let measured = Measurements::read(&times, &pairs)
            .map_err(|error| LabError::value(format!("[shares] {}: {error}", config.times.file.display())))?;
        Ok(Some(Self { interference: measured.interference(), measured, planned: Arc::default() }))
    }

    /// What a model without a latency of its own takes on a whole GPU.
    pub(crate) fn give_times(&self, config: &mut ModelConfig) -> Result<(), LabError> {
        let row = config.latency.row.take().unwrap_or_else(|| config.name.clone());
        let times = self.times(&row)?;
        let entry = |entry: &BatchLatency| (entry.batch.to_string(), entry.median.as_millis_f64());
        config.latency.batch_ms = Some(profile(times, WHOLE, Duration::ZERO)?.batches().iter().map(entry).collect());
        config.share_row = Some(row);
        Ok(())
    }

    fn times(&self, row: &str) -> Result<&ShareTimes, LabError> {
        self.measured.models.get(row).ok_or_else(|| {
            let known: Vec<&str> = self.measured.models.keys().map(String::as_str).collect();
            LabError::value(format!("the table of [shares] has no model {row:?}: it has {}", known.join(", ")))
        })
    }

    /// The world with its devices divided for these rates.
    pub(crate) fn divide(
        &self,
        setup: &Setup,
        experiment: &Experiment,
        divider: Divider,
        rates: &[f64],
    ) -> Result<Setup, LabError> {
        let parts = pipelines::parts(&setup.models, &setup.pipelines);
        let configs = experiment.models.iter().flat_map(|config| std::iter::repeat_n(config, config.count as usize));
        let mut models = Vec::with_capacity(setup.models.len());
        for (index, config) in configs.enumerate() {
            let name = config.name.clone();
            let Some(row) = &config.share_row else {
                return Err(LabError::value(format!(
                    "model {name:?} has a latency of its own: leave it out, and its times are those of [shares]"
                )));
            };
            let objective = setup.models[index].slo.into_iter().chain(parts[index]).min();
            let objective = objective.ok_or_else(|| {
                LabError::value(format!("model {name:?} has no objective: shares are planned for one"))
            })?;
            let times = self.times(row)?.clone();
            models.push(SharedModel { name, rate: rates[index], objective: objective.as_secs_f64(), times });
        }
        let gpus = setup.devices as usize;
        let gap = setup.network.gap.as_secs_f64();
        let sharing = Sharing { models: &models, gpus, interference: &self.interference, gap };
        let all: f64 = rates.iter().sum();
        let mix: Vec<i64> = rates.iter().map(|rate| (rate / all * 1e6).round() as i64).collect();
        let key = format!("{divider:?} {gpus} {mix:?}");
        // Held while it is planned: who needs the same waits.
        let mut planned = self.planned.lock().expect("nobody panics while holding it");
        let arrangement = planned.entry(key).or_insert_with(|| divider.arrangement(&sharing)).clone();
        drop(planned);
        let mut divided = divide(setup, &sharing, arrangement)?;
        let (Some(config), Some(shared)) = (&experiment.shares, &mut divided.shared) else { return Ok(divided) };
        if let Some(every) = config.every_s.filter(|_| divider == Divider::Pools) {
            let every = resolve::seconds("shares.every_s", resolve::positive("shares.every_s", every)?)?;
            let least_gpus = (config.least_gpus as usize).clamp(1, gpus.max(1));
            let follow = FollowConfig { least_gpus, most_gpus: gpus, gap, ..FollowConfig::default() };
            let follower = Follower::new(follow, models, self.interference.clone());
            let arrangement = follower.arrangement().clone();
            *shared = Arc::new(SharedGpus { arrangement, follow: Some((follower, every)), ..(**shared).clone() });
        }
        Ok(divided)
    }
}

/// Who divides the GPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Divider {
    /// Each share has its models, by a plan of cycles.
    Planned(Way),
    /// Models have shares together.
    Pools,
    /// All GPUs are divided so, whoever asks, and everybody may run in every share.
    Fixed(&'static [u32]),
}

impl Divider {
    const POOLS: &str = "pools";

    /// By the name that a file has.
    pub fn from_name(name: &str) -> Option<Self> {
        let fixed = || Self::fixed().find(|(fixed, _)| fixed == name).map(|(_, divider)| divider);
        if name == Self::POOLS { Some(Self::Pools) } else { Way::from_name(name).map(Self::Planned).or_else(fixed) }
    }

    /// Every division that GPUs may have for good, with its name.
    fn fixed() -> impl Iterator<Item = (String, Self)> {
        let divisions = DIVISIONS.iter().filter(|division| division.len() == SLOTS);
        divisions
            .map(|&division| (division.iter().map(u32::to_string).collect::<Vec<_>>().join("/"), Self::Fixed(division)))
    }

    /// All names.
    pub fn names() -> Vec<String> {
        let planned = Way::ALL.iter().map(|way| way.name()).chain([Self::POOLS]).map(str::to_owned);
        planned.chain(Self::fixed().map(|(name, _)| name)).collect()
    }

    /// The GPUs, divided for the rates at hand.
    pub fn arrangement(self, sharing: &Sharing<'_>) -> Arrangement {
        match self {
            Self::Planned(way) => Arrangement::of(&way.plan_most(sharing).0, sharing.gpus, sharing.models.len(), None),
            Self::Pools => pools(sharing).arrangement(),
            Self::Fixed(division) => {
                let everybody: Vec<usize> = (0..sharing.models.len()).collect();
                let slot = |place: usize| Slot { percent: division[place], models: everybody.clone() };
                Arrangement { gpus: (0..sharing.gpus).map(|_| std::array::from_fn(slot)).collect() }
            }
        }
    }
}

/// A world of whole GPUs, divided as a plan says.
pub fn divide(setup: &Setup, sharing: &Sharing<'_>, arrangement: Arrangement) -> Result<Setup, LabError> {
    let mut setup = setup.clone();
    for (model, shared) in setup.models.iter_mut().zip(sharing.models) {
        let load = model.spec.profile.load();
        let profile = |&size: &u32| profile(&shared.times, size, load);
        let mut kinds = SIZES.iter().map(profile).collect::<Result<Vec<_>, _>>()?;
        model.spec.elsewhere = kinds.split_off(1);
        model.spec.profile = kinds.swap_remove(0);
    }
    setup.elastic = None;
    setup.devices = (SLOTS * sharing.gpus) as u32;
    setup.shared = Some(Arc::new(SharedGpus {
        times: sharing.models.iter().map(|model| model.times.clone()).collect(),
        interference: sharing.interference.clone(),
        arrangement,
        follow: None,
    }));
    Ok(setup)
}

/// What a model's batches take in a share, in sizes as a server has them.
pub fn profile(times: &ShareTimes, percent: u32, load: Duration) -> Result<LatencyProfile, LabError> {
    let mut longest = 0.0_f64;
    let entry = |batch: u32| {
        // A larger batch that was measured as quicker takes as long.
        longest = longest.max(times.of(percent, batch));
        let median = Duration::from_secs_f64(longest);
        BatchLatency { batch, median, p99: median, overlap: Duration::ZERO }
    };
    let batches = dense_batch_sizes(times.largest_batch()).into_iter().map(entry).collect();
    LatencyProfile::new(batches, load).map_err(|error| LabError::value(format!("times in shares: {error}")))
}

/// The part of the requests that aren't answered in time when models are asked for by chance (Poisson) at their rates:
/// with GPUs that are divided so, or whole. The first second doesn't count.
pub fn bad_part(sharing: &Sharing<'_>, arrangement: Option<Arrangement>, seconds: f64) -> Result<f64, LabError> {
    let mut models = Vec::with_capacity(sharing.models.len());
    for (index, model) in sharing.models.iter().enumerate() {
        let (id, slo) = (ModelId(index as u32), Duration::from_secs_f64(model.objective));
        models.push(ModelSetup::new(id, profile(&model.times, WHOLE, Duration::ZERO)?, Some(slo)));
    }
    let horizon = Duration::from_secs_f64(WARMUP_SECONDS + seconds);
    let mut setup = Setup::new(scheduler::Config::default(), models, sharing.gpus as u32, horizon);
    setup.warmup = Duration::from_secs_f64(WARMUP_SECONDS);
    if let Some(arrangement) = arrangement {
        setup = divide(&setup, sharing, arrangement)?;
    }
    let asked = sharing.models.iter().enumerate().filter(|(_, model)| model.rate > 0.0);
    let streams = asked.map(|(index, model)| Stream {
        model: index as u32,
        process: Process::Poisson,
        curve: RateCurve::constant(model.rate),
        share: 1.0,
        starts_at: Duration::ZERO,
    });
    let traffic =
        Traffic { open: Some(Box::new(OpenLoop::new(streams.collect::<Vec<_>>(), setup.seed))), closed: None };
    let run = sim::run(&setup, traffic).map_err(|violation| LabError::Violation {
        policy: scheduler::PolicyKind::Punctual.name().to_owned(),
        seed: setup.seed,
        violation,
    })?;
    Ok(run.meter.total().bad_fraction())
}

/// What estimates need to be those of batches side by side.
const WARMUP_SECONDS: f64 = 1.0;
