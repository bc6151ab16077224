"""Repair of a repository from itself, its remotes and other copies: `fsck --repair`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from tensorrepo.connect import Machine, connect
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes.fsck import accept_restored_log
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import Error
from tensorrepo.repo.transfer.receive import HistorySource
from tensorrepo.repo.transfer.repair import (
    AcceptedLog,
    Repaired,
    repair_damage,
    repair_identity,
    repair_log,
)
from tensorrepo.verbs.transfer import Here, opened_source

Warn = Callable[[str], None]


def repair(
    here: Here,
    *,
    sources: Sequence[str] = (),
    deep: bool = False,
    warn: Warn = lambda _: None,
) -> Iterator[Repaired]:
    """Put right what is damaged or missing: what was done, as it is done.

    Records of the log come from segments here and from mirrors; objects from other incarnations
    here and from any copy. A damaged object hides what it leads to, so the repository is checked
    again until nothing more can be mended. What is derived from the log is made anew. A log in
    SQL that was restored from an older backup is accepted when nothing that is needed lacks.

    Args:
        here: the repository.
        sources: URLs of copies that are asked first, before the remotes that are named here.
        deep: whether every byte is read, or sizes are compared.
        warn: told of copies that cannot be asked.

    Raises:
        CorruptError, RepositoryRewound: the log is damaged, and no copy has the record.
    """
    urls = list(dict.fromkeys([*sources, *here.remotes.urls().values()]))
    parts = here.machine.cache_folder / "parts"
    yield from repair_log(here.core, _repositories(here.machine, urls, warn), parts)
    with ExitStack() as stack:
        copies = [
            source for url in urls
            if (source := _opened(here, url, stack, warn)) is not None
        ]  # fmt: skip
        yield from repair_damage(here.core, copies, parts, deep=deep)
    if accept_restored_log(here.core, deep=deep):
        yield AcceptedLog(here.core.backend.url)


def restore_identity(
    machine: Machine, url: str, sources: Sequence[str], warn: Warn = lambda _: None
) -> str | None:
    """Put `repo.json` of a repository that cannot be opened back from a mirror; that one's URL."""
    backend = open_backend(url, environment=machine.environment)
    try:
        return repair_identity(backend, _repositories(machine, sources, warn))
    finally:
        backend.close()


def _repositories(machine: Machine, urls: Sequence[str], warn: Warn) -> Iterator[RepositoryCore]:
    for url in urls:
        try:
            yield connect(url, None, machine)
        except Error as error:
            warn(f"{url} cannot be asked: {error}")


def _opened(here: Here, url: str, stack: ExitStack, warn: Warn) -> HistorySource | None:
    try:
        return stack.enter_context(opened_source(here.machine, url))
    except Error as error:
        warn(f"{url} cannot be asked: {error}")
        return None
