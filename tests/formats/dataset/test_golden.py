"""Golden datasets are written and read alike, by this reader and by one made from the spec."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.metadata.manifest import HAS_DELETIONS, HAS_PATCHES, HAS_RUNS
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    fragment_records,
    open_dataset,
    page_reader,
)
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.objects.envelope import decode_object
from tests.support.builders.datasets import datasets, same_rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.dataset import CASES, EVERYTHING, Case, golden_files, golden_objects
from tests.support.second_readers.comparison import agrees


@cache
def _case(name: str) -> Case:
    return CASES[name]()


def _opened(case: str) -> StoredDataset:
    objects = MemoryObjects()
    files = golden_files(case)
    for whole in files.values():
        digest = object_digest((whole,))
        objects.stored[digest] = whole
        objects.links[digest] = decode_object(whole).link(digest)
    return open_dataset(objects, object_digest((files["root.bin"],)))


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_datasets_are_written_alike_today(case: str) -> None:
    made = _case(case)
    found = golden_objects(made.dataset)
    assert sorted(golden_files(case)) == sorted(found)
    # The bytes that compressors make change between their versions.
    assert made.is_compressed or golden_files(case) == found


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_datasets_hold_what_went_in(case: str) -> None:
    dataset, rows = _opened(case), _case(case).rows
    visible = dataset.schema.visible.without_ids()
    assert visible == _case(case).dataset.schema.visible.without_ids()
    # Through a store of today, so that values have the types that reading gives them.
    expected = list(stored(MemoryObjects(), visible, [rows]))
    shown = [{name: row[name] for name in visible.names} for row in dataset]
    assert same_rows(shown, [{name: row[name] for name in visible.names} for row in expected])
    assert len(dataset) == len(rows)


@pytest.mark.parametrize("case", sorted(CASES))
def test_golden_datasets_are_read_by_the_spec_alone(case: str) -> None:
    dataset = _opened(case)
    objects = dataset.objects
    assert isinstance(objects, MemoryObjects)
    assert agrees(objects, dataset)


@pytest.mark.parametrize(
    ("case", "flags"),
    [
        ("everything", 0),
        ("deleted", HAS_DELETIONS),
        ("patched", HAS_PATCHES),
        ("columns", HAS_PATCHES),
        ("compacted", HAS_RUNS),
    ],
)
def test_golden_datasets_have_the_parts_that_they_are_called_by(case: str, flags: int) -> None:
    assert int(np.bitwise_or.reduce(fragment_records(_opened(case))["flags"])) == flags


def test_the_golden_deletions_have_both_forms() -> None:
    fragments = fragment_records(_opened("deleted"))
    assert fragments["deleted"].tolist() == [2, 15]


def test_golden_patches_lie_over_patches_and_beside_replaced_pages() -> None:
    index = column_index(_opened("patched"), "x")
    assert index.patches is not None
    assert index.patches.rows.tolist() == [2, 5, 90, 91]
    assert index.patches.pages.rows == 5  # one of which is hidden by a later one


def test_the_widened_golden_column_has_pages_of_two_forms_and_a_default() -> None:
    dataset = _opened("columns")
    assert [storage.dtype for storage in column_index(dataset, "x").storages] == [
        "float32",
        "int16",
    ]
    assert column_index(dataset, "mean").default is not None


@pytest.mark.parametrize(
    ("case", "codecs"),
    [("tiled", {Codec.NONE}), ("tiled-shuffled", {Codec.NONE, Codec.SHUFFLE_ZSTD})],
)
def test_golden_tiles_have_these_codecs(case: str, codecs: set[Codec]) -> None:
    table = page_reader(_opened(case), "volume").tile_table(0)
    assert set(table.tiles["codec"].tolist()) == codecs


def test_the_large_golden_dataset_has_an_index_and_a_chunk_of_its_own() -> None:
    assert sorted(golden_files("large")) == ["chunk.2.bin", "page_index.1.bin", "root.bin"]


def test_the_golden_leaves_are_several_and_their_parts_are_objects() -> None:
    files = [*golden_files("leaves"), *golden_files("large")]
    kinds = {name.partition(".")[0] for name in files}
    assert {"leaf", "page_index", "chunk"} <= kinds
    assert len(dataset_leaves(_opened("leaves"))) > 2


def test_golden_images_have_hidden_columns_of_what_their_headers_say() -> None:
    dataset = _opened("everything")
    hidden = [column.name for column in dataset.schema.columns if column.derived is not None]
    assert hidden == ["image.height", "image.width", "image.mode"]
    assert dataset.schema.visible.without_ids() == Schema(EVERYTHING.columns)
    assert [dataset["image.width"][at] for at in range(4)] == [3, None, 3, None]
    assert [dataset["image.mode"][at] for at in range(4)] == ["RGB", None, "RGB", None]


@given(datasets(max_rows=15))
def test_any_dataset_is_read_by_the_spec_alone(drawn: object) -> None:
    schema, rows = drawn  # type: ignore[misc]  # what the strategy draws
    objects = MemoryObjects()
    dataset = stored(objects, schema, [rows], page_bytes=200)  # type: ignore[has-type]
    assert agrees(objects, dataset)
