"""What Hugging Face's clients write: repositories, commits, branches, tags.

Source:
    docs/design/131-uploads-of-files-become-tensors.md.
"""

from __future__ import annotations

import base64
import binascii
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import msgspec
from fastapi import Query, Request
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.callers import NOBODY
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.foreign_names import short_commit
from tensorrepo.api.huggingface import administration, commits
from tensorrepo.api.huggingface.card_metadata import MOST_CHARACTERS, parse_metadata
from tensorrepo.api.huggingface.commit_request import MAX_BODY_BYTES, read_request
from tensorrepo.api.huggingface.errors import repository_exists
from tensorrepo.api.huggingface.hub_files import HubCommit, git_blob_id
from tensorrepo.api.huggingface.reading_routes import REPOSITORY
from tensorrepo.api.huggingface.repositories import HubOf
from tensorrepo.api.huggingface.urls import base_url
from tensorrepo.api.limits.bodies import allow_upload
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.transfer.uploads import require_writer
from tensorrepo.formats.exchange.base import Ignore, parse_ignore
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, TooLargeError
from tensorrepo.repo.typed_decoding import from_json

router: Final = deferred_router(include_in_schema=False)
# Small enough to stand in a commit, and nothing that is parsed: the rest is uploaded before it.
REGULAR_BYTES: Final = 1 << 20
_LARGE_NAMES: Final = (
    "*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth", "*.ckpt", "*.onnx", "*.npz", "*.npy",
    "*.h5", "*.parquet", "*.arrow", "*.msgpack", "*.tar", "*.gz", "*.zip", "*.png", "*.jpg",
)  # fmt: skip
_CARD_BYTES: Final = 2 << 20  # of who is unknown
_MOST_OF_UNKNOWN: Final = 64 << 10  # characters of metadata, which take a quarter of a second


class NewHub(BaseModel):
    """What makes a repository. Other members that clients send say nothing that counts here."""

    name: str = Field(max_length=200)
    organization: str | None = Field(default=None, max_length=200)
    type: str | None = None
    private: bool | None = None
    visibility: str | None = None


class HubSettings(BaseModel):
    """What a client sets of a repository; null leaves it as it is."""

    private: bool | None = None
    visibility: str | None = Field(default=None, max_length=40)
    gated: str | bool | None = None


class GoneHub(BaseModel):
    """What deletes one."""

    name: str = Field(max_length=200)
    organization: str | None = Field(default=None, max_length=200)
    type: str | None = None


class MovedHub(BaseModel):
    """What gives one another name."""

    source: str = Field(alias="fromRepo", max_length=400)
    target: str = Field(alias="toRepo", max_length=400)
    type: str | None = None


class _CheckedCard(msgspec.Struct):
    """A card to be checked."""

    content: str


class CandidateFile(BaseModel):
    """A file that a client is about to upload; `sample` is its beginning in base64."""

    path: str = Field(max_length=4096)
    sample: str = Field(default="", max_length=4096)
    size: int = Field(ge=0)


class UploadCandidates(BaseModel):
    """Files that a client is about to upload, and what its ignore file says."""

    files: list[CandidateFile] = Field(max_length=1000)
    ignore: str | None = Field(default=None, alias="gitIgnore", max_length=1 << 20)


class NewBranch(BaseModel):
    """Where a branch begins; else at main."""

    start: str | None = Field(default=None, alias="startingPoint", max_length=1024)


class NewTag(BaseModel):
    """What a tag is called."""

    tag: str = Field(max_length=1024)
    message: str | None = Field(default=None, max_length=65536)


class Squash(BaseModel):
    """What the one commit says."""

    message: str | None = Field(default=None, max_length=65536)


@router.post("/api/repos/create")
def create(request: Request, service: ServiceOf, caller: CallerOf, new: NewHub) -> dict[str, Any]:
    """A repository; that of ours which is called like its namespace is made where it is missing."""
    name = administration.wanted_name(caller, new.name, new.organization, new.type)
    public = new.private is False or new.visibility == "public"
    made = administration.create(service, caller, name, public=public)
    folder = "datasets/" if name.space == "datasets" else ""
    url = f"{base_url(request)}/{folder}{name.id}"
    if not made:
        raise repository_exists(f"you already created {name.id}", url)
    return {"url": url, "name": name.id, "id": name.id}


@router.delete("/api/repos/delete", status_code=204)
def delete(service: ServiceOf, caller: CallerOf, gone: GoneHub) -> None:
    """Remove a repository from every branch."""
    name = administration.wanted_name(caller, gone.name, gone.organization, gone.type)
    administration.delete(service, caller, name)


@router.post("/api/repos/move", status_code=204)
def move(service: ServiceOf, caller: CallerOf, moved: MovedHub) -> None:
    """Give a repository another name within its namespace."""
    names = [
        administration.wanted_name(caller, one.partition("/")[2], one.partition("/")[0], moved.type)
        for one in (moved.source, moved.target)
    ]
    administration.move(service, caller, *names)


@router.post("/api/validate-yaml")
async def validate(request: Request, caller: CallerOf) -> dict[str, Any]:
    """Whether what stands in front of a card is YAML, for whoever asks: clients send no token here.

    Whoever is unknown may have less of it read.
    """
    note(request, None)
    most = MOST_CHARACTERS
    if caller is NOBODY:
        most = _MOST_OF_UNKNOWN
        allow_upload(request, _CARD_BYTES)
    try:
        card = from_json(await request.body(), _CheckedCard)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInputError(f"a card is not as expected: {error}") from error
    return await run_in_threadpool(_judged, card.content, most)


def _judged(card: str, most_characters: int) -> dict[str, Any]:
    try:
        parse_metadata(card, most_characters=most_characters)
    except TooLargeError as error:
        return {"errors": [], "warnings": [{"message": str(error)}]}
    except InvalidInputError as error:
        return {"errors": [{"message": str(error)}], "warnings": []}
    return {"errors": [], "warnings": []}


@router.put(REPOSITORY + "/settings")
def settle(hub: HubOf, wanted: HubSettings) -> dict[str, Any]:
    """What all repositories are may be asked for, and nothing else."""
    public = wanted.private is False or wanted.visibility == "public"
    administration.settle(hub, public=public, gated=bool(wanted.gated))
    return {}


@router.post(REPOSITORY + "/preupload/{rest:path}")
def preupload(request: Request, hub: HubOf, candidates: UploadCandidates) -> dict[str, Any]:
    """How each file is to come: within the commit, or before it; and what is there already."""
    note(request, None)
    require_writer(hub.access)
    revision = str(request.path_params["rest"])
    at = hub.look_at(revision)
    rules = parse_ignore(candidates.ignore or "")
    return {
        "files": [
            {
                "path": one.path,
                "uploadMode": (mode := _mode(one)),
                "shouldIgnore": _left_out(rules, one.path),
                "oid": _known(at, one, mode),
            }
            for one in candidates.files
        ]
    }


@router.post(REPOSITORY + "/commit/{rest:path}")
async def commit(
    request: Request, hub: HubOf, create_pr: Annotated[bool, Query()] = False
) -> dict[str, Any]:
    """Files that come, go and are copied, as one commit."""
    require_writer(hub.access)
    revision = str(request.path_params["rest"])
    allow_upload(request, MAX_BODY_BYTES)
    with TemporaryDirectory(prefix="commit-", dir=hub.service.spool.room()) as room:
        wanted = await read_request(request.stream(), Path(room))
        run = commits.propose_files if create_pr else commits.commit_files
        made = await run_in_threadpool(run, hub, revision, wanted)
    folder = "datasets/" if hub.name.space == "datasets" else ""
    above = f"{base_url(request)}/{folder}{hub.id}"
    sha = short_commit(made.commit)
    told = {"success": True, "commitUrl": f"{above}/commit/{sha}", "commitOid": sha}
    if made.proposal is not None and create_pr:
        told["pullRequestUrl"] = f"{above}/discussions/{made.proposal}"
    return told | {"hookOutput": ""}


@router.post(REPOSITORY + "/branch/{rest:path}")
def create_branch(request: Request, hub: HubOf, new: NewBranch) -> dict[str, Any]:
    """A branch of the repository."""
    administration.create_branch(hub, str(request.path_params["rest"]), new.start)
    return {}


@router.delete(REPOSITORY + "/branch/{rest:path}")
def delete_branch(request: Request, hub: HubOf) -> dict[str, Any]:
    """Remove a branch."""
    administration.delete_branch(hub, str(request.path_params["rest"]))
    return {}


@router.post(REPOSITORY + "/tag/{rest:path}")
def create_tag(request: Request, hub: HubOf, new: NewTag) -> dict[str, Any]:
    """A tag at a revision."""
    revision = str(request.path_params["rest"])
    administration.create_tag(hub, new.tag, revision, new.message or "")
    return {}


@router.delete(REPOSITORY + "/tag/{rest:path}")
def delete_tag(request: Request, hub: HubOf) -> dict[str, Any]:
    """Remove a tag."""
    administration.delete_tag(hub, str(request.path_params["rest"]))
    return {}


@router.post(REPOSITORY + "/super-squash/{rest:path}")
def squash(request: Request, hub: HubOf, said: Squash) -> dict[str, Any]:
    """Let a branch have one commit in place of its history."""
    administration.squash(hub, str(request.path_params["rest"]), said.message)
    return {}


def _mode(one: CandidateFile) -> str:
    """Whether a file is uploaded before the commit."""
    try:
        sample = base64.b64decode(one.sample, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidInputError(f"{one.path!r:.200}: its sample is no base64") from error
    name = one.path.rpartition("/")[2].lower()
    named = any(fnmatchcase(name, pattern) for pattern in _LARGE_NAMES)
    large = named or one.size > REGULAR_BYTES or b"\0" in sample
    return "lfs" if large and one.size else "regular"


def _known(at: HubCommit | None, one: CandidateFile, mode: str) -> str | None:
    """What the file at that path is known by now, so that an equal one need not come again."""
    if at is None:
        return None
    try:
        found = at.find(one.path)
    except NotFoundError:
        return None
    if found.size_bytes != one.size:
        return None
    return found.sha256 if mode == "lfs" else git_blob_id(found.whole())


def _left_out(rules: Ignore, path: str) -> bool:
    """Whether rules leave a file out, or a folder that it is in."""
    parts = path.split("/")
    above = ("/".join(parts[:count]) for count in range(1, len(parts)))
    return rules.leaves_out(path, is_folder=False) or any(
        rules.leaves_out(folder, is_folder=True) for folder in above
    )
