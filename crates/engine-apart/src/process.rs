//! The server's side of an engine's process: its start, what it is told and asked, and its end.

use crate::ApartOptions;
use crate::checks::TakenOutputs;
use crate::messages::{
    AllowedPaths, BatchAnswer, BatchOrder, Beginning, FromEngine, PlacedTensor, ToEngine, framed, next, number_of,
    sentence,
};
use crate::region::{DATA_AT, GONE, MOVED, SharedRegion, aligned};
use base::TensorSpec;
use engine::{EngineError, Input};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{self, BufRead as _, BufReader, IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A process that hasn't loaded its runtime after so long hangs.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// A process that doesn't take a message for so long hangs.
const TAKES_WITHIN: Duration = Duration::from_secs(1);
/// How often it is looked whether somebody still waits for an answer.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// A batch that is told to end has so long: runtimes look before each node of a graph, of which few take longer.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// A region of this size is kept, whatever batches need by now; a larger one goes when a batch needs less than a
/// quarter of it.
const KEPT_BYTES: usize = 16 << 20;
/// The smallest region.
const LEAST_BYTES: usize = 1 << 20;
/// The outputs of a batch may take this part of what all executions may: the server makes room for as many bytes as a
/// process says.
const OUTPUT_PART: u64 = 4;
/// A line that a process writes is cut there.
const MAX_LINE: u64 = 4 << 10;

/// What of the server's environment a process is given: where libraries are, and how a panic is shown.
const ENVIRONMENT: [&str; 6] = [
    "LD_LIBRARY_PATH",
    "PUNCTUAL_ONNXRUNTIME",
    "ORT_DYLIB_PATH",
    "ORT_DISABLE_TELEMETRY",
    "OMP_NUM_THREADS",
    "RUST_BACKTRACE",
];

/// See the module. Dropping it ends the process.
pub(crate) struct EngineProcess {
    ties: Arc<ProcessTies>,
    answers: Mutex<Receiver<FromEngine>>,
    batches: Mutex<BatchLane>,
    most_output_bytes: u64,
    /// What the runtime says of itself.
    pub(crate) about: String,
}

/// What its threads share.
struct ProcessTies {
    /// For messages.
    name: String,
    child: Mutex<Child>,
    writer: Mutex<UnixStream>,
    region: Mutex<Arc<SharedRegion>>,
    /// Why the server ended it, if it did.
    ended_for: Mutex<Option<String>>,
    /// Whether that was because something took too long.
    overdue: AtomicBool,
    /// How often the kernel had ended a process for want of memory when this one started, where that is known.
    kills_for_memory: Option<u64>,
    /// Why it is there no more.
    gone: OnceLock<GoneProcess>,
    /// The number of the batch that it computes; 0 between two of them.
    computes: AtomicU64,
}

/// A process that is there no more.
#[derive(Clone, Debug)]
pub(crate) struct GoneProcess {
    /// How that came.
    pub(crate) why: String,
    /// Whether somebody else ended it.
    blameless: bool,
}

impl GoneProcess {
    pub(crate) fn into_loss(self) -> EngineError {
        EngineError::Lost { reason: self.why, blameless: self.blameless }
    }
}

/// What one batch after another needs.
struct BatchLane {
    region: Arc<SharedRegion>,
    /// Of the region's orders.
    number: u32,
    /// Of all.
    batches: u64,
    lingers: bool,
    /// What the outputs of a batch took at most, in this region.
    output_bytes: usize,
}

impl EngineProcess {
    /// Starts a process that may open those paths, and waits until its runtime is there.
    pub(crate) fn start(options: &ApartOptions, name: String, allowed: AllowedPaths) -> Result<Self, EngineError> {
        let unavailable = |reason: String| EngineError::Unavailable { runtime: options.runtime, reason };
        let failed = |error: io::Error| unavailable(format!("a process for it could not be started: {error}"));
        let region = Arc::new(SharedRegion::new(LEAST_BYTES).map_err(failed)?);
        let (sender, answers) = mpsc::sync_channel(2);
        let (started, starts) = mpsc::sync_channel(1);
        let (command, region_there) = (command(&options.program, &options.arguments), Arc::clone(&region));
        // The kernel takes the end of the thread that starts a process for the end of its parent: this one lives
        // longer.
        let attend = move || {
            let begun = spawn(command, name, region_there);
            let Ok((ties, reader, said)) = begun.map_err(|error| started.send(Err(error))) else { return };
            let ties_here = Arc::clone(&ties);
            let _ = started.send(Ok(ties));
            std::thread::scope(|scope| {
                scope.spawn(|| relay(&ties_here.name, said));
                ties_here.attend(reader, &sender);
            });
        };
        std::thread::Builder::new().name("engine".into()).spawn(attend).map_err(failed)?;
        let no_thread = || Err(io::Error::other("its thread ended"));
        let ties = starts.recv().unwrap_or_else(|_| no_thread()).map_err(failed)?;
        let lane = BatchLane { region: Arc::clone(&region), number: 0, batches: 0, lingers: false, output_bytes: 0 };
        let (answers, batches) = (Mutex::new(answers), Mutex::new(lane));
        let most_output_bytes = options.inner.workspace_bytes / OUTPUT_PART;
        let mut process = Self { ties, answers, batches, most_output_bytes, about: String::new() };
        let parent = rustix::process::getpid().as_raw_nonzero().get();
        let beginning = Beginning { options: options.inner.clone(), parent, allowed };
        process.ties.send(&ToEngine::Begin(beginning), None);
        process.ties.send(&ToEngine::Region, Some(&region));
        match process.answer(STARTS_WITHIN, None) {
            Ok(FromEngine::Ready { about, rights }) => {
                tracing::info!(process = process.ties.name, "an engine's process is there: {}", sentence(&rights));
                process.about = sentence(&about);
                Ok(process)
            }
            Ok(FromEngine::Refused(failure)) => Err(failure.about(Path::new(""), options.runtime)),
            Ok(FromEngine::Prepared(_)) => Err(unavailable("its process answers what nobody asked".into())),
            Err(gone) => Err(unavailable(gone.why)),
        }
    }

    /// Asks for something that is answered, and waits for that. The error says why no answer will come.
    pub(crate) fn ask(&self, message: &ToEngine, given_up: Option<&AtomicBool>) -> Result<FromEngine, GoneProcess> {
        // One question at a time.
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        self.ties.send(message, None);
        wait_for(&answers, &self.ties, Duration::MAX, given_up)
    }

    fn answer(&self, limit: Duration, given_up: Option<&AtomicBool>) -> Result<FromEngine, GoneProcess> {
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        wait_for(&answers, &self.ties, limit, given_up)
    }

    /// Tells it something that isn't answered.
    pub(crate) fn tell(&self, message: &ToEngine) {
        if self.gone().is_none() {
            self.ties.send(message, None);
        }
    }

    /// Why it is there no more, if it isn't.
    pub(crate) fn gone(&self) -> Option<&GoneProcess> {
        self.ties.gone.get()
    }

    /// Ends it because something takes too long.
    pub(crate) fn end_overdue(&self, what: &str) {
        self.ties.end(&format!("{what} took longer than it may"));
    }

    /// Has the batch that is computed broken off, or the process ended if it goes on.
    pub(crate) fn break_off(&self) {
        let batch = self.ties.computes.load(Ordering::Acquire);
        if batch == 0 {
            return;
        }
        self.ties.send(&ToEngine::BreakOff { batch }, None);
        let ties = Arc::clone(&self.ties);
        let end = move || {
            std::thread::sleep(ENDS_WITHIN);
            if ties.computes.load(Ordering::Acquire) == batch {
                ties.overdue.store(true, Ordering::Relaxed);
                ties.end("an execution took longer than it may, and didn't end when it was told to");
            }
        };
        if std::thread::Builder::new().name("end engine".into()).spawn(end).is_err() {
            self.ties.overdue.store(true, Ordering::Relaxed);
            self.end_overdue("an execution");
        }
    }

    /// Computes a batch and takes its outputs.
    pub(crate) fn run(
        &self,
        handle: u32,
        inputs: &[Input],
        outputs: &[TensorSpec],
        into: &mut TakenOutputs,
    ) -> Result<(), EngineError> {
        let mut lane = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        lane.batches += 1;
        self.ties.computes.store(lane.batches, Ordering::Release);
        let outcome = self.run_in(&mut lane, handle, inputs, outputs, into);
        self.ties.computes.store(0, Ordering::Release);
        outcome.map_err(|lost| match lost {
            Unanswered::Error(error) => error,
            Unanswered::Nonsense(what) => {
                self.ties.end(&format!("its answer makes no sense: {what}"));
                let reason = format!("the answer of {} makes no sense: {what}", self.ties.name);
                EngineError::Lost { reason, blameless: false }
            }
            Unanswered::Gone if self.ties.overdue.load(Ordering::Relaxed) => EngineError::BrokenOff,
            Unanswered::Gone => self.ties.wait_for_end().into_loss(),
        })
    }

    fn run_in(
        &self,
        lane: &mut BatchLane,
        handle: u32,
        inputs: &[Input],
        outputs: &[TensorSpec],
        into: &mut TakenOutputs,
    ) -> Result<(), Unanswered> {
        let (placed, end) = places(inputs).ok_or_else(too_large)?;
        self.fit(lane, end)?;
        let pieces = inputs.iter().zip(&placed).flat_map(|(input, place)| {
            let ends = input.pieces.iter().scan(place.at as usize, |at, piece| {
                *at += piece.len();
                Some((*at - piece.len(), piece))
            });
            ends.collect::<Vec<_>>()
        });
        for (at, piece) in pieces {
            if !lane.region.write(at, piece) {
                return Err(too_large());
            }
        }
        let order = BatchOrder::Compute { batch: lane.batches, handle, inputs: placed, end: end as u64 };
        let mut answer = self.order(lane, &order)?;
        if let BatchAnswer::TooSmall(bytes) = answer {
            let fits = usize::try_from(bytes).ok().filter(|_| bytes <= self.most_output_bytes);
            let bytes = fits.ok_or_else(|| {
                let most = self.most_output_bytes;
                let reason = format!("its outputs have {bytes} bytes, and may have {most} with --isolate");
                Unanswered::Error(EngineError::Execute(reason))
            })?;
            self.replace(lane, DATA_AT + bytes)?;
            lane.output_bytes = bytes;
            answer = self.order(lane, &BatchOrder::HandOut)?;
        }
        match answer {
            BatchAnswer::Computed(said) => {
                into.take(&lane.region, said, outputs).map_err(Unanswered::Nonsense)?;
                lane.output_bytes = lane.output_bytes.max(into.data.len());
                Ok(())
            }
            BatchAnswer::Failed(failure) => Err(Unanswered::Error(failure.about(Path::new(""), ""))),
            BatchAnswer::TooSmall(_) => Err(Unanswered::Nonsense("outputs grow".into())),
        }
    }

    /// Gives an order, and waits for the answer.
    fn order(&self, lane: &mut BatchLane, order: &BatchOrder) -> Result<BatchAnswer, Unanswered> {
        let text = postcard::to_extend(order, Vec::new()).ok().filter(|text| lane.region.set_order(text));
        if text.is_none() {
            let reason = "the model has more inputs than a process of its own is told of";
            return Err(Unanswered::Error(EngineError::Execute(reason.into())));
        }
        let (seen, number) = (lane.number, lane.number + 1);
        lane.number = number;
        lane.region.order().give(number);
        let answered = lane.region.answer().wait(seen, &mut lane.lingers, || self.gone().is_some());
        // Who wakes us for its end has noted it before: a process that says so itself lies, and is ended for it.
        if answered.is_none() || self.gone().is_some() {
            return Err(Unanswered::Gone);
        }
        if answered != Some(number) {
            return Err(Unanswered::Nonsense("it answers another order".into()));
        }
        let text = lane.region.answer_text().ok_or_else(|| Unanswered::Nonsense("it is too long".into()))?;
        postcard::from_bytes(&text).map_err(|error| Unanswered::Nonsense(error.to_string()))
    }

    /// Another region where inputs that end there, and outputs as before, don't fit into this one, or it is far too
    /// large.
    fn fit(&self, lane: &mut BatchLane, end: usize) -> Result<(), Unanswered> {
        let (has, needs) = (lane.region.bytes(), end.saturating_add(lane.output_bytes));
        let too_many = has > KEPT_BYTES && has / 4 > needs;
        // No order of a region has the number that means that there is another one.
        let worn_out = lane.number >= MOVED - 2;
        if end <= has && !too_many && !worn_out {
            return Ok(());
        }
        if too_many {
            lane.output_bytes = 0;
        }
        self.replace(lane, needs)
    }

    fn replace(&self, lane: &mut BatchLane, bytes: usize) -> Result<(), Unanswered> {
        let bytes = bytes.checked_next_power_of_two().ok_or_else(too_large)?.max(LEAST_BYTES);
        let region = SharedRegion::new(bytes).map_err(|error| {
            let reason = format!("{bytes} bytes for a batch can't be had: {error}");
            Unanswered::Error(EngineError::Execute(reason))
        })?;
        let region = Arc::new(region);
        self.ties.send(&ToEngine::Region, Some(&region));
        *self.ties.region() = Arc::clone(&region);
        lane.region.order().give(MOVED);
        (lane.region, lane.number) = (region, 0);
        Ok(())
    }
}

/// Why a batch has no outputs.
enum Unanswered {
    Error(EngineError),
    /// The process is out of its mind.
    Nonsense(String),
    Gone,
}

fn too_large() -> Unanswered {
    Unanswered::Error(EngineError::Execute("its inputs are more than memory holds".into()))
}

/// Where inputs go, and where the last one ends.
fn places(inputs: &[Input]) -> Option<(Vec<PlacedTensor>, usize)> {
    let mut end = DATA_AT;
    let mut place = |input: &Input| {
        let (at, bytes) = (aligned(end)?, input.bytes());
        end = at.checked_add(bytes)?;
        let (datatype, shape) = (number_of(input.datatype), input.shape.clone());
        Some(PlacedTensor { datatype, shape, at: at as u64, bytes: bytes as u64 })
    };
    let placed = inputs.iter().map(&mut place).collect::<Option<_>>()?;
    Some((placed, end))
}

fn command(program: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new(program);
    command.arg0("punctual").args(arguments).env_clear().stdout(Stdio::null()).stderr(Stdio::piped());
    command.envs(ENVIRONMENT.iter().filter_map(|name| Some((name, std::env::var_os(name)?))));
    command
}

/// Starts the process. Its standard input is the socket: nothing else has to be inherited.
fn spawn(
    mut command: Command,
    name: String,
    region: Arc<SharedRegion>,
) -> io::Result<(Arc<ProcessTies>, UnixStream, ChildStderr)> {
    let (here, there) = UnixStream::pair()?;
    here.set_write_timeout(Some(TAKES_WITHIN))?;
    let mut child = command.stdin(Stdio::from(OwnedFd::from(there))).spawn()?;
    let said = child.stderr.take().ok_or_else(|| io::Error::other("it has no standard error"))?;
    let (reader, writer) = (here.try_clone()?, Mutex::new(here));
    let ties = ProcessTies {
        name,
        child: Mutex::new(child),
        writer,
        region: Mutex::new(region),
        ended_for: Mutex::default(),
        kills_for_memory: kills_for_memory(),
        overdue: AtomicBool::new(false),
        gone: OnceLock::new(),
        computes: AtomicU64::new(0),
    };
    Ok((Arc::new(ties), reader, said))
}

/// Logs what a process writes, line by line.
fn relay(name: &str, said: ChildStderr) {
    let mut lines = BufReader::new(said);
    loop {
        let mut line = Vec::new();
        match (&mut lines).take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(1..) => {}
            Ok(0) | Err(_) => return,
        }
        let line = String::from_utf8_lossy(&line);
        tracing::warn!(process = name, "its engine says: {}", line.trim_end());
    }
}

/// The next answer.
fn wait_for(
    answers: &Receiver<FromEngine>,
    ties: &ProcessTies,
    limit: Duration,
    given_up: Option<&AtomicBool>,
) -> Result<FromEngine, GoneProcess> {
    let mut waited = Duration::ZERO;
    loop {
        match answers.recv_timeout(LOOK_EVERY) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Disconnected) => return Err(ties.wait_for_end()),
            Err(RecvTimeoutError::Timeout) => waited += LOOK_EVERY,
        }
        if given_up.is_some_and(|given_up| given_up.load(Ordering::Relaxed)) {
            ties.end("nobody waits for it any more");
        } else if waited > limit {
            ties.end("it took too long to start");
        }
    }
}

impl ProcessTies {
    fn region(&self) -> MutexGuard<'_, Arc<SharedRegion>> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message. A process that doesn't take it is ended.
    fn send(&self, message: &ToEngine, region: Option<&SharedRegion>) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = framed(message).and_then(|bytes| {
            let mut rest = &bytes[..];
            let mut along = region.map(SharedRegion::descriptor);
            while !rest.is_empty() {
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
                let mut control = SendAncillaryBuffer::new(&mut space);
                let descriptors: Vec<_> = along.take().into_iter().collect();
                if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
                    return Err(io::Error::other("a descriptor finds no room"));
                }
                let sent = sendmsg(writer.as_fd(), &[IoSlice::new(rest)], &mut control, SendFlags::NOSIGNAL)?;
                rest = &rest[sent..];
            }
            Ok(())
        });
        if let Err(error) = sent {
            self.end(&format!("it takes no messages any more ({error})"));
        }
    }

    /// Ends the process. The first reason counts.
    fn end(&self, why: &str) {
        self.ended_for.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.to_owned());
        // It may have ended by itself.
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }

    /// Hands answers to whoever asked, until the process ends; whatever it was, it is over then.
    fn attend(&self, mut reader: UnixStream, answers: &SyncSender<FromEngine>) {
        // One answer for a question: one that nobody asked for is the last.
        while let Ok(Some(answer)) = next(&mut reader) {
            if answers.try_send(answer).is_err() {
                break;
            }
        }
        let status = {
            let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = child.kill();
            child.wait()
        };
        // A fault isn't a kill, and one for want of memory may be what it computed.
        let signal = status.as_ref().ok().and_then(ExitStatus::signal);
        let killed = signal == Some(libc::SIGKILL) && kills_for_memory() == self.kills_for_memory;
        let ended_for = self.ended_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let blameless = killed && ended_for.is_none();
        let why = match (ended_for, status) {
            (Some(why), _) => format!("the engine's process was ended: {why}"),
            (None, Ok(status)) => format!("the engine's process {}", how(status)),
            (None, Err(error)) => format!("the engine's process is gone: {error}"),
        };
        tracing::debug!(process = self.name, "{why}");
        let _ = self.gone.set(GoneProcess { why, blameless });
        // Behind the line above: who sees neither the one nor the other is woken.
        self.region().answer().give(GONE);
    }

    /// Why it is gone, once the thread that attends to it knows.
    fn wait_for_end(&self) -> GoneProcess {
        self.gone.wait().clone()
    }
}

impl Drop for EngineProcess {
    fn drop(&mut self) {
        self.ties.end("nobody needs it any more");
    }
}

/// How often the kernel has ended a process for want of memory.
fn kills_for_memory() -> Option<u64> {
    let counters = std::fs::read_to_string("/proc/vmstat").ok()?;
    counters.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

/// How a process ended.
fn how(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("ended with the code {}", status.code().unwrap_or(-1));
    };
    let name = match signal {
        libc::SIGILL => "SIGILL",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGSEGV => "SIGSEGV",
        _ => "",
    };
    format!("was ended by signal {signal} {name}").trim_end().to_owned()
}
