//! The spans around a deadline: how much earlier than it plans aim, when a request is given up, and what ways take.
//!
//! ```text
//!  arrival                     plans aim here      a request that heard nothing      deadline
//!                                                  is answered here
//!  ──┬── reads, waits, computes ──────┬──── REPLY_WAY ────┬──────── GIVE_UP ──────────┤
//!                                     │<──────────── PLAN = GIVE_UP + REPLY_WAY ─────>│
//!
//!  on an executor:    the order leaves ──ORDER_WAY──> transfers ──> the batch before it ends, known to UNSURE
//!
//!  where a configuration bounds the waiting:    waits ──> the longest batch ──ROUND_TRIP──> deadline
//! ```
//!
//! Of a short time, plans and the net leave a part instead of a fixed span, plans the larger one.

use crate::Duration;

/// What the outputs' way to the client takes, beside the gateway's net.
const REPLY_WAY: Duration = Duration::from_micros(500);

/// A request that hears nothing is given up this long before its deadline: timers fire up to a millisecond after their
/// time, a busy machine takes its time to run the thread, and the refusal must be there by the deadline.
const GIVE_UP: Duration = Duration::from_millis(3);
/// Of a short time, one part in so many.
const GIVE_UP_SHARE: u64 = 20;

/// Plans aim this long before the deadline.
const PLAN: Duration = Duration::from_nanos(GIVE_UP.as_nanos() + REPLY_WAY.as_nanos());
/// Of a short time, one part in so many.
const PLAN_SHARE: u64 = 16;

/// An answer that is made of what has arrived is made this much earlier, and its members are asked to be: a machine
/// that is busy for longer than `GIVE_UP` must not cost a client what was there in time.
const GATHER: Duration = Duration::from_millis(20);
/// Of a short time, one part in so many.
const GATHER_SHARE: u64 = 50;

/// For the way of a request and of its answer, where the deadline follows from how long a request may wait.
pub const ROUND_TRIP: Duration = Duration::from_millis(10);

/// Where the next batch's transfers are to be hidden behind the one that runs, its order leaves so much earlier than
/// they take: for its way, and because actions mostly end earlier than was planned with.
pub const ORDER_WAY: Duration = Duration::from_micros(250);

/// Threads and timers of a busy machine are late by so much: what would start at its last instant starts so much
/// earlier.
pub const LATE_WAKEUP: Duration = Duration::from_millis(1);

/// How exactly the end of an action is known while it runs.
pub const UNSURE: Duration = Duration::from_micros(100);

const _: () = {
    assert!(PLAN_SHARE < GIVE_UP_SHARE, "of a short time too, plans aim before the net answers");
    assert!(UNSURE.as_nanos() < REPLY_WAY.as_nanos(), "what ends as late as it may is still before the net");
    assert!(
        UNSURE.as_nanos() < ORDER_WAY.as_nanos(),
        "an order that leaves ahead is there when the action before it ends"
    );
    assert!(PLAN.as_nanos() < ROUND_TRIP.as_nanos(), "who waited as long as it may is still planned");
};

/// How long before its deadline a request is given up that has so much time in all.
pub fn give_up_before(time: Duration) -> Duration {
    GIVE_UP.min(time / GIVE_UP_SHARE)
}

/// How long before its deadline plans aim for a request that has so much time left.
pub fn plan_before(time: Duration) -> Duration {
    PLAN.min(time / PLAN_SHARE)
}

/// How much earlier than its deadline an answer is due that is made of what has arrived by then.
pub fn gather_before(time: Duration) -> Duration {
    GATHER.min(time / GATHER_SHARE)
}

/// The shortest time of which so much is left when `gather_before` is taken away.
pub fn time_to_gather(time: Duration) -> Duration {
    let short = time * GATHER_SHARE / (GATHER_SHARE - 1) + Duration::from_nanos(1);
    short.min(time + GATHER)
}

/// The shortest time with which plans would have so much: what `plan_before` takes away, put back.
pub fn time_for(planned: Duration) -> Duration {
    let short = planned * PLAN_SHARE / (PLAN_SHARE - 1) + Duration::from_nanos(1);
    short.min(planned + PLAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES_US: [u64; 7] = [10, 600, 6_000, 10_000, 56_000, 60_000, 900_000];

    /// An ensemble whose members have all but one answered lost everything when its thread was 3 ms late.
    #[test]
    fn an_answer_of_what_has_arrived_leaves_a_busy_machine_time() {
        let net = |time: Duration| give_up_before(time) + gather_before(time);
        assert!(net(Duration::from_secs(1)) > Duration::from_millis(20));
        for time in TIMES_US.map(Duration::from_micros) {
            assert!(gather_before(time) > Duration::ZERO && net(time) * 10 < time, "{time}: {}", net(time));
            let asked = time_to_gather(time);
            assert!(asked - gather_before(asked) >= time && asked <= time + GATHER, "{time}: {asked}");
        }
    }

    #[test]
    fn plans_aim_before_the_net_answers_and_both_before_the_deadline() {
        for time in TIMES_US.map(Duration::from_micros) {
            let (plan, net) = (plan_before(time), give_up_before(time));
            assert!(time > plan && plan > net && net > Duration::ZERO, "{time}: {plan}, {net}");
        }
    }

    #[test]
    fn what_a_refusal_says_would_have_been_enough_would_have_been() {
        for planned in TIMES_US.map(Duration::from_micros) {
            let asked = time_for(planned);
            assert!(asked - plan_before(asked) >= planned, "{planned}");
            assert!(asked - planned <= PLAN, "{planned}");
        }
    }
}
