//! Virtual time, modelled workers and network, faults, checkers, experiments.
//!
//! [`run`] drives the same scheduler that serves live from one thing that is due to the next: clients send, messages travel,
//! executors follow their windows, devices die and come back. Nothing waits and nothing reads a clock, so an hour of traffic
//! takes seconds, and the same seed gives the same run.
//!
//! ```text
//!  workload ──> clients ── Event ──> scheduler ── Command ──> plant (devices, executors, pages)
//!                  ▲                     ▲                      │
//!                  └─── answers          └────── reports ───────┘      everything ──> checkers, meter
//! ```
//!
//! - **The world**: [`Setup`] and [`Traffic`] in, [`Run`] or a [`Violation`] out.
//! - **[`checkers`]**: the invariants P1 to P11, each watched by an observer that knows nothing of the scheduler's insides; on
//!   in every run, except that a search checks the first seed of each rate that it tries at full length and no other run
//!   (they take a sixth of the time). P7 is [`Run::fingerprint`], compared between runs.
//! - **[`experiment`]** and [`Campaign`]: a TOML file, its sweep, its seeds and its search, run on all cores.
//! - **[`replay`](replay())**: the events of a live server, through a scheduler once more.
//! - **[`cli`]**: what `punctual simulate` prints.
//!
//! **Invariant:** nothing in here decides anything about serving. What the simulator shows, the scheduler did.

mod agenda;
mod bars;
mod bound;
mod campaign;
mod changes;
pub mod checkers;
mod claim;
pub mod cli;
mod clients;
mod compare;
mod device;
mod elastic;
mod entry;
mod error;
pub mod experiment;
mod gantt;
mod inputs;
mod kept;
mod meter;
mod models;
mod observe;
mod page;
mod plant;
mod plot;
mod quantiles;
mod replay;
mod resolve;
mod search;
mod series;
mod setup;
mod store;
mod summary;
mod svg;
mod sweep;
mod table;
mod tables;
mod traffic;
mod variant;
mod verdict;
mod violation;
mod world;

pub use campaign::{Campaign, Outcome};
pub use claim::{Claim, Holds, Pick};
pub use compare::Compare;
pub use error::Error;
pub use inputs::{Input, Inputs};
pub use meter::{Count, ErrorSpread, Errors, Meter, Refused, Tally, Trace, TracedBatch, by_reason};
pub use observe::{Facts, Observation, Observer, Promises, Refusal};
pub use plot::{Kind, PaperPoints, PlotConfig};
pub use quantiles::{Quantiles, Spread};
pub use replay::{Difference, Found, Panic, Replay, ReplayProgress, ReplayTally, replay};
pub use scheduler::Fingerprint;
pub use series::{ClientPoint, MachinePoint, Series};
pub use setup::{Elastic, Faults, Model, Network, Noise, Setup, Slowdown, Traffic, Variety};
pub use store::Reuse;
pub use sweep::Selection;
pub use violation::{Broken, Invariant, Violation};
pub use world::{Machine, Nobody, Run, run, run_with};
