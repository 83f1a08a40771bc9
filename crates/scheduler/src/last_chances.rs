//! Until when can devices still serve a queue that nobody plans with for it?
//!
//! A batch is left to grow until devices that are as quick as their kind should start it. One that is slower, or of a
//! kind on which its first request would be too late, would have to start earlier. If it idles at that instant, the
//! batch goes to it then: nobody knows whether a quicker one will be free later (P10). It is looked for a little
//! earlier: a driver that is woken at the last instant is woken too late.
//!
//! ```text
//!   last chance on a slow device     ready          deadline
//! ──┬───────┬─────────────────────────┬─────────────────┤
//!   ├ LATE_WAKEUP
//!           ├──────────── slow ───────┼──────────────▶│
//!                                     ├──── quick ───▶│
//! ```

use crate::bits::DeviceSet;
use crate::config::Delay;
use crate::heap::Heap;
use crate::ledger::{Ledger, Speed};
use crate::queues::Queues;
use base::margins::LATE_WAKEUP;
use base::{DeviceId, Duration, ModelId, Timestamp};

/// When it is looked for a device, before the last instant: one may have become idle since.
const LOOKS: [Duration; 3] = [LATE_WAKEUP, Duration::from_micros(250), Duration::ZERO];

#[derive(Clone, Debug, Default)]
pub(crate) struct LastChances {
    /// Models by the next last chance of one of their requests.
    heap: Heap,
    /// Whether a device waits for one.
    awaited: bool,
}

/// When it is looked next for a device of a speed for the last chance of one of a model's requests.
fn look_at(
    ledger: &Ledger,
    queues: &Queues,
    delay: Delay,
    model: ModelId,
    speed: Speed,
    from: Timestamp,
) -> Option<Timestamp> {
    let (queue, times) = (queues.of(model), ledger.model(model).estimates.at(speed));
    let look = |&before| queue.last_chance(times, Delay { control: delay.control + before, ..delay }, from);
    LOOKS.iter().filter_map(look).min()
}

impl LastChances {
    /// Devices no longer differ.
    pub fn clear(&mut self) {
        if !self.heap.is_empty() {
            self.heap = Heap::default();
        }
    }

    /// Brings a model's next last chance up to date.
    pub fn update(&mut self, ledger: &Ledger, queues: &Queues, delay: Delay, model: ModelId, now: Timestamp) {
        self.find(ledger, queues, delay, model, now - LATE_WAKEUP);
    }

    /// Finds a model's first last chance from then on.
    fn find(&mut self, ledger: &Ledger, queues: &Queues, delay: Delay, model: ModelId, from: Timestamp) {
        let held = !queues.devices_of(model).is_empty();
        let speeds = ledger.speeds_of(ledger.model(model)).iter().filter(|_| held);
        match speeds.filter_map(|&speed| look_at(ledger, queues, delay, model, speed, from)).min() {
            Some(look_at) => self.heap.set(model.index(), look_at),
            None => _ = self.heap.remove(model.index()),
        }
    }

    /// A model whose last chance on a device that waits is now.
    pub fn next(
        &mut self,
        (ledger, queues, delay): (&Ledger, &Queues, Delay),
        now: Timestamp,
        hungry: &DeviceSet,
        able: impl Fn(ModelId, DeviceId) -> bool,
    ) -> Option<(ModelId, DeviceId)> {
        self.awaited = !hungry.is_empty();
        while let Some((_, index)) = self.heap.first().filter(|&(at, _)| at <= now && self.awaited) {
            let model = ModelId(index as u32);
            let due = |device: &DeviceId| {
                let speed = ledger.device(*device).speed();
                let look_at = look_at(ledger, queues, delay, model, speed, now - LATE_WAKEUP);
                look_at.is_some_and(|at| at <= now) && able(model, *device)
            };
            let found = queues.devices_of(model).common(hungry).find(due);
            self.find(ledger, queues, delay, model, now + Duration::from_nanos(1));
            if let Some(device) = found {
                return Some((model, device));
            }
        }
        None
    }

    /// When the next one is, if a device waits for it.
    pub fn next_at(&self) -> Option<Timestamp> {
        self.heap.first().filter(|_| self.awaited).map(|(at, _)| at)
    }
}
