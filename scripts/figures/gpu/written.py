"""Networks that torchvision has none of, as people write them: encoders of text, SE-ResNeXt, LeNet, a YOLO; and the part of SSD that comes before its suppression."""

import math

import torch
import torchvision
from torch import nn
from torch.nn import functional


class Encoder(nn.Module):
    """BERT as PyTorch writes it by hand: what its exporters see in real models."""

    def __init__(self, layers=12, width=768, heads=12, words=30522):
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "q": nn.Linear(width, width),
                    "k": nn.Linear(width, width),
                    "v": nn.Linear(width, width),
                    "o": nn.Linear(width, width),
                    "n1": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                    "n2": nn.LayerNorm(width),
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
            x = layer["n2"](x + layer["down"](functional.gelu(layer["up"](x))))
        return x


class Gpt2(nn.Module):
    """GPT-2 without what makes words of its last vectors: norms come first, one product makes queries, keys and values, and nobody sees what comes later."""

    def __init__(self, layers=12, width=768, heads=12, words=50257, most=1024):
        super().__init__()
        self.heads, self.width = heads, width
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(most, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "n1": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "o": nn.Linear(width, width),
                    "n2": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.register_buffer("later", torch.ones(most, most, dtype=torch.bool).triu(1))

    def forward(self, ids):
        length = ids.shape[1]
        x = self.words(ids) + self.places.weight[:length]
        for layer in self.layers:
            split = lambda y: y.view(y.shape[0], length, self.heads, -1).transpose(1, 2)
            q, k, v = map(split, layer["qkv"](layer["n1"](x)).split(self.width, -1))
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            scores = scores.masked_fill(self.later[:length, :length], torch.finfo(scores.dtype).min)
            mixed = torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).reshape(x.shape)
            x = x + layer["o"](mixed)
            x = x + layer["down"](functional.gelu(layer["up"](layer["n2"](x)), approximate="tanh"))
        return self.norm(x)


class SeBottleneck(torchvision.models.resnet.Bottleneck):
    """A block of ResNeXt whose channels are weighed before the residual is added."""

    def __init__(self, inplanes, planes, *arguments, **options):
        super().__init__(inplanes, planes, *arguments, **options)
        channels = planes * self.expansion
        self.bn3 = nn.Sequential(self.bn3, torchvision.ops.SqueezeExcitation(channels, channels // 16))


def se_resnext50():
    """SE-ResNeXt-50 32x4d."""
    return torchvision.models.ResNet(SeBottleneck, [3, 4, 6, 3], groups=32, width_per_group=4)


class LeNet(nn.Module):
    """LeNet-5 for digits of 28x28."""

    def __init__(self):
        super().__init__()
        self.seen = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2))
        self.named = nn.Sequential(nn.Flatten(), nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10))

    def forward(self, x):
        return functional.log_softmax(self.named(self.seen(x)), 1)


class Ssd(nn.Module):
    """A detector of torchvision's up to what its head says: boxes are still relative to their anchors, and none is suppressed."""

    def __init__(self, detector):
        super().__init__()
        self.backbone, self.head = detector.backbone, detector.head

    def forward(self, x):
        found = self.head(list(self.backbone(x).values()))
        return found["bbox_regression"], found["cls_logits"]


def convolution(inputs, outputs, size=1, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False), nn.BatchNorm2d(outputs), nn.SiLU())


class Split(nn.Module):
    """YOLO v8's block: half of the channels go through small residual blocks, and what each of them made is kept."""

    def __init__(self, inputs, outputs, blocks, residual=True):
        super().__init__()
        half = outputs // 2
        self.first, self.last = convolution(inputs, outputs), convolution((2 + blocks) * half, outputs)
        self.blocks = nn.ModuleList(nn.Sequential(convolution(half, half, 3), convolution(half, half, 3)) for _ in range(blocks))
        self.residual = residual

    def forward(self, x):
        parts = list(self.first(x).chunk(2, 1))
        for block in self.blocks:
            made = block(parts[-1])
            parts.append(parts[-1] + made if self.residual else made)
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """The largest of ever larger surroundings, one pool behind another."""

    def __init__(self, channels):
        super().__init__()
        self.first, self.last = convolution(channels, channels // 2), convolution(2 * channels, channels)

    def forward(self, x):
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(functional.max_pool2d(parts[-1], 5, 1, 2))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """A detector like YOLO v8's smallest: boxes and classes at three scales, none suppressed."""

    STRIDES = (8, 16, 32)
    BINS = 16

    def __init__(self, size=320, classes=80):
        super().__init__()
        self.fine = nn.Sequential(
            convolution(3, 16, 3, 2), convolution(16, 32, 3, 2), Split(32, 32, 1), convolution(32, 64, 3, 2), Split(64, 64, 2)
        )
        self.middle = nn.Sequential(convolution(64, 128, 3, 2), Split(128, 128, 2))
        self.coarse = nn.Sequential(convolution(128, 256, 3, 2), Split(256, 256, 1), Pyramid(256))
        self.larger = nn.Upsample(scale_factor=2, mode="nearest")
        self.down_to_middle, self.down_to_fine = Split(384, 128, 1, False), Split(192, 64, 1, False)
        self.from_fine, self.up_to_middle = convolution(64, 64, 3, 2), Split(192, 128, 1, False)
        self.from_middle, self.up_to_coarse = convolution(128, 128, 3, 2), Split(384, 256, 1, False)

        def heads(inner, outputs):
            return nn.ModuleList(
                nn.Sequential(convolution(channels, inner, 3), convolution(inner, inner, 3), nn.Conv2d(inner, outputs, 1)) for channels in (64, 128, 256)
            )

        self.boxes, self.classes = heads(64, 4 * self.BINS), heads(80, classes)
        sides = [size // stride for stride in self.STRIDES]
        centers = [torch.stack(torch.meshgrid(torch.arange(side) + 0.5, torch.arange(side) + 0.5, indexing="xy")).flatten(1) for side in sides]
        self.register_buffer("centers", torch.cat(centers, 1))
        self.register_buffer("strides", torch.cat([torch.full((side * side,), float(stride)) for side, stride in zip(sides, self.STRIDES)]))
        self.register_buffer("distances", torch.arange(float(self.BINS)).view(1, self.BINS, 1, 1))

    def forward(self, x):
        fine = self.fine(x)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.down_to_middle(torch.cat([self.larger(coarse), middle], 1))
        fine = self.down_to_fine(torch.cat([self.larger(middle), fine], 1))
        middle = self.up_to_middle(torch.cat([self.from_fine(fine), middle], 1))
        coarse = self.up_to_coarse(torch.cat([self.from_middle(middle), coarse], 1))
        scales = (fine, middle, coarse)
        boxes = torch.cat([head(scale).flatten(2) for head, scale in zip(self.boxes, scales)], 2)
        classes = torch.cat([head(scale).flatten(2) for head, scale in zip(self.classes, scales)], 2)
        # How far a side of a box is from its center is the mean of a distribution over whole distances.
        sides = boxes.view(boxes.shape[0], 4, self.BINS, -1).transpose(1, 2).softmax(1)
        sides = functional.conv2d(sides, self.distances)[:, 0]
        first, last = self.centers - sides[:, :2], self.centers + sides[:, 2:]
        return torch.cat([(first + last) / 2, last - first], 1) * self.strides, classes.sigmoid()
