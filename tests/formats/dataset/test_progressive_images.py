"""Columns of progressive images: what is written is read, small pictures from a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.diff import compare_datasets
from tensorrepo.formats.dataset.evolve import widen_column
from tensorrepo.formats.dataset.metadata.index import pictures_in_bands
from tensorrepo.formats.dataset.pages.page import PAGE_COMPRESSED, PAGE_PLAIN, PAGE_PREVIEW
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    open_dataset,
    page_reader,
    previewed,
)
from tensorrepo.formats.dataset.schema.schema import Column, Image, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.plan.grouped import plan_groups
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.verification import verify_dataset
from tensorrepo.formats.images.progressive import BANDS
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.changed import without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import MappedObjects, stream

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
from tests.support.builders.pictures import encoded, shades_apart, smooth

PROGRESSIVE = Schema.of({"image": Image("jpeg", progressive=True), "n": "int64"})
AS_THEY_COME = Schema.of({"image": Image("jpeg"), "n": "int64"})
PAGE_BYTES = 60_000


def photo(seed: int, height: int = 192, width: int = 256, **options: Any) -> bytes:
    rng = np.random.default_rng(seed)
    pixels = smooth(height, width, seed=seed) + rng.normal(0, 5, (height, width, 3))
    pixels = np.clip(pixels, 0, 255).astype(np.uint8)
    return encoded(pixels, "JPEG", **({"quality": 90} | options))


PHOTOS = [photo(seed) for seed in range(20)]
MIXED = [
    *PHOTOS[:6],
    encoded(smooth(60, 80), "PNG"),
    photo(7, progressive=True),
    photo(8, restart_marker_blocks=3),
    photo(9)[:-200],
    photo(10, 8, 8),
    *PHOTOS[11:14],
]


def rows(pictures: list[Any], first: int = 0) -> dict[str, Any]:
    return {"image": pictures, "n": list(range(first, first + len(pictures)))}


def written(
    objects: MemoryObjects, pictures: list[Any], schema: Schema = PROGRESSIVE, **options: Any
) -> StoredDataset:
    return stored(objects, schema, [rows(pictures)], **({"page_bytes": PAGE_BYTES} | options))


def pictures_of(dataset: StoredDataset) -> list[bytes | None]:
    return [row["image"] for row in dataset]


def forms(dataset: StoredDataset) -> set[int]:
    return set(column_index(dataset, "image").entries["codec"].tolist())


def decoded(dataset: StoredDataset, how: Decode) -> np.ndarray:
    found = stream(dataset, batch_size=64, shuffle=False, columns=["image"], decode=how)
    return np.concatenate([batch["image"] for batch in found])


def read_bytes(objects: MemoryObjects, dataset: StoredDataset, how: Decode) -> int:
    """Bytes of pages that an epoch asked the store for."""
    found = stream(dataset, batch_size=16, columns=["image"], decode=how)
    objects.reads.clear()
    assert sum(len(batch.rows) for batch in found) == len(dataset)
    return sum(stop - start for _, start, stop in set(objects.reads))


# ------------------------------------------------------------------------------ whole files


@pytest.mark.parametrize("store", [MemoryObjects, MappedObjects])
def test_all_pictures_come_back_to_the_bit(store: type[MemoryObjects]) -> None:
    dataset = written(store(), MIXED)
    assert pictures_of(dataset) == MIXED
    assert [bytes(dataset[at]["image"]) for at in (12, 3, 7)] == [MIXED[at] for at in (12, 3, 7)]
    assert list(verify_dataset(dataset)) == []


def test_nulls_stay_nulls() -> None:
    schema = Schema.of({"image": Image("jpeg", progressive=True)}).columns[0]
    nullable = Schema((Column("image", schema.type, nullable=True), PROGRESSIVE.columns[1]))
    pictures = [PHOTOS[0], None, PHOTOS[1], None]
    dataset = written(MemoryObjects(), pictures, nullable)
    assert pictures_of(dataset) == pictures
    assert decoded(dataset, Decode(size=32, scans=1))[1].max() == 0
    assert list(verify_dataset(dataset)) == []


def test_pages_without_such_pictures_are_plain() -> None:
    dataset = written(MemoryObjects(), [encoded(smooth(9, 9, seed=at), "PNG") for at in range(9)])
    assert forms(dataset) == {PAGE_PLAIN}
    assert pictures_in_bands(column_index(dataset, "image")) == (0, 9)


def test_pictures_that_stay_as_they_came_are_counted() -> None:
    dataset = written(MemoryObjects(), MIXED)
    assert pictures_in_bands(column_index(dataset, "image")) == (len(MIXED) - 3, 3)


def test_other_columns_of_images_are_stored_as_ever() -> None:
    dataset = written(MemoryObjects(), MIXED, AS_THEY_COME)
    assert forms(dataset) == {PAGE_PLAIN}
    assert not len(column_index(dataset, "image").previews)
    assert dataset.schema.column("image").type == Image("jpeg")


# ------------------------------------------------------------------------------ small pictures


@pytest.mark.soak
@pytest.mark.parametrize("store", [MemoryObjects, MappedObjects])
@pytest.mark.parametrize("fit", ["crop", "stretch", "pad"])
def test_small_pictures_are_nearly_those_of_whole_files(
    store: type[MemoryObjects], fit: Any
) -> None:
    whole = decoded(written(store(), PHOTOS, AS_THEY_COME), Decode(size=24, fit=fit))
    small = decoded(written(store(), PHOTOS), Decode(size=24, fit=fit, scans="auto"))
    assert 0 < shades_apart(whole, small) <= 16
    assert np.abs(whole.astype(int) - small).mean() < 1.5


@pytest.mark.parametrize("scans", ["all", BANDS])
def test_all_scans_are_the_same_pixels(scans: Any) -> None:
    whole = decoded(written(MemoryObjects(), MIXED[:9], AS_THEY_COME), Decode(size=64))
    found = decoded(written(MemoryObjects(), MIXED[:9]), Decode(size=64, scans=scans))
    assert np.array_equal(found, whole)


def test_small_pictures_take_a_part_of_the_bytes() -> None:
    objects = MemoryObjects()
    dataset, whole = written(objects, PHOTOS), written(objects, PHOTOS, AS_THEY_COME)
    taken = {
        scans: read_bytes(objects, dataset, Decode(size=24, scans=scans))
        for scans in ("auto", 1, 2, 3, "all")
    }
    everything = read_bytes(objects, whole, Decode(size=24))
    assert taken["auto"] == taken[1] < taken[2] < taken[3] < taken["all"] <= everything
    assert taken["auto"] < everything / 2


def test_what_is_explained_is_what_is_read() -> None:
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS)
    how = Decode(size=24, scans="auto")
    found = stream(dataset, batch_size=16, columns=["image"], decode=how)
    assert found.explain().read_bytes == read_bytes(objects, dataset, how)


def test_the_state_of_a_stream_resumes_with_other_scans() -> None:
    dataset = written(MemoryObjects(), PHOTOS)
    first = stream(dataset, batch_size=4, columns=["image"], decode=Decode(size=24, scans="auto"))
    batches = iter(first)
    next(batches)
    second = stream(dataset, batch_size=4, columns=["image"], decode=Decode(size=24))
    second.load_state_dict(first.state_dict())
    assert [batch.rows.tolist() for batch in second] == [batch.rows.tolist() for batch in batches]


@pytest.mark.parametrize(
    ("size", "sides", "bands"),
    [
        (24, [192, 191, 72, 71, 48, 47], [0, 1, 1, 2, 2, 3]),
        ((24, 48), [384, 383], [0, 1]),
        (None, [10, 10_000], [3, 3]),
    ],
)
def test_bands_follow_from_how_much_smaller_pictures_become(
    size: Any, sides: list[int], bands: list[int]
) -> None:
    how = Decode(size=size, scans="auto")
    assert how.last_band(np.array(sides)).tolist() == bands


def test_random_boxes_are_taken_for_as_small_as_they_may_be() -> None:
    how = Decode(size=24, fit="random", area=(0.25, 1), ratio=(1, 1), scans="auto")
    assert how.last_band(np.array([384, 383])).tolist() == [0, 1]


@pytest.mark.parametrize("scans", ["some", 0, BANDS + 1, True, 1.5, None])
def test_scans_that_there_are_none_of_are_refused(scans: Any) -> None:
    with pytest.raises(InvalidInputError, match="scans"):
        Decode(size=24, scans=scans)


def test_exact_pixels_need_all_scans() -> None:
    with pytest.raises(InvalidInputError, match="exact"):
        Decode(size=24, exact=True, scans="auto")


# ------------------------------------------------------------------------------ changes


def has_previews(dataset: StoredDataset) -> bool:
    small = previewed(dataset, {"image": lambda sides: np.zeros(len(sides), np.int64)})
    return forms(small) == {PAGE_PREVIEW}


def test_pages_that_move_keep_their_previews() -> None:
    """One appended after the other stands inline first, then in chunks."""
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS[:1])
    for at in range(1, 8):
        dataset = stored(objects, PROGRESSIVE, [rows(PHOTOS[at : at + 1], at)], base=dataset)
    assert pictures_of(dataset) == PHOTOS[:8]
    assert has_previews(dataset)
    assert list(verify_dataset(dataset)) == []


def test_compaction_keeps_pictures_and_previews() -> None:
    objects = MemoryObjects()
    worn = without(objects, written(objects, PHOTOS), [1, 2, 3, 8])
    link = compact_dataset(objects, worn)
    dataset = open_dataset(objects, link.digest) if link is not None else worn
    left = [each for at, each in enumerate(PHOTOS) if at not in (1, 2, 3, 8)]
    assert pictures_of(dataset) == left
    assert has_previews(dataset)


def test_pictures_that_were_set_later_are_decoded_whole() -> None:
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS)
    link = update_rows(objects, dataset, [4], {"image": [PHOTOS[0]]})
    changed = open_dataset(objects, link.digest)
    expected = [*PHOTOS[:4], PHOTOS[0], *PHOTOS[5:]]
    assert pictures_of(changed) == expected
    small = decoded(changed, Decode(size=24, scans=1))
    assert shades_apart(small[4], decoded(changed, Decode(size=24))[4]) <= 16
    assert list(verify_dataset(changed)) == []


def test_equal_pictures_differ_in_no_cell() -> None:
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS[:5])
    again = open_dataset(objects, update_rows(objects, dataset, [2], {"n": [99]}).digest)
    assert [
        (each.name, each.rows) for each in compare_datasets(dataset, again, exact=True).updated
    ] == [("n", 1)]


def test_equal_pictures_are_equal_bytes() -> None:
    one, two = written(MemoryObjects(), MIXED), written(MemoryObjects(), MIXED)
    assert one.digest == two.digest


def test_older_pictures_are_arranged_when_everything_is_compacted() -> None:
    objects = MemoryObjects()
    before = written(objects, PHOTOS[:4], AS_THEY_COME)
    kind = Image("jpeg", progressive=True)
    widened = open_dataset(objects, widen_column(objects, before, "image", kind).digest)
    link = compact_dataset(objects, widened, everything=True)
    dataset = open_dataset(objects, link.digest)
    assert pictures_of(dataset) == PHOTOS[:4]
    assert pictures_in_bands(column_index(dataset, "image")) == (4, 0)


def test_a_column_becomes_progressive_for_what_is_written_from_then_on() -> None:
    objects = MemoryObjects()
    before = written(objects, PHOTOS[:4], AS_THEY_COME)
    kind = Image("jpeg", progressive=True)
    widened = open_dataset(objects, widen_column(objects, before, "image", kind).digest)
    dataset = stored(objects, PROGRESSIVE, [rows(PHOTOS[4:8], 4)], base=widened)
    assert pictures_of(dataset) == PHOTOS[:8]
    assert forms(dataset) == {PAGE_PLAIN, PAGE_COMPRESSED}
    assert decoded(dataset, Decode(size=24, scans=1)).shape == (8, 24, 24, 3)


# ------------------------------------------------------------------------------ beside whole files

BESIDE = Schema.of({"image": Image("jpeg", progressive="beside"), "n": "int64"})


def test_files_beside_small_pictures_are_stored_as_ever() -> None:
    whole = column_index(written(MemoryObjects(), MIXED, AS_THEY_COME), "image")
    dataset = written(MemoryObjects(), MIXED, BESIDE)
    index = column_index(dataset, "image")
    assert index.entries["checksum"].tolist() == whole.entries["checksum"].tolist()
    assert forms(dataset) == {PAGE_PLAIN}
    assert pictures_of(dataset) == MIXED
    assert dataset.schema.visible.names == ("image", "n")
    assert list(verify_dataset(dataset)) == []


@pytest.mark.parametrize("store", [MemoryObjects, MappedObjects])
@pytest.mark.parametrize(("size", "scans"), [(24, "auto"), (60, "auto"), (60, 1)])
def test_small_pictures_beside_are_those_of_progressive_columns(
    store: type[MemoryObjects], size: int, scans: Any
) -> None:
    how = Decode(size=size, scans=scans)
    beside = decoded(written(store(), PHOTOS, BESIDE), how)
    assert np.array_equal(beside, decoded(written(store(), PHOTOS), how))


@pytest.mark.parametrize(("size", "scans"), [(24, "all"), (96, "auto"), (24, 3), (None, "auto")])
def test_what_is_not_small_is_decoded_from_whole_files(size: Any, scans: Any) -> None:
    objects = MemoryObjects()
    beside, whole = (written(objects, PHOTOS, schema) for schema in (BESIDE, AS_THEY_COME))
    how = Decode(size=size, scans=scans)
    assert np.array_equal(decoded(beside, how), decoded(whole, how))
    assert read_bytes(objects, beside, how) == read_bytes(objects, whole, how)


def test_small_pictures_beside_take_a_part_of_the_bytes() -> None:
    objects = MemoryObjects()
    beside, whole = (written(objects, PHOTOS, schema) for schema in (BESIDE, AS_THEY_COME))
    how = Decode(size=24, scans="auto")
    assert read_bytes(objects, beside, how) < read_bytes(objects, whole, how) / 2
    assert read_bytes(objects, beside, Decode(size=24)) == read_bytes(objects, whole, how)


@pytest.mark.soak
@pytest.mark.parametrize("schema", [PROGRESSIVE, BESIDE])
def test_groups_of_a_large_dataset_are_read_in_part(schema: Schema) -> None:
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS[:3], schema)
    for at in range(3, 20, 3):
        dataset = stored(objects, schema, [rows(PHOTOS[at : at + 3], at)], base=dataset)
    small = previewed(dataset, {"image": lambda sides: np.zeros(len(sides), np.int64)})

    def no_plan() -> StreamPlan:
        raise AssertionError("the dataset has groups")

    plan = plan_groups(
        small, ("image",), no_plan, batch_size=4, window_bytes=1 << 20, most_runs=3, least_bytes=1
    )
    assert plan is not None
    assert set(plan.sample.plan.columns[0].index.entries["codec"].tolist()) == {PAGE_PREVIEW}


def test_small_pictures_follow_their_column() -> None:
    objects = MemoryObjects()
    dataset = written(objects, PHOTOS[:8], BESIDE)
    changed = open_dataset(
        objects, update_rows(objects, dataset, [4], {"image": [PHOTOS[9]]}).digest
    )
    worn = without(objects, changed, [0, 1, 2])
    compacted = open_dataset(objects, compact_dataset(objects, worn).digest)
    expected = [PHOTOS[3], PHOTOS[9], *PHOTOS[5:8]]
    assert pictures_of(compacted) == expected
    how = Decode(size=24, scans="auto")
    assert np.array_equal(decoded(compacted, how), decoded(written(objects, expected), how))


def test_a_column_does_not_get_small_pictures_later() -> None:
    objects = MemoryObjects()
    before = written(objects, PHOTOS[:4], AS_THEY_COME)
    with pytest.raises(InvalidInputError, match="beside"):
        widen_column(objects, before, "image", Image("jpeg", progressive="beside"))


# ------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("scans", [1, "all"])
@pytest.mark.parametrize("store", [MemoryObjects, MappedObjects])
def test_a_damaged_page_is_an_error(store: type[MemoryObjects], scans: Any) -> None:
    objects = store()
    dataset = written(objects, PHOTOS)
    link = column_index(dataset, "image").chunks[0]
    data = bytearray(objects.stored[link.digest])  # type: ignore[union-attr]
    data[len(data) - int.from_bytes(data[16:24], "little") + 3000] ^= 1  # of the payload
    objects.stored[link.digest] = bytes(data)  # type: ignore[union-attr]
    with pytest.raises(CorruptError, match="image"):
        decoded(open_dataset(objects, dataset.digest), Decode(size=24, scans=scans))


def test_a_preview_that_says_something_else_is_found_by_verification() -> None:
    dataset = written(MemoryObjects(), PHOTOS)
    index = page_reader(dataset, "image").index
    index.previews.flags.writeable = True
    index.previews["largest"][0, 1] += 1
    (fault,) = verify_dataset(dataset)
    assert "band 1" in fault
    assert "largest" in fault
