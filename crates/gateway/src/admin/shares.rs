//! How GPUs are divided, for those who operate the server.

use controller::Controller;
use percent_encoding::percent_decode_str;

/// What `/shares` says: the shares of each GPU, and what they may be changed to.
pub(crate) fn json(controller: &Controller) -> String {
    let list = |shares: &[f64]| format!("[{}]", shares.iter().map(f64::to_string).collect::<Vec<_>>().join(","));
    match controller.division() {
        None => "{\"shares\":null,\"possible\":[]}\n".to_owned(),
        Some(division) => {
            let possible: Vec<String> = division.possible.iter().map(|shares| list(shares)).collect();
            format!("{{\"shares\":{},\"possible\":[{}]}}\n", list(&division.shares), possible.join(","))
        }
    }
}

/// Divides GPUs as it is written: `0.25,0.75`.
pub(crate) fn change(controller: &Controller, wanted: &str) -> Result<(), String> {
    let wanted = percent_decode_str(wanted).decode_utf8_lossy();
    let shares = wanted.split(',').map(str::parse).collect::<Result<Vec<f64>, _>>();
    let shares = shares.map_err(|_| format!("{wanted:?} are no shares: write them as in POST /shares/0.25,0.75"))?;
    controller.divide(&shares)
}
