//! Keeping endpoints in step with their members: planned when all of them can be asked, waiting while one can't.

use super::plan::{MemberFacts, PipelinePlan, PlannedWork, StagePlan, plan};
use super::{Endpoint, EndpointMember, EndpointPlan, KnownPipeline};
use crate::catalogue::{AnsweredBy, CatalogueEntry, ModelState, ServedModel};
use crate::publisher::{ModelKey, Publisher, Version};
use base::Duration;
use repository::{EndpointKind, FoundModel, MemberName, PipelineConfig, ScanEntry, SelectionConfig};
use scheduler::StageSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Endpoints of endpoints end here.
const MAX_DEPTH: usize = 8;

/// Why an endpoint can't be asked.
pub(crate) enum Unready {
    /// One of its members is being prepared.
    Prepares,
    /// One of its members can't be asked.
    Waits(String),
    /// It is wrong itself.
    Wrong(String),
}

impl Unready {
    fn state(self) -> ModelState {
        match self {
            Self::Prepares => ModelState::Preparing,
            Self::Waits(why) => ModelState::Waiting(why),
            Self::Wrong(why) => ModelState::Broken(why),
        }
    }
}

impl Publisher {
    /// Plans all endpoints whose members aren't those that they were planned with. Whether some version has another
    /// entry than before, which the catalogue must show.
    pub(crate) fn refresh_endpoints(&mut self) -> bool {
        let endpoints: Vec<ModelKey> = self
            .versions
            .iter()
            .filter(|(_, version)| version.endpoint().is_some())
            .map(|(key, _)| key.clone())
            .collect();
        let mut replaced = false;
        // One that asks others is planned behind them.
        for _ in 0..=MAX_DEPTH {
            let mut changed = false;
            for key in &endpoints {
                if !self.is_current(key) {
                    let (is_other, is_new) = self.refresh(key);
                    changed |= is_other;
                    replaced |= is_new;
                }
            }
            if !changed {
                break;
            }
        }
        replaced
    }

    /// Whether an endpoint can be asked and its members are those that it was planned with.
    fn is_current(&self, key: &ModelKey) -> bool {
        let served = self.versions.get(key).and_then(|version| version.entry.serving());
        let Some(AnsweredBy::Endpoint(endpoint)) = served.map(|served| &served.by) else { return false };
        endpoint.members.iter().all(|member| {
            let version = member.is_pinned.then_some(member.entry.version);
            self.member(&MemberName { model: member.entry.name.clone(), version })
                .is_some_and(|entry| Arc::ptr_eq(entry, &member.entry))
        })
    }

    /// Plans an endpoint anew: whether its state is another one, and whether its entry is.
    fn refresh(&mut self, key: &ModelKey) -> (bool, bool) {
        let Some(found) = self.versions.get(key).and_then(|version| version.endpoint()).cloned() else {
            return (false, false);
        };
        let state = self.plan_endpoint(&found).map_or_else(Unready::state, ModelState::Ready);
        let Some(version) = self.versions.get_mut(key) else { return (false, false) };
        let same = match (version.entry.state(), &state) {
            (ModelState::Preparing, ModelState::Preparing) => true,
            (ModelState::Waiting(before), ModelState::Waiting(now))
            | (ModelState::Broken(before), ModelState::Broken(now)) => before == now,
            _ => false,
        };
        if same {
            return (false, false);
        }
        log(key, &state);
        let (is_ready, was_preparing) =
            (matches!(state, ModelState::Ready(_)), matches!(version.entry.state(), ModelState::Preparing));
        if was_preparing {
            version.entry.settle(state).expect("only this thread settles entries, and it was being prepared");
            let metrics = self.bring_up.controller.metrics();
            metrics.models_loading.dec();
            if is_ready {
                metrics.models_ready.inc();
            } else {
                metrics.models_broken.inc();
            }
            return (true, false);
        }
        version.entry = Arc::new(CatalogueEntry::of_state(&key.0, key.1, state));
        (true, true)
    }

    /// Takes an endpoint's files in. It is served as they say, whenever its members can be asked; what is served stays
    /// if the endpoint itself is wrong.
    pub(crate) fn take_in_endpoint(&mut self, found: &FoundModel) -> Result<(), String> {
        let key = (found.name.clone(), found.version);
        let checked = self.bring_up.check_endpoint(found);
        let planned = checked.map_err(Unready::Wrong).and_then(|()| self.plan_endpoint(found));
        if let Err(Unready::Wrong(reason)) = &planned
            && self.versions.get(&key).is_some_and(Version::is_published)
        {
            let (model, version) = &key;
            tracing::error!(model, version, "the change can't be served, the endpoint stays as it was: {reason}");
            return Err(reason.clone());
        }
        let outcome = match &planned {
            Ok(_) => Ok(()),
            Err(Unready::Prepares) => Err("a model that it asks is being prepared".to_owned()),
            Err(Unready::Waits(why) | Unready::Wrong(why)) => Err(why.clone()),
        };
        let state = planned.map_or_else(Unready::state, ModelState::Ready);
        log(&key, &state);
        let entry = CatalogueEntry::of_state(&key.0, key.1, state);
        if let Some(before) = self.insert_endpoint(key, entry, ScanEntry::Found(found.clone())) {
            self.withdraw(&before);
        }
        self.update_catalogue();
        outcome
    }

    /// The entry that a member's name stands for.
    fn member(&self, name: &MemberName) -> Option<&Arc<CatalogueEntry>> {
        let all = (name.model.clone(), 0)..=(name.model.clone(), u64::MAX);
        let mut versions = self.versions.range(all).rev().map(|(_, version)| &version.entry);
        match name.version {
            Some(number) => versions.find(|entry| entry.version == number),
            None => {
                let last = versions.clone().next();
                versions.find(|entry| entry.serving().is_some()).or(last)
            }
        }
    }

    /// An endpoint as clients see it, or why it can't be asked.
    fn plan_endpoint(&mut self, found: &FoundModel) -> Result<ServedModel, Unready> {
        let Some(kind) = found.config.endpoint.clone() else {
            return Err(Unready::Wrong("it is no endpoint".into()));
        };
        if let Some(circle) = self.circle(&found.name, &kind) {
            return Err(Unready::Wrong(circle));
        }
        let mut members = BTreeMap::new();
        let mut prepares = false;
        for name in kind.members() {
            let entry = self.member(&name).cloned();
            let unready = |why: String| Err(Unready::Waits(format!("it asks the model {name}, which {why}")));
            let Some(entry) = entry else { return unready("isn't there: put its folder into the repository".into()) };
            match entry.state() {
                ModelState::Ready(_) => {}
                ModelState::Preparing => prepares = true,
                ModelState::Broken(why) => return unready(format!("can't be served: {why}")),
                ModelState::Unpublished(why) => return unready(format!("is {why}")),
                ModelState::Waiting(why) => return unready(format!("isn't ready: {why}")),
            }
            if entry.serving().is_some_and(|served| served.sequences.is_some()) {
                let why = "which is asked in sequences: an endpoint's requests belong to none";
                return Err(Unready::Wrong(format!("it asks the model {name}, {why}; take sequence_batching out")));
            }
            members.insert(name, entry);
        }
        if prepares {
            return Err(Unready::Prepares);
        }
        match &*kind {
            EndpointKind::Pipeline(pipeline) => self.plan_pipeline(found, pipeline, members),
            EndpointKind::Selection(selection) => self.plan_selection(found, selection, members),
        }
    }

    fn plan_selection(
        &mut self,
        found: &FoundModel,
        config: &SelectionConfig,
        members: BTreeMap<MemberName, Arc<CatalogueEntry>>,
    ) -> Result<ServedModel, Unready> {
        let versions = &self.versions;
        let is_there = |name: &str| versions.range((name.to_owned(), 0)..).next().is_some_and(|(key, _)| key.0 == name);
        self.selections.retain(|name| name == found.name || is_there(name));
        let entries: Vec<Arc<CatalogueEntry>> = members.into_values().collect();
        let metrics = self.bring_up.controller.metrics();
        let (plan, signature) =
            self.selections.plan((&found.name, found.version), config, &entries, metrics).map_err(Unready::Wrong)?;
        let first = plan.members.first().and_then(|member| entries[member.member].serving());
        let labels = first.map(|served| Arc::clone(&served.labels));
        let members: Vec<EndpointMember> =
            entries.into_iter().map(|entry| EndpointMember { is_pinned: false, entry }).collect();
        let endpoint = Endpoint { depth: depth(&members)?, members, how: EndpointPlan::Selection(Box::new(plan)) };
        let mut served = self.bring_up.serve_endpoint(found, signature, endpoint).map_err(Unready::Wrong)?;
        // Its classes are called as the first member calls them: its outputs are in that one's order.
        served.labels = labels.unwrap_or(served.labels);
        Ok(served)
    }

    fn plan_pipeline(
        &mut self,
        found: &FoundModel,
        pipeline: &PipelineConfig,
        members: BTreeMap<MemberName, Arc<CatalogueEntry>>,
    ) -> Result<ServedModel, Unready> {
        let serving = |entry: &CatalogueEntry| entry.serving().is_some_and(says_the_same);
        if found.config.response_cache
            && let Some((name, _)) = members.iter().find(|(_, entry)| !serving(entry))
        {
            let why = "which selects among models: its answers differ, and one would be kept for all; leave it out";
            return Err(Unready::Wrong(format!("it has response_cache, and asks {name}, {why}")));
        }
        let facts = members.iter().filter_map(|(name, entry)| Some((name.clone(), facts(entry.serving()?))));
        let (plan, signature) =
            plan(&found.config, &found.folder, pipeline, &facts.collect()).map_err(Unready::Wrong)?;
        let members: Vec<EndpointMember> = members
            .into_iter()
            .map(|(name, entry)| EndpointMember { is_pinned: name.version.is_some(), entry })
            .collect();
        let known = self.announce(&plan, &members);
        let how = EndpointPlan::Pipeline { plan, known };
        let endpoint = Endpoint { depth: depth(&members)?, members, how };
        self.bring_up.serve_endpoint(found, signature, endpoint).map_err(Unready::Wrong)
    }

    /// Tells the scheduler which stages there are, if one scheduler has all of them.
    fn announce(&self, plan: &PipelinePlan, members: &[EndpointMember]) -> Option<KnownPipeline> {
        let model = |stage: &StagePlan| match stage.work {
            PlannedWork::Member(member) => members[member].entry.serving()?.model().map(|model| model.id),
            PlannedWork::Step(_) => None,
        };
        let models: Vec<_> = plan.stages.iter().map(model).collect();
        let mut next_number = 0;
        let number = |model: &Option<_>| {
            model.map(|_| {
                next_number += 1;
                next_number - 1
            })
        };
        let numbers: Vec<Option<u32>> = models.iter().map(number).collect();
        let specs =
            plan.stages.iter().zip(&models).zip(followers(plan, &numbers)).filter_map(|((stage, model), next)| {
                let calls = stage.fan_out.map_or(1.0, |fan_out| fan_out.calls);
                let (next, varies) = (next.into_iter().collect(), stage.fan_out.is_some());
                Some(StageSpec { model: (*model)?, next, calls, varies, gap: Duration::ZERO })
            });
        let stages: Vec<_> = specs.collect();
        let announced = self.bring_up.controller.announce(stages.clone())?;
        Some(KnownPipeline::new(announced, stages, numbers))
    }

    /// A sentence about an endpoint that asks itself, whatever is between.
    fn circle(&self, name: &str, kind: &EndpointKind) -> Option<String> {
        let (mut path, mut seen) = (vec![name.to_owned()], BTreeSet::new());
        self.leads_back(kind, &mut path, &mut seen).then(|| match path.as_slice() {
            [_, _] => "it asks itself".to_owned(),
            path => format!("it asks itself: {}", path.join(" asks ")),
        })
    }

    /// Whether members lead back to the first of a path; then the path shows how.
    fn leads_back(&self, kind: &EndpointKind, path: &mut Vec<String>, seen: &mut BTreeSet<String>) -> bool {
        for member in kind.members() {
            let is_first = path[0] == member.model;
            if !is_first && !seen.insert(member.model.clone()) {
                continue;
            }
            path.push(member.model.clone());
            if is_first {
                return true;
            }
            let all = (member.model.clone(), 0)..=(member.model.clone(), u64::MAX);
            let found = self.versions.range(all).find_map(|(_, version)| version.endpoint()?.config.endpoint.clone());
            if found.is_some_and(|kind| self.leads_back(&kind, path, seen)) {
                return true;
            }
            path.pop();
        }
        false
    }
}

/// For each stage those that a scheduler knows behind it, past those that it doesn't.
fn followers(plan: &PipelinePlan, numbers: &[Option<u32>]) -> Vec<BTreeSet<u32>> {
    let mut behind: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); plan.stages.len()];
    // Those that follow come later in the plan.
    for (at, stage) in plan.stages.iter().enumerate().rev() {
        let found = |&next: &usize| numbers[next].map_or_else(|| behind[next].clone(), |number| [number].into());
        behind[at] = stage.next.iter().flat_map(found).collect();
    }
    behind
}

/// How many endpoints are below one another, with the one that has these members.
fn depth(members: &[EndpointMember]) -> Result<usize, Unready> {
    let of = |member: &EndpointMember| match &member.entry.serving()?.by {
        AnsweredBy::Endpoint(endpoint) => Some(endpoint.depth),
        AnsweredBy::Model(_) => None,
    };
    let depth = members.iter().filter_map(of).max().unwrap_or(0) + 1;
    let wrong = || Unready::Wrong(format!("endpoints ask endpoints {depth} times over: {MAX_DEPTH} times is the most"));
    if depth <= MAX_DEPTH { Ok(depth) } else { Err(wrong()) }
}

/// Whether equal requests get equal answers, as far as it is known: selection goes by chance, by what was learnt and by
/// who is there in time.
fn says_the_same(served: &ServedModel) -> bool {
    match &served.by {
        AnsweredBy::Model(_) => true,
        AnsweredBy::Endpoint(endpoint) => match &endpoint.how {
            EndpointPlan::Selection(_) => false,
            EndpointPlan::Pipeline { .. } => {
                endpoint.members.iter().all(|member| member.entry.serving().is_some_and(says_the_same))
            }
        },
    }
}

fn facts(served: &ServedModel) -> MemberFacts {
    let optional = (0..served.signature.inputs.len()).map(|at| matches!(served.defaults.get(at), Some(Some(_))));
    MemberFacts { signature: Arc::clone(&served.signature), optional: optional.collect() }
}

fn log((endpoint, version): &ModelKey, state: &ModelState) {
    match state {
        ModelState::Ready(_) => tracing::info!(endpoint, version, "ready"),
        ModelState::Waiting(why) => tracing::warn!(endpoint, version, "the endpoint isn't ready: {why}"),
        ModelState::Broken(why) => tracing::error!(endpoint, version, "the endpoint can't be served: {why}"),
        ModelState::Preparing | ModelState::Unpublished(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::super::gaps::gaps;
    use super::*;
    use base::{DataType, ModelSignature, TensorSpec};
    use repository::ModelConfig;
    use std::fmt::Write as _;
    use std::path::Path;

    /// A model, so many layers of two steps each that take what both before them gave, and a model.
    fn diamonds(layers: usize) -> PipelinePlan {
        let mut text = "kind = \"pipeline\"\ninputs = [\"x\"]\noutputs = [\"y\"]\n\
            [[stage]]\nname = \"first\"\nmodel = \"m\"\ninputs.i = \"x\"\noutputs.o = \"a0\"\n\
            [[stage]]\nname = \"last\"\nmodel = \"m\"\ninputs.i = \"end\"\noutputs.o = \"y\"\n"
            .to_owned();
        for layer in 1..=layers {
            let taken = if layer == 1 { ["a", "a"] } else { ["a", "b"] }.map(|side| format!("{side}{}", layer - 1));
            for side in ["a", "b"] {
                let made = if layer == layers && side == "a" { "end".to_owned() } else { format!("{side}{layer}") };
                let _ = write!(
                    text,
                    "[[stage]]\nname = \"{made}\"\nstep = \"concat\"\naxis = 1\ninputs = {taken:?}\noutputs.tensor = \"{made}\"\n"
                );
            }
        }
        let config = ModelConfig::parse_endpoint(&text, Path::new("endpoint.toml")).unwrap();
        let EndpointKind::Pipeline(pipeline) = &**config.endpoint.as_ref().unwrap() else { panic!("{text}") };
        let spec = |name: &str| TensorSpec { name: name.into(), datatype: DataType::Fp32, dims: vec![-1, -1] };
        let signature = ModelSignature { inputs: vec![spec("i")], outputs: vec![spec("o")], max_batch: 0 };
        let facts = MemberFacts { signature: Arc::new(signature), optional: vec![false] };
        let name = MemberName { model: "m".into(), version: None };
        plan(&config, Path::new("."), pipeline, &BTreeMap::from([(name, facts)])).unwrap().0
    }

    /// The number of each stage to a scheduler: models have one.
    fn numbers(plan: &PipelinePlan) -> Vec<Option<u32>> {
        let number = |stage: &StagePlan| match &*stage.name {
            "first" => Some(0),
            "last" => Some(1),
            _ => None,
        };
        plan.stages.iter().map(number).collect()
    }

    #[test]
    fn a_model_behind_diamonds_of_steps_follows_the_one_before_them_once() {
        // As many stages as there may be: 2^31 ways.
        let plan = diamonds(31);
        let behind = followers(&plan, &numbers(&plan));
        let of = |name: &str| &behind[plan.stages.iter().position(|stage| stage.name == name).unwrap()];
        assert_eq!((of("first"), of("a1")), (&BTreeSet::from([1]), &BTreeSet::from([1])));
        assert_eq!((of("b31"), of("last")), (&BTreeSet::new(), &BTreeSet::new()), "nobody takes what they make");
    }

    #[test]
    fn the_gap_behind_a_stage_is_the_longest_way_through_the_steps() {
        let plan = diamonds(3);
        let micros = |name: &str| match name {
            "a1" => 100,
            "b1" => 10,
            "a2" => 1,
            "b2" => 20,
            "end" => 3,
            // Nobody takes what it makes.
            "b3" => 5,
            _ => 1_000_000,
        };
        plan.stages.iter().for_each(|stage| stage.meter.took(Duration::from_micros(micros(&stage.name))));
        let gaps = gaps(&plan, &numbers(&plan));
        let behind = |name: &str| gaps[plan.stages.iter().position(|stage| stage.name == name).unwrap()];
        assert_eq!(behind("first"), Duration::from_micros(125), "a1, b2, b3");
        assert_eq!(behind("b2"), Duration::from_micros(5));
        assert_eq!(behind("end"), Duration::ZERO);
        assert_eq!(behind("last"), Duration::ZERO);
    }
}
