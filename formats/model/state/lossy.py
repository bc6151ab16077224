"""Lossy optimizer state: fewer bits, with a bound on the error of each number.

Moments of gradients are noisy, and the low bits of their mantissas tell nothing. Who asks for it
has them rounded to fewer bits before they are stored; then they are other tensors, with other
fingerprints, and an edge of the lineage says what they stand for and how far they may be from it.
Only what is known to be a moment is rounded: never weights, counters, nor what is stored in a
manifest. NaN, infinities, zeros, subnormal numbers, and numbers that would become infinite keep
all of their bits.

Source:
    docs/spec/model.md, section "Approximate state".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, log2
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.provenance import LOSSY_OF, ProvenanceEdge, details_of
from tensorrepo.formats.common.tensors import TYPES, TensorType, tensor_of
from tensorrepo.formats.model.layout.fingerprints import (
    INLINE_BYTES,
    fingerprint,
    frame_bytes,
    frame_digest,
)
from tensorrepo.formats.model.layout.number_values import numbers
from tensorrepo.formats.model.state.snapshot_buffer import memory_of
from tensorrepo.formats.model.state.state_dict import dict_of, name_of, optimizers
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError

Json = Any

# What torch's optimizers call moments of gradients, none of which holds a weight.
MOMENTS: Final = (
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "exp_avg_diff", "momentum_buffer",
    "square_avg", "grad_avg", "acc_delta", "sum", "row_var", "col_var", "variance",
)  # fmt: skip
_LARGEST: Final = 0.25


@dataclass(frozen=True, slots=True)
class LossyState:
    """Store moments of optimizers in fewer bits, each within `relative` of its own size.

    Attributes:
        relative: the bound: a number x is stored as one that is at most ``relative * abs(x)`` away.
        keys: which entries of an optimizer's ``state``, by their names there.

    Example:
        ``repo.checkpointer("exp1", optimizer=tr.LossyState(relative=2**-8))``
    """

    relative: float = 2**-8
    keys: tuple[str, ...] = MOMENTS

    def __post_init__(self) -> None:
        if not isinstance(self.relative, int | float) or not 0 < self.relative <= _LARGEST:
            raise InvalidInputError(
                f"Lossy(relative={self.relative!r}): expected a number above 0, at most {_LARGEST}"
            )
        if not isinstance(self.keys, tuple) or not all(isinstance(key, str) for key in self.keys):
            raise InvalidInputError(f"Lossy(keys={self.keys!r}): expected a tuple of names")

    @property
    def kept_bits(self) -> int:
        """Bits of a mantissa that are kept: rounding to nearest is off by half of the last."""
        return ceil(-log2(self.relative)) - 1


@dataclass(frozen=True, slots=True)
class Approximation:
    """What a stored state promises of the numbers that it holds in fewer bits.

    Attributes:
        relative: each is at most that far from what it was, in relation to its size.
        largest: how far the farthest one is.
        tensors: fingerprint, as 64 hexadecimal digits, of each tensor as it was.
    """

    relative: float
    largest: float
    tensors: Mapping[str, str]

    @property
    def text(self) -> str:
        """For people."""
        count = len(self.tensors)
        return (
            f"{counted(count, 'tensor')} of optimizer state "
            f"{'is' if count == 1 else 'are'} approximate: each number within "
            f"{self.relative:.3g} of its size, the farthest {self.largest:.3g} off"
        )


@dataclass(frozen=True, slots=True)
class _Form:
    """A float type, and the bits of its mantissa: its numbers are taken as unsigned integers."""

    element: TensorType
    mantissa: int

    @property
    def units(self) -> np.dtype[Any]:
        return np.dtype(f"<u{self.element.block_bytes}")

    @property
    def exponents(self) -> int:
        """The bits of the exponent."""
        return (1 << (8 * self.element.block_bytes - 1)) - (1 << self.mantissa)

    def values(self, bits: NDArray[Any]) -> NDArray[np.float64]:
        found = numbers(bits.data, self.element)
        assert found is not None, "floats are numbers"
        return found


_MANTISSAS: Final = {"F64": 52, "F32": 23, "F16": 10, "BF16": 7}
# A complex number is two floats.
_FORMS: Final = {
    name: _Form(TYPES[part], _MANTISSAS[part])
    for name, part in (
        *zip(_MANTISSAS, _MANTISSAS, strict=True), ("C32", "F16"), ("C64", "F32"), ("C128", "F64"),
    )
}  # fmt: skip


def shorten_state(
    skeleton: Json, tensors: Mapping[str, Any], lossy: LossyState, path: str
) -> ProvenanceEdge | None:
    """Round the moments among staged tensors where they lie, and check every number.

    Args:
        skeleton: skeleton of the state.
        tensors: copies that nobody else has.
        lossy: what is allowed.
        path: path of the state in its tree.

    Returns:
        The edge that says what was done; None when there was nothing to do.

    Raises:
        CorruptError: a number came out farther away than allowed; nothing may be stored then.
    """
    names = moments(skeleton, tensors, lossy.keys)
    done = {name: shorten(name, tensors[name], lossy) for name in names}
    return lossy_edge(done, lossy, path)


class Shortened(NamedTuple):
    """What became of one tensor.

    Attributes:
        exact: fingerprint of the tensor as it was, 64 hexadecimal digits.
        largest: how far the farthest number is, in relation to its size.
    """

    exact: str
    largest: float


def lossy_edge(
    done: Mapping[str, Shortened | None], lossy: LossyState, path: str
) -> ProvenanceEdge | None:
    """The edge that says which tensors hold fewer bits; None where none does.

    Args:
        done: what `shorten` said, by name.
        lossy: what was allowed.
        path: path of the state in its tree.
    """
    changed = {name: one for name, one in done.items() if one is not None}
    if not changed:
        return None
    details = {
        "relative": float(lossy.relative),
        "largest": max(one.largest for one in changed.values()),
        "tensors": {name: one.exact for name, one in changed.items()},
    }
    return ProvenanceEdge(LOSSY_OF, path, "", None, details)  # what it was is stored nowhere


def approximation_of(lineage: Iterable[ProvenanceEdge]) -> Approximation | None:
    """What a lineage says of numbers in fewer bits; None: all as they were. As `details_of`."""
    found = details_of(lineage, LOSSY_OF, Approximation)
    return None if found is None else found[1]


def shortened(bits: NDArray[Any], form: _Form, kept: int) -> NDArray[Any]:
    """Floats, as unsigned integers, rounded to `kept` bits of mantissa, ties to even."""
    dropped = form.mantissa - kept
    one = bits.dtype.type(1)
    unit = one << bits.dtype.type(dropped)
    odd = bits >> bits.dtype.type(dropped) & one
    near = (bits + (unit // 2 - one) + odd) & ~(unit - one)
    exponents = bits.dtype.type(form.exponents)
    # Subnormal, zero; infinite, NaN, or about to become it.
    special = (bits & exponents == 0) | (near & exponents == exponents)
    special |= bits & exponents == exponents
    return np.where(special, bits, near)


def farthest(
    exact: NDArray[Any], stored: NDArray[Any], form: _Form, relative: float
) -> float | None:
    """How far the farthest number is, in relation to its size; None when one is too far.

    It knows nothing of rounding: what is no normal number must have the same bits, all others
    must be within the bound, as 64-bit floats, which hold the numbers and their differences.
    """
    exponents = exact.dtype.type(form.exponents)
    held = exact & exponents
    normal = (held != 0) & (held != exponents)
    if not np.array_equal(exact[~normal], stored[~normal]):
        return None
    before, after = form.values(exact[normal]), form.values(stored[normal])
    off = np.abs(after - before)
    if not np.all(off <= relative * np.abs(before)):
        return None
    return float(np.max(off / np.abs(before), initial=0.0))


def shorten(name: str, value: Any, lossy: LossyState) -> Shortened | None:
    """Round the numbers of one tensor where they lie, and check each; None: it is left alone.

    Raises:
        CorruptError: a number came out farther away than allowed; nothing may be stored then.
    """
    reader = tensor_of(name, value)
    form = _FORMS.get(reader.type.name)
    if form is None or form.mantissa <= lossy.kept_bits:
        return None
    memory = memory_of(value)
    swapped = isinstance(value, np.ndarray) and value.dtype.byteorder == ">"
    if memory.nbytes <= INLINE_BYTES or swapped:
        return None
    digests, most = bytearray(), 0.0
    step = frame_bytes(reader.type)
    for start in range(0, memory.nbytes, step):
        part = memory[start : start + step]
        digests += frame_digest(part.data)
        bits = part.view(form.units)
        stored = shortened(bits, form, lossy.kept_bits)
        far = farthest(bits, stored, form, lossy.relative)
        if far is None:
            raise CorruptError(
                f"tensor {name!r}: a number came out more than {lossy.relative} of its size away "
                "when it was stored in fewer bits. Nothing was stored; save without Lossy(...)"
            )
        most = max(most, far)
        bits[:] = stored
    return Shortened(fingerprint(reader.type, tuple(reader.shape), bytes(digests)).hex(), most)


def moments(skeleton: Json, tensors: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    """Names of the tensors under those keys of optimizers, each memory once.

    What another name holds as well, such as a weight, is left alone.
    """
    named = [
        name
        for _, optimizer in optimizers(skeleton)
        for state in (dict_of(optimizer["state"]) or {}).values()
        for key, node in (dict_of(state) or {}).items()
        if key in keys and (name := name_of(node)) is not None and name in tensors
    ]
    wanted = set(named)
    others = {id(value) for name, value in tensors.items() if name not in wanted}
    once = {id(tensors[name]): name for name in reversed(named)}
    return sorted(name for at, name in once.items() if at not in others)
