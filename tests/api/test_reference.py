"""The page of the HTTP API is what its routes say."""

from __future__ import annotations

from pathlib import Path

from tensorrepo.api.app import create_app
from tensorrepo.api.reference import COMMAND, reference
from tensorrepo.api.settings import make_settings
from tests.support.architecture.sources import ROOT

OPENAPI = create_app(make_settings(data=Path("nowhere"))).openapi()


def test_the_page_is_made_of_the_routes() -> None:
    page = (ROOT / "docs/reference/rest.md").read_text("utf-8")
    assert page == reference(OPENAPI), f"run `{COMMAND}`"


def test_the_page_has_every_operation() -> None:
    page = reference(OPENAPI)
    missing = [
        f"{method.upper()} {path}"
        for path, methods in OPENAPI["paths"].items()
        for method in methods
        if f"### `{method.upper()} {path}`" not in page
    ]
    assert missing == []
