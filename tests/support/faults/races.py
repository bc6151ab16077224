"""Writers that run into each other, in threads and in processes."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from tensorrepo.repo.backends.base import Backend

_BARRIERS: list[Any] = []


def race_threads(backend: Backend, keys: Sequence[str], writers: int) -> list[list[int]]:
    """Let threads create the same keys in the same order; for each key, who won."""
    barrier = threading.Barrier(writers)

    def run(writer: int) -> list[bool]:
        won = []
        for key in keys:
            barrier.wait()
            won.append(backend.create(key, (value(writer),)))
        return won

    with ThreadPoolExecutor(writers) as pool:
        return _winners(list(pool.map(run, range(writers))))


def race_processes(backend: Backend, keys: Sequence[str], writers: int) -> list[list[int]]:
    """The same with fresh processes, each with the backend that it unpickled."""
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(writers)
    with ProcessPoolExecutor(
        writers, mp_context=spawn, initializer=_remember, initargs=(barrier,)
    ) as pool:
        runs = [pool.submit(_run_in_process, backend, keys, writer) for writer in range(writers)]
        return _winners([run.result() for run in runs])


def value(writer: int) -> bytes:
    """What a writer writes: long enough that a mixture of two would show."""
    return bytes([writer]) * 5000


def _remember(barrier: Any) -> None:
    _BARRIERS.append(barrier)


def _run_in_process(backend: Backend, keys: Sequence[str], writer: int) -> list[bool]:
    won = []
    for key in keys:
        _BARRIERS[0].wait()
        won.append(backend.create(key, (value(writer),)))
    return won


def _winners(won: list[list[bool]]) -> list[list[int]]:
    return [
        [writer for writer, each in enumerate(column) if each] for column in zip(*won, strict=True)
    ]
