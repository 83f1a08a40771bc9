//! The laboratory of the engines: one program whose tools measure and check what is under a server, on a GPU or without
//! one.
//!
//! It stands apart from `lab`, whose sources decide whether simulated figures are still true: those of an engine don't.

#![allow(unsafe_code, reason = "kernels are launched and sessions are run by hand; each block says why it is sound")]
#![allow(clippy::print_stdout, reason = "a command")]

mod apart;
mod cuda;
mod figures;
mod plan;
mod sessions;
mod steps_cost;

use clap::{Parser, Subcommand};
use cuda::{exec, fetches, flow, kernels, launches, loads, model, nodes, precision, replays, served, shares, tail};
use serde_json::Value;
use std::path::PathBuf;
use std::process::ExitCode;

/// What a tool comes to, or a sentence.
type Attempt<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measurements of the engines.
#[derive(Parser)]
#[command(name = "engine-lab", max_term_width = 100)]
struct EngineLab {
    #[command(subcommand)]
    tool: Tool,
    /// Where figures are written as JSON, for a program that makes a page of them.
    #[arg(long, global = true)]
    json: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Tool {
    /// GPU: what executions of a model take, one CUDA graph for each batch size, and how far its outputs are from saved
    /// ones.
    Exec(exec::ExecArgs),
    /// GPU: every candidate kernel of some steps, or of a model's, compared with the reference and timed.
    Kernels(kernels::KernelsArgs),
    /// Without a GPU: writes every source that would be compiled for one.
    Sources(kernels::SourcesArgs),
    /// GPU: ONNX's own node tests through the engine, as models are served.
    Nodes(nodes::NodesArgs),
    /// GPU: what models are computed in by evidence, and how far each precision is off and what it takes.
    Precision(precision::PrecisionArgs),
    /// GPU: how inputs are fetched out of pinned memory.
    Fetches,
    /// GPU: what LOAD and UNLOAD take, by size.
    Loads,
    /// GPU: how even replays of a graph are, by themselves and while weights are loaded.
    Replays {
        /// How many.
        #[arg(long, default_value_t = 5000)]
        replays: usize,
    },
    /// GPU: what dividing the device takes, and what a change costs shares that stay.
    Shares,
    /// GPU: a model's loads and batches through the engine, with inputs in plain memory and in the pool.
    Model(model::ServedModelArgs),
    /// GPU: models whose end the host's cores compute, compared with ONNX Runtime, which computes all of them there.
    Tail(tail::TailArgs),
    /// GPU: batches one behind another, alone and while kernels of somebody else run, each with its own outputs.
    Flow(served::ModelArgs),
    /// GPU: 100,000 graphs of batch 1 by our clock, and as many empty ones.
    Launches(served::ModelArgs),
    /// The plan of an ONNX file; the reference executes it if a folder is given.
    Plan(plan::PlanArgs),
    /// ONNX Runtime on the CPU: what a load and an execution take, against a session made the plain way.
    Sessions(sessions::SessionsArgs),
    /// ONNX Runtime in a process of its own: what that adds to an execution.
    Apart(apart::ApartArgs),
    /// What built-in steps of pipelines take for a picture.
    Steps(steps_cost::StepsArgs),
}

fn main() -> ExitCode {
    engine_ort::refuse_telemetry();
    let EngineLab { tool, json } = EngineLab::parse();
    let outcome = run(tool).and_then(|figures| match json {
        Some(path) => Ok(std::fs::write(path, serde_json::to_string_pretty(&figures)? + "\n")?),
        None => Ok(()),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("engine-lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(tool: Tool) -> Attempt<Value> {
    match tool {
        Tool::Exec(args) => Ok(exec::run(&args)?),
        Tool::Kernels(args) => Ok(kernels::run(&args)?),
        Tool::Sources(args) => Ok(kernels::write_sources(&args).map(|()| Value::Null)?),
        Tool::Nodes(args) => Ok(nodes::run(&args)?),
        Tool::Precision(args) => cuda::on_device(|| precision::run(&args)),
        Tool::Fetches => cuda::on_device(fetches::run),
        Tool::Loads => cuda::on_device(loads::run),
        Tool::Replays { replays } => cuda::on_device(|| replays::run(replays)),
        Tool::Shares => cuda::on_device(shares::run),
        Tool::Model(args) => cuda::on_device(|| model::run(&args)),
        Tool::Tail(args) => cuda::on_device(|| tail::run(&args)),
        Tool::Flow(args) => cuda::on_device(|| flow::run(&args)),
        Tool::Launches(args) => cuda::on_device(|| launches::run(&args)),
        Tool::Plan(args) => Ok(plan::run(&args).map(|()| Value::Null)?),
        Tool::Sessions(args) => sessions::run(&args).map(|()| Value::Null),
        Tool::Apart(args) => apart::run(&args),
        Tool::Steps(args) => steps_cost::run(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_called_as_scripts_call_them() {
        for line in [
            "exec cache tf32 1,4,8 3- resnet50.onnx sequence=128",
            "kernels cache",
            "kernels cache conv",
            "kernels cache --model lenet.onnx --precision f16 --batches 1,4 --size sequence=32",
            "sources folder resnet50.onnx",
            "nodes folder fp32 12",
            "precision net.onnx repository --bound 0.01 --batches 1,8 --cache cache",
            "fetches --json fetches.json",
            "steps photo.jpg 15",
            "model resnet18.onnx --precision fp16 --batches 1,2 --replays 1000",
            "launches resnet50.onnx --precision fp16",
            "tail models/detector/1/model.onnx --pictures 20",
            "plan model.onnx --batch 2 --precision f16 --quiet --run folder --size sequence=128",
            "sessions model.onnx --runs 40",
            "apart target/quick/punctual mlp.onnx image.onnx --rounds 3 --runs 10 --pause-us 500",
        ] {
            let words = std::iter::once("engine-lab").chain(line.split(' '));
            assert!(EngineLab::try_parse_from(words).is_ok(), "{line}");
        }
    }
}
