//! The set-up of logs: to standard error, as text for people or JSON for machines.

use std::io::IsTerminal as _;
use tracing_subscriber::EnvFilter;

/// Libraries that say more than a user wants to know. What the user's filter says of them counts more.
const QUIET: &str = "notify=warn,h2=warn,hyper=warn";

/// How a line of the log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line, for machines.
    Json,
}

/// Why the logs could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The filter can't be read.
    #[error(
        "log filter {filter:?} can't be read ({reason}): write a level (error, warn, info, debug, trace) or parts like \"info,gateway=debug\""
    )]
    BadFilter {
        /// The filter as given.
        filter: String,
        /// What the parser said.
        reason: String,
    },
    /// Somebody set up logs before.
    #[error("logs are set up already: init is called once, at the start")]
    Twice,
}

/// Sends the log of the whole process to standard error. `filter` is a level (`info`) or levels by part of the program
/// (`info,gateway=debug`). Colours only where a person looks at it.
pub fn init(format: Format, filter: &str) -> Result<(), LogsError> {
    let parsed = EnvFilter::try_new(format!("{QUIET},{filter}"))
        .map_err(|error| LogsError::BadFilter { filter: filter.to_owned(), reason: error.to_string() })?;
    let builder = tracing_subscriber::fmt().with_env_filter(parsed).with_writer(std::io::stderr);
    let builder = builder.with_ansi(std::io::stderr().is_terminal());
    let done = match format {
        Format::Text => builder.with_target(false).try_init(),
        Format::Json => builder.json().flatten_event(true).try_init(),
    };
    done.map_err(|_| LogsError::Twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_filter_is_a_sentence_and_the_second_set_up_is_refused() {
        let error = init(Format::Text, "gateway=loud").unwrap_err().to_string();
        assert!(error.starts_with("log filter \"gateway=loud\" can't be read"), "{error}");
        init(Format::Json, "info").unwrap();
        assert!(matches!(init(Format::Text, "info"), Err(LogsError::Twice)));
    }
}
