//! Answers that are kept, and identical requests in flight, over real sockets.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use base::{DataType, ModelSignature, TensorSpec};
use common::{Answer, Client, Server, get, message, model, post, rows};
use controller::Tensor;
use engine::{AtOnce, Engine, EngineError, Loaded, ModelSource, Prepared, Sink, TensorView, at_once};
use gateway::Config;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};
use tonic::transport::{Channel, Endpoint};
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use wire::proto::{ModelInferRequest, ModelInferResponse};

const INFER: &str = "/v2/models/kept/infer";
const KEPT: &str = "response_cache { enable: true }\n";
const EXECUTIONS: &str = r#"nv_inference_exec_count{model="kept",version="1"}"#;
const HITS: &str = r#"nv_cache_num_hits_per_model{model="kept",version="1"}"#;
const MISSES: &str = r#"nv_cache_num_misses_per_model{model="kept",version="1"}"#;
const JOINED: &str = r#"punctual_cache_joined_total{model="kept",version="1"}"#;
const CANCELLED: &str = r#"punctual_requests_total{model="kept",outcome="cancelled",reason="cancelled",version="1"}"#;

/// Adds the number in its file to each of three numbers. While the gate is closed, it computes nothing.
#[derive(Clone, Default)]
struct Adding {
    number: f32,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

/// Opens the gate at the end: the server doesn't stop before.
struct Gate(Adding);

impl Gate {
    fn close(&self) {
        self.set(true);
    }

    fn open(&self) {
        self.set(false);
    }

    fn set(&self, is_closed: bool) {
        *self.0.gate.0.lock().unwrap() = is_closed;
        self.0.gate.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

fn signature() -> ModelSignature {
    let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, 3] };
    ModelSignature { inputs: vec![spec("x")], outputs: vec![spec("y"), spec("z")], max_batch: 4 }
}

impl Engine for Adding {
    fn name(&self) -> &'static str {
        "adding"
    }

    fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
        let text = std::fs::read_to_string(&source.file).unwrap();
        let number = text.trim().parse().map_err(|_| EngineError::bad_model(&source.file, "not a number"))?;
        Ok(Arc::new(AddingModel { engine: Self { number, ..self.clone() }, signature: signature(), output: None }))
    }
}

#[derive(Clone)]
struct AddingModel {
    engine: Adding,
    signature: ModelSignature,
    output: Option<Tensor>,
}

impl Prepared for AddingModel {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn weight_bytes(&self) -> u64 {
        1
    }

    fn takes_any_batch(&self) -> bool {
        true
    }

    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(self.clone()))
    }
}

impl AtOnce for AddingModel {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let TensorView { datatype, shape, data } = inputs[0];
        let (closed, opened) = &*self.engine.gate;
        drop(opened.wait_while(closed.lock().unwrap(), |closed| *closed).unwrap());
        let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap()) + self.engine.number;
        let data: Vec<u8> = data.chunks(4).flat_map(|bytes| number(bytes).to_le_bytes()).collect();
        self.output = Some(Tensor { datatype, shape: shape.to_vec(), data: data.into() });
        Ok(())
    }

    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        for position in 0..2 {
            self.output.iter().for_each(|output| sink(position, output.view()));
        }
        Ok(())
    }
}

fn config() -> Config {
    Config { cache_bytes: 1 << 20, ..Config::default() }
}

/// A server with the model `kept` that adds, and what opens and closes its gate.
fn adding(config: Config) -> (Server, Gate) {
    let engine = Adding::default();
    let text = format!("max_batch_size: 4\n{KEPT}");
    (Server::with_engine(config, &[("kept", text)], Arc::new(engine.clone())), Gate(engine))
}

/// A server with the model `kept`, whose batches take so many milliseconds.
fn pretending(millis: f64) -> Server {
    Server::with(config(), &[("kept", KEPT.to_owned() + &model(millis, None))])
}

/// A request of one row, as JSON.
fn row(number: u32, parameters: &str, outputs: &str) -> String {
    format!(
        r#"{{"id":"i","parameters":{{{parameters}}},"inputs":[{{"name":"x","shape":[1,3],"datatype":"FP32","data":[{number},1,2]}}]{outputs}}}"#
    )
}

/// The same with bytes behind the JSON.
fn binary_row(number: u32) -> Vec<u8> {
    let head = r#"{"id":"i","parameters":{"binary_data_output":true},"inputs":[{"name":"x","shape":[1,3],"datatype":"FP32","parameters":{"binary_data_size":12}}]}"#;
    let data: Vec<u8> = [number as f32, 1.0, 2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    let length = head.len().to_string();
    post(INFER, &[("Inference-Header-Content-Length", &length)], [head.as_bytes(), &data].concat())
}

fn grpc_row(number: u32) -> ModelInferRequest {
    let mut request = message("kept", "i");
    (request.inputs[0].name, request.inputs[0].shape) = ("x".into(), vec![1, 3]);
    let data: Vec<u8> = [number as f32, 1.0, 2.0].iter().flat_map(|number| number.to_le_bytes()).collect();
    request.raw_input_contents = vec![data.into()];
    request
}

async fn grpc(server: &Server, request: ModelInferRequest) -> ModelInferResponse {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc())).unwrap();
    let mut client: GrpcInferenceServiceClient<Channel> =
        GrpcInferenceServiceClient::new(endpoint.connect().await.unwrap());
    client.model_infer(request).await.unwrap().into_inner()
}

/// Everything of an answer but its date.
fn whole(answer: Answer) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let headers = answer.headers.into_iter().filter(|(name, _)| name != "date").collect();
    (answer.status, headers, answer.body)
}

/// What was counted so far: hits, misses, batches.
fn counted(server: &Server) -> [f64; 3] {
    [HITS, MISSES, EXECUTIONS].map(|series| server.metric(series))
}

#[tokio::test]
async fn a_hit_is_the_miss_byte_for_byte_on_every_protocol() {
    let (server, _gate) = adding(config());
    let json = || whole(server.ask(post(INFER, &[], row(1, "", ""))));
    let (miss, hit) = (json(), json());
    assert_eq!(miss.0, 200);
    assert_eq!(miss, hit);
    let binary = || whole(server.ask(binary_row(2)));
    let (miss, hit) = (binary(), binary());
    assert_eq!(miss.0, 200);
    assert_eq!(miss, hit);
    assert_eq!(grpc(&server, grpc_row(3)).await, grpc(&server, grpc_row(3)).await);
    server.until("the batches are counted", |server| counted(server) == [3.0, 3.0, 3.0]);
    // What was computed for one protocol is found for the others.
    assert_eq!(whole(server.ask(binary_row(1))).0, 200);
    assert_eq!(server.ask(post(INFER, &[], row(2, "", ""))).status, 200);
    assert_eq!(grpc(&server, grpc_row(2)).await.raw_output_contents.len(), 2);
    assert_eq!(counted(&server), [6.0, 3.0, 3.0]);
}

#[test]
fn what_is_wanted_of_an_answer_is_no_part_of_what_is_kept() {
    let (server, _gate) = adding(config());
    let ask = |outputs: &str| server.ask(post(INFER, &[], row(1, "", outputs))).json()["outputs"].clone();
    let all = ask("");
    assert_eq!(all.as_array().unwrap().len(), 2);
    let one = ask(r#","outputs":[{"name":"z"}]"#);
    assert_eq!((one.as_array().unwrap().len(), &one[0]), (1, &all[1]));
    let classes = ask(r#","outputs":[{"name":"y","parameters":{"classification":1}}]"#);
    assert_eq!(classes[0]["data"], serde_json::json!(["2.000000:2"]));
    assert_eq!(ask(""), all, "what is kept is what the model gave");
    server.until("the batch is counted", |server| counted(server) == [3.0, 1.0, 1.0]);
}

#[test]
fn both_the_server_and_the_model_have_to_want_it() {
    let models = [("kept", KEPT.to_owned() + &model(0.1, None)), ("plain", model(0.1, None))];
    for (config, is_kept) in [(config(), true), (Config::default(), false)] {
        let server = Server::with(config, &models);
        for _ in 0..2 {
            for name in ["kept", "plain"] {
                assert_eq!(server.ask(post(&format!("/v2/models/{name}/infer"), &[], rows(1, ""))).status, 200);
            }
        }
        let batches = |name: &str| server.metric(&format!(r#"nv_inference_exec_count{{model="{name}",version="1"}}"#));
        server.until("all are counted", |_| {
            batches("plain") == 2.0 && batches("kept") == if is_kept { 1.0 } else { 2.0 }
        });
        let text = server.metrics.render();
        assert_eq!(text.contains(r#"nv_cache_num_hits_per_model{model="kept""#), is_kept);
        assert!(!text.contains(r#"nv_cache_num_hits_per_model{model="plain""#));
    }
}

#[test]
fn statistics_have_tritons_fields() {
    let (server, _gate) = adding(config());
    for _ in 0..3 {
        assert_eq!(server.ask(post(INFER, &[], row(1, "", ""))).status, 200);
    }
    let json = server.ask(get("/v2/models/kept/stats")).json();
    let found = &json["model_stats"][0]["inference_stats"];
    let count = |name: &str| found[name]["count"].to_string().trim_matches('"').parse::<u64>().unwrap();
    assert_eq!((count("cache_hit"), count("cache_miss"), count("success")), (2, 1, 3));
    for name in ["cache_hit", "cache_miss"] {
        assert!(found[name]["ns"].to_string().trim_matches('"').parse::<u64>().unwrap() > 0, "{found}");
    }
}

#[test]
fn identical_requests_in_flight_are_computed_once() {
    let server = pretending(5000.0);
    let mut clients: Vec<Client> = (0..5).map(|_| server.connect()).collect();
    clients[0].send(post(INFER, &[], rows(1, "")));
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    clients[1..].iter_mut().for_each(|client| client.send(post(INFER, &[], rows(1, ""))));
    server.until("all were looked for", |server| server.metric(MISSES) == 5.0);
    assert_eq!(server.controller.in_hand(), 1, "only the first one came to the scheduler");
    let answers: Vec<Answer> = clients.iter_mut().map(Client::answer).collect();
    assert!(answers.iter().all(|answer| answer.status == 200 && answer.body == answers[0].body));
    server.until("the batch is counted", |server| counted(server) == [0.0, 5.0, 1.0]);
    assert_eq!(server.metric(JOINED), 4.0);
    assert_eq!(server.ask(post(INFER, &[], rows(1, ""))).body, answers[0].body);
    assert_eq!(counted(&server), [1.0, 5.0, 1.0]);
}

#[test]
fn whoever_is_due_earlier_does_not_wait_for_one_that_is_due_later() {
    let server = pretending(5000.0);
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    // Without a deadline; with one; with a later one, which waits for the second.
    for (client, parameters) in clients.iter_mut().zip(["", r#""timeout":20000000"#, r#""timeout":30000000"#]) {
        let before = server.metric(MISSES);
        client.send(post(INFER, &[], rows(1, parameters)));
        server.until("it was looked for", |server| server.metric(MISSES) > before);
    }
    server.until("two are in hand", |server| server.controller.in_hand() == 2);
    let answers: Vec<u16> = clients[..3].iter_mut().map(|client| client.answer().status).collect();
    assert_eq!(answers, [200; 3]);
    assert_eq!(server.metric(JOINED), 1.0);
}

#[test]
fn when_the_one_that_is_computed_goes_away_the_next_gets_what_is_under_way() {
    let server = pretending(5000.0);
    let mut first = server.connect();
    first.send(post(INFER, &[], rows(1, "")));
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    let mut others: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    others.iter_mut().for_each(|client| client.send(post(INFER, &[], rows(1, ""))));
    server.until("all were looked for", |server| server.metric(MISSES) == 4.0);
    drop(first);
    server.until("the first one is gone", |server| server.metric(CANCELLED) == 1.0);
    drop(others.swap_remove(0));
    server.until("the second one is gone", |server| server.metric(CANCELLED) == 2.0);
    let answers: Vec<u16> = others.iter_mut().map(|client| client.answer().status).collect();
    assert_eq!(answers, [200; 2]);
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
    server.until("the batch is counted", |server| server.metric(EXECUTIONS) == 1.0);
}

#[test]
fn when_all_of_them_go_away_nothing_is_left() {
    let server = pretending(2000.0);
    let mut busy = server.connect();
    busy.send(post(INFER, &[], rows(8, "")));
    server.until("the device is busy", |server| server.controller.in_hand() == 1);
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| client.send(post(INFER, &[], rows(1, ""))));
    server.until("all were looked for", |server| server.metric(MISSES) == 4.0);
    server.until("one of them is in hand", |server| server.controller.in_hand() == 2);
    drop(clients);
    server.until("all are gone", |server| server.metric(CANCELLED) == 3.0);
    server.until("the one in hand was taken back", |server| server.controller.in_hand() <= 1);
    assert_eq!(busy.answer().status, 200);
    server.until("the batch is counted", |server| server.metric(EXECUTIONS) == 1.0);
    assert_eq!(server.ask(post(INFER, &[], rows(1, ""))).status, 200, "the next one is computed");
}

#[test]
fn each_has_its_own_deadline_and_whoever_has_time_left_is_answered() {
    let (server, gate) = adding(config());
    // Batches took microseconds when they were measured; this one takes until the gate is open.
    gate.close();
    let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
    let timeouts = [r#""timeout":300000"#, r#""timeout":500000"#, r#""timeout":29000000"#, ""];
    for (client, parameters) in clients.iter_mut().zip(timeouts) {
        let before = server.metric(MISSES);
        client.send(post(INFER, &[], row(1, parameters, "")));
        server.until("it was looked for", |server| server.metric(MISSES) > before);
    }
    let refused: Vec<_> = clients[..2].iter_mut().map(|client| client.answer().refusal()).collect();
    assert!(
        refused.iter().all(|(status, reason, _)| (*status, reason.as_str()) == (504, "deadline_missed")),
        "{refused:?}"
    );
    gate.open();
    let answers: Vec<Answer> = clients[2..].iter_mut().map(Client::answer).collect();
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
}

#[test]
fn a_refusal_is_that_ones_alone() {
    let (server, gate) = adding(config());
    gate.close();
    let mut busy = server.connect();
    busy.send(post(INFER, &[], row(7, "", "")));
    server.until("the device is busy", |server| server.controller.in_hand() == 1);
    let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for (client, parameters) in clients.iter_mut().zip([r#""timeout":300000"#, "", ""]) {
        let before = server.metric(MISSES);
        client.send(post(INFER, &[], row(1, parameters, "")));
        server.until("it was looked for", |server| server.metric(MISSES) > before);
    }
    // It waits for the busy device until it is too late; which reason it is told depends on when that was noticed.
    assert!([503, 504].contains(&clients[0].answer().status));
    gate.open();
    let answers: Vec<u16> = clients[1..].iter_mut().map(|client| client.answer().status).collect();
    assert_eq!((answers, busy.answer().status), (vec![200; 2], 200));
}

#[test]
fn what_is_kept_has_a_bound_in_bytes() {
    let config = Config { cache_bytes: 32 << 10, ..Config::default() };
    let (server, _gate) = adding(config);
    let mut client = server.connect();
    for number in 0..300 {
        client.send(post(INFER, &[], row(number, "", "")));
        assert_eq!(client.answer().status, 200);
    }
    server.until("the last are counted", |server| server.metric("punctual_cache_evictions_total") > 100.0);
    let (bytes, entries) = (server.metric("punctual_cache_bytes"), server.metric("punctual_cache_entries"));
    assert!(bytes <= f64::from(32 << 10) && entries > 10.0, "{entries} entries have {bytes} bytes");
}

#[test]
fn a_model_that_is_unloaded_leaves_nothing_behind() {
    let (server, _gate) = adding(config());
    assert_eq!(server.ask(post(INFER, &[], row(1, "", ""))).status, 200);
    server.until("it is kept", |server| server.metric("punctual_cache_entries") == 1.0);
    assert_eq!(server.ask(post("/v2/repository/models/kept/unload", &[], "{}")).status, 200);
    server.until("it is gone", |server| server.metric("punctual_cache_entries") == 0.0);
    assert_eq!(server.ask(post("/v2/repository/models/kept/load", &[], "{}")).status, 200);
    assert_eq!(server.ask(post(INFER, &[], row(1, "", ""))).status, 200);
    assert_eq!(server.metric(HITS), 0.0);
}

/// Asks for one of few rows until it is told to stop; says what was answered too late: a number from before the last
/// change that was ready when it was asked.
fn asking(address: std::net::SocketAddr, seed: u32, ready: &AtomicU32, over: &AtomicBool) -> (u32, Vec<(u32, u32)>) {
    let (mut client, mut asked, mut stale, mut state) = (Client::connect(address), 0, Vec::new(), seed);
    while !over.load(Ordering::SeqCst) {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let number = (state >> 16) % 8;
        let least = ready.load(Ordering::SeqCst);
        client.send(post(INFER, &[], row(number, "", r#","outputs":[{"name":"y"}]"#)));
        let answer = client.answer();
        // A model that is replaced may be gone for a moment.
        if answer.status == 200 {
            let told = answer.json()["outputs"][0]["data"][0].as_f64().unwrap() as u32 - number;
            asked += 1;
            if told < least {
                stale.push((told, least));
            }
        }
    }
    (asked, stale)
}

#[test]
fn no_answer_is_older_than_the_last_change_that_was_ready() {
    const CHANGES: u32 = 12;
    let (server, _gate) = adding(Config { io_threads: 2, ..config() });
    let (ready, over, address) = (AtomicU32::new(0), AtomicBool::new(false), server.http());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|seed| {
                let (ready, over) = (&ready, &over);
                scope.spawn(move || asking(address, seed, ready, over))
            })
            .collect();
        let file = server.repository.path().join("kept/1/model.onnx");
        for change in 1..=CHANGES {
            let hits = server.metric(HITS);
            // The old one is in use, and kept, when it is replaced.
            server.until("answers are found", |server| server.metric(HITS) > hits + 20.0);
            // In one step, as whoever publishes a model should.
            let new = server.repository.path().join("new");
            std::fs::write(&new, change.to_string()).unwrap();
            // File systems know the time to some milliseconds: two changes in one instant would look like one.
            let later = SystemTime::now() + Duration::from_secs(u64::from(change));
            File::options().write(true).open(&new).unwrap().set_modified(later).unwrap();
            std::fs::rename(&new, &file).unwrap();
            let loaded = server.ask(post("/v2/repository/models/kept/load", &[], "{}"));
            assert_eq!(loaded.status, 200, "{}", loaded.text());
            ready.store(change, Ordering::SeqCst);
        }
        let hits = server.metric(HITS);
        server.until("answers of the last are found", |server| server.metric(HITS) > hits + 20.0);
        over.store(true, Ordering::SeqCst);
        for client in clients {
            let (asked, stale) = client.join().unwrap();
            assert!(asked > 0 && stale.is_empty(), "of {asked} answers these were too old: {stale:?}");
        }
    });
    let last = server.ask(post(INFER, &[], row(0, "", r#","outputs":[{"name":"y"}]"#)));
    assert_eq!(last.json()["outputs"][0]["data"][0], serde_json::json!(f64::from(CHANGES)));
}

/// An endpoint whose answers are kept, above the model of that name.
fn endpoint_above(member: &str, names: (&str, &str)) -> String {
    let (input, output) = names;
    format!(
        "kind = \"pipeline\"\nresponse_cache = true\ninputs = [\"{input}\"]\noutputs = [\"scores\"]\n[[stage]]\n\
         model = \"{member}\"\ninputs.{input} = \"{input}\"\noutputs.{output} = \"scores\"\n"
    )
}

#[test]
fn an_endpoint_keeps_its_answers_until_a_model_of_it_changes() {
    let engine = Adding::default();
    let models = [("adds", String::new()), ("kept", endpoint_above("adds", ("x", "y")))];
    let server = Server::with_engine(config(), &models, Arc::new(engine));
    let ask = |number: f32| {
        let body = format!(r#"{{"inputs":[{{"name":"x","shape":[1,3],"datatype":"FP32","data":[{number},0,0]}}]}}"#);
        let answer = server.ask(post(INFER, &[], body));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["outputs"][0]["data"][0].as_f64().unwrap()
    };
    let asked = |server: &Server| server.metric(r#"nv_inference_count{model="adds",version="1"}"#);
    assert_eq!([ask(1.0), ask(1.0), ask(2.0), ask(1.0)], [1.0, 1.0, 2.0, 1.0]);
    assert_eq!((server.metric(HITS), server.metric(MISSES)), (2.0, 2.0));
    server.until("its model was asked twice", |server| asked(server) == 2.0);
    std::fs::write(server.repository.path().join("adds/1/model.onnx"), "10").unwrap();
    server.until("the new model answers", |_| ask(1.0) == 11.0);
    assert_eq!(ask(1.0), 11.0);
    let config = server.ask(get("/v2/models/kept/config")).json();
    assert_eq!(config["response_cache"]["enable"], true, "{config}");
}

#[test]
fn when_the_request_that_an_endpoint_answers_goes_away_one_of_those_that_wait_begins_anew_for_all() {
    let models = [("slow", model(2000.0, None)), ("kept", endpoint_above("slow", ("input", "output")))];
    let server = Server::with(config(), &models);
    let mut first = server.connect();
    first.send(post(INFER, &[], rows(1, "")));
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    let mut others: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    others.iter_mut().for_each(|client| client.send(post(INFER, &[], rows(1, ""))));
    server.until("all were looked for", |server| server.metric(MISSES) == 4.0);
    assert_eq!(server.controller.in_hand(), 1);
    drop(first);
    server.until("the first one is gone", |server| server.metric(CANCELLED) == 1.0);
    let answers: Vec<u16> = others.iter_mut().map(|client| client.answer().status).collect();
    assert_eq!(answers, [200; 3]);
    assert_eq!(server.metric(JOINED), 2.0);
    let asked = r#"punctual_requests_total{model="slow",outcome="success",reason="",version="1"}"#;
    assert_eq!(server.metric(asked), 1.0);
}

#[test]
fn answers_that_differ_by_chance_are_not_kept_by_an_endpoint_above() {
    let split = "kind = \"split\"\nmembers = [{ model = \"m\" }, { model = \"n\" }]\n";
    let models = [
        ("m", model(0.1, None)),
        ("n", model(0.1, None)),
        ("split", split.into()),
        ("nested", endpoint_above("split", ("input", "output")).replace("response_cache = true\n", "")),
        ("kept", endpoint_above("split", ("input", "output"))),
        ("above", endpoint_above("nested", ("input", "scores"))),
    ];
    let server = Server::with(config(), &models);
    let reason =
        |name: &str| server.ask(post(&format!("/v2/models/{name}/infer"), &[], rows(1, ""))).text().to_string();
    for (name, member) in [("kept", "split"), ("above", "nested")] {
        let expected = format!(r#"it has response_cache, and asks \"{member}\", which selects among models"#);
        assert!(reason(name).contains(&expected), "{}", reason(name));
    }
    assert_eq!(server.ask(post("/v2/models/nested/infer", &[], rows(1, ""))).status, 200);
}
