//! A request for an endpoint that selects among models: one is asked, or one after another, or all at once.
//!
//! ```text
//!  arrival                                     the answer is made of what has arrived           deadline
//!  ──┬── members are asked, each with the whole's deadline ──┬── who is missing is cancelled ──────┤
//!                                                            └── between what plans aim at and the whole's net
//! ```

use super::{Whole, take_tensor};
use crate::io::clients::Owner;
use crate::io::offload::{OFFLOAD_WRITE_BYTES, offload};
use base::{Duration, Reason, Timestamp, margins};
use bytes::Bytes;
use controller::Tensor;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use models::{AnsweredBy, Endpoint, EndpointPlan, SelectionPlan, ServedModel};
use selection::{
    Answered, Ballot, Cascade, Chosen, Code, Combined, PolicyTable, Prediction, ShadowTable, Shown, Variants, combine,
    sureness, unit_of,
};
use std::pin::pin;
use std::sync::Arc;
use telemetry::ShadowOutcome;
use tokio::sync::oneshot;
use wire::{Fault, InferRequest, ResponseParameter};

/// A copy for a shadow is given up after so long, whatever deadline the request has.
const LONGEST_SHADOW: Duration = Duration::from_secs(60);

/// What a request says that selection goes by.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Selecting {
    /// The user or context, as a number.
    context: Option<u128>,
    /// What feedback finds the answer by; `None`: it isn't remembered.
    remembered_as: Option<u128>,
}

/// What an answer says beside its outputs.
pub(crate) type Notes = Vec<(&'static str, ResponseParameter)>;

/// How a served endpoint selects, if it does.
pub(crate) fn plan_of(served: &ServedModel) -> Option<(&Arc<Endpoint>, &SelectionPlan)> {
    match &served.by {
        AnsweredBy::Endpoint(endpoint) => match &endpoint.how {
            EndpointPlan::Selection(plan) => Some((endpoint, plan)),
            EndpointPlan::Pipeline { .. } => None,
        },
        AnsweredBy::Model(_) => None,
    }
}

impl Selecting {
    /// What a request says. Where answers wait for feedback, one without an id gets one.
    pub(crate) fn of(plan: &SelectionPlan, name: &str, owner: &Owner, request: &mut InferRequest<'_>) -> Self {
        let by = plan.table.by();
        let own = by.and_then(|by| request.own.iter().find(|(name, _)| name == by));
        let context = own.map(|(_, value)| number(&[value.as_bytes()]));
        if request.id.is_empty() && plan.state.learns() {
            // Two numbers that nobody knows beforehand: who guesses ids finds none.
            let draw = || (plan.state.draw() * (1_u64 << 53) as f64) as u64;
            request.id = format!("{:013x}{:013x}", draw(), draw()).into();
        }
        let remembered_as = (!request.id.is_empty()).then(|| answer_key(name, owner, &request.id));
        Self { context, remembered_as }
    }
}

/// What an answer is remembered by: the endpoint, the id, and the key that it was asked with, where keys are.
pub(crate) fn answer_key(endpoint: &str, owner: &Owner, id: &str) -> u128 {
    number(&[endpoint.as_bytes(), owner.key_name().unwrap_or("").as_bytes(), id.as_bytes()])
}

/// Texts as a number, however long they are.
fn number(texts: &[&[u8]]) -> u128 {
    let mut hasher = blake3::Hasher::new();
    for text in texts {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    let hash = hasher.finalize();
    hash.as_bytes().first_chunk().map_or(0, |bytes| u128::from_le_bytes(*bytes))
}

/// All outputs of an endpoint that selects, in the signature's order.
pub(super) async fn run(whole: &Whole<'_>, plan: &SelectionPlan, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Fault> {
    let request = Request { whole, plan, asked: whole.selecting, inputs };
    let outcome = match &plan.table {
        PolicyTable::Fixed(_) => request.one(Chosen { member: 0, probability: 1.0 }).await,
        PolicyTable::Split(_) => request.one(request.split()).await,
        PolicyTable::Shadow(table) => request.shadowed(table).await,
        PolicyTable::Exp3(_) => request.exp3().await,
        PolicyTable::Exp4(table) => request.together(table.least).await,
        PolicyTable::Ensemble(table) => request.together(table.least).await,
        PolicyTable::Cascade(table) => request.cascade(table).await,
        PolicyTable::Variants(table) => request.variants(&Variants::new(table)).await,
    };
    match outcome {
        Err(fault) if is_of_members(fault.reason) => request.default().ok_or(fault),
        outcome => outcome,
    }
}

/// Whether something is wrong with who was asked, and not with who asks or with the server. Inputs fit what members
/// have in common: what a member can't compute all the same is the member's.
fn is_of_members(reason: Reason) -> bool {
    !matches!(reason.label(), Reason::Unauthenticated | Reason::Forbidden | Reason::Cancelled | Reason::ShuttingDown)
}

struct Request<'r, 'w> {
    whole: &'r Whole<'w>,
    plan: &'r SelectionPlan,
    asked: Selecting,
    inputs: Vec<Tensor>,
}

/// Who has answered: the outputs of each, in the endpoint's order.
type Arrivals = Vec<Option<Vec<Tensor>>>;

impl Request<'_, '_> {
    fn now(&self) -> Timestamp {
        self.whole.context.controller.now()
    }

    /// When the answer is made of what has arrived; `None` without a deadline.
    fn cut_at(&self) -> Option<Timestamp> {
        let budget = self.whole.left(self.whole.arrived_at)?;
        let before = (margins::plan_before(budget) + margins::give_up_before(budget)) / 2;
        Some(self.whole.deadline_at - before)
    }

    /// What is left of the time in which plans must be fulfilled.
    fn left(&self) -> Option<Duration> {
        let budget = self.whole.left(self.whole.arrived_at)?;
        Some((self.whole.deadline_at - margins::plan_before(budget)).since(self.now()))
    }

    /// Asks a member; its outputs in the endpoint's order.
    async fn ask(&self, number: usize) -> Result<Vec<Tensor>, Fault> {
        let member = &self.plan.members[number];
        let inputs = member.inputs.iter().copied().zip(self.inputs.iter().cloned()).collect();
        let asked_at = self.now();
        let outcome = self.whole.ask(member.member, None, inputs).await;
        let took = self.now().since(asked_at);
        match outcome {
            Ok(mut outputs) => {
                self.plan.state.took(number, self.now(), took - self.computes(number).unwrap_or(took).min(took));
                let take = |&place: &usize| outputs.get_mut(place).map(take_tensor);
                let taken: Vec<Tensor> = member.outputs.iter().filter_map(take).collect();
                if taken.len() == member.outputs.len() {
                    return Ok(taken);
                }
                Err(Fault::new(
                    Reason::ExecutionFailed,
                    format!("member {:?} gave fewer outputs than it has", member.name),
                ))
            }
            Err(fault) => {
                if is_of_members(fault.reason) {
                    self.plan.state.metrics.missed(number);
                    if let (Some(earliest), Some(computes)) = (fault.earliest, self.computes(number)) {
                        let answers_in = (self.whole.arrived_at + earliest).since(asked_at);
                        self.plan.state.took(number, self.now(), answers_in - computes.min(answers_in));
                    }
                }
                let message = format!("member {:?}: {}", member.name, fault.message);
                Err(Fault {
                    earliest: fault.earliest,
                    retry_after: fault.retry_after,
                    ..Fault::new(fault.reason, message)
                })
            }
        }
    }

    /// What a member computes a request of so many rows in, where that was measured.
    fn computes(&self, number: usize) -> Option<Duration> {
        let entry = &self.whole.endpoint.members[self.plan.members[number].member].entry;
        let served = entry.serving()?;
        let rows = match self.inputs.first() {
            Some(input) if served.signature.max_batch > 0 => input.shape.first().copied().unwrap_or(1),
            _ => 1,
        };
        let batches = served.model()?.record.profile.batches();
        let fits = batches.iter().find(|batch| i64::from(batch.batch) >= rows).or(batches.last())?;
        Some(fits.median)
    }

    /// When a member's answer would be there, from now on, by what was measured and what was seen lately.
    fn answers_in(&self, number: usize) -> Option<Duration> {
        Some(self.computes(number)? + self.plan.state.longer(number, self.now()))
    }

    fn split(&self) -> Chosen {
        let unit = match self.asked.context {
            Some(key) => unit_of(key, self.plan.salt),
            None => self.plan.state.draw(),
        };
        Chosen { member: self.plan.split.as_ref().map_or(0, |split| split.choose(unit)), probability: 1.0 }
    }

    /// Asks one member, and remembers its answer.
    async fn one(&self, chosen: Chosen) -> Result<Vec<Tensor>, Fault> {
        let outputs = self.ask(chosen.member).await?;
        Ok(self.answer_of(chosen, outputs, &[], None))
    }

    /// The answer that one member gave.
    fn answer_of(
        &self,
        chosen: Chosen,
        outputs: Vec<Tensor>,
        missing: &[usize],
        confidence: Option<f64>,
    ) -> Vec<Tensor> {
        if self.asked.remembered_as.is_some() {
            self.remember(self.answered(chosen, self.codes(&outputs)));
        }
        let mut notes = vec![("selected", self.name(chosen.member))];
        notes.extend(confidence.map(|confidence| ("confidence", ResponseParameter::Number(confidence))));
        if !missing.is_empty() {
            notes.push(("missing", self.names(missing.iter().copied())));
        }
        self.went_out(Some(chosen.member), notes);
        outputs
    }

    fn answered(&self, chosen: Chosen, codes: Box<[Code]>) -> Answered {
        let mut said = vec![None; self.plan.members.len()];
        said[chosen.member] = Some(codes.clone());
        let Chosen { member, probability } = chosen;
        let context = self.asked.context;
        Answered { context, chosen: Some(member), probability, said, answer: codes, missing: Vec::new() }
    }

    /// What outputs say; nothing where that isn't known.
    fn codes(&self, outputs: &[Tensor]) -> Box<[Code]> {
        let said = self.plan.judge.and_then(|judge| judge.read(&shown(outputs.get(judge.output)?)).ok());
        said.unwrap_or_default().into()
    }

    fn remember(&self, answered: Answered) {
        if let Some(key) = self.asked.remembered_as {
            self.plan.state.remember(self.now(), key, answered);
        }
    }

    fn name(&self, member: usize) -> ResponseParameter {
        ResponseParameter::Text(self.plan.members[member].name.clone())
    }

    fn names(&self, members: impl Iterator<Item = usize>) -> ResponseParameter {
        let names: Vec<&str> = members.map(|member| self.plan.members[member].name.as_str()).collect();
        ResponseParameter::Text(names.join(","))
    }

    fn went_out(&self, member: Option<usize>, notes: Notes) {
        self.plan.state.metrics.answered(member);
        // Each request is answered once.
        let _ = self.whole.notes.set(notes);
    }

    /// The default output, if the endpoint has one.
    fn default(&self) -> Option<Vec<Tensor>> {
        let rows = self.plan.default.as_ref()?;
        let signature = &self.whole.signature;
        let batch = (signature.max_batch > 0).then(|| self.inputs.first()?.shape.first().copied()).flatten();
        let output = |(spec, (dims, row)): (&base::TensorSpec, &selection::OutputRow)| Tensor {
            datatype: spec.datatype,
            shape: batch.into_iter().chain(dims.iter().copied()).collect(),
            data: Bytes::from(row.repeat(usize::try_from(batch.unwrap_or(1)).unwrap_or(0))),
        };
        let outputs = signature.outputs.iter().zip(rows).map(output).collect();
        let (none, all) = (ResponseParameter::Number(0.0), self.names(0..self.plan.members.len()));
        self.went_out(None, vec![("default", ResponseParameter::Flag(true)), ("confidence", none), ("missing", all)]);
        Some(outputs)
    }

    async fn exp3(&self) -> Result<Vec<Tensor>, Fault> {
        let unit = self.plan.state.draw();
        let chosen = self.plan.state.with_learner(|learner| learner.choose(self.asked.context, unit));
        let chosen = chosen.unwrap_or(Chosen { member: 0, probability: 1.0 });
        let outcome = self.one(chosen).await;
        let failed = |fault: &Fault| is_of_members(fault.reason) && fault.reason.label() != Reason::BadInput;
        if outcome.as_ref().is_err_and(failed) {
            // Nobody will say how good an answer was that never went out: it was as bad as it gets. Not so with inputs
            // that it can't compute: who sends those would decide what others get.
            self.plan.state.failed(&self.answered(chosen, Box::default()));
        }
        outcome
    }

    /// Asks all members at once and goes on when it must, with who is there.
    async fn together(&self, least: usize) -> Result<Vec<Tensor>, Fault> {
        let members = self.plan.members.len();
        let mut arrivals: Arrivals = vec![None; members];
        let mut failed = Vec::new();
        let mut fault = None;
        {
            let mut running: FuturesUnordered<_> =
                (0..members).map(|number| async move { (number, self.ask(number).await) }).collect();
            let cut = self.cut_at().map(|at| at.since(self.now()));
            let mut cut = pin!(async move {
                match cut {
                    Some(left) => tokio::time::sleep(left.into()).await,
                    None => std::future::pending().await,
                }
            });
            loop {
                let (number, outcome) = tokio::select! {
                    biased;
                    next = running.next() => match next { Some(next) => next, None => break },
                    () = &mut cut => break,
                };
                match outcome {
                    Ok(outputs) => arrivals[number] = Some(outputs),
                    Err(said) if is_of_members(said.reason) => {
                        failed.push(number);
                        fault = Some(said);
                    }
                    Err(said) => return Err(said),
                }
            }
            // Here those that are still asked are dropped, and thereby cancelled.
        }
        for number in (0..members).filter(|number| arrivals[*number].is_none() && !failed.contains(number)) {
            self.plan.state.metrics.missed(number);
        }
        let here = arrivals.iter().flatten().count();
        if here < least {
            let late = || {
                let message = format!("{here} of {members} members had answered in time, and {least} are needed");
                Fault::new(Reason::DeadlineMissed, message)
            };
            return Err(fault.unwrap_or_else(late));
        }
        let (context, unit) = (self.asked.context, self.plan.state.draw());
        let endpoint = Arc::clone(self.whole.endpoint);
        let bytes = arrivals.iter().flatten().flatten().map(|tensor| tensor.data.len()).sum();
        let work = move || join(&endpoint, &arrivals, context, unit);
        let joined = if bytes < OFFLOAD_WRITE_BYTES { work() } else { offload(self.whole.owner, bytes, work).await };
        let (outputs, combined, answered) = joined?;
        let arrived = self.names((0..members).filter(|&member| combined.said[member].is_some()));
        let missing: Vec<usize> = (0..members).filter(|&member| combined.said[member].is_none()).collect();
        self.remember(Answered { context, missing: missing.clone(), ..answered });
        let mut notes = vec![
            ("selected", self.name(combined.speaker)),
            ("confidence", ResponseParameter::Number(combined.confidence)),
            ("agreement", ResponseParameter::Number(combined.agreement)),
            ("arrived", arrived),
        ];
        if !missing.is_empty() {
            notes.push(("missing", self.names(missing.into_iter())));
        }
        self.went_out(Some(combined.speaker), notes);
        Ok(outputs)
    }

    /// Asks one after another while answers aren't sure enough and there is time.
    async fn cascade(&self, table: &selection::CascadeTable) -> Result<Vec<Tensor>, Fault> {
        let cascade = Cascade::new(table);
        let mut best: Option<(usize, Vec<Tensor>, f64)> = None;
        let mut missing = Vec::new();
        let mut fault = None;
        for stage in 0..self.plan.members.len() {
            if stage > 0 {
                let confidence = best.as_ref().filter(|(from, ..)| *from == stage - 1).map(|(.., sure)| *sure);
                if !cascade.goes_on(stage - 1, confidence, self.left(), self.answers_in(stage)) {
                    break;
                }
            }
            let cut = self.cut_at().filter(|_| best.is_some()).map(|at| at.since(self.now()));
            let outcome = match cut {
                None => Some(self.ask(stage).await),
                // The answer that is there goes out in time, whatever becomes of this one.
                Some(left) => tokio::time::timeout(left.into(), self.ask(stage)).await.ok(),
            };
            match outcome {
                Some(Ok(outputs)) => {
                    let scores = self.plan.judge.and_then(|judge| outputs.get(judge.output));
                    let sure = scores.and_then(|scores| sureness(&shown(scores), table.confidence, table.logits).ok());
                    best = Some((stage, outputs, sure.unwrap_or(0.0)));
                }
                Some(Err(said)) if is_of_members(said.reason) => {
                    missing.push(stage);
                    fault = Some(said);
                }
                Some(Err(said)) => return Err(said),
                None => {
                    self.plan.state.metrics.missed(stage);
                    missing.push(stage);
                    break;
                }
            }
        }
        let late = || Fault::new(Reason::DeadlineMissed, "no stage of the cascade answered in time");
        let (member, outputs, sure) = best.ok_or_else(|| fault.unwrap_or_else(late))?;
        Ok(self.answer_of(Chosen { member, probability: 1.0 }, outputs, &missing, Some(sure)))
    }

    /// Asks the variant that suits the deadline; another if that one refuses.
    async fn variants(&self, variants: &Variants) -> Result<Vec<Tensor>, Fault> {
        let predict = |number: usize| Prediction {
            answers_in: self.answers_in(number),
            computes: self.computes(number),
            ready: true,
        };
        let mut predictions: Vec<Prediction> = (0..self.plan.members.len()).map(predict).collect();
        let mut missing = Vec::new();
        let mut fault = None;
        while let Some(member) = variants.choose(self.left(), &predictions) {
            match self.ask(member).await {
                Ok(outputs) => {
                    return Ok(self.answer_of(Chosen { member, probability: 1.0 }, outputs, &missing, None));
                }
                Err(said) if is_of_members(said.reason) => {
                    predictions[member].ready = false;
                    missing.push(member);
                    fault.get_or_insert(said);
                }
                Err(said) => return Err(said),
            }
            if self.left().is_some_and(|left| left == Duration::ZERO) {
                break;
            }
        }
        Err(fault.unwrap_or_else(|| Fault::new(Reason::DeadlineMissed, "no variant answered in time")))
    }

    /// Asks the one that answers, and the shadows beside it, for whom nobody waits.
    async fn shadowed(&self, table: &ShadowTable) -> Result<Vec<Tensor>, Fault> {
        let copies = self.plan.state.draw() < table.fraction;
        let told: Vec<_> =
            (1..self.plan.members.len()).filter(|_| copies).filter_map(|shadow| self.shadow(shadow)).collect();
        let outputs = self.ask(0).await?;
        if !told.is_empty() {
            let codes = self.codes(&outputs);
            // Whoever waits for it may be gone.
            told.into_iter().for_each(|tell| drop(tell.send(codes.clone())));
        }
        Ok(self.answer_of(Chosen { member: 0, probability: 1.0 }, outputs, &[], None))
    }

    /// Sends a copy to a shadow. What comes back takes what the answer says, to compare.
    fn shadow(&self, number: usize) -> Option<oneshot::Sender<Box<[Code]>>> {
        let state = &self.plan.state;
        let (Some(place), Some(context)) = (state.shadow(), self.whole.context.this.upgrade()) else {
            state.metrics.shadowed(number, ShadowOutcome::Skipped);
            return None;
        };
        let (tell, said) = oneshot::channel();
        let (owner, endpoint) = (Arc::clone(self.whole.owner), Arc::clone(self.whole.endpoint));
        let terms = self.whole.terms();
        let (asked, inputs) = (Selecting::default(), self.inputs.clone());
        tokio::spawn(async move {
            let _place = place;
            let EndpointPlan::Selection(plan) = &endpoint.how else { return };
            let whole = Whole::aside(&context, &owner, &endpoint, terms);
            let request = Request { whole: &whole, plan, asked, inputs };
            let outputs = tokio::time::timeout(LONGEST_SHADOW.into(), request.ask(number)).await;
            let outcome = match outputs {
                Ok(Ok(outputs)) => match said.await {
                    Ok(said) if request.codes(&outputs) == said => ShadowOutcome::Same,
                    _ => ShadowOutcome::Different,
                },
                Ok(Err(_)) | Err(_) => ShadowOutcome::Failed,
            };
            plan.state.metrics.shadowed(number, outcome);
        });
        Some(tell)
    }
}

/// One answer from what has arrived.
fn join(
    endpoint: &Endpoint,
    arrivals: &Arrivals,
    context: Option<u128>,
    unit: f64,
) -> Result<(Vec<Tensor>, Combined, Answered), Fault> {
    let wrong = |message: &str| Fault::new(Reason::ExecutionFailed, message.to_owned());
    let EndpointPlan::Selection(plan) = &endpoint.how else { return Err(wrong("the endpoint doesn't select")) };
    let judge = plan.judge.ok_or_else(|| wrong("nothing says by which output answers are compared"))?;
    let given: Vec<Option<Shown<'_>>> =
        arrivals.iter().map(|outputs| Some(shown(outputs.as_ref()?.get(judge.output)?))).collect();
    let joined = match &plan.table {
        PolicyTable::Exp4(_) => {
            let advice = plan.state.with_learner(|learner| learner.advice(context, &judge));
            advice.and_then(|advice| advice.answer(&judge, &given, context, unit))
        }
        PolicyTable::Ensemble(table) => {
            let ballots: Vec<Ballot<'_>> =
                table.members.iter().zip(&given).map(|(m, &given)| Ballot { weight: m.weight, given }).collect();
            combine(&judge, table.combine, &ballots).map(|combined| {
                let said = combined.said.iter().map(|said| said.clone().map(Vec::into_boxed_slice)).collect();
                let answer = combined.says.clone().into_boxed_slice();
                (combined, Answered { context, chosen: None, probability: 1.0, said, answer, missing: Vec::new() })
            })
        }
        _ => None,
    };
    let (combined, answered) = joined.ok_or_else(|| wrong("what members gave can't be compared"))?;
    let mut outputs = arrivals[combined.speaker].clone().ok_or_else(|| wrong("who speaks hasn't arrived"))?;
    outputs[judge.output].data = Bytes::from(combined.data.clone());
    Ok((outputs, combined, answered))
}

fn shown(tensor: &Tensor) -> Shown<'_> {
    Shown { datatype: tensor.datatype, shape: &tensor.shape, data: &tensor.data }
}
