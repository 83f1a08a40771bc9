//! What can be checked without a GPU: the sources that are generated, and which kernels are tried.

use super::*;
use expect_test::{Expect, expect};
use graph::cases::steps::{gemm, plan_of};
use graph::expression::{Binary, Expression, Instruction, ValueKind};
use graph::plan::{
    Activation, Conv, DataType, Elementwise, Gemm, Reduce, ReduceKind, TensorPlace, Window, channels_last, row_major,
};

pub(super) fn facts() -> Facts {
    Facts {
        name: "NVIDIA H200".into(),
        capability: 90,
        multiprocessors: 132,
        shared_bytes: 232_448,
        versions: String::new(),
    }
}

fn tensor(dtype: DataType, dims: &[usize], strides: Vec<isize>, place: TensorPlace) -> Tensor {
    Tensor { dtype, dims: dims.to_vec(), strides, place, offset: 0 }
}

fn convolution(batch: usize, channels: usize, size: usize, kernel: usize, groups: usize) -> Conv {
    let dims = [batch, channels, size, size];
    let weight = [channels, channels / groups, kernel, kernel];
    Conv {
        input: tensor(DataType::Fp16, &dims, channels_last(&dims), TensorPlace::Workspace),
        weight: tensor(DataType::Fp16, &weight, channels_last(&weight), TensorPlace::Weights),
        bias: Some(tensor(DataType::Fp32, &[channels], vec![1], TensorPlace::Weights)),
        residual: None,
        output: tensor(DataType::Fp16, &dims, channels_last(&dims), TensorPlace::Workspace),
        window: Window {
            kernel: [kernel; 2],
            strides: [1; 2],
            dilations: [1; 2],
            pads_before: [kernel / 2; 2],
            pads_after: [kernel / 2; 2],
        },
        groups,
        activation: Activation::Relu,
    }
}

fn names(step: &Step) -> Vec<String> {
    recipes(step, Precision::F16, &facts()).unwrap().into_iter().map(|recipe| recipe.name).collect()
}

/// What a kernel's file is given.
fn given(recipe: &Recipe) -> String {
    format!("// {:?} x {}\n{}", recipe.grid, recipe.block, recipe.source.defines.text())
}

fn check_given(step: &Step, expected: &Expect) {
    expected.assert_eq(&given(&recipes(step, Precision::F16, &facts()).unwrap()[0]));
}

#[test]
fn elements_are_taken_in_packs_and_broadcast() {
    let dims = [2, 64, 8, 8];
    let mut expression = Expression::default();
    let x = expression.push(Instruction::Input(0), ValueKind::Float);
    let scale = expression.push(Instruction::Input(1), ValueKind::Float);
    let product = expression.push(Instruction::Binary(Binary::Multiply, x, scale), ValueKind::Float);
    let zero = expression.push(Instruction::Float(0.0), ValueKind::Float);
    expression.push(Instruction::Binary(Binary::Maximum, product, zero), ValueKind::Float);
    let step = Elementwise {
        inputs: vec![
            tensor(DataType::Fp16, &dims, channels_last(&dims), TensorPlace::Workspace),
            tensor(DataType::Fp16, &dims, vec![0, 1, 0, 0], TensorPlace::Weights),
        ],
        output: tensor(DataType::Fp16, &dims, channels_last(&dims), TensorPlace::Workspace),
        expression,
    };
    check_given(
        &Step::Elementwise(step),
        &expect![[r#"
            // [4, 1, 1] x 256
            #define THREADS 256
            #define PACK 8
            #define COORDINATES const u32 x1 = (first) % 64u; \
            const u32 x0 = first / 64u;
            #define OUT half_bits
            #define PARAMETERS const half_bits* __restrict__ i0, const half_bits* __restrict__ i1, half_bits* __restrict__ o, const u32 count
            #define READS const Pack<half_bits, 8> p0 = *(const Pack<half_bits, 8>*)(i0 + (i64)x0 * 64 + (i64)x1 * 1); \
            const Pack<half_bits, 8> p1 = *(const Pack<half_bits, 8>*)(i1 + (i64)x1 * 1);
            #define ELEMENTS const half_bits e0 = p0.at[v]; \
            const half_bits e1 = p1.at[v];
            #define INSTRUCTIONS const float r0 = from_half(e0); \
            const float r1 = from_half(e1); \
            const float r2 = r0 * r1; \
            const float r3 = 0e0f; \
            const float r4 = (r2 != r2 || r3 != r3) ? r2 + r3 : (r2 > r3 ? r2 : r3);
            #define RESULT to_half((float)(r4))
            #define OUT_AT (i64)x0 * 64 + (i64)x1 * 1
        "#]],
    );
}

#[test]
fn a_mean_over_an_image_reads_channels_that_are_neighbours() {
    let (dims, out) = ([1, 512, 7, 7], [1, 512, 1, 1]);
    let step = Reduce {
        input: tensor(DataType::Fp16, &dims, channels_last(&dims), TensorPlace::Workspace),
        output: tensor(DataType::Fp16, &out, channels_last(&out), TensorPlace::Workspace),
        kind: ReduceKind::Mean,
        axes: vec![2, 3],
    };
    check_given(
        &Step::Reduce(step),
        &expect![[r#"
            // [32, 1, 1] x 256
            #define THREADS 256
            #define LANES 16
            #define SLOTS 16
            #define ALONG 0
            #define LENGTH 49
            #define ROW_COORDINATES const u32 y0 = row;
            #define COORDINATES const u32 x1 = (i) % 7u; \
            const u32 x0 = i / 7u;
            #define IN half_bits
            #define LOAD(x) from_half(x)
            #define OUT half_bits
            #define STORE(x) to_half((float)(x))
            #define IN_AT (i64)y0 * 1 + (i64)x0 * 3584 + (i64)x1 * 512
            #define OUT_AT (i64)y0 * 1
            #define COMBINED float
            #define JOINED(a, b) a + b
            #define FIRST 0
            #define FOLD(s, v) s += v
            #define RESULT(s) s / (float)49
        "#]],
    );
}

#[test]
fn few_places_are_split_along_the_channels_and_many_are_not() {
    let few = names(&Step::Conv(convolution(1, 512, 7, 3, 1)));
    assert!(few.contains(&"tile 16x64 1x4 stages 5 splits 4".to_owned()), "{few:?}");
    let many = names(&Step::Conv(convolution(32, 64, 112, 3, 1)));
    assert!(many.iter().all(|name| name.ends_with("splits 1")), "{many:?}");
}

#[test]
fn by_rule_tiles_are_as_large_as_the_device_stays_busy_with_and_small_ones_are_split() {
    let first = |step: Step| names(&step)[0].clone();
    assert_eq!(first(Step::Conv(convolution(32, 64, 112, 3, 1))), "tile 64x64 2x2 stages 4 splits 1");
    let few = Step::Conv(convolution(1, 512, 7, 3, 1));
    assert_eq!(first(few.clone()), "tile 32x32 2x2 stages 5 splits 8");
    // Nothing is lost or there twice.
    let (mut all, count) = (names(&few), names(&few).len());
    all.sort();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn batches_of_all_sizes_share_the_kernels_that_are_generated() {
    let sources = |step: &Step| {
        let recipes = recipes(step, Precision::F32, &facts()).unwrap();
        recipes.into_iter().map(|recipe| recipe.source).collect::<Vec<_>>()
    };
    let image = |batch: usize| {
        let dims = vec![batch, 24, 14, 14];
        let strides = channels_last(&dims);
        Tensor { dtype: DataType::Fp32, dims, strides, place: TensorPlace::Workspace, offset: 0 }
    };
    let copy = |batch| Step::Copy(graph::plan::Copy { input: image(batch), output: image(batch) });
    let depthwise = |batch| Step::Conv(convolution(batch, 96, 28, 3, 96));
    assert_eq!(sources(&copy(1)), sources(&copy(16)));
    assert_eq!(sources(&depthwise(1)), sources(&depthwise(16)));
}

#[test]
fn one_kernel_for_each_channel_has_its_own_kernel() {
    assert_eq!(names(&Step::Conv(convolution(1, 96, 28, 3, 96))), ["depthwise 1", "depthwise 2", "depthwise 4"]);
}

#[test]
fn three_channels_are_gathered_and_many_are_copied_whole() {
    let mode = |channels| {
        let all = recipes(&Step::Conv(convolution(1, channels, 16, 3, 1)), Precision::F16, &facts()).unwrap();
        all[0].source.defines.value("A_MODE").unwrap().to_owned()
    };
    assert_eq!((mode(3), mode(16)), ("2".to_owned(), "1".to_owned()));
}

#[test]
fn a_convolution_of_one_tap_is_a_product() {
    assert!(lt::as_product(&convolution(2, 64, 8, 3, 1)).is_none());
    let product: Gemm = lt::as_product(&convolution(2, 64, 8, 1, 1)).unwrap();
    assert_eq!((product.a.dims, product.a.strides), (vec![128, 64], vec![64, 1]));
    assert_eq!((product.b.dims, product.b.strides), (vec![64, 64], vec![1, 64]));
}

/// Rows of the result at equal distances aren't rows of the image: it would be read beyond its end.
#[test]
fn one_tap_over_padding_behind_the_image_alone_is_no_product() {
    let mut conv = convolution(1, 64, 8, 1, 1);
    for image in [&mut conv.input, &mut conv.output] {
        image.dims[2] = 1;
        image.strides = channels_last(&image.dims);
    }
    let mode = |conv: &Conv| {
        let all = recipes(&Step::Conv(conv.clone()), Precision::F16, &facts()).unwrap();
        all[0].source.defines.value("A_MODE").unwrap().to_owned()
    };
    assert!(lt::as_product(&conv).is_some());
    assert_eq!(mode(&conv), "0");
    conv.output.dims[3] += 1;
    conv.output.strides = channels_last(&conv.output.dims);
    conv.window.pads_after = [0, 1];
    assert!(lt::as_product(&conv).is_none());
    assert_eq!(mode(&conv), "1");
}

#[test]
fn padding_behind_the_image_is_part_of_a_signature() {
    let conv = convolution(1, 64, 8, 3, 1);
    let mut other = conv.clone();
    other.window.pads_after = [2, 2];
    assert_ne!(signature(&Step::Conv(conv), Precision::F16), signature(&Step::Conv(other), Precision::F16));
}

#[test]
fn places_in_memory_are_no_part_of_a_signature_but_alignment_is() {
    let conv = convolution(1, 64, 8, 3, 1);
    let signed = |offset| {
        let mut conv = conv.clone();
        conv.input.offset = offset;
        signature(&Step::Conv(conv), Precision::F16)
    };
    assert_eq!(signed(256), signed(4096));
    assert_ne!(signed(256), signed(2));
}

#[test]
fn cudnn_is_asked_where_channels_lie_as_it_expects_them() {
    let plain = convolution(1, 64, 8, 3, 1);
    assert!(dnn::takes(&plain));
    // A part of a wider tensor, as in a concatenation in place.
    let mut part = plain.clone();
    part.output.strides[3] += 32;
    part.output.offset += 48;
    assert!(dnn::takes(&part));
    part.output.offset += 6;
    assert!(!dnn::takes(&part));
    let mut first = plain.clone();
    first.input.strides = row_major(&first.input.dims);
    assert!(!dnn::takes(&first));
    // By tap and output, as filters of depthwise convolutions lie.
    let mut by_tap = plain.clone();
    by_tap.weight.strides = vec![1, 64, 3 * 64 * 64, 64 * 64];
    assert!(!dnn::takes(&by_tap));
    // With one channel in, too, where the channels' own stride doesn't matter.
    let dims = [64, 1, 3, 3];
    let mut one = plain.clone();
    one.input = tensor(DataType::Fp16, &[1, 1, 8, 8], row_major(&[1, 1, 8, 8]), TensorPlace::Workspace);
    one.weight = tensor(DataType::Fp16, &dims, vec![1, 576, 192, 64], TensorPlace::Weights);
    assert!(!dnn::takes(&one));
    one.weight = tensor(DataType::Fp16, &dims, row_major(&dims), TensorPlace::Weights);
    assert!(dnn::takes(&one));
}

#[test]
fn corners_are_aligned_by_the_scale() {
    // 0.6 of 4 is 2.4, of which 2 are computed: pixel 1 of the output is 3 / 1.4 pixels from the first.
    let (from, to) = ([1, 1, 4, 4], [1, 1, 2, 2]);
    let step = graph::plan::Resize {
        input: tensor(DataType::Fp32, &from, row_major(&from), TensorPlace::Workspace),
        output: tensor(DataType::Fp32, &to, row_major(&to), TensorPlace::Workspace),
        kind: graph::plan::ResizeKind::Linear,
        coordinates: graph::plan::Coordinates::AlignCorners,
        scales: [0.6, 0.6],
    };
    let recipe = window::resize(&step);
    let source = recipe.source.defines.value("SOURCE_Y(y)").unwrap();
    assert!(source.starts_with("(float)y * 2.1428"), "{source}");
}

#[test]
fn attention_runs_on_tensor_cores_in_every_precision() {
    let dims = [1, 2, 80, 64];
    for (dtype, precision, exact) in [
        (DataType::Fp16, Precision::F16, "0"),
        (DataType::Fp32, Precision::Tf32, "0"),
        (DataType::Fp32, Precision::F32, "1"),
    ] {
        let at = |place| tensor(dtype, &dims, row_major(&dims), place);
        let step = graph::plan::Attention {
            query: at(TensorPlace::Input(0)),
            key: at(TensorPlace::Input(1)),
            value: at(TensorPlace::Input(2)),
            mask: None,
            output: at(TensorPlace::Output(0)),
            scale: 1.0,
        };
        let all = attention::attention(&step, precision, &facts()).unwrap();
        let flash: Vec<_> = all.iter().filter(|recipe| recipe.name.starts_with("flash")).collect();
        assert_eq!(flash.len(), 3, "with 1, 2 and 4 warps");
        assert!(flash.iter().all(|recipe| recipe.source.defines.value("EXACT") == Some(exact)), "{precision:?}");
    }
}

#[test]
fn an_unknown_type_is_refused_in_words() {
    let dims = [1, 1, 4, 16];
    let step = graph::plan::Attention {
        query: tensor(DataType::Fp64, &dims, row_major(&dims), TensorPlace::Workspace),
        key: tensor(DataType::Fp64, &dims, row_major(&dims), TensorPlace::Workspace),
        value: tensor(DataType::Fp64, &dims, row_major(&dims), TensorPlace::Workspace),
        mask: None,
        output: tensor(DataType::Fp64, &dims, row_major(&dims), TensorPlace::Workspace),
        scale: 1.0,
    };
    assert_eq!(
        recipes(&Step::Attention(step), Precision::F16, &facts()).unwrap_err(),
        "attention is there for FP16 and FP32"
    );
}

fn product(activation: Activation, pitch: isize) -> Gemm {
    let (m, k, n) = (24, 64, 96);
    Gemm {
        a: tensor(DataType::Fp16, &[m, k], row_major(&[m, k]), TensorPlace::Workspace),
        b: tensor(DataType::Fp16, &[k, n], row_major(&[k, n]), TensorPlace::Weights),
        bias: Some(tensor(DataType::Fp32, &[n], vec![1], TensorPlace::Weights)),
        residual: None,
        output: tensor(DataType::Fp16, &[m, n], vec![pitch, 1], TensorPlace::Workspace),
        alpha: 1.0,
        activation,
    }
}

/// The activation that is left for a kernel behind cuBLASLt's product.
fn left(step: Step) -> Option<Activation> {
    let (product, left) = lt::split(&step).expect("a product");
    assert!(left.is_none() || product.activation == Activation::None, "it is applied once");
    left
}

#[test]
fn what_the_epilogue_lacks_is_left_for_a_kernel_behind_it() {
    for had in [Activation::None, Activation::Relu, Activation::GeluTanh] {
        assert_eq!(left(Step::Gemm(product(had, 96))), None);
    }
    let clip = Activation::Clip { low: 0.0, high: 6.0 };
    for lacking in [Activation::Gelu, Activation::Silu, Activation::HardSwish, Activation::Mish, clip] {
        assert_eq!(left(Step::Gemm(product(lacking, 96))), Some(lacking));
        let conv = Conv { activation: lacking, ..convolution(2, 64, 8, 1, 1) };
        assert_eq!(left(Step::Conv(conv)), Some(lacking));
    }
    assert_eq!(lt::split(&Step::Conv(convolution(2, 64, 8, 3, 1))), None);
    let with_residual = Conv {
        residual: Some(convolution(2, 64, 8, 1, 1).output),
        activation: Activation::Silu,
        ..convolution(2, 64, 8, 1, 1)
    };
    let (added, _) = lt::split(&Step::Conv(with_residual)).unwrap();
    assert!(added.residual.is_some() && added.bias.is_some(), "both come before the activation");
}

#[test]
fn an_activation_is_applied_in_place_in_packs() {
    let given = |step: &Gemm| given(&expression::activation(&step.output, step.activation));
    expect![[r#"
        // [2, 1, 1] x 256
        #define THREADS 256
        #define PACK 8
        #define COORDINATES const u32 x0 = first;
        #define ELEMENT half_bits
        #define LOAD(x) from_half(x)
        #define STORE(x) to_half((float)(x))
        #define AT (i64)x0 * 1
        #define ACTIVATION 6
        #define LOW 0e0f
        #define HIGH 0e0f
    "#]]
    .assert_eq(&given(&product(Activation::Gelu, 96)));
    // Columns of something wider, and then at a distance that no wide access fits.
    expect![[r#"
        // [2, 1, 1] x 256
        #define THREADS 256
        #define PACK 8
        #define COORDINATES const u32 x1 = (first) % 96u; \
        const u32 x0 = first / 96u;
        #define ELEMENT half_bits
        #define LOAD(x) from_half(x)
        #define STORE(x) to_half((float)(x))
        #define AT (i64)x0 * 128 + (i64)x1 * 1
        #define ACTIVATION 2
        #define LOW -5e-1f
        #define HIGH __int_as_float(0x7f800000)
    "#]]
    .assert_eq(&given(&product(Activation::Clip { low: -0.5, high: f32::INFINITY }, 128)));
    assert!(given(&product(Activation::Gelu, 97)).contains("#define PACK 1\n"));
}

#[test]
fn every_source_of_a_product_is_there_to_be_checked() {
    let plan = Plan {
        precision: Precision::F16,
        exact_products: 0,
        inputs: Vec::new(),
        outputs: Vec::new(),
        steps: vec![Step::Gemm(product(Activation::Gelu, 96)), Step::Gemm(product(Activation::Relu, 96))],
        names: Vec::new(),
        weights: graph::weights::PlanWeights::default(),
        constants: Vec::new(),
        workspace_bytes: 0,
    };
    let generated = sources(&plan, &facts()).unwrap().into_iter().filter(|source| source.entry == "step").count();
    assert_eq!(generated, 1, "the activation of the first");
}

#[test]
fn a_step_is_a_librarys_kernel_or_ours_or_both() {
    let step = Step::Gemm(product(Activation::Gelu, 96));
    let wanted = StepCandidates {
        signature: String::new(),
        recipes: recipes(&step, Precision::F16, &facts()).unwrap(),
        activation: Some(expression::activation(&product(Activation::Gelu, 96).output, Activation::Gelu)),
        libraries: true,
    };
    let chosen = |name: &str| {
        let Kernels { library, own } = wanted.kernels(Some(name.to_owned()));
        (library.is_some(), own.map(|own| own.source.entry))
    };
    assert_eq!(chosen("tile 32x32 2x2 stages 5 splits 1"), (false, Some("tile")));
    assert_eq!(chosen("cublaslt 3"), (true, None));
    assert_eq!(chosen("cublaslt 3 + activation"), (true, Some("step")));
    // With the least effort nothing is measured, and the first of ours computes it.
    assert!(wanted.is_choice(Effort::default()) && !wanted.is_choice(Effort::least()));
    let Kernels { library, own } = wanted.kernels(None);
    assert_eq!((library, own.map(|own| own.name)), (None, Some(wanted.recipes[0].name.clone())));
    let theirs = StepCandidates { recipes: Vec::new(), ..wanted };
    assert!(theirs.is_choice(Effort::least()), "where libraries alone compute it, they are asked");
}

#[test]
fn steps_that_are_exact_have_kernels_that_are() {
    let mut plan = plan_of(&gemm(Precision::Tf32, &[], 5, 96, 50, true, Activation::None));
    plan.steps.push(plan.steps[0].clone());
    plan.names.push("the second".into());
    plan.exact_products = 1;
    let wanted = StepCandidates::all(&plan, &facts()).unwrap();
    let exact = |at: usize| -> Vec<Option<&str>> {
        wanted[at].recipes.iter().map(|recipe| recipe.source.defines.value("EXACT")).collect()
    };
    assert!(!exact(0).is_empty() && exact(0).iter().all(|value| *value == Some("1")), "{:?}", exact(0));
    assert!(exact(1).iter().all(|value| *value == Some("0")), "{:?}", exact(1));
    // What was measured for the one says nothing of the other.
    assert_ne!(wanted[0].signature, wanted[1].signature);
}
