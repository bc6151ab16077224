"""Loading a model from S3 behind a link with latency and a bounded rate; see `link`.

Every reader begins cold, in a process and folders of its own. `share_of_link` is the stored bytes
that the load needs, over what the link could have carried from the first request of the load to
its end: the reading of packs' directories counts as time, not as bytes. Opening (log, commit, tree,
manifest, placement) is apart. `share_of_plain` is the speed beside that of fetching the same packs
and dropping them, in turns: what this machine, which is also the server, gets out of the link.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from harness import Options, ratio
from link import namespace, server
from model_cases.models import AS_THEY_ARE, DELTAS, grown, random_model, stored_bytes

import tensorrepo
from tensorrepo.formats.model.write.base_choice import DeltaOptions

MODEL_MIB, MBIT = 256, 1000
SCRIPT = Path(__file__).with_name("remote_load.py")


def remote(how: str, latency_ms: float, folder: Path, options: Options) -> dict[str, Any]:
    bucket = folder / "server" / "bucket"
    bucket.mkdir(parents=True)
    needed = _store(bucket / "ours", how, MODEL_MIB * options.scale)
    with ExitStack() as stack:
        inside = stack.enter_context(namespace(MBIT))
        endpoint = stack.enter_context(server(folder / "server", latency_ms, inside))
        turns = [
            [_load(folder / "reader", endpoint, inside, how) for how in ("model", "plain")]
            for _ in range(options.rounds)
        ]
    told, plain = zip(*turns, strict=True)
    seconds = statistics.median(one["seconds"] for one in told)
    fetching = [one["seconds"] / one["bytes"] * needed for one in plain]
    opened = statistics.median(one["open_seconds"] for one in told)
    rate = MBIT * 1e6 / 8
    return {
        "latency_ms": latency_ms,
        "mbit": MBIT if inside else None,
        "stored_mib": round(needed / 2**20, 1),
        "open_ms": round(1e3 * opened),
        "load_ms": round(1e3 * seconds),
        "share_of_link": round(needed / seconds / rate, 3),
        "share_of_plain": ratio(fetching, [one["seconds"] for one in told]),
        "share_with_open": round(needed / (seconds + opened) / rate, 3),
        "requests": told[0]["requests"],
        "cpu_seconds": round(min(one["cpu_seconds"] for one in told), 2),
        "peak_mib": told[0]["peak_mib"],
        "goal": "share_of_link >= 0.9",
    }


def _store(place: Path, how: str, mib: float) -> int:
    """A repository in a folder, which the server gives out; the stored bytes that a load needs."""
    repository = tensorrepo.init(place, author="Bench <bench@example.org>")
    with repository.transaction(message="Model") as change:
        _stage(change, "m", how, mib)
    return stored_bytes(repository.model("m").stored)


def _stage(change: Any, name: str, how: str, mib: float) -> None:
    if how == "raw":
        change.core.stage(f"models/{name}", _put(change, random_model(mib), AS_THEY_ARE))
        return
    under = _put(change, grown(200, mib), DeltaOptions())
    entry = _put(change, grown(201, mib), DeltaOptions(under, codecs=DELTAS))
    change.core.stage(f"models/{name}", entry)


def _put(change: Any, tensors: Any, against: DeltaOptions) -> Any:
    from tensorrepo.formats.model.write.model_writer import write_model

    return write_model(change.core.objects, tensors, against=against)


def _load(place: Path, endpoint: str, inside: list[str], how: str) -> dict[str, Any]:
    place.mkdir()
    folders = {f"XDG_{kind}_HOME": str(place / kind) for kind in ("CACHE", "STATE", "CONFIG")}
    command = [*inside, sys.executable, str(SCRIPT), endpoint, how]
    found = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | folders
    ).stdout
    shutil.rmtree(place)
    told: dict[str, Any] = json.loads(found)
    return told


CASES = {
    f"remote_{how}_{latency_ms}ms": partial(remote, how, latency_ms)
    for how in ("raw", "delta")
    for latency_ms in (20, 50)
}
