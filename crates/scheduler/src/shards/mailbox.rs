//! Mailboxes in which only the newest counts: how a shard's thread tells the ranker's of its candidates.
//!
//! One slot for each model. A candidate that the ranker hasn't looked at yet is overwritten, so that nothing ever piles up
//! (P9), however fast the shard and however slow the ranker. Nobody waits: a slot is written between two counts of its
//! version, and whoever reads it while it is written reads it again. Which slots are new stands in a bitmap.

use super::message::{Announcement, Candidate};
use base::{ModelId, Timestamp};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// One model's newest announcement, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// Odd while the slot is written.
    version: AtomicU64,
    /// Grants seen in the upper half, size in the lower: 0 for no candidate.
    header: AtomicU64,
    exec_at: AtomicU64,
    latest: AtomicU64,
    rank: AtomicU64,
}

/// The mailboxes from one shard to the ranker. One thread posts, one collects.
#[derive(Debug)]
pub struct Mailboxes {
    shard: u32,
    shards: u32,
    slots: Box<[Slot]>,
    /// A bit for each slot that is new.
    new: Box<[AtomicU64]>,
    /// A bit for each word of `new` that may not be 0.
    new_words: Box<[AtomicU64]>,
}

fn words(bits: usize) -> Box<[AtomicU64]> {
    (0..bits.div_ceil(64)).map(|_| AtomicU64::new(0)).collect()
}

/// The positions of the bits that are set.
fn bits_of(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
}

impl Mailboxes {
    /// Of number `shard` of `shards`, with room for models below `models`.
    pub fn new(shard: u32, shards: u32, models: u32) -> Self {
        let count = models.div_ceil(shards) as usize;
        let new = words(count);
        let new_words = words(new.len());
        Self { shard, shards, slots: (0..count).map(|_| Slot::default()).collect(), new, new_words }
    }

    /// Posts an announcement over the one of before. Only the shard's thread may.
    ///
    /// # Panics
    ///
    /// If there is no room for the model.
    pub fn post(&self, announcement: Announcement) {
        let place = (announcement.model.0 / self.shards) as usize;
        let slot = &self.slots[place];
        let version = slot.version.load(Ordering::Relaxed);
        slot.version.store(version + 1, Ordering::Relaxed);
        // Nothing of what follows may be seen before the odd version.
        fence(Ordering::Release);
        let grants = u64::from(announcement.grants_seen) << 32;
        match announcement.candidate {
            None => slot.header.store(grants, Ordering::Relaxed),
            Some(candidate) => {
                slot.header.store(grants | u64::from(candidate.size), Ordering::Relaxed);
                slot.exec_at.store(candidate.exec_at.as_nanos(), Ordering::Relaxed);
                slot.latest.store(candidate.latest.as_nanos(), Ordering::Relaxed);
                slot.rank.store(candidate.rank.as_nanos(), Ordering::Relaxed);
            }
        }
        slot.version.store(version + 2, Ordering::Release);
        // A word that wasn't empty was announced above already, and the ranker hasn't been there since.
        let word = place / 64;
        if self.new[word].fetch_or(1 << (place % 64), Ordering::AcqRel) == 0 {
            self.new_words[word / 64].fetch_or(1 << (word % 64), Ordering::AcqRel);
        }
    }

    /// Whether something may be new; a hint that costs one read for each 4,096 models.
    #[inline]
    pub fn is_new(&self) -> bool {
        self.new_words.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Hands out what is new, by model. Only the ranker's thread may.
    pub fn collect(&self, mut take: impl FnMut(Announcement)) {
        for (upper, words) in self.new_words.iter().enumerate() {
            if words.load(Ordering::Relaxed) == 0 {
                continue;
            }
            for bit in bits_of(words.swap(0, Ordering::AcqRel)) {
                let word = upper * 64 + bit;
                for bit in bits_of(self.new[word].swap(0, Ordering::AcqRel)) {
                    take(self.read(word * 64 + bit));
                }
            }
        }
    }

    fn read(&self, place: usize) -> Announcement {
        let slot = &self.slots[place];
        loop {
            let before = slot.version.load(Ordering::Acquire);
            let header = slot.header.load(Ordering::Relaxed);
            let [exec_at, latest, rank] = [&slot.exec_at, &slot.latest, &slot.rank]
                .map(|instant| Timestamp::from_nanos(instant.load(Ordering::Relaxed)));
            // All of it was read before the version is looked at again.
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && slot.version.load(Ordering::Relaxed) == before {
                let size = header as u32;
                return Announcement {
                    model: ModelId(place as u32 * self.shards + self.shard),
                    grants_seen: (header >> 32) as u32,
                    candidate: (size > 0).then_some(Candidate { size, exec_at, latest, rank }),
                };
            }
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn announcement(model: u32, number: u64) -> Announcement {
        let [exec_at, latest, rank] = [number, number + 1, number + 2].map(Timestamp::from_nanos);
        let candidate = Some(Candidate { size: number as u32, exec_at, latest, rank });
        Announcement { model: ModelId(model), grants_seen: number as u32, candidate }
    }

    fn collected(mailboxes: &Mailboxes) -> Vec<Announcement> {
        let mut all = Vec::new();
        mailboxes.collect(|announcement| all.push(announcement));
        all
    }

    #[test]
    fn only_the_newest_counts_and_each_is_collected_once() {
        let mailboxes = Mailboxes::new(1, 3, 20_000);
        for number in 1..100 {
            mailboxes.post(announcement(19_999, number));
            mailboxes.post(announcement(1, number + 1));
        }
        mailboxes.post(Announcement { model: ModelId(7), grants_seen: 9, candidate: None });
        assert!(mailboxes.is_new());
        let none = Announcement { model: ModelId(7), grants_seen: 9, candidate: None };
        assert_eq!(collected(&mailboxes), [announcement(1, 100), none, announcement(19_999, 99)]);
        assert_eq!((collected(&mailboxes), mailboxes.is_new()), (vec![], false));
    }

    #[test]
    fn no_announcement_is_torn_and_the_last_is_never_missed() {
        const LAST: u64 = 200_000;
        let mailboxes = Mailboxes::new(0, 1, 130);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 1..=LAST {
                    mailboxes.post(announcement((number % 130) as u32, number));
                }
                over.store(true, Ordering::Release);
            });
            let mut newest = [0; 130];
            loop {
                let last_look = over.load(Ordering::Acquire);
                mailboxes.collect(|got| {
                    let number = u64::from(got.grants_seen);
                    assert_eq!(got, announcement(got.model.0, number), "all of it was posted together");
                    let before = std::mem::replace(&mut newest[got.model.index()], number);
                    assert!(before <= number, "{} came after {before}", number);
                });
                if last_look {
                    break;
                }
            }
            for (model, &number) in newest.iter().enumerate() {
                assert_eq!((number % 130, number > LAST - 130), (model as u64, true));
            }
        });
    }
}
