//! Are there enough devices? From the share of requests that ended badly and the share of time that devices idle.
//!
//! Symphony, section 3.5. A scheduler with a flat top loses `r = (o - p)/o` of an offered load `o` above the peak `p`,
//! and leaves devices idle for `f = (p - o)/p` of the time below it. So the two say how many of `N` devices are missing
//! or spare:
//!
//! ```text
//!  bad rate r above the threshold:   add    ceil(N r / (1 - r))
//!  otherwise:                        remove N - ceil(N (1 - f) / (1 - reserve)),  at most floor(N f)
//! ```
//!
//! Advice that is followed must not be taken back a minute later. Four rules see to that:
//!
//! 1. **A change starts the window anew.** What was counted with another number of devices says nothing about this one;
//!    without this rule one overload would be answered by every sample that still remembers it.
//! 2. **Adding is quick, removing is slow.** Adding looks at the last `settle` (10 s), removing at a whole window (60
//!    s).
//! 3. **A band.** Devices are removed when more than twice the reserve idles, and then so many that the reserve stays.
//! 4. **Idle time at which requests were lost isn't spare.** Schedulers that wait for larger batches are at their limit
//!    while devices idle. The idle fraction of the last overload is added to the reserve, and forgotten by half every
//!    hour: a step down that was one too many isn't tried again soon.

use base::{Duration, Timestamp};
use std::collections::VecDeque;
use std::fmt;

/// So many snapshots are kept of a window; closer ones replace each other (P9).
const SNAPSHOTS: u64 = 64;
/// A bad rate above this counts as this: when nothing succeeds, `r / (1 - r)` says nothing, and ten times as many
/// devices is as far as one step should go.
const HIGHEST_BAD_RATE: f64 = 0.9;
/// More than this is never kept idle because of what was lost once: a burst isn't the rule. Policies that wait for
/// larger batches were seen to be at their limit with 3 to 30 % idle.
const HIGHEST_RESERVE: f64 = 0.4;

/// When to say what.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AdvisorConfig {
    /// How far back it looks, and how long it must have looked before devices are given away.
    pub window: Duration,
    /// How far back it looks for lost requests, and how long it must have looked before it says anything.
    pub settle: Duration,
    /// The share of bad requests up to which all is well.
    pub max_bad: f64,
    /// With fewer bad requests than this in the window, there was bad luck, not overload.
    pub min_bad: u64,
    /// The share of time that devices shall idle, for what the next minute brings.
    pub reserve: f64,
    /// After so long, half of the idle fraction at which requests were lost is forgotten.
    pub half_life: Duration,
    /// So many devices are always kept.
    pub min_devices: u32,
}

impl Default for AdvisorConfig {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(60),
            settle: Duration::from_secs(10),
            max_bad: 0.01,
            min_bad: 5,
            reserve: 0.1,
            half_life: Duration::from_secs(3600),
            min_devices: 1,
        }
    }
}

/// What was counted since the start, all of it; the advisor takes the differences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterCounts {
    /// When.
    pub now: Timestamp,
    /// Requests that are over, except those that no number of devices could have served (bad input, cancelled).
    pub ended: u64,
    /// Those of them that were late, dropped or refused for want of time.
    pub bad: u64,
    /// Time that devices spent executing, of all devices together.
    pub busy: Duration,
    /// How many devices there are now.
    pub devices: u32,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Nothing.
    Enough,
    /// Get so many more.
    Add(u32),
    /// Give so many back.
    Remove(u32),
}

/// Why.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ground {
    /// Not enough was counted yet with this number of devices.
    Settling,
    /// Requests are lost.
    Overloaded,
    /// More idles than the reserve.
    Idle,
    /// Neither.
    Balanced,
}

/// What to do, and the numbers that it came from.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Advice {
    /// What to do.
    pub action: Action,
    /// Why.
    pub ground: Ground,
    /// Devices that there are.
    pub devices: u32,
    /// Requests that ended in the window.
    pub ended: u64,
    /// Those of them that were bad.
    pub bad: u64,
    /// Their share; 0 if none ended.
    pub bad_rate: f64,
    /// Share of the devices' time without executions; 0 if nothing was measured.
    pub idle_fraction: f64,
    /// Share of time that is kept idle: the configured one, or more if requests were lost with so much idle.
    pub reserve: f64,
    /// How long the window is so far.
    pub looked: Duration,
}

impl Advice {
    /// Devices that there should be.
    pub fn wanted(&self) -> u32 {
        match self.action {
            Action::Enough => self.devices,
            Action::Add(more) => self.devices.saturating_add(more),
            Action::Remove(fewer) => self.devices.saturating_sub(fewer),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bad, idle) = (self.bad_rate * 100.0, self.idle_fraction * 100.0);
        let looked = self.looked.as_secs_f64();
        match (self.action, self.ground) {
            (Action::Add(more), _) => write!(
                f,
                "add {more} to the {} devices: {bad:.1} % of {} requests were bad in the last {looked:.0} s",
                self.devices, self.ended
            ),
            (Action::Remove(fewer), _) => write!(
                f,
                "remove {fewer} of the {} devices: they idled {idle:.1} % of the last {looked:.0} s, {:.1} % are kept in reserve",
                self.devices,
                self.reserve * 100.0
            ),
            (Action::Enough, Ground::Settling) => {
                write!(f, "no advice yet: only {looked:.0} s were counted with {} devices", self.devices)
            }
            (Action::Enough, _) => write!(
                f,
                "{} devices are enough: {bad:.1} % of {} requests were bad and devices idled {idle:.1} % of the last {looked:.0} s",
                self.devices, self.ended
            ),
        }
    }
}

/// What was counted up to an instant, with the device time that there was.
#[derive(Clone, Copy, Debug)]
struct Snapshot {
    at: Timestamp,
    ended: u64,
    bad: u64,
    busy: Duration,
}

/// Looks at samples through a sliding window, and advises.
///
/// Call [`observe`](Self::observe) about every second, and [`advise`](Self::advise) whenever somebody wants to know.
/// Equal samples give equal advice.
#[derive(Clone, Debug)]
pub struct Advisor {
    config: AdvisorConfig,
    /// Of the present number of devices only, oldest first; the last is the newest sample.
    snapshots: VecDeque<Snapshot>,
    devices: u32,
    /// The lowest idle fraction of the last overload, and when that was last seen.
    lost_at_idle: Option<(f64, Timestamp)>,
    /// Requests were being lost at the last sample.
    losing: bool,
}

impl Advisor {
    /// An advisor that has seen nothing.
    pub fn new(config: AdvisorConfig) -> Self {
        Self { config, snapshots: VecDeque::new(), devices: 0, lost_at_idle: None, losing: false }
    }

    /// Takes a sample. Totals that are smaller than before belong to a server that was started anew.
    pub fn observe(&mut self, sample: ClusterCounts) {
        let ClusterCounts { now, ended, bad, busy, devices } = sample;
        let newest = self.snapshots.back();
        let restarted = newest.is_some_and(|n| ended < n.ended || bad < n.bad || busy < n.busy || now < n.at);
        if restarted || devices != self.devices {
            self.snapshots.clear();
            self.devices = devices;
        }
        self.keep(Snapshot { at: now, ended, bad, busy });
        let losing = self.is_overloaded(&self.look(self.config.settle));
        if losing {
            // The lowest of one overload, and not much of the time around it, in which devices idle as they do without
            // it.
            let idle = self.look(self.config.settle / 2).idle_fraction;
            let before = self.lost_at_idle.filter(|_| self.losing).map_or(1.0, |(idle, _)| idle);
            self.lost_at_idle = Some((before.min(idle), now));
        }
        self.losing = losing;
    }

    /// What to do about what was seen up to `now`.
    pub fn advise(&self, now: Timestamp) -> Advice {
        let lately = self.look(self.config.settle);
        let seen = if self.is_overloaded(&lately) { lately } else { self.look(self.config.window) };
        let reserve = self.reserve(now);
        let (action, ground) = self.decide(&seen, reserve);
        Advice { action, ground, reserve, ..seen }
    }

    fn decide(&self, seen: &Advice, reserve: f64) -> (Action, Ground) {
        if self.is_overloaded(seen) {
            return (Action::Add(missing(self.devices, seen.bad_rate)), Ground::Overloaded);
        }
        if seen.looked < self.config.settle {
            return (Action::Enough, Ground::Settling);
        }
        let fine = seen.bad_rate <= self.config.max_bad || seen.bad < self.config.min_bad;
        if !fine || seen.looked < self.config.window || seen.idle_fraction <= self.band(reserve) {
            return (Action::Enough, Ground::Balanced);
        }
        match spare(self.devices, seen.idle_fraction, reserve, self.config.min_devices) {
            0 => (Action::Enough, Ground::Balanced),
            fewer => (Action::Remove(fewer), Ground::Idle),
        }
    }

    fn is_overloaded(&self, seen: &Advice) -> bool {
        seen.looked >= self.config.settle && seen.bad >= self.config.min_bad && seen.bad_rate > self.config.max_bad
    }

    /// What is kept idle: the configured share on top of that at which requests were lost.
    fn reserve(&self, now: Timestamp) -> f64 {
        let configured = self.config.reserve.clamp(0.0, HIGHEST_RESERVE);
        (configured + self.remembered(now)).min(HIGHEST_RESERVE.max(configured))
    }

    /// Idle time up to here is left alone.
    fn band(&self, reserve: f64) -> f64 {
        reserve + self.config.reserve.clamp(0.0, HIGHEST_RESERVE)
    }

    /// What is left of the idle fraction at which requests were lost.
    fn remembered(&self, now: Timestamp) -> f64 {
        let half_life = self.config.half_life.as_secs_f64().max(1e-9);
        self.lost_at_idle.map_or(0.0, |(idle, at)| idle * (-now.since(at).as_secs_f64() / half_life).exp2())
    }

    /// Puts a snapshot at the end, and lets go of what the window doesn't need: one at or before its start stays.
    fn keep(&mut self, new: Snapshot) {
        let close = Duration::from_nanos(self.config.window.as_nanos() / SNAPSHOTS);
        let replaces = self.snapshots.len() >= 2 && new.at.since(self.snapshots[self.snapshots.len() - 2].at) < close;
        if replaces {
            self.snapshots.pop_back();
        }
        self.snapshots.push_back(new);
        while self.snapshots.len() >= 2 && new.at.since(self.snapshots[1].at) >= self.config.window {
            self.snapshots.pop_front();
        }
    }

    /// The last `span` in numbers, or all there is if that is less.
    fn look(&self, span: Duration) -> Advice {
        let newest = self.snapshots.back();
        let before = newest.and_then(|n| self.snapshots.iter().rev().find(|s| n.at.since(s.at) >= span));
        let (Some(oldest), Some(newest)) = (before.or(self.snapshots.front()), newest) else {
            return Advice {
                action: Action::Enough,
                ground: Ground::Settling,
                devices: self.devices,
                ended: 0,
                bad: 0,
                bad_rate: 0.0,
                idle_fraction: 0.0,
                reserve: self.config.reserve,
                looked: Duration::ZERO,
            };
        };
        let looked = newest.at.since(oldest.at);
        let ended = newest.ended - oldest.ended;
        // A request is bad only if it ended; a caller that counts otherwise must not get a share above 1.
        let bad = (newest.bad - oldest.bad).min(ended);
        let there = looked.as_secs_f64() * f64::from(self.devices);
        let busy = (newest.busy - oldest.busy).as_secs_f64();
        Advice {
            action: Action::Enough,
            ground: Ground::Settling,
            devices: self.devices,
            ended,
            bad,
            bad_rate: if ended == 0 { 0.0 } else { bad as f64 / ended as f64 },
            idle_fraction: if there > 0.0 { (1.0 - busy / there).clamp(0.0, 1.0) } else { 0.0 },
            reserve: self.config.reserve,
            looked,
        }
    }
}

/// `ceil(N r / (1 - r))`; without any device, one to begin with.
fn missing(devices: u32, bad_rate: f64) -> u32 {
    let rate = bad_rate.min(HIGHEST_BAD_RATE);
    // Less than a millionth above a whole number is the arithmetic's, not the load's.
    ((f64::from(devices) * rate / (1.0 - rate) - 1e-6).ceil() as u32).max(1)
}

/// How many can go so that the others idle for the reserve.
fn spare(devices: u32, idle: f64, reserve: f64, at_least: u32) -> u32 {
    let there = f64::from(devices);
    let needed = (there * (1.0 - idle) / (1.0 - reserve) - 1e-6).ceil() as u32;
    let idle_ones = (there * idle + 1e-6).floor() as u32;
    devices.saturating_sub(needed.max(at_least)).min(idle_ones)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A cluster that loses and idles as section 3.5 wants it, except that it is at its limit when `limit` of the
    /// devices' time is used.
    struct TestCluster {
        now: Timestamp,
        totals: (f64, f64, f64),
        devices: u32,
        limit: f64,
        /// Requests per second that one device serves if it is always busy.
        per_device: f64,
    }

    impl TestCluster {
        fn new(devices: u32, limit: f64) -> Self {
            Self { now: Timestamp::ZERO, totals: (0.0, 0.0, 0.0), devices, limit, per_device: 100.0 }
        }

        fn sample(&self) -> ClusterCounts {
            let (ended, bad, busy) = self.totals;
            ClusterCounts {
                now: self.now,
                ended: ended as u64,
                bad: bad as u64,
                busy: Duration::from_secs_f64(busy),
                devices: self.devices,
            }
        }

        /// One second of so many requests.
        fn second(&mut self, offered: f64) -> ClusterCounts {
            let peak = f64::from(self.devices) * self.limit * self.per_device;
            let served = offered.min(peak);
            self.totals.0 += offered;
            self.totals.1 += offered - served;
            self.totals.2 += served / self.per_device;
            self.now += SECOND;
            self.sample()
        }

        /// Follows the advice every second; gives the number of devices after each.
        fn follow(&mut self, advisor: &mut Advisor, seconds: u32, offered: impl Fn(u32) -> f64) -> Vec<u32> {
            (0..seconds)
                .map(|second| {
                    let sample = self.second(offered(second));
                    advisor.observe(sample);
                    self.devices = advisor.advise(self.now).wanted();
                    self.devices
                })
                .collect()
        }
    }

    fn changes(devices: &[u32]) -> Vec<i64> {
        devices.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).filter(|&change| change != 0).collect()
    }

    fn after(cluster: &mut TestCluster, advisor: &mut Advisor, seconds: u32, offered: f64) -> Advice {
        advisor.observe(cluster.sample());
        for _ in 0..seconds {
            advisor.observe(cluster.second(offered));
        }
        advisor.advise(cluster.now)
    }

    #[test]
    fn overload_asks_for_what_the_paper_says() {
        // 10 devices, 1,250 offered, 1,000 served: r = 0.2, and 10 * 0.2 / 0.8 = 2.5.
        let (mut cluster, mut advisor) = (TestCluster::new(10, 1.0), Advisor::new(AdvisorConfig::default()));
        let advice = after(&mut cluster, &mut advisor, 10, 1250.0);
        assert_eq!((advice.action, advice.ground, advice.wanted()), (Action::Add(3), Ground::Overloaded, 13));
        assert_eq!((advice.ended, advice.bad, advice.idle_fraction), (12_500, 2_500, 0.0));
        assert_eq!(advice.to_string(), "add 3 to the 10 devices: 20.0 % of 12500 requests were bad in the last 10 s");
    }

    #[test]
    fn nothing_is_said_before_enough_was_seen() {
        let (mut cluster, mut advisor) = (TestCluster::new(10, 1.0), Advisor::new(AdvisorConfig::default()));
        assert_eq!(advisor.advise(Timestamp::ZERO).ground, Ground::Settling);
        let advice = after(&mut cluster, &mut advisor, 9, 1250.0);
        assert_eq!((advice.action, advice.ground), (Action::Enough, Ground::Settling));
        assert_eq!(advice.to_string(), "no advice yet: only 9 s were counted with 10 devices");
    }

    #[test]
    fn idle_devices_go_except_for_the_reserve() {
        // 100 devices, 40 busy: 40 / 0.9 = 44.4 are needed.
        let (mut cluster, mut advisor) = (TestCluster::new(100, 1.0), Advisor::new(AdvisorConfig::default()));
        assert_eq!(after(&mut cluster, &mut advisor, 59, 4000.0).action, Action::Enough);
        advisor.observe(cluster.second(4000.0));
        let advice = advisor.advise(cluster.now);
        assert_eq!((advice.action, advice.ground, advice.wanted()), (Action::Remove(55), Ground::Idle, 45));
        assert_eq!(
            advice.to_string(),
            "remove 55 of the 100 devices: they idled 60.0 % of the last 60 s, 10.0 % are kept in reserve"
        );
    }

    #[test]
    fn twice_the_reserve_is_left_alone() {
        for (busy, action) in [(81, Action::Enough), (95, Action::Enough), (79, Action::Remove(12))] {
            let (mut cluster, mut advisor) = (TestCluster::new(100, 1.0), Advisor::new(AdvisorConfig::default()));
            let advice = after(&mut cluster, &mut advisor, 70, f64::from(busy) * 100.0);
            assert_eq!(advice.action, action, "{busy} busy");
        }
    }

    #[test]
    fn the_last_device_stays_and_none_at_all_becomes_one() {
        let (mut cluster, mut advisor) = (TestCluster::new(3, 1.0), Advisor::new(AdvisorConfig::default()));
        assert_eq!(after(&mut cluster, &mut advisor, 70, 0.0).action, Action::Remove(2));
        let (mut cluster, mut advisor) = (TestCluster::new(0, 1.0), Advisor::new(AdvisorConfig::default()));
        assert_eq!(after(&mut cluster, &mut advisor, 10, 50.0).action, Action::Add(1));
    }

    #[test]
    fn a_few_bad_requests_are_bad_luck() {
        let advise = |bad: u64| {
            let mut advisor = Advisor::new(AdvisorConfig::default());
            let sample = |seconds, ended, bad| ClusterCounts {
                now: Timestamp::ZERO + Duration::from_secs(seconds),
                ended,
                bad,
                busy: Duration::from_secs(seconds),
                devices: 1,
            };
            advisor.observe(sample(0, 0, 0));
            advisor.observe(sample(10, 20, bad));
            advisor.advise(Timestamp::ZERO + Duration::from_secs(10)).action
        };
        assert_eq!((advise(4), advise(5)), (Action::Enough, Action::Add(1)));
    }

    #[test]
    fn when_nothing_succeeds_ten_times_as_many_is_the_most() {
        let mut advisor = Advisor::new(AdvisorConfig::default());
        for second in 0..=10 {
            let now = Timestamp::ZERO + Duration::from_secs(second);
            advisor.observe(ClusterCounts {
                now,
                ended: second * 100,
                bad: second * 100,
                busy: Duration::ZERO,
                devices: 4,
            });
        }
        assert_eq!(advisor.advise(Timestamp::ZERO + Duration::from_secs(10)).action, Action::Add(36));
    }

    #[test]
    fn one_overload_is_answered_once() {
        let (mut cluster, mut advisor) = (TestCluster::new(10, 1.0), Advisor::new(AdvisorConfig::default()));
        advisor.observe(cluster.sample());
        let devices = cluster.follow(&mut advisor, 600, |_| 1250.0);
        assert_eq!(changes(&devices), [3], "{devices:?}");
    }

    #[test]
    fn a_steady_load_is_reached_and_kept_whatever_the_start_and_the_limit() {
        for limit in [1.0, 0.9, 0.7] {
            for start in [1, 5, 20, 64, 300] {
                let (mut cluster, mut advisor) =
                    (TestCluster::new(start, limit), Advisor::new(AdvisorConfig::default()));
                advisor.observe(cluster.sample());
                // Within 5 %, differently every second.
                let noisy = |second: u32| 6400.0 * (1.0 + 0.05 * f64::from(second * 7919 % 101) / 50.0 - 0.05);
                let devices = cluster.follow(&mut advisor, 1800, noisy);
                let settled = &devices[600..];
                assert!(changes(settled).is_empty(), "limit {limit}, start {start}: {:?}", changes(&devices));
                let enough = 6400.0 / 100.0 / limit;
                let there = f64::from(settled[0]);
                assert!(there >= enough, "limit {limit}, start {start}: {there} devices");
                assert!(there <= enough * 1.3, "limit {limit}, start {start}: {there} devices");
            }
        }
    }

    #[test]
    fn devices_follow_a_load_that_comes_and_goes() {
        let (mut cluster, mut advisor) = (TestCluster::new(20, 1.0), Advisor::new(AdvisorConfig::default()));
        advisor.observe(cluster.sample());
        let offered = |second: u32| if (second / 600).is_multiple_of(2) { 1800.0 } else { 9000.0 };
        let devices = cluster.follow(&mut advisor, 3600, offered);
        for (quarter, last) in [599, 1199, 1799, 2399].into_iter().enumerate() {
            let needed = if quarter % 2 == 0 { 18 } else { 90 };
            assert!((needed..=needed * 5 / 4).contains(&devices[last]), "{last}: {}", devices[last]);
        }
        // Each turn of the load is answered by few changes, all in its direction.
        assert!(changes(&devices).len() <= 12, "{:?}", changes(&devices));
    }

    #[test]
    fn a_server_that_was_started_anew_is_looked_at_anew() {
        let (mut cluster, mut advisor) = (TestCluster::new(10, 1.0), Advisor::new(AdvisorConfig::default()));
        after(&mut cluster, &mut advisor, 30, 1250.0);
        let fresh = ClusterCounts { now: cluster.now + SECOND, ended: 3, bad: 0, busy: Duration::ZERO, devices: 10 };
        advisor.observe(fresh);
        assert_eq!(advisor.advise(fresh.now).ground, Ground::Settling);
        assert_eq!(advisor.advise(fresh.now).ended, 0);
    }

    #[test]
    fn a_thousand_samples_a_second_keep_a_bounded_memory_and_the_same_advice() {
        let mut advisor = Advisor::new(AdvisorConfig::default());
        for milli in 0..=120_000_u64 {
            advisor.observe(ClusterCounts {
                now: Timestamp::ZERO + Duration::from_millis(milli),
                ended: milli,
                bad: 0,
                busy: Duration::from_millis(milli * 4),
                devices: 10,
            });
        }
        assert!(advisor.snapshots.len() as u64 <= SNAPSHOTS + 2, "{}", advisor.snapshots.len());
        let advice = advisor.advise(Timestamp::ZERO + Duration::from_secs(120));
        // 4 of 10 busy: 4 / 0.9 = 4.4.
        assert_eq!(advice.action, Action::Remove(5));
    }
}
