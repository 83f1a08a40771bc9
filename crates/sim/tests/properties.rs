//! Random worlds with random faults: no invariant is ever broken, everything ends, and the same seed gives the same run.
//!
//! A world is one number (`common/worlds.rs`). `cargo run --release -p sim --example worlds -- 10000` tries thousands of others,
//! `... worlds log SEED` shows one.

mod common;
#[path = "common/worlds.rs"]
mod worlds;

use worlds::Plan;

/// So many are tried each time.
const WORLDS: u64 = 150;

/// Worlds in which something was broken once.
const REGRESSIONS: &[u64] = &[];

#[track_caller]
fn holds(seed: u64) {
    let plan = Plan::draw(seed);
    if let Err(broken) = plan.run() {
        panic!("seed {seed}: {broken}\n{plan:#?}");
    }
}

#[test]
fn invariants_hold_whatever_goes_wrong() {
    (0..WORLDS).for_each(holds);
}

#[test]
fn what_was_repaired_stays_so() {
    REGRESSIONS.iter().copied().for_each(holds);
}
