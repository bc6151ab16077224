from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tensorrepo.formats.model.layout.placement import (
    ChosenBase,
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
DELTA = MemberEntry(1, 0, "delta", 1, 512, ((2, 7),))
ADAM = MemberEntry(1, 1, "adam", 2, 99, ((2, 7), (0, 1), (1, 0)))
FULL = Placement(
    packs=PACKS,
    tensors=(StoredTensor(bytes(32), (RAW, DELTA)), StoredTensor(b"\1" * 32, (ADAM,))),
    bases=(MemberEntry(2, 7, "raw", 0, 4096),),
    chosen=(ChosenBase(b"m" * 32, "similar", 2, 2.5), ChosenBase(b"n" * 32, "declared", 1, None)),
)


def test_a_placement_is_read_as_it_was_written_bases_included() -> None:
    assert decode_placement(encode_placement(FULL), HERE) == FULL


def test_it_links_to_every_pack() -> None:
    assert FULL.links() == tuple(pack.digest for pack in PACKS)


def member(**changes: Any) -> Placement:
    changed = msgspec.structs.replace(DELTA, **changes)
    return msgspec.structs.replace(FULL, tensors=(StoredTensor(bytes(32), (changed,)),))


def chosen(**changes: Any) -> Placement:
    changed = msgspec.structs.replace(FULL.chosen[0], **changes)
    return msgspec.structs.replace(FULL, chosen=(changed,))


def pack(**changes: Any) -> Placement:
    changed = msgspec.structs.replace(PACKS[0], **changes)
    return msgspec.structs.replace(FULL, packs=(changed, *PACKS[1:]))


BROKEN = {
    "a pack that is not there": member(pack=3),
    "a pack before the first": member(pack=-1),
    "a base in a pack that is not there": member(bases=((3, 0),)),
    "a base that is not listed": member(bases=((2, 8),)),
    "a member as its own base": member(bases=((1, 0),)),
    "a depth without a base": member(bases=()),
    "a base without a depth": member(depth=0),
    "too deep": member(depth=17),
    "deeper than its base": member(depth=2),
    "too many bases": member(bases=((2, 7),) * 4),
    "a base that nobody needs": member(bases=(), depth=0),
    "a base that is a tensor of its own": msgspec.structs.replace(FULL, bases=(RAW, *FULL.bases)),
    "a chosen model of a short digest": chosen(model=b""),
    "a chosen model for no reason": chosen(why=""),
    "a chosen model for a long reason": chosen(why="x" * 65),
    "a chosen model of negative tensors": chosen(tensors=-1),
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


@pytest.mark.parametrize(("version", "advice"), [(1, "Add the model again"), (3, "Update it")])
def test_another_version_says_so_and_what_to_do(version: int, advice: str) -> None:
    other = msgspec.structs.replace(FULL, version=version)
    with pytest.raises(UnsupportedError, match=f"version {version}.*{advice}"):
        decode_placement(msgspec.msgpack.Encoder(order="sorted").encode(other), HERE)
