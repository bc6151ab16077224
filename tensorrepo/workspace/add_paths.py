"""Paths of an `add`: what each of them is, what it is called, and all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path, PurePath
from types import MappingProxyType

from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.checkpoints.recognition import model_format
from tensorrepo.formats.exchange.checkpoints.snapshot import READERS
from tensorrepo.formats.exchange.formats import FORMATS
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_path
from tensorrepo.verbs.exchange import SourceProgress
from tensorrepo.workspace.add import add, add_datasets
from tensorrepo.workspace.add_files import add_files
from tensorrepo.workspace.add_request import Added, AddMode, AddRequest, behind
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import Tracked, changed_files


def named_requests(
    session: WorkspaceSession,
    sources: Iterable[Path],
    format_name: str | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> list[AddRequest]:
    """Requests for paths of which no more is told: their content says what they are.

    Each is called as the file or folder is, without the suffix.

    Raises:
        NotFoundError: there is no such path.
        InvalidInputError: its content is unknown, or its name cannot be an entry's.
    """
    root, written = session.here.root, session.here.tracked()
    by_place = {(root / path).resolve(): tracked for path, tracked in written.items()}
    requests = []
    for source in sources:
        tracked = by_place.get(source.resolve())
        requests.append(
            _named_request(source, format_name, options)
            if tracked is None
            else _tracked_request(source, tracked)
        )
    return requests


def _tracked_request(source: Path, tracked: Tracked) -> AddRequest:
    """The request for a path that `checkout` wrote: it knows its name, and means sync."""
    space, _, name = tracked.entry.partition("/")
    written = None if space == "files" else tracked.format
    return AddRequest(source, space, name, AddMode.SYNC, written)


def _named_request(
    source: Path, format_name: str | None, options: Mapping[str, object]
) -> AddRequest:
    if not source.exists():
        raise NotFoundError(f"there is no {source} to add")
    place = source.resolve()
    bare = place.name if place.is_dir() else PurePath(place.name.removesuffix(".gz")).stem
    try:
        space = _space_of(place, format_name)
        check_path(f"{space}/{bare}")
    except InvalidInputError as error:
        raise InvalidInputError(
            f"what is {source} to be? Give --dataset NAME, --model NAME or --file NAME. ({error})"
        ) from error
    return AddRequest(source, space, bare, AddMode.NEW, format_name, options)


def _space_of(place: Path, format_name: str | None) -> str:
    """Whether a path holds a model or rows. Raises InvalidInputError: neither."""
    if format_name in READERS.keys() - {known.name for known in FORMATS}:
        return "models"
    if format_name is not None:
        registry.find_format(format_name)
        return "datasets"
    weights = sorted(place.glob("*.safetensors")) if place.is_dir() else [place]
    if any(_holds_model(file) for file in weights[:1]):
        return "models"
    registry.recognise(place)
    return "datasets"


def _holds_model(file: Path) -> bool:
    return file.stat().st_size > 0 and model_format(file) is not None


def add_all(
    session: WorkspaceSession, requests: Sequence[AddRequest], progress: SourceProgress
) -> list[Added]:
    """Stage what lies at several paths: all of it, or nothing.

    Raises what `add` raises.
    """
    by_path: dict[str, AddRequest] = {}
    for request in (each for each in requests if each.mode is AddMode.NEW):
        other = by_path.setdefault(request.path, request)
        if other is not request:
            raise InvalidInputError(
                f"{other.place} and {request.place} would both be {request.path}: add them one by "
                "one under names of their own, or as one with --dataset NAME"
            )
    before, added = session.here.staging(), list[Added]()
    try:
        for kind, together in groupby(requests, _kind):
            if kind == "files":  # they are staged together: there may be thousands
                added += add_files(session, together, behind(added, progress))
            elif kind == "datasets":
                added += add_datasets(session, together, behind(added, progress))
            else:
                for request in together:
                    added += add(session, request, behind(added, progress))
    except BaseException:
        if len(requests) > 1:
            session.here.write_staging(before)
        raise
    return added


def _kind(request: AddRequest) -> str:
    """What may be staged together. A model looks for its base among those that are staged."""
    is_here = request.url is None and request.workers is None
    return request.space if is_here and request.space != "models" else ""


def add_changed(
    session: WorkspaceSession, progress: SourceProgress
) -> tuple[list[Added], list[str]]:
    """Stage what changed of the files that `checkout` wrote: all of it, or nothing.

    Returns:
        What was staged, and the paths that are gone from disk. These stay what they are: whoever
        frees a disk of files does not mean the dataset.
    """
    root, changed, gone = session.here.root, [], []
    for path, tracked in session.here.files().items():
        if not (root / path).exists():
            gone.append(path)
        elif changed_files(root, path, tracked):
            changed.append(_tracked_request(root / path, tracked))
    return add_all(session, changed, progress), gone
