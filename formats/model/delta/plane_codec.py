"""Plane codecs: byte planes stored raw, constant, by zstd or by rANS with frequency tables.

A plane is a run of bytes whose length the decoder knows beforehand. A plane codec is a small
number that stands in packs and never changes its meaning. Nothing is stored larger than it is.

Source:
    docs/spec/model.md, sections "Codecs" and "Coder".
"""

from __future__ import annotations

from enum import IntEnum
from threading import local
from typing import Any, Final, NamedTuple

import numpy as np
import zstandard
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import decompress_zstd
from tensorrepo.formats.native import encoding as small_planes
from tensorrepo.formats.native import frequency_tables, rans
from tensorrepo.formats.native.frequency_tables import (
    CONTEXTS,
    MAX_GROUPS,
    WINDOW_BYTES,
    PackedBytes,
)
from tensorrepo.formats.native.rans import (
    BEST,
    FEW_LANES,
    MANY_LANES,
    MOST_LANES,
    SYMBOLS,
    TABLE,
    TABLE_BITS,
)
from tensorrepo.formats.native.thread_buffers import buffer_for
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import Buffer


class FrequencyTables(NamedTuple):
    """Frequencies of each group of contexts.

    Attributes:
        groups: the group of each of the 256 contexts, ascending.
        frequencies: ``(groups, 256)``, each row adds up to TABLE.
    """

    groups: NDArray[np.uint8]
    frequencies: NDArray[np.uint16]

    @property
    def certain(self) -> bool:
        """Whether there is one symbol only in each group: nothing else need be stored."""
        return bool((self.frequencies.max(1) == TABLE).all())


def tables_of(counts: NDArray[Any]) -> tuple[FrequencyTables, NDArray[np.int64], float]:
    """Tables for symbols that were counted, ``(contexts, 256)``; counts per group, and all bits."""
    groups, frequencies, counted, bits = frequency_tables.BEST.group(counts)
    return FrequencyTables(groups, frequencies), counted, bits


# ------------------------------------------------------------------------------ stored
# groups - 1 | where each group but the first begins | for each group first symbol, symbols - 1 |
# 12 bits for each frequency but a group's last


def encode_tables(tables: FrequencyTables) -> bytes:
    """What `decode_tables` reads."""
    return frequency_tables.BEST.encode(tables.groups, tables.frequencies)


def decode_tables(data: NDArray[np.uint8]) -> tuple[FrequencyTables, int]:
    """The tables at the beginning of `data`, and the bytes that they take. Raises CorruptError."""
    count = int(data[0]) + 1 if data.size else MAX_GROUPS + 1
    if count > MAX_GROUPS or data.size < 3 * count:
        raise CorruptError("coded plane: it ends inside its tables, or has too many")
    read = rans.BEST.tables(data, count)
    if read is not None:
        groups, frequencies, size = read
        return FrequencyTables(groups, frequencies), size
    return _decode_tables(data, count)


def _decode_tables(data: NDArray[np.uint8], count: int) -> tuple[FrequencyTables, int]:
    spans_at, at = count, 3 * count
    spans = data[spans_at:at].reshape(count, 2).astype(np.intp)
    last = spans.sum(1)
    if last.max() >= SYMBOLS:
        raise CorruptError("coded plane: a table has more symbols than there are")
    where = frequency_tables.stored_places(spans[:, 0], last)
    values = int(np.count_nonzero(where))
    size = (3 * values + 1) // 2
    if data.size < at + size:
        raise CorruptError("coded plane: it ends inside its tables")
    frequencies = np.zeros((count, SYMBOLS), np.uint16)
    frequencies[where] = _unpack_pairs(data[at : at + size], values)
    rest = TABLE - frequencies.sum(1, dtype=np.int64)
    if (rest <= 0).any():
        raise CorruptError(f"coded plane: frequencies that add up to more than {TABLE}")
    frequencies[np.arange(count), last] = rest
    return FrequencyTables(_decode_groups(data[1:count]), frequencies), at + size


def _unpack_pairs(data: NDArray[np.uint8], values: int) -> NDArray[np.uint32]:
    packed = np.zeros((values + 1) // 2 * 3, np.uint8)
    packed[: data.size] = data
    each = packed.reshape(-1, 3).astype(np.uint32)
    joined = each[:, 0] | each[:, 1] << 8 | each[:, 2] << 16
    found = np.stack([joined & TABLE - 1, joined >> TABLE_BITS], 1).reshape(-1)
    if found[values:].any():
        raise CorruptError("coded plane: bits after the last frequency are set")
    return found[:values]


def _decode_groups(starts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if starts.size and (not starts[0] or (np.diff(starts.astype(np.intp)) <= 0).any()):
        raise CorruptError("coded plane: groups of contexts are not ascending")
    groups = np.zeros(CONTEXTS, np.uint8)
    groups[starts] = 1
    return np.cumsum(groups, dtype=np.uint8)


LEVEL: Final = 1  # finding more matches than this makes planes larger, not smaller
MANY_SYMBOLS: Final = 4096  # from here on MANY_LANES coders take turns
_LONG_SYMBOLS: Final = 1 << 18  # from here on MOST_LANES do,
_LONG_BYTES: Final = 32 << 10  # or from what these are expected to take
_BYTE: Final = np.dtype(np.uint8)
_OF_THREAD: Final = local()  # a compressor for each: to make one takes longer than a small plane
_SAMPLE_BYTES: Final = 32 << 10
_LEAST_SAMPLE_BYTES: Final = 4 << 10
_OWN_SAMPLE: Final = _LEAST_SAMPLE_BYTES // 2  # bytes of a plane that is all looked at
_PAYS: Final = 0.98  # what is stored larger than this share stays raw: it decodes at once
# Of a large plane one block in so many tells first whether it is noise, as low bits of floats are:
# then it is neither counted nor packed.
_BLOCK_BYTES: Final = 1 << 10
_LOOKED_AT: Final = 16
_LEAST_BLOCKS: Final = 16
_NOISE: Final = 0.99
_NOISE_SAMPLE_BYTES: Final = 8 << 10
_REPEATED: Final = 64  # one window in so many must repeat something, or
_ALIKE: Final = 0.97  # bytes of a sample take less than this share of what those of the plane take


class PlaneCodec(IntEnum):
    """Number of a plane codec. 2 was never given out."""

    RAW = 0
    ZSTD = 1
    CONSTANT = 3  # one byte, which all bytes of the plane are
    CODED = 4  # by the frequencies of its bytes
    DISTANCES = 5  # of numbers from a base: tokens by their frequencies, and bits
    LAYERS = 6  # of distances from a base: each byte of them by its frequencies
    LONG_CODED = 7  # as CODED, by MOST_LANES coders
    LONG_DISTANCES = 8  # as DISTANCES, by MOST_LANES coders


class StoredPlane(NamedTuple):
    """A plane as it is stored."""

    codec: int
    data: Buffer

    @property
    def size_bytes(self) -> int:
        return memoryview(self.data).nbytes


def short_lanes(symbols: int) -> int:
    """How many coders take turns over so many symbols, but of a plane that is said to be long."""
    return MANY_LANES if symbols >= MANY_SYMBOLS else FEW_LANES


def lanes_for(symbols: int, bits: float) -> int:
    """How many coders take turns over so many symbols, which are expected to take so many bits."""
    is_long = symbols >= _LONG_SYMBOLS or bits >= 8 * _LONG_BYTES
    return MOST_LANES if is_long and symbols >= MANY_SYMBOLS else short_lanes(symbols)


def pack_plane(plane: NDArray[np.uint8]) -> StoredPlane:
    """A plane in the codec that seems to store it smallest; never larger than it is."""
    raw = StoredPlane(PlaneCodec.RAW, plane.data)
    if plane.size < 2:
        return raw
    packed = _coded(plane, _PAYS)
    if packed.most_frequent == plane.size:
        return StoredPlane(PlaneCodec.CONSTANT, plane[:1].tobytes())
    if packed.may_repeat and (smaller := _smaller_by_zstd(plane, packed.share)) is not None:
        return smaller
    if packed.coded is None:
        return raw
    is_long = packed.lanes == MOST_LANES
    return StoredPlane(PlaneCodec.LONG_CODED if is_long else PlaneCodec.CODED, packed.coded)


def pack_planes(planes: NDArray[np.uint8]) -> list[StoredPlane]:
    """What `pack_plane` makes of each row of `planes`, in memory of its own."""
    packed = small_planes.BEST.pack(planes, _PAYS * planes.shape[1])
    if packed is None:
        return [_kept(plane, pack_plane(plane)) for plane in planes]
    return [
        StoredPlane(*one) if len(one) == 2 else _small_plane(planes[at], one[0], one[2])
        for at, one in enumerate(packed)
    ]


def _small_plane(plane: NDArray[np.uint8], expected: float, coded: bytes | None) -> StoredPlane:
    """A plane of which only zstd might store less than was found, see `small_planes`."""
    share = expected / plane.size
    looks_alike = plane.size <= _OWN_SAMPLE or _may_repeat(plane, share)
    if looks_alike and (stored := _smaller_by_zstd(plane, share)) is not None:
        return stored
    if coded is None:
        return StoredPlane(PlaneCodec.RAW, plane.tobytes())
    return StoredPlane(PlaneCodec.CODED, coded)


def _smaller_by_zstd(plane: NDArray[np.uint8], share: float) -> StoredPlane | None:
    """A plane by zstd, where that is smaller than the share that is expected without."""
    # A small plane is its own sample, of which the look for a larger one never says no.
    if plane.size <= _OWN_SAMPLE or _repeats(plane, share):
        packed = _compressed(plane)
        if len(packed) < min(share, _PAYS) * plane.size:
            return StoredPlane(PlaneCodec.ZSTD, packed)
    return None


def _kept(plane: NDArray[np.uint8], packed: StoredPlane) -> StoredPlane:
    """A plane in memory that is not kept, as it is stored: bytes of its own."""
    if packed.codec != PlaneCodec.RAW:
        return packed
    return StoredPlane(PlaneCodec.RAW, plane.copy().data)


def expected_plane_bytes(plane: NDArray[np.uint8]) -> float:
    """How many bytes `pack_plane` would make of a plane, about; it is not packed for that."""
    if plane.size < 2:
        return plane.size
    share, most_frequent, _, may_repeat, _ = _coded(plane, -1.0)
    if most_frequent == plane.size:
        return 1.0
    if may_repeat and _repeats(plane, share):
        return float(min(len(_compressed(plane)), share * plane.size))
    return plane.size * (1.0 if share > _PAYS else share)


def _coded(plane: NDArray[np.uint8], most: float) -> PackedBytes:
    """A plane by how frequent its bytes are, if no larger a share than `most` is expected."""
    packed = frequency_tables.BEST.pack(plane, most * plane.size)
    return packed or _coded_in_steps(plane, most)


def _coded_in_steps(plane: NDArray[np.uint8], most: float) -> PackedBytes:
    noise = _noise_share(plane)
    if noise > _NOISE:
        return PackedBytes(noise, 0, None, _may_repeat(plane, noise))
    counts = BEST.count(plane, None, 1)
    tables, _, bits = tables_of(counts)
    share, most_frequent = bits / 8 / plane.size, int(counts.max())
    if most_frequent == plane.size:
        return PackedBytes(share, most_frequent, None, False)
    may_repeat = _may_repeat(plane, share)
    if share > most:
        return PackedBytes(share, most_frequent, None, may_repeat)
    lanes = lanes_for(plane.size, bits)
    coded = BEST.pack(plane, None, tables.frequencies, lanes)
    whole = join_buffers(encode_tables(tables), coded)
    stored = whole.data if whole.size < plane.size else None
    return PackedBytes(share, most_frequent, stored, may_repeat, lanes)


def _noise_share(plane: NDArray[np.uint8]) -> float:
    """Share of a plane's bytes that a sample says it takes; 0 where it is too small to ask."""
    stride = _BLOCK_BYTES * _LOOKED_AT
    count = plane.size // stride
    if count < _LEAST_BLOCKS:
        return 0.0
    blocks = plane[: count * stride].reshape(count, _LOOKED_AT, _BLOCK_BYTES)
    each = np.arange(count)
    # Not the same place of each stride: what repeats in a matrix does so at such lengths.
    sample = blocks[each, each * 7 % _LOOKED_AT].reshape(-1)
    return frequency_tables.BEST.entropy(BEST.count(sample, None, 1)) / 8 / sample.size


def _may_repeat(plane: NDArray[np.uint8], share: float) -> bool:
    """Whether a look at a sample says that zstd may find more than how frequent each byte is.

    That takes a tenth of what zstd takes, which is not asked unless runs stood there before, or
    the sample's bytes are others than those of the plane.
    """
    size, sample = _sample(plane, share)
    windows, bits = frequency_tables.BEST.look_back(sample)
    return windows * _REPEATED >= size // WINDOW_BYTES or bits / 8 <= _ALIKE * share * size


def _repeats(plane: NDArray[np.uint8], share: float) -> bool:
    """Whether zstd finds more in a sample than how frequent each byte is."""
    _, sample = _sample(plane, share)
    return len(_compressed(sample)) < share * sample.size


def _sample(plane: NDArray[np.uint8], share: float) -> tuple[int, NDArray[np.uint8]]:
    """Bytes wanted of a plane, and those that there are, from its middle."""
    most = _NOISE_SAMPLE_BYTES if share > _NOISE else _SAMPLE_BYTES
    size = min(most, max(_LEAST_SAMPLE_BYTES, plane.size // 4))
    middle = max(0, plane.size - size) // 2
    return size, plane[middle : middle + size]


def _compressed(plane: NDArray[np.uint8]) -> bytes:
    if not hasattr(_OF_THREAD, "compressor"):
        _OF_THREAD.compressor = zstandard.ZstdCompressor(level=LEVEL)
    packed: bytes = _OF_THREAD.compressor.compress(plane.data)
    return packed


def unpack_plane(stored: StoredPlane, out: NDArray[np.uint8]) -> None:
    """Fill `out` with the plane.

    Raises:
        CorruptError: the bytes do not decode to exactly so many.
        UnsupportedError: a codec that this version does not know.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec == PlaneCodec.RAW:
        _check_size(data.size, out.size, "raw")
        out[...] = data
    elif stored.codec == PlaneCodec.CONSTANT:
        _check_size(data.size, 1, "constant")
        out[...] = data[0]
    elif stored.codec == PlaneCodec.ZSTD:
        out[...] = np.frombuffer(decompress_zstd(data.data, out.size), np.uint8)
    elif stored.codec in (PlaneCodec.CODED, PlaneCodec.LONG_CODED):
        tables, used = decode_tables(data)
        is_long = stored.codec == PlaneCodec.LONG_CODED
        lanes = MOST_LANES if is_long else short_lanes(out.size)
        if not BEST.unpack(data[used:], None, tables.frequencies[:1], lanes, out):
            raise CorruptError(f"coded plane: {data.size} bytes do not decode to {out.size}")
    else:
        raise unknown_plane(stored.codec)


def raw_view(stored: StoredPlane, size: int, use: str | None = None) -> NDArray[np.uint8]:
    """The `size` bytes of a plane, as `unpack_plane` gives them; not copied where it is raw.

    With `use` they may lie in memory that this thread keeps: good until it asks for that again.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec == PlaneCodec.RAW and data.size == size:
        return data
    out = np.empty(size, np.uint8) if use is None else buffer_for(use, size, _BYTE)
    unpack_plane(stored, out)
    return out


def join_buffers(*parts: Any) -> NDArray[np.uint8]:
    """Bytes of these buffers, one after the other."""
    return np.concatenate([np.frombuffer(part, np.uint8) for part in parts])


def unknown_plane(codec: int) -> UnsupportedError:
    return UnsupportedError(f"plane codec {codec} is unknown here. Update tensorrepo.")


def _check_size(found: int, expected: int, kind: str) -> None:
    if found != expected:
        raise CorruptError(f"{kind} plane: expected {expected} bytes, found {found}")
