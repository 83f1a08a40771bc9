//! From `[[pipeline]]` entries as written to pipelines of a world.

use crate::LabError;
use crate::run::experiment::{Experiment, PipelineConfig, StageConfig};
use crate::run::resolve::{millis, positive};
use base::{Duration, ModelId, PipelineId};
use scheduler::{PipelineSpec, StageSpec};
use sim::{ModelSetup, PipelineSetup};

/// The pipelines of an experiment; with `timeouts` each stage has a fixed part of the objective.
pub(crate) fn setups(
    experiment: &Experiment,
    models: &[ModelSetup],
    timeouts: bool,
) -> Result<Vec<PipelineSetup>, LabError> {
    let setup = |(index, config): (usize, &PipelineConfig)| {
        positive(&format!("share of pipeline {:?}", config.name), config.share)?;
        let spec = spec(experiment, index as u32, config)?;
        let path = Path { spec: &spec, models };
        let slo = match (config.slo_ms, config.slo_of_path) {
            (Some(slo), None) => Some(millis(&format!("slo_ms of pipeline {:?}", config.name), slo)?),
            (None, Some(times)) => {
                let times = positive(&format!("slo_of_path of pipeline {:?}", config.name), times)?;
                Some(path.longest().mul_f64(times))
            }
            (None, None) => None,
            (Some(_), Some(_)) => {
                let message = format!("pipeline {:?} must have slo_ms or slo_of_path, not both", config.name);
                return Err(LabError::Value(message));
            }
        };
        let timeouts = slo.filter(|_| timeouts).map(|slo| path.timeouts(slo));
        let calls = config.stages.iter().map(|stage| stage.calls.clone()).collect();
        Ok(PipelineSetup {
            slo,
            calls,
            timeouts,
            group: experiment.groups.len() - experiment.pipelines.len() + index,
            spec,
        })
    };
    experiment.pipelines.iter().enumerate().map(setup).collect()
}

/// What a request has at each model that pipelines ask for, at least: the same parts as time-outs.
pub(crate) fn parts(models: &[ModelSetup], pipelines: &[PipelineSetup]) -> Vec<Option<Duration>> {
    let mut parts = vec![None; models.len()];
    for (pipeline, slo) in pipelines.iter().filter_map(|pipeline| Some((pipeline, pipeline.slo?))) {
        let path = Path { spec: &pipeline.spec, models };
        for (stage, part) in pipeline.spec.stages.iter().zip(path.timeouts(slo)) {
            let least = &mut parts[stage.model.index()];
            *least = Some(least.map_or(part, |least: Duration| least.min(part)));
        }
    }
    parts
}

fn spec(experiment: &Experiment, index: u32, config: &PipelineConfig) -> Result<PipelineSpec, LabError> {
    let name = &config.name;
    let called = |stage: &StageConfig| stage.name.clone().unwrap_or_else(|| stage.model.clone());
    let number = |next: &String| config.stages.iter().position(|stage| called(stage) == *next);
    let mut stages = Vec::new();
    for (index, stage) in config.stages.iter().enumerate() {
        // Entries with a count of one each are the models of the world, in this order.
        let model = experiment.models.iter().position(|model| model.name == stage.model);
        let Some(model) = model.filter(|_| experiment.models.iter().all(|model| model.count == 1)) else {
            return Err(LabError::value(format!(
                "stage {:?} of pipeline {name:?} asks for model {:?}: there must be such a [[model]], and every one with a count of 1",
                called(stage),
                stage.model
            )));
        };
        let next = stage.next.iter().map(|next| match number(next) {
            Some(number) if number > index => Ok(number as u32),
            Some(_) => Err(LabError::value(format!(
                "stage {next:?} of pipeline {name:?} follows {:?} but stands before it: write stages in their order, without a circle",
                called(stage)
            ))),
            None => Err(LabError::value(format!("pipeline {name:?} has no stage {next:?}, which follows {:?}", called(stage)))),
        });
        let calls = f64::from(stage.calls.iter().sum::<u32>()) / stage.calls.len().max(1) as f64;
        stages.push(StageSpec {
            model: ModelId(model as u32),
            next: next.collect::<Result<_, _>>()?,
            calls: positive(&format!("calls of stage {:?} of pipeline {name:?}", called(stage)), calls)?,
            varies: stage.calls.iter().any(|calls| *calls != stage.calls[0]),
            gap: millis(&format!("gap_ms of stage {:?} of pipeline {name:?}", called(stage)), stage.gap_ms)?,
        });
    }
    if stages.is_empty() {
        return Err(LabError::value(format!("pipeline {name:?} has no [[pipeline.stage]]")));
    }
    Ok(PipelineSpec { pipeline: PipelineId(index), stages })
}

/// The ways through a pipeline, with batches of one.
struct Path<'a> {
    spec: &'a PipelineSpec,
    models: &'a [ModelSetup],
}

impl Path<'_> {
    fn alone(&self, stage: &StageSpec) -> Duration {
        self.models[stage.model.index()].spec.profile.batches()[0].median
    }

    /// For each stage, the longest way to the end from its beginning.
    fn behind(&self) -> Vec<Duration> {
        let mut behind = vec![Duration::ZERO; self.spec.stages.len()];
        for (index, stage) in self.spec.stages.iter().enumerate().rev() {
            let next = stage.next.iter().map(|&next| behind[next as usize]).max().unwrap_or_default();
            behind[index] = self.alone(stage) + stage.gap + next;
        }
        behind
    }

    fn longest(&self) -> Duration {
        self.behind().into_iter().max().unwrap_or_default()
    }

    /// A fixed time for each stage: as much more than it takes alone as the whole has more than its longest way. Who
    /// isn't on the longest way may take as long as those that are.
    fn timeouts(&self, slo: Duration) -> Vec<Duration> {
        let stages = &self.spec.stages;
        let (behind, mut before) = (self.behind(), vec![Duration::ZERO; stages.len()]);
        let longest = self.longest();
        let factor = slo.as_secs_f64() / longest.as_secs_f64().max(1e-9);
        let mut timeouts = Vec::with_capacity(stages.len());
        for (index, stage) in stages.iter().enumerate() {
            let next = stage.next.iter().map(|&next| behind[next as usize]).max().unwrap_or_default();
            let room = longest - before[index] - next - stage.gap;
            timeouts.push(room.mul_f64(factor));
            let ends = before[index] + self.alone(stage) + stage.gap;
            for &next in &stage.next {
                before[next as usize] = before[next as usize].max(ends);
            }
        }
        timeouts
    }
}
