"""Error policy for rows that cannot be used: raised, left out, or replaced.

Which rows a step has was decided by the plan, so ranks never drift apart: a step only gets smaller.
Whatever is left out is counted by its cause, the first ones are named, and the end of the iteration
says so in the log.

Transforms are another matter: one that fails has a fault, or is given what it was not made for,
and no row can be blamed for what is done to a whole batch. So what it raises is always raised.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any, Literal

from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.stats import StreamStats
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError

Cause = Literal["image", "page"]
OnBadRow = Literal["raise", "skip"] | Callable[[Error, str], Any]

_NAMED = 10  # bad samples that are remembered one by one
_COUNTING = Lock()  # of all streams: bad rows are rare
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """Decides about the bad rows of one iteration, and counts them. Thread-safe.

    Attributes:
        on_error: "raise", "skip", or called with the error and the row's id, by any thread: what
            it returns replaces the row's value, None leaves the row out.
        stats: counts of bad rows, in which others may count at the same time.
    """

    on_error: OnBadRow
    stats: StreamStats

    def replacement(
        self,
        error: Error,
        batch: Batch,
        at: int,
        *,
        cause: Cause,
        column: str | None = None,
        use: Callable[[Any], None] | None = None,
    ) -> Any:
        """What is used for row `at` of a batch instead; None: leave it out.

        `use` takes what the function gave before it counts as a replacement.

        Raises:
            CorruptError: bad rows are to end the stream.
            InvalidInputError: a replacement that cannot be used, or for what cannot be replaced.
        """
        row, row_id = int(batch.rows[at]), format_row_id(batch.row_ids[at])
        where = row_id if column is None else f"{row_id}, column {column!r}"
        if self.on_error == "raise":
            raise CorruptError(
                f"row {row} (id {where}): {error}. on_error='skip' leaves such rows out and counts "
                "them."
            ) from error
        substitute = self._asked(error, row, row_id, column)
        if substitute is not None and cause == "page":
            raise InvalidInputError(
                f"on_error gave a replacement for row {row} (id {row_id}), but all of its page "
                f"is missing ({error}): only None, which leaves the row out, is possible there"
            )
        if substitute is not None and use is not None:
            try:
                use(substitute)
            except (CorruptError, InvalidInputError) as wrong:
                raise InvalidInputError(
                    f"row {row} (id {where}): what on_error gave for it cannot be used either: "
                    f"{wrong}. The row itself: {error}"
                ) from wrong
        with _COUNTING:
            counts = self.stats.skipped if substitute is None else self.stats.replaced
            counts[cause] = counts.get(cause, 0) + 1
            if len(self.stats.bad) < _NAMED:
                self.stats.bad.append(f"{where}: {error}")
        return substitute

    def _asked(self, error: Error, row: int, row_id: str, column: str | None) -> Any:
        """What the user's function gives; None where there is none."""
        if not callable(self.on_error):
            return None
        try:
            return self.on_error(error, row_id)
        except Exception as raised:
            place = "" if column is None else f", column {column!r}"
            raised.add_note(f"raised by on_error, for row {row} (id {row_id}{place}): {error}")
            raise

    def check_left(self, left: int, rows: int, position: int) -> None:
        """Raises CorruptError where nothing is left of a step's rows on this rank."""
        if left:
            return
        raise CorruptError(
            f"no row is left of the step that ends at position {position}: all {rows} rows of this "
            f"rank were bad. The first bad row of this pass was {self.stats.bad[0]}"
        )


def report(stream: str, stats: StreamStats) -> None:
    """Say in one line of the log what was left out or replaced; nothing where nothing was."""
    if stats.bad:
        _LOGGER.warning(
            "%s: bad rows left out: %s; replaced: %s. stats().bad names the first ones: %s",
            stream,
            _sentence(stats.skipped),
            _sentence(stats.replaced),
            stats.bad[0],
        )


def _sentence(counts: dict[str, int]) -> str:
    listed = [f"{count:,} ({cause})" for cause, count in sorted(counts.items())]
    return ", ".join(listed) or "none"
