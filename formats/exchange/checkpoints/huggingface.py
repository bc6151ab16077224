"""How is a model written as a folder?

As it came ("snapshot"), or as Hugging Face's libraries expect it ("hf"): its config, tokenizer and
card beside safetensors, in shards with an index when there is more than one file of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from tensorrepo.formats.exchange.checkpoints.safetensors import (
    FORMAT,
    write_safetensors,
    write_tensors,
)
from tensorrepo.formats.exchange.output import new_folder
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tensorrepo.formats.model.read import Model

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
SHARD_BYTES: Final = 50_000_000_000  # what transformers itself writes


def write_snapshot(model: Model, target: Path, *, overwrite: bool = False) -> None:
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
    model: Model, target: Path, *, overwrite: bool = False, shard_bytes: int = SHARD_BYTES
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


def _copy(model: Model, folder: Path, names: Iterable[str]) -> None:
    for name in sorted(names):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            for chunk in model.file_chunks(name):
                file.write(chunk)


def _write_shards(model: Model, folder: Path, shard_bytes: int) -> None:
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


def _shards(model: Model, shard_bytes: int) -> list[list[str]]:
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
