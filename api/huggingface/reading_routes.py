"""What Hugging Face's clients read: files, trees, descriptions, refs, commits, lists.

Source:
    docs/design/130-a-foreign-repository-is-an-entry.md.
"""

from __future__ import annotations

from concurrent.futures import wait
from dataclasses import replace
from http import HTTPStatus
from typing import Annotated, Any, Final
from urllib.parse import quote, unquote, urlencode

from fastapi import Form, Query, Request, Response
from starlette.responses import JSONResponse

from tensorrepo.api.access.grants import Action
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.foreign_names import EntrySpace, short_commit
from tensorrepo.api.huggingface import descriptions
from tensorrepo.api.huggingface.hub_files import HubCommit, HubFile
from tensorrepo.api.huggingface.repositories import MAIN, HubOf, list_repositories
from tensorrepo.api.huggingface.safetensors_headers import read_headers
from tensorrepo.api.huggingface.urls import base_url
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.routes.downloads import DownloadResponse
from tensorrepo.api.routes.pagination import decode_cursor, encode_cursor
from tensorrepo.formats.files.models import MADE
from tensorrepo.repo.errors import InvalidInputError

router: Final = deferred_router(include_in_schema=False)
REPOSITORY: Final = "/api/{space:entryspace}/{repository:namespace}/{name:namespace}"
_TREE_PAGE: Final = 1000
_LIST_PAGE: Final = 500
# Clients give a HEAD up after 10 s, and follow 20 redirects to the same host.
HASH_SECONDS: Final = 7.0
_Cursor = Annotated[str | None, Query(max_length=4096)]
# What lists of repositories may be asked; `full` and the like ask for more of each, which is
# told anyway.
_LIST_WORDS: Final = frozenset(
    {"search", "author", "sort", "direction", "limit", "full", "cardData", "config", "cursor"}
    | {"expand"}
)
_SORTS: Final = frozenset({"lastModified", "createdAt", "downloads", "likes", "trendingScore"})


@router.get("/api/whoami-v2")
def whoami(caller: CallerOf) -> dict[str, Any]:
    """Who asks."""
    caller.require_known()
    level = max((grant.action for grant in caller.grants), default=Action.READ)
    role = "write" if level > Action.READ else "read"
    token = {"displayName": caller.token_id, "role": role}
    return {
        "type": "user",
        "id": caller.name,
        "name": caller.name,
        "fullname": caller.name,
        "email": caller.email,
        "orgs": [],
        "isPro": False,
        "auth": {"type": "access_token", "accessToken": token},
    }


@router.get("/api/{space:entryspace}")
def list_all(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    space: EntrySpace,
    search: Annotated[str, Query(max_length=200)] = "",
    author: Annotated[str | None, Query(max_length=200)] = None,
    limit: Annotated[int, Query(ge=1)] = _LIST_PAGE,
    sort: Annotated[str | None, Query(max_length=40)] = None,
    cursor: _Cursor = None,
) -> Response:
    """Repositories by name."""
    _refuse_unknown(request, sort)
    after = decode_cursor(cursor) or ""
    found = list_repositories(
        service, caller, space, search=search, author=author, after=after,
        limit=min(limit, _LIST_PAGE),
    )  # fmt: skip
    return _page(request, [descriptions.brief(one) for one in found.found], found.after)


@router.get(REPOSITORY)
def get_repository(hub: HubOf, blobs: bool = False) -> dict[str, Any]:
    """A repository at main."""
    return descriptions.describe(hub.at(MAIN), blobs=blobs)


@router.get(REPOSITORY + "/revision/{rest:path}")
def get_revision(request: Request, hub: HubOf, blobs: bool = False) -> dict[str, Any]:
    """A repository at a revision."""
    revision = "/".join(part for part in split_path(request, "revision") if part)
    return descriptions.describe(hub.at(revision), blobs=blobs)


@router.get(REPOSITORY + "/auth-check")
def check_access(hub: HubOf) -> dict[str, Any]:
    """Whether the caller may read it."""
    hub.require_there()
    return {}


@router.get(REPOSITORY + "/tree/{rest:path}")
def get_tree(
    request: Request,
    hub: HubOf,
    recursive: bool = False,
    expand: bool = False,
    limit: Annotated[int, Query(ge=1)] = _TREE_PAGE,
    cursor: _Cursor = None,
) -> Response:
    """Files and folders."""
    revision, folder = split_path(request, "tree")
    commit = hub.at(revision)
    found, after = descriptions.list_tree(
        commit,
        folder.strip("/"),
        recursive=recursive,
        after=decode_cursor(cursor),
        limit=min(limit, _TREE_PAGE),
    )
    last = descriptions.last_change(commit) if expand else None
    return _page(request, [_listed(one, commit.content.commit, last) for one in found], after)


@router.post(REPOSITORY + "/paths-info/{rest:path}")
def get_paths(
    request: Request,
    hub: HubOf,
    paths: Annotated[list[str], Form(max_length=10_000)] = [],  # noqa: B006  pydantic copies it
    expand: Annotated[bool, Form()] = False,
) -> list[dict[str, Any]]:
    """Those of some paths that are there."""
    note(request, None)
    commit = hub.at("/".join(part for part in split_path(request, "paths-info") if part))
    last = descriptions.last_change(commit) if expand else None
    found = descriptions.find_paths(commit, paths)
    return [_listed(one, commit.content.commit, last) for one in found]


@router.get(REPOSITORY + "/refs")
def get_refs(hub: HubOf, include_prs: bool = False) -> dict[str, Any]:
    """Branches and tags."""
    return descriptions.list_refs(hub, proposals=include_prs)


@router.get(REPOSITORY + "/commits/{rest:path}")
def get_commits(
    request: Request,
    hub: HubOf,
    limit: Annotated[int, Query(ge=1)] = 100,
    cursor: _Cursor = None,
) -> Response:
    """Commits that changed the repository, the newest first."""
    commit = hub.at("/".join(part for part in split_path(request, "commits") if part))
    found, after = descriptions.list_commits(commit, decode_cursor(cursor), min(limit, 1000))
    return _page(request, found, after)


@router.get(REPOSITORY + "/safetensors-metadata/{file:path}")
def get_headers(hub: HubOf, file: str) -> dict[str, Any]:
    """An index of shards, and the header of each."""
    return read_headers(hub.at(MAIN), file)


@router.api_route(
    "/{repository:namespace}/{name:namespace}/resolve/{rest:path}", methods=["GET", "HEAD"]
)
@router.api_route(
    "/datasets/{repository:namespace}/{name:namespace}/resolve/{rest:path}",
    methods=["GET", "HEAD"],
)
def get_file(request: Request, hub: HubOf) -> Response:
    """A file, or one range of it; its ETag is its SHA-256."""
    revision, path = split_path(request, "resolve")
    commit = hub.at(revision)
    file = commit.find(path)
    if request.method == "HEAD" and path == MADE and not _hash_is_known(commit):
        again = {"Location": _raw_path(request)}
        return Response(status_code=HTTPStatus.TEMPORARY_REDIRECT, headers=again)
    sha = short_commit(commit.content.commit)
    headers = (("X-Repo-Commit", sha), ("X-Linked-Size", str(file.size_bytes)))
    linked = (*headers, ("X-Linked-Etag", file.etag))
    return DownloadResponse(request, replace(file, headers=linked))


def split_path(request: Request, word: str) -> tuple[str, str]:
    """The revision and the path that follow `word` in a URL.

    A revision may have slashes, which clients escape: so it is looked for before that is undone.
    """
    rest: str = request.path_params["rest"]
    parts = _raw_path(request).split(f"/{word}/")
    tails = (f"/{word}/".join(parts[at:]) for at in range(1, len(parts)))
    tail = next((one for one in tails if unquote(one) == rest), quote(rest))
    revision, _, path = tail.partition("/")
    return unquote(revision), unquote(path)


def _raw_path(request: Request) -> str:
    """The path as it was sent."""
    raw: bytes = request.scope.get("raw_path") or quote(request.url.path).encode()
    return raw.decode("latin-1").partition("?")[0]


def _hash_is_known(commit: HubCommit) -> bool:
    """Whether the hash of the file that is made of tensors is known, after some waiting."""
    if commit.made is None:
        return True
    done, _ = wait([commit.made.hashing()], HASH_SECONDS)
    return bool(done)


def _listed(one: HubFile | str, commit: Any, last: dict[str, Any] | None) -> dict[str, Any]:
    if isinstance(one, str):
        told = descriptions.folder_json(one, commit)
        return told if last is None else told | {"lastCommit": last}
    return descriptions.file_json(one, last)


def _page(request: Request, items: list[Any], after: str | None) -> Response:
    """A page of a list, and in its headers where the next one is."""
    headers = {}
    if after is not None:
        query = [each for each in request.query_params.multi_items() if each[0] != "cursor"]
        path = request.url.path.removeprefix(request.scope.get("root_path", ""))
        following = urlencode([*query, ("cursor", encode_cursor(after))])
        headers["Link"] = f'<{base_url(request)}{quote(path)}?{following}>; rel="next"'
    return JSONResponse(items, headers=headers)


def _refuse_unknown(request: Request, sort: str | None) -> None:
    """Raises InvalidInputError for what would be passed over silently."""
    unknown = sorted(set(request.query_params) - _LIST_WORDS)
    if unknown:
        raise InvalidInputError(
            f"this service has no filter {unknown[0]!r:.60}: it lists by search and author"
        )
    if sort is not None and sort not in _SORTS:
        raise InvalidInputError(f"nothing is sorted by {sort!r:.60}; lists are by name")
