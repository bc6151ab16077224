"""Torch checkpoints without torch and without unpickling: pickle interpreter, reader, writer.

A pickle is a program for a small stack machine. This one builds plain values only: None, bool,
int, float, text, bytes, list, tuple, dict, and what the caller's own functions return. A global
is a name that the caller's `find` is asked about: it answers with a value or one of its own
`Function`s, or refuses. Nothing is imported, and nothing else is ever called.

A checkpoint is a zip of `data.pkl`, which describes tensors, and of `data/<key>`, their storages,
stored as they are. The pickle is interpreted by `pickledata` with a table of a few names; tensors
are ranges of the file that are read when they are stored.

Tensors of nested dicts and lists get dotted names (``{"model": {"w": t}}`` has ``model.w``). What
is no tensor (epoch, learning rates) is kept as JSON metadata in the same nesting.

The checkpoint is a plain state dict. Its pickle is a program of a dozen opcodes that says no more
than our own reader takes: names, storages, shapes. What was written is read back before it appears.

Source:
    The opcodes are those of CPython's `pickletools`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable
from dataclasses import field
from functools import partial
from math import prod
from pathlib import Path
from struct import Struct, pack
from typing import Any, Final

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.tensors import (
    TORCH_NAMES,
    TYPES,
    TYPES_BY_TORCH_NAME,
    TensorReader,
    TensorType,
)
from tensorrepo.formats.exchange.checkpoints.file_tensors import (
    FileTensor,
    RangeFile,
    double_note,
    original_of,
    strided_tensor,
    write_file,
)
from tensorrepo.formats.exchange.checkpoints.zip_ranges import check_stored, data_start, zip_members
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.json_rules import MAX_JSON_NESTING

Find = Callable[[str, str], object]
Persistent = Callable[[object], object]


_U2, _I4, _U4, _U8, _F8 = (Struct(code) for code in ("<H", "<i", "<I", "<Q", ">d"))
MAX_INT_BYTES: Final = 64  # nothing that we keep is longer than 8
MAX_STEPS: Final = 1 << 23  # a byte can make an empty dict of 64 bytes; no checkpoint is so long


@dataclass(frozen=True, slots=True)
class Function:
    """What a global stands for when the program may call it."""

    call: Callable[..., object]


class PickleRecord(dict[object, object]):
    """A dict that the program made as an OrderedDict: setting attributes of it is ignored."""


_MARK: Final = object()
_CONSTANTS: Final[dict[int, Callable[[], object]]] = {
    ord("N"): lambda: None,
    0x88: lambda: True,
    0x89: lambda: False,
    ord("}"): dict,
    ord("]"): list,
    ord(")"): tuple,
}
# Opcode: struct of the length or number that follows.
_NUMBERS: Final = {ord("K"): Struct("<B"), ord("M"): _U2, ord("J"): _I4, ord("G"): _F8}
_TEXTS: Final = {0x8C: Struct("<B"), ord("X"): _U4, 0x8D: _U8}
_BYTES: Final = {ord("C"): Struct("<B"), ord("B"): _U4, 0x8E: _U8}
_LONGS: Final = {0x8A: Struct("<B"), 0x8B: _I4}
_PUTS: Final = {ord("q"): Struct("<B"), ord("r"): _U4}
_GETS: Final = {ord("h"): Struct("<B"), ord("j"): _U4}
_TUPLES: Final = {0x85: 1, 0x86: 2, 0x87: 3}
_SKIPPED: Final = {0x80: 1, 0x95: 8}  # protocol, frame: bytes that follow
_STOP: Final = ord(".")


def load_pickle(data: bytes, find: Find, persistent: Persistent) -> object:
    """The value that the program `data` leaves.

    Args:
        data: the pickle, of protocol 2 or later.
        find: asked for the global of this module and name; raises InvalidInputError to refuse.
        persistent: asked for the value of a persistent id.

    Raises:
        InvalidInputError: not a pickle, or one that asks for more than plain values.
    """
    machine = _Machine(data, find, persistent)
    try:
        return machine.run()
    except IndexError as error:
        raise InvalidInputError(
            f"not a whole pickle: the program fails at byte {machine.at}"
        ) from error


def is_key(value: object) -> bool:
    """Whether a dict may have this key. Hashing anything nested could exhaust the C stack."""
    return isinstance(value, (str, int, float))


class _Machine:
    def __init__(self, data: bytes, find: Find, persistent: Persistent) -> None:
        self.at = 0
        self._data = data
        self._find = find
        self._persistent = persistent
        self._stack: list[Any] = []
        self._memo: dict[int, object] = {}
        # What functions may be given in all: a few bytes can hand one long list over many times.
        self._given_left = len(data)
        self._special: dict[int, Callable[[], object]] = {
            ord("("): lambda: self._stack.append(_MARK),
            ord("0"): self._stack.pop,
            ord("t"): lambda: self._stack.append(tuple(self._pop_mark())),
            ord("a"): lambda: self._append([self._stack.pop()]),
            ord("e"): lambda: self._append(self._pop_mark()),
            ord("s"): lambda: self._set_items(self._pop(2)),
            ord("u"): lambda: self._set_items(self._pop_mark()),
            ord("c"): lambda: self._global(self._line(), self._line()),
            0x93: lambda: self._global(*self._pop(2)),
            0x94: lambda: self._put(len(self._memo)),
            ord("R"): self._reduce,
            ord("b"): self._build,
            ord("Q"): lambda: self._stack.append(self._persistent(self._stack.pop())),
        }

    def run(self) -> object:
        steps = 0
        while (code := self._take(1)[0]) != _STOP:
            self._step(code)
            steps += 1
            if steps > MAX_STEPS:
                raise self._refusal(f"a program of more than {MAX_STEPS} steps")
        if len(self._stack) != 1 or self._stack[0] is _MARK:
            raise self._refusal(f"the program leaves {len(self._stack)} values")
        return self._stack[0]

    def _step(self, code: int) -> None:
        push = self._stack.append
        if code in self._special:
            self._special[code]()
        elif code in _CONSTANTS:
            push(_CONSTANTS[code]())
        elif code in _NUMBERS:
            push(self._number(_NUMBERS[code]))
        elif code in _PUTS:
            self._put(int(self._number(_PUTS[code])))
        elif code in _GETS:
            push(self._get(int(self._number(_GETS[code]))))
        elif code in _TEXTS:
            push(self._text(self._sized(_TEXTS[code])))
        elif code in _TUPLES:
            push(tuple(self._pop(_TUPLES[code])))
        elif code in _BYTES:
            push(self._sized(_BYTES[code]))
        elif code in _LONGS:
            push(self._long(self._sized(_LONGS[code])))
        elif code in _SKIPPED:
            self._take(_SKIPPED[code])
        else:
            raise self._refusal(f"opcode {chr(code)!r} (0x{code:02x}) is not allowed")

    def _take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self.at:
            raise self._refusal("the pickle is cut short")
        start, self.at = self.at, self.at + size
        return self._data[start : self.at]

    def _number(self, form: Struct) -> int | float:
        value: int | float = form.unpack(self._take(form.size))[0]
        return value

    def _sized(self, form: Struct) -> bytes:
        return self._take(int(self._number(form)))

    def _line(self) -> str:
        end = self._data.find(b"\n", self.at, self.at + 1024)
        if end < 0:
            raise self._refusal("a name without end")
        text = self._text(self._take(end - self.at))
        self.at += 1
        return text

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._refusal(f"text that is no UTF-8: {error.reason}") from error

    def _long(self, data: bytes) -> int:
        if len(data) > MAX_INT_BYTES:
            raise self._refusal(f"an integer of {len(data)} bytes")
        return int.from_bytes(data, "little", signed=True)

    def _pop(self, count: int) -> list[Any]:
        if len(self._stack) < count or any(item is _MARK for item in self._stack[-count:]):
            raise self._refusal("too few values on the stack")
        items = self._stack[-count:]
        del self._stack[-count:]
        return items

    def _pop_mark(self) -> list[Any]:
        items = []
        while (item := self._stack.pop()) is not _MARK:
            items.append(item)
        items.reverse()
        return items

    def _put(self, index: int) -> None:
        if self._stack[-1] is _MARK:
            raise self._refusal("nothing to remember")
        self._memo[index] = self._stack[-1]

    def _get(self, index: int) -> object:
        if index not in self._memo:
            raise self._refusal(f"nothing was remembered as {index}")
        return self._memo[index]

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list) or any(item is _MARK for item in items):
            raise self._refusal(f"appends to a {type(target).__name__}")
        target.extend(items)

    def _set_items(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise self._refusal(f"sets items of a {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not is_key(key):
                raise self._refusal(f"a key that is a {type(key).__name__}")
            target[key] = value

    def _global(self, module: object, name: object) -> None:
        if not isinstance(module, str) or not isinstance(name, str):
            raise self._refusal("a global whose name is no text")
        self._stack.append(self._find(module, name))

    def _reduce(self) -> None:
        function, arguments = self._pop(2)
        if not isinstance(function, Function) or not isinstance(arguments, tuple):
            raise self._refusal("calls what is no function")
        sized = (each for each in arguments if isinstance(each, (str, bytes, list, tuple, dict)))
        self._given_left -= len(arguments) + sum(map(len, sized))
        if self._given_left < 0:
            raise self._refusal("gives functions more than it has bytes")
        try:
            self._stack.append(function.call(*arguments))
        except (TypeError, ValueError, OverflowError) as error:
            if isinstance(error, InvalidInputError):
                raise
            raise self._refusal(f"calls a function with other arguments: {error}") from error

    def _build(self) -> None:
        """State dicts carry a note `_metadata` as an attribute; nothing needs it."""
        target, _ = self._pop(2)
        if not isinstance(target, PickleRecord):
            raise self._refusal(f"sets attributes of a {type(target).__name__}")
        self._stack.append(target)

    def _refusal(self, what: str) -> InvalidInputError:
        return InvalidInputError(f"byte {self.at} of the pickle: {what}")


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
            name: _reader(file, entry, name, tensor)
            for name, tensor, entry in _in_file_order(found, entries, folder)
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


def _record(pairs: object = ()) -> PickleRecord:
    if not isinstance(pairs, (list, tuple)):
        raise InvalidInputError("an OrderedDict that is not made of pairs")
    made = PickleRecord()
    for pair in pairs:
        if not (isinstance(pair, (list, tuple)) and len(pair) == 2 and is_key(pair[0])):
            raise InvalidInputError("an OrderedDict that is not made of keys and values")
        made[pair[0]] = pair[1]
    return made


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
    "torch.device": Function(
        lambda *parts: ":".join(str(part) for part in parts if isinstance(part, (str, int)))
    ),
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
        items = {str(key): item for key, item in value.items()}
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


def _says(item: object, rest: object) -> bool:
    """Whether anything is left of `item` without its tensors."""
    if isinstance(item, (dict, list, tuple)) and item:
        return any(part is not None for part in rest) if isinstance(rest, list) else rest != {}
    return not isinstance(item, _Tensor)


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
) -> list[tuple[str, _Tensor, zipfile.ZipInfo]]:
    """Tensors by name, and the storage of each."""
    placed = []
    for name, tensor in found.tensors.items():
        entry = entries.get(f"{folder}/data/{tensor.storage.key}")
        if entry is None:
            raise InvalidInputError(f"tensor {name!r:.80}: no storage {tensor.storage.key!r:.40}")
        placed.append((name, tensor, entry))
    return sorted(placed, key=lambda item: (item[2].header_offset, item[1].offset))


def _reader(file: RangeFile, entry: zipfile.ZipInfo, name: str, tensor: _Tensor) -> TensorReader:
    item = tensor.type.block_bytes
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


_FOLDER: Final = "archive"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the same model makes the same file
_ALIGNMENT: Final = 64  # as torch itself does, so that storages can be mapped
_LARGE_BYTES: Final = 1 << 31
_NO_ARGUMENTS: Final = b")R"
_ORDERED_DICT: Final = b"ccollections\nOrderedDict\n" + _NO_ARGUMENTS
_KINDS: Final = {name: storage for storage, name in STORAGES.items()}


def write_torch(model: StoredModel, path: Path, *, overwrite: bool = False) -> None:
    """Write a model's tensors as a torch state dict, ties included; as it was, if it was one.

    Raises:
        InvalidInputError: `path` exists, or a type that torch lacks; names the tensor.
        CorruptError: the stored model is damaged.
    """
    write_file(model, FORMAT, path, partial(_write_new, model), overwrite=overwrite)


def _write_new(model: StoredModel, path: Path) -> None:
    specs = [model.spec(name) for name in model.keys()]  # noqa: SIM118  # a Model is no dict
    keys = {spec.name: str(at) for at, spec in enumerate(s for s in specs if s.alias_of is None)}
    items = [_text(spec.name) + _tensor(spec, keys[spec.alias_of or spec.name]) for spec in specs]
    program = b"".join([b"\x80\x02", _ORDERED_DICT, b"(", *items, b"u."])
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "data.pkl", [program], len(program))
        _add(archive, "byteorder", [b"little"], 6)
        for spec in specs:
            if spec.alias_of is None:
                chunks = model.tensor_chunks(spec.name)
                _add(archive, f"data/{keys[spec.name]}", chunks, spec.size_bytes)
        _add(archive, "version", [b"3\n"], 2)
    _check(model, path)


def _check(model: StoredModel, path: Path) -> None:
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
        member.writelines(chunks)


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
    shape = _pickled_numbers(size) + _pickled_numbers(_strides(size))
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


def _pickled_numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"


def _number(value: int) -> bytes:
    if value < 1 << 31:
        return b"J" + pack("<i", value)
    return b"\x8a\x08" + pack("<q", value)


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + pack("<I", len(data)) + data
