"""Checkout: entries written as ordinary files, and the switch to another branch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from tensorrepo.formats.common.provenance import IMPORTED_FROM, edges_of
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.checkpoints.models import (
    export_model,
    export_options,
    model_file_name,
    usual_format,
)
from tensorrepo.formats.exchange.output import new_file
from tensorrepo.formats.exchange.tables.writers import csv_keeps
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.views import open_rows, open_view
from tensorrepo.repo.changes.revisions import split_at
from tensorrepo.repo.changes.transaction import tree_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    PermissionDenied,
)
from tensorrepo.repo.history.trees import FILE_SUMMARY, Entry
from tensorrepo.repo.objects.blob_bytes import write_blob
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.verbs.files import SMALL_FILE_BYTES
from tensorrepo.workspace.session import RESERVED, WorkspaceSession, full_path
from tensorrepo.workspace.state import Tracked, changed_files, describe_files
from tensorrepo.workspace.tracking import tracking


class Progress(Protocol):
    """Whatever receives units done so far, and those in all: rows, or bytes of models."""

    def __call__(self, done: int, total: int, unit: str = "rows", /) -> None: ...


def _silent(_done: int, _total: int, _unit: str = "rows", /) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """One entry that was written out; `source` is the format that it came in, where it differs."""

    entry: str
    path: Path
    format: str
    files: int
    bytes: int
    source: str = ""


def checkout_paths(
    session: WorkspaceSession,
    ref: str,
    names: Iterable[str],
    *,
    to: Path | None = None,
    force: bool = False,
    progress: Progress = _silent,
) -> list[WrittenFiles]:
    """Write entries of a commit, or folders of them, as ordinary files, and track them.

    They go below `to`, or the workspace's root. With `force` also over files that were changed
    since they were written. `progress` receives the rows or bytes of one entry after the other.
    """
    workspace = session.here
    root = session.resolve(ref).commit.tree
    folder = workspace.root if to is None else to.resolve()
    if not folder.is_relative_to(workspace.root):
        raise InvalidInputError(
            f"{folder} is outside of the workspace: `tensorrepo export` writes there"
        )
    paths = [path for name in names for path in _entries(session, root, name)]
    written = []
    with tracking(workspace) as remember:
        for path in dict.fromkeys(paths):
            entry = session.repository.entry(root, path)
            assert entry is not None, "_entries gives paths that exist"
            target, format_name = _place(session.repository.objects, entry, folder / path)
            if not force:
                _refuse_changed(session, remember.tracked, entry, target)
            written.append(_write(session, path, entry, target, format_name, progress))
            remember(path, entry, target, format_name)
    return written


def update_tracked(session: WorkspaceSession) -> tuple[list[WrittenFiles], list[str]]:
    """Write clean tracked paths anew as HEAD has them; gives those written, and those skipped."""
    workspace = session.here
    written, skipped = [], []
    tip = session.resolve("HEAD")
    with tracking(workspace) as remember:
        for path, tracked in [*remember.tracked.items()]:
            entry = session.repository.entry(tip.commit.tree, tracked.entry)
            if entry is None or entry.digest == tracked.digest:
                continue
            if changed_files(workspace.root, path, tracked):
                skipped.append(path)
                continue
            target = workspace.root / path
            if tracked.format == "csv" and not csv_keeps(
                _rows(session.repository.objects, entry, None).schema
            ):
                skipped.append(path)  # it has columns now that no CSV file holds
                continue
            written.append(_write(session, tracked.entry, entry, target, tracked.format))
            remember(tracked.entry, entry, target, tracked.format)
    return written, skipped


def write_beside(session: WorkspaceSession, path: str, tracked: Tracked, place: Path) -> bool:
    """Write a tracked path at `place` as HEAD has it, and note it as if it were there already.

    Whoever moves it there then can be killed in between: a file is missing, none is unknown. False:
    HEAD lacks it, and it is tracked no more.
    """
    here, objects = session.here, session.repository.objects
    refuse_links(here.root, here.root / path)
    others = {each: known for each, known in here.tracked().items() if each != path}
    entry = session.repository.entry(tree_of(objects, session.tip()), tracked.entry)
    if entry is None:
        here.write_tracked(others)
        return False
    place.parent.mkdir(parents=True, exist_ok=True)
    write_entry(objects, entry, place, tracked.format, overwrite=True, outside=session.outside)
    written = Tracked(tracked.entry, entry.digest, tracked.format, describe_files(place))
    here.write_tracked({**others, path: written})
    return True


def write_entry(
    objects: ObjectStore,
    entry: Entry,
    target: Path,
    format_name: str | None,
    *,
    overwrite: bool,
    outside: Outside | None = None,
    options: Mapping[str, Any] | None = None,
    progress: Progress = _silent,
) -> None:
    """Write one entry at `target` in a foreign format, whole or not at all.

    `format_name` None: told by the target's suffix. `progress` receives rows of datasets, bytes of
    models and large files.
    """
    if entry.kind in (Kind.DATASET, Kind.VIEW):
        dataset = _rows(objects, entry, outside)
        registry.export(
            dataset, target, format_name, overwrite=overwrite, progress=progress, **(options or {})
        )
    elif entry.kind is Kind.MODEL:
        given = export_options(options or {})
        export_model(
            open_model(objects, entry),
            target,
            format_name,
            overwrite=overwrite,
            progress=_in_bytes(progress),
            **given,
        )
    elif options:
        raise InvalidInputError(f"a {entry.kind.label} is written without options")
    elif entry.kind is Kind.BLOB:
        with new_file(target, overwrite=overwrite) as partial, partial.open("wb") as file:
            write_blob(objects, entry.digest, file, target.name, _in_bytes(progress))
    else:
        raise InvalidInputError(f"a {entry.kind.label} cannot be written as files")


def _in_bytes(progress: Progress) -> Callable[[int, int], None]:
    return lambda done, total: progress(done, total, "bytes")


def _write(
    session: WorkspaceSession,
    path: str,
    entry: Entry,
    target: Path,
    format_name: str,
    progress: Progress = _silent,
) -> WrittenFiles:
    with beneath(session.here.root, target) as place:
        write_entry(
            session.repository.objects, entry, place, format_name,
            overwrite=True, outside=session.outside, progress=progress,
        )  # fmt: skip
    written = _written(path, target, format_name)
    if entry.kind is not Kind.DATASET:
        return written
    source = _source_format(open_dataset(session.repository.objects, entry.digest))
    differs = source != format_name and registry.can_write(source)
    return replace(written, source=source) if differs else written


def _written(path: str, target: Path, format_name: str) -> WrittenFiles:
    files = describe_files(target)
    return WrittenFiles(
        path, target, format_name, len(files), sum(size for size, _ in files.values())
    )


def _entries(session: WorkspaceSession, root: bytes, name: str) -> list[str]:
    wanted = name.strip("/")
    if wanted in ("", "."):
        return [path for path, entry in session.repository.entries(root) if _is_for_people(entry)]
    below = [
        path
        for path, entry in session.repository.entries(root, wanted + "/")
        if _is_for_people(entry)
    ]
    return below or [full_path(session.repository, root, wanted)]


def _is_for_people(entry: Entry) -> bool:
    """Whether an entry is written where a folder of them is; an index is made of its rows."""
    return entry.kind is not Kind.SEARCH_INDEX


def _rows(objects: ObjectSource, entry: Entry, outside: Outside | None) -> StoredDataset:
    """A dataset, or the rows of a view."""
    if entry.kind is Kind.DATASET:
        return open_dataset(objects, entry.digest, outside)
    return open_rows(objects, open_view(objects, entry.digest), outside)[1]


def _place(objects: ObjectSource, entry: Entry, place: Path) -> tuple[Path, str]:
    """Where an entry goes and in which format: what `add` would read back as the same."""
    if entry.kind in (Kind.DATASET, Kind.VIEW):
        rows = _rows(objects, entry, None)
        usual = registry.default_format(rows, _source_format(rows))
        return place.with_name(registry.file_name(place.name, usual)), usual
    if entry.kind is Kind.MODEL:
        usual = usual_format(open_model(objects, entry))
        return place.with_name(model_file_name(place.name, usual)), usual
    return place, "file"


def _source_format(dataset: StoredDataset) -> str:
    """The format of the files that the rows of a dataset were first read from; "": none."""
    edges = (edge for edge in edges_of(dataset.root.lineage) if edge.relation == IMPORTED_FROM)
    return next((str(edge.details.get("format", "")) for edge in edges), "")


def _refuse_changed(
    session: WorkspaceSession, known: Mapping[str, Tracked], entry: Entry, target: Path
) -> None:
    if not (target.exists() or target.is_symlink()):
        return
    root = session.here.root
    path = target.relative_to(root).as_posix()
    tracked = known.get(path)
    if tracked is None:
        if _is_small_file(session.repository.objects, entry, target):
            return  # written by a command that was killed before it was noted, or by hand
        raise ConflictError(
            f"{target} exists and was not written by tensorrepo. Move it away, or overwrite "
            "it with --force."
        )
    changed = changed_files(root, path, tracked)
    if changed:
        first = next(iter(changed)) or target.name
        raise ConflictError(
            f"{target} was changed on disk ({first}: {changed[next(iter(changed))]}) and is in no "
            f"commit. Add it with `tensorrepo add {path}` and commit, or overwrite it with --force."
        )


def _is_small_file(objects: ObjectSource, entry: Entry, target: Path) -> bool:
    """Whether a path is a stored file, byte for byte; large ones are not looked at."""
    if entry.kind is not Kind.BLOB or target.is_symlink() or not target.is_file():
        return False
    size = target.stat().st_size
    if size > SMALL_FILE_BYTES or entry.summary != FILE_SUMMARY.pack(size):
        return False
    return target.read_bytes() == objects.get(entry.digest).payload


def refuse_links(root: Path, target: Path) -> None:
    """Never write through a link, nor into the folders of version control."""
    relative = target.relative_to(root)
    if any(part.lower() in RESERVED for part in relative.parts):
        raise InvalidInputError(
            f"{relative} lies in a folder that version control keeps for itself"
        )
    place = root
    for part in relative.parts[:-1]:
        place = place / part
        if place.is_symlink():
            raise ConflictError(f"{place} is a link: nothing is written through links. Remove it.")


@contextmanager
def beneath(root: Path, target: Path) -> Iterator[Path]:
    """`target`, in a folder held open: nobody who swaps it for a link leads what is written away.

    The folders down to it are made, and opened from `root` on without following links. Exporters
    take paths, so theirs goes by the descriptor, where the system has such.

    Raises:
        ConflictError: a link or a file is in the way, or the folder was moved meanwhile.
    """
    refuse_links(root, target)
    folder = _open_folder(root, target)
    held = Path(f"/proc/self/fd/{folder}")
    try:
        if not held.exists():
            yield target
            return
        try:
            yield held / target.name
        except Error as error:
            error.args = tuple(
                each.replace(str(held), str(target.parent)) if isinstance(each, str) else each
                for each in error.args
            )
            raise
        if not os.path.exists(target.parent) or not os.path.samestat(
            os.fstat(folder), os.lstat(target.parent)
        ):
            raise ConflictError(
                f"{target.parent} was moved or replaced while {target.name} was written into it. "
                "Look where it went, and repeat."
            )
    finally:
        os.close(folder)


def _open_folder(root: Path, target: Path) -> int:
    """The folder of `target`, made where it is missing, as a descriptor."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    for part in target.relative_to(root).parts[:-1]:
        try:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        except NotADirectoryError as error:
            raise ConflictError(
                f"cannot write {target}: a file, or a link, is in the way"
            ) from error
        except OSError as error:
            raise PermissionDenied(f"cannot write {target}: {error.strerror}") from error
        finally:
            os.close(folder)
        folder = below
    return folder


def export(
    session: WorkspaceSession,
    name: str,
    target: Path,
    format_name: str | None,
    *,
    force: bool = False,
    options: Mapping[str, Any] | None = None,
    progress: Progress = _silent,
) -> WrittenFiles:
    """Write ``NAME[@REF]`` in a foreign format, untracked.

    `format_name` None: told by the target's suffix.
    """
    split = split_at(name)
    _, path, entry = session.find(name if split is None else f"{split[1]}:{split[0]}")
    write_entry(
        session.repository.objects, entry, target, format_name,
        overwrite=force, outside=session.outside, options=options, progress=progress,
    )  # fmt: skip
    return _written(path, target, format_name or target.suffix.lstrip(".") or "folder")
