"""Keys with labels, and the tables that say which label an object was buried under."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.incarnations import GRAVE, GraveTable, object_key, parse_object_key
from tests.support.builders.log import digest
from tests.support.builders.stored import encode_graves

DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64).map(Digest)
# Few prefixes, so that digests meet in their first 8 bytes.
CLOSE = st.builds(
    lambda head, tail: Digest(f"{head:016x}{tail:048x}"), st.integers(0, 3), st.integers(0, 3)
)
LABELS = st.integers(1, 2**32 - 1)


@given(DIGESTS, st.integers(0, 2**63))
def test_a_key_says_which_object_and_which_incarnation_it_holds(name: Digest, label: int) -> None:
    assert parse_object_key(object_key(name, label)) == (name, label)


def test_the_first_incarnation_has_no_label_in_its_key() -> None:
    assert object_key(digest(5)) == "objects/00/" + digest(5)[2:]
    assert object_key(digest(5), 12) == "objects/00/" + digest(5)[2:] + ".12"


@pytest.mark.parametrize(
    "key",
    [
        "objects/00/" + "0" * 61,
        "objects/00/" + "0" * 63,
        "objects/0/" + "0" * 63,
        "objects/000/" + "0" * 61,
        "objects/00/" + "0" * 61 + "A",
        "objects/00/" + "0" * 62 + ".",
        "objects/00/" + "0" * 62 + ".0",
        "objects/00/" + "0" * 62 + ".01",
        "objects/00/" + "0" * 62 + ".-1",
        "objects/00/" + "0" * 62 + ".1.2",
        "objects/00/" + "0" * 62 + ".²",
        "objects/00/" + "0" * 62 + ".x",
        "log/00000000000000000001.json",
        "",
    ],
)
def test_what_is_no_key_of_an_object_is_not_taken_for_one(key: str) -> None:
    assert parse_object_key(key) is None


@given(st.lists(st.tuples(CLOSE, LABELS)), CLOSE)
def test_a_table_gives_the_newest_label_of_a_prefix(
    buried: list[tuple[Digest, int]], asked: Digest
) -> None:
    table = GraveTable(memoryview(encode_graves(buried)))
    labels = [label for name, label in buried if name[:16] == asked[:16]]
    assert table.label(asked) == max(labels, default=0)


@given(st.lists(st.tuples(DIGESTS, LABELS)))
def test_every_condemned_digest_is_found(buried: list[tuple[Digest, int]]) -> None:
    table = GraveTable(memoryview(encode_graves(buried)))
    assert all(table.label(name) >= label for name, label in buried)


@given(st.lists(st.tuples(DIGESTS, LABELS)), st.randoms(use_true_random=False))
def test_equal_condemnations_have_equal_tables(
    buried: list[tuple[Digest, int]], order: object
) -> None:
    shuffled = [*buried, *buried[:2]]
    order.shuffle(shuffled)  # type: ignore[attr-defined]  # a Random, which Hypothesis hides
    assert encode_graves(shuffled) == encode_graves(buried)


def test_a_grave_takes_12_bytes() -> None:
    table = encode_graves((digest(n << 192), n) for n in range(1, 101))
    assert len(table) == 1200
    prefixes = [prefix for prefix, _ in GRAVE.iter_unpack(table)]
    assert all(a < b for a, b in pairwise(prefixes))


TABLE = encode_graves((digest(n << 200), n) for n in (1, 2, 3))


@pytest.mark.parametrize(
    "payload",
    [TABLE[:-1], TABLE + b"\0", TABLE[12:24] + TABLE[:12], TABLE[:12] * 2],
    ids=["cut short", "too long", "not sorted", "not unique"],
)
def test_a_malformed_table_is_corrupt(payload: bytes) -> None:
    with pytest.raises(CorruptError, match="grave table"):
        GraveTable(memoryview(payload))
