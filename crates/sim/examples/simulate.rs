//! `punctual simulate` without the rest of the server: builds in a fraction of the time, for whoever works on policies.
//!
//! ```text
//! cargo run --release -p sim --example simulate -- FILE [--json] [--bound] [--results FILE] [--only KEY=VALUE]... [--sample N]
//!     [--page DIR [--cache DIR] [--all] [--part NAME]... [--commit TEXT]] [--policies A,B] [--again A,B] [--seconds S] [--max-requests N] [--seeds 1,2]
//! ```

use sim::cli::{Options, PageOptions, parse_only, simulate, write_page};
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let mut file = None;
    let mut options = Options { progress: true, ..Options::default() };
    let mut page = PageOptions { progress: true, ..PageOptions::default() };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        let names = |text: String| -> Vec<String> { text.split(',').map(str::to_owned).collect() };
        match arg.as_str() {
            "--json" => options.json = true,
            "--bound" => options.bound = true,
            "--svg" => options.svg_dir = Some(value()?.into()),
            "--page" => page.folder = value()?.into(),
            "--cache" => page.cache = Some(value()?.into()),
            "--all" => page.all = true,
            "--part" => page.parts.extend(names(value()?)),
            "--commit" => page.commit = value()?,
            "--results" => options.reuse.file = Some(value()?.into()),
            "--again" => options.reuse.again = names(value()?),
            "--only" => options.selection.only.extend([parse_only(&value()?)?]),
            "--sample" => options.selection.sample = Some(value()?.parse()?),
            "--policies" => options.selection.policies = names(value()?),
            "--seconds" => options.selection.seconds = Some(value()?.parse()?),
            "--max-requests" => options.selection.max_requests = Some(value()?.parse()?),
            "--seeds" => options.selection.seeds = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            other if !other.starts_with('-') => file = Some(PathBuf::from(other)),
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    let file = file.ok_or("give an experiment's file, or a folder of them with --page")?;
    if !page.folder.as_os_str().is_empty() {
        let page = PageOptions { experiments: file, again: options.reuse.again, ..page };
        println!("wrote {}", write_page(&page)?.display());
        return Ok(());
    }
    print!("{}", simulate(&file, &options)?);
    Ok(())
}
