"""The bundle whose bytes are kept in tests/golden/bundle: two commits that continue a third.

`python -m tests.support.golden.bundle` writes the file anew, which changes the stored format.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.history.commits import Commit, write_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.bundle import write_bundle
from tensorrepo.repo.transfer.receive import HistorySource
from tests.support.architecture.sources import ROOT

GOLDEN = ROOT / "tests/golden/bundle"


def golden_bundle() -> bytes:
    """The bytes of the bundle."""
    store = ObjectStore(MemoryBackend())
    writer = ObjectWriter(store, ())
    first = _commit(writer, (), 1, {"files/a": b"one"})
    second = _commit(writer, (first,), 2, {"files/a": b"two", "files/b": b""})
    third = _commit(writer, (second,), 3, {"files/a": b"two"})
    writer.flush()
    refs = {"heads/main": third, "tags/v2": second}
    source = HistorySource(
        store, refs, {}, "0123456789abcdef" * 2, "memory", near=True, has=lambda _: True
    )
    with TemporaryDirectory() as folder:
        path = Path(folder, "golden.bundle")
        write_bundle(source, path, refs, without=[first])
        return path.read_bytes()


def _commit(
    writer: ObjectWriter, parents: tuple[Digest, ...], generation: int, files: dict[str, bytes]
) -> Digest:
    entries = {
        path: Entry(Kind.BLOB, writer.put(Kind.BLOB, content).digest)
        for path, content in files.items()
    }
    tree = update(writer, EMPTY_TREE, entries)
    commit = Commit(
        tree, parents, generation, "Ada <ada@example.org>", f"number {generation}", generation
    )
    return write_commit(writer, commit).digest


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "two-commits.bundle").write_bytes(golden_bundle())
