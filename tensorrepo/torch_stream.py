"""How does torch's own `DataLoader` read a stream, with any number of workers?

The loader takes batches from its workers in turns. So worker w of n makes the whole steps w, w + n
and so on: the order is that of the stream, whatever n is. Each worker reads and opens the pages of
its own steps, which are most pages of a shuffled window; the cache keeps the network at once.

torch is imported when an adapter is made, and not before.
"""

from __future__ import annotations

import multiprocessing
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.stream import Stream

# What all workers of a loader and its process share: `_CLAIM_WORKERS` of the loop `_CLAIM` use the
# place that was loaded.
_EPOCH, _CLAIM, _WORKERS, _CLAIM_WORKERS = range(4)


def torch_stream(stream: Stream) -> TorchStream:
    """An `IterableDataset` of torch over the batches of a stream.

    Raises:
        UnsupportedError: torch is not installed.
    """
    torch = _torch()
    shared = torch.zeros(4, dtype=torch.int64).share_memory_()
    shared[_EPOCH] = stream.epoch
    return _restored(stream, shared, 0)


class TorchStream:
    """Batches of a stream for torch's `DataLoader`, which must be told ``batch_size=None``.

    `set_epoch` counts for the next iteration, also of workers that persist. A state has to be
    loaded before the loader starts its workers.
    """

    def __init__(self, stream: Stream, shared: Any, turns: int) -> None:
        """Made by `torch_stream`.

        Args:
            stream: whose steps it gives.
            shared: int64 tensor in shared memory.
            turns: how many workers shared the steps where the stream is to go on; 0: any number.
        """
        self.stream = stream
        self._shared = shared
        self._turns = turns
        self._next: int | None = None  # where the next step of this worker begins

    def __len__(self) -> int:
        """Steps that are left of this epoch, of all workers together."""
        self._notice()
        return len(self.stream)

    def set_epoch(self, epoch: int) -> None:
        """Begin another pass over the data, in another order."""
        self._notice()
        self.stream.set_epoch(epoch)
        self._shared[_EPOCH] = epoch

    def __iter__(self) -> Iterator[Any]:
        info = _torch().utils.data.get_worker_info()
        self.stream.set_epoch(int(self._shared[_EPOCH]))
        if info is None:
            self._notice()
            return self._steps(0, 1)
        if self.stream.stored.options.workers == "process":
            raise InvalidInputError(
                "workers='process' was asked for, and a DataLoader with num_workers="
                f"{info.num_workers}: use one of them"
            )
        self._shared[_WORKERS] = info.num_workers
        if not self._claimed(_process_number() - info.id, info.num_workers):
            self.stream.stored.rewind()
        if not self._turns:
            return self._steps(info.id, info.num_workers)
        if self._turns != info.num_workers:
            raise InvalidInputError(
                f"this state was taken inside of a loader with {self._turns} workers, this one has "
                f"{info.num_workers}. For any number of workers, save "
                "`state_dict(position=batch.position)` of the last batch that was used."
            )
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
        if position is not None:
            return self.stream.state_dict(position)
        if _torch().utils.data.get_worker_info() is not None and self._next is not None:
            return self.stream.state_dict(self._next) | {"turns": int(self._shared[_WORKERS])}
        if self._shared[_WORKERS]:
            raise InvalidInputError(
                "the workers of a DataLoader read this stream ahead, so it does not know what was "
                "used: state_dict(position=batch.position) of the last batch"
            )
        return self.stream.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another stream of the same data stood.

        Raises:
            InvalidInputError: the state is of other data or another order.
        """
        plain = {name: value for name, value in state.items() if name != "turns"}
        self.stream.load_state_dict(plain)
        self._turns = int(state.get("turns", 0))
        self._next = None
        self._shared[_EPOCH] = self.stream.epoch
        self._shared[_CLAIM] = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.stream, self._shared, self._turns)

    def __repr__(self) -> str:
        return f"<torch dataset: {self.stream!r}>"

    def _notice(self) -> None:
        """Outside of workers: the place that was loaded is used up once some began there."""
        if self._shared[_CLAIM] and _torch().utils.data.get_worker_info() is None:
            self.stream.stored.rewind()
            self._turns = 0

    def _claimed(self, loop: int, workers: int) -> bool:
        """Whether the place that was loaded is for the workers of this `loop` over a loader.

        New workers begin every loop as copies of one object, but a state is for one loop only.
        Loops are told apart by the number of the process that is the first worker: `workers`
        processes follow each other, up to a few that somebody else begins in between. Seeds say
        nothing, since people set them anew before every loop.
        """
        if not self._shared[_CLAIM]:
            self._shared[_CLAIM_WORKERS] = workers
            self._shared[_CLAIM] = loop
        return bool(loop - self._shared[_CLAIM] < self._shared[_CLAIM_WORKERS])

    def _steps(self, turn: int, turns: int) -> Iterator[Any]:
        stored = self.stream.stored
        start, batch_size, rows = stored.start, stored.options.batch_size, stored.rows
        self._turns = 0
        self._next = min(start + turn * batch_size, rows)
        return self._counted(iter(stored.in_turn(turn, turns)), turns * batch_size, rows)

    def _counted(self, steps: Iterator[Any], stride: int, rows: int) -> Iterator[Any]:
        for step in steps:
            assert self._next is not None, "set before"
            self._next = min(self._next + stride, rows)
            yield step


def _restored(stream: Stream, shared: Any, turns: int) -> TorchStream:
    return _class()(stream, shared, turns)


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
