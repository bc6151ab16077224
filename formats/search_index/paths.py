"""Paths of search indexes: ``indexes/photos/embedding`` is of a column of ``datasets/photos``.

An index of the values of a column has an ending, ``indexes/photos/year.values``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

SPACE: Final = "indexes/"
VALUES: Final = ".values"
_DATASETS: Final = "datasets/"


def index_folder(dataset: str) -> str:
    """Folder of the indexes of a dataset, which is called by its path; ends with a slash."""
    return f"{SPACE}{dataset.removeprefix(_DATASETS)}/"


def indexes_of(paths: Iterable[str], dataset: str) -> list[str]:
    """Those of `paths` that are of indexes of a dataset, sorted; none of what is no dataset."""
    if not dataset.startswith(_DATASETS):
        return []
    below = index_folder(dataset)
    inside = (each for each in paths if each.startswith(below))
    return sorted(each for each in inside if "/" not in each.removeprefix(below))


def moved_index(path: str, dataset: str) -> str:
    """Path of an index when its dataset is called by another path."""
    return index_folder(dataset) + path.rpartition("/")[2]
