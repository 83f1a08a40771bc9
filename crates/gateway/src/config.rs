//! The settings of the front end.

use engine::HostMemory;
use planner::advice::AdvisorConfig;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The settings of the front end.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where HTTP listens; port 0 takes a free one. `None`: nowhere.
    pub http: Option<SocketAddr>,
    /// Where gRPC listens; port 0 takes a free one. `None`: nowhere.
    pub grpc: Option<SocketAddr>,
    /// Where metrics are served; port 0 takes a free one. `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// Threads that read, decode, encode and write. Each has its share of the connections and never waits for another.
    pub io_threads: usize,
    /// The largest request, in bytes, also after decompression. Larger ones are refused without being kept.
    pub max_body_bytes: usize,
    /// The bytes of large requests that are held at one time, of all connections; more are refused. At least one
    /// request of the largest size is always taken.
    pub max_held_bytes: usize,
    /// Connections of clients at one time, over each protocol; more are told so and closed.
    pub max_connections: usize,
    /// How long the head of a request may take from its first byte to its last, and a gRPC client to introduce itself.
    pub header_timeout: Duration,
    /// How long the body of a request, or an answer that is being written, may stand still.
    pub body_timeout: Duration,
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
}

impl Default for Config {
    fn default() -> Self {
        let any = |port| Some(SocketAddr::from(([0, 0, 0, 0], port)));
        Self {
            http: any(Self::HTTP_PORT),
            grpc: any(Self::GRPC_PORT),
            metrics: any(Self::METRICS_PORT),
            io_threads: 1,
            max_body_bytes: 64 << 20,
            max_held_bytes: 1 << 30,
            max_connections: 16_384,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            shared_memory: false,
            host_memory: None,
            scaling: AdvisorConfig::default(),
            trace_file: None,
            shutdown_grace: Duration::from_secs(30),
        }
    }
}
