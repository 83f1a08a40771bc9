//! Kernels that move over images: pools, depthwise convolution, resizing, normalisation across channels; and picking by
//! position.

use super::expression::{THREADS, activation_code, class_name, number};
use super::index::{Space, element, load, read_as, store, written_as};
use super::launch::{LaunchParameters, Recipe};
use crate::source::{Defines, KernelSource};
use graph::plan::{
    Conv, Coordinates, DataType, Gather, IntegerConv, Lrn, Pool, PoolKind, Resize, ResizeKind, Rounding, Scatter,
    ScatterKind, Tensor, Window,
};
use std::fmt::Write;

const POOL: &str = include_str!("../kernels/pool.cu");
const DEPTHWISE: &str = include_str!("../kernels/depthwise.cu");
const LRN: &str = include_str!("../kernels/lrn.cu");
const GATHER: &str = include_str!("../kernels/gather.cu");
const SCATTER: &str = include_str!("../kernels/scatter.cu");
const INTEGER_CONV: &str = include_str!("../kernels/integer_conv.cu");
const RESIZE: &str = include_str!("../kernels/resize.cu");

fn recipe(name: String, text: &'static str, defines: Defines, threads: usize, tensors: &[&Tensor]) -> Recipe {
    Recipe {
        name,
        source: KernelSource { text, defines, entry: "step" },
        grid: [threads.div_ceil(THREADS) as u32, 1, 1],
        block: THREADS as u32,
        shared_bytes: 0,
        cluster: 1,
        parameters: LaunchParameters::counted(tensors, threads),
    }
}

/// How a window moves over an image.
fn add_window(defines: &mut Defines, window: &Window, image: &Tensor) {
    defines
        .add("KERNEL_Y", window.kernel[0])
        .add("KERNEL_X", window.kernel[1])
        .add("STRIDE_Y", window.strides[0])
        .add("STRIDE_X", window.strides[1])
        .add("PAD_Y", window.pads_before[0])
        .add("PAD_X", window.pads_before[1])
        .add("DILATION_Y", window.dilations[0])
        .add("DILATION_X", window.dilations[1])
        .add("HEIGHT", image.dims[2])
        .add("WIDTH", image.dims[3]);
}

/// Channels that one thread takes: as many as one access holds, where they are neighbours in all of these images.
fn channel_pack(images: &[&Tensor]) -> usize {
    let fits = |pack: usize| {
        images.iter().all(|image| {
            let bytes = pack * image.element_bytes();
            bytes <= 16
                && image.strides[1] == 1
                && image.dims[1].is_multiple_of(pack)
                && image.offset.is_multiple_of(bytes)
                && [0, 2, 3]
                    .iter()
                    .all(|&axis| image.dims[axis] == 1 || image.strides[axis].unsigned_abs().is_multiple_of(pack))
        })
    };
    [8, 4, 2].into_iter().find(|&pack| fits(pack)).unwrap_or(1)
}

/// Which image, channel, row and column a thread's number stands for, neighbours in memory next to one another.
fn add_coordinates(defines: &mut Defines, image: &Tensor, pack: usize, columns: usize) {
    let [_, channels, height, _] = image.dims[..] else { unreachable!("images have four dimensions") };
    let packs = channels / pack;
    // How many numbers it takes to come to the next of each, and how many there are.
    let channels_last = image.strides[1] == 1;
    let (channel, column) = if channels_last { (1, packs) } else { (columns * height, 1) };
    let row = column * columns;
    let step = |below: usize| if below == 1 { "t".to_owned() } else { format!("t / {below}u") };
    defines
        .add("CHANNEL(t)", format!("{} % {packs}u * {pack}u", step(channel)))
        .add("COLUMN(t)", format!("{} % {columns}u", step(column)))
        .add("ROW(t)", format!("t / {row}u % {height}u"))
        .add("IMAGE(t)", format!("t / {}u", packs * columns * height));
}

/// Where an element of an image lies.
fn add_place(defines: &mut Defines, name: &str, image: &Tensor) {
    let [n, c, y, x] = image.strides[..] else { unreachable!("images have four dimensions") };
    defines.add(
        &format!("{name}(n, c, y, x)"),
        format!("(i64)(n) * {n} + (i64)(c) * {c} + (i64)(y) * {y} + (i64)(x) * {x}"),
    );
}

pub(crate) fn pool(step: &Pool) -> Recipe {
    let (input, output, window) = (&step.input, &step.output, &step.window);
    let pack = channel_pack(&[input, output]);
    let threads = output.elements() / pack;
    let count_padding = step.kind == PoolKind::Average { count_include_pad: true };
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("PACK", pack)
        .add("MAX_POOL", i32::from(step.kind == PoolKind::Max))
        .add("COUNT_PADDING", i32::from(count_padding))
        .add("END_Y", input.dims[2] + window.pads_after[0])
        .add("END_X", input.dims[3] + window.pads_after[1]);
    add_window(&mut defines, window, input);
    add_coordinates(&mut defines, output, pack, output.dims[3]);
    read_as(&mut defines, "IN", "LOAD", input.dtype);
    written_as(&mut defines, "OUT", "STORE", output.dtype);
    add_place(&mut defines, "IN_AT", input);
    add_place(&mut defines, "OUT_AT", output);
    recipe("generated".to_owned(), POOL, defines, threads, &[input, output])
}

/// A convolution in which every channel has its own kernel, `columns` neighbouring places at a time.
pub(crate) fn depthwise(step: &Conv, columns: usize) -> Recipe {
    let (input, weight, output, window) = (&step.input, &step.weight, &step.output, &step.window);
    let mut images = vec![input, output];
    images.extend(&step.residual);
    let pack = channel_pack(&images);
    let across = output.dims[3].div_ceil(columns);
    let threads = output.elements() / output.dims[3] * across / pack;
    let (kind, low, high) = activation_code(step.activation);
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("PACK", pack)
        .add("COLUMNS", columns)
        .add("REACH", (columns - 1) * window.strides[1] + (window.kernel[1] - 1) * window.dilations[1] + 1)
        .add("OUT_WIDTH", output.dims[3])
        .add("ACTIVATION", kind)
        .add("LOW", number(low))
        .add("HIGH", number(high));
    add_window(&mut defines, window, input);
    add_coordinates(&mut defines, output, pack, across);
    read_as(&mut defines, "IN", "LOAD", input.dtype);
    written_as(&mut defines, "OUT", "STORE", output.dtype);
    add_place(&mut defines, "IN_AT", input);
    add_place(&mut defines, "OUT_AT", output);
    add_filters(&mut defines, weight, pack);
    let mut tensors = vec![input, weight, output];
    defines.add("HAS_BIAS", i32::from(step.bias.is_some())).add("HAS_RESIDUAL", i32::from(step.residual.is_some()));
    if let Some(bias) = &step.bias {
        read_as(&mut defines, "BIAS", "LOAD_BIAS", bias.dtype);
        defines.add("BIAS_STRIDE", bias.strides[0]);
        tensors.push(bias);
    }
    if let Some(residual) = &step.residual {
        read_as(&mut defines, "RESIDUAL", "LOAD_RESIDUAL", residual.dtype);
        add_place(&mut defines, "RESIDUAL_AT", residual);
        tensors.push(residual);
    }
    recipe(format!("depthwise {columns}"), DEPTHWISE, defines, threads, &tensors)
}

/// The filters of a depthwise convolution, in packs where channels are neighbours.
fn add_filters(defines: &mut Defines, weight: &Tensor, pack: usize) {
    let strides = &weight.strides;
    let in_packs = strides[0] == 1 && pack * weight.element_bytes() <= 16 && weight.offset.is_multiple_of(16);
    read_as(defines, "WEIGHT", "LOAD_WEIGHT", weight.dtype);
    defines
        .add("WEIGHT_AT(c, i, j)", format!("(i64)c * {} + i * {} + j * {}", strides[0], strides[2], strides[3]))
        .add("WEIGHT_CHANNEL", strides[0])
        .add("WEIGHTS_IN_PACKS", i32::from(in_packs));
}

/// Whether the bytes of each four channels of a group are one word of memory.
fn in_words(image: &Tensor, group: usize) -> bool {
    let apart = |axis: usize| image.dims[axis] == 1 || image.strides[axis] % 4 == 0;
    image.strides[1] == 1
        && group.is_multiple_of(4)
        && image.offset.is_multiple_of(4)
        && [0, 2, 3].into_iter().all(apart)
}

/// Places and output channels of a block of the convolution of integers.
const INTEGER_TILE: usize = 64;

/// The convolution of integers; of bytes, also on tensor cores.
pub(crate) fn integer_conv(step: &IntegerConv) -> Vec<Recipe> {
    let bytes = [&step.input, &step.weight].iter().all(|tensor| tensor.element_bytes() == 1);
    let ways = if bytes { &[true, false][..] } else { &[false] };
    ways.iter().map(|&tensor_cores| integer_conv_by(step, bytes, tensor_cores)).collect()
}

fn integer_conv_by(step: &IntegerConv, bytes: bool, tensor_cores: bool) -> Recipe {
    let (input, weight, output) = (&step.input, &step.weight, &step.output);
    let [images, channels, height, width] = output.dims[..] else { unreachable!("images have four dimensions") };
    let (places, group_channels) = (images * height * width, channels / step.groups);
    let across = group_channels.div_ceil(INTEGER_TILE);
    let down = places.div_ceil(INTEGER_TILE);
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("TENSOR_CORES", i32::from(tensor_cores))
        .add("DOWN", down)
        .add("PLACES", places)
        .add("OUT_HEIGHT", height)
        .add("OUT_WIDTH", width)
        .add("GROUP_OUT", group_channels)
        .add("GROUP_IN", weight.dims[1])
        .add("ACROSS", across)
        .add("IN", element(input.dtype))
        .add("WEIGHT", element(weight.dtype))
        .add("HAS_ZERO", i32::from(step.zero.is_some()))
        .add("TERMS_OF_A_WORD", if bytes { 4 } else { 1 })
        .add("IN_SIGNED", input.dtype == DataType::Int8)
        .add("WEIGHT_SIGNED", weight.dtype == DataType::Int8)
        .add("IN_WORDS", i32::from(bytes && in_words(input, weight.dims[1])))
        .add("WEIGHT_WORDS", i32::from(bytes && in_words(weight, weight.dims[1])));
    add_window(&mut defines, &step.window, input);
    add_place(&mut defines, "IN_AT", input);
    add_place(&mut defines, "OUT_AT", output);
    add_place(&mut defines, "WEIGHT_AT", weight);
    let mut tensors = vec![input, weight, output];
    tensors.extend(&step.zero);
    let name = if tensor_cores { "tensor cores" } else { "threads" };
    let threads = down * across * step.groups * THREADS;
    let parameters = LaunchParameters::of(&tensors);
    Recipe { parameters, ..recipe(name.to_owned(), INTEGER_CONV, defines, threads, &tensors) }
}

pub(crate) fn lrn(step: &Lrn) -> Recipe {
    let (input, output) = (&step.input, &step.output);
    let threads = output.elements();
    // All dimensions but the channels, each with its strides: a thread's number is split by the tensor's own
    // dimensions.
    let place = |axis: usize| {
        let (dim, from, to) = (input.dims[axis], input.strides[axis], output.strides[axis]);
        format!("{{ const u32 at = left % {dim}u; left /= {dim}u; a += (i64)at * {from}; b += (i64)at * {to}; }}\n")
    };
    let places: String = (0..input.dims.len()).rev().filter(|&axis| axis != 1).map(place).collect();
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("CHANNELS", input.dims[1])
        .add("PLACES", places)
        .add("IN_CHANNEL", input.strides[1])
        .add("OUT_CHANNEL", output.strides[1])
        .add("BELOW", (step.size - 1) / 2)
        .add("ABOVE", step.size / 2)
        .add("SHIFT", number(step.bias))
        .add("FACTOR", number(step.alpha / step.size as f32))
        .add("BETA", number(step.beta));
    read_as(&mut defines, "IN", "LOAD", input.dtype);
    written_as(&mut defines, "OUT", "STORE", output.dtype);
    recipe("generated".to_owned(), LRN, defines, threads, &[input, output])
}

pub(crate) fn gather(step: &Gather) -> Recipe {
    let (data, indices, output) = (&step.data, &step.indices, &step.output);
    // Along the output's dimensions, `data` and `indices` each have strides of their own: 0 where a dimension is the
    // other's.
    let (mut of_data, mut of_indices) = (vec![0; output.dims.len()], vec![0; output.dims.len()]);
    if step.elements {
        of_indices.clone_from(&indices.strides);
        for (axis, stride) in data.strides.iter().enumerate().filter(|&(axis, _)| axis != step.axis) {
            of_data[axis] = *stride;
        }
    } else {
        let rank = indices.dims.len();
        of_data[..step.axis].copy_from_slice(&data.strides[..step.axis]);
        of_data[step.axis + rank..].copy_from_slice(&data.strides[step.axis + 1..]);
        of_indices[step.axis..step.axis + rank].copy_from_slice(&indices.strides);
    }
    let space = Space::new(&output.dims, &[&of_data, &of_indices, &output.strides], 2);
    let threads = space.count();
    let limit = data.dims[step.axis];
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("DATA", element(data.dtype))
        .add("INDEX", element(indices.dtype))
        .add("OUT", element(output.dtype))
        .add("CONVERT(x)", store(output.dtype, &load(data.dtype, "x")))
        .add("LIMIT", limit)
        .add("LAST", limit - 1)
        .add("STRIDE", data.strides[step.axis])
        .add("COORDINATES", space.coordinates("x", "t"))
        .add("DATA_AT", space.offset(0, "x"))
        .add("INDEX_AT", space.offset(1, "x"))
        .add("OUT_AT", space.offset(2, "x"));
    recipe("generated".to_owned(), GATHER, defines, threads, &[data, indices, output])
}

pub(crate) fn scatter(step: &Scatter) -> Recipe {
    let (data, indices, updates, output) = (&step.data, &step.indices, &step.updates, &step.output);
    let mut coordinates = String::new();
    let mut below = 1;
    for (axis, &dim) in output.dims.iter().enumerate().rev() {
        let _ = writeln!(coordinates, "const u32 x{axis} = t / {below}u % {dim}u;");
        below *= dim;
    }
    let place = |tensor: &Tensor, along: bool| {
        let axes = (0..tensor.dims.len()).filter(|&axis| along || axis != step.axis);
        let terms = axes.map(|axis| format!("(i64)x{axis} * {}", tensor.strides[axis]));
        terms.chain(["0".to_owned()]).collect::<Vec<_>>().join(" + ")
    };
    let others = (0..indices.dims.len()).filter(|&axis| axis != step.axis);
    let reached = others.map(|axis| format!("x{axis} < {}u", indices.dims[axis])).chain(["true".to_owned()]);
    let folded = match step.kind {
        ScatterKind::Replace => "s = v",
        ScatterKind::Add => "s = s + v",
        ScatterKind::Multiply => "s = s * v",
        ScatterKind::Maximum => "s = s != s || v != v ? s + v : v > s ? v : s",
        ScatterKind::Minimum => "s = s != s || v != v ? s + v : v < s ? v : s",
    };
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("VALUE", class_name(data.dtype))
        .add("INDEX", element(indices.dtype))
        .add("COORDINATES", coordinates)
        .add("AT", format!("(i64)x{}", step.axis))
        .add("LIMIT", data.dims[step.axis])
        .add("UPDATES", indices.dims[step.axis])
        .add("REACHED", reached.collect::<Vec<_>>().join(" && "))
        .add("DATA_AT", place(data, true))
        .add("INDEX_AT", place(indices, false))
        .add("INDEX_STRIDE", indices.strides[step.axis])
        .add("UPDATE_AT", place(updates, false))
        .add("UPDATE_STRIDE", updates.strides[step.axis])
        .add("OUT_AT", place(output, true))
        .add("FOLD(s, v)", folded);
    read_as(&mut defines, "DATA", "LOAD", data.dtype);
    read_as(&mut defines, "UPDATE", "LOAD_UPDATE", updates.dtype);
    written_as(&mut defines, "OUT", "STORE", output.dtype);
    recipe("generated".to_owned(), SCATTER, defines, output.elements(), &[data, indices, updates, output])
}

pub(crate) fn resize(step: &Resize) -> Recipe {
    let (input, output) = (&step.input, &step.output);
    let threads = output.elements();
    let (height, width) = (input.dims[2], input.dims[3]);
    let mut defines = Defines::default();
    defines
        .add("THREADS", THREADS)
        .add("HEIGHT", height)
        .add("WIDTH", width)
        .add("LAST_Y", height - 1)
        .add("LAST_X", width - 1)
        .add("SOURCE_Y(y)", source_coordinate(step, 2, "y"))
        .add("SOURCE_X(x)", source_coordinate(step, 3, "x"));
    add_coordinates(&mut defines, output, 1, output.dims[3]);
    read_as(&mut defines, "IN", "LOAD", input.dtype);
    written_as(&mut defines, "OUT", "STORE", output.dtype);
    add_place(&mut defines, "IN_AT", input);
    add_place(&mut defines, "OUT_AT", output);
    match step.kind {
        ResizeKind::Nearest(rounding) => {
            let rounded = match rounding {
                Rounding::Floor => "floorf(f)",
                Rounding::Ceil => "ceilf(f)",
                Rounding::RoundPreferFloor => "ceilf(f - 0.5f)",
                Rounding::RoundPreferCeil => "floorf(f + 0.5f)",
            };
            defines.add("METHOD", 0).add("ROUNDED(f)", rounded);
        }
        ResizeKind::Linear => {
            defines.add("METHOD", 1);
        }
        ResizeKind::Cubic { coefficient, exclude_outside } => {
            defines
                .add("METHOD", 2)
                .add("COEFFICIENT", number(coefficient))
                .add("EXCLUDE_OUTSIDE", i32::from(exclude_outside));
        }
    }
    recipe("generated".to_owned(), RESIZE, defines, threads, &[input, output])
}

/// C for where the row or column `at` of the output lies in the input.
fn source_coordinate(step: &Resize, axis: usize, at: &str) -> String {
    let (inside, outside) = (step.input.dims[axis] as f32, step.output.dims[axis] as f32);
    let scale = step.scales[axis - 2];
    match step.coordinates {
        Coordinates::HalfPixel => format!("((float){at} + 0.5f) / {} - 0.5f", number(scale)),
        Coordinates::PytorchHalfPixel | Coordinates::AlignCorners if outside == 1.0 => "0.0f".to_owned(),
        Coordinates::PytorchHalfPixel => format!("((float){at} + 0.5f) / {} - 0.5f", number(scale)),
        Coordinates::Asymmetric => format!("(float){at} / {}", number(scale)),
        Coordinates::AlignCorners => format!("(float){at} * {}", number((inside - 1.0) / (scale * inside - 1.0))),
        Coordinates::HalfPixelSymmetric => {
            let adjusted = outside / (scale * inside);
            let shift = inside / 2.0 * (1.0 - adjusted);
            format!("{} + ((float){at} + 0.5f) / {} - 0.5f", number(shift), number(scale))
        }
    }
}

/// Whether a convolution is one kernel for each channel, of types that are computed with as floats.
pub(crate) fn is_depthwise(step: &Conv) -> bool {
    let float = |tensor: &Tensor| matches!(tensor.dtype, DataType::Fp16 | DataType::Fp32);
    step.groups == step.input.dims[1]
        && step.output.dims[1] == step.groups
        && step.groups > 1
        && float(&step.input)
        && float(&step.weight)
}
