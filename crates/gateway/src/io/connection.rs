//! A client's connection: what it is doing, and the sweep that closes those that do nothing for too long.
//!
//! Time is counted by the sweep itself, in whole seconds, so that a connection reads no clock and sets no timer.
//! hyper's own limit (`header_read_timeout`) sets a timer for each head, and knows neither slow bodies nor answers that
//! nobody takes.

use crate::Config;
use crate::io::ServerState;
use crate::io::accept::Protocol;
use crate::io::movement::{Movement, TICK, is_over, span};
use crate::io::shortage::MemoryStep;
use crate::io::streams::{StreamKey, Streams};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// What a connection is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing asked.
    Idle,
    /// Some bytes of a request's head are there.
    Head,
    /// The body is being read.
    Body,
    /// The request is the server's to answer.
    Busy,
    /// The answer is being written.
    Writing,
    /// Served; the client is given the time to take the last of it.
    Lingering,
}

impl Phase {
    /// By number.
    const ALL: [Self; 6] = [Self::Idle, Self::Head, Self::Body, Self::Busy, Self::Writing, Self::Lingering];
}

/// How long a client may take to close a connection that was served to its end.
const LINGER: Duration = Duration::from_secs(2);
/// When the server goes down, answers that nobody has taken anything of for so long aren't waited for.
const STILL: Duration = Duration::from_secs(5);

/// What a client of HTTP/2, and so of gRPC, sends before anything else: 24 bytes that say what it speaks, and the head
/// of a frame.
const GREETING_BYTES: u32 = 33;

/// What a connection is doing and since when. Written by its own thread only.
#[derive(Debug)]
pub(crate) struct Activity {
    /// A [`Phase`].
    phase: AtomicU8,
    since: AtomicU32,
    clock: Arc<Clock>,
    /// Whether it may only ask for the server's health.
    probes: AtomicBool,
    /// Whether calls share the connection, as they do in HTTP/2 and so in gRPC.
    multiplexed: AtomicBool,
    /// What is left of an HTTP/2 client's greeting.
    greeting_left: AtomicU32,
    /// When the body or the answer began that moves, where there is one at a time.
    began: AtomicU32,
    /// What has moved of it.
    bytes: AtomicU64,
    /// Calls on it that aren't over, where they share it.
    streams: Mutex<Streams>,
    peer: OnceLock<SocketAddr>,
}

/// What the connections of a thread count together.
#[derive(Debug, Default)]
struct Clock {
    seconds: AtomicU32,
    /// Grows with each write, and with each sign that a client takes what was written.
    moves: AtomicU32,
}

impl Clock {
    fn now(&self) -> u32 {
        self.seconds.load(Ordering::Relaxed)
    }
}

impl Activity {
    /// Where the client is, as far as that is known.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.peer.get().copied()
    }

    /// Says where the client is.
    pub(crate) fn comes_from(&self, peer: SocketAddr) {
        self.peer.get_or_init(|| peer);
    }

    fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
        self.since.store(self.clock.now(), Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        Phase::ALL[usize::from(self.phase.load(Ordering::Relaxed))]
    }

    /// Whether calls share the connection.
    pub(crate) fn is_multiplexed(&self) -> bool {
        self.multiplexed.load(Ordering::Relaxed)
    }

    /// The client speaks HTTP/2: it introduces itself first, and calls count for themselves.
    pub(crate) fn multiplexes(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
        self.enter(Phase::Head);
    }

    /// All other connections are taken: it may only ask for the server's health.
    pub(crate) fn only_probes(&self) {
        self.probes.store(true, Ordering::Relaxed);
    }

    /// Whether it may only ask for the server's health.
    pub(crate) fn is_probe(&self) -> bool {
        self.probes.load(Ordering::Relaxed)
    }

    /// How long it has had nothing to do for the client; `None` where the server has.
    fn idled(&self, now: u32) -> Option<Duration> {
        let idles = matches!(self.phase(), Phase::Idle | Phase::Head | Phase::Lingering);
        idles.then(|| span(self.since.load(Ordering::Relaxed), now))
    }

    /// Nothing is asked yet.
    pub(crate) fn rests(&self) {
        self.enter(Phase::Idle);
    }

    /// Where there is one request at a time, this is what happens to it.
    fn enter_alone(&self, phase: Phase) {
        if !self.is_multiplexed() {
            self.enter(phase);
        }
    }

    /// Something begins that must move: a body, or an answer.
    fn begin_alone(&self, phase: Phase) {
        if !self.is_multiplexed() {
            self.enter(phase);
            self.began.store(self.clock.now(), Ordering::Relaxed);
            self.bytes.store(0, Ordering::Relaxed);
        }
    }

    /// So much more of it moved.
    fn moves(&self, phase: Phase, bytes: usize) {
        self.enter(phase);
        self.bytes.store(self.bytes.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
    }

    fn movement(&self) -> Movement {
        let (began, moved) = (self.began.load(Ordering::Relaxed), self.since.load(Ordering::Relaxed));
        Movement::of(began, moved, self.bytes.load(Ordering::Relaxed))
    }

    /// A request's head is complete.
    pub(crate) fn reads_body(&self) {
        self.begin_alone(Phase::Body);
    }

    /// A request's body is complete.
    pub(crate) fn busy(&self) {
        self.enter_alone(Phase::Busy);
    }

    /// A request's answer is known, and about to be written.
    pub(crate) fn answers(&self) {
        self.begin_alone(Phase::Writing);
    }

    /// A call begins on a connection that calls share.
    pub(crate) fn stream_begins(&self) -> StreamKey {
        self.enter(Phase::Busy);
        lock(&self.streams).begin()
    }

    /// The call that began last runs as this task.
    pub(crate) fn stream_runs(&self, task: AbortHandle) {
        lock(&self.streams).run(task);
    }

    /// So much more of the answer to a call is for the client to take.
    pub(crate) fn stream_answers(&self, key: StreamKey, bytes: usize) {
        lock(&self.streams).answer(key, self.clock.now(), bytes);
    }

    /// There is nothing for the client to take until the server has more.
    pub(crate) fn stream_waits(&self, key: StreamKey) {
        lock(&self.streams).wait(key);
    }

    /// A call is over on a connection that calls share.
    pub(crate) fn stream_ends(&self, key: StreamKey) {
        if lock(&self.streams).end(key) {
            self.enter(Phase::Idle);
        }
    }

    /// Answers that are being written and have stood still for this long.
    fn still_answers(&self, now: u32, patience: Duration) -> usize {
        if self.is_multiplexed() {
            return lock(&self.streams).still(now, patience);
        }
        usize::from(self.phase() == Phase::Writing && is_over(self.movement().stood(now), patience))
    }

    /// The connection is served; only the client's goodbye is missing.
    fn lingers(&self) {
        self.enter(Phase::Lingering);
    }

    /// The peer shows that it is still reading.
    fn moved(&self) {
        self.clock.moves.fetch_add(1, Ordering::Relaxed);
    }

    fn received(&self, bytes: usize) {
        if self.is_multiplexed() {
            return self.greeted(bytes);
        }
        match self.phase() {
            Phase::Idle => self.enter(Phase::Head),
            Phase::Body => self.moves(Phase::Body, bytes),
            // A head must be complete in time, however slowly it drips; what comes while the server is busy is the
            // next request's, and counts when that one starts.
            Phase::Head | Phase::Busy | Phase::Writing | Phase::Lingering => {}
        }
    }

    /// Calls count for themselves, so only the greeting is watched.
    fn greeted(&self, bytes: usize) {
        if self.phase() == Phase::Head {
            let left = self.greeting_left.load(Ordering::Relaxed);
            let left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
            self.greeting_left.store(left, Ordering::Relaxed);
            if left == 0 {
                self.enter(Phase::Idle);
            }
        }
    }

    /// Something was written; more of the same answer may follow.
    fn wrote(&self, bytes: usize) {
        self.moved();
        if !self.is_multiplexed() && matches!(self.phase(), Phase::Idle | Phase::Writing) {
            self.moves(Phase::Writing, bytes);
        }
    }

    /// Everything that there was to write is written.
    fn flushed(&self) {
        if self.phase() == Phase::Writing {
            self.enter(Phase::Idle);
        }
    }
}

/// The connections of one io thread that are watched.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    clock: Arc<Clock>,
    /// Only this thread locks it.
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    next_key: u64,
    /// Those that may make room for others, the one that idles for longest last; `None` when it isn't known.
    idle: Option<Vec<u64>>,
    watched: HashMap<u64, (Arc<Activity>, AbortHandle)>,
}

/// A connection's place among those that are watched.
#[derive(Debug)]
pub(crate) struct Registration {
    connections: Arc<Connections>,
    key: u64,
}

impl Registration {
    /// Its number.
    pub(crate) fn key(&self) -> u64 {
        self.key
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.connections.open().watched.remove(&self.key);
    }
}

impl OpenConnections {
    /// Those that idle, the one that does for longest last; of those that do equally long, the one that was opened
    /// first.
    fn idle(&self, now: u32) -> Vec<u64> {
        let idles =
            |(&key, (activity, _)): (&u64, &(Arc<Activity>, AbortHandle))| Some((activity.idled(now)?, Reverse(key)));
        let mut idle: Vec<_> = self.watched.iter().filter_map(idles).collect();
        idle.sort_unstable();
        idle.into_iter().map(|(_, Reverse(key))| key).collect()
    }
}

impl Connections {
    /// A new connection's activity.
    pub(crate) fn activity(&self, protocol: Protocol) -> Arc<Activity> {
        let phase = match protocol {
            Protocol::Http => Phase::Idle,
            Protocol::Grpc => Phase::Head,
        };
        Arc::new(Activity {
            phase: AtomicU8::new(phase as u8),
            since: AtomicU32::new(self.clock.now()),
            clock: Arc::clone(&self.clock),
            probes: AtomicBool::new(false),
            multiplexed: AtomicBool::new(protocol == Protocol::Grpc),
            greeting_left: AtomicU32::new(GREETING_BYTES),
            began: AtomicU32::new(self.clock.now()),
            bytes: AtomicU64::new(0),
            streams: Mutex::default(),
            peer: OnceLock::new(),
        })
    }

    /// Whether an answer is being written to somebody who takes it, where there is one at a time.
    pub(crate) fn any_writes(&self) -> bool {
        let now = self.clock.now();
        let writes =
            |activity: &Activity| activity.phase() == Phase::Writing && activity.still_answers(now, STILL) == 0;
        self.open().watched.values().any(|(activity, _)| writes(activity))
    }

    /// Answers to calls that share their connections and that nobody takes.
    pub(crate) fn still_streams(&self) -> usize {
        let now = self.clock.now();
        let shared = |activity: &&Arc<Activity>| activity.is_multiplexed();
        let open = self.open();
        open.watched.values().map(|(activity, _)| activity).filter(shared).map(|a| a.still_answers(now, STILL)).sum()
    }

    /// A count that changes while answers are written or taken; wraps.
    pub(crate) fn moves(&self) -> u32 {
        self.clock.moves.load(Ordering::Relaxed)
    }

    /// A place for a connection that is about to start; given up when the registration is dropped, however it ends.
    pub(crate) fn register(self: &Arc<Self>) -> Registration {
        let mut open = self.open();
        open.next_key += 1;
        Registration { connections: Arc::clone(self), key: open.next_key }
    }

    /// Watches a connection whose task has not run yet.
    pub(crate) fn watch(&self, key: u64, activity: Arc<Activity>, task: AbortHandle) {
        self.open().watched.insert(key, (activity, task));
    }

    fn open(&self) -> MutexGuard<'_, OpenConnections> {
        lock(&self.open)
    }

    /// Closes the connection that has idled for longest, for at least a second, so that there is room for another one.
    /// Who idles is looked for once in a second, however many ask.
    pub(crate) fn make_room(&self) -> bool {
        let now = self.clock.now();
        let mut open = self.open();
        let idle = open.idle.take();
        let mut idle = idle.unwrap_or_else(|| open.idle(now));
        let next = std::iter::from_fn(|| idle.pop()).find_map(|key| {
            let idled = open.watched.get(&key).and_then(|(activity, _)| activity.idled(now));
            idled.filter(|&idled| is_over(idled, TICK)).and_then(|_| open.watched.remove(&key))
        });
        open.idle = Some(idle);
        next.inspect(|(_, task)| task.abort()).is_some()
    }

    /// Closes the connection that has stood still for longest, whatever it is doing.
    pub(crate) fn close_stillest(&self) {
        let now = self.clock.now();
        let stood = |activity: &Activity| span(activity.since.load(Ordering::Relaxed), now);
        let mut open = self.open();
        // Of those that stood still equally long, the one that was opened first.
        let stillest = open.watched.iter().max_by_key(|(key, (activity, _))| (stood(activity), Reverse(**key)));
        if let Some(key) = stillest.map(|(&key, _)| key)
            && let Some((_, task)) = open.watched.remove(&key)
        {
            task.abort();
        }
    }

    /// Counts the seconds, and closes connections that stood still for too long. Runs until it is dropped.
    pub(crate) async fn sweep(&self, shared: &ServerState) {
        let mut second = tokio::time::interval(TICK);
        second.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            second.tick().await;
            self.sweep_once(&shared.config);
            if shared.memory.step() >= MemoryStep::NoIdlers {
                while self.make_room() {}
            }
        }
    }

    fn sweep_once(&self, config: &Config) {
        let now = self.clock.seconds.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut open = self.open();
        open.idle = None;
        for (activity, task) in open.watched.values() {
            let stood = span(activity.since.load(Ordering::Relaxed), now);
            let overdue = match activity.phase() {
                Phase::Idle => is_over(stood, config.idle_timeout),
                Phase::Head => is_over(stood, config.header_timeout),
                Phase::Body | Phase::Writing => activity.movement().is_overdue(now, config),
                Phase::Lingering => is_over(stood, LINGER),
                Phase::Busy => {
                    lock(&activity.streams).cut_off(now, config);
                    false
                }
            };
            if overdue {
                task.abort();
            }
        }
    }
}

/// What only one thread locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A socket that notes when something is received or written.
///
/// It is shared, because what serves a connection drops its half when it is done, and the socket must not be closed
/// then: see [`linger`].
#[derive(Debug)]
pub(crate) struct WatchedStream {
    stream: Arc<TcpStream>,
    activity: Arc<Activity>,
}

impl WatchedStream {
    pub(crate) fn new(stream: Arc<TcpStream>, activity: Arc<Activity>) -> Self {
        Self { stream, activity }
    }

    /// There was room for more than the socket had, so there is no need to ask it again, which would be a system call
    /// for each request: says so to the runtime. Nothing can have come in between that it had seen, because it looks at
    /// its sockets on this very thread.
    fn emptied(&self) {
        let _: io::Result<()> = self.stream.try_io(Interest::READABLE, || Err(io::ErrorKind::WouldBlock.into()));
    }

    /// Writes as soon as the socket takes something.
    fn write_with(
        &self,
        cx: &mut Context<'_>,
        write: impl Fn(&TcpStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    if let Ok(bytes) = outcome {
                        self.activity.wrote(bytes);
                    }
                    return Poll::Ready(outcome);
                }
            }
        }
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let room = buf.remaining();
            match self.stream.try_read_buf(buf) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                outcome => {
                    let received = outcome.as_ref().copied().unwrap_or(0);
                    if received > 0 && received < room {
                        self.emptied();
                    }
                    self.activity.received(received);
                    return Poll::Ready(outcome.map(drop));
                }
            }
        }
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.write_with(cx, |stream| stream.try_write(buf))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.activity.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(socket2::SockRef::from(&*self.stream).shutdown(Shutdown::Write))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write_with(cx, |stream| stream.try_write_vectored(bufs))
    }
}

/// Ends a connection whose serving is over so that the client gets all that was written.
///
/// A socket that is closed while something lies unread in it, or that receives something later, is reset, and a reset
/// throws away what the client hasn't read. A gRPC client sends frames while it reads an answer, so this is common.
/// Says that nothing more will come, then reads and forgets until the client closes too; one that doesn't is left to
/// the sweep.
pub(crate) async fn linger(stream: &TcpStream, activity: &Activity) {
    activity.lingers();
    // A client that is gone needs no goodbye.
    let _ = socket2::SockRef::from(stream).shutdown(Shutdown::Write);
    let mut forgotten = [0; 4096];
    while stream.readable().await.is_ok() {
        match stream.try_read(&mut forgotten) {
            Ok(0) => return,
            // It is still there, taking what was written.
            Ok(_) => activity.moved(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;

    /// A connection that enters `phase`, then stands still; how many seconds until it is closed?
    async fn seconds_until_closed(phase: Phase) -> Option<u32> {
        let config = Config {
            header_timeout: Duration::from_secs(3),
            body_timeout: Duration::from_secs(5),
            idle_timeout: Duration::from_secs(7),
            ..Config::default()
        };
        seconds_until_closed_with(phase, config).await
    }

    async fn seconds_until_closed_with(phase: Phase, config: Config) -> Option<u32> {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Http);
        activity.begin_alone(phase);
        let task = tokio::spawn(std::future::pending::<()>());
        connections.watch(1, activity, task.abort_handle());
        for second in 1..=20 {
            connections.sweep_once(&config);
            tokio::task::yield_now().await;
            if task.is_finished() {
                return Some(second);
            }
        }
        task.abort();
        None
    }

    #[tokio::test]
    async fn each_phase_has_its_patience() {
        assert_eq!(seconds_until_closed(Phase::Head).await, Some(4));
        assert_eq!(seconds_until_closed(Phase::Body).await, Some(6));
        assert_eq!(seconds_until_closed(Phase::Idle).await, Some(8));
        assert_eq!(seconds_until_closed(Phase::Lingering).await, Some(3));
        assert_eq!(
            seconds_until_closed(Phase::Writing).await,
            Some(6),
            "a client that doesn't read is like one that doesn't write"
        );
        assert_eq!(seconds_until_closed(Phase::Busy).await, None, "what the server owes an answer is not cut off");
    }

    /// A connection of that patience that was opened right before the sweep was closed at once.
    #[tokio::test]
    async fn a_patience_below_a_second_isnt_over_at_the_first_sweep() {
        let short = Duration::from_millis(300);
        let config = Config { header_timeout: short, body_timeout: short, idle_timeout: short, ..Config::default() };
        for phase in [Phase::Head, Phase::Body, Phase::Idle, Phase::Writing] {
            assert_eq!(seconds_until_closed_with(phase, config.clone()).await, Some(2), "{phase:?}");
        }
    }

    #[tokio::test]
    async fn the_one_that_idles_for_longest_makes_room() {
        let connections = Connections::default();
        let mut tasks = Vec::new();
        let mut open = |phase| {
            let activity = connections.activity(Protocol::Http);
            activity.enter(phase);
            tasks.push(tokio::spawn(std::future::pending::<()>()));
            let key = tasks.len() as u64;
            connections.watch(key, Arc::clone(&activity), tasks[tasks.len() - 1].abort_handle());
            activity
        };
        let (first, _busy) = (open(Phase::Idle), open(Phase::Busy));
        connections.sweep_once(&Config::default());
        let (_third, _fourth) = (open(Phase::Idle), open(Phase::Idle));
        connections.sweep_once(&Config::default());
        first.enter(Phase::Idle);
        assert!(!connections.make_room(), "a client that has just connected has time to ask");
        connections.sweep_once(&Config::default());
        assert!(connections.make_room());
        assert!(connections.make_room());
        assert!(!connections.make_room(), "one is busy, the other has just been asked");
        tokio::task::yield_now().await;
        assert_eq!(tasks.iter().map(JoinHandle::is_finished).collect::<Vec<_>>(), [false, false, true, true]);
        connections.sweep_once(&Config::default());
        assert!(connections.make_room());
    }

    #[tokio::test]
    async fn a_dripping_head_gains_no_time_but_a_moving_body_does() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Http);
        let since = || activity.since.load(Ordering::Relaxed);
        let stood = || activity.movement().stood(connections.clock.now()).as_secs();
        activity.received(1);
        assert_eq!((activity.phase(), since()), (Phase::Head, 0));
        connections.sweep_once(&Config::default());
        activity.received(1);
        assert_eq!((activity.phase(), since()), (Phase::Head, 0));
        activity.reads_body();
        connections.sweep_once(&Config::default());
        assert_eq!((activity.phase(), stood()), (Phase::Body, 1));
        activity.received(1);
        assert_eq!((activity.phase(), stood()), (Phase::Body, 0));
    }

    #[tokio::test]
    async fn an_answer_is_being_written_until_it_is_flushed() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Http);
        activity.busy();
        activity.wrote(1);
        activity.flushed();
        assert_eq!(
            activity.phase(),
            Phase::Busy,
            "what is written meanwhile is the answer before, or a request to go on"
        );
        activity.answers();
        assert_eq!(activity.phase(), Phase::Writing);
        activity.flushed();
        assert_eq!(activity.phase(), Phase::Idle);
        activity.wrote(1);
        assert_eq!(activity.phase(), Phase::Writing, "the rest of a large answer");
    }

    #[tokio::test]
    async fn a_grpc_connection_greets_then_has_calls_then_idles() {
        let connections = Connections::default();
        let activity = connections.activity(Protocol::Grpc);
        activity.received(GREETING_BYTES as usize - 1);
        assert_eq!(activity.phase(), Phase::Head);
        activity.received(1);
        assert_eq!(activity.phase(), Phase::Idle);
        let (first, second) = (activity.stream_begins(), activity.stream_begins());
        activity.stream_ends(first);
        assert_eq!(activity.phase(), Phase::Busy);
        activity.stream_ends(second);
        activity.received(5);
        activity.wrote(1);
        assert_eq!(activity.phase(), Phase::Idle, "pings are no calls");
    }

    #[tokio::test]
    async fn a_client_gets_all_that_was_written_though_it_sends_meanwhile() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut stream, _) = listener.accept().await.unwrap();
        let activity = Connections::default().activity(Protocol::Grpc);
        let answer = vec![7; 100_000];
        client.write_all(b"frames that nobody reads").await.unwrap();
        stream.write_all(&answer).await.unwrap();
        let server = tokio::spawn(async move {
            linger(&stream, &activity).await;
            activity.clock.moves.load(Ordering::Relaxed)
        });
        let mut received = vec![0; 10];
        client.read_exact(&mut received).await.unwrap();
        client.write_all(b"more of them").await.unwrap();
        client.read_to_end(&mut received).await.unwrap();
        assert_eq!(received, answer);
        drop(client);
        assert!(server.await.unwrap() > 0, "a client that takes its answer is a reason to wait");
    }
}
