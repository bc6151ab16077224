"""Health, readiness, and what this service is: open to everybody."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from pydantic import BaseModel, Field

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import ServiceOf
from tensorrepo.formats import views
from tensorrepo.formats.dataset.metadata import manifest
from tensorrepo.formats.model.layout import pack
from tensorrepo.formats.runs import run_record
from tensorrepo.repo.backends.service_format import REVISION
from tensorrepo.repo.changes.repository import SQL_FORMAT
from tensorrepo.repo.history import commits, tree_pages
from tensorrepo.repo.objects import envelope

router: Final = deferred_router(tags=["service"])
API_VERSION: Final = 1
FEATURES: Final = (
    "append", "composed-commits", "events", "idempotency-keys", "live-runs", "merge-requests",
    "mirror-tokens", "sql", "ways", "webhooks",
)  # fmt: skip
FORMATS: Final = MappingProxyType(
    {
        "repository": SQL_FORMAT,
        "object": envelope.VERSION,
        "commit": commits.VERSION,
        "tree": tree_pages.VERSION,
        "dataset": manifest.VERSION,
        "model": pack.VERSION,
        "run": run_record.VERSION,
        "view": views.VERSION,
    }
)


class Health(BaseModel):
    """That a process answers."""

    status: str = Field(examples=["ok"])


class About(BaseModel):
    """What a service speaks: for clients that ask before they rely on it."""

    service: str = "tensorrepo"
    api: int = Field(default=API_VERSION, description="Version of this API.")
    features: list[str] = Field(
        description="What this service has beyond the first version, and by its settings.",
        examples=[["sql", "presigned-downloads"]],
    )
    formats: dict[str, int] = Field(
        description="Newest version of each stored format that it reads.",
        examples=[{"repository": 2, "dataset": 2}],
    )
    oldest_client: int = Field(
        description="Oldest revision of the protocol of repositories that is served."
    )
    newest_client: int = Field(description="Newest revision that this service knows.")


@router.get("/health", summary="Whether the process answers")
async def health() -> Health:
    """Always 200 while the process runs."""
    return Health(status="ok")


@router.get("/health/ready", summary="Whether the service can work")
def ready(service: ServiceOf) -> Health:
    """200 when the database answers, else 503."""
    service.accounts.has_users()
    return Health(status="ok")


@router.get("/api/v1", summary="What this service is")
async def about(service: ServiceOf) -> About:
    """Version and features, for clients that ask before they rely on one."""
    settings = service.settings
    by_settings = {
        "openid": settings.oidc_issuer is not None,
        "presigned-downloads": settings.presigned_bytes is not None,
        "presigned-uploads": settings.presigned_bytes is not None,
    }
    features = [*FEATURES, *(name for name, is_on in by_settings.items() if is_on)]
    return About(
        features=sorted(features),
        formats=dict(FORMATS),
        oldest_client=settings.oldest_client,
        newest_client=REVISION,
    )
