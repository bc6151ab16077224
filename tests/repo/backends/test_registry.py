from __future__ import annotations

from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.cloud import CloudBackend
from tensorrepo.repo.backends.fsspec import FsspecBackend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.backends.remote import HttpBackend
from tensorrepo.repo.errors import Error, InvalidInputError, PermissionDenied, UnsupportedError

AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "a", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"}


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("some/folder", LocalBackend),
        ("/abs/folder", LocalBackend),
        ("file:///abs/folder", LocalBackend),
        ("FILE:///abs/folder", LocalBackend),
        ("memory://x", MemoryBackend),
        ("s3://bucket", CloudBackend),
        ("s3a://bucket/x/y", CloudBackend),
        ("gs://bucket/x", CloudBackend),
        ("gcs://bucket/x", CloudBackend),
        ("az://container/x", CloudBackend),
        ("abfs://container/x", CloudBackend),
        ("abfss://container@a.dfs.core.windows.net/x", CloudBackend),
        ("https://host/x", HttpBackend),
        ("http://host/x", HttpBackend),
        ("dir::file:///abs/folder", FsspecBackend),
        ("local:///abs/folder", FsspecBackend),
    ],
)
def test_a_url_opens_its_backend_without_asking_anybody(url: str, kind: type[object]) -> None:
    assert type(open_backend(url, environment=AZURE)) is kind


def test_a_file_url_and_a_path_are_one_place(tmp_path: Path) -> None:
    open_backend(f"{tmp_path}/a b", environment={}).create("log/1", (b"x",))
    assert open_backend(f"file://{tmp_path}/a%20b", environment={}).read("log/1") == b"x"


def test_a_memory_url_is_one_place_in_a_process() -> None:
    open_backend("memory://registry/a", environment={}).create("log/1", (b"x",))
    assert open_backend("memory://registry/a/", environment={}).read("log/1") == b"x"
    assert open_backend("memory://registry/b", environment={}).size("log/1") is None


@pytest.mark.parametrize(
    ("url", "expected", "says"),
    [
        ("", InvalidInputError, "expected a folder"),
        ("  ", InvalidInputError, "expected a folder"),
        ("a\0b", InvalidInputError, "expected a folder"),
        ("s3:/bucket", InvalidInputError, "two slashes"),
        ("https:host", InvalidInputError, "two slashes"),
        ("file://folder/x", InvalidInputError, "file:///folder/x"),
        ("s3://", InvalidInputError, "names no bucket"),
        ("gopher://host/x", UnsupportedError, "knows the scheme 'gopher'"),
        ("sftp://me:password1@host/x", InvalidInputError, "storage options"),
        ("az://container", InvalidInputError, "Account must be specified"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_do(url: str, expected: type[Error], says: str) -> None:
    with pytest.raises(expected) as caught:
        open_backend(url, environment={})
    assert says in str(caught.value)
    assert "password1" not in str(caught.value)


def test_a_file_is_no_repository(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidInputError, match="is a file"):
        open_backend(f"{tmp_path}/file", environment={})


@pytest.mark.parametrize("url", ["folder", "memory://x"])
def test_options_that_a_store_does_not_know_are_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="unknown storage options key"):
        open_backend(url, {"key": "value"}, environment={})


@pytest.mark.parametrize("url", ["folder", "dir::file:///folder"])
def test_force_trusts_a_file_system_that_is_not_known(url: str) -> None:
    forced = open_backend(url, {"force": "true"}, environment={})
    assert forced.guarantee is Guarantee.ATOMIC


def test_an_fsspec_file_system_shows_no_password() -> None:
    backend = FsspecBackend("memory://quiet", {"password": "hunter2-hunter2"})
    shown = [repr(backend), backend.url]
    with pytest.raises(PermissionDenied) as caught, backend._asking("read", "log/1"):
        raise PermissionError("login hunter2-hunter2 failed")
    shown += [str(caught.value), str(caught.value.__cause__)]
    assert [text for text in shown if "hunter2" in text] == []
