"""What version 2 wrote is read, and written alike, for ever."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from tensorrepo.formats.model.layout.manifest import decode_manifest, encode_manifest
from tensorrepo.formats.model.layout.pack import decode_directory, decode_footer
from tensorrepo.formats.model.layout.placement import decode_placement, encode_placement
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, decode_object
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.model import (
    BASE_WEIGHT,
    GOLDEN,
    LONG,
    LONG_BASE,
    LONG_TUNED,
    TUNED_WEIGHT,
    VALUES,
    golden_family,
    golden_long,
    golden_objects,
    kept_objects,
)
from tests.support.second_readers.codecs import Frame, decode, numbers_of
from tests.support.second_readers.model import (
    SpecPack,
    derived,
    fingerprint,
    read_placement,
    read_raw,
)

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
    cut = [derived("frame", one) for one in (frame[: 1 << 21], frame[1 << 21 :])]
    whole = fingerprint("U32", (1, 4), [600_000], cut)
    assert rows["embed.weight"] == ("U32", [600_000], [[[0], [600_000], whole, None]])
    packed = fingerprint("F4", (2, 1), [2, 100], [derived("frame", bytes(range(100)))])
    assert rows["four"][2][0][2] == packed
    assert read["aliases"] == [["head.weight", "embed.weight"]]
    assert read["lineage"] == [["trained_on", "datasets/digits", "1" * 64, "2" * 64, {"seed": 7}]]


def test_the_golden_packs_are_read_by_the_spec_alone() -> None:
    manifest: dict[str, Any] = msgspec.msgpack.decode(payload("manifest.bin"))
    prints = {name: pieces[0][2] for name, _, _, pieces in manifest["tensors"]}
    large = SpecPack(golden("pack-large-tail.bin"), missing=VALUES["embed.weight"].nbytes)
    small = SpecPack(payload("pack-small.bin"))
    packs = {
        row[0]: small if row[1] == small.start else large
        for row in msgspec.msgpack.decode(payload("placement.bin"))["packs"]
    }
    found = read_placement(payload("placement.bin"), packs)
    (bias,), (embed,) = found[prints["norm.bias"]], found[prints["embed.weight"]]
    assert read_raw(bias) == VALUES["norm.bias"].tobytes()
    frame = VALUES["embed.weight"].tobytes()
    cut = frame[: 1 << 21], frame[1 << 21 :]
    assert [one.digest for one in embed.frames] == [derived("frame", one) for one in cut]
    values = VALUES["embed.weight"]
    assert large.signatures == {0: tuple(values[:: 600_000 // 256][:256] >> 16)}


@pytest.mark.parametrize(("kind", "model"), [("family", golden_family), ("long", golden_long)])
def test_a_golden_difference_is_what_is_written_today(kind: str, model: Any) -> None:
    written, _ = model()
    assert {path.name: path.read_bytes() for path in GOLDEN.glob(f"{kind}-*.bin")} == written


def test_the_golden_family_is_read() -> None:
    _, entry = golden_family()
    model = open_model(kept_objects("family"), entry)
    assert np.array_equal(model["weight"].reshape(-1), TUNED_WEIGHT)
    assert np.array_equal(model["norm"], VALUES["norm.bias"])


def spec_packs(objects: MemoryObjects) -> dict[bytes, SpecPack]:
    return {
        bytes.fromhex(digest): SpecPack(bytes(objects.get(digest).payload))
        for digest, link in objects.links.items()
        if link.kind is Kind.PACK
    }


def test_the_golden_long_tensor_is_read_also_by_the_spec_alone() -> None:
    objects, (_, entry) = kept_objects("long"), golden_long()
    assert np.array_equal(open_model(objects, entry)["long"].reshape(-1), LONG_TUNED)
    packs, of = spec_packs(objects), numbers_of("BF16", (1, 2))
    assert entry.storage is not None
    found = read_placement(bytes(objects.get(entry.storage).payload), packs)
    ((tuned,),) = found.values()
    ((pack, number),) = tuned.bases
    planes, distances = packs[pack].members[number].frames[0].planes, tuned.frames[0].planes
    assert [codec for codec, _ in (*planes, *distances)] == [7, 3, 8]
    ground = decode("planes", Frame(planes, 2 * LONG, of))
    assert ground == LONG_BASE.tobytes()
    assert decode("delta", Frame(distances, 2 * LONG, of, [ground])) == LONG_TUNED.tobytes()


def test_the_golden_family_is_read_by_the_spec_alone() -> None:
    objects, (_, entry) = kept_objects("family"), golden_family()
    packs = spec_packs(objects)
    assert entry.storage is not None
    found = read_placement(bytes(objects.get(entry.storage).payload), packs)
    digest = derived("frame", TUNED_WEIGHT.tobytes())
    name = fingerprint("BF16", (1, 2), [700, 100], [digest])
    (tuned,) = found[name]
    ((pack, number),) = tuned.bases
    base = packs[pack].members[number]
    assert (tuned.codec, tuned.depth, base.codec, base.depth) == ("delta", 1, "planes", 0)
    assert base.frames[0].digest == derived("frame", BASE_WEIGHT.tobytes())
    of = numbers_of("BF16", (1, 2))
    ground = decode("planes", Frame(base.frames[0].planes, 140_000, of))
    assert ground == BASE_WEIGHT.tobytes()
    stored = Frame(tuned.frames[0].planes, 140_000, of, [ground])
    assert decode("delta", stored) == TUNED_WEIGHT.tobytes()
    assert packs[pack].signatures == {number: tuple(BASE_WEIGHT[:: 70_000 // 256][:256])}
    norm = fingerprint("F64", (1, 8), [50], [derived("frame", VALUES["norm.bias"].tobytes())])
    assert read_raw(found[norm][0]) == VALUES["norm.bias"].tobytes()
    placement: dict[str, Any] = msgspec.msgpack.decode(objects.get(entry.storage).payload)
    ((_, why, tensors, bits),) = placement["chosen"]
    assert (why, tensors) == ("similar", 1)
    assert 0 < bits < 1
