//! How long the priority queue of `orloj` takes: insert, delete and query with 10 to 100,000 requests pending.
//!
//! ```text
//! cargo run --release -p lab -- hull                 # wall time
//! valgrind --tool=callgrind --toggle-collect='*hull::measured*' target/release/lab hull convex 10000 insert
//! ```
//!
//! With three arguments it does 10,000 operations of one kind on one kind of points, inside of functions that nothing
//! is inlined into: the instructions that callgrind counts below them, divided by 10,000, are those of one operation.
//!
//! Two kinds of points. *requests*: what a queue of `orloj` holds, deadlines within a minute, each request somewhere
//! among its milestones; few of them are corners of the hull. *convex*: all of them are corners, the worst that can be.

use clap::ValueEnum;
use scheduler::hull::{Hull, Point};
use std::hint::black_box;
use std::time::Instant;
use workload::Random;

const OPERATIONS: usize = 10_000;
const SIZES: [usize; 5] = [10, 100, 1_000, 10_000, 100_000];

#[derive(clap::Args)]
pub(crate) struct HullArgs {
    /// Of which points; without arguments a table of everything.
    #[arg(requires = "operation")]
    points: Option<Points>,
    /// How many are pending.
    pending: Option<usize>,
    /// What is measured.
    operation: Option<Operation>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Points {
    /// What a queue of `orloj` holds.
    Requests,
    /// All of them corners of the hull.
    Convex,
}

#[derive(Clone, Copy, ValueEnum)]
enum Operation {
    Insert,
    Delete,
    Query,
}

pub(crate) fn run(args: &HullArgs) {
    match (args.points, args.pending, args.operation) {
        (Some(points), Some(pending), Some(operation)) => println!("{:.3} us", measure(points, pending, operation)),
        _ => table(),
    }
}

fn table() {
    println!("points    pending   insert us   delete us   query us");
    for (kind, name) in [(Points::Requests, "requests"), (Points::Convex, "convex")] {
        for size in SIZES {
            let operations = [Operation::Insert, Operation::Delete, Operation::Query];
            let [insert, delete, query] = operations.map(|operation| measure(kind, size, operation));
            println!("{name:9} {size:7} {insert:11.3} {delete:11.3} {query:10.3}");
        }
    }
}

/// Microseconds of one operation, half of the time.
fn measure(kind: Points, size: usize, operation: Operation) -> f64 {
    let mut random = Random::new(1, size as u64);
    let points: Vec<Point> = (0..size + OPERATIONS).map(|id| point(kind, id as u64, &mut random)).collect();
    let slopes: Vec<f64> = (0..OPERATIONS).map(|_| slope(kind, &mut random)).collect();
    let mut hull = Hull::default();
    points[..size].iter().for_each(|&point| hull.insert(point));
    let mut spent = Vec::with_capacity(OPERATIONS);
    // One in and one out by turns: the queue keeps its size, and only one of them is counted.
    for index in 0..OPERATIONS {
        let (new, old) = (points[size + index], points[index]);
        match operation {
            Operation::Insert => {
                spent.push(timed(|| measured_insert(&mut hull, new)));
                hull.remove(old);
            }
            Operation::Delete => {
                hull.insert(new);
                spent.push(timed(|| measured_delete(&mut hull, old)));
            }
            Operation::Query => {
                let slope = slopes[index];
                spent.push(timed(|| measured_query(&hull, slope)));
            }
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

fn point(kind: Points, id: u64, random: &mut Random) -> Point {
    let (x, y) = match kind {
        Points::Requests => {
            let (deadline, length) = (60_000.0 * random.unit(), 10.0 + 90.0 * random.unit());
            let passed = (2.0 * random.unit() - 1.0).max(0.0);
            let scale = 1.0 / (B * length);
            let now = (-B * deadline).exp();
            (
                scale * now * ((1.0 - passed) * ((B * length).exp() - 1.0) - passed * (B * length / 2.0).exp()),
                scale * passed,
            )
        }
        Points::Convex => {
            let x = random.unit();
            (x, -x * x)
        }
    };
    Point { x, y, id }
}

fn slope(kind: Points, random: &mut Random) -> f64 {
    match kind {
        Points::Requests => (B * 60_000.0 * random.unit()).exp(),
        Points::Convex => 2.0 * random.unit(),
    }
}
