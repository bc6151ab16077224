"""Reading under the prefixes that are allowed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.formats.dataset.external import outside_read
from tensorrepo.formats.dataset.external.outside import Stat
from tensorrepo.formats.dataset.external.outside_read import AllowedOutside, OutsideFile
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tests.support.servers.object_stores import Bucket, s3_on_ours

DATA = bytes(range(256)) * 8


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_on_ours(tmp_path_factory.mktemp("s3")) as found:
        yield found


def _put(bucket: Bucket, key: str, data: bytes) -> Path:
    assert bucket.server is not None
    path = bucket.server.root / "bucket" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture(params=["file", "s3", "http", "fsspec"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, bucket: Bucket
) -> tuple[AllowedOutside, str, Path]:
    """Who may read, the URL of `DATA`, and where it lies on this disk."""
    kind = request.param
    if kind in ("s3", "http"):
        assert bucket.server is not None
        path = _put(bucket, f"{tmp_path.name}/a b/x=1.bin", DATA)
        root = "s3://bucket" if kind == "s3" else f"{bucket.server.url}/bucket"
        name = "a b" if kind == "s3" else "a%20b"
        outside = AllowedOutside([f"{root}/{tmp_path.name}/"], environment=bucket.environment)
        return outside, f"{root}/{tmp_path.name}/{name}/x=1.bin", path
    path = tmp_path / "a b" / "x=1.bin"
    path.parent.mkdir()
    path.write_bytes(DATA)
    if kind == "file":
        return AllowedOutside([tmp_path], environment={}), str(path), path
    fsspec: Any = pytest.importorskip("fsspec")
    from fsspec.implementations.dirfs import DirFileSystem

    class Elsewhere(DirFileSystem):  # type: ignore[misc]  # fsspec has no types
        protocol = "elsewhere"

        def __init__(self, **options: Any) -> None:
            super().__init__("/", fsspec.filesystem("file"), **options)

    fsspec.register_implementation("elsewhere", Elsewhere, clobber=True)
    url = f"elsewhere:/{path}"
    return AllowedOutside([f"elsewhere:/{tmp_path}"], environment={}), url, path


def test_ranges_are_read_exactly(place: tuple[AllowedOutside, str, Path]) -> None:
    outside, url, _ = place
    version = outside.stat(url)
    assert version.size == len(DATA)
    assert version.etag
    for start, stop in [(0, 5), (7, 300), (len(DATA) - 1, len(DATA)), (9, 9)]:
        assert outside.read(url, start, stop, version) == DATA[start:stop]


def test_a_handle_can_be_pickled_and_holds_no_foreign_variables(
    place: tuple[AllowedOutside, str, Path],
) -> None:
    outside, url, _ = place
    dumped = pickle.dumps(outside)
    assert b"HOME_OF_SECRETS" not in dumped
    assert pickle.loads(dumped).read(url, 1, 4) == DATA[1:4]


@pytest.mark.parametrize(
    "changed", [DATA[::-1], DATA + b"more", DATA[:-1]], ids=["content", "longer", "shorter"]
)
def test_another_version_than_the_one_asked_for_is_refused(
    place: tuple[AllowedOutside, str, Path], changed: bytes
) -> None:
    outside, url, path = place
    version = outside.stat(url)
    path.write_bytes(changed)
    os.utime(path, ns=(1, 10**18))
    with pytest.raises(CorruptError, match=r"expected .* found"):
        outside.read(url, 0, 5, version)


def test_a_range_behind_the_end_is_refused(place: tuple[AllowedOutside, str, Path]) -> None:
    outside, url, _ = place
    for start, stop in [(len(DATA) - 2, len(DATA) + 1), (len(DATA) + 5, len(DATA) + 9)]:
        with pytest.raises((CorruptError, StorageError)):
            outside.read(url, start, stop)


def test_what_is_gone_is_not_found(place: tuple[AllowedOutside, str, Path]) -> None:
    outside, url, path = place
    path.unlink()
    with pytest.raises(NotFoundError):
        outside.stat(url)
    with pytest.raises(NotFoundError):
        outside.read(url, 0, 1)


def test_nothing_is_asked_of_a_store_that_is_not_allowed(bucket: Bucket) -> None:
    assert bucket.server is not None
    _put(bucket, "private/x", b"x")
    outside = AllowedOutside(["s3://bucket/public"], environment=bucket.environment)
    before = len(bucket.server.requests)
    with pytest.raises(PermissionDenied, match="s3://bucket/private/"):
        outside.read("s3://bucket/private/x", 0, 1)
    assert len(bucket.server.requests) == before


def test_a_link_that_leads_out_of_the_prefix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    inside = tmp_path / "allowed"
    inside.mkdir()
    (inside / "file").symlink_to(tmp_path / "secret")
    (inside / "folder").symlink_to(tmp_path)
    outside = AllowedOutside([inside], environment={})
    for name in ("file", "folder/secret"):
        with pytest.raises(PermissionDenied, match="link"):
            outside.read(str(inside / name), 0, 1)


def test_links_within_the_prefix_and_a_prefix_that_is_a_link_are_followed(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "x").write_bytes(b"abc")
    (real / "y").symlink_to("x")
    (tmp_path / "alias").symlink_to(real)
    outside = AllowedOutside([tmp_path / "alias"], environment={})
    assert outside.read(str(tmp_path / "alias" / "y"), 0, 3) == b"abc"


def test_only_ordinary_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    outside = AllowedOutside([tmp_path], environment={})
    for url in (tmp_path / "pipe", tmp_path):
        with pytest.raises(StorageError):
            outside.stat(str(url))


def test_a_file_that_changes_while_it_is_open_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(DATA)
    outside = AllowedOutside([path], environment={})
    version = outside.stat(str(path))
    os.truncate(path, 10)
    with pytest.raises(CorruptError, match="expected 2048 bytes, found 10"):
        outside.read(str(path), 0, 2000, version)


def test_options_that_a_place_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError):
        AllowedOutside({str(tmp_path): {"endpoint": "x"}}, environment={})


def test_credentials_reach_neither_errors_nor_texts(bucket: Bucket) -> None:
    secret = bucket.environment["AWS_SECRET_ACCESS_KEY"]
    outside = AllowedOutside(
        {"s3://bucket/raw": {"session_token": "token-of-mine"}}, environment=bucket.environment
    )
    assert bucket.server is not None
    bucket.server.fault = lambda _method, _path: "403 before"
    try:
        with pytest.raises(PermissionDenied) as caught:
            outside.stat("s3://bucket/raw/x")
    finally:
        bucket.server.fault = lambda _method, _path: None
    for text in (str(caught.value), repr(outside)):
        assert secret not in text
        assert "token-of-mine" not in text


# ------------------------------------------------------------------------------ as a file


def _file(tmp_path: Path, **options: Any) -> OutsideFile:
    (tmp_path / "x").write_bytes(DATA)
    return OutsideFile(AllowedOutside([tmp_path], environment={}), str(tmp_path / "x"), **options)


def test_it_reads_like_a_file(tmp_path: Path) -> None:
    file = _file(tmp_path)
    assert (file.read(3), file.tell(), file.size()) == (DATA[:3], 3, len(DATA))
    assert file.seek(-2, os.SEEK_END) == len(DATA) - 2
    assert file.read() == DATA[-2:]
    assert file.read(5) == b""
    file.seek(10)
    assert file.readinto(buffer := bytearray(4)) == 4
    assert buffer == DATA[10:14]


def test_a_read_larger_than_allowed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside_read, "MOST_READ_BYTES", 100)
    file = _file(tmp_path)
    with pytest.raises(CorruptError, match="lies"):
        file.read(101)


def test_a_file_that_is_another_version_is_refused(tmp_path: Path) -> None:
    file = _file(tmp_path, version=Stat(len(DATA), "mtime-1"))
    with pytest.raises(CorruptError, match="mtime-1"):
        file.read(3)
