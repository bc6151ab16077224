"""Files of a commit, as this machine reads them."""

from __future__ import annotations

from functools import cache
from typing import Final

from tensorrepo.connect import Machine
from tensorrepo.context import Context
from tensorrepo.formats.files.commit_files import CommitFiles
from tensorrepo.formats.files.rendered import Renderings
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.threads import ProcessThreadPool

_DECODERS: Final = 4


def files_of(context: Context, revision: Revision) -> CommitFiles:
    """All files of the commit that `revision` is."""
    core, tree = context.core, revision.commit.tree
    return CommitFiles(
        core.objects,
        lambda prefix, after: core.entries(tree, prefix, after=after),
        _decoders(),
        renderings(context.machine),
        context.outside,
    )


def renderings(machine: Machine) -> Renderings:
    """Tables that this machine made of rows."""
    return Renderings(machine.cache_folder / "rendered")


@cache
def _decoders() -> ProcessThreadPool:
    return ProcessThreadPool(_DECODERS, "model-bytes")
