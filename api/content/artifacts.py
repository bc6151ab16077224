"""Artifacts by their places: paths that name files of a run, of a logged model, or of a version.

runs/ID/artifacts/PATH      files of a run
models/ID/artifacts/PATH    files of a logged model
commits/DIGEST/PATH         files of the model of that commit, as a registered version is one
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast
from urllib.parse import unquote, urlsplit

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content import model_bytes, run_files
from tensorrepo.api.content.commit_content import ContentMemory
from tensorrepo.api.content.live_runs import LiveRuns
from tensorrepo.api.content.logged_models import get_logged_model, known_models, store_as_model
from tensorrepo.api.content.run_files import Downloaded, ListedFile
from tensorrepo.formats.runs.run_files import ref_of_files
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.names import check_file_name
from tensorrepo.repo.registry.versions import version_ref

SCHEME: Final = "mlflow-artifacts"
_PLACE: Final = re.compile(
    r"(?:(?P<space>runs|models)/(?P<owner>[^/]+)/artifacts|commits/(?P<commit>[0-9a-f]{64}))"
    r"(?:/(?P<path>.*))?",
    re.DOTALL,
)
_OF_VERSION: Final = re.compile(r"models:/(?P<name>.+)/(?P<number>[1-9][0-9]{0,8})")
_OF_MODEL: Final = re.compile(r"models:/(?P<id>m-[^/]+)/?")
_OF_RUN: Final = re.compile(r"runs:/(?P<id>[^/]+)(?:/(?P<path>.*))?")
_OF_REF: Final = re.compile(r"(?P<ref>[^:]+):(?P<path>models/.+)")


@dataclass(frozen=True, slots=True)
class ArtifactPlace:
    """Where artifacts lie.

    Attributes:
        space: "runs", "models" or "commits".
        id: name of the run, id of the logged model, or digest of the commit.
        path: path of a file or folder there; "" for all of them.
    """

    space: Literal["runs", "models", "commits"]
    id: str
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> ArtifactPlace:
        """Raises InvalidInputError."""
        match = _PLACE.fullmatch(text.strip("/"))
        if match is None:
            raise InvalidInputError(
                f"artifact path {text!r:.200}: expected runs/ID/artifacts/..., "
                "models/ID/artifacts/... or commits/DIGEST/..., as this service gives them"
            )
        path = (match["path"] or "").strip("/")
        if path:
            check_file_name(path)
        if match["commit"]:
            return cls("commits", match["commit"], path)
        return cls(cast("Literal['runs', 'models']", match["space"]), match["owner"], path)

    @property
    def uri(self) -> str:
        """What clients are given for it."""
        within = "" if self.space == "commits" else "/artifacts"
        below = f"/{self.path}" if self.path else ""
        return f"{SCHEME}:/{self.space}/{self.id}{within}{below}"


def list_artifacts(access: RepositoryAccess, place: ArtifactPlace) -> list[ListedFile]:
    """What lies right inside of a folder; nothing where it is a file, or is not there."""
    if place.space == "commits":
        return run_files.list_model_files(run_files.model_of_commit(access, place.id), place.path)
    return run_files.list_run_files(access, place.id, place.path)


def open_artifact(
    access: RepositoryAccess, memory: ContentMemory, place: ArtifactPlace
) -> Downloaded:
    """A file. Raises NotFoundError."""
    if place.space == "commits":
        return model_bytes.open_file(run_files.model_of_commit(access, place.id), place.path)
    return run_files.open_run_file(access, memory, place.id, place.path)


def require_artifact_writer(access: RepositoryAccess, place: ArtifactPlace) -> None:
    """Raises PermissionDenied unless the caller may store files there; before a body is read."""
    access.require(Action.WRITE, ref_of_files(_owner(place)))


def put_artifact(access: RepositoryAccess, place: ArtifactPlace, content: Path) -> None:
    """Store a file, which lies at `content` under its last name; durable when this returns."""
    owner = _owner(place)
    if not place.path:
        raise InvalidInputError(f"{place.uri} names no file")
    if place.space == "models":  # its weights become tensors when all of its files are there
        run_files.put_plain_file(access, owner, place.path, content)
    else:
        known = partial(known_models, access)
        run_files.put_run_file(access, owner, place.path, content, known=known)


def remove_artifacts(access: RepositoryAccess, place: ArtifactPlace) -> None:
    """Remove a file, or a folder. Raises NotFoundError."""
    run_files.remove_run_files(access, _owner(place), place.path)


@dataclass(frozen=True, slots=True)
class VersionSource:
    """A model of the repository that becomes a version: ref of its commit, and its path."""

    ref: str
    path: str


def version_source(
    access: RepositoryAccess, live: LiveRuns, source: str, *, run: str = "", scratch: Path
) -> VersionSource:
    """The model that a URI names, made of the files that lie there if it is none yet.

    Args:
        access: repository of both.
        live: runs.
        source: ``models:/ID``, ``models:/NAME/3``, ``runs:/ID/PATH``, ``mlflow-artifacts:/...`` of
            this repository, or ``REF:models/NAME``.
        run: run that it came from.
        scratch: folder on a disk with room for the files.

    Raises:
        NotFoundError: nothing lies there.
        InvalidInputError: it names nothing of this repository.
    """
    if match := _OF_VERSION.fullmatch(source):
        ref = version_ref(match["name"], int(match["number"]))
        return VersionSource(ref, _path_at(access, ref))
    if match := _OF_MODEL.fullmatch(source):
        place = ArtifactPlace("models", match["id"])
    elif match := _OF_RUN.fullmatch(source):
        place = ArtifactPlace("runs", match["id"], (match["path"] or "").strip("/"))
    elif source.startswith(f"{SCHEME}:"):
        place = ArtifactPlace.parse(unquote(urlsplit(source).path))
    elif match := _OF_REF.fullmatch(source):
        return VersionSource(match["ref"], match["path"])
    else:
        raise InvalidInputError(
            f"source {source!r:.300}: expected what was logged here, as runs:/ID/PATH, models:/ID "
            f"or {SCHEME}:/..., or a model of this repository, as main:models/NAME. The service "
            "reads no files elsewhere: log the model first"
        )
    if place.space == "commits":
        return VersionSource(place.id, _path_at(access, place.id))
    if place.space == "models":
        run = run or get_logged_model(access, place.id).source_run_id
    run = run or (place.id if place.space == "runs" else "")
    path = store_as_model(access, live, place.id, place.path, run=run, scratch=scratch)
    return VersionSource(ref_of_files(place.id), path)


def _path_at(access: RepositoryAccess, ref: str) -> str:
    return run_files.model_of_commit(access, ref).path


def _owner(place: ArtifactPlace) -> str:
    if place.space == "commits":
        raise InvalidInputError("files of a registered version never change: log a new one")
    return place.id
