"""Have two tensors the same bits, however each of them is cut into pieces?

Pieces have fingerprints of their own. Where two tensors are cut alike, those are compared and
nothing is read. A state that was saved by four ranks and then by two is cut in another way: then
the whole tensors are read, in order and in bounded memory, and named as if each were one piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.model.frames import INLINE_BYTES, fingerprint, frame_bytes, frame_digest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.formats.model.read import Model
    from tensorrepo.formats.tensors import TensorReader


def contents_of(models: Sequence[Model], name: str) -> tuple[bytes, ...]:
    """Of each model what is equal for those in which the tensor has the same bits.

    Args:
        models: each has the tensor, all in one type and shape.
        name: of the tensor.
    """
    grids = {_grid(model, name) for model in models}
    if len(grids) > 1:
        return tuple(_whole_content(model, name) for model in models)
    return tuple(model.content(name) for model in models)


def content_of(tensor: TensorReader) -> bytes:
    """What `Model.content` would say of a tensor once it is stored in one piece."""
    size, step = tensor.type.bytes_of(tuple(tensor.shape)), frame_bytes(tensor.type)
    data = np.empty(min(size, step), np.uint8).data
    if size <= INLINE_BYTES:
        tensor.read_into(0, data)
        return bytes(data)
    digests = bytearray()
    for start in range(0, size, step):
        part = data[: min(step, size - start)]
        tensor.read_into(start, part)
        digests += frame_digest(part)
    return fingerprint(tensor.type, tuple(tensor.shape), digests)


def _grid(model: Model, name: str) -> tuple[tuple[int, ...], ...]:
    pieces = model.tensors[model.aliases.get(name, name)].pieces
    return tuple(piece.offset for piece in pieces)


def _whole_content(model: Model, name: str) -> bytes:
    return model.content(name) if len(_grid(model, name)) == 1 else content_of(model.tensor(name))
