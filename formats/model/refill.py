"""Parameters and buffers of a torch module as the memory that stored tensors are loaded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tensorrepo.formats.tensors import TYPES_BY_TORCH_NAME, TensorType
from tensorrepo.repo.errors import InvalidInputError

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
