//! Models that were ready soon are made better: one after another, on a thread that gives way to others.
//!
//! ```text
//!  ready, by rule ──waits──> brought up once more, with enough time ──> published beside itself, loaded
//!                                                                             │ catalogue
//!  asked for under the old number ────────────────────────────────────────────┴──> asked for under the new one
//!                                     the old one sends on what still comes, finishes what it has, is withdrawn
//! ```
//!
//! To clients it is one model all the time, with one set of statistics. It is switched between two executions, and
//! what it takes from then on is planned with its new profile. The model that most requests came for is next. Models
//! that get another batch size (`resize.rs`) go the same way, once there is none that would be faster with time. When
//! there is nothing to bring up, the thread compares what models answer with what is right (`live.rs`).

use crate::bring_up::{BringUp, BroughtUp, KnownBefore, TimeGiven};
use crate::catalogue::ServedModel;
use crate::live::{LONGEST, LiveComparison};
use crate::manager::ManagerWork;
use crate::publisher::{ModelKey, Publisher, Version};
use crate::resize::AddedSize;
use base::{Duration, ModelNumber, Timestamp};
use engine::Prepared;
use repository::ScanEntry;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

/// How often it is looked whether weights are loaded.
const WHILE_LOADING: Duration = Duration::from_millis(50);
/// How often it is looked whether a model that was replaced is gone.
const WHILE_LEAVING: Duration = Duration::from_secs(1);
/// After so long the switch is made with the weights on as many devices as they are.
const PATIENCE: Duration = Duration::from_secs(5);
/// How much the thread gives way to others.
const NICENESS: i32 = 10;

/// What the thread is to do.
enum ImproverJob {
    BringUp(SecondBringUp),
    Compare(LiveComparison),
}

/// A model that is to be brought up once more.
struct SecondBringUp {
    key: ModelKey,
    files: ScanEntry,
    known: KnownBefore,
    /// For which batch size, if for one.
    size: Option<AddedSize>,
}

/// What came of a model that was brought up once more.
pub(crate) struct Improved {
    key: ModelKey,
    files: ScanEntry,
    size: Option<AddedSize>,
    outcome: Result<BroughtUp, String>,
}

/// A model that is there twice.
struct Replacement {
    key: ModelKey,
    old: ModelNumber,
    new: ModelNumber,
    served: ServedModel,
    brought_up: BroughtUp,
    size: Option<AddedSize>,
    since: Timestamp,
    look_at: Timestamp,
    /// On how many devices it was at the last look.
    loaded: usize,
}

/// See the module.
pub(crate) struct Improvements {
    /// Those that would be faster with time.
    waiting: Vec<ModelKey>,
    /// The thread has one, or a comparison.
    busy: bool,
    /// The comparison that it has: of which model, what ends it, and since when it has it.
    comparing: Option<(ModelKey, Arc<AtomicBool>, Timestamp)>,
    replacement: Option<Replacement>,
    /// Those that were replaced: the controller has them until nothing of them is left. To free them may take long, and
    /// is for the thread that publishes.
    replaced: Vec<Arc<dyn Prepared>>,
    jobs: Option<Sender<ImproverJob>>,
    thread: Option<JoinHandle<()>>,
}

impl Improvements {
    /// Starts the thread; none where models are as good as they get at once.
    pub(crate) fn start(bring_up: &Arc<BringUp>, notices: &Sender<ManagerWork>) -> Result<Option<Self>, String> {
        if !bring_up.prepares_soon() {
            return Ok(None);
        }
        let (jobs, received) = mpsc::channel();
        let (bring_up, notices) = (Arc::clone(bring_up), notices.clone());
        let thread = std::thread::Builder::new().name("improve".into());
        let thread = thread.spawn(move || improve(&bring_up, &received, &notices));
        let thread = Some(thread.map_err(|error| format!("a thread could not be started: {error}"))?);
        let (waiting, replaced, jobs) = (Vec::new(), Vec::new(), Some(jobs));
        Ok(Some(Self { waiting, busy: false, comparing: None, replacement: None, replaced, jobs, thread }))
    }

    /// Ends a comparison that takes long, keeps models waiting, or is of a model that isn't there any more.
    pub(crate) fn end_comparison(&self, now: Timestamp, is_there: impl Fn(&ModelKey) -> bool) {
        let Some((key, given_up, since)) = &self.comparing else { return };
        if !self.waiting.is_empty() || now.since(*since) > LONGEST || !is_there(key) {
            given_up.store(true, Ordering::Relaxed);
        }
    }

    /// Gives the thread something to do.
    fn hand_over(&mut self, job: Option<ImproverJob>) {
        let handed_over = |(jobs, job): (&Sender<_>, _)| jobs.send(job).is_ok();
        self.busy = self.jobs.as_ref().zip(job).is_some_and(handed_over);
    }
}

impl Drop for Improvements {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn improve(bring_up: &Arc<BringUp>, jobs: &Receiver<ImproverJob>, notices: &Sender<ManagerWork>) {
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!("the thread that improves models doesn't give way to others: {error}");
    }
    while let Ok(job) = jobs.recv() {
        if bring_up.stops() {
            return;
        }
        let notice = match job {
            ImproverJob::BringUp(SecondBringUp { key, files, known, size }) => {
                let outcome = bring_up.run_safely(&files, TimeGiven::Enough, known);
                ManagerWork::Improved(Box::new(Improved { key, files, size, outcome }))
            }
            ImproverJob::Compare(comparison) => ManagerWork::LiveCompared(bring_up.compare_live(comparison)),
        };
        // Fails only when the manager is going down.
        let _ = notices.send(notice);
    }
}

/// Which of these comes next: the one with the most requests so far, and of equals the first.
fn most_asked(requests: impl Iterator<Item = u64>) -> Option<usize> {
    requests.enumerate().max_by_key(|(position, requests)| (*requests, std::cmp::Reverse(*position))).map(|(at, _)| at)
}

impl Publisher {
    /// A version would be faster with time.
    pub(crate) fn improve_later(&mut self, key: ModelKey) {
        if let Some(improvements) = &mut self.improvements
            && !improvements.waiting.contains(&key)
        {
            improvements.waiting.push(key);
        }
    }

    /// Has the next one improved, if nothing of the kind is under way.
    pub(crate) fn improve_next(&mut self) {
        let Some(improvements) = &mut self.improvements else { return };
        if improvements.busy || improvements.replacement.is_some() {
            return;
        }
        let versions = &self.versions;
        let published = |key: &ModelKey| versions.get(key)?.published();
        improvements.waiting.retain(|key| published(key).is_some());
        let asked = |key: &ModelKey| published(key).map_or(0, |version| version.served.metrics.demand().ended);
        let Some(next) = most_asked(improvements.waiting.iter().map(asked)) else { return };
        let key = improvements.waiting.remove(next);
        let job = published(&key).map(|version| {
            let (files, known) = (version.files.clone(), version.known.clone());
            ImproverJob::BringUp(SecondBringUp { key, files, known, size: None })
        });
        improvements.hand_over(job);
    }

    /// Whether nothing is under way, and nothing waits.
    pub(crate) fn may_bring_up_again(&self) -> bool {
        self.improvements.as_ref().is_some_and(|improvements| {
            !improvements.busy && improvements.replacement.is_none() && improvements.waiting.is_empty()
        })
    }

    /// Has a model brought up once more with another batch size, and those of the others that are still worth it.
    pub(crate) fn add_size(&mut self, key: ModelKey, size: AddedSize, mut added: Vec<u32>) {
        let Some(version) = self.versions.get(&key).and_then(Version::published) else { return };
        added.push(size.worth.rows);
        added.sort_unstable();
        let known = KnownBefore { added: Some(added), ..version.known.clone() };
        let job = SecondBringUp { files: version.files.clone(), key, known, size: Some(size) };
        if let Some(improvements) = &mut self.improvements {
            improvements.hand_over(Some(ImproverJob::BringUp(job)));
        }
    }

    /// Has live requests compared. Nothing is under way.
    pub(crate) fn compare(&mut self, comparison: LiveComparison) {
        let now = self.bring_up.controller.now();
        if let Some(improvements) = &mut self.improvements {
            improvements.comparing = Some((comparison.key.clone(), Arc::clone(&comparison.given_up), now));
            improvements.hand_over(Some(ImproverJob::Compare(comparison)));
        }
    }

    /// The thread has compared them.
    pub(crate) fn comparison_ended(&mut self) {
        if let Some(improvements) = &mut self.improvements {
            (improvements.busy, improvements.comparing) = (false, None);
        }
    }

    /// Publishes a model that was improved beside the one that is asked for, if that is still the one of its files.
    pub(crate) fn replace(&mut self, Improved { key, files, size, outcome }: Improved) {
        let Some(improvements) = &mut self.improvements else { return };
        improvements.busy = false;
        let known = self.versions.get(&key).and_then(Version::published);
        let (name, version) = &key;
        match (outcome, known, &files) {
            _ if self.bring_up.stops() => {}
            (Ok(brought_up), Some(_), _) if !self.resizing.pays(&key, size.as_ref(), &brought_up) => {}
            (Ok(brought_up), Some(known), ScanEntry::Found(found)) if *known.files == files => {
                let controller = &self.bring_up.controller;
                let (record, prepared) = (Arc::clone(&brought_up.record), Arc::clone(&brought_up.prepared));
                let old = known.model.id;
                let new = controller.publish_beside(old, record, prepared);
                let served = self.bring_up.served(found, &brought_up, new);
                let now = controller.now();
                let (since, look_at) = (now, now);
                improvements.replacement =
                    Some(Replacement { key, old, new, served, brought_up, size, since, look_at, loaded: 0 });
                self.go_on_replacing(now);
            }
            // Others have taken its place meanwhile, which are improved in their turn.
            (Ok(_), _, _) => {}
            (Err(reason), _, _) => match &size {
                Some(size) => self.resizing.failed(&key, size, &reason),
                None => tracing::warn!(model = name, version, "it stays as it was ready at first: {reason}"),
            },
        }
        self.improve_next();
    }

    /// When to look at the model that is there twice, or at those that were; `None` where there is none.
    pub(crate) fn replace_next_at(&self) -> Option<Timestamp> {
        let improvements = self.improvements.as_ref()?;
        let later = || self.bring_up.controller.now() + WHILE_LEAVING;
        let leaving = (!improvements.replaced.is_empty()).then(later);
        improvements.replacement.as_ref().map(|replacement| replacement.look_at).or(leaving)
    }

    /// Switches a model over once its weights are where those of its predecessor are.
    pub(crate) fn go_on_replacing(&mut self, now: Timestamp) {
        let Some(improvements) = &mut self.improvements else { return };
        improvements.replaced.retain(|prepared| Arc::strong_count(prepared) > 1);
        let Some(mut replacement) = improvements.replacement.take_if(|replacement| replacement.look_at <= now) else {
            return;
        };
        let controller = &self.bring_up.controller;
        let model = self.versions.get(&replacement.key).and_then(|version| version.entry.serving()?.model());
        let (old, new) = (replacement.old, replacement.new);
        if model.is_none_or(|model| model.id != old) {
            // It was withdrawn or changed, or has moved to another cell and is improved there.
            controller.withdraw(new);
            // Another size is found worthwhile again if it still is.
            if replacement.size.is_none() {
                self.improve_later(replacement.key);
            }
            return self.improve_next();
        }
        let loaded = controller.loaded_on(new);
        if loaded >= controller.loaded_on(old) || now.since(replacement.since) >= PATIENCE {
            self.switch_over(replacement);
            return self.improve_next();
        }
        // One load after another, until there are enough: each is for one device.
        if loaded > replacement.loaded {
            controller.load_on_one_more(new);
        }
        (replacement.loaded, replacement.look_at) = (loaded, now + WHILE_LOADING);
        improvements.replacement = Some(replacement);
    }

    /// The model is asked for under its new number from now on.
    fn switch_over(&mut self, Replacement { key, old, new, served, brought_up, size, .. }: Replacement) {
        let Some(version) = self.versions.get_mut(&key) else { return };
        let Some(origin) = &mut version.origin else { return };
        if let ScanEntry::Found(found) = &origin.files {
            self.bring_up.announce(found, &brought_up);
            if let Some(size) = size {
                self.bring_up.keep_sizes(found, &brought_up.added);
                self.resizing.switched(&key, &size, &origin.known, &brought_up);
            }
        }
        origin.known = brought_up.known();
        let before = origin.prepared.replace(brought_up.prepared);
        version.show(&key, served);
        self.update_catalogue();
        self.bring_up.controller.depart(old, new);
        if let Some(improvements) = &mut self.improvements {
            improvements.replaced.extend(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_most_is_next_and_of_equals_the_first() {
        let next = |requests: &[u64]| most_asked(requests.iter().copied());
        assert_eq!([next(&[]), next(&[0, 0]), next(&[1, 7, 7]), next(&[0, 3])], [None, Some(0), Some(1), Some(1)]);
    }
}
