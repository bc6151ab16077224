"""Metrics for Prometheus: requests by route, bytes, time, event streams.

Labels are templates of routes, never paths: names of repositories and digests would be without
end. Several processes share files in a folder, which the parent names before any of them starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from tensorrepo.repo.deferred_dataclass import dataclass

MEDIA_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)


@dataclass(frozen=True, slots=True)
class Metrics:
    """What one application counts; `text` is all of it."""

    registry: CollectorRegistry
    requests: Counter
    seconds: Histogram
    sent: Counter
    received: Counter
    running: Gauge
    streams: Gauge
    shared: Path | None = None

    def text(self) -> bytes:
        """What is scraped: of all processes, where several share a folder."""
        if self.shared is None:
            return generate_latest(self.registry)
        joined = CollectorRegistry()
        MultiProcessCollector(joined, path=str(self.shared))  # type: ignore[no-untyped-call]
        return generate_latest(joined)


def make_metrics(shared: Path | None = None) -> Metrics:
    """New ones, at zero; `shared` is the folder of several processes."""
    registry = CollectorRegistry()
    labels = ("method", "route")
    return Metrics(
        registry,
        Counter(
            "tensorrepo_requests", "Requests answered.", (*labels, "status"), registry=registry
        ),
        Histogram(
            "tensorrepo_request_seconds", "From the first byte of a request to the last of its "
            "answer, without event streams.", labels, buckets=_SECONDS, registry=registry,
        ),
        Counter("tensorrepo_sent_bytes", "Bytes of answers.", labels, registry=registry),
        Counter("tensorrepo_received_bytes", "Bytes of bodies.", labels, registry=registry),
        Gauge(
            "tensorrepo_running_requests", "Requests under way.", registry=registry,
            multiprocess_mode="livesum",
        ),
        Gauge(
            "tensorrepo_event_streams", "Open event streams.", registry=registry,
            multiprocess_mode="livesum",
        ),
        shared,
    )  # fmt: skip
