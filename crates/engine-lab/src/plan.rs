//! The plan of an ONNX file, and what the reference makes of it.

use graph::reference::Reference;
use graph::{ImageLayout, OnnxModel, Precision, compile};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Which file, and how it is planned.
#[derive(clap::Args)]
pub(crate) struct PlanArgs {
    /// The ONNX file.
    file: PathBuf,
    /// Rows.
    #[arg(long, default_value_t = 1)]
    batch: usize,
    /// What open dimensions are: NAME=SIZE.
    #[arg(long = "size")]
    sizes: Vec<String>,
    /// f32, tf32 or f16.
    #[arg(long, default_value = "f32")]
    precision: String,
    /// Steps stay as they are in the file.
    #[arg(long)]
    no_fuse: bool,
    /// Inputs and outputs of another type are converted by steps of their own.
    #[arg(long)]
    convert_in_steps: bool,
    /// Concatenations are copies.
    #[arg(long)]
    no_concat: bool,
    /// Images have their channels first.
    #[arg(long)]
    channels_first: bool,
    /// Only the first line of the plan, and how many steps of each kind it has.
    #[arg(long)]
    quiet: bool,
    /// Executes it: inputs are read from `input0.bin` and so on in this folder, row-major in the model's types, and
    /// outputs are written to `output0.bin` and so on.
    #[arg(long)]
    run: Option<PathBuf>,
}

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let precision = Precision::from_name(&args.precision);
    let precision = precision.ok_or_else(|| anyhow::anyhow!("--precision takes f32, tf32 or f16"))?;
    let mut options = crate::cuda::exec::options(args.batch, precision, &args.sizes)?;
    options.fuse = !args.no_fuse;
    options.convert_in_steps = args.convert_in_steps;
    options.concat_in_place = !args.no_concat;
    if args.channels_first {
        options.layout = ImageLayout::ChannelsFirst;
    }
    let plan = compile(&OnnxModel::read(&args.file)?, &options)?;
    let text = plan.to_string();
    println!("{}", if args.quiet { text.lines().next().unwrap_or_default() } else { &text });
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    plan.steps.iter().for_each(|step| *kinds.entry(step.kind()).or_default() += 1);
    println!("{kinds:?}, plan {}, weights {}", plan.hash().to_hex(), plan.weights.layout_hash().to_hex());
    args.run.as_deref().map_or(Ok(()), |folder| execute(&plan, folder))
}

fn execute(plan: &graph::Plan, folder: &Path) -> anyhow::Result<()> {
    let read = |position| std::fs::read(folder.join(format!("input{position}.bin")));
    let inputs = (0..plan.inputs.len()).map(read).collect::<Result<Vec<_>, _>>()?;
    let outputs = Reference::new(plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
    for (position, output) in outputs.iter().enumerate() {
        std::fs::write(folder.join(format!("output{position}.bin")), output)?;
    }
    Ok(())
}
