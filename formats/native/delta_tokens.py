"""Tokens and bits of the distances between numbers and their base.

A distance is an unsigned integer, small for near numbers. Its token says how long it is and how it
begins, and is what an entropy coder is good at; the bits below are noise, and are stored as they
are. `NATIVE` does it in C (delta_tokens.c beside this) where it was built, `NUMPY` everywhere, with
identical results; `BEST` is the first that there is.

Source:
    docs/spec/model.md, section "Delta".
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import codecs

Bytes: TypeAlias = NDArray[np.uint8]

CONTEXTS: Final = 256
SLACK_BYTES: Final = 16  # beyond the bits: they are written in words
_UNSIGNED: Final = {size: np.dtype(f"<u{size}") for size in (1, 2, 4, 8)}
_DIRECT: Final = 16  # distances below are tokens of their own
_EXPONENT_OF_64: Final = 896  # so that contexts mean the same powers of two as those of 32 bits


class Numbers(NamedTuple):
    """What the numbers of a frame are.

    Attributes:
        size: number of bytes of each: 1, 2, 4 or 8.
        signed_magnitude: whether the top bit is a sign and the rest a magnitude, as in floats.
        exponent_bits: number of bits below the sign; 0 for what is no float of 16 bits or more.
    """

    size: int
    signed_magnitude: bool
    exponent_bits: int

    @property
    def dtype(self) -> np.dtype[Any]:
        return _UNSIGNED[self.size]

    @property
    def bits(self) -> int:
        return 8 * self.size

    @property
    def last_token(self) -> int:
        return _DIRECT + 4 * (self.bits - 5) + 3


class EncodeWay(IntEnum):
    """What to do with a frame."""

    EXPECT = 0
    UNLESS_LAYERS = 1
    ALWAYS = 2


class ChosenRows(NamedTuple):
    """Rows of a frame whose numbers follow each other in a plane.

    Attributes:
        which: marks, one for each row that lies in the frame.
        marked: whether those that are marked are chosen, or all others.
        columns: numbers in a row.
        skipped: numbers of the first row that lie before the frame.
        below: bits below a class, where the base's numbers move by `table` first; -1: they do not.
        table: how far numbers of each class move, see `row_moves`.
    """

    which: NDArray[np.bool_]
    marked: bool
    columns: int
    skipped: int
    below: int = -1
    table: NDArray[np.uint16] = np.zeros(0, np.uint16)


class Distances:
    """Distances of frames from their bases, in numpy, all numbers at once.

    Frames and bases are arrays of the numbers' `dtype`, of equal length.
    """

    name = "numpy"

    def differ(self, frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[Any]:
        """How far each number is from its base, zigzag: small for near ones."""
        moved = _ordered(frame, of) - _ordered(base, of)
        if of.signed_magnitude:
            # Away from zero or toward it is what training does, on both sides of zero.
            moved = np.where(_negative(base, of), np.negative(moved), moved)
        signed = moved.view(f"<i{of.size}")
        zigzag: NDArray[Any] = ((signed << 1) ^ (signed >> (of.bits - 1))).view(of.dtype)
        return zigzag

    def restore(self, distances: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[Any]:
        """The numbers that are so far from `base`."""
        one = of.dtype.type(1)
        moved = (distances >> one) ^ np.negative(distances & one)
        if of.signed_magnitude:
            moved = np.where(_negative(base, of), np.negative(moved), moved)
        return _unordered(_ordered(base, of) + moved, of)

    def scan(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers
    ) -> tuple[Bytes, NDArray[np.uint32]]:
        """The token of each distance, and how often each is in each context: ``(256, 256)``."""
        tokens = _tokens(self.differ(frame, base, of))
        cells = tokens + _contexts(base, of) * np.intp(256)
        counts = np.bincount(cells, minlength=CONTEXTS * 256).astype(np.uint32)
        return tokens, counts.reshape(CONTEXTS, 256)

    def contexts(
        self, base: NDArray[Any], of: Numbers, groups: Bytes, out: Bytes | None = None
    ) -> Bytes:
        """The group of each number's context: its exponent, or itself if it is a byte.

        They lie in `out`, if that is given.
        """
        grouped: Bytes = np.take(groups, _contexts(base, of), out=out)
        return grouped

    def pack_bits(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers, tokens: Bytes, out: Bytes
    ) -> int:
        """Write the bits that the tokens leave, one after the other, lowest first.

        Returns:
            Number of their bytes; `out` has room for SLACK_BYTES more.

        Raises:
            ValueError: `out` is too small.
        """
        lengths = bits_of(tokens).astype(np.int64)
        values = self.differ(frame, base, of).astype(np.uint64)
        values &= (np.uint64(1) << lengths.astype(np.uint64)) - np.uint64(1)
        starts = np.cumsum(lengths) - lengths
        total = int(lengths.sum())
        size = (total + 7) // 8
        if out.size < size + SLACK_BYTES:
            raise ValueError(f"no room for bits in {out.size} bytes")
        words = np.zeros(total // 64 + 2, np.uint64)
        word, shift = starts >> 6, (starts & 63).astype(np.uint64)
        np.bitwise_or.at(words, word, values << shift)
        np.bitwise_or.at(words, word + 1, values >> np.uint64(1) >> (np.uint64(63) - shift))
        out[:size] = words.astype("<u8").view(np.uint8)[:size]
        return size

    def encode(
        self,
        frame: NDArray[Any],  # noqa: ARG002  only C does it in one go
        base: NDArray[Any],  # noqa: ARG002
        of: Numbers,  # noqa: ARG002
        way: EncodeWay,  # noqa: ARG002
    ) -> tuple[float, bool, bytes | None, int] | None:
        """The plane of a frame's distances from `base`, in one go.

        Returns:
            Bytes of it that are expected; whether its layers seem smaller; the plane, None where it
            is not asked for, layers seem smaller, or it is no smaller than the frame; and how many
            coders took turns. None where that cannot be: `delta.distances` takes one step after the
            other.
        """
        return None

    def encode_layers(
        self,
        frame: NDArray[Any],  # noqa: ARG002  only C does it in one go
        base: NDArray[Any],  # noqa: ARG002
        of: Numbers,  # noqa: ARG002
    ) -> bytes | None:
        """The plane of all layers of a frame's distances, in one go; None where that cannot be."""
        return None

    def decode(
        self,
        plane: Bytes,  # noqa: ARG002  only C does it in one go
        base: NDArray[Any],  # noqa: ARG002
        of: Numbers,  # noqa: ARG002
        out: NDArray[Any],  # noqa: ARG002
        is_long: bool,  # noqa: ARG002
    ) -> bool:
        """Fill `out` with the numbers of a plane of distances from `base`, in one go.

        Of a long plane MOST_LANES coders took turns over the tokens.

        Returns:
            False where that cannot be: `delta.distances` takes one step after the other, and says
            what is wrong.
        """
        return False

    def decode_rows(
        self,
        plane: Bytes,  # noqa: ARG002  only C does it in one go
        base: NDArray[Any],  # noqa: ARG002
        of: Numbers,  # noqa: ARG002
        out: NDArray[Any],  # noqa: ARG002
        is_long: bool,  # noqa: ARG002
        rows: ChosenRows,  # noqa: ARG002
    ) -> bool:
        """As `decode`, of the numbers of some rows alone; `base` and `out` are those of all.

        Returns:
            False where that cannot be; then those of `out` mean nothing.
        """
        return False


class NativeDistances(Distances):
    """In C, without the interpreter lock."""

    name = "native"

    def differ(self, frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[Any]:
        out = np.empty(frame.size, of.dtype)
        codecs.differ(_aligned(frame), base, of.size, of.signed_magnitude, out)
        return out

    def restore(self, distances: NDArray[Any], base: NDArray[Any], of: Numbers) -> NDArray[Any]:
        out = np.empty(base.size, of.dtype)
        codecs.restore(_aligned(distances), base, of.size, of.signed_magnitude, out)
        return out

    def scan(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers
    ) -> tuple[Bytes, NDArray[np.uint32]]:
        tokens = np.empty(frame.size, np.uint8)
        counts = np.zeros((CONTEXTS, 256), np.uint32)
        codecs.scan(frame, base, *of, tokens, counts)
        return tokens, counts

    def contexts(
        self, base: NDArray[Any], of: Numbers, groups: Bytes, out: Bytes | None = None
    ) -> Bytes:
        out = np.empty(base.size, np.uint8) if out is None else out
        codecs.contexts(base, of.size, of.exponent_bits, groups, out)
        return out

    def pack_bits(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers, tokens: Bytes, out: Bytes
    ) -> int:
        size = codecs.pack_bits(frame, base, tokens, of.size, of.signed_magnitude, out)
        if size < 0:
            raise ValueError(f"no room for bits in {out.size} bytes")
        return size

    def encode(
        self, frame: NDArray[Any], base: NDArray[Any], of: Numbers, way: EncodeWay
    ) -> tuple[float, bool, bytes | None, int]:
        return codecs.encode(frame, base, *of, way)

    def encode_layers(self, frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> bytes:
        return codecs.encode_layers(frame, base, *of)

    def decode(
        self, plane: Bytes, base: NDArray[Any], of: Numbers, out: NDArray[Any], is_long: bool
    ) -> bool:
        return codecs.decode(plane, base, *of, out, is_long)

    def decode_rows(
        self,
        plane: Bytes,
        base: NDArray[Any],
        of: Numbers,
        out: NDArray[Any],
        is_long: bool,
        rows: ChosenRows,
    ) -> bool:
        which, marked, columns, skipped, below, table = rows
        return codecs.decode_rows(
            plane, base, *of, out, is_long, which, marked, columns, skipped, below, table
        )


def bits_of(tokens: Bytes) -> Bytes:
    """How many bits each token leaves."""
    bits: Bytes = _BITS[tokens]
    return bits


def apply(tokens: Bytes, bits: Bytes, base: NDArray[Any], of: Numbers, out: NDArray[Any]) -> bool:
    """Fill `out` with the numbers so far from `base`; whether tokens and bits are possible."""
    lengths = bits_of(tokens).astype(np.int64)
    total = int(lengths.sum())
    if tokens.max(initial=0) > of.last_token or (total + 7) // 8 != bits.size:
        return False
    if total % 8 and bits[-1] >> (total % 8):
        return False
    padded = np.zeros(bits.size + 16, np.uint8)
    padded[: bits.size] = bits
    starts = np.cumsum(lengths) - lengths
    byte, shift = starts >> 3, (starts & 7).astype(np.uint64)
    windows = np.ndarray((bits.size + 8,), "<u8", padded.data, 0, (1,))
    above = padded[byte + 8].astype(np.uint64)
    values = windows[byte] >> shift | above << np.uint64(1) << (np.uint64(63) - shift)
    values &= (np.uint64(1) << lengths.astype(np.uint64)) - np.uint64(1)
    values |= _LEAST[tokens]
    out[...] = NUMPY.restore(values.astype(of.dtype), base, of)
    return True


_ALL: Final = np.arange(256, dtype=np.uint64)
_BITS: Final = np.where(_ALL < _DIRECT, 0, 2 + (_ALL - _DIRECT) // 4).astype(np.uint8)
_LEAST: Final = np.where(
    _ALL < _DIRECT, _ALL, (np.uint64(4) | _ALL & np.uint64(3)) << _BITS.astype(np.uint64)
)


def _tokens(distances: NDArray[Any]) -> Bytes:
    wide = distances.astype(np.uint64)
    # Without the bit below the first, no number is rounded up to the next power of two.
    lengths = np.frexp((wide & ~(wide >> np.uint64(1))).astype(np.float64))[1].astype(np.uint64)
    top = np.maximum(lengths, np.uint64(5)) - np.uint64(1)
    far = np.uint64(4) * top + (wide >> (top - np.uint64(2))) - np.uint64(4)
    tokens: Bytes = np.where(wide < _DIRECT, wide, far).astype(np.uint8)
    return tokens


def _contexts(base: NDArray[Any], of: Numbers) -> Bytes:
    if of.size == 1:
        return base
    if not of.exponent_bits:
        return np.zeros(base.size, np.uint8)
    exponents: NDArray[Any] = base >> of.dtype.type(of.bits - 1 - of.exponent_bits)
    exponents &= of.dtype.type((1 << of.exponent_bits) - 1)
    if of.size == 8:
        exponents = np.clip(exponents.astype(np.int64) - _EXPONENT_OF_64, 0, 255)
    contexts: Bytes = exponents.astype(np.uint8)
    return contexts


def _aligned(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers if numbers.flags.aligned else numbers.copy()


def _negative(numbers: NDArray[Any], of: Numbers) -> NDArray[np.bool_]:
    negative: NDArray[np.bool_] = (numbers >> of.dtype.type(of.bits - 1)).astype(bool)
    return negative


def _ordered(numbers: NDArray[Any], of: Numbers) -> NDArray[Any]:
    """Floats' bits as unsigned integers in the order of the floats; others as they are."""
    return _with_turned_signs(numbers, numbers, of)


def _unordered(numbers: NDArray[Any], of: Numbers) -> NDArray[Any]:
    return _with_turned_signs(numbers, ~numbers, of)


def _with_turned_signs(numbers: NDArray[Any], signed: NDArray[Any], of: Numbers) -> NDArray[Any]:
    """`numbers` with the top bit turned, and all others where the top bit of `signed` is set."""
    if not of.signed_magnitude:
        return numbers
    signs = (signed.view(f"<i{of.size}") >> (of.bits - 1)).view(of.dtype)
    turned: NDArray[Any] = numbers ^ (signs | of.dtype.type(1 << of.bits - 1))
    return turned


NUMPY: Final = Distances()
NATIVE: Distances | None = None if codecs is None else NativeDistances()
BEST: Distances = NATIVE or NUMPY
