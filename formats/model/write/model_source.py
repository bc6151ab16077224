"""Sources of models to be stored: tensors, files and metadata, read when they are written.

Importers return a `ModelSource`, and so does `source_of` for a plain dict of tensors. Nothing is
read here: tensors hand over their bytes when they are written.
"""

from __future__ import annotations

import mmap
from collections import Counter
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path, PurePath
from typing import Any, Final, Protocol, runtime_checkable

from tensorrepo.formats.common.damage import refusals
from tensorrepo.formats.common.tensors import TensorReader, memory_address, memory_key, tensor_of
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer

FileContent = bytes | Path


@dataclass(frozen=True, slots=True)
class FileStretch:
    """Bytes ``[start, stop)`` of a file, where they are too many to be held."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class OriginalFile:
    """A file that must be given back byte for byte, once its tensors are stored as tensors.

    `parts`, one after the other, are the file: bytes that stand for themselves, stretches of the
    file, and names of tensors. `others` are tensors of the file that lie in it in another form.
    `path` is where it lies now. `sha256` is that of its bytes, if somebody proved it, and
    `checksum` the XXH3 (128 bits) that they had then.
    """

    name: str
    format: str
    path: Path
    parts: tuple[bytes | FileStretch | str, ...]
    others: tuple[str, ...] = ()
    sha256: bytes | None = None
    checksum: bytes | None = None


@runtime_checkable
class LiesInFile(Protocol):
    """A tensor whose bytes lie in a file one after the other."""

    @property
    def place(self) -> tuple[Path, int]:
        """The file, and where they begin."""
        ...


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is not stored yet.

    `aliases` maps a name to the tensor that it is one with. `files` are what came along, `notes`
    what the importer wants to tell people. Tensors are read in the order of the mapping.
    """

    tensors: Mapping[str, TensorReader]
    aliases: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FileContent] = field(default_factory=dict)
    originals: tuple[OriginalFile, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    graph: bytes | None = None  # an encoded architecture graph, where the source has one

    def named(self) -> dict[str, TensorReader]:
        """The tensors by all of their names, those of aliases as well."""
        return dict(self.tensors) | {name: self.tensors[own] for name, own in self.aliases.items()}

    @property
    def tensor_bytes(self) -> int:
        return sum(tensor.type.bytes_of(tensor.shape) for tensor in self.tensors.values())


def source_of(tensors: Mapping[str, object]) -> ModelSource:
    """A model of tensors in memory.

    Two values of a dict that are one tensor in memory (same storage, offset, shape and stride)
    become a tensor and its alias. Values of another mapping may be made when they are asked for,
    where equal addresses mean nothing: those are never tied.

    Raises:
        InvalidInputError: a name or a value that cannot be stored.
    """
    given: object = tensors
    unnamed = isinstance(given, str | bytes | list | tuple | PurePath)
    if (
        unnamed
        or hasattr(given, "state_dict")
        or not {"__getitem__", "__iter__"} <= set(dir(given))
    ):
        hint = ": give its state_dict()" if hasattr(given, "state_dict") else ""
        if isinstance(given, str | PurePath):
            hint = ": a file of a model is added by `tensorrepo model add`"
        raise InvalidInputError(f"a model is tensors by name, got {type(given).__name__}{hint}")
    if not isinstance(tensors, dict):
        readers = {check_tensor_name(name): tensor_of(name, tensors[name]) for name in tensors}
        return ModelSource(readers)
    for name in tensors:
        check_tensor_name(name)
    aliases = _ties(tensors)
    readers = {
        name: tensor_of(name, value) for name, value in tensors.items() if name not in aliases
    }
    return ModelSource(readers, aliases)


def _ties(tensors: dict[str, object]) -> dict[str, str]:
    """Which names are aliases; the smallest name of each group keeps the tensor."""
    first: dict[tuple[object, ...], str] = {}
    aliases: dict[str, str] = {}
    addresses = {name: memory_address(value) for name, value in tensors.items()}
    times = Counter(addresses.values())
    for name in sorted(tensors):
        if addresses[name] is not None and times[addresses[name]] == 1:
            continue
        key = memory_key(tensors[name])
        if key is not None:
            target = first.setdefault(key, name)
            if target != name:
                aliases[name] = target
    return aliases


def with_longer_names(part: ModelSource, name: str) -> ModelSource:
    """The same model, its tensors named after the file `name` too."""

    def longer(tensor: str) -> str:
        return f"{name}/{tensor}"

    originals = tuple(
        replace(
            original,
            parts=tuple(longer(each) if isinstance(each, str) else each for each in original.parts),
            others=tuple(map(longer, original.others)),
        )
        for original in part.originals
    )
    return replace(
        part,
        tensors={longer(tensor): reader for tensor, reader in part.tensors.items()},
        aliases={longer(alias): longer(target) for alias, target in part.aliases.items()},
        originals=originals,
    )


_MAP_FROM_BYTES: Final = 16 << 20


def content_of(content: FileContent) -> Buffer:
    """The bytes; those of a large file are mapped, so that they need not fit in memory."""
    if not isinstance(content, Path):
        return content
    with refusals(content, "file"), content.open("rb") as file:
        if content.stat().st_size < _MAP_FROM_BYTES:
            return file.read()
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
