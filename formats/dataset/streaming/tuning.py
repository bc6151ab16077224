"""How is a stream set up, where nobody says?

Every rule stands here, and is decided from what is known before reading: bytes of a batch, cores,
where the data lies. Only requests to a store are found by trying, while it reads
(`fetching.concurrency`). `Stream.tuning` shows what was chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

AHEAD_BATCHES = 4
_LEAST_AHEAD = 2
_AHEAD_BYTES = 256 << 20  # of batches that wait: what a pool keeps
_MOST_WORK_THREADS = 8
_AT_ONCE_BYTES = 16 << 20  # of steps that are gathered together, at most
_AT_ONCE_ROWS = 16384


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was chosen for a stream, by its user or by the rules here.

    Attributes:
        prefetch: batches made ahead.
        work_threads: how many decode and transform; 0 where there is nothing to do.
        fetch_threads: how many load runs; None: requests to a store, as many as it bears.
        steps_at_once: steps that are gathered together.
        kernel: what gathers rows: "native", in C, or "numpy" where that was not built.
    """

    prefetch: int
    work_threads: int
    fetch_threads: int | None
    steps_at_once: int
    kernel: str

    def __str__(self) -> str:
        fetched = "as many requests as the store bears"
        if self.fetch_threads is not None:
            fetched = f"{self.fetch_threads} to load"
        work = f", {self.work_threads} to decode and transform" if self.work_threads else ""
        return (
            f"threads: {fetched}{work}; {self.prefetch} batches ahead; {self.steps_at_once} steps "
            f"gathered at once by the {self.kernel} kernel"
        )


def batches_ahead(batch_bytes: int) -> int:
    """How many batches are made ahead: fewer where they are large."""
    return max(_LEAST_AHEAD, min(AHEAD_BATCHES, _AHEAD_BYTES // max(1, batch_bytes)))


def usual_work_threads(cores: int | None) -> int:
    """How many threads decode and transform."""
    return min(_MOST_WORK_THREADS, cores or 1)


def load_threads(*, in_place: bool) -> int:
    """How many threads load runs of a local disk."""
    # One thread verifies what lies in place faster than another gathers.
    return 1 if in_place else 4


def steps_at_once(own_rows: int, item_bytes: int) -> int:
    """How many steps of `own_rows` rows are gathered together: what a call costs is shared."""
    own_rows = max(1, own_rows)
    step_bytes = own_rows * item_bytes
    return max(1, min(_AT_ONCE_BYTES // max(1, step_bytes), _AT_ONCE_ROWS // own_rows))
