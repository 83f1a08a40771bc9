//! What is traced and logged, read and changed while the server runs.

use crate::shard::Shard;
use wire::proto::{LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse};
use wire::{Fault, Reason};

/// `TraceSetting`, `GET` and `POST v2[/models/NAME]/trace/setting`. Without settings it only asks. A setting without values
/// goes back to its default. Answers with all settings as they are afterwards.
pub(crate) fn trace(_shard: &Shard, _request: &TraceSettingRequest) -> Result<TraceSettingResponse, Fault> {
    Err(Fault::new(Reason::NotFound, "the settings of traces aren't there yet"))
}

/// `LogSettings`, `GET` and `POST v2/logging`. Without settings it only asks. Answers with all settings as they are
/// afterwards.
pub(crate) fn log(_shard: &Shard, _request: &LogSettingsRequest) -> Result<LogSettingsResponse, Fault> {
    Err(Fault::new(Reason::NotFound, "the settings of the log aren't there yet"))
}
