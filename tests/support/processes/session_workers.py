"""Tests in several processes that are forked once all is collected: ``pytest --forks 3``.

pytest-xdist starts processes of which each imports and collects all tests, half a minute of a
processor each. Here one process collects, and its forks divide the tests: each begins with a part
of its own, in order, so that fixtures of modules are made once, and one that has nothing left takes
half of what the longest part has still to do. Reports go to the process that collected.
"""

from __future__ import annotations

import atexit
import fcntl
import mmap
import multiprocessing.process
import multiprocessing.util
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

import pytest
from _pytest.capture import CaptureManager

NONE = -1
_FIELDS = ("next", "stop", "running", "reserved")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="processes that share the tests")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.forks and not config.option.usepdb:
        config.pluginmanager.register(SessionWorkers(config, config.option.forks))


class Shares:
    """Who runs which tests: ranges of their numbers, one for each worker, in memory of all."""

    def __init__(self, tests: int, workers: int, lock: Path) -> None:
        """Give each worker as many.

        Args:
            tests: how many there are.
            workers: how many take of them.
            lock: a file that does not change; its lock ends with whoever holds it.
        """
        self._memory = mmap.mmap(-1, 8 * len(_FIELDS) * workers)
        self._numbers = memoryview(self._memory).cast("q")
        self._workers = workers
        self._path = lock
        lock.touch()
        for worker in range(workers):
            first, stop = tests * worker // workers, tests * (worker + 1) // workers
            self._write(worker, next=first, stop=stop, running=NONE, reserved=NONE)

    def _read(self, worker: int, name: str) -> int:
        return self._numbers[worker * len(_FIELDS) + _FIELDS.index(name)]

    def _write(self, worker: int, **numbers: int) -> None:
        for name, number in numbers.items():
            self._numbers[worker * len(_FIELDS) + _FIELDS.index(name)] = number

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._path.open("w") as file:  # a lock is of whoever opened the file, not of its forks
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _left(self, worker: int) -> int:
        return self._read(worker, "stop") - self._read(worker, "next")

    def advance(self, worker: int) -> tuple[int, int]:
        """Go on to the test that was next; gives it, and what is next then, `NONE` for none."""
        with self._locked():
            running = self._read(worker, "reserved")
            running = self._take(worker) if running == NONE else running
            reserved = self._take(worker)
            self._write(worker, running=running, reserved=reserved)
            return running, reserved

    def _take(self, worker: int) -> int:
        if not self._left(worker):
            self._steal(worker)
        if not self._left(worker):
            return NONE
        taken = self._read(worker, "next")
        self._write(worker, next=taken + 1)
        return taken

    def _steal(self, worker: int) -> None:
        """Take the last half of what is left to whom most is left."""
        rich = max(range(self._workers), key=self._left)
        stop = self._read(rich, "stop")
        middle = stop - (self._left(rich) + 1) // 2
        self._write(rich, stop=middle)
        self._write(worker, next=middle, stop=stop)

    def lost_by(self, worker: int) -> int:
        """The test that a worker was at when it died, `NONE` for none; it is told once."""
        lost = self._read(worker, "running")
        self._write(worker, running=NONE)
        return lost


@dataclass
class Worker:
    """A fork that runs tests, as the process that collected them sees it."""

    number: int
    pid: int
    reports: Connection
    end: int = field(init=False)  # readable when the process has ended
    is_done: bool = False

    def __post_init__(self) -> None:
        self.end = os.pidfd_open(self.pid)

    def close(self) -> int:
        """Wait for its end; gives the status as `os.waitpid` does."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.end)
        self.reports.close()
        return status


class SessionWorkers:
    """The plugin: pytest's loop over all tests, done by forks."""

    def __init__(self, config: pytest.Config, workers: int) -> None:
        self._config = config
        self._count = workers
        self._workers: list[Worker] = []
        self._started = 0
        atexit.register(_be_silent)  # the first one is called last

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or session.config.option.collectonly or not session.items:
            return None  # pytest's own loop says what there is to say
        reporter = self._config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter.showfspath = False  # several files at once would each be named again and again
        folder = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        shares = Shares(len(session.items), self._count, folder / "shares")
        try:
            for number in range(self._count):
                self._fork(session, shares, number)
            while self._workers:
                self._hear(session, shares)
                if session.shouldfail:
                    raise session.Failed(session.shouldfail)
                if session.shouldstop:
                    raise session.Interrupted(session.shouldstop)
        finally:
            for worker in self._workers:
                os.kill(worker.pid, signal.SIGKILL)
                worker.close()
        return True

    def _fork(self, session: pytest.Session, shares: Shares, number: int) -> None:
        reader, writer = Pipe(duplex=False)
        self._started += 1
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries that were imported, and started nothing
            pid = os.fork()
        if not pid:
            reader.close()
            _be_worker(session, shares, number, f"worker{self._started}", writer)
        writer.close()  # else workers that begin later would keep it open
        self._workers.append(Worker(number, pid, reader))

    def _hear(self, session: pytest.Session, shares: Shares) -> None:
        """Pass on what workers tell; put another one in the place of each that died."""
        ready = set(wait([end for one in self._workers for end in (one.reports, one.end)]))
        for worker in [one for one in self._workers if ready & {one.reports, one.end}]:
            ended = worker.end in ready
            with suppress(EOFError):
                while worker.reports.poll():
                    self._pass_on(session, worker, worker.reports.recv())
            if ended:
                self._workers.remove(worker)
                status = worker.close()
                if not worker.is_done:
                    self._tell_lost(session, shares.lost_by(worker.number), status)
                    self._fork(session, shares, worker.number)

    def _pass_on(self, session: pytest.Session, worker: Worker, told: tuple[Any, ...]) -> None:
        hook = self._config.hook
        match told:
            case ("done",):
                worker.is_done = True
            case ("warning", about):
                hook.pytest_warning_recorded.call_historic(kwargs=about)
            case ("test", number, reports):
                item = session.items[number]
                where = {"nodeid": item.nodeid, "location": item.location}
                hook.pytest_runtest_logstart(**where)
                for report in reports:
                    hook.pytest_runtest_logreport(report=self._restored(report))
                hook.pytest_runtest_logfinish(**where)

    def _restored(self, report: Any) -> pytest.TestReport:
        if isinstance(report, pytest.TestReport):
            return report
        made = self._config.hook.pytest_report_from_serializable(config=self._config, data=report)
        assert isinstance(made, pytest.TestReport), "workers tell of tests alone"
        return made

    def _tell_lost(self, session: pytest.Session, number: int, status: int) -> None:
        """Fail the test in which a worker died."""
        said = f"the process that ran it ended with {os.waitstatus_to_exitcode(status)}"
        if number == NONE:
            raise session.Failed(f"a worker died before its first test: {said}")
        item = session.items[number]
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", said, "call")
        self._config.hook.pytest_runtest_logreport(report=report)


def _be_silent() -> None:
    """What libraries say of leaks as an interpreter ends would stand behind pytest's last line."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


class Reports:
    """A plugin of workers: what is told to the process that collected, once for each test."""

    def __init__(self, config: pytest.Config, writer: Connection) -> None:
        self._config = config
        self._is_new = True
        self._writer = writer
        self._reports: list[Any] = []
        config.pluginmanager.register(self)
        self._is_new = False  # what was told before is told to each plugin once more

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep it; a passed one without what nobody shows of it."""
        if report.passed:
            report.keywords, report.sections = {}, []
            self._reports.append(report)
            return
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.append(data)

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if self._is_new:
            return
        kind = warning_message.category
        shown = UserWarning(f"{kind.__name__}: {warning_message.message}")  # others may not pickle
        message = warnings.WarningMessage(
            shown, UserWarning, warning_message.filename, warning_message.lineno
        )
        about = {"when": when, "nodeid": nodeid, "location": location}
        self.tell("warning", {"warning_message": message, **about})

    def tell_test(self, number: int) -> None:
        self.tell("test", number, self._reports)
        self._reports = []

    def tell(self, *words: Any) -> None:
        self._writer.send(words)


def _be_worker(
    session: pytest.Session, shares: Shares, number: int, name: str, writer: Connection
) -> None:
    """Run tests until none is left; never returns."""
    ended = 1
    try:
        config = session.config
        _begin_anew(config, number, name)
        reports = Reports(config, writer)
        _run_share(session, shares, number, reports)
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()
        reports.tell("done")
        ended = 0
    except BaseException:  # noqa: BLE001  no fork goes on with what its parent does
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(ended)


def _begin_anew(config: pytest.Config, number: int, name: str) -> None:
    """Leave what is the parent's: what it ends, the figures it keeps, its folder, its terminal."""
    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)
    multiprocessing.util._finalizer_registry.clear()
    multiprocessing.util._run_after_forkers()
    multiprocessing.process._children = set()  # type: ignore[attr-defined]
    config.pluginmanager.unregister(name="slowest")
    if forked := sys.modules.get("tests.support.processes.forked"):
        forked.inherit_server()
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"  # as whoever asks for a worker knows it
    factory = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp = factory.getbasetemp() / name
    factory._basetemp.mkdir(mode=0o700)
    capture: CaptureManager | None = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        # The files that it writes to are the parent's, whose forks would share their positions.
        capture.stop_global_capturing()
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)  # what the reporter shows here is shown by the parent
        os.close(nothing)
        capture.start_global_capturing()
        capture.suspend_global_capture()


def _run_share(session: pytest.Session, shares: Shares, number: int, reports: Reports) -> None:
    while True:
        at, then = shares.advance(number)
        if at == NONE:
            return
        following = None if then == NONE else session.items[then]
        session.config.hook.pytest_runtest_protocol(item=session.items[at], nextitem=following)
        reports.tell_test(at)
