//! The live driver of the scheduler.

mod api;

pub use api::{
    Catalogue, CatalogueEntry, ModelState, ModelVersions, Refusal, Reply, ServedModel, Submission, Tensor, Ticket,
};

use base::Timestamp;
use std::sync::Arc;

/// A handle on the controller; cheap to clone, never blocks.
#[derive(Clone, Debug)]
pub struct Controller {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {}

impl Controller {
    /// The server's clock.
    pub fn now(&self) -> Timestamp {
        let _ = &self.inner;
        unimplemented!()
    }

    /// Changes whenever the catalogue does: one atomic read, so that a gateway thread can keep its copy until it is stale.
    pub fn catalogue_generation(&self) -> u64 {
        unimplemented!()
    }

    /// The models of this moment. Takes a lock: keep the result until the generation changes.
    pub fn catalogue(&self) -> Arc<Catalogue> {
        unimplemented!()
    }

    /// Hands a request over. It is looked at when somebody next calls `drive`. `None`: the table of requests is full, and
    /// the refusal is on its way through the reply channel.
    pub fn submit(&self, _submission: Submission) -> Option<Ticket> {
        unimplemented!()
    }

    /// The client went away: takes the request out of the plan if it isn't executing. Also looked at by `drive`.
    pub fn cancel(&self, _ticket: Ticket) {
        unimplemented!()
    }

    /// Lets the scheduler look at everything that was handed over. Never waits: if another thread is at it, that thread
    /// sees this thread's news too.
    pub fn drive(&self) {
        unimplemented!()
    }
}
