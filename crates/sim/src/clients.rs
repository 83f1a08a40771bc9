//! The clients' side of a simulated world: who sends when, which requests are alive, and how they ended.

use crate::agenda::{Agenda, Due};
use crate::inputs::DrawnInput;
use crate::meter::{Ended, Meter, RequestEnding};
use crate::violation::{Broken, Violation};
use crate::wholes::{AfterCall, Wholes};
use crate::{Faults, ModelSetup, Network, Setup, Traffic, Variety};
use base::{ApplicationId, Duration, ModelId, Reason, RequestId, Timestamp};
use scheduler::{Event, Execution, Measured, Outcome, Request, Sample};
use std::collections::BTreeMap;
use workload::{Arrival, ClosedLoop, Random};

/// When a client without a deadline goes away, if it does.
const PATIENCE_WITHOUT_DEADLINE: Duration = Duration::from_millis(100);

/// The numbers of the streams of random inputs.
const INPUTS: u64 = 3 << 40;
/// The number of the stream of what else is different about requests.
const VARIETY: u64 = 5 << 40;
/// So many requests of a model whose time depends on the input are run alone before the first one comes.
const PROFILED: usize = 400;
/// Of the requests that were executed, one in so many is run alone as well. The simulated profiler has a device of its
/// own.
const MEASURED: u64 = 4;
/// The scheduler is told of so many at once.
const TOLD_TOGETHER: usize = 16;

pub(crate) struct Clients {
    open: Option<Box<dyn Iterator<Item = Arrival> + Send>>,
    next: Option<Arrival>,
    closed: Option<ClosedLoop>,
    models: Vec<ModelSetup>,
    network: Network,
    faults: Faults,
    variety: Variety,
    random: Random,
    various: Random,
    table: Vec<RequestSlot>,
    free: Vec<u32>,
    /// For each model, the random numbers of its requests' inputs, and how many there were.
    drawn: Vec<(Random, u64)>,
    /// Finished requests that a profiler has run alone, and how many there were to choose from.
    measured: Vec<(ModelId, DrawnInput)>,
    executed: u64,
    max_requests: u32,
    horizon_at: Timestamp,
    /// Requests for pipelines.
    pub(crate) wholes: Wholes,
}

#[derive(Clone, Debug)]
struct RequestSlot {
    generation: u32,
    living: Option<Living>,
}

#[derive(Clone, Copy, Debug)]
struct Living {
    model: u32,
    client: Option<u32>,
    sent_at: Timestamp,
    /// When the client must have its answer.
    deadline_at: Timestamp,
    rows: u32,
    priority: u32,
    ended_at: Option<Timestamp>,
    cold: bool,
    probe: bool,
    /// What the request is, where that matters.
    input: Option<DrawnInput>,
    /// Which request for a pipeline it is a call of, and of which stage.
    call: Option<(u64, u32)>,
}

impl Clients {
    pub(crate) fn new(setup: &Setup, traffic: Traffic) -> Self {
        let mut open = traffic.open;
        let next = open.as_mut().and_then(Iterator::next);
        Self {
            open,
            next,
            closed: traffic.closed,
            models: setup.models.clone(),
            network: setup.network,
            faults: setup.faults,
            variety: setup.variety,
            random: Random::new(setup.seed, 1 << 40),
            various: Random::new(setup.seed, VARIETY),
            table: Vec::new(),
            free: Vec::new(),
            drawn: (0..setup.models.len()).map(|model| (Random::new(setup.seed, INPUTS + model as u64), 0)).collect(),
            measured: Vec::new(),
            executed: 0,
            max_requests: setup.max_requests,
            horizon_at: Timestamp::ZERO + setup.horizon,
            wholes: Wholes::new(&setup.pipelines, setup.seed),
        }
    }

    pub(crate) fn begin(&mut self, agenda: &mut Agenda) {
        let Some(closed) = &mut self.closed else { return };
        for client in 0..closed.clients() {
            agenda.add(Timestamp::ZERO + closed.first(client), Due::ClientSends(client));
        }
    }

    pub(crate) fn model_of(&self, client: u32) -> u32 {
        self.closed.as_ref().map_or(0, |closed| closed.model(client))
    }

    /// How many requests are alive.
    pub(crate) fn living(&self) -> usize {
        self.table.len() - self.free.len() + usize::from(!self.wholes.is_empty())
    }

    pub(crate) fn next_arrival_at(&self, horizon_at: Timestamp) -> Option<Timestamp> {
        self.next.map(|arrival| Timestamp::ZERO + arrival.offset).filter(|&at| at < horizon_at)
    }

    pub(crate) fn more_before(&self, horizon_at: Timestamp) -> bool {
        self.next_arrival_at(horizon_at).is_some()
    }

    pub(crate) fn take_arrival(&mut self) -> Option<Arrival> {
        let next = self.open.as_mut().and_then(Iterator::next);
        std::mem::replace(&mut self.next, next)
    }

    /// A client sends; `None` when the table is full and the driver refuses.
    pub(crate) fn send(
        &mut self,
        now: Timestamp,
        model: u32,
        client: Option<u32>,
        cold: bool,
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) -> Option<RequestId> {
        let (group, slo) = (self.models[model as usize].group, self.models[model as usize].slo);
        let deadline_at = slo.map_or(Timestamp::NEVER, |slo| now + self.objective(slo));
        let (rows, priority) = (self.rows(model), self.priority());
        meter.sent(now, model as usize, group, cold);
        let (random, number) = &mut self.drawn[model as usize];
        let input = self.models[model as usize].inputs.as_ref().map(|inputs| inputs.draw(*number, random));
        *number += 1;
        let living = Living {
            model,
            client,
            sent_at: now,
            deadline_at,
            rows,
            priority,
            ended_at: None,
            cold,
            probe: false,
            input,
            call: None,
        };
        let Some(id) = self.admit(living) else {
            let ending = RequestEnding::Refused(Reason::QueueFull);
            meter.ended(&Ended {
                model: model as usize,
                group,
                sent_at: now,
                deadline_at,
                answered_at: now,
                executed_at: None,
                cold,
                ending,
                work: Duration::ZERO,
            });
            self.client_goes_on(client, now, true, agenda);
            return None;
        };
        if now < self.horizon_at && self.random.chance(self.faults.cancel_probability) {
            let within = slo.unwrap_or(PATIENCE_WITHOUT_DEADLINE).mul_f64(self.random.unit());
            agenda.add(now + within.max(self.network.control), Due::Cancel(id));
        }
        Some(id)
    }

    /// One more request for a model, with all the time in the world: it must be served.
    pub(crate) fn probe(&mut self, now: Timestamp, model: usize) -> Option<Request> {
        let id = self.admit(Living {
            model: model as u32,
            client: None,
            sent_at: now,
            deadline_at: Timestamp::NEVER,
            rows: self.models[model].rows,
            priority: 0,
            ended_at: None,
            cold: false,
            probe: true,
            input: None,
            call: None,
        })?;
        self.request(id)
    }

    fn objective(&mut self, slo: Duration) -> Duration {
        let spread = self.variety.objective_spread;
        if spread > 0.0 { slo.mul_f64(1.0 + spread * self.various.unit()) } else { slo }
    }

    fn rows(&mut self, model: u32) -> u32 {
        let model = &self.models[model as usize];
        match self.variety.max_rows {
            0 => model.rows,
            most => 1 + self.various.below(most.min(model.spec.profile.max_batch())),
        }
    }

    fn priority(&mut self) -> u32 {
        match self.variety.max_priority {
            0 => 0,
            most => self.various.below(most + 1),
        }
    }

    fn admit(&mut self, living: Living) -> Option<RequestId> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.table.len() < self.max_requests as usize => {
                self.table.push(RequestSlot { generation: 0, living: None });
                self.table.len() as u32 - 1
            }
            None => return None,
        };
        let entry = &mut self.table[slot as usize];
        entry.living = Some(living);
        Some(RequestId { slot, generation: entry.generation })
    }

    fn free_slot(&mut self, id: RequestId) -> Option<Living> {
        let slot = &mut self.table[id.slot as usize];
        let living = slot.living.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(living)
    }

    fn living_at(&self, id: RequestId) -> Option<&Living> {
        self.table.get(id.slot as usize).filter(|slot| slot.generation == id.generation)?.living.as_ref()
    }

    /// A request that is alive, as the scheduler sees it: what the answer's way back takes is no longer there to be
    /// used.
    pub(crate) fn request(&self, id: RequestId) -> Option<Request> {
        let living = self.living_at(id)?;
        Some(Request {
            id,
            model: ModelId(living.model),
            deadline_at: living.deadline_at - self.network.control,
            priority: living.priority,
            rows: living.rows,
            application: living.input.map_or(ApplicationId::DEFAULT, |input| ApplicationId(input.application)),
            size: living.input.and_then(|input| input.size),
        })
    }

    /// What a request is, where that matters.
    pub(crate) fn input(&self, id: RequestId) -> Option<DrawnInput> {
        self.living_at(id)?.input
    }

    /// What a profiler knows of a model before the first request.
    pub(crate) fn profiled(&self) -> Vec<Measured> {
        let models = self.models.iter().enumerate();
        let dynamic = models.filter_map(|(index, model)| Some((ModelId(index as u32), model.inputs.as_ref()?)));
        dynamic
            .flat_map(|(model, inputs)| {
                by_application(inputs.sample(PROFILED, INPUTS).into_iter().map(|it| (model, it)))
            })
            .collect()
    }

    /// What the profiler has found out since it was last asked, if it is worth telling.
    pub(crate) fn measured(&mut self) -> Vec<Measured> {
        if self.measured.len() < TOLD_TOGETHER { Vec::new() } else { by_application(self.measured.drain(..)) }
    }

    /// The rows of a batch, each request's end noted.
    pub(crate) fn executed(&mut self, execution: &Execution, started_at: Timestamp, ended_at: Timestamp) -> u32 {
        let mut rows = 0;
        // Calls have one row each.
        let each = ended_at.since(started_at) / execution.requests.len().max(1) as u64;
        for request in &execution.requests {
            let slot = self.table.get_mut(request.slot as usize).filter(|slot| slot.generation == request.generation);
            match slot.and_then(|slot| slot.living.as_mut()) {
                Some(living) => {
                    living.ended_at = Some(ended_at);
                    rows += living.rows;
                    if let Some((whole, _)) = living.call {
                        self.wholes.worked(whole, each, ended_at);
                    }
                }
                None => rows += self.models[execution.model.index()].rows,
            }
        }
        rows
    }

    /// The scheduler says how a request ended.
    pub(crate) fn finish(
        &mut self,
        now: Timestamp,
        id: RequestId,
        outcome: Outcome,
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) -> Result<(), Violation> {
        // P1 has seen to it that the request is alive.
        let Some(living) = self.free_slot(id) else { return Ok(()) };
        if living.probe {
            return probed(now, living.model, outcome);
        }
        if let Some((whole, stage)) = living.call {
            self.call_ended(now, (whole, stage), id, outcome, agenda, meter);
            return Ok(());
        }
        if let (Some(input), Outcome::Done | Outcome::Late) = (living.input, outcome) {
            self.executed += 1;
            if self.executed.is_multiple_of(MEASURED) {
                self.measured.push((ModelId(living.model), input));
            }
        }
        let answered_at = match outcome {
            Outcome::Done => living.ended_at.unwrap_or(now) + self.network.control,
            // The gateway has answered in the meantime.
            Outcome::Late => living.deadline_at,
            Outcome::Rejected(_) | Outcome::Failed | Outcome::Cancelled => now + self.network.control,
        };
        meter.ended(&Ended {
            model: living.model as usize,
            group: self.models[living.model as usize].group,
            sent_at: living.sent_at,
            deadline_at: living.deadline_at,
            answered_at,
            executed_at: living.ended_at.map(|at| at + self.network.control),
            cold: living.cold,
            ending: RequestEnding::of(outcome),
            work: Duration::ZERO,
        });
        let refused = matches!(outcome, Outcome::Rejected(_) | Outcome::Failed | Outcome::Cancelled);
        self.client_goes_on(living.client, now + self.network.control, refused, agenda);
        Ok(())
    }

    // ---- requests for pipelines ----

    /// A client asks for a pipeline: the number of the request, and the stages that begin.
    pub(crate) fn send_whole(
        &mut self,
        now: Timestamp,
        (pipeline, client): (usize, Option<u32>),
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) -> (u64, Vec<u32>) {
        let (group, slo) = (self.wholes.setups[pipeline].group, self.wholes.setups[pipeline].slo);
        let deadline_at = slo.map_or(Timestamp::NEVER, |slo| now + self.objective(slo));
        meter.sent(now, self.models.len() + pipeline, group, false);
        let begun = self.wholes.begin((pipeline, client), now, deadline_at);
        if now < self.horizon_at && self.random.chance(self.faults.cancel_probability) {
            let within = slo.unwrap_or(PATIENCE_WITHOUT_DEADLINE).mul_f64(self.random.unit());
            agenda.add(now + within.max(self.network.control), Due::CancelWhole(begun.0));
        }
        begun
    }

    /// A stage begins with these calls for a model.
    pub(crate) fn begin_stage(
        &mut self,
        now: Timestamp,
        (whole, stage): (u64, u32),
        model_of: impl FnOnce(ModelId) -> u32,
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) -> Vec<RequestId> {
        let Some(calls) = self.wholes.calls(whole, stage) else { return Vec::new() };
        let Some(there) = self.wholes.get(whole) else { return Vec::new() };
        let (pipeline, whole_at) = (there.pipeline, there.deadline_at);
        let setup = &self.wholes.setups[pipeline];
        let model = model_of(setup.spec.stages[stage as usize].model);
        let within = setup.timeouts.as_ref().map(|timeouts| now + timeouts[stage as usize] + self.network.control);
        let deadline_at = within.map_or(whole_at, |at| at.min(whole_at));
        let mut sent = Vec::new();
        for _ in 0..calls {
            let living = Living {
                model,
                client: None,
                sent_at: now,
                deadline_at,
                rows: 1,
                priority: 0,
                ended_at: None,
                cold: false,
                probe: false,
                input: None,
                call: Some((whole, stage)),
            };
            match self.admit(living) {
                Some(id) => {
                    self.wholes.called(whole, id);
                    sent.push(id);
                }
                None => {
                    let answered_at = now + self.network.control;
                    self.end_whole(now, whole, (RequestEnding::Refused(Reason::QueueFull), answered_at), agenda, meter);
                    break;
                }
            }
        }
        if calls == 0 {
            let after = self.wholes.stage_ended(whole, stage);
            self.go_on(now, whole, after, agenda, meter);
        }
        sent
    }

    /// What the scheduler is told of a request that is alive. A call of a request that has ended it never hears of.
    pub(crate) fn submission(&mut self, id: RequestId, meter: &mut Meter) -> Option<Event> {
        let request = self.request(id)?;
        let (whole, stage) = match self.living_at(id)?.call {
            Some(call) => call,
            None => return Some(Event::Submitted(request)),
        };
        let there = self.wholes.get(whole)?;
        if there.ending.is_some() {
            self.free_slot(id);
            self.wholes.call_ended(whole, (stage, id), false);
            self.account(whole, meter);
            return None;
        }
        let pipeline = there.pipeline;
        let told = self.wholes.setups[pipeline].timeouts.is_none();
        let staged = || Event::StageSubmitted(request, Wholes::stage(pipeline, stage));
        Some(if told { staged() } else { Event::Submitted(request) })
    }

    /// The client of a whole request goes away.
    pub(crate) fn cancel_whole(&mut self, now: Timestamp, whole: u64, agenda: &mut Agenda, meter: &mut Meter) {
        if self.wholes.get(whole).is_some_and(|there| there.ending.is_none()) {
            self.end_whole(now, whole, (RequestEnding::Cancelled, now), agenda, meter);
        }
    }

    fn call_ended(
        &mut self,
        now: Timestamp,
        (whole, stage): (u64, u32),
        id: RequestId,
        outcome: Outcome,
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) {
        let ended = self.wholes.get(whole).is_none_or(|there| there.ending.is_some());
        let after = self.wholes.call_ended(whole, (stage, id), outcome == Outcome::Done);
        if !ended && outcome != Outcome::Done {
            let answered_at = now + self.network.control;
            self.end_whole(now, whole, (RequestEnding::of(outcome), answered_at), agenda, meter);
        } else {
            self.go_on(now, whole, after, agenda, meter);
        }
        self.account(whole, meter);
    }

    fn go_on(&mut self, now: Timestamp, whole: u64, after: AfterCall, agenda: &mut Agenda, meter: &mut Meter) {
        for (gap, stage) in after.next {
            agenda.add(now + gap, Due::Begin { whole, stage });
        }
        let Some(gap) = after.done else { return };
        let Some(there) = self.wholes.get(whole) else { return };
        let answered_at = there.executed_at.unwrap_or(now) + gap + self.network.control;
        let ending = if answered_at <= there.deadline_at { RequestEnding::Good } else { RequestEnding::Late };
        self.end_whole(now, whole, (ending, answered_at), agenda, meter);
    }

    /// A whole request has its outcome: its calls are of no use any more.
    fn end_whole(
        &mut self,
        now: Timestamp,
        whole: u64,
        (ending, answered_at): (RequestEnding, Timestamp),
        agenda: &mut Agenda,
        meter: &mut Meter,
    ) {
        self.wholes.end(whole, ending, answered_at);
        let client = self.wholes.get(whole).and_then(|there| there.client);
        for id in self.wholes.in_hand(whole) {
            agenda.add(now, Due::Cancel(id));
        }
        let refused = !matches!(ending, RequestEnding::Good | RequestEnding::Late);
        self.client_goes_on(client, answered_at, refused, agenda);
        self.account(whole, meter);
    }

    /// Counts a whole request once nothing of it is under way.
    fn account(&mut self, whole: u64, meter: &mut Meter) {
        let Some(there) = self.wholes.take_ended(whole) else { return };
        let Some((ending, answered_at)) = there.ending else { return };
        meter.ended(&Ended {
            model: self.models.len() + there.pipeline,
            group: self.wholes.setups[there.pipeline].group,
            sent_at: there.sent_at,
            deadline_at: there.deadline_at,
            answered_at,
            executed_at: there.executed_at.map(|at| at + self.network.control),
            cold: false,
            ending,
            work: there.work,
        });
    }

    fn client_goes_on(&mut self, client: Option<u32>, at: Timestamp, refused: bool, agenda: &mut Agenda) {
        if let (Some(closed), Some(client)) = (&mut self.closed, client) {
            agenda.add(at + closed.after(client, refused), Due::ClientSends(client));
        }
    }
}

fn by_application(inputs: impl Iterator<Item = (ModelId, DrawnInput)>) -> Vec<Measured> {
    let mut samples = BTreeMap::<(ModelId, u32), Vec<Sample>>::new();
    for (model, input) in inputs {
        let sample = Sample { size: input.size, alone: input.alone };
        samples.entry((model, input.application)).or_default().push(sample);
    }
    let measured =
        |((model, application), samples)| Measured { model, application: ApplicationId(application), samples };
    samples.into_iter().map(measured).collect()
}

fn probed(now: Timestamp, model: u32, outcome: Outcome) -> Result<(), Violation> {
    if outcome == Outcome::Done {
        return Ok(());
    }
    Err(Broken::NotServedAgain { model: ModelId(model), outcome }.at(now))
}
