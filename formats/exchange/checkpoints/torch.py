"""Read torch checkpoints (.pt, .pth, .bin) without torch and without unpickling.

A checkpoint is a zip of `data.pkl`, which describes tensors, and of `data/<key>`, their storages,
stored as they are. The pickle is interpreted by `pickledata` with a table of a few names; tensors
are ranges of the file that are read when they are stored.

Tensors of nested dicts and lists get dotted names (``{"model": {"w": t}}`` has ``model.w``). What
is no tensor (epoch, learning rates) is kept as JSON metadata in the same nesting.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.damage import damage
from tensorrepo.formats.exchange.checkpoints.original import double_note, original_of
from tensorrepo.formats.exchange.checkpoints.pickledata import Function, Record, is_key, load_pickle
from tensorrepo.formats.exchange.checkpoints.tensorfile import (
    FileTensor,
    RangeFile,
    strided_tensor,
)
from tensorrepo.formats.exchange.checkpoints.zipranges import check_stored, data_start, zip_members
from tensorrepo.formats.jsonvalues import MAX_JSON_NESTING
from tensorrepo.formats.model.manifest import check_tensor_name
from tensorrepo.formats.model.source import ModelSource
from tensorrepo.formats.tensors import TYPES, TYPES_BY_TORCH_NAME, TensorReader, TensorType
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import zipfile
    from pathlib import Path

FORMAT: Final = "torch"
MAX_PICKLE_BYTES: Final = 256 << 20
_LEGACY_MAGIC: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
STORAGES: Final = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
}


@dataclass(frozen=True, slots=True)
class _Storage:
    """`data/<key>`; `type` is None when the tensor says what its bytes are."""

    key: str
    type: TensorType | None


@dataclass(frozen=True, slots=True)
class _Tensor:
    """Items of a storage; two that are equal are one tensor. Offset and strides count items."""

    storage: _Storage
    type: TensorType
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def elements(self) -> int:
        return prod(self.size)

    @property
    def shape(self) -> tuple[int, ...]:
        block = self.type.block_elements
        return (*self.size[:-1], self.size[-1] * block) if block > 1 and self.size else self.size

    @property
    def reach(self) -> int:
        """Items of the storage up to the end of the last one."""
        if not self.elements:
            return 0
        steps = zip(self.size, self.stride, strict=True)
        return self.offset + sum((dim - 1) * step for dim, step in steps) + 1

    @property
    def contiguous(self) -> bool:
        expected = 1
        for dim, step in zip(reversed(self.size), reversed(self.stride), strict=True):
            if dim > 1 and step != expected:
                return False
            expected *= dim
        return True


@dataclass(frozen=True, slots=True)
class _Name:
    """A storage class: it says the type of what is in a storage."""

    type: TensorType | None


@dataclass(slots=True)
class _Found:
    """What a walk over the values of a checkpoint collects."""

    limit: int
    tensors: dict[str, _Tensor] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)


def read_torch(path: Path) -> ModelSource:
    """Open a torch checkpoint as a model: its tensors are read when they are stored.

    Raises:
        InvalidInputError: damaged, or it needs more than tensors and plain values; names what.
        UnsupportedError: written in a form that is not read; says how to convert it.
    """
    file = RangeFile(path, "torch checkpoint")
    _refuse_other_forms(file)
    try:
        entries = zip_members(file, compressed=True)
        folder = _folder(path, entries)
        check_stored(entries.values())  # asked last: the code of a program is compressed
        data = _read_entry(file, entries[f"{folder}/data.pkl"], MAX_PICKLE_BYTES)
        root = load_pickle(data, _find, _persistent)
        found = _Found(limit=max(len(data), 10_000))
        metadata = _walk(root, "", found, 0)
        _tie(found)
        tensors = {
            name: _reader(file, entries, folder, name, tensor)
            for name, tensor in _in_file_order(found, entries, folder)
        }
    except InvalidInputError as error:
        raise damage(path, str(error).removeprefix(f"{path}: ")) from error
    if not tensors:
        raise damage(path, "holds no tensors")
    plain = {name: at for name, at in tensors.items() if isinstance(at, FileTensor)}
    placed = [
        (at.offset, at.offset + at.type.bytes_of(at.shape), name) for name, at in plain.items()
    ]
    original = original_of(file, path.name, FORMAT, placed, tensors.keys() - plain.keys())
    return ModelSource(
        tensors,
        found.aliases,
        originals=(original,),
        metadata=metadata if isinstance(metadata, dict) else {},
        notes=double_note(original),
    )


def _refuse_other_forms(file: RangeFile) -> None:
    head = file.read(0, min(file.size, 512))
    how = "Load it with torch and save it again: torch.save(torch.load(old), new)."
    if head.startswith(_LEGACY_MAGIC):
        raise UnsupportedError(f"{file.path}: written by torch before 1.6. {how}")
    if head[257:262] == b"ustar":
        raise UnsupportedError(f"{file.path}: a tar archive, written by torch before 0.4. {how}")
    if not head.startswith(b"PK"):
        raise damage(file.path, "no torch checkpoint: it is no zip file")


def _folder(path: Path, entries: dict[str, zipfile.ZipInfo]) -> str:
    """The one folder that everything lies in."""
    folders = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(folders) != 1 or "/" in folders[0]:
        raise damage(path, "no torch checkpoint: expected one data.pkl in a folder of the zip")
    if f"{folders[0]}/constants.pkl" in entries:
        raise UnsupportedError(
            f"{path}: a TorchScript program. Save its weights: "
            "torch.save(torch.jit.load(old).state_dict(), new)."
        )
    order = entries.get(f"{folders[0]}/byteorder")
    if order is not None and order.file_size != len("little"):
        raise UnsupportedError(f"{path}: written on a big-endian machine")
    return folders[0]


def _read_entry(file: RangeFile, entry: zipfile.ZipInfo, limit_bytes: int) -> bytes:
    if entry.file_size > limit_bytes:
        raise InvalidInputError(
            f"{entry.filename!r:.80} has {entry.file_size} bytes, at most {limit_bytes} are read"
        )
    return file.read(data_start(file, entry), entry.file_size)


def _find(module: str, name: str) -> object:
    """What a checkpoint may name. Everything else is refused."""
    full = f"{module}.{name}"
    known = _GLOBALS.get(full)
    if known is not None:
        return known
    if module == "torch" and name in STORAGES:
        return _Name(TYPES[STORAGES[name]])
    if module == "torch" and name in TYPES_BY_TORCH_NAME:
        return f"torch.{name}"
    raise InvalidInputError(
        f"it needs {full!r:.200}, which is no tensor and no plain value, and is not loaded. Save "
        "what you need as a state dict of tensors, numbers and text: "
        "torch.save(module.state_dict(), path)."
    )


def _persistent(reference: object) -> _Storage:
    if isinstance(reference, tuple) and len(reference) == 5 and reference[0] == "storage":
        _, kind, key, _, _ = reference
        if isinstance(kind, _Name) and isinstance(key, str):
            return _Storage(key, kind.type)
    raise InvalidInputError("a storage is not described as torch does")


def _rebuild(*arguments: object) -> _Tensor:
    """Storage, offset, size, stride, requires_grad, hooks, and of version 3 the type."""
    storage, offset, size, stride = arguments[:4]
    dtype = arguments[6] if len(arguments) > 6 else None
    if not isinstance(storage, _Storage):
        raise InvalidInputError("a tensor without a storage")
    element = storage.type
    if element is None and isinstance(dtype, str):
        element = TYPES_BY_TORCH_NAME.get(dtype.removeprefix("torch."))
    if element is None:
        raise InvalidInputError("a tensor whose type is unknown")
    dims, steps, (start,) = _numbers(size), _numbers(stride), _numbers((offset,))
    if len(dims) != len(steps):
        raise InvalidInputError(f"a tensor with {len(dims)} dimensions and {len(steps)} strides")
    return _Tensor(storage, element, start, dims, steps)


def _record(pairs: object = ()) -> Record:
    if not isinstance(pairs, (list, tuple)):
        raise InvalidInputError("an OrderedDict that is not made of pairs")
    made = Record()
    for pair in pairs:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and is_key(pair[0])):
            raise InvalidInputError("an OrderedDict that is not made of keys and values")
        made[pair[0]] = pair[1]
    return made


def _device(*parts: object) -> str:
    return ":".join(str(part) for part in parts if isinstance(part, (str, int)))


def _numbers(values: object) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > 64:
        raise InvalidInputError("a tensor's size and stride are lists of numbers")
    if any(type(value) is not int or not 0 <= value < 1 << 62 for value in values):
        raise InvalidInputError("a tensor's size, stride and offset are no sizes")
    return tuple(values)


_GLOBALS: Final[dict[str, object]] = {
    "collections.OrderedDict": Function(_record),
    "torch._utils._rebuild_tensor_v2": Function(lambda *arguments: _rebuild(*arguments[:4])),
    "torch._utils._rebuild_tensor_v3": Function(_rebuild),
    "torch._utils._rebuild_parameter": Function(lambda tensor, *_: tensor),
    "torch.storage.UntypedStorage": _Name(None),
    "torch.Size": Function(lambda dims=(): _numbers(dims)),
    "torch.device": Function(_device),
}


def _walk(value: object, name: str, found: _Found, depth: int) -> Any:
    """Collect the tensors in `value`; what is left of it, as JSON (tensors become None)."""
    found.limit -= 1
    if found.limit < 0 or depth > MAX_JSON_NESTING:
        # A pickle can refer to one value many times over: small bytes, endless structure.
        raise InvalidInputError(f"at {name!r:.80}: nested deeper, or more often, than it has bytes")
    if isinstance(value, _Tensor):
        if name in found.tensors:
            raise InvalidInputError(f"two tensors are called {name!r:.80}")
        found.tensors[check_tensor_name(name or "tensor")] = value
        return None
    if isinstance(value, dict):
        items = {_key(key, name): item for key, item in value.items()}
        if len(items) != len(value):
            raise InvalidInputError(f"at {name!r:.80}: two keys that read the same")
    elif isinstance(value, (list, tuple)):
        items = {str(at): item for at, item in enumerate(value)}
    else:
        return _plain(value, name)
    rest = {
        key: _walk(item, f"{name}.{key}" if name else key, found, depth + 1)
        for key, item in items.items()
    }
    if isinstance(value, dict):
        return {key: rest[key] for key, item in items.items() if _says(item, rest[key])}
    return list(rest.values())


def _key(key: object, name: str) -> str:
    if is_key(key):
        return str(key)
    raise InvalidInputError(f"at {name!r:.80}: a key that is a {type(key).__name__}")


def _says(item: object, rest: object) -> bool:
    """Whether anything is left of `item` without its tensors."""
    if isinstance(item, _Tensor):
        return False
    return not (isinstance(item, (dict, list, tuple)) and item and not _content(rest))


def _content(rest: object) -> bool:
    if isinstance(rest, list):
        return any(part is not None for part in rest)
    return rest != {}


def _plain(value: object, name: str) -> object:
    if value is None or isinstance(value, (bool, float, str)):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 64:
            return value
        raise InvalidInputError(f"{name!r:.80}: an integer of more than 64 bits")
    raise InvalidInputError(
        f"{name!r:.80} is neither a tensor nor a plain value, but a {type(value).__name__}. Save "
        "only tensors, numbers and text."
    )


def _tie(found: _Found) -> None:
    """Tensors that are one, become one and its aliases; the smallest name keeps it."""
    first: dict[_Tensor, str] = {}
    for name in sorted(found.tensors):
        tensor = found.tensors[name]
        if tensor.elements:
            target = first.setdefault(tensor, name)
            if target != name:
                found.aliases[name] = target
    for name in found.aliases:
        del found.tensors[name]


def _in_file_order(
    found: _Found, entries: dict[str, zipfile.ZipInfo], folder: str
) -> list[tuple[str, _Tensor]]:
    def place(item: tuple[str, _Tensor]) -> tuple[int, int]:
        entry = entries.get(f"{folder}/data/{item[1].storage.key}")
        return (entry.header_offset if entry else 0), item[1].offset

    return sorted(found.tensors.items(), key=place)


def _reader(
    file: RangeFile,
    entries: dict[str, zipfile.ZipInfo],
    folder: str,
    name: str,
    tensor: _Tensor,
) -> TensorReader:
    entry = entries.get(f"{folder}/data/{tensor.storage.key}")
    item = tensor.type.block_bytes
    if entry is None:
        raise InvalidInputError(f"tensor {name!r:.80}: no storage {tensor.storage.key!r:.40}")
    if tensor.reach * item > entry.file_size:
        raise InvalidInputError(
            f"tensor {name!r:.80} needs {tensor.reach * item} bytes of storage "
            f"{tensor.storage.key!r:.40}, which has {entry.file_size}"
        )
    if tensor.elements * item > file.size:
        # Stride 0 lets a few bytes pose as terabytes.
        raise InvalidInputError(
            f"tensor {name!r:.80} has {tensor.elements * item} bytes, more than the file. Save a "
            "copy of it: tensor.clone()."
        )
    start = data_start(file, entry) + tensor.offset * item
    if tensor.contiguous:
        return FileTensor(file, start, tensor.type, tensor.shape)
    return strided_tensor(file, start, tensor.type, (tensor.size, tensor.stride), tensor.shape)
