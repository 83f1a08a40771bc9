//! Kernels that move over images: pools, depthwise convolution, resizing, normalisation across channels; and picking by position.

use super::expression::{THREADS, activation_code, number};
use super::index::{Space, element, load, store};
use super::launch::{Parameters, Recipe};
use crate::toolkit::Source;
use graph::plan::{
    Conv, Coordinates, DataType, Gather, Lrn, Pool, PoolKind, Resize, ResizeKind, Rounding, Tensor, Window,
};

fn recipe(name: String, text: String, threads: usize, tensors: &[&Tensor]) -> Recipe {
    Recipe {
        name,
        source: Source { text, defines: Vec::new(), entry: "step" },
        grid: [threads.div_ceil(THREADS) as u32, 1, 1],
        block: THREADS as u32,
        shared_bytes: 0,
        cluster: 1,
        parameters: Parameters::of(tensors),
    }
}

fn head(parameters: &str, threads: usize) -> String {
    format!(
        "extern \"C\" __global__ void __launch_bounds__({THREADS}) step({parameters}) {{\n    after_the_kernel_before();\n\
         \x20   const u32 t = blockIdx.x * {THREADS}u + threadIdx.x;\n    if (t >= {threads}u) return;\n"
    )
}

/// C's names for how a window moves over an image.
fn window_names(window: &Window, image: &Tensor) -> String {
    let numbers = [
        ("STRIDE_Y", window.strides[0]),
        ("STRIDE_X", window.strides[1]),
        ("PAD_Y", window.pads_before[0]),
        ("PAD_X", window.pads_before[1]),
        ("DILATION_Y", window.dilations[0]),
        ("DILATION_X", window.dilations[1]),
    ];
    let mut text: String = numbers.iter().map(|(name, number)| format!("#define {name} {number}\n")).collect();
    text += &format!("#define HEIGHT {}u\n#define WIDTH {}u\n", image.dims[2], image.dims[3]);
    text
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

/// C that splits a thread's number into image `n`, channel `c`, row `y` and column `x`, neighbours in memory next to one another.
fn image_coordinates(image: &Tensor, pack: usize, columns: usize) -> String {
    let [_, channels, height, _] = image.dims[..] else { unreachable!("images have four dimensions") };
    let packs = channels / pack;
    if image.strides[1] == 1 {
        format!(
            "    const u32 c = t % {packs}u * {pack}u, x = t / {packs}u % {columns}u, y = t / {a}u % {height}u, n = t / {b}u;\n",
            a = packs * columns,
            b = packs * columns * height
        )
    } else {
        format!(
            "    const u32 x = t % {columns}u, y = t / {columns}u % {height}u, c = t / {a}u % {packs}u * {pack}u, n = t / {b}u;\n",
            a = columns * height,
            b = columns * height * packs
        )
    }
}

fn place(image: &Tensor, n: &str, c: &str, y: &str, x: &str) -> String {
    let strides = &image.strides;
    format!(
        "(i64)({n}) * {} + (i64)({c}) * {} + (i64)({y}) * {} + (i64)({x}) * {}",
        strides[0], strides[1], strides[2], strides[3]
    )
}

pub(crate) fn pool(step: &Pool) -> Recipe {
    let (input, output, window) = (&step.input, &step.output, &step.window);
    let pack = channel_pack(&[input, output]);
    let threads = output.elements() / pack;
    let (from, to) = (element(input.dtype), element(output.dtype));
    let max = step.kind == PoolKind::Max;
    let count = match step.kind {
        PoolKind::Max => String::new(),
        PoolKind::Average { count_include_pad: false } => "inside".to_owned(),
        // What is padding is counted; what is behind the padding, where a pool rounds up, isn't.
        PoolKind::Average { count_include_pad: true } => "counted".to_owned(),
    };
    let (first, fold) = if max { ("-INFINITE", "s[v] = fmaxf(s[v], a)") } else { ("0.0f", "s[v] += a") };
    let end = if max { "s[v]".to_owned() } else { format!("s[v] / (float){count}") };
    let [kernel_y, kernel_x] = window.kernel;
    let text = window_names(window, input)
        + &head(&format!("const {from}* __restrict__ p0, {to}* __restrict__ p1"), threads)
        + &image_coordinates(output, pack, output.dims[3])
        + &format!(
            "    float s[{pack}];\n#pragma unroll\n    for (int v = 0; v < {pack}; v++) s[v] = {first};\n    int inside = 0, counted = 0;\n\
             #pragma unroll\n    for (int i = 0; i < {kernel_y}; i++)\n#pragma unroll\n    for (int j = 0; j < {kernel_x}; j++) {{\n\
             \x20       const int a_y = (int)y * STRIDE_Y - PAD_Y + i * DILATION_Y, a_x = (int)x * STRIDE_X - PAD_X + j * DILATION_X;\n\
             \x20       if (a_y < {below} && a_x < {behind}) counted++;\n\
             \x20       if ((u32)a_y >= HEIGHT || (u32)a_x >= WIDTH) continue;\n        inside++;\n\
             \x20       const Pack<{from}, {pack}> q = *(const Pack<{from}, {pack}>*)(p0 + {at});\n\
             #pragma unroll\n        for (int v = 0; v < {pack}; v++) {{ const float a = {value}; {fold}; }}\n    }}\n\
             \x20   Pack<{to}, {pack}> q;\n#pragma unroll\n    for (int v = 0; v < {pack}; v++) q.at[v] = {result};\n\
             \x20   *(Pack<{to}, {pack}>*)(p1 + {out}) = q;\n}}\n",
            below = input.dims[2] + window.pads_after[0],
            behind = input.dims[3] + window.pads_after[1],
            at = place(input, "n", "c", "a_y", "a_x"),
            value = load(input.dtype, "q.at[v]"),
            result = store(output.dtype, &end),
            out = place(output, "n", "c", "y", "x"),
        );
    recipe("generated".to_owned(), text, threads, &[input, output])
}

/// A convolution in which every channel has its own kernel: a thread takes a pack of channels and `columns` neighbouring places, and reads each element of the
/// image that lies under several of them once.
pub(crate) fn depthwise(step: &Conv, columns: usize) -> Recipe {
    let (input, weight, output, window) = (&step.input, &step.weight, &step.output, &step.window);
    let mut images = vec![input, output];
    images.extend(&step.residual);
    let pack = channel_pack(&images);
    let across = output.dims[3].div_ceil(columns);
    let threads = output.elements() / output.dims[3] * across / pack;
    let (from, to, factor) = (element(input.dtype), element(output.dtype), element(weight.dtype));
    let [kernel_y, kernel_x] = window.kernel;
    let reach = (columns - 1) * window.strides[1] + (kernel_x - 1) * window.dilations[1] + 1;
    let mut parameters =
        format!("const {from}* __restrict__ p0, const {factor}* __restrict__ p1, {to}* __restrict__ p2");
    let mut tensors = vec![input, weight, output];
    let bias = step.bias.as_ref().map_or("0.0f".to_owned(), |bias| {
        parameters += &format!(", const {}* __restrict__ p3", element(bias.dtype));
        tensors.push(bias);
        load(bias.dtype, &format!("p3[(i64)(c + v) * {}]", bias.strides[0]))
    });
    let residual = step.residual.as_ref().map_or(String::new(), |residual| {
        parameters += &format!(", const {}* __restrict__ p4", element(residual.dtype));
        tensors.push(residual);
        format!(
            "        const Pack<{name}, {pack}> r = *(const Pack<{name}, {pack}>*)(p4 + {at});\n#pragma unroll\n        for (int v = 0; v < {pack}; v++) s[o][v] += {value};\n",
            name = element(residual.dtype),
            at = place(residual, "n", "c", "y", "x + o"),
            value = load(residual.dtype, "r.at[v]"),
        )
    });
    let (kind, low, high) = activation_code(step.activation);
    let result = store(output.dtype, &format!("activate(s[o][v], {kind}, {}, {})", number(low), number(high)));
    let strides = &weight.strides;
    let at = format!("(i64)c * {} + i * {} + j * {}", strides[0], strides[2], strides[3]);
    let factors = if strides[0] == 1 && pack * weight.element_bytes() <= 16 && weight.offset.is_multiple_of(16) {
        format!("const Pack<{factor}, {pack}> w = *(const Pack<{factor}, {pack}>*)(p1 + {at});")
    } else {
        format!(
            "Pack<{factor}, {pack}> w;\n#pragma unroll\n            for (int v = 0; v < {pack}; v++) w.at[v] = p1[{at} + (i64)v * {}];",
            strides[0]
        )
    };
    let text = window_names(window, input)
        + &head(&parameters, threads)
        + &image_coordinates(output, pack, across).replace("x = t", "x_pack = t")
        + &format!(
            "    const u32 x = x_pack * {columns}u;\n    float s[{columns}][{pack}];\n#pragma unroll\n    for (int o = 0; o < {columns}; o++)\n#pragma unroll\n\
             \x20       for (int v = 0; v < {pack}; v++) s[o][v] = {bias};\n    const int x_from = (int)x * STRIDE_X - PAD_X;\n\
             #pragma unroll\n    for (int i = 0; i < {kernel_y}; i++) {{\n        const int a_y = (int)y * STRIDE_Y - PAD_Y + i * DILATION_Y;\n\
             \x20       if ((u32)a_y >= HEIGHT) continue;\n        float a[{reach}][{pack}];\n#pragma unroll\n        for (int k = 0; k < {reach}; k++) {{\n\
             \x20           const bool valid = (u32)(x_from + k) < WIDTH;\n            Pack<{from}, {pack}> q;\n\
             \x20           if (valid) q = *(const Pack<{from}, {pack}>*)(p0 + {place});\n\
             #pragma unroll\n            for (int v = 0; v < {pack}; v++) a[k][v] = valid ? {value} : 0.0f;\n        }}\n\
             #pragma unroll\n        for (int j = 0; j < {kernel_x}; j++) {{\n            {factors}\n\
             #pragma unroll\n            for (int o = 0; o < {columns}; o++)\n#pragma unroll\n\
             \x20               for (int v = 0; v < {pack}; v++) s[o][v] += a[o * STRIDE_X + j * DILATION_X][v] * {w};\n        }}\n    }}\n\
             #pragma unroll\n    for (int o = 0; o < {columns}; o++) {{\n        if (x + o >= {out_width}u) break;\n{residual}\
             \x20       Pack<{to}, {pack}> q;\n#pragma unroll\n        for (int v = 0; v < {pack}; v++) q.at[v] = {result};\n\
             \x20       *(Pack<{to}, {pack}>*)(p2 + {out}) = q;\n    }}\n}}\n",
            place = place(input, "n", "c", "a_y", "x_from + k"),
            value = load(input.dtype, "q.at[v]"),
            w = load(weight.dtype, "w.at[v]"),
            out_width = output.dims[3],
            out = place(output, "n", "c", "y", "x + o"),
        );
    let text = if step.residual.is_some() && step.bias.is_none() {
        text.replace("__restrict__ p4", "__restrict__ p3").replace("(p4 +", "(p3 +")
    } else {
        text
    };
    recipe(format!("depthwise {columns}"), text, threads, &tensors)
}

pub(crate) fn lrn(step: &Lrn) -> Recipe {
    let (input, output) = (&step.input, &step.output);
    let space = Space::of(&[input, output], 1);
    // The channel is found again from the place in the input: a dimension may have been merged away. So the whole index is split by the tensor's own dimensions.
    let threads = space.count();
    let channels = input.dims[1];
    let rest: Vec<usize> = (0..input.dims.len()).filter(|&axis| axis != 1).collect();
    let mut code =
        String::from("    u32 left = t / CHANNELS;\n    const int c = t % CHANNELS;\n    i64 a = 0, b = 0;\n");
    for &axis in rest.iter().rev() {
        let dim = input.dims[axis];
        code += &format!(
            "    {{ const u32 at = left % {dim}u; left /= {dim}u; a += (i64)at * {}; b += (i64)at * {}; }}\n",
            input.strides[axis], output.strides[axis]
        );
    }
    let (below, above) = ((step.size - 1) / 2, step.size / 2);
    let text = format!("#define CHANNELS {channels}u\n")
        + &head(
            &format!("const {}* __restrict__ p0, {}* __restrict__ p1", element(input.dtype), element(output.dtype)),
            threads,
        )
        + &code
        + &format!(
            "    float s = 0.0f;\n    for (int k = c - {below}; k <= c + {above}; k++) {{\n        if (k < 0 || k >= {channels}) continue;\n\
             \x20       const float v = {around};\n        s += v * v;\n    }}\n    const float v = {value} / powf({bias} + {factor} * s, {beta});\n    p1[b + (i64)c * {stride}] = {result};\n}}\n",
            around = load(input.dtype, &format!("p0[a + (i64)k * {}]", input.strides[1])),
            value = load(input.dtype, &format!("p0[a + (i64)c * {}]", input.strides[1])),
            bias = number(step.bias),
            factor = number(step.alpha / step.size as f32),
            beta = number(step.beta),
            stride = output.strides[1],
            result = store(output.dtype, "v"),
        );
    recipe("generated".to_owned(), text, threads, &[input, output])
}

pub(crate) fn gather(step: &Gather) -> Recipe {
    let (data, indices, output) = (&step.data, &step.indices, &step.output);
    let limit = data.dims[step.axis];
    let clamped = format!(
        "at = at < 0 ? at + {limit} : at;\n    at = at < 0 ? 0 : at >= {limit} ? {last} : at;\n",
        last = limit - 1
    );
    // Along the output's dimensions, `data` and `indices` each have strides of their own: 0 where a dimension is the other's.
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
    let text = head(
        &format!(
            "const {}* __restrict__ p0, const {}* __restrict__ p1, {}* __restrict__ p2",
            element(data.dtype),
            element(indices.dtype),
            element(output.dtype)
        ),
        threads,
    ) + &space.coordinates("x", "t")
        + &format!(
            "    i64 at = (i64)p1[{index}];\n    {clamped}    p2[{out}] = {value};\n}}\n",
            index = space.offset(1, "x"),
            out = space.offset(2, "x"),
            value = store(
                output.dtype,
                &load(data.dtype, &format!("p0[{} + at * {}]", space.offset(0, "x"), data.strides[step.axis]))
            ),
        );
    recipe("generated".to_owned(), text, threads, &[data, indices, output])
}

pub(crate) fn resize(step: &Resize) -> Recipe {
    let (input, output) = (&step.input, &step.output);
    let threads = output.elements();
    let source = |axis: usize, at: &str| {
        let (inside, outside) = (input.dims[axis] as f32, output.dims[axis] as f32);
        let scale = step.scales[axis - 2];
        match step.coordinates {
            Coordinates::HalfPixel => format!("((float){at} + 0.5f) / {} - 0.5f", number(scale)),
            Coordinates::PytorchHalfPixel if output.dims[axis] == 1 => "0.0f".to_owned(),
            Coordinates::PytorchHalfPixel => format!("((float){at} + 0.5f) / {} - 0.5f", number(scale)),
            Coordinates::Asymmetric => format!("(float){at} / {}", number(scale)),
            Coordinates::AlignCorners if output.dims[axis] == 1 => "0.0f".to_owned(),
            Coordinates::AlignCorners => format!("(float){at} * {}", number((inside - 1.0) / (scale * inside - 1.0))),
            Coordinates::HalfPixelSymmetric => {
                let adjusted = outside / (scale * inside);
                let shift = inside / 2.0 * (1.0 - adjusted);
                format!("{} + ((float){at} + 0.5f) / {} - 0.5f", number(shift), number(scale))
            }
        }
    };
    let (height, width) = (input.dims[2], input.dims[3]);
    let at = |y: &str, x: &str| load(input.dtype, &format!("p0[{}]", place(input, "n", "c", y, x)));
    let body = match step.kind {
        ResizeKind::Nearest(rounding) => {
            let rounded = |code: String| match rounding {
                Rounding::Floor => format!("floorf({code})"),
                Rounding::Ceil => format!("ceilf({code})"),
                Rounding::RoundPreferFloor => format!("ceilf({code} - 0.5f)"),
                Rounding::RoundPreferCeil => format!("floorf({code} + 0.5f)"),
            };
            format!(
                "    const int a_y = min(max((int){}, 0), {}), a_x = min(max((int){}, 0), {});\n    const float s = {};\n",
                rounded("f_y".to_owned()),
                height - 1,
                rounded("f_x".to_owned()),
                width - 1,
                at("a_y", "a_x")
            )
        }
        ResizeKind::Linear => format!(
            "    const float g_y = fminf(fmaxf(f_y, 0.0f), {h}.0f), g_x = fminf(fmaxf(f_x, 0.0f), {w}.0f);\n\
             \x20   const int y0 = (int)g_y, x0 = (int)g_x, y1 = min(y0 + 1, {h}), x1 = min(x0 + 1, {w});\n    const float b = g_y - y0, a = g_x - x0;\n\
             \x20   const float s = (1.0f - b) * ((1.0f - a) * {} + a * {}) + b * ((1.0f - a) * {} + a * {});\n",
            at("y0", "x0"),
            at("y0", "x1"),
            at("y1", "x0"),
            at("y1", "x1"),
            h = height - 1,
            w = width - 1,
        ),
        ResizeKind::Cubic { coefficient, exclude_outside } => {
            let outside = |at: &str, limit: usize| {
                if exclude_outside { format!("if ({at} < 0 || {at} >= {limit}) k = 0.0f;") } else { String::new() }
            };
            format!(
                "    const int y0 = (int)floorf(f_y), x0 = (int)floorf(f_x);\n    float w_y[4], w_x[4], sum_y = 0.0f, sum_x = 0.0f;\n\
                 \x20   for (int i = 0; i < 4; i++) {{ float k = cubic(fabsf(f_y - (y0 - 1 + i)), {c}); const int at = y0 - 1 + i; {oy} w_y[i] = k; sum_y += k; }}\n\
                 \x20   for (int i = 0; i < 4; i++) {{ float k = cubic(fabsf(f_x - (x0 - 1 + i)), {c}); const int at = x0 - 1 + i; {ox} w_x[i] = k; sum_x += k; }}\n\
                 \x20   float s = 0.0f;\n    for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {{\n\
                 \x20       const int a_y = min(max(y0 - 1 + i, 0), {h}), a_x = min(max(x0 - 1 + j, 0), {w});\n        s += w_y[i] * w_x[j] * {value};\n    }}\n    s /= sum_y * sum_x;\n",
                c = number(coefficient),
                oy = outside("at", height),
                ox = outside("at", width),
                h = height - 1,
                w = width - 1,
                value = at("a_y", "a_x"),
            )
        }
    };
    let text = "__device__ __forceinline__ float cubic(float x, float a) {\n    return x <= 1.0f ? ((a + 2.0f) * x - (a + 3.0f)) * x * x + 1.0f : x < 2.0f ? a * (((x - 5.0f) * x + 8.0f) * x - 4.0f) : 0.0f;\n}\n"
        .to_owned()
        + &head(&format!("const {}* __restrict__ p0, {}* __restrict__ p1", element(input.dtype), element(output.dtype)), threads)
        + &image_coordinates(output, 1, output.dims[3])
        + &format!("    const float f_y = {}, f_x = {};\n", source(2, "y"), source(3, "x"))
        + &body
        + &format!("    p1[{}] = {};\n}}\n", place(output, "n", "c", "y", "x"), store(output.dtype, "s"));
    recipe("generated".to_owned(), text, threads, &[input, output])
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
