//! The line that is shown while load is generated.

use crate::driver::LoadRun;
use crate::stats::Stats;
use base::Duration;
use indicatif::{ProgressBar, ProgressStyle};
use std::rc::Rc;
use tokio::task::JoinHandle;

/// Shows a line on standard error until it is dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    task: JoinHandle<()>,
}

impl ProgressLine {
    pub fn start(run: Rc<LoadRun>, duration: Duration) -> Self {
        let bar = ProgressBar::new(duration.as_nanos());
        bar.set_style(
            ProgressStyle::with_template("{bar:20} {msg}").expect("the template is valid").progress_chars("━━ "),
        );
        let task = tokio::task::spawn_local(update(run, duration, bar.clone()));
        Self { bar, task }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.task.abort();
        self.bar.finish_and_clear();
    }
}

async fn update(run: Rc<LoadRun>, duration: Duration, bar: ProgressBar) {
    let mut before = (0, 0, 0);
    let mut looked_at = Duration::ZERO;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let now = run.now();
        let sum = |count: fn(&Stats) -> u64| run.stats.borrow().iter().map(count).sum::<u64>();
        let counts = (sum(|s| s.sent), sum(|s| s.good), sum(Stats::refusals));
        let span = (now - looked_at).as_secs_f64();
        let rate = |now: u64, before: u64| (now - before) as f64 / span;
        let open = sum(Stats::open);
        bar.set_position(now.min(duration).as_nanos());
        bar.set_message(format!(
            "{:.0}/{:.0} s  sent {:.0}/s  good {:.0}/s  refused {:.0}/s  open {open}",
            now.as_secs_f64(),
            duration.as_secs_f64(),
            rate(counts.0, before.0),
            rate(counts.1, before.1),
            rate(counts.2, before.2),
        ));
        before = counts;
        looked_at = now;
    }
}
