//! How GPUs are divided, for those who operate the server.

use controller::{Controller, Division};
use serde::Serialize;
use wire::{Fault, json};

/// The shares of each GPU, and what they may be changed to.
#[derive(Serialize)]
struct Shares {
    /// `None` where nothing can be changed.
    shares: Option<Vec<f64>>,
    possible: Vec<Vec<f64>>,
}

/// `GET v2/shares`.
pub(crate) fn json(controller: &Controller) -> Vec<u8> {
    let shares = match controller.division() {
        None => Shares { shares: None, possible: Vec::new() },
        Some(Division { shares, possible }) => Shares { shares: Some(shares), possible },
    };
    super::json(&shares)
}

/// `POST v2/shares`: divides GPUs as the body says.
pub(crate) fn change(controller: &Controller, body: &[u8]) -> Result<(), Fault> {
    controller.divide(&json::read_shares_request(body)?).map_err(Fault::bad)
}
