//! What an `endpoint.toml` says of how the endpoint selects among its members, and what is wrong with that.

use crate::MOST_MEMBERS;
use crate::experts::Learning;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeSet;

/// Weights of contexts that one endpoint may keep: contexts times members. 8 bytes each.
const MOST_WEIGHTS: usize = 16 << 20;

/// How an endpoint selects among its members.
#[derive(Clone, PartialEq, Debug)]
pub enum PolicyTable {
    /// One model.
    Fixed(FixedTable),
    /// One model by weighted chance, or by a key.
    Split(SplitTable),
    /// One model; others are asked the same, and only compared.
    Shadow(ShadowTable),
    /// One model, chosen by what feedback says of those that were chosen.
    Exp3(Exp3Table),
    /// All models, weighted by what feedback says of each.
    Exp4(Exp4Table),
    /// All models, by vote or average.
    Ensemble(EnsembleTable),
    /// One after the other, until one is sure.
    Cascade(CascadeTable),
    /// One of several that differ in accuracy and time.
    Variants(VariantsTable),
}

/// One model: an endpoint's name for it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FixedTable {
    /// Which.
    pub model: String,
}

/// A part of the requests for each member.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SplitTable {
    /// Whom.
    pub members: Vec<WeightedMember>,
    /// The request's parameter whose value decides, so that who sends the same value stays with the same member;
    /// absent: chance decides.
    pub by: Option<String>,
}

/// A member and its weight.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(from = "WeightedOfFile")]
pub struct WeightedMember {
    /// Which model.
    pub model: String,
    /// Its part of the sum of all weights.
    pub weight: f64,
}

/// The same as files have it.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a member is the name of a model, or a table with its `model` and maybe a `weight`"
)]
enum WeightedOfFile {
    Name(String),
    Table {
        model: String,
        #[serde(default = "one")]
        weight: f64,
    },
}

impl From<WeightedOfFile> for WeightedMember {
    fn from(file: WeightedOfFile) -> Self {
        match file {
            WeightedOfFile::Name(model) => Self { model, weight: one() },
            WeightedOfFile::Table { model, weight } => Self { model, weight },
        }
    }
}

/// A member of which there is nothing else to say, as files have it.
#[derive(Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "a member is the name of a model, or a table with its `model` and nothing else"
)]
enum NameOfFile {
    Name(String),
    Table { model: String },
}

fn names<'de, D: Deserializer<'de>>(file: D) -> Result<Vec<String>, D::Error> {
    let name = |member| match member {
        NameOfFile::Name(model) | NameOfFile::Table { model } => model,
    };
    Ok(Vec::deserialize(file)?.into_iter().map(name).collect())
}

/// A model that answers, and those that only get copies.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowTable {
    /// Who answers.
    pub model: String,
    /// Who gets copies.
    #[serde(deserialize_with = "names")]
    pub shadows: Vec<String>,
    /// The part of the requests that is copied.
    #[serde(default = "one")]
    pub fraction: f64,
    /// By what answers are compared.
    #[serde(default)]
    pub judged: JudgedTable,
}

/// A bandit over models: one is asked, and what feedback says of its answer moves the chances.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exp3Table {
    /// Whom.
    #[serde(deserialize_with = "names")]
    pub members: Vec<String>,
    /// The request's parameter whose values have weights of their own, as `user`; absent: one for all.
    pub by: Option<String>,
    /// How many values of it have weights of their own; those that were used least recently go.
    #[serde(default = "default_contexts")]
    pub contexts: usize,
    /// How much one loss moves a weight.
    #[serde(default = "default_rate")]
    pub rate: f64,
    /// The part of all weight that is dealt out evenly with each feedback, so that who was bad can come back.
    #[serde(default = "default_share")]
    pub share: f64,
    /// By what a true label is compared with an answer.
    #[serde(default)]
    pub judged: JudgedTable,
}

/// Experts whose advice is weighted by feedback: every member, and their vote by learnt accuracy.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exp4Table {
    /// Whom.
    #[serde(deserialize_with = "names")]
    pub members: Vec<String>,
    /// As in [`Exp3Table`].
    pub by: Option<String>,
    /// As in [`Exp3Table`].
    #[serde(default = "default_contexts")]
    pub contexts: usize,
    /// As in [`Exp3Table`].
    #[serde(default = "default_rate")]
    pub rate: f64,
    /// As in [`Exp3Table`].
    #[serde(default = "default_share")]
    pub share: f64,
    /// How the answer comes from the advice.
    #[serde(default)]
    pub answer: AnswerBy,
    /// How members' outputs become one.
    #[serde(default)]
    pub combine: CombineBy,
    /// How many members must have arrived for an answer.
    #[serde(default = "one_member")]
    pub least: usize,
    /// By what answers are compared.
    #[serde(default)]
    pub judged: JudgedTable,
}

/// How Exp4's answer comes from its experts' advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerBy {
    /// What the most weight is for. Feedback must be a label: a loss of an answer that wasn't drawn says nothing of the
    /// others.
    #[default]
    Best,
    /// What a drawn expert says. Feedback may be a label or a loss.
    Drawn,
}

/// All members, and one answer from them.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnsembleTable {
    /// Whom, and what each counts.
    pub members: Vec<WeightedMember>,
    /// How.
    #[serde(default)]
    pub combine: CombineBy,
    /// How many members must have arrived for an answer.
    #[serde(default = "one_member")]
    pub least: usize,
    /// By what answers are compared.
    #[serde(default)]
    pub judged: JudgedTable,
}

/// How outputs of several members become one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CombineBy {
    /// What the most weight says. Scores become the part of the weight that is for each class.
    #[default]
    Vote,
    /// The weighted mean.
    Average,
}

/// Small models first.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CascadeTable {
    /// From the smallest up.
    pub stages: Vec<CascadeStage>,
    /// What a stage's confidence is.
    #[serde(default)]
    pub confidence: Sureness,
    /// Whether scores are logits, so that a softmax makes them probabilities.
    #[serde(default)]
    pub logits: bool,
    /// The output with the scores.
    #[serde(default)]
    pub judged: JudgedTable,
}

/// One model of a cascade.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CascadeStage {
    /// Which.
    pub model: String,
    /// From this confidence up its answer goes out; absent for the last.
    pub enough: Option<f64>,
}

/// How sure scores are, in `[0, 1]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sureness {
    /// The highest score.
    #[default]
    Top,
    /// The highest less the second.
    Margin,
}

/// Models for one task that differ in accuracy and time.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantsTable {
    /// Whom.
    pub members: Vec<VariantMember>,
    /// A request with this much time, or with no deadline, gets the cheapest; absent: only one with no deadline.
    pub loose_ms: Option<f64>,
    /// The accuracy that the cheapest must have.
    #[serde(default)]
    pub enough: f64,
}

/// One variant.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantMember {
    /// Which model.
    pub model: String,
    /// How often it is right, or any figure that is higher for the better.
    pub accuracy: f64,
    /// What a request costs; absent: the time that it is predicted to compute.
    pub cost: Option<f64>,
}

/// By what two answers are compared.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgedTable {
    /// The output; absent: the only one.
    pub output: Option<String>,
    /// What it has: `scores` (a class for each place of the last dimension), `labels` or `values`; absent: by its type
    /// and shape.
    pub reads: Option<String>,
    /// Of values: those that are so far apart, or further, have nothing in common.
    pub scale: Option<f64>,
}

/// One element of an output that goes out when no member has arrived.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(untagged)]
pub enum DefaultElement {
    /// `true`
    Flag(bool),
    /// `3`
    Whole(i64),
    /// `0.5`
    Number(f64),
    /// `"cat"`
    Text(String),
}

fn one() -> f64 {
    1.0
}

fn one_member() -> usize {
    1
}

fn default_contexts() -> usize {
    10_000
}

fn default_rate() -> f64 {
    Learning::DEFAULT.rate
}

fn default_share() -> f64 {
    Learning::DEFAULT.share
}

impl PolicyTable {
    /// The kinds that there are.
    pub const KINDS: [&str; 8] = ["fixed", "split", "shadow", "exp3", "exp4", "ensemble", "cascade", "variants"];

    /// Reads what a file of that kind says; `None` where there is no such kind. It isn't checked yet.
    pub fn read<'de, D: Deserializer<'de>>(kind: &str, file: D) -> Result<Option<Self>, D::Error> {
        Ok(Some(match kind {
            "fixed" => Self::Fixed(Deserialize::deserialize(file)?),
            "split" => Self::Split(Deserialize::deserialize(file)?),
            "shadow" => Self::Shadow(Deserialize::deserialize(file)?),
            "exp3" => Self::Exp3(Deserialize::deserialize(file)?),
            "exp4" => Self::Exp4(Deserialize::deserialize(file)?),
            "ensemble" => Self::Ensemble(Deserialize::deserialize(file)?),
            "cascade" => Self::Cascade(Deserialize::deserialize(file)?),
            "variants" => Self::Variants(Deserialize::deserialize(file)?),
            _ => return Ok(None),
        }))
    }

    /// Its name in the file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Fixed(_) => "fixed",
            Self::Split(_) => "split",
            Self::Shadow(_) => "shadow",
            Self::Exp3(_) => "exp3",
            Self::Exp4(_) => "exp4",
            Self::Ensemble(_) => "ensemble",
            Self::Cascade(_) => "cascade",
            Self::Variants(_) => "variants",
        }
    }

    /// The models that it asks, in the order in which they are numbered.
    pub fn members(&self) -> Vec<&str> {
        match self {
            Self::Fixed(table) => vec![&table.model],
            Self::Split(SplitTable { members, .. }) | Self::Ensemble(EnsembleTable { members, .. }) => {
                members.iter().map(|member| &*member.model).collect()
            }
            Self::Shadow(table) => [&table.model].into_iter().chain(&table.shadows).map(String::as_str).collect(),
            Self::Exp3(Exp3Table { members, .. }) | Self::Exp4(Exp4Table { members, .. }) => {
                members.iter().map(String::as_str).collect()
            }
            Self::Cascade(table) => table.stages.iter().map(|stage| &*stage.model).collect(),
            Self::Variants(table) => table.members.iter().map(|member| &*member.model).collect(),
        }
    }

    /// The request's parameter whose value it goes by.
    pub fn by(&self) -> Option<&str> {
        match self {
            Self::Split(SplitTable { by, .. })
            | Self::Exp3(Exp3Table { by, .. })
            | Self::Exp4(Exp4Table { by, .. }) => by.as_deref(),
            Self::Fixed(_) | Self::Shadow(_) | Self::Ensemble(_) | Self::Cascade(_) | Self::Variants(_) => None,
        }
    }

    /// By what answers are compared, where they are.
    pub fn judged(&self) -> Option<&JudgedTable> {
        match self {
            Self::Shadow(ShadowTable { judged, .. })
            | Self::Exp3(Exp3Table { judged, .. })
            | Self::Exp4(Exp4Table { judged, .. })
            | Self::Ensemble(EnsembleTable { judged, .. })
            | Self::Cascade(CascadeTable { judged, .. }) => Some(judged),
            Self::Fixed(_) | Self::Split(_) | Self::Variants(_) => None,
        }
    }

    /// How outputs become one, where they do.
    pub fn combine(&self) -> Option<CombineBy> {
        match self {
            Self::Exp4(Exp4Table { combine, .. }) | Self::Ensemble(EnsembleTable { combine, .. }) => Some(*combine),
            _ => None,
        }
    }

    /// What is wrong with it whatever its members are, a sentence each.
    pub fn mistakes(&self) -> Vec<String> {
        let mut found = Mistakes { sentences: Vec::new() };
        found.members(&self.members(), if matches!(self, Self::Fixed(_)) { 1 } else { 2 });
        match self {
            Self::Fixed(_) => {}
            Self::Split(table) => found.weights(&table.members),
            Self::Shadow(table) => {
                found.within("fraction", table.fraction, 0.0, 1.0, "the part of the requests that is copied");
            }
            Self::Exp3(table) => found.learning(table.rate, table.share, table.contexts, table.members.len()),
            Self::Exp4(table) => {
                found.learning(table.rate, table.share, table.contexts, table.members.len());
                found.least(table.least, table.members.len());
            }
            Self::Ensemble(table) => {
                found.weights(&table.members);
                found.least(table.least, table.members.len());
            }
            Self::Cascade(table) => found.cascade(table),
            Self::Variants(table) => found.variants(table),
        }
        if let Some(by) = self.by()
            && (by.is_empty() || by.starts_with("triton_"))
        {
            let help = "write the name of a request's parameter, as in by = \"user\"";
            found.add(format!("by is {by:?}: {help}"));
        }
        if let Some(judged) = self.judged() {
            found.judged(judged);
        }
        found.sentences
    }
}

struct Mistakes {
    sentences: Vec<String>,
}

impl Mistakes {
    fn add(&mut self, what: impl Into<String>) {
        self.sentences.push(what.into());
    }

    fn members(&mut self, names: &[&str], least: usize) {
        if names.len() < least {
            self.add(format!("it has {} members: it needs {least} at least", names.len()));
        }
        if names.len() > MOST_MEMBERS {
            self.add(format!("it has {} members: {MOST_MEMBERS} at most", names.len()));
        }
        if names.iter().any(|name| name.is_empty()) {
            self.add("a member has no name: write the name of a model, as in \"resnet50\"");
        }
        let mut seen = BTreeSet::new();
        let twice: BTreeSet<_> = names.iter().filter(|name| !seen.insert(**name)).collect();
        for name in twice {
            self.add(format!("model {name:?} is a member twice: name it once"));
        }
    }

    fn within(&mut self, name: &str, value: f64, least: f64, most: f64, what: &str) {
        if !(least..=most).contains(&value) {
            self.add(format!("{name} is {value}: write {what}, from {least} to {most}"));
        }
    }

    fn weights(&mut self, members: &[WeightedMember]) {
        for WeightedMember { model, weight } in members {
            if !(weight.is_finite() && *weight >= 0.0) {
                self.add(format!("the weight of {model:?} is {weight}: write a number from 0 up"));
            }
        }
        let sum: f64 = members.iter().map(|member| member.weight).sum();
        if members.iter().all(|member| member.weight == 0.0) {
            self.add("all weights are 0: one of them must be more");
        } else if sum.is_infinite() {
            self.add("the sum of the weights is too large for a number: write smaller ones");
        }
    }

    fn learning(&mut self, rate: f64, share: f64, contexts: usize, members: usize) {
        self.within("rate", rate, 0.0001, 1.0, "how much one loss moves a weight");
        self.within("share", share, 0.0, 0.5, "the part of all weight that each feedback deals out evenly");
        let most = MOST_WEIGHTS / members.clamp(1, MOST_MEMBERS);
        if contexts > most {
            self.add(format!("contexts is {contexts}: with {members} members it may be {most} at most"));
        }
    }

    fn least(&mut self, least: usize, members: usize) {
        if !(1..=members.max(1)).contains(&least) {
            self.add(format!("least is {least}: write how many members an answer needs, from 1 to {members}"));
        }
    }

    fn cascade(&mut self, table: &CascadeTable) {
        let last = table.stages.len().saturating_sub(1);
        for (index, stage) in table.stages.iter().enumerate() {
            let model = &stage.model;
            match stage.enough {
                Some(enough) if index < last => {
                    let name = format!("enough of {model:?}");
                    self.within(&name, enough, 0.0, 1.0, "the confidence from which its answer goes out");
                }
                None if index < last => {
                    self.add(format!("stage {model:?} doesn't say from which confidence its answer goes out: write enough = 0.9, or another number from 0 to 1"));
                }
                Some(_) => self.add(format!("the last stage, {model:?}, has enough: its answer always goes out")),
                None => {}
            }
        }
    }

    fn variants(&mut self, table: &VariantsTable) {
        for VariantMember { model, accuracy, cost } in &table.members {
            if !accuracy.is_finite() {
                self.add(format!(
                    "the accuracy of {model:?} is {accuracy}: write a number that is higher for the better"
                ));
            }
            if let Some(cost) = cost
                && !(cost.is_finite() && *cost >= 0.0)
            {
                self.add(format!("the cost of {model:?} is {cost}: write a number from 0 up"));
            }
        }
        let with = table.members.iter().filter(|member| member.cost.is_some()).count();
        if with != 0 && with != table.members.len() {
            self.add("some members have a cost and some don't: give all of them one, or none");
        }
        if let Some(loose) = table.loose_ms
            && !(loose.is_finite() && loose > 0.0)
        {
            self.add(format!("loose_ms is {loose}: write milliseconds, more than 0"));
        }
        if !table.enough.is_finite() {
            self.add(format!("enough is {}: write the accuracy that the cheapest must have", table.enough));
        } else if !table.members.is_empty() && table.members.iter().all(|member| member.accuracy < table.enough) {
            self.add(format!("no member is as accurate as enough, {}: write a lower one", table.enough));
        }
    }

    fn judged(&mut self, table: &JudgedTable) {
        if let Some(reads) = &table.reads
            && !["scores", "labels", "values"].contains(&&**reads)
        {
            self.add(format!("judged.reads is {reads:?}: write \"scores\", \"labels\" or \"values\""));
        }
        if let Some(scale) = table.scale
            && !(scale.is_finite() && scale > 0.0)
        {
            self.add(format!("judged.scale is {scale}: write a number above 0"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::{Expect, expect};

    fn read(text: &str) -> Result<PolicyTable, Vec<String>> {
        let mut file: toml::Table = toml::from_str(text).unwrap();
        let Some(toml::Value::String(kind)) = file.remove("kind") else { panic!("{text}") };
        let table = PolicyTable::read(&kind, file).map_err(|error| vec![error.message().trim_end().to_owned()])?;
        let table = table.expect("there is such a kind");
        let mistakes = table.mistakes();
        if mistakes.is_empty() { Ok(table) } else { Err(mistakes) }
    }

    #[track_caller]
    fn wrong(text: &str, expected: Expect) {
        let mistakes = read(text).expect_err("it has a mistake");
        expected.assert_eq(&mistakes.join("\n"));
    }

    #[test]
    fn what_is_left_out_is_filled_in() {
        let table = read("kind = \"exp3\"\nmembers = [\"a\", \"b\"]\nby = \"user\"").unwrap();
        assert_eq!((table.kind(), table.by(), table.members()), ("exp3", Some("user"), vec!["a", "b"]));
        let PolicyTable::Exp3(table) = table else { panic!("{table:?}") };
        assert_eq!((table.rate, table.share), (Learning::DEFAULT.rate, Learning::DEFAULT.share));
        let table = read("kind = \"split\"\nmembers = [{ model = \"a\" }, { model = \"b\", weight = 3 }]").unwrap();
        let PolicyTable::Split(table) = table else { panic!("{table:?}") };
        assert_eq!(table.members.iter().map(|member| member.weight).collect::<Vec<_>>(), [1.0, 3.0]);
    }

    #[test]
    fn a_member_is_a_name_or_a_table_in_every_kind_that_needs_no_more_of_it() {
        let members = "members = [{ model = \"a\" }, \"b\"]";
        for kind in ["split", "exp3", "exp4", "ensemble"] {
            assert_eq!(read(&format!("kind = \"{kind}\"\n{members}")).unwrap().members(), ["a", "b"], "{kind}");
        }
        let shadow = read("kind = \"shadow\"\nmodel = \"a\"\nshadows = [{ model = \"b\" }]").unwrap();
        assert_eq!(shadow.members(), ["a", "b"]);
        wrong(
            "kind = \"exp3\"\nmembers = [{ model = \"a\", weight = 2 }, \"b\"]",
            expect!["a member is the name of a model, or a table with its `model` and nothing else"],
        );
        wrong(
            "kind = \"ensemble\"\nmembers = [{ model = \"a\", wieght = 2 }, \"b\"]",
            expect!["a member is the name of a model, or a table with its `model` and maybe a `weight`"],
        );
    }

    #[test]
    fn kinds_are_read_by_their_names() {
        for kind in PolicyTable::KINDS {
            assert!(PolicyTable::read(kind, toml::Table::new()).is_err(), "{kind} without anything else");
        }
        assert_eq!(PolicyTable::read("exp5", toml::Table::new()), Ok(None));
        wrong("kind = \"fixed\"\nmodle = \"a\"", expect!["unknown field `modle`, expected `model`"]);
        assert_eq!(read("kind = \"fixed\"\nmodel = \"a\"").unwrap().members(), ["a"]);
    }

    #[test]
    fn each_mistake_is_a_sentence() {
        wrong(
            "kind = \"split\"\nmembers = [{ model = \"a\", weight = -1 }, { model = \"a\", weight = 1 }]\nby = \"\"",
            expect![[r#"
                model "a" is a member twice: name it once
                the weight of "a" is -1: write a number from 0 up
                by is "": write the name of a request's parameter, as in by = "user""#]],
        );
        wrong(
            "kind = \"exp4\"\nmembers = [\"a\"]\nrate = nan\nshare = 2\nleast = 3\ncontexts = 900000000",
            expect![[r#"
                it has 1 members: it needs 2 at least
                rate is NaN: write how much one loss moves a weight, from 0.0001 to 1
                share is 2: write the part of all weight that each feedback deals out evenly, from 0 to 0.5
                contexts is 900000000: with 1 members it may be 16777216 at most
                least is 3: write how many members an answer needs, from 1 to 1"#]],
        );
        wrong(
            "kind = \"cascade\"\nstages = [{ model = \"a\" }, { model = \"b\", enough = 7 }, { model = \"\", enough = 0.5 }]\njudged = { reads = \"text\", scale = 0 }",
            expect![[r#"
                a member has no name: write the name of a model, as in "resnet50"
                stage "a" doesn't say from which confidence its answer goes out: write enough = 0.9, or another number from 0 to 1
                enough of "b" is 7: write the confidence from which its answer goes out, from 0 to 1
                the last stage, "", has enough: its answer always goes out
                judged.reads is "text": write "scores", "labels" or "values"
                judged.scale is 0: write a number above 0"#]],
        );
        wrong(
            "kind = \"variants\"\nmembers = [{ model = \"a\", accuracy = 0.5, cost = 1 }, { model = \"b\", accuracy = inf }]\nloose_ms = 0\nenough = nan",
            expect![[r#"
                the accuracy of "b" is inf: write a number that is higher for the better
                some members have a cost and some don't: give all of them one, or none
                loose_ms is 0: write milliseconds, more than 0
                enough is NaN: write the accuracy that the cheapest must have"#]],
        );
        wrong(
            "kind = \"shadow\"\nmodel = \"a\"\nshadows = []\nfraction = 1.5",
            expect![[r#"
                it has 1 members: it needs 2 at least
                fraction is 1.5: write the part of the requests that is copied, from 0 to 1"#]],
        );
    }

    #[test]
    fn there_are_not_more_members_than_may_be() {
        let names: Vec<String> = (0..=MOST_MEMBERS).map(|index| format!("\"m{index}\"")).collect();
        wrong(&format!("kind = \"exp3\"\nmembers = [{}]", names.join(", ")), expect!["it has 65 members: 64 at most"]);
    }
}
