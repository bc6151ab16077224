"""How do many tensors come into memory at once, each as it is wanted?

Every tensor is planned first: memory for what is wanted of it, and the runs of frames that fill
it. The runs of all tensors are done by one pool; a tensor is handed over when its last run is, in
whatever order that happens.
"""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from tensorrepo.formats.model.frameread import StoredFrames
from tensorrepo.formats.model.pieces import PiecedTensor
from tensorrepo.formats.model.rounding import ROUNDABLE
from tensorrepo.formats.model.selection import Index, select
from tensorrepo.formats.model.values import numbers
from tensorrepo.formats.model.wanted import float_type, plane_count, share, torch_device
from tensorrepo.formats.tensors import Output, TensorType, array_of, torch_of
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

Tensor = StoredFrames | PiecedTensor
R = TypeVar("R", bound="Reading")
Shard = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Wish:
    """How tensors are wanted.

    Attributes:
        output: "numpy" or "torch".
        copy: False: numpy arrays are read-only, and mapped where that is possible.
        device: a torch device to put them on.
        dtype: what floating-point tensors are converted to: numpy's or torch's word.
        shard: (dimension, rank, world): of each tensor the part that `torch.chunk` would give to
            that rank. Tensors without that dimension come whole.
        planes: only so many of the most significant bytes of each number; the others are 0.
    """

    output: Output = "numpy"
    copy: bool = True
    device: Any = None
    dtype: Any = None
    shard: Shard | None = None
    planes: int | None = None

    def __post_init__(self) -> None:
        if self.output not in {"numpy", "torch"}:
            raise InvalidInputError(f"output {self.output!r}: expected 'numpy' or 'torch'")
        if self.device is not None and self.output != "torch":
            raise InvalidInputError("a device is torch's: give output='torch' with it")
        known = {
            "planes": None if self.planes is None else plane_count(self.planes),
            "shard": None if self.shard is None else share(self.shard),
            "dtype": None if self.dtype is None else float_type(self.dtype, self.output),
            "device": None if self.device is None else torch_device(self.device),
        }
        for name, value in known.items():
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

    def index(self, shape: tuple[int, ...]) -> Index | None:
        """The part of a tensor of that shape; None: all of it."""
        if self.shard is None or self.shard[0] >= len(shape):
            return None
        dim, rank, world = self.shard
        step = -(-shape[dim] // world)
        part = slice(min(rank * step, shape[dim]), min((rank + 1) * step, shape[dim]))
        return (*(slice(None),) * dim, part)


class TensorRead:
    """One tensor, or a part of it, being read."""

    def __init__(
        self,
        tensor: Tensor,
        wish: Wish,
        index: Index | None,
        pool: Executor,
        out: Any = None,
        after: Future[None] | None = None,
    ) -> None:
        """Begin.

        Args:
            tensor: where it lies.
            wish: how it is wanted.
            index: which part; None: all of it.
            pool: threads that read.
            out: memory for its bytes, when there is some already.
            after: what is waited for first; not in the same pool, where it may wait for threads.
        """
        self.name = tensor.name
        self._tensor, self._wish = tensor, wish
        self.shape = tensor.shape if index is None else _shape_of(tensor, index)
        self.size_bytes = tensor.type.bytes_of(self.shape)
        mapped = tensor.mapped() if wish.mapped and index is None else None
        if mapped is not None and isinstance(tensor, StoredFrames):
            self._data: memoryview = mapped
            work = [_checking(tensor, at, mapped) for at in range(len(tensor.frames))]
        else:
            self._data = np.empty(self.size_bytes, np.uint8).data if out is None else out
            work = list(tensor.fills(index, self._data, wish.planes))
        self._work: list[Future[None]] = [pool.submit(_behind(after, fill)) for fill in work]

    def when_done(self, tell: Callable[[], None]) -> None:
        """Call `tell` once nothing of it goes on any more, well or not: on any thread, or here."""
        left, lock = len(self._work), Lock()

        def one_less(_: Future[None]) -> None:
            nonlocal left
            with lock:
                left -= 1
                last = not left
            if last:
                tell()

        for future in self._work:
            future.add_done_callback(one_less)
        if not self._work:
            tell()

    def wait(self) -> None:
        """Return when all of it is there and verified."""
        for future in self._work:
            future.result()
        # Futures hold what is told when they are done, and that holds this: nobody else would let
        # go of the tensor's memory until the collector comes by.
        self._work = []

    def results(self) -> Iterator[tuple[str, Any]]:
        """The tensor as it is wanted, under its name."""
        yield self.name, self.result()

    def result(self) -> Any:
        """The tensor as it is wanted."""
        self.wait()
        data = self._data if self._wish.copy or not self._wish.mapped else self._data.toreadonly()
        try:
            return as_wanted(data, self._tensor.type, self.shape, self._wish)
        except UnsupportedError as error:
            raise UnsupportedError(f"tensor {self.name!r}: {error}") from error


class Reading(Protocol):
    """A read that goes on, and takes memory until its results are taken."""

    size_bytes: int

    def when_done(self, tell: Callable[[], None]) -> None: ...


def as_wanted(data: memoryview, element: TensorType, shape: tuple[int, ...], wish: Wish) -> Any:
    """Bytes as the array or the tensor that is wanted; they share memory where nothing changes."""
    if wish.output == "torch":
        made = torch_of(data, element, shape)
        dtype = wish.dtype if made.is_floating_point() or made.is_complex() else None
        return made if dtype is None and wish.device is None else made.to(wish.device, dtype)
    if wish.dtype is not None and element.numpy is None and element.name in ROUNDABLE:
        return _as_numbers(data, element, shape).astype(wish.dtype)
    array = array_of(data, element, shape)
    if wish.dtype is None or array.dtype.kind not in "fc":
        return array
    return array.astype(wish.dtype, copy=False)


def _as_numbers(data: memoryview, element: TensorType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers of a type that numpy lacks."""
    found = numbers(data, element)
    assert found is not None, "a type that can be rounded to is one of numbers"
    return found.reshape(shape)


def _shape_of(tensor: Tensor, index: Index) -> tuple[int, ...]:
    try:
        chosen = select(tensor.shape, index)
        chosen.in_blocks(tensor.type.block_elements)
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {tensor.name!r}: {error}") from error
    return chosen.shape


def _checking(tensor: StoredFrames, index: int, whole: memoryview) -> Callable[[], None]:
    return lambda: tensor.check_mapped(index, whole)


def _behind(first: Future[None] | None, fill: Callable[[], None]) -> Callable[[], None]:
    """`fill`, once that is over, well or not."""
    if first is None:
        return fill

    def both() -> None:
        wait([first])
        fill()

    return both


def as_done(reads: Iterable[R], limit_bytes: int) -> Iterator[R]:
    """Reads as they are done, in any order, while others go on.

    `limit_bytes` bounds what is begun and not handed out yet, beside the one in hand; a larger one
    is read alone.
    """
    done: SimpleQueue[R] = SimpleQueue()
    begun = ahead = 0
    for read in reads:
        begun, ahead = begun + 1, ahead + read.size_bytes
        read.when_done(partial(done.put, read))
        while ahead > limit_bytes or (begun and not done.empty()):
            found = done.get()
            begun, ahead = begun - 1, ahead - found.size_bytes
            yield found
            del found
    for _ in range(begun):
        yield done.get()
