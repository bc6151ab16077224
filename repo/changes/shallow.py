"""Shallow commits: commits at which a repository's history ends.

An entry of the log names them. Nothing walks from them to their parents from then on: what only
those led to is garbage, unless another ref leads there. `read_commit` gives a shallow commit
without parents, and `gc_fence.closure` does not follow its links to them; everything walks by one
of these two.

Source:
    docs/spec/log.md, section "Shallow commits".
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection
from typing import Final

from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry

MOST_ENDED: Final = 100  # commits that an entry names, beside much else in a record of 64 KiB


def end_history(
    repository: RepositoryCore, commits: Collection[Digest], *, actor: str, note: str = ""
) -> None:
    """Let history end at `commits`. Those at which it does already are left out.

    A record names so many, and each stands alone: where the next one does not come, as after a
    kill, less is given up.
    """

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        new = sorted(set(commits) - view.state.shallow)[:MOST_ENDED]
        return (end_entry(actor, note, add=new),) if new else ()

    while repository.append(decide).record is not None:
        if len(commits) <= MOST_ENDED:
            return


def end_entry(
    actor: str, note: str = "", *, add: Collection[Digest] = (), remove: Collection[Digest] = ()
) -> LogEntry:
    """Lets history end at commits, and go on behind others.

    What lies behind the latter becomes reachable with it: it must have passed the fence.
    """
    data = {"add": list(add), "remove": list(remove)}
    return LogEntry(secrets.token_hex(16), "shallow", actor, time.time_ns(), note, data=data)
