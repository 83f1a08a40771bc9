//! Open- and closed-loop load, latency from the intended send time.
//!
//! An open loop has a timetable: each request has an instant at which it should be sent, and its latency counts from
//! there, also when a slow server kept every connection busy and it could only be sent later. A generator that counts
//! from the actual send leaves out exactly the requests that suffered most (coordinated omission).
//!
//! ```text
//!            intended        sent           answered
//!  ─────────────┼──────────────┼────────────────┼─────
//!               │◄─ send lag ─►│                │
//!               │◄─────────── latency ─────────►│
//! ```
//!
//! Everything runs on one thread: the generator often shares a small machine with the server that it measures.

mod connect;
mod driver;
mod grpc;
mod http;
mod inputs;
mod lengths;
mod options;
mod pace;
mod plan;
mod progress;
mod report;
mod stats;
mod target;

pub use connect::{ApiKey, Encryption};
pub use lengths::Lengths;
pub use options::{ArrivalKind, LoadArgs, Protocol};
pub use plan::{ClassPlan, LoadPlan, Loop, PlanError};
pub use report::{ClassReport, LoadReport, Quantiles};

use std::future::Future;

/// Why no load could be generated.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The server or the model can't be asked.
    #[error("{0}")]
    Target(String),
    /// The system refused something.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        error: std::io::Error,
    },
}

/// Generates the load that the arguments ask for, until it is done or Ctrl-C is pressed, and prints the result.
pub fn run_and_print(args: &LoadArgs) -> Result<(), LoadError> {
    let plan = args.plan()?;
    let report = run(&plan, async {
        // Without a handler Ctrl-C ends the process, which is what the user wants too.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    })?;
    if args.json {
        println!("{}", report.to_json());
    } else {
        print!("{report}");
    }
    Ok(())
}

/// Generates load on this thread until it is done or `stop` is.
pub fn run(plan: &LoadPlan, stop: impl Future<Output = ()>) -> Result<LoadReport, LoadError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| LoadError::System { what: "the event loop can't be started", error })?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, driver::drive(plan, stop))
}
