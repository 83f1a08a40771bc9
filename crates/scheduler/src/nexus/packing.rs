//! Squishy bin packing (Nexus, section 6.1): which models share which device, with which batch sizes.
//!
//! A model's load first fills whole devices, each running batches of the largest size `B` with `2 l(B) <= objective`: a
//! request may have to wait for one batch before its own. What is left of each model goes to shared devices. There a
//! device goes round its models once in each *duty cycle* `d`; a model of rate `r` gathers `b = d r` requests in it,
//! which must be in time: `d + l(b) <= objective`. Two shared devices are merged when all their batches, for the
//! shorter of both cycles, fit into it; best fit, by how much of the cycle is in use.
//!
//! Nexus asks for as many devices as it needs. Here their number is given: rates are scaled up or down to the most that
//! the devices carry, so that all of them are used and the spare time is spread evenly. And because a device doesn't
//! wait for the end of its cycle when it has something to do, larger batches than the rates ask for are in time as
//! well, as long as one of each and a second one of the same model are: they take in what comes in bursts.

use crate::batch_times::BatchTimes;
use base::{Duration, ModelId};

/// The scale is found to this part of itself.
const TOLERANCE: f64 = 0.002;
/// Rates are scaled by no more than this either way.
const MOST: f64 = 1e6;

/// A model with its load.
#[derive(Clone, Copy, Debug)]
pub(super) struct ModelLoad<'a> {
    pub model: ModelId,
    pub times: &'a BatchTimes,
    pub objective: Duration,
    /// Rows in a second.
    pub rate: f64,
}

impl ModelLoad<'_> {
    /// What a batch takes, in seconds.
    fn takes(&self, batch: u32) -> f64 {
        self.times.class_for(batch).least_quantile().as_secs_f64()
    }

    /// The batch size of a device of its own, at least 1.
    fn saturated(&self) -> u32 {
        self.times.largest_within(self.objective / 2).max(1)
    }

    /// The largest batch that a rate gathers in time for the last of its requests, at least 1; with its duty cycle.
    fn residual(&self, rate: f64) -> (u32, f64) {
        let objective = self.objective.as_secs_f64();
        let sizes = self.times.classes().iter().rev().map(|class| class.batch);
        let fits = |&batch: &u32| self.takes(batch) + f64::from(batch) / rate <= objective;
        let batch = sizes.into_iter().find(fits).unwrap_or(1);
        // Slower than that and a lone request would be late.
        (batch, (f64::from(batch) / rate).min((objective - self.takes(batch)).max(self.takes(batch))))
    }
}

/// A model's part in a device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Share {
    pub model: ModelId,
    /// What its rate brings in a duty cycle.
    pub batch: u32,
    /// The largest batch that is run.
    pub most: u32,
    /// Rows in a second that should come here.
    pub rate: f64,
}

impl Share {
    fn new(demand: &ModelLoad<'_>, batch: u32, rate: f64) -> Self {
        Self { model: demand.model, batch, most: batch, rate }
    }
}

/// A device's plan.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Node {
    pub shares: Vec<Share>,
    /// In seconds.
    duty_cycle: f64,
    /// How much of the cycle is in use.
    occupancy: f64,
}

/// One plan for each device, at most `devices` of them.
pub(super) fn plan(demands: &[ModelLoad<'_>], devices: usize) -> Vec<Node> {
    if demands.is_empty() || devices == 0 {
        return Vec::new();
    }
    let fits = |scale: f64| Some(pack(demands, scale, devices)).filter(|nodes| nodes.len() <= devices);
    let (mut low, mut high) = (1.0, 1.0);
    let mut best = fits(low);
    while best.is_none() && low > 1.0 / MOST {
        high = low;
        low /= 4.0;
        best = fits(low);
    }
    let Some(mut best) = best else { return spread(demands, devices) };
    while high <= low && high < MOST {
        high *= 4.0;
        if let Some(nodes) = fits(high) {
            (low, best) = (high, nodes);
        }
    }
    while high - low > TOLERANCE * low {
        let middle = (low * high).sqrt();
        match fits(middle) {
            Some(nodes) => (low, best) = (middle, nodes),
            None => high = middle,
        }
    }
    best.iter_mut().for_each(|node| grow(demands, node));
    best
}

/// Makes batches as large as leaves all of them in time, the smallest first; then deals the spare time out to all
/// shares.
fn grow(demands: &[ModelLoad<'_>], node: &mut Node) {
    let takes = |share: &Share, most: u32| demand_of(demands, share.model).takes(most);
    let mut cycle: f64 = node.shares.iter().map(|share| takes(share, share.most)).sum();
    let mut growing: Vec<usize> = (0..node.shares.len()).collect();
    while !growing.is_empty() {
        growing.sort_by_key(|&index| node.shares[index].most);
        growing.retain(|&index| {
            let share = node.shares[index];
            let sizes = demand_of(demands, share.model).times.classes();
            let Some(next) = sizes.iter().map(|class| class.batch).find(|&size| size > share.most) else {
                return false;
            };
            let longer = cycle - takes(&share, share.most) + takes(&share, next);
            let in_time = node.shares.iter().enumerate().all(|(other, there)| {
                let most = if other == index { next } else { there.most };
                longer + takes(there, most) <= demand_of(demands, there.model).objective.as_secs_f64()
            });
            if in_time {
                (node.shares[index].most, cycle) = (next, longer);
            }
            in_time
        });
    }
    let work = |share: &Share| share.rate * takes(share, share.most) / f64::from(share.most);
    let busy: f64 = node.shares.iter().map(work).sum();
    node.shares.iter_mut().for_each(|share| share.rate /= busy.max(1e-9));
}

/// Packs all models with their rates multiplied by `scale`; stops early when more than `most` devices are needed.
fn pack(demands: &[ModelLoad<'_>], scale: f64, most: usize) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut residues: Vec<(usize, Node)> = Vec::new();
    for (index, demand) in demands.iter().enumerate() {
        let mut rate = demand.rate * scale;
        let batch = demand.saturated();
        let takes = demand.takes(batch);
        let throughput = f64::from(batch) / takes;
        // The search for the scale stops just below what fills a device.
        while rate >= throughput * (1.0 - 2.0 * TOLERANCE) {
            let shares = vec![Share::new(demand, batch, throughput)];
            nodes.push(Node { shares, duty_cycle: takes, occupancy: 1.0 });
            rate = (rate - throughput).max(0.0);
            if nodes.len() > most {
                return nodes;
            }
        }
        // What rounding leaves behind needs no device.
        let alone = demand.rate * scale < throughput * (1.0 - 2.0 * TOLERANCE);
        if alone || rate > throughput * 1e-6 {
            let (batch, duty_cycle) = demand.residual(rate);
            let shares = vec![Share::new(demand, batch, rate)];
            residues.push((index, Node { shares, duty_cycle, occupancy: demand.takes(batch) / duty_cycle }));
        }
    }
    residues.sort_by(|(a, one), (b, other)| other.occupancy.total_cmp(&one.occupancy).then(a.cmp(b)));
    let first_shared = nodes.len();
    for (_, residue) in residues {
        let merged = nodes[first_shared..].iter().enumerate();
        let merged = merged.filter_map(|(index, node)| Some((index, merge(demands, node, &residue)?)));
        // The fullest of those that hold it; of equal ones the first.
        let best = merged.reduce(|best, next| if next.1.occupancy > best.1.occupancy { next } else { best });
        match best {
            Some((index, node)) => nodes[first_shared + index] = node,
            None => nodes.push(residue),
        }
        if nodes.len() > most {
            break;
        }
    }
    nodes
}

/// Both on one device, if there is time.
fn merge(demands: &[ModelLoad<'_>], one: &Node, other: &Node) -> Option<Node> {
    let duty_cycle = one.duty_cycle.min(other.duty_cycle);
    let mut shares = Vec::with_capacity(one.shares.len() + other.shares.len());
    let mut busy = 0.0;
    for share in one.shares.iter().chain(&other.shares) {
        let demand = demand_of(demands, share.model);
        // Less than a whole row more than the cycle brings, so that none is left behind.
        let batch = ((duty_cycle * share.rate - 1e-9).ceil().max(1.0) as u32).min(demand.times.max_batch());
        busy += demand.takes(batch);
        if busy > duty_cycle || duty_cycle + demand.takes(batch) > demand.objective.as_secs_f64() {
            return None;
        }
        shares.push(Share { batch, most: batch, ..*share });
    }
    Some(Node { shares, duty_cycle, occupancy: busy / duty_cycle })
}

fn demand_of<'a, 'b>(demands: &'b [ModelLoad<'a>], model: ModelId) -> &'b ModelLoad<'a> {
    let index = demands.binary_search_by_key(&model, |demand| demand.model);
    &demands[index.expect("only models that are planned for are on nodes")]
}

/// Where no scale fits, because too many models must share a device for any of them to have its turn in time: all have
/// the same to do. Models with more than an average device's work are cut into pieces; each piece goes to the device
/// with the least work, large ones first.
fn spread(demands: &[ModelLoad<'_>], devices: usize) -> Vec<Node> {
    let work = |demand: &ModelLoad<'_>| demand.rate * demand.takes(demand.saturated()) / f64::from(demand.saturated());
    let average = demands.iter().map(work).sum::<f64>() / devices as f64;
    let mut pieces: Vec<(f64, Share)> = Vec::new();
    for demand in demands {
        let count = (work(demand) / average).ceil().clamp(1.0, devices as f64);
        let share = Share::new(demand, demand.saturated(), demand.rate / count);
        pieces.extend((0..count as usize).map(|_| (work(demand) / count, share)));
    }
    pieces.sort_by(|(a, one), (b, other)| b.total_cmp(a).then(one.model.cmp(&other.model)));
    let mut nodes = vec![Node::default(); devices];
    for (work, share) in pieces {
        let holds = |node: &Node| node.shares.iter().any(|there| there.model == share.model);
        let key = |&index: &usize| (holds(&nodes[index]), nodes[index].occupancy);
        let least = (0..devices).min_by(|a, b| key(a).0.cmp(&key(b).0).then(key(a).1.total_cmp(&key(b).1)));
        let node = &mut nodes[least.expect("there are devices")];
        node.shares.push(share);
        node.occupancy += work;
    }
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolling::History;
    use base::LatencyProfile;

    /// `l(b) = alpha b + beta` ms for all sizes up to 64.
    fn line(alpha: f64, beta: f64) -> BatchTimes {
        let sizes: Vec<u32> = (1..=64).collect();
        let span = Duration::from_millis_f64;
        let profile = LatencyProfile::linear(span(alpha), span(beta), &sizes, Duration::ZERO);
        BatchTimes::new(&profile.unwrap(), History { size: 10, quantile: 0.99 })
    }

    fn demand(model: u32, times: &BatchTimes, objective_ms: u64, rate: f64) -> ModelLoad<'_> {
        ModelLoad { model: ModelId(model), times, objective: Duration::from_millis(objective_ms), rate }
    }

    #[test]
    fn a_lone_model_fills_all_devices_with_batches_of_half_its_objective() {
        // Symphony, table 2, without coordination: batches of 7 on 8 devices.
        let resnet50 = line(1.053, 5.072);
        let nodes = plan(&[demand(0, &resnet50, 25, 1_000.0)], 8);
        assert_eq!(nodes.len(), 8);
        assert!(nodes.iter().all(|node| node.shares.len() == 1 && node.shares[0].batch == 7), "{nodes:?}");
        let rate: f64 = nodes.iter().flat_map(|node| &node.shares).map(|share| share.rate).sum();
        assert!((rate - 4_501.0).abs() < 10.0, "{rate}");
    }

    #[test]
    fn what_is_left_of_several_models_shares_a_device() {
        let times = line(1.0, 5.0);
        let demands = [demand(0, &times, 100, 500.0), demand(1, &times, 100, 20.0), demand(2, &times, 100, 20.0)];
        let nodes = pack(&demands, 1.0, usize::MAX);
        assert_eq!(nodes.len(), 1, "500 r/s are less than the 900 of a device: {nodes:?}");
        let models: Vec<u32> = nodes[0].shares.iter().map(|share| share.model.0).collect();
        assert_eq!(models, [0, 1, 2], "the fullest first");
        let Node { shares, duty_cycle, occupancy } = &nodes[0];
        let busy: f64 = shares.iter().map(|share| demands[0].takes(share.batch)).sum();
        assert!(busy <= *duty_cycle && *occupancy <= 1.0);
        for share in shares {
            assert!(duty_cycle + demands[0].takes(share.batch) <= 0.1);
            assert!(f64::from(share.batch) >= share.rate * duty_cycle);
        }
    }

    #[test]
    fn models_that_leave_each_other_no_time_are_kept_apart() {
        // Batches of one take 6 ms: three of them are more than 16 ms.
        let times = line(1.0, 5.0);
        let demands: Vec<_> = (0..3).map(|model| demand(model, &times, 16, 1.0)).collect();
        assert_eq!(pack(&demands, 1.0, usize::MAX).len(), 3);
        let spread = plan(&demands, 2);
        let sizes: Vec<usize> = spread.iter().map(|node| node.shares.len()).collect();
        assert_eq!(sizes, [2, 1], "they must share all the same");
    }

    #[test]
    fn a_large_model_is_cut_where_nothing_fits() {
        let times = line(1.0, 5.0);
        let mut demands: Vec<_> = (0..8).map(|model| demand(model, &times, 13, 1.0)).collect();
        demands[0].rate = 1_000.0;
        let nodes = plan(&demands, 4);
        let holding = nodes.iter().filter(|node| node.shares.iter().any(|share| share.model == ModelId(0)));
        assert_eq!(holding.count(), 4);
        let count: usize = nodes.iter().map(|node| node.shares.len()).sum();
        assert_eq!(count, 11, "every model has a place");
    }

    #[test]
    fn rates_are_scaled_to_the_devices() {
        let times = line(1.0, 5.0);
        for rate in [0.001, 100.0, 1e7] {
            let demands: Vec<_> = (0..5).map(|model| demand(model, &times, 60, rate)).collect();
            let nodes = plan(&demands, 3);
            assert!(nodes.len() <= 3);
            let mut placed: Vec<u32> = nodes.iter().flat_map(|node| &node.shares).map(|share| share.model.0).collect();
            placed.sort_unstable();
            placed.dedup();
            assert_eq!(placed, [0, 1, 2, 3, 4], "at {rate}");
            assert!(nodes.iter().all(|node| node.occupancy > 0.4 || nodes.len() < 3), "at {rate}: {nodes:?}");
        }
    }
}
