//! How many of Gpulet's scenarios each way to plan shares carries, and how long a plan takes (Gpulet, section 3.2 and
//! figure 4): each of nine models at 0, 1 or 2 times a rate, on four GPUs, with times and slow-downs that were measured
//! on an H200. By cycles, and for a part of them by simulation.
//!
//! ```text
//! cargo run --release -p lab -- shares --sample 2000 --simulate-every 50
//! ```

use lab::shares::{Divider, bad_part};
use lab::{LabError, parallel};
use planner::shares::pools::pools;
use planner::shares::{Arrangement, Measurements, SharePlan, SharedModel, Sharing, Way, gpulet};
use std::time::Instant;
use workload::Random;

/// A plan is made so often, and the least time counts: others have the machine, too.
const TIMES: usize = 3;

/// Schedulable: at most this part of the requests isn't in time.
const MAX_BAD: f64 = 0.01;

#[derive(clap::Args)]
pub(crate) struct SharesArgs {
    /// The table of times.
    #[arg(long, default_value = "experiments/data/h200_shares.csv")]
    times: String,
    /// The table of pairs.
    #[arg(long, default_value = "experiments/data/h200_pairs.csv")]
    pairs: String,
    /// Requests a second of a model at 1; the paper has 100, on GPUs that are some twenty times slower.
    #[arg(long, default_value_t = 2_000.0)]
    rate: f64,
    /// Objectives: so many times what a batch of eight takes in a whole GPU. The paper's are twice what a batch of 32
    /// takes on its GPUs.
    #[arg(long, default_value_t = 3.0)]
    slack: f64,
    /// GPUs.
    #[arg(long, default_value_t = 4)]
    gpus: usize,
    /// So many of the scenarios, drawn by the seed; 0: all.
    #[arg(long, default_value_t = 0)]
    sample: usize,
    /// What they are drawn by.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of these, the first and then one of so many are also simulated; 0: none.
    #[arg(long, default_value_t = 0)]
    simulate_every: usize,
    /// Seconds that are simulated of each.
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Leaves the ideal out, which takes most of the time.
    #[arg(long)]
    without_ideal: bool,
}

/// What became of one scenario, for each row of the table.
#[derive(Clone, Default)]
struct Counted {
    planned: bool,
    holds: bool,
    seconds: f64,
    /// Whether it was in time by simulation, where that was tried.
    in_time: Option<bool>,
}

/// A row of the table.
enum Row {
    Way(Way),
    Pools,
    Whole,
}

impl Row {
    fn title(&self) -> &'static str {
        match self {
            Self::Way(way) => way.title(),
            Self::Pools => "pools",
            Self::Whole => "`punctual` on whole GPUs",
        }
    }

    fn count(&self, args: &SharesArgs, sharing: &Sharing<'_>, simulate: bool) -> Result<Counted, LabError> {
        let (mut plan, mut seconds) = (None::<SharePlan>, f64::INFINITY);
        for _ in 0..TIMES {
            let begun = Instant::now();
            match self {
                Self::Way(way) => plan = way.plan(sharing),
                Self::Pools => drop(std::hint::black_box(pools(sharing))),
                Self::Whole => {}
            }
            seconds = seconds.min(begun.elapsed().as_secs_f64());
        }
        let holds = plan.as_ref().is_some_and(|plan| sharing.holds(plan));
        let arrangement = |plan: &SharePlan| Arrangement::of(plan, sharing.gpus, sharing.models.len(), None);
        let in_time = |arrangement| Ok::<_, LabError>(bad_part(sharing, arrangement, args.seconds)? <= MAX_BAD);
        let in_time = match (self, &plan) {
            _ if !simulate => None,
            // With all GPUs, and what they could carry: what is left is room for chance.
            (Self::Way(_), None) => Some(false),
            (Self::Way(way), Some(plan)) => {
                let roomy = Divider::Planned(*way).arrangement(sharing);
                Some(in_time(Some(roomy))? || in_time(Some(arrangement(plan)))?)
            }
            (Self::Pools, _) => Some(in_time(Some(Divider::Pools.arrangement(sharing)))?),
            (Self::Whole, _) => Some(in_time(None)?),
        };
        Ok(Counted { planned: plan.is_some(), holds, seconds, in_time })
    }
}

pub(crate) fn run(args: &SharesArgs) -> Result<(), LabError> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|error| LabError::Value(format!("{path} can't be read: {error}")))
    };
    let measured = Measurements::read(&read(&args.times)?, &read(&args.pairs)?).map_err(LabError::Value)?;
    let interference = measured.interference();
    let ways = Way::ALL.into_iter().filter(|way| *way != Way::Ideal || !args.without_ideal).map(Row::Way);
    let rows: Vec<Row> = ways.chain([Row::Pools, Row::Whole]).collect();
    let scenarios = scenarios(args);
    let counted = parallel(scenarios.len(), |place| {
        let models: Vec<SharedModel> =
            gpulet::scenario(&measured, args.slack, scenarios[place], args.rate).map_err(LabError::Value)?;
        let sharing = Sharing { models: &models, gpus: args.gpus, interference: &interference, gap: 0.0 };
        let simulate = args.simulate_every > 0 && place.is_multiple_of(args.simulate_every);
        rows.iter().map(|row| row.count(args, &sharing, simulate)).collect::<Result<Vec<_>, _>>()
    });
    let counted = counted.into_iter().collect::<Result<Vec<_>, _>>()?;
    show(args, &rows, &counted);
    Ok(())
}

/// Scenarios that differ, in the order in which they are drawn.
fn scenarios(args: &SharesArgs) -> Vec<usize> {
    let mut all: Vec<usize> = (1..gpulet::SCENARIOS).collect();
    if args.sample > 0 {
        let mut random = Random::new(args.seed, 0);
        for place in 0..all.len() {
            let left = (all.len() - place) as u32;
            all.swap(place, place + random.below(left) as usize);
        }
        all.truncate(args.sample);
    }
    all
}

fn show(args: &SharesArgs, rows: &[Row], counted: &[Vec<Counted>]) {
    let simulated = counted.iter().filter(|row| row[0].in_time.is_some()).count();
    let count = |row: usize, of: fn(&Counted) -> bool| counted.iter().filter(|all| of(&all[row])).count();
    let ideal = rows.iter().position(|row| matches!(row, Row::Way(Way::Ideal)));
    let ideal = ideal.map(|row| count(row, |counted| counted.holds));
    println!(
        "{} scenarios, {simulated} of them simulated, {} GPUs, {} r/s, {} x l(8)\n",
        counted.len(),
        args.gpus,
        args.rate,
        args.slack
    );
    println!("| | planned | of them hold beside each other | of the ideal's | in time by simulation | ms a plan |");
    println!("|---|---|---|---|---|---|");
    for (index, row) in rows.iter().enumerate() {
        let (planned, holds) = (count(index, |counted| counted.planned), count(index, |counted| counted.holds));
        let in_time = count(index, |counted| counted.in_time == Some(true));
        let millis = counted.iter().map(|all| all[index].seconds).sum::<f64>() * 1e3 / counted.len().max(1) as f64;
        let part = ideal.map_or("-".to_owned(), |ideal| format!("{:.1} %", holds as f64 / ideal.max(1) as f64 * 100.0));
        let by_cycles = match row {
            Row::Way(_) => format!("{planned} | {holds} | {part}"),
            Row::Pools | Row::Whole => "- | - | -".to_owned(),
        };
        println!("| {} | {by_cycles} | {in_time} | {millis:.2} |", row.title());
    }
}
