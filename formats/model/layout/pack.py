"""Pack layout: members, directory and footer of stored frames.

members, each aligned | directory | footer

A member holds consecutive frames of one tensor, each frame as one or more planes. The directory
says for every plane where it lies and how it is packed, for every frame its digest, and for every
member its codec and its bases. A placement carries the directory's tag, so a ranged read verifies
everything without reading a whole pack; the footer finds the directory when only the pack is there.

Source:
    docs/spec/model.md, section "Pack".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from tensorrepo.formats.model.delta.registry import CODECS
from tensorrepo.formats.model.delta.similarity import SIGNATURE, SIGNATURE_ITEMS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer

VERSION: Final = 2
LARGE_ALIGNMENT: Final = 4096  # members that may be mapped begin on a memory page
SMALL_ALIGNMENT: Final = 64
LARGE_BYTES: Final = 64 << 10
RAW: Final = "raw"
NUMBERS: Final = {RAW: 1} | {name: codec.number for name, codec in CODECS.items()}
NAMES: Final = {number: name for name, number in NUMBERS.items()}
GROUP_FRAMES: Final = 16
MAX_DEPTH: Final = 16
MAX_PARAM_BYTES: Final = 64
THIS_PACK: Final = bytes(DIGEST_BYTES)  # stands for the pack that says it: its digest is not known
SIGNATURES: Final = 1 << 31 | 1
_OPTIONAL_SECTION: Final = 1 << 31

# Layout of a directory: header | members | bases | params | frame digests | planes | sections.
DIRECTORY = Struct("<4sIIIQQII")  # magic, version, members, sections, frames, planes, bases, params
assert DIRECTORY.size == 40, "docs/spec/model.md promises a 40-byte directory header"
SECTION = Struct("<IIQ")  # id, reserved 0, bytes; the data is padded to a multiple of 8
assert SECTION.size == 16, "docs/spec/model.md promises a 16-byte section header"
FOOTER = Struct("<4sIQQQ")  # magic, version, directory start, directory bytes, its xxh3_64
assert FOOTER.size == 32, "docs/spec/model.md promises a 32-byte footer"
MEMBER: Final = np.dtype(
    [
        ("offset", "<u8"),  # of the first plane, in the pack's payload
        ("stored_bytes", "<u8"),
        ("first_frame", "<u8"),  # of the tensor
        ("frames", "<u4"),
        ("frame_bytes", "<u4"),  # of a decoded frame, but the last
        ("last_frame_bytes", "<u4"),
        ("codec", "u1"),
        ("planes", "u1"),  # of each frame
        ("depth", "u1"),
        ("bases", "u1"),
        ("param_bytes", "u1"),
        ("reserved", "u1", (7,)),
    ]
)
assert MEMBER.itemsize == 48, "docs/spec/model.md promises 48 bytes a member"
BASE: Final = np.dtype([("pack", "u1", (DIGEST_BYTES,)), ("member", "<u4"), ("zero", "<u4")])
assert BASE.itemsize == 40, "docs/spec/model.md promises 40 bytes a base"
PLANE: Final = np.dtype(
    [
        ("offset", "<u8"),  # in the pack's payload
        ("bytes", "<u4"),
        ("codec", "u1"),
        ("reserved", "u1", (3,)),
        ("xxh3", "<u8"),  # of the stored bytes
        ("tag", "u1", (16,)),  # content_tag of the stored bytes
    ]
)
assert PLANE.itemsize == 40, "docs/spec/model.md promises 40 bytes a plane"
# The same rows one at a time: numpy takes longer for the fields of one row than this for all of it.
_MEMBER_ROW = Struct("<QQQIIIBBBBB7x")
_BASE_ROW = Struct("<32sI4x")
_PLANE_ROW = Struct("<QIB3xQ16s")
assert (_MEMBER_ROW.size, _BASE_ROW.size, _PLANE_ROW.size) == (48, 40, 40), "as the tables above"


class MemberRef(NamedTuple):
    """A member that another is encoded against; `pack` is THIS_PACK for one of the same pack."""

    pack: bytes
    member: int


class Plane(msgspec.Struct, frozen=True, gc=False):
    """The stored bytes of one plane of one frame, and the plane codec that packed them."""

    offset: int
    size_bytes: int
    codec: int
    xxh3: int
    tag: bytes


class MemberRow(NamedTuple):
    """A row of the table of members, see `MEMBER`."""

    offset: int
    stored_bytes: int
    first_frame: int
    frames: int
    frame_bytes: int
    last_frame_bytes: int
    codec: int
    planes: int
    depth: int
    bases: int
    param_bytes: int


class StoredFrame(msgspec.Struct, frozen=True, gc=False):
    """One frame: its decoded bytes, their digest, and the planes that it is decoded from."""

    size_bytes: int
    digest: bytes
    planes: tuple[Plane, ...]


class PackMember(msgspec.Struct, frozen=True, gc=False):
    """Consecutive frames of a tensor, from its frame number `first_frame`.

    The garbage collector looks at neither members, frames nor planes: models have thousands.
    """

    first_frame: int
    frames: tuple[StoredFrame, ...]
    codec: str = RAW
    depth: int = 0
    bases: tuple[MemberRef, ...] = ()
    params: bytes = b""

    @property
    def stored_bytes(self) -> int:
        return sum([plane.size_bytes for frame in self.frames for plane in frame.planes])

    def group_stop(self, index: int) -> int:
        """The end of the group of frames, stored plane by plane, that holds frame `index`."""
        return min((index // GROUP_FRAMES + 1) * GROUP_FRAMES, len(self.frames))


def align(offset: int, member_bytes: int) -> int:
    """Where a raw member of that many bytes may begin at or after `offset`."""
    unit = LARGE_ALIGNMENT if member_bytes >= LARGE_BYTES else SMALL_ALIGNMENT
    return (offset + unit - 1) // unit * unit


def plane_order(frames: int, planes: int) -> list[tuple[int, int]]:
    """(frame, plane) of a member in the order in which they are stored."""
    return [
        (frame, plane)
        for first in range(0, frames, GROUP_FRAMES)
        for plane in range(planes)
        for frame in range(first, min(first + GROUP_FRAMES, frames))
    ]


class DirectoryTables:
    """The tables of a directory, row after row, while its pack is being filled.

    Planes, frames and members come in the order in which they stand there.
    """

    def __init__(self) -> None:
        self.members = 0
        self._members, self._params = bytearray(), bytearray()
        self._digests, self._planes = bytearray(), bytearray()
        self._signatures: list[tuple[int, NDArray[np.uint16]]] = []

    def add_plane(self, offset: int, size_bytes: int, codec: int, xxh3: int, tag: bytes) -> None:
        self._planes += _PLANE_ROW.pack(offset, size_bytes, codec, xxh3, tag)

    def add_frame(self, digest: bytes) -> None:
        self._digests += digest

    def add_member(
        self, row: MemberRow, params: bytes = b"", signature: NDArray[np.uint16] | None = None
    ) -> None:
        """A member whose planes and frames were added before."""
        self._members += _MEMBER_ROW.pack(*row)
        self._params += params
        if signature is not None:
            self._signatures.append((self.members, signature))
        self.members += 1

    def encode(self, bases: Sequence[MemberRef]) -> bytes:
        """The directory, with the bases of all members."""
        section = _encode_signatures(self._signatures)
        head = DIRECTORY.pack(
            b"TRPD",
            VERSION,
            self.members,
            bool(section),
            len(self._digests) // DIGEST_BYTES,
            len(self._planes) // _PLANE_ROW.size,
            len(bases),
            len(self._params),
        )
        return b"".join(
            (
                head,
                self._members,
                *[_BASE_ROW.pack(*base) for base in bases],
                self._params,
                bytes(-len(self._params) % 8),
                self._digests,
                self._planes,
                section,
            )
        )


def _encode_signatures(signatures: Sequence[tuple[int, NDArray[np.uint16]]]) -> bytes:
    if not signatures:
        return b""
    table = np.zeros(len(signatures), SIGNATURE)
    table["member"] = [member for member, _ in signatures]
    table["items"] = [items for _, items in signatures]
    data = table.tobytes()
    return SECTION.pack(SIGNATURES, 0, len(data)) + data + bytes(-len(data) % 8)


def encode_footer(directory: Buffer, directory_start: int) -> bytes:
    checksum = xxhash.xxh3_64_intdigest(directory)
    return FOOTER.pack(b"TRPK", VERSION, directory_start, len(directory), checksum)


def decode_footer(footer: Buffer, name: str) -> tuple[int, int, int]:
    """Start, bytes and xxh3_64 of the directory, of a pack called `name` in messages.

    Models say where the directories of their packs lie, so none of ours asks: it is the way into a
    pack whose model is lost.
    """
    if len(footer) != FOOTER.size:
        raise CorruptError(f"{name}: a footer has {FOOTER.size} bytes, found {len(footer)}")
    magic, version, start, size, checksum = FOOTER.unpack(footer)
    _check_head(magic, b"TRPK", version, name)
    return start, size, checksum


@dataclass(frozen=True)
class PackDirectory:
    """The directory of one pack, parsed and checked against itself."""

    name: str
    members: NDArray[Any]
    bases: NDArray[Any]
    params: memoryview
    digests: memoryview
    planes: NDArray[Any]
    sections: dict[int, memoryview]

    @cached_property
    def _firsts(self) -> tuple[NDArray[np.int64], ...]:
        """Where each member's frames, planes, bases and params begin in their tables."""
        frames = self.members["frames"].astype(np.int64)
        columns = (
            frames,
            frames * self.members["planes"],
            self.members["bases"].astype(np.int64),
            self.members["param_bytes"].astype(np.int64),
        )
        return tuple(np.cumsum(column) - column for column in columns)

    @cached_property
    def signatures(self) -> dict[int, NDArray[np.uint16]]:
        """Signature items by number of the member that holds the tensor's first frame."""
        data = self.sections.get(SIGNATURES, memoryview(b""))
        if data.nbytes % SIGNATURE.itemsize:
            raise CorruptError(f"{self.name}: {data.nbytes} bytes are no signatures")
        return {int(row["member"]): row["items"] for row in np.frombuffer(data, SIGNATURE)}

    def member(self, index: int) -> PackMember:
        """One member.

        Raises:
            CorruptError: no such member, or its planes do not lie as its codec says.
            UnsupportedError: it is encoded in a way that this version cannot decode.
        """
        name = f"{self.name}, member {index}"
        if not 0 <= index < len(self.members):
            raise CorruptError(f"{name}: the pack has {len(self.members)} members")
        row = MemberRow._make(_MEMBER_ROW.unpack_from(self.members.data, index * _MEMBER_ROW.size))
        if row.codec not in NAMES:
            raise UnsupportedError(f"{name}: codec {row.codec} is unknown here. Update tensorrepo.")
        frame, plane, base, param = (int(first[index]) for first in self._firsts)
        stop = plane + row.frames * row.planes
        planes = [Plane(*one) for one in _PLANE_ROW.iter_unpack(self.planes[plane:stop].data)]
        _check_layout(row, planes, name)
        bases = tuple(
            MemberRef._make(one)
            for one in _BASE_ROW.iter_unpack(self.bases[base : base + row.bases].data)
        )
        _check_bases(row, bases, index, name)
        return PackMember(
            row.first_frame,
            _frames(row, planes, self.digests[frame * DIGEST_BYTES :]),
            NAMES[row.codec],
            row.depth,
            bases,
            bytes(self.params[param : param + row.param_bytes]),
        )

    def single_frame_members(self, indices: Sequence[int]) -> dict[int, PackMember]:
        """Members of one frame each by number, parsed in few steps however many they are.

        Numbers under which `member` finds several frames, or something wrong, are left out.
        """
        inside = [index for index in indices if 0 <= index < len(self.members)]
        if not inside:
            return {}
        wanted = np.asarray(inside, np.int64)
        rows = self.members[wanted]
        frames, first_planes, first_bases, first_params = (first[wanted] for first in self._firsts)
        plane_rows, begins = _gathered(self.planes, first_planes, rows["planes"])
        base_rows, _ = _gathered(self.bases, first_bases, rows["bases"])
        sound = _are_singles(rows, plane_rows, begins).tolist()
        planes = [Plane(*one) for one in _PLANE_ROW.iter_unpack(plane_rows.tobytes())]
        bases = [MemberRef._make(one) for one in _BASE_ROW.iter_unpack(base_rows.tobytes())]
        digests = np.frombuffer(self.digests, np.dtype((np.void, DIGEST_BYTES)))[frames].tolist()
        members: dict[int, PackMember] = {}
        plane = base = 0
        for index, row, is_sound, digest, param in zip(
            inside, _MEMBER_ROW.iter_unpack(rows.tobytes()), sound, digests,
            first_params.tolist(), strict=True,
        ):  # fmt: skip
            size_bytes, codec, plane_count, depth, base_count, param_bytes = row[5:]
            own = tuple(planes[plane : plane + plane_count])
            against = tuple(bases[base : base + base_count])
            plane, base = plane + plane_count, base + base_count
            if not is_sound or (against and _is_later_base(against, index)):
                continue
            params = bytes(self.params[param : param + param_bytes]) if param_bytes else b""
            frame = (StoredFrame(size_bytes, digest, own),)
            members[index] = PackMember(0, frame, NAMES[codec], depth, against, params)
        return members


def _gathered(
    table: NDArray[Any], firsts: NDArray[np.int64], counts: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Rows ``firsts[i]`` to ``firsts[i] + counts[i]`` of a table, and where each run begins."""
    counts = counts.astype(np.int64)
    begins = np.cumsum(counts) - counts
    return table[np.arange(counts.sum()) + np.repeat(firsts - begins, counts)], begins


def _is_later_base(bases: Iterable[MemberRef], index: int) -> bool:
    """Whether member `index` has a base that does not come before it in the same pack."""
    # Only earlier members of the same pack: so no chain of bases ever comes back to its start.
    return any(base.member >= index and base.pack == THIS_PACK for base in bases)


def _are_singles(
    rows: NDArray[Any], planes: NDArray[Any], begins: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which rows of members, whose planes begin at `begins`, are of one frame and sound.

    Sound is all that `_check_layout` and `_check_bases` ask for.
    """
    starts, sizes = planes["offset"].astype(np.int64), planes["bytes"].astype(np.int64)
    joined = np.ones(len(planes), np.bool_)
    joined[1:] = starts[1:] == starts[:-1] + sizes[:-1]
    joined[begins] = starts[begins] == rows["offset"].astype(np.int64)
    fine = np.logical_and.reduceat(joined, begins)
    fine &= np.add.reduceat(sizes, begins) == rows["stored_bytes"].astype(np.int64)
    fine &= (rows["frames"] == 1) & (rows["first_frame"] == 0)
    fine &= np.isin(rows["codec"], list(NAMES))
    whole = (rows["planes"] == 1) & (planes["codec"][begins] == 0)
    whole &= sizes[begins] == rows["last_frame_bytes"]
    fine &= whole | (rows["codec"] != NUMBERS[RAW])
    fine &= ((rows["depth"] == 0) == (rows["bases"] == 0)) & (rows["depth"] <= MAX_DEPTH)
    fine &= rows["param_bytes"] <= MAX_PARAM_BYTES
    sound: NDArray[np.bool_] = fine
    return sound


def _frames(row: MemberRow, planes: list[Plane], digests: memoryview) -> tuple[StoredFrame, ...]:
    sizes = [row.frame_bytes] * (row.frames - 1) + [row.last_frame_bytes]
    return tuple(
        StoredFrame(
            size,
            bytes(digests[at * DIGEST_BYTES : (at + 1) * DIGEST_BYTES]),
            tuple(planes[at * row.planes : (at + 1) * row.planes]),
        )
        for at, size in enumerate(sizes)
    )


def decode_directory(data: Buffer, directory_start: int, name: str) -> PackDirectory:
    """Parse the directory, whose bytes are verified, of the pack called `name` in messages.

    All members lie before `directory_start`, its place in the payload.

    Raises:
        CorruptError: the directory contradicts itself.
        UnsupportedError: a newer version, or a section that a reader must understand.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < DIRECTORY.size:
        raise CorruptError(f"{name}: {view.nbytes} bytes cannot hold a directory")
    magic, version = DIRECTORY.unpack_from(view)[:2]
    _check_head(magic, b"TRPD", version, name)
    _, _, members, sections, frames, planes, bases, params = DIRECTORY.unpack_from(view)
    sizes = (
        members * MEMBER.itemsize,
        bases * BASE.itemsize,
        params + -params % 8,
        frames * DIGEST_BYTES,
        planes * PLANE.itemsize,
    )
    if DIRECTORY.size + sum(sizes) > view.nbytes:
        raise CorruptError(
            f"{name}: the directory lists {members} members, {frames} frames and {planes} planes, "
            f"more than its {view.nbytes} bytes hold"
        )
    parts, at = [], DIRECTORY.size
    for size in sizes:
        parts.append(view[at : at + size])
        at += size
    directory = PackDirectory(
        name,
        np.frombuffer(parts[0], MEMBER),
        np.frombuffer(parts[1], BASE),
        parts[2][:params],
        parts[3],
        np.frombuffer(parts[4], PLANE),
        _sections(view[at:], sections, name),
    )
    if any(parts[2][params:]):
        raise CorruptError(f"{name}: a reserved field is set")
    _check_tables(directory, frames, directory_start)
    return directory


def _check_head(magic: bytes, expected: bytes, version: int, name: str) -> None:
    if magic != expected:
        raise CorruptError(f"{name}: expected magic {expected!r}, found {magic!r}")
    if version != VERSION:
        raise UnsupportedError(
            f"{name}: pack version {version}, this tensorrepo reads {VERSION}. "
            + ("Update it." if version > VERSION else "Add the model again: it is of an old one.")
        )


def _sections(view: memoryview, count: int, name: str) -> dict[int, memoryview]:
    at, found = 0, {}
    for _ in range(count):
        if at + SECTION.size > view.nbytes:
            raise CorruptError(f"{name}: the directory ends inside its sections")
        section, zero, size = SECTION.unpack_from(view, at)
        if zero:
            raise CorruptError(f"{name}: a reserved field is set")
        if not section & _OPTIONAL_SECTION:
            raise UnsupportedError(
                f"{name}: directory section {section} is unknown here. Update tensorrepo."
            )
        found[section] = view[at + SECTION.size : at + SECTION.size + size]
        at += SECTION.size + (size + 7) // 8 * 8
    if at != view.nbytes:
        raise CorruptError(f"{name}: {view.nbytes - at} bytes after the directory's sections")
    return found


def _check_tables(directory: PackDirectory, frames: int, directory_start: int) -> None:
    """Everything that the tables say of each other; numpy's sums here stay far below 2^64."""
    name, members, planes = directory.name, directory.members, directory.planes
    counts = members["frames"].astype(np.uint64)
    if int(counts.sum()) != frames:
        raise CorruptError(f"{name}: its members have {counts.sum()} frames, expected {frames}")
    for what, needed, there in (
        ("planes", counts * members["planes"], len(planes)),
        ("bases", members["bases"], len(directory.bases)),
        ("bytes of params", members["param_bytes"], directory.params.nbytes),
    ):
        if int(needed.sum(dtype=np.uint64)) != there:
            raise CorruptError(f"{name}: its members need another number of {what}")
    if not (counts.all() and members["planes"].all()) or members["reserved"].any():
        raise CorruptError(f"{name}: a member has no frames, or a reserved field is set")
    if planes["reserved"].any() or directory.bases["zero"].any():
        raise CorruptError(f"{name}: a reserved field of a plane or a base is set")
    starts, sizes = planes["offset"], planes["bytes"].astype(np.uint64)
    limit = np.uint64(directory_start)
    if (starts > limit).any() or (sizes > limit - starts).any():
        raise CorruptError(f"{name}: a plane lies beyond the members")


def _check_layout(row: MemberRow, planes: list[Plane], name: str) -> None:
    """Whether a member's planes lie back to back, plane by plane in groups of frames."""
    at = row.offset
    for frame, plane in plane_order(row.frames, row.planes):
        stored = planes[frame * row.planes + plane]
        if stored.offset != at:
            raise CorruptError(f"{name}: its planes do not lie back to back")
        at += stored.size_bytes
    if at - row.offset != row.stored_bytes:
        raise CorruptError(f"{name}: its planes do not lie back to back")
    if NAMES[row.codec] != RAW:
        return
    sizes = [row.frame_bytes] * (row.frames - 1) + [row.last_frame_bytes]
    stored_sizes = [plane.size_bytes for plane in planes]
    if row.planes != 1 or any(plane.codec for plane in planes) or stored_sizes != sizes:
        raise CorruptError(f"{name}: its frames have other sizes than it says")


def _check_bases(row: MemberRow, bases: Sequence[MemberRef], index: int, name: str) -> None:
    if (row.depth == 0) != (not bases) or row.depth > MAX_DEPTH:
        raise CorruptError(
            f"{name}: depth {row.depth} with {len(bases)} bases, at most {MAX_DEPTH}"
        )
    if _is_later_base(bases, index):
        raise CorruptError(f"{name}: a base in the same pack comes before what needs it")
    if row.param_bytes > MAX_PARAM_BYTES:
        raise CorruptError(f"{name}: params of {row.param_bytes} bytes, at most {MAX_PARAM_BYTES}")


assert SIGNATURE.itemsize == 8 + 2 * SIGNATURE_ITEMS, "docs/spec/model.md, section Signatures"
