//! Recorded arrivals, one line for each request.

use crate::{Arrival, Random};
use base::Duration;
use std::io::BufRead;

/// Why a trace can't be read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file can't be read.
    #[error("the trace can't be read: {0}")]
    Read(#[from] std::io::Error),
    /// The header isn't that of a known kind of trace.
    #[error("the trace begins with {found:?}, which is no known header: expected a first column named {expected}")]
    Header {
        /// The first line.
        found: String,
        /// What would have been understood.
        expected: &'static str,
    },
    /// A line isn't what the header promises.
    #[error("line {line} of the trace has {found:?} where {expected} is expected")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// What stands there.
        found: String,
        /// What should.
        expected: &'static str,
    },
    /// There is nothing in it.
    #[error("the trace has no request in it")]
    Empty,
}

/// The arrival times of a recorded workload.
#[derive(Clone, PartialEq, Debug)]
pub struct RequestTrace {
    /// Offsets from the first request, ascending.
    offsets: Vec<Duration>,
}

impl RequestTrace {
    /// Reads lines of comma-separated values whose first column, `TIMESTAMP`, is a date and time (as in the Azure LLM
    /// inference traces) or a number of seconds. Other columns are ignored, lines may come in any order.
    pub fn read(input: impl BufRead) -> Result<Self, TraceError> {
        let mut lines = input.lines();
        let header = lines.next().ok_or(TraceError::Empty)??;
        let first = header.trim_start_matches('\u{feff}').split(',').next().unwrap_or_default();
        if !first.trim().eq_ignore_ascii_case("timestamp") {
            return Err(TraceError::Header { found: shortened(&header), expected: "TIMESTAMP" });
        }
        let mut nanos = Vec::new();
        for (index, line) in lines.enumerate() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            let field = line.split(',').next().unwrap_or_default().trim();
            let at = parse_instant(field).ok_or_else(|| TraceError::Line {
                line: index + 2,
                found: shortened(field),
                expected: "a time like 2023-11-16 18:15:46.680 or a number of seconds",
            })?;
            nanos.push(at);
        }
        nanos.sort_unstable();
        let origin = *nanos.first().ok_or(TraceError::Empty)?;
        let offset = |at: i128| Duration::from_nanos(u64::try_from(at - origin).unwrap_or(u64::MAX));
        Ok(Self { offsets: nanos.into_iter().map(offset).collect() })
    }

    /// How many requests there are.
    pub fn len(&self) -> usize {
        self.offsets.len()
    }

    /// Whether there is none; a trace that was read has some.
    pub fn is_empty(&self) -> bool {
        self.offsets.is_empty()
    }

    /// From the first request to the last.
    pub fn span(&self) -> Duration {
        self.offsets.last().copied().unwrap_or_default()
    }

    /// Requests per second as recorded.
    pub fn rate(&self) -> f64 {
        self.len() as f64 / self.span().as_secs_f64().max(1e-9)
    }

    /// The arrivals, again and again, with all times multiplied by `stretch` (below 1: faster), each for a model drawn
    /// by those shares.
    pub fn replay(&self, shares: &[f64], stretch: f64, seed: u64) -> Replay {
        let mut sum = 0.0;
        let cumulated = shares.iter().map(|share| {
            sum += share;
            sum
        });
        Replay {
            cumulated: cumulated.collect(),
            offsets: self.offsets.clone(),
            period: (self.span() + self.span() / self.len().max(1) as u64).max(Duration::from_nanos(1)),
            stretch,
            next: 0,
            round: 0,
            random: Random::new(seed, 0),
        }
    }
}

/// A trace being replayed; it starts over when it ends.
#[derive(Clone, Debug)]
pub struct Replay {
    offsets: Vec<Duration>,
    cumulated: Vec<f64>,
    period: Duration,
    stretch: f64,
    next: usize,
    round: u64,
    random: Random,
}

impl Iterator for Replay {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let recorded = *self.offsets.get(self.next)? + self.period * self.round;
        self.next += 1;
        if self.next == self.offsets.len() {
            self.next = 0;
            self.round += 1;
        }
        let total = self.cumulated.last().copied()?;
        let point = self.random.unit() * total;
        let model = self.cumulated.partition_point(|&sum| sum <= point).min(self.cumulated.len() - 1);
        Some(Arrival { offset: recorded.mul_f64(self.stretch), model: model as u32 })
    }
}

/// Nanoseconds of a date with a time, or of a number of seconds; only differences mean anything.
fn parse_instant(text: &str) -> Option<i128> {
    if let Ok(seconds) = text.parse::<f64>() {
        return (seconds.is_finite() && seconds.abs() < 1e12).then_some((seconds * 1e9).round() as i128);
    }
    let (date, time) = text.split_once([' ', 'T'])?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || !(0..=9999).contains(&year) {
        return None;
    }
    let time = time.trim_end_matches('Z').split_once('+').map_or(time.trim_end_matches('Z'), |(time, _)| time);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<u32>().ok()?, time.next()?.parse::<u32>().ok()?);
    let seconds = time.next()?;
    let (seconds, fraction) = seconds.split_once('.').unwrap_or((seconds, ""));
    let seconds = seconds.parse::<u32>().ok()?;
    if hour > 23 || minute > 59 || seconds > 60 || fraction.len() > 9 {
        return None;
    }
    let nanos: u32 = if fraction.is_empty() { 0 } else { format!("{fraction:0<9}").parse().ok()? };
    let seconds = days(year, month, day) * 86_400 + i64::from(hour * 3_600 + minute * 60 + seconds);
    Some(i128::from(seconds) * 1_000_000_000 + i128::from(nanos))
}

/// Days since some fixed day in the Gregorian calendar, years counted from March so that the leap day comes last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + (153 * month + 2) / 5 + day
}

/// At most 60 characters of what a file holds, for a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "TIMESTAMP,ContextTokens,GeneratedTokens\n\
        2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n2023-11-17 18:15:46.6805900,1,1\n";

    #[test]
    fn offsets_count_from_the_first_line() {
        let trace = RequestTrace::read(LINES.as_bytes()).unwrap();
        assert_eq!(trace.offsets, [0, 4_314_579_000, 86_400_000_000_000].map(Duration::from_nanos));
        let seconds = RequestTrace::read("timestamp\n5\n3.5\n".as_bytes()).unwrap();
        assert_eq!(seconds.offsets, [0, 1_500_000_000].map(Duration::from_nanos));
        let whole = RequestTrace::read("timestamp\n2024-02-28T23:59:59Z\n2024-03-01T00:00:00Z\n".as_bytes()).unwrap();
        assert_eq!(whole.span(), Duration::from_secs(86_401));
    }

    #[test]
    fn bad_files_say_where() {
        let message = |text: &str| RequestTrace::read(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(
            message("a,b\n"),
            r#"the trace begins with "a,b", which is no known header: expected a first column named TIMESTAMP"#
        );
        assert_eq!(
            message("TIMESTAMP\n1\nsoon\n"),
            r#"line 3 of the trace has "soon" where a time like 2023-11-16 18:15:46.680 or a number of seconds is expected"#
        );
        assert_eq!(message("TIMESTAMP\n"), "the trace has no request in it");
        for broken in [
            "2023-13-01 00:00:00.0",
            "2023-01-01 24:00:00.0",
            "2023-01-01",
            "nan",
            "1:2:3",
            "2023-01-01 1:1:1.0000000001",
        ] {
            assert_eq!(parse_instant(broken), None, "{broken}");
        }
    }

    #[test]
    fn a_replay_is_stretched_and_starts_over() {
        let trace = RequestTrace::read("timestamp\n0\n1\n3\n".as_bytes()).unwrap();
        let replay: Vec<_> = trace.replay(&[1.0], 0.5, 1).take(5).map(|arrival| arrival.offset.as_secs_f64()).collect();
        assert_eq!(replay, [0.0, 0.5, 1.5, 2.0, 2.5]);
    }

    #[test]
    fn models_are_drawn_by_their_shares() {
        let trace = RequestTrace::read("timestamp\n0\n1\n".as_bytes()).unwrap();
        let drawn = trace.replay(&[0.25, 0.0, 0.75], 1.0, 5).take(10_000).map(|arrival| arrival.model);
        let counts = drawn.fold([0; 3], |mut counts, model| {
            counts[model as usize] += 1;
            counts
        });
        assert_eq!(counts[1], 0);
        assert!((2_300..2_700).contains(&counts[0]), "{counts:?}");
    }
}
