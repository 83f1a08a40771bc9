#!/usr/bin/env python3
"""Writes what Pillow, OpenCV, ONNX Runtime and tokenizers make of small inputs: crates/steps/tests/cases holds steps against it.

    python3 -m venv VENV && VENV/bin/pip install numpy pillow opencv-python-headless onnx onnxruntime tokenizers
    VENV/bin/python scripts/step-cases.py

Inputs come from a seed, so that a second run differs only where a package does.
"""

import base64
import gzip
import io
import json
import pathlib

import cv2
import numpy as np
import onnx
import onnxruntime
import PIL
import tokenizers
from onnx import TensorProto, helper
from PIL import Image

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "crates" / "steps" / "tests" / "cases"
RANDOM = np.random.default_rng(7)
TYPES = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "uint8": "UINT8", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}
cases = []


def encoded(value):
    """A tensor in the protocol's binary form; a list of bytes is one of strings."""
    if isinstance(value, list):
        data, datatype, shape = b"".join(len(item).to_bytes(4, "little") + item for item in value), "BYTES", [len(value)]
    else:
        value = np.ascontiguousarray(value)
        data, datatype, shape = value.tobytes(), TYPES[str(value.dtype)], list(value.shape)
    return {"datatype": datatype, "shape": shape, "data": base64.b64encode(data).decode()}


def case(name, step, inputs, outputs, most=0.0, mean=0.0, **parameters):
    """One case: no value may be further from the expected one than `most`, and all together no further than `mean` on average."""
    cases.append({"name": name, "step": step, "parameters": parameters, "inputs": [encoded(i) for i in inputs], "outputs": [encoded(o) for o in outputs], "most": most, "mean": mean})


def picture(height, width, channels=3):
    """Smooth colours with edges in them, as photographs have."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [127 + 90 * np.sin(x / (5 + c) + c) * np.cos(y / (7 - c)) + 30 * ((x + y * (c + 1)) // 9 % 2) for c in range(channels)]
    return np.clip(np.stack(planes, 2), 0, 255).astype(np.uint8)


def file(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.getvalue()


def rgb(data):
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def files():
    pixels = picture(21, 37)
    image = Image.fromarray(pixels)
    # JPEG leaves how exactly waves are summed and colours stretched to the decoder: a few steps of 255.
    for name, options in {"whole-colours": {"subsampling": 0}, "halved-colours": {"subsampling": 2}, "wide-colours": {"subsampling": 1}, "progressive": {"progressive": True, "subsampling": 2}}.items():
        data = file(image, format="JPEG", quality=90, **options)
        case(f"jpeg {name}", "decode_image", [[data]], [rgb(data)[None]], most=8, mean=0.7)
    data = file(image, format="JPEG", quality=90, subsampling=0)
    case("jpeg bgr", "decode_image", [[data]], [rgb(data)[None, :, :, ::-1]], most=3, mean=0.7, colours="bgr")
    data = file(image.convert("L"), format="JPEG", quality=90)
    case("jpeg gray as rgb", "decode_image", [[data]], [rgb(data)[None]], most=2, mean=0.5)
    case("jpeg gray", "decode_image", [[data]], [np.asarray(Image.open(io.BytesIO(data)))[None, :, :, None]], most=2, mean=0.5, colours="gray")
    for name, other in {"rgb": image, "rgba": Image.fromarray(picture(21, 37, 4)), "gray": image.convert("L"), "gray with alpha": image.convert("LA"), "palette": image.quantize(64), "black and white": image.convert("1")}.items():
        data = file(other, format="PNG")
        case(f"png {name}", "decode_image", [[data]], [rgb(data)[None]])
    data = file(image, format="PNG")
    case("png gray of colours", "decode_image", [[data]], [np.asarray(image.convert("L"))[None, :, :, None]], colours="gray")
    case("png bgr as opencv", "decode_image", [[data]], [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[None]], colours="bgr")
    deep = (picture(9, 11).astype(np.uint16) << 8) + 77
    data = cv2.imencode(".png", deep)[1].tobytes()
    case("png of 16 bits as opencv", "decode_image", [[data]], [cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)[None]], colours="bgr")
    other = file(Image.fromarray(picture(20, 70)), format="PNG")
    resized = [np.asarray(i.resize((16, 12), Image.BILINEAR)) for i in (image, Image.fromarray(picture(20, 70)))]
    case("two files of different sizes", "decode_image", [[data_of(image), other]], [np.stack(resized)], most=1, mean=0.05, resize={"size": [12, 16]})


def data_of(image):
    return file(image, format="PNG")


def sizes():
    pixels = picture(31, 43)
    image = Image.fromarray(pixels)
    filters = {"nearest": Image.NEAREST, "area": Image.BOX, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "lanczos": Image.LANCZOS}
    for name, filter in filters.items():
        for height, width in ((10, 16), (45, 60), (31, 20)):
            expected = np.asarray(image.resize((width, height), filter))
            case(f"resize {name} to {height} x {width}", "resize", [pixels], [expected], most=1, mean=0.05, size=[height, width], filter=name)
    one = image.convert("L")
    case("resize gray", "resize", [np.asarray(one)[:, :, None]], [np.asarray(one.resize((16, 10), Image.BILINEAR))[:, :, None]], most=1, mean=0.05, size=[10, 16])
    floats = np.asarray(one).astype(np.float32)
    case("resize floats", "resize", [floats[:, :, None]], [np.asarray(Image.fromarray(floats).resize((16, 10), Image.BILINEAR))[:, :, None]], most=1e-3, mean=1e-4, size=[10, 16])
    batch = np.stack([pixels, pixels[::-1]])
    case("resize a batch", "resize", [batch], [np.stack([np.asarray(Image.fromarray(p).resize((16, 10), Image.BILINEAR)) for p in batch])], most=1, mean=0.05, size=[10, 16])
    for height, width in ((15, 21), (50, 75)):
        case(f"resize as opencv to {height} x {width}", "resize", [pixels], [cv2.resize(pixels, (width, height), interpolation=cv2.INTER_LINEAR)], most=2, mean=0.3, size=[height, width], antialias=False)
    even = picture(64, 96)
    case("resize by area as opencv", "resize", [even], [cv2.resize(even, (24, 16), interpolation=cv2.INTER_AREA)], most=1, mean=0.3, size=[16, 24], filter="area")
    # What text detectors do: the shorter side to a least length, both to multiples of 16.
    for height, width in ((31, 43), (20, 100), (56, 45)):
        ratio = max(1.0, 32 / min(height, width))
        sides = [round(int(side * ratio) / 16) * 16 for side in (height, width)]
        source = picture(height, width)
        case(f"resize {height} x {width} for a detector", "resize", [source], [cv2.resize(source, (sides[1], sides[0]))], most=2, mean=0.3, shortest_at_least=32, multiple=16, antialias=False)
    case("shorter side", "resize", [pixels], [np.asarray(image.resize((22, 16), Image.BILINEAR))], most=1, mean=0.05, shortest=16)


def parts():
    pixels = picture(61, 83)
    image = Image.fromarray(pixels)
    case("crop the middle", "crop", [pixels], [pixels[10:50, 21:61]], size=[40, 40])
    case("crop at a place", "crop", [np.stack([pixels, pixels[::-1]])], [np.stack([pixels, pixels[::-1]])[:, 5:15, 7:30]], size=[10, 23], top=5, left=7)
    boxes = np.array([[3.5, 2.25, 40.0, 30.75], [0, 0, 83, 61], [50, 20, 83, 33]], np.float32)
    expected = np.stack([np.asarray(image.resize((24, 16), Image.BILINEAR, box=tuple(map(float, box)))) for box in boxes])
    case("boxes", "crop_boxes", [pixels, boxes], [expected], most=1, mean=0.05, size=[16, 24])
    inverse = boxes[:, [1, 0, 3, 2]] / np.array([61, 83, 61, 83], np.float32)
    case("boxes in parts of sides", "crop_boxes", [pixels, inverse], [expected], most=1, mean=0.05, size=[16, 24], order="yxyx", normalised=True)
    outside = np.array([[-30, -5, 20, 30], [70, 50, 200, 90], [90, 70, 100, 100], [np.nan, 0, 5, 5]], np.float32)
    clipped = [(0, 0, 20, 30), (70, 50, 83, 61)]
    expected = [np.asarray(image.resize((8, 8), Image.BILINEAR, box=box)) for box in clipped] + [np.full((8, 8, 3), 9, np.uint8)] * 2
    case("boxes outside", "crop_boxes", [pixels, outside], [np.stack(expected)], most=1, mean=0.05, size=[8, 8], fill=9.0)
    quadrilaterals = np.array([[[5, 4], [60, 12], [57, 33], [3, 28]], [[10, 10], [50, 10], [50, 40], [10, 40]], [[60, 5], [75, 7], [72, 55], [58, 52]]], np.float32)
    expected = np.full((3, 16, 40, 3), 127, np.uint8)
    for out, corners in zip(expected, quadrilaterals):
        width = int(max(np.linalg.norm(corners[0] - corners[1]), np.linalg.norm(corners[2] - corners[3])))
        height = int(max(np.linalg.norm(corners[0] - corners[3]), np.linalg.norm(corners[1] - corners[2])))
        matrix = cv2.getPerspectiveTransform(corners, np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32))
        warped = cv2.warpPerspective(pixels, matrix, (width, height), borderMode=cv2.BORDER_REPLICATE, flags=cv2.INTER_CUBIC)
        warped = np.rot90(warped) if height / width >= 1.5 else warped
        line = min(40, int(np.ceil(16 * warped.shape[1] / warped.shape[0])))
        out[:, :line] = cv2.resize(np.ascontiguousarray(warped), (line, 16))
    case("quadrilaterals as opencv", "crop_boxes", [pixels, quadrilaterals], [expected], most=8, mean=0.5, size=[16, 40], antialias=False, keep_aspect=True, turn_tall=1.5, fill=127.0)


def colours():
    pixels = picture(9, 14)
    mean, deviation = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)
    scale = np.float32(1 / 255)
    known = {"scale": float(scale), "mean": [float(m) for m in mean], "deviation": [float(d) for d in deviation]}
    expected = (pixels.astype(np.float32) * scale - mean) / deviation
    case("normalise", "normalise", [pixels], [expected], **known)
    case("normalise and layout", "normalise", [np.stack([pixels, pixels[::-1]])], [np.stack([expected, expected[::-1]]).transpose(0, 3, 1, 2)], layout="CHW", **known)
    turned = (pixels[:, :, ::-1].astype(np.float32) * scale - mean) / deviation
    case("normalise the other way round", "normalise", [pixels], [turned.transpose(2, 0, 1)], layout="CHW", reverse=True, **known)
    case("normalise floats to halves", "normalise", [pixels.astype(np.float32)], [expected.astype(np.float16)], datatype="FP16", **known)
    case("normalise with one mean", "normalise", [pixels], [(pixels.astype(np.float32) - np.float32(127.5)) / np.float32(127.5)], mean=[127.5], deviation=[127.5])


def shapes():
    values = RANDOM.standard_normal((2, 3, 4, 5)).astype(np.float32)
    case("NHWC to NCHW", "layout", [values], [values.transpose(0, 3, 1, 2)], **{"from": "NHWC", "to": "NCHW"})
    case("HWC to NCHW", "layout", [values[0]], [values[0].transpose(2, 0, 1)[None]], **{"from": "HWC", "to": "NCHW"})
    case("one axis less", "layout", [values[:1]], [values[0]], **{"from": "NABC", "to": "ABC"})
    bytes_ = RANDOM.integers(0, 255, (3, 4, 2)).astype(np.uint8)
    case("bytes turned", "layout", [bytes_], [bytes_.transpose(2, 1, 0)], **{"from": "ABC", "to": "CBA"})
    spread = (RANDOM.standard_normal((4, 5)) * 300).astype(np.float32)
    case("floats to whole numbers", "cast", [spread], [np.trunc(spread).astype(np.int64)], to="INT64")
    case("floats to halves", "cast", [spread], [spread.astype(np.float16)], to="FP16")
    case("floats to truths", "cast", [np.array([0.0, -0.0, 0.5, np.nan], np.float32)], [np.array([False, False, True, True])], to="BOOL")
    case("join", "concat", [values, values[:, :1]], [np.concatenate([values, values[:, :1]], 1)], axis=1)
    case("join behind", "concat", [values, values * 2, values[..., :2]], [np.concatenate([values, values * 2, values[..., :2]], -1)], axis=-1)
    case("join texts", "concat", [[b"a", b"bc"], [b""]], [[b"a", b"bc", b""]])


def computed(operator, inputs, outputs, constants=(), **attributes):
    """What ONNX Runtime makes of one operator."""
    names = [f"i{n}" for n in range(len(inputs))]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in zip(names, inputs)]
    results = [helper.make_tensor_value_info(f"o{n}", t, None) for n, t in enumerate(outputs)]
    fixed = [onnx.numpy_helper.from_array(np.asarray(v), f"c{n}") for n, v in enumerate(constants)]
    node = helper.make_node(operator, names + [f.name for f in fixed], [r.name for r in results], **attributes)
    model = helper.make_model(helper.make_graph([node], "g", infos, results, fixed), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return onnxruntime.InferenceSession(model.SerializeToString()).run(None, dict(zip(names, inputs)))


def scores():
    values = RANDOM.standard_normal((3, 7, 4)).astype(np.float32)
    values[0, 2] = values[0, 5]
    for axis in (-1, 1, 0):
        case(f"softmax along {axis}", "softmax", [values], computed("Softmax", [values], [TensorProto.FLOAT], axis=axis), most=1e-6, mean=1e-7, axis=axis)
        case(f"argmax along {axis}", "argmax", [values], computed("ArgMax", [values], [TensorProto.INT64], axis=axis, keepdims=0), axis=axis)
        k = 2 if axis == 0 else 3
        case(f"top {k} along {axis}", "top_k", [values], computed("TopK", [values], [TensorProto.FLOAT, TensorProto.INT64], [np.array([k], np.int64)], axis=axis), axis=axis, k=k)
    whole = RANDOM.integers(-5, 5, (4, 9)).astype(np.int64)
    case("argmax of whole numbers", "argmax", [whole], computed("ArgMax", [whole], [TensorProto.INT64], axis=1, keepdims=1), keep_axis=True)
    for name, pictures, classes, count, centred in (("one class", 1, 1, 40, False), ("classes and pictures", 2, 3, 60, False), ("around their middles", 1, 2, 50, True)):
        corners = RANDOM.uniform(0, 60, (pictures, count, 4)).astype(np.float32)
        marks = RANDOM.uniform(0, 1, (pictures, classes, count)).astype(np.float32)
        marks[:, :, 5] = marks[:, :, 3]
        chosen = computed("NonMaxSuppression", [corners, marks], [TensorProto.INT64], [np.array([8], np.int64), np.array([0.3], np.float32), np.array([0.25], np.float32)], center_point_box=int(centred))[0]
        kept = [chosen, corners[chosen[:, 0], chosen[:, 2]], marks[chosen[:, 0], chosen[:, 1], chosen[:, 2]], chosen[:, 1]]
        case(f"suppression, {name}", "non_max_suppression", [corners, marks], kept, most_per_class=8, iou=0.3, score=0.25, centred=centred)


def texts():
    columns = RANDOM.dirichlet(np.ones(6), (3, 12)).astype(np.float32)
    columns[2, :] = [1, 0, 0, 0, 0, 0]
    said, marks = [], []
    for rows in columns:
        best = rows.argmax(1)
        kept = [at for at in range(len(best)) if best[at] != 0 and (at == 0 or best[at] != best[at - 1])]
        said.append("".join("abc\u4e2d "[best[at] - 1] for at in kept).encode())
        marks.append(np.mean([rows[at].max() for at in kept]) if kept else 0.0)
    case("columns to texts", "ctc_decode", [columns], [said, np.array(marks, np.float32)], most=1e-6, mean=1e-6, characters=["a", "b", "c", "\u4e2d"], space=True)
    lines = [line for path in sorted(FOLDER.parents[3].glob("docs/*.md")) for line in path.read_text().split("\n")]
    asked = ["A model server that answers on time.", "", "naïve café — 北京 \U0001f600!", "  spaces\tand\nlines  ", "supercalifragilisticexpialidocious " * 8]
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    piece = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    piece.normalizer, piece.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    piece.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=400, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False))
    piece.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer, pairs.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pairs.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    grams = Tokenizer(models.Unigram())
    grams.normalizer, grams.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
    grams.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False))
    for name, tokenizer in {"wordpiece": piece, "pairs": pairs, "unigram": grams}.items():
        tokenizer.save(str(FOLDER / f"{name}.json"), pretty=False)
        for most in (None, 12):
            tokenizer.no_truncation() if most is None else tokenizer.enable_truncation(most)
            tokenizer.enable_padding(length=None)
            found = tokenizer.encode_batch(asked)
            outputs = [np.array([getattr(e, field) for e in found], np.int64) for field in ("ids", "attention_mask", "type_ids")]
            parameters = {"file": f"{name}.json"} | ({} if most is None else {"most_tokens": most})
            case(f"tokens of {name}, {most or 'all'}", "tokenize", [[text.encode() for text in asked]], outputs, **parameters)


def seeds():
    """Files for tests of what is truncated, and for the fuzzer."""
    image = Image.fromarray(picture(21, 37))
    (FOLDER / "rgb.jpg").write_bytes(file(image, format="JPEG", quality=90, subsampling=2))
    (FOLDER / "progressive.jpg").write_bytes(file(image, format="JPEG", quality=90, progressive=True))
    (FOLDER / "rgb.png").write_bytes(file(image, format="PNG"))
    corpus = FOLDER.parents[2] / "fuzz" / "corpus" / "steps-image"
    corpus.mkdir(parents=True, exist_ok=True)
    small = Image.fromarray(picture(9, 14))
    for number, (name, made) in enumerate({
        "jpeg": file(small, format="JPEG", quality=50, subsampling=2),
        "progressive": file(small, format="JPEG", quality=50, progressive=True),
        "gray": file(small.convert("L"), format="JPEG", quality=50),
        "four-colours": file(small.convert("CMYK"), format="JPEG", quality=50),
        "png": file(small, format="PNG"),
        "palette": file(small.quantize(8), format="PNG"),
        "alpha": file(Image.fromarray(picture(9, 14, 4)), format="PNG"),
        "bits": file(small.convert("1"), format="PNG"),
    }.items()):
        (corpus / name).write_bytes(bytes([number]) + made)


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    seeds()
    for group in (files, sizes, parts, colours, shapes, scores, texts):
        group()
    versions = {"pillow": PIL.__version__, "opencv": cv2.__version__, "onnxruntime": onnxruntime.__version__, "tokenizers": tokenizers.__version__, "numpy": np.__version__}
    lines = ",\n".join(json.dumps(one) for one in cases)
    text = f'{{"versions": {json.dumps(versions)}, "cases": [\n{lines}\n]}}\n'
    # Without a time in it, so that equal cases are equal files.
    (FOLDER / "cases.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
