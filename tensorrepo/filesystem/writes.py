"""Files that are written become entries: what a transaction wrote is one commit.

files/NAME                            a file, as it is
datasets/NAME.parquet, .csv, ...      a dataset of its rows, over the one of that name
models/NAME/FILE                      a model: all files below NAME that the transaction wrote
models/NAME.safetensors, .gguf, ...   a model of one file
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.exchange.checkpoints.snapshot import SUFFIXES
from tensorrepo.formats.exchange.registry import read
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_path
from tensorrepo.transaction import Transaction
from tensorrepo.verbs.models import known_models, save

_TABLE_SUFFIXES: Final = (".parquet", ".csv", ".arrow", ".feather", ".jsonl", ".ndjson")
SPACES: Final = ("files", "datasets", "models")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was written, before its commit.

    Attributes:
        path: where it is to be, in the commit.
        content: where it lies on this machine until then.
    """

    path: str
    content: Path


def check_target(path: str) -> None:
    """Refuse a path before anything is written there.

    Raises:
        InvalidInputError: it is no path, or nothing can be written there.
    """
    space, _, name = check_path(path).partition("/")
    if space == "datasets" and not name.endswith(_TABLE_SUFFIXES):
        raise InvalidInputError(
            f"{path}: a dataset is written as a table: {', '.join(_TABLE_SUFFIXES)} behind its name"
        )
    if space == "models" and "/" not in name and not name.endswith(tuple(SUFFIXES)):
        raise InvalidInputError(
            f"{path}: a model is written as models/NAME/FILE, or as one file of weights: "
            f"{', '.join(SUFFIXES)}"
        )
    if space not in SPACES or not name:
        raise InvalidInputError(f"{path}: files are written below {', '.join(SPACES)}")


def stage_written(tx: Transaction, files: Iterable[WrittenFile], scratch: Path) -> None:
    """Stage what was written. `scratch` is a folder to lay out the files of models in.

    Raises:
        InvalidInputError: a table or a model that cannot be read; names it.
    """
    models: dict[str, dict[str, Path]] = {}
    for file in files:
        space, _, name = file.path.partition("/")
        if space == "files":
            tx.save_file(name, file.content)
        elif space == "datasets":
            _stage_table(tx, name, file.content)
        else:
            model, inner = _model_of(name)
            models.setdefault(model, {})[inner] = file.content
    for model, parts in models.items():
        _stage_model(tx, model, parts, scratch)


def remove(tx: Transaction, path: str) -> None:
    """Stage that nothing is at `path`, or below it. Raises NotFoundError."""
    plain = path.removesuffix(".parquet") if path.startswith(("datasets/", "views/")) else path
    if tx.core.entry(plain) is not None:
        tx.remove(plain)
        return
    tree = tree_of(tx.core.objects, tx.core.base)
    below = [at for at, _ in tx.context.core.entries(tree, f"{path}/")]
    if not below:
        raise NotFoundError(f"there is no {path!r:.300} to remove, or it is a part of an entry")
    for at in below:
        tx.remove(at)


def _stage_table(tx: Transaction, name: str, content: Path) -> None:
    at = PurePosixPath(name)
    dataset = at.with_suffix("").as_posix()
    named = content.with_suffix(at.suffix)  # importers tell formats by suffixes, too
    content.rename(named)
    if tx.core.entry(f"datasets/{dataset}") is not None:
        tx.remove(f"datasets/{dataset}")
    tx.create_dataset(dataset, read(named))


def _model_of(name: str) -> tuple[str, str]:
    """Name of the model that a file below ``models/`` belongs to, and of the file in it."""
    model, slash, inner = name.rpartition("/")
    if slash:
        return model, inner
    at = PurePosixPath(name)
    return at.with_suffix("").as_posix(), at.name


def _stage_model(tx: Transaction, name: str, parts: Mapping[str, Path], scratch: Path) -> None:
    folder = scratch / name
    folder.mkdir(parents=True)
    for inner, content in parts.items():
        shutil.move(content, folder / inner)
    alone = next(iter(parts)) if len(parts) == 1 else None
    is_weights = alone is not None and alone.endswith(tuple(SUFFIXES))
    source = read_model(folder / alone if alone is not None and is_weights else folder)
    path = f"models/{name}"
    core = tx.context.core
    known = known_models(
        core, tree_of(core.objects, tx.core.base), tuple(tx.core.staged.values()), path
    )
    save(tx.core, path, source, base=None, known=known, lineage=())
