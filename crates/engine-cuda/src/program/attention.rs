//! Attention: one kernel for softmax(scale * query @ key^T + mask) @ value.

use super::expression::number;
use super::index::element;
use super::launch::{LaunchParameters, Recipe};
use crate::source::{Defines, KernelSource};
use crate::toolkit::Facts;
use graph::plan::{Attention, DataType, Precision, Tensor};

const SIMPLE: &str = include_str!("../kernels/attention.cu");
const TILED: &str = include_str!("../kernels/flash.cu");

/// Every way to compute it on this device, or why there is none.
pub(crate) fn attention(step: &Attention, precision: Precision, facts: &Facts) -> Result<Vec<Recipe>, String> {
    let mut tensors = vec![&step.query, &step.key, &step.value, &step.output];
    tensors.extend(&step.mask);
    if tensors.iter().any(|tensor| !matches!(tensor.dtype, DataType::Fp16 | DataType::Fp32)) {
        return Err("attention is there for FP16 and FP32".to_owned());
    }
    let mut all = Vec::new();
    all.extend(tiled(step, precision, facts));
    all.extend(simple(step, facts));
    if all.is_empty() {
        return Err(format!("{} positions are too many for attention", step.key.dims[2]));
    }
    Ok(all)
}

fn defines(step: &Attention, warps: usize) -> Defines {
    let [_, _, length, width] = step.query.dims[..] else { unreachable!("four dimensions") };
    let mask = step.mask.as_ref().unwrap_or(&step.query);
    let mut defines = Defines::default();
    defines
        .add("WIDTH", width)
        .add("VALUE_WIDTH", step.value.dims[3])
        .add("LENGTH", length)
        .add("OTHER", step.key.dims[2])
        .add("WARPS", warps)
        .add("SCALE", number(step.scale))
        .add("HAS_MASK", i32::from(step.mask.is_some()));
    for (name, tensor) in [("Q", &step.query), ("K", &step.key), ("V", &step.value), ("M", mask), ("O", &step.output)] {
        defines.add(name, element(tensor.dtype));
        for (axis, stride) in tensor.strides.iter().enumerate() {
            defines.add(&format!("{name}S{axis}"), stride);
        }
    }
    defines
}

fn parameters(step: &Attention) -> LaunchParameters {
    LaunchParameters::of(&[
        &step.query,
        &step.key,
        &step.value,
        step.mask.as_ref().unwrap_or(&step.query),
        &step.output,
    ])
}

fn simple(step: &Attention, facts: &Facts) -> Option<Recipe> {
    let [batch, heads, length, width] = step.query.dims[..] else { unreachable!("four dimensions") };
    let shared = |warps: usize| warps * (step.key.dims[2] + width) * 4;
    let warps = [4, 2, 1].into_iter().find(|&warps| shared(warps) <= facts.shared_bytes)?;
    Some(Recipe {
        name: "simple".to_owned(),
        source: KernelSource { text: SIMPLE, defines: defines(step, warps), entry: "attention" },
        grid: [length.div_ceil(warps) as u32, heads as u32, batch as u32],
        block: warps as u32 * 32,
        shared_bytes: shared(warps),
        cluster: 1,
        parameters: parameters(step),
    })
}

/// On tensor cores, in one pass over the keys: tensors of one type whose rows are whole chunks of 16 bytes.
fn tiled(step: &Attention, precision: Precision, facts: &Facts) -> Vec<Recipe> {
    let [batch, heads, length, width] = step.query.dims[..] else { unreachable!("four dimensions") };
    let size = step.query.element_bytes();
    let fits = |tensor: &Tensor| {
        let whole = |stride: isize| (stride.unsigned_abs() * size).is_multiple_of(16);
        tensor.dtype == step.query.dtype
            && tensor.strides[3] == 1
            && tensor.offset.is_multiple_of(16)
            && (0..3).all(|axis| tensor.dims[axis] == 1 || whole(tensor.strides[axis]))
    };
    let images = [&step.query, &step.key, &step.value, &step.output];
    if !images.iter().all(|tensor| fits(tensor))
        || !width.is_multiple_of(16)
        || width > 128
        || step.value.dims[3] != width
    {
        return Vec::new();
    }
    let half = step.query.dtype == DataType::Fp16;
    let tile = if half { 64 } else { 32 };
    let tiled_defines = |warps: usize| {
        let mut defines = defines(step, warps);
        defines.add("TILE", tile).add("IN_F16", i32::from(half)).add("EXACT", i32::from(precision == Precision::F32));
        defines
    };
    let of_warps = |warps: usize| Recipe {
        name: format!("flash {warps}"),
        source: KernelSource { text: TILED, defines: tiled_defines(warps), entry: "attention" },
        grid: [length.div_ceil(16 * warps) as u32, heads as u32, batch as u32],
        block: warps as u32 * 32,
        shared_bytes: (16 * warps + 4 * tile) * (width * size + 16),
        cluster: 1,
        parameters: parameters(step),
    };
    let useful = |warps: &usize| 16 * (warps - 1) < length || *warps == 1;
    let fits = |recipe: &Recipe| recipe.shared_bytes <= facts.shared_bytes;
    [1, 2, 4].into_iter().filter(useful).map(of_warps).filter(fits).collect()
}
