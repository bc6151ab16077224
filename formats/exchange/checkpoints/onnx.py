"""ONNX files: initializers as tensors, the rest of the graph as it is.

A file that was read is given back byte for byte, with the files that hold its external data. Those
are looked for in the folder of the model alone. Another model becomes a file of initialisers whose
graph has no nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.protobuf import Wire, read_varints, write_field, write_varint
from tensorrepo.formats.common.tensors import ArrayTensor, TensorReader
from tensorrepo.formats.exchange.base import shorten_notes
from tensorrepo.formats.exchange.checkpoints.file_tensors import (
    FileTensor,
    RangeFile,
    inside,
    original_of,
)
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.model.graph.onnx_file import (
    ONNX_TYPES,
    ExternalData,
    Initializer,
    OnnxFile,
    scan_onnx,
)
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.formats.model.write.byte_exact import whole_original
from tensorrepo.formats.model.write.model_source import ModelSource, OriginalFile
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer

FORMAT: Final = "onnx"
DATA: Final = "onnx data"  # a file of external data
MAX_MESSAGE_BYTES: Final = (1 << 31) - 1  # protobuf's limit
MAX_VARINT_DATA_BYTES: Final = 8 << 20  # of numbers of varying length; weights are not stored so
_NUMBERS: Final = {name: number for number, name in ONNX_TYPES.items()}
_IR_VERSION, _OPSET = 10, 21


def read_onnx(path: Path) -> ModelSource:
    """Open an ONNX file as a model: its initialisers are read when they are stored.

    Raises:
        InvalidInputError: no ONNX model, damaged, or external data that reaches out of the folder.
        NotFoundError: a file of external data is missing.
    """
    file = RangeFile(path, "ONNX file")
    found = scan_onnx(file, str(path))
    tensors: dict[str, TensorReader] = {}
    placed: list[tuple[int, int, str]] = []
    others: list[str] = []
    outside: dict[str, list[tuple[ExternalData, str]]] = {}
    spent = 0
    for each in found.initializers:
        spent += sum(part.stop - part.start for part in each.varints)
        if each.external is not None:
            outside.setdefault(each.external.location, []).append((each.external, each.name))
        elif each.varints and spent > MAX_VARINT_DATA_BYTES:
            found.left[each.name] = "its numbers are of varying length, and very many"
            continue
        elif each.varints or each.start == each.stop:
            others.append(each.name)
        else:
            placed.append((each.start, each.stop, each.name))
        tensors[each.name] = _tensor(found, file, each)
    originals = [original_of(file, path.name, FORMAT, placed, others)]
    for location, used in outside.items():
        data_file, original = _beside(path, location, used)
        originals.append(original)
        for place, name in used:
            tensor = tensors[name]
            tensors[name] = FileTensor(data_file, place.start, tensor.type, tuple(tensor.shape))
    notes = [
        f"{path.name}: initialiser {name!r:.80} stays in the graph alone: {reason}"
        for name, reason in found.left.items()
    ]
    metadata = {FORMAT: found.metadata}
    return ModelSource(tensors, {}, {}, tuple(originals), metadata, shorten_notes(notes))


def write_onnx(model: StoredModel, path: Path, *, overwrite: bool = False) -> None:
    """Write a model as an ONNX file; as it was, with its external data, when it came from one.

    Raises:
        InvalidInputError: a file exists, a type that ONNX lacks, or more than protobuf holds.
        CorruptError: the stored model is damaged.
    """
    original = whole_original(model, FORMAT, beside=DATA)
    if original is None:
        _write(path, _new_chunks(model), overwrite=overwrite)
        return
    folder = PurePosixPath(original).parent
    made: list[Path] = []
    try:
        for name in model.originals:
            if name != original:
                target = path.parent / PurePosixPath(name).relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                _write(target, model.file_chunks(name), overwrite=overwrite)
                made.append(target)
        _write(path, model.file_chunks(original), overwrite=overwrite)
    except BaseException:
        for target in made:
            target.unlink(missing_ok=True)
        raise


def _write(path: Path, chunks: Iterator[Buffer], *, overwrite: bool) -> None:
    with new_file(path, overwrite=overwrite) as temporary, temporary.open("wb") as file:
        file.writelines(chunks)


def _tensor(found: OnnxFile, file: RangeFile, each: Initializer) -> TensorReader:
    if each.varints:
        try:
            return ArrayTensor(_numbers(found, each), each.type, each.shape)
        except InvalidInputError as error:
            raise damage(file.path, f"initialiser {each.name!r:.80}: {error}") from error
    return FileTensor(file, each.start, each.type, each.shape)


def _numbers(found: OnnxFile, each: Initializer) -> NDArray[np.generic]:
    """Numbers of varying length as the tensor's blocks."""
    runs = [
        read_varints(memoryview(found.file.content(part, MAX_VARINT_DATA_BYTES)), str(each.name))
        if part.wire is Wire.BYTES and part.stop > part.start
        else np.array([part.value] if part.wire is Wire.VARINT else [], np.uint64).view(np.int64)
        for part in each.varints
    ]
    values = np.concatenate(runs)
    size = each.type.block_bytes
    blocks = each.size_bytes // size
    if len(values) != blocks:
        raise InvalidInputError(f"{len(values)} values, its shape has {blocks}")
    signed = each.type.name[0] == "I" and each.type.block_elements == 1
    wide = values.astype(f"<i{size}" if signed else f"<u{size}")
    if not np.array_equal(wide.astype(np.int64), values) and each.type.name != "U64":
        raise InvalidInputError(f"a value that {each.type.name} does not have")
    return wide.view(each.type.units)


def _beside(
    path: Path, location: str, used: list[tuple[ExternalData, str]]
) -> tuple[RangeFile, OriginalFile]:
    """The file of external data, and what of it is which tensor's."""
    file = RangeFile(inside(path, location, "its external data is"), "file of external data")
    for place, name in used:
        if place.stop > file.size:
            raise damage(
                path,
                f"initialiser {name!r:.80} is bytes {place.start} to {place.stop} of "
                f"{location!r:.80}, which has {file.size}",
            )
    placed = [(place.start, place.stop, name) for place, name in used]
    return file, original_of(file, PurePosixPath(location).as_posix(), DATA, placed)


def _new_chunks(model: StoredModel) -> Iterator[Buffer]:
    specs = [model.spec(name) for name in model.keys()]  # noqa: SIM118  # a Model is no dict
    heads = [_initializer_head(spec) for spec in specs]
    name = write_field(2, b"weights")
    size = len(name) + sum(
        len(head) + spec.size_bytes for head, spec in zip(heads, specs, strict=True)
    )
    opset = write_field(8, _varint(2, _OPSET))
    start = _varint(1, _IR_VERSION) + write_field(2, b"tensorrepo") + opset
    start += _tag(7, size) + name
    if len(start) + size > MAX_MESSAGE_BYTES:
        raise InvalidInputError(
            f"the model has {model.size_bytes:,} bytes; an ONNX file holds at most "
            f"{MAX_MESSAGE_BYTES:,}. Export to safetensors"
        )
    yield start
    for head, spec in zip(heads, specs, strict=True):
        yield head
        yield from model.tensor_chunks(spec.name)


def _initializer_head(spec: TensorSpec) -> bytes:
    """An initialiser up to its raw data, which ends it."""
    if spec.type.name not in _NUMBERS:
        raise InvalidInputError(
            f"tensor {spec.name!r:.80}: ONNX has no type {spec.type.name}; export to safetensors"
        )
    fields = b"".join(_varint(1, dim) for dim in spec.shape)
    fields += _varint(2, _NUMBERS[spec.type.name]) + write_field(8, spec.name.encode())
    fields += _tag(9, spec.size_bytes)
    return _tag(5, len(fields) + spec.size_bytes) + fields


def _varint(number: int, value: int) -> bytes:
    return write_varint(number << 3 | Wire.VARINT) + write_varint(value)


def _tag(number: int, size: int) -> bytes:
    return write_varint(number << 3 | Wire.BYTES) + write_varint(size)
