//! Models of which the GPU computes the head and the host's cores the tail, beside ONNX Runtime, which computes all of
//! them on the host's cores.

use crate::Attempt;
use crate::figures::{SpanQuantiles, micros, repeat};
use base::TensorSpec;
use engine::{Engine, Loaded, ModelSource, Prepared, Tensor, execute};
use engine_cuda::engine::{CudaEngine, CudaOptions};
use engine_cuda::fallback::Fallback;
use engine_ort::{OrtEngine, OrtOptions};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// How far numbers with fractions may be off, as a part of the largest: the device adds up in another order.
const ROUNDING: f64 = 1e-3;
/// In so many of a hundred pictures rounding may pick another box.
const MOST_OTHERS: usize = 5;

/// Which models, and how.
#[derive(clap::Args)]
pub(crate) struct TailArgs {
    /// ONNX files. What they leave open is 1.
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Pictures.
    #[arg(long, default_value_t = 100)]
    pictures: usize,
    /// Where compiled kernels are kept.
    #[arg(long, env = "PUNCTUAL_CACHE_DIR")]
    cache: Option<PathBuf>,
}

pub(crate) fn run(args: &TailArgs) -> Attempt<Value> {
    let host: Arc<dyn Engine> = Arc::new(OrtEngine::new(&OrtOptions::default())?);
    let (memory_bytes, cache) = (Some(8 << 30), args.cache.clone());
    let fallback = Fallback::Engine(Arc::clone(&host));
    let device = CudaEngine::new(&CudaOptions { memory_bytes, cache, fallback, ..CudaOptions::default() })?;
    let rows = args.models.iter().map(|file| of_model(&device, &*host, file, args.pictures));
    Ok(json!({ "rows": rows.collect::<Attempt<Vec<Value>>>()? }))
}

fn of_model(device: &CudaEngine, host: &dyn Engine, file: &Path, pictures: usize) -> Attempt<Value> {
    let source = ModelSource { name: "model".into(), file: file.into(), ..ModelSource::default() };
    let source = ModelSource { max_batch: Some(0), ..source };
    let [prepared, whole] = [device.prepare(&source)?, host.prepare(&source)?];
    let end = prepared.end_on_host().ok_or_else(|| match prepared.not_on_device() {
        Some(reason) => format!("{}: it is computed on the CPU as a whole: {reason}", file.display()),
        None => format!("{}: it is computed on the device as a whole", file.display()),
    })?;
    println!("{}: on the host's cores: {end}", file.display());
    let (mut in_two, mut as_one) = (prepared.load(0)?, whole.load(0)?);
    let (mut others, mut found) = (0, 0);
    for seed in 0..pictures as u64 {
        let inputs = inputs(&*prepared, seed);
        prepared.expect(&inputs.iter().map(|input| &input.shape[..]).collect::<Vec<_>>());
        let [parts, whole] = [outputs(&mut *in_two, &inputs)?, outputs(&mut *as_one, &inputs)?];
        found += whole.first().and_then(|output| output.shape.first()).map_or(0, |&count| count as usize);
        others += usize::from(!alike(&parts, &whole));
    }
    println!(
        "{others} of {pictures} pictures have other outputs than with ONNX Runtime; {found} rows were found in all"
    );
    let inputs = inputs(&*prepared, 0);
    let time = |loaded: &mut dyn Loaded| {
        repeat(200, || {
            let start = Instant::now();
            outputs(loaded, &inputs)?;
            Ok(micros(start))
        })
    };
    let (both, alone): (SpanQuantiles, SpanQuantiles) = (time(&mut *in_two)?, time(&mut *as_one)?);
    println!("head and tail: {both}\nONNX Runtime:  {alone}");
    if others * 100 > pictures * MOST_OTHERS {
        return Err(format!("{}: {others} of {pictures} pictures have other outputs", file.display()).into());
    }
    Ok(json!({ "model": file, "end": end, "others": others, "in_two": both.json(), "on_host": alone.json() }))
}

/// Fractions.
fn inputs(prepared: &dyn Prepared, seed: u64) -> Vec<Tensor> {
    let mut random = workload::Random::new(seed, 0);
    let mut input = |spec: &TensorSpec| {
        let shape: Vec<i64> = spec.dims.iter().map(|&dim| dim.max(1)).collect();
        let count = base::element_count(&shape).unwrap_or(0);
        let data: Vec<u8> = match engine::is_real(spec.datatype) {
            true => (0..count).flat_map(|_| (random.unit() as f32).to_le_bytes()).collect(),
            false => vec![1; count * spec.datatype.size().unwrap_or(1)],
        };
        Tensor { datatype: spec.datatype, shape, data: data.into() }
    };
    prepared.signature().inputs.iter().map(&mut input).collect()
}

fn outputs(loaded: &mut dyn Loaded, inputs: &[Tensor]) -> Attempt<Vec<Tensor>> {
    let mut outputs = Vec::new();
    execute(loaded, &mut &*inputs, &mut |_, view| outputs.push(view.to_tensor()))?;
    Ok(outputs)
}

/// Whether shapes and whole numbers are equal, and others but for rounding.
fn alike(one: &[Tensor], other: &[Tensor]) -> bool {
    let alike = |(one, other): (&Tensor, &Tensor)| {
        let same = (one.datatype, &one.shape) == (other.datatype, &other.shape);
        let numbers = |tensor: &Tensor| engine::numbers(tensor.datatype, &tensor.data).unwrap_or_default();
        let (found, right) = (numbers(one), numbers(other));
        let largest = right.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
        let near = || engine::distance(&right, &found) <= ROUNDING * largest;
        same && (one.data == other.data || engine::is_real(one.datatype) && near())
    };
    one.len() == other.len() && one.iter().zip(other).all(alike)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::DataType;

    #[test]
    fn rounding_is_alike_and_another_box_isnt() {
        let reals = |values: &[f32]| {
            let data: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Tensor { datatype: DataType::Fp32, shape: vec![values.len() as i64], data: data.into() }
        };
        let whole = |value: u8| Tensor { datatype: DataType::Uint8, shape: vec![1], data: vec![value].into() };
        let of = |one: Tensor, other: Tensor| alike(&[one], &[other]);
        assert!(
            of(reals(&[1.0, 100.0]), reals(&[1.05, 100.0])) && of(whole(3), whole(3)) && of(reals(&[]), reals(&[]))
        );
        assert!(!of(reals(&[1.0, 100.0]), reals(&[2.0, 100.0])) && !of(whole(3), whole(4)));
        assert!(!of(reals(&[1.0]), reals(&[1.0, 1.0])) && !of(reals(&[1.0]), reals(&[f32::NAN])));
    }
}
