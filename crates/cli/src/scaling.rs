//! What `serve` may be told about its advice on the number of devices.

use crate::options::ServeOptions;
use anyhow::{Result, bail};
use base::Duration;
use planner::advice::AdvisorConfig;

/// More in reserve than this would be a cluster that mostly waits; the advisor keeps no more for other reasons, either.
const HIGHEST_RESERVE: f64 = 0.4;
/// A year. More isn't looked back by anybody, and would only find the end of what a time can be.
const LONGEST_S: f64 = 366.0 * 24.0 * 3600.0;

impl ServeOptions {
    /// When more or fewer devices are advised.
    pub(crate) fn scaling(&self) -> Result<AdvisorConfig> {
        let defaults = AdvisorConfig::default();
        let config = AdvisorConfig {
            max_bad: share("--scaling-max-bad", self.scaling_max_bad, defaults.max_bad, 1.0)?,
            min_bad: self.scaling_min_bad.unwrap_or(defaults.min_bad),
            reserve: share("--scaling-reserve", self.scaling_reserve, defaults.reserve, HIGHEST_RESERVE)?,
            min_devices: self.scaling_min_devices.unwrap_or(defaults.min_devices),
            settle: span("--scaling-settle-s", self.scaling_settle_s, defaults.settle)?,
            window: span("--scaling-window-s", self.scaling_window_s, defaults.window)?,
            half_life: span("--scaling-half-life-s", self.scaling_half_life_s, defaults.half_life)?,
        };
        if config.window < config.settle {
            bail!(
                "--scaling-window-s {} is less than --scaling-settle-s {}: devices must be watched for longer before they are given away than before they are added",
                config.window.as_secs_f64(),
                config.settle.as_secs_f64()
            );
        }
        Ok(config)
    }
}

fn share(flag: &str, given: Option<f64>, default: f64, most: f64) -> Result<f64> {
    match given {
        Some(share) if !(0.0..=most).contains(&share) => {
            bail!("{flag} {share}: expected a share between 0 and {most} (0.01 is one in a hundred)")
        }
        given => Ok(given.unwrap_or(default)),
    }
}

fn span(flag: &str, given: Option<f64>, default: Duration) -> Result<Duration> {
    match given {
        // The advisor sees what was counted once a second: less would be one sample, which says nothing.
        Some(seconds) if !(1.0..=LONGEST_S).contains(&seconds) => {
            bail!("{flag} {seconds}: expected a number of seconds between 1 and {LONGEST_S}")
        }
        given => Ok(given.map_or(default, Duration::from_secs_f64)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(toml: &str) -> Result<AdvisorConfig> {
        toml::from_str::<ServeOptions>(toml)?.scaling()
    }

    #[test]
    fn nothing_said_is_the_advisors_own() {
        assert_eq!(read("").unwrap(), AdvisorConfig::default());
    }

    #[test]
    fn every_threshold_can_be_set() {
        let text = "scaling-max-bad = 0.05\nscaling-min-bad = 50\nscaling-reserve = 0.25\nscaling-min-devices = 3\n\
                    scaling-settle-s = 5\nscaling-window-s = 300\nscaling-half-life-s = 600";
        let expected = AdvisorConfig {
            max_bad: 0.05,
            min_bad: 50,
            reserve: 0.25,
            min_devices: 3,
            settle: Duration::from_secs(5),
            window: Duration::from_secs(300),
            half_life: Duration::from_secs(600),
        };
        assert_eq!(read(text).unwrap(), expected);
    }

    #[test]
    fn mistakes_are_sentences() {
        let refused = |text: &str| read(text).unwrap_err().to_string();
        assert_eq!(
            refused("scaling-max-bad = 1.5"),
            "--scaling-max-bad 1.5: expected a share between 0 and 1 (0.01 is one in a hundred)"
        );
        assert!(refused("scaling-reserve = 0.5").contains("between 0 and 0.4"));
        assert!(refused("scaling-settle-s = nan").contains("between 1 and"));
        assert!(refused("scaling-window-s = 1e300").contains("between 1 and"));
        assert!(refused("scaling-window-s = 5").starts_with("--scaling-window-s 5 is less than --scaling-settle-s 10"));
    }
}
