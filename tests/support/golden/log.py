"""Makes one log with every kind of entry and of file, always the same bytes.

``python -m tests.support.golden.log`` writes tests/golden/log/ anew: only when the format changes,
with its version.
"""

from __future__ import annotations

from typing import Any

from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.log_slots import slot_key, void_key
from tensorrepo.repo.log.records import (
    LogEntry,
    LogRecord,
    Update,
    canonical_json,
    encode_ref_updates,
    parse_canonical,
)
from tensorrepo.repo.log.repair import void_slot
from tensorrepo.repo.log.segments import Segment, SegmentCommit, changed_filter, encode_segment
from tensorrepo.repo.log.state import Paging, State, encode_state, encode_with_pages
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tests.support.architecture.sources import ROOT
from tests.support.builders.log import Bulks, digest, encode_record, fold, new_backend, open_log

GOLDEN = ROOT / "tests/golden/log"
ANN = "Ann <ann@example.org>"


def _entries(bulk: Any) -> list[tuple[LogEntry, ...]]:
    """One tuple for each record."""

    def of(kind: str, *updates: Update, **more: Any) -> tuple[LogEntry, ...]:
        time_ns = 1_700_000_000_000_000_000
        return (LogEntry("t1", kind, ANN, time_ns, updates=updates, **more),)

    main, side = "heads/main", "heads/side"
    return [
        of("commit", Update(main, None, digest(1)), note="first\n“quoted” \t \x01 /"),
        (
            *of("lease-open", data={"id": "stage", "keep": [digest(9)], "expires": None}),
            LogEntry("t2", "ref-create", "", -1, updates=(Update(side, None, digest(2)),)),
        ),
        of("tag", Update("tags/v1", None, digest(1)), signature="signed"),
        of("ref-reset", Update(side, digest(2), digest(1))),
        of("ref-delete", Update(side, digest(1), None)),
        of("supersede", data={"placements": {digest(20): digest(21), digest(22): digest(21)}}),
        of("shallow", data={"add": [digest(30)], "remove": []}),
        of("config", data={"set": {"protected_refs": ["heads/*"], "retention_seconds": 86400}}),
        of(
            "gc-condemn",
            data={"at": 9, "list": digest(40), "graves": digest(41), "release": [digest(2)]},
        ),
        of("gc-end", data={"generation": 9}),
        of("commit", bulk=bulk),
        of("noop"),
    ]


def golden_files() -> dict[str, bytes]:
    """Name to bytes of every golden file."""
    bulks, backend = Bulks(), new_backend()
    log = open_log(backend, read_bulk=bulks)
    payload = encode_ref_updates([Update("heads/bulk", None, digest(3))])
    for entries in _entries(bulks.put(payload)):
        append(log, lambda _, found=entries: found)
    backend.create(slot_key(13), [b"no record"])
    void_slot(log, 13, actor=ANN, time_ns=1, note="a disk died")
    for _ in range(14, 65):
        append(log, lambda _: (LogEntry("t", "noop", "", 0),))
    keys = [stored.key for stored in backend.list("log/")]
    slots = [slot_key(gen) for gen in range(15, 64)]
    files = {key.removeprefix("log/"): backend.read(key) for key in keys if key not in slots}
    marker = _without_tag(backend.read(void_key(13)))
    files |= {"ref-updates": payload, "segment": _segment(backend), "marker-without-tag": marker}
    return files | _paged() | _purged()


def _without_tag(marker: bytes) -> bytes:
    """The marker as it was before there were tags."""
    return canonical_json(parse_canonical(marker, "marker") | {"note": "a disk died"})


def _paged() -> dict[str, bytes]:
    """A state whose refs are cut where the format cuts them, though they are few."""
    refs = {f"runs/a/{'é' * (number % 3)}{number}": digest(number) for number in range(700)}
    encoded = encode_with_pages(State(64, refs), Paging(inline_bytes=0))
    pages = {f"refs/{name}": data for name, data in encoded.pages.items()}
    return pages | {"paged-state": encoded.data}


def _purged() -> dict[str, bytes]:
    """A record with a purge, and the state after it."""
    updates = (
        Update("purge:datasets/people", digest(50), digest(51)),
        Update("purge:", digest(52), None),
    )
    data = {"columns": {"datasets/people": {"0123456789abcdef": "phone"}}, "rows": [digest(53)]}
    entry = LogEntry("t1", "purge", ANN, 0, "request 17", updates, data=data)
    record = LogRecord(1, digest(0), None, (entry,))
    state, _ = fold(State(), record, Bulks())
    return {"purge-record": encode_record(record), "purged-state": encode_state(state)}


def _segment(backend: Any) -> bytes:
    encoded = encode_object(Kind.COMMIT, b"a commit")
    commits = (
        SegmentCommit(1, encoded.link.digest, b"".join(encoded.parts), changed_filter(["a/b"])),
        SegmentCommit(3, encoded.link.digest, b"".join(encoded.parts), changed_filter(None)),
    )
    records = tuple(backend.read(slot_key(gen)) for gen in range(1, 5))
    return encode_segment(Segment(1, records, commits))


if __name__ == "__main__":
    for name, data in golden_files().items():
        path = GOLDEN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
