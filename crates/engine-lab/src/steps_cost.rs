//! What built-in steps take for a picture, in microseconds. `make bench ARGS=steps` reads it.

use crate::Attempt;
use base::DataType;
use engine::Tensor;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;
use steps::{StepError, TensorStep};

const MOST_BYTES: usize = 256 << 20;

/// What is measured.
#[derive(clap::Args)]
pub(crate) struct StepsArgs {
    /// A JPEG file.
    file: PathBuf,
    /// How often each step is run.
    #[arg(default_value_t = 15)]
    runs: usize,
}

/// Prints the medians as JSON.
pub(crate) fn run(args: &StepsArgs) -> Attempt<Value> {
    let (bytes, runs) = (std::fs::read(&args.file)?, args.runs);
    let mut data = u32::try_from(bytes.len())?.to_le_bytes().to_vec();
    data.extend_from_slice(&bytes);
    let file = Tensor { datatype: DataType::Bytes, shape: vec![], data: data.into() };
    let colours =
        "scale = 0.00392156862745098\nmean = [0.485, 0.456, 0.406]\ndeviation = [0.229, 0.224, 0.225]\nlayout = 'CHW'";
    let (decoded, decode) = timed("decode_image", "", &file, runs)?;
    let (resized, resize) = timed("resize", "size = [224, 224]", &decoded, runs)?;
    let (_, nearby) = timed("resize", "size = [224, 224]\nantialias = false", &decoded, runs)?;
    let (_, normalise) = timed("normalise", colours, &resized, runs)?;
    let figures = json!({ "decode": decode, "resize": resize, "resize_nearby": nearby, "normalise": normalise });
    println!("{figures}");
    Ok(figures)
}

/// What a step makes of a tensor, and the median of what that takes.
fn timed(name: &str, parameters: &str, input: &Tensor, runs: usize) -> Attempt<(Tensor, f64)> {
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
