"""Every route, method and spelling: closed to who is unknown, and to tokens for other things.

A new route is closed without doing anything. One that shall be open, or be for everybody who is
known, is named here, and thought about.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from itertools import product
from typing import Any

import httpx
import pytest

from tensorrepo.api.access.grants import Action, Grant
from tests.support.servers.route_table import (
    METHODS,
    NAMESPACE,
    TableRow,
    fitting_body,
    fitting_query,
    route_table,
    spellings,
    whole_app,
)
from tests.support.servers.service import RunningService

pytestmark = pytest.mark.long

APP = whole_app()
TABLE = route_table(APP)
PATHS = sorted({row.path: row for row in TABLE}.items())

# Routes that answer whoever asks.
OPEN = {
    "GET /health",
    "GET /health/ready",
    "GET /api/v1",
    "POST /api/v1/session",
    "GET /login",
    "POST /login",
    "GET /login/code",
    "POST /login/code",
    "GET /login/openid",
    "GET /login/openid/callback",
    "POST /logout",
    "GET /metrics",  # of this machine alone, see api/routes/metrics
    "GET /static/{name}",
    "POST /api/validate-yaml",  # clients of Hugging Face ask it without their token
}
OPEN_PATHS = {each.split()[1] for each in OPEN}
# Routes that answer everybody who is known, about themselves or about what they may see.
FOR_ALL_KNOWN = {
    "GET /api/v1/me",
    "GET /api/v1/session",
    "DELETE /api/v1/session",
    "GET /api/v1/openapi.json",
    "HEAD /api/v1/openapi.json",
    "GET /api/v1/repositories",
    "GET /api/v1/removed-repositories",
    "GET /api/whoami-v2",
    "GET /api/{space:entryspace}",  # repositories that the caller may see
    "GET /v2/",
    "HEAD /v2/",
}
# Clients of Hugging Face and of OCI registries are told that what they may not see is not there.
HUB = "/api/{space:entryspace}/"
OCI = "/v2/"
# What comes to an address that carries its own proof, without a token.
BY_TICKET = frozenset(
    f"{method} {folder}/{{repository:namespace}}/{{name:namespace}}.git/lfs"
    for method in ("PUT", "POST")
    for folder in ("", "/datasets")
) | {
    "POST /cas/{repository:namespace}/{epoch}/v1/xorbs/{space}/{xorb}",
    "POST /cas/{repository:namespace}/{epoch}/v1/shards",
}
BODIES = {
    "POST /api/repos/create": {"name": "a", "organization": NAMESPACE},
    "DELETE /api/repos/delete": {"name": "a", "organization": NAMESPACE},
    "POST /api/repos/move": {"fromRepo": f"{NAMESPACE}/a", "toRepo": f"{NAMESPACE}/b"},
}
# Routes that ask something of data by a method that may write elsewhere.
READING = frozenset(
    {
        "POST /api/v1/repositories/{repository:repository}/-/sql",
        "POST /api/v1/repositories/{repository:repository}/-/sql/arrow",
        "POST /api/v1/repositories/{repository:repository}/-/addresses",
        "POST /{repository:repository}/-/new-request",  # the form again, with what is wrong
        "POST /{repository:repository}/api/2.0/mlflow/experiments/search",
        "POST /{repository:repository}/api/2.0/mlflow/runs/search",
        "POST /{repository:repository}/api/2.0/mlflow/logged-models/search",
        "POST /{repository:repository}/api/2.0/mlflow/registered-models/get-latest-versions",
        f"POST {HUB}{{repository:namespace}}/{{name:namespace}}/paths-info/{{rest:path}}",
    }
)
REFUSED = {400, 403, 404}  # for what it is, or because what it names is not there
NOWHERE = {400, 401, 403, 404, 405}
AS_IS = "as it is"
SHARE = 150  # of the spellings of a path, one in so many is tried outside of a soak
Ways = Callable[[str], list[tuple[str, str]]]


@pytest.fixture(scope="module")
def photos(service: RunningService) -> RunningService:
    with service.client() as client:
        for name in ("team/photos", NAMESPACE):
            client.post("/api/v1/repositories", json={"name": name}).raise_for_status()
    return service


@pytest.fixture(scope="module")
def elsewhere(photos: RunningService) -> str:
    """A token whose user may do all with this repository, and that is for another one."""
    scope = (Grant("team/other", Action.ADMIN),)
    grants = (Grant("team/*", Action.ADMIN), Grant(NAMESPACE, Action.ADMIN))
    return photos.user("eve", *grants, scope=scope)


@pytest.fixture(scope="module")
def reading(photos: RunningService) -> str:
    """A token that may read all of this repository, of a user who may do all with it."""
    names = ("team/photos", NAMESPACE)
    scope = tuple(Grant(name, Action.READ) for name in names)
    return photos.user("rea", *(Grant(name, Action.ADMIN) for name in names), scope=scope)


def ask(service: RunningService, token: str, method: str, url: str, body: Any = None) -> int:
    with service.client(token) as client:
        answer = client.request(method, httpx.URL(service.url + url), json=body)
    assert answer.status_code < 500, answer.text
    return answer.status_code


def every_way(path: str) -> list[tuple[str, str]]:
    """Every method with every spelling of a path."""
    return list(product(METHODS, spellings(path)))


def some_ways(path: str) -> list[tuple[str, str]]:
    """Every method, and with the path's own methods some spellings, others for the next path."""
    own = {row.method for row in TABLE if row.url == path}
    at = next(at for at, (_, row) in enumerate(PATHS) if row.url == path)
    names = {AS_IS, *list(spellings(path))[at % SHARE :: SHARE]}
    return [
        (method, name)
        for method, name in every_way(path)
        if name == AS_IS or (name in names and method in own)
    ]


def answers(
    service: RunningService, token: str, path: str, ways: list[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Statuses of methods and spellings of a path, which is sent as it is written."""
    written = spellings(path)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    with closing(HTTPConnection(service.url.removeprefix("http://"))) as connection:

        def status(method: str, url: str) -> int:
            connection.request(method, url, headers=headers)
            with connection.getresponse() as answer:
                answer.read()
            return answer.status

        return {(method, name): status(method, written[name]) for method, name in ways}


def outside(statuses: dict[tuple[str, str], int], allowed: set[int]) -> dict[Any, int]:
    return {where: status for where, status in statuses.items() if status not in allowed}


def ask_fittingly(service: RunningService, token: str, row: TableRow) -> int:
    """The status of a request as the route's schema wants it."""
    query = httpx.QueryParams(fitting_query(APP, row))
    body = BODIES.get(str(row)) or fitting_body(APP, row)
    return ask(service, token, row.method, f"{row.url}?{query}", body)


def _is_for_programs(row: TableRow) -> bool:
    return "/api/" in row.path or row.path.startswith(OCI)


thorough = pytest.mark.parametrize(
    "ways",
    [
        pytest.param(some_ways, id="some"),
        pytest.param(every_way, id="every", marks=pytest.mark.soak),
    ],
)
closed = pytest.mark.parametrize(
    "row", [row for row in TABLE if str(row).replace("HEAD", "GET") not in OPEN], ids=str
)


@pytest.mark.parametrize(
    "path",
    ["/api/v2", "/API/V1/ME", "//api/v1/me", "/api/v1/%6De/", "/api", "/v2/a", "//V2/"],
)
def test_below_the_api_who_is_unknown_learns_not_even_what_there_is(
    photos: RunningService, path: str
) -> None:
    assert ask(photos, "", "GET", path) == 401


@closed
def test_nobody_gets_anywhere_without_a_token(photos: RunningService, row: TableRow) -> None:
    assert ask(photos, "", row.method, row.url) == 401


@pytest.mark.parametrize(
    "row",
    [row for path, row in PATHS if path not in OPEN_PATHS],
    ids=lambda row: row.path,
)
@thorough
def test_no_method_and_no_spelling_opens_a_route(
    photos: RunningService, row: TableRow, ways: Ways
) -> None:
    assert outside(answers(photos, "", row.url, ways(row.url)), NOWHERE) == {}


@pytest.mark.parametrize(
    "row",
    [row for row in TABLE if str(row) not in OPEN | FOR_ALL_KNOWN and _is_for_programs(row)],
    ids=str,
)
def test_a_token_for_another_repository_is_refused(
    photos: RunningService, elsewhere: str, row: TableRow
) -> None:
    is_hidden = row.path.startswith((HUB, OCI)) or str(row) in BODIES
    assert ask_fittingly(photos, elsewhere, row) in ({404, 403} if is_hidden else {403})


@pytest.mark.parametrize(
    "row", [row for path, row in PATHS if row.is_of_repository], ids=lambda row: row.path
)
@thorough
def test_no_method_and_no_spelling_helps_a_token_for_another_repository(
    photos: RunningService, elsewhere: str, row: TableRow, ways: Ways
) -> None:
    assert outside(answers(photos, elsewhere, row.url, ways(row.url)), NOWHERE) == {}


@pytest.mark.parametrize(
    "row",
    [
        row
        for row in TABLE
        if row.is_of_repository
        and row.method not in {"GET", "HEAD", "OPTIONS"}
        and str(row) not in READING
    ],
    ids=str,
)
def test_a_token_that_reads_changes_nothing(
    photos: RunningService, reading: str, row: TableRow
) -> None:
    view = photos.service.directory.open("team/photos").view
    refused = {401} if str(row) in BY_TICKET else REFUSED
    assert ask_fittingly(photos, reading, row) in refused
    assert photos.service.directory.open("team/photos").view.generation == view.generation


def test_what_is_named_here_is_there() -> None:
    known = {str(row) for row in TABLE}
    assert (OPEN | FOR_ALL_KNOWN | READING | BY_TICKET | BODIES.keys()) - known == set()
