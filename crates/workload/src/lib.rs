//! Seeded arrival processes and trace readers.
//!
//! One description of a workload serves two clocks: the simulator steps through it in virtual time, the load generator
//! waits for it in real time. Open-loop workloads are iterators of [`Arrival`]s in the order of time; a closed loop
//! answers "this client got its answer, when does it send again?".
//!
//! The same seed gives the same arrivals on every platform: the generator is PCG, and logarithms and powers come from
//! `libm` rather than from the system.
//!
//! ```
//! use workload::{OpenLoop, Process, Random, RateCurve, Stream};
//!
//! let stream = Stream { model: 0, process: Process::Poisson, curve: RateCurve::constant(100.0), share: 1.0, starts_at: base::Duration::ZERO };
//! let arrivals = OpenLoop::new([stream], 7);
//! let second: Vec<_> = arrivals.take_while(|arrival| arrival.offset < base::Duration::from_secs(1)).collect();
//! assert!((60..140).contains(&second.len()));
//! # let _ = Random::new(1, 2);
//! ```

mod closed;
mod curve;
mod functions;
mod open;
mod popularity;
mod random;
mod trace;

pub use closed::{ClosedLoop, Think};
pub use curve::RateCurve;
pub use functions::{FunctionArrivals, FunctionTrace, StandIn};
pub use open::{Arrival, OpenLoop, Process, Stream};
pub use popularity::Popularity;
pub use random::Random;
pub use trace::{Replay, RequestTrace, TraceError};
