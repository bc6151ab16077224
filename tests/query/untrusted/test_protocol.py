"""What a process may say is understood, filters come as they were sent, the rest is refused."""

from __future__ import annotations

import json
from functools import reduce
from operator import or_
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tensorrepo as tr
from tensorrepo.query.untrusted.pipe import (
    Next,
    ScanRequest,
    filter_in,
    packed,
    packed_filter,
    said_in,
)
from tests.support.effort import sampled, sampled_product

HEADS: list[dict[str, Any]] = [
    {"kind": "ready"},
    {"kind": "begun"},
    {"kind": "rows"},
    {"kind": "done"},
    {"kind": "error", "type": "BinderException", "text": "no"},
    {"kind": "scan", "scan": 3, "table": 0, "columns": ["n"], "ended": [1, 2]},
    {"kind": "next", "scan": 3, "ended": []},
]
FILTERS = [
    pc.field("n") > 3,
    (pc.field("n") > 3) & pc.field("t").isin(["a"]),
    ~(pc.field("n").is_null() | pc.field("t").is_valid()),
    pc.field("x").is_null(nan_is_null=True) | pc.is_nan(pc.field("x")),
    pc.if_else(pc.field("n").is_valid(), pc.field("n").isin([1, None]), False),
    pc.field("a.b") == pa.scalar(1, pa.timestamp("us", "UTC")),
]
NESTED = reduce(or_, [pc.field("n") == at for at in range(500)])


def test_what_may_be_said_is_understood() -> None:
    assert said_in(HEADS[5]) == ScanRequest(scan=3, table=0, columns=["n"], ended=[1, 2])
    assert said_in(HEADS[6]) == Next(scan=3, ended=[])


@sampled_product(
    "head,value", HEADS, [None, -1, 1 << 70, 1.5, "x", [], ["a", 1], [-1], {}, True], dev=20
)
def test_heads_of_other_values_are_refused(head: dict[str, Any], value: object) -> None:
    extra = head | {"more": value}
    with pytest.raises(tr.InvalidInputError, match="untrusted query was stopped"):
        said_in(extra)
    with pytest.raises(tr.InvalidInputError, match="untrusted query was stopped"):
        said_in(head | {"kind": value})


@pytest.mark.parametrize("name", ["scan", "table", "columns", "ended"])
@pytest.mark.parametrize("value", [None, -1, 1 << 70, 1.5, "x", ["a", 1], [-1], {}, True])
def test_scans_of_other_values_are_refused(name: str, value: object) -> None:
    with pytest.raises(tr.InvalidInputError, match="untrusted query was stopped"):
        said_in(HEADS[5] | {name: value})


@pytest.mark.parametrize("seed", sampled(range(10), 4))
def test_no_change_of_a_head_is_anything_but_understood_or_refused(seed: int) -> None:
    chance = Random(seed)
    texts = [json.dumps(head) for head in HEADS]
    for _ in range(200):
        one, other = chance.choice(texts), chance.choice(texts)
        at = chance.randrange(len(one))
        _say(one[:at] + other[chance.randrange(len(other)) :])


def _say(text: str) -> None:
    try:
        said_in(json.loads(text))
    except (tr.InvalidInputError, json.JSONDecodeError):
        return


# ------------------------------------------------------------------------------ filters


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_filters_travel_as_they_are(where: pc.Expression) -> None:
    body = packed_filter(where)
    assert body is not None
    assert filter_in(body.to_pybytes()).equals(where)


@pytest.mark.parametrize(
    "where",
    [pc.field("s", "a") == 1, pc.field("n").cast("int32") == 1, NESTED, pc.field("n") + 1 > 2],
    ids=["nested field", "cast", "many calls", "arithmetic"],
)
def test_other_filters_are_not_sent(where: pc.Expression) -> None:
    assert packed_filter(where) is None


def test_filters_of_other_functions_are_refused() -> None:
    """Arrow has hundreds, and some take as long as somebody likes."""
    where = pc.field("n").cast("int32") == 1
    _, (stored,) = where.__reduce__()
    batch = pa.ipc.open_file(stored).get_batch(0)
    with pytest.raises(tr.InvalidInputError, match="not understood"):
        filter_in(packed([batch], batch.schema))


@pytest.mark.parametrize("seed", sampled(range(20), 8))
def test_no_change_of_a_filter_breaks_its_reader(seed: int) -> None:
    chance = Random(seed)
    for _ in range(50):
        body = packed_filter(chance.choice(FILTERS))
        assert body is not None
        changed = bytearray(body.to_pybytes())
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        _filter(bytes(changed))


def _filter(body: bytes) -> None:
    try:
        found = filter_in(body)
    except tr.InvalidInputError:
        return
    assert isinstance(found, pc.Expression)
