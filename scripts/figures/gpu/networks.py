"""Networks with random weights for measurements on a GPU: torchvision's, and those of written.py. Without a GPU they are made on the CPU."""

import contextlib
import math
import os
import sys

import torch

from figures.gpu.written import Encoder, Gpt2, LeNet, Ssd, Yolo, se_resnext50

SEQUENCE = 128
WORDS = 30522
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def without_tf32():
    """What is computed here is fp32, whatever was chosen before."""
    kinds = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [kind.allow_tf32 for kind in kinds]
    for kind in kinds:
        kind.allow_tf32 = False
    try:
        yield
    finally:
        for kind, allowed in zip(kinds, before):
            kind.allow_tf32 = allowed


class OfPixels(torch.nn.Module):
    """A network that takes pixels as bytes, as clients have them: a quarter of what floats would be on the way."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels):
        return self.network((pixels.to(next(self.network.parameters()).dtype) - 127.5) / 64.0)


class Seen(torch.nn.Module):
    """A network of which one number for each image is told: what others wait for."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels):
        outputs = self.network(pixels)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        return sum(output.flatten(1).mean(1, keepdim=True) for output in outputs)


class After(torch.nn.Module):
    """A network that waits for a number that another one tells."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels, seen):
        return self.network(pixels) + 1e-6 * seen


def calibrate(model, images):
    """Gives batch norms statistics with which values keep their size, and weights of channels (squeeze and excitation) the range in which they differ.

    With those of training, a deep network of random weights is chaotic: its images become more and more alike, the norms subtract what is common to them, and
    what rounding did grows from layer to layer, in PyTorch as in ours. So means are small random numbers, and variances are second moments.
    """
    import torchvision

    def set_statistics(norm, inputs):
        size = inputs[0].float().pow(2).mean((0, 2, 3)).clamp_min(1e-12)
        norm.running_var.copy_(size)
        norm.running_mean.copy_(0.1 * size.sqrt() * torch.randn_like(size))
        norm.weight.copy_(0.5 + torch.rand_like(size))
        norm.bias.copy_(0.1 * torch.randn_like(size))

    def spread(last, _, output):
        factor = 1.5 / output.std()
        last.weight.mul_(factor)
        last.bias.mul_(factor)
        return output * factor

    hooks = []
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            hooks.append(module.register_forward_pre_hook(set_statistics))
        if isinstance(module, torchvision.ops.SqueezeExcitation):
            hooks.append(module.fc2.register_forward_hook(spread))
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()


def enliven(model):
    """For networks without batch norms: gives products weights that keep values' size, so that scores differ and layers count beside the residual, and norms factors and offsets of their own."""
    for module in model.modules():
        if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
            torch.nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.1)
    return model


def make_text(name, length, batch):
    """An encoder, and sentences of that length; for MiniLM with a mask, because sentences are of different lengths."""
    if name == "bert":
        return Encoder(), (torch.randint(0, WORDS, (batch, length)),)
    if name == "gpt2":
        return enliven(Gpt2()), (torch.randint(0, 50257, (batch, length)),)
    model = enliven(Encoder(layers=6, width=384))
    ends = length - torch.arange(batch) * length // (2 * batch)
    return model, (torch.randint(0, WORDS, (batch, length)), (torch.arange(length) < ends[:, None]).long())


def make_vision(name):
    """A network for images, and the shape of one."""
    import torchvision

    detection = {"weights": None, "weights_backbone": None}
    written = {
        "seresnext50": (se_resnext50, 3, 224),
        "lenet": (lambda: enliven(LeNet()), 1, 28),
        "yolo": (Yolo, 3, 320),
        "ssd300": (lambda: Ssd(torchvision.models.detection.ssd300_vgg16(**detection)), 3, 300),
        "ssdlite320": (lambda: Ssd(torchvision.models.detection.ssdlite320_mobilenet_v3_large(**detection)), 3, 320),
    }
    if name in written:
        network, channels, size = written[name]
        return network(), (channels, size, size)
    auxiliary = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    size = 299 if name == "inception_v3" else 224
    return torchvision.models.get_model(name, weights=None, **auxiliary), (3, size, size)


def split_name(name):
    """The network, and the length of its sentences if the name says one: `gpt2-32`."""
    network, _, length = name.partition("-")
    return network, int(length) if length else None


def make(name, batch):
    """The model in fp32 on the GPU, and its inputs for the largest batch."""
    torch.manual_seed(1)
    network, length = split_name(name)
    if network in ("bert", "minilm", "gpt2"):
        model, inputs = make_text(network, length or SEQUENCE, batch)
        return model.to(DEVICE).eval(), tuple(x.to(DEVICE) for x in inputs)
    model, shape = make_vision(network)
    model = model.to(DEVICE).eval()
    images = torch.randn(batch, *shape).to(DEVICE)
    with without_tf32():
        calibrate(model, images)
    return model, (images,)


def outputs_of(model, inputs):
    """All outputs, in fp32."""
    with torch.no_grad():
        outputs = model(*inputs)
    return [output.float() for output in (outputs if isinstance(outputs, tuple) else (outputs,))]


def largest_error(outputs, expected):
    """The largest difference in any output, over the largest of that output."""
    errors = [((output - right).abs().max() / right.abs().max()).item() for output, right in zip(outputs, expected)]
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def export(model, inputs, path, any_length=False):
    """Writes the model for any batch, and with `any_length` for sentences of any length."""
    count = len(outputs_of(model, [x[:1] for x in inputs]))
    input_names = ["input", "mask"][: len(inputs)]
    output_names = ["output", *(f"output{position}" for position in range(1, count))]
    axes = {0: "batch", 1: "sequence"} if any_length else {0: "batch"}
    torch.onnx.export(
        model,
        tuple(x[:1] for x in inputs),
        str(path),
        input_names=input_names,
        output_names=output_names,
        dynamic_axes={name: axes for name in input_names + output_names},
        opset_version=17,
        dynamo=False,
    )


def prepare(names, batch, folder):
    """Writes NAME.onnx, NAME.input0.bin and NAME.output0.bin (fp32) and so on for names of one network: where they are lengths, the file is one and the same."""
    first = None
    for name in names:
        model, inputs = make(name, batch)
        with without_tf32():
            outputs = outputs_of(model, inputs)
        for what, tensors in (("input", inputs), ("output", outputs)):
            for position, tensor in enumerate(tensors):
                tensor.cpu().numpy().tofile(folder / f"{name}.{what}{position}.bin")
        path = folder / f"{name}.onnx"
        path.unlink(missing_ok=True)
        if first is None:
            export(model, inputs, path, any_length=split_name(name)[1] is not None)
            first = path
        else:
            os.link(first, path)


def export_of_pixels(kind, name, path):
    """The same network for pixels as bytes; one that tells others a number, or waits for it."""
    model, (images,) = make(name, 4)
    pixels = images.clamp(-2, 2).mul(60).add(127).to(torch.uint8)
    if kind == "after":
        export(After(OfPixels(model)), (pixels, torch.zeros(4, 1, device=pixels.device)), path)
    else:
        export(Seen(OfPixels(model)) if kind == "seen" else OfPixels(model), (pixels,), path)


def export_sentences(path, layers=4):
    """A small BERT for sentences of any length, with a mask."""
    torch.manual_seed(1)
    model = Encoder(layers=layers, width=256, heads=4, words=1000).eval()
    ids = torch.randint(0, 1000, (2, 24))
    axes = {name: {0: "batch", 1: "sequence"} for name in ("ids", "attention_mask", "output")}
    torch.onnx.export(
        model, (ids, torch.ones_like(ids)), str(path), input_names=["ids", "attention_mask"], output_names=["output"], dynamic_axes=axes, opset_version=17, dynamo=False
    )


def main(kind, name, path):
    """Writes one file, in a process that leaves nothing on the GPU."""
    if kind in ("pixels", "seen", "after"):
        export_of_pixels(kind, name, path)
    elif kind == "sentences":
        export_sentences(path)
    else:
        export(*make(name, 2), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
