"""A catch-up takes in what happened, once, and refuses a past that is not the one it saw."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import select, update

from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.sync.catch_up import CatchUpProgress, CaughtUp, catch_up, differences, rebuild
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import InvalidInputError, RepositoryRewound, StorageError
from tests.support.builders.repositories import ADA, again, commit_files, new_repository, tip_of
from tests.support.reference import collector
from tests.support.servers.catalogs import fresh_rows, rows_of


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def repository() -> RepositoryCore:
    made = new_repository()
    for step in range(5):
        commit_files(made, {f"files/{step}": b"%d" % step}, message=f"step {step}")
    return made


def test_what_happened_is_taken_in_once(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    first = catch_up(repository, catalog)
    assert (first.start, first.generation, first.commits) == (0, 5, 5)
    assert catch_up(repository, catalog) == CaughtUp(5, 5)
    commit_files(repository, {"files/x": b"x"})
    assert catch_up(again(repository), catalog).commits == 1
    assert rows_of(catalog) == fresh_rows(repository)


def test_the_first_commit_changes_nothing_into_all_that_it_holds(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    catch_up(repository, catalog)
    rows = rows_of(catalog, "entry_change", "entry", "ref")
    assert [row[1] for row in sorted(rows["entry_change"], key=lambda row: row[1])] == [
        f"files/{step}" for step in range(5)
    ]
    assert [row[3] for row in rows["entry_change"]] == [None] * 5
    assert len(rows["entry"]) == 5
    assert rows["ref"] == [("heads/main", "heads", tip_of(repository))]


def test_messages_may_hold_what_the_databases_cannot(catalog: CatalogDatabase) -> None:
    hostile = 'x\'); DROP TABLE "commit"; -- \\ % :name {} é 𝄞'
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"}, message=hostile)
    catch_up(repository, catalog)
    assert rows_of(catalog, "commit")["commit"][0][3] == hostile


def test_what_a_collection_let_go_of_goes(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    refs.create_branch(repository, "side", tip_of(repository), actor=ADA)
    commit_files(repository, {"files/side": b"s"}, branch="side")
    catch_up(repository, catalog)
    refs.delete_ref(repository, "heads/side", actor=ADA)
    assert catch_up(repository, catalog).commits_gone == 0  # the reflog keeps it
    retained = set(repository.log.refresh().state.retained)
    collector.delete(repository, collector.condemn(repository, release=retained))
    assert catch_up(repository, catalog).commits_gone == 1
    assert rows_of(catalog) == fresh_rows(repository)


def test_a_catalog_of_another_repository_is_refused(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    catch_up(new_repository(), catalog)
    with pytest.raises(InvalidInputError, match="a catalog of its own"):
        catch_up(repository, catalog)


def test_a_past_that_is_another_is_refused_and_a_rebuild_accepts_it(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    catch_up(repository, catalog)
    with catalog.writing() as connection:
        connection.execute(update(tables.cursor).values(digest="0" * 64))
    with pytest.raises(RepositoryRewound, match="catalog rebuild"):
        catch_up(repository, catalog)
    rebuild(repository, catalog)
    assert rows_of(catalog) == fresh_rows(repository)


def test_a_repository_that_was_put_back_is_refused(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    backend = repository.backend
    assert isinstance(backend, MemoryBackend)
    kept = {stored.key: backend.read(stored.key) for stored in backend.list("")}
    commit_files(repository, {"files/new": b"n"})
    catch_up(repository, catalog)
    older = MemoryBackend()
    for key, data in kept.items():
        older.create(key, (data,))
    with pytest.raises(RepositoryRewound, match="record 6"):
        catch_up(again(replace(repository, backend=older)), catalog)


def test_rows_that_somebody_changed_are_found(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    catch_up(repository, catalog)
    assert list(differences(repository, catalog)) == []
    with catalog.writing() as connection:
        connection.execute(update(tables.ref).values(commit="0" * 64))
        connection.execute(tables.commit_parent.delete())
    found = {one.table: (one.extra, one.missing) for one in differences(repository, catalog)}
    assert found == {"ref": (1, 1), "commit_parent": (0, 4)}


def test_progress_is_told_and_never_goes_back(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    seen: list[CatchUpProgress] = []
    catch_up(repository, catalog, progress=seen.append)
    assert seen[-1].records == seen[-1].of_records == seen[-1].commits == 5
    assert [one.rows for one in seen] == sorted(one.rows for one in seen)


def test_a_catch_up_that_fails_leaves_what_was_there(
    repository: RepositoryCore, catalog: CatalogDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    catch_up(repository, catalog)
    before = rows_of(catalog)
    commit_files(repository, {"files/x": b"x"})
    with monkeypatch.context() as patch:
        patch.setattr("tensorrepo.query.sync.catch_up.move_refs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            catch_up(repository, catalog)
    assert rows_of(catalog) == before
    catch_up(repository, catalog)
    assert rows_of(catalog) == fresh_rows(repository)


def test_a_reader_sees_one_state_while_others_write(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    catch_up(repository, catalog)
    count = select(tables.commit.c.digest)
    with catalog.reading() as connection:
        assert len(connection.execute(count).all()) == 5
        commit_files(repository, {"files/x": b"x"})
        catch_up(repository, catalog)
        assert len(connection.execute(count).all()) == 5


def test_a_table_that_is_missing_is_told_with_the_command_that_helps(
    repository: RepositoryCore, catalog: CatalogDatabase
) -> None:
    with catalog.writing() as connection:
        tables.cursor.drop(connection)
    with pytest.raises(StorageError, match="catalog status"):
        catch_up(repository, catalog)
