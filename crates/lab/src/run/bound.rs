//! What no policy can exceed, however much it knows: the rate at which the devices would be busy all the time if every
//! model's arrivals were cut into batches in the cheapest way that deadlines allow.
//!
//! Two things are left out, so that what remains can be solved: devices never stand idle and never run short, and
//! batches of different models never compete for the same instant. A batch of requests that arrive from `a` to `z` can
//! make its deadlines if `z + l(b) <= a + objective`. Requests of one model have equal objectives, so batches are made
//! of neighbours, and the cheapest way to cut a stream is a shortest path:
//!
//! ```text
//!   cost(after j) = min over i of  cost(after i) + l(served of i..j) + price x (dropped of i..j)
//!                   or             cost(before j) + price                       j alone is dropped
//! ```
//!
//! For a line `alpha b + beta` without drops this is the greedy cut into the fewest batches. A policy may lose a part
//! `max_bad` of the requests, and would lose those that save most. The price of a drop stands for this: for any price,
//! the cost of the cheapest cut less `price x max_bad x requests` is at most what the devices must do (Lagrangian
//! dual), and the best price is found where the cheapest cut drops just that part. With `max_bad_of = "each"` every
//! model has its own price, else all have one.
//!
//! Streams are finite, so a bound is right to about one per cent.

use crate::run::experiment::MaxBadOf;
use crate::run::traffic::Workload;
use sim::{ModelSetup, Setup};

/// Requests of the average model, of all together at least, and at most.
const REQUESTS_EACH: usize = 6_000;
const REQUESTS: (usize, usize) = (40_000, 400_000);
/// The rate at which streams are drawn; all others are the same arrivals at another speed.
const DRAWN_AT: f64 = 1_000.0;
/// The search for the best price ends after so many, or when it gains less than this part.
const MAX_PRICES: usize = 24;
const ENOUGH: f64 = 1e-4;
/// The search for a rate ends after so many, or when devices are busy to this part of themselves.
const MAX_RATES: usize = 30;
const BUSY: f64 = 3e-4;

/// A world's models with their arrivals.
pub(crate) struct Bound {
    streams: Vec<ModelArrivals>,
    devices: f64,
    max_bad: f64,
    whose: MaxBadOf,
}

/// The arrivals of one model.
struct ModelArrivals {
    /// In seconds, as drawn.
    at: Vec<f64>,
    /// How many requests of the model's share each of these stands for: about 1, because they were drawn by chance.
    weight: f64,
    /// Seconds from arrival to deadline.
    objective: f64,
    /// Requests in a batch of each size, and seconds that it takes, ascending.
    sizes: Vec<(usize, f64)>,
}

/// A cut of streams: its cost in seconds, and how many requests it drops.
#[derive(Clone, Copy, Default)]
struct Cut {
    cost: f64,
    dropped: f64,
}

impl Bound {
    /// For a world in which all models share one rate and have objectives, and requests of a model take the same time.
    pub(crate) fn new(setup: &Setup, workload: &Workload, max_bad: f64, whose: MaxBadOf) -> Option<Self> {
        let plain = |model: &ModelSetup| model.slo.is_some() && model.inputs.is_none();
        if !setup.pipelines.is_empty() || !workload.all_share_the_rate() || !setup.models.iter().all(plain) {
            return None;
        }
        let mut streams: Vec<ModelArrivals> = setup.models.iter().map(ModelArrivals::new).collect();
        let wanted = (REQUESTS_EACH * streams.len()).clamp(REQUESTS.0, REQUESTS.1);
        for arrival in workload.traffic(DRAWN_AT, 1).open?.take(wanted) {
            streams[arrival.model as usize].at.push(arrival.offset.as_secs_f64());
        }
        let drawn: usize = streams.iter().map(|stream| stream.at.len()).sum();
        for (stream, share) in streams.iter_mut().zip(workload.shares().into_iter().flatten()) {
            stream.weight = share * drawn as f64 / (stream.at.len().max(1) as f64);
        }
        Some(Self { streams, devices: f64::from(setup.devices), max_bad, whose })
    }

    /// The highest rate that could be offered; part of it would be dropped.
    pub(crate) fn highest_rate(&self) -> f64 {
        // Devices needed grow a little slower than the rate, because batches grow: nearly a power of it.
        let (mut rate, mut power) = (self.devices, 0.8);
        let mut last: Option<(f64, f64)> = None;
        for _ in 0..MAX_RATES {
            let needed = self.devices(rate) / self.devices;
            if !needed.is_finite() || needed <= 0.0 {
                return 0.0;
            }
            if (needed - 1.0).abs() < BUSY {
                break;
            }
            if let Some((rate_before, needed_before)) = last {
                power = ((needed / needed_before).ln() / (rate / rate_before).ln()).clamp(0.3, 1.0);
            }
            last = Some((rate, needed));
            rate *= needed.powf(-1.0 / power);
        }
        rate
    }

    /// How many devices are busy at least with that rate.
    pub(crate) fn devices(&self, rate: f64) -> f64 {
        let speed = rate / DRAWN_AT;
        let busy = match self.whose {
            MaxBadOf::Each => {
                self.streams.iter().map(|stream| self.least_cost(std::slice::from_ref(stream), speed)).sum()
            }
            MaxBadOf::All => self.least_cost(&self.streams, speed),
        };
        busy * rate / requests(&self.streams).max(1.0)
    }

    /// Seconds of devices for these streams with `max_bad` of their requests dropped, those that save most.
    fn least_cost(&self, streams: &[ModelArrivals], speed: f64) -> f64 {
        let may_drop = requests(streams) * self.max_bad;
        let cut = |price: f64| {
            let mut all = Cut::default();
            for stream in streams {
                let one = stream.cut(price, speed * stream.weight);
                all.cost += one.cost * stream.weight;
                all.dropped += one.dropped * stream.weight;
            }
            all
        };
        // For nothing everything is dropped; above the price of the dearest single request nothing is that can be
        // served.
        let dearest = streams.iter().map(|stream| stream.sizes[0].1).fold(0.0, f64::max) * 1.01;
        let mut low = (0.0, Cut { cost: 0.0, dropped: requests(streams) });
        let mut high = (dearest, cut(dearest));
        let value = |(price, cut): (f64, Cut)| cut.cost - price * may_drop;
        let mut best = value(high).max(0.0);
        if high.1.dropped > may_drop {
            // More can't be served at all than may be dropped: no device helps.
            return f64::INFINITY;
        }
        for _ in 0..MAX_PRICES {
            // Each cut is a line above which the dual never is: next is where the two meet.
            let slopes = low.1.dropped - high.1.dropped;
            let at = |(price, cut): (f64, Cut)| cut.cost - price * cut.dropped;
            if slopes <= 0.0 {
                break;
            }
            let price = (at(high) - at(low)) / slopes;
            let met = (price, cut(price));
            let promised = at(low) + price * (low.1.dropped - may_drop);
            best = best.max(value(met));
            if promised - best <= ENOUGH * best {
                break;
            }
            if met.1.dropped > may_drop { low = met } else { high = met }
        }
        best
    }
}

fn requests(streams: &[ModelArrivals]) -> f64 {
    streams.iter().map(|stream| stream.at.len() as f64 * stream.weight).sum()
}

impl ModelArrivals {
    fn new(model: &ModelSetup) -> Self {
        let rows = model.rows.max(1);
        let mut sizes: Vec<(usize, f64)> = Vec::new();
        for entry in model.spec.profile.batches() {
            let requests = (entry.batch / rows) as usize;
            // A size that holds no more requests than a smaller one is never better.
            if requests > sizes.last().map_or(0, |last| last.0) {
                sizes.push((requests, entry.median.as_secs_f64()));
            }
        }
        Self { at: Vec::new(), weight: 1.0, objective: model.slo.unwrap_or_default().as_secs_f64(), sizes }
    }

    /// The cheapest cut where a drop has that price, with arrivals that much faster than drawn.
    fn cut(&self, price: f64, speed: f64) -> Cut {
        let count = self.at.len();
        let most = self.sizes.last().map_or(0, |last| last.0);
        // The smallest size for so many requests; and the size of which a full batch gains most against drops, among
        // the first so many sizes.
        let holds: Vec<usize> = (0..=most).map(|rows| self.sizes.partition_point(|size| size.0 < rows)).collect();
        let mut full: Vec<usize> = Vec::with_capacity(self.sizes.len());
        let gain = |index: usize| self.sizes[index].1 - price * self.sizes[index].0 as f64;
        for index in 0..self.sizes.len() {
            let before = full.last().copied().filter(|&best| gain(best) <= gain(index));
            full.push(before.unwrap_or(index));
        }
        let mut best = vec![Cut { cost: f64::INFINITY, dropped: 0.0 }; count + 1];
        best[0] = Cut::default();
        let improve = |at: &mut Cut, cost: f64, dropped: f64| {
            if cost < at.cost {
                *at = Cut { cost, dropped };
            }
        };
        for first in 0..count {
            let from = best[first];
            improve(&mut best[first + 1], from.cost + price, from.dropped + 1.0);
            let mut fits = self.sizes.len();
            for last in first..count.min(first + 2 * most) {
                let left = self.objective - (self.at[last] - self.at[first]) / speed;
                while fits > 0 && self.sizes[fits - 1].1 > left {
                    fits -= 1;
                }
                if fits == 0 {
                    break;
                }
                let asked = last - first + 1;
                if asked <= most && holds[asked] < fits {
                    improve(&mut best[last + 1], from.cost + self.sizes[holds[asked]].1, from.dropped);
                }
                // Full batches of smaller sizes; the requests between the first and the last that don't fit are
                // dropped.
                let smaller = fits.min(if asked > most { fits } else { holds[asked] });
                if smaller > 0 {
                    let (requests, takes) = self.sizes[full[smaller - 1]];
                    let dropped = (asked - requests.min(asked)) as f64;
                    improve(&mut best[last + 1], from.cost + takes + price * dropped, from.dropped + dropped);
                }
            }
        }
        best[count]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(at: Vec<f64>, objective: f64) -> ModelArrivals {
        ModelArrivals { at, weight: 1.0, objective, sizes: (1..=4).map(|size| (size, 1.0 + size as f64)).collect() }
    }

    #[test]
    fn the_cheapest_cut_has_the_fewest_batches() {
        // l(b) = b + 1, objective 6: with the others 3 apart, two fit together (3 + 3 <= 6), three don't.
        let even = stream((0..8).map(|index| f64::from(index) * 3.0).collect(), 6.0);
        let cut = even.cut(100.0, 1.0);
        assert_eq!((cut.cost, cut.dropped), (4.0 * 3.0, 0.0));
        // Twice as fast: batches of 3 (3 + 4 > 6 doesn't hold for 3 apart by 1.5: 3 + 4 = 7), so still of two.
        assert_eq!(even.cut(100.0, 2.0).cost, 4.0 * 3.0);
        // Six times as fast: four within 1.5 and 5 take 6.5 > 6, three within 1 and 4 take 5.
        assert_eq!(even.cut(100.0, 6.0).cost, 4.0 + 4.0 + 3.0);
    }

    #[test]
    fn drops_are_taken_where_they_save_most() {
        // A lonely request between two pairs: dropping it saves a batch.
        let lonely = stream(vec![0.0, 0.1, 50.0, 100.0, 100.1], 5.0);
        let cut = lonely.cut(1.75, 1.0);
        assert_eq!((cut.cost, cut.dropped), (3.0 + 1.75 + 3.0, 1.0));
        assert_eq!(lonely.cut(2.5, 1.0).dropped, 0.0);
        assert_eq!(lonely.cut(0.1, 1.0).dropped, 5.0, "cheaper than anything");
    }

    #[test]
    fn a_part_may_be_lost() {
        let lonely = stream((0..10).flat_map(|pair| [f64::from(pair) * 50.0; 2]).chain([1000.0]).collect(), 5.0);
        let bound = |max_bad| Bound { streams: Vec::new(), devices: 1.0, max_bad, whose: MaxBadOf::Each };
        let cost = |max_bad| bound(max_bad).least_cost(std::slice::from_ref(&lonely), 1.0);
        assert!((cost(0.0) - 32.0).abs() < 0.01, "{}", cost(0.0));
        assert!((cost(1.0 / 21.0) - 30.0).abs() < 0.01, "{}", cost(1.0 / 21.0));
    }
}
