"""Commits: their bytes, what they may say, and what a reader refuses."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.history.commits import (
    MAX_CHANGED,
    Commit,
    changed_paths,
    clean_message,
    decode_commit,
    encode_commit,
    read_commit,
    signed_bytes,
    write_commit,
)
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, PathChange, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.names import path_key
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, decode_object, encode_object
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import FLIPS, flipped, short_survivors, survivors

GOLDEN = Path(__file__).parents[2] / "golden" / "commits"
ONE, TWO = Digest("1" * 64), Digest("2" * 64)
AUTHOR = "Ada Lovelace <ada@example.org>"
FIRST = Commit(EMPTY_TREE, (), 1, AUTHOR, "First", 0, changed=())
MERGE = Commit(
    tree=EMPTY_TREE,
    parents=(TWO, ONE),
    generation=41,
    author="Zo\u00eb <zoe@example.org>",
    message="Merge\n\n\tboth sides \u2713",
    time_ns=1_763_000_000_123_456_789,
    metadata={"z": [1, -1, 1.5, None, True], "a": {"\u00fc": 2**64 - 1, "b": ""}, "k": -(2**63)},
    changed=("datasets/a", "datasets/a-b", "models/m"),
    signature=b"\x00sig\xff",
)
CASES = {"first": FIRST, "merge": MERGE, "unsigned": replace(MERGE, signature=None, changed=None)}
BYTES = (GOLDEN / "merge.bin").read_bytes()

# The same by the specification alone: version, tree, parents, generation, author, message, time,
# metadata, changed, signature.
MERGE_BY_HAND = b"".join(
    [
        b"\x9a\x01",
        b"\xc4\x04\x02\x00\x00\x00",
        b"\x92\xc4\x20" + b"\x22" * 32 + b"\xc4\x20" + b"\x11" * 32,
        b"\x29",
        b"\xb6Zo\xc3\xab <zoe@example.org>",
        b"\xb6Merge\n\n\tboth sides \xe2\x9c\x93",
        b"\xcf" + (1_763_000_000_123_456_789).to_bytes(8, "big"),
        b"\x83\xa1a\x82\xa1b\xa0\xa2\xc3\xbc\xcf" + b"\xff" * 8,
        b"\xa1k\xd3\x80" + bytes(7),
        b"\xa1z\x95\x01\xff\xcb\x3f\xf8" + bytes(6) + b"\xc0\xc3",
        b"\x93\xaadatasets/a\xacdatasets/a-b\xa8models/m",
        b"\xc4\x05\x00sig\xff",
    ]
)


@pytest.mark.parametrize("case", CASES)
def test_the_golden_commit_is_what_is_written_today(case: str) -> None:
    assert encode_commit(CASES[case]) == (GOLDEN / f"{case}.bin").read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_the_golden_commit_read_back_gives_what_went_in(case: str) -> None:
    assert decode_commit((GOLDEN / f"{case}.bin").read_bytes()) == CASES[case]


def test_the_golden_merge_is_laid_out_as_the_specification_says() -> None:
    assert MERGE_BY_HAND == BYTES


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=6), st.randoms())
def test_metadata_comes_back_and_its_order_does_not_matter(metadata, rng) -> None:
    names = list(metadata)
    rng.shuffle(names)
    encoded = encode_commit(replace(FIRST, metadata=metadata))
    assert encode_commit(replace(FIRST, metadata={n: metadata[n] for n in names})) == encoded
    assert decode_commit(encoded).metadata == metadata


@pytest.mark.parametrize("mask", FLIPS)
def test_a_flipped_byte_is_refused_or_says_something_else_canonically(mask: int) -> None:
    found = survivors(BYTES, mask, lambda damaged: encode_commit(decode_commit(damaged)))
    assert found == {at: flipped(BYTES, at, mask) for at in found}


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: BYTES[:90] + tail))
def test_any_bytes_are_refused_or_encode_to_themselves(data: bytes) -> None:
    with suppress(Error):
        assert encode_commit(decode_commit(data)) == data


def test_a_commit_cut_short_is_corrupt() -> None:
    assert short_survivors(BYTES, decode_commit) == {}


FIELDS: list[Any] = msgspec.msgpack.decode(BYTES)


def stored(**changes: Any) -> bytes:
    """The merge with fields replaced by their position, ``f3=...``, in whatever form."""
    fields = list(FIELDS)
    for name, value in changes.items():
        fields[int(name[1:])] = value
    return msgspec.msgpack.encode(fields)


NOT_CANONICAL = {
    "bytes after the end": BYTES + b"\0",
    "one field too many": msgspec.msgpack.encode([*FIELDS, 1]),
    "one field too few": msgspec.msgpack.encode(FIELDS[:-1]),
    "a map instead of an array": msgspec.msgpack.encode({"version": 1}),
    "no fields": b"\x90",
    "names out of order": stored(f7={"b": 1, "a": 2}),
    "a name twice": BYTES.replace(b"\x82\xa1b\xa0\xa2\xc3\xbc", b"\x82\xa1b\xa0\xa1b\xc0"),
    "an integer in a longer form": BYTES.replace(b"\x29\xb6Zo", b"\xcc\x29\xb6Zo"),
    "a short float": BYTES.replace(b"\xcb\x3f\xf8" + bytes(6), b"\xca\x3f\xc0\x00\x00"),
    "a string in a longer form": BYTES.replace(b"\xa8models/m", b"\xd9\x08models/m"),
    "bytes in metadata": stored(f7={"a": b"x"}),
    "a timestamp in metadata": stored(f7={"a": msgspec.msgpack.Ext(-1, bytes(4))}),
    "an extension in metadata": stored(f7={"a": msgspec.msgpack.Ext(5, b"x")}),
    "not a number": stored(f7={"a": float("nan")}),
    "metadata that is no map": stored(f7=[1]),
    "metadata nested too deep": stored(f7=msgspec.Raw(b"\x81\xa1a" + b"\x91" * 5000 + b"\xc0")),
    "text that is no UTF-8": BYTES.replace(b"Zo\xc3\xab", b"Zo\xc3\x00"),
    "a short parent": stored(f2=[b"\x11" * 31]),
    "a parent twice": stored(f2=[b"\x11" * 32] * 2),
    "a negative generation": stored(f3=-1),
    "no generation": stored(f3=0),
    "generation 1 with parents": stored(f3=1),
    "generation 2 without parents": stored(f2=[], f3=2),
    "no tree": stored(f1=b""),
    "a huge tree": stored(f1=bytes(16385)),
    "a negative time": stored(f6=-1),
    "changed paths out of order": stored(f8=["b", "a"]),
    "changed paths twice": stored(f8=["a", "a"]),
    "a changed path outside": stored(f8=["../a"]),
    "an author without an address": stored(f4="Ada"),
    "an escape sequence": stored(f5="\x1b[2J"),
    "an empty signature": stored(f9=b""),
    "too many bytes": bytes(3 << 20),
}


@pytest.mark.parametrize("data", NOT_CANONICAL.values(), ids=NOT_CANONICAL)
def test_what_no_commit_may_say_is_corrupt(data: bytes) -> None:
    assert data != BYTES
    with pytest.raises(CorruptError):
        decode_commit(data)


def test_a_newer_version_is_named_as_such() -> None:
    with pytest.raises(UnsupportedError, match="commit version 2"):
        decode_commit(msgspec.msgpack.encode([2, "whatever"]))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("author", "Ada", "Name <email>"),
        ("author", " <ada@example.org>", "Name <email>"),
        ("author", "A <b> <c>", "Name <email>"),
        ("author", "A\nB <c>", "U\\+000A"),
        ("author", "\u202eA <c>", "U\\+202E"),
        ("author", "A" * 1024 + " <c>", "at most 1024"),
        ("message", "\x1b[31mred", "U\\+001B"),
        ("message", "a\r\nb", "U\\+000D"),
        ("message", "\ud800", "U\\+D800"),
        ("message", "\u00e9" * 40_000, "at most 65536"),
        ("metadata", {"a": float("inf")}, "inf"),
        ("metadata", {"a": 2**64}, "65 bits"),
        ("metadata", {"a": b""}, "bytes"),
        ("metadata", {1: "a"}, "key 1 is not text"),
        ("metadata", {"\ud800": 1}, "half a surrogate pair"),
        ("metadata", {"a": "\ud800"}, "half a surrogate pair"),
        ("metadata", {"a": "x" * 70_000}, "at most 65536"),
        ("metadata", ["a"], "mapping"),
        ("changed", tuple(f"p{i:03d}" for i in range(257)), "up to 256"),
        ("parents", (Digest("xyz"),), "64 lower-case"),
        ("parents", tuple(Digest(f"{i:064x}") for i in range(65)), "up to 64"),
        ("signature", bytes(20_000), "16384"),
        ("time_ns", 2**63, "2262"),
    ],
)
def test_a_commit_refuses_nonsense_at_birth(field: str, value: Any, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        replace(MERGE, **{field: value})


def test_metadata_may_be_nested_but_not_without_end() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="deeper than 32"):
        replace(FIRST, metadata={"a": deep})


def test_a_signature_covers_all_but_itself() -> None:
    assert signed_bytes(MERGE) == signed_bytes(replace(MERGE, signature=b"other"))
    assert signed_bytes(MERGE) != signed_bytes(replace(MERGE, message="other"))


class TestStored:
    def commit(self, objects: MemoryObjects) -> tuple[Digest, Commit, list[Digest]]:
        blobs = [objects.put(Kind.BLOB, bytes([i])).digest for i in range(3)]
        tree = {"a": Entry(Kind.BLOB, blobs[0], blobs[1]), "b": Entry(Kind.BLOB, blobs[2])}
        parent = write_commit(objects, FIRST).digest
        root = update(objects, EMPTY_TREE, tree)
        commit = Commit(root, (parent,), 2, AUTHOR, "Second", 5, changed=("a", "b"))
        return write_commit(objects, commit).digest, commit, [parent, *blobs]

    def test_a_commit_read_back_is_the_one_written(self) -> None:
        objects = MemoryObjects()
        digest, commit, _ = self.commit(objects)
        assert read_commit(objects, digest) == commit

    def test_a_commit_links_to_its_parents_and_to_what_its_root_page_names(self) -> None:
        objects = MemoryObjects()
        digest, _, expected = self.commit(objects)
        assert [link.digest for link in objects.get(digest).links] == sorted(expected)

    def test_another_object_is_no_commit(self) -> None:
        objects = MemoryObjects()
        blob = objects.put(Kind.BLOB, b"").digest
        with pytest.raises(InvalidInputError, match="is a blob, not a commit"):
            read_commit(objects, blob)

    def test_a_damaged_commit_is_named(self) -> None:
        objects = MemoryObjects()
        digest = objects.put(Kind.COMMIT, b"\x90").digest
        with pytest.raises(CorruptError, match=f"commit {digest[:12]}"):
            read_commit(objects, digest)


STORED = encode_object(
    Kind.COMMIT,
    BYTES,
    [ObjectLink(parent, 999, Kind.COMMIT, leaf=False) for parent in MERGE.parents],
)
STORED_BYTES = b"".join(STORED.parts)


def test_no_flipped_byte_of_a_stored_commit_goes_unnoticed() -> None:
    name = STORED.link.digest
    found = survivors(
        STORED_BYTES, 0x04, lambda damaged: decode_object(damaged, name), (CorruptError,)
    )
    assert found == {}


def test_changed_paths_are_in_key_order() -> None:
    changes = [PathChange(path, None, None) for path in ("a-b", "a/c", "B")]
    assert changed_paths(changes) == tuple(sorted(("a-b", "a/c", "B"), key=path_key))


@pytest.mark.parametrize(("count", "known"), [(0, True), (MAX_CHANGED, True), (257, False)])
def test_more_than_256_changed_paths_are_not_listed(count: int, known: bool) -> None:
    paths = changed_paths(PathChange(f"p{i:03d}", None, None) for i in range(count))
    assert (paths is not None) == known


@pytest.mark.parametrize(
    ("given_text", "kept"),
    [("a\r\nb\r", "a\nb"), ("\n\na  \n\nb\t\n\n", "a\n\nb"), ("", ""), ("  a", "  a")],
)
def test_a_message_is_cleaned_of_what_editors_leave(given_text: str, kept: str) -> None:
    assert clean_message(given_text) == kept
