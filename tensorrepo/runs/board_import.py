"""Import of trainings that TensorBoard was told of: each folder of event files becomes a run."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from tensorrepo.context import Context
from tensorrepo.formats.common.provenance import imported_from
from tensorrepo.formats.exchange.records.tensorboard import (
    BoardEnd,
    BoardPicture,
    BoardScalar,
    runs_below,
    walk_events,
)
from tensorrepo.formats.runs.metrics import Logbook
from tensorrepo.formats.runs.run_files import put_file
from tensorrepo.formats.runs.run_record import FINISHED, RunDocument, check_run_name, new_attempt
from tensorrepo.formats.runs.stored_run import (
    PointChunks,
    recorded_runs,
    ref_of_record,
    store_run,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.log.reader import LogView

MOST_POINTS: Final = 1 << 24  # of one run: 400 MB in memory
_OTHERS: Final = re.compile(r"[^A-Za-z0-9._-]+")
_NS_OF_MS: Final = 10**6


@dataclass(frozen=True, slots=True)
class ImportedRun:
    """What became of a folder of event files."""

    name: str
    folder: str
    metrics: int
    points: int
    pictures: int
    notes: tuple[str, ...]


def import_runs(context: Context, path: Path, name: str | None = None) -> list[ImportedRun]:
    """Make a run of each folder below `path` that has event files.

    Args:
        context: repository of the runs.
        path: folder, or one event file.
        name: name of the run, or what the names of several begin with; None: the folder's.

    Raises:
        NotFoundError: there is no such folder, or no event file in it.
        ConflictError: there is a run of such a name; nothing was imported.
    """
    at = context.machine.cwd / path
    if not at.exists():
        raise NotFoundError(f"there is no {path}")
    found = {"": [at]} if at.is_file() else runs_below(at)
    if not found:
        raise NotFoundError(f"{path} has no event files of TensorBoard, neither have its folders")
    first = name or (at.parent.name if at.is_file() else at.resolve().name)
    names = {_name(first, folder): (folder, files) for folder, files in found.items()}
    taken = names.keys() & recorded_runs(context.core.log.refresh()).keys()
    if len(names) < len(found) or taken:
        same = next(iter(taken), "of two folders")
        raise ConflictError(
            f"run {same!r} is there already: nothing was imported. Give another --name"
        )
    made = [_import(context, run, folder, files) for run, (folder, files) in names.items()]
    told = [one for one in made if one is not None]
    if not told:
        raise InvalidInputError(f"{path}: its event files tell of no scalar and of no picture")
    return told


def _import(context: Context, name: str, folder: str, files: Iterable[Path]) -> ImportedRun | None:
    """The run; None where the files tell of nothing."""
    logbook = Logbook()
    times: list[int] = []
    notes: list[str] = []
    points = pictures = 0
    places = list(files)
    for file in places:
        for event in walk_events(file):
            match event:
                case BoardScalar():
                    points += 1
                    if points > MOST_POINTS:
                        raise InvalidInputError(f"{file}: more than {MOST_POINTS} values in a run")
                    times.append(event.time_ms)
                    logbook.add({event.tag: event.value}, event.step, event.time_ms)
                case BoardPicture():
                    pictures += 1
                    times.append(event.time_ms)
                    called = f"{event.tag}/{event.step:08d}.{event.suffix}"
                    put_file(context.core, name, called, event.data, author=context.author)
                case BoardEnd():
                    notes.append(event.why)
    if not times:
        return None
    taken = logbook.take()
    began, ended = min(times) * _NS_OF_MS, max(times) * _NS_OF_MS
    document = RunDocument(
        name,
        secrets.token_hex(32),
        FINISHED,
        context.author,
        began,
        time.time_ns(),
        ended,
        ended_ns=ended,
        attempts=new_attempt(began, None, {}),
        inputs=(imported_from(str(places[0].parent), format="tensorboard"),),
        metrics=taken.metrics,
    )
    ref = ref_of_record(name)

    def refuse(view: LogView) -> None:
        if ref in view.state.refs:
            raise ConflictError(f"run {name!r} was begun by somebody else just now")

    chunks = PointChunks(held=dict(taken.points))
    store_run(context.core, document, chunks, author=context.author, refuse=refuse)
    return ImportedRun(name, folder, len(taken.metrics), points, pictures, tuple(notes))


def _name(first: str, folder: str) -> str:
    plain = _OTHERS.sub("-", f"{first}-{folder}" if folder else first).strip("-.")
    return check_run_name(plain[:128] or "run")
