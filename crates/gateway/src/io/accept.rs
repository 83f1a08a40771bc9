//! Taking connections and giving them to the io threads in turn.

use crate::io::ServerState;
use crate::server::block_on;
use base::Reason;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use wire::Fault;

/// What a connection speaks; the port says it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protocol {
    Http,
    Grpc,
}

/// A connection on its way to its thread.
pub(crate) type Accepted = (StdStream, Protocol);

/// Takes connections and gives them to the io threads in turn.
pub(crate) struct Acceptor {
    pub(crate) queues: Vec<mpsc::Sender<Accepted>>,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) closing: watch::Receiver<bool>,
}

impl Acceptor {
    /// The acceptor's thread; returns when the server goes down.
    pub(crate) fn run(self, http: Option<StdListener>, grpc: Option<StdListener>) {
        block_on(async {
            tokio::join!(
                self.accept(http, Protocol::Http, 0),
                self.accept(grpc, Protocol::Grpc, self.queues.len() / 2)
            );
        });
    }

    async fn accept(&self, listener: Option<StdListener>, protocol: Protocol, start: usize) {
        let Some(listener) = listener.and_then(|listener| TcpListener::from_std(listener).ok()) else { return };
        let mut closing = self.closing.clone();
        let mut turn = start;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    turn += 1;
                    self.hand_over(stream, protocol, &self.queues[turn % self.queues.len()]).await;
                }
                // Out of files, or the peer was gone before it was accepted: others may fare better in a moment.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn hand_over(&self, stream: TcpStream, protocol: Protocol, queue: &mpsc::Sender<Accepted>) {
        let connections = self.shared.connections(protocol);
        let open = connections.fetch_add(1, Ordering::Relaxed);
        if open >= self.shared.config.max_connections {
            connections.fetch_sub(1, Ordering::Relaxed);
            turn_away(&stream, protocol, self.shared.config.max_connections);
            return;
        }
        let Ok(stream) = stream.into_std() else {
            connections.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        // The queue only closes with its thread, and threads outlive the acceptor.
        let _ = queue.send((stream, protocol)).await;
    }
}

/// Tells a client over HTTP why its connection is closed; over gRPC closing says it.
fn turn_away(stream: &TcpStream, protocol: Protocol, limit: usize) {
    if protocol == Protocol::Grpc {
        return;
    }
    let fault = Fault::new(
        Reason::TooManyConnections,
        format!("the server has {limit} connections over HTTP, the most that it takes: try again later"),
    );
    let body = fault.to_json();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.try_write(&[head.as_bytes(), &body].concat());
}
