"""The OpenAPI of the service, and requests made of it by a schema fuzzer that may break nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import given, settings
from schemathesis.specs.openapi.checks import positive_data_acceptance

import tensorrepo as tr
from tensorrepo.api.app import create_app
from tensorrepo.api.settings import make_settings
from tests.support.effort import examples
from tests.support.servers.service import RunningService

OPENAPI = create_app(make_settings(data=Path("nowhere"))).openapi()
SCHEMA = schemathesis.openapi.from_dict(OPENAPI)
OWN_FORM = "application/vnd.tensorrepo.message"  # of bytes that a fuzzer cannot make
OPERATIONS = sorted(
    (
        one
        for one in (found.ok() for found in SCHEMA.get_all_operations())
        if OWN_FORM
        not in OPENAPI["paths"][one.path][one.method.lower()]
        .get("requestBody", {})
        .get("content", {})
    ),
    key=lambda one: one.label,
)


@pytest.fixture(scope="module")
def fuzzed(service: RunningService) -> RunningService:
    """A service with a repository that has something in it."""
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "photos"}).raise_for_status()
    repo = tr.open(service.service.directory.find("photos").url, author="Ann <ann@example.org>")
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": [1, 2, 3]})
    return service


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_no_request_that_fits_or_does_not_breaks_the_service(
    operation: Any, fuzzed: RunningService
) -> None:
    @settings(max_examples=examples(4))
    @given(case=operation.as_strategy())
    def check(case: Any) -> None:
        case.call_and_validate(
            base_url=fuzzed.url,
            headers={"Authorization": f"Bearer {fuzzed.token}"},
            # What fits the schema may be refused all the same: a cursor, a query, a taken name.
            excluded_checks=[positive_data_acceptance],
        )

    check()


def test_every_operation_tells_what_it_does() -> None:
    silent = [
        f"{method} {path}"
        for path, methods in OPENAPI["paths"].items()
        for method, operation in methods.items()
        if not operation.get("summary") or not operation.get("description")
    ]
    assert silent == []
