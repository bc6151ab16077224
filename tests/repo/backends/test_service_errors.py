"""Answers of services, read by clients."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.service_errors import moved_url

ASKED = "https://example.org/team/old/repo.json"


@pytest.mark.parametrize(
    "location", ["/team/new/repo.json", "https://example.org/team/new/repo.json"]
)
def test_a_new_name_on_the_same_origin_is_followed(location: str) -> None:
    assert moved_url(ASKED, 308, location) == "https://example.org/team/new/repo.json"


@pytest.mark.parametrize(
    ("status", "location"),
    [
        (200, "/team/new/repo.json"),
        (302, "/team/new/repo.json"),
        (307, "/team/new/repo.json"),
        (308, None),
        (308, "https://example.com/team/new/repo.json"),
        (308, "http://example.org/team/new/repo.json"),
        (308, "https://example.org:8443/team/new/repo.json"),
        (308, "//example.com/repo.json"),
        (308, "https://example.org@example.com/repo.json"),
    ],
)
def test_a_token_goes_to_no_other_origin(status: int, location: str | None) -> None:
    assert moved_url(ASKED, status, location) is None
