"""Which tensors are read and encoded together? So many, in their order, as fit into a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorrepo.formats.model.chunks import Part
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tensorrepo.formats.tensors import TensorReader

BATCH_TENSORS: Final = 4096


def batches(
    tensors: Mapping[str, TensorReader], most_bytes: int, later: Mapping[str, Collection[str]]
) -> Iterator[list[Part]]:
    """Tensors, so many at a time as take no more than that; larger ones alone.

    Each of `later` comes in a batch behind all tensors that it names.
    """
    for names in _rounds(tensors, later):
        batch: list[Part] = []
        size = 0
        for name in names:
            reader = tensors[name]
            part = Part(name, reader, 0, bytes_of(name, reader))
            if batch and (size + part.size_bytes > most_bytes or len(batch) == BATCH_TENSORS):
                yield batch
                batch, size = [], 0
            batch.append(part)
            size += part.size_bytes
        yield batch


def _rounds(names: Iterable[str], later: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Names in their order, but each in a round behind all that it waits for."""
    waiting = dict.fromkeys(names)
    while waiting:
        ready = [name for name in waiting if waiting.keys().isdisjoint(later.get(name, ()))]
        # Where they wait for each other nothing is gained by waiting.
        yield (ready := ready or list(waiting))
        for name in ready:
            del waiting[name]


def bytes_of(name: str, reader: TensorReader) -> int:
    try:
        return reader.type.bytes_of(tuple(reader.shape))
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {name!r}: {error}") from error
