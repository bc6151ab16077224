"""One service with a repository as people have them, one browser, and who looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

import tensorrepo as tr
from tensorrepo.api.access.cookies import _COOKIE
from tests.support.builders.showcase import fill_showcase
from tests.support.servers.browsers import Visitor, chromium
from tests.support.servers.service import RunningService

DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
Visit = Callable[[RunningService], Visitor]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def showcase(service: RunningService) -> RunningService:
    """The repository `team/photos`, an empty one, and one with a long name."""
    long = "a-team-with-a-long-name/a-repository-whose-name-is-too-long-for-a-phone-but-allowed"
    for name in ("team/photos", "empty", long):
        service.service.directory.create(name, description="Patches of photographs")
    fill_showcase(service.service.directory.find("team/photos").url)
    with service.client() as client:
        client.post(
            "/api/v1/repositories/team/photos/-/requests",
            json={
                "source": "relabel",
                "target": "main",
                "title": "Labels corrected",
                "text": "Some were *wrong*.",
            },
        ).raise_for_status()
    return service


def signed_in(
    browser: Browser, service: RunningService, *, user: str = "admin", **options: object
) -> Visitor:
    """A user in a window of their own: the administrator, where nobody is named."""
    context = browser.new_context(reduced_motion="reduce", **options)  # type: ignore[arg-type]
    session = service.service.sessions.begin(user, "127.0.0.1")
    context.add_cookies([{"name": _COOKIE, "value": session, "url": service.url}])
    return Visitor.of(context, service.url)


@pytest.fixture(scope="module")
def desk(browser: Browser, showcase: RunningService) -> Visitor:
    return signed_in(browser, showcase, viewport=DESKTOP, color_scheme="light")


@pytest.fixture(scope="module")
def phone(browser: Browser, showcase: RunningService) -> Visitor:
    return signed_in(browser, showcase, viewport=PHONE, color_scheme="dark")


@pytest.fixture(scope="module")
def photos(showcase: RunningService) -> tr.Repository:
    url = showcase.service.directory.find("team/photos").url
    return tr.open(url, author="Bob <bob@example.org>")
