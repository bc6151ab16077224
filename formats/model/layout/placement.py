"""Placement of a model: which member of which pack holds each tensor.

The placement names, per fingerprint, the members of packs that hold it. It is storage: a repack
writes another one for the same manifest. Flat: a read never walks from placement to placement.

Source:
    docs/spec/model.md, section "Placement".
"""

from __future__ import annotations

from typing import Final

import msgspec

from tensorrepo.formats.common.canonical import (
    VERSION,
    check_sorted,
    decode_canonical,
    encode_canonical,
)
from tensorrepo.formats.model.layout.pack import MAX_DEPTH
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_from_bytes

MAX_BASES: Final = 3
TAG_BYTES: Final = 16
_MAX_WHY: Final = 64
_MAX_OFFSET: Final = 1 << 48
_MAX_MEMBERS: Final = 1 << 32


class PackEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A pack, and where its directory lies; `tag` is the directory's `content_tag`."""

    pack: bytes
    directory_start: int
    directory_bytes: int
    tag: bytes

    @property
    def digest(self) -> Digest:
        return digest_from_bytes(self.pack)


class MemberEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Some frames of a tensor: member number `member` of pack number `pack` in the list.

    `bases` are the members (pack, member) that it is encoded against, `depth` how many bases a
    read passes through at most: 0 without a base.
    """

    pack: int
    member: int
    codec: str
    depth: int
    stored_bytes: int
    bases: tuple[tuple[int, int], ...] = ()

    @property
    def place(self) -> tuple[int, int]:
        return self.pack, self.member


class ChosenBase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A model that tensors were encoded against when they were written, and why.

    `why` is "declared", "similar" or "repack"; `bits` how far its tensors' signatures are, in bits
    of 16, None when that was not asked. `model` may be gone since: it is no link.
    """

    model: bytes
    why: str
    tensors: int
    bits: float | None

    @property
    def digest(self) -> Digest:
        return digest_from_bytes(self.model)


class StoredTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The members that hold a tensor's frames, in order."""

    fingerprint: bytes
    members: tuple[MemberEntry, ...]


class Placement(msgspec.Struct, frozen=True):
    """Packs sorted by digest, tensors by fingerprint, bases by (pack, member).

    `bases` describes the members that others are encoded against and no tensor of this model is.
    `chosen` says which models they were taken from, most tensors first.
    """

    packs: tuple[PackEntry, ...] = ()
    tensors: tuple[StoredTensor, ...] = ()
    bases: tuple[MemberEntry, ...] = ()
    chosen: tuple[ChosenBase, ...] = ()
    version: int = VERSION

    def links(self) -> tuple[Digest, ...]:
        """The packs that the placement's object must link to."""
        return tuple(entry.digest for entry in self.packs)


def encode_placement(placement: Placement) -> bytes:
    check_placement(placement)
    return encode_canonical(placement, "placement")


def decode_placement(payload: Buffer, digest: Digest) -> Placement:
    """The placement in the payload of object `digest`. Errors: `decode_canonical`."""
    return decode_canonical(payload, Placement, f"placement {digest:.12}", check_placement)


def check_placement(placement: Placement) -> None:
    """Whether its parts fit together. Raises InvalidInputError."""
    for pack in placement.packs:
        if len(pack.pack) != DIGEST_BYTES or len(pack.tag) != TAG_BYTES:
            raise InvalidInputError("a pack's digest has 32 bytes and a tag 16")
        if not 0 <= pack.directory_start < _MAX_OFFSET > pack.directory_bytes >= 0:
            raise InvalidInputError(f"pack {pack.digest:.12}: no directory can lie there")
    check_sorted("pack", [pack.pack for pack in placement.packs])
    check_sorted("tensor", [tensor.fingerprint for tensor in placement.tensors])
    check_sorted("base", [base.place for base in placement.bases])
    for tensor in placement.tensors:
        if len(tensor.fingerprint) != DIGEST_BYTES or not tensor.members:
            raise InvalidInputError("a stored tensor has a fingerprint of 32 bytes, and members")
    _check_members(placement)
    for chosen in placement.chosen:
        if len(chosen.model) != DIGEST_BYTES or not 0 < len(chosen.why) <= _MAX_WHY:
            raise InvalidInputError("a chosen base is a digest of 32 bytes, and why")
        if chosen.tensors < 0:
            raise InvalidInputError(f"a base of {chosen.tensors} tensors")


def _check_members(placement: Placement) -> None:
    """Whether members lie in packs, and every base is there: a read never looks elsewhere."""
    packs = len(placement.packs)
    own = {member.place: member for tensor in placement.tensors for member in tensor.members}
    more = {base.place: base for base in placement.bases}
    needed: set[tuple[int, int]] = set()
    for member in (
        *(one for tensor in placement.tensors for one in tensor.members),
        *more.values(),
    ):
        _check_member(member, packs)
        if not member.bases and not member.depth:
            continue
        known = [own.get(place) or more.get(place) for place in member.bases]
        needed.update(member.bases)
        depths = [base.depth for base in known if base is not None]
        if len(depths) != len(member.bases):
            raise InvalidInputError(f"member {member.pack}/{member.member}: a base is not listed")
        # Depths that add up leave no room for a circle.
        if member.depth != 1 + max(depths, default=-1):
            raise InvalidInputError(
                f"member {member.pack}/{member.member}: depth {member.depth} on bases of depth "
                f"{max(depths, default=-1)}"
            )
    if own.keys() & more.keys() or more.keys() - needed:
        raise InvalidInputError("a base is a tensor of this model, or no member needs it")


def _check_member(member: MemberEntry, packs: int) -> None:
    inside = 0 <= member.pack < packs and 0 <= member.member < _MAX_MEMBERS
    for pack, index in member.bases:
        inside = inside and 0 <= pack < packs and 0 <= index < _MAX_MEMBERS
    if not inside:
        raise InvalidInputError(f"member {member.pack}/{member.member}: no such pack")
    if len(member.bases) > MAX_BASES or not 0 <= member.depth <= MAX_DEPTH:
        raise InvalidInputError(
            f"member {member.pack}/{member.member}: depth {member.depth} on {len(member.bases)} "
            f"bases; at most {MAX_DEPTH} and {MAX_BASES}"
        )
    if not 0 <= member.stored_bytes < _MAX_OFFSET:
        raise InvalidInputError(
            f"member {member.pack}/{member.member}: {member.stored_bytes} bytes"
        )
