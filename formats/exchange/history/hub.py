"""What Hugging Face's libraries downloaded: each revision of a cache's folder, or one snapshot.

    models--NS--NAME/refs/main                 id of a commit
    models--NS--NAME/snapshots/COMMIT/FILE     links to ../../blobs/ETAG
    models--NS--NAME/blobs/ETAG                bytes; the ETag is their sha256, or git's id of them

A folder that ``local_dir=`` filled has ``.cache/huggingface/download/FILE.metadata`` instead, whose
first lines are the commit and the ETag.

A cache tells neither parents nor authors. Its revisions follow one another in the order in which
they were downloaded, but for those of other branches, which stand for themselves.

Source:
    huggingface_hub, guide "Manage your cache".
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tensorrepo.formats.exchange.history.base import HEADS, TAGS, HistoryCommit, HistoryFile
from tensorrepo.formats.exchange.history.git import check_digest, name_fault
from tensorrepo.repo.errors import CorruptError, InvalidInputError

_REPOSITORY: Final = re.compile(r"(models|datasets)--(.+)")
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_VERSION: Final = re.compile(r"v?\d+(?:\.\d+)*(?:[-.]?\w+)?")
_LOCAL: Final = Path(".cache") / "huggingface" / "download"
_METADATA: Final = ".metadata"
_AUTHOR: Final = "Hugging Face Hub <hub@huggingface.co>"
_MAIN: Final = "main"


class HubHistory:
    """Revisions of a model or dataset of the Hub, as they lie on this machine."""

    tool = "huggingface"

    def __init__(
        self,
        path: Path,
        name: str | None,
        environment: Mapping[str, str],  # noqa: ARG002  git's need it
    ) -> None:
        """Open one folder of a cache, or a cache with one folder, or what ``local_dir=`` filled.

        Raises:
            InvalidInputError: none of these, or a cache with several.
        """
        self.path = _one_repository(path)
        match = _REPOSITORY.fullmatch(self.path.name)
        self.is_model = match is None or match[1] == "models"
        own = self.path.resolve().name if match is None else match[2].split("--")[-1]
        self.name = name or own
        self.folder = f"files/datasets/{self.name}"
        self.notes: list[str] = []
        self._places: dict[str, Path] = {}
        self._verified: set[str] = set()
        self._is_local = match is None
        self._refs: dict[str, str] | None = None  # as they were first

    def refs(self) -> dict[str, str]:
        """Branches, and tags: the cache does not tell which. What reads as a version is a tag."""
        if self._refs is None:
            self._refs = self._read_refs()
        return dict(self._refs)

    def _read_refs(self) -> dict[str, str]:
        if self._is_local:
            return {HEADS + _MAIN: self._local_commit()}
        found: dict[str, str] = {}
        folder = self.path / "refs"
        for place in sorted(each for each in folder.rglob("*") if each.is_file()):
            ref = place.relative_to(folder).as_posix()
            commit = place.read_text("ascii", "replace").strip()
            if not _COMMIT.fullmatch(commit):
                raise InvalidInputError(f"{place} names {commit!r:.80}, which is no commit")
            if not (self.path / "snapshots" / commit).is_dir():
                self.notes.append(f"{ref} is {commit:.12}, of which nothing was downloaded")
                continue
            found[(TAGS if _VERSION.fullmatch(ref) else HEADS) + ref] = commit
        loose = [one for one in self._snapshots() if one not in found.values()]
        if loose and HEADS + _MAIN not in found:
            found[HEADS + _MAIN] = loose[-1]
        return found

    def commits(self) -> Iterator[HistoryCommit]:
        """Revisions, the first that was downloaded first."""
        refs = self.refs()
        of_others = {one for ref, one in refs.items() if ref != HEADS + _MAIN}
        main = refs.get(HEADS + _MAIN)
        before: tuple[str, ...] = ()
        snapshots = [refs[HEADS + _MAIN]] if self._is_local else self._snapshots()
        line = [one for one in snapshots if one != main and one not in of_others]
        for commit in [*line, *([main] if main else [])]:
            yield self._commit(commit, before)
            before = (commit,)
        for commit in [one for one in snapshots if one in of_others and one != main]:
            yield self._commit(commit, ())

    def files(self, commit: str) -> dict[str, HistoryFile]:
        """Files of a revision that were downloaded."""
        root = self.path if self._is_local else self.path / "snapshots" / commit
        found: dict[str, HistoryFile] = {}
        for folder, folders, names in os.walk(root):
            if self._is_local and Path(folder) == root:
                folders[:] = [each for each in folders if each != ".cache"]
            for each in sorted(names):
                place = Path(folder) / each
                name = place.relative_to(root).as_posix()
                found[name] = self._file(place, name)
        return found

    def content(self, file: HistoryFile, scratch: Path) -> Path:  # noqa: ARG002  they lie there
        """Where the bytes of a file lie, verified by its ETag."""
        kind, _, etag = file.key.partition(":")
        place = self._places[file.key]
        if file.key not in self._verified:
            if kind == "sha256":
                check_digest(place, etag, hashlib.sha256)
            elif kind == "git":
                size = place.stat().st_size
                check_digest(
                    place, etag, lambda: hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
                )
            self._verified.add(file.key)
        return place

    def close(self) -> None:
        """Nothing was started."""

    def _file(self, place: Path, name: str) -> HistoryFile:
        target = place.resolve()
        fault = name_fault(name)
        if not self._is_local:
            inside = target.is_relative_to(self.path.resolve())
            if not inside:
                raise InvalidInputError(
                    f"{place} is a link out of the cache, to {target}: nothing was imported"
                )
            if not target.is_file():
                fault = f"its bytes are not there: {target}"
        elif place.is_symlink():
            raise InvalidInputError(f"{place} is a link: downloads into a folder have none")
        etag = target.name if place.is_symlink() else self._local_etag(name)
        key = _key_of(etag)
        if key is None:
            key = f"file:{_sha256(target)}" if fault is None else f"file:{name}"
        self._places[key] = target
        return HistoryFile(key, fault)

    def _local_etag(self, name: str) -> str:
        place = self.path / _LOCAL / f"{name}{_METADATA}"
        if not self._is_local or not place.is_file():
            return ""
        lines = place.read_text("utf-8", "replace").splitlines()
        return lines[1].strip() if len(lines) > 1 else ""

    def _local_commit(self) -> str:
        folder = self.path / _LOCAL
        texts = (place.read_text("utf-8", "replace") for place in folder.rglob(f"*{_METADATA}"))
        commits = {text[:40] for text in texts if _COMMIT.fullmatch(text[:40])}
        if len(commits) != 1:
            raise InvalidInputError(
                f"{self.path}: its files are of {len(commits)} revisions: download one again, whole"
            )
        return commits.pop()

    def _snapshots(self) -> list[str]:
        folder = self.path / "snapshots"
        places = [each for each in folder.iterdir() if each.is_dir()] if folder.is_dir() else []
        odd = next((each for each in places if not _COMMIT.fullmatch(each.name)), None)
        if odd is not None:
            raise InvalidInputError(f"{odd} is no revision: expected the 40 digits of a commit")
        by_age = sorted(places, key=lambda at: (at.stat().st_mtime_ns, at.name))
        return [each.name for each in by_age]

    def _commit(self, commit: str, parents: tuple[str, ...]) -> HistoryCommit:
        at = self.path if self._is_local else self.path / "snapshots" / commit
        message = f"Revision {commit} of {self.name}"
        return HistoryCommit(commit, parents, _AUTHOR, message, at.stat().st_mtime_ns)


def is_hub(path: Path) -> bool:
    """Whether a folder is one that the Hub's libraries filled."""
    if _REPOSITORY.fullmatch(path.name) and (path / "snapshots").is_dir():
        return True
    return (path / _LOCAL).is_dir() or bool(_repositories(path))


def _repositories(path: Path) -> list[Path]:
    found = path.glob("*--*") if path.is_dir() else ()
    return sorted(each for each in found if _REPOSITORY.fullmatch(each.name) and each.is_dir())


def _one_repository(path: Path) -> Path:
    if _REPOSITORY.fullmatch(path.name) or (path / _LOCAL).is_dir():
        return path
    found = _repositories(path)
    if len(found) == 1:
        return found[0]
    names = ", ".join(each.name for each in found[:8])
    raise InvalidInputError(
        f"{path} has {len(found)} repositories of the Hub: give one, PATH/NAME. They are {names}"
    )


def _key_of(etag: str) -> str | None:
    if _SHA256.fullmatch(etag):
        return f"sha256:{etag}"
    return f"git:{etag}" if _COMMIT.fullmatch(etag) else None


def _sha256(place: Path) -> str:
    try:
        with place.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise CorruptError(f"{place}: {error.strerror}") from error
