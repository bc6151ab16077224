"""Nothing that stands in a repository runs in a page: names, words, cells, cards, files."""

from __future__ import annotations

import html
from html.parser import HTMLParser

import numpy as np
import pytest
from playwright.sync_api import Browser

import tensorrepo as tr
from tests.api.pages.conftest import DESKTOP, signed_in
from tests.support.servers.browsers import Visitor
from tests.support.servers.service import RunningService

pytestmark = pytest.mark.long

CORPUS = (
    "<script>window.hostile=1</script>",
    "<img src=x onerror=window.hostile=1>",
    '"><svg onload=window.hostile=1>',
    "'-window.hostile=1-'",
    "{{ 7*7 }}{% include 'x' %}",
    "<a href='javascript:window.hostile=1'>click</a>",
    "</textarea><iframe srcdoc='<script>parent.hostile=1</script>'>",
    "<div hx-get=/logout hx-trigger=load></div>",
)
CARD = "\n\n".join([*CORPUS, "[click](javascript:window.hostile=1)", "![x](//example.org/x.png)"])
HERE = "/hostile/-"
PAGES = (
    "/", "/hostile", f"{HERE}/entries", f"{HERE}/commits", f"{HERE}/commit/main",
    f"{HERE}/datasets/cells?view=table", f"{HERE}/datasets/cells?view=columns",
    f"{HERE}/datasets/cells?view=table&where=%3Cscript%3Ewindow.hostile%3D1%3C/script%3E",
    f"{HERE}/row/0/datasets/cells", f"{HERE}/files/README.md", f"{HERE}/files/page.html",
    f"{HERE}/registry", f"{HERE}/registry/net", f"{HERE}/models/net", f"{HERE}/architecture/net",
    f"{HERE}/compare?path=datasets/cells&old=%3Cscript%3E",
    f"{HERE}/compare?path=files/README.md&old=main&new=main",
    f"{HERE}/runs",
    f"{HERE}/runs/run1", f"{HERE}/sql?query=SELECT+*+FROM+%22datasets/cells%22",
    f"{HERE}/lineage?path=models/net", f"{HERE}/requests?state=%3Cscript%3E",
    f"{HERE}/nothing%3Cscript%3Ewindow.hostile%3D1%3C%2Fscript%3E",
)  # fmt: skip
# Pages whose scripts make something of what is stored, and a card: a browser sees them in each run.
# What else a page has is in the HTML that it is served as.
DRAWN = (
    f"{HERE}/datasets/cells?view=table", f"{HERE}/files/README.md", f"{HERE}/models/net",
    f"{HERE}/runs/run1", f"{HERE}/sql?query=SELECT+*+FROM+%22datasets/cells%22",
    f"{HERE}/lineage?path=models/net",
)  # fmt: skip
SEEN = [path if path in DRAWN else pytest.param(path, marks=pytest.mark.soak) for path in PAGES]


@pytest.fixture(scope="module")
def visitor(browser: Browser, service: RunningService) -> Visitor:
    """The administrator, at a repository that means ill."""
    made = service.service.directory.create("hostile", description=CORPUS[0])
    repo = tr.open(made.url, author=f"{CORPUS[1].replace('<', '(').replace('>', ')')} <a@b.c>")
    with repo.transaction(message="\n".join(CORPUS)) as tx:
        cells = {"text": list(CORPUS), "label": [0] * len(CORPUS), CORPUS[0]: list(CORPUS)}
        tx.create_dataset("cells", cells, columns={"label": tr.ClassLabel([CORPUS[1], "b"])})
        tx.save_file("README.md", CARD.encode())
        tx.save_file("page.html", CORPUS[0].encode())
    with repo.run("run1", params={CORPUS[0][:40]: CORPUS[1]}) as run:
        run.log_metric("<b onclick=alert(1)>", 1.0, 0)
        repo.dataset("cells")
        run.save_model("net", {CORPUS[0]: np.ones(2, np.float32)}, metrics={CORPUS[1]: 1.0})
    repo.registry.register("net", repo.model("net"), alias="champion", message=CORPUS[0])
    repo.registry.describe("net", description=CARD, labels={"x": CORPUS[0]})
    found = signed_in(browser, service, viewport=DESKTOP)
    found.context.add_init_script("window.hostile = 0")
    return found


class _Hostile(HTMLParser):
    """Notes what of the corpus became elements and attributes of a page, instead of words."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_script = tag == "script"
        values = dict(attrs)
        if tag == "iframe" or {"onerror", "onload", "onclick"} & values.keys():
            self.found.append(self.get_starttag_text() or tag)
        if values.get("hx-get") == "/logout" or "javascript:" in (values.get("href") or ""):
            self.found.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        if self._is_script and "hostile=1" in data:
            self.found.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._is_script = False


def hostile_parts(page: str) -> list[str]:
    parser = _Hostile()
    parser.feed(page)
    parser.close()
    return parser.found


@pytest.mark.parametrize("path", PAGES)
def test_nothing_hostile_is_part_of_what_is_served(path: str, visitor: Visitor) -> None:
    answer = visitor.context.request.get(visitor.url + path, headers={"Accept": "text/html"})
    assert answer.headers["content-type"].startswith("text/html")
    assert hostile_parts(answer.text()) == []


@pytest.mark.parametrize("word", [word for word in CORPUS if "7*7" not in word and word[0] != "'"])
def test_a_word_that_is_not_escaped_is_noticed(word: str) -> None:
    assert hostile_parts(f'<p title="{html.escape(word)}">{html.escape(word)}</p>') == []
    assert hostile_parts(f'<textarea>{word}</textarea><p title="{word}">{word}</p>')


@pytest.mark.parametrize("path", SEEN)
def test_nothing_hostile_runs(path: str, visitor: Visitor) -> None:
    visitor.visit(path)
    assert visitor.page.evaluate("window.hostile") == 0
    assert visitor.page.locator("main iframe, main [onerror], main [onload]").count() == 0
    assert [one for one in visitor.take_faults() if "status of 4" not in one] == []


def test_files_of_a_repository_are_saved_and_not_shown_as_pages(
    visitor: Visitor, service: RunningService
) -> None:
    assert visitor.url == service.url
    with service.client() as client:
        answer = client.get(f"{HERE}/raw/files/page.html")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in answer.headers["content-security-policy"]
