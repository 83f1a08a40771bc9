//! Closed-loop clients: each waits for its answer, thinks, and asks again.

use crate::Random;
use base::Duration;

/// How long a client waits between an answer and its next request.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub enum Think {
    /// Not at all.
    #[default]
    None,
    /// Always that long.
    Fixed(Duration),
    /// That long on average, exponentially distributed.
    Exponential(Duration),
}

/// A fixed number of clients. The driver asks it when each client sends next.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    clients: Vec<Client>,
    think: Think,
    backoff: Duration,
}

#[derive(Clone, Debug)]
struct Client {
    model: u32,
    random: Random,
}

impl ClosedLoop {
    /// Clients for each `(model, how many)`. A client that is refused waits at least `backoff`, which must not be zero:
    /// a refusal takes no time, so that client would ask for ever at the same virtual instant.
    pub fn new(clients: impl IntoIterator<Item = (u32, u32)>, think: Think, backoff: Duration, seed: u64) -> Self {
        assert!(backoff > Duration::ZERO, "a refused client must wait for some time");
        let mut all = Vec::new();
        for (model, count) in clients {
            for _ in 0..count {
                all.push(Client { model, random: Random::new(seed, all.len() as u64) });
            }
        }
        Self { clients: all, think, backoff }
    }

    /// How many clients there are; they are numbered from 0.
    pub fn clients(&self) -> u32 {
        self.clients.len() as u32
    }

    /// The model that this client asks for.
    pub fn model(&self, client: u32) -> u32 {
        self.clients[client as usize].model
    }

    /// How long after the start this client sends first: clients that think start out of step.
    pub fn first(&mut self, client: u32) -> Duration {
        let random = &mut self.clients[client as usize].random;
        match self.think {
            Think::None => Duration::ZERO,
            Think::Fixed(span) => span.mul_f64(random.unit()),
            Think::Exponential(mean) => mean.mul_f64(random.exponential()),
        }
    }

    /// How long after its answer this client sends again.
    pub fn after(&mut self, client: u32, refused: bool) -> Duration {
        let random = &mut self.clients[client as usize].random;
        let think = match self.think {
            Think::None => Duration::ZERO,
            Think::Fixed(span) => span,
            Think::Exponential(mean) => mean.mul_f64(random.exponential()),
        };
        if refused { think.max(self.backoff) } else { think }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_counted_out_per_model() {
        let closed = ClosedLoop::new([(4, 2), (9, 1)], Think::None, Duration::from_millis(1), 1);
        assert_eq!((0..closed.clients()).map(|client| closed.model(client)).collect::<Vec<_>>(), [4, 4, 9]);
    }

    #[test]
    fn a_refused_client_always_lets_time_pass() {
        let mut closed = ClosedLoop::new([(0, 1)], Think::None, Duration::from_millis(1), 1);
        assert_eq!(closed.after(0, true), Duration::from_millis(1));
        assert_eq!(closed.after(0, false), Duration::ZERO);
        let think = Think::Fixed(Duration::from_millis(5));
        let mut thinking = ClosedLoop::new([(0, 1)], think, Duration::from_millis(1), 1);
        assert_eq!(thinking.after(0, true), Duration::from_millis(5));
    }
}
