//! Pipelines: stages have deadlines that the scheduler decides. `script` says how scenarios are written.

mod script;

use expect_test::{Expect, expect};
use scheduler::{Config, Split};

fn check(split: Split, script: &str, expected: Expect) {
    script::check(Config { split, rehearse: false, ..Config::default() }, script, expected);
}

/// Two models of 4 ms and 2 ms for one row, which need no load, and a pipeline of both.
const TWO: &str = "0 model 0 1 3 0 1 2 4
                   0 model 0 1 1 0 1 2 4
                   0 device 0
                   0 done 1
                   0 done 2
                   0 pipeline 0>1 1\n";

#[test]
fn a_first_stage_leaves_the_others_what_they_need() {
    check(
        Split::Load,
        &format!("{TWO}1 stage 0 0 21"),
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 15
    "#]],
    );
    check(
        Split::Equal,
        &format!("{TWO}1 stage 0 0 21"),
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 7
    "#]],
    );
    check(
        Split::Profile,
        &format!("{TWO}1 stage 0 0 21"),
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 10.333333
    "#]],
    );
}

#[test]
fn a_stage_that_was_early_leaves_its_time_to_the_next() {
    check(
        Split::Equal,
        &format!("{TWO}1 stage 0 0 21\n5 done 3\n5 stage 0 1 21"),
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 7
        5        request 0: Done
        5     a4 exec m1 on d0 batch 1 [1] by 19
    "#]],
    );
}

#[test]
fn what_cannot_be_met_by_the_stages_behind_is_refused_at_the_first() {
    check(
        Split::Load,
        &format!(
            "{TWO}1 stage 0 0 6.9
             1 stage 0 0 7"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1        request 0: unreachable before 7
            1     a3 exec m0 on d0 batch 1 [1] by 1
        "#]],
    );
}

#[test]
fn who_finds_no_device_in_its_part_has_what_the_others_do_not_need() {
    // The device is busy until 21. With half of 26 ms the stage would have to be done by 14; 2 ms before 27 are enough.
    let script = format!(
        "{TWO}1 borrow 0 20
         1 stage 0 0 27
         21 return 0
         25 done 3"
    );
    check(
        Split::Load,
        &script,
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        21    a3 exec m0 on d0 batch 1 [0] by 21
        25       request 0: Done
    "#]],
    );
    check(
        Split::Equal,
        &script.replace("25 done 3", ""),
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1        request 0: overloaded until 27
    "#]],
    );
}

#[test]
fn a_deadline_that_a_queued_stage_misses_is_decided_again() {
    // The device has been busy for long, so that a part is kept for the second stage. The first one's own deadline is
    // 4,071: it couldn't be met any more from 4,067 on.
    let script = format!(
        "{TWO}1 ask 0 9000
         4000 stage 0 0 4101
         4070 expect 1
         4080 done 3"
    );
    check(
        Split::Load,
        &script,
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 8996
        4080     request 0: Done
        4080  a4 exec m0 on d0 batch 1 [1] by 4095
    "#]],
    );
    check(
        Split::Profile,
        &script,
        expect![[r#"
        0     a1 load m0 on d0 by -
        0     a2 load m1 on d0 by -
        1     a3 exec m0 on d0 batch 1 [0] by 8996
        4070     request 1: overloaded until 4076
        4080     request 0: Done
    "#]],
    );
}

#[test]
fn a_stage_that_is_late_for_its_part_but_not_for_the_whole_is_done() {
    check(
        Split::Load,
        &format!(
            "{TWO}1 stage 0 0 11
             10 done 3
             10 stage 0 1 11"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 5
            10       request 0: Done
            10       request 1: unreachable before 12
        "#]],
    );
}

#[test]
fn weights_of_the_second_stage_are_loaded_while_the_first_runs() {
    check(
        Split::Load,
        "0 device 10
         0 model 4 1 3 5
         0 model 4 1 1 5
         0 pipeline 0>1 1
         1 stage 0 0 100
         6 done 1
         10 done 2
         10 stage 0 1 100
         11 done 3 10",
        expect![[r#"
            1     a1 load m0 on d0 by 89
            6     a2 load m1 on d0 by -
            6     a3 exec m0 on d0 batch 1 [0] by 94
            11       request 0: Done
            11    a4 exec m1 on d0 batch 1 [1] by 98
        "#]],
    );
}

#[test]
fn without_a_model_of_a_later_stage_nothing_is_begun() {
    check(
        Split::Load,
        &format!(
            "{TWO}0 remove 1
             1 stage 0 0 50
             1 ask 0 50"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            0        unload m1 on d0
            1        request 0: Rejected(ModelUnavailable)
            1     a3 exec m0 on d0 batch 1 [1] by 46
        "#]],
    );
}

#[test]
fn of_two_branches_the_longer_one_decides_how_much_is_left() {
    let three = "0 model 0 1 3 0 1 2 4
                 0 model 0 1 1 0 1 2 4
                 0 model 0 1 8 0 1 2 4
                 0 device 0
                 0 done 1
                 0 done 2
                 0 done 3
                 0 pipeline 0>1,2 1 2\n";
    check(
        Split::Load,
        &format!(
            "{three}1 stage 0 0 13
             1 stage 0 0 14"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            0     a3 load m2 on d0 by -
            1        request 0: unreachable before 14
            1     a4 exec m0 on d0 batch 1 [1] by 1
        "#]],
    );
}

/// Three requests whose first calls are one batch, which ends at 18, and two devices.
const THREE: &str = "0 model 0 1 3 0 1 2 4
                     0 model 0 1 1 0 1 2 4
                     0 device 0
                     0 device 0
                     0 done 1
                     0 done 2
                     0 done 3
                     0 done 4
                     0 pipeline 0>1 1
                     1 borrow 0 10
                     1 borrow 1 10
                     2 stage 0 0 60
                     2 stage 0 0 61
                     2 stage 0 0 62
                     11 return 0
                     11 return 1\n";

/// Live, the calls that follow a batch come tens of microseconds after its report, one by one. They were started as
/// they came, and the default split carried less than others.
#[test]
fn calls_that_come_one_by_one_after_their_batch_run_as_one() {
    let calls = "18 done 5
                 18.04 stage 0 1 60
                 18.05 stage 0 1 61
                 18.09 stage 0 1 62";
    check(
        Split::Load,
        &format!("{THREE}{calls}"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.09 a6 exec m1 on d0 batch 4 [3 4 5] by 55
        "#]],
    );
    check(
        Split::Equal,
        &format!("{THREE}{calls}"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 24
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.04 a6 exec m1 on d0 batch 1 [3] by 58
            18.05 a7 exec m1 on d1 batch 1 [4] by 59
        "#]],
    );
}

#[test]
fn calls_that_come_before_the_report_of_their_batch_await_the_others() {
    check(
        Split::Load,
        &format!(
            "{THREE}17.99 stage 0 1 60
             18 done 5
             18.02 stage 0 1 61
             18.03 stage 0 1 62"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.03 a6 exec m1 on d0 batch 4 [3 4 5] by 55
        "#]],
    );
    check(
        Split::Load,
        &format!(
            "{THREE}17.98 stage 0 1 60
             17.98 stage 0 1 61
             17.99 stage 0 1 62
             18 done 5"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18    a6 exec m1 on d0 batch 4 [3 4 5] by 55
        "#]],
    );
}

#[test]
fn a_call_that_does_not_come_is_not_awaited_for_long() {
    check(
        Split::Load,
        &format!(
            "{THREE}18 done 5
             18.04 stage 0 1 60
             18.05 stage 0 1 61
             18.25 wake"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.25 woken for BatchReady
            18.25 a6 exec m1 on d1 batch 2 [3 4] by 57
        "#]],
    );
}

/// The last call that was awaited can't be met: the device was free for others, and those that were there still waited.
#[test]
fn a_call_that_is_refused_keeps_the_others_no_longer() {
    check(
        Split::Load,
        &format!(
            "{THREE}12 borrow 1 30
             17 ask 0 22.6
             18 done 5
             18.04 stage 0 1 21.4
             18.05 stage 0 1 21.4
             18.06 stage 0 1 19"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.06    request 6: unreachable before 20.06
            18.06 a6 exec m1 on d0 batch 2 [4 5] by 18.4
        "#]],
    );
}

/// Where the data decides how many calls come, the device is kept for as long as they do.
#[test]
fn a_device_is_kept_until_a_silence() {
    let varies = THREE.replace("pipeline 0>1 1", "pipeline 0>1 1~");
    check(
        Split::Load,
        &format!(
            "{varies}18 done 5
             18.1 stage 0 1 60
             18.1 stage 0 1 61
             18.1 stage 0 1 62
             18.12 wake
             22 done 6
             30 borrow 0 10
             30 borrow 1 20
             31 stage 0 0 90
             31 stage 0 0 91
             31 stage 0 0 92
             40 return 0
             46 ask 0 51.9
             47 done 7
             47.06 stage 0 1 52.2
             47.075 stage 0 1 52.2
             47.09 stage 0 1 52.2
             47.11 wake"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            0     a3 load m1 on d0 by -
            0     a4 load m1 on d1 by -
            11    a5 exec m0 on d0 batch 4 [0 1 2] by 51
            18       request 0: Done
            18       request 1: Done
            18       request 2: Done
            18.12 woken for BatchReady
            18.12 a6 exec m1 on d0 batch 4 [3 4 5] by 55
            22       request 3: Done
            22       request 4: Done
            22       request 5: Done
            40    a7 exec m0 on d0 batch 4 [6 7 8] by 79.649056
            47       request 6: Done
            47       request 7: Done
            47       request 8: Done
            47.11 woken for ExecutorHungry
            47.11 a8 exec m1 on d0 batch 4 [10 11 12] by 47.2
        "#]],
    );
}

/// A request that waits for the device which another one's first stage leaves.
const TWO_REQUESTS: &str = "1 stage 0 0 21
                            2 stage 0 0 40
                            5 done 3
                            5 stage 0 1 21\n";

#[test]
fn a_device_is_kept_for_the_calls_that_follow_those_that_it_has_done() {
    check(
        Split::Load,
        &format!("{TWO}{TWO_REQUESTS}7 done 4"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 15
            5        request 0: Done
            5     a4 exec m1 on d0 batch 1 [2] by 19
            7        request 2: Done
            7     a5 exec m0 on d0 batch 1 [1] by 33.808
        "#]],
    );
    check(
        Split::Equal,
        &format!("{TWO}{TWO_REQUESTS}"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 7
            5        request 0: Done
            5     a4 exec m0 on d0 batch 1 [1] by 17
        "#]],
    );
}

#[test]
fn a_device_is_not_kept_where_that_takes_long_beside_what_it_has_done() {
    // A call of the first stage takes 0.2 ms, and those that follow come 0.02 ms later.
    let quick = TWO.replacen("1 3 0", "0.1 0.1 0", 1);
    let script = "1 stage 0 0 21
                  1.2 done 3
                  1.22 stage 0 1 21
                  3.22 done 4
                  5 stage 0 0 21
                  5.1 stage 0 0 40
                  5.2 done 5";
    check(
        Split::Load,
        &format!("{quick}{script}"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 18.8
            1.2      request 0: Done
            1.22  a4 exec m1 on d0 batch 1 [1] by 19
            3.22     request 1: Done
            5     a5 exec m0 on d0 batch 1 [2] by 18.62497
            5.2      request 2: Done
            5.2   a6 exec m0 on d0 batch 1 [3] by 37.366464
        "#]],
    );
}

#[test]
fn a_device_is_not_kept_from_who_would_be_lost_by_it() {
    // The last request must start by 5.01, the device would be kept until 5.02.
    check(
        Split::Load,
        &format!("{TWO}1 stage 0 0 21\n2 ask 0 9.01\n5 done 3"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 15
            5        request 0: Done
            5     a4 exec m0 on d0 batch 1 [1] by 5.01
        "#]],
    );
    // Live the end of keeping is a timer, which may be 0.1 ms late.
    check(
        Split::Load,
        &format!("{TWO}1 stage 0 0 21\n2 ask 0 9.1\n5 done 3"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d0 by -
            1     a3 exec m0 on d0 batch 1 [0] by 15
            5        request 0: Done
            5     a4 exec m0 on d0 batch 1 [1] by 5.1
        "#]],
    );
}

#[test]
fn a_device_is_not_kept_for_calls_that_cannot_run_there() {
    // The second stage's model is on the other device alone.
    let apart = "0 device 0
                 0 device 0
                 0 model 0 1 3 0 1 2 4
                 0 model 0 1 1 0 1 2 4
                 0 allot 0:0 1:1
                 0 done 1
                 0 done 2
                 0 pipeline 0>1 1";
    check(
        Split::Load,
        &format!("{apart}\n1 stage 0 0 21\n2 stage 0 0 40\n5 done 3"),
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m1 on d1 by -
            1     a3 exec m0 on d0 batch 1 [0] by 15
            5        request 0: Done
            5     a4 exec m0 on d0 batch 1 [1] by 33.904
        "#]],
    );
}
