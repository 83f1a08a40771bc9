//! What the connections of one io thread share.

use crate::Config;
use crate::applications::Applications;
use crate::io::accept::Protocol;
use crate::io::driver::Driver;
use crate::io::mailbox::Mailbox;
use crate::models::Models;
use crate::regions::{Regions, RegionsView};
use controller::Controller;
use models::Registry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use telemetry::{Metrics, Tracer};
use tokio::sync::watch;

/// One io thread's handles. Nothing in it is contended by another thread but the counters.
pub(crate) struct IoContext {
    pub(crate) controller: Controller,
    pub(crate) models: Models,
    pub(crate) driver: Driver,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) regions: RegionsView,
    /// Becomes true when the server goes down.
    pub(crate) closing: watch::Receiver<bool>,
    /// Requests of this thread that aren't over.
    pub(crate) calls: AtomicUsize,
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
    /// Which requests are traced.
    pub(crate) tracer: Tracer,
    /// Tells those who watch the server's health.
    pub(crate) readiness: watch::Sender<Readiness>,
    /// The memory that clients share with the server.
    pub(crate) regions: Arc<Regions>,
    /// Who sends requests.
    pub(crate) applications: Applications,
}

impl ServerState {
    pub(crate) fn new(config: Config, metrics: Metrics, tracer: Tracer) -> Self {
        Self {
            config,
            metrics,
            closing: AtomicBool::new(false),
            started: AtomicBool::new(false),
            http_connections: AtomicUsize::new(0),
            grpc_connections: AtomicUsize::new(0),
            held_bytes: AtomicUsize::new(0),
            tracer,
            readiness: watch::Sender::new(Readiness::Starting),
            regions: Arc::default(),
            applications: Applications::default(),
        }
    }
}

impl ServerState {
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
            shared,
            regions: RegionsView::default(),
            closing,
            calls: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
        }
    }

    /// Whether the server takes requests.
    pub(crate) fn ready(&self) -> bool {
        self.shared.started.load(Ordering::Relaxed) && !self.shared.closing.load(Ordering::Relaxed)
    }
}
