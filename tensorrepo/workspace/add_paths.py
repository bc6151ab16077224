"""Paths of an `add`: what each of them is, what it is called, and all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePath
from types import MappingProxyType

from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.checkpoints.recognition import model_format
from tensorrepo.formats.exchange.checkpoints.snapshot import READERS
from tensorrepo.formats.exchange.formats import FORMATS
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_path
from tensorrepo.verbs.exchange import SourceProgress
from tensorrepo.workspace.add import add
from tensorrepo.workspace.add_request import Added, AddMode, AddRequest
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import changed_files


def tracked_request(session: WorkspaceSession, source: Path) -> AddRequest | None:
    """The request for a path that `checkout` wrote: it knows its name, and means sync."""
    root = session.here.root
    place = source.resolve()
    for path, tracked in session.here.tracked().items():
        if (root / path).resolve() == place:
            space, _, name = tracked.entry.partition("/")
            written = None if space == "files" else tracked.format
            return AddRequest(source, space, name, AddMode.SYNC, written)
    return None


def named_request(
    session: WorkspaceSession,
    source: Path,
    format_name: str | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> AddRequest:
    """The request for a path of which no more is told: its content says what it is.

    It is called as the file or folder is, without the suffix.

    Raises:
        NotFoundError: there is no such path.
        InvalidInputError: its content is unknown, or its name cannot be an entry's.
    """
    tracked = tracked_request(session, source)
    if tracked is not None:
        return tracked
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
        for request in requests:
            done = sum(each.bytes for each in added)
            added += add(session, request, partial(_advance, progress, done))
    except BaseException:
        if len(requests) > 1:
            session.here.write_staging(before)
        raise
    return added


def _advance(progress: SourceProgress, before: int, done: int, total: int | None = None, /) -> None:
    progress(before + done, None if total is None else before + total)


def add_changed(
    session: WorkspaceSession, progress: SourceProgress
) -> tuple[list[Added], list[str]]:
    """Stage what changed of the files that `checkout` wrote.

    Returns:
        What was staged, and the paths that are gone from disk. These stay what they are: whoever
        frees a disk of files does not mean the dataset.
    """
    root, added, gone = session.here.root, [], []
    for path, tracked in session.here.files().items():
        if not (root / path).exists():
            gone.append(path)
        elif changed_files(root, path, tracked):
            request = tracked_request(session, root / path)
            added += add(session, request, progress) if request is not None else []
    return added, gone
