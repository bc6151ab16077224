"""What can be asked of a stream, and what does it tell afterwards?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from tensorrepo.formats.dataset.streaming import checks
from tensorrepo.formats.dataset.streaming.batching.badsamples import OnError
from tensorrepo.formats.dataset.streaming.batching.batch import Batch
from tensorrepo.formats.dataset.streaming.batching.decode import Decode
from tensorrepo.formats.dataset.streaming.batching.outputs import OUTPUTS, Output, pins
from tensorrepo.formats.dataset.streaming.fetching.fetchstats import FetchStats
from tensorrepo.formats.dataset.streaming.ordering.schedule import Last, Share
from tensorrepo.formats.native.rows import BEST
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.pagecache import PageCache

Transform = Callable[[Batch], Any]
Workers = Literal["thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How batches are made; `stream.stream` says what each of these means."""

    batch_size: int
    rank: int
    world: int
    replicate: int
    last: Last
    output: Output
    pad: float | None
    transform: Transform | None
    prefetch: int
    threads: int | None
    work_threads: int
    ahead_bytes: int
    clock: Callable[[], float]
    pin: bool | None = None
    workers: Workers = "thread"
    remake: Callable[..., Any] | None = None
    on_error: OnError = "raise"
    images: Mapping[str, Decode] = field(default_factory=dict)
    page_cache: PageCache | None = None

    def __post_init__(self) -> None:
        if self.output not in OUTPUTS:
            raise InvalidInputError(f"output is one of {', '.join(OUTPUTS)}, got {self.output!r}")
        if self.last not in get_args(Last):
            raise InvalidInputError(f"last is 'short', 'drop' or 'pad', got {self.last!r}")
        checks.function("transform", self.transform)
        if self.pin is not None:
            checks.truth("pin", self.pin)
        if self.world % self.replicate:
            raise InvalidInputError(
                f"replicate={self.replicate} ranks cannot have the same share in a world of "
                f"{self.world}: it has to divide it."
            )
        threads = 1 if self.threads is None else self.threads
        if self.prefetch < 0 or self.ahead_bytes < 1 or threads < 1:
            raise InvalidInputError(
                "prefetch is at least 0, ahead_bytes and threads are at least 1, got "
                f"{self.prefetch}, {self.ahead_bytes} and {self.threads}"
            )
        if self.on_error not in ("raise", "skip") and not callable(self.on_error):
            raise InvalidInputError(
                f"on_error is 'raise', 'skip' or a function, got {self.on_error!r:.80}"
            )
        if self.images and self.output == "arrow":
            raise InvalidInputError(
                "images are decoded to arrays: output is 'numpy', 'torch' or 'jax'"
            )
        if self.workers not in get_args(Workers):
            raise InvalidInputError(f"workers is 'thread' or 'process', got {self.workers!r}")
        if self.workers == "process" and self.remake is None:
            raise InvalidInputError(
                "workers='process' opens the dataset once more in another process, and this one "
                "belongs to no repository with a URL: use workers='thread'"
            )
        self.share(0)
        pins(self.pin, self.output)

    @property
    def pins(self) -> bool:
        """Whether tensors are handed out in pinned memory."""
        return pins(self.pin, self.output)

    def share(self, start: int, turn: int = 0, turns: int = 1) -> Share:
        """What this rank reads from position `start` on, as one of `turns` workers."""
        alike = self.replicate
        if not 0 <= self.rank < self.world:
            raise InvalidInputError(f"rank is in [0, world), got {self.rank} of {self.world}")
        return Share(
            self.batch_size, self.rank // alike, self.world // alike, start, self.last, turn, turns
        )


@dataclass(slots=True)
class StreamStats(FetchStats):
    """What an iteration did up to now, and what it asked of a store (see `FetchStats`).

    Each number is written by one thread, or behind a lock.

    Attributes:
        batches: made.
        rows: in them.
        runs: read, verified and decoded.
        run_bytes: their decoded bytes.
        plan_seconds: that the thread which makes batches waited for the order to be worked out.
        fetch_seconds: that it waited for runs.
        gather_seconds: that it brought rows together.
        idle_seconds: that it waited for the consumer, with `prefetch` batches ready.
        decode_seconds: in decoding images, of all threads together.
        transform_seconds: in the transform, of all threads together.
        waited_seconds: that the consumer waited for batches.
        skipped: rows that were left out, by what was bad: "image" or "page".
        replaced: rows for which `on_error` gave something else, likewise.
        bad: the first few of both: row id, column and reason.
        kernel: what gathers rows: "native", in C, or "numpy" where that was not built.
    """

    batches: int = 0
    rows: int = 0
    runs: int = 0
    run_bytes: int = 0
    plan_seconds: float = 0.0
    fetch_seconds: float = 0.0
    gather_seconds: float = 0.0
    idle_seconds: float = 0.0
    decode_seconds: float = 0.0
    transform_seconds: float = 0.0
    waited_seconds: float = 0.0
    skipped: dict[str, int] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)
    bad: list[str] = field(default_factory=list)
    kernel: str = BEST.name
