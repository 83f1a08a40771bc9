//! Shares of GPUs, planned with what was measured on an H200.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use planner::shares::follow::{FollowConfig, Follower};
use planner::shares::pools::pools;
use planner::shares::search::{ideal, search, search_again};
use planner::shares::{
    GAP_ON_GPUS, Interference, Measurements, SIZES, SharePlan, ShareTimes, SharedModel, Sharing, WHOLE, Way, gpulet,
    rivals,
};

fn measured() -> Measurements {
    let data = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/data").join(name);
        std::fs::read_to_string(path).unwrap()
    };
    Measurements::read(&data("h200_shares.csv"), &data("h200_pairs.csv")).unwrap()
}

fn nine(measured: &Measurements, slack: f64, rates: [f64; 9]) -> Vec<SharedModel> {
    gpulet::models(measured, slack, rates).unwrap()
}

#[test]
fn held_out_pairs_are_predicted_within_a_few_percent() {
    let measured = measured();
    let pairs: Vec<_> = measured.pairs().collect();
    assert_eq!(pairs.len(), 2 * 570);
    let mut errors = Vec::new();
    // Each pair is held out once, both of its batches with it.
    for fold in 0..10 {
        let of_fold = |index: usize| (index / 2) % 10 == fold;
        let kept = pairs.iter().enumerate().filter(|(index, _)| !of_fold(*index)).map(|(_, pair)| *pair);
        let model = Interference::fit(kept).unwrap();
        let held_out = pairs.iter().enumerate().filter(|(index, _)| of_fold(*index));
        errors.extend(held_out.map(|(_, pair)| {
            let predicted = model.slowdown(pair.batch, pair.beside);
            (predicted / pair.slowdown - 1.0).abs()
        }));
    }
    errors.sort_by(f64::total_cmp);
    let quantile = |part: f64| errors[(errors.len() as f64 * part) as usize];
    assert!(quantile(0.9) < 0.07 && quantile(0.95) < 0.10);
}

fn scenario(measured: &Measurements, index: usize, unit: f64) -> Vec<SharedModel> {
    gpulet::scenario(measured, 3.0, index, unit).unwrap()
}

#[test]
fn plans_carry_everything_and_hold_beside_each_other_and_the_search_finds_most() {
    let measured = measured();
    let interference = measured.interference();
    let (mut counts, mut ours) = ([0; 3], 0);
    for index in (1..19_683).step_by(401) {
        let models = scenario(&measured, index, 2_000.0);
        let sharing = Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 };
        let plans = [rivals::squishy(&sharing, WHOLE), rivals::greedy(&sharing), rivals::elastic(&sharing)];
        for (count, plan) in counts.iter_mut().zip(&plans) {
            *count += usize::from(plan.is_some());
        }
        let found = search(&sharing);
        ours += usize::from(found.is_some());
        for plan in plans.iter().chain([&found]).flatten() {
            assert!(plan.carries(&models) && sharing.holds(plan) && plan.gpus.len() <= 4, "{index}: {plan:?}");
        }
    }
    assert!(counts.iter().all(|&rival| ours > rival), "{ours} of ours, {counts:?} of the rivals");
}

#[test]
fn the_search_finds_nearly_all_that_there_is() {
    let measured = measured();
    let interference = measured.interference();
    let (mut ours, mut all) = (0, 0);
    for index in (1..19_683).step_by(1_009) {
        let models = scenario(&measured, index, 2_000.0);
        let sharing = Sharing { models: &models, gpus: 3, interference: &interference, gap: 0.0 };
        let ideal = ideal(&sharing);
        assert!(ideal.iter().all(|plan| sharing.holds(plan) && plan.carries(&models)));
        (ours, all) = (ours + usize::from(search(&sharing).is_some()), all + usize::from(ideal.is_some()));
    }
    assert!(all > 5 && ours + 1 >= all, "{ours} of {all}");
}

#[test]
fn as_few_gpus_as_can_be_are_used_and_none_are_divided_without_need() {
    let measured = measured();
    let interference = measured.interference();
    let mut rates = [0.0; 9];
    rates[2] = 100.0;
    let models = nine(&measured, 3.0, rates);
    let sharing = Sharing { models: &models, gpus: 8, interference: &interference, gap: 0.0 };
    let plan = search(&sharing).unwrap();
    assert_eq!(plan.gpus.len(), 1);
    assert_eq!(plan.gpus[0].shares.iter().map(|share| share.percent).collect::<Vec<_>>(), [WHOLE]);
    // More than one GPU can do is several GPUs, and too much for all of them is no plan.
    rates[2] = 60_000.0;
    let models = nine(&measured, 3.0, rates);
    let many = Sharing { models: &models, gpus: 64, interference: &interference, gap: 0.0 };
    let plan = search(&many).unwrap();
    assert!(plan.gpus.len() > 2 && many.holds(&plan) && plan.carries(&models));
    assert_eq!(search(&Sharing { gpus: 2, ..many }), None);
}

#[test]
fn many_models_are_planned_too() {
    let measured = measured();
    let interference = measured.interference();
    let models: Vec<SharedModel> =
        (0..6).flat_map(|copy| nine(&measured, 3.0 + f64::from(copy), [200.0 * f64::from(copy + 1); 9])).collect();
    let sharing = Sharing { models: &models, gpus: 64, interference: &interference, gap: 0.0 };
    let plan = search(&sharing).unwrap();
    assert!(sharing.holds(&plan) && plan.carries(&models));
    let whole = rivals::squishy(&sharing, WHOLE).unwrap();
    assert!(plan.gpus.len() <= whole.gpus.len(), "{} and {}", plan.gpus.len(), whole.gpus.len());
}

#[test]
fn a_plan_stays_while_it_carries_what_is_asked() {
    let measured = measured();
    let interference = measured.interference();
    let models = scenario(&measured, 12_345, 1_500.0);
    let sharing = Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 };
    let before = search(&sharing).unwrap();
    let places = |plan: &SharePlan| -> Vec<(u32, Vec<usize>)> {
        let shares = plan.gpus.iter().flat_map(|gpu| &gpu.shares);
        shares.map(|share| (share.percent, share.turns.iter().map(|turn| turn.model).collect())).collect()
    };
    let times = |factor: f64| -> Vec<SharedModel> {
        models.iter().map(|model| SharedModel { rate: model.rate * factor, ..model.clone() }).collect()
    };
    let less = times(0.95);
    let sharing = Sharing { models: &less, ..sharing };
    let kept = search_again(&sharing, &before).unwrap();
    assert_eq!(places(&kept), places(&before));
    assert!(sharing.holds(&kept) && kept.carries(&less));
    // With a tenth of it fewer GPUs are enough.
    let little = times(0.1);
    let sharing = Sharing { models: &little, ..sharing };
    assert!(search_again(&sharing, &before).unwrap().gpus.len() < before.gpus.len());
    // What nobody planned for is planned for.
    let mut more = models.clone();
    more.iter_mut().filter(|model| model.rate == 0.0).for_each(|model| model.rate = 10.0);
    let sharing = Sharing { models: &more, ..sharing };
    assert!(search_again(&sharing, &before).is_none_or(|plan| plan.carries(&more) && sharing.holds(&plan)));
}

#[test]
fn tables_with_mistakes_say_where() {
    let said = |times: &str| Measurements::read(times, "").unwrap_err();
    assert_eq!(said("model,batch\na,1"), "there is no column \"weight_bytes\": there are model, batch");
    let head = "model,batch,pct,weight_bytes,p50_ms";
    assert_eq!(said(&format!("{head}\na,1,50,7,x")), "line 2: p50_ms is \"x\": give a number above 0");
    assert_eq!(said(&format!("# remark\n{head}\na,1,50,7")), "line 3: there is nothing in column \"p50_ms\"");
    assert_eq!(said(&format!("{head}\na,1,150,7,1")), "model \"a\": a share of 150 %: give 1 to 100");
}

/// The models of one of the paper's scenarios (table 5), each so many times a second.
fn asked(measured: &Measurements, names: &[&str], rate: f64) -> Vec<SharedModel> {
    let rates = gpulet::MODELS.map(|(name, _)| if names.contains(&name) { rate } else { 0.0 });
    nine(measured, 3.0, rates)
}

#[test]
fn shares_are_used_where_they_pay_and_only_there() {
    let measured = measured();
    let interference = measured.interference();
    let plan = |names: &[&str]| {
        let models = asked(&measured, names, 5_000.0);
        pools(&Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 })
    };
    // Nobody is urgent beside anybody: whole GPUs.
    let scen2 = plan(&["densenet", "vgg16"]);
    assert_eq!((scen2.divided, scen2.carries), (0, scen2.whole), "{scen2:?}");
    // A hundred times as urgent as the others: shares of its own, and for nobody else who asks.
    let scen5 = plan(&["lenet", "ssd_mobilenet", "mnasnet1_0", "vgg16"]);
    assert!(scen5.divided > 0 && scen5.carries > 1.2 * scen5.whole && scen5.urgent == 1, "{scen5:?}");
    let arrangement = scen5.arrangement();
    let small = &arrangement.gpus[0][0];
    let (lenet, vgg16, nobody) = (1, 4, 0);
    assert!(small.models.contains(&lenet) && !small.models.contains(&vgg16) && small.models.contains(&nobody));
    assert!(arrangement.gpus.iter().flatten().filter(|slot| slot.models.contains(&lenet)).count() == scen5.divided);
}

#[test]
fn the_same_pools_carry_less_of_more() {
    let measured = measured();
    let interference = measured.interference();
    let at = |rate: f64| {
        let models = asked(&measured, &["lenet", "ssd_mobilenet", "mnasnet1_0", "vgg16"], rate);
        pools(&Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 })
    };
    let (one, two) = (at(1_000.0), at(2_000.0));
    assert!((one.carries / two.carries - 2.0).abs() < 1e-3, "{} and {}", one.carries, two.carries);
    assert_eq!(one.arrangement(), two.arrangement(), "only the mix matters");
    let models = asked(&measured, &["lenet", "ssd_mobilenet", "mnasnet1_0", "vgg16"], 2_000.0);
    let again = one.with_rates(&Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 });
    assert!((again.carries / two.carries - 1.0).abs() < 1e-3);
}

#[test]
fn every_way_plans_for_as_much_as_it_can() {
    let measured = measured();
    let interference = measured.interference();
    let models = asked(&measured, &["resnet50", "vgg16"], 500.0);
    let sharing = Sharing { models: &models, gpus: 2, interference: &interference, gap: 0.0 };
    for way in Way::ALL.into_iter().filter(|way| *way != Way::Ideal) {
        assert_eq!(Way::from_name(way.name()), Some(way));
        let (plan, times) = way.plan_most(&sharing);
        assert!(times > 1.0 && plan.carries(&models), "{way:?} carries {times}");
        let more: Vec<_> = models.iter().map(|it| SharedModel { rate: it.rate * times * 1.05, ..it.clone() }).collect();
        assert_eq!(way.plan(&Sharing { models: &more, ..sharing }), None, "{way:?}");
    }
    // Nobody can be in time: there is no plan, whatever the rate.
    let hopeless: Vec<_> = models.iter().map(|model| SharedModel { objective: 1e-6, ..model.clone() }).collect();
    assert_eq!(Way::Ours.plan_most(&Sharing { models: &hopeless, ..sharing }), (SharePlan::default(), 0.0));
}

#[test]
fn what_the_server_knows_of_interference_is_what_the_measured_pairs_say() {
    let measured = measured();
    let fitted = measured.interference();
    for pair in measured.pairs() {
        let known = Interference::H200.slowdown(pair.batch, pair.beside);
        let found = fitted.slowdown(pair.batch, pair.beside);
        assert!((known / found - 1.0).abs() < 1e-3, "{known} and {found}: {fitted:?}");
    }
}

/// `game` on one H200, as docs/benchmarks-gpu/auto_shares.json has it, with kernels by rule: 64 clients that wait get
/// 3,300 games/s from the whole GPU. A game is six LeNets and one ResNet-50, in batches of 16 at most, and has 10 ms,
/// of which the server keeps some for the answer's way.
fn game(rate: f64) -> Vec<SharedModel> {
    // LeNet's few kernels take as long in every share (named.json). What ResNet-50 took wasn't written down: its time
    // for one row is the one with which sixteen games take the 4.85 ms that were measured, gaps included.
    let lenet = |_: u32, _: u32| 0.029e-3;
    let resnet50 = |share: u32, batch: u32| (0.3 + 0.19 * f64::from(batch) * 100.0 / f64::from(share)) / 1e3;
    let model = |name: &str, rate: f64, bytes: f64, of: &dyn Fn(u32, u32) -> f64| {
        let points = SIZES.iter().flat_map(|&share| [1, 2, 4, 8, 16].map(|batch| (share, batch, of(share, batch))));
        let times = ShareTimes::new(points, bytes).unwrap();
        SharedModel { name: name.to_owned(), rate, objective: 9.4e-3, times }
    };
    vec![model("lenet", 6.0 * rate, 124_672.0, &lenet), model("resnet50", rate, 51_062_016.0, &resnet50)]
}

/// Whether the server's follower has divided an H200 after a while of `game`.
fn is_divided_for_game(rate: f64, gap: f64) -> bool {
    let config = FollowConfig { rest: 6.0, gap, ..FollowConfig::default() };
    let mut follower = Follower::new(config, game(0.0), Interference::H200);
    for _ in 0..10 {
        follower.step(2.0, &[(12.0 * rate) as u64, (2.0 * rate) as u64]);
    }
    follower.pools().divided > 0
}

#[test]
fn an_h200_is_divided_where_two_halves_carried_more_since_each_computes_in_the_others_gaps() {
    let sharing = |models, gap| pools(&Sharing { models, gpus: 1, interference: &Interference::H200, gap });
    let models = game(3_300.0);
    let known = sharing(&models, GAP_ON_GPUS);
    assert!((0.95..1.05).contains(&known.whole) && known.carries > 1.05 * known.whole, "{known:?}");
    assert_ne!(known.division, [20, 80], "they were tried there, and carried less than two halves");
    // Without the gap whole GPUs are predicted to carry more than they did, and shares as much: that was measured once.
    let unknown = sharing(&models, 0.0);
    assert!(unknown.whole > 1.3 && unknown.divided == 0, "{unknown:?}");
    assert!(is_divided_for_game(3_300.0, GAP_ON_GPUS) && is_divided_for_game(2_805.0, GAP_ON_GPUS));
    assert!(!is_divided_for_game(2_805.0, 0.0));
    // Whole GPUs that carry it with a quarter to spare stay whole.
    assert!(!is_divided_for_game(1_650.0, GAP_ON_GPUS));
}

#[test]
fn scenarios_are_found_that_need_a_cycle_between_sampled_ones_or_a_part_that_is_no_half() {
    let measured = measured();
    let interference = measured.interference();
    for index in [19_368, 3_374, 15_062, 10_862, 16_679, 18_648] {
        let models = scenario(&measured, index, 2_000.0);
        let sharing = Sharing { models: &models, gpus: 4, interference: &interference, gap: 0.0 };
        let plan = search(&sharing).unwrap_or_else(|| panic!("{index} isn't found"));
        assert!(plan.carries(&models) && sharing.holds(&plan), "{index}: {plan:?}");
    }
}

#[test]
fn gaps_cost_every_way_to_plan_and_plans_with_them_hold() {
    let measured = measured();
    let interference = measured.interference();
    let models = asked(&measured, &["resnet50", "vgg16", "googlenet"], 500.0);
    for way in Way::ALL.into_iter().filter(|way| !matches!(way, Way::Ideal | Way::Blind | Way::Halves)) {
        let most = |gap: f64| {
            let sharing = Sharing { models: &models, gpus: 2, interference: &interference, gap };
            let (plan, times) = way.plan_most(&sharing);
            assert!(sharing.holds(&plan) && plan.carries(&models), "{way:?} with {gap}");
            times
        };
        assert!(most(0.3e-3) < 0.95 * most(0.0), "{way:?}");
    }
}

/// LeNet with so many milliseconds beside VGG-16 and BERT with 30, each asked for equally often.
fn hurried(measured: &Measurements, millis: f64) -> Vec<SharedModel> {
    let model = |(name, millis): (&str, f64)| {
        let times = measured.models[name].clone();
        SharedModel { name: name.to_owned(), rate: 1_000.0, objective: millis / 1e3, times }
    };
    [("lenet", millis), ("vgg16", 30.0), ("bert_s128", 30.0)].map(model).to_vec()
}

/// The highest rates with at most 1 % of each model's requests bad, by simulation with a gap of 0.17 ms (`lab
/// simulate`, Poisson, 3 s, a tolerance of 3 %; 221e2eb6 and the gap). The planner had taken it that batches are kept
/// short for LeNet: 5,337, 4,135, 8,651 and 9,019 on one GPU, 30,497 and 36,076 on four.
#[test]
fn whole_gpus_carry_what_they_do_with_batches_that_nobody_keeps_short() {
    let measured = measured();
    let interference = measured.interference();
    let whole = |gpus: usize, millis: f64| {
        let models = hurried(&measured, millis);
        3_000.0 * pools(&Sharing { models: &models, gpus, interference: &interference, gap: GAP_ON_GPUS }).whole
    };
    let found = [(1, 2.0, 3_465.0), (1, 5.0, 7_304.0), (1, 30.0, 8_739.0)];
    for (gpus, millis, found) in found.into_iter().chain([(4, 1.0, 23_112.0), (4, 2.0, 29_249.0), (4, 5.0, 35_498.0)]) {
        let predicted = whole(gpus, millis);
        assert!((predicted / found - 1.0).abs() < 0.3, "{gpus} GPUs, {millis} ms: {predicted}, simulated {found}");
    }
    // 197: where no batch is short enough, next to nothing.
    assert!(whole(1, 1.0) < 1_000.0, "{}", whole(1, 1.0));
}

#[test]
fn who_is_in_a_hurry_gets_a_share_of_its_own_and_not_one_with_long_batches() {
    let measured = measured();
    let interference = measured.interference();
    let sharing = |models, gap| pools(&Sharing { models, gpus: 1, interference: &interference, gap });
    let models = hurried(&measured, 2.0);
    let plan = sharing(&models, GAP_ON_GPUS);
    assert!(plan.carries > 1.3 * plan.whole && plan.urgent == 1, "{plan:?}");
    assert_eq!(plan.arrangement().gpus[0].each_ref().map(|slot| slot.models.clone()), [vec![0], vec![1, 2]]);
    // Who has the time of others isn't in a hurry.
    let models = hurried(&measured, 30.0);
    let plan = sharing(&models, GAP_ON_GPUS);
    assert!(plan.urgent == 0 && plan.carries < 1.2 * plan.whole, "{plan:?}");
    // Long batches that hardly ever run are no reason.
    let mut models = hurried(&measured, 2.0);
    (models[1].rate, models[2].rate) = (0.1, 0.1);
    let (seldom, alone) = (sharing(&models, 0.0), sharing(&models[..1], 0.0));
    assert!(seldom.urgent == 0 && seldom.whole > 0.9 * alone.whole, "{seldom:?} and {alone:?}");
}

/// LeNet in a hurry on an H200, as docs/benchmarks-gpu/auto_shares.json has it: 6 ms beside VGG-16 and BERT with 150,
/// of which the server keeps a sixteenth, at the rate that 64 clients get. 0.47 of LeNet's requests were in time on the
/// whole GPU. What batches took wasn't kept: these are times with which 58 rows of both take 34.7 ms.
#[test]
fn an_h200_is_not_predicted_to_carry_more_than_it_did_beside_a_model_in_a_hurry() {
    let model = |name: &str, part: f64, objective: f64, of: &dyn Fn(u32, u32) -> f64| {
        let points = SIZES.iter().flat_map(|&share| [1, 4, 16, 64].map(|batch| (share, batch, of(share, batch))));
        let times = ShareTimes::new(points, 1e8).unwrap();
        SharedModel { name: name.to_owned(), rate: 1_843.0 * part, objective, times }
    };
    let long = |share: u32, batch: u32| (0.3 + 0.57 * f64::from(batch) * 100.0 / f64::from(share)) / 1e3;
    let quick = |_: u32, _: u32| 0.05e-3;
    let models =
        [model("lenet", 0.1, 5.6e-3, &quick), model("vgg16", 0.45, 0.14, &long), model("bert", 0.45, 0.14, &long)];
    let plan = pools(&Sharing { models: &models, gpus: 1, interference: &Interference::H200, gap: GAP_ON_GPUS });
    assert!((0.7..0.85).contains(&plan.whole), "0.5 to 0.7 on the H200, 0.75 simulated: {plan:?}");
}
