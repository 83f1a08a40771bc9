//! Answers that wait for feedback: found by a key once, bounded in bytes and in time.

use crate::judge::Code;
use base::{Duration, Timestamp};
use std::collections::{BTreeMap, VecDeque};
use std::mem::size_of;

/// An answer that went out.
#[derive(Clone, PartialEq, Debug)]
pub struct Answered {
    /// Whose weights it went by.
    pub context: Option<u128>,
    /// The member that was chosen, where one was.
    pub chosen: Option<usize>,
    /// With which probability the answer was chosen.
    pub probability: f64,
    /// What each expert said, in their order; `None` for one that wasn't asked, or that hadn't arrived.
    pub said: Vec<Option<Box<[Code]>>>,
    /// What the answer said.
    pub answer: Box<[Code]>,
    /// The members that were asked and hadn't arrived.
    pub missing: Vec<usize>,
}

impl Answered {
    fn bytes(&self) -> usize {
        let codes: usize = self.said.iter().flatten().map(|codes| codes.len()).sum();
        let lists = self.said.len() * size_of::<Option<Box<[Code]>>>() + self.missing.len() * size_of::<usize>();
        PLACE_BYTES + size_of::<Self>() + lists + (codes + self.answer.len()) * size_of::<Code>()
    }
}

/// What the tables need for one answer beside what it has itself.
const PLACE_BYTES: usize = 128;

/// Why feedback found no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unjoined {
    /// Nobody asked that, or it was too long ago, or too many others came since.
    Unknown,
    /// It had feedback before.
    Again,
}

/// The answers of late.
#[derive(Debug)]
pub struct Answers {
    most_bytes: usize,
    keep: Duration,
    bytes: usize,
    by_key: BTreeMap<u128, AnswerPlace>,
    /// In the order in which they went out. A key that is used again has several places; only the last is its own.
    order: VecDeque<(Timestamp, u128, u64)>,
    count: u64,
}

#[derive(Debug)]
struct AnswerPlace {
    number: u64,
    bytes: usize,
    /// Empty once it had feedback.
    answered: Option<Answered>,
}

impl Answers {
    /// Remembers answers for so long, as far as they need no more than so many bytes.
    pub fn new(most_bytes: usize, keep: Duration) -> Self {
        Self { most_bytes, keep, bytes: 0, by_key: BTreeMap::new(), order: VecDeque::new(), count: 0 }
    }

    /// Remembers one. Another with the same key is forgotten. `false` where it alone needs more than there may be.
    pub fn remember(&mut self, now: Timestamp, key: u128, answered: Answered) -> bool {
        self.forget(now);
        self.remove(key);
        let bytes = answered.bytes();
        if bytes > self.most_bytes {
            return false;
        }
        while self.bytes + bytes > self.most_bytes {
            self.pop();
        }
        // Places of keys that were used again hold no bytes: there are no more of them than of the others.
        if self.order.len() > 2 * self.by_key.len() + 16 {
            let by_key = &self.by_key;
            self.order.retain(|(_, key, number)| by_key.get(key).is_some_and(|place| place.number == *number));
        }
        self.count += 1;
        self.bytes += bytes;
        self.by_key.insert(key, AnswerPlace { number: self.count, bytes, answered: Some(answered) });
        self.order.push_back((now, key, self.count));
        true
    }

    /// The answer of that key, once.
    pub fn take(&mut self, now: Timestamp, key: u128) -> Result<Answered, Unjoined> {
        self.forget(now);
        let place = self.by_key.get_mut(&key).ok_or(Unjoined::Unknown)?;
        let answered = place.answered.take().ok_or(Unjoined::Again)?;
        self.bytes -= place.bytes - PLACE_BYTES;
        place.bytes = PLACE_BYTES;
        Ok(answered)
    }

    /// Puts one back whose feedback made no sense, so that better feedback finds it.
    pub fn put_back(&mut self, key: u128, answered: Answered) {
        if let Some(place) = self.by_key.get_mut(&key)
            && place.answered.is_none()
        {
            let bytes = answered.bytes();
            self.bytes += bytes - place.bytes;
            place.bytes = bytes;
            place.answered = Some(answered);
            while self.bytes > self.most_bytes {
                self.pop();
            }
        }
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many are remembered.
    pub fn count(&self) -> usize {
        self.by_key.len()
    }

    fn forget(&mut self, now: Timestamp) {
        while self.order.front().is_some_and(|&(at, ..)| now.since(at) > self.keep) {
            self.pop();
        }
    }

    fn pop(&mut self) {
        let Some((_, key, number)) = self.order.pop_front() else { return };
        if self.by_key.get(&key).is_some_and(|place| place.number == number) {
            self.remove(key);
        }
    }

    fn remove(&mut self, key: u128) {
        if let Some(place) = self.by_key.remove(&key) {
            self.bytes -= place.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answered(rows: usize) -> Answered {
        let codes: Box<[Code]> = vec![7; rows].into();
        Answered {
            context: None,
            chosen: Some(0),
            probability: 0.5,
            said: vec![Some(codes.clone()), None],
            answer: codes,
            missing: Vec::new(),
        }
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn feedback_finds_its_answer_once() {
        let mut answers = Answers::new(1 << 20, Duration::from_secs(10));
        assert!(answers.remember(at(0), 1, answered(1)));
        assert_eq!(answers.take(at(1), 2), Err(Unjoined::Unknown));
        assert_eq!(answers.take(at(1), 1), Ok(answered(1)));
        assert_eq!(answers.take(at(2), 1), Err(Unjoined::Again));
        answers.put_back(1, answered(1));
        assert_eq!(answers.take(at(3), 1), Ok(answered(1)));
        assert_eq!(answers.take(at(11), 1), Err(Unjoined::Unknown), "it was too long ago");
        assert_eq!((answers.bytes(), answers.count()), (0, 0));
    }

    #[test]
    fn an_id_that_is_used_again_means_its_last_answer() {
        let mut answers = Answers::new(1 << 20, Duration::from_secs(10));
        answers.remember(at(0), 1, answered(1));
        answers.remember(at(9), 1, answered(2));
        assert_eq!(answers.take(at(15), 1), Ok(answered(2)), "it is as old as its last use");
        for _ in 0..1_000 {
            answers.remember(at(16), 1, answered(1));
        }
        assert!(answers.order.len() < 100, "{} places", answers.order.len());
    }

    #[test]
    fn one_that_is_too_large_alone_is_not_remembered() {
        let mut answers = Answers::new(1_000, Duration::from_secs(10));
        answers.remember(at(0), 1, answered(1));
        assert!(!answers.remember(at(0), 2, answered(1_000)));
        assert_eq!(answers.take(at(0), 1), Ok(answered(1)), "and drives nobody out");
    }

    proptest! {
        #[test]
        fn bytes_and_age_stay_within_bounds(steps in prop::collection::vec((0u8..3, 0u128..20, 0usize..40, 0u64..4), 1..300)) {
            let mut answers = Answers::new(4_000, Duration::from_secs(10));
            let (mut now, mut last) = (0, BTreeMap::new());
            for (what, key, rows, later) in steps {
                now += later;
                match what {
                    0 | 1 => if answers.remember(at(now), key, answered(rows)) { last.insert(key, (now, rows)); } else { last.remove(&key); },
                    _ => if let Ok(found) = answers.take(at(now), key) {
                        let (then, rows) = last[&key];
                        prop_assert!(now - then <= 10);
                        prop_assert_eq!(found, answered(rows));
                    },
                }
                let held: usize = answers.by_key.values().map(|place| place.bytes).sum();
                prop_assert_eq!(held, answers.bytes());
                prop_assert!(answers.bytes() <= 4_000);
                prop_assert!(answers.order.len() <= 2 * answers.count() + 17);
            }
        }
    }
}
