//! The prediction cache: answers that were computed once are kept, and identical requests in flight are computed once.
//!
//! It is there with `--cache-config`, and for models with `response_cache`; for all others nothing here is asked.

mod call;
mod flights;
mod kept;
mod key;

use crate::io::ServerState;
use crate::io::shortage::MemoryStep;
use crate::server::block_on;
use flights::Flights;
use kept::KeptAnswers;
use key::KeyMaker;
use models::{Catalogue, Registry};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

/// How often it is looked which models are still served and whether memory is short.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What is kept of answers, and which requests are in flight.
pub(crate) struct PredictionCache {
    keys: KeyMaker,
    kept: KeptAnswers,
    flights: Arc<Flights>,
}

impl PredictionCache {
    /// With room for answers of so many bytes.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        Ok(Self { keys: KeyMaker::new()?, kept: KeptAnswers::new(bytes), flights: Arc::default() })
    }
}

/// The cache's thread; returns when the server goes down.
pub(crate) fn tend(
    cache: &PredictionCache,
    shared: &ServerState,
    registry: &Registry,
    mut closing: watch::Receiver<bool>,
) {
    block_on(async {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut generation = None;
        loop {
            tokio::select! {
                biased;
                _ = closing.wait_for(|&closing| closing) => return,
                _ = looks.tick() => cache.look(shared, registry, &mut generation),
            }
        }
    });
}

/// The numbers of models that can be asked and whose answers are kept.
fn served(catalogue: &Catalogue) -> HashSet<u64> {
    let versions = catalogue.models.values().flat_map(|model| model.versions.values());
    versions.filter_map(|entry| entry.serving()?.kept_under).collect()
}

impl PredictionCache {
    /// Drops the answers of models that are gone, if the models have changed since the last look, and all of them while
    /// memory is short.
    fn look(&self, shared: &ServerState, registry: &Registry, generation: &mut Option<u64>) {
        // Read before the catalogue: a change in between is seen next time.
        let now = registry.generation();
        if generation.replace(now) != Some(now) {
            let served = served(&registry.catalogue());
            self.kept.retain(|number| served.contains(&number));
        }
        if shared.memory.step() >= MemoryStep::NoCache && self.kept.empty() {
            engine::heap::give_back();
        }
        let metrics = &shared.metrics;
        metrics.cache_bytes.set(i64::try_from(self.kept.bytes()).unwrap_or(i64::MAX));
        metrics.cache_entries.set(i64::try_from(self.kept.len()).unwrap_or(i64::MAX));
        metrics.cache_evictions.inc_by(self.kept.take_evictions());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::clients::Owner;
    use base::DataType;
    use controller::Tensor;

    #[test]
    fn what_was_kept_goes_when_its_model_is_gone_and_when_memory_is_short() {
        let (owner, cache) = (Owner::alone(crate::Config::default()), PredictionCache::new(1 << 20).unwrap());
        let (shared, registry, mut generation) = (&owner.shared, Registry::default(), None);
        let tensor = Tensor { datatype: DataType::Uint8, shape: vec![3], data: vec![1, 2, 3].into() };
        let tensors = [tensor];
        let put = || cache.kept.put(cache.keys.key(0, &tensors), &kept::copied(&tensors));
        let mut entries_after_a_look = || {
            cache.look(shared, &registry, &mut generation);
            (cache.kept.len(), shared.metrics.cache_entries.get())
        };
        put();
        assert_eq!(entries_after_a_look(), (0, 0), "no model has this number");
        put();
        assert_eq!(entries_after_a_look(), (1, 1), "the models are as they were");
        assert!(shared.metrics.cache_bytes.get() > 3);
        shared.memory.take(MemoryStep::NoCache);
        assert_eq!(entries_after_a_look(), (0, 0));
        assert_eq!(shared.metrics.cache_bytes.get(), 0);
    }
}
