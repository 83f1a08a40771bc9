//! The end of a model that can't be planned, computed on the host's cores behind the head on the device, in the same
//! execution.
//!
//! ```text
//!  device   inputs ──> head ──> boxes, scores ──┐
//!  host                                         └──> copied ──> tail ──> outputs
//! ```
//!
//! The device's thread waits for the head and computes the tail, so that the device has nothing to do meanwhile. That
//! is what a batch takes, and what is measured.

use base::{ModelSignature, TensorSpec};
use bytes::Bytes;
use engine::{
    Breaker, DeviceTimes, Engine, EngineError, Input, Inputs, Loaded, ModelSource, Prepared, Sink, Staged, Tensor,
    execute,
};
use graph::cut::{Cut, TensorOrigin};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// See the module.
pub(crate) struct Tail {
    prepared: Arc<dyn Prepared>,
    taken: Vec<TensorOrigin>,
    outputs: Vec<TensorOrigin>,
    /// Of the head and the tail together.
    pub(crate) signature: ModelSignature,
    /// What is said of it.
    pub(crate) said: String,
}

impl Tail {
    /// The tail of a model whose file has these bytes, behind a head of that signature.
    pub(crate) fn prepare(
        engine: &dyn Engine,
        source: &ModelSource,
        (cut, file): (&Cut, &Bytes),
        head: &ModelSignature,
    ) -> Result<Self, String> {
        let part = Some(cut.tail(file).map_err(|error| error.to_string())?);
        // It takes what the head gives, whatever the model's configuration says of its inputs.
        let (max_batch, shapes) = (Some(0), BTreeMap::new());
        let prepared = engine.prepare(&ModelSource { part, max_batch, shapes, ..source.clone() });
        let prepared = prepared.map_err(|error| format!("the host's cores can't compute its end: {error}"))?;
        let found = prepared.signature();
        let of_tail = cut.outputs.iter().filter(|origin| matches!(origin, TensorOrigin::Tail(_))).count();
        if !found.inputs.iter().map(|input| input.name.as_str()).eq(cut.tail_inputs()) || found.outputs.len() != of_tail
        {
            return Err("the inputs and outputs of its end are others on the host's cores".into());
        }
        let spec = |origin: &TensorOrigin| match *origin {
            TensorOrigin::Input(at) => head.inputs[at].clone(),
            TensorOrigin::Head(at) => head.outputs[at].clone(),
            TensorOrigin::Tail(at) => open_rows(found.outputs[at].clone(), head.max_batch),
        };
        let outputs = cut.outputs.iter().map(spec).collect();
        let signature = ModelSignature { inputs: head.inputs.clone(), outputs, max_batch: head.max_batch };
        let (all, count) = cut.nodes;
        let said = format!("{count} of its {all} nodes, since no plan has {}", cut.why);
        let (taken, outputs) = (cut.taken.clone(), cut.outputs.clone());
        Ok(Self { prepared, taken, outputs, signature, said })
    }

    /// Loads it for a device.
    pub(crate) fn load(self: &Arc<Self>, device: u32) -> Result<LoadedTail, EngineError> {
        let loaded = Arc::new(Mutex::new(self.prepared.load(device)?));
        Ok(LoadedTail { tail: Arc::clone(self), loaded })
    }
}

/// An output whose first dimension is rows, where a batch has them.
fn open_rows(mut spec: TensorSpec, max_batch: u32) -> TensorSpec {
    spec.dims.iter_mut().take(usize::from(max_batch > 0)).for_each(|rows| *rows = -1);
    spec
}

/// A tail on a device's thread.
#[derive(Clone)]
pub(crate) struct LoadedTail {
    tail: Arc<Tail>,
    /// Nobody waits for the lock: a device computes one batch at a time.
    loaded: Arc<Mutex<Box<dyn Loaded>>>,
}

impl LoadedTail {
    fn loaded(&self) -> MutexGuard<'_, Box<dyn Loaded>> {
        // A panic in the middle of a batch leaves a model that takes the next one.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What breaks its executions off, if something can.
    pub(crate) fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        self.loaded().breaker()
    }

    /// A batch of these inputs whose head is staged so.
    pub(crate) fn behind(
        self,
        inputs: Vec<Input>,
        head: impl FnOnce(Vec<Input>) -> Result<Box<dyn Staged>, EngineError> + Send + 'static,
    ) -> Box<dyn Staged> {
        Box::new(BatchWithTail { head: Some(Box::new(head)), tail: self, inputs, outputs: Vec::new() })
    }

    /// The model's outputs, of its inputs and of what the head has made of them.
    fn compute(&self, inputs: &[Input], head: &[Tensor]) -> Result<Vec<Tensor>, EngineError> {
        let given = |origin: &TensorOrigin| match *origin {
            TensorOrigin::Input(at) => inputs.get(at).map(in_one_piece),
            TensorOrigin::Head(at) => head.get(at).cloned(),
            TensorOrigin::Tail(_) => None,
        };
        let missing = || EngineError::Execute("the device gave fewer outputs than the model's end takes".into());
        let given: Vec<Tensor> = self.tail.taken.iter().map(given).collect::<Option<_>>().ok_or_else(missing)?;
        let mut made = Vec::new();
        execute(&mut **self.loaded(), &mut &given[..], &mut |_, view| made.push(view.to_tensor()))?;
        let output = |origin: &TensorOrigin| match *origin {
            TensorOrigin::Input(at) => inputs.get(at).map(in_one_piece),
            TensorOrigin::Head(at) => head.get(at).cloned(),
            TensorOrigin::Tail(at) => made.get(at).cloned(),
        };
        self.tail.outputs.iter().map(output).collect::<Option<_>>().ok_or_else(missing)
    }
}

fn in_one_piece(Input { datatype, shape, pieces }: &Input) -> Tensor {
    let data = match &pieces[..] {
        [piece] => piece.clone(),
        pieces => pieces.concat().into(),
    };
    Tensor { datatype: *datatype, shape: shape.clone(), data }
}

/// What breaks off either of two.
pub(crate) struct EitherBreaker(pub(crate) Arc<dyn Breaker>, pub(crate) Arc<dyn Breaker>);

impl Breaker for EitherBreaker {
    fn break_off(&self) {
        self.0.break_off();
        self.1.break_off();
    }
}

/// Stages the head of a batch.
type StageHead = Box<dyn FnOnce(Vec<Input>) -> Result<Box<dyn Staged>, EngineError> + Send>;

/// A batch whose head the device computes. It has the device to itself, so that nothing is gained by staging the head
/// before it starts: one that isn't alone would have to be broken off.
struct BatchWithTail {
    /// There until it is started.
    head: Option<StageHead>,
    tail: LoadedTail,
    inputs: Vec<Input>,
    outputs: Vec<Tensor>,
}

impl Staged for BatchWithTail {
    fn blocks(&self) -> bool {
        true
    }

    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        let own = std::mem::take(&mut self.inputs);
        let stage = self.head.take().expect("a batch is started once");
        let mut head = stage(own.clone())?;
        head.start(inputs)?;
        let mut given = Vec::new();
        head.finish(&mut |_, view| given.push(view.to_tensor()))?;
        drop(head);
        self.outputs = self.tail.compute(&own, &given)?;
        Ok(())
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn due_at(&self) -> Option<Instant> {
        None
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        Ok(true)
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.outputs.drain(..).enumerate().for_each(|(position, output)| sink(position, output.view()));
        Ok(DeviceTimes::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;
    use engine_ort::{OrtEngine, OrtOptions};
    use graph::cases::detectors::{detector, detectors};
    use graph::reference::Reference;
    use graph::{OnnxModel, Options, Plan, Precision};
    use onnx::Message;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A head in the place of one on a device.
    struct ByReference {
        plan: Arc<Plan>,
        outputs: Vec<Vec<u8>>,
    }

    impl Staged for ByReference {
        fn blocks(&self) -> bool {
            false
        }

        fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
            inputs.in_one_piece(&mut |views| {
                let bytes: Vec<&[u8]> = views.iter().map(|view| view.data).collect();
                self.outputs = Reference::new(&self.plan).run(&bytes);
                Ok(())
            })
        }

        fn is_computed(&mut self) -> Result<bool, EngineError> {
            Ok(true)
        }

        fn due_at(&self) -> Option<Instant> {
            None
        }

        fn has_arrived(&mut self) -> Result<bool, EngineError> {
            Ok(true)
        }

        fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
            for (position, (port, data)) in self.plan.outputs.iter().zip(&self.outputs).enumerate() {
                let shape: Vec<i64> = port.dims.iter().map(|&dim| dim as i64).collect();
                sink(position, engine::TensorView { datatype: port.dtype, shape: &shape, data });
            }
            Ok(DeviceTimes::default())
        }
    }

    /// A model as one, and in two.
    struct Both {
        /// Weights may be read from it.
        folder: tempfile::TempDir,
        whole: Box<dyn Loaded>,
        plan: Arc<Plan>,
        tail: LoadedTail,
        inputs: Vec<TensorSpec>,
    }

    impl Both {
        fn of(engine: &OrtEngine, bytes: &Bytes, options: &Options) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let (file, beside) = (folder.path().join("model.onnx"), Some(folder.path()));
            std::fs::write(&file, bytes).unwrap();
            let sizes: [f32; 4] = [16.0, 16.0, 6.0, 6.0];
            std::fs::write(folder.path().join("size.bin"), sizes.map(f32::to_le_bytes).concat()).unwrap();
            let (name, cache) = ("net".into(), Some(folder.path().join("cache")));
            let source = ModelSource { name, file, cache, max_batch: Some(0), ..ModelSource::default() };
            let whole = engine.prepare(&source).unwrap();
            let cut = graph::cut(bytes, &OnnxModel::decode(bytes, beside).unwrap(), options).unwrap().unwrap();
            let head = OnnxModel::decode(&cut.head(bytes).unwrap(), beside).unwrap();
            let plan = Arc::new(graph::compile(&head, options).unwrap());
            let spec = |port: &graph::plan::Port| TensorSpec {
                name: port.name.clone(),
                datatype: port.dtype,
                dims: port.dims.iter().map(|&dim| dim as i64).collect(),
            };
            let [inputs, outputs] =
                [&plan.inputs, &plan.outputs].map(|ports| ports.iter().map(spec).collect::<Vec<_>>());
            let of_head = ModelSignature { inputs: inputs.clone(), outputs, max_batch: 0 };
            let tail = Arc::new(Tail::prepare(engine, &source, (&cut, bytes), &of_head).unwrap());
            let names = |signature: &ModelSignature| {
                let specs = signature.inputs.iter().chain(&signature.outputs);
                specs.map(|spec| (spec.name.clone(), spec.datatype, spec.dims.len())).collect::<Vec<_>>()
            };
            assert_eq!(names(&tail.signature), names(whole.signature()));
            let (whole, tail) = (whole.load(0).unwrap(), tail.load(0).unwrap());
            Self { folder, whole, plan, tail, inputs }
        }

        /// Pictures of fractions; other inputs are the same each time.
        fn inputs(&self, seed: u64) -> Vec<Tensor> {
            let mut random = workload::Random::new(seed, 0);
            let input = |spec: &TensorSpec| {
                let count = base::element_count(&spec.dims).unwrap();
                let mut number = || if spec.name == "x" { random.unit() as f32 } else { 0.6 };
                let data: Vec<u8> = (0..count).flat_map(|_| number().to_le_bytes()).collect();
                Tensor { datatype: spec.datatype, shape: spec.dims.clone(), data: data.into() }
            };
            self.inputs.iter().map(input).collect()
        }

        /// The outputs of both ways.
        fn run(&mut self, inputs: &[Tensor]) -> [Vec<Tensor>; 2] {
            let mut whole = Vec::new();
            execute(&mut *self.whole, &mut &*inputs, &mut |_, view| whole.push(view.to_tensor())).unwrap();
            let (plan, is_staged) = (Arc::clone(&self.plan), Arc::new(AtomicBool::new(false)));
            let seen = Arc::clone(&is_staged);
            let head = move |_| -> Result<Box<dyn Staged>, EngineError> {
                seen.store(true, Ordering::Relaxed);
                Ok(Box::new(ByReference { plan, outputs: Vec::new() }))
            };
            let mut staged = self.tail.clone().behind((&mut &*inputs).in_pieces().unwrap(), head);
            assert!(staged.blocks(), "the device computes nothing else meanwhile");
            assert!(!is_staged.load(Ordering::Relaxed), "it may have to wait for others: nothing is under way");
            staged.start(&mut &*inputs).unwrap();
            let mut parts = Vec::new();
            staged
                .finish(&mut |position, view| {
                    assert_eq!(position, parts.len());
                    parts.push(view.to_tensor());
                })
                .unwrap();
            [whole, parts]
        }
    }

    /// Whole numbers are equal, others but for rounding.
    fn assert_alike(name: &str, [whole, parts]: &[Vec<Tensor>; 2]) {
        assert_eq!(whole.len(), parts.len(), "{name}");
        for (whole, part) in whole.iter().zip(parts) {
            assert_eq!((whole.datatype, &whole.shape), (part.datatype, &part.shape), "{name}");
            if !engine::is_real(whole.datatype) {
                assert_eq!(whole.data, part.data, "{name}");
            }
            let numbers = |tensor: &Tensor| engine::numbers(tensor.datatype, &tensor.data).unwrap();
            let off = engine::distance(&numbers(whole), &numbers(part));
            assert!(off < 1e-4, "{name}: {off}");
        }
    }

    #[test]
    fn head_and_tail_compute_what_the_whole_does() {
        let engine = OrtEngine::new(&OrtOptions::default()).unwrap();
        let mut found = Vec::new();
        for (name, bytes) in detectors() {
            let mut both = Both::of(&engine, &bytes, &Options::new(1, Precision::F32));
            let counts = (1..=4).map(|seed| {
                let outputs = both.run(&both.inputs(seed));
                assert_alike(name, &outputs);
                outputs[0][0].shape[0]
            });
            found.push((name, counts.collect::<Vec<_>>()));
        }
        for (name, counts) in found {
            let none = counts.iter().all(|&count| count == 0);
            assert_eq!(none, name == "nothing found", "{name}: {counts:?}");
        }
    }

    #[test]
    fn rows_and_sizes_that_requests_bring_are_cut_the_same_way() {
        let engine = OrtEngine::new(&OrtOptions::default()).unwrap();
        let bytes = detector(["N", "3", "height", "width"], 0.6);
        for (rows, side) in [(1, 16), (3, 16), (1, 32), (2, 8)] {
            let mut options = Options::new(rows, Precision::F32);
            options.sizes.extend([("height".to_owned(), side), ("width".to_owned(), side)]);
            let mut both = Both::of(&engine, &bytes, &options);
            assert_alike(&format!("{rows} of {side}"), &both.run(&both.inputs(7)));
        }
    }

    /// The constant that both sides use lies in another file; what is kept of the tail isn't what is kept of the whole.
    #[test]
    fn a_tail_finds_weights_beside_the_file_and_has_its_own_place_in_the_cache() {
        let engine = OrtEngine::new(&OrtOptions::default()).unwrap();
        let mut model = onnx::ModelProto::decode(detector(["1", "3", "16", "16"], 0.6)).unwrap();
        let graph = model.graph.as_mut().unwrap();
        let size = graph.initializers.iter_mut().find(|tensor| tensor.name == "size").unwrap();
        let entry = |key: &str, value: &str| onnx::EntryProto { key: key.into(), value: value.into() };
        (size.floats, size.location) = (Vec::new(), 1);
        size.external = vec![entry("location", "size.bin"), entry("length", "16")];
        let bytes = model.encode_to_vec().into();
        let mut both = Both::of(&engine, &bytes, &Options::new(1, Precision::F32));
        assert_alike("in another file", &both.run(&both.inputs(3)));
        let kept = std::fs::read_dir(both.folder.path().join("cache")).unwrap().flatten();
        let kept = kept.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "ort-cache"));
        assert_eq!(kept.count(), 2);
    }

    #[test]
    fn what_the_tail_cant_compute_fails_the_batch_and_not_the_next() {
        let engine = OrtEngine::new(&OrtOptions::default()).unwrap();
        let bytes = detector(["1", "3", "16", "16"], 0.6);
        let mut both = Both::of(&engine, &bytes, &Options::new(1, Precision::F32));
        let nothing = both.tail.compute(&[], &[]).unwrap_err().to_string();
        assert!(nothing.contains("fewer outputs than the model's end takes"), "{nothing}");
        let wrong = Tensor { datatype: DataType::Fp32, shape: vec![3], data: vec![0; 12].into() };
        assert!(both.tail.compute(&[], &[wrong.clone(), wrong.clone(), wrong]).is_err());
        assert!(both.tail.breaker().is_some());
        assert_alike("then", &both.run(&both.inputs(1)));
    }

    #[test]
    fn what_cant_be_prepared_on_the_host_says_so() {
        let bytes = detector(["1", "3", "16", "16"], 0.6);
        let model = OnnxModel::decode(&bytes, None).unwrap();
        let cut = graph::cut(&bytes, &model, &Options::new(1, Precision::F32)).unwrap().unwrap();
        let head = ModelSignature { inputs: Vec::new(), outputs: Vec::new(), max_batch: 0 };
        // An emulated device takes no model whose times aren't given.
        let refused = Tail::prepare(&engine::EmulatedEngine::default(), &ModelSource::default(), (&cut, &bytes), &head);
        assert!(refused.err().unwrap().starts_with("the host's cores can't compute its end: "));
    }
}
