//! `punctual key`: makes an API key.

use anyhow::{Result, anyhow};
use clap::Args;
use gateway::NewKey;

/// What `key` may be told.
#[derive(Args, Debug)]
pub struct KeyOptions {
    /// Who holds it, in a word; the log of changes names it. Two keys may have the same name, while one follows the
    /// other.
    #[arg(value_name = "NAME")]
    pub name: String,

    /// What its holder may do: `infer` (ask all models) or `infer=MODEL` (`*` in it stands for anything), `read`
    /// (metadata, statistics, metrics), `control` (load and unload models, divide GPUs, shared memory), `operate`
    /// (change what is logged and traced). May be given several times.
    #[arg(value_name = "RIGHT", required = true)]
    pub rights: Vec<String>,
}

/// Makes one and shows it.
pub fn run(options: &KeyOptions) -> Result<()> {
    let NewKey { key, line } = NewKey::make(&options.name, &options.rights).map_err(|reason| anyhow!("{reason}"))?;
    eprintln!("the key, which is shown this once: {key}");
    println!("{line}");
    Ok(())
}
