//! The Azure Functions trace of 2019 (Shahrad et al., ATC 2020): how often each function was called in each minute of a
//! day. A reader of its files, and a stand-in for those who don't have them.

use crate::trace::shortened;
use crate::{Arrival, Random, TraceError};
use base::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufRead, Write};
use std::sync::Arc;

const MINUTES_PER_DAY: u32 = 1440;
const COLUMNS_BEFORE_COUNTS: usize = 4;

/// Calls per minute of many functions. Minutes without calls take no memory: most functions are called rarely.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FunctionTrace {
    /// For each function, the minutes in which it was called and how often, ascending.
    functions: Vec<Vec<(u32, u32)>>,
    minutes: u32,
}

impl FunctionTrace {
    /// Reads one day's file: `HashOwner,HashApp,HashFunction,Trigger`, then a count for each minute (columns `1` to
    /// `1440` in the original; fewer are fine).
    pub fn read(input: impl BufRead) -> Result<Self, TraceError> {
        let mut lines = input.lines();
        let header = lines.next().ok_or(TraceError::Empty)??;
        let columns: Vec<&str> = header.trim_start_matches('\u{feff}').trim_end().split(',').collect();
        if columns.first() != Some(&"HashOwner") || columns.len() <= COLUMNS_BEFORE_COUNTS {
            let expected = "HashOwner, then HashApp, HashFunction, Trigger and a column for each minute";
            return Err(TraceError::Header { found: shortened(&header), expected });
        }
        let minutes = (columns.len() - COLUMNS_BEFORE_COUNTS) as u32;
        let mut functions = Vec::new();
        for (index, line) in lines.enumerate() {
            let line = line?;
            if !line.trim().is_empty() {
                functions.push(parse_counts(&line, index + 2, minutes)?);
            }
        }
        if functions.is_empty() { Err(TraceError::Empty) } else { Ok(Self { functions, minutes }) }
    }

    /// Writes the same schema.
    pub fn write(&self, mut output: impl Write) -> io::Result<()> {
        write!(output, "HashOwner,HashApp,HashFunction,Trigger")?;
        for minute in 1..=self.minutes {
            write!(output, ",{minute}")?;
        }
        for (index, counts) in self.functions.iter().enumerate() {
            write!(output, "\nowner{index},app{index},function{index},http")?;
            let mut counts = counts.iter().copied().peekable();
            for minute in 0..self.minutes {
                let count = counts.next_if(|&(at, _)| at == minute).map_or(0, |(_, count)| count);
                write!(output, ",{count}")?;
            }
        }
        writeln!(output)
    }

    /// How many functions there are.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// How many minutes it covers.
    pub fn minutes(&self) -> u32 {
        self.minutes
    }

    /// All calls of one function.
    pub fn calls(&self, function: usize) -> u64 {
        self.functions[function].iter().map(|&(_, count)| u64::from(count)).sum()
    }

    /// Calls per second of all functions together, on average.
    pub fn rate(&self) -> f64 {
        let calls: u64 = (0..self.functions()).map(|function| self.calls(function)).sum();
        calls as f64 / (f64::from(self.minutes) * 60.0)
    }

    /// The calls as requests: function `i` asks for model `i mod models`, counts are multiplied by `factor` (a fraction
    /// of a call becomes a call with that probability), and the calls of a minute fall anywhere in it with equal
    /// chance.
    pub fn replay(self: &Arc<Self>, models: u32, factor: f64, seed: u64) -> FunctionArrivals {
        let model = |index: usize| (index % models.max(1) as usize) as u32;
        let mut functions: Vec<RunningFunction> = (0..self.functions())
            .map(|index| RunningFunction::new(model(index), factor, Random::new(seed, index as u64)))
            .collect();
        let first = |(index, running): (usize, &mut RunningFunction)| {
            running.next(&self.functions[index]).map(|at| Reverse((at, index as u32)))
        };
        let next = functions.iter_mut().enumerate().filter_map(first).collect();
        FunctionArrivals { trace: Arc::clone(self), functions, next }
    }
}

fn parse_counts(line: &str, number: usize, minutes: u32) -> Result<Vec<(u32, u32)>, TraceError> {
    let mut counts = Vec::new();
    let mut seen = 0;
    for (minute, field) in line.trim_end().split(',').skip(COLUMNS_BEFORE_COUNTS).enumerate() {
        seen += 1;
        match field.trim().parse::<u32>() {
            Ok(0) => {}
            Ok(count) => counts.push((minute as u32, count)),
            Err(_) => {
                let expected = "a number of calls";
                return Err(TraceError::Line { line: number, found: shortened(field), expected });
            }
        }
    }
    if seen == minutes {
        return Ok(counts);
    }
    let expected = "one count for each minute of the header";
    Err(TraceError::Line { line: number, found: format!("{seen} counts"), expected })
}

/// Function calls in the order of time. A call costs `O(log functions)` and no allocation.
#[derive(Clone, Debug)]
pub struct FunctionArrivals {
    trace: Arc<FunctionTrace>,
    functions: Vec<RunningFunction>,
    next: BinaryHeap<Reverse<(Duration, u32)>>,
}

#[derive(Clone, Debug)]
struct RunningFunction {
    /// Minutes with calls that have begun.
    begun: usize,
    model: u32,
    factor: f64,
    random: Random,
    /// Calls that are still to come in the present minute, and where in it the last one was (0 to 1).
    left: u32,
    position: f64,
    minute: u32,
}

impl RunningFunction {
    fn new(model: u32, factor: f64, random: Random) -> Self {
        Self { begun: 0, model, factor, random, left: 0, position: 0.0, minute: 0 }
    }

    fn next(&mut self, counts: &[(u32, u32)]) -> Option<Duration> {
        while self.left == 0 {
            let &(minute, count) = counts.get(self.begun)?;
            self.begun += 1;
            let wanted = f64::from(count) * self.factor;
            self.left = wanted as u32 + u32::from(self.random.chance(wanted.fract()));
            self.minute = minute;
            self.position = 0.0;
        }
        // The smallest of `left` uniform numbers in what remains of the minute: sorted without a list to sort.
        let step = 1.0 - libm::pow(1.0 - self.random.unit(), 1.0 / f64::from(self.left));
        self.position += (1.0 - self.position) * step;
        self.left -= 1;
        Some(Duration::from_secs_f64((f64::from(self.minute) + self.position) * 60.0))
    }
}

impl Iterator for FunctionArrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mut top = self.next.peek_mut()?;
        let Reverse((offset, index)) = *top;
        let running = &mut self.functions[index as usize];
        let model = running.model;
        match running.next(&self.trace.functions[index as usize]) {
            Some(next) => top.0.0 = next,
            None => drop(std::collections::binary_heap::PeekMut::pop(top)),
        }
        Some(Arrival { offset, model })
    }
}

/// A made-up day with the published character of the real one (Shahrad et al., section 3): four functions in ten are
/// called at most once an hour and most of the others less than once a minute; one in a hundred carries most of the
/// calls, all day long; timers are 16 % of the functions and make 2 % of the calls, on the hour, the quarter and every
/// five minutes; some functions are called in bursts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StandIn {
    /// How many functions.
    pub functions: u32,
    /// How many minutes, at most a day's.
    pub minutes: u32,
    /// Calls per second of all together, about.
    pub rate: f64,
    /// The seed.
    pub seed: u64,
}

/// How a function is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Habit {
    Steady,
    Bursty,
    Timer,
    /// Between once an hour and once a minute.
    Occasional,
    /// At most once an hour.
    Rare,
}

/// Of a hundred functions, how many have each habit, and the part of all calls that they make together. What occasional
/// and rare ones call is their own, whatever the rate is.
const HABITS: [(Habit, u32, f64); 5] = [
    (Habit::Steady, 15, 0.85),
    (Habit::Bursty, 4, 0.13),
    (Habit::Timer, 16, 0.02),
    (Habit::Occasional, 25, 0.0),
    (Habit::Rare, 40, 0.0),
];

impl StandIn {
    /// The trace. The same settings give the same trace.
    pub fn generate(&self) -> FunctionTrace {
        let minutes = self.minutes.min(MINUTES_PER_DAY);
        let per_minute = self.rate * 60.0;
        let counts = |habit: Habit, of_calls: f64, mut random: Random, all: u32| {
            let mean = per_minute * of_calls / f64::from(all.max(1));
            match habit {
                Habit::Steady => steady_counts(&mut random, mean, minutes),
                Habit::Bursty => bursty_counts(&mut random, mean, minutes),
                Habit::Timer => timer_counts(&mut random, mean, minutes),
                Habit::Occasional => occasional_counts(&mut random, minutes),
                Habit::Rare => rare_counts(&mut random, minutes),
            }
        };
        let mut functions = Vec::with_capacity(self.functions as usize);
        for (habit, of_hundred, of_calls) in HABITS {
            let left = self.functions - functions.len() as u32;
            // The last habit has what rounding leaves; somebody must carry the calls.
            let all = if habit == Habit::Rare { left } else { (self.functions * of_hundred / 100).max(1).min(left) };
            for _ in 0..all {
                let random = Random::new(self.seed, functions.len() as u64);
                functions.push(counts(habit, of_calls, random, all));
            }
        }
        shuffle(&mut functions, &mut Random::new(self.seed, u64::from(self.functions)));
        FunctionTrace { functions, minutes }
    }
}

/// Which model a function asks for follows from its place, which must not follow from its habit.
fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for last in (1..items.len()).rev() {
        items.swap(last, random.below(last as u32 + 1) as usize);
    }
}

fn counted(minutes: u32, mut count: impl FnMut(u32) -> u32) -> Vec<(u32, u32)> {
    (0..minutes).map(|minute| (minute, count(minute))).filter(|&(_, count)| count > 0).collect()
}

/// A size whose logarithm has this deviation, and whose mean is 1.
fn spread(random: &mut Random, sigma: f64) -> f64 {
    random.lognormal(sigma) / libm::exp(sigma * sigma / 2.0)
}

fn steady_counts(random: &mut Random, mean: f64, minutes: u32) -> Vec<(u32, u32)> {
    // So wide that 1 % of all functions make four fifths of the steady calls.
    let mean = mean * spread(random, 2.5);
    counted(minutes, |_| random.poisson(mean))
}

fn bursty_counts(random: &mut Random, mean: f64, minutes: u32) -> Vec<(u32, u32)> {
    // On for about 5 minutes in 100, then 20 times the mean.
    let mean = mean * spread(random, 1.0) * 20.0;
    let mut on = random.chance(0.05);
    counted(minutes, |_| {
        on = if on { !random.chance(0.2) } else { random.chance(0.2 * 0.05 / 0.95) };
        if on { random.poisson(mean) } else { 0 }
    })
}

/// How many minutes are between two calls of a timer; half of all fire on the hour only.
const PERIODS: [u32; 4] = [5, 15, 60, 60];

fn timer_counts(random: &mut Random, mean: f64, minutes: u32) -> Vec<(u32, u32)> {
    // What a timer does when it fires doesn't depend on how often it fires.
    let fires_per_minute = PERIODS.iter().map(|&period| 1.0 / f64::from(period)).sum::<f64>() / PERIODS.len() as f64;
    let period = PERIODS[random.below(PERIODS.len() as u32) as usize];
    let calls = mean / fires_per_minute * spread(random, 1.0);
    counted(minutes, |minute| if minute % period == 0 { random.poisson(calls) } else { 0 })
}

fn occasional_counts(random: &mut Random, minutes: u32) -> Vec<(u32, u32)> {
    // From 1/60 to 1 call a minute, every order of magnitude equally often.
    let mean = libm::pow(60.0, random.unit() - 1.0);
    counted(minutes, |_| random.poisson(mean))
}

fn rare_counts(random: &mut Random, minutes: u32) -> Vec<(u32, u32)> {
    let mean = random.unit() / 60.0;
    counted(minutes, |_| random.poisson(mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAND_IN: StandIn = StandIn { functions: 2000, minutes: 240, rate: 500.0, seed: 1 };

    #[test]
    fn what_is_written_is_read_back() {
        let trace = StandIn { functions: 50, minutes: 30, ..STAND_IN }.generate();
        let mut file = Vec::new();
        trace.write(&mut file).unwrap();
        assert_eq!(FunctionTrace::read(file.as_slice()).unwrap(), trace);
    }

    #[test]
    fn calls_fall_in_their_minute_and_ascend() {
        let file = "HashOwner,HashApp,HashFunction,Trigger,1,2,3\na,b,c,http,0,5,1\nd,e,f,timer,2,0,0\n";
        let trace = Arc::new(FunctionTrace::read(file.as_bytes()).unwrap());
        let arrivals: Vec<Arrival> = trace.replay(2, 1.0, 3).collect();
        assert!(arrivals.is_sorted());
        let found: Vec<_> = arrivals.iter().map(|a| (a.offset.as_nanos() / 60_000_000_000, a.model)).collect();
        assert_eq!(found, [(0, 1), (0, 1), (1, 0), (1, 0), (1, 0), (1, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn a_factor_scales_the_counts() {
        let trace = Arc::new(STAND_IN.generate());
        let (whole, half) = (trace.replay(10, 1.0, 1).count() as f64, trace.replay(10, 0.5, 1).count() as f64);
        assert!((half / whole - 0.5).abs() < 0.01, "{half} of {whole}");
    }

    #[test]
    fn the_stand_in_has_the_character_of_the_original() {
        let trace = Arc::new(STAND_IN.generate());
        assert!((trace.rate() / 500.0 - 1.0).abs() < 0.5, "{} calls a second", trace.rate());
        let mut calls: Vec<u64> = (0..trace.functions()).map(|function| trace.calls(function)).collect();
        let first: u64 = calls[..300].iter().sum();
        calls.sort_unstable_by_key(|&count| Reverse(count));
        let top: u64 = calls[..20].iter().sum();
        let all: u64 = calls.iter().sum();
        assert!(top as f64 / all as f64 > 0.6, "the top 1 % carry {top} of {all}");
        assert!(first < all / 2, "the busy ones stand among the others: the first 300 carry {first} of {all}");
        assert!(calls[800] <= 240, "60 % are called less than once a minute: {}", calls[800]);
        assert!(calls[1200] <= 8, "40 % are called less than once or twice an hour: {}", calls[1200]);
        let per_minute = trace.replay(1, 1.0, 1).fold(vec![0u32; 240], |mut counts, arrival| {
            counts[(arrival.offset.as_nanos() / 60_000_000_000) as usize] += 1;
            counts
        });
        let mean = |from: u32| (0..4).map(|hour| f64::from(per_minute[(hour * 60 + from) as usize])).sum::<f64>() / 4.0;
        assert!(mean(0) > mean(7) * 1.15, "{} on the hour, {} after it", mean(0), mean(7));
    }

    #[test]
    fn bad_files_say_where() {
        let message = |text: &str| FunctionTrace::read(text.as_bytes()).unwrap_err().to_string();
        let header = "HashOwner,HashApp,HashFunction,Trigger,1,2\n";
        assert_eq!(
            message(&format!("{header}a,b,c,http,1,many\n")),
            r#"line 2 of the trace has "many" where a number of calls is expected"#
        );
        assert_eq!(
            message(&format!("{header}a,b,c,http,1\n")),
            r#"line 2 of the trace has "1 counts" where one count for each minute of the header is expected"#
        );
        assert!(message("TIMESTAMP\n1\n").contains("no known header"));
    }
}
