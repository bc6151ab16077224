"""The ASGI application of the service, for `tensorrepo serve` and for others to mount."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from anyio import to_thread
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from tensorrepo.api.audit.middleware import Auditing
from tensorrepo.api.authentication import Authentication
from tensorrepo.api.client_versions import ClientVersions
from tensorrepo.api.deferred_routes import build_routes
from tensorrepo.api.errors import ErrorForm, install_handlers
from tensorrepo.api.forwarding import Forwarding
from tensorrepo.api.huggingface import lfs_routes as huggingface_lfs
from tensorrepo.api.huggingface import reading_routes as huggingface_reading
from tensorrepo.api.huggingface import writing_routes as huggingface_writing
from tensorrepo.api.huggingface import xet_routes as huggingface_xet
from tensorrepo.api.huggingface.errors import hub_error
from tensorrepo.api.idempotency import Idempotency
from tensorrepo.api.limits.middleware import Limits
from tensorrepo.api.mlflow import artifacts as mlflow_artifacts
from tensorrepo.api.mlflow import experiments as mlflow_experiments
from tensorrepo.api.mlflow import logged_models as mlflow_logged_models
from tensorrepo.api.mlflow import registry as mlflow_registry
from tensorrepo.api.mlflow import runs as mlflow_runs
from tensorrepo.api.mlflow.errors import mlflow_error
from tensorrepo.api.observing.metrics import make_metrics
from tensorrepo.api.observing.middleware import Observing
from tensorrepo.api.oci import routes as oci
from tensorrepo.api.oci.errors import oci_error
from tensorrepo.api.openapi import describe
from tensorrepo.api.pages.errors import install_page_errors
from tensorrepo.api.pages.rendering import compile_templates
from tensorrepo.api.pages.routers import PAGES
from tensorrepo.api.requests import RequestIds
from tensorrepo.api.routes import (
    accounts,
    audit,
    compare,
    datasets,
    events,
    grants,
    health,
    lineage,
    live_runs,
    login,
    merge_requests,
    metrics,
    models,
    registry,
    repositories,
    runs,
    session,
    sql,
    store,
    tokens,
    transfers,
    trees,
    webhooks,
)
from tensorrepo.api.routes.short_ways import ShortWays
from tensorrepo.api.service import Service, open_service
from tensorrepo.api.settings import Settings, machine_environment

ROUTERS = (
    health.router,
    metrics.router,
    repositories.router,
    repositories.removed_router,
    store.router,
    transfers.router,
    grants.router,
    events.router,
    webhooks.router,
    merge_requests.router,
    models.router,
    registry.router,
    runs.router,
    live_runs.router,
    trees.router,
    datasets.router,
    accounts.router,
    tokens.router,
    session.router,
    audit.router,
    login.router,
    compare.router,
    sql.router,
    lineage.router,
    mlflow_experiments.router,
    mlflow_runs.router,
    mlflow_registry.router,
    mlflow_logged_models.router,
    mlflow_artifacts.router,
    huggingface_reading.router,
    huggingface_writing.router,
    huggingface_lfs.router,
    huggingface_xet.router,
    oci.router,
)
# How clients of elsewhere are told of errors.
ERROR_FORMS: tuple[ErrorForm, ...] = (hub_error, mlflow_error, oci_error)


_FIRST_ANSWER_SECONDS: Final = 0.5  # from the lifespan's start, by when the first one is given


def _prepare(app: FastAPI) -> None:
    """What the first ones to ask would wait for; not before the service answers.

    Until then it would take the interpreter from what the answer waits for.
    """
    time.sleep(_FIRST_ANSWER_SECONDS)
    build_routes(app.routes)
    compile_templates()
    app.state.is_prepared.set()


def create_app(
    settings: Settings | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    service: Service | None = None,
) -> FastAPI:
    """The application.

    Args:
        settings: see `Settings`; else by environment and file.
        environment: where stores look for credentials; else this process's.
        service: one that is open already, whose owner closes it; else the application opens its
            own when it starts.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = chosen.threads
        opened = service or open_service(chosen, environment or machine_environment())
        app.state.service = opened
        opened.live.writer.start()
        opened.anchors.start()
        opened.deliverer.start()
        opened.housekeeping.start()
        threading.Thread(target=_prepare, args=(app,), name="prepare", daemon=True).start()
        try:
            yield
        finally:
            if service is None:
                opened.close()

    chosen = settings or (service.settings if service is not None else Settings())
    app = FastAPI(
        title="tensorrepo",
        summary="A versioned repository for datasets and models.",
        version="1",
        openapi_url="/api/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    install_handlers(app)
    install_page_errors(app)
    app.state.error_forms = ERROR_FORMS
    app.state.is_prepared = threading.Event()
    app.state.metrics = make_metrics(chosen.metrics_folder)
    # From the inside out.
    app.add_middleware(ShortWays)
    app.add_middleware(Idempotency)
    app.add_middleware(ClientVersions, oldest=chosen.oldest_client)
    app.add_middleware(Authentication)
    app.add_middleware(Limits, settings=chosen)
    app.add_middleware(Auditing)
    app.add_middleware(Observing, metrics=app.state.metrics)
    app.add_middleware(RequestIds)
    if chosen.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=chosen.cors_origins,
            allow_methods=["*"],
            allow_headers=["*"],
        )
    app.add_middleware(Forwarding, trusted=chosen.trusted_proxies, prefix=chosen.path_prefix)
    for router in (*ROUTERS, *PAGES):
        app.router.routes.extend(router.routes)  # including would build each route again
    describe(app)
    return app
