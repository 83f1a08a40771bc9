//! The calls about the models of the repository: which there are, how they are configured, loading and unloading.
//!
//! One function for each call, on both protocols: HTTP turns its bodies into gRPC's messages and back (`wire::json`).

use crate::io::IoContext;
use crate::models::serving;
use base::Reason;
use bytes::Bytes;
use models::{ControlError, ModelControl, ModelState, PublishOrder};
use std::collections::BTreeMap;
use wire::Fault;
use wire::proto::model_repository_parameter::ParameterChoice;
use wire::proto::repository_index_response::ModelIndex;
use wire::proto::{
    ModelConfigRequest, ModelConfigResponse, ModelRepositoryParameter, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
};

/// The parameters of a load that bring files.
const FILE_PREFIX: &str = "file:";

/// `GET v2/models`: the names of the models that can be asked.
pub(crate) fn model_names(context: &IoContext) -> Result<Vec<String>, Fault> {
    Ok(context.models.with(|catalogue| {
        let ready = catalogue.models.iter().filter(|(_, model)| model.versions.values().any(|v| v.serving().is_some()));
        ready.map(|(name, _)| name.clone()).collect()
    }))
}

/// `ModelConfig`, `GET v2/models/NAME[/versions/V]/config`.
pub(crate) fn model_config(context: &IoContext, request: &ModelConfigRequest) -> Result<ModelConfigResponse, Fault> {
    let entry = context.models.find(&request.name, &request.version)?;
    Ok(ModelConfigResponse { config: Some((*serving(&entry)?.config).clone()) })
}

/// `RepositoryIndex`, `POST v2/repository[/REPOSITORY]/index`. There is one repository, whatever it is called.
pub(crate) fn index(context: &IoContext, request: &RepositoryIndexRequest) -> Result<RepositoryIndexResponse, Fault> {
    let models = context.models.with(|catalogue| {
        let versions = catalogue.models.values().flat_map(|model| model.versions.values());
        let entries = versions.map(|entry| {
            let (state, reason) = match entry.state() {
                ModelState::Ready(_) => ("READY", ""),
                ModelState::Preparing => ("LOADING", ""),
                ModelState::Broken(reason) | ModelState::Unpublished(reason) | ModelState::Waiting(reason) => {
                    ("UNAVAILABLE", reason.as_str())
                }
            };
            ModelIndex {
                name: entry.name.clone(),
                // What is broken as a whole has no version.
                version: if entry.version == 0 { String::new() } else { entry.version.to_string() },
                state: state.to_owned(),
                reason: reason.to_owned(),
            }
        });
        entries.filter(|entry| !request.ready || entry.state == "READY").collect()
    });
    Ok(RepositoryIndexResponse { models })
}

/// `RepositoryModelLoad`, `POST v2/repository[/REPOSITORY]/models/NAME/load`. Answers when the model can be asked.
pub(crate) async fn load(
    context: &IoContext,
    request: RepositoryModelLoadRequest,
) -> Result<RepositoryModelLoadResponse, Fault> {
    let order = publish_order(request.model_name, request.parameters)?;
    control(context)?.publish(order).await.map_err(fault)?;
    Ok(RepositoryModelLoadResponse {})
}

/// `RepositoryModelUnload`, `POST v2/repository[/REPOSITORY]/models/NAME/unload`.
pub(crate) async fn unload(
    context: &IoContext,
    request: RepositoryModelUnloadRequest,
) -> Result<RepositoryModelUnloadResponse, Fault> {
    let mut with_members = false;
    for (name, parameter) in &request.parameters {
        match (name.as_str(), &parameter.parameter_choice) {
            // Triton's word for what an ensemble asks.
            ("unload_dependents", Some(ParameterChoice::BoolParam(wanted))) => with_members = *wanted,
            ("unload_dependents", _) => {
                return Err(Fault::bad("the parameter \"unload_dependents\" must be true or false"));
            }
            _ => return Err(Fault::bad(format!("an unload has no parameter {name:?}: it has unload_dependents"))),
        }
    }
    control(context)?.withdraw(request.model_name, with_members).await.map_err(fault)?;
    Ok(RepositoryModelUnloadResponse {})
}

fn control(context: &IoContext) -> Result<&ModelControl, Fault> {
    context
        .models
        .control()
        .ok_or_else(|| Fault::new(Reason::NotReady, "the server is starting: try again in a moment"))
}

fn publish_order(model: String, parameters: BTreeMap<String, ModelRepositoryParameter>) -> Result<PublishOrder, Fault> {
    let (mut config, mut files) = (None, Vec::new());
    for (name, parameter) in parameters {
        match (name.strip_prefix(FILE_PREFIX), name.as_str(), parameter.parameter_choice) {
            (Some(path), _, Some(ParameterChoice::BytesParam(content))) => files.push((path.to_owned(), content)),
            (Some(path), _, Some(ParameterChoice::StringParam(content))) => {
                files.push((path.to_owned(), Bytes::from(content)));
            }
            (Some(_), name, _) => return Err(Fault::bad(format!("the parameter {name:?} must be the file's content"))),
            (None, "config", Some(ParameterChoice::StringParam(text))) => config = Some(text),
            (None, "config", _) => return Err(Fault::bad("the parameter \"config\" must be a text with JSON in it")),
            (None, name, _) => {
                return Err(Fault::bad(format!("a load has no parameter {name:?}: it has config and file:PATH")));
            }
        }
    }
    Ok(PublishOrder { model, config, files })
}

fn fault(error: ControlError) -> Fault {
    Fault::new(error.reason(), error.to_string())
}
