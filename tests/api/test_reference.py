"""The page of the HTTP API is what its routes say."""

from __future__ import annotations

from tensorrepo.api.reference import COMMAND, reference
from tests.support.architecture.sources import ROOT
from tests.support.servers.route_table import whole_app


def test_the_page_is_made_of_the_routes() -> None:
    page = (ROOT / "docs/reference/rest.md").read_text("utf-8")
    assert page == reference(whole_app().openapi()), f"run `{COMMAND}`"


def test_the_page_has_every_operation() -> None:
    openapi = whole_app().openapi()
    page = reference(openapi)
    missing = [
        f"{method.upper()} {path}"
        for path, methods in openapi["paths"].items()
        for method in methods
        if f"### `{method.upper()} {path}`" not in page
    ]
    assert missing == []
