"""What one sees: classes by their names, types in the schema's words, counts with their nouns."""

from __future__ import annotations

import re

import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell
from tests.tensorrepo.conftest import workplace


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """One pet in one file, added by one commit, and relabeled and widened by another."""
    shell = workplace(tmp_path_factory.mktemp("pets"))
    shell("init")
    repo = tr.open(shell.folder / ".tensorrepo" / "store", author=shell.author)
    classes = tuple(f"class{at}" for at in range(12))
    columns = {
        "label": tr.ClassLabel(("cat", "dog")),
        "many": tr.ClassLabel(classes),
        "tags": tr.List(tr.Text()),
        "age": "int32",
    }
    with repo.transaction(message="Pets") as tx:
        draft = tx.create_dataset("pets", columns=columns)
        draft.append({"label": ["cat"], "many": ["class11"], "tags": [["a"]], "age": [3]})
    with repo.transaction(message="A dog") as tx:
        draft = tx.dataset("pets").update(tr.col("label") == 0, {"label": "dog"})
        draft.drop_column("tags").widen_column("age", "int64", nullable=True)
        draft.add_column("seen", tr.Timestamp("s", "UTC"))
    return shell


def test_blame_tells_classes_by_their_names(pets: Shell) -> None:
    cells = pets.json("blame", "pets", "--row", "0", "--columns", "label,many")["cells"]
    assert [each["value"] for each in cells] == ["dog", "class11"]
    assert re.search(r"label +dog .*\nmany +class11 ", pets("blame", "pets", "--row", "0"))


def test_a_diff_tells_types_as_the_schema_does(pets: Shell) -> None:
    told = pets("diff", "HEAD~1", "HEAD")
    assert "column tags removed: list(text)" in told
    assert "column age: int32 -> int64 or null" in told
    assert "column seen added: timestamp(s, UTC) or null" in told
    assert "  seen: timestamp(s, UTC) or null\n" in pets("show", "HEAD:datasets/pets")


COUNTED = re.compile(
    r"\b1 (rows|columns|files|bytes|entries|commits|objects|records|tensors|runs|points|values|"
    r"branches|tags|batches|steps|datasets|models|nodes|changes|lines|versions)\b"
)
SHOWN = (
    ("status",), ("ls",), ("show",), ("show", "HEAD~1"), ("diff", "HEAD~1", "HEAD"), ("doctor",),
    ("fsck",), ("du",), ("diff", "HEAD~1", "HEAD", "--rows"), ("log", "--stat"),
    ("view", "create", "dogs", "SELECT row_id FROM pets WHERE label = 'dog'"),
    ("dataset", "set", "pets", "key=label"), ("commit", "-m", "A view"), ("view", "show", "dogs"),
    ("dataset", "stream", "pets"), ("dataset", "stream", "pets", "--explain"),
    ("export", "pets", "--to", "to.csv"),
)  # fmt: skip


def test_one_of_a_kind_is_told_in_the_singular(pets: Shell) -> None:
    told = "\n".join(pets(*words) for words in SHOWN)
    repo = tr.open(pets.folder / ".tensorrepo" / "store")
    dataset = repo.dataset("pets")
    shown = [dataset, repo, repo.view("dogs"), dataset.stream(batch_size=1), dataset.head(1)]
    told += "\n".join(
        f"{each!r}\n{each}" for each in (*shown, dataset.stored, repo.diff("main~1", "main"))
    )
    assert "1 row" in told
    assert [line for line in told.splitlines() if COUNTED.search(line)] == []
