//! `punctual replay`: runs a recording again and says what came out.

use crate::bytes::ByteSize;
use anyhow::{Context, Result, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use sim::{Replay, by_reason};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;

#[derive(Args)]
pub struct ReplayOptions {
    /// What `punctual serve --record` wrote.
    file: PathBuf,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

/// So many of a step's orders are shown.
const MOST_ORDERS: usize = 5;

pub fn run(options: &ReplayOptions) -> Result<()> {
    let shown = std::io::stderr().is_terminal();
    let bar = if shown { ProgressBar::no_length() } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("replaying {bar:30} {percent}% {eta} left");
    bar.set_style(style.expect("the template is well formed"));
    let mut progress = |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    };
    let replay = sim::replay(&options.file, &mut progress);
    bar.finish_and_clear();
    let replay = replay.with_context(|| options.file.display().to_string())?;
    if options.json {
        println!("{}", to_json(&replay));
    } else {
        print!("{}", to_text(&replay));
    }
    if !replay.is_good() {
        bail!("{}: the replay is not as it should be", options.file.display());
    }
    Ok(())
}

/// How the file ends.
fn ending(replay: &Replay) -> String {
    replay.end.map_or_else(
        || "the file does not say: the server was killed, or still runs, or the file was cut".into(),
        |end| end.ending.to_string(),
    )
}

fn to_text(replay: &Replay) -> String {
    let mut text = String::new();
    let tally = &replay.tally;
    let mut line = |name: &str, value: String| {
        writeln!(text, "{name:<12}{value}").expect("writing to a string doesn't fail");
    };
    let here = env!("CARGO_PKG_VERSION");
    let version = &replay.header.version;
    let other = if version == here { String::new() } else { format!(", replayed by {here}: it may decide otherwise") };
    line("recorded", format!("by version {version}{other}, policy {}", replay.header.config.policy.name()));
    let per_request = replay.bytes.checked_div(tally.requests).unwrap_or(0);
    let (seconds, bytes) = (replay.lasted.as_secs_f64(), ByteSize(replay.bytes));
    line("length", format!("{seconds:.3} s, {} events, {bytes} ({per_request} bytes a request)", replay.events));
    line("end", ending(replay));
    line("devices", format!("{} came, {} were lost", tally.devices, tally.losses));
    line("models", format!("{} came, {} loads, {} unloads", tally.models, tally.loads, tally.unloads));
    let size = tally.batched as f64 / tally.batches.max(1) as f64;
    line("batches", format!("{}, {size:.2} requests each", tally.batches));
    let counts = [
        ("in time", tally.done),
        ("late", tally.late),
        ("failed", tally.failed),
        ("cancelled", tally.cancelled),
        ("open at the end", tally.in_hand),
    ];
    let refused = by_reason(replay.tally.refused).map(|(reason, count)| format!("{count} refused ({reason})"));
    let counts = counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
    let outcomes: Vec<String> = counts.chain(refused).collect();
    line("requests", [vec![tally.requests.to_string()], outcomes].concat().join(", "));
    if !tally.refusal.is_empty() {
        let part = |count: u64| 100.0 * count as f64 / tally.refusal.len() as f64;
        let (once, early) = (part(tally.refused_at_once), part(tally.refused_early));
        line("refusals", format!("{once:.1} % within 1 ms, {early:.1} % with half of their time left"));
    }
    match (&replay.difference, &replay.panic) {
        (None, None) => line("orders", format!("the same ({:016x})", replay.fingerprint)),
        (Some(difference), _) => {
            let (event, at) = (difference.event, difference.at);
            line("orders", format!("DIFFERENT from event {event} on, at {at} (P7)"));
            line("", format!("told: {}", difference.told));
            if difference.ordered.is_empty() {
                line("", "now ordered: nothing".into());
            }
            for ordered in difference.ordered.iter().take(MOST_ORDERS) {
                line("", format!("now ordered: {ordered}"));
            }
        }
        (None, Some(panic)) => {
            let also = if panic.recorded { "as in the server" } else { "which it did not do in the server" };
            line("orders", format!("the scheduler PANICKED at event {}, {also}: {}", panic.event, panic.message));
            line("", format!("told: {}", panic.told));
        }
    }
    if replay.broken.is_empty() {
        line("invariants", "all that can be seen held (P1 to P6, P8, P9 and the scheduler's contract)".into());
    }
    for broken in &replay.broken {
        line("invariants", format!("BROKEN at event {}: {}", broken.event, broken.violation));
    }
    text
}

fn to_json(replay: &Replay) -> Value {
    let tally = &replay.tally;
    let refused: serde_json::Map<String, Value> =
        by_reason(replay.tally.refused).map(|(reason, count)| (reason.into(), count.into())).collect();
    let broken: Vec<Value> = (replay.broken.iter())
        .map(|broken| {
            let violation = &broken.violation;
            let (invariant, at) = (violation.invariant().to_string(), violation.at.as_nanos());
            json!({ "event": broken.event, "invariant": invariant, "at_ns": at, "message": violation.broken.to_string() })
        })
        .collect();
    let difference = replay.difference.as_ref().map(|difference| {
        json!({
            "event": difference.event,
            "at_ns": difference.at.as_nanos(),
            "told": difference.told,
            "ordered": difference.ordered,
        })
    });
    let panic = replay.panic.as_ref().map(|panic| {
        json!({ "event": panic.event, "told": panic.told, "message": panic.message, "recorded": panic.recorded })
    });
    json!({
        "good": replay.is_good(),
        "version": replay.header.version,
        "recorded_at": replay.header.recorded_at,
        "policy": replay.header.config.policy.name(),
        "bytes": replay.bytes,
        "seconds": replay.lasted.as_secs_f64(),
        "events": replay.events,
        "end": ending(replay),
        "cut": replay.end.is_none_or(|end| end.ending.is_cut()),
        "fingerprint": format!("{:016x}", replay.fingerprint),
        "requests": tally.requests,
        "outcomes": {
            "done": tally.done,
            "late": tally.late,
            "failed": tally.failed,
            "cancelled": tally.cancelled,
            "refused": refused,
            "refused_at_once": tally.refused_at_once,
            "refused_early": tally.refused_early,
            "refusal_ms": tally.refusal.summary(),
            "open": tally.in_hand,
        },
        "batches": tally.batches,
        "batched_requests": tally.batched,
        "loads": tally.loads,
        "unloads": tally.unloads,
        "models": tally.models,
        "devices": tally.devices,
        "device_losses": tally.losses,
        "difference": difference,
        "panic": panic,
        "broken": broken,
    })
}
