"""How does a folder become a workspace on a repository, new or existing?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.connect import Machine, connect, create
from tensorrepo.repo.errors import ConflictError
from tensorrepo.repo.workspace import FOLDER, Head, Workspace, create_workspace, find_workspace

if TYPE_CHECKING:
    from tensorrepo.repo.repository import Repository

DEFAULT_URL = f"{FOLDER}/store"


@dataclass(frozen=True, slots=True)
class Started:
    """What `init` made. `created` False: the repository was there, and was joined."""

    repository: Repository
    workspace: Workspace
    created: bool


def start_workspace(machine: Machine, url: str | None, *, force: bool = False) -> Started:
    """Make a repository at `url`, or join the one that is there, and a workspace here.

    Raises:
        ConflictError: this folder lies in a workspace already.
        StorageError, PermissionDenied, InvalidInputError: the URL cannot be used.
    """
    root = machine.cwd.resolve()
    outer = find_workspace(root)
    if outer is not None and not (force and outer.root != root):
        raise ConflictError(
            f"{root} lies in the workspace {outer.root} already. "
            + ("Remove its .tensorrepo folder to begin anew." if outer.root == root else
               "Use --force for a workspace inside it.")
        )  # fmt: skip
    stored = url or DEFAULT_URL
    place = stored if "://" in stored or Path(stored).is_absolute() else str(root / stored)
    pending = root / FOLDER / "pending"
    repository, created = _create_or_join(place, machine, pending)
    workspace = create_workspace(root, stored, Head(branch="main"), force=force)
    return Started(repository, workspace, created)


def _create_or_join(place: str, machine: Machine, pending: Path) -> tuple[Repository, bool]:
    try:
        return create(place, None, machine, pending=pending), True
    except ConflictError:
        return connect(place, None, machine, pending=pending), False
