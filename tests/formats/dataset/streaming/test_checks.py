"""Options of streams: each wrong one is named, with what was expected and what was found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Scalar, Schema, Tensor
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import stream

SCHEMA = Schema.of(
    {
        "label": Scalar("int64"),
        "tokens": Tensor("int32", (None,)),
        "levels": Tensor("float32", (None,)),
        "flags": Tensor("bool", (None,)),
    }
)
ROWS = [
    {
        "label": np.int64(at),
        "tokens": np.full(at % 7, at, np.int32),
        "levels": np.full(at % 5, at, np.float32),
        "flags": np.full(at % 3, at % 2, np.bool_),
    }
    for at in range(50)
]


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return stored(MemoryObjects(), SCHEMA, [ROWS])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is a whole number, at least 1, got 0"),
        ({"batch_size": 2.5}, "batch_size is a whole number, at least 1, got 2.5"),
        ({"batch_size": "64"}, "batch_size is a whole number, at least 1, got '64'"),
        ({"batch_size": True}, "batch_size is a whole number, at least 1, got True"),
        ({"batch_size": None}, "batch_size is a whole number"),
        ({"window": 0}, "window is a whole number, at least 1, got 0"),
        ({"window": "lots"}, "window is bytes, or a text such as .*, got 'lots'"),
        ({"window": 1.5}, "window is bytes, .* got 1.5"),
        ({"ahead": "0"}, "ahead is a whole number, at least 1"),
        ({"cache_limit": -1}, "cache_limit is a whole number, at least 0, got -1"),
        ({"seed": -1}, r"seed is a whole number, at least 0 and at most 2\^64 - 1, got -1"),
        ({"seed": 1 << 64}, "seed is a whole number"),
        ({"seed": "x"}, "seed is a whole number"),
        ({"sampling": {"where": "x"}}, r"sampling is .* tr.Sampling\(...\) gives it, got"),
        ({"ranks": (0, 2)}, r"ranks is .* tr.Ranks\(...\) gives it, got \(0, 2\)"),
        ({"rank": 3, "world_size": 2}, "rank=3 and world_size=2: expected a rank from 0"),
        ({"replicate": 2, "world_size": 3}, "replicate=2 ranks cannot have the same share"),
        ({"rank": "0"}, "rank is a whole number"),
        ({"world_size": 0}, "world_size is a whole number, at least 1, got 0"),
        ({"replicate": 0}, "replicate is a whole number, at least 1, got 0"),
        ({"replicate": 1.0, "world_size": 2}, "replicate is a whole number"),
        ({"transform": 3}, "transform is a function, got 3"),
        ({"on_error": 3}, "on_error is 'raise', 'skip' or a function, got 3"),
        ({"pin": "yes"}, "pin is True or False, got 'yes'"),
        ({"columns": "label"}, r"columns is a list of names: give columns=\['label'\]"),
        ({"columns": []}, "columns is a list of at least one name"),
        ({"columns": [3]}, r"columns is a list of names, got \[3\]"),
        ({"columns": 3}, "columns is a list of names, got 3"),
        ({"pad": "0"}, "pad is a number, got '0'"),
        ({"pad": 1 << 40}, "pad=1099511627776 fills up column 'tokens', which is of int32"),
        ({"pad": float("nan")}, "pad=nan fills up column 'tokens'"),
        ({"pad": 1.9}, "pad=1.9 fills up column 'tokens'"),
        ({"pad": 1e39, "columns": ["levels"]}, r"pad=1e\+39 fills up column 'levels'"),
        ({"pad": 2, "columns": ["flags"]}, "pad=2 fills up column 'flags'"),
        ({"decode": "image"}, "decode is True, a Decode.*, got 'image'"),
    ],
)
def test_a_stream_names_the_option_that_is_wrong(
    dataset: StoredDataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        stream(dataset, **{"batch_size": 8} | options)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"pack": 0}, "pack is a whole number, at least 1, got 0"),
        ({"pack": 1.5}, "pack is a whole number, at least 1, got 1.5"),
        ({"pack": True}, "pack is a whole number"),
        ({"epoch_rows": 0}, r"epoch_rows is a whole number, at least 1 and at most 2\^31 - 1"),
        ({"epoch_rows": 1.5}, "epoch_rows is a whole number"),
        ({"bucket_steps": 1}, "bucket_steps is a whole number, at least 2, got 1"),
    ],
)
def test_what_is_asked_of_rows_is_named_where_it_is_wrong(
    asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Sampling(**asked)


def test_an_item_of_more_bytes_than_fit_is_refused(dataset: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="4,398,046,511,104 bytes an item: at most"):
        stream(dataset, batch_size=8, columns=["tokens"], sampling=Sampling(pack=1 << 40))


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": np.int64(8), "seed": np.uint64(3)},
        {"pad": np.int32(-1), "columns": ["tokens", "levels"]},
        {"pad": 0.0},
        {"pad": float("nan"), "columns": ["levels"]},
        {"pad": True, "columns": ["flags"]},
        {"columns": iter(["tokens", "label"])},
        {"decode": {}},
        {"window": "1MB", "ahead": "64MiB", "cache_limit": "1.5GB"},
        {"pin": None},
    ],
)
def test_what_means_the_right_thing_is_taken(
    dataset: StoredDataset, options: dict[str, Any]
) -> None:
    found = stream(dataset, **{"batch_size": 8} | options)
    assert sum(len(batch.rows) for batch in found) == 50


@pytest.mark.parametrize("position", [-1, 51, 1.5, "3", True])
def test_no_state_is_made_of_a_position_that_is_none(dataset: StoredDataset, position: Any) -> None:
    found = stream(dataset, batch_size=8)
    with pytest.raises(InvalidInputError, match="position is a whole number, at least 0 and"):
        found.state_dict(position)


@pytest.mark.parametrize("epoch", [-1, 1.5, "3", None])
def test_no_epoch_is_set_that_is_none(dataset: StoredDataset, epoch: Any) -> None:
    with pytest.raises(InvalidInputError, match="epoch is a whole number"):
        stream(dataset, batch_size=8).set_epoch(epoch)
