//! Every target on its corpus, and on copies of it that were changed by chance: a short run of what `make fuzz` does
//! for hours, without its knowledge of which code was reached.

#![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use fuzz::{TARGETS, Target};
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};
use workload::Random;

/// Panics on any thread: the server's own threads catch theirs.
static PANICS: AtomicUsize = AtomicUsize::new(0);
/// Changed copies for each target; fewer where each takes long.
const COPIES: u32 = 3_000;
const SLOW_COPIES: u32 = 150;
/// What files and messages have at places that matter.
const TELLING: [&[u8]; 12] = [
    b"-1",
    b"0",
    b"9223372036854775807",
    b"1e999",
    b"\"",
    b"{",
    b"[",
    b"\0",
    b"\xff\xff\xff\xff",
    b"\x80\x80\x80\x80\x08",
    b"\r\n\r\n",
    b"\x7f",
];

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(info);
        }));
    });
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let folder = fuzz::corpus(target);
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
}

/// A copy with a few changes: a byte, a piece that is cut, doubled or taken from another seed, a telling value.
fn changed(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut copy = seeds[random.below(seeds.len() as u32) as usize].clone();
    for _ in 0..=random.below(4) {
        let place = random.below(copy.len() as u32 + 1) as usize;
        let end = (place + random.below(16) as usize).min(copy.len());
        match random.below(6) {
            0 if place < copy.len() => copy[place] ^= 1 << random.below(8),
            1 if place < copy.len() => copy[place] = random.below(256) as u8,
            2 => drop(copy.drain(place..end)),
            3 => copy.truncate(place),
            4 => {
                let other = &seeds[random.below(seeds.len() as u32) as usize];
                let from = random.below(other.len() as u32 + 1) as usize;
                let piece = other[from..(from + 64).min(other.len())].to_vec();
                drop(copy.splice(place..end, piece));
            }
            _ => drop(copy.splice(place..end, TELLING[random.below(TELLING.len() as u32) as usize].iter().copied())),
        }
    }
    copy
}

fn check(target: &Target, data: &[u8]) {
    // Panics are counted for all threads of the process: one target runs at a time.
    let seen = PANICS.load(Ordering::SeqCst);
    let outcome = catch_unwind(|| (target.check)(data));
    let panicked = PANICS.load(Ordering::SeqCst) > seen;
    assert!(outcome.is_ok() && !panicked, "{}: {}", target.name, data.escape_ascii());
}

fn run(name: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    count_panics();
    let target = fuzz::find(name).unwrap();
    let seeds = seeds(&target);
    seeds.iter().for_each(|seed| check(&target, seed));
    let mut random = Random::new(1, 0);
    for _ in 0..if target.slow { SLOW_COPIES } else { COPIES } {
        check(&target, &changed(&seeds, &mut random));
    }
}

macro_rules! tests {
    ($($test:ident $name:literal)*) => {
        $(#[test] fn $test() { run($name); })*

        #[test]
        fn every_target_is_tested() {
            assert_eq!(TARGETS.map(|target| target.name).as_slice(), [$($name),*]);
        }
    };
}

tests! {
    json_infer "json-infer"
    json_control "json-control"
    raw_infer "raw-infer"
    protobuf_infer "protobuf-infer"
    protobuf_control "protobuf-control"
    config_pbtxt "config-pbtxt"
    endpoint "endpoint"
    config_json "config-json"
    onnx_graph "onnx-graph"
    ort_cache "ort-cache"
    profile "profile"
    recording "recording"
    experiment "experiment"
    steps_image "steps-image"
    steps_text "steps-text"
    steps_text_boxes "steps-text-boxes"
    steps_parameters "steps-parameters"
    http "http"
    grpc "grpc"
}
