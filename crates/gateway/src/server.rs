//! Starting and stopping: the listeners, the acceptor, the io threads.

use crate::Config;
use crate::admin::metrics::serve_metrics;
use crate::admin::scaling::Scaling;
use crate::cache::{self, PredictionCache};
use crate::io::accept::Acceptor;
use crate::io::thread::serve_thread;
use crate::io::tls::Tls;
use crate::io::{IoContext, Readiness, ServerState};
use crate::rights::{Rules, WatchedFiles, watch_files};
use controller::Controller;
use models::Registry;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use telemetry::{Metrics, Tracer};
use tokio::sync::{mpsc, watch};

/// Connections that were accepted and wait for their thread (P9: more wait in the system's backlog).
const HANDOVER: usize = 1024;
/// Connections that the system keeps until they are accepted.
const BACKLOG: i32 = 4096;

/// Why the front end could not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// A port can't be listened on.
    #[error("can't listen on {address} for {what}: {error}{}", hint(error, what))]
    Listen {
        /// What for.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The file of keys can't be used.
    #[error("--api-keys {0}")]
    Keys(String),
    /// A file for TLS can't be used.
    #[error("{0}")]
    Tls(String),
    /// A thread or its runtime could not be made.
    #[error("can't start an io thread: {0}")]
    Thread(io::Error),
}

fn hint(error: &io::Error, what: &str) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; another process has the port: end it or choose another with --{what}-port")
        }
        io::ErrorKind::PermissionDenied => format!("; ports below 1024 need rights: choose another with --{what}-port"),
        _ => String::new(),
    }
}

/// The running front end.
#[derive(Debug)]
pub struct Gateway {
    http: Option<SocketAddr>,
    grpc: Option<SocketAddr>,
    metrics: Option<SocketAddr>,
    closing: ClosingSwitch,
    threads: Vec<JoinHandle<()>>,
}

struct ClosingSwitch {
    shared: Arc<ServerState>,
    tell: watch::Sender<bool>,
}

impl std::fmt::Debug for ClosingSwitch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClosingSwitch({})", *self.tell.borrow())
    }
}

impl Gateway {
    /// Listens and serves. Returns when all ports are open; the threads run until `shutdown`.
    pub fn start(
        config: Config,
        controller: Controller,
        registry: Registry,
        metrics: Metrics,
    ) -> Result<Self, GatewayError> {
        raise_file_limit();
        let rules = Rules::new(&config).map_err(GatewayError::Keys)?;
        let tls = config.tls.as_ref().map(|files| Tls::open(files, config.header_timeout)).transpose();
        let tls = tls.map_err(GatewayError::Tls)?.map(Arc::new);
        let files = rules.files().into_iter().chain(tls.as_ref().map(watched)).collect::<Vec<_>>();
        let http = listen("http", config.http)?;
        let grpc = listen("grpc", config.grpc)?;
        let metrics_listener = listen("metrics", config.metrics)?;
        let address =
            |listener: &Option<TcpListener>| listener.as_ref().and_then(|listener| listener.local_addr().ok());
        let (http_at, grpc_at, metrics_at) = (address(&http), address(&grpc), address(&metrics_listener));

        let tracer = Tracer::new(config.trace_file.clone()).map_err(GatewayError::Thread)?;
        let io_threads = config.io_threads.max(1);
        let scaling = Scaling::new(config.scaling, controller.clone(), metrics.clone());
        let cache = (config.cache_bytes > 0).then(|| PredictionCache::new(config.cache_bytes));
        let cache = cache.transpose().map_err(GatewayError::Thread)?.map(Arc::new);
        let shared =
            Arc::new(ServerState { tls, cache: cache.clone(), ..ServerState::new(config, rules, metrics, tracer) });
        let (tell, closing) = watch::channel(false);
        let mut threads = Vec::new();
        let mut queues = Vec::new();
        for number in 0..io_threads {
            let (queue, connections) = mpsc::channel(HANDOVER);
            let context = IoContext::new(controller.clone(), registry.clone(), Arc::clone(&shared), closing.clone());
            let closing = closing.clone();
            threads.push(spawn(format!("io-{number}"), move || serve_thread(context, connections, closing))?);
            queues.push(queue);
        }
        if let Some(cache) = cache {
            let (shared, closing) = (Arc::clone(&shared), closing.clone());
            threads.push(spawn("cache".to_owned(), move || cache::tend(&cache, &shared, &registry, closing))?);
        }
        let clients = Mutex::default();
        let acceptor = Acceptor { queues, clients, shared: Arc::clone(&shared), closing: closing.clone() };
        threads.push(spawn("accept".to_owned(), move || acceptor.run(http, grpc))?);
        if let Some(listener) = metrics_listener {
            // On a thread of its own: writing the metrics of thousands of models takes milliseconds. It also looks
            // whether there are enough devices.
            let (shared, closing) = (Arc::clone(&shared), closing.clone());
            threads.push(spawn("metrics".to_owned(), move || serve_metrics(listener, scaling, shared, closing))?);
        }
        if !files.is_empty() {
            threads.push(spawn("files".to_owned(), move || watch_files(files, closing))?);
        }
        Ok(Self { http: http_at, grpc: grpc_at, metrics: metrics_at, closing: ClosingSwitch { shared, tell }, threads })
    }

    /// Where HTTP listens.
    pub fn http_address(&self) -> Option<SocketAddr> {
        self.http
    }

    /// Where gRPC listens.
    pub fn grpc_address(&self) -> Option<SocketAddr> {
        self.grpc
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Says "ready" from now on: the models that were there at the start are ready or known to be broken. Requests to
    /// models that are ready are answered before that, too.
    pub fn set_ready(&self) {
        self.closing.shared.started.store(true, Ordering::Relaxed);
        self.closing.shared.tell_readiness(Readiness::Ready);
    }

    /// Says "not ready" from now on, and goes on serving: balancers get the time to look elsewhere.
    pub fn drain(&self) {
        self.closing.shared.closing.store(true, Ordering::Relaxed);
        self.closing.shared.tell_readiness(Readiness::Closing);
    }

    /// Stops accepting, answers what is in flight, closes every connection, and returns when all of that is done or the
    /// grace is over. The controller must run on meanwhile.
    pub fn shutdown(self) {
        self.drain();
        self.closing.tell.send_replace(true);
        for thread in self.threads {
            let name = thread.thread().name().unwrap_or("unnamed").to_owned();
            if thread.join().is_err() {
                tracing::error!(thread = name, "a thread of the front end panicked");
            }
        }
        self.closing.shared.tracer.close();
    }
}

/// The files of certificates, to be read again when they change.
fn watched(tls: &Arc<Tls>) -> WatchedFiles {
    let read = Arc::clone(tls);
    WatchedFiles::new("the certificates", tls.paths(), move || read.read_again())
}

/// Thousands of connections are thousands of files: takes as many as the system allows this process.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised; connections may be refused");
    }
}

fn listen(what: &'static str, address: Option<SocketAddr>) -> Result<Option<TcpListener>, GatewayError> {
    let Some(address) = address else { return Ok(None) };
    let open = || {
        let domain = socket2::Domain::for_address(address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(TcpListener::from(socket))
    };
    open().map(Some).map_err(|error| GatewayError::Listen { what, address, error })
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, GatewayError> {
    std::thread::Builder::new().name(name).spawn(run).map_err(GatewayError::Thread)
}

/// Runs one thread of the front end on a runtime of its own.
pub(crate) fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
    match runtime {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => tracing::error!(%error, "a thread of the front end could not make its runtime"),
    }
}
