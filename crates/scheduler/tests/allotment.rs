//! Devices that only some models may use.

mod script;

use expect_test::expect;
use scheduler::{Config, PolicyKind};
use script::check;

fn config() -> Config {
    Config { policy: PolicyKind::Eager, rehearse: false, ..Config::default() }
}

#[test]
fn a_model_runs_only_where_it_may_and_its_weights_stay() {
    check(
        config(),
        "0 device 4
         0 device 4
         0 model 1 1 1 1
         0 model 1 1 1 1
         1 ask 0 100
         2 done 1
         2 done 2
         4 done 3
         5 allot 0:1 1:0
         10 ask 0 100
         11 ask 1 100
         12 done 4
         12 done 5
         14 done 6
         30 allot 0:* 1:*
         40 ask 0 100",
        expect![[r#"
            1     a1 load m0 on d0 by 97
            1     a2 load m0 on d1 by 97
            2     a3 exec m0 on d0 batch 1 [0] by 98
            4        request 0: Done
            10    a4 exec m0 on d1 batch 1 [1] by 98
            11    a5 load m1 on d0 by 97
            12       request 1: Done
            12    a6 exec m1 on d0 batch 1 [2] by 98
            14       request 2: Done
            30    a7 load m1 on d1 by -
            40    a8 exec m0 on d0 batch 1 [3] by 98
        "#]],
    );
}

#[test]
fn who_may_run_nowhere_is_refused_and_what_was_ordered_is_done() {
    check(
        config(),
        "0 device 4
         0 model 1 1 1 1
         1 ask 0 100
         2 done 1
         3 allot 0:-
         4 ask 0 100
         5 done 2
         6 allot 0:*
         7 ask 0 100",
        expect![[r#"
            1     a1 load m0 on d0 by 97
            2     a2 exec m0 on d0 batch 1 [0] by 98
            4        request 1: Rejected(NoDevice)
            5        request 0: Done
            7     a3 exec m0 on d0 batch 1 [2] by 97
        "#]],
    );
}

#[test]
fn parked_weights_go_when_their_pages_are_needed() {
    check(
        config(),
        "0 device 1
         0 model 1 1 1 1
         0 model 1 1 1 1
         1 ask 0 100
         2 done 1
         4 done 2
         5 allot 0:1
         6 ask 1 100
         7 done 3
         8 done 4
         9 allot 0:0
         10 ask 0 100",
        expect![[r#"
            1     a1 load m0 on d0 by 97
            2     a2 exec m0 on d0 batch 1 [0] by 98
            4        request 0: Done
            6        unload m0 on d0
            6     a3 load m1 on d0 by 97
            7     a4 exec m1 on d0 batch 1 [1] by 98
            8        request 1: Done
            10       unload m1 on d0
            10    a5 load m0 on d0 by 97
        "#]],
    );
}

#[test]
fn a_lost_device_takes_its_allotment_with_it() {
    check(
        config(),
        "0 device 4
         0 device 4
         0 model 0 1 1 0
         0 allot 0:0 1:-
         1 ask 0 100
         2 lose 0
         3 ask 0 100
         4 allot 1:0
         4 done 2
         5 ask 0 100",
        expect![[r#"
            0     a1 load m0 on d0 by -
            3        request 1: Rejected(NoDevice)
            4     a2 load m0 on d1 by 98
            4     a3 exec m0 on d1 batch 1 [0] by 98
        "#]],
    );
}
