"""Files of a commit as people see them: as text, as the HTML of a card, as pictures."""

from __future__ import annotations

from typing import Final

from tensorrepo.api.content.cards import render_card
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.images.headers import codec_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import TooLargeError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import bytes_text

# What browsers show, and decode with care.
PICTURE_TYPES: Final = frozenset(
    {"image/png", "image/jpeg", "image/gif", "image/webp", "image/bmp"}
)
SHOWN_BYTES: Final = 256 << 10  # of a file that a page shows as text
MOST_BYTES: Final = 64 << 20  # of a file that is sent from memory
_README: Final = ("files/README.md", "files/readme.md", "files/README")
_HEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class ShownFile:
    """A file on a page: as HTML of a card, as text, as a picture, or by its size alone.

    `html` is safe in a page: the sanitizer has left nothing that runs.
    """

    path: str
    bytes: int
    html: str | None = None
    text: str | None = None
    is_picture: bool = False


def shown_file(content: CommitContent, path: str) -> ShownFile:
    """A file as a page shows it. Raises NotFoundError."""
    entry = content.of_kind(path, Kind.BLOB)
    size = list_entry(path, entry).bytes
    if size > MOST_BYTES:
        return ShownFile(path, size)
    data = bytes(content.core.objects.get(entry.digest).payload)
    if picture_type(data) is not None:
        return ShownFile(path, size, is_picture=True)
    try:
        text = data[:SHOWN_BYTES].decode() if size <= SHOWN_BYTES else None
    except UnicodeDecodeError:
        text = None
    if text is not None and path.lower().endswith((".md", ".markdown", "/readme")):
        return ShownFile(path, size, html=render_card(text))
    return ShownFile(path, size, text=None if text is None or "\0" in text else text)


def readme_of(content: CommitContent) -> ShownFile | None:
    """What a repository says of itself at a commit."""
    for path in _README:
        entry = content.core.entry(content.tree, path)
        if entry is not None and entry.kind is Kind.BLOB:
            return shown_file(content, path)
    return None


def file_bytes(content: CommitContent, path: str) -> bytes:
    """The bytes of a file. Raises TooLargeError beyond `MOST_BYTES`."""
    entry = content.of_kind(path, Kind.BLOB)
    size = list_entry(path, entry).bytes
    if size > MOST_BYTES:
        raise TooLargeError(
            f"{path} has {bytes_text(size)}, and pages send {bytes_text(MOST_BYTES)} at most: "
            "take it by `tensorrepo clone` or `tensorrepo checkout`"
        )
    return bytes(content.core.objects.get(entry.digest).payload)


def picture_type(data: bytes) -> str | None:
    """Media type of a picture that browsers show; None: it is none."""
    found = f"image/{codec_of(data[:_HEAD_BYTES])}"
    return found if found in PICTURE_TYPES else None
