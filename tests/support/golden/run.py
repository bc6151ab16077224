"""The run whose bytes are kept in tests/golden/run: one of everything that version 1 writes.

`python -m tests.support.golden.run` writes the files anew, which changes the stored format.
"""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.common.provenance import TRAINED_ON, USED, ProvenanceEdge
from tensorrepo.formats.runs.metrics import MetricPoints, encode_points
from tensorrepo.formats.runs.run_record import (
    FAILED,
    Code,
    Metric,
    MetricPoint,
    RunAttempt,
    RunDocument,
    RunOutput,
    chunk_names,
    encode_run,
)
from tensorrepo.repo.objects.envelope import Kind
from tests.support.architecture.sources import ROOT
from tests.support.builders.objects import MemoryObjects

GOLDEN = ROOT / "tests/golden/run"
POINTS = {
    "accuracy": MetricPoints(np.array([10]), np.array([0.5]), np.array([1_700_000_000_100])),
    "loss": MetricPoints(
        np.array([0, 1, 2, 1]),
        np.array([2.5, np.nan, -np.inf, 0.1]),
        np.array([1_700_000_000_000, 1_700_000_000_050, 1_700_000_000_051, 1_700_000_000_050]),
    ),
}


def golden_objects() -> dict[str, bytes]:
    """File name and stored bytes of the run's objects."""
    objects = MemoryObjects()
    chunk = objects.put(Kind.METRICS, encode_points(POINTS))
    run = golden_run(objects)
    link = objects.put(Kind.RUN, encode_run(run), run.links())
    return {
        "metrics.bin": objects.stored[chunk.digest],
        "run.bin": objects.stored[link.digest],
    }


def golden_run(objects: MemoryObjects) -> RunDocument:
    chunk = objects.put(Kind.METRICS, encode_points(POINTS))
    return RunDocument(
        name="exp1",
        id="a" * 64,
        status=FAILED,
        author="Ada <ada@example.org>",
        started_ns=1_700_000_000_000_000_000,
        written_ns=1_700_000_001_000_000_000,
        due_ns=1_700_000_001_000_000_000,
        ended_ns=1_700_000_001_000_000_000,
        error="ValueError: no",
        params={"lr": 1e-3, "layers": [1, 2], "name": "ü", "nothing": None},
        attempts=(
            RunAttempt(
                1_700_000_000_000_000_000, Code("b" * 40, True, "train.py"), {"python": "3.11"}
            ),
            RunAttempt(1_700_000_000_500_000_000),
        ),
        inputs=(
            ProvenanceEdge(
                TRAINED_ON, "datasets/x", "1" * 64, "2" * 64, {"seed": 7, "position": 4096}
            ),
            ProvenanceEdge(USED, "https://example.org/a.csv", ""),
        ),
        outputs=(RunOutput("models/m", "3" * 64, "4" * 64),),
        metrics=(
            Metric(
                "accuracy", 1, 0, MetricPoint(10, 0.5), MetricPoint(10, 0.5), MetricPoint(10, 0.5)
            ),
            Metric("loss", 4, 2, MetricPoint(1, 0.1), MetricPoint(1, 0.1), MetricPoint(0, 2.5)),
        ),
        chunks=chunk_names([chunk.digest]),
    )


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, data in golden_objects().items():
        (GOLDEN / name).write_bytes(data)
