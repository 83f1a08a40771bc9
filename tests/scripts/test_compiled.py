"""What compiled.py does without PyTorch: processes, caches, results. Workers are small commands in place of compilers."""

import json
import os
import pathlib
import subprocess
import sys
import time

import figures
import pytest
from figures.gpu import compiled
from figures.gpu.compiled import Job, Lock, Pair, run_all


def job(key, code, folder):
    return Job(key, [sys.executable, "-c", code], dict(os.environ), folder / "log")


def never():
    return False


def gone(process_id):
    """Whether a process ends within a while; one that nobody has waited for counts as ended."""
    for _ in range(600):
        stat = pathlib.Path(f"/proc/{process_id}/stat")
        try:
            if stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_every_job_runs_and_its_return_code_comes_back(tmp_path):
    jobs = [job(code, f"print('said', flush=True); raise SystemExit({code})", tmp_path) for code in (0, 3, 0, 7)]
    ended = sorted((key, code) for key, code, _ in run_all(jobs, 2, never))
    assert ended == [(0, 0), (0, 0), (3, 3), (7, 7)]
    # Two write at a time, and a line isn't written at once.
    assert (tmp_path / "log").read_text().count("said") == 4


def test_no_more_run_at_a_time_than_allowed(tmp_path):
    note = f"import os; f = os.open({str(tmp_path / 'notes')!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT); os.write(f, b'+'); os.write(f, b'-')"
    jobs = [job(number, note, tmp_path) for number in range(6)]
    assert len(list(run_all(jobs, 2, never))) == 6
    open_now = most = 0
    for sign in (tmp_path / "notes").read_text():
        open_now += 1 if sign == "+" else -1
        most = max(most, open_now)
    assert open_now == 0 and most <= 2


def test_what_runs_when_time_is_up_is_ended_with_all_that_it_started(tmp_path):
    child = tmp_path / "child"
    long = (
        "import subprocess, sys, time, pathlib\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"pathlib.Path({str(tmp_path / 'part')!r}).write_text(str(p.pid))\n"
        f"pathlib.Path({str(tmp_path / 'part')!r}).rename({str(child)!r})\n"
        "time.sleep(600)"
    )
    jobs = [job("short", "pass", tmp_path), job("long", long, tmp_path), job("never begun", "pass", tmp_path)]
    ended = {}
    # One at a time, so that the third waits behind the second.
    for key, code, _ in run_all(jobs, 1, child.exists):
        ended[key] = code
    assert ended == {"short": 0, "long": None}
    assert gone(int(child.read_text()))


def test_a_lock_is_held_by_one_and_may_be_taken_again_by_it(tmp_path):
    one, other = Lock(tmp_path / "lock"), Lock(tmp_path / "lock")
    with one:
        with one:
            assert not other.try_to_take()
        assert not other.try_to_take()
    assert other.try_to_take()


def test_a_lock_of_a_process_that_was_ended_is_free(tmp_path):
    code = f"from figures.gpu import compiled; import time; lock = compiled.Lock({str(tmp_path / 'lock')!r}); lock.__enter__(); print('held', flush=True); time.sleep(600)"
    holder = subprocess.Popen([sys.executable, "-c", code], cwd=pathlib.Path(figures.__file__).parents[1], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    lock = Lock(tmp_path / "lock")
    assert not lock.try_to_take()
    holder.kill()
    holder.wait()
    assert lock.try_to_take()


def test_pairs_take_turns_batch_by_batch():
    pairs = compiled.pairs_of("resnet50:tf32,bert:f16", "1,8")
    assert [str(pair) for pair in pairs] == ["resnet50 tf32 b1", "bert f16 b1", "resnet50 tf32 b8", "bert f16 b8"]


def test_pairs_have_their_own_graphs_and_share_kernels(tmp_path):
    one, other = (compiled.environment(tmp_path, Pair("bert", "f16", batch), 4) for batch in (1, 8))
    assert one["TORCHINDUCTOR_CACHE_DIR"] != other["TORCHINDUCTOR_CACHE_DIR"]
    assert one["TRITON_CACHE_DIR"] == other["TRITON_CACHE_DIR"]


def fake_job(behaviour):
    """Workers that do what their pair is said to: compile and measure in that many ms, fail, or take for ever."""

    def make(folder, pair, what, _threads):
        does = behaviour[pair]
        if what == "measure":
            code = f"open({str(compiled.time_file(folder, pair))!r}, 'w').write('{does}')"
        elif does == "fails":
            code = "raise SystemExit('no such operator')"
        elif does == "forever":
            code = f"open({str(folder / 'begun')!r}, 'w'); import time; time.sleep(600)"
        else:
            code = f"open({str(compiled.done_file(folder, pair))!r}, 'w')"
        return Job(pair, [sys.executable, "-c", code], dict(os.environ), folder / "inductor" / f"{pair.file_name()}.log")

    return make


def test_what_was_compiled_in_time_is_measured_and_put_beside_ours(tmp_path, capsys):
    ours = [
        {"model": "bert", "precision": "F16", "batch": 1, "ms": 1.0},
        {"model": "bert", "precision": "F16", "batch": 8, "ms": 4.0},
        {"model": "vgg16", "precision": "Tf32", "batch": 1, "ms": 1.0},
        {"model": "vgg16", "precision": "Tf32", "batch": 8, "ms": 1.0},
    ]
    (tmp_path / "results.json").write_text(json.dumps(ours))
    behaviour = {
        Pair("bert", "f16", 1): 2.0,
        Pair("bert", "f16", 8): 2.0,
        Pair("vgg16", "tf32", 1): "fails",
        Pair("vgg16", "tf32", 8): "forever",
    }
    # One at a time, so that all others have ended when the last has begun.
    compiled.beside(tmp_path, "bert:f16,vgg16:tf32,resnet50:f16", "1,8", (tmp_path / "begun").exists, 1, make_job=fake_job(behaviour))
    printed = capsys.readouterr().out
    assert "bert f16 b1: 1.000 / 2.000 compiled = 0.50" in printed
    assert "vgg16 tf32 b1: PyTorch's compiler failed with 1" in printed and "no such operator" in printed
    assert "vgg16 tf32 b8: not compiled after" in printed
    assert "resnet50 f16 b1: not in" in printed
    assert "geometric mean 1.000 of 2, largest 2.000" in printed
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [r.get("compiled_ms") for r in kept] == [2.0, 2.0, None, None]
    # The next call goes on with what is missing, and leaves the rest.
    behaviour.update({Pair("bert", "f16", 1): 9.0, Pair("vgg16", "tf32", 8): 0.5})
    compiled.beside(tmp_path, "bert:f16,vgg16:tf32", "1,8", never, 4, make_job=fake_job(behaviour))
    kept = json.loads((tmp_path / "results.json").read_text())
    assert [r.get("compiled_ms") for r in kept] == [2.0, 2.0, None, 0.5]


def test_a_geometric_mean():
    assert compiled.geometric_mean([0.5, 2.0, 1.0]) == pytest.approx(1.0)
