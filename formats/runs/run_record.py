"""Run record: parameters, inputs, outputs and metric summaries of one run.

The document is written anew while the run goes on, at the ref ``runs/<name>/record``. Its `id`
stays: lineage names the run by it. The points of metrics lie in objects of their own.

Source:
    docs/spec/run.md, section "Document".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.canonical import check_sorted, decode_canonical, encode_canonical
from tensorrepo.formats.common.provenance import ProvenanceEdge, check_edge
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import (
    DIGEST_BYTES,
    Buffer,
    Digest,
    digest_bytes,
    digest_from_bytes,
    parse_digest,
)
from tensorrepo.repo.json_rules import check_json

VERSION: Final = 1
RUNS: Final = "runs/"
SYSTEM: Final = "system/"  # names of metrics about the machine begin with it
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"
STATUSES: Final = (RUNNING, FINISHED, FAILED, INTERRUPTED)
MAX_EDGES: Final = 4096
MAX_METRICS: Final = 4096
MAX_ATTEMPTS: Final = 50
_RUN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_MAX_NAME: Final = 256


class Code(msgspec.Struct, frozen=True):
    """The code that ran: a commit of a git checkout, and whether files there differed from it."""

    commit: str
    dirty: bool
    script: str | None = None


class RunAttempt(msgspec.Struct, frozen=True):
    """From one start of the run to its end, or to its next start.

    Attributes:
        started_ns: UTC.
        code: None where it was not a git checkout.
        environment: JSON: Python, packages, machine.
    """

    started_ns: int
    code: Code | None = None
    environment: dict[str, Any] = {}


class RunOutput(msgspec.Struct, frozen=True, array_like=True):
    """What the run wrote: the entry at `path` in `commit`."""

    path: str
    digest: str
    commit: str


class MetricPoint(msgspec.Struct, frozen=True, array_like=True):
    """A value of a metric, and the step that it is of."""

    step: int
    value: float


class Metric(msgspec.Struct, frozen=True):
    """All points of a metric in short. `min` and `max` are of finite values, the first of equals;
    None where no value is finite.
    """

    name: str
    points: int
    not_finite: int
    last: MetricPoint
    min: MetricPoint | None = None
    max: MetricPoint | None = None


class RunDocument(msgspec.Struct, frozen=True):
    """A run.

    Attributes:
        id: 64 hex digits, drawn when the run began.
        status: one of `STATUSES`.
        written_ns: when this was written, UTC.
        due_ns: while it is running, it is written anew before this.
        error: what ended it, where it failed.
        params: JSON values by name.
        attempts: the first start, and each that went on with the run.
        inputs: what it read.
        outputs: what it wrote, in that order.
        metrics: sorted by name.
        chunks: the objects with the points, in the order of time.
    """

    name: str
    id: str
    status: str
    author: str
    started_ns: int
    written_ns: int
    due_ns: int
    ended_ns: int | None = None
    error: str | None = None
    params: dict[str, Any] = {}
    attempts: tuple[RunAttempt, ...] = ()
    inputs: tuple[ProvenanceEdge, ...] = ()
    outputs: tuple[RunOutput, ...] = ()
    metrics: tuple[Metric, ...] = ()
    chunks: tuple[bytes, ...] = ()
    version: int = VERSION

    def links(self) -> tuple[Digest, ...]:
        """The objects that the document's object must link to."""
        return tuple(sorted({digest_from_bytes(chunk) for chunk in self.chunks}))

    def points_in(self) -> tuple[Digest, ...]:
        """The objects of points, in the order of time."""
        return tuple(digest_from_bytes(chunk) for chunk in self.chunks)

    def metric(self, name: str) -> Metric | None:
        return next((one for one in self.metrics if one.name == name), None)


def encode_run(run: RunDocument) -> bytes:
    """Payload of a run's object. Raises InvalidInputError."""
    check_run(run)
    return encode_canonical(run, "run")


def decode_run(payload: Buffer, digest: Digest) -> RunDocument:
    """The run in the payload of object `digest`. Errors: `decode_canonical`."""
    return decode_canonical(payload, RunDocument, f"run {digest:.12}", check_run, version=VERSION)


def check_run_name(name: str) -> str:
    """`name`, when it may name a run. Raises InvalidInputError."""
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise InvalidInputError(
            f"run {name!r:.80}: expected letters, digits, '.', '_' and '-', not starting with '.' "
            "or '-', such as 'exp1'"
        )
    return name


def check_metric_name(name: str) -> str:
    """`name`, when it may name a metric or a parameter. Raises InvalidInputError."""
    if not isinstance(name, str) or not 0 < len(name) <= _MAX_NAME or not name.isprintable():
        raise InvalidInputError(
            f"name {name!r:.80}: expected 1 to {_MAX_NAME} printable characters, such as 'loss'"
        )
    return name


def check_run(run: RunDocument) -> None:
    """Whether its parts fit together. Raises InvalidInputError."""
    check_run_name(run.name)
    parse_digest(run.id)
    if run.status not in STATUSES:
        raise InvalidInputError(f"status {run.status!r:.40}: expected one of {', '.join(STATUSES)}")
    if (run.ended_ns is None) != (run.status == RUNNING):
        raise InvalidInputError(f"a run that is {run.status} has {run.ended_ns} for its end")
    for edge in run.inputs:
        check_edge(edge)
    for made in run.outputs:
        parse_digest(made.digest)
        parse_digest(made.commit)
    check_json(run.params, "params")
    for attempt in run.attempts:
        check_json(attempt.environment, "environment")
    _check_metrics(run.metrics)
    if any(len(chunk) != DIGEST_BYTES for chunk in run.chunks):
        raise InvalidInputError(f"digests of points have {DIGEST_BYTES} bytes")


def new_attempt(
    started_ns: int,
    code: Code | None,
    environment: dict[str, Any],
    earlier: tuple[RunAttempt, ...] = (),
) -> tuple[RunAttempt, ...]:
    """The attempts of a run that starts now; of many earlier ones the first and the newest."""
    if len(earlier) >= MAX_ATTEMPTS:
        earlier = (earlier[0], *earlier[2 - MAX_ATTEMPTS :])
    return (*earlier, RunAttempt(started_ns, code, environment))


def chunk_names(digests: Iterable[Digest]) -> tuple[bytes, ...]:
    """Digests as the document holds them."""
    return tuple(digest_bytes(digest) for digest in digests)


def _check_metrics(metrics: tuple[Metric, ...]) -> None:
    check_sorted("metric", [metric.name for metric in metrics])
    for metric in metrics:
        check_metric_name(metric.name)
        bounded = metric.points > metric.not_finite
        sane = all(at is not None and math.isfinite(at.value) for at in (metric.min, metric.max))
        empty = metric.min is None and metric.max is None
        if not 0 <= metric.not_finite <= metric.points or not (sane if bounded else empty):
            raise InvalidInputError(f"metric {metric.name!r:.80}: its numbers are at odds")
