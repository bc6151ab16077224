"""Which reader or writer serves a model at this path?

Models come as one file (safetensors, a torch checkpoint, npz) or as a folder in which weights lie
beside their config and tokenizer, as Hugging Face lays them out ("snapshot").
"""

from __future__ import annotations

import difflib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.exchange.base import damage
from tensorrepo.formats.exchange.checkpoints.safetensors import read_safetensors, write_safetensors
from tensorrepo.formats.exchange.checkpoints.torch import read_torch, write_torch
from tensorrepo.formats.exchange.ignore import read_ignore
from tensorrepo.formats.exchange.numeric.npy import read_npz_tensors
from tensorrepo.formats.exchange.output import new_folder
from tensorrepo.formats.exchange.registry import model_format
from tensorrepo.formats.model.source import ModelSource, OriginalFile, source_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.formats.model.read import Model
    from tensorrepo.formats.tensors import TensorReader

READERS: dict[str, Callable[[Path], ModelSource]] = {
    "safetensors": read_safetensors,
    "torch": read_torch,
    "npz": lambda path: source_of(read_npz_tensors(path)),
}
WEIGHTS = {".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".bin": "torch"}
SUFFIXES = {**WEIGHTS, ".ckpt": "torch", ".npz": "npz"}
WRITERS: dict[str, Callable[..., None]] = {
    "safetensors": write_safetensors,
    "torch": write_torch,
}
NEW_WEIGHTS = "model.safetensors"


def read_model(path: Path, format_name: str | None = None) -> ModelSource:
    """Open a model file or folder. Tensors are read when they are stored.

    Args:
        path: a file, or a folder with weights and what belongs to them.
        format_name: "safetensors", "torch", "npz" or "snapshot"; None: told by content and suffix.

    Raises:
        NotFoundError: no such path.
        InvalidInputError: no model, damaged, or an unknown format.
    """
    if not path.exists():
        raise NotFoundError(f"there is no {path}")
    if path.is_dir():
        if format_name not in (None, "snapshot"):
            raise InvalidInputError(f"{path} is a folder: only snapshots are, not {format_name}")
        return _read_snapshot(path)
    chosen = format_name or model_format(path) or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise damage(path, f"no model: expected one of {', '.join(READERS)}, or a folder of them")
    return _reader(chosen)(path)


def model_file_name(name: str, format_name: str) -> str:
    """What a model called `name` is called when it is written in `format_name`."""
    return name if format_name == "snapshot" else name + _suffix(format_name)


def usual_format(model: Model) -> str:
    """What `checkout` writes: a file when it came as one, a folder when files belong to it."""
    if model.files or len(model.originals) > 1:
        return "snapshot"
    return "safetensors"


def export_model(
    model: Model, target: Path, format_name: str | None = None, *, overwrite: bool = False
) -> None:
    """Write a model at `target`, whole or not at all.

    Raises:
        InvalidInputError: `target` exists and `overwrite` is not set, an unknown format, or one
            that cannot hold the model.
    """
    chosen = format_name or SUFFIXES.get(target.suffix.lower()) or usual_format(model)
    if chosen == "snapshot":
        _write_snapshot(model, target, overwrite=overwrite)
        return
    if chosen not in WRITERS:
        raise _unknown(chosen, (*WRITERS, "snapshot"))
    WRITERS[chosen](model, target, overwrite=overwrite)


def _read_snapshot(folder: Path) -> ModelSource:
    ignore = read_ignore(folder)
    places = {
        place.relative_to(folder).as_posix(): place
        for place in sorted(folder.rglob("*"))
        if place.is_file() and not place.is_symlink()
    }
    kept = {name: at for name, at in places.items() if not ignore.leaves_out(name, is_folder=False)}
    weights = {name: at for name, at in kept.items() if at.suffix.lower() in WEIGHTS}
    # A folder may hold the same weights twice, as safetensors and as a torch file: one is enough.
    safe = {name: at for name, at in weights.items() if at.suffix.lower() == ".safetensors"}
    chosen = safe or weights
    if not chosen:
        raise damage(folder, f"no weights in it: expected files ending in {', '.join(WEIGHTS)}")
    parts = {name: _reader(WEIGHTS[at.suffix.lower()])(at) for name, at in chosen.items()}
    others = {name: at for name, at in kept.items() if name not in chosen}
    return _joined(folder, parts, others)


def _joined(folder: Path, parts: dict[str, ModelSource], files: dict[str, Path]) -> ModelSource:
    tensors: dict[str, TensorReader] = {}
    aliases: dict[str, str] = {}
    metadata: dict[str, Any] = {}
    originals: list[OriginalFile] = []
    notes: list[str] = []
    for name, part in parts.items():
        twice = sorted(tensors.keys() & part.tensors.keys())
        if twice:
            raise damage(folder, f"tensor {twice[0]!r} is in {name} and in another file")
        tensors.update(part.tensors)
        aliases.update(part.aliases)
        metadata.update(part.metadata)
        originals += [replace(original, name=name) for original in part.originals]
        notes += part.notes
    return ModelSource(tensors, aliases, dict(files), tuple(originals), metadata, tuple(notes))


def _write_snapshot(model: Model, target: Path, *, overwrite: bool) -> None:
    with new_folder(target, overwrite=overwrite) as folder:
        for name in sorted({*model.files, *model.originals}):
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            with place.open("xb") as file:
                for chunk in model.file_chunks(name):
                    file.write(chunk)
        held = {part for one in model.originals.values() for part in one.parts}
        if not held.issuperset(model.keys()):
            write_safetensors(model, folder / NEW_WEIGHTS)


def _reader(name: str) -> Callable[[Path], ModelSource]:
    if name not in READERS:
        raise _unknown(name, (*READERS, "snapshot"))
    return READERS[name]


def _suffix(format_name: str) -> str:
    return {"safetensors": ".safetensors", "torch": ".pt", "npz": ".npz"}[format_name]


def _unknown(name: str, known: tuple[str, ...]) -> InvalidInputError:
    near = difflib.get_close_matches(name, known, 1, 0.5)
    hint = f" Did you mean {near[0]}?" if near else ""
    return InvalidInputError(f"unknown model format {name!r}; known are {', '.join(known)}.{hint}")
