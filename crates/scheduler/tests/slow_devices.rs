//! Devices that differ: one that is slower than its kind, and kinds of which only one is quick enough.

#![allow(clippy::unwrap_used, reason = "a test that finds something else than it expects should stop")]

use base::{ActionId, ApplicationId, DeviceId, Duration, LatencyProfile, ModelId, RequestId, Timestamp, Transfers};
use scheduler::{
    ActionStatus, Command, Config, DeviceSpec, Event, Execution, ModelSpec, Outcome, PolicyKind, Report, Request,
    Scheduler,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

const MILLI: Duration = Duration::from_millis(1);

/// Those that look at what each device takes. The other rivals plan with one profile for all devices.
const POLICIES: [PolicyKind; 5] =
    [PolicyKind::Punctual, PolicyKind::Clockwork, PolicyKind::Deferred, PolicyKind::Eager, PolicyKind::Timeout];

/// A scheduler with devices that take what they are said to.
struct World {
    scheduler: Scheduler,
    now: Timestamp,
    /// What each device takes for a batch.
    takes: Vec<Duration>,
    free_at: Vec<Timestamp>,
    under_way: BinaryHeap<Reverse<(Timestamp, ActionId, Timestamp)>>,
    /// By how much wakeups are late.
    late: Duration,
    asked: u32,
    executions: Vec<Execution>,
    outcomes: HashMap<u32, Outcome>,
}

impl World {
    /// One model of one size, which takes so long by its profiles, one for each kind; and devices of these kinds that
    /// really take so long.
    fn new(policy: PolicyKind, profiles: &[u64], devices: &[(u32, u64)]) -> Self {
        Self::with_sizes(policy, profiles, devices, &[1])
    }

    /// The same with batches of these sizes, which take as long as one row.
    fn with_sizes(policy: PolicyKind, profiles: &[u64], devices: &[(u32, u64)], sizes: &[u32]) -> Self {
        let profile =
            |&millis: &u64| LatencyProfile::linear(Duration::ZERO, MILLI * millis, sizes, Duration::ZERO).unwrap();
        let mut world = Self {
            scheduler: Scheduler::new(Config { policy, rehearse: false, ..Config::default() }),
            now: Timestamp::ZERO,
            takes: devices.iter().map(|&(_, millis)| MILLI * millis).collect(),
            free_at: vec![Timestamp::ZERO; devices.len()],
            under_way: BinaryHeap::new(),
            late: Duration::ZERO,
            asked: 0,
            executions: Vec::new(),
            outcomes: HashMap::new(),
        };
        for (index, &(kind, _)) in devices.iter().enumerate() {
            world.tell(Event::DeviceAdded(DeviceSpec { device: DeviceId(index as u32), pages: 1, kind }));
        }
        world.tell(Event::ModelAdded(ModelSpec {
            model: ModelId(0),
            pages: 0,
            profile: profile(&profiles[0]),
            elsewhere: profiles[1..].iter().map(profile).collect(),
            objective: None,
            fixed: Duration::ZERO,
            fairness: scheduler::Fairness::default(),
        }));
        // Weights take neither room nor time: the first request brings them everywhere.
        world.ask(1_000);
        world.run(2_000);
        world.executions.clear();
        world
    }

    fn tell(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.scheduler.step(self.now, event, &mut commands);
        for command in commands {
            match command {
                Command::Execute(execution) => {
                    let free_at = &mut self.free_at[execution.device.index()];
                    let started_at = self.now.max(*free_at);
                    *free_at = started_at + self.takes[execution.device.index()];
                    self.under_way.push(Reverse((*free_at, execution.action, started_at)));
                    self.executions.push(execution);
                }
                Command::Load(load) => self.under_way.push(Reverse((self.now, load.action, self.now))),
                Command::Finish { request, outcome } => _ = self.outcomes.insert(request.slot, outcome),
                Command::Unload(_) | Command::Preempt { .. } => {}
            }
        }
    }

    /// A request with so many milliseconds.
    fn ask(&mut self, millis: u64) -> u32 {
        self.asked += 1;
        let request = Request {
            id: RequestId { slot: self.asked, generation: 0 },
            model: ModelId(0),
            deadline_at: self.now + MILLI * millis,
            priority: 0,
            rows: 1,
            application: ApplicationId::DEFAULT,
            size: None,
        };
        self.tell(Event::Submitted(request));
        self.asked
    }

    /// Lets so many milliseconds pass.
    fn run(&mut self, millis: u64) {
        let until = self.now + MILLI * millis;
        loop {
            let ends_at = self.under_way.peek().map(|Reverse((at, ..))| *at);
            let wakeup_at = self.scheduler.next_wakeup().map(|(at, _)| at.max(self.now) + self.late);
            let next = [ends_at, wakeup_at].into_iter().flatten().min().filter(|&at| at <= until);
            let Some(at) = next else { break };
            self.now = at;
            if ends_at == Some(at) {
                let Reverse((ended_at, action, started_at)) = self.under_way.pop().unwrap();
                let status = ActionStatus::Done { started_at, ended_at, transfers: Transfers::default() };
                self.tell(Event::Reported(Report { action, status }));
            } else {
                self.tell(Event::WokeUp);
            }
        }
        self.now = until;
    }

    /// So many requests at once, so many times.
    fn serve(&mut self, times: u64, at_once: u32, objective: u64) {
        for _ in 0..times {
            (0..at_once).for_each(|_| _ = self.ask(objective));
            self.run(100);
        }
    }

    fn slowness(&self) -> Vec<f64> {
        (0..self.takes.len()).map(|device| self.scheduler.slowness(DeviceId(device as u32))).collect()
    }

    fn ran_on(&self, device: u32) -> impl Iterator<Item = &Execution> {
        self.executions.iter().filter(move |execution| execution.device == DeviceId(device))
    }
}

#[test]
fn what_only_the_quicker_kind_has_time_for_is_served_by_it() {
    for policy in POLICIES {
        for devices in [[(0, 100), (1, 10)], [(1, 10), (0, 100)]] {
            let mut world = World::new(policy, &[100, 10], &devices);
            let asked = [world.ask(50), world.ask(50), world.ask(50)];
            world.run(100);
            for request in asked {
                assert_eq!(world.outcomes[&request], Outcome::Done, "{policy:?} {devices:?}");
            }
            let loose = [world.ask(150), world.ask(150)];
            world.run(200);
            loose.iter().for_each(|request| assert_eq!(world.outcomes[request], Outcome::Done, "{policy:?}"));
        }
    }
}

#[test]
fn what_no_kind_has_time_for_is_refused_at_once_and_told_what_the_quickest_takes() {
    let mut world = World::new(PolicyKind::Punctual, &[100, 10], &[(0, 100), (1, 10)]);
    let request = world.ask(9);
    let Outcome::Rejected(scheduler::Rejection::DeadlineUnreachable { earliest_at }) = world.outcomes[&request] else {
        panic!("{:?}", world.outcomes[&request])
    };
    assert_eq!(earliest_at, world.now + MILLI * 10);
}

#[test]
fn one_slow_device_is_known_as_slow_and_only_it() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[10], &[(0, 10), (0, 30), (0, 10), (0, 10)]);
        world.serve(40, 4, 50);
        let slowness = world.slowness();
        assert_eq!([slowness[0], slowness[2], slowness[3]], [1.0; 3], "{policy:?}");
        assert!((3.0..3.75).contains(&slowness[1]), "{policy:?}: {slowness:?}");
        world.executions.clear();
        world.serve(1, 4, 50);
        for execution in &world.executions {
            let takes = if execution.device == DeviceId(1) { MILLI * 30 } else { MILLI * 10 };
            let expected = execution.expected;
            assert!(
                expected >= takes && expected < takes.mul_f64(1.2),
                "{policy:?}: {expected} on {}",
                execution.device
            );
        }
    }
}

#[test]
fn a_slow_device_is_used_for_what_it_can_do_in_time_and_only_where_others_are_busy() {
    for policy in POLICIES {
        let mut world = World::new(policy, &[10], &[(0, 30), (0, 10), (0, 10)]);
        world.serve(40, 3, 50);
        world.executions.clear();
        // They are in time on quick devices, one after the other.
        world.serve(10, 3, 25);
        assert_eq!(world.ran_on(0).count(), 0, "{policy:?}");
        world.serve(10, 7, 35);
        assert!(world.ran_on(0).count() > 0, "{policy:?}, {:?}", world.slowness());
        let late = world.outcomes.values().filter(|outcome| **outcome == Outcome::Late).count();
        assert!(late <= 20, "{policy:?}: those by which it was found out: {late}");
    }
}

#[test]
fn a_device_that_recovers_is_as_quick_as_its_kind_again() {
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 10), (0, 30), (0, 10)]);
    world.serve(40, 3, 50);
    assert!(world.slowness()[1] > 1.0);
    world.takes[1] = MILLI * 10;
    world.serve(60, 12, 50);
    assert_eq!(world.slowness(), [1.0; 3]);
}

#[test]
fn a_device_that_is_too_slow_for_everything_is_tried_now_and_then() {
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 10), (0, 90), (0, 10)]);
    world.serve(40, 3, 50);
    assert!(world.slowness()[1] > 8.0);
    world.executions.clear();
    world.serve(200, 3, 50);
    assert!([1, 2].contains(&world.ran_on(1).count()), "one batch shows each time that it is still slow");
    assert!(world.slowness()[1] > 8.0);
    world.takes[1] = MILLI * 10;
    world.serve(100, 3, 50);
    assert_eq!(world.slowness(), [1.0; 3]);
}

/// Live, timers are late: who took a last chance at its last instant always found it gone, and was refused beside a
/// device that stood idle for all of its time.
#[test]
fn where_the_quick_device_hangs_a_slow_one_has_its_last_chance_though_wakeups_are_late() {
    for policy in POLICIES {
        let mut world = World::with_sizes(policy, &[10], &[(0, 10), (0, 30), (0, 10)], &[1, 2, 4]);
        // Twelve at once keep all three busy.
        world.serve(40, 12, 60);
        assert!(world.slowness()[1] > 1.0, "{policy:?}: {:?}", world.slowness());
        (world.takes[0], world.takes[2]) = (MILLI * 60_000, MILLI * 60_000);
        (0..8).for_each(|_| _ = world.ask(25));
        world.run(50);
        world.late = MILLI / 2;
        world.executions.clear();
        let request = world.ask(500);
        world.run(1_000);
        assert_eq!(world.outcomes[&request], Outcome::Done, "{policy:?}: {:?}", world.executions);
        assert_eq!(world.ran_on(1).count(), 1, "{policy:?}: {:?}", world.executions);
    }
}

#[test]
fn nobody_is_slow_alone() {
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 30)]);
    world.serve(40, 1, 200);
    assert_eq!(world.slowness(), [1.0]);
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 10), (0, 30)]);
    world.serve(40, 2, 50);
    assert!(world.slowness()[1] > 1.0);
    world.tell(Event::DeviceLost(DeviceId(0)));
    assert_eq!(world.slowness(), [1.0; 2], "it is its kind now");
}

#[test]
fn what_slows_all_devices_down_makes_none_of_them_slow() {
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 10), (0, 30), (0, 10)]);
    world.serve(40, 3, 50);
    assert!(world.slowness()[1] > 1.0);
    world.takes = vec![MILLI * 30; 3];
    world.serve(200, 6, 100);
    assert_eq!(world.slowness(), [1.0; 3]);
}

#[test]
fn a_kind_that_takes_longer_than_its_profile_has_no_slow_devices() {
    let mut world = World::new(PolicyKind::Punctual, &[10], &[(0, 20), (0, 20), (0, 20)]);
    world.serve(100, 3, 100);
    assert_eq!(world.slowness(), [1.0; 3]);
}
