"""Networks with random weights for measurements on a GPU: torchvision's, and BERT as people write it."""

import math

import torch

SEQUENCE = 128
WORDS = 30522


class Encoder(torch.nn.Module):
    """BERT as PyTorch writes it by hand: what its exporters see in real models."""

    def __init__(self, layers=12, width=768, heads=12, words=WORDS):
        super().__init__()
        self.heads = heads
        self.words = torch.nn.Embedding(words, width)
        self.places = torch.nn.Embedding(512, width)
        self.norm = torch.nn.LayerNorm(width)
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "q": torch.nn.Linear(width, width),
                    "k": torch.nn.Linear(width, width),
                    "v": torch.nn.Linear(width, width),
                    "o": torch.nn.Linear(width, width),
                    "n1": torch.nn.LayerNorm(width),
                    "up": torch.nn.Linear(width, 4 * width),
                    "down": torch.nn.Linear(4 * width, width),
                    "n2": torch.nn.LayerNorm(width),
                }
            )
            for _ in range(layers)
        )

    def forward(self, ids, mask=None):
        length = ids.shape[1]
        x = self.norm(self.words(ids) + self.places.weight[:length])
        for layer in self.layers:
            split = lambda y: y.view(y.shape[0], length, self.heads, -1).transpose(1, 2)
            q, k, v = split(layer["q"](x)), split(layer["k"](x)), split(layer["v"](x))
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            if mask is not None:
                scores = scores + (1.0 - mask[:, None, None, :].to(scores.dtype)) * -10000.0
            mixed = torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).reshape(x.shape)
            x = layer["n1"](x + layer["o"](mixed))
            x = layer["n2"](x + layer["down"](torch.nn.functional.gelu(layer["up"](x))))
        return x


class OfPixels(torch.nn.Module):
    """A network that takes pixels as bytes, as clients have them: a quarter of what floats would be on the way."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, pixels):
        return self.network((pixels.to(next(self.network.parameters()).dtype) - 127.5) / 64.0)


def calibrate(model, images):
    """Gives batch norms statistics with which values keep their size.

    With those of training, a deep network of random weights is chaotic: its images become more and more alike, the norms subtract what is common to them, and
    what rounding did grows from layer to layer, in PyTorch as in ours. So means are small random numbers, and variances are second moments.
    """

    def set_statistics(norm, inputs):
        size = inputs[0].float().pow(2).mean((0, 2, 3)).clamp_min(1e-12)
        norm.running_var.copy_(size)
        norm.running_mean.copy_(0.1 * size.sqrt() * torch.randn_like(size))
        norm.weight.copy_(0.5 + torch.rand_like(size))
        norm.bias.copy_(0.1 * torch.randn_like(size))

    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    hooks = [norm.register_forward_pre_hook(set_statistics) for norm in norms]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()


def make(name, batch):
    """The model in fp32 on the GPU, and an input of the largest batch."""
    torch.manual_seed(1)
    if name == "bert":
        return Encoder().cuda().eval(), torch.randint(0, WORDS, (batch, SEQUENCE)).cuda()
    import torchvision

    extra = {"aux_logits": False, "init_weights": True} if name == "inception_v3" else {}
    model = torchvision.models.get_model(name, weights=None, **extra).cuda()
    size = 299 if name == "inception_v3" else 224
    images = torch.randn(batch, 3, size, size).cuda()
    calibrate(model.eval(), images)
    return model, images


def export(model, example, path):
    axes = {"input": {0: "batch"}} if example.dtype == torch.int64 else {"input": {0: "batch"}, "output": {0: "batch"}}
    torch.onnx.export(
        model, (example[:1],), str(path), input_names=["input"], output_names=["output"], dynamic_axes=axes, opset_version=17, dynamo=False
    )


def export_of_pixels(name, path):
    """The same network for pixels as bytes."""
    model, images = make(name, 4)
    export(OfPixels(model), images.clamp(-2, 2).mul(60).add(127).to(torch.uint8), path)


def export_sentences(path, layers=4):
    """A small BERT for sentences of any length, with a mask."""
    torch.manual_seed(1)
    model = Encoder(layers=layers, width=256, heads=4, words=1000).eval()
    ids = torch.randint(0, 1000, (2, 24))
    axes = {name: {0: "batch", 1: "sequence"} for name in ("ids", "attention_mask", "output")}
    torch.onnx.export(
        model, (ids, torch.ones_like(ids)), str(path), input_names=["ids", "attention_mask"], output_names=["output"], dynamic_axes=axes, opset_version=17, dynamo=False
    )
