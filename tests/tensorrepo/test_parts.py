"""Two-step writes through the SDK: on a disk, on an object store and behind a service."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import tensorrepo as tr
from tensorrepo import parts
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.formats.dataset.verification import verify_dataset
from tests.support.processes.forked import FORKED
from tests.support.servers.object_stores import s3_on_ours
from tests.support.servers.service import RunningService, running_service

ANN = "Ann <ann@example.org>"
COLUMNS = {"x": "int64", "name": tr.Text(), "picture": tr.Tensor("u1", (64, 64))}
ROWS = 50


def rows(number: int, count: int = ROWS) -> dict[str, Any]:
    return {
        "x": np.arange(count) + number * 1000,
        "name": [f"{number}/{at}" for at in range(count)],
        "picture": np.full((count, 64, 64), number, "u1"),
    }


def filled(repo: tr.Repository) -> tr.Repository:
    with repo.transaction(message="photos") as tx:
        tx.create_dataset("photos", columns=COLUMNS)
    return repo


def numbers(repo: tr.Repository, ref: str = "main") -> list[int]:
    """Of the parts whose rows are there, in their order."""
    found = repo.dataset("photos", ref=ref)["x"][:] // 1000
    return [int(each) for each in found[::ROWS]]


def leases(repo: tr.Repository) -> list[str]:
    return list(repo.context.core.log.refresh().state.leases)


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return filled(tr.init(tmp_path / "store", author=ANN))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


def _served(running: RunningService, name: str, token: str | None = None) -> tr.Repository:
    options = {"token": token or running.token}
    return tr.open(f"{running.url}/{name}", storage_options=options, author=ANN)


@pytest.fixture(params=["folder", "s3", "service"])
def anywhere(
    request: pytest.FixtureRequest, tmp_path: Path, service: RunningService
) -> Iterator[tr.Repository]:
    with ExitStack() as stack:
        if request.param == "folder":
            yield filled(tr.init(tmp_path / "store", author=ANN))
        elif request.param == "s3":
            bucket = stack.enter_context(s3_on_ours(tmp_path / "s3"))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in bucket.environment.items():
                patch.setenv(name, value)
            yield filled(tr.init(f"{bucket.url}/r", author=ANN))
        else:
            with service.client() as client:
                client.post("/api/v1/repositories", json={"name": "team/photos"})
            yield filled(_served(service, "team/photos"))


def test_parts_are_appended_once_and_in_the_order_given(anywhere: tr.Repository) -> None:
    made = [parts.write(anywhere, rows(at), dataset="photos", key=f"{at}") for at in range(4)]
    again = parts.write(anywhere, rows(2), dataset="photos", key="2")
    assert len(leases(anywhere)) == 4
    with anywhere.transaction() as tx:
        done = tx.dataset("photos").append_parts([made[3], again, *made]).parts
    assert done is not None
    assert (done.appended, done.repeated, done.rows) == (("3", "2", "0", "1"), 2, 4 * ROWS)
    assert numbers(anywhere) == [3, 2, 0, 1]
    assert leases(anywhere) == []
    assert list(verify_dataset(anywhere.dataset("photos").stored)) == []


def test_a_commit_that_is_repeated_changes_nothing(repo: tr.Repository) -> None:
    made = [parts.write(repo, rows(at), dataset="photos", key=f"{at}") for at in range(2)]
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts(made)
    with repo.transaction() as again:
        done = again.dataset("photos").append_parts(made).parts
    assert again.commit is None
    assert done is not None
    assert (done.appended, done.present) == ((), ("0", "1"))
    assert numbers(repo) == [0, 1]


def test_the_same_parts_in_two_commits_at_once_count_once(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.dataset("photos").append(rows(9))
    made = [parts.write(repo, rows(at), dataset="photos", key=f"{at}") for at in range(3)]
    other = tr.open(repo.url, author="Bob <bob@example.org>")
    with repo.transaction() as one, other.transaction() as two:
        one.dataset("photos").append_parts(made[:2])
        two.dataset("photos").append_parts(made[1:])
    assert sorted(numbers(repo)) == [0, 1, 2, 9]
    assert list(verify_dataset(repo.dataset("photos").stored)) == []


def test_parts_that_are_there_are_known_after_their_rows_were_moved(repo: tr.Repository) -> None:
    made = [parts.write(repo, rows(at), dataset="photos", key=f"{at}") for at in range(3)]
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts(made).delete("x == 1001")
        tx.dataset("photos").compact(everything=True)
    with repo.transaction() as tx:
        done = tx.dataset("photos").append_parts(made).parts
    assert done is not None
    assert done.present == ("0", "1", "2")
    assert len(repo.dataset("photos")) == 3 * ROWS - 1


@pytest.mark.soak
@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12), st.integers(0, 12))
def test_any_retries_of_workers_and_of_the_commit_give_the_same_bytes(
    tries: list[tuple[int, bool]], cut: int
) -> None:
    once, often = (filled(tr.init(f"memory://{uuid4()}", author=ANN)) for _ in range(2))
    order = list(dict.fromkeys(at for at, _ in tries))
    with once.transaction() as tx:
        photos = tx.dataset("photos")
        photos.append_parts(
            parts.write(once, rows(at), dataset="photos", key=f"{at}") for at in order
        )
    made = []
    for at, reported in tries:
        part = parts.write(often, rows(at), dataset="photos", key=f"{at}")
        made += [part] if reported else []
    every = {at: parts.write(often, rows(at), dataset="photos", key=f"{at}") for at in order}
    with often.transaction() as tx:
        tx.dataset("photos").append_parts([every[at] for at in order[:cut]])
    with often.transaction() as tx:
        tx.dataset("photos").append_parts([*(every[at] for at in order), *made])
    assert numbers(often) == order == numbers(once)
    ids = [each.dataset("photos").row_ids() for each in (once, often)]
    assert ids[0] == ids[1]


def test_parts_of_a_schema_fit_the_dataset_that_is_made_with_it(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(1), schema=COLUMNS, key="a")
    with repo.transaction() as tx:
        tx.create_dataset("later", columns=COLUMNS).append_parts([part.to_json()])
    assert repo.dataset("later")["x"][:].tolist() == rows(1)["x"].tolist()


def test_columns_of_every_layout_are_put_behind_each_other(repo: tr.Repository) -> None:
    columns = {
        "photo": tr.Image("png"),
        "volume": tr.Tensor("u1", (None, None), tile=(16, 16)),
        "spans": tr.List("int32"),
        "tokens": tr.Tensor("i2", (None,)),
    }
    with repo.transaction() as tx:
        tx.create_dataset("all", columns=columns)

    def some(number: int) -> dict[str, Any]:
        return {
            "photo": [_png(8 + number)],
            "volume": [np.full((40, 40 + number), number, "u1")],
            "spans": [list(range(number))],
            "tokens": [np.arange(number, dtype="i2")],
        }

    made = [
        parts.write(repo, some(1), dataset="all", key="1"),
        parts.write(repo, some(2), schema=columns, key="2"),
        parts.write(repo, iter(()), dataset="all", key="none"),
    ]
    with repo.transaction() as tx:
        tx.dataset("all").append_parts(made, verify="all")
    found = repo.dataset("all")
    assert list(verify_dataset(found.stored)) == []
    assert found["photo.width"][:].tolist() == [9, 10]
    assert [found["volume"][at, 0, 39:].tolist() for at in range(2)] == [[1, 1], [2, 2, 2]]
    assert [row["spans"] for row in found] == [[0], [0, 1]]
    assert [row["tokens"].tolist() for row in found] == [[0], [0, 1]]


def _png(width: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, 5)).save(file, "PNG")
    return file.getvalue()


def test_columns_that_came_since_take_their_defaults(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(1), dataset="photos", key="a")
    with repo.transaction() as tx:
        photos = tx.dataset("photos").add_column("age", "int8", default=3)
        photos.add_column("note", "int8").rename_column("x", "y")
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([part])
    photos = repo.dataset("photos")
    assert (photos[-1]["y"], photos[-1]["age"], photos[-1]["note"]) == (1000 + ROWS - 1, 3, None)
    assert {each.nulls for each in photos.stored.root.statistics} == {0, ROWS}
    assert len(photos.filter("age == 3 and note is null")) == ROWS


def test_a_lease_keeps_parts_until_they_are_released(repo: tr.Repository) -> None:
    kept, given_up = (parts.write(repo, rows(at), dataset="photos", key=f"{at}") for at in range(2))
    parts.release(repo, [given_up])
    repo.gc(grace="0s")
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([kept])
    elsewhere = tr.open(repo.url, author=ANN)  # nothing of it is in the memory of this one
    with (
        pytest.raises(tr.CommitExpired, match=r"part '1': .*Write the part again"),
        elsewhere.transaction() as tx,
    ):
        tx.dataset("photos").append_parts([given_up])
    again = parts.write(repo, rows(1), dataset="photos", key="1")
    assert again == given_up
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([given_up])
    assert numbers(repo) == [0, 1]


def test_a_collection_while_a_commit_is_made_takes_nothing_of_it(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(0), dataset="photos", key="0")
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([part])
        parts.release(repo, [part])
        repo.gc(grace="0s")
    assert repo.dataset("photos")["picture"][:].sum() == 0
    assert list(verify_dataset(repo.dataset("photos").stored)) == []


def test_a_part_is_refused_where_its_columns_do_not_fit(repo: tr.Repository) -> None:
    other = parts.write(repo, {"x": [1.5]}, schema={"x": "float64"}, key="a")
    with pytest.raises(tr.InvalidInputError, match="another one"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([other])
    few = parts.write(repo, {"x": [1]}, schema={"x": "int64"}, key="b")
    with pytest.raises(tr.InvalidInputError, match="no column 'name'"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([few])
    with repo.transaction() as tx:
        tx.create_dataset("narrow", columns={"x": "int8"})
    narrow = parts.write(repo, {"x": [1]}, dataset="narrow", key="c")
    with repo.transaction() as tx:
        tx.dataset("narrow").widen_column("x", "int16")
    with pytest.raises(tr.InvalidInputError, match="changed since"), repo.transaction() as tx:
        tx.dataset("narrow").append_parts([narrow])


def test_a_key_names_one_part_for_good(repo: tr.Repository) -> None:
    first = parts.write(repo, rows(0), dataset="photos", key="monday")
    other = parts.write(repo, rows(1), dataset="photos", key="monday")
    longer = parts.write(repo, rows(0, ROWS + 1), dataset="photos", key="monday")
    with pytest.raises(tr.InvalidInputError, match="came twice"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([first, longer])
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([first])
    with pytest.raises(tr.ConflictError, match="another part"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([other])
    assert numbers(repo) == [0]


def test_a_part_of_another_repository_is_refused(repo: tr.Repository, tmp_path: Path) -> None:
    other = filled(tr.init(tmp_path / "other", author=ANN))
    part = parts.write(other, rows(0), dataset="photos")
    with (
        pytest.raises(tr.InvalidInputError, match="was written to"),
        repo.transaction() as tx,
    ):
        tx.dataset("photos").append_parts([part])


def test_statistics_of_a_part_that_lie_are_found(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorrepo.formats.dataset.writing import fragment_write

    honest = fragment_write.encode_pages

    def lying(*given: Any) -> Any:
        pages = honest(*given)
        for page in pages:
            page.entry["max"] += 7
        return pages

    monkeypatch.setattr(fragment_write, "encode_pages", lying)
    part = parts.write(repo, {"x": np.arange(100_000)}, schema={"x": "int64"}, key="a")
    monkeypatch.undo()
    with pytest.raises(tr.CorruptError, match="bounds are said to be"), repo.transaction() as tx:
        tx.create_dataset("x", columns={"x": "int64"}).append_parts([part], verify="all")


def test_what_a_part_says_of_its_rows_is_counted(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(0), dataset="photos", key="a")
    more = {**json.loads(part.to_json()), "rows": 3}
    with pytest.raises(tr.CorruptError, match="says that it has 3 rows"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([more])


@pytest.mark.parametrize("change", [{"root": "x"}, {"rows": -1}, {"version": 2}, {"more": 1}])
def test_what_is_no_part_is_refused(repo: tr.Repository, change: dict[str, Any]) -> None:
    part = json.loads(parts.write(repo, rows(0), dataset="photos").to_json())
    with pytest.raises(tr.InvalidInputError, match="is no part"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([{**part, **change}])
    with pytest.raises(tr.InvalidInputError, match="parts"), repo.transaction() as tx:
        tx.dataset("photos").append_parts([7])  # type: ignore[list-item]


def test_a_part_travels_as_json_and_by_pickle(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(0), dataset="photos")
    assert parts.Part.from_json(part.to_json()) == part == pickle.loads(pickle.dumps(part))
    assert len(part.to_json()) < 500


def test_columns_are_said_once(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="say once"):
        parts.write(repo, rows(0))
    with pytest.raises(tr.InvalidInputError, match="say once"):
        parts.write(repo, rows(0), dataset="photos", schema=COLUMNS)
    with pytest.raises(tr.InvalidInputError, match="expected 1 to 512"):
        parts.write(repo, rows(0), dataset="photos", key="x" * 513)


def test_an_aborted_commit_keeps_the_leases(repo: tr.Repository) -> None:
    part = parts.write(repo, rows(0), dataset="photos")
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts([part])
        tx.abort()
    assert leases(repo) == [part.lease]


def test_workers_of_a_service_need_not_read_all_of_it(service: RunningService) -> None:
    with service.client() as client:
        client.post("/api/v1/repositories", json={"name": "team/some"})
    whole = filled(_served(service, "team/some"))
    whole.create_branch("side")
    token = service.user("worker", Grant("team/some", Action.WRITE, "heads/side"))
    worker = _served(service, "team/some", token)
    part = parts.write(worker, rows(0), dataset="photos", ref="side", key="a")
    with (
        pytest.raises(tr.PermissionDenied, match="read the whole"),
        worker.transaction("side") as tx,
    ):
        tx.dataset("photos").append_parts([part])
    with whole.transaction() as tx:
        tx.dataset("photos").append_parts([part])
    assert numbers(whole) == [0]


def _work(url: str, number: int, fate: str, told: Path) -> None:
    """A worker, which is killed over its rows, or before it could tell what it wrote."""

    def some() -> Iterator[dict[str, Any]]:
        columns = rows(number)
        for at in range(ROWS):
            if fate == "over rows" and at == ROWS // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield {name: each[at] for name, each in columns.items()}

    part = parts.write(url, some(), dataset="photos", key=f"{number}")
    if fate == "before it tells":
        os.kill(os.getpid(), signal.SIGKILL)
    told.write_text(part.to_json())


@pytest.mark.parametrize(
    "fates",
    [
        ("over rows", "before it tells"),
        pytest.param(("before it tells",) * 2, marks=pytest.mark.soak),
    ],
)
def test_workers_that_are_killed_and_started_again_count_once(
    repo: tr.Repository, fates: tuple[str, ...], tmp_path: Path
) -> None:
    told = [tmp_path / f"{number}" for number in range(2)]
    for number, fate in [*((0, fate) for fate in fates), (0, ""), (1, "")]:
        worker = FORKED.Process(target=_work, args=(repo.url, number, fate, told[number]))
        worker.start()
        worker.join()
        assert worker.exitcode == (-signal.SIGKILL if fate else 0)
    with repo.transaction() as tx:
        tx.dataset("photos").append_parts(each.read_text() for each in told)
    alone = filled(tr.init(tmp_path / "alone", author=ANN))
    with alone.transaction() as tx:
        photos = tx.dataset("photos")
        photos.append_parts(
            parts.write(alone, rows(at), dataset="photos", key=f"{at}") for at in range(2)
        )
    ours, theirs = repo.dataset("photos"), alone.dataset("photos")
    assert ours.stored.digest == theirs.stored.digest
