"""Routes that are built late: what a router needs is there before, and all of it when asked for."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.testclient import TestClient

from tensorrepo.api.deferred_routes import DeferredRoute, build_routes, deferred_router


def _app() -> FastAPI:
    router = deferred_router(prefix="/things", tags=["things"])

    @router.get("/{number}", status_code=202)
    def thing(number: int) -> dict[str, int]:
        return {"number": number}

    @router.post("")
    def make() -> None:
        """Nobody asks for it."""

    app = FastAPI()
    app.router.routes.extend(router.routes)
    return app


def _built(app: FastAPI) -> list[bool]:
    return [one._left is None for one in app.routes if isinstance(one, DeferredRoute)]


def test_a_route_is_built_when_it_is_asked_for_and_no_other() -> None:
    app = _app()
    before = _built(app)
    with TestClient(app) as client:
        answers = [client.get(path) for path in ("/things/7", "/things/x", "/nowhere")]
        refused = client.delete("/things")
    assert (before, _built(app)) == ([False, False], [True, False])
    assert [one.status_code for one in answers] == [202, 422, 404]
    assert (answers[0].json(), refused.status_code) == ({"number": 7}, 405)


def test_the_description_has_all_of_them_and_none_is_left_to_build() -> None:
    app = _app()
    described = app.openapi()["paths"]
    assert set(described) == {"/things/{number}", "/things"}
    assert described["/things"]["post"]["tags"] == ["things"]
    assert _built(app) == [True, True]


def test_what_nobody_asked_for_is_built_beside() -> None:
    app = _app()
    build_routes(app.routes)
    assert _built(app) == [True, True]
