//! What the connections of one io thread share.

use crate::Config;
use crate::applications::Applications;
use crate::cache::PredictionCache;
use crate::io::accept::Protocol;
use crate::io::driver::Driver;
use crate::io::mailbox::Mailbox;
use crate::io::offload::Offload;
use crate::io::shortage::MemoryWatch;
use crate::io::tls::Tls;
use crate::models::Models;
use crate::regions::{Regions, RegionsView};
use crate::rights::{Asked, Author, Deed, Gate, Rules};
use crate::sequences::SequenceTables;
use controller::Controller;
use models::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use telemetry::{Metrics, Tracer};
use tokio::sync::{Notify, watch};
use wire::Fault;

/// One io thread's handles. Nothing in it is contended by another thread but the counters.
pub(crate) struct IoContext {
    pub(crate) controller: Controller,
    pub(crate) models: Models,
    pub(crate) driver: Driver,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) regions: RegionsView,
    pub(crate) gate: Gate,
    /// Becomes true when the server goes down.
    pub(crate) closing: watch::Receiver<bool>,
    /// Requests of this thread that aren't over.
    pub(crate) calls: AtomicUsize,
    /// Told when requests are lost with a thread that hangs.
    pub(crate) lost: Notify,
    /// Calls over gRPC of this thread, from their heads until their answers are handed over.
    pub(crate) streams: AtomicUsize,
}

/// Whether the server takes requests, as those see it who ask for its health.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    /// It starts.
    Starting,
    /// It takes requests.
    Ready,
    /// It would, but something stands still for which everybody waits.
    Stuck,
    /// It goes down.
    Closing,
}

/// What all io threads share.
pub(crate) struct ServerState {
    pub(crate) config: Config,
    pub(crate) metrics: Metrics,
    /// Set when the server goes down.
    pub(crate) closing: AtomicBool,
    /// Set once the models that were there at the start are ready or broken. Models that come later don't take it back:
    /// the server goes on serving the others.
    pub(crate) started: AtomicBool,
    /// Connections over HTTP, of all threads.
    pub(crate) http_connections: AtomicUsize,
    /// Connections over gRPC, of all threads.
    pub(crate) grpc_connections: AtomicUsize,
    /// Bytes of large requests in hand, of all threads.
    pub(crate) held_bytes: AtomicUsize,
    /// What is done for want of memory.
    pub(crate) memory: MemoryWatch,
    /// Work that waits for a thread beside the io threads.
    pub(crate) offload: Offload,
    /// Which requests are traced.
    pub(crate) tracer: Tracer,
    /// Tells those who watch the server's health.
    pub(crate) readiness: watch::Sender<Readiness>,
    /// The memory that clients share with the server.
    pub(crate) regions: Arc<Regions>,
    /// Who sends requests.
    pub(crate) applications: Applications,
    /// Who may do what.
    pub(crate) rules: Arc<Rules>,
    /// How connections are encrypted, if they are.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Answers that are kept, if any are.
    pub(crate) cache: Option<Arc<PredictionCache>>,
    /// Sequences of requests.
    pub(crate) sequences: SequenceTables,
}

impl ServerState {
    pub(crate) fn new(config: Config, rules: Rules, metrics: Metrics, tracer: Tracer) -> Self {
        Self {
            rules: Arc::new(rules),
            tls: None,
            cache: None,
            sequences: SequenceTables::default(),
            config,
            metrics,
            closing: AtomicBool::new(false),
            started: AtomicBool::new(false),
            http_connections: AtomicUsize::new(0),
            grpc_connections: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            memory: MemoryWatch::default(),
            offload: Offload::default(),
            tracer,
            readiness: watch::Sender::new(Readiness::Starting),
            regions: Arc::default(),
            applications: Applications::default(),
        }
    }
}

impl Readiness {
    /// What it is where something stands still, or nothing does.
    fn where_stuck(self, stuck: bool) -> Self {
        match (self, stuck) {
            (Self::Ready, true) => Self::Stuck,
            (Self::Stuck, false) => Self::Ready,
            (other, _) => other,
        }
    }
}

impl ServerState {
    /// Tells those who watch whether something stands still.
    pub(crate) fn tell_stuck(&self, stuck: bool) {
        self.readiness.send_if_modified(|now| {
            let old = std::mem::replace(now, now.where_stuck(stuck));
            *now != old
        });
    }

    /// Tells those who watch. A server that goes down doesn't come back.
    pub(crate) fn tell_readiness(&self, new: Readiness) {
        self.readiness.send_if_modified(|now| {
            let changes = *now != Readiness::Closing && *now != new;
            if changes {
                *now = new;
            }
            changes
        });
    }

    /// The connections of a protocol, of all threads.
    pub(crate) fn connections(&self, protocol: Protocol) -> &AtomicUsize {
        match protocol {
            Protocol::Http => &self.http_connections,
            Protocol::Grpc => &self.grpc_connections,
        }
    }
}

impl IoContext {
    pub(crate) fn new(
        controller: Controller,
        registry: Registry,
        shared: Arc<ServerState>,
        closing: watch::Receiver<bool>,
    ) -> Self {
        Self {
            models: Models::new(registry),
            driver: Driver::default(),
            mailbox: Arc::default(),
            controller,
            gate: Gate::new(Arc::clone(&shared.rules)),
            shared,
            regions: RegionsView::default(),
            closing,
            calls: AtomicUsize::new(0),
            lost: Notify::new(),
            streams: AtomicUsize::new(0),
        }
    }

    /// Lets a call that isn't inference pass and says whose it is, or says why not.
    pub(crate) fn admit(&self, asked: Asked<'_>, deed: Deed) -> Result<Author, Fault> {
        let admitted = self.gate.admit(asked, deed).inspect_err(|fault| {
            if deed.changes() {
                self.gate.note_refused(self.controller.now(), asked, fault.reason);
            }
        });
        Ok(Author { caller: admitted?, peer: asked.peer() })
    }

    /// Whether the server takes requests.
    pub(crate) fn ready(&self) -> bool {
        let serves = self.shared.started.load(Ordering::Relaxed) && !self.shared.closing.load(Ordering::Relaxed);
        serves && self.is_live()
    }

    /// Whether nothing stands still that everybody waits for.
    pub(crate) fn is_live(&self) -> bool {
        self.controller.stuck().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::Readiness::{Closing, Ready, Starting, Stuck};

    #[test]
    fn only_a_server_that_takes_requests_stands_still() {
        let told = |stuck| [Starting, Ready, Stuck, Closing].map(|readiness| readiness.where_stuck(stuck));
        assert_eq!((told(true), told(false)), ([Starting, Stuck, Stuck, Closing], [Starting, Ready, Ready, Closing]));
    }
}
