//! Small worlds, text in, log out: what the scheduler orders and what the workers do, to be read by people.
//!
//! A change of the scheduler may change these logs: read the difference, then `UPDATE_EXPECT=1 cargo test -p sim --test
//! scenarios`.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod common;

use base::{Duration, Timestamp};
use common::{model, world};
use expect_test::{Expect, expect};
use scheduler::{Command, Event, Outcome, Scheduler};
use sim::{Observation, Observer, Traffic, Violation};
use std::fmt::Write;
use workload::Arrival;

/// Writes down what happens.
#[derive(Default)]
struct Scribe(String);

impl Observer for Scribe {
    fn observe(&mut self, at: Timestamp, seen: &Observation<'_>) -> Result<(), Violation> {
        let line = match seen {
            Observation::Told(Event::Submitted(request)) => format!("{} asks for {}", request.id, request.model),
            Observation::Ordered(Command::Execute(e)) => {
                let members: Vec<String> = e.requests.iter().map(ToString::to_string).collect();
                let window = format!("{} to {}", e.window.earliest, e.window.latest);
                format!(
                    "  execute {} on {}: {} as a batch of {}, {window}",
                    e.model,
                    e.device,
                    members.join(" "),
                    e.batch
                )
            }
            Observation::Ordered(Command::Load(load)) => format!("  load {} on {}", load.model, load.device),
            Observation::Ordered(Command::Unload(unload)) => {
                format!("  unload {} from {}", unload.model, unload.device)
            }
            Observation::Ordered(Command::Finish { request, outcome: Outcome::Rejected(why) }) => {
                format!("  refuse {request}: {why:?}")
            }
            Observation::Ordered(Command::Finish { request, outcome }) => format!("  {request} is {outcome:?}"),
            Observation::ExecutionEnded { execution, .. } => {
                format!("{} is executed on {}", execution.model, execution.device)
            }
            Observation::LoadEnded { load, .. } => format!("{} is loaded on {}", load.model, load.device),
            _ => return Ok(()),
        };
        writeln!(self.0, "{:<8.3} {line}", at.as_nanos() as f64 / 1e6).unwrap();
        Ok(())
    }
}

/// A world in words: `models 2, fits 1, devices 1, slo 50`, then lines `12.5 m0 x3`: three requests for m0 at 12.5 ms.
fn check(text: &str, expected: Expect) {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let head = lines.next().unwrap();
    let number = |name: &str| -> u64 {
        let found = head.split(',').find_map(|part| part.trim().strip_prefix(name));
        found.unwrap_or_else(|| panic!("no {name} in {head:?}")).trim().parse().unwrap()
    };
    let models = (0..number("models") as u32).map(|index| model(index, Some(number("slo")))).collect();
    let setup = world(models, number("devices") as u32, number("fits") as u32 * 7, 10);
    let mut arrivals = Vec::new();
    for line in lines {
        let mut words = line.split_whitespace();
        let millis: f64 = words.next().unwrap().parse().unwrap();
        let model: u32 = words.next().unwrap().strip_prefix('m').unwrap().parse().unwrap();
        let count: usize = words.next().map_or(1, |word| word.strip_prefix('x').unwrap().parse().unwrap());
        arrivals.extend(std::iter::repeat_n(Arrival { offset: Duration::from_millis_f64(millis), model }, count));
    }
    let traffic = Traffic { open: Some(Box::new(arrivals.into_iter())), closed: None };
    let mut scribe = Scribe::default();
    let scheduler = Scheduler::new(setup.scheduler.clone());
    if let Err(violation) = sim::run_with(&setup, traffic, scheduler, &mut scribe) {
        writeln!(scribe.0, "{violation}").unwrap();
    }
    expected.assert_eq(&scribe.0);
}

#[test]
fn a_cold_model_is_loaded_and_then_serves() {
    check(
        "models 1, fits 1, devices 1, slo 50
        0 m0
        30 m0",
        expect![[r#"
            0.000    r0.0 asks for m0
            0.000      load m0 on d0
            8.000    m0 is loaded on d0
            8.000      execute m0 on d0: r0.0 as a batch of 1, @8000us to @47.5ms
            10.500   m0 is executed on d0
            10.500     r0.0 is Done
            30.000   r0.1 asks for m0
            30.000     execute m0 on d0: r0.1 as a batch of 1, @30ms to @77.5ms
            32.500   m0 is executed on d0
            32.500     r0.1 is Done
        "#]],
    );
}

#[test]
fn what_waits_for_a_load_is_batched() {
    check(
        "models 1, fits 1, devices 1, slo 50
        0 m0 x2
        1 m0 x2",
        expect![[r#"
            0.000    r0.0 asks for m0
            0.000      load m0 on d0
            0.000    r1.0 asks for m0
            1.000    r2.0 asks for m0
            1.000    r3.0 asks for m0
            8.000    m0 is loaded on d0
            8.000      execute m0 on d0: r0.0 r1.0 r2.0 r3.0 as a batch of 4, @8000us to @46ms
            12.000   m0 is executed on d0
            12.000     r0.0 is Done
            12.000     r1.0 is Done
            12.000     r2.0 is Done
            12.000     r3.0 is Done
        "#]],
    );
}

#[test]
fn the_model_that_was_used_least_recently_makes_room() {
    check(
        "models 3, fits 2, devices 1, slo 100
        0 m0
        20 m1
        40 m0
        60 m2",
        expect![[r#"
            0.000    r0.0 asks for m0
            0.000      load m0 on d0
            8.000    m0 is loaded on d0
            8.000      execute m0 on d0: r0.0 as a batch of 1, @8000us to @97.5ms
            10.500   m0 is executed on d0
            10.500     r0.0 is Done
            20.000   r0.1 asks for m1
            20.000     load m1 on d0
            28.000   m1 is loaded on d0
            28.000     execute m1 on d0: r0.1 as a batch of 1, @28ms to @117.5ms
            30.500   m1 is executed on d0
            30.500     r0.1 is Done
            40.000   r0.2 asks for m0
            40.000     execute m0 on d0: r0.2 as a batch of 1, @40ms to @137.5ms
            42.500   m0 is executed on d0
            42.500     r0.2 is Done
            60.000   r0.3 asks for m2
            60.000     unload m1 from d0
            60.000     load m2 on d0
            68.000   m2 is loaded on d0
            68.000     execute m2 on d0: r0.3 as a batch of 1, @68ms to @157.5ms
            70.500   m2 is executed on d0
            70.500     r0.3 is Done
        "#]],
    );
}

#[test]
fn what_cannot_be_in_time_is_refused_at_once() {
    check(
        "models 1, fits 1, devices 1, slo 12
        0 m0
        30 m0 x12",
        expect![[r#"
            0.000    r0.0 asks for m0
            0.000      load m0 on d0
            8.000    m0 is loaded on d0
            8.000      execute m0 on d0: r0.0 as a batch of 1, @8000us to @9500us
            10.500   m0 is executed on d0
            10.500     r0.0 is Done
            30.000   r0.1 asks for m0
            30.000     execute m0 on d0: r0.1 as a batch of 1, @30ms to @39.5ms
            30.000   r1.0 asks for m0
            30.000     execute m0 on d0: r1.0 as a batch of 1, @30ms to @39.5ms
            30.000   r2.0 asks for m0
            30.000   r3.0 asks for m0
            30.000   r4.0 asks for m0
            30.000   r5.0 asks for m0
            30.000   r6.0 asks for m0
            30.000   r7.0 asks for m0
            30.000   r8.0 asks for m0
            30.000   r9.0 asks for m0
            30.000   r10.0 asks for m0
            30.000   r11.0 asks for m0
            30.000     refuse r11.0: Overloaded { earliest_at: @42.40625ms }
            30.000     execute m0 on d0: r2.0 r3.0 r4.0 r5.0 r6.0 r7.0 r8.0 r9.0 as a batch of 8, @30.000001ms to @36ms
            32.500   m0 is executed on d0
            32.500     r0.1 is Done
            35.000   m0 is executed on d0
            35.000     r1.0 is Done
            39.500     refuse r10.0: Overloaded { earliest_at: @44.03125ms }
            41.000   m0 is executed on d0
            41.000     r2.0 is Done
            41.000     r3.0 is Done
            41.000     r4.0 is Done
            41.000     r5.0 is Done
            41.000     r6.0 is Done
            41.000     r7.0 is Done
            41.000     r8.0 is Done
            41.000     r9.0 is Done
        "#]],
    );
}
