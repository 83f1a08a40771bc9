//! How GPUs are divided, for those who operate the server.

use controller::{AutoShares, Controller, Division, SharePlace};
use serde::Serialize;
use wire::{Fault, json};

/// The shares of each GPU, and what they may be changed to.
#[derive(Serialize)]
struct Shares {
    /// `None` where nothing can be changed.
    shares: Option<Vec<f64>>,
    possible: Vec<Vec<f64>>,
    /// Where the server divides them by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    auto: Option<Auto>,
}

/// How the server has divided its GPUs.
#[derive(Serialize)]
struct Auto {
    gpus: Vec<Vec<ShownShare>>,
    changes: u64,
    why: String,
}

/// A share of a GPU.
#[derive(Serialize)]
struct ShownShare {
    share: f64,
    /// `None`: all of them.
    models: Option<Vec<String>>,
}

impl Auto {
    fn new(AutoShares { gpus, changes, why }: AutoShares) -> Self {
        let place = |SharePlace { share, models }| ShownShare { share, models };
        let gpus = gpus.into_iter().map(|places| places.into_iter().map(place).collect()).collect();
        Self { gpus, changes, why }
    }
}

/// `GET v2/shares`.
pub(crate) fn json(controller: &Controller) -> Vec<u8> {
    let shares = match controller.division() {
        None => Shares { shares: None, possible: Vec::new(), auto: None },
        Some(Division { shares, possible, auto }) => Shares { shares, possible, auto: auto.map(Auto::new) },
    };
    super::json(&shares)
}

/// `POST v2/shares`: divides GPUs as the body says.
pub(crate) fn change(controller: &Controller, body: &[u8]) -> Result<(), Fault> {
    controller.divide(&json::read_shares_request(body)?).map_err(Fault::bad)
}
