//! What a cell's driver is told.

use crate::ModelRecord;
use crate::core::places::{CellAsked, PlacePlan};
use crate::payload::Payload;
use crate::sampler::{KeptRequest, NotYet, RequestTraits};
use base::{ActionId, DeviceId, Duration, ModelNumber, PipelineId, RequestId};
use engine::Prepared;
use scheduler::{PipelineSpec, PipelineStage, Rehearsed};
use std::sync::{Arc, mpsc};
use telemetry::DeviceMetrics;
use worker::{Device, DeviceConfig, IdleWork, Pulse};

/// News for a cell: whoever drives it looks at them in their order.
pub(crate) enum CellMessage {
    Submit {
        request: scheduler::Request,
        payload: Payload,
    },
    /// A call of a stage of a pipeline. In a box: what is rare must not make every message larger.
    SubmitStage(Box<StageCall>),
    /// A pipeline is so from now on; its models' numbers are those in the cell.
    Announce(PipelineSpec<ModelNumber>),
    /// Nobody asks for a pipeline any more, and no request of it is under way.
    ForgetPipeline(PipelineId),
    Cancel(RequestId),
    Report(worker::OrderReport<Payload>),
    AddDevice {
        config: DeviceConfig,
        device: Device<Payload>,
        metrics: DeviceMetrics,
    },
    /// A thread of a device hangs: that whose pulse this is.
    Hangs {
        device: DeviceId,
        pulse: Arc<Pulse>,
        why: String,
    },
    /// A device that was lost is there again, empty.
    DeviceBack(DeviceId),
    /// A device is another share of its GPU from now on.
    ChangeDevice {
        device: DeviceId,
        kind: u32,
    },
    /// GPUs are divided otherwise, and models may run elsewhere.
    Arrange(Box<PlacePlan>),
    /// What came since this was asked last?
    CountAsked(mpsc::Sender<CellAsked>),
    /// A model may be asked from now on.
    Publish {
        number: ModelNumber,
        pages: u32,
        record: Arc<ModelRecord>,
        /// Its weights, in host memory.
        prepared: Arc<dyn Prepared>,
    },
    /// A model may not be asked any more.
    Withdraw(ModelNumber),
    /// Requests for a model are about to come: its weights should be there before.
    Expect(ModelNumber),
    /// On how many devices are a model's weights?
    CountLoaded {
        model: ModelNumber,
        reply: mpsc::Sender<usize>,
    },
    /// A model is in another cell from now on.
    Depart {
        model: ModelNumber,
        /// Its number there, among those of all cells.
        to: ModelNumber,
    },
    Borrow {
        device: DeviceId,
        action: ActionId,
        expected: Duration,
        work: IdleWork,
    },
    /// The same, if nothing waits and no deadline is near; else it comes back.
    BorrowIfIdle {
        borrowing: Borrowing,
        refused: mpsc::Sender<(Borrowing, NotYet)>,
    },
    Return {
        device: DeviceId,
        action: ActionId,
    },
    /// A request was run once more, alone.
    Measured {
        traits: RequestTraits,
        took: Result<Duration, String>,
    },
    /// Which requests of a model were kept to be compared? If none was, the next ones are.
    TakeToCompare {
        model: ModelNumber,
        reply: mpsc::Sender<Vec<KeptRequest>>,
    },
    /// A rehearsal is over.
    Rehearsed(Rehearsed),
}

/// Something that is to run alone on a device, which is numbered as in its cell.
pub struct Borrowing {
    pub(crate) cell: usize,
    pub(crate) device: DeviceId,
    pub(crate) action: ActionId,
    pub(crate) expected: Duration,
    pub(crate) work: IdleWork,
}

impl std::fmt::Debug for Borrowing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Borrowing")
    }
}

/// A request that is a call of a stage.
pub(crate) struct StageCall {
    pub request: scheduler::Request,
    pub payload: Payload,
    pub stage: PipelineStage,
}

impl std::fmt::Debug for CellMessage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CellMessage")
    }
}

impl CellMessage {
    /// Answers whoever waits for this message to be handled.
    pub fn refuse(self) {
        let waiting = match self {
            Self::Submit { payload, .. } => vec![payload],
            Self::SubmitStage(call) => vec![call.payload],
            Self::Report(report) => report.returned,
            Self::Cancel(_)
            | Self::Announce(_)
            | Self::ForgetPipeline(_)
            | Self::AddDevice { .. }
            | Self::Hangs { .. }
            | Self::DeviceBack(_)
            | Self::ChangeDevice { .. }
            | Self::Arrange(_)
            | Self::CountAsked(_)
            | Self::Publish { .. }
            | Self::Withdraw(_)
            | Self::Expect(_)
            | Self::CountLoaded { .. }
            | Self::Depart { .. }
            | Self::Borrow { .. }
            | Self::BorrowIfIdle { .. }
            | Self::Return { .. }
            | Self::Measured { .. }
            | Self::TakeToCompare { .. }
            | Self::Rehearsed(_) => Vec::new(),
        };
        waiting.into_iter().for_each(Payload::refuse_at_the_end);
    }
}
