"""Metrics for Prometheus."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from fastapi import Request
from fastapi.responses import Response

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.observing.metrics import MEDIA_TYPE, Metrics
from tensorrepo.api.requests import CallerOf, ServiceOf

router: Final = deferred_router(tags=["service"])


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "In Prometheus' text form."}},
)
async def metrics(request: Request, service: ServiceOf, caller: CallerOf) -> Response:
    """For operators; and for this machine, where no proxy stands in front."""
    if service.settings.behind_proxy or not _is_loopback(request):
        caller.require_operator()
    counted: Metrics = request.app.state.metrics
    return Response(counted.text(), media_type=MEDIA_TYPE)


def _is_loopback(request: Request) -> bool:
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False
