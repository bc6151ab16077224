"""How does a folder become a workspace on a repository, new or existing?"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.connect import Machine, connect, create, is_url
from tensorrepo.repo.errors import ConflictError, PermissionDenied
from tensorrepo.repo.revisions import Head
from tensorrepo.repo.workspace import FOLDER, Staging, Workspace, create_workspace, find_workspace

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
    if outer is not None and not force:
        raise ConflictError(_in_the_way(root, outer))
    stored = url or DEFAULT_URL
    place = stored if is_url(stored) else str(root / stored)
    pending = root / FOLDER / "pending"
    made = _make_folder(root)
    try:
        repository, created = _create_or_join(place, machine, pending)
    except BaseException:
        if made:  # leave no half of a workspace behind
            shutil.rmtree(root / FOLDER, ignore_errors=True)
        raise
    workspace = create_workspace(root, stored, Head(branch="main"), force=force)
    workspace.write_staging(Staging())
    return Started(repository, workspace, created)


def _in_the_way(root: Path, outer: Workspace) -> str:
    if outer.root == root:
        return (
            f"{root} is a workspace already, on {outer.state().url}. --force sets it up anew: what "
            "is staged is forgotten, the repository stays."
        )
    return f"{root} lies in the workspace {outer.root}. --force makes a workspace inside of it."


def _make_folder(root: Path) -> bool:
    """Make the workspace's folder before anything else; gives whether it was missing."""
    try:
        (root / FOLDER).mkdir()
    except FileExistsError:
        return False
    except OSError as error:
        raise PermissionDenied(
            f"cannot make a workspace in {root}: {error.strerror}. Choose another folder."
        ) from error
    return True


def _create_or_join(place: str, machine: Machine, pending: Path) -> tuple[Repository, bool]:
    try:
        return create(place, None, machine, pending=pending), True
    except ConflictError:
        return connect(place, None, machine, pending=pending), False
