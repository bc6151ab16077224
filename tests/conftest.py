"""What holds for every test: no clock decides, and nobody's home or credentials are touched.

Hypothesis profiles: `dev` (6 examples; what `make test` runs) and `soak` (500, and every case that
`tests.support.effort` samples in `dev`); ``pytest --hypothesis-profile soak`` chooses.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import signal
import ssl
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.support import merged_cases, shared_collection
from tests.support.effort import DEV_EXAMPLES, SOAK_EXAMPLES
from tests.support.end_of_workers import end_at_once
from tests.support.long_first import long_first
from tests.support.processes import shared_forks
from tests.support.servers import sql_logs
from tests.support.shared_collection import give_folder, share_collection

_PRIVATE = ("AWS_", "AZURE_", "GOOGLE_", "TENSORREPO_", "XDG_", "GIT_", "OBSTORE_", "FSSPEC_")

# A shell that is not interactive starts what runs in the background with SIGINT ignored, which
# children inherit through exec: then no Ctrl-C that a test sends would arrive, here or in a
# command. pytest imports this file in each worker's main thread, before any process starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Else every worker of every session compiles 400 rewritten modules of tests anew: 12 s of CPU each.
sys.dont_write_bytecode = False

_FINISHED = itertools.count(1)  # tests of this process

# A deadline would be a timed assertion. CI draws the same examples each time; `make test` on a
# developer's machine draws new ones and remembers what failed.
_EVERYWHERE = settings(
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("dev", _EVERYWHERE, max_examples=DEV_EXAMPLES, stateful_step_count=20)
settings.register_profile("soak", _EVERYWHERE, max_examples=SOAK_EXAMPLES, stateful_step_count=50)
settings.load_profile("dev")
# A collector that runs while 14,000 tests are being made finds nothing, again and again.
gc.disable()
# Else examples depend on which modules a worker has loaded: each is parsed for numbers to draw,
# which takes five seconds a worker.
providers.is_local_module_file = lambda _path: False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slowest", type=Path, help="file for the slowest tests, sorted")
    parser.addoption("--merge-cases", action="store_true", help="one item for all cases of a test")


def pytest_configure(config: pytest.Config) -> None:
    if _is_worker(config):
        end_at_once()
        share_collection(config)
        if address := config.workerinput.get(shared_forks.NAME):
            shared_forks.use_server(address)
    if config.option.slowest is not None and not _is_worker(config):
        config.pluginmanager.register(Slowest(config.option.slowest))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    if give_folder(node):  # whoever runs a few files may fork nothing
        home = node.config._tmp_path_factory.getbasetemp() / shared_forks.NAME
        home.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            _empty_variables(patch, home)
            node.workerinput[shared_forks.NAME] = shared_forks.begin_server(home / "printed")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Module | pytest.Class, name: str, obj: object
) -> list[pytest.Item] | None:
    """Cheap cases of a test are one item where that is asked for, see `merged_cases`."""
    if not collector.config.option.merge_cases or not isinstance(collector, pytest.Module):
        return None
    if not inspect.isfunction(obj) or not collector.funcnamefilter(name):
        return None
    if sql_logs.databases_of(collector.obj.__name__):
        return None
    return merged_cases.merged_items(collector, name, obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of the log run again on logs in SQL, see `sql_logs`."""
    databases = sql_logs.databases_of(metafunc.module.__name__)
    if databases:
        metafunc.fixturenames.append("log_in")
        ids = ["store", *databases]
        metafunc.parametrize("log_in", [None, *databases], ids=ids, indirect=True)


@pytest.fixture(scope="session")
def _log_urls() -> Iterator[Callable[[str], str]]:
    with ExitStack() as stack:
        yield cache(lambda kind: stack.enter_context(sql_logs.log_url(kind)))


@pytest.fixture
def log_at(_log_urls: Callable[[str], str], tmp_path: Path) -> Callable[[str], str | None]:
    """Where a log is: the URL of a database of this kind; None for "store"."""
    own = {"store": None, "sqlite": f"sqlite:///{tmp_path}/log.db"}
    return lambda kind: own[kind] if kind in own else _log_urls(kind)


@pytest.fixture
def log_in(request: pytest.FixtureRequest, _log_urls: Callable[[str], str]) -> Iterator[None]:
    if request.param is None:
        yield
        return
    with sql_logs.memory_in(_log_urls(request.param)):
        yield


class Slowest:
    """Writes what took longest, fixtures included: 50 tests, all files of tests, and all rooms."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: Counter[str] = Counter()
        self.cases: Counter[str] = Counter()  # of each file and room

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration  # type: ignore[assignment]  # a float

    def pytest_sessionfinish(self) -> None:
        files, rooms = Counter[str](), Counter[str]()
        for test, seconds in self.seconds.items():
            file = test.partition("::")[0]
            room = "/".join(file.split("/")[:2]) + "/"
            files[file] += seconds  # type: ignore[assignment]  # a float
            rooms[room] += seconds  # type: ignore[assignment]
            self.cases.update([file, room])
        slowest = [*self.seconds.most_common(50), *files.most_common(), *rooms.most_common()]
        lines = (f"{spent:8.2f} {self.cases[name] or 1:6} {name}\n" for name, spent in slowest)
        self.path.parent.mkdir(exist_ok=True)
        self.path.write_text("".join(lines))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several workers share the tests, modules marked `long` come first, see `long_first`."""
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    if workers > 1 and not config.pluginmanager.has_plugin(shared_collection.NAME):
        items[:] = long_first(
            items,
            workers,
            is_long=lambda item: item.get_closest_marker("long") is not None,
            module_of=lambda item: item.nodeid.partition("::")[0],
        )


def pytest_collection_finish(session: pytest.Session) -> None:
    """What 10,000 collected tests and all they import need not be walked by each collection.

    A `gc.collect()` takes half a second otherwise, and some hundred tests ask for one. A worker
    keeps what is garbage by now, some 20 MB: to look for it takes longer than any test.
    """
    if not _is_worker(session.config):
        gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(20_000, 20, 20)  # tests that wait for garbage collect it themselves


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Nor what stays of the tests that were: caches, and modules that they imported.

    Else each `gc.collect()` takes longer than the one before, in the end most of a second.
    """
    if not next(_FINISHED) % 300:
        gc.collect()
        gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """What is frozen when an interpreter ends, libraries in C++ report as leaked: DuckDB does.

    A worker takes nothing apart, see `end_of_workers`.
    """
    if not _is_worker(config):
        gc.unfreeze()


def _is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several of pytest-xdist."""
    return hasattr(config, "workerinput")


@pytest.fixture(scope="session", autouse=True)
def _empty_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """An empty home, and no variable that a store, git or tensorrepo would read."""
    with pytest.MonkeyPatch.context() as patch:
        _empty_variables(patch, tmp_path_factory.mktemp("home"))
        yield


def _empty_variables(patch: pytest.MonkeyPatch, home: Path) -> None:
    for name in [name for name in os.environ if name.startswith(_PRIVATE)]:
        patch.delenv(name)
    patch.setenv("HOME", str(home))
    # What tests start would compile our five hundred modules each time: 1.5 s a process.
    patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


@pytest.fixture(scope="session", autouse=True)
def _certificates_are_read_once() -> Iterator[None]:
    """Else each client of HTTP parses all authorities that are trusted: 0.05 s, thousands of times.

    Nobody changes what is made here, but for the protocols, which are HTTP/1.1 for everybody.
    """
    made = ssl.create_default_context

    @cache
    def kept(cafile: str | None, capath: str | None, *_: str | None) -> ssl.SSLContext:
        return made(cafile=cafile, capath=capath)

    def once(
        purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH,
        *,
        cafile: str | None = None,
        capath: str | None = None,
        cadata: str | bytes | None = None,
    ) -> ssl.SSLContext:
        if purpose is not ssl.Purpose.SERVER_AUTH or cadata is not None:
            return made(purpose, cafile=cafile, capath=capath, cadata=cadata)
        return kept(cafile, capath, *map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", once)
        yield
