"""`tensorrepo report` writes one page that stands alone, whatever names and values there are."""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.report import sections
from tensorrepo.sdk import init
from tests.support.processes.shell import ADA, Shell

SECTIONS = ["datasets", "models", "runs", "lineage", "files", "commits"]


class Page(HTMLParser):
    """Elements of a page, ids of its sections, and all that could lead elsewhere."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.sections: list[str] = []
        self.links: set[str] = set()
        self.pictures = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names.add(tag)
        self.sections += [values["id"] or ""] if tag == "section" else []
        self.pictures += tag == "img"
        links = {values.get(name) or "" for name in ("href", "src", "action", "data")}
        self.links |= {link for link in links if link and not link.startswith(("#", "data:image/"))}


@pytest.fixture(scope="module")
def server() -> Iterator[socket.socket]:
    """A port of this machine that listens, and to which nobody must have connected."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, server: socket.socket) -> Path:
    """The report of a repository whose every name and value would be HTML with a script."""
    from PIL import Image

    hostile = f'"><script>fetch("http://127.0.0.1:{server.getsockname()[1]}")</script>'
    hostile += f'<img src=http://127.0.0.1:{server.getsockname()[1]}/x onerror="alert(1)">'
    place = tmp_path_factory.mktemp("report")
    picture = io.BytesIO()
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(picture, "JPEG")
    repository = init(place / "store", author=ADA)
    columns = {
        "photo": tr.Image(),
        "label": tr.ClassLabel(("cat", hostile)),
        "size": "float32",
        "count": "int64",
        hostile[:100]: tr.Text(),
    }
    rows = {
        "photo": [picture.getvalue()] * 30,
        "label": [0, 1, 1] * 10,
        "size": np.r_[np.nan, np.linspace(0, 1, 29)].astype("f4"),
        "count": np.arange(30) % 3,
        hostile[:100]: [hostile] * 30,
    }
    with repository.transaction(message=hostile) as tx:
        tx.create_dataset("photos", columns=columns).append(rows).set_properties(licence=hostile)
        tx.save_file("notes.txt", b"notes")
    with repository.run("exp1", params={"name": hostile}) as run:
        run.use(repository.dataset("photos"))
        for step in range(50):
            run.log_metrics({"loss": 1 / (step + 1), hostile: float("inf") if step else 1.0}, step)
        run.save_model("net", {hostile: np.zeros((4, 4), "f4"), "b": np.zeros(4, "f2")})
    written = repository.report(place / "report.html")
    assert written.bytes == written.path.stat().st_size
    assert written.left_out == 0
    return written.path


def test_a_page_has_all_sections_and_nothing_that_leads_elsewhere(page: Path) -> None:
    found = Page(page.read_text("utf-8"))
    assert found.sections == SECTIONS
    assert found.links == set()
    assert not {"script", "link", "iframe", "object", "form"} & found.names
    assert found.pictures == 24


@pytest.mark.parametrize(
    "words",
    [
        "30 rows",
        "licence",
        "fetch(&quot;http",
        "20 parameters",
        "F32 80.0%",
        "made-by runs/exp1",
        "used",
        'class="histogram"',
        "<polyline",
        "tensorrepo-lineage",
        "notes.txt",
        "prefers-color-scheme:dark",
        "default-src 'none'",
    ],
)
def test_a_page_tells_what_is_there(page: Path, words: str) -> None:
    assert words in page.read_text("utf-8")


def test_a_browser_shows_it_without_errors_and_asks_nobody(
    page: Path, server: socket.socket, tmp_path: Path
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("Chromium is not installed: Debian's package chromium has it")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path}",
        "--enable-logging=stderr", "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    shown = Page(done.stdout)
    assert shown.sections == SECTIONS
    assert "script" not in shown.names
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    with pytest.raises(BlockingIOError):
        server.accept()


def test_a_report_goes_to_a_file_and_is_never_overwritten_without_force(full: Shell) -> None:
    assert full("report", "--to", "here.html").startswith("wrote here.html")
    before = (full.folder / "here.html").read_bytes()
    assert "--force" in full.fails(2, "report", "--to", "here.html")
    assert (full.folder / "here.html").read_bytes() == before
    assert "`tensorrepo report --to here.html`" in full.fails(3, "report", "here.html")
    full("report", "v1", "--to", "here.html", "--force")
    assert b"<span>v1</span>" in (full.folder / "here.html").read_bytes()
    assert list(full.folder.glob(".here*")) == []


def test_a_report_stays_below_its_limit_and_says_what_it_left_out(tmp_path: Path) -> None:
    repository = init(tmp_path / "store", author=ADA)
    with repository.transaction(message="Many") as tx:
        for number in range(40):
            columns = {f"c{at}": "float32" for at in range(10)}
            rows = {name: np.arange(50, dtype="f4") for name in columns}
            tx.create_dataset(f"d{number:02}", columns=columns).append(rows)
    written = repository.report(tmp_path / "report.html", limit="128KiB")
    assert written.bytes < 128 << 10
    assert written.left_out > 0
    assert f"{written.left_out} more would not fit" in written.path.read_text("utf-8")


def test_damage_is_told_where_it_is_and_the_rest_goes_on(tmp_path: Path) -> None:
    repository = init(tmp_path / "store", author=ADA)
    with repository.transaction(message="Two") as tx:
        tx.create_dataset("good", columns={"x": "int64"}).append({"x": [1, 2, 3]})
        tx.create_dataset("bad", columns={"x": "int64"}).append({"x": list(range(200_000))})
    chunks = [each for each in (tmp_path / "store").rglob("*") if each.is_file()]
    largest = max(chunks, key=lambda each: each.stat().st_size)
    largest.chmod(0o644)
    largest.write_bytes(bytes(largest.stat().st_size))
    page = tr.open(tmp_path / "store").report(tmp_path / "report.html").path.read_text("utf-8")
    assert "cannot be read" in page
    assert "<h3>datasets/good</h3>" in page
    assert 'class="histogram"' in page


def test_a_commit_with_nothing_in_it_has_a_page(tmp_path: Path) -> None:
    repository = init(tmp_path / "store", author=ADA)
    with repository.transaction(message="A file") as tx:
        tx.save_file("notes.txt", b"notes")
    page = repository.report(tmp_path / "report.html").path.read_text("utf-8")
    assert Page(page).sections == SECTIONS
    assert "This commit has no datasets." in page
    assert "No runs were recorded" in page


def test_a_report_of_files_alone_tells_those_that_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "MOST_FILES", 2)
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with repo.transaction(message="Files") as tx:
        for name in "abc":
            tx.save_file(name, b"x")
    repo.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("files/") == 2
    assert "... and 1 more" in page
    assert "This commit has no datasets." in page
