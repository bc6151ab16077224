"""What is in a file that comes with a model?"""

from __future__ import annotations

import mmap
from hashlib import file_digest, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.exchange.base import refusals

if TYPE_CHECKING:
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


def file_sum(path: Path) -> tuple[int, bytes]:
    """Bytes and SHA-256 of a file."""
    with refusals(path, "file"), path.open("rb") as file:
        checksum = file_digest(file, sha256).digest()
        return file.tell(), checksum
