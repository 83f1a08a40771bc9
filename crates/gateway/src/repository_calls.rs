//! The calls about the models of the repository: which there are, how they are configured, loading and unloading.
//!
//! One function for each call, on both protocols: HTTP turns its bodies into gRPC's messages and back (`wire::json`).

use crate::shard::Shard;
use wire::proto::{
    ModelConfigRequest, ModelConfigResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    RepositoryModelLoadRequest, RepositoryModelLoadResponse, RepositoryModelUnloadRequest,
    RepositoryModelUnloadResponse,
};
use wire::{Fault, Reason};

/// `GET v2/models`: the names of the models that can be asked.
pub(crate) fn model_names(_shard: &Shard) -> Result<Vec<String>, Fault> {
    Err(not_there("the list of models"))
}

/// `ModelConfig`, `GET v2/models/NAME[/versions/V]/config`.
pub(crate) fn model_config(_shard: &Shard, _request: &ModelConfigRequest) -> Result<ModelConfigResponse, Fault> {
    Err(not_there("the configuration of models"))
}

/// `RepositoryIndex`, `POST v2/repository[/REPOSITORY]/index`.
pub(crate) fn index(_shard: &Shard, _request: &RepositoryIndexRequest) -> Result<RepositoryIndexResponse, Fault> {
    Err(not_there("the index of the repository"))
}

/// `RepositoryModelLoad`, `POST v2/repository[/REPOSITORY]/models/NAME/load`. Answers when the model can be asked.
pub(crate) async fn load(
    _shard: &Shard,
    _request: RepositoryModelLoadRequest,
) -> Result<RepositoryModelLoadResponse, Fault> {
    Err(not_there("loading models"))
}

/// `RepositoryModelUnload`, `POST v2/repository[/REPOSITORY]/models/NAME/unload`.
pub(crate) async fn unload(
    _shard: &Shard,
    _request: RepositoryModelUnloadRequest,
) -> Result<RepositoryModelUnloadResponse, Fault> {
    Err(not_there("unloading models"))
}

fn not_there(what: &str) -> Fault {
    Fault::new(Reason::NotFound, format!("{what} isn't there yet"))
}
