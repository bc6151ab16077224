"""Health, readiness, and what this service is: open to everybody."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter
from pydantic import BaseModel, Field

from tensorrepo.api.requests import ServiceOf

router: Final = APIRouter(tags=["service"])
API_VERSION: Final = 1


class Health(BaseModel):
    """That a process answers."""

    status: str = Field(examples=["ok"])


class About(BaseModel):
    """What a service speaks: for clients that ask before they rely on it."""

    service: str = "tensorrepo"
    api: int = Field(default=API_VERSION, description="Version of this API.")
    features: list[str] = Field(description="What this service has beyond the first version.")


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
async def about() -> About:
    """Version and features, for clients that ask before they rely on one."""
    return About(features=[])
