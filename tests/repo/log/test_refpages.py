from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.digests import state_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import canonical_json
from tensorrepo.repo.log.state import (
    FORMAT,
    Paging,
    State,
    cut_refs,
    decode_state,
    encode_state,
    encode_with_pages,
)
from tests.support.builders.log import digest
from tests.support.faults.damage import survivors

SHORT = Paging(inline_bytes=300, end_mask=3, min_refs=2, max_refs=8)
MANY = {f"runs/{number % 97:03d}/{number:06d}": digest(number) for number in range(20_000)}
ALWAYS = Paging(inline_bytes=0)


def pages_of(refs: dict[str, Digest], paging: Paging = SHORT) -> dict[Digest, bytes]:
    pages = cut_refs(refs, paging)
    assert pages is not None
    return pages


REFS = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=9),
    st.integers(1, 9).map(digest),
    max_size=40,
)


@given(REFS)
def test_a_state_comes_back_from_its_bytes_and_pages_whatever_the_paging(
    refs: dict[str, Digest],
) -> None:
    state = State(generation=9, refs=refs)
    paged = encode_with_pages(state, SHORT)
    assert decode_state(paged.data, "there", lambda _: paged.pages, SHORT) == state
    assert decode_state(encode_state(state)) == state


@given(REFS, st.randoms(use_true_random=False))
def test_equal_refs_have_equal_pages_whatever_the_order_of_their_updates(
    refs: dict[str, Digest], chance: random.Random
) -> None:
    shuffled = list(refs.items())
    chance.shuffle(shuffled)
    assert encode_with_pages(State(refs=dict(shuffled)), SHORT) == encode_with_pages(
        State(refs=refs), SHORT
    )


@given(REFS.filter(bool))
def test_refs_are_cut_only_where_they_take_more_than_the_limit(refs: dict[str, Digest]) -> None:
    size = len(canonical_json(refs))
    assert cut_refs(refs, Paging(inline_bytes=size)) is None
    assert cut_refs(refs, Paging(inline_bytes=size - 1)) is not None


def test_up_to_4_mib_refs_are_in_the_state_itself() -> None:
    assert FORMAT.inline_bytes == 4 << 20
    assert encode_with_pages(State(refs=MANY)).pages == {}


def test_pages_have_the_sizes_that_the_format_promises() -> None:
    counts = [page.count(b":") for page in pages_of(MANY, ALWAYS).values()]
    assert sum(counts) == len(MANY)
    assert min(counts[:-1]) >= 128
    assert max(counts) <= 4096
    assert 20_000 / 640 / 2 < len(counts) < 20_000 / 640 * 2


@pytest.mark.parametrize("at", [0, 1, 9_999, 19_999])
def test_one_changed_ref_among_20_000_changes_one_page(at: int) -> None:
    name = sorted(MANY)[at]
    changed = pages_of(MANY | {name: digest(1 << 200)}, ALWAYS)
    assert len(changed.keys() - pages_of(MANY, ALWAYS).keys()) == 1


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_a_ref_that_comes_or_goes_changes_few_of_many_pages(seed: int) -> None:
    name = random.Random(seed).choice(sorted(MANY))
    fewer = {ref: value for ref, value in MANY.items() if ref != name}
    before, after = pages_of(fewer, ALWAYS).keys(), pages_of(MANY, ALWAYS).keys()
    assert 1 <= len(after - before) <= 4


STATE = State(generation=9, refs={f"heads/b{number:02d}": digest(number) for number in range(12)})
ENCODED = encode_with_pages(STATE, SHORT)
FIRST = next(iter(ENCODED.pages))


def decode_with(pages: dict[Digest, bytes | None]) -> State:
    found = {**ENCODED.pages, **pages}
    return decode_state(ENCODED.data, "there", lambda _: found, SHORT)


def test_no_flipped_byte_of_a_page_goes_unnoticed() -> None:
    found = survivors(
        ENCODED.pages[FIRST],
        0xFF,
        lambda damaged: decode_with({FIRST: damaged}),
        (CorruptError,),
        match="there: expected ref page",
    )
    assert found == {}


def test_a_missing_page_is_named() -> None:
    with pytest.raises(CorruptError, match=f"there: its ref page {FIRST:.12} is missing"):
        decode_with({FIRST: None})


def state_of(pages: list[bytes]) -> State:
    """The state in a checkpoint that names `pages`, as somebody else may have cut them."""
    named = {state_digest(page): page for page in pages}
    plain = encode_state(State(generation=9))
    data = plain.replace(b'"refs":{}', b'"refs":' + canonical_json(list(named)))
    return decode_state(data, "there", lambda _: named, SHORT)


GOOD = list(ENCODED.pages.values())
CUT = GOOD[0].index(b",")


def test_the_pages_of_the_next_tests_make_a_state() -> None:
    assert len(GOOD) > 2
    assert state_of(GOOD) == STATE


@pytest.mark.parametrize(
    "pages",
    [
        [],
        [*reversed(GOOD)],
        [GOOD[0][:CUT] + b"}", b"{" + GOOD[0][CUT + 1 :], *GOOD[1:]],
        [GOOD[0][:-1] + b"," + GOOD[1][1:], *GOOD[2:]],
        [*GOOD, b"{}"],
        [*GOOD, b"[]"],
        [*GOOD, b""],
        [*GOOD, b'{"heads/z":null}'],
        [*GOOD, b'{"heads/b00":"' + digest(3).encode() + b'"}'],
        [GOOD[0].replace(b",", b", ", 1), *GOOD[1:]],
        [b'{"a":"' + digest(1).encode() + b'"}'],
    ],
    ids=[
        "none",
        "out of order",
        "cut where none ends",
        "not cut where one ends",
        "an empty one",
        "no object",
        "no JSON",
        "no digest",
        "a ref twice",
        "not canonical",
        "few enough to be inline",
    ],
)
def test_pages_that_are_not_as_the_format_cuts_them_are_corrupt(pages: list[bytes]) -> None:
    with pytest.raises(CorruptError, match="there: "):
        state_of(pages)
