//! One answer from several, of those that have arrived, and how sure it is.
//!
//! Of each row the weight of those that say what the answer says is what agrees. The *agreement* is its part of the
//! weight that has arrived, the *confidence* its part of all weight: who is missing agrees with nobody. Both are those
//! of the row for which they are least.

use crate::judge::{Code, Judge, Reads, Shown, last_dim, put_score, scores, texts};
use crate::table::CombineBy;
use base::DataType;
use std::collections::BTreeMap;

/// A member's part in an answer.
#[derive(Clone, Copy, Debug)]
pub struct Ballot<'a> {
    /// What it counts.
    pub weight: f64,
    /// What it gave, if it has arrived.
    pub given: Option<Shown<'a>>,
}

/// One answer.
#[derive(Clone, PartialEq, Debug)]
pub struct Combined {
    /// The output by which answers are compared, in the protocol's binary form; its type and shape are those of
    /// `speaker`'s.
    pub data: Vec<u8>,
    /// What it says.
    pub says: Vec<Code>,
    /// What each member says; `None` for those that haven't arrived, or gave what doesn't fit.
    pub said: Vec<Option<Vec<Code>>>,
    /// The heaviest of the members that agree most: the answer's other outputs are its.
    pub speaker: usize,
    /// The part of all weight that has arrived.
    pub arrived: f64,
    /// The part of the weight that has arrived that agrees.
    pub agreement: f64,
    /// The part of all weight that has arrived and agrees.
    pub confidence: f64,
}

/// Joins what has arrived; `None` where nothing has that can be read.
///
/// Members must have given the same type and shape: the heaviest that has arrived says which, and who gave another
/// counts as missing.
pub fn combine(judge: &Judge, by: CombineBy, ballots: &[Ballot<'_>]) -> Option<Combined> {
    let mut said: Vec<Option<Vec<Code>>> =
        ballots.iter().map(|ballot| judge.read(ballot.given.as_ref()?).ok()).collect();
    let heavier =
        |&left: &usize, &right: &usize| ballots[left].weight.total_cmp(&ballots[right].weight).then(right.cmp(&left));
    let heaviest = (0..ballots.len()).filter(|&member| said[member].is_some()).max_by(heavier)?;
    let form = ballots[heaviest].given?;
    let rows = said[heaviest].as_ref()?.len();
    let fits = |given: &Shown<'_>| given.datatype == form.datatype && given.shape == form.shape;
    for (codes, ballot) in said.iter_mut().zip(ballots) {
        // Rows are counted, too: nobody else has looked whether the elements are as many as the shape says.
        if !ballot.given.as_ref().is_some_and(fits) || codes.as_ref().is_some_and(|codes| codes.len() != rows) {
            *codes = None;
        }
    }
    let voters: Vec<Voter<'_>> = said
        .iter()
        .zip(ballots)
        .filter_map(|(codes, ballot)| {
            Some(Voter { weight: ballot.weight, codes: codes.as_ref()?, given: ballot.given? })
        })
        .collect();
    let answer = match by {
        CombineBy::Vote => vote(judge, &form, &voters)?,
        CombineBy::Average => average(judge, &form, &voters)?,
    };
    Some(counted(judge, ballots, said, answer))
}

/// An answer with the figures that belong to it. One of the members has arrived.
pub(crate) fn counted(
    judge: &Judge,
    ballots: &[Ballot<'_>],
    said: Vec<Option<Vec<Code>>>,
    (data, says): (Vec<u8>, Vec<Code>),
) -> Combined {
    let all: f64 = ballots.iter().map(|ballot| ballot.weight).sum();
    let voters: Vec<(usize, f64, &[Code])> = said
        .iter()
        .zip(ballots)
        .enumerate()
        .filter_map(|(member, (codes, ballot))| Some((member, ballot.weight, codes.as_deref()?)))
        .collect();
    let here: f64 = voters.iter().map(|(_, weight, _)| weight).sum();
    let agrees = (0..says.len()).map(|row| {
        voters.iter().map(|(_, weight, codes)| weight * (1.0 - judge.distance(codes[row], says[row]))).sum::<f64>()
    });
    let agrees = agrees.reduce(f64::min).unwrap_or(0.0);
    let part = |of: f64, all: f64| if all > 0.0 { (of / all).clamp(0.0, 1.0) } else { 0.0 };
    let (arrived, agreement, confidence) = (part(here, all), part(agrees, here), part(agrees, all));
    let nearer = |left: &&(usize, f64, &[Code]), right: &&(usize, f64, &[Code])| {
        let apart = |codes: &[Code]| judge.mean_distance(codes, &says);
        let (left_is, right_is) = (apart(left.2), apart(right.2));
        right_is.total_cmp(&left_is).then(left.1.total_cmp(&right.1)).then(right.0.cmp(&left.0))
    };
    let speaker = voters.iter().max_by(nearer).map_or(0, |(member, ..)| *member);
    Combined { data, says, said, speaker, arrived, agreement, confidence }
}

struct Voter<'a> {
    weight: f64,
    codes: &'a [Code],
    given: Shown<'a>,
}

/// For each row what the most weight says; of equals what comes first in the order of members.
fn vote(judge: &Judge, form: &Shown<'_>, voters: &[Voter<'_>]) -> Option<(Vec<u8>, Vec<Code>)> {
    let rows = voters.first()?.codes.len();
    let all: f64 = voters.iter().map(|voter| voter.weight).sum();
    let elements: Vec<Vec<&[u8]>> = match judge.reads {
        Reads::Labels => voters.iter().map(|voter| elements(&voter.given)).collect::<Option<_>>()?,
        Reads::Scores | Reads::Values { .. } => Vec::new(),
    };
    let (mut data, mut says) = (Vec::with_capacity(form.data.len()), Vec::with_capacity(rows));
    for row in 0..rows {
        let mut sums: BTreeMap<Code, f64> = BTreeMap::new();
        for voter in voters {
            *sums.entry(voter.codes[row]).or_default() += voter.weight;
        }
        let most = sums.values().copied().fold(f64::NEG_INFINITY, f64::max);
        let winner = voters.iter().position(|voter| sums[&voter.codes[row]] == most)?;
        match judge.reads {
            Reads::Labels => data.extend(elements[winner][row]),
            Reads::Scores => {
                for class in 0..last_dim(form).ok()? as u64 {
                    let part = sums.get(&class).copied().unwrap_or(0.0) / if all > 0.0 { all } else { 1.0 };
                    put_score(form.datatype, part, &mut data);
                }
            }
            Reads::Values { .. } => put_score(form.datatype, f64::from_bits(voters[winner].codes[row]), &mut data),
        }
        says.push(voters[winner].codes[row]);
    }
    Some((data, says))
}

/// The weighted mean of each element.
fn average(judge: &Judge, form: &Shown<'_>, voters: &[Voter<'_>]) -> Option<(Vec<u8>, Vec<Code>)> {
    let all: f64 = voters.iter().map(|voter| voter.weight).sum();
    // Where nobody has weight, all count alike.
    let part = |voter: &Voter<'_>| if all > 0.0 { voter.weight / all } else { 1.0 / voters.len() as f64 };
    let mut means: Vec<f64> = Vec::new();
    for voter in voters.iter().filter(|voter| part(voter) > 0.0) {
        let scores = scores(&voter.given).ok()?;
        means.resize(scores.len(), 0.0);
        means.iter_mut().zip(scores).for_each(|(mean, score)| *mean += part(voter) * score);
    }
    let mut data = Vec::with_capacity(form.data.len());
    means.iter().for_each(|&mean| put_score(form.datatype, mean, &mut data));
    let says = judge.read(&Shown { data: &data, ..*form }).ok()?;
    Some((data, says))
}

/// The elements of labels, as they are written.
fn elements<'a>(tensor: &Shown<'a>) -> Option<Vec<&'a [u8]>> {
    if tensor.datatype != DataType::Bytes {
        return Some(tensor.data.chunks_exact(tensor.datatype.size()?).collect());
    }
    let mut at = 0;
    let texts = texts(tensor).ok()?.into_iter();
    let element = |text: &[u8]| {
        let from = at;
        at += 4 + text.len();
        tensor.data.get(from..at)
    };
    texts.map(element).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LABELS: Judge = Judge { output: 0, reads: Reads::Labels, classes: None };
    const SCORES: Judge = Judge { output: 0, reads: Reads::Scores, classes: Some(2) };

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    fn bytes<'a>(weight: f64, data: &'a [u8], shape: &'a [i64]) -> Ballot<'a> {
        Ballot { weight, given: Some(Shown { datatype: DataType::Uint8, shape, data }) }
    }

    fn singles<'a>(weight: f64, data: &'a [u8], shape: &'a [i64]) -> Ballot<'a> {
        Ballot { weight, given: Some(Shown { datatype: DataType::Fp32, shape, data }) }
    }

    fn missing(weight: f64) -> Ballot<'static> {
        Ballot { weight, given: None }
    }

    #[test]
    fn the_most_weight_wins_each_row() {
        let shape = [3];
        let ballots = [bytes(2.0, &[1, 1, 5], &shape), bytes(1.5, &[2, 2, 5], &shape), bytes(1.0, &[2, 3, 5], &shape)];
        let combined = combine(&LABELS, CombineBy::Vote, &ballots).unwrap();
        assert_eq!((combined.data, combined.says), (vec![2, 1, 5], vec![2, 1, 5]));
        assert_eq!((combined.arrived, combined.agreement), (1.0, 2.0 / 4.5), "of the row that is least sure");
        assert_eq!(combined.speaker, 0, "two of three rows, and heavier than the second");
    }

    #[test]
    fn who_is_missing_agrees_with_nobody() {
        let shape = [1];
        let ballots = [bytes(1.0, &[1], &shape), missing(2.0), bytes(1.0, &[1], &shape)];
        let combined = combine(&LABELS, CombineBy::Vote, &ballots).unwrap();
        assert_eq!((combined.arrived, combined.agreement, combined.confidence), (0.5, 1.0, 0.5));
        assert_eq!(combine(&LABELS, CombineBy::Vote, &[missing(1.0), missing(1.0)]), None);
    }

    #[test]
    fn what_does_not_fit_the_heaviest_counts_as_missing() {
        let (one, two) = ([1], [2]);
        let ballots = [bytes(1.0, &[1, 1], &two), bytes(2.0, &[7], &one), singles(1.0, &[0; 4], &one)];
        let combined = combine(&LABELS, CombineBy::Vote, &ballots).unwrap();
        assert_eq!((combined.says, combined.arrived), (vec![7], 0.5));
        assert_eq!(combined.said, [None, Some(vec![7]), None]);
    }

    #[test]
    fn votes_on_scores_become_parts_of_the_weight() {
        let (left, right, shape) = (floats(&[0.9, 0.1]), floats(&[0.4, 0.6]), [1, 2]);
        let ballots = [singles(1.0, &left, &shape), singles(3.0, &right, &shape)];
        let combined = combine(&SCORES, CombineBy::Vote, &ballots).unwrap();
        assert_eq!((combined.data, combined.says), (floats(&[0.25, 0.75]), vec![1]));
        let averaged = combine(&SCORES, CombineBy::Average, &ballots[..1]).unwrap();
        assert_eq!(averaged.data, left);
        let ballots = [singles(1.0, &left, &shape), singles(1.0, &right, &shape)];
        let averaged = combine(&SCORES, CombineBy::Average, &ballots).unwrap();
        assert_eq!((averaged.says, averaged.agreement), (vec![0], 0.5));
    }

    #[test]
    fn strings_are_elected_whole() {
        let strings = |texts: &[&str]| -> Vec<u8> {
            texts.iter().flat_map(|text| [&(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat()).collect()
        };
        let (left, right, shape) = (strings(&["cat", ""]), strings(&["dog", "x"]), [2]);
        let given = |data| Some(Shown { datatype: DataType::Bytes, shape: &shape, data });
        let ballots = [Ballot { weight: 1.0, given: given(&left) }, Ballot { weight: 2.0, given: given(&right) }];
        assert_eq!(combine(&LABELS, CombineBy::Vote, &ballots).unwrap().data, right);
    }

    #[test]
    fn values_agree_as_far_as_they_are_near() {
        let judge = Judge { output: 0, reads: Reads::Values { scale: 4.0 }, classes: None };
        let (left, right, shape) = (floats(&[1.0]), floats(&[3.0]), [1]);
        let ballots = [singles(1.0, &left, &shape), singles(1.0, &right, &shape)];
        let combined = combine(&judge, CombineBy::Average, &ballots).unwrap();
        assert_eq!((combined.data, combined.agreement), (floats(&[2.0]), 0.75));
    }

    proptest! {
        #[test]
        fn a_confidence_is_what_it_says(members in prop::collection::vec((0.0..10.0f64, prop::option::of(0u8..4)), 1..8)) {
            let data: Vec<Option<[u8; 1]>> = members.iter().map(|(_, code)| code.map(|code| [code])).collect();
            let shape = [1];
            let ballots: Vec<Ballot<'_>> = members.iter().zip(&data).map(|((weight, _), data)| Ballot {
                weight: *weight,
                given: data.as_ref().map(|data| Shown { datatype: DataType::Uint8, shape: &shape, data }),
            }).collect();
            let Some(combined) = combine(&LABELS, CombineBy::Vote, &ballots) else {
                prop_assert!(members.iter().all(|(_, code)| code.is_none()));
                return Ok(());
            };
            let of = |code: u64| -> f64 { members.iter().filter(|(_, c)| c.map(u64::from) == Some(code)).map(|(w, _)| w).sum() };
            let all: f64 = members.iter().map(|(weight, _)| weight).sum();
            let won = of(combined.says[0]);
            prop_assert!((0..4).all(|code| of(code) <= won + 1e-9));
            prop_assert!(all == 0.0 || (combined.confidence - won / all).abs() < 1e-9);
            prop_assert!(combined.confidence <= combined.agreement + 1e-9 && combined.confidence <= combined.arrived + 1e-9);
            prop_assert_eq!(combined.said[combined.speaker].as_deref(), Some(&combined.says[..]));
        }

        #[test]
        fn no_bytes_break_it(left in prop::collection::vec(any::<u8>(), 0..24), right in prop::collection::vec(any::<u8>(), 0..24), kind in 0usize..14, reads in 0usize..3, average: bool) {
            let datatype = DataType::ALL[kind];
            let reads = [Reads::Scores, Reads::Labels, Reads::Values { scale: 1.0 }][reads];
            let shape = [2, 2];
            let ballot = |data| Ballot { weight: 1.0, given: Some(Shown { datatype, shape: &shape, data }) };
            let by = if average { CombineBy::Average } else { CombineBy::Vote };
            let _ = combine(&Judge { output: 0, reads, classes: None }, by, &[ballot(&left), ballot(&right)]);
        }
    }
}
