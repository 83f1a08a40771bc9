//! Models whose time depends on the input: `orloj`, and what `punctual` makes of it.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

mod script;

use base::Duration;
use expect_test::{Expect, expect};
use scheduler::{Config, PolicyKind};

fn check(policy: PolicyKind, script: &str, expected: Expect) {
    let config = Config {
        policy,
        schedule_ahead: Duration::ZERO,
        predict_admission: false,
        rehearse: false,
        ..Config::clockwork()
    };
    script::check(config, script, expected);
}

/// One device that is busy until 10, and a model of which a batch of b takes `(0.75 + 0.25 b)` times its longest
/// request. Application 1's requests take 10 ms, application 2's take 40.
const TWO_SORTS: &str = "0 device 10
    0 model 1 2.5 7.5 0 1 2 4
    0 measure 0 1 10 10.1
    0 measure 0 2 40 40.4
    0 ask 0 100 1 0 1
    0 done 1
";

#[test]
fn orloj_fills_the_largest_batch_that_enough_are_in_time_for() {
    // Four would be in time, whoever they are; two are left, and one of them is no longer.
    check(
        PolicyKind::Orloj,
        &format!(
            "{TWO_SORTS}
             1 ask 0 120 1 0 1
             1 ask 0 120 1 0 2
             1 ask 0 200 1 0 1
             1 ask 0 200 1 0 2
             1 ask 0 130 1 0 1
             1 ask 0 125 1 0 2
             10 done 2
             80 done 3
             130 wake"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            10       request 0: Done
            10    a3 exec m0 on d0 batch 4 [1 5 3 2] by 120
            80       request 1: Done
            80       request 5: Done
            80       request 3: Done
            80       request 2: Done
            80    a4 exec m0 on d0 batch 1 [6] by 125
            130   woken for RequestExpires
        "#]],
    );
}

#[test]
fn orloj_is_planned_with_the_profile_while_nothing_was_measured() {
    check(
        PolicyKind::Orloj,
        "0 device 10
         0 model 1 1 4 0 1 2 4
         0 ask 0 100
         0 done 1
         1 ask 0 13
         1 ask 0 100
         1 ask 0 100
         1 ask 0 100
         1 ask 0 100
         5 done 2
         13 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 100
            5        request 0: Done
            5     a3 exec m0 on d0 batch 4 [5 4 3 2] by 100
            13       request 1: overloaded until 23.3125
            13       request 5: Done
            13       request 4: Done
            13       request 3: Done
            13       request 2: Done
        "#]],
    );
}

#[test]
fn punctual_puts_like_to_like() {
    // The short ones first: more of them are in time for each millisecond. Together with a long one they would take 70.
    check(
        PolicyKind::Punctual,
        &format!(
            "{TWO_SORTS}
             1 ask 0 120 1 0 2
             1 ask 0 120 1 0 1
             1 ask 0 200 1 0 1
             1 ask 0 200 1 0 2
             10 done 2
             22.5 done 3
             72.5 done 4"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            10       request 0: Done
            10    a3 exec m0 on d0 batch 2 [2 3] by 120
            22.5     request 2: Done
            22.5     request 3: Done
            22.5  a4 exec m0 on d0 batch 2 [1 4] by 120
            72.5     request 1: Done
            72.5     request 4: Done
        "#]],
    );
}

#[test]
fn punctual_does_not_begin_what_is_hopeless() {
    // A long one that has 30 ms left is left alone; a short one isn't.
    check(
        PolicyKind::Punctual,
        &format!(
            "{TWO_SORTS}
             1 ask 0 39 1 0 2
             1 ask 0 39 1 0 1
             10 done 2
             20 done 3"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            1        request 1: unreachable before 41.370176
            10       request 0: Done
            10    a3 exec m0 on d0 batch 1 [2] by 39
            20       request 2: Done
        "#]],
    );
}

#[test]
fn punctual_batches_what_does_not_pay_only_for_a_request_that_needs_it() {
    // A batch of b takes b times its longest request: company would only cost time, but four rows in one request can't
    // be parted.
    check(
        PolicyKind::Punctual,
        "0 device 10
         0 model 1 10 0 0 1 2 4
         0 measure 0 1 10 10.1
         0 measure 0 2 40 40.4
         0 ask 0 100 1 0 1
         0 done 1
         1 ask 0 900 1 0 1
         1 ask 0 900 1 0 1
         1 ask 0 990 4 0 1
         10 done 2
         20 done 3
         30 done 4
         70 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            10       request 0: Done
            10    a3 exec m0 on d0 batch 1 [1] by 900
            20       request 1: Done
            20    a4 exec m0 on d0 batch 1 [2] by 900
            30       request 2: Done
            30    a5 exec m0 on d0 batch 4 [3] by 990
            70       request 3: Done
        "#]],
    );
}

#[test]
fn a_short_request_with_little_time_is_not_refused_because_most_are_long() {
    check(
        PolicyKind::Punctual,
        &format!(
            "{TWO_SORTS}
             10 done 2
             50 ask 0 65 1 0 1
             60 done 3
             70 ask 0 85 1 0 2"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            10       request 0: Done
            50    a3 exec m0 on d0 batch 1 [1] by 65
            60       request 1: Done
            70       request 2: unreachable before 110.370176
        "#]],
    );
}

#[test]
fn nothing_is_ahead_of_a_short_request_on_an_idle_device() {
    // With admission by prediction: the device is free, and the request takes 10 ms, whatever the others take.
    let config = Config { policy: PolicyKind::Punctual, rehearse: false, ..Config::default() };
    script::check(
        config,
        &format!(
            "{TWO_SORTS}
             10 done 2
             50 ask 0 65 1 0 1"
        ),
        expect![[r#"
            0     a1 load m0 on d0 by 90.028043
            0     a2 exec m0 on d0 batch 1 [0] by 100
            10       request 0: Done
            50    a3 exec m0 on d0 batch 1 [1] by 65
        "#]],
    );
}
