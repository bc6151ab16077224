"""F15: every object that a call returns is a table in a terminal and in a notebook."""

from __future__ import annotations

import io
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.sdk import init
from tests.support.processes.shell import ADA, Shell

HOSTILE = '<script>alert("x")</script>'


class Tags(HTMLParser):
    """Elements of a piece of HTML, and the alternative texts and sources of its pictures."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        if tag == "img":
            self.pictures.append(dict(attrs))


def _png() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.zeros((40, 30, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    """A repository whose names and values are HTML, with a run, two commits and a registry."""
    place = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STATE", "CACHE", "CONFIG"):
            patch.setenv(f"XDG_{name}_HOME", str(place / name.lower()))
        repository = init(place / "store", author=ADA)
    columns = {
        "photo": tr.Image("png"),
        "label": tr.ClassLabel(("cat", HOSTILE)),
        "grid": tr.Tensor("uint8", (8, 8)),
        HOSTILE: tr.Text(),
    }
    rows = {
        "photo": [_png()] * 20,
        "label": [0, 1] * 10,
        "grid": np.zeros((20, 8, 8), np.uint8),
        HOSTILE: [HOSTILE] * 20,
    }
    with repository.transaction(message=HOSTILE) as tx:
        tx.create_dataset("photos", columns=columns).append(rows)
    with repository.run("exp1", params={"name": HOSTILE}) as run:
        run.use(repository.dataset("photos"))
        run.log_metrics({"loss": 1.0, HOSTILE: 2.0}, 0)
        run.save_model("net", {HOSTILE: np.zeros((4, 4), "f4")})
    repository.registry.register("net", "main:models/net", message=HOSTILE, alias="best")
    repository.create_branch("side", "main~1")
    return repository


OBJECTS: dict[str, Callable[[tr.Repository], Any]] = {
    "repository": lambda repo: repo,
    "log": lambda repo: repo.log(),
    "commit": lambda repo: repo.log()[0],
    "branches": lambda repo: repo.branches(),
    "tags": lambda repo: repo.tags(),
    "entries": lambda repo: repo.entries(),
    "revision": lambda repo: repo.resolve("main"),
    "datasets": lambda repo: repo.datasets(),
    "models": lambda repo: repo.models(),
    "dataset": lambda repo: repo.dataset("photos"),
    "schema": lambda repo: repo.dataset("photos").schema,
    "column": lambda repo: repo.dataset("photos")[HOSTILE],
    "model": lambda repo: repo.model("net"),
    "description": lambda repo: repo.model("net").describe(),
    "graph": lambda repo: repo.model("net").graph(),
    "similar": lambda repo: repo.model("net").similar(),
    "verification": lambda repo: repo.model("net").verify(),
    "model diff": lambda repo: repo.model("net").diff(repo.model("net")),
    "comparison": lambda repo: repo.diff("main~1", "main"),
    "entry change": lambda repo: repo.diff("main~1", "main").changes[0],
    "dataset diff": lambda repo: repo.diff("side", "main~1"),
    "blame": lambda repo: repo.blame("photos", row=1),
    "origin": lambda repo: repo.blame("photos", row=1)[HOSTILE].origin,
    "lineage": lambda repo: repo.lineage("models/net"),
    "ancestors": lambda repo: repo.lineage("models/net").ancestors(),
    "drawing": lambda repo: repo.lineage("models/net").draw(),
    "saw deleted": lambda repo: repo.lineage("datasets/photos").saw_deleted(),
    "findings": lambda repo: repo.lineage("models/net").reproducible(),
    "runs": lambda repo: repo.runs(),
    "run": lambda repo: repo.runs()["exp1"],
    "run handle": lambda repo: repo.run("exp1"),
    "points": lambda repo: repo.runs()["exp1"].points(HOSTILE),
    "registry": lambda repo: repo.registry,
    "registered model": lambda repo: repo.registry["net"],
    "versions": lambda repo: repo.registry.versions("net"),
    "version": lambda repo: repo.registry.version("net"),
    "alias history": lambda repo: repo.registry.history("net", "best"),
    "usage": lambda repo: repo.model_usage(),
    "merge outcome": lambda repo: repo.merge("main", into="main"),
    "result": lambda repo: repo.sql(f"SELECT '{HOSTILE}' AS \"<script>\""),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_html_escapes_whatever_comes_from_data(hostile: tr.Repository, name: str) -> None:
    html = OBJECTS[name](hostile)._repr_html_()
    assert html
    assert "script" not in Tags(html).names
    assert len(html) < 200_000


@pytest.mark.parametrize("name", sorted(OBJECTS.keys() - {"run handle", "result"}))
def test_a_repr_is_short_and_no_page_of_dataclasses(hostile: tr.Repository, name: str) -> None:
    shown = repr(OBJECTS[name](hostile))
    assert "\n" not in shown
    assert len(shown) < 700
    assert "tree=b" not in shown


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("repository", "datasets/photos"),
        ("log", "message"),
        ("datasets", "1 dataset\ndataset\nphotos"),
        ("dataset", "png 30 x 40"),
        ("schema", "label of 2 classes"),
        ("column", "... and 10 more"),
        ("model", "F32"),
        ("comparison", "A models/net"),
        ("blame", "added in"),
        ("lineage", "└─"),
        ("ancestors", "used datasets/photos"),
        ("runs", "finished"),
        ("run", "course"),
        ("points", "1 point"),
        ("versions", "models/net in"),
        ("merge outcome", "nothing to merge"),
    ],
)
def test_print_gives_the_table(hostile: tr.Repository, name: str, words: str) -> None:
    assert words in str(OBJECTS[name](hostile))


def test_lines_that_are_aligned_are_in_letters_of_one_width(hostile: tr.Repository) -> None:
    for name, is_aligned in (("run", True), ("lineage", True), ("runs", False), ("models", False)):
        html = OBJECTS[name](hostile)._repr_html_()
        assert ("monospace" in html) == is_aligned, name


def test_pictures_are_thumbnails_and_classes_have_names(hostile: tr.Repository) -> None:
    html = hostile.dataset("photos")._repr_html_()
    pictures = Tags(html).pictures
    assert len(pictures) == 16  # 8 rows of an image and of an array of pixels
    assert all((one["src"] or "").startswith("data:image/png;base64,") for one in pictures)
    assert "cat" in html
    assert ">0</td>" not in html


def test_without_pillow_pictures_are_words(
    hostile: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    html = hostile.dataset("photos")._repr_html_()
    assert Tags(html).pictures == []
    assert "png 30 x 40" in html


def test_print_of_blame_is_what_the_command_prints(full: Shell) -> None:
    printed = str(full.repository().blame("points", row=3))
    assert full("blame", "points", "--row", "3").rstrip("\n") == printed


def test_a_list_and_a_mapping_stay_what_they_are(hostile: tr.Repository) -> None:
    assert isinstance(hostile.log(), list)
    assert hostile.branches() == dict(hostile.branches())
    assert next(one.digest for one in hostile.log()) == hostile.branches()["main"]


def test_a_merge_tells_what_it_did(tmp_path: Any) -> None:
    repository = init(tmp_path / "store", author=ADA)
    with repository.transaction(message="First") as tx:
        tx.save_file("a.txt", b"a")
    repository.create_branch("side")
    with repository.transaction("side", "Second") as tx:
        tx.save_file("b.txt", b"b")
    assert "moved forward to" in str(repository.merge("side"))
    assert "heads/main" in str(repository.undo())
    with repository.transaction(message="Third") as tx:
        tx.save_file("c.txt", b"c")
    assert "merged: commit" in str(repository.merge("side"))


def test_what_cannot_be_read_is_told_and_raises_nothing(
    hostile: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise tr.PermissionDenied("not allowed <b>")

    monkeypatch.setattr("tensorrepo.describe._head_cells", refuse)
    html = hostile.dataset("photos")._repr_html_()
    assert "rows cannot be read: not allowed &lt;b&gt;" in html
    assert "label of 2 classes" in html


def test_rows_too_large_to_show_are_not_read(
    hostile: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.describe.HEAD_BYTES", 10)
    monkeypatch.setattr("tensorrepo.describe._head_cells", None)
    assert "so none is shown" in str(hostile.dataset("photos"))


def test_a_wide_dataset_shows_its_first_columns(tmp_path: Any) -> None:
    repository = init(tmp_path / "store", author=ADA)
    names = [f"c{at}" for at in range(60)]
    with repository.transaction(message="Wide") as tx:
        rows = {name: [1, 2] for name in names}
        tx.create_dataset("wide", columns=dict.fromkeys(names, "int64")).append(rows)
    shown = str(repository.dataset("wide"))
    assert "the first 40 of 60 columns" in shown
    assert "c39" in shown.splitlines()[2]


def test_what_is_in_a_repository_is_told_without_reading_it(tmp_path: Any) -> None:
    repository = init(tmp_path / "store", author=ADA)
    with repository.transaction(message="Two") as tx:
        tx.create_dataset("bad", columns={"x": "int64"}).append({"x": [1]})
        tx.save_file("good.txt", b"good")
    digest = repository.entries()["datasets/bad"].digest
    (damaged,) = [each for each in (tmp_path / "store").rglob(f"*{digest[4:]}*") if each.is_file()]
    damaged.chmod(0o644)
    damaged.write_bytes(b"")
    shown = str(tr.open(tmp_path / "store"))
    assert "1 row x 1 column" in shown
    assert "files/good.txt" in shown
