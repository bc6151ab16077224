"""Nothing that stands in a repository runs in a page: names, words, cells, cards, files."""

from __future__ import annotations

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


@pytest.mark.parametrize("path", PAGES)
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
