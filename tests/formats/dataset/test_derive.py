"""What a function makes of a dataset is what it makes of each of its rows, however it got there."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tensorrepo.formats.common.provenance import DERIVED_FROM, IDENTITY, ProvenanceEdge
from tensorrepo.formats.dataset.changing.row_function import RowFunction
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.derive import (
    DerivationOptions,
    DerivationReport,
    derivation_edge,
    derive_dataset,
)
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples

SOURCE = Schema.of({"x": "int64", "other": "int64"})
DOUBLED = Schema.of({"y": "int64", "text": "int64"})
PARTS = Schema.of({"v": "int64"})


def double(batch: pa.RecordBatch) -> Any:
    x = batch["x"].to_numpy()
    return {"y": 2 * x, "text": x + 1}


def parts(batch: pa.RecordBatch) -> Any:
    return [[{"v": 10 * x + at} for at in range(x % 4)] for x in batch["x"].to_pylist()]


def _convert(schema: Schema) -> Any:
    def convert(rows: Any, _known: Schema | None) -> tuple[Schema, Iterable[InputBatch]]:
        return schema, [rows]

    return convert


def _function(call: Any = double, **changes: Any) -> RowFunction:
    schema = changes.pop("schema", DOUBLED)
    made = RowFunction(call, _convert(schema), "double", "datasets/source", ("x",), 7, 2)
    return replace(made, **changes)


EXPLODE = _function(
    parts,
    schema=Schema.of({"source_row": "int64", "source_part": "int64", "v": "int64"}),
    explode=True,
)


def _derive(
    objects: MemoryObjects,
    source: StoredDataset,
    derived: StoredDataset | None,
    function: RowFunction | None = None,
    identity: str = "1",
    **options: Any,
) -> tuple[StoredDataset, DerivationReport]:
    details = {IDENTITY: identity}
    edge = ProvenanceEdge(DERIVED_FROM, "datasets/source", source.digest, None, details)
    function = function or _function()
    schema = PARTS if function.explode else None
    chosen = DerivationOptions(schema, **{"check": 1.0, **options})
    link, report = derive_dataset(objects, source, derived, function, edge, chosen)
    return open_dataset(objects, link.digest), report


def _source(objects: MemoryObjects, rows: int, seed: int = 0) -> StoredDataset:
    batch = {"x": np.arange(rows), "other": np.zeros(rows, "i8")}
    return stored(objects, SOURCE, [batch], seed, page_bytes=80)


def _ids(dataset: StoredDataset) -> list[str]:
    return ids_of_rows(dataset, slice(None))


def _by_id(dataset: StoredDataset, *columns: str) -> dict[str, tuple[int, ...]]:
    values = [dataset[name][:].tolist() for name in columns]
    return dict(zip(_ids(dataset), zip(*values, strict=True), strict=True))


def _is_derived(source: StoredDataset, derived: StoredDataset) -> bool:
    expected = {row: (2 * x, x + 1) for row, (x,) in _by_id(source, "x").items()}
    return _by_id(derived, "y", "text") == expected


def _is_exploded(source: StoredDataset, derived: StoredDataset) -> bool:
    rows = zip(*(derived[name][:] for name in ("source_row", "source_part", "v")), strict=True)
    found = [(row, int(part), int(v)) for row, part, v in rows]
    expected = [
        (row, at, 10 * x + at) for row, (x,) in _by_id(source, "x").items() for at in range(x % 4)
    ]
    return sorted(found) == sorted(expected)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("batch_rows", [7, 1000])
def test_rows_have_the_order_and_the_ids_of_the_source(threads: int, batch_rows: int) -> None:
    objects = MemoryObjects()
    source = open_dataset(objects, delete_rows(objects, _source(objects, 700), [3, 4, 500]).digest)
    function = _function(threads=threads, batch_rows=batch_rows)
    derived, report = _derive(objects, source, None, function)
    assert _ids(derived) == _ids(source)
    assert _is_derived(source, derived)
    assert report == DerivationReport(made=697, checked=697)


def test_only_what_changed_is_given_to_the_function() -> None:
    objects = MemoryObjects()
    source = _source(objects, 1000)
    derived, _ = _derive(objects, source, None)
    link = update_rows(objects, source, [5, 600], {"x": [7000, 7001]})
    link = update_rows(objects, open_dataset(objects, link.digest), [9], {"other": 1})
    link = delete_rows(objects, open_dataset(objects, link.digest), [10, 11, 12])
    more = [{"x": [1, 2], "other": [0, 0]}]
    link = write_dataset(objects, SOURCE, more, base=open_dataset(objects, link.digest))
    changed = open_dataset(objects, link.digest)
    seen: list[int] = []

    def noting(batch: pa.RecordBatch) -> Any:
        seen.extend(batch["x"].to_pylist())
        return double(batch)

    after, report = _derive(objects, changed, derived, _function(noting), check=0.0)
    assert seen == [7000, 7001, 1, 2]
    assert report == DerivationReport(made=2, renewed=2, deleted=3, kept=995)
    assert _is_derived(changed, after)
    assert _ids(after) == _ids(changed)


def test_nothing_is_stored_when_nothing_changed() -> None:
    objects = MemoryObjects()
    source = _source(objects, 50)
    derived, _ = _derive(objects, source, None)
    again, report = _derive(objects, source, derived, check=0.0)
    assert again.digest == derived.digest
    assert report == DerivationReport(kept=50)


def test_another_function_makes_all_anew_and_keeps_the_ids() -> None:
    objects = MemoryObjects()
    source = _source(objects, 50)
    derived, _ = _derive(objects, source, None)
    other = _function(lambda batch: {"y": batch["x"], "text": batch["x"]})
    after, report = _derive(objects, source, derived, other, identity="2")
    assert report.anew == "the function is another one"
    assert report.made == 50
    assert after["y"][:].tolist() == list(range(50))
    assert _ids(after) == _ids(source)
    edge = derivation_edge(after)
    assert edge is not None
    assert edge.details[IDENTITY] == "2"


def test_a_row_that_came_back_is_there_once() -> None:
    objects = MemoryObjects()
    source = _source(objects, 20)
    derived, _ = _derive(objects, source, None)
    fewer = open_dataset(objects, delete_rows(objects, source, [3, 4]).digest)
    without, _ = _derive(objects, fewer, derived)
    after, report = _derive(objects, source, without)
    assert report.made == 2
    assert _is_derived(source, after)


def test_rows_that_somebody_appended_are_not_lost() -> None:
    objects = MemoryObjects()
    source = _source(objects, 20)
    derived, _ = _derive(objects, source, None)
    more = [{"y": [1], "text": [2]}]
    theirs = open_dataset(objects, write_dataset(objects, DOUBLED, more, base=derived).digest)
    with pytest.raises(ConflictError, match="1 row of the derived dataset"):
        _derive(objects, source, theirs)


def test_a_dataset_that_was_not_derived_is_not_lost() -> None:
    objects = MemoryObjects()
    with pytest.raises(ConflictError, match="was not derived"):
        _derive(objects, _source(objects, 5), _source(objects, 5, seed=1))


@pytest.mark.parametrize("batch_rows", [1, 7, 100])
def test_an_error_names_the_row(batch_rows: int) -> None:
    objects = MemoryObjects()
    source = open_dataset(objects, delete_rows(objects, _source(objects, 60), [0]).digest)

    def fails(batch: pa.RecordBatch) -> Any:
        if 42 in batch["x"].to_pylist():
            raise KeyError("no such thing")
        return double(batch)

    with pytest.raises(KeyError) as failed:
        _derive(objects, source, None, _function(fails, batch_rows=batch_rows))
    row_id = _ids(source)[41]
    assert failed.value.__notes__ == [f"double failed on row 41 ({row_id}) of datasets/source"]


@pytest.mark.parametrize(
    ("call", "explode", "message"),
    [
        (lambda _: {"y": [1], "text": [1]}, False, "gave 1 rows for the 7 from row 0"),
        (lambda batch: {"y": ["a"] * len(batch), "text": batch["x"]}, False, "'y'"),
        (lambda batch: [[]] * (len(batch) + 1), True, "gave 8 items for the 7 rows"),
        (lambda _: 5, True, "gave int for the 7 rows"),
        (lambda batch: [[{"source_row": 1}]] * len(batch), True, "none of them called"),
    ],
)
def test_rows_that_do_not_fit_are_refused(call: Any, explode: bool, message: str) -> None:
    objects = MemoryObjects()
    function = replace(EXPLODE, call=call) if explode else _function(call)
    with pytest.raises(InvalidInputError, match=message):
        _derive(objects, _source(objects, 20), None, function)


def test_a_check_finds_what_depends_on_more_than_the_row() -> None:
    objects = MemoryObjects()
    source = _source(objects, 400)
    rng, lock = random.Random(1), threading.Lock()

    def chance(batch: pa.RecordBatch) -> Any:
        with lock:
            return {"y": [rng.randrange(1 << 40) for _ in range(len(batch))], "text": batch["x"]}

    with pytest.raises(InvalidInputError, match="column 'y' differs"):
        _derive(objects, source, None, _function(chance), check=0.01)
    derived, _ = _derive(objects, source, None, _function(chance), check=0.0)
    with pytest.raises(InvalidInputError, match="column 'y' differs"):
        _derive(objects, source, derived, _function(), check=0.01)


def test_a_check_finds_another_number_of_rows() -> None:
    objects = MemoryObjects()
    source = _source(objects, 100)
    calls = iter(range(10**6))

    def fickle(batch: pa.RecordBatch) -> Any:
        return [[{"v": 1}] * (next(calls) % 3) for _ in range(len(batch))]

    with pytest.raises(InvalidInputError, match=r"how many rows it makes|column 'v'"):
        _derive(objects, source, None, replace(EXPLODE, call=fickle))


@pytest.mark.soak
def test_what_was_made_before_a_failure_is_not_made_again() -> None:
    objects = MemoryObjects()
    source = _source(objects, 2000)
    kept: list[Any] = []
    calls = 0

    def dies(batch: pa.RecordBatch) -> Any:
        nonlocal calls
        calls += len(batch)
        if calls > 1200:
            raise KeyboardInterrupt
        return double(batch)

    options = {"checkpoint": kept.append, "checkpoint_bytes": 4_000, "check": 0.0}
    with pytest.raises(KeyboardInterrupt):
        _derive(objects, source, None, _function(dies, threads=1), **options)
    begun = open_dataset(objects, kept[-1].digest)
    assert 400 < len(begun) <= 1200
    after, report = _derive(objects, source, begun)
    assert (report.made, report.kept) == (2000 - len(begun), len(begun))
    assert _ids(after) == _ids(source)
    assert _is_derived(source, after)


def test_progress_counts_rows_of_the_source() -> None:
    objects = MemoryObjects()
    told: list[tuple[int, int]] = []
    _derive(
        objects,
        _source(objects, 100),
        None,
        EXPLODE,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (100, 100)
    assert told == sorted(told)


class Derivations(RuleBasedStateMachine):
    """A source that changes at random; what is derived follows it, from any earlier version."""

    @initialize()
    def begin(self) -> None:
        self.objects = MemoryObjects()
        self.seed = 0
        self.source = _source(self.objects, 40)
        self.versions = [self.source]
        self.derived, _ = _derive(self.objects, self.source, None)
        self.exploded, _ = _derive(self.objects, self.source, None, EXPLODE)

    def _to(self, link: Any) -> None:
        self.source = open_dataset(self.objects, link.digest)
        self.versions.append(self.source)

    @rule(x=st.lists(st.integers(0, 1000), min_size=1, max_size=30))
    def append(self, x: list[int]) -> None:
        self.seed += 1
        batch = {"x": x, "other": [0] * len(x)}
        rng = random.Random(self.seed)
        self._to(write_dataset(self.objects, SOURCE, [batch], base=self.source, rng=rng))

    @rule(data=st.data())
    def update(self, data: st.DataObject) -> None:
        rows = data.draw(_rows(self.source))
        values = {data.draw(st.sampled_from(["x", "other"])): data.draw(st.integers(0, 99))}
        self._to(update_rows(self.objects, self.source, rows, values))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self._to(delete_rows(self.objects, self.source, data.draw(_rows(self.source))))

    @rule(everything=st.booleans())
    def compact(self, everything: bool) -> None:
        self._to(compact_dataset(self.objects, self.source, everything=everything))

    @rule(data=st.data())
    def go_back(self, data: st.DataObject) -> None:
        self.source = data.draw(st.sampled_from(self.versions))

    @rule(everything=st.booleans())
    def compact_derived(self, everything: bool) -> None:
        link = compact_dataset(self.objects, self.derived, everything=everything)
        self.derived = open_dataset(self.objects, link.digest)

    @rule()
    def derive(self) -> None:
        self.derived, _ = _derive(self.objects, self.source, self.derived)
        assert _is_derived(self.source, self.derived)
        self.exploded, _ = _derive(self.objects, self.source, self.exploded, EXPLODE)
        assert _is_exploded(self.source, self.exploded)

    @invariant()
    def says_of_what_it_is(self) -> None:
        if hasattr(self, "derived"):
            assert derivation_edge(self.derived) is not None


def _rows(source: StoredDataset) -> st.SearchStrategy[list[int]]:
    if not len(source):
        return st.just([])
    return st.lists(st.integers(0, len(source) - 1), unique=True, max_size=8).map(sorted)


TestDerivations = Derivations.TestCase
TestDerivations.settings = settings(max_examples=examples(6), stateful_step_count=12)
