from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tensorrepo.formats.model.placement import (
    MemberEntry,
    PackEntry,
    Placement,
    StoredTensor,
    decode_placement,
    encode_placement,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Digest

HERE = Digest("0" * 64)
PACKS = tuple(PackEntry(bytes([number]) * 32, 4096, 200, bytes(16)) for number in range(3))
RAW = MemberEntry(0, 1, "raw", 0, 4096)
DELTA = MemberEntry(1, 0, "delta", 1, 512, (2, 7))
FULL = Placement(
    packs=PACKS,
    tensors=(StoredTensor(bytes(32), (RAW, DELTA)), StoredTensor(b"\1" * 32, (RAW,))),
    bases=(MemberEntry(2, 7, "raw", 0, 4096),),
)


def test_a_placement_is_read_as_it_was_written_bases_included() -> None:
    assert decode_placement(encode_placement(FULL), HERE) == FULL


def test_it_links_to_every_pack() -> None:
    assert FULL.links() == tuple(pack.digest for pack in PACKS)


def member(**changes: Any) -> Placement:
    changed = msgspec.structs.replace(RAW, **changes)
    return msgspec.structs.replace(FULL, tensors=(StoredTensor(bytes(32), (changed,)),))


def pack(**changes: Any) -> Placement:
    changed = msgspec.structs.replace(PACKS[0], **changes)
    return msgspec.structs.replace(FULL, packs=(changed, *PACKS[1:]))


BROKEN = {
    "a pack that is not there": member(pack=3),
    "a pack before the first": member(pack=-1),
    "a base in a pack that is not there": member(base=(3, 0), depth=1),
    "a depth without a base": member(depth=1),
    "a base without a depth": member(base=(1, 0)),
    "too deep": member(base=(1, 0), depth=17),
    "negative bytes": member(stored_bytes=-1),
    "packs out of order": msgspec.structs.replace(FULL, packs=PACKS[::-1]),
    "tensors out of order": msgspec.structs.replace(FULL, tensors=FULL.tensors[::-1]),
    "a tensor twice": msgspec.structs.replace(FULL, tensors=FULL.tensors[:1] * 2),
    "bases twice": msgspec.structs.replace(FULL, bases=FULL.bases * 2),
    "no members": msgspec.structs.replace(FULL, tensors=(StoredTensor(bytes(32), ()),)),
    "a short fingerprint": msgspec.structs.replace(FULL, tensors=(StoredTensor(b"", (RAW,)),)),
    "a short tag": pack(tag=b""),
    "a short digest": pack(pack=b""),
    "a directory nowhere": pack(directory_start=1 << 48),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_what_no_placement_may_hold_is_neither_written_nor_read(fault: str) -> None:
    with pytest.raises(InvalidInputError):
        encode_placement(BROKEN[fault])
    with pytest.raises(CorruptError):
        decode_placement(msgspec.msgpack.Encoder(order="sorted").encode(BROKEN[fault]), HERE)


def test_a_newer_version_says_so() -> None:
    newer = msgspec.structs.replace(FULL, version=2)
    with pytest.raises(UnsupportedError, match="version 2"):
        decode_placement(msgspec.msgpack.Encoder(order="sorted").encode(newer), HERE)
