//! Which shapes of a model are kept ready on the device, and which is prepared next: pure code.
//!
//! ```text
//!            ask                next                  made
//!  unknown ──────> wanted ───────────────> in the making ──────> ready ──────> gone, when others are used more
//!                     ▲                          │
//!                     └── nothing may go for it ─┴──────> impossible
//! ```
//!
//! Every request counts for its shape, and old requests count less and less. Where there is room, every shape that is
//! asked for is prepared. Where there is none, a shape takes the place of the least used one, if it is used more.

use std::collections::BTreeMap;

/// After so many requests, those before count half.
const HALVED_AFTER: u32 = 256;
/// A request, in the units that counts are halved in.
const REQUEST: u64 = 1 << 16;
/// Where there is no room, a shape is wanted after so many requests: what is asked for once shouldn't cost what many
/// ask for.
const SERIOUS: u64 = 2 * REQUEST;
/// So many times as many shapes are remembered as are ready.
const REMEMBERED: usize = 4;
/// So many times as many are prepared in all: the kernels of a shape stay on the device and on disk when it goes.
const PREPARED: usize = 8;

/// What becomes of a shape.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShapeState {
    /// It should be prepared.
    Wanted,
    /// It is being prepared.
    InTheMaking,
    /// Batches of it run on the device.
    Ready,
    /// It can't be prepared; the reason.
    Impossible(String),
}

#[derive(Clone, Debug)]
struct Known {
    state: ShapeState,
    uses: u64,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Shapes<S> {
    /// So many are ready at a time.
    most: usize,
    known: BTreeMap<S, Known>,
    /// Since counts were halved.
    asked: u32,
    /// How many may still be prepared.
    pub(crate) left: usize,
}

impl<S: Ord + Copy> Shapes<S> {
    /// No shape is ready yet; at most so many will be, at least one.
    pub fn new(most: usize) -> Self {
        let most = most.max(1);
        Self { most, known: BTreeMap::new(), asked: 0, left: most.saturating_mul(PREPARED) }
    }

    /// A request of that shape came: what becomes of it.
    pub fn ask(&mut self, shape: S) -> &ShapeState {
        self.asked += 1;
        if self.asked >= HALVED_AFTER {
            self.asked = 0;
            self.known.values_mut().for_each(|known| known.uses /= 2);
        }
        if !self.known.contains_key(&shape) {
            self.forget();
        }
        let spent = self.is_spent();
        let known = self.known.entry(shape).or_insert(Known { state: ShapeState::Wanted, uses: 0 });
        known.uses += REQUEST;
        if spent && known.state == ShapeState::Wanted {
            known.state = ShapeState::Impossible("the model has had as many shapes prepared as it may".into());
        }
        &known.state
    }

    /// Whether no more may be prepared.
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// Makes room for one more: of those that are neither ready nor in the making, the least used is forgotten.
    fn forget(&mut self) {
        if self.known.len() < self.most.saturating_mul(REMEMBERED) {
            return;
        }
        let idle = |known: &Known| matches!(known.state, ShapeState::Wanted | ShapeState::Impossible(_));
        let least = self.known.iter().filter(|(_, known)| idle(known)).min_by_key(|(_, known)| known.uses);
        if let Some(shape) = least.map(|(shape, _)| *shape) {
            self.known.remove(&shape);
        }
    }

    /// The shape to prepare next, from now on in the making: the most used of those that are wanted, if there is room
    /// for it or another may go for it.
    pub fn next(&mut self, in_use: impl Fn(S) -> bool) -> Option<S> {
        let wanted = self.known.iter().filter(|(_, known)| known.state == ShapeState::Wanted);
        let (shape, uses) = wanted.map(|(shape, known)| (*shape, known.uses)).max_by_key(|(_, uses)| *uses)?;
        let room = self.count(&ShapeState::Ready) + self.count(&ShapeState::InTheMaking) < self.most;
        let pays = || uses >= SERIOUS && self.least_used(uses, in_use).is_some();
        if self.is_spent() || (!room && !pays()) {
            return None;
        }
        self.begin(shape);
        Some(shape)
    }

    /// A shape is being prepared, whether it was the next or not.
    pub fn begin(&mut self, shape: S) {
        self.left = self.left.saturating_sub(1);
        self.set(shape, ShapeState::InTheMaking);
    }

    /// A shape is prepared. Which one goes for it; it itself, where none may go.
    pub fn made(&mut self, shape: S, in_use: impl Fn(S) -> bool) -> Option<S> {
        let uses = self.known.get(&shape).map_or(0, |known| known.uses);
        let is_new = self.state(shape) != Some(&ShapeState::Ready);
        if is_new && self.count(&ShapeState::Ready) >= self.most {
            let Some(least) = self.least_used(uses, in_use) else {
                self.set(shape, ShapeState::Wanted);
                return Some(shape);
            };
            self.known.remove(&least);
            self.set(shape, ShapeState::Ready);
            return Some(least);
        }
        self.set(shape, ShapeState::Ready);
        None
    }

    /// A shape can't be prepared.
    pub fn failed(&mut self, shape: S, reason: String) {
        self.set(shape, ShapeState::Impossible(reason));
    }

    /// What is known of a shape.
    pub fn state(&self, shape: S) -> Option<&ShapeState> {
        self.known.get(&shape).map(|known| &known.state)
    }

    fn set(&mut self, shape: S, state: ShapeState) {
        self.known.entry(shape).or_insert(Known { state: ShapeState::Wanted, uses: 0 }).state = state;
    }

    /// The least used of those that are ready and not in use, if it is used less than that.
    fn least_used(&self, than: u64, in_use: impl Fn(S) -> bool) -> Option<S> {
        let ready = self.known.iter().filter(|(_, known)| known.state == ShapeState::Ready);
        let less = ready.filter(|(shape, known)| known.uses < than && !in_use(**shape));
        less.min_by_key(|(_, known)| known.uses).map(|(shape, _)| *shape)
    }

    fn count(&self, state: &ShapeState) -> usize {
        self.known.values().filter(|known| known.state == *state).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn nobody(_: u32) -> bool {
        false
    }

    fn ready(shapes: &Shapes<u32>) -> Vec<u32> {
        shapes.known.iter().filter(|(_, known)| known.state == ShapeState::Ready).map(|(shape, _)| *shape).collect()
    }

    fn prepare(shapes: &mut Shapes<u32>) -> Option<u32> {
        let shape = shapes.next(nobody)?;
        shapes.made(shape, nobody);
        Some(shape)
    }

    #[test]
    fn what_is_asked_for_is_prepared_while_there_is_room() {
        let mut shapes = Shapes::new(2);
        assert_eq!(shapes.ask(7), &ShapeState::Wanted);
        assert_eq!((shapes.next(nobody), shapes.next(nobody)), (Some(7), None));
        assert_eq!(shapes.ask(7), &ShapeState::InTheMaking);
        assert_eq!(shapes.made(7, nobody), None);
        assert_eq!(shapes.ask(7), &ShapeState::Ready);
    }

    #[test]
    fn the_least_used_goes_for_one_that_is_used_more() {
        let mut shapes = Shapes::new(2);
        [1, 1, 1, 2, 2].iter().for_each(|shape| _ = shapes.ask(*shape));
        assert_eq!((prepare(&mut shapes), prepare(&mut shapes)), (Some(1), Some(2)));
        shapes.ask(3);
        assert_eq!(shapes.next(nobody), None, "once is not serious");
        shapes.ask(3);
        assert_eq!(shapes.next(nobody), None, "as much as the least used");
        shapes.ask(3);
        assert_eq!(shapes.next(nobody), Some(3));
        assert_eq!(shapes.made(3, nobody), Some(2));
        assert_eq!(ready(&shapes), [1, 3]);
    }

    #[test]
    fn what_a_batch_uses_stays_and_the_new_one_waits() {
        let mut shapes = Shapes::new(1);
        shapes.ask(1);
        prepare(&mut shapes);
        (0..5).for_each(|_| _ = shapes.ask(2));
        assert_eq!(shapes.next(|shape| shape == 1), None);
        assert_eq!(shapes.next(nobody), Some(2));
        assert_eq!(shapes.made(2, |shape| shape == 1), Some(2), "it began to be used meanwhile");
        assert_eq!(ready(&shapes), [1]);
        assert_eq!(prepare(&mut shapes), Some(2));
        assert_eq!(ready(&shapes), [2]);
    }

    #[test]
    fn what_was_popular_goes_when_nobody_asks_for_it_any_more() {
        let mut shapes = Shapes::new(1);
        (0..200).for_each(|_| _ = shapes.ask(1));
        prepare(&mut shapes);
        let mut asked = 0;
        while prepare(&mut shapes).is_none() {
            shapes.ask(2);
            asked += 1;
        }
        assert!(asked <= 2 * HALVED_AFTER, "{asked}");
        assert_eq!(ready(&shapes), [2]);
    }

    #[test]
    fn what_cant_be_prepared_is_tried_once() {
        let mut shapes = Shapes::new(2);
        shapes.ask(1);
        shapes.next(nobody);
        shapes.failed(1, "too large".into());
        assert_eq!(shapes.ask(1), &ShapeState::Impossible("too large".into()));
        assert_eq!(shapes.next(nobody), None);
    }

    #[test]
    fn a_model_has_so_many_shapes_prepared_and_no_more() {
        let mut shapes = Shapes::new(1);
        let mut prepared = 0;
        for shape in 0..1_000 {
            (0..2 * HALVED_AFTER).for_each(|_| _ = shapes.ask(shape));
            prepared += usize::from(prepare(&mut shapes).is_some());
        }
        assert_eq!((prepared, shapes.is_spent()), (PREPARED, true));
        assert!(matches!(shapes.ask(2_000), ShapeState::Impossible(_)), "it isn't waited for");
        assert_eq!(ready(&shapes).len(), 1, "what is there stays");
    }

    proptest! {
        /// Requests of few popular shapes and of many others, batches that use shapes, and preparations that fail.
        #[test]
        fn random_requests_keep_the_bounds(
            most in 1usize..6,
            requests in proptest::collection::vec((0u32..40, 0u32..8), 1..2_000),
        ) {
            let mut shapes = Shapes::new(most);
            shapes.left = usize::MAX;
            let mut there = BTreeSet::new();
            let mut used = None;
            for (other, chance) in requests {
                let popular = chance < 4;
                let shape = if popular { other % 2 } else { other + 2 };
                if *shapes.ask(shape) == ShapeState::Ready {
                    prop_assert!(there.contains(&shape), "what is ready is there");
                    used = (chance == 0 || used.is_some()).then_some(shape);
                }
                let in_use = |shape: u32| used == Some(shape);
                if let Some(next) = shapes.next(in_use) {
                    prop_assert!(!there.contains(&next), "nothing is prepared twice");
                    if next % 7 == 6 {
                        shapes.failed(next, "no".into());
                    } else {
                        there.insert(next);
                        if let Some(goes) = shapes.made(next, in_use) {
                            prop_assert!(!in_use(goes), "what is in use stays");
                            prop_assert!(there.remove(&goes));
                        }
                    }
                }
                prop_assert!(there.len() <= most, "bounded");
                prop_assert!(shapes.known.len() <= most * REMEMBERED + 1, "so is what is remembered");
                prop_assert_eq!(ready(&shapes), there.iter().copied().collect::<Vec<_>>());
            }
            // Whatever came before, one that everybody asks for is there soon.
            for _ in 0..4 * HALVED_AFTER {
                shapes.ask(1);
                prepare(&mut shapes);
            }
            prop_assert_eq!(shapes.state(1), Some(&ShapeState::Ready));
        }
    }
}
