"""Datasets and views over HTTP: schema, rows, cells, pictures, Arrow streams."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import tensorrepo as tr
from tensorrepo.api.access.grants import Action, Grant
from tests.support.builders.served import BASE, HOSTILE, NAME, ROWS, digits_of_sklearn, serve_digits
from tests.support.servers.service import RunningService


@pytest.fixture(scope="module")
def digits(service: RunningService) -> RunningService:
    serve_digits(service)
    return service


def test_metadata_tells_schema_counts_and_bounds(digits: RunningService) -> None:
    with digits.client() as client:
        found = client.get(f"{BASE}/datasets/digits").json()
        view = client.get(f"{BASE}/views/threes").json()
    assert (found["kind"], found["rows"]) == ("dataset", ROWS)
    image, label = found["columns"]
    assert (image["type"], label["type"]) == ("uint8[8, 8]", "int64")
    assert (label["min"], label["max"], label["nulls"]) == (0, 9, 0)
    assert (view["kind"], view["rows"], view["of"]) == ("view", 183, "datasets/digits")
    assert view["query"] == "SELECT row_id FROM digits WHERE label = 3"


def test_rows_are_the_ones_that_were_stored(digits: RunningService) -> None:
    with digits.client() as client:
        page = client.get(f"{BASE}/datasets/digits/-/rows", params={"start": 5, "limit": 2}).json()
    given = digits_of_sklearn()
    assert [one["row"] for one in page["items"]] == [5, 6]
    assert page["next"] == 7
    values = page["items"][0]["values"]
    assert values["label"] == given.target[5]
    assert values["image"]["shape"] == [8, 8]
    assert np.array_equal(values["image"]["values"], given.images[5])


def test_pages_of_a_condition_tell_every_row_that_meets_it_once(digits: RunningService) -> None:
    asked = {"where": "label = 3", "limit": 100, "column": "label"}
    with digits.client() as client:
        first = client.get(f"{BASE}/datasets/digits/-/rows", params=asked).json()
        asked["start"] = first["next"]
        second = client.get(f"{BASE}/datasets/digits/-/rows", params=asked).json()
    rows = [one["row"] for one in first["items"] + second["items"]]
    assert rows == np.flatnonzero(digits_of_sklearn().target == 3).tolist()
    assert second["next"] is None


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("label % 3 = 1", lambda digit, at: digit.target[at] % 3 == 1),
        ("list_sum(image[1]) > 40", lambda digit, at: digit.images[at][0].sum() > 40),
    ],
)
def test_conditions_beyond_comparisons_are_asked_of_sql(
    where: str, wanted: Callable[[Any, int], bool], digits: RunningService
) -> None:
    asked = {"where": where, "column": "label", "limit": 1000}
    with digits.client() as client:
        page = client.get(f"{BASE}/datasets/digits/-/rows", params=asked)
        stream = client.get(f"{BASE}/datasets/digits/-/arrow", params=asked)
        wrong = client.get(
            f"{BASE}/datasets/digits/-/rows", params={"where": "1 = 1) UNION SELECT (-7"}
        )
    given = digits_of_sklearn()
    expected = [at for at in range(ROWS) if wanted(given, at)]
    assert [one["row"] for one in page.json()["items"]] == expected
    assert pa.ipc.open_stream(stream.content).read_all().num_rows == len(expected)
    assert wrong.status_code == 400


def test_rows_are_taken_in_the_order_asked_for(digits: RunningService) -> None:
    with digits.client() as client:
        page = client.get(f"{BASE}/datasets/digits/-/rows", params={"take": "7,3,7"}).json()
        beyond = client.get(f"{BASE}/datasets/digits/-/rows", params={"take": "9999"})
    assert [one["row"] for one in page["items"]] == [7, 3, 7]
    assert (beyond.status_code, beyond.json()["kind"]) == (404, "no-such-row")


def test_pictures_are_links_and_texts_are_data(digits: RunningService) -> None:
    with digits.client() as client:
        answer = client.get(f"{BASE}/datasets/pictures/-/rows")
        photo = answer.json()["items"][2]["values"]["photo"]
        picture = client.get(photo["href"])
    assert [one["values"]["words"] for one in answer.json()["items"]] == HOSTILE
    assert answer.headers["content-type"] == "application/json"
    assert (photo["is"], photo["height"], photo["width"], photo["mode"]) == (
        "image", 200, 320, "RGB",
    )  # fmt: skip
    assert picture.headers["content-type"] == "image/png"
    assert picture.headers["content-security-policy"]
    assert Image.open(io.BytesIO(picture.content)).getpixel((0, 0)) == (80, 80, 120)


@pytest.mark.parametrize("path", ["datasets/pictures", "datasets/digits"])
def test_pictures_are_made_smaller(path: str, digits: RunningService) -> None:
    column = {"datasets/pictures": "photo", "datasets/digits": "image"}[path]
    asked = {"column": column, "row": 1, "resize": 64}
    with digits.client() as client:
        small = client.get(f"{BASE}/{path}/-/image", params=asked)
        again = client.get(
            f"{BASE}/{path}/-/image",
            params=asked,
            headers={"If-None-Match": small.headers["etag"]},
        )
    size = {"datasets/pictures": (64, 40), "datasets/digits": (8, 8)}[path]
    assert Image.open(io.BytesIO(small.content)).size == size
    assert again.status_code == 304


def test_a_cell_is_a_file_that_no_browser_shows(digits: RunningService) -> None:
    with digits.client() as client:
        words = client.get(f"{BASE}/datasets/pictures/-/cell", params={"column": "words", "row": 0})
        tensor = client.get(f"{BASE}/datasets/digits/-/cell", params={"column": "image", "row": 9})
        label = client.get(f"{BASE}/datasets/digits/-/cell", params={"column": "label", "row": 9})
    assert words.text == HOSTILE[0]
    assert words.headers["content-type"].startswith("text/plain")
    assert words.headers["content-disposition"].startswith("attachment")
    assert np.array_equal(np.load(io.BytesIO(tensor.content)), digits_of_sklearn().images[9])
    assert json.loads(label.content) == 9


def test_an_arrow_stream_has_what_was_asked_for_alone(digits: RunningService) -> None:
    asked = {"column": ["label", "image"], "where": "label >= 8", "start": 100}
    with digits.client() as client:
        found = client.get(f"{BASE}/datasets/digits/-/arrow", params=asked)
    table = pa.ipc.open_stream(found.content).read_all()
    target = digits_of_sklearn().target
    assert table.column_names == ["label", "image"]
    assert table["label"].to_pylist() == [x for x in target[100:].tolist() if x >= 8]


def test_pictures_of_an_arrow_stream_are_made_smaller(digits: RunningService) -> None:
    asked = {"column": "photo", "resize": 16, "take": "4,0"}
    with digits.client() as client:
        found = client.get(f"{BASE}/datasets/pictures/-/arrow", params=asked)
        whole = client.get(f"{BASE}/datasets/pictures/-/arrow", params={"column": "photo"})
    photos = pa.ipc.open_stream(found.content).read_all()["photo"].to_pylist()
    assert [Image.open(io.BytesIO(one)).size for one in photos] == [(16, 10), (16, 10)]
    assert Image.open(io.BytesIO(photos[0])).getpixel((0, 0)) == (160, 80, 120)
    assert len(found.content) < len(whole.content)


def test_a_profile_is_made_once_for_a_column(digits: RunningService) -> None:
    with digits.client() as client:
        found = client.get(f"{BASE}/datasets/digits/-/profile", params={"column": "label"})
        kept = digits.service.memory.profiles
        digits.service.memory.making.clear()
        again = client.get(f"{BASE}/datasets/digits/-/profile", params={"column": "label"})
    assert found.json() == again.json()
    assert found.json()["counts"] == np.bincount(digits_of_sklearn().target).tolist()
    assert kept is not None
    assert len(list(kept.root.rglob("??/*"))) == 1


@pytest.mark.parametrize(
    ("what", "asked", "status"),
    [
        ("rows", {"where": "nonsense ="}, 400),
        ("rows", {"where": "nothing = 1"}, 400),
        ("rows", {"column": "nothing"}, 404),
        ("rows", {"take": "1,,2"}, 400),
        ("rows", {"take": "1", "where": "label = 1"}, 400),
        ("rows", {"limit": 100_000}, 400),
        ("arrow", {"start": 9, "stop": 3}, 400),
        ("arrow", {"where": "label = 'x'"}, 400),
        ("image", {"column": "label", "row": 0}, 400),
        ("image", {"column": "image", "row": 9999}, 404),
        ("cell", {"column": "image", "row": 9999}, 404),
        ("profile", {"column": "nothing"}, 404),
    ],
)
def test_what_cannot_be_answered_is_a_problem(
    what: str, asked: dict[str, object], status: int, digits: RunningService
) -> None:
    with digits.client() as client:
        answer = client.get(f"{BASE}/datasets/digits/-/{what}", params=asked)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "application/problem+json",
    )


def test_rows_that_were_sent_are_not_sent_again(digits: RunningService) -> None:
    with digits.client() as client:
        first = client.get(f"{BASE}/datasets/digits/-/rows")
        again = client.get(
            f"{BASE}/datasets/digits/-/rows", headers={"If-None-Match": first.headers["etag"]}
        )
    assert (again.status_code, again.content) == (304, b"")


HOSTILE_COLUMNS = ["<script>alert(1)</script>", "../../etc/passwd", 'a"; drop=1', "x&y=1#z", "ünï"]


def test_names_of_columns_are_data_wherever_they_come(digits: RunningService) -> None:
    url = digits.service.directory.find(NAME).url
    repo = tr.open(url, author="Ann <ann@example.org>")
    with repo.transaction("hostile", message="names") as tx:
        tx.create_dataset("odd", {name: [np.arange(9000)] for name in HOSTILE_COLUMNS})
    digits.service.directory.open(NAME).core.log.refresh()  # which it does each second
    with digits.client() as client:
        page = client.get(f"{BASE}/datasets/odd/-/rows", params={"ref": "hostile"}).json()
        values = page["items"][0]["values"]
        cells = [client.get(values[name]["href"]) for name in HOSTILE_COLUMNS]
        stream = client.get(
            f"{BASE}/datasets/odd/-/arrow", params={"ref": "hostile", "column": HOSTILE_COLUMNS}
        )
    assert page["columns"] == HOSTILE_COLUMNS
    assert [np.load(io.BytesIO(one.content))[-1] for one in cells] == [8999] * 5
    assert pa.ipc.open_stream(stream.content).read_all().column_names == HOSTILE_COLUMNS
    assert {one.headers["content-disposition"].partition(";")[0] for one in cells} == {"attachment"}


@pytest.mark.parametrize(
    "what",
    [
        "datasets/hidden", "datasets/hidden/-/rows", "datasets/hidden/-/arrow",
        "datasets/hidden/-/profile?column=x", "datasets/hidden/-/cell?column=x&row=0",
        "datasets/hidden/-/image?column=x&row=0", "entries/datasets/hidden",
        "files/hidden", "lineage?path=datasets/hidden",
    ],
)  # fmt: skip
def test_a_reader_of_main_reads_no_row_of_secret(what: str, digits: RunningService) -> None:
    token = digits.user(f"rows-{abs(hash(what))}", Grant(NAME, Action.READ, "heads/main"))
    with digits.client() as client:
        secret = client.get(f"{BASE}/commits/secret").json()["digest"]
    joint = "&" if "?" in what else "?"
    with digits.client(token) as client:
        answers = [
            client.get(f"{BASE}/{what}{joint}ref={ref}")
            for ref in ("secret", "heads/secret", secret, f"{secret}~0", "main")
        ]
    assert {one.status_code for one in answers} == {404}
