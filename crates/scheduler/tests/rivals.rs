//! What the rivals do, as text: events in, commands out. `script` says how it is written.

mod script;

use base::Duration;
use expect_test::{Expect, expect};
use scheduler::{Config, Gather, PolicyKind};

fn rival(policy: PolicyKind) -> Config {
    Config {
        policy,
        schedule_ahead: Duration::ZERO,
        predict_admission: false,
        batch_delay: Duration::from_millis(2),
        ..Config::clockwork()
    }
}

fn check(policy: PolicyKind, script: &str, expected: Expect) {
    script::check(rival(policy), script, expected);
}

// ---- shepherd ----

#[test]
fn shepherd_takes_the_largest_candidate_first() {
    // When the device is free, m1 has three requests and m0 only two, though more urgent ones.
    check(
        PolicyKind::Shepherd,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100 2
         0 done 1
         0 ask 1 100
         0 done 3
         1 ask 0 50
         1 ask 0 50
         2 ask 1 60
         2 ask 1 60
         6 done 2
         13 done 4
         19 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 2 [0] by 94
            0     a3 load m1 on d0 by 95
            6        request 0: Done
            6     a4 exec m1 on d0 batch 3 [4 5 1] by 53
            13       request 4: Done
            13       request 5: Done
            13       request 1: Done
            13    a5 exec m0 on d0 batch 2 [2 3] by 44
            19       request 2: Done
            19       request 3: Done
        "#]],
    );
}

/// At 6 ms the first request leaves time for two, though four would be in time for the others.
const TIGHT_HEAD: &str = "0 device 10
    0 model 1 1 4 0 1 2 3 4
    0 ask 0 100 2
    0 done 1
    1 ask 0 12.5
    2 ask 0 40
    2 ask 0 40
    2 ask 0 40
    2 ask 0 40
    6 done 2";

#[test]
fn shepherd_passes_over_a_first_request_for_a_larger_batch() {
    check(
        PolicyKind::Shepherd,
        TIGHT_HEAD,
        expect![[r#"
        0     a1 load m0 on d0 by 95
        0     a2 exec m0 on d0 batch 2 [0] by 94
        6        request 0: Done
        6     a3 exec m0 on d0 batch 4 [2 3 4 5] by 32
    "#]],
    );
}

#[test]
fn shepherd_can_be_told_to_begin_with_the_first_request() {
    let config = Config { gather: Gather::HeadFirst, ..rival(PolicyKind::Shepherd) };
    script::check(
        config,
        TIGHT_HEAD,
        expect![[r#"
        0     a1 load m0 on d0 by 95
        0     a2 exec m0 on d0 batch 2 [0] by 94
        6        request 0: Done
        6     a3 exec m0 on d0 batch 2 [1 2] by 6.5
    "#]],
    );
}

#[test]
fn shepherd_breaks_a_batch_off_for_one_of_three_times_its_size() {
    // The third request of m1 makes a candidate of 3 against a running batch of 1, whose request waits and runs later.
    check(
        PolicyKind::Shepherd,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 model 1 1 4 0 1 2 3 4
         0 ask 1 20
         0 done 1
         0 ask 0 30
         0 done 3
         5 done 2
         6 ask 1 30
         6 ask 1 30
         7 ask 1 30
         7 broken 4
         14 done 5
         19 done 6",
        expect![[r#"
            0     a1 load m1 on d0 by 15
            0     a2 exec m1 on d0 batch 1 [0] by 15
            0     a3 load m0 on d0 by 25
            5        request 0: Done
            5     a4 exec m0 on d0 batch 1 [1] by 25
            7        break off 4 on d0
            7     a5 exec m1 on d0 batch 3 [2 3 4] by 23
            14       request 2: Done
            14       request 3: Done
            14       request 4: Done
            14    a6 exec m0 on d0 batch 1 [1] by 25
            19       request 1: Done
        "#]],
    );
}

#[test]
fn shepherd_does_not_let_those_who_come_back_make_the_batch_smaller() {
    // Request 0 comes back with no time for company: the three others go first, and it is given up in time.
    check(
        PolicyKind::Shepherd,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 7.5
         0 done 1
         1 ask 0 40
         1 ask 0 40
         2 ask 0 40
         2 broken 2
         2.6 wake
         9 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 2.5
            0     a2 exec m0 on d0 batch 1 [0] by 2.5
            2        break off 2 on d0
            2     a3 exec m0 on d0 batch 3 [1 2 3] by 33
            2.6   woken for RequestExpires
            2.6      request 0: overloaded until 14
            9        request 1: Done
            9        request 2: Done
            9        request 3: Done
        "#]],
    );
}

#[test]
fn shepherd_breaks_nothing_off_while_a_device_is_free() {
    check(
        PolicyKind::Shepherd,
        "0 device 10
         0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 30
         0 done 1
         0 done 2
         1 ask 0 40 3
         5 done 3
         8 done 4",
        expect![[r#"
            0     a1 load m0 on d0 by 25
            0     a2 load m0 on d1 by 25
            0     a3 exec m0 on d0 batch 1 [0] by 25
            1     a4 exec m0 on d1 batch 3 [1] by 33
            5        request 0: Done
            8        request 1: Done
        "#]],
    );
}

#[test]
fn shepherd_goes_on_where_the_worker_could_not_break_off() {
    // The batch ends as if nobody had asked; then the candidate has its device.
    check(
        PolicyKind::Shepherd,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 30
         0 done 1
         1 ask 0 40
         1 ask 0 40
         2 ask 0 40
         3 ask 0 40
         5 done 2
         13 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 25
            0     a2 exec m0 on d0 batch 1 [0] by 25
            2        break off 2 on d0
            5        request 0: Done
            5     a3 exec m0 on d0 batch 4 [1 2 3 4] by 32
            13       request 1: Done
            13       request 2: Done
            13       request 3: Done
            13       request 4: Done
        "#]],
    );
}

// ---- nexus ----

#[test]
fn nexus_deals_requests_out_to_devices_when_they_come() {
    // Both devices run the model. Requests 1 and 3 wait for d0 though d1 is free first.
    check(
        PolicyKind::Nexus,
        "0 device 10
         0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         0 done 2
         1 ask 0 60
         1 ask 0 60
         2 ask 0 60
         3 ask 0 60
         5 done 3
         6 done 4
         11 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 load m0 on d1 by 95
            0     a3 exec m0 on d0 batch 1 [0] by 95
            1     a4 exec m0 on d1 batch 1 [2] by 55
            5        request 0: Done
            5     a5 exec m0 on d0 batch 2 [1 3] by 54
            6        request 2: Done
            6     a6 exec m0 on d1 batch 1 [4] by 55
            11       request 1: Done
            11       request 3: Done
        "#]],
    );
}

#[test]
fn nexus_serves_the_models_of_a_device_in_turn() {
    check(
        PolicyKind::Nexus,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 model 1 1 4 0 1 2 3 4
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         0 ask 1 100
         0 done 3
         0 ask 2 100
         0 done 4
         1 ask 0 100
         5 done 2
         10 done 5
         15 done 6",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 95
            0     a3 load m1 on d0 by 95
            0     a4 load m2 on d0 by 95
            5        request 0: Done
            5     a5 exec m1 on d0 batch 1 [1] by 95
            10       request 1: Done
            10    a6 exec m2 on d0 batch 1 [2] by 95
            15       request 2: Done
            15    a7 exec m0 on d0 batch 1 [3] by 95
        "#]],
    );
}

#[test]
fn nexus_drops_first_requests_that_would_make_the_batch_smaller_than_planned() {
    // 2 l(b) fits into 16 ms for up to 4. When the device is free at 5 ms, request 1 would leave time for only 2.
    check(
        PolicyKind::Nexus,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 16
         0 done 1
         1 ask 0 11.5
         2 ask 0 18
         2 ask 0 18
         3 ask 0 19
         4 ask 0 20
         5 done 2
         13 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 11
            0     a2 exec m0 on d0 batch 1 [0] by 11
            5        request 0: Done
            5        request 1: overloaded until 23.8125
            5     a3 exec m0 on d0 batch 4 [2 3 4 5] by 10
            13       request 2: Done
            13       request 3: Done
            13       request 4: Done
            13       request 5: Done
        "#]],
    );
}

#[test]
fn nexus_plans_anew_when_a_device_is_lost() {
    // Request 3 was meant for d0 and request 2 ran on d1: all are d0's then, as one batch.
    check(
        PolicyKind::Nexus,
        "0 device 10
         0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         0 done 2
         1 ask 0 60
         2 ask 0 60
         3 ask 0 60
         4 lose 1
         5 done 3
         11 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 load m0 on d1 by 95
            0     a3 exec m0 on d0 batch 1 [0] by 95
            2     a4 exec m0 on d1 batch 1 [2] by 55
            5        request 0: Done
            5     a5 exec m0 on d0 batch 3 [1 2 3] by 53
            11       request 1: Done
            11       request 2: Done
            11       request 3: Done
        "#]],
    );
}

// ---- clipper ----

#[test]
fn clipper_lets_a_batch_grow_with_each_full_one_that_was_in_time() {
    // One at a time at first, then two, then three.
    check(
        PolicyKind::Clipper,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         1 ask 0 100
         1 ask 0 100
         1 ask 0 100
         1 ask 0 100
         1 ask 0 100
         5 done 2
         11 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 100
            5        request 0: Done
            5     a3 exec m0 on d0 batch 2 [1 2] by 100
            11       request 1: Done
            11       request 2: Done
            11    a4 exec m0 on d0 batch 3 [3 4 5] by 100
        "#]],
    );
}

#[test]
fn clipper_waits_a_little_for_company_but_not_when_the_batch_is_full() {
    // The limit is 2 after the first batch. Request 1 waits for 2 ms; request 2 has company after 1 ms.
    check(
        PolicyKind::Clipper,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         5 done 2
         10 ask 0 100
         12 wake
         17 done 3
         20 ask 0 100
         21 ask 0 100
         27 done 4",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 100
            5        request 0: Done
            12    woken for BatchReady
            12    a3 exec m0 on d0 batch 1 [1] by 100
            17       request 1: Done
            21    a4 exec m0 on d0 batch 2 [2 3] by 100
            27       request 2: Done
            27       request 3: Done
        "#]],
    );
}

#[test]
fn clipper_makes_batches_smaller_when_one_was_late() {
    // Whether it will be late isn't foreseen: the batch of 2 runs, is late for request 1, and one at a time follows.
    check(
        PolicyKind::Clipper,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         4 ask 0 10.5
         4 ask 0 100
         4 ask 0 100
         4 ask 0 100
         5 done 2
         11 done 3
         16 done 4",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 100
            5        request 0: Done
            5     a3 exec m0 on d0 batch 2 [1 2] by 10.5
            11       request 1: Late
            11       request 2: Done
            11    a4 exec m0 on d0 batch 1 [3] by 100
            16       request 3: Done
            16    a5 exec m0 on d0 batch 1 [4] by 100
        "#]],
    );
}

#[test]
fn clipper_serves_the_model_with_the_oldest_request() {
    check(
        PolicyKind::Clipper,
        "0 device 10
         0 model 1 1 4 0 1 2 3 4
         0 model 1 1 4 0 1 2 3 4
         0 ask 0 100
         0 done 1
         0 ask 1 100
         0 done 3
         1 ask 0 20
         5 done 2
         10 done 4",
        expect![[r#"
            0     a1 load m0 on d0 by 95
            0     a2 exec m0 on d0 batch 1 [0] by 100
            0     a3 load m1 on d0 by 95
            5        request 0: Done
            5     a4 exec m1 on d0 batch 1 [1] by 100
            10       request 1: Done
            10    a5 exec m0 on d0 batch 1 [2] by 20
        "#]],
    );
}
