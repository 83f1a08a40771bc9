#!/usr/bin/env python3
"""Compares our executions with PyTorch's CUDA graphs on one GPU, in one run.

    scripts/gpu/exec.py EXEC_BINARY FOLDER [--models resnet50:tf32,resnet50:f16] [--batches 1,2,4,8,16,32] [--proposals 4]

EXEC_BINARY is `cargo build --release -p engine-cuda --example exec`. Models are exported with random weights (seed fixed; batch norms are set so that values
keep their size through the network, see `calibrate`). For each: outputs of PyTorch in fp32 without TF32 are saved and ours compared with them; then times, first
PyTorch's, then ours. Both are medians of single replays of a CUDA graph, by events on the device. Prints a table in Markdown; writes results.json.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import time

import torch

ALL = "resnet50:tf32,resnet50:f16,resnet18:f16,densenet121:f16,mobilenet_v2:f16,vgg16:f16"
SEQUENCE = 128


class Encoder(torch.nn.Module):
    """BERT as PyTorch writes it by hand: what its exporters see in real models."""

    def __init__(self, layers=12, width=768, heads=12, words=30522):
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

    def forward(self, ids):
        length = ids.shape[1]
        x = self.norm(self.words(ids) + self.places.weight[:length])
        for layer in self.layers:
            split = lambda y: y.view(y.shape[0], length, self.heads, -1).transpose(1, 2)
            q, k, v = split(layer["q"](x)), split(layer["k"](x)), split(layer["v"](x))
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
            mixed = torch.matmul(torch.softmax(scores, -1), v).transpose(1, 2).reshape(x.shape)
            x = layer["n1"](x + layer["o"](mixed))
            x = layer["n2"](x + layer["down"](torch.nn.functional.gelu(layer["up"](x))))
        return x


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
        return Encoder().cuda().eval(), torch.randint(0, 30522, (batch, SEQUENCE)).cuda()
    import torchvision

    extra = {"aux_logits": False, "init_weights": True} if name == "inception_v3" else {}
    model = torchvision.models.get_model(name, weights=None, **extra).cuda()
    size = 299 if name == "inception_v3" else 224
    images = torch.randn(batch, 3, size, size).cuda()
    calibrate(model.eval(), images)
    return model, images


def export(model, example, path):
    if example.dtype == torch.int64:
        axes = {"input": {0: "batch"}}
    else:
        axes = {"input": {0: "batch"}, "output": {0: "batch"}}
    torch.onnx.export(
        model, (example[:1],), str(path), input_names=["input"], output_names=["output"], dynamic_axes=axes, opset_version=17, dynamo=False
    )


def torch_times(model, example, precision, batches, expected):
    """Median ms of a replay, by batch; and how far PyTorch's own outputs in that precision are from those in fp32."""
    model = model.to(memory_format=torch.channels_last) if example.dim() == 4 else model
    if precision == "f16":
        model = model.half()
    tf32 = precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True
    times, error = {}, 0.0
    for batch in batches:
        x = example[:batch].clone()
        if x.dim() == 4:
            x = x.to(memory_format=torch.channels_last)
            x = x.half() if precision == "f16" else x
        with torch.no_grad():
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(3):
                    model(x)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(x)
            for _ in range(30):
                graph.replay()
            torch.cuda.synchronize()
            taken = []
            for _ in range(200):
                begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                begin.record()
                graph.replay()
                end.record()
                torch.cuda.synchronize()
                taken.append(begin.elapsed_time(end))
            right = expected[:batch]
            error = max(error, ((model(x).float() - right).abs().max() / right.abs().max()).item())
        times[batch] = statistics.median(taken)
        del graph
    return times, error


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--models", default=ALL)
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--proposals", default="4")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    batches = [int(batch) for batch in arguments.batches.split(",")]
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}", flush=True)
    results = []
    expected = {}
    for entry in arguments.models.split(","):
        name, precision = entry.split(":")
        path = arguments.folder / f"{name}.onnx"
        began = time.time()
        model, example = make(name, max(batches))
        if name not in expected:
            torch.backends.cuda.matmul.allow_tf32 = False
            torch.backends.cudnn.allow_tf32 = False
            with torch.no_grad():
                output = expected[name] = model(example)
            output.float().cpu().numpy().tofile(arguments.folder / f"{name}.output0.bin")
            example.cpu().numpy().tofile(arguments.folder / f"{name}.input0.bin")
            export(model, example, path)
        export_s = time.time() - began
        began = time.time()
        theirs, torch_error = torch_times(model, example, precision, batches, expected[name])
        torch_s = time.time() - began
        del model, example
        torch.cuda.empty_cache()
        began = time.time()
        command = [arguments.binary, str(arguments.folder / "cache"), precision, arguments.batches, arguments.proposals, str(path)]
        if name == "bert":
            command += [f"input:1={SEQUENCE}"]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            print(f"{entry}: exec failed with {ran.returncode}", flush=True)
        for line in ran.stdout.splitlines():
            result = json.loads(line)
            result["torch_ms"] = theirs[result["batch"]]
            result["torch_error"] = torch_error
            result["ratio"] = result["ms"] / result["torch_ms"]
            results.append(result)
            print(json.dumps(result), flush=True)
        print(f"{entry}: export {export_s:.1f} s, torch {torch_s:.1f} s, ours {time.time() - began:.1f} s", flush=True)
        (arguments.folder / "results.json").write_text(json.dumps(results))
    print("| model | " + " | ".join(f"b{batch}" for batch in batches) + " | error | PyTorch's |\n|---|" + "---|" * (len(batches) + 2))
    for entry in arguments.models.split(","):
        name, precision = entry.split(":")
        mine = {r["batch"]: r for r in results if r["model"] == name and r["precision"].lower() == precision}
        cells = [f"{mine[b]['ms']:.3f} / {mine[b]['torch_ms']:.3f} = {mine[b]['ratio']:.2f}" if b in mine else "" for b in batches]
        errors = (max(r["error"] for r in mine.values()), max(r["torch_error"] for r in mine.values())) if mine else (math.nan, math.nan)
        print(f"| {name} {precision} | " + " | ".join(cells) + f" | {errors[0]:.1e} | {errors[1]:.1e} |")
    if results:
        mean = math.exp(sum(math.log(r["ratio"]) for r in results) / len(results))
        print(f"geometric mean {mean:.3f}, largest {max(r['ratio'] for r in results):.3f}, largest error {max(r['error'] for r in results):.1e}")


if __name__ == "__main__":
    main()
