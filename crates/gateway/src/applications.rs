//! The names of applications, as small numbers.
//!
//! What a request takes may depend on who sends it: the inputs of a search box are shorter than those of a summary. The
//! scheduler learns that for each application, by number. Names cost a client nothing: those that come rarely make room
//! for new ones, and a new one begins with what was learnt of the one whose place it takes.

use base::ApplicationId;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::Fault;

/// So many applications are told apart (P9).
const MAX_APPLICATIONS: usize = 64;
/// Longer names are refused.
const MAX_NAME_BYTES: usize = 128;
/// An application that came this often keeps its place,
const KEPT_FROM: u64 = 100;
/// unless so many requests of others with a name came since its last one.
const KEPT_FOR: u64 = 1 << 20;

/// Who came, by name. Looking one up takes no lock.
pub(crate) struct Applications {
    places: [KnownName; MAX_APPLICATIONS],
    /// Nobody outside knows its key, so nobody can make up names that are taken for another.
    hasher: RandomState,
    /// Requests with a name.
    requests: AtomicU64,
    full: Once,
}

/// What is known of a name. Its numbers are read and written one by one: where threads change them at once, a name may
/// lose its place early, or have two for a while.
#[derive(Default)]
struct KnownName {
    /// The name's hash; 0: nobody has the place.
    name: AtomicU64,
    /// How often it came.
    times: AtomicU64,
    /// The number of its last request.
    last: AtomicU64,
}

impl Default for Applications {
    fn default() -> Self {
        let places = std::array::from_fn(|_| KnownName::default());
        Self { places, hasher: RandomState::new(), requests: AtomicU64::new(0), full: Once::new() }
    }
}

impl Applications {
    /// The number of an application; no name is the default one.
    pub(crate) fn of(&self, name: &str) -> Result<ApplicationId, Fault> {
        if name.is_empty() {
            return Ok(ApplicationId::DEFAULT);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(Fault::bad(format!(
                "the name of the application has {} bytes: it may have at most {MAX_NAME_BYTES}",
                name.len()
            )));
        }
        let hash = self.hasher.hash_one(name).max(1);
        let now = self.requests.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = self.find(hash).or_else(|| self.replace(hash, now)) {
            self.places[place].times.fetch_add(1, Ordering::Relaxed);
            self.places[place].last.store(now, Ordering::Relaxed);
            return Ok(ApplicationId(place as u32 + 1));
        }
        self.full.call_once(|| {
            tracing::warn!(
                application = name,
                "more than {MAX_APPLICATIONS} applications send often: this one and further ones count as the default one"
            );
        });
        Ok(ApplicationId::DEFAULT)
    }

    /// The place of a name: the one that it has, or else the first one that is free.
    fn find(&self, hash: u64) -> Option<usize> {
        let has = |place: &KnownName| match place.name.load(Ordering::Relaxed) {
            0 => place
                .name
                .compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|it| it == hash, |_| true),
            other => other == hash,
        };
        self.places.iter().position(has)
    }

    /// Gives a name the place of the one that was away for longest, of those that may lose theirs.
    fn replace(&self, hash: u64, now: u64) -> Option<usize> {
        let last = |place: &KnownName| place.last.load(Ordering::Relaxed);
        let kept = |place: &KnownName| {
            place.times.load(Ordering::Relaxed) >= KEPT_FROM && now.saturating_sub(last(place)) < KEPT_FOR
        };
        let (number, place) =
            self.places.iter().enumerate().filter(|(_, place)| !kept(place)).min_by_key(|(_, place)| last(place))?;
        place.name.store(hash, Ordering::Relaxed);
        place.times.store(0, Ordering::Relaxed);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(applications: &Applications, name: &str) -> u32 {
        applications.of(name).unwrap().0
    }

    #[test]
    fn names_get_numbers_and_keep_them_up_to_the_bound() {
        let applications = Applications::default();
        assert_eq!(applications.of("").unwrap(), ApplicationId::DEFAULT);
        for round in 0..2 {
            for expected in 1..=MAX_APPLICATIONS as u32 {
                assert_eq!(number(&applications, &format!("a{expected}")), expected, "round {round}");
            }
        }
        assert!(applications.of(&"x".repeat(129)).unwrap_err().to_string().contains("has 129 bytes"));
    }

    #[test]
    fn the_name_that_was_away_for_longest_makes_room() {
        let applications = Applications::default();
        (1..=MAX_APPLICATIONS).for_each(|expected| drop(applications.of(&format!("a{expected}"))));
        assert_eq!(number(&applications, "a1"), 1);
        assert_eq!(number(&applications, "one more"), 2);
        assert_eq!(number(&applications, "a2"), 3);
        assert_eq!(number(&applications, "a1"), 1);
    }

    #[test]
    fn made_up_names_take_neither_all_places_nor_one_that_is_used() {
        let applications = Applications::default();
        (0..KEPT_FROM).for_each(|_| assert_eq!(number(&applications, "search"), 1));
        (0..1000).for_each(|made_up| assert_ne!(number(&applications, &format!("x{made_up}")), 1));
        assert_eq!(number(&applications, "search"), 1);
        let summary = number(&applications, "summary");
        assert_ne!(summary, ApplicationId::DEFAULT.0);
        assert_eq!(number(&applications, "summary"), summary);
    }

    #[test]
    fn names_that_come_often_keep_their_places_until_they_are_away_for_long() {
        let applications = Applications::default();
        for expected in 1..=MAX_APPLICATIONS as u32 {
            (0..KEPT_FROM).for_each(|_| assert_eq!(number(&applications, &format!("a{expected}")), expected));
        }
        assert_eq!(applications.of("one more").unwrap(), ApplicationId::DEFAULT);
        (0..KEPT_FOR).for_each(|_| assert_eq!(number(&applications, "a1"), 1));
        assert_eq!(number(&applications, "one more"), 2);
    }

    #[test]
    fn threads_that_bring_names_at_once_agree() {
        let applications = Applications::default();
        let ask = || -> Vec<ApplicationId> {
            (0..40).map(|number| applications.of(&format!("a{number}")).unwrap()).collect()
        };
        let answers: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let mut ids = answers[0].clone();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 40);
    }
}
