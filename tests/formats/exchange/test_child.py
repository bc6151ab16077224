"""Importers' child processes: what they die of becomes an error that names the file."""

from __future__ import annotations

import fcntl
import gc
import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.formats.exchange import child, child_batches, child_main
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, StorageError
from tensorrepo.repo.fork_server import ForkServers
from tests.support.architecture.sources import ROOT
from tests.support.faults.forks import FORKS_AT_THE_SECOND_TRY

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="children are killed by descriptor")
TABLE = pa.table({"n": list(range(1000)), "s": [f"row {row}" for row in range(1000)]})


def parquet(path: Path, group: int = 100) -> Path:
    pq.write_table(TABLE, path, row_group_size=group)
    return path


def _signal(connection: child._Child, number: int) -> None:
    assert connection._process is not None
    signal.pidfd_send_signal(connection._process, number)


def rows(opened: Any) -> list[int]:
    return [row for batch in opened.batches() for row in batch.column("n").to_pylist()]


def test_files_are_read_in_any_order_and_as_often_as_asked(tmp_path: Path) -> None:
    files = [parquet(tmp_path / "a.parquet"), parquet(tmp_path / "b.parquet", 30)]
    opened = child.open_files("parquet", files)
    assert opened[files[1]].schema.equals(TABLE.schema)
    assert opened[files[1]].rows == 1000
    assert rows(opened[files[1]]) == rows(opened[files[0]]) == rows(opened[files[1]])


def test_a_child_that_is_killed_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet")
    connection = child._Child("parquet", [path], {})
    connection.schema(path)
    _signal(connection, signal.SIGKILL)
    with pytest.raises(InvalidInputError, match=r"a\.parquet: ended the process that read it"):
        list(connection.batches(0, path))


def test_a_child_that_does_not_answer_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a.parquet")
    connection = child._Child("parquet", [path], {})
    connection.schema(path)
    _signal(connection, signal.SIGSTOP)
    monkeypatch.setattr(child, "STALL_SECONDS", 0.05)
    with pytest.raises(InvalidInputError, match=r"a\.parquet: is not read in time"):
        list(connection.batches(0, path))


def test_a_file_that_needs_memory_beyond_the_limit_is_refused_as_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"n": [bytes(8 << 20)] * 8}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(child, "MEMORY_BYTES", 32 << 20)
    with pytest.raises(InvalidInputError, match=r"bomb\.parquet: not a readable Parquet file: "):
        list(child.open_files("parquet", [path])[path].batches())


def test_what_the_reader_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(InvalidInputError, match=r"a\.parquet: not a readable Parquet file"):
        child.open_files("parquet", [path])
    with pytest.raises(NotFoundError, match=r"gone\.parquet: no such file"):
        child.open_files("parquet", [tmp_path / "gone.parquet"])


def test_a_child_ends_with_the_last_that_refers_to_it(tmp_path: Path) -> None:
    connection = child._Child("parquet", [parquet(tmp_path / "a.parquet")], {})
    assert connection._process is not None
    process = os.dup(connection._process)
    ended = select.poll()
    ended.register(process, select.POLLIN)
    del connection
    gc.collect()
    assert ended.poll(60_000)
    os.close(process)


def test_nothing_is_left_of_a_process_that_imported(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet")
    program = (
        "import sys; from pathlib import Path; from tensorrepo.formats.exchange import child;"
        f"path = Path({str(path)!r}); opened = child.open_files('parquet', [path]);"
        "print(child._SERVERS.server().process.pid, flush=True)"
    )
    command = [sys.executable, "-W", "error", "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr == ""
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


def test_a_server_that_cannot_fork_says_so_and_forks_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parquet(tmp_path / "a.parquet")
    program = replace(
        child._SERVERS.program, code=FORKS_AT_THE_SECOND_TRY + child._SERVERS.program.code
    )
    monkeypatch.setattr(child, "_SERVERS", ForkServers(program))
    with pytest.raises(StorageError, match="no room for a process that reads files"):
        child.open_files("parquet", [path])
    assert child.open_files("parquet", [path])[path].rows == TABLE.num_rows
    child._SERVERS.server().close()


def test_a_reader_that_spins_ends_with_its_importer(tmp_path: Path) -> None:
    program = (
        "import time; from pathlib import Path; from tensorrepo.formats.exchange import child;"
        f"c = child._Child('parquet', [Path({str(parquet(tmp_path / 'a.parquet'))!r})], {{}});"
        "text = Path(f'/proc/self/fdinfo/{c._process}').read_text();"
        "print(text.partition('Pid:')[2].split()[0], flush=True); time.sleep(600)"
    )
    importer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=ROOT)
    assert importer.stdout is not None
    with importer, importer.stdout as told:
        process = os.pidfd_open(int(told.readline()))
        signal.pidfd_send_signal(process, signal.SIGSTOP)  # it looks at no socket any more
        importer.kill()
    ended = select.poll()
    ended.register(process, select.POLLIN)
    assert ended.poll(60_000)
    os.close(process)


def test_batches_that_are_kept_stay_as_they_came(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", 25)
    opened = child.open_files("parquet", [path])[path]
    for _ in range(2):
        kept = list(opened.batches())
        assert len(kept) == 40
        assert pa.Table.from_batches(kept).equals(TABLE)


def _stream(path: Path, *values: pa.Array) -> pa.ChunkedArray:
    """Write a batch of each of these arrays, each with a dictionary of its own."""
    batches = [pa.record_batch({"s": each.dictionary_encode()}) for each in values]
    with pa.ipc.new_stream(path, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return pa.chunked_array(values)


def test_batches_too_large_for_the_places_that_are_used_again_come_alone(tmp_path: Path) -> None:
    large = pa.array(["x" * (child_batches.SLOT_BYTES + 1), "y"])
    small = [pa.array([f"{at}", "z"]) for at in range(5)]
    expected = _stream(tmp_path / "a.arrow", *small, large, small[0], large, *small)
    opened = child.open_files("arrow", [tmp_path / "a.arrow"])[tmp_path / "a.arrow"]
    columns = [batch.column("s").dictionary_decode() for batch in opened.batches()]
    assert pa.chunked_array(columns).equals(expected)


def test_a_batch_fits_a_place_that_nothing_unread_lies_in() -> None:
    assert child_batches.SLOTS == child_main.BATCHES_AHEAD + 1


@pytest.mark.parametrize(
    ("size", "seals", "slot", "read"),
    [
        (child_batches.SLOT_BYTES, 0, 0, 1),
        (child_batches.SLOT_BYTES - 1, child_batches.SLOT_SEALS, 0, 1),
        (child_batches.SLOT_BYTES, child_batches.SLOT_SEALS, child_batches.SLOTS, 1),
        (child_batches.SLOT_BYTES, child_batches.SLOT_SEALS, 0, child_batches.SLOT_BYTES + 1),
        (None, 0, 0, 1),
    ],
    ids=["can be cut", "too short", "too many", "read beyond its end", "not there"],
)
def test_a_place_for_batches_that_is_none_is_refused(
    size: int | None, seals: int, slot: int, read: int
) -> None:
    files = []
    if size is not None:
        files = [os.memfd_create("place", os.MFD_ALLOW_SEALING)]
        os.ftruncate(files[0], size)
        fcntl.fcntl(files[0], fcntl.F_ADD_SEALS, seals)
    with pytest.raises(ValueError, match="place"):
        child._Slots().copied(slot, read, files)
    for file in files:
        os.close(file)


def test_batches_that_their_child_could_still_change_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "batch").open("w+b") as file, pytest.raises((OSError, ValueError)):
        child._shared([file.fileno()], 0)
