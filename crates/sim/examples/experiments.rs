//! Runs everything in `experiments/` and writes `docs/experiments/`.
//!
//! ```text
//! cargo run --release -p sim --example experiments
//! ```

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match sim::cli::write_page(Path::new("experiments"), Path::new("docs/experiments"), true) {
        Ok(page) => {
            println!("wrote {}", page.display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
