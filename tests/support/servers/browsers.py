"""A headless browser for tests of pages, and what it has seen of them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    Page,
    Request,
    expect,
    sync_playwright,
)

CHROMIUM = shutil.which("chromium")
ARGUMENTS = (
    # Root in a container may not make namespaces; nothing but our own pages is visited.
    "--no-sandbox",
    # Else a process of its own emulates a graphics card: a tenth of what pages take.
    "--disable-gpu",
    "--disable-software-rasterizer",
)
PAGE_MILLISECONDS = 60_000
SETTLED_SECONDS = 5
_LOOK_MILLISECONDS = 20
# What asks when it is seen does so behind the first frame.
_DRAWN = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(
  () => setTimeout(done, 20))))"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; where it is missing the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    expect.set_options(timeout=PAGE_MILLISECONDS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody with a window, who notes what a page should not do."""

    context: BrowserContext
    url: str
    page: Page
    faults: list[str] = field(default_factory=list)
    asked: int = 0  # requests so far
    ended: int = 0  # those of them that were answered, or failed

    @classmethod
    def of(cls, context: BrowserContext, url: str) -> Visitor:
        context.set_default_timeout(PAGE_MILLISECONDS)
        visitor = cls(context, url, context.new_page())
        visitor.page.on("console", lambda told: visitor._note(told.type, told.text))
        visitor.page.on("pageerror", lambda error: visitor.faults.append(f"script: {error}"))
        visitor.page.on("dialog", lambda dialog: visitor.faults.append(f"dialog: {dialog.message}"))
        visitor.page.on("request", visitor._check)
        visitor.page.on("requestfinished", visitor._note_end)
        visitor.page.on("requestfailed", visitor._note_end)
        return visitor

    def visit(self, path: str) -> int:
        """Open a page and wait until it has all that it asks for; gives its status."""
        self.asked = self.ended = 0
        answer = self.page.goto(self.url + path)
        assert answer is not None
        self._settle()
        return answer.status

    def _settle(self) -> None:
        """Wait until all was answered and drawn, and what was drawn asked for nothing more.

        Playwright's own way waits for half a second in which nothing is asked.
        """
        asked = -1
        while asked != self.asked or self.ended < self.asked:
            asked = self.asked
            self.page.evaluate(_DRAWN)

    def visit_without_waiting(self, path: str) -> None:
        """Open a page that goes on asking, such as for events."""
        self.page.goto(self.url + path, wait_until="domcontentloaded")

    def is_too_wide(self) -> bool:
        """Whether the page as a whole has to be moved sideways, once it has settled.

        Charts are drawn again, some frames later, where the window became narrower. Playwright's
        own way to wait evaluates text in the page, which the page's policy forbids.
        """
        wide = "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        until = time.monotonic() + SETTLED_SECONDS
        while self.page.evaluate(wide):
            if time.monotonic() > until:
                return True
            self.page.wait_for_timeout(_LOOK_MILLISECONDS)
        return False

    def take_faults(self) -> list[str]:
        """What was noted since the last time."""
        taken, self.faults = self.faults, []
        return taken

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(f"console: {text}")

    def _note_end(self, _: Request) -> None:
        self.ended += 1

    def _check(self, request: Request) -> None:
        self.asked += 1
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"another host: {request.url}")
