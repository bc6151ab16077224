"""Bytes of a blob come in pieces, and none of a damaged one is taken for whole."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects import blob_bytes, store
from tensorrepo.repo.objects.blob_bytes import open_blob, write_blob
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter


@pytest.fixture(autouse=True)
def _large_from_a_kib_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_bytes, "WHOLE_BYTES", 1024)
    monkeypatch.setattr(blob_bytes, "PIECE_BYTES", 300)
    monkeypatch.setattr(store, "REMEMBER_UPTO_BYTES", 1024)


def _stored(root: Path, content: bytes) -> tuple[ObjectStore, Digest]:
    writer = ObjectWriter(ObjectStore(LocalBackend(root)), ())
    link = writer.put(Kind.BLOB, content)
    writer.flush()
    return ObjectStore(LocalBackend(root)), link.digest


@pytest.mark.parametrize("content", [b"", b"small", bytes(5000), os.urandom(5000)])
def test_all_bytes_are_written_and_read(tmp_path: Path, content: bytes) -> None:
    objects, digest = _stored(tmp_path, content)
    file, told = BytesIO(), list[tuple[int, int]]()
    write_blob(objects, digest, file, "files/a", lambda done, total: told.append((done, total)))
    assert file.getvalue() == content
    assert b"".join(open_blob(objects, digest, "files/a", LimitedCache(1)).pieces()) == content
    if len(content) > 1024:
        assert len(told) > 10
        assert told[-1] == (len(content), len(content))


def test_a_damaged_one_is_refused_by_name(tmp_path: Path) -> None:
    objects, digest = _stored(tmp_path, os.urandom(5000))
    place = tmp_path / object_key(digest)
    place.chmod(0o600)
    data = bytearray(place.read_bytes())
    data[-1] ^= 1
    place.write_bytes(data)
    with pytest.raises(CorruptError, match="files/a is damaged in the store"):
        write_blob(objects, digest, BytesIO(), "files/a")
    with pytest.raises(CorruptError, match="files/a is damaged in the store"):
        next(open_blob(objects, digest, "files/a", LimitedCache(1)).pieces())
