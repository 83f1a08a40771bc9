//! The one binary, `punctual`. It alone picks engines.

mod bytes;
mod devices;
mod example;
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
    }
}
