"""The part of the benchmarks on models with no configuration: what it sends, and what it makes of the answers."""

import json
import re

import numpy as np

import strangers
from figures.bench import models


def answer(**outputs):
    """An answer in the protocol's binary form: the length of its head, and its bytes."""
    tensors = [
        {"name": name, "shape": list(array.shape), "datatype": models.DATA_TYPES[str(array.dtype)],
         "parameters": {"binary_data_size": array.nbytes}}
        for name, array in outputs.items()
    ]
    head = json.dumps({"outputs": tensors}).encode()
    return len(head), head + b"".join(array.tobytes() for array in outputs.values())


def request(alone_ms=10.0):
    outputs = {"y": np.array([[0.0, 1.0, 2.0]], np.float32), "label": np.array([7])}
    return models.Request(0, b"", alone_ms, outputs)


def test_a_request_has_its_tensors_behind_its_head():
    head, body = models.encoded({"x": np.ones((1, 2), np.float32), "word": np.array(["no"], object)})
    first, second = json.loads(body[:head])["inputs"]
    assert (first["datatype"], first["shape"], first["parameters"]["binary_data_size"]) == ("FP32", [1, 2], 8)
    assert second["datatype"] == "BYTES"
    assert body[head:] == np.ones(2, np.float32).tobytes() + b"\2\0\0\0no"


def test_an_answer_is_right_where_it_is_close():
    right = {"y": np.array([[0.0, 1.001, 2.0]], np.float32), "label": np.array([7])}
    assert models.is_right(request(), *answer(**right))
    assert not models.is_right(request(), *answer(**right | {"y": np.array([[0.0, 1.01, 2.0]], np.float32)}))
    assert not models.is_right(request(), *answer(**right | {"label": np.array([8])}))
    assert not models.is_right(request(), *answer(y=right["y"]))


def test_what_became_of_requests():
    tally, (head, body) = models.Tally(), answer(**request().outputs)
    tally.add(request(), 29.9, 200, head, body)
    tally.add(request(), 30.1, 200, head, body)
    tally.add(request(), 0.2, 504, 0, b'{"error": "no", "reason": "deadline_unreachable"}')
    assert (tally.met, tally.late, tally.wrong, tally.refused) == (1, 1, 0, {models.IMPOSSIBLE: 1})
    assert tally.shown() == "1 of 3, 1 deadline_unreachable, 1 late"


def test_a_quick_model_has_time_for_the_way():
    assert request(alone_ms=0.1).deadline_ms == 0.1 + models.WAY_MS
    assert request(alone_ms=10).deadline_ms == 30


def test_figures_tell_what_was_refused_as_impossible_later_from_the_first_second():
    run = {"ready_s": 1.0, "batches": 0, "planned_ms": 1.0, "stolen": 0.0, "foreign": 0.0,
           "first": {"met": 1, "refused": {models.IMPOSSIBLE: 3}}, "later": {"met": 95, "refused": {models.IMPOSSIBLE: 1}}}
    shown = {figure.name: figure for figure in models.honesty([run, {"failed": "no input suits"}], "quiet")}
    impossible = shown["quiet: refused as impossible after the first second"]
    assert (impossible.value, impossible.note, impossible.verdict) == (1, "in it 3", "SHORT OF IT")
    assert shown["quiet: models that aren't served"].value == 1
    assert shown["quiet: requests met, mean of the models"].value == 0.48
    assert shown["quiet: models that met fewer"].value == 1


def test_strangers_are_pinned_and_make_inputs_of_every_length():
    names = [stranger.name for stranger in strangers.STRANGERS]
    assert len(names) == len(set(names)) >= 10
    for stranger in strangers.STRANGERS:
        assert re.fullmatch(r"[\w-]+==[\w.]+", stranger.wheel) and re.fullmatch(r"[0-9a-f]{64}", stranger.sha256)
        for length in stranger.lengths:
            inputs = stranger.inputs(np.random.default_rng(1), length)
            assert all(str(array.dtype) in models.DATA_TYPES for array in inputs.values()), stranger.name


def test_a_row_has_a_cell_for_each_column():
    run = {"ready_s": 1.0, "batches": 16, "planned_ms": 0.5, "first": {"met": 2}, "later": {"met": 3, "late": 1}}
    row = {"name": "a", "kind": "a kind", "open": ["x: n x 3"], "alone_ms": [1.0, 2.0], "quiet": run, "busy": {"failed": "no\ninput"}}
    columns, rule, cells = (line.strip("|").split("|") for line in models.lines([row]))
    assert len(columns) == len(rule) == len(cells)
    named = dict(zip((column.strip() for column in columns), (cell.strip() for cell in cells)))
    assert (named["batches"], named["planned"], named["busy: planned"], named["alone"]) == ("16", "0.5 ms", "", "1 to 2 ms")
    assert (named["met, after it"], named["busy: first second"]) == ("3 of 4, 1 late", "not served: no input")
