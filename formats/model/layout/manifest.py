"""Model manifest: tensors, aliases, files and metadata, whatever way they are stored.

The manifest is a function of content alone: it names tensors by fingerprint, and files by digest.
Repacking changes the placement (see `placement`), never the manifest.

Source:
    docs/spec/model.md, section "Manifest".
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from math import prod
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.canonical import (
    VERSION,
    check_sorted,
    decode_canonical,
    encode_canonical,
)
from tensorrepo.formats.common.provenance import ProvenanceEdge, check_edge
from tensorrepo.formats.common.summaries import model_summary
from tensorrepo.formats.common.tensors import TYPES, TensorType, named_bytes
from tensorrepo.formats.model.layout.fingerprints import INLINE_BYTES
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_from_bytes
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.names import check_file_name

MAX_NAME_BYTES: Final = 4096


class TensorPiece(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A box of a tensor, named by `fingerprint`, or small enough that its `value` stands here."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    fingerprint: bytes | None
    value: bytes | None


class TensorEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One tensor; `type` is the name of one of the manifest's types."""

    name: str
    type: str
    shape: tuple[int, ...]
    pieces: tuple[TensorPiece, ...]


class TypeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An element type: written out, so that readers can copy types that they don't know."""

    name: str
    block_elements: int
    block_bytes: int


class Alias(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`name` was one tensor with `target` in the source: a load gives both the same memory."""

    name: str
    target: str


class FileEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that came with the model (config, tokenizer, card), stored as a blob."""

    name: str
    blob: bytes
    size_bytes: int
    sha256: bytes

    @property
    def digest(self) -> Digest:
        return digest_from_bytes(self.blob)


class Original(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file that can be given back byte for byte: `parts`, one after the other, are the file.

    A number is so many next bytes of `blob`, a text names a tensor: all of its bytes. A safetensors
    file is its header, then the tensors in the order of their offsets. `others` are tensors of the
    file that lie in it in another form, as numbers of any length or in another order of elements.
    """

    name: str
    format: str
    blob: bytes | None
    parts: tuple[int | str, ...]
    others: tuple[str, ...]
    size_bytes: int
    sha256: bytes


class Manifest(msgspec.Struct, frozen=True):
    """A model. Everything that has a name is sorted by it; lineage stays in the given order."""

    types: tuple[TypeEntry, ...] = ()
    tensors: tuple[TensorEntry, ...] = ()
    aliases: tuple[Alias, ...] = ()
    files: tuple[FileEntry, ...] = ()
    originals: tuple[Original, ...] = ()
    graph: bytes | None = None
    metadata: dict[str, Any] = {}
    metrics: dict[str, Any] = {}
    lineage: tuple[ProvenanceEdge, ...] = ()
    version: int = VERSION

    def links(self) -> tuple[Digest, ...]:
        """The blobs that the manifest's object must link to."""
        blobs = {file.blob for file in self.files}
        for original in self.originals:
            blobs.update(() if original.blob is None else (original.blob,))
        if self.graph is not None:
            blobs.add(self.graph)
        return tuple(sorted(digest_from_bytes(blob) for blob in blobs))

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors, aliases not counted."""
        types = self.type_table()
        return sum(types[entry.type].bytes_of(entry.shape) for entry in self.tensors)

    @property
    def summary(self) -> bytes:
        """What a tree holds of the model, beside its name."""
        tensors = len(self.tensors) + len(self.aliases)
        return model_summary(tensors=tensors, tensor_bytes=self.tensor_bytes)

    def type_table(self) -> dict[str, TensorType]:
        return {entry.name: _tensor_type(entry) for entry in self.types}


def encode_manifest(manifest: Manifest) -> bytes:
    """Payload of a model's object. Raises InvalidInputError."""
    check_manifest(manifest)
    return encode_canonical(manifest, "model manifest")


def decode_manifest(payload: Buffer, digest: Digest) -> Manifest:
    """The manifest in the payload of object `digest`. Errors: `decode_canonical`."""
    return decode_canonical(payload, Manifest, f"model {digest:.12}", check_manifest)


def check_manifest(manifest: Manifest) -> None:
    """Whether its parts fit together. Raises InvalidInputError."""
    types = manifest.type_table()
    check_sorted("type", [entry.name for entry in manifest.types])
    check_sorted("tensor", [entry.name for entry in manifest.tensors])
    check_sorted("alias", [entry.name for entry in manifest.aliases])
    check_sorted("file", [entry.name for entry in manifest.files])
    check_sorted("file", [entry.name for entry in manifest.originals])
    if set(types) != {entry.type for entry in manifest.tensors}:
        raise InvalidInputError("the types listed are not those that the tensors have")
    for tensor in manifest.tensors:
        _check_tensor(tensor, types[tensor.type])
    _check_aliases(manifest)
    _check_files(manifest)
    for edge in manifest.lineage:
        check_edge(edge)
    check_json(manifest.metadata, "metadata")
    check_json(manifest.metrics, "metrics")


def check_tensor_name(name: str) -> str:
    """`name`, when it may name a tensor: text of UTF-8, not too long. Raises InvalidInputError."""
    if not isinstance(name, str):
        raise InvalidInputError(f"tensor name {name!r:.80} is not text")
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"tensor name {name!r:.80}: {error.reason}") from error
    if not 0 < size <= MAX_NAME_BYTES:
        raise InvalidInputError(
            f"tensor name {name!r:.80}: {size} bytes, expected 1 to {MAX_NAME_BYTES}"
        )
    return name


def piece_name(name: str, shape: Sequence[int], offset: Sequence[int], piece: Sequence[int]) -> str:
    """By which name a piece of that shape finds the one before it: the tensor's, if it is all."""
    if tuple(piece) == tuple(shape):
        return name
    return f"{name}@{','.join(map(str, offset))}"


def _tensor_type(entry: TypeEntry) -> TensorType:
    element = TensorType(entry.name, entry.block_elements, entry.block_bytes)
    known = TYPES.get(entry.name, element)
    if element != known:
        raise InvalidInputError(f"type {entry.name}: expected {known}, found {element}")
    return element


def _check_tensor(tensor: TensorEntry, element: TensorType) -> None:
    check_tensor_name(tensor.name)
    named_bytes(tensor.name, element, tensor.shape)
    check_grid(tensor.shape, [(piece.offset, piece.shape) for piece in tensor.pieces], tensor.name)
    block = element.block_elements
    for piece in tensor.pieces:
        whole = len(tensor.pieces) == 1 or not piece.shape
        if not whole and (piece.offset[-1] % block or piece.shape[-1] % block):
            raise InvalidInputError(f"tensor {tensor.name!r}: a piece ends inside a block")
        _check_piece(piece, element, tensor.name)


def check_grid(
    shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], name: str
) -> None:
    """Whether boxes (offset, shape) are a grid of the whole tensor, in C order.

    A grid is what cutting every dimension at some places makes. One box is the whole tensor.

    Raises:
        InvalidInputError: they are not.
    """
    if len(boxes) == 1:
        fits = boxes[0] == ((0,) * len(shape), shape)
    else:
        fits = bool(boxes) and _is_grid(shape, boxes)
    if not fits:
        raise InvalidInputError(
            f"tensor {name!r} of shape {list(shape)}: its {len(boxes)} pieces are no grid of it"
        )


def _is_grid(shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    if any(len(offset) != len(shape) for offset, _ in boxes):
        return False
    starts = [sorted({offset[dim] for offset, _ in boxes}) for dim in range(len(shape))]
    # The number of cells is compared first: a product is never written out for fewer boxes.
    if prod(map(len, starts)) != len(boxes) or any(cuts[0] != 0 for cuts in starts):
        return False
    cells = product(
        *(list(pairwise([*cuts, size])) for cuts, size in zip(starts, shape, strict=True))
    )
    return all(
        offset == tuple(low for low, _ in cell)
        and box == tuple(high - low for low, high in cell)
        and all(low < high for low, high in cell)
        for cell, (offset, box) in zip(cells, boxes, strict=True)
    )


def _check_piece(piece: TensorPiece, element: TensorType, name: str) -> None:
    size = named_bytes(name, element, piece.shape)
    stored = (piece.fingerprint is None) == (size <= INLINE_BYTES)
    if size <= INLINE_BYTES and (piece.value is None or len(piece.value) != size):
        stored = False
    if size > INLINE_BYTES and (piece.value is not None or len(piece.fingerprint or b"") != 32):
        stored = False
    if not stored:
        raise InvalidInputError(
            f"tensor {name!r} of {size} bytes: expected "
            f"{'its value' if size <= INLINE_BYTES else 'a fingerprint of 32 bytes'} and no more"
        )


def _check_aliases(manifest: Manifest) -> None:
    names = {tensor.name for tensor in manifest.tensors}
    for alias in manifest.aliases:
        check_tensor_name(alias.name)
        if alias.name in names:
            raise InvalidInputError(f"{alias.name!r:.80} is both a tensor and an alias")
        if alias.target not in names:
            raise InvalidInputError(f"alias {alias.name!r:.80}: no tensor {alias.target!r:.80}")


def _check_files(manifest: Manifest) -> None:
    for file in manifest.files:
        check_file_name(file.name)
        if len(file.blob) != DIGEST_BYTES or len(file.sha256) != 32 or file.size_bytes < 0:
            raise InvalidInputError(f"file {file.name!r}: digests have 32 bytes, sizes no sign")
    names = {tensor.name for tensor in manifest.tensors}
    names |= {alias.name for alias in manifest.aliases}
    for original in manifest.originals:
        _check_original(original, names)
    both = {file.name for file in manifest.files} & {file.name for file in manifest.originals}
    if both:
        raise InvalidInputError(f"file {min(both)!r} is there twice")
    if manifest.graph is not None and len(manifest.graph) != DIGEST_BYTES:
        raise InvalidInputError("the graph's digest has 32 bytes")


def refuse_file_as_folder(manifest: Manifest) -> None:
    """Asked of what is written: readers take models of before that have both.

    Raises:
        InvalidInputError: a file is a folder as well, so that they cannot be written out.
    """
    names = {file.name for file in manifest.files}
    names |= {file.name for file in manifest.originals}
    for name in sorted(names):
        folder = name
        while "/" in folder:
            folder = folder.rpartition("/")[0]
            if folder in names:
                raise InvalidInputError(
                    f"{folder!r:.200} cannot be a file and a folder, of {name!r:.200}; rename or "
                    "remove one of them"
                )


def _check_original(original: Original, names: set[str]) -> None:
    check_file_name(original.name)
    where = f"file {original.name!r}"
    if len(original.sha256) != 32 or original.size_bytes < 0:
        raise InvalidInputError(f"{where}: digests have 32 bytes, sizes no sign")
    if original.blob is not None and len(original.blob) != DIGEST_BYTES:
        raise InvalidInputError(f"{where}: a blob's digest has 32 bytes")
    numbers = [part for part in original.parts if isinstance(part, int)]
    if any(number < 1 for number in numbers) or bool(numbers) != (original.blob is not None):
        raise InvalidInputError(f"{where}: bytes of a blob are counted, and there is a blob")
    if any(isinstance(a, int) and isinstance(b, int) for a, b in pairwise(original.parts)):
        raise InvalidInputError(f"{where}: two runs of bytes follow each other")
    check_sorted(f"{where}: tensor", original.others)
    for part in (*original.parts, *original.others):
        if isinstance(part, str) and part not in names:
            raise InvalidInputError(f"{where}: no tensor {part!r:.80}")
