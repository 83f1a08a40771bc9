"""What gpu.ready makes and reads, without a GPU."""

import pytest
from figures.gpu import ready, widths


def test_a_hundred_models_are_a_hundred_different_ones():
    made = widths.variants(100)
    assert len({name for name, _, _ in made}) == len({(network, step) for _, network, step in made}) == 100
    assert [network for _, network, _ in made[:5]] == list(widths.FAMILIES)
    with pytest.raises(SystemExit):
        widths.variants(101)


def test_widths_go_from_half_to_all_and_never_back():
    wide = [widths.scaled(512, step, 1) for step in range(widths.STEPS)]
    assert (wide[0], wide[-1]) == (268, 512) and wide == sorted(set(wide))
    assert widths.scaled(3, 0) == 8


def test_a_profile_is_read_by_model_and_batch_size():
    text = """# cuda, NVIDIA H200, 132 multiprocessors of it, fp16; 300 runs, 1 loads
model,share,weights_mb,load_ms,load_p99_ms,b1_ms,b1_device_ms,b1_beside_ms,b1_p99_ms,b1_p9999_ms,b2_ms,b2_device_ms,b2_beside_ms,b2_p99_ms,b2_p9999_ms
a,1,51.0,1.0,1.1,0.36,0.2900,0.03,0.4,0.5,0.4,,0.03,0.5,0.6
"""
    assert ready.executions(text) == {"a": {"precision": "fp16", "ms": {"1": 0.29}}}


def test_a_model_is_tuned_when_its_last_line_says_nothing_of_later():
    first = '2026-11-18T02:00:00Z  INFO models::bring_up: ready model="a" version=1 load=1ms better_later=true'
    other = first.replace('"a"', '"ab"')
    then = first.replace(" better_later=true", "")
    assert ready.readies("\n".join([first, other]), "a") == [True]
    assert ready.readies("\n".join([first, other, then]), "a") == [True, False]
    assert ready.readies(other, "a") == []
