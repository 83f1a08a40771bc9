//! Models get the batch sizes that their traffic uses, where an engine prepares each size: one after another, the one
//! that saves most first, on the way on which models are made better (`improve.rs`).
//!
//! ```text
//!  counted by rows ──looked at──> one size is worth it ──> brought up with it, measured ──pays──> replaces the model
//!        ▲                                                                        └──doesn't──> stays as it was
//!        └── only while the model uses a device: what it does besides costs nobody anything
//! ```

use crate::bring_up::{BringUp, BroughtUp, KnownBefore, shapes};
use crate::publisher::{ModelKey, PublishedVersion, Publisher};
use crate::sizes::{Lately, WORTH_ADDING, WorthwhileSize, most_worth, saved, still_worth};
use base::{Duration, LatencyProfile, Timestamp};
use repository::{FindingKey, FindingStore, FoundModel, ScanEntry, SizesFinding};
use std::collections::{BTreeMap, BTreeSet};
use telemetry::ModelMetrics;

/// A time in which a model uses less than this part of a device doesn't count: nothing is to be gained there.
const BUSY: f64 = 0.1;
/// What was counted before counts for so much at the next look.
const REMEMBERED: f64 = 0.9;
/// So many sizes are added to a model. Workspaces and buffers are as large as the largest size needs, and weights are
/// one for all: a smaller size costs a graph, constants and kernels of its own, on each device and share, and as long a
/// start again as each of the usual five.
const MOST_OF_MODEL: usize = 4;
/// So many are added in all: as many graphs as one model with open dimensions keeps where nobody says how many.
const MOST: usize = 32;
/// A size that was measured saves at least this part of what was expected.
const AS_EXPECTED: f64 = 0.5;

/// A size for which a model is brought up once more.
pub(crate) struct AddedSize {
    pub(crate) worth: WorthwhileSize,
    /// The next smaller one before.
    below: u32,
    /// What it was found with.
    lately: Lately,
    objective: Option<Duration>,
}

/// What was counted for a model since it came.
struct CountedRuns {
    executions: BTreeMap<u32, u64>,
    busy: Duration,
    ended: u64,
    lost: u64,
}

impl CountedRuns {
    fn of(metrics: &ModelMetrics) -> Self {
        let executions = metrics.totals().batches.iter().map(|batch| (batch.rows, batch.infer.count)).collect();
        let demand = metrics.demand();
        Self { executions, busy: demand.busy, ended: demand.ended, lost: demand.bad }
    }
}

/// What is known of a model's traffic.
struct ModelTraffic {
    /// Whose it is.
    files: ScanEntry,
    before: CountedRuns,
    lately: Lately,
    /// How much of a device it used, when it last used one.
    busy: f64,
    /// Sizes that can't be prepared, were measured and don't pay, or weren't used.
    in_vain: BTreeSet<u32>,
}

impl ModelTraffic {
    fn new(files: ScanEntry, before: CountedRuns) -> Self {
        Self { files, before, lately: Lately::default(), busy: 0.0, in_vain: BTreeSet::new() }
    }

    /// How long its batches ran since the last look.
    fn ran(&self, now: &CountedRuns) -> Duration {
        now.busy - self.before.busy
    }

    /// Takes in what was counted since the last look, in which batches of all models ran for so long.
    fn count(&mut self, now: CountedRuns, elapsed: Duration, all_ran: Duration, devices: u32) {
        let ran = self.ran(&now).as_secs_f64();
        let before = std::mem::replace(&mut self.before, now);
        let busy = ran / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        if busy < BUSY {
            return;
        }
        let (lately, now) = (&mut self.lately, &self.before);
        lately.executions.values_mut().for_each(|count| *count *= REMEMBERED);
        for (&rows, &count) in &now.executions {
            let more = count.saturating_sub(before.executions.get(&rows).copied().unwrap_or(0));
            if more > 0 {
                *lately.executions.entry(rows).or_default() += more as f64;
            }
        }
        lately.ended = lately.ended * REMEMBERED + now.ended.saturating_sub(before.ended) as f64;
        lately.lost = lately.lost * REMEMBERED + now.lost.saturating_sub(before.lost) as f64;
        let share = ran / all_ran.as_secs_f64().max(f64::MIN_POSITIVE);
        lately.devices = (f64::from(devices) * share).max(1.0);
        self.busy = busy;
    }
}

/// See the module.
pub(crate) struct Resizing {
    models: BTreeMap<ModelKey, ModelTraffic>,
    looked_at: Timestamp,
}

impl Resizing {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { models: BTreeMap::new(), looked_at: now }
    }

    fn in_vain(&mut self, key: &ModelKey, rows: u32) {
        if let Some(traffic) = self.models.get_mut(key) {
            traffic.in_vain.insert(rows);
        }
    }

    /// Whether a model that was brought up with another size is quicker with it. One that is brought up for other
    /// reasons is.
    pub(crate) fn pays(&mut self, key: &ModelKey, size: Option<&AddedSize>, brought_up: &BroughtUp) -> bool {
        let Some(size) = size else { return true };
        let WorthwhileSize { rows, saves } = size.worth;
        let measured = saved(&brought_up.record.profile, &size.lately, size.objective, rows);
        let pays = measured >= AS_EXPECTED * saves.max(WORTH_ADDING);
        if !pays {
            self.in_vain(key, rows);
            let (saves, expected) = (percent(measured), percent(saves));
            tracing::info!(
                model = key.0,
                version = key.1,
                saves,
                expected,
                "it stays without batches of {rows} rows: they take too long to pay"
            );
        }
        pays
    }

    /// It couldn't be brought up with that size.
    pub(crate) fn failed(&mut self, key: &ModelKey, size: &AddedSize, reason: &str) {
        let rows = size.worth.rows;
        self.in_vain(key, rows);
        tracing::warn!(model = key.0, version = key.1, "it stays without batches of {rows} rows: {reason}");
    }

    /// A model is asked for with another size from now on.
    pub(crate) fn switched(&mut self, key: &ModelKey, size: &AddedSize, before: &KnownBefore, now: &BroughtUp) {
        let WorthwhileSize { rows, saves } = size.worth;
        let gone = before.added.iter().flatten().filter(|rows| !now.added.contains(rows));
        let gone: Vec<u32> = gone.copied().collect();
        if let Some(traffic) = self.models.get_mut(key) {
            traffic.lately.added(size.below, rows);
            traffic.in_vain.extend(&gone);
        }
        let (saves, added) = (percent(saves), format!("{:?}", now.added));
        let gone = (!gone.is_empty()).then(|| format!("{gone:?}"));
        tracing::info!(
            model = key.0,
            version = key.1,
            saves,
            added,
            gone,
            "batches of {rows} rows are computed as such from now on: that many came often"
        );
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// Whether a model may get sizes: its engine prepares each, nobody says which, and its times are known.
fn is_resizable(version: &PublishedVersion<'_>) -> bool {
    let ScanEntry::Found(found) = version.files else { return false };
    let prepared = version.prepared;
    found.config.batch_sizes.is_none()
        && !prepared.takes_any_batch()
        && !prepared.guesses_shapes()
        && prepared.not_on_device().is_none()
}

/// The next smaller size.
fn below(profile: &LatencyProfile, rows: u32) -> u32 {
    profile.batches().iter().map(|entry| entry.batch).rfind(|&batch| batch < rows).unwrap_or(1)
}

impl BringUp {
    /// The sizes that were added to a model at an earlier start.
    pub(crate) fn kept_sizes(&self, found: &FoundModel) -> Vec<u32> {
        let kept = self.sizes_store(found).and_then(|(store, key)| store.load(&key));
        kept.map_or_else(Vec::new, |finding| finding.added.into_iter().take(MOST_OF_MODEL).collect())
    }

    /// Keeps the sizes of a model for the next start.
    pub(crate) fn keep_sizes(&self, found: &FoundModel, added: &[u32]) {
        if let Some((store, key)) = self.sizes_store(found) {
            store.save(&key, &SizesFinding { added: added.to_vec() });
        }
    }

    /// Where a model's sizes are kept, if it may have some.
    fn sizes_store(&self, found: &FoundModel) -> Option<(FindingStore<SizesFinding>, FindingKey)> {
        if !self.prepares_soon() || found.config.batch_sizes.is_some() {
            return None;
        }
        let store = FindingStore::new(&self.cache_of(found)?);
        let rows = format!(", rows {:?}", found.config.max_batch);
        let engine = format!("{}, {}", self.config.engine.name(), self.config.device_kind);
        Some((store, FindingKey { content: self.content(found).ok()?, engine, inputs: shapes(&found.config) + &rows }))
    }
}

impl Publisher {
    /// When to look at the rows of batches next; `None` where sizes stay what they are.
    pub(crate) fn resize_next_at(&self) -> Option<Timestamp> {
        self.improvements.as_ref().map(|_| self.resizing.looked_at + self.bring_up.config.sizes_every)
    }

    /// Counts what came, and has a model brought up with another size if that pays.
    pub(crate) fn resize_at(&mut self, now: Timestamp) {
        self.count_executions(now);
        if !self.may_bring_up_again() {
            return;
        }
        let published = || self.versions.iter().filter_map(|(key, version)| Some((key, version.published()?)));
        let added: usize = published().map(|(_, version)| version.known.added.as_ref().map_or(0, Vec::len)).sum();
        if added >= MOST {
            return;
        }
        let best = published().filter_map(|(key, version)| {
            let traffic = self.resizing.models.get(key)?;
            let (profile, lately, objective) =
                (&version.model.record.profile, &traffic.lately, version.served.objective);
            let worth = most_worth(profile, lately, objective, &traffic.in_vain)?;
            let others = still_worth(profile, lately, objective, version.known.added.as_deref().unwrap_or_default());
            let size = AddedSize { worth, below: below(profile, worth.rows), lately: lately.clone(), objective };
            (others.len() < MOST_OF_MODEL).then(|| (worth.saves * traffic.busy, key.clone(), size, others))
        });
        if let Some((_, key, size, others)) = best.max_by(|one, other| one.0.total_cmp(&other.0)) {
            self.add_size(key, size, others);
        }
    }

    /// Takes in what was counted since the last look.
    fn count_executions(&mut self, now: Timestamp) {
        let resizing = &mut self.resizing;
        let elapsed = now.since(std::mem::replace(&mut resizing.looked_at, now));
        let (mut known, mut all_ran) = (std::mem::take(&mut resizing.models), Duration::ZERO);
        let mut counted = Vec::new();
        for (key, version) in &self.versions {
            let Some(version) = version.published() else { continue };
            let (metrics, files) = (&version.served.metrics, version.files);
            let is_resizable = is_resizable(&version);
            let now = CountedRuns::of(metrics);
            let traffic = known.remove(key).filter(|traffic| traffic.files == *files);
            let (traffic, now) = match traffic {
                Some(traffic) => (traffic, now),
                // What came before isn't known to be lately.
                None => (ModelTraffic::new(files.clone(), now), CountedRuns::of(metrics)),
            };
            all_ran += traffic.ran(&now);
            counted.push((key, version.model.id, is_resizable, traffic, now));
        }
        for (key, model, is_resizable, mut traffic, now) in counted {
            if is_resizable {
                traffic.count(now, elapsed, all_ran, self.bring_up.controller.devices_of(model));
            } else {
                traffic.before = now;
            }
            resizing.models.insert(key.clone(), traffic);
        }
    }
}
