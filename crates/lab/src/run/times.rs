//! From `times` of a model, as written, to how its requests differ.

use crate::LabError;
use crate::run::experiment::TimesConfig;
use crate::run::resolve::{not_negative, positive};
use sim::{InputDistribution, TimeDistribution};
use std::path::Path;
use std::sync::Arc;

/// How the requests of the model of that name differ; a file of requests stands relative to the folder.
pub(crate) fn inputs(config: &TimesConfig, name: &str, folder: &Path) -> Result<InputDistribution, LabError> {
    let key = |key: &str| format!("times.{key} of model {name:?}");
    let applications = match config {
        TimesConfig { modes_ms: Some(modes), mean_ms: None, p99_ms: None, file: None, .. } => {
            modes_of(config, modes, key)?
        }
        TimesConfig { modes_ms: None, mean_ms: Some(mean), p99_ms: Some(p99), file: None, .. } => {
            vec![(
                1.0,
                TimeDistribution::lognormal(positive(&key("mean_ms"), *mean)?, *p99).ok_or_else(|| {
                    LabError::value(format!("{} is {p99}: give 1 to 14 times mean_ms", key("p99_ms")))
                })?,
            )]
        }
        TimesConfig { modes_ms: None, mean_ms: None, p99_ms: None, file: Some(file), .. } => {
            vec![(1.0, TimeDistribution::Recorded(recorded(config, &folder.join(file))?))]
        }
        _ => {
            let message = format!("times of model {name:?} must have modes_ms, mean_ms and p99_ms, or file");
            return Err(LabError::Value(message));
        }
    };
    let hint_sigma = config.hint_sigma.map(|sigma| not_negative(&key("hint_sigma"), sigma)).transpose()?;
    let inputs = InputDistribution::new(applications, hint_sigma);
    Ok(match config.p99_ms {
        Some(p99) => inputs.with_p99_ms(p99),
        None => inputs,
    })
}

fn modes_of(
    config: &TimesConfig,
    modes: &[f64],
    key: impl Fn(&str) -> String,
) -> Result<Vec<(f64, TimeDistribution)>, LabError> {
    let sigmas = config.sigma_ms.as_deref().unwrap_or(&[0.0]);
    let weights = config.weights.as_deref().unwrap_or(&[1.0]);
    let fits = |list: &[f64]| list.len() == 1 || list.len() == modes.len();
    if modes.is_empty() || !fits(sigmas) || !fits(weights) {
        let message = format!("{} must have one value, or one for each of modes_ms: so must weights", key("sigma_ms"));
        return Err(LabError::Value(message));
    }
    let mut applications = Vec::new();
    for (index, &mode) in modes.iter().enumerate() {
        let of = |list: &[f64]| list[index.min(list.len() - 1)];
        let weight = positive(&key("weights"), of(weights))?;
        let mean = positive(&key("modes_ms"), mode)?;
        applications
            .push((weight, TimeDistribution::Normal { mean, sigma: not_negative(&key("sigma_ms"), of(sigmas))? }));
    }
    Ok(applications)
}

/// The requests of a file: what each takes, as a sum over columns, and its hint.
fn recorded(config: &TimesConfig, path: &Path) -> Result<Arc<[(f64, u32)]>, LabError> {
    let text = std::fs::read_to_string(path).map_err(|reason| LabError::Read { path: path.to_owned(), reason })?;
    let broken = |message: String| LabError::value(format!("{}: {message}", path.display()));
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| broken(format!("there is no column {name:?}")))
    };
    let terms = config.columns_ms.iter().flatten();
    let terms: Vec<(usize, f64)> = terms.map(|(name, ms)| Ok((column(name)?, *ms))).collect::<Result<_, LabError>>()?;
    let hint = config.hint_column.as_deref().map(column).transpose()?;
    let row = |line: &str| {
        let fields: Vec<&str> = line.split(',').map(str::trim).collect();
        let number = |column: usize| {
            let field = fields.get(column).copied().unwrap_or_default();
            field.parse::<f64>().map_err(|_| broken(format!("{field:?} in {line:?} is not a number")))
        };
        let mut alone = config.base_ms.unwrap_or(0.0);
        for &(column, ms) in &terms {
            alone += ms * number(column)?;
        }
        let size = hint.map(number).transpose()?.map_or(1, |size| (size as u32).max(1));
        Ok((alone, size))
    };
    let rows: Vec<(f64, u32)> = lines.map(row).collect::<Result<_, LabError>>()?;
    if rows.is_empty() {
        return Err(broken("there is no request in it".into()));
    }
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<InputDistribution, String> {
        let config: TimesConfig = toml::from_str(text).unwrap();
        inputs(&config, "a", Path::new("")).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn near(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 0.02 * wanted, "{got} for {wanted}");
    }

    #[test]
    fn modes_are_applications() {
        let inputs = read("modes_ms = [50, 150]\nsigma_ms = [5, 20]\nweights = [3, 1]\nhint_sigma = 0").unwrap();
        near(inputs.mean_ms(), 75.0);
        let drawn = inputs.sample(10_000, 1);
        near(drawn.iter().filter(|input| input.application == 0).count() as f64, 7_500.0);
        assert!(drawn.iter().all(|input| input.size.is_some()));
    }

    #[test]
    fn a_percentile_that_is_given_is_taken_as_it_is() {
        let inputs = read("mean_ms = 683.15\np99_ms = 2667.54").unwrap();
        near(inputs.mean_ms(), 683.15);
        assert_eq!(inputs.p99_ms(), 2667.54);
        assert!(inputs.sample(10, 1).iter().all(|input| input.size.is_none()));
        assert!(read("mean_ms = 10\np99_ms = 5").unwrap_err().contains("give 1 to 14 times mean_ms"));
    }

    #[test]
    fn a_file_gives_one_request_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "TIMESTAMP,In,Out\n0,100,2\n1,300,1\n").unwrap();
        let text =
            "file = \"t.csv\"\ncolumns_ms = { In = 0.1, Out = 10 }\nbase_ms = 1\nhint_column = \"In\"\nhint_sigma = 0";
        let config: TimesConfig = toml::from_str(text).unwrap();
        let recorded = inputs(&config, "a", folder.path()).unwrap();
        let drawn: Vec<(f64, Option<u32>)> =
            recorded.sample(3, 1).iter().map(|input| (input.alone.as_millis_f64(), input.size)).collect();
        assert_eq!(drawn, [(31.0, Some(100)), (41.0, Some(300)), (31.0, Some(100))]);
        let broken: TimesConfig = toml::from_str("file = \"t.csv\"\ncolumns_ms = { Up = 1 }").unwrap();
        assert!(inputs(&broken, "a", folder.path()).unwrap_err().to_string().contains("no column \"Up\""));
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        assert!(read("modes_ms = [1, 2]\nsigma_ms = [1, 2, 3]").unwrap_err().contains("must have one value"));
        assert!(read("modes_ms = [1]\nmean_ms = 3").unwrap_err().contains("must have modes_ms, mean_ms and p99_ms"));
    }
}
