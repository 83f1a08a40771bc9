//! The result of a run, as a table for people and as JSON for machines.

use crate::plan::{LoadPlan, Loop};
use crate::stats::Stats;
use base::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// The result of a run.
#[derive(Clone, Debug, Serialize)]
pub struct LoadReport {
    /// How long was sent and counted, in seconds.
    pub seconds: f64,
    /// From the start until the last answer came, in seconds; requests that were under way at the end are waited for.
    pub answered_seconds: f64,
    /// Whether it was stopped before its end.
    pub interrupted: bool,
    /// Each class.
    pub classes: Vec<ClassReport>,
    /// All classes together.
    pub total: ClassReport,
}

/// The result of one class. Everything counts from the intended send unless it says otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    /// Its name.
    pub name: String,
    /// What was asked for, in words.
    pub load: String,
    /// The deadline, in milliseconds.
    pub deadline_ms: Option<f64>,
    /// Requests that were due.
    pub requests: u64,
    /// Requests due in a second.
    pub rate_rps: f64,
    /// Answers with outputs by the deadline, in a second.
    pub goodput_rps: f64,
    /// Rows of good answers, in a second.
    pub goodput_rows_per_second: f64,
    /// Answers with outputs.
    pub successes: u64,
    /// Of these, by the deadline.
    pub good: u64,
    /// Of these, after the deadline.
    pub late: u64,
    /// Late also when counted from the actual send.
    pub late_from_send: u64,
    /// Refusals.
    pub refused: u64,
    /// Refusals by reason.
    pub refused_by_reason: BTreeMap<String, u64>,
    /// The part of the refusals that came with at least half of the deadline left; `None` without deadline or refusal.
    pub refused_early_fraction: Option<f64>,
    /// The part of the refusals that came within a millisecond of the actual send; `None` without refusal.
    pub refused_at_once_fraction: Option<f64>,
    /// Refusals after the deadline.
    pub refused_late: u64,
    /// Refusals after the deadline also when counted from the actual send.
    pub refused_late_from_send: u64,
    /// Anything else that isn't outputs.
    pub errors: u64,
    /// Errors by reason.
    pub errors_by_reason: BTreeMap<String, u64>,
    /// Requests without any answer when the run ended.
    pub unanswered: u64,
    /// Latency of successes.
    pub latency_ms: Quantiles,
    /// Latency of refusals.
    pub refusal_ms: Quantiles,
    /// How much later than intended requests were sent: above the latency's own size, the generator or its connections
    /// were the limit.
    pub send_lag_ms: Quantiles,
}

/// Quantiles in milliseconds; all 0 where there is nothing.
#[derive(Clone, Copy, Debug, Serialize, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Quantiles {
    pub count: u64,
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    pub max: f64,
}

impl Quantiles {
    fn new(histogram: &Histogram<u64>) -> Self {
        let millis = |nanos: u64| nanos as f64 / 1e6;
        let quantile = |q| millis(histogram.value_at_quantile(q));
        Self {
            count: histogram.len(),
            mean: histogram.mean() / 1e6,
            p50: quantile(0.5),
            p90: quantile(0.9),
            p99: quantile(0.99),
            p999: quantile(0.999),
            p9999: quantile(0.9999),
            max: millis(histogram.max()),
        }
    }
}

impl LoadReport {
    pub(crate) fn new(
        plan: &LoadPlan,
        stats: &[Stats],
        seconds: Duration,
        answered: Duration,
        interrupted: bool,
    ) -> Self {
        let (seconds, answered_seconds) = (seconds.as_secs_f64(), answered.as_secs_f64());
        let mut sum = Stats::new(None);
        let mut total_rows = 0.0;
        let mut classes = Vec::new();
        for (class, stats) in plan.classes.iter().zip(stats) {
            let load = match class.pattern {
                Loop::Open { rate, process, .. } => format!("open loop, {rate} requests/s, {process:?}"),
                Loop::Closed { clients, .. } => format!("closed loop, {clients} clients"),
            };
            let mut report = ClassReport::new(class.name.clone(), load, class.deadline, stats, seconds);
            report.goodput_rows_per_second *= f64::from(class.batch);
            total_rows += report.goodput_rows_per_second;
            classes.push(report);
            sum.add(stats);
        }
        let deadline = if let [only] = &plan.classes[..] { only.deadline } else { None };
        let mut total = ClassReport::new("total".into(), format!("{} classes", classes.len()), deadline, &sum, seconds);
        total.goodput_rows_per_second = total_rows;
        // Refusals of classes without a deadline are neither early nor late.
        let timed: u64 = classes.iter().filter(|class| class.deadline_ms.is_some()).map(|class| class.refused).sum();
        total.refused_early_fraction = fraction(sum.refused_early, timed);
        Self { seconds, answered_seconds, interrupted, classes, total }
    }

    /// One JSON object.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("the report is numbers and strings")
    }
}

fn fraction(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

impl ClassReport {
    fn new(name: String, load: String, deadline: Option<Duration>, stats: &Stats, seconds: f64) -> Self {
        let per_second = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        Self {
            name,
            load,
            deadline_ms: deadline.map(Duration::as_millis_f64),
            requests: stats.sent,
            rate_rps: per_second(stats.sent),
            goodput_rps: per_second(stats.good),
            goodput_rows_per_second: per_second(stats.good),
            successes: stats.successes,
            good: stats.good,
            late: stats.late,
            late_from_send: stats.late_from_send,
            refused: stats.refusals(),
            refused_by_reason: stats.refused.clone(),
            refused_early_fraction: fraction(stats.refused_early, stats.refusals()).filter(|_| deadline.is_some()),
            refused_at_once_fraction: fraction(stats.refused_at_once, stats.refusals()),
            refused_late: stats.refused_late,
            refused_late_from_send: stats.refused_late_from_send,
            errors: stats.failures(),
            errors_by_reason: stats.errors.clone(),
            unanswered: stats.open(),
            latency_ms: Quantiles::new(&stats.success_latency),
            refusal_ms: Quantiles::new(&stats.refusal_latency),
            send_lag_ms: Quantiles::new(&stats.send_lag),
        }
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = if self.interrupted { ", interrupted" } else { "" };
        writeln!(f, "{:.1} s counted{cut}", self.seconds)?;
        for class in &self.classes {
            write!(f, "\n{class}")?;
        }
        if self.classes.len() > 1 {
            write!(f, "\n{}", self.total)?;
        }
        Ok(())
    }
}

impl fmt::Display for ClassReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let deadline = self.deadline_ms.map_or(String::new(), |deadline| format!(", deadline {deadline} ms"));
        writeln!(f, "{} ({}{deadline})", self.name, self.load)?;
        let share = |count: u64| 100.0 * count as f64 / self.requests.max(1) as f64;
        let mut line = |name: &str, count: u64, rest: String| {
            let line = format!("  {name:<24} {count:>10} {:>6.2} %  {rest}", share(count));
            writeln!(f, "{}", line.trim_end())
        };
        line("requests", self.requests, format!("{:.1}/s", self.rate_rps))?;
        line("good", self.good, format!("{:.1}/s goodput", self.goodput_rps))?;
        let also_late = |count: u64| format!("{count} of them also late from the actual send");
        line("late", self.late, if self.late > 0 { also_late(self.late_from_send) } else { String::new() })?;
        let mut when = Vec::new();
        when.extend(self.refused_at_once_fraction.map(|part| format!("{:.1} % within 1 ms", 100.0 * part)));
        when.extend(self.refused_early_fraction.map(|early| {
            format!("{:.1} % with half of the deadline left, {} after it", 100.0 * early, self.refused_late)
        }));
        let early = when.join(", ");
        line("refused", self.refused, early)?;
        for (reason, &count) in &self.refused_by_reason {
            line(&format!("  {reason}"), count, String::new())?;
        }
        line("errors", self.errors, String::new())?;
        for (reason, &count) in &self.errors_by_reason {
            line(&format!("  {reason}"), count, String::new())?;
        }
        if self.unanswered > 0 {
            line("unanswered", self.unanswered, String::new())?;
        }
        writeln!(
            f,
            "  {:<24} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
            "ms", "p50", "p90", "p99", "p99.9", "p99.99", "max"
        )?;
        for (name, spread) in
            [("success", self.latency_ms), ("refusal", self.refusal_ms), ("send lag", self.send_lag_ms)]
        {
            if spread.count > 0 {
                let Quantiles { p50, p90, p99, p999, p9999, max, .. } = spread;
                writeln!(f, "  {name:<24} {p50:>9.3} {p90:>9.3} {p99:>9.3} {p999:>9.3} {p9999:>9.3} {max:>9.3}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{RequestOutcome, RequestTimes};
    use expect_test::expect;

    #[test]
    fn the_table_shows_successes_and_refusals_apart() {
        let deadline = Some(Duration::from_millis(20));
        let mut stats = Stats::new(deadline);
        stats.sent = 1000;
        for index in 0..999u64 {
            let intended = Duration::from_millis(index);
            let sent = intended + Duration::from_micros(100);
            let answered = intended + Duration::from_micros(1_000 + index * 22);
            let outcome = match index % 10 {
                0 => RequestOutcome::Refused("overloaded".into()),
                1 => RequestOutcome::Error("bad_input".into()),
                _ => RequestOutcome::Success,
            };
            stats.record(RequestTimes { intended, sent, answered }, &outcome);
        }
        let report = ClassReport::new("fast".into(), "open loop".into(), deadline, &stats, 2.0);
        expect![[r#"
            fast (open loop, deadline 20 ms)
              requests                       1000 100.00 %  500.0/s
              good                            690  69.00 %  345.0/s goodput
              late                            109  10.90 %  104 of them also late from the actual send
              refused                         100  10.00 %  1.0 % within 1 ms, 41.0 % with half of the deadline left, 13 after it
                overloaded                    100  10.00 %
              errors                          100  10.00 %
                bad_input                     100  10.00 %
              unanswered                        1   0.10 %
              ms                             p50       p90       p99     p99.9    p99.99       max
              success                     11.985    20.791    22.774    22.970    22.970    22.970
              refusal                     11.780    20.595    22.561    22.790    22.790    22.790
              send lag                     0.100     0.100     0.100     0.100     0.100     0.100
        "#]]
        .assert_eq(&report.to_string());
    }
}
