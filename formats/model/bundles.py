"""How are many tensors of a remote model read in few trips?

Directories of packs are read side by side before anything else. Small tensors lie next to each
other in their packs: so many as fit into a request are fetched together, and each is decoded and
verified by itself then. On a local disk nothing is gained by either.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.model.frameread import StoredFrames
from tensorrepo.repo.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Executor

    from tensorrepo.formats.model.frameread import PackReader
    from tensorrepo.formats.model.loading import Tensor
    from tensorrepo.formats.model.manifest import TensorEntry
    from tensorrepo.formats.model.memberread import MemberReader, Place

SMALL_BYTES: Final = 4 << 20  # decoded; a larger tensor is requests of its own
BUNDLE_BYTES: Final = 8 << 20


def by_place(packs: PackReader, entries: Mapping[str, TensorEntry]) -> list[str]:
    """Names in the order in which their tensors lie in packs; those in the manifest first."""

    def place(name: str) -> Place:
        stored = packs.stored.get(entries[name].pieces[0].fingerprint or b"")
        return (-1, -1) if stored is None else stored.members[0].place

    return sorted(entries, key=place)


def read_directories(packs: PackReader, entries: Iterable[TensorEntry], pool: Executor) -> None:
    """Read the directories that a read of these tensors needs; that says what is wrong with one."""
    stored = (packs.stored.get(piece.fingerprint or b"") for one in entries for piece in one.pieces)
    members = [entry.place for tensor in stored if tensor is not None for entry in tensor.members]
    numbers = {number for number, _ in packs.members.with_bases(members)}
    if len(numbers) > 1:
        list(pool.map(lambda number: _read_directory(packs.members, number), sorted(numbers)))


def _read_directory(members: MemberReader, number: int) -> None:
    with suppress(Error):
        members.directory(number)


def bundles(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors in their order, those together that are fetched together."""
    bundle: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bundle and (size + tensor.size_bytes > BUNDLE_BYTES or not _is_small(tensor)):
            yield bundle
            bundle, size = [], 0
        if not _is_small(tensor):
            yield [tensor]
            continue
        bundle.append(tensor)
        size += tensor.size_bytes
    if bundle:
        yield bundle


def fetch(bundle: Iterable[Tensor]) -> None:
    """Fetch the stored bytes of a bundle; the reads of its tensors find them, or ask themselves."""
    whole = [tensor for tensor in bundle if isinstance(tensor, StoredFrames)]
    with suppress(Error):
        whole[0].members.keep(placed.place for tensor in whole for placed in tensor.frames)


def _is_small(tensor: Tensor) -> bool:
    if not isinstance(tensor, StoredFrames) or tensor.size_bytes > SMALL_BYTES:
        return False
    return bool(tensor.frames) and not tensor.members.is_local(tensor.frames[0])
