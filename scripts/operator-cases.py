"""Writes cases of operators that ONNX's own node tests leave out, with what ONNX Runtime computes for them.

Recurrent layers in all their forms, sums by Einstein's convention, loops, and the fused operators of com.microsoft. The files
are those of onnx-node-cases.py: NAME.onnx, the model, and NAME.data.onnx with the inputs and outputs.

    python scripts/operator-cases.py --out .cache/operator-cases
"""

import argparse
import hashlib
import itertools
import pathlib
import shutil

import numpy
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL}
MICROSOFT = "com.microsoft"


class Cases:
    def __init__(self, out):
        self.out = out
        self.random = numpy.random.default_rng(1)
        self.count = 0

    def floats(self, *dims, scale=1.0):
        return (self.random.standard_normal(dims) * scale).astype(numpy.float32)

    def integers(self, low, high, *dims, kind=numpy.int64):
        return self.random.integers(low, high, dims).astype(kind)

    def node(self, name, operator, inputs, outputs, domain="", opset=17, **attributes):
        """A model of one node. Inputs are (name, array, whether it is a constant), or None where one is left out."""
        names = ["" if given is None else given[0] for given in inputs]
        node = helper.make_node(operator, names, outputs, domain=domain, **attributes)
        self.model(name, [node], [given for given in inputs if given is not None], [o for o in outputs if o], opset)

    def model(self, name, nodes, inputs, outputs, opset=17, types=None):
        types = types or {}
        info = lambda name, array: helper.make_tensor_value_info(name, KINDS[str(array.dtype)], array.shape)
        given = [(name, array) for name, array, constant in inputs if not constant]
        constants = [numpy_helper.from_array(array, name) for name, array, constant in inputs if constant]
        results = [helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None) for name in outputs]
        graph = helper.make_graph(nodes, name, [info(*pair) for pair in given], results, initializer=constants)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        expected = session.run(None, dict(given))
        held = [numpy_helper.from_array(array, f"input{number}") for number, (_, array) in enumerate(given)]
        held += [numpy_helper.from_array(array, f"output{number}") for number, array in enumerate(expected)]
        data = helper.make_model(helper.make_graph([], "data", [], [], initializer=held))
        (self.out / f"{name}.onnx").write_bytes(model.SerializeToString())
        (self.out / f"{name}.data.onnx").write_bytes(data.SerializeToString())
        self.count += 1


GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def recurrent_layer(cases, name, operator, direction="forward", lengths=None, states=False, peepholes=False, bias=True,
                    constant=True, length=5, batch=3, **attributes):
    width, hidden, gates = 4, 6, GATES[operator]
    directions = 2 if direction == "bidirectional" else 1
    floats = cases.floats
    weights = [
        ("W", floats(directions, gates * hidden, width, scale=0.5), constant),
        ("R", floats(directions, gates * hidden, hidden, scale=0.5), constant),
        ("B", floats(directions, 2 * gates * hidden, scale=0.5), constant) if bias else None,
        ("lengths", numpy.array(lengths, numpy.int32), False) if lengths else None,
        ("h0", floats(directions, batch, hidden), False) if states else None,
    ]
    outputs = ["Y", "Y_h"]
    if operator == "LSTM":
        outputs.append("Y_c")
        weights.append(("c0", floats(directions, batch, hidden), False) if states else None)
        weights.append(("P", floats(directions, 3 * hidden), constant) if peepholes else None)
    while weights[-1] is None:
        weights.pop()
    inputs = [("X", floats(length, batch, width), False), *weights]
    cases.node(name, operator, inputs, outputs, direction=direction, hidden_size=hidden, **attributes)


def recurrent(cases):
    for operator, direction in itertools.product(GATES, ["forward", "reverse", "bidirectional"]):
        low = operator.lower()
        recurrent_layer(cases, f"{low}_{direction}", operator, direction)
        recurrent_layer(cases, f"{low}_{direction}_states", operator, direction, states=True)
        recurrent_layer(cases, f"{low}_{direction}_lengths", operator, direction, lengths=[5, 2, 3], states=True)
        recurrent_layer(cases, f"{low}_{direction}_clip", operator, direction, clip=0.4)
    for operator in GATES:
        low = operator.lower()
        recurrent_layer(cases, f"{low}_without_bias", operator, bias=False)
        recurrent_layer(cases, f"{low}_weights_as_inputs", operator, "bidirectional", constant=False)
        recurrent_layer(cases, f"{low}_one_step", operator, length=1)
        recurrent_layer(cases, f"{low}_full_lengths", operator, lengths=[5, 5, 5])
    for direction in ["forward", "bidirectional"]:
        recurrent_layer(cases, f"gru_linear_{direction}", "GRU", direction, linear_before_reset=1)
        recurrent_layer(cases, f"gru_linear_lengths_{direction}", "GRU", direction, lengths=[1, 5, 4], linear_before_reset=1)
    recurrent_layer(cases, "gru_linear_clip", "GRU", clip=0.3, linear_before_reset=1)
    recurrent_layer(cases, "gru_linear_without_bias", "GRU", bias=False, linear_before_reset=1)
    recurrent_layer(cases, "lstm_peepholes", "LSTM", "bidirectional", peepholes=True, states=True)
    recurrent_layer(cases, "lstm_peepholes_clip", "LSTM", peepholes=True, clip=1.1, length=20)
    recurrent_layer(cases, "lstm_input_forget", "LSTM", peepholes=True, input_forget=1)
    gate_functions = {
        "relu": (["Relu"], {}),
        "leaky": (["LeakyRelu"], {"activation_alpha": [0.3]}),
        "thresholded": (["ThresholdedRelu"], {"activation_alpha": [0.2]}),
        "scaled_tanh": (["ScaledTanh"], {"activation_alpha": [0.7], "activation_beta": [1.3]}),
        "affine": (["Affine"], {"activation_alpha": [0.5], "activation_beta": [0.1]}),
        "hard_sigmoid": (["HardSigmoid"], {"activation_alpha": [0.3], "activation_beta": [0.4]}),
        "elu": (["Elu"], {"activation_alpha": [0.8]}),
        "softsign": (["Softsign"], {}),
        "softplus": (["Softplus"], {}),
    }
    for name, (functions, numbers) in gate_functions.items():
        recurrent_layer(cases, f"rnn_{name}", "RNN", activations=functions, **numbers)
    recurrent_layer(cases, "rnn_two_functions", "RNN", "bidirectional", activations=["LeakyRelu", "Elu"], activation_alpha=[0.1, 0.6])
    recurrent_layer(cases, "gru_functions", "GRU", activations=["HardSigmoid", "Softsign"], activation_alpha=[0.25], activation_beta=[0.45])
    recurrent_layer(cases, "lstm_functions", "LSTM", activations=["HardSigmoid", "LeakyRelu", "Tanh"], activation_alpha=[0.25, 0.1], activation_beta=[0.45])


def quantised_layer(cases, name, direction="forward", channels=False, kind=numpy.int8, states=False, **attributes):
    length, width, hidden, floats = 6, 5, 7, cases.floats
    directions = 2 if direction == "bidirectional" else 1
    low, high = numpy.iinfo(kind).min, numpy.iinfo(kind).max
    each = (directions, 4 * hidden) if channels else (directions,)
    scale = lambda name: (name, (abs(floats(*each)) * 0.002 + 0.004).astype(numpy.float32), True)
    # ONNX Runtime takes no others than 0 for channels.
    first, last = (0, 1) if channels else (low + 119, low + 137)
    zero = lambda name: (name, cases.integers(first, last, *each, kind=kind), True)
    weight = lambda name, rows: (name, cases.integers(low, high, directions, rows, 4 * hidden, kind=kind), True)
    state = lambda name: (name, floats(directions, 1, hidden), False) if states else None
    inputs = [
        ("X", floats(length, 1, width), False),
        weight("W", width),
        weight("R", hidden),
        ("B", floats(directions, 8 * hidden, scale=0.5), True),
        None,
        state("h0"),
        state("c0"),
        None,
        *[scale("W_scale"), zero("W_zero"), scale("R_scale"), zero("R_zero")],
    ]
    outputs = ["Y", "Y_h", "Y_c"]
    cases.node(name, "DynamicQuantizeLSTM", inputs, outputs, domain=MICROSOFT, direction=direction, hidden_size=hidden, **attributes)


def quantised(cases):
    for direction in ["forward", "reverse", "bidirectional"]:
        quantised_layer(cases, f"ms_quantised_lstm_{direction}", direction, states=True)
    quantised_layer(cases, "ms_quantised_lstm_channels", "bidirectional", channels=True)
    quantised_layer(cases, "ms_quantised_lstm_unsigned", kind=numpy.uint8)


EQUATIONS = {
    "matmul": ("ij,jk->ik", [(3, 4), (4, 5)]),
    "implicit": ("ij,jk", [(3, 4), (4, 5)]),
    "implicit_order": ("ba", [(3, 4)]),
    "heads": ("bthd,bshd->bhts", [(2, 3, 4, 5), (2, 6, 4, 5)]),
    "values": ("bhts,bshd->bthd", [(2, 4, 3, 6), (2, 6, 4, 5)]),
    "outer": ("i,j->ij", [(3,), (4,)]),
    "elements": ("ij,ij->ij", [(3, 4), (3, 4)]),
    "dot": ("ij,ij->", [(3, 4), (3, 4)]),
    "trace": ("ii->", [(4, 4)]),
    "diagonal": ("iij->ji", [(4, 4, 3)]),
    "rows": ("ijk->j", [(3, 4, 5)]),
    "bilinear": ("bn,anm,bm->ba", [(2, 3), (4, 3, 5), (2, 5)]),
    "ellipsis": ("...ij,...jk->...ik", [(2, 3, 4, 5), (2, 3, 5, 6)]),
    "ellipsis_one": ("b...d,d->...b", [(2, 3, 4, 5), (5,)]),
    "ellipsis_broadcast": ("...i,...i->...", [(2, 1, 5), (2, 3, 5)]),
    "summed_alone": ("ijk,kl->il", [(3, 4, 5), (5, 6)]),
    "axial": ("nkctv,kvw->nctw", [(2, 3, 4, 5, 6), (3, 6, 6)]),
    "two_inner": ("abcd,cdef->abef", [(2, 3, 4, 5), (4, 5, 2, 3)]),
}


def einsum(cases):
    for name, (equation, shapes) in EQUATIONS.items():
        inputs = [(f"x{number}", cases.floats(*dims), False) for number, dims in enumerate(shapes)]
        cases.node(f"einsum_{name}", "Einsum", inputs, ["y"], equation=equation)
    inputs = [("x", cases.floats(3, 4), False), ("w", cases.floats(4, 5), True)]
    cases.node("einsum_weights", "Einsum", inputs, ["y"], equation="bi,io->bo")


def flow(cases):
    info = helper.make_tensor_value_info
    constant = lambda name, array: (name, numpy.array(array), True)
    # x = x * 0.5 + i, a row of all x, three rounds.
    body = helper.make_graph(
        [
            helper.make_node("Cast", ["i"], ["number"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["x", "half"], ["halved"]),
            helper.make_node("Transpose", ["weight"], ["turned"]),
            helper.make_node("MatMul", ["halved", "turned"], ["product"]),
            helper.make_node("Add", ["product", "number"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
            helper.make_node("Identity", ["more"], ["again"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("more", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, [2, 3])],
        [info("again", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [2, 3]), info("row", TensorProto.FLOAT, [2, 3])],
    )
    shared = [("weight", cases.floats(3, 3), True), ("half", numpy.array(0.5, numpy.float32), True)]
    x = ("x0", cases.floats(2, 3), False)
    loop = helper.make_node("Loop", ["rounds", "", "x0"], ["last", "rows"], body=body)
    cases.model("loop_count", [loop], [x, *shared, constant("rounds", numpy.int64(3))], ["last", "rows"])
    loop = helper.make_node("Loop", ["rounds", "yes", "x0"], ["last", "rows"], body=body)
    yes = constant("yes", numpy.bool_(True))
    cases.model("loop_count_and_condition", [loop], [x, *shared, constant("rounds", numpy.int64(2)), yes], ["last", "rows"])
    # As long as the number of the round is below 4.
    body = helper.make_graph(
        [
            helper.make_node("Add", ["x", "x"], ["next"]),
            helper.make_node("Less", ["i", "bound"], ["again"]),
        ],
        "body",
        [info("i", TensorProto.INT64, []), info("more", TensorProto.BOOL, []), info("x", TensorProto.FLOAT, [2, 3])],
        [info("again", TensorProto.BOOL, []), info("next", TensorProto.FLOAT, [2, 3])],
    )
    loop = helper.make_node("Loop", ["", "yes", "x0"], ["last"], body=body)
    cases.model("loop_condition", [loop], [x, yes, constant("bound", numpy.int64(4))], ["last"])
    # A recurrence: h = tanh(h + x @ w).
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "weight"], ["product"]),
            helper.make_node("Add", ["h", "product"], ["sum"]),
            helper.make_node("Tanh", ["sum"], ["next"]),
            helper.make_node("Identity", ["next"], ["row"]),
            helper.make_node("ReduceSum", ["next"], ["total"], keepdims=0),
        ],
        "body",
        [info("h", TensorProto.FLOAT, [3]), info("x", TensorProto.FLOAT, [3])],
        [info("next", TensorProto.FLOAT, [3]), info("row", TensorProto.FLOAT, [3]), info("total", TensorProto.FLOAT, [])],
    )
    outputs = ["last", "rows", "totals"]
    for name, attributes, dims in [
        ("scan", {}, (4, 3)),
        ("scan_reverse", {"scan_input_directions": [1], "scan_output_directions": [1, 0]}, (4, 3)),
        ("scan_axes", {"scan_input_axes": [1], "scan_output_axes": [1, 0]}, (3, 4)),
    ]:
        scan = helper.make_node("Scan", ["h0", "xs"], outputs, body=body, num_scan_inputs=1, **attributes)
        inputs = [("h0", cases.floats(3), False), ("xs", cases.floats(*dims), False), shared[0]]
        cases.model(name, [scan], inputs, outputs)
    branch = lambda operator: helper.make_graph(
        [helper.make_node(operator, ["x0", "x0"], ["y"])], operator, [], [info("y", TensorProto.FLOAT, [2, 3])]
    )
    node = helper.make_node("If", ["condition"], ["result"], then_branch=branch("Add"), else_branch=branch("Mul"))
    for name, value, known in itertools.product(["if"], [True, False], [True, False]):
        given = ("condition", numpy.array(value), known)
        cases.model(f"{name}_{'known' if known else 'computed'}_{str(value).lower()}", [node], [x, given], ["result"])


def microsoft(cases):
    floats, batch, length, heads, width = cases.floats, 2, 5, 2, 4
    hidden = heads * width
    x = lambda name="x", *dims: (name, floats(*(dims or (batch, length, hidden))), False)
    weight = lambda name, *dims: (name, floats(*dims), True)
    node = lambda name, operator, inputs, outputs=("y",), **attributes: cases.node(
        f"ms_{name}", operator, inputs, list(outputs), domain=MICROSOFT, **attributes
    )
    node("gelu", "Gelu", [x()])
    node("bias_gelu", "BiasGelu", [x(), weight("b", hidden)])
    node("fast_gelu", "FastGelu", [x()])
    node("fast_gelu_bias", "FastGelu", [x(), weight("b", hidden)])
    node("quick_gelu", "QuickGelu", [x()])
    node("quick_gelu_alpha", "QuickGelu", [x()], alpha=0.9)
    cases.node("simplified_layer_norm", "SimplifiedLayerNormalization", [x(), weight("g", hidden)], ["y"], axis=-1, epsilon=1e-6)
    for name, skip in [("", (batch, length, hidden)), ("_shared", (1, length, hidden)), ("_rows", (length, hidden))]:
        node(f"skip_layer_norm{name}", "SkipLayerNormalization", [x(), x("s", *skip), weight("g", hidden), weight("h", hidden)], epsilon=1e-5)
    norm = [x(), x("s"), weight("g", hidden), weight("h", hidden), weight("b", hidden)]
    node("skip_layer_norm_bias", "SkipLayerNormalization", norm, ["y", "", "", "sum"], epsilon=1e-5)
    node("skip_layer_norm_default", "SkipLayerNormalization", norm)
    norm = [x(), x("s"), weight("g", hidden), weight("b", hidden)]
    node("skip_simplified", "SkipSimplifiedLayerNormalization", norm, ["y", "", "", "sum"], epsilon=1e-5)
    node("skip_simplified_plain", "SkipSimplifiedLayerNormalization", norm[:3], epsilon=1e-6)
    embedding(cases)
    attention(cases, batch, length, heads, width)
    for name, attributes, a, b in [
        ("plain", {}, (2, 3, 4), (2, 4, 5)),
        ("alpha", {"alpha": 0.25}, (2, 3, 4), (4, 5)),
        ("turned", {"transA": 1, "transB": 1, "alpha": 2.0}, (2, 4, 3), (2, 5, 4)),
    ]:
        node(f"fused_matmul_{name}", "FusedMatMul", [x("a", *a), x("b", *b)], **attributes)
    for name, attributes in [
        ("relu", {"activation": "Relu"}),
        ("leaky", {"activation": "LeakyRelu", "activation_alpha": 0.2}),
        ("turned", {"activation": "Tanh", "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ]:
        b = (5, 4) if attributes.get("transB") else (4, 5)
        node(f"fused_gemm_{name}", "FusedGemm", [x("a", 3, 4), weight("b", *b), weight("c", 5)], **attributes)
    conv = [x("x", 1, 3, 6, 6), weight("w", 4, 3, 3, 3), weight("b", 4)]
    for name, inputs, attributes in [
        ("relu", conv, {"activation": "Relu", "pads": [1, 1, 1, 1]}),
        ("leaky", conv, {"activation": "LeakyRelu", "activation_params": [0.1]}),
        ("clip", conv, {"activation": "Clip", "activation_params": [-0.5, 1.5], "strides": [2, 2]}),
        ("hard_sigmoid", conv, {"activation": "HardSigmoid", "activation_params": [0.2, 0.4]}),
        ("sum", [*conv, x("z", 1, 4, 6, 6)], {"activation": "Relu", "pads": [1, 1, 1, 1]}),
        ("plain", conv[:2], {}),
    ]:
        node(f"fused_conv_{name}", "FusedConv", inputs, **attributes)
    angles = [("p", cases.integers(0, 8, batch, length), False), weight("cos", 8, width // 2), weight("sin", 8, width // 2)]
    node("rotary", "RotaryEmbedding", [x("x", batch, heads, length, width), *angles])
    node("rotary_interleaved", "RotaryEmbedding", [x("x", batch, heads, length, width), *angles], interleaved=1)


def embedding(cases):
    batch, length, hidden, floats = 2, 5, 8, cases.floats
    weight = lambda name, *dims: (name, floats(*dims), True)
    ids = lambda name, high, *dims: (name, cases.integers(0, high, *(dims or (batch, length)), kind=numpy.int32), False)
    tables = [weight("words", 20, hidden), weight("places", 9, hidden)]
    norm = [weight("g", hidden), weight("h", hidden)]
    segments, kinds = ids("segments", 2), weight("kinds", 2, hidden)
    node = lambda name, inputs, outputs, **attributes: cases.model(
        f"ms_embed_{name}",
        [helper.make_node("EmbedLayerNormalization", ["" if given is None else given[0] for given in inputs], outputs, domain=MICROSOFT, **attributes)],
        [given for given in inputs if given is not None],
        [name for name in outputs if name],
        types={"counts": TensorProto.INT32},
    )
    mask = ("mask", numpy.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], numpy.int32), False)
    node("plain", [ids("ids", 20), None, *tables, None, *norm], ["y", "counts"], epsilon=1e-5)
    node("segments", [ids("ids", 20), segments, *tables, kinds, *norm, mask], ["y", "counts"], epsilon=1e-5)
    positions = ids("positions", 9)
    node("positions", [ids("ids", 20), segments, *tables, kinds, *norm, mask, positions], ["y", "counts", "sum"])
    positions = ids("positions", 9, 1, length)
    node("shared_positions", [ids("ids", 20), segments, *tables, kinds, *norm, None, positions], ["y", "counts"])


def attention(cases, batch, length, heads, width):
    floats, hidden, other = cases.floats, heads * width, 7
    raw = ("mask", numpy.array([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1]], numpy.int32), False)
    lengths = ("mask", numpy.array([3, 5], numpy.int32), False)
    square = ("mask", cases.integers(0, 2, batch, length, length, kind=numpy.int32) | numpy.eye(length, dtype=numpy.int32), False)
    projection = lambda: [
        ("x", floats(batch, length, hidden), False),
        ("w", floats(hidden, 3 * hidden, scale=0.5), True),
        ("b", floats(3 * hidden), True),
    ]
    bias = ("bias", floats(1, heads, length, length), False)
    for name, more, attributes in [
        ("plain", [], {}),
        ("raw_mask", [raw], {}),
        ("lengths", [lengths], {}),
        ("square_mask", [square], {}),
        ("causal", [], {"unidirectional": 1}),
        ("causal_mask", [raw], {"unidirectional": 1}),
        ("scale", [], {"scale": 0.7}),
        ("filter", [raw], {"mask_filter_value": -3.0}),
        ("bias", [None, None, bias], {}),
        ("bias_mask", [raw, None, bias], {}),
    ]:
        cases.node(f"ms_attention_{name}", "Attention", [*projection(), *more], ["y"], domain=MICROSOFT, num_heads=heads, **attributes)
    wide = [projection()[0], ("w", floats(hidden, 2 * hidden + 2 * heads), True), ("b", floats(2 * hidden + 2 * heads), True)]
    cases.node("ms_attention_sizes", "Attention", wide, ["y"], domain=MICROSOFT, num_heads=heads, qkv_hidden_sizes=[hidden, hidden, 2 * heads])
    q = lambda: ("q", floats(batch, length, hidden), False)
    kv = lambda count: [("k", floats(batch, count, hidden), False), ("v", floats(batch, count, hidden), False)]
    biases = ("b", floats(3 * hidden), True)
    wide_mask = ("mask", numpy.array([[1, 1, 1, 0, 0, 0, 0], [1, 0, 1, 1, 1, 1, 1]], numpy.int32), False)
    wide_bias = ("bias", floats(1, 1, length, other), False)
    past = [("pk", floats(batch, heads, 2, width), False), ("pv", floats(batch, heads, 2, width), False)]
    for name, inputs, outputs, attributes in [
        ("self", [q(), *kv(length)], ["y"], {}),
        ("cross", [q(), *kv(other)], ["y"], {}),
        ("biases", [q(), *kv(other), biases], ["y"], {}),
        ("mask", [q(), *kv(other), biases, wide_mask], ["y"], {}),
        ("lengths", [q(), *kv(other), None, lengths], ["y"], {}),
        ("bias", [q(), *kv(other), None, None, wide_bias], ["y"], {}),
        ("causal", [q(), *kv(length)], ["y"], {"unidirectional": 1}),
        ("scale", [q(), *kv(other)], ["y"], {"scale": 0.3}),
        ("past", [q(), *kv(length), None, None, None, *past], ["y", "present_key", "present_value"], {}),
        ("past_causal", [q(), *kv(length), None, None, None, *past], ["y", "present_key", "present_value"], {"unidirectional": 1}),
    ]:
        cases.node(f"ms_multi_head_{name}", "MultiHeadAttention", inputs, outputs, domain=MICROSOFT, num_heads=heads, **attributes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    out = parser.parse_args().out
    stamp = out / "version"
    source = hashlib.sha256(pathlib.Path(__file__).read_bytes()).hexdigest()
    version = f"{onnx.__version__} {onnxruntime.__version__} {source}"
    if stamp.exists() and stamp.read_text() == version:
        return
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    cases = Cases(out)
    for family in [recurrent, einsum, flow, microsoft, quantised]:
        family(cases)
    stamp.write_text(version)
    print(f"{cases.count} cases of operators by ONNX Runtime {onnxruntime.__version__} in {out}")


if __name__ == "__main__":
    main()
