"""Routers of all pages, in the order in which they are asked."""

from __future__ import annotations

from typing import Final

from tensorrepo.api.pages import (
    commits,
    compare,
    datasets,
    files,
    home,
    hub_links,
    lineage,
    merge_requests,
    models,
    queries,
    registry,
    repository,
    runs,
    settings,
    static_files,
    storage,
)

# Those of the service before those of repositories: `login` is no repository.
PAGES: Final = (
    static_files.router,
    home.router,
    hub_links.router,
    settings.router,
    commits.router,
    compare.router,
    models.router,
    datasets.router,
    files.router,
    registry.router,
    runs.router,
    storage.router,
    lineage.router,
    queries.router,
    merge_requests.router,
    repository.router,
)
