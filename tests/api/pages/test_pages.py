"""Every page in a real browser: at a desk and on a phone, light and dark, usable by everybody."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.api.pages.conftest import DESKTOP, PHONE
from tests.support.servers.browsers import Visitor

pytestmark = pytest.mark.long

REPOSITORY = "/team/photos"
HERE = f"{REPOSITORY}/-"
PAGES = (
    "/",
    REPOSITORY,
    f"{HERE}/files/README.md",
    f"{HERE}/datasets/photos",
    f"{HERE}/sql?query=SELECT+label,+count(*)+FROM+%22datasets/photos%22+GROUP+BY+label",
    f"{HERE}/models/classifier",
    f"{HERE}/runs/baseline",
    f"{HERE}/lineage?path=models/classifier",
    f"{HERE}/requests/1",
)
# Pages that are made of the same parts as those above, and other states of those.
MORE_PAGES = (
    "/settings/tokens",
    f"{HERE}/commits",
    f"{HERE}/compare?path=datasets/photos&old=v1&new=main",
    f"{HERE}/runs",
    "/settings/new-repository",
    "/settings/audit",
    "/empty/-/runs",
    f"{HERE}/entries",
    f"{HERE}/commit/main~2",
    f"{HERE}/history/datasets/photos",
    f"{HERE}/datasets/photos?view=table",
    f"{HERE}/row/2/datasets/sounds/tones",
    f"{HERE}/registry/photo-classifier",
    f"{HERE}/compare-runs?run=baseline&run=slower",
    f"{HERE}/storage",
    f"{HERE}/requests",
    f"{HERE}/new-request",
    "/empty",
    "/empty/-/entries",
    "/empty/-/lineage",
    "/empty/-/registry",
    f"{HERE}/datasets/photos?view=columns",
    f"{HERE}/datasets/sounds/tones",
    f"{HERE}/row/3/datasets/photos",
    f"{HERE}/sql?dataset=datasets/photos",
    f"{HERE}/compare?path=datasets/photos&new=main",
    f"{HERE}/compare?path=files/README.md&old=main&new=relabel",
    f"{HERE}/compare?path=models/classifier&old=main~1&new=main",
    f"{HERE}/registry",
    f"{HERE}/runs/with-a-machine",
    f"{HERE}/lineage",
)
IN_A_SOAK = [pytest.param(path, marks=pytest.mark.soak) for path in MORE_PAGES]


@pytest.mark.parametrize("path", [*PAGES, *IN_A_SOAK])
def test_a_page_is_sound_at_a_desk_and_narrow_enough_for_a_phone(path: str, desk: Visitor) -> None:
    assert _flaws(desk, path) == []
    desk.page.set_viewport_size(PHONE)
    assert not desk.is_too_wide()
    desk.page.set_viewport_size(DESKTOP)


@pytest.mark.parametrize(
    "path",
    [
        PAGES[0],
        *(pytest.param(path, marks=pytest.mark.soak) for path in PAGES[1:]),
        *IN_A_SOAK,
    ],
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
