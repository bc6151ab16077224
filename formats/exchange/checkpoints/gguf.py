"""GGUF files: bounded header parser, reader and writer.

    magic | version | tensors | pairs | key-value pairs | tensor descriptions | padding | data

Everything is little-endian. All of it is parsed here with limits of our own: a count is never
believed before its bytes are there, and nothing is allocated by what a length claims.

Quantised tensors are kept block by block, as they are. A file that was read is given back byte for
byte; another model becomes a new file of version 3 whose key-value pairs are the metadata that came
with a GGUF file, or a name and an architecture alone.

Source:
    The description of GGUF in the documentation of ggml.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from struct import Struct, pack, unpack
from typing import Any, Final

from tensorrepo.formats.common.damage import refused, within
from tensorrepo.formats.common.tensors import TYPES, named_bytes
from tensorrepo.formats.exchange.checkpoints.file_tensors import (
    FileTensor,
    RangeFile,
    TensorRange,
    original_of,
    write_file,
)
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
ALIGNMENT: Final = "general.alignment"
DEFAULT_ALIGNMENT: Final = 32
MAX_DIMS: Final = 4  # ggml's own limit
MAX_HEADER_BYTES: Final = 256 << 20
MAX_ALIGNMENT: Final = 1 << 20
MAX_ITEMS: Final = 1 << 22  # pairs, tensors and texts of lists, together
MAX_KEY_BYTES: Final = 65_535
_MAX_NESTING: Final = 8
# What is kept as metadata. Vocabularies are longer: they stay in the file's own bytes.
KEPT_ITEMS: Final = 64
KEPT_TEXT_BYTES: Final = 64 << 10
_WINDOW_BYTES: Final = 1 << 20

# Number in the file: name of the type.
GGML_TYPES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS",
    17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
_SCALARS: Final = {
    0: Struct("<B"), 1: Struct("<b"), 2: Struct("<H"), 3: Struct("<h"), 4: Struct("<I"),
    5: Struct("<i"), 6: Struct("<f"), 7: Struct("<B"), 10: Struct("<Q"), 11: Struct("<q"),
    12: Struct("<d"),
}  # fmt: skip
BOOL, TEXT, ARRAY = 7, 8, 9
_U4, _U8 = Struct("<I"), Struct("<Q")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A header, parsed. `metadata` leaves out what is too long to be kept beside the file."""

    version: int
    tensors: tuple[TensorRange, ...]
    metadata: Mapping[str, Any]


def read_gguf_header(file: RangeFile) -> GgufHeader:
    """Parse a header. Raises InvalidInputError, which says where: no GGUF, cut short, or lying."""
    cursor = _Cursor(file)
    if cursor.take(4) != MAGIC:
        raise InvalidInputError("no GGUF file: it does not begin with GGUF")
    version = cursor.number(_U4)
    if version not in VERSIONS:
        order = "big-endian" if version and version & 0xFFFF == 0 else f"of version {version}"
        raise InvalidInputError(f"a GGUF file {order}; read are versions 2 and 3, little-endian")
    tensors, pairs = cursor.number(_U8), cursor.number(_U8)
    cursor.count(tensors)
    metadata, alignment = _pairs(cursor, pairs)
    infos = [_info(cursor) for _ in range(tensors)]
    data_start = -(-cursor.at // alignment) * alignment
    moved = (replace(x, start=data_start + x.start, stop=data_start + x.stop) for x in infos)
    placed = tuple(sorted(moved, key=attrgetter("start", "stop", "name")))
    _check_places(placed, file.size)
    return GgufHeader(version, placed, metadata)


class _Cursor:
    """Reads a file from its start, window by window."""

    def __init__(self, file: RangeFile) -> None:
        self._file = file
        self._window = b""
        self._window_start = 0
        self.at = 0
        self._items = 0

    def take(self, size: int) -> bytes:
        self.skip(size)
        start = self.at - size - self._window_start
        if not 0 <= start <= start + size <= len(self._window):
            self._window_start = self.at - size
            left = self._file.size - self._window_start
            self._window = self._file.read(self._window_start, min(max(size, _WINDOW_BYTES), left))
            start = 0
        return self._window[start : start + size]

    def skip(self, size: int) -> None:
        if size > self._file.size - self.at:
            raise refused(f"cut short: {size} bytes at byte {self.at} of {self._file.size} bytes")
        if self.at + size > MAX_HEADER_BYTES:
            raise InvalidInputError(f"a header of more than {MAX_HEADER_BYTES} bytes")
        self.at += size

    def number(self, form: Struct) -> int:
        value: int = form.unpack(self.take(form.size))[0]
        return value

    def count(self, items: int) -> None:
        """Refuse more items than any file has. Each takes at least 8 bytes, which are there."""
        self._items += items
        if items > (self._file.size - self.at) // 8:
            raise refused(f"cut short: {items} items at byte {self.at}")
        if self._items > MAX_ITEMS:
            raise InvalidInputError(f"more than {MAX_ITEMS} keys, tensors and texts")

    def text(self, limit_bytes: int = MAX_HEADER_BYTES) -> bytes:
        size = self.number(_U8)
        if size > limit_bytes:
            raise InvalidInputError(f"a text of {size} bytes at byte {self.at}")
        return self.take(size)


def _pairs(cursor: _Cursor, count: int) -> tuple[dict[str, Any], int]:
    """The metadata that is kept, and the alignment of the data."""
    cursor.count(count)
    kept: dict[str, Any] = {}
    seen: set[bytes] = set()
    alignment = DEFAULT_ALIGNMENT
    for _ in range(count):
        raw = cursor.text(MAX_KEY_BYTES)
        key = _utf8(raw, "a key")
        if raw in seen:
            raise InvalidInputError(f"key {key!r:.80} is there twice")
        seen.add(raw)
        kind = cursor.number(_U4)
        value = _value(cursor, kind, 0)
        if value is not None:
            kept[key] = value
        if key == ALIGNMENT:
            if kind != 4 or value % 8 or not 0 < value <= MAX_ALIGNMENT:
                raise InvalidInputError(f"{ALIGNMENT} is {value!r:.40}, expected a multiple of 8")
            alignment = value
    return kept, alignment


def _value(cursor: _Cursor, kind: int, depth: int) -> Any:
    """A value as JSON; None for one that is too long to be kept."""
    if kind in _SCALARS:
        form = _SCALARS[kind]
        value = form.unpack(cursor.take(form.size))[0]
        return bool(value) if kind == BOOL else value
    if kind == TEXT:
        text = cursor.text()
        return text.decode("utf-8", "replace") if len(text) <= KEPT_TEXT_BYTES else None
    if kind == ARRAY and depth < _MAX_NESTING:
        return _list(cursor, depth)
    raise InvalidInputError(f"a value of type {kind} at byte {cursor.at}")


def _list(cursor: _Cursor, depth: int) -> list[Any] | None:
    kind, length = cursor.number(_U4), cursor.number(_U8)
    kept = length <= KEPT_ITEMS
    if kind in _SCALARS and not kept:
        cursor.skip(length * _SCALARS[kind].size)
        return None
    if kind not in _SCALARS:
        cursor.count(length)
    if kind == TEXT and not kept:
        for _ in range(length):
            cursor.skip(cursor.number(_U8))
        return None
    values = [_value(cursor, kind, depth + 1) for _ in range(length)]
    return values if kept and None not in values else None


def _info(cursor: _Cursor) -> TensorRange:
    """A tensor as the header describes it, its bytes counted from the data's start."""
    name = check_tensor_name(_utf8(cursor.text(MAX_KEY_BYTES), "a tensor's name"))
    rank = cursor.number(_U4)
    if rank > MAX_DIMS:
        raise InvalidInputError(f"tensor {name!r:.80}: {rank} dimensions, at most {MAX_DIMS}")
    dims = [cursor.number(_U8) for _ in range(rank)]
    kind, offset = cursor.number(_U4), cursor.number(_U8)
    if kind not in GGML_TYPES:
        raise InvalidInputError(f"tensor {name!r:.80}: type {kind} is unknown here")
    element = TYPES[GGML_TYPES[kind]]
    if element.block_elements > 1 and (not dims or dims[0] % element.block_elements):
        raise InvalidInputError(
            f"tensor {name!r:.80}: its rows are no whole number of {element.name} blocks of "
            f"{element.block_elements}"
        )
    shape = tuple(reversed(dims))  # ggml counts from the innermost
    return TensorRange(name, element, shape, offset, offset + named_bytes(name, element, shape))


def _check_places(tensors: tuple[TensorRange, ...], file_bytes: int) -> None:
    at = 0
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise InvalidInputError(f"tensor {tensor.name!r:.80} is there twice")
        names.add(tensor.name)
        if tensor.start < at:
            raise InvalidInputError(f"tensor {tensor.name!r:.80} overlaps the one before")
        if tensor.stop > file_bytes:
            raise refused(
                f"cut short: tensor {tensor.name!r:.80} ends at byte {tensor.stop}, the file has "
                f"{file_bytes}"
            )
        at = tensor.stop


def _utf8(data: bytes, what: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{what} that is no UTF-8: {data!r:.80}") from error


FORMAT: Final = "gguf"
ARCHITECTURE: Final = "general.architecture"
MAX_NAME_BYTES: Final = 63  # ggml's own limit
_NUMBERS: Final = {name: number for number, name in GGML_TYPES.items()}
_FORMS: Final = {4: "<I", 6: "<f", BOOL: "<B", 10: "<Q", 11: "<q", 12: "<d"}
_U32, _F32, _U64, _I64, _F64 = 4, 6, 10, 11, 12


def read_gguf(path: Path) -> ModelSource:
    """Open a GGUF file as a model. Only its header is read.

    Raises:
        InvalidInputError: damaged, of another version, or of types that are unknown here.
    """
    file = RangeFile(path, "GGUF file")
    try:
        header = read_gguf_header(file)
    except InvalidInputError as error:
        raise within(path, error) from error
    tensors = {
        tensor.name: FileTensor(file, tensor.start, tensor.type, tensor.shape)
        for tensor in header.tensors
    }
    placed = [(tensor.start, tensor.stop, tensor.name) for tensor in header.tensors]
    original = original_of(file, path.name, FORMAT, placed)
    metadata = {FORMAT: dict(header.metadata)} if header.metadata else {}
    return ModelSource(tensors, originals=(original,), metadata=metadata)


def write_gguf(model: StoredModel, path: Path, *, overwrite: bool = False) -> None:
    """Write a model as one GGUF file; as it was, when it came from one.

    Raises:
        InvalidInputError: `path` exists, or a type, a name or a shape that GGUF lacks; names the
            tensor.
        CorruptError: the stored model is damaged.
    """

    def write_new(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(_new_chunks(model))
        read_gguf(temporary)

    write_file(model, FORMAT, path, write_new, overwrite=overwrite)


def _new_chunks(model: StoredModel) -> Iterator[Buffer]:
    specs = [model.spec(name) for name in model.keys()]  # noqa: SIM118  # a Model is no dict
    for spec in specs:
        _check(spec)
    known = model.metadata.get(FORMAT, {})
    pairs: dict[str, Any] = {ARCHITECTURE: "unknown"}
    if isinstance(known, dict):
        pairs |= {key: value for key, value in known.items() if key != ALIGNMENT}
    head = MAGIC + pack("<IQQ", 3, len(specs), len(pairs))
    head += b"".join(_text(key) + _encoded_value(key, value) for key, value in pairs.items())
    at = 0
    for spec in specs:
        dims = tuple(reversed(spec.shape))
        number = _NUMBERS[spec.type.name]
        head += _text(spec.name) + pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at)
        at += spec.size_bytes + -spec.size_bytes % DEFAULT_ALIGNMENT
    yield head + bytes(-len(head) % DEFAULT_ALIGNMENT)
    for spec in specs:
        yield from model.tensor_chunks(spec.name)
        yield bytes(-spec.size_bytes % DEFAULT_ALIGNMENT)


def _check(spec: TensorSpec) -> None:
    element = spec.type
    fault = (
        f"GGUF has no type {element.name}"
        if element.name not in _NUMBERS
        else f"{len(spec.shape)} dimensions; GGUF has at most {MAX_DIMS}"
        if len(spec.shape) > MAX_DIMS
        else f"a name of more than {MAX_NAME_BYTES} bytes, which GGUF does not allow"
        if len(spec.name.encode()) > MAX_NAME_BYTES
        else "its rows are no whole number of blocks"
        if element.block_elements > 1
        and (not spec.shape or spec.shape[-1] % element.block_elements)
        else None
    )
    if fault is not None:
        raise InvalidInputError(f"tensor {spec.name!r:.80}: {fault}; export to safetensors")


def _text(text: str) -> bytes:
    data = text.encode()
    return pack("<Q", len(data)) + data


def _encoded_value(key: str, value: object) -> bytes:
    """A typed value. JSON does not say how wide numbers were: whole ones are u32 where they fit."""
    if not isinstance(value, (list, tuple)):
        kind = _kind(key, value)
        return pack("<I", kind) + _item(kind, value)
    kinds = {_kind(key, item) for item in value} or {TEXT}
    kind = kinds.pop() if len(kinds) == 1 else _wider(key, kinds)
    items = b"".join(_item(kind, item) for item in value)
    return pack("<IIQ", ARRAY, kind, len(value)) + items


def _kind(key: str, value: object) -> int:
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        return _U32 if 0 <= value < 1 << 32 else _I64 if value < 1 << 63 else _U64
    if isinstance(value, float):
        return _F32 if _is_single(value) else _F64
    if isinstance(value, str):
        return TEXT
    raise InvalidInputError(f"metadata {key!r:.80}: GGUF has no {type(value).__name__}")


def _wider(key: str, kinds: set[int]) -> int:
    if kinds <= {_U32, _I64}:
        return _I64
    if kinds <= {_F32, _F64}:
        return _F64
    raise InvalidInputError(f"metadata {key!r:.80}: a list of values of several types")


def _item(kind: int, value: Any) -> bytes:
    if kind == TEXT:
        return _text(value)
    return pack(_FORMS[kind], value)


def _is_single(value: float) -> bool:
    """Whether 32 bits hold the number as it is."""
    try:
        (single,) = unpack("<f", pack("<f", value))
    except OverflowError:
        return False
    return bool(single == value or value != value)  # noqa: PLR0124  # NaN
