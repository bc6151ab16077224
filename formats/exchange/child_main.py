"""Server that forks importers' child processes, and what they run."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from tensorrepo.formats.common.damage import refusals
from tensorrepo.formats.exchange.child import BATCH, DONE, FAILED, FRAME, SCHEMA, TableFile
from tensorrepo.formats.exchange.tables.arrow import open_arrow, open_parquet
from tensorrepo.formats.exchange.tables.files import ARROW_ERRORS
from tensorrepo.repo.errors import Error

_READERS: dict[str, Callable[[Path], TableFile]] = {"parquet": open_parquet, "arrow": open_arrow}


def serve(control: int) -> None:
    """Fork a child for each socket that comes, until the importing process is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: sockets tell their end
    server = socket.socket(fileno=control)
    while True:
        message, passed, _, _ = socket.recv_fds(server, 1, 1)
        if not message:
            return
        if not os.fork():
            server.close()
            _answer(socket.socket(fileno=passed[0]))
        for each in passed:
            os.close(each)


def _answer(connection: socket.socket) -> None:
    """All of one child; does not return."""
    try:
        with connection.makefile("rb") as questions, connection.makefile("wb") as answers:
            _read(json.loads(questions.readline()), questions, answers)
    except (BrokenPipeError, ConnectionError):
        pass  # the importing process wants no more
    except BaseException:  # noqa: BLE001 - a child never goes on as a second server
        traceback.print_exc()
    finally:
        os._exit(0)


def _read(request: dict[str, Any], questions: IO[bytes], answers: IO[bytes]) -> None:
    answers.write(os.getpid().to_bytes(8, "little"))
    answers.flush()
    os.chdir(request["folder"])  # errors name files as the importing process does
    _bound(request["memory_bytes"])
    open_file = _READERS[request["reader"]]
    opened = []
    for name in request["files"]:
        with _Telling(answers):
            opened.append(open_file(Path(name)))
            _send(answers, SCHEMA, json.dumps(opened[-1].rows).encode())
            _send(answers, SCHEMA, opened[-1].schema.serialize())
        answers.flush()
    while question := questions.readline():
        number = int(question)
        with _Telling(answers), refusals(request["files"][number], "table", *ARROW_ERRORS):
            for body in _framed(opened[number].batches()):
                _send(answers, BATCH, body)
            _send(answers, DONE, b"")
        answers.flush()


def _framed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        yield sink.getvalue()


def _send(answers: IO[bytes], kind: int, body: bytes | pa.Buffer) -> None:
    answers.write(FRAME.pack(kind, len(body)))
    answers.write(body)


class _Telling:
    """Sends the error that ends a block, as its class and text."""

    def __init__(self, answers: IO[bytes]) -> None:
        self._answers = answers

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, problem: object, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception) or issubclass(kind, ConnectionError):
            return False
        name = kind.__name__ if issubclass(kind, Error) else "InvalidInputError"
        text = problem.args[0] if isinstance(problem, Error) else problem
        told = {"error": name, "text": str(text)}
        _send(self._answers, FAILED, json.dumps(told).encode())
        return True


def _bound(memory_bytes: int) -> None:
    """No core, and no more memory than is taken and `memory_bytes`. It cannot be undone."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, StopIteration):  # no Linux: then without this limit
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        taken = next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (taken + memory_bytes,) * 2)
