"""A catalog is opened where the user says, or refused in our words."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    PermissionDenied,
    StorageError,
)


@pytest.mark.parametrize(
    "url", ["mysql://db/x", "nonsense://x", "://", "sqlite:/x.db", " ", "nonsense"]
)
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="Expected sqlite:///"):
        connect(url)


def test_a_path_is_that_of_a_file_whose_folder_is_made(tmp_path: Path) -> None:
    catalog = CatalogDatabase(connect(str(tmp_path / "new" / "catalog.db")))
    with catalog.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE t (a)")
    catalog.dispose()
    assert (tmp_path / "new" / "catalog.db").stat().st_size > 0


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PermissionDenied, match="TENSORREPO_CATALOG"):
        connect(str(tmp_path / "file" / "catalog.db"))


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_bytes(b"no database" * 1000)
    catalog = CatalogDatabase(connect(str(tmp_path / "x.db")))
    with pytest.raises(CorruptError, match="only a cache"), catalog.reading():
        pass
    catalog.dispose()


def test_a_file_with_damaged_names_is_told(tmp_path: Path) -> None:
    catalog = CatalogDatabase(connect(str(tmp_path / "x.db")))
    with pytest.raises(CorruptError, match="catalog rebuild"), catalog.reading():
        b"\xff".decode()  # as the driver does with what SQLite gives it
    catalog.dispose()


def test_a_wrong_url_is_told_without_its_password() -> None:
    with pytest.raises(InvalidInputError) as caught:
        connect("postgresql://ada:sec@ret@127.0.0.1:x/y")
    assert "ret" not in str(caught.value)


def test_a_password_in_the_query_of_a_url_is_not_shown() -> None:
    catalog = CatalogDatabase(connect("postgresql://ada@127.0.0.1:1/x?password=secret"))
    with pytest.raises(StorageError) as caught, catalog.reading():
        pass
    assert "secret" not in catalog.url + str(caught.value)
    assert "127.0.0.1:1/x" in catalog.url


def test_a_server_that_does_not_answer_is_told_without_its_password() -> None:
    catalog = CatalogDatabase(connect("postgresql://ada:secret@127.0.0.1:1/x"))
    with pytest.raises(StorageError) as caught, catalog.reading():
        pass
    assert "secret" not in str(caught.value)
    assert "127.0.0.1" in str(caught.value)
