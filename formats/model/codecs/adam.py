"""What would Adam have made of these weights?

A checkpoint one step after its base holds the first moments before and after the step, and they
give the gradient. So the second moments follow, and from those the weights. What is stored is how
far the truth is from the prediction: rounding.

The prediction is computed in 64-bit floats, one operation at a time in a fixed order: addition,
multiplication, division and square root are exact to the last bit on every machine, and powers are
multiplied out.

Source:
    docs/spec/model.md, section "Adam".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from tensorrepo.formats.model.codecs.delta import decode_against, encode_against
from tensorrepo.formats.model.codecs.floats import MANTISSA_BITS, narrowed, widened
from tensorrepo.formats.model.codecs.numbers import as_numbers, numbers_of
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.model.codecs.planecodec import StoredPlane
    from tensorrepo.formats.tensors import TensorType

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
        betas: of both moments.
        eps: added to the denominator.
        decay: of the weights.
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


class Adam:
    """Against three bases: see `AdamParams.role`; its packed form is the member's parameters."""

    name: Final = "adam"
    number: Final = 6
    bases: Final = 3

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return element.name in MANTISSA_BITS

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 1

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        of = numbers_of(about.element)
        return [encode_against(as_numbers(frame, of), predict(bases, about), of)]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        if len(planes) != 1:
            raise CorruptError(f"{len(planes)} planes, a frame of codec adam has 1")
        of = numbers_of(about.element)
        decode_against(planes[0], predict(bases, about), of, as_numbers(out, of))


def predict(bases: Sequence[memoryview], about: FrameShape) -> NDArray[Any]:
    """The bits that Adam's step would give."""
    params, name = unpack_params(about.params), about.element.name
    if name not in MANTISSA_BITS:
        raise CorruptError(f"codec adam: for type {name}")
    with np.errstate(all="ignore"):
        of = numbers_of(about.element)
        one, two, three = (widened(as_numbers(base, of), name) for base in bases)
        step = _second_moment if params.role == _ROLES[0] else _weight
        found = step(one, two, three, params)
        return narrowed(found, as_numbers(bases[0], of), name)


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
