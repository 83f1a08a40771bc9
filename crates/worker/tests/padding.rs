//! Requests of different lengths in one batch, with a model that masks: each must get what it would get alone.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

use base::{ActionId, DataType, Duration, ModelSignature, TensorSpec, Timestamp, Window};
use crossbeam_channel::{Sender, unbounded};
use engine::{AtOnce, EngineError, Loaded, Prepared, Sink, TensorView, at_once};
use std::sync::{Arc, Mutex};
use telemetry::Statistics;
use worker::{
    BatchItem, Clock, Device, DeviceConfig, ExecuteOrder, LoadOrder, OrderReport, Padding, Slot, Status, Tensor,
};

/// Nothing here takes as long.
const LIMIT: Duration = Duration::from_secs(3600);

type Answer = (usize, Result<Vec<Tensor>, String>);

struct Item {
    inputs: Vec<Tensor>,
    number: usize,
    answers: Sender<Answer>,
}

impl BatchItem for Item {
    fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }
    fn rows(&self) -> u32 {
        self.inputs[0].shape[0] as u32
    }
    fn queued_at(&self) -> Timestamp {
        Timestamp::ZERO
    }
    fn deliver(self, outputs: Result<Vec<Tensor>, String>) {
        self.answers.send((self.number, outputs)).unwrap();
    }
}

/// Takes `ids` [b, L], `mask` [b, L] and `image` [b, 2, M]. Gives
/// - `tokens` [b, L]: each id and the masked sum of all;
/// - `pooled` [b, 1]: the masked mean;
/// - `heat` [b, 2, M]: the image and the masked sum, in another dimension;
/// - and, if it is strided, `half` [b, L / 2].
#[derive(Clone)]
struct Masking {
    signature: ModelSignature,
    strided: bool,
    /// The lengths that were computed with, L and M.
    seen: Arc<Mutex<Vec<(i64, i64, i64)>>>,
    /// What was computed last.
    outputs: Vec<Tensor>,
}

fn spec(name: &str, datatype: DataType, dims: &[i64]) -> TensorSpec {
    TensorSpec { name: name.into(), datatype, dims: dims.into() }
}

impl Masking {
    fn new(strided: bool) -> Self {
        let mut outputs = vec![
            spec("tokens", DataType::Fp32, &[-1, -1]),
            spec("pooled", DataType::Fp32, &[-1, 1]),
            spec("heat", DataType::Fp32, &[-1, 2, -1]),
        ];
        if strided {
            outputs.push(spec("half", DataType::Fp32, &[-1, -1]));
        }
        let inputs = vec![
            spec("ids", DataType::Int64, &[-1, -1]),
            spec("mask", DataType::Int16, &[-1, -1]),
            spec("image", DataType::Fp32, &[-1, 2, -1]),
        ];
        Self {
            signature: ModelSignature { inputs, outputs, max_batch: 16 },
            strided,
            seen: Arc::default(),
            outputs: Vec::new(),
        }
    }

    fn seen(&self) -> Vec<(i64, i64, i64)> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl Prepared for Masking {
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

impl AtOnce for Masking {
    fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
        let (rows, length) = (inputs[0].shape[0], inputs[0].shape[1]);
        let width = inputs[2].shape[2];
        self.seen.lock().unwrap().push((rows, length, width));
        let ids: Vec<f32> =
            inputs[0].data.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as f32).collect();
        let mask: Vec<f32> =
            inputs[1].data.chunks(2).map(|bytes| f32::from(i16::from_le_bytes(bytes.try_into().unwrap()))).collect();
        let image = floats(inputs[2].data);
        let (mut tokens, mut pooled, mut heat, mut half) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for row in 0..rows as usize {
            let range = row * length as usize..(row + 1) * length as usize;
            let (ids, mask) = (&ids[range.clone()], &mask[range]);
            let sum: f32 = ids.iter().zip(mask).map(|(id, mask)| id * mask).sum();
            tokens.extend(ids.iter().map(|id| id + sum));
            pooled.push(sum / mask.iter().sum::<f32>());
            let per_row = 2 * width as usize;
            heat.extend(image[row * per_row..(row + 1) * per_row].iter().map(|value| value + sum));
            half.extend(ids.iter().step_by(2).take(length as usize / 2));
        }
        let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let output = |shape: &[i64], values: &[f32]| Tensor {
            datatype: DataType::Fp32,
            shape: shape.to_vec(),
            data: bytes(values).into(),
        };
        self.outputs =
            vec![output(&[rows, length], &tokens), output(&[rows, 1], &pooled), output(&[rows, 2, width], &heat)];
        if self.strided {
            self.outputs.push(output(&[rows, length / 2], &half));
        }
        Ok(())
    }

    fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
        self.outputs.drain(..).enumerate().for_each(|(position, output)| sink(position, output.view()));
        Ok(())
    }
}

fn floats(data: &[u8]) -> Vec<f32> {
    data.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Inputs of that many rows and lengths, other ones for each number.
fn inputs(number: usize, rows: i64, length: i64, width: i64) -> Vec<Tensor> {
    let tensor = |datatype, shape: &[i64], data: Vec<u8>| Tensor { datatype, shape: shape.into(), data: data.into() };
    let value = |at: i64| (number as i64 + 1) * 100 + at;
    vec![
        tensor(DataType::Int64, &[rows, length], (0..rows * length).flat_map(|at| value(at).to_le_bytes()).collect()),
        tensor(DataType::Int16, &[rows, length], (0..rows * length).flat_map(|_| 1i16.to_le_bytes()).collect()),
        tensor(
            DataType::Fp32,
            &[rows, 2, width],
            (0..rows * 2 * width).flat_map(|at| (value(at) as f32 / 2.0).to_le_bytes()).collect(),
        ),
    ]
}

/// Runs requests of those rows and lengths as one order, and compares each answer with the model's own for it alone.
/// Gives back the batches that were computed.
fn run(model: &Masking, padding: Option<Padding>, requests: &[(i64, i64, i64)]) -> Vec<(i64, i64, i64)> {
    run_within(u64::MAX, model, padding, requests)
}

/// The same where no input of a batch may have more than so many elements.
fn run_within(
    max_elements: u64,
    model: &Masking,
    padding: Option<Padding>,
    requests: &[(i64, i64, i64)],
) -> Vec<(i64, i64, i64)> {
    let (sender, reports) = unbounded::<OrderReport<Item>>();
    let config = DeviceConfig { name: "test:0".into(), index: 0, pages: 4, pin: None, kind: 0, only_waits: false };
    let device = Device::start(&config, Clock::start(), move |report| sender.send(report).unwrap()).unwrap();
    let slot = Arc::new(Slot::new(Arc::<Statistics>::default()));
    let window = Window { earliest: Timestamp::ZERO, latest: Timestamp::NEVER };
    let prepared = Arc::new(model.clone());
    let order = LoadOrder { action: ActionId(0), window, slot: Arc::clone(&slot), prepared, pages: 1, limit: LIMIT };
    assert!(device.load(order));
    assert!(matches!(reports.recv().unwrap().status, Status::Done { .. }));

    let (answers, received) = unbounded();
    let item = |(number, &(rows, length, width)): (usize, &(i64, i64, i64))| Item {
        inputs: inputs(number, rows, length, width),
        number,
        answers: answers.clone(),
    };
    let items = requests.iter().enumerate().map(item).collect();
    let (signature, padding) = (Arc::new(model.signature.clone()), padding.map(Arc::new));
    let order =
        ExecuteOrder { action: ActionId(1), window, slot, signature, padding, max_elements, limit: LIMIT, items };
    assert!(device.execute(order).is_ok());
    reports.recv().unwrap();
    let seen = model.seen();

    for _ in requests {
        let (number, outputs) = received.try_recv().unwrap();
        let (rows, length, width) = requests[number];
        let own = inputs(number, rows, length, width);
        let mut alone = model.clone();
        alone.compute(&own.iter().map(Tensor::view).collect::<Vec<_>>()).unwrap();
        assert_eq!(outputs.unwrap(), alone.outputs, "request {number} of {rows} rows, lengths {length} and {width}");
    }
    model.seen();
    seen
}

fn padding(model: &Masking, fills: &[(&str, f64)], buckets: &[u32]) -> Option<Padding> {
    let fills = fills.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
    Some(Padding::new(&model.signature, &fills, buckets).unwrap())
}

/// What isn't 0 shows where the fill goes; the mask is what makes it not count.
const ALL: [(&str, f64); 3] = [("ids", 7.0), ("mask", 0.0), ("image", 0.5)];

#[test]
fn each_request_gets_what_it_would_get_alone() {
    let model = Masking::new(false);
    let requests = [(1, 3, 4), (2, 5, 2), (1, 1, 4), (3, 5, 1)];
    assert_eq!(run(&model, padding(&model, &ALL, &[]), &requests), [(7, 5, 4)], "one batch, as long as the longest");
    // The same without padding: each shape for itself.
    assert_eq!(run(&model, None, &requests).len(), 4);
    // Nothing to fill: exactly as without padding.
    assert_eq!(run(&model, padding(&model, &ALL, &[]), &[(1, 3, 4), (2, 3, 4)]), [(3, 3, 4)]);
}

#[test]
fn requests_that_would_be_too_large_together_are_several_batches() {
    let model = Masking::new(false);
    let requests = [(1, 60, 1), (1, 1, 40), (1, 2, 2), (1, 50, 1)];
    let seen = run_within(130, &model, padding(&model, &ALL, &[]), &requests);
    assert_eq!(seen, [(2, 60, 2), (1, 1, 40), (1, 50, 1)]);
    assert_eq!(run_within(130, &model, None, &[(1, 60, 1); 3]), [(2, 60, 1), (1, 60, 1)]);
}

#[test]
fn lengths_that_may_not_differ_keep_requests_apart() {
    let model = Masking::new(false);
    let fills = [("ids", 0.0), ("mask", 0.0)];
    let seen = run(&model, padding(&model, &fills, &[]), &[(1, 3, 4), (1, 5, 2), (1, 6, 4)]);
    assert_eq!(seen, [(2, 6, 4), (1, 5, 2)]);
}

#[test]
fn batches_are_filled_up_to_the_next_bucket() {
    let model = Masking::new(false);
    let fills = [("ids", 0.0), ("mask", 0.0)];
    let bucketed = |requests: &[(i64, i64, i64)]| run(&model, padding(&model, &fills, &[8, 4]), requests);
    assert_eq!(bucketed(&[(1, 3, 1), (1, 5, 1)]), [(2, 8, 1)]);
    assert_eq!(bucketed(&[(1, 3, 1)]), [(1, 4, 1)], "also one alone");
    assert_eq!(bucketed(&[(1, 4, 1)]), [(1, 4, 1)]);
    assert_eq!(bucketed(&[(1, 3, 1), (2, 11, 1)]), [(3, 11, 1)], "longer than all buckets");
}

#[test]
fn where_outputs_could_not_be_told_apart_requests_run_as_they_are() {
    let model = Masking::new(false);
    // Both would have the length 6: whose is an output of that length?
    let seen = run(&model, padding(&model, &ALL, &[]), &[(1, 6, 6), (1, 2, 3)]);
    assert_eq!(seen, [(1, 6, 6), (1, 2, 3)]);
}

#[test]
fn an_output_that_can_not_be_cut_back_is_computed_alone() {
    let model = Masking::new(true);
    let fills = [("ids", 0.0), ("mask", 0.0)];
    let seen = run(&model, padding(&model, &fills, &[]), &[(1, 6, 1), (1, 4, 1)]);
    assert_eq!(seen, [(2, 6, 1), (1, 6, 1), (1, 4, 1)]);
    // Also one that was only filled up to its bucket.
    let seen = run(&model, padding(&model, &fills, &[8]), &[(1, 6, 1)]);
    assert_eq!(seen, [(1, 8, 1), (1, 6, 1)]);
}
