//! When one device should have all cores: a pure step, told what came, which says what is better.
//!
//! *Wide* is one device with all cores, *narrow* a device on each. Wide answers one request sooner, narrow carries more
//! of them: threads that share an execution wait for each other. So wide is for requests that are mostly alone.
//!
//! What decides is the company that requests meet: how many others without an answer each finds when it comes. How
//! busy devices are doesn't say it: a client that asks again as soon as it is answered keeps a device busy, and nobody
//! waits for anybody.
//!
//! What wide takes is known from a measurement that may be wrong, and nothing runs there while it seems to gain
//! nothing. So it is tried:
//!
//! ```text
//!            calm, and it gains
//!  narrow ───────────────────────────────────────────────────────────────> wide
//!    │ ▲ ▲                                                                 ▲ │
//!    │ │ └────────────────────── company, or no gain ──────────────────────┼─┘
//!    │ └── company, no gain, somebody late ──┐                             │
//!    └── calm, and it might gain ──────────> tried, for 2 s ───it gains────┘
//!        for 30 s, 60 s, ... 300 s
//! ```

use base::ModelNumber;
use std::collections::BTreeMap;

/// Wide must be so many times as quick for what is asked for ...
const LEAST_GAIN: f64 = 1.3;
/// ... and may be a little less before it ends.
const LAST_GAIN: f64 = 1.15;
/// Whoever comes meets at most so many others on average before cores go together ...
const CALM: f64 = 0.25;
/// ... and more than so many end it. Fewer meet each other where batches are shorter, so that what was calm before
/// stays so.
const CROWDED: f64 = 0.5;
/// Where only wide is in time for most requests, they may meet so many times as many.
const IN_A_HURRY: f64 = 2.0;
/// Fewer requests than these meet others by chance: what they met counts as if it were over so many.
const FEW: f64 = 8.0;
/// So many requests must have come since the last change before cores go together.
const ENOUGH: u64 = 4;
/// Seconds after which a third of what came is left: soon enough to notice a burst at the next look, and long enough
/// for slow models.
const WINDOWS: [f64; 3] = [0.5, 2.0, LONG];
const LONG: f64 = 8.0;
/// Fewer requests than these are forgotten.
const FORGOTTEN: f64 = 1e-3;
/// Cores stay apart for so many seconds at least. After each time that they were together for less than [`LASTING`]
/// twice as long: load that comes and goes must not take them along.
const REST: f64 = 3.0;
const LONGEST_REST: f64 = 300.0;
/// What was wide for so many seconds was right to be so.
const LASTING: f64 = 60.0;
/// One request in so many that only narrow answers in time is enough to keep cores apart.
const BARRED: f64 = 100.0;
/// Cores that were apart for so many seconds are tried together where that might gain, and after each time that it
/// didn't twice as long, [`LONGEST_REST`] at most. At once so long where requests were late, or seem to be.
const TRY_AFTER: f64 = 30.0;
/// So many times as many requests as before may be late in a try by chance.
const BY_CHANCE: f64 = 3.0;
/// A try takes so many seconds, and longer until so many requests came, of which the first say little ...
const TRY: f64 = 2.0;
const ENOUGH_TRIED: u64 = 8;
/// ... but no longer than this.
const LONGEST_TRY: f64 = 60.0;

/// Requests for a model, and what one of them takes in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct AskedTimes {
    pub model: ModelNumber,
    pub requests: f64,
    /// What those with a deadline had.
    pub objective: Option<f64>,
    pub narrow: f64,
    pub wide: f64,
    /// What it takes wide if that is wrong: the same where it can't be.
    pub at_best: f64,
}

/// What came in some seconds.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Look {
    pub seconds: f64,
    pub came: u64,
    /// The others that each of them found, added up.
    pub met: u64,
    /// Requests that were late, or were refused because they would have been.
    pub late: u64,
    pub models: Vec<AskedTimes>,
    /// Whether the weights of what is asked for fit onto one device, and that device is there.
    pub fits: bool,
}

/// How many others whoever came met, on average.
fn company(came: f64, met: f64) -> f64 {
    met / came.max(FEW)
}

impl Look {
    /// Whether requests met each other: what they took then says nothing of those that are alone.
    pub fn is_crowded(&self) -> bool {
        company(self.came as f64, self.met as f64) > CROWDED
    }
}

/// How much of the past is left after so many seconds.
fn left(seconds: f64, over: f64) -> f64 {
    (-seconds / over).exp()
}

/// Sums in which the past counts less and less.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Fading {
    came: f64,
    met: f64,
    late: f64,
}

impl Fading {
    fn add(&mut self, look: &Look, over: f64) {
        let part = left(look.seconds, over);
        let now = [(&mut self.came, look.came), (&mut self.met, look.met), (&mut self.late, look.late)];
        now.into_iter().for_each(|(sum, new)| *sum = *sum * part + new as f64);
    }
}

/// Requests for a model, of which the past counts less and less. What they take is what is known of it now: what was
/// known when they came may have been wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Mixed {
    times: AskedTimes,
    /// Those with a deadline, and the sum of one over what each had.
    urgent: f64,
    urgency: f64,
}

impl Mixed {
    /// None yet.
    fn new(asked: &AskedTimes) -> Self {
        Self { times: AskedTimes { requests: 0.0, ..*asked }, urgent: 0.0, urgency: 0.0 }
    }

    /// How many are left.
    fn fade(&mut self, part: f64) -> f64 {
        [&mut self.times.requests, &mut self.urgent, &mut self.urgency].into_iter().for_each(|sum| *sum *= part);
        self.times.requests
    }

    fn add(&mut self, asked: &AskedTimes) {
        self.times = AskedTimes { requests: self.times.requests + asked.requests, ..*asked };
        if let Some(objective) = asked.objective {
            self.urgent += asked.requests;
            self.urgency += asked.requests / objective.max(1e-6);
        }
    }

    /// The requests that one of them answers in time and the other doesn't.
    fn only(&self, in_time: f64, late: f64) -> f64 {
        let objective = self.urgent / self.urgency;
        if in_time <= objective && objective < late { self.urgent } else { 0.0 }
    }
}

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct MixTimes {
    /// Seconds of devices.
    narrow: f64,
    wide: f64,
    at_best: f64,
    /// Requests that only wide answers in time, and those that only narrow does.
    hurried: f64,
    barred: f64,
}

/// How cores are divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CoreState {
    Narrow,
    /// Wide, to find out whether it gains.
    Tried,
    Wide,
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CoreRule {
    state: CoreState,
    /// Since the last change.
    seconds: f64,
    came: u64,
    rest: f64,
    try_after: f64,
    /// The part of the requests that narrow didn't answer in time before this try, and whether wide does worse.
    late: f64,
    misses: bool,
    /// By the length of their windows.
    sums: [Fading; WINDOWS.len()],
    mix: BTreeMap<ModelNumber, Mixed>,
    fits: bool,
}

impl Default for CoreRule {
    fn default() -> Self {
        Self {
            state: CoreState::Narrow,
            seconds: 0.0,
            came: 0,
            rest: REST,
            try_after: TRY_AFTER,
            late: 0.0,
            misses: false,
            sums: [Fading::default(); WINDOWS.len()],
            mix: BTreeMap::new(),
            fits: true,
        }
    }
}

/// What keeps cores apart, or together.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum CoreVerdict {
    /// Nobody asks for anything, or too few did yet.
    TooFew,
    /// They were together a moment ago.
    Rests,
    /// Weights don't fit onto one device, or it is lost.
    NoRoom,
    /// Some requests would be late, or are.
    TooSlow,
    /// Requests meet each other: so many others on average.
    Crowded(f64),
    /// All cores are hardly quicker: so many times.
    NoGain(f64),
    /// They don't seem to be, or seem to be too slow, and it is time to find out.
    Tries,
    /// They are so many times as quick.
    Pays(f64),
    /// They alone are in time for most requests.
    OnlySo,
}

impl CoreRule {
    pub fn is_wide(&self) -> bool {
        self.state != CoreState::Narrow
    }

    /// Whether they are together only to find out whether that gains.
    pub fn is_trying(&self) -> bool {
        self.state == CoreState::Tried
    }

    /// Takes in what came.
    pub fn learn(&mut self, look: &Look) {
        self.seconds += look.seconds;
        self.came = self.came.saturating_add(look.came);
        self.sums.iter_mut().zip(WINDOWS).for_each(|(sums, over)| sums.add(look, over));
        self.add_to_mix(look);
        self.fits = look.fits;
        if !self.is_trying() {
            return;
        }
        self.misses |= self.is_later(look);
        if matches!(self.verdict(), CoreVerdict::Pays(_) | CoreVerdict::OnlySo) {
            (self.state, self.try_after) = (CoreState::Wide, TRY_AFTER);
        }
    }

    fn add_to_mix(&mut self, look: &Look) {
        let part = left(look.seconds, LONG);
        self.mix.retain(|_, mixed| mixed.fade(part) > FORGOTTEN);
        look.models
            .iter()
            .for_each(|asked| self.mix.entry(asked.model).or_insert_with(|| Mixed::new(asked)).add(asked));
    }

    /// Whether more requests are late than before the try, by more than chance and the one in so many that may be.
    fn is_later(&self, look: &Look) -> bool {
        look.late as f64 > look.came as f64 * (1.0 / BARRED + BY_CHANCE * self.late)
    }

    /// Whether one device should have all cores now.
    pub fn wants_wide(&self) -> bool {
        match self.verdict() {
            CoreVerdict::Pays(_) | CoreVerdict::OnlySo | CoreVerdict::Tries => true,
            // What is there stays as long as nobody asks.
            CoreVerdict::TooFew => self.state == CoreState::Wide,
            CoreVerdict::Rests
            | CoreVerdict::NoRoom
            | CoreVerdict::TooSlow
            | CoreVerdict::Crowded(_)
            | CoreVerdict::NoGain(_) => false,
        }
    }

    /// It is so from now on.
    pub fn change(&mut self, is_wide: bool) {
        let [.., long] = self.sums;
        let state = match is_wide {
            false => CoreState::Narrow,
            true if self.verdict() == CoreVerdict::Tries => CoreState::Tried,
            true => CoreState::Wide,
        };
        match self.state {
            CoreState::Narrow => {}
            CoreState::Wide if self.seconds < LASTING => self.rest = (self.rest * 2.0).min(LONGEST_REST),
            CoreState::Wide => self.rest = REST,
            CoreState::Tried if self.misses => self.try_after = LONGEST_REST,
            CoreState::Tried => self.try_after = (self.try_after * 2.0).min(LONGEST_REST),
        }
        (self.late, self.misses) = (long.late / long.came.max(1.0), false);
        (self.state, self.seconds, self.came) = (state, 0.0, 0);
    }

    fn wanted(&self) -> MixTimes {
        self.mix.values().fold(MixTimes::default(), |sum, mixed| {
            let AskedTimes { requests, narrow, wide, at_best, .. } = mixed.times;
            MixTimes {
                narrow: sum.narrow + requests * narrow,
                wide: sum.wide + requests * wide,
                at_best: sum.at_best + requests * at_best,
                hurried: sum.hurried + mixed.only(wide, narrow),
                barred: sum.barred + mixed.only(narrow, wide),
            }
        })
    }

    pub fn verdict(&self) -> CoreVerdict {
        if !self.fits {
            return CoreVerdict::NoRoom;
        }
        let ([.., long], wanted) = (&self.sums, self.wanted());
        if wanted.wide <= 0.0 {
            return CoreVerdict::TooFew;
        }
        let company = self.sums.iter().map(|sums| company(sums.came, sums.met)).fold(0.0, f64::max);
        let is_slow = wanted.barred * BARRED > long.came;
        let tries = self.tries(&wanted, is_slow, company);
        if is_slow && !tries || self.misses {
            return CoreVerdict::TooSlow;
        }
        let is_hurried = wanted.hurried * 2.0 > long.came;
        let most = if self.is_wide() { CROWDED } else { CALM } * if is_hurried { IN_A_HURRY } else { 1.0 };
        if company > most {
            return CoreVerdict::Crowded(company);
        }
        if !self.is_wide() && self.seconds < self.rest {
            return CoreVerdict::Rests;
        }
        if !self.is_wide() && self.came < ENOUGH {
            return CoreVerdict::TooFew;
        }
        let gain = wanted.narrow / wanted.wide;
        let least = if self.state == CoreState::Wide { LAST_GAIN } else { LEAST_GAIN };
        match gain >= least * (1.0 + company) {
            _ if is_slow => CoreVerdict::Tries,
            _ if is_hurried => CoreVerdict::OnlySo,
            true => CoreVerdict::Pays(gain),
            false if tries => CoreVerdict::Tries,
            false => CoreVerdict::NoGain(gain),
        }
    }

    /// Whether it is time to find out what wide takes, or not over yet.
    fn tries(&self, wanted: &MixTimes, is_slow: bool, company: f64) -> bool {
        let [short, ..] = &self.sums;
        match self.state {
            CoreState::Wide => false,
            CoreState::Tried => self.seconds < TRY || (self.came < ENOUGH_TRIED && self.seconds < LONGEST_TRY),
            CoreState::Narrow => {
                let might_gain = wanted.narrow >= wanted.at_best * LEAST_GAIN * (1.0 + company);
                let after = if is_slow { LONGEST_REST } else { self.try_after };
                // Somebody asks right now.
                might_gain && short.came >= 1.0 && self.seconds >= after
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: ModelNumber = ModelNumber { slot: 0, generation: 0 };

    /// A quarter of a second in which so many requests came that met so many others.
    fn look(came: u64, met: u64) -> Look {
        asked(came, met, times(0.008, 0.002))
    }

    /// The same for a model that takes so long, and is known to.
    fn times(narrow: f64, wide: f64) -> AskedTimes {
        AskedTimes { model: MODEL, requests: 0.0, objective: None, narrow, wide, at_best: wide }
    }

    fn asked(came: u64, met: u64, times: AskedTimes) -> Look {
        let models = if came == 0 { Vec::new() } else { vec![AskedTimes { requests: came as f64, ..times }] };
        Look { seconds: 0.25, came, met, late: 0, models, fits: true }
    }

    /// Looks so often, and does as the rule says; how often that was something else.
    fn looks(rule: &mut CoreRule, times: u32, each: impl Fn(u32) -> Look) -> u32 {
        let mut changes = 0;
        for time in 0..times {
            rule.learn(&each(time));
            if rule.wants_wide() != rule.is_wide() {
                rule.change(!rule.is_wide());
                changes += 1;
            }
        }
        changes
    }

    fn wide() -> CoreRule {
        let mut rule = CoreRule::default();
        looks(&mut rule, 40, |_| look(5, 0));
        assert!(rule.is_wide());
        rule
    }

    #[test]
    fn one_client_alone_gets_all_cores_after_a_rest() {
        let mut rule = CoreRule::default();
        looks(&mut rule, 11, |_| look(25, 0));
        assert_eq!((rule.is_wide(), rule.verdict()), (false, CoreVerdict::Rests));
        looks(&mut rule, 1, |_| look(25, 0));
        assert!(rule.is_wide());
        // However busy it keeps the device: nobody waits.
        assert_eq!(looks(&mut rule, 1_000, |_| look(120, 0)), 0);
        assert!(matches!(rule.verdict(), CoreVerdict::Pays(gain) if (gain - 4.0).abs() < 1e-6));
    }

    #[test]
    fn somebody_who_asks_seldom_gets_them_too_and_silence_changes_nothing() {
        let mut rule = CoreRule::default();
        looks(&mut rule, 2_000, |time| if time % 40 == 0 { look(1, 0) } else { look(0, 0) });
        assert!(rule.is_wide());
        assert_eq!(looks(&mut rule, 10_000, |_| look(0, 0)), 0);
        let mut silent = CoreRule::default();
        assert_eq!((looks(&mut silent, 10_000, |_| look(0, 0)), silent.verdict()), (0, CoreVerdict::TooFew));
    }

    #[test]
    fn a_burst_ends_it_at_the_next_look() {
        for burst in [look(4, 6), look(20, 15), look(1_000, 100_000)] {
            let mut rule = wide();
            rule.learn(&burst);
            assert!(!rule.wants_wide(), "{burst:?}: {:?}", rule.verdict());
        }
        let mut rule = wide();
        rule.learn(&look(3, 3));
        assert!(rule.wants_wide(), "a few at once are chance");
    }

    #[test]
    fn slow_models_that_wait_for_each_other_end_it_within_seconds() {
        let mut rule = wide();
        // Two a second of which every other waits for one: too few for a short look.
        let one = |met: u64| asked(1, met, times(1.0, 0.25));
        let ended = (0..80).find(|time| {
            rule.learn(&if time % 2 == 0 { one(2) } else { look(0, 0) });
            !rule.wants_wide()
        });
        assert!(ended.is_some_and(|time| time <= 12), "{ended:?}");
    }

    #[test]
    fn what_gains_too_little_or_does_not_fit_stays_apart() {
        let mut rule = CoreRule::default();
        let hardly = || asked(5, 0, times(0.010, 0.008));
        assert_eq!(looks(&mut rule, 100, |_| hardly()), 0);
        assert!(matches!(rule.verdict(), CoreVerdict::NoGain(gain) if (gain - 1.25).abs() < 1e-6));
        let mut rule = CoreRule::default();
        assert_eq!(looks(&mut rule, 100, |_| Look { fits: false, ..look(5, 0) }), 0);
        assert_eq!(rule.verdict(), CoreVerdict::NoRoom);
        let mut rule = wide();
        looks(&mut rule, 1, |_| Look { fits: false, ..look(5, 0) });
        assert!(!rule.is_wide());
    }

    #[test]
    fn objectives_that_one_of_them_misses_decide() {
        let asked = |objective: f64, narrow: f64, wide: f64| {
            asked(10, 4, AskedTimes { objective: Some(objective), ..times(narrow, wide) })
        };
        let after = |one: Look| {
            let mut rule = CoreRule::default();
            looks(&mut rule, 100, |_| one.clone());
            rule.verdict()
        };
        // Some meet others, and the gain is small: but narrow is late for all of them.
        assert_eq!(after(asked(0.009, 0.010, 0.008)), CoreVerdict::OnlySo);
        assert_eq!(after(asked(0.011, 0.010, 0.008)), CoreVerdict::Crowded(0.4));
        // More threads make a small model slower than its requests allow.
        assert_eq!(after(asked(0.0015, 0.001, 0.002)), CoreVerdict::TooSlow);
    }

    #[test]
    fn load_that_comes_and_goes_takes_cores_along_less_and_less() {
        let mut rule = CoreRule::default();
        // An hour of a minute alone, short of what counts as lasting, and a second in company.
        let in_company = |time: u32| time % 240 >= 236;
        let changes = looks(&mut rule, 14_400, |time| if in_company(time) { look(100, 300) } else { look(25, 0) });
        assert!((6..=40).contains(&changes), "{changes}");
        assert_eq!(rule.rest, LONGEST_REST);
        // What lasts is trusted again.
        let mut rule = wide();
        looks(&mut rule, 400, |_| look(25, 0));
        looks(&mut rule, 1, |_| look(100, 300));
        assert_eq!((rule.is_wide(), rule.rest), (false, REST));
        looks(&mut rule, 120, |_| look(25, 0));
        assert!(rule.is_wide());
    }

    /// A client that asks so often in each look, of a model that takes 8 ms narrow, seems to take so long wide, and
    /// turns out to take something else once it ran there for a second.
    struct Client {
        rule: CoreRule,
        came: u64,
        seems: f64,
        takes: f64,
        objective: Option<f64>,
        /// Looks that it was wide for, at a time and in all, and how often that changed.
        wide: u32,
        all_wide: u32,
        changes: u32,
    }

    const NARROW: f64 = 0.008;

    impl Client {
        fn new(seems: f64, takes: f64) -> Self {
            let rule = CoreRule::default();
            Self { rule, came: 25, seems, takes, objective: None, wide: 0, all_wide: 0, changes: 0 }
        }

        fn look(&self) -> Look {
            let times = times(NARROW, self.seems);
            asked(self.came, 0, AskedTimes { objective: self.objective, at_best: NARROW / 4.0, ..times })
        }

        /// So many looks.
        fn plays(&mut self, looks: u32) {
            self.plays_with(looks, |_, look| look);
        }

        /// So many looks, which may be something else while it is wide.
        fn plays_with(&mut self, looks: u32, other: impl Fn(bool, Look) -> Look) {
            for _ in 0..looks {
                let look = other(self.rule.is_wide(), self.look());
                self.changes += super::tests::looks(&mut self.rule, 1, |_| look.clone());
                self.wide = if self.rule.is_wide() { self.wide + 1 } else { 0 };
                self.all_wide += u32::from(self.rule.is_wide());
                if self.wide == 4 {
                    self.seems = self.takes;
                }
            }
        }
    }

    #[test]
    fn what_was_measured_to_gain_nothing_is_tried_and_stays_where_it_gains() {
        let mut client = Client::new(NARROW, NARROW / 4.0);
        client.plays(119);
        assert_eq!((client.changes, client.rule.verdict()), (0, CoreVerdict::NoGain(1.0)));
        client.plays(1);
        assert!(client.rule.is_trying());
        client.plays(5);
        assert!(client.rule.is_wide() && !client.rule.is_trying());
        client.plays(10_000);
        assert_eq!(client.changes, 1);
        assert!(matches!(client.rule.verdict(), CoreVerdict::Pays(gain) if (gain - 4.0).abs() < 1e-6));
    }

    #[test]
    fn a_try_in_vain_takes_two_seconds_and_comes_back_less_and_less() {
        let mut client = Client::new(NARROW, NARROW);
        client.plays(120 + 8);
        assert_eq!((client.changes, client.all_wide, client.rule.is_wide()), (2, 8, false));
        client.plays(60 * 4 - 1);
        assert_eq!(client.changes, 2);
        client.plays(1);
        assert_eq!(client.changes, 3);
        // An hour: after half a minute, one, two, four, and then five at a time.
        client.plays(14_400 - 120 - 8 - 240);
        assert_eq!(client.changes, 28);
        assert!(client.all_wide <= 14 * 8, "{}", client.all_wide);
        assert_eq!(client.rule.rest, REST, "load that comes and goes has a rest of its own");
    }

    #[test]
    fn wide_times_that_are_too_low_put_themselves_right() {
        let mut client = Client::new(NARROW / 4.0, NARROW);
        client.plays(12);
        assert!(client.rule.is_wide() && !client.rule.is_trying());
        client.plays(5);
        assert!(!client.rule.is_wide(), "{:?}", client.rule.verdict());
        client.plays(14_400);
        assert!(client.all_wide < 14_400 / 100, "{}", client.all_wide);
    }

    #[test]
    fn a_try_ends_at_the_next_look_when_others_come() {
        for burst in [asked(20, 40, times(NARROW, NARROW)), asked(1_000, 100_000, times(NARROW, NARROW))] {
            let mut client = Client::new(NARROW, NARROW);
            client.plays(121);
            assert!(client.rule.is_trying());
            client.plays_with(1, |_, _| burst.clone());
            assert!(!client.rule.is_wide(), "{burst:?}");
            // Whoever comes with every try is met less and less.
            client.plays_with(14_400, |is_wide, look| if is_wide { burst.clone() } else { look });
            assert!(client.changes <= 30 && client.all_wide <= 15, "{} {}", client.changes, client.all_wide);
        }
    }

    #[test]
    fn in_company_nothing_is_tried() {
        let mut client = Client::new(NARROW, NARROW / 4.0);
        client.plays_with(14_400, |_, look| Look { met: 10, ..look });
        assert_eq!(client.changes, 0);
        assert!(matches!(client.rule.verdict(), CoreVerdict::Crowded(_)));
        // When it gets calm, it is time.
        client.plays(50);
        assert_eq!((client.changes, client.rule.is_wide()), (1, true));
    }

    #[test]
    fn a_try_ends_at_once_when_requests_are_late_that_were_not_before() {
        let late_when_wide = |is_wide: bool, look: Look| Look { late: u64::from(is_wide), ..look };
        let mut client = Client::new(NARROW, NARROW);
        client.plays_with(121, late_when_wide);
        assert_eq!((client.changes, client.rule.is_wide()), (2, false));
        // The next one is as late as it gets.
        client.plays_with(1_199, late_when_wide);
        assert_eq!(client.changes, 2);
        client.plays_with(2, late_when_wide);
        assert_eq!((client.changes, client.all_wide), (4, 2));
        // Who is late either way isn't so because cores are together.
        let mut client = Client::new(NARROW, NARROW / 4.0);
        client.plays_with(200, |_, look| Look { late: 3, ..look });
        assert_eq!((client.changes, client.rule.is_wide()), (1, true));
    }

    #[test]
    fn what_seems_to_miss_objectives_is_tried_seldom_and_stays_where_it_does_not() {
        for (takes, changes) in [(NARROW / 4.0, 1), (2.0 * NARROW, 2)] {
            let mut client = Client::new(2.0 * NARROW, takes);
            client.objective = Some(1.5 * NARROW);
            client.plays(1_199);
            assert_eq!((client.changes, client.rule.verdict()), (0, CoreVerdict::TooSlow));
            let late = |is_wide: bool, look| Look { late: if is_wide && changes == 2 { 25 } else { 0 }, ..look };
            client.plays_with(1_000, late);
            assert_eq!((client.changes, client.rule.is_wide()), (changes, changes == 1), "{takes}");
            assert!(changes == 1 || client.all_wide == 1, "{}", client.all_wide);
        }
    }

    #[test]
    fn what_cannot_be_wide_is_never_tried() {
        let mut rule = CoreRule::default();
        assert_eq!(looks(&mut rule, 14_400, |_| asked(25, 0, times(NARROW, NARROW))), 0);
        // Nor with a model that could be, if that is too little.
        let could =
            AskedTimes { requests: 2.0, model: ModelNumber { slot: 1, generation: 0 }, ..times(NARROW, NARROW) };
        let could = AskedTimes { at_best: 0.0, ..could };
        let mixed = |_| {
            let mut look = asked(25, 0, times(NARROW, NARROW));
            look.models.push(could);
            look
        };
        assert_eq!(looks(&mut rule, 14_400, mixed), 0);
    }

    #[test]
    fn nothing_is_tried_for_nobody() {
        let mut client = Client::new(NARROW, NARROW);
        client.plays(20);
        client.came = 0;
        client.plays(14_400);
        assert_eq!(client.changes, 0);
        // Whoever goes in the middle of a try ends it in a while.
        client.came = 1;
        client.plays(1);
        assert!(client.rule.is_trying());
        client.came = 0;
        client.plays(4 * 60);
        assert_eq!((client.changes, client.rule.is_wide()), (2, false));
    }

    #[test]
    fn a_try_lasts_until_somebody_who_asks_seldom_has_asked_often_enough() {
        let mut rule = CoreRule::default();
        let each = |time: u32| {
            asked(u64::from(time.is_multiple_of(20)), 0, AskedTimes { at_best: 0.0, ..times(NARROW, NARROW) })
        };
        // Every five seconds: at the seventh request half a minute is over.
        looks(&mut rule, 121, each);
        assert!(rule.is_trying());
        assert_eq!(looks(&mut rule, 139, |time| each(time + 1)), 0);
        assert_eq!(looks(&mut rule, 21, |time| each(time + 140)), 1);
        assert!(!rule.is_wide());
    }

    #[test]
    fn models_that_come_and_go_in_a_try_count_by_what_is_asked_for() {
        let mut client = Client::new(NARROW, NARROW);
        client.plays(121);
        assert!(client.rule.is_trying());
        // It is replaced by one that is known to gain, and soon that counts.
        let model = ModelNumber { slot: 0, generation: 1 };
        let other = |_, _| asked(25, 0, AskedTimes { model, ..times(NARROW, NARROW / 4.0) });
        client.plays_with(7, other);
        let after_try = client.rule.is_wide();
        client.plays_with(60, other);
        assert!(client.rule.is_wide() && !client.rule.is_trying(), "{after_try}");
        // And by one that gains nothing: cores go apart, and not in a circle.
        let other = |_, _| asked(25, 0, times(NARROW, NARROW));
        let before = client.changes;
        client.plays_with(14_400, other);
        assert_eq!((client.changes, client.rule.is_wide()), (before + 1, false));
    }

    #[test]
    fn what_is_calm_when_narrow_is_calm_when_wide() {
        // Requests by chance that ask for a part of one core: each meets that many others on average there, and with
        // all cores those of a queue that is served four times as quickly.
        let gain = 4.0;
        for percent in 1..=25 {
            let work = f64::from(percent) / 100.0;
            let busy = work / gain;
            let queue = busy + busy * busy / (2.0 * (1.0 - busy));
            assert!(work <= CALM && queue < CROWDED, "{work}: {queue}");
            // And back: what is crowded when wide isn't calm when narrow.
            assert!(CROWDED * gain / (1.0 + CROWDED) > CALM);
        }
    }
}
