//! A cell: a scheduler with devices and models of its own, and all that is needed to drive it without the others.

use crate::core::Core;
use crate::messages::CellMessage;
use crate::payload::Payload;
use crate::timer::Timer;
use crate::{ControllerConfig, Inner, Pulse, STANDS_STILL};
use base::{ActionId, DeviceId, Timestamp};
use crossbeam_queue::SegQueue;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, TryLockError, Weak};
use telemetry::Metrics;

/// So many messages are worked off before the lock is given up and the timer set.
const MESSAGES_PER_TURN: usize = 1024;

#[derive(Debug)]
pub(crate) struct Cell {
    pub inbox: SegQueue<CellMessage>,
    pub core: Mutex<Core>,
    pub timer: Timer,
    /// The thread of its devices that only wait, once there is one.
    pub shared: OnceLock<worker::Shared<Payload>>,
    /// The number of its first device among all. In the cell they count from 0.
    pub first_device: u32,
    /// Devices that are there: fewer while one is started anew.
    pub devices: AtomicU32,
    /// How often each device was given up, because a thread of it hangs.
    pub given_up: Box<[AtomicU32]>,
    /// Of whoever drives.
    pub pulse: Arc<Pulse>,
}

impl Cell {
    /// All cells of a server, with no devices yet.
    pub fn all(config: &ControllerConfig, metrics: &Metrics) -> Box<[Self]> {
        let mut first_device = 0;
        let cell = |(number, devices): (usize, &Vec<_>)| {
            let devices = devices.len() as u32;
            let cell = Self {
                inbox: SegQueue::new(),
                core: Mutex::new(Core::new(number, config, metrics)),
                timer: Timer::default(),
                shared: OnceLock::new(),
                first_device,
                devices: AtomicU32::new(devices),
                given_up: (0..devices).map(|_| AtomicU32::new(0)).collect(),
                pulse: Arc::default(),
            };
            first_device += devices;
            cell
        };
        config.cells.iter().enumerate().map(cell).collect()
    }

    /// Lets its scheduler look at everything that was handed over. Never waits.
    pub fn drive(&self, inner: &Inner) {
        while self.turn(inner) {}
    }

    /// The same, but only some of it. Whether there is more that nobody looks at.
    pub fn turn(&self, inner: &Inner) -> bool {
        // The news of this thread must be in the inbox before it finds the lock taken, and the lock must be free
        // before the driver finds the inbox empty: else both could leave it to the other.
        fence(Ordering::SeqCst);
        let told = match self.core.try_lock() {
            Ok(mut core) => {
                self.pulse.step(STANDS_STILL, 0);
                let wakeup = self.work_off(inner, &mut core);
                self.pulse.end();
                // While the lock is held: an older wish must not overwrite a newer one.
                self.timer.set(wakeup);
                core.take_told()
            }
            Err(TryLockError::WouldBlock) => return false,
            // A panic while driving broke an invariant; going on with half of a step would break more.
            Err(TryLockError::Poisoned(core)) => {
                core.into_inner().fatal("the scheduler broke one of its invariants");
            }
        };
        // Without this lock: nobody waits here for what another cell does.
        told.into_iter().for_each(|cell| inner.cells[cell].drive(inner));
        fence(Ordering::SeqCst);
        !self.inbox.is_empty()
    }

    fn work_off(&self, inner: &Inner, core: &mut Core) -> Timestamp {
        for _ in 0..MESSAGES_PER_TURN {
            let Some(message) = self.inbox.pop() else { break };
            core.handle(inner, inner.clock.now(), message);
        }
        core.rehearse(inner);
        core.wake_if_due(inner, inner.clock.now())
    }
}

/// Puts news into a cell's inbox, for threads of its devices and others that it started. Weak: they belong to the
/// controller.
#[derive(Clone, Debug)]
pub(crate) struct InboxSender {
    pub inner: Weak<Inner>,
    pub cell: usize,
}

impl InboxSender {
    /// Hands over what needn't be looked at before something else comes.
    pub fn put(&self, message: CellMessage) {
        if let Some(inner) = self.inner.upgrade() {
            inner.put(self.cell, message);
        }
    }

    /// Hands over, and drives.
    pub fn tell(&self, message: CellMessage) {
        if let Some(inner) = self.inner.upgrade() {
            inner.put(self.cell, message);
            inner.cells[self.cell].drive(&inner);
        }
    }
}

/// Gives a borrowed device back when it is dropped.
pub(crate) struct GiveBack {
    pub inbox: InboxSender,
    pub device: DeviceId,
    pub action: ActionId,
}

impl Drop for GiveBack {
    fn drop(&mut self) {
        self.inbox.tell(CellMessage::Return { device: self.device, action: self.action });
    }
}
