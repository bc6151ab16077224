"""Snapshot buffer: copies of a training state that is stored while training goes on.

Tensors are copied into memory that is kept from one checkpoint to the next: fresh memory costs
several times what filling it costs. How much may wait to be stored is bounded in bytes; who comes
with more waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.pool import Pool
from tensorrepo.formats.common.tensors import TORCH_NAMES, is_torch, memory_key, tensor_of
from tensorrepo.repo.threads import Waiting

_ALIGNMENT = 64


class SnapshotBuffer:
    """Copies of states that wait to be stored. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        """Let copies of up to `limit_bytes` wait; alone, a larger one may, too."""
        self._limit_bytes = limit_bytes
        self._pool = Pool(limit_bytes)
        self._staged_bytes = self._held_bytes = 0
        self._let_go: Callable[[], None] | None = None
        self._pins = 0
        self._lock = Lock()
        self._changed = Waiting()

    @property
    def staged_bytes(self) -> int:
        return self._staged_bytes

    def reserve(self, size_bytes: int) -> None:
        """Wait until there is room for so many bytes, and take it."""
        while True:
            with self._lock:
                if self._let_go is not None and not self._pins and not self._fits(size_bytes):
                    self._drop_held()
                if self._fits(size_bytes):
                    self._staged_bytes += size_bytes
                    return
                wait = self._changed.add()
            wait()

    def release(self, size_bytes: int) -> None:
        """Give room back, after the last reference to the copies is gone."""
        with self._lock:
            self._staged_bytes -= size_bytes
            self._changed.wake()

    def hold(self, size_bytes: int, let_go: Callable[[], None]) -> None:
        """Instead of `release`: keep copies for as long as there is room, those held before go.

        `let_go` is called, on any thread, when their last reference is to go.
        """
        with self._lock:
            if self._let_go is not None:
                self._drop_held()
            self._held_bytes, self._let_go = size_bytes, let_go
            self._changed.wake()

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """While this goes on, `reserve` waits for what is held to be used, and does not drop it:
        dropped, its memory would still be in use, and be given to others as well.
        """
        with self._lock:
            self._pins += 1
        try:
            yield
        finally:
            with self._lock:
                self._pins -= 1
                self._changed.wake()

    def _fits(self, size_bytes: int) -> bool:
        return not self._staged_bytes or self._staged_bytes + size_bytes <= self._limit_bytes

    def _drop_held(self) -> None:
        let_go, self._let_go = self._let_go, None
        self._staged_bytes -= self._held_bytes
        if let_go is not None:
            let_go()

    def copies(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors, none of which anybody else can change. Those that are one stay one."""
        one_each = {_identity(name, value): (name, value) for name, value in tensors.items()}
        size = sum(_room_bytes(*one) for one in one_each.values())
        room, used = self._pool.array((size,), np.dtype(np.uint8)), 0
        copied = {}
        for key, (name, value) in one_each.items():
            copied[key] = _copy(name, value, room[used:])
            used += _room_bytes(name, value)
        return {name: copied[_identity(name, value)] for name, value in tensors.items()}


def _copy(name: str, value: Any, room: NDArray[np.uint8]) -> Any:
    """A copy of a tensor at the beginning of `room`."""
    reader = tensor_of(name, value)
    size = reader.type.bytes_of(reader.shape)
    part = room[:size]
    if not is_torch(value):
        copy = part.view(value.dtype).reshape(value.shape)
        np.copyto(copy, value)
        return copy
    import torch

    plain = value.detach()
    dtype = getattr(torch, TORCH_NAMES[reader.type.name])
    if not size:
        return torch.empty(plain.shape, dtype=dtype)
    copied = torch.from_numpy(part).view(dtype).reshape(plain.shape)
    # Of a bool its byte: torch would copy whether it is 0.
    is_bool = dtype == torch.bool
    bits = (copied.view(torch.uint8), plain.view(torch.uint8)) if is_bool else (copied, plain)
    bits[0].copy_(bits[1])
    return copied


def memory_of(copy: Any) -> NDArray[np.uint8]:
    """The bytes of a copy that `SnapshotBuffer.copies` made, where they lie."""
    if not is_torch(copy):
        array: NDArray[np.uint8] = copy.reshape(-1).view(np.uint8)
        return array
    import torch

    found: NDArray[np.uint8] = copy.reshape(-1).view(torch.uint8).numpy()
    return found


def _identity(name: str, value: Any) -> object:
    """Equal for tensors that are one."""
    key = memory_key(value)
    return name if key is None else key


def _room_bytes(name: str, value: Any) -> int:
    reader = tensor_of(name, value)
    return -(-reader.type.bytes_of(reader.shape) // _ALIGNMENT) * _ALIGNMENT


def bytes_of(tensors: Mapping[str, Any]) -> int:
    """Bytes of copies, each memory once. Raises InvalidInputError, which names a tensor."""
    one_each = {_identity(name, value): (name, value) for name, value in tensors.items()}
    return sum(_room_bytes(*one) for one in one_each.values())
