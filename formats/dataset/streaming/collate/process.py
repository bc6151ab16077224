"""Worker process that makes batches, which come over in shared memory and without pickle.

    child:  stream -> decode, transform -> copy into a free block -> say which
    parent: views of that block -> the training loop -> the block is free with the last view

The child is started by `spawn` and gets what it works on as `multiprocessing` passes it: classes
and functions by their names. What comes back is a frame (`batch_frame`). A few blocks of shared
memory (`shared_block`) go round; when the caller keeps more than some of them, batches are copied.

The child ends when it is told to, and when its parent is gone, however that ended. One that has
made a whole epoch waits for the next: what it works on is unpickled anew for each, so an epoch is
the same in a new process and in one that was kept.
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
from dataclasses import asdict
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnContext
from multiprocessing.reduction import ForkingPickler
from queue import LifoQueue, SimpleQueue
from threading import Thread
from typing import Any

import msgspec

from tensorrepo.formats.dataset.streaming.collate.batch import Identify, OutputForm
from tensorrepo.formats.dataset.streaming.collate.batch_frame import BatchFrame, read_frame
from tensorrepo.formats.dataset.streaming.collate.shared_block import SharedBlock
from tensorrepo.formats.dataset.streaming.collate.turns import WorkerDied
from tensorrepo.repo import errors
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, WorkerLostError

_BLOCKS = 6
_LENT_BLOCKS = 3  # that the user may keep; what is kept beyond them is copied
_STOP = b"stop"  # like the next one, it begins with what is no number of a block
_ERRAND = b"errand:"
_ALIVE_SECONDS = 1.0  # how often the child looks whether its parent is there
_END_SECONDS = 5.0  # what a child may take to end by itself

MadeItem = tuple[int, Any, dict[str, Any]]  # position, what is handed out, statistics up to there

MADE_PARTS = "the position", "what the transform returned", "the statistics"


# What the child does. Passed to it, so whatever it consists of must be found by name there.
WorkerMain = Callable[[], Generator[MadeItem, None, None]]


class FrameReady(msgspec.Struct, tag=True, array_like=True):
    """A frame lies in a block."""

    block: int
    capacity: int
    frame_bytes: int
    description_at: int
    description_bytes: int


class WorkFailed(msgspec.Struct, tag=True, array_like=True):
    """What a worker raised."""

    kind: str
    message: str
    trace: str


class WorkEnded(msgspec.Struct, tag=True, array_like=True):
    """No step is left."""


WorkerMessage = FrameReady | WorkFailed | WorkEnded
MESSAGES: msgspec.msgpack.Decoder[WorkerMessage] = msgspec.msgpack.Decoder(WorkerMessage)


class KeptProcess:
    """Processes of an epoch that was read to its end: they wait here for the next one."""

    def __init__(self, most: int = 1) -> None:
        """Let no more than `most` wait."""
        self._most = most
        self._waiting: deque[_Child] = deque()

    def begin(self, errand: bytes) -> _Child:
        """A process that works on `errand`: the one that waits, or else a new one."""
        with suppress(IndexError):
            child = self._waiting.pop()
            if child.begin(errand):
                return child
            child.end()
        return _Child(errand)

    def keep(self, child: _Child) -> None:
        """Let `child`, which has done its errand, wait."""
        self._waiting.append(child)
        while len(self._waiting) > self._most:
            self._waiting.popleft().end()

    def close(self) -> None:
        """End the processes that wait. Safe to call at any time."""
        while self._waiting:
            self._waiting.pop().end()


class ProcessItems:
    """Items (see `pipeline`) that a process of its own makes. It starts with the first one."""

    def __init__(
        self,
        errand: WorkerMain,
        *,
        identify: Identify,
        finish: Callable[[Any], Any],
        stats_moved: Callable[[dict[str, Any]], None],
        kept: KeptProcess | None = None,
    ) -> None:
        """Prepare for the `errand` of a child; the rest is called in this process.

        `identify` finds the row ids of batches, `finish` makes the last change to what came over,
        and `stats_moved` is told with every item what the child counted. The child comes from
        `kept`, and goes there when it has made all items.
        """
        self._errand = errand
        self._identify = identify
        self._finish = finish
        self._stats_moved = stats_moved
        self._kept = kept
        self._child: _Child | None = None
        self._closed = False

    def __iter__(self) -> ProcessItems:
        return self

    def __next__(self) -> list[tuple[int, Any]]:
        if self._closed:
            raise StopIteration
        self.start()
        child = self._child
        assert child is not None, "it was started"
        try:
            message = child.receive()
        except WorkerDied:
            self.close()
            raise
        if isinstance(message, FrameReady):
            position, item, stats = child.read(message, self._identify)
            self._stats_moved(stats)
            return [(position, self._finish(item))]
        if isinstance(message, WorkEnded) and self._kept is not None and not self._closed:
            self._closed = True
            self._kept.keep(child)
        self.close()
        if isinstance(message, WorkFailed):
            raise as_error(message)
        raise StopIteration

    def close(self) -> None:
        """End the process. What was handed out stays valid. Safe to call more than once."""
        closed, self._closed = self._closed, True
        if not closed and self._child is not None:
            self._child.end()

    def start(self) -> None:
        """Let the process begin, if it has not."""
        if self._child is not None or self._closed:
            return
        if multiprocessing.current_process().daemon:
            raise InvalidInputError(
                "workers='process' was asked for inside of a worker process, which must not start "
                "others: use workers='thread' there."
            )
        errand = _packed(self._errand)
        self._child = _Child(errand) if self._kept is None else self._kept.begin(errand)


class _Child:
    """A process that works on one errand after the other, and the memory shared with it."""

    def __init__(self, errand: bytes) -> None:
        """Start the process, which begins with `errand`."""
        self._returned: deque[int] = deque()
        self._lent = 0
        self._owner = os.getpid()
        self._ended = False
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

    def begin(self, errand: bytes) -> bool:
        """Have it work on `errand`, as it waits for one; False where it is gone."""
        if os.getpid() != self._owner or not self._process.is_alive():
            return False
        with suppress(OSError):
            self._returns.send_bytes(_ERRAND + errand)
            return True
        return False

    def end(self) -> None:
        """End the process. What was handed out stays valid."""
        ended, self._ended = self._ended, True
        if ended or os.getpid() != self._owner:  # a fork has a copy, and no say
            return
        with suppress(OSError):  # it is gone already
            self._returns.send_bytes(_STOP)
        self._process.join(_END_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        for block in self._blocks:
            block.close()

    def receive(self) -> WorkerMessage:
        self._give_back()
        with suppress(EOFError, OSError):  # the child ended without a word
            ready = wait([self._results, self._process.sentinel])
            if self._results in ready or self._results.poll():
                return MESSAGES.decode(self._results.recv_bytes())
        if self._ended:
            return WorkEnded()
        self._process.join(_END_SECONDS)
        code = self._process.exitcode
        if code is not None and code < 0:
            raise WorkerDied(_death(code))
        # Another one would exit as well.
        return WorkFailed(WorkerLostError.__name__, _death(code), "")

    def read(self, ready: FrameReady, identify: Identify) -> MadeItem:
        """What lies in a block, whose rows `identify` names."""
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
            memory, ready.description_at, ready.description_bytes, identify
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
            with suppress(OSError):  # the child is gone; `receive` says so
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
    errands: SimpleQueue[bytes | None] = SimpleQueue()
    Thread(target=_listen, args=(returns, free, errands, os.getppid()), daemon=True).start()
    next_errand: bytes | None = errand
    while next_errand is not None:
        last = _worked_off(next_errand, free, blocks, results)
        with suppress(OSError):  # nobody listens any more
            results.send_bytes(msgspec.msgpack.encode(last))
        next_errand = errands.get()


def _worked_off(
    errand: bytes, free: LifoQueue[int | None], blocks: list[SharedBlock], results: Connection
) -> WorkerMessage:
    """Make all items of an errand, and nothing of it stays; gives what became of it."""
    try:
        made = _unpacked(errand)()  # here, so that what fails in it is told
        try:
            for item in made:
                if (free_block := free.get()) is None:
                    break
                ready = _written(item, free_block, blocks[free_block])
                results.send_bytes(msgspec.msgpack.encode(ready))
        finally:
            made.close()
    except BaseException as error:  # noqa: BLE001  the parent raises it
        return WorkFailed(type(error).__name__, str(error), traceback.format_exc())
    return WorkEnded()


def _written(made: MadeItem, number: int, block: SharedBlock) -> FrameReady:
    frame = BatchFrame(made, MADE_PARTS)
    block.grow(frame.bytes)
    frame.write(block.memory)
    return FrameReady(
        number, block.capacity, frame.bytes, frame.description_at, frame.description_bytes
    )


def _listen(
    returns: Connection,
    free: LifoQueue[int | None],
    errands: SimpleQueue[bytes | None],
    parent: int,
) -> None:
    """Take blocks and errands, and end this process at once when its parent is gone."""
    try:
        while True:
            while not returns.poll(_ALIVE_SECONDS):
                if os.getppid() != parent:
                    os._exit(1)
            message = returns.recv_bytes()
            if message == _STOP:
                free.put(None)
                errands.put(None)
            elif message.startswith(_ERRAND):
                errands.put(message.removeprefix(_ERRAND))
            else:
                for block in message:
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


def as_error(failed: WorkFailed) -> Exception:
    """What the child raised, of the same class where it is ours or Python's."""
    error: Exception | None = None
    kind = getattr(errors, failed.kind, None) or getattr(builtins, failed.kind, None)
    if isinstance(kind, type) and issubclass(kind, Exception) and kind is not StopIteration:
        with suppress(TypeError):  # it wants more than a message
            error = kind(failed.message)
    if error is None:
        error = RuntimeError(f"{failed.kind}: {failed.message}")
    if failed.trace:
        error.add_note("In the other process:\n" + failed.trace)
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
        stream = self.remake(output)
        stream.load_state_dict(self.state)
        with closing(stream.in_turn(self.turn, self.turns, quiet=True)) as items:
            for item in items:
                yield stream.position, item, asdict(stream.stats())
