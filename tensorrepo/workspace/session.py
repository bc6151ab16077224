"""Session of a command: folder, repository and commit that it works on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tensorrepo.connect import (
    Machine,
    allowed_outside,
    author,
    connect,
    create,
    is_url,
    repository_at,
)
from tensorrepo.policy import with_policy
from tensorrepo.repo.changes.repository import IDENTITY_KEY, RepositoryCore
from tensorrepo.repo.changes.revisions import Head, Revision, resolve, split_path
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError, PermissionDenied
from tensorrepo.repo.history.trees import Entry, iterate, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.workspace.state import (
    FOLDER,
    StagedEntry,
    StagingArea,
    Workspace,
    create_workspace,
    find_workspace,
)

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.external.outside import Nothing
    from tensorrepo.formats.dataset.external.outside_read import AllowedOutside


RESERVED = (FOLDER, ".git")  # folders that version control keeps for itself
SPACES = ("datasets", "models", "files", "views")


@dataclass(frozen=True, slots=True)
class WorkspaceSession:
    """A repository, and the workspace on it when there is one. `warn` tells the user something."""

    machine: Machine
    repository: RepositoryCore
    workspace: Workspace | None
    warn: Callable[[str], None] = lambda _: None

    @property
    def here(self) -> Workspace:
        """The workspace. Raises NotFoundError when the command was given a URL instead."""
        if self.workspace is None:
            raise no_workspace(self.machine.cwd)
        return self.workspace

    @property
    def outside(self) -> AllowedOutside | Nothing:
        """Who reads what datasets point at: what the user's settings and the command allow."""
        return allowed_outside(self.machine)

    @property
    def head(self) -> Head | None:
        return self.workspace.state().head if self.workspace else None

    def author(self) -> str:
        """Who is working; raises InvalidInputError that says how to tell."""
        return author(self.machine, self.workspace.config_file if self.workspace else None)

    def branch(self) -> str:
        """The branch that the workspace is on. Raises InvalidInputError on a detached HEAD."""
        head = self.here.state().head
        if head.branch is None:
            raise InvalidInputError(
                f"HEAD is detached at {head.commit:.12}, on no branch: `tensorrepo switch BRANCH` "
                "first, or make one here with `tensorrepo switch -c NAME`"
            )
        return head.branch

    @property
    def default_ref(self) -> str:
        """What is meant where no ref was given."""
        return "HEAD" if self.workspace else "main"

    def resolve(self, text: str | None = None) -> Revision:
        """The commit that `text` names, HEAD being this workspace's; None: `default_ref`."""
        found = resolve(self.repository, text or self.default_ref, head=self.head)
        if found.warning:
            self.warn(found.warning)
        return found

    def tip(self) -> Digest | None:
        """The commit that HEAD stands at now; None on a branch without commits."""
        return self.tip_of(self.here.state().head)

    def tip_of(self, head: Head) -> Digest | None:
        """The commit of a HEAD; None for a branch without commits."""
        if head.commit is not None:
            return head.commit
        return self.repository.log.refresh().state.refs.get(f"heads/{head.branch}")

    def find(self, text: str) -> tuple[Revision, str, Entry]:
        """The entry that ``[REF:]PATH`` names. `datasets/`, `models/` may be left out.

        Raises:
            NotFoundError: no such commit, or no entry of that name in it; says so where it is
                staged, and how to see it.
        """
        ref, path = split_path(text)
        if path is None:
            ref, path = self.default_ref, text
        try:
            revision = self.resolve(ref)
            full = full_path(self.repository, revision.commit.tree, path, where=f"in {ref}")
        except NotFoundError as error:
            if ref != self.default_ref or (staged := self._staged_path(path)) is None:
                raise
            raise NotFoundError(
                f"{staged} is staged, and in no commit yet: `tensorrepo cat {path} --staged` shows "
                "it, `tensorrepo commit` commits it"
            ) from error
        entry = self.repository.entry(revision.commit.tree, full)
        assert entry is not None, "full_path gives paths that exist"
        return revision, full, entry

    def _staged_path(self, name: str) -> str | None:
        """The path that is staged, not for removal, under a name."""
        staged = {} if self.workspace is None else self.workspace.staging().entries
        paths = (name, *(f"{space}/{name}" for space in SPACES))
        return next((path for path in paths if path in staged and staged[path].entry), None)


def open_session(
    machine: Machine, url: str | None = None, *, warn: Callable[[str], None] = lambda _: None
) -> WorkspaceSession:
    """The session of a command.

    Args:
        machine: where it runs. TENSORREPO_DIR names the workspace's folder, or one in it; else
            the workspace is looked for from the current folder upward.
        url: a repository named on the command line; then no workspace is looked for.
        warn: tells the user something that is no failure.

    Raises:
        NotFoundError: no workspace here, or no repository at its URL.
    """
    if url is not None:
        place = url if is_url(url) else repository_at(machine, url)
        repository = with_policy(connect(place, None, machine), machine)
        return WorkspaceSession(machine, repository, None, warn)
    workspace = workspace_around(machine)
    if workspace is None:
        raise no_workspace(_start(machine))
    pending = workspace.folder / "pending"
    url = workspace.state().url
    place = url if is_url(url) else str(workspace.root / url)
    repository = connect(place, None, machine, pending=pending)
    repository = with_policy(repository, machine, workspace.config_file)
    return WorkspaceSession(machine, repository, workspace, warn)


def workspace_around(machine: Machine) -> Workspace | None:
    """The workspace that a command works in, if there is one."""
    return find_workspace(_start(machine).resolve())


def _start(machine: Machine) -> Path:
    return machine.cwd / machine.environment.get("TENSORREPO_DIR", "")


def no_workspace(start: Path) -> NotFoundError:
    return NotFoundError(
        f"{start} is in no workspace (no .tensorrepo/ here or above). Run `tensorrepo init` to "
        "make one, -C DIR to name one, or --repo URL for commands that only read."
    )


def full_path(repository: RepositoryCore, root: bytes, name: str, *, where: str = "there") -> str:
    """The path of the entry that `name` means in one tree, which messages call `where`.

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
        raise NotFoundError(f"no entry {name!r} {where}.{_near(repository, root, wanted)}")
    return found[0]


def _near(repository: RepositoryCore, root: bytes, wanted: str) -> str:
    """What may have been meant instead, else what there is."""
    paths = [path for path, _ in iterate(repository.objects, root)]
    by_name = {path.partition("/")[2]: path for path in paths} | {path: path for path in paths}
    return did_you_mean(wanted, by_name, there_are(paths, "The commit is empty."))


def _exists(repository: RepositoryCore, root: bytes, path: str) -> bool:
    try:
        return lookup(repository.objects, root, path) is not None
    except InvalidInputError:
        return False


@dataclass(frozen=True, slots=True)
class NextCommit:
    """What the next commit of a workspace would hold, as `next_commit` read it once.

    Attributes:
        repository: where the entries are.
        staged: what is staged, by path.
        tree: root of the tree of the commit that it is staged on.
    """

    repository: RepositoryCore
    staged: Mapping[str, StagedEntry]
    tree: bytes

    def entry(self, path: str) -> Entry | None:
        """The entry at `path` as staged, else as the commit that staging builds on has it."""
        staged = self.staged.get(path)
        return self.before(path) if staged is None else staged.entry

    def before(self, path: str) -> Entry | None:
        """The entry at `path` in the commit that staging builds on."""
        return self.repository.entry(self.tree, path)


def next_commit(session: WorkspaceSession) -> NextCommit:
    """Read what is staged, and on which commit (the first `add` fixed it), once for all paths."""
    staging, repository = session.here.staging(), session.repository
    base = staging.base if staging.entries else session.tip()
    return NextCommit(repository, staging.entries, tree_of(repository.objects, base))


def find_staged(session: WorkspaceSession, name: str) -> tuple[str, Entry]:
    """The path and entry that are staged under a name. `datasets/`, `models/` may be left out.

    Raises:
        NotFoundError: nothing of that name is staged, or its removal is.
    """
    staged = session.here.staging().entries
    for path, change in staged.items():
        if name in (path, path.partition("/")[2]):
            if change.entry is None:
                raise NotFoundError(f"{path} is staged for removal")
            return path, change.entry
    raise NotFoundError(
        f"{name} is not staged.{did_you_mean(name, [*staged], there_are(staged, 'Nothing is.'))}"
    )


DEFAULT_URL = f"{FOLDER}/store"


@dataclass(frozen=True, slots=True)
class Started:
    """What `init` made. `created` False: the repository was there, and was joined."""

    repository: RepositoryCore
    workspace: Workspace
    created: bool


def start_workspace(
    machine: Machine, url: str | None, *, force: bool = False, log: str | None = None
) -> Started:
    """Make a repository at `url`, or join the one that is there, and a workspace here.

    With `log` a new repository has its log in that SQL database.

    Raises:
        ConflictError: this folder lies in a workspace already.
        StorageError, PermissionDenied, InvalidInputError: the URL cannot be used, or a new
            repository would lie in this very folder.
    """
    root = machine.cwd.resolve()
    outer = find_workspace(root)
    if outer is not None and not force:
        raise ConflictError(_in_the_way(root, outer))
    stored = url or DEFAULT_URL
    place = stored if is_url(stored) else str(root / stored)
    if not is_url(stored) and Path(place).resolve() == root and not (root / IDENTITY_KEY).exists():
        raise InvalidInputError(
            f"the files of a repository at {root} would lie among those of the workspace. Leave "
            f"URL out, and it lies in {DEFAULT_URL}; or give another folder."
        )
    pending = root / FOLDER / "pending"
    made = _make_folder(root)
    try:
        try:
            repository = create(place, None, machine, pending=pending, log=log)
            created = True
        except ConflictError:
            if log is not None:
                raise  # where the log of a repository is was said when it was made
            repository, created = connect(place, None, machine, pending=pending), False
    except BaseException:
        if made:  # leave no half of a workspace behind
            shutil.rmtree(root / FOLDER, ignore_errors=True)
        raise
    workspace = create_workspace(root, stored, Head(branch="main"))
    workspace.write_staging(StagingArea())
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
