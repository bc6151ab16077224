"""Worker process that makes batches, which come over without being copied.

    child:  stream -> decode, transform -> copy into a free block -> say which
    parent: views of that block -> the training loop -> the block is free with the last view

The child is started by `spawn` and gets what it works on as `multiprocessing` passes it: classes
and functions by their names. What comes back is described by `shared_batch`, never pickled. A few
blocks of shared memory go round; when the caller keeps more than some of them, batches are copied.

The child ends when it is told to, and when its parent is gone, however that ended.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.reduction import ForkingPickler
from queue import LifoQueue
from threading import Thread
from typing import Any

import msgspec

from tensorrepo.formats.dataset.streaming.collate.batch import Identify
from tensorrepo.formats.dataset.streaming.collate.outputs import OutputForm
from tensorrepo.formats.dataset.streaming.collate.shared_batch import (
    BatchFrame,
    SharedBlock,
    read_frame,
)
from tensorrepo.repo import errors
from tensorrepo.repo.errors import Error, InvalidInputError

_BLOCKS = 6
_LENT_BLOCKS = 3  # that the user may keep; what is kept beyond them is copied
_STOP = b"stop"
_ALIVE_SECONDS = 1.0  # how often the child looks whether its parent is there
_END_SECONDS = 5.0  # what a child may take to end by itself

MadeItem = tuple[int, Any, dict[str, Any]]  # position, what is handed out, statistics up to there

_PARTS = "the position", "what the transform returned", "the statistics"


# What the child does. Passed to it, so whatever it consists of must be found by name there.
WorkerMain = Callable[[], Generator[MadeItem, None, None]]


class _Ready(msgspec.Struct, tag=True, array_like=True):
    """A frame lies in a block."""

    block: int
    capacity: int
    frame_bytes: int
    description_at: int
    description_bytes: int


class _Failed(msgspec.Struct, tag=True, array_like=True):
    kind: str
    message: str
    trace: str


class _Ended(msgspec.Struct, tag=True, array_like=True):
    pass


_Message = _Ready | _Failed | _Ended
_DECODER: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class ProcessItems:
    """Items (see `pipeline`) that a process of its own makes. It starts with the first one."""

    def __init__(
        self,
        errand: WorkerMain,
        *,
        identify: Identify,
        finish: Callable[[Any], Any],
        stats_moved: Callable[[dict[str, Any]], None],
    ) -> None:
        """Prepare.

        Args:
            errand: what the child does.
            identify: finds the row ids of batches, in this process.
            finish: makes of what came over what is handed out, in this process.
            stats_moved: told what the child counted, with every item.
        """
        self._errand = errand
        self._identify = identify
        self._finish = finish
        self._stats_moved = stats_moved
        self._blocks: list[SharedBlock] = []
        self._returned: deque[int] = deque()
        self._lent = 0
        self._process: Any = None
        self._closed = False

    def __iter__(self) -> ProcessItems:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        if self._closed:
            raise StopIteration
        if self._process is None:
            self._start()
        self._give_back()
        message = self._receive()
        if isinstance(message, _Ready):
            position, item, stats = self._read(message)
            self._stats_moved(stats)
            return [(position, self._finish(item))]
        self.close()
        if isinstance(message, _Failed):
            raise _as_error(message)
        raise StopIteration

    def close(self) -> None:
        """End the process. What was handed out stays valid. Safe to call more than once."""
        closed, self._closed = self._closed, True
        if closed or self._process is None:
            return
        with suppress(OSError):  # it is gone already
            self._returns.send_bytes(_STOP)
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        for block in self._blocks:
            block.close()

    def _start(self) -> None:
        if multiprocessing.current_process().daemon:
            raise InvalidInputError(
                "workers='process' was asked for inside of a worker process, which must not start "
                "others: use workers='thread' there."
            )
        errand = _packed(self._errand)
        context = multiprocessing.get_context("spawn")
        with ExitStack() as theirs, ExitStack() as ours:  # given back should one of them fail
            self._results, results = _pipe(context, ours, theirs)
            returns, self._returns = _pipe(context, theirs, ours)
            blocks = [_block(ours) for _ in range(_BLOCKS)]
            process = context.Process(
                target=_serve,
                args=(errand, blocks, results, returns),
                name="tensorrepo-stream",
                daemon=True,
            )
            process.start()
            ours.pop_all()
        self._blocks, self._process = blocks, process

    def _receive(self) -> _Message:
        with suppress(EOFError, OSError):  # the child ended without a word
            ready = wait([self._results, self._process.sentinel])
            if self._results in ready or self._results.poll():
                return _DECODER.decode(self._results.recv_bytes())
        if self._closed:
            return _Ended()
        self._process.join(_END_SECONDS)
        return _Failed(Error.__name__, _death(self._process.exitcode), "")

    def _read(self, ready: _Ready) -> MadeItem:
        block = self._blocks[ready.block]
        block.map(ready.capacity)
        if self._lent < _LENT_BLOCKS:
            self._lent += 1
            memory = block.lend(ready.frame_bytes, partial(self._returned.append, ready.block))
        else:
            memory = block.memory[: ready.frame_bytes].copy()
            with suppress(OSError):
                self._returns.send_bytes(bytes([ready.block]))
        position, item, stats = read_frame(
            memory, ready.description_at, ready.description_bytes, self._identify
        )
        return position, item, stats

    def _give_back(self) -> None:
        """Let the child use blocks again that nobody here refers to any more.

        That is noticed wherever the last reference dies, maybe amid a collection of garbage; so
        it is only noted there, and sent from here.
        """
        free = bytearray()
        while self._returned:
            free.append(self._returned.popleft())
        self._lent -= len(free)
        if free:
            with suppress(OSError):  # the child is gone; `_receive` says so
                self._returns.send_bytes(bytes(free))


def _pipe(
    context: SpawnContext, reads: ExitStack, writes: ExitStack
) -> tuple[Connection, Connection]:
    """Both ends of a pipe, each of which a stack closes."""
    reader, writer = context.Pipe(duplex=False)
    return reads.enter_context(reader), writes.enter_context(writer)


def _block(closed_by: ExitStack) -> SharedBlock:
    block = SharedBlock()
    closed_by.callback(block.close)
    return block


def _serve(
    errand: bytes, blocks: list[SharedBlock], results: Connection, returns: Connection
) -> None:
    """The life of the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both: the parent decides
    # The newest first: the None that ends it comes before blocks that are free.
    free: LifoQueue[int | None] = LifoQueue()
    for number in range(len(blocks)):
        free.put(number)
    Thread(target=_listen, args=(returns, free, os.getppid()), daemon=True).start()
    try:
        made = _unpacked(errand)()  # here, so that what fails in it is told
        try:
            for item in made:
                if (free_block := free.get()) is None:
                    return
                ready = _written(item, free_block, blocks[free_block])
                results.send_bytes(msgspec.msgpack.encode(ready))
        finally:
            made.close()
        last: _Message = _Ended()
    except BaseException as error:  # noqa: BLE001  the parent raises it
        last = _Failed(type(error).__name__, str(error), traceback.format_exc())
    with suppress(OSError):  # nobody listens any more
        results.send_bytes(msgspec.msgpack.encode(last))


def _written(made: MadeItem, number: int, block: SharedBlock) -> _Ready:
    frame = BatchFrame(made, _PARTS)
    block.grow(frame.bytes)
    frame.write(block.memory)
    return _Ready(
        number, block.capacity, frame.bytes, frame.description_at, frame.description_bytes
    )


def _listen(returns: Connection, free: LifoQueue[int | None], parent: int) -> None:
    """Take blocks back, and end this process at once when its parent is gone."""
    try:
        while True:
            while not returns.poll(_ALIVE_SECONDS):
                if os.getppid() != parent:
                    os._exit(1)
            message = returns.recv_bytes()
            for block in [None] if message == _STOP else message:
                free.put(block)
    except (EOFError, OSError):
        os._exit(1)


def _packed(errand: WorkerMain) -> bytes:
    """The errand as `multiprocessing` passes it on, names instead of code."""
    try:
        return bytes(ForkingPickler.dumps(errand))
    except Exception as error:
        raise InvalidInputError(
            f"workers='process' could not pass the work to a process: {error}. Functions, such as "
            "the transform, must be found by name in a module: no lambda, nothing defined inside "
            "of a function. Or use workers='thread'."
        ) from error


def _unpacked(packed: bytes) -> WorkerMain:
    """The errand, as the child finds its names."""
    try:
        errand: WorkerMain = ForkingPickler.loads(packed)
    except (AttributeError, ModuleNotFoundError) as error:
        raise InvalidInputError(
            f"workers='process' did not find there what it was passed: {error}. Put functions, "
            "such as the transform, into a module that can be imported: what a notebook or a "
            "prompt defines is in its own process only. Or use workers='thread'."
        ) from error
    return errand


def _as_error(failed: _Failed) -> Exception:
    """What the child raised, of the same class where it is ours or Python's."""
    error: Exception | None = None
    kind = getattr(errors, failed.kind, None) or getattr(builtins, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration:
        with suppress(TypeError):  # it wants more than a message
            error = kind(failed.message)
    if error is None:
        error = RuntimeError(f"{failed.kind}: {failed.message}")
    if failed.trace:
        error.add_note("In the process of the stream:\n" + failed.trace)
    return error


def _death(code: int | None) -> str:
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited ({code})"
    return (
        f"the process that makes this stream's batches {how} before it was done. Signal 9 may be "
        "the system's answer to too little memory: give a smaller window. Where the process "
        "exited at once, see what it printed; a script that streams with workers='process' needs "
        "its code under `if __name__ == '__main__':`."
    )


@dataclass(frozen=True, slots=True)
class StreamWorker:
    """Every `turns`-th step from `state` on, beginning with number `turn`."""

    remake: Callable[..., Any]  # gives a stream
    output: OutputForm
    state: dict[str, Any]
    turn: int
    turns: int

    def __call__(self) -> Generator[MadeItem, None, None]:
        # A GPU, and memory for it, belong to the process that trains: JAX never starts here.
        output = "numpy" if self.output == "jax" else self.output
        stream = self.remake(workers="thread", output=output, pin=False)
        stream.load_state_dict(self.state)
        with closing(stream.in_turn(self.turn, self.turns, quiet=True)) as items:
            for item in items:
                yield stream.position, item, asdict(stream.stats())
