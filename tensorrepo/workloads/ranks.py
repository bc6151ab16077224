"""Processes that stand for the ranks of a job: started, given orders, and ended together.

    parent: ask(order) -> every rank works on it -> answers, in the order of the ranks
    rank:   for order in link.orders(): link.together(); ...; link.answer(...)

Ranks wait for each other by `RankLink.together`, as those of a training do in each step. Orders
and answers are bytes: nothing is unpickled but what `multiprocessing` starts a process with. A rank
ends when it is told to, and within a second when its parent is gone, however that ended.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from threading import Thread
from typing import Any, Final, Self

import msgspec

from tensorrepo.formats.dataset.streaming.collate.process import WorkFailed, as_error
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, WorkerLostError

_ALIVE_SECONDS: Final = 1.0  # how often a rank looks whether its parent is there
_END_SECONDS: Final = 5.0  # what a rank may take to end by itself
_END: Final = b""  # the order that is none


class _Progress(msgspec.Struct, tag=True, array_like=True):
    done: int


class _Answer(msgspec.Struct, tag=True, array_like=True):
    content: bytes


_Message = _Progress | _Answer | WorkFailed
_DECODER: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


@dataclass(frozen=True)
class RankLink:
    """What a rank has to do with the others, and with who started it.

    Attributes:
        rank: number of this rank, from 0.
        count: number of ranks.
    """

    rank: int
    count: int
    _orders: Connection
    _answers: Connection
    _barrier: Any

    def orders(self) -> Iterator[bytes]:
        """Orders as they come, until the last one."""
        while True:
            try:
                order = self._orders.recv_bytes()
            except (EOFError, OSError):  # the parent is gone
                return
            if order == _END:
                return
            yield order

    def together(self) -> None:
        """Wait until all ranks are here."""
        self._barrier.wait()

    def progress(self, done: int) -> None:
        """Tell how far an order is done, in whatever it counts."""
        self._send(_Progress(done))

    def answer(self, content: bytes) -> None:
        """Tell what came of an order."""
        self._send(_Answer(content))

    def fail(self, error: BaseException) -> None:
        """Tell what went wrong: the parent raises it."""
        self._send(WorkFailed(type(error).__name__, str(error), traceback.format_exc()))

    def _send(self, message: _Message) -> None:
        with suppress(OSError):  # nobody listens any more
            self._answers.send_bytes(msgspec.msgpack.encode(message))


RankMain = Callable[[RankLink, Any], None]  # found by its name in the process of the rank


class RankProcesses:
    """The processes of a job. As a context manager, leaving it ends them."""

    def __init__(self, main: RankMain, job: Any, count: int) -> None:
        """Start `count` processes that run ``main(link, job)``; a job has plain values."""
        self._stack = ExitStack()
        context = multiprocessing.get_context("spawn")
        self._barrier = context.Barrier(count)  # held: it is gone with its last owner
        self._orders: list[Connection] = []
        self._answers: list[Connection] = []
        self._processes: list[Any] = []
        try:
            for rank in range(count):
                taken, orders = context.Pipe(duplex=False)
                answers, given = context.Pipe(duplex=False)
                self._orders.append(self._stack.enter_context(orders))
                self._answers.append(self._stack.enter_context(answers))
                with taken, given:  # the child has copies; with ours it would never see an end
                    process = context.Process(
                        target=_live,
                        args=(main, job, rank, count, taken, given, self._barrier),
                        name=f"tensorrepo-rank-{rank}",
                        daemon=True,
                    )
                    process.start()
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def ask(self, order: bytes, progress: Callable[[int], None] = lambda _: None) -> list[bytes]:
        """What all ranks answer to an order, by rank; the first one tells its progress.

        Raises:
            Error: what a rank raised, or that it died. The others are of no use then.
        """
        for orders in self._orders:
            with suppress(OSError):  # it is gone: the next lines say how
                orders.send_bytes(order)
        answers: dict[int, bytes] = {}
        while len(answers) < len(self._processes):
            for rank in self._ready(answers):
                message = self._receive(rank)
                if isinstance(message, WorkFailed):
                    raise as_error(message)
                if isinstance(message, _Answer):
                    answers[rank] = message.content
                elif rank == 0:
                    progress(message.done)
        return [answers[rank] for rank in range(len(self._processes))]

    def close(self) -> None:
        """End all processes. Safe to call more than once."""
        for orders in self._orders:
            with suppress(OSError):
                orders.send_bytes(_END)
        deadline = time.monotonic() + _END_SECONDS
        for process in self._processes:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join()
        self._processes = []
        self._stack.close()
        self._orders = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # they may wait for each other, and for ever
            for process in self._processes:
                process.kill()
        self.close()

    def _ready(self, answers: dict[int, bytes]) -> list[int]:
        """Ranks that said something, or are no more, of those that have not answered."""
        asked = {rank: self._answers[rank] for rank in range(len(self._answers))}
        asked = {rank: each for rank, each in asked.items() if rank not in answers}
        sentinels = [self._processes[rank].sentinel for rank in asked]
        ready = wait([*asked.values(), *sentinels])
        spoke = [rank for rank, each in asked.items() if each in ready]
        return spoke or [rank for rank in asked if self._processes[rank].sentinel in ready]

    def _receive(self, rank: int) -> _Message:
        with suppress(EOFError, OSError):  # it ended without a word
            if self._answers[rank].poll():
                return _DECODER.decode(self._answers[rank].recv_bytes())
        process = self._processes[rank]
        process.join(_END_SECONDS)
        return _death(rank, process.exitcode)


def _death(rank: int, code: int | None) -> WorkFailed:
    whose = f"the process of emulated accelerator {rank}"
    if code is None or code >= 0:
        return WorkFailed(WorkerLostError.__name__, f"{whose} exited ({code}) without a word", "")
    told = (
        f"{whose} was killed by signal {-code}. Signal 9 may be the system's answer to too little "
        "memory: emulate fewer accelerators, or give a smaller --batch-size."
    )
    return WorkFailed(InvalidInputError.__name__, told, "")


def _live(
    main: RankMain,
    job: Any,
    rank: int,
    count: int,
    orders: Connection,
    answers: Connection,
    barrier: Any,
) -> None:
    """The life of a rank."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the parent decides
    Thread(target=_watch_parent, daemon=True).start()
    link = RankLink(rank, count, orders, answers, barrier)
    try:
        main(link, job)
    except BaseException as error:  # noqa: BLE001  the parent raises it
        link.fail(error)


def _watch_parent() -> None:
    # By the sentinel that came with the start: the parent may be gone before this process looks.
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        time.sleep(_ALIVE_SECONDS)
    os._exit(1)
