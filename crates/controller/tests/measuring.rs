//! The online profiler: what requests take alone is learnt from those that were, and from others run once more.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{ApplicationId, DataType, Duration, LatencyProfile, ModelNumber, ModelSignature, TensorSpec, Timestamp};
use bytes::Bytes;
use common::{record_of, until};
use controller::{Controller, ControllerConfig, DeviceConfig, ExecutionLimits, Reply, Submission, Tensor};
use engine::{AtOnce, EngineError, Loaded, Prepared, Sink, TensorView, at_once};
use scheduler::PolicyKind;
use std::sync::{Arc, Mutex};
use telemetry::Metrics;
use tokio::sync::oneshot;

/// Takes sequences of any length, gives nothing of interest, and notes the rows of each batch.
#[derive(Clone)]
struct Sequences {
    signature: ModelSignature,
    rows: Arc<Mutex<Vec<i64>>>,
}

impl Prepared for Sequences {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }
    fn weight_bytes(&self) -> u64 {
        1
    }
    fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        Ok(at_once(self.clone()))
    }
}

impl AtOnce for Sequences {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        self.rows.lock().unwrap().push(inputs[0].shape[0]);
        Ok(())
    }
    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        let rows = self.rows.lock().unwrap().last().copied().unwrap();
        sink(0, TensorView { datatype: DataType::Uint8, shape: &[rows, 1], data: &vec![0; rows as usize] });
        Ok(())
    }
}

struct TestServer {
    controller: Controller,
    metrics: Metrics,
    model: ModelNumber,
    sequences: Sequences,
}

impl TestServer {
    fn start(share: f64, dims: &[i64]) -> Self {
        let spec =
            |name: &str, dims: &[i64]| TensorSpec { name: name.into(), datatype: DataType::Uint8, dims: dims.into() };
        let signature =
            ModelSignature { inputs: vec![spec("x", dims)], outputs: vec![spec("y", &[-1, 1])], max_batch: 8 };
        let sequences = Sequences { signature, rows: Arc::default() };
        let metrics = Metrics::new();
        let config = ControllerConfig {
            scheduler: scheduler::Config {
                policy: PolicyKind::Punctual,
                schedule_ahead: Duration::ZERO,
                ..scheduler::Config::clockwork()
            },
            max_requests: 64,
            page_bytes: 1,
            cells: vec![vec![DeviceConfig {
                name: "test:0".into(),
                index: 0,
                pages: 4,
                pin: None,
                kind: 0,
                only_waits: false,
            }]],
            online_profile_share: share,
            limits: ExecutionLimits::default(),
        };
        let controller = Controller::start(config, metrics.clone()).unwrap();
        let millis = Duration::from_millis;
        let profile = LatencyProfile::linear(millis(1), millis(1), &[1, 2, 4, 8], millis(1)).unwrap();
        let record = record_of(&sequences, "sequences", profile, &metrics);
        let model = controller.publish(record, Arc::new(sequences.clone()));
        Self { controller, metrics, model, sequences }
    }

    /// Asks for so many sequences of four at once, and waits for the answers.
    fn ask(&self, count: usize) {
        let ask = |_| {
            let (reply, answer) = oneshot::channel();
            let inputs = vec![Tensor { datatype: DataType::Uint8, shape: vec![1, 4], data: Bytes::from(vec![0; 4]) }];
            self.controller.submit(Submission {
                model: self.model,
                inputs,
                rows: 1,
                deadline_at: Timestamp::NEVER,
                priority: 0,
                application: ApplicationId(3),
                size: Some(4),
                trace: None,
                account: None,
                reply,
            });
            answer
        };
        let answers: Vec<_> = (0..count).map(ask).collect();
        self.controller.drive();
        for answer in answers {
            assert!(matches!(answer.blocking_recv().unwrap(), Reply::Outputs(_)));
        }
    }

    fn measured(&self, run: &str) -> u32 {
        let name = format!("punctual_online_measurement_seconds_count{{run=\"{run}\"}} ");
        let text = self.metrics.render();
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
    }

    fn wait_for(&self, run: &str, count: u32) {
        until("measurements", || (self.measured(run) >= count).then_some(()));
    }
}

#[test]
fn requests_that_ran_alone_are_measured_and_others_are_run_again() {
    let server = TestServer::start(1.0, &[-1, -1]);
    // The first one may load the weights.
    server.ask(1);
    server.wait_for("served", 1);
    assert_eq!(server.measured("again"), 0, "it ran alone");
    // All are of the first ones, and a batch of them.
    until("a request of a batch to be run again", || {
        server.ask(8);
        server.wait_for("served", 1);
        (server.measured("again") > 0).then_some(())
    });
    let rows = server.sequences.rows.lock().unwrap().clone();
    let batch = rows.iter().position(|&rows| rows > 1).unwrap();
    assert!(rows[batch..].contains(&1), "one of a batch was run alone: {rows:?}");
    server.controller.stop();
}

#[test]
fn models_of_fixed_sizes_are_left_alone_and_so_are_all_without_a_share() {
    for server in [TestServer::start(1.0, &[-1, 4]), TestServer::start(0.0, &[-1, -1])] {
        server.ask(1);
        server.ask(8);
        // What would be measured was ordered before this is answered.
        server.ask(1);
        assert_eq!((server.measured("served"), server.measured("again")), (0, 0));
        server.controller.stop();
    }
}
