"""What a LoopHistogram says to Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from paceline.loop_histogram import LoopHistogram

BOUNDS = (0.005, 0.1, 1, 10)
VALUES = (0.0, 0.005, 0.05, 0.1, 0.5, 1.0, 7.0, 10.0, 11.0)


def scraped(kind: type, **bounds: tuple[float, ...]) -> list[str]:
    registry = CollectorRegistry()
    histogram = kind("vllm:wait_seconds", "How long it waits", registry=registry, **bounds)
    for value in VALUES:
        histogram.observe(value)
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_a_loop_histogram_reads_as_prometheus_clients_own():
    assert scraped(LoopHistogram, bounds=BOUNDS) == scraped(Histogram, buckets=BOUNDS)
