//! What clients want to be published and withdrawn. Sentences for them say `load` and `unload`, the protocol's words.

use super::{Publisher, Version, Wish, as_endpoint};
use crate::control::{ControlError, ControlMode, Order, OrderWish, PublishOrder};
use crate::uploads::Upload;
use base::Duration;
use repository::{ModelConfig, Repository, ScanEntry, WantedModels};
use std::collections::BTreeSet;
use std::path::{Component, Path};
use std::sync::Arc;

impl Publisher {
    /// Does what a client wants and tells it what came of it.
    pub(crate) fn carry_out(&mut self, order: Order) {
        let outcome = if self.bring_up.stops() {
            Err(ControlError::ShuttingDown)
        } else {
            match order.wish {
                OrderWish::Publish(order) => self.publish_for(order, &mut Vec::new()),
                OrderWish::Withdraw { model, with_members } => self.withdraw_for(&model, with_members),
            }
        };
        // The client may be gone; what it wanted is done all the same.
        let _ = order.reply.send(outcome);
    }

    /// Publishes a model as a client wants it, for endpoints of that path that ask it.
    fn publish_for(&mut self, order: PublishOrder, path: &mut Vec<String>) -> Result<(), ControlError> {
        let PublishOrder { model, config, files } = order;
        if model.contains(char::is_control) {
            return Err(not_a_name(&model));
        }
        let given = match &config {
            Some(text) => Some(Arc::new(override_config(text, &model)?)),
            None => None,
        };
        let frozen = given.is_some() || self.mode() == ControlMode::Explicit;
        let (entries, folder) = if files.is_empty() {
            self.sync_for(&model)?;
            (self.repository.scan_one(&model, given.as_ref()), None)
        } else {
            let folder = write_files(&model, &files, given.as_ref())?;
            (scan_folder(&folder, &model, given.as_ref())?, Some(folder))
        };
        if entries.is_empty() {
            return Err(ControlError::NotFound(model));
        }
        tracing::info!(model, files = files.len(), configured = config.is_some(), "a client loads a model");
        self.publish_members(&model, &entries, path);
        let kept: BTreeSet<u64> = entries.iter().map(|entry| entry.version().unwrap_or(0)).collect();
        // As in Triton: what the version policy names and isn't there keeps nothing else from being served.
        let excused = entries.iter().any(|entry| !is_absent(entry));
        let mut reasons = Vec::new();
        for entry in entries {
            if self.serves(&entry) {
                continue;
            }
            self.list_preparing(&entry);
            let is_excused = excused && is_absent(&entry);
            if let Err(reason) = self.take_in(entry)
                && !is_excused
            {
                reasons.push(reason);
            }
        }
        let sent = folder.is_some();
        let wish = if frozen { Wish::Frozen(folder) } else { Wish::Follow };
        if !reasons.is_empty() {
            if sent {
                self.forget_sent(&model);
            }
            // What came up serves: its files must not be listed as those of a model that a client withdrew.
            if self.is_published(&model) {
                self.wishes.insert(model.clone(), wish);
            }
            return Err(ControlError::Failed { model, reason: reasons.join("; ") });
        }
        for version in self.versions_of(&model).into_iter().filter(|version| !kept.contains(version)) {
            self.remove(&model, version);
        }
        self.wishes.insert(model, wish);
        Ok(())
    }

    /// Publishes what an endpoint asks, as far as it isn't: as in Triton, it is loaded with it. What can't be is a
    /// reason why the endpoint isn't ready.
    fn publish_members(&mut self, name: &str, entries: &[ScanEntry], path: &mut Vec<String>) {
        path.push(name.to_owned());
        let members: BTreeSet<String> = entries
            .iter()
            .filter_map(|entry| as_endpoint(entry)?.config.endpoint.as_ref())
            .flat_map(|kind| kind.members())
            .map(|member| member.model)
            .collect();
        for model in members {
            // One that asks itself is told so when it is planned.
            if !path.contains(&model) && !self.is_published(&model) {
                let order = PublishOrder { model: model.clone(), ..PublishOrder::default() };
                if let Err(error) = self.publish_for(order, path) {
                    tracing::warn!(endpoint = name, model, "a model that it asks isn't loaded: {error}");
                }
            }
        }
        path.pop();
    }

    /// Whether some version of a model serves.
    fn is_published(&self, model: &str) -> bool {
        let published = |number: u64| self.versions[&(model.to_owned(), number)].is_published();
        self.versions_of(model).into_iter().any(published)
    }

    /// Forgets what a client sent and what can't be served: only what the repository has is listed.
    fn forget_sent(&mut self, model: &str) {
        for version in self.versions_of(model) {
            let key = (model.to_owned(), version);
            if self.versions.get(&key).is_some_and(|version| !version.is_published()) {
                self.versions.remove(&key);
            }
        }
        for entry in &self.repository.scan_one(model, None) {
            if !self.versions.contains_key(&(model.to_owned(), entry.version().unwrap_or(0))) {
                self.set_unpublished(entry, "not loaded");
            }
        }
        self.update_catalogue();
    }

    /// Copies the model from its bucket, if it is in one.
    fn sync_for(&self, model: &str) -> Result<(), ControlError> {
        let wanted = if self.mode() == ControlMode::Explicit {
            let published = self.versions.iter().filter(|(_, version)| version.is_published());
            let names = published.map(|((name, _), _)| name);
            WantedModels::Only(names.cloned().chain([model.to_owned()]).collect())
        } else {
            WantedModels::All
        };
        self.sources
            .sync(&wanted, Duration::ZERO, &|_| {})
            .map_err(|error| ControlError::Failed { model: model.to_owned(), reason: error.to_string() })
    }

    /// Withdraws all versions of a model, because a client wants it.
    fn withdraw_for(&mut self, model: &str, with_members: bool) -> Result<(), ControlError> {
        let versions = self.versions_of(model);
        if versions.is_empty() {
            return Err(ControlError::NotFound(model.to_owned()));
        }
        tracing::info!(model, "a client unloads a model");
        let members = if with_members { self.members_of_none_but(model) } else { BTreeSet::new() };
        let old: Vec<(u64, Version)> = versions
            .into_iter()
            .filter_map(|version| Some((version, self.versions.remove(&(model.to_owned(), version))?)))
            .collect();
        // What is only there because a client sent it isn't there any more.
        for entry in &self.repository.scan_one(model, None) {
            self.set_unpublished(entry, "unloaded");
        }
        self.update_catalogue();
        for (version, old) in &old {
            self.withdraw(old);
            self.bring_up.controller.metrics().remove_model(model, *version);
        }
        self.wishes.insert(model.to_owned(), Wish::Withdrawn);
        for member in members {
            // What isn't there any more needn't go.
            let _ = self.withdraw_for(&member, false);
        }
        Ok(())
    }

    /// What an endpoint asks and no other endpoint does.
    fn members_of_none_but(&self, endpoint: &str) -> BTreeSet<String> {
        let asked = |is_wanted: &dyn Fn(&str) -> bool| -> BTreeSet<String> {
            let kinds = self.versions.iter().filter(|((name, _), _)| is_wanted(name));
            let kinds = kinds.filter_map(|(_, version)| version.endpoint()?.config.endpoint.clone());
            kinds.flat_map(|kind| kind.members()).map(|member| member.model).collect()
        };
        let others = asked(&|name| name != endpoint);
        asked(&|name| name == endpoint).into_iter().filter(|member| !others.contains(member)).collect()
    }
}

/// Whether a version is only named by the version policy.
fn is_absent(entry: &ScanEntry) -> bool {
    matches!(entry, ScanEntry::Broken(broken) if broken.absent)
}

fn not_a_name(model: &str) -> ControlError {
    let reason = "it must be the name of a folder, without control characters";
    ControlError::Bad(format!("{model:?} can't be a model's name: {reason}"))
}

fn override_config(text: &str, model: &str) -> Result<ModelConfig, ControlError> {
    let origin = Path::new("the request's `config`");
    ModelConfig::parse_json(text, origin, model).map_err(|error| ControlError::Bad(error.to_string()))
}

/// Puts the files that a client sent into a folder of their own.
fn write_files(
    model: &str,
    files: &[(String, bytes::Bytes)],
    config: Option<&Arc<ModelConfig>>,
) -> Result<Upload, ControlError> {
    if config.is_none() {
        let reason = "files were sent without a configuration: send one with the parameter `config`, {} at least";
        return Err(ControlError::Bad(reason.to_owned()));
    }
    if !repository::is_model_name(model) {
        return Err(not_a_name(model));
    }
    let failed = |error: std::io::Error| ControlError::Failed {
        model: model.to_owned(),
        reason: format!("its files could not be written: {error}"),
    };
    let folder = Upload::new().map_err(failed)?;
    for (path, content) in files {
        let inside = Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
        if path.is_empty() || !inside || path.contains(char::is_control) {
            let reason = format!("the file {path:?} isn't in the model's folder: name it as in file:1/model.onnx");
            return Err(ControlError::Bad(reason));
        }
        let target = folder.path().join(model).join(path);
        let parent = target.parent().unwrap_or(folder.path());
        std::fs::create_dir_all(parent).and_then(|()| std::fs::write(&target, content)).map_err(failed)?;
    }
    Ok(folder)
}

fn scan_folder(
    folder: &Upload,
    model: &str,
    config: Option<&Arc<ModelConfig>>,
) -> Result<Vec<ScanEntry>, ControlError> {
    let repository = Repository::open([folder.path()]);
    let mut repository =
        repository.map_err(|error| ControlError::Failed { model: model.to_owned(), reason: error.to_string() })?;
    Ok(repository.scan_one(model, config))
}
