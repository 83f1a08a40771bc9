//! Requests for endpoints: answered by asking others, within one deadline.
//!
//! ```text
//!  Call (the client's) ─> Whole ─┬─> Call (to a member) ─> controller
//!                                ├─> Call (to a member) ─> controller      dropped: all that is under way is taken back
//!                                └─> ...
//! ```
//!
//! What an endpoint asks a member is a request of its own: counted with the member, within the member's own bounds,
//! from its kept answers where it has some. Its deadline is what is left of the whole's. Rights are the client's for
//! the endpoint: whoever may ask that has its members asked.

mod pipeline;
mod rows;
pub(crate) mod selection;

use self::selection::{Notes, Selecting};
use crate::call::{Call, PartOf, Question, Terms};
use crate::check::{Fitting, add_defaults, fit};
use crate::io::IoContext;
use crate::io::clients::Owner;
use crate::models::serving;
use ::selection::PolicyTable;
use base::{ApplicationId, Duration, ModelSignature, Reason, Timestamp, margins};
use bytes::Bytes;
use controller::{PipelineStage, Tensor, TimeAccount};
use models::{CatalogueEntry, Endpoint, EndpointPlan};
use std::borrow::Cow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use telemetry::Trace;
use wire::{Fault, InferInput};

/// A request for an endpoint while its members are asked.
pub(crate) struct Whole<'a> {
    context: &'a IoContext,
    owner: &'a Arc<Owner>,
    endpoint: &'a Arc<Endpoint>,
    /// What the endpoint takes and gives.
    signature: Arc<ModelSignature>,
    /// What the request says that selection goes by.
    selecting: Selecting,
    /// What the answer says beside its outputs.
    notes: OnceLock<Notes>,
    arrived_at: Timestamp,
    pub(crate) deadline_at: Timestamp,
    priority: u32,
    application: ApplicationId,
    account: Arc<TimeAccount>,
    /// Where what it asks is noted, if its request is traced.
    trace: Option<Arc<Trace>>,
    /// Whether a device computed something for it.
    has_work: AtomicBool,
}

/// Answers a request for an endpoint: its outputs, in the signature's order. In a box: members may be endpoints.
pub(crate) fn answer<'c>(
    call: &'c mut Call<'_>,
    endpoint: Arc<Endpoint>,
    question: Question,
    terms: &'c Terms,
) -> Pin<Box<dyn Future<Output = Result<Vec<Tensor>, Fault>> + Send + 'c>> {
    Box::pin(async move {
        let Question { inputs, rows, application, .. } = question;
        let account = Arc::new(TimeAccount::of_whole(call.account(), call.served().metrics.clone()));
        call.spent = Some(Arc::clone(&account));
        let mut whole = Whole {
            context: call.context,
            owner: call.owner,
            endpoint: &endpoint,
            signature: Arc::clone(&call.served().signature),
            selecting: call.selecting,
            notes: OnceLock::new(),
            arrived_at: call.arrived_at,
            deadline_at: terms.deadline_at - spared(&endpoint, terms.budget),
            priority: terms.priority,
            application,
            account,
            trace: call.trace.clone(),
            has_work: AtomicBool::new(false),
        };
        let outputs = match terms.budget {
            None => whole.answer(inputs).await,
            Some(budget) => {
                let net_at = terms.deadline_at - margins::give_up_before(budget);
                let left = net_at.since(call.context.controller.now());
                let answer = tokio::time::timeout(left.into(), whole.answer(inputs)).await;
                answer.unwrap_or_else(|_| Err(call.fault(Reason::DeadlineMissed.into())))
            }
        };
        let with_that = |earliest| if gathers(&endpoint) { margins::time_to_gather(earliest) } else { earliest };
        let outputs = outputs.map_err(|fault| Fault { earliest: fault.earliest.map(with_that), ..fault })?;
        call.served().metrics.statistics().answered_by_others(rows, whole.arrived_at);
        call.notes = whole.notes.take().unwrap_or_default();
        call.without_work = !whole.has_work.into_inner();
        Ok(outputs)
    })
}

/// What its members don't get of the time: where the answer is made of what has arrived by then, the thread that makes
/// it may be late.
fn spared(endpoint: &Endpoint, budget: Option<Duration>) -> Duration {
    budget.filter(|_| gathers(endpoint)).map_or(Duration::ZERO, margins::gather_before)
}

/// Whether an answer is made of what has arrived by some instant.
fn gathers(endpoint: &Endpoint) -> bool {
    let EndpointPlan::Selection(plan) = &endpoint.how else { return false };
    matches!(plan.table, PolicyTable::Ensemble(_) | PolicyTable::Exp4(_) | PolicyTable::Cascade(_))
}

/// What a whole asks its members with.
#[derive(Clone)]
struct WholeTerms {
    signature: Arc<ModelSignature>,
    arrived_at: Timestamp,
    deadline_at: Timestamp,
    priority: u32,
    application: ApplicationId,
}

impl<'a> Whole<'a> {
    fn terms(&self) -> WholeTerms {
        let Self { arrived_at, deadline_at, priority, application, .. } = *self;
        WholeTerms { signature: Arc::clone(&self.signature), arrived_at, deadline_at, priority, application }
    }

    /// One beside another, for which nobody waits: what it takes isn't the client's, and isn't wasted.
    fn aside(context: &'a IoContext, owner: &'a Arc<Owner>, endpoint: &'a Arc<Endpoint>, terms: WholeTerms) -> Self {
        let WholeTerms { signature, arrived_at, deadline_at, priority, application } = terms;
        Self {
            context,
            owner,
            endpoint,
            signature,
            selecting: Selecting::default(),
            notes: OnceLock::new(),
            arrived_at,
            deadline_at,
            priority,
            application,
            account: Arc::default(),
            trace: None,
            has_work: AtomicBool::new(false),
        }
    }

    /// The outputs, in the signature's order.
    async fn answer(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, Fault> {
        match &self.endpoint.how {
            EndpointPlan::Pipeline { plan, known } => pipeline::run(self, plan, known.as_ref(), inputs).await,
            EndpointPlan::Selection(plan) => Box::pin(selection::run(self, plan, inputs)).await,
        }
    }

    /// Asks a member for all of its outputs, with inputs by position in its signature. Dropped, the request is taken
    /// back. A stage is named where a scheduler knows the pipeline.
    pub(crate) fn ask<'w>(
        &'w self,
        member: usize,
        stage: Option<PipelineStage>,
        inputs: Vec<(usize, Tensor)>,
    ) -> Pin<Box<dyn Future<Output = Result<Vec<Tensor>, Fault>> + Send + 'w>> {
        Box::pin(async move {
            let entry = self.member(member)?;
            let asked_at = self.context.controller.now();
            let trace = self.trace.as_ref().map(|trace| trace.part(&entry.name, entry.version));
            let part_of = PartOf { stage, account: Arc::clone(&self.account), trace };
            let mut call = Call::to_member(self.context, self.owner, entry, asked_at, part_of);
            let outcome = match self.question(&call, inputs, asked_at) {
                Ok(question) => call.answer(question).await.map(|(outputs, _)| outputs),
                Err(fault) => Err(fault),
            };
            if !call.without_work {
                self.has_work.store(true, Ordering::Relaxed);
            }
            let outcome = call.end(outcome);
            // Earliest deadlines are told as spans from the arrival of the whole.
            let earlier = asked_at.since(self.arrived_at);
            outcome.map_err(|fault| Fault { earliest: fault.earliest.map(|span| span + earlier), ..fault })
        })
    }

    /// What is asked of a member, once it fits.
    fn question(&self, call: &Call<'_>, given: Vec<(usize, Tensor)>, now: Timestamp) -> Result<Question, Fault> {
        let served = call.served();
        let named = given.into_iter().filter_map(|(position, tensor)| {
            let spec = served.signature.inputs.get(position)?;
            let Tensor { datatype, shape, data } = tensor;
            Some(InferInput { name: Cow::Borrowed(spec.name.as_str()), datatype, shape, data, region: None })
        });
        let mut inputs: Vec<InferInput<'_>> = named.collect();
        add_defaults(&served.signature, &served.defaults, &mut inputs);
        let Fitting { inputs, rows, size } = fit(&served.signature, served.max_elements, inputs.into_iter())?;
        let (priority, application) = (self.priority, self.application);
        Ok(Question { inputs, rows, size, priority, application, budget: self.left(now) })
    }

    /// What a member took and gave when the endpoint was planned.
    fn signature(&self, member: usize) -> Result<&'a ModelSignature, Fault> {
        Ok(&serving(&self.endpoint.members[member].entry)?.signature)
    }

    /// What is left until the deadline, if there is one.
    pub(crate) fn left(&self, now: Timestamp) -> Option<Duration> {
        (self.deadline_at != Timestamp::NEVER).then(|| self.deadline_at.since(now))
    }

    /// A member as it is now, if it still takes and gives what the endpoint was planned with.
    fn member(&self, number: usize) -> Result<Arc<CatalogueEntry>, Fault> {
        let planned = &self.endpoint.members[number];
        let name = &planned.entry.name;
        let now = self.context.models.with(|catalogue| {
            let versions = catalogue.models.get(name)?;
            if planned.is_pinned { versions.versions.get(&planned.entry.version) } else { versions.default_version() }
                .cloned()
        });
        let gone = || Fault::new(Reason::ModelUnavailable, format!("model {name:?} is no longer there"));
        let now = now.ok_or_else(gone)?;
        let (signature, planned) = (&serving(&now)?.signature, &serving(&planned.entry)?.signature);
        if Arc::ptr_eq(signature, planned) || is_like(signature, planned) {
            return Ok(now);
        }
        let message = format!("model {name:?} was replaced by one that takes or gives something else: try again");
        Err(Fault::new(Reason::ModelUnavailable, message))
    }
}

/// Whether a model takes and gives what another one does. How many rows it takes is seen with each call.
fn is_like(now: &ModelSignature, planned: &ModelSignature) -> bool {
    let in_batches = |signature: &ModelSignature| signature.max_batch > 0;
    now.inputs == planned.inputs && now.outputs == planned.outputs && in_batches(now) == in_batches(planned)
}

fn take_tensor(tensor: &mut Tensor) -> Tensor {
    let empty = Tensor { datatype: tensor.datatype, shape: Vec::new(), data: Bytes::new() };
    std::mem::replace(tensor, empty)
}
