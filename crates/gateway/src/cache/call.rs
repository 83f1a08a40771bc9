//! A request to a model whose answers are kept: found, or waited for beside an identical one, or computed.

use super::PredictionCache;
use super::flights::{FlightLead, FlightNews, Role, Urgency};
use super::kept::{KeptAnswer, copied};
use super::key::AnswerKey;
use crate::call::{Call, Computed, Heard, Question, Terms, outputs};
use crate::io::offload::offload;
use crate::io::shortage::MemoryStep;
use crate::regions::OFFLOAD_COPY_BYTES;
use base::{Reason, Timestamp};
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
        let key = self.key(&cache, kept_under, &question.inputs).await?;
        if let Some(answer) = cache.kept.get(&key) {
            return Ok(self.hit(&answer, &question, began_at));
        }
        let terms = self.terms(&question)?;
        let urgency = Urgency { priority: terms.priority, deadline_at: terms.deadline_at };
        let role = match cache.flights.join(&self.context.controller, key, urgency) {
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

    async fn key(&self, cache: &Arc<PredictionCache>, kept_under: u64, inputs: &[Tensor]) -> Result<AnswerKey, Fault> {
        let bytes: usize = inputs.iter().map(|input| input.data.len()).sum();
        if bytes < OFFLOAD_HASH_BYTES {
            return Ok(cache.keys.key(kept_under, inputs));
        }
        let (cache, inputs) = (Arc::clone(cache), inputs.to_vec());
        offload(self.owner, bytes, move || Ok(cache.keys.key(kept_under, &inputs))).await
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
        let outputs = self.compute_on(question, terms).await.map_err(|refusal| self.fault(refusal))?;
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
        let bytes: usize = outputs.iter().map(|output| output.data.len()).sum();
        if bytes >= OFFLOAD_COPY_BYTES {
            let answer = KeptAnswer::from(outputs);
            let (cache, owner, large) = (Arc::clone(cache), Arc::clone(self.owner), Arc::clone(&answer));
            tokio::spawn(async move {
                // Fails only if the server goes down.
                let _ = offload(&owner, bytes, move || {
                    cache.kept.put(key, &copied(&large));
                    Ok(())
                })
                .await;
            });
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
