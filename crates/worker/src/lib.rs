//! Executors that follow windows strictly: LOAD and UNLOAD on one thread of a device, EXEC on another. Devices whose
//! engine only waits share one thread for everything.
//!
//! ```text
//!  orders ──> heap by `earliest` ──> wait ──> past `latest`? ──yes──> report TooLate, inputs go back
//!                                                  │no
//!                                                  └──> gather rows ──> engine ──> split rows ──> report Done
//! ```
//!
//! A worker never does best-effort work and decides nothing. It owns no table of models: an order carries the slot that
//! holds the weights. The lock on a slot is never waited for, because the scheduler never unloads what is in use (P6).

mod batch;
mod clock;
mod executor;
mod padding;
mod pages;
mod pin;
mod pulse;

pub use batch::BatchItem;
pub use clock::Clock;
pub use engine::Tensor;
pub use executor::{
    Device, DeviceConfig, ExecuteOrder, IdleWork, LoadOrder, OrderReport, Shared, Slot, Status, UnloadOrder,
};
pub use padding::Padding;
pub use pages::Pages;
pub use pin::pin_from_last;
pub use pulse::{Overdue, Pulse, Watched};
