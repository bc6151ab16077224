"""What is the newest record, and what do the records add up to?

The log is a sequence of create-only slots, each chained to the bytes of the one before. It is the
only truth about refs. Everything else beside it (hint, checkpoints, segments) makes reading it
faster and may be lost, late or wrong at any time.

    repo.json                      what record 1 chains to
    log/<gen:020d>.json            record number gen
    log/checkpoint/<gen:020d>.json the fold of the records before gen
    log/segment/<gen:020d>         the records up to gen, verbatim
    log/void/<gen:020d>.json       says that slot gen is no record and counts as an empty one
    log/hint                       a lower bound of the newest generation

Source:
    docs/spec/log.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.state import State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tensorrepo.repo.backends.base import Backend
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.records import Record, Update


@dataclass(frozen=True, slots=True)
class View:
    """The repository after record `generation`.

    `digest` names the bytes of that slot; for generation 0, of `repo.json`.
    """

    generation: int
    digest: Digest
    state: State


class Log:
    """The log of one repository. Thread-safe; picklable (caches stay behind)."""

    def __init__(
        self,
        backend: Backend,
        identity: bytes,
        read_bulk: Callable[[Digest], tuple[Update, ...]],
        *,
        pending: Path | None = None,
        memory: Path | None = None,
        segment_records: int = 4096,
        cache_bytes: int = 8 << 20,
        workers: int | None = None,
    ) -> None:
        """Nothing is read yet.

        Args:
            backend: where it lies.
            identity: all bytes of `repo.json`.
            read_bulk: `decode_ref_updates` of the payload of that ref-updates object.
            pending: folder of the workspace where unresolved transactions are written down.
            memory: folder where this client remembers how far it read, to notice a rewind.
            segment_records: length of a segment; 4,096 but for tests.
            cache_bytes: how many bytes of records to keep.
            workers: reads in flight; None chooses by the backend (1 on a local disk).
        """
        raise NotImplementedError

    def refresh(self) -> View:
        """The newest view. Cheap when nothing happened: probes forward from the last one."""
        raise NotImplementedError

    @property
    def latest(self) -> View | None:
        """The newest view that this object has seen, without reading anything."""
        raise NotImplementedError

    def record(self, gen: int) -> Record:
        raise NotImplementedError

    def records(self, start: int, stop: int) -> Iterator[Record]:
        """Records ``[start, stop)``, their chain verified."""
        raise NotImplementedError

    def view_at(self, gen: int) -> View:
        raise NotImplementedError
