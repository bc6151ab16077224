"""Stored objects, down and up, beside nginx with the same file."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from api_cases.bytes_moved import fetch, put
from api_cases.nginx import nginx
from api_cases.served import Server, served
from harness import MIB, Options, ratio, take_turns

from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object

REPOSITORY = "bench/photos"
API = f"/api/v1/repositories/{REPOSITORY}/-"
OBJECT_BYTES = 2 << 30
MANY = 16


def large_object(size: int) -> EncodedObject:
    """A chunk of random bytes; the first MiB over and over would do for the network, too."""
    block = os.urandom(16 * MIB)
    return encode_object(Kind.CHUNK, [block] * max(1, size // len(block)))


def download(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of the same file from both, in turns."""
    encoded = large_object(int(OBJECT_BYTES * options.scale))
    with served(folder / "service") as server, server.administrator() as client:
        client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()
        send(client, encoded)
        digest = encoded.link.digest
        key = f"objects/{digest[:2]}/{digest[2:]}"
        root = folder / "service" / "repositories" / REPOSITORY
        with nginx(folder / "nginx", root) as port:
            ours = (server.port, f"{API}/store/{key}", server.token)
            theirs = (port, f"/{key}", "")
            size = encoded.link.bytes
            sides = {
                "one": lambda: fetch(*ours, size, 1),
                "one_nginx": lambda: fetch(*theirs, size, 1),
                "many": lambda: fetch(*ours, size, MANY),
                "many_nginx": lambda: fetch(*theirs, size, MANY),
            }
            fetch(*theirs, size, 1)  # into the page cache
            with server.watching_memory() as peak:
                seconds = take_turns(options.rounds, sides)
    return {
        "mib": size >> 20,
        "one_mib_per_s": round(size / MIB / statistics.median(seconds["one"])),
        "many_mib_per_s": round(MANY * size / MIB / statistics.median(seconds["many"])),
        "one_of_nginx": ratio(seconds["one_nginx"], seconds["one"]),
        "many_of_nginx": ratio(seconds["many_nginx"], seconds["many"]),
        "anonymous_mib": peak.mib,
    }


def upload(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds to store an object that is durable then, against nginx, which syncs nothing."""
    size = int(OBJECT_BYTES * options.scale)
    with _taking(folder) as (server, client, port):

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

        with server.watching_memory() as peak:
            seconds = take_turns(options.rounds, {"ours": ours, "nginx": theirs})
    return {
        "mib": size >> 20,
        "mib_per_s": round(size / MIB / statistics.median(seconds["ours"])),
        "of_nginx": ratio(seconds["nginx"], seconds["ours"]),
        "anonymous_mib": peak.mib,
    }


@contextmanager
def _taking(folder: Path) -> Iterator[tuple[Server, httpx.Client, int]]:
    """A service with an empty repository, its client, and the port of an nginx beside it."""
    (folder / "root").mkdir()
    with (
        served(folder / "service") as server,
        server.administrator() as client,
        nginx(folder / "nginx", folder / "root") as port,
    ):
        client.post("/api/v1/repositories", json={"name": REPOSITORY}).raise_for_status()
        yield server, client, port


def uploads(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds of so many objects at once, beside nginx; what came is deleted after each turn."""
    size = int(OBJECT_BYTES * options.scale)
    with _taking(folder) as (server, client, port):

        def ours(encoded: EncodedObject) -> None:
            send(client, encoded)

        def theirs(encoded: EncodedObject) -> None:
            put(port, f"/{encoded.link.digest}", "", encoded, 0, encoded.link.bytes)

        objects = folder / "service" / "repositories" / REPOSITORY / "objects"
        with server.watching_memory() as peak:
            seconds = take_turns(
                options.rounds,
                {
                    "ours": lambda: _all_at_once(ours, size, objects),
                    "nginx": lambda: _all_at_once(theirs, size, folder / "root"),
                },
            )
    return {
        "mib": size >> 20,
        "at_once": MANY,
        "mib_per_s": round(MANY * size / MIB / statistics.median(seconds["ours"])),
        "of_nginx": ratio(seconds["nginx"], seconds["ours"]),
        "anonymous_mib": peak.mib,
        "goal": "of nginx >= 0.5, anonymous memory < 300 MiB",
    }


def _all_at_once(one: Callable[[EncodedObject], None], size: int, folder: Path) -> float:
    """Seconds until all objects were taken; their files are deleted after that."""
    every = [large_object(size) for _ in range(MANY)]
    with ThreadPoolExecutor(MANY) as threads:
        began = time.perf_counter()
        for done in [threads.submit(one, encoded) for encoded in every]:
            done.result()
        took = time.perf_counter() - began
    least = every[0].link.bytes
    large = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size >= least]
    assert len(large) == MANY, "each of them is there"
    for file in large:
        file.unlink()
    return took


def send(client: httpx.Client, encoded: EncodedObject, api: str = API) -> None:
    """Upload an object in pieces, as the client library does."""
    digest, total = encoded.link.digest, encoded.link.bytes
    port = client.base_url.port
    assert port is not None, "the service has one of its own"
    token = client.headers["Authorization"].partition(" ")[2]
    for start in range(0, total, PIECE_BYTES):
        stop = min(start + PIECE_BYTES, total)
        put(port, f"{api}/uploads/{digest}/{total}/{start}", token, encoded, start, stop)
