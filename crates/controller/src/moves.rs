//! The steps in which a model moves from one cell to another, or is replaced by a better one in its own. Which model,
//! and when, is decided where models are published.
//!
//! ```text
//!  asked for in the old cell ─────────────────────────┐ ┌─> asked for in the new cell
//!    `publish_in` the new cell, loads, `loaded_on` ───┘ └─> `depart`: the old cell sends on what still comes, finishes
//!                                                           what it has, withdraws the model
//! ```

use crate::messages::CellMessage;
use crate::{Controller, ModelRecord};
use base::ModelNumber;
use engine::Prepared;
use planner::cells::{Counted, Placed, Room};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use telemetry::ModelDemand;

impl Controller {
    /// How many cells there are.
    pub fn cells(&self) -> usize {
        self.inner.cells.len()
    }

    /// What each cell has room for.
    pub fn rooms(&self) -> Vec<Room> {
        let devices = self.inner.cells.iter().map(|cell| cell.devices.load(Ordering::Relaxed));
        self.inner.occupancy().now(devices)
    }

    /// Where a model is, what it needs, and what was counted for it.
    pub fn placed(&self, number: ModelNumber, record: &ModelRecord, prepared: &dyn Prepared) -> Placed {
        let needs = self.needs(record, prepared);
        let ModelDemand { ended, bad, computed, busy } = record.metrics.demand();
        let counted = Counted { ended, bad, computed, busy };
        Placed { cell: self.inner.home(number).0, pages: needs.pages, work: needs.work, counted }
    }

    /// Publishes a model that is published elsewhere in that cell, too, under another number, and has its weights
    /// loaded there.
    pub fn publish_in(&self, cell: usize, record: Arc<ModelRecord>, prepared: Arc<dyn Prepared>) -> ModelNumber {
        let needs = self.needs(&record, &*prepared);
        let number = self.inner.occupancy().add_to(cell, needs);
        self.tell_of(number, needs, record, prepared);
        self.load_on_one_more(number);
        number
    }

    /// Publishes the successor of a model in its cell, under another number, and has its weights loaded if its
    /// predecessor's are.
    pub fn publish_beside(
        &self,
        old: ModelNumber,
        record: Arc<ModelRecord>,
        prepared: Arc<dyn Prepared>,
    ) -> ModelNumber {
        let (cell, needs) = (self.inner.home(old).0, self.needs(&record, &*prepared));
        let number = self.inner.occupancy().add_to(cell, needs);
        self.tell_of(number, needs, record, prepared);
        if self.loaded_on(old) > 0 {
            self.load_on_one_more(number);
        }
        number
    }

    /// Has a model's weights loaded on one more device of its cell, if there is room.
    pub fn load_on_one_more(&self, number: ModelNumber) {
        let (cell, model) = self.inner.home(number);
        self.inner.put(cell, CellMessage::Expect(model));
        self.drive();
    }

    /// On how many devices of its cell a model should be that keeps so many busy.
    pub fn devices_needed(&self, asked: f64, model: ModelNumber) -> usize {
        (asked.ceil() as usize).clamp(1, self.devices_of(model).max(1) as usize)
    }

    /// On how many devices a model's weights are. Waits for whoever drives its cell.
    pub fn loaded_on(&self, number: ModelNumber) -> usize {
        let (cell, model) = self.inner.home(number);
        let (reply, answer) = mpsc::channel();
        self.inner.put(cell, CellMessage::CountLoaded { model, reply });
        self.drive();
        // Nobody answers when the server goes down.
        answer.recv().unwrap_or(0)
    }

    /// Withdraws a model under its old number: who still asks for that is sent on to the new one.
    pub fn depart(&self, old: ModelNumber, new: ModelNumber) {
        self.inner.occupancy().remove(old);
        let (cell, model) = self.inner.home(old);
        self.inner.put(cell, CellMessage::Depart { model, to: new });
        self.drive();
    }
}
