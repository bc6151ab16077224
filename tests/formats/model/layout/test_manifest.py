from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.model.layout.manifest import (
    Alias,
    FileEntry,
    Manifest,
    Original,
    TensorEntry,
    TensorPiece,
    TypeEntry,
    decode_manifest,
    encode_manifest,
)
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Digest

HERE = Digest("0" * 64)
F32 = TypeEntry("F32", 1, 4)
BLOB, SUM = bytes(32), bytes(range(32))


def tensor(name: str, shape: tuple[int, ...] = (100,), **changes: Any) -> TensorEntry:
    size = 4 * math.prod(shape)
    large = size > 64
    piece = TensorPiece(
        (0,) * len(shape), shape, SUM if large else None, None if large else bytes(max(size, 0))
    )
    return TensorEntry(name, "F32", shape, (msgspec.structs.replace(piece, **changes),))


FULL = Manifest(
    types=(F32,),
    tensors=(tensor("a", (2, 3)), tensor("b.c", (50, 2)), tensor("é")),
    aliases=(Alias("tied", "a"),),
    files=(FileEntry("config.json", BLOB, 2, SUM), FileEntry("tok/vocab.txt", BLOB, 9, SUM)),
    originals=(Original("m.safetensors", "safetensors", BLOB, (75, "a"), ("b.c",), 99, SUM),),
    metadata={"epoch": 3, "nested": {"z": [1, None, True], "a": "text"}},
    metrics={"loss": math.inf, "accuracy": 0.91},
    lineage=(
        ProvenanceEdge(
            "trained_on", "datasets/x", "1" * 64, "2" * 64, {"seed": 7, "position": 4096}
        ),
    ),
)


def replaced(**changes: Any) -> Manifest:
    return msgspec.structs.replace(FULL, **changes)


def an_original(**changes: Any) -> Manifest:
    return replaced(originals=(msgspec.structs.replace(FULL.originals[0], **changes),))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode_manifest(encode_manifest(FULL), HERE) == FULL


def test_an_empty_model_is_a_model() -> None:
    assert decode_manifest(encode_manifest(Manifest()), HERE) == Manifest()


def test_nan_metrics_are_kept() -> None:
    read = decode_manifest(encode_manifest(replaced(metrics={"loss": math.nan})), HERE)
    assert math.isnan(read.metrics["loss"])


def test_the_order_of_a_map_is_no_content() -> None:
    shuffled = replaced(metadata=dict(reversed(FULL.metadata.items())))
    assert encode_manifest(shuffled) == encode_manifest(FULL)


def test_every_blob_is_linked_once() -> None:
    assert FULL.links() == (HERE,)


BROKEN = {
    "tensors out of order": replaced(tensors=FULL.tensors[::-1]),
    "a tensor twice": replaced(tensors=(tensor("a"), tensor("a"))),
    "no name": replaced(tensors=(tensor(""),)),
    "a name too long": replaced(tensors=(tensor("x" * 4097),)),
    "a type that is not listed": replaced(types=()),
    "a type that nothing has": replaced(types=(TypeEntry("BF16", 1, 2), F32)),
    "a known type with another block": replaced(types=(TypeEntry("F32", 1, 8),)),
    "a negative dimension": replaced(tensors=(tensor("a", (-1,)),)),
    "a value of another size": replaced(tensors=(tensor("a", (2,), value=b"1234"),)),
    "a small tensor with a fingerprint": replaced(tensors=(tensor("a", (2,), fingerprint=SUM),)),
    "a large tensor without one": replaced(tensors=(tensor("a", fingerprint=None),)),
    "a large tensor with a value": replaced(tensors=(tensor("a", value=bytes(400)),)),
    "a short fingerprint": replaced(tensors=(tensor("a", fingerprint=b"12"),)),
    "a piece that covers less": replaced(
        tensors=(TensorEntry("a", "F32", (100,), tensor("a", (99,)).pieces),)
    ),
    "a piece elsewhere": replaced(tensors=(tensor("a", offset=(1,)),)),
    "an alias of nothing": replaced(aliases=(Alias("tied", "nothing"),)),
    "an alias of an alias": replaced(aliases=(Alias("t", "a"), Alias("tied", "t"))),
    "an alias that is a tensor": replaced(aliases=(Alias("a", "b.c"),)),
    "a file outside": replaced(files=(FileEntry("../x", BLOB, 0, SUM),)),
    "an original outside": an_original(name="/x"),
    "a file twice": an_original(name="config.json"),
    "an original of a missing tensor": an_original(parts=(75, "q")),
    "an original of another missing tensor": an_original(others=("q",)),
    "other tensors out of order": an_original(others=("b.c", "a")),
    "bytes without a blob": an_original(blob=None),
    "a blob without bytes": an_original(parts=("a",)),
    "no bytes of a blob": an_original(parts=(0, "a")),
    "bytes of a blob twice": an_original(parts=(5, 70, "a")),
    "a blob's digest that is short": an_original(blob=b"12"),
    "an original of less than nothing": an_original(size_bytes=-1),
    "a short digest": replaced(files=(FileEntry("x", b"12", 0, SUM),)),
    "metadata that is no JSON": replaced(metadata={"x": b"bytes"}),
    "lineage without a digest": replaced(lineage=(ProvenanceEdge("parent", "models/x", "12"),)),
}
DEEP: list[Any] = []
for _ in range(100):
    DEEP = [DEEP]
BROKEN["metadata without end"] = replaced(metadata={"x": DEEP})
BROKEN["an integer above 64 bits"] = replaced(metadata={"x": 1 << 64})


@pytest.mark.parametrize("fault", BROKEN)
def test_what_no_manifest_may_hold_is_never_written(fault: str) -> None:
    with pytest.raises(InvalidInputError):
        encode_manifest(BROKEN[fault])


@pytest.mark.parametrize("fault", sorted(BROKEN.keys() - {"an integer above 64 bits"}))
def test_what_no_manifest_may_hold_is_never_read(fault: str) -> None:
    payload = msgspec.msgpack.Encoder(order="sorted").encode(BROKEN[fault])
    with pytest.raises(CorruptError):
        decode_manifest(payload, HERE)


def test_a_newer_version_says_so() -> None:
    payload = msgspec.msgpack.Encoder(order="sorted").encode(replaced(version=3))
    with pytest.raises(UnsupportedError, match="version 3"):
        decode_manifest(payload, HERE)


def cut(*boxes: tuple[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...]) -> Manifest:
    """A model of one tensor that lies in these pieces."""
    pieces = tuple(TensorPiece(offset, box, SUM, None) for offset, box in boxes)
    return Manifest(types=(F32,), tensors=(TensorEntry("a", "F32", shape, pieces),))


GRID = [((0, 0), (30, 40)), ((0, 40), (30, 60)), ((30, 0), (70, 40)), ((30, 40), (70, 60))]


def test_a_tensor_may_lie_in_a_grid_of_pieces() -> None:
    whole = cut(*GRID, shape=(100, 100))
    assert decode_manifest(encode_manifest(whole), HERE) == whole


@pytest.mark.parametrize(
    "boxes",
    [
        [],
        GRID[:3],
        [*GRID, GRID[0]],
        GRID[::-1],
        [GRID[0], GRID[1], GRID[2], ((30, 40), (70, 61))],
        [GRID[0], ((0, 40), (30, 59)), *GRID[2:]],
        [((0,), (30,)), *GRID[1:]],
        [((0, 0), (100, 50)), ((0, 0), (100, 50))],
        [((0, -20), (100, 70)), ((0, 50), (100, 50))],
        [((0, 0), (100, 100)), ((0, 100), (100, 0))],
    ],
    ids=[
        "no pieces", "one too few", "one twice", "another order", "one too long", "a hole",
        "other dimensions", "one over the other", "one outside", "an empty one",
    ],
)  # fmt: skip
def test_pieces_that_are_no_grid_are_refused(boxes: list[Any]) -> None:
    with pytest.raises(InvalidInputError, match="'a'"):
        encode_manifest(cut(*boxes, shape=(100, 100)))


@pytest.mark.parametrize(
    "change",
    [
        lambda payload: payload + b"\0",
        lambda payload: payload.replace(b"\xa7version\x02", b"\xa7version\xcc\x02"),
        lambda payload: msgspec.msgpack.encode(
            dict(reversed(msgspec.msgpack.decode(payload).items()))
        ),
    ],
    ids=["a byte more", "a number in a longer form", "maps in another order"],
)
def test_another_encoding_of_the_same_is_refused(change: Any) -> None:
    with pytest.raises(CorruptError):
        decode_manifest(change(encode_manifest(FULL)), HERE)


@given(st.binary(max_size=64))
def test_random_bytes_are_no_manifest(data: bytes) -> None:
    with pytest.raises(Error):
        decode_manifest(data, HERE)


@given(st.data())
def test_a_damaged_manifest_is_refused_or_says_something_else(data: st.DataObject) -> None:
    payload = bytearray(encode_manifest(FULL))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        other = decode_manifest(bytes(payload), HERE)
    except (CorruptError, UnsupportedError):
        return
    assert encode_manifest(other) == bytes(payload)
