//! Which sequences there are, whose turn it is in each, and what was left for it.

use base::Timestamp;
use controller::Tensor;
use models::SequenceRules;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use wire::SequenceId;

/// Requests of one sequence that wait for their turn (P9).
const MOST_WAITING: usize = 256;
/// Sequences of one model that wait until another ends (P9).
const MOST_STARTING: usize = 1024;

/// What time it is.
pub(crate) type ReadClock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The sequences of all models.
#[derive(Default)]
pub(crate) struct SequenceTables {
    /// By name and version. The lock is held for a look, by requests of sequences alone.
    models: Mutex<HashMap<String, HashMap<u64, Arc<ModelSequences>>>>,
}

impl SequenceTables {
    /// Those of a model. If it was replaced since they began, they are lost.
    pub(crate) fn of(
        &self,
        name: &str,
        version: u64,
        rules: &Arc<SequenceRules>,
        clock: impl FnOnce() -> ReadClock,
    ) -> Arc<ModelSequences> {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let known = models.get(name).and_then(|versions| versions.get(&version));
        if let Some(known) = known.filter(|known| Arc::ptr_eq(&known.rules, rules) || known.rules == *rules) {
            return Arc::clone(known);
        }
        let lost: HashSet<SequenceId> =
            known.map(|known| known.table().live.keys().cloned().collect()).unwrap_or_default();
        // Models without sequences are forgotten: there are as many tables as models that have some.
        models.retain(|_, versions| {
            versions.retain(|_, sequences| !sequences.table().live.is_empty());
            !versions.is_empty()
        });
        let table = Mutex::new(SequenceLines { lost, ..SequenceLines::default() });
        let made = Arc::new(ModelSequences { rules: Arc::clone(rules), clock: clock(), table });
        models.entry(name.to_owned()).or_default().insert(version, Arc::clone(&made));
        made
    }
}

/// The sequences of one model.
pub(crate) struct ModelSequences {
    rules: Arc<SequenceRules>,
    clock: ReadClock,
    table: Mutex<SequenceLines>,
}

#[derive(Default)]
struct SequenceLines {
    live: HashMap<SequenceId, Live>,
    /// How many of them have a place.
    placed: usize,
    /// Those that wait for a place, in their order.
    starting: VecDeque<SequenceId>,
    /// Those that were lost when the model was replaced, until they begin anew.
    lost: HashSet<SequenceId>,
}

/// A sequence that goes on, or is about to begin.
struct Live {
    is_placed: bool,
    /// Whether somebody has the turn.
    is_busy: bool,
    /// What the last request left; `None` before the first is done.
    states: Option<Vec<Tensor>>,
    idle_since: Timestamp,
    waiting: VecDeque<oneshot::Sender<LineTurn>>,
}

/// Why a request has no place in a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// There is no such sequence, and this isn't its beginning.
    Unknown,
    /// It was lost when the model was replaced.
    Lost,
    /// Too many requests of it wait.
    LineFull,
    /// Too many sequences wait.
    TooMany,
}

/// A place in a sequence's line.
pub(crate) enum Entered {
    /// Nobody is before it.
    Now(LineTurn),
    /// It will be handed the turn.
    Waits(oneshot::Receiver<LineTurn>),
}

impl ModelSequences {
    fn table(&self) -> MutexGuard<'_, SequenceLines> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a request at the end of its sequence's line.
    pub(crate) fn enter(self: &Arc<Self>, id: &SequenceId, start: bool) -> Result<Entered, NoPlace> {
        let now = (self.clock)();
        let mut table = self.table();
        let given = self.place_starting(&mut table, now);
        let entered = self.enter_line(&mut table, id, start, now);
        drop(table);
        hand_over(given);
        entered
    }

    fn enter_line(
        self: &Arc<Self>,
        table: &mut SequenceLines,
        id: &SequenceId,
        start: bool,
        now: Timestamp,
    ) -> Result<Entered, NoPlace> {
        if table.live.get(id).is_some_and(|live| self.is_over(live, now)) {
            table.remove(id);
        }
        if !table.live.contains_key(id) {
            if !start {
                return Err(if table.lost.contains(id) { NoPlace::Lost } else { NoPlace::Unknown });
            }
            let has_place = table.placed < self.rules.most.max(1) as usize;
            if !has_place && table.starting.len() >= MOST_STARTING {
                return Err(NoPlace::TooMany);
            }
            table.lost.remove(id);
            let (states, waiting) = (None, VecDeque::new());
            let live = Live { is_placed: has_place, is_busy: false, states, idle_since: now, waiting };
            table.live.insert(id.clone(), live);
            if has_place {
                table.placed += 1;
            } else {
                table.starting.push_back(id.clone());
            }
        }
        let Some(live) = table.live.get_mut(id) else { return Err(NoPlace::Unknown) };
        if live.is_placed && !live.is_busy {
            live.is_busy = true;
            return Ok(Entered::Now(LineTurn::new(self, id.clone())));
        }
        if live.waiting.len() >= MOST_WAITING {
            return Err(NoPlace::LineFull);
        }
        let (sender, turn) = oneshot::channel();
        live.waiting.push_back(sender);
        Ok(Entered::Waits(turn))
    }

    /// Whether a sequence had no request for too long.
    fn is_over(&self, live: &Live, now: Timestamp) -> bool {
        live.is_placed && !live.is_busy && now.since(live.idle_since) >= self.rules.idle
    }

    /// When a sequence that has a place is over unless it has a request, if others wait for a place.
    pub(crate) fn next_over_at(&self) -> Option<Timestamp> {
        let table = self.table();
        let idle = table.live.values().filter(|live| live.is_placed && !live.is_busy);
        idle.map(|live| live.idle_since + self.rules.idle).min().filter(|_| !table.starting.is_empty())
    }

    /// Ends sequences that had no request for too long, and lets others begin.
    pub(crate) fn end_idle(self: &Arc<Self>) {
        let given = self.place_starting(&mut self.table(), (self.clock)());
        hand_over(given);
    }

    /// Turns for those that have waited for a place, as far as there are places.
    fn place_starting(self: &Arc<Self>, table: &mut SequenceLines, now: Timestamp) -> Vec<Handed> {
        let most = self.rules.most.max(1) as usize;
        if table.placed >= most {
            let over: Vec<_> =
                table.live.iter().filter(|(_, live)| self.is_over(live, now)).map(|(id, _)| id.clone()).collect();
            over.iter().for_each(|id| table.remove(id));
        }
        let mut given = Vec::new();
        while table.placed < most
            && let Some(id) = table.starting.pop_front()
        {
            let Some(live) = table.live.get_mut(&id) else { continue };
            (live.is_placed, live.is_busy) = (true, true);
            table.placed += 1;
            given.extend(self.next_in(table, id));
        }
        given
    }

    /// Hands the turn of a sequence to who is next in its line; where nobody is, it idles, or is gone if it has nothing
    /// to go on with.
    fn next_in(self: &Arc<Self>, table: &mut SequenceLines, id: SequenceId) -> Option<Handed> {
        let live = table.live.get_mut(&id)?;
        while let Some(sender) = live.waiting.pop_front() {
            // Whoever doesn't wait any more is passed over.
            if !sender.is_closed() {
                return Some((sender, LineTurn::new(self, id)));
            }
        }
        live.is_busy = false;
        if live.states.is_none() {
            table.remove(&id);
        }
        None
    }

    /// The turn is over; `left` are the states that the next one gets, or nothing if the sequence is to be as it was.
    fn pass_on(self: &Arc<Self>, id: &SequenceId, left: Option<Left>) {
        let now = (self.clock)();
        let mut table = self.table();
        if let Some(live) = table.live.get_mut(id) {
            live.idle_since = now;
            match left {
                Some(Left::States(states)) => live.states = Some(states),
                Some(Left::Ended) => live.states = None,
                None => {}
            }
        }
        let mut given: Vec<Handed> = self.next_in(&mut table, id.clone()).into_iter().collect();
        given.extend(self.place_starting(&mut table, now));
        drop(table);
        hand_over(given);
    }
}

impl SequenceLines {
    fn remove(&mut self, id: &SequenceId) {
        if self.live.remove(id).is_some_and(|live| live.is_placed) {
            self.placed -= 1;
        }
    }
}

/// A turn, and who gets it.
type Handed = (oneshot::Sender<LineTurn>, LineTurn);

/// Without the table's lock: a turn that nobody takes goes on to the next by itself.
fn hand_over(given: Vec<Handed>) {
    for (sender, turn) in given {
        drop(sender.send(turn));
    }
}

/// What a request left.
enum Left {
    States(Vec<Tensor>),
    Ended,
}

/// The right to be computed, as the only one of a sequence. Dropped without a result, the sequence is as it was before,
/// and the next has its turn.
pub(crate) struct LineTurn {
    sequences: Arc<ModelSequences>,
    id: SequenceId,
    left: Option<Left>,
}

impl LineTurn {
    fn new(sequences: &Arc<ModelSequences>, id: SequenceId) -> Self {
        Self { sequences: Arc::clone(sequences), id, left: None }
    }

    /// What the request before left, none where this begins the sequence; `Err` where it doesn't and should.
    pub(crate) fn states(&self, start: bool) -> Result<Option<Vec<Tensor>>, NoPlace> {
        let mut table = self.sequences.table();
        let live = table.live.get_mut(&self.id).ok_or(NoPlace::Unknown)?;
        if start {
            // What goes wrong from now on leaves nothing of the one before.
            live.states = None;
            return Ok(None);
        }
        live.states.clone().map(Some).ok_or(NoPlace::Unknown)
    }

    /// It was computed: what it leaves, unless it was the last.
    pub(crate) fn done(mut self, states: Option<Vec<Tensor>>) {
        self.left = Some(states.map_or(Left::Ended, Left::States));
    }
}

impl Drop for LineTurn {
    fn drop(&mut self) {
        self.sequences.pass_on(&self.id, self.left.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{DataType, Duration};
    use std::sync::atomic::{AtomicU64, Ordering};

    struct World {
        now: Arc<AtomicU64>,
        clock: ReadClock,
        tables: SequenceTables,
        rules: Arc<SequenceRules>,
    }

    impl World {
        fn new(most: u32) -> Self {
            let now = Arc::new(AtomicU64::new(0));
            let read = Arc::clone(&now);
            let clock: ReadClock = Arc::new(move || Timestamp::from_nanos(read.load(Ordering::SeqCst)));
            Self { now, clock, tables: SequenceTables::default(), rules: Self::rules(most) }
        }

        fn rules(most: u32) -> Arc<SequenceRules> {
            Arc::new(SequenceRules { most, idle: Duration::from_secs(1), ..SequenceRules::default() })
        }

        fn sequences(&self) -> Arc<ModelSequences> {
            self.tables.of("m", 1, &self.rules, || Arc::clone(&self.clock))
        }

        fn pass(&self, millis: u64) {
            self.now.fetch_add(millis * 1_000_000, Ordering::SeqCst);
        }

        fn enter(&self, id: u64, start: bool) -> Result<Entered, NoPlace> {
            self.sequences().enter(&SequenceId::Number(id), start)
        }

        fn turn(&self, id: u64, start: bool) -> LineTurn {
            match self.enter(id, start) {
                Ok(Entered::Now(turn)) => turn,
                Ok(Entered::Waits(_)) => panic!("it waits"),
                Err(why) => panic!("{why:?}"),
            }
        }

        fn waits(&self, id: u64, start: bool) -> oneshot::Receiver<LineTurn> {
            match self.enter(id, start) {
                Ok(Entered::Waits(turn)) => turn,
                Ok(Entered::Now(_)) => panic!("it has its turn at once"),
                Err(why) => panic!("{why:?}"),
            }
        }

        fn refused(&self, id: u64, start: bool) -> NoPlace {
            self.enter(id, start).map(|_| ()).unwrap_err()
        }
    }

    fn state(value: u8) -> Option<Vec<Tensor>> {
        Some(vec![Tensor { datatype: DataType::Uint8, shape: vec![1], data: vec![value].into() }])
    }

    #[test]
    fn each_has_what_the_one_before_left() {
        let world = World::new(4);
        assert_eq!(world.refused(7, false), NoPlace::Unknown);
        let first = world.turn(7, true);
        assert_eq!(first.states(true), Ok(None));
        let (mut second, mut third) = (world.waits(7, false), world.waits(7, false));
        first.done(state(1));
        let turn = second.try_recv().unwrap();
        assert!(third.try_recv().is_err(), "one at a time");
        assert_eq!(turn.states(false), Ok(state(1)));
        // It fails: the next has what it had.
        drop(turn);
        let turn = third.try_recv().unwrap();
        assert_eq!(turn.states(false), Ok(state(1)));
        turn.done(None);
        assert_eq!(world.refused(7, false), NoPlace::Unknown, "it ended");
    }

    #[test]
    fn who_went_away_is_passed_over() {
        let world = World::new(4);
        let first = world.turn(7, true);
        let (second, mut third) = (world.waits(7, false), world.waits(7, false));
        drop(second);
        first.done(state(1));
        let turn = third.try_recv().unwrap();
        let fourth = world.waits(7, false);
        turn.done(state(2));
        // The turn was handed to one that never looks at it.
        drop(fourth);
        assert_eq!(world.turn(7, false).states(false), Ok(state(2)));
    }

    #[test]
    fn a_beginning_that_fails_began_nothing() {
        let world = World::new(1);
        let first = world.turn(7, true);
        let mut second = world.waits(7, false);
        assert_eq!(first.states(true), Ok(None));
        drop(first);
        let turn = second.try_recv().unwrap();
        assert_eq!(turn.states(false), Err(NoPlace::Unknown));
        drop(turn);
        assert_eq!(world.refused(7, false), NoPlace::Unknown);
        world.turn(8, true).done(state(1));
    }

    #[test]
    fn a_second_beginning_forgets_the_first() {
        let world = World::new(4);
        world.turn(7, true).done(state(1));
        let again = world.turn(7, true);
        assert_eq!(again.states(true), Ok(None));
        again.done(state(2));
        assert_eq!(world.turn(7, false).states(false), Ok(state(2)));
    }

    #[test]
    fn what_idles_too_long_is_over() {
        let world = World::new(4);
        world.turn(7, true).done(state(1));
        world.pass(999);
        world.turn(7, false).done(state(2));
        world.pass(1000);
        assert_eq!(world.refused(7, false), NoPlace::Unknown);
        // What is computed doesn't idle.
        let turn = world.turn(8, true);
        world.pass(5000);
        turn.done(state(1));
        assert_eq!(world.turn(8, false).states(false), Ok(state(1)));
    }

    #[test]
    fn others_begin_when_one_ends_or_idles() {
        let world = World::new(1);
        world.turn(1, true).done(state(1));
        let mut second = world.waits(2, true);
        let mut behind = world.waits(2, false);
        let mut third = world.waits(3, true);
        assert_eq!(world.sequences().next_over_at(), Some(Timestamp::from_nanos(1_000_000_000)));
        world.turn(1, false).done(None);
        let turn = second.try_recv().unwrap();
        assert!(third.try_recv().is_err());
        turn.done(state(2));
        behind.try_recv().unwrap().done(state(3));
        world.pass(1000);
        world.sequences().end_idle();
        third.try_recv().unwrap().done(state(4));
        assert_eq!(world.refused(2, false), NoPlace::Unknown);
    }

    #[test]
    fn lines_have_bounds() {
        let world = World::new(1);
        let turn = world.turn(1, true);
        let waiting: Vec<_> = (0..MOST_WAITING).map(|_| world.waits(1, false)).collect();
        assert_eq!(world.refused(1, false), NoPlace::LineFull);
        let starting: Vec<_> = (0..MOST_STARTING as u64).map(|id| world.waits(2 + id, true)).collect();
        assert_eq!(world.refused(99_999, true), NoPlace::TooMany);
        drop((waiting, starting));
        drop(turn);
        world.turn(99_999, true).done(None);
        let table = world.sequences();
        let table = table.table();
        assert_eq!((table.live.len(), table.placed, table.starting.len()), (0, 0, 0), "nothing is left behind");
    }

    #[test]
    fn a_replaced_model_loses_its_sequences_and_says_so() {
        let mut world = World::new(4);
        world.turn(7, true).done(state(1));
        world.rules = World::rules(4);
        assert_eq!(world.turn(7, false).states(false), Ok(state(1)), "made anew of the same file");
        world.rules = World::rules(5);
        assert_eq!(world.refused(7, false), NoPlace::Lost);
        assert_eq!(world.refused(8, false), NoPlace::Unknown);
        world.turn(7, true).done(state(1));
        assert_eq!(world.turn(7, false).states(false), Ok(state(1)));
    }
}
