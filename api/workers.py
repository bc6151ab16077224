"""Several processes of one service, on one socket: started, watched, and ended in order.

The parent opens the service once (so that revisions of the database and the first token are made
by one), binds the socket, and starts the workers, each of which opens its own. One that dies is
started again; when the parent dies, however it dies, the workers end.
"""

from __future__ import annotations

import logging
import multiprocessing
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

from prometheus_client import multiprocess
from uvicorn import Server

from tensorrepo.api.app import create_app
from tensorrepo.api.limits.protocol import allow_descriptors
from tensorrepo.api.observing.logs import configure_logging
from tensorrepo.api.server import (
    address_of,
    check_listening,
    freeze_what_stays,
    listening_socket,
    make_server,
)
from tensorrepo.api.settings import Settings, share_metrics
from tensorrepo.repo.deferred_dataclass import dataclass

_WAYS: Final = multiprocessing.get_all_start_methods()
_START_SECONDS: Final = 60
_TURN_SECONDS: Final = 0.2
_AGAIN_SECONDS: Final = 1.0  # between two starts of one that dies
_LOGGER = logging.getLogger(__name__)


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    started_at: float


def run_workers(settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve by `settings.workers` processes until this one is told to end."""
    check_listening(settings)
    folder = Path(tempfile.mkdtemp(prefix="tensorrepo-metrics-"))
    share_metrics(folder)
    chosen = settings.model_copy(update={"metrics_folder": folder})
    ends = threading.Event()
    before = {
        one: signal.signal(one, lambda *_: ends.set()) for one in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        with listening_socket(settings) as listening:
            _supervise(chosen, listening, ends, announce)
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        shutil.rmtree(folder, ignore_errors=True)


def _supervise(
    settings: Settings,
    listening: socket.socket,
    ends: threading.Event,
    announce: Callable[[str], None],
) -> None:
    processes = _processes()
    workers = [_start(processes, settings, listening) for _ in range(settings.workers)]
    try:
        if all(_is_ready(worker, ends) for worker in workers) and not ends.is_set():
            announce(address_of(settings, listening.getsockname()[1]))
        while not ends.wait(_TURN_SECONDS):
            for at, worker in enumerate(workers):
                if not worker.process.is_alive():
                    workers[at] = _start_again(processes, settings, listening, worker)
    finally:
        for worker in workers:
            worker.process.terminate()
        stop_at = time.monotonic() + settings.shutdown_seconds + 10
        for worker in workers:
            worker.process.join(max(0.0, stop_at - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _processes() -> BaseContext:
    """What starts workers: a process that has loaded the service, and nothing else, and forks.

    So loading, most of what a start takes, is paid once for all workers, and for those that are
    started again. Where there are no forks each loads it by itself.
    """
    if "forkserver" not in _WAYS:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def _start(processes: BaseContext, settings: Settings, listening: socket.socket) -> _Worker:
    ours, theirs = processes.Pipe()
    process = processes.Process(  # type: ignore[attr-defined]  # each context has one
        target=_work, args=(settings, listening, theirs), name="tensorrepo"
    )
    process.start()
    theirs.close()
    return _Worker(process, ours, time.monotonic())


def _start_again(
    processes: BaseContext, settings: Settings, listening: socket.socket, dead: _Worker
) -> _Worker:
    _LOGGER.error("a worker ended with status %s: another one starts", dead.process.exitcode)
    if settings.metrics_folder is not None and dead.process.pid is not None:
        multiprocess.mark_process_dead(  # type: ignore[no-untyped-call]
            dead.process.pid, str(settings.metrics_folder)
        )
    time.sleep(max(0.0, dead.started_at + _AGAIN_SECONDS - time.monotonic()))
    dead.pipe.close()
    return _start(processes, settings, listening)


def _is_ready(worker: _Worker, ends: threading.Event) -> bool:
    stop_at = time.monotonic() + _START_SECONDS
    while not ends.is_set() and worker.process.is_alive() and time.monotonic() < stop_at:
        if worker.pipe.poll(_TURN_SECONDS):
            return True
    return False


def _work(settings: Settings, listening: socket.socket, parent: Connection) -> None:
    """All that one worker does."""
    configure_logging(settings.log_form)
    app = create_app(settings)
    allow_descriptors(settings.max_connections)
    server = make_server(app, settings)
    threading.Thread(target=_watch, args=(server, parent), name="parent", daemon=True).start()
    threading.Thread(target=freeze_what_stays, args=(app,), name="freeze", daemon=True).start()
    server.run(sockets=[listening])


def _watch(server: Server, parent: Connection) -> None:
    """Tell the parent that the worker answers; end when the parent is gone."""
    while not server.started and not server.should_exit:
        time.sleep(0.01)
    try:
        parent.send_bytes(b"started")
        parent.recv_bytes()  # nothing ever comes but the end
    except (OSError, EOFError):
        server.should_exit = True
