"""Golden files of the formats that no other module here makes: tests/golden/others.

`python -m tests.support.golden.others` writes the files anew, which changes the stored formats.
"""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.dataset.external.foreign import (
    VERSION,
    ArrayPlace,
    ForeignFile,
    encode_foreign,
)
from tensorrepo.formats.dataset.metadata.row_ids import RUN
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Input, Parameter, encode_graph
from tensorrepo.formats.search_index.sorted_values import make_sorted_segment, sort_keys
from tensorrepo.formats.search_index.stored_index import (
    IndexFile,
    IndexSegment,
    StoredIndex,
    write_index,
)
from tensorrepo.formats.views import StoredView, write_view
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.merge_requests.records import (
    CheckReport,
    Comment,
    MergeRequest,
    Review,
    encode_request,
)
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.history_pack import PackWriter
from tensorrepo.repo.registry.cards import Card, CardText, encode_card
from tests.support.architecture.sources import ROOT
from tests.support.builders.objects import MemoryObjects

GOLDEN = ROOT / "tests/golden/others"
ADA = "Ada <ada@example.org>"
TIME_NS = 1_700_000_000_123_456_789
COMMIT = Digest("ab" * 32)
DATASET = encode_object(Kind.DATASET, b"stands for a dataset").link
GRAPH = Graph(
    "given",
    (
        GraphNode("x", "input", {"index": 0}),
        GraphNode(
            "fc",
            "linear",
            {"bias": False},
            (Input("input", "x"),),
            (Parameter("weight", "fc.weight", "float32", (10, 4)),),
        ),
    ),
    (Input("0", "fc"),),
    {"hidden": 4},
)
CARD = Card(
    entry=CardText("Tells photos apart.", {"task": "classification"}),
    versions={"2": CardText("Trained for longer.")},
    last=1,
)
REQUEST = MergeRequest(
    number=7,
    title="Better labels",
    text="They were wrong.\n",
    source="heads/labels",
    target="heads/main",
    author=ADA,
    opened_ns=TIME_NS,
    state="open",
    comments=(Comment(ADA, TIME_NS, "Which?", COMMIT, "datasets/photos"),),
    reviews=(Review("Bo <bo@example.org>", TIME_NS, COMMIT, "approve", "Good."),),
    checks={"tests": CheckReport("ci", TIME_NS, COMMIT, "passed", "", "https://ci.example.org/1")},
    ended=None,
)
PLACE = ArrayPlace({"type": "scalar", "dtype": "float32"}, False, 128, 4, 100, "<f4", [])
FOREIGN = ForeignFile(
    VERSION, "npy", "file:///data/x.npy", 528, "mtime-1", b"\x07" * 32, {"01": PLACE}
)


def history_pack() -> bytes:
    """Two commits in one frame: bytes of a compressor, which other versions of it may not make."""
    writer = PackWriter()
    for number in (1, 2):
        encoded = encode_object(Kind.COMMIT, b"commit %d" % number * 20)
        writer.add(encoded.link.digest, b"".join(encoded.parts))
    return b"".join(writer.payload(77))


def view() -> bytes:
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    runs = np.zeros(1, RUN)
    runs["rows"] = 3
    stored = StoredView("SELECT * FROM photos", "datasets/photos", DATASET.digest, COMMIT, runs)
    return bytes(objects.get(write_view(objects, stored).digest).payload)


INDEX_BLOBS = (b"stands for a manifest", b"stands for an index")


def search_index() -> bytes:
    """An index of two segments, one of which has nothing that can be found."""
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    parts = [objects.put(Kind.BLOB, blob).digest for blob in INDEX_BLOBS]
    files = tuple(
        IndexFile(name, len(blob), (part,))
        for name, blob, part in zip(
            ("_indices/a/index.idx", "lengths"), INDEX_BLOBS, parts, strict=True
        )
    )
    segments = (
        IndexSegment(
            np.array([(7, 0, 5), (9, 3, 1)], RUN), "ivf_pq", {"partitions": 2, "nprobes": 1}, files,
            0.975,
        ),
        IndexSegment(np.array([(7, 2, 1)], RUN), "empty", {}, ()),
    )  # fmt: skip
    index = StoredIndex(
        "datasets/photos", DATASET.digest, "embedding", "0123456789abcdef", "ivf_pq", "l2",
        {"partitions": 2}, segments,
    )  # fmt: skip
    link, _ = write_index(objects, index)
    return bytes(objects.get(link.digest).payload)


def sorted_values() -> dict[str, bytes]:
    """An index of the values of six rows, and its files: a null and an equal pair among them."""
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    values = FixedValues(np.array([300, -2, 0, 7, -2, 1], "<i2"), np.arange(6) != 2)
    runs = np.array([(7, 0, 6)], RUN)
    segment = make_sorted_segment(objects, runs, [sort_keys(values)])
    index = StoredIndex(
        "datasets/photos", DATASET.digest, "year", "0123456789abcdef", "btree", "", {}, (segment,)
    )
    link, _ = write_index(objects, index)
    files = {
        f"value-index-{file.name}.bin": bytes(objects.get(file.parts[0]).payload)
        for file in segment.files
    }
    return {"value-index.bin": bytes(objects.get(link.digest).payload)} | files


def golden_files() -> dict[str, bytes]:
    """Name to bytes of every file that is written alike, whatever compressor is installed."""
    return {
        "graph.bin": encode_graph(GRAPH),
        "view.bin": view(),
        "search-index.bin": search_index(),
        **sorted_values(),
        "foreign.bin": encode_foreign(FOREIGN),
        "card.json": encode_card(CARD),
        "request.json": encode_request(REQUEST),
        "repo.json": b'{"format":1,"id":"%s"}\n' % (b"ab" * 16),
        "repo-sql.json": b'{"format":2,"id":"%s","log":"sql"}\n' % (b"ab" * 16),
    }


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    for name, data in (golden_files() | {"history-pack.bin": history_pack()}).items():
        (GOLDEN / name).write_bytes(data)
