//! Nexus: from time to time models are packed onto devices; each request goes to a device when it comes, and each
//! device runs its own models in turn.
//!
//! The packing (`packing`) is made anew every ten seconds from the rates that were seen, and when a device comes or
//! goes. Until rates are known, which takes a second, all models count alike. A request goes to one of the devices that
//! were planned for its model, in proportion to what each should get; nothing moves it from there but a new plan. A
//! device that is free goes on to the next of its models that has requests, and runs at most the planned batch. First
//! requests that would make a batch smaller than planned are dropped (Nexus, section 6.3).
//!
//! Where a model isn't loaded on any device that was planned for it, all devices that have it share its requests.

mod packing;

use crate::ledger::Ledger;
use crate::policy::{Batch, Fact, Next, Policy, View};
use crate::queue::{ModelQueue, Opening, Place, Queued};
use crate::queues::Queues;
use crate::table::{Marked, anew};
use base::{DeviceId, Duration, ModelId, RequestId, Timestamp};
use packing::{ModelLoad, Share};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeInclusive};

/// How long a plan stays (Symphony, section 2.2).
const EPOCH: Duration = Duration::from_secs(10);
/// After how long rates are taken for known.
const OBSERVATION: Duration = Duration::from_secs(1);
/// A model that nobody asks for is planned for as if it had this rate, so that it has a place when somebody does.
const LEAST_RATE: f64 = 0.1;
/// Requests are dealt out in units as fine as this.
const STRIDE: f64 = 1e9;

/// A device that a model's requests may go to.
#[derive(Clone, Debug)]
struct Route {
    device: DeviceId,
    /// The planned batch, and the largest.
    size: RangeInclusive<u32>,
    /// How far its turn moves on with each request: the more it should get, the less.
    stride: u64,
    queue: ModelQueue,
}

#[derive(Clone, Debug, Default)]
struct NexusModel {
    /// What is planned, and where.
    planned: Vec<(DeviceId, Share)>,
    /// By device.
    routes: Vec<Route>,
    /// Whose turn is next, as an index of `routes`.
    turns: BTreeSet<(u64, usize)>,
    /// Queued requests by their sequence, and the index of their route if there is one.
    requests: BTreeMap<u64, (Place, Queued, Option<usize>)>,
    /// Rows that came since the observation began.
    rows: u64,
    /// What was seen of its rate, in rows a second.
    rate: f64,
    /// What the last request had.
    objective: Duration,
}

#[derive(Clone, Debug, Default)]
struct NexusDevice {
    /// Models with requests here.
    waiting: BTreeSet<ModelId>,
    /// Who was served last.
    last: Option<ModelId>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Nexus {
    models: Vec<NexusModel>,
    devices: Vec<NexusDevice>,
    /// When the next plan is due; `None` when the plan is out of date.
    plan_at: Option<Timestamp>,
    observed_since: Option<Timestamp>,
    /// Whether rates have been seen at all.
    rates_known: bool,
    /// Models whose routes must be made anew.
    stale: Marked,
    /// Devices that a request was sent to since they were last asked.
    called: Vec<DeviceId>,
    members: Vec<Queued>,
    skipped: Vec<RequestId>,
}

impl Nexus {
    // ---- the plan ----

    /// Brings the plan and the routes up to date.
    fn settle(&mut self, view: &View<'_>) {
        if self.plan_at.is_none_or(|plan_at| plan_at <= view.now) {
            self.observe(view.now);
            self.plan(view.ledger);
            let known = if self.rates_known { EPOCH } else { OBSERVATION };
            self.plan_at = Some(view.now + known);
        }
        while let Some(model) = self.stale.pop() {
            self.reroute(view.queues, model);
        }
    }

    /// Takes the rates from what came since the last time, if that is long enough ago.
    fn observe(&mut self, now: Timestamp) {
        let since = *self.observed_since.get_or_insert(now);
        let span = now.since(since);
        if span < OBSERVATION {
            return;
        }
        for entry in &mut self.models {
            entry.rate = std::mem::take(&mut entry.rows) as f64 / span.as_secs_f64();
        }
        (self.observed_since, self.rates_known) = (Some(now), true);
    }

    fn plan(&mut self, ledger: &Ledger) {
        let wanted = self.models.iter().enumerate().filter(|(_, entry)| entry.objective > Duration::ZERO);
        let demands: Vec<ModelLoad<'_>> = wanted
            .map(|(index, entry)| {
                let model = ModelId(index as u32);
                let rate = if self.rates_known { entry.rate.max(LEAST_RATE) } else { 1.0 };
                ModelLoad { model, times: ledger.model(model).estimates.planned(), objective: entry.objective, rate }
            })
            .collect();
        let devices: Vec<DeviceId> = ledger.device_ids().collect();
        let nodes = packing::plan(&demands, devices.len());
        self.models.iter_mut().for_each(|entry| entry.planned.clear());
        for (node, &device) in nodes.iter().zip(&devices) {
            for share in &node.shares {
                self.models[share.model.index()].planned.push((device, *share));
            }
        }
        (0..self.models.len()).for_each(|model| self.stale.add(ModelId(model as u32)));
    }

    // ---- routes ----

    /// Makes a model's routes anew, and sends its requests along them.
    fn reroute(&mut self, queues: &Queues, model: ModelId) {
        let entry = &mut self.models[model.index()];
        for route in entry.routes.drain(..) {
            self.devices[route.device.index()].waiting.remove(&model);
        }
        let loaded = queues.devices_of(model);
        let planned = entry.planned.iter().filter(|(device, _)| loaded.contains(*device));
        let planned = planned.map(|&(device, share)| (device, share.batch..=share.most, share.rate));
        let mut chosen: Vec<(DeviceId, RangeInclusive<u32>, f64)> = planned.collect();
        if chosen.is_empty() {
            let most = entry.planned.iter().map(|(_, share)| share.most).max().unwrap_or(u32::MAX);
            chosen.extend(loaded.iter().map(|device| (device, 0..=most, 1.0)));
        }
        let highest = chosen.iter().map(|&(.., rate)| rate).fold(f64::MIN_POSITIVE, f64::max);
        entry.routes.extend(chosen.into_iter().map(|(device, size, rate)| {
            let stride = (STRIDE * highest / rate).min(STRIDE * 1e6) as u64;
            Route { device, size, stride, queue: ModelQueue::default() }
        }));
        entry.turns = entry.routes.iter().enumerate().map(|(index, route)| (route.stride, index)).collect();
        for sequence in entry.requests.keys().copied().collect::<Vec<_>>() {
            self.send(model, sequence);
        }
    }

    /// Sends a request to the device whose turn it is.
    fn send(&mut self, model: ModelId, sequence: u64) {
        let entry = &mut self.models[model.index()];
        let Some((place, queued, to)) = entry.requests.get_mut(&sequence) else { return };
        *to = None;
        let Some((turn, index)) = entry.turns.pop_first() else { return };
        *to = Some(index);
        let route = &mut entry.routes[index];
        entry.turns.insert((turn + route.stride, index));
        route.queue.insert(*place, *queued);
        self.devices[route.device.index()].waiting.insert(model);
        self.called.push(route.device);
    }

    /// The models with requests on a device, the one after who was served last first.
    fn in_turn(&self, device: DeviceId) -> Vec<ModelId> {
        let NexusDevice { waiting, last } = &self.devices[device.index()];
        let Some(last) = *last else { return waiting.iter().copied().collect() };
        let after = waiting.range((Bound::Excluded(last), Bound::Unbounded));
        after.chain(waiting.range(..=last)).copied().collect()
    }

    fn came(&mut self, view: &View<'_>, model: ModelId, place: Place, queued: Queued) {
        let entry = &mut self.models[model.index()];
        // A model that is new to us has no place yet.
        if entry.objective == Duration::ZERO {
            self.plan_at = None;
        }
        let objective = view.ledger.model(model).objective;
        entry.objective = objective.unwrap_or(place.deadline_at.since(queued.arrived_at));
        entry.rows += u64::from(queued.rows);
        entry.requests.insert(place.sequence, (place, queued, None));
        self.send(model, place.sequence);
    }

    fn left(&mut self, model: ModelId, place: Place) {
        let entry = &mut self.models[model.index()];
        let Some((_, _, Some(index))) = entry.requests.remove(&place.sequence) else { return };
        let route = &mut entry.routes[index];
        route.queue.remove(place);
        if !route.queue.has_urgent() {
            self.devices[route.device.index()].waiting.remove(&model);
        }
    }
}

impl Policy for Nexus {
    fn learn(&mut self, view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => _ = anew(&mut self.models, model.index()),
            Fact::DeviceAdded(device) => {
                anew(&mut self.devices, device.index());
                self.plan_at = None;
            }
            Fact::DeviceLost(_) => self.plan_at = None,
            Fact::Queued { model, place, queued, .. } if place.deadline_at != Timestamp::NEVER => {
                self.came(view, model, place, queued);
            }
            Fact::Dequeued(model, place) => self.left(model, place),
            Fact::Loaded(model, _) | Fact::Unloaded(model, _) => self.stale.add(model),
            _ => {}
        }
    }

    fn next(&mut self, view: &View<'_>) -> Option<Next> {
        self.settle(view);
        while let Some(device) = self.called.pop() {
            if view.hungry.contains(device) {
                return Some(Next::Feed(device));
            }
        }
        None
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, opening: Opening) -> Option<Batch> {
        self.settle(view);
        for model in self.in_turn(device) {
            let times = view.ledger.times(model, device);
            let routes = &self.models[model.index()].routes;
            let route = routes.iter().find(|route| route.device == device).expect("who waits here has a route here");
            let size = route.size.clone();
            let (members, skipped) = (&mut self.members, &mut self.skipped);
            let Some(candidate) = route.queue.window_within(times, opening, size, members, skipped) else {
                continue;
            };
            self.devices[device.index()].last = Some(model);
            return Some(Batch::without(model, candidate, &self.members, &self.skipped));
        }
        None
    }
}
