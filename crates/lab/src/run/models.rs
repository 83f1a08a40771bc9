//! From `[[model]]` entries as written to one entry for each kind of model: tables are read, objectives worked out.

use crate::LabError;
use crate::run::experiment::{BatchSizes, Experiment, LatencyConfig, ModelConfig, NamedSizes};
use crate::run::shares::SharedWorld;
use crate::run::{latency_files, resolve, times};
use std::path::Path;

/// Replaces every entry with a `table` by one for each row, gives every entry its objective in milliseconds, and works
/// out how many devices there are.
pub(crate) fn expand(experiment: &mut Experiment, folder: &Path) -> Result<(), LabError> {
    let names = experiment.models.iter().map(|model| &model.name);
    let names = names.chain(experiment.pipelines.iter().map(|pipeline| &pipeline.name));
    experiment.groups = names.cloned().collect();
    let mut expanded = Vec::with_capacity(experiment.models.len());
    for (group, mut config) in std::mem::take(&mut experiment.models).into_iter().enumerate() {
        config.group = group;
        match config.table.take() {
            Some(table) => expanded.extend(rows(&config, &table, folder)?),
            None if has_filters(&config) => {
                let message = format!("model {:?} has filters of a table, but no table", config.name);
                return Err(LabError::Value(message));
            }
            None => {
                config.row = (0, 1);
                expanded.push(config);
            }
        }
    }
    let shared = SharedWorld::read(experiment, folder)?;
    for config in &mut expanded {
        if let Some(shared) = shared.as_ref().filter(|_| !config.latency.is_given()) {
            shared.give_times(config)?;
        }
        if let Some(part) = config.latency.row_part.take() {
            config.latency = line_of(config, part, folder)?;
        }
        config.slo_ms = objective(config, folder)?;
    }
    experiment.models = expanded;
    if let Some(per_model) = experiment.devices.per_model {
        let models: u32 = experiment.models.iter().map(|model| model.count).sum();
        let count = (resolve::positive("devices.per_model", per_model)? * f64::from(models)).round();
        experiment.devices.count = (count as u32).max(1);
    }
    Ok(())
}

fn has_filters(config: &ModelConfig) -> bool {
    config.table_rows.is_some() || filters_by_slope(config)
}

fn filters_by_slope(config: &ModelConfig) -> bool {
    config.min_beta_over_alpha.is_some() || config.max_beta_over_alpha.is_some()
}

/// One entry for each row that the filters leave.
fn rows(config: &ModelConfig, table: &Path, folder: &Path) -> Result<Vec<ModelConfig>, LabError> {
    let name = &config.name;
    let path = &folder.join(table);
    if config.latency.is_given() {
        return Err(LabError::value(format!("model {name:?} must have latency or table, not both")));
    }
    if config.rate_rps.is_some() || config.rate_steps.is_some() {
        return Err(LabError::value(format!(
            "model {name:?} is a table: its models share the workload's rate, or have a rate_wave"
        )));
    }
    let all = latency_files::rows(path)?;
    if let Some(missing) = config.table_rows.iter().flatten().find(|row| all.iter().all(|line| line.model != **row)) {
        return Err(LabError::value(format!("{} has no model {missing:?} (table_rows of {name:?})", path.display())));
    }
    if let Some(row) = all.iter().find(|row| row.line.is_none() && filters_by_slope(config)) {
        let message =
            format!("{} has no line for {:?}, so model {name:?} can't be filtered by it", path.display(), row.model);
        return Err(LabError::Value(message));
    }
    let wanted = |row: &latency_files::Row| {
        let ratio = row.line.map_or(0.0, |(alpha, beta)| beta / alpha);
        config.table_rows.as_ref().is_none_or(|rows| rows.contains(&row.model))
            && config.min_beta_over_alpha.is_none_or(|least| ratio > least)
            && config.max_beta_over_alpha.is_none_or(|most| ratio < most)
    };
    let entry = |row: latency_files::Row| {
        let own = config.slo_ms.or(config.slo_of_l4).or(config.slo_of_l8).or(config.slo_of_p99).is_some();
        let latency = match row.line {
            Some((alpha, beta)) => {
                LatencyConfig { alpha_ms: Some(alpha), beta_ms: Some(beta), ..LatencyConfig::default() }
            }
            None => LatencyConfig { file: Some(table.to_owned()), row: Some(row.model), ..LatencyConfig::default() },
        };
        ModelConfig {
            latency,
            slo_ms: if own { config.slo_ms } else { row.slo_ms },
            weights_mb: config.weights_mb.or(row.weights_mb),
            ..config.clone()
        }
    };
    let mut rows: Vec<ModelConfig> = all.into_iter().filter(wanted).map(entry).collect();
    let count = rows.len();
    rows.iter_mut().enumerate().for_each(|(index, row)| row.row = (index, count));
    if rows.is_empty() {
        return Err(LabError::value(format!("the filters of model {name:?} leave no row of {}", path.display())));
    }
    Ok(rows)
}

/// The objective in milliseconds, however it is written.
fn objective(config: &ModelConfig, folder: &Path) -> Result<Option<f64>, LabError> {
    let name = &config.name;
    if let Some(times) = config.slo_of_p99 {
        if config.slo_ms.or(config.slo_of_l4).or(config.slo_of_l8).is_some() {
            return Err(LabError::value(format!("model {name:?} must have one objective: slo_of_p99 or another")));
        }
        resolve::positive(&format!("slo_of_p99 of model {name:?}"), times)?;
        return Ok(Some(times * alone_p99(config, folder)?));
    }
    let (times, batch) = match (config.slo_ms, config.slo_of_l4, config.slo_of_l8) {
        (slo, None, None) => return Ok(slo),
        (None, Some(times), None) => (times, 4),
        (None, None, Some(times)) => (times, 8),
        _ => {
            let message = format!("model {name:?} must have one of slo_ms, slo_of_l4 and slo_of_l8");
            return Err(LabError::Value(message));
        }
    };
    resolve::positive(&format!("slo_of_l{batch} of model {name:?}"), times)?;
    let whole = whole(config);
    let sizes = resolve::latency_table(&whole, folder)?;
    let takes = sizes.iter().find(|(size, _)| *size == batch).map(|(_, takes)| takes);
    match takes {
        Some(takes) => Ok(Some(times * takes)),
        None => Err(LabError::value(format!("slo_of_l{batch} of model {name:?}: its latency has no batch of {batch}"))),
    }
}

/// The model with every size of its latency: without an objective none is too large. A line is known at any size.
fn whole(config: &ModelConfig) -> ModelConfig {
    let most = config.max_batch.unwrap_or(base::USUAL_MAX_BATCH);
    let batch_sizes = Some(BatchSizes::Named(NamedSizes::All));
    ModelConfig { slo_ms: None, batch_sizes, max_batch: Some(most), ..config.clone() }
}

/// The line of the average request where each row but the first adds this part of its time.
fn line_of(config: &ModelConfig, part: f64, folder: &Path) -> Result<LatencyConfig, LabError> {
    let name = &config.name;
    let Some(times) = config.times.as_ref().filter(|_| (0.0..=1.0).contains(&part) && !config.latency.is_given())
    else {
        let message = format!("latency.row_part of model {name:?} needs times, no other latency, and 0 to 1");
        return Err(LabError::Value(message));
    };
    let mean = times::inputs(times, name, folder)?.mean_ms();
    let varies = mean
        - resolve::not_negative(
            &format!("latency.fixed_ms of model {name:?}"),
            config.latency.fixed_ms.unwrap_or(0.0),
        )?;
    Ok(LatencyConfig { alpha_ms: Some(varies * part), beta_ms: Some(mean - varies * part), ..config.latency.clone() })
}

/// What 99 of 100 requests take alone at most, in milliseconds.
fn alone_p99(config: &ModelConfig, folder: &Path) -> Result<f64, LabError> {
    match &config.times {
        Some(times) => Ok(times::inputs(times, &config.name, folder)?.p99_ms()),
        None => {
            let whole = whole(config);
            let sizes = resolve::latency_table(&whole, folder)?;
            Ok(sizes.iter().map(|&(_, takes)| takes).fold(f64::INFINITY, f64::min))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "model,alpha_ms,beta_ms,slo_ms\nstrong,1,10,30\nmiddle,2,5,25\nweak,4,1,40\n";

    fn expanded(models: &str) -> Result<Experiment, String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), TABLE).unwrap();
        let sizes = "model,weights_mb,b1_ms,b2_ms\nsmall,31.8,0.5,0.75\nlarge,102,1,2\n";
        std::fs::write(folder.path().join("sizes.csv"), sizes).unwrap();
        let text = format!("{models}\n[devices]\nper_model = 0.5\n[run]\npolicies = [\"clockwork\"]\nseconds = 1\n");
        let mut experiment: Experiment = toml::from_str(&text).unwrap();
        expand(&mut experiment, folder.path()).map_err(|error| error.to_string())?;
        Ok(experiment)
    }

    #[test]
    fn a_table_is_one_model_for_each_row() {
        let experiment = expanded("[[model]]\nname = \"zoo\"\ntable = \"t.csv\"\ncount = 3").unwrap();
        let slos: Vec<_> = experiment.models.iter().map(|model| (model.group, model.slo_ms)).collect();
        assert_eq!(slos, [(0, Some(30.0)), (0, Some(25.0)), (0, Some(40.0))]);
        assert_eq!((experiment.devices.count, experiment.groups), (5, vec!["zoo".to_owned()]), "4.5 is rounded");
    }

    #[test]
    fn a_table_may_have_a_time_for_each_size() {
        let model = "[[model]]\nname = \"zoo\"\ntable = \"sizes.csv\"\ncount = 2\nslo_ms = 100";
        let experiment = expanded(model).unwrap();
        let found: Vec<_> = experiment.models.iter().map(|model| (model.slo_ms, model.weights_mb)).collect();
        assert_eq!(found, [(Some(100.0), Some(31.8)), (Some(100.0), Some(102.0))]);
        assert_eq!(experiment.models[1].latency.row.as_deref(), Some("large"));
        let filtered = expanded(&format!("{model}\nmin_beta_over_alpha = 2")).unwrap_err();
        assert!(filtered.contains("has no line for \"small\""), "{filtered}");
    }

    #[test]
    fn filters_leave_some_rows() {
        let alphas = |filter: &str| -> Result<Vec<f64>, String> {
            let experiment = expanded(&format!("[[model]]\nname = \"zoo\"\ntable = \"t.csv\"\n{filter}"))?;
            Ok(experiment.models.iter().filter_map(|model| model.latency.alpha_ms).collect())
        };
        assert_eq!(alphas("min_beta_over_alpha = 2"), Ok(vec![1.0, 2.0]));
        assert_eq!(alphas("max_beta_over_alpha = 2"), Ok(vec![4.0]));
        assert_eq!(alphas("table_rows = [\"weak\", \"strong\"]"), Ok(vec![1.0, 4.0]));
        assert!(alphas("table_rows = [\"none\"]").unwrap_err().contains("has no model \"none\""));
        assert!(alphas("min_beta_over_alpha = 50").unwrap_err().contains("leave no row"));
    }

    #[test]
    fn objectives_can_be_multiples_of_a_batch() {
        let slo = |keys: &str| {
            let latency = "latency = { alpha_ms = 2, beta_ms = 10 }";
            expanded(&format!("[[model]]\nname = \"a\"\n{latency}\n{keys}")).map(|it| it.models[0].slo_ms)
        };
        assert_eq!(slo("slo_of_l4 = 1.5"), Ok(Some(27.0)));
        assert_eq!(slo("slo_of_l8 = 2"), Ok(Some(52.0)));
        assert_eq!(slo(""), Ok(None));
        assert!(slo("slo_of_l4 = 2\nslo_ms = 5").unwrap_err().contains("must have one of slo_ms"));
        let table = "[[model]]\nname = \"zoo\"\ntable = \"t.csv\"\nslo_of_l4 = 2";
        assert_eq!(expanded(table).unwrap().models[0].slo_ms, Some(28.0));
    }
}
