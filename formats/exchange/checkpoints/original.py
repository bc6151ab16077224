"""Which bytes of a file are which tensor's, so that the file comes back byte for byte?

A reader says where tensors lie; everything between them stands for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorrepo.formats.model.source import OriginalFile, Stretch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorrepo.formats.exchange.checkpoints.tensorfile import RangeFile

_HELD_BYTES: Final = 1 << 20  # a longer stretch is taken from the file when it is stored
NOTED_BYTES: Final = 1 << 20


def original_of(
    file: RangeFile,
    name: str,
    format_name: str,
    placed: Iterable[tuple[int, int, str]],
    others: Iterable[str] = (),
) -> OriginalFile:
    """A file as stretches of its own and tensors.

    Args:
        file: the file, open.
        name: what it is called in the model.
        format_name: its format.
        placed: ``[start, stop)`` of each tensor whose bytes lie in it one after the other. Of those
            that overlap one is taken; the rest count as `others`.
        others: tensors that lie in it in another form.
    """
    at = 0
    parts: list[bytes | Stretch | str] = []
    apart = list(others)
    for start, stop, tensor in sorted(placed):
        if start < at or stop == start:
            apart.append(tensor)
            continue
        parts += _between(file, at, start)
        parts.append(tensor)
        at = stop
    parts += _between(file, at, file.size)
    return OriginalFile(name, format_name, file.path, tuple(parts), tuple(sorted(apart)))


def _between(file: RangeFile, start: int, stop: int) -> Iterator[bytes | Stretch]:
    if 0 < stop - start <= _HELD_BYTES:
        yield file.read(start, stop - start)
    elif start < stop:
        yield Stretch(start, stop)


def literal_bytes(original: OriginalFile) -> int:
    """How many bytes of a file stand for themselves."""
    return sum(
        part.stop - part.start if isinstance(part, Stretch) else len(part)
        for part in original.parts
        if not isinstance(part, str)
    )


def double_note(original: OriginalFile) -> tuple[str, ...]:
    """What to tell of a file whose tensors are stored beside the same content in another form."""
    size = literal_bytes(original)
    if size < NOTED_BYTES or not original.others:
        return ()
    note = (
        f"{original.name}: {size:,} bytes are kept beside the tensors: {len(original.others)} of "
        "them lie in the file in another form (compressed, transposed, shared in part)"
    )
    return (note,)
