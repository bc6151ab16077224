from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_slots import void_key
from tensorrepo.repo.log.records import (
    decode_record,
    decode_ref_updates,
    encode_ref_updates,
)
from tensorrepo.repo.log.segments import decode_segment, encode_segment
from tensorrepo.repo.log.state import Paging, decode_state, encode_state, encode_with_pages
from tests.support.builders.log import Bulks, digest, encode_record, open_log
from tests.support.golden.log import GOLDEN, golden_files

WRITTEN = golden_files()
STORED = {
    path.relative_to(GOLDEN).as_posix(): path.read_bytes()
    for path in sorted(GOLDEN.rglob("*"))
    if path.is_file()
}


def test_there_is_a_golden_file_for_everything_that_is_written() -> None:
    assert STORED.keys() == WRITTEN.keys()


@pytest.mark.parametrize("name", STORED)
def test_it_is_written_as_it_always_was(name: str) -> None:
    assert WRITTEN[name] == STORED[name]


RECORDS = [name for name in STORED if name.startswith("0") and not name.endswith("13.json")]


@pytest.mark.parametrize("name", RECORDS)
def test_a_golden_record_is_read_and_written_alike(name: str) -> None:
    record = decode_record(STORED[name])
    assert record.gen == int(name.removesuffix(".json"))
    assert encode_record(record) == STORED[name]


def test_the_golden_checkpoint_ref_updates_and_segment_are_read_and_written_alike() -> None:
    checkpoint = STORED[f"checkpoint/{64:020d}.json"]
    assert encode_state(decode_state(checkpoint)) == checkpoint
    updates = decode_ref_updates(STORED["ref-updates"])
    assert encode_ref_updates(updates) == STORED["ref-updates"]
    assert encode_segment(decode_segment(STORED["segment"])) == STORED["segment"]


def test_the_golden_state_with_ref_pages_is_read_and_written_alike() -> None:
    pages = {Digest(name[5:]): data for name, data in STORED.items() if name.startswith("refs/")}
    assert len(pages) > 1
    paging = Paging(inline_bytes=0)
    state = decode_state(STORED["paged-state"], read_pages=lambda _: pages, paging=paging)
    assert len(state.refs) == 700
    assert encode_with_pages(state, paging).pages == pages
    assert encode_state(state, paging) == STORED["paged-state"]


@pytest.mark.parametrize("marker", [f"void/{13:020d}.json", "marker-without-tag"])
def test_a_reader_of_the_golden_log_arrives_where_its_writer_was(marker: str) -> None:
    backend, bulks = MemoryBackend(), Bulks()
    for name in (name for name in STORED if name.endswith(".json")):
        backend.create(f"log/{name}", [STORED[name]])
    backend.overwrite(void_key(13), [STORED[marker]])
    bulks.put(STORED["ref-updates"])
    log = open_log(backend, read_bulk=bulks)
    state = log.refresh().state
    assert state.generation == 64
    assert state.refs == {
        "heads/main": digest(1),
        "tags/v1": digest(1),
        "heads/bulk": digest(3),
    }
