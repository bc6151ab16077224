"""Mutation fuzzer of our parsers: what is written is changed at random, and read in a process.

Run as ``python -m tests.support.faults.parsers NAME SECONDS COUNT SEED``: reads mutants of the
golden files of one parser until the time is over, or so many, and prints how many, and what went
wrong. Bytes that carry a tag get the right one again, so that what lies behind it is reached.
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
import zstandard

from tensorrepo.api.transfer.client_entries import parse_entries
from tensorrepo.formats.dataset.external.foreign import decode_foreign
from tensorrepo.formats.dataset.metadata.chunk import decode_footer as decode_chunk_footer
from tensorrepo.formats.dataset.metadata.index import decode_index
from tensorrepo.formats.dataset.metadata.manifest import decode_leaf, decode_root
from tensorrepo.formats.exchange.arrays.npy import read_header as read_npy_header
from tensorrepo.formats.exchange.checkpoints.safetensors import parse_header
from tensorrepo.formats.exchange.records.tfrecord import parse_example
from tensorrepo.formats.images.headers import header_of
from tensorrepo.formats.model.graph.graph import decode_graph
from tensorrepo.formats.model.layout.manifest import decode_manifest
from tensorrepo.formats.model.layout.pack import decode_directory, decode_footer
from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.runs.metrics import decode_points
from tensorrepo.formats.runs.run_record import decode_run
from tensorrepo.repo.backends.service_format import MessageHead, decode_message, encode_message
from tensorrepo.repo.errors import Error
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.history.commits import decode_commit
from tensorrepo.repo.history.composing import (
    WantedCommit,
    WantedEntry,
    encode_wanted,
    parse_wanted,
)
from tensorrepo.repo.history.tree_pages import decode_page
from tensorrepo.repo.history.tree_pages import decode_root as decode_tree_root
from tensorrepo.repo.ids import Digest, digest_from_bytes
from tensorrepo.repo.log.checkpoints import decode_hint
from tensorrepo.repo.log.records import MAX_RECORD_BYTES, decode_record, decode_ref_updates
from tensorrepo.repo.log.segments import decode_segment
from tensorrepo.repo.log.state import decode_state
from tensorrepo.repo.merge_requests.records import decode_request
from tensorrepo.repo.objects.envelope import decode_object, expand
from tensorrepo.repo.objects.history_pack import HEADER as TABLE_HEADER
from tensorrepo.repo.objects.history_pack import expand_frame, read_table, table_bytes
from tensorrepo.repo.objects.incarnations import decode_key_list
from tensorrepo.repo.registry.cards import decode_card
from tensorrepo.repo.transfer.bundle import Bundle
from tests.support.architecture.sources import ROOT
from tests.support.faults import stand_ins
from tests.support.faults.mutants import mutate, peak_bytes
from tests.support.processes.forked_python import run_python

GOLDEN = ROOT / "tests" / "golden"
HERE = Digest("ab" * 32)
WANTED = WantedCommit(
    "t1", "heads/main", {"a": WantedEntry(1, HERE), "b": None}, "Ada", "m", 1, HERE, {"k": [1.5]}
)
MIB = 1 << 20
LIMIT_SECONDS = 5.0  # of the processor, for one mutant
OTHERWISE_BYTES = 16 * MIB  # what the interpreter may take meanwhile


def plain(data: bytes) -> bytes:
    return data


def tagged(data: bytes) -> bytes:
    """A record with the tag that the rest of it makes."""
    body, mark, _ = data.rpartition(b',"tag":"')
    return body + mark + content_tag(body + b"}").hex().encode() + b'"}' if mark else data


def segment_tagged(data: bytes) -> bytes:
    """A segment with the tag that the rest of it makes."""
    return data[:-16] + content_tag(data[:-16])


def payload(data: bytes) -> bytes:
    return bytes(decode_object(data).payload)


@dataclass(frozen=True)
class Parser:
    """One parser, and what is known to be right for it.

    Attributes:
        read: parses bytes; anything but one of our errors is a fault.
        corpus: gives bytes that it reads.
        seal: makes mutated bytes into what is read.
        cap_bytes: most that one input may take, as declared.
    """

    read: Callable[[bytes], object]
    corpus: Callable[[], list[bytes]]
    seal: Callable[[bytes], bytes] = plain
    cap_bytes: int = 16 * MIB


def golden(pattern: str, unpack: Callable[[bytes], bytes] = plain) -> Callable[[], list[bytes]]:
    return lambda: [unpack(path.read_bytes()) for path in sorted(GOLDEN.glob(pattern))]


def read_pack(data: bytes) -> None:
    start, size, _ = decode_footer(data[-32:], "pack")
    directory = decode_directory(data[-32 - size : -32], start, "pack")
    for index in range(len(directory.members)):
        directory.member(index)


def read_bundle(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        bundle = Bundle(Path(file.name))
        try:
            for digest in bundle.digests():
                bundle.fetch(digest)
            bundle.verify()
        finally:
            bundle.close()


def safetensors_corpus() -> list[bytes]:
    told = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "__metadata__": {"x": "y"},
    }
    return [json.dumps(told).encode()]


def npy_corpus() -> list[bytes]:
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"
    text += b" " * (118 - len(text) - 1) + b"\n"
    return [b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(48)]


def image_corpus() -> list[bytes]:
    png = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + b"\x00\x00\x00\x08" * 2 + b"\x08\x02" + bytes(7)
    jpeg = b"\xff\xd8\xff\xe0\x00\x10JFIF\x00\x01\x01\x00\x00\x01\x00\x01\x00\x00"
    jpeg += b"\xff\xc0\x00\x11\x08\x00\x08\x00\x08\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xd9"
    return [png, jpeg]


def example_corpus() -> list[bytes]:
    feature = b"\x0a\x01a\x12\x05\x1a\x03\x0a\x01\x07"
    return [b"\x0a" + bytes([len(feature) + 2]) + b"\x0a" + bytes([len(feature)]) + feature]


def table_tagged(data: bytes) -> bytes:
    """A history pack with the tag that its table makes."""
    with suppress(Error, struct.error):
        stop = table_bytes(data[: TABLE_HEADER.size], HERE) - 16
        if stop + 16 <= len(data):
            return data[:stop] + content_tag(data[:stop]) + data[stop + 16 :]
    return data


def read_history_pack(data: bytes) -> None:
    if len(data) < TABLE_HEADER.size:
        return  # who reads it asks for so many bytes first
    table = read_table(memoryview(data), HERE)
    for raw in islice(table.digests(), 100):
        member = table.find(digest_from_bytes(raw))
        if member is None:  # digests out of order hide some
            continue
        start, stop, size = table.frame_span(member.frame)
        expand_frame(data[start:stop], size, HERE)


def message_corpus() -> list[bytes]:
    entries = [entry for path in sorted(GOLDEN.glob("log/000*[!3].json"))
               for entry in json.loads(path.read_bytes())["entries"]]  # fmt: skip
    told = msgspec.Raw(msgspec.json.encode(entries))
    return [
        encode_message(MessageHead((("ab" * 32, 3),), told), [b"abc"]),
        encode_message(MessageHead(commit=msgspec.Raw(encode_wanted(WANTED)))),
    ]


def read_message(data: bytes) -> None:
    head, objects = decode_message(data)
    for _, content in objects:
        bytes(content)
    if bytes(head.commit) != b"null":
        parse_wanted(head.commit)
    if bytes(head.entries) != b"[]":
        parse_entries(head.entries)


def whole(wholes: Callable[[], tuple[stand_ins.Whole, ...]]) -> Parser:
    """Of what is read with others: each of these objects, in its place."""
    return Parser(stand_ins.read_whole(wholes), stand_ins.whole_corpus(wholes), cap_bytes=64 * MIB)


PARSERS: dict[str, Parser] = {
    "object": Parser(lambda d: decode_object(expand(d, HERE)), golden("objects/*.bin")),
    "compressed object": Parser(
        lambda d: decode_object(expand(d, HERE)),
        golden("objects/*.bin", zstandard.ZstdCompressor().compress),
        cap_bytes=64 * MIB,
    ),
    "record": Parser(decode_record, golden("log/000*[!3].json"), tagged, MAX_RECORD_BYTES),
    "checkpoint": Parser(decode_state, golden("log/checkpoint/*.json")),
    "hint": Parser(decode_hint, golden("log/hint")),
    "ref updates": Parser(decode_ref_updates, golden("log/ref-updates")),
    "segment": Parser(
        decode_segment,
        golden("log/segment"),
        segment_tagged,
    ),
    "commit": Parser(decode_commit, golden("commits/*.bin")),
    "tree page": Parser(lambda d: decode_page(d, "page"), golden("trees/[!er]*.bin")),
    "tree root": Parser(decode_tree_root, golden("trees/root*.bin")),
    "key list": Parser(
        lambda d: list(decode_key_list(memoryview(d))),
        lambda: [b"objects/ab/" + b"c" * 62 + b"\nobjects/ac/" + b"d" * 62 + b"\n"],
    ),
    "dataset root": Parser(decode_root, golden("dataset/*/root.bin", payload)),
    "dataset leaf": Parser(
        lambda d: decode_leaf(d, "leaf"), golden("dataset/*/leaf*.bin", payload)
    ),
    "page index": Parser(
        lambda d: decode_index(d, "index"), golden("dataset/*/page_index*.bin", payload)
    ),
    "chunk": Parser(decode_chunk_footer, golden("dataset/[cl][oa]*/chunk*.bin", payload)),
    "manifest": Parser(lambda d: decode_manifest(d, HERE), golden("model/manifest.bin", payload)),
    "placement": Parser(
        lambda d: decode_placement(d, HERE), golden("model/placement.bin", payload)
    ),
    "pack": Parser(read_pack, golden("model/pack*.bin")),
    "run": Parser(lambda d: decode_run(d, HERE), golden("run/run.bin", payload)),
    "metrics": Parser(lambda d: decode_points(d, HERE), golden("run/metrics.bin", payload)),
    "bundle": Parser(read_bundle, golden("bundle/*.bundle"), cap_bytes=64 * MIB),
    "npy header": Parser(lambda d: read_npy_header(io.BytesIO(d), "file"), npy_corpus),
    "safetensors header": Parser(lambda d: parse_header(d, 24), safetensors_corpus),
    "tfrecord example": Parser(lambda d: parse_example(d, "file"), example_corpus),
    "image header": Parser(header_of, image_corpus),
    "page": Parser(stand_ins.read_page, stand_ins.page_corpus),
    "frame": Parser(stand_ins.read_frame, stand_ins.frame_corpus),
    "whole dataset": whole(stand_ins.whole_datasets),
    "whole model": whole(stand_ins.whole_models),
    "view or index": whole(stand_ins.lone_objects),
    "foreign file": Parser(lambda d: decode_foreign(d, "foreign"), golden("others/foreign.bin")),
    "graph": Parser(lambda d: decode_graph(d, "graph"), golden("others/graph.bin")),
    "card": Parser(lambda d: decode_card(d, "card"), golden("others/card.json")),
    "merge request": Parser(lambda d: decode_request(d, "request"), golden("others/request.json")),
    "history pack": Parser(
        read_history_pack, golden("others/history-pack.bin"), table_tagged, cap_bytes=64 * MIB
    ),
    "message to a service": Parser(read_message, message_corpus),
}


def _crashes(data: bytes) -> None:
    if data[3:] and data[3] > 100:
        raise IndexError("list index out of range")


def _takes(data: bytes) -> None:
    if data[3:] and data[3] > 100:
        bytearray(b"x" * (200 * MIB))


def _eight() -> list[bytes]:
    return [bytes(64)]


# These are known to be bad: a fuzzer that finds nothing in them finds nothing.
KNOWN_BAD = {
    "crashes": Parser(_crashes, _eight),
    "takes memory": Parser(_takes, _eight),
}


def fault_of(parser: Parser, data: bytes) -> str | None:
    """What is wrong with reading these bytes; None when they are read, or refused by us."""
    before, began = peak_bytes(), time.process_time()
    try:
        parser.read(data)
    except Error:
        pass
    except Exception as problem:  # noqa: BLE001  any other is what is looked for
        return f"raised {type(problem).__name__}: {problem}"
    if time.process_time() - began > LIMIT_SECONDS:
        return "took too long"
    if (more := peak_bytes() - before) > 2 * parser.cap_bytes + OTHERWISE_BYTES:
        return f"took {more} bytes"
    return None


def fuzz(name: str, seconds: float, count: int, seed: int) -> tuple[int, list[str]]:
    """Number of mutants that were read, and the faults."""
    parser = (PARSERS | KNOWN_BAD)[name]
    corpus, chance = parser.corpus(), random.Random(f"{name} {seed}")
    faults: list[str] = []
    for data in corpus:
        parser.read(parser.seal(data))  # what is right is read
    until, done = time.monotonic() + seconds, 0
    while (time.monotonic() < until or not seconds) and done < count and len(faults) < 5:
        data = chance.choice(corpus)
        for _ in range(chance.choice([1, 1, 2, 4])):
            data = mutate(data, chance) if data else b"\0"
        fault = fault_of(parser, parser.seal(data))
        done += 1
        if fault is not None:
            faults.append(f"{name} {done}: {fault}: {data[:200]!r}")
    return done, faults


def fuzzed(
    names: Sequence[str], *, seconds: float = 0, count: int = 10**12, seed: int = 1
) -> dict[str, tuple[int, list[str]]]:
    """The same for some parsers, in a process of its own: how it ends is part of the answer."""
    told = {}
    words = [json.dumps(list(names)), str(seconds), str(count), str(seed)]
    module = "tests.support.faults.parsers"
    done = run_python("-m", module, *words, check=False, timeout_seconds=7200)
    for line in done.stdout.splitlines():
        name, number, faults = json.loads(line)
        told[name] = number, faults
    if done.returncode:
        missing = next(name for name in names if name not in told)
        told[missing] = 0, [f"ended with {done.returncode}: {done.stderr[-2000:]}"]
    return told


def main(names: str, seconds: str, count: str, seed: str) -> None:
    for name in json.loads(names):
        done, faults = fuzz(name, float(seconds), int(count), int(seed))
        sys.stdout.write(json.dumps([name, done, faults]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
