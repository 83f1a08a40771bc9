//! The advice on the number of devices, live: what was counted goes in, metrics and JSON come out.

use controller::Controller;
use planner::advice::{Action, Advice, Advisor, AdvisorConfig, ClusterCounts};
use serde::Serialize;
use std::sync::{Mutex, PoisonError};
use telemetry::Metrics;

/// The advisor of this server. Off the way of requests: they only add to totals.
pub(crate) struct Scaling {
    controller: Controller,
    metrics: Metrics,
    advisor: Mutex<Advisor>,
}

impl Scaling {
    pub(crate) fn new(config: AdvisorConfig, controller: Controller, metrics: Metrics) -> Self {
        Self { controller, metrics, advisor: Mutex::new(Advisor::new(config)) }
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Looks at what was counted up to now, and advises.
    pub(crate) fn advise(&self) -> Advice {
        let now = self.controller.now();
        let totals = self.metrics.demand();
        let sample = ClusterCounts {
            now,
            ended: totals.ended,
            bad: totals.bad,
            busy: totals.busy,
            devices: self.controller.devices(),
        };
        let mut advisor = self.advisor.lock().unwrap_or_else(PoisonError::into_inner);
        advisor.observe(sample);
        let advice = advisor.advise(now);
        self.metrics.scaling(advice.devices, advice.wanted(), advice.bad_rate, advice.idle_fraction);
        advice
    }
}

/// The advice for machines.
#[derive(Serialize)]
struct ScalingAnswer {
    advice: &'static str,
    devices: u32,
    wanted: u32,
    change: i64,
    bad_rate: f64,
    idle_fraction: f64,
    reserve: f64,
    requests: u64,
    bad: u64,
    window_s: f64,
    sentence: String,
}

/// `GET scaling`.
pub(crate) fn json(advice: &Advice) -> Vec<u8> {
    let word = match advice.action {
        Action::Enough => "enough",
        Action::Add(_) => "add",
        Action::Remove(_) => "remove",
    };
    let &Advice { devices, ended, bad, bad_rate, idle_fraction, reserve, .. } = advice;
    let wanted = advice.wanted();
    super::json(&ScalingAnswer {
        advice: word,
        devices,
        wanted,
        change: i64::from(wanted) - i64::from(devices),
        bad_rate,
        idle_fraction,
        reserve,
        requests: ended,
        bad,
        window_s: advice.looked.as_secs_f64(),
        sentence: advice.to_string(),
    })
}
