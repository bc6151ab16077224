"""Write a model as a torch checkpoint, without torch and without pickling.

The checkpoint is a plain state dict. Its pickle is a program of a dozen opcodes that says no more
than our own reader takes: names, storages, shapes. What was written is read back before it appears.
"""

from __future__ import annotations

import zipfile
from struct import pack
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.exchange.checkpoints.torch import FORMAT, STORAGES, read_torch
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.model.originals import whole_original
from tensorrepo.formats.tensors import TORCH_NAMES
from tensorrepo.repo.errors import CorruptError, InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensorrepo.formats.model.read import Model, TensorSpec
    from tensorrepo.repo.ids import Buffer

_FOLDER: Final = "archive"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same model makes the same file
_ALIGNMENT: Final = 64  # as torch itself does, so that storages can be mapped
_LARGE_BYTES: Final = 1 << 31
_NO_ARGUMENTS: Final = b")R"
_ORDERED_DICT: Final = b"ccollections\nOrderedDict\n" + _NO_ARGUMENTS
_KINDS: Final = {name: storage for storage, name in STORAGES.items()}


def write_torch(model: Model, path: Path, *, overwrite: bool = False) -> None:
    """Write a model's tensors as a torch state dict, ties included; as it was, if it was one.

    Raises:
        InvalidInputError: `path` exists, or a type that torch lacks; names the tensor.
        CorruptError: the stored model is damaged.
    """
    original = whole_original(model, FORMAT)
    with new_file(path, overwrite=overwrite) as temporary:
        if original is not None:
            with temporary.open("wb") as file:
                for chunk in model.file_chunks(original):
                    file.write(chunk)
            return
        _write_new(model, temporary)
        _check(model, temporary)


def _write_new(model: Model, path: Path) -> None:
    specs = [model.spec(name) for name in model.keys()]  # noqa: SIM118  # a Model is no dict
    keys = {spec.name: str(at) for at, spec in enumerate(s for s in specs if s.alias_of is None)}
    program = _state_dict([(spec, keys[spec.alias_of or spec.name]) for spec in specs])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", [program], len(program))
        _add(archive, "byteorder", [b"little"], 6)
        for spec in specs:
            if spec.alias_of is None:
                chunks = model.tensor_chunks(spec.name)
                _add(archive, f"data/{keys[spec.name]}", chunks, spec.size_bytes)
        _add(archive, "version", [b"3\n"], 2)


def _check(model: Model, path: Path) -> None:
    """Whether our reader finds the same tensors in it."""
    if not len(model):
        return
    found = read_torch(path)
    expected = {name: model.spec(name) for name in model.tensors}
    same = dict(found.aliases) == dict(model.aliases) and {
        name: (tensor.type, tuple(tensor.shape)) for name, tensor in found.tensors.items()
    } == {name: (spec.type, spec.shape) for name, spec in expected.items()}
    if not same:
        raise CorruptError(f"{path}: what was written reads back as another model")


def _add(archive: zipfile.ZipFile, name: str, chunks: Iterable[Buffer], size: int) -> None:
    info = zipfile.ZipInfo(f"{_FOLDER}/{name}", _EPOCH)
    info.file_size = size
    large = size >= _LARGE_BYTES
    at = archive.start_dir + 30 + len(info.filename) + (20 if large else 0) + 4
    info.extra = b"FB" + pack("<H", -at % _ALIGNMENT) + b"Z" * (-at % _ALIGNMENT)
    with archive.open(info, "w", force_zip64=large) as member:
        for chunk in chunks:
            member.write(chunk)


def _state_dict(tensors: Iterable[tuple[TensorSpec, str]]) -> bytes:
    items = b"".join(_text(spec.name) + _tensor(spec, key) for spec, key in tensors)
    return b"\x80\x02" + _ORDERED_DICT + b"(" + items + b"u."


def _tensor(spec: TensorSpec, key: str) -> bytes:
    """A call of the function that makes a tensor of a storage: contiguous, from its start."""
    element = spec.type
    if element.name not in TORCH_NAMES:
        raise InvalidInputError(
            f"tensor {spec.name!r:.80}: torch has no type {element.name}; export to safetensors or "
            "gguf"
        )
    size = element.units_shape(spec.shape) if element.block_elements > 1 else spec.shape
    kind = _KINDS.get(element.name)
    items = spec.size_bytes // element.block_bytes
    if kind is not None:
        storage = _storage(f"torch\n{kind}", key, items)
        function, dtype = b"ctorch._utils\n_rebuild_tensor_v2\n", b""
    else:
        storage = _storage("torch.storage\nUntypedStorage", key, spec.size_bytes)
        function = b"ctorch._utils\n_rebuild_tensor_v3\n"
        dtype = f"ctorch\n{TORCH_NAMES[element.name]}\n".encode()
    shape = _numbers(size) + _numbers(_strides(size))
    return function + b"(" + storage + b"K\0" + shape + b"\x89" + _ORDERED_DICT + dtype + b"tR"


def _storage(kind: str, key: str, items: int) -> bytes:
    parts = _text("storage") + f"c{kind}\n".encode() + _text(key) + _text("cpu") + _number(items)
    return b"(" + parts + b"tQ"


def _strides(size: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for dim in reversed(size):
        strides.append(step)
        step *= max(dim, 1)
    return tuple(reversed(strides))


def _numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"


def _number(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + pack("<i", value)
    return b"\x8a\x08" + pack("<q", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + pack("<I", len(data)) + data
