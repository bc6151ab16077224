"""What if all rows moved along the same few directions?

An adapter that was merged into a matrix (LoRA) added a product of two small factors to it. The
factors need not be known: whatever is nearly of low rank gives them away. What is stored is those
of each frame, and how far the truth is from what they predict: rounding.

Factors are whole numbers of 24 bits. Their product is exact in 64-bit floats, in whatever order a
machine adds it up, so every machine predicts the same.

Source:
    docs/spec/model.md, section "Low rank".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from tensorrepo.formats.model.codecs.delta import decode_against, encode_against
from tensorrepo.formats.model.codecs.floats import MANTISSA_BITS, narrowed, widened
from tensorrepo.formats.model.codecs.numbers import as_numbers, numbers_of
from tensorrepo.formats.model.codecs.planecodec import PlaneCodec, StoredPlane, pack_plane, raw_view
from tensorrepo.formats.model.codecs.rowgrid import RowGrid, row_grid
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.tensors import TensorType

_HEAD = Struct("<BBh")  # rank, reserved 0, bits that the product is shifted right by
assert _HEAD.size == 4, "docs/spec/model.md promises 4 bytes before the factors"
MAX_RANK: Final = 64
_MOST_SHIFT: Final = 300  # so that no product is subnormal
_FACTOR_BYTES: Final = 3
_LARGEST: Final = (1 << 23) - 1
_AT_ONCE: Final = 1 << 14  # numbers that are predicted together: what is computed stays in cache
_PROBED: Final = 72  # rows and columns that tell whether it is worth trying
_LEAST_WHOLE: Final = 8
_SPARE: Final = 8  # directions that are looked for beyond those expected
_NOISE: Final = 1.5  # of rounding, in units of the numbers' precision, with something to spare


class _Factors(NamedTuple):
    """Whole numbers, ``(rows, rank)`` and ``(rank, columns)``: 2^shift times the difference."""

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    shift: int


class LowRank:
    """Against one base of the same type and size, from which it differs by a product."""

    name: Final = "low-rank"
    number: Final = 7
    bases: Final = 1

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Matrices of floats, and whatever has more dimensions."""
        return element.name in MANTISSA_BITS and len(shape) > 1 and element.bytes_of(shape) > 0

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 3

    def seems_better(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> bool:
        """Whether a few rows and columns say that the difference is of low rank."""
        of, name = numbers_of(about.element), about.element.name
        grid = row_grid(about, of, "low-rank")
        new, old = (grid.whole_of(as_numbers(one, of)) for one in (frame, bases[0]))
        return _probed_rank(new, old, name) > 0

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        of, name = numbers_of(about.element), about.element.name
        grid = row_grid(about, of, "low-rank")
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        factors = _factors(numbers, base, grid, name)
        head = _HEAD.pack(factors.left.shape[1], 0, factors.shift)
        return [
            StoredPlane(PlaneCodec.RAW, head),
            pack_plane(_stored(factors)),
            encode_against(numbers, _predicted(base, factors, grid, name), of),
        ]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        if len(planes) != 3:
            raise CorruptError(f"{len(planes)} planes, a frame of codec low-rank has 3")
        of, name = numbers_of(about.element), about.element.name
        if name not in MANTISSA_BITS:
            raise CorruptError(f"codec low-rank: for type {name}")
        grid, base = row_grid(about, of, "low-rank"), as_numbers(bases[0], of)
        factors = _loaded(planes, grid, about.size_bytes)
        decode_against(planes[2], _predicted(base, factors, grid, name), of, as_numbers(out, of))


def _predicted(base: NDArray[Any], factors: _Factors, grid: RowGrid, name: str) -> NDArray[Any]:
    """The bits that base and product add up to."""
    if not factors.left.shape[1]:
        return base
    found, step = np.empty_like(base), max(1, _AT_ONCE // grid.columns)
    with np.errstate(all="ignore"):
        for row in range(0, grid.rows, step):
            start = max(0, row * grid.columns - grid.skipped)
            stop = min(grid.numbers, (row + step) * grid.columns - grid.skipped)
            product = (factors.left[row : row + step] @ factors.right).reshape(-1)
            skipped = start + grid.skipped - row * grid.columns
            moved = product[skipped : skipped + stop - start]
            moved *= 2.0**-factors.shift
            part = base[start:stop]
            moved += widened(part, name)
            found[start:stop] = narrowed(moved, part, name)
    return found


# ------------------------------------------------------------------------------ stored


def _stored(factors: _Factors) -> NDArray[np.uint8]:
    """Both factors, each number in three bytes."""
    both = np.concatenate([factors.left.reshape(-1), factors.right.reshape(-1)])
    wide = both.astype("<i4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(wide[:, :_FACTOR_BYTES]).reshape(-1)


def _loaded(planes: Sequence[StoredPlane], grid: RowGrid, frame_bytes: int) -> _Factors:
    rank, reserved, shift = _HEAD.unpack(raw_view(planes[0], _HEAD.size).tobytes())
    size = rank * (grid.rows + grid.columns) * _FACTOR_BYTES
    if reserved or rank > MAX_RANK or abs(shift) > _MOST_SHIFT or size > frame_bytes:
        raise CorruptError(f"codec low-rank: rank {rank}, shift {shift} for {frame_bytes} bytes")
    data = raw_view(planes[1], size).reshape(-1, _FACTOR_BYTES)
    wide = np.zeros((len(data), 4), np.uint8)
    wide[:, 1:] = data
    both = (wide.view("<i4")[:, 0] >> 8).astype(np.float64)
    cut = rank * grid.rows
    return _Factors(
        both[:cut].reshape(grid.rows, rank), both[cut:].reshape(rank, grid.columns), shift
    )


# ------------------------------------------------------------------------------ found


def _none(grid: RowGrid) -> _Factors:
    return _Factors(np.zeros((grid.rows, 0)), np.zeros((0, grid.columns)), 0)


def _factors(numbers: NDArray[Any], base: NDArray[Any], grid: RowGrid, name: str) -> _Factors:
    """Factors whose product is the difference but for rounding; of rank 0 where there are none."""
    new, old = grid.whole_of(numbers), grid.whole_of(base)
    expected = _probed_rank(new, old, name)
    moved = widened(new, name) - widened(old, name) if expected else np.zeros(0)
    if not expected or not np.isfinite(moved).all():
        return _none(grid)
    right = _directions(moved, expected, _noise(old, name))
    size = len(right) * (grid.rows + grid.columns) * _FACTOR_BYTES
    if not len(right) or len(right) > MAX_RANK or size > numbers.nbytes:
        return _none(grid)
    left = np.zeros((grid.rows, len(right)))
    left[grid.whole.start : grid.whole.stop] = moved @ right.T
    for row in {0, grid.rows - 1} - set(grid.whole):
        left[row] = _cut_row(row, numbers, base, right, grid, name)
    return _whole_numbers(left, right) or _none(grid)


def _probed_rank(new: NDArray[Any], old: NDArray[Any], name: str) -> int:
    """The rank of the difference as a few rows and columns show it; 0: no low one."""
    if min(new.shape) < _LEAST_WHOLE:
        return 0
    rows, columns = (np.linspace(0, size - 1, min(size, _PROBED)).astype(int) for size in new.shape)
    some, some_old = (one[np.ix_(rows, columns)] for one in (new, old))
    with np.errstate(all="ignore"):
        moved = widened(some, name) - widened(some_old, name)
    if not np.isfinite(moved).all():
        return 0
    found = _count_above(np.linalg.svd(moved, compute_uv=False), moved, _noise(some_old, name))
    return found if found <= min(moved.shape) * 2 // 3 else 0


def _noise(old: NDArray[Any], name: str) -> float:
    """How far rounding moves a number, about."""
    some = widened(old[:: max(1, len(old) // _PROBED)], name)
    return _NOISE * 2.0 ** -MANTISSA_BITS[name] * float(np.sqrt(np.mean(some * some))) / 4


def _count_above(values: NDArray[Any], moved: NDArray[Any], noise: float) -> int:
    """Singular values that are larger than those of noise alone."""
    rows, columns = moved.shape
    return int(np.count_nonzero(values > noise * (rows**0.5 + columns**0.5)))


def _directions(moved: NDArray[np.float64], expected: int, noise: float) -> NDArray[np.float64]:
    """The few directions that all rows lie along, ``(rank, columns)``, orthonormal."""
    rows, columns = moved.shape
    tried = min(expected + _SPARE, rows, columns)
    mixed = moved @ np.random.default_rng(0).standard_normal((columns, tried))
    seen = np.linalg.qr(mixed)[0].T @ moved
    _, values, directions = np.linalg.svd(seen, full_matrices=False)
    return directions[: _count_above(values, moved, noise)]


def _cut_row(
    row: int,
    numbers: NDArray[Any],
    base: NDArray[Any],
    right: NDArray[np.float64],
    grid: RowGrid,
    name: str,
) -> NDArray[np.float64]:
    """How far the part of a row that lies in the frame moved along each direction."""
    start = max(0, row * grid.columns - grid.skipped)
    stop = min(grid.numbers, (row + 1) * grid.columns - grid.skipped)
    moved = widened(numbers[start:stop], name) - widened(base[start:stop], name)
    first = (start + grid.skipped) % grid.columns
    if not np.isfinite(moved).all():
        return np.zeros(len(right))
    along = right[:, first : first + stop - start].T
    return np.asarray(np.linalg.lstsq(along, moved, rcond=1e-6)[0], np.float64)


def _whole_numbers(left: NDArray[np.float64], right: NDArray[np.float64]) -> _Factors | None:
    """Both factors in as many bits as there are; None where their product is out of range."""
    largest = [float(np.abs(one).max()) for one in (left, right)]
    if not all(0 < one < np.inf for one in largest):
        return None
    shifts = [int(np.floor(np.log2(_LARGEST / one))) for one in largest]
    if abs(sum(shifts)) > _MOST_SHIFT:
        return None
    both = [np.rint(one * 2.0**shift) for one, shift in zip((left, right), shifts, strict=True)]
    return _Factors(both[0], both[1], sum(shifts))
