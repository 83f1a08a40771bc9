//! What steps take for a picture, in microseconds as JSON: `measure FILE.jpg RUNS`. `make bench` reads it.

#![allow(clippy::print_stdout, reason = "a command")]

use base::DataType;
use engine::Tensor;
use std::path::Path;
use std::time::Instant;
use steps::{StepError, TensorStep};

const MOST_BYTES: usize = 256 << 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(file), Some(runs)) = (arguments.next(), arguments.next()) else {
        return Err("it takes a JPEG file and how often each step is run".into());
    };
    let runs: usize = runs.parse()?;
    let bytes = std::fs::read(file)?;
    let mut data = u32::try_from(bytes.len())?.to_le_bytes().to_vec();
    data.extend_from_slice(&bytes);
    let file = Tensor { datatype: DataType::Bytes, shape: vec![], data: data.into() };
    let colours =
        "scale = 0.00392156862745098\nmean = [0.485, 0.456, 0.406]\ndeviation = [0.229, 0.224, 0.225]\nlayout = 'CHW'";
    let (decoded, decode) = timed("decode_image", "", &file, runs)?;
    let (resized, resize) = timed("resize", "size = [224, 224]", &decoded, runs)?;
    let (_, nearby) = timed("resize", "size = [224, 224]\nantialias = false", &decoded, runs)?;
    let (_, normalise) = timed("normalise", colours, &resized, runs)?;
    println!(
        "{{\"decode\": {decode:.1}, \"resize\": {resize:.1}, \"resize_nearby\": {nearby:.1}, \"normalise\": {normalise:.1}}}"
    );
    Ok(())
}

/// What a step makes of a tensor, and the median of what that takes.
fn timed(
    name: &str,
    parameters: &str,
    input: &Tensor,
    runs: usize,
) -> Result<(Tensor, f64), Box<dyn std::error::Error>> {
    let step = TensorStep::new(name, &parameters.parse()?, Path::new("."))?;
    let run = || step.run(std::slice::from_ref(input), MOST_BYTES);
    let output = run()?;
    let mut times = Vec::new();
    for _ in 0..runs.max(1) {
        let began_at = Instant::now();
        run()?;
        times.push(began_at.elapsed());
    }
    times.sort_unstable();
    let output = output.into_iter().next().ok_or_else(|| StepError::Inputs("there is no output".into()))?;
    Ok((output, times[times.len() / 2].as_secs_f64() * 1e6))
}
