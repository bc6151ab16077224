"""The reader of `remote`: loads a model in a process of its own, before which nothing was read.

``python remote_load.py ENDPOINT HOW`` loads the model ``m`` of ``s3://bucket/ours`` into memory
and prints a line of JSON; with HOW ``plain`` its packs are fetched, and dropped, in pieces of 8 MiB
by 8 threads: what this machine gets out of the link. XDG_* must name empty folders.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import tensorrepo
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.models.model import Model
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.store import ObjectStore

PIECE_BYTES = 8 << 20


def main() -> None:
    access = {"endpoint": sys.argv[1], "key": "any", "secret": "any", "region": "us-east-1"}
    opening = tensorrepo.open  # its import takes a second and is not what is timed
    requests = counted_ranges()
    began = time.perf_counter()
    model = opening("s3://bucket/ours", storage_options=access).model("m")
    opened = time.perf_counter()
    before, cpu = len(requests), time.process_time()
    size = plain(model.stored) if sys.argv[2] == "plain" else loaded(model)
    ended, cpu = time.perf_counter(), time.process_time() - cpu
    told = {
        "bytes": size,
        "open_seconds": opened - began,
        "seconds": ended - opened,
        "cpu_seconds": cpu,
        "requests": len(requests) - before,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
    }
    print(json.dumps(told))


def loaded(model: Model) -> int:
    return sum(each.nbytes for each in model.load().values())


def plain(model: StoredModel) -> int:
    """Bytes of packs, fetched and dropped."""
    objects, members = model.objects, model.packs.members
    pieces = [
        (objects.describe(pack.digest), start, min(start + PIECE_BYTES, pack.directory_start))
        for pack in members.packs
        for start in range(0, pack.directory_start, PIECE_BYTES)
    ]
    with ThreadPoolExecutor(8) as pool:
        return sum(len(data) for data in pool.map(lambda one: objects.read_range(*one), pieces))


def counted_ranges() -> list[int]:
    """Collects the bytes of every range that is asked for."""
    found: list[int] = []
    whole = ObjectStore.read_range

    def ranged(self: ObjectStore, link: ObjectLink, start: int, stop: int) -> Buffer:
        found.append(stop - start)
        return whole(self, link, start, stop)

    ObjectStore.read_range = ranged  # type: ignore[method-assign]
    return found


if __name__ == "__main__":
    main()
