//! Scenarios as text: events in, commands out. `script` says how they are written.

mod script;

use base::{ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use expect_test::{Expect, expect};
use scheduler::{ActionStatus, Command, Config, DeviceSpec, Event, ModelSpec, Report, Request, Scheduler};

fn check(ahead_ms: u64, script: &str, expected: Expect) {
    let config = Config { schedule_ahead: Duration::from_millis(ahead_ms), ..Config::clockwork() };
    script::check(config, script, expected);
}

#[test]
fn a_cold_model_is_loaded_then_its_requests_run_as_one_batch() {
    check(
        5,
        "0 device 10
         0 model 4 1 4 8
         1 ask 0 101
         2 ask 0 102
         9 done 1
         15 done 2",
        expect![[r#"
            1     a1 load m0 on d0 by 88
            9     a2 exec m0 on d0 batch 2 [0 1] by 95
            15       request 0: Done
            15       request 1: Done
        "#]],
    );
}

#[test]
fn what_is_behind_a_batch_runs_since_that_ended_not_since_it_was_reported() {
    // Batches of one take 5 ms. The second starts when the first ends, at 13, of which nobody hears before 16: it ends
    // at 18, the third at 23.
    check(
        10,
        "0 device 10
         0 model 4 1 4 8 1
         1 ask 0 101
         9 done 1
         9 ask 0 102
         16 done 2 13
         16 ask 0 23",
        expect![[r#"
            1     a1 load m0 on d0 by 88
            9     a2 exec m0 on d0 batch 1 [0] by 96
            9     a3 exec m0 on d0 batch 1 [1] by 97
            16       request 0: Done
            16    a4 exec m0 on d0 batch 1 [2] by 18
        "#]],
    );
}

#[test]
fn what_cannot_be_in_time_is_refused_at_once_with_the_earliest_deadline() {
    check(
        5,
        "0 device 10
         0 model 4 1 4 8
         1 ask 0 13
         1 ask 0 14
         9 done 1
         14 done 2
         20 ask 0 24.9",
        expect![[r#"
            1        request 0: unreachable before 14
            1     a1 load m0 on d0 by -
            9     a2 exec m0 on d0 batch 1 [1] by 9
            14       request 1: Done
            20       request 2: unreachable before 25
        "#]],
    );
}

#[test]
fn behind_a_backlog_a_request_is_refused_at_once() {
    // A row costs 2 ms at best (batch of 4 in 8 ms). Ten requests are due by 40; the last ones don't fit.
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         13 done 2
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         20 ask 0 40
         25 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            20    a3 exec m0 on d0 batch 1 [1] by 35
            20       request 8: overloaded until 40.875
            20       request 9: overloaded until 40.875
            25       request 1: Done
            25    a4 exec m0 on d0 batch 4 [2 3 4 5] by 32
        "#]],
    );
}

#[test]
fn a_request_whose_time_has_run_out_is_refused_by_a_wakeup() {
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         9 ask 0 20
         15.1 wake
         30 done 2",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            15.1  woken for RequestExpires
            15.1     request 1: overloaded until 25.4125
            30       request 0: Done
        "#]],
    );
}

#[test]
fn the_least_recently_used_model_makes_room() {
    check(
        5,
        "0 device 10
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         13 done 2
         20 ask 1 120
         28 done 3
         33 done 4
         40 ask 0 140
         45 done 5
         50 ask 2 150",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            20    a3 load m1 on d0 by 107
            28    a4 exec m1 on d0 batch 1 [1] by 115
            33       request 1: Done
            40    a5 exec m0 on d0 batch 1 [2] by 135
            45       request 2: Done
            50       unload m1 on d0
            50    a6 load m2 on d0 by 137
        "#]],
    );
}

#[test]
fn batch_work_runs_when_nobody_else_needs_the_device() {
    check(
        0,
        "0 device 10
         0 model 2 1 4 8
         0 model 2 1 4 8
         0 ask 0 -
         8 done 1
         9 ask 0 -
         9 ask 0 -
         9 ask 1 60
         13 done 2
         17 done 3
         18 ask 1 60
         19 done 4
         24 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by -
            8     a2 exec m0 on d0 batch 1 [0] by -
            9     a3 load m1 on d0 by 47
            13       request 0: Done
            13    a4 exec m0 on d0 batch 2 [1 2] by -
            19       request 1: Done
            19       request 2: Done
            19    a5 exec m1 on d0 batch 2 [3 4] by 54
            24       request 3: Done
            24       request 4: Done
        "#]],
    );
}

#[test]
fn a_passed_window_and_a_lost_device_put_requests_back() {
    check(
        0,
        "0 device 10
         0 device 10
         0 model 4 1 4 8
         0 model 9 1 4 8
         0 ask 0 100
         8 done 1
         30 late 2
         40 lose 0
         48 done 4
         53 done 5",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            30    a3 exec m0 on d0 batch 1 [0] by 95
            40    a4 load m0 on d1 by 87
            48    a5 exec m0 on d1 batch 1 [0] by 95
            53       request 0: Done
        "#]],
    );
}

#[test]
fn cancelled_requests_leave_the_queue_and_running_ones_end_as_cancelled() {
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         9 ask 0 100
         9 ask 0 100
         10 cancel 1
         10 cancel 0
         13 done 2",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            10       request 1: Cancelled
            13       request 0: Cancelled
            13    a3 exec m0 on d0 batch 1 [2] by 95
        "#]],
    );
}

#[test]
fn a_removed_model_serves_what_is_queued_refuses_what_comes_and_is_unloaded() {
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         9 ask 0 100
         10 remove 0
         11 ask 0 100
         13 done 2
         18 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            11       request 2: Rejected(ModelUnavailable)
            13       request 0: Done
            13    a3 exec m0 on d0 batch 1 [1] by 95
            18       request 1: Done
            18       unload m0 on d0
        "#]],
    );
}

#[test]
fn urgent_levels_go_first_within_a_model() {
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         9 ask 0 100 1 2
         9 ask 0 100 1 1
         9 ask 0 100 1 1
         13 done 2
         19 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            13    a3 exec m0 on d0 batch 2 [2 3] by 94
            19       request 2: Done
            19       request 3: Done
            19    a4 exec m0 on d0 batch 1 [1] by 95
        "#]],
    );
}

#[test]
fn a_removed_model_that_is_nowhere_refuses_what_is_queued() {
    check(
        0,
        "0 device 4
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 ask 0 100
         1 ask 1 100
         2 remove 1
         8 done 1",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            2        request 1: Rejected(ModelUnavailable)
            8     a2 exec m0 on d0 batch 1 [0] by 95
        "#]],
    );
}

#[test]
fn a_borrowed_device_is_planned_around() {
    check(
        0,
        "0 device 10
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         13 done 2
         20 borrow 0 30
         21 ask 0 40
         21 ask 0 90
         51 return 0",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            21       request 1: overloaded until 55
            51    a3 exec m0 on d0 batch 1 [2] by 85
        "#]],
    );
}

#[test]
fn long_batch_work_waits_for_tight_requests_but_not_for_ever() {
    // A batch of model 1 takes 40 ms; requests for model 0 leave 55 ms of slack, then 35 ms.
    check(
        0,
        "0 device 10
         0 model 2 1 4 8
         0 model 2 1 39 8
         0 ask 0 60
         8 done 1
         13 done 2
         20 ask 1 -
         28 done 3
         1100 wake
         1140 done 4
         2000 ask 0 2040
         2005 done 5
         2010 ask 1 -
         3500 ask 0 3540
         3505 done 6
         5000 ask 0 5040
         5005 done 7
         6500 ask 0 6540
         6505 done 8
         8000 ask 0 8040
         8005 done 9
         9500 ask 0 9540
         9505 done 10
         11000 ask 0 11040
         11005 done 11
         12011 wake",
        expect![[r#"
            0     a1 load m0 on d0 by 47
            8     a2 exec m0 on d0 batch 1 [0] by 55
            13       request 0: Done
            20    a3 load m1 on d0 by -
            1100  woken for RequestExpires
            1100  a4 exec m1 on d0 batch 1 [1] by -
            1140     request 1: Done
            2000  a5 exec m0 on d0 batch 1 [2] by 2035
            2005     request 2: Done
            3500  a6 exec m0 on d0 batch 1 [4] by 3535
            3505     request 4: Done
            5000  a7 exec m0 on d0 batch 1 [5] by 5035
            5005     request 5: Done
            6500  a8 exec m0 on d0 batch 1 [6] by 6535
            6505     request 6: Done
            8000  a9 exec m0 on d0 batch 1 [7] by 8035
            8005     request 7: Done
            9500  a10 exec m0 on d0 batch 1 [8] by 9535
            9505     request 8: Done
            11000 a11 exec m0 on d0 batch 1 [9] by 11035
            11005    request 9: Done
            12011 woken for RequestExpires
            12011 a12 exec m1 on d0 batch 1 [3] by -
        "#]],
    );
}

#[test]
fn batch_work_that_waits_is_spread_over_devices_with_room() {
    check(
        0,
        "0 device 10
         0 device 10
         0 model 4 1 4 8
         0 ask 0 -
         0 ask 0 -
         0 ask 0 -
         0 ask 0 -
         0 ask 0 -
         8 done 1
         8 done 2",
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            8     a3 exec m0 on d0 batch 4 [0 1 2 3] by -
            8     a4 exec m0 on d1 batch 1 [4] by -
        "#]],
    );
}

#[test]
fn a_refused_request_brings_its_model_onto_a_device_with_room() {
    check(
        0,
        "0 device 10
         0 device 10
         0 model 4 1 4 8
         0 model 9 1 4 8
         0 ask 0 100
         8 done 1
         13 done 2
         20 ask 0 30
         20 ask 0 30
         20 ask 0 30
         28 done 4
         29 ask 0 35",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            20    a3 exec m0 on d0 batch 1 [1] by 25
            20       request 3: overloaded until 31.3125
            20    a4 load m0 on d1 by -
            28       request 2: overloaded until 33
            29    a5 exec m0 on d1 batch 1 [4] by 30
        "#]],
    );
}

#[test]
fn a_model_whose_queue_is_never_empty_gives_way_to_more_unmet_work() {
    // Room for one of the two. Model 0 always has a request queued; model 1 comes to want more.
    check(
        0,
        "0 device 6
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         9 ask 0 200
         10 ask 1 200
         11 ask 1 200
         11 ask 1 200
         13 done 2",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            13       unload m0 on d0
            13    a3 load m1 on d0 by 187
        "#]],
    );
}

#[test]
fn where_all_models_fit_one_that_is_asked_for_goes_everywhere() {
    check(
        0,
        "0 device 10
         0 device 10
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         8 done 2
         13 done 3",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            0     a2 load m0 on d1 by 87
            8     a3 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
        "#]],
    );
}

#[test]
fn weights_of_a_model_that_is_expected_are_there_before_its_requests() {
    // What it takes to load it is more than the request has.
    check(
        0,
        "0 device 10
         0 device 10
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 expect 0
         8 done 1
         8 done 2
         9 ask 0 15",
        expect![[r#"
            0     a1 load m0 on d0 by -
            0     a2 load m0 on d1 by -
            9     a3 exec m0 on d0 batch 1 [0] by 10
        "#]],
    );
}

#[test]
fn a_model_that_is_expected_takes_the_room_of_one_that_nobody_needs() {
    check(
        0,
        "0 device 6
         0 model 4 1 4 8
         0 model 4 1 4 8
         0 ask 0 100
         8 done 1
         13 done 2
         20 expect 1
         28 done 3
         30 ask 1 37",
        expect![[r#"
            0     a1 load m0 on d0 by 87
            8     a2 exec m0 on d0 batch 1 [0] by 95
            13       request 0: Done
            20       unload m0 on d0
            20    a3 load m1 on d0 by -
            30    a4 exec m1 on d0 batch 1 [1] by 32
        "#]],
    );
}

#[test]
fn an_overdue_device_is_not_asked_in_the_place_of_one_that_is_idle() {
    // a4 should have been over at 16 ms. Until then d0 wanted more, and nobody has looked at it since.
    check(
        5,
        "0 device 10
         0 device 10
         0 model 1 1 5 2
         0 ask 0 100
         2 done 1
         2 done 2
         8 done 3
         10 ask 0 100
         15 wake
         20 ask 0 30",
        expect![[r#"
            0     a1 load m0 on d0 by 92
            0     a2 load m0 on d1 by 92
            2     a3 exec m0 on d0 batch 1 [0] by 94
            8        request 0: Done
            10    a4 exec m0 on d0 batch 1 [1] by 94
            15    woken for ExecutorHungry
            20    a5 exec m0 on d1 batch 1 [2] by 24
        "#]],
    );
}

#[test]
fn requests_that_come_back_from_a_lost_device_go_to_all_that_are_idle() {
    // d0 is lost with two batches; d1 and d2 are idle and hold the model.
    check(
        5,
        "0 device 10
         0 device 10
         0 device 10
         0 model 1 1 5 2
         0 ask 0 100
         2 done 1
         2 done 2
         2 done 3
         8 done 4
         8 borrow 1 1
         8 borrow 2 1
         8 ask 0 60 4
         12.1 wake
         12.5 ask 0 60 4
         13 return 1
         13 return 2
         15 lose 0",
        expect![[r#"
            0     a1 load m0 on d0 by 92
            0     a2 load m0 on d1 by 92
            0     a3 load m0 on d2 by 92
            2     a4 exec m0 on d0 batch 1 [0] by 94
            8        request 0: Done
            8     a5 exec m0 on d0 batch 4 [1] by 51
            12.1  woken for ExecutorHungry
            12.5  a6 exec m0 on d0 batch 4 [2] by 51
            15    a7 exec m0 on d2 batch 4 [1] by 51
            15    a8 exec m0 on d1 batch 4 [2] by 51
        "#]],
    );
}

#[test]
fn each_kind_of_device_has_its_own_measurements_and_a_device_may_change_its_kind() {
    let (millis, now) = (Duration::from_millis(1), Timestamp::ZERO);
    let profile = |per_row: u64| LatencyProfile::linear(millis * per_row, Duration::ZERO, &[1], millis).unwrap();
    let mut scheduler = Scheduler::new(Config::clockwork());
    let mut commands = Vec::new();
    let model = ModelSpec {
        model: ModelId(0),
        pages: 1,
        profile: profile(10),
        elsewhere: vec![profile(4)],
        objective: None,
        fixed: Duration::ZERO,
        fairness: scheduler::Fairness::default(),
    };
    let request = Request {
        id: RequestId { slot: 0, generation: 0 },
        model: ModelId(0),
        // No time on a device of the slowest kind: there is none.
        deadline_at: now + millis * 6,
        rows: 1,
        priority: 0,
        application: ApplicationId::DEFAULT,
        size: None,
    };
    let loaded = ActionStatus::Done { started_at: now, ended_at: now, transfers: Transfers::default() };
    for event in [
        Event::DeviceAdded(DeviceSpec { device: DeviceId(0), pages: 1, kind: 1 }),
        Event::ModelAdded(model),
        Event::Submitted(request),
        Event::Reported(Report { action: ActionId(1), status: loaded }),
    ] {
        scheduler.step(now, event, &mut commands);
    }
    let [Command::Load(_), Command::Execute(execution)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(execution.expected, millis * 4);
    // Then it is divided otherwise: what follows is planned for the slower kind. The weights stay.
    let done = Event::Reported(Report { action: execution.action, status: loaded });
    let next = Request { id: RequestId { slot: 1, generation: 0 }, deadline_at: now + millis * 10, ..request };
    commands.clear();
    for event in [done, Event::DeviceChanged { device: DeviceId(0), kind: 0 }, Event::Submitted(next)] {
        scheduler.step(now, event, &mut commands);
    }
    let [Command::Finish { .. }, Command::Execute(execution)] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!(execution.expected, millis * 10);
}

#[test]
fn a_profile_that_is_too_high_does_not_refuse_every_deadline_for_ever() {
    // Said to take 60 ms, takes 4. Clients allow 20.
    check(
        5,
        "0 device 10
         0 doubted 4 0 60 8 1
         0 ask 0 -
         8 done 1
         12 done 2
         20 ask 0 40
         24 done 3
         30 ask 0 50
         30 ask 0 50
         34 done 4
         40 ask 0 60
         44 done 5
         50 ask 0 70
         54 done 6
         60 ask 0 80
         60 ask 0 80
         64 done 7
         70 ask 0 71",
        expect![[r#"
            0     a1 load m0 on d0 by -
            8     a2 exec m0 on d0 batch 1 [0] by -
            12       request 0: Done
            20    a3 exec m0 on d0 batch 1 [1] by 40
            24       request 1: Done
            30    a4 exec m0 on d0 batch 1 [2] by 30
            30       request 3: overloaded until 70
            34       request 2: Done
            40    a5 exec m0 on d0 batch 1 [4] by 45.333334
            44       request 4: Done
            50    a6 exec m0 on d0 batch 1 [5] by 58
            54       request 5: Done
            60    a7 exec m0 on d0 batch 1 [6] by 69.6
            60       request 7: overloaded until 80.8
            64       request 6: Done
            70    a8 exec m0 on d0 batch 1 [8] by 71
        "#]],
    );
}

#[test]
fn what_was_tried_in_vain_is_not_tried_again_soon() {
    // It does take 60 ms.
    check(
        5,
        "0 device 10
         0 doubted 4 0 60 8 1
         0 ask 0 -
         8 done 1
         68 done 2
         100 ask 0 120
         160 done 3
         200 ask 0 220
         1159 ask 0 1179
         1160 ask 0 1180
         1220 done 4
         3219 ask 0 3239
         3220 ask 0 3240",
        expect![[r#"
            0     a1 load m0 on d0 by -
            8     a2 exec m0 on d0 batch 1 [0] by -
            68       request 0: Done
            100   a3 exec m0 on d0 batch 1 [1] by 120
            160      request 1: Late
            200      request 2: unreachable before 260
            1159     request 3: unreachable before 1219
            1160  a4 exec m0 on d0 batch 1 [4] by 1180
            1220     request 4: Late
            3219     request 5: unreachable before 3279
            3220  a5 exec m0 on d0 batch 1 [6] by 3240
        "#]],
    );
}

#[test]
fn a_model_that_is_nowhere_is_loaded_for_a_deadline_that_only_seems_impossible() {
    check(
        5,
        "0 device 10
         0 doubted 4 0 60 8 1
         0 ask 0 20
         8 done 1
         10 ask 0 30
         14 done 2",
        expect![[r#"
            0        request 0: unreachable before 68
            0     a1 load m0 on d0 by -
            10    a2 exec m0 on d0 batch 1 [1] by 30
            14       request 1: Done
        "#]],
    );
}

#[test]
fn a_request_is_tried_again_after_the_device_was_lost_that_it_was_tried_on() {
    check(
        5,
        "0 device 10
         0 device 10
         0 doubted 4 0 60 8 1
         0 ask 0 20
         8 done 1
         10 ask 0 30
         11 lose 0
         1100 ask 0 1120
         1108 done 3
         1110 ask 0 1130",
        expect![[r#"
            0        request 0: unreachable before 68
            0     a1 load m0 on d0 by -
            10    a2 exec m0 on d0 batch 1 [1] by 30
            10    a3 load m0 on d1 by -
            11       request 1: Failed
            1100     request 2: unreachable before 1160
            1110  a4 exec m0 on d1 batch 1 [3] by 1130
        "#]],
    );
}
