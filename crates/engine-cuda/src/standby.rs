//! A model once more on the host's cores, for batches of shapes that the device isn't prepared for.

use base::{ModelSignature, TensorSpec};
use engine::{Breaker, Engine, EngineError, Inputs, Loaded, ModelSource, Prepared, Staged};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// See the module. It is prepared when somebody asks for that, and stays loaded.
pub(crate) struct Standby {
    engine: Arc<dyn Engine>,
    source: ModelSource,
    /// The device's.
    signature: ModelSignature,
    prepared: OnceLock<Result<Arc<dyn Prepared>, String>>,
    /// By device: each computes on its own thread.
    loaded: Vec<Mutex<Option<Box<dyn Loaded>>>>,
}

impl Standby {
    /// Of a model that has that signature on so many devices.
    pub(crate) fn new(
        engine: &Arc<dyn Engine>,
        source: &ModelSource,
        signature: &ModelSignature,
        devices: usize,
    ) -> Self {
        Self {
            engine: Arc::clone(engine),
            source: ModelSource { max_batch: Some(signature.max_batch), ..source.clone() },
            signature: signature.clone(),
            prepared: OnceLock::new(),
            loaded: (0..devices).map(|_| Mutex::default()).collect(),
        }
    }

    /// Prepares it, once.
    pub(crate) fn prepare(&self) -> Result<(), String> {
        let prepare = || {
            let prepared = self.engine.prepare(&self.source).map_err(|error| error.to_string())?;
            let found = prepared.signature();
            let same = suit(&self.signature.inputs, &found.inputs) && suit(&self.signature.outputs, &found.outputs);
            let prepared =
                same.then_some(prepared).ok_or_else(|| "its inputs and outputs are others there".to_owned())?;
            // Not when the first batch needs it: the device's thread would wait.
            (0..self.loaded.len()).for_each(|device| _ = self.load(device, &*prepared));
            Ok(prepared)
        };
        self.prepared.get_or_init(prepare).as_ref().map(|_| ()).map_err(String::clone)
    }

    /// Loads it for a device, if it isn't.
    fn load(&self, device: usize, prepared: &dyn Prepared) -> Result<(), EngineError> {
        // Nobody waits for the lock: a device computes one batch at a time.
        let mut loaded = self.loaded[device].lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.is_none() {
            *loaded = Some(prepared.load(device as u32)?);
        }
        Ok(())
    }

    /// What breaks off its executions for a device, if it is loaded and something can.
    pub(crate) fn breaker(&self, device: usize) -> Option<Arc<dyn Breaker>> {
        self.loaded.get(device)?.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.breaker()
    }

    /// Stages a batch; `None` if it isn't prepared.
    pub(crate) fn stage(&self, device: usize, inputs: &mut dyn Inputs) -> Option<Result<Box<dyn Staged>, EngineError>> {
        let prepared = self.prepared.get()?.as_ref().ok()?;
        let slot = self.loaded.get(device)?;
        if let Err(error) = self.load(device, &**prepared) {
            return Some(Err(error));
        }
        slot.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(|loaded| loaded.stage(inputs))
    }
}

/// Whether tensors have the same names and types, in the same order.
fn suit(one: &[TensorSpec], other: &[TensorSpec]) -> bool {
    let same = |(one, other): (&TensorSpec, &TensorSpec)| one.name == other.name && one.datatype == other.datatype;
    one.len() == other.len() && one.iter().zip(other).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::{AtOnce, Sink, Tensor, TensorView, at_once};

    fn signature(name: &str) -> ModelSignature {
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: base::DataType::Uint8, dims: vec![-1] };
        ModelSignature { inputs: vec![spec(name)], outputs: vec![spec("y")], max_batch: 0 }
    }

    /// Gives its input back, and adds one to each element.
    #[derive(Default)]
    struct AddOne(Vec<u8>);

    impl AtOnce for AddOne {
        fn compute(&mut self, inputs: &[TensorView<'_>]) -> Result<(), EngineError> {
            self.0 = inputs[0].data.iter().map(|value| value + 1).collect();
            Ok(())
        }

        fn hand_out(&mut self, sink: &mut Sink<'_>) -> Result<(), EngineError> {
            let (datatype, shape) = (base::DataType::Uint8, [self.0.len() as i64]);
            sink(0, TensorView { datatype, shape: &shape, data: &self.0 });
            Ok(())
        }

        fn breaker(&self) -> Option<Arc<dyn Breaker>> {
            Some(Arc::new(NoEffect))
        }
    }

    struct NoEffect;

    impl Breaker for NoEffect {
        fn break_off(&self) {}
    }

    struct Adding(ModelSignature);

    impl Engine for Adding {
        fn name(&self) -> &'static str {
            "adding"
        }

        fn prepare(&self, source: &ModelSource) -> Result<Arc<dyn Prepared>, EngineError> {
            assert_eq!(source.max_batch, Some(0), "as on the device");
            Ok(Arc::new(Adding(self.0.clone())))
        }
    }

    impl Prepared for Adding {
        fn signature(&self) -> &ModelSignature {
            &self.0
        }

        fn weight_bytes(&self) -> u64 {
            0
        }

        fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
            Ok(at_once(AddOne::default()))
        }
    }

    fn standby(of: &str) -> Standby {
        let engine: Arc<dyn Engine> = Arc::new(Adding(signature(of)));
        Standby::new(&engine, &ModelSource::default(), &signature("x"), 1)
    }

    #[test]
    fn it_computes_once_it_is_prepared() {
        let standby = standby("x");
        let tensor = Tensor { datatype: base::DataType::Uint8, shape: vec![2], data: vec![1, 2].into() };
        let tensors = [tensor];
        let mut inputs = &tensors[..];
        assert!(standby.stage(0, &mut inputs).is_none());
        assert!(standby.breaker(0).is_none());
        standby.prepare().unwrap();
        assert!(standby.breaker(0).is_some(), "what hangs there costs its batch, not the GPU");
        for _ in 0..2 {
            let mut staged = standby.stage(0, &mut inputs).unwrap().unwrap();
            assert!(staged.blocks(), "the device computes nothing else meanwhile");
            staged.start(&mut inputs).unwrap();
            let mut found: Vec<u8> = Vec::new();
            staged.finish(&mut |_, view| found.extend(view.data)).unwrap();
            assert_eq!(found, [2, 3]);
        }
        assert!(standby.stage(1, &mut inputs).is_none(), "there is one device");
    }

    #[test]
    fn a_model_that_is_another_there_doesnt_stand_in() {
        let standby = standby("z");
        assert_eq!(standby.prepare().unwrap_err(), "its inputs and outputs are others there");
        assert!(standby.stage(0, &mut &[][..]).is_none());
    }
}
