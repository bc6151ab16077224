"""Doors of pages: nobody sees one unknown, and each says in its headers what it may do."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import Request
from fastapi.routing import APIRoute

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.pages import static_files
from tensorrepo.api.pages.door import page_caller, page_of, repository_page_of
from tensorrepo.api.pages.routers import PAGES
from tensorrepo.repo.errors import UnauthenticatedError
from tests.support.servers.service import RunningService

AS_A_BROWSER = {"Accept": "text/html"}
# What pages depend on, with the names that each asks for beside the request.
DOORS: dict[Any, tuple[str, ...]] = {
    page_caller: (), page_of: (), repository_page_of: ("team/photos",)
}  # fmt: skip
ROUTES = [
    route
    for router in PAGES
    if router is not static_files.router
    for route in router.routes
    if isinstance(route, APIRoute)
]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.path} {route.methods}")
def test_every_page_asks_who_wants_it(route: APIRoute) -> None:
    called, waiting = set(), list(route.dependant.dependencies)
    while waiting:
        one = waiting.pop()
        called.add(one.call)
        waiting += one.dependencies
    assert called & DOORS.keys()


@pytest.mark.parametrize("words", DOORS.items(), ids=lambda words: words[0].__name__)
def test_a_door_is_closed_to_who_is_unknown(words: tuple[Any, tuple[str, ...]]) -> None:
    door, names = words
    app = SimpleNamespace(state=SimpleNamespace(service=None))
    unknown = Request({"type": "http", "app": app, "headers": []})
    with pytest.raises(UnauthenticatedError):
        asyncio.run(door(unknown, *names))


def test_who_is_unknown_is_led_to_the_login_and_back(service: RunningService) -> None:
    with service.client("") as client:
        answer = client.get("/team/x/-/commits?ref=a", headers=AS_A_BROWSER)
    to = urlsplit(answer.headers["location"])
    assert (answer.status_code, to.path) == (303, "/login")
    assert parse_qs(to.query)["next"] == ["/team/x/-/commits?ref=a"]


def test_others_repositories_answer_as_those_that_are_not_there(service: RunningService) -> None:
    service.service.directory.create("secret")
    token = service.user("mallory", Grant("own/*", Action.ADMIN))
    with service.client(token) as client:
        there = client.get("/secret", headers=AS_A_BROWSER)
        nowhere = client.get("/nowhere", headers=AS_A_BROWSER)
    assert (there.status_code, nowhere.status_code) == (403, 403)
    assert there.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    ("asked", "page"),
    [
        ("/own/", "/own"),
        ("/own/-/commits/?q=a+b", "/own/-/commits?q=a+b"),
        ("//evil.net/", "/evil.net"),
    ],
)
def test_a_slash_at_the_end_leads_to_the_page_without_it(
    service: RunningService, asked: str, page: str
) -> None:
    with service.client() as client:
        base = str(client.base_url).rstrip("/")
        answer = client.get(f"{base}{asked}", headers=AS_A_BROWSER)
        as_program = client.get(f"{base}{asked}")
    assert (answer.status_code, answer.headers["location"]) == (308, page)
    assert as_program.status_code == 404


def test_a_program_gets_a_problem_where_a_browser_gets_a_page(service: RunningService) -> None:
    with service.client() as client:
        page = client.get("/nowhere/-/x/y", headers=AS_A_BROWSER)
        problem = client.get("/nowhere/-/x/y")
    assert page.headers["content-type"].startswith("text/html")
    assert problem.headers["content-type"] == "application/problem+json"


def test_pages_run_nothing_of_others_and_are_not_kept(service: RunningService) -> None:
    with service.client() as client:
        headers = client.get("/", headers=AS_A_BROWSER).headers
    assert "script-src 'self';" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cache-control"] == "no-store"


def test_a_form_of_another_site_changes_nothing(service: RunningService) -> None:
    session = service.service.sessions.begin("admin", "127.0.0.1")
    with service.client("") as client:
        client.cookies.set("tensorrepo_session", session)
        answer = client.post("/settings/new-repository", data={"name": "forged"})
    assert answer.status_code == 403
    assert "forged" not in {one.name for one in service.service.directory.listed()}


def test_static_files_are_kept_for_ever_and_nothing_else_is_there(
    service: RunningService,
) -> None:
    with service.client("") as client:
        kept = client.get("/static/tensorrepo.css", params={"v": "1"})
        other = client.get("/static/..%2Frendering.py")
    assert "immutable" in kept.headers["cache-control"]
    assert other.status_code == 404
