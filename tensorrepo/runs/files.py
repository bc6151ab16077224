"""Files of runs: kept during a training, and read again."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from tensorrepo.context import Context
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.runs.run_files import file_tree, put_file
from tensorrepo.formats.runs.run_models import folder_models, is_weights, put_weights
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.verbs.models import known_models

_NO_PILLOW: Final = "pictures need Pillow: pip install 'tensorrepo[images]'"
_PICTURES: Final = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
_AXES: Final = (2, 3)
_CHANNELS: Final = (1, 3, 4)


def log_files(context: Context, run: str, path: Path, folder: str = "") -> None:
    """Keep a file, or a folder with all that is in it, among the files of a run."""
    at = context.machine.cwd / path
    if not at.exists():
        raise NotFoundError(f"there is no {path}: nothing was kept")
    above = f"{folder.strip('/')}/" if folder.strip("/") else ""
    if at.is_file():
        _keep(context, run, above + at.name, at)
        return
    files = sorted(each for each in at.rglob("*") if each.is_file() and not each.is_symlink())
    for each in files:
        _keep(context, run, f"{above}{at.name}/{each.relative_to(at).as_posix()}", each)


def log_image(context: Context, run: str, image: Any, name: str, step: int | None) -> None:
    """Keep a picture among the files of a run; see `Run.log_image`."""
    suffix = PurePosixPath(name).suffix.lower()
    if step is not None:
        name = f"{name.removesuffix(suffix)}/{step:08d}{suffix or '.png'}"
    elif not suffix:
        name += ".png"
    form = _PICTURES.get(suffix or ".png")
    if form is None:
        raise InvalidInputError(f"picture {name!r:.100}: expected one of {', '.join(_PICTURES)}")
    stream = BytesIO()
    _picture(image).save(stream, form)
    put_file(context.core, run, name, stream.getvalue(), author=context.author)


def log_figure(context: Context, run: str, figure: Any, name: str) -> None:
    """Keep a figure among the files of a run; see `Run.log_figure`."""
    if not callable(getattr(figure, "savefig", None)):
        raise InvalidInputError(
            f"a figure is one of matplotlib, which can savefig; got {type(figure).__name__}"
        )
    suffix = PurePosixPath(name).suffix
    stream = BytesIO()
    figure.savefig(stream, format=suffix.removeprefix(".") or "png")
    called = name if suffix else f"{name}.png"
    put_file(context.core, run, called, stream.getvalue(), author=context.author)


def files_of(core: RepositoryCore, run: str) -> dict[str, int]:
    """Bytes of each file of a run, by name."""
    tree = file_tree(core, core.log.refresh(), run)
    found = {name: list_entry(name, entry).bytes for name, entry in tree.files()}
    for model in folder_models(tree):
        opened = open_model(tree.objects, model.entry)
        above = f"{model.folder}/" if model.folder else ""
        sizes = {name: file.size_bytes for name, file in opened.files.items()}
        sizes |= {name: file.size_bytes for name, file in opened.originals.items()}
        for name, size in sizes.items():
            found.setdefault(above + name, size)
    return dict(sorted(found.items()))


def read_file_of(core: RepositoryCore, run: str, name: str) -> bytes:
    """The bytes of a file of a run. Raises NotFoundError."""
    tree = file_tree(core, core.log.refresh(), run)
    entry = tree.file(name)
    if entry is not None:
        return bytes(core.objects.get(entry.digest).payload)
    for model in folder_models(tree):
        inner = model.name_of(name)
        opened = open_model(tree.objects, model.entry)
        if inner is not None and (inner in opened.files or inner in opened.originals):
            return b"".join(opened.file_chunks(inner))
    known = files_of(core, run)
    hint = did_you_mean(name, known.keys(), there_are(known, "It left none."))
    raise NotFoundError(f"run {run!r} has no file {name!r:.200}.{hint}")


def _keep(context: Context, run: str, name: str, path: Path) -> None:
    author = context.author
    if is_weights(name) and put_weights(
        context.core, run, name, path, known=_bases(context, name), author=author
    ):
        return
    put_file(context.core, run, name, path, author=author)


def _bases(context: Context, name: str) -> tuple[Entry, ...]:
    """Models of branch main that weights may be stored against."""
    core = context.core
    commit = core.log.refresh().state.refs.get("heads/main")
    if commit is None:
        return ()
    stem = PurePosixPath(name).stem
    return known_models(core, read_commit(core.objects, commit).tree, (), f"models/{stem}")


def _picture(image: Any) -> Any:
    """A picture of Pillow."""
    pillow = import_library("PIL.Image", _NO_PILLOW)
    if isinstance(image, pillow.Image):
        return image
    if hasattr(image, "detach"):  # a tensor of torch
        image = image.detach().cpu().numpy()
    array = np.asarray(image)
    if array.ndim not in _AXES or (array.ndim == max(_AXES) and array.shape[2] not in _CHANNELS):
        raise InvalidInputError(
            f"a picture is an array (height, width) or (height, width, 1, 3 or 4), "
            f"got {array.shape}"
        )
    if array.dtype.kind == "f":
        array = np.clip(np.nan_to_num(array), 0, 1) * 255
    if array.dtype.kind not in "fuib":
        raise InvalidInputError(f"a picture is an array of numbers, got {array.dtype}")
    pixels = np.clip(np.rint(array), 0, 255).astype(np.uint8)
    return pillow.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
