"""Git repositories: commits, trees and blobs, and the large files of git-lfs.

Objects are asked of ``git cat-file``, one process for all of them. A repository may be anybody's:
no hook, filter or helper of its configuration runs, and nothing is fetched.

Of git-lfs a blob may be a pointer, a text of three lines that names a sha256 and a size; the bytes
lie in ``.git/lfs/objects/aa/bb/<sha256>``.

Source:
    git's documentation of cat-file and of its objects; git-lfs, "Git LFS Specification".
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Final

from tensorrepo.formats.exchange.history.base import HEADS, TAGS, HistoryCommit, HistoryFile
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, StorageError, UnsupportedError
from tensorrepo.repo.names import check_file_name

_MOST_POINTER_BYTES: Final = 1024  # by the specification; a larger blob is none
_MOST_TEXT_BYTES: Final = 16 << 20  # of a commit, or a tree, that is held
_PIECE_BYTES: Final = 1 << 20
_CACHED: Final = 1 << 16  # trees and blobs that are remembered
_LINK, _SUBMODULE, _FOLDER = "120000", "160000", "40000"
_PERSON: Final = re.compile(rb"(.*) (-?\d+) [+-]\d+")
_POINTER: Final = re.compile(
    rb"version https://(?:git-lfs\.github\.com|hawser\.github\.com)/spec/v1\n"
    rb"(?:ext-\d-\w+ sha256:[0-9a-f]{64}\n)*"
    rb"oid sha256:([0-9a-f]{64})\nsize (\d{1,19})\n"
)
_NS: Final = 10**9
_MOST_SECONDS: Final = ((1 << 63) - 1) // _NS  # since 1970: into the year 2262


@dataclass(frozen=True, slots=True)
class _TreeItem:
    mode: str
    name: str
    id: str


class GitObjects:
    """Objects of a repository by id, from one ``git cat-file``."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        """Start it. Raises InvalidInputError: no repository, or git is not installed."""
        self.folder = folder
        self.environment = _without_transport(environment)
        try:
            self.git_folder = Path(self.run("rev-parse", "--git-common-dir").strip())
        except InvalidInputError as error:
            raise InvalidInputError(
                f"{error}. Name a repository of git, a DVC project, or a folder that libraries of "
                "Hugging Face downloaded"
            ) from error
        if not self.git_folder.is_absolute():
            self.git_folder = folder / self.git_folder
        self._process = subprocess.Popen(  # noqa: S603  words of ours
            _command("cat-file", "--batch"),
            cwd=folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *words: str, given: str | None = None, fails: bool = False) -> str:
        """What another command of git says. With `fails` one that fails says nothing.

        Raises:
            InvalidInputError: it fails; says why.
        """
        try:
            done = subprocess.run(  # noqa: S603  words of ours, and ids that git gave
                _command(*words),
                cwd=self.folder,
                env=self.environment,
                input=(given or "").encode(),
                capture_output=True,
                check=False,
            )
        except OSError as error:
            raise InvalidInputError(
                f"git did not start in {self.folder}: {error.strerror}. It reads the history: "
                "install it"
            ) from error
        if done.returncode and not fails:
            said = done.stderr.decode(errors="replace").strip()
            raise InvalidInputError(f"{self.folder}: {said[:500]}")
        return done.stdout.decode("utf-8", "surrogateescape") if not done.returncode else ""

    def read(self, object_id: str, kind: str) -> bytes:
        """A commit, a tree, or a small blob.

        Raises:
            CorruptError: it is not there, or of another kind.
            UnsupportedError: it is too large for what it is.
        """
        size = self._ask(object_id, kind)
        if size > _MOST_TEXT_BYTES:
            self._skip(size)
            raise UnsupportedError(
                f"{kind} {object_id}: {size:,} bytes, at most {_MOST_TEXT_BYTES:,} are read"
            )
        text = self._answer.read(size)
        self._answer.read(1)
        if len(text) != size:
            raise CorruptError(f"git ended amid {kind} {object_id}: `git fsck` says more")
        return text

    def blob_if_small(self, object_id: str, most_bytes: int) -> bytes | None:
        """A blob of no more than so many bytes; None: it is larger."""
        size = self._ask(object_id, "blob")
        if size > most_bytes:
            self._skip(size)
            return None
        text = self._answer.read(size)
        self._answer.read(1)
        return text

    def copy(self, object_id: str, file: IO[bytes]) -> None:
        """Write a blob; git verified its bytes by its id."""
        left = self._ask(object_id, "blob")
        while left:
            piece = self._answer.read(min(left, _PIECE_BYTES))
            if not piece:
                raise CorruptError(f"git ended amid blob {object_id}: `git fsck` says more")
            file.write(piece)
            left -= len(piece)
        self._answer.read(1)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    @property
    def _answer(self) -> IO[bytes]:
        assert self._process.stdout is not None, "it is a pipe"
        return self._process.stdout

    def _ask(self, object_id: str, kind: str) -> int:
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(object_id.encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise StorageError(f"git ended before {kind} {object_id} was read") from error
        told = self._answer.readline().split()
        if len(told) != 3 or told[1].decode() != kind:
            if len(told) == 3:
                self._skip(int(told[2]))
            found = b" ".join(told[1:2]).decode() or "nothing"
            raise CorruptError(
                f"{self.folder}: expected {kind} {object_id}, found {found}. `git fsck` says more; "
                "of a partial clone `git fetch --refetch --no-filter` brings the rest"
            )
        return int(told[2])

    def _skip(self, size: int) -> None:
        left = size + 1
        while left and (piece := self._answer.read(min(left, _PIECE_BYTES))):
            left -= len(piece)


class GitHistory:
    """The local branches and tags of a git repository; pointers of git-lfs are what they name."""

    tool: str = "git"
    is_model = False
    folder = "files"

    def __init__(self, path: Path, name: str | None, environment: Mapping[str, str]) -> None:
        """Open it.

        Args:
            path: its work tree, or a bare repository.
            name: what it is called; None: as its folder is.
            environment: variables of this process, by which git is found.
        """
        self.path = path
        self.name = name or path.resolve().name.removesuffix(".git")
        self.notes: list[str] = []
        self.objects = GitObjects(path, environment)
        self._told: set[str] = set()
        self._refs: dict[str, str] | None = None  # as they were first: others may commit meanwhile
        self._verified: set[str] = set()
        self._lfs = self._lfs_folder()
        self._tree = lru_cache(maxsize=_CACHED)(self._read_tree)
        self._blob = lru_cache(maxsize=_CACHED)(self._read_blob)

    def refs(self) -> dict[str, str]:
        """Commits of branches and tags; what a tag leads to that is none is left out."""
        if self._refs is None:
            self._refs = self._read_refs()
        return dict(self._refs)

    def _read_refs(self) -> dict[str, str]:
        text = self.objects.run(
            "for-each-ref",
            "--format=%(refname) %(objectname) %(objecttype) %(*objectname) %(*objecttype)",
            "refs/heads",
            "refs/tags",
        )
        found = {}
        for line in text.splitlines():
            name, *told = line.split(" ")
            pairs = [*zip(told[::2], told[1::2], strict=False)]
            commit = next((one for one, kind in pairs if kind == "commit"), None)
            if commit is None:
                self._note(f"{name} leads to no commit")
            else:
                found[name.removeprefix("refs/")] = commit
        elsewhere = self.objects.run("for-each-ref", "--format=%(refname)", "refs/remotes")
        others = {name.partition("/")[2] for name in elsewhere.split()} - {"HEAD"}
        if others:
            local = sum(name.startswith(HEADS) for name in found)
            self._note(
                f"{local} local branches and all tags are imported; of branches that only remotes "
                "have, `git switch NAME` makes local ones"
            )
        return {name: one for name, one in found.items() if name.startswith((HEADS, TAGS))}

    def commits(self) -> Iterator[HistoryCommit]:
        """All that refs lead to; where a shallow clone ends, commits have no parents."""
        tips = sorted(set(self.refs().values()))
        if not tips:
            return
        text = self.objects.run("rev-list", "--topo-order", "--reverse", "--parents", "--stdin",
            given="\n".join(tips),
        )  # fmt: skip
        for line in text.splitlines():
            commit, *parents = line.split()
            yield self._commit(commit, tuple(dict.fromkeys(parents)))

    def files(self, commit: str) -> dict[str, HistoryFile]:
        """Files of a commit. Symbolic links and submodules are told in `notes`, and left out."""
        found: dict[str, HistoryFile] = {}
        for item in self.walk(commit):
            if item.mode == _SUBMODULE:
                self._note(f"{item.name} is a submodule: import its repository by itself")
            elif item.mode == _LINK:
                self._note(f"{item.name} is a symbolic link, and was left out")
            else:
                found[item.name] = self._file(item)
        return found

    def walk(self, commit: str) -> Iterator[_TreeItem]:
        """What is in a commit's tree, at any depth, by whole path."""
        root = _header(self.objects.read(commit, "commit"), b"tree")
        stack = [("", root)]
        while stack:
            above, tree = stack.pop()
            for item in self._tree(tree):
                path = above + item.name
                if item.mode == _FOLDER:
                    stack.append((f"{path}/", item.id))
                else:
                    yield _TreeItem(item.mode, path, item.id)

    def content(self, file: HistoryFile, scratch: Path) -> Path:
        """Where the bytes of a file lie, verified."""
        kind, _, named = file.key.partition(":")
        if kind == "lfs":
            place = self._lfs_place(named)
            if named not in self._verified:
                check_digest(place, named, hashlib.sha256)
                self._verified.add(named)
            return place
        with scratch.open("xb") as target:
            self.objects.copy(named, target)
        return scratch

    def close(self) -> None:
        """End git's process."""
        self.objects.close()

    def _file(self, item: _TreeItem) -> HistoryFile:
        plain = HistoryFile(f"git:{item.id}", name_fault(item.name))
        text = None if plain.fault else self._blob(item.id)
        match = None if text is None else _POINTER.fullmatch(text)
        if match is None:
            return plain
        oid, size = match[1].decode(), int(match[2])
        return HistoryFile(f"lfs:{oid}", self._lfs_fault(oid, size), plain)

    def _lfs_fault(self, oid: str, size: int) -> str | None:
        try:
            found = self._lfs_place(oid).stat().st_size
        except OSError:
            return "its object is not in .git/lfs/objects: `git lfs fetch --all` brings it"
        return None if found == size else f"its pointer says {size:,} bytes, there are {found:,}"

    def _lfs_place(self, oid: str) -> Path:
        return self._lfs / "objects" / oid[:2] / oid[2:4] / oid

    def _lfs_folder(self) -> Path:
        told = self.objects.run("config", "--get", "lfs.storage", fails=True).strip()
        return self.objects.git_folder / (told or "lfs")

    def _commit(self, commit: str, parents: tuple[str, ...]) -> HistoryCommit:
        head, _, message = self.objects.read(commit, "commit").partition(b"\n\n")
        lines = [line for line in head.split(b"\n") if not line.startswith(b" ")]
        told = dict(reversed([*(line.partition(b" ")[::2] for line in lines)]))
        coding = told.get(b"encoding", b"utf-8").decode("ascii", "replace")
        person = _PERSON.fullmatch(told.get(b"author", b""))
        author, seconds = (b"unknown", 0) if person is None else (person[1], int(person[2]))
        return HistoryCommit(
            commit,
            parents,
            _text(author, coding),
            _text(message, coding),
            min(max(seconds, 0), _MOST_SECONDS) * _NS,
        )

    def _read_tree(self, tree: str) -> tuple[_TreeItem, ...]:
        data, width = self.objects.read(tree, "tree"), len(tree) // 2
        found, at = [], 0
        while at < len(data):
            end = data.index(b"\0", at)
            mode, _, name = data[at:end].partition(b" ")
            text = name.decode("utf-8", "surrogateescape")
            if text in {"", ".", ".."} or "/" in text:
                raise InvalidInputError(
                    f"{self.path}: tree {tree} names {text!r:.100}, which leads out of it. Nothing "
                    "of that commit was imported; `git fsck` says more"
                )
            found.append(_TreeItem(mode.decode(), text, data[end + 1 : end + 1 + width].hex()))
            at = end + 1 + width
        return tuple(found)

    def _read_blob(self, object_id: str) -> bytes | None:
        return self.objects.blob_if_small(object_id, _MOST_POINTER_BYTES)

    def _note(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.notes.append(text)


def name_fault(name: str) -> str | None:
    """Why a file cannot have this name here; None: it can."""
    try:
        check_file_name(name)
    except InvalidInputError as error:
        return str(error)
    return None


def check_digest(
    place: Path,
    expected: str,
    algorithm: Callable[[], hashlib._Hash],
    *others: str,
) -> None:
    """Read a file, and see that it has a digest.

    Raises:
        CorruptError: it has another one.
    """
    try:
        with place.open("rb") as file:
            found = hashlib.file_digest(file, algorithm).hexdigest()
    except OSError as error:
        raise StorageError(f"{place}: {error.strerror}") from error
    if found not in {expected, *others}:
        raise CorruptError(
            f"{place} is damaged: expected {expected}, found {found}. Remove it and fetch it again"
        )


def without_content(file: HistoryFile) -> HistoryFile | None:
    """What stands for a file whose content cannot be had; None: nothing."""
    if file.pointer is None or file.pointer.fault is not None:
        return None
    return replace(file.pointer, fault=None)


def _command(*words: str) -> list[str]:
    # A repository may say in its own configuration which program watches files: none is started.
    quiet = ("--no-optional-locks", "--no-replace-objects", "-c", "core.fsmonitor=false")
    return ["git", *quiet, *words]


def _without_transport(environment: Mapping[str, str]) -> Mapping[str, str]:
    """A partial clone would fetch what it lacks, by helpers that its configuration names."""
    kept = {name: value for name, value in environment.items() if not name.startswith("GIT_")}
    return {**kept, "GIT_ALLOW_PROTOCOL": "none", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}


def _header(text: bytes, name: bytes) -> str:
    first = text.partition(b"\n")[0]
    if not first.startswith(name + b" "):
        raise CorruptError(f"a commit of git begins {first[:80]!r}: expected a tree")
    return first[len(name) + 1 :].decode()


def _text(data: bytes, coding: str) -> str:
    try:
        return data.decode(coding, "replace")
    except LookupError:
        return data.decode("utf-8", "replace")
