//! The set-up of logs: to standard error, as text for people or JSON for machines; and what can be changed while it
//! runs. A thread of its own writes them: nobody waits for whoever reads them.

use crate::log_writer::LogWriter;
use crate::one_line::OneLine;
use std::io::IsTerminal as _;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber, span, subscriber::Interest};
use tracing_subscriber::layer::{Context, Filter, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry, fmt, reload};

/// Libraries that say more than a user wants to know. What the user's filter says of them counts more.
const QUIET: &str = "notify=warn,h2=warn,hyper=warn";

/// The part of the log that says who changed what. Clients that may set the log can't switch it off; the filter of the
/// start can (`audit=off`).
pub const AUDIT: &str = "audit";

/// At the end of the process the last lines are given this much time to be read.
const FLUSH: Duration = Duration::from_secs(1);

/// How a line of the log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object for each line, for machines.
    Json,
}

/// Why the logs could not be set up, or not be changed.
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
    /// There is no thread to write them.
    #[error("no thread could be started that writes the log: {0}")]
    NoThread(#[from] std::io::Error),
    /// Nobody has set up logs, so there is nothing to change.
    #[error("this process has no log to change: it was started without one")]
    NotSetUp,
}

/// What of the log can be changed while the server runs, in Triton's terms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogSettings {
    /// Whether what is worth knowing is written.
    pub info: bool,
    /// Whether warnings are written.
    pub warning: bool,
    /// Whether errors are written.
    pub error: bool,
    /// 0: what the filter of the start lets through; 1: also details of every part (debug); 2 and more: everything
    /// (trace).
    pub verbose_level: u32,
    /// Whether Triton's format ISO8601 was asked for. Lines have such times in either case.
    pub iso8601: bool,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { info: true, warning: true, error: true, verbose_level: 0, iso8601: false }
    }
}

/// The log of the process, once it is set up.
struct ProcessLog {
    settings: Mutex<LogSettings>,
    filter: String,
    handle: reload::Handle<LogFilter, Registry>,
    writer: LogWriter,
}

static PROCESS_LOG: OnceLock<ProcessLog> = OnceLock::new();

/// Sends the log of the whole process to standard error. `filter` is a level (`info`) or levels by part of the program
/// (`info,gateway=debug`). Colours only where a person looks at it.
pub fn init(format: Format, filter: &str) -> Result<(), LogsError> {
    let (chosen, handle) = reload::Layer::new(LogFilter::new(filter, LogSettings::default())?);
    let writer = LogWriter::start(format, OneLine(std::io::stderr()))?;
    let layer = fmt::layer().with_writer(writer.clone()).with_ansi(std::io::stderr().is_terminal());
    let layer = match format {
        Format::Text => layer.with_target(false).boxed(),
        Format::Json => layer.json().flatten_event(true).boxed(),
    };
    let log = tracing_subscriber::registry().with(layer.with_filter(chosen));
    log.try_init().map_err(|_| LogsError::Twice)?;
    let running = ProcessLog { settings: Mutex::default(), filter: filter.to_owned(), handle, writer };
    PROCESS_LOG.set(running).map_err(|_| LogsError::Twice)
}

/// Waits for the lines of the log to be written, for whoever ends the process; a second at most, since nobody may read
/// them.
pub fn flush() {
    if let Some(running) = PROCESS_LOG.get() {
        running.writer.flush_within(FLUSH);
    }
}

/// How the log is set now.
pub fn settings() -> LogSettings {
    PROCESS_LOG
        .get()
        .map_or_else(LogSettings::default, |running| *running.settings.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Sets the log anew. `change` is given how it is set now.
pub fn change(change: impl FnOnce(&mut LogSettings)) -> Result<LogSettings, LogsError> {
    let running = PROCESS_LOG.get().ok_or(LogsError::NotSetUp)?;
    let mut settings = running.settings.lock().unwrap_or_else(PoisonError::into_inner);
    let mut wanted = *settings;
    change(&mut wanted);
    let chosen = LogFilter::new(&running.filter, wanted)?;
    running.handle.reload(chosen).map_err(|_| LogsError::NotSetUp)?;
    *settings = wanted;
    Ok(wanted)
}

/// What is written: what the filter lets through, of the levels that are on.
#[derive(Debug)]
struct LogFilter {
    filter: EnvFilter,
    settings: LogSettings,
}

impl LogFilter {
    fn new(filter: &str, settings: LogSettings) -> Result<Self, LogsError> {
        let louder = match settings.verbose_level {
            0 => "",
            1 => ",debug",
            _ => ",trace",
        };
        // The last word on a part counts: the verbose level replaces the filter's own level, not what it says of parts.
        let text = format!("{QUIET},{AUDIT}=info,{filter}{louder}");
        let filter = EnvFilter::try_new(text)
            .map_err(|error| LogsError::BadFilter { filter: filter.to_owned(), reason: error.to_string() })?;
        Ok(Self { filter, settings })
    }

    fn is_on(&self, metadata: &Metadata<'_>) -> bool {
        match *metadata.level() {
            _ if metadata.target() == AUDIT => true,
            Level::ERROR => self.settings.error,
            Level::WARN => self.settings.warning,
            Level::INFO => self.settings.info,
            _ => true,
        }
    }
}

impl<S: Subscriber> Filter<S> for LogFilter {
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        self.is_on(metadata) && Filter::<S>::enabled(&self.filter, metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.is_on(metadata) { Filter::<S>::callsite_enabled(&self.filter, metadata) } else { Interest::never() }
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        Filter::<S>::event_enabled(&self.filter, event, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Filter::<S>::max_level_hint(&self.filter)
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        Filter::<S>::on_new_span(&self.filter, attributes, id, context);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        Filter::<S>::on_record(&self.filter, id, values, context);
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        Filter::<S>::on_enter(&self.filter, id, context);
    }

    fn on_exit(&self, id: &span::Id, context: Context<'_, S>) {
        Filter::<S>::on_exit(&self.filter, id, context);
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        Filter::<S>::on_close(&self.filter, id, context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// What is written of one event of each level, with these settings.
    fn written(filter: &str, settings: LogSettings) -> String {
        #[derive(Clone, Default)]
        struct Kept(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Kept {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let kept = Kept::default();
        let writer = kept.clone();
        let (chosen, handle) = reload::Layer::new(LogFilter::new(filter, LogSettings::default()).unwrap());
        let layer = fmt::layer().with_writer(move || writer.clone()).without_time().with_ansi(false).with_target(false);
        let log = tracing_subscriber::registry().with(layer.with_filter(chosen));
        tracing::subscriber::with_default(log, || {
            handle.reload(LogFilter::new(filter, settings).unwrap()).unwrap();
            tracing::error!("!");
            tracing::warn!("!");
            tracing::info!("!");
            tracing::debug!("!");
            tracing::trace!("!");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        text.split_whitespace().filter(|word| *word != "!").collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_level_has_its_switch_and_the_verbose_level_lets_more_through() {
        let all = LogSettings::default();
        assert_eq!(written("info", all), "ERROR WARN INFO");
        assert_eq!(written("info", LogSettings { info: false, ..all }), "ERROR WARN");
        assert_eq!(written("info", LogSettings { error: false, ..all }), "WARN INFO");
        assert_eq!(written("info", LogSettings { warning: false, verbose_level: 1, ..all }), "ERROR INFO DEBUG");
        assert_eq!(written("warn", LogSettings { verbose_level: 7, ..all }), "ERROR WARN INFO DEBUG TRACE");
        assert_eq!(
            written("info,telemetry=error", LogSettings { verbose_level: 1, ..all }),
            "ERROR",
            "parts stay as told"
        );
    }

    #[test]
    fn a_bad_filter_is_a_sentence_and_the_second_set_up_is_refused() {
        assert!(matches!(change(|_| {}), Err(LogsError::NotSetUp)));
        let error = init(Format::Text, "gateway=loud").unwrap_err().to_string();
        assert!(error.starts_with("log filter \"gateway=loud\" can't be read"), "{error}");
        init(Format::Json, "info").unwrap();
        assert!(matches!(init(Format::Text, "info"), Err(LogsError::Twice)));
        assert!(!change(|settings| settings.info = false).unwrap().info);
        assert!(!settings().info && settings().error);
    }
}
