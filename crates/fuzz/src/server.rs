//! A whole server in this process, with an emulated device, that is sent whatever comes.

use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits};
use engine::EmulatedEngine;
use gateway::{Config, Gateway};
use models::{Manager, ManagerConfig, Registry};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use telemetry::Metrics;
use tempfile::TempDir;

/// What an answer may take: a server that is silent for so long hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// A model for requests to name.
const MODEL: &str = "max_batch_size: 8\nparameters { key: \"emulated_latency\" value { string_value: \"alpha_ms=0.001,beta_ms=0.001\" } }\n";

struct Running {
    gateway: Gateway,
    _manager: Manager,
    _folder: TempDir,
}

impl Running {
    fn start() -> Self {
        let folder = TempDir::new().expect("a temporary folder can be made");
        let model = folder.path().join("model");
        std::fs::create_dir_all(model.join("1")).expect("a folder can be made");
        std::fs::write(model.join("config.pbtxt"), MODEL).expect("a temporary file can be written");
        let metrics = Metrics::new();
        let device =
            DeviceConfig { name: "emulated:0".into(), index: 0, pages: 64, pin: None, kind: 0, only_waits: true };
        let settings = ControllerConfig {
            online_profile_share: 0.0,
            limits: ExecutionLimits::default(),
            scheduler: scheduler::Config::clockwork(),
            max_requests: 10_000,
            page_bytes: 1 << 20,
            cells: vec![vec![device]],
        };
        let controller = Controller::start(settings, metrics.clone()).expect("the controller starts");
        let registry = Registry::default();
        let settings = ManagerConfig::new(folder.path().to_owned(), Arc::new(EmulatedEngine::default()));
        let manager = Manager::start(controller.clone(), registry.clone(), settings).expect("the manager starts");
        manager.wait_until_started();
        let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let config = Config { http: free, grpc: free, metrics: None, max_body_bytes: 1 << 20, ..Config::default() };
        let gateway = Gateway::start(config, controller, registry, metrics).expect("the gateway starts");
        gateway.set_ready();
        Self { gateway, _manager: manager, _folder: folder }
    }
}

fn running() -> &'static Running {
    static RUNNING: OnceLock<Running> = OnceLock::new();
    RUNNING.get_or_init(Running::start)
}

pub(crate) fn http(data: &[u8]) {
    exchange(running().gateway.http_address().expect("it listens"), data);
}

/// A call of `ModelInfer` or of `ModelStreamInfer`, as the first byte chooses; the others are its content, in frames
/// that are as long as they say.
pub(crate) fn grpc(data: &[u8]) {
    let Some((&chosen, content)) = data.split_first() else { return };
    let path: &[u8] = if chosen % 2 == 0 {
        b"/inference.GRPCInferenceService/ModelInfer"
    } else {
        b"/inference.GRPCInferenceService/ModelStreamInfer"
    };
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    push_frame(&mut sent, SETTINGS, 0, 0, &[]);
    push_frame(&mut sent, HEADERS, END_HEADERS, 1, &head(path));
    let pieces = content.chunks(usize::from(chosen) * 16 + 1);
    let last = pieces.len().saturating_sub(1);
    for (index, piece) in pieces.enumerate() {
        push_frame(&mut sent, DATA, if index == last { END_STREAM } else { 0 }, 1, piece);
    }
    exchange(running().gateway.grpc_address().expect("it listens"), &sent);
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn push_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The fields of a call, none of them compressed.
fn head(path: &[u8]) -> Vec<u8> {
    let fields: [(&[u8], &[u8]); 6] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    ];
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
    }
    out
}

/// Sends all, then reads until the server has nothing more to say.
fn exchange(address: SocketAddr, data: &[u8]) {
    let mut stream = TcpStream::connect(address).expect("the server takes connections");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout can be set");
    // A server that has seen enough closes while this still writes.
    if stream.write_all(data).and_then(|()| stream.shutdown(Shutdown::Write)).is_err() {
        return;
    }
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        let silent = matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut);
        assert!(!silent, "the server says nothing and keeps the connection");
    }
}
