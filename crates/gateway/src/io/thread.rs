//! One io thread: the connections that it was given, each a task, and the driver behind them.

use crate::grpc::GrpcServer;
use crate::http;
use crate::io::IoContext;
use crate::io::accept::{Accepted, Protocol};
use crate::io::connection::{Activity, Connections, WatchedStream, linger};
use crate::io::open_stream::{OpenStream, StreamBody};
use crate::server::block_on;
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::error::Error;
use std::net::TcpStream as StdStream;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

/// After this much silence the system asks whether a peer is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// At the end, connections without a request are given this much time, counted in rounds, to close by themselves.
const QUIET_ROUND: Duration = Duration::from_millis(50);
const QUIET_ROUNDS: u32 = 10;
/// Requests that one connection of HTTP/2, and so of gRPC, may have in flight; more wait at the client.
const MAX_STREAMS: u32 = 1024;
/// No request of HTTP/1.1 begins so, and every connection of HTTP/2 does.
const HTTP2_START: &[u8; 3] = b"PRI";
/// How often it is looked for the rest of these, and how long is waited in between.
const START_PIECES: u32 = 10;
const START_PAUSE: Duration = Duration::from_millis(1);

/// Serves the connections that it is given until the acceptor is gone and they are done.
pub(crate) fn serve_thread(
    context: Arc<IoContext>,
    mut accepted: mpsc::Receiver<Accepted>,
    closing: watch::Receiver<bool>,
) {
    let grace = context.shared.config.shutdown_grace;
    block_on(async move {
        let mut server = ThreadServer::new(context, closing);
        loop {
            tokio::select! {
                biased;
                Some(_) = server.tasks.join_next() => {}
                next = accepted.recv() => match next {
                    Some((stream, protocol)) => server.serve(stream, protocol),
                    // The acceptor is gone: the server is going down.
                    None => break,
                },
            }
        }
        if tokio::time::timeout(grace, server.finish()).await.is_err() {
            tracing::warn!(?grace, "connections were cut off: their requests were not done within the grace");
        }
    });
}

struct ThreadServer {
    context: Arc<IoContext>,
    connections: Arc<Connections>,
    grpc: Arc<GrpcServer>,
    closing: watch::Receiver<bool>,
    /// One for each connection.
    tasks: JoinSet<()>,
    /// The driver, the mailbox and the sweep; end with the thread.
    _background: JoinSet<()>,
}

impl ThreadServer {
    fn new(context: Arc<IoContext>, closing: watch::Receiver<bool>) -> Self {
        let connections = Arc::new(Connections::default());
        let mut background = JoinSet::new();
        let driven = Arc::clone(&context);
        background.spawn(async move { driven.driver.run(&driven.controller, &driven.calls).await });
        let mailbox = Arc::clone(&context.mailbox);
        background.spawn(async move { mailbox.run().await });
        let (swept, settings) = (Arc::clone(&connections), Arc::clone(&context.shared));
        background.spawn(async move { swept.sweep(&settings.config).await });
        let grpc = Arc::new(GrpcServer::new(Arc::clone(&context)));
        Self { context, connections, grpc, closing, tasks: JoinSet::new(), _background: background }
    }

    /// Waits for the connections to end by themselves. Those of clients that don't react are not waited for once
    /// nothing is owed to anybody.
    async fn finish(&mut self) {
        let mut quiet = 0;
        let mut moves = self.connections.moves();
        while quiet < QUIET_ROUNDS {
            match tokio::time::timeout(QUIET_ROUND, self.tasks.join_next()).await {
                Ok(None) => return,
                Ok(Some(_)) => {}
                Err(_) if self.owes() || self.connections.moves() != moves => quiet = 0,
                Err(_) => quiet += 1,
            }
            moves = self.connections.moves();
        }
    }

    /// Whether a request isn't answered, or its answer isn't written.
    fn owes(&self) -> bool {
        self.context.calls.load(Ordering::Relaxed) > 0
            || self.context.streams.load(Ordering::Relaxed) > 0
            || self.connections.any_writes()
    }

    fn serve(&mut self, stream: StdStream, protocol: Protocol) {
        let open = CountedConnection::new(protocol, Arc::clone(&self.context));
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        tune(&stream);
        let activity = self.connections.activity(protocol);
        let registration = self.connections.register();
        let key = registration.key();
        let stream = Arc::new(stream);
        let io = TokioIo::new(WatchedStream::new(Arc::clone(&stream), Arc::clone(&activity)));
        let closing = self.closing.clone();
        let served = Arc::clone(&activity);
        let task = match protocol {
            Protocol::Http => {
                let context = Arc::clone(&self.context);
                self.tasks.spawn(async move {
                    match speaks_http2(&stream, closing.clone()).await {
                        false => serve_http(context, io, &served, closing).await,
                        true => serve_http2(context, io, &served, closing).await,
                    }
                    linger(&stream, &served).await;
                    drop((open, registration));
                })
            }
            Protocol::Grpc => {
                let grpc = Arc::clone(&self.grpc);
                self.tasks.spawn(async move {
                    serve_grpc(grpc, io, &served, closing).await;
                    linger(&stream, &served).await;
                    drop((open, registration));
                })
            }
        };
        self.connections.watch(key, activity, task);
    }
}

async fn serve_http(
    context: Arc<IoContext>,
    io: TokioIo<WatchedStream>,
    activity: &Activity,
    mut closing: watch::Receiver<bool>,
) {
    let context = &*context;
    let service = service_fn(move |request: Request<Incoming>| async move {
        Ok::<_, Infallible>(http::answer(context, activity, request).await)
    });
    // Clients that close while they wait must be noticed: half-closed connections are closed ones. An answer leaves in
    // one write, and at once, whatever follows the request: `pipeline_flush` would keep it until the next one is whole.
    let connection = http1::Builder::new().half_close(false).writev(false).serve_connection(io, service);
    let mut connection = pin!(connection);
    // How a connection ends is the client's affair: there is nobody to tell.
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = told_to_close(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Whether a client on the HTTP port begins with HTTP/2, which it does without asking ("prior knowledge").
async fn speaks_http2(stream: &TcpStream, mut closing: watch::Receiver<bool>) -> bool {
    let mut start = [0; HTTP2_START.len()];
    for _ in 0..START_PIECES {
        let seen = tokio::select! {
            biased;
            seen = stream.peek(&mut start) => seen.unwrap_or(0),
            () = told_to_close(&mut closing) => return false,
        };
        if seen == HTTP2_START.len() || !HTTP2_START.starts_with(&start[..seen]) {
            return start == *HTTP2_START;
        }
        if seen == 0 {
            return false;
        }
        // A byte or two: the others are on their way, or this is no client.
        tokio::time::sleep(START_PAUSE).await;
    }
    false
}

async fn serve_http2(
    context: Arc<IoContext>,
    io: TokioIo<WatchedStream>,
    activity: &Arc<Activity>,
    closing: watch::Receiver<bool>,
) {
    activity.multiplexes();
    let service = service_fn(move |request: Request<Incoming>| {
        let (context, activity) = (Arc::clone(&context), Arc::clone(activity));
        async move {
            let open = OpenStream::new(&context, &activity);
            let response = http::answer(&context, &activity, request).await;
            Ok::<_, Infallible>(response.map(|body| StreamBody::new(body, open)))
        }
    });
    multiplex(io, service, closing).await;
}

async fn serve_grpc(
    grpc: Arc<GrpcServer>,
    io: TokioIo<WatchedStream>,
    activity: &Arc<Activity>,
    closing: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (grpc, activity) = (Arc::clone(&grpc), Arc::clone(activity));
        async move { grpc.answer(&activity, request).await }
    });
    multiplex(io, service, closing).await;
}

/// Serves a connection of HTTP/2.
async fn multiplex<S, B>(io: TokioIo<WatchedStream>, service: S, mut closing: watch::Receiver<bool>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEPALIVE)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20)
        .serve_connection(io, service);
    let mut connection = pin!(connection);
    tokio::select! {
        biased;
        _ = connection.as_mut() => {}
        () = told_to_close(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Returns when the server goes down.
async fn told_to_close(closing: &mut watch::Receiver<bool>) {
    // An error says that the gateway itself is gone, which is the same.
    let _ = closing.wait_for(|&closing| closing).await;
}

/// A connection that counts as open until it is dropped.
struct CountedConnection {
    protocol: Protocol,
    context: Arc<IoContext>,
}

impl CountedConnection {
    fn new(protocol: Protocol, context: Arc<IoContext>) -> Self {
        let metrics = &context.shared.metrics;
        match protocol {
            Protocol::Http => metrics.http_connections.inc(),
            Protocol::Grpc => metrics.grpc_connections.inc(),
        }
        Self { protocol, context }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let shared = &self.context.shared;
        match self.protocol {
            Protocol::Http => shared.metrics.http_connections.dec(),
            Protocol::Grpc => shared.metrics.grpc_connections.dec(),
        }
        shared.connections(self.protocol).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers leave at once, and peers that vanish are noticed.
fn tune(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    // A socket that can't be tuned still works.
    let _ = socket.set_tcp_nodelay(true);
    let _ = socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(KEEPALIVE));
}
