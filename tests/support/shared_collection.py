"""Collection that workers of pytest-xdist share: each imports a part of the modules of tests.

pytest-xdist lets each worker collect all tests, and compares what they found: 22 s of a processor
a worker, of which most is importing modules that other workers run. Here a worker collects its
share, tells the others the ids, and collects a module of theirs when it is to run a test of it.
Shares are what the scheduler deals out first, as far as sizes of files tell that: what is collected
twice is little.

A worker that was started in the place of one that died collects nothing before it is asked.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import pytest

from tests.support.long_first import long_first

NAME = "shared-collection"
WAIT_SECONDS = 900  # for the slowest of the others, on a machine that has much other work
_LONG = b"pytest.mark.long"


@dataclass(frozen=True)
class KnownItem:
    """A test of which a worker knows the id alone."""

    nodeid: str
    is_long: bool = False

    @property
    def module(self) -> str:
        return self.nodeid.partition("::")[0]


def share_of(files: Sequence[tuple[Path, int, bool]], workers: int, worker: int) -> set[Path]:
    """Files of a worker, of names, sizes and whether they are long, in the order of collection."""
    ordered = long_first(
        [file for file, size, is_long in files for _ in range(1 + size // 1000)],
        workers,
        is_long={file: is_long for file, _, is_long in files}.__getitem__,
        module_of=str,
    )
    share = -(-len(ordered) // workers)
    owners: dict[Path, int] = {}
    for at, file in enumerate(ordered):
        owners.setdefault(file, at // share)
    return {file for file, owner in owners.items() if owner == worker}


class SharedModule(pytest.Module):
    """A module that is imported when its turn comes."""

    is_due = True

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return super().collect() if self.is_due else []


class SharedItems(Sequence[Any]):
    """All tests of a session; those of others' modules are ids until they are asked for."""

    def __init__(self, known: Sequence[KnownItem], sharing: SharedCollection) -> None:
        self._known = known
        self._sharing = sharing

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[KnownItem]:
        return iter(self._known)

    @overload
    def __getitem__(self, at: int) -> pytest.Item: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[pytest.Item]: ...
    def __getitem__(self, at: int | slice) -> pytest.Item | Sequence[pytest.Item]:
        if isinstance(at, slice):
            return [self._sharing.item(known) for known in self._known[at]]
        return self._sharing.item(self._known[at])


@dataclass(eq=False)
class SharedCollection:
    """The plug-in of a worker.

    Attributes:
        folder: where workers tell each other what they found.
        workers: how many began.
        worker: which of them this one is; one that was started later has a higher number.
    """

    folder: Path
    workers: int
    worker: int
    _share: set[Path] = field(default_factory=set)
    _modules: dict[str, SharedModule] = field(default_factory=dict)
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _session: pytest.Session | None = None

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        self._share = share_of(_files(session.config), self.workers, self.worker)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makemodule(
        self, module_path: Path, parent: pytest.Collector
    ) -> SharedModule:
        module: SharedModule = SharedModule.from_parent(parent, path=module_path)
        module.is_due = module_path in self._share
        self._modules[module.nodeid] = module
        return module

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Tell the others, hear of them, and let the session have all."""
        self._keep(session.items)
        if self.worker < self.workers:
            told = [
                (item.nodeid, item.get_closest_marker("long") is not None) for item in session.items
            ]
            part = self.folder / f"{self.worker}.part"
            part.write_text(json.dumps(told))
            part.rename(self._told_by(self.worker))
        found = defaultdict(list)
        for worker in range(self.workers):
            for nodeid, is_long in json.loads(self._wait_for(worker)):
                known = KnownItem(nodeid, is_long)
                found[known.module].append(known)
        known_items = [each for module in self._modules for each in found[module]]
        ordered = long_first(
            known_items, self.workers, is_long=_is_long, module_of=lambda known: known.module
        )
        session.items = SharedItems(ordered, self)  # type: ignore[assignment]  # what is used of it

    def item(self, known: KnownItem) -> pytest.Item:
        """The test, whose module is collected first where that has not been done."""
        session, module = self._session, self._modules[known.module]
        if not module.is_due:
            assert session is not None, "it has begun"
            module.is_due = True
            items = [*session.genitems(module)]
            session.config.hook.pytest_collection_modifyitems(
                session=session, config=session.config, items=items
            )
            self._keep(items)
        if known.nodeid not in self._items:
            raise pytest.UsageError(
                f"{known.nodeid} was collected by another worker and not by this one: what a "
                "module has depends on who imports it. Run its file with `-n 0`, and look for "
                "what is drawn, or read from the clock or the process, as it is imported."
            )
        return self._items[known.nodeid]

    def _keep(self, items: Iterable[pytest.Item]) -> None:
        self._items |= {item.nodeid: item for item in items}

    def _told_by(self, worker: int) -> Path:
        return self.folder / f"{worker}.json"

    def _wait_for(self, worker: int) -> str:
        place, until = self._told_by(worker), time.monotonic() + WAIT_SECONDS
        while not place.exists():
            if time.monotonic() > until:
                raise pytest.UsageError(
                    f"worker gw{worker} has not told in {WAIT_SECONDS} s what it collected"
                )
            time.sleep(0.05)
        return place.read_text()


def _is_long(known: KnownItem) -> bool:
    return known.is_long


def _files(config: pytest.Config) -> list[tuple[Path, int, bool]]:
    """Modules of tests below what the command names: their sizes, and which are long."""
    patterns = config.getini("python_files")
    found = {path for root in _places(config) for each in patterns for path in root.rglob(each)}
    files = sorted(found, key=lambda path: path.parts)
    return [(path, path.stat().st_size, _LONG in path.read_bytes()) for path in files]


def _places(config: pytest.Config) -> list[Path]:
    """What the command names."""
    here = config.invocation_params.dir
    return [Path(os.path.abspath(here / argument)) for argument in config.args]


def _can_share(config: pytest.Config) -> bool:
    """Whether whole folders are collected, and in no other order than usual."""
    is_plain = not any(
        getattr(config.option, name, False) for name in ("lf", "failedfirst", "newfirst")
    )
    return is_plain and all(place.is_dir() for place in _places(config))


def give_folder(node: Any) -> bool:
    """Tell a worker where it tells the others what it collected; the controller calls this.

    Returns:
        whether they share the collection.
    """
    can_share = _can_share(node.config)
    if can_share:
        folder: Path = node.config._tmp_path_factory.getbasetemp() / NAME
        folder.mkdir(exist_ok=True)
        node.workerinput[NAME] = str(folder)
    return can_share


def share_collection(config: pytest.Config) -> None:
    """Let a worker that has such a folder collect a share alone."""
    told = getattr(config, "workerinput", {})
    if told.get(NAME):
        worker = int(told["workerid"].removeprefix("gw"))
        sharing = SharedCollection(Path(told[NAME]), told["workercount"], worker)
        config.pluginmanager.register(sharing, NAME)
