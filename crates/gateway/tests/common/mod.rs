//! A whole server in the test's process: repository, controller, emulated device, gateway on free ports.

#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and a failed unwrap is a failed test")]

use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits};
use engine::{EmulatedEngine, Engine, HostBuffer, HostMemory};
use gateway::{Config, Gateway};
use models::{Manager, ManagerConfig, ProfilingEffort, Registry};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use telemetry::Metrics;
use wire::proto::ModelInferRequest;
use wire::proto::model_infer_request::InferInputTensor;

/// Nothing in these tests takes this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    pub gateway: Option<Gateway>,
    pub controller: Controller,
    pub registry: Registry,
    pub metrics: Metrics,
    _manager: Manager,
    pub repository: tempfile::TempDir,
}

/// A model's `config.pbtxt`: rows of 10 floats, batches up to 8, `b` rows take `alpha + b * beta` milliseconds.
pub fn model(beta_ms: f64, objective_ms: Option<u64>) -> String {
    let objective = objective_ms
        .map(|ms| format!("parameters {{ key: \"latency_objective_ms\" value {{ string_value: \"{ms}\" }} }}\n"))
        .unwrap_or_default();
    format!(
        "max_batch_size: 8\n{objective}parameters {{ key: \"emulated_latency\" value {{ string_value: \"alpha_ms=0.01,beta_ms={beta_ms}\" }} }}\n"
    )
}

/// A request of one row over gRPC.
pub fn message(model: &str, id: &str) -> ModelInferRequest {
    let input = InferInputTensor {
        name: "input".into(),
        datatype: "FP32".into(),
        shape: vec![1, 10],
        parameters: BTreeMap::new(),
        contents: None,
    };
    ModelInferRequest {
        model_name: model.into(),
        id: id.into(),
        inputs: vec![input],
        raw_input_contents: vec![vec![0; 40].into()],
        ..Default::default()
    }
}

impl Server {
    /// With a fast model `quick` without objective, a slow one `slow` (200 ms a batch), and `strict` (objective 1 s).
    pub fn start() -> Self {
        Self::with(
            Config::default(),
            &[("quick", model(0.1, None)), ("slow", model(200.0, None)), ("strict", model(0.1, Some(1000)))],
        )
    }

    pub fn with(config: Config, models: &[(&str, String)]) -> Self {
        Self::with_engine(config, models, Arc::new(EmulatedEngine::default()))
    }

    pub fn with_engine(config: Config, models: &[(&str, String)], engine: Arc<dyn Engine>) -> Self {
        let repository = tempfile::tempdir().unwrap();
        for (name, text) in models {
            std::fs::create_dir_all(repository.path().join(name).join("1")).unwrap();
            let is_endpoint = text.starts_with("kind");
            let file = if is_endpoint { "endpoint.toml" } else { "config.pbtxt" };
            std::fs::write(repository.path().join(name).join(file), text).unwrap();
            if engine.name() != "emulated" && !is_endpoint {
                std::fs::write(repository.path().join(name).join("1/model.onnx"), "0").unwrap();
            }
        }
        let metrics = Metrics::new();
        let only_waits = engine.name() == "emulated";
        let device = DeviceConfig { name: "emulated:0".into(), index: 0, pages: 64, pin: None, kind: 0, only_waits };
        let settings = ControllerConfig {
            online_profile_share: 0.0,
            limits: ExecutionLimits::default(),
            scheduler: scheduler::Config::clockwork(),
            max_requests: 10_000,
            page_bytes: 1 << 20,
            cells: vec![vec![device]],
        };
        let controller = Controller::start(settings, metrics.clone()).unwrap();
        let keeps_answers = config.cache_bytes > 0;
        let settings = ManagerConfig {
            keeps_answers,
            effort: ProfilingEffort { runs: 5, budget: base::Duration::from_millis(20) },
            ..ManagerConfig::new(repository.path().to_owned(), engine)
        };
        let registry = Registry::default();
        let manager = Manager::start(controller.clone(), registry.clone(), settings).unwrap();
        manager.wait_until_started();
        let free = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        let config = Config { http: free, grpc: free, metrics: free, ..config };
        let gateway = Gateway::start(config, controller.clone(), registry.clone(), metrics.clone()).unwrap();
        gateway.set_ready();
        Self { gateway: Some(gateway), controller, registry, metrics, _manager: manager, repository }
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    pub fn http(&self) -> SocketAddr {
        self.gateway().http_address().unwrap()
    }

    pub fn grpc(&self) -> SocketAddr {
        self.gateway().grpc_address().unwrap()
    }

    pub fn metrics_port(&self) -> SocketAddr {
        self.gateway().metrics_address().unwrap()
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.http())
    }

    /// One request on a connection of its own.
    pub fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }

    /// The value of a series in the metrics.
    pub fn metric(&self, series: &str) -> f64 {
        let text = self.metrics.render();
        text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok()).unwrap_or(0.0)
    }

    /// Waits until something holds.
    pub fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let give_up_at = Instant::now() + PATIENCE;
        while !holds(self) {
            assert!(Instant::now() < give_up_at, "{what}: not within {PATIENCE:?}\n{}", self.metrics.render());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            gateway.shutdown();
        }
    }
}

/// A device's memory that says what was taken of it.
#[derive(Debug, Default)]
pub struct DeviceMemory {
    /// How many bytes were asked for, each time.
    pub taken: Mutex<Vec<usize>>,
    /// How many of them aren't given back.
    pub out: Arc<AtomicUsize>,
}

impl HostMemory for DeviceMemory {
    fn take(&self, bytes: usize) -> Option<HostBuffer> {
        self.taken.lock().unwrap().push(bytes);
        self.out.fetch_add(1, Ordering::Relaxed);
        Some(HostBuffer::new(Lent { bytes: vec![0xaa; bytes], out: Arc::clone(&self.out) }))
    }
}

struct Lent {
    bytes: Vec<u8>,
    out: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.out.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// As [`Server::start`], with a device that reads requests by itself.
    pub fn with_device_memory() -> (Self, Arc<DeviceMemory>) {
        let memory = Arc::new(DeviceMemory::default());
        let config = Config { host_memory: Some(Arc::clone(&memory) as Arc<dyn HostMemory>), ..Config::default() };
        (Self::with(config, &[("quick", model(0.1, None))]), memory)
    }
}

impl DeviceMemory {
    /// What was taken since this was asked last, once all of it is given back.
    pub fn was_taken(&self, server: &Server) -> Vec<usize> {
        server.until("everything is given back", |_| self.out.load(Ordering::Relaxed) == 0);
        std::mem::take(&mut *self.taken.lock().unwrap())
    }
}

/// A client that sees every byte.
pub struct Client {
    stream: BufReader<TcpStream>,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { stream: BufReader::new(stream) }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    /// Like `send`, for when the server may close before everything is written.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_ref())
    }

    pub fn answer(&mut self) -> Answer {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("no status in {line:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut answer = Answer { status, headers, body: Vec::new() };
        if status != 100 {
            answer.body = vec![0; answer.header("content-length").map_or(0, |length| length.parse().unwrap())];
            self.stream.read_exact(&mut answer.body).unwrap();
        }
        answer
    }

    /// The next byte, which stays to be read.
    pub fn byte(&mut self) -> u8 {
        self.stream.fill_buf().unwrap()[0]
    }

    /// Everything until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut said = Vec::new();
        self.stream.read_to_end(&mut said).unwrap();
        said
    }

    /// Whether the server has closed the connection, now or soon.
    pub fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0]), Ok(0) | Err(_))
    }
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?}", String::from_utf8_lossy(&self.body)))
    }

    /// Status, reason and sentence of a refusal.
    pub fn refusal(&self) -> (u16, String, String) {
        let json = self.json();
        let text = |key: &str| json[key].as_str().unwrap_or_default().to_owned();
        (self.status, text("reason"), text("error"))
    }
}

pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

pub fn post(path: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Vec<u8> {
    let body = body.as_ref();
    let mut request = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n", body.len());
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    [(request + "\r\n").as_bytes(), body].concat()
}

/// A request of that many rows of zeros, as JSON.
pub fn rows(rows: usize, parameters: &str) -> String {
    let data = vec!["0"; rows * 10].join(",");
    format!(
        r#"{{"id":"i","parameters":{{{parameters}}},"inputs":[{{"name":"input","shape":[{rows},10],"datatype":"FP32","data":[{data}]}}]}}"#
    )
}
