"""Long ingests: cut off anywhere, they go on; rows that do not fit are passed over and reported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor, Text, as_type
from tensorrepo.formats.dataset.write import ingest, write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.objects import MemoryObjects

SCHEMA = Schema.of({"x": Tensor("float32", (8,)), "n": "int32"})
BATCH_ROWS = 70


class CutOff(Exception):
    pass


def _batches(count: int) -> list[dict[str, Any]]:
    numbers = [np.arange(at * BATCH_ROWS, (at + 1) * BATCH_ROWS) for at in range(count)]
    return [{"x": np.repeat(n[:, None], 8, 1).astype(np.float32), "n": n} for n in numbers]


@pytest.mark.parametrize("dies_after", range(6))
def test_an_ingest_that_was_cut_off_goes_on(dies_after: int) -> None:
    objects = MemoryObjects()
    saved: list[tuple[str, int]] = []

    def checkpoint(link: Any, rows: int) -> None:
        saved.append((link.digest, rows))
        if len(saved) > dies_after:
            raise CutOff

    with pytest.raises(CutOff):
        ingest(objects, SCHEMA, _batches(50), checkpoint, checkpoint_bytes=10_000)
    digest, rows = saved[-1]
    assert 0 < rows < 50 * BATCH_ROWS
    link = ingest(
        objects,
        SCHEMA,
        _batches(50),
        lambda *_: None,
        base=open_dataset(objects, digest),
        skip_rows=rows,
        checkpoint_bytes=10_000,
    )
    found = open_dataset(objects, link.digest)
    assert np.array_equal(found["n"][:], np.arange(50 * BATCH_ROWS))
    assert np.array_equal(found["x"][:][:, 0], found["n"][:])


def test_rows_within_a_batch_are_skipped_too() -> None:
    objects = MemoryObjects()
    base = open_dataset(objects, write_dataset(objects, SCHEMA, _batches(1)).digest)
    table = pa.Table.from_batches(open_dataset(objects, base.digest).to_batches())
    twice = pa.concat_tables(
        [
            table,
            table.set_column(
                1, table.field(1), pa.array(np.arange(BATCH_ROWS, 2 * BATCH_ROWS), pa.int32())
            ),
        ]
    )
    link = ingest(objects, SCHEMA, [twice], lambda *_: None, base=base, skip_rows=BATCH_ROWS)
    assert np.array_equal(open_dataset(objects, link.digest)["n"][:], np.arange(2 * BATCH_ROWS))


def test_progress_goes_on_over_checkpoints() -> None:
    told: list[int] = []
    ingest(
        MemoryObjects(),
        SCHEMA,
        _batches(20),
        lambda *_: None,
        checkpoint_bytes=5_000,
        progress=lambda rows, _: told.append(rows),
    )
    assert told == sorted(told)
    assert told[-1] == 20 * BATCH_ROWS


LOOSE = Schema(
    (
        Column("a", as_type("int8")),
        Column("t", Text(), nullable=True),
        Column("v", Tensor("float32", (2,)), nullable=True),
    )
)


def _odd_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [{"a": at, "t": "x", "v": [1, 2]} for at in range(20)]
    rows[3]["a"], rows[7]["v"], rows[9]["t"], rows[12]["other"] = 1000, [1, 2, 3], 5, 1
    return rows


@pytest.mark.parametrize(
    ("on_error", "skipped", "nulled"), [("skip", [3, 7, 9, 12], []), ("null", [3, 12], [7, 9])]
)
def test_rows_that_do_not_fit_are_reported(
    on_error: Any, skipped: list[int], nulled: list[int]
) -> None:
    objects, misfits = MemoryObjects(), Misfits(on_error)
    found = open_dataset(
        objects,
        write_dataset(objects, LOOSE, [_odd_rows()[:10], _odd_rows()[10:]], misfits=misfits).digest,
    )
    kept = [at for at in range(20) if at not in skipped]
    assert found["a"][:].tolist() == kept
    assert [found["t"][kept.index(at)] is None for at in (9,) if at in kept] == [True] * (9 in kept)
    assert [each.row for each in misfits.noted if each.column is None] == skipped
    assert [each.row for each in misfits.noted if each.column is not None] == nulled
    assert (misfits.skipped, misfits.nulled) == (len(skipped), len(nulled))


def test_columns_that_do_not_fit_are_never_passed_over() -> None:
    with pytest.raises(InvalidInputError, match="missing"):
        write_dataset(MemoryObjects(), LOOSE, [{"t": ["x"]}], misfits=Misfits("skip"))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="raise, skip or null"):
        Misfits("ignore")  # type: ignore[arg-type]  # what a user may type
