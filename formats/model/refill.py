"""How do tensors come into memory that a torch module has already?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tensorrepo.formats.model.loading import TensorRead, Wish
from tensorrepo.formats.tensors import TYPES_BY_TORCH_NAME
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Executor, Future

    from tensorrepo.formats.model.loading import Tensor
    from tensorrepo.formats.tensors import TensorType

_SHOWN = 5


class Shaped(Protocol):
    """What of a stored tensor is compared with the one that it is read into."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


class Refill:
    """One tensor being read into another. Straight into its memory, where that looks alike."""

    def __init__(
        self, tensor: Tensor, into: Any, pool: Executor, after: Future[None] | None = None
    ) -> None:
        self.size_bytes = 0 if (room := _room(tensor, into)) is not None else into.nbytes
        self._into = into if room is None else None
        self._read = TensorRead(tensor, Wish(output="torch"), None, pool, room, after)

    def when_done(self, tell: Callable[[], None]) -> None:
        self._read.when_done(tell)

    def finish(self) -> None:
        """Return when all of it is there."""
        self._read.wait()
        if self._into is not None:
            self._into.copy_(self._read.result())


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


def _room(tensor: Tensor, into: Any) -> memoryview | None:
    """The memory of a torch tensor, when the stored bytes can go there as they are."""
    alike = TYPES_BY_TORCH_NAME.get(str(into.dtype).removeprefix("torch.")) == tensor.type
    plain = into.device.type == "cpu" and into.is_contiguous() and tensor.type.block_elements == 1
    if not (alike and plain and into.numel()) or into.is_conj() or into.is_neg():
        return None
    import torch

    found: memoryview = into.detach().reshape(-1).view(torch.uint8).numpy().data
    return found
