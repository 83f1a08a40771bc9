"""Which networks are compared and how results are told."""

import math

from figures.gpu import report


def result(model="yolo", precision="F16", batch=1, ms=1.0, error=1e-4, torch_ms=2.0, torch_error=1e-4):
    return {"model": model, "precision": precision, "batch": batch, "ms": ms, "error": error, "torch_ms": torch_ms, "torch_error": torch_error}


def test_named_stands_for_every_network_in_two_precisions_and_some_in_fp32():
    entries = report.expand("resnet50:f16,named")
    assert entries[:3] == ["resnet50:f16", "resnext50_32x4d:f16", "seresnext50:f16"]
    for name in report.NAMED:
        assert {f"{name}:f16", f"{name}:tf32"} <= set(entries)
        assert (f"{name}:f32" in entries) == (name in report.ALSO_IN_F32)
    assert set(report.ALSO_IN_F32) <= set(report.NAMED)


def test_a_network_that_is_named_twice_is_compared_once():
    assert report.expand("named,yolo:f16,named") == report.expand("named")
    assert report.expand("bert:f16") == ["bert:f16"]


def test_an_error_is_too_large_beyond_the_bound_and_twice_pytorchs():
    assert not report.is_over(result(error=9e-3))
    assert report.is_over(result(error=1.1e-2))
    assert not report.is_over(result(error=1.1e-2, torch_error=6e-3))
    assert report.is_over(result(error=1.3e-2, torch_error=6e-3))
    assert report.is_over(result(precision="Tf32", error=2e-3, torch_error=5e-4))
    assert report.is_over(result(precision="F32", error=2e-3))


def test_what_is_no_number_is_over_and_excuses_nothing():
    assert report.is_over(result(error=math.inf, torch_error=math.inf))
    assert report.is_over(result(error=math.nan))
    assert report.is_over(result(error=0.5, torch_error=math.inf))
    assert report.is_over(result(error=0.5, torch_error=math.nan))


def test_a_table_has_a_line_for_every_entry_also_for_those_that_failed():
    results = [result(), result(batch=4, ms=3.0, error=2e-2), result("lenet", "Tf32", torch_ms=math.nan, torch_error=math.nan)]
    failures = {"gpt2-32:f16": ["not exported: a | b"], "lenet:tf32": ["PyTorch failed: it did"]}
    entries = ["yolo:f16", "gpt2-32:f16", "lenet:tf32"]
    assert report.table(entries, [1, 4], results, failures).splitlines()[2:] == [
        "| yolo f16 | 1.000 / 2.000 = 0.50 | 3.000 / 2.000 = 1.50 | 2.0e-02 | 1.0e-04 | **over** |",
        "| gpt2-32 f16 |  |  |  |  | not exported: a / b |",
        "| lenet tf32 | 1.000 |  | 1.0e-04 | nan | PyTorch failed: it did |",
    ]
    assert report.summary(entries, results, failures).splitlines() == [
        "geometric mean 0.866, largest 1.500, largest error 2.0e-02 (yolo f16)",
        "3 compared: 1 over the bound, 2 failed",
    ]


def test_nothing_but_failures_is_told_too():
    assert report.summary(["yolo:f16"], [], {"yolo:f16": ["no"]}) == "1 compared: 0 over the bound, 1 failed"
