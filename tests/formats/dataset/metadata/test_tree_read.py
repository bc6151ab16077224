"""What stands below a root is read only where it agrees with what stands above it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.metadata.deletions import (
    decode_deletion_map,
    encode_deletion_map,
    pack_deletions,
)
from tensorrepo.formats.dataset.metadata.manifest import (
    HAS_RUNS,
    FragmentSpan,
    Leaf,
    decode_leaf,
    encode_leaf,
)
from tensorrepo.formats.dataset.metadata.row_ids import encode_row_runs, plain_run
from tensorrepo.formats.dataset.metadata.tree_read import (
    covering,
    read_deletions,
    read_leaf,
    read_runs,
)
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, row_id_table
from tensorrepo.repo.errors import CorruptError
from tests.support.golden.dataset import CASES

DELETED = CASES["deleted"]().dataset
COMPACTED = CASES["compacted"]().dataset
NOBODY: Any = None  # objects that nobody asks for, since all stands inline


def _leaf(dataset: StoredDataset) -> Leaf:
    return decode_leaf(dataset.root.leaves[-1].payload, "leaf")


def _with(leaf: Leaf, family: str, payload: bytes) -> Leaf:
    """The leaf with another payload in the only span of a family."""
    (span,) = getattr(leaf, family)
    return replace(leaf, **{family: (replace(span, payload=memoryview(payload)),)})


@st.composite
def spans(draw: st.DrawFn) -> tuple[list[FragmentSpan], int]:
    """Spans of two groups, and the fragments of their leaf."""
    bounds = sorted(draw(st.sets(st.integers(0, 12), min_size=2)))
    found = []
    for group in ("a", "b"):
        for start, stop in pairwise(bounds):
            if draw(st.booleans()):
                found.append(FragmentSpan(group, start, stop - start, memoryview(b"")))
    return found, bounds[-1] + draw(st.integers(0, 3))


@given(spans())
def test_every_fragment_is_covered_once(drawn: tuple[list[FragmentSpan], int]) -> None:
    given_spans, fragments = drawn
    found = covering(given_spans, "a", fragments)
    bounds = [(start, stop) for start, stop, _ in found]
    assert [at for start, stop in bounds for at in range(start, stop)] == list(range(fragments))
    mine = [span for span in given_spans if span.group == "a"]
    assert [span for _, _, span in found if span is not None] == mine
    assert all(
        span is None or (start, stop) == (span.first_fragment, span.stop_fragment)
        for start, stop, span in found
    )


@pytest.mark.parametrize("name", ["rows", "deleted", "fragments"])
def test_a_leaf_of_other_counts_than_its_root_says_is_corrupt(name: str) -> None:
    entry = DELETED.root.leaves[-1]
    other = msgspec.structs.replace(entry, **{name: getattr(entry, name) + 1})
    with pytest.raises(CorruptError, match="other counts"):
        read_leaf(DELETED.objects, DELETED.links, other)


def test_deletions_are_by_fragment_of_the_leaf() -> None:
    leaf = _leaf(DELETED)
    found = read_deletions(NOBODY, leaf, {})
    assert {at: each.deleted for at, each in found.items()} == {0: 2, 1: 15}
    assert len(live_rows(DELETED).dead) == DELETED.root.deleted == 17


def test_a_leaf_that_counts_other_deletions_is_corrupt() -> None:
    leaf = _leaf(DELETED)
    known = decode_deletion_map(leaf.deletions[0].payload, "map")  # type: ignore[arg-type]  # inline
    fewer = {0: known[0]}
    others = known | {0: pack_deletions(np.array([1]), 70)}
    for wrong in (fewer, others, known | {2: known[0]}):
        with pytest.raises(CorruptError):
            read_deletions(NOBODY, _with(leaf, "deletions", encode_deletion_map(wrong)), {})


def test_row_runs_that_name_other_rows_are_corrupt() -> None:
    leaf = _leaf(COMPACTED)
    rows = int(leaf.fragments["rows"][0])
    for wrong in ({0: plain_run(1, rows + 1)}, {1: plain_run(1, rows)}, {}):
        with pytest.raises(CorruptError):
            read_runs(NOBODY, _with(leaf, "runs", encode_row_runs(wrong)), {})


def test_moved_rows_have_the_ids_that_they_had() -> None:
    leaf = _leaf(COMPACTED)
    moved = np.flatnonzero(leaf.fragments["flags"] & HAS_RUNS).tolist()
    assert moved == [0]
    table = row_id_table(COMPACTED)
    uids = set(leaf.fragments["uid"].tolist())
    ids = table.of(np.arange(COMPACTED.root.rows))
    first = int(leaf.fragments["rows"][0])
    assert not uids & set(ids["fragment"][:first].tolist())
    assert set(ids["fragment"][first:].tolist()) <= uids
    assert encode_leaf(leaf) == COMPACTED.root.leaves[-1].payload
