//! The calls that share a connection: whose answers move, and whose are cut off.

use crate::Config;
use crate::io::movement::{Movement, is_over};
use std::time::Duration;
use tokio::task::AbortHandle;

/// A call's place among those of its connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StreamKey(usize);

/// The calls of one connection that aren't over.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Places that are free are kept for others.
    places: Vec<Option<Stream>>,
    free: Vec<usize>,
    newest: usize,
}

#[derive(Debug, Default)]
struct Stream {
    /// What reads, answers and writes it.
    task: Option<AbortHandle>,
    /// How its answer moves, while there is something for the client to take.
    answer: Option<Movement>,
}

impl Streams {
    /// A call begins.
    pub(crate) fn begin(&mut self) -> StreamKey {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() - 1
        });
        self.places[place] = Some(Stream::default());
        self.newest = place;
        StreamKey(place)
    }

    /// The call that began last runs as this task.
    pub(crate) fn run(&mut self, task: AbortHandle) {
        if let Some(Some(stream)) = self.places.get_mut(self.newest) {
            stream.task = Some(task);
        }
    }

    /// So many more bytes of a call's answer are for the client to take.
    pub(crate) fn answer(&mut self, key: StreamKey, now: u32, bytes: usize) {
        if let Some(Some(stream)) = self.places.get_mut(key.0) {
            stream.answer.get_or_insert_with(|| Movement::new(now)).moves(now, bytes);
        }
    }

    /// There is nothing for the client to take until the server has more.
    pub(crate) fn wait(&mut self, key: StreamKey) {
        if let Some(Some(stream)) = self.places.get_mut(key.0) {
            stream.answer = None;
        }
    }

    /// A call is over; says whether it was the last one.
    pub(crate) fn end(&mut self, key: StreamKey) -> bool {
        if self.places.get_mut(key.0).and_then(Option::take).is_some() {
            self.free.push(key.0);
        }
        self.free.len() == self.places.len()
    }

    /// Ends the calls whose answers move too slowly: the client is told, and other calls go on.
    pub(crate) fn cut_off(&self, now: u32, config: &Config) {
        for stream in self.places.iter().flatten() {
            if let (Some(answer), Some(task)) = (&stream.answer, &stream.task)
                && answer.is_overdue(now, config)
            {
                task.abort();
            }
        }
    }

    /// How many answers have stood still for this long.
    pub(crate) fn still(&self, now: u32, patience: Duration) -> usize {
        let answers = self.places.iter().flatten().filter_map(|stream| stream.answer);
        answers.filter(|answer| is_over(answer.stood(now), patience)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> tokio::task::JoinHandle<()> {
        tokio::spawn(std::future::pending())
    }

    #[tokio::test]
    async fn only_the_call_whose_answer_stands_still_is_cut_off() {
        let config = Config { body_timeout: Duration::from_secs(30), ..Config::default() };
        let mut streams = Streams::default();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let (key, task) = (streams.begin(), task());
                streams.run(task.abort_handle());
                (key, task)
            })
            .collect();
        // The first one is computed, the second one moves, the third one doesn't.
        streams.answer(tasks[0].0, 0, 10);
        streams.wait(tasks[0].0);
        streams.answer(tasks[1].0, 0, 10);
        streams.answer(tasks[2].0, 0, 10);
        streams.answer(tasks[1].0, 20, 1 << 20);
        streams.cut_off(30, &config);
        tokio::task::yield_now().await;
        assert!(tasks.iter().all(|(_, task)| !task.is_finished()));
        assert_eq!(streams.still(30, Duration::from_secs(15)), 1);
        streams.cut_off(31, &config);
        tokio::task::yield_now().await;
        assert_eq!(tasks.iter().map(|(_, task)| task.is_finished()).collect::<Vec<_>>(), [false, false, true]);
    }

    #[tokio::test]
    async fn places_are_used_again() {
        let mut streams = Streams::default();
        let (first, second) = (streams.begin(), streams.begin());
        assert!(!streams.end(first));
        assert_eq!(streams.begin(), first);
        assert!(!streams.end(second));
        assert!(streams.end(first));
        assert!(streams.end(first), "nothing is left, however often it ends");
        assert_eq!(streams.free.len(), 2);
    }
}
