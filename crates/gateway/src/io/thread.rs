//! One io thread: the connections that it was given, each a task, and the driver behind them.

use crate::grpc::GrpcServer;
use crate::http;
use crate::io::IoContext;
use crate::io::accept::{Accepted, Protocol, Room};
use crate::io::clients::Owner;
use crate::io::connection::{Activity, Connections, WatchedStream, linger};
use crate::io::open_stream::{OpenStream, StreamBody, StreamExecutor};
use crate::io::tls::{Tls, TlsPort, agreed_on_http2};
use crate::server::block_on;
use controller::{Pulse, STANDS_STILL, fatal};
use hyper::body::{Body, Incoming};
use hyper::rt::{Read, Write};
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::error::Error;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};

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

/// How often a thread shows that it moves.
const BEAT: Duration = Duration::from_secs(1);

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
                Some(ended) = server.background.join_next() => fatal(&without(ended)),
                next = accepted.recv() => match next {
                    Some(accepted) => server.serve(accepted),
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
    /// What the thread can't do without: the driver, the mailbox, the sweep and those that watch; end with the thread.
    background: JoinSet<()>,
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
        background.spawn(async move { swept.sweep(&settings).await });
        let pulse = context.controller.watch_thread(std::thread::current().name().unwrap_or("io"));
        let beating = Arc::clone(&context);
        background.spawn(async move { beat(&beating, &pulse).await });
        let losing = Arc::clone(&context);
        background.spawn(async move { tell_of_losses(&losing).await });
        let grpc = Arc::new(GrpcServer::new(Arc::clone(&context)));
        Self { context, connections, grpc, closing, tasks: JoinSet::new(), background }
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

    /// Whether a request isn't answered, or its answer isn't written though the client takes it.
    fn owes(&self) -> bool {
        self.context.calls.load(Ordering::Relaxed) > 0
            || self.context.streams.load(Ordering::Relaxed) > self.connections.still_streams()
            || self.connections.any_writes()
    }

    fn serve(&mut self, Accepted { stream, protocol, owner, room }: Accepted) {
        let open = CountedConnection::new(protocol, Arc::clone(&self.context));
        let Ok(stream) = TcpStream::from_std(stream) else { return };
        tune(&stream);
        let activity = self.connections.activity(protocol);
        if let Ok(peer) = stream.peer_addr() {
            activity.comes_from(peer);
        }
        match room {
            Room::Free => {}
            Room::Taken if self.connections.make_room() => {}
            Room::Taken | Room::ProbesOnly => activity.only_probes(),
        }
        let registration = self.connections.register();
        let key = registration.key();
        let stream = Arc::new(stream);
        let io = WatchedStream::new(Arc::clone(&stream), Arc::clone(&activity));
        let closing = self.closing.clone();
        let served = Arc::clone(&activity);
        let task = match protocol {
            Protocol::Http => {
                let context = Arc::clone(&self.context);
                self.tasks.spawn(async move {
                    if let Some(tls) = context.shared.tls.clone() {
                        // In a box: what isn't there must not make every connection larger.
                        Box::pin(serve_encrypted(&tls, context, io, (&owner, &served), closing)).await;
                    } else if speaks_http2(&stream, closing.clone()).await {
                        served.multiplexes();
                        serve_http2(context, TokioIo::new(io), (&owner, &served), closing).await;
                    } else {
                        serve_http(context, TokioIo::new(io), (&owner, &served), closing).await;
                    }
                    linger(&stream, &served).await;
                    drop((open, registration));
                })
            }
            Protocol::Grpc => {
                let (grpc, tls) = (Arc::clone(&self.grpc), self.context.shared.tls.clone());
                self.tasks.spawn(async move {
                    match tls {
                        None => serve_grpc(grpc, TokioIo::new(io), (&owner, &served), closing).await,
                        Some(tls) => Box::pin(serve_encrypted_grpc(&tls, grpc, io, (&owner, &served), closing)).await,
                    }
                    linger(&stream, &served).await;
                    drop((open, registration));
                })
            }
        };
        self.connections.watch(key, activity, task);
    }
}

/// Shows again and again that the thread moves, and tells those who watch the server's health of what doesn't.
async fn beat(context: &IoContext, pulse: &Pulse) {
    loop {
        pulse.step(STANDS_STILL, 0);
        context.shared.tell_stuck(!context.is_live());
        tokio::time::sleep(BEAT).await;
    }
}

/// Wakes the requests of the thread when some are lost with a thread that hangs.
async fn tell_of_losses(context: &IoContext) {
    let mut losses = context.controller.losses();
    while losses.changed().await.is_ok() {
        context.lost.notify_waiters();
    }
    // The controller is gone, and nothing is lost any more.
    std::future::pending::<()>().await;
}

/// What is to be said when a task ends that a thread can't do without.
fn without(ended: Result<(), JoinError>) -> String {
    let why = ended.map_or_else(|error| error.to_string(), |()| "it came to its end".to_owned());
    format!("a task that an io thread can't do without has ended: {why}")
}

/// Serves a connection of the HTTP port that is encrypted.
async fn serve_encrypted(
    tls: &Tls,
    context: Arc<IoContext>,
    io: WatchedStream,
    (owner, activity): (&Arc<Owner>, &Arc<Activity>),
    closing: watch::Receiver<bool>,
) {
    let Some(io) = tls.accept(TlsPort::Http, io).await else { return };
    let http2 = agreed_on_http2(&io);
    if http2 {
        activity.multiplexes();
    }
    // What was received so far says nothing of what is inside.
    activity.rests();
    match http2 {
        false => serve_http(context, TokioIo::new(io), (owner, activity), closing).await,
        true => serve_http2(context, TokioIo::new(io), (owner, activity), closing).await,
    }
}

/// Serves a connection of the gRPC port that is encrypted.
async fn serve_encrypted_grpc(
    tls: &Tls,
    grpc: Arc<GrpcServer>,
    io: WatchedStream,
    (owner, activity): (&Arc<Owner>, &Arc<Activity>),
    closing: watch::Receiver<bool>,
) {
    let Some(io) = tls.accept(TlsPort::Grpc, io).await else { return };
    activity.rests();
    serve_grpc(grpc, TokioIo::new(io), (owner, activity), closing).await;
}

async fn serve_http<I: Read + Write + Unpin + 'static>(
    context: Arc<IoContext>,
    io: I,
    (owner, activity): (&Arc<Owner>, &Activity),
    mut closing: watch::Receiver<bool>,
) {
    let context = &*context;
    let service = service_fn(move |request: Request<Incoming>| async move {
        Ok::<_, Infallible>(http::answer(context, activity, owner, request).await)
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

async fn serve_http2<I: Read + Write + Unpin + 'static>(
    context: Arc<IoContext>,
    io: I,
    (owner, activity): (&Arc<Owner>, &Arc<Activity>),
    closing: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let open = OpenStream::new(&context, activity);
        let (context, activity, owner) = (Arc::clone(&context), Arc::clone(activity), Arc::clone(owner));
        async move {
            let response = http::answer(&context, &activity, &owner, request).await;
            Ok::<_, Infallible>(response.map(|body| StreamBody::new(body, open)))
        }
    });
    multiplex(io, service, activity, closing).await;
}

async fn serve_grpc<I: Read + Write + Unpin + 'static>(
    grpc: Arc<GrpcServer>,
    io: I,
    (owner, activity): (&Arc<Owner>, &Arc<Activity>),
    closing: watch::Receiver<bool>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let open = OpenStream::new(grpc.context(), activity);
        let (grpc, owner) = (Arc::clone(&grpc), Arc::clone(owner));
        async move { grpc.answer(open, &owner, request).await }
    });
    multiplex(io, service, activity, closing).await;
}

/// Serves a connection of HTTP/2.
async fn multiplex<I, S, B>(io: I, service: S, activity: &Arc<Activity>, mut closing: watch::Receiver<bool>)
where
    I: Read + Write + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let connection = http2::Builder::new(StreamExecutor::new(activity))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_a_thread_cant_do_without_and_that_panics_is_seen() {
        let mut background = JoinSet::new();
        background.spawn(std::future::pending());
        background.spawn(async { panic!("the sweep broke") });
        let ended = background.join_next().await.map(without);
        assert!(ended.as_ref().is_some_and(|sentence| sentence.contains("the sweep broke")), "{ended:?}");
    }
}
