"""safetensors files: reader and writer.

    8 bytes: n, little-endian | n bytes of JSON | tensors, one after the other

The JSON maps names to type, shape and ``[begin, end)`` after the header. A file that is read is
kept as its header, verbatim, and its tensors: it is given back byte for byte. That needs tensors
that follow each other without hole or overlap; files that the reference reader refuses are
refused here too.

Source:
    https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.damage import damage, refused, within
from tensorrepo.formats.common.tensors import SAFETENSORS_TYPES, TYPES, named_bytes
from tensorrepo.formats.exchange.checkpoints.file_tensors import FileTensor, RangeFile, TensorRange
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.byte_exact import whole_original
from tensorrepo.formats.model.write.model_source import ModelSource, OriginalFile
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.typed_decoding import from_json

FORMAT: Final = "safetensors"
MAX_HEADER_BYTES: Final = 100_000_000  # the reference reader's limit
_METADATA: Final = "__metadata__"
# `__metadata__` and a map of text to text; in names and texts, quotes stand behind a backslash.
_TEXT: Final = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_METADATA_MAP: Final = re.compile(
    rb'(?<!\\)"__metadata__"\s*:\s*(\{(?:\s*%b\s*:\s*%b\s*,?)*+\s*\})' % (_TEXT, _TEXT), re.DOTALL
)
_EMPTY: Final = b'"__metadata__":{"dtype":"","shape":[],"data_offsets":[0,0]}'
_RANK: Final = {name: rank for rank, name in enumerate(SAFETENSORS_TYPES)}


class _Info(msgspec.Struct):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> ModelSource:
    """Open a safetensors file as a model. Only its header is read.

    Raises:
        InvalidInputError: cut short, a header that lies, holes or overlaps, an unknown type.
    """
    file = RangeFile(path, "safetensors file")
    try:
        head = _read_head(file)
        ranges = parse_header(head[8:], file.size - len(head))
    except InvalidInputError as error:
        raise within(path, error) from error
    tensors = {
        part.name: FileTensor(file, len(head) + part.start, part.type, part.shape)
        for part in ranges
    }
    original = OriginalFile(path.name, FORMAT, path, (head, *tensors))
    return ModelSource(tensors, originals=(original,))


def _read_head(file: RangeFile) -> bytes:
    """The length and the header, when the file can hold them."""
    if file.size < 8:
        raise refused(f"{file.path}: {file.size} bytes are no safetensors file")
    length = int.from_bytes(file.read(0, 8), "little")
    if 8 + length > file.size:
        raise refused(
            f"{file.path}: cut short: header of {length} bytes in a file of {file.size} bytes"
        )
    if length > MAX_HEADER_BYTES:
        raise damage(file.path, f"header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    return file.read(0, 8 + length)


def parse_header(text: bytes, data_bytes: int) -> tuple[TensorRange, ...]:
    """The tensors that the JSON of a file lists, in the order of their bytes after the header.

    Args:
        text: the JSON, padded with spaces.
        data_bytes: bytes of the file after it.

    Raises:
        InvalidInputError: not a header, or one that does not fit the file.
    """
    tensors_alone, metadata = _take_metadata(text)
    # Decoding by type stops at the first value that no header has: a bomb never becomes objects.
    try:
        infos = from_json(tensors_alone, dict[str, _Info])
        from_json(metadata, dict[str, str])  # refuses what is no text
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"the header is not as safetensors headers are: {error}") from error
    # The decoder keeps the last of two equal keys. Each tensor has each field once; a text that
    # is a field's name in quotes can only be that field, or a tensor of that name.
    for key in _Info.__struct_fields__:
        if tensors_alone.count(f'"{key}"'.encode()) != len(infos) + (key in infos):
            raise InvalidInputError(f"a tensor is there twice, or has its {key} twice")
    infos.pop(_METADATA, None)
    ranges = (_range(name, info) for name, info in infos.items())
    tensors = tuple(sorted(ranges, key=lambda part: (part.start, part.stop)))
    _check_ranges(tensors, data_bytes)
    return tensors


def write_safetensors(
    model: StoredModel,
    path: Path,
    *,
    overwrite: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a model as one safetensors file.

    A model that came from one such file is given back byte for byte. Another one becomes a new
    file, the same each time, laid out as the reference writer does. It has no ties: an alias is
    written as a tensor of its own.

    Args:
        model: what to write.
        path: where to; its folder exists.
        overwrite: replace what is there.
        metadata: text for a new file's header; by default what loaders of torch models expect.

    Raises:
        InvalidInputError: `path` exists, or a type that safetensors lacks; names the tensor.
        CorruptError: the stored model is damaged.
    """
    original = whole_original(model, FORMAT)
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        if original is not None and metadata is None:
            file.writelines(model.file_chunks(original))
            return
        text = {"format": "pt"} if metadata is None else metadata
        file.writelines(_new_chunks(model, text, model.keys()))


def write_tensors(model: StoredModel, path: Path, names: Iterable[str]) -> None:
    """Write some tensors as a new file. Raises InvalidInputError: a type that safetensors lacks."""
    with path.open("xb") as file:
        file.writelines(_new_chunks(model, {"format": "pt"}, names))


def _new_chunks(
    model: StoredModel, metadata: Mapping[str, str], names: Iterable[str]
) -> Iterator[Buffer]:
    head, ordered = new_layout(model, metadata, names)
    yield head
    for name in ordered:
        yield from model.tensor_chunks(name)


def new_layout(
    model: StoredModel, metadata: Mapping[str, str], names: Iterable[str]
) -> tuple[bytes, list[str]]:
    """The header of a new file of these tensors, and the tensors in the order of their bytes.

    Raises:
        InvalidInputError: a type that safetensors lacks; names the tensor.
    """
    specs = {name: model.spec(name) for name in names}
    for name, spec in specs.items():
        if spec.type.name not in _RANK:
            raise InvalidInputError(
                f"tensor {name!r}: safetensors has no type {spec.type.name}; "
                "export to torch or gguf"
            )
    ordered = sorted(specs, key=lambda name: (-_RANK[specs[name].type.name], name))
    header: dict[str, Any] = {_METADATA: dict(sorted(metadata.items()))} if metadata else {}
    at = 0
    for name in ordered:
        spec = specs[name]
        offsets = [at, at := at + spec.size_bytes]
        header[name] = {
            "dtype": spec.type.name,
            "shape": list(spec.shape),
            "data_offsets": offsets,
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text, ordered


def _take_metadata(text: bytes) -> tuple[bytes, bytes]:
    """The JSON with an empty tensor in place of ``__metadata__``, and what that was."""
    found = _METADATA_MAP.search(text)
    if found is None:
        return text, b"{}"
    return text[: found.start()] + _EMPTY + text[found.end() :], found[1]


def _range(name: str, info: _Info) -> TensorRange:
    if info.dtype not in _RANK:
        raise InvalidInputError(
            f"tensor {name!r:.80}: type {info.dtype!r:.40} is unknown; "
            f"known are {', '.join(SAFETENSORS_TYPES)}"
        )
    element, shape = TYPES[info.dtype], tuple(info.shape)
    start, stop = info.data_offsets
    size = named_bytes(name, element, shape)
    if start < 0 or stop - start != size:
        raise InvalidInputError(
            f"tensor {name!r:.80}: {element.name} of shape {list(shape)!s:.80} has {size} bytes, "
            f"its data_offsets are [{start}, {stop}]"
        )
    return TensorRange(name, element, shape, start, stop)


def _check_ranges(tensors: tuple[TensorRange, ...], data_bytes: int) -> None:
    at = 0
    for part in tensors:
        if part.start != at:
            fault = "overlaps the one before" if part.start < at else "leaves a hole before it"
            raise InvalidInputError(
                f"tensor {part.name!r:.80} {fault}: it begins at byte {part.start}, expected {at}"
            )
        at = part.stop
    sizes = f"the tensors have {at} bytes, the file has {data_bytes} after its header"
    if at > data_bytes:
        raise refused(f"cut short: {sizes}")
    if at < data_bytes:
        raise InvalidInputError(f"bytes after the last tensor: {sizes}")
