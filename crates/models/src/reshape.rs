//! Models whose clients see other shapes than the model itself: `reshape`, and dimensions that are narrower than the
//! model's.

use base::{ModelSignature, Precision, TensorSpec};
use engine::{
    Breaker, Compute, DeviceTimes, EngineError, Input, Inputs, Loaded, Prepared, Sink, Staged, Tensor, TensorView,
};
use repository::{ModelConfig, TensorConfig};
use std::sync::Arc;
use std::time::Instant;

/// The model with the shapes that its configuration shows to clients.
pub(crate) fn with_shapes(prepared: Arc<dyn Prepared>, config: &ModelConfig) -> Arc<dyn Prepared> {
    let own = prepared.signature();
    let batched = own.max_batch > 0;
    let (inputs, to_model) = sides(&own.inputs, &config.inputs, batched);
    let (outputs, from_model) = sides(&own.outputs, &config.outputs, batched);
    let signature = ModelSignature { inputs, outputs, max_batch: own.max_batch };
    if signature == *own {
        return prepared;
    }
    let from_model = from_model.into_iter().map(|map| map.map(Map::turned)).collect();
    let maps = Arc::new(Maps { to_model, from_model, batched });
    Arc::new(Reshaped { inner: prepared, signature, maps })
}

/// What clients see of each tensor, and how its shape is turned into the model's, where it is.
fn sides(own: &[TensorSpec], configured: &[TensorConfig], batched: bool) -> (Vec<TensorSpec>, Vec<Option<Map>>) {
    own.iter()
        .map(|spec| {
            let Some(config) = configured.iter().find(|config| config.name == spec.name) else {
                return (spec.clone(), None);
            };
            let (batch, actual) = spec.dims.split_at(usize::from(batched).min(spec.dims.len()));
            let dims = [batch, &config.dims].concat();
            let own = config.own_dims(actual, batched);
            let map = (own != config.dims).then(|| Map { from: config.dims.clone(), to: own.to_vec() });
            (TensorSpec { dims, ..spec.clone() }, map)
        })
        .unzip()
}

/// From one shape to another with the same elements; open sizes are taken over in their order. Without the batch
/// dimension.
#[derive(Clone, Debug)]
struct Map {
    from: Vec<i64>,
    to: Vec<i64>,
}

impl Map {
    fn turned(self) -> Self {
        Self { from: self.to, to: self.from }
    }

    fn apply(&self, shape: &[i64], batched: bool) -> Vec<i64> {
        let (batch, rest) = shape.split_at(usize::from(batched).min(shape.len()));
        if rest.len() != self.from.len() {
            // A file may leave out how many dimensions an output has: it is handed on as it is.
            return shape.to_vec();
        }
        let mut open = self.from.iter().zip(rest).filter(|&(&from, _)| from < 0).map(|(_, &size)| size);
        let sizes = self.to.iter().map(|&to| if to < 0 { open.next().unwrap_or(1) } else { to });
        batch.iter().copied().chain(sizes).collect()
    }
}

#[derive(Debug)]
struct Maps {
    to_model: Vec<Option<Map>>,
    from_model: Vec<Option<Map>>,
    batched: bool,
}

impl Maps {
    fn inward(&self, position: usize, shape: &[i64]) -> Vec<i64> {
        self.through(self.to_model.get(position), shape)
    }

    fn outward(&self, position: usize, shape: &[i64]) -> Vec<i64> {
        self.through(self.from_model.get(position), shape)
    }

    fn through(&self, map: Option<&Option<Map>>, shape: &[i64]) -> Vec<i64> {
        match map {
            Some(Some(map)) => map.apply(shape, self.batched),
            _ => shape.to_vec(),
        }
    }
}

struct Reshaped {
    inner: Arc<dyn Prepared>,
    signature: ModelSignature,
    maps: Arc<Maps>,
}

impl Prepared for Reshaped {
    fn signature(&self) -> &ModelSignature {
        &self.signature
    }

    fn weight_bytes(&self) -> u64 {
        self.inner.weight_bytes()
    }

    fn precision(&self) -> Option<Precision> {
        self.inner.precision()
    }

    fn is_provisional(&self) -> bool {
        self.inner.is_provisional()
    }

    fn takes_any_batch(&self) -> bool {
        self.inner.takes_any_batch()
    }

    fn guesses_shapes(&self) -> bool {
        self.inner.guesses_shapes()
    }

    fn expect(&self, shapes: &[&[i64]]) {
        let inward = shapes.iter().enumerate().map(|(position, shape)| self.maps.inward(position, shape));
        let inward: Vec<Vec<i64>> = inward.collect();
        self.inner.expect(&inward.iter().map(Vec::as_slice).collect::<Vec<_>>());
    }

    fn is_divisible(&self) -> bool {
        self.inner.is_divisible()
    }

    fn not_on_device(&self) -> Option<&str> {
        self.inner.not_on_device()
    }

    fn end_on_host(&self) -> Option<&str> {
        self.inner.end_on_host()
    }

    fn load(&self, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.inner.load(device).map(|inner| self.wrap(inner))
    }

    fn load_breaker(&self, device: u32) -> Option<Arc<dyn Breaker>> {
        self.inner.load_breaker(device)
    }

    fn load_in(&self, division: usize, device: u32) -> Result<Box<dyn Loaded>, EngineError> {
        self.inner.load_in(division, device).map(|inner| self.wrap(inner))
    }

    fn defaults(&self) -> Vec<Option<Tensor>> {
        let mut defaults = self.inner.defaults();
        for (default, map) in defaults.iter_mut().zip(&self.maps.to_model) {
            if let (Some(tensor), Some(map)) = (default, map) {
                tensor.shape = map.clone().turned().apply(&tensor.shape, self.maps.batched);
            }
        }
        defaults
    }
}

impl Reshaped {
    fn wrap(&self, inner: Box<dyn Loaded>) -> Box<dyn Loaded> {
        let changes = |maps: &[Option<Map>]| maps.iter().any(Option::is_some);
        if !changes(&self.maps.to_model) && !changes(&self.maps.from_model) {
            return inner;
        }
        Box::new(ReshapedLoaded { inner, maps: Arc::clone(&self.maps) })
    }
}

struct ReshapedLoaded {
    inner: Box<dyn Loaded>,
    maps: Arc<Maps>,
}

impl Loaded for ReshapedLoaded {
    fn there_at(&self) -> Option<Instant> {
        self.inner.there_at()
    }

    fn breaker(&self) -> Option<Arc<dyn Breaker>> {
        self.inner.breaker()
    }

    fn stage(&mut self, inputs: &mut dyn Inputs) -> Result<Box<dyn Staged>, EngineError> {
        let inner = self.inner.stage(&mut ReshapedInputs { inner: inputs, maps: &self.maps })?;
        Ok(Box::new(ReshapedStaged { inner, maps: Arc::clone(&self.maps) }))
    }
}

struct ReshapedInputs<'a> {
    inner: &'a mut dyn Inputs,
    maps: &'a Maps,
}

impl Inputs for ReshapedInputs<'_> {
    fn in_one_piece(&mut self, compute: &mut Compute<'_>) -> Result<(), EngineError> {
        self.inner.in_one_piece(&mut |views| {
            let inward = |(position, view): (usize, &TensorView<'_>)| self.maps.inward(position, view.shape);
            let shapes: Vec<Vec<i64>> = views.iter().enumerate().map(inward).collect();
            let views = views.iter().zip(&shapes).map(|(view, shape)| TensorView { shape, ..*view });
            compute(&views.collect::<Vec<_>>())
        })
    }

    fn in_pieces(&mut self) -> Result<Vec<Input>, EngineError> {
        let mut inputs = self.inner.in_pieces()?;
        for (position, input) in inputs.iter_mut().enumerate() {
            input.shape = self.maps.inward(position, &input.shape);
        }
        Ok(inputs)
    }
}

struct ReshapedStaged {
    inner: Box<dyn Staged>,
    maps: Arc<Maps>,
}

impl Staged for ReshapedStaged {
    fn blocks(&self) -> bool {
        self.inner.blocks()
    }

    fn start(&mut self, inputs: &mut dyn Inputs) -> Result<(), EngineError> {
        self.inner.start(&mut ReshapedInputs { inner: inputs, maps: &self.maps })
    }

    fn is_computed(&mut self) -> Result<bool, EngineError> {
        self.inner.is_computed()
    }

    fn due_at(&self) -> Option<Instant> {
        self.inner.due_at()
    }

    fn has_arrived(&mut self) -> Result<bool, EngineError> {
        self.inner.has_arrived()
    }

    fn finish(&mut self, sink: &mut Sink<'_>) -> Result<DeviceTimes, EngineError> {
        self.inner.finish(&mut |position, view| {
            let shape = self.maps.outward(position, view.shape);
            sink(position, TensorView { shape: &shape, ..view });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that computes alike however its device is divided.
    struct Indivisible(ModelSignature);

    impl Prepared for Indivisible {
        fn signature(&self) -> &ModelSignature {
            &self.0
        }

        fn weight_bytes(&self) -> u64 {
            0
        }

        fn load(&self, _device: u32) -> Result<Box<dyn Loaded>, EngineError> {
            Err(EngineError::Load("nobody loads it".into()))
        }

        fn is_divisible(&self) -> bool {
            false
        }
    }

    #[test]
    fn other_shapes_do_not_hide_that_a_model_computes_alike_in_all_divisions() {
        let text = "max_batch_size: 0 input { name: \"x\" data_type: TYPE_FP32 dims: [ 1, 1 ] }";
        let config = ModelConfig::parse(text, "config.pbtxt".as_ref(), "m").unwrap();
        let scalar = TensorSpec { name: "x".into(), datatype: base::DataType::Fp32, dims: Vec::new() };
        let signature = ModelSignature { inputs: vec![scalar], outputs: Vec::new(), max_batch: 0 };
        let reshaped = with_shapes(Arc::new(Indivisible(signature.clone())), &config);
        assert!(*reshaped.signature() != signature && !reshaped.is_divisible());
    }

    #[test]
    fn open_sizes_go_over_in_their_order() {
        let map = Map { from: vec![-1, 3, -1], to: vec![3, -1, 1, -1] };
        assert_eq!(map.apply(&[8, 5, 3, 7], true), [8, 3, 5, 1, 7]);
        assert_eq!(map.apply(&[5, 3, 7], false), [3, 5, 1, 7]);
        assert_eq!(map.turned().apply(&[8, 3, 5, 1, 7], true), [8, 5, 3, 7]);
        let scalar = Map { from: vec![1], to: vec![] };
        assert_eq!(scalar.apply(&[4, 1], true), [4]);
        assert_eq!(scalar.turned().apply(&[4], true), [4, 1]);
    }

    #[test]
    fn scalars_that_are_configured_with_ones_are_scalars_to_the_model() {
        let text = "max_batch_size: 0 input { name: \"x\" data_type: TYPE_FP32 dims: [ 1, 1 ] }";
        let config = ModelConfig::parse(text, "config.pbtxt".as_ref(), "m").unwrap();
        let scalar = TensorSpec { name: "x".into(), datatype: base::DataType::Fp32, dims: Vec::new() };
        let (seen, maps) = sides(&[scalar], &config.inputs, false);
        let map = maps[0].as_ref().unwrap();
        assert_eq!((&seen[0].dims[..], map.apply(&[1, 1], false)), (&[1, 1][..], vec![]));
        assert_eq!(map.clone().turned().apply(&[], false), [1, 1]);
        assert_eq!(map.clone().turned().apply(&[5], false), [5]);
    }
}
