"""Models that a new one may be stored against: what it takes the place of, and what lies near."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice
from typing import Final

from tensorrepo.repo.history.trees import Entry, nearby
from tensorrepo.repo.objects.envelope import Kind, ObjectSource

_STAGED: Final = 64  # entries of the next commit that a new model may be stored against


def near_models(
    objects: ObjectSource, tree: bytes, staged: Sequence[Entry | None], path: str
) -> list[Entry]:
    """The likeliest bases first: so many at most, however many models the commit has.

    The one that it takes the place of, what was staged last, and what lies about it in the tree.

    Args:
        objects: objects of the tree.
        tree: root page of the commit to build on.
        staged: entries of the next commit whose objects are sure to stay, the newest last.
        path: path of the new model.
    """
    committed = nearby(objects, tree, path)
    last = (entry for entry in islice(reversed(staged), _STAGED))
    found = chain(
        (entry for name, entry in committed if name == path),
        (entry for entry in last if entry is not None),
        (entry for _, entry in committed),
    )
    models = dict.fromkeys(entry for entry in found if entry.kind is Kind.MODEL)
    return [entry for entry in models if entry.storage is not None]
