//! The one binary, `punctual`. It alone picks engines.

mod bytes;
mod cache;
mod defaults;
mod devices;
mod endpoint;
mod example;
mod key;
mod memory;
mod options;
mod place;
mod plan_shares;
mod profile;
mod reference;
mod replay;
mod runtime;
mod scaling;
mod serve;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// A model server that answers on time.
///
/// Every request has a deadline. Punctual knows how long each batch of each model takes, plans batches and weight loads
/// ahead, and either answers before the deadline or says at once that it can't.
#[derive(Parser)]
#[command(name = "punctual", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the models of a repository.
    ///
    /// The repository has Triton's layout: NAME/VERSION/model.onnx, with an optional NAME/config.pbtxt. Folders may be
    /// added, changed and removed while the server runs.
    Serve(Box<options::ServeOptions>),
    /// Look at what is served by several models.
    #[command(subcommand)]
    Endpoint(endpoint::EndpointCommand),
    /// Make an API key for `punctual serve --api-keys FILE`.
    ///
    /// The line for the file goes to standard output, the key itself to standard error: it is shown once and kept
    /// nowhere. `punctual key web infer=resnet* >> keys` adds one; a server that runs reads the file again by itself.
    Key(key::KeyOptions),
    /// Send load to a server and report goodput, refusals and latencies.
    ///
    /// Latency counts from the moment at which a request should have been sent, also when the server kept it waiting to
    /// be sent.
    Load(Box<loadgen::LoadArgs>),
    /// Measure what models take on a device: batches, loads, and how much that varies.
    ///
    /// Writes tables that the simulator reads: `latency = { file = "NAME.csv", row = "NAME" }`.
    Profile(Box<profile::ProfileOptions>),
    /// Run an experiment in virtual time, with the scheduler that serves.
    ///
    /// An experiment is a TOML file: models, devices, workload, network, what to run. `experiments/` has examples.
    Simulate(Box<lab::simulate::SimulateArgs>),
    /// Run what a server recorded once more, and check it.
    ///
    /// `punctual serve --record FILE` keeps every event that the scheduler was told. Here they go through a fresh
    /// scheduler: the same orders must come out, and every invariant that can be seen from events and orders must hold.
    /// Says which isn't, and at which event; then the exit code is 1. A recording has no tensors in it, only names'
    /// numbers, sizes and times.
    Replay(replay::ReplayOptions),
    /// Decide which models share which part of a cluster.
    ///
    /// A cluster is split into parts; every device of a part holds all models of that part. Models are placed so that
    /// all parts have about the same request rate and the same weights, within the bounds that the file gives. The
    /// assignment is the best that a solver of mixed integer programs finds in the time (Symphony, appendix A).
    ///
    /// The file is TOML:
    ///
    ///   parts = 4                  # how many parts; what follows is optional
    ///   memory_mb = 80000          # of one device: all weights of a part, and the largest working memory
    ///   max_rate_rps = 50000       # of one part
    ///   memory_weight = 1.0        # how much uneven weights count against uneven rates
    ///   max_change_cost = 5000     # what loads and unloads may cost, if models have a part already
    ///   change_weight = 0.001      # imbalance that is accepted to save moving everything
    ///   seconds = 10               # how long to look for something better
    ///
    ///   [[model]]
    ///   name = "resnet50"
    ///   rate_rps = 1200
    ///   weights_mb = 102.3         # on every device of its part
    ///   working_mb = 300           # while it runs; one model runs at a time
    ///   part = 2                   # where it is now, numbered from 0; absent: nowhere
    ///   change_cost = 102.3        # of a load or an unload; absent: the weights
    ///
    /// With `part`, the cost of changes is bounded and kept low: run it again with the parts of the last result when
    /// rates have changed.
    #[command(verbatim_doc_comment)]
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help shows a TOML file as it is written")]
    Place(place::PlaceOptions),
    /// Decide how GPUs are divided into shares, and which models run in which share.
    ///
    /// Finds the fewest GPUs that carry every model's rate within its objective: how each is divided, who takes turns
    /// in which share, in batches of which size (Gpulet, section 4). What shares do to each other is learnt from pairs
    /// of batches that were measured side by side. Says whether shares pay at all.
    ///
    /// The file is TOML, and paths in it count from its folder:
    ///
    ///   gpus = 4                   # how many there are
    ///   times = "h200_shares.csv"  # model,batch,pct,weight_bytes,p50_ms: what batches take in shares
    ///   pairs = "h200_pairs.csv"   # m1,b1,pct1,m2,b2,pct2,alone1_ms,together1_ms,alone2_ms,together2_ms; optional
    ///
    ///   [[model]]
    ///   name = "resnet50"
    ///   measured_as = "resnet50"   # its name in the tables; absent: the same
    ///   rate_rps = 1200
    ///   objective_ms = 25
    #[command(verbatim_doc_comment)]
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help shows a TOML file as it is written")]
    PlanShares(plan_shares::PlanSharesOptions),
    /// The process of an engine, which `serve --isolate` starts.
    #[command(hide = true)]
    Engine,
}

fn main() -> ExitCode {
    // Before anything else: it takes effect only while there is one thread.
    engine_ort::refuse_telemetry();
    match run(CommandLine::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("punctual: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: CommandLine) -> Result<()> {
    match cli.command {
        Command::Serve(options) => serve::run(*options),
        Command::Endpoint(command) => endpoint::run(&command),
        Command::Key(options) => key::run(&options),
        Command::Load(args) => Ok(loadgen::run_and_print(&args)?),
        Command::Profile(options) => profile::run(&options),
        Command::Simulate(args) => Ok(args.run_and_print()?),
        Command::Replay(options) => replay::run(&options),
        Command::Place(options) => place::run(&options),
        Command::PlanShares(options) => plan_shares::run(&options),
        Command::Engine => runtime::serve_apart(),
    }
}
