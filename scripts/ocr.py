#!/usr/bin/env python3
"""Makes a model repository that reads text in pictures: three models of a pinned wheel, and the endpoint `ocr` above them.

    scripts/setup ocr && punctual serve --model-repository .cache/ocr

A request has one PNG or JPEG file and gets lines of text, how sure each is, and its four corners. The steps between the models
are those of the package that the models come in, so that texts are the same (`make bench ARGS=ocr` holds both side by side).
"""

import pathlib
import sys

import onnx
import wheels

WHEEL = "rapidocr-onnxruntime==1.4.4"
SHA256 = "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
# Name, file, the most rows of a batch, a typical input.
MODELS = [
    ("text-detect", "ch_PP-OCRv4_det_infer.onnx", 4, "x=3x736x736"),
    ("text-turned", "ch_ppocr_mobile_v2.0_cls_infer.onnx", 16, "x=3x48x192"),
    ("text-recognise", "ch_PP-OCRv4_rec_infer.onnx", 16, "x=3x48x320"),
]
NORMALISE = "scale = 0.00392156862745098, mean = [0.5], deviation = [0.5]"
ENDPOINT = f"""# Text in a picture: where lines are, whether they are upside down, what they say.
kind = "pipeline"
inputs = [{{ name = "file", data_type = "BYTES", dims = [1] }}]
outputs = ["texts", "scores", "boxes"]

[[stage]]
step = "decode_image"
colours = "bgr"
inputs = ["file"]
outputs = {{ image = "picture" }}

[[stage]]
name = "enlarge"
step = "resize"
shortest_at_least = 736
multiple = 32
antialias = false
inputs = ["picture"]
outputs = {{ image = "large" }}

[[stage]]
step = "normalise"
{NORMALISE.replace(", mean", chr(10) + "mean").replace(", dev", chr(10) + "dev")}
layout = "CHW"
inputs = ["large"]
outputs = {{ image = "floats" }}

[[stage]]
model = "text-detect"
inputs = {{ x = "floats" }}
outputs = {{ "sigmoid_0.tmp_0" = "map" }}

[[stage]]
step = "text_boxes"
dilate = true
inputs = ["map", "picture"]
outputs = {{ boxes = "found" }}

[[stage]]
name = "narrow"
step = "crop_boxes"
size = [48, 192]
keep_aspect = true
antialias = false
turn_tall = 1.5
normalise = {{ {NORMALISE}, layout = "CHW" }}
inputs = ["picture", "found"]
outputs = {{ images = "narrow" }}

[[stage]]
model = "text-turned"
inputs = {{ x = "narrow" }}
outputs = {{ "save_infer_model/scale_0.tmp_1" = "directions" }}
for_each = ["narrow"]
calls = 5

[[stage]]
name = "is turned"
step = "threshold"
index = 1
above = 0.9
inputs = ["directions"]
outputs = {{ mask = "turned" }}

[[stage]]
name = "lines"
step = "crop_boxes"
size = [48, 320]
width_at_most = 4096
group = 6
keep_aspect = true
antialias = false
turn_tall = 1.5
half_turns = true
normalise = {{ {NORMALISE}, layout = "CHW" }}
inputs = ["picture", "found", "turned"]
outputs = {{ images = "lines", widths = "widths" }}

[[stage]]
model = "text-recognise"
inputs = {{ x = "lines" }}
outputs = {{ "softmax_11.tmp_0" = "columns" }}
for_each = ["lines"]
lengths = {{ lines = "widths" }}
fill_up = true
calls = 5

[[stage]]
step = "ctc_decode"
file = "characters.txt"
space = true
inputs = ["columns"]
outputs = {{ text = "all texts", score = "all scores" }}

[[stage]]
name = "is sure"
step = "threshold"
at_least = 0.5
inputs = ["all scores"]
outputs = {{ mask = "sure" }}
"""
SELECT = """
[[stage]]
name = "{made}"
step = "select"
inputs = ["{taken}", "sure"]
outputs = {{ tensor = "{made}" }}
"""


def characters(data):
    """What the recogniser's columns stand for, a line each: the file itself says."""
    model = onnx.load_from_string(data)
    (found,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return "\n".join(found.splitlines()) + "\n"


def config(name, max_batch_size, profile_inputs):
    parameter = f'parameters {{ key: "profile_inputs" value {{ string_value: "{profile_inputs}" }} }}'
    return f'name: "{name}"\nplatform: "onnxruntime_onnx"\nmax_batch_size: {max_batch_size}\n{parameter}\n'


def main():
    repository = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else wheels.ROOT / ".cache" / "ocr"
    wheel = wheels.fetch(WHEEL, SHA256)
    for name, file, max_batch_size, profile_inputs in MODELS:
        wheels.write(repository / name / "config.pbtxt", config(name, max_batch_size, profile_inputs).encode())
        data = wheels.member(wheel, f"rapidocr_onnxruntime/models/{file}")
        wheels.write(repository / name / "1" / "model.onnx", data)
        if name == "text-recognise":
            wheels.write(repository / "ocr" / "characters.txt", characters(data).encode())
    selected = [("all texts", "texts"), ("all scores", "scores"), ("found", "boxes")]
    text = ENDPOINT + "".join(SELECT.format(taken=taken, made=made) for taken, made in selected)
    wheels.write(repository / "ocr" / "endpoint.toml", text.encode())


if __name__ == "__main__":
    main()
