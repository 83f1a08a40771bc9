//! Where nothing goes wrong, `punctual` loses at most 1.5 times as many requests as the best of its rivals, and 0.5 % more.
//!
//! `cargo run --release -p sim --example worlds -- oracle 1000` tries more worlds, with higher rates.

#[path = "common/oracle.rs"]
mod oracle;

use oracle::{Plan, Verdict};

/// So many worlds are tried each time.
const WORLDS: usize = 6;
/// No faster ones: they take longer.
const RATE: f64 = 2_000.0;

/// Worlds in which it was worse once.
const REGRESSIONS: &[u64] = &[];

#[test]
fn punctual_is_hardly_worse_than_the_best_rival() {
    let drawn = (0..).map(Plan::draw).filter(|plan| plan.rate() <= RATE).take(WORLDS);
    for plan in drawn.chain(REGRESSIONS.iter().map(|&seed| Plan::draw(seed))) {
        let verdict = plan.judge();
        assert!(verdict.holds(), "punctual is worse than its rivals:\n{}\n{verdict}", Verdict::HEADER);
    }
}
