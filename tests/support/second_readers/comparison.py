"""What the second reader finds in a dataset, against what the first one does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
from blake3 import blake3

from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.formats.dataset.schema.schema import LinkValue
from tests.support.builders.datasets import same_rows
from tests.support.builders.objects import MemoryObjects
from tests.support.second_readers import changes


def ids_of(dataset: StoredDataset) -> list[tuple[int, int]]:
    """Ids of all rows, in order."""
    found = row_id_table(dataset).of(live_rows(dataset).physical(np.arange(len(dataset))))
    return [each.item() for each in found]


def agrees(objects: MemoryObjects, dataset: StoredDataset) -> bool:
    """Whether both readers find the same rows with the same ids."""
    named = {_object_name(whole): whole for whole in objects.stored.values()}
    _, ids, rows = changes.read(named, bytes.fromhex(dataset.digest))
    return same_rows(rows, list(_plain(dataset))) and ids == ids_of(dataset)


def _object_name(whole: bytes) -> bytes:
    return blake3(whole, derive_key_context="tensorrepo object v1").digest()


def _plain(dataset: StoredDataset) -> Iterator[dict[str, Any]]:
    """Rows as the second reader gives them: hidden columns too, links as JSON, small floats as
    their bits.
    """
    names = dataset.schema.names
    for row in zip(*(dataset[name] for name in names), strict=True):
        yield dict(zip(names, map(_plain_value, row), strict=True))


def _plain_value(value: Any) -> Any:
    if isinstance(value, LinkValue):
        return msgspec.to_builtins(value)
    if hasattr(value, "dtype") and is_small_float(value.dtype):
        return np.asarray(value).view(f"u{value.dtype.itemsize}")
    return value
