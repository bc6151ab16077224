"""How does torch's own `DataLoader` read a stream, with any number of workers?

The loader takes batches from its workers in turns. So worker w of n makes the whole steps w, w + n
and so on: the order is that of the stream, whatever n is. Each worker reads and opens the pages of
its own steps, which are most pages of a shuffled window; the cache keeps the network at once.

torch is imported when an adapter is made, and not before.
"""

from __future__ import annotations

import multiprocessing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.dataset.stream import Stream as StoredStream
    from tensorrepo.stream import Stream

# What all workers of a loader and its process share: `_CLAIM_WORKERS` of the loop `_CLAIM` use the
# place that was loaded.
_EPOCH, _CLAIM, _WORKERS, _LOADS, _CLAIM_WORKERS = range(5)
_OF_A_WORKER = ("turns", "batch_size")  # in the state of a worker only


class Loading:
    """What a stream, the loaders that read it, and their workers know together.

    Attributes:
        shared: int64 tensor in shared memory; None until there is something for a loader.
        turns: how many workers shared the steps where the stream is to go on; 0: any number.
        loads: how many states this process knows to have been loaded.
        evaluates: what is read is for measuring models, not for training them.
    """

    def __init__(self) -> None:
        """Nothing is shared yet."""
        self.shared: Any = None
        self.turns = self.loads = 0
        self.evaluates = False

    def begin(self, epoch: int) -> None:
        """Share what the workers of loaders have to know.

        Raises:
            UnsupportedError: torch is not installed.
        """
        if self.shared is None:
            torch = _torch()
            self.shared = torch.zeros(5, dtype=torch.int64).share_memory_()
            self.shared[_EPOCH] = epoch

    def notice(self, stored: StoredStream) -> None:
        """Outside of workers: the place that was loaded is used up once some began there."""
        if stored.start and self.shared is not None and self.shared[_CLAIM] and _worker() is None:
            stored.rewind()
            self.turns = 0

    def set_epoch(self, epoch: int) -> None:
        """Let workers begin `epoch` with their next loop."""
        if self.shared is not None:
            self.shared[_EPOCH] = epoch

    def load(self, epoch: int, turns: int = 0) -> None:
        """A state of `epoch` was loaded, for one loop."""
        self.turns = turns
        if self.shared is None:
            return
        self.shared[_EPOCH] = epoch
        self.shared[_CLAIM] = 0
        if _worker() is None:
            self.shared[_WORKERS] = 0
            self.shared[_LOADS] += 1
            self.loads = int(self.shared[_LOADS])

    def missed(self) -> bool:
        """In a worker: whether a state was loaded since it began, which it has not got."""
        return bool(self.loads != self.shared[_LOADS])

    def read_here(self) -> None:
        """Outside of workers: whoever reads next knows what was used."""
        if self.shared is not None and _worker() is None:
            self.shared[_WORKERS] = 0

    def check_place(self) -> None:
        """See that it is known in this process what was used.

        Raises:
            InvalidInputError: workers read.
        """
        if self.shared is not None and self.shared[_WORKERS]:
            raise InvalidInputError(
                "the workers of a DataLoader read this stream ahead, so it does not know what was "
                "used: state_dict(position=batch.position) of the last batch"
            )


def torch_stream(stream: Stream) -> TorchStream:
    """An `IterableDataset` of torch over the batches of a stream.

    Raises:
        UnsupportedError: torch is not installed.
    """
    stream.loading.begin(stream.epoch)
    return _class()(stream)


class TorchStream:
    """Batches of a stream for torch's `DataLoader`, which must be told ``batch_size=None``.

    `set_epoch` and `load_state_dict` are those of the stream: it does not matter on which of both
    they are called. An epoch counts for the next iteration, also of workers that persist. A state
    has to be loaded before the loader starts its workers.
    """

    def __init__(self, stream: Stream) -> None:
        """Made by `torch_stream`, which gives the steps of `stream`."""
        self.stream = stream
        self._next: int | None = None  # where the next step of this worker begins

    def __len__(self) -> int:
        """Steps that are left of this epoch, of all workers together."""
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        """Begin another pass over the data, in another order."""
        self.stream.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        info, loading, stored = _worker(), self.stream.loading, self.stream.stored
        stored.set_epoch(int(loading.shared[_EPOCH]))
        if info is None:
            loading.notice(stored)
            loading.read_here()
            _check_turns(loading.turns, 0)
            return self._steps(0, 1)
        if stored.options.workers == "process":
            raise InvalidInputError(
                "workers='process' was asked for, and a DataLoader with num_workers="
                f"{info.num_workers}: use one of them"
            )
        if loading.missed():
            # Of a worker that persists, torch hands over what its steps raise, not what this does.
            return map(_missed, [None])
        loading.shared[_WORKERS] = info.num_workers
        if not self._claimed(_process_number() - info.id, info.num_workers):
            stored.rewind()
        if not loading.turns:
            return self._steps(info.id, info.num_workers)
        _check_turns(loading.turns, info.num_workers)
        return self._steps(0, info.num_workers)  # its place is that of its own next step

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Where reading stands: one state for all ranks and any number of workers.

        Args:
            position: `batch.position` of the batch used last; needed where the loader has workers,
                which read ahead. Inside of a worker (`StatefulDataLoader` asks there) None gives
                the worker's own place, for a loader with as many workers.

        Raises:
            InvalidInputError: workers read, and no position was given.
        """
        if position is None and self._next is not None and _worker() is not None:
            loading, options = self.stream.loading, self.stream.stored.options
            own = {"turns": int(loading.shared[_WORKERS]), "batch_size": options.batch_size}
            return self.stream.state_dict(self._next) | own
        return self.stream.state_dict(position)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same data stood.

        Raises:
            InvalidInputError: the state is of other data or another order, or of a worker that
                made steps of another size.
        """
        if isinstance(state, dict) and state.get("turns"):
            self._check_worker(state)
            plain = {name: value for name, value in state.items() if name not in _OF_A_WORKER}
            self.stream.load_state_dict(plain)
            self.stream.loading.load(self.stream.epoch, int(state["turns"]))
        else:
            self.stream.load_state_dict(state)
        self._next = None

    def __reduce__(self) -> tuple[Any, ...]:
        loading = self.stream.loading
        return _restored, (self.stream, loading.shared, loading.turns, loading.loads)

    def __repr__(self) -> str:
        return f"<torch dataset: {self.stream!r}>"

    def _check_worker(self, state: dict[str, Any]) -> None:
        """See that the steps of a worker's own place are those of this stream."""
        found, own = state.get("batch_size"), self.stream.stored.options.batch_size
        if found != own:
            raise InvalidInputError(
                f"this state was taken inside of a loader's worker, amid steps of {found} rows, "
                f"and this stream has batch_size={own}: rows would be missing, and others come "
                f"twice. Resume with batch_size={found}. For any batch size and number of workers, "
                "save `stream.state_dict(position=batch.position)` of the last batch that was used."
            )

    def _claimed(self, loop: int, workers: int) -> bool:
        """Whether the place that was loaded is for the workers of this `loop` over a loader.

        New workers begin every loop as copies of one object, but a state is for one loop only.
        Loops are told apart by the number of the process that is the first worker: `workers`
        processes follow each other, up to a few that somebody else begins in between. Seeds say
        nothing, since people set them anew before every loop.
        """
        shared = self.stream.loading.shared
        if not shared[_CLAIM]:
            shared[_CLAIM_WORKERS] = workers
            shared[_CLAIM] = loop
        return bool(loop - shared[_CLAIM] < shared[_CLAIM_WORKERS])

    def _steps(self, turn: int, turns: int) -> Iterator[Any]:
        stored = self.stream.stored
        start, batch_size, rows = stored.start, stored.options.batch_size, stored.rows
        self.stream.loading.turns = 0
        self._next = min(start + turn * batch_size, rows)
        return self._counted(iter(stored.in_turn(turn, turns)), turns * batch_size, rows)

    def _counted(self, steps: Iterator[Any], stride: int, rows: int) -> Iterator[Any]:
        for step in steps:
            assert self._next is not None, "set before"
            self._next = min(self._next + stride, rows)
            yield step


def _restored(stream: Stream, shared: Any, turns: int, loads: int) -> TorchStream:
    loading = stream.loading
    loading.shared, loading.turns, loading.loads = shared, turns, loads
    return _class()(stream)


def _missed(_first_step: object) -> NoReturn:
    raise InvalidInputError(
        "a state was loaded while the workers of this DataLoader persist, and they do not learn of "
        "it: load it before the loader's first loop, or make another loader"
    )


def _check_turns(taken: int, workers: int) -> None:
    """See that a place of one of `taken` workers is for a loader with as many."""
    if taken not in (0, workers):
        raise InvalidInputError(
            f"this state was taken inside of a loader with {taken} workers, this one has "
            f"{workers}. For any number of workers, save "
            "`stream.state_dict(position=batch.position)` of the last batch that was used."
        )


def _worker() -> Any:
    """What torch says of the worker that this is; None outside of workers."""
    return _torch().utils.data.get_worker_info()


def _process_number() -> int:
    """How many processes the parent of this one had begun with it."""
    number: int = multiprocessing.current_process()._identity[-1]  # noqa: SLF001  its name says it
    return number


@lru_cache(maxsize=1)
def _class() -> type[TorchStream]:
    """`TorchStream` as the `IterableDataset` that a `DataLoader` looks for."""
    return type("TorchStream", (TorchStream, _torch().utils.data.IterableDataset), {})


def _torch() -> Any:
    try:
        import torch.utils.data
    except ImportError as error:
        raise UnsupportedError(
            "a DataLoader needs torch, which is not installed: `pip install 'tensorrepo[torch]'`"
        ) from error
    return torch
