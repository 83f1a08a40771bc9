//! `--shares auto`: GPUs are divided, and models run in their shares, as what is asked for wants it.
//!
//! ```text
//!  every two seconds, for each cell:
//!    what came for each model ──> planner (`shares::follow`) ──> is it another plan?
//!                                                                  ├─> the engine: which device is which share
//!                                                                  └─> the cell: what devices take, who may run where
//! ```
//!
//! Batches that run end where they are, weights and queues stay. As long as the plan is whole GPUs nobody hears of it.

use crate::core::places::{Asked, AskedModel, CellAsked, PlacePlan, PlannedPlace};
use crate::divisions::Divisions;
use crate::messages::CellMessage;
use crate::{Controller, Inner, ModelRecord};
use base::{BatchLatency, DeviceId, Duration, ModelNumber};
use planner::shares::follow::{FollowConfig, Follower};
use planner::shares::pools::Pools;
use planner::shares::{DIVISIONS, Interference, SLOTS, ShareTimes, SharedModel, Slot, WHOLE};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak, mpsc};
use std::time::Instant;
use telemetry::ShareChange;

/// How often rates are looked at.
const EVERY: Duration = Duration::from_secs(2);
/// GPUs that were divided otherwise stay so for so many seconds: each change makes a few requests late.
const REST: f64 = 6.0;
/// Plans are for so many models, those with the most to do. What the others ask for is left out, and they may run
/// everywhere: with all of thousands a plan would take longer than it lasts.
const MOST_MODELS: usize = 32;
/// Seconds over which rates are followed: what is older counts for a third.
const OVER: f64 = 10.0;
/// A model that asks for less than this part of a GPU's time isn't planned for.
const LEAST_WORK: f64 = 1e-6;
/// What requests have of whom nobody knows it.
const NO_OBJECTIVE: f64 = 3_600.0;
/// What of a model's objective, and of the gaps between batches, is taken from the last look.
const NEW_PART: f64 = 0.2;
/// Of fewer gaps the median is chance.
const LEAST_GAPS: usize = 16;
/// So many models are named in a line of the log.
const MOST_NAMES: usize = 4;

/// How the server has divided its GPUs.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct AutoShares {
    /// The shares of each GPU that are used.
    pub gpus: Vec<Vec<SharePlace>>,
    /// How often GPUs were divided otherwise.
    pub changes: u64,
    /// Why it is so: a sentence.
    pub why: String,
}

/// A share, and who computes there.
#[derive(Clone, PartialEq, Debug)]
pub struct SharePlace {
    /// Of its GPU.
    pub share: f64,
    /// The models that may run there; `None`: all of them.
    pub models: Option<Vec<String>>,
}

/// Divides the devices of a server, and says which models may run where.
#[derive(Debug)]
pub struct ShareFollower {
    inner: Weak<Inner>,
    every: Duration,
    cells: Vec<Box<dyn Divider>>,
}

/// Who decides how the devices of a cell are divided.
pub(crate) trait Divider: std::fmt::Debug + Send {
    /// What the cell was told.
    fn told(&self) -> &Told;

    /// Takes in what came in the last so many seconds.
    fn learn(&mut self, inner: &Inner, divisions: &Divisions, asked: &CellAsked, seconds: f64);

    /// Does what follows from it, if that is something else than before.
    fn carry_out(&mut self, inner: &Inner, divisions: &Divisions);

    /// Why it is as it is: a sentence.
    fn why(&self) -> String;
}

/// What a cell was told last of its devices.
#[derive(Debug)]
pub(crate) struct Told {
    pub cell: usize,
    /// Among those of all cells.
    pub first_gpu: usize,
    pub gpus: usize,
    plan: Option<PlacePlan>,
}

/// What is otherwise than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DivisionChange {
    /// There was nothing before.
    First,
    /// GPUs are divided otherwise.
    Division,
    /// Models run elsewhere.
    Models,
}

/// The GPUs of a cell.
#[derive(Debug)]
struct CellShares {
    told: Told,
    follower: Follower,
    models: Vec<FollowedModel>,
    /// Seconds for which a device idles between batches, where plans count that.
    gap: Option<f64>,
    /// Whether it was said that GPUs stay whole.
    said: bool,
}

/// A model that plans are made for.
#[derive(Debug)]
struct FollowedModel {
    number: ModelNumber,
    record: Arc<ModelRecord>,
    times: ShareTimes,
    /// Seconds that its requests have.
    objective: f64,
    /// The part of a whole GPU's time that it asks for, on average.
    work: f64,
    /// What came since the last look.
    rows: u64,
    /// Its place in the planner's list.
    before: Option<usize>,
}

impl Controller {
    /// Has the server divide its GPUs by itself from now on; who does it. At first they are whole. To be said once,
    /// after the divisions, which begin with whole GPUs, and before there are models. After each batch a device
    /// computes nothing for `gap` seconds, until something else was measured; `None`: plans count no gaps. A sentence
    /// if plans need divisions that there aren't.
    pub fn follow_shares(&self, gap: Option<f64>) -> Result<ShareFollower, String> {
        let divisions = self.inner.divisions.get().ok_or("there are no divisions")?;
        if DIVISIONS.iter().any(|shares| divisions.find(&in_places(shares)).is_none()) {
            return Err("not all divisions that plans use were prepared".into());
        }
        if self.inner.cells.iter().any(|cell| cell.given_up.len() % SLOTS > 0) {
            return Err(format!("each GPU needs places for {SLOTS} shares"));
        }
        let follower = self.follow(divisions, EVERY, |told| Box::new(CellShares::new(told, gap)));
        tracing::info!(
            "--shares auto: GPUs are whole, and are divided when that is predicted to carry more of what is asked for"
        );
        Ok(follower)
    }

    /// Has somebody look so often who decides for each cell.
    pub(crate) fn follow(
        &self,
        divisions: &Divisions,
        every: Duration,
        divider: impl Fn(Told) -> Box<dyn Divider>,
    ) -> ShareFollower {
        let _ = divisions.auto.set(Mutex::default());
        let mut first_gpu = 0;
        let gpus = self.inner.cells.iter().map(|cell| cell.given_up.len() / divisions.places());
        let cells = gpus.enumerate().map(|(cell, gpus)| {
            let told = Told { cell, first_gpu, gpus, plan: None };
            first_gpu += gpus;
            divider(told)
        });
        let mut follower = ShareFollower { inner: self.inner.myself.clone(), every, cells: cells.collect() };
        for cell in &mut follower.cells {
            cell.carry_out(&self.inner, divisions);
        }
        follower.show_why(divisions);
        self.drive();
        follower
    }
}

/// Shares in percent as parts, in all places that a GPU has.
fn in_places(shares: &[u32]) -> Vec<f64> {
    let part = |place: usize| f64::from(shares.get(place).copied().unwrap_or(0)) / f64::from(WHOLE);
    (0..SLOTS).map(part).collect()
}

impl ShareFollower {
    /// Looks again and again, on a thread of its own, until the server goes down.
    pub fn start(mut self) -> std::io::Result<()> {
        let run = move || {
            let mut last = Instant::now();
            loop {
                std::thread::sleep(self.every.into());
                let seconds = std::mem::replace(&mut last, Instant::now()).elapsed().as_secs_f64();
                if !self.look(seconds) {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("shares".into()).spawn(run).map(drop)
    }

    /// Looks at what came in the last so many seconds, and divides devices otherwise if that is worth it. `false` if
    /// the server goes down.
    pub fn look(&mut self, seconds: f64) -> bool {
        let Some(inner) = self.inner.upgrade() else { return false };
        let Some(divisions) = inner.divisions.get() else { return false };
        for cell in &mut self.cells {
            let Some(asked) = asked(&inner, cell.told().cell) else { return false };
            cell.learn(&inner, divisions, &asked, seconds);
            // What is under way is answered in the shares that there are.
            if inner.shutting_down.load(Ordering::Relaxed) {
                return false;
            }
            cell.carry_out(&inner, divisions);
        }
        inner.drive();
        self.show_why(divisions);
        true
    }

    /// Keeps the reasons for whoever asks.
    fn show_why(&self, divisions: &Divisions) {
        let Some(auto) = divisions.auto.get() else { return };
        let why = self.cells.iter().map(|cell| match self.cells.len() {
            1 => cell.why(),
            _ => format!("cell {}: {}", cell.told().cell, cell.why()),
        });
        let why = why.collect::<Vec<_>>().join("; ");
        auto.lock().unwrap_or_else(PoisonError::into_inner).why = why;
    }
}

/// What came to a cell; `None` when the server goes down. Waits for whoever drives the cell.
fn asked(inner: &Inner, cell: usize) -> Option<CellAsked> {
    let (reply, answer) = mpsc::channel();
    inner.put(cell, CellMessage::CountAsked(reply));
    inner.drive();
    answer.recv().ok()
}

impl Told {
    /// Tells the engine how the cell's GPUs are divided and the cell what that means; nothing if both know.
    pub fn tell(
        &mut self,
        inner: &Inner,
        divisions: &Divisions,
        wanted: &[usize],
        plan: PlacePlan,
    ) -> Option<DivisionChange> {
        if self.plan.as_ref().is_some_and(|told| told.places == plan.places) {
            return None;
        }
        let mut current = divisions.current();
        let own = self.first_gpu..self.first_gpu + self.gpus;
        let is_divided_otherwise = current[own.clone()] != *wanted;
        for (gpu, &division) in own.zip(wanted) {
            divisions.divide(&mut current, gpu, division);
        }
        // While this is held: the engine and the cell hear of changes in the same order.
        inner.put(self.cell, CellMessage::Arrange(Box::new(plan.clone())));
        drop(current);
        Some(match (self.plan.replace(plan), is_divided_otherwise) {
            (None, _) => DivisionChange::First,
            (Some(_), true) => DivisionChange::Division,
            (Some(_), false) => DivisionChange::Models,
        })
    }

    /// Shows in the metrics which part of its GPU each device is, and to whoever asks what the shares of the GPUs are.
    pub fn show(
        &self,
        inner: &Inner,
        divisions: &Divisions,
        shares: impl Iterator<Item = f64>,
        gpus: Vec<Vec<SharePlace>>,
    ) {
        let first = divisions.places() * self.first_gpu;
        inner.names[first..].iter().zip(shares).for_each(|(name, share)| inner.metrics.device_share(name, share));
        let Some(auto) = divisions.auto.get() else { return };
        let mut auto = auto.lock().unwrap_or_else(PoisonError::into_inner);
        let all = auto.gpus.len().max(self.first_gpu + self.gpus);
        auto.gpus.resize(all, Vec::new());
        (self.first_gpu..).zip(gpus).for_each(|(gpu, shown)| auto.gpus[gpu] = shown);
        auto.changes = inner.metrics.share_changes(ShareChange::Division);
    }
}

/// What devices are taken to idle between batches after that was measured so often: nearer to the median, which a few
/// batches on a busy machine don't change.
fn gap_after(before: f64, measured: &[Duration]) -> f64 {
    if measured.len() < LEAST_GAPS {
        return before;
    }
    let mut measured = measured.to_vec();
    measured.sort_unstable();
    before + NEW_PART * (measured[measured.len() / 2].as_secs_f64() - before)
}

impl FollowedModel {
    /// `None` where its times can't be planned with.
    fn new(divisions: &Divisions, asked: &AskedModel) -> Option<Self> {
        let record = &asked.record;
        let profiles = std::iter::once(&record.profile).chain(&record.elsewhere);
        let points = divisions.sizes().into_iter().zip(profiles).flat_map(|(share, profile)| {
            let percent = (share * f64::from(WHOLE)).round() as u32;
            let seconds = |batch: &BatchLatency| batch.median.as_secs_f64().max(1e-9);
            profile.batches().iter().map(move |batch| (percent, batch.batch, seconds(batch)))
        });
        let times = ShareTimes::new(points, asked.weight_bytes as f64).ok()?;
        let (number, record) = (asked.number, Arc::clone(record));
        Some(Self { number, record, times, objective: NO_OBJECTIVE, work: 0.0, rows: 0, before: None })
    }

    /// Whether it is the same to clients.
    fn names(&self, asked: &AskedModel) -> bool {
        (&self.record.name, self.record.version) == (&asked.record.name, asked.record.version)
    }

    /// The same model under another number, or as it was.
    fn succeed(mut self, old: Option<&Self>) -> Self {
        if let Some(old) = old {
            (self.objective, self.work, self.before) = (old.objective, old.work, old.before);
        }
        self
    }

    fn learn(&mut self, asked: &Asked, seconds: f64) {
        self.rows = asked.rows;
        let largest = self.times.largest_batch();
        let each = self.times.of(WHOLE, largest) / f64::from(largest);
        self.work += (1.0 - (-seconds / OVER).exp()) * (asked.rows as f64 * each / seconds.max(1e-9) - self.work);
        if let Some(objective) = asked.objective() {
            let part = if self.objective == NO_OBJECTIVE { 1.0 } else { NEW_PART };
            self.objective += part * (objective - self.objective);
        }
    }

    fn is_asked_for(&self) -> bool {
        self.rows > 0 || self.work > LEAST_WORK
    }

    fn shared(&self) -> (SharedModel, Option<usize>) {
        let (name, times) = (self.record.name.clone(), self.times.clone());
        (SharedModel { name, rate: 0.0, objective: self.objective, times }, self.before)
    }
}

impl CellShares {
    fn new(told: Told, gap: Option<f64>) -> Self {
        let gpus = told.gpus;
        // All that there are: a GPU that idles costs as much as one that doesn't.
        let config = FollowConfig {
            least_gpus: gpus,
            most_gpus: gpus,
            over: OVER,
            rest: REST,
            gap: gap.unwrap_or(0.0),
            ..FollowConfig::default()
        };
        let follower = Follower::new(config, Vec::new(), Interference::H200);
        Self { told, follower, models: Vec::new(), gap, said: false }
    }

    /// Takes in what came for the cell's models; how many rows, for each that a plan is made for.
    fn count(&mut self, divisions: &Divisions, asked: &[AskedModel], seconds: f64) -> Vec<u64> {
        let there: BTreeSet<ModelNumber> = asked.iter().map(|asked| asked.number).collect();
        for (place, model) in self.models.iter_mut().enumerate() {
            model.before = Some(place);
        }
        let old = std::mem::take(&mut self.models);
        for asked in asked {
            let same = old.iter().find(|old| old.number == asked.number);
            if same.is_none() && asked.asked.rows == 0 {
                continue;
            }
            let is_successor = |old: &&FollowedModel| old.names(asked) && !there.contains(&old.number);
            let same = same.or_else(|| old.iter().find(is_successor));
            let model = FollowedModel::new(divisions, asked);
            let Some(mut model) = model.map(|model| model.succeed(same)) else { continue };
            model.learn(&asked.asked, seconds);
            self.models.push(model);
        }
        self.models.retain(FollowedModel::is_asked_for);
        self.models.sort_by(|one, other| other.work.total_cmp(&one.work));
        self.models.truncate(MOST_MODELS);
        self.models.sort_by_key(|model| model.number);
        self.follower.set_models(self.models.iter().map(FollowedModel::shared).collect());
        self.models.iter().map(|model| model.rows).collect()
    }

    /// What each device is, and for whom.
    fn plan(&self, divisions: &Divisions) -> Option<(Vec<usize>, PlacePlan)> {
        let gpus = &self.follower.arrangement().gpus;
        let division = |gpu: &[Slot; SLOTS]| {
            divisions.find(&in_places(&std::array::from_fn::<_, SLOTS, _>(|place| gpu[place].percent)))
        };
        let wanted: Vec<usize> = gpus.iter().map(division).collect::<Option<_>>()?;
        let place = |(index, slot): (usize, &Slot)| {
            let device = DeviceId((SLOTS * self.told.first_gpu + index) as u32);
            let is_everybody = slot.models.len() == self.models.len();
            let models = slot.models.iter().map(|&model| self.models[model].number);
            let kind = divisions.kind(wanted[index / SLOTS], device);
            PlannedPlace { kind, models: (!is_everybody).then(|| models.collect()) }
        };
        let places = gpus.iter().flatten().enumerate().map(place).collect();
        Some((wanted, PlacePlan { places, known: self.models.iter().map(|model| model.number).collect() }))
    }

    /// Says what has changed: in the metrics, to whoever asks, in the log.
    fn show(&self, inner: &Inner, divisions: &Divisions, change: DivisionChange) {
        let (what, why) = (self.what(), self.why());
        match change {
            DivisionChange::First => {}
            DivisionChange::Division => {
                inner.metrics.shares_changed(ShareChange::Division);
                tracing::info!("GPUs are divided otherwise: {what}; {why}");
            }
            DivisionChange::Models => {
                inner.metrics.shares_changed(ShareChange::Models);
                tracing::debug!("models may run in other shares: {what}; {why}");
            }
        }
        let arrangement = self.follower.arrangement();
        let used =
            |slots: &[Slot; SLOTS]| slots.iter().filter(|slot| slot.percent > 0).map(|slot| self.place(slot)).collect();
        let shares = arrangement.slots().map(|slot| f64::from(slot.percent) / f64::from(WHOLE));
        self.told.show(inner, divisions, shares, arrangement.gpus.iter().map(used).collect());
    }

    fn place(&self, slot: &Slot) -> SharePlace {
        let models = slot.models.iter().map(|&model| self.models[model].record.name.clone());
        let is_everybody = slot.models.len() == self.models.len();
        SharePlace {
            share: f64::from(slot.percent) / f64::from(WHOLE),
            models: (!is_everybody).then(|| models.collect()),
        }
    }

    /// How GPUs are divided.
    fn what(&self) -> String {
        let Pools { divided, gpus, division, .. } = self.follower.pools();
        if *divided == 0 {
            return format!("all {gpus} are whole");
        }
        let shares = division.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
        let first = self.follower.arrangement().gpus.first();
        let small = first.map(|gpu| self.names(&gpu[0].models)).unwrap_or_default();
        format!("{divided} of {gpus} in shares of {shares} %, the small ones for {small}")
    }

    fn names(&self, models: &[usize]) -> String {
        let names = models.iter().take(MOST_NAMES).map(|&model| self.models[model].record.name.as_str());
        let names = names.collect::<Vec<_>>().join(", ");
        match models.len().saturating_sub(MOST_NAMES) {
            0 => names,
            more => format!("{names} and {more} more"),
        }
    }

    /// Says once, when something is asked for, that GPUs stay whole.
    fn say_if_whole(&mut self) {
        if self.said || self.models.is_empty() {
            return;
        }
        self.said = true;
        if self.follower.pools().divided == 0 {
            tracing::info!("GPUs stay whole: {}", self.why());
        }
    }
}

impl Divider for CellShares {
    fn told(&self) -> &Told {
        &self.told
    }

    fn learn(&mut self, _: &Inner, divisions: &Divisions, asked: &CellAsked, seconds: f64) {
        if let Some(gap) = &mut self.gap {
            *gap = gap_after(*gap, &asked.gaps);
            self.follower.set_gap(*gap);
        }
        let counts = self.count(divisions, &asked.models, seconds);
        self.follower.step(seconds, &counts);
    }

    fn carry_out(&mut self, inner: &Inner, divisions: &Divisions) {
        if let Some((wanted, plan)) = self.plan(divisions)
            && let Some(change) = self.told.tell(inner, divisions, &wanted, plan)
        {
            self.show(inner, divisions, change);
        }
        self.say_if_whole();
    }

    /// What is predicted of whole GPUs and of shares, for what may well be asked for.
    fn why(&self) -> String {
        if self.models.is_empty() {
            return "nothing is asked for".to_owned();
        }
        let Pools { whole, shares, divided, .. } = self.follower.wanted();
        let verdict = match (self.follower.pools().divided, divided) {
            (0, 0) => "shares don't pay",
            (0, _) => "whole GPUs are enough",
            (_, 0) => "shares are kept for a while",
            (..) => "shares pay",
        };
        let gap = self.gap.map_or(String::new(), |gap| format!(", with {:.2} ms between batches", 1e3 * gap));
        format!(
            "whole GPUs are predicted to carry {whole:.2} times what is asked for, the best shares {shares:.2} times: {verdict}{gap}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_follow_what_was_measured_and_not_a_few_of_a_busy_moment() {
        let micros = |count: usize, micros: u64| vec![Duration::from_micros(micros); count];
        assert_eq!(gap_after(170e-6, &micros(LEAST_GAPS - 1, 5_000)), 170e-6, "too few to know");
        assert!((gap_after(170e-6, &micros(LEAST_GAPS, 70)) - 150e-6).abs() < 1e-9);
        let some_late = [micros(20, 50_000), micros(30, 70)].concat();
        assert!((gap_after(170e-6, &some_late) - 150e-6).abs() < 1e-9);
        let after_a_minute = (0..30).fold(170e-6, |gap, _| gap_after(gap, &micros(256, 30)));
        assert!((after_a_minute - 30e-6).abs() < 1e-6, "{after_a_minute}");
    }
}
