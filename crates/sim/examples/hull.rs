//! How long the priority queue of `orloj` takes: insert, delete and query with 10 to 100,000 requests pending.
//!
//! ```text
//! cargo run --release -p sim --example hull                 # wall time
//! cargo build --release -p sim --example hull
//! valgrind --tool=callgrind --toggle-collect='hull::measured*' target/release/examples/hull convex 10000 insert
//! ```
//!
//! With three arguments it does 10,000 operations of one kind on one kind of points, inside of functions that nothing is inlined into:
//! the instructions that callgrind counts below them, divided by 10,000, are those of one operation.
//!
//! Two kinds of points. *requests*: what a queue of `orloj` holds, deadlines within a minute, each request somewhere among
//! its milestones; few of them are corners of the hull. *convex*: all of them are corners, the worst that can be.

use scheduler::hull::{Hull, Point};
use std::hint::black_box;
use std::time::Instant;
use workload::Random;

const OPERATIONS: usize = 10_000;
const SIZES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.as_slice() {
        [kind, size, what] => {
            let size = size.parse().expect("the second argument is how many requests are pending");
            println!("{:.3} us", measure(kind, size, what));
        }
        _ => table(),
    }
}

fn table() {
    println!("points    pending   insert us   delete us   query us");
    for kind in ["requests", "convex"] {
        for size in SIZES {
            let [insert, delete, query] = ["insert", "delete", "query"].map(|what| measure(kind, size, what));
            println!("{kind:9} {size:7} {insert:11.3} {delete:11.3} {query:10.3}");
        }
    }
}

/// Microseconds of one operation, half of the time.
fn measure(kind: &str, size: usize, what: &str) -> f64 {
    let mut random = Random::new(1, size as u64);
    let points: Vec<Point> = (0..size + OPERATIONS).map(|id| point(kind, id as u64, &mut random)).collect();
    let slopes: Vec<f64> = (0..OPERATIONS).map(|_| slope(kind, &mut random)).collect();
    let mut hull = Hull::default();
    points[..size].iter().for_each(|&point| hull.insert(point));
    let mut spent = Vec::with_capacity(OPERATIONS);
    // One in and one out by turns: the queue keeps its size, and only one of them is counted.
    for index in 0..OPERATIONS {
        let (new, old) = (points[size + index], points[index]);
        match what {
            "insert" => {
                spent.push(timed(|| measured_insert(&mut hull, new)));
                hull.remove(old);
            }
            "delete" => {
                hull.insert(new);
                spent.push(timed(|| measured_delete(&mut hull, old)));
            }
            "query" => {
                let slope = slopes[index];
                spent.push(timed(|| measured_query(&hull, slope)));
            }
            other => panic!("{other:?} is none of insert, delete, query"),
        }
    }
    // The median: others use the machine too.
    spent.sort_by(f64::total_cmp);
    spent[OPERATIONS / 2] * 1e6
}

fn timed(operation: impl FnOnce()) -> f64 {
    let began = Instant::now();
    operation();
    began.elapsed().as_secs_f64()
}

#[inline(never)]
fn measured_insert(hull: &mut Hull, point: Point) {
    black_box(hull).insert(point);
}

#[inline(never)]
fn measured_delete(hull: &mut Hull, point: Point) {
    black_box(hull).remove(point);
}

#[inline(never)]
fn measured_query(hull: &Hull, slope: f64) {
    black_box(black_box(hull).best(slope));
}

/// The anticipated delay's rate, per millisecond, as in the paper.
const B: f64 = 1e-4;

fn point(kind: &str, id: u64, random: &mut Random) -> Point {
    let (x, y) = match kind {
        "requests" => {
            let (deadline, length) = (60_000.0 * random.unit(), 10.0 + 90.0 * random.unit());
            let passed = (2.0 * random.unit() - 1.0).max(0.0);
            let scale = 1.0 / (B * length);
            let now = (-B * deadline).exp();
            (
                scale * now * ((1.0 - passed) * ((B * length).exp() - 1.0) - passed * (B * length / 2.0).exp()),
                scale * passed,
            )
        }
        "convex" => {
            let x = random.unit();
            (x, -x * x)
        }
        other => panic!("{other:?} is neither requests nor convex"),
    };
    Point { x, y, id }
}

fn slope(kind: &str, random: &mut Random) -> f64 {
    match kind {
        "requests" => (B * 60_000.0 * random.unit()).exp(),
        _ => 2.0 * random.unit(),
    }
}
