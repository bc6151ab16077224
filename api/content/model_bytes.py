"""Bytes of models, for one caller: files as they came, tensors and rows of them, safetensors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import prod
from typing import Final

import xxhash

from tensorrepo.api.content.models import FoundModel
from tensorrepo.formats.exchange.checkpoints.safetensors import new_layout
from tensorrepo.formats.model.read.byte_ranges import ModelBytes, ProvedFrames, file_bytes
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.threads import ProcessThreadPool

# Threads that read and decode for all transfers of a process: more than processors only get into
# each other's way, by a fifth.
DECODERS: Final = min(4, os.cpu_count() or 1)
_ROWS: Final = re.compile(r"(\d{0,18}):(\d{0,18})")


@dataclass(frozen=True, slots=True)
class DownloadableBytes:
    """Something to download.

    Attributes:
        name: name of a file that it may be stored as.
        etag: strong, in its quotes: equal for equal bytes.
        content: what it is made of.
        start: first byte of `content`.
        stop: first byte of `content` behind it.
        headers: what else is known of it.
    """

    name: str
    etag: str
    content: ModelBytes
    start: int
    stop: int
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Its bytes ``[start, stop)``, verified, in bounded memory."""
        return self.content.pieces(self.start + start, self.start + stop, _decoders(), _proved())


def pieces_of(content: Callable[[], ModelBytes], start: int, stop: int) -> Iterator[memoryview]:
    """Bytes ``[start, stop)`` of what `content` gives, which is asked when the first is taken."""
    yield from content().pieces(start, stop, _decoders(), _proved())


def open_file(found: FoundModel, name: str) -> DownloadableBytes:
    """A file of a model, byte for byte as it came. Raises NotFoundError."""
    model = found.model
    known = model.files.get(name) or model.originals.get(name)
    if known is None:
        raise NotFoundError(
            f"model {found.name!r:.100} has no file {name!r:.200}; GET .../-/files lists them"
        )
    sha256 = known.sha256.hex()
    content = file_bytes(model, name)
    headers = (("X-Content-Sha256", sha256),)
    last = name.rpartition("/")[2]
    return DownloadableBytes(last, f'"{sha256}"', content, 0, known.size_bytes, headers)


def open_tensor(found: FoundModel, name: str, rows: str | None = None) -> DownloadableBytes:
    """A tensor's elements in C order, little-endian, or those of some rows.

    Args:
        found: the model.
        name: name of the tensor.
        rows: ``a:b``, half-open, of its first dimension; either may be left out.

    Raises:
        NotFoundError: no such tensor.
        InvalidInputError: no such rows.
    """
    model = found.model
    spec = model.spec(name)
    first, last = _row_range(name, spec.shape, rows)
    shape = spec.shape if rows is None else (last - first, *spec.shape[1:])
    row_elements = prod(spec.shape[1:])
    if row_elements % spec.type.block_elements and rows is not None:
        raise InvalidInputError(
            f"tensor {name!r:.100}: rows of {row_elements} elements are no whole blocks of "
            f"{spec.type.name}: get it whole"
        )
    row_bytes = row_elements // spec.type.block_elements * spec.type.block_bytes
    whole = rows is None
    start, stop = (0, spec.size_bytes) if whole else (first * row_bytes, last * row_bytes)
    content = xxhash.xxh3_128_hexdigest(model.content(name) + repr(spec.shape).encode())
    headers = (
        ("X-Tensor-Dtype", spec.type.name),
        ("X-Tensor-Shape", "[" + ",".join(map(str, shape)) + "]"),
    )
    return DownloadableBytes(
        "tensor.bin",
        f'"{content}-{start}-{stop}"',
        ModelBytes(model, (name,)),
        start,
        stop,
        headers,
    )


def open_safetensors(found: FoundModel, names: Sequence[str]) -> DownloadableBytes:
    """Some tensors of a model, or all, as a new safetensors file; the same bytes each time.

    Raises:
        NotFoundError: no such tensor.
        InvalidInputError: a type that safetensors lacks.
    """
    model = found.model
    chosen = dict.fromkeys(names) if names else model.keys()
    head, ordered = new_layout(model, {"format": "pt"}, chosen)
    content = ModelBytes(model, (head, *ordered))
    mark = xxhash.xxh3_128(head)
    for name in ordered:
        mark.update(model.content(name))
    file = found.name.rpartition("/")[2] + ".safetensors"
    return DownloadableBytes(file, f'"{mark.hexdigest()}"', content, 0, content.size_bytes)


def _row_range(name: str, shape: tuple[int, ...], rows: str | None) -> tuple[int, int]:
    if rows is None:
        return 0, shape[0] if shape else 1
    parts = _ROWS.fullmatch(rows)
    if parts is None or not shape:
        raise InvalidInputError(
            f"rows={rows!r:.60} of tensor {name!r:.100} of shape {list(shape)}: expected a:b, "
            "half-open, of a tensor that has rows"
        )
    first, last = int(parts[1] or 0), int(parts[2] or shape[0])
    if not first <= last <= shape[0]:
        raise InvalidInputError(
            f"rows={rows!r:.60} of tensor {name!r:.100}: it has {shape[0]} rows"
        )
    return first, last


@cache
def _decoders() -> ProcessThreadPool:
    return ProcessThreadPool(DECODERS, "model-bytes")


@cache
def _proved() -> ProvedFrames:
    return ProvedFrames()
