//! A request to a model whose answers are kept: found, or waited for beside an identical one, or computed.

use super::PredictionCache;
use super::flights::{FlightLead, FlightNews, Role, Urgency};
use super::kept::{KeptAnswer, copied};
use super::key::AnswerKey;
use crate::body::hold::HeldBytes;
use crate::call::{Call, Computed, Heard, Question, Terms, outputs};
use crate::io::clients::Owner;
use crate::io::offload::offload;
use crate::io::shortage::MemoryStep;
use crate::regions::OFFLOAD_COPY_BYTES;
use base::{Duration, Reason, Timestamp, margins};
use controller::{Reply, Tensor};
use std::sync::Arc;
use wire::Fault;

/// Inputs of this size and more are hashed on another thread: a megabyte takes some hundred microseconds.
const OFFLOAD_HASH_BYTES: usize = 1 << 20;

impl Call<'_> {
    /// The outputs, from wherever they are to be had first. A hit takes no place in the model's queue and never comes
    /// to the scheduler.
    pub(crate) async fn find_or_compute(
        &mut self,
        cache: Arc<PredictionCache>,
        kept_under: u64,
        question: Question,
    ) -> Result<Computed, Fault> {
        let began_at = self.context.controller.now();
        let key = self.key(&cache, kept_under, &question).await?;
        if let Some(answer) = cache.kept.get(&key) {
            return Ok(self.hit(&answer, &question, began_at));
        }
        let terms = self.terms(&question)?;
        let role = match cache.flights.join(&self.context.controller, key, urgency_of(&terms)) {
            // It may have been put there since it was looked for.
            Role::Leads(lead) => match cache.kept.get(&key) {
                Some(answer) => {
                    lead.share(&answer);
                    return Ok(self.hit(&answer, &question, began_at));
                }
                None => Role::Leads(lead),
            },
            role => role,
        };
        let statistics = self.served().metrics.statistics();
        statistics.missed(self.context.controller.now().since(began_at));
        let lead = match role {
            Role::Leads(lead) => Some(lead),
            Role::Alone => None,
            Role::Follows(news) => match self.wait(news, &terms, None).await {
                Heard::Said(FlightNews::Outputs(answer)) => {
                    self.served().metrics.joined();
                    self.without_work = true;
                    return Ok((answer.to_vec(), terms.deadline_at));
                }
                Heard::Said(FlightNews::Leads(lead)) => Some(lead),
                Heard::Nothing => None,
                Heard::Late => return Err(self.fault(Reason::DeadlineMissed.into())),
                Heard::Lost(refusal) => return Err(self.fault(refusal)),
            },
        };
        let answer = match lead {
            Some(lead) => self.lead(&cache, key, lead, question, &terms).await?,
            None => self.alone(&cache, key, question, &terms).await?,
        };
        Ok((answer.to_vec(), terms.deadline_at))
    }

    async fn key(
        &self,
        cache: &Arc<PredictionCache>,
        kept_under: u64,
        question: &Question,
    ) -> Result<AnswerKey, Fault> {
        if bytes_of(&question.inputs) < OFFLOAD_HASH_BYTES {
            return Ok(cache.keys.key(kept_under, &question.inputs));
        }
        let net_at = |budget| self.deadline_at(Some(budget)) - margins::give_up_before(budget);
        let left = question.budget.map(|budget| net_at(budget).since(self.context.controller.now()));
        let key = key_elsewhere(self.owner, cache, kept_under, &question.inputs, left).await;
        key.unwrap_or_else(|| Err(self.fault(Reason::DeadlineMissed.into())))
    }

    fn hit(&mut self, answer: &KeptAnswer, question: &Question, began_at: Timestamp) -> Computed {
        let found = answer.to_vec();
        let took = self.context.controller.now().since(began_at);
        self.served().metrics.statistics().hit(took);
        self.without_work = true;
        (found, self.deadline_at(question.budget))
    }

    /// Has it computed, or waits for what is under way already, and shares the outputs with those that wait for them.
    async fn lead(
        &mut self,
        cache: &Arc<PredictionCache>,
        key: AnswerKey,
        mut lead: FlightLead,
        question: Question,
        terms: &Terms,
    ) -> Result<KeptAnswer, Fault> {
        if let Some(heard) = self.hear(&mut lead, terms).await {
            // It was submitted for another, on other terms: only outputs and this one's own deadline count.
            match heard {
                Heard::Said(Reply::Outputs(outputs)) => return Ok(self.share(cache, key, lead, outputs)),
                Heard::Late => return Err(self.fault(Reason::DeadlineMissed.into())),
                Heard::Said(Reply::Refused(_)) | Heard::Lost(_) | Heard::Nothing => {
                    drop(lead);
                    return self.alone(cache, key, question, terms).await;
                }
            }
        }
        if self.endpoint().is_some() {
            lead.asks(urgency_of(terms));
            let outputs = self.compute_on(question, terms).await;
            // Past its own deadline, the next of those that wait begins anew for all of them.
            if !outputs.as_ref().is_err_and(|fault| fault.reason == Reason::DeadlineMissed) {
                lead.answered();
            }
            return Ok(self.share(cache, key, lead, outputs?));
        }
        let (answer, ticket) = self.submit(question, terms);
        lead.submitted(answer, ticket);
        let heard = self.hear(&mut lead, terms).await.unwrap_or(Heard::Nothing);
        match outputs(heard) {
            Ok(outputs) => Ok(self.share(cache, key, lead, outputs)),
            Err(refusal) => Err(self.fault(refusal)),
        }
    }

    /// Waits for what is under way, if anything is. Past the deadline it stays under way, for whoever is next.
    async fn hear(&self, lead: &mut FlightLead, terms: &Terms) -> Option<Heard<Reply>> {
        let (answer, ticket) = lead.answer()?;
        let heard = self.wait(answer, terms, ticket).await;
        if !matches!(heard, Heard::Late) {
            lead.answered();
        }
        Some(heard)
    }

    /// Has it computed for itself.
    async fn alone(
        &mut self,
        cache: &Arc<PredictionCache>,
        key: AnswerKey,
        question: Question,
        terms: &Terms,
    ) -> Result<KeptAnswer, Fault> {
        let outputs = self.compute_on(question, terms).await?;
        Ok(self.keep(cache, key, outputs))
    }

    /// Keeps outputs before it gives them to others: whoever comes in between finds one or the other.
    fn share(
        &self,
        cache: &Arc<PredictionCache>,
        key: AnswerKey,
        lead: FlightLead,
        outputs: Vec<Tensor>,
    ) -> KeptAnswer {
        let answer = self.keep(cache, key, outputs);
        lead.share(&answer);
        answer
    }

    /// Keeps outputs, unless memory is short or the model was replaced meanwhile. Large ones are copied on another
    /// thread, for which nobody waits.
    fn keep(&self, cache: &Arc<PredictionCache>, key: AnswerKey, outputs: Vec<Tensor>) -> KeptAnswer {
        let began_at = self.context.controller.now();
        let has_memory = self.context.shared.memory.step() < MemoryStep::NoCache;
        if !(has_memory && cache.kept.has_room(&outputs) && self.is_still_served(key.kept_under)) {
            return outputs.into();
        }
        if bytes_of(&outputs) >= OFFLOAD_COPY_BYTES {
            let answer = KeptAnswer::from(outputs);
            keep_elsewhere(self.owner, cache, key, &answer);
            return answer;
        }
        let answer = copied(&outputs);
        cache.kept.put(key, &answer);
        self.served().metrics.statistics().kept(self.context.controller.now().since(began_at));
        answer
    }

    /// Whether the model that was asked is the one that is asked now.
    fn is_still_served(&self, kept_under: u64) -> bool {
        let entry = self.entry();
        self.context.models.with(|catalogue| {
            let now = catalogue.models.get(&entry.name).and_then(|model| model.versions.get(&entry.version));
            now.and_then(|entry| entry.serving()?.kept_under) == Some(kept_under)
        })
    }
}

fn urgency_of(terms: &Terms) -> Urgency {
    Urgency { priority: terms.priority, deadline_at: terms.deadline_at }
}

fn bytes_of(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.data.len()).sum()
}

/// The key of large inputs, which another thread makes; `None` if that takes longer than is left. Others may have that
/// thread for longer than a request has time.
async fn key_elsewhere(
    owner: &Arc<Owner>,
    cache: &Arc<PredictionCache>,
    kept_under: u64,
    inputs: &[Tensor],
    left: Option<Duration>,
) -> Option<Result<AnswerKey, Fault>> {
    let (cache, inputs) = (Arc::clone(cache), inputs.to_vec());
    let key = offload(owner, bytes_of(&inputs), move || Ok(cache.keys.key(kept_under, &inputs)));
    match left {
        None => Some(key.await),
        Some(left) => tokio::time::timeout(left.into(), key).await.ok(),
    }
}

/// Keeps a copy of a large answer, which another thread makes, unless too much is held already: what waits to be copied
/// is held beyond its request's end.
fn keep_elsewhere(owner: &Arc<Owner>, cache: &Arc<PredictionCache>, key: AnswerKey, answer: &KeptAnswer) {
    let bytes = bytes_of(answer);
    let Ok(held) = HeldBytes::of(owner, bytes) else { return };
    let (cache, owner, large) = (Arc::clone(cache), Arc::clone(owner), Arc::clone(answer));
    tokio::spawn(async move {
        // Fails only if the server goes down.
        let _ = offload(&owner, bytes, move || {
            cache.kept.put(key, &copied(&large));
            drop(held);
            Ok(())
        })
        .await;
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::server::block_on;
    use base::DataType;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;
    use tokio::task::JoinHandle;

    const LARGE: usize = OFFLOAD_COPY_BYTES;

    fn large(first: u8) -> Vec<Tensor> {
        let mut data = vec![0; LARGE];
        data[0] = first;
        vec![Tensor { datatype: DataType::Uint8, shape: vec![LARGE as i64], data: data.into() }]
    }

    /// A connection to a server that holds one large answer and no second one.
    fn owner() -> Arc<Owner> {
        Owner::alone(Config { max_body_bytes: 1024, max_held_bytes: LARGE * 3 / 2, ..Config::default() })
    }

    /// Keeps the thread for large work busy until the sender says so.
    async fn busy(owner: &Arc<Owner>) -> (mpsc::Sender<()>, JoinHandle<Result<bool, Fault>>) {
        let (go, gate) = mpsc::channel();
        let owner = Arc::clone(owner);
        let working = tokio::spawn(async move { offload(&owner, 1, move || Ok(gate.recv().is_ok())).await });
        tokio::task::yield_now().await;
        (go, working)
    }

    #[test]
    fn answers_that_wait_to_be_copied_are_held_and_what_would_be_too_much_is_not_kept() {
        let (owner, cache) = (owner(), Arc::new(PredictionCache::new(64 << 20).unwrap()));
        let held = || owner.shared.held_bytes.load(Ordering::Relaxed);
        block_on(async {
            let (go, working) = busy(&owner).await;
            let answers = [1, 2].map(|first| KeptAnswer::from(large(first)));
            let keys = [1, 2].map(|first| cache.keys.key(0, &large(first)));
            answers.iter().zip(keys).for_each(|(answer, key)| keep_elsewhere(&owner, &cache, key, answer));
            assert_eq!(held(), LARGE, "one of them waits, the other would be too much");
            tokio::task::yield_now().await;
            go.send(()).unwrap();
            assert_eq!(working.await.unwrap(), Ok(true));
            // The thread does one thing after another: behind this, all before it is done.
            offload(&owner, LARGE, || Ok(())).await.unwrap();
            assert_eq!(held(), 0);
            assert_eq!(keys.map(|key| cache.kept.get(&key).is_some()), [true, false]);
        });
    }

    #[test]
    fn a_request_whose_large_inputs_wait_to_be_hashed_ends_with_its_deadline() {
        let (owner, cache) = (owner(), Arc::new(PredictionCache::new(1 << 20).unwrap()));
        block_on(async {
            let (go, working) = busy(&owner).await;
            let left = Some(Duration::from_millis(1));
            let inputs = large(1);
            let key = key_elsewhere(&owner, &cache, 0, &inputs, left);
            // Far longer than it may take: without an end it would take for ever.
            let key = tokio::time::timeout(std::time::Duration::from_secs(60), key).await;
            assert_eq!(key, Ok(None));
            go.send(()).unwrap();
            assert_eq!(working.await.unwrap(), Ok(true));
            let key = key_elsewhere(&owner, &cache, 0, &inputs, None).await;
            assert_eq!(key, Some(Ok(cache.keys.key(0, &inputs))));
        });
    }
}
