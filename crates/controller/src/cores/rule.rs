//! When one device should have all cores: a pure step, told what came, which says what is better.
//!
//! *Wide* is one device with all cores, *narrow* a device on each. Wide answers one request sooner, narrow carries more
//! of them: threads that share an execution wait for each other. So wide is for requests that are mostly alone.
//!
//! What decides is the company that requests meet: how many others without an answer each finds when it comes. How
//! busy devices are doesn't say it: a client that asks again as soon as it is answered keeps a device busy, and nobody
//! waits for anybody.

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
const WINDOWS: [f64; 3] = [0.5, 2.0, 8.0];
/// Cores stay apart for so many seconds at least. After each time that they were together for less than [`LASTING`]
/// twice as long: load that comes and goes must not take them along.
const REST: f64 = 3.0;
const LONGEST_REST: f64 = 300.0;
/// What was wide for so many seconds was right to be so.
const LASTING: f64 = 60.0;
/// One request in so many that only narrow answers in time is enough to keep cores apart.
const BARRED: f64 = 100.0;

/// Requests for a model, and what one of them takes in seconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct AskedTimes {
    pub requests: f64,
    /// What those with a deadline had.
    pub objective: Option<f64>,
    pub narrow: f64,
    pub wide: f64,
}

/// What came in some seconds.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Look {
    pub seconds: f64,
    pub came: u64,
    /// The others that each of them found, added up.
    pub met: u64,
    pub models: Vec<AskedTimes>,
    /// Whether the weights of what is asked for fit onto one device, and that device is there.
    pub fits: bool,
}

/// Sums in which the past counts less and less.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Fading {
    came: f64,
    met: f64,
    /// Seconds of devices.
    narrow: f64,
    wide: f64,
    /// Requests that only wide answers in time, and those that only narrow does.
    hurried: f64,
    barred: f64,
}

impl Fading {
    fn add(&mut self, look: &Look, over: f64) {
        let part = (-look.seconds / over).exp();
        let of_models = |of: fn(&AskedTimes) -> f64| look.models.iter().map(of).sum::<f64>();
        let only = |model: &AskedTimes, by: fn(&AskedTimes) -> (f64, f64)| {
            let (in_time, late) = by(model);
            let is_so = model.objective.is_some_and(|objective| in_time <= objective && objective < late);
            if is_so { model.requests } else { 0.0 }
        };
        let hurried = look.models.iter().map(|model| only(model, |model| (model.wide, model.narrow))).sum::<f64>();
        let barred = look.models.iter().map(|model| only(model, |model| (model.narrow, model.wide))).sum::<f64>();
        let now = [
            (&mut self.came, look.came as f64),
            (&mut self.met, look.met as f64),
            (&mut self.narrow, of_models(|model| model.requests * model.narrow)),
            (&mut self.wide, of_models(|model| model.requests * model.wide)),
            (&mut self.hurried, hurried),
            (&mut self.barred, barred),
        ];
        now.into_iter().for_each(|(sum, new)| *sum = *sum * part + new);
    }

    /// How many others whoever came met, on average.
    fn company(&self) -> f64 {
        self.met / self.came.max(FEW)
    }
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct CoreRule {
    is_wide: bool,
    /// Since the last change.
    seconds: f64,
    came: u64,
    rest: f64,
    /// By the length of their windows.
    sums: [Fading; WINDOWS.len()],
    fits: bool,
}

impl Default for CoreRule {
    fn default() -> Self {
        let sums = [Fading::default(); WINDOWS.len()];
        Self { is_wide: false, seconds: 0.0, came: 0, rest: REST, sums, fits: true }
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
    /// Some requests would be late.
    TooSlow,
    /// Requests meet each other: so many others on average.
    Crowded(f64),
    /// All cores are hardly quicker: so many times.
    NoGain(f64),
    /// They are so many times as quick.
    Pays(f64),
    /// They alone are in time for most requests.
    OnlySo,
}

impl CoreRule {
    pub fn is_wide(&self) -> bool {
        self.is_wide
    }

    /// Takes in what came.
    pub fn learn(&mut self, look: &Look) {
        self.seconds += look.seconds;
        self.came = self.came.saturating_add(look.came);
        self.sums.iter_mut().zip(WINDOWS).for_each(|(sums, over)| sums.add(look, over));
        self.fits = look.fits;
    }

    /// Whether one device should have all cores now.
    pub fn wants_wide(&self) -> bool {
        match self.verdict() {
            CoreVerdict::Pays(_) | CoreVerdict::OnlySo => true,
            // What is there stays as long as nobody asks.
            CoreVerdict::TooFew => self.is_wide,
            _ => false,
        }
    }

    /// It is so from now on.
    pub fn change(&mut self, is_wide: bool) {
        if self.is_wide && !is_wide {
            self.rest = if self.seconds < LASTING { (self.rest * 2.0).min(LONGEST_REST) } else { REST };
        }
        (self.is_wide, self.seconds, self.came) = (is_wide, 0.0, 0);
    }

    pub fn verdict(&self) -> CoreVerdict {
        if !self.fits {
            return CoreVerdict::NoRoom;
        }
        let [.., long] = &self.sums;
        if long.wide <= 0.0 {
            return CoreVerdict::TooFew;
        }
        if long.barred * BARRED > long.came {
            return CoreVerdict::TooSlow;
        }
        let is_hurried = long.hurried * 2.0 > long.came;
        let company = self.sums.iter().map(Fading::company).fold(0.0, f64::max);
        let most = if self.is_wide { CROWDED } else { CALM } * if is_hurried { IN_A_HURRY } else { 1.0 };
        if company > most {
            return CoreVerdict::Crowded(company);
        }
        if !self.is_wide && self.seconds < self.rest {
            return CoreVerdict::Rests;
        }
        if !self.is_wide && self.came < ENOUGH {
            return CoreVerdict::TooFew;
        }
        let gain = long.narrow / long.wide;
        let least = if self.is_wide { LAST_GAIN } else { LEAST_GAIN };
        match gain >= least * (1.0 + company) {
            _ if is_hurried => CoreVerdict::OnlySo,
            true => CoreVerdict::Pays(gain),
            false => CoreVerdict::NoGain(gain),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quarter of a second in which so many requests came that met so many others.
    fn look(came: u64, met: u64) -> Look {
        let models = vec![AskedTimes { requests: came as f64, objective: None, narrow: 0.008, wide: 0.002 }];
        Look { seconds: 0.25, came, met, models, fits: true }
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
        let times = AskedTimes { requests: 1.0, objective: None, narrow: 1.0, wide: 0.25 };
        let one = |met: u64| Look { models: vec![times], ..look(1, met) };
        let ended = (0..80).find(|time| {
            rule.learn(&if time % 2 == 0 { one(2) } else { look(0, 0) });
            !rule.wants_wide()
        });
        assert!(ended.is_some_and(|time| time <= 12), "{ended:?}");
    }

    #[test]
    fn what_gains_too_little_or_does_not_fit_stays_apart() {
        let mut rule = CoreRule::default();
        let slow = AskedTimes { requests: 5.0, objective: None, narrow: 0.010, wide: 0.008 };
        let hardly = || Look { models: vec![slow], ..look(5, 0) };
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
        let asked = |objective: f64, narrow: f64, wide: f64| Look {
            models: vec![AskedTimes { requests: 10.0, objective: Some(objective), narrow, wide }],
            ..look(10, 4)
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
