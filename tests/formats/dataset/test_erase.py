"""Erasure of rows and columns: the twin has the other rows, under their ids, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.erase import Erasure, FragmentTwins, erase, tainted_pages
from tensorrepo.formats.dataset.evolve import drop_column
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import ClassLabel, Schema, Tensor, Text
from tensorrepo.formats.dataset.update import update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.changed import without
from tests.support.builders.datasets import same_rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import check_each, examples

SCHEMA = Schema.of(
    {
        "x": Tensor("float32", (16,)),
        "volume": Tensor("uint8", (None, None), tile=(4, 4)),
        "label": ClassLabel(("cat", "dog", "Ann")),
        "text": Text(),
    }
)
WITHOUT_TILES = Schema(tuple(each for each in SCHEMA.columns if each.name != "volume"))
SECRET = "zebra-quixote-77"
Erased: TypeAlias = Callable[[Sequence[StoredDataset]], Erasure]


def rows(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {
        "x": np.repeat(numbers[:, None], 16, axis=1).astype(np.float32),
        "volume": [np.full((1 + at % 9, 6), at % 251, np.uint8) for at in numbers],
        "label": [2 if at == 7 else at % 2 for at in numbers],
        "text": [SECRET if at == 7 else f"row {at}" for at in numbers],
    }


@pytest.fixture
def objects() -> MemoryObjects:
    return MemoryObjects()


@pytest.fixture
def dataset(objects: MemoryObjects) -> StoredDataset:
    """Three fragments that share chunks; the seventh row is secret."""
    first = stored(objects, SCHEMA, [rows(0, 20)])
    link = first.digest
    for start in (20, 40):
        link = write_dataset(
            objects, SCHEMA, [rows(start, 20)], base=open_dataset(objects, link)
        ).digest
    return open_dataset(objects, link)


def ids_of(dataset: StoredDataset, *numbers: int) -> Any:
    physical = live_rows(dataset).physical(np.array(numbers))
    return np.sort(row_id_table(dataset).of(physical))


def twin_of(objects: MemoryObjects, dataset: StoredDataset, erasure: Erasure) -> StoredDataset:
    tainted = set(tainted_pages(dataset, erasure))
    link = erase(objects, dataset, erasure, tainted, codec=Codec.NONE)
    assert link is not None
    return open_dataset(objects, link.digest)


def reached(objects: MemoryObjects, dataset: StoredDataset) -> Iterator[bytes]:
    """All bytes that a dataset leads to."""
    pending, seen = [dataset.digest], set()
    while pending:
        digest = pending.pop()
        if digest not in seen:
            seen.add(digest)
            envelope = objects.get(digest)
            yield bytes(envelope.payload)
            pending += [link.digest for link in envelope.links]


def says(objects: MemoryObjects, dataset: StoredDataset, text: str) -> bool:
    return any(text.encode() in data for data in reached(objects, dataset))


def test_a_twin_has_the_other_rows_under_their_ids(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    assert says(objects, dataset, SECRET)
    others = [at for at in range(60) if at != 7]
    twin = twin_of(objects, dataset, Erasure(ids_of(dataset, 7)))
    assert same_rows(list(twin), [dataset[at] for at in others])
    assert (ids_of(twin, *range(59)) == ids_of(dataset, *others)).all()
    assert not says(objects, twin, SECRET)


def test_statistics_are_those_of_the_rows_that_stay(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    twin = twin_of(objects, dataset, Erasure(ids_of(dataset, *range(30, 60))))
    again = stored(objects, SCHEMA, [rows(0, 30)])
    bounds = [[(each.min, each.max) for each in one.root.statistics] for one in (twin, again)]
    assert bounds[0] == bounds[1]


def test_a_fragment_gets_one_twin_in_all_versions(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    longer = write_dataset(objects, SCHEMA, [rows(60, 5)], base=dataset)
    newer = open_dataset(objects, longer.digest)
    erasure = Erasure(ids_of(dataset, 7))
    twins = [twin_of(objects, each, erasure) for each in (dataset, newer)]
    runs = [row_id_table(each).runs["uid"].tolist() for each in twins]
    assert runs[0] == runs[1][: len(runs[0])]


def history(objects: MemoryObjects, schema: Schema, seed: int) -> list[StoredDataset]:
    """Versions that grew, were patched, lost rows and were compacted, in a random order."""
    chance = random.Random(seed)

    def batch(first: int, count: int) -> dict[str, Any]:
        return {name: each for name, each in rows(first, count).items() if name in schema.names}

    versions = [stored(objects, schema, [batch(0, 20)])]
    for step in range(1, 10):
        last = versions[-1]
        some = sorted(chance.sample(range(len(last)), 3))
        match chance.choice(["append", "append", "update", "delete", "compact"]):
            case "append":
                link = write_dataset(objects, schema, [batch(20 * step, 9)], base=last)
                versions.append(open_dataset(objects, link.digest))
            case "update":
                values = {"text": [f"new {step} {at}" for at in some]}
                link = update_rows(objects, last, some, values)
                versions.append(open_dataset(objects, link.digest))
            case "delete":
                versions.append(without(objects, last, some))
            case "compact":
                link = compact_dataset(objects, last, codec=Codec.NONE)
                versions.append(open_dataset(objects, link.digest))
    return versions


def some_rows(versions: Sequence[StoredDataset]) -> Erasure:
    """One of each ten rows that any version has."""
    every = np.concatenate([ids_of(each, *range(len(each))) for each in versions])
    return Erasure(np.unique(every)[3::10])


def first_column(versions: Sequence[StoredDataset]) -> Erasure:
    return Erasure(columns=frozenset([versions[0].schema.columns[0].id]))


@pytest.mark.parametrize("seed", range(examples(2)))
@pytest.mark.parametrize("schema", [SCHEMA, WITHOUT_TILES], ids=["tiles", "pages"])
@pytest.mark.parametrize("erased", [some_rows, first_column])
def test_versions_share_what_is_written_anew_and_hold_what_each_would_hold_alone(
    objects: MemoryObjects, erased: Erased, schema: Schema, seed: int
) -> None:
    versions = history(objects, schema, seed)
    erasure, made = erased(versions), FragmentTwins()
    tainted = {place for each in versions for place in tainted_pages(each, erasure)}

    def check(version: StoredDataset) -> None:
        alone = erase(objects, version, erasure, tainted, codec=Codec.NONE)
        shared = erase(objects, version, erasure, tainted, codec=Codec.NONE, made=made)
        one, two = (open_dataset(objects, (link or version).digest) for link in (alone, shared))
        assert same_rows(list(one), list(two))
        left = np.setdiff1d(ids_of(version, *range(len(version))), erasure.ids)
        assert (ids_of(one, *range(len(one))) == left).all()
        assert (ids_of(two, *range(len(two))) == left).all()
        assert (one.schema, one.root.statistics) == (two.schema, two.root.statistics)

    check_each(random.Random(seed).sample(versions, len(versions)), check)


@pytest.mark.parametrize("erased", [some_rows, first_column])
def test_what_is_written_anew_is_stored_once_for_all_versions(erased: Erased) -> None:
    objects, chance = MemoryObjects(), random.Random(0)
    schema = Schema.of({"label": "int16", "number": "int16", "text": Text()})

    def batch(first: int) -> dict[str, Any]:
        numbers = list(range(first, first + 10))
        texts = [chance.randbytes(4000).hex() for _ in numbers]
        return {"label": numbers, "number": numbers, "text": texts}

    versions = [stored(objects, schema, [batch(0)])]
    for step in range(1, 16):
        link = write_dataset(objects, schema, [batch(10 * step)], base=versions[-1])
        versions.append(open_dataset(objects, link.digest))
    longest = versions[-1]
    for _ in range(4):  # a row of each fragment goes
        versions.append(without(objects, versions[-1], list(range(0, len(versions[-1]), 9))))
    erasure, made, before = erased(versions), FragmentTwins(), set(objects.stored)
    tainted = {place for each in versions for place in tainted_pages(each, erasure)}
    for version in versions[::-1]:
        assert erase(objects, version, erasure, tainted, codec=Codec.NONE, made=made)
    chunks = [each for each in set(objects.stored) - before if objects.get(each).kind is Kind.CHUNK]
    written = sum(objects.get(each).payload.nbytes for each in chunks)
    assert written < 1.5 * longest.stored_bytes


def test_a_row_that_is_only_hidden_by_a_deletion_goes_as_well(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    erasure = Erasure(ids_of(dataset, 7))
    deleted = without(objects, dataset, [7])
    assert says(objects, deleted, SECRET)
    twin = twin_of(objects, deleted, erasure)
    assert same_rows(list(twin), list(deleted))
    assert not says(objects, twin, SECRET)


def test_a_value_that_was_patched_over_and_the_patch_go(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    values = {"text": ["another-secret", "kept"]}
    over = open_dataset(objects, update_rows(objects, dataset, [7, 8], values).digest)
    twin = twin_of(objects, over, Erasure(ids_of(dataset, 7)))
    assert twin["text"][7] == "kept"
    assert not says(objects, twin, SECRET)
    assert not says(objects, twin, "another-secret")


def test_a_version_without_the_row_leaves_the_chunk_that_it_shared(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    """Compaction moved the row's fragment; another one still lies in the chunk of the row."""
    erasure = Erasure(ids_of(dataset, 7))
    tainted = set(tainted_pages(dataset, erasure))
    rest = open_dataset(
        objects,
        compact_dataset(objects, without(objects, dataset, range(20)), codec=Codec.NONE).digest,
    )
    twin = erase(objects, rest, erasure, tainted, codec=Codec.NONE)
    final = rest if twin is None else open_dataset(objects, twin.digest)
    assert same_rows(list(final), [dataset[at] for at in range(20, 60)])
    assert not says(objects, final, SECRET)


def test_rows_under_other_ids_are_refused_and_not_stored_anew(objects: MemoryObjects) -> None:
    """Equal rows share chunks: to write the copy anew would put the secret into another chunk."""
    big = {**rows(0, 20), "text": [SECRET * 4000 if at == 7 else "x" for at in range(20)]}
    one, two = (stored(objects, SCHEMA, [big], seed=seed) for seed in (1, 2))
    erasure = Erasure(ids_of(one, 7))
    with pytest.raises(InvalidInputError, match="under ids of its own"):
        erase(objects, two, erasure, set(tainted_pages(one, erasure)))


@pytest.mark.parametrize("name", ["text", "volume", "x", "label"])
def test_an_erased_column_is_gone_and_the_others_stay(
    objects: MemoryObjects, dataset: StoredDataset, name: str
) -> None:
    column = dataset.schema.column(name)
    erasure = Erasure(columns=frozenset({column.id}))
    twin = twin_of(objects, dataset, erasure)
    expected = [{key: value for key, value in row.items() if key != name} for row in dataset]
    assert same_rows(list(twin), expected)
    chunks = {chunk for chunk, _ in tainted_pages(dataset, erasure)}
    kinds = {objects.get(each).kind for each in chunks}
    assert kinds <= {Kind.CHUNK}
    assert says(objects, twin, SECRET) == (name != "text")


def test_a_column_that_was_dropped_before_is_erased(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    column = dataset.schema.column("text")
    dropped = open_dataset(objects, drop_column(objects, dataset, "text").digest)
    assert says(objects, dropped, SECRET), "its pages stay where they are"
    twin = twin_of(objects, dropped, Erasure(columns=frozenset({column.id})))
    assert same_rows(list(twin), list(dropped))
    assert not says(objects, twin, SECRET)


def test_the_last_column_is_not_erased(objects: MemoryObjects) -> None:
    only = stored(objects, Schema.of({"a": "int64"}), [{"a": np.arange(3)}])
    erasure = Erasure(columns=frozenset({only.schema.column("a").id}))
    with pytest.raises(InvalidInputError, match="no column would be left"):
        twin_of(objects, only, erasure)


def test_names_of_classes_and_words_of_properties_are_blanked(
    objects: MemoryObjects, dataset: StoredDataset
) -> None:
    label = dataset.schema.column("label")
    erasure = Erasure(
        ids_of(dataset, 7), classes={label.id: frozenset({"Ann"})}, repeats=lambda text: "b" in text
    )
    twin = twin_of(objects, dataset, erasure)
    assert twin.schema.column("label").type == ClassLabel(("cat", "dog", "purged-2"))


def test_what_holds_none_of_it_has_no_twin(objects: MemoryObjects, dataset: StoredDataset) -> None:
    other = stored(objects, SCHEMA, [rows(100, 5)], seed=9)
    erasure = Erasure(ids_of(dataset, 7))
    assert erase(objects, other, erasure, set(tainted_pages(dataset, erasure))) is None
