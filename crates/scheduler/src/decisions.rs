//! What a [`Scheduler`] does once it knows the facts: which weights are loaded, which batches start, who is given up.

use crate::Scheduler;
use crate::event::{Command, Execution, Outcome, Rejection, Unload};
use crate::executor::{Executor, Lead};
use crate::ledger::Action;
use crate::policy::{Batch, Fact, Next, Started};
use crate::queue::Opening;
use crate::requests::{RequestInHand, State};
use base::{DeviceId, RequestId, Timestamp, Window};

impl Scheduler {
    pub(crate) fn decide(&mut self, out: &mut Vec<Command>) {
        // First: what was loaded for it may have to go when loads are planned.
        if self.queues.has_background() && self.config.batch_work_share > 0.0 {
            self.give_least_share(out);
        } else {
            self.shares.no_batch_work();
        }
        // Before the devices are fed: a model that is always busy is free for a moment now, and may have to go.
        if self.planner.is_due(self.now) {
            self.plan_loads(out);
        }
        if self.kept_until > self.now {
            self.keep_from_nobody();
        }
        let matches = self.config.policy.matches();
        if matches {
            self.follow(out);
        }
        while let Some(device) = self.touched.pop() {
            if self.hungry.contains(device) {
                self.feed(device, out);
            }
        }
        if !matches {
            self.follow(out);
        }
        // What was unloaded just now may have changed who can run what.
        if self.planner.is_due(self.now) && self.plan_loads(out) && !self.config.policy.breaks_off() {
            self.follow(out);
        }
        self.slack.set_batch_work_waits(self.now, self.batch_work_waits());
    }

    /// Orders what should be loaded and unloaded; whether there was something.
    pub(crate) fn plan_loads(&mut self, out: &mut Vec<Command>) -> bool {
        let before = out.len();
        let lead = Lead { ahead: self.config.schedule_ahead, way: self.lead.way };
        self.planner.decide(self.now, lead, &mut self.ledger, &mut self.queues, out);
        for order in &out[before..] {
            if let &Command::Unload(Unload { device, model }) = order {
                self.tell(Fact::Unloaded(model, device));
            }
        }
        out.len() > before
    }

    /// Does what the policy wants of its own accord: starts batches that are ready, or breaks one off.
    pub(crate) fn follow(&mut self, out: &mut Vec<Command>) {
        while let Some(next) = self.next() {
            match next {
                Next::Feed(device) => self.give(device, out),
                Next::BreakOff(device, action) => return out.push(Command::Preempt { device, action }),
            }
        }
    }

    /// Gives a device the batch that is ready for it, if it still has time for one.
    pub(crate) fn give(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        let exec = &self.ledger.device(device).exec;
        let opening = self.opening(exec);
        if exec.is_hungry(self.now, self.lead)
            && let Some(batch) = self.next_batch(device, opening)
        {
            self.execute(device, batch, out);
        }
        self.set_hungry(device);
    }

    pub(crate) fn opening(&self, exec: &Executor) -> Opening {
        Opening { free_at: exec.surely_at(self.now), now: self.now, delay: self.config.delay }
    }

    /// Gives a device batches until it has enough ahead or nothing is in time. Where the policy names the devices for
    /// urgent batches, only batch work.
    pub(crate) fn feed(&mut self, device: DeviceId, out: &mut Vec<Command>) {
        let matched = self.config.policy.matches();
        loop {
            let exec = &self.ledger.device(device).exec;
            if !exec.is_hungry(self.now, self.lead) {
                break;
            }
            let (opening, idle) = (self.opening(exec), exec.is_idle());
            if !matched && let Some(batch) = self.next_batch(device, opening) {
                self.execute(device, batch, out);
            } else if idle {
                // Batch work isn't queued ahead: whoever comes next should wait for one batch of it at most.
                let mut limit = self.slack.batch_work_limit(self.now);
                // Where devices are short one idles for a moment only, kept for who has a turn on it. What takes longer
                // has its least share, on one device after another.
                if self.shares.is_short() && self.config.batch_work_share > 0.0 {
                    limit = limit.of_a_moment();
                }
                let Some(batch) = self.queues.next_background(&self.ledger, device, limit) else { break };
                self.start_batch_work(device, batch, out);
                break;
            } else {
                break;
            }
        }
        self.set_hungry(device);
    }

    /// Devices that have time for a batch and did no batch work lately start some that has waited, before what has
    /// deadlines: where there is always something with a deadline, it would wait for ever. One after another: all of
    /// them at once would leave no device to those with deadlines.
    fn give_least_share(&mut self, out: &mut Vec<Command>) {
        let limit = self.slack.batch_work_limit(self.now).of_the_impatient();
        for index in 0..self.touched.len() {
            let device = self.touched[index];
            if self.now < self.batch_work_at {
                break;
            }
            if !self.hungry.contains(device) {
                continue;
            }
            let there = self.ledger.device(device);
            if there.batch_work_at > self.now || !there.exec.is_hungry(self.now, self.lead) {
                continue;
            }
            let Some(batch) = self.queues.next_background(&self.ledger, device, limit) else { continue };
            let takes = batch.candidate.expected;
            // Nobody is promised a device that is slow.
            let is_slow = self.ledger.slow.contains(device);
            if is_slow || self.shares.batch_work_from(self.now, takes) <= self.now {
                let devices = self.ledger.device_count.max(1) as f64;
                self.batch_work_at = self.now + takes.mul_f64(1.0 / (self.config.batch_work_share * devices));
                self.start_batch_work(device, batch, out);
                self.set_hungry(device);
            }
        }
    }

    fn start_batch_work(&mut self, device: DeviceId, batch: Batch, out: &mut Vec<Command>) {
        let there = self.ledger.device_mut(device);
        // With a share of 0 this is never.
        let apart = batch.candidate.expected.mul_f64(1.0 / self.config.batch_work_share);
        there.batch_work_at = there.exec.start_at(self.now) + apart;
        self.planner.batch_work_started(batch.model);
        self.execute(device, batch, out);
    }

    pub(crate) fn execute(&mut self, device: DeviceId, batch: Batch, out: &mut Vec<Command>) {
        let Batch { model, candidate, members, dropped } = batch;
        for id in dropped {
            self.give_up(id, out);
        }
        let mut rows = 0;
        let mut has_deadlines = false;
        for &id in &members {
            let entry = self.requests.get_mut(id).expect("queued requests are in hand");
            assert_eq!(entry.state, State::Queued, "P1: {id} is to be executed twice");
            entry.state = State::Running;
            let place = entry.place;
            rows += entry.request.rows;
            has_deadlines |= place.deadline_at != Timestamp::NEVER;
            self.take_out(model, place);
            self.release(id);
        }
        let action = self.ledger.next_action();
        let now = self.now;
        self.ledger.touch(now, model, device);
        let class = &self.ledger.times(model, device).classes()[candidate.class];
        let (batch, overlap, keeps) = (class.batch, class.overlap(), class.busy_mean());
        let entry = self.ledger.model_mut(model);
        let residency = entry.residency_on_mut(device).expect("batches run where the weights are (P6)");
        assert!(residency.loading_until.is_none(), "P6: {model} is still loading on {device}");
        residency.in_use += 1;
        let arrives_at = now + self.config.delay.of(rows);
        let free_at = self.ledger.device(device).exec.start_at(arrives_at);
        let expected_done_at =
            self.ledger.device_mut(device).exec.push(arrives_at, action, candidate.expected, overlap);
        self.ledger.device_mut(device).idle_since = Timestamp::NEVER;
        self.ledger.batch_started(device, action, expected_done_at);
        // Shares are of what devices give that aren't slow, to requests with deadlines.
        let until = free_at + keeps;
        match has_deadlines {
            _ if self.ledger.slow.contains(device) => {}
            true => self.shares.started(now, model, device, (keeps, until)),
            false => self.shares.batch_work_started(device, until),
        }
        self.note_queued(model);
        self.tell(Fact::Started(Started { device, action, model, rows, expected: candidate.expected }));
        self.planner.update(self.now, &mut self.ledger, &self.queues, model);
        let speed = self.ledger.device(device).speed();
        self.ledger.actions.insert(action, Action::Execute { device, speed, model, batch, requests: members.clone() });
        out.push(Command::Execute(Execution {
            action,
            device,
            model,
            batch,
            requests: members,
            window: Window { earliest: now, latest: candidate.latest },
            expected: candidate.expected,
            expected_done_at,
        }));
    }

    /// Takes a request that leaves the queue off the books.
    pub(crate) fn release(&mut self, id: RequestId) {
        let entry = self.requests.get_mut(id).expect("queued requests are in hand");
        let (model, work) = (entry.request.model, entry.work);
        if let Some((device, generation, booking)) = entry.booking.take()
            && let Some(Some(there)) = self.ledger.devices.get_mut(device.index())
            && there.generation == generation
        {
            there.backlog.release(booking);
        }
        self.ledger.model_mut(model).demand -= work;
    }

    /// Ends a request that is still queued.
    pub(crate) fn finish_queued(&mut self, id: RequestId, outcome: Outcome, out: &mut Vec<Command>) {
        let entry = *self.requests.get(id).expect("queued requests are in hand");
        self.take_out(entry.request.model, entry.place);
        self.note_queued(entry.request.model);
        self.release(id);
        self.requests.remove(id);
        self.pipelines.forget(id);
        self.planner.update(self.now, &mut self.ledger, &self.queues, entry.request.model);
        out.push(Command::Finish { request: id, outcome: entry.possible(outcome) });
        self.unload_removed(entry.request.model, out);
    }

    /// Refuses what can no longer be in time.
    pub(crate) fn expire(&mut self, out: &mut Vec<Command>) {
        while let Some(id) = self.queues.expired(&self.ledger, self.now) {
            self.give_up(id, out);
        }
    }

    /// Refuses a queued request for which there is no time, or gives it more, if it is a stage that may have it.
    pub(crate) fn give_up(&mut self, id: RequestId, out: &mut Vec<Command>) {
        let &RequestInHand { request, arrived_at, .. } = self.requests.get(id).expect("queued requests are in hand");
        if let Some(deadline_at) = self.later_deadline(&request) {
            return self.postpone(id, deadline_at);
        }
        let earliest_at = self.earliest_after_queue(&request) + self.rest_of(id);
        let rejection = Rejection::Overloaded { earliest_at };
        self.pipelines.lost(id);
        self.settled(request.model, arrived_at, false);
        self.finish_queued(id, Outcome::Rejected(rejection), out);
    }

    /// Batch work is queued where a device is idle: only the wish to stay available keeps it waiting.
    pub(crate) fn batch_work_waits(&self) -> bool {
        self.queues.background_waits(&self.hungry)
    }
}
