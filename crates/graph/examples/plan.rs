//! Prints the plan of an ONNX file, and executes it with the reference if a folder is given.
//!
//! ```text
//! cargo run --release -p graph --example plan -- model.onnx --batch 8 --size sequence=128 --precision f16
//! cargo run --release -p graph --example plan -- model.onnx --run folder
//! ```
//!
//! With `--run`, inputs are read from `folder/input0.bin` and so on, row-major in the model's types, and outputs are written
//! to `folder/output0.bin` and so on. `--quiet` prints only the first line of the plan and how many steps of each kind it has;
//! `--no-fuse`, `--no-concat` and `--channels-first` turn off what they name, `--convert-in-steps` turns it on.

use graph::reference::Reference;
use graph::{Layout, Model, Options, Precision, compile};
use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let mut options = Options::new(1, Precision::F32);
    let (mut file, mut folder, mut quiet) = (None, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
        match argument.as_str() {
            "--batch" => options.batch = value()?.parse()?,
            "--size" => {
                let text = value()?;
                let (name, size) = text.rsplit_once('=').ok_or("--size takes NAME=NUMBER")?;
                options.sizes.insert(name.to_owned(), size.parse()?);
            }
            "--precision" => {
                options.precision = Precision::from_name(&value()?).ok_or("--precision takes f32, tf32 or f16")?;
            }
            "--no-fuse" => options.fuse = false,
            "--convert-in-steps" => options.convert_in_steps = true,
            "--no-concat" => options.concat_in_place = false,
            "--channels-first" => options.layout = Layout::ChannelsFirst,
            "--quiet" => quiet = true,
            "--run" => folder = Some(PathBuf::from(value()?)),
            _ => file = Some(PathBuf::from(argument)),
        }
    }
    let model = Model::read(&file.ok_or("which file?")?)?;
    let plan = compile(&model, &options)?;
    let text = plan.to_string();
    println!("{}", if quiet { text.lines().next().unwrap_or_default() } else { &text });
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    plan.steps.iter().for_each(|step| *kinds.entry(step.kind()).or_default() += 1);
    println!("{kinds:?}, plan {}, weights {}", plan.hash().to_hex(), plan.weights.layout_hash().to_hex());
    if let Some(folder) = folder {
        run(&plan, &folder)?;
    }
    Ok(())
}

fn run(plan: &graph::Plan, folder: &Path) -> Result<(), Box<dyn Error>> {
    let read = |position| std::fs::read(folder.join(format!("input{position}.bin")));
    let inputs = (0..plan.inputs.len()).map(read).collect::<Result<Vec<_>, _>>()?;
    let outputs = Reference::new(plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for (position, output) in outputs.iter().enumerate() {
        std::fs::write(folder.join(format!("output{position}.bin")), output)?;
    }
    Ok(())
}
