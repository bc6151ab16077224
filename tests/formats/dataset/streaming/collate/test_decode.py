"""Streams of images: one array a batch, the same pixels whoever makes it, bad rows counted."""

from __future__ import annotations

import gc
import logging
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Image, Scalar, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.streams import MappedObjects, stream, stream_threads

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
from collections.abc import Iterator

from tensorrepo.formats.dataset.read import StoredDataset
from tests.support.builders.pictures import (
    by_pillow,
    encoded,
    jpeg,
    resized_by_pillow,
    shades_apart,
    smooth,
)

COUNT = 70
BROKEN = (3, 20, 21, 66)
SCHEMA = Schema(
    (Column("photo", Image()), Column("mask", Bytes(), nullable=True), Column("y", Scalar("int64")))
)


def photo(at: int) -> bytes:
    pixels = smooth(40 + at % 3, 50 + at % 5, seed=at)
    return jpeg(pixels) if at % 4 else encoded(pixels, "PNG")


ROWS = [
    {
        "photo": photo(at),
        "mask": None if at % 6 == 0 else encoded(smooth(20, 30, 1, seed=at), "PNG"),
        "y": np.int64(at),
    }
    for at in range(COUNT)
]
DAMAGED = [
    row | {"photo": row["photo"][:300]} if at in BROKEN else row for at, row in enumerate(ROWS)
]
RANDOM = Decode(size=24, fit="random", flip=True)
MASK = Decode(size=(10, 20), mode="L")


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(scope="module")
def damaged() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [DAMAGED], page_bytes=8192)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    if stream_threads():  # a collection takes half a second
        gc.collect()
    assert stream_threads() == []


def batches(ds: StoredDataset, images: Any, **options: Any) -> list[Any]:
    return list(stream(ds, **{"batch_size": 16, "decode": images, **options}))


def by_row(found: list[Any], name: str = "photo") -> dict[int, Any]:
    return {
        row: np.asarray(batch[name][at])
        for batch in found
        for at, row in enumerate(batch.rows.tolist())
    }


# ------------------------------------------------------------------------------ what comes


def test_images_come_as_one_array_a_batch(dataset: StoredDataset) -> None:
    found = batches(dataset, {"photo": Decode(size=(24, 32))}, seed=3)
    assert [batch["photo"].shape[1:] for batch in found] == [(24, 32, 3)] * 5
    assert sum(len(batch["photo"]) for batch in found) == COUNT
    assert all((batch["y"] == batch.rows).all() for batch in found)


def test_exact_pixels_are_those_of_pillow(dataset: StoredDataset) -> None:
    found = by_row(batches(dataset, {"photo": Decode(size=24, fit="stretch", exact=True)}))
    assert found[8].shape == (24, 24, 3)
    expected = [resized_by_pillow(by_pillow(row["photo"]), (24, 24)) for row in ROWS]
    assert [shades_apart(found[at], expected[at]) for at in range(COUNT)] == [0] * COUNT


def test_the_fast_way_is_a_few_shades_off(dataset: StoredDataset) -> None:
    exact = by_row(batches(dataset, {"photo": Decode(size=24, exact=True)}))
    fast = by_row(batches(dataset, {"photo": Decode(size=24)}))
    assert max(shades_apart(fast[at], exact[at]) for at in range(COUNT)) <= 12


def test_planes_come_first_when_asked_for(dataset: StoredDataset) -> None:
    pixels = by_row(batches(dataset, {"photo": RANDOM}))
    planes = by_row(
        batches(dataset, {"photo": Decode(size=24, fit="random", flip=True, layout="CHW")})
    )
    assert planes[5].shape == (3, 24, 24)
    assert all((planes[at] == pixels[at].transpose(2, 0, 1)).all() for at in range(COUNT))


def test_a_padded_picture_lies_in_the_middle_of_zeros(dataset: StoredDataset) -> None:
    found = by_row(batches(dataset, {"photo": Decode(size=64, fit="pad", exact=True)}))
    assert not found[1][:5].any()
    assert not found[1][-5:].any()
    whole = resized_by_pillow(by_pillow(ROWS[1]["photo"]), (51, 64))
    assert shades_apart(found[1][6:57], whole) == 0


def test_true_decodes_every_image_column_in_its_own_size(dataset: StoredDataset) -> None:
    found = batches(dataset, True)
    assert isinstance(found[0]["photo"], list)
    assert isinstance(found[0]["mask"], list)
    pixels = by_row(found)
    assert all(shades_apart(pixels[at], by_pillow(ROWS[at]["photo"])) == 0 for at in range(COUNT))


def test_pictures_of_one_size_are_stacked_without_being_asked() -> None:
    ds = stored(
        MappedObjects(), Schema.of({"photo": Image()}), [{"photo": [jpeg(smooth(20, 30))] * 9}]
    )
    (found,) = batches(ds, True)
    assert found["photo"].shape == (9, 20, 30, 3)


def test_columns_are_decoded_each_in_its_way(dataset: StoredDataset) -> None:
    found = batches(dataset, {"photo": RANDOM, "mask": MASK})
    assert found[0]["photo"].shape == (16, 24, 24, 3)
    assert found[0]["mask"].shape == (16, 10, 20, 1)


def test_null_is_zeros_and_not_valid(dataset: StoredDataset) -> None:
    found = batches(dataset, {"mask": MASK}, columns=["mask", "y"])
    masks, valid = by_row(found, "mask"), {
        int(row): bool(here)
        for batch in found
        for row, here in zip(batch.rows, batch.valid["mask"], strict=True)
    }  # fmt: skip
    assert [at for at in range(COUNT) if not valid[at]] == list(range(0, COUNT, 6))
    assert [at for at in range(COUNT) if not masks[at].any()] == list(range(0, COUNT, 6))


def test_null_is_none_in_a_list(dataset: StoredDataset) -> None:
    found = batches(dataset, {"mask": Decode(mode="L")}, columns=["mask"], shuffle=False)
    assert found[0]["mask"][0] is None
    assert found[0]["mask"][1].shape == (20, 30, 1)


def test_tensors_share_the_memory_that_was_decoded_into(dataset: StoredDataset) -> None:
    torch = pytest.importorskip("torch")
    found = batches(dataset, {"photo": RANDOM}, output="torch")
    assert found[0]["photo"].dtype == torch.uint8
    plain = by_row(batches(dataset, {"photo": RANDOM}))
    assert all((by_row(found)[at] == plain[at]).all() for at in range(COUNT))


def test_a_transform_gets_pixels(dataset: StoredDataset) -> None:
    found = list(
        stream(
            dataset,
            batch_size=16,
            decode={"photo": RANDOM},
            transform=lambda batch: batch["photo"].mean(axis=(1, 2, 3)),
        )
    )
    assert sum(map(len, found)) == COUNT


# ------------------------------------------------------------------------------ the same everywhere


@pytest.mark.parametrize(
    "options",
    [
        {"work_threads": 1},
        {"work_threads": 5},
        {"prefetch": 0},
        {"prefetch": 1, "work_threads": 3},
        {"batch_size": 7},
        {"shuffle": "global"},
        {"window": 20_000},
    ],
    ids=str,
)
def test_random_boxes_follow_from_seed_epoch_and_row_alone(
    dataset: StoredDataset, options: dict[str, Any]
) -> None:
    expected = by_row(batches(dataset, {"photo": RANDOM}, seed=5, epoch=2))
    found = by_row(batches(dataset, {"photo": RANDOM}, seed=5, epoch=2, **options))
    assert all((found[at] == expected[at]).all() for at in range(COUNT))


@pytest.mark.parametrize("world", [2, 3])
def test_every_world_sees_the_same_pixels(dataset: StoredDataset, world: int) -> None:
    expected = by_row(batches(dataset, {"photo": RANDOM}, seed=5))
    ranks = [
        batches(dataset, {"photo": RANDOM}, seed=5, rank=rank, world_size=world)
        for rank in range(world)
    ]
    found = by_row([batch for rank in ranks for batch in rank])
    assert sorted(found) == list(range(COUNT))
    assert all((found[at] == expected[at]).all() for at in range(COUNT))


def test_a_resumed_stream_goes_on_with_the_same_pixels(dataset: StoredDataset) -> None:
    expected = by_row(batches(dataset, {"photo": RANDOM}, seed=5))
    first = stream(dataset, batch_size=16, decode={"photo": RANDOM}, seed=5)
    some = iter(first)
    begun = [next(some), next(some)]
    state = first.state_dict()
    some.close()
    rest = stream(dataset, batch_size=8, decode={"photo": RANDOM})
    rest.load_state_dict(state)
    found = by_row([*begun, *rest])
    assert sorted(found) == list(range(COUNT))
    assert all((found[at] == expected[at]).all() for at in range(COUNT))


def test_another_epoch_and_another_seed_cut_otherwise(dataset: StoredDataset) -> None:
    one, other, third = (
        by_row(batches(dataset, {"photo": RANDOM}, seed=seed, epoch=epoch))
        for seed, epoch in ((5, 0), (5, 1), (6, 0))
    )
    assert sum((one[at] != other[at]).any() for at in range(COUNT)) > COUNT - 5
    assert sum((one[at] != third[at]).any() for at in range(COUNT)) > COUNT - 5


def test_pictures_of_one_size_are_cut_alike_in_every_column() -> None:
    pixels = [smooth(40, 50, seed=at) for at in range(20)]
    rows = [{"a": encoded(each, "PNG"), "b": encoded(each, "BMP")} for each in pixels]
    ds = stored(MappedObjects(), Schema.of({"a": Image(), "b": Image()}), [rows])
    (found,) = batches(ds, RANDOM, batch_size=20)
    assert (found["a"] == found["b"]).all()


# ------------------------------------------------------------------------------ bad rows


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_damaged_image_ends_the_stream_and_is_named(
    damaged: StoredDataset, prefetch: int
) -> None:
    with pytest.raises(
        CorruptError, match=r"row \d+ \(id [0-9a-f]{16}:\d+, column 'photo'\).*skip"
    ):
        batches(damaged, {"photo": RANDOM}, prefetch=prefetch)


@pytest.mark.parametrize("output", ["numpy", "torch"])
@pytest.mark.parametrize("images", [{"photo": RANDOM}, {"photo": Decode()}], ids=["array", "list"])
def test_skipped_rows_are_left_out_of_every_column(
    damaged: StoredDataset, images: dict[str, Decode], output: str
) -> None:
    pytest.importorskip("torch")
    found = batches(damaged, images, on_error="skip", output=output)
    rows = [row for batch in found for row in batch.rows.tolist()]
    assert sorted(rows) == [at for at in range(COUNT) if at not in BROKEN]
    for batch in found:
        assert len(batch["photo"]) == len(batch["mask"]) == len(batch.rows) == len(batch.row_ids)
        assert np.asarray(batch["y"]).tolist() == batch.rows.tolist()
        assert len(batch.valid["mask"]) == len(batch.rows)


def test_skipped_rows_are_counted_named_and_reported_once(
    damaged: StoredDataset, caplog: pytest.LogCaptureFixture
) -> None:
    found = stream(damaged, batch_size=16, decode={"photo": RANDOM}, on_error="skip")
    with caplog.at_level(logging.WARNING, "tensorrepo"):
        assert len(list(found)) == 5
    assert found.stats().skipped == {"image": len(BROKEN)}
    assert len(found.stats().bad) == len(BROKEN)
    assert "column 'photo'" in found.stats().bad[0]
    (record,) = caplog.records
    assert "left out: 4 (image)" in record.getMessage()


def test_nothing_is_reported_where_nothing_was_bad(
    dataset: StoredDataset, caplog: pytest.LogCaptureFixture
) -> None:
    batches(dataset, {"photo": RANDOM}, on_error="skip")
    assert caplog.records == []


def test_rows_of_all_ranks_without_the_bad_ones_come_once(damaged: StoredDataset) -> None:
    ranks = [
        batches(damaged, {"photo": RANDOM}, on_error="skip", rank=rank, world_size=2)
        for rank in (0, 1)
    ]
    assert [len(rank) for rank in ranks] == [5, 5]
    assert [one.position for one in ranks[0]] == [other.position for other in ranks[1]]
    rows = [row for rank in ranks for batch in rank for row in batch.rows.tolist()]
    assert sorted(rows) == [at for at in range(COUNT) if at not in BROKEN]


def test_a_resumed_stream_skips_the_same_rows(damaged: StoredDataset) -> None:
    first = stream(damaged, batch_size=16, decode={"photo": RANDOM}, on_error="skip")
    some = iter(first)
    begun = [next(some), next(some)]
    state = first.state_dict()
    some.close()
    rest = stream(damaged, batch_size=16, decode={"photo": RANDOM}, on_error="skip")
    rest.load_state_dict(state)
    assert sorted(by_row([*begun, *rest])) == [at for at in range(COUNT) if at not in BROKEN]


def test_a_function_gives_what_is_used_instead(damaged: StoredDataset) -> None:
    asked: list[str] = []

    def instead(error: Exception, row_id: str) -> Any:
        assert isinstance(error, CorruptError)
        asked.append(row_id)
        return [jpeg(smooth(24, 24, seed=99)), np.full((24, 24, 3), 7, np.uint8), None, None][
            BROKEN.index(int(row_id.split(":")[1]))
        ]

    reader = stream(damaged, batch_size=16, decode={"photo": Decode(size=24)}, on_error=instead)
    found = by_row(list(reader))
    assert shades_apart(found[BROKEN[0]], by_pillow(jpeg(smooth(24, 24, seed=99)))) == 0
    assert (found[BROKEN[1]] == 7).all()
    assert BROKEN[2] not in found
    assert len(asked) == len(BROKEN)
    assert reader.stats().replaced == {"image": 2}
    assert reader.stats().skipped == {"image": 2}


def test_a_replacement_of_another_shape_is_an_error(damaged: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match=r"\(2, 2, 3\).*expected uint8 \(24, 24, 3\)"):
        batches(damaged, {"photo": RANDOM}, on_error=lambda *_: np.zeros((2, 2, 3), np.uint8))


def test_a_replacement_that_is_no_picture_is_named_and_not_counted(damaged: StoredDataset) -> None:
    reader = stream(
        damaged, batch_size=16, decode={"photo": RANDOM}, on_error=lambda *_: b"\xff\xd8 no picture"
    )
    named = r"row \d+ \(id .*, column 'photo'\): what on_error gave for it cannot be used either: "
    with pytest.raises(InvalidInputError, match=named) as raised:
        list(reader)
    assert " at 0x" not in str(raised.value)
    assert (reader.stats().replaced, reader.stats().bad) == ({}, [])


def test_what_on_error_raises_tells_of_the_row(damaged: StoredDataset) -> None:
    def fails(*_: Any) -> Any:
        raise KeyError("missing")

    with pytest.raises(KeyError, match="missing") as raised:
        batches(damaged, {"photo": RANDOM}, on_error=fails)
    (note,) = raised.value.__notes__
    assert note.startswith("raised by on_error, for row ")
    assert "column 'photo'" in note


def test_a_step_without_any_good_row_is_an_error() -> None:
    rows = {"photo": [b"no image"] * 8}
    ds = stored(MappedObjects(), Schema.of({"photo": Bytes()}), [rows])
    with pytest.raises(CorruptError, match="no row is left of the step that ends at position 4"):
        batches(ds, {"photo": RANDOM}, batch_size=4, on_error="skip")


def test_a_transform_that_fails_is_never_skipped(dataset: StoredDataset) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("a fault of the transform")

    with pytest.raises(ValueError, match="a fault of the transform"):
        batches(dataset, {"photo": RANDOM}, on_error="skip", transform=fails)


# ------------------------------------------------------------------------------ limits and errors


def test_an_image_larger_than_allowed_is_a_bad_row(dataset: StoredDataset) -> None:
    reader = stream(
        dataset,
        batch_size=16,
        decode={"photo": Decode(size=24, max_pixels=41 * 54)},
        on_error="skip",
    )
    assert max(row % 3 + row % 5 for row in by_row(list(reader))) < 6
    assert "larger than max_pixels" in reader.stats().bad[0]


def test_arrays_come_from_few_blocks_of_memory(dataset: StoredDataset) -> None:
    places = set()
    reader = stream(dataset, batch_size=8, decode={"photo": Decode(size=64)}, prefetch=2)
    for epoch in range(6):
        reader.set_epoch(epoch)
        places |= {batch["photo"].ctypes.data // (64 * 64) for batch in reader}
    assert len(places) <= 8


def test_a_loop_that_is_left_ends_its_threads(dataset: StoredDataset) -> None:
    for _ in stream(dataset, batch_size=8, decode={"photo": RANDOM}, work_threads=4):
        break


def test_arrow_holds_no_decoded_images(dataset: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="output is 'numpy', 'torch' or 'jax'"):
        stream(dataset, batch_size=4, decode={"photo": RANDOM}, output="arrow")


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"y": RANDOM}, "column 'y' holds neither images nor bytes"),
        ({"elsewhere": RANDOM}, "column 'elsewhere' is not streamed"),
        ({"photo": 224}, r"is True or a Decode\(...\), got 224"),
    ],
)
def test_columns_that_cannot_be_decoded_are_named(
    dataset: StoredDataset, images: Any, message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stream(dataset, batch_size=4, decode=images)


def test_all_images_of_none_is_an_error(dataset: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="none of the columns"):
        stream(dataset, batch_size=4, columns=["y"], decode=True)


def test_true_means_pictures_of_their_own_size(dataset: StoredDataset) -> None:
    named = stream(dataset, batch_size=8, shuffle=False, decode={"photo": True, "mask": False})
    assert dict(named.setup.decodes) == {"photo": Decode()}


def test_sizes_may_come_from_numpy_or_a_list() -> None:
    assert Decode(size=np.int64(24)).shape == (24, 24)  # type: ignore[arg-type]
    assert Decode(size=[24, 32]).shape == (24, 32)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [
        {"size": 0},
        {"size": (1, 2, 3)},
        {"size": "224"},
        {"size": 22.4},
        {"fit": "squeeze"},
        {"fit": "pad"},
        {"mode": "BGR"},
        {"layout": "NHWC"},
        {"area": (0.5, 1.5)},
        {"ratio": (2.0, 1.0)},
        {"area": 0.5},
        {"area": "ab"},
        {"ratio": (0.5, 1.0, 2.0)},
        {"ratio": (0.5, float("inf"))},
        {"flip": "x"},
        {"exact": 1},
        {"fit": "random"},
        {"fit": "stretch"},
        {"max_pixels": 0},
        {"max_pixels": 1.5},
    ],
    ids=str,
)
def test_nonsense_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="Decode: "):
        Decode(**options)


@pytest.mark.parametrize("on_error", ["ignore", None, 3])
def test_what_happens_to_bad_rows_is_one_of_three(dataset: StoredDataset, on_error: Any) -> None:
    with pytest.raises(InvalidInputError, match="'raise', 'skip' or a function"):
        stream(dataset, batch_size=4, on_error=on_error)
