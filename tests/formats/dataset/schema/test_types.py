"""Column types and links have a JSON form, and refuse what cannot be stored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.types import (
    ColumnLayout,
    ColumnType,
    Link,
    LinkValue,
    Scalar,
    Tensor,
    as_link,
    decode_link,
    encode_link,
    storage_of,
    type_from_json,
    type_to_json,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.column_types import TYPES, tiled

NATURAL = st.integers(0, 2**63 - 1)
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


@st.composite
def links(draw: st.DrawFn) -> LinkValue:
    start = draw(NATURAL)
    stop = draw(st.none() | st.integers(start, 2**63 - 1))
    texts = st.none() | WORDS
    return LinkValue(draw(WORDS), start, stop, draw(st.none() | NATURAL), draw(texts), draw(texts))


@given(st.one_of(TYPES, tiled()))
def test_a_type_survives_json(kind: ColumnType) -> None:
    assert type_from_json(json.loads(json.dumps(type_to_json(kind)))) == kind


@given(tiled())
def test_tiled_rows_may_differ_where_a_dimension_is_unknown(kind: Any) -> None:
    storage = storage_of(kind)
    assert storage.layout is ColumnLayout.TILED
    assert storage.tile == kind.tile
    assert storage.stores_dims == (storage.unknown_dims > 1 or not storage.known_elements)


def test_small_floats_are_types_of_elements() -> None:
    assert type_to_json(Scalar("bfloat16")) == {"type": "scalar", "dtype": "bfloat16"}
    assert storage_of(Tensor("float8_e5m2", (3,))).row_bytes == 3


@given(links())
def test_a_link_survives_its_stored_form(link: LinkValue) -> None:
    assert decode_link(encode_link(link)) == link
    assert as_link(encode_link(link).decode()) == link


def test_a_link_is_stored_as_compact_json_without_what_it_does_not_say() -> None:
    assert encode_link(LinkValue("s3://b/ä")) == '{"url":"s3://b/ä"}'.encode()
    assert encode_link(LinkValue("a", 5, size=7)) == b'{"url":"a","start":5,"size":7}'
    assert storage_of(Link()).layout is ColumnLayout.BINARY


@pytest.mark.parametrize(
    "given", [LinkValue("a", 1), {"url": "a", "start": 1, "etag": None}, '{"url":"a","start":1}']
)
def test_a_link_is_given_in_several_ways(given: Any) -> None:
    assert as_link(given) == LinkValue("a", 1)


@pytest.mark.parametrize(
    "given",
    [
        None,
        b"a",
        7,
        "",
        "a\n",
        "\ud800",
        "a" * 70_000,
        "{",
        {"url": 7},
        {"start": 1},
        {"url": "a", "to": "b"},
        {"url": "a", "start": -1},
        {"url": "a", "start": 5, "stop": 4},
        {"url": "a", "start": True},
        {"url": "a", "size": 2**63},
        {"url": "a", "etag": ""},
        {"url": "a", "hash": "\0"},
    ],
)
def test_what_is_no_link_is_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="not a link"):
        as_link(given)


@pytest.mark.parametrize("stored", [b"", b"\xff", b"[]", b'{"url":""}', b'{"url":"a"} x'])
def test_damaged_links_are_seen(stored: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_link(stored)
