"""What an index entry holds, and what a reader refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata.row_ids import RUN
from tensorrepo.formats.search_index.stored_index import (
    PART_BYTES,
    StoredIndex,
    open_index,
    segments_with,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.others import DATASET, GOLDEN, INDEX_BLOBS

PAYLOAD = (GOLDEN / "search-index.bin").read_bytes()


def opened(payload: bytes, *, more: tuple[bytes, ...] = (), less: int = 0) -> StoredIndex:
    """An index with these links beside, or so many fewer."""
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    blobs = [objects.put(Kind.BLOB, blob).digest for blob in (*INDEX_BLOBS, *more)]
    links = [DATASET.digest, *blobs][: len(blobs) + 1 - less]
    return open_index(objects, objects.put(Kind.SEARCH_INDEX, payload, links).digest)


def changed(change: Callable[[Any], Any]) -> bytes:
    root = msgspec.msgpack.decode(PAYLOAD)
    change(root)
    return msgspec.msgpack.encode(root)


def test_what_is_stored_is_read() -> None:
    index = opened(PAYLOAD)
    assert (index.path, index.column, index.kind, index.metric) == (
        "datasets/photos",
        "embedding",
        "ivf_pq",
        "l2",
    )
    assert [segment.rows for segment in index.segments] == [6, 1]
    assert index.rows == 7
    assert index.size_bytes == sum(map(len, INDEX_BLOBS))
    assert index.segments[0].recall == 0.975


def test_another_object_is_no_index() -> None:
    objects = MemoryObjects()
    with pytest.raises(InvalidInputError, match="is a blob, not a search index"):
        open_index(objects, objects.put(Kind.BLOB, b"x").digest)


def test_unknown_features_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="Update"):
        opened(changed(lambda root: root.update(features=["maps"])))


def first(root: Any) -> Any:
    return root["segments"][0]


DAMAGES: dict[str, Callable[[Any], Any]] = {
    "rows": lambda root: first(root).update(rows=5),
    "runs": lambda root: first(root).update(runs=first(root)["runs"][:-1]),
    "an empty run": lambda root: first(root).update(
        runs=np.array([(7, 0, 6), (9, 3, 0)], RUN).tobytes()
    ),
    "an option": lambda root: first(root).update(options={"nprobes": 0}),
    "an option that is text": lambda root: first(root).update(options={"nprobes": "1"}),
    "recall": lambda root: first(root).update(recall=1.5),
    "a size": lambda root: first(root)["files"][0].update(size=PART_BYTES + 1),
    "a negative size": lambda root: first(root)["files"][0].update(size=-1),
    "order of files": lambda root: first(root)["files"].reverse(),
    "two files": lambda root: first(root)["files"].append(first(root)["files"][1]),
    "a name that goes up": lambda root: first(root)["files"][0].update(name="../x"),
    "an absolute name": lambda root: first(root)["files"][0].update(name="/etc/x"),
    "a hidden name": lambda root: first(root)["files"][0].update(name="a/.b"),
    "a deep name": lambda root: first(root)["files"][0].update(name="a/b/c/d/e"),
    "an unknown key": lambda root: root.update(more=1),
    "a digest": lambda root: root.update(dataset=b"short"),
    "too many segments": lambda root: root.update(segments=root["segments"] * 200),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_parts_that_contradict_each_other_are_refused(name: str) -> None:
    with pytest.raises(CorruptError, match="index "):
        opened(changed(DAMAGES[name]))


def test_links_are_those_of_its_parts() -> None:
    with pytest.raises(CorruptError, match="contradict"):
        opened(PAYLOAD, more=(b"another blob",))
    with pytest.raises(CorruptError, match="contradict"):
        opened(PAYLOAD, less=1)


@pytest.mark.parametrize(
    ("run", "expected"),
    [((7, 2, 1), {0, 1}), ((9, 3, 1), {0}), ((9, 4, 9), set()), ((7, 5, 1), set())],
)
def test_segments_are_found_by_ids_of_rows(run: Any, expected: set[int]) -> None:
    assert segments_with(opened(PAYLOAD), np.array([run], RUN)) == expected
