"""A commit as Hugging Face's clients send it: lines of JSON, read one at a time.

The first line says what it is about, each other one is a file that comes, goes or is copied. Small
files stand in it in base64; large ones were uploaded before and are named by their SHA-256.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import field
from pathlib import Path
from typing import Final

import msgspec
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.huggingface.upload_spool import check_sha256
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, TooLargeError
from tensorrepo.repo.names import check_file_name
from tensorrepo.repo.typed_decoding import from_json

MAX_BODY_BYTES: Final = 4 << 30
MAX_LINE_BYTES: Final = 64 << 20
MAX_FILES: Final = 100_000  # that come or go
_IN_MEMORY_BYTES: Final = 32 << 20  # of contents; what comes behind them lies on disk


class _Line(msgspec.Struct):
    key: str
    value: msgspec.Raw


class _Header(msgspec.Struct):
    summary: str = ""
    description: str | None = None
    parent: str | None = msgspec.field(default=None, name="parentCommit")


class _File(msgspec.Struct):
    path: str
    content: str
    encoding: str = "utf-8"


class _Large(msgspec.Struct):
    path: str
    oid: str
    algo: str = "sha256"
    size: int | None = None


class _Path(msgspec.Struct):
    path: str


@dataclass(frozen=True, slots=True)
class LargeFile:
    """A file by its SHA-256; `size_bytes` None: a copy of one that the repository has."""

    sha256: str
    size_bytes: int | None


@dataclass(slots=True)
class CommitRequest:
    """What a commit is to change. Of several lines about one path the last counts.

    Attributes:
        summary: first line of the message.
        description: the rest of it.
        parent: 40 digits of the commit that the branch has to be at; None: any.
        contents: files that come, by path.
        large: files that were uploaded, or are copied, by path.
        removed: files that go.
        removed_folders: folders that go; "" is all of the repository.
    """

    summary: str = ""
    description: str = ""
    parent: str | None = None
    contents: dict[str, bytes | Path] = field(default_factory=dict)
    large: dict[str, LargeFile] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    removed_folders: set[str] = field(default_factory=set)

    @property
    def message(self) -> str:
        title = self.summary.strip() or "Upload"
        return f"{title}\n\n{self.description}".strip() if self.description else title

    def goes(self, path: str) -> bool:
        """Whether a file of before goes, or another one takes its place."""
        if path in self.removed or path in self.contents or path in self.large:
            return True
        return any(not folder or path.startswith(f"{folder}/") for folder in self.removed_folders)


async def read_request(pieces: AsyncIterator[bytes], room: Path) -> CommitRequest:
    """The commit in a body.

    Args:
        pieces: the body.
        room: folder for contents that are too many to be held.

    Raises:
        InvalidInputError: a line that is none of these, or a path that no file can have.
        TooLargeError: too many files, or too much in one line.
    """
    reader = _Reader(room)
    held = bytearray()
    async for piece in pieces:
        held += piece
        if b"\n" in piece:
            *lines, last = bytes(held).split(b"\n")
            held = bytearray(last)
            await run_in_threadpool(reader.take, lines)
        if len(held) > MAX_LINE_BYTES:
            raise TooLargeError(f"a line of a commit has at most {MAX_LINE_BYTES:,} bytes")
    await run_in_threadpool(reader.take, [bytes(held)])
    return reader.request


class _Reader:
    def __init__(self, room: Path) -> None:
        self.request = CommitRequest()
        self._room = room
        self._held = 0
        self._files = 0

    def take(self, lines: list[bytes]) -> None:
        for line in lines:
            if line.strip():
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            told = from_json(line, _Line)
            if told.key == "header":
                self._header(from_json(told.value, _Header))
            elif told.key == "file":
                self._file(from_json(told.value, _File))
            elif told.key == "lfsFile":
                self._large(from_json(told.value, _Large))
            elif told.key in {"deletedFile", "deletedFolder"}:
                self._removed(told.key, from_json(told.value, _Path))
            else:
                raise InvalidInputError(f"a commit has no line {told.key!r:.60}")
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInputError(f"a line of this commit is not as expected: {error}") from error

    def _header(self, header: _Header) -> None:
        self.request.summary = header.summary
        self.request.description = header.description or ""
        self.request.parent = header.parent

    def _file(self, file: _File) -> None:
        path = self._path(file.path)
        try:
            data = (
                b64decode(file.content, validate=True)
                if file.encoding == "base64"
                else file.content.encode()
            )
        except (binascii.Error, ValueError) as error:
            raise InvalidInputError(f"{path!r:.200}: its content is no base64") from error
        self._held += len(data)
        content: bytes | Path = data
        if self._held > _IN_MEMORY_BYTES:
            content = self._room / str(self._files)
            content.write_bytes(data)
        self._forget(path)
        self.request.contents[path] = content

    def _large(self, file: _Large) -> None:
        path = self._path(file.path)
        if file.algo != "sha256":
            raise InvalidInputError(f"{path!r:.200}: files are named by sha256, not {file.algo!r}")
        self._forget(path)
        self.request.large[path] = LargeFile(check_sha256(file.oid), file.size)

    def _removed(self, key: str, told: _Path) -> None:
        self._count()
        path = told.path.strip("/")
        if key == "deletedFile":
            self.request.removed.add(check_file_name(path))
        else:
            self.request.removed_folders.add(path if path in {"", "."} else check_file_name(path))

    def _path(self, path: str) -> str:
        self._count()
        return check_file_name(path)

    def _count(self) -> None:
        self._files += 1
        if self._files > MAX_FILES:
            raise TooLargeError(f"a commit has at most {MAX_FILES:,} files: make several")

    def _forget(self, path: str) -> None:
        self.request.contents.pop(path, None)
        self.request.large.pop(path, None)
