"""`tensorrepo ui` as a process: one browser of this machine looks at one repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.support.processes.shell import Shell

MESSAGE = "Points for pages"


@pytest.fixture
def shown(empty: Shell) -> Iterator[httpx.Client]:
    """A browser that used the code of the pages of a repository with a commit."""
    empty.run("init")
    (empty.folder / "points.csv").write_text("x,y\n1,2\n3,4\n")
    empty.run("add", "points.csv", "--dataset", "points")
    empty.run("commit", "-m", MESSAGE)
    process = empty.start("ui", "--no-browser", "--json")
    try:
        url = urlsplit(json.loads(process.stdout.readline())["url"])
        base = f"{url.scheme}://{url.netloc}"
        with httpx.Client(
            base_url=base, follow_redirects=True, trust_env=False, timeout=60
        ) as client:
            code = parse_qs(url.query)["code"][0]
            then = parse_qs(url.query)["next"][0]
            landed = client.post("/login/code", data={"code": code, "next": then})
            landed.raise_for_status()
            assert MESSAGE in landed.text, "the first page is the repository's"
            yield client
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_who_has_the_code_may_look_and_nobody_else(shown: httpx.Client) -> None:
    name = shown.get("/api/v1/repositories").json()["items"][0]["name"]
    assert MESSAGE in shown.get(f"/{name}").text
    assert shown.get("/api/v1/repositories").json()["items"][0]["may"] == "read"
    stranger = httpx.get(f"{shown.base_url}", headers={"Accept": "text/html"}, trust_env=False)
    assert stranger.status_code == 303
    assert urlsplit(stranger.headers["location"]).path == "/login"
