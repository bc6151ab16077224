"""Appends on both sides are kept; everything else is a conflict that says why."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.read import Dataset, open_dataset
from tensorrepo.formats.dataset.schema import Bytes, Schema
from tensorrepo.repo.merge import Conflict, MergeContext
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tests.support.datasets import stored
from tests.support.objects import MemoryObjects

SCHEMA = Schema.of({"n": "int64", "b": Bytes()})


def _rows(start: int, count: int, width: int = 3) -> dict[str, Any]:
    return {
        "n": list(range(start, start + count)),
        "b": [bytes([at % 256]) * width for at in range(start, start + count)],
    }


def _entry(dataset: Dataset) -> Entry:
    return Entry(Kind.DATASET, dataset.digest)


def _merge(
    base: Dataset | None, ours: Dataset, theirs: Dataset, generations: tuple[int, int] = (2, 3)
) -> Entry | Conflict:
    context = MergeContext(automatic=True, strategy="fail", generations=generations)
    old = None if base is None else _entry(base)
    return DatasetMergeDriver().merge(
        ours.objects,  # type: ignore[arg-type]  # MemoryObjects is a sink too
        "datasets/x",
        old,
        _entry(ours),
        _entry(theirs),
        context,
    )


def _numbers(dataset: Dataset) -> list[int]:
    found: list[int] = dataset["n"][:].tolist()
    return found


WIDTHS = st.sampled_from([3, 300, 9000])


@given(
    st.integers(0, 20),
    st.integers(1, 20),
    st.integers(1, 20),
    st.tuples(WIDTHS, WIDTHS, WIDTHS),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_the_result_holds_the_rows_of_both_and_is_the_same_whoever_merges(
    shared: int, one: int, two: int, widths: tuple[int, int, int], generations: tuple[int, int]
) -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, shared, widths[0])] if shared else [])
    options: dict[str, Any] = {"base": base, "budget_bytes": 1 << 15, "page_bytes": 1024}
    ours = stored(objects, SCHEMA, [_rows(100, one, widths[1])], 1, **options)
    theirs = stored(objects, SCHEMA, [_rows(200, two, widths[2])], 2, **options)
    merged = _merge(base, ours, theirs, generations)
    mirrored = _merge(base, theirs, ours, generations[::-1])
    if isinstance(merged, Conflict):
        assert isinstance(mirrored, Conflict)
        assert (shared, mirrored.reason) == (0, merged.reason)
        return
    assert mirrored == merged
    found = open_dataset(objects, merged.digest)
    expected = [
        *range(shared),
        *sorted([*range(100, 100 + one), *range(200, 200 + two)]),
    ]
    assert sorted(_numbers(found)) == expected
    assert _numbers(found)[:shared] == list(range(shared))
    assert [row["b"][:1] for row in found] == [bytes([n % 256]) for n in _numbers(found)]
    assert found.root.stored_bytes == sum(e.stored_bytes for e in found.root.statistics)


def test_the_side_of_the_lower_generation_comes_first() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 1)])
    ours = stored(objects, SCHEMA, [_rows(10, 2)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 2)], 2, base=base)
    merged = _merge(base, ours, theirs, (5, 4))
    assert isinstance(merged, Entry)
    assert _numbers(open_dataset(objects, merged.digest)) == [0, 20, 21, 10, 11]


def test_rows_that_one_side_has_from_the_other_come_once() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 1)])
    ours = stored(objects, SCHEMA, [_rows(10, 2)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 2)], 2, base=ours)
    merged = _merge(base, ours, theirs, (2, 3))
    assert isinstance(merged, Entry)
    assert _numbers(open_dataset(objects, merged.digest)) == [0, 10, 11, 20, 21]


def test_chunks_of_both_sides_are_linked_not_copied() -> None:
    objects = MemoryObjects()
    base = stored(objects, SCHEMA, [_rows(0, 10, 9000)])
    ours = stored(objects, SCHEMA, [_rows(10, 10, 9000)], 1, base=base)
    theirs = stored(objects, SCHEMA, [_rows(20, 10, 9000)], 2, base=base)
    chunks = {digest for digest, link in objects.links.items() if link.kind is Kind.CHUNK}
    merged = _merge(base, ours, theirs)
    assert isinstance(merged, Entry)
    fresh = {digest for digest, link in objects.links.items() if link.kind is Kind.CHUNK} - chunks
    assert sum(objects.links[digest].bytes for digest in fresh) < 20_000


def test_two_new_datasets_of_one_name_are_a_conflict() -> None:
    objects = MemoryObjects()
    ours, theirs = (stored(objects, SCHEMA, [_rows(0, 2)], seed) for seed in (1, 2))
    found = _merge(None, ours, theirs)
    assert isinstance(found, Conflict)
    assert "both sides made" in found.reason
