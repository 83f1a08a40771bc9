//! Weights for each context (a user, a country), bounded: those that were used least recently go.
//!
//! A context has weights of its own from its first feedback on; until then it has those that all feedback made. So a
//! flood of names without feedback leaves nothing behind, and a new user begins with what the others taught.

use crate::experts::{Experts, RestoreProblem};
use std::collections::{BTreeMap, BTreeSet};

/// The experts of every context.
#[derive(Clone, Debug)]
pub struct Contexts {
    most: usize,
    shared: Experts,
    shared_changed: bool,
    own: BTreeMap<u128, Context>,
    /// By when they were used last.
    order: BTreeMap<u64, u128>,
    uses: u64,
    /// Those that differ from what is stored.
    changed: BTreeSet<u128>,
    /// Those that are stored and aren't here any more.
    gone: BTreeSet<u128>,
}

#[derive(Clone, Debug)]
struct Context {
    experts: Experts,
    used: u64,
    stored: bool,
}

/// What differs from what is stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ContextChange {
    /// What all feedback made.
    Shared(Vec<u8>),
    /// A context's own.
    Own(u128, Vec<u8>),
    /// A context that isn't here any more.
    Gone(u128),
}

impl Contexts {
    /// Begins with these weights; so many contexts have their own.
    pub fn new(most: usize, first: Experts) -> Self {
        Self {
            most,
            shared: first,
            shared_changed: false,
            own: BTreeMap::new(),
            order: BTreeMap::new(),
            uses: 0,
            changed: BTreeSet::new(),
            gone: BTreeSet::new(),
        }
    }

    /// Takes over what another has, with its experts renumbered as [`Experts::renumbered`] does; those that were used
    /// last if it has too many. All of it is to be stored anew if it is renumbered.
    pub(crate) fn take_over(&mut self, old: Self, renumbered: Option<(&[Option<usize>], usize)>) {
        let new = |experts: &Experts| match renumbered {
            Some((from, counted)) => experts.renumbered(from, counted),
            None => experts.clone(),
        };
        self.shared = new(&old.shared);
        self.shared_changed = old.shared_changed || renumbered.is_some();
        self.gone = old.gone;
        for key in old.order.values() {
            let context = &old.own[key];
            if self.most == 0 {
                if context.stored {
                    self.gone.insert(*key);
                }
                continue;
            }
            self.insert(*key, new(&context.experts), context.stored);
            if renumbered.is_some() || old.changed.contains(key) {
                self.changed.insert(*key);
            }
        }
    }

    /// What all feedback made.
    pub fn shared(&self) -> &Experts {
        &self.shared
    }

    /// How many contexts have weights of their own.
    pub fn count(&self) -> usize {
        self.own.len()
    }

    /// The weights for a request of that context, which counts as used.
    pub fn of(&mut self, context: Option<u128>) -> &Experts {
        match context {
            Some(key) if self.own.contains_key(&key) => {
                self.touch(key);
                &self.own[&key].experts
            }
            _ => &self.shared,
        }
    }

    /// Changes the weights of a context, which gets its own with this, and those that all feedback makes.
    pub fn change(&mut self, context: Option<u128>, mut change: impl FnMut(&mut Experts)) {
        if let Some(key) = context.filter(|_| self.most > 0) {
            if !self.own.contains_key(&key) {
                self.insert(key, self.shared.clone(), false);
            }
            self.touch(key);
            if let Some(context) = self.own.get_mut(&key) {
                change(&mut context.experts);
                self.changed.insert(key);
            }
        }
        change(&mut self.shared);
        self.shared_changed = true;
    }

    fn touch(&mut self, key: u128) {
        self.uses += 1;
        if let Some(context) = self.own.get_mut(&key) {
            self.order.remove(&context.used);
            context.used = self.uses;
            self.order.insert(self.uses, key);
        }
    }

    fn insert(&mut self, key: u128, experts: Experts, stored: bool) {
        while self.own.len() >= self.most {
            let Some((_, oldest)) = self.order.pop_first() else { break };
            self.changed.remove(&oldest);
            if self.own.remove(&oldest).is_some_and(|context| context.stored) {
                self.gone.insert(oldest);
            }
        }
        self.uses += 1;
        // It may be stored from before it went, and not have been deleted yet.
        let stored = stored | self.gone.remove(&key);
        self.order.insert(self.uses, key);
        self.own.insert(key, Context { experts, used: self.uses, stored });
    }

    /// What is to be stored, so many at most; they count as stored. Deletions come first, so that a store never has
    /// more than twice as many contexts as may be here.
    pub fn take_changes(&mut self, most: usize) -> Vec<ContextChange> {
        let mut changes = Vec::new();
        if std::mem::take(&mut self.shared_changed) {
            changes.push(ContextChange::Shared(self.shared.save()));
        }
        while changes.len() < most
            && let Some(key) = self.gone.pop_first()
        {
            changes.push(ContextChange::Gone(key));
        }
        while changes.len() < most
            && let Some(key) = self.changed.pop_first()
        {
            if let Some(context) = self.own.get_mut(&key) {
                context.stored = true;
                changes.push(ContextChange::Own(key, context.experts.save()));
            }
        }
        changes
    }

    /// Takes back what couldn't be stored.
    pub fn put_back(&mut self, changes: Vec<ContextChange>) {
        for change in changes {
            match change {
                ContextChange::Shared(_) => self.shared_changed = true,
                // It is still to be written, and deleted if it goes: nobody knows what the store has.
                ContextChange::Own(key, _) if self.own.contains_key(&key) => {
                    self.changed.insert(key);
                }
                ContextChange::Gone(key) if self.own.contains_key(&key) => {}
                ContextChange::Own(key, _) | ContextChange::Gone(key) => {
                    self.gone.insert(key);
                }
            }
        }
    }

    /// Takes what was stored. What is here already is newer and stays.
    pub fn restore(&mut self, change: &ContextChange) -> Result<(), RestoreProblem> {
        match change {
            ContextChange::Shared(saved) => {
                self.shared = self.shared.restore(saved)?;
            }
            ContextChange::Own(key, saved) => {
                let experts = self.shared.restore(saved)?;
                if self.own.len() < self.most && !self.own.contains_key(key) {
                    self.insert(*key, experts, true);
                } else {
                    self.gone.insert(*key);
                }
            }
            ContextChange::Gone(_) => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experts::Learning;
    use proptest::prelude::*;

    fn contexts(most: usize) -> Contexts {
        Contexts::new(most, Experts::even(2, 0))
    }

    fn lose(contexts: &mut Contexts, key: u128, expert: usize) {
        contexts.change(Some(key), |experts| experts.charge(Learning::DEFAULT, [(expert, 1.0)]));
    }

    #[test]
    fn each_context_learns_its_own() {
        let mut contexts = contexts(10);
        for _ in 0..100 {
            lose(&mut contexts, 1, 0);
            lose(&mut contexts, 2, 1);
        }
        assert!(contexts.of(Some(1)).parts()[0] < 0.1 && contexts.of(Some(2)).parts()[0] > 0.9);
        let unknown = contexts.of(Some(3)).parts()[0];
        assert!((0.4..0.6).contains(&unknown), "who is new has what all taught: {unknown}");
        assert_eq!(contexts.count(), 2, "to ask leaves nothing behind");
    }

    #[test]
    fn a_million_users_leave_as_many_as_may_stay() {
        let mut contexts = contexts(1_000);
        for key in 0..1_000_000 {
            lose(&mut contexts, key, 0);
            contexts.of(Some(0));
        }
        assert_eq!(contexts.count(), 1_000);
        assert!(contexts.own.contains_key(&0), "who is asked for stays");
        assert!(!contexts.own.contains_key(&500_000) && contexts.own.contains_key(&999_999));
        let (order, changed, gone) = (contexts.order.len(), contexts.changed.len(), contexts.gone.len());
        assert!(order <= 1_000 && changed <= 1_000 && gone == 0, "{order} {changed} {gone}");
    }

    #[test]
    fn what_is_taken_over_is_what_was_used_last() {
        let mut old = contexts(10);
        (1..=5).for_each(|key| lose(&mut old, key, 0));
        assert_eq!(old.take_changes(100).len(), 6);
        lose(&mut old, 1, 0);
        let mut new = contexts(3);
        new.take_over(old.clone(), None);
        assert_eq!(new.own.keys().copied().collect::<Vec<_>>(), [1, 4, 5]);
        assert_eq!(new.of(Some(1)), &old.own[&1].experts);
        let changes = new.take_changes(100);
        assert!(changes.contains(&ContextChange::Gone(2)) && changes.contains(&ContextChange::Gone(3)), "{changes:?}");
        assert_eq!(changes.len(), 4, "beside them what all made, and the one that has changed: {changes:?}");
        let mut turned = Contexts::new(10, Experts::even(2, 0));
        turned.take_over(old.clone(), Some((&[Some(1), Some(0)], 0)));
        let (before, after) = (old.of(Some(1)).parts(), turned.of(Some(1)).parts());
        assert!((before[0] - after[1]).abs() < 1e-12 && before[0] < before[1]);
        assert_eq!(turned.take_changes(100).len(), 6, "all of it is to be stored anew");
    }

    proptest! {
        /// A store to which every change is written, some of which fail, has what is here when all is written.
        #[test]
        fn a_store_that_is_told_every_change_has_what_is_here(steps in prop::collection::vec((0u128..12, 0usize..2, 0usize..4), 1..200)) {
            let mut contexts = contexts(4);
            let mut store: BTreeMap<u128, Vec<u8>> = BTreeMap::new();
            let mut shared = None;
            let mut write = |contexts: &mut Contexts, most: usize, store: &mut BTreeMap<u128, Vec<u8>>| {
                let changes = contexts.take_changes(most);
                for change in &changes {
                    match change.clone() {
                        ContextChange::Shared(saved) => shared = Some(saved),
                        ContextChange::Own(key, saved) => { store.insert(key, saved); }
                        ContextChange::Gone(key) => { store.remove(&key); }
                    }
                }
                changes.len()
            };
            for (key, expert, what) in steps {
                lose(&mut contexts, key, expert);
                match what {
                    0 => { write(&mut contexts, 2, &mut store); }
                    1 => { let changes = contexts.take_changes(3); contexts.put_back(changes); }
                    _ => {}
                }
                prop_assert!(contexts.count() <= 4 && store.len() <= 8);
            }
            while write(&mut contexts, 3, &mut store) > 0 {}
            let here: BTreeMap<u128, Vec<u8>> = contexts.own.iter().map(|(&key, context)| (key, context.experts.save())).collect();
            prop_assert_eq!(&here, &store);
            let mut again = Contexts::new(4, Experts::even(2, 0));
            again.restore(&ContextChange::Shared(shared.unwrap())).unwrap();
            for (key, saved) in store {
                again.restore(&ContextChange::Own(key, saved)).unwrap();
            }
            for key in 0..12 {
                let (left, right) = (again.of(Some(key)).parts()[0], contexts.of(Some(key)).parts()[0]);
                prop_assert!((left - right).abs() < 1e-5);
            }
        }
    }
}
