"""Fragments of several versions become one dataset, whose untouched leaves are linked."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import pytest

from tensorrepo.formats.dataset.metadata.span_write import leaf_fragments, read_fragments
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.repo.objects.envelope import Kind
from tests.support.golden.dataset import Making, small_cuts
from tests.support.second_readers.comparison import agrees, ids_of

FRAGMENTS = 40


@cache
def _making() -> Making:
    making = Making(Schema.of({"n": "int32"}), [{"n": 0}])
    for at in range(1, FRAGMENTS):
        making.append([{"n": at}])
    assert len(making.dataset.root.leaves) > 3
    return making


@pytest.fixture
def made() -> Iterator[Making]:
    with small_cuts():
        yield _making()


@contextmanager
def _tree(made: Making, *, behind: bool = False) -> Iterator[TreeWriter]:
    base = made.dataset
    with ThreadPoolExecutor(1) as storers:
        yield TreeWriter(
            made.objects, base.schema, base.root.groups, base, storers, 1 << 20, behind=behind
        )


def _finish(made: Making, tree: TreeWriter) -> StoredDataset:
    return open_dataset(made.objects, tree.finish({}).digest)


def test_leaves_that_are_kept_in_order_are_linked(made: Making) -> None:
    before = set(made.objects.stored)
    leaves = made.dataset.root.leaves
    with _tree(made) as tree:
        for entry in leaves:
            tree.keep_leaf(made.dataset, entry, last=entry is leaves[-1])
        again = _finish(made, tree)
    assert again.root.leaves[:-1] == leaves[:-1]
    new = made.objects.stored.keys() - before - {again.digest}
    kinds = [made.objects.links[digest].kind for digest in new]
    assert kinds.count(Kind.LEAF) <= 1  # the last one, which is opened again
    assert agrees(made.objects, again)


def test_leaves_come_together_again_behind_a_fragment_that_is_left_out(made: Making) -> None:
    leaves = made.dataset.root.leaves
    with _tree(made) as tree:
        gone, *kept = leaf_fragments(made.dataset, leaves[0])
        tree.forget(gone)
        for fragment in kept:
            tree.add_known(fragment, counted=True)
        for entry in leaves[1:]:
            tree.keep_leaf(made.dataset, entry, last=entry is leaves[-1])
        found = _finish(made, tree)
    assert found["n"][:].tolist() == list(range(1, FRAGMENTS))
    assert set(found.root.leaves) & set(leaves[1:])
    assert found.root.statistics[0].stored_bytes < made.dataset.root.statistics[0].stored_bytes
    assert agrees(made.objects, found)


def test_fragments_may_come_in_another_order(made: Making) -> None:
    with _tree(made) as tree:
        for fragment in reversed(list(read_fragments(made.dataset))):
            tree.add_known(fragment, counted=True)
        found = _finish(made, tree)
    assert found["n"][:].tolist() == list(range(FRAGMENTS))[::-1]
    assert ids_of(found) == ids_of(made.dataset)[::-1]
    assert found.root.statistics == made.dataset.root.statistics
    assert agrees(made.objects, found)


def test_fragments_of_another_dataset_come_behind_those_of_the_base(made: Making) -> None:
    other = Making(Schema.of({"n": "int32"}), [{"n": 500}, {"n": 501}], page_bytes=8)
    for digest, whole in other.objects.stored.items():
        made.objects.stored[digest], made.objects.links[digest] = whole, other.objects.links[digest]
    with _tree(made, behind=True) as tree:
        for fragment in read_fragments(other.dataset):
            tree.add_known(fragment, counted=False)
        found = _finish(made, tree)
    assert found["n"][:].tolist() == [*range(FRAGMENTS), 500, 501]
    assert found.root.leaves[:-1] == made.dataset.root.leaves[: len(found.root.leaves) - 1]
    assert found.root.statistics[0].max == 501 + 2**63
    assert agrees(made.objects, found)
