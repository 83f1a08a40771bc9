//! `punctual place`: which models share which part of a cluster.

#[cfg(feature = "placement")]
mod solve;

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

/// What `place` may be told.
#[derive(Args, Debug)]
pub struct PlaceOptions {
    /// The file with the models and the limits.
    file: PathBuf,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Stop looking for something better after so many seconds. [default: the file's seconds, else 10]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
}

/// Reads, solves, prints.
#[cfg(feature = "placement")]
pub fn run(options: &PlaceOptions) -> Result<()> {
    solve::run(options)
}

/// Says what is missing and how to get it.
#[cfg(not(feature = "placement"))]
pub fn run(_options: &PlaceOptions) -> Result<()> {
    anyhow::bail!(
        "place: this binary was built without the solver, which takes minutes to build: `make place ARGS=FILE`, or `cargo build --release -p cli --features placement` (with cmake and libclang installed)"
    )
}
