//! Small models for tests, written as nodes.

use crate::array::Array;
use crate::model::OnnxModel;
use onnx::*;
use workload::Random;

/// A model under construction. Weights are made up, and the same each time.
pub(crate) struct SampleModel {
    graph: GraphProto,
    random: Random,
}

impl SampleModel {
    /// With one input of that name and type (1 is float, 7 is int64); sizes of 0 are open, the first as `batch`.
    pub(crate) fn new(input: &str, element: i32, dims: &[i64]) -> Self {
        let mut sample = Self { graph: GraphProto::default(), random: Random::new(1, 0) };
        sample.input(input, element, dims);
        sample
    }

    pub(crate) fn input(&mut self, name: &str, element: i32, dims: &[i64]) {
        let dim = |(axis, &size): (usize, &i64)| match size {
            0 => DimensionProto { value: None, name: Some(if axis == 0 { "batch" } else { "length" }.into()) },
            size => DimensionProto { value: Some(size), name: None },
        };
        let dims = dims.iter().enumerate().map(dim).collect();
        let tensor = TensorTypeProto { element, shape: Some(ShapeProto { dims }) };
        self.graph.inputs.push(ValueInfoProto { name: name.into(), kind: Some(TypeProto { tensor: Some(tensor) }) });
    }

    /// A node that gives `output`. Attributes are numbers, or lists of them.
    pub(crate) fn node(&mut self, operator: &str, inputs: &[&str], output: &str, attributes: &[(&str, &[i64])]) {
        let attribute = |(name, ints): &(&str, &[i64])| {
            let single = ints.len() == 1 && !["axes", "kernel_shape", "shape"].contains(name);
            AttributeProto {
                name: (*name).into(),
                int: if single { ints[0] } else { 0 },
                ints: if single { Vec::new() } else { ints.to_vec() },
                kind: if single { 2 } else { 7 },
                ..AttributeProto::default()
            }
        };
        self.graph.nodes.push(NodeProto {
            inputs: inputs.iter().map(|&input| input.into()).collect(),
            outputs: vec![output.into()],
            name: output.into(),
            operator: operator.into(),
            attributes: attributes.iter().map(attribute).collect(),
            domain: String::new(),
        });
    }

    /// Another attribute of the last node, of a kind that isn't a number.
    fn attribute(&mut self, attribute: AttributeProto) {
        self.graph.nodes.last_mut().expect("a node").attributes.push(attribute);
    }

    pub(crate) fn text(&mut self, name: &str, text: &str) {
        let (name, string) = (name.into(), text.into());
        self.attribute(AttributeProto { name, string, kind: 3, ..AttributeProto::default() });
    }

    /// A graph within the last node.
    pub(crate) fn within(&mut self, name: &str, graph: Self, outputs: &[&str]) {
        let (name, graph) = (name.into(), Some(graph.finished(outputs)));
        self.attribute(AttributeProto { name, graph, kind: 5, ..AttributeProto::default() });
    }

    /// The last node is of ONNX Runtime's own operators.
    pub(crate) fn microsoft(&mut self) {
        self.graph.nodes.last_mut().expect("a node").domain = "com.microsoft".into();
    }

    /// The last node gives more than one value.
    pub(crate) fn also(&mut self, outputs: &[&str]) {
        let node = self.graph.nodes.last_mut().expect("a node");
        node.outputs.extend(outputs.iter().map(|&name| name.to_owned()));
    }

    /// A weight with numbers between -0.5 and 0.5, moved by `around`.
    pub(crate) fn weight(&mut self, name: &str, dims: &[i64], around: f32) {
        let count = dims.iter().product::<i64>();
        let numbers = (0..count).map(|_| around + self.number()).collect();
        let dims = dims.to_vec();
        let tensor = TensorProto { dims, element: 1, floats: numbers, name: name.into(), ..TensorProto::default() };
        self.graph.initializers.push(tensor);
    }

    pub(crate) fn number(&mut self) -> f32 {
        self.random.below(1 << 16) as f32 / 65_536.0 - 0.5
    }

    pub(crate) fn scalar(&mut self, name: &str, value: f32) {
        let tensor = TensorProto { element: 1, floats: vec![value], name: name.into(), ..TensorProto::default() };
        self.graph.initializers.push(tensor);
    }

    pub(crate) fn ints(&mut self, name: &str, values: &[i64]) {
        let (dims, int64s) = (vec![values.len() as i64], values.to_vec());
        let tensor = TensorProto { dims, element: 7, int64s, name: name.into(), ..TensorProto::default() };
        self.graph.initializers.push(tensor);
    }

    /// A convolution with `from` to `to` channels, normalised.
    pub(crate) fn conv_norm(&mut self, input: &str, output: &str, from: i64, to: i64, kernel: i64, stride: i64) {
        let name = |part: &str| format!("{output}.{part}");
        self.weight(&name("w"), &[to, from, kernel, kernel], 0.0);
        let pad = kernel / 2;
        let attributes: &[(&str, &[i64])] = &[("strides", &[stride, stride]), ("pads", &[pad, pad, pad, pad])];
        self.node("Conv", &[input, &name("w")], &name("conv"), attributes);
        self.norm(&name("conv"), output, to);
    }

    pub(crate) fn norm(&mut self, input: &str, output: &str, channels: i64) {
        let names = ["scale", "shift", "mean", "variance"].map(|part| format!("{output}.{part}"));
        for (name, around) in names.iter().zip([1.0, 0.0, 0.0, 1.0]) {
            self.weight(name, &[channels], around);
        }
        let inputs = [input, &names[0], &names[1], &names[2], &names[3]];
        self.node("BatchNormalization", &inputs, output, &[]);
    }

    pub(crate) fn model(self, outputs: &[&str]) -> OnnxModel {
        OnnxModel::decode(&self.bytes(outputs), None).unwrap()
    }

    /// The file.
    pub(crate) fn bytes(self, outputs: &[&str]) -> Vec<u8> {
        let opsets = vec![OpsetProto { domain: String::new(), version: 17 }];
        ModelProto { graph: Some(self.finished(outputs)), opsets, ..ModelProto::default() }.encode_to_vec()
    }

    fn finished(mut self, outputs: &[&str]) -> GraphProto {
        let info = |name: &&str| {
            let tensor = TensorTypeProto { element: 1, shape: None };
            ValueInfoProto { name: (*name).into(), kind: Some(TypeProto { tensor: Some(tensor) }) }
        };
        self.graph.outputs = outputs.iter().map(info).collect();
        self.graph
    }
}

/// A block of ResNet with its stem and head.
pub(crate) fn residual() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 3, 8, 8]);
    net.conv_norm("x", "stem", 3, 8, 3, 1);
    net.node("Relu", &["stem"], "stem.relu", &[]);
    net.node(
        "MaxPool",
        &["stem.relu"],
        "pool",
        &[("kernel_shape", &[3, 3]), ("strides", &[2, 2]), ("pads", &[1, 1, 1, 1])],
    );
    net.conv_norm("pool", "a", 8, 16, 3, 2);
    net.node("Relu", &["a"], "a.relu", &[]);
    net.conv_norm("a.relu", "b", 16, 16, 3, 1);
    net.conv_norm("pool", "down", 8, 16, 1, 2);
    net.node("Add", &["b", "down"], "sum", &[]);
    net.node("Relu", &["sum"], "sum.relu", &[]);
    net.node("GlobalAveragePool", &["sum.relu"], "mean", &[]);
    net.node("Flatten", &["mean"], "flat", &[]);
    net.weight("fc.w", &[10, 16], 0.0);
    net.weight("fc.b", &[10], 0.0);
    net.node("Gemm", &["flat", "fc.w", "fc.b"], "y", &[("transB", &[1])]);
    net.bytes(&["y"])
}

/// Two layers of DenseNet and what follows them.
pub(crate) fn dense() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 4, 6, 6]);
    net.conv_norm("x", "stem", 4, 8, 3, 1);
    net.norm("stem", "n1", 8);
    net.node("Relu", &["n1"], "r1", &[]);
    net.conv_norm("r1", "f1", 8, 4, 3, 1);
    net.node("Concat", &["stem", "f1"], "c1", &[("axis", &[1])]);
    net.norm("c1", "n2", 12);
    net.node("Relu", &["n2"], "r2", &[]);
    net.conv_norm("r2", "f2", 12, 4, 3, 1);
    net.node("Concat", &["stem", "f1", "f2"], "c2", &[("axis", &[1])]);
    net.conv_norm("c2", "t", 16, 8, 1, 1);
    net.node("AveragePool", &["t"], "y", &[("kernel_shape", &[2, 2]), ("strides", &[2, 2])]);
    net.bytes(&["y"])
}

/// A squeeze and an inverted bottleneck with their activations spelled out.
pub(crate) fn mobile() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 8, 6, 6]);
    net.conv_norm("x", "wide", 8, 16, 1, 1);
    for (name, value) in [("three", 3.0), ("zero", 0.0), ("six", 6.0)] {
        net.scalar(name, value);
    }
    net.node("Add", &["wide", "three"], "h1", &[]);
    net.node("Clip", &["h1", "zero", "six"], "h2", &[]);
    net.node("Mul", &["wide", "h2"], "h3", &[]);
    net.node("Div", &["h3", "six"], "swish", &[]);
    net.weight("dw", &[16, 1, 3, 3], 0.0);
    net.node("Conv", &["swish", "dw"], "deep", &[("group", &[16]), ("pads", &[1, 1, 1, 1])]);
    net.norm("deep", "deep.n", 16);
    net.node("Clip", &["deep.n", "zero", "six"], "relu6", &[]);
    net.node("GlobalAveragePool", &["relu6"], "s1", &[]);
    net.conv_norm("s1", "s2", 16, 4, 1, 1);
    net.node("Relu", &["s2"], "s3", &[]);
    net.conv_norm("s3", "s4", 4, 16, 1, 1);
    net.node("HardSigmoid", &["s4"], "gate", &[]);
    net.node("Mul", &["relu6", "gate"], "gated", &[]);
    net.conv_norm("gated", "narrow", 16, 8, 1, 1);
    net.node("Add", &["x", "narrow"], "y", &[]);
    net.bytes(&["y"])
}

/// The stem and a strided block of a network from TensorFlow: padding is an operator, more behind the image than in
/// front of it.
pub(crate) fn strided() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 3, 8, 8]);
    net.scalar("zero", 0.0);
    net.scalar("six", 6.0);
    net.ints("behind", &[0, 0, 0, 0, 0, 0, 1, 1]);
    net.ints("around", &[0, 0, 1, 1, 0, 0, 2, 2]);
    net.node("Pad", &["x", "behind", "zero"], "x.pad", &[]);
    net.weight("stem.w", &[8, 3, 3, 3], 0.0);
    net.node("Conv", &["x.pad", "stem.w"], "stem", &[("strides", &[2, 2])]);
    net.norm("stem", "stem.n", 8);
    net.node("Clip", &["stem.n", "zero", "six"], "stem.relu6", &[]);
    net.node("Pad", &["stem.relu6", "around"], "deep.pad", &[]);
    net.weight("deep.w", &[8, 1, 5, 5], 0.0);
    net.node("Conv", &["deep.pad", "deep.w"], "deep", &[("strides", &[2, 2]), ("group", &[8])]);
    net.norm("deep", "deep.n", 8);
    net.node("Clip", &["deep.n", "zero", "six"], "deep.relu6", &[]);
    net.conv_norm("deep.relu6", "y", 8, 4, 1, 1);
    net.bytes(&["y"])
}

/// A block of YOLO v8: one half of the channels goes through a residual block, and all that was made is kept.
pub(crate) fn split() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 4, 6, 6]);
    net.conv_norm("x", "a", 4, 16, 1, 1);
    net.node("Relu", &["a"], "a.relu", &[]);
    for (name, value) in [("zero", 0), ("one", 1), ("eight", 8), ("end", i64::MAX)] {
        net.ints(name, &[value]);
    }
    net.node("Slice", &["a.relu", "zero", "eight", "one"], "first", &[]);
    net.node("Slice", &["a.relu", "eight", "end", "one"], "second", &[]);
    net.conv_norm("second", "b", 8, 8, 3, 1);
    net.node("Relu", &["b"], "b.relu", &[]);
    net.node("Add", &["second", "b.relu"], "third", &[]);
    net.node("Concat", &["first", "second", "third"], "all", &[("axis", &[1])]);
    net.conv_norm("all", "y", 24, 4, 1, 1);
    net.bytes(&["y"])
}

/// Large features that are divided by their length, as in SSD300.
pub(crate) fn lengths() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 4, 6, 6]);
    net.scalar("large", 1000.0);
    net.node("Mul", &["x", "large"], "a", &[]);
    net.node("ReduceL2", &["a"], "length", &[("axes", &[1])]);
    net.node("Div", &["a", "length"], "y", &[]);
    net.bytes(&["y"])
}

/// Two attentions without weights, whose scores are masked by a constant that depends on the length, as GPT-2's are.
pub(crate) fn masked() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 0, 8]);
    net.node("Shape", &["x"], "size", &[]);
    for (name, values) in [("none", &[0][..]), ("one", &[1]), ("two", &[2]), ("corner", &[0, 0]), ("both", &[0, 1])] {
        net.ints(name, values);
    }
    net.node("Slice", &["size", "one", "two"], "length", &[]);
    net.node("Concat", &["length", "length"], "lengths", &[("axis", &[0])]);
    net.weight("all", &[16, 16], -0.3);
    net.node("Slice", &["all", "corner", "lengths", "both"], "pairs", &[]);
    net.scalar("zero", 0.0);
    net.scalar("lowest", f32::MIN);
    net.node("Greater", &["pairs", "zero"], "hidden", &[]);
    for (input, output) in [("x", "h"), ("h", "y")] {
        let part = |part: &str| format!("{output}.{part}");
        net.node("Transpose", &[input], &part("t"), &[("perm", &[0, 2, 1])]);
        net.node("MatMul", &[input, &part("t")], &part("s"), &[]);
        net.node("Where", &["hidden", "lowest", &part("s")], &part("m"), &[]);
        net.node("Softmax", &[&part("m")], &part("w"), &[("axis", &[-1])]);
        net.node("MatMul", &[&part("w"), input], output, &[]);
    }
    net.bytes(&["y"])
}

/// A layer of BERT of width 8 with two heads, in the spelling of older exporters.
pub(crate) fn transformer() -> Vec<u8> {
    let mut net = SampleModel::new("ids", 7, &[0, 0]);
    net.input("mask", 7, &[0, 0]);
    net.weight("words", &[20, 8], 0.0);
    net.weight("places", &[16, 8], 0.0);
    net.node("Gather", &["words", "ids"], "e1", &[]);
    // Positions up to the length.
    net.node("Shape", &["ids"], "size", &[]);
    net.ints("one", &[1]);
    net.ints("two", &[2]);
    net.ints("none", &[0]);
    net.node("Slice", &["size", "one", "two"], "length", &[]);
    net.node("Slice", &["places", "none", "length", "none"], "positions", &[]);
    net.node("Add", &["e1", "positions"], "x", &[]);
    // The mask, added to scores.
    net.scalar("unit", 1.0);
    net.scalar("lowest", f32::MIN);
    net.ints("middle", &[1, 2]);
    net.node("Unsqueeze", &["mask", "middle"], "m1", &[]);
    net.node("Cast", &["m1"], "m2", &[("to", &[1])]);
    net.node("Sub", &["unit", "m2"], "m3", &[]);
    net.node("Mul", &["m3", "lowest"], "m4", &[]);
    net.ints("heads", &[0, 0, 2, 4]);
    for name in ["q", "k", "v"] {
        let part = |part: &str| format!("{name}.{part}");
        net.weight(&part("w"), &[8, 8], 0.0);
        net.weight(&part("b"), &[8], 0.0);
        net.node("MatMul", &["x", &part("w")], &part("m"), &[]);
        net.node("Add", &[&part("m"), &part("b")], &part("a"), &[]);
        net.node("Reshape", &[&part("a"), "heads"], &part("h"), &[]);
        let order: &[i64] = if name == "k" { &[0, 2, 3, 1] } else { &[0, 2, 1, 3] };
        net.node("Transpose", &[&part("h")], name, &[("perm", order)]);
    }
    net.scalar("root", 2.0);
    net.node("MatMul", &["q", "k"], "s1", &[]);
    net.node("Div", &["s1", "root"], "s2", &[]);
    net.node("Add", &["s2", "m4"], "s3", &[]);
    net.node("Softmax", &["s3"], "s4", &[("axis", &[-1])]);
    net.node("MatMul", &["s4", "v"], "s5", &[]);
    net.node("Transpose", &["s5"], "s6", &[("perm", &[0, 2, 1, 3])]);
    net.ints("joined", &[0, 0, 8]);
    net.node("Reshape", &["s6", "joined"], "s7", &[]);
    net.weight("o.w", &[8, 8], 0.0);
    net.weight("o.b", &[8], 0.0);
    net.node("MatMul", &["s7", "o.w"], "o1", &[]);
    net.node("Add", &["o.b", "o1"], "o2", &[]);
    net.node("Add", &["o2", "x"], "o3", &[]);
    // Layer normalisation in its parts.
    net.node("ReduceMean", &["o3"], "n1", &[("axes", &[-1])]);
    net.node("Sub", &["o3", "n1"], "n2", &[]);
    net.scalar("square", 2.0);
    net.node("Pow", &["n2", "square"], "n3", &[]);
    net.node("ReduceMean", &["n3"], "n4", &[("axes", &[-1])]);
    net.scalar("tiny", 1e-5);
    net.node("Add", &["n4", "tiny"], "n5", &[]);
    net.node("Sqrt", &["n5"], "n6", &[]);
    net.node("Div", &["n2", "n6"], "n7", &[]);
    net.weight("gamma", &[8], 1.0);
    net.weight("beta", &[8], 0.0);
    net.node("Mul", &["n7", "gamma"], "n8", &[]);
    net.node("Add", &["n8", "beta"], "n9", &[]);
    // Gelu by the error function.
    net.weight("up.w", &[8, 16], 0.0);
    net.weight("up.b", &[16], 0.0);
    net.node("MatMul", &["n9", "up.w"], "u1", &[]);
    net.node("Add", &["u1", "up.b"], "u2", &[]);
    net.scalar("sqrt2", std::f32::consts::SQRT_2);
    net.scalar("half", 0.5);
    net.node("Div", &["u2", "sqrt2"], "g1", &[]);
    net.node("Erf", &["g1"], "g2", &[]);
    net.node("Add", &["g2", "unit"], "g3", &[]);
    net.node("Mul", &["u2", "g3"], "g4", &[]);
    net.node("Mul", &["g4", "half"], "g5", &[]);
    net.weight("down.w", &[16, 8], 0.0);
    net.weight("down.b", &[8], 0.0);
    net.node("MatMul", &["g5", "down.w"], "d1", &[]);
    net.node("Add", &["d1", "down.b"], "d2", &[]);
    net.node("Add", &["d2", "n9"], "y", &[]);
    net.bytes(&["y"])
}

/// A GRU in both directions and an LSTM behind it, neither with a state to begin with, and rows backwards.
pub(crate) fn recurrent() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 0, 8]);
    net.node("Transpose", &["x"], "t", &[("perm", &[1, 0, 2])]);
    for (name, dims) in [("g.w", [2, 12, 8]), ("g.r", [2, 12, 4]), ("l.w", [1, 16, 8]), ("l.r", [1, 16, 4])] {
        net.weight(name, &dims, 0.0);
    }
    net.weight("g.b", &[2, 24], 0.0);
    net.weight("l.b", &[1, 32], 0.0);
    net.node("GRU", &["t", "g.w", "g.r", "g.b"], "g", &[("hidden_size", &[4])]);
    net.text("direction", "bidirectional");
    net.node("Transpose", &["g"], "g.t", &[("perm", &[0, 2, 1, 3])]);
    net.ints("joined", &[0, 0, 8]);
    net.node("Reshape", &["g.t", "joined"], "g.y", &[]);
    net.node("LSTM", &["g.y", "l.w", "l.r", "l.b"], "l", &[("hidden_size", &[4])]);
    net.ints("one", &[1]);
    net.node("Squeeze", &["l", "one"], "y", &[]);
    net.bytes(&["y"])
}

/// As many rounds of a loop as the length, each with a row of a table, and a product whose factor is turned.
pub(crate) fn looping() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 0, 8]);
    net.node("Shape", &["x"], "size", &[]);
    net.ints("one", &[1]);
    net.ints("two", &[2]);
    net.node("Slice", &["size", "one", "two"], "length", &[]);
    net.weight("factor", &[8, 8], 0.0);
    net.weight("table", &[16, 8], 0.0);
    net.weight("first", &[8], 0.0);
    net.scalar("half", 0.5);
    let mut body = SampleModel::new("i", 7, &[]);
    body.input("more", 9, &[]);
    body.input("h", 1, &[]);
    body.input("k", 1, &[]);
    body.node("Identity", &["more"], "again", &[]);
    body.node("Transpose", &["factor"], "turned", &[]);
    body.node("MatMul", &["h", "turned"], "product", &[]);
    body.node("Gather", &["table", "i"], "row", &[]);
    body.node("Add", &["product", "row"], "sum", &[]);
    body.node("Tanh", &["sum"], "h.next", &[]);
    body.node("Mul", &["k", "half"], "k.next", &[]);
    net.node("Loop", &["length", "", "x", "first"], "h.last", &[]);
    net.also(&["k.last"]);
    net.within("body", body, &["again", "h.next", "k.next"]);
    net.node("Add", &["h.last", "k.last"], "y", &[]);
    net.bytes(&["y"])
}

/// Attention in the spelling of exporters from JAX.
pub(crate) fn summed() -> Vec<u8> {
    let mut net = SampleModel::new("x", 1, &[0, 0, 8]);
    for name in ["q", "k", "v"] {
        let weight = format!("{name}.w");
        net.weight(&weight, &[8, 2, 4], 0.0);
        net.node("Einsum", &["x", &weight], name, &[]);
        net.text("equation", "btd,dhe->bthe");
    }
    net.node("Einsum", &["q", "k"], "s", &[]);
    net.text("equation", "bqhd,bkhd->bhqk");
    net.node("Softmax", &["s"], "p", &[("axis", &[-1])]);
    net.node("Einsum", &["p", "v"], "a", &[]);
    net.text("equation", "...hqk,...khd->...qhd");
    net.weight("o.w", &[2, 4, 8], 0.0);
    net.node("Einsum", &["a", "o.w"], "y", &[]);
    net.text("equation", "bthe,hed->btd");
    net.bytes(&["y"])
}

/// A layer of a transformer in fused operators: those of ONNX Runtime, and ONNX's attention.
pub(crate) fn fused() -> Vec<u8> {
    let mut net = SampleModel::new("ids", 7, &[0, 0]);
    net.weight("words", &[20, 8], 0.0);
    net.weight("places", &[16, 8], 0.0);
    net.weight("gamma", &[8], 1.0);
    net.weight("beta", &[8], 0.0);
    net.node("EmbedLayerNormalization", &["ids", "", "words", "places", "", "gamma", "beta"], "e", &[]);
    net.microsoft();
    net.weight("w", &[8, 24], 0.0);
    net.weight("b", &[24], 0.0);
    net.node("Attention", &["e", "w", "b"], "a", &[("num_heads", &[2]), ("unidirectional", &[1])]);
    net.microsoft();
    net.node("SkipLayerNormalization", &["a", "e", "gamma", "beta"], "s", &[]);
    net.microsoft();
    let heads: &[(&str, &[i64])] = &[("q_num_heads", &[2]), ("kv_num_heads", &[2]), ("is_causal", &[1])];
    net.node("Attention", &["s", "s", "s"], "c", heads);
    net.node("BiasGelu", &["c", "beta"], "y", &[]);
    net.microsoft();
    net.bytes(&["y"])
}

/// Numbers for the inputs of a plan: floats around 0, integers that are valid positions, masks of 0 and 1.
pub(crate) fn inputs(plan: &crate::plan::Plan) -> Vec<Vec<u8>> {
    let mut numbers = SampleModel { graph: GraphProto::default(), random: Random::new(7, 0) };
    let mut fill = |port: &crate::plan::Port| {
        let count = port.dims.iter().product::<usize>();
        let array = if crate::array::is_float(port.dtype) {
            Array::floats(&port.dims, (0..count).map(|_| numbers.number() * 2.0).collect())
        } else {
            let top = if port.name == "mask" { 2.0 } else { 20.0 };
            // The first of each row is never masked.
            let last = *port.dims.last().unwrap();
            let value = |index: usize| {
                ((numbers.number() + 0.5) * top) as i64 | i64::from(top == 2.0 && index.is_multiple_of(last))
            };
            Array::ints(&port.dims, (0..count).map(value).collect())
        };
        let mut bytes = vec![0; count * crate::weights::element_bytes(port.dtype)];
        array.store_strided(port.dtype, &crate::plan::row_major(&port.dims), 0, &mut bytes);
        bytes
    };
    plan.inputs.iter().map(&mut fill).collect()
}
