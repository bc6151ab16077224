"""Files on their way that are not synced: what a power cut or a defect made of them is told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import httpx
import pytest

from tensorrepo.api.huggingface import proved_files
from tensorrepo.api.huggingface.proved_files import ProofHasher, checksum_of, find_proved, keep
from tests.support.clients.lfs_uploads import upload_files
from tests.support.servers.service import RunningService

DATA = b"some bytes!" * 1000


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A file that came, and was proved."""
    hasher, came = ProofHasher(), tmp_path / "came"
    hasher.update(DATA)
    came.write_bytes(DATA)
    target = tmp_path / hasher.sha256
    keep(came, target, hasher.checksum)
    return target


@pytest.fixture(params=["proved before a restart", "of an earlier version", "without a note"])
def doubtful(kept: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of which nothing says that all of it is on the disk."""
    note = kept.with_name(f"{kept.name}.xxh3")
    if request.param == "without a note":
        note.unlink()
    elif request.param == "of an earlier version":
        note.write_bytes(note.read_bytes()[:16])
    else:
        monkeypatch.setattr(proved_files, "_start", lambda: b"another")
    return kept


def test_a_doubtful_file_is_proved_again_and_noted(doubtful: Path) -> None:
    checksum = ProofHasher()
    checksum.update(DATA)
    assert find_proved(doubtful) == doubtful
    assert checksum_of(doubtful) == checksum.checksum
    doubtful.write_bytes(DATA[::-1])  # and is not read a second time
    assert find_proved(doubtful) == doubtful


def test_a_doubtful_file_that_is_another_is_forgotten(doubtful: Path) -> None:
    doubtful.write_bytes(bytes(len(DATA)))
    assert find_proved(doubtful) is None
    assert not doubtful.exists()


def test_where_no_restart_is_told_a_file_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(proved_files, "_start", lambda: b"")
    monkeypatch.setattr("os.fsync", synced.append)
    (tmp_path / "came").write_bytes(DATA)
    target = tmp_path / hashlib.sha256(DATA).hexdigest()
    keep(tmp_path / "came", target, bytes(16))
    assert (len(synced), find_proved(target)) == (1, target)


def test_what_the_disk_damaged_is_not_committed_and_comes_again(service: RunningService) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    asked = {"operation": "upload", "objects": [{"oid": digest, "size": len(DATA)}]}
    with service.client() as client:
        upload_files(client, "ns/net", {"notes.txt": b"words"})
        (told,) = client.post("/ns/net.git/info/lfs/objects/batch", json=asked).json()["objects"]
        client.put(told["actions"]["upload"]["href"], content=DATA).raise_for_status()
        (came,) = service.service.spool.folder.glob(f"*/{digest}")
        came.write_bytes(DATA[::-1])
        with pytest.raises(httpx.HTTPStatusError) as refused:
            upload_files(client, "ns/net", {"notes.bin": DATA})
        assert "send it again" in refused.value.response.json()["error"]
        upload_files(client, "ns/net", {"notes.bin": DATA})
        assert client.get("/ns/net/resolve/main/notes.bin").content == DATA
