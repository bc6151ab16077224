"""The service: commits of many clients, and bytes of chunks down and up against nginx.

    python benchmarks/bench_api.py [case ...] [--folder DIR] [--rounds N] [--scale S]

Server and load on the same machine. ``commits``: 8 processes, one branch, files of 1 KiB under
paths of their own, 10 s x scale. ``download`` and ``upload``: an object of 2 GiB x scale, one
and 16 connections, and the anonymous memory of the service with 16. A client reads from its socket
and drops what came.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from api_cases.nginx import nginx
from api_cases.served import Server, served
from harness import MIB, Case, Options, ratio, run, take_turns

from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object

HERE = Path(__file__).resolve().parent
CLIENTS = 8
SECONDS = 10.0
REPOSITORY = "bench/photos"
API = f"/api/v1/repositories/{REPOSITORY}/-"
OBJECT_BYTES = 2 << 30
MANY = 16
_READ_BYTES = 1 << 20


def commits(folder: Path, options: Options) -> dict[str, Any]:
    """Commits that were acknowledged, and that all of them are in the history."""
    seconds = SECONDS * options.scale
    with served(folder / "service") as server, administrator(server) as client:
        made = client.post("/api/v1/repositories", json={"name": REPOSITORY})
        made.raise_for_status()
        before = server.cpu_seconds()
        rates = [round_of_commits(server, folder, seconds) for _ in range(options.rounds)]
        cpu = server.cpu_seconds() - before
        tip = client.get(f"{API}/commits/main").json()
        records = client.get(f"{API}/log", params={"after": 0}).json()["records"]
    total = sum(done for done, _ in rates)
    return {
        "per_second": round(statistics.median(done / took for done, took in rates)),
        "commits": total,
        "server_cpu_ms": round(cpu / total * 1e3, 2),
        "lost": total - tip["generation"],
        "records": None if records is None else len(records),
    }


def round_of_commits(server: Server, folder: Path, seconds: float) -> tuple[int, float]:
    """Commits of all clients, and in how long."""
    script = str(HERE / "api_cases" / "committer.py")
    environment = os.environ | {"TENSORREPO_TOKEN": server.token, "HOME": str(folder)}
    clients = [
        subprocess.Popen(
            [sys.executable, script, f"{server.url}/{REPOSITORY}", str(number), str(seconds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )
        for number in range(CLIENTS)
    ]  # fmt: skip
    for each in clients:
        assert each.stdout is not None, "it is a pipe"
        each.stdout.readline()
    began = time.monotonic()
    for each in clients:
        assert each.stdin is not None, "it is a pipe"
        each.stdin.write("go\n")
        each.stdin.flush()
    done = sum(int(each.communicate()[0].split()[-1]) for each in clients)
    return done, time.monotonic() - began


def administrator(server: Server) -> httpx.Client:
    headers = {"Authorization": f"Bearer {server.token}"}
    return httpx.Client(base_url=server.url, headers=headers, timeout=600)


def large_object(size: int) -> EncodedObject:
    """A chunk of random bytes; the first MiB over and over would do for the network, too."""
    block = os.urandom(16 * MIB)
    return encode_object(Kind.CHUNK, [block] * max(1, size // len(block)))


def download(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of the same file from both, in turns."""
    encoded = large_object(int(OBJECT_BYTES * options.scale))
    with served(folder / "service") as server, administrator(server) as client:
        client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()
        send(client, encoded)
        digest = encoded.link.digest
        key = f"objects/{digest[:2]}/{digest[2:]}"
        root = folder / "service" / "repositories" / REPOSITORY
        with nginx(folder / "nginx", root) as port:
            ours = (port_of(server), f"{API}/store/{key}", server.token)
            theirs = (port, f"/{key}", "")
            size = encoded.link.bytes
            sides = {
                "one": lambda: fetch(*ours, size, 1),
                "one_nginx": lambda: fetch(*theirs, size, 1),
                "many": lambda: fetch(*ours, size, MANY),
                "many_nginx": lambda: fetch(*theirs, size, MANY),
            }
            fetch(*theirs, size, 1)  # into the page cache
            seconds = take_turns(options.rounds, sides)
            memory = server.anonymous_mib()
    return {
        "mib": size >> 20,
        "one_mib_per_s": round(size / MIB / statistics.median(seconds["one"])),
        "many_mib_per_s": round(MANY * size / MIB / statistics.median(seconds["many"])),
        "one_of_nginx": ratio(seconds["one_nginx"], seconds["one"]),
        "many_of_nginx": ratio(seconds["many_nginx"], seconds["many"]),
        "anonymous_mib": memory,
    }


def upload(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds to store an object that is durable then, against nginx, which syncs nothing."""
    size = int(OBJECT_BYTES * options.scale)
    (folder / "root").mkdir()
    with (
        served(folder / "service") as server,
        administrator(server) as client,
        nginx(folder / "nginx", folder / "root") as port,
    ):
        client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()

        def ours() -> float:
            encoded = large_object(size)
            began = time.perf_counter()
            send(client, encoded)
            return time.perf_counter() - began

        def theirs() -> float:
            encoded = large_object(size)
            began = time.perf_counter()
            put(port, f"/{encoded.link.digest}", "", encoded, 0, encoded.link.bytes)
            return time.perf_counter() - began

        seconds = take_turns(options.rounds, {"ours": ours, "nginx": theirs})
        memory = server.anonymous_mib()
    return {
        "mib": size >> 20,
        "mib_per_s": round(size / MIB / statistics.median(seconds["ours"])),
        "of_nginx": ratio(seconds["nginx"], seconds["ours"]),
        "anonymous_mib": memory,
    }


def send(client: httpx.Client, encoded: EncodedObject) -> None:
    """Upload an object in pieces, as the client library does."""
    digest, total = encoded.link.digest, encoded.link.bytes
    port = client.base_url.port
    assert port is not None, "the service has one of its own"
    token = client.headers["Authorization"].partition(" ")[2]
    for start in range(0, total, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, total)
        put(port, f"{API}/uploads/{digest}/{total}/{start}", token, encoded, start, stop)


def put(port: int, path: str, token: str, encoded: EncodedObject, start: int, stop: int) -> None:
    """One PUT of bytes ``[start, stop)`` of an object."""
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\n{login}Content-Length: {stop - start}\r\n"
    with closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(f"{head}Connection: close\r\n\r\n".encode())
        at = 0
        for part in encoded.parts:
            view = memoryview(part).cast("B")
            piece = view[max(start - at, 0) : max(stop - at, 0)]
            if piece.nbytes:
                link.sendall(piece)
            at += view.nbytes
        answer = link.recv(65536)
        assert answer.startswith((b"HTTP/1.1 20",)), answer[:400]


def fetch(port: int, path: str, token: str, size: int, connections: int) -> None:
    """Read one file so many times at once."""
    threads = [
        threading.Thread(target=read, args=(port, path, token, size)) for _ in range(connections)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read(port: int, path: str, token: str, size: int) -> None:
    """Read one answer to its end, and drop it."""
    login = f"Authorization: Bearer {token}\r\n" if token else ""
    buffer = bytearray(_READ_BYTES)
    with closing(socket.create_connection(("127.0.0.1", port))) as link:
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{login}Connection: close\r\n\r\n".encode())
        total = 0
        while got := link.recv_into(buffer):
            total += got
    assert total >= size, f"{total} of {size} bytes came: {bytes(buffer[:300])!r}"


def port_of(server: Server) -> int:
    port = urlsplit(server.url).port
    assert port is not None, "the service has one of its own"
    return port


CASES: dict[str, Case] = {"commits": commits, "download": download, "upload": upload}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)
