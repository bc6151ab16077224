"""Which tensors need not be stored, because a known placement holds them?

A large tensor whose fingerprint is known is never stored again (codec `same`), however it is
encoded: its bases come along. A small one would keep a whole foreign pack alive for a few bytes: it
is reused only from packs that the model needs anyway, or uses half of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.model.frames import Fingerprint
from tensorrepo.formats.model.placement import (
    ChosenBase,
    MemberEntry,
    PackEntry,
    Placement,
    StoredTensor,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Location:
    """A stored member, the pack that it lies in, and the members that it is encoded against."""

    pack: PackEntry
    member: int
    stored_bytes: int
    codec: str = "raw"
    depth: int = 0
    bases: tuple[Location, ...] = ()

    @property
    def place(self) -> tuple[bytes, int]:
        return self.pack.pack, self.member


Locations = tuple[Location, ...]


def with_bases(locations: Iterable[Location]) -> Iterator[Location]:
    """These members, and all that a read of them needs, each once."""
    pending, seen = list(locations), set()
    while pending:
        location = pending.pop()
        if location.place not in seen:
            seen.add(location.place)
            pending += location.bases
            yield location


def known_tensors(
    placements: Iterable[Placement], *, alone: bool = False
) -> dict[Fingerprint, Locations]:
    """What the placements hold; where several hold a tensor, the first says where.

    `alone`: only tensors that need no base.
    """
    known: dict[Fingerprint, Locations] = {}
    for placement in placements:
        located = locate(placement)
        for tensor in placement.tensors:
            name = Fingerprint(tensor.fingerprint)
            if alone and any(member.bases for member in tensor.members):
                continue
            known.setdefault(name, tuple(located[member.place] for member in tensor.members))
    return known


def locate(placement: Placement) -> dict[tuple[int, int], Location]:
    """Every member of a placement by (pack, member), with its bases."""
    members = [member for tensor in placement.tensors for member in tensor.members]
    located: dict[tuple[int, int], Location] = {}
    # A base is less deep than what it is a base of: it comes first.
    for member in sorted((*members, *placement.bases), key=lambda member: member.depth):
        located[member.place] = Location(
            placement.packs[member.pack],
            member.member,
            member.stored_bytes,
            member.codec,
            member.depth,
            tuple(located[base] for base in member.bases),
        )
    return located


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
        if all(at.pack.pack in alive for at in with_bases(locations))
    )


def build_placement(
    tensors: Mapping[Fingerprint, Locations], chosen: Iterable[ChosenBase] = ()
) -> Placement:
    """The placement of a model whose tensors lie at these places."""
    own = {location.place for at in tensors.values() for location in at}
    whole = (location for at in tensors.values() for location in at)
    every = {location.place: location for location in with_bases(whole)}
    packs = {location.pack.pack: location.pack for location in every.values()}
    ordered = sorted(packs)
    number = {pack: index for index, pack in enumerate(ordered)}
    bases = [_entry(every[place], number) for place in every if place not in own]
    return Placement(
        packs=tuple(packs[pack] for pack in ordered),
        tensors=tuple(
            StoredTensor(name, tuple(_entry(at, number) for at in tensors[name]))
            for name in sorted(tensors)
        ),
        bases=tuple(sorted(bases, key=lambda base: base.place)),
        chosen=tuple(chosen),
    )


def _entry(at: Location, number: Mapping[bytes, int]) -> MemberEntry:
    return MemberEntry(
        number[at.pack.pack],
        at.member,
        at.codec,
        at.depth,
        at.stored_bytes,
        tuple((number[base.pack.pack], base.member) for base in at.bases),
    )
