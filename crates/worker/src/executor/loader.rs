//! What brings weights onto a device and frees them, one after the other, in the order in which that was ordered.

use super::{LoadMessage, LoadOrder, OrderReport, Status, UnloadOrder, said};
use crate::{Clock, Pages, Pulse};
use base::{Timestamp, Transfers};
use crossbeam_channel::{Receiver, TryRecvError};
use engine::{EngineError, Loaded};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

/// Works in turns that don't wait but for the engine: whoever runs it waits in between.
pub(super) struct Loader {
    clock: Clock,
    orders: Receiver<LoadMessage>,
    pages: Arc<Pages>,
    /// For whoever watches its thread.
    pulse: Arc<Pulse>,
    device: u32,
    /// Its time hasn't come yet.
    early: Option<LoadOrder>,
    /// The engine has said when its weights will be there.
    coming: Option<Coming>,
    /// No more orders will come.
    closed: bool,
}

/// Weights that are there from an instant on.
struct Coming {
    order: LoadOrder,
    loaded: Box<dyn Loaded>,
    started_at: Timestamp,
    there_at: Timestamp,
}

impl Loader {
    pub fn new(clock: Clock, orders: Receiver<LoadMessage>, pages: Arc<Pages>, pulse: Arc<Pulse>, device: u32) -> Self {
        Self { clock, orders, pages, pulse, device, early: None, coming: None, closed: false }
    }

    /// Runs it on a thread of its own, until no more orders come and all are carried out.
    pub fn run<I>(mut self, report: &impl Fn(OrderReport<I>)) {
        loop {
            let wants_at = self.turn(report);
            if wants_at == Timestamp::NEVER {
                let Ok(message) = self.orders.recv() else { return };
                self.begin(message, report);
                continue;
            }
            std::thread::sleep(wants_at.since(self.clock.now()).into());
        }
    }

    /// Whether nothing is left to do and nothing will come.
    pub fn has_ended(&self) -> bool {
        self.closed && self.early.is_none() && self.coming.is_none()
    }

    /// Does what can be done now, and says when there will be more: never, unless an order comes.
    pub fn turn<I>(&mut self, report: &impl Fn(OrderReport<I>)) -> Timestamp {
        loop {
            let now = self.clock.now();
            if let Some(coming) = &self.coming
                && coming.there_at > now
            {
                return coming.there_at;
            }
            if let Some(coming) = self.coming.take() {
                self.settle(coming, now, report);
            }
            if let Some(early) = &self.early
                && early.window.earliest > now
            {
                return early.window.earliest;
            }
            if let Some(order) = self.early.take() {
                self.load(order, report);
                continue;
            }
            match self.orders.try_recv() {
                Ok(message) => self.begin(message, report),
                Err(TryRecvError::Empty) => return Timestamp::NEVER,
                Err(TryRecvError::Disconnected) => {
                    self.closed = true;
                    return Timestamp::NEVER;
                }
            }
        }
    }

    fn begin<I>(&mut self, message: LoadMessage, report: &impl Fn(OrderReport<I>)) {
        match message {
            LoadMessage::Load(order) => self.early = Some(order),
            LoadMessage::Unload(order) => {
                let status = self.unload(&order);
                report(OrderReport { action: order.action, status, returned: Vec::new() });
            }
        }
    }

    /// The slot is empty and the pages are free in any case: that much can be relied on until the driver knows of a
    /// panic.
    fn unload(&self, order: &UnloadOrder) -> Status {
        let started_at = self.clock.now();
        let loaded = order.slot.loaded.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.pulse.begin(order.limit, order.action.0, None);
        let outcome = catch_unwind(AssertUnwindSafe(|| drop(loaded)));
        self.pulse.end();
        self.pages.give_back(order.pages);
        match outcome {
            Ok(()) => Status::Done { started_at, ended_at: self.clock.now(), transfers: Transfers::default() },
            Err(panic) => Status::Lost { reason: said(&*panic), took: Some(self.clock.now().since(started_at)) },
        }
    }

    fn load<I>(&mut self, order: LoadOrder, report: &impl Fn(OrderReport<I>)) {
        let failed = match self.fetch(&order) {
            Ok((loaded, started_at)) => {
                let there_at = loaded.there_at().map_or(started_at, |instant| self.clock.at(instant));
                self.coming = Some(Coming { order, loaded, started_at, there_at });
                return;
            }
            Err(status) => status,
        };
        report(OrderReport { action: order.action, status: failed, returned: Vec::new() });
    }

    fn fetch(&self, order: &LoadOrder) -> Result<(Box<dyn Loaded>, Timestamp), Status> {
        let started_at = self.clock.now();
        if started_at > order.window.latest {
            return Err(Status::TooLate);
        }
        if !self.pages.take(order.pages) {
            let (used, total) = (self.pages.used(), self.pages.total());
            return Err(Status::Failed(format!("P5: {} pages wanted, {used} of {total} are in use", order.pages)));
        }
        self.pulse.begin(order.limit, order.action.0, order.prepared.load_breaker(self.device));
        let outcome = catch_unwind(AssertUnwindSafe(|| order.prepared.load(self.device)));
        self.pulse.end();
        let took = || self.clock.now().since(started_at);
        let status = match outcome {
            Ok(Ok(loaded)) => return Ok((loaded, started_at)),
            Ok(Err(error @ EngineError::Lost { blameless, .. })) => {
                Status::Lost { reason: error.to_string(), took: (!blameless).then(took) }
            }
            Ok(Err(error)) => Status::Failed(error.to_string()),
            Err(panic) => Status::Lost { reason: said(&*panic), took: Some(took()) },
        };
        self.pages.give_back(order.pages);
        Err(status)
    }

    fn settle<I>(&self, coming: Coming, ended_at: Timestamp, report: &impl Fn(OrderReport<I>)) {
        let Coming { order, loaded, started_at, .. } = coming;
        *order.slot.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some(loaded);
        let status = Status::Done { started_at, ended_at, transfers: Transfers::default() };
        report(OrderReport { action: order.action, status, returned: Vec::new() });
    }
}
