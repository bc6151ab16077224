"""The bundles whose bytes are kept in tests/golden/bundle: two commits that continue a third, and
one of a repository with a purge and a signed tag.

`python -m tests.support.golden.bundle` writes the file anew, which changes the stored format.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import structs

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.tag_signatures import TagStatement, signature_text, travelling
from tensorrepo.repo.history.commits import Commit, write_commit
from tensorrepo.repo.history.signatures import SshSigner
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.bundle import write_bundle
from tensorrepo.repo.transfer.receive import HistorySource
from tests.support.architecture.sources import ROOT

GOLDEN = ROOT / "tests/golden/bundle"
REPOSITORY = "0123456789abcdef" * 2
SIGNER = SshSigner(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))


def golden_bundles() -> dict[str, bytes]:
    """The bytes of the bundles, by their names."""
    return {"two-commits": _two_commits(), "purged": _purged()}


def _two_commits() -> bytes:
    store = ObjectStore(MemoryBackend())
    writer = ObjectWriter(store, ())
    first = _commit(writer, (), 1, {"files/a": b"one"})
    second = _commit(writer, (first,), 2, {"files/a": b"two", "files/b": b""})
    third = _commit(writer, (second,), 3, {"files/a": b"two"})
    writer.flush()
    refs = {"heads/main": third, "tags/v2": second}
    source = HistorySource(store, refs, {}, REPOSITORY, "memory", near=True, has=lambda _: True)
    return _bundled(source, [first])


def _purged() -> bytes:
    store = ObjectStore(MemoryBackend())
    writer = ObjectWriter(store, ())
    old = encode_object(Kind.BLOB, b"of Ann").link.digest
    tip = _commit(writer, (), 1, {"files/a": b"of Ann", "files/b": b"two"})
    twin = writer.put(Kind.BLOB, b"of nobody").digest
    rows = writer.put(Kind.BLOB, bytes(range(16))).digest
    writer.flush()
    store.backend.delete(object_key(old))
    state = State(
        purges={old: 7, Digest("ab" * 32): 7, Digest("cd" * 32): 9},
        purged_rows={rows: 7, Digest("ef" * 32): 9},
        purged_columns={"datasets/people": {"c1": "phone"}},
    )
    update = Update("tags/v1", None, tip)
    entry = LogEntry("t", "tag", "Ada <ada@example.org>", 5, "first", (update,))
    signature = signature_text(SIGNER.sign(TagStatement.of(REPOSITORY, entry).encoded()))
    text = travelling(REPOSITORY, structs.replace(entry, signature=signature))
    source = HistorySource(
        store, {"heads/main": tip, "tags/v1": tip}, {old: twin}, REPOSITORY, "memory", near=True,
        has=lambda _: True, purging=state, signatures=lambda _: {"tags/v1": text or ""},
    )  # fmt: skip
    return _bundled(source, [])


def _bundled(source: HistorySource, without: list[Digest]) -> bytes:
    with TemporaryDirectory() as folder:
        path = Path(folder, "golden.bundle")
        write_bundle(source, path, source.refs, without=without)
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
    for name, data in golden_bundles().items():
        (GOLDEN / f"{name}.bundle").write_bytes(data)
