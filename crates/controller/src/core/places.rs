//! Which models may run on which device, where GPUs are divided by a plan: what the plan says, and what happened since.
//!
//! A plan is made every few seconds, and what is published or lost in between isn't in it:
//!
//! - A model that the plan doesn't know may run on every device that is used.
//! - A model whose devices are all lost may, too.
//! - A device that comes back is told again who may run there.

use super::Core;
use super::books::{DrivenModel, Expectation};
use super::gaps::{Gaps, RanBatch};
use crate::Inner;
use crate::ModelRecord;
use crate::payload::Present;
use base::{DeviceId, Duration, ModelId, ModelNumber, Timestamp, Transfers};
use scheduler::{Allotment, Event, Outcome, Rejection};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What each device of a cell is from now on, and for whom.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlacePlan {
    /// By device.
    pub places: Vec<PlannedPlace>,
    /// The models that it was made for.
    pub known: Vec<ModelNumber>,
}

/// One device of a plan.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct PlannedPlace {
    /// `None`: nobody computes there.
    pub kind: Option<u32>,
    /// Who may compute there; `None`: everybody.
    pub models: Option<Vec<ModelNumber>>,
}

/// Of a model's batches so many are noted between two looks.
const MOST_RUNS: usize = 8;

/// What requests came for a model.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Asked {
    /// Rows of those that had a deadline: what has none runs when nobody else needs the device.
    pub rows: u64,
    requests: u64,
    /// The sum of one over the seconds that each had.
    urgency: f64,
    /// Requests and their rows, also of those without a deadline.
    pub all: (u64, u64),
    /// The first of its batches that ran.
    pub runs: Vec<Ran>,
}

/// A batch that ran on a device that was of one kind all the time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Ran {
    pub kind: u32,
    pub rows: u32,
    /// Of its inputs.
    pub bytes: u64,
    pub took: Duration,
}

impl Asked {
    /// A request that has so long, or as long as it takes.
    pub fn note(&mut self, rows: u32, has: Option<Duration>) {
        self.all.0 += 1;
        self.all.1 += u64::from(rows);
        let Some(has) = has else { return };
        self.rows += u64::from(rows);
        self.requests += 1;
        self.urgency += 1.0 / has.as_secs_f64().max(1e-6);
    }

    /// What they had, in seconds: the harmonic mean, in which the short ones count.
    pub fn objective(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.requests as f64 / self.urgency)
    }
}

/// What came to a cell since this was asked last.
pub(crate) struct CellAsked {
    pub models: Vec<AskedModel>,
    pub company: Company,
    /// What devices idled before batches that waited.
    pub gaps: Vec<Duration>,
}

/// Whether requests met others.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Company {
    /// Requests that came.
    pub came: u64,
    /// The requests without an answer that each of them found, added up.
    pub met: u64,
    /// Requests that ended too late, or that were refused because they would have.
    pub late: u64,
}

/// A model, and what came for it since this was asked last.
pub(crate) struct AskedModel {
    pub number: ModelNumber,
    pub record: Arc<ModelRecord>,
    pub weight_bytes: u64,
    /// Whether it may take another time where its device is divided otherwise.
    pub is_divisible: bool,
    pub asked: Asked,
}

/// A device in the books of a cell that follows plans.
#[derive(Debug)]
pub(super) struct DevicePlace {
    is_used: bool,
    /// `None`: everybody.
    models: Option<BTreeSet<ModelId>>,
}

/// The plan that a cell follows; without one everybody may run everywhere, and nothing is counted.
#[derive(Debug, Default)]
pub(super) struct Places {
    by_device: Vec<DevicePlace>,
    known: BTreeSet<ModelId>,
    company: Company,
    /// Requests that weren't answered yet.
    present: Arc<AtomicU64>,
    gaps: Gaps,
}

impl Places {
    pub fn are_planned(&self) -> bool {
        !self.by_device.is_empty()
    }

    /// Another model may have the number from now on.
    pub fn forget(&mut self, model: ModelId) {
        self.known.remove(&model);
        self.by_device
            .iter_mut()
            .filter_map(|place| place.models.as_mut())
            .for_each(|models| _ = models.remove(&model));
    }

    fn takes(&self, device: DeviceId, model: ModelId) -> bool {
        let place = &self.by_device[device.index()];
        place.is_used && place.models.as_ref().is_none_or(|models| models.contains(&model))
    }
}

impl Core {
    /// Divides the cell's GPUs otherwise, and says who may run where.
    ///
    /// Devices that become quicker are it first and those that become slower last: nobody is refused because, for a
    /// moment, all that is there for him is slow.
    pub(super) fn arrange(&mut self, inner: &Inner, now: Timestamp, plan: PlacePlan) {
        let number = |model: &ModelNumber| self.there(*model).map(|_| model.id());
        let place = |planned: &PlannedPlace| DevicePlace {
            is_used: planned.kind.is_some(),
            models: planned.models.as_ref().map(|models| models.iter().filter_map(number).collect()),
        };
        let by_device = plan.places.iter().map(place).collect();
        let known = plan.known.iter().filter_map(number).collect();
        (self.places.by_device, self.places.known) = (by_device, known);
        let kinds = plan.places.iter().zip(0..).filter_map(|(place, device)| Some((DeviceId(device), place.kind?)));
        let (quicker, slower): (Vec<_>, Vec<_>) =
            kinds.partition(|(device, kind)| *kind >= self.configs[device.index()].kind);
        quicker.into_iter().for_each(|(device, kind)| self.change_device(inner, now, device, kind));
        self.allot(inner, now);
        slower.into_iter().for_each(|(device, kind)| self.change_device(inner, now, device, kind));
        self.count_devices(inner);
    }

    /// A device is another share of its GPU from now on; also where it is lost at the moment, and comes back so.
    pub(super) fn change_device(&mut self, inner: &Inner, now: Timestamp, device: DeviceId, kind: u32) {
        if std::mem::replace(&mut self.configs[device.index()].kind, kind) != kind {
            self.step(inner, now, Event::DeviceChanged { device, kind });
        }
    }

    /// Tells the scheduler who may run where, by the plan and by what has happened since.
    pub(super) fn allot(&mut self, inner: &Inner, now: Timestamp) {
        if !self.places.are_planned() {
            return;
        }
        let devices = || (0..self.places.by_device.len() as u32).map(DeviceId);
        let has_device =
            |model: ModelId| devices().any(|device| !self.away.contains(&device) && self.places.takes(device, model));
        let published = (0..).zip(&self.models).filter(|(_, model)| model.is_some()).map(|(id, _)| ModelId(id));
        let everywhere: Vec<ModelId> =
            published.filter(|model| !self.places.known.contains(model) || !has_device(*model)).collect();
        let allotment = |device: DeviceId| {
            let place = &self.places.by_device[device.index()];
            let models = match (&place.models, place.is_used) {
                (_, false) => Some(Vec::new()),
                (None, true) => None,
                (Some(models), true) => Some(models.iter().chain(&everywhere).copied().collect()),
            };
            Allotment { device, models }
        };
        let allotments = devices().map(allotment).collect();
        self.step(inner, now, Event::Allotted(allotments));
    }

    /// So many devices are there and used.
    pub(super) fn count_devices(&self, inner: &Inner) {
        let unused = |device: u32| self.places.by_device.get(device as usize).is_some_and(|place| !place.is_used);
        let there =
            (0..self.configs.len() as u32).filter(|&device| !unused(device) && !self.away.contains(&DeviceId(device)));
        inner.cells[self.cell].devices.store(there.count() as u32, Ordering::Relaxed);
    }

    /// What came since the last time.
    pub(super) fn take_asked(&mut self, page_bytes: u64) -> CellAsked {
        let withdrawn = &self.withdrawn;
        let asked = |(slot, model): (u32, &mut Option<DrivenModel>)| {
            let model = model.as_mut().filter(|_| !withdrawn.contains(&ModelId(slot)))?;
            let number = ModelNumber { slot, generation: model.generation };
            let asked = std::mem::take(&mut model.asked);
            let weight_bytes = u64::from(model.pages) * page_bytes;
            let (record, is_divisible) = (Arc::clone(&model.record), model.prepared.is_divisible());
            Some(AskedModel { number, record, weight_bytes, is_divisible, asked })
        };
        let models = (0..).zip(&mut self.models).filter_map(asked).collect();
        let places = &mut self.places;
        CellAsked { models, company: std::mem::take(&mut places.company), gaps: places.gaps.take() }
    }

    /// The driver hears now that a batch ran.
    pub(super) fn note_ran(
        &mut self,
        now: Timestamp,
        expected: &Expectation,
        (started_at, ended_at): (Timestamp, Timestamp),
        transfers: Transfers,
    ) {
        if !self.places.are_planned() || expected.done_at.is_none() {
            return;
        }
        // An order may start from when it leaves on.
        let ran = RanBatch { ordered_at: expected.window.earliest, started_at, ended_at, transfers };
        self.places.gaps.ran(now, expected.device, ran);
        let kind = self.configs[expected.device.index()].kind;
        if expected.kind != kind {
            return;
        }
        let took = ended_at.since(started_at) + transfers.before;
        if let Some(Some(model)) = self.models.get_mut(expected.model.index())
            && model.asked.runs.len() < MOST_RUNS
        {
            model.asked.runs.push(Ran { kind, rows: expected.rows, bytes: expected.bytes, took });
        }
    }

    /// A request has its outcome.
    pub(super) fn note_outcome(&mut self, outcome: Outcome) {
        let is_late = match outcome {
            Outcome::Late | Outcome::Rejected(Rejection::DeadlineUnreachable { .. } | Rejection::Overloaded { .. }) => {
                true
            }
            Outcome::Rejected(Rejection::QueueFull | Rejection::ModelUnavailable | Rejection::NoDevice)
            | Outcome::Done
            | Outcome::Failed
            | Outcome::Cancelled => false,
        };
        self.places.company.late += u64::from(is_late);
    }

    /// A request came. What stands for it among those that aren't answered yet.
    pub(super) fn note_asked(&mut self, model: ModelId, rows: u32, has: Option<Duration>) -> Present {
        let (present, others) = Present::enter(&self.places.present);
        self.places.company.came += 1;
        self.places.company.met += others;
        if let Some(Some(model)) = self.models.get_mut(model.index()) {
            model.asked.note(rows, has);
        }
        present
    }
}
