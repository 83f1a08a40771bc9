//! Symphony's experiment A.2: 800 models, 20 parts, 10 seconds. The imbalance factor of random assignments, of the
//! greedy one, of the solver alone, and of all stages; then the same after rates have changed, with a bounded cost of
//! change.

use lab::LabError;
use planner::placement::{
    ModelToPlace, Placement, PlacementEffort, PlacementProblem, Score, SolverEnding, Stage, place,
};
use std::time::{Duration, Instant};
use workload::Random;

/// The models of the paper's tables 3 and 4, with the parameters (in millions) that their authors publish: weights take
/// four bytes for each. The paper doesn't say how large its variants are; here each has 0.6 to 1.4 times the weights,
/// and needs 64 MiB and half of its weights more while it runs.
const ZOO: [(&str, f64); 37] = [
    ("BERT", 110.0),
    ("DenseNet121", 8.1),
    ("DenseNet169", 14.3),
    ("DenseNet201", 20.2),
    ("EfficientNetB0", 5.3),
    ("EfficientNetB1", 7.9),
    ("EfficientNetB2", 9.2),
    ("EfficientNetB3", 12.3),
    ("EfficientNetB4", 19.5),
    ("EfficientNetB5", 30.6),
    ("EfficientNetB6", 43.3),
    ("EfficientNetB7", 66.7),
    ("EfficientNetV2B0", 7.2),
    ("EfficientNetV2B1", 8.2),
    ("EfficientNetV2B2", 10.2),
    ("EfficientNetV2B3", 14.5),
    ("EfficientNetV2L", 119.0),
    ("EfficientNetV2M", 54.4),
    ("EfficientNetV2S", 21.6),
    ("InceptionResNetV2", 55.9),
    ("InceptionV3", 23.9),
    ("MobileNet", 4.3),
    ("MobileNetV2", 3.5),
    ("MobileNetV3Large", 5.4),
    ("MobileNetV3Small", 2.9),
    ("NASNetLarge", 88.9),
    ("NASNetMobile", 5.3),
    ("ResNet101", 44.7),
    ("ResNet101V2", 44.7),
    ("ResNet152", 60.4),
    ("ResNet152V2", 60.4),
    ("ResNet50", 25.6),
    ("ResNet50V2", 25.6),
    ("SSDMobilenet", 6.8),
    ("VGG16", 138.4),
    ("VGG19", 143.7),
    ("Xception", 22.9),
];

const MODELS: usize = 800;
const PARTS: usize = 20;
const MEAN_RATE_RPS: f64 = 100.0;

fn below(random: &mut Random, bound: usize) -> usize {
    random.below(bound as u32) as usize
}

/// Bounds that random assignments keep, too: else the baseline would have nothing to show.
fn draw(random: &mut Random) -> PlacementProblem {
    let model = |number: usize| {
        let (name, parameters) = ZOO[below(random, ZOO.len())];
        let bytes = parameters * 4e6 * (0.6 + 0.8 * random.unit());
        ModelToPlace {
            name: format!("{name}-{number}"),
            rate_rps: MEAN_RATE_RPS * random.exponential(),
            static_bytes: bytes as u64,
            dynamic_bytes: (bytes / 2.0) as u64 + (64 << 20),
            previous: None,
            change_cost: bytes / 1e6,
        }
    };
    let models: Vec<ModelToPlace> = (0..MODELS).map(model).collect();
    let rate: f64 = models.iter().map(|model| model.rate_rps).sum();
    let bytes: u64 = models.iter().map(|model| model.static_bytes).sum();
    PlacementProblem {
        models,
        parts: PARTS,
        max_rate_rps: Some(2.0 * rate / PARTS as f64),
        max_bytes: Some(2 * bytes / PARTS as u64),
        ..PlacementProblem::default()
    }
}

/// What is compared.
#[derive(Clone, Copy)]
struct Imbalance {
    rate: f64,
    memory: f64,
    cost: f64,
}

/// An assignment's imbalance factors and cost, if it keeps the bounds, and its objective.
fn judge(problem: &PlacementProblem, part_of: &[usize]) -> Option<(f64, Imbalance)> {
    let mut parts = vec![(0.0, 0_u64, 0_u64); problem.parts];
    let mut cost = 0.0;
    for (model, &part) in problem.models.iter().zip(part_of) {
        parts[part].0 += model.rate_rps;
        parts[part].1 += model.static_bytes;
        parts[part].2 = parts[part].2.max(model.dynamic_bytes);
        cost += match model.previous {
            Some(previous) if previous == part => 0.0,
            Some(_) => 2.0 * model.change_cost,
            None => model.change_cost,
        };
    }
    let holds = parts.iter().all(|&(rate, bytes, dynamic)| {
        problem.max_rate_rps.is_none_or(|most| rate <= most)
            && problem.max_bytes.is_none_or(|most| bytes + dynamic <= most)
    }) && problem.max_change_cost.is_none_or(|most| cost <= most);
    let spread = |of: &dyn Fn(&(f64, u64, u64)) -> f64| {
        let average = parts.iter().map(of).sum::<f64>() / parts.len() as f64;
        let highest = parts.iter().map(of).fold(f64::MIN, f64::max);
        let lowest = parts.iter().map(of).fold(f64::MAX, f64::min);
        ((highest - average).max(average - lowest) / average, (highest - lowest) / average)
    };
    let (rate_off, rate) = spread(&|part| part.0);
    let (memory_off, memory) = spread(&|part| part.1 as f64);
    holds.then_some((rate_off + problem.memory_weight * memory_off, Imbalance { rate, memory, cost }))
}

/// The paper's baseline: random assignments until the time is over; the best that keeps the bounds counts. Where models
/// are somewhere, random ones move, as many as the bound on changes allows.
fn best_random(problem: &PlacementProblem, random: &mut Random, time: Duration) -> (Option<Imbalance>, u64) {
    let began = Instant::now();
    let mut best: Option<(f64, Imbalance)> = None;
    let mut tried = 0;
    while began.elapsed() < time {
        let mut left = problem.max_change_cost.unwrap_or(f64::INFINITY);
        let mut part_of: Vec<usize> =
            problem.models.iter().map(|model| model.previous.unwrap_or_else(|| below(random, problem.parts))).collect();
        if problem.max_change_cost.is_some() {
            loop {
                let model = below(random, part_of.len());
                left -= 2.0 * problem.models[model].change_cost;
                if left < 0.0 {
                    break;
                }
                part_of[model] = below(random, problem.parts);
            }
        }
        if let Some((objective, imbalance)) = judge(problem, &part_of)
            && best.is_none_or(|(least, _)| objective < least)
        {
            best = Some((objective, imbalance));
        }
        tried += 1;
    }
    (best.map(|(_, imbalance)| imbalance), tried)
}

fn of_score(score: Score) -> Imbalance {
    Imbalance { rate: score.rate_imbalance, memory: score.memory_imbalance, cost: score.change_cost }
}

fn show(name: &str, imbalance: Option<Imbalance>, note: &str) {
    match imbalance {
        Some(Imbalance { rate, memory, cost }) => {
            println!("| {name} | {rate:.6} | {memory:.6} | {cost:.0} | {note} |");
        }
        None => println!("| {name} | - | - | - | {note} |"),
    }
}

fn solve(problem: &PlacementProblem, effort: &PlacementEffort) -> Result<Placement, String> {
    place(problem, effort, &mut |_| {}).map_err(|error| error.to_string())
}

/// The objective after each stage, and how the solver ended.
fn stages(placement: &Placement) -> String {
    let stage = |report: &planner::placement::StageReport| {
        let reached = report.score.map_or("nothing".to_owned(), |score| format!("{:.6}", score.objective));
        format!("{} {reached} in {:.2} s", report.stage.name(), report.took.as_secs_f64())
    };
    let all: Vec<String> = placement.stages.iter().map(stage).collect();
    let ending = match placement.ending {
        SolverEnding::Optimal => "optimal",
        SolverEnding::TimeLimit => "time limit",
        SolverEnding::Nothing => "no assignment",
    };
    format!("{}; solver: {ending}; from {}", all.join(", "), placement.from.name())
}

/// Random, greedy, the solver alone, all stages.
fn compare(problem: &PlacementProblem, random: &mut Random, time: Duration) -> Result<Placement, String> {
    let (baseline, tried) = best_random(problem, random, time);
    show("random", baseline, &format!("{tried} tried"));
    let alone = solve(problem, &PlacementEffort { time_limit: time, start: false, polish: false })?;
    let all = solve(problem, &PlacementEffort { time_limit: time, ..PlacementEffort::default() })?;
    let reached = |placement: &Placement, stage: Stage| {
        let report = placement.stages.iter().find(|report| report.stage == stage);
        report.and_then(|report| report.score).map(of_score)
    };
    show("greedy", reached(&all, Stage::Greedy), "");
    show("greedy and exchanges", reached(&all, Stage::Start), "");
    show("solver alone", reached(&alone, Stage::Solver), &stages(&alone));
    show("all stages", Some(of_score(all.score)), &stages(&all));
    Ok(all)
}

/// Compares the ways on so many problems, with so many seconds for each way.
pub(super) fn compare_all(seeds: u64, seconds: u64) -> Result<(), LabError> {
    (1..=seeds).try_for_each(|seed| compare_twice(seed, seconds)).map_err(LabError::Value)
}

const HEADINGS: &str =
    "| how | rate: (max - min) / avg | memory: (max - min) / avg | cost of changes | |\n|---|---|---|---|---|";

/// A first placement, and one after every rate was halved, doubled or something between: a tenth of all weights may be
/// loaded and unloaded then.
fn compare_twice(seed: u64, seconds: u64) -> Result<(), String> {
    let (mut random, time) = (Random::new(seed, 0), Duration::from_secs(seconds));
    let mut problem = draw(&mut random);
    println!("\nseed {seed}: {MODELS} models, {PARTS} parts, {seconds} s\n\n{HEADINGS}");
    let first = compare(&problem, &mut random, time)?;
    let everything: f64 = problem.models.iter().map(|model| 2.0 * model.change_cost).sum();
    for (model, &part) in problem.models.iter_mut().zip(&first.part_of) {
        model.previous = Some(part);
        model.rate_rps *= (2.0 * random.unit() - 1.0).exp2();
    }
    problem.max_change_cost = Some(everything / 10.0);
    let rate: f64 = problem.models.iter().map(|model| model.rate_rps).sum();
    problem.max_rate_rps = Some(2.0 * rate / PARTS as f64);
    println!("\nseed {seed}, rates changed, changes may cost {:.0}\n\n{HEADINGS}", everything / 10.0);
    show("nothing moves", judge(&problem, &first.part_of).map(|(_, imbalance)| imbalance), "");
    compare(&problem, &mut random, time).map(|_| ())
}
