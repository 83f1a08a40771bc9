//! How well models are placed on the parts of a cluster: Symphony's experiment A.2. Its solver is behind the feature
//! `placement`.

#[cfg(feature = "placement")]
mod ways;

use lab::LabError;

#[derive(clap::Args)]
pub(crate) struct PlacementArgs {
    /// So many problems, drawn with the seeds from 1 on.
    #[arg(default_value_t = 5)]
    seeds: u64,
    /// Seconds for each way to place a problem's models.
    #[arg(default_value_t = 10)]
    seconds: u64,
}

#[cfg(feature = "placement")]
pub(crate) fn run(args: &PlacementArgs) -> Result<(), LabError> {
    ways::compare_all(args.seeds, args.seconds)
}

/// Says what is missing and how to get it.
#[cfg(not(feature = "placement"))]
pub(crate) fn run(args: &PlacementArgs) -> Result<(), LabError> {
    let PlacementArgs { seeds, seconds } = args;
    Err(LabError::Value(format!(
        "placement: this program was built without the solver, which takes minutes to build: `cargo run --release -p lab --features placement -- placement {seeds} {seconds}` (with cmake and libclang installed)"
    )))
}
