//! Measures what a model's batches and loads take, alone on the device.

use crate::Controller;
use base::{BatchLatency, DataType, Duration, LatencyProfile, ModelSignature, TensorSpec, element_count};
use engine::{Loaded, Prepared, TensorView};
use std::collections::BTreeMap;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// How much measuring is enough.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Runs of each batch size; a hundred are what a 99th percentile needs.
    pub runs: u32,
    /// No more runs of a batch size once they have taken this long. Slow batches get fewer, and their slowest run stands for
    /// the 99th percentile.
    pub budget: Duration,
}

impl Default for Effort {
    fn default() -> Self {
        Self { runs: 100, budget: Duration::from_millis(1500) }
    }
}

/// Fewer runs than this are never enough.
const FEWEST_RUNS: u32 = 3;
const LOAD_RUNS: u32 = 3;
/// What dimensions of any size are tried with, in this order, until the model accepts one.
const TRIED_SIZES: [i64; 7] = [64, 16, 128, 1, 32, 512, 224];

/// Measures a model. `shapes` gives, by input, dimensions that the model leaves open (the batch dimension excluded).
pub(crate) fn measure(
    controller: &Controller,
    prepared: &dyn Prepared,
    sizes: &[u32],
    shapes: &BTreeMap<String, Vec<i64>>,
    effort: Effort,
) -> Result<LatencyProfile, String> {
    let (load, loaded) = measure_load(prepared)?;
    let mut run = Run { controller, loaded: Some(loaded) };
    let signature = prepared.signature();
    let mut batches = Vec::new();
    let mut open_size = None;
    for &batch in sizes {
        let inputs = match open_size {
            Some(size) => make_inputs(signature, batch, size, shapes)?,
            None => {
                let (size, inputs) = run.find_inputs(signature, batch, shapes)?;
                open_size = Some(size);
                inputs
            }
        };
        batches.push(run.measure(batch, &inputs, effort)?);
    }
    LatencyProfile::new(batches, load).map_err(|error| error.to_string())
}

/// The median of a few loads, and the last one's result.
fn measure_load(prepared: &dyn Prepared) -> Result<(Duration, Box<dyn Loaded>), String> {
    let mut spans = Vec::new();
    loop {
        let start = Instant::now();
        let loaded = prepared.load(0).map_err(|error| error.to_string())?;
        spans.push(Duration::from(start.elapsed()));
        if spans.len() as u32 == LOAD_RUNS {
            spans.sort_unstable();
            return Ok((spans[spans.len() - 1], loaded));
        }
    }
}

/// An input made for measuring.
struct Input {
    datatype: DataType,
    shape: Vec<i64>,
    data: Vec<u8>,
}

struct Run<'a> {
    controller: &'a Controller,
    /// With the executor while a run is under way.
    loaded: Option<Box<dyn Loaded>>,
}

impl Run<'_> {
    /// Tries sizes for open dimensions until the model accepts one.
    fn find_inputs(
        &mut self,
        signature: &ModelSignature,
        batch: u32,
        shapes: &BTreeMap<String, Vec<i64>>,
    ) -> Result<(i64, Arc<[Input]>), String> {
        let mut reason = String::new();
        for size in TRIED_SIZES {
            let inputs = make_inputs(signature, batch, size, shapes)?;
            match self.once(&inputs) {
                Ok(_) => return Ok((size, inputs)),
                Err(error) => reason = error,
            }
        }
        Err(format!(
            "no input was found that the model accepts; give the open dimensions with the parameter profile_shapes, for instance \"input=1x576\". The last try said: {reason}"
        ))
    }

    fn measure(&mut self, batch: u32, inputs: &Arc<[Input]>, effort: Effort) -> Result<BatchLatency, String> {
        // The first run pays for memory that is touched for the first time.
        self.once(inputs)?;
        let mut spans = Vec::new();
        let mut spent = Duration::ZERO;
        while (spans.len() as u32) < FEWEST_RUNS || ((spans.len() as u32) < effort.runs && spent < effort.budget) {
            let span = self.once(inputs)?;
            spent += span;
            spans.push(span);
        }
        spans.sort_unstable();
        let at = |quantile: f64| spans[((spans.len() as f64 * quantile).ceil() as usize).clamp(1, spans.len()) - 1];
        Ok(BatchLatency { batch, median: at(0.5), p99: at(0.99) })
    }

    /// One run, on the device's EXEC thread, between whatever it has to do besides.
    fn once(&mut self, inputs: &Arc<[Input]>) -> Result<Duration, String> {
        let mut loaded = self.loaded.take().ok_or("the executor is gone")?;
        let inputs = Arc::clone(inputs);
        let (sender, receiver) = mpsc::channel();
        let work = move || {
            let views: Vec<TensorView<'_>> = inputs
                .iter()
                .map(|input| TensorView { datatype: input.datatype, shape: &input.shape, data: &input.data })
                .collect();
            let start = Instant::now();
            let outcome = loaded.execute(&views, &mut |_, _| {});
            let span = Duration::from(start.elapsed());
            let _ = sender.send((loaded, outcome.map(|()| span)));
        };
        if !self.controller.run_alone(0, Box::new(work)) {
            return Err("the executor is gone".into());
        }
        let (loaded, outcome) = receiver.recv().map_err(|_| "the engine panicked while the model was measured")?;
        self.loaded = Some(loaded);
        outcome.map_err(|error| error.to_string())
    }
}

fn make_inputs(
    signature: &ModelSignature,
    batch: u32,
    open_size: i64,
    shapes: &BTreeMap<String, Vec<i64>>,
) -> Result<Arc<[Input]>, String> {
    signature.inputs.iter().map(|spec| make_input(spec, signature.max_batch, batch, open_size, shapes)).collect()
}

fn make_input(
    spec: &TensorSpec,
    max_batch: u32,
    batch: u32,
    open_size: i64,
    shapes: &BTreeMap<String, Vec<i64>>,
) -> Result<Input, String> {
    let mut shape: Vec<i64> = spec.dims.iter().map(|&dim| if dim < 0 { open_size } else { dim }).collect();
    if let Some(given) = shapes.get(&spec.name) {
        let from = usize::from(max_batch > 0);
        if given.len() + from != shape.len() {
            return Err(format!(
                "profile_shapes gives {} dimensions for {}, which has {}",
                given.len(),
                spec.name,
                shape.len() - from
            ));
        }
        shape[from..].copy_from_slice(given);
    }
    if max_batch > 0
        && let Some(first) = shape.first_mut()
    {
        *first = i64::from(batch);
    }
    let count =
        element_count(&shape).ok_or_else(|| format!("input {} has the impossible shape {shape:?}", spec.name))?;
    let data = match spec.datatype {
        DataType::Fp32 => 0.5f32.to_le_bytes().repeat(count),
        DataType::Fp64 => 0.5f64.to_le_bytes().repeat(count),
        // Ones are valid tokens, flags and lengths; zeros as lengths often aren't.
        DataType::Int64 | DataType::Uint64 => 1u64.to_le_bytes().repeat(count),
        DataType::Int32 | DataType::Uint32 => 1u32.to_le_bytes().repeat(count),
        DataType::Bytes => [1, 0, 0, 0, b'a'].repeat(count),
        other => vec![0; count * other.size().unwrap_or(0)],
    };
    Ok(Input { datatype: spec.datatype, shape, data })
}

/// Reads the parameter `profile_shapes`: `name=AxB,other=C`.
pub(crate) fn parse_shapes(text: &str) -> Result<BTreeMap<String, Vec<i64>>, String> {
    let parse = |part: &str| {
        let (name, dims) = part.split_once('=')?;
        let dims: Option<Vec<i64>> =
            dims.split('x').map(|dim| dim.trim().parse().ok().filter(|&dim| dim > 0)).collect();
        Some((name.trim().to_owned(), dims?))
    };
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            parse(part).ok_or_else(|| {
                format!("profile_shapes: \"{part}\" should be an input's name and its dimensions, like input=1x576")
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read_or_explained() {
        let shapes = parse_shapes("input=1x576, state=2x1x128").unwrap();
        assert_eq!(shapes["input"], [1, 576]);
        assert_eq!(shapes["state"], [2, 1, 128]);
        assert!(parse_shapes("input=0x3").unwrap_err().contains("input=0x3"));
        assert!(parse_shapes("").unwrap().is_empty());
    }

    #[test]
    fn inputs_follow_the_batch_and_the_given_shapes() {
        let spec = TensorSpec { name: "input".into(), datatype: DataType::Fp32, dims: vec![-1, 3, -1] };
        let input = make_input(&spec, 8, 4, 16, &BTreeMap::new()).unwrap();
        assert_eq!((input.shape, input.data.len()), (vec![4, 3, 16], 4 * 3 * 16 * 4));
        let given = BTreeMap::from([("input".to_owned(), vec![3, 5])]);
        assert_eq!(make_input(&spec, 8, 2, 16, &given).unwrap().shape, [2, 3, 5]);
        let wrong = BTreeMap::from([("input".to_owned(), vec![3])]);
        assert!(make_input(&spec, 8, 2, 16, &wrong).is_err());
    }
}
