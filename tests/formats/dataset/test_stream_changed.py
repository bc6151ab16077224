"""Streams of datasets that were changed: every live row once, as readers see it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit
from tensorrepo.formats.dataset.read import StoredDataset, fragment_records, live_rows, row_id_table
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tests.support.builders.changed import edited, patched, waiting, without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import stream
from tests.support.effort import sampled_product

ROWS = 3000
SCHEMA = Schema.of({"x": Tensor("float32", (16,)), "label": "int32", "text": Text()})
SHUFFLES = ["pages", "global", "buffer", False]


@pytest.fixture(scope="module")
def changed() -> StoredDataset:
    """Deleted rows (a whole run of them too), patches, replaced pages, a default, a wider type."""
    objects = MemoryObjects()
    rows = {
        "x": np.arange(ROWS * 16, dtype=np.float32).reshape(ROWS, 16),
        "label": np.arange(ROWS, dtype=np.int32),
        "text": [f"row {at}" for at in range(ROWS)],
    }
    base = stored(objects, SCHEMA, [rows], page_bytes=1024, budget_bytes=128 << 10)
    label, text = base.schema.column("label"), base.schema.column("text")
    edits = {
        1: FragmentEdit(patches={label.id: patched(label, [2, 5], [-2, -5])}),
        2: FragmentEdit(patches={text.id: patched(text, [0, 9], ["new", ""])}),
    }
    fragments = base.root.leaves[0].fragments
    assert fragments > 4
    once = edited(objects, base, edits)
    fewer = without(objects, once, [0, 7, *range(500, 600), 1234, ROWS - 1])
    wider = replace(label, type=Scalar("int64"))
    added = Column("score", Scalar("float32"), id="00000000000000aa", default=0.5)
    columns = tuple(wider if column is label else column for column in base.schema.columns)
    return edited(
        objects,
        fewer,
        {3: FragmentEdit(pages={added.id: waiting(added, np.arange(_rows(base, 3)))})},
        schema=Schema((*columns, added)),
        groups=(*base.root.groups, (added.id,)),
    )


def _rows(dataset: StoredDataset, fragment: int) -> int:
    return int(fragment_records(dataset)["rows"][fragment])


@sampled_product("shuffle,window_bytes", SHUFFLES, [16 << 10, 64 << 20], dev=3)
def test_every_live_row_comes_once_as_readers_see_it(
    changed: StoredDataset, shuffle: Any, window_bytes: int
) -> None:
    expected = changed.to_numpy()
    seen = []
    batches = stream(changed, batch_size=64, shuffle=shuffle, window=window_bytes, seed=3)
    for batch in batches:
        seen.append(batch.rows.copy())
        for name in ("x", "label", "score"):
            assert np.array_equal(batch[name], expected[name][batch.rows]), name
        texts = [expected["text"][row] for row in batch.rows.tolist()]
        assert list(batch["text"]) == texts
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(changed.rows))


def test_row_ids_are_those_of_the_dataset(changed: StoredDataset) -> None:
    live = live_rows(changed)
    for batch in stream(changed, batch_size=500, columns=["label"]):
        expected = row_id_table(changed).of(live.physical(batch.rows))
        assert np.array_equal(batch.row_ids, expected)


def test_a_stream_resumes_in_a_changed_dataset(changed: StoredDataset) -> None:
    whole = [batch["label"].copy() for batch in stream(changed, batch_size=64, seed=1)]
    first = stream(changed, batch_size=64, seed=1)
    iterator = iter(first)
    for _ in range(5):
        next(iterator)
    again = stream(changed, batch_size=64, seed=1)
    again.load_state_dict(first.state_dict())
    rest = [batch["label"].copy() for batch in again]
    assert len(rest) == len(whole) - 5
    assert all(np.array_equal(one, two) for one, two in zip(rest, whole[5:], strict=True))
