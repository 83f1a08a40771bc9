"""What gpu.serve reads of a server's metrics, without a server."""

from figures.common import Metrics
from figures.gpu import serve

BEFORE = """
punctual_device_busy_seconds_total{action="execution"} 1
punctual_requests_total{outcome="success"} 90
punctual_requests_total{outcome="late"} 10
punctual_cold_starts_total 10
nv_inference_count 90
"""
AFTER = """
punctual_device_busy_seconds_total{action="execution"} 3
punctual_requests_total{outcome="success"} 180
punctual_requests_total{outcome="late"} 20
punctual_cold_starts_total 60
nv_inference_count 185
punctual_prediction_error_seconds_bucket{action="execution",direction="over",le="0.0001"} 50
punctual_prediction_error_seconds_bucket{action="execution",direction="over",le="0.0002"} 100
punctual_prediction_error_seconds_bucket{action="execution",direction="over",le="+Inf"} 100
punctual_prediction_error_seconds_count{action="execution",direction="over"} 100
"""


def test_what_the_server_says_of_a_while_is_kept_as_figures(monkeypatch):
    texts = iter([Metrics(BEFORE), Metrics(AFTER)])
    monkeypatch.setattr(serve, "look", lambda _: next(texts))
    clock = iter([0.0, 4.0])
    monkeypatch.setattr(serve.time, "monotonic", lambda: next(clock))
    figures = serve.Seen(None).end()
    assert (figures["busy"], figures["cold"], figures["executed"], figures["good"]) == (0.5, 0.5, 95, 90)
    assert figures["predictions"]["load"] is None
    off = figures["predictions"]["execution"]
    assert abs(off["p50"] - 1e-4) < 1e-9 and abs(off["p99"] - 1.98e-4) < 1e-9
