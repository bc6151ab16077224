"""`add`, `tr.read` and `--sync` take URLs: of web servers without ranges, files and folders of S3.

Part of F35 and F37. What a URL holds of secrets is used, and found nowhere afterwards.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

import tensorrepo as tr
from tensorrepo.formats.exchange import remote
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from tests.support.processes.shell import Shell, write_pictures, write_points
from tests.support.servers.object_stores import Bucket
from tests.support.servers.web import WebServer, web_server

SECRET = "sig-that-nobody-may-see"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    (tmp_path / "www").mkdir()
    (tmp_path / "www/people.csv").write_text("id,name\n1,Ada\n2,Bob\n")
    with web_server(tmp_path / "www") as served:
        yield served


@pytest.fixture
def bucket(moto: Bucket, shell: Shell) -> Any:
    """The bucket, and a shell that may read it."""
    shell.environment = dict(moto.environment)
    variables = moto.environment
    return S3Store(
        "bucket",
        endpoint=variables["AWS_ENDPOINT_URL"],
        access_key_id=variables["AWS_ACCESS_KEY_ID"],
        secret_access_key=variables["AWS_SECRET_ACCESS_KEY"],
        region="us-east-1",
        client_options={"allow_http": True},
    )


def put_folder(store: Any, folder: Path, prefix: str) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            obstore.put(store, f"{prefix}/{path.relative_to(folder)}", path.read_bytes())


def spools(home: Path) -> list[Path]:
    return list((home / "cache/tensorrepo/fetched").glob("*"))


def test_a_file_of_a_web_server_is_added_and_synced(shell: Shell, web: WebServer) -> None:
    web.login = "ada:pass-that-nobody-may-see"
    url = f"{web.with_login(web.login)}/people.csv?token={SECRET}"
    said = shell("add", url, "--dataset", "people")
    shell("commit", "-m", "People")
    (web.root / "people.csv").write_text("id,name\n1,Ada\n2,Bert\n3,Eve\n")
    said += shell("add", url, "--dataset", "people", "--sync")
    shell("commit", "-m", "More")
    assert [row["name"] for row in shell.repository().dataset("people")] == ["Ada", "Bert", "Eve"]
    said += shell("lineage", "people")
    said += shell("status", "--json")
    assert f"{web.url}/people.csv" in said
    assert SECRET not in said
    assert all(SECRET in path for path in web.requests)
    kept = [path for root in (shell.folder, shell.home) for path in root.rglob("*")]
    for path in kept:
        held = path.read_bytes() if path.is_file() else b""
        assert SECRET.encode() not in held
        assert b"pass-that-nobody-may-see" not in held
    assert not spools(shell.home)


def test_what_a_web_server_refuses_or_cuts_is_told_without_secrets(
    shell: Shell, web: WebServer
) -> None:
    def told(code: int, name: str) -> str:
        text = shell.fails(code, "add", f"{web.url}/{name}?t={SECRET}", "--dataset", "people")
        assert SECRET not in text
        assert f"{web.url}/{name}" in text
        return text

    assert "no such file" in told(3, "none.csv")
    web.endless = {"people.csv"}
    assert "how long" in told(7, "people.csv")
    web.endless = set()
    (web.root / "people.csv").write_bytes(b"\x80pickle")
    assert "people.csv" in told(2, "people.csv")
    web.login = "ada:x"
    assert "refuses" in told(6, "people.csv")
    assert not shell.json("status")["staged"]
    assert not spools(shell.home)


def test_python_reads_urls_and_keeps_the_copy_while_rows_are_read(
    web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    reading = tr.read(f"{web.url}/people.csv")
    assert reading.origin.path == f"{web.url}/people.csv"
    assert len(spools(tmp_path)) == 1
    repository = tr.init("memory://read-a-url", author="Ada <ada@example.org>")
    with repository.transaction(message="People") as tx:
        tx.create_dataset("people", columns=reading.schema).append(reading)
    assert len(repository.dataset("people")) == 2
    del reading
    gc.collect()
    assert not spools(tmp_path)
    assert tr.read(f"file://{web.root}/people.csv").origin.format == "csv"


def test_a_model_and_a_plain_file_come_from_a_url(shell: Shell, web: WebServer) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.arange(6, dtype="f4")}, web.root / "net.safetensors")
    shell("add", f"{web.url}/net.safetensors", "--model", "net")
    shell("add", f"{web.url}/people.csv", "--file", "people.csv")
    shell("commit", "-m", "Both")
    assert shell.repository().model("net").load()["w"].tolist() == [0, 1, 2, 3, 4, 5]
    assert "files/people.csv" in shell("ls")
    assert "say what" in shell.fails(2, "add", f"{web.url}/people.csv")


def test_a_file_and_a_folder_of_pictures_of_a_bucket_are_added(
    shell: Shell, bucket: Any, tmp_path: Path
) -> None:
    write_points(tmp_path / "points.npz", 30)
    write_pictures(tmp_path / "photos", ("cat", "dög"), each=3)
    put_folder(bucket, tmp_path / "photos", "mine/photos")
    obstore.put(bucket, "mine/photos/cat/", b"")  # as consoles make folders
    obstore.put(bucket, "mine/photos2/x.txt", b"of another folder")
    obstore.put(bucket, "mine/points.npz", (tmp_path / "points.npz").read_bytes())
    shell("add", "s3://bucket/mine/points.npz", "--dataset", "dots")
    shell("add", "s3://bucket/mine/photos", "--dataset", "photos")
    shell("commit", "-m", "Both")
    shell("add", str(tmp_path / "photos"), "--dataset", "here")
    shell("commit", "-m", "The same from here")
    repository = shell.repository()
    assert len(repository.dataset("dots")) == 30
    there, here = repository.dataset("photos"), repository.dataset("here")
    assert [row["file"] for row in there] == [row["file"] for row in here]
    assert [row["image"] for row in there] == [row["image"] for row in here]
    assert "unchanged" in shell("add", "s3://bucket/mine/photos/", "--dataset", "photos", "--sync")
    assert "nothing below" in shell.fails(3, "add", "s3://bucket/none/", "--dataset", "none")
    assert not spools(shell.home)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The objects of stores whose bytes were asked for, by the end of their names."""
    asked: list[str] = []
    whole = remote.AllowedOutside.read

    def read(outside: Any, url: str, *given: Any) -> memoryview:
        asked.append("/".join(url.rsplit("/", 2)[1:]))
        return whole(outside, url, *given)

    monkeypatch.setattr(remote.AllowedOutside, "read", read)
    return asked


def test_a_sync_of_a_bucket_reads_what_changed(
    shell: Shell, bucket: Any, tmp_path: Path, reads: list[str]
) -> None:
    write_pictures(tmp_path / "photos", ("cat", "dog"), each=3)
    put_folder(bucket, tmp_path / "photos", "nightly/photos")
    url = "s3://bucket/nightly/photos"
    shell("add", url, "--dataset", "photos")
    shell("commit", "-m", "Photos")
    assert len(reads) == 6
    before = shell.repository().dataset("photos").row_ids(slice(None))
    reads.clear()
    assert "unchanged" in shell("add", url, "--dataset", "photos", "--sync")
    assert reads == []
    obstore.copy(bucket, "nightly/photos/cat/00.png", "nightly/photos/dog/09.png")
    obstore.copy(bucket, "nightly/photos/cat/01.png", "nightly/photos/dog/00.png")
    obstore.delete(bucket, "nightly/photos/dog/01.png")
    for mode in ("--mirror", "--sync"):
        added = shell.json("add", url, "--dataset", "photos", mode)
        assert (added["rows"], added["updated"], added["deleted"]) == (1, 1, 1)
        assert sorted(reads) == ["dog/00.png", "dog/09.png"]
        shell("restore", "--staged", "photos") if mode == "--mirror" else None
        reads.clear()
    shell("commit", "-m", "Tonight")
    photos = shell.repository().dataset("photos")
    assert photos.row_ids(slice(None)) == [*before[:4], *before[5:], photos.row_ids([5])[0]]
    for row in photos:
        key = f"nightly/photos/{row['file']}"
        assert row["image"] == bytes(obstore.get(bucket, key).bytes())
    assert "unchanged" in shell("add", url, "--dataset", "photos", "--sync")
    assert reads == []


@pytest.mark.parametrize("suffix", ["wav", "txt"])
def test_a_sync_of_sounds_or_texts_reads_what_changed(
    shell: Shell, bucket: Any, reads: list[str], suffix: str
) -> None:
    place = f"kept/{suffix}"
    for at in range(4):
        obstore.put(bucket, f"{place}/{'ab'[at % 2]}/{at}.{suffix}", f"R\r\n{at}".encode())
    url = f"s3://bucket/{place}"
    shell("add", url, "--dataset", "kept")
    shell("commit", "-m", "Kept")
    reads.clear()
    obstore.put(bucket, f"{place}/a/0.{suffix}", b"R\r\n7")
    obstore.put(bucket, f"{place}/a/8.{suffix}", "é\n".encode())
    added = shell.json("add", url, "--dataset", "kept", "--sync")
    assert (added["rows"], added["updated"], added["deleted"]) == (1, 1, 0)
    assert sorted(reads) == [f"a/0.{suffix}", f"a/8.{suffix}"]
    shell("commit", "-m", "Tonight")
    column = "text" if suffix == "txt" else "audio"
    for row in shell.repository().dataset("kept"):
        found = row[column].encode() if suffix == "txt" else row[column]
        assert found == bytes(obstore.get(bucket, f"{place}/{row['file']}").bytes())


def test_texts_of_another_encoding_are_read_from_the_bucket(
    shell: Shell, bucket: Any, reads: list[str]
) -> None:
    """Their rows hold them as UTF-8, which may be as long and is not what the file is."""
    words = {"a": "文a".encode("utf-16-le"), "b": "b文".encode("utf-16-le")}  # 4 bytes, both ways
    for name, data in words.items():
        obstore.put(bucket, f"wide/{name}.txt", data)
    shell.json("add", "s3://bucket/wide", "--dataset", "wide", "-o", "encoding=utf-16-le")
    shell("commit", "-m", "Wide")
    reads.clear()
    obstore.put(bucket, "wide/c.txt", "cc".encode("utf-16-le"))
    options = ("--sync", "-o", "encoding=utf-16-le")
    assert shell.json("add", "s3://bucket/wide", "--dataset", "wide", *options)["rows"] == 1
    assert sorted(reads) == ["wide/a.txt", "wide/b.txt", "wide/c.txt"]


def test_a_file_of_a_bucket_is_read_again_only_if_it_or_the_way_of_reading_changed(
    shell: Shell, bucket: Any, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in shell.environment.items():
        monkeypatch.setenv(name, value)
    obstore.put(bucket, "dumps/people.csv", b"id,name\n1,Ada\n2,Bob\n")
    url = "s3://bucket/dumps/people.csv"
    repository = shell.repository()
    with repository.transaction(message="People") as tx:
        tx.create_dataset("people", tr.read(url))
    reads.clear()
    with repository.transaction(message="Nothing") as tx:
        draft = tx.dataset("people").sync(url)
        assert draft.synced is not None
        assert (draft.synced.changed, draft.synced.report.rows) == (False, 2)
    assert "unchanged" in shell("add", url, "--dataset", "people", "--sync")
    assert reads == []
    shell("add", url, "--dataset", "people", "--sync", "-o", "required=name")
    assert reads == ["dumps/people.csv"]
    obstore.put(bucket, "dumps/people.csv", b"id,name\n1,Ada\n2,Bea\n")
    with repository.transaction(message="Tonight") as tx:
        tx.dataset("people").sync(url)
    assert [row["name"] for row in repository.dataset("people")] == ["Ada", "Bea"]


def test_a_file_of_a_web_server_that_did_not_change_is_not_asked_for(
    shell: Shell, web: WebServer
) -> None:
    path = web.root / "people.csv"
    os.utime(path, (1e9, 1e9))
    url = f"{web.url}/people.csv"
    shell("add", url, "--dataset", "people")
    shell("commit", "-m", "People")
    assert "unchanged" in shell("add", url, "--dataset", "people", "--sync")
    assert web.requests == ["/people.csv"]
    path.write_text("id,name\n1,Ada\n2,Bea\n")  # just now, so that it may change once more unseen
    shell("add", url, "--dataset", "people", "--sync")
    shell("commit", "-m", "Tonight")
    shell("add", url, "--dataset", "people", "--sync")
    assert web.requests == ["/people.csv"] * 3


def test_a_bucket_that_changes_meanwhile_is_noticed(
    bucket: Any, tmp_path: Path, moto: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(bucket, "moving/a.csv", b"a\n" + b"1\n" * 50)
    monkeypatch.setattr(remote, "PART_BYTES", 10)
    monkeypatch.setattr(remote, "THREADS", 1)

    def change(_: int) -> None:
        obstore.put(bucket, "moving/a.csv", b"a\n" + b"2\n" * 50)

    with pytest.raises(CorruptError, match=r"moving/a\.csv changed while it was read"):
        remote.fetch("s3://bucket/moving", tmp_path, environment=moto.environment, progress=change)
    assert not list(tmp_path.glob("*/*.csv"))


def test_names_that_a_disk_cannot_have_are_refused(
    bucket: Any, tmp_path: Path, moto: Bucket
) -> None:
    def fetched(prefix: str) -> remote.RemoteSource:
        return remote.fetch(f"s3://bucket/{prefix}", tmp_path, environment=moto.environment)

    obstore.put(bucket, "clash/a", b"a")
    obstore.put(bucket, "clash/a/b", b"b")
    with pytest.raises(InvalidInputError, match="a file and a folder"):
        fetched("clash")
    obstore.put(bucket, f"long/{'n' * 300}", b"a")
    with pytest.raises(InvalidInputError, match="too long"):
        fetched("long")


def test_an_interrupt_and_a_disk_too_small_leave_nothing(
    bucket: Any, tmp_path: Path, moto: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore.put(bucket, "large.csv", b"a\n" + b"1\n" * 50)
    told: list[int] = []

    def interrupt(done: int) -> None:
        told.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        remote.fetch(
            "s3://bucket/large.csv", tmp_path, environment=moto.environment, progress=interrupt
        )
    assert told == [102]
    monkeypatch.setattr(remote.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(StorageError, match="has room for 0"):
        remote.fetch("s3://bucket/large.csv", tmp_path, environment=moto.environment)
    gc.collect()
    assert not list(tmp_path.glob("*/*.csv"))


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "left"
    left.mkdir()
    (left / ".lock").touch()
    (left / "half.csv").write_text("a")
    held = remote.DownloadFolder(tmp_path)
    remote.DownloadFolder(tmp_path)
    assert not left.exists()
    assert held.path.is_dir()


def test_a_folder_of_a_web_server_is_not_listed(web: WebServer) -> None:
    with pytest.raises(NotFoundError):
        tr.read(f"{web.url}/none/")


def test_a_repository_on_a_server_without_ranges_is_read_whole(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "Points")
    with web_server(shell.folder / ".tensorrepo/store") as served:
        points = tr.open(served.url).dataset("points")
        assert points["label"][:].shape == (20,)
        assert points[3]["point"].shape == (2,)


def test_a_file_of_a_server_without_ranges_comes_once_and_not_at_all_if_it_is_large(
    web: WebServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (web.root / "some.key").write_bytes(bytes(range(100)))
    backend = open_backend(web.url, environment={})
    assert bytes(backend.read_range("some.key", 10, 13)) == b"\x0a\x0b\x0c"
    filled = bytearray(2)
    backend.read_into("some.key", 98, memoryview(filled))
    assert filled == b"bc"
    assert web.requests == ["/some.key"] * 2  # with a range, then without
    with pytest.raises(StorageError, match="cut short"):
        backend.read_range("some.key", 90, 110)
    monkeypatch.setattr("tensorrepo.repo.backends.remote.WHOLE_FILE_BYTES", 10)
    with pytest.raises(UnsupportedError, match="whole files only"):
        open_backend(web.url, environment={}).read_range("some.key", 0, 1)
