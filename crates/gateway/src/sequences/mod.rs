//! Sequences of requests: each waits until the one before it is done, and is given what that one left.
//!
//! ```text
//!  arrival ── Call::enter ──> its place in the sequence's line          (before anything is waited for)
//!             Call::take_turn ──> the turn: states and signals are inputs like any others
//!             computed, in a batch with whatever else waits ──> LineTurn::done: states are kept, the next has its turn
//! ```
//!
//! To the scheduler, a request of a sequence is a request: its state is among its inputs. `table.rs` knows who has the
//! turn; it has no clock and waits for nothing.

mod call;
mod table;

pub(crate) use table::SequenceTables;
