//! What whoever asks sees of the controller: the request that it hands over, and the reply.

use base::{ApplicationId, Duration, ModelNumber, Reason, RequestId, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use telemetry::ModelMetrics;
use tokio::sync::oneshot;
use worker::Tensor;

/// A request on its way from the gateway to the controller. The gateway has checked names, types and shapes.
#[derive(Debug)]
pub struct Submission {
    /// Which model.
    pub model: ModelNumber,
    /// In the signature's order, one for each input.
    pub inputs: Vec<Tensor>,
    /// Rows of the batch dimension; 1 where the model has none.
    pub rows: u32,
    /// When the answer must be there; `Timestamp::NEVER` for batch work.
    pub deadline_at: Timestamp,
    /// As in Triton; 0 is the default level.
    pub priority: u32,
    /// Who sent it.
    pub application: ApplicationId,
    /// How large it is, in elements of a row, where its model leaves that open.
    pub size: Option<u32>,
    /// Where the request's steps are noted, if it is traced.
    pub trace: Option<Arc<telemetry::Trace>>,
    /// Who pays for the device time that it takes, if anybody counts that.
    pub account: Option<Arc<TimeAccount>>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Reply>,
}

/// The device time that somebody's requests took so far. Executors add to it, whatever came of a request and whoever
/// waits for it.
#[derive(Debug, Default)]
pub struct TimeAccount {
    nanos: AtomicU64,
    executions: AtomicU64,
    /// Where it is that of one request for an endpoint.
    whole: Option<Box<WholeAccount>>,
}

/// What the account of one request for an endpoint has besides: if it comes to nothing, what was spent on it is wasted.
#[derive(Debug)]
struct WholeAccount {
    /// Who pays in the end, if anybody counts that.
    payer: Option<Arc<TimeAccount>>,
    /// Whose request it is.
    metrics: ModelMetrics,
    is_lost: AtomicBool,
}

impl TimeAccount {
    /// A request had a device for this long, or its part of a batch had.
    pub fn charge(&self, time: Duration) {
        let Some(whole) = &self.whole else {
            self.nanos.fetch_add(time.as_nanos(), Ordering::Relaxed);
            self.executions.fetch_add(1, Ordering::Relaxed);
            return;
        };
        whole.payer.iter().for_each(|payer| payer.charge(time));
        self.nanos.fetch_add(time.as_nanos(), Ordering::SeqCst);
        if whole.is_lost.load(Ordering::SeqCst) {
            self.waste(whole);
        }
    }

    /// The account of one request for an endpoint.
    pub fn of_whole(payer: Option<Arc<Self>>, metrics: ModelMetrics) -> Self {
        let whole = WholeAccount { payer, metrics, is_lost: AtomicBool::new(false) };
        Self { whole: Some(Box::new(whole)), ..Self::default() }
    }

    /// The request comes to nothing: what was spent on it, and what will be by calls that can't be stopped, is wasted.
    pub fn lose(&self) {
        if let Some(whole) = &self.whole {
            whole.is_lost.store(true, Ordering::SeqCst);
            self.waste(whole);
        }
    }

    /// Counts what is there once: whoever adds to it after a loss sees that, and takes it out again.
    fn waste(&self, whole: &WholeAccount) {
        match self.nanos.swap(0, Ordering::SeqCst) {
            0 => {}
            nanos => whole.metrics.wasted(Duration::from_nanos(nanos)),
        }
    }

    /// All of it, and how many times something was charged.
    pub fn total(&self) -> (Duration, u64) {
        let executions = self.executions.load(Ordering::Relaxed);
        (Duration::from_nanos(self.nanos.load(Ordering::Relaxed)), executions)
    }
}

/// The answer to a request.
#[derive(Debug)]
pub enum Reply {
    /// All outputs, in the signature's order.
    Outputs(Vec<Tensor>),
    /// No outputs, and why.
    Refused(Refusal),
}

/// Why there are no outputs, and what is known beyond the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// For machines.
    pub reason: Reason,
    /// The earliest deadline that could have been met, where it is known.
    pub earliest_at: Option<Timestamp>,
    /// What the engine said, where it could not compute.
    pub why: String,
}

impl Refusal {
    /// The engine could not compute it, and said why.
    pub(crate) fn failed(why: String) -> Self {
        Self { why, ..Reason::ExecutionFailed.into() }
    }

    /// The model can't compute these inputs; the engine said why.
    pub(crate) fn unfit(why: String) -> Self {
        Self { why, ..Reason::BadInput.into() }
    }

    /// It was computed for longer than it may be.
    pub(crate) fn broken_off(why: String) -> Self {
        Self { why, ..Reason::BrokenOff.into() }
    }

    /// The engine can't compute it yet, and said why.
    pub(crate) fn not_yet(why: String) -> Self {
        Self { why, ..Reason::ModelLoading.into() }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self { reason, earliest_at: None, why: String::new() }
    }
}

/// A request that was handed over: what the gateway needs to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) id: RequestId,
    /// The number of the cell.
    pub(crate) cell: u32,
}
