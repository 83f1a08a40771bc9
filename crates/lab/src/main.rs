//! The laboratory's program: experiments without the rest of the server, and measurements of the scheduler.

#![allow(clippy::print_stdout, reason = "a command")]

mod tools;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use tools::{hull, million, placement, recording_cost, selection, shares, slow_device, throughput, worlds};

/// Experiments in virtual time, and measurements of the scheduler.
#[derive(Parser)]
#[command(name = "lab", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    tool: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// `punctual simulate` without the rest of the server: builds in a fraction of the time, for whoever works on
    /// policies.
    Simulate(Box<lab::simulate::SimulateArgs>),
    /// How many requests a second the scheduler takes on one core, and how that grows with cells.
    Throughput(throughput::ThroughputArgs),
    /// How long a million simulated requests take.
    Million,
    /// How long the priority queue of `orloj` takes.
    Hull(hull::HullArgs),
    /// How evenly models are placed on the parts of a cluster, by several ways; needs the feature `placement`.
    Placement(placement::PlacementArgs),
    /// What recording costs the thread that drives.
    Recording,
    /// What selection among models gains: bandits under drift, Exp4 beside its members, an ensemble at a deadline.
    Selection(selection::SelectionArgs),
    /// How many of Gpulet's scenarios each way to plan shares of GPUs carries.
    Shares(shares::SharesArgs),
    /// What one slow device of eight costs.
    SlowDevice(slow_device::SlowDeviceArgs),
    /// Random worlds with everything that can go wrong: prints each seed whose world breaks a promise.
    Worlds(worlds::WorldsArgs),
    /// What happened at the end of one random world, before it broke.
    World(worlds::WorldArgs),
    /// Random worlds in which nothing goes wrong: where `punctual` is worse than its rivals.
    Oracle(worlds::OracleArgs),
}

fn main() -> ExitCode {
    match run(Cli::parse().tool) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(tool: Tool) -> Result<ExitCode, lab::LabError> {
    match tool {
        Tool::Simulate(args) => args.run_and_print()?,
        Tool::Throughput(args) => throughput::run(&args)?,
        Tool::Million => million::run(),
        Tool::Hull(args) => hull::run(&args),
        Tool::Placement(args) => placement::run(&args)?,
        Tool::Recording => {
            if let Err(error) = recording_cost::run() {
                eprintln!("lab: the recording: {error}");
                return Ok(ExitCode::FAILURE);
            }
        }
        Tool::Selection(args) => selection::run(&args)?,
        Tool::Shares(args) => shares::run(&args)?,
        Tool::SlowDevice(args) => slow_device::run(&args),
        Tool::Worlds(args) => return Ok(worlds::run(&args)),
        Tool::World(args) => worlds::show(&args),
        Tool::Oracle(args) => worlds::compare(&args),
    }
    Ok(ExitCode::SUCCESS)
}
