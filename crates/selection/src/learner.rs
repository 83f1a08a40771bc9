//! What is learnt from feedback: who is asked next (Exp3), or what each expert's advice counts (Exp4).
//!
//! Feedback may come late, in any order, or never: an answer keeps the probability with which it was chosen, and what
//! has no feedback moves nothing. So nothing is assumed of answers that nobody judged; where users speak up only about
//! bad answers, losses are those of answers that were spoken about.
//!
//! Exp4's experts are the members and one more, their *vote*: each member counts by the logarithm of its odds to be
//! right, as learnt. The members alone would let the weights go to the best of them, and the answer would be as good as
//! that one; with the vote among the experts it is as good as the vote where that is better.

use crate::answers::Answered;
use crate::combine::{Ballot, Combined, combine, counted};
use crate::contexts::Contexts;
use crate::experts::{Experts, Learning};
use crate::judge::{Code, Judge, Shown};
use crate::split::Split;
use crate::table::{AnswerBy, CombineBy, Exp3Table, Exp4Table, PolicyTable};

/// Rates of errors are taken to be at least this, and at most 1 less this: nobody counts for everything.
const LEAST_ERROR: f64 = 0.02;
/// What a member's vote counts at least, as a logarithm of odds.
const LEAST_VOTE: f64 = 0.01;

/// Weights that feedback moves.
#[derive(Clone, Debug)]
pub struct Learner {
    members: usize,
    learning: Learning,
    /// Of Exp4, how answers are made.
    advised: Option<(AnswerBy, CombineBy)>,
    contexts: Contexts,
}

/// The member that answers a request.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Chosen {
    /// Which.
    pub member: usize,
    /// With which probability it was chosen.
    pub probability: f64,
}

/// What Exp4's experts count for one request.
#[derive(Clone, PartialEq, Debug)]
pub struct Advice {
    by: (AnswerBy, CombineBy),
    /// Each expert's part of the weight: the members, and their vote.
    experts: Vec<f64>,
    /// What each member counts in the vote; the sum is 1.
    votes: Vec<f64>,
}

/// What feedback says.
#[derive(Clone, PartialEq, Debug)]
pub enum Truth {
    /// What each row should have said.
    Rows(Vec<Code>),
    /// How bad the answer was, from 0 to 1.
    Loss(f64),
}

/// What feedback says of a member.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct MemberLoss {
    /// Which.
    pub member: usize,
    /// From 0 to 1.
    pub loss: f64,
}

impl Truth {
    /// A loss, if it is one.
    pub fn loss(loss: f64) -> Result<Self, String> {
        if (0.0..=1.0).contains(&loss) {
            return Ok(Self::Loss(loss));
        }
        Err(format!("the loss is {loss}: write a number from 0 (as it should be) to 1 (entirely wrong)"))
    }

    /// What it says of each member that it says something of. Members that were asked and weren't there in time lost:
    /// an answer that comes too late is none.
    pub fn losses(&self, judge: Option<&Judge>, answered: &Answered) -> Result<Vec<MemberLoss>, String> {
        let missing = answered.missing.iter().map(|&member| MemberLoss { member, loss: 1.0 });
        match self {
            Self::Loss(loss) => {
                let spoke = |(member, said): (usize, &Option<Box<[Code]>>)| {
                    let spoke =
                        answered.chosen.map_or(said.as_ref() == Some(&answered.answer), |chosen| chosen == member);
                    spoke.then_some(MemberLoss { member, loss: *loss })
                };
                Ok(answered.said.iter().enumerate().filter_map(spoke).chain(missing).collect())
            }
            Self::Rows(truth) => {
                let judge = judge.ok_or("labels can't be compared with this endpoint's outputs: give a loss, or say in the endpoint's file by which output answers are judged")?;
                if truth.len() != answered.answer.len() {
                    let (labels, rows) = (truth.len(), answered.answer.len());
                    return Err(format!("there are {labels} labels for an answer with {rows}: give one for each"));
                }
                let loss = |(member, said): (usize, &Option<Box<[Code]>>)| {
                    Some(MemberLoss { member, loss: judge.mean_distance(said.as_ref()?, truth) })
                };
                Ok(answered.said.iter().enumerate().filter_map(loss).chain(missing).collect())
            }
        }
    }
}

impl Learner {
    /// That of an `exp3` endpoint.
    pub fn exp3(table: &Exp3Table) -> Self {
        let (members, learning) = (table.members.len(), Learning { rate: table.rate, share: table.share });
        let contexts = if table.by.is_some() { table.contexts } else { 0 };
        Self { members, learning, advised: None, contexts: Contexts::new(contexts, Experts::even(members, 0)) }
    }

    /// That of an `exp4` endpoint.
    pub fn exp4(table: &Exp4Table) -> Self {
        let (members, learning) = (table.members.len(), Learning { rate: table.rate, share: table.share });
        let contexts = if table.by.is_some() { table.contexts } else { 0 };
        let experts = Experts::even(members + 1, members);
        let advised = Some((table.answer, table.combine));
        Self { members, learning, advised, contexts: Contexts::new(contexts, experts) }
    }

    /// One of that kind with so many members, to read into what was saved; `None` for kinds that don't learn.
    pub fn of_members(table: &PolicyTable, members: usize) -> Option<Self> {
        let names = vec![String::new(); members];
        match table {
            PolicyTable::Exp3(table) => Some(Self::exp3(&Exp3Table { members: names, ..table.clone() })),
            PolicyTable::Exp4(table) => Some(Self::exp4(&Exp4Table { members: names, ..table.clone() })),
            _ => None,
        }
    }

    /// Takes over what another of the same kind has learnt: `from[i]` is who member `i` was there.
    pub fn take_over(&mut self, old: Self, from: &[Option<usize>]) {
        let same = old.members == self.members && from.iter().enumerate().all(|(new, &old)| old == Some(new));
        let mut from = from.to_vec();
        if self.advised.is_some() {
            from.push(Some(old.members));
        }
        let counted = if self.advised.is_some() { self.members } else { 0 };
        self.contexts.take_over(old.contexts, (!same).then_some((&from, counted)));
    }

    /// The weights of every context.
    pub fn contexts(&mut self) -> &mut Contexts {
        &mut self.contexts
    }

    /// What each member counts now, for those that have no weights of their own.
    pub fn shared(&self) -> Vec<f64> {
        let mut parts = self.contexts.shared().parts();
        parts.truncate(self.members);
        parts
    }

    /// Of Exp3: who answers a request of that context, by a number in `[0, 1)`.
    pub fn choose(&mut self, context: Option<u128>, unit: f64) -> Chosen {
        let parts = self.contexts.of(context).parts();
        let member = Split::new(parts.iter().copied()).choose(unit);
        Chosen { member, probability: parts[member] }
    }

    /// Of Exp4: what experts count for a request of that context. Taken when the answer is made, or before.
    pub fn advice(&mut self, context: Option<u128>, judge: &Judge) -> Advice {
        let by = self.advised.unwrap_or_default();
        let experts = self.contexts.of(context);
        let vote = |&error: &f64| {
            let error = error.clamp(LEAST_ERROR, 1.0 - LEAST_ERROR);
            let others = judge.classes.unwrap_or(2).max(2) as f64 - 1.0;
            libm::log((1.0 - error) / error * others).max(LEAST_VOTE)
        };
        let mut votes: Vec<f64> = experts.errors().iter().map(vote).collect();
        let sum: f64 = votes.iter().sum();
        votes.iter_mut().for_each(|vote| *vote /= sum);
        Advice { by, experts: experts.parts(), votes }
    }

    /// Moves weights by feedback for one answer: what it said of each member, or why it says nothing.
    pub fn learn(
        &mut self,
        judge: Option<&Judge>,
        answered: &Answered,
        truth: &Truth,
    ) -> Result<Vec<MemberLoss>, String> {
        let losses = truth.losses(judge, answered)?;
        let (learning, members) = (self.learning, self.members);
        // A loss of what was drawn stands for those that weren't, the less probable it was the more.
        let seen = match truth {
            Truth::Rows(_) if self.advised.is_some() => 1.0,
            Truth::Loss(_) if matches!(self.advised, Some((AnswerBy::Best, _))) => {
                return Err("this endpoint's answers are the best of its members' (answer = \"best\"), so that a loss says nothing of the others: give the true label".to_owned());
            }
            Truth::Rows(_) | Truth::Loss(_) => 1.0 / (answered.probability + learning.explore()),
        };
        let weighed = |loss: &MemberLoss| {
            let here = answered.missing.contains(&loss.member);
            (loss.member, if here { loss.loss } else { loss.loss * seen })
        };
        self.contexts.change(answered.context, |experts| {
            experts.charge(learning, losses.iter().map(weighed));
            losses
                .iter()
                .filter(|loss| loss.member < members)
                .for_each(|loss| experts.count_error(loss.member, loss.loss));
        });
        Ok(losses.into_iter().filter(|loss| loss.member < members).collect())
    }
}

impl Advice {
    /// What each member counts: by itself, and as a part of the vote.
    pub fn weights(&self) -> Vec<f64> {
        let vote = self.experts.last().copied().unwrap_or(0.0);
        self.experts.iter().zip(&self.votes).map(|(expert, votes)| expert + vote * votes).collect()
    }

    /// One answer from what has arrived, and what is to be remembered of it for feedback. `unit` is a number in `[0,
    /// 1)`.
    pub fn answer(
        &self,
        judge: &Judge,
        given: &[Option<Shown<'_>>],
        context: Option<u128>,
        unit: f64,
    ) -> Option<(Combined, Answered)> {
        let ballots = |weights: &[f64]| -> Vec<Ballot<'_>> {
            weights.iter().zip(given).map(|(&weight, &given)| Ballot { weight, given }).collect()
        };
        let (answer_by, combine_by) = self.by;
        let weights = ballots(&self.weights());
        let vote = combine(judge, combine_by, &ballots(&self.votes))?;
        let mut experts: Vec<Option<Vec<Code>>> = vote.said.clone();
        experts.push(Some(vote.says.clone()));
        let combined = match answer_by {
            AnswerBy::Best => combine(judge, combine_by, &weights)?,
            AnswerBy::Drawn => {
                let here =
                    experts.iter().zip(&self.experts).map(|(said, part)| if said.is_some() { *part } else { 0.0 });
                let drawn = Split::new(here).choose(unit);
                let answer = match given.get(drawn).copied().flatten() {
                    Some(own) => (own.data.to_vec(), experts[drawn].clone()?),
                    None => (vote.data, vote.says),
                };
                counted(judge, &weights, vote.said, answer)
            }
        };
        let here = |said: &&Option<Vec<Code>>| said.is_some();
        let parts = |says: &dyn Fn(&Option<Vec<Code>>) -> bool| -> f64 {
            experts.iter().zip(&self.experts).filter(|(said, _)| says(said)).map(|(_, part)| part).sum()
        };
        let arrived = parts(&|said| here(&said));
        let probability = match answer_by {
            AnswerBy::Best => 1.0,
            AnswerBy::Drawn => parts(&|said| said.as_ref() == Some(&combined.says)) / arrived,
        };
        let missing = (0..self.votes.len()).filter(|&member| experts[member].is_none()).collect();
        let said = experts.into_iter().map(|said| said.map(Vec::into_boxed_slice)).collect();
        let answer = combined.says.clone().into_boxed_slice();
        Some((combined, Answered { context, chosen: None, probability, said, answer, missing }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Reads;
    use crate::table::JudgedTable;
    use base::DataType;
    use workload::Random;

    const JUDGE: Judge = Judge { output: 0, reads: Reads::Labels, classes: Some(10) };

    fn exp3(members: usize, by: Option<&str>) -> Learner {
        Learner::exp3(&Exp3Table {
            members: vec![String::new(); members],
            by: by.map(str::to_owned),
            contexts: 100,
            rate: Learning::DEFAULT.rate,
            share: Learning::DEFAULT.share,
            judged: JudgedTable::default(),
        })
    }

    fn exp4(members: usize, answer: AnswerBy) -> Learner {
        Learner::exp4(&Exp4Table {
            members: vec![String::new(); members],
            by: None,
            contexts: 0,
            rate: Learning::DEFAULT.rate,
            share: Learning::DEFAULT.share,
            answer,
            combine: CombineBy::Vote,
            least: 1,
            judged: JudgedTable::default(),
        })
    }

    fn one(context: Option<u128>, chosen: Chosen, said: Code, members: usize) -> Answered {
        let mut all = vec![None; members];
        all[chosen.member] = Some(vec![said].into());
        Answered {
            context,
            chosen: Some(chosen.member),
            probability: chosen.probability,
            said: all,
            answer: vec![said].into(),
            missing: Vec::new(),
        }
    }

    #[test]
    fn exp3_finds_the_best_by_losses_that_come_late_and_not_for_all() {
        let (mut learner, mut random) = (exp3(4, None), Random::new(1, 1));
        let mut waiting = std::collections::VecDeque::new();
        let mut chosen_best = 0;
        for round in 0..5_000 {
            let chosen = learner.choose(None, random.unit());
            let loss = f64::from(u8::from(random.chance([0.5, 0.4, 0.1, 0.5][chosen.member])));
            chosen_best += u32::from(round >= 2_000 && chosen.member == 2);
            waiting.push_back((one(None, chosen, 0, 4), loss));
            if waiting.len() > 50 {
                let (answered, loss) = waiting.pop_front().unwrap();
                // Every third never hears of it.
                if !random.chance(0.33) {
                    learner.learn(None, &answered, &Truth::loss(loss).unwrap()).unwrap();
                }
            }
        }
        assert!(chosen_best > 2_500, "{chosen_best} of the last 3,000");
    }

    #[test]
    fn users_who_differ_get_different_models() {
        let (mut learner, mut random) = (exp3(2, Some("user")), Random::new(2, 1));
        for _ in 0..1_000 {
            for user in [7, 8] {
                let chosen = learner.choose(Some(user), random.unit());
                let said = u64::from(user == 7) ^ chosen.member as u64;
                let truth = Truth::Rows(vec![1]);
                learner.learn(Some(&JUDGE), &one(Some(user), chosen, said, 2), &truth).unwrap();
            }
        }
        let best = |learner: &mut Learner, user| {
            (0..100).filter(|i| learner.choose(Some(user), f64::from(*i) / 100.0).member == 0).count()
        };
        assert!(best(&mut learner, 7) > 90 && best(&mut learner, 8) < 10);
    }

    fn given(says: &[Option<[u8; 1]>]) -> Vec<Option<Shown<'_>>> {
        says.iter()
            .map(|byte| byte.as_ref().map(|data| Shown { datatype: DataType::Uint8, shape: &[1], data }))
            .collect()
    }

    /// Ten classes; each member is right with its own probability, and wrong anywhere.
    fn says(random: &mut Random, truth: u8, right: &[f64]) -> Vec<Option<[u8; 1]>> {
        let one =
            |&right: &f64| Some([if random.chance(right) { truth } else { (truth + 1 + random.below(9) as u8) % 10 }]);
        right.iter().map(one).collect()
    }

    fn exp4_errors(answer: AnswerBy, with_label: bool) -> (u32, u32) {
        let (mut learner, mut random) = (exp4(5, answer), Random::new(3, 1));
        let right = [0.75, 0.7, 0.7, 0.65, 0.3];
        let (mut wrong, mut best_wrong) = (0, 0);
        for round in 0..8_000 {
            let truth = random.below(10) as u8;
            let says = says(&mut random, truth, &right);
            let advice = learner.advice(None, &JUDGE);
            let (combined, answered) = advice.answer(&JUDGE, &given(&says), None, random.unit()).unwrap();
            let is_wrong = combined.says[0] != u64::from(truth);
            if round >= 4_000 {
                wrong += u32::from(is_wrong);
                best_wrong += u32::from(says[0] != Some([truth]));
            }
            let truth = if with_label {
                Truth::Rows(vec![u64::from(truth)])
            } else {
                Truth::Loss(f64::from(u8::from(is_wrong)))
            };
            learner.learn(Some(&JUDGE), &answered, &truth).unwrap();
        }
        (wrong, best_wrong)
    }

    #[test]
    fn exp4_is_better_than_its_best_member() {
        let (wrong, best) = exp4_errors(AnswerBy::Best, true);
        assert!(f64::from(wrong) < 0.7 * f64::from(best), "{wrong} beside {best} of 4,000");
        let (wrong, best) = exp4_errors(AnswerBy::Drawn, true);
        assert!(f64::from(wrong) < 0.8 * f64::from(best), "drawn: {wrong} beside {best} of 4,000");
    }

    #[test]
    fn exp4_learns_from_losses_of_drawn_answers() {
        let (wrong, best) = exp4_errors(AnswerBy::Drawn, false);
        assert!(f64::from(wrong) < 1.1 * f64::from(best), "{wrong} beside {best} of 4,000");
    }

    #[test]
    fn a_loss_of_what_was_not_drawn_is_refused() {
        let mut learner = exp4(2, AnswerBy::Best);
        let says = [Some([1]), Some([2])];
        let (_, answered) = learner.advice(None, &JUDGE).answer(&JUDGE, &given(&says), None, 0.5).unwrap();
        let before = learner.shared();
        assert!(learner.learn(Some(&JUDGE), &answered, &Truth::Loss(1.0)).unwrap_err().contains("true label"));
        assert!(learner.learn(Some(&JUDGE), &answered, &Truth::Rows(vec![1, 2])).unwrap_err().contains("2 labels"));
        assert!(learner.learn(None, &answered, &Truth::Rows(vec![1])).is_err());
        assert_eq!(learner.shared(), before);
    }

    #[test]
    fn who_never_arrives_loses_its_weight() {
        let mut learner = exp4(3, AnswerBy::Best);
        for _ in 0..200 {
            let says = [Some([1]), Some([1]), None];
            let (combined, answered) = learner.advice(None, &JUDGE).answer(&JUDGE, &given(&says), None, 0.5).unwrap();
            assert_eq!((combined.agreement, answered.missing.as_slice()), (1.0, &[2][..]));
            learner.learn(Some(&JUDGE), &answered, &Truth::Rows(vec![1])).unwrap();
        }
        let weights = learner.advice(None, &JUDGE).weights();
        assert!(weights[2] < 0.1, "{weights:?}");
    }

    #[test]
    fn losses_are_from_0_to_1() {
        for wrong in [f64::NAN, -0.1, 1.1, f64::INFINITY] {
            assert!(Truth::loss(wrong).unwrap_err().contains("from 0"), "{wrong}");
        }
    }
}
