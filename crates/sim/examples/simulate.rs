//! `punctual simulate` without the rest of the binary: `cargo run -p sim --example simulate -- FILE [--json] [--svg DIR]`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut file = None;
    let mut options = sim::cli::Options { progress: true, ..Default::default() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => options.json = true,
            "--svg" => options.svg_dir = arguments.next().map(PathBuf::from),
            _ => file = Some(argument),
        }
    }
    let Some(file) = file else {
        eprintln!("which experiment? give the path of a TOML file");
        return ExitCode::FAILURE;
    };
    match sim::cli::simulate(Path::new(&file), &options) {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
