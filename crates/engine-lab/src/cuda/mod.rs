//! On a GPU: kernels, and the runtime under them.

pub(crate) mod exec;
pub(crate) mod fetches;
pub(crate) mod flow;
pub(crate) mod kernels;
pub(crate) mod launches;
pub(crate) mod loads;
pub(crate) mod model;
pub(crate) mod nodes;
pub(crate) mod precision;
mod probe;
pub(crate) mod replays;
pub(crate) mod served;
pub(crate) mod shares;
pub(crate) mod tail;

use crate::Attempt;
use engine_cuda::tools::Gpu;
use serde_json::{Value, json};

/// Runs a tool on the first GPU, and puts to its figures which one that is.
pub(crate) fn on_device(tool: impl FnOnce() -> Attempt<Value>) -> Attempt<Value> {
    let gpu = Gpu::open(0)?;
    println!(
        "{}, driver {}, {} multiprocessors, {} bytes",
        gpu.name, gpu.driver, gpu.multiprocessors, gpu.memory_bytes
    );
    let mut figures = tool()?;
    figures["device"] = json!({ "name": gpu.name, "driver": gpu.driver, "multiprocessors": gpu.multiprocessors });
    Ok(figures)
}
