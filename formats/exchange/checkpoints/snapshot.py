"""Model folders as Hugging Face lays them out: reader and writers.

As Hugging Face lays it out: weights in one file or in shards that an index names, in subfolders
where a model is of several networks. One kind of weights is read as tensors; everything else, the
same weights in another format too, is kept as files.

As it came ("snapshot"), or as Hugging Face's libraries expect it ("hf"): its config, tokenizer and
card beside safetensors, in shards with an index when there is more than one file of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec

from tensorrepo.formats.common.damage import damage, is_refused, refusals
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.common.tensors import TensorReader
from tensorrepo.formats.exchange.base import read_ignore
from tensorrepo.formats.exchange.checkpoints.file_tensors import inside
from tensorrepo.formats.exchange.checkpoints.gguf import read_gguf
from tensorrepo.formats.exchange.checkpoints.npz import read_npy_model, read_npz_model
from tensorrepo.formats.exchange.checkpoints.onnx import read_onnx
from tensorrepo.formats.exchange.checkpoints.safetensors import (
    FORMAT,
    read_safetensors,
    write_safetensors,
    write_tensors,
)
from tensorrepo.formats.exchange.checkpoints.torch import read_torch
from tensorrepo.formats.exchange.output import new_folder
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import (
    ModelSource,
    OriginalFile,
    with_longer_names,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

READERS: Final[dict[str, Callable[[Path], ModelSource]]] = {
    "safetensors": read_safetensors,
    "torch": read_torch,
    "gguf": read_gguf,
    "onnx": read_onnx,
    "npz": read_npz_model,
    "npy": read_npy_model,
}
SUFFIXES: Final = {
    ".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch",
    ".ckpt": "torch", ".gguf": "gguf", ".onnx": "onnx", ".npz": "npz", ".npy": "npy",
}  # fmt: skip
INDEX_SUFFIX: Final = ".index.json"
# Of a folder, weights of the first kind that is there and can be read become tensors.
_KINDS: Final = ("safetensors", "torch", "gguf", "onnx", "npz")
WEIGHT_ORDER: Final = {kind: place for place, kind in enumerate((*_KINDS, "npy"))}
_MAX_INDEX_BYTES: Final = 64 << 20
_UNREADABLE: Final = (InvalidInputError, UnsupportedError)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def opaque(path: Path, error: Exception) -> ModelSource:
    """A file that cannot be parsed: kept as it is, and people are told why."""
    return ModelSource({}, files={path.name: path}, notes=(_opaque_note(path.name, error),))


def read_snapshot(folder: Path) -> ModelSource:
    """Open a folder as one model.

    Raises:
        InvalidInputError: no weights in it that can be read, or an index that leads out of it.
        NotFoundError: an index names a file that is not there.
    """
    places = _files(folder)
    parts, notes = _weights(folder, places)
    for name in places:
        if name.endswith(INDEX_SUFFIX):
            notes += _check_index(folder, name, places, parts)
    return _joined(folder, parts, places, notes)


def read_index(path: Path) -> ModelSource:
    """Open the shards that an index names, which lie in its folder, and the index itself.

    Raises: as `read_snapshot`.
    """
    folder = path.parent
    named = dict.fromkeys(_index(path).values())
    places = {name: inside(path, name, "it names") for name in named}
    parts = {name: _reader(place)(place) for name, place in places.items()}
    found = _check_index(folder, path.name, {**places, path.name: path}, parts)
    return _joined(folder, parts, {**places, path.name: path}, found)


def _files(folder: Path) -> dict[str, Path]:
    ignore = read_ignore(folder)
    places = {
        place.relative_to(folder).as_posix(): place
        for place in sorted(folder.rglob("*"))
        if place.is_file() and not place.is_symlink()
    }
    return {name: at for name, at in places.items() if not ignore.leaves_out(name, is_folder=False)}


def _weights(folder: Path, places: Mapping[str, Path]) -> tuple[dict[str, ModelSource], list[str]]:
    """Weights by name of the file, and notes on those that cannot be read."""
    notes: list[str] = []
    for kind in _KINDS:
        parts: dict[str, ModelSource] = {}
        for name, place in places.items():
            if SUFFIXES.get(place.suffix.lower()) != kind:
                continue
            try:
                parts[name] = READERS[kind](place)
            except _UNREADABLE as error:
                if is_refused(error):
                    raise
                notes.append(_opaque_note(name, error))
        if parts:
            return parts, notes
    if notes:
        raise damage(folder, f"no weights in it that can be read: {notes[0]}")
    raise damage(folder, f"no weights in it: expected files ending in {', '.join(SUFFIXES)}")


def _reader(path: Path) -> Callable[[Path], ModelSource]:
    kind = SUFFIXES.get(path.suffix.lower())
    if kind is None:
        raise damage(path, f"no weights: expected one of {', '.join(SUFFIXES)}")
    return READERS[kind]


def _index(path: Path) -> dict[str, str]:
    with refusals(path, "index"):
        size = path.stat().st_size
        if size > _MAX_INDEX_BYTES:
            raise damage(path, f"an index of {size} bytes, at most {_MAX_INDEX_BYTES} are read")
        text = path.read_bytes()
    return decode_json(path, text, _Index, "no index of weights").weight_map


def _check_index(
    folder: Path,
    name: str,
    places: Mapping[str, Path],
    parts: Mapping[str, ModelSource],
) -> list[str]:
    """Whether the files that an index names are there; notes what is not in them."""
    try:
        weight_map = _index(places[name])
    except InvalidInputError as error:
        return [f"{name} is kept as a file: {error}"]
    above = PurePosixPath(name).parent
    lost: dict[str, list[str]] = {}
    known: dict[str, ModelSource | None] = {}
    for tensor, file in weight_map.items():
        if file not in known:
            inside(folder / name, file, "it names")
            known[file] = parts.get((above / file).as_posix())
        part = known[file]
        if part is not None and tensor not in part.tensors and tensor not in part.aliases:
            lost.setdefault(file, []).append(tensor)
    return [
        f"{name}: {len(tensors)} tensors that it names are not in {file}: {tensors[0]!r:.80}, ..."
        for file, tensors in lost.items()
    ]


def _joined(
    folder: Path, parts: Mapping[str, ModelSource], places: Mapping[str, Path], notes: list[str]
) -> ModelSource:
    tensors: dict[str, TensorReader] = {}
    aliases: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    originals: list[OriginalFile] = []
    for name, read in parts.items():
        above = PurePosixPath(name).parent  # files are named as they lie in the folder
        named = (replace(one, name=(above / one.name).as_posix()) for one in read.originals)
        part = replace(read, originals=tuple(named))
        if tensors.keys() & part.tensors.keys():
            part = with_longer_names(part, name)
            notes.append(
                f"{name}: other files have tensors of these names, so its begin with {name}/"
            )
        twice = sorted(
            (tensors.keys() | aliases.keys()) & (part.tensors.keys() | part.aliases.keys())
        )
        if twice:
            raise damage(folder, f"tensor {twice[0]!r} is in {name} and in another file")
        tensors.update(part.tensors)
        aliases.update(part.aliases)
        metadata.update(part.metadata)
        originals += part.originals
        notes += part.notes
    held = {original.name for original in originals}
    files = {name: at for name, at in places.items() if name not in held}
    return ModelSource(tensors, aliases, files, tuple(originals), metadata, tuple(notes))


def _opaque_note(name: str, error: Exception) -> str:
    return f"{name} is kept as a file, its tensors are not read: {error}"


WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
SHARD_BYTES: Final = 50_000_000_000  # what transformers itself writes


def write_snapshot(model: StoredModel, target: Path, *, overwrite: bool = False) -> None:
    """Write a folder as it came, with new weights for tensors that came from no file.

    Raises:
        InvalidInputError: `target` exists, or a type that safetensors lacks.
    """
    with new_folder(target, overwrite=overwrite) as folder:
        _copy(model, folder, [*model.files, *model.originals])
        held = {part for one in model.originals.values() for part in (*one.parts, *one.others)}
        if not held.issuperset(model.tensors):
            write_safetensors(model, folder / WEIGHTS)


def write_huggingface(
    model: StoredModel, target: Path, *, overwrite: bool = False, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a folder that Hugging Face's libraries load.

    One that came with safetensors comes out as it was. Else its files are written, and its tensors
    as new safetensors; a file of weights in another format is left out.

    Args:
        model: what to write.
        target: the folder.
        overwrite: replace what is there.
        shard_bytes: where the next file of weights begins.

    Raises:
        InvalidInputError: `target` exists, or a type that safetensors lacks; names the tensor.
    """
    if shard_bytes < 1:
        raise InvalidInputError(f"a shard of {shard_bytes} bytes: expected 1 or more")
    originals = model.originals.values()
    if originals and all(original.format == FORMAT for original in originals):
        write_snapshot(model, target, overwrite=overwrite)
        return
    with new_folder(target, overwrite=overwrite) as folder:
        _copy(model, folder, [name for name in model.files if name not in (WEIGHTS, INDEX)])
        _write_shards(model, folder, shard_bytes)


def _copy(model: StoredModel, folder: Path, names: Iterable[str]) -> None:
    for name in sorted(names):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            file.writelines(model.file_chunks(name))


def _write_shards(model: StoredModel, folder: Path, shard_bytes: int) -> None:
    shards = _shards(model, shard_bytes)
    if len(shards) == 1:
        write_tensors(model, folder / WEIGHTS, shards[0])
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, start=1):
        file_name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_tensors(model, folder / file_name, names)
        weight_map |= dict.fromkeys(names, file_name)
    total = sum(model.spec(name).size_bytes for name in weight_map)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    text = json.dumps(index, indent=2, sort_keys=True) + "\n"
    (folder / INDEX).write_text(text, encoding="utf-8")


def _shards(model: StoredModel, shard_bytes: int) -> list[list[str]]:
    """Names in their order, cut where a file would grow beyond its limit."""
    shards: list[list[str]] = [[]]
    size = 0
    for name in model.keys():  # noqa: SIM118  # a Model is no dict
        more = model.spec(name).size_bytes
        if shards[-1] and size + more > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(name)
        size += more
    return shards
