//! The one binary, `punctual`. It alone picks engines.

mod bytes;
mod defaults;
mod devices;
mod example;
mod place;
mod profile;
mod reference;
mod replay;
mod runtime;
mod scaling;
mod serve;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// A model server that answers on time.
///
/// Every request has a deadline. Punctual knows how long each batch of each model takes, plans batches and weight loads
/// ahead, and either answers before the deadline or says at once that it can't.
#[derive(Parser)]
#[command(name = "punctual", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the models of a repository.
    ///
    /// The repository has Triton's layout: NAME/VERSION/model.onnx, with an optional NAME/config.pbtxt. Folders may be
    /// added, changed and removed while the server runs.
    Serve(Box<serve::ServeOptions>),
    /// Send load to a server and report goodput, refusals and latencies.
    ///
    /// Latency counts from the moment at which a request should have been sent, also when the server kept it waiting to be
    /// sent.
    Load(Box<loadgen::LoadArgs>),
    /// Measure what models take on a device: batches, loads, and how much that varies.
    ///
    /// Writes tables that the simulator reads: `latency = { file = "NAME.csv", row = "NAME" }`.
    Profile(Box<profile::ProfileOptions>),
    /// Run an experiment in virtual time, with the scheduler that serves.
    ///
    /// An experiment is a TOML file: models, devices, workload, network, what to run. `experiments/` has examples.
    Simulate(Box<SimulateOptions>),
    /// Run what a server recorded once more, and check it.
    ///
    /// `punctual serve --record FILE` keeps every event that the scheduler was told. Here they go through a fresh scheduler: the
    /// same orders must come out, and every invariant that can be seen from events and orders must hold. Says which isn't, and at
    /// which event; then the exit code is 1. A recording has no tensors in it, only names' numbers, sizes and times.
    Replay(replay::ReplayOptions),
    /// Decide which models share which part of a cluster.
    ///
    /// A cluster is split into parts; every device of a part holds all models of that part. Models are placed so that all
    /// parts have about the same request rate and the same weights, within the bounds that the file gives. The assignment is
    /// the best that a solver of mixed integer programs finds in the time (Symphony, appendix A).
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
    /// With `part`, the cost of changes is bounded and kept low: run it again with the parts of the last result when rates
    /// have changed.
    #[command(verbatim_doc_comment)]
    #[allow(rustdoc::broken_intra_doc_links, reason = "the help shows a TOML file as it is written")]
    Place(place::PlaceOptions),
}

#[derive(Args)]
struct SimulateOptions {
    /// The experiment's file, or a folder of experiments with --page.
    file: PathBuf,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Run nothing: print the rate that no policy can exceed, whatever it knows, at each point of the experiment.
    #[arg(long, conflicts_with_all = ["svg", "page", "results"])]
    bound: bool,
    /// Draw the experiment's plots into this folder, as SVG.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Run all experiments of the folder and write a page with plots and tables into this one.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["json", "svg", "results", "only", "sample", "policies"])]
    page: Option<PathBuf>,
    /// Add each result to this file as it comes, and don't run again what is there: an interrupted sweep goes on.
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Also take results of older sources from the file of results, except those of these policies.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',')]
    again: Vec<String>,
    /// Only points of the sweep whose key has one of these values; may be given several times.
    #[arg(long, value_name = "KEY=VALUE,...")]
    only: Vec<String>,
    /// Only so many points of the sweep, drawn by chance, always the same ones.
    #[arg(long, value_name = "COUNT")]
    sample: Option<usize>,
    /// Only these policies.
    #[arg(long, value_name = "POLICY,...", value_delimiter = ',')]
    policies: Vec<String>,
    /// Virtual seconds of each run, instead of the file's.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,
    /// In a search, runs of more requests than this are cut shorter (to 5 s at least).
    #[arg(long, value_name = "COUNT")]
    max_requests: Option<f64>,
    /// Seeds, instead of the file's.
    #[arg(long, value_name = "SEED,...", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// With --page: results that are still true are taken from this folder, and new ones put there.
    #[arg(long, value_name = "DIR", requires = "page")]
    cache: Option<PathBuf>,
    /// With --page: also run the large sweeps whose results are kept beside the page.
    #[arg(long, requires = "page")]
    all: bool,
    /// With --page: run only these files, named without .toml; the page's other sections stay as they are.
    #[arg(long = "part", value_name = "NAME,...", requires = "page", value_delimiter = ',')]
    parts: Vec<String>,
    /// With --page: how results name the state of the sources.
    #[arg(long, value_name = "TEXT", requires = "page", default_value = "an unnamed state of the sources")]
    commit: String,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("punctual: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Serve(options) => serve::run(*options),
        Command::Load(args) => Ok(loadgen::run_and_print(&args)?),
        Command::Profile(options) => profile::run(&options),
        Command::Simulate(options) => simulate(*options),
        Command::Replay(options) => replay::run(&options),
        Command::Place(options) => place::run(&options),
    }
}

fn simulate(options: SimulateOptions) -> Result<()> {
    if let Some(folder) = options.page {
        let page = sim::cli::write_page(&sim::cli::PageOptions {
            experiments: options.file,
            folder,
            cache: options.cache,
            all: options.all,
            parts: options.parts,
            again: options.again,
            commit: options.commit,
            progress: true,
        })?;
        println!("wrote {}", page.display());
        return Ok(());
    }
    let only = options.only.iter().map(|text| sim::cli::parse_only(text)).collect::<Result<_, _>>()?;
    let shown = sim::cli::Options {
        json: options.json,
        bound: options.bound,
        svg_dir: options.svg,
        progress: true,
        selection: sim::Selection {
            only,
            sample: options.sample,
            policies: options.policies,
            seconds: options.seconds,
            max_requests: options.max_requests,
            seeds: options.seeds,
        },
        reuse: sim::Reuse { file: options.results, again: options.again },
    };
    print!("{}", sim::cli::simulate(&options.file, &shown)?);
    Ok(())
}
