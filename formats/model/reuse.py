"""Which tensors need not be stored, because a known placement holds them?

A large tensor whose fingerprint is known is never stored again (codec `same`). A small one would
keep a whole foreign pack alive for a few bytes: it is reused only from packs that the model needs
anyway, or uses half of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.model.frames import Fingerprint
from tensorrepo.formats.model.pack import RAW
from tensorrepo.formats.model.placement import MemberEntry, PackEntry, Placement, StoredTensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True)
class Location:
    """A raw member, and the pack that it lies in."""

    pack: PackEntry
    member: int
    stored_bytes: int


Locations = tuple[Location, ...]


def known_tensors(placements: Iterable[Placement]) -> dict[Fingerprint, Locations]:
    """What the placements hold; where several hold a tensor, the first says where.

    Tensors that are encoded against others are left out: this version cannot place them.
    """
    known: dict[Fingerprint, Locations] = {}
    for placement in placements:
        for tensor in placement.tensors:
            if all(member.codec == RAW and member.depth == 0 for member in tensor.members):
                located = tuple(
                    Location(placement.packs[member.pack], member.member, member.stored_bytes)
                    for member in tensor.members
                )
                known.setdefault(Fingerprint(tensor.fingerprint), located)
    return known


def worth_reusing(
    wanted: Mapping[Fingerprint, Locations], used: Iterable[PackEntry]
) -> frozenset[Fingerprint]:
    """Which of the small tensors `wanted` may stay in the known packs that hold them.

    Args:
        wanted: small tensors of the model being written, and where each is known to lie.
        used: packs that the model needs for large tensors.
    """
    alive = {pack.pack for pack in used}
    taken: dict[bytes, int] = {}
    for locations in wanted.values():
        for location in locations:
            pack = location.pack.pack
            taken[pack] = taken.get(pack, 0) + location.stored_bytes
            if taken[pack] * 2 >= location.pack.directory_start:
                alive.add(pack)
    return frozenset(
        name
        for name, locations in wanted.items()
        if all(location.pack.pack in alive for location in locations)
    )


def build_placement(tensors: Mapping[Fingerprint, Locations]) -> Placement:
    """The placement of a model whose tensors lie at these places."""
    packs = {location.pack.pack: location.pack for at in tensors.values() for location in at}
    ordered = sorted(packs)
    number = {pack: index for index, pack in enumerate(ordered)}
    return Placement(
        packs=tuple(packs[pack] for pack in ordered),
        tensors=tuple(
            StoredTensor(
                name,
                tuple(
                    MemberEntry(number[at.pack.pack], at.member, RAW, 0, at.stored_bytes)
                    for at in tensors[name]
                ),
            )
            for name in sorted(tensors)
        ),
    )
