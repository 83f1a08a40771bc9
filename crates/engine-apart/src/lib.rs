//! An engine in a process of its own: a fault of a runtime, an execution that nothing breaks off and a hostile model
//! cost that process, which the server starts anew.
//!
//! ```text
//!  server                                            a process for each device, and one for each model while it is prepared
//!  load thread ──── prepare, load, unload ──────────> socket ──> inner engine
//!  exec thread ──── order, inputs ──> region (memory of both) ──> exec thread: inner engine
//!       ▲                                                │
//!       └──────────── answer, outputs: copied, then checked
//! ```
//!
//! The traits of `engine` are where the cut is, so that neither the worker nor the controller know of it: a process
//! that ends is a device that is lost. [`serve`] is the other side, in the same program.
#![allow(
    unsafe_code,
    reason = "memory that two processes share is read and written by pointers; each block says why it is sound"
)]

mod checks;
mod child;
mod engine;
mod files;
mod messages;
mod process;
mod region;
mod rights;

pub use child::{OpenedEngine, serve};
pub use engine::ApartEngine;
pub use messages::InnerOptions;

use std::path::PathBuf;

/// What an engine apart is made with.
#[derive(Clone, Debug)]
pub struct ApartOptions {
    /// The program that calls [`serve`]; `/proc/self/exe` is this one, also after its file was replaced.
    pub program: PathBuf,
    /// What makes it do so.
    pub arguments: Vec<String>,
    /// The inner engine's name, as [`::engine::Engine::name`] has it.
    pub engine: &'static str,
    /// What its runtime is called in messages.
    pub runtime: &'static str,
    /// What the inner engine is opened with, in each process.
    pub inner: InnerOptions,
    /// How many devices there are.
    pub devices: u32,
    /// The folders that models are in: every process may read them.
    pub models: Vec<PathBuf>,
    /// Where results of preparation are kept: every process may read it, and the one that prepares a model may write to
    /// the model's place in it.
    pub cache: Option<PathBuf>,
}
