"""What may be seen of a catalog is what it would hold if nothing else were there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.catalog.visibility import Visible, visible_to
from tensorrepo.query.sql.catalog_tables import CatalogTable
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.history.commits import walk
from tests.support.servers.catalogs import DATABASES, catalog_at, catalog_url

OF_THE_LOG = {"cursor", "log_record", "ref_update"}
Rows = dict[str, list[tuple[Any, ...]]]


def _add(repo: tr.Repository, branch: str, mark: int) -> None:
    """A dataset, a model made of it, a view, a run and a registered version, all of one mark."""
    with repo.transaction(branch, message=f"data {mark}") as tx:
        tx.create_dataset(f"rows{mark}", {"x": np.arange(mark, mark + 5)})
    with repo.transaction(branch, message=f"model {mark}") as tx:
        weights = {f"layer{mark}.weight": np.full((64, 64), mark, np.float32)}
        tx.save_model(
            f"net{mark}",
            weights,
            metrics={"accuracy": mark / 10},
            derived_from=f"{branch}:datasets/rows{mark}",
        )
    with repo.transaction(branch, message=f"view {mark}") as tx:
        tx.create_view(f"few{mark}", f"SELECT row_id FROM rows{mark} WHERE x > {mark + 2}")
    with repo.run(f"fit{mark}", params={"rate": mark}) as run:
        run.log_metrics({"loss": 1.0 / mark}, step=1)
    repo.registry.register(f"net{mark}", f"{branch}:models/net{mark}")


@pytest.fixture(scope="module")
def before_and_after() -> tuple[tr.Repository, Rows, frozenset[str]]:
    """A repository with a branch that came later, and what a catalog held before that."""
    repo = tr.init(f"memory://visible-{uuid4()}", author="Ada <ada@example.org>")
    _add(repo, "main", 1)
    _add(repo, "main", 2)
    core = repo.context.core
    refs = frozenset(core.log.refresh().state.refs)
    with catalog_at("sqlite://") as fresh:
        catch_up(core, fresh)
        rows = {name: _seen(fresh, None, name) for name in tables.SHOWN}
    # The catalog has commits too that the log retains and no ref leads to.
    reached = {digest for digest, _ in walk(core.objects, core.log.refresh().state.refs.values())}
    for table in ("commit", "commit_parent", "entry_change"):
        rows[table] = [row for row in rows[table] if row[0] in reached]
    repo.create_branch("secret")
    _add(repo, "secret", 3)
    return repo, rows, refs


@pytest.fixture(scope="module", params=DATABASES)
def catalog(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    before_and_after: tuple[tr.Repository, Rows, frozenset[str]],
) -> Iterator[CatalogDatabase]:
    """A catalog of all of it, which these tests only read."""
    folder = tmp_path_factory.mktemp("catalog")
    with catalog_url(request.param, folder) as url, catalog_at(url) as made:
        catch_up(before_and_after[0].context.core, made)
        yield made


@pytest.fixture
def visible(
    catalog: CatalogDatabase, before_and_after: tuple[tr.Repository, Rows, frozenset[str]]
) -> Visible:
    refs = before_and_after[2]
    with catalog.reading() as connection:
        return visible_to(connection, refs.__contains__)


def _seen(catalog: CatalogDatabase, visible: Visible | None, name: str) -> list[tuple[Any, ...]]:
    table = CatalogTable(tables.SHOWN[name], catalog.reading, Scanned(), visible=visible)
    found: pa.Table = table.reader(table.schema.names, None).read_all()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


@pytest.mark.together
@pytest.mark.parametrize("name", sorted({*tables.SHOWN} - OF_THE_LOG))
def test_a_table_has_the_rows_that_it_had_before_the_branch_came(
    name: str,
    catalog: CatalogDatabase,
    visible: Visible,
    before_and_after: tuple[tr.Repository, Rows, frozenset[str]],
) -> None:
    assert _seen(catalog, visible, name) == before_and_after[1][name]


@pytest.mark.parametrize("name", sorted(OF_THE_LOG - {"ref_update"}))
def test_tables_of_the_log_have_no_rows(
    name: str, catalog: CatalogDatabase, visible: Visible
) -> None:
    assert _seen(catalog, visible, name) == []


def test_moves_of_refs_are_those_of_refs_that_may_be_read(
    catalog: CatalogDatabase, visible: Visible
) -> None:
    refs = {row[2] for row in _seen(catalog, visible, "ref_update")}
    assert refs <= visible.refs
    assert "heads/main" in refs


def test_who_may_read_nothing_sees_nothing(catalog: CatalogDatabase) -> None:
    with catalog.reading() as connection:
        nothing = visible_to(connection, lambda _: False)
    assert {name for name in tables.SHOWN if _seen(catalog, nothing, name)} == set()


def test_every_table_is_filtered_by_columns_that_it_has(visible: Visible) -> None:
    unknown = [
        (name, column)
        for name, table in tables.SHOWN.items()
        for column in visible.columns(name)
        if column not in table.c
    ]
    assert unknown == []
