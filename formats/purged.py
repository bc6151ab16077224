"""Purged rows, columns and tensors, as who asks for one by its id or its name is told."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.row_ids import (
    ROW_ID_TEXT,
    RUN,
    format_row_id,
    ids_of_runs,
    row_ids,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, PurgedError
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import ObjectSource

_WHY: Final = "It was erased from all history; `tensorrepo purge --list` tells by whom, and why."
_MOST_IDS: Final = 10_000  # of a text that are looked for


@runtime_checkable
class KnowsPurges(Protocol):
    """A source of objects that knows the state which its log tells."""

    def standing(self) -> State | None:
        """The state, where anything was purged or superseded."""


def _state(objects: ObjectSource) -> State:
    found = objects.standing() if isinstance(objects, KnowsPurges) else None
    return found or State()


def refuse_purged_parts(
    objects: ObjectSource, path: str, names: Iterable[str], what: str = "column"
) -> None:
    """Raise PurgedError where one of `names` is a column, or a tensor, purged of an entry."""
    parts = _state(objects).purged_columns.get(path, {})
    for name in names:
        if name in parts.values():
            raise PurgedError(f"{what} {name!r} of {path} was purged. {_WHY}")


def refuse_purged_rows(objects: ObjectSource, ids: Sequence[Any] | NDArray[Any]) -> None:
    """Raise PurgedError where one of `ids` is that of a row that was purged."""
    state = _state(objects)
    wanted = row_ids(ids) if state.purged_rows else None
    for listed in state.purged_rows if wanted is not None else ():
        purged = ids_of_runs(np.frombuffer(objects.get(listed).payload, RUN))
        if wanted is not None and len(found := wanted[np.isin(wanted, purged)]):
            raise PurgedError(f"row {format_row_id(found[0])} was purged. {_WHY}")


def refuse_purged_words(objects: ObjectSource, text: str) -> None:
    """Raise PurgedError where a text, such as a query, names the id of a row that was purged."""
    if _state(objects).purged_rows:
        found = (each for each in ROW_ID_TEXT.finditer(text) if not int(each[2]) >> 32)
        ids = dict.fromkeys(each[0] for each in islice(found, _MOST_IDS))
        refuse_purged_rows(objects, [*ids])


@contextmanager
def telling_purged(
    objects: ObjectSource, paths: Iterable[str], asked: Iterable[str]
) -> Iterator[None]:
    """Make a PurgedError of an error about a column that was purged.

    Args:
        objects: where the datasets are.
        paths: paths of the datasets, looked at when there is an error.
        asked: what may name the column: names, conditions, queries.
    """
    try:
        yield
    except (NotFoundError, InvalidInputError) as error:
        texts = list(asked)
        purged = _state(objects).purged_columns
        told = str(error).partition("\n")[0]  # behind it stands what was asked
        for path in paths if purged else ():
            for name in purged.get(path, {}).values():
                if _names(told, name) and any(_names(text, name) for text in texts):
                    raise PurgedError(f"column {name!r} of {path} was purged. {_WHY}") from error
        raise


def _names(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None
