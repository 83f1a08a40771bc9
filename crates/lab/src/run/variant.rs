//! The policies of an experiment: a policy of the scheduler with settings, under a name.

use crate::LabError;
use crate::run::experiment::{BatchSizes, Experiment, GatherConfig, NamedSizes, SchedulerConfig, SplitConfig};
use crate::run::resolve::{self, millis};
use crate::run::shares::Divider;
use scheduler::{Delay, Gather, PolicyKind, Split};
use toml::{Table, Value};

/// One entry of `run.policies`.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    /// Its name in the file and in the results.
    pub(crate) label: String,
    pub(crate) kind: PolicyKind,
    /// Who divides the GPUs; nobody: they are whole.
    pub(crate) shares: Option<Divider>,
    /// Settings of its own, which go before `[scheduler]`.
    own: Table,
    settings: SchedulerConfig,
}

impl Variant {
    /// The variant of that name in an experiment; `scheduler` is the experiment's `[scheduler]` as written.
    pub(crate) fn new(label: &str, experiment: &Experiment, scheduler: Option<&Value>) -> Result<Self, LabError> {
        let mut own = experiment.policy.get(label).cloned().unwrap_or_default();
        let kind = match own.remove("kind") {
            None => label.to_owned(),
            Some(Value::String(kind)) => kind,
            Some(other) => {
                return Err(LabError::value(format!("policy.{label}.kind is {other}: give a policy's name")));
            }
        };
        let Some(kind) = PolicyKind::from_name(&kind) else {
            let known: Vec<&str> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
            let message = format!("unknown policy {kind:?} in run.policies: known are {}", known.join(", "));
            return Err(LabError::Value(message));
        };
        let shares = match own.remove("shares") {
            None => None,
            Some(value) => Some(value.as_str().and_then(Divider::from_name).ok_or_else(|| {
                let known = Divider::names();
                LabError::value(format!("policy.{label}.shares is {value}: give one of {}", known.join(", ")))
            })?),
        };
        if shares.is_some() && experiment.shares.is_none() {
            return Err(LabError::value(format!(
                "policy.{label} has shares: say in [shares] what batches take in them"
            )));
        }
        let mut merged = scheduler.and_then(Value::as_table).cloned().unwrap_or_default();
        merged.extend(own.clone());
        let settings =
            merged.try_into().map_err(|error: toml::de::Error| LabError::value(format!("policy.{label}: {error}")))?;
        Ok(Self { label: label.to_owned(), kind, shares, own, settings })
    }

    /// What makes this variant differ from others in the same world.
    pub(crate) fn identity(&self) -> String {
        let shares = self.shares.map_or(String::new(), |shares| format!("{shares:?} shares "));
        format!("{} {shares}{}", self.kind.name(), self.own)
    }

    /// Whether stages of pipelines are sent with time-outs, each for itself.
    pub(crate) fn has_timeouts(&self) -> bool {
        self.settings.split == Some(SplitConfig::Timeouts)
    }

    /// The scheduler's settings.
    pub(crate) fn scheduler_config(&self, experiment: &Experiment) -> Result<scheduler::Config, LabError> {
        let config = &self.settings;
        let default = scheduler::Config::default();
        let profile_quantile = config.profile_quantile.unwrap_or(default.profile_quantile);
        if !(0.0..=1.0).contains(&profile_quantile) {
            return Err(LabError::value(format!("scheduler.profile_quantile is {profile_quantile}: give 0 to 1")));
        }
        let part = |key: &str, value: Option<f64>, default: f64| match value.unwrap_or(default) {
            value if (0.0..=1.0).contains(&value) => Ok(value),
            value => Err(LabError::value(format!("{key} of policy {:?} is {value}: give 0 to 1", self.label))),
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
            late_wakeup: default.late_wakeup,
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
            batch_work_share: part("batch_work_share", config.batch_work_share, default.batch_work_share)?,
            split: match config.split {
                Some(SplitConfig::Equal) => Split::Equal,
                Some(SplitConfig::Profile) => Split::Profile,
                Some(SplitConfig::Load) => Split::Load,
                Some(SplitConfig::Timeouts) | None => default.split,
            },
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

/// What of an experiment isn't as the server has it by default, as `key = value (the server: value)`: settings of the
/// scheduler, those of single policies, and batch sizes. What a sweep varies stands in its table.
pub(crate) fn unlike_the_server(experiment: &Experiment, scheduler: &Table) -> Vec<String> {
    let mut unlike = Vec::new();
    let settings = server_settings();
    let mut compare = |section: &str, key: &str, value: &Value| {
        let Some(server) = settings.get(key).filter(|server| !same(server, value)) else { return };
        unlike.push(format!("`{section}{key} = {value}` (the server: {server})"));
    };
    let sections = std::iter::once((String::new(), scheduler));
    let own = experiment.policy.iter().map(|(label, own)| (format!("policy.{label}."), own));
    for (section, table) in sections.chain(own) {
        table.iter().for_each(|(key, value)| compare(&section, key, value));
    }
    let sizes = experiment.models.iter().find_map(|model| match &model.batch_sizes {
        Some(BatchSizes::Named(NamedSizes::All)) => Some(
            "`batch_sizes = \"all\"` (the server: all up to 16, then an eighth apart; on a GPU powers of two)"
                .to_owned(),
        ),
        Some(BatchSizes::Listed(sizes)) if *sizes != base::dense_batch_sizes(sizes.last().copied().unwrap_or(1)) => {
            Some(format!(
                "`batch_sizes = {sizes:?}` (the server: all up to 16, then an eighth apart; on a GPU powers of two)"
            ))
        }
        Some(BatchSizes::Listed(_)) | None => None,
    });
    unlike.extend(sizes);
    unlike
}

/// The server's settings, by the keys of `[scheduler]`.
fn server_settings() -> Table {
    let server = scheduler::Config::default();
    let gather = match server.gather {
        Gather::HeadFirst => "head_first",
        Gather::KeepTarget => "keep_target",
    };
    let settings: [(&str, Value); 14] = [
        ("schedule_ahead_ms", server.schedule_ahead.as_millis_f64().into()),
        ("profile_window", (server.profile_window as i64).into()),
        ("profile_quantile", server.profile_quantile.into()),
        ("max_queued_per_model", (server.max_queued_per_model as i64).into()),
        ("predict_admission", server.predict_admission.into()),
        ("gather", gather.into()),
        ("timeout_of_slo", server.timeout.into()),
        ("batch_delay_ms", server.batch_delay.as_millis_f64().into()),
        ("thrift", server.thrift.into()),
        ("rehearse", server.rehearse.into()),
        ("anticipated_delay_per_ms", server.anticipated_delay.into()),
        ("size_hints", server.size_hints.into()),
        ("batch_work_share", server.batch_work_share.into()),
        ("split", server.split.name().into()),
    ];
    settings.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Equal values, whole numbers or not.
fn same(one: &Value, other: &Value) -> bool {
    let number = |value: &Value| value.as_float().or(value.as_integer().map(|integer| integer as f64));
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
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
    fn without_settings_it_is_the_servers() {
        let text = "[[model]]\nname = \"a\"\nlatency = { alpha_ms = 1, beta_ms = 1 }\n[devices]\n[run]\nseconds = 1\n";
        let experiment: Experiment = toml::from_str(text).unwrap();
        assert_eq!(experiment.run.policies, ["punctual"]);
        let config = Variant::new("punctual", &experiment, None).unwrap().scheduler_config(&experiment).unwrap();
        assert_eq!(format!("{config:?}"), format!("{:?}", scheduler::Config::default()));
        assert!(unlike_the_server(&experiment, &Table::new()).is_empty());
    }

    #[test]
    fn what_differs_from_the_server_is_said() {
        let table: Table = FILE.parse().unwrap();
        let mut experiment: Experiment = table.clone().try_into().unwrap();
        experiment.models[0].batch_sizes = Some(BatchSizes::Named(NamedSizes::All));
        let unlike = unlike_the_server(&experiment, table["scheduler"].as_table().unwrap());
        expect_test::expect![[r#"
            `predict_admission = false` (the server: true)
            `schedule_ahead_ms = 7` (the server: 0.0)
            `policy.ahead.schedule_ahead_ms = 2` (the server: 0.0)
            `batch_sizes = "all"` (the server: all up to 16, then an eighth apart; on a GPU powers of two)"#]]
        .assert_eq(&unlike.join("\n"));
        // Every setting that a file can have is compared.
        let all = server_settings();
        let parsed: Result<SchedulerConfig, _> = all.clone().try_into();
        assert!(parsed.is_ok_and(|_| all.len() == 14), "{all:?}");
    }

    #[test]
    fn what_is_unknown_is_named() {
        assert!(variant("odd").unwrap_err().starts_with("policy.odd: unknown field `speed`"));
        assert!(variant("unknown").unwrap_err().starts_with("unknown policy \"nobody\" in run.policies: known are"));
        assert!(variant("nothing").unwrap_err().starts_with("unknown policy \"nothing\""));
    }
}
