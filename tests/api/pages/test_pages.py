"""Every page in a real browser: at a desk and on a phone, light and dark, usable by everybody."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.api.pages.conftest import DESKTOP, PHONE
from tests.support.servers.browsers import Visitor

REPOSITORY = "/team/photos"
HERE = f"{REPOSITORY}/-"
PAGES = (
    "/",
    "/settings/new-repository",
    "/settings/tokens",
    "/settings/audit",
    "/empty",
    "/empty/-/entries",
    "/empty/-/lineage",
    "/empty/-/runs",
    "/empty/-/registry",
    REPOSITORY,
    f"{HERE}/entries",
    f"{HERE}/commits",
    f"{HERE}/commit/main~2",
    f"{HERE}/files/README.md",
    f"{HERE}/history/datasets/photos",
    f"{HERE}/datasets/photos",
    f"{HERE}/datasets/photos?view=table",
    f"{HERE}/datasets/photos?view=columns",
    f"{HERE}/datasets/sounds/tones",
    f"{HERE}/row/3/datasets/photos",
    f"{HERE}/row/2/datasets/sounds/tones",
    f"{HERE}/sql?dataset=datasets/photos",
    f"{HERE}/sql?query=SELECT+label,+count(*)+FROM+%22datasets/photos%22+GROUP+BY+label",
    f"{HERE}/compare?path=datasets/photos&old=v1&new=main",
    f"{HERE}/compare?path=datasets/photos&new=main",
    f"{HERE}/compare?path=files/README.md&old=main&new=relabel",
    f"{HERE}/models/classifier",
    f"{HERE}/compare?path=models/classifier&old=main~1&new=main",
    f"{HERE}/registry",
    f"{HERE}/registry/photo-classifier",
    f"{HERE}/runs",
    f"{HERE}/runs/baseline",
    f"{HERE}/runs/with-a-machine",
    f"{HERE}/compare-runs?run=baseline&run=slower",
    f"{HERE}/lineage",
    f"{HERE}/lineage?path=models/classifier",
    f"{HERE}/storage",
    f"{HERE}/requests",
    f"{HERE}/requests/1",
    f"{HERE}/new-request",
)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_sound_at_a_desk_and_narrow_enough_for_a_phone(path: str, desk: Visitor) -> None:
    assert _flaws(desk, path) == []
    desk.page.set_viewport_size(PHONE)
    assert not desk.is_too_wide()
    desk.page.set_viewport_size(DESKTOP)


@pytest.mark.parametrize(
    "path", [PAGES[0], *(pytest.param(path, marks=pytest.mark.soak) for path in PAGES[1:])]
)
def test_a_page_is_sound_on_a_phone_in_the_dark(path: str, phone: Visitor) -> None:
    assert _flaws(phone, path) == []


def _flaws(visitor: Visitor, path: str) -> list[str]:
    """What is wrong with a page: its status, what it did, its width, what keeps people out."""
    status = visitor.visit(path)
    flaws = [f"status {status}"] if status != 200 else []
    flaws += visitor.take_faults()
    flaws += ["too wide"] if visitor.is_too_wide() else []
    found = Axe().run(visitor.page).response["violations"]
    flaws += [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
    visitor.take_faults()
    return flaws
