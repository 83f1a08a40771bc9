//! Endpoints: asked like models, answered by several within one deadline.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod common;

use common::{Answer, Client, Server, get, message, model, post, rows};
use engine::EmulatedEngine;
use gateway::Config;
use std::sync::Arc;
use wire::proto::grpc_inference_service_client::GrpcInferenceServiceClient;

const EXECUTIONS: &str = r#"punctual_actions_total{action="execution",device="emulated:0",result="done"}"#;

/// A pipeline of models one behind the other, each a stage of its own.
fn chain(models: &[&str]) -> String {
    let stage = |(number, model): (usize, &&str)| {
        let (from, to) = (tensor(number, models), tensor(number + 1, models));
        format!(
            "[[stage]]\nname = \"{number}\"\nmodel = \"{model}\"\ninputs.input = \"{from}\"\noutputs.output = \"{to}\"\n"
        )
    };
    let stages: String = models.iter().enumerate().map(stage).collect();
    format!("kind = \"pipeline\"\ninputs = [\"input\"]\noutputs = [\"scores\"]\n{stages}")
}

fn tensor(number: usize, models: &[&str]) -> String {
    match number {
        0 => "input".into(),
        number if number == models.len() => "scores".into(),
        number => format!("t{number}"),
    }
}

/// A model that is called once for each row.
fn each_row(model: &str, more: &str) -> String {
    format!(
        "kind = \"pipeline\"\ninputs = [\"input\"]\noutputs = [\"scores\"]\n[[stage]]\nmodel = \"{model}\"\n\
         inputs.input = \"input\"\noutputs.output = \"scores\"\nfor_each = [\"input\"]\n{more}\n"
    )
}

fn infer(server: &Server, name: &str, body: impl AsRef<[u8]>) -> Answer {
    server.ask(post(&format!("/v2/models/{name}/infer"), &[], body))
}

fn ended(server: &Server, name: &str, outcome: &str, reason: &str) -> f64 {
    server.metric(&format!(
        r#"punctual_requests_total{{model="{name}",outcome="{outcome}",reason="{reason}",version="1"}}"#
    ))
}

fn wasted(server: &Server, name: &str) -> f64 {
    server.metric(&format!(r#"punctual_wasted_device_seconds_total{{model="{name}",version="1"}}"#))
}

fn state(server: &Server, name: &str) -> (String, String) {
    let index = server.ask(post("/v2/repository/index", &[], "{}")).json();
    let entry = index.as_array().unwrap().iter().find(|entry| entry["name"] == name).unwrap().clone();
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    (text("state"), text("reason"))
}

fn write(server: &Server, file: &str, text: &str) {
    let path = server.repository.path().join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[tokio::test]
async fn it_is_asked_listed_and_described_like_a_model() {
    let quick = || model(0.1, None);
    let server = Server::with(Config::default(), &[("a", quick()), ("b", quick()), ("both", chain(&["a", "b"]))]);
    assert_eq!(server.ask(get("/v2/models/both/ready")).status, 200);
    assert_eq!(state(&server, "both"), ("READY".into(), String::new()));
    let metadata = server.ask(get("/v2/models/both")).json();
    assert_eq!(metadata["platform"], "ensemble");
    assert_eq!(metadata["inputs"][0]["name"], "input");
    assert_eq!(metadata["inputs"][0]["shape"], serde_json::json!([-1, 10]));
    assert_eq!(metadata["outputs"][0]["name"], "scores");
    let config = server.ask(get("/v2/models/both/config")).json();
    assert_eq!(config["max_batch_size"], 8);
    assert_eq!(config["ensemble_scheduling"]["step"][1]["model_name"], "b");

    let answer = infer(&server, "both", rows(2, r#""timeout": 20000000"#));
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    assert_eq!((&json["model_name"], &json["id"]), (&"both".into(), &"i".into()));
    assert_eq!(json["outputs"][0]["name"], "scores");
    assert_eq!(json["outputs"][0]["shape"], serde_json::json!([2, 10]));
    let mut grpc = GrpcInferenceServiceClient::connect(format!("http://{}", server.grpc())).await.unwrap();
    let answer = grpc.model_infer(message("both", "g")).await.unwrap().into_inner();
    assert_eq!((&*answer.id, &*answer.outputs[0].name), ("g", "scores"));

    // It counts as one request of its own, and as one for each member.
    for name in ["a", "b", "both"] {
        assert_eq!(ended(&server, name, "success", ""), 2.0, "{name}");
    }
    let stats = server.ask(get("/v2/models/both/stats")).json();
    assert_eq!(stats["model_stats"][0]["inference_stats"]["success"]["count"], 2);
    assert_eq!(stats["model_stats"][0]["inference_count"], 3, "rows, as of a model");
    assert_eq!(wasted(&server, "both"), 0.0);
    let bad = infer(&server, "both", rows(9, ""));
    assert_eq!(bad.refusal().1, "bad_input");
}

#[test]
fn it_waits_for_its_models_and_says_for_which() {
    let server = Server::with(Config::default(), &[("a", model(0.1, None)), ("both", chain(&["a", "b"]))]);
    assert_eq!(state(&server, "both").0, "UNAVAILABLE");
    let (status, reason, sentence) = infer(&server, "both", rows(1, "")).refusal();
    assert_eq!((status, &*reason), (404, "model_unavailable"));
    assert!(sentence.contains(r#"it asks the model "b", which isn't there"#), "{sentence}");
    assert_ne!(server.ask(get("/v2/models/both/ready")).status, 200);

    std::fs::create_dir_all(server.repository.path().join("b/1")).unwrap();
    write(&server, "b/config.pbtxt", &model(0.1, None));
    server.until("its model is there", |server| state(server, "both").0 == "READY");
    assert_eq!(infer(&server, "both", rows(1, "")).status, 200);

    assert_eq!(server.ask(post("/v2/repository/models/b/unload", &[], "{}")).status, 200);
    let (state_now, reason) = state(&server, "both");
    assert_eq!(state_now, "UNAVAILABLE");
    assert!(reason.contains(r#""b", which is unloaded"#), "{reason}");
    assert_eq!(server.ask(post("/v2/repository/models/b/load", &[], "{}")).status, 200);
    assert_eq!(infer(&server, "both", rows(1, "")).status, 200);

    // A change of its own file counts like that of a model's; what is wrong leaves it as it was.
    write(&server, "both/endpoint.toml", &chain(&["a", "b", "a"]));
    let stages = |server: &Server| {
        let config = server.ask(get("/v2/models/both/config")).json();
        config["ensemble_scheduling"]["step"].as_array().map(Vec::len)
    };
    server.until("there are three stages", |server| stages(server) == Some(3));
    write(&server, "both/endpoint.toml", "kind = \"pipeline\"\ninputs = []");
    assert_eq!(infer(&server, "both", rows(1, "")).status, 200);
    std::fs::remove_dir_all(server.repository.path().join("both")).unwrap();
    server.until("it is gone", |server| infer(server, "both", rows(1, "")).status == 404);
    assert!(!server.metrics.render().contains(r#"model="both""#));
}

#[test]
fn endpoints_that_ask_themselves_are_refused() {
    let quick = || model(0.1, None);
    let server = Server::with(
        Config::default(),
        &[
            ("a", quick()),
            ("itself", chain(&["a", "itself"])),
            ("one", chain(&["a", "other"])),
            ("other", chain(&["one"])),
            ("nested", chain(&["inner", "a"]).replacen("outputs.output", "outputs.scores", 1)),
            ("inner", chain(&["a"])),
        ],
    );
    assert_eq!(state(&server, "itself").1, "it asks itself");
    assert_eq!(state(&server, "one").1, "it asks itself: one asks other asks one");
    assert_eq!(state(&server, "other").1, "it asks itself: other asks one asks other");
    // But one may ask another.
    assert_eq!(state(&server, "nested"), ("READY".into(), String::new()));
    assert_eq!(infer(&server, "nested", rows(1, r#""timeout": 20000000"#)).status, 200);
    assert_eq!(ended(&server, "inner", "success", ""), 1.0);
    assert_eq!(ended(&server, "a", "success", ""), 2.0);
}

#[test]
fn what_no_stage_can_meet_is_refused_before_anything_is_computed() {
    let server = Server::with(
        Config::default(),
        &[("a", model(50.0, None)), ("b", model(400.0, None)), ("both", chain(&["a", "b"]))],
    );
    // Warm: weights are loaded with the first request.
    assert_eq!(infer(&server, "both", rows(1, "")).status, 200);
    // A batch may be counted after its answer is here.
    server.until("both batches are counted", |server| server.metric(EXECUTIONS) == 2.0);
    let answer = infer(&server, "both", rows(1, r#""timeout": 300000"#));
    let (status, reason, sentence) = answer.refusal();
    assert_eq!((status, &*reason), (504, "deadline_unreachable"), "{sentence}");
    assert!(sentence.starts_with("stage \"0\": "), "{sentence}");
    let earliest = answer.json()["earliest_deadline_us"].as_u64();
    assert!(earliest.is_some_and(|micros| micros > 450_000), "{}", answer.text());
    assert_eq!(server.metric(EXECUTIONS), 2.0, "the first stage alone would have been in time");
    assert_eq!(wasted(&server, "both"), 0.0);
}

#[test]
fn a_lost_stage_takes_its_siblings_along_and_the_work_so_far_is_wasted() {
    // Behind `a`, `b` is slow and `c` takes fewer rows than come.
    let endpoint = "kind = \"pipeline\"\ninputs = [\"input\"]\noutputs = [\"y\", \"z\"]\nmax_batch_size = 0\n\
        [[stage]]\nmodel = \"a\"\ninputs.input = \"input\"\noutputs.output = \"x\"\n\
        [[stage]]\nmodel = \"b\"\ninputs.input = \"x\"\noutputs.output = \"y\"\n\
        [[stage]]\nmodel = \"c\"\ninputs.input = \"x\"\noutputs.output = \"z\"\n";
    let narrow = model(0.1, None).replace("max_batch_size: 8", "max_batch_size: 4");
    let server = Server::with(
        Config::default(),
        &[("a", model(100.0, None)), ("b", model(3000.0, None)), ("c", narrow), ("all", endpoint.into())],
    );
    let answer = infer(&server, "all", rows(8, ""));
    let (status, _, sentence) = answer.refusal();
    assert_eq!(status, 400);
    assert_eq!(sentence, r#"stage "c": input "input" has 8 rows, but the model takes 1 to 4 in one request"#);
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
    assert_eq!(ended(&server, "b", "cancelled", "cancelled"), 1.0);
    assert_eq!(ended(&server, "all", "refused", "bad_input"), 1.0);
    assert_eq!(ended(&server, "a", "success", ""), 1.0);
    let wasted = wasted(&server, "all");
    assert!(wasted >= 0.1, "{wasted}");
}

#[test]
fn who_goes_away_takes_all_calls_along() {
    let server = Server::with(Config::default(), &[("busy", model(2000.0, None)), ("each", each_row("busy", ""))]);
    let mut first = server.connect();
    first.send(post("/v2/models/busy/infer", &[], rows(8, "")));
    server.until("the first one is in hand", |server| server.controller.in_hand() == 1);
    let mut client = Client::connect(server.http());
    client.send(post("/v2/models/each/infer", &[], rows(5, "")));
    server.until("all calls wait", |server| server.controller.in_hand() == 6);
    assert_eq!(server.metric("punctual_requests_in_flight"), 2.0, "two clients wait, each for one answer");
    drop(client);
    server.until("all are taken back", |server| ended(server, "busy", "cancelled", "cancelled") == 5.0);
    assert_eq!(ended(&server, "each", "cancelled", "cancelled"), 1.0);
    assert_eq!(first.answer().status, 200);
    server.until("nothing is in hand", |server| server.controller.in_hand() == 0);
    assert_eq!(server.metric("punctual_requests_in_flight"), 0.0);
}

#[test]
fn the_data_decides_how_many_calls_there_are() {
    let server = Server::with(
        Config::default(),
        &[("m", model(30.0, None)), ("each", each_row("m", "")), ("few", each_row("m", "max_calls = 2"))],
    );
    let shape = |answer: &Answer| answer.json()["outputs"][0]["shape"].clone();
    let none = infer(&server, "each", rows(0, ""));
    assert_eq!((none.status, shape(&none)), (200, serde_json::json!([0, 10])), "{}", none.text());
    assert_eq!(ended(&server, "m", "success", ""), 0.0);
    let before = server.metric(EXECUTIONS);
    // While the device is busy the calls come together, and share a batch.
    let mut busy = server.connect();
    busy.send(post("/v2/models/m/infer", &[], rows(8, "")));
    server.until("it is in hand", |server| server.controller.in_hand() == 1);
    let eight = infer(&server, "each", rows(8, ""));
    assert_eq!((eight.status, shape(&eight)), (200, serde_json::json!([8, 10])), "{}", eight.text());
    assert_eq!(busy.answer().status, 200);
    assert_eq!(ended(&server, "m", "success", ""), 9.0);
    server.until("both batches are counted", |server| server.metric(EXECUTIONS) >= before + 2.0);
    assert!(server.metric(EXECUTIONS) <= before + 3.0, "{} batches", server.metric(EXECUTIONS) - before);
    // Too many are refused before any is made.
    for (name, count, most) in [("few", 3, 2), ("each", 100_000, 1024)] {
        let (status, _, sentence) = infer(&server, name, rows(count, "")).refusal();
        assert_eq!(status, 400);
        let expected =
            format!("stage \"m\": it would be called {count} times, more than the {most} that its max_calls allows");
        assert_eq!(sentence, expected);
    }
    assert_eq!(ended(&server, "m", "success", ""), 9.0);
}

#[test]
fn more_calls_than_may_wait_are_made_a_part_at_a_time() {
    let server =
        Server::with(Config::default(), &[("m", model(0.001, None)), ("each", each_row("m", "max_calls = 65536"))]);
    // The server has 10,000 requests at a time at most.
    let head = r#"{"inputs":[{"name":"input","shape":[12000,10],"datatype":"FP32","parameters":{"binary_data_size":480000}}],"parameters":{"binary_data_output":true}}"#;
    let body = [head.as_bytes(), &vec![0; 480_000]].concat();
    let headers = [("inference-header-content-length", head.len().to_string())];
    let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
    let answer = server.ask(post("/v2/models/each/infer", &headers, &body));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(ended(&server, "m", "success", ""), 12_000.0);
}

#[test]
fn a_model_may_be_replaced_or_go_while_a_request_is_under_way() {
    let server = Server::with(
        Config::default(),
        &[("a", model(1500.0, None)), ("b", model(0.1, None)), ("both", chain(&["a", "b"]))],
    );
    let begin = || {
        let mut client = server.connect();
        client.send(post("/v2/models/both/infer", &[], rows(8, "")));
        server.until("the first stage runs", |server| server.controller.in_hand() == 1);
        client
    };
    let mut client = begin();
    // More rows are no other form of them.
    write(&server, "b/config.pbtxt", &model(0.2, None).replace("max_batch_size: 8", "max_batch_size: 9"));
    let beta = |server: &Server| {
        let config = server.ask(get("/v2/models/b/config")).json();
        config["parameters"]["emulated_latency"]["string_value"].as_str().unwrap_or_default().to_owned()
    };
    server.until("the second is another one", |server| beta(server).contains("0.2"));
    assert_eq!(client.answer().status, 200);

    let mut client = begin();
    assert_eq!(server.ask(post("/v2/repository/models/b/unload", &[], "{}")).status, 200);
    let (status, reason, sentence) = client.answer().refusal();
    assert_eq!((status, &*reason), (404, "model_unavailable"), "{sentence}");
    assert!(sentence.starts_with(r#"stage "1": model "b" is unloaded"#), "{sentence}");
    assert!(wasted(&server, "both") >= 1.5);
}

#[test]
fn a_deadline_that_runs_out_between_stages_ends_the_whole() {
    let server = Server::with(
        Config::default(),
        &[
            ("a", model(600.0, None)),
            ("b", model(50.0, None)),
            ("long", model(4000.0, None)),
            ("both", chain(&["a", "b"])),
        ],
    );
    assert_eq!(infer(&server, "both", rows(1, "")).status, 200);
    let attempt = |_| {
        let mut client = server.connect();
        client.send(post("/v2/models/both/infer", &[], rows(1, r#""timeout": 3000000"#)));
        server.until("the first stage runs", |server| server.controller.in_hand() == 1);
        // It has its own deadline, and nearly always the device when the second stage comes.
        let mut other = server.connect();
        other.send(post("/v2/models/long/infer", &[], rows(8, r#""timeout": 25000000"#)));
        let answer = client.answer();
        assert_eq!(other.answer().status, 200);
        (answer.status != 200).then_some(answer)
    };
    let lost = (0..5).find_map(attempt).expect("the other has the device once in five times");
    let (status, reason, sentence) = lost.refusal();
    assert!(status == 503 || status == 504, "{sentence}");
    assert!(["overloaded", "deadline_missed", "deadline_unreachable"].contains(&&*reason), "{reason}");
    server.until("the first stage is counted as wasted", |server| wasted(server, "both") >= 0.6);
}

#[test]
fn answers_of_members_are_kept_where_they_say_so() {
    let kept = model(0.1, None) + "response_cache { enable: true }\n";
    let config = Config { cache_bytes: 1 << 20, ..Config::default() };
    let server = Server::with(config, &[("a", kept.clone()), ("b", kept), ("both", chain(&["a", "b"]))]);
    for _ in 0..3 {
        assert_eq!(infer(&server, "both", rows(1, "")).status, 200);
    }
    for name in ["a", "b"] {
        assert_eq!(server.metric(&format!(r#"nv_cache_num_hits_per_model{{model="{name}",version="1"}}"#)), 2.0);
    }
    assert_eq!(ended(&server, "both", "success", ""), 3.0);
}

#[test]
fn what_lies_between_stages_counts_as_held() {
    let config = Config { max_body_bytes: 100_000, max_held_bytes: 100_000, ..Config::default() };
    let wide = Arc::new(EmulatedEngine::new(20_000));
    let quick = || model(0.1, None);
    let server = Server::with_engine(config, &[("a", quick()), ("b", quick()), ("both", chain(&["a", "b"]))], wide);
    let head = r#"{"inputs":[{"name":"input","shape":[1,20000],"datatype":"FP32","parameters":{"binary_data_size":80000}}],"parameters":{"binary_data_output":true}}"#;
    let body = [head.as_bytes(), &vec![0; 80_000]].concat();
    let length = head.len().to_string();
    let ask = |name: &str| {
        let headers = [("inference-header-content-length", length.as_str())];
        server.ask(post(&format!("/v2/models/{name}/infer"), &headers, &body))
    };
    assert_eq!(ask("a").status, 200);
    let (status, reason, sentence) = ask("both").refusal();
    assert_eq!((status, &*reason), (503, "queue_full"), "{sentence}");
    server.until("all is given back", |server| server.metric("punctual_held_bytes") == 0.0);
}

#[test]
fn steps_are_done_before_and_behind_models() {
    let endpoint = "kind = \"pipeline\"\noutputs = [\"best\", \"scores\"]\nlatency_objective_ms = 20000\n\
        inputs = [{ name = \"input\", data_type = \"FP64\", dims = [-1, 10] }]\n\
        [[stage]]\nstep = \"cast\"\nto = \"FP32\"\ninputs = [\"input\"]\noutputs.tensor = \"x\"\n\
        [[stage]]\nmodel = \"m\"\ninputs.input = \"x\"\noutputs.output = \"logits\"\n\
        [[stage]]\nstep = \"softmax\"\ninputs = [\"logits\"]\noutputs.probabilities = \"scores\"\n\
        [[stage]]\nstep = \"concat\"\naxis = 1\ninputs = [\"scores\", \"logits\"]\noutputs.tensor = \"best\"\n";
    let wrong = endpoint.replace("dims = [-1, 10]", "dims = [-1, 11]");
    let server = Server::with(
        Config::default(),
        &[
            ("m", model(0.1, None)),
            ("all", endpoint.into()),
            ("wrong", wrong),
            ("unknown", endpoint.replace("softmax", "softmin")),
            ("untyped", endpoint.replace("{ name = \"input\", data_type = \"FP64\", dims = [-1, 10] }", "\"input\"")),
        ],
    );
    assert_eq!(state(&server, "all"), ("READY".into(), String::new()));
    let body = rows(2, "").replace("FP32", "FP64");
    for _ in 0..3 {
        let answer = infer(&server, "all", &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        let json = answer.json();
        assert_eq!(json["outputs"][1]["shape"], serde_json::json!([2, 10]));
        assert!((json["outputs"][1]["data"][3].as_f64().unwrap() - 0.1).abs() < 1e-6);
        assert_eq!(json["outputs"][0]["shape"], serde_json::json!([2, 20]));
    }
    assert_eq!(ended(&server, "m", "success", ""), 3.0);
    let says = |name: &str, part: &str| assert!(state(&server, name).1.contains(part), "{}", state(&server, name).1);
    says("wrong", r#"gives "x", which has the shape [-1, 11], to "m" as "input", which has [-1, 10]"#);
    says("unknown", r#"there is no step "softmin""#);
    says("untyped", r#"input "input" goes to a step, which takes many forms"#);
}

/// What a model and a step make, for requests with a text that goes back as it came.
fn echoing() -> String {
    "kind = \"pipeline\"\noutputs = [\"scores\", \"same\"]\n\
     inputs = [\"input\", { name = \"text\", data_type = \"BYTES\", dims = [1] }]\n\
     [[stage]]\nmodel = \"m\"\ninputs.input = \"input\"\noutputs.output = \"scores\"\nfor_each = [\"input\"]\n\
     [[stage]]\nname = \"echo\"\nstep = \"concat\"\ninputs = [\"text\"]\noutputs.tensor = \"same\"\n"
        .into()
}

fn with_text(count: usize, text: &[u8]) -> (Vec<u8>, String) {
    let binary = 4 + text.len();
    let head = rows(count, "").replace(
        "\"inputs\":[",
        &format!(
            r#""inputs":[{{"name":"text","shape":[1],"datatype":"BYTES","parameters":{{"binary_data_size":{binary}}}}},"#
        ),
    );
    let length = (text.len() as u32).to_le_bytes();
    ([head.as_bytes(), &length, text].concat(), head.len().to_string())
}

#[test]
fn work_for_an_answer_that_could_not_be_written_is_wasted() {
    let server = Server::with(Config::default(), &[("m", model(50.0, None)), ("echo", echoing())]);
    let ask = |text: &[u8]| {
        let (body, length) = with_text(1, text);
        let headers = [("inference-header-content-length", length.as_str())];
        server.ask(post("/v2/models/echo/infer", &headers, &body))
    };
    let good = ask(b"hello");
    assert_eq!(good.status, 200, "{}", good.text());
    assert_eq!(wasted(&server, "echo"), 0.0);
    // Everything is computed, and then it is seen that JSON has no form for it.
    let (status, _, sentence) = ask(b"\xff\xfe").refusal();
    assert_eq!(status, 400, "{sentence}");
    assert_eq!(ended(&server, "m", "success", ""), 2.0);
    server.until("it is wasted", |server| wasted(server, "echo") >= 0.05);
}

/// The entries of a file of traces: which requests, and the instants of one of them.
struct Traces(Vec<serde_json::Value>);

impl Traces {
    fn of(&self, model: &str) -> Vec<&serde_json::Value> {
        self.0.iter().filter(|entry| entry["model_name"] == model).collect()
    }

    fn instants(&self, request: &serde_json::Value) -> Vec<(&str, u64)> {
        let of_it = |entry: &&serde_json::Value| entry["id"] == request["id"] && entry["timestamps"].is_array();
        let times = self.0.iter().find(of_it).unwrap()["timestamps"].as_array().unwrap();
        times.iter().map(|time| (time["name"].as_str().unwrap(), time["ns"].as_u64().unwrap())).collect()
    }
}

#[test]
fn a_trace_has_what_was_asked_of_members_and_what_steps_did() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("traces");
    let config = Config { trace_file: Some(file.clone()), ..Config::default() };
    let mut server = Server::with(config, &[("m", model(5.0, None)), ("whole", echoing())]);
    let settings = r#"{"trace_level": ["TIMESTAMPS"], "trace_rate": "1", "trace_count": "1"}"#;
    assert_eq!(server.ask(post("/v2/models/whole/trace/setting", &[], settings)).status, 200);
    let (body, length) = with_text(3, b"hello");
    let headers = [("inference-header-content-length", length.as_str())];
    let answer = server.ask(post("/v2/models/whole/infer", &headers, &body));
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.gateway.take().unwrap().shutdown();

    let text = std::fs::read_to_string(&file).unwrap();
    let traces = Traces(serde_json::from_str(&text).unwrap());
    let (whole, calls, step) = (traces.of("whole")[0], traces.of("m"), traces.of("echo")[0]);
    assert_eq!((calls.len(), step["model_version"].as_u64()), (3, Some(0)), "{text}");
    let instants = traces.instants(whole);
    let names: Vec<&str> = instants.iter().map(|(name, _)| *name).collect();
    let expected =
        ["HTTP_RECV_START", "HTTP_RECV_END", "REQUEST_START", "REQUEST_END", "HTTP_SEND_START", "HTTP_SEND_END"];
    assert_eq!((names, &whole["parent_id"]), (expected.to_vec(), &serde_json::Value::Null));
    for part in calls.into_iter().chain([step]) {
        assert_eq!(part["parent_id"], whole["id"]);
        let found = traces.instants(part);
        let names: Vec<&str> = found.iter().map(|(name, _)| *name).collect();
        let compute = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"];
        assert_eq!(names, [&["REQUEST_START", "QUEUE_START"][..], &compute, &["REQUEST_END"]].concat());
        let within = instants[2].1 <= found[0].1 && found[6].1 <= instants[3].1;
        assert!(within && found.is_sorted_by_key(|(_, at)| *at), "{text}");
    }
}

#[test]
fn the_advice_on_devices_counts_a_request_for_an_endpoint_once() {
    let server = Server::with(Config::default(), &[("m", model(0.1, None)), ("each", each_row("m", ""))]);
    for _ in 0..2 {
        assert_eq!(infer(&server, "each", rows(5, "")).status, 200);
    }
    assert_eq!(ended(&server, "m", "success", ""), 10.0);
    assert_eq!(server.metrics.demand().ended, 2);
    // Nothing to compute is nothing to ask devices for.
    assert_eq!(infer(&server, "each", rows(0, "")).status, 200);
    assert_eq!(server.metrics.demand().ended, 2);
}

#[test]
fn rows_of_different_lengths_are_called_with_what_each_has_and_joined_again() {
    let endpoint = "kind = \"pipeline\"\noutputs = [\"scores\"]\n\
        inputs = [{ name = \"input\", data_type = \"FP32\", dims = [-1, -1] }, { name = \"lengths\", data_type = \"INT64\", dims = [-1] }]\n\
        [[stage]]\nmodel = \"inner\"\ninputs.input = \"input\"\noutputs.scores = \"scores\"\n\
        for_each = [\"input\"]\nlengths.input = \"lengths\"\nfill_up = true\n";
    // Twice what it gets, side by side: any length will do.
    let inner = "kind = \"pipeline\"\noutputs = [\"scores\"]\n\
        inputs = [{ name = \"input\", data_type = \"FP32\", dims = [-1, -1] }]\n\
        [[stage]]\nstep = \"concat\"\naxis = 1\ninputs = [\"input\", \"input\"]\noutputs.tensor = \"scores\"\n";
    let fixed = endpoint.replace("model = \"inner\"", "model = \"m\"").replace("outputs.scores", "outputs.output");
    let typed = endpoint.replace("\"INT64\", dims = [-1]", "\"INT32\", dims = [-1]");
    let unfilled = endpoint.replace("fill_up = true\n", "");
    let server = Server::with(
        Config::default(),
        &[
            ("m", model(0.1, None)),
            ("inner", inner.into()),
            ("uneven", endpoint.into()),
            ("fixed", fixed),
            ("typed", typed),
            ("unfilled", unfilled),
        ],
    );
    let ask = |name: &str, lengths: &str| {
        let body = format!(
            r#"{{"inputs":[{{"name":"input","shape":[3,4],"datatype":"FP32","data":[1,2,3,4,5,6,7,8,9,10,11,12]}},
                {{"name":"lengths","shape":[3],"datatype":"INT64","data":[{lengths}]}}]}}"#
        );
        infer(&server, name, body)
    };
    let answer = ask("uneven", "1,3,2");
    assert_eq!(answer.status, 200, "{}", answer.text());
    let output = &answer.json()["outputs"][0];
    assert_eq!(output["shape"], serde_json::json!([3, 6]));
    let expected = [[1, 1, 0, 0, 0, 0], [5, 6, 7, 5, 6, 7], [9, 10, 9, 10, 0, 0]].concat();
    let got: Vec<i64> = output["data"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap() as i64).collect();
    assert_eq!(got, expected);
    let (status, _, sentence) = ask("uneven", "1,5,2").refusal();
    assert_eq!((status, &*sentence), (400, r#"stage "inner": a row is to have the length 5, and there are 4"#));
    let (status, _, sentence) = ask("unfilled", "1,3,2").refusal();
    assert_eq!(status, 400);
    assert!(sentence.contains("different shapes, [2] and [6]"), "{sentence}");
    let says = |name: &str, part: &str| assert!(state(&server, name).1.contains(part), "{}", state(&server, name).1);
    says("fixed", "numbers are needed, and rows whose last dimension is open");
    says("typed", "which is INT32 of the shape [-1]: INT64 of the shape [-1] is needed");
}

#[test]
fn a_model_that_is_asked_in_sequences_is_no_member() {
    let sequences = format!("{}sequence_batching {{ }}\n", model(0.1, None));
    let server = Server::with(Config::default(), &[("heard", sequences), ("both", chain(&["heard"]))]);
    let (state, reason) = state(&server, "both");
    assert_eq!(state, "UNAVAILABLE");
    assert!(reason.contains(r#"it asks the model "heard", which is asked in sequences"#), "{reason}");
}
