"""Pages of trees: their bytes, where they end, and what a reader refuses."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.history import tree_pages
from tensorrepo.repo.history.tree_pages import (
    MAX_ITEMS,
    MAX_ROOT_BYTES,
    MIN_ITEMS,
    Entry,
    Page,
    clash,
    decode_page,
    decode_root,
    encode_page,
    page_ends,
    shared_length,
)
from tensorrepo.repo.history.trees import EMPTY_TREE
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import Kind, decode_object
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import FLIPS, flipped, short_survivors, survivors
from tests.support.second_readers.tree import page as reference_page
from tests.support.second_readers.tree import reference_root

GOLDEN = Path(__file__).parents[2] / "golden" / "trees"
ONE, TWO, THREE = (Digest(digit * 64) for digit in "123")

# file in tests/golden/trees: the page
CASES = {
    "empty": Page(0, ()),
    "entries": Page(
        0,
        (
            ("datasets/Fashion", Entry(Kind.DATASET, ONE, summary=b"60,000 rows")),
            ("datasets/fashion-2", Entry(Kind.DATASET, TWO)),
            ("models/resnet", Entry(Kind.MODEL, TWO, THREE, bytes(range(64)))),
            ("README.md", Entry(Kind.BLOB, ONE)),
        ),
    ),
    "children": Page(
        2,
        (
            ("files/m", Entry(Kind.TREE_PAGE, ONE)),
            ("files/z", Entry(Kind.TREE_PAGE, TWO)),
        ),
    ),
}
ENTRIES = (GOLDEN / "entries.bin").read_bytes()


def item(shared: int, rest: bytes, kind: int = 1, flags: int = 0, summary: bytes = b"") -> bytes:
    """One item laid out by hand: its digest is of 0x11, with flag 1 the storage is of 0x22."""
    storage = b"\x22" * 32 if flags & 1 else b""
    head = struct.pack("<HHBBB", shared, len(rest), kind, flags, len(summary))
    return head + b"\x11" * 32 + storage + summary + rest


def page(*items: bytes, version: int = 2, level: int = 0, count: int | None = None) -> bytes:
    count = len(items) if count is None else count
    return struct.pack("<BBH", version, level, count) + b"".join(items)


@pytest.mark.parametrize("case", CASES)
def test_the_golden_page_is_what_is_written_today(case: str) -> None:
    assert encode_page(CASES[case]) == (GOLDEN / f"{case}.bin").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_the_golden_page_is_what_the_specification_says(case: str) -> None:
    expected = reference_page(CASES[case].level, CASES[case].items)
    assert (GOLDEN / f"{case}.bin").read_bytes() == expected


@pytest.mark.parametrize("case", CASES)
def test_the_golden_page_read_back_gives_what_went_in(case: str) -> None:
    found = decode_page((GOLDEN / f"{case}.bin").read_bytes(), "page")
    assert found == CASES[case]
    assert [e.summary for _, e in found.items] == [e.summary for _, e in CASES[case].items]


def test_the_golden_tree_of_5000_entries_has_the_root_of_the_specification() -> None:
    objects = MemoryObjects()
    entry = Entry(Kind.BLOB, objects.put(Kind.BLOB, b"").digest)
    root = reference_root(objects, {f"files/{i:04d}/data": entry for i in range(5000)})
    assert root == (GOLDEN / "root-of-5000.bin").read_bytes()


def test_the_empty_tree_is_a_header_alone() -> None:
    assert EMPTY_TREE == b"\x02\x00\x00\x00"


@pytest.mark.parametrize("mask", FLIPS)
def test_a_flipped_byte_is_refused_or_says_something_else_canonically(mask: int) -> None:
    found = survivors(ENTRIES, mask, lambda damaged: encode_page(decode_page(damaged, "page")))
    assert found == {at: flipped(ENTRIES, at, mask) for at in found}


PATHS = st.lists(
    st.sampled_from([f"{folder}/{n}" for folder in "abC" for n in range(9)]), unique=True
)
EDITS = st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 255)), max_size=3)


def outcome(data: bytes) -> tuple[object, ...]:
    """What a reader makes of a page, or how it refuses it."""
    try:
        found = decode_page(data, "page")
    except Error as error:
        return type(error), str(error)
    return found.level, [(path, *attributes(entry)) for path, entry in found.items]


def attributes(entry: Entry) -> tuple[object, ...]:
    return entry.kind, entry.digest, entry.storage, entry.summary


def forget_pages() -> None:
    tree_pages._KNOWN.clear()
    tree_pages._SEEN.clear()


@given(first=PATHS, second=PATHS, digits=st.tuples(*[st.sampled_from("1234")] * 2), edits=EDITS)
def test_a_page_beside_one_that_was_seen_is_read_and_written_like_any(
    first: list[str], second: list[str], digits: tuple[str, str], edits: list[tuple[int, int]]
) -> None:
    seen, new = (
        Page(0, tuple((path, Entry(Kind.BLOB, Digest(digit * 64), summary=digit.encode()))
                      for path in sorted(paths, key=path_key)))
        for paths, digit in zip((first, second), digits, strict=True)
    )  # fmt: skip
    kept = dict(seen.items)
    new = Page(0, tuple((path, kept.get(path, entry)) for path, entry in new.items))
    forget_pages()
    alone = encode_page(new)
    damaged = bytearray(alone)
    for at, value in edits:
        damaged[at % len(damaged)] = value
    forget_pages()
    expected = outcome(bytes(damaged))
    forget_pages()
    encode_page(seen)
    assert encode_page(new) == alone
    forget_pages()
    encode_page(seen)
    assert outcome(bytes(damaged)) == expected


def stored_page() -> tuple[Digest, bytes]:
    objects = MemoryObjects()
    blobs = [objects.put(Kind.BLOB, bytes([i])).digest for i in range(3)]
    items = tuple((f"path-{i}", Entry(Kind.BLOB, blob)) for i, blob in enumerate(blobs))
    link = objects.put(Kind.TREE_PAGE, encode_page(Page(0, items)), blobs)
    return link.digest, objects.stored[link.digest]


STORED_NAME, STORED = stored_page()


def test_no_flipped_byte_of_a_stored_page_goes_unnoticed() -> None:
    found = survivors(
        STORED, 0x10, lambda damaged: decode_object(damaged, STORED_NAME), (CorruptError,)
    )
    assert found == {}


def test_a_page_cut_short_is_corrupt() -> None:
    assert short_survivors(ENTRIES, lambda cut: decode_page(cut, "page")) == {}


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda tail: b"\2\0\2\0" + tail))
def test_any_bytes_are_refused_or_encode_to_themselves(data: bytes) -> None:
    with suppress(Error):
        assert encode_page(decode_page(data, "page")) == data


BAD = {
    "no header": (b"\2\0", CorruptError, "header"),
    "version 1": (page(version=1), UnsupportedError, "version 1"),
    "level 8": (page(item(0, b"a", 2), level=8), CorruptError, "level 8"),
    "no children": (page(level=1), CorruptError, "level 1, 0 items"),
    "too many items": (page(count=1025), CorruptError, "1025 items"),
    "fewer bytes than items": (page(item(0, b"a"), count=2), CorruptError, "cut short"),
    "more bytes than items": (page(item(0, b"a")) + b"\0", CorruptError, "1 bytes follow"),
    "path beyond the end": (page(item(0, b"abc")[:-1]), CorruptError, "its lengths"),
    "storage beyond the end": (page(item(0, b"", flags=1)[:-1]), CorruptError, "its lengths"),
    "summary of 65 bytes": (page(item(0, b"a", summary=bytes(65))), CorruptError, "its lengths"),
    "summary beyond the end": (page(item(0, b"", summary=b"a")[:-1]), CorruptError, "its lengths"),
    "summary of a page": (
        page(item(0, b"a", 2, summary=b"a"), level=1),
        CorruptError,
        "no summary",
    ),
    "unknown flag": (page(item(0, b"a", flags=2)), CorruptError, "its lengths"),
    "unknown kind": (page(item(0, b"a", 99)), UnsupportedError, "kind 99"),
    "child among entries": (page(item(0, b"a", 2)), CorruptError, "tree page 'a' at level 0"),
    "entry among children": (page(item(0, b"a"), level=1), CorruptError, "blob 'a' at level 1"),
    "shares with nothing": (page(item(1, b"a")), CorruptError, "its lengths"),
    "shares too much": (page(item(0, b"a"), item(2, b"b")), CorruptError, "its lengths"),
    "shares too little": (page(item(0, b"ab"), item(0, b"ac")), CorruptError, "shares more"),
    "same path": (page(item(0, b"ab"), item(2, b"")), CorruptError, "out of order"),
    "out of order": (page(item(0, b"b"), item(0, b"a")), CorruptError, "out of order"),
    "order of cases": (page(item(0, b"a"), item(0, b"B"), item(0, b"A")), CorruptError, "order"),
    "twin neighbours": (page(item(0, b"A"), item(0, b"a")), CorruptError, "out of order"),
    "folder twins": (page(item(0, b"A/x"), item(0, b"a/y")), CorruptError, "only in case"),
    "entry and folder": (page(item(0, b"a"), item(1, b"/b")), CorruptError, "and a folder"),
    "Entry and folder": (page(item(0, b"A"), item(0, b"a/b")), CorruptError, "and a folder"),
    "traversal": (page(item(0, b"../a")), CorruptError, "no valid path"),
    "empty path": (page(item(0, b"")), CorruptError, "no valid path"),
    "no ASCII": (page(item(0, b"caf\xc3\xa9")), CorruptError, "no valid path"),
    "device": (page(item(0, b"nul.txt")), CorruptError, "no valid path"),
}


@pytest.mark.parametrize(("data", "error", "reason"), BAD.values(), ids=BAD)
def test_what_no_page_may_say_is_refused(data: bytes, error: type[Error], reason: str) -> None:
    with pytest.raises(error, match=reason) as refused:
        decode_page(data, "tree page abc")
    assert str(refused.value).startswith("tree page abc: ")


def test_a_root_page_larger_than_a_commit_holds_is_corrupt() -> None:
    with pytest.raises(CorruptError, match="at most 16384"):
        decode_root(bytes(MAX_ROOT_BYTES + 1))


def test_a_page_ends_neither_before_64_items_nor_after_1024() -> None:
    items = [(f"p{i:06d}", Entry(Kind.BLOB, ONE)) for i in range(50_000)]
    ends = page_ends(items, 0)
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    assert min(sizes) >= MIN_ITEMS
    assert max(sizes) <= MAX_ITEMS
    assert 170 < sum(sizes) / len(sizes) < 215


def test_a_page_without_a_natural_end_is_cut_at_1024() -> None:
    never = [("p1", Entry(Kind.BLOB, ONE))] * 2500  # BLAKE3("p1") ends no page
    assert page_ends(never, 0) == [1024, 2048]


def test_levels_end_pages_after_different_paths() -> None:
    items = [(f"p{i:06d}", Entry(Kind.BLOB, ONE)) for i in range(5000)]
    assert page_ends(items, 0) != page_ends(items, 1)


@given(st.text("ab/", max_size=9), st.text("ab/", max_size=9))
def test_the_shared_length_is_that_of_the_longest_common_prefix(a: str, b: str) -> None:
    length = shared_length(a, b)
    assert a[:length] == b[:length]
    assert a[length : length + 1] != b[length : length + 1] or a == b


@pytest.mark.parametrize(
    ("first", "second"), [("a", "ab"), ("a/b", "a/c"), ("Dat/x", "data/y"), ("a/B", "a/bc")]
)
def test_paths_that_only_look_alike_do_not_clash(first: str, second: str) -> None:
    assert clash(first, second) is None
