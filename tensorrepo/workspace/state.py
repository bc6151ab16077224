"""State of a workspace: its repository, HEAD, the staging area, files that it wrote."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest, parse_digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.typed_decoding import from_json

FOLDER, CONFIG = ".tensorrepo", "config.json"
FORMAT = 1
T = TypeVar("T")
U = TypeVar("U")


def _check_digests(*digests: Digest | None) -> None:
    for digest in digests:
        if digest is not None:
            parse_digest(digest)


class WorkspaceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """`workspace.json`. `previous` is where HEAD was before it was moved last."""

    format: int
    url: str
    head: Head
    lease: str | None = None
    lease_seconds: float = 0.0  # when the lease was renewed last, by this machine's clock
    previous: Head | None = None


NO_STATE = WorkspaceState(0, "", Head(branch="main"))


class StagedEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One change that the next commit will make. `kind` None stages a removal.

    `tracked` are paths that `checkout` wrote and that were added, as they were then: what they hold
    is in no commit yet.
    """

    kind: str | None = None
    digest: Digest | None = None
    storage: Digest | None = None
    summary: str = ""  # in hexadecimal
    rows: int = 0
    bytes: int = 0
    source: str = ""
    tracked: dict[str, Tracked] = {}

    def __post_init__(self) -> None:
        if (self.kind is None) != (self.digest is None):
            raise ValueError("what is staged has a kind and a digest, a removal has neither")
        if self.kind is not None and self.kind not in Kind.__members__:
            raise ValueError(f"there is no kind {self.kind!r:.40} of object")
        bytes.fromhex(self.summary)
        _check_digests(self.digest, self.storage)

    @property
    def entry(self) -> Entry | None:
        """What the tree will hold; None for a removal."""
        if self.kind is None or self.digest is None:
            return None
        return Entry(Kind[self.kind], self.digest, self.storage, bytes.fromhex(self.summary))


class StagingArea(msgspec.Struct, frozen=True, omit_defaults=True):
    """`staged.json`: what is staged, and since when.

    `base` is the commit that it was staged on (None: no commit yet); the branch may move between
    `add` and `commit`, which then merges. `generation` is where the log stood before the first
    `add` stored anything: the fence looks at every condemnation after it.
    """

    base: Digest | None = None
    generation: int = 0
    entries: dict[str, StagedEntry] = {}

    def __post_init__(self) -> None:
        _check_digests(self.base)


def config_beside(url: str) -> Path | None:
    """Settings of the workspace whose own store lies at `url`, as `init` lays it; else None."""
    folder = Path(url).parent  # of other stores no folder of this machine
    return folder / CONFIG if "://" not in url and folder.name == FOLDER else None


class Unfinished(msgspec.Struct, frozen=True):
    """How far an `add` that was cut off had got.

    `source` says what was read and how, `base` what it was put behind. `root` holds the first
    `rows` rows of it. While the lease of the staging area keeps `root`, the same `add` goes on.
    `generation` is where the log stood before any of it was stored; None: not known.
    """

    source: str
    base: Digest | None
    root: Digest
    rows: int
    skipped: int = 0  # of them, rows that did not fit
    nulled: int = 0  # values that did not fit
    generation: int | None = None

    def __post_init__(self) -> None:
        _check_digests(self.base, self.root)


class Tracked(msgspec.Struct, frozen=True):
    """One file or folder that `checkout` wrote: what it was made from, and how it looked then."""

    entry: str
    digest: Digest
    format: str
    files: dict[str, tuple[int, int]]  # relative path -> size in bytes, mtime in ns


class Stash(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was put aside: staged entries, and working files as they were.

    `files` are paths that `checkout` wrote and that were changed, as they were written; each lies
    in the folder of the stash under its number in the order of paths. `lease` keeps what is staged.
    """

    id: str
    message: str
    head: Head
    time_ns: int
    staging: StagingArea = StagingArea()
    files: dict[str, Tracked] = {}
    lease: str | None = None
    lease_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.id.isalnum():
            raise ValueError(f"a stash is named by letters and digits, got {self.id!r:.40}")


class Bisection(msgspec.Struct, frozen=True, omit_defaults=True):
    """`bisect.json`: where a bisection began, and what is known so far.

    `verdicts` are commits with "good", "bad" or "skip", in the order in which they were told; of a
    commit the last one counts. `update` writes tracked files anew at each step.
    """

    start: Head
    verdicts: list[tuple[str, Digest]] = []
    update: bool = False

    def __post_init__(self) -> None:
        _check_digests(*(digest for _, digest in self.verdicts))


@dataclass(frozen=True, slots=True)
class Workspace:
    """A folder under version control. A handle: every question reads the files anew."""

    root: Path

    @property
    def folder(self) -> Path:
        return self.root / FOLDER

    @property
    def config_file(self) -> Path:
        """Settings of this workspace alone."""
        return self.folder / CONFIG

    @property
    def message_file(self) -> Path:
        """Where the editor writes the message of a commit."""
        return self.folder / "COMMIT_EDITMSG"

    @property
    def stdin_file(self) -> Path:
        """Where an `add` of standard input lays it down: lineage names the source ``-``."""
        return self.folder / "stdin" / "-"

    def state(self) -> WorkspaceState:
        state = _read(self.folder / "workspace.json", WorkspaceState, NO_STATE)
        if state is NO_STATE:
            raise NotFoundError(f"{self.folder} holds no workspace.json. Run `tensorrepo init`.")
        if state.format != FORMAT:
            raise UnsupportedError(
                f"{self.folder}: workspace format {state.format}, this tensorrepo knows {FORMAT}. "
                "Update it."
            )
        return state

    def staging(self) -> StagingArea:
        return _read(self.folder / "staged.json", StagingArea, StagingArea())

    def tracked(self) -> dict[str, Tracked]:
        """What was written out, by path relative to the root of the workspace."""
        return _read(self.folder / "tracked.json", dict[str, Tracked], {})

    def unfinished(self) -> dict[str, Unfinished]:
        """What was being added when a command was cut off, by entry."""
        return _read(self.folder / "unfinished.json", dict[str, Unfinished], {})

    def stashes(self) -> list[Stash]:
        """What was put aside, the newest first."""
        return _read(self.folder / "stash.json", list[Stash], [])

    def write_stashes(self, stashes: Sequence[Stash]) -> None:
        _write(self.folder / "stash.json", stashes)

    def stash_folder(self, stash: Stash) -> Path:
        """Where the working files of a stash lie."""
        return self.folder / "stash" / stash.id

    def bisection(self) -> Bisection | None:
        """The bisection that is going on here."""
        return _read(self.folder / "bisect.json", Bisection, None)

    def write_bisection(self, bisection: Bisection | None) -> None:
        file = self.folder / "bisect.json"
        if bisection is None:
            file.unlink(missing_ok=True)
        else:
            _write(file, bisection)

    def write_unfinished(self, unfinished: Mapping[str, Unfinished]) -> None:
        _write(self.folder / "unfinished.json", dict(sorted(unfinished.items())))

    def write_state(self, state: WorkspaceState) -> None:
        _write(self.folder / "workspace.json", state)

    def files(self) -> dict[str, Tracked]:
        """Paths that `checkout` wrote, as they were then or when they were staged."""
        staged = self.staging().entries.values()
        return self.tracked() | {
            path: tracked for each in staged for path, tracked in each.tracked.items()
        }

    def write_staging(self, staging: StagingArea) -> None:
        _write(self.folder / "staged.json", staging)

    def write_tracked(self, tracked: Mapping[str, Tracked]) -> None:
        _write(self.folder / "tracked.json", dict(sorted(tracked.items())))

    def set_head(self, head: Head) -> None:
        state = self.state()
        previous = state.previous if head == state.head else state.head
        self.write_state(msgspec.structs.replace(state, head=head, previous=previous))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Alone in the workspace. The lock is the kernel's: it cannot outlive its holder.

        Raises:
            ConflictError: another command is at work here.
        """
        try:
            file = (self.folder / "lock").open("w")
        except OSError as error:
            raise _explain(error, self.folder / "lock") from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(
                    f"another tensorrepo command is at work in {self.root}. Wait for it and repeat."
                ) from None
            yield


def find_workspace(start: Path) -> Workspace | None:
    """The workspace that holds `start`: the nearest folder upward with `.tensorrepo/`."""
    for folder in (start, *start.parents):
        if (folder / FOLDER / "workspace.json").is_file():
            return Workspace(folder)
    return None


def create_workspace(root: Path, url: str, head: Head) -> Workspace:
    """Make `root` a workspace on the repository at `url`, wherever it lies."""
    workspace = Workspace(root)
    try:
        (workspace.folder / "pending").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _explain(error, workspace.folder) from error
    workspace.write_state(WorkspaceState(FORMAT, url, head))
    return workspace


def changed_files(root: Path, path: str, tracked: Tracked) -> dict[str, str]:
    """Files of a tracked path that differ from how they were written: path -> what happened.

    Sizes and times are compared, as git does; the contents are read by `add`.
    """
    place = root / path
    found = {name: (info.st_size, info.st_mtime_ns) for name, info in _files_under(place)}
    changes = {name: "deleted" for name in tracked.files if name not in found}
    for name, facts in found.items():
        if name not in tracked.files:
            changes[name] = "new"
        elif tuple(tracked.files[name]) != facts:
            changes[name] = "modified"
    return dict(sorted(changes.items()))


def describe_files(place: Path) -> dict[str, tuple[int, int]]:
    """Size in bytes and mtime in ns of every file at `place` ("" when it is a file itself)."""
    return {name: (info.st_size, info.st_mtime_ns) for name, info in _files_under(place)}


def _files_under(place: Path) -> Iterator[tuple[str, os.stat_result]]:
    if place.is_file():
        yield "", place.stat()
        return
    for folder, _, names in os.walk(place):
        for name in names:
            path = Path(folder, name)
            yield path.relative_to(place).as_posix(), path.lstat()


def _read(path: Path, kind: type[T], missing: U) -> T | U:
    try:
        return from_json(path.read_bytes(), kind)
    except FileNotFoundError:
        return missing
    except (ValueError, RecursionError) as error:
        raise CorruptError(
            f"{path} is damaged: {error}. The repository is not affected; make the workspace anew "
            "with `tensorrepo init URL --force`."
        ) from error
    except OSError as error:
        raise _explain(error, path) from error


def _write(path: Path, value: object) -> None:
    """Replace a file as a whole: a crash leaves the old one or the new one."""
    data = msgspec.json.format(msgspec.json.encode(value), indent=1)
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise _explain(error, path) from error


def _explain(error: OSError, path: Path) -> PermissionDenied | StorageError | InvalidInputError:
    if isinstance(error, PermissionError) or error.errno == 30:
        return PermissionDenied(f"cannot write {path}: {error.strerror}. Choose another folder.")
    if isinstance(error, (NotADirectoryError, FileExistsError)):
        return InvalidInputError(f"{path} is in the way: {error.strerror}.")
    return StorageError(f"cannot use {path}: {error.strerror}.")
