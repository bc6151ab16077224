"""Files that are made of tensors: what was stored is compared with the file before it counts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from tensorrepo.formats.model.write.byte_exact import store_original
from tensorrepo.formats.model.write.model_source import FileStretch, OriginalFile
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.objects import MemoryObjects

HEAD, TENSOR, END = b"head", bytes(range(200)) * 50, b"and the end"
WHOLE = HEAD + TENSOR + END
SHA256 = hashlib.sha256(WHOLE).digest()
CHECKSUM = xxh3_128_digest(WHOLE)


@pytest.fixture
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def _original(
    folder: Path, data: bytes, sha256: bytes | None, checksum: bytes | None = None
) -> OriginalFile:
    path = folder / "net.bin"
    path.write_bytes(data)
    end = FileStretch(len(HEAD) + len(TENSOR), len(WHOLE))
    return OriginalFile("net.bin", "any", path, (HEAD, "w", end), sha256=sha256, checksum=checksum)


def _chunks(stored: bytes = TENSOR) -> Iterator[memoryview]:
    for at in range(0, len(stored), 999):
        yield memoryview(stored)[at : at + 999]


@pytest.mark.parametrize("sha256", [None, SHA256], ids=["compared", "proved before"])
def test_a_file_is_its_parts(tmp_path: Path, pool: Executor, sha256: bytes | None) -> None:
    file = _original(tmp_path, WHOLE, sha256)
    made = store_original(MemoryObjects(), file, lambda _: _chunks(), pool)
    assert (made.size_bytes, made.sha256) == (len(WHOLE), SHA256)
    assert made.parts == (len(HEAD), "w", len(END))


@pytest.mark.parametrize(
    ("data", "stored", "sha256"),
    [
        pytest.param(WHOLE, TENSOR[:-1] + b"x", None, id="another tensor"),
        pytest.param(WHOLE + b"more", TENSOR, None, id="a file that grew"),
        pytest.param(WHOLE[:50] + b"x" + WHOLE[51:], TENSOR, None, id="a file that changed"),
        pytest.param(WHOLE, TENSOR[:-1] + b"x", SHA256, id="another tensor, proved file"),
        pytest.param(WHOLE, TENSOR[:-1], SHA256, id="a shorter tensor, proved file"),
        pytest.param(WHOLE, TENSOR, bytes(32), id="another file was proved"),
        pytest.param(WHOLE[:-1] + b"x", TENSOR, SHA256, id="a proved file that changed"),
    ],
)
def test_what_differs_is_refused(
    tmp_path: Path,
    pool: Executor,
    data: bytes,
    stored: bytes,
    sha256: bytes | None,
) -> None:
    file = _original(tmp_path, data, sha256)
    with pytest.raises(InvalidInputError, match=r"net\.bin: what was stored differs"):
        store_original(MemoryObjects(), file, lambda _: _chunks(stored), pool)


def _is_not_read(_: str) -> Iterator[memoryview]:
    raise AssertionError("it lies in the file as it was stored")


def test_what_lies_in_a_proved_file_as_it_was_stored_is_not_made(
    tmp_path: Path, pool: Executor
) -> None:
    file = _original(tmp_path, WHOLE, SHA256, CHECKSUM)

    def lies_at(name: str, path: Path, start: int) -> int:
        return len(TENSOR) if (name, path, start) == ("w", file.path, len(HEAD)) else 0

    made = store_original(MemoryObjects(), file, _is_not_read, pool, lies_at)
    assert (made.size_bytes, made.sha256) == (len(WHOLE), SHA256)


@pytest.mark.parametrize(
    ("data", "stored", "lies"),
    [
        pytest.param(WHOLE, TENSOR[:-1] + b"x", 0, id="another tensor"),
        pytest.param(WHOLE, TENSOR[:-1], 0, id="a shorter tensor"),
        pytest.param(WHOLE[:50] + b"x" + WHOLE[51:], TENSOR, len(TENSOR), id="another file"),
        pytest.param(WHOLE + b"more", TENSOR, len(TENSOR), id="a file that grew"),
        pytest.param(WHOLE[:-1] + b"x", TENSOR, 0, id="a file whose end changed"),
    ],
)
def test_what_differs_from_a_file_that_was_proved_is_refused(
    tmp_path: Path, pool: Executor, data: bytes, stored: bytes, lies: int
) -> None:
    file = _original(tmp_path, data, SHA256, CHECKSUM)
    with pytest.raises(InvalidInputError, match=r"net\.bin: what was stored differs"):
        store_original(MemoryObjects(), file, lambda _: _chunks(stored), pool, lambda *_: lies)
