"""Summaries of entries: what a tree says is what opening the entry says."""

from __future__ import annotations

import msgspec
import pytest

from tensorrepo.formats.common.summaries import (
    dataset_summary,
    list_entry,
    model_summary,
    view_summary,
)
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects

DIGEST = Digest("1" * 64)
DATASET = Entry(
    Kind.DATASET, DIGEST, summary=dataset_summary(rows=60_000, columns=2, stored_bytes=7)
)
MODEL = Entry(Kind.MODEL, DIGEST, DIGEST, model_summary(tensors=1, tensor_bytes=1 << 40))
VIEW = Entry(Kind.VIEW, DIGEST, summary=view_summary(rows=1, view_bytes=90, path="datasets/a"))


def listed(entry: Entry) -> tuple[str, str, int]:
    found = list_entry("datasets/d", entry)
    assert (found.path, found.digest) == ("datasets/d", entry.digest)
    return found.kind, found.content, found.bytes


def test_a_listing_says_how_much_there_is() -> None:
    assert listed(DATASET) == ("dataset", "60,000 rows x 2 columns", 7)
    assert listed(MODEL) == ("model", "1 tensor", 1 << 40)
    assert listed(VIEW) == ("view", "1 row of datasets/a", 90)
    assert listed(Entry(Kind.RUN, DIGEST)) == ("run", "0 bytes", 0)


@pytest.mark.parametrize("size_bytes", [0, 2, 100_000])
def test_a_file_is_as_large_as_its_content(size_bytes: int) -> None:
    link = MemoryObjects().put(Kind.BLOB, bytes(size_bytes))
    assert listed(file_entry(link)) == ("file", f"{size_bytes:,} bytes", size_bytes)


def test_a_long_path_is_cut_and_said_to_be() -> None:
    summary = view_summary(rows=2, view_bytes=0, path="datasets/" + "x" * 200)
    assert len(summary) == 64
    shown = listed(msgspec.structs.replace(VIEW, summary=summary))[1]
    assert shown == "2 rows of datasets/" + "x" * 39 + "..."


@pytest.mark.parametrize("entry", [DATASET, MODEL, VIEW], ids=["dataset", "model", "view"])
def test_a_summary_of_another_size_is_refused(entry: Entry) -> None:
    for summary in (b"", entry.summary[:15], bytes(65)):
        with pytest.raises(CorruptError, match="expected a summary of"):
            listed(msgspec.structs.replace(entry, summary=summary))
