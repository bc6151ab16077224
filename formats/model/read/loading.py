"""Loading of tensors: options, planned together, read by a pool in batches, verified.

Options are checked before anything is read, so that a typo is told in our words. Members are looked
up for all tensors at once, and memory is taken for each. A batch is what one task fetches, decodes
and verifies: many small tensors, so that Python does little for each; a large tensor is a batch of
its own, with a task for each run of frames.

Parameters and buffers of a torch module are filled where they lie, if type and device allow it.
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

from tensorrepo.formats.common.arguments import first_names, whole
from tensorrepo.formats.common.dtypes import NOT_A_DTYPE
from tensorrepo.formats.common.tensors import (
    TORCH_NAMES,
    TYPES_BY_TORCH_NAME,
    TensorOutput,
    TensorType,
    array_of,
    import_torch,
    torch_of,
)
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.manifest import TensorEntry
from tensorrepo.formats.model.layout.number_values import ROUNDABLE, numbers
from tensorrepo.formats.model.layout.pack import RAW
from tensorrepo.formats.model.read.frames import (
    PackReader,
    PiecedTensor,
    StoredFrames,
    read_together,
)
from tensorrepo.formats.model.read.selection import ElementIndex, select
from tensorrepo.formats.native.result_memory import new_result
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError

_BYTE: Final = np.dtype(np.uint8)
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
    kind = _torch_type(dtype) if output == "torch" else _numpy_type(dtype)
    name = str(kind).removeprefix("torch.") if output == "torch" else getattr(kind, "name", "")
    if kind is None or not name.startswith(_FLOATS):
        raise InvalidInputError(
            f"dtype {dtype!r:.60}: expected a type of floating-point numbers that {output} knows, "
            f"such as {_EXAMPLES}; other tensors are not converted"
        )
    return kind


def _torch_device(device: Any) -> Any:
    """The torch device that somebody names, once it is known to be there."""
    torch = import_torch("ask for numpy arrays")
    try:
        place = torch.device(device)
        if place.type != "meta":
            torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0] if isinstance(device, str) else "no device"
        raise InvalidInputError(
            f"device {device!r:.60}: {reason}. Expected one that torch has here, such as 'cpu' or "
            "'cuda:0'"
        ) from error
    return place


def _share(shard: Any) -> tuple[int, int, int]:
    try:
        dim, rank, world = (whole("shard", one) for one in shard)
    except (TypeError, ValueError):
        dim, rank, world = -1, 0, 0
    if dim < 0 or not 0 <= rank < world:
        raise InvalidInputError(
            f"shard {shard!r:.60}: expected (dim, rank < world, world), such as (0, 1, 4)"
        )
    return dim, rank, world


def _plane_count(planes: Any) -> int:
    try:
        return whole("planes", planes, 1)
    except InvalidInputError as error:
        raise InvalidInputError(
            f"planes={planes!r:.60}: expected at least 1: how many of the most significant bytes"
        ) from error


def _numpy_type(dtype: Any) -> Any:
    word = str(dtype)
    try:
        return np.dtype(word.removeprefix("torch.") if word.startswith("torch.") else dtype)
    except NOT_A_DTYPE:
        return None


def _torch_type(dtype: Any) -> Any:
    torch = import_torch("ask for numpy arrays")
    if isinstance(dtype, torch.dtype):
        return dtype
    plain = _numpy_type(dtype)
    name = plain.name if plain is not None else str(dtype).removeprefix("torch.")
    kind = getattr(torch, name, None)
    return kind if isinstance(kind, torch.dtype) else None


class NamedForm(Protocol):
    """What a stored tensor is made of."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def matching(
    state: Mapping[str, Any], stored: Mapping[str, NamedForm], strict: bool
) -> dict[str, Any]:
    """The torch tensors to be filled, by name of the stored tensor; each memory once.

    Raises:
        InvalidInputError: with `strict` other names or types, and always other shapes.
    """
    problems = [*_other_names(state, stored)] if strict else []
    targets: dict[str, Any] = {}
    seen: set[tuple[object, ...]] = set()
    for name in (name for name in state if name in stored):
        into = state[name]
        problem = _other_form(name, into, stored[name], strict)
        if problem is not None:
            problems.append(problem)
        place = into.device, into.data_ptr(), tuple(into.shape), tuple(into.stride()), into.dtype
        if place not in seen or not into.numel():
            seen.add(place)
            targets[name] = into
    if problems:
        raise InvalidInputError("; ".join(problems))
    return targets


def _other_names(state: Mapping[str, Any], stored: Mapping[str, Any]) -> Iterator[str]:
    missing, unexpected = state.keys() - stored.keys(), stored.keys() - state.keys()
    if missing:
        yield f"missing, which the module has: {first_names(sorted(missing))}"
    if unexpected:
        yield f"unexpected, which the module lacks: {first_names(sorted(unexpected))}"


def _other_form(name: str, into: Any, spec: NamedForm, strict: bool) -> str | None:
    if tuple(into.shape) != tuple(spec.shape):
        return (
            f"tensor {name!r}: stored with shape {tuple(spec.shape)}, the module's has "
            f"{tuple(into.shape)}"
        )
    if into.device.type == "meta":
        return (
            f"tensor {name!r}: the module has no memory for it (device 'meta'); "
            "module.to_empty(device='cpu') makes some, and "
            "module.load_state_dict(model.state_dict(), assign=True) needs none"
        )
    kind = str(into.dtype).removeprefix("torch.")
    wanted = TORCH_NAMES.get(spec.type.name, kind)
    if strict and wanted != kind:
        return (
            f"tensor {name!r}: stored as {wanted}, the module's is {kind}; strict=False converts, "
            "and so does module.to(dtype) before"
        )
    return None


def memory_of(into: Any, element: TensorType) -> memoryview | None:
    """The memory of a torch tensor, when stored bytes of that type can go there as they are."""
    alike = TYPES_BY_TORCH_NAME.get(str(into.dtype).removeprefix("torch.")) == element
    plain = into.device.type == "cpu" and into.is_contiguous() and element.block_elements == 1
    if not (alike and plain and into.numel()) or into.is_conj() or into.is_neg():
        return None
    import torch

    memory: memoryview = into.detach().reshape(-1).view(torch.uint8).numpy().data
    return memory


LoadableTensor = StoredFrames | PiecedTensor
R = TypeVar("R", bound="PendingRead")

SMALL_BYTES: Final = 4 << 20  # decoded; a larger tensor is a batch of its own
BATCH_BYTES: Final = 4 << 20
# To decode takes ten times as long as to copy: one thread would be left with the last batch.
ENCODED_BATCH_BYTES: Final = 1 << 20
REMOTE_BATCH_BYTES: Final = 8 << 20  # so many small tensors are fetched in one request
BATCH_TENSORS: Final = 1024


def open_tensors(
    packs: PackReader,
    entries: Mapping[str, TensorEntry],
    types: Mapping[str, TensorType],
    pool: Executor,
) -> Iterator[tuple[str, LoadableTensor]]:
    """Readers of tensors under the keys of `entries`, in the order in which they lie in packs.

    Where most is decoded here, those of several frames come first: `pool` has work while the others
    are looked up.
    """
    places = {key: packs.places(entry) for key, entry in entries.items()}
    later = sorted(entries, key=lambda key: places[key][:1])
    if packs.is_decoded_here:
        for key in later:
            entry = entries[key]
            if _has_frames(entry, types):
                packs.members.look_up(places[key])
                yield key, packs.tensor(entry, types[entry.type])
        later = [key for key in later if not _has_frames(entries[key], types)]
    packs.members.prepare(chain.from_iterable(places[key] for key in later), pool)
    for key in later:
        entry = entries[key]
        yield key, packs.tensor(entry, types[entry.type])


def _has_frames(entry: TensorEntry, types: Mapping[str, TensorType]) -> bool:
    """Whether a tensor has more than one."""
    element = types[entry.type]
    return element.bytes_of(entry.shape) > frame_bytes(element)


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
    if len(frames) > 1:
        return 0
    return ENCODED_BATCH_BYTES if frames and frames[0].codec != RAW else BATCH_BYTES


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
        """Begin with a batch as `batches` gives them, or with part `index` of a single tensor.

        `rooms` is memory for the bytes of tensors by key, where there is some already.
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
            new_result(element.units_shape(shape), element.units)
            if options.plain
            else new_result((element.bytes_of(shape),), _BYTE)
        )
    else:
        array = array_of(data, element, shape) if options.plain else np.frombuffer(data, np.uint8)
    return _Target(key, tensor, index, shape, array, data is not None and room is None)


def _tasks(targets: list[_Target], options: LoadOptions) -> Iterable[Callable[[], None]]:
    """What fills the arrays of a batch; in any order, on any thread."""
    first = targets[0]
    data = first.array.reshape(-1).view(np.uint8).data
    if options.whole and first.index is None and isinstance(first.tensor, StoredFrames):
        batch = [
            (one.tensor, one.array, one.is_mapped)
            for one in targets
            if isinstance(one.tensor, StoredFrames)
        ]
        if len(batch) == len(targets) and (len(batch) > 1 or len(first.tensor.frames) <= 1):
            return (partial(_read_batch, batch),)
        if first.is_mapped:
            size, tensor = frame_bytes(first.tensor.type), first.tensor
            return (
                partial(tensor.check, at, data[at * size : (at + 1) * size])
                for at in range(len(tensor.frames))
            )
    once = options.shard is not None
    return first.tensor.fills(first.index, data, options.planes, once=once)


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
        values = numbers(data, element)
        assert values is not None, "a type that can be rounded to is one of numbers"
        return values.reshape(shape).astype(options.dtype)
    array = array_of(data, element, shape)
    if options.dtype is None or array.dtype.kind not in "fc":
        return array
    return array.astype(options.dtype, copy=False)


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
            ready = done.get()
            begun, ahead = begun - 1, ahead - ready.size_bytes
            yield ready
            del ready
    for _ in range(begun):
        yield done.get()
