//! Clipper's adaptive and delayed batching: each model has a largest batch size, which grows a little with every full
//! batch that met the objective and shrinks by a tenth with every batch that didn't. A batch that isn't full waits a
//! little for company. Models are served in the order of their oldest requests.
//!
//! Nothing is planned: deadlines matter only after the fact, and to requests whose time has run out, which are dropped.

use crate::config::Config;
use crate::policy::{Batch, Ended, Fact, Next, Policy, View};
use crate::queue::{Opening, Queued};
use crate::ready_models::ReadyModels;
use crate::table::{Marked, anew, grown};
use base::{ActionId, DeviceId, Duration, ModelId, Timestamp};
use std::collections::{BTreeMap, BTreeSet};

/// How much a full batch that was in time adds to the largest size: at first, and once a batch was late. The paper
/// leaves it open. Every probe for more costs a late batch, so that small steps make fewer.
const FIRST_INCREASE: f64 = 1.0;
const INCREASE: f64 = 0.2;
/// What is left of the largest size after a batch that was late.
const DECREASE: f64 = 0.9;

/// Where a model's next batch is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum ClipperStanding {
    /// Nothing is queued.
    #[default]
    None,
    /// In `growing`.
    Growing { ready_at: Timestamp },
    /// Among those that are ready.
    Ready,
}

#[derive(Clone, Debug)]
struct ClipperModel {
    /// The largest batch size, in rows.
    limit: f64,
    /// Whether it has ever been too large.
    probed: bool,
    standing: ClipperStanding,
}

impl Default for ClipperModel {
    fn default() -> Self {
        Self { limit: 1.0, probed: false, standing: ClipperStanding::None }
    }
}

impl ClipperModel {
    fn rows(&self) -> u32 {
        self.limit as u32
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Clipper {
    wait: Duration,
    models: Vec<ClipperModel>,
    /// Models whose batch is ready, by the arrival of their oldest request.
    ready: ReadyModels<Timestamp>,
    changed: Marked,
    /// Models whose batch waits for company, by when that is over.
    growing: BTreeSet<(Timestamp, ModelId)>,
    /// Batches under way: where, and whether they were as large as they may be.
    running: BTreeMap<ActionId, (DeviceId, bool)>,
    members: Vec<Queued>,
}

impl Clipper {
    pub fn new(config: &Config) -> Self {
        Self { wait: config.batch_delay, ..Self::default() }
    }

    /// Brings the standing of marked models up to date, and notices those that have waited long enough.
    fn settle(&mut self, view: &View<'_>) {
        while let Some(&(ready_at, model)) = self.growing.first() {
            if ready_at > view.now {
                break;
            }
            self.growing.remove(&(ready_at, model));
            self.models[model.index()].standing = ClipperStanding::None;
            self.changed.add(model);
        }
        while let Some(model) = self.changed.pop() {
            let queue = view.queues.of(model);
            let Some((_, first)) = queue.first() else {
                self.stand(model, None, ClipperStanding::None);
                continue;
            };
            let ready_at = first.arrived_at + self.wait;
            let ready = queue.rows() >= u64::from(self.models[model.index()].rows()) || ready_at <= view.now;
            let standing = if ready { ClipperStanding::Ready } else { ClipperStanding::Growing { ready_at } };
            self.stand(model, Some(first.arrived_at), standing);
        }
    }

    fn stand(&mut self, model: ModelId, oldest: Option<Timestamp>, standing: ClipperStanding) {
        match std::mem::replace(&mut self.models[model.index()].standing, standing) {
            ClipperStanding::Growing { ready_at } => {
                self.growing.remove(&(ready_at, model));
            }
            ClipperStanding::None | ClipperStanding::Ready => {}
        }
        if let ClipperStanding::Growing { ready_at } = standing {
            self.growing.insert((ready_at, model));
        }
        let key = oldest.filter(|_| standing == ClipperStanding::Ready);
        self.ready.set(model, key);
    }

    fn ended(&mut self, ended: Ended) {
        let Some((_, full)) = self.running.remove(&ended.action) else { return };
        let entry = &mut self.models[ended.model.index()];
        if !ended.in_time {
            (entry.limit, entry.probed) = ((entry.limit * DECREASE).max(1.0), true);
            self.changed.add(ended.model);
        } else if full {
            // A batch that had room says nothing about a larger one.
            entry.limit = entry.limit.min(1e6) + if entry.probed { INCREASE } else { FIRST_INCREASE };
            self.changed.add(ended.model);
        }
    }
}

impl Policy for Clipper {
    fn learn(&mut self, _view: &View<'_>, fact: Fact) {
        match fact {
            Fact::ModelAdded(model) => {
                grown(&mut self.models, model.index());
                self.stand(model, None, ClipperStanding::None);
                anew(&mut self.models, model.index());
            }
            Fact::DeviceLost(device) => self.running.retain(|_, (on, _)| *on != device),
            Fact::Queued { model, .. }
            | Fact::Dequeued(model, _)
            | Fact::Loaded(model, _)
            | Fact::Unloaded(model, _) => self.changed.add(model),
            Fact::Started(started) => {
                let full = started.rows >= self.models[started.model.index()].rows();
                self.running.insert(started.action, (started.device, full));
            }
            Fact::Ended(ended) => self.ended(ended),
            _ => {}
        }
    }

    fn next(&mut self, view: &View<'_>) -> Option<Next> {
        self.settle(view);
        self.ready.first_pair(view.queues, view.hungry).map(|(_, device)| Next::Feed(device))
    }

    fn next_at(&self) -> Option<Timestamp> {
        self.growing.first().map(|&(at, _)| at)
    }

    fn next_batch(&mut self, view: &View<'_>, device: DeviceId, _opening: Opening) -> Option<Batch> {
        self.settle(view);
        let (_, model) = self.ready.first(view.queues, device)?;
        let times = view.ledger.times(model, device);
        let most = self.models[model.index()].rows().min(times.max_batch());
        let queue = view.queues.of(model);
        let candidate = queue.front(times, most, &mut self.members).expect("ready models have requests");
        Some(Batch::of(model, candidate, &self.members))
    }
}
