//! The policies of an experiment: a policy of the scheduler with settings, under a name.

use crate::Error;
use crate::experiment::{Experiment, GatherConfig, SchedulerConfig};
use crate::resolve::{self, millis};
use scheduler::{Delay, Gather, PolicyKind};
use toml::{Table, Value};

/// One entry of `run.policies`.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// Its name in the file and in the results.
    pub(crate) label: String,
    pub(crate) kind: PolicyKind,
    /// Settings of its own, which go before `[scheduler]`.
    own: Table,
    settings: SchedulerConfig,
}

impl Variant {
    /// The variant of that name in an experiment; `scheduler` is the experiment's `[scheduler]` as written.
    pub(crate) fn new(label: &str, experiment: &Experiment, scheduler: Option<&Value>) -> Result<Self, Error> {
        let mut own = experiment.policy.get(label).cloned().unwrap_or_default();
        let kind = match own.remove("kind") {
            None => label.to_owned(),
            Some(Value::String(kind)) => kind,
            Some(other) => return Err(Error::value(format!("policy.{label}.kind is {other}: give a policy's name"))),
        };
        let Some(kind) = PolicyKind::from_name(&kind) else {
            let known: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            let message = format!("unknown policy {kind:?} in run.policies: known are {}", known.join(", "));
            return Err(Error::Value(message));
        };
        let mut merged = scheduler.and_then(Value::as_table).cloned().unwrap_or_default();
        merged.extend(own.clone());
        let settings =
            merged.try_into().map_err(|error: toml::de::Error| Error::value(format!("policy.{label}: {error}")))?;
        Ok(Self { label: label.to_owned(), kind, own, settings })
    }

    /// What makes this variant differ from others in the same world.
    pub(crate) fn identity(&self) -> String {
        format!("{} {}", self.kind.name(), self.own)
    }

    /// The scheduler's settings.
    pub(crate) fn scheduler_config(&self, experiment: &Experiment) -> Result<scheduler::Config, Error> {
        let config = &self.settings;
        let default = scheduler::Config::default();
        let profile_quantile = config.profile_quantile.unwrap_or(default.profile_quantile);
        if !(0.0..=1.0).contains(&profile_quantile) {
            return Err(Error::value(format!("scheduler.profile_quantile is {profile_quantile}: give 0 to 1")));
        }
        let part = |key: &str, value: Option<f64>, default: f64| match value.unwrap_or(default) {
            value if (0.0..=1.0).contains(&value) => Ok(value),
            value => Err(Error::value(format!("{key} of policy {:?} is {value}: give 0 to 1", self.label))),
        };
        // The scheduler knows what the modelled network takes.
        let network = resolve::network(experiment)?;
        Ok(scheduler::Config {
            policy: self.kind,
            schedule_ahead: match config.schedule_ahead_ms {
                Some(ahead) => millis("scheduler.schedule_ahead_ms", ahead)?,
                None => default.schedule_ahead,
            },
            profile_window: config.profile_window.unwrap_or(default.profile_window).max(1),
            profile_quantile,
            max_queued_per_model: config.max_queued_per_model.unwrap_or(default.max_queued_per_model),
            predict_admission: config.predict_admission.unwrap_or(default.predict_admission),
            delay: Delay { control: network.control, per_row: network.data_per_request },
            gather: match config.gather {
                Some(GatherConfig::HeadFirst) => Gather::HeadFirst,
                Some(GatherConfig::KeepTarget) => Gather::KeepTarget,
                None => default.gather,
            },
            anticipated_delay: match config.anticipated_delay_per_ms {
                Some(rate) => resolve::positive("scheduler.anticipated_delay_per_ms", rate)?,
                None => default.anticipated_delay,
            },
            size_hints: config.size_hints.unwrap_or(default.size_hints),
            thrift: config.thrift.unwrap_or(default.thrift),
            rehearse: config.rehearse.unwrap_or(default.rehearse),
            timeout: part("timeout_of_slo", config.timeout_of_slo, default.timeout)?,
            batch_delay: match config.batch_delay_ms {
                Some(delay) => millis("scheduler.batch_delay_ms", delay)?,
                None => default.batch_delay,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = r#"
        [[model]]
        name = "a"
        latency = { alpha_ms = 1, beta_ms = 1 }
        [devices]
        [scheduler]
        schedule_ahead_ms = 7
        predict_admission = false
        [policy.ahead]
        kind = "clockwork"
        schedule_ahead_ms = 2
        [policy.odd]
        kind = "clockwork"
        speed = 3
        [policy.unknown]
        kind = "nobody"
        [run]
        policies = ["clockwork", "ahead"]
        seconds = 1
    "#;

    fn variant(label: &str) -> Result<Variant, String> {
        let table: Table = FILE.parse().unwrap();
        let experiment: Experiment = table.clone().try_into().unwrap();
        Variant::new(label, &experiment, table.get("scheduler")).map_err(|error| error.to_string())
    }

    #[test]
    fn own_settings_go_before_the_schedulers() {
        let experiment: Experiment = toml::from_str(FILE).unwrap();
        let ahead = |label: &str| {
            let config = variant(label).unwrap().scheduler_config(&experiment).unwrap();
            (config.schedule_ahead.as_millis_f64(), config.predict_admission)
        };
        assert_eq!(ahead("clockwork"), (7.0, false));
        assert_eq!(ahead("ahead"), (2.0, false));
        assert_ne!(variant("clockwork").unwrap().identity(), variant("ahead").unwrap().identity());
    }

    #[test]
    fn what_is_unknown_is_named() {
        assert!(variant("odd").unwrap_err().starts_with("policy.odd: unknown field `speed`"));
        assert!(variant("unknown").unwrap_err().starts_with("unknown policy \"nobody\" in run.policies: known are"));
        assert!(variant("nothing").unwrap_err().starts_with("unknown policy \"nothing\""));
    }
}
