//! All cores for one execution: what the first device is while the cores aren't divided among devices.
//!
//! A model that is loaded there has two sessions: one that stays on the thread that asks, and a wide one, which uses
//! the shared pool of threads. They compute with the same weights. The wide one is made beside what runs, when somebody
//! first wants the cores to be divided so; until it is there, the other one computes.

use crate::model::OrtModel;
use crate::runtime::Runtime;
use crate::session::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// The device that may have all cores.
pub(crate) const DEVICE: u32 = 0;
/// The division in which it has them.
pub(crate) const DIVISION: usize = 1;

/// See the module.
pub(crate) struct Wide {
    runtime: &'static Runtime,
    in_force: AtomicBool,
    /// Of everything that is loaded onto the device.
    slots: Mutex<Vec<Weak<WideSlot>>>,
    /// Whether a thread makes sessions.
    is_preparing: AtomicBool,
}

/// A loaded model's place for a wide session.
pub(crate) struct WidePlace {
    wide: Arc<Wide>,
    slot: Arc<WideSlot>,
}

struct WideSlot {
    /// The inner `None`: there can't be one.
    session: OnceLock<Option<Session>>,
    model: Arc<OrtModel>,
}

impl WideSlot {
    fn fill(&self, runtime: &'static Runtime) {
        self.session.get_or_init(|| {
            let made = self.model.wide_session(runtime)?;
            made.inspect_err(|refused| tracing::warn!("a model stays on one thread: {}", refused.0)).ok()
        });
    }
}

impl Drop for WideSlot {
    fn drop(&mut self) {
        if let Some(Some(session)) = self.session.take() {
            self.model.park(session);
        }
    }
}

impl WidePlace {
    /// What computes now, if the device has all cores.
    pub(crate) fn session(&self) -> Option<&Session> {
        if !self.wide.in_force.load(Ordering::Relaxed) {
            return None;
        }
        self.slot.session.get()?.as_ref()
    }
}

impl Wide {
    pub(crate) fn new(runtime: &'static Runtime) -> Self {
        Self {
            runtime,
            in_force: AtomicBool::new(false),
            slots: Mutex::default(),
            is_preparing: AtomicBool::new(false),
        }
    }

    /// For a model that is being loaded onto the device. What comes while the device has all cores is ready for that
    /// when it is loaded.
    pub(crate) fn place(self: &Arc<Self>, model: &Arc<OrtModel>) -> WidePlace {
        let slot = Arc::new(WideSlot { session: OnceLock::new(), model: Arc::clone(model) });
        let mut slots = self.slots();
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        drop(slots);
        // After it was listed: who takes all cores in between finds it there.
        if self.in_force.load(Ordering::SeqCst) {
            slot.fill(self.runtime);
        }
        WidePlace { wide: Arc::clone(self), slot }
    }

    pub(crate) fn divide(self: &Arc<Self>, division: usize) {
        let is_wide = division == DIVISION;
        self.in_force.store(is_wide, Ordering::SeqCst);
        if is_wide {
            // What was loaded since it was asked for.
            self.is_ready();
        }
    }

    /// Whether all that is loaded has its wide session; a thread makes those that are missing.
    pub(crate) fn is_ready(self: &Arc<Self>) -> bool {
        let missing: Vec<_> =
            self.slots().iter().filter_map(Weak::upgrade).filter(|slot| slot.session.get().is_none()).collect();
        if missing.is_empty() {
            return true;
        }
        if self.is_preparing.swap(true, Ordering::AcqRel) {
            return false;
        }
        let wide = Arc::clone(self);
        let prepare = move || {
            missing.into_iter().for_each(|slot| slot.fill(wide.runtime));
            wide.is_preparing.store(false, Ordering::Release);
        };
        if let Err(error) = std::thread::Builder::new().name("wide".into()).spawn(prepare) {
            tracing::warn!("no thread for sessions on several cores: {error}");
            self.is_preparing.store(false, Ordering::Release);
        }
        false
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Weak<WideSlot>>> {
        // A panic in between leaves the list as it was.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
