"""A headless browser for tests of pages, and what it has seen of them."""

from __future__ import annotations

import shutil
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
PAGE_MILLISECONDS = 60_000


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; where it is missing the test is skipped."""
    if CHROMIUM is None:
        pytest.skip("no chromium: apt-get install chromium")
    expect.set_options(timeout=PAGE_MILLISECONDS)
    with sync_playwright() as playwright:
        # Root in a container may not make namespaces; nothing but our own pages is visited.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visitor:
    """Somebody with a window, who notes what a page should not do."""

    context: BrowserContext
    url: str
    page: Page
    faults: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, context: BrowserContext, url: str) -> Visitor:
        context.set_default_timeout(PAGE_MILLISECONDS)
        visitor = cls(context, url, context.new_page())
        visitor.page.on("console", lambda told: visitor._note(told.type, told.text))
        visitor.page.on("pageerror", lambda error: visitor.faults.append(f"script: {error}"))
        visitor.page.on("dialog", lambda dialog: visitor.faults.append(f"dialog: {dialog.message}"))
        visitor.page.on("request", visitor._check)
        return visitor

    def visit(self, path: str) -> int:
        """Open a page and wait until it has all that it asks for; gives its status."""
        answer = self.page.goto(self.url + path, wait_until="networkidle")
        assert answer is not None
        return answer.status

    def visit_without_waiting(self, path: str) -> None:
        """Open a page that goes on asking, such as for events."""
        self.page.goto(self.url + path, wait_until="domcontentloaded")

    def is_too_wide(self) -> bool:
        """Whether the page as a whole has to be moved sideways."""
        wide: bool = self.page.evaluate(
            "document.scrollingElement.scrollWidth > document.scrollingElement.clientWidth"
        )
        return wide

    def take_faults(self) -> list[str]:
        """What was noted since the last time."""
        taken, self.faults = self.faults, []
        return taken

    def _note(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(f"console: {text}")

    def _check(self, request: Request) -> None:
        if not request.url.startswith((self.url, "data:", "blob:")):
            self.faults.append(f"another host: {request.url}")
