//! What selection among models gains, in figures: regret under drift, how soon a model that turned bad is left, Exp4
//! beside its members, an ensemble at a deadline.
//!
//! Classifiers are made up: each is right with a known probability and wrong in a known way, so that what comes out can
//! be compared with what must.
//!
//! ```text
//! cargo run --release -p lab -- selection --page docs/experiments/selection.md --commit "commit $(git rev-parse --short HEAD)"
//! ```

use base::DataType;
use lab::LabError;
use selection::{
    AnswerBy, Answered, Ballot, CombineBy, Exp3Table, Exp4Table, Judge, JudgedTable, Learner, Learning, Reads, Shown,
    Truth, combine,
};
use std::fmt::Write;
use std::path::PathBuf;
use workload::Random;

/// The part of requests on which five models err, after Clipper's figure 8: the last is the best.
const ERRORS: [f64; 5] = [0.40, 0.35, 0.30, 0.25, 0.15];
/// What the best errs while it is broken.
const BROKEN: f64 = 0.60;
const CLASSES: u32 = 10;
const REQUESTS: usize = 20_000;
const JUDGE: Judge = Judge { output: 0, reads: Reads::Labels, classes: Some(CLASSES as usize) };

#[derive(clap::Args)]
pub(crate) struct SelectionArgs {
    /// Where the page is written to, its plot beside it; otherwise the page is printed.
    #[arg(long)]
    page: Option<PathBuf>,
    /// What the page says that it is of.
    #[arg(long, default_value = "an unknown commit")]
    commit: String,
    /// Runs with different numbers behind each mean.
    #[arg(long, default_value_t = 20)]
    seeds: u64,
}

pub(crate) fn run(args: &SelectionArgs) -> Result<(), LabError> {
    let mut page = String::new();
    let write = |page: &mut String, text: String| {
        page.push_str(&text);
        page.push('\n');
    };
    write(
        &mut page,
        format!(
            "# Selection among models\n\nWritten by `cargo run --release -p lab -- selection --page docs/experiments/selection.md`, of {}. {} runs behind each mean.\nClassifiers are made up: ten classes, each right with a known probability and else wrong with any of the others. What selects is the server's own crate `selection`.\n",
            args.commit, args.seeds
        ),
    );
    write(&mut page, drift(args));
    let (broken, plot) = broken(args);
    write(&mut page, broken);
    write(&mut page, settings(args));
    write(&mut page, held_out(args));
    write(&mut page, at_a_deadline(args));
    let Some(path) = &args.page else {
        print!("{page}");
        return Ok(());
    };
    let put = |path: PathBuf, text: &str| {
        std::fs::write(&path, text)
            .map_err(|error| LabError::Value(format!("{} can't be written: {error}", path.display())))
    };
    put(path.with_file_name("selection-broken.svg"), &plot)?;
    put(path.clone(), &page)
}

/// How a run goes by: what each model errs at each request.
struct World {
    name: &'static str,
    error: fn(usize, usize) -> f64,
}

const STILL: World = World { name: "nothing changes", error: |_, model| ERRORS[model] };
const BREAKS: World = World {
    name: "the best breaks for a quarter, from 5,000 to 10,000",
    error: |request, model| if model == 4 && (5_000..10_000).contains(&request) { BROKEN } else { ERRORS[model] },
};
const PERFECT: World = World {
    name: "one never errs, and from 10,000 on on 60 %",
    error: |request, model| match model {
        4 => f64::from(u8::from(request >= 10_000)) * BROKEN,
        _ => ERRORS[model],
    },
};
const TURNS: World = World {
    name: "another is the best every 4,000",
    error: |request, model| ERRORS[(model + request / 4_000) % ERRORS.len()],
};
const DRIFTS: World = World {
    name: "errors drift past each other, slowly",
    error: |request, model| {
        let phase = request as f64 / REQUESTS as f64 + model as f64 / ERRORS.len() as f64;
        0.3 - 0.2 * libm::cos(2.0 * std::f64::consts::PI * phase)
    },
};

/// A way to choose one model for each request.
enum Chooser {
    Exp3(Box<Learner>),
    /// The best so far, and another now and then.
    Greedy {
        part: f64,
        seen: [(f64, f64); ERRORS.len()],
    },
}

fn exp3(learning: Learning) -> Chooser {
    Chooser::Exp3(Box::new(Learner::exp3(&Exp3Table {
        members: vec![String::new(); ERRORS.len()],
        by: None,
        contexts: 0,
        rate: learning.rate,
        share: learning.share,
        judged: JudgedTable::default(),
    })))
}

fn greedy() -> Chooser {
    Chooser::Greedy { part: 0.1, seen: [(0.0, 0.0); ERRORS.len()] }
}

impl Chooser {
    fn choose(&mut self, random: &mut Random) -> (usize, f64) {
        match self {
            Self::Exp3(learner) => {
                let chosen = learner.choose(None, random.unit());
                (chosen.member, chosen.probability)
            }
            Self::Greedy { part, seen } => {
                let mean = |&(sum, count): &(f64, f64)| sum / f64::max(count, 1.0);
                let best = (0..seen.len()).min_by(|&l, &r| mean(&seen[l]).total_cmp(&mean(&seen[r]))).unwrap_or(0);
                let any = random.below(seen.len() as u32) as usize;
                (if random.chance(*part) { any } else { best }, 1.0)
            }
        }
    }

    fn learn(&mut self, member: usize, probability: f64, loss: f64) {
        match self {
            Self::Exp3(learner) => {
                let mut said = vec![None; ERRORS.len()];
                said[member] = Some(vec![0].into());
                let answered = Answered {
                    context: None,
                    chosen: Some(member),
                    probability,
                    said,
                    answer: vec![0].into(),
                    missing: Vec::new(),
                };
                learner.learn(None, &answered, &Truth::Loss(loss)).expect("a loss that is one");
            }
            Self::Greedy { seen, .. } => seen[member] = (seen[member].0 + loss, seen[member].1 + 1.0),
        }
    }
}

/// What was lost in a run: by who chose, by each model, by who always knew the best; and what was lost by whom when.
struct Lost {
    chooser: f64,
    models: [f64; ERRORS.len()],
    oracle: f64,
    by_request: Vec<f64>,
}

/// `delay` requests pass before feedback comes, and so great a part of it never does.
fn play(world: &World, mut chooser: Chooser, seed: u64, (delay, missing): (usize, f64)) -> Lost {
    let mut random = Random::new(seed, 1);
    let mut lost = Lost { chooser: 0.0, models: [0.0; ERRORS.len()], oracle: 0.0, by_request: Vec::new() };
    let mut waiting = std::collections::VecDeque::new();
    for request in 0..REQUESTS {
        let errors: [f64; ERRORS.len()] = std::array::from_fn(|model| (world.error)(request, model));
        let (member, probability) = chooser.choose(&mut random);
        let loss = f64::from(u8::from(random.chance(errors[member])));
        // What is expected, not what fell: less noise in the figures.
        lost.chooser += errors[member];
        lost.by_request.push(errors[member]);
        lost.models.iter_mut().zip(errors).for_each(|(sum, error)| *sum += error);
        lost.oracle += errors.iter().copied().fold(f64::INFINITY, f64::min);
        if !random.chance(missing) {
            waiting.push_back((request, member, probability, loss));
        }
        while waiting.front().is_some_and(|(asked, ..)| asked + delay <= request) {
            if let Some((_, member, probability, loss)) = waiting.pop_front() {
                chooser.learn(member, probability, loss);
            }
        }
    }
    lost
}

/// Means over seeds: the chooser's regret against the best fixed model and against who always knew, in per cent of
/// requests.
fn regret(
    world: &World,
    chooser: impl Fn() -> Chooser,
    args: &SelectionArgs,
    feedback: (usize, f64),
) -> (f64, f64, f64) {
    let mut sums = (0.0, 0.0, 0.0);
    for seed in 0..args.seeds {
        let lost = play(world, chooser(), seed, feedback);
        let best = lost.models.into_iter().fold(f64::INFINITY, f64::min);
        sums = (sums.0 + lost.chooser, sums.1 + lost.chooser - best, sums.2 + lost.chooser - lost.oracle);
    }
    let scale = 100.0 / (args.seeds as f64 * REQUESTS as f64);
    (sums.0 * scale, sums.1 * scale, sums.2 * scale)
}

const UNSHARED: Learning = Learning { share: 0.0, ..Learning::DEFAULT };

fn drift(args: &SelectionArgs) -> String {
    let mut text = format!(
        "## Regret under drift\n\nFive models err on 40, 35, 30, 25 and 15 % of {REQUESTS} requests; feedback is whether the answer was wrong. Per cent of requests: what is lost, what of that the best fixed model wouldn't have lost (below 0: better than any fixed model), and what who always knew the best model wouldn't have lost.\nWithout share no weight is dealt out evenly; exploration and the floor of weights are as they are. Greedy asks any model every tenth time, and else the one with the lowest mean so far.\n\n| world | chosen by | lost | against the best fixed | against who knew |\n| --- | --- | ---: | ---: | ---: |\n"
    );
    for world in [&STILL, &BREAKS, &PERFECT, &TURNS, &DRIFTS] {
        let rows = [
            ("exp3, as it is", regret(world, || exp3(Learning::DEFAULT), args, (0, 0.0))),
            (
                "exp3, feedback after 200 requests, a third never",
                regret(world, || exp3(Learning::DEFAULT), args, (200, 0.33)),
            ),
            ("exp3 without share", regret(world, || exp3(UNSHARED), args, (0, 0.0))),
            ("greedy", regret(world, greedy, args, (0, 0.0))),
        ];
        for (name, (lost, fixed, knew)) in rows {
            let _ = writeln!(text, "| {} | {name} | {lost:.2} | {fixed:+.2} | {knew:+.2} |", world.name);
        }
    }
    text
}

/// Requests until the chance of the broken model is below a tenth, the worst and the mean of all seeds; `None` where it
/// never is in time.
fn requests_to_leave(learning: Learning, seeds: u64, (good_for, good): (usize, f64)) -> Option<(usize, f64)> {
    let mut worst = 0;
    let mut sum = 0;
    for seed in 0..seeds {
        let mut random = Random::new(seed, 3);
        let mut chooser = exp3(learning);
        let mut feed = |chooser: &mut Chooser, best: f64| {
            let (member, probability) = chooser.choose(&mut random);
            let error = if member == 4 { best } else { ERRORS[member] };
            let loss = f64::from(u8::from(random.chance(error)));
            chooser.learn(member, probability, loss);
        };
        (0..good_for).for_each(|_| feed(&mut chooser, good));
        let mut requests = 0;
        while matches!(&chooser, Chooser::Exp3(learner) if learner.shared()[4] > 0.1) {
            feed(&mut chooser, BROKEN);
            requests += 1;
            if requests > 100_000 {
                return None;
            }
        }
        worst = worst.max(requests);
        sum += requests;
    }
    Some((worst, sum as f64 / seeds as f64))
}

fn left(found: Option<(usize, f64)>) -> String {
    found.map_or("never in 100,000".to_owned(), |(worst, mean)| format!("{mean:.0} (at most {worst})"))
}

fn broken(args: &SelectionArgs) -> (String, String) {
    let mut text = "## A model that turns bad (Clipper, figure 8)\n\nThe best of the five errs on 60 % instead of 15 %, or of none. Requests until it is asked less than every tenth time, the mean and the worst of all runs:\n\n| before, it erred on | for | exp3, as it is | exp3 without share |\n| ---: | ---: | ---: | ---: |\n".to_owned();
    for (good, good_for) in [(ERRORS[4], 1_000), (ERRORS[4], 50_000), (0.0, 1_000), (0.0, 50_000)] {
        let of = |learning| left(requests_to_leave(learning, args.seeds, (good_for, good)));
        let (as_it_is, unshared) = (of(Learning::DEFAULT), of(UNSHARED));
        let _ = writeln!(text, "| {:.0} % | {good_for} requests | {as_it_is} | {unshared} |", 100.0 * good);
    }
    text.push_str("\nIt breaks at 5,000 and is whole again at 10,000; the part of requests that is lost, in windows of 500:\n\n![A model breaks and is whole again](selection-broken.svg)\n");
    let window = 500;
    let line = |label: &str, by_request: &dyn Fn(u64) -> Vec<f64>| {
        let mut means = vec![0.0; REQUESTS / window];
        for seed in 0..args.seeds {
            for (mean, losses) in means.iter_mut().zip(by_request(seed).chunks(window)) {
                *mean += 100.0 * losses.iter().sum::<f64>() / (window as f64 * args.seeds as f64);
            }
        }
        let points = means.into_iter().enumerate().map(|(at, mean)| (((at + 1) * window) as f64, mean)).collect();
        (label.to_owned(), points)
    };
    let of = |learning| move |seed| play(&BREAKS, exp3(learning), seed, (0, 0.0)).by_request;
    let lines = [
        line("exp3", &of(Learning::DEFAULT)),
        line("exp3 without share", &of(UNSHARED)),
        line("greedy", &|seed| play(&BREAKS, greedy(), seed, (0, 0.0)).by_request),
        line("the best model alone", &|_| (0..REQUESTS).map(|request| (BREAKS.error)(request, 4)).collect()),
        line("the second alone", &|_| vec![ERRORS[3]; REQUESTS]),
    ];
    (text, lab::line_chart("A model breaks and is whole again", "requests", "lost (%)", lines))
}

fn settings(args: &SelectionArgs) -> String {
    let mut text = "## Why rate and share are what they are\n\nLost against who always knew the best, in per cent of requests, and how soon the broken model is left after 5,000 requests.\n\n| rate | share | nothing changes | breaks | perfect | turns | drifts | left after |\n| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n".to_owned();
    for rate in [0.02, 0.05, 0.1, 0.2] {
        for share in [0.0, 0.00001, 0.0001, 0.001, 0.01] {
            let learning = Learning { rate, share };
            let _ = write!(text, "| {rate} | {share} |");
            for world in [&STILL, &BREAKS, &PERFECT, &TURNS, &DRIFTS] {
                let _ = write!(text, " {:.2} |", regret(world, || exp3(learning), args, (0, 0.0)).2);
            }
            let _ = writeln!(text, " {} |", left(requests_to_leave(learning, args.seeds, (5_000, ERRORS[4]))));
        }
    }
    text
}

/// What classifiers say of one example: each is right with its probability, and else says any other class. With
/// `together`, so great a part of the errors are those of all: hard examples are hard for everybody.
fn says(random: &mut Random, truth: u8, errors: &[f64], together: f64) -> Vec<[u8; 1]> {
    let (common, mistaken) = (random.unit(), (truth + 1 + random.below(CLASSES - 1) as u8) % CLASSES as u8);
    let one = |&error: &f64| {
        let is_common = random.chance(together);
        let wrong = if is_common { common < error } else { random.chance(error) };
        match wrong {
            false => [truth],
            true if is_common => [mistaken],
            true => [(truth + 1 + random.below(CLASSES - 1) as u8) % CLASSES as u8],
        }
    };
    errors.iter().map(one).collect()
}

fn shown(says: &[u8; 1]) -> Shown<'_> {
    Shown { datatype: DataType::Uint8, shape: &[1], data: says }
}

fn held_out(args: &SelectionArgs) -> String {
    let mut text = "## Exp4 beside its members\n\nWeights are learnt from the true labels of 5,000 examples; then 20,000 others are answered without any feedback. In the second world half of the errors are made by all together; in the third each user has a model that knows them (15 %) and four that don't (40 %), and weights are by user. Per cent of the held-out examples that are answered right:\n\n| world | best member | plain vote | exp4 | exp4, drawn |\n| --- | ---: | ---: | ---: | ---: |\n".to_owned();
    for (name, together, by_user) in [
        ("errors are each model's own", 0.0, false),
        ("half of the errors are common", 0.5, false),
        ("models for users", 0.0, true),
    ] {
        let mut right = [0.0; 4];
        for seed in 0..args.seeds {
            let one = held_out_once(seed, together, by_user);
            right.iter_mut().zip(one).for_each(|(sum, one)| *sum += one / args.seeds as f64);
        }
        let [best, vote, exp4, drawn] = right.map(|right| 100.0 * right);
        let _ = writeln!(text, "| {name} | {best:.2} | {vote:.2} | **{exp4:.2}** | {drawn:.2} |");
    }
    text
}

fn held_out_once(seed: u64, together: f64, by_user: bool) -> [f64; 4] {
    let mut random = Random::new(seed, 7);
    let learner = |answer| {
        Learner::exp4(&Exp4Table {
            members: vec![String::new(); ERRORS.len()],
            by: by_user.then(String::new),
            contexts: 100,
            rate: Learning::DEFAULT.rate,
            share: Learning::DEFAULT.share,
            answer,
            combine: CombineBy::Vote,
            least: 1,
            judged: JudgedTable::default(),
        })
    };
    let mut learners = [learner(AnswerBy::Best), learner(AnswerBy::Drawn)];
    let (trained, tested) = (5_000, 20_000);
    let mut members = [0.0; ERRORS.len()];
    let (mut voted, mut learnt) = (0.0, [0.0; 2]);
    for example in 0..trained + tested {
        let (truth, user) = (random.below(CLASSES) as u8, random.below(ERRORS.len() as u32) as usize);
        let errors: Vec<f64> = match by_user {
            false => ERRORS.to_vec(),
            true => (0..ERRORS.len()).map(|model| if model == user { 0.15 } else { 0.4 }).collect(),
        };
        let says = says(&mut random, truth, &errors, together);
        let given: Vec<Option<Shown<'_>>> = says.iter().map(|says| Some(shown(says))).collect();
        let context = by_user.then_some(user as u128);
        let right = |codes: &[u64]| f64::from(u8::from(codes == [u64::from(truth)]));
        let tests = example >= trained;
        for (learner, learnt) in learners.iter_mut().zip(&mut learnt) {
            let advice = learner.advice(context, &JUDGE);
            let Some((combined, answered)) = advice.answer(&JUDGE, &given, context, random.unit()) else { continue };
            if tests {
                *learnt += right(&combined.says);
            } else {
                let truth = Truth::Rows(vec![u64::from(truth)]);
                learner.learn(Some(&JUDGE), &answered, &truth).expect("one label for one row");
            }
        }
        if tests {
            members.iter_mut().zip(&says).for_each(|(sum, says)| *sum += right(&[u64::from(says[0])]));
            let even: Vec<Ballot<'_>> = given.iter().map(|&given| Ballot { weight: 1.0, given }).collect();
            voted += combine(&JUDGE, CombineBy::Vote, &even).map_or(0.0, |combined| right(&combined.says));
        }
    }
    let best = members.into_iter().fold(0.0, f64::max);
    [best, voted, learnt[0], learnt[1]].map(|sum| sum / f64::from(tested))
}

/// Milliseconds that members take: lognormal, with this median and deviation of the logarithm.
const MEDIAN_MS: f64 = 20.0;
const SIGMA: f64 = 0.3;
const DEADLINE_MS: f64 = 60.0;

/// The probability that a member with that median is there by the deadline.
fn in_time(median: f64) -> f64 {
    0.5 * libm::erfc(-libm::log(DEADLINE_MS / median) / (SIGMA * std::f64::consts::SQRT_2))
}

/// The accuracy of an even vote of those members, exactly: over everything that they can say.
fn exact(errors: &[f64]) -> f64 {
    let all = CLASSES.pow(errors.len() as u32);
    let mut sum = 0.0;
    for number in 0..all {
        let says: Vec<[u8; 1]> =
            (0..errors.len() as u32).map(|member| [(number / CLASSES.pow(member) % CLASSES) as u8]).collect();
        let ballots: Vec<Ballot<'_>> =
            says.iter().map(|says| Ballot { weight: 1.0, given: Some(shown(says)) }).collect();
        let chance: f64 = says
            .iter()
            .zip(errors)
            .map(|(says, error)| if says[0] == 0 { 1.0 - error } else { error / f64::from(CLASSES - 1) })
            .product();
        if combine(&JUDGE, CombineBy::Vote, &ballots).is_some_and(|combined| combined.says == [0]) {
            sum += chance;
        }
    }
    sum
}

/// The accuracy that must come out when each member is there by the deadline with its probability.
fn predicted(errors: &[f64], there: &[f64]) -> f64 {
    let members = errors.len();
    let mut sum = 0.0;
    for set in 1_u32..1 << members {
        let here: Vec<f64> =
            (0..members).filter(|member| set >> member & 1 == 1).map(|member| errors[member]).collect();
        let chance: f64 = (0..members)
            .map(|member| if set >> member & 1 == 1 { there[member] } else { 1.0 - there[member] })
            .product();
        if chance > 1e-9 {
            sum += chance * exact(&here);
        }
    }
    sum
}

fn at_a_deadline(args: &SelectionArgs) -> String {
    let mut text = format!(
        "## An ensemble at its deadline\n\nFive members with {MEDIAN_MS} ms each (lognormal, {SIGMA}), a deadline of {DEADLINE_MS} ms; in the second row one of them takes ten times as long. The answer goes out when all are there, or at the deadline with those that are. What is predicted is exact: over everything that members can say, and over who is there by then. Nobody queues here: what the server does is tested with real clients (`tests/clients/test_selection.py`).\n\n| | right, predicted | right | mean confidence | p99 ms | without mitigation: in time | p99 ms |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    );
    for (name, slowed) in [("all as usual", 1.0), ("one slowed 10 times", 10.0)] {
        let medians: Vec<f64> =
            (0..ERRORS.len()).map(|member| if member == 4 { MEDIAN_MS * slowed } else { MEDIAN_MS }).collect();
        let there: Vec<f64> = medians.iter().map(|&median| in_time(median)).collect();
        let expected = predicted(&ERRORS, &there);
        let requests = 5_000 * args.seeds as usize;
        let (mut right, mut confidence, mut waited) = (0.0, 0.0, 0.0);
        let (mut with, mut without) = (Vec::new(), Vec::new());
        let mut random = Random::new(11, slowed as u64);
        for _ in 0..requests {
            let truth = random.below(CLASSES) as u8;
            let says = says(&mut random, truth, &ERRORS, 0.0);
            let times: Vec<f64> = medians.iter().map(|median| median * random.lognormal(SIGMA)).collect();
            let given = |(says, &time)| Ballot { weight: 1.0, given: (time <= DEADLINE_MS).then(|| shown(says)) };
            let ballots: Vec<Ballot<'_>> = says.iter().zip(&times).map(given).collect();
            let last = times.into_iter().fold(0.0, f64::max);
            with.push(last.min(DEADLINE_MS));
            without.push(last);
            waited += f64::from(u8::from(last <= DEADLINE_MS));
            if let Some(combined) = combine(&JUDGE, CombineBy::Vote, &ballots) {
                right += f64::from(u8::from(combined.says == [u64::from(truth)]));
                confidence += combined.confidence;
            }
        }
        let p99 = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times[times.len() * 99 / 100]
        };
        let part = |sum: f64| 100.0 * sum / requests as f64;
        let _ = writeln!(
            text,
            "| {name} | {:.2} % | {:.2} % | {:.3} | {:.1} | {:.1} % | {:.1} |",
            100.0 * expected,
            part(right),
            part(confidence) / 100.0,
            p99(&mut with),
            part(waited),
            p99(&mut without)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: SelectionArgs = SelectionArgs { page: None, commit: String::new(), seeds: 4 };

    #[test]
    fn exp3_is_better_than_the_best_fixed_model_where_models_change() {
        for world in [&TURNS, &DRIFTS] {
            let (_, fixed, _) = regret(world, || exp3(Learning::DEFAULT), &FEW, (0, 0.0));
            assert!(fixed < -2.0, "{}: {fixed:+.2} %", world.name);
        }
        let (_, _, knew) = regret(&STILL, || exp3(Learning::DEFAULT), &FEW, (0, 0.0));
        assert!(knew < 3.0, "where nothing changes: {knew:+.2} %");
    }

    #[test]
    fn a_model_that_turns_bad_is_left_within_500_requests() {
        for (good_for, good) in [(1_000, ERRORS[4]), (50_000, ERRORS[4]), (50_000, 0.0)] {
            let (worst, mean) = requests_to_leave(Learning::DEFAULT, FEW.seeds, (good_for, good)).expect("it is left");
            assert!(worst < 500 && mean < 300.0, "after {good_for} good requests: {mean}, at most {worst}");
        }
    }

    #[test]
    fn exp4_is_better_than_every_member_on_what_it_has_not_seen() {
        // Where half of the errors are common there is little to gain.
        for (together, by_user, gain) in [(0.0, false, 0.1), (0.5, false, 0.0), (0.0, true, 0.2)] {
            let (mut best, mut exp4) = (0.0, 0.0);
            for seed in 0..FEW.seeds {
                let [one, _, other, _] = held_out_once(seed, together, by_user);
                (best, exp4) = (best + one / FEW.seeds as f64, exp4 + other / FEW.seeds as f64);
            }
            assert!(exp4 > best + gain, "{together} {by_user}: {exp4} beside {best}");
        }
    }

    #[test]
    fn what_is_predicted_of_a_vote_is_what_comes() {
        // Two of three that are right with 0.8 each, or one right and two that are wrong and differ, where the first
        // of the order wins.
        let all_right: f64 = 0.8 * 0.8 * 0.8 + 3.0 * 0.8 * 0.8 * 0.2;
        let first_of_three = 0.8 * 0.2 * 0.2 * 8.0 / 9.0;
        assert!((exact(&[0.2; 3]) - all_right - first_of_three).abs() < 1e-9);
        assert!((in_time(DEADLINE_MS) - 0.5).abs() < 1e-9 && in_time(MEDIAN_MS) > 0.999);
    }
}
