//! What `serve` does where nothing is said. The code, the help and the page of settings take it from here.
//!
//! A default that a crate has for itself stands there, in its `Default`; the others are constants of this file.

use crate::bytes::ByteSize;
use crate::devices::{CpuDivision, DeviceChoice, DeviceKind, Devices, ShareChoice};
use crate::memory;
use clap::Arg;
use controller::ExecutionLimits;
use engine_cuda::engine::CudaOptions;
use engine_ort::OrtOptions;
use models::{ControlMode, ManagerConfig, PrecisionWishes, ProfilingEffort};
use planner::advice::AdvisorConfig;
use recording::Limits;
use std::net::{IpAddr, Ipv4Addr};

/// Other machines aren't let in.
pub const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// How often buckets are looked at.
pub const POLL_SECONDS: u64 = 15;
/// What to run on.
pub const DEVICES: DeviceChoice = DeviceChoice::Auto;
/// Who says how GPUs are divided.
pub const SHARES: ShareChoice = ShareChoice::Fixed;
/// Which cores compute a batch together, where the server chooses the executors.
pub const CPU_DIVISION: CpuDivision = CpuDivision::Auto;
/// Memory for weights on each device that isn't a GPU.
pub const DEVICE_MEMORY: ByteSize = ByteSize(2 << 30);
/// Whether what can't run on a GPU is computed on the CPU.
pub const CPU_FALLBACK: bool = true;
/// Whether engines have processes of their own.
pub const ISOLATE: bool = false;
/// How many schedulers there are.
pub const CELLS: u32 = 1;
/// The share of a device's time in which requests are run once more.
pub const ONLINE_PROFILE_SHARE: f64 = 0.01;
/// The folder, beside the models, for prepared models and measurements.
pub const CACHE_FOLDER: &str = ".punctual";
/// How logs look.
pub const LOG_FORMAT: &str = "text";
/// What is logged.
pub const LOG: &str = "info";

/// What executions on CPU cores may take together: three quarters of memory. The rest is for requests, answers, models
/// that are being prepared, and everybody else on the machine.
pub fn workspace_bytes() -> u64 {
    memory::limit() / 4 * 3
}

/// What `profile` measures on.
pub fn profiled_device() -> Devices {
    Devices::counted(DeviceKind::Cpu, 1)
}

/// Adds the default to an option's help, where it has one.
pub fn say(option: Arg) -> Arg {
    match (of(option.get_id().as_str()), option.get_help()) {
        (Some(default), Some(help)) => {
            let help = format!("{help}. [default: {default}]");
            option.help(help)
        }
        _ => option,
    }
}

/// The default of an option, as one would write it. `None` where there is none, or where it can't be written in a flag:
/// then the option's own words say it.
fn of(option: &str) -> Option<String> {
    let size = |bytes: usize| ByteSize(bytes as u64).exactly();
    let on_or_off = |on: bool| if on { "on" } else { "off" }.to_owned();
    let (scheduler, gateway) = (scheduler::Config::default(), gateway::Config::default());
    let (scaling, cuda) = (AdvisorConfig::default(), CudaOptions::default());
    Some(match option {
        "model_control_mode" => ControlMode::default().name().to_owned(),
        "repository_poll_secs" => POLL_SECONDS.to_string(),
        "host" => HOST.to_string(),
        "exposed" => on_or_off(gateway.exposed),
        "http_port" => gateway::Config::HTTP_PORT.to_string(),
        "grpc_port" => gateway::Config::GRPC_PORT.to_string(),
        "metrics_port" => gateway::Config::METRICS_PORT.to_string(),
        "devices" => DEVICES.to_string(),
        "shares" => SHARES.to_string(),
        "device_memory" => format!("{}; on a GPU most of what is free", DEVICE_MEMORY.exactly()),
        "pinned_memory" => size(cuda.pinned_bytes),
        "precision" => PrecisionWishes::default().choice.to_string(),
        "precision_error" => PrecisionWishes::default().bound.to_string(),
        "cpu_fallback" => on_or_off(CPU_FALLBACK),
        "ready_soon" => on_or_off(models::READY_SOON),
        "isolate" => on_or_off(ISOLATE),
        "threads_per_device" => format!("{}, or what --cpu-division says", OrtOptions::default().threads),
        "cpu_division" => format!(
            "{CPU_DIVISION}; narrow with a named number of executors or threads, with --isolate and with several cells"
        ),
        "policy" => scheduler.policy.name().to_owned(),
        "pipeline_split" => scheduler.split.name().to_owned(),
        "thrift" => on_or_off(scheduler.thrift),
        "batch_work_share" => scheduler.batch_work_share.to_string(),
        "cells" => CELLS.to_string(),
        "profile_window" => scheduler.profile_window.to_string(),
        "profile_quantile" => scheduler.profile_quantile.to_string(),
        "profile_budget_ms" => ProfilingEffort::default().budget.as_millis_f64().to_string(),
        "online_profile_share" => ONLINE_PROFILE_SHARE.to_string(),
        "max_execution_ms" => ExecutionLimits::MOST.as_millis_f64().to_string(),
        "max_preparing_s" => ManagerConfig::MAX_PREPARING.as_secs_f64().to_string(),
        "exit_timeout_secs" => gateway.shutdown_grace.as_secs().to_string(),
        "max_requests" => scheduler::Config::DEFAULT_MAX_REQUESTS.to_string(),
        "max_body" => size(gateway.max_body_bytes),
        "max_held" => size(gateway.max_held_bytes),
        "max_connections" => gateway.max_connections.to_string(),
        "max_client_connections" => gateway.max_client_connections.to_string(),
        "least_rate" => ByteSize(gateway.least_rate).exactly(),
        "max_body_s" => gateway.body_total.as_secs().to_string(),
        "allow_shared_memory" => on_or_off(gateway.shared_memory),
        "scaling_max_bad" => scaling.max_bad.to_string(),
        "scaling_min_bad" => scaling.min_bad.to_string(),
        "scaling_reserve" => scaling.reserve.to_string(),
        "scaling_min_devices" => scaling.min_devices.to_string(),
        "scaling_settle_s" => scaling.settle.as_secs_f64().to_string(),
        "scaling_window_s" => scaling.window.as_secs_f64().to_string(),
        "scaling_half_life_s" => scaling.half_life.as_secs_f64().to_string(),
        "cache_dir" => format!("{CACHE_FOLDER} beside the models"),
        "log_format" => LOG_FORMAT.to_owned(),
        "log" => LOG.to_owned(),
        "record_limit" => ByteSize(Limits::default().bytes).exactly(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ServeOptions;
    use crate::runtime::Runtime;
    use crate::{Command, CommandLine};
    use clap::{CommandFactory, Parser};

    /// Every option whose default can be written in a flag, with something else that it may be told.
    const OTHERS: [(&str, &str); 41] = [
        ("model-control-mode", "none"),
        ("repository-poll-secs", "16"),
        ("host", "127.0.0.2"),
        ("http-port", "9000"),
        ("grpc-port", "9001"),
        ("metrics-port", "9002"),
        ("devices", "emulated:2"),
        ("shares", "auto"),
        ("device-memory", "3GiB"),
        ("pinned-memory", "1GiB"),
        ("precision", "fp16"),
        ("precision-error", "0.5"),
        ("cpu-fallback", "false"),
        ("ready-soon", "false"),
        ("cpu-division", "wide"),
        ("policy", "eager"),
        ("pipeline-split", "equal"),
        ("batch-work-share", "0.25"),
        ("cells", "2"),
        ("profile-window", "10"),
        ("profile-quantile", "0.5"),
        ("profile-budget-ms", "100"),
        ("online-profile-share", "0.5"),
        ("max-execution-ms", "1000"),
        ("max-preparing-s", "60"),
        ("exit-timeout-secs", "5"),
        ("max-requests", "100"),
        ("max-body", "1MiB"),
        ("max-held", "2GiB"),
        ("max-connections", "100"),
        ("max-client-connections", "100"),
        ("least-rate", "1MiB"),
        ("max-body-s", "100"),
        ("scaling-max-bad", "0.5"),
        ("scaling-min-bad", "50"),
        ("scaling-reserve", "0.25"),
        ("scaling-min-devices", "3"),
        ("scaling-settle-s", "5"),
        ("scaling-window-s", "300"),
        ("scaling-half-life-s", "600"),
        ("log-format", "json"),
    ];
    /// Those that are off unless they are named.
    const SWITCHES: [&str; 4] = ["exposed", "isolate", "thrift", "allow-shared-memory"];
    /// Those whose default is a sentence or nothing, and four that other tests are for.
    const REST: [&str; 28] = [
        "threads-per-device",
        "cache-config",
        "response-cache-byte-size",
        "max-client-requests",
        "max-client-rate",
        "max-client-held",
        "max-client-device-share",
        "memory-limit",
        "model-manifest",
        "tls-certificate",
        "tls-key",
        "tls-client-ca",
        "model-repository",
        "load-model",
        "manifest-key",
        "api-keys",
        "cors-origin",
        "http-restricted-api",
        "grpc-restricted-protocol",
        "default-objective-ms",
        "io-threads",
        "cache-dir",
        "onnxruntime",
        "log",
        "trace-file",
        "record",
        "record-limit",
        "config",
    ];

    fn parse(arguments: &[&str]) -> Box<ServeOptions> {
        let all = ["punctual", "serve", "--model-repository", "models"].iter().chain(arguments);
        match CommandLine::try_parse_from(all).unwrap_or_else(|error| panic!("{error}")).command {
            Command::Serve(options) => options,
            _ => panic!("not serve"),
        }
    }

    /// All that the server does with what it is told.
    fn conclusions(arguments: &[&str]) -> String {
        let options = parse(arguments);
        let choices = options.choices(None);
        // One that nothing of it depends on.
        let runtime = Runtime::open(&Devices::counted(DeviceKind::Emulated, 1), &parse(&[]).choices(None)).unwrap();
        let devices = match options.device_choice() {
            DeviceChoice::Auto => Devices::on_cores(8, choices.threads()),
            DeviceChoice::Named(devices) => devices,
        };
        let division = options.cpu_division(&devices).unwrap();
        let controller = options.controller(&devices, &runtime);
        let on_gpu =
            (choices.precision().unwrap(), choices.pinned_bytes(), choices.cpu_fallback, options.is_ready_soon());
        let on_gpu = (on_gpu, options.divides_by_itself());
        let models = (
            (options.control().unwrap(), options.poll(), options.effort()),
            (options.max_preparing().unwrap(), choices.threads(), choices.isolate),
        );
        format!(
            "{controller:?} {:?} {on_gpu:?} {models:?} {division:?} {:?}",
            options.gateway().unwrap(),
            options.logs().unwrap()
        )
    }

    fn default_in_help(flag: &str) -> Option<String> {
        let command = CommandLine::command();
        let serve = command.find_subcommand("serve").unwrap();
        let option = serve.get_arguments().find(|option| option.get_long() == Some(flag)).unwrap();
        let help = option.get_help().unwrap().to_string();
        let (_, default) = help.strip_suffix(']')?.rsplit_once(" [default: ")?;
        // On a GPU another default may hold.
        Some(default.split(';').next().unwrap().to_owned())
    }

    #[test]
    fn saying_what_the_help_says_changes_nothing() {
        let unsaid = conclusions(&[]);
        for (flag, other) in OTHERS {
            let default = default_in_help(flag).unwrap_or_else(|| panic!("--{flag}: the help names no default"));
            let dashed = format!("--{flag}");
            assert_eq!(conclusions(&[&dashed, &default]), unsaid, "--{flag} {default} isn't what the code does");
            assert_ne!(conclusions(&[&dashed, other]), unsaid, "--{flag} {other} changes nothing that is compared");
        }
        for flag in SWITCHES {
            assert_eq!(default_in_help(flag).as_deref(), Some("off"), "--{flag}");
            assert_ne!(conclusions(&[&format!("--{flag}")]), unsaid, "--{flag} changes nothing that is compared");
        }
    }

    #[test]
    fn settings_are_taken_by_tritons_names_too() {
        assert_eq!(conclusions(&["--http-max-input-size", "1048576"]), conclusions(&["--max-body", "1MiB"]));
        let shared = conclusions(&["--allow-shared-memory"]);
        for named in [&["--allow-client-shm"][..], &["--allow-client-shm=true"], &["--allow-client-shm", "1"]] {
            assert_eq!(conclusions(named), shared, "{named:?}");
        }
        assert_eq!(conclusions(&["--allow-client-shm=false"]), conclusions(&[]));
    }

    #[test]
    fn clients_load_and_unload_by_themselves_only_where_nobody_else_reaches_the_server() {
        let takes_orders = |arguments: &[&str]| parse(arguments).control().unwrap().takes_orders();
        for local in [&[][..], &["--host", "127.0.0.2"], &["--host", "::1"], &["--host", "::ffff:127.0.0.1"]] {
            assert!(takes_orders(local), "{local:?}");
        }
        for exposed in [&["--host", "0.0.0.0"][..], &["--host", "::"], &["--host", "10.0.0.1"], &["--exposed"]] {
            assert!(!takes_orders(exposed), "{exposed:?}");
            assert!(takes_orders(&[exposed, &["--model-control-mode", "both"]].concat()), "{exposed:?}, asked for");
            assert!(
                takes_orders(&[exposed, &["--api-keys", "keys"]].concat()),
                "{exposed:?}, for those who have a right"
            );
        }
    }

    #[test]
    fn the_cpu_stands_in_unless_somebody_says_no() {
        for named in [&[][..], &["--cpu-fallback"], &["--cpu-fallback", "--thrift"], &["--cpu-fallback=on"]] {
            assert!(parse(named).choices(None).cpu_fallback, "{named:?}");
        }
        assert!(!parse(&["--cpu-fallback=false"]).choices(None).cpu_fallback);
    }

    #[test]
    fn only_engines_for_cores_can_have_processes_of_their_own() {
        let open = |devices: &str| {
            let options = parse(&["--isolate", "--devices", devices]);
            let DeviceChoice::Named(devices) = options.device_choice() else { panic!("it is named") };
            Runtime::open(&devices, &options.choices(None)).err().unwrap().to_string()
        };
        assert!(open("cuda:0").contains("--isolate isn't available with GPUs yet"));
        assert!(open("emulated:2").contains("emulated devices compute nothing"));
    }

    #[test]
    fn cores_divide_themselves_where_nothing_was_said_of_executors() {
        let said = |arguments: &[&str], executors: u32| {
            let options = parse(arguments);
            let devices = Devices::counted(DeviceKind::Cpu, executors);
            options.cpu_division(&devices).map(|division| division.to_string()).map_err(|error| error.to_string())
        };
        assert_eq!((said(&[], 7), said(&[], 1)), (Ok("auto".into()), Ok("narrow".into())));
        let threads = |arguments: &[&str]| parse(arguments).choices(None).threads();
        assert_eq!((threads(&[]), threads(&["--threads-per-device", "3"])), (1, 3));
        for named in [&["--devices", "cpu:7"][..], &["--threads-per-device", "1"], &["--isolate"], &["--cells", "2"]] {
            assert_eq!(said(named, 7), Ok("narrow".into()), "{named:?}");
        }
        assert_eq!(said(&["--devices", "cpu:7", "--cpu-division", "auto"], 7), Ok("auto".into()));
        for (named, why) in [
            (["auto", "--threads-per-device", "2"], "say one of the two"),
            (["wide", "--cells", "2"], "say narrow"),
            (["auto", "--isolate", "--thrift"], "say narrow or wide"),
        ] {
            let refused = said(&[&["--cpu-division"], &named[..]].concat(), 7).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }

    #[test]
    fn recordings_end_where_the_help_says() {
        let said = default_in_help("record-limit").unwrap();
        assert_eq!(parse(&[]).recording_limits().bytes, parse(&["--record-limit", &said]).recording_limits().bytes);
    }

    #[test]
    fn what_is_logged_is_what_the_help_says_without_the_watchers_news() {
        let said = default_in_help("log").unwrap();
        assert_eq!(parse(&[]).logs().unwrap().1, format!("{said},notify=warn"));
    }

    #[test]
    fn no_option_is_forgotten() {
        let mut known: Vec<_> = OTHERS.iter().map(|other| other.0).chain(SWITCHES).chain(REST).collect();
        known.sort_unstable();
        let command = CommandLine::command();
        let options = command.find_subcommand("serve").unwrap().get_arguments();
        let mut flags: Vec<_> = options.filter_map(Arg::get_long).filter(|flag| *flag != "help").collect();
        flags.sort_unstable();
        assert_eq!(flags, known);
    }
}
