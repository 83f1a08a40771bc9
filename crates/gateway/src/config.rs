//! The settings of the front end.

use crate::rights::{Origins, Restrictions};
use engine::HostMemory;
use planner::advice::AdvisorConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tls::TlsFiles;

/// What one client may have of the server at most, beside connections; `None`: as much as there is.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct ClientLimits {
    /// Requests in flight.
    pub requests: Option<usize>,
    /// Requests in a second.
    pub rate: Option<f64>,
    /// Bytes of large requests and answers.
    pub held_bytes: Option<usize>,
    /// The part of all devices' time that its requests are computed in.
    pub device_share: Option<f64>,
}

/// The settings of the front end.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where HTTP listens; port 0 takes a free one. `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Where gRPC listens; port 0 takes a free one. `None`: nowhere.
    pub grpc: Option<SocketAddr>,
    /// Where metrics are served; port 0 takes a free one. `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Whether others than this machine's own users reach the server though it listens on loopback, as through a proxy.
    pub exposed: bool,
    /// The pages whose scripts may ask the server.
    pub cors_origins: Origins,
    /// Calls over HTTP that ask for a header.
    pub restricted_http: Restrictions,
    /// Calls over gRPC that ask for a header.
    pub restricted_grpc: Restrictions,
    /// The file of the keys that clients need; `None`: they need none.
    pub api_keys: Option<PathBuf>,
    /// What connections are encrypted with; `None`: they aren't.
    pub tls: Option<TlsFiles>,
    /// Threads that read, decode, encode and write. Each has its share of the connections and never waits for another.
    pub io_threads: usize,
    /// The largest request, in bytes, also after decompression. Larger ones are refused without being kept.
    pub max_body_bytes: usize,
    /// The bytes of large requests that are held at one time, of all connections; more are refused. At least one
    /// request of the largest size is always taken.
    pub max_held_bytes: usize,
    /// Connections of clients at one time, over each protocol; one more takes the place of one that has nothing to do,
    /// or is told so and closed.
    pub max_connections: usize,
    /// Further connections over each protocol that may only ask for the server's health, so that probes are answered
    /// when all others are taken.
    pub probe_connections: usize,
    /// Connections of one client at one time, over both protocols; more are told so and closed.
    pub max_client_connections: usize,
    /// What else one client may have; `None` costs nothing.
    pub client_limits: Option<ClientLimits>,
    /// The memory that the process may have; beyond parts of it answers aren't kept, and large bodies and connections
    /// are refused. `None`: as much as the system lets it.
    pub memory_limit: Option<u64>,
    /// Memory for answers that are kept, of models whose configuration asks for it; 0 keeps none.
    pub cache_bytes: u64,
    /// How long the head of a request may take from its first byte to its last, and a gRPC client to introduce itself.
    pub header_timeout: Duration,
    /// How long the body of a request, or an answer that is being written, may stand still.
    pub body_timeout: Duration,
    /// How many bytes of a body or an answer must move in a second, on average, once it took longer than it may stand
    /// still; 0 for any number.
    pub least_rate: u64,
    /// How long a body or an answer may take in all.
    pub body_total: Duration,
    /// How long a connection may be open with nothing asked.
    pub idle_timeout: Duration,
    /// Whether clients may have tensors read from and written to shared memory, and thereby everything in `/dev/shm`
    /// that this process may open.
    pub shared_memory: bool,
    /// Where devices read inputs by themselves: binary tensors are received there as far as there is room.
    pub host_memory: Option<Arc<dyn HostMemory>>,
    /// When more or fewer devices are advised.
    pub scaling: AdvisorConfig,
    /// Where traces of requests go, once somebody asks for them; `None`: nowhere.
    pub trace_file: Option<PathBuf>,
    /// How long a shutdown waits for what is in flight before it cuts it off.
    pub shutdown_grace: Duration,
}

impl Config {
    /// Where HTTP listens if nobody says it. The three ports are Triton's.
    pub const HTTP_PORT: u16 = 8000;
    /// Where gRPC listens if nobody says it.
    pub const GRPC_PORT: u16 = 8001;
    /// Where metrics are served if nobody says it.
    pub const METRICS_PORT: u16 = 8002;

    /// Whether only this machine's own users reach the server.
    pub(crate) fn is_local(&self) -> bool {
        let mut addresses = [self.http, self.grpc, self.metrics].into_iter().flatten();
        !self.exposed && addresses.all(|address| address.ip().to_canonical().is_loopback())
    }
}

impl Default for Config {
    fn default() -> Self {
        let any = |port| Some(SocketAddr::from(([0, 0, 0, 0], port)));
        Self {
            http: any(Self::HTTP_PORT),
            grpc: any(Self::GRPC_PORT),
            metrics: any(Self::METRICS_PORT),
            exposed: false,
            cors_origins: Origins::default(),
            restricted_http: Restrictions::default(),
            restricted_grpc: Restrictions::default(),
            api_keys: None,
            tls: None,
            io_threads: 1,
            max_body_bytes: 64 << 20,
            max_held_bytes: 1 << 30,
            max_connections: 16_384,
            probe_connections: 64,
            max_client_connections: 4096,
            client_limits: None,
            memory_limit: None,
            cache_bytes: 0,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            least_rate: 1 << 10,
            body_total: Duration::from_secs(3600),
            idle_timeout: Duration::from_secs(600),
            shared_memory: false,
            host_memory: None,
            scaling: AdvisorConfig::default(),
            trace_file: None,
            shutdown_grace: Duration::from_secs(30),
        }
    }
}
