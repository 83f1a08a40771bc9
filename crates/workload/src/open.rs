//! Open-loop arrivals: clients that don't wait for answers.

use crate::{Random, RateCurve};
use base::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

/// One request to send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Arrival {
    /// When, counted from the start of the workload.
    pub offset: Duration,
    /// For which model.
    pub model: u32,
}

/// How the gaps between a model's requests are distributed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Process {
    /// All equal.
    Uniform,
    /// Exponential: requests that know nothing of each other.
    Poisson,
    /// Gamma with that shape: 1 is Poisson, below 1 is burstier (the squared coefficient of variation is `1 / shape`).
    Gamma {
        /// The shape, above 0.
        shape: f64,
    },
}

impl Process {
    /// A gap with mean 1.
    fn gap(self, random: &mut Random) -> f64 {
        match self {
            Self::Uniform => 1.0,
            Self::Poisson => random.exponential(),
            Self::Gamma { shape } => random.gamma(shape) / shape,
        }
    }

    /// The wait until the first request for somebody who comes at a random time: a random part of a gap that is drawn
    /// in proportion to its length. Without it all streams would start in step, with a burst where gaps are often
    /// short.
    fn first_gap(self, random: &mut Random) -> f64 {
        let part = random.unit();
        match self {
            Self::Uniform => part,
            Self::Poisson => random.exponential(),
            Self::Gamma { shape } => part * random.gamma(shape + 1.0) / shape,
        }
    }
}

/// The requests for one model: a process whose rate is `share` of a curve, from an instant on.
#[derive(Clone, Debug)]
pub struct Stream {
    /// The model that is asked for.
    pub model: u32,
    /// How the gaps are distributed.
    pub process: Process,
    /// The rate over time.
    pub curve: RateCurve,
    /// How much of the curve is this stream's.
    pub share: f64,
    /// Nothing comes before this.
    pub starts_at: Duration,
}

/// Many independent streams, merged in the order of time. Each has its own random numbers, so a stream's arrivals don't
/// depend on which others there are. An arrival costs `O(log streams)` and no allocation.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    streams: Vec<RunningStream>,
    /// The next arrival of each stream that has one.
    next: BinaryHeap<Reverse<(Duration, u32)>>,
}

#[derive(Clone, Debug)]
struct RunningStream {
    stream: Stream,
    random: Random,
    at_secs: f64,
    cursor: usize,
}

impl OpenLoop {
    /// The merged arrivals of those streams under that seed.
    pub fn new(streams: impl IntoIterator<Item = Stream>, seed: u64) -> Self {
        let mut streams: Vec<RunningStream> = streams
            .into_iter()
            .enumerate()
            .map(|(index, stream)| RunningStream::new(stream, seed, index as u64))
            .collect();
        let first = |(index, running): (usize, &mut RunningStream)| {
            let gap = running.stream.process.first_gap(&mut running.random);
            running.advance(gap).map(|offset| Reverse((offset, index as u32)))
        };
        let next = streams.iter_mut().enumerate().filter_map(first).collect();
        Self { streams, next }
    }
}

impl RunningStream {
    fn new(stream: Stream, seed: u64, index: u64) -> Self {
        let at_secs = stream.starts_at.as_secs_f64();
        let cursor = stream.curve.cursor(at_secs);
        Self { stream, random: Random::new(seed, index), at_secs, cursor }
    }

    fn advance(&mut self, gap: f64) -> Option<Duration> {
        if self.stream.share <= 0.0 {
            return None;
        }
        self.at_secs = self.stream.curve.advance(&mut self.cursor, self.at_secs, gap / self.stream.share)?;
        Some(Duration::from_secs_f64(self.at_secs))
    }
}

impl Iterator for OpenLoop {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mut top = self.next.peek_mut()?;
        let Reverse((offset, index)) = *top;
        let running = &mut self.streams[index as usize];
        let gap = running.stream.process.gap(&mut running.random);
        match running.advance(gap) {
            Some(next) => top.0.0 = next,
            None => drop(PeekMut::pop(top)),
        }
        Some(Arrival { offset, model: running.stream.model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(model: u32, process: Process, rate: f64) -> Stream {
        Stream { model, process, curve: RateCurve::constant(rate), share: 1.0, starts_at: Duration::ZERO }
    }

    fn within(streams: Vec<Stream>, seconds: u64) -> Vec<Arrival> {
        OpenLoop::new(streams, 11).take_while(|arrival| arrival.offset < Duration::from_secs(seconds)).collect()
    }

    #[test]
    fn every_process_keeps_its_rate_and_its_burstiness() {
        for (process, variation) in [
            (Process::Uniform, 0.0),
            (Process::Poisson, 1.0),
            (Process::Gamma { shape: 0.25 }, 4.0),
            (Process::Gamma { shape: 4.0 }, 0.25),
        ] {
            let arrivals = within(vec![stream(0, process, 500.0)], 200);
            assert!((arrivals.len() as f64 / 100_000.0 - 1.0).abs() < 0.03, "{process:?}: {}", arrivals.len());
            let gaps: Vec<f64> =
                arrivals.windows(2).map(|pair| (pair[1].offset - pair[0].offset).as_secs_f64() * 500.0).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            assert!((variance - variation).abs() < 0.1 * variation + 1e-6, "{process:?}: {variance}");
        }
    }

    #[test]
    fn bursty_streams_do_not_all_begin_with_a_burst() {
        let process = Process::Gamma { shape: 0.05 };
        let arrivals = within((0..2000).map(|model| stream(model, process, 1.0)).collect(), 10);
        let early = arrivals.iter().filter(|arrival| arrival.offset < Duration::from_secs(1)).count();
        assert!((1200..2800).contains(&early), "{early} in the first second instead of about 2000");
    }

    #[test]
    fn arrivals_ascend_and_a_stream_does_not_depend_on_the_others() {
        let many = within((0..100).map(|model| stream(model, Process::Poisson, 5.0)).collect(), 20);
        assert!(many.is_sorted());
        let alone = within(vec![stream(0, Process::Poisson, 5.0)], 20);
        assert_eq!(many.iter().copied().filter(|arrival| arrival.model == 0).collect::<Vec<_>>(), alone);
    }

    #[test]
    fn a_growing_set_of_models_shares_one_rate() {
        let curve = RateCurve::spread(1000.0, 60, Duration::from_secs(1), Duration::from_secs(1));
        let streams = (0..60).map(|model| Stream {
            model,
            process: Process::Poisson,
            curve: curve.clone(),
            share: 1.0,
            starts_at: Duration::from_secs(1 + u64::from(model)),
        });
        let arrivals = within(streams.collect(), 120);
        for second in [1u64, 5, 30, 59, 100] {
            let inside =
                |a: &&Arrival| a.offset >= Duration::from_secs(second) && a.offset < Duration::from_secs(second + 1);
            let count = arrivals.iter().filter(inside).count();
            assert!((850..1150).contains(&count), "{count} in second {second}");
        }
        let first_of_40 = arrivals.iter().find(|arrival| arrival.model == 40).unwrap();
        assert!(first_of_40.offset >= Duration::from_secs(41));
    }

    #[test]
    fn streams_that_end_are_dropped() {
        let curve = RateCurve::steps([(Duration::ZERO, 100.0), (Duration::from_secs(1), 0.0)]);
        let streams = [Stream { model: 3, process: Process::Uniform, curve, share: 0.5, starts_at: Duration::ZERO }];
        let arrivals: Vec<_> = OpenLoop::new(streams, 1).collect();
        assert!((49..=50).contains(&arrivals.len()));
    }
}
