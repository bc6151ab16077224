"""Tensors are the same by their bits, however ranks of a training cut them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.comparison import content_of, contents_of, diff_models
from tensorrepo.formats.model.merging.three_way import Versions, join_models
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.shards import TensorShard, join_shards, store_shards
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.objects import MemoryObjects

ONE = np.arange(600.0).reshape(60, 10)
TWO = np.arange(60, dtype="i4")


def sharded(objects: MemoryObjects, ranks: int, tensors: Mapping[str, Any]) -> StoredModel:
    """A model of which each rank stored some rows of every tensor."""
    parts = [
        TensorShard(name, value.shape, (at, *(0,) * (value.ndim - 1)), tensor_of(name, part))
        for name, value in tensors.items()
        for at, part in zip(
            range(0, len(value), len(value) // ranks), np.array_split(value, ranks), strict=True
        )
    ]
    return open_model(objects, join_shards(objects, [store_shards(objects, parts)]))


def test_what_no_rank_stored_is_no_shard() -> None:
    with pytest.raises(InvalidInputError, match="store_shards"):
        join_shards(MemoryObjects(), [b"\xa1\xff"])


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_tensor_cut_otherwise_is_the_same(ranks: int) -> None:
    objects = MemoryObjects()
    models = [sharded(objects, one, {"w": ONE}) for one in (2, ranks, 2)]
    assert len(set(contents_of(models, "w"))) == 1
    moved = sharded(objects, ranks, {"w": ONE + 1})
    assert len(set(contents_of([*models, moved], "w"))) == 2


def test_tensors_cut_alike_are_compared_without_reading_any() -> None:
    objects = MemoryObjects()
    models = [sharded(objects, 4, {"w": ONE}), sharded(objects, 4, {"w": ONE + 1})]
    objects.reads.clear()
    assert len(set(contents_of(models, "w"))) == 2
    assert not objects.reads


def test_a_tensor_in_pieces_is_named_as_if_it_were_one() -> None:
    objects = MemoryObjects()
    whole, cut = (sharded(objects, ranks, {"w": ONE}) for ranks in (1, 3))
    assert content_of(cut.tensor("w")) == whole.content("w")


def test_a_diff_does_not_call_it_changed() -> None:
    objects = MemoryObjects()
    four, two = (sharded(objects, ranks, {"w": ONE, "n": TWO}) for ranks in (4, 2))
    found = diff_models(objects, four.entry, two.entry)
    assert (found.changed, found.unchanged) == ((), 2)


def test_a_merge_takes_what_the_other_side_really_changed() -> None:
    objects = MemoryObjects()
    base, ours, theirs = (
        sharded(objects, ranks, {"w": values, "n": TWO})
        for ranks, values in ((4, ONE), (2, ONE), (3, ONE + 1))
    )
    found = join_models("models/m", Versions(base, ours, theirs), "fail")
    assert (found.side, found.contests) == ("theirs", [])
    again = join_models("models/m", Versions(base, theirs, ours), "fail")
    assert (again.side, again.contests) == ("ours", [])
