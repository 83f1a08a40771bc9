//! One request from its arrival to its only outcome, on either protocol.
//!
//! ```text
//!  arrived_at            submit                                    deadline_at
//!  ──┬── read, decode ─────┬── waits for the reply ── encode, check ──┤
//!    └── Call::begin       └── the net answers here if nothing came ──┘
//! ```

use crate::check::{Checked, WantedOutput, add_defaults, check};
use crate::classify::classify;
use crate::io::IoContext;
use crate::io::clients::{ClientRequest, Owner};
use crate::io::mailbox::Delivered;
use crate::io::offload::{OFFLOAD_WRITE_BYTES, offload};
use crate::models::serving;
use crate::regions::{self, RegionSlice};
use base::{ApplicationId, Duration, ModelSignature, Reason, Timestamp, margins};
use controller::{Refusal, Reply, Submission, Tensor, Ticket};
use models::{Admitted, CatalogueEntry, QueuePlace, ServedModel};
use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use telemetry::{Trace, Transport};
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
    context: &'a IoContext,
    owner: &'a Arc<Owner>,
    entry: Arc<CatalogueEntry>,
    /// Counts it with its client, where that is limited.
    _request: Option<ClientRequest>,
    arrived_at: Timestamp,
    ticket: Option<Ticket>,
    /// Where its steps are noted, if it is one of those that are traced.
    trace: Option<Arc<Trace>>,
    over: bool,
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
                metrics.in_flight.inc();
                context.calls.fetch_add(1, Ordering::Relaxed);
                let trace = context.shared.tracer.sample(&entry.name, entry.version, transport);
                Ok(Self { context, owner, entry, _request: request, arrived_at, ticket: None, trace, over: false })
            }
            Err(fault) => {
                metrics.unrouted(fault.reason);
                Err(fault)
            }
        }
    }

    /// The model that is asked.
    pub(crate) fn entry(&self) -> Arc<CatalogueEntry> {
        Arc::clone(&self.entry)
    }

    /// What the model takes and gives.
    pub(crate) fn signature(&self) -> &ModelSignature {
        &self.served().model.signature
    }

    fn served(&self) -> &ServedModel {
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
        // Only what lies in shared memory is fetched. In a box, as below: what is rare must not make every call larger.
        let _held = match request.inputs.iter().any(|input| input.region.is_some()) {
            false => None,
            true => Box::pin(regions::fetch(self.context, self.owner, &mut request)).await?,
        };
        let served = self.served();
        add_defaults(&served.model.signature, &served.defaults, &mut request);
        let checked = check(&served.model.signature, served.model.max_elements, &mut request)?;
        let (priority, queue_limit, place) = self.admit(served, request.parameters.priority)?;
        let budget =
            [request.parameters.timeout, head.limit, served.model.objective, queue_limit].into_iter().flatten().min();
        let deadline_at = budget.map_or(Timestamp::NEVER, |budget| self.arrived_at + budget);
        let Checked { inputs, rows, size, outputs: mut wanted } = checked;
        let application = match &*request.application {
            "" => head.application,
            name => self.context.shared.applications.of(name)?,
        };
        let places = self.places(&wanted)?;
        let (reply, answer) = oneshot::channel();
        let trace = self.trace.clone();
        trace.iter().for_each(|trace| trace.named(&request.id));
        let model = served.id;
        let account = self.owner.account();
        let submission =
            Submission { model, inputs, rows, deadline_at, priority, application, size, trace, account, reply };
        self.ticket = self.context.controller.submit(submission);
        self.context.driver.wake();
        let reply = self.wait(answer, budget, deadline_at).await;
        self.trace.iter().for_each(|trace| trace.replied(self.context.controller.now()));
        drop(place);
        let mut outputs = match reply {
            Some(Reply::Outputs(outputs)) => outputs,
            Some(Reply::Refused(refusal)) => return Err(self.fault(refusal)),
            None => return Err(self.fault(Reason::DeadlineMissed.into())),
        };
        if !places.is_empty() {
            Box::pin(self.place(places, &mut outputs, &mut wanted)).await?;
        }
        let slow_bytes = wanted.iter().filter(|output| compresses || !output.binary || output.classes > 0);
        let slow_bytes: usize = slow_bytes.filter_map(|output| Some(outputs.get(output.position)?.data.len())).sum();
        let encoded = if slow_bytes < OFFLOAD_WRITE_BYTES {
            classify_wanted(&self.entry, &mut outputs, &wanted)?;
            encode(response(&self.entry, &request.id, &outputs, &wanted)?)?
        } else {
            let (entry, id) = (Arc::clone(&self.entry), request.id.into_owned());
            let work = offload(self.owner, slow_bytes, move || {
                classify_wanted(&entry, &mut outputs, &wanted)?;
                encode(response(&entry, &id, &outputs, &wanted)?)
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

    /// What the model's own rules for waiting requests say of this one: its priority, its deadline, its place.
    fn admit(&self, served: &ServedModel, priority: u32) -> Result<(u32, Option<Duration>, Option<QueuePlace>), Fault> {
        let Some(limits) = &served.queue_limits else { return Ok((priority, None, None)) };
        match limits.admit(priority) {
            Ok(Admitted { priority, limit, place }) => Ok((priority, limit, Some(place))),
            Err(most) => {
                let name = &self.entry.name;
                let message = format!("{most} requests wait for model {name:?} already, its max_queue_size: try again");
                Err(Fault::new(Reason::QueueFull, message))
            }
        }
    }

    /// The reply, or nothing when the deadline comes first; then the request is taken back.
    async fn wait(
        &mut self,
        answer: oneshot::Receiver<Reply>,
        budget: Option<Duration>,
        deadline_at: Timestamp,
    ) -> Option<Reply> {
        let answer = self.context.mailbox.deliver(answer);
        let reply = match budget {
            None => self.unless_lost(answer).await,
            Some(budget) => {
                let net_at = deadline_at - margins::give_up_before(budget);
                let left = net_at.since(self.context.controller.now());
                match tokio::time::timeout(left.into(), answer).await {
                    Ok(reply) => reply,
                    Err(_) => {
                        self.take_back();
                        return None;
                    }
                }
            }
        };
        self.ticket = None;
        // A sender that is gone without a word belonged to a controller that is gone.
        Some(reply.unwrap_or(Reply::Refused(Reason::ShuttingDown.into())))
    }

    /// The reply, or what is to be said of a request that is lost with a thread that hangs: no deadline ends the wait
    /// for it.
    async fn unless_lost(&self, mut answer: Delivered<oneshot::Receiver<Reply>>) -> Result<Reply, RecvError> {
        loop {
            tokio::select! {
                biased;
                reply = &mut answer => return reply,
                () = self.context.lost.notified() => {
                    let lost = self.ticket.and_then(|ticket| self.context.controller.is_lost(ticket));
                    if let Some(refusal) = lost {
                        return Ok(Reply::Refused(refusal));
                    }
                }
            }
        }
    }

    /// Counts the outcome; the request is over.
    pub(crate) fn end<T>(mut self, outcome: Result<T, Fault>) -> Result<T, Fault> {
        self.over = true;
        match &outcome {
            Ok(_) => self.served().model.metrics.answered(self.context.controller.now().since(self.arrived_at)),
            Err(fault) => self.count_failure(fault.reason),
        }
        outcome
    }

    fn count_failure(&self, reason: Reason) {
        self.served().model.metrics.ended(reason, self.context.controller.now().since(self.arrived_at));
    }

    fn take_back(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.context.controller.cancel(ticket);
            self.context.driver.wake();
        }
    }

    /// What a refusal is to the client. Earliest deadlines are told as a span from the arrival: clients have other
    /// clocks.
    fn fault(&self, refusal: Refusal) -> Fault {
        let Refusal { reason, earliest_at, why } = refusal;
        let sentence = reason.sentence(&self.entry.name, self.entry.version, &why);
        let fault = Fault::new(reason, sentence.map_or(Cow::Borrowed(reason.help()), Cow::Owned));
        Fault { earliest: earliest_at.map(|at| at.since(self.arrived_at)), ..fault }
    }
}

/// Puts the highest values in the places of the outputs of which they are wanted.
fn classify_wanted(entry: &CatalogueEntry, outputs: &mut [Tensor], wanted: &[WantedOutput]) -> Result<(), Fault> {
    for output in wanted.iter().filter(|output| output.classes > 0) {
        let served = serving(entry)?;
        let batched = served.model.signature.max_batch > 0;
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
    outputs: &'r [Tensor],
    wanted: &'r [WantedOutput],
) -> Result<InferResponse<'r>, Fault> {
    let specs = &serving(entry)?.model.signature.outputs;
    let output = |wanted: &'r WantedOutput| {
        let (spec, tensor) = specs.get(wanted.position).zip(outputs.get(wanted.position))?;
        let (datatype, shape, data) = (tensor.datatype, &tensor.shape, tensor.data.clone());
        let (binary, region) = (wanted.binary, wanted.region.as_deref());
        Some(OutputTensor { name: &spec.name, datatype, shape, data, binary, region })
    };
    let outputs = wanted.iter().map(output).collect::<Option<Vec<_>>>().ok_or_else(|| {
        Fault::new(Reason::ExecutionFailed, "the engine gave fewer outputs than the model's signature has")
    })?;
    Ok(InferResponse { model_name: &entry.name, model_version: entry.version, id, outputs })
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.context.shared.metrics.in_flight.dec();
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
