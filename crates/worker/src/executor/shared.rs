//! One thread for many devices whose engine never computes: it says when a batch or a load will be done, and the thread
//! sleeps until the next of those instants. A thousand emulated devices are one thread instead of two thousand.
//!
//! Each device is the same executor and the same loader as one with threads of its own; only who waits differs. What an
//! engine does that isn't waiting happens here one after another, so that a device that computes has no place here.

use super::{Device, DeviceConfig, DeviceExecutor, Loader, OrderReport};
use crate::Clock;
use crate::batch::BatchItem;
use base::{Duration, Timestamp};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::ThreadId;

/// How long before an instant a sleep becomes a wait that keeps the core: what a system may be late in waking a thread.
const SPIN: Duration = Duration::from_micros(100);

/// A thread that devices share. It ends with the last of them, and with this.
#[derive(Debug)]
pub struct Shared<I> {
    clock: Clock,
    bells: Sender<Bell<I>>,
    thread: ThreadId,
    /// Who joins next has this number.
    next: AtomicUsize,
}

enum Bell<I> {
    Joins(Box<Member<I>>),
    /// There is something for the member with this number.
    Rings(usize),
}

impl<I: BatchItem> Shared<I> {
    /// Starts the thread.
    pub fn start(clock: Clock) -> std::io::Result<Self> {
        let (bells, heard) = unbounded();
        let rounds = Rounds { clock, bells: heard, members: Vec::new(), instants: BinaryHeap::new() };
        let thread = std::thread::Builder::new().name("emulated".into()).spawn(move || rounds.run())?;
        Ok(Self { clock, bells, thread: thread.thread().id(), next: AtomicUsize::new(0) })
    }

    /// A device on this thread. Each end of an order is given to `report`, here.
    pub fn device(&self, config: &DeviceConfig, report: impl Fn(OrderReport<I>) + Send + 'static) -> Device<I> {
        let (mut device, executor, loader) = Device::parts(config, self.clock);
        let (ends, end) = unbounded();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let report = Box::new(report);
        let member = Member { number, executor, loader, report, wants_at: Timestamp::NEVER, _ends: ends };
        // Fails only without the thread, and then orders fail as well.
        let _ = self.bells.send(Bell::Joins(Box::new(member)));
        device.membership = Some(Membership { number, bells: self.bells.clone(), end, thread: self.thread });
        device
    }
}

/// A device's place on the thread.
#[derive(Debug)]
pub(super) struct Membership<I> {
    number: usize,
    bells: Sender<Bell<I>>,
    /// Disconnected when the member has ended.
    end: Receiver<()>,
    thread: ThreadId,
}

impl<I> std::fmt::Debug for Bell<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Bell")
    }
}

impl<I> Membership<I> {
    pub fn ring(&self) {
        // Fails only without the thread, and then nothing is carried out any more.
        let _ = self.bells.send(Bell::Rings(self.number));
    }

    /// Waits until everything is carried out; the thread itself can't.
    pub fn wait_for_the_end(self) {
        if std::thread::current().id() != self.thread {
            let _ = self.end.recv();
        }
    }
}

/// A device on the thread.
struct Member<I> {
    number: usize,
    executor: DeviceExecutor<I>,
    loader: Loader,
    report: Box<dyn Fn(OrderReport<I>) + Send>,
    /// When it is to be looked at, if nothing comes before.
    wants_at: Timestamp,
    /// Dropped at the end, which whoever waits for it sees.
    _ends: Sender<()>,
}

/// What the thread does.
struct Rounds<I> {
    clock: Clock,
    bells: Receiver<Bell<I>>,
    /// By number; `None` where they have gone.
    members: Vec<Option<Box<Member<I>>>>,
    /// When whom to look at. An entry counts if its member still wants that.
    instants: BinaryHeap<Reverse<(Timestamp, usize)>>,
}

impl<I: BatchItem> Rounds<I> {
    fn run(mut self) {
        loop {
            while let Ok(bell) = self.bells.try_recv() {
                self.hear(bell);
            }
            let Some((at, number)) = self.next() else {
                let Ok(bell) = self.bells.recv() else { return };
                self.hear(bell);
                continue;
            };
            let wait = at.since(self.clock.now());
            if wait == Duration::ZERO {
                self.instants.pop();
                self.turn(number);
            } else if wait <= SPIN {
                std::hint::spin_loop();
            } else {
                let sleep = (wait - SPIN).into();
                match self.bells.recv_timeout(sleep) {
                    Ok(bell) => self.hear(bell),
                    Err(RecvTimeoutError::Timeout) => {}
                    // Nobody will ring any more, but what is under way ends in its time.
                    Err(RecvTimeoutError::Disconnected) => std::thread::sleep(sleep),
                }
            }
        }
    }

    fn hear(&mut self, bell: Bell<I>) {
        match bell {
            Bell::Joins(member) => {
                let number = member.number;
                self.members.resize_with(self.members.len().max(number + 1), || None);
                self.members[number] = Some(member);
                self.turn(number);
            }
            Bell::Rings(number) => self.turn(number),
        }
    }

    /// The first instant at which a member wants to be looked at, and who that is.
    fn next(&mut self) -> Option<(Timestamp, usize)> {
        loop {
            let &Reverse((at, number)) = self.instants.peek()?;
            if self.members[number].as_ref().is_some_and(|member| member.wants_at == at) {
                return Some((at, number));
            }
            self.instants.pop();
        }
    }

    fn turn(&mut self, number: usize) {
        let Some(member) = self.members.get_mut(number).and_then(Option::as_deref_mut) else { return };
        let wanted_at = member.executor.turn(&member.report).min(member.loader.turn(&member.report));
        // Once for each instant, however often it is rung for.
        let known = wanted_at == member.wants_at && wanted_at > self.clock.now();
        member.wants_at = wanted_at;
        if wanted_at < Timestamp::NEVER {
            if !known {
                self.instants.push(Reverse((wanted_at, number)));
            }
        } else if member.executor.has_ended() && member.loader.has_ended() {
            self.members[number] = None;
        }
    }
}
