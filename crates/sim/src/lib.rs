//! The world: virtual time, modelled workers and network, faults, checkers, replays.
//!
//! [`run`] drives the same scheduler that serves live from one thing that is due to the next: clients send, messages
//! travel, executors follow their windows, devices die and come back. Nothing waits and nothing reads a clock, so an
//! hour of traffic takes seconds, and the same seed gives the same run.
//!
//! ```text
//!  workload ──> clients ── Event ──> scheduler ── Command ──> workers (devices, executors, pages)
//!                  ▲                     ▲                      │
//!                  └─── answers          └────── reports ───────┘      everything ──> checkers, meter
//! ```
//!
//! - **The world**: [`Setup`] and [`Traffic`] in, [`RunResult`] or a [`Violation`] out.
//! - **[`checkers`]**: the invariants P1 to P11, each watched by an observer that knows nothing of the scheduler's
//!   insides; on unless [`Setup::checked`] says otherwise (they take a sixth of the time). P7 is
//!   [`RunResult::fingerprint`], compared between runs.
//! - **[`replay`](replay())**: the events of a live server, through a scheduler once more.
//!
//! Experiments on it are in the crate `lab`.
//!
//! **Invariant:** nothing in here decides anything about serving. What the simulator shows, the scheduler did.

mod agenda;
mod changes;
pub mod checkers;
mod clients;
mod device;
mod elastic;
mod inputs;
mod meter;
mod observe;
mod quantiles;
mod replay;
mod series;
mod setup;
mod shares;
mod violation;
mod wholes;
mod workers;
mod world;

pub use inputs::{DrawnInput, InputDistribution, TimeDistribution};
pub use meter::{Count, ErrorSummary, Errors, Meter, RefusalCounts, Tally, Trace, TracedBatch, by_reason, ratio};
pub use observe::{Facts, Observation, Observer, Promises, Refusal};
pub use quantiles::{ONE_IN, QuantileSummary, Quantiles};
pub use replay::{Difference, FoundViolation, Panic, Replay, ReplayProgress, ReplayTally, replay};
pub use scheduler::Fingerprint;
pub use series::{ClientPoint, DevicesPoint, Series};
pub use setup::{Elastic, Faults, ModelSetup, Network, Noise, PipelineSetup, Setup, Slowdown, Traffic, Variety};
pub use shares::SharedGpus;
pub use violation::{Broken, Invariant, Violation};
pub use world::{DrivenScheduler, NoObserver, RunResult, run, run_with};
