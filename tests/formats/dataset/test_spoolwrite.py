"""Rows that wait in a temporary file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Text
from tensorrepo.formats.dataset.upsert import spooled
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.column_types import TYPES, equal, tiled, value


@given(
    kinds=st.lists(st.one_of(TYPES, tiled()), min_size=1, max_size=3),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    seed=st.integers(0, 2**32),
)
def test_rows_come_back_as_they_went_in(kinds: list[Any], sizes: list[int], seed: int) -> None:
    columns = tuple(Column(f"c{at}", kind, nullable=True) for at, kind in enumerate(kinds))
    schema = Schema(columns)
    rng = np.random.default_rng(seed)
    batches = [
        {column.name: [value(column, rng) for _ in range(size)] for column in columns}
        for size in sizes
    ]
    order = rng.permutation(sum(sizes))
    with spooled(schema, columns, batches) as spool:
        assert spool.rows == sum(sizes)
        for column in columns if spool.rows else ():
            given = [each for batch in batches for each in batch[column.name]]
            found = spool.source(column)(order, order)
            assert all(
                equal(present_row(column, found, at), given[row])
                for at, row in enumerate(order.tolist())
            )
        some = rng.random(spool.rows) < 0.5
        again = [
            coerce_batch(schema, batch)[0].rows
            for batch in (spool.batches(np.flatnonzero(some)) if spool.rows else ())
        ]
        assert sum(again) == some.sum()


def test_the_file_is_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    schema = Schema.of({"a": Text()})
    with spooled(schema, (), [{"a": ["x"]}]):
        assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(InvalidInputError), spooled(schema, (), [{"a": [3]}]):
        pass
    assert list(tmp_path.iterdir()) == []
