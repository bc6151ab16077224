"""Signing in and out by browser: cookies, codes that are good once, and CSRF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tensorrepo.api.server import first_code
from tests.support.servers.service import RunningService, running_service

WORD = "correct horse battery"
JSON = {"label": "t"}


@pytest.fixture(scope="module")
def signing(service: RunningService) -> RunningService:
    service.service.accounts.add_user("ann")
    service.service.sign_in.passwords.set("ann", WORD)
    return service


@pytest.fixture
def browser(signing: RunningService) -> Iterator[httpx.Client]:
    """A browser that is signed in as ann."""
    with signing.browser("ann") as client:
        yield client


@pytest.fixture
def stranger(signing: RunningService) -> Iterator[httpx.Client]:
    """A browser that is not."""
    with httpx.Client(base_url=signing.url, trust_env=False, timeout=60) as client:
        yield client


def csrf(browser: httpx.Client) -> str:
    return str(browser.get("/api/v1/session").json()["csrf"])


def test_a_password_signs_in_by_a_strict_cookie(stranger: httpx.Client) -> None:
    answer = stranger.post("/api/v1/session", json={"user": "ann", "password": WORD})
    cookie = answer.headers["set-cookie"].lower()
    assert answer.json()["user"] == "ann"
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert stranger.get("/api/v1/me").json()["kind"] == "session"


@pytest.mark.parametrize("then", ["https://evil.example", "//evil.example", "/\\evil.example", ""])
def test_a_code_leads_to_no_other_site(service: RunningService, then: str) -> None:
    code = first_code(service.service)
    with httpx.Client(base_url=service.url, trust_env=False, timeout=60) as client:
        shown = client.get("/login/code", params={"code": code, "next": then})
        answer = client.post("/login/code", data={"code": code, "next": then})
    assert "evil.example" not in shown.text
    assert answer.headers["location"] == "/"


def test_behind_https_the_cookie_is_secure(tmp_path: Path) -> None:
    with (
        running_service(tmp_path, public_url="https://example.org") as running,
        httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client,
    ):
        running.service.accounts.add_user("ann")
        running.service.sign_in.passwords.set("ann", WORD)
        answer = client.post("/api/v1/session", json={"user": "ann", "password": WORD})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("__Host-")
    assert "Secure" in cookie


def test_the_form_signs_in_and_leads_on(stranger: httpx.Client) -> None:
    fields = {"user": "ann", "password": WORD, "next": "/team/photos"}
    answer = stranger.post("/login", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, "/team/photos")
    assert stranger.get("/api/v1/me").json()["name"] == "ann"


def test_the_form_tells_what_is_wrong_without_the_password(stranger: httpx.Client) -> None:
    answer = stranger.post("/login", data={"user": "<b>ann", "password": "<i>wrong</i>"})
    assert answer.status_code == 401
    assert "is wrong" in answer.text
    assert "wrong</i>" not in answer.text
    assert "script-src" not in answer.headers["content-security-policy"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("to", ["https://example.org", "//example.org", "/\\example.org", "a"])
def test_the_form_leads_to_no_other_site(stranger: httpx.Client, to: str) -> None:
    answer = stranger.post("/login", data={"user": "ann", "password": WORD, "next": to})
    assert answer.headers["location"] == "/"


def test_signing_out_ends_the_session(browser: httpx.Client) -> None:
    cookie = browser.cookies["tensorrepo_session"]
    browser.post("/logout", data={"csrf": csrf(browser)})
    browser.cookies.set("tensorrepo_session", cookie)
    assert browser.get("/api/v1/me").status_code == 401


def test_signing_out_everywhere_ends_others(signing: RunningService, browser: httpx.Client) -> None:
    with signing.browser("ann") as other:
        headers = {"X-CSRF-Token": csrf(browser)}
        answer = browser.delete("/api/v1/session?everywhere=true", headers=headers)
        assert answer.status_code == 204
        assert other.get("/api/v1/me").status_code == 401


def test_a_session_changes_things_with_what_its_pages_know(browser: httpx.Client) -> None:
    headers = {"X-CSRF-Token": csrf(browser)}
    assert browser.post("/api/v1/tokens", json=JSON, headers=headers).status_code == 201


@pytest.mark.together
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-CSRF-Token": ""},
        {"X-CSRF-Token": "0" * 64},
        {"Cookie": "csrf=OWN"},
        {"X-CSRF-Token": "OWN", "Origin": "https://example.org"},
        {"X-CSRF-Token": "OWN", "Origin": "null"},
        {"X-CSRF-Token": "OWN", "Origin": "http://127.0.0.1:1"},
        {"X-CSRF-Token": "OWN", "Sec-Fetch-Site": "cross-site"},
        {"X-CSRF-Token": "OWN", "Sec-Fetch-Site": "same-site"},
        {"X-CSRF-Token": "OWN", "Sec-Fetch-Site": ""},
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"X-HTTP-Method-Override": "GET"},
    ],
    ids=str,
)
def test_a_request_that_another_site_could_make_changes_nothing(
    signing: RunningService, browser: httpx.Client, headers: dict[str, str]
) -> None:
    before = len(signing.service.accounts.tokens("ann"))
    own = csrf(browser)
    sent = {name: value.replace("OWN", own) for name, value in headers.items()}
    answer = browser.post("/api/v1/tokens", json=JSON, headers=sent)
    assert answer.status_code in {401, 403}
    assert len(signing.service.accounts.tokens("ann")) == before


def test_anothers_token_of_a_form_is_worth_nothing(
    signing: RunningService, browser: httpx.Client
) -> None:
    with signing.browser("admin") as other:
        headers = {"X-CSRF-Token": csrf(other)}
    assert browser.post("/api/v1/tokens", json=JSON, headers=headers).status_code == 403


@pytest.mark.together
@pytest.mark.parametrize(
    "headers", [{"Origin": "https://example.org"}, {"Sec-Fetch-Site": "cross-site"}]
)
@pytest.mark.parametrize("path", ["/login", "/api/v1/session", "/login/code"])
def test_no_other_site_signs_a_browser_in(
    stranger: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    fields = {"user": "ann", "password": WORD, "code": "x"}
    sent = {"json": fields} if path.startswith("/api") else {"data": fields}
    answer = stranger.post(path, headers=headers, **sent)  # type: ignore[arg-type]
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_looking_at_a_code_does_not_use_it(signing: RunningService, stranger: httpx.Client) -> None:
    code = str(first_code(signing.service))
    for _ in range(3):
        assert stranger.get("/login/code", params={"code": code}).status_code == 200
    answer = stranger.post("/login/code", data={"code": code})
    assert answer.status_code == 303
    assert stranger.get("/api/v1/me").json()["name"] == "admin"


def test_a_code_is_good_once(signing: RunningService, stranger: httpx.Client) -> None:
    code = str(first_code(signing.service))
    stranger.post("/login/code", data={"code": code})
    again = stranger.post("/login/code", data={"code": code})
    assert again.status_code == 401


def test_a_code_is_good_on_this_machine_alone(
    signing: RunningService, stranger: httpx.Client
) -> None:
    code = str(first_code(signing.service))
    far = {"X-Forwarded-For": "192.0.2.1"}
    assert stranger.post("/login/code", data={"code": code}, headers=far).status_code == 403
    assert stranger.post("/login/code", data={"code": code}).status_code == 303


def test_after_failures_the_wait_is_told(stranger: httpx.Client) -> None:
    login = {"user": "bert", "password": "wrong"}
    # As many as it takes on a slow machine: each wait is twice as long as the one before.
    answers = [stranger.post("/api/v1/session", json=login) for _ in range(14)]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers[:6]} == {401}
    assert int(refused[-1].headers["retry-after"]) >= 1
