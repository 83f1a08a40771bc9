//! One request from its arrival to its only outcome, on either protocol.
//!
//! ```text
//!  arrived_at            submit                                    deadline_at
//!  ──┬── read, decode ─────┬── waits for the reply ── encode, check ──┤
//!    └── Call::begin       └── the net answers here if nothing came ──┘
//! ```

use crate::check::{Checked, WantedOutput, add_defaults, check};
use crate::classify::classify;
use crate::endpoint;
use crate::endpoint::selection::{Notes, Selecting, plan_of};
use crate::io::IoContext;
use crate::io::clients::{ClientRequest, Owner};
use crate::io::mailbox::Delivered;
use crate::io::offload::{OFFLOAD_WRITE_BYTES, offload};
use crate::models::serving;
use crate::regions::{self, RegionSlice};
use base::{ApplicationId, Duration, ModelNumber, ModelSignature, Reason, Timestamp, margins};
use controller::{PipelineStage, Refusal, Reply, Submission, Tensor, Ticket, TimeAccount};
use models::{Admitted, AnsweredBy, CatalogueEntry, Endpoint, QueuePlace, ServedModel};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telemetry::{Asker, Trace, Transport};
use tokio::sync::oneshot::{self, error::RecvError};
use wire::{Fault, InferRequest, InferResponse, OutputTensor};

/// What the transport says of a request.
#[derive(Clone, Copy)]
pub(crate) struct CallHeaders {
    /// The deadline that it gave, from the arrival.
    pub(crate) limit: Option<Duration>,
    /// Who sent it, unless the request itself says.
    pub(crate) application: ApplicationId,
}

/// A request for a known model that is ready. Dropped without an end, the client went away: it is taken out of the
/// plan.
pub(crate) struct Call<'a> {
    pub(crate) context: &'a IoContext,
    pub(crate) owner: &'a Arc<Owner>,
    entry: Arc<CatalogueEntry>,
    /// What it is a part of, if an endpoint makes it.
    part_of: Option<Box<PartOf>>,
    /// What was spent on it, if an endpoint answers it: wasted, unless the answer leaves.
    pub(crate) spent: Option<Arc<TimeAccount>>,
    /// Counts it with its client, where that is limited.
    _request: Option<ClientRequest>,
    pub(crate) arrived_at: Timestamp,
    ticket: Option<Ticket>,
    /// Where its steps are noted, if it is one of those that are traced.
    pub(crate) trace: Option<Arc<Trace>>,
    /// Whether its outputs were computed for another request.
    pub(crate) without_work: bool,
    /// What selection among an endpoint's members goes by.
    pub(crate) selecting: Selecting,
    /// What the answer says beside its outputs.
    pub(crate) notes: Notes,
    over: bool,
}

/// What the request of an endpoint to one of its members is a part of.
pub(crate) struct PartOf {
    /// The stage whose call it is, where a scheduler knows the pipeline.
    pub(crate) stage: Option<PipelineStage>,
    /// Who pays for its device time.
    pub(crate) account: Arc<TimeAccount>,
    /// Where its steps are noted, if the whole is traced.
    pub(crate) trace: Option<Arc<Trace>>,
}

/// What is asked of a model, once it fits.
pub(crate) struct Question {
    /// In the signature's order.
    pub(crate) inputs: Vec<Tensor>,
    pub(crate) rows: u32,
    pub(crate) size: Option<u32>,
    /// As the request says it.
    pub(crate) priority: u32,
    pub(crate) application: ApplicationId,
    /// The deadline from the arrival: the smallest that the request, its transport and the model give.
    pub(crate) budget: Option<Duration>,
}

/// What holds for a request that is about to be computed.
pub(crate) struct Terms {
    pub(crate) priority: u32,
    pub(crate) budget: Option<Duration>,
    pub(crate) deadline_at: Timestamp,
    /// Given back when this is dropped.
    _place: Option<QueuePlace>,
}

/// All outputs, in the signature's order, and when they must be with the client.
pub(crate) type Computed = (Vec<Tensor>, Timestamp);

/// What came of waiting.
pub(crate) enum Heard<T> {
    Said(T),
    /// Whoever should have said it is gone.
    Nothing,
    /// The deadline came first.
    Late,
    /// What was waited for is lost with a thread that hangs.
    Lost(Refusal),
}

impl<'a> Call<'a> {
    /// Finds the model that a request names. A refusal is counted here, because there is no model to count it with.
    pub(crate) fn begin(
        context: &'a IoContext,
        owner: &'a Arc<Owner>,
        (name, version): (&str, &str),
        transport: Transport,
        arrived_at: Timestamp,
    ) -> Result<Self, Fault> {
        let metrics = &context.shared.metrics;
        let found = owner.request(arrived_at).and_then(|request| {
            let entry = context.models.find(name, version)?;
            serving(&entry)?;
            owner.may_compute(arrived_at, || context.controller.devices())?;
            Ok((entry, request))
        });
        match found {
            Ok((entry, request)) => {
                let trace = context.shared.tracer.sample(&entry.name, entry.version, transport);
                let mut call = Self::new(context, owner, entry, arrived_at, None);
                (call.trace, call._request) = (trace, request);
                Ok(call)
            }
            Err(fault) => {
                metrics.unrouted(fault.reason);
                Err(fault)
            }
        }
    }

    /// What an endpoint asks one of its members, which is ready.
    pub(crate) fn to_member(
        context: &'a IoContext,
        owner: &'a Arc<Owner>,
        entry: Arc<CatalogueEntry>,
        arrived_at: Timestamp,
        mut part_of: PartOf,
    ) -> Self {
        let trace = part_of.trace.take();
        let mut call = Self::new(context, owner, entry, arrived_at, Some(Box::new(part_of)));
        call.trace = trace;
        call
    }

    fn new(
        context: &'a IoContext,
        owner: &'a Arc<Owner>,
        entry: Arc<CatalogueEntry>,
        arrived_at: Timestamp,
        part_of: Option<Box<PartOf>>,
    ) -> Self {
        // The request that it is a part of is one already.
        if part_of.is_none() {
            context.shared.metrics.in_flight.inc();
        }
        context.calls.fetch_add(1, Ordering::Relaxed);
        Self {
            context,
            owner,
            entry,
            part_of,
            spent: None,
            _request: None,
            arrived_at,
            ticket: None,
            trace: None,
            without_work: false,
            selecting: Selecting::default(),
            notes: Notes::new(),
            over: false,
        }
    }

    /// The model that is asked.
    pub(crate) fn entry(&self) -> Arc<CatalogueEntry> {
        Arc::clone(&self.entry)
    }

    /// What the model takes and gives.
    pub(crate) fn signature(&self) -> &ModelSignature {
        &self.served().signature
    }

    pub(crate) fn served(&self) -> &ServedModel {
        self.entry.serving().expect("a call only begins on a model that is ready, and entries don't change")
    }

    /// Asks the model, and hands the answer to `encode`, on another thread if that takes long: outputs as JSON do, and
    /// all do if it `compresses`. No success leaves after its deadline (P2).
    pub(crate) async fn run<T: Send + 'static>(
        &mut self,
        mut request: InferRequest<'_>,
        head: CallHeaders,
        compresses: bool,
        encode: impl FnOnce(InferResponse<'_>) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        self.trace.iter().for_each(|trace| trace.received(self.context.controller.now()));
        // Before anything is waited for.
        let place = self.enter(&mut request)?;
        // Only what lies in shared memory is fetched. In a box, as below: what is rare must not make every call larger.
        let _held = match request.inputs.iter().any(|input| input.region.is_some()) {
            false => None,
            true => Box::pin(regions::fetch(self.context, self.owner, &mut request)).await?,
        };
        let turn = match place {
            None => None,
            Some(place) => Some(Box::pin(self.take_turn(place, &mut request, head)).await?),
        };
        let served = self.served();
        add_defaults(&served.signature, &served.defaults, &mut request.inputs);
        let checked = check(&served.signature, served.max_elements, &mut request)?;
        let Checked { inputs, rows, size, outputs: mut wanted } = checked;
        let application = match &*request.application {
            "" => head.application,
            name => self.context.shared.applications.of(name)?,
        };
        let budget = [request.parameters.timeout, head.limit, served.objective].into_iter().flatten().min();
        let priority = request.parameters.priority;
        let question = Question { inputs, rows, size, priority, application, budget };
        if let Some((_, plan)) = plan_of(served) {
            self.selecting = Selecting::of(plan, &self.entry.name, self.owner, &mut request);
        }
        let places = self.places(&wanted)?;
        self.trace.iter().for_each(|trace| trace.named(&request.id));
        let computed = self.answer(question).await;
        self.trace.iter().for_each(|trace| trace.replied(self.context.controller.now()));
        let (mut outputs, deadline_at) = computed?;
        if let Some(turn) = turn {
            turn.done(&outputs);
        }
        if !places.is_empty() {
            Box::pin(self.place(places, &mut outputs, &mut wanted)).await?;
        }
        let slow_bytes = wanted.iter().filter(|output| compresses || !output.binary || output.classes > 0);
        let slow_bytes: usize = slow_bytes.filter_map(|output| Some(outputs.get(output.position)?.data.len())).sum();
        let encoded = if slow_bytes < OFFLOAD_WRITE_BYTES {
            classify_wanted(&self.entry, &mut outputs, &wanted)?;
            encode(response(&self.entry, &request.id, &self.notes, &outputs, &wanted)?)?
        } else {
            let (entry, id, notes) =
                (Arc::clone(&self.entry), request.id.into_owned(), std::mem::take(&mut self.notes));
            let work = offload(self.owner, slow_bytes, move || {
                classify_wanted(&entry, &mut outputs, &wanted)?;
                encode(response(&entry, &id, &notes, &outputs, &wanted)?)
            });
            let left = deadline_at.since(self.context.controller.now());
            tokio::time::timeout(left.into(), work)
                .await
                .unwrap_or_else(|_| Err(self.fault(Reason::DeadlineMissed.into())))?
        };
        if deadline_at != Timestamp::NEVER && self.context.controller.now() > deadline_at {
            return Err(self.fault(Reason::DeadlineMissed.into()));
        }
        Ok(encoded)
    }

    /// Has it answered: by the model, from what is kept of it, or by those that make an endpoint.
    pub(crate) async fn answer(&mut self, question: Question) -> Result<Computed, Fault> {
        let cached =
            self.served().kept_under.and_then(|number| Some((number, Arc::clone(self.context.shared.cache.as_ref()?))));
        match cached {
            None => self.compute(question).await,
            Some((number, cache)) => Box::pin(self.find_or_compute(cache, number, question)).await,
        }
    }

    /// The places of those outputs that belong into shared memory, in their order. They stay until they are written to.
    fn places(&self, wanted: &[WantedOutput]) -> Result<Vec<RegionSlice>, Fault> {
        let specs = &self.signature().outputs;
        let place = |output: &WantedOutput| {
            let region = output.region.as_deref()?;
            Some(regions::reserve(self.context, &specs[output.position].name, region))
        };
        wanted.iter().filter_map(place).collect()
    }

    /// Writes the outputs that belong into shared memory there; the answer then only says where they are.
    async fn place(
        &self,
        places: Vec<RegionSlice>,
        outputs: &mut [Tensor],
        wanted: &mut [WantedOutput],
    ) -> Result<(), Fault> {
        let specs = &self.signature().outputs;
        let placed = wanted.iter_mut().filter_map(|output| Some((output.position, output.region.as_deref_mut()?)));
        for (slice, (position, region)) in places.into_iter().zip(placed) {
            if let (Some(spec), Some(tensor)) = (specs.get(position), outputs.get_mut(position)) {
                let data = std::mem::take(&mut tensor.data);
                regions::place(self.owner, &spec.name, &data, slice, region).await?;
            }
        }
        Ok(())
    }

    /// Has it computed.
    async fn compute(&mut self, question: Question) -> Result<Computed, Fault> {
        let terms = self.terms(&question)?;
        let outputs = self.compute_on(question, &terms).await?;
        Ok((outputs, terms.deadline_at))
    }

    /// The same on terms that are known.
    pub(crate) async fn compute_on(&mut self, question: Question, terms: &Terms) -> Result<Vec<Tensor>, Fault> {
        if let Some(endpoint) = self.endpoint() {
            return endpoint::answer(self, endpoint, question, terms).await;
        }
        let (answer, ticket) = self.submit(question, terms);
        self.ticket = ticket;
        let heard = self.wait(answer, terms, ticket).await;
        if matches!(heard, Heard::Late) {
            self.take_back();
        }
        self.ticket = None;
        outputs(heard).map_err(|refusal| self.fault(refusal))
    }

    /// Those that answer it, if it isn't a model.
    pub(crate) fn endpoint(&self) -> Option<Arc<Endpoint>> {
        match &self.served().by {
            AnsweredBy::Endpoint(endpoint) => Some(Arc::clone(endpoint)),
            AnsweredBy::Model(_) => None,
        }
    }

    /// What holds for a request by the model's own rules for those that wait: its priority, its deadline, its place.
    pub(crate) fn terms(&self, question: &Question) -> Result<Terms, Fault> {
        let Question { priority, budget, .. } = *question;
        let terms = |priority, budget: Option<Duration>, place| {
            let deadline_at = self.deadline_at(budget);
            Ok(Terms { priority, budget, deadline_at, _place: place })
        };
        let Some(limits) = &self.served().queue_limits else { return terms(priority, budget, None) };
        match limits.admit(priority) {
            Ok(Admitted { priority, limit, place }) => {
                terms(priority, budget.into_iter().chain(limit).min(), Some(place))
            }
            Err(most) => {
                let name = &self.entry.name;
                let message = format!("{most} requests wait for model {name:?} already, its max_queue_size: try again");
                Err(Fault::new(Reason::QueueFull, message))
            }
        }
    }

    /// When the answer must be with the client that allows so much from the arrival on.
    pub(crate) fn deadline_at(&self, budget: Option<Duration>) -> Timestamp {
        budget.map_or(Timestamp::NEVER, |budget| self.arrived_at + budget)
    }

    /// Hands it to the controller: where the answer will come from, and what to take it back by.
    pub(crate) fn submit(&self, question: Question, terms: &Terms) -> (oneshot::Receiver<Reply>, Option<Ticket>) {
        let (reply, answer) = oneshot::channel();
        let Question { inputs, rows, size, application, .. } = question;
        let Terms { priority, deadline_at, .. } = *terms;
        let (model, trace, account) = (self.model(), self.trace.clone(), self.account());
        let submission =
            Submission { model, inputs, rows, deadline_at, priority, application, size, trace, account, reply };
        let ticket = match self.part_of.as_ref().and_then(|part_of| part_of.stage) {
            None => self.context.controller.submit(submission),
            Some(stage) => self.context.controller.submit_stage(submission, stage),
        };
        self.context.driver.wake();
        (answer, ticket)
    }

    fn model(&self) -> ModelNumber {
        self.served().model().expect("what an endpoint is asked it asks its members").id
    }

    /// Who pays for its device time, if anybody does.
    pub(crate) fn account(&self) -> Option<Arc<TimeAccount>> {
        match &self.part_of {
            None => self.owner.account(),
            Some(part_of) => Some(Arc::clone(&part_of.account)),
        }
    }

    /// What is said, unless the deadline comes first.
    pub(crate) async fn wait<T>(
        &self,
        answer: impl Future<Output = Result<T, RecvError>> + Unpin,
        terms: &Terms,
        ticket: Option<Ticket>,
    ) -> Heard<T> {
        let answer = self.context.mailbox.deliver(answer);
        let Some(budget) = terms.budget else { return self.unless_lost(answer, ticket).await };
        let net_at = terms.deadline_at - margins::give_up_before(budget);
        let left = net_at.since(self.context.controller.now());
        match tokio::time::timeout(left.into(), answer).await {
            Ok(said) => said.map_or(Heard::Nothing, Heard::Said),
            Err(_) => Heard::Late,
        }
    }

    /// What is said, or what is to be said of a request that is lost with a thread that hangs: no deadline ends the
    /// wait for it.
    async fn unless_lost<T>(
        &self,
        mut answer: Delivered<impl Future<Output = Result<T, RecvError>> + Unpin>,
        ticket: Option<Ticket>,
    ) -> Heard<T> {
        loop {
            // Made before the look: what is lost between the two is heard of. A request that was handed over by
            // another may be lost already.
            let lost = self.context.lost.notified();
            if let Some(refusal) = ticket.and_then(|ticket| self.context.controller.is_lost(ticket)) {
                return Heard::Lost(refusal);
            }
            tokio::select! {
                biased;
                said = &mut answer => return said.map_or(Heard::Nothing, Heard::Said),
                () = lost => {}
            }
        }
    }

    fn asker(&self) -> Asker {
        if self.part_of.is_some() { Asker::Endpoint } else { Asker::Client }
    }

    /// Counts the outcome; the request is over.
    pub(crate) fn end<T>(mut self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        self.over = true;
        match &outcome {
            Ok(_) => {
                let (metrics, took) = (&self.served().metrics, self.context.controller.now().since(self.arrived_at));
                if self.without_work {
                    metrics.answered_without_work(took);
                } else {
                    metrics.answered(self.asker(), took);
                }
            }
            Err(fault) => self.count_failure(fault.reason),
        }
        outcome
    }

    fn count_failure(&self, reason: Reason) {
        self.spent.iter().for_each(|account| account.lose());
        let after = self.context.controller.now().since(self.arrived_at);
        self.served().metrics.ended(self.asker(), reason, after);
    }

    fn take_back(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.context.controller.cancel(ticket);
            self.context.driver.wake();
        }
    }

    /// What a refusal is to the client. Earliest deadlines are told as a span from the arrival: clients have other
    /// clocks.
    pub(crate) fn fault(&self, refusal: Refusal) -> Fault {
        let Refusal { reason, earliest_at, why } = refusal;
        let sentence = reason.sentence(&self.entry.name, self.entry.version, &why);
        let fault = Fault::new(reason, sentence.map_or(Cow::Borrowed(reason.help()), Cow::Owned));
        Fault { earliest: earliest_at.map(|at| at.since(self.arrived_at)), ..fault }
    }
}

/// The outputs that were waited for, or why there are none.
pub(crate) fn outputs(heard: Heard<Reply>) -> Result<Vec<Tensor>, Refusal> {
    match heard {
        Heard::Said(Reply::Outputs(outputs)) => Ok(outputs),
        Heard::Said(Reply::Refused(refusal)) | Heard::Lost(refusal) => Err(refusal),
        Heard::Late => Err(Reason::DeadlineMissed.into()),
        // A sender that is gone without a word belonged to a controller that is gone.
        Heard::Nothing => Err(Reason::ShuttingDown.into()),
    }
}

/// Puts the highest values in the places of the outputs of which they are wanted.
fn classify_wanted(entry: &CatalogueEntry, outputs: &mut [Tensor], wanted: &[WantedOutput]) -> Result<(), Fault> {
    for output in wanted.iter().filter(|output| output.classes > 0) {
        let served = serving(entry)?;
        let batched = served.signature.max_batch > 0;
        let labels = served.labels.get(output.position).map_or(&[][..], Vec::as_slice);
        if let Some(tensor) = outputs.get_mut(output.position) {
            *tensor = classify(tensor, output.classes, batched, labels)?;
        }
    }
    Ok(())
}

/// The answer, with the outputs that were asked for.
fn response<'r>(
    entry: &'r CatalogueEntry,
    id: &'r str,
    notes: &'r Notes,
    outputs: &'r [Tensor],
    wanted: &'r [WantedOutput],
) -> Result<InferResponse<'r>, Fault> {
    let specs = &serving(entry)?.signature.outputs;
    let output = |wanted: &'r WantedOutput| {
        let (spec, tensor) = specs.get(wanted.position).zip(outputs.get(wanted.position))?;
        let (datatype, shape, data) = (tensor.datatype, &tensor.shape, tensor.data.clone());
        let (binary, region) = (wanted.binary, wanted.region.as_deref());
        Some(OutputTensor { name: &spec.name, datatype, shape, data, binary, region })
    };
    let outputs = wanted.iter().map(output).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Fault::new(Reason::ExecutionFailed, "the engine gave fewer outputs than the model's signature has")
    })?;
    Ok(InferResponse { model_name: &entry.name, model_version: entry.version, id, parameters: notes, outputs })
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if self.part_of.is_none() {
            self.context.shared.metrics.in_flight.dec();
        }
        self.context.calls.fetch_sub(1, Ordering::Relaxed);
        self.take_back();
        if !self.over {
            self.count_failure(Reason::Cancelled);
        }
        if let Some(trace) = &self.trace {
            trace.end(self.arrived_at, self.context.controller.now());
        }
    }
}

/// Counts a refusal for which there is no model to count it with.
pub(crate) fn count_unrouted(context: &IoContext, fault: &Fault) {
    context.shared.metrics.unrouted(fault.reason);
}
