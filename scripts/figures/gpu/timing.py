"""How PyTorch computes and is timed here: in its best layout, as a CUDA graph, by events on the device."""

import statistics

import torch


def choose_precision(precision):
    tf32 = precision != "f32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def in_precision(model, inputs, precision):
    """The model and its inputs as PyTorch computes them best."""
    choose_precision(precision)
    model = model.to(memory_format=torch.channels_last) if inputs[0].dim() == 4 else model
    return (model.half() if precision == "f16" else model), inputs


def rows_of(inputs, batch, precision):
    rows = [x[:batch].clone() for x in inputs]
    images = [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in rows]
    return [x.half() if x.dim() == 4 and precision == "f16" else x for x in images]


def replay_time(model, inputs):
    """Median ms of a replay of the model's CUDA graph."""
    stream = torch.cuda.Stream()
    # Inputs are made on the usual stream: what reads them here before they are there reads anything, and an index of anything ends the process.
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(*inputs)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(*inputs)
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
    return statistics.median(taken)
