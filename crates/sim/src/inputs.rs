//! Requests whose time depends on their input: who sends how long ones.

use crate::Error;
use crate::experiment::TimesConfig;
use crate::resolve::{not_negative, positive};
use base::Duration;
use std::path::Path;
use std::sync::Arc;
use workload::Random;

/// So many draws say what mean and 99th percentile are.
const DRAWS: usize = 100_000;
/// The number of the stream of random numbers for that.
const FACTS: u64 = 5 << 40;
/// The 99th percentile of the normal distribution.
const NORMAL_P99: f64 = 2.326_347_874;
/// No request takes less than this part of the mean.
const LEAST: f64 = 0.02;
/// Hints are whole numbers: about so many steps for the mean.
const HINT_STEPS: f64 = 1_000.0;

/// How long the requests of one model take alone.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// With the sum of the weights up to each.
    applications: Vec<(f64, Times)>,
    /// The deviation of the logarithm of size hints from what requests take; `None` without hints.
    hint_sigma: Option<f64>,
    /// What requests take on average, in milliseconds.
    mean_ms: f64,
    p99_ms: f64,
}

/// How the times of one application are distributed, in milliseconds.
#[derive(Clone, Debug)]
enum Times {
    Normal {
        mean: f64,
        sigma: f64,
    },
    Lognormal {
        median: f64,
        sigma: f64,
    },
    /// One after the other: what each takes, and its hint.
    Recorded(Arc<[(f64, u32)]>),
}

/// What is drawn for one request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Input {
    /// Who sends it.
    pub application: u32,
    /// What it takes alone.
    pub alone: Duration,
    /// Its size hint.
    pub size: Option<u32>,
}

impl Inputs {
    pub(crate) fn new(config: &TimesConfig, name: &str, folder: &Path) -> Result<Self, Error> {
        let key = |key: &str| format!("times.{key} of model {name:?}");
        let applications = match config {
            TimesConfig { modes_ms: Some(modes), mean_ms: None, p99_ms: None, file: None, .. } => {
                modes_of(config, modes, key)?
            }
            TimesConfig { modes_ms: None, mean_ms: Some(mean), p99_ms: Some(p99), file: None, .. } => {
                vec![(
                    1.0,
                    lognormal(positive(&key("mean_ms"), *mean)?, *p99).ok_or_else(|| {
                        Error::value(format!("{} is {p99}: give 1 to 14 times mean_ms", key("p99_ms")))
                    })?,
                )]
            }
            TimesConfig { modes_ms: None, mean_ms: None, p99_ms: None, file: Some(file), .. } => {
                vec![(1.0, Times::Recorded(recorded(config, &folder.join(file))?))]
            }
            _ => {
                let message = format!("times of model {name:?} must have modes_ms, mean_ms and p99_ms, or file");
                return Err(Error::Value(message));
            }
        };
        let hint_sigma = config.hint_sigma.map(|sigma| not_negative(&key("hint_sigma"), sigma)).transpose()?;
        let mut inputs = Self { applications, hint_sigma, mean_ms: 1.0, p99_ms: 1.0 };
        // Nothing is cut off yet while the mean isn't known.
        let mut drawn: Vec<f64> = inputs.sample(DRAWS, FACTS).iter().map(|input| input.alone.as_millis_f64()).collect();
        drawn.sort_by(f64::total_cmp);
        inputs.mean_ms = drawn.iter().sum::<f64>() / drawn.len() as f64;
        inputs.p99_ms = config.p99_ms.unwrap_or(drawn[drawn.len() * 99 / 100]);
        Ok(inputs)
    }

    /// What requests take on average, in milliseconds.
    pub fn mean_ms(&self) -> f64 {
        self.mean_ms
    }

    /// What 99 of 100 don't exceed, in milliseconds.
    pub fn p99_ms(&self) -> f64 {
        self.p99_ms
    }

    /// Some requests, as a profiler would have seen before.
    pub(crate) fn sample(&self, count: usize, stream: u64) -> Vec<Input> {
        let mut random = Random::new(0, stream);
        (0..count).map(|number| self.draw(number as u64, &mut random)).collect()
    }

    /// The next request; `number` counts those of its model.
    pub(crate) fn draw(&self, number: u64, random: &mut Random) -> Input {
        let total = self.applications.last().map_or(1.0, |(sum, _)| *sum);
        // With one application nothing is drawn.
        let point = if self.applications.len() > 1 { random.unit() * total } else { 0.0 };
        let application = self.applications.partition_point(|(sum, _)| *sum <= point).min(self.applications.len() - 1);
        let (alone_ms, size) = match &self.applications[application].1 {
            Times::Normal { mean, sigma } => (mean + sigma * random.normal(), None),
            Times::Lognormal { median, sigma } => (median * random.lognormal(*sigma), None),
            Times::Recorded(all) => {
                let (alone, size) = all[number as usize % all.len()];
                (alone, Some(size))
            }
        };
        let alone_ms = alone_ms.max(LEAST * self.mean_ms).max(1e-3);
        let hint = |sigma: f64| {
            let seen = alone_ms * random.lognormal(sigma);
            size.unwrap_or((seen / self.mean_ms * HINT_STEPS).max(1.0) as u32)
        };
        Input {
            application: application as u32,
            alone: Duration::from_millis_f64(alone_ms),
            size: self.hint_sigma.map(hint),
        }
    }
}

fn modes_of(config: &TimesConfig, modes: &[f64], key: impl Fn(&str) -> String) -> Result<Vec<(f64, Times)>, Error> {
    let sigmas = config.sigma_ms.as_deref().unwrap_or(&[0.0]);
    let weights = config.weights.as_deref().unwrap_or(&[1.0]);
    let fits = |list: &[f64]| list.len() == 1 || list.len() == modes.len();
    if modes.is_empty() || !fits(sigmas) || !fits(weights) {
        let message = format!("{} must have one value, or one for each of modes_ms: so must weights", key("sigma_ms"));
        return Err(Error::Value(message));
    }
    let mut sum = 0.0;
    let mut applications = Vec::new();
    for (index, &mode) in modes.iter().enumerate() {
        let of = |list: &[f64]| list[index.min(list.len() - 1)];
        sum += positive(&key("weights"), of(weights))?;
        let mean = positive(&key("modes_ms"), mode)?;
        applications.push((sum, Times::Normal { mean, sigma: not_negative(&key("sigma_ms"), of(sigmas))? }));
    }
    Ok(applications)
}

/// The lognormal distribution with that mean and 99th percentile: `ln(p99 / mean) = 2.326 sigma - sigma^2 / 2`.
fn lognormal(mean: f64, p99: f64) -> Option<Times> {
    let under_root = NORMAL_P99 * NORMAL_P99 - 2.0 * libm::log(p99 / mean);
    if p99 < mean || under_root < 0.0 {
        return None;
    }
    let sigma = NORMAL_P99 - libm::sqrt(under_root);
    Some(Times::Lognormal { median: mean / libm::exp(sigma * sigma / 2.0), sigma })
}

/// The requests of a file: what each takes, as a sum over columns, and its hint.
fn recorded(config: &TimesConfig, path: &Path) -> Result<Arc<[(f64, u32)]>, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let broken = |message: String| Error::value(format!("{}: {message}", path.display()));
    let mut lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').map(str::trim).collect();
    let column = |name: &str| {
        let found = header.iter().position(|column| *column == name);
        found.ok_or_else(|| broken(format!("there is no column {name:?}")))
    };
    let terms = config.columns_ms.iter().flatten();
    let terms: Vec<(usize, f64)> = terms.map(|(name, ms)| Ok((column(name)?, *ms))).collect::<Result<_, Error>>()?;
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
    let rows: Vec<(f64, u32)> = lines.map(row).collect::<Result<_, Error>>()?;
    if rows.is_empty() {
        return Err(broken("there is no request in it".into()));
    }
    Ok(rows.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(text: &str) -> Result<Inputs, String> {
        let config: TimesConfig = toml::from_str(text).unwrap();
        Inputs::new(&config, "a", Path::new("")).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn near(got: f64, wanted: f64) {
        assert!((got - wanted).abs() < 0.02 * wanted, "{got} for {wanted}");
    }

    #[test]
    fn modes_are_applications() {
        let inputs = inputs("modes_ms = [50, 150]\nsigma_ms = [5, 20]\nweights = [3, 1]\nhint_sigma = 0").unwrap();
        near(inputs.mean_ms(), 75.0);
        // One in 25 of the longer ones: 1.751 deviations above their mean.
        near(inputs.p99_ms(), 150.0 + 20.0 * 1.751);
        let drawn = inputs.sample(10_000, 1);
        let of = |application| drawn.iter().filter(move |input| input.application == application);
        near(of(0).count() as f64, 7_500.0);
        near(of(1).map(|input| input.alone.as_millis_f64()).sum::<f64>() / of(1).count() as f64, 150.0);
        assert!(drawn.iter().all(|input| {
            let size = f64::from(input.size.unwrap());
            (size / 1_000.0 * 75.0 - input.alone.as_millis_f64()).abs() < 1.0
        }));
    }

    #[test]
    fn a_mean_and_a_percentile_are_met() {
        for (mean, p99) in [(683.15, 2667.54), (200.39, 242.27), (3.24, 5.56)] {
            let inputs = inputs(&format!("mean_ms = {mean}\np99_ms = {p99}")).unwrap();
            near(inputs.mean_ms(), mean);
            let mut drawn: Vec<Duration> = inputs.sample(100_000, 1).iter().map(|input| input.alone).collect();
            drawn.sort_unstable();
            near(drawn[99_000].as_millis_f64(), p99);
            assert!(inputs.sample(10, 1).iter().all(|input| input.size.is_none()));
        }
        assert!(inputs("mean_ms = 10\np99_ms = 5").unwrap_err().contains("give 1 to 14 times mean_ms"));
    }

    #[test]
    fn a_file_gives_one_request_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("t.csv"), "TIMESTAMP,In,Out\n0,100,2\n1,300,1\n").unwrap();
        let text =
            "file = \"t.csv\"\ncolumns_ms = { In = 0.1, Out = 10 }\nbase_ms = 1\nhint_column = \"In\"\nhint_sigma = 0";
        let config: TimesConfig = toml::from_str(text).unwrap();
        let inputs = Inputs::new(&config, "a", folder.path()).unwrap();
        let drawn: Vec<(f64, Option<u32>)> =
            inputs.sample(3, 1).iter().map(|input| (input.alone.as_millis_f64(), input.size)).collect();
        assert_eq!(drawn, [(31.0, Some(100)), (41.0, Some(300)), (31.0, Some(100))]);
        let broken: TimesConfig = toml::from_str("file = \"t.csv\"\ncolumns_ms = { Up = 1 }").unwrap();
        assert!(Inputs::new(&broken, "a", folder.path()).unwrap_err().to_string().contains("no column \"Up\""));
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        assert!(inputs("modes_ms = [1, 2]\nsigma_ms = [1, 2, 3]").unwrap_err().contains("must have one value"));
        assert!(inputs("modes_ms = [1]\nmean_ms = 3").unwrap_err().contains("must have modes_ms, mean_ms and p99_ms"));
    }
}
