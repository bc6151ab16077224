"""What people do on pages: sign in, look for rows, ask SQL, comment and merge, make tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.api.pages.conftest import DESKTOP, signed_in
from tests.support.servers.browsers import Visitor
from tests.support.servers.service import RunningService

HERE = "/team/photos/-"
PASSWORD = "correct horse battery staple"
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cara(browser: Browser, showcase: RunningService) -> Iterator[Visitor]:
    """Somebody who may write, and signed in by the form."""
    showcase.service.people.add_user("cara", email="cara@example.org")
    showcase.service.accounts.grant("cara", Grant("team/photos", Action.WRITE))
    showcase.service.sign_in.passwords.set("cara", PASSWORD)
    visitor = Visitor.of(browser.new_context(viewport=DESKTOP), showcase.url)
    visitor.visit(f"{HERE}/commits")
    visitor.page.get_by_label("User").fill("cara")
    visitor.page.get_by_label("Password").fill(PASSWORD)
    visitor.page.get_by_role("button", name="Sign in").click()
    yield visitor
    assert visitor.take_faults() == []


def test_who_signs_in_comes_to_where_they_were_going(cara: Visitor) -> None:
    expect(cara.page).to_have_url(re.compile(rf"{HERE}/commits$"))
    expect(cara.page.get_by_role("heading", name="Commits")).to_be_visible()


@pytest.mark.soak
def test_the_first_tab_leads_past_the_navigation(cara: Visitor) -> None:
    cara.visit("/")
    cara.page.keyboard.press("Tab")
    expect(cara.page.get_by_text("Skip to the content")).to_be_focused()
    cara.page.keyboard.press("Enter")
    expect(cara.page.locator("main")).to_be_focused()


def test_rows_are_filtered_in_place_and_paged(cara: Visitor) -> None:
    cara.visit(f"{HERE}/datasets/photos?view=table")
    cara.page.get_by_label("Show rows where").fill("caption = 'patch 7'")
    cara.page.get_by_role("button", name="Filter").click()
    expect(cara.page.locator("#rows tbody tr")).to_have_count(1)
    expect(cara.page).to_have_url(re.compile("where=caption"))
    cara.page.get_by_role("link", name="Show all rows").click()
    cara.page.get_by_role("link", name="Next").click()
    expect(cara.page.get_by_text("50 to 99 of 264")).to_be_visible()


@pytest.mark.soak
def test_a_condition_that_is_none_is_told_beside_the_box(cara: Visitor) -> None:
    cara.visit(f"{HERE}/datasets/photos?view=table&where=nothing+%3D+3")
    expect(cara.page.get_by_role("alert")).to_contain_text("nothing")


@pytest.mark.soak
def test_sql_is_asked_in_place(cara: Visitor) -> None:
    cara.visit(f"{HERE}/sql?dataset=datasets/photos")
    query = 'SELECT count(*) AS n FROM "datasets/photos"'
    cara.page.get_by_label("Query").fill(query)
    cara.page.get_by_role("button", name="Run").click()
    expect(cara.page.locator("#answer td")).to_have_text("264")


@pytest.mark.soak
def test_histograms_come_when_they_are_seen(cara: Visitor) -> None:
    cara.visit(f"{HERE}/datasets/photos?view=columns")
    cara.page.get_by_label("Column brightness").scroll_into_view_if_needed()
    expect(cara.page.get_by_label("Column brightness").locator("rect").first).to_be_visible()


@pytest.mark.soak
def test_ctrl_and_enter_run_a_query(cara: Visitor) -> None:
    cara.visit(f"{HERE}/sql?dataset=datasets/photos")
    cara.page.get_by_label("Query").fill('SELECT 40 + 2 AS n FROM "datasets/photos" LIMIT 1')
    cara.page.keyboard.press("Control+Enter")
    expect(cara.page.locator("#answer td")).to_have_text("42")


@pytest.mark.soak  # a merge request shows rows before and after, too
def test_two_versions_are_chosen_and_compared(cara: Visitor) -> None:
    cara.visit(f"{HERE}/datasets/photos")
    cara.page.get_by_role("link", name="Compare").click()
    cara.page.get_by_label("Before", exact=True).select_option("v1")
    cara.page.get_by_label("After", exact=True).select_option("main")
    cara.page.get_by_role("button", name="Compare").click()
    expect(cara.page.get_by_text("24 rows added")).to_be_visible()
    expect(cara.page.locator("td.is").first).to_have_text("A flower, seen from above")


@pytest.mark.soak
def test_rows_that_differ_come_in_pages_without_their_heading(cara: Visitor) -> None:
    cara.visit(f"{HERE}/compare?path=datasets/photos&old=v1&new=main")
    rows = cara.page.locator("table.added tbody tr")
    expect(rows).to_have_count(19)
    cara.page.get_by_role("link", name="More rows").click()
    expect(rows).to_have_count(24)
    expect(cara.page.get_by_text("24 rows added")).to_have_count(1)


@pytest.mark.soak
def test_an_architecture_is_drawn_when_it_is_seen(cara: Visitor) -> None:
    cara.visit(f"{HERE}/models/classifier")
    cara.page.get_by_role("heading", name="Tensors", exact=True).scroll_into_view_if_needed()
    expect(cara.page.locator("svg.architecture")).to_contain_text("layers.*.attention × 4")


def test_a_merge_request_shows_rows_pictures_and_lines_before_and_after(cara: Visitor) -> None:
    cara.visit(f"{HERE}/requests/1")
    expect(cara.page.get_by_text("3 rows added")).to_be_visible()
    expect(cara.page.locator("td.was img")).to_be_visible()
    expect(cara.page.locator("td.is img")).to_be_visible()
    expect(cara.page.locator(".text-diff .added")).to_contain_text("by machine")
    expect(cara.page.get_by_text("Layers that moved")).to_have_count(0)
    cara.page.locator("summary", has_text="models/classifier").click()
    expect(cara.page.get_by_text("Layers that moved")).to_be_visible()


@pytest.mark.soak
def test_a_comment_has_several_lines(cara: Visitor) -> None:
    cara.visit(f"{HERE}/requests/1")
    cara.page.get_by_label("Comment").fill("First:\n\n- one\n- two")
    cara.page.get_by_role("button", name="Comment").click()
    expect(cara.page.locator(".prose li")).to_have_text(["one", "two"])


@pytest.mark.soak
def test_runs_are_compared_when_two_are_ticked(cara: Visitor) -> None:
    cara.visit(f"{HERE}/runs")
    compare = cara.page.get_by_role("button", name="Compare the chosen")
    cara.page.get_by_label("Choose baseline").check()
    expect(compare).to_be_disabled()
    cara.page.get_by_label("Choose slower").check()
    compare.click()
    expect(cara.page.get_by_role("heading", name="2 runs compared")).to_be_visible()


def test_a_link_that_mlflows_client_prints_leads_to_the_run(cara: Visitor) -> None:
    cara.visit("/team/photos#/experiments/0/runs/baseline")
    expect(cara.page.get_by_role("heading", name="baseline")).to_be_visible()
    cara.visit("/team/photos#/experiments/0")
    expect(cara.page.get_by_label("Choose baseline")).to_be_visible()


@pytest.mark.soak
def test_the_tab_that_is_shown_is_in_sight_on_a_phone(phone: Visitor) -> None:
    phone.visit(f"{HERE}/storage")
    expect(phone.page.get_by_role("link", name="Storage")).to_be_in_viewport(ratio=0.9)


def test_who_may_only_read_is_offered_nothing_else(
    browser: Browser, showcase: RunningService
) -> None:
    showcase.service.people.add_user("rita", email="rita@example.org")
    showcase.service.accounts.grant("rita", Grant("team/photos", Action.READ))
    rita = signed_in(browser, showcase, user="rita", viewport=DESKTOP)
    rita.visit(f"{HERE}/requests")
    expect(rita.page.get_by_role("link", name="Propose a branch")).to_have_count(0)
    rita.visit(f"{HERE}/requests/1")
    expect(rita.page.get_by_text("3 rows added")).to_be_visible()
    expect(rita.page.locator("main button")).to_have_count(0)
    assert rita.take_faults() == []


@pytest.mark.soak
def test_an_error_leads_back_to_the_repository(cara: Visitor) -> None:
    assert cara.visit(f"{HERE}/datasets/nothing") == 404
    cara.take_faults()
    cara.page.get_by_role("link", name="team/photos").click()
    expect(cara.page.get_by_role("heading", name="team/photos")).to_be_attached()


def test_a_branch_is_proposed_discussed_and_merged(
    cara: Visitor, photos: tr.Repository, showcase: RunningService
) -> None:
    photos.create_branch("more")
    with photos.transaction("more", message="Words") as tx:
        tx.save_file("words.txt", b"Words")
    _see_what_was_written_beside(showcase)
    cara.visit(f"{HERE}/new-request")
    cara.page.get_by_label("Branch").select_option("more")
    cara.page.get_by_label("Into").select_option("main")
    cara.page.get_by_label("Title").fill("More words")
    cara.page.get_by_role("button", name="Propose").click()
    cara.page.get_by_label("Comment").fill("Are these **all** words?")
    cara.page.get_by_role("button", name="Comment").click()
    expect(cara.page.locator(".prose strong")).to_have_text("all")
    cara.page.get_by_role("button", name="Merge", exact=True).click()
    expect(cara.page.get_by_text("merged it")).to_be_visible()
    assert photos.file("words.txt") == b"Words"


def test_a_request_into_a_branch_that_is_gone_is_shown_and_closed(
    cara: Visitor, photos: tr.Repository, showcase: RunningService
) -> None:
    for name in ("late", "short-lived"):
        photos.create_branch(name)
    with photos.transaction("late", message="Late") as tx:
        tx.save_file("late.txt", b"Late")
    _see_what_was_written_beside(showcase)
    cara.visit(f"{HERE}/new-request")
    cara.page.get_by_label("Branch").select_option("late")
    cara.page.get_by_label("Into").select_option("short-lived")
    cara.page.get_by_label("Title").fill("Too late")
    cara.page.get_by_role("button", name="Propose").click()
    expect(cara.page.get_by_role("button", name="Merge", exact=True)).to_be_visible()
    photos.delete_branch("short-lived")
    _see_what_was_written_beside(showcase)
    cara.page.get_by_role("button", name="Merge", exact=True).click()
    expect(cara.page.get_by_role("alert")).to_contain_text("branch 'short-lived'")
    cara.page.get_by_role("button", name="Close").click()
    expect(cara.page.get_by_text("closed it")).to_be_visible()


@pytest.mark.soak
def test_a_token_is_shown_once_and_revoked(cara: Visitor, showcase: RunningService) -> None:
    cara.visit("/settings/tokens")
    cara.page.get_by_label("What it is for").fill("nightly")
    cara.page.get_by_role("button", name="Make token").click()
    token = cara.page.get_by_label("The new token").inner_text()
    with showcase.client(token) as client:
        assert client.get("/api/v1/repositories/team/photos").json()["may"] == "write"
        cara.visit("/settings/tokens")
        expect(cara.page.get_by_label("The new token")).to_have_count(0)
        cara.page.get_by_role("button", name="Revoke nightly").click()
        expect(cara.page.get_by_text("No token")).to_be_visible()
        assert client.get("/api/v1/repositories/team/photos").status_code == 401


@pytest.mark.soak
def test_points_of_a_run_come_while_it_trains(
    cara: Visitor, photos: tr.Repository, showcase: RunningService
) -> None:
    with photos.run("live", params={"lr": 0.1}) as run:
        run.log_metric("loss", 1.0, 0)
        run.flush()
        _see_what_was_written_beside(showcase)
        cara.visit_without_waiting(f"{HERE}/runs/live")
        expect(cara.page.locator("[data-chart=loss] canvas")).to_be_visible()
        run.log_metric("loss", 0.5, 1)
        run.flush()
        expect(cara.page.locator("[data-chart=loss]")).to_have_attribute("data-last-step", "1")
    expect(cara.page.get_by_text("finished")).to_be_visible()


@pytest.mark.soak
def test_a_card_is_written_and_aliases_are_moved_on_the_page(cara: Visitor) -> None:
    cara.visit(f"{HERE}/registry/photo-classifier")
    main = cara.page.locator("main")
    main.get_by_text("a card", exact=False).or_(main.get_by_text("Edit the card")).first.click()
    cara.page.get_by_label("Card, in Markdown").fill("# Sorts photos\n\nKnows **three** classes.")
    cara.page.get_by_role("button", name="Save").click()
    expect(main.get_by_role("heading", name="Sorts photos")).to_be_visible()
    expect(main.locator("strong")).to_have_text("three")
    main.get_by_text("Set an alias").click()
    cara.page.get_by_label("Alias", exact=True).fill("challenger")
    cara.page.get_by_label("Version", exact=True).fill("1")
    cara.page.get_by_role("button", name="Set", exact=True).click()
    expect(cara.page.locator("dt", has_text="challenger")).to_be_visible()
    cara.page.get_by_role("button", name="Remove challenger").click()
    expect(cara.page.locator("dt", has_text="challenger")).to_have_count(0)
    expect(cara.page.get_by_role("button", name="Protect")).to_have_count(0)


@pytest.mark.soak
def test_an_alias_that_cannot_be_is_told_on_the_page(cara: Visitor) -> None:
    cara.visit(f"{HERE}/registry/photo-classifier")
    cara.page.locator("main").get_by_text("Set an alias").click()
    cara.page.get_by_label("Alias", exact=True).fill("no such name/")
    cara.page.get_by_role("button", name="Set", exact=True).click()
    expect(cara.page.get_by_role("alert")).to_contain_text("no such name/")


def test_who_signs_out_sees_nothing_more(cara: Visitor) -> None:
    cara.visit("/")
    cara.page.get_by_role("button", name="Sign out").click()
    cara.visit("/team/photos")
    expect(cara.page).to_have_url(re.compile("/login"))


def _see_what_was_written_beside(showcase: RunningService) -> None:
    """Else the service sees it within a second."""
    showcase.service.directory.open("team/photos").core.log.refresh()
