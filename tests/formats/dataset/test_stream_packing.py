"""Packed elements, and rows of like length together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.sampling import (
    ROWS,
    SHUFFLES,
    changed,
    lengths_of,
    opened,
    packed,
    rows,
    sampled,
)
from tests.support.builders.streams import stream_threads


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return sampled(ROWS)


@pytest.fixture(scope="module")
def edited() -> StoredDataset:
    return changed(ROWS)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


@pytest.mark.parametrize("name", ["dataset", "edited"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_packed_in_storage_order_are_all_elements_of_all_rows(
    name: str, size: int, request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(name)
    found = list(packed(ds, size, shuffle=False, pad=-1))
    expected = np.concatenate([row for row in ds["tokens"] if row is not None])
    values = np.concatenate([batch["tokens"] for batch in found])
    used = np.concatenate([batch.segments["tokens"] for batch in found]) > 0
    lengths = np.concatenate([batch.lengths["tokens"] for batch in found])
    assert values.shape[1] == size
    assert values[used].tolist() == expected.tolist()
    assert set(values[~used].tolist()) <= {-1}
    assert lengths.tolist() == used.sum(axis=1).tolist()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_segments_tell_the_rows_of_an_item_apart(dataset: StoredDataset, shuffle: Any) -> None:
    for batch in packed(dataset, 50, shuffle=shuffle):
        segments = batch.segments["tokens"]
        owner = np.where(segments > 0, batch["tokens"] // 100, -1)
        # Where the row changes, and only there, the next segment begins, or the padding.
        changes = np.diff(owner, axis=1) != 0
        assert np.array_equal(np.diff(segments, axis=1) != 0, changes)
        assert np.array_equal(
            np.diff(segments, axis=1)[changes & (owner[:, 1:] >= 0)],
            np.ones(int((changes & (owner[:, 1:] >= 0)).sum()), np.int32),
        )
        assert np.array_equal(segments[:, 0], np.ones(len(segments), np.int32))
        assert np.array_equal(batch.rows, owner[:, 0])


@pytest.mark.parametrize(
    "wishes", [{"where": "split == 'test'"}, {"weights": {"split": "balanced"}}]
)
@pytest.mark.parametrize("name", ["dataset", "edited"])
def test_a_selection_packs_its_rows_as_often_as_they_come(
    name: str, wishes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(name)
    elements = [0 if row is None else len(row) for row in ds["tokens"]]
    counts = np.bincount(rows(opened(ds, Sampling(**wishes), columns=["label"])), minlength=ds.rows)
    found = list(packed(ds, 16, wishes=wishes))
    assert sum(int(batch.lengths["tokens"].sum()) for batch in found) == int(counts @ elements)


def test_an_item_is_of_one_run_and_the_rest_is_padding(dataset: StoredDataset) -> None:
    explained = packed(dataset, 64).explain()
    assert 0.5 < explained.packed_share < 1
    assert "items of 64 elements" in str(explained)
    assert "no padding" in str(explained)


@pytest.mark.parametrize("column", ["x", "label", "split"])
def test_columns_without_elements_cannot_be_packed(dataset: StoredDataset, column: str) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be packed.*'tokens'"):
        packed(dataset, 8, columns=[column])


def test_packed_items_are_tensors_when_asked_for(dataset: StoredDataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(packed(dataset, 8, output="torch")))
    assert (batch["tokens"].dtype, batch.segments["tokens"].dtype) == (torch.int32, torch.int32)
    with pytest.raises(InvalidInputError, match="packed items are arrays"):
        packed(dataset, 8, output="arrow")


def test_items_of_a_damaged_page_are_left_out_when_told() -> None:
    ds = sampled(ROWS)
    whole_run = list(packed(ds, 32))
    objects: Any = ds.objects
    digest = max(objects.stored, key=lambda each: len(objects.stored[each]))
    entry = column_index(ds, "tokens").entries[3]
    link = objects.links[digest]
    data = bytearray(objects.stored[digest])
    data[len(data) - objects.map(link).nbytes + int(entry["offset"]) + 300] ^= 1
    objects.stored[digest] = bytes(data)
    again = packed(open_dataset(objects, ds.digest), 32, on_error="skip")
    found = list(again)
    skipped = again.stats().skipped["page"]
    assert skipped > 0
    assert len(rows(found)) == len(rows(whole_run)) - skipped
    assert all(len(batch["tokens"]) == len(batch.segments["tokens"]) for batch in found)
    with pytest.raises(CorruptError, match="tokens"):
        list(packed(open_dataset(objects, ds.digest), 32))


# ------------------------------------------------------------------------------ buckets


def padding(ds: StoredDataset, sampling: Sampling, **options: Any) -> float:
    """The share of padding in the batches of an epoch."""
    batches = list(opened(ds, sampling, pad=0, columns=["tokens"], **options))
    shape = sum(batch["tokens"].size for batch in batches)
    return 1 - sum(int(batch.lengths["tokens"].sum()) for batch in batches) / shape


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_rows_of_like_length_come_together(dataset: StoredDataset, shuffle: Any) -> None:
    without = padding(dataset, Sampling(), shuffle=shuffle)
    bucketed = padding(dataset, Sampling(bucket="tokens", bucket_steps=8), shuffle=shuffle)
    assert without > 0.4
    assert bucketed < without / 3


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_lengths_are_known_from_row_tables(mapped: bool, codec: Codec) -> None:
    ds = sampled(mapped=mapped, codec=codec, page_bytes=4096)
    assert padding(ds, Sampling(bucket="tokens", bucket_steps=25)) < 0.1


def test_whole_numbers_may_say_the_lengths(dataset: StoredDataset) -> None:
    found = list(opened(dataset, Sampling(bucket="label", bucket_steps=25)))
    mixed = sum(len(set(batch["label"].tolist())) > 1 for batch in found)
    assert len(found) == 25
    assert mixed <= 2


def test_steps_of_a_block_come_in_random_order(dataset: StoredDataset) -> None:
    sampling = Sampling(bucket="tokens", bucket_steps=24)
    lengths = np.array(lengths_of(dataset))
    orders = []
    for epoch in range(2):
        found = opened(dataset, sampling, epoch=epoch)
        orders.append([int(lengths[batch.rows].max()) for batch in found])
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]
