"""Every page in a real browser: at a desk and on a phone, light and dark, usable by everybody."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.api.pages.conftest import DESKTOP, PHONE
from tests.support.servers.browsers import Visitor

pytestmark = pytest.mark.long

REPOSITORY = "/team/photos"
HERE = f"{REPOSITORY}/-"
# Those that axe looks at in each run, which takes it two thirds of what a page takes: tiles and
# charts of columns, and forms beside rows before and after.
PAGES = (
    f"{HERE}/datasets/photos",
    f"{HERE}/requests/1",
)
# These are only looked at for what they ask for, say and how wide they are.
PLAIN_PAGES = (
    REPOSITORY,
    f"{HERE}/models/classifier",
    f"{HERE}/sql?query=SELECT+label,+count(*)+FROM+%22datasets/photos%22+GROUP+BY+label",
    f"{HERE}/runs/baseline",
)
# Pages that are made of the same parts as those above, and other states of those.
MORE_PAGES = (
    "/",
    f"{HERE}/files/README.md",
    f"{HERE}/lineage?path=models/classifier",
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
IN_A_SOAK = [pytest.param(path, marks=pytest.mark.soak) for path in (*MORE_PAGES, *PLAIN_PAGES)]


@pytest.mark.parametrize("path", [*PAGES, *IN_A_SOAK])
def test_a_page_is_sound_at_a_desk_and_narrow_enough_for_a_phone(path: str, desk: Visitor) -> None:
    assert _flaws(desk, path) == []
    assert not _is_too_wide_for_a_phone(desk)


@pytest.mark.parametrize("path", PLAIN_PAGES)
def test_a_page_is_whole_and_narrow_enough_for_a_phone(path: str, desk: Visitor) -> None:
    assert _plain_flaws(desk, path) == []
    assert not _is_too_wide_for_a_phone(desk)


@pytest.mark.parametrize(
    "path",
    ["/", *(pytest.param(path, marks=pytest.mark.soak) for path in PAGES), *IN_A_SOAK[1:]],
)
def test_a_page_is_sound_on_a_phone_in_the_dark(path: str, phone: Visitor) -> None:
    assert _flaws(phone, path) == []


def _is_too_wide_for_a_phone(visitor: Visitor) -> bool:
    visitor.page.set_viewport_size(PHONE)
    is_too_wide = visitor.is_too_wide()
    visitor.page.set_viewport_size(DESKTOP)
    return is_too_wide


def _plain_flaws(visitor: Visitor, path: str) -> list[str]:
    """What is wrong with a page: its status, what it did, its width."""
    status = visitor.visit(path)
    flaws = [f"status {status}"] if status != 200 else []
    flaws += visitor.take_faults()
    return flaws + (["too wide"] if visitor.is_too_wide() else [])


def _flaws(visitor: Visitor, path: str) -> list[str]:
    """The same, and what keeps people out."""
    flaws = _plain_flaws(visitor, path)
    found = Axe().run(visitor.page).response["violations"]
    flaws += [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
    visitor.take_faults()
    return flaws
