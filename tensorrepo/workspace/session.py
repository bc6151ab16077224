"""What does a command work on: which folder, which repository, which commit?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.connect import Machine, author, connect
from tensorrepo.repo.attempt import tree_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.revisions import Revision, resolve, split_path
from tensorrepo.repo.trees import Entry, iterate, lookup
from tensorrepo.repo.workspace import Head, Workspace, find_workspace

if TYPE_CHECKING:
    from pathlib import Path

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.repository import Repository

SPACES = ("datasets", "models", "files", "views")


@dataclass(frozen=True, slots=True)
class Session:
    """A repository, and the workspace on it when there is one."""

    machine: Machine
    repository: Repository
    workspace: Workspace | None

    @property
    def here(self) -> Workspace:
        """The workspace. Raises NotFoundError when the command was given a URL instead."""
        if self.workspace is None:
            raise no_workspace(self.machine.cwd)
        return self.workspace

    @property
    def head(self) -> Head | None:
        return self.workspace.state().head if self.workspace else None

    def author(self) -> str:
        """Who is working; raises InvalidInputError that says how to tell."""
        config = self.workspace.folder / "config.json" if self.workspace else None
        return author(self.machine, config)

    def resolve(self, text: str) -> Revision:
        """The commit that `text` names, HEAD being this workspace's."""
        return resolve(self.repository, text, head=self.head)

    def tip(self) -> Digest | None:
        """The commit that HEAD stands at now; None on a branch without commits."""
        head = self.here.state().head
        if head.commit is not None:
            return head.commit
        return self.repository.log.refresh().state.refs.get(f"heads/{head.branch}")

    def base(self) -> Digest | None:
        """The commit that staged changes are made on: fixed by the first `add`."""
        staging = self.here.staging()
        return staging.base if staging.entries else self.tip()

    def find(self, text: str) -> tuple[Revision, str, Entry]:
        """The entry that ``[REF:]PATH`` names. `datasets/`, `models/` may be left out."""
        ref, path = split_path(text)
        if path is None:
            ref, path = "HEAD" if self.workspace else "main", text
        revision = self.resolve(ref)
        full = full_path(self.repository, revision.commit.tree, path)
        entry = lookup(self.repository.objects, revision.commit.tree, full)
        assert entry is not None, "full_path gives paths that exist"
        return revision, full, entry


def open_session(
    machine: Machine, url: str | None = None, *, folder: Path | None = None
) -> Session:
    """The session of a command.

    Args:
        machine: where it runs.
        url: a repository named on the command line; then no workspace is looked for.
        folder: the workspace's folder, or one in it; None: TENSORREPO_DIR, or the current one.

    Raises:
        NotFoundError: no workspace here, or no repository at its URL.
    """
    if url is not None:
        return Session(machine, connect(url, None, machine), None)
    told = machine.environment.get("TENSORREPO_DIR")
    start = folder or (machine.cwd / told if told else machine.cwd)
    workspace = find_workspace(start.resolve())
    if workspace is None:
        raise no_workspace(start)
    pending = workspace.folder / "pending"
    repository = connect(store_url(workspace), None, machine, pending=pending)
    return Session(machine, repository, workspace)


def store_url(workspace: Workspace) -> str:
    """The URL of a workspace's repository; a relative one is relative to the workspace."""
    url = workspace.state().url
    return url if "://" in url or url.startswith("/") else str(workspace.root / url)


def no_workspace(start: Path) -> NotFoundError:
    return NotFoundError(
        f"{start} is in no workspace (no .tensorrepo/ here or above). Run `tensorrepo init` to make "
        "one, -C DIR to name one, or --repo URL for commands that only read."
    )


def full_path(repository: Repository, root: bytes, name: str) -> str:
    """The path of the entry that `name` means in one tree.

    Raises:
        NotFoundError: none; near ones are suggested.
        InvalidInputError: several, such as a dataset and a model of one name.
    """
    wanted = name.strip("/")
    candidates = (wanted, *(f"{space}/{wanted}" for space in SPACES))
    found = [path for path in candidates if _exists(repository, root, path)]
    if len(found) > 1:
        raise InvalidInputError(f"{name!r} may be {' or '.join(found)}: write it out")
    if not found:
        names = [path for path, _ in iterate(repository.objects, root)][:8]
        listed = f" There are: {', '.join(names)}." if names else " The commit is empty."
        raise NotFoundError(f"no entry {name!r} there.{listed}")
    return found[0]


def _exists(repository: Repository, root: bytes, path: str) -> bool:
    try:
        return lookup(repository.objects, root, path) is not None
    except InvalidInputError:
        return False


def entry_at(session: Session, path: str) -> Entry | None:
    """The entry at `path` as staged, else as the commit that staging builds on has it."""
    staging = session.here.staging()
    if path in staging.entries:
        return staging.entries[path].entry
    return base_entry(session, path)


def base_entry(session: Session, path: str) -> Entry | None:
    """The entry at `path` in the commit that staging builds on."""
    objects = session.repository.objects
    return lookup(objects, tree_of(objects, session.base()), path)
