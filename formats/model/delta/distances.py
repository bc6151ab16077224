"""Delta codecs: distances of numbers from a base, of all rows or of those that moved.

Both tensors' bits become integers that are ordered as the numbers are, whose difference is small
where the numbers are close. An optimizer's step is nearly independent of a weight's size, so its
length in units of the last place is almost a function of the base's exponent. That is the context
that differences are coded in: the decoder has the base too, so it costs nothing.

The first steps of Adam move every weight by the same length: then no bit of a distance is noise,
and each of its bytes is coded by how frequent it is in its context.

A step moves the embeddings of the words that it saw. A bitmap says which rows those are, and only
their numbers are compared with the base.

A frame is cut at a number of elements, wherever rows end.

Source:
    docs/spec/model.md, section "Delta".
"""

from __future__ import annotations

from abc import abstractmethod
from struct import Struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.frame_codec import (
    FrameCodec,
    Frames,
    FrameShape,
    PlaneList,
    as_numbers,
    numbers_of,
)
from tensorrepo.formats.model.delta.plane_codec import (
    FrequencyTables,
    PlaneCodec,
    StoredPlane,
    decode_tables,
    encode_tables,
    join_buffers,
    lanes_for,
    pack_plane,
    raw_view,
    short_lanes,
    tables_of,
    unknown_plane,
    unpack_plane,
)
from tensorrepo.formats.native import frequency_tables, planes, rans, row_moves
from tensorrepo.formats.native.delta_tokens import (
    BEST,
    CONTEXTS,
    SLACK_BYTES,
    ChosenRows,
    EncodeWay,
    Numbers,
    apply,
    bits_of,
)
from tensorrepo.formats.native.row_moves import TakenRows
from tensorrepo.formats.native.thread_buffers import buffer_for
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer

_LAYER = Struct("<I")  # bytes of tables and symbols of one layer, which follow
assert _LAYER.size == 4, "docs/spec/model.md promises 4 bytes before each layer"
_SAMPLE: Final = 2048  # numbers in a run
_RUNS: Final = 4
_PROMISING: Final = 0.01  # of the rows
_BYTE: Final = np.dtype(np.uint8)
_EACH: Final = np.arange(CONTEXTS, dtype=np.uint8)
_DISTANCES: Final = (PlaneCodec.DISTANCES, PlaneCodec.LONG_DISTANCES)


def layers_seem_better(
    frame: NDArray[Any],
    base: NDArray[Any],
    of: Numbers,
    tokens: NDArray[np.uint8],
    bits: int,
    tables: FrequencyTables,
) -> bool:
    """Whether a sample says that the bits below the tokens, which are `bits`, are no noise."""
    if of.size == 1 or bits < 2 * frame.size or frame.size < _SAMPLE:
        return False
    size = min(_SAMPLE, frame.size)
    starts = sorted({(frame.size - size) * run // (_RUNS - 1) for run in range(_RUNS)})
    where = np.concatenate([np.arange(start, start + size) for start in starts])
    some, some_base, tokens = frame[where], base[where], tokens[where]
    left = int(bits_of(tokens).sum(dtype=np.int64))
    groups = len(tables.frequencies)
    contexts = BEST.contexts(some_base, of, tables.groups)
    moved = BEST.differ(some, some_base, of)
    entropy = frequency_tables.BEST.entropy
    found, enough = 0.0, 0.9 * (entropy(rans.BEST.count(tokens, contexts, groups)) + left)
    for layer in planes.BEST.split(moved.view(np.uint8), of.size, turn=False)[::-1]:
        if found < enough:  # the last bytes are what is noise, if anything is
            found += entropy(rans.BEST.count(layer, contexts, groups))
    return found < enough


def encode_layers(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[np.uint8]:
    """All layers, the most significant first, of some numbers."""
    made = BEST.encode_layers(frame, base, of)
    if made is not None:
        return np.frombuffer(made, np.uint8)
    contexts = BEST.contexts(base, of, _EACH)
    moved = BEST.differ(frame, base, of)
    parts: list[Any] = []
    for layer in planes.BEST.split(moved.view(np.uint8), of.size, turn=False):
        tables, _, _ = tables_of(rans.BEST.count(layer, contexts, CONTEXTS))
        head, coded = encode_tables(tables), np.empty(0, np.uint8)
        if not tables.certain:
            groups = BEST.contexts(base, of, tables.groups)
            coded = rans.BEST.pack(layer, groups, tables.frequencies, short_lanes(layer.size))
        parts += [_LAYER.pack(len(head) + coded.size), head, coded]
    return join_buffers(*parts)


def decode_layers(
    data: NDArray[np.uint8], base: NDArray[Any], of: Numbers, out: NDArray[Any]
) -> None:
    """Fill `out` with the numbers. Raises CorruptError."""
    found = buffer_for("split", of.size * out.size, _BYTE).reshape(of.size, -1)
    at = 0
    for layer in found:
        if data.size - at < _LAYER.size:
            raise CorruptError("layers: a layer is missing")
        (size,) = _LAYER.unpack_from(data.data, at)
        at += _LAYER.size
        if size > data.size - at:
            raise CorruptError("layers: the plane ends inside a layer")
        _decode_layer(data[at : at + size], base, of, layer)
        at += size
    if at != data.size:
        raise CorruptError(f"layers: {data.size - at} bytes after the last one")
    moved = buffer_for("moved", out.size, of.dtype)
    planes.BEST.join(list(found), moved.view(np.uint8), turn=False)
    out[...] = BEST.restore(moved, base, of)


def _decode_layer(
    data: NDArray[np.uint8], base: NDArray[Any], of: Numbers, out: NDArray[np.uint8]
) -> None:
    tables, used = decode_tables(data)
    coded = data[used:]
    if not coded.size and tables.certain:
        symbols = tables.frequencies.argmax(1).astype(np.uint8)
        BEST.contexts(base, of, symbols[tables.groups], out)
        return
    # Looked up in C for each layer: numpy takes ten times as long to index by what was found once.
    groups = BEST.contexts(base, of, tables.groups, buffer_for("groups", out.size, _BYTE))
    if not rans.BEST.unpack(coded, groups, tables.frequencies, short_lanes(out.size), out):
        raise CorruptError(f"layers: {coded.size} bytes do not decode to {out.size}")


_HEAD = Struct("<I")  # bytes of the coded tokens; tables, tokens and bits follow
assert _HEAD.size == 4, "docs/spec/model.md promises 4 bytes before the tables"


class PredictingCodec(FrameCodec):
    """Codec of one plane: distances from numbers that the bases predict."""

    @abstractmethod
    def predicted(self, bases: Frames, about: FrameShape) -> NDArray[Any]:
        """The bits of the numbers that the frame is expected to hold."""

    def encode(self, frame: memoryview, bases: Frames, about: FrameShape) -> list[StoredPlane]:
        of = numbers_of(about.element)
        return [encode_against(as_numbers(frame, of), self.predicted(bases, about), of)]

    def expected_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:
        of = numbers_of(about.element)
        return expected_bytes(as_numbers(frame, of), self.predicted(bases, about), of)

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:
        self.check_planes(planes, about)
        of = numbers_of(about.element)
        decode_against(planes[0], self.predicted(bases, about), of, as_numbers(out, of))


class Delta(PredictingCodec):
    """Against one base of the same type and size."""

    name = "delta"
    number = 4
    bases = 1

    def predicted(self, bases: Frames, about: FrameShape) -> NDArray[Any]:
        return as_numbers(bases[0], numbers_of(about.element))


class Cast(PredictingCodec):
    """Against a base in F32 that was cast to F16 or BF16: an exact cast takes next to nothing.

    What the cast gives is computed here, alike on every machine: the nearest number, of two equally
    near ones the even one. Where the frame holds another, as casts of NaN differ, it is a distance.
    """

    name = "cast"
    number = 9
    bases = 1
    base_type = "F32"

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return element.name in CAST_TYPES

    def predicted(self, bases: Frames, about: FrameShape) -> NDArray[Any]:
        bits = np.frombuffer(bases[0], "<u4")
        return as_bfloat16(bits) if about.element.name == "BF16" else as_float16(bits)


CAST_TYPES: Final = frozenset({"F16", "BF16"})
_INFINITY: Final = 0x7F800000


def as_bfloat16(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16 of each float32; of NaN the sign and the quiet NaN."""
    half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    nearest = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(_INFINITY)
    return _quiet(nearest, bits, is_nan, 0x7FC0)


def as_float16(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Bits of the nearest float16 of each float32; of NaN the sign and the quiet NaN."""
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        nearest = bits.view("<f4").astype("<f2").view("<u2")
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(_INFINITY)
    return _quiet(nearest, bits, is_nan, 0x7E00)


def _quiet(
    found: NDArray[np.uint16], bits: NDArray[np.uint32], is_nan: NDArray[np.bool_], quiet: int
) -> NDArray[np.uint16]:
    """`found` with one NaN of each sign: processors differ in what they make of others."""
    if is_nan.any():
        sign = ((bits[is_nan] >> np.uint32(16)) & np.uint32(0x8000)).astype(np.uint16)
        found[is_nan] = sign | np.uint16(quiet)
    return found


def encode_against(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> StoredPlane:
    """`frame` by its distances from `base`, or as it is where that is smaller."""
    if not frame.size:
        return StoredPlane(PlaneCodec.RAW, b"")
    made = _encoded(frame, base, of, EncodeWay.UNLESS_LAYERS)
    if made[1]:
        packed = encode_layers(frame, base, of)
        if packed.nbytes < min(made[0], frame.nbytes):
            return StoredPlane(PlaneCodec.LAYERS, packed.data)
        made = _encoded(frame, base, of, EncodeWay.ALWAYS)
    if made[2] is None:
        return StoredPlane(PlaneCodec.RAW, frame.view(np.uint8).data)
    is_long = made[3] == rans.MOST_LANES
    return StoredPlane(PlaneCodec.LONG_DISTANCES if is_long else PlaneCodec.DISTANCES, made[2])


def encode_taken(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> StoredPlane:
    """As `encode_against`, of numbers in memory that is not kept."""
    made = encode_against(frame, base, of)
    return made if made.codec != PlaneCodec.RAW else StoredPlane(made.codec, bytes(made.data))


def expected_bytes(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> float:
    """How many bytes `encode_against` would make of a frame, about."""
    if not frame.size:
        return 0.0
    expected, layers, _, _ = _encoded(frame, base, of, EncodeWay.EXPECT)
    if layers:
        expected = min(expected, encode_layers(frame, base, of).nbytes)
    return min(expected, frame.nbytes)


def _encoded(
    frame: NDArray[Any], base: NDArray[Any], of: Numbers, way: EncodeWay
) -> tuple[float, bool, Buffer | None, int]:
    """See `Distances.encode`: in one go, or one step after the other."""
    made = BEST.encode(frame, base, of, way)
    if made is not None:
        return made
    tokens, counts = BEST.scan(frame, base, of)
    tables, groups, coded_bits = tables_of(counts)
    bits = int((groups.sum(0) * bits_of(np.arange(256, dtype=np.uint8))).sum())
    expected, lanes = (coded_bits + bits) / 8, lanes_for(tokens.size, coded_bits)
    if way != EncodeWay.ALWAYS and layers_seem_better(frame, base, of, tokens, bits, tables):
        return expected, True, None, lanes
    if way == EncodeWay.EXPECT or expected >= frame.nbytes:
        return expected, False, None, lanes
    packed = encode_distances(frame, base, of, tokens, tables, bits, lanes)
    return expected, False, packed.data if packed.nbytes < frame.nbytes else None, lanes


def encode_distances(
    frame: NDArray[Any],
    base: NDArray[Any],
    of: Numbers,
    tokens: NDArray[np.uint8],
    tables: FrequencyTables,
    bits: int,
    lanes: int,
) -> NDArray[np.uint8]:
    """The plane of distances whose tokens were scanned and leave so many `bits`."""
    coded = np.empty(0, np.uint8)
    if not tables.certain:
        contexts = BEST.contexts(base, of, tables.groups)
        coded = rans.BEST.pack(tokens, contexts, tables.frequencies, lanes)
    head = join_buffers(_HEAD.pack(coded.size), encode_tables(tables), coded)
    packed = np.empty(head.size + (bits + 7) // 8 + SLACK_BYTES, np.uint8)
    packed[: head.size] = head
    BEST.pack_bits(frame, base, of, tokens, packed[head.size :])
    return packed[:-SLACK_BYTES]


def decode_against(stored: StoredPlane, base: NDArray[Any], of: Numbers, out: NDArray[Any]) -> None:
    """Fill `out` with what `encode_against` encoded.

    Raises:
        CorruptError: the plane does not decode to exactly so many numbers.
        UnsupportedError: a plane codec that this version does not know.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec in _DISTANCES:
        is_long = stored.codec == PlaneCodec.LONG_DISTANCES
        if not BEST.decode(data, base, of, out, is_long):
            decode_in_steps(data, base, of, out, is_long)
    elif stored.codec == PlaneCodec.LAYERS:
        decode_layers(data, base, of, out)
    elif stored.codec == PlaneCodec.RAW:
        unpack_plane(stored, out.view(np.uint8))
    else:
        raise unknown_plane(stored.codec)


def decode_rows(
    stored: StoredPlane, base: NDArray[Any], of: Numbers, out: NDArray[Any], rows: ChosenRows
) -> bool:
    """Fill some rows of `out` where C does it, a block of numbers at a time while it is in cache.

    Returns:
        False where it does not, or the plane is not well-formed: `decode_against` says more.
    """
    data = np.frombuffer(stored.data, np.uint8)
    is_long = stored.codec == PlaneCodec.LONG_DISTANCES
    return stored.codec in _DISTANCES and BEST.decode_rows(data, base, of, out, is_long, rows)


def decode_in_steps(
    data: NDArray[np.uint8], base: NDArray[Any], of: Numbers, out: NDArray[Any], is_long: bool
) -> None:
    """Fill `out` with the numbers of a plane of distances: what C does in one go, and errors.

    Raises:
        CorruptError: the plane does not decode to exactly so many numbers.
    """
    if data.size < _HEAD.size:
        raise CorruptError(f"distances: {data.size} bytes are no plane")
    (coded_bytes,) = _HEAD.unpack_from(data.data)
    tables, used = decode_tables(data[_HEAD.size :])
    begin = _HEAD.size + used
    if coded_bytes > data.size - begin:
        raise CorruptError("distances: the plane ends inside its tokens")
    contexts = BEST.contexts(base, of, tables.groups)
    tokens = np.empty(out.size, np.uint8)
    coded = data[begin : begin + coded_bytes]
    lanes = rans.MOST_LANES if is_long else short_lanes(out.size)
    if not coded.size and tables.certain:
        np.take(tables.frequencies.argmax(1).astype(np.uint8), contexts, out=tokens)
    elif not rans.BEST.unpack(coded, contexts, tables.frequencies, lanes, tokens):
        raise CorruptError(f"distances: {coded.size} bytes do not decode to {out.size} tokens")
    if not apply(tokens, data[begin + coded_bytes :], base, of, out):
        raise CorruptError("distances: tokens and bits do not belong together")


class RowDelta(FrameCodec):
    """Against one base of the same type and size, of which most rows are the same."""

    name = "rows"
    number = 5
    bases = 1
    plane_count = 2
    needs_look = True

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Tensors of several rows, each of whole numbers."""
        if len(shape) < 2 or shape[0] < 2:
            return False
        row_bytes = element.bytes_of(shape) // shape[0]
        whole = row_bytes * shape[0] == element.bytes_of(shape)
        return whole and row_bytes > 0 and row_bytes % numbers_of(element).size == 0

    def seems_better(self, frame: memoryview, bases: Frames, about: FrameShape) -> bool:
        """Whether some rows are the same."""
        of = numbers_of(about.element)
        rows = row_grid(about, of, self.name)
        same = rows.alike(as_numbers(frame, of), as_numbers(bases[0], of)) == rows.lengths
        return bool(np.count_nonzero(same) > _PROMISING * same.size)

    def expected_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:
        of = numbers_of(about.element)
        taken = _rows_that_moved(frame, bases[0], about)
        return pack_row_set(taken.marks).size_bytes + expected_bytes(*taken.moved, of)

    def encode(self, frame: memoryview, bases: Frames, about: FrameShape) -> list[StoredPlane]:
        taken = _rows_that_moved(frame, bases[0], about)
        return [pack_row_set(taken.marks), encode_taken(*taken.moved, numbers_of(about.element))]

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:
        of = numbers_of(about.element)
        rows = row_grid(about, of, self.name)
        self.check_planes(planes, about)
        which = unpack_row_set(planes[0], rows.rows, self.name)
        numbers, base = as_numbers(out, of), as_numbers(bases[0], of)
        numbers[...] = base
        if decode_rows(planes[1], base, of, numbers, rows.chosen(which, marked=True)):
            return
        under = rows.taken(base, which, "base")
        moved = buffer_for("frame", under.size, of.dtype)
        decode_against(planes[1], under, of, moved)
        rows.put(numbers, which, moved)


def _rows_that_moved(frame: memoryview, base: memoryview, about: FrameShape) -> TakenRows:
    of = numbers_of(about.element)
    rows = row_grid(about, of, RowDelta.name)
    numbers = as_numbers(frame, of), as_numbers(base, of)
    return row_moves.BEST.take(*numbers, rows.columns, rows.skipped)


class RowGrid(NamedTuple):
    """A frame as rows: of the first one `skipped` numbers lie before it, the last may be cut."""

    rows: int
    columns: int
    skipped: int
    numbers: int

    @property
    def whole(self) -> range:
        """Rows that lie in the frame from their first number to their last."""
        return range(
            -(-self.skipped // self.columns), (self.skipped + self.numbers) // self.columns
        )

    def whole_of(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Their numbers, ``(rows, columns)``; a view."""
        start = self.whole.start * self.columns - self.skipped
        count = max(0, len(self.whole)) * self.columns
        return numbers[start : start + count].reshape(-1, self.columns)

    @property
    def lengths(self) -> NDArray[np.intp]:
        """Numbers of each row that lie in the frame."""
        lengths = np.full(self.rows, self.columns)
        lengths[0] -= self.skipped
        lengths[-1] -= self.rows * self.columns - self.skipped - self.numbers
        return lengths

    def alike(self, frame: NDArray[Any], base: NDArray[Any]) -> NDArray[np.uint32]:
        """How many numbers of each row are equal in both."""
        return row_moves.BEST.alike(frame, base, self.columns, self.skipped)

    def chosen(self, which: NDArray[np.bool_], *, marked: bool) -> ChosenRows:
        """The rows that are marked in `which`, or the others."""
        return ChosenRows(which, marked, self.columns, self.skipped)

    def taken(self, numbers: NDArray[Any], rows: NDArray[np.bool_], use: str) -> NDArray[Any]:
        """The numbers of some rows, one after the other: in memory that this thread keeps.

        They are good until this thread asks for the same `use` again.
        """
        if rows.all():
            return numbers
        head, whole, tail = self._parts(numbers)
        chosen = np.flatnonzero(rows[self.whole.start : self.whole.stop])
        start = head.size if rows[0] else 0
        stop = start + chosen.size * self.columns
        size = stop + (tail.size if rows[-1] else 0)
        found = buffer_for(use, size, numbers.dtype)
        found[:start] = head[:start]
        # With mode="raise" numpy writes elsewhere first.
        np.take(whole, chosen, 0, found[start:stop].reshape(-1, self.columns), "clip")
        found[stop:] = tail[: size - stop]
        return found

    def put(self, numbers: NDArray[Any], rows: NDArray[np.bool_], values: NDArray[Any]) -> None:
        """Set the numbers of some rows to what `taken` would give."""
        head, whole, tail = self._parts(numbers)
        inside = rows[self.whole.start : self.whole.stop]
        start, stop = 0, values.size
        if head.size and rows[0]:
            start = head.size
            head[...] = values[:start]
        if tail.size and rows[-1]:
            stop -= tail.size
            tail[...] = values[stop:]
        whole[inside] = values[start:stop].reshape(-1, self.columns)

    def _parts(self, numbers: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """What lies in the frame of a first row that is cut, of whole ones, of a cut last one."""
        whole = self.whole_of(numbers)
        if not len(self.whole):  # a cut row alone, or two
            cut = min(self.columns - self.skipped, self.numbers) if self.skipped else 0
            return numbers[:cut], whole, numbers[cut:]
        start = self.whole.start * self.columns - self.skipped
        return numbers[:start], whole, numbers[start + whole.size :]


def pack_row_set(rows: NDArray[np.bool_]) -> StoredPlane:
    """A plane that holds a bit for each row."""
    return pack_plane(np.packbits(rows, bitorder="little"))


def unpack_row_set(plane: StoredPlane, rows: int, codec: str) -> NDArray[np.bool_]:
    """What `pack_row_set` packed of so many rows. Raises CorruptError, which names `codec`."""
    bitmap = raw_view(plane, (rows + 7) // 8)
    if rows % 8 and bitmap[-1] >> rows % 8:
        raise CorruptError(f"{codec}: bits after the last row are set")
    return np.unpackbits(bitmap, count=rows, bitorder="little").view(np.bool_)


def row_grid(about: FrameShape, of: Numbers, codec: str) -> RowGrid:
    """The rows of a frame. Raises CorruptError, which names `codec`, where there are none."""
    if about.row_bytes <= 0 or about.row_bytes % of.size or about.first_byte % of.size:
        raise CorruptError(
            f"codec {codec}: {about.row_bytes} bytes are no row of {about.element.name}"
        )
    columns, count = about.row_bytes // of.size, about.size_bytes // of.size
    skipped = about.first_byte // of.size % columns
    return RowGrid(-(-(skipped + count) // columns), columns, skipped, count)
