//! `punctual serve`: gateway, controller and workers in one process.

use crate::bytes::ByteSize;
use crate::defaults;
use crate::example;
use crate::options::ServeOptions;
use anyhow::{Context, Result, anyhow, bail};
use controller::{Controller, Divisions};
use gateway::Gateway;
use indicatif::{ProgressBar, ProgressStyle};
use models::{ControlMode, Manager, ManagerConfig, ModelState, Registry, StartProgress};
use repository::Transfer;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use telemetry::{Metrics, logs};
use tokio::signal::unix::{SignalKind, signal};

/// After the time for a stop is over and connections are cut off, so much is left for everything else.
const LAST_STEPS: std::time::Duration = std::time::Duration::from_secs(5);
/// The exit code of a process that ends without something that hangs.
const LEFT_BEHIND: i32 = 75;
/// How often downloads are logged.
const LINE_EVERY: std::time::Duration = std::time::Duration::from_secs(10);

/// Serves until it is told to stop.
pub fn run(options: ServeOptions) -> Result<()> {
    let served = serve(options);
    logs::flush();
    served
}

fn serve(options: ServeOptions) -> Result<()> {
    let options = options.with_file()?;
    let (format, filter) = options.logs()?;
    logs::init(format, &filter)?;
    let sources = options.sources()?;
    let control = options.control()?;
    if control == ControlMode::Auto {
        tracing::info!("--model-control-mode auto is poll here: clients may not load or unload models");
    }
    let precision = options.choices(None).precision()?;
    let (devices, runtime) = options.open(options.cache(&sources))?;
    let metrics = Metrics::new();
    let config = options.controller(&devices, &runtime)?;
    let recorders = options.recorders(&config)?;
    let controller = Controller::start_recorded(config, recorders, metrics.clone())
        .context("the device's threads could not be started")?;

    if devices.divisions.len() > 1 {
        let kinds = (0..devices.divisions.len()).map(|division| devices.kinds(division)).collect();
        controller.set_divisions(Divisions::new(Arc::clone(&runtime.engine), devices.divisions.clone(), kinds));
    }
    if options.divides_by_itself() {
        let follower =
            controller.follow_shares(devices.kind.gap()).map_err(|reason| anyhow!("--shares auto: {reason}"))?;
        follower.start().context("a thread could not be started")?;
    }

    if devices.wide_threads() > 1 {
        let follower = controller.follow_cores().map_err(|reason| anyhow!("--cpu-division auto: {reason}"))?;
        follower.start().context("a thread could not be started")?;
    }

    // Ports first: a port in use should be said before a minute of preparing models.
    let front = gateway::Config { host_memory: runtime.engine.host_memory(), ..options.gateway()? };
    let (registry, engine) = (Registry::default(), Arc::clone(&runtime.engine));
    let (grace, keeps_answers) = (front.shutdown_grace, front.cache_bytes > 0);
    if keeps_answers && front.memory_limit.is_some_and(|limit| front.cache_bytes > limit / 2) {
        let (size, limit) = (ByteSize(front.cache_bytes), ByteSize(front.memory_limit.unwrap_or(u64::MAX)));
        tracing::warn!(
            "the cache of answers may have {size} of the {limit} that the process may have: from 80 % on it is emptied"
        );
    }
    let gateway = Gateway::start(front, controller.clone(), registry.clone(), metrics)?;
    let manager = Manager::start(
        controller.clone(),
        registry.clone(),
        ManagerConfig {
            cache: options.cache(&sources),
            manifest: options.manifest()?,
            sources,
            control,
            publish_at_start: options.load_model.clone().unwrap_or_default(),
            poll: options.poll(),
            device_kind: runtime.kind,
            precision,
            default_objective: options.default_objective()?,
            // Each device executes one batch at a time.
            execution_bytes: defaults::workspace_bytes() / u64::from(devices.count.max(1)),
            effort: options.effort(),
            ready_soon: options.is_ready_soon(),
            sizes_every: ManagerConfig::SIZES_EVERY,
            compare_every: ManagerConfig::COMPARE_EVERY,
            keeps_answers,
            max_preparing: options.max_preparing()?,
            progress: progress(),
            transfer: transfer(),
            engine: runtime.engine,
        },
    )
    .map_err(|reason| anyhow!("--model-repository: {reason}"))?;

    let stop = stop_signal()?;
    let serving = wait_until_started(&registry, &gateway, &manager, &stop, options.tls()?.is_some())?;
    if serving {
        // Fails only if the signal thread is gone, which is a reason to stop as well.
        let _ = stop.recv();
    }
    tracing::info!("stopping: what is in flight is answered first");
    end_within(grace.saturating_add(LAST_STEPS), controller.clone())?;
    gateway.shutdown();
    drop(manager);
    controller.stop();
    engine.end();
    tracing::info!("stopped");
    Ok(())
}

/// Ends the process after so long, whatever hangs, unless it has ended before.
fn end_within(time: std::time::Duration, controller: Controller) -> Result<()> {
    let end = move || {
        std::thread::sleep(time);
        let (requests, under_way) = (controller.in_hand(), controller.under_way().join(", "));
        tracing::error!(requests, under_way, "the process ends without what is under way: the time for a stop is over");
        logs::flush();
        engine_ort::end_process(LEFT_BEHIND);
    };
    std::thread::Builder::new().name("end".into()).spawn(end)?;
    Ok(())
}

/// A bar while models are prepared, where somebody looks on.
fn progress() -> Box<dyn Fn(&StartProgress) + Send + Sync> {
    if !std::io::stderr().is_terminal() {
        return Box::new(|_| {});
    }
    let style = ProgressStyle::with_template("preparing models {bar:30} {pos}/{len} {msg}");
    let bar = ProgressBar::no_length().with_style(style.expect("the template is well formed"));
    Box::new(move |progress| {
        bar.set_length(progress.total as u64);
        bar.set_position(progress.done as u64);
        bar.set_message(progress.current.clone());
        if progress.done == progress.total {
            bar.finish_and_clear();
        }
    })
}

/// A bar while models are downloaded, or a line every ten seconds where nobody looks on.
fn transfer() -> Box<dyn Fn(&Transfer) + Send + Sync> {
    if !std::io::stderr().is_terminal() {
        let last = Mutex::new(Instant::now());
        return Box::new(move |transfer| {
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.elapsed() > LINE_EVERY || transfer.done_bytes == transfer.total_bytes {
                *last = Instant::now();
                let (done, total) = (ByteSize(transfer.done_bytes), ByteSize(transfer.total_bytes));
                tracing::info!(files = transfer.files, "downloaded {done} of {total}");
            }
        });
    }
    let style = ProgressStyle::with_template("downloading models {bar:30} {bytes}/{total_bytes} {msg}");
    let bar = ProgressBar::no_length().with_style(style.expect("the template is well formed"));
    Box::new(move |transfer| {
        bar.set_length(transfer.total_bytes);
        bar.set_position(transfer.done_bytes);
        bar.set_message(transfer.current.clone());
        if transfer.done_bytes == transfer.total_bytes {
            bar.finish_and_clear();
        }
    })
}

/// Receives once when the process is told to stop: Ctrl-C or SIGTERM.
fn stop_signal() -> Result<Receiver<()>> {
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut terminate = {
        let _inside = runtime.enter();
        signal(SignalKind::terminate())?
    };
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            let _ = sender.send(());
            // Told again while it stops: somebody is out of patience.
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
            logs::flush();
            engine_ort::end_process(130);
        });
    })?;
    Ok(receiver)
}

/// Waits for the first models, or for the signal to stop, and says where to find the server.
fn wait_until_started(
    registry: &Registry,
    gateway: &Gateway,
    manager: &Manager,
    stop: &Receiver<()>,
    encrypted: bool,
) -> Result<bool> {
    loop {
        match manager.started() {
            Some(Ok(())) => break,
            Some(Err(reason)) => bail!("--model-repository: {reason}"),
            None => {}
        }
        match stop.recv_timeout(std::time::Duration::from_millis(20)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(false),
        }
    }
    gateway.set_ready();
    let catalogue = registry.catalogue();
    let versions = || catalogue.models.values().flat_map(|model| model.versions.values());
    let ready = versions().filter(|entry| entry.serving().is_some()).count();
    println!("punctual serves {ready} of {} models", versions().count());
    for entry in versions() {
        if let ModelState::Broken(reason) | ModelState::Waiting(reason) = entry.state() {
            println!("  not served: {} {}: {reason}", entry.name, entry.version);
        }
    }
    let show = |address: Option<SocketAddr>| address.map_or_else(|| "off".into(), |address| address.to_string());
    let scheme = if encrypted { "https" } else { "http" };
    println!("  HTTP     {scheme}://{}", show(gateway.http_address()));
    println!("  gRPC     {}", show(gateway.grpc_address()));
    println!("  metrics  {scheme}://{}/metrics", show(gateway.metrics_address()));
    if let (Some(address), Some(line)) = (gateway.http_address(), example::curl(&catalogue)) {
        println!(
            "try it:\n  {}",
            line.replace("HOST", &address.to_string()).replace("http://", &format!("{scheme}://"))
        );
    }
    Ok(true)
}
