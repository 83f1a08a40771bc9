//! What the models did so far, for those that ask.

use crate::shard::Shard;
use wire::proto::{ModelStatisticsRequest, ModelStatisticsResponse};
use wire::{Fault, Reason};

/// `ModelStatistics`, `GET v2/models/stats`, `GET v2/models/NAME[/versions/V]/stats`. An empty name means all models, an
/// empty version all versions.
pub(crate) fn statistics(_shard: &Shard, _request: &ModelStatisticsRequest) -> Result<ModelStatisticsResponse, Fault> {
    Err(Fault::new(Reason::NotFound, "the statistics of models aren't there yet"))
}
