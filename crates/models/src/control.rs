//! Publishing and withdrawing models at the wish of clients: orders to the manager's thread, and what came of them.
//! What clients are told of it says `load` and `unload`, the protocol's words.

use crate::manager::ManagerWork;
use base::Reason;
use bytes::Bytes;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use tokio::sync::oneshot;

/// Orders that may wait for the manager at once (P9).
const MAX_WAITING: usize = 64;

/// Who says which models are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ControlMode {
    /// The repository: changes are noticed. Clients, too, where others can't reach the server: see
    /// [`ControlMode::among`].
    #[default]
    Auto,
    /// The repository, and clients: changes are noticed, and what a client publishes or withdraws stays so until it
    /// says otherwise.
    Both,
    /// The repository as it was at the start.
    None,
    /// The repository: changes are noticed.
    Poll,
    /// Clients, and `--load-model` at the start.
    Explicit,
}

impl ControlMode {
    /// What it is where clients are trusted to publish and withdraw, or aren't: `Auto` goes by that.
    pub fn among(self, trusted_clients: bool) -> Self {
        if self == Self::Auto && trusted_clients { Self::Both } else { self }
    }

    /// Whether clients may publish and withdraw.
    pub fn takes_orders(self) -> bool {
        matches!(self, Self::Both | Self::Explicit)
    }

    /// Whether changes of the repository are noticed by looking at it, where it doesn't tell.
    pub(crate) fn polls(self) -> bool {
        matches!(self, Self::Auto | Self::Both | Self::Poll)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Both => "both",
            Self::None => "none",
            Self::Poll => "poll",
            Self::Explicit => "explicit",
        }
    }
}

impl FromStr for ControlMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Auto, Self::Both, Self::None, Self::Poll, Self::Explicit];
        let found = all.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is no mode: use auto, both, none, poll or explicit"))
    }
}

/// What a client wants to be published.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PublishOrder {
    /// The model's name.
    pub model: String,
    /// A configuration, as JSON, that counts instead of the model's own.
    pub config: Option<String>,
    /// Files that count instead of the model's own, by their path in the model's folder.
    pub files: Vec<(String, Bytes)>,
}

/// Why an order wasn't carried out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ControlError {
    /// Clients don't decide here.
    #[error("explicit model load / unload is not allowed: the server runs with --model-control-mode {}{}", .0.name(), how_to_ask(*.0))]
    Off(ControlMode),
    /// Too many orders wait.
    #[error("{MAX_WAITING} loads and unloads are waiting already: try again later")]
    Busy,
    /// There is no such model.
    #[error("there is no model {0:?} in the repository: put its folder there, or send its files with the load")]
    NotFound(String),
    /// The order itself can't be carried out.
    #[error("{0}")]
    Bad(String),
    /// The model can't be served.
    #[error("model {model:?} could not be loaded: {reason}")]
    Failed {
        /// Which.
        model: String,
        /// Why.
        reason: String,
    },
    /// The server is going down.
    #[error("the server is going down")]
    ShuttingDown,
}

/// What `auto` leaves to whoever starts the server.
fn how_to_ask(mode: ControlMode) -> &'static str {
    match mode {
        ControlMode::Auto => {
            ", and others than this machine's own users reach it: start it with --api-keys FILE, whose keys say who may load and \
             unload models, or with --model-control-mode both to let all of them"
        }
        ControlMode::Both | ControlMode::None | ControlMode::Poll | ControlMode::Explicit => "",
    }
}

impl ControlError {
    /// What clients are told that it is.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Off(_) => Reason::Unsupported,
            Self::Busy => Reason::QueueFull,
            Self::NotFound(_) => Reason::ModelNotFound,
            Self::Bad(_) => Reason::BadInput,
            Self::Failed { .. } => Reason::LoadFailed,
            Self::ShuttingDown => Reason::ShuttingDown,
        }
    }
}

/// An order on its way.
pub(crate) struct Order {
    pub(crate) wish: OrderWish,
    pub(crate) reply: oneshot::Sender<Result<(), ControlError>>,
    _place: OrderPlace,
}

pub(crate) enum OrderWish {
    Publish(PublishOrder),
    Withdraw {
        model: String,
        /// Whether what an endpoint asks goes with it.
        with_members: bool,
    },
}

/// A place among the waiting orders, given back when it is dropped.
struct OrderPlace(Arc<AtomicUsize>);

impl Drop for OrderPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where clients' orders go; cheap to clone.
#[derive(Clone)]
pub struct ModelControl {
    mode: ControlMode,
    orders: Sender<ManagerWork>,
    waiting: Arc<AtomicUsize>,
}

impl fmt::Debug for ModelControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelControl").field("mode", &self.mode).finish_non_exhaustive()
    }
}

impl ModelControl {
    pub(crate) fn new(mode: ControlMode, orders: Sender<ManagerWork>) -> Self {
        Self { mode, orders, waiting: Arc::default() }
    }

    /// Publishes a model; returns when it is ready, or can't be.
    pub async fn publish(&self, order: PublishOrder) -> Result<(), ControlError> {
        self.order(OrderWish::Publish(order)).await
    }

    /// Withdraws a model, or an endpoint, and what no other endpoint asks of its members if it is to go with it. It
    /// stays withdrawn until it is published again.
    pub async fn withdraw(&self, model: String, with_members: bool) -> Result<(), ControlError> {
        self.order(OrderWish::Withdraw { model, with_members }).await
    }

    async fn order(&self, wish: OrderWish) -> Result<(), ControlError> {
        if !self.mode.takes_orders() {
            return Err(ControlError::Off(self.mode));
        }
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(ControlError::Busy);
        }
        let (reply, answer) = oneshot::channel();
        let order = Order { wish, reply, _place: OrderPlace(Arc::clone(&self.waiting)) };
        self.orders.send(ManagerWork::Order(order)).map_err(|_| ControlError::ShuttingDown)?;
        answer.await.unwrap_or(Err(ControlError::ShuttingDown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anybody_who_reaches_the_port_may_not_upload_replace_and_unload() {
        for mode in ["auto", "none", "poll"] {
            let mode: ControlMode = mode.parse().unwrap();
            assert!(!mode.among(false).takes_orders(), "{mode:?}");
            assert_eq!(mode.among(true).takes_orders(), mode == ControlMode::Auto);
        }
        for asked_for in [ControlMode::Both, ControlMode::Explicit] {
            assert!(asked_for.among(false).takes_orders(), "{asked_for:?}");
        }
        assert!(ControlMode::Auto.among(false).polls(), "the repository is watched all the same");
        let sentence = ControlError::Off(ControlMode::Auto).to_string();
        assert!(sentence.contains("--model-control-mode both"), "{sentence}");
    }
}
