"""Compaction piece by piece: the same rows, ids and order, and nobody's word is believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.compact import CompactionPlan, plan_compaction
from tensorrepo.formats.dataset.compact_parts import (
    PIECE_BYTES,
    join_compacted,
    row_pieces,
    write_compacted,
)
from tensorrepo.formats.dataset.metadata.span_write import read_fragments
from tensorrepo.formats.dataset.parts import RowsPart
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor, Text
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.verification import verify_dataset
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.datasets import same_rows
from tests.support.effort import sampled_product

SCHEMA = Schema.of(
    {"x": Tensor("float32", (16,)), "volume": Tensor("uint8", (None, 6)), "text": Text()}
)
Pieces = list[tuple[tuple[int, int], RowsPart]]


def _rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {
        "x": np.repeat(numbers[:, None], 16, axis=1).astype(np.float32),
        "volume": [np.full((1 + at % 9, 6), at % 251, np.uint8) for at in numbers],
        "text": [f"row {at}" for at in numbers],
    }


@pytest.fixture
def objects(tmp_path: Path) -> ObjectWriter:
    return ObjectWriter(ObjectStore(open_backend(str(tmp_path), environment={})), ())


@pytest.fixture
def worn(objects: ObjectWriter) -> StoredDataset:
    """Twenty appends of 40 rows, some of them deleted, others changed."""
    dataset: StoredDataset | None = None
    for at in range(20):
        link = write_dataset(objects, SCHEMA, [_rows(40 * at, 40)], base=dataset)
        dataset = open_dataset(objects, link.digest)
    assert dataset is not None
    fewer = delete_rows(objects, dataset, [0, 41, 42, *range(200, 240)])
    changed = update_rows(
        objects, open_dataset(objects, fewer.digest), list(range(0, 700, 9)), {"text": "changed"}
    )
    objects.flush()
    return open_dataset(objects, changed.digest)


def _made(
    objects: ObjectWriter, dataset: StoredDataset, plan: CompactionPlan, piece_bytes: int
) -> Pieces:
    made = []
    for rows in row_pieces(dataset, plan, piece_bytes):
        key = f"{rows[0]}"
        link = write_compacted(objects, dataset, rows, key)
        part = RowsPart(key, link.digest, open_dataset(objects, link.digest).root.rows)
        made.append((rows, part))
    objects.flush()
    return made


def _ids(dataset: StoredDataset) -> Any:
    return row_id_table(dataset).of(live_rows(dataset).physical(np.arange(dataset.rows)))


def _same(one: StoredDataset, two: StoredDataset) -> bool:
    return same_rows(list(one), list(two)) and np.array_equal(_ids(one), _ids(two))


@sampled_product("piece_bytes,everything", [1, 20_000, PIECE_BYTES], [False, True], dev=3)
def test_pieces_in_their_places_are_the_rows_that_were_there(
    objects: ObjectWriter, worn: StoredDataset, piece_bytes: int, everything: bool
) -> None:
    plan = plan_compaction(worn, everything=everything)
    made = _made(objects, worn, plan, piece_bytes)
    found = open_dataset(objects, join_compacted(objects, worn, plan, made).digest)
    assert found.root.deleted == 0
    assert _same(found, worn)
    assert list(verify_dataset(found)) == []
    assert found.root.properties == worn.root.properties


def test_what_is_whole_stays_between_pieces(objects: ObjectWriter, worn: StoredDataset) -> None:
    whole = plan_compaction(worn)
    kept = tuple(tuple(at % 3 != 1 for at, _ in enumerate(leaf)) for leaf in whole.rewritten)
    plan = replace(whole, rewritten=kept)
    before = {each.uid for each in read_fragments(worn)}
    made = _made(objects, worn, plan, PIECE_BYTES)
    assert len(made) > 3
    found = open_dataset(objects, join_compacted(objects, worn, plan, made).digest)
    assert _same(found, worn)
    still = before & {each.uid for each in read_fragments(found)}
    assert len(still) == sum(not each for leaf in kept for each in leaf)
    nulls = [each.nulls for each in found.root.statistics]
    assert nulls == [each.nulls for each in worn.root.statistics]


def _wrong(made: Pieces, change: str) -> Pieces:
    parts: Sequence[RowsPart] = [part for _, part in made]
    if change == "swapped":
        parts = [parts[1], parts[0], *parts[2:]]
    elif change == "doubled":
        parts = [parts[0], parts[0], *parts[2:]]
    else:
        parts = [replace(parts[0], rows=parts[0].rows - 1), *parts[1:]]
    return [(rows, part) for (rows, _), part in zip(made, parts, strict=True)]


@pytest.mark.parametrize("change", ["swapped", "doubled", "fewer"])
def test_pieces_that_are_of_other_rows_are_refused(
    objects: ObjectWriter, worn: StoredDataset, change: str
) -> None:
    plan = plan_compaction(worn)
    made = _wrong(_made(objects, worn, plan, 1), change)
    with pytest.raises(CorruptError, match="rows"):
        join_compacted(objects, worn, plan, made)
