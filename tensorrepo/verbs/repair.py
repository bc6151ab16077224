"""Repair of a repository from its remotes: `fsck --repair`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from tensorrepo.connect import connect
from tensorrepo.repo.changes.fsck import ObjectTotals, accept_restored_log, check_objects
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import CorruptError, Error, RepositoryRewound
from tensorrepo.repo.log.repair import rewrite_checkpoint, rewrite_hint
from tensorrepo.repo.transfer.receive import HistorySource
from tensorrepo.repo.transfer.repair import (
    RepairedObject,
    RepairedRecord,
    repair_objects,
    repair_records,
)
from tensorrepo.verbs.transfer import Here, opened_source


@dataclass(frozen=True, slots=True)
class Repairs:
    """What was put right, and where it came from.

    `log_accepted`: the log was restored from an older backup, and may be written to again.
    """

    records: tuple[RepairedRecord, ...]
    objects: tuple[RepairedObject, ...]
    log_accepted: bool = False


def repair(
    here: Here, *, deep: bool = False, warn: Callable[[str], None] = lambda _: None
) -> Repairs:
    """Fetch what is damaged or missing from the remotes that are named here.

    A damaged object hides what it leads to, so the repository is checked again until nothing more
    can be mended. The log's hint and newest checkpoint are written anew.

    Args:
        here: the repository.
        deep: whether every byte is read, or sizes are compared.
        warn: told of remotes that cannot be asked.

    Raises:
        CorruptError: the log is damaged, and no remote is a mirror that has the record.
    """
    with ExitStack() as stack:
        records = _records(here, warn)
        copies = [
            source for url in here.remotes.urls().values()
            if (source := _opened(here, url, stack, warn)) is not None
        ]  # fmt: skip
        objects = tuple(_objects(here, copies, deep=deep))
    rewrite_hint(here.core.log)
    rewrite_checkpoint(here.core.log)
    return Repairs(records, objects, accept_restored_log(here.core, deep=deep))


def _records(here: Here, warn: Callable[[str], None]) -> tuple[RepairedRecord, ...]:
    try:
        here.core.log.refresh()
    except (CorruptError, RepositoryRewound) as error:
        # A newest record that is damaged looks like another past to who remembers it.
        repaired = tuple(repair_records(here.core, _repositories(here, warn)))
        if not repaired:
            raise type(error)(
                f"{error} No remote that is named here is a mirror which has the record."
            ) from error
        here.core.log.refresh()
        return repaired
    return ()


def _objects(here: Here, copies: list[HistorySource], *, deep: bool) -> Iterator[RepairedObject]:
    tried: set[str] = set()
    parts = here.machine.cache_folder / "parts"
    while True:
        state = here.core.log.refresh().state
        faults = check_objects(here.core.objects, state, ObjectTotals(), deep=deep)
        found = list(dict.fromkeys(fault.digest for fault in faults))
        new = [digest for digest in found if digest not in tried]
        tried |= set(new)
        repaired = list(repair_objects(here.core, new, copies, parts))
        yield from repaired
        if not repaired:
            return


def _repositories(here: Here, warn: Callable[[str], None]) -> Iterator[RepositoryCore]:
    for url in here.remotes.urls().values():
        try:
            yield connect(url, None, here.machine)
        except Error as error:
            warn(f"{url} cannot be asked: {error}")


def _opened(
    here: Here, url: str, stack: ExitStack, warn: Callable[[str], None]
) -> HistorySource | None:
    try:
        return stack.enter_context(opened_source(here.machine, url))
    except Error as error:
        warn(f"{url} cannot be asked: {error}")
        return None
