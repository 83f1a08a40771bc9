//! One of several models for one task: the most accurate that is predicted to be in time, the cheapest where time is
//! plenty.

use crate::table::VariantsTable;
use base::Duration;

/// Variants of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct Variants {
    members: Vec<Variant>,
    loose: Option<Duration>,
    enough: f64,
}

#[derive(Clone, PartialEq, Debug)]
struct Variant {
    accuracy: f64,
    cost: Option<f64>,
}

/// What is expected of a variant now.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Prediction {
    /// When its answer would be there, from now on; `None` where nothing is known.
    pub answers_in: Option<Duration>,
    /// What it computes; `None` where nothing is known.
    pub computes: Option<Duration>,
    /// Whether it can be asked at all.
    pub ready: bool,
}

impl Variants {
    /// Those of a table without mistakes.
    pub fn new(table: &VariantsTable) -> Self {
        Self {
            members: table.members.iter().map(|m| Variant { accuracy: m.accuracy, cost: m.cost }).collect(),
            loose: table.loose_ms.map(Duration::from_millis_f64),
            enough: table.enough,
        }
    }

    /// Who is asked, with so much time left; `None` where nobody is ready.
    ///
    /// Without a deadline, or with one as loose as the table says: the cheapest that is accurate enough, because nobody
    /// is in a hurry and others need the devices. Else the most accurate that is predicted to be in time, of equals the
    /// cheapest. Where none is predicted to be in time, the one that is there first: it may be in time all the same,
    /// and whoever refuses it says when it could be.
    pub fn choose(&self, left: Option<Duration>, predictions: &[Prediction]) -> Option<usize> {
        let ready: Vec<usize> =
            (0..self.members.len()).filter(|&member| predictions.get(member).is_some_and(|p| p.ready)).collect();
        let cheaper =
            |&left: &usize, &right: &usize| self.cost(left, predictions).total_cmp(&self.cost(right, predictions));
        let more_accurate = |&left: &usize, &right: &usize| {
            self.members[right].accuracy.total_cmp(&self.members[left].accuracy).then(cheaper(&left, &right))
        };
        let is_loose = left.is_none_or(|left| self.loose.is_some_and(|loose| left >= loose));
        let in_time = |member: &usize| match (left, predictions[*member].answers_in) {
            (Some(left), Some(answers_in)) => answers_in <= left,
            (None, _) | (_, None) => true,
        };
        if is_loose {
            let enough = |member: &usize| self.members[*member].accuracy >= self.enough && in_time(member);
            if let Some(cheapest) = ready.iter().copied().filter(enough).min_by(cheaper) {
                return Some(cheapest);
            }
        }
        ready.iter().copied().filter(in_time).min_by(more_accurate).or_else(|| {
            let soonest = |&member: &usize| predictions[member].answers_in;
            ready.iter().copied().min_by_key(soonest)
        })
    }

    /// What a request costs: as the table says, or the time that it computes. What isn't known is dear.
    fn cost(&self, member: usize, predictions: &[Prediction]) -> f64 {
        let computes = || predictions.get(member)?.computes.map(Duration::as_secs_f64);
        self.members[member].cost.or_else(computes).unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::VariantMember;

    fn variants(loose_ms: Option<f64>, enough: f64) -> Variants {
        let member = |model: &str, accuracy| VariantMember { model: model.to_owned(), accuracy, cost: None };
        let members = vec![member("small", 0.6), member("middle", 0.7), member("large", 0.8)];
        Variants::new(&VariantsTable { members, loose_ms, enough })
    }

    fn predicted(answers_ms: [u64; 3]) -> [Prediction; 3] {
        let computes = [1, 5, 20].map(|ms| Some(Duration::from_millis(ms)));
        let mut all = [Prediction { ready: true, ..Prediction::default() }; 3];
        for (prediction, (ms, computes)) in all.iter_mut().zip(answers_ms.into_iter().zip(computes)) {
            *prediction = Prediction { answers_in: Some(Duration::from_millis(ms)), computes, ready: true };
        }
        all
    }

    #[test]
    fn the_most_accurate_that_is_in_time() {
        let choose = |left, answers| variants(None, 0.0).choose(Some(Duration::from_millis(left)), &predicted(answers));
        assert_eq!(choose(30, [2, 8, 25]), Some(2));
        assert_eq!(choose(24, [2, 8, 25]), Some(1));
        assert_eq!(choose(5, [2, 8, 25]), Some(0));
        assert_eq!(choose(40, [2, 80, 250]), Some(0), "queues count, not only what it computes");
        assert_eq!(choose(1, [9, 8, 25]), Some(1), "nobody would be in time: who is there first");
    }

    #[test]
    fn who_is_in_no_hurry_gets_the_cheapest_that_is_good_enough() {
        let answers = predicted([2, 8, 25]);
        assert_eq!(variants(None, 0.0).choose(None, &answers), Some(0));
        assert_eq!(variants(None, 0.65).choose(None, &answers), Some(1));
        let second = Some(Duration::from_secs(1));
        assert_eq!(variants(Some(500.0), 0.65).choose(second, &answers), Some(1));
        assert_eq!(variants(Some(5_000.0), 0.65).choose(second, &answers), Some(2), "that isn't loose");
    }

    #[test]
    fn who_is_not_ready_is_not_asked() {
        let mut answers = predicted([2, 8, 25]);
        answers[2].ready = false;
        assert_eq!(variants(None, 0.0).choose(Some(Duration::from_secs(1)), &answers), Some(1));
        assert_eq!(variants(None, 0.75).choose(None, &answers), Some(1), "the most accurate that there is");
        assert_eq!(variants(None, 0.0).choose(None, &[Prediction::default(); 3]), None);
        assert_eq!(variants(None, 0.0).choose(None, &[]), None);
    }

    #[test]
    fn of_equals_the_cheapest() {
        let member = |model: &str, cost| VariantMember { model: model.to_owned(), accuracy: 0.7, cost: Some(cost) };
        let table = VariantsTable { members: vec![member("a", 3.0), member("b", 2.0)], loose_ms: None, enough: 0.0 };
        let chosen = Variants::new(&table).choose(Some(Duration::from_secs(1)), &predicted([1, 1, 1])[..2]);
        assert_eq!(chosen, Some(1));
    }
}
