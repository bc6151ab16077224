"""Purged rows, columns and tensors, as who asks for one by its name is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from tensorrepo.formats.dataset.metadata.row_ids import RUN, format_row_id, ids_of_runs, row_ids
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import PurgedError

_WHY: Final = "It was erased from all history; `tensorrepo purge --list` tells by whom, and why."


def refuse_purged_parts(
    core: RepositoryCore, path: str, names: Iterable[str], what: str = "column"
) -> None:
    """Raise PurgedError where one of `names` is a column, or a tensor, purged of an entry."""
    parts = (core.log.latest or core.log.refresh()).state.purged_columns.get(path, {})
    for name in names:
        if name in parts.values():
            raise PurgedError(f"{what} {name!r} of {path} was purged. {_WHY}")


def refuse_purged_rows(core: RepositoryCore, ids: Sequence[str]) -> None:
    """Raise PurgedError where one of `ids` is that of a row that was purged."""
    state = (core.log.latest or core.log.refresh()).state
    wanted = row_ids(ids)
    for listed in state.purged_rows:
        purged = ids_of_runs(np.frombuffer(core.objects.get(listed).payload, RUN))
        if len(found := wanted[np.isin(wanted, purged)]):
            raise PurgedError(f"row {format_row_id(found[0])} was purged. {_WHY}")
