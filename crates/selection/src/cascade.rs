//! Small models first: whether a larger one is asked after an answer that isn't sure enough.

use crate::table::CascadeTable;
use base::Duration;

/// From which confidence each stage's answer goes out.
#[derive(Clone, PartialEq, Debug)]
pub struct Cascade {
    /// One less than there are stages: the last stage's answer always goes out.
    enough: Vec<f64>,
}

impl Cascade {
    /// That of a table without mistakes.
    pub fn new(table: &CascadeTable) -> Self {
        Self { enough: table.stages.iter().filter_map(|stage| stage.enough).collect() }
    }

    /// Whether the next stage is asked after one that answered with that confidence, or that failed (`None`).
    ///
    /// `left` is the time until plans must be fulfilled, `None` without a deadline; `next` is when the next stage would
    /// answer as far as is known, from now on. Where nothing is known of it, it is asked: the scheduler refuses at once
    /// what can't be met. After an answer that stays below its confidence it is asked only if it would be in time, for
    /// the answer is there and isn't put at risk.
    pub fn goes_on(
        &self,
        stage: usize,
        confidence: Option<f64>,
        left: Option<Duration>,
        next: Option<Duration>,
    ) -> bool {
        let Some(&enough) = self.enough.get(stage) else { return false };
        let unsure = confidence.is_none_or(|confidence| confidence < enough);
        let in_time = match (left, next) {
            (Some(left), Some(next)) => next <= left,
            (Some(left), None) => left > Duration::ZERO,
            (None, _) => true,
        };
        unsure && in_time
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{CascadeStage, JudgedTable, Sureness};

    fn cascade() -> Cascade {
        let stage = |model: &str, enough| CascadeStage { model: model.to_owned(), enough };
        Cascade::new(&CascadeTable {
            stages: vec![stage("small", Some(0.9)), stage("middle", Some(0.8)), stage("large", None)],
            confidence: Sureness::Top,
            logits: false,
            judged: JudgedTable::default(),
        })
    }

    #[test]
    fn an_unsure_answer_goes_on_while_there_is_time() {
        let ms = |count| Some(Duration::from_millis(count));
        let cascade = cascade();
        assert!(!cascade.goes_on(0, Some(0.9), ms(50), ms(10)), "sure enough");
        assert!(cascade.goes_on(0, Some(0.89), ms(50), ms(50)));
        assert!(!cascade.goes_on(0, Some(0.1), ms(49), ms(50)), "it would be late");
        assert!(cascade.goes_on(0, Some(0.1), None, ms(5_000)), "nobody waits");
        assert!(cascade.goes_on(1, Some(0.79), ms(1), None) && !cascade.goes_on(1, Some(0.79), ms(0), None));
        assert!(cascade.goes_on(0, None, ms(50), ms(10)), "the small one failed");
        assert!(!cascade.goes_on(2, None, None, None), "there is nothing behind the last");
        assert!(!cascade.goes_on(99, Some(0.0), None, None));
    }
}
