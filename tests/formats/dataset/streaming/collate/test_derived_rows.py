"""What a transform made is found again in any order, and never taken for something else."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Image, Scalar, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.options import DerivedCache
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_stream
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import DiskCache
from tests.support.builders import derived
from tests.support.builders.changed import without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.pictures import encoded, smooth
from tests.support.builders.streams import COUNT, ROWS, SCHEMA, MappedObjects, options_of
from tests.support.effort import sampled


@pytest.fixture(scope="module")
def local() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


def cache_at(tmp_path: Path, limit: int = 1 << 30) -> DiskCache:
    return DiskCache(tmp_path / "derived", limit)


def opened(ds: StoredDataset, kept: DiskCache, transform: Any, **options: Any) -> BatchStream:
    words = {"batch_size": 50, "columns": ["x", "y"], "cache": "derived", "transform": transform}
    return open_stream(ds, options_of(**(words | options)), derived_cache=kept)


def plain(ds: StoredDataset, transform: Any, **options: Any) -> BatchStream:
    words = {"batch_size": 50, "columns": ["x", "y"]} | options
    return open_stream(ds, options_of(transform=transform, **words))


def counted(found: BatchStream) -> tuple[int, int]:
    stats = found.stats()
    return stats.derived_found, stats.derived_made


def assert_alike(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            assert_alike(one[name], other[name])
    elif isinstance(one, tuple):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_alike(mine, its)
    else:
        np.testing.assert_array_equal(one, other)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


@pytest.mark.parametrize("transform", sampled([derived.pair, derived.scaled, derived.in_place], 2))
def test_the_second_epoch_is_found_and_the_same(
    local: StoredDataset, tmp_path: Path, transform: Any
) -> None:
    found, expected = opened(local, cache_at(tmp_path), transform), plain(local, transform)
    for epoch, told in enumerate([(0, COUNT), (COUNT, 0)]):
        items, others = list(found), list(expected)
        assert counted(found) == told, epoch
        for mine, its in zip(items, others, strict=True):
            assert_alike(mine, its)


@pytest.mark.soak
def test_a_batch_keeps_what_is_known_of_its_rows(local: StoredDataset, tmp_path: Path) -> None:
    found = opened(local, cache_at(tmp_path), derived.in_place, columns=["x", "y", "n"])
    first = {int(row): batch for batch in found for row in batch.rows}
    for batch in found:
        assert batch.position % 50 == 0
        assert len(batch.row_ids) == 50
        for at, row in enumerate(batch.rows.tolist()):
            before = first[row]
            place = before.rows.tolist().index(row)
            assert batch.valid["n"][at] == before.valid["n"][place]
            assert batch["twice"][at] == 2 * row


def test_what_is_missing_is_made_and_the_rest_is_found(
    local: StoredDataset, tmp_path: Path
) -> None:
    cache = cache_at(tmp_path)
    list(opened(local, cache, derived.scaled, rows=range(0, COUNT, 2)))
    found = opened(local, cache, derived.scaled, seed=5)
    items, expected = list(found), list(plain(local, derived.scaled, seed=5))
    assert counted(found) == (COUNT // 2, COUNT // 2)
    for mine, its in zip(items, expected, strict=True):
        assert_alike(mine, its)


def test_other_versions_find_the_rows_that_did_not_change(tmp_path: Path) -> None:
    objects = MemoryObjects()
    ds = stored(objects, SCHEMA, [ROWS], page_bytes=8192)
    cache = cache_at(tmp_path)
    list(opened(ds, cache, derived.scaled))
    changed = [row | {"x": row["x"] + 1} if at < 10 else row for at, row in enumerate(ROWS)]
    fewer = without(objects, stored(objects, SCHEMA, [changed], page_bytes=4096), [500, 501])
    found = opened(fewer, cache, derived.scaled)
    items = list(found)
    assert counted(found) == (COUNT - 12, 10)
    assert sum(len(item["name"]) for item in items) == COUNT - 2


def test_another_function_version_or_form_finds_nothing(
    local: StoredDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_at(tmp_path)
    list(opened(local, cache, derived.scaled))
    one = opened(local, cache, derived.scaled, cache=DerivedCache(version="1"))
    two = opened(local, cache, derived.scaled, cache=DerivedCache(version="2"))
    as_torch = opened(local, cache, derived.tensors, columns=["x", "y"])
    for found in (one, two, as_torch):
        list(found)
        assert counted(found) == (0, COUNT)
    monkeypatch.setattr(derived, "SCALE", 4.0)  # a global that the function uses
    again = opened(local, cache, derived.scaled)
    list(again)
    assert counted(again) == (0, COUNT)


def test_a_function_that_cannot_be_identified_needs_a_version(
    local: StoredDataset, tmp_path: Path
) -> None:
    class Model:
        __slots__ = ("weights",)

        def __init__(self) -> None:
            self.weights = np.zeros(1 << 18)  # more than 1 MiB: data

        def __call__(self, batch: Any) -> Any:
            return {"z": batch["x"]}

    with pytest.raises(InvalidInputError, match="version='1'"):
        opened(local, cache_at(tmp_path), Model())
    found = opened(local, cache_at(tmp_path), Model(), cache=DerivedCache(version="1"))
    list(found)
    list(found)
    assert counted(found) == (COUNT, 0)


@pytest.mark.parametrize(
    ("transform", "told"),
    [
        (derived.of_the_batch, "something else of a row alone"),
        (derived.random_values, "something else of a row alone"),
        (derived.no_rows, r"\['z'\] does not consist of the 50 rows"),
    ],
)
def test_what_is_no_matter_of_single_rows_is_refused(
    local: StoredDataset, tmp_path: Path, transform: Any, told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        list(opened(local, cache_at(tmp_path), transform))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"transform": None}, "transform= or decode="),
        ({"output": "jax"}, "another output than 'jax'"),
        ({"columns": ["r"], "pad": 0}, "no pad="),
        ({"on_error": "skip"}, "on_error='raise'"),
        ({"cache": "pages"}, "'derived' or a tr.DerivedCache"),
    ],
)
def test_options_that_do_not_go_with_it_are_refused(
    local: StoredDataset, tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        opened(local, cache_at(tmp_path), options.pop("transform", derived.scaled), **options)


def test_a_damaged_row_is_made_again(local: StoredDataset, tmp_path: Path) -> None:
    cache = cache_at(tmp_path)
    found = opened(local, cache, derived.scaled)
    list(found)
    files = sorted(path for path in cache.root.rglob("*") if path.parent != cache.root)
    assert len(files) == COUNT
    for path in files[::10]:
        data = bytearray(path.read_bytes())
        data[len(data) // 3] ^= 4
        path.write_bytes(data)
    items, expected = list(found), plain(local, derived.scaled)
    expected.set_epoch(1)
    assert counted(found) == (COUNT - 100, 100)
    for mine, its in zip(items, list(expected), strict=True):
        assert_alike(mine, its)


def test_the_cache_stays_below_its_limit(local: StoredDataset, tmp_path: Path) -> None:
    limit = 200_000  # of some 1,000 rows of 900 bytes
    cache = cache_at(tmp_path, limit)
    found = opened(local, cache, derived.scaled)
    for _ in range(2):
        list(found)
    cache.evict()
    kept = sum(path.stat().st_size for path in cache.root.rglob("*") if path.is_file())
    assert kept <= 1.1 * limit
    assert sum(counted(found)) == COUNT


@pytest.mark.soak
@pytest.mark.parametrize("used", [0, 7])
def test_order_and_resume_are_those_without_it(
    local: StoredDataset, tmp_path: Path, used: int
) -> None:
    cache = cache_at(tmp_path)
    list(opened(local, cache, derived.in_place, rows=range(300)))
    ours, plainly = opened(local, cache, derived.in_place), plain(local, derived.in_place)
    states = []
    for found in (ours, plainly):
        iterator = iter(found)
        for _ in range(used):
            next(iterator)
        states.append(found.state_dict())
        iterator.close()
    assert states[0] == states[1]
    resumed = opened(local, cache, derived.in_place)
    resumed.load_state_dict(states[0])
    expected = plain(local, derived.in_place)
    expected.load_state_dict(states[0])
    pairs = zip(resumed, expected, strict=True)
    assert all(mine.rows.tolist() == its.rows.tolist() for mine, its in pairs)


@pytest.mark.soak
def test_tensors_are_found_as_tensors(local: StoredDataset, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    found = opened(local, cache_at(tmp_path), derived.tensors, output="torch")
    list(found)
    for item in found:
        assert isinstance(item["z"], torch.Tensor)
        assert torch.equal(item["z"][:, 0], 2.0 * item["y"])
        item["z"] += 1  # it can be written to
    assert counted(found) == (COUNT, 0)


PICTURES = Schema((Column("photo", Image()), Column("y", Scalar("int64"))))


def test_pictures_are_decoded_once(tmp_path: Path) -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("simplejpeg")
    rows = [
        {"photo": encoded(smooth(40, 50, seed=at), "PNG"), "y": np.int64(at)} for at in range(40)
    ]
    ds = stored(MappedObjects(), PICTURES, [rows])
    words = {"columns": ["photo", "y"], "batch_size": 8, "decode": Decode(size=16)}
    found = opened(ds, cache_at(tmp_path), None, **words)
    expected = plain(ds, None, **words)
    for epoch in range(2):
        for mine, its in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine["photo"], its["photo"])
            assert mine.rows.tolist() == its.rows.tolist()
        assert (found.stats().decode_seconds == 0) == bool(epoch)
    with pytest.raises(InvalidInputError, match="flipped at random"):
        opened(ds, cache_at(tmp_path), None, **(words | {"decode": Decode(size=16, flip=True)}))


def _derive(folder: str, seed: int, told: Any) -> None:
    ds = stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)
    cache = DiskCache(Path(folder), 1 << 30)
    found = opened(ds, cache, derived.scaled, seed=seed)
    sums = [float(item["z"].sum()) for _ in range(2) for item in found]
    told.put((sum(sums), counted(found)))


@pytest.mark.soak
def test_two_processes_at_once_share_rows_and_read_no_torn_one(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    children = [
        spawn.Process(target=_derive, args=(str(tmp_path / "derived"), seed, told))
        for seed in range(2)
    ]
    for child in children:
        child.start()
    answers = [told.get(timeout=120) for _ in children]
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    expected = 2 * sum(float(item["z"].sum()) for item in plain(
        stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192), derived.scaled
    ))  # fmt: skip
    for total, (found, made) in answers:
        assert total == pytest.approx(expected)
        assert (found, made) == (COUNT, 0)  # of the second epoch
    files = [path for path in (tmp_path / "derived").rglob("*") if path.is_file()]
    assert len([path for path in files if not path.name.startswith(".")]) == COUNT + 1  # its tag
