//! Small models whose results have shapes that only the data decides, written as nodes: for whoever tests cuts.

use bytes::Bytes;
use onnx::*;

const FLOAT: i32 = 1;
const INT64: i32 = 7;

/// A model under construction.
#[derive(Default)]
struct DetectorNet(GraphProto);

fn value(name: &str, element: i32, dims: &[&str]) -> ValueInfoProto {
    let dim = |dim: &&str| match dim.parse() {
        Ok(size) => DimensionProto { value: Some(size), name: None },
        Err(_) => DimensionProto { value: None, name: Some((*dim).to_owned()) },
    };
    let shape = ShapeProto { dims: dims.iter().map(dim).collect() };
    let tensor = Some(TensorTypeProto { element, shape: Some(shape) });
    ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor }) }
}

/// An attribute: one number is a number, several are a list.
fn ints(name: &str, values: &[i64]) -> AttributeProto {
    let single = values.len() == 1;
    let (int, ints) = if single { (values[0], Vec::new()) } else { (0, values.to_vec()) };
    AttributeProto { name: name.into(), int, ints, kind: if single { 2 } else { 7 }, ..AttributeProto::default() }
}

/// The attribute of that name is a list in any case.
fn axes(values: &[i64]) -> AttributeProto {
    AttributeProto { name: "axes".into(), ints: values.to_vec(), kind: 7, ..AttributeProto::default() }
}

fn within(name: &str, graph: GraphProto) -> AttributeProto {
    let graph = GraphProto { name: name.into(), ..graph };
    AttributeProto { name: name.into(), graph: Some(graph), kind: 5, ..AttributeProto::default() }
}

impl DetectorNet {
    fn node(&mut self, operator: &str, inputs: &[&str], outputs: &str, attributes: Vec<AttributeProto>) {
        let inputs = inputs.iter().map(|&name| name.to_owned()).collect();
        let outputs: Vec<String> = outputs.split(' ').map(str::to_owned).collect();
        let (name, operator) = (format!("{}.node", outputs[0]), operator.to_owned());
        self.0.nodes.push(NodeProto { inputs, outputs, name, operator, attributes, ..NodeProto::default() });
    }

    fn tensor(&mut self, tensor: TensorProto) {
        self.0.initializers.push(tensor);
    }

    fn floats(&mut self, name: &str, dims: &[i64], floats: Vec<f32>) {
        let dims = dims.to_vec();
        self.tensor(TensorProto { dims, element: FLOAT, floats, name: name.into(), ..TensorProto::default() });
    }

    fn whole(&mut self, name: &str, dims: &[i64], int64s: Vec<i64>) {
        let dims = dims.to_vec();
        self.tensor(TensorProto { dims, element: INT64, int64s, name: name.into(), ..TensorProto::default() });
    }

    /// `boxes` (batch x 64 x 4, with the centre first) and `scores` (batch x 2 x 64) of pictures `x` of those sizes,
    /// which are 16 by 16 where 64 boxes come of them; and `mean` of what is before, in the same head.
    fn heads(&mut self, dims: [&str; 4]) {
        self.0.inputs.push(value("x", FLOAT, &dims));
        let mut state = 1_u32;
        let mut number = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let mut numbers = |count: usize| (0..count).map(|_| number()).collect::<Vec<f32>>();
        let (first, second) = (numbers(8 * 27), numbers(6 * 8).iter().map(|value| value * 4.0).collect());
        self.floats("w1", &[8, 3, 3, 3], first);
        self.floats("w2", &[6, 8, 1, 1], second);
        self.floats("size", &[4], vec![16.0, 16.0, 6.0, 6.0]);
        self.whole("flat", &[3], vec![0, 6, -1]);
        self.whole("parts", &[2], vec![4, 2]);
        self.node("Conv", &["x", "w1"], "conv", vec![ints("strides", &[2, 2]), ints("pads", &[1, 1, 1, 1])]);
        self.node("Relu", &["conv"], "relu", vec![]);
        self.node("GlobalAveragePool", &["relu"], "mean", vec![]);
        self.node("Conv", &["relu", "w2"], "raw", vec![]);
        self.node("Reshape", &["raw", "flat"], "rows", vec![]);
        self.node("Split", &["rows", "parts"], "places logits", vec![ints("axis", &[1])]);
        self.node("Transpose", &["places"], "turned", vec![ints("perm", &[0, 2, 1])]);
        self.node("Sigmoid", &["turned"], "inside", vec![]);
        self.node("Mul", &["inside", "size"], "boxes", vec![]);
        self.node("Sigmoid", &["logits"], "scores", vec![]);
    }

    fn limits(&mut self, scores_above: f32) {
        self.whole("most", &[1], vec![10]);
        self.floats("overlap", &[1], vec![0.4]);
        self.floats("above", &[1], vec![scores_above]);
    }

    fn suppress(&mut self, scores: &str, chosen: &str) {
        let inputs = ["boxes", scores, "most", "overlap", "above"];
        self.node("NonMaxSuppression", &inputs, chosen, vec![ints("center_point_box", &[1])]);
    }

    /// The boxes that were chosen: their sizes are scaled by the constant that the head scales with.
    fn pick(&mut self, chosen: &str, picked: &str) {
        let name = |part: &str| format!("{picked}.{part}");
        self.whole(&name("which"), &[], vec![2]);
        self.whole(&name("all"), &[2], vec![-1, 4]);
        self.node("Gather", &[chosen, &name("which")], &name("positions"), vec![ints("axis", &[1])]);
        self.node("Reshape", &["boxes", &name("all")], &name("list"), vec![]);
        self.node("Gather", &[&name("list"), &name("positions")], &name("found"), vec![ints("axis", &[0])]);
        self.node("Div", &[&name("found"), "size"], picked, vec![]);
    }

    fn file(mut self, outputs: &[(&str, i32, &[&str])]) -> Bytes {
        self.0.outputs = outputs.iter().map(|(name, element, dims)| value(name, *element, dims)).collect();
        let opsets = vec![OpsetProto { domain: String::new(), version: 17 }];
        let model = ModelProto { ir_version: 8, graph: Some(self.0), opsets, ..ModelProto::default() };
        model.encode_to_vec().into()
    }
}

const PICTURE: [&str; 4] = ["1", "3", "16", "16"];
const CHOSEN: (&str, i32, &[&str]) = ("chosen", INT64, &["count", "3"]);
const PICKED: (&str, i32, &[&str]) = ("picked", FLOAT, &["count", "4"]);

/// Boxes, scores, suppression, and what is gathered by it. `scores` are an output and cross, `mean` is of the head
/// alone, and both sides use the constant `size`.
pub fn detector(dims: [&str; 4], scores_above: f32) -> Bytes {
    let mut net = DetectorNet::default();
    net.heads(dims);
    net.limits(scores_above);
    net.suppress("scores", "chosen");
    net.pick("chosen", "picked");
    net.file(&[CHOSEN, ("scores", FLOAT, &["batch", "2", "boxes"]), PICKED, ("mean", FLOAT, &["batch", "8", "1", "1"])])
}

/// Models with what makes cutting hard, by name. Each takes a picture `x`, and maybe more.
pub fn detectors() -> Vec<(&'static str, Bytes)> {
    vec![
        ("usual", detector(PICTURE, 0.6)),
        ("nothing found", detector(PICTURE, 2.0)),
        ("two suppressions", two_suppressions()),
        ("where it isn't zero", where_not_zero(PICTURE)),
        ("suppression in a branch", in_a_branch()),
        ("limits as inputs", limits_as_inputs()),
        ("light nodes between", light_nodes_between()),
    ]
}

/// The second works on what the first has left, and its own tail has a product.
fn two_suppressions() -> Bytes {
    let mut net = DetectorNet::default();
    net.heads(PICTURE);
    net.limits(0.55);
    net.suppress("scores", "chosen");
    net.pick("chosen", "picked");
    net.floats("turn", &[4, 4], (0..16).map(|at| if at % 5 == 0 { 8.0 } else { 0.25 }).collect());
    net.node("MatMul", &["picked", "turn"], "turned.boxes", vec![]);
    net.whole("first", &[1], vec![0]);
    net.node("Unsqueeze", &["turned.boxes", "first"], "again.boxes", vec![]);
    net.node("ReduceMax", &["again.boxes"], "again.flat", vec![axes(&[2]), ints("keepdims", &[1])]);
    net.node("Transpose", &["again.flat"], "again.scores", vec![ints("perm", &[0, 2, 1])]);
    let inputs = ["again.boxes", "again.scores", "most", "overlap"];
    net.node("NonMaxSuppression", &inputs, "again", vec![]);
    net.file(&[CHOSEN, PICKED, ("again", INT64, &["count", "3"])])
}

/// The places of large scores, and the scores there; and how many elements there are, which is known.
pub fn where_not_zero(dims: [&str; 4]) -> Bytes {
    let mut net = DetectorNet::default();
    net.heads(dims);
    net.floats("above", &[], vec![0.7]);
    net.node("Greater", &["scores", "above"], "is.large", vec![]);
    net.node("NonZero", &["is.large"], "places.found", vec![]);
    net.node("Transpose", &["places.found"], "listed", vec![ints("perm", &[1, 0])]);
    net.node("GatherND", &["scores", "listed"], "large", vec![]);
    net.node("Shape", &["scores"], "shape", vec![]);
    net.node("ReduceProd", &["shape"], "count", vec![ints("keepdims", &[0])]);
    net.node("Size", &["large"], "many", vec![]);
    net.node("Sub", &["count", "many"], "others", vec![]);
    net.file(&[("listed", INT64, &["n", "3"]), ("large", FLOAT, &["n"]), ("others", INT64, &[])])
}

/// Suppression only where anything is large, in a graph that names what is around it.
fn in_a_branch() -> Bytes {
    let mut net = DetectorNet::default();
    net.heads(PICTURE);
    net.limits(0.6);
    net.node("ReduceMax", &["scores"], "best", vec![ints("keepdims", &[0])]);
    net.floats("enough", &[], vec![0.5]);
    net.node("Greater", &["best", "enough"], "any", vec![]);
    let mut then = DetectorNet::default();
    then.suppress("scores", "then.chosen");
    then.0.outputs.push(value("then.chosen", INT64, &["n", "3"]));
    let mut otherwise = DetectorNet::default();
    otherwise.whole("none", &[0, 3], vec![]);
    otherwise.node("Identity", &["none"], "else.chosen", vec![]);
    otherwise.0.outputs.push(value("else.chosen", INT64, &["n", "3"]));
    let branches = vec![within("then_branch", then.0), within("else_branch", otherwise.0)];
    net.node("If", &["any"], "chosen", branches);
    net.pick("chosen", "picked");
    net.file(&[CHOSEN, PICKED, ("boxes", FLOAT, &["1", "64", "4"])])
}

/// How large scores must be is an input that only the tail takes; how much boxes may overlap is one with a default, and
/// the limit of their number is left out of the first suppression.
fn limits_as_inputs() -> Bytes {
    let mut net = DetectorNet::default();
    net.0.inputs.push(value("above", FLOAT, &["1"]));
    net.heads(PICTURE);
    net.whole("most", &[1], vec![5]);
    net.floats("overlap", &[1], vec![0.4]);
    net.0.inputs.push(value("overlap", FLOAT, &["1"]));
    net.suppress("scores", "chosen");
    net.node("NonMaxSuppression", &["boxes", "scores", "", "overlap", "above"], "none", vec![]);
    net.node("Shape", &["x"], "shape", vec![]);
    net.file(&[CHOSEN, ("none", INT64, &["n", "3"]), ("shape", INT64, &["4"])])
}

/// What is between the head and the tail makes tensors larger, or only another view of what crosses anyway.
fn light_nodes_between() -> Bytes {
    let mut net = DetectorNet::default();
    net.heads(PICTURE);
    net.limits(0.6);
    net.whole("twice", &[3], vec![1, 2, 1]);
    // Of each class once more.
    net.node("Tile", &["scores", "twice"], "more.scores", vec![]);
    net.suppress("more.scores", "chosen");
    net.whole("line", &[1], vec![-1]);
    net.node("Reshape", &["scores", "line"], "in.line", vec![]);
    net.node("Cast", &["in.line"], "doubles", vec![ints("to", &[11])]);
    net.whole("which", &[], vec![2]);
    net.node("Gather", &["chosen", "which"], "positions", vec![ints("axis", &[1])]);
    net.node("Gather", &["doubles", "positions"], "picked", vec![ints("axis", &[0])]);
    net.file(&[CHOSEN, ("picked", 11, &["count"])])
}
