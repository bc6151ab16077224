"""Predicting codecs: Adam steps, weight decay and low-rank updates of a base.

A checkpoint one step after its base holds the first moments before and after the step, and they
give the gradient. So the second moments follow, and from those the weights. What is stored is how
far the truth is from the prediction: rounding.

The prediction is computed in 64-bit floats, one operation at a time in a fixed order: addition,
multiplication, division and square root are exact to the last bit on every machine, and powers are
multiplied out. Subnormal numbers count as zero on every machine, whatever its mode, and where a
prediction is no number the base's bits stand in.

Weight decay shrinks also what no gradient reached, such as the embeddings of words that did not
occur: in units of the last place by an amount that follows from a number's first digits. So a table
of those amounts says where such rows are, and the other rows are stored as they moved.

An adapter that was merged into a matrix (LoRA) added a product of two small factors to it. The
factors need not be known: whatever is nearly of low rank gives them away. What is stored is those
of each frame, and how far the truth is from what they predict: rounding.

Factors are whole numbers of 24 bits. Their product is exact in 64-bit floats, in whatever order a
machine adds it up, so every machine predicts the same.

Source:
    docs/spec/model.md, sections "Adam", "Predictions", "Decay" and "Low rank".
"""

from __future__ import annotations

from functools import lru_cache
from math import sqrt
from struct import Struct
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.distances import (
    PredictingCodec,
    RowGrid,
    decode_against,
    decode_rows,
    encode_against,
    encode_taken,
    expected_bytes,
    pack_row_set,
    row_grid,
    unpack_row_set,
)
from tensorrepo.formats.model.delta.frame_codec import (
    FrameCodec,
    Frames,
    FrameShape,
    PlaneList,
    as_numbers,
    numbers_of,
)
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane, pack_plane, raw_view
from tensorrepo.formats.native import products, row_moves
from tensorrepo.formats.native.products import MANTISSA_BITS, narrowed, widened
from tensorrepo.formats.native.row_moves import TakenRows
from tensorrepo.formats.native.thread_buffers import buffer_for
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

Role = Literal["second-moment", "weight"]
_ROLES: Final[tuple[Role, ...]] = ("second-moment", "weight")
_PARAMS = Struct("<BBHIddddd")  # role, decoupled decay, reserved 0, step, rate, betas, eps, decay
assert _PARAMS.size == 48, "docs/spec/model.md promises 48 bytes of parameters"
MOST_STEPS: Final = 1 << 32


@dataclass(frozen=True, slots=True)
class AdamParams:
    """One step of Adam or AdamW, and which of its results is predicted.

    Attributes:
        role: "second-moment" from bases (v, m, new m), or "weight" from bases (w, new m, new v).
        step: the number of the step, 1 for the first.
        rate: learning rate of this step.
        betas: rates at which both moments forget.
        eps: added to the denominator.
        decay: decay of the weights.
        decoupled: whether the decay is AdamW's.
    """

    role: Role
    step: int
    rate: float
    betas: tuple[float, float]
    eps: float
    decay: float
    decoupled: bool

    def __post_init__(self) -> None:
        if not 1 <= self.step < MOST_STEPS or self.role not in _ROLES:
            raise InvalidInputError(f"Adam's step {self.step} for {self.role!r:.40}")

    def pack(self) -> bytes:
        role = _ROLES.index(self.role)
        numbers = self.rate, *self.betas, self.eps, self.decay
        return _PARAMS.pack(role, self.decoupled, 0, self.step, *numbers)


def unpack_params(params: bytes) -> AdamParams:
    """The parameters of a member.

    Raises:
        CorruptError: they are none.
        UnsupportedError: they predict something that this version does not know.
    """
    if len(params) != _PARAMS.size:
        raise CorruptError(f"codec adam: {len(params)} bytes of parameters, not {_PARAMS.size}")
    role, decoupled, reserved, step, rate, one, two, eps, decay = _PARAMS.unpack(params)
    if role >= len(_ROLES) or decoupled > 1 or reserved:
        raise UnsupportedError(f"codec adam: prediction {role} is unknown here. Update tensorrepo.")
    if not step:
        raise CorruptError("codec adam: steps count from 1")
    return AdamParams(_ROLES[role], step, rate, (one, two), eps, decay, bool(decoupled))


class Adam(PredictingCodec):
    """Against three bases: see `AdamParams.role`; its packed form is the member's parameters."""

    name = "adam"
    number = 6
    bases = 3

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return element.name in MANTISSA_BITS

    def predicted(self, bases: Frames, about: FrameShape) -> NDArray[Any]:
        """The bits that Adam's step would give."""
        params, name = unpack_params(about.params), about.element.name
        if name not in MANTISSA_BITS:
            raise CorruptError(f"codec adam: for type {name}")
        with np.errstate(all="ignore"):
            of = numbers_of(about.element)
            one, two, three = (widened(as_numbers(base, of), name) for base in bases)
            step = _second_moment if params.role == _ROLES[0] else _weight
            return narrowed(step(one, two, three, params), as_numbers(bases[0], of), name)


def _second_moment(
    old: NDArray[np.float64],
    first: NDArray[np.float64],
    new_first: NDArray[np.float64],
    params: AdamParams,
) -> NDArray[np.float64]:
    one, two = params.betas
    gradient = new_first - first * one
    gradient /= 1.0 - one
    gradient *= gradient
    gradient *= 1.0 - two
    old *= two
    old += gradient
    return old


def _weight(
    old: NDArray[np.float64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
    params: AdamParams,
) -> NDArray[np.float64]:
    one, two = (_power(beta, params.step) for beta in params.betas)
    np.sqrt(second, out=second)
    second /= sqrt(max(1.0 - two, 0.0)) or 1.0
    second += params.eps
    first /= second
    first *= params.rate / ((1.0 - one) or 1.0)
    if params.decoupled:
        old *= 1.0 - params.rate * params.decay
    old -= first
    return old


def _power(base: float, exponent: int) -> float:
    """By multiplications alone: libraries differ in the last bit of `pow`."""
    found = 1.0
    while exponent:
        if exponent & 1:
            found *= base
        base *= base
        exponent >>= 1
    return found


_BELOW: Final = {"F32": 15, "F64": 44}  # bits below the eight that follow the exponent
_COUNTED: Final = 1 << 16  # numbers that the table is made from
_PROBED: Final = 1 << 13  # numbers that tell whether it is worth trying
_PROMISING: Final = 0.15  # of them


class Decay(FrameCodec):
    """Against one base of the same type and size, of which most rows moved alike."""

    name = "decay"
    number = 8
    bases = 1
    plane_count = 4
    needs_look = True

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Tensors of several rows: in types of fewer digits a decay is lost in rounding."""
        return element.name in _BELOW and len(shape) > 1 and element.bytes_of(shape) > 0

    def seems_better(self, frame: memoryview, bases: Frames, about: FrameShape) -> bool:
        """Whether many of some numbers moved, and by what is frequent in their class."""
        of, below = numbers_of(about.element), _BELOW[about.element.name]
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        stride = max(1, numbers.size // _PROBED)
        _, moved = row_moves.BEST.frequent(numbers, base, of, below, stride)
        return moved > _PROMISING * min(numbers.size, _PROBED)

    def expected_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:
        of = numbers_of(about.element)
        _, taken = self._taken(frame, bases, about)
        beside = 2 * row_moves.CLASSES + pack_row_set(taken.marks).size_bytes
        return beside + sum(expected_bytes(*part, of) for part in (taken.calm, taken.moved))

    def encode(self, frame: memoryview, bases: Frames, about: FrameShape) -> list[StoredPlane]:
        of = numbers_of(about.element)
        found, taken = self._taken(frame, bases, about)
        table, rows = pack_plane(found.view(np.uint8)), pack_row_set(taken.marks)
        return [table, rows, *(encode_taken(*part, of) for part in (taken.calm, taken.moved))]

    def _taken(
        self, frame: memoryview, bases: Frames, about: FrameShape
    ) -> tuple[NDArray[np.uint16], TakenRows]:
        """How far numbers of each class moved; rows of which most did, and the others."""
        of, below = numbers_of(about.element), _BELOW[about.element.name]
        numbers, base = as_numbers(frame, of), as_numbers(bases[0], of)
        stride = max(1, numbers.size // _COUNTED)
        table, _ = row_moves.BEST.frequent(numbers, base, of, below, stride)
        rows = row_grid(about, of, self.name)
        place = rows.columns, rows.skipped, below, table
        return table, row_moves.BEST.take_decayed(numbers, base, of, *place)

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:
        of, name = numbers_of(about.element), about.element.name
        self.check_planes(planes, about)
        if name not in _BELOW:
            raise CorruptError(f"codec decay: for type {name}")
        table = np.frombuffer(raw_view(planes[0], 2 * row_moves.CLASSES).tobytes(), "<u2")
        if table.max() > row_moves.FARTHEST:
            raise CorruptError(f"decay: a table with a distance of {table.max()}")
        rows = row_grid(about, of, self.name)
        which = unpack_row_set(planes[1], rows.rows, self.name)
        numbers, base = as_numbers(out, of), as_numbers(bases[0], of)
        for moved, plane in ((False, planes[2]), (True, planes[3])):
            some = rows.chosen(which, marked=moved)
            if not moved:
                some = some._replace(below=_BELOW[name], table=table)
            if decode_rows(plane, base, of, numbers, some):
                continue
            chosen = which if moved else ~which
            under = rows.taken(base, chosen, "base")
            if not moved:
                under = row_moves.BEST.step(under, of, _BELOW[name], table)
            if under.size == numbers.size:
                decode_against(plane, under, of, numbers)
                continue
            part = buffer_for("frame", under.size, of.dtype)
            decode_against(plane, under, of, part)
            rows.put(numbers, chosen, part)


_HEAD = Struct("<BBh")  # rank, reserved 0, bits that the product is shifted right by
assert _HEAD.size == 4, "docs/spec/model.md promises 4 bytes before the factors"
MAX_RANK: Final = 64
_MOST_SHIFT: Final = 300  # so that no product is subnormal
_FACTOR_BYTES: Final = 3
_LARGEST: Final = (1 << 23) - 1
# Rows and columns that tell whether it is worth trying. Of larger matrices OpenBLAS takes values on
# all cores, whose threads wait busily for each other: ten times the work of all else of a save.
_PROBED_ROWS: Final = 60
_LEAST_WHOLE: Final = 8
_SPARE: Final = 8  # directions that are looked for beyond those expected
# Of the difference, beside few directions: up to 0.06 of adapters merged in BF16, but 0.2 and more
# of fine-tunes whose few largest steps lie along some direction, which factors only make larger.
_MOST_LEFT: Final = 0.15
_NOISE: Final = 1.5  # of rounding, in units of the numbers' precision, with something to spare


class _Factors(NamedTuple):
    """Whole numbers, ``(rows, rank)`` and ``(rank, columns)``: 2^shift times the difference."""

    left: NDArray[np.float64]
    right: NDArray[np.float64]
    shift: int


class LowRank(FrameCodec):
    """Against one base of the same type and size, from which it differs by a product."""

    name = "low-rank"
    number = 7
    bases = 1
    plane_count = 3
    needs_many_rows = True

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:
        """Matrices of floats, and whatever has more dimensions."""
        return element.name in MANTISSA_BITS and len(shape) > 1 and element.bytes_of(shape) > 0

    def seems_better(self, frame: memoryview, bases: Frames, about: FrameShape) -> bool:
        """Whether a few rows and columns say that the difference is of low rank."""
        return self.least_bytes(frame, bases, about) < about.size_bytes

    def least_bytes(self, frame: memoryview, bases: Frames, about: FrameShape) -> float:
        """Bytes of the factors, if a few rows and columns say that there are some."""
        of, name = numbers_of(about.element), about.element.name
        grid = row_grid(about, of, "low-rank")
        new, old = (grid.whole_of(as_numbers(one, of)) for one in (frame, bases[0]))
        rank = _probed_rank(new, old, name)
        return rank * (grid.rows + grid.columns) * _FACTOR_BYTES if rank else float("inf")

    def encode(self, frame: memoryview, bases: Frames, about: FrameShape) -> list[StoredPlane]:
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

    def decode(self, planes: PlaneList, bases: Frames, about: FrameShape, out: memoryview) -> None:
        self.check_planes(planes, about)
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
    scale = 2.0**-factors.shift
    return products.BEST.step(base, factors.left, factors.right, scale, grid.skipped, name)


# ------------------------------------------------------------------------------ stored


def _stored(factors: _Factors) -> NDArray[np.uint8]:
    """Both factors, each number in three bytes."""
    both = np.concatenate([factors.left.reshape(-1), factors.right.reshape(-1)])
    wide = both.astype("<i4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(wide[:, :_FACTOR_BYTES]).reshape(-1)


def _loaded(planes: PlaneList, grid: RowGrid, frame_bytes: int) -> _Factors:
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
    moved = products.BEST.moved(new, old, name) if expected else np.zeros(0)
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
    places = _probed(new.shape)
    if products.BEST.has_no_low_rank(new, old, places, _noise_of(name), name):
        return 0
    some, some_old = new[places], old[places]
    with np.errstate(all="ignore"):
        moved = products.BEST.moved(some, some_old, name)
    if not np.isfinite(moved).all():
        return 0
    values = np.linalg.svd(moved, compute_uv=False)
    found = _count_above(values, moved, _noise(some_old, name))
    left = float((values[found:] ** 2).sum())
    few = found <= min(moved.shape) * 2 // 3 and left <= _MOST_LEFT * float((values**2).sum())
    return found if few else 0


@lru_cache(256)  # models have few shapes
def _probed(shape: tuple[int, int]) -> tuple[NDArray[np.intp], ...]:
    """Rows and columns that a matrix is looked at, as numpy's open mesh."""
    return np.ix_(*(np.linspace(0, n - 1, min(n, _PROBED_ROWS)).astype(np.intp) for n in shape))


def _noise(old: NDArray[Any], name: str) -> float:
    """How far rounding moves a number, about."""
    some = widened(old[:: max(1, len(old) // _PROBED_ROWS)], name)
    return _noise_of(name) * float(np.sqrt(np.mean(some * some)))


def _noise_of(name: str) -> float:
    """The same in units of what the numbers are about."""
    return _NOISE * 2.0 ** -MANTISSA_BITS[name] / 4


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
    moved = products.BEST.moved(numbers[start:stop], base[start:stop], name)
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
