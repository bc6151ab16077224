"""Dispatch of model files and folders to their readers and writers.

Models come as one file (safetensors, GGUF, ONNX, a torch checkpoint, npz, npy) or as a folder in
which weights lie beside their config and tokenizer, as Hugging Face lays them out ("snapshot").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.common.damage import damage, is_refused
from tensorrepo.formats.common.tensors import SAFETENSORS_TYPES, TORCH_NAMES
from tensorrepo.formats.exchange.checkpoints.gguf import write_gguf
from tensorrepo.formats.exchange.checkpoints.npz import write_npy, write_npz
from tensorrepo.formats.exchange.checkpoints.onnx import DATA, write_onnx
from tensorrepo.formats.exchange.checkpoints.recognition import model_format
from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors
from tensorrepo.formats.exchange.checkpoints.snapshot import (
    INDEX_SUFFIX,
    READERS,
    SUFFIXES,
    opaque,
    read_index,
    read_snapshot,
    write_huggingface,
    write_snapshot,
)
from tensorrepo.formats.exchange.checkpoints.torch import write_torch
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.suggest import did_you_mean

Chunk = TypeVar("Chunk", bound=Buffer)
WRITERS: Final[dict[str, Callable[..., None]]] = {
    "safetensors": write_safetensors,
    "gguf": write_gguf,
    "onnx": write_onnx,
    "torch": write_torch,
    "npz": write_npz,
    "npy": write_npy,
    "hf": write_huggingface,
    "snapshot": write_snapshot,
}
_NAMES: Final = {
    "safetensors": ".safetensors", "gguf": ".gguf", "onnx": ".onnx", "torch": ".pt",
    "npz": ".npz", "npy": ".npy",
}  # fmt: skip
# What cannot be parsed may be kept as it is. Not a pickle that wants to run code, nor a zip.
_MAYBE_OPAQUE: Final = frozenset({"safetensors", "gguf", "onnx"})


def read_model(path: Path, format_name: str | None = None) -> ModelSource:
    """Open a model file or folder. Tensors are read when they are stored.

    A safetensors, GGUF or ONNX file that is whole and cannot be parsed is kept as a file, with a
    note, unless its format was given. What is cut short, and a torch checkpoint that wants to run
    code, is refused.

    Args:
        path: a file, a folder with weights and what belongs to them, or the index of shards.
        format_name: one of `READERS`, or "snapshot"; None: told by content and suffix.

    Raises:
        NotFoundError: no such path, or a file that it names is missing.
        InvalidInputError: no model, damaged, or an unknown format.
    """
    if not path.exists():
        raise NotFoundError(f"there is no {path}")
    if path.is_dir():
        if format_name not in (None, "snapshot", "hf"):
            raise InvalidInputError(f"{path} is a folder: only snapshots are, not {format_name}")
        return read_snapshot(path)
    if format_name is None and path.name.endswith(INDEX_SUFFIX):
        return read_index(path)
    if not path.stat().st_size:
        raise damage(path, "is empty")
    chosen = format_name or model_format(path) or SUFFIXES.get(path.suffix.lower())
    if chosen is None:
        raise damage(path, f"no model: expected one of {', '.join(READERS)}, or a folder of them")
    if chosen not in READERS:
        raise _unknown(chosen, (*READERS, "snapshot"))
    try:
        return READERS[chosen](path)
    except InvalidInputError as error:
        if is_refused(error) or format_name is not None or chosen not in _MAYBE_OPAQUE:
            raise
        return opaque(path, error)


def model_file_name(name: str, format_name: str) -> str:
    """What a model called `name` is called when it is written in `format_name`."""
    return name + _NAMES.get(format_name, "")


def usual_format(model: StoredModel) -> str:
    """What `checkout` writes: what it came as, a folder when files belong to it."""
    formats = {original.format for original in model.originals.values()}
    if model.files or len(formats - {DATA}) > 1 or len(model.originals) > 1:
        return "snapshot"
    if formats & _NAMES.keys():
        return formats.pop()
    types = {entry.name for entry in model.manifest.types}
    if types <= set(SAFETENSORS_TYPES):
        return "safetensors"
    return "torch" if types <= TORCH_NAMES.keys() else "gguf"


def export_model(
    model: StoredModel,
    target: Path,
    format_name: str | None = None,
    *,
    overwrite: bool = False,
    shard_bytes: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Write a model at `target`, whole or not at all.

    What came as a file of the format is given back byte for byte.

    Args:
        model: what to write.
        target: where to; its folder exists.
        format_name: one of `WRITERS`; None: told by the suffix of `target`; as the model came, if
            that has none.
        overwrite: replace what is there.
        shard_bytes: size at which "hf" begins the next file of weights.
        progress: callback that receives the bytes of tensors written so far, and those in all.

    Raises:
        InvalidInputError: `target` exists and `overwrite` is not set, an unknown format or suffix,
            or a format that cannot hold the model; names the tensor.
    """
    chosen = format_name or SUFFIXES.get(target.suffix.lower())
    if chosen is None and target.suffix:
        raise InvalidInputError(
            f"{target.name}: no model format has the suffix {target.suffix!r}. Use one of "
            f"{', '.join(SUFFIXES)}, or say the format (--format, in Python format=): "
            f"{', '.join(WRITERS)}"
        )
    chosen = chosen or usual_format(model)
    if chosen not in WRITERS:
        raise _unknown(chosen, tuple(WRITERS))
    watched = _watched(model, progress)
    if shard_bytes is None:
        WRITERS[chosen](watched, target, overwrite=overwrite)
    elif chosen == "hf":
        write_huggingface(watched, target, overwrite=overwrite, shard_bytes=shard_bytes)
    else:
        raise InvalidInputError(f"only hf is written in shards, not {chosen}")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _WatchedModel(StoredModel):
    """A model that tells how many of its bytes were asked for."""

    tell: Callable[[int], None] = lambda _: None

    def tensor_chunks(self, name: str) -> Iterator[memoryview]:
        return self._told(StoredModel.tensor_chunks(self, name))

    def file_chunks(self, name: str) -> Iterator[Buffer]:
        return self._told(StoredModel.file_chunks(self, name))

    def _told(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        for chunk in chunks:
            yield chunk
            self.tell(memoryview(chunk).nbytes)


def _watched(model: StoredModel, progress: Callable[[int, int], None]) -> StoredModel:
    done, total = 0, model.size_bytes

    def tell(size: int) -> None:
        nonlocal done
        done += size
        progress(min(done, total), total)  # headers and names are written, too

    return _WatchedModel(
        model.entry, model.manifest, model.objects, model.packs, model.tensors, model.aliases, tell
    )


def export_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Options of a model's format, as the SDK or the command line give them.

    Raises:
        InvalidInputError: an unknown one, or a value that it cannot have.
    """
    unknown = sorted(options.keys() - {"shard_bytes"})
    if unknown:
        raise InvalidInputError(f"models have no option {unknown[0]!r}; there is shard_bytes")
    given = options.get("shard_bytes")
    return {} if given is None else {"shard_bytes": byte_size("shard_bytes", given, 1)}


def _unknown(name: str, known: tuple[str, ...]) -> InvalidInputError:
    hint = did_you_mean(name, known)
    return InvalidInputError(f"unknown model format {name!r}; known are {', '.join(known)}.{hint}")
