//! Endpoints that select among models: what the gateway goes by, and what stays when it is planned anew.

use super::selection_store::SelectionStore;
use crate::catalogue::CatalogueEntry;
use base::{Duration, ModelSignature, Timestamp};
use repository::SelectionConfig;
use selection::{
    Answered, Answers, ContextChange, Judge, Learner, MemberLoss, OutputRow, PolicyTable, Split, Truth, Unjoined,
    default_outputs, fits,
};
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use telemetry::{FeedbackOutcome, Metrics, SelectionMetrics};

/// Bytes of an endpoint's answers that wait for feedback.
const ANSWER_BYTES: usize = 8 << 20;
/// For how long feedback finds its answer.
const KEEP_ANSWERS: Duration = Duration::from_secs(600);
/// Copies for shadows that may be in flight, of one endpoint.
const MOST_SHADOWS: usize = 64;
/// What was seen of a member's times counts half after so long.
const TIMES_HALVE: Duration = Duration::from_secs(1);

/// How an endpoint selects among its members.
#[derive(Debug)]
pub struct SelectionPlan {
    /// What its file says.
    pub table: PolicyTable,
    /// By what answers are compared, where that is known.
    pub judge: Option<Judge>,
    /// In the table's order.
    pub members: Vec<SelectionMember>,
    /// Of `split`, who gets which part.
    pub split: Option<Split>,
    /// One row of each output, for when no member answers in time.
    pub default: Option<Vec<OutputRow>>,
    /// What the endpoint's name adds to keys, so that who is in one canary isn't in all.
    pub salt: u64,
    /// What stays when the endpoint is planned anew.
    pub state: Arc<SelectionState>,
}

/// A member of an endpoint that selects.
#[derive(Debug)]
pub struct SelectionMember {
    /// The model's name.
    pub name: String,
    /// Its place among the endpoint's members.
    pub member: usize,
    /// For each input of the endpoint its place in the member's signature.
    pub inputs: Vec<usize>,
    /// For each output of the endpoint its place in the member's signature.
    pub outputs: Vec<usize>,
}

/// What an endpoint has learnt, and its answers that wait for feedback.
#[derive(Debug)]
pub struct SelectionState {
    members: Vec<String>,
    /// Of `exp3` and `exp4`. Behind the lock are some multiplications for each member, never work that grows with a
    /// request.
    learner: Mutex<Option<Learner>>,
    answers: Mutex<Answers>,
    seed: u64,
    draws: AtomicU64,
    shadows: AtomicUsize,
    times: Vec<MemberTimes>,
    /// Its metrics.
    pub metrics: SelectionMetrics,
}

/// How much longer than its profile says a member took lately.
#[derive(Debug, Default)]
struct MemberTimes {
    late_nanos: AtomicU64,
    seen_at_nanos: AtomicU64,
}

/// A copy for a shadow in flight; dropped, it is over.
#[derive(Debug)]
pub struct ShadowPlace(Arc<SelectionState>);

impl SelectionState {
    fn new(table: &PolicyTable, metrics: SelectionMetrics) -> Self {
        let members: Vec<String> = table.members().into_iter().map(str::to_owned).collect();
        let learner = match table {
            PolicyTable::Exp3(table) => Some(Learner::exp3(table)),
            PolicyTable::Exp4(table) => Some(Learner::exp4(table)),
            _ => None,
        };
        Self {
            times: members.iter().map(|_| MemberTimes::default()).collect(),
            members,
            learner: Mutex::new(learner),
            answers: Mutex::new(Answers::new(ANSWER_BYTES, KEEP_ANSWERS)),
            seed: RandomState::new().hash_one(0),
            draws: AtomicU64::new(0),
            shadows: AtomicUsize::new(0),
            metrics,
        }
    }

    /// A random number in `[0, 1)`.
    pub fn draw(&self) -> f64 {
        let number = self.draws.fetch_add(1, Ordering::Relaxed);
        selection::unit_of(u128::from(number.wrapping_mul(0x9e37_79b9_7f4a_7c15)), self.seed)
    }

    /// Asks the learner of `exp3` or `exp4`; `None` for other kinds.
    pub fn with_learner<T>(&self, ask: impl FnOnce(&mut Learner) -> T) -> Option<T> {
        lock(&self.learner).as_mut().map(ask)
    }

    /// Whether feedback moves something.
    pub fn learns(&self) -> bool {
        lock(&self.learner).is_some()
    }

    /// Remembers an answer for feedback.
    pub fn remember(&self, now: Timestamp, key: u128, answered: Answered) {
        lock(&self.answers).remember(now, key, answered);
    }

    /// The chosen member of `exp3` failed: that is the worst answer.
    pub fn failed(&self, answered: &Answered) {
        let lost = self.with_learner(|learner| {
            let _ = learner.learn(None, answered, &Truth::Loss(1.0));
            learner.shared()
        });
        self.metrics.weigh(&lost.unwrap_or_default());
    }

    /// Joins feedback to its answer: what it says of members, or a sentence and what became of it.
    pub fn feedback(
        &self,
        now: Timestamp,
        key: u128,
        judge: Option<&Judge>,
        truth: &Truth,
    ) -> Result<Vec<MemberLoss>, (FeedbackOutcome, String)> {
        let taken = lock(&self.answers).take(now, key);
        let answered = taken.map_err(|unjoined| match unjoined {
            Unjoined::Unknown => {
                let sentence = "there is no answer with this id that waits for feedback: it was never asked with this key, or longer than ten minutes ago, or too many others came since";
                (FeedbackOutcome::Unknown, sentence.to_owned())
            }
            Unjoined::Again => (FeedbackOutcome::Again, "the answer with this id had feedback before".to_owned()),
        })?;
        let losses = match &mut *lock(&self.learner) {
            Some(learner) => learner.learn(judge, &answered, truth),
            None => truth.losses(judge, &answered),
        };
        match losses {
            Ok(losses) => {
                losses.iter().for_each(|loss| self.metrics.judged(loss.member, loss.loss));
                let weights = self.with_learner(|learner| learner.shared());
                self.metrics.weigh(&weights.unwrap_or_default());
                self.metrics.fed_back(FeedbackOutcome::Joined);
                Ok(losses)
            }
            Err(sentence) => {
                lock(&self.answers).put_back(key, answered);
                Err((FeedbackOutcome::Refused, sentence))
            }
        }
    }

    /// A place for a copy, unless too many are in flight.
    pub fn shadow(self: &Arc<Self>) -> Option<ShadowPlace> {
        let place = ShadowPlace(Arc::clone(self));
        (self.shadows.fetch_add(1, Ordering::Relaxed) < MOST_SHADOWS).then_some(place)
    }

    /// A member took so much longer than its profile says.
    pub fn took(&self, member: usize, now: Timestamp, longer: Duration) {
        if let Some(times) = self.times.get(member) {
            let late = (self.longer(member, now).as_nanos() / 4 * 3).saturating_add(longer.as_nanos() / 4);
            times.late_nanos.store(late, Ordering::Relaxed);
            times.seen_at_nanos.store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// How much longer than its profile says a member takes, by what was seen lately.
    pub fn longer(&self, member: usize, now: Timestamp) -> Duration {
        let Some(times) = self.times.get(member) else { return Duration::ZERO };
        let seen_at = Timestamp::from_nanos(times.seen_at_nanos.load(Ordering::Relaxed));
        let halves = now.since(seen_at).as_nanos() / TIMES_HALVE.as_nanos();
        let late = times.late_nanos.load(Ordering::Relaxed);
        Duration::from_nanos(late.checked_shr(u32::try_from(halves).unwrap_or(u32::MAX)).unwrap_or(0))
    }

    /// The names of its members, in the table's order.
    pub(crate) fn members(&self) -> &[String] {
        &self.members
    }

    /// What differs from what is stored, so many at most.
    pub(crate) fn take_changes(&self, most: usize) -> Vec<ContextChange> {
        self.with_learner(|learner| learner.contexts().take_changes(most)).unwrap_or_default()
    }

    /// Takes back what couldn't be stored.
    pub(crate) fn put_back(&self, changes: Vec<ContextChange>) {
        self.with_learner(|learner| learner.contexts().put_back(changes));
    }
}

impl Drop for ShadowPlace {
    fn drop(&mut self) {
        self.0.shadows.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What endpoints have learnt, by their names, for as long as they are in the repository.
#[derive(Debug, Default)]
pub(crate) struct Selections {
    states: BTreeMap<String, (PolicyTable, Arc<SelectionState>)>,
    /// Where it outlives the server, if it does.
    folder: Option<PathBuf>,
    /// Opened there for the first endpoint that learns: a server without one leaves no file behind.
    store: OnceLock<Option<SelectionStore>>,
}

impl Selections {
    /// With a store in this folder, if there is one.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, ..Self::default() }
    }

    fn store(&self) -> Option<&SelectionStore> {
        self.store.get_or_init(|| self.folder.as_deref().and_then(SelectionStore::open)).as_ref()
    }

    /// Forgets endpoints that are no longer in the repository. What is stored of them stays: they may come back.
    pub(crate) fn retain(&mut self, is_there: impl Fn(&str) -> bool) {
        self.states.retain(|name, _| is_there(name));
    }

    /// The state of an endpoint: as it was if its file says the same, with what was learnt of the members that are
    /// still there if it doesn't.
    fn state(&mut self, name: &str, version: u64, table: &PolicyTable, metrics: &Metrics) -> Arc<SelectionState> {
        let before = self.states.get(name);
        if let Some((_, state)) = before.filter(|(before, _)| before == table) {
            return Arc::clone(state);
        }
        let state = SelectionState::new(table, metrics.selection(name, version, &table.members()));
        if let Some(learner) = &mut *lock(&state.learner) {
            let stored = || self.store().and_then(|store| store.read(name, table));
            let learnt = match before {
                Some((before, old)) if before.kind() == table.kind() => {
                    lock(&old.learner).clone().map(|learner| (old.members.clone(), learner))
                }
                _ => stored(),
            };
            if let Some((members, learnt)) = learnt {
                let from = state.members.iter().map(|new| members.iter().position(|old| old == new));
                learner.take_over(learnt, &from.collect::<Vec<_>>());
            }
            state.metrics.weigh(&learner.shared());
        }
        let state = Arc::new(state);
        if state.learns()
            && let Some(store) = self.store()
        {
            store.watch(name, table.kind(), &state);
        }
        self.states.insert(name.to_owned(), (table.clone(), Arc::clone(&state)));
        state
    }

    /// What the gateway goes by, and what the endpoint takes and gives; or what is wrong. `members` are those of the
    /// endpoint, in its order.
    pub(super) fn plan(
        &mut self,
        (name, version): (&str, u64),
        config: &SelectionConfig,
        members: &[Arc<CatalogueEntry>],
        metrics: &Metrics,
    ) -> Result<(SelectionPlan, ModelSignature), String> {
        let SelectionConfig { table, default } = config;
        let place = |model: &&str| members.iter().position(|entry| entry.name == **model);
        let places: Vec<usize> = table.members().iter().filter_map(place).collect();
        let signature = |&place: &usize| Some((members[place].name.as_str(), &*members[place].serving()?.signature));
        let signatures: Vec<(&str, &ModelSignature)> = places.iter().filter_map(signature).collect();
        let fit = fits(table, &signatures).map_err(|mistakes| mistakes.join("; "))?;
        let rows = match default.is_empty() {
            true => None,
            false => Some(default_outputs(&fit.signature, default).map_err(|mistakes| mistakes.join("; "))?),
        };
        let positions = |wanted: &[base::TensorSpec], there: &[base::TensorSpec]| {
            wanted.iter().filter_map(|spec| there.iter().position(|theirs| theirs.name == spec.name)).collect()
        };
        let member = |(&member, (name, signature)): (&usize, &(&str, &ModelSignature))| SelectionMember {
            name: (*name).to_owned(),
            member,
            inputs: positions(&fit.signature.inputs, &signature.inputs),
            outputs: positions(&fit.signature.outputs, &signature.outputs),
        };
        let plan = SelectionPlan {
            judge: fit.judge,
            members: places.iter().zip(&signatures).map(member).collect(),
            split: match table {
                PolicyTable::Split(split) => Some(Split::new(split.members.iter().map(|member| member.weight))),
                _ => None,
            },
            default: rows,
            salt: u64::from_le_bytes(std::array::from_fn(|byte| blake3::hash(name.as_bytes()).as_bytes()[byte])),
            state: self.state(name, version, table, metrics),
            table: table.clone(),
        };
        Ok((plan, fit.signature))
    }
}
