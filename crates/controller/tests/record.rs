//! What a live controller records is run again: the same orders come out. What is wrong with a recording is said.

#![allow(clippy::unwrap_used, reason = "a test that can't be set up is a broken test")]

mod common;

use base::{DeviceId, Duration, Timestamp, margins};
use common::{LARGEST_BATCH, MODEL_PAGES, TestServer, until, wait};
use recording::{Ending, Header, Limits, Recorder, Recording, RecordingError, Step};
use scheduler::{ActionStatus, Command, DeviceSpec, Event, Outcome, PolicyKind, Scheduler, StageSpec};
use sim::Replay;
use std::path::Path;
use std::sync::atomic::Ordering;

fn replay(path: &Path) -> Result<Replay, RecordingError> {
    sim::replay(path, &mut |_, _| {})
}

fn steps(path: &Path) -> (Header, Vec<Step>) {
    let mut recording = Recording::open(path).unwrap();
    let steps = recording.by_ref().collect::<Result<_, _>>().unwrap();
    (recording.header().clone(), steps)
}

/// Loads, unloads, refusals, clients that go away, batch work, a device that is lost, a model that is removed.
fn eventful(policy: PolicyKind) -> TestServer {
    // Room for two of the three on each device.
    let server = TestServer::new(policy, 2, 2 * MODEL_PAGES);
    let models = ["first", "second", "third"].map(|name| server.model(name));
    let later = |server: &TestServer| server.controller.now() + Duration::from_secs(600);
    let mut answers = Vec::new();
    for round in 0..30 {
        for (model, _) in &models {
            // Full batches: no policy has a reason to let them wait.
            answers.push(server.ask(*model));
            answers.push(server.submit(*model, LARGEST_BATCH, Timestamp::NEVER).1);
        }
        // Can't be met.
        answers.push(server.submit(models[0].0, 1, server.controller.now() + Duration::from_micros(50)).1);
        let (ticket, answer) = server.submit(models[1].0, 1, later(&server));
        server.controller.cancel(ticket.unwrap());
        answers.push(answer);
        if round == 10 {
            models[2].1.execution_panics.store(true, Ordering::Relaxed);
            until("the loss", || {
                answers.push(server.ask(models[2].0));
                std::thread::sleep(std::time::Duration::from_millis(1));
                (server.losses() > 0).then_some(())
            });
            models[2].1.execution_panics.store(false, Ordering::Relaxed);
        }
    }
    // Its requests are over by then, and a client may still say that it goes.
    let (ticket, answer) = server.submit(models[0].0, LARGEST_BATCH, later(&server));
    wait(answer);
    server.controller.cancel(ticket.unwrap());
    server.controller.withdraw(models[1].0);
    answers.into_iter().for_each(|answer| drop(wait(answer)));
    until("all slots to be free", || (server.controller.in_hand() == 0).then_some(()));
    assert_eq!(server.violations(), 0, "{policy:?}");
    server
}

#[test]
fn what_a_server_did_comes_out_again_whatever_the_policy() {
    for &policy in PolicyKind::ALL {
        let server = eventful(policy);
        let replay = replay(&server.stop()).unwrap();
        assert!(replay.is_good(), "{policy:?}: {replay:#?}");
        let tally = &replay.tally;
        let refused: u64 = tally.refused.iter().sum();
        let outcomes = tally.done + tally.late + tally.failed + tally.cancelled + refused;
        assert_eq!((outcomes, tally.in_hand), (tally.requests, 0), "{policy:?}: {tally:?}");
        assert!(tally.requests >= 200 && tally.batches > 0 && tally.done > 0, "{policy:?}: {tally:?}");
        assert!(tally.loads >= 3 && tally.losses >= 1 && refused >= 30, "{policy:?}: {tally:?}");
        assert_eq!(replay.header.config.policy, policy);
        assert!(replay.bytes < 200 * replay.events, "{} bytes for {} events", replay.bytes, replay.events);
    }
}

/// Writes a recording with some steps changed behind the scheduler's back: what it ordered is what it ordered without
/// the change.
fn forge(from: &Path, to: &Path, mut change: impl FnMut(usize, &mut Step, &[Command])) {
    let (header, steps) = steps(from);
    let mut scheduler = Scheduler::new(header.config.clone());
    let mut recorder = Recorder::create(to, &header, Limits::default()).unwrap();
    for (index, mut step) in steps.into_iter().enumerate() {
        let mut commands = Vec::new();
        let now = step.now;
        scheduler.step(now, step.event.clone(), &mut commands);
        change(index, &mut step, &commands);
        recorder.told(now, &step.event);
        recorder.ordered(now, &commands);
    }
}

#[test]
fn an_event_that_was_altered_shows_at_its_step() {
    let server = eventful(PolicyKind::Punctual);
    let (recorded, folder) = (server.stop(), tempfile::tempdir().unwrap());
    let forged = folder.path().join("forged");
    let mut altered = None;
    let mut seen = 0;
    forge(&recorded, &forged, |index, step, commands| {
        let refused = |command: &Command| {
            matches!(command, Command::Finish { outcome: Outcome::Rejected(_) | Outcome::Cancelled, .. })
        };
        if let Event::Submitted(request) = &mut step.event {
            seen += 1;
            if seen > 50 && altered.is_none() && !commands.iter().any(refused) {
                request.deadline_at = step.now;
                altered = Some(index as u64 + 1);
            }
        }
    });
    let replay = replay(&forged).unwrap();
    let difference = replay.difference.expect("it differs");
    assert_eq!(Some(difference.event), altered);
    assert!(difference.told.starts_with("Submitted"), "{}", difference.told);
    assert!(difference.ordered.iter().any(|order| order.contains("DeadlineUnreachable")), "{:?}", difference.ordered);
    assert_eq!(replay.events, altered.unwrap(), "it ends there");
}

#[test]
fn a_report_that_cannot_be_true_is_named_with_its_event() {
    let server = eventful(PolicyKind::Clockwork);
    let (recorded, folder) = (server.stop(), tempfile::tempdir().unwrap());
    let forged = folder.path().join("forged");
    // The last one: much has run on that device before.
    let is_done = |step: &Step| matches!(step.event, Event::Reported(report) if matches!(report.status, ActionStatus::Done { .. }));
    let last = steps(&recorded).1.iter().rposition(is_done).unwrap();
    forge(&recorded, &forged, |index, step, _| {
        if let Event::Reported(report) = &mut step.event
            && let ActionStatus::Done { started_at, .. } = &mut report.status
            && index == last
        {
            *started_at = Timestamp::ZERO;
        }
    });
    let altered = last as u64 + 1;
    let replay = replay(&forged).unwrap();
    let broken: Vec<_> =
        replay.broken.iter().map(|broken| (broken.violation.invariant().to_string(), broken.event)).collect();
    assert!(broken.contains(&("P3".to_owned(), altered)), "{broken:?}");
    assert!(broken.contains(&("P4".to_owned(), altered)), "{broken:?}");
}

fn small(path: &Path) {
    let header = Header { version: "test".into(), recorded_at: 0, max_requests: 4, config: Default::default() };
    let mut scheduler = Scheduler::new(header.config.clone());
    let mut recorder = Recorder::create(path, &header, Limits::default()).unwrap();
    for millis in 0..20 {
        let device = DeviceId(millis as u32 / 2);
        let spec = DeviceSpec { device, pages: 3, kind: 0 };
        let event = if millis % 2 == 0 { Event::DeviceAdded(spec) } else { Event::DeviceLost(device) };
        // The clock jumps by a second now and then: there are several blocks.
        let now = Timestamp::ZERO + Duration::from_millis(millis * 300);
        let mut commands = Vec::new();
        recorder.told(now, &event);
        scheduler.step(now, event, &mut commands);
        recorder.ordered(now, &commands);
    }
}

#[test]
fn whatever_byte_is_wrong_a_sentence_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    small(&good);
    assert!(replay(&good).unwrap().is_good());
    let bytes = std::fs::read(&good).unwrap();
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 0x10;
        std::fs::write(&bad, flipped).unwrap();
        let error = replay(&bad).expect_err(&format!("byte {at} is wrong")).to_string();
        assert!(error.starts_with("it") && error.len() > 20, "{error}");
    }
}

#[test]
fn a_file_that_was_cut_is_replayed_as_far_as_it_goes_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let (good, bad) = (folder.path().join("good"), folder.path().join("bad"));
    small(&good);
    let bytes = std::fs::read(&good).unwrap();
    let mut most = 0;
    for length in 0..bytes.len() {
        std::fs::write(&bad, &bytes[..length]).unwrap();
        match replay(&bad) {
            Ok(replay) => {
                assert!(replay.is_good() && replay.end.is_none(), "{length}: {replay:?}");
                assert!(replay.events >= most);
                most = replay.events;
            }
            Err(error) => assert!(most == 0 && error.to_string().len() > 20, "{length}: {error}"),
        }
    }
    assert_eq!(most, 20);
    assert!(replay(&folder.path().join("missing")).unwrap_err().to_string().contains("can't be read"));
}

#[test]
fn a_step_that_broke_the_server_breaks_the_replay_at_the_same_event() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events");
    let header = Header { version: "test".into(), recorded_at: 0, max_requests: 4, config: Default::default() };
    let mut recorder = Recorder::create(&path, &header, Limits::default()).unwrap();
    let event = Event::DeviceAdded(DeviceSpec { device: DeviceId(0), pages: 3, kind: 0 });
    recorder.told(Timestamp::ZERO, &event);
    recorder.ordered(Timestamp::ZERO, &[]);
    // The scheduler asserts that a device isn't added twice.
    recorder.told(Timestamp::ZERO, &event);
    recorder.end(Ending::Broken);
    let replay = replay(&path).unwrap();
    let panic = replay.panic.expect("it panics");
    assert_eq!((panic.event, panic.recorded), (2, true));
    assert!(panic.message.contains("was added while it is there"), "{}", panic.message);
    assert_eq!(replay.end.unwrap().ending, Ending::Broken);
}

/// Schedulers count a request as lost once, by its deadline, with however many calls. Plans left each call a part of
/// what was left when it came, so that each had another deadline.
#[test]
fn all_calls_of_a_stage_have_one_deadline() {
    let server = TestServer::new(PolicyKind::Punctual, 1, 2 * MODEL_PAGES);
    let (model, _) = server.model("net");
    let stage = |next| StageSpec { model, next, calls: 2.0, varies: true, gap: Duration::ZERO };
    let pipeline = server.controller.announce(vec![stage(vec![1]), stage(Vec::new())]).unwrap();
    let arrived_at = server.controller.now();
    let deadline_at = arrived_at + Duration::from_millis(20);
    for stage in [pipeline.stage(0), pipeline.stage(1).of_whole(arrived_at)] {
        for _ in 0..2 {
            wait(server.call_stage(model, stage, deadline_at));
        }
    }
    let deadline = |step: Step| match step.event {
        Event::StageSubmitted(request, _) => Some(request.deadline_at),
        _ => None,
    };
    let deadlines: Vec<Timestamp> = steps(&server.stop()).1.into_iter().filter_map(deadline).collect();
    let [first, second, third, fourth] = deadlines[..] else { panic!("{deadlines:?}") };
    assert!(first == second && third == fourth, "{deadlines:?}");
    assert_eq!(third, deadline_at - margins::plan_before(Duration::from_millis(20)), "as the whole was planned");
}
