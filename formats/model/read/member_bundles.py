"""Frames of many small members of one shape, decoded together.

Models have thousands of small tensors, and what is decoded against them asks for one after the
other. Here their planes are unpacked, and joined, by one call for all of them. Bases of bases
likewise; what is not of the common codecs is left to `MemberReader`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.distances import decode_against
from tensorrepo.formats.model.delta.frame_codec import FrameShape, as_numbers, numbers_of
from tensorrepo.formats.model.delta.plane_codec import StoredPlane, unpack_plane
from tensorrepo.formats.model.delta.registry import DELTA, PLANES
from tensorrepo.formats.model.layout.pack import RAW, StoredFrame
from tensorrepo.formats.model.read.members import MappedPacks, MemberPlace, MemberReader
from tensorrepo.formats.native import encoding


def frames_together(
    members: MemberReader, places: Sequence[MemberPlace], about: FrameShape, packs: MappedPacks
) -> NDArray[np.uint8] | None:
    """The frames ``(places, bytes)`` of members that have one each, decoded and not verified.

    Args:
        members: those of their model.
        places: where they are, each as often as one likes.
        about: what all the frames are.
        packs: `members.mapped_packs` of the task.

    Returns:
        None where one of them can only be decoded alone: it is from afar, of another shape, or of
        another codec.

    Raises:
        CorruptError: planes that do not decode to such a frame.
        UnsupportedError: a plane codec that this version does not know.
    """
    kinds: dict[tuple[int, str], list[int]] = {}
    stored: list[StoredFrame] = []
    planes = {RAW: 1, DELTA.name: 1, PLANES.name: PLANES.planes(about.element)}
    for at, place in enumerate(places):
        member = members.member(place)
        frame = member.frames[0]
        is_alike = frame.size_bytes == about.size_bytes and not member.params
        is_known = len(frame.planes) == planes.get(member.codec)
        if len(member.frames) != 1 or not is_alike or not is_known:
            return None
        stored.append(frame)
        kinds.setdefault((place[0], member.codec), []).append(at)
    found = np.empty((len(places), about.size_bytes), np.uint8)
    for (number, codec), which in kinds.items():
        pack = packs[number]
        if pack is None:
            return None
        frames = [stored[at] for at in which]
        if codec == DELTA.name:
            under = [members.entries[places[at]].bases[0] for at in which]
            bases = frames_together(members, under, about, packs)
            if bases is None:
                return None
            decoded = _from_bases(pack, frames, bases, about)
        else:
            decoded = _from_planes(pack, frames, about)
        if len(which) == len(places):
            return decoded
        found[which] = decoded
    return found


def _from_bases(
    pack: memoryview, frames: Sequence[StoredFrame], bases: NDArray[np.uint8], about: FrameShape
) -> NDArray[np.uint8]:
    """Frames that are distances from `bases`."""
    of, found = numbers_of(about.element), np.empty_like(bases)
    for frame, base, room in zip(frames, bases, found, strict=True):
        (plane,) = frame.planes
        stored = StoredPlane(plane.codec, pack[plane.offset : plane.offset + plane.size_bytes])
        decode_against(stored, as_numbers(base.data, of), of, as_numbers(room.data, of))
    return found


def _from_planes(
    pack: memoryview, frames: Sequence[StoredFrame], about: FrameShape
) -> NDArray[np.uint8]:
    """Frames as byte planes, or in one raw plane each."""
    rows = [frame.planes for frame in frames]
    size = len(rows[0])
    # Plane by plane: so the planes of all frames are those of one long frame.
    each = [planes[at] for at in range(size) for planes in rows]
    offsets = np.array([one.offset for one in each], np.uint64)
    sizes = np.array([one.size_bytes for one in each], np.uint64)
    codecs = np.array([one.codec for one in each], np.uint8)
    out = np.empty((len(each), about.size_bytes // size), np.uint8)
    for at in encoding.BEST.unpack(pack, offsets, sizes, codecs, out):
        start = int(offsets[at])
        unpack_plane(StoredPlane(int(codecs[at]), pack[start : start + int(sizes[at])]), out[at])
    if size == 1:
        return out
    return PLANES.join(out.reshape(size, -1), about.element).reshape(len(rows), -1)
