//! Virtual time, modelled workers and network, faults, checkers, experiments.

mod agenda;
pub mod checkers;
mod clients;
mod device;
mod fingerprint;
mod meter;
mod observe;
mod plant;
mod quantiles;
mod series;
mod setup;
mod world;

pub use fingerprint::Fingerprint;
pub use meter::{ErrorSpread, Errors, Meter, REASONS, Tally};
pub use observe::{Facts, Observation, Observer, Refusal, Violation};
pub use quantiles::{Quantiles, Spread};
pub use series::{ClientPoint, MachinePoint, Series};
pub use setup::{Faults, Model, Network, Noise, Setup, Traffic};
pub use world::{Machine, Nobody, Run, run, run_with};
