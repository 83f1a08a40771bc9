//! The laboratory on the simulated world: experiments as TOML files, and what comes out of them.
//!
//! ```text
//!  file ──> Experiment ──> points x policies x seeds ──> sim::run ──> PointOutcome ──> tables, plots, claims, pages
//!           `──────────────────── run/ ──────────────────────────────────────────┘     `────── show/ ─────────────┘
//! ```
//!
//! - **`run`** makes figures from a file: defaults, points of the sweep, searches, bounds, kept results. Every result
//!   is kept with a number for these sources and for all crates of ours below this one, and is only taken while that is
//!   the same.
//! - **`show`** makes something to read from figures; no figure depends on it.
//! - **[`simulate`]**: the flags of `punctual simulate`, and what it prints.
//! - **[`worlds`]** and [`oracle`]: worlds drawn from one number each, in which promises are tested.
//!
//! The program of this crate, `cargo run --release -p lab -- --help`, runs experiments without the rest of the server,
//! and measures the scheduler.
//!
//! A search checks the invariants for the first seed of each rate that it tries at full length, and in no other run.
//!
//! **Invariant:** nothing in here simulates. What happens in a run is [`sim`]'s.

mod error;
pub mod oracle;
mod run;
mod show;
pub mod simulate;
pub mod worlds;

pub use error::LabError;
pub use run::campaign::{Campaign, PointOutcome, parallel};
pub use run::experiment;
pub use run::shares;
pub use run::store::Reuse;
pub use run::sweep::Selection;
pub use show::claim::{Claim, Holds, Pick};
pub use show::compare::Compare;
pub use show::plot::{PaperPoints, PlotConfig, PlotKind};
pub use show::svg::line_chart;
