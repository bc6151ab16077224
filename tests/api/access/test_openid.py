"""Sign-in by OpenID Connect, at a provider with real keys, whose tokens lie."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc.jwk import RSAKey

from tests.support.servers.openid import CLIENT, SECRET, Provider, openid_provider
from tests.support.servers.service import RunningService, running_service

HOUR = 3600


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with openid_provider() as running:
        yield running


@pytest.fixture(scope="module")
def linked(
    provider: Provider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningService]:
    """A service whose user ann is the provider's `subject-1`."""
    settings = {
        "oidc_issuer": provider.url,
        "oidc_client_id": CLIENT,
        "outbound_allow": ["127.0.0.1"],
    }
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder, **settings, oidc_client_secret=SECRET) as running:
        running.service.accounts.add_user("ann")
        running.service.sign_in.require_openid().link("ann", "subject-1")
        yield running


@pytest.fixture(autouse=True)
def honest(provider: Provider) -> None:
    provider.subject, provider.claims, provider.header, provider.published = "subject-1", {}, {}, []
    provider.forged = provider.odd = None


@pytest.fixture
def browser(linked: RunningService) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=linked.url, trust_env=False, timeout=60) as client:
        yield client


def begin(browser: httpx.Client, then: str = "/") -> str:
    """Where a browser is sent that wants to sign in."""
    answer = browser.get("/login/openid", params={"next": then})
    assert answer.status_code == 303
    return answer.headers["location"]


def name_of(browser: httpx.Client) -> str | None:
    """Who a browser is signed in as."""
    return browser.get("/api/v1/session").json().get("user")


def test_whom_the_provider_lets_in_is_signed_in(browser: httpx.Client, provider: Provider) -> None:
    answer = browser.get(provider.let_in(begin(browser, "/team/photos")))
    assert answer.status_code == 200
    assert 'url=/team/photos"' in answer.text
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert name_of(browser) == "ann"


def test_the_question_has_state_nonce_and_pkce(browser: httpx.Client) -> None:
    asked = parse_qs(urlsplit(begin(browser)).query)
    assert asked["code_challenge_method"] == ["S256"]
    assert asked["response_type"] == ["code"]
    assert len(asked["state"][0]) >= 43
    assert len(asked["nonce"][0]) >= 32
    assert SECRET not in str(asked)


@pytest.mark.together
@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://example.org"},
        {"aud": "another"},
        {"aud": [CLIENT, "another"]},
        {"aud": None},
        {"azp": "another"},
        {"nonce": "another"},
        {"nonce": None},
        {"exp": int(time.time()) - HOUR},
        {"exp": None},
        {"exp": "never"},
        {"iat": int(time.time()) + HOUR},
        {"iat": None},
        {"sub": None},
        {"sub": ""},
        {"sub": ["subject-1"]},
    ],
    ids="-".join,
)
def test_a_token_that_does_not_hold_signs_nobody_in(
    browser: httpx.Client, provider: Provider, claims: dict[str, object]
) -> None:
    provider.claims = claims
    answer = browser.get(provider.let_in(begin(browser)))
    assert answer.status_code == 401
    assert name_of(browser) is None


@pytest.mark.together
@pytest.mark.parametrize(
    "header",
    [
        "a",  # no base64
        "\u00e9",
        base64.urlsafe_b64encode(b"\xff{").decode(),
        base64.urlsafe_b64encode(b"[" * 20_000 + b"]" * 20_000).decode(),
        base64.urlsafe_b64encode(b"[1]").decode(),
        base64.urlsafe_b64encode(b'{"alg": "RS256", "kid": "1", "crit": 1}').decode(),
    ],
    ids=["base64", "ascii", "utf-8", "depth", "list", "crit"],
)
def test_nor_does_a_token_whose_header_is_none(
    browser: httpx.Client, provider: Provider, header: str
) -> None:
    provider.forged = header
    assert browser.get(provider.let_in(begin(browser))).status_code == 401


def test_a_key_that_is_not_published_signs_nothing(
    browser: httpx.Client, provider: Provider
) -> None:
    provider.header = {"kid": "2"}
    assert browser.get(provider.let_in(begin(browser))).status_code == 401


def test_nor_does_another_key_of_the_same_name(browser: httpx.Client, provider: Provider) -> None:
    own = provider.key
    provider.published, provider.key = [own], RSAKey.generate_key(2048, {"kid": "1"})
    status = browser.get(provider.let_in(begin(browser))).status_code
    provider.key = own
    assert status == 401


@pytest.fixture
def unasked(linked: RunningService) -> None:
    """A service that has not asked for keys yet."""
    linked.service.sign_in.require_openid()._keys = None


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"keys": 5},
        {"keys": [1, {"kty": ["RSA"]}, {"kty": "RSA", "n": "!", "e": "AQAB"}]},
        {"keys": [{"kty": "EC", "crv": "P-1", "x": "AAAA", "y": "AAAA"}]},
    ],
    ids=["none", "number", "no keys", "curve"],
)
def test_a_provider_without_a_key_that_can_be_used_is_told_to_be_at_fault(
    browser: httpx.Client, provider: Provider, odd: dict[str, object]
) -> None:
    provider.odd = odd
    answer = browser.get(provider.let_in(begin(browser)))
    assert answer.status_code == 503
    assert "tells no key that this service can use" in answer.text
    assert name_of(browser) is None


@pytest.mark.usefixtures("unasked")
def test_a_key_of_an_unknown_curve_beside_a_good_one_is_passed_over(
    browser: httpx.Client, provider: Provider
) -> None:
    curve = {"kty": "EC", "crv": "P-1", "x": "AAAA", "y": "AAAA"}
    provider.odd = {"keys": [curve, *provider.keys()["keys"]]}
    assert browser.get(provider.let_in(begin(browser))).status_code == 200
    assert name_of(browser) == "ann"


def test_an_answer_is_good_once(browser: httpx.Client, provider: Provider) -> None:
    back = provider.let_in(begin(browser))
    assert browser.get(back).status_code == 200
    assert browser.get(back).status_code == 401


def test_an_answer_is_good_in_the_browser_that_asked_alone(
    browser: httpx.Client, provider: Provider, linked: RunningService
) -> None:
    back = provider.let_in(begin(browser))
    with httpx.Client(base_url=linked.url, trust_env=False, timeout=60) as other:
        begin(other)
        assert other.get(back).status_code == 401
        assert name_of(other) is None


def test_an_answer_of_another_provider_is_refused(
    browser: httpx.Client, provider: Provider
) -> None:
    back = provider.let_in(begin(browser)).partition("&iss=")[0]
    assert browser.get(f"{back}&iss=https://example.org").status_code == 401


def test_somebody_with_the_name_of_a_user_is_not_that_user(
    browser: httpx.Client, provider: Provider
) -> None:
    provider.subject = "subject-2"
    provider.claims = {"preferred_username": "ann", "email": "ann@example.org"}
    answer = browser.get(provider.let_in(begin(browser)))
    assert answer.status_code == 403
    assert name_of(browser) is None


def test_who_is_disabled_does_not_come_in(
    browser: httpx.Client, provider: Provider, linked: RunningService
) -> None:
    linked.service.accounts.add_user("dan")
    linked.service.sign_in.require_openid().link("dan", "subject-3")
    linked.service.people.change_user("dan", is_disabled=True)
    provider.subject = "subject-3"
    assert browser.get(provider.let_in(begin(browser))).status_code == 403


@pytest.mark.parametrize(
    "to", ["https://example.org", "//example.org", "/\\example.org", "/\t/example.org", "x"]
)
def test_signing_in_leads_to_no_other_site(
    browser: httpx.Client, provider: Provider, to: str
) -> None:
    answer = browser.get(provider.let_in(begin(browser, to)))
    assert 'url=/"' in answer.text


def test_accounts_are_made_where_that_is_set(provider: Provider, tmp_path: Path) -> None:
    provider.subject = "subject-9"
    provider.claims = {"preferred_username": "Admin", "email": "x@example.org"}
    settings = {
        "oidc_issuer": provider.url,
        "oidc_client_id": CLIENT,
        "oidc_create_users": True,
        "outbound_allow": ["127.0.0.1"],
    }
    with (
        running_service(tmp_path, **settings, oidc_client_secret=SECRET) as running,
        httpx.Client(base_url=running.url, trust_env=False, timeout=60) as client,
    ):
        client.get(provider.let_in(begin(client)))
        user = running.service.people.user(str(name_of(client)))
    assert user.name.startswith("admin-")  # the name was taken, and it is somebody else
    assert (user.is_operator, user.email) == (False, "")  # the address is not verified
