"""A large repository: 10^6 objects of which 10% have links, 100,000 commits, 10,000 branches.

    python benchmarks/bench_scale.py [case ...] [--folder DIR] [--rounds N] [--scale S]

``large``: opening, a commit, a push with nothing new and one of a commit, within this process; the
marking of a collection, and a check of all objects by links and by their bytes. Times are processor
seconds (user and system) of the least of some rounds, beside wall milliseconds. ``limits``: the
same repository by commands of their own in 1 GiB of address space and with 256 descriptors.
``rates``: marking and checking cold and warm, of files and of history packs, beside what this
machine takes to read the same files: `cat` of those with links, and reading and hashing them here.
``billion``: what a collection's table costs at 10^9 objects, by a model.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from harness import Case, Options, run

from tensorrepo.repo.backends.base import Backend, StoredKey
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import fsck
from tensorrepo.repo.changes.gc_collect import CollectionRules
from tensorrepo.repo.changes.gc_marks import Marks, ObjectTable
from tensorrepo.repo.changes.gc_packs import pack_history
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.history.commits import Commit, encode_commit, read_commit, walk
from tensorrepo.repo.history.tree_pages import Page, encode_root
from tensorrepo.repo.history.trees import Entry, file_entry, root_links
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.records import LogEntry, Update, encode_ref_updates
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object, stored_form
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.transfer.exchange import push as push_refs
from tensorrepo.repo.transfer.receive import TransferOptions

AUTHOR = "Bench <bench@example.org>"
COMMITS = 100_000
FILES = 9  # of each commit, all of them new: nine objects without links beside the commit
BRANCHES = 10_000
BEGUN_NS = 1_700_000_000 * 10**9


def large(folder: Path, options: Options) -> dict[str, Any]:
    """What takes time or memory by the size of a repository."""
    here, there = folder / "here", folder / "there"
    build(here, round(COMMITS * options.scale), max(1, round(BRANCHES * options.scale)))
    subprocess.run(["cp", "-al", here, there], check=True)
    found: dict[str, Any] = {}
    for name, case in (("open", opening), ("commit", committing), ("push_nothing", push_nothing),
                       ("push_one", push_one)):  # fmt: skip
        cpu, wall = case(here, there, options.rounds)
        found |= {f"{name}_cpu_ms": cpu, f"{name}_ms": wall}
    found |= marking(here) | checking(here, deep=False) | checking(here, deep=True)
    goal = "open < 50 ms, commit < 50, push_nothing < 200, mark >= 100000/s, check >= 10000/s"
    return found | {"peak_mib": peak_mib(), "goal": goal}


def limits(folder: Path, options: Options) -> dict[str, Any]:
    """Commands on it in processes of 1 GiB of address space and 256 descriptors."""
    here = folder / "here"
    build(here, round(COMMITS * options.scale), max(1, round(BRANCHES * options.scale)))
    commands = {
        "fsck": ("fsck", "--repo", str(here)),
        "fsck_deep": ("fsck", "--deep", "--repo", str(here)),
        "gc": ("gc", "--repo", str(here)),
        "clone": ("clone", str(here), str(folder / "copy"), "--bare"),
        "push": ("push", str(folder / "copy"), "main", "--repo", str(here)),
        "bundle": ("bundle", "create", str(folder / "all.bundle"), "--all", "--repo", str(here)),
    }
    told = {}
    for name, words in commands.items():
        seconds, mib = bounded(words, folder)
        told |= {f"{name}_cpu_s": seconds, f"{name}_peak_mib": mib}
    return told | {"goal": "every command ends, with less than 1 GiB and 256 descriptors"}


def rates(folder: Path, options: Options) -> dict[str, Any]:
    """Marking and checking beside the bare reading of the same files; of files, then of packs.

    Cold is after the kernel was told to forget its inodes and pages, which only root may.
    """
    here = folder / "here"
    build(here, round(COMMITS * options.scale), max(1, round(BRANCHES * options.scale)))
    core = opened(here)
    linked = [
        digest for digest, _ in walk(core.objects, [core.log.refresh().state.refs["heads/main"]])
    ]
    names = sorted(object_key(digest) for digest in linked)
    works: dict[str, Callable[[], Callable[[], int]]] = {
        "cat": lambda: partial(cat, here, names),
        "read_and_hash": lambda: partial(read_and_hash, core.backend, names),
        "mark": lambda: ready_to_mark(opened(here)),
        "check": lambda: partial(check, opened(here)),
        "deep": lambda: partial(check, opened(here), deep=True),
    }
    found: dict[str, Any] = {}
    for name, prepare in works.items():
        if os.geteuid() == 0:
            found |= per_second(f"cold_{name}", prepare, 1, forgets=True)
        found |= per_second(name, prepare, options.rounds)
    rules = CollectionRules(grace_seconds=0, retention_seconds=0)
    told = pack_history(core, actor=AUTHOR, rules=rules)
    found["packed"] = told.objects
    for name in ("mark", "check", "deep"):
        found |= per_second(f"packed_{name}", works[name], options.rounds)
    goal = "mark >= 100000/s (15000 with links), check >= 10000/s"
    return found | {"with_links": len(names), "goal": goal}


def per_second(
    name: str, prepare: Callable[[], Callable[[], int]], rounds: int, *, forgets: bool = False
) -> dict[str, int]:
    """What was done in a second, of the processor's time and of the clock's: the best of rounds."""
    found = []
    for _ in range(rounds):
        work = prepare()
        if forgets:
            Path("/proc/sys/vm/drop_caches").write_text("3")
        before, wall = os.times(), time.perf_counter()
        done = work()
        after = os.times()
        seconds = sum(after[:4]) - sum(before[:4])
        found.append((done / seconds, done / (time.perf_counter() - wall)))
    return {
        f"{name}_per_cpu_s": round(max(each[0] for each in found)),
        f"{name}_per_s": round(max(each[1] for each in found)),
    }


def cat(folder: Path, names: Sequence[str]) -> int:
    """Files that `cat` read."""
    given = "\0".join(names).encode()
    subprocess.run(
        ["xargs", "-0", "cat"], input=given, cwd=folder, stdout=subprocess.DEVNULL, check=True
    )
    return len(names)


def read_and_hash(backend: Backend, names: Sequence[str]) -> int:
    """Objects that were read, one by one, and hashed."""
    for name in names:
        object_digest((backend.read(name),))
    return len(names)


def ready_to_mark(core: RepositoryCore) -> Callable[[], int]:
    """What marks from all refs, and gives how many objects there are: they were listed by now."""
    state = core.log.refresh().state
    table = ObjectTable(core.backend, packs=list(core.objects.packs.readable()))
    marks = Marks(core.objects, table, state, lambda _done, _total: None)

    def mark() -> int:
        marks.mark(dict.fromkeys(state.refs.values()))
        return len(table)

    return mark


def check(core: RepositoryCore, *, deep: bool = False) -> int:
    """Objects that were checked."""
    totals = fsck.ObjectTotals()
    faults = list(fsck.check_objects(core.objects, core.log.refresh().state, totals, deep=deep))
    assert not faults, f"it was made whole, and has {faults[:3]}"
    return totals.objects


def billion(_folder: Path, options: Options) -> dict[str, Any]:
    """What a collection's table costs at 10^9 objects: its rows lie 15,259 behind each beginning.

    Finding a row depends on how many share the first 16 bits of their digests, not on how many
    there are: a million rows behind 66 beginnings are found as slowly as a billion are.
    """
    rows = round(1_000_000 * options.scale)
    beginnings = max(1, round(rows * 65_536 / 1e9))
    dense = timed_value(lambda: ObjectTable(_Listing(rows, beginnings)))
    usual = timed_value(lambda: ObjectTable(_Listing(rows, 65_536)))
    found = {}
    for name, (table, _) in {"dense": dense, "usual": usual}.items():
        wanted = [bytes.fromhex(table[at].digest) for at in range(0, rows, max(1, rows // 20_000))]
        seconds, _ = timed(lambda wanted=wanted, table=table: [*map(table.find, wanted)])
        found[f"find_{name}_us"] = round(seconds / len(wanted) * 1e6, 2)
    listed = rows / dense[1][0]
    return found | {
        "rows_per_s": round(listed),
        "table_gb": round(1e9 * 48 / 1e9),
        "marks_gb": round(1e9 * 4 / 1e9),
        "table_hours": round(1e9 / listed / 3600, 1),
        "more_marking_hours": round(
            1e9 * (found["find_dense_us"] - found["find_usual_us"]) / 1e6 / 3600, 2
        ),
    }


class _Listing:
    """A store that can be listed, and that has nothing else."""

    url = "listing://"

    def __init__(self, rows: int, beginnings: int) -> None:
        chance = random.Random(7)
        ends = sorted(chance.randbytes(30) for _ in range(rows // beginnings + 1))
        firsts = [(n * 65_536 // beginnings).to_bytes(2, "big") for n in range(beginnings)]
        self.digests = (Digest((first + end).hex()) for first in firsts for end in ends)
        self.rows = rows

    def list(self, _prefix: str) -> Iterator[StoredKey]:
        for digest in islice(self.digests, self.rows):
            yield StoredKey(object_key(digest), 300, 1.7e9)


# ------------------------------------------------------------------- the repository


def build(folder: Path, commits: int, branches: int) -> None:
    """A repository of as many commits of `FILES` new files, and of branches spread over them.

    Objects are written as they are stored, without syncing; the log is appended to in memory by
    the code that appends to every log, and put down then.
    """
    create_repository(LocalBackend(folder), drivers={}, local=LocalState()).close()
    for first in range(256):
        (folder / f"objects/{first:02x}").mkdir(parents=True, exist_ok=True)

    def put(kind: Kind, payload: bytes, links: Sequence[ObjectLink] = ()) -> ObjectLink:
        encoded = encode_object(kind, payload, links)
        (folder / object_key(encoded.link.digest)).write_bytes(b"".join(stored_form(encoded)))
        return encoded.link

    memory = MemoryBackend()
    for name in ("repo.json", *(f"log/{path.name}" for path in (folder / "log").glob("*"))):
        memory.create(name, ((folder / name).read_bytes(),))
    core = open_repository(memory, drivers={})
    tips = list[Digest]()
    parent: ObjectLink | None = None
    for number in range(commits):
        tip = put_commit(put, number, parent)
        moved = Update("heads/main", None if parent is None else parent.digest, tip.digest)
        add(core, f"c{number}", "commit", [moved])
        tips.append(tip.digest)
        parent = tip
    spread = [Update(f"heads/b{n:05}", None, tips[n * commits // branches])
              for n in range(branches)]  # fmt: skip
    bulk = put(Kind.REF_UPDATES, encode_ref_updates(spread)).digest
    memory.create(object_key(bulk), ((folder / object_key(bulk)).read_bytes(),))
    add(core, "branches", "ref-create", [], bulk)
    for stored in memory.list("log/"):
        place = folder / stored.key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(memory.read(stored.key))


Put = Callable[[Kind, bytes, Sequence[ObjectLink]], ObjectLink]


def put_commit(put: Put, number: int, parent: ObjectLink | None) -> ObjectLink:
    """A commit whose tree names new files alone; gives what links to it."""
    files = [put(Kind.BLOB, b"%d %d" % (number, n) * 20, ()) for n in range(FILES)]
    paths = [f"files/{n}" for n in range(FILES)]
    items = tuple((path, file_entry(link)) for path, link in zip(paths, files, strict=True))
    root = encode_root(Page(0, items))
    assert root is not None, "few files fit into a commit"
    parents = () if parent is None else (parent.digest,)
    made = Commit(root, parents, number + 1, AUTHOR, f"Change {number}", BEGUN_NS + number,
                  changed=tuple(paths))  # fmt: skip
    named = {link.digest: link for link in files}
    links = [*([] if parent is None else [parent]), *(named[each] for each in root_links(root))]
    return put(Kind.COMMIT, encode_commit(made), links)


def add(
    core: RepositoryCore, txn: str, kind: str, updates: list[Update], bulk: Digest | None = None
) -> None:
    """One record with one entry."""
    entry = LogEntry(txn, kind, AUTHOR, BEGUN_NS, txn, tuple(updates), bulk)
    append(core.log, lambda _: (entry,))


# ------------------------------------------------------------------- what is measured


def opened(folder: Path) -> RepositoryCore:
    core = open_repository(LocalBackend(folder), drivers={})
    tip = core.log.refresh().state.refs["heads/main"]
    read_commit(core.objects, tip)
    return core


def opening(here: Path, _there: Path, rounds: int) -> tuple[float, float]:
    return best(lambda: opened(here).close(), rounds)


def committing(here: Path, _there: Path, rounds: int) -> tuple[float, float]:
    core, numbers = opened(here), iter(range(1 << 30))

    def one() -> None:
        with begin(core, "main") as transaction:
            link = transaction.objects.put(Kind.BLOB, b"%d" % next(numbers) * 50)
            transaction.stage("files/0", Entry(Kind.BLOB, link.digest))
            transaction.commit("change", author=AUTHOR)

    return best(one, 3 * rounds)


def push_nothing(here: Path, there: Path, rounds: int) -> tuple[float, float]:
    source, target = opened(here), opened(there)
    how = TransferOptions(AUTHOR, here.parent / "parts")
    names = [ref for ref in source.log.refresh().state.refs if ref.startswith("heads/")]
    push_refs(source, target, names, how)
    return best(lambda: push_refs(source, target, names, how), rounds)


def push_one(here: Path, there: Path, rounds: int) -> tuple[float, float]:
    source, target = opened(here), opened(there)
    how = TransferOptions(AUTHOR, here.parent / "parts")
    numbers = iter(range(1000, 1 << 30))

    def one() -> None:
        with begin(source, "main") as transaction:
            link = transaction.objects.put(Kind.BLOB, b"%d" % next(numbers) * 50)
            transaction.stage("files/1", Entry(Kind.BLOB, link.digest))
            transaction.commit("change", author=AUTHOR)

    found = []
    for _ in range(rounds):
        one()
        found.append(timed(lambda: push_refs(source, target, ["main"], how)))
    return least(found)


def marking(here: Path) -> dict[str, Any]:
    """Listing into the table of a collection, and marking from all refs."""
    core = opened(here)
    table, listed = timed_value(lambda: ObjectTable(core.backend))
    state = core.log.refresh().state
    marks = Marks(core.objects, table, state, lambda _done, _total: None)
    _, (cpu, _) = timed_value(lambda: marks.mark(dict.fromkeys(state.refs.values())))
    return {
        "objects": len(table),
        "listed_per_s": round(len(table) / listed[0]),
        "marked_per_s": round(len(table) / cpu),
        "with_links_per_s": round(marks.opened / cpu),
    }


def checking(here: Path, *, deep: bool) -> dict[str, Any]:
    core, totals = opened(here), fsck.ObjectTotals()
    state = core.log.refresh().state
    check = fsck.check_objects(core.objects, state, totals, deep=deep)
    faults, (cpu, _) = timed_value(lambda: list(check))
    assert not faults, f"it was made whole, and has {faults[:3]}"
    name = "check_deep" if deep else "check"
    return {f"{name}_per_s": round(totals.objects / cpu)}


_RUN = """
import os, runpy, sys
leave = os._exit
def told(code):
    status = open("/proc/self/status").read()
    print("VmHWM", status.partition("VmHWM:")[2].split()[0], file=sys.stderr, flush=True)
    leave(code)
os._exit = told  # a command that is done leaves so
try:
    runpy.run_module("tensorrepo", run_name="__main__")
except SystemExit as end:
    told(end.code or 0)
"""


def bounded(words: Sequence[str], folder: Path) -> tuple[float, int]:
    """Processor seconds and peak MiB of a command in 1 GiB of address space, 256 descriptors."""
    homes = {f"XDG_{name}_HOME": str(folder / name) for name in ("CACHE", "STATE", "CONFIG")}
    limits = 'ulimit -v 1048576; ulimit -n 256; exec "$@"'
    command = ["bash", "-c", limits, "bash", sys.executable, "-c", _RUN, *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, env={**os.environ, **homes, "TENSORREPO_AUTHOR": AUTHOR},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}: {done.returncode}: {done.stderr[-2000:]}"
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return round(cpu, 1), int(done.stderr.rpartition("VmHWM")[2].split()[0]) >> 10


def timed(work: Callable[[], Any]) -> tuple[float, float]:
    """Processor and wall seconds."""
    return timed_value(work)[1]


def timed_value(work: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    cpu, wall = time.process_time(), time.perf_counter()
    value = work()
    return value, (time.process_time() - cpu, time.perf_counter() - wall)


def best(work: Callable[[], Any], rounds: int) -> tuple[float, float]:
    return least([timed(work) for _ in range(max(rounds, 3))])


def least(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Milliseconds: the least processor time, and the median of the wall's."""
    wall = statistics.median(each[1] for each in times)
    return round(min(each[0] for each in times) * 1e3, 1), round(wall * 1e3, 1)


def peak_mib() -> int:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) >> 10


CASES: dict[str, Case] = {"large": large, "rates": rates, "limits": limits, "billion": billion}

if __name__ == "__main__":
    run(CASES, "Measure a large repository.", rounds=3)
