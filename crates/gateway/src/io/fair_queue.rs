//! Jobs of many clients for one worker: whose turn it is follows from what each has had.
//!
//! Among clients, and then among the connections of one, whoever has had least time goes first; where that is equal,
//! the smaller job. Whoever comes anew, or comes back, starts level with those that are served, not with what it didn't
//! use. (Start-time fair queueing, with the time that jobs took in place of their lengths.)

use std::collections::{HashMap, VecDeque};

/// Where somebody without jobs is forgotten, unless it has had more than others.
const KNOWN: usize = 1024;

/// The jobs that wait.
#[derive(Debug)]
pub(crate) struct FairQueue<J> {
    clients: HashMap<usize, ClientLine<J>>,
    /// What those had had who were served last.
    level: u64,
    next_ticket: u64,
}

/// The jobs of one connection, first come, first served.
type ConnectionLine<J> = WaitingLine<VecDeque<QueuedWork<J>>>;
/// The connections of one client.
type ClientLine<J> = WaitingLine<HashMap<u64, ConnectionLine<J>>>;

/// Somebody's jobs, or those of several.
#[derive(Debug, Default)]
struct WaitingLine<T> {
    /// The time that it has had.
    spent: u64,
    /// What those in it had had who were served last.
    level: u64,
    waiting: usize,
    inner: T,
}

#[derive(Debug)]
struct QueuedWork<J> {
    ticket: u64,
    bytes: usize,
    work: J,
}

/// Who pays for a job: a client, by one of its connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Payer {
    /// The client.
    pub(crate) client: usize,
    /// Its connection.
    pub(crate) connection: u64,
}

impl<J> Default for FairQueue<J> {
    fn default() -> Self {
        Self { clients: HashMap::new(), level: 0, next_ticket: 0 }
    }
}

impl<J> FairQueue<J> {
    /// A job waits; it can be taken back by the number that is returned.
    pub(crate) fn push(&mut self, payer: Payer, bytes: usize, work: J) -> u64 {
        self.forget();
        self.next_ticket += 1;
        let client = self.clients.entry(payer.client).or_default();
        client.join(self.level);
        let level = client.level;
        let connection = client.inner.entry(payer.connection).or_default();
        connection.join(level);
        connection.inner.push_back(QueuedWork { ticket: self.next_ticket, bytes, work });
        self.next_ticket
    }

    /// The job whose turn it is, and who pays for it.
    pub(crate) fn pop(&mut self) -> Option<(Payer, J)> {
        let waits = self.clients.iter().filter(|(_, client)| client.waiting > 0);
        let (&client, _) = waits.min_by_key(|(_, client)| (client.spent, client.smallest()))?;
        let line = self.clients.get_mut(&client)?;
        let waits = line.inner.iter().filter(|(_, connection)| connection.waiting > 0);
        let (&connection, _) = waits.min_by_key(|(_, connection)| (connection.spent, connection.first()))?;
        let inner = line.inner.get_mut(&connection)?;
        let job = inner.inner.pop_front()?;
        inner.waiting -= 1;
        line.waiting -= 1;
        line.level = line.level.max(inner.spent);
        self.level = self.level.max(line.spent);
        Some((Payer { client, connection }, job.work))
    }

    /// A job took this long.
    pub(crate) fn pay(&mut self, payer: Payer, spent: u64) {
        let Some(client) = self.clients.get_mut(&payer.client) else { return };
        client.spent += spent;
        if let Some(connection) = client.inner.get_mut(&payer.connection) {
            connection.spent += spent;
        }
    }

    /// Takes back a job whose turn hasn't come.
    pub(crate) fn take_back(&mut self, payer: Payer, ticket: u64) -> Option<J> {
        let client = self.clients.get_mut(&payer.client)?;
        let connection = client.inner.get_mut(&payer.connection)?;
        let place = connection.inner.iter().position(|job| job.ticket == ticket)?;
        connection.waiting -= 1;
        client.waiting -= 1;
        connection.inner.remove(place).map(|job| job.work)
    }

    /// Forgets those who have nothing here and had no more than others.
    fn forget(&mut self) {
        let connections: usize = self.clients.values().map(|client| client.inner.len()).sum();
        if connections < KNOWN {
            return;
        }
        let level = self.level;
        for client in self.clients.values_mut() {
            let level = client.level;
            client.inner.retain(|_, connection| connection.waiting > 0 || connection.spent > level);
        }
        self.clients.retain(|_, client| client.waiting > 0 || client.spent > level);
        // More than that can only have come and gone: what they had is forgotten rather than kept for ever.
        if self.clients.values().map(|client| client.inner.len()).sum::<usize>() >= KNOWN {
            self.clients.values_mut().for_each(|client| client.inner.retain(|_, connection| connection.waiting > 0));
            self.clients.retain(|_, client| client.waiting > 0);
        }
    }
}

impl<T> WaitingLine<T> {
    fn join(&mut self, level: u64) {
        if self.waiting == 0 {
            self.spent = self.spent.max(level);
        }
        self.waiting += 1;
    }
}

impl<J> ConnectionLine<J> {
    /// The size of its next job, and when that came.
    fn first(&self) -> Option<(usize, u64)> {
        self.inner.front().map(|job| (job.bytes, job.ticket))
    }
}

impl<J> ClientLine<J> {
    /// The size of the next job, and when that came, of those of its connections that have had least.
    fn smallest(&self) -> Option<(usize, u64)> {
        let waiting = self.inner.values().filter(|connection| connection.waiting > 0);
        waiting.min_by_key(|connection| (connection.spent, connection.first()))?.first()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payer(client: usize, connection: u64) -> Payer {
        Payer { client, connection }
    }

    /// Serves the next job, which takes that long; says whose it was.
    fn serve(queue: &mut FairQueue<&'static str>, cost: impl Fn(&str) -> u64) -> &'static str {
        let (payer, work) = queue.pop().unwrap();
        queue.pay(payer, cost(work));
        work
    }

    fn cost(work: &str) -> u64 {
        if work == "bomb" { 100 } else { 1 }
    }

    /// How many bombs are served before a good request, at most, once each bomber had one.
    fn most_before(bombers: &[Payer], good: Payer) -> usize {
        let mut queue = FairQueue::default();
        for &bomber in bombers {
            queue.push(bomber, 10, "bomb");
        }
        for &bomber in bombers {
            assert_eq!(serve(&mut queue, cost), "bomb");
            queue.push(bomber, 10, "bomb");
        }
        let mut most = 0;
        for _ in 0..100 {
            queue.push(good, 1000, "good");
            let mut before = 0;
            while serve(&mut queue, cost) == "bomb" {
                before += 1;
                queue.push(bombers[before % bombers.len()], 10, "bomb");
            }
            most = most.max(before);
        }
        most
    }

    #[test]
    fn sixteen_clients_with_bombs_hold_up_nobody_else() {
        let connections: Vec<_> = (1..=16).map(|number| payer(0, number)).collect();
        assert!(most_before(&connections, payer(0, 99)) <= 1, "connections of the same client");
        assert!(most_before(&connections, payer(1, 99)) <= 1, "connections of another client");
        let clients: Vec<_> = (1..=16).map(|number| payer(number, number as u64)).collect();
        assert!(most_before(&clients, payer(99, 99)) <= 1, "other clients");
    }

    #[test]
    fn small_ones_go_before_large_ones_of_those_who_had_equally_much() {
        let mut queue = FairQueue::default();
        for (number, bytes) in [(1, 300), (2, 100), (3, 200)] {
            queue.push(payer(0, number), bytes, bytes);
            queue.push(payer(number as usize, 0), bytes + 1000, bytes + 1000);
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|(_, work)| work).collect();
        assert_eq!(order, [100, 200, 300, 1100, 1200, 1300]);
    }

    #[test]
    fn whoever_pauses_saves_nothing_up() {
        let mut queue = FairQueue::default();
        let (busy, late) = (payer(1, 1), payer(2, 2));
        for _ in 0..100 {
            queue.push(busy, 1, "busy");
            serve(&mut queue, |_| 10);
        }
        for _ in 0..4 {
            queue.push(late, 1, "late");
            queue.push(busy, 1, "busy");
        }
        let order: Vec<_> = (0..8).map(|_| serve(&mut queue, |_| 10)).collect();
        assert_eq!(order.iter().take(4).filter(|&&who| who == "late").count(), 2, "{order:?}");
    }

    #[test]
    fn what_is_taken_back_is_not_done_and_nobody_is_kept_for_ever() {
        let mut queue = FairQueue::default();
        let ticket = queue.push(payer(1, 1), 1, "x");
        assert_eq!(queue.take_back(payer(1, 1), ticket), Some("x"));
        assert_eq!(queue.take_back(payer(1, 1), ticket), None);
        assert!(queue.pop().is_none());
        for number in 0..100_000 {
            queue.push(payer(number, 1), 1, "x");
            serve(&mut queue, |_| 100);
        }
        assert!(queue.clients.len() <= KNOWN, "{}", queue.clients.len());
    }
}
