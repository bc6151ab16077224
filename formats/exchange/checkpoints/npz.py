"""npz and npy files as models: reader and writers.

Arrays that lie in the file as they are (not compressed, little-endian, C order) are ranges of it.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import IO, Final

import numpy as np

from tensorrepo.formats.common.damage import damage, within
from tensorrepo.formats.common.tensors import ArrayTensor, TensorReader, tensor_of
from tensorrepo.formats.exchange.arrays.columns import ArraySource, read_array
from tensorrepo.formats.exchange.arrays.npy import npy_array, npz_arrays, write_npy_header
from tensorrepo.formats.exchange.checkpoints.file_tensors import (
    FileTensor,
    LoadedTensor,
    RangeFile,
    double_note,
    original_of,
    write_file,
)
from tensorrepo.formats.exchange.checkpoints.zip_ranges import data_start, zip_members
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import InvalidInputError

NPZ: Final = "npz"
NPY: Final = "npy"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same model makes the same file
_LARGE_BYTES: Final = 1 << 31


def read_npz_model(path: Path) -> ModelSource:
    """Open an npz file as a model.

    Raises:
        InvalidInputError: not an npz file, a lying header, or arrays that are no tensors.
    """
    file = RangeFile(path, "npz file")
    try:
        zip_members(file, compressed=True)
    except InvalidInputError as error:
        raise within(path, error) from error
    tensors: dict[str, TensorReader] = {}
    placed: list[tuple[int, int, str]] = []
    for name, (source, info) in npz_arrays(path).items():
        start = None
        if info.compress_type == zipfile.ZIP_STORED:
            start = data_start(file, info) + info.file_size - source.bytes
        tensors[name] = tensor = _tensor(file, name, source, start)
        if isinstance(tensor, FileTensor):
            placed.append((tensor.offset, tensor.offset + source.bytes, name))
    if not tensors:
        raise damage(path, "holds no arrays")
    others = tensors.keys() - {name for _, _, name in placed}
    original = original_of(file, path.name, NPZ, placed, others)
    return ModelSource(tensors, originals=(original,), notes=double_note(original))


def read_npy_model(path: Path) -> ModelSource:
    """Open an npy file as a model of one tensor, called as it is. Errors: `read_npz_model`."""
    file = RangeFile(path, "npy file")
    source = npy_array(path)
    tensor = _tensor(file, path.stem, source, file.size - source.bytes)
    plain = isinstance(tensor, FileTensor)
    placed = [(file.size - source.bytes, file.size, path.stem)] if plain else []
    original = original_of(file, path.name, NPY, placed, () if plain else (path.stem,))
    return ModelSource({path.stem: tensor}, originals=(original,), notes=double_note(original))


def write_npz(model: StoredModel, path: Path, *, overwrite: bool = False) -> None:
    """Write a model as an npz file; as it was, when it came from one. It has no ties.

    Raises:
        InvalidInputError: `path` exists, or a type that numpy lacks, or a name that zips lack.
        CorruptError: the stored model is damaged.
    """

    def write_new(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
            for name in model.keys():  # noqa: SIM118  # a Model is no dict
                _write_array(archive, model, model.spec(name))
        read_npz_model(temporary)

    write_file(model, NPZ, path, write_new, overwrite=overwrite)


def write_npy(model: StoredModel, path: Path, *, overwrite: bool = False) -> None:
    """Write a model of one tensor as an npy file; as it was, when it came from one.

    Raises:
        InvalidInputError: `path` exists, several tensors, or a type that numpy lacks.
        CorruptError: the stored model is damaged.
    """

    def write_new(temporary: Path) -> None:
        if len(model) != 1:
            raise InvalidInputError(
                f"the model has {len(model)} tensors, an npy file one: export to npz"
            )
        (name,) = model.keys()
        with temporary.open("wb") as file:
            _write_header(file, model.spec(name))
            file.writelines(model.tensor_chunks(name))

    write_file(model, NPY, path, write_new, overwrite=overwrite)


def _tensor(file: RangeFile, name: str, source: ArraySource, start: int | None) -> TensorReader:
    """A range of the file where the array lies in it as it is, else read as a whole."""
    try:
        element = tensor_of(check_tensor_name(name), np.empty(0, source.dtype)).type
        size = element.bytes_of(source.shape)
    except InvalidInputError as error:
        raise damage(source.where, str(error)) from error
    little = source.dtype.newbyteorder("<") == source.dtype
    if start is not None and little and not source.transposed:
        return FileTensor(file, start, element, source.shape)
    if size > file.size * 1100:
        raise damage(source.where, f"{size} bytes, more than the file can hold")
    return LoadedTensor(
        lambda: ArrayTensor(read_array(source), element, source.shape), element, source.shape
    )


def _write_array(archive: zipfile.ZipFile, model: StoredModel, spec: TensorSpec) -> None:
    if (
        "\0" in spec.name
        or ".." in spec.name.replace("\\", "/").split("/")
        or spec.name[0] in "/\\"
    ):
        raise InvalidInputError(f"tensor {spec.name!r:.80}: no name for a member of a zip")
    info = zipfile.ZipInfo(spec.name + ".npy", _EPOCH)
    info.file_size = spec.size_bytes
    with archive.open(info, "w", force_zip64=spec.size_bytes >= _LARGE_BYTES) as member:
        _write_header(member, spec)
        member.writelines(model.tensor_chunks(spec.name))


def _write_header(member: IO[bytes], spec: TensorSpec) -> None:
    if spec.type.numpy is None:
        raise InvalidInputError(
            f"tensor {spec.name!r:.80}: numpy has no type {spec.type.name}; export to safetensors"
        )
    write_npy_header(member, spec.type.numpy, spec.shape)
