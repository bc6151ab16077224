"""Loading of tensors: planned together, read by a pool in batches, verified.

Members are looked up for all tensors at once, and memory is taken for each. A batch is what one
task fetches, decodes and verifies: many small tensors, so that Python does little for each; a
large tensor is a batch of its own, with a task for each run of frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType, array_of, torch_of
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.manifest import TensorEntry
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, numbers
from tensorrepo.formats.model.read.frames import (
    PackReader,
    PiecedTensor,
    StoredFrames,
    read_together,
)
from tensorrepo.formats.model.read.load_options import LoadOptions
from tensorrepo.formats.model.read.selection import ElementIndex, select
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError

LoadableTensor = StoredFrames | PiecedTensor
R = TypeVar("R", bound="PendingRead")

SMALL_BYTES: Final = 4 << 20  # decoded; a larger tensor is a batch of its own
BATCH_BYTES: Final = 4 << 20
REMOTE_BATCH_BYTES: Final = 8 << 20  # so many small tensors are fetched in one request
BATCH_TENSORS: Final = 1024


def open_tensors(
    packs: PackReader,
    entries: Mapping[str, TensorEntry],
    types: Mapping[str, TensorType],
    pool: Executor,
) -> Iterator[tuple[str, LoadableTensor]]:
    """Readers of tensors under the keys of `entries`, in the order in which they lie in packs."""
    places = {key: packs.places(entry) for key, entry in entries.items()}
    packs.members.prepare(chain.from_iterable(places.values()), pool)
    for key in sorted(entries, key=lambda key: places[key][:1]):
        entry = entries[key]
        yield key, packs.tensor(entry, types[entry.type])


def batches(
    tensors: Iterable[tuple[str, LoadableTensor]], most_bytes: int = REMOTE_BATCH_BYTES
) -> Iterator[list[tuple[str, LoadableTensor]]]:
    """Tensors that are read by one task: small ones, up to `most_bytes` of them; others alone."""
    batch: list[tuple[str, LoadableTensor]] = []
    batch_bytes = 0
    for key, tensor in tensors:
        limit, size = _batch_limit(tensor), tensor.size_bytes
        if size > min(limit, SMALL_BYTES):
            yield [(key, tensor)]
            continue
        if batch and (batch_bytes + size > min(limit, most_bytes) or len(batch) == BATCH_TENSORS):
            yield batch
            batch, batch_bytes = [], 0
        batch.append((key, tensor))
        batch_bytes += size
    if batch:
        yield batch


def _batch_limit(tensor: LoadableTensor) -> int:
    """Bytes of a batch that a tensor may be part of; 0 where it is read alone."""
    if not isinstance(tensor, StoredFrames):
        return 0
    frames = tensor.frames
    if frames and not tensor.members.local[frames[0].place[0]]:
        return REMOTE_BATCH_BYTES
    # On a local disk several frames are better read side by side.
    return BATCH_BYTES if len(frames) <= 1 else 0


class _Target(msgspec.Struct, eq=False, gc=False):
    """A tensor, or a part of it, and the array that its bytes come to."""

    key: str
    tensor: LoadableTensor
    index: ElementIndex | None
    shape: tuple[int, ...]
    array: Any
    is_mapped: bool


class TensorRead:
    """Tensors being read: several small ones by one task, or one by a task for each part."""

    def __init__(
        self,
        batch: list[tuple[str, LoadableTensor]],
        options: LoadOptions,
        pool: Executor,
        *,
        index: ElementIndex | None = None,
        rooms: Mapping[str, memoryview] | None = None,
    ) -> None:
        """Begin.

        Args:
            batch: tensors by key, as `batches` gives them; one, where only a part is wanted.
            options: how they are loaded.
            pool: threads that read.
            index: part of the tensor, instead of that which `options` says.
            rooms: memory for the bytes of tensors by key, where there is some already.
        """
        # Memory is taken here and not by the task: what other threads take, malloc gives back to
        # the system as soon as it is free, and the next model's pages are new ones.
        room_of = (rooms or {}).get
        self._options = options
        self._targets = [
            _target(key, tensor, options, index, room_of(key)) for key, tensor in batch
        ]
        self.size_bytes = sum(
            target.array.nbytes for target in self._targets if room_of(target.key) is None
        )
        tasks = _tasks(self._targets, options)
        self._work: list[Future[None]] = [pool.submit(task) for task in tasks]

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

    def results(self) -> Iterator[tuple[str, Any]]:
        """Tensors under their keys, once all are there; each is let go of with the next."""
        for future in self._work:
            future.result()
        # Futures hold what is told when they are done, and that holds this: nobody else would let
        # go of the tensors' memory until the collector comes by.
        self._work = []
        targets, self._targets = self._targets[::-1], []
        while targets:
            yield targets[-1].key, _loaded(targets.pop(), self._options)


class PendingRead(Protocol):
    """A read that goes on, and takes memory until its results are taken."""

    size_bytes: int

    def when_done(self, tell: Callable[[], None]) -> None: ...


def _target(
    key: str,
    tensor: LoadableTensor,
    options: LoadOptions,
    index: ElementIndex | None,
    room: memoryview | None,
) -> _Target:
    element, shape = tensor.type, tensor.shape
    if index is None and options.shard is not None:
        index = options.index(shape)
    if index is not None:
        shape = _shape_of(tensor, index)
    data = room
    if not options.copy and options.mapped and index is None:
        data = tensor.mapped()
    if data is None:
        array = (
            np.empty(element.units_shape(shape), element.units)
            if options.plain
            else np.empty(element.bytes_of(shape), np.uint8)
        )
    else:
        array = array_of(data, element, shape) if options.plain else np.frombuffer(data, np.uint8)
    return _Target(key, tensor, index, shape, array, data is not None and room is None)


def _tasks(targets: list[_Target], options: LoadOptions) -> Iterable[Callable[[], None]]:
    """What fills the arrays of a batch; in any order, on any thread."""
    first = targets[0]
    if options.whole and first.index is None and isinstance(first.tensor, StoredFrames):
        batch = [
            (one.tensor, one.array, one.is_mapped)
            for one in targets
            if isinstance(one.tensor, StoredFrames)
        ]
        if len(batch) == len(targets) and (len(batch) > 1 or len(first.tensor.frames) <= 1):
            return (partial(_read_batch, batch),)
        if first.is_mapped:
            return _checks(first.tensor, first.array.reshape(-1).view(np.uint8).data)
    return first.tensor.fills(
        first.index, first.array.reshape(-1).view(np.uint8).data, options.planes
    )


def _checks(tensor: StoredFrames, whole: memoryview) -> Iterator[Callable[[], None]]:
    size = frame_bytes(tensor.type)
    for index in range(len(tensor.frames)):
        yield partial(tensor.check, index, whole[index * size : (index + 1) * size])


def _read_batch(wanted: list[tuple[StoredFrames, Any, bool]]) -> None:
    members = wanted[0][0].members
    remote = [
        tensor.frames
        for tensor, _, _ in wanted
        if tensor.frames and not members.local[tensor.frames[0].place[0]]
    ]
    if len(remote) > 1:
        with suppress(Error):  # the reads of each tensor ask themselves then
            members.keep(placed.place for frames in remote for placed in frames)
    read_together(members, wanted)


def _loaded(target: _Target, options: LoadOptions) -> Any:
    """The array, or the tensor that is made of it; they share memory where nothing changes."""
    array = target.array
    if not options.copy and options.mapped:
        array.flags.writeable = False
    if options.plain:
        return array
    try:
        return as_wanted(array.data, target.tensor.type, target.shape, options)
    except UnsupportedError as error:
        raise UnsupportedError(f"tensor {target.tensor.name!r}: {error}") from error


def as_wanted(
    data: memoryview, element: TensorType, shape: tuple[int, ...], options: LoadOptions
) -> Any:
    """Bytes as the array or the tensor asked for; they share memory where nothing changes."""
    if options.output == "torch":
        made = torch_of(data, element, shape)
        dtype = options.dtype if made.is_floating_point() or made.is_complex() else None
        return made if dtype is None and options.device is None else made.to(options.device, dtype)
    if options.dtype is not None and element.numpy is None and element.name in ROUNDABLE:
        return _as_numbers(data, element, shape).astype(options.dtype)
    array = array_of(data, element, shape)
    if options.dtype is None or array.dtype.kind not in "fc":
        return array
    return array.astype(options.dtype, copy=False)


def _as_numbers(data: memoryview, element: TensorType, shape: tuple[int, ...]) -> NDArray[Any]:
    """Numbers of a type that numpy lacks."""
    found = numbers(data, element)
    assert found is not None, "a type that can be rounded to is one of numbers"
    return found.reshape(shape)


def _shape_of(tensor: LoadableTensor, index: ElementIndex) -> tuple[int, ...]:
    try:
        chosen = select(tensor.shape, index)
        chosen.in_blocks(tensor.type.block_elements)
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {tensor.name!r}: {error}") from error
    return chosen.shape


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
