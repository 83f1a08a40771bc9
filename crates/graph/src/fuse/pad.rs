//! Padding in front of a convolution or a pool, which pads by itself: exporters of TensorFlow-like networks write it as
//! an operator of its own before each strided convolution.

use super::Index;
use crate::array::is_float;
use crate::ir::{Graph, Op, ValueId};
use crate::lower::MOST_WINDOW;
use crate::plan::{PoolKind, Window};

/// Rows first, columns second; in front and behind.
type Border = [[usize; 2]; 2];

/// Gives the padding to everybody who reads it. Where only some could take it, it has to be made for the others, and
/// all read that.
pub(super) fn pad(graph: &mut Graph, index: &Index, position: usize) -> bool {
    let Some((border, value)) = padding(graph, position) else { return false };
    let (from, padded) = (graph.nodes[position].inputs[0], graph.nodes[position].outputs[0]);
    let taken = |&user: &usize| Some((user, padded_by_itself(graph, user, padded, border, value)?));
    let Some(users) = index.uses[padded].iter().map(taken).collect::<Option<Vec<_>>>() else { return false };
    for (user, op) in users {
        let node = &mut graph.nodes[user];
        node.op = op;
        node.inputs[0] = from;
    }
    true
}

/// How much a node pads an image of floats along its rows and columns, and with what.
fn padding(graph: &Graph, position: usize) -> Option<(Border, f32)> {
    let node = &graph.nodes[position];
    let Op::Pad { before, value } = &node.op else { return None };
    let (from, to) = (graph.dims(node.inputs[0]), graph.dims(node.outputs[0]));
    let (&[_, _, top, left], &[n, c, height, width]) = (&before[..], from) else { return None };
    let after = [to[2] - height - top, to[3] - width - left];
    // Windows move over something.
    let of_image = to[..2] == [n, c] && !from.contains(&0) && is_float(graph.values[node.inputs[0]].dtype);
    of_image.then_some(([[top, left], after], *value))
}

/// What a user of the padded image becomes that pads it by itself; none where that would be something else.
fn padded_by_itself(graph: &Graph, user: usize, padded: ValueId, border: Border, value: f32) -> Option<Op> {
    // The model's outputs are users without a node.
    let node = graph.nodes.get(user)?;
    if node.inputs[0] != padded || node.inputs[1..].contains(&padded) {
        return None;
    }
    let mut op = node.op.clone();
    match &mut op {
        Op::Conv { window, .. } if value == 0.0 => add(window, border)?,
        // What is padded here counts as part of the image.
        Op::Pool { kind: PoolKind::Average { count_include_pad }, window } if value == 0.0 => {
            if !*count_include_pad && [window.pads_before, window.pads_after] != [[0; 2]; 2] {
                return None;
            }
            *count_include_pad = true;
            add(window, border)?;
        }
        // Zeros would be larger than what is negative.
        Op::Pool { kind: PoolKind::Max, window } if value == f32::NEG_INFINITY => add(window, border)?,
        _ => return None,
    }
    Some(op)
}

fn add(window: &mut Window, [before, after]: Border) -> Option<()> {
    let sides = window.pads_before.iter_mut().chain(&mut window.pads_after);
    for (own, more) in sides.zip(before.into_iter().chain(after)) {
        *own = own.checked_add(more).filter(|&both| both <= MOST_WINDOW as usize)?;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use crate::compile;
    use crate::options::Options;
    use crate::plan::{Plan, PoolKind, Precision, Step, Window};
    use crate::reference::Reference;
    use crate::sample::{self, SampleModel};

    /// `x` padded to `p` by `pads`, in ONNX's order: the axes in front, then behind.
    fn padded(pads: &[i64], value: f32) -> SampleModel {
        let mut net = SampleModel::new("x", 1, &[0, 4, 7, 6]);
        net.ints("pads", pads);
        net.scalar("value", value);
        net.node("Pad", &["x", "pads", "value"], "p", &[]);
        net.weight("w", &[8, 4, 3, 3], 0.0);
        net.weight("deep", &[4, 1, 3, 3], 0.0);
        net
    }

    fn outputs(plan: &Plan) -> Vec<f32> {
        let inputs = sample::inputs(plan);
        let outputs = Reference::new(plan).run(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>());
        outputs.concat().chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
    }

    /// The plan, after a check that it computes the same as the one in which nothing is fused.
    fn plan(net: SampleModel, names: &[&str]) -> Plan {
        let model = net.model(names);
        let mut options = Options::new(2, Precision::F32);
        let fused = compile(&model, &options).unwrap();
        options.fuse = false;
        let plain = compile(&model, &options).unwrap();
        assert!(plain.steps.iter().any(|step| matches!(step, Step::Fill(_))));
        let (found, expected) = (outputs(&fused), outputs(&plain));
        assert_eq!(found.len(), expected.len());
        // Equal are infinities, too.
        let same = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-5;
        assert!(found.iter().zip(&expected).all(same), "{found:?} instead of {expected:?}: {fused}");
        fused
    }

    fn is_padded_in_memory(plan: &Plan) -> bool {
        plan.steps.iter().any(|step| matches!(step, Step::Fill(_)))
    }

    /// Of the convolutions and pools, in their order.
    fn windows(plan: &Plan) -> Vec<Window> {
        let window = |step: &Step| match step {
            Step::Conv(conv) => Some(conv.window),
            Step::Pool(pool) => Some(pool.window),
            _ => None,
        };
        plan.steps.iter().filter_map(window).collect()
    }

    /// Above, to the left, below, to the right.
    fn sides(window: &Window) -> [usize; 4] {
        let [[top, left], [bottom, right]] = [window.pads_before, window.pads_after];
        [top, left, bottom, right]
    }

    const LOWEST: f32 = f32::NEG_INFINITY;

    #[test]
    fn convolutions_pad_by_themselves() {
        let own: &[i64] = &[1, 0, 0, 2];
        for (pads, own, expected) in [
            ([0, 0, 0, 0, 0, 0, 1, 1], None, [0, 0, 1, 1]),
            ([0, 0, 2, 1, 0, 0, 1, 0], None, [2, 1, 1, 0]),
            ([0, 0, 1, 1, 0, 0, 0, 3], Some(own), [2, 1, 0, 5]),
            // More than the kernel reaches: some windows see nothing of the image.
            ([0, 0, 5, 0, 0, 0, 0, 4], None, [5, 0, 0, 4]),
        ] {
            for (weight, group) in [("w", 1), ("deep", 4)] {
                let mut net = padded(&pads, 0.0);
                let mut attributes: Vec<(&str, &[i64])> = vec![("strides", &[2, 2])];
                let group = [group];
                attributes.push(("group", &group));
                attributes.extend(own.map(|own| ("pads", own)));
                net.node("Conv", &["p", weight], "c", &attributes);
                net.norm("c", "n", if group == [1] { 8 } else { 4 });
                net.node("Relu", &["n"], "y", &[]);
                let plan = plan(net, &["y"]);
                assert!(!is_padded_in_memory(&plan), "{plan}");
                assert_eq!(windows(&plan).iter().map(sides).collect::<Vec<_>>(), [expected]);
            }
        }
    }

    #[test]
    fn two_paddings_are_one() {
        let mut net = padded(&[0, 0, 1, 0, 0, 0, 0, 1], 0.0);
        net.node("Pad", &["p", "pads"], "q", &[]);
        net.node("Conv", &["q", "w"], "y", &[]);
        let plan = plan(net, &["y"]);
        assert!(!is_padded_in_memory(&plan), "{plan}");
        assert_eq!(windows(&plan).iter().map(sides).collect::<Vec<_>>(), [[2, 0, 0, 2]]);
    }

    #[test]
    fn what_is_no_border_of_zeros_around_an_image_stays() {
        for (pads, value) in [
            ([0, 0, 0, 0, 0, 0, 1, 1], 0.5),
            ([0, 0, 0, 0, 0, 0, 1, 1], LOWEST),
            ([1, 0, 0, 0, 0, 0, 1, 1], 0.0),
            ([0, 1, 0, 0, 0, 3, 1, 1], 0.0),
        ] {
            let mut net = padded(&pads, value);
            let channels = 4 + pads[1] + pads[5];
            net.weight("all", &[8, channels, 3, 3], 0.0);
            net.node("Conv", &["p", "all"], "y", &[]);
            let plan = plan_or_infinite(net, value);
            assert!(is_padded_in_memory(&plan), "{plan}");
        }
    }

    /// Infinities times weights are no numbers, which equal nothing.
    fn plan_or_infinite(net: SampleModel, value: f32) -> Plan {
        match value.is_finite() {
            true => plan(net, &["y"]),
            false => compile(&net.model(&["y"]), &Options::new(2, Precision::F32)).unwrap(),
        }
    }

    #[test]
    fn all_who_read_it_take_it_or_none_does() {
        let two = |second: &str| {
            let mut net = padded(&[0, 0, 0, 0, 0, 0, 1, 1], 0.0);
            net.node("Conv", &["p", "w"], "a", &[("strides", &[2, 2])]);
            net.weight("other", &[8, 4, 3, 3], 0.0);
            match second {
                "Conv" => net.node("Conv", &["p", "other"], "b", &[]),
                "MaxPool" => net.node("MaxPool", &["p"], "b", &[("kernel_shape", &[3, 3])]),
                second => net.node(second, &["p"], "b", &[]),
            }
            plan(net, &["a", "b"])
        };
        let both = two("Conv");
        assert!(!is_padded_in_memory(&both), "{both}");
        assert_eq!(windows(&both).iter().map(sides).collect::<Vec<_>>(), [[0, 0, 1, 1]; 2]);
        for other in ["Sigmoid", "MaxPool"] {
            let one = two(other);
            assert!(is_padded_in_memory(&one), "{one}");
            assert!(windows(&one).iter().all(|window| sides(window) == [0; 4]), "{one}");
        }
        // The padded image is an output itself.
        let mut net = padded(&[0, 0, 0, 0, 0, 0, 1, 1], 0.0);
        net.node("Conv", &["p", "w"], "a", &[]);
        assert!(is_padded_in_memory(&plan(net, &["a", "p"])));
    }

    #[test]
    fn weights_are_not_padded() {
        let mut net = padded(&[0, 0, 0, 0, 0, 0, 0, 1], 0.0);
        net.weight("image", &[1, 4, 9, 9], 0.0);
        net.node("Conv", &["image", "p"], "y", &[]);
        assert!(is_padded_in_memory(&plan(net, &["y"])));
    }

    /// A pool of 3x3 behind padding: the kinds of the pools that pad by themselves.
    fn pool(operator: &str, value: f32, attributes: &[(&str, &[i64])]) -> Option<PoolKind> {
        let mut net = padded(&[0, 0, 1, 0, 0, 0, 2, 1], value);
        let all: Vec<(&str, &[i64])> = [("kernel_shape", &[3, 3][..]), ("strides", &[2, 2])]
            .into_iter()
            .chain(attributes.iter().copied())
            .collect();
        net.node(operator, &["p"], "y", &all);
        let plan = plan(net, &["y"]);
        let kind = plan.steps.iter().find_map(|step| match step {
            Step::Pool(pool) => Some(pool.kind),
            _ => None,
        });
        kind.filter(|_| !is_padded_in_memory(&plan))
    }

    #[test]
    fn a_mean_counts_the_padding_in_front_of_it() {
        let counted = Some(PoolKind::Average { count_include_pad: true });
        let up: (&str, &[i64]) = ("ceil_mode", &[1]);
        let own: (&str, &[i64]) = ("pads", &[1, 0, 0, 1]);
        let count: (&str, &[i64]) = ("count_include_pad", &[1]);
        for attributes in [&[][..], &[up], &[count], &[count, own], &[count, own, up]] {
            assert_eq!(pool("AveragePool", 0.0, attributes), counted, "{attributes:?}");
        }
        // Of its own padding nothing is counted, of that in front everything.
        for attributes in [&[own][..], &[own, up]] {
            assert_eq!(pool("AveragePool", 0.0, attributes), None, "{attributes:?}");
        }
        assert_eq!(pool("AveragePool", 0.5, &[]), None);
    }

    #[test]
    fn a_largest_is_padded_with_what_is_never_largest() {
        let own: (&str, &[i64]) = ("pads", &[1, 0, 0, 1]);
        for attributes in [&[][..], &[own]] {
            assert_eq!(pool("MaxPool", LOWEST, attributes), Some(PoolKind::Max));
            assert_eq!(pool("MaxPool", 0.0, attributes), None);
            assert_eq!(pool("MaxPool", f32::MIN, attributes), None);
        }
    }
}
