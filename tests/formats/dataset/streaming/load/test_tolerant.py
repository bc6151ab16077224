"""Pages that are damaged or missing: their rows are left out, all others come as ever."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.schema.schema import Column, Image, Scalar, Schema
from tensorrepo.formats.dataset.streaming.collate.error_policy import OnBadRow
from tensorrepo.formats.dataset.streaming.load.prefetch import LostRuns
from tensorrepo.repo.errors import CorruptError, InvalidInputError, PermissionDenied, StorageError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.datasets import Rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    ROWS,
    SCHEMA,
    WINDOW,
    MappedObjects,
    rows_of,
    stream,
    stream_threads,
)
from tests.support.effort import sampled_product

PAGE = 20  # of column x, whose pages are the runs
STORES = [MappedObjects, MemoryObjects]
NAMES = ["x", "y", "n"]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if stream_threads():  # a collection takes half a second
        gc.collect()
    assert stream_threads() == []


def damaged(
    store: type[MemoryObjects],
    codec: Codec = Codec.NONE,
    column: str = "x",
    *,
    schema: Schema = SCHEMA,
    rows: Rows = ROWS,
    page_bytes: int = 8192,
) -> StoredDataset:
    """A dataset with one page that is not what its entry says."""
    objects = store()
    ds = stored(objects, schema, [rows], page_bytes=page_bytes, codec=codec)
    objects.stored = {at: bytearray(data) for at, data in objects.stored.items()}  # type: ignore[misc]
    flip(ds, column)
    return ds


def flip(ds: StoredDataset, column: str) -> None:
    """Change a bit of that page, in place, so that maps of it see that."""
    index = column_index(ds, column)
    page = min(PAGE, index.pages - 1)
    chunk, entry = index.chunks[index.chunk[page]], index.entries[page]
    data = ds.objects.stored[chunk.digest]  # type: ignore[attr-defined, union-attr]
    start = len(data) - int.from_bytes(data[16:24], "little") + int(entry["offset"])
    data[start + int(entry["stored_bytes"]) - 1] ^= 1


def lost_rows(ds: StoredDataset, column: str = "x") -> list[int]:
    index = column_index(ds, column)
    page = min(PAGE, index.pages - 1)
    return list(range(*index.first_row[page : page + 2].tolist()))


def read(ds: StoredDataset, **options: Any) -> list[Any]:
    chosen = {"batch_size": 64, "columns": NAMES, "window": WINDOW, "on_error": "skip"}
    return list(stream(ds, **(chosen | options)))


def png(shade: int) -> bytes:
    """A picture of noise, too large for the metadata, which begins with this shade."""
    pictures = pytest.importorskip("PIL.Image")
    noise = np.random.default_rng(shade).integers(0, 256, (16, 16, 3), np.uint8)
    noise[0, 0] = shade
    out = io.BytesIO()
    pictures.fromarray(noise).save(out, "PNG")
    return out.getvalue()


def rows_in(batches: list[Any]) -> list[int]:
    return sorted(row for batch in batches for row in batch.rows.tolist())


@sampled_product("shuffle,store,codec", ["pages", "global", "buffer", False], STORES, Codec, dev=7)
def test_rows_of_a_damaged_page_are_left_out(
    store: type[MemoryObjects], codec: Codec, shuffle: Any
) -> None:
    ds = damaged(store, codec)
    found = read(ds, shuffle=shuffle)
    lost = set(lost_rows(ds))
    assert rows_in(found) == [at for at in range(len(ROWS)) if at not in lost]
    for batch in found:
        for row, values in zip(batch.rows.tolist(), rows_of(batch), strict=True):
            assert values["y"] == ROWS[row]["y"]
            assert (values["x"] == ROWS[row]["x"]).all()
            assert values["n"] == ROWS[row]["n"]


def test_a_page_that_is_damaged_after_the_first_epoch_is_left_out_in_the_second() -> None:
    ds = damaged(MappedObjects)
    flip(ds, "x")  # whole again
    reader = stream(ds, batch_size=64, columns=["x"], window=WINDOW, on_error="skip")
    assert rows_in(list(reader)) == list(range(len(ROWS)))
    flip(ds, "x")
    reader.set_epoch(1)
    lost = set(lost_rows(ds))
    assert rows_in(list(reader)) == [at for at in range(len(ROWS)) if at not in lost]


@pytest.mark.parametrize("store", STORES)
def test_a_damaged_page_that_every_row_needs_leaves_nothing(store: type[MemoryObjects]) -> None:
    with pytest.raises(CorruptError, match=r"no row is left .* column 'y', page 0"):
        read(damaged(store, column="y"))


@pytest.mark.parametrize("store", STORES)
def test_they_are_counted_and_the_first_ones_named(store: type[MemoryObjects]) -> None:
    ds = damaged(store)
    reader = stream(ds, batch_size=64, columns=["x"], window=WINDOW, on_error="skip")
    rows = sum(len(batch.rows) for batch in reader)
    lost = len(lost_rows(ds))
    assert reader.stats().skipped == {"page": lost}
    assert reader.stats().rows == rows == len(ROWS) - lost
    assert "column 'x', page 20" in reader.stats().bad[0]


@pytest.mark.parametrize("world", [2, 3])
def test_every_rank_gets_the_steps_that_were_planned(world: int) -> None:
    ds = damaged(MemoryObjects)
    ranks = [read(ds, rank=rank, world_size=world) for rank in range(world)]
    positions = [[batch.position for batch in rank] for rank in ranks]
    assert positions == [positions[0]] * world
    found = rows_in([batch for rank in ranks for batch in rank])
    assert found == [at for at in range(len(ROWS)) if at not in set(lost_rows(ds))]


def test_a_resumed_stream_goes_on_beside_the_damage() -> None:
    ds = damaged(MappedObjects)
    first = stream(ds, batch_size=64, columns=["x"], window=WINDOW, on_error="skip")
    some = iter(first)
    begun = [next(some) for _ in range(5)]
    state = first.state_dict()
    some.close()
    rest = stream(ds, batch_size=50, columns=["x"], window=WINDOW, on_error="skip")
    rest.load_state_dict(state)
    found = rows_in([*begun, *rest])
    assert found == [at for at in range(len(ROWS)) if at not in set(lost_rows(ds))]


def test_a_function_is_asked_about_every_row() -> None:
    ds = damaged(MemoryObjects)
    asked: list[int] = []

    def leave_out(error: Exception, row_id: str) -> None:
        assert isinstance(error, CorruptError)
        asked.append(int(row_id.split(":")[1]))

    read(ds, on_error=leave_out)
    assert sorted(asked) == lost_rows(ds)


def test_a_lost_row_cannot_be_replaced() -> None:
    with pytest.raises(InvalidInputError, match="only None, which leaves the row out"):
        read(damaged(MemoryObjects), on_error=lambda *_: b"something")


def test_a_step_that_loses_all_rows_is_an_error() -> None:
    with pytest.raises(CorruptError, match="no row is left of the step that ends at position"):
        read(damaged(MemoryObjects), batch_size=4, shuffle=False)


class Failing(MemoryObjects):
    """A store that fails for one chunk, once the test says so."""

    failure: Exception | None = None

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        if self.failure is not None and start > 1000:
            raise self.failure
        return super().read_range(link, start, stop)


def test_what_the_store_has_lost_is_left_out() -> None:
    objects = Failing()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    read(ds, columns=["x"], batch_size=len(ROWS))  # indexes are known from now on
    objects.failure = StorageError("the store has lost it")
    with pytest.raises(CorruptError, match="the store has lost it"):
        read(ds, columns=["x"], batch_size=8, shuffle=False)  # until a step has nothing left


@pytest.mark.parametrize("runs", [[3], [3, 4]])
def test_an_outage_of_the_store_ends_the_stream_and_loses_no_run(runs: list[int]) -> None:
    def unreachable(_: list[int]) -> list[Any]:
        raise outage

    outage = StorageError("connection refused", transient=True)
    lost = LostRuns(stream(damaged(MemoryObjects), batch_size=64).feed.plan, [False] * 5)
    with pytest.raises(StorageError, match="connection refused"):
        lost.load(unreachable, runs)
    with pytest.raises(StorageError, match="connection refused"):
        lost.add(runs[0], outage)
    assert lost == {}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("choice", ["skip", lambda *_: None])
def test_rows_of_encoded_images_are_left_out_alike(
    store: type[MemoryObjects], choice: OnBadRow
) -> None:
    pytest.importorskip("simplejpeg")
    rows = [{"x": png(at), "n": at} for at in range(64)]
    schema = Schema((Column("x", Image()), Column("n", Scalar("int64"))))
    ds = damaged(store, schema=schema, rows=rows, page_bytes=4096)
    found = read(ds, columns=None, decode=True, batch_size=16, shuffle=False, on_error=choice)
    lost = set(lost_rows(ds))
    assert 0 < len(lost) < 16
    assert rows_in(found) == [at for at in range(64) if at not in lost]
    shades = [int(image[0, 0, 0]) for batch in found for image in batch["x"]]
    assert shades == [n for batch in found for n in batch["n"].tolist()]


def test_a_store_that_refuses_is_no_damage() -> None:
    objects = Failing()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    read(ds, columns=["x"], batch_size=len(ROWS))
    objects.failure = PermissionDenied("the store refuses")
    with pytest.raises(PermissionDenied):
        read(ds, columns=["x"])
