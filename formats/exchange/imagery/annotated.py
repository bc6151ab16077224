"""Which image does a row of annotations belong to, and how do both become batches?

Labels, COCO and YOLO differ in where they say things; the images are found, checked and read in
one way. Names lead to files inside the folder only.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import xxhash

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.dataset.columns.schema import Column, Image
from tensorrepo.formats.exchange.base import BATCH_BYTES, Damage
from tensorrepo.formats.exchange.imagery.imagebytes import codec_of
from tensorrepo.formats.exchange.imagery.imagewalk import ImageFile, read_head, read_whole
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorrepo.formats.dataset.columns.schema import Batch

MISSING_ADVICE = "Mend it, or leave such rows and files out: missing=skip"


def find_image(folder: Path, name: str) -> ImageFile | None:
    """The image file called `name` in `folder`; None when there is no such file.

    Raises:
        InvalidInputError: the name leads out of the folder, or to something that is no image.
    """
    relative = PurePosixPath(name)
    if not name or relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise damage(folder, f"{name!r} is no name of a file inside this folder")
    path = folder / relative
    with refusals(path, "image"):
        if not path.is_file():
            return None
        codec = codec_of(read_head(str(path)))
        stored = path.stat().st_size
    if codec is None:
        raise damage(path, "is no image (PNG, JPEG, GIF, BMP, TIFF or WebP)")
    return ImageFile(relative.as_posix(), str(path), stored, codec)


def image_column(codecs: Iterable[str], name: str = "image") -> Column:
    """The column of images: of one codec when all are, else mixed."""
    kinds = set(codecs)
    return Column(name, Image(kinds.pop() if len(kinds) == 1 else None))


def image_batches(
    rows: Iterable[tuple[ImageFile, dict[str, Any], int]],
    names: Iterable[str],
    met: Damage,
    image: str = "image",
) -> Iterator[Batch]:
    """Rows with the bytes of their images, as batches of bounded bytes.

    Args:
        rows: an image, the values of the other columns, and about how many bytes those take.
        names: of the columns; `width` and `height` are measured where a row does not say them.
        met: told of images that are damaged.
        image: the column that the bytes go to.
    """
    wanted = tuple(names)
    held: list[dict[str, Any]] = []
    size = 0
    for number, (file, values, taken) in enumerate(rows):
        if held and size + file.bytes + taken > BATCH_BYTES:
            yield {name: [row[name] for row in held] for name in wanted}
            held, size = [], 0
        try:
            data, header = read_whole(file)
        except InvalidInputError as problem:
            met.meet(file.path, number, problem)
            continue
        measured = {"width": header.width, "height": header.height}
        held.append({**measured, **values, image: data})
        size += file.bytes + taken + 64 * len(wanted)
    if held:
        yield {name: [row[name] for row in held] for name in wanted}


def name_key(name: str) -> int:
    """64 bits that stand for a file name, so that millions of names fit into memory."""
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))


def few(names: Iterable[str], count: int) -> str:
    """Some names and how many more there are, for a message."""
    shown = list(names)
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return ", ".join(map(repr, shown)) + more


def read_text(path: Path, what: str, max_bytes: int) -> str:
    """A small text file.

    Raises:
        InvalidInputError: larger than `max_bytes`, or not UTF-8.
    """
    with refusals(path, what, UnicodeDecodeError), path.open("rb") as file:
        data = file.read(max_bytes + 1)
        if len(data) > max_bytes:
            raise damage(path, f"is larger than {max_bytes} bytes, too large for a {what}")
        return data.decode("utf-8-sig")
