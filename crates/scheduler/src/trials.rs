//! Requests that seem impossible, and are tried all the same.
//!
//! A model whose estimates are too high refuses every deadline below them, runs nothing, and so never learns that they
//! are too high: a profile that was taken on a busy machine, or with an input of nobody's, would keep itself alive. So
//! a request that seems impossible is run where its model's profile is doubted, nothing that was measured speaks
//! against it, and a device that holds the model idles. Mostly it is in time; if it isn't, the model is tried again
//! only after a while, and after longer each time.
//!
//! ```text
//!  impossible ──doubted, idle, not lately in vain──> run at once, alone ──in time──> the next one may be tried, too
//!       └──────────────otherwise──────────────> refused             └──late──> not for 1 s, 2 s, ... 64 s
//! ```

use crate::event::Command;
use crate::policy::Batch;
use crate::queue::Candidate;
use crate::{Request, Scheduler};
use base::{ActionId, DeviceId, Duration, Timestamp};

/// After a first request that was tried in vain.
const FIRST_REST: Duration = Duration::from_secs(1);
const LONGEST_REST: Duration = Duration::from_secs(64);
/// No profile is wrong by more than so many times: with less time than that nothing is tried.
const WRONG_BY: u64 = 64;
/// While other requests are in hand, trials take at most one part in so many of the time.
const SHARE: u64 = 8;

/// One model's trials.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trials {
    /// The one that is under way.
    under_way: Option<ActionId>,
    /// None before.
    next_at: Timestamp,
    /// How long it rested after the last one that was in vain.
    rest: Duration,
}

impl Trials {
    pub fn are_of(&self, action: ActionId) -> bool {
        self.under_way == Some(action)
    }

    fn begun(&mut self, action: ActionId) {
        self.under_way = Some(action);
    }

    /// The one under way ended, in time or not.
    pub fn ended(&mut self, now: Timestamp, in_time: bool) {
        self.under_way = None;
        self.rest = if in_time { Duration::ZERO } else { (self.rest * 2).clamp(FIRST_REST, LONGEST_REST) };
        self.next_at = now + self.rest;
    }
}

impl Scheduler {
    /// Whether a request that seems impossible may be possible, and it is time to find out.
    pub(crate) fn may_be_tried(&self, request: &Request) -> bool {
        let entry = self.ledger.model(request.model);
        let trials = &entry.trials;
        let (hinted, within) = (self.heeds_hints(), request.deadline_at.since(self.now));
        let at_best = |speed| entry.estimates.at_best(speed, request, hinted);
        let may_be_in_time = |&speed| at_best(speed).is_some_and(|takes| takes < within);
        let rested = trials.under_way.is_none() && self.now >= trials.next_at;
        let credible = within * WRONG_BY >= self.alone(request);
        self.learns && rested && credible && self.ledger.speeds_of(entry).iter().any(may_be_in_time)
    }

    /// An idle device to try a request on that seems impossible.
    pub(crate) fn device_to_try(&self, request: &Request) -> Option<DeviceId> {
        if !self.may_be_tried(request) || (self.now < self.try_at && self.in_hand() > 0) {
            return None;
        }
        let exec = |device: DeviceId| &self.ledger.device(device).exec;
        let idle = |device: &DeviceId| exec(*device).is_idle() && !self.ledger.slow.contains(*device);
        self.queues.devices_of(request.model).common(&self.hungry).find(idle)
    }

    /// Runs a request at once, whatever it is expected to take.
    pub(crate) fn try_alone(&mut self, request: Request, device: DeviceId, out: &mut Vec<Command>) {
        self.enqueue(request, None);
        let times = self.ledger.times(request.model, device);
        let class = times.index_of(request.rows);
        let expected = self.alone(&request);
        let candidate = Candidate { class, expected, latest: request.deadline_at };
        let members = vec![request.id];
        self.execute(device, Batch { model: request.model, candidate, members, dropped: Vec::new() }, out);
        let Some(Command::Execute(execution)) = out.last() else { return };
        self.ledger.model_mut(request.model).trials.begun(execution.action);
        self.try_at = self.now + expected * SHARE;
        self.set_hungry(device);
    }
}
