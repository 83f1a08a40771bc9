//! The way from a model to its plan.

use crate::error::GraphError;
use crate::model::OnnxModel;
use crate::options::Options;
use crate::plan::Plan;
use crate::{arrange, fuse, lower};

/// Plans a model for fixed sizes and a precision. Equal models and options give equal plans.
pub fn compile(model: &OnnxModel, options: &Options) -> Result<Plan, GraphError> {
    let mut graph = lower::lower(model, options)?;
    graph.remove_unused();
    if options.fuse {
        fuse::fuse(&mut graph);
    }
    graph.remove_unused();
    arrange::arrange(&graph, options)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ImageLayout;
    use crate::plan::{Precision, Tensor, TensorPlace};
    use crate::reference::Reference;
    use crate::sample;
    use expect_test::{Expect, expect};
    use workload::Random;

    fn options(batch: usize, precision: Precision) -> Options {
        let mut options = Options::new(batch, precision);
        options.sizes.insert("length".into(), 6);
        options
    }

    fn files() -> [(&'static str, Vec<u8>); 11] {
        [
            ("residual", sample::residual()),
            ("dense", sample::dense()),
            ("mobile", sample::mobile()),
            ("strided", sample::strided()),
            ("split", sample::split()),
            ("lengths", sample::lengths()),
            ("masked", sample::masked()),
            ("transformer", sample::transformer()),
            ("recurrent", sample::recurrent()),
            ("looping", sample::looping()),
            ("fused", sample::fused()),
        ]
    }

    fn models() -> [(&'static str, OnnxModel); 11] {
        files().map(|(name, file)| (name, model(&file)))
    }

    fn model(file: &[u8]) -> OnnxModel {
        OnnxModel::decode(file, None).unwrap()
    }

    /// Files come from outside: whatever is in them, the worst is a refusal.
    #[test]
    fn damaged_files_are_refused_or_planned() {
        let mut random = Random::new(1, 0);
        let mut below = |bound: usize| random.below(bound as u32) as usize;
        for (_, file) in files() {
            for _ in 0..400 {
                let mut damaged = file.clone();
                for _ in 0..1 + below(3) {
                    let at = below(damaged.len());
                    damaged[at] = [0, 0x7f, damaged[at] ^ (1 << below(8)), below(256) as u8][below(4)];
                }
                if let Ok(model) = OnnxModel::decode(&damaged, None) {
                    let _ = compile(&model, &options(2, Precision::F16));
                }
            }
        }
    }

    fn check(file: &[u8], options: &Options, expect: &Expect) {
        expect.assert_eq(&compile(&model(file), options).unwrap().to_string());
    }

    fn floats(plan: &Plan) -> Vec<f32> {
        let inputs = sample::inputs(plan);
        let outputs = Reference::new(plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
        outputs[0].chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    #[test]
    fn choices_do_not_change_what_is_computed() {
        for (name, model) in models() {
            for batch in [1, 3] {
                let mut plain = options(batch, Precision::F32);
                (plain.fuse, plain.concat_in_place, plain.layout) = (false, false, ImageLayout::ChannelsFirst);
                let expected = floats(&compile(&model, &plain).unwrap());
                assert!(expected.iter().all(|value| value.is_finite()) && expected.iter().any(|&value| value != 0.0));
                let largest = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                for choice in 0..16 {
                    for (precision, bound) in [(Precision::F32, 1e-5), (Precision::F16, 1e-2)] {
                        let mut options = options(batch, precision);
                        options.fuse = choice & 1 != 0;
                        options.concat_in_place = choice & 2 != 0;
                        options.convert_in_steps = choice & 8 != 0;
                        options.layout =
                            if choice & 4 != 0 { ImageLayout::ChannelsLast } else { ImageLayout::ChannelsFirst };
                        let found = floats(&compile(&model, &options).unwrap());
                        let error = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                        assert!(error <= bound * largest, "{name} {options:?}: {error} of {largest}");
                    }
                }
            }
        }
    }

    #[test]
    fn weights_are_the_same_for_all_sizes() {
        for (name, model) in models() {
            let of = |batch: usize, length: usize| {
                let mut options = options(batch, Precision::F16);
                options.sizes.insert("length".into(), length);
                let plan = compile(&model, &options).unwrap();
                (plan.weights.layout_hash(), plan.weights.to_bytes())
            };
            let first = of(1, 4);
            assert!(
                [(2, 4), (8, 4), (1, 16), (5, 7)].iter().all(|&(batch, length)| of(batch, length) == first),
                "{name}"
            );
        }
    }

    #[test]
    fn equal_options_give_equal_plans() {
        for (_, model) in models() {
            let plan = |batch| compile(&model, &options(batch, Precision::F16)).unwrap();
            assert_eq!(plan(2).to_string(), plan(2).to_string());
            assert_eq!(plan(2).hash(), plan(2).hash());
            assert_ne!(plan(2).hash(), plan(3).hash());
        }
    }

    #[test]
    fn the_first_products_may_be_exact_where_only_their_factors_differ() {
        let plan = |precision, exact_products| {
            let options = Options { exact_products, ..options(1, precision) };
            compile(&model(&sample::residual()), &options).unwrap()
        };
        let exact = |plan: &Plan| -> Vec<bool> {
            let products = (0..plan.steps.len()).filter(|&step| plan.steps[step].is_product());
            products.map(|step| plan.precision_of(step) == Precision::F32).collect()
        };
        let of = |count| plan(Precision::Tf32, count);
        assert_eq!(exact(&of(0)), [false; 5]);
        assert_eq!(exact(&of(2)), [true, true, false, false, false]);
        assert!(of(5).is_exact() && of(99).is_exact() && !of(4).is_exact());
        let others = (0..of(5).steps.len()).filter(|&step| !of(5).steps[step].is_product());
        assert!(others.map(|step| of(5).precision_of(step)).all(|precision| precision == Precision::Tf32));
        // Tensors lie the same way, so that one blob of weights is for all of them.
        let steps = |plan: &Plan| plan.steps.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(steps(&of(2)), steps(&plan(Precision::F32, 0)));
        assert_eq!(exact(&plan(Precision::F16, 2)), [false; 5], "halves stay halves");
        assert!(plan(Precision::F32, 0).is_exact());
    }

    /// That no two values share memory while both are needed is tested in `memory.rs`; here, that lives are right.
    #[test]
    fn no_step_writes_over_what_it_reads_or_behind_the_workspace() {
        for (name, model) in models() {
            let plan = compile(&model, &options(3, Precision::F16)).unwrap();
            for step in &plan.steps {
                for write in step.writes().into_iter().filter(|tensor| tensor.place == TensorPlace::Workspace) {
                    let span = write.span();
                    assert!(span.end <= plan.workspace_bytes, "{name}: {step}");
                    // Slices of a concatenation lie between one another.
                    let dense = span.len() == write.elements() * write.element_bytes();
                    let meets = |read: &&Tensor| {
                        read.place == TensorPlace::Workspace
                            && read.span().start < span.end
                            && span.start < read.span().end
                    };
                    assert!(!dense || !step.reads().iter().any(meets), "{name}: {step}");
                }
            }
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut net = sample::SampleModel::new("x", 1, &[0, 3]);
        net.node("Sideways", &["x"], "y", &[]);
        let text = compile(&net.model(&["y"]), &Options::new(1, Precision::F32)).unwrap_err().to_string();
        expect![[r#"operator Sideways of node "y" is not supported: serve this model on a CPU device"#]]
            .assert_eq(&text);
        let text = compile(&model(&sample::transformer()), &Options::new(1, Precision::F32)).unwrap_err().to_string();
        expect![[r#"dimension 1 ("length") of input "ids" is open: give its size under that name, or as ids:1"#]]
            .assert_eq(&text);
    }

    #[test]
    fn a_batch_that_the_model_does_not_take_is_refused() {
        let mut net = sample::SampleModel::new("x", 1, &[4, 3]);
        net.node("Relu", &["x"], "y", &[]);
        let model = net.model(&["y"]);
        let text = compile(&model, &Options::new(8, Precision::F32)).unwrap_err().to_string();
        assert!(text.contains("a fixed batch of 4, not 8"), "{text}");
        assert!(compile(&model, &Options::new(1, Precision::F32)).is_ok());
    }

    #[test]
    fn a_residual_block_is_four_convolutions() {
        check(
            &sample::residual(),
            &options(2, Precision::F16),
            &expect![[r#"
                plan F16: 9 steps, 9472 bytes of weights in 10, 0 of constants, 2816 of workspace
                input0 x FP32[2, 3, 8, 8]
                output0 y FP32[2, 10]
                copy        FP32[2, 3, 8, 8]@input0+0 -> FP16[2, 3, 8, 8]nhwc@work+2048   # stem.relu
                conv        FP16[2, 3, 8, 8]nhwc@work+2048 FP16[8, 3, 3, 3]nhwc@weights+0 FP16[8]@weights+512 -> FP16[2, 8, 8, 8]nhwc@work+0 | 3x3 pad [1, 1][1, 1] +bias Relu   # stem.relu
                pool        FP16[2, 8, 8, 8]nhwc@work+0 -> FP16[2, 8, 4, 4]nhwc@work+2048 | Max 3x3 stride 2x2 pad [1, 1][1, 1]   # pool
                conv        FP16[2, 8, 4, 4]nhwc@work+2048 FP16[16, 8, 3, 3]nhwc@weights+768 FP16[16]@weights+3072 -> FP16[2, 16, 2, 2]nhwc@work+0 | 3x3 stride 2x2 pad [1, 1][1, 1] +bias Relu   # a.relu
                conv        FP16[2, 16, 2, 2]nhwc@work+0 FP16[16, 16, 3, 3]nhwc@weights+3328 FP16[16]@weights+7936 -> FP16[2, 16, 2, 2]nhwc@work+256 | 3x3 pad [1, 1][1, 1] +bias   # b
                conv        FP16[2, 8, 4, 4]nhwc@work+2048 FP16[16, 8, 1, 1]@weights+8192 FP16[16]@weights+8448 FP16[2, 16, 2, 2]nhwc@work+256 -> FP16[2, 16, 2, 2]nhwc@work+0 | 1x1 stride 2x2 +bias +residual Relu   # sum.relu
                reduce      FP16[2, 16, 2, 2]nhwc@work+0 -> FP16[2, 16, 1, 1]@work+256 | Mean over [2, 3]   # mean
                gemm        FP16[2, 16]@work+256 FP16[16, 10]by[1, 16]@weights+8704 FP16[10]@weights+9216 -> FP16[2, 10]@work+0 | +bias   # y
                copy        FP16[2, 10]@work+0 -> FP32[2, 10]@output0+0   # y
            "#]],
        );
    }

    #[test]
    fn a_dense_block_copies_nothing() {
        check(
            &sample::dense(),
            &options(1, Precision::F32),
            &expect![[r#"
            plan F32: 9 steps, 6912 bytes of weights in 12, 0 of constants, 4096 of workspace
            input0 x FP32[1, 4, 6, 6]
            output0 y FP32[1, 8, 3, 3]
            copy        FP32[1, 4, 6, 6]@input0+0 -> FP32[1, 4, 6, 6]nhwc@work+2304   # stem
            conv        FP32[1, 4, 6, 6]nhwc@work+2304 FP32[8, 4, 3, 3]nhwc@weights+0 FP32[8]@weights+1280 -> FP32[1, 8, 6, 6]by[576, 1, 96, 16]@work+0 | 3x3 pad [1, 1][1, 1] +bias   # stem
            elementwise FP32[1, 8, 6, 6]by[576, 1, 96, 16]@work+0 FP32[1, 8, 6, 6]by[0, 1, 0, 0]@weights+1536 FP32[1, 8, 6, 6]by[0, 1, 0, 0]@weights+1792 -> FP32[1, 8, 6, 6]nhwc@work+2304 | Maximum(Add(Multiply($0, $1), $2), 0.0)   # r1
            conv        FP32[1, 8, 6, 6]nhwc@work+2304 FP32[4, 8, 3, 3]nhwc@weights+2048 FP32[4]@weights+3328 -> FP32[1, 4, 6, 6]by[576, 1, 96, 16]@work+32 | 3x3 pad [1, 1][1, 1] +bias   # f1
            elementwise FP32[1, 12, 6, 6]by[576, 1, 96, 16]@work+0 FP32[1, 12, 6, 6]by[0, 1, 0, 0]@weights+3584 FP32[1, 12, 6, 6]by[0, 1, 0, 0]@weights+3840 -> FP32[1, 12, 6, 6]nhwc@work+2304 | Maximum(Add(Multiply($0, $1), $2), 0.0)   # r2
            conv        FP32[1, 12, 6, 6]nhwc@work+2304 FP32[4, 12, 3, 3]nhwc@weights+4096 FP32[4]@weights+5888 -> FP32[1, 4, 6, 6]by[576, 1, 96, 16]@work+48 | 3x3 pad [1, 1][1, 1] +bias   # f2
            conv        FP32[1, 16, 6, 6]nhwc@work+0 FP32[8, 16, 1, 1]@weights+6144 FP32[8]@weights+6656 -> FP32[1, 8, 6, 6]nhwc@work+2304 | 1x1 +bias   # t
            pool        FP32[1, 8, 6, 6]nhwc@work+2304 -> FP32[1, 8, 3, 3]nhwc@work+0 | Average { count_include_pad: false } 2x2 stride 2x2   # y
            copy        FP32[1, 8, 3, 3]nhwc@work+0 -> FP32[1, 8, 3, 3]@output0+0   # y
        "#]],
        );
    }

    #[test]
    fn activations_are_found_in_their_parts() {
        check(
            &sample::mobile(),
            &options(1, Precision::F32),
            &expect![[r#"
                plan F32: 9 steps, 3584 bytes of weights in 10, 0 of constants, 6144 of workspace
                input0 x FP32[1, 8, 6, 6]
                output0 y FP32[1, 8, 6, 6]
                copy        FP32[1, 8, 6, 6]@input0+0 -> FP32[1, 8, 6, 6]nhwc@work+4608   # swish
                conv        FP32[1, 8, 6, 6]nhwc@work+4608 FP32[16, 8, 1, 1]@weights+0 FP32[16]@weights+512 -> FP32[1, 16, 6, 6]nhwc@work+0 | 1x1 +bias HardSwish   # swish
                conv        FP32[1, 16, 6, 6]nhwc@work+0 FP32[16, 1, 3, 3]by[1, 144, 48, 16]@weights+768 FP32[16]@weights+1536 -> FP32[1, 16, 6, 6]nhwc@work+2304 | 3x3 pad [1, 1][1, 1] groups 16 +bias Clip { low: 0.0, high: 6.0 }   # relu6
                reduce      FP32[1, 16, 6, 6]nhwc@work+2304 -> FP32[1, 16, 1, 1]@work+0 | Mean over [2, 3]   # s1
                conv        FP32[1, 16, 1, 1]@work+0 FP32[4, 16, 1, 1]@weights+1792 FP32[4]@weights+2048 -> FP32[1, 4, 1, 1]@work+256 | 1x1 +bias Relu   # s3
                conv        FP32[1, 4, 1, 1]@work+256 FP32[16, 4, 1, 1]@weights+2304 FP32[16]@weights+2560 -> FP32[1, 16, 1, 1]@work+5888 | 1x1 +bias HardSigmoid { alpha: 0.2, beta: 0.5 }   # gate
                elementwise FP32[1, 16, 6, 6]nhwc@work+2304 FP32[1, 16, 6, 6]by[16, 1, 0, 0]@work+5888 -> FP32[1, 16, 6, 6]nhwc@work+0 | Multiply($0, $1)   # gated
                conv        FP32[1, 16, 6, 6]nhwc@work+0 FP32[8, 16, 1, 1]@weights+2816 FP32[8]@weights+3328 FP32[1, 8, 6, 6]nhwc@work+4608 -> FP32[1, 8, 6, 6]nhwc@work+2304 | 1x1 +bias +residual   # y
                copy        FP32[1, 8, 6, 6]nhwc@work+2304 -> FP32[1, 8, 6, 6]@output0+0   # y
            "#]],
        );
    }

    #[test]
    fn convolutions_of_tensorflow_pad_by_themselves() {
        check(
            &sample::strided(),
            &options(1, Precision::F16),
            &expect![[r#"
            plan F16: 5 steps, 2048 bytes of weights in 6, 0 of constants, 768 of workspace
            input0 x FP32[1, 3, 8, 8]
            output0 y FP32[1, 4, 2, 2]
            copy        FP32[1, 3, 8, 8]@input0+0 -> FP16[1, 3, 8, 8]nhwc@work+0   # stem.relu6
            conv        FP16[1, 3, 8, 8]nhwc@work+0 FP16[8, 3, 3, 3]nhwc@weights+0 FP16[8]@weights+512 -> FP16[1, 8, 4, 4]nhwc@work+512 | 3x3 stride 2x2 pad [0, 0][1, 1] +bias Clip { low: 0.0, high: 6.0 }   # stem.relu6
            conv        FP16[1, 8, 4, 4]nhwc@work+512 FP16[8, 1, 5, 5]by[1, 200, 40, 8]@weights+768 FP16[8]@weights+1280 -> FP16[1, 8, 2, 2]nhwc@work+0 | 5x5 stride 2x2 pad [1, 1][2, 2] groups 8 +bias Clip { low: 0.0, high: 6.0 }   # deep.relu6
            conv        FP16[1, 8, 2, 2]nhwc@work+0 FP16[4, 8, 1, 1]@weights+1536 FP16[4]@weights+1792 -> FP16[1, 4, 2, 2]nhwc@work+256 | 1x1 +bias   # y
            copy        FP16[1, 4, 2, 2]nhwc@work+256 -> FP32[1, 4, 2, 2]@output0+0   # y
        "#]],
        );
    }

    #[test]
    fn a_value_that_is_split_and_kept_lies_in_the_whole() {
        check(
            &sample::split(),
            &options(1, Precision::F16),
            &expect![[r#"
            plan F16: 6 steps, 2560 bytes of weights in 6, 0 of constants, 2560 of workspace
            input0 x FP32[1, 4, 6, 6]
            output0 y FP32[1, 4, 6, 6]
            copy        FP32[1, 4, 6, 6]@input0+0 -> FP16[1, 4, 6, 6]nhwc@work+1792   # a.relu
            conv        FP16[1, 4, 6, 6]nhwc@work+1792 FP16[16, 4, 1, 1]@weights+0 FP16[16]@weights+256 -> FP16[1, 16, 6, 6]by[864, 1, 144, 24]@work+0 | 1x1 +bias Relu   # a.relu
            conv        FP16[1, 8, 6, 6]by[864, 1, 144, 24]@work+16 FP16[8, 8, 3, 3]nhwc@weights+512 FP16[8]@weights+1792 -> FP16[1, 8, 6, 6]nhwc@work+1792 | 3x3 pad [1, 1][1, 1] +bias   # b
            elementwise FP16[1, 8, 6, 6]nhwc@work+1792 FP16[1, 8, 6, 6]by[864, 1, 144, 24]@work+16 -> FP16[1, 8, 6, 6]by[864, 1, 144, 24]@work+32 | Add($1, Maximum($0, 0.0))   # third
            conv        FP16[1, 24, 6, 6]nhwc@work+0 FP16[4, 24, 1, 1]@weights+2048 FP16[4]@weights+2304 -> FP16[1, 4, 6, 6]nhwc@work+1792 | 1x1 +bias   # y
            copy        FP16[1, 4, 6, 6]nhwc@work+1792 -> FP32[1, 4, 6, 6]@output0+0   # y
        "#]],
        );
    }

    #[test]
    fn layers_share_a_mask() {
        let plan = compile(&model(&sample::masked()), &options(2, Precision::F16)).unwrap();
        let count = |kind: &str| plan.steps.iter().filter(|step| step.kind() == kind).count();
        // What is hidden, and the numbers for it.
        assert_eq!((count("attention"), count("elementwise")), (2, 2), "{plan}");
    }

    #[test]
    fn operators_for_attention_are_one_step_each() {
        let plan = compile(&model(&sample::fused()), &options(2, Precision::F16)).unwrap();
        let count = |kind: &str| plan.steps.iter().filter(|step| step.kind() == kind).count();
        assert_eq!((count("attention"), count("softmax"), count("layernorm")), (2, 0, 2), "{plan}");
    }

    #[test]
    fn recurrent_layers_write_their_steps_in_place() {
        let plan = compile(&model(&sample::recurrent()), &options(2, Precision::F32)).unwrap();
        let count = |kind: &str| plan.steps.iter().filter(|step| step.kind() == kind).count();
        // Of 6 steps in each of 3 directions: a product, in a GRU two, and two element-wise steps, but what the last cell
        // shows needs no cell of its own. The products with the inputs, one for both directions of the GRU. Copies of
        // what goes into both layers, because it is turned.
        assert_eq!((count("gemm"), count("elementwise"), count("copy")), (6 * 5 + 2, 6 * 6 - 1, 2), "{plan}");
    }

    #[test]
    fn more_steps_than_a_plan_should_have_are_refused() {
        let mut options = Options::new(1, Precision::F32);
        options.sizes.insert("length".into(), 5_000);
        let text = compile(&model(&sample::recurrent()), &options).unwrap_err().to_string();
        expect![[r#"operator GRU of node "g" is not supported with 10000 steps: a model may have 4096 of recurrent layers and loops in all: serve this model on a CPU device"#]].assert_eq(&text);
    }

    #[test]
    fn a_transformer_layer_is_ten_steps() {
        check(
            &sample::transformer(),
            &options(2, Precision::F16),
            &expect![[r#"
                plan F16: 10 steps, 3584 bytes of weights in 12, 0 of constants, 1536 of workspace
                input0 ids INT64[2, 6]
                input1 mask INT64[2, 6]
                output0 y FP32[2, 6, 8]
                gather      FP16[20, 8]@weights+0 INT64[2, 6]@input0+0 -> FP16[2, 6, 8]@work+0 | along 0   # e1
                elementwise FP16[2, 6, 8]@work+0 FP16[2, 6, 8]by[0, 8, 1]@weights+512 -> FP16[2, 6, 8]@work+768 | Add($0, $1)   # x
                elementwise INT64[2, 1, 1, 6]@input1+0 -> FP16[2, 1, 1, 6]@work+1280 | Multiply(Subtract(1.0, Float($0)), -65504.0)   # m4
                gemm        FP16[12, 8]@work+768 FP16[8, 24]by[1, 8]@weights+768 FP16[24]@weights+1280 -> FP16[12, 24]@work+0 | +bias   # q.a
                attention   FP16[2, 2, 6, 4]by[144, 4, 24, 1]@work+0 FP16[2, 2, 6, 4]by[144, 4, 24, 1]@work+16 FP16[2, 2, 6, 4]by[144, 4, 24, 1]@work+32 FP16[2, 2, 6, 6]by[6, 0, 0, 1]@work+1280 -> FP16[2, 2, 6, 4]by[48, 4, 8, 1]@work+1024 | scale 0.5   # s5
                gemm        FP16[12, 8]@work+1024 FP16[8, 8]by[1, 8]@weights+1536 FP16[8]@weights+1792 FP16[12, 8]@work+768 -> FP16[12, 8]@work+0 | +bias +residual   # o3
                layernorm   FP16[2, 6, 8]@work+0 FP16[2, 6, 8]by[0, 0, 1]@weights+2048 FP16[2, 6, 8]by[0, 0, 1]@weights+2304 -> FP16[2, 6, 8]@work+512 | from 2 epsilon 1e-5   # n9
                gemm        FP16[12, 8]@work+512 FP16[8, 16]by[1, 8]@weights+2560 FP16[16]@weights+2816 -> FP16[12, 16]@work+0 | +bias Gelu   # g5
                gemm        FP16[12, 16]@work+0 FP16[16, 8]by[1, 16]@weights+3072 FP16[8]@weights+3328 FP16[12, 8]@work+512 -> FP16[12, 8]@work+768 | +bias +residual   # y
                copy        FP16[2, 6, 8]@work+768 -> FP32[2, 6, 8]@output0+0   # y
            "#]],
        );
    }
}
