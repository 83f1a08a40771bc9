//! How many of Gpulet's scenarios each way to plan shares carries, and how long a plan takes (Gpulet, section 3.2 and
//! figure 4): each of nine models at 0, 1 or 2 times a rate, on four GPUs, with times and slow-downs that were measured
//! on an H200.
//!
//! ```text
//! cargo run --release -p lab -- shares --every 10
//! ```

use lab::LabError;
use planner::shares::search::{ideal, search};
use planner::shares::{Interference, Measurements, SharePlan, SharedModel, Sharing, WHOLE, rivals};
use std::time::Instant;

/// The paper's models, and under which names their times are in the table.
const MODELS: [(&str, &str); 9] = [
    ("googlenet", "googlenet"),
    ("lenet", "lenet"),
    ("resnet50", "resnet50"),
    ("ssd_mobilenet", "ssd_mobilenet"),
    ("vgg16", "vgg16"),
    ("mnasnet1_0", "mnasnet1_0"),
    ("mobilenet_v2", "mobilenet_v2"),
    ("densenet", "densenet161"),
    ("bert_base", "bert_s14"),
];

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
    /// One of so many scenarios: the ideal takes a tenth of a second each.
    #[arg(long, default_value_t = 1)]
    every: usize,
}

struct Way {
    name: &'static str,
    plan: fn(&Sharing<'_>) -> Option<SharePlan>,
    /// Whether it knows what shares do to each other.
    knows: bool,
    planned: u32,
    holds: u32,
    seconds: f64,
}

pub(crate) fn run(args: &SharesArgs) -> Result<(), LabError> {
    let read = |path: &str| {
        std::fs::read_to_string(path).map_err(|error| LabError::Value(format!("{path} can't be read: {error}")))
    };
    let measured = Measurements::read(&read(&args.times)?, &read(&args.pairs)?).map_err(LabError::Value)?;
    let interference = measured.interference();
    let way = |name, knows, plan| Way { name, plan, knows, planned: 0, holds: 0, seconds: 0.0 };
    let mut ways = [
        way("squishy bin packing, whole GPUs", true, |sharing| rivals::squishy(sharing, WHOLE)),
        way("squishy bin packing, even halves", false, |sharing| rivals::squishy(sharing, WHOLE / 2)),
        way("greedy best fit", true, rivals::greedy),
        way("elastic, without interference", false, rivals::elastic),
        way("elastic", true, rivals::elastic),
        way("ours", true, search),
        way("ideal", true, ideal),
    ];
    let mut scenarios = 0;
    let all = 3_usize.pow(MODELS.len() as u32);
    for index in (1..all).step_by(args.every.max(1)) {
        scenarios += 1;
        let models = scenario(args, &measured, index)?;
        let sharing = Sharing { models: &models, gpus: args.gpus, interference: &interference };
        for way in &mut ways {
            let blind = Sharing { interference: &Interference::NONE, ..sharing };
            let begun = Instant::now();
            let plan = (way.plan)(if way.knows { &sharing } else { &blind });
            way.seconds += begun.elapsed().as_secs_f64();
            way.planned += u32::from(plan.is_some());
            way.holds += u32::from(plan.is_some_and(|plan| sharing.holds(&plan)));
        }
    }
    let ideal = f64::from(ways[ways.len() - 1].holds);
    println!("{scenarios} scenarios, {} GPUs, {} r/s, {} x l(8)\n", args.gpus, args.rate, args.slack);
    println!("| | planned | of them hold beside each other | of the ideal's | ms a plan |");
    println!("|---|---|---|---|---|");
    for Way { name, planned, holds, seconds, .. } in &ways {
        let (part, millis) = (f64::from(*holds) / ideal * 100.0, seconds * 1e3 / f64::from(scenarios));
        println!("| {name} | {planned} | {holds} | {part:.1} % | {millis:.2} |");
    }
    Ok(())
}

fn scenario(args: &SharesArgs, measured: &Measurements, index: usize) -> Result<Vec<SharedModel>, LabError> {
    let model = |(digit, (name, measured_as)): (u32, &(&str, &str))| {
        let times = measured.models.get(*measured_as).cloned();
        let times = times.ok_or_else(|| LabError::Value(format!("{} lacks model {measured_as:?}", args.times)))?;
        let rate = (index / 3_usize.pow(digit) % 3) as f64 * args.rate;
        Ok(SharedModel { name: (*name).to_owned(), rate, objective: args.slack * times.of(WHOLE, 8), times })
    };
    (0..).zip(&MODELS).map(model).collect()
}
