"""Artifacts through the service, as MLflow's clients send and fetch them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Final

import msgspec
from fastapi import Depends, Request, Response
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.content import artifacts
from tensorrepo.api.content.artifacts import ArtifactPlace
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.limits.bodies import allow_upload
from tensorrepo.api.mlflow.answers import files_json
from tensorrepo.api.mlflow.messages import answer, query_of
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.downloads import DownloadResponse
from tensorrepo.api.transfer.quotas import require_room
from tensorrepo.repo.errors import UnsupportedError

router: Final = deferred_router(
    prefix="/{repository:repository}/api/2.0/mlflow-artifacts", include_in_schema=False
)
MOST_UPLOAD_BYTES: Final = 64 << 30
# The beginning that tells clients to send the file in one piece instead.
_IN_ONE_PIECE: Final = "Multipart upload is not supported for the current artifact repository"


class _Listing(msgspec.Struct):
    path: str = ""


@router.get("/artifacts")
def list_artifacts(
    access: AccessOf, asked: Annotated[_Listing, Depends(query_of(_Listing))]
) -> Response:
    if not asked.path.strip("/"):
        return answer({"files": []})
    found = artifacts.list_artifacts(access, ArtifactPlace.parse(asked.path))
    return answer({"files": files_json(found)})


@router.get("/artifacts/{path:path}")
def get_artifact(request: Request, access: AccessOf, service: ServiceOf, path: str) -> Response:
    found = artifacts.open_artifact(access, service.memory, ArtifactPlace.parse(path))
    return DownloadResponse(request, found)


@router.put("/artifacts/{path:path}")
async def put_artifact(
    request: Request, access: AccessOf, service: ServiceOf, path: str
) -> Response:
    place = ArtifactPlace.parse(path)
    await run_in_threadpool(artifacts.require_artifact_writer, access, place)
    allow_upload(request, MOST_UPLOAD_BYTES)
    with _spooled(service.scratch, place) as spool:
        with spool.open("wb") as file:
            async for piece in request.stream():
                await run_in_threadpool(file.write, piece)
        size, quota = spool.stat().st_size, service.settings.repository_bytes
        await run_in_threadpool(require_room, access, size, quota)
        await run_in_threadpool(artifacts.put_artifact, access, place, spool)
    return answer({})


@router.delete("/artifacts/{path:path}")
def delete_artifact(access: AccessOf, path: str) -> Response:
    artifacts.remove_artifacts(access, ArtifactPlace.parse(path))
    return answer({})


@router.post("/mpu/create/{path:path}")
def begin_parts(access: AccessOf, path: str) -> Response:
    """Clients that are told so send the file as it is: in one piece, streamed."""
    artifacts.require_artifact_writer(access, ArtifactPlace.parse(path))
    raise UnsupportedError(_IN_ONE_PIECE)


@contextmanager
def _spooled(folder: Path, place: ArtifactPlace) -> Iterator[Path]:
    """A file that is called as what is stored; it is gone afterwards."""
    with TemporaryDirectory(dir=folder, prefix="artifact-") as own:
        yield Path(own) / (place.path.rpartition("/")[2] or "file")
