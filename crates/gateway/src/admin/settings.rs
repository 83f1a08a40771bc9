//! What is traced and logged, read and changed while the server runs.

use crate::io::IoContext;
use base::Reason;
use telemetry::logs::{self, LogSettings};
use telemetry::{SettingChange, TraceChange, TraceSettings};
use wire::Fault;
use wire::proto::{
    LogSettingsRequest, LogSettingsResponse, TraceSettingRequest, TraceSettingResponse, log_settings_request,
    log_settings_response, trace_setting_response,
};

/// `TraceSetting`, `GET` and `POST v2[/models/NAME]/trace/setting`. Without settings it only asks. A setting without
/// values goes back to its default. Answers with all settings as they are afterwards.
pub(crate) fn trace(context: &IoContext, request: &TraceSettingRequest) -> Result<TraceSettingResponse, Fault> {
    let model = Some(request.model_name.as_str()).filter(|name| !name.is_empty());
    if let Some(name) = model {
        context.models.find(name, "")?;
    }
    let tracer = &context.shared.tracer;
    let file = tracer.file().map_or_else(String::new, |file| file.display().to_string());
    let mut change = TraceChange::default();
    for (name, setting) in &request.settings {
        read_trace_setting(&mut change, name, &setting.value, &file)?;
    }
    let settings = if request.settings.is_empty() {
        tracer.settings(model)
    } else {
        tracer.change(model, change).map_err(|error| Fault::new(Reason::Unsupported, error.to_string()))?
    };
    Ok(trace_response(settings, file))
}

fn read_trace_setting(change: &mut TraceChange, name: &str, values: &[String], file: &str) -> Result<(), Fault> {
    let bad = |expected: &str| Fault::bad(format!("the setting {name:?} is {values:?}: {expected}"));
    match name {
        "trace_level" => {
            change.timestamps = match values.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                [] => SettingChange::Clear,
                ["OFF"] => SettingChange::Set(false),
                ["TIMESTAMPS"] => SettingChange::Set(true),
                _ => return Err(bad("OFF or TIMESTAMPS is expected; tensors can't be traced here")),
            };
        }
        "trace_rate" => {
            let rate = number(values, |text| text.parse::<u32>().ok().filter(|&rate| rate > 0));
            change.rate = rate.ok_or_else(|| bad("a whole number from 1 on is expected"))?;
        }
        "trace_count" => {
            let read = |text: &str| match text {
                "-1" => Some(None),
                count => count.parse::<u32>().ok().map(|count| Some(count.into())),
            };
            change.count = number(values, read).ok_or_else(|| bad("a whole number, or -1 for no end, is expected"))?;
        }
        "log_frequency" => {
            let frequency = number(values, |text| text.parse::<u32>().ok());
            change.log_frequency = frequency.ok_or_else(|| bad("a whole number is expected"))?;
        }
        // Whoever can reach the port could write any file.
        "trace_file" if !matches!(values, [same] if same == file) => {
            let message = "the file of traces can't be changed while the server runs: start it with --trace-file FILE";
            return Err(Fault::new(Reason::Unsupported, message));
        }
        "trace_mode" if !matches!(values, [mode] if mode == "triton") => {
            let message = format!("trace_mode is {values:?}: this server has the mode \"triton\" alone");
            return Err(Fault::new(Reason::Unsupported, message));
        }
        "trace_file" | "trace_mode" => {}
        _ => {
            return Err(Fault::bad(format!(
                "there is no setting {name:?}: there are trace_level, trace_rate, trace_count, log_frequency, trace_file \
                 and trace_mode"
            )));
        }
    }
    Ok(())
}

/// One value, or none.
fn number<T>(values: &[String], read: impl Fn(&str) -> Option<T>) -> Option<SettingChange<T>> {
    match values {
        [] => Some(SettingChange::Clear),
        [one] => read(one).map(SettingChange::Set),
        _ => None,
    }
}

fn trace_response(settings: TraceSettings, file: String) -> TraceSettingResponse {
    let values = [
        ("trace_level", if settings.timestamps { "TIMESTAMPS" } else { "OFF" }.to_owned()),
        ("trace_rate", settings.rate.to_string()),
        ("trace_count", settings.count.map_or_else(|| "-1".to_owned(), |count| count.to_string())),
        ("log_frequency", settings.log_frequency.to_string()),
        ("trace_file", file),
        ("trace_mode", "triton".to_owned()),
    ];
    let setting =
        |(name, value): (&str, String)| (name.to_owned(), trace_setting_response::SettingValue { value: vec![value] });
    TraceSettingResponse { settings: values.into_iter().map(setting).collect() }
}

/// `LogSettings`, `GET` and `POST v2/logging`. Without settings it only asks. Answers with all settings as they are
/// afterwards.
pub(crate) fn log(_shard: &IoContext, request: &LogSettingsRequest) -> Result<LogSettingsResponse, Fault> {
    let mut wanted = logs::settings();
    // All of them are read before any is changed.
    for (name, setting) in &request.settings {
        read_log_setting(&mut wanted, name, setting.parameter_choice.as_ref())?;
    }
    if !request.settings.is_empty() {
        wanted = logs::change(|settings| *settings = wanted)
            .map_err(|error| Fault::new(Reason::Unsupported, error.to_string()))?;
    }
    Ok(log_response(wanted))
}

fn read_log_setting(
    settings: &mut LogSettings,
    name: &str,
    value: Option<&log_settings_request::setting_value::ParameterChoice>,
) -> Result<(), Fault> {
    use log_settings_request::setting_value::ParameterChoice as Choice;
    match (name, value) {
        ("log_info", Some(Choice::BoolParam(on))) => settings.info = *on,
        ("log_warning", Some(Choice::BoolParam(on))) => settings.warning = *on,
        ("log_error", Some(Choice::BoolParam(on))) => settings.error = *on,
        ("log_verbose_level", Some(Choice::Uint32Param(level))) => settings.verbose_level = *level,
        ("log_format", Some(Choice::StringParam(format))) if format == "default" => settings.iso8601 = false,
        ("log_format", Some(Choice::StringParam(format))) if format == "ISO8601" => settings.iso8601 = true,
        ("log_file", Some(Choice::StringParam(file))) if file.is_empty() => {}
        ("log_file", Some(Choice::StringParam(_))) => {
            let message = "log_file can't be changed: the log goes to standard error, send that to a file";
            return Err(Fault::new(Reason::Unsupported, message));
        }
        ("log_info" | "log_warning" | "log_error", _) => {
            return Err(Fault::bad(format!("the setting {name:?} is true or false")));
        }
        ("log_verbose_level", _) => {
            return Err(Fault::bad("the setting \"log_verbose_level\" is a whole number from 0 on"));
        }
        ("log_format", _) => return Err(Fault::bad("the setting \"log_format\" is \"default\" or \"ISO8601\"")),
        ("log_file", _) => return Err(Fault::bad("the setting \"log_file\" is a text")),
        _ => {
            return Err(Fault::bad(format!(
                "there is no setting {name:?}: there are log_info, log_warning, log_error, log_verbose_level, log_format and \
                 log_file"
            )));
        }
    }
    Ok(())
}

fn log_response(settings: LogSettings) -> LogSettingsResponse {
    use log_settings_response::SettingValue;
    use log_settings_response::setting_value::ParameterChoice as Choice;
    let values = [
        ("log_info", Choice::BoolParam(settings.info)),
        ("log_warning", Choice::BoolParam(settings.warning)),
        ("log_error", Choice::BoolParam(settings.error)),
        ("log_verbose_level", Choice::Uint32Param(settings.verbose_level)),
        ("log_format", Choice::StringParam(if settings.iso8601 { "ISO8601" } else { "default" }.to_owned())),
        ("log_file", Choice::StringParam(String::new())),
    ];
    let setting = |(name, choice): (&str, Choice)| (name.to_owned(), SettingValue { parameter_choice: Some(choice) });
    LogSettingsResponse { settings: values.into_iter().map(setting).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, values: &[&str]) -> Result<TraceChange, String> {
        let mut change = TraceChange::default();
        let values: Vec<String> = values.iter().map(|&value| value.to_owned()).collect();
        read_trace_setting(&mut change, name, &values, "/tmp/trace").map_err(|fault| fault.to_string())?;
        Ok(change)
    }

    #[test]
    fn trace_settings_are_read_as_triton_reads_them() {
        assert_eq!(read("trace_level", &["TIMESTAMPS"]).unwrap().timestamps, SettingChange::Set(true));
        assert_eq!(read("trace_level", &[]).unwrap().timestamps, SettingChange::Clear);
        assert_eq!(read("trace_count", &["-1"]).unwrap().count, SettingChange::Set(None));
        assert_eq!(read("trace_count", &["7"]).unwrap().count, SettingChange::Set(Some(7)));
        assert_eq!(read("trace_file", &["/tmp/trace"]), Ok(TraceChange::default()), "the one that it is");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused: &[(&str, &[&str])] = &[
            ("trace_level", &["MAX"]),
            ("trace_level", &["OFF", "TIMESTAMPS"]),
            ("trace_level", &["TENSORS"]),
            ("trace_rate", &["0"]),
            ("trace_rate", &["-3"]),
            ("trace_rate", &["1", "2"]),
            ("trace_count", &["-2"]),
            ("trace_count", &["many"]),
            ("log_frequency", &["4294967296"]),
            ("trace_file", &["/etc/passwd"]),
            ("trace_mode", &["opentelemetry"]),
            ("trace_colour", &["red"]),
        ];
        for (name, values) in refused {
            assert!(read(name, values).is_err(), "{name} {values:?}");
        }
    }
}
