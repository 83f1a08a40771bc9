//! What recording costs the thread that drives: `valgrind --tool=callgrind --toggle-collect='*record_one*' .../lab
//! recording`.
//!
//! Each request is submitted, executed alone and finished: two events and two commands. Callgrind's count divided by
//! the number of requests that is printed is what one costs.

use base::{ActionId, ApplicationId, DeviceId, Duration, ModelId, RequestId, Timestamp, Transfers, Window};
use recording::{Ending, Header, Limits, Recorder};
use scheduler::{ActionStatus, Command, Event, Execution, Outcome, Report, Request};
use std::time::Instant;

const REQUESTS: u64 = 200_000;
/// As if the server ran for an hour already: timestamps are of a usual length.
const START: Timestamp = Timestamp::from_nanos(3_600_000_000_000);

#[inline(never)]
fn record_one(recorder: &mut Recorder, now: Timestamp, event: &Event, commands: &[Command]) {
    recorder.told(now, event);
    recorder.ordered(now, commands);
}

/// Measures, and prints.
pub(crate) fn run() -> std::io::Result<()> {
    let config = scheduler::Config::default();
    let header = Header { version: "cost".into(), recorded_at: 0, max_requests: 1 << 16, config };
    let path = std::env::temp_dir().join("punctual-recording-cost");
    let mut recorder = Recorder::create(&path, &header, Limits::default())?;
    let begun = Instant::now();
    for number in 0..REQUESTS {
        let now = START + Duration::from_micros(10 * number);
        let id = RequestId { slot: (number % 1000) as u32, generation: (number / 1000) as u32 };
        let (model, action, device) = (ModelId((number % 100) as u32), ActionId(number), DeviceId(0));
        let request = Request {
            id,
            model,
            deadline_at: now + Duration::from_millis(10),
            priority: 0,
            rows: 1,
            application: ApplicationId::DEFAULT,
            size: None,
        };
        let window = Window { earliest: now, latest: now + Duration::from_millis(8) };
        let execution = Execution {
            action,
            device,
            model,
            batch: 1,
            requests: vec![id],
            window,
            expected: Duration::from_millis(1),
            expected_done_at: now + Duration::from_millis(1),
        };
        record_one(&mut recorder, now, &Event::Submitted(request), &[Command::Execute(execution)]);
        let ended_at = now + Duration::from_micros(5);
        let status = ActionStatus::Done { started_at: now, ended_at, transfers: Transfers::default() };
        let finish = Command::Finish { request: id, outcome: Outcome::Done };
        record_one(&mut recorder, ended_at, &Event::Reported(Report { action, status }), &[finish]);
    }
    let took = begun.elapsed();
    recorder.end(Ending::Stopped);
    let bytes = std::fs::metadata(&path)?.len();
    std::fs::remove_file(&path)?;
    println!("{REQUESTS} requests, two events each");
    println!("{:.1} bytes for a request", bytes as f64 / REQUESTS as f64);
    println!("{:.0} ns for an event, making it up included", took.as_nanos() as f64 / (2 * REQUESTS) as f64);
    Ok(())
}
