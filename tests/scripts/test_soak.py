"""How the soak judges."""

import math

from figures.soak import __main__ as soak


def samples(*mebibytes):
    return [{"rss_mib": value} for value in mebibytes]


def report(requests=1000, successes=1000, refused=0, errors=0, p99=10.0):
    return {"requests": requests, "successes": successes, "refused": refused, "errors": errors, "latency_ms": {"p99": p99}}


def test_memory_is_flat_if_it_grows_in_the_first_tenth_only():
    assert soak.flatness(samples(*range(10), *[100] * 90)) == 1
    assert soak.flatness(samples(*[50] * 10, *[100] * 40, 900, *[100] * 49)) == 1, "a body that is inflated isn't growth"


def test_memory_that_grows_is_seen():
    assert soak.flatness(samples(*[100 + index / 10 for index in range(100)])) > 1.05
    assert soak.flatness(samples(*[100] * 50, *[110] * 30, *[100] * 20)) == 1.1, "also if it shrinks again"


def test_requests_without_an_answer_in_time_count_with_the_slow_ones():
    assert soak.p99([report(p99=3), report(p99=5)]) == 5
    assert soak.p99([report(successes=990, refused=10)]) == 10
    assert soak.p99([report(successes=989, refused=11)]) == math.inf


def test_counts_must_add_up_on_both_sides():
    assert soak.unaccounted([report(), report(successes=900, refused=60, errors=40)], 50, 2050) == (0, 0)
    assert soak.unaccounted([report(successes=998)], 0, 1000) == (2, 0)
    assert soak.unaccounted([report()], 0, 999) == (0, 1)


def test_every_criterion_that_fails_fails_the_soak():
    good = dict(requests=1000, descriptors=10, threads=5, held_bytes=0, in_flight=0, violations=0)
    before = {**good, "requests": 0}

    def failed(loud=None, after=None, code=0, flat=True):
        taken = samples(*[100] * 100) if flat else samples(*range(100, 200))
        found = soak.figures([report()], [loud or report()], before, after or good, taken, code, True)
        return [figure.name for figure in found if figure.verdict == "SHORT OF IT"]

    assert failed() == []
    assert failed(loud=report(p99=16)) == ["p99 of the good clients / of the quiet run"]
    assert failed(loud=report(successes=999)) == ["good clients' requests without an outcome"]
    assert failed(loud=report(successes=999, errors=1)) == ["good clients' errors"]
    assert failed(after={**good, "descriptors": 11}) == ["descriptors more than before the hostile clients"]
    assert failed(after={**good, "requests": 1001}) == ["good clients' requests that the server counts otherwise"]
    assert failed(after={**good, "held_bytes": 1}) == ["bytes held when they are gone"]
    assert failed(after={**good, "in_flight": 1}) == ["requests in flight when they are gone"]
    assert failed(after={**good, "violations": 1}) == ["broken invariants"]
    assert failed(code=75) == ["exit code"]
    assert failed(flat=False) == ["largest tenth's memory / second tenth's"]
