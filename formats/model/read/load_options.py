"""Options of a load, and torch modules as its destination.

Options are checked before anything is read, so that a typo is told in our words. Parameters and
buffers of a torch module are filled where they lie, if type and device allow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Final, Protocol

import numpy as np

from tensorrepo.formats.common.tensors import (
    TYPES_BY_TORCH_NAME,
    TensorOutput,
    TensorType,
    import_torch,
)
from tensorrepo.formats.model.read.selection import ElementIndex
from tensorrepo.repo.errors import InvalidInputError

_FLOATS: Final = ("float", "bfloat", "complex")
_EXAMPLES: Final = "'float32', 'float16' or 'bfloat16'"
RankShard = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How tensors are loaded.

    Attributes:
        output: "numpy" or "torch".
        copy: False: numpy arrays are read-only, and mapped where that is possible.
        device: torch device to put them on.
        dtype: type that floating-point tensors are converted to: numpy's or torch's word.
        shard: (dimension, rank, world): the part of each tensor that `torch.chunk` would give to
            that rank. Tensors without that dimension come whole.
        planes: number of most significant bytes of each number that are read; the others are 0:
            two of an F32 are exactly its BF16 truncation, for half of the bytes.
    """

    output: TensorOutput = "numpy"
    copy: bool = True
    device: Any = None
    dtype: Any = None
    shard: RankShard | None = None
    planes: int | None = None

    def __post_init__(self) -> None:
        if self.output not in {"numpy", "torch"}:
            raise InvalidInputError(f"output {self.output!r}: expected 'numpy' or 'torch'")
        if self.device is not None and self.output != "torch":
            raise InvalidInputError("a device is torch's: give output='torch' with it")
        checked = {
            "planes": None if self.planes is None else _plane_count(self.planes),
            "shard": None if self.shard is None else _share(self.shard),
            "dtype": None if self.dtype is None else _float_type(self.dtype, self.output),
            "device": None if self.device is None else _torch_device(self.device),
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def mapped(self) -> bool:
        """Whether what lies on a local disk may be handed out where it lies."""
        # torch knows no read-only tensors.
        return not self.copy and self.output == "numpy" and self.planes is None

    @property
    def plain(self) -> bool:
        """Whether numpy arrays are wanted with the numbers that are stored."""
        return self.output == "numpy" and self.dtype is None

    @property
    def whole(self) -> bool:
        """Whether all bytes of tensors are wanted."""
        return self.shard is None and self.planes is None

    def index(self, shape: tuple[int, ...]) -> ElementIndex | None:
        """The part of a tensor of that shape; None: all of it."""
        if self.shard is None or self.shard[0] >= len(shape):
            return None
        dim, rank, world = self.shard
        step = -(-shape[dim] // world)
        part = slice(min(rank * step, shape[dim]), min((rank + 1) * step, shape[dim]))
        return (*(slice(None),) * dim, part)


NUMPY: Final = LoadOptions()


def _float_type(dtype: Any, output: TensorOutput) -> Any:
    """The type of numpy's, or of torch's, that somebody calls so."""
    found = _torch_type(dtype) if output == "torch" else _numpy_type(dtype)
    name = str(found).removeprefix("torch.") if output == "torch" else getattr(found, "name", "")
    if found is None or not name.startswith(_FLOATS):
        raise InvalidInputError(
            f"dtype {dtype!r:.60}: expected a type of floating-point numbers that {output} knows, "
            f"such as {_EXAMPLES}; other tensors are not converted"
        )
    return found


def _torch_device(device: Any) -> Any:
    """The torch device that somebody names, once it is known to be there."""
    torch = import_torch("ask for numpy arrays")
    try:
        found = torch.device(device)
        if found.type != "meta":
            torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        said = str(error).strip().partition("\n")[0] if isinstance(device, str) else "no device"
        raise InvalidInputError(
            f"device {device!r:.60}: {said}. Expected one that torch has here, such as 'cpu' or "
            "'cuda:0'"
        ) from error
    return found


def _share(shard: Any) -> tuple[int, int, int]:
    try:
        dim, rank, world = (_whole(one) for one in shard)
    except (TypeError, ValueError):
        dim, rank, world = -1, 0, 0
    if dim < 0 or not 0 <= rank < world:
        raise InvalidInputError(
            f"shard {shard!r:.60}: expected (dim, rank < world, world), such as (0, 1, 4)"
        )
    return dim, rank, world


def _plane_count(planes: Any) -> int:
    try:
        found = _whole(planes)
    except TypeError:
        found = 0
    if found < 1:
        raise InvalidInputError(
            f"planes={planes!r:.60}: expected at least 1: how many of the most significant bytes"
        )
    return found


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool counts nothing")
    return index(value)


def _numpy_type(dtype: Any) -> Any:
    word = str(dtype)
    try:
        return np.dtype(word.removeprefix("torch.") if word.startswith("torch.") else dtype)
    except TypeError:
        return None


def _torch_type(dtype: Any) -> Any:
    torch = import_torch("ask for numpy arrays")
    if isinstance(dtype, torch.dtype):
        return dtype
    plain = _numpy_type(dtype)
    name = plain.name if plain is not None else str(dtype).removeprefix("torch.")
    found = getattr(torch, name, None)
    return found if isinstance(found, torch.dtype) else None


_SHOWN = 5


class Shaped(Protocol):
    """What of a stored tensor is compared with the one that it is read into."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def matching(
    state: Mapping[str, Any], stored: Mapping[str, Shaped], strict: bool
) -> dict[str, Any]:
    """The torch tensors to be filled, by name of the stored tensor; each memory once.

    Raises:
        InvalidInputError: with `strict` other names, and always other shapes.
    """
    missing = sorted(state.keys() - stored.keys())
    unexpected = sorted(stored.keys() - state.keys())
    if strict and (missing or unexpected):
        raise InvalidInputError(
            "; ".join(
                f"{what} {', '.join(names[:_SHOWN])}{' ...' if len(names) > _SHOWN else ''}"
                for what, names in (("stored lacks", missing), ("module lacks", unexpected))
                if names
            )
        )
    targets: dict[str, Any] = {}
    seen: set[tuple[object, ...]] = set()
    for name in (name for name in state if name in stored):
        into, spec = state[name], stored[name]
        if tuple(into.shape) != tuple(spec.shape):
            raise InvalidInputError(
                f"tensor {name!r}: stored with shape {tuple(spec.shape)}, the module's has "
                f"{tuple(into.shape)}"
            )
        place = into.device, into.data_ptr(), tuple(into.shape), tuple(into.stride()), into.dtype
        if place not in seen or not into.numel():
            seen.add(place)
            targets[name] = into
    return targets


def memory_of(into: Any, element: TensorType) -> memoryview | None:
    """The memory of a torch tensor, when stored bytes of that type can go there as they are."""
    alike = TYPES_BY_TORCH_NAME.get(str(into.dtype).removeprefix("torch.")) == element
    plain = into.device.type == "cpu" and into.is_contiguous() and element.block_elements == 1
    if not (alike and plain and into.numel()) or into.is_conj() or into.is_neg():
        return None
    import torch

    memory: memoryview = into.detach().reshape(-1).view(torch.uint8).numpy().data
    return memory
