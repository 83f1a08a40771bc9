"""The page of what was measured on a GPU: made of results alone, all of one commit."""

import importlib
import json

import pytest
from figures.gpu import page, results


def quantiles(p50):
    return {"count": 100, "p50_us": p50, "p99_us": 1.1 * p50, "p999_us": 1.25 * p50, "p9999_us": 1.5 * p50, "max_us": 2 * p50}


def clocks(p50):
    return {"device": quantiles(p50), "wall": quantiles(p50 + 10)}


def asked(good=90):
    return {"requests": 100, "good": good, "late": 1, "refused": 9, "p50": 5.2, "p99": 9.3, "max": 23.6}


SEEN = {"busy": 0.25, "link": 0.35, "cold": 0.59, "predictions": {"execution": {"p50": 30e-6, "p99": 193e-6, "p999": 1e-3}, "load": None}}
ROW = {"model": "resnet50", "precision": "Tf32", "batch": 1, "ms": 0.5, "p99": 0.6, "error": 5e-3, "torch_ms": 1.0, "torch_error": 5e-3, "compiled_ms": 0.8}
BATCH = {"batch": 1, "plain": clocks(100), "pooled": clocks(80), "graph_wall": quantiles(90), "each_us": 154.25}
MODEL = {"hundred_more_ms": 170.0, "batches": [BATCH, {**BATCH, "batch": 2, "pooled": None, "each_us": None}], "while_loading": clocks(110), "load_gb_per_s": 48.25}
IN = lambda precision, error, ms: {"precision": precision, "error": error, "ms": ms}
PITCH = {
    "model": "basic-pitch", "file_bytes": 230444, "chosen": {"precision": "tf32+1", "error": 2e-3}, "others": [{"precision": "fp16", "error": 0.15}, {"precision": "tf32", "error": 0.16}],
    "measured": [IN("fp32", 0.0, {"1": 1.0, "8": 4.0}), IN("tf32", 0.16, {"1": 0.5, "8": 2.0}), IN("fp16", 1.8e308, {"1": 0.25, "8": 1.0}), IN("tf32+1", 2e-3, {"1": 0.5, "8": 2.0})],
    "compare_s": 2.5, "prepare_s": 9.0,
}
FIGURES = {
    "exec": {"rows": [ROW, {**ROW, "batch": 8, "ms": 2.0, "torch_ms": None}], "failures": {"vgg16:f16": ["PyTorch failed: no memory"]}},
    "named": {"rows": [ROW]},
    "compiled": {"rows": [ROW, {**ROW, "compiled_ms": None}]},
    "reference": {"rows": [{"model": "lenet", "precision": "f16", "error": 1e-3, "torch_error": 2e-3, "over": False, "steps": "{}"}]},
    "precision": {"bound": 0.01, "rows": [PITCH, {"model": "nani", "refused": "it has strings"}]},
    "ready": {
        "count": 100, "one": {"model": "resnet50-19", "first_answer_s": 2.04}, "all": {"nothing": {"seconds": 91.23, "by_rule": 100}, "cached": {"seconds": 14.0, "by_rule": 100}}, "tuned_s": {"resnet50-19": 31.4},
        "again": {"seconds": 1.5, "by_rule": 0}, "in_idle_time": {"resnet50-19": {"precision": "fp16", "ms": {"1": 0.303, "2": 0.4}}}, "at_the_start": {"resnet50-19": {"precision": "fp16", "ms": {"1": 0.3, "2": 0.4}}},
    },
    "nodes": {"right": 1363, "wrong": 0, "refused": 260, "contested": 4},
    "kernels": {"tried": 1234, "wrong": 0},
    "loads": {"sizes": [{"megabytes": 102, "copy": quantiles(1862), "load": quantiles(1943), "with_new_slab": quantiles(2289), "unload": quantiles(69)}]},
    "fetches": {"pieces": 4224, "rates": [{"count": 16, "bytes": 602112, "skipped": 5, "times": quantiles(200), "gb_per_s": 47.0}]},
    "model": MODEL,
    "loading": MODEL,
    "flow": {"batches": [{"batch": 16, "device": quantiles(283), "each_us": 309.0, "disturbed_each_us": None}]},
    "launches": {"device": quantiles(302), "wall": quantiles(319), "empty": clocks(310)},
    "divisions": {
        "divisions": [{"shares": [0.5, 0.5], "multiprocessors": [64, 68], "seen_on": [64, 68], "contexts_us": 1000, "with_streams_us": 1100, "with_graphs_us": 1300, "gone_us": 100}],
        "change": {"alone": quantiles(456), "during": quantiles(457), "changes": quantiles(5500)},
    },
    "shares": {"networks": [{"network": "resnet50", "shares": "0.2,0.8", "output": "b1 0.447 ms"}]},
    "capacity": {"models": 3601, "ready_seconds": 31.0, "phases": [{"title": "all models", "minor": asked(), "major": asked(77), "seen": SEEN}]},
    "figure5": {"objectives_ms": [5, 10], "goodput": {"punctual": [8290.0, 10859.0]}},
    "honesty": {"rates": [{"policy": "punctual", "rate": 14500.0, "part": 1.0, "live": 0.9774, "simulated": 0.9909, "seen": SEEN}]},
    "changes": {"phases": [{"title": "changed every 100 ms", "found": asked(), "seen": SEEN, "changes": 59, "change_p50_us": 800.0, "change_max_us": 9800.0}]},
    "sizes": {
        "network": "resnet50", "objective_ms": 6, "capacity": 1000.0, "added": [12, 6],
        "rows": [{"mode": mode, "part": 1.0, "rate": 1000.0, "batch": 9.5, **asked(), "goodput": good} for mode, good in [("all", 1000.0), ("powers", 800.0), ("default", 990.0)]],
    },
    "auto_shares": {
        "loads": {
            "hurry": {
                "capacity": 1000.0,
                "rows": [
                    {"mode": mode, "part": 0.5, "rate": 500.0, "changes": 2 if mode == "auto" else 0, "clients": 1000.0, "classes": {"lenet": {**asked(good), "requests": 1000}}}
                    for mode, good in [("whole", 750), ("auto", 990), ("halves", 800)]
                ],
            }
        }
    },
    "ocr": {
        "pictures": 20, "equal": 19, "equal_at_first": 20, "on_the_device": 40, "on_the_cpu": 1, "different": {},
        **{which: {"rate": 12.5, "p50_ms": 70.0, "p99_ms": 150.0} for which in ("package", "first", "later")},
    },
    "lengths": {"found": asked(), "difference": 2e-3, "refusal": "a length of 129"},
    "shapes": {"shapes": 2, "prepared": 2, "first_ms": [9.0, 8.0], "later_ms": [1.0, 2.0], "difference": 1e-6},
    "fallback": {"refusal": "Scaler isn't there", "same": True},
}


def kept(part, commit="abc1234"):
    return {"part": part, "commit": commit, "device": "NVIDIA H200, 580.1", "cores": 16, "measured": "2026-11-17", "command": f"measure {part}", "figures": FIGURES[part]}


def test_every_part_has_a_section_and_a_program():
    assert set(FIGURES) == set(page.SECTIONS) == set(importlib.import_module("figures.gpu.__main__").PARTS)


def test_the_page_says_what_was_measured_and_of_which_commit():
    text = page.page([kept(part) for part in FIGURES], "abc1234")
    assert "Commit abc1234. Measured on: NVIDIA H200, 580.1, 16 cores, 2026-11-17." in text
    assert "other work" not in text
    disturbed = page.page([{**kept("loads"), "beside": "a build"}], "abc1234")
    assert "from pinned memory. Meanwhile the machine had other work: a build." in disturbed
    fewer = page.page([kept("loads"), {**kept("nodes"), "cores": 6}], "abc1234")
    assert "should give. On 6 cores.\n" in fewer and "from pinned memory. On 16 cores.\n" in fewer
    assert "| resnet50 tf32 | 0.500 / 1.000 = 0.50 | 2.000 | 5.0e-03 | 5.0e-03 |  |" in text
    assert "| vgg16 f16 |  |  |  |  | PyTorch failed: no memory |" in text
    assert "| 102 MB | 1,862 us | 1,943 us | 96% | 2,289 us | 69.0 us (75.9 us) |" in text
    assert "| basic-pitch | **tf32+1** | 2.0e-03 | 1.6e-01 | no number | 0.500 / 2.000 | 1.000 / 4.000 | 0.500 / 2.000 | 0.250 / 1.000 |" in text
    assert "is 2.0e-03, the bound 0.01. In the geometric mean 1 networks take 0.50 of the time of fp32 and 1.00 of the time of TF32" in text
    assert "- nani: it has strings" in text
    assert "1363 of 1363 are right, 4 more contradict their operator's definition; 260 others" in text
    assert "| EXEC, by our clock | 319.0 us | 350.9 us | 1.250 | 1.500 |" in text
    assert "| all models | major | 77 of 100 | 1, 9 | 5.2, 9.3, 23.6 ms | 25%, 35% | 59% | 193 us |  |" in text
    assert "| `punctual` | 14,500 | 100% | 0.9774 | 0.9909 | 193 us |" in text
    assert "| 1,000/s (100%) | 1,000/s (9.5) | 800/s (9.5) | 990/s (9.5) | 0.990 |\n\nSizes that were added: 12, 6." in text
    assert "Not measured" not in text
    assert "| 500/s (50%) | lenet | 0.7500 (9.3 ms) | 0.9900 (9.3 ms) | 0.8000 (9.3 ms) | 2 |" in text
    assert all(f"```sh\nmeasure {part}\n```" in text for part in FIGURES)


def test_other_commits_are_left_out_and_named():
    found = [kept("loads"), kept("nodes", "old0000"), kept("kernels"), kept("loads", "old0000")]
    assert page.chosen_commit(found) == "abc1234"
    text = page.page(found, "abc1234")
    assert "## Memory" in text and "## Kernels" in text and "## Operators" not in text
    missing = text.split("Not measured at this commit: ")[1]
    assert "Operators (`nodes`)" in missing and "Memory" not in missing


def test_results_of_several_folders_become_a_page(tmp_path, monkeypatch):
    monkeypatch.setenv("PUNCTUAL_COMMIT", "abc1234")
    for folder, wrong in (("one", 3), ("two", 0)):
        results.keep(tmp_path / folder, "kernels", "measure kernels", {"tried": 10, "wrong": wrong})
    results.keep(tmp_path / "one", "nodes", "measure nodes", FIGURES["nodes"])
    output = tmp_path / "page.md"
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(output)])
    page.main()
    text = output.read_text()
    assert "Commit abc1234" in text and "10 candidate kernels were tried, 0 of them wrong" in text and "1363 of 1363" in text
    assert json.loads((tmp_path / "one" / "kernels.json").read_text())["commit"] == "abc1234"


def test_a_commit_of_which_nothing_is_leaves_the_page_as_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PUNCTUAL_COMMIT", "abc1234")
    results.keep(tmp_path / "one", "nodes", "measure nodes", FIGURES["nodes"])
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path / "one"), "--commit", "abc12345678", "--output", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit):
        page.main()
    assert "there are abc1234" in capsys.readouterr().err and not (tmp_path / "page.md").exists()


def test_without_results_nothing_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path), "--output", str(tmp_path / "page.md")])
    with pytest.raises(SystemExit):
        page.main()
    assert "no results in" in capsys.readouterr().err and not (tmp_path / "page.md").exists()
