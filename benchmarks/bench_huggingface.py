"""Hugging Face's client against the service, and against nginx with the same files.

    python benchmarks/bench_huggingface.py [case ...] [--folder DIR] [--rounds N] [--scale S]

Server, nginx and client on the same machine, the client in a process of its own that is timed
without what it loads. ``upload``: `upload_folder` of 512 MiB x scale of such a model to a service
that has nothing, in turns with `dd conv=fsync` of as much, and passes over the bytes that bound it.
``snapshot``: `upload_folder`, then `snapshot_download`, of a model of
2 GiB x scale in 8 safetensors files; nginx answers the same requests from a copy of our answers.
``rows``: `load_dataset(..., streaming=True)` of 1 GiB x scale of rows, Parquet in both cases, all
of it read as Arrow. Needs huggingface_hub and datasets, which the tests have.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import blake3
import httpx
import numpy as np
from api_cases.nginx import nginx
from api_cases.served import Server, served
from harness import MIB, Case, Options, ratio, run, take_turns
from safetensors.numpy import save_file

import tensorrepo as tr

CLIENT = Path(__file__).resolve().parent / "api_cases" / "hub_client.py"
MODEL = "bench/net"
ROWS = "bench/rows"
MODEL_BYTES = 2 << 30
SHARDS = 8
ROWS_BYTES = 1 << 30
UPLOAD_BYTES = 512 << 20
WIDTH = 1024  # numbers of four bytes in a row


def snapshot(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds to download a model, against nginx; and to upload it."""
    size = int(MODEL_BYTES * options.scale)
    model = folder / "model"
    make_model(model, size)
    with served(folder / "service") as server:
        home = folder / "home"
        wait_until_idle(server)
        uploaded = client(home, server.url, server.token, "upload", MODEL, str(model))
        with nginx(folder / "nginx", model, mirrored(server, folder)) as port:
            sides = {
                "ours": lambda: client(home, server.url, server.token, "snapshot", MODEL),
                "nginx": lambda: client(home, f"http://127.0.0.1:{port}", "x", "snapshot", MODEL),
            }
            sides["ours"]()
            seconds = take_turns(options.rounds, sides)
            assert fetched(home) >= size, "all files came from the side that was asked last"
            memory = server.anonymous_mib()
    return {
        "mib": size >> 20,
        "mib_per_s": round(size / MIB / statistics.median(seconds["ours"])),
        "nginx_mib_per_s": round(size / MIB / statistics.median(seconds["nginx"])),
        "of_nginx": ratio(seconds["nginx"], seconds["ours"]),
        "upload_mib_per_s": round(size / MIB / uploaded),
        "anonymous_mib": memory,
        "goal": 0.8,
    }


def upload(folder: Path, options: Options) -> dict[str, Any]:
    """MiB/s to upload a model to a service that has nothing, and what each side takes for it."""
    size = int(UPLOAD_BYTES * options.scale)
    model, found = folder / "model", dict[str, list[float]]()
    make_model(model, size)
    passes = {"sha256": hash_seconds(hashlib.sha256), "blake3": hash_seconds(blake3.blake3)}
    for number in range(options.rounds):
        service = folder / f"service-{number}"
        with served(service) as server:
            wait_until_idle(server)
            server_cpu, client_cpu = server.cpu_seconds(), children_seconds()
            seconds = client(folder / "home", server.url, server.token, "upload", MODEL, str(model))
            found.setdefault("upload", []).append(size / MIB / seconds)
            found.setdefault("server_ns", []).append((server.cpu_seconds() - server_cpu) / size)
            found.setdefault("client_ns", []).append((children_seconds() - client_cpu) / size)
        shutil.rmtree(service)
        found.setdefault("disk", []).append(size / MIB / dd_seconds(folder / "written", size))
    median = {name: statistics.median(each) for name, each in found.items()}
    return {
        "mib": size >> 20,
        "mib_per_s": round(median["upload"]),
        "dd_mib_per_s": round(median["disk"]),
        "client_ns_a_byte": round(median["client_ns"] * 1e9, 2),
        "server_ns_a_byte": round(median["server_ns"] * 1e9, 2),
        **{f"{name}_ns_a_byte": round(each * 1e9, 2) for name, each in passes.items()},
        "goal": 191,
    }


def hash_seconds(kind: Any) -> float:
    """Seconds for a byte of one pass, of one thread."""
    piece, began = bytes(MIB), time.process_time()
    hasher = kind()
    for _ in range(256):
        hasher.update(piece)
    return (time.process_time() - began) / (256 * MIB)


def children_seconds() -> float:
    """Time of the processor of all children that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dd_seconds(path: Path, size: int) -> float:
    """Seconds to write zeros until they are on the disk."""
    words = ["dd", "if=/dev/zero", f"of={path}", "bs=1M", f"count={size >> 20}", "conv=fsync"]
    began = time.perf_counter()
    subprocess.run(words, check=True, capture_output=True)
    seconds = time.perf_counter() - began
    path.unlink()
    return seconds


def rows(folder: Path, options: Options) -> dict[str, Any]:
    """Seconds to stream rows, against the same Parquet files from nginx."""
    size = int(ROWS_BYTES * options.scale)
    home, files = folder / "home", folder / "files"
    files.mkdir()
    with served(folder / "service") as server:
        with httpx.Client(base_url=server.url, headers=login(server), timeout=600) as web:
            web.post("/api/v1/repositories", json={"name": "bench"}).raise_for_status()
            make_rows(server, size)
            tree = f"/api/datasets/{ROWS}/tree/main?recursive=true"
            names = [one["path"] for one in web.get(tree).json() if one["type"] == "file"]
            for name in names:
                save(web, f"/datasets/{ROWS}/resolve/main/{name}", files / Path(name).name)
        with nginx(folder / "nginx", files) as port:
            urls = [f"http://127.0.0.1:{port}/{Path(name).name}" for name in names]
            sides = {
                "ours": lambda: client(home, server.url, server.token, "rows", ROWS),
                "nginx": lambda: client(home, server.url, server.token, "rows", *urls),
            }
            sides["nginx"]()
            seconds = take_turns(options.rounds, sides)
    return {
        "mib": size >> 20,
        "files": len(names),
        "mib_per_s": round(size / MIB / statistics.median(seconds["ours"])),
        "nginx_mib_per_s": round(size / MIB / statistics.median(seconds["nginx"])),
        "of_nginx": ratio(seconds["nginx"], seconds["ours"]),
        "goal": 0.7,
    }


def make_model(folder: Path, size: int) -> None:
    folder.mkdir()
    numbers = np.random.default_rng(0)
    each = size // SHARDS
    for number in range(1, SHARDS + 1):
        weights = numbers.integers(0, 256, each, np.uint8)  # noise: stored as it is
        name = f"model-{number:05}-of-{SHARDS:05}.safetensors"
        save_file({f"layer.{number}": weights}, folder / name)
        # nginx makes ETags of time and size, and the client fetches files of one ETag once.
        os.utime(folder / name, (number, number))
    (folder / "config.json").write_text("{}")


def make_rows(server: Server, size: int) -> None:
    numbers = np.random.default_rng(0)
    count = size // (WIDTH * 4)
    values = numbers.standard_normal((count, WIDTH), np.float32)
    repo = tr.open(
        f"{server.url}/bench", author="A <a@example.org>", storage_options={"token": server.token}
    )
    with repo.transaction(message="rows") as tx:
        tx.create_dataset("rows", {"x": values, "at": np.arange(count)})


def client(home: Path, url: str, token: str, *words: str) -> float:
    """Seconds of a client that has nothing in its cache."""
    shutil.rmtree(home, ignore_errors=True)
    environment = os.environ | {
        "HF_ENDPOINT": url, "HF_TOKEN": token, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    }  # fmt: skip
    command = [sys.executable, str(CLIENT), *words]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return float(done.stdout)


def wait_until_idle(server: Server) -> None:
    """A server that has just begun still makes its pages ready, which is no part of an upload."""
    before = -1.0
    while before != (before := server.cpu_seconds()):
        time.sleep(0.5)


def fetched(home: Path) -> int:
    """Bytes of contents in a client's cache."""
    return sum(blob.stat().st_size for blob in home.glob("hub/*/blobs/*"))


def mirrored(server: Server, folder: Path) -> str:
    """Configuration of nginx by which it answers what our service did."""
    with httpx.Client(base_url=server.url, headers=login(server), timeout=600) as web:
        info = web.get(f"/api/models/{MODEL}/revision/main").json()
        sha = info["sha"]
        tree = web.get(f"/api/models/{MODEL}/tree/{sha}?recursive=true&expand=false").json()
    (folder / "info.json").write_text(json.dumps(info))
    (folder / "tree.json").write_text(json.dumps(tree))
    return f"""
        location = /api/models/{MODEL}/revision/main {{
          default_type application/json; alias {folder}/info.json; }}
        location = /api/models/{MODEL}/tree/{sha} {{
          default_type application/json; alias {folder}/tree.json; }}
        location ~ ^/{MODEL}/resolve/[^/]+/(.*)$ {{
          add_header X-Repo-Commit {sha}; alias {folder}/model/$1; }}
    """


def login(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.token}"}


def save(web: httpx.Client, path: str, target: Path) -> None:
    with web.stream("GET", path) as answer, target.open("wb") as file:
        answer.raise_for_status()
        for piece in answer.iter_bytes():
            file.write(piece)


CASES: dict[str, Case] = {"upload": upload, "snapshot": snapshot, "rows": rows}

if __name__ == "__main__":
    run(CASES, __doc__ or "", rounds=3)
