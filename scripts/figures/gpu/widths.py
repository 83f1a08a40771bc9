"""Makes different models of named networks: each has the layers of one of them, with other widths, and random weights.

    scripts/measure.py gpu.widths FOLDER [--count 100] [--processes 8]

Needs PyTorch with torchvision, and no GPU. FOLDER becomes a model repository; models that are there stay.
"""

import argparse
import concurrent.futures
import multiprocessing
import os
import pathlib

FAMILIES = ("resnet50", "mobilenet_v2", "densenet121", "vgg16", "bert")
STEPS = 20


def variants(count):
    """So many models, of all networks in turn: name, network and how wide it is, from 0 (half as wide as published) to STEPS - 1."""
    most = len(FAMILIES) * STEPS
    if not 0 < count <= most:
        raise SystemExit(f"{count} models were asked for: there are 1 to {most}")
    # The widest of each network first, so that few models are like the published ones.
    return [(f"{FAMILIES[index % len(FAMILIES)]}-{STEPS - 1 - index // len(FAMILIES):02}", FAMILIES[index % len(FAMILIES)], STEPS - 1 - index // len(FAMILIES)) for index in range(count)]


def scaled(channels, step, multiple=8):
    """So many channels, as wide as the step says: at least half of them, all of them with the last."""
    factor = (STEPS + 1 + step) / (2 * STEPS)
    return max(multiple, int(channels * factor) // multiple * multiple)


def make(network, step):
    """The network in fp32 on the CPU, and an input of two rows."""
    import torch
    import torchvision
    from torchvision.models import densenet, mobilenetv2, resnet, vgg

    from figures.gpu.networks import calibrate, enliven
    from figures.gpu.written import Encoder

    torch.manual_seed(step + 1)
    if network == "bert":
        # Heads stay 64 wide, and what is behind attention is wider and wider.
        model = Encoder(layers=4 + step % 4, width=64 * (4 + step // 4), heads=4 + step // 4, words=8000 + 100 * step)
        return enliven(model).eval(), (torch.randint(0, 8000, (2, 128)),)
    if network == "resnet50":
        model = resnet.ResNet(resnet.Bottleneck, [3, 4, 6, 3], width_per_group=26 + 2 * step)
    elif network == "mobilenet_v2":
        model = mobilenetv2.MobileNetV2(width_mult=0.525 + 0.025 * step, round_nearest=2)
    elif network == "densenet121":
        model = densenet.DenseNet(growth_rate=13 + step, block_config=(6, 12, 24, 16), num_init_features=scaled(64, step, 1))
    else:
        last = scaled(512, step)
        layers = [width if width == "M" else last if width == 512 else scaled(width, step, 4) for width in vgg.cfgs["D"]]
        model = vgg.VGG(vgg.make_layers(layers), num_classes=1000, init_weights=False)
        model.classifier = torch.nn.Sequential(torch.nn.Linear(last * 49, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 1000))
        enliven(model)
    model, images = model.eval(), torch.randn(2, 3, 224, 224)
    calibrate(model, images)
    return model, (images,)


def write(folder, name, network, step):
    """One model of the repository, if it isn't there."""
    import torch

    from figures.gpu.networks import export

    path = folder / name / "1" / "model.onnx"
    if path.exists():
        return
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    export(*make(network, step), unfinished)
    unfinished.rename(path)


def write_all(folder, count, processes):
    with concurrent.futures.ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in [pool.submit(write, folder, *variant) for variant in variants(count)]:
            done.result()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=len(FAMILIES) * STEPS)
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    write_all(arguments.folder, arguments.count, arguments.processes)
    sizes = [path.stat().st_size for path in arguments.folder.glob("*/1/model.onnx")]
    print(f"{len(sizes)} models, {sum(sizes):,} bytes")


if __name__ == "__main__":
    main()
