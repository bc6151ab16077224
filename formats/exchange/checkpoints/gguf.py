"""Read and write GGUF files, the models of llama.cpp and its kin.

Quantised tensors are kept block by block, as they are. A file that was read is given back byte for
byte; another model becomes a new file of version 3 whose key-value pairs are the metadata that came
with a GGUF file, or a name and an architecture alone.
"""

from __future__ import annotations

from struct import pack, unpack
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.damage import within
from tensorrepo.formats.exchange.checkpoints.ggufheader import (
    ALIGNMENT,
    ARRAY,
    BOOL,
    DEFAULT_ALIGNMENT,
    GGML_TYPES,
    MAGIC,
    MAX_DIMS,
    TEXT,
    read_gguf_header,
)
from tensorrepo.formats.exchange.checkpoints.original import original_of
from tensorrepo.formats.exchange.checkpoints.tensorfile import FileTensor, RangeFile
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.model.originals import whole_original
from tensorrepo.formats.model.source import ModelSource
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tensorrepo.formats.model.read import Model, TensorSpec
    from tensorrepo.repo.ids import Buffer

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


def write_gguf(model: Model, path: Path, *, overwrite: bool = False) -> None:
    """Write a model as one GGUF file; as it was, when it came from one.

    Raises:
        InvalidInputError: `path` exists, or a type, a name or a shape that GGUF lacks; names the
            tensor.
        CorruptError: the stored model is damaged.
    """
    original = whole_original(model, FORMAT)
    chunks = _new_chunks(model) if original is None else model.file_chunks(original)
    with new_file(path, overwrite=overwrite) as temporary:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        read_gguf(temporary)


def _new_chunks(model: Model) -> Iterator[Buffer]:
    specs = [model.spec(name) for name in model.keys()]  # noqa: SIM118  # a Model is no dict
    for spec in specs:
        _check(spec)
    pairs = _pairs_of(model)
    head = MAGIC + pack("<IQQ", 3, len(specs), len(pairs))
    head += b"".join(_text(key) + _value(key, value) for key, value in pairs.items())
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


def _pairs_of(model: Model) -> dict[str, Any]:
    known = model.metadata.get(FORMAT, {})
    pairs: dict[str, Any] = {ARCHITECTURE: "unknown"}
    if isinstance(known, dict):
        pairs |= {key: value for key, value in known.items() if key != ALIGNMENT}
    return pairs


def _text(text: str) -> bytes:
    data = text.encode()
    return pack("<Q", len(data)) + data


def _value(key: str, value: object) -> bytes:
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
