//! What gateway threads have of the models: the catalogue of this moment, and the way to change it.

use crate::catalogue::Catalogue;
use crate::control::ModelControl;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which models there are; cheap to clone. It is empty until a manager keeps it up to date.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    inner: Arc<RegistryInner>,
}

#[derive(Debug, Default)]
struct RegistryInner {
    generation: AtomicU64,
    catalogue: Mutex<Arc<Catalogue>>,
    /// Where clients' orders go, once there is a manager.
    control: OnceLock<ModelControl>,
}

impl Registry {
    /// Changes whenever the catalogue does: one atomic read, so that a gateway thread can keep its copy until it is
    /// stale.
    pub fn generation(&self) -> u64 {
        self.inner.generation.load(Ordering::Acquire)
    }

    /// The models of this moment. Takes a lock: keep the result until the generation changes.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the catalogue.
    pub(crate) fn set_catalogue(&self, catalogue: Catalogue) {
        *self.inner.catalogue.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalogue);
        self.inner.generation.fetch_add(1, Ordering::Release);
    }

    /// Where clients' orders go; `None` while the server starts.
    pub fn control(&self) -> Option<&ModelControl> {
        self.inner.control.get()
    }

    /// Says where clients' orders go. There is one manager for a registry.
    pub(crate) fn set_control(&self, control: ModelControl) {
        let _ = self.inner.control.set(control);
    }
}
