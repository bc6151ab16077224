"""Check of the log: every record from the first, chained to `repo.json`, past all that is derived.

Opening begins at the newest checkpoint, and history is read from segments, so a damaged record of
long ago is met by nobody else.

Source:
    docs/spec/log.md, section "Chain".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import RepositoryLog

WINDOW: Final = 256  # slots read at once: at most 16 MiB


def damaged_records(log: RepositoryLog) -> Iterator[tuple[int, str]]:
    """Generation and problem of each slot that is no record of its place.

    A record whose bytes were changed without breaking its form is told by the one behind it, which
    names their digest.
    """
    head = log.refresh().generation
    previous: Digest | None = log.digest_of(0)
    for start in range(1, head + 1, WINDOW):
        stop = min(start + WINDOW, head + 1)
        try:
            values = log.slots.run(start, stop)
        except CorruptError as error:
            yield start, str(error)
            return
        if len(values) < stop - start:
            gen = start + len(values)
            yield gen, f"{log.backend.url}: log record {gen} is missing although a later one exists"
            return
        for gen, data in enumerate(values, start):
            try:
                previous = log.slots.parse(gen, previous, data).digest
            except CorruptError as error:
                yield gen, str(error)
                previous = None  # what it was is not known any more
