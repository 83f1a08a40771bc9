//! Models that go to another cell: requests for them are sent on, and they are withdrawn when nothing of them is left
//! here.
//!
//! A gateway thread may have looked a model up long before it hands a request over, so that requests with the old
//! number come at any time. They go to the other cell as if they had been for it, with the deadline and the slot that
//! they have.

use super::Core;
use super::books::Expectation;
use crate::messages::CellMessage;
use crate::payload::Payload;
use crate::{Inner, Submission};
use base::{ModelNumber, RequestId, Timestamp};
use scheduler::Request;
use std::collections::{HashMap, VecDeque};

/// Requests for models that left are sent on for so many moves; with an older number they are refused, as those for any
/// model that is gone.
const MOST_MOVES: usize = 1024;

/// What is known of models that went to other cells.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// Where they are, by their numbers here.
    gone: HashMap<ModelNumber, ModelNumber>,
    /// Those of the last moves, in their order.
    moves: VecDeque<ModelNumber>,
    /// Those of which something may be left here.
    leaving: Vec<ModelNumber>,
    /// By slot, the last request that was sent on and the cell that has it: its ticket names this one.
    sent_on: HashMap<u32, (RequestId, usize)>,
    /// Cells that were told something and must be driven.
    told: Vec<usize>,
}

impl Departures {
    /// A model is in another cell from now on.
    pub fn begin(&mut self, model: ModelNumber, to: ModelNumber) {
        if self.gone.insert(model, to).is_some() {
            return;
        }
        self.leaving.push(model);
        self.moves.push_back(model);
        if self.moves.len() > MOST_MOVES {
            self.moves.pop_front().into_iter().for_each(|oldest| _ = self.gone.remove(&oldest));
        }
    }

    /// Where a model is that left: the cell, and its number there.
    pub fn successor(&self, inner: &Inner, model: ModelNumber) -> Option<(usize, ModelNumber)> {
        self.gone.get(&model).map(|&to| inner.home(to))
    }

    /// Whether requests for a model are sent on.
    pub fn has_gone(&self, model: ModelNumber) -> bool {
        self.gone.contains_key(&model)
    }
}

impl Core {
    /// The cells that were told something since they were last asked for. The caller drives them.
    pub fn take_told(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.departures.told)
    }

    fn tell(&mut self, inner: &Inner, cell: usize, message: CellMessage) {
        inner.put(cell, message);
        if !self.departures.told.contains(&cell) {
            self.departures.told.push(cell);
        }
    }

    /// Hands a request to the cell that its model is in.
    pub(super) fn send_on(&mut self, inner: &Inner, request: Request, payload: Payload) {
        let (cell, model) = inner.home(self.departures.gone[&payload.submission.model]);
        self.departures.sent_on.insert(request.id.slot, (request.id, cell));
        let submission = Submission { model, ..payload.submission };
        let payload = Payload { submission, ..payload };
        let message = CellMessage::Submit { request: Request { model: model.id(), ..request }, payload };
        self.tell(inner, cell, message);
    }

    /// Takes a request back where it was sent, if it was sent on.
    pub(super) fn send_back(&mut self, inner: &Inner, id: RequestId) -> bool {
        let Some(&(sent, cell)) = self.departures.sent_on.get(&id.slot) else { return false };
        if sent == id {
            self.departures.sent_on.remove(&id.slot);
            self.tell(inner, cell, CellMessage::Cancel(id));
        }
        sent == id
    }

    /// Withdraws the models that left, once nothing is queued for them and no batch of theirs runs: what runs may come
    /// back into the queue, and a scheduler refuses what is queued for a model that is withdrawn and on no device.
    pub fn let_depart(&mut self, inner: &Inner, now: Timestamp) {
        // Then its devices are gone.
        if self.stopped {
            return;
        }
        while let Some(position) = self.departures.leaving.iter().position(|&model| self.has_left(model)) {
            let model = self.departures.leaving.swap_remove(position);
            self.withdraw(inner, now, model);
        }
    }

    fn has_left(&self, model: ModelNumber) -> bool {
        let runs = |expected: &Expectation| expected.model == model.id() && expected.done_at.is_some();
        let queued = self.there(model).map_or(0, |model| model.queued);
        queued == 0 && !self.expectations.values().any(runs)
    }
}
