//! How far a long start is, in one line now and then: how many models are done, and which of them are slow.

use base::Duration;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Instant;

/// How often something is said.
const LINE_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

/// What is told of a model.
enum Told {
    Begun(String),
    Ended(String),
}

/// Says every ten seconds how far a start is, until it is dropped. A start that takes less says nothing.
pub(crate) struct StartLines {
    told: Option<Sender<Told>>,
    thread: Option<JoinHandle<()>>,
}

impl StartLines {
    /// For a start with so many models.
    pub(crate) fn new(total: usize) -> Self {
        let (told, models) = mpsc::channel();
        let thread = std::thread::Builder::new().name("progress".into()).spawn(move || {
            let mut start = LongStart::new(total);
            let started_at = Instant::now();
            let mut next_line = LINE_EVERY;
            loop {
                let now = || Duration::from(started_at.elapsed());
                match models.recv_timeout(next_line.saturating_sub(started_at.elapsed())) {
                    Ok(Told::Begun(model)) => start.begin(model, now()),
                    Ok(Told::Ended(model)) => start.end(&model, now()),
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        tracing::info!("{}", start.line(now()));
                        next_line += LINE_EVERY;
                    }
                }
            }
        });
        // Without a thread there are no lines; the start itself goes on.
        Self { told: Some(told), thread: thread.ok() }
    }

    /// A model's turn has come.
    pub(crate) fn begin(&self, model: &str) {
        self.tell(Told::Begun(model.to_owned()));
    }

    /// It is ready, or can't be.
    pub(crate) fn end(&self, model: &str) {
        self.tell(Told::Ended(model.to_owned()));
    }

    fn tell(&self, news: Told) {
        if let Some(told) = &self.told {
            // Fails only where there is no thread.
            let _ = told.send(news);
        }
    }
}

impl Drop for StartLines {
    fn drop(&mut self) {
        self.told = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What is known of a start under way. Instants are counted from its beginning.
struct LongStart {
    total: usize,
    done: usize,
    /// The models that are worked on, and since when; who began first comes first.
    current: Vec<(String, Duration)>,
    /// The one that took longest, and how long.
    slowest: Option<(String, Duration)>,
}

impl LongStart {
    fn new(total: usize) -> Self {
        Self { total, done: 0, current: Vec::new(), slowest: None }
    }

    fn begin(&mut self, model: String, now: Duration) {
        self.current.push((model, now));
    }

    fn end(&mut self, model: &str, now: Duration) {
        let Some(position) = self.current.iter().position(|(name, _)| name == model) else { return };
        let (name, since) = self.current.remove(position);
        self.done += 1;
        let took = now - since;
        if self.slowest.as_ref().is_none_or(|(_, longest)| took > *longest) {
            self.slowest = Some((name, took));
        }
    }

    fn line(&self, now: Duration) -> String {
        let Self { total, done, current, slowest } = self;
        let mut line = format!("{done} of {total} models are done after {:.0} s", now.as_secs_f64());
        if let Some((name, since)) = current.first() {
            line += &format!("; {name} is being prepared for {:.0} s", (now - *since).as_secs_f64());
            if current.len() > 1 {
                line += &format!(", and as the first of {}", current.len());
            }
        }
        if let Some((name, took)) = slowest {
            line += &format!("; {name} took longest, {:.1} s", took.as_secs_f64());
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_start_says_how_far_it_is_and_what_is_slow() {
        let mut start = LongStart::new(12);
        let at = Duration::from_millis;
        assert_eq!(start.line(at(10_000)), "0 of 12 models are done after 10 s");
        start.begin("quick".into(), at(0));
        start.end("quick", at(500));
        start.begin("slow".into(), at(500));
        start.begin("last".into(), at(600));
        start.end("slow", at(8_600));
        let line = "2 of 12 models are done after 20 s; last is being prepared for 19 s; slow took longest, 8.1 s";
        assert_eq!(start.line(at(20_000)), line);
        start.begin("late".into(), at(9_000));
        let line = "2 of 12 models are done after 10 s; last is being prepared for 9 s, and as the first of 2; slow took longest, 8.1 s";
        assert_eq!(start.line(at(10_000)), line);
        start.end("nobody", at(10_000));
        assert_eq!(start.line(at(10_000)), line);
    }
}
