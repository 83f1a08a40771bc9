//! `--cpu-division auto`: the cores of a CPU are a device each, or one device together, as what is asked for wants it.
//!
//! ```text
//!  a few times a second:
//!    what came, and in whose company ──> rule ──> other than before?
//!    what ran, and how long ──> learnt ───^         ├─> the engine: how many threads compute a batch
//!                                                   └─> the cell: what devices take, who may run where
//! ```
//!
//! It goes the way of shares of GPUs ([`crate::following`]): each device is something in either division, and those
//! that have no core are places where nobody computes.

mod learnt;
mod rule;

use crate::core::places::{AskedModel, CellAsked, Company, PlacePlan, PlannedPlace, Ran};
use crate::divisions::Divisions;
use crate::following::{Divider, DivisionChange, ShareFollower, SharePlace, Told};
use crate::messages::CellMessage;
use crate::{Controller, Inner, ModelRecord};
use base::{DeviceId, Duration, LatencyProfile, ModelNumber};
use learnt::{Learnt, TimedRun};
use rule::{AskedTimes, CoreRule, CoreVerdict, Look};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use telemetry::ShareChange;

/// How often it is looked: a burst waits so long at most before all cores take requests. One look takes some
/// microseconds.
const EVERY: Duration = Duration::from_millis(250);
/// The division in which each device has a core.
const NARROW: usize = 0;
/// The division in which the first device has them all.
const WIDE: usize = 1;
/// Models that were asked for within so many seconds must fit onto one device.
const LATELY: f64 = 60.0;

/// The cores of a cell.
#[derive(Debug)]
struct CellCores {
    told: Told,
    rule: CoreRule,
    /// The models that were asked for lately, with the seconds since then.
    lately: Vec<(ModelNumber, f64)>,
    /// What they took, of those whose profiles may be wrong.
    learnt: BTreeMap<ModelNumber, Learnt>,
}

impl Controller {
    /// Whether the cores of a CPU are divided by what is asked for.
    pub fn divides_cores(&self) -> bool {
        self.inner.divisions.get().is_some_and(Divisions::are_of_cores)
    }

    /// Has the server divide its cores by itself from now on; who does it. At first each device has one. To be said
    /// once, after the divisions: each device with a core, and the first with all of them.
    pub fn follow_cores(&self) -> Result<ShareFollower, String> {
        let divisions = self.inner.divisions.get().ok_or("there are no divisions")?;
        if !divisions.are_of_cores() {
            return Err("cores are divided in two ways: one for each device, or all for the first".into());
        }
        Ok(self.follow(divisions, EVERY, |told| {
            Box::new(CellCores { told, rule: CoreRule::default(), lately: Vec::new(), learnt: BTreeMap::new() })
        }))
    }
}

impl Divisions {
    /// Whether each place has a core in the first of two divisions, and the first place has them all in the other.
    fn are_of_cores(&self) -> bool {
        let narrow = |place: u32| self.kind(NARROW, DeviceId(place)).is_some();
        let wide = |place: u32| self.kind(WIDE, DeviceId(place)).is_some();
        let places = 0..self.places() as u32;
        self.count() == 2
            && places.len() > 1
            && places.into_iter().all(|place| narrow(place) && wide(place) == (place == 0))
    }
}

/// What so many rows take together, in seconds.
fn takes(profile: &LatencyProfile, rows: u64) -> f64 {
    let batches = profile.batches();
    let batch = batches.iter().find(|batch| u64::from(batch.batch) >= rows).unwrap_or(&batches[batches.len() - 1]);
    batch.median.as_secs_f64() * (rows as f64 / f64::from(batch.batch)).max(1.0)
}

/// A model's profiles, narrow and wide.
fn profiles(record: &ModelRecord) -> [&LatencyProfile; 2] {
    [&record.profile, record.elsewhere.last().unwrap_or(&record.profile)]
}

/// Whether it may take something else wide than was measured.
fn is_doubted(asked: &AskedModel) -> bool {
    let [_, wide] = profiles(&asked.record);
    wide.is_doubted() && asked.is_divisible
}

impl CellCores {
    /// What a model's requests take, if some came.
    fn times(&self, divisions: &Divisions, asked: &AskedModel) -> Option<AskedTimes> {
        let (requests, rows) = asked.asked.all;
        let rows = rows.checked_div(requests)?.max(1);
        let learnt = self.learnt.get(&asked.number).map_or([1.0; 2], Learnt::says);
        let profiles = profiles(&asked.record);
        let [narrow, wide] = [NARROW, WIDE].map(|division| takes(profiles[division], rows) * learnt[division]);
        let quickest = if is_doubted(asked) { narrow / divisions.places() as f64 } else { wide };
        Some(AskedTimes {
            model: asked.number,
            requests: requests as f64,
            objective: asked.asked.objective(),
            narrow,
            wide,
            at_best: wide.min(quickest),
        })
    }

    /// Takes in what ran.
    fn note_runs(&mut self, divisions: &Divisions, asked: &[AskedModel], seconds: f64) {
        // Those that are gone are forgotten.
        let mut learnt = std::mem::take(&mut self.learnt);
        self.learnt.extend(asked.iter().filter_map(|model| learnt.remove_entry(&model.number)));
        self.learnt.values_mut().for_each(|learnt| learnt.fade(seconds));
        let first = DeviceId((divisions.places() * self.told.first_gpu) as u32);
        for model in asked.iter().filter(|model| !model.asked.runs.is_empty() && is_doubted(model)) {
            let profiles = profiles(&model.record);
            let learnt = self.learnt.entry(model.number).or_default();
            for &Ran { kind, rows, bytes, took } in &model.asked.runs {
                let is_of = |division: &usize| divisions.kind(*division, first) == Some(kind);
                let Some(division) = [NARROW, WIDE].into_iter().find(is_of) else { continue };
                let times = took.as_secs_f64() / takes(profiles[division], rows.into()).max(1e-9);
                learnt.add(&TimedRun { division, bytes, times });
            }
        }
    }

    /// Notes who was asked for; whether all of them fit onto the first device.
    fn fit(&mut self, inner: &Inner, asked: &[AskedModel], seconds: f64) -> bool {
        self.lately.iter_mut().for_each(|(_, ago)| *ago += seconds);
        for model in asked.iter().filter(|model| model.asked.all.0 > 0) {
            self.lately.retain(|(number, _)| *number != model.number);
            self.lately.push((model.number, 0.0));
        }
        self.lately.retain(|(number, ago)| *ago < LATELY && asked.iter().any(|model| model.number == *number));
        let is_lately = |model: &&AskedModel| self.lately.iter().any(|(number, _)| *number == model.number);
        let bytes: u64 = asked.iter().filter(is_lately).map(|model| model.weight_bytes).sum();
        bytes <= u64::from(inner.device_pages) * inner.page_bytes
    }

    /// What each device is. Everybody may run on those that are used.
    fn plan(&self, divisions: &Divisions, division: usize) -> PlacePlan {
        let first = divisions.places() * self.told.first_gpu;
        let place = |index: usize| {
            let kind = divisions.kind(division, DeviceId((first + index) as u32));
            PlannedPlace { kind, models: None }
        };
        let places = (0..divisions.places() * self.told.gpus).map(place).collect();
        PlacePlan { places, known: Vec::new() }
    }

    fn show(&self, inner: &Inner, divisions: &Divisions, division: usize, change: DivisionChange) {
        let (what, why) = (if division == WIDE { "together" } else { "apart" }, self.why());
        if change != DivisionChange::First {
            inner.metrics.shares_changed(ShareChange::Division);
            // What is tried in vain every few minutes isn't news.
            match self.rule.is_trying() || self.rule.verdict() == CoreVerdict::Tries {
                true => tracing::debug!("the CPU's cores compute {what}: {why}"),
                false => tracing::info!("the CPU's cores compute {what}: {why}"),
            }
        }
        let gpu = divisions.shares_of(division);
        let used = |share: &f64| (*share > 0.0).then_some(SharePlace { share: *share, models: None });
        let places: Vec<SharePlace> = gpu.iter().filter_map(used).collect();
        let shares = gpu.iter().copied().cycle().take(gpu.len() * self.told.gpus);
        self.told.show(inner, divisions, shares, vec![places; self.told.gpus]);
    }

    /// The weights of what is asked for are brought to where it runs now before the next request comes.
    fn expect(&self, inner: &Inner) {
        for (number, _) in &self.lately {
            inner.put(self.told.cell, CellMessage::Expect(*number));
        }
    }
}

impl Divider for CellCores {
    fn told(&self) -> &Told {
        &self.told
    }

    fn learn(&mut self, inner: &Inner, divisions: &Divisions, asked: &CellAsked, seconds: f64) {
        let is_there = inner.cells[self.told.cell].devices.load(Ordering::Relaxed) > 0;
        let fits = self.fit(inner, &asked.models, seconds) && is_there;
        let Company { came, met, late } = asked.company;
        let mut look = Look { seconds, came, met, late, models: Vec::new(), fits };
        if !look.is_crowded() {
            self.note_runs(divisions, &asked.models, seconds);
        }
        look.models = asked.models.iter().filter_map(|model| self.times(divisions, model)).collect();
        let was_trying = self.rule.is_trying();
        self.rule.learn(&look);
        if was_trying && !self.rule.is_trying() {
            tracing::info!("the CPU's cores compute together: {}", self.why());
        }
    }

    fn carry_out(&mut self, inner: &Inner, divisions: &Divisions) {
        let is_wide = self.rule.wants_wide();
        let division = if is_wide { WIDE } else { NARROW };
        let gpus = self.told.first_gpu..self.told.first_gpu + self.told.gpus;
        // The engine gets ready meanwhile, and says so at a later look.
        if is_wide && !self.rule.is_wide() && !gpus.into_iter().all(|gpu| divisions.are_ready(gpu, division)) {
            return;
        }
        let (wanted, plan) = (vec![division; self.told.gpus], self.plan(divisions, division));
        let Some(change) = self.told.tell(inner, divisions, &wanted, plan) else { return };
        if is_wide {
            self.expect(inner);
        }
        self.show(inner, divisions, division, change);
        self.rule.change(is_wide);
        self.learnt.values_mut().for_each(|learnt| learnt.begin(division));
    }

    fn why(&self) -> String {
        match self.rule.verdict() {
            CoreVerdict::TooFew => "little is asked for".into(),
            CoreVerdict::Rests => "they were together a moment ago".into(),
            CoreVerdict::NoRoom => "what is asked for doesn't fit onto one device".into(),
            CoreVerdict::TooSlow => "together they would be too slow for some requests' deadlines".into(),
            CoreVerdict::Crowded(met) => format!("whoever asks meets {met:.2} others on average"),
            CoreVerdict::NoGain(gain) => format!("together they would be {gain:.2} times as quick"),
            CoreVerdict::Tries => "it is tried whether they are quicker together".into(),
            CoreVerdict::Pays(gain) => {
                format!("requests are mostly alone, and together they are {gain:.2} times as quick")
            }
            CoreVerdict::OnlySo => "only together they are in time for most requests".into(),
        }
    }
}
