//! Taking connections and giving them to the io threads in turn.

use crate::Config;
use crate::io::ServerState;
use crate::io::clients::{ClientIdentity, Clients, Owner};
use crate::io::shortage::MemoryStep;
use crate::server::block_on;
use base::Reason;
use std::net::{TcpListener as StdListener, TcpStream as StdStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
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

/// What there is for a new connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// There is some.
    Free,
    /// None, unless one that idles makes room: otherwise it may only ask for the server's health.
    Taken,
    /// None, because memory is short: it may only ask for the server's health.
    ProbesOnly,
}

/// A connection on its way to its thread.
pub(crate) struct Accepted {
    pub(crate) stream: StdStream,
    pub(crate) protocol: Protocol,
    pub(crate) owner: Arc<Owner>,
    pub(crate) room: Room,
}

/// Takes connections and gives them to the io threads in turn.
pub(crate) struct Acceptor {
    pub(crate) queues: Vec<mpsc::Sender<Accepted>>,
    pub(crate) clients: Mutex<Clients>,
    pub(crate) shared: Arc<ServerState>,
    pub(crate) closing: watch::Receiver<bool>,
}

impl Acceptor {
    /// The acceptor's thread; returns when the server goes down.
    pub(crate) fn run(self, http: Option<StdListener>, grpc: Option<StdListener>) {
        block_on(async {
            tokio::join!(
                self.accept(http, Protocol::Http, 0),
                self.accept(grpc, Protocol::Grpc, self.queues.len() / 2),
                self.watch_memory(),
            );
        });
    }

    async fn watch_memory(&self) {
        let mut closing = self.closing.clone();
        tokio::select! {
            biased;
            _ = closing.wait_for(|&closing| closing) => {}
            () = self.shared.watch_memory() => {}
        }
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
                Ok((stream, address)) => {
                    turn += 1;
                    let who = ClientIdentity::of(address.ip());
                    self.hand_over(stream, who, protocol, &self.queues[turn % self.queues.len()]).await;
                }
                // Out of files, or the peer was gone before it was accepted: others may fare better in a moment.
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
    }

    async fn hand_over(
        &self,
        stream: TcpStream,
        who: ClientIdentity,
        protocol: Protocol,
        queue: &mpsc::Sender<Accepted>,
    ) {
        let config = &self.shared.config;
        let owner = match self.clients.lock().unwrap_or_else(PoisonError::into_inner).connect(who, &self.shared) {
            Ok(owner) => owner,
            Err(fault) => return self.turn_away(&stream, protocol, &fault),
        };
        let connections = self.shared.connections(protocol);
        let open = connections.fetch_add(1, Ordering::Relaxed);
        if open >= config.max_connections + config.probe_connections {
            connections.fetch_sub(1, Ordering::Relaxed);
            return self.turn_away(&stream, protocol, &too_many(config, protocol));
        }
        let Ok(stream) = stream.into_std() else {
            connections.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        let room = match open {
            _ if self.shared.memory.step() >= MemoryStep::NoConnections => Room::ProbesOnly,
            _ if open >= config.max_connections => Room::Taken,
            _ => Room::Free,
        };
        let accepted = Accepted { stream, protocol, owner, room };
        // The queue only closes with its thread, and threads outlive the acceptor.
        let _ = queue.send(accepted).await;
    }

    fn turn_away(&self, stream: &TcpStream, protocol: Protocol, fault: &Fault) {
        // Over TLS closing says it: nothing was agreed on to say it in.
        if self.shared.tls.is_none() {
            turn_away(stream, protocol, fault);
        }
    }
}

/// What a client is told for which there is no connection.
pub(crate) fn too_many(config: &Config, protocol: Protocol) -> Fault {
    let limit = config.max_connections;
    let over = match protocol {
        Protocol::Http => "HTTP",
        Protocol::Grpc => "gRPC",
    };
    let message = format!("the server has {limit} connections over {over}, the most that it takes: try again later");
    Fault::new(Reason::TooManyConnections, message)
}

/// Tells a client over HTTP why its connection is closed; over gRPC closing says it.
fn turn_away(stream: &TcpStream, protocol: Protocol, fault: &Fault) {
    if protocol == Protocol::Grpc {
        return;
    }
    let (status, body) = (fault.reason.http_status(), fault.to_json());
    let head = format!(
        "HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let _ = stream.try_write(&[head.as_bytes(), &body].concat());
}
