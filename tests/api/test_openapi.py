"""The OpenAPI of the service, and requests made of it by a schema fuzzer that may break nothing.

Half of them name what is there, so that they get beyond the first "not found"; they are made by who
administers everything, by a reader of one branch, and by a token for less.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.repo.backends.service_format import MEDIA_TYPE as OWN_FORM
from tensorrepo.repo.backends.service_format import MessageHead, encode_message
from tests.support.effort import check_each, examples, sampled
from tests.support.servers.route_table import whole_app
from tests.support.servers.service import RunningService, running_service

pytestmark = pytest.mark.long

NAME = "photos"
BASE = f"/api/v1/repositories/{NAME}/-"
KNOWN = {
    "repository": NAME,
    "space": "datasets",
    "revision": "main",
    "run": "exp",
    "user": "ann",
    "group": "vision",
    "alias": "best",
    "which": "best",
    "number": 1,
    "name": "net",
    "tensor": "weight",
    "file": "config.json",
}
PATHS = {"entries": "datasets/numbers", "files": "files/notes.txt", "{space}": "numbers"}
WHOLE = {"DELETE /api/v1/repositories/{repository}", "PATCH /api/v1/repositories/{repository}"}
CALLERS = ("admin", "reader", "narrow")
SAMPLED = 35  # of 134 operations, outside of a soak; `test_route_table` asks of each


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service with a repository that has something of everything."""
    with running_service(tmp_path_factory.mktemp("fuzzed")) as running:
        with running.client() as client:
            _furnish(running, client)
        yield running


@pytest.fixture(scope="module")
def tokens(fuzzed: RunningService) -> dict[str, str]:
    accounts = fuzzed.service.accounts
    reader = fuzzed.user("rita", Grant(NAME, Action.READ, "heads/main"))
    narrow = accounts.add_token("admin", "narrow", scope=(Grant(NAME, Action.WRITE, "heads/x/*"),))
    return {"admin": fuzzed.token, "reader": reader, "narrow": narrow}


def _furnish(running: RunningService, client: httpx.Client) -> None:
    client.post("/api/v1/repositories", json={"name": NAME}).raise_for_status()
    repo = tr.open(running.service.directory.find(NAME).url, author="Ann <ann@example.org>")
    with repo.transaction(message="first") as tx:
        tx.create_dataset("numbers", {"x": [1, 2, 3], "t": ["a", "b", None]})
        tx.save_model("net", {"weight": np.ones((4, 4), np.float32)}, metrics={"loss": 0.5})
        tx.save_file("notes.txt", b"words")
    repo.create_branch("more")
    with repo.transaction("more", message="second") as tx:
        tx.save_file("more.txt", b"more")
    repo.registry.register("net", "main:models/net")
    repo.registry.alias("net", "best", 1)
    calls = {
        f"{BASE}/requests": {"source": "more", "title": "More"},
        f"{BASE}/runs": {"name": "exp"},
        f"{BASE}/runs/exp/points": {"points": [{"metric": "loss", "value": 1.0}]},
        "/api/v1/users": {"name": "ann"},
        "/api/v1/groups": {"name": "vision"},
    }
    for path, body in calls.items():
        client.post(path, json=body).raise_for_status()


def _with_known(operation: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Parameters of a path that name what is there, as far as anything is."""
    path = next((PATHS[part] for part in operation.path.split("/") if part in PATHS), "numbers")
    known = KNOWN | {"path": path}
    return {name: known.get(name, value) for name, value in given.items()}


def _operations() -> list[Any]:
    """Operations of the service, sorted, for schemathesis's fuzzer.

    Asked for by the test that makes requests: what FastAPI derives of the routes, and what
    schemathesis makes of that, takes two seconds, which each worker would spend as it collects.
    """
    import schemathesis  # takes half a second, and nobody else needs it

    openapi = whole_app().openapi()
    found = (one.ok() for one in schemathesis.openapi.from_dict(openapi).get_all_operations())
    return sorted(
        (one for one in found if OWN_FORM not in _forms(openapi, one)), key=lambda one: one.label
    )


def _forms(openapi: dict[str, Any], operation: Any) -> dict[str, Any]:
    """Media types of what an operation is sent; bytes of a form of our own have a test below."""
    told = openapi["paths"][operation.path][operation.method.lower()]
    forms: dict[str, Any] = told.get("requestBody", {}).get("content", {})
    return forms


def test_no_request_that_fits_or_does_not_breaks_the_service(
    fuzzed: RunningService, tokens: dict[str, str]
) -> None:
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    def requests(operation: Any) -> None:
        # Streams of events of what is there do not end, and what all others need stays.
        may_name = operation.label not in WHOLE and not operation.path.endswith("/events")

        @settings(max_examples=examples(2))
        @given(case=operation.as_strategy(), who=st.sampled_from(CALLERS), is_known=st.booleans())
        def check(case: Any, who: str, is_known: bool) -> None:
            if is_known and may_name and case.path_parameters:
                case.path_parameters = _with_known(operation, case.path_parameters)
            case.call_and_validate(
                base_url=fuzzed.url,
                headers={"Authorization": f"Bearer {tokens[who]}"},
                # What fits the schema may be refused all the same: a cursor, a query, a taken name.
                excluded_checks=[positive_data_acceptance],
            )

        check()

    check_each(sampled(_operations(), SAMPLED), requests)


HEADS = st.fixed_dictionaries(
    {},
    optional={
        "objects": st.lists(
            st.tuples(st.just("ab" * 32) | st.text(max_size=8), st.integers(-1, 1 << 40)),
            max_size=3,
        ),
        "entries": st.recursive(
            st.none() | st.integers() | st.text(max_size=8),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=8), inner),
            max_leaves=8,
        )
        | st.lists(
            st.fixed_dictionaries(
                {
                    "txn": st.text(max_size=8),
                    "kind": st.sampled_from(
                        (
                            "commit",
                            "ref-create",
                            "config",
                            "lease-open",
                            "shallow",
                            "supersede",
                            "purge",
                            "noop",
                        )
                    ),
                    "actor": st.text(max_size=8),
                    "time_ns": st.integers(-1, 1 << 65),
                    "note": st.text(max_size=8),
                    "updates": st.lists(
                        st.fixed_dictionaries(
                            {
                                "ref": st.sampled_from(("heads/main", "heads/../x", "meta/a", "")),
                                "old": st.none() | st.just("ab" * 32),
                                "new": st.none() | st.just("cd" * 32) | st.text(max_size=3),
                            }
                        ),
                        max_size=2,
                    ),
                    "data": st.dictionaries(
                        st.sampled_from(("set", "keep", "add", "placements", "id")),
                        st.none() | st.lists(st.text(max_size=3)) | st.just({"features": ["x"]}),
                    ),
                }
            ),
            max_size=3,
        ),
        "generation": st.integers(-1, 1 << 65),
        "merges": st.booleans() | st.none(),
        "receipts": st.dictionaries(st.just("ab" * 32) | st.text(max_size=3), st.text(max_size=3)),
        "more": st.just(1),
    },
)


@pytest.mark.parametrize("path", ["append", "objects"])
def test_no_message_breaks_the_service(
    path: str, fuzzed: RunningService, tokens: dict[str, str]
) -> None:
    @settings(max_examples=examples(10))
    @given(head=HEADS, body=st.binary(max_size=64), who=st.sampled_from(CALLERS), cut=st.booleans())
    def check(head: Any, body: bytes, who: str, cut: bool) -> None:
        data = json.dumps(head).encode()
        sent = len(data).to_bytes(4, "little") + data + body
        with fuzzed.client(tokens[who]) as client:
            answer = client.post(
                f"{BASE}/{path}",
                content=sent[: len(sent) // 2] if cut else sent,
                headers={"Content-Type": OWN_FORM},
            )
        assert answer.status_code < 500, answer.text

    check()


def test_the_service_is_sound_after_all_that(fuzzed: RunningService) -> None:
    with fuzzed.client() as client:
        log = client.get(f"{BASE}/log", params={"after": 0}).json()
        ready = client.get("/health/ready").status_code
    assert ready == 200
    assert log["records"]
    message = encode_message(MessageHead())
    with fuzzed.client() as client:
        stored = client.post(f"{BASE}/objects", content=message, headers={"Content-Type": OWN_FORM})
    assert stored.json()["objects"] == 0


def test_every_operation_tells_what_it_does() -> None:
    silent = [
        f"{method} {path}"
        for path, methods in whole_app().openapi()["paths"].items()
        for method, operation in methods.items()
        if not operation.get("summary") or not operation.get("description")
    ]
    assert silent == []
