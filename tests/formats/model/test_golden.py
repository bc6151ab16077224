"""What version 2 wrote is read, and written alike, for ever."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.model.manifest import decode_manifest, encode_manifest
from tensorrepo.formats.model.pack import decode_directory, decode_footer
from tensorrepo.formats.model.placement import decode_placement, encode_placement
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects import decode_object
from tests.support.golden_model import GOLDEN, VALUES, golden_objects

NAMES = ["manifest.bin", "placement.bin", "pack-small.bin", "pack-large-tail.bin"]
HERE = Digest("0" * 64)


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def payload(name: str) -> bytes:
    return bytes(decode_object(golden(name)).payload)


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_is_what_is_written_today(name: str) -> None:
    assert golden_objects()[name] == golden(name)


def test_the_golden_manifest_and_placement_are_read_and_written_alike() -> None:
    manifest = decode_manifest(payload("manifest.bin"), HERE)
    placement = decode_placement(payload("placement.bin"), HERE)
    assert encode_manifest(manifest) == payload("manifest.bin")
    assert encode_placement(placement) == payload("placement.bin")


@pytest.mark.parametrize(("name", "tensors"), [("pack-small.bin", 3), ("pack-large-tail.bin", 1)])
def test_the_golden_pack_is_read(name: str, tensors: int) -> None:
    data = golden(name)
    start, size, _ = decode_footer(data[-32:], name)
    directory = decode_directory(data[-32 - size : -32], start, name)
    assert len(directory.members) == tensors


def derived(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=f"tensorrepo {context} v1").digest()


def fingerprint(name: str, block: tuple[int, int], shape: list[int], frames: list[bytes]) -> bytes:
    head = struct.pack("<B32sIII", len(name), name.encode(), *block, len(shape))
    dims = b"".join(struct.pack("<Q", dim) for dim in shape)
    digests = b"".join(derived("frame", frame) for frame in frames)
    return derived("tensor", head + dims + struct.pack("<Q", len(frames)) + digests)


def test_the_golden_manifest_is_read_by_the_spec_alone() -> None:
    """A second reader, written from docs/spec/model.md with msgpack, struct and BLAKE3."""
    read: dict[str, Any] = msgspec.msgpack.decode(payload("manifest.bin"))
    assert sorted(read) == [
        "aliases", "files", "graph", "lineage", "metadata", "metrics", "originals", "tensors",
        "types", "version",
    ]  # fmt: skip
    assert read["types"] == [
        ["BF16", 1, 2], ["F32", 1, 4], ["F4", 2, 1], ["F64", 1, 8], ["I64", 1, 8], ["U32", 1, 4]
    ]  # fmt: skip
    rows = {name: (kind, shape, pieces) for name, kind, shape, pieces in read["tensors"]}
    assert list(rows) == ["embed.weight", "empty", "four", "half", "norm.bias", "scalar"]
    assert rows["scalar"] == ("F32", [], [[[], [], None, struct.pack("<f", 1.5)]])
    assert rows["empty"] == ("I64", [0, 3], [[[0, 0], [0, 3], None, b""]])
    frame = VALUES["embed.weight"].tobytes()
    whole = fingerprint("U32", (1, 4), [600_000], [frame[: 1 << 21], frame[1 << 21 :]])
    assert rows["embed.weight"] == ("U32", [600_000], [[[0], [600_000], whole, None]])
    packed = fingerprint("F4", (2, 1), [2, 100], [bytes(range(100))])
    assert rows["four"][2][0][2] == packed
    assert read["aliases"] == [["head.weight", "embed.weight"]]
    assert read["lineage"] == [["trained_on", "datasets/digits", "1" * 64, "2" * 64, {"seed": 7}]]


def test_the_golden_packs_are_read_by_the_spec_alone() -> None:
    placement: dict[str, Any] = msgspec.msgpack.decode(payload("placement.bin"))
    manifest: dict[str, Any] = msgspec.msgpack.decode(payload("manifest.bin"))
    prints = {name: pieces[0][2] for name, _, _, pieces in manifest["tensors"]}
    where = dict(placement["tensors"])
    whole = payload("pack-small.bin")
    ((pack, member, codec, depth, stored, bases),) = where[prints["norm.bias"]]
    assert (codec, depth, stored, bases) == ("raw", 0, 400, [])
    _, start, size, tag = placement["packs"][pack]
    directory = whole[start : start + size]
    assert derived("content", directory)[:16] == tag
    assert struct.unpack("<4sIQQQ", whole[start + size :]) == (
        b"TRPK", 2, start, size, xxh3_64_intdigest(directory)
    )  # fmt: skip
    head = struct.unpack_from("<4sIIIQQII", directory)
    assert head == (b"TRPD", 2, 3, 0, 3, 3, 0, 0)
    row = struct.unpack_from("<QQQIIIBBBBB7x", directory, 40 + 48 * member)
    offset = row[0]
    assert row[1:] == (400, 0, 1, 400, 400, 1, 1, 0, 0, 0)
    data = VALUES["norm.bias"].tobytes()
    assert whole[offset : offset + 400] == data
    digests = 40 + 48 * 3
    assert directory[digests + 32 * member :][:32] == derived("frame", data)
    plane = struct.unpack_from("<QIB3xQ16s", directory, digests + 32 * 3 + 40 * member)
    assert plane == (offset, 400, 0, xxh3_64_intdigest(data), derived("content", data)[:16])
