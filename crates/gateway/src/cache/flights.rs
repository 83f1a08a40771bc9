//! Identical requests in flight: one is computed, and the others wait for its outputs.
//!
//! ```text
//!  first ────submitted──────────────outputs──> kept ──┬──> its answer
//!  second ──────waits──────────────────────────────────┴──> its answer, by its own deadline
//! ```
//!
//! A request only waits for one that the scheduler plans no later than it would plan itself: whose deadline isn't later
//! and whose priority isn't lower. Another is submitted, too, and whoever comes then may wait for it.
//!
//! Nobody is harmed by the one it waits for. If that is refused, each of the others is submitted on its own. If its
//! client goes away or its deadline passes, what is under way for it goes to the one of the others that is due first;
//! where an endpoint asks its members, that one begins anew, for all of them.
//!
//! The locks are held for a look into a table or a push. A request that comes only tries the first of them: if another
//! thread has it, it is computed alone.

use super::kept::KeptAnswer;
use super::key::{AnswerKey, KeyHash};
use base::Timestamp;
use controller::{Controller, Reply, Ticket};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use tokio::sync::oneshot;

/// So many wait for one at most (P9); the next is submitted.
const MOST_FOLLOWERS: usize = 1024;
/// Tables, so that io threads seldom meet.
const TABLES: usize = 16;

/// How urgent a request is to the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Urgency {
    /// As in Triton: 1 is the most urgent; 0 is behind all others.
    pub(crate) priority: u32,
    pub(crate) deadline_at: Timestamp,
}

impl Urgency {
    /// Whether it is planned no later than the other.
    fn covers(self, other: Self) -> bool {
        let level = |urgency: Self| urgency.priority.wrapping_sub(1);
        level(self) <= level(other) && self.deadline_at <= other.deadline_at
    }
}

/// What a request is to those that are the same.
pub(crate) enum Role {
    /// It is computed, and others may wait for it.
    Leads(FlightLead),
    /// It waits. Nothing is said if it is to be computed alone.
    Follows(oneshot::Receiver<FlightNews>),
    /// It is computed, and nobody waits for it.
    Alone,
}

/// What one that waits is told.
pub(crate) enum FlightNews {
    /// Here they are.
    Outputs(KeptAnswer),
    /// The one before is gone: what is under way for it is this one's now.
    Leads(FlightLead),
}

type Table = HashMap<AnswerKey, Arc<Flight>, KeyHash>;

/// The requests in flight that others may wait for.
#[derive(Default)]
pub(crate) struct Flights {
    tables: [Mutex<Table>; TABLES],
}

/// Requests with one key.
struct Flight {
    key: AnswerKey,
    /// Nothing when it is over.
    open: Mutex<Option<OpenFlight>>,
}

struct OpenFlight {
    /// Of the one that was submitted last.
    urgency: Urgency,
    followers: Vec<Follower>,
}

struct Follower {
    urgency: Urgency,
    tell: oneshot::Sender<FlightNews>,
}

impl Flight {
    fn open(&self) -> MutexGuard<'_, Option<OpenFlight>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out the first of those that wait, by when they are due.
    fn first_due(&self) -> Option<oneshot::Sender<FlightNews>> {
        let mut open = self.open();
        let followers = &mut open.as_mut()?.followers;
        let first = (0..followers.len()).min_by_key(|&at| followers[at].urgency.deadline_at)?;
        Some(followers.swap_remove(first).tell)
    }
}

impl Flights {
    fn table(&self, key: &AnswerKey) -> &Mutex<Table> {
        &self.tables[key.table(TABLES)]
    }

    /// What a request with this key is to others.
    pub(crate) fn join(self: &Arc<Self>, controller: &Controller, key: AnswerKey, urgency: Urgency) -> Role {
        let mut table = match self.table(&key).try_lock() {
            Ok(table) => table,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Role::Alone,
        };
        let lead = |flight: &Arc<Flight>| {
            let (flights, flight) = (Arc::clone(self), Arc::clone(flight));
            Role::Leads(FlightLead { flights, flight, controller: controller.clone(), under_way: None })
        };
        if let Some(flight) = table.get(&key)
            && let Some(open) = &mut *flight.open()
        {
            if open.followers.len() >= MOST_FOLLOWERS {
                open.followers.retain(|follower| !follower.tell.is_closed());
            }
            if open.urgency.covers(urgency) && open.followers.len() < MOST_FOLLOWERS {
                let (tell, news) = oneshot::channel();
                open.followers.push(Follower { urgency, tell });
                return Role::Follows(news);
            }
            open.urgency = urgency;
            return lead(flight);
        }
        let open = Mutex::new(Some(OpenFlight { urgency, followers: Vec::new() }));
        let flight = Arc::new(Flight { key, open });
        let role = lead(&flight);
        table.insert(key, flight);
        role
    }

    /// Ends a flight; those that wait in it.
    fn end(&self, flight: &Arc<Flight>) -> Vec<Follower> {
        let Some(OpenFlight { followers, .. }) = flight.open().take() else { return Vec::new() };
        let mut table = self.table(&flight.key).lock().unwrap_or_else(PoisonError::into_inner);
        if table.get(&flight.key).is_some_and(|known| Arc::ptr_eq(known, flight)) {
            table.remove(&flight.key);
        }
        followers
    }
}

/// What is under way for a request.
enum UnderWay {
    /// It was submitted.
    Submitted { answer: oneshot::Receiver<Reply>, ticket: Option<Ticket> },
    /// An endpoint asks its members. That ends with the request: whoever leads next begins anew.
    Asking,
}

/// The part of the request for which others wait. Dropped while its answer is under way, it goes to one of them;
/// dropped otherwise, each of them is computed alone.
pub(crate) struct FlightLead {
    flights: Arc<Flights>,
    flight: Arc<Flight>,
    controller: Controller,
    under_way: Option<UnderWay>,
}

impl FlightLead {
    /// It was submitted.
    pub(crate) fn submitted(&mut self, answer: oneshot::Receiver<Reply>, ticket: Option<Ticket>) {
        self.under_way = Some(UnderWay::Submitted { answer, ticket });
    }

    /// An endpoint asks its members, for a request that is so urgent. Who waited for a more urgent one and comes before
    /// this one is computed alone.
    pub(crate) fn asks(&mut self, urgency: Urgency) {
        self.under_way = Some(UnderWay::Asking);
        if let Some(open) = &mut *self.flight.open() {
            open.urgency = urgency;
            open.followers.retain(|follower| urgency.covers(follower.urgency));
        }
    }

    /// The answer that is under way, and what the controller knows it by; nothing if it has to be submitted.
    pub(crate) fn answer(&mut self) -> Option<(&mut oneshot::Receiver<Reply>, Option<Ticket>)> {
        match self.under_way.as_mut()? {
            UnderWay::Submitted { answer, ticket } => Some((answer, *ticket)),
            UnderWay::Asking => None,
        }
    }

    /// It is known what came of it.
    pub(crate) fn answered(&mut self) {
        self.under_way = None;
    }

    /// Gives the outputs to all that wait for them.
    pub(crate) fn share(self, outputs: &KeptAnswer) {
        for follower in self.flights.end(&self.flight) {
            // Fails only if nobody waits any more.
            let _ = follower.tell.send(FlightNews::Outputs(Arc::clone(outputs)));
        }
    }
}

impl Drop for FlightLead {
    fn drop(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            let (flights, flight) = (Arc::clone(&self.flights), Arc::clone(&self.flight));
            let mut lead = Self { flights, flight, controller: self.controller.clone(), under_way: Some(under_way) };
            while let Some(tell) = self.flight.first_due() {
                match tell.send(FlightNews::Leads(lead)) {
                    Err(FlightNews::Leads(back)) => lead = back,
                    Ok(()) | Err(FlightNews::Outputs(_)) => return,
                }
            }
            if let Some(UnderWay::Submitted { ticket: Some(ticket), .. }) = lead.under_way.take() {
                self.controller.cancel(ticket);
                self.controller.drive();
            }
        }
        // Those that wait hear nothing: each is computed alone.
        drop(self.flights.end(&self.flight));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_waits_for_none_that_is_planned_later_than_itself() {
        let urgency = |priority, deadline: u64| Urgency { priority, deadline_at: Timestamp::from_nanos(deadline) };
        let never = |priority| Urgency { priority, deadline_at: Timestamp::NEVER };
        let covers = |first: Urgency, second: Urgency| first.covers(second);
        assert!(covers(urgency(0, 5), urgency(0, 5)) && covers(urgency(0, 5), urgency(0, 6)));
        assert!(!covers(urgency(0, 6), urgency(0, 5)), "it is due before the other");
        assert!(covers(urgency(0, 5), never(0)) && covers(never(0), never(0)) && !covers(never(0), urgency(0, 5)));
        assert!(covers(urgency(1, 5), urgency(2, 5)) && !covers(urgency(2, 5), urgency(1, 5)), "1 is first");
        assert!(covers(urgency(7, 5), urgency(0, 5)) && !covers(urgency(0, 5), urgency(7, 5)), "0 is behind all");
    }
}
