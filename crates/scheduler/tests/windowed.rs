//! When batches start under `deferred`, `eager`, `timeout` and `punctual`, as text: events in, commands out. `script`
//! says how it is written. Wake-ups are written only where the scheduler asked for them.

mod script;

use base::Duration;
use expect_test::{Expect, expect};
use scheduler::{Config, Gather, PolicyKind};

fn config(policy: PolicyKind) -> Config {
    Config { policy, schedule_ahead: Duration::ZERO, predict_admission: false, ..Config::clockwork() }
}

fn check(policy: PolicyKind, script: &str, expected: Expect) {
    script::check(config(policy), script, expected);
}

/// One device, one model with l(b) = b + 5, loaded at once.
const ONE: &str = "0 device 10
    0 model 0 1 5 0 1 2 3 4 5 6 7 8
    ";

#[test]
fn deferred_starts_when_one_more_would_not_fit() {
    // Symphony, section 3.3: with four requests since 0, 0.75, 1.5 and 2.25 the batch is ready at 12 - l(5) = 2, which
    // is past.
    check(
        PolicyKind::Deferred,
        &format!("{ONE}0 ask 0 12\n0 done 1\n0.75 ask 0 12.75\n1.5 ask 0 13.5\n2.25 ask 0 14.25\n11.25 done 2"),
        expect![[r#"
            0     a1 load m0 on d0 by 6
            2.25  a2 exec m0 on d0 batch 4 [0 1 2 3] by 3
            11.25    request 0: Done
            11.25    request 1: Done
            11.25    request 2: Done
            11.25    request 3: Done
        "#]],
    );
}

#[test]
fn deferred_waits_for_its_time_when_nobody_comes() {
    // Ready at 12 - l(2) = 5.
    check(
        PolicyKind::Deferred,
        &format!("{ONE}0 ask 0 12\n0 done 1\n5 wake\n11 done 2"),
        expect![[r#"
        0     a1 load m0 on d0 by 6
        5     woken for BatchReady
        5     a2 exec m0 on d0 batch 1 [0] by 6
        11       request 0: Done
    "#]],
    );
}

/// Live every such request was lost: it was to start at the last instant, for which a timer is too late.
#[test]
fn where_batches_cost_nothing_more_a_request_alone_is_not_lost_though_wakeups_are_late() {
    let flat = "0 device 10
                0 model 0 0 5 0 1 2 4
                0 ask 0 12
                0 done 1
                6.75 wake";
    let thrifty = Config { thrift: true, rehearse: false, ..config(PolicyKind::Punctual) };
    for config in [config(PolicyKind::Deferred), thrifty] {
        let config = Config { late_wakeup: base::margins::LATE_WAKEUP, ..config };
        script::check(
            config,
            flat,
            expect![[r#"
            0     a1 load m0 on d0 by 7
            6.75  woken for BatchReady
            6.75  a2 exec m0 on d0 batch 1 [0] by 7
        "#]],
        );
    }
}

#[test]
fn a_size_that_was_slow_once_is_run_at_once_and_not_kept_until_it_is_too_late() {
    // l(1) is taken for 35 since the first run, l(2) is 7: waiting for a second request would end at 143, when the
    // first would have had to start by 115.
    check(
        PolicyKind::Deferred,
        &format!("{ONE}0 ask 0 12\n0 done 1\n5 wake\n40 done 2\n100 ask 0 150\n106 done 3"),
        expect![[r#"
            0     a1 load m0 on d0 by 6
            5     woken for BatchReady
            5     a2 exec m0 on d0 batch 1 [0] by 6
            40       request 0: Late
            100   a3 exec m0 on d0 batch 1 [1] by 115
            106      request 1: Done
        "#]],
    );
}

#[test]
fn deferred_plans_with_the_way_to_the_device() {
    // The order takes 1 ms: it must leave at 4.
    let mut config = config(PolicyKind::Deferred);
    config.delay.control = Duration::from_millis(1);
    let script = format!("{ONE}0 ask 0 12\n0 done 1\n4 wake");
    script::check(
        config,
        &script,
        expect![[r#"
        0     a1 load m0 on d0 by 6
        4     woken for BatchReady
        4     a2 exec m0 on d0 batch 1 [0] by 6
    "#]],
    );
}

#[test]
fn deferred_takes_the_lowest_number_of_the_devices() {
    check(
        PolicyKind::Deferred,
        "0 device 10
         0 device 10
         0 model 0 1 5 0 1 2 3 4
         0 ask 0 12
         0 done 1
         0 done 2
         5 wake
         11 done 3
         11 ask 0 23
         16 wake",
        expect![[r#"
            0     a1 load m0 on d0 by 6
            0     a2 load m0 on d1 by 6
            5     woken for BatchReady
            5     a3 exec m0 on d0 batch 1 [0] by 6
            11       request 0: Done
            16    woken for BatchReady
            16    a4 exec m0 on d0 batch 1 [1] by 17
        "#]],
    );
}

/// At 12 the device is free. The first request, of 18 ms, leaves time for a batch of two then, where four would be
/// even.
const LATE_DEVICE: &str = "0 ask 0 12 7
    0 done 1
    1 ask 0 19
    2 ask 0 24
    2 ask 0 24
    2 ask 0 24
    2 ask 0 24
    12 done 2
    21 wake";

#[test]
fn deferred_gives_the_first_request_up_for_a_larger_batch() {
    check(
        PolicyKind::Deferred,
        &format!("{ONE}{LATE_DEVICE}"),
        expect![[r#"
            0     a1 load m0 on d0 by 6
            0     a2 exec m0 on d0 batch 7 [0] by 0
            12       request 0: Done
            12       request 1: overloaded until 28.625
            12    a3 exec m0 on d0 batch 4 [2 3 4 5] by 15
            21    woken for RequestExpires
        "#]],
    );
}

#[test]
fn deferred_can_be_told_to_begin_with_the_first_request() {
    let config = Config { gather: Gather::HeadFirst, ..config(PolicyKind::Deferred) };
    script::check(
        config,
        &format!("{ONE}{LATE_DEVICE}"),
        expect![[r#"
            0     a1 load m0 on d0 by 6
            0     a2 exec m0 on d0 batch 7 [0] by 0
            12       request 0: Done
            12    a3 exec m0 on d0 batch 2 [1 2] by 12
            21    woken for RequestExpires
            21       request 3: overloaded until 30.1875
            21       request 4: overloaded until 29.125
            21       request 5: overloaded until 28.0625
        "#]],
    );
}

#[test]
fn eager_starts_at_once_and_takes_the_most_urgent_next() {
    check(
        PolicyKind::Eager,
        "0 device 10
         0 model 0 1 5 0 1 2 3 4
         0 model 0 1 5 0 1 2 3 4
         0 ask 0 30
         0 done 1
         0 ask 1 90
         0 done 3
         1 ask 0 40
         6 done 2
         12 done 4",
        expect![[r#"
            0     a1 load m0 on d0 by 24
            0     a2 exec m0 on d0 batch 1 [0] by 24
            0     a3 load m1 on d0 by 84
            6        request 0: Done
            6     a4 exec m0 on d0 batch 1 [2] by 34
            12       request 2: Done
            12    a5 exec m1 on d0 batch 1 [1] by 84
        "#]],
    );
}

#[test]
fn timeout_waits_for_a_part_of_the_objective() {
    // A fifth of 20 ms.
    check(
        PolicyKind::Timeout,
        &format!("{ONE}0 ask 0 20\n0 done 1\n4 wake"),
        expect![[r#"
        0     a1 load m0 on d0 by 14
        4     woken for BatchReady
        4     a2 exec m0 on d0 batch 1 [0] by 14
    "#]],
    );
}

#[test]
fn the_first_request_of_a_rare_model_is_not_kept_waiting() {
    // Nothing is known of the gaps, and nobody is waited for, though there would be time until 14.
    check(
        PolicyKind::Punctual,
        &format!("{ONE}0 ask 0 21\n0 done 1"),
        expect![[r#"
            0     a1 load m0 on d0 by 15
            0     a2 exec m0 on d0 batch 1 [0] by 15
        "#]],
    );
}

#[test]
fn a_request_behind_a_batch_that_runs_too_long_is_refused_at_once() {
    // Also in good times, when what is queued isn't counted: the device runs until 6.
    let config = Config { predict_admission: true, ..config(PolicyKind::Punctual) };
    script::check(
        config,
        &format!("{ONE}0 ask 0 21\n0 done 1\n3 ask 0 11\n3 ask 0 30"),
        expect![[r#"
            0     a1 load m0 on d0 by 15
            0     a2 exec m0 on d0 batch 1 [0] by 15
            3        request 1: overloaded until 12
        "#]],
    );
}

#[test]
fn thrifty_punctual_waits_as_long_as_times_are_good() {
    let config = Config { thrift: true, ..config(PolicyKind::Punctual) };
    script::check(
        config,
        &format!("{ONE}0 ask 0 21\n0 done 1\n14 wake"),
        expect![[r#"
            0     a1 load m0 on d0 by 15
            14    woken for BatchReady
            14    a2 exec m0 on d0 batch 1 [0] by 15
        "#]],
    );
}

#[test]
fn of_two_that_may_start_early_the_more_urgent_has_the_device() {
    // One device, two models. When it is free at 8, both have waited long enough; m1 must start by 14, m0 has until 34.
    check(
        PolicyKind::Punctual,
        "0 device 10
         0 model 0 1 5 0 1 2 3 4
         0 model 0 1 5 0 1 2 3 4
         0 ask 0 21
         0 done 1
         2 ask 1 14
         2 done 3
         6 done 2
         7 ask 0 40
         8 ask 1 20
         12 done 4
         18 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 15
            0     a2 exec m0 on d0 batch 1 [0] by 15
            2     a3 load m1 on d0 by 8
            6        request 0: Done
            6     a4 exec m1 on d0 batch 1 [1] by 8
            12       request 1: Done
            12    a5 exec m1 on d0 batch 1 [3] by 14
            18       request 3: Done
            18    a6 exec m0 on d0 batch 1 [2] by 34
        "#]],
    );
}
