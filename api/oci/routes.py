"""What clients of OCI registries pull: manifests, blobs, and the tags that there are.

Source:
    The OCI distribution specification, sections "Pull" and "Content Discovery".
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

from fastapi import Query, Request, Response
from starlette.responses import JSONResponse

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.huggingface.repositories import HubOf
from tensorrepo.api.oci.artifacts import INDEX_TYPE, MANIFEST_TYPE
from tensorrepo.api.oci.errors import API_VERSION
from tensorrepo.api.oci.repositories import MOST_TAGS, OciRepository, check_digest
from tensorrepo.api.requests import CallerOf
from tensorrepo.api.routes.downloads import DownloadResponse, answer_file

router: Final = deferred_router(include_in_schema=False)
_NAME: Final = "/v2/{repository:repository}/{name:entry}"
_READING: Final = ["GET", "HEAD"]


@router.api_route("/v2/", methods=_READING)
def get_version(caller: CallerOf) -> Response:
    """That this is a registry, and that the caller is known."""
    caller.require_known()
    return JSONResponse({}, headers=API_VERSION)


@router.api_route(_NAME + "/manifests/{reference}", methods=_READING)
def get_manifest(request: Request, hub: HubOf, reference: str) -> Response:
    """The manifest of a tag or a digest."""
    note(request, None)
    artifact = OciRepository(hub).find(reference).artifact
    manifest = memoryview(artifact.manifest)
    answer = answer_file(
        request,
        lambda start, stop: iter((manifest[start:stop],)),
        size_bytes=len(manifest),
        etag=artifact.digest,
        name="manifest.json",
        media_type=MANIFEST_TYPE,
    )
    answer.headers["Docker-Content-Digest"] = artifact.digest
    return answer


@router.api_route(_NAME + "/blobs/{digest}", methods=_READING)
def get_blob(request: Request, hub: HubOf, digest: str) -> Response:
    """A file of the model or its config, or one range of it."""
    return DownloadResponse(request, OciRepository(hub).blob(digest))


@router.get(_NAME + "/tags/list")
def list_tags(
    request: Request,
    hub: HubOf,
    n: Annotated[int, Query(ge=0)] = MOST_TAGS,
    last: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Tags that the model has, in order."""
    repository, limit = OciRepository(hub), min(n, MOST_TAGS)
    tags = repository.tags(last, limit + 1)
    if not tags:
        repository.require_there()
    headers = {}
    if 0 < limit < len(tags):
        following = urlencode({"n": limit, "last": tags[limit - 1]})
        path = f"{request.scope.get('root_path', '')}/v2/{quote(hub.id)}/tags/list"
        headers["Link"] = f'<{path}?{following}>; rel="next"'
    return JSONResponse({"name": hub.id, "tags": tags[:limit]}, headers=headers)


@router.get(_NAME + "/referrers/{digest}")
def list_referrers(request: Request, hub: HubOf, digest: str) -> Response:
    """Manifests that say something of another one: there are none, since none is pushed."""
    note(request, None)
    check_digest(digest)
    OciRepository(hub).require_there()
    body: dict[str, Any] = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": []}
    return JSONResponse(body, media_type=INDEX_TYPE)
