"""How is a training state copied, so that training may go on while it is stored?

Tensors are copied into memory that is kept from one checkpoint to the next: fresh memory costs
several times what filling it costs. How much may wait to be stored is bounded in bytes; who comes
with more waits.
"""

from __future__ import annotations

from threading import Condition
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.pages.pool import Pool
from tensorrepo.formats.tensors import TORCH_NAMES, is_torch, memory_key, tensor_of

if TYPE_CHECKING:
    from collections.abc import Mapping


class Staging:
    """Copies of states that wait to be stored. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        """Let copies of up to `limit_bytes` wait; alone, a larger one may, too."""
        self._limit_bytes = limit_bytes
        self._pool = Pool(limit_bytes)
        self._staged_bytes = 0
        self._changed = Condition()

    @property
    def staged_bytes(self) -> int:
        return self._staged_bytes

    def reserve(self, size_bytes: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        with self._changed:
            while self._staged_bytes and self._staged_bytes + size_bytes > self._limit_bytes:
                self._changed.wait()
            self._staged_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Give room back, after the last reference to the copies is gone."""
        with self._changed:
            self._staged_bytes -= size_bytes
            self._changed.notify_all()

    def copies(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors, none of which anybody else can change. Those that are one stay one."""
        done: dict[tuple[object, ...], Any] = {}
        found = {}
        for name, value in tensors.items():
            key = memory_key(value)
            copy = done.get(key) if key is not None else None
            if copy is None:
                copy = self._copy(name, value)
            if key is not None:
                done[key] = copy
            found[name] = copy
        return found

    def _copy(self, name: str, value: Any) -> Any:
        element = tensor_of(
            name, value
        ).type  # refuses what cannot be stored, before training goes on
        if not is_torch(value):
            room = self._pool.array(value.shape, value.dtype)
            np.copyto(room, value)
            return room
        import torch

        plain = value.detach()
        room = self._pool.array((plain.numel() * plain.element_size(),), np.dtype(np.uint8))
        copy = torch.from_numpy(room).view(getattr(torch, TORCH_NAMES[element.name]))
        copy = copy.reshape(plain.shape)
        copy.copy_(plain)
        return copy


def bytes_of(tensors: Mapping[str, Any]) -> int:
    """Bytes of the tensors, those that are one counted once.

    Raises:
        InvalidInputError: one of them cannot be stored; names it.
    """
    counted: set[tuple[object, ...]] = set()
    total = 0
    for name, value in tensors.items():
        key = memory_key(value)
        if key is not None and key in counted:
            continue
        if key is not None:
            counted.add(key)
        reader = tensor_of(name, value)
        total += reader.type.bytes_of(reader.shape)
    return total
