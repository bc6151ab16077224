"""What is in a file that comes with a model?"""

from __future__ import annotations

import mmap
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from tensorrepo.formats.damage import refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.model.source import FileContent
    from tensorrepo.repo.ids import Buffer

_MAP_FROM_BYTES: Final = 16 << 20


def content_of(content: FileContent) -> Buffer:
    """The bytes; those of a large file are mapped, so that they need not fit in memory."""
    if not isinstance(content, Path):
        return content
    with refusals(content, "file"), content.open("rb") as file:
        if content.stat().st_size < _MAP_FROM_BYTES:
            return file.read()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    with refusals(path, "file"), path.open("rb") as file:
        yield file
