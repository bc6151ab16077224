"""Models of a run's files: a folder becomes a model, its weights tensors that are stored once.

What the house can parse (safetensors, state dicts of torch, GGUF, ONNX, npz) is stored as tensors,
against the most similar model that is known; everything else, a pickle that wants to run code too,
is kept byte for byte as a file of the model. Nothing is unpickled. The files are given back as they
came, and no longer lie in the run beside the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Final

from tensorrepo.formats.common.damage import is_refused
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.exchange.checkpoints.models import read_model
from tensorrepo.formats.exchange.checkpoints.snapshot import SUFFIXES
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import store_model
from tensorrepo.formats.runs.file_names import tree_path
from tensorrepo.formats.runs.run_files import (
    FILES,
    MODELS,
    Changes,
    FileTree,
    edit_files,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.blob_bytes import write_blob
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

FOLDER: Final = "folder"  # metadata of a model: the folder of the run that it was
WHOLE: Final = "model"  # what the model of all files is called


@dataclass(frozen=True, slots=True)
class FolderModel:
    """A model that was a folder of a run: where it lies, and which folder it was."""

    path: str
    folder: str
    entry: Entry

    def name_of(self, file: str) -> str | None:
        """What the model calls a file of the run; None: it was not in that folder."""
        if not self.folder:
            return file
        return file.removeprefix(f"{self.folder}/") if file.startswith(f"{self.folder}/") else None


def folder_models(tree: FileTree) -> list[FolderModel]:
    """Models that were folders of a run."""
    found = []
    for path, entry in tree.models():
        folder = open_model(tree.objects, entry).manifest.metadata.get(FOLDER)
        if isinstance(folder, str):
            found.append(FolderModel(path, folder, entry))
    return found


def model_of_folder(
    core: RepositoryCore,
    owner: str,
    folder: str,
    *,
    scratch: Path,
    known: Iterable[Entry],
    author: str,
    lineage: Iterable[ProvenanceEdge] = (),
) -> str:
    """Make a folder of a run's files a model, unless it is one; gives its path.

    Args:
        core: repository of the run.
        owner: name of the run.
        folder: folder among its files; "" for all of them.
        scratch: folder for the files while they are read, on a disk that has room for them.
        known: models that it may be stored against, the likeliest first.
        author: author of the commit.
        lineage: what it was made of.

    Raises:
        NotFoundError: there are no files in it.
        ConflictError: another folder is a model of that name.
    """
    path = MODELS + (tree_path(folder) if folder else WHOLE)
    edges, bases = list(lineage), list(known)
    told = {FOLDER: folder}

    def change(objects: ObjectWriter, tree: FileTree) -> Changes:
        files = dict(tree.files(folder))
        models = folder_models(tree)
        there = next((one for one in models if one.path == path), None)
        inner = [
            one
            for one in models
            if one.path != path and (not folder or one.path.startswith(f"{path}/"))
        ]
        if there is not None and not files and there.folder == folder.rpartition("/")[0]:
            return {}  # a file of weights, which is a model by itself
        if there is not None and there.folder != folder:
            raise ConflictError(f"{there.folder!r:.100} of {owner} is the model {path} already")
        if not files and not inner:
            if there is not None:
                return {}
            raise NotFoundError(f"run {owner!r} has no files in {folder!r:.200}")
        with TemporaryDirectory(dir=scratch) as temporary:
            place = Path(temporary)
            if there is not None:  # files that came since
                _write_model(open_model(objects, there.entry), place)
            for one in inner:
                below = one.folder.removeprefix(folder).strip("/")
                _write_model(open_model(objects, one.entry), place / below)
            for name, entry in files.items():
                short = name.removeprefix(f"{folder}/") if folder else name
                _write(core.objects, entry, place / short, name)
            written = store_model(
                objects, read_folder(place), metadata=told, lineage=edges, known=bases
            )
        gone: dict[str, Entry | None] = {FILES + tree_path(name): None for name in files}
        gone |= {one.path: None for one in inner}
        return {**gone, path: written.entry}

    edit_files(core, owner, change, author=author, message=f"Make {folder or WHOLE} a model")
    return path


def put_weights(
    core: RepositoryCore,
    owner: str,
    name: str,
    content: Path,
    *,
    known: Iterable[Entry],
    author: str,
) -> bool:
    """Store a file of a run as a model, where it is weights that can be read; tells whether.

    Args:
        core: repository of the run.
        owner: name of the run.
        name: its path among the files of the run; its last part is what `content` is called.
        content: where it lies.
        known: models that it may be stored against, the likeliest first.
        author: author of the commit.
    """
    try:
        source = read_model(content)
    except (InvalidInputError, UnsupportedError):
        return False
    if not source.tensors:
        return False
    path, bases = tree_path(name), list(known)
    told = {FOLDER: name.rpartition("/")[0]}

    def change(objects: ObjectWriter, _: FileTree) -> Changes:
        written = store_model(objects, source, metadata=told, known=bases)
        return {FILES + path: None, MODELS + path: written.entry}

    edit_files(core, owner, change, author=author, message=f"Store {name} of run {owner}")
    return True


def is_weights(name: str) -> bool:
    """Whether a file is called as weights are."""
    return PurePosixPath(name).suffix.lower() in SUFFIXES


def read_folder(folder: Path) -> ModelSource:
    """All files of a folder as a model: weights as tensors where they can be read."""
    files = {
        place.relative_to(folder).as_posix(): place
        for place in sorted(folder.rglob("*"))
        if place.is_file()
    }
    if not any(place.suffix.lower() in SUFFIXES for place in files.values()):
        return ModelSource({}, files=files)
    try:
        source = read_model(folder)
    except (InvalidInputError, UnsupportedError) as error:
        why = "it wants to run code" if is_refused(error) else str(error)
        return ModelSource({}, files=files, notes=(f"kept as files: {why}",))
    held = {one.name for one in source.originals} | source.files.keys()
    left = {name: place for name, place in files.items() if name not in held}
    return replace(source, files={**source.files, **left})


def _write(objects: ObjectStore, entry: Entry, target: Path, name: str) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as file:
        write_blob(objects, entry.digest, file, name)


def _write_model(model: StoredModel, folder: Path) -> None:
    for name in [*model.files, *model.originals]:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            for chunk in model.file_chunks(name):
                file.write(chunk)
