"""The catalog of a repository, in Python and as somebody types it, in whatever state it is."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import select

import tensorrepo as tr
from tensorrepo.migrations import revisions
from tensorrepo.query.catalog import tables
from tests.support.processes.shell import Shell

ADA = "Ada <ada@example.org>"


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tr.Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tr.init(tmp_path / "repo", author=ADA)
    with made.transaction("main", "one of each") as change:
        change.save_model("net", {"w": np.ones((8, 8), "f4")}, metrics={"loss": 0.5})
        rows = change.create_dataset("points", columns={"x": "uint64", "label": tr.Text()})
        rows.append([{"x": 2**64 - 1, "label": "a"}, {"x": 7, "label": "b"}])
    return made


def file_of(repo: tr.Repository) -> str:
    return repo.catalog.url.removeprefix("sqlite:///")


def change_file(repo: tr.Repository, *statements: str) -> None:
    repo.catalog.catch_up()
    repo.catalog.close()
    with sqlite3.connect(file_of(repo)) as database:
        for statement in statements:
            database.execute(statement)
    database.close()


def test_whoever_asks_sees_what_was_committed_last(repo: tr.Repository) -> None:
    with repo.catalog.reading() as connection:
        assert connection.execute(select(tables.model_version.c.tensor_count)).all() == [(1,)]
    with repo.transaction("main", "another") as change:
        change.save_model("other", {"w": np.zeros((9, 9), "f4")})
    with repo.catalog.reading() as connection:
        assert len(connection.execute(select(tables.model_version)).all()) == 2
    assert repo.catalog.verify() == []


def test_numbers_that_sql_cannot_hold_are_told_apart(repo: tr.Repository) -> None:
    with repo.catalog.reading() as connection:
        column = tables.dataset_column
        x = connection.execute(select(column).where(column.c.name == "x")).one()
        loss = connection.execute(select(tables.metric)).one()
    assert (bytes(x.min_key), bytes(x.max_key)) == ((7).to_bytes(8, "big"), b"\xff" * 8)
    assert (loss.value, loss.kind) == (0.5, "finite")


def test_it_lies_in_the_cache_folder_under_the_repositorys_id(repo: tr.Repository) -> None:
    repo.catalog.catch_up()
    assert Path(file_of(repo)).name == f"{repo.id}.db"
    assert Path(os.environ["XDG_CACHE_HOME"]) in Path(file_of(repo)).parents


def test_the_environment_and_the_caller_say_where_it_is(
    repo: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORREPO_CATALOG", f"sqlite:///{tmp_path}/{{id}}.sqlite")
    told = tr.open(repo.url)
    assert told.catalog.url == f"sqlite:///{tmp_path}/{repo.id}.sqlite"
    given = tr.open(repo.url, catalog="sqlite://")
    assert given.catalog.url == "sqlite://"
    assert given.catalog.catch_up().commits == 1


def test_tables_of_a_newer_version_are_refused(repo: tr.Repository) -> None:
    change_file(repo, "UPDATE alembic_version SET version_num = '9999'")
    assert repo.catalog.status().state == "newer tables"
    with pytest.raises(tr.UnsupportedError, match="Update tensorrepo"), repo.catalog.reading():
        pass
    with pytest.raises(tr.UnsupportedError):
        repo.catalog.upgrade()


@pytest.mark.parametrize("damage", ["DROP TABLE node", "DELETE FROM alembic_version"])
def test_half_migrated_tables_are_refused_and_rebuilt(repo: tr.Repository, damage: str) -> None:
    change_file(repo, damage)
    assert repo.catalog.status().state == "half-migrated"
    with pytest.raises(tr.CorruptError, match="catalog rebuild"), repo.catalog.reading():
        pass
    repo.catalog.rebuild()
    assert repo.catalog.verify() == []


def test_a_database_of_another_program_is_left_alone(repo: tr.Repository, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute('CREATE TABLE "commit" (a)')
    database.close()
    other = tr.open(repo.url, catalog=f"sqlite:///{tmp_path}/other.db").catalog
    assert other.status().state == "not a catalog"
    with pytest.raises(tr.InvalidInputError, match="another database"):
        other.rebuild()


def test_a_catalog_of_another_repository_says_so(repo: tr.Repository, tmp_path: Path) -> None:
    repo.catalog.catch_up()
    tr.init(tmp_path / "two")
    second = tr.open(tmp_path / "two", catalog=repo.catalog.url)
    assert second.catalog.status().state == "other repository"
    with pytest.raises(tr.InvalidInputError, match="catalog of its own"):
        second.catalog.catch_up()


def test_the_commands_look_after_it(full: Shell) -> None:
    assert full.json("catalog", "status")["state"] == "empty"
    assert f"revision {revisions.newest()}" in full("catalog", "upgrade")
    assert "commit, " in full("catalog", "rebuild")
    shown = full("catalog", "status")
    assert "state     current" in shown
    assert "model_version" in shown
    assert "says what the repository says" in full("catalog", "verify")


def test_verify_exits_with_1_and_shows_what_differs(full: Shell) -> None:
    where = full.json("catalog", "upgrade")["url"].removeprefix("sqlite:///")
    full("catalog", "rebuild")
    with sqlite3.connect(where) as database:
        database.execute("UPDATE ref SET space = 'lies'")
    database.close()
    done = full.run("catalog", "verify")
    assert done.exit_code == 1
    assert "ref: " in done.output


def test_a_new_version_of_a_model_that_was_stored_anew_in_between(repo: tr.Repository) -> None:
    with repo.transaction("main", "two tensors") as change:
        weights = np.arange(600, dtype="f4").reshape(20, 30)
        change.save_model("net", {"w": weights, "b": np.zeros(4, "f4")})
    with repo.checkpointer("r") as saver:
        saver.save(0, {"w": np.zeros((8, 8), "f4")})
    repo.catalog.catch_up()
    assert repo.repack_models(depth=0, alpha=50.0).superseded
    repo.registry.register("net", "main:models/net")
    assert repo.catalog.verify() == []


def beginning(data: bytes) -> bytes:
    return bytes(100) + data[100:]


def inside(data: bytes) -> bytes:
    return data[:4096] + b"\xa5" * (len(data) - 4096)


def all_of_it(data: bytes) -> bytes:
    return b"no database" * (len(data) // 11)


@pytest.mark.parametrize("damaged", [beginning, inside, all_of_it])
def test_a_damaged_file_is_moved_aside_and_made_anew(
    repo: tr.Repository, damaged: Callable[[bytes], bytes]
) -> None:
    repo.catalog.catch_up()
    repo.catalog.close()
    file = Path(file_of(repo))
    broken = damaged(file.read_bytes())
    file.write_bytes(broken)
    told: list[str] = []
    repo.catalog.rebuild(warn=told.append)
    aside = file.with_name(file.name + ".damaged")
    assert aside.read_bytes() == broken
    assert str(aside) in told[0]
    assert repo.catalog.verify() == []


def test_a_damaged_file_is_told_with_the_command_that_mends_it(repo: tr.Repository) -> None:
    Path(file_of(repo)).parent.mkdir(parents=True, exist_ok=True)
    Path(file_of(repo)).write_bytes(b"no database" * 1000)
    assert repo.catalog.status().state == "damaged"
    with pytest.raises(tr.CorruptError, match="catalog rebuild"):
        repo.catalog.catch_up()


@pytest.mark.soak
def test_earlier_damaged_files_are_kept(repo: tr.Repository) -> None:
    file = Path(file_of(repo))
    file.parent.mkdir(parents=True, exist_ok=True)
    for content in (b"no database" * 1000, b"nor this" * 1000):
        repo.catalog.close()
        file.write_bytes(content)
        repo.catalog.rebuild(warn=lambda _: None)
    assert file.with_name(file.name + ".damaged").read_bytes().startswith(b"no database")
    assert file.with_name(file.name + ".damaged1").read_bytes().startswith(b"nor this")


def test_a_damaged_repository_is_no_reason_to_move_the_catalog(repo: tr.Repository) -> None:
    repo.catalog.catch_up()
    [objects] = Path(repo.url.removeprefix("file://")).glob("objects")
    for path in objects.rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"x" * path.stat().st_size)
    fresh = tr.open(repo.url).catalog
    with pytest.raises(tr.CorruptError):
        fresh.rebuild()
    assert not list(Path(file_of(repo)).parent.glob("*.damaged*"))


def test_upgrade_leaves_the_catalog_of_another_repository_alone(
    repo: tr.Repository, tmp_path: Path
) -> None:
    repo.catalog.catch_up()
    tr.init(tmp_path / "two")
    second = tr.open(tmp_path / "two", catalog=repo.catalog.url)
    with pytest.raises(tr.InvalidInputError, match="catalog of its own"):
        second.catalog.upgrade()


def test_a_word_is_no_catalog(full: Shell) -> None:
    full.environment = {"TENSORREPO_CATALOG": "nonsense"}
    assert "Expected sqlite:///" in full.fails(2, "catalog", "status")
    assert not list(full.folder.rglob("nonsense"))


def test_a_tilde_in_a_catalogs_url_is_the_home(full: Shell) -> None:
    full.environment = {"TENSORREPO_CATALOG": "~/mine.db"}
    full("catalog", "rebuild")
    assert (full.home / "mine.db").is_file()
